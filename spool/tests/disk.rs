//! Disks and directories that refuse: a named error at once, never a signal.
//!
//! Each case runs in this very test binary, started again under a limit.

#![allow(clippy::unwrap_used, reason = "a test, its helpers included")]

mod files;

use files::{instances, small};
use std::path::Path;
use std::process::{Command, Output};
use windfall_spool::{OpenError, Spool, SpoolOptions};

const CHILD: &str = "WINDFALL_SPOOL_TEST_CHILD";

/// Not a test by itself: opens a spool where it is told, and says how that went.
#[test]
fn child() {
    let Ok(root) = std::env::var(CHILD) else { return };
    let root = Path::new(&root);
    let small_fits = Spool::open(root, &small());
    let default_does_not = Spool::open(root, &SpoolOptions::default());
    let error = default_does_not.unwrap_err();
    assert!(matches!(error, OpenError::DiskFull { needed_bytes: 67_063_808, .. }), "{error:?}");
    assert!(error.to_string().contains("free disk space"), "{error}");
    let (spool, _) = small_fits.unwrap();
    assert_eq!(instances(root).len(), 1, "the one that did not fit left nothing behind");
    fill_disk(root);
    // The disk is full now, and the spool takes what it has reserved.
    for _ in 0..spool.usage().slots {
        let mut pack = spool.claim(b"").unwrap();
        pack.append(&[7; 1024]).unwrap();
    }
    drop(spool);
    let (spool, recovered) = Spool::open(root, &small()).unwrap();
    assert_eq!(recovered.packs.len(), usize::try_from(spool.usage().slots).unwrap());
    recovered.packs.into_iter().for_each(|pack| pack.seal(b"head").free());
    println!("as it should be");
}

/// Writes until nothing more fits. Under a file size limit that is the limit.
fn fill_disk(root: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(root.with_extension("filler")).unwrap();
    let error = loop {
        if let Err(error) = file.write_all(&[0; 4096]) {
            break error;
        }
    };
    let kind = error.kind();
    assert!(matches!(kind, std::io::ErrorKind::StorageFull | std::io::ErrorKind::FileTooLarge), "{error}");
}

/// Runs [`child`] after `setup`, in a shell that has `$ROOT`.
fn run(setup: &str, shell: &mut Command) -> Output {
    let root = tempfile::tempdir().unwrap();
    let script = format!("{setup}\nexec \"$EXE\" --exact child --nocapture");
    shell
        .args(["sh", "-c", &script])
        .env("EXE", std::env::current_exe().unwrap())
        .env("ROOT", root.path())
        .env(CHILD, root.path().join("spool"))
        .output()
        .unwrap()
}

fn assert_good(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("as it should be"), "{said}{complained}");
}

#[test]
fn a_file_size_limit_is_a_named_error() {
    // Blocks of 512 bytes in POSIX, of 1024 in some shells: 1 or 2 MiB. The signal that goes with it is ignored.
    assert_good(&run("trap '' XFSZ; ulimit -f 2048", &mut Command::new("env")));
}

#[test]
fn a_full_disk_is_a_named_error_at_the_start_and_no_signal_later() {
    let namespaces = Command::new("unshare").args(["-rm", "true"]).status();
    if !namespaces.is_ok_and(|status| status.success()) {
        println!("no user namespaces here: only the file size limit was tried");
        return;
    }
    let mount = "mount -t tmpfs -o size=2m tmpfs \"$ROOT\" || exit 1";
    assert_good(&run(mount, Command::new("unshare").arg("-rm")));
}

#[test]
fn a_directory_that_may_not_be_written_is_a_named_error() {
    // Not even root may make a directory here.
    let error = Spool::open(Path::new("/sys/windfall-spool"), &small()).unwrap_err();
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("/sys/windfall-spool"), "{error}");
}

#[test]
fn a_root_that_is_a_file_is_an_error() {
    let root = tempfile::NamedTempFile::new().unwrap();
    let error = Spool::open(root.path(), &small()).unwrap_err();
    assert!(matches!(error, OpenError::Io { doing: "create", .. }), "{error:?}");
}
