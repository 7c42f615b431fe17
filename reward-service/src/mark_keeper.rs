//! Keeps the ledger's mark outside of its database, and looks whether the ledger still holds it.
//!
//! Written behind the commits: a beat is counted after them, and written out when its own commit was answered. So a mark
//! is never ahead of what was committed; a process that dies in between leaves an older one, which holds no less. What
//! was committed after the last mark, and is lost with its server, is not noticed: that is at most a period's work.

use crate::handle::{CallError, RewardHandle};
use crate::mark_places::{Places, Writing};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use windfall_contract::declare_metrics;
use windfall_ledger::{
    Acceptance, Accepted, Beat, Guard, GuardState, LedgerError, Mark, MarkStore, MarkStoreError,
};

/// After so many passes a beat is counted even if no grant was committed: budgets, releases and replays are commits, too.
const COUNT_EVERY: u32 = 10;

/// The pause between two attempts while too much waits for the ledger.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

declare_metrics! {
    /// The ledger's mark, and where the ledger stands.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct LedgerMarkStats {
        gauge "windfall_ledger_back_in_time"
        "1 while the ledger does not hold its mark (a stale standby, a restored backup): payouts are stopped" {
            /// Whether the ledger went back in time, and nobody has accepted that.
            pub went_back: bool,
        }
        gauge "windfall_ledger_payouts_stopped"
        "1 while nothing is paid out: the ledger went back in time, or its mark could not be read since the start" {
            /// Whether nothing is paid out.
            pub payouts_stopped: bool,
        }
        gauge "windfall_ledger_mark_beat" "The beat of the ledger's mark: everything committed before it must be there" {
            /// The beat of the mark.
            pub mark_beat: Option<u64>,
        }
        gauge "windfall_ledger_beat" "The last beat that the ledger has; below the mark's it went back in time" {
            /// The last beat of the ledger.
            pub beat: Option<u64>,
        }
        gauge "windfall_ledger_mark_timeline" "The PostgreSQL timeline on which the ledger's mark was made" {
            /// The timeline of the mark.
            pub mark_timeline: Option<u64>,
        }
        gauge "windfall_ledger_timeline" "The PostgreSQL timeline on which the ledger's last beat was committed" {
            /// The timeline of the ledger.
            pub timeline: Option<u64>,
        }
        counter "windfall_ledger_mark_failures_total"
        "Attempts to read or write the ledger's mark outside of its database that failed" {
            /// Attempts to read or to write a mark that failed.
            pub failures: u64,
        }
        gauge "windfall_ledger_mark_age_seconds" "Seconds since the ledger was compared with its mark last" {
            /// Seconds since the ledger was compared last.
            pub age_s: u64,
        }
        gauge "windfall_ledger_standby_missing"
        "1 while the ledger's address names several hosts and the server waits for no synchronous standby" {
            /// Whether a fail-over would lose what was answered.
            pub standby_missing: bool,
        }
        gauge "windfall_ledger_mark_tables_missing"
        "1 while the ledger has no tables for its mark and its user may not make them: nothing is noticed" {
            /// Whether the ledger cannot be marked.
            pub tables_missing: bool,
        }
    }
}

impl LedgerMarkStats {
    pub(crate) fn of(guard: &Guard, failures: u64, age_s: u64) -> Self {
        let GuardState { mark, ledger, .. } = guard.state();
        let number = |value: i64| u64::try_from(value).ok();
        let timeline = |mark: &Mark| number(mark.server.timeline);
        Self {
            went_back: guard.is_back(),
            payouts_stopped: guard.stops_payouts(),
            mark_beat: mark.as_ref().and_then(|mark| number(mark.beat)),
            beat: ledger.as_ref().and_then(|ledger| number(ledger.beat)),
            mark_timeline: mark.as_ref().and_then(timeline),
            timeline: ledger.as_ref().and_then(timeline),
            failures,
            age_s,
            standby_missing: guard.is_alone(),
            tables_missing: guard.is_unmarkable(),
        }
    }
}

impl RewardHandle {
    /// The guard of the ledger, if it has one.
    pub fn guard(&self) -> Option<&Arc<Guard>> {
        self.inner.guard.as_ref()
    }

    /// The ledger's mark and where the ledger stands; `None` where it is not guarded.
    pub fn mark_stats(&self) -> Option<LedgerMarkStats> {
        let failures = self.inner.mark_failures.load(Ordering::Relaxed);
        let compared_ns = self.inner.compared_ns.load(Ordering::Relaxed);
        let age_ns = self.inner.clock.monotonic_ns().saturating_sub(compared_ns);
        self.guard().map(|guard| LedgerMarkStats::of(guard, failures, age_ns / 1_000_000_000))
    }

