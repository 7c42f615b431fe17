//! The window under every schedule that shuttle can think of: its source is compiled here against shuttle's
//! atomics, so the model is the code. A failing schedule is printed and replays with `shuttle::replay`.
#![allow(missing_docs, dead_code, clippy::unwrap_used)]

mod sync {
    pub(crate) use shuttle::sync::Arc;
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}
#[path = "../src/window.rs"]
mod window;

use shuttle::sync::mpsc::sync_channel;
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::collections::BTreeSet;
use window::Window;

/// One thread delivers (with gaps) and commits, two finish. At no moment may the position pass a record that
/// nobody has begun to finish, and in the end it passes all.
fn deliver_finish_commit(gap: u64) {
    let unfinished = Arc::new(Mutex::new(BTreeSet::new()));
    let mut window = Window::new(1, 0);
    let mut senders = Vec::new();
    let mut finishers = Vec::new();
    for _ in 0..2 {
        let (sender, receiver) = sync_channel::<(u64, window::Ticket)>(4);
        let unfinished = Arc::clone(&unfinished);
        senders.push(sender);
        finishers.push(thread::spawn(move || {
            while let Ok((offset, ticket)) = receiver.recv() {
                unfinished.lock().unwrap().remove(&offset);
                ticket.finish();
            }
        }));
    }
    let mut offset = 0;
    for n in 0..6_usize {
        offset += gap * (n as u64 % 3);
        unfinished.lock().unwrap().insert(offset);
        let ticket = window.deliver(offset).unwrap();
        senders[n % 2].send((offset, ticket)).unwrap();
        let position = window.advance();
        let lowest = unfinished.lock().unwrap().first().copied();
        assert!(lowest.is_none_or(|lowest| position <= lowest), "{position} passed {lowest:?}");
        offset += 1;
    }
    drop(senders);
    for finisher in finishers {
        finisher.join().unwrap();
    }
    assert_eq!(window.advance(), offset);
    assert_eq!(window.dropped(), None);
}

#[test]
fn any_schedule_of_deliver_finish_and_commit_within_a_block() {
    shuttle::check_random(|| deliver_finish_commit(3), 8000);
}

#[test]
fn any_schedule_across_blocks_that_are_recycled() {
    shuttle::check_random(|| deliver_finish_commit(8000), 1500);
}

#[test]
fn any_schedule_of_a_revoke_while_tickets_finish_or_drop() {
    shuttle::check_random(
        || {
            let mut old = Window::new(1, 0);
            let (first, second) = (old.deliver(0).unwrap(), old.deliver(1).unwrap());
            let finisher = thread::spawn(move || first.finish());
            let dropper = thread::spawn(move || drop(second));
            let position = old.advance();
            drop(old);
            let mut new = Window::new(2, position);
            let ticket = new.deliver(position).unwrap();
            assert_eq!(new.advance(), position, "a late finish of the old epoch moved the new window");
            finisher.join().unwrap();
            dropper.join().unwrap();
            assert_eq!(new.advance(), position);
            assert_eq!(new.dropped(), None);
            ticket.finish();
            assert_eq!(new.advance(), position + 1);
        },
        8000,
    );
}
