//! A rules file passes the suite of all homes of rules.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use tempfile::TempDir;
use windfall_config::{ChangeRules, FileSource, LiveRules, RulesStore};
use windfall_conformance::rules::{self, Fixture, Kept, Place};

struct Files;

struct InFile(TempDir);

impl Fixture for Files {
    fn name(&self) -> &str {
        "file"
    }

    fn place(&self) -> Result<Box<dyn Place>, String> {
        Ok(Box::new(InFile(tempfile::tempdir().unwrap())))
    }
}

impl InFile {
    fn path(&self) -> PathBuf {
        self.0.path().join("rules.toml")
    }
}

impl Place for InFile {
    fn store(&self) -> Box<dyn ChangeRules> {
        Box::new(RulesStore::new(self.path(), None))
    }

    fn follow(&self) -> Result<(LiveRules, Box<dyn Send>), String> {
        let (live, source) = FileSource::open(&self.path(), None, || 7).map_err(|error| error.to_string())?;
        Ok((live, Box::new(source)))
    }

    fn overwrite(&self, bytes: &[u8]) -> Result<(), String> {
        fs::write(self.path(), bytes).map_err(|error| error.to_string())
    }

    fn damage(&self, kept: Kept) -> Result<(), String> {
        let path = match kept {
            Kept::Change(version) => format!("rules.toml.history/{version:08}.toml"),
            Kept::Proposal(number) => format!("rules.toml.proposals/{number:08}.toml"),
        };
        let file = fs::OpenOptions::new().write(true).truncate(true).open(self.0.path().join(path));
        file.and_then(|mut file| file.write_all(b"number = ")).map_err(|error| error.to_string())
    }

    fn set_away(&self, is_away: bool) -> Result<(), String> {
        let aside = self.0.path().join("aside");
        let (from, to) = if is_away { (self.path(), aside) } else { (aside, self.path()) };
        fs::rename(from, to).map_err(|error| error.to_string())
    }

    fn starts_while_away(&self) -> bool {
        false
    }
}

#[test]
fn a_file_conforms() {
    let failed = rules::run(&Files);
    assert!(failed.is_empty(), "{failed:#?}");
}
