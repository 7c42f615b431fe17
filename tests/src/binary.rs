//! The programs under test: built once in a test process, kept under names of their own.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names a binary that has been built already, with every feature: `./dev test` does so for all its tests. Its switches
/// of sabotage are off unless `WINDFALL_SABOTAGE` turns one on.
const BUILT: &str = "WINDFALL_BINARY";
/// Names a program `windfall-servers` that has been built already.
const SERVERS_PROGRAM: &str = "WINDFALL_SERVERS_PROGRAM";

/// The binary that is tested; without a switch of sabotage it does what the shipped one does.
///
/// # Panics
/// If it cannot be built.
pub fn plain() -> &'static Path {
    static PLAIN: OnceLock<PathBuf> = OnceLock::new();
    PLAIN.get_or_init(|| built().unwrap_or_else(|| build("windfall", "windfall-plain", &[])))
}

/// The binary as anyone gets it, built with its default features alone.
///
/// # Panics
/// If it cannot be built.
pub fn shipped() -> &'static Path {
    static SHIPPED: OnceLock<PathBuf> = OnceLock::new();
    SHIPPED.get_or_init(|| build("windfall", "windfall-plain", &[]))
}

/// The binary with the switches of `WINDFALL_SABOTAGE`.
///
/// # Panics
/// If it cannot be built.
pub fn sabotaged() -> &'static Path {
    static SABOTAGED: OnceLock<PathBuf> = OnceLock::new();
    SABOTAGED.get_or_init(|| {
        built().unwrap_or_else(|| build("windfall", "windfall-sabotage", &["--features", "sabotage"]))
    })
}

/// The program that freezes, kills and starts real servers, which the demo is told of by `--servers-program`.
///
/// # Panics
/// If it cannot be built.
pub fn servers_program() -> &'static Path {
    static SERVERS: OnceLock<PathBuf> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let named = std::env::var_os(SERVERS_PROGRAM).map(PathBuf::from);
        named.unwrap_or_else(|| build("windfall-servers", "windfall-servers", &[]))
    })
}

fn built() -> Option<PathBuf> {
    std::env::var_os(BUILT).map(PathBuf::from)
}

/// Builds beside the test itself (same target directory, same profile) and keeps the result as `name`: cargo gives
/// both kinds the same name, and test processes may run side by side, hence the lock around build and copy.
fn build(package: &str, name: &str, features: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    // TARGET/debug/deps/crash-0123: this test.
    let profile = test.parent().and_then(Path::parent).expect("a directory of a profile");
    let target = profile.parent().expect("a target directory");
    let own = profile.join("end-to-end");
    std::fs::create_dir_all(&own).expect("a directory for the binaries");
    let lock = lock(&own.join("build.lock"));

    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .arg("build")
        .args(["-p", package, "--quiet"]);
    cargo.arg("--target-dir").arg(target).args(features);
    // What cargo tells a test about its own package is not for a build beside it: build scripts that look at it (ring's)
    // would run again, and with them all that stands on them, each time another one builds.
    for (name, _) in std::env::vars_os() {
        let is_own = name.to_str().is_some_and(|name| {
            ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"]
                .iter()
                .any(|own| name.starts_with(own))
        });
        if is_own {
            cargo.env_remove(name);
        }
    }
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo");
    assert!(status.success(), "{package} cannot be built: {cargo:?}");

    let built = profile.join(format!("{package}{}", std::env::consts::EXE_SUFFIX));
    let kept = own.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let fresh = own.join(format!("{name}.{}", std::process::id()));
    // A link, not a copy: a copy's open file could reach a child of another thread, and then nobody may run it.
    std::fs::hard_link(&built, &fresh).expect("the binary");
    std::fs::rename(&fresh, &kept).expect("the binary");
    // Renaming a link onto a link to the same file does nothing.
    std::fs::remove_file(&fresh).ok();
    drop(lock);
    kept
}

fn lock(path: &Path) -> File {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .expect("the lock of the build");
    file.lock().expect("the lock of the build");
    file
}
