//! The rules' file as a source: watched by its directory, polled as well, taken when it validates.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecursiveMode, Watcher as _};

use crate::bounds::DOCUMENT_MAX_BYTES;
use crate::live::{Applier, LiveRules};
use crate::refusal::Refusal;

/// The number of differing reads after which a candidate is judged as it is: a file that keeps changing must not delay
/// a change beyond 1 s.
const SETTLE_READS_MAX: u32 = 5;

/// How a rules file is watched. The defaults apply a change well within a second, whatever the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchOptions {
    /// How often the file is read even if nobody said that it changed, ms; default 500. Catches what no
    /// notification tells: network file systems, a directory that was itself replaced.
    pub poll_ms: u64,
    /// Two reads so far apart must agree before a candidate is judged, ms; default 50. An editor that writes
    /// in place is not refused for the half it has written.
    pub settle_ms: u64,
    /// Whether to ask the system for notifications; default `true`. Without them the poll alone finds changes.
    pub notify: bool,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { poll_ms: 500, settle_ms: 50, notify: true }
    }
}

/// A rules file could not be opened as a source.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be read. Give another path, or the right to read it.
    #[error("the rules file {path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// It does not validate, and there is no earlier version to go on with. Correct it.
    #[error("{path}: {refusal}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        refusal: Refusal,
    },
    /// The watching thread could not be started. Retry when the system has threads again.
    #[error("the watcher of the rules file cannot be started: {0}")]
    Thread(io::Error),
}

/// Owns the thread that watches a rules file. When it is dropped or closed, the thread ends and the rules stay as they
/// are.
#[derive(Debug)]
pub struct FileSource {
    stop: Arc<AtomicBool>,
    wake: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
    // Dropped after the thread has ended; ends the notifications.
    _notifier: Option<notify::RecommendedWatcher>,
}

impl FileSource {
    /// Reads and validates the file, and watches it from then on with the default [`WatchOptions`].
    ///
    /// `known_brokers` are those of the static options; `clock` tells ms since 1970, for [`crate::Status`].
    ///
    /// # Errors
    /// [`OpenError`]. Once this has succeeded nothing that happens to the file is an error any more: a bad
    /// candidate or a missing file leaves the rules as they are and shows in [`LiveRules::status`].
    pub fn open(
        path: &Path,
        known_brokers: Option<Vec<String>>,
        clock: impl Fn() -> u64 + Send + 'static,
    ) -> Result<(LiveRules, Self), OpenError> {
        Self::open_with(path, known_brokers, clock, WatchOptions::default())
    }

    /// [`FileSource::open`] with other options.
    ///
    /// # Errors
    /// As [`FileSource::open`].
    pub fn open_with(
        path: &Path,
        known_brokers: Option<Vec<String>>,
        clock: impl Fn() -> u64 + Send + 'static,
        options: WatchOptions,
    ) -> Result<(LiveRules, Self), OpenError> {
        let (wake, woken) = sync_channel(1);
        // Watched before the first read, so that no change falls between the two.
        let notifier = if options.notify { watch_directory(path, wake.clone()) } else { None };
        let bytes = read_bounded(path).map_err(|source| OpenError::Read { path: path.to_owned(), source })?;
        let known: Option<Vec<&str>> =
            known_brokers.as_ref().map(|known| known.iter().map(String::as_str).collect());
        let rules = crate::parse_rules_bytes(&bytes, known.as_deref())
            .map_err(|refusal| OpenError::Refused { path: path.to_owned(), refusal })?;
        let (live, applier) = LiveRules::adjustable(rules, known_brokers);
        let stop = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            path: path.to_owned(),
            applier,
            clock,
            options,
            stop: Arc::clone(&stop),
            seen: bytes,
            looked_at_ms: 0,
        };
        let thread = thread::Builder::new()
            .name("windfall-rules".to_owned())
            .spawn(move || watch.run(&woken))
            .map_err(OpenError::Thread)?;
        Ok((live, Self { stop, wake, thread: Some(thread), _notifier: notifier }))
    }

    /// Ends the watching and waits for its thread, at most about `settle_ms`.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Full means that it wakes anyway; disconnected, that it has ended.
        self.wake.try_send(()).ok();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the watcher of the rules file had panicked; its changes were not applied");
        }
    }
}

impl Drop for FileSource {
    fn drop(&mut self) {
        self.end();
    }
}

/// The watching thread's own state.
struct Watch<C> {
    path: PathBuf,
    applier: Applier,
    clock: C,
    options: WatchOptions,
    stop: Arc<AtomicBool>,
    /// The content that was judged last, taken or not; it is judged once, however often it is read.
    seen: Vec<u8>,
    /// When the file was last looked at; 0 before the first time.
    looked_at_ms: u64,
}

impl<C> Drop for Watch<C> {
    fn drop(&mut self) {
        // I8: rules that no longer follow their file must show, whatever ended the watching.
        if thread::panicking() {
            let text = format!("{}: its watcher has died; restart the process", self.path.display());
            self.applier.source_failed(text, self.looked_at_ms);
        }
    }
}

impl<C: Fn() -> u64> Watch<C> {
    fn run(mut self, woken: &Receiver<()>) {
        let poll = Duration::from_millis(self.options.poll_ms.max(1));
        loop {
            match woken.recv_timeout(poll) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.stopped() {
                return;
            }
            self.looked_at_ms = (self.clock)();
            match self.candidate() {
                Ok(None) => self.applier.source_works(),
                Ok(Some(bytes)) => {
                    self.applier.source_works();
                    // I6: a refusal is counted and told in the status; the last good rules stay.
                    self.applier.apply(&bytes, self.looked_at_ms).ok();
                    self.seen = bytes;
                }
                // I8: without its source the process goes on with what it has.
                Err(error) => {
                    let text = format!("{}: {error}", self.path.display());
                    self.applier.source_failed(text, self.looked_at_ms);
                }
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The file's content once it rests, if it has not been judged yet.
    fn candidate(&self) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = read_bounded(&self.path)?;
        for _ in 0..SETTLE_READS_MAX {
            if bytes == self.seen {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(self.options.settle_ms));
            if self.stopped() {
                return Ok(None);
            }
            let again = read_bounded(&self.path)?;
            if again == bytes {
                break;
            }
            bytes = again;
        }
        Ok((bytes != self.seen).then_some(bytes))
    }
}

/// Asks for notifications of the file's directory: editors and renames replace the file itself, and a
/// `ConfigMap` the link that leads to it. `None` where the system gives none; the poll goes on.
fn watch_directory(path: &Path, wake: SyncSender<()>) -> Option<notify::RecommendedWatcher> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let told = move |event: notify::Result<notify::Event>| {
        // Our own reads are told as well; waking for them would never end.
        let concerns = match event {
            Ok(event) => match event.kind {
                EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
                EventKind::Access(_) => false,
                _ => true,
            },
            Err(_) => true,
        };
        // Full: it will wake, and reads what is there then.
        if concerns {
            wake.try_send(()).ok();
        }
    };
    let watching = notify::recommended_watcher(told).and_then(|mut watcher| {
        watcher.watch(directory, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    watching
        .inspect_err(|error| tracing::warn!(%error, "no notifications for the rules file; it is polled"))
        .ok()
}

/// The file's bytes, cut one byte past what a document may have, so that a huge file is refused and not read.
pub(crate) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        // A pipe would block the reader for good.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(DOCUMENT_MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
