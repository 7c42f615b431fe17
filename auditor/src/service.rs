//! The thread that audits, and the handle to it.

use crate::options::AuditorOptions;
use crate::stats::{AuditDifferences, AuditStats, Seen};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use windfall_contract::Clock;
use windfall_ledger::{AuditError, AuditProgress, Auditor, Compared, Increment};

/// Calls of operators that wait at most.
const CALLS_MAX: usize = 64;

/// Opens the ledger for auditing; why not, in words. Called again in the next round where it failed.
pub type OpenAuditor = Box<dyn FnMut() -> Result<Auditor, String> + Send>;

/// An operator's call: what to do with the auditor, or why there is none.
type Call = Box<dyn FnOnce(Result<&mut Auditor, String>) + Send>;

/// Why a call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum AuditCallError {
    /// Too many calls wait: try again.
    #[error("too many calls wait for the auditor; try again")]
    Busy,
    /// The auditor is closed.
    #[error("the auditor is closed")]
    Closed,
    /// The ledger cannot be opened.
    #[error("the ledger cannot be audited: {0}")]
    Away(String),
    /// The ledger refused.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

/// The service that audits a ledger: its start checks the options and gives a handle.
#[derive(Debug)]
pub struct AuditService;

/// A handle to a running auditor; clones share it. [`AuditHandle::close`] or the end of the last one ends it.
#[derive(Clone)]
pub struct AuditHandle {
    inner: Arc<Inner>,
}

struct Inner {
    calls: Mutex<Option<SyncSender<Call>>>,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    clock: Clock,
    step_pause: Duration,
}

impl fmt::Debug for AuditHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditHandle").finish_non_exhaustive()
    }
}

impl AuditService {
    /// Starts a thread that audits what `open` opens. A ledger that is away is opened in a later round.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        options: AuditorOptions,
        open: OpenAuditor,
        clock: Clock,
    ) -> Result<AuditHandle, std::io::Error> {
        let (calls, inbox) = mpsc::sync_channel(CALLS_MAX);
        let seen = Arc::new(Mutex::new(Seen { started_ms: clock.wall_ms(), ..Seen::default() }));
        let stop = Arc::new(AtomicBool::new(false));
        let step_pause = Duration::from_millis(options.step_pause_ms);
        let worker = Worker {
            options,
            open,
            auditor: None,
            clock: clock.clone(),
            seen: Arc::clone(&seen),
            stop: Arc::clone(&stop),
            inbox,
        };
        let thread = std::thread::Builder::new().name("auditor".into()).spawn(move || worker.run())?;
        let (calls, thread) = (Mutex::new(Some(calls)), Mutex::new(Some(thread)));
        Ok(AuditHandle { inner: Arc::new(Inner { calls, seen, stop, thread, clock, step_pause }) })
    }
}

impl AuditHandle {
    /// How far it has come.
    pub fn stats(&self) -> AuditStats {
        self.inner.seen.lock().stats(self.inner.clock.wall_ms())
    }

    /// Differences that are not resolved, as it has seen them last.
    pub fn differences(&self) -> AuditDifferences {
        self.inner.seen.lock().differences()
    }

    /// The present time, in Unix milliseconds.
    pub(crate) fn now_ms(&self) -> i64 {
        self.inner.clock.wall_ms()
    }

    /// The pause between two steps, in which others have the database.
    pub(crate) fn step_pause(&self) -> Duration {
        self.inner.step_pause
    }

