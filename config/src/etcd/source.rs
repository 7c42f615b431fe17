//! The document in etcd as a source: read, watched, checked each second, and kept on disk.

use super::connection::{Connection, Found, said};
use super::{EtcdOptions, OpenEtcdError};
use crate::live::{Applier, LiveRules};
use crate::store::write_whole;
use crate::watch::read_bounded;
use etcd_client::EventType;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use windfall_contract::rules::Rules;

/// The pause between two tries to reach etcd, and after a watch that ended in order.
const AGAIN: Duration = Duration::from_millis(200);

/// How often the copy's time is set anew while etcd has the same document, ms. The time says how old the copy may be.
const CONFIRM_EVERY_MS: u64 = 10_000;

/// Owns the thread that follows the document. When it is dropped or closed, the thread ends and the rules stay as they
/// are.
#[derive(Debug)]
pub struct EtcdSource {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl EtcdSource {
    /// Begins with the document in etcd or, where that is away or its document is not better, with the copy on disk,
    /// and follows etcd from then on. Blocks, at most for [`EtcdOptions::start_timeout_ms`].
    ///
    /// `known_brokers` are those of the static options; `clock` tells ms since 1970, for [`crate::Status`].
    ///
    /// # Errors
    /// [`OpenEtcdError`]. Once this has succeeded nothing that happens to etcd is an error any more: it shows in
    /// [`LiveRules::status`].
    pub fn open(
        options: EtcdOptions,
        known_brokers: Option<Vec<String>>,
        clock: impl Fn() -> u64 + Send + 'static,
    ) -> Result<(LiveRules, Self), OpenEtcdError> {
        options.check()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenEtcdError::Thread)?;
        let (stop, stopped) = watch::channel(false);
        let (report, opened) = sync_channel(1);
        let thread = thread::Builder::new()
            .name("windfall-rules".to_owned())
            .spawn(move || runtime.block_on(run(options, known_brokers, clock, stopped, &report)))
            .map_err(OpenEtcdError::Thread)?;
        let source = Self { stop, thread: Some(thread) };
        let died = || OpenEtcdError::Thread(std::io::Error::other("it has died"));
        let live = opened.recv().map_err(|_| died())??;
        Ok((live, source))
    }

    /// Ends the following and waits for its thread.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the follower of the rules in etcd had panicked; its changes were not applied");
        }
    }
}

impl Drop for EtcdSource {
    fn drop(&mut self) {
        self.end();
    }
}

async fn run(
    options: EtcdOptions,
    known_brokers: Option<Vec<String>>,
    clock: impl Fn() -> u64,
    mut stopped: watch::Receiver<bool>,
    report: &SyncSender<Result<LiveRules, OpenEtcdError>>,
) {
    let (live, mut follower) = match begin(options, known_brokers, clock).await {
        Ok(begun) => begun,
        Err(error) => {
            // Whoever opens it waits for this.
            report.send(Err(error)).ok();
            return;
        }
    };
    if report.send(Ok(live)).is_err() {
        return;
    }
    let following = async {
        loop {
            if let Err(what) = follower.follow().await {
                follower.failed(&what);
            }
            sleep(AGAIN).await;
        }
    };
    tokio::select! {
        () = following => {}
        // An error: the owner is gone.
        _stop = stopped.wait_for(|stop| *stop) => {}
    }
}

/// The rules to begin with.
async fn begin<C: Fn() -> u64>(
    options: EtcdOptions,
    known_brokers: Option<Vec<String>>,
    clock: C,
) -> Result<(LiveRules, Follower<C>), OpenEtcdError> {
    let key = options.current_key();
    let known: Option<Vec<&str>> =
        known_brokers.as_ref().map(|known| known.iter().map(String::as_str).collect());
    let copied = options.copy.as_deref().and_then(|path| read_copy(path, known.as_deref()));
    let start = async { Connection::open(&options).await?.find(&key, false).await };
    let first = timeout(Duration::from_millis(options.start_timeout_ms), start).await;
    let first = first.unwrap_or_else(|_| Err(format!("no answer within {} ms", options.start_timeout_ms)));
    let place = options.place();
    let confirmed_ms = copied.as_ref().map(|copy| copy.confirmed_ms);
    let rules = match (copied, &first) {
        // What etcd has is offered to it like any later change: an older one is not taken.
        (Some(copy), _) => copy.rules,
        (None, Ok(Found { document: Some(bytes), .. })) => crate::parse_rules_bytes(bytes, known.as_deref())
            .map_err(|refusal| OpenEtcdError::Refused { key: key.clone(), refusal })?,
        (None, Ok(_)) => return Err(OpenEtcdError::Missing { place, key }),
        (None, Err(what)) => return Err(OpenEtcdError::Unreachable { place, what: what.clone() }),
    };
    let (live, applier) = LiveRules::adjustable(rules, known_brokers);
    let version = live.current().version;
    let copy = confirmed_ms.map(|confirmed_ms| Unconfirmed { version, confirmed_ms });
    let mut follower = Follower {
        options,
        key,
        applier,
        clock,
        seen: None,
        now_ms: 0,
        copy,
        is_kept: false,
        confirmed_ms: 0,
    };
    match first {
        Ok(found) => follower.take(found.document),
        Err(what) => follower.failed(&what),
    }
    Ok((live, follower))
}

/// The copy on disk, and when etcd was known to have the same document, ms since 1970.
struct Copied {
    rules: Rules,
    confirmed_ms: u64,
}

/// Rules of the copy that run since the start, which etcd has not answered yet.
#[derive(Clone, Copy)]
struct Unconfirmed {
    version: u64,
    confirmed_ms: u64,
}

