//! Records that were set aside: a file with one line of JSON for each, for people.

use super::record::QueuedAdd;
use crate::add_queue::stats::AddQueueStats;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const FILE: &str = "set-aside.jsonl";

/// A record of the queue of adds whose timer was not stored. It does not fire by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// When it was set aside, in Unix milliseconds.
    pub at_ms: u64,
    /// Why: the reason that the metric counts it under.
    pub reason: String,
    /// Why, in a sentence, and what to look at before anything is done about it.
    pub what: String,
    /// Where it was read.
    pub topic: String,
    /// Where it was read.
    pub partition: u32,
    /// Where it was read.
    pub offset: u64,
    /// The tenant, as far as the record can be read; and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer: Option<SetAsideTimer>,
    /// The whole record in base64, where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

/// The timer of a record that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAsideTimer {
    /// Its tenant.
    pub tenant: String,
    /// Its target.
    pub target: String,
    /// The id of the store that it is for.
    #[serde(default)]
    pub store: String,
    /// Its key.
    pub key: String,
    /// When it was to fire, in Unix milliseconds.
    pub due_ms: u64,
    /// When its record was written, in Unix milliseconds.
    pub written_ms: u64,
    /// Its payload in base64.
    pub payload: String,
}

/// Why a record is set aside. No text may make anybody add a timer again that may have fired. `Unsigned`: nobody has signed it, and
/// its topic takes no such adds; `Unverified`: no known key has signed it as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    Unreadable(String),
    OtherStore { theirs: u64, own: u64 },
    UnknownTarget,
    OtherTask,
    TooOld { kept_ms: u64 },
    Refused(String),
    Unsigned,
    Unverified { what: String, may_become_known: bool },
}

impl Reason {
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::OtherStore { .. } => "other_store",
            Self::UnknownTarget => "unknown_target",
            Self::OtherTask => "other_task",
            Self::TooOld { .. } => "too_old",
            Self::Refused(_) => "refused",
            Self::Unsigned => "unsigned",
            Self::Unverified { .. } => "unverified",
        }
    }

    fn what(&self) -> String {
        match self {
            Self::Unreadable(what) => format!(
                "The record cannot be read: {what}. Another program may write to this topic, or a newer version of Windfall"
            ),
            Self::OtherStore { theirs, own } => format!(
                "The record is for the store {theirs:016x}, and the schedulers that read this topic have the store {own:016x}. \
                 The schedulers of the other store may have taken a copy of it: look there, by its key, before anything is \
                 done. A topic belongs to one store; correct scheduler.queue where it names the wrong topics or store_id"
            ),
            Self::UnknownTarget => {
                "The options of this process do not name the tenant or the target. Another process with \
                 other options may have taken a copy of it: look for its key before anything is done"
                    .into()
            }
            Self::OtherTask => {
                "Another timer with another time, target or payload was added under this key first, and that \
                 one stands. A key is used once: a timer that is wanted besides needs another key"
                    .into()
            }
            Self::TooOld { kept_ms } => format!(
                "The record was written before the time of which the store knows all used keys (keys_kept_ms is {kept_ms}): \
                 the timer may have fired already. Find out at its target whether it has, before anything is done"
            ),
            Self::Refused(what) => format!(
                "The store refuses it again and again, and takes others of its shard: {what}. It is not stored"
            ),
            Self::Unsigned => {
                "Nobody has signed the record, and the options [signing] take no such adds from this topic. Anybody who can \
                 write to the topic may have written it, and another process with other options may have taken a copy of \
                 it: find out who wrote it, and whether its timer is stored, before anything is done"
                    .into()
            }
            Self::Unverified { what, .. } => format!(
                "No known key has signed the record as it is: {what}. Somebody may have forged it, or its signer has keys \
                 that this process does not have, and another process may have taken a copy of it: find out who wrote it, \
                 and whether its timer is stored, before anything is done"
            ),
        }
    }

    pub fn count(&self, stats: &AddQueueStats) {
        let counter = match self {
            Self::Unreadable(_) => &stats.unreadable,
            Self::OtherStore { .. } => &stats.other_store,
            Self::UnknownTarget => &stats.unknown_target,
            Self::OtherTask => &stats.other_task,
            Self::TooOld { .. } => &stats.too_old,
            Self::Refused(_) => &stats.refused,
            Self::Unsigned => &stats.unsigned,
            Self::Unverified { .. } => &stats.unverified,
        };
        counter.add(1);
        stats.set_aside.add(1);
    }
}

