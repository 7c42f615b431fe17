//! The state file: which servers there are, so that another process finds, steers and ends them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::kinds::Entry;
use crate::process::Identity;

/// The state file's name in its folder.
pub(crate) const FILE: &str = "state.json";

/// Raised when the format changes; another version is refused.
const VERSION: u32 = 1;

/// The content of the state file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    version: u32,
    /// The process these servers end with; none when `down` ends them.
    pub(crate) owner: Option<Identity>,
    pub(crate) servers: BTreeMap<String, Entry>,
}

impl State {
    pub(crate) fn new(owner: Option<Identity>) -> Self {
        Self { version: VERSION, owner, servers: BTreeMap::new() }
    }

    /// Reads the file of a folder; an absent one holds nothing.
    pub(crate) fn load(dir: &Path) -> Result<Self, Error> {
        let path = file(dir);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::new(None)),
            Err(source) => return Err(Error::Io { what: format!("read {}", path.display()), source }),
        };
        let bad = |reason: String| Error::BadState { path: path.clone(), reason };
        let state: Self = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if state.version != VERSION {
            return Err(bad(format!("version {}, not {VERSION}", state.version)));
        }
        Ok(state)
    }

    /// Replaces the file in one step: a reader sees the old one or the new one.
    pub(crate) fn save(&self, dir: &Path) -> Result<(), Error> {
        let (path, new) = (file(dir), dir.join("state.json.new"));
        let failed = || Error::io(format!("write {}", path.display()));
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed()(error.into()))?;
        fs::write(&new, text).map_err(failed())?;
        fs::rename(&new, &path).map_err(failed())
    }
}

/// The state file of a folder.
pub(crate) fn file(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    fn entry(dir: &Path) -> Entry {
        Entry {
            spec: Spec::Etcd,
            dir: dir.to_owned(),
            elsewhere: Vec::new(),
            url: "http://127.0.0.1:1".to_owned(),
            addresses: BTreeMap::from([("main".to_owned(), "127.0.0.1:1".to_owned())]),
            settings: BTreeMap::new(),
            ports: vec![1],
            parts: Vec::new(),
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        assert!(State::load(folder.path()).unwrap().servers.is_empty());
        let mut state = State::new(Identity::own());
        state.servers.insert("etcd".to_owned(), entry(folder.path()));
        state.save(folder.path()).unwrap();
        let loaded = State::load(folder.path()).unwrap();
        assert_eq!(loaded.owner, state.owner);
        assert_eq!(loaded.servers["etcd"].addresses, state.servers["etcd"].addresses);
        assert_eq!(loaded.servers["etcd"].spec, Spec::Etcd);
    }

    #[test]
    fn garbage_and_other_versions_are_refused_with_the_files_name() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{", "[1]", "\0\u{1}", r#"{"version":2,"owner":null,"servers":{}}"#] {
            fs::write(file(folder.path()), text).unwrap();
            let error = State::load(folder.path()).unwrap_err();
            assert!(matches!(error, Error::BadState { .. }), "{error}");
            assert!(error.to_string().contains("state.json"), "{error}");
        }
    }
}
