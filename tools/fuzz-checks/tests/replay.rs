//! Runs each check on the inputs that are kept for it. What a fuzzer finds is put among them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::PathBuf;
use windfall_fuzz_checks::{TARGETS, run};

fn fuzz() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "fuzz"].iter().collect()
}

#[test]
fn the_kept_inputs_find_nothing() {
    for (name, _) in TARGETS {
        let folder = fuzz().join("seeds").join(name);
        let mut inputs: Vec<PathBuf> = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.unwrap().path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{name} has no seeds");
        for input in inputs {
            let data = fs::read(&input).unwrap();
            // Also cut, and with one bit changed: the neighbourhood of a finding is worth a look.
            (0..=data.len().min(512)).for_each(|end| run(name, &data[..end]));
            for at in 0..data.len().min(512) {
                let mut changed = data.clone();
                changed[at] ^= 1 << (at % 8);
                run(name, &changed);
            }
            run(name, &data);
        }
    }
}

#[test]
fn each_check_is_a_fuzz_target() {
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        let target = fs::read_to_string(fuzz().join("fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(target.contains(&format!("run(\"{name}\", data)")), "{name}");
    }
}
