//! A clock that is ahead of the system's, for processes that wait for hours.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Preloaded into a process, it moves the clock that tells the time of day.
const SOURCE: &str = include_str!("../../tools/soak/src/skew.c");

/// The environment of a process whose time of day is so far ahead.
///
/// # Panics
/// If there is no C compiler, which the workspace needs too.
pub fn ahead(by: Duration) -> Vec<(&'static str, String)> {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let library = LIBRARY.get_or_init(build);
    vec![("LD_PRELOAD", library.display().to_string()), ("SOAK_CLOCK_MS", by.as_millis().to_string())]
}

/// Builds it beside the test itself. Test processes may run side by side, so each has its own until it is whole.
fn build() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let own = test.parent().and_then(Path::parent).expect("a directory of a profile").join("end-to-end");
    std::fs::create_dir_all(&own).expect("a directory for the library");
    let named = |kind: &str| own.join(format!("ahead-{}.{kind}", std::process::id()));
    let (source, built, kept) = (named("c"), named("so"), own.join("ahead.so"));
    std::fs::write(&source, SOURCE).expect("the source of the library");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&built).arg(&source).arg("-ldl");
    assert!(command.status().expect("a C compiler").success(), "{command:?}");
    std::fs::rename(&built, &kept).expect("the library");
    std::fs::remove_file(&source).expect("the source of the library");
    kept
}