    /// Notes that a person has accepted the ledger as it is, although it does not hold its mark: with the generation, the
    /// lineage and the beat that the person has seen, so that no other server's ledger is accepted in its place. Every
    /// process goes on with it, at the latest with its next look.
    ///
    /// # Errors
    /// [`CallError`]: ask again; an acceptance that is there answers [`Accepted::Before`].
    pub async fn accept_ledger(
        &self,
        shown: (i64, &str, i64),
        actor: &str,
        reason: &str,
    ) -> Result<Accepted, CallError> {
        let (generation, lineage, beat) = shown;
        let lost = self.guard().and_then(|guard| guard.state().behind);
        let acceptance = Acceptance {
            generation,
            lineage: lineage.to_owned(),
            beat,
            actor: actor.to_owned(),
            reason: reason.to_owned(),
            lost: lost
                .map_or_else(|| "nothing that this process knows of".into(), |behind| behind.to_string()),
            time_ms: self.inner.clock.wall_ms(),
        };
        self.call(move |ledger| ledger.accept(&acceptance)).await
    }
}

/// Keeps the mark. It spawns no task: the caller that runs it owns it, and ends it by dropping the future, at any
/// moment.
#[derive(Clone)]
pub struct MarkKeeper {
    rewards: RewardHandle,
    places: Arc<Places>,
    period: Duration,
    /// The service's commits when the last beat was counted.
    counted: Option<u64>,
    passes: u32,
    /// Whether it was logged that a place fails.
    told: Arc<AtomicBool>,
}

impl MarkKeeper {
    /// Makes it on this reward service, whose ledger is guarded, and these places, in the order in which the guard was
    /// told of them. A pass is made each `period_ms`, 10 to 60,000.
    pub fn new(
        rewards: RewardHandle,
        guard: Arc<Guard>,
        stores: Vec<Arc<dyn MarkStore>>,
        period_ms: u64,
    ) -> Self {
        let period = Duration::from_millis(period_ms.clamp(10, 60_000));
        let places = Arc::new(Places::new(&guard, stores, &rewards.inner.clock));
        Self { rewards, places, period, counted: None, passes: 0, told: Arc::default() }
    }

    /// Reads the places, compares the ledger, counts a beat if something was committed since the last one, and writes it
    /// to the places that could be read.
    ///
    /// # Errors
    /// [`CallError`]: the ledger could not be compared; the next pass does it.
    pub async fn pass(&mut self) -> Result<Option<Mark>, CallError> {
        self.keep(Writing::Always).await
    }

    async fn keep(&mut self, writing: Writing) -> Result<Option<Mark>, CallError> {
        let read: Vec<bool> = self.places.read().await.into_iter().map(|done| self.noted(done)).collect();
        // Read first: what is counted afterwards is left to the next beat.
        let commits = self.rewards.inner.counters.commits.load(Ordering::Acquire);
        self.passes = self.passes.wrapping_add(1);
        let count = self.counted != Some(commits) || self.passes.is_multiple_of(COUNT_EVERY);
        let beat = self.beat(count).await?;
        let now_ns = self.rewards.inner.clock.monotonic_ns();
        self.rewards.inner.compared_ns.store(now_ns, Ordering::Relaxed);
        let Some(Beat { mark, is_counted }) = beat else { return Ok(None) };
        if is_counted {
            self.counted = Some(commits);
        }
        let written = self.places.write(&mark, &read, writing).await.into_iter();
        let failed = written.map(|done| self.noted(done)).filter(|done| !done).count();
        if failed == 0 && read.iter().all(|read| *read) && self.told.swap(false, Ordering::AcqRel) {
            tracing::info!("the ledger's mark is kept outside of its database again");
        }
        Ok(Some(mark))
    }

    /// Makes one pass per period, until the reward service is closed. A mark that another process has just written is
    /// left as it is.
    pub async fn run(mut self) {
        loop {
            match self.keep(Writing::UnlessFresh).await {
                Ok(_) => {}
                Err(CallError::Closed) => return,
                Err(CallError::Ledger(error @ (LedgerError::Unavailable(_) | LedgerError::ReadOnly))) => {
                    tracing::debug!(%error, "the ledger was not compared with its mark; next time");
                }
                Err(error) => tracing::warn!(%error, "the ledger was not compared with its mark; next time"),
            }
            tokio::time::sleep(self.period).await;
        }
    }

    /// Compares the ledger and counts. However much waits for the writers, this must come through: it needs room for one.
    async fn beat(&self, count: bool) -> Result<Option<Beat>, CallError> {
        loop {
            match self.rewards.call(move |ledger| ledger.beat(count)).await {
                Err(CallError::Busy) => tokio::time::sleep(BUSY_PAUSE).await,
                done => return done,
            }
        }
    }

    /// Counts a failure of a place, and logs the first one. Answers whether it went well.
    fn noted(&self, done: Result<(), MarkStoreError>) -> bool {
        let Err(error) = done else { return true };
        self.rewards.inner.mark_failures.fetch_add(1, Ordering::Relaxed);
        if !self.told.swap(true, Ordering::AcqRel) {
            tracing::error!(%error, "a ledger that goes back in time now might not be noticed after a restart");
        }
        false
    }
}