    /// Runs something on the auditor, between two of its steps.
    ///
    /// # Errors
    /// [`AuditCallError`].
    pub async fn call<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Auditor) -> Result<T, AuditError> + Send + 'static,
    ) -> Result<T, AuditCallError> {
        self.ask(run)?.await.map_err(|_| AuditCallError::Closed)?
    }

    /// The same for a thread that may block.
    ///
    /// # Errors
    /// [`AuditCallError`].
    pub fn call_blocking<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Auditor) -> Result<T, AuditError> + Send + 'static,
    ) -> Result<T, AuditCallError> {
        self.ask(run)?.blocking_recv().map_err(|_| AuditCallError::Closed)?
    }

    fn ask<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Auditor) -> Result<T, AuditError> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, AuditCallError>>, AuditCallError> {
        let (reply, answer) = oneshot::channel();
        let call: Call = Box::new(move |auditor| {
            let done = match auditor {
                Ok(auditor) => run(auditor).map_err(AuditCallError::from),
                Err(why) => Err(AuditCallError::Away(why)),
            };
            // A caller that has gone does not want the answer.
            drop(reply.send(done));
        });
        match self.inner.calls.lock().as_ref().map(|calls| calls.try_send(call)) {
            Some(Ok(())) => Ok(answer),
            Some(Err(TrySendError::Full(_))) => Err(AuditCallError::Busy),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(AuditCallError::Closed),
        }
    }

    /// Takes no more calls, lets the step end that goes on, and closes the ledger. Blocks; a second call returns at once.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Inner {
    fn close(&self) {
        self.stop.store(true, Ordering::Release);
        // Its end wakes the thread.
        drop(self.calls.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the auditor's thread had panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

struct Worker {
    options: AuditorOptions,
    open: OpenAuditor,
    auditor: Option<Auditor>,
    clock: Clock,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    inbox: Receiver<Call>,
}

impl Worker {
    fn run(mut self) {
        let mut failing = None;
        loop {
            let mut pause_ms = self.options.every_ms;
            match self.round() {
                Ok(has_more) => {
                    failing = None;
                    if has_more {
                        pause_ms = self.options.step_pause_ms;
                    }
                }
                Err(why) => {
                    // Opened anew in the next round, with what is known of the ledger's mark by then.
                    self.auditor = None;
                    self.seen.lock().failures += 1;
                    // Once for each reason: the ledger may be away for long.
                    if failing.as_ref() != Some(&why) {
                        tracing::warn!(why, "the ledger cannot be audited now");
                    }
                    failing = Some(why);
                }
            }
            if !self.wait(Duration::from_millis(pause_ms)) {
                return;
            }
        }
    }

    /// Answers calls for so long. Returns whether to go on.
    fn wait(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(call) => call(self.opened()),
                Err(RecvTimeoutError::Timeout) => return !self.stop.load(Ordering::Acquire),
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn opened(&mut self) -> Result<&mut Auditor, String> {
        if self.auditor.is_none() {
            self.auditor = Some((self.open)()?.with_limits(self.options.limits()));
        }
        self.auditor.as_mut().ok_or_else(|| "it is closed".to_owned())
    }

    /// The pause between two steps. Returns whether to go on.
    fn pause(&mut self) -> bool {
        self.wait(Duration::from_millis(self.options.step_pause_ms))
    }

    /// Reads what is final by now, compares, and sweeps for a while. Returns whether more is final than was read.
    fn round(&mut self) -> Result<bool, String> {
        let told = |error: AuditError| error.to_string();
        let began = Instant::now();
        let has_more = loop {
            let now_ms = self.clock.wall_ms();
            let step = match self.opened()?.increment(now_ms) {
                // It does the same.
                Err(AuditError::Busy) => Increment::default(),
                other => other.map_err(told)?,
            };
            self.look().map_err(told)?;
            // Under a steady load there is always more, and balances must be compared all the same.
            if !step.has_more || began.elapsed() >= Duration::from_millis(self.options.every_ms) {
                break step.has_more;
            }
            if !self.pause() {
                return Ok(false);
            }
        };
        let now_ms = self.clock.wall_ms();
        match self.opened()?.compare(now_ms) {
            Ok(_) | Err(AuditError::Busy) => {}
            Err(error) => return Err(told(error)),
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(self.options.sweep_ms) {
            if !self.pause() {
                return Ok(false);
            }
            let now_ms = self.clock.wall_ms();
            match self.opened()?.sweep(now_ms) {
                // One sweep a round is enough.
                Ok(Compared::Done { is_last: false, .. }) => {}
                Ok(Compared::Done { is_last: true, .. } | Compared::Behind) | Err(AuditError::Busy) => break,
                Err(error) => return Err(told(error)),
            }
        }
        self.look().map_err(told)?;
        Ok(has_more)
    }

    /// Notes how far it has come.
    fn look(&mut self) -> Result<(), AuditError> {
        if let Some(auditor) = &mut self.auditor {
            let progress: AuditProgress = auditor.progress()?;
            self.seen.lock().progress = Some(progress);
        }
        Ok(())
    }
}