/// A copy that cannot be read is as good as none.
fn read_copy(path: &Path, known_brokers: Option<&[&str]>) -> Option<Copied> {
    let place = path.display();
    let bytes = read_bounded(path)
        .inspect_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!(%place, %error, "the copy of the rules cannot be read");
            }
        })
        .ok()?;
    let rules = crate::parse_rules_bytes(&bytes, known_brokers)
        .inspect_err(|refusal| tracing::warn!(%place, %refusal, "the copy of the rules is not used"))
        .ok()?;
    let confirmed = std::fs::metadata(path).and_then(|about| about.modified()).ok();
    let since = confirmed.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Some(Copied { rules, confirmed_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX) })
}

/// The following thread's own state.
struct Follower<C> {
    options: EtcdOptions,
    key: String,
    applier: Applier,
    clock: C,
    /// The document that was judged last, taken or not; it is judged once, however often it is read.
    seen: Option<Vec<u8>>,
    /// When it was last looked at; 0 before the first time.
    now_ms: u64,
    /// The copy that the process began with, until etcd answers.
    copy: Option<Unconfirmed>,
    /// Whether the copy has the document that etcd has.
    is_kept: bool,
    /// When the copy's time was set.
    confirmed_ms: u64,
}

impl<C> Drop for Follower<C> {
    fn drop(&mut self) {
        // I8: rules that no longer follow their source must show, whatever ended the following.
        if thread::panicking() {
            let text = format!("{}: its watcher has died; restart the process", self.key);
            self.applier.source_failed(text, self.now_ms);
        }
    }
}

impl<C: Fn() -> u64> Follower<C> {
    /// Reads, then watches until something is odd; Ok where only reading again is due.
    async fn follow(&mut self) -> Result<(), String> {
        let mut connection = Connection::open(&self.options).await?;
        let found = connection.find(&self.key, false).await?;
        let (revision, mut changed) = (found.revision, found.changed);
        self.take(found.document);
        let mut watch = connection.watch(&self.key, revision).await?;
        let mut check = interval(Duration::from_millis(self.options.check_ms));
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut newest = revision;
        loop {
            tokio::select! {
                message = watch.message() => {
                    let message = message.map_err(|error| said(&error))?.ok_or("the watch has ended")?;
                    if message.canceled() {
                        // Compacted, or by etcd's own will: what is there now is what counts.
                        tracing::info!(reason = message.cancel_reason(), "the watch of the rules begins anew");
                        return Ok(());
                    }
                    newest = newest.max(message.header().map_or(0, etcd_client::ResponseHeader::revision));
                    let Some(event) = message.events().last() else { continue };
                    let pair = event.kv();
                    changed = pair.map_or(0, etcd_client::KeyValue::mod_revision);
                    let is_put = event.event_type() == EventType::Put;
                    self.take(pair.filter(|_| is_put).map(|pair| pair.value().to_vec()));
                    if !is_put {
                        changed = 0;
                    }
                }
                _ = check.tick() => {
                    let now = connection.find(&self.key, true).await?;
                    // Behind what was seen: it has lost its data, and the watch waits for a revision of long ago.
                    // Changed without a word: the watch is dead. A word on its way is read twice, which does no harm.
                    if now.revision < newest || now.changed != changed {
                        return Ok(());
                    }
                    self.now_ms = (self.clock)();
                    self.confirm();
                }
            }
        }
    }

    /// Offers what is there. I6: a refusal is counted and told in the status; the last good rules stay.
    fn take(&mut self, document: Option<Vec<u8>>) {
        self.now_ms = (self.clock)();
        let Some(bytes) = document else {
            return self.failed("there is no such key");
        };
        self.applier.source_works();
        self.copy = None;
        if self.seen.as_ref() == Some(&bytes) {
            return;
        }
        self.is_kept = self.applier.apply(&bytes, self.now_ms).is_ok() && self.keep(&bytes);
        (self.confirmed_ms, self.seen) = (0, Some(bytes));
        self.confirm();
    }

    /// Notes in the copy's time that etcd has the same document.
    fn confirm(&mut self) {
        let Some(path) = self.options.copy.as_ref().filter(|_| self.is_kept) else { return };
        if self.now_ms.saturating_sub(self.confirmed_ms) < CONFIRM_EVERY_MS {
            return;
        }
        self.confirmed_ms = self.now_ms;
        let at: SystemTime = UNIX_EPOCH + Duration::from_millis(self.now_ms);
        // It only tells the copy's age; a copy that cannot be written is told where it is written.
        if let Err(error) = File::options().append(true).open(path).and_then(|file| file.set_modified(at)) {
            tracing::debug!(place = %path.display(), %error, "the copy's time cannot be set");
        }
    }

    /// I8: without its source the process goes on with what it has.
    fn failed(&mut self, what: &str) {
        self.now_ms = (self.clock)();
        let mut text = format!("etcd at {}, {}: {what}", self.options.place(), self.key);
        if let Some(Unconfirmed { version, confirmed_ms }) = self.copy {
            let age_s = self.now_ms.saturating_sub(confirmed_ms) / 1_000;
            text += &format!(
                "; version {version} runs from the copy on disk, which etcd confirmed {age_s} s ago"
            );
        }
        self.applier.source_failed(text, self.now_ms);
    }

    /// Whether the copy has this document now.
    fn keep(&self, bytes: &[u8]) -> bool {
        let Some(path) = &self.options.copy else { return false };
        if read_bounded(path).is_ok_and(|kept| kept == bytes) {
            return true;
        }
        write_whole(path, bytes)
            .inspect_err(|error| tracing::warn!(place = %path.display(), %error, "no copy of the rules; a start without etcd takes the last one"))
            .is_ok()
    }
}