/// Where a record was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadAt<'a> {
    pub topic: &'a str,
    pub partition: u32,
    pub offset: u64,
}

impl SetAside {
    pub(super) fn new(at_ms: u64, reason: &Reason, at: ReadAt<'_>, record: &Bytes) -> Self {
        let read = QueuedAdd::decode(record).ok().map(|add| SetAsideTimer {
            tenant: add.tenant,
            target: add.target,
            key: String::from_utf8_lossy(add.key.as_bytes()).into(),
            store: format!("{:016x}", add.store),
            due_ms: add.due_ms,
            written_ms: add.written_ms,
            payload: STANDARD.encode(&add.payload),
        });
        Self {
            at_ms,
            reason: reason.label().into(),
            what: reason.what(),
            topic: at.topic.into(),
            partition: at.partition,
            offset: at.offset,
            record: read.is_none().then(|| STANDARD.encode(record)),
            timer: read,
        }
    }
}

/// The file. Entries are on the disk before [`append`](Self::append) says Ok.
pub(super) struct SetAsideFile {
    path: PathBuf,
    bytes_max: u64,
    /// The file and its length, once something was written.
    open: Mutex<Option<(File, u64)>>,
}

impl SetAsideFile {
    pub fn new(folder: &Path, bytes_max: u64) -> Self {
        Self { path: folder.join(FILE), bytes_max, open: Mutex::new(None) }
    }

    /// Appends all entries or, as far as readers see it, none. Blocks.
    pub fn append(&self, entries: &[SetAside]) -> std::io::Result<()> {
        let mut lines = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut lines, entry)?;
            lines.push(b'\n');
        }
        let mut open = self.open.lock();
        let (mut file, len) = match open.take() {
            Some(open) => open,
            None => open_at_line(&self.path)?,
        };
        if len + lines.len() as u64 > self.bytes_max {
            *open = Some((file, len));
            return Err(Error::new(
                ErrorKind::StorageFull,
                format!("{} has reached set_aside_bytes_max; move it away", self.path.display()),
            ));
        }
        // A file that failed is opened again, behind a line of its own.
        file.write_all(&lines)?;
        file.sync_data()?;
        *open = Some((file, len + lines.len() as u64));
        Ok(())
    }
}

/// Opens the file at its end, behind a whole line.
fn open_at_line(path: &Path) -> std::io::Result<(File, u64)> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let mut len = file.metadata()?.len();
    if len == 0
        && let Some(folder) = path.parent()
    {
        // The name of a new file is on the disk before anything in it is relied on.
        File::open(folder)?.sync_all()?;
        folder.parent().map(|parent| File::open(parent)?.sync_all()).transpose()?;
    }
    if len > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            len += 1;
        }
    }
    Ok((file, len))
}

