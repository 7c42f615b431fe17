//! The service and its handle.

use crate::connector::Downstream;
use crate::external::InFlight;
use crate::inbox::{Inbox, NotTaken, Weight};
use crate::options::{GrantObserver, Payer, RewardOptions};
use crate::reading::{self, ReadCall};
use crate::stats::{Counters, RewardStats};
use crate::traced::Traced;
use crate::writer::{Decision, Grant, How, Job, Writer};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use tracing::Instrument;
use windfall_contract::Clock;
use windfall_contract::connector::Connector;
use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, RetryReason, Rewards};
use windfall_contract::rules::{Budget, BudgetKind};
use windfall_ledger::{Attempt, BudgetSet, BudgetsApplied, Ledger, LedgerError, OpenError, Writers};

/// The least wait of what an operator has paused.
const PAUSED_RETRY_MS: u64 = 1_000;

/// The service could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A type names a connector that is not there: correct the options.
    #[error("type {bonus_type} is paid by connector {connector}, which is not there")]
    UnknownConnector {
        /// The type.
        bonus_type: String,
        /// The name that was not found.
        connector: String,
    },
    /// The ledger gave no connection for another writer: correct it, or ask for fewer writers.
    #[error("the ledger takes no further writer: {0}")]
    Ledger(#[from] OpenError),
    /// The system gave no thread.
    #[error("a writer's thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// The ledger could not be asked or did not answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Too much waits for the writer: try again.
    #[error("too many calls wait for the ledger; try again")]
    Busy,
    /// The service is closed.
    #[error("the reward service is closed")]
    Closed,
    /// The ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Starts reward services.
#[derive(Debug)]
pub struct RewardService;

impl RewardService {
    /// Starts the writers' threads, which own the ledger until the handle is closed. `observer` hears of every
    /// credit.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        options: RewardOptions,
        ledger: Ledger,
        connectors: Vec<Arc<dyn Connector>>,
        observer: Option<GrantObserver>,
        clock: Clock,
    ) -> Result<RewardHandle, StartError> {
        let downstreams: BTreeMap<String, Arc<Downstream>> = connectors
            .into_iter()
            .map(|connector| {
                let name = connector.name().to_owned();
                let own = options.connectors.get(&name).copied().unwrap_or_default();
                (name, Arc::new(Downstream::new(connector, own, clock.clone())))
            })
            .collect();
        let named = options.pays.iter().map(|(name, payer)| (name.as_str(), payer));
        let others = [("(default)", &options.default_pays), ("(withdrawals)", &options.payout)];
        for (bonus_type, payer) in named.chain(others) {
            if let Payer::Connector(connector) = payer
                && !downstreams.contains_key(connector)
            {
                let (bonus_type, connector) = (bonus_type.to_owned(), connector.clone());
                return Err(StartError::UnknownConnector { bonus_type, connector });
            }
        }
        let max = Weight { events: options.queue_events_max, bytes: options.queue_bytes_max };
        let inbox = Arc::new(Inbox::new(max));
        let counters = Arc::new(Counters::default());
        // All connections before the first thread: a start that fails leaves nothing behind.
        let (writers, batch_events) = suits(ledger.writers());
        let more = options.writers.unwrap_or(writers).clamp(1, 64) - 1;
        let readers =
            (0..options.readers.clamp(1, 16)).map(|_| ledger.reader()).collect::<Result<Vec<_>, _>>()?;
        let reads = Weight { events: options.reads_max.clamp(1, 1_000_000), bytes: 0 };
        let mut ledgers = (0..more).map(|_| ledger.another()).collect::<Result<Vec<_>, _>>()?;
        ledgers.push(ledger);
        let mut inner = Inner {
            inbox,
            downstreams,
            counters,
            in_flight: InFlight::default(),
            clock,
            reads: Arc::new(Inbox::new(reads)),
            reading: Mutex::default(),
            threads: Mutex::default(),
            options,
        };
        for reader in readers {
            let thread = reading::start(reader, Arc::clone(&inner.reads))?;
            inner.reading.get_mut().push(thread);
        }
        for ledger in ledgers {
            let writer = Writer {
                ledger,
                inbox: Arc::clone(&inner.inbox),
                batch_events_max: inner.options.batch_events_max.unwrap_or(batch_events).clamp(1, 65_536),
                observer: observer.clone(),
                counters: Arc::clone(&inner.counters),
                clock: inner.clock.clone(),
            };
            let thread =
                std::thread::Builder::new().name("ledger-writer".into()).spawn(move || writer.run())?;
            inner.threads.get_mut().push(thread);
        }
        Ok(RewardHandle { inner: Arc::new(inner), fuses: None })
    }
}

