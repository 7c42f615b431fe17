//! Reading a key file, replacing it as a whole, and keeping a second writer out.

use std::{
    fs::{File, Metadata, OpenOptions, Permissions, TryLockError},
    io::{ErrorKind, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

use crate::KeyFileError;

/// The largest key file that is read. A thousand keys take a third of it.
pub const FILE_MAX_BYTES: u64 = 1 << 20;
/// The permission bits of a file that its owner alone may read and write.
const OWNER_ONLY: u32 = 0o600;

/// The right to write a key file: an advisory lock (flock) on `FILE.lock`, which stays there when released.
/// The key file itself cannot carry it, as each save puts another file in its place.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the right to write the file at `path`, until it is dropped.
    ///
    /// # Errors
    /// [`KeyFileError::InUse`], [`KeyFileError::Io`].
    pub fn take(path: &Path) -> Result<Self, KeyFileError> {
        let aside = with_suffix(path, ".lock");
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(OWNER_ONLY)
            .open(&aside)
            .map_err(|source| io("open", &aside, source))?;
        // Root may have made it: the key file's owner must be able to take it, too.
        if let Some(old) = Old::of(path)?
            && is_lock(&file, &aside)
        {
            old.give_owner(&file, &aside)?;
        }
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(KeyFileError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(io("lock", &aside, source)),
        }
    }
}

/// Reads a key file's text. `make` is the command that makes such a file.
///
/// # Errors
/// [`KeyFileError`].
pub fn read(path: &Path, make: &'static str) -> Result<Zeroizing<String>, KeyFileError> {
    let file = File::open(path).map_err(|source| missing_or_io(path, make, source))?;
    // Asked of the open file, not of the path, which may name another one by then.
    let metadata = file.metadata().map_err(|source| io("examine", path, source))?;
    let mode = metadata.mode() & 0o777;
    let reader = rustix::process::geteuid().as_raw();
    if is_exposed(mode, metadata.uid(), reader, is_own_group(metadata.gid())) {
        return Err(KeyFileError::Exposed { path: path.to_owned(), mode });
    }
    if metadata.len() > FILE_MAX_BYTES {
        return Err(KeyFileError::damaged(path, "longer than 1 MiB"));
    }
    // Room for all of it at once: growing would leave copies of secrets behind.
    let room = usize::try_from(FILE_MAX_BYTES).map_or(0, |max| max + 1);
    let mut text = Zeroizing::new(Vec::with_capacity(room));
    file.take(FILE_MAX_BYTES).read_to_end(&mut text).map_err(|source| io("read", path, source))?;
    let text = std::str::from_utf8(&text).map_err(|_| KeyFileError::damaged(path, "not UTF-8"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Whether others than its owner may read a file with this mode. One of root's that its group may read, and do no more with,
/// is the service's own that is of that group: so Kubernetes mounts a Secret, and a service that cannot be given the file itself
/// follows it while it runs. To root it says nothing.
const fn is_exposed(mode: u32, owner: u32, reader: u32, is_own_group: bool) -> bool {
    let is_mounted_for_group = owner == 0 && reader != 0 && is_own_group && mode & 0o037 == 0;
    mode & 0o077 != 0 && !is_mounted_for_group
}

/// Whether this process is of the group: what another group may read is not mounted for it.
fn is_own_group(group: u32) -> bool {
    let group = rustix::process::Gid::from_raw(group);
    rustix::process::getegid() == group || rustix::process::getgroups().is_ok_and(|own| own.contains(&group))
}

/// Writes a key file where there is none. The caller holds its lock.
///
/// # Errors
/// [`KeyFileError::Exists`], [`KeyFileError::Io`].
pub fn write_new(path: &Path, text: &str) -> Result<(), KeyFileError> {
    match path.symlink_metadata() {
        Ok(_) => Err(KeyFileError::Exists { path: path.to_owned() }),
        Err(error) if error.kind() == ErrorKind::NotFound => replace(path, text),
        Err(error) => Err(io("examine", path, error)),
    }
}

/// Puts a new content in place of the old: a reader, or a crash, sees one or the other as a whole. Owner and group stay
/// what they were, so that a service can still read its keys after root has rotated them, and so does a mode that forbids
/// the owner to write. The caller holds the file's lock.
///
/// # Errors
/// [`KeyFileError::Io`], also where the owner cannot be kept: the old file is in place then.
pub fn replace(path: &Path, text: &str) -> Result<(), KeyFileError> {
    let aside = with_suffix(path, ".tmp");
    // What a crash left; nobody else writes it under the lock.
    match std::fs::remove_file(&aside) {
        Err(source) if source.kind() != ErrorKind::NotFound => return Err(io("remove", &aside, source)),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(OWNER_ONLY)
        .open(&aside)
        .map_err(|source| io("create", &aside, source))?;
    if let Some(old) = Old::of(path)? {
        old.give_owner(&file, &aside)?;
        // After the owner: a change of the owner may take bits away.
        file.set_permissions(Permissions::from_mode(old.mode & OWNER_ONLY))
            .map_err(|source| io("change the mode of", &aside, source))?;
    }
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|source| io("write", &aside, source))?;
    std::fs::rename(&aside, path).map_err(|source| io("replace", path, source))?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| io("sync", folder, source))
}

/// The mode of a file with a secret that anybody may read, or others than its owner may change. Its group may read it, as
/// where a secret is mounted for a service. Key files are [stricter](read).
pub fn exposed_mode(metadata: &Metadata) -> Option<u32> {
    let mode = metadata.mode() & 0o777;
    (mode & 0o027 != 0).then_some(mode)
}

/// Whether an open file is the one at `path` and nothing but a lock: an empty file with one name. Who owns the folder may put
/// there a link to what they would like to be given.
fn is_lock(file: &File, path: &Path) -> bool {
    let (Ok(opened), Ok(there)) = (file.metadata(), path.symlink_metadata()) else { return false };
    let is_the_same = (opened.dev(), opened.ino()) == (there.dev(), there.ino());
    is_the_same && opened.is_file() && opened.nlink() == 1 && opened.len() == 0
}

/// What a file that is there keeps when it is replaced.
struct Old {
    owner: u32,
    group: u32,
    mode: u32,
}

impl Old {
    /// `None` where there is no file at `path`.
    fn of(path: &Path) -> Result<Option<Self>, KeyFileError> {
        match path.metadata() {
            Ok(old) => Ok(Some(Self { owner: old.uid(), group: old.gid(), mode: old.mode() })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(io("examine", path, source)),
        }
    }

    /// Gives a file, which this process has made, the same owner and group, unless it has them. The group may stay another
    /// one where this user may not give it: a key file is its owner's alone.
    fn give_owner(&self, file: &File, path: &Path) -> Result<(), KeyFileError> {
        let now = file.metadata().map_err(|source| io("examine", path, source))?;
        if (now.uid(), now.gid()) == (self.owner, self.group) {
            return Ok(());
        }
        match fchown(file, Some(self.owner), Some(self.group)) {
            Err(_) if now.uid() == self.owner => Ok(()),
            done => done.map_err(|source| io("keep the owner of", path, source)),
        }
    }
}

/// The file behind any links. `make` is the command that makes such a file.
///
/// # Errors
/// [`KeyFileError::Missing`], [`KeyFileError::Io`].
pub fn real_path(path: &Path, make: &'static str) -> Result<PathBuf, KeyFileError> {
    path.canonicalize().map_err(|source| missing_or_io(path, make, source))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn io(doing: &'static str, path: &Path, source: std::io::Error) -> KeyFileError {
    KeyFileError::Io { doing, path: path.to_owned(), source }
}

fn missing_or_io(path: &Path, make: &'static str, source: std::io::Error) -> KeyFileError {
    match source.kind() {
        ErrorKind::NotFound => KeyFileError::Missing { path: path.to_owned(), make },
        _ => io("open", path, source),
    }
}

#[cfg(test)]
mod tests {
    use super::is_exposed;

    #[test]
    fn a_file_of_roots_may_be_mounted_for_a_group() {
        const SERVICE: u32 = 10_001;
        for (mode, owner, reader, is) in [
            (0o600, SERVICE, SERVICE, false),
            (0o400, 0, 0, false),
            // As a Secret is mounted with fsGroup.
            (0o440, 0, SERVICE, false),
            (0o640, 0, SERVICE, false),
            (0o440, 0, 0, true),
            (0o440, SERVICE, SERVICE, true),
            (0o640, SERVICE, SERVICE, true),
            (0o440, SERVICE + 1, SERVICE, true),
            (0o444, 0, SERVICE, true),
            (0o460, 0, SERVICE, true),
            (0o450, 0, SERVICE, true),
            (0o604, 0, SERVICE, true),
        ] {
            assert_eq!(is_exposed(mode, owner, reader, true), is, "{mode:03o} of {owner} read by {reader}");
        }
        assert!(is_exposed(0o440, 0, SERVICE, false), "another group may read it");
    }
}
