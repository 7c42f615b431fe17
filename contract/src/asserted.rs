//! Files that are opened by a library which asserts on damage: the assertion becomes an error of the caller.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

thread_local! {
    /// Whether this thread makes an error of an assertion that fails now.
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Runs `open`. What it had under way is dropped where it panics, so it must own all that it changes.
///
/// # Errors
/// The first line of what was asserted, where it panicked.
pub fn catch_assertion<T>(open: impl FnOnce() -> T) -> Result<T, String> {
    let outer = CATCHES.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(open));
    CATCHES.set(outer);
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.and_then(|text| text.lines().next()).unwrap_or("an assertion failed").to_owned()
    })
}

/// From now on the process does not print assertions that [`catch_assertion`] makes errors of: whoever reads them would
/// take them for a bug. It is for a program's `main`; a library leaves the hook to its user.
pub fn silence_caught_assertions() {
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        if !CATCHES.get() {
            print(panic);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn an_assertion_is_an_error_and_is_printed_only_where_nobody_catches_it() {
        let printed = Arc::new(AtomicU32::new(0));
        let (own, thread) = (Arc::clone(&printed), std::thread::current().id());
        let print = take_hook();
        set_hook(Box::new(move |panic| match std::thread::current().id() == thread {
            true => drop(own.fetch_add(1, SeqCst)),
            false => print(panic),
        }));
        silence_caught_assertions();
        assert_eq!(catch_assertion(|| 7), Ok(7));
        let failed = catch_assertion(|| assert_eq!(1, 2, "lengths"));
        assert_eq!(failed, Err("assertion `left == right` failed: lengths".to_owned()));
        // Within another one, too, and after it.
        let nested = catch_assertion(|| {
            assert_eq!(catch_assertion(|| panic!("inner")), Err::<(), _>("inner".to_owned()));
            panic!("outer")
        });
        assert_eq!(nested, Err::<(), _>("outer".to_owned()));
        assert_eq!(printed.load(SeqCst), 0);
        assert!(catch_unwind(|| panic!("nobody makes an error of this")).is_err());
        assert_eq!(printed.load(SeqCst), 1);
    }
}