/// Writers and events a transaction that suit a ledger.
const fn suits(writers: Writers) -> (usize, usize) {
    match writers {
        Writers::One => (1, 8_192),
        Writers::Many => (3, 1_000),
    }
}

/// A handle to a running service; clones share it. The last one dropped closes it.
#[derive(Clone)]
pub struct RewardHandle {
    pub(crate) inner: Arc<Inner>,
    fuses: Option<Fuses>,
}

/// Whether a bonus type may be granted now.
pub type Fuses = Arc<dyn Fn(&str) -> bool + Send + Sync>;

pub(crate) struct Inner {
    pub(crate) options: RewardOptions,
    inbox: Arc<Inbox<Job>>,
    pub(crate) reads: Arc<Inbox<ReadCall>>,
    pub(crate) downstreams: BTreeMap<String, Arc<Downstream>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) in_flight: InFlight,
    pub(crate) clock: Clock,
    reading: Mutex<Vec<JoinHandle<()>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl RewardHandle {
    /// A handle whose [`Rewards::grant_batch`] grants only what the operator's fuses let through, and asks for the
    /// rest again in a second. For callers beside the consumer, which keeps to the fuses by itself.
    #[must_use]
    pub fn with_fuses(self, fuses: Fuses) -> Self {
        Self { fuses: Some(fuses), ..self }
    }

    /// Grants like [`Rewards::grant_batch`]; a replay may also credit what was rejected before.
    pub(crate) async fn grant_as(&self, bonus_type: &str, events: &[Bytes], how: How) -> Vec<GrantReply> {
        if events.is_empty() {
            return Vec::new();
        }
        let name = Arc::from(bonus_type);
        if matches!(how, How::Reserve(..)) {
            return self.grant_external(&name, events, how).await;
        }
        let decisions = self.decide(&name, events.to_vec(), how).await;
        let mut replies = vec![self.inner.come_again(); events.len()];
        let mut reserved = Vec::new();
        for (at, decision) in decisions.into_iter().enumerate() {
            match decision {
                Decision::Reply(reply) => replies[at] = reply,
                Decision::Ask(_) => reserved.push(at),
            }
        }
        if !reserved.is_empty() {
            // A downstream was to pay them when their type was its, and may have: it alone is asked (I1). One that has
            // ended meanwhile is not reserved anew.
            let own: Vec<Bytes> = reserved.iter().map(|at| events[*at].clone()).collect();
            let how = How::Reserve(Attempt::Normal, Arc::from(""));
            let asked = self.grant_external(&name, &own, how).await;
            reserved.into_iter().zip(asked).for_each(|(at, reply)| replies[at] = reply);
        }
        replies
    }

    /// Who pays this type.
    pub(crate) fn payer(&self, bonus_type: &str) -> &Payer {
        self.inner.options.pays.get(bonus_type).unwrap_or(&self.inner.options.default_pays)
    }

    /// What the ledger is asked to do for this type.
    pub(crate) fn how(&self, bonus_type: &str, attempt: Attempt) -> How {
        match self.payer(bonus_type) {
            Payer::Ledger => How::Credit(attempt),
            Payer::Connector(name) if self.inner.downstreams.contains_key(name) => {
                How::Reserve(attempt, Arc::from(name.as_str()))
            }
            Payer::Connector(_) | Payer::Nobody => How::Reject,
        }
    }

    /// Asks the ledger for a decision on each event.
    pub(crate) async fn decide(&self, bonus_type: &Arc<str>, events: Vec<Bytes>, how: How) -> Vec<Decision> {
        let count = events.len();
        let (reply, answer) = oneshot::channel();
        let retry = |reason| vec![Decision::Reply(self.inner.later(bonus_type, reason, count)); count];
        let job = Job::Grant(Grant { bonus_type: Arc::clone(bonus_type), events, how, reply });
        match self.inner.push(job) {
            Ok(()) => {}
            Err(NotTaken::Full) => return retry(RetryReason::Busy),
            Err(NotTaken::Closed) => return retry(RetryReason::StoreUnavailable),
        }
        match answer.await {
            Ok(decisions) if decisions.len() == count => decisions,
            _ => retry(RetryReason::StoreUnavailable),
        }
    }

    /// Runs something on the ledger, between two transactions of a writer.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Ledger) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        // A caller that has gone does not want the answer.
        let job = Job::Call(Box::new(move |ledger| drop(reply.send(run(ledger)))));
        match self.inner.push(job) {
            Ok(()) => {}
            Err(NotTaken::Full) => return Err(CallError::Busy),
            Err(NotTaken::Closed) => return Err(CallError::Closed),
        }
        Ok(answer.await.map_err(|_| CallError::Closed)??)
    }

    /// Sets the budgets of this version of the live rules; those not named stay as they are. Answers with totals that
    /// could not be lowered as far as asked, or that a newer version's budgets are set and nothing was changed.
    ///
    /// # Errors
    /// [`CallError`]: none was changed, or nobody knows; set them again.
    pub async fn apply_budgets(&self, version: u64, budgets: &[Budget]) -> Result<BudgetsApplied, CallError> {
        let budgets = budgets.to_vec();
        self.call(move |ledger| {
            let sets: Vec<BudgetSet<'_>> = budgets
                .iter()
                .map(|budget| BudgetSet {
                    activity: &budget.activity,
                    scene: &budget.scene,
                    bonus_type: &budget.bonus_type,
                    total: budget.total,
                    shards: if budget.kind == BudgetKind::Strict { 0 } else { budget.shards },
                })
                .collect();
            ledger.apply_budgets(version, &sets)
        })
        .await
    }

    /// The counters.
    pub fn stats(&self) -> RewardStats {
        let is_closed = self.inner.inbox.is_closed() || self.inner.reads.is_closed();
        self.inner.counters.snapshot(self.inner.inbox.events(), is_closed)
    }

    /// Takes no more calls, lets the writer finish those that it has, and closes the ledger. Blocks; a second
    /// call returns at once.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Inner {
    pub(crate) fn push(&self, job: Job) -> Result<(), NotTaken> {
        self.inbox.push(job.weight(), job)
    }

    /// Come again, since nothing is stored or nobody knows.
    pub(crate) const fn come_again(&self) -> GrantReply {
        GrantReply::Retry { after_ms: self.options.busy_retry_ms, reason: RetryReason::StoreUnavailable }
    }

    /// Come again; ours to solve. Counts for so many events.
    pub(crate) fn later(&self, bonus_type: &str, reason: RetryReason, count: usize) -> GrantReply {
        let reply = GrantReply::Retry { after_ms: self.options.busy_retry_ms, reason };
        self.counters.count(bonus_type, std::iter::repeat_n(&reply, count));
        reply
    }

    fn close(&self) {
        // Readers first, to their end: the last to close a file must be its writer, which folds its log in.
        self.reads.close();
        self.wait_for(&self.reading);
        self.inbox.close();
        self.wait_for(&self.threads);
    }

    fn wait_for(&self, threads: &Mutex<Vec<JoinHandle<()>>>) {
        let threads = std::mem::take(&mut *threads.lock());
        // One may drop the last handle, inside a call: it cannot wait for itself, and ends anyway.
        let own = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            if thread.join().is_err() {
                tracing::error!("a thread of the ledger had panicked; its callers were told to ask again");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl Rewards for RewardHandle {
    async fn grant_batch(&self, bonus_type: &str, events: &[Bytes]) -> Vec<GrantReply> {
        if self.fuses.as_ref().is_some_and(|may_grant| !may_grant(bonus_type)) {
            let reply = GrantReply::Retry { after_ms: PAUSED_RETRY_MS, reason: RetryReason::Paused };
            self.inner.counters.count(bonus_type, std::iter::repeat_n(&reply, events.len()));
            return vec![reply; events.len()];
        }
        let how = self.how(bonus_type, Attempt::Normal);
        let traced = Traced::begin(bonus_type, events);
        let span = tracing::info_span!("grant_batch", bonus_type, events = events.len());
        let replies = self.grant_as(bonus_type, events, how).instrument(span).await;
        traced.end(&replies);
        replies
    }

    async fn archive(&self, failed: &[Failed]) -> Result<(), ArchiveUnavailable> {
        let (reply, answer) = oneshot::channel();
        let job = Job::Archive { failed: failed.to_vec(), reply };
        match self.inner.push(job) {
            Ok(()) => {}
            Err(NotTaken::Full) => return Err(ArchiveUnavailable("too many calls wait; try again".into())),
            Err(NotTaken::Closed) => return Err(ArchiveUnavailable("the reward service is closed".into())),
        }
        match answer.await {
            Ok(done) => done.map_err(ArchiveUnavailable),
            Err(_) => Err(ArchiveUnavailable("the reward service was closed".into())),
        }
    }
}
