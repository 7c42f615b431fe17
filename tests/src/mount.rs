//! Files that are replaced as Kubernetes replaces those of a mounted Secret.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// A folder of files, each of which is a link to `..data/NAME`, where `..data` is a link to the folder of the version in force.
/// A version is replaced as a whole, by one rename of `..data`, and the folder of the one before is deleted.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    version: u32,
}

impl Mount {
    /// An empty one.
    ///
    /// # Panics
    /// If the folder cannot be made.
    pub fn new(dir: &Path) -> Self {
        fs::create_dir(dir).expect("a folder");
        Self { dir: dir.to_owned(), version: 0 }
    }

    /// The path of a file, which stays the same.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Puts these files in place of all that were there.
    ///
    /// # Panics
    /// If that fails.
    pub fn publish(&mut self, files: &[(&str, Vec<u8>)]) {
        let before = self.version_dir();
        self.version += 1;
        let folder = self.version_dir();
        fs::create_dir(&folder).expect("a folder of the version");
        for (name, content) in files {
            let path = folder.join(name);
            fs::write(&path, content).expect("a file of the version");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).expect("its mode");
        }
        let (data, aside) = (self.dir.join("..data"), self.dir.join("..data_tmp"));
        symlink(folder.file_name().expect("a name"), &aside).expect("a link to the version");
        fs::rename(&aside, &data).expect("the swap");
        for (name, _) in files {
            let link = self.file(name);
            if link.symlink_metadata().is_err() {
                symlink(Path::new("..data").join(name), &link).expect("a link to the file");
            }
        }
        if self.version > 1 {
            fs::remove_dir_all(&before).expect("the version before goes");
        }
    }

    fn version_dir(&self) -> PathBuf {
        self.dir.join(format!("..version_{}", self.version))
    }
}
