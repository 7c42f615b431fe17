//! The handle to a running service, and what its clones share.

use crate::claims::InFlightTable;
use crate::connector::Downstream;
use crate::fence::{Fence, RunningRules};
use crate::inbox::{Inbox, NotTaken, Weight};
use crate::job::{Decision, Grant, How, Job};
use crate::options::{Payer, RewardOptions};
use crate::reading::ReadCall;
use crate::send_to_credit::SendToCredit;
use crate::stats::{Counters, RewardStats};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use windfall_contract::Clock;
use windfall_contract::rewards::{GrantReply, RetryReason};
use windfall_contract::rules::{Budget, BudgetKind, Rules};
use windfall_ledger::{Attempt, BudgetSet, BudgetsApplied, Guard, Ledger, LedgerError, LedgerReader};
use windfall_signing::Verifier;

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

/// A handle to a running service; clones share it. The last one dropped closes it.
#[derive(Clone)]
pub struct RewardHandle {
    pub(crate) inner: Arc<Inner>,
    pub(crate) fuses: Option<Fuses>,
    pub(crate) verifier: Option<Verifier>,
}

/// Whether a bonus type may be granted now.
pub type Fuses = Arc<dyn Fn(&str) -> bool + Send + Sync>;

pub(crate) struct Inner {
    pub(crate) options: RewardOptions,
    pub(crate) inbox: Arc<Inbox<Job>>,
    pub(crate) reads: Arc<Inbox<ReadCall>>,
    pub(crate) downstreams: BTreeMap<String, Arc<Downstream>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) in_flight: InFlightTable,
    pub(crate) fence: Arc<Fence>,
    pub(crate) guard: Option<Arc<Guard>>,
    /// Attempts to read or write the ledger's mark that failed.
    pub(crate) mark_failures: AtomicU64,
    /// When the ledger was compared with its mark last, by the clock's monotonic time; at first when the service began.
    pub(crate) compared_ns: AtomicU64,
    pub(crate) clock: Clock,
    pub(crate) reading: Mutex<Vec<JoinHandle<()>>>,
    /// Lets one walk through a user's statement run at a time: it may read thousands of lines, and wallets are to have the
    /// other reading threads.
    #[cfg(feature = "rpc")]
    pub(crate) walk: Arc<tokio::sync::Semaphore>,
    /// Lets one page of a correction be carried out at a time.
    pub(crate) carry: Arc<tokio::sync::Semaphore>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl RewardHandle {
    /// A handle whose [`grant_batch`](windfall_contract::rewards::Rewards::grant_batch) grants only what the operator's
    /// fuses let through, and asks for the rest again in a second. For callers beside the consumer, which keeps to the
    /// fuses by itself.
    #[must_use]
    pub fn with_fuses(self, fuses: Fuses) -> Self {
        Self { fuses: Some(fuses), ..self }
    }

    /// A handle whose [`replay`](Self::replay) verifies archived records that came unverified, and grants those whose sender
    /// is known by now. Without it, a replay grants nothing of them.
    #[must_use]
    pub fn with_verifier(self, verifier: Verifier) -> Self {
        Self { verifier: Some(verifier), ..self }
    }

    /// Grants only while the ledger has seen no newer rules than `own` returns and the budgets of that version are set, and
    /// no order above their caps; until then every event is to be asked for again. For the whole service, over all its
    /// handles; without it, versions and the caps of single orders play no part. Budgets are set by
    /// [`RewardHandle::apply_rules`]; where a version has the same ones as the version before it,
    /// [`RewardHandle::note_rules_version`] is enough.
    pub fn follow_rules(&self, own: RunningRules) {
        self.inner.fence.follow(own);
    }

    /// The version of the rules that this service runs and the newest that the ledger has seen, while it runs an older
    /// one and grants nothing.
    pub fn behind_rules(&self) -> Option<(u64, u64)> {
        self.inner.fence.behind()
    }

    /// Notes the version of the rules that this process runs in the ledger, so that no process grants by older ones. Its
    /// budgets are those of the version `since`, which are set. Answers the newest version that was noted. Where this is a
    /// version between both, its budgets are set by now: [`RewardHandle::apply_rules`] is needed.
    ///
    /// # Errors
    /// [`CallError`]: note it again.
    pub async fn note_rules_version(&self, since: u64, version: u64) -> Result<u64, CallError> {
        let newest = self.call(move |ledger| ledger.note_rules_version(since, version)).await?;
        if newest == version {
            self.inner.fence.applied(version);
        } else {
            self.inner.fence.saw(newest);
        }
        Ok(newest)
    }

    /// The payer of this type.
    pub(crate) fn payer(&self, bonus_type: &str) -> &Payer {
        self.inner.options.pays.get(bonus_type).unwrap_or(&self.inner.options.default_pays)
    }

    /// The request to the ledger for this type.
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

    /// Reads the ledger as it is committed now, beside its writers.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn read<T: Send + 'static>(
        &self,
        run: impl FnOnce(&LedgerReader) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        // A caller that has gone does not want the answer, nor may it hold up the others.
        let call: ReadCall = Box::new(move |reader| {
            if !reply.is_closed() {
                drop(reply.send(run(reader)));
            }
        });
        match self.inner.reads.push(Weight { events: 1, bytes: 0 }, call) {
            Ok(()) => {}
            Err(NotTaken::Full) => return Err(CallError::Busy),
            Err(NotTaken::Closed) => return Err(CallError::Closed),
        }
        Ok(answer.await.map_err(|_| CallError::Closed)??)
    }

    /// [`Self::read`] for what walks through a user's statement: one at a time.
    #[cfg(feature = "rpc")]
    pub(crate) async fn walk<T: Send + 'static>(
        &self,
        run: impl FnOnce(&LedgerReader) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, CallError> {
        let turn = Arc::clone(&self.inner.walk).acquire_owned().await.map_err(|_| CallError::Closed)?;
        // Its turn ends with the read, which goes on when the caller has gone.
        let walk = move |reader: &LedgerReader| {
            let done = run(reader);
            drop(turn);
            done
        };
        self.read(walk).await
    }

    /// Sets the budgets of this version of the live rules, without caps; see [`RewardHandle::apply_rules`].
    ///
    /// # Errors
    /// [`CallError`]: none was changed, or nobody knows; set them again.
    pub async fn apply_budgets(&self, version: u64, budgets: &[Budget]) -> Result<BudgetsApplied, CallError> {
        self.apply(version, budgets.to_vec(), BTreeMap::new()).await
    }

    /// Sets the budgets and the types' caps of these rules. Budgets that they do not name stay as they are, caps that
    /// they do not name are lifted. Answers with totals that could not be lowered as far as asked, or that newer rules
    /// were seen and nothing was changed.
    ///
    /// # Errors
    /// [`CallError`]: none was changed, or nobody knows; set them again.
    pub async fn apply_rules(&self, rules: &Rules) -> Result<BudgetsApplied, CallError> {
        self.apply(rules.version, rules.budgets.clone(), rules.total_caps()).await
    }

    async fn apply(
        &self,
        version: u64,
        budgets: Vec<Budget>,
        caps: BTreeMap<String, i64>,
    ) -> Result<BudgetsApplied, CallError> {
        let applied = self.call(move |ledger| {
            let budgets = budgets.iter().map(|budget| BudgetSet {
                activity: &budget.activity,
                scene: &budget.scene,
                bonus_type: &budget.bonus_type,
                total: budget.total,
                shards: if budget.kind == BudgetKind::Strict { 0 } else { budget.shards },
            });
            let caps = caps.iter().map(|(bonus_type, total)| BudgetSet {
                activity: "*",
                scene: "*",
                bonus_type,
                total: *total,
                shards: 1,
            });
            ledger.apply_budgets(version, &budgets.chain(caps).collect::<Vec<_>>())
        });
        let applied = applied.await?;
        match applied {
            BudgetsApplied::Set(_) => self.inner.fence.applied(version),
            BudgetsApplied::Stale { newest } => self.inner.fence.saw(newest),
        }
        Ok(applied)
    }

    /// The counters.
    pub fn stats(&self) -> RewardStats {
        let is_closed = self.inner.inbox.is_closed() || self.inner.reads.is_closed();
        let fence = (self.inner.fence.newest(), self.inner.fence.behind().is_some());
        self.inner.counters.snapshot(self.inner.inbox.events(), is_closed, fence)
    }

    /// The times from send to credit of the orders that this process has credited, over all bonus types.
    pub fn send_to_credit(&self) -> SendToCredit {
        self.inner.counters.send_to_credit()
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

    /// The reply that asks the caller to come again, because nothing is stored or that is not known.
    pub(crate) const fn come_again(&self) -> GrantReply {
        GrantReply::Retry { after_ms: self.options.busy_retry_ms, reason: RetryReason::StoreUnavailable }
    }

    /// The reply that asks the caller to come again for a reason of the service itself; it counts for `count` events.
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
