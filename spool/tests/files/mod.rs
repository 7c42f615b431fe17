//! Looks at a spool's files from the outside.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::fs;
use std::path::{Path, PathBuf};
use windfall_spool::{Recovered, Spool, SpoolOptions};

/// The smallest spool: 63 slots of 1 KiB and four events.
pub fn small() -> SpoolOptions {
    SpoolOptions { total_bytes: 256 << 10, slot_bytes: 1 << 10, slot_events: 4, ..SpoolOptions::default() }
}

/// Instance directories under `root`, in order.
pub fn instances(root: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The one instance directory under `root`.
pub fn only_instance(root: &Path) -> PathBuf {
    let paths = instances(root);
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths[0].clone()
}

/// Opens and drops: what a next start would find.
pub fn left(root: &Path, options: &SpoolOptions) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (_spool, recovered) = Spool::open(root, options).unwrap();
    packs(&recovered)
}

/// Label and events of each pack.
pub fn packs(recovered: &Recovered) -> Vec<(Vec<u8>, Vec<u8>)> {
    recovered.packs.iter().map(|pack| (pack.label().to_vec(), pack.events().to_vec())).collect()
}

/// What a crash at this moment leaves: a copy of the whole root, whose locks nobody holds.
pub fn snapshot(root: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for instance in instances(root) {
        let to = copy.path().join(instance.file_name().unwrap());
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(&instance).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    copy
}