/// What was set aside in a folder, each record once, and the number of lines that cannot be read. A folder without the file
/// has none. Blocks.
///
/// # Errors
/// The file cannot be read.
pub fn read_set_aside(folder: &Path) -> std::io::Result<(Vec<SetAside>, usize)> {
    let file = match File::open(folder.join(FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let (mut entries, mut damaged) = (Vec::new(), 0);
    let mut seen = BTreeSet::new();
    for line in BufReader::new(file).split(b'\n') {
        let line = line?;
        if line.is_empty() {
            continue;
        }
        match serde_json::from_slice::<SetAside>(&line) {
            // Records that were read again are set aside again. Their offset may be another one by then, and other records may
            // have the same one: topics are made anew, and RocketMQ counts each queue from 0.
            Ok(entry) => {
                let (topic, reason) = (entry.topic.clone(), entry.reason.clone());
                let content = serde_json::to_string(&(&entry.timer, &entry.record))?;
                if seen.insert((topic, reason, content)) {
                    entries.push(entry);
                }
            }
            Err(_) => damaged += 1,
        }
    }
    Ok((entries, damaged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_contract::due::TaskKey;

    fn record() -> Bytes {
        let add = QueuedAdd {
            store: 1,
            written_ms: 2,
            due_ms: 3,
            tenant: "calls".into(),
            target: "hook".into(),
            key: TaskKey::new(b"call-7").unwrap(),
            payload: "hang up".into(),
        };
        add.encode()
    }

    fn at(offset: u64) -> ReadAt<'static> {
        ReadAt { topic: "adds", partition: 3, offset }
    }

    #[test]
    fn what_was_set_aside_is_listed_once_also_behind_a_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_set_aside(folder.path()).unwrap(), (Vec::new(), 0));
        let file = SetAsideFile::new(folder.path(), 1 << 20);
        let too_old = SetAside::new(9, &Reason::TooOld { kept_ms: 5 }, at(1), &record());
        let unreadable = SetAside::new(9, &Reason::Unreadable("no".into()), at(2), &"{}".into());
        file.append(&[too_old.clone(), unreadable.clone()]).unwrap();
        OpenOptions::new().append(true).open(folder.path().join(FILE)).unwrap().write_all(b"{\"at").unwrap();
        let file = SetAsideFile::new(folder.path(), 1 << 20);
        let other = SetAside::new(9, &Reason::OtherTask, at(3), &record());
        // Read again at another offset, and another record at the same one.
        let moved = SetAside::new(10, &Reason::TooOld { kept_ms: 5 }, at(7), &record());
        let begun_anew = SetAside::new(11, &Reason::Unreadable("no".into()), at(2), &"[]".into());
        file.append(&[moved, other.clone(), begun_anew.clone()]).unwrap();
        let timer = too_old.timer.as_ref().unwrap();
        assert_eq!((&*timer.tenant, &*timer.key, timer.due_ms), ("calls", "call-7", 3));
        assert_eq!(STANDARD.decode(&timer.payload).unwrap(), b"hang up");
        assert_eq!((unreadable.timer.is_none(), unreadable.record.is_some()), (true, true));
        assert_eq!(read_set_aside(folder.path()).unwrap(), (vec![too_old, unreadable, other, begun_anew], 1));
    }

    #[test]
    fn a_full_file_takes_nothing_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let file = SetAsideFile::new(folder.path(), 600);
        let entry = SetAside::new(9, &Reason::OtherTask, at(1), &record());
        file.append(std::slice::from_ref(&entry)).unwrap();
        let full = file.append(std::slice::from_ref(&entry)).unwrap_err();
        assert!(full.to_string().contains("set_aside_bytes_max"), "{full}");
        assert_eq!(read_set_aside(folder.path()).unwrap().0, [entry]);
    }

    /// An operator who follows these texts must not fire a timer twice.
    #[test]
    fn no_reason_says_to_add_a_timer_again() {
        for reason in [
            Reason::Unreadable("no".into()),
            Reason::OtherStore { theirs: 1, own: 2 },
            Reason::UnknownTarget,
            Reason::OtherTask,
            Reason::TooOld { kept_ms: 1 },
            Reason::Refused("no".into()),
            Reason::Unsigned,
            Reason::Unverified { what: "no".into(), may_become_known: true },
        ] {
            let what = reason.what().to_lowercase();
            assert!(!what.contains("add it again") && !what.contains("send it again"), "{what}");
            // Whoever may have a copy of it, or may have fired it, is named before anything else.
            let may_have_fired =
                !matches!(reason, Reason::Unreadable(_) | Reason::OtherTask | Reason::Refused(_));
            assert!(!may_have_fired || what.contains("before anything is done"), "{what}");
        }
    }
}
