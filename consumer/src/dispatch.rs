//! The loop of one consumer and what it owns.
//!
//! One task does everything for a topic but the grants themselves, so nothing here is locked and an event costs a
//! cut of the record's bytes. Each turn: take in what has come (answers, copies' fates, polled records), look at
//! deadlines and due times, let the lanes pass, write back what has to go back, and start the next turn with the
//! broker if there is room, something to commit, or a sign of life to give.

use crate::archive::Archive;
use crate::consumer::{DrainReport, Parts, RulesNow};
use crate::cycle::{self, Plan, Source, Turned};
use crate::gate::{Gate, Member};
use crate::going_back::{Answer, Chore, GoingBack};
use crate::granting::Calls;
use crate::held::Book;
use crate::lanes::Lanes;
use crate::options::Options;
use crate::partitions::Partitions;
use crate::requeue::Outlet;
use crate::room::Room;
use crate::salvage::Salvage;
use crate::stats::ConsumerStats;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use windfall_contract::Clock;
use windfall_contract::broker::{Acks, Commit, Fetch};
use windfall_contract::rewards::Rewards;
use windfall_contract::rules::{Pacing, Rules};
use windfall_limiter::Now;

pub(crate) const NS_PER_MS: u64 = 1_000_000;
const SWEEP_EVERY_NS: u64 = 5 * NS_PER_MS;
const BUSY_WAKE_NS: u64 = 10 * NS_PER_MS;
const IDLE_WAKE_NS: u64 = 100 * NS_PER_MS;
const POLL_WAIT: Duration = Duration::from_millis(50);
const POLL_PAUSE_MAX_NS: u64 = 2_000 * NS_PER_MS;
/// The call that is under way when the loop ends.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);
/// The last commit and the leave-taking. A group that rebalances answers when its other members have joined anew,
/// which a heartbeat tells them: with Kafka, every 3 s.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(6);

type Turning = Pin<Box<dyn Future<Output = Turned> + Send>>;

/// One consumer.
pub(crate) struct Dispatch {
    pub topic: String,
    pub rewards: Arc<dyn Rewards>,
    pub outlet: Arc<dyn Outlet>,
    pub salvage: Arc<Salvage>,
    pub gate: Arc<Gate>,
    pub member: Member,
    pub clock: Clock,
    pub stats: Arc<ConsumerStats>,
    pub options: Options,
    rules_now: RulesNow,
    pub rules: Arc<Rules>,
    source: Option<Source>,
    /// How the broker is told what is finished.
    pub acks: Acks,
    /// Partitions of the topic.
    pub of: u32,

    pub book: Book,
    pub partitions: Partitions,
    pub lanes: Lanes,
    pub room: Room,
    pub calls: Calls,
    pub back: GoingBack,
    pub archive: Archive,
    pub chores: JoinSet<Chore>,
    pub answers: mpsc::Receiver<Answer>,

    /// Commits of partitions that are going, to be made before the next poll.
    pub owed_commits: Vec<Commit>,
    /// Partitions to pause or resume with the next turn.
    pub pauses: Vec<(u32, bool)>,
    committed_ns: u64,
    /// When the last poll that succeeded had begun.
    polled: Option<(u64, i64)>,
    poll_pause: (u64, u64),
    pub churn_until_ns: u64,
    pub recent_records: u64,
    pub swept_ns: u64,
    pub looked_ns: u64,
    pub was_frozen: bool,
    pub drain: Option<Drain>,
}

/// A drain under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drain {
    pub write_back_ns: u64,
    pub end_ns: u64,
    pub has_written_back: bool,
}

impl Dispatch {
    pub fn new(parts: Parts, options: Options, stats: Arc<ConsumerStats>) -> Self {
        let Parts { topic, source, rewards, outlet, salvage, gate, rules, clock } = parts;
        let now_ns = clock.monotonic_ns();
        let of = source.partitions();
        let acks = source.acks();
        let member = gate.join();
        gate.set_owned(member, &topic, 0, of, Now(now_ns));
        let current = rules();
        let (back, answers) = GoingBack::new(options.jitter_seed);
        let mut new = Self {
            topic,
            rewards,
            outlet,
            salvage,
            gate,
            member,
            clock,
            stats,
            options,
            rules_now: rules,
            rules: current,
            source: Some(source),
            acks,
            of,
            book: Book::new(acks),
            partitions: Partitions::default(),
            lanes: Lanes::default(),
            room: Room::default(),
            calls: Calls::default(),
            back,
            archive: Archive::default(),
            chores: JoinSet::new(),
            answers,
            owed_commits: Vec::new(),
            pauses: Vec::new(),
            committed_ns: now_ns,
            polled: None,
            poll_pause: (0, 0),
            churn_until_ns: 0,
            recent_records: 0,
            swept_ns: 0,
            looked_ns: 0,
            was_frozen: false,
            drain: None,
        };
        new.apply_rules(now_ns);
        new
    }

    /// Runs until it is drained.
    pub async fn run(mut self, mut drain_asked: oneshot::Receiver<Duration>) -> DrainReport {
        let mut turning: Option<Turning> = None;
        let mut may_be_asked = true;
        loop {
            let now_ns = self.turn();
            if self.is_drained(now_ns) {
                break;
            }
            if turning.is_none()
                && let Some(plan) = self.plan(now_ns)
                && let Some(source) = self.source.take()
            {
                turning = Some(Box::pin(cycle::turn(source, plan, self.clock.clone())));
            }
            let wake = Duration::from_nanos(self.wake_ns(now_ns).saturating_sub(now_ns));
            tokio::select! {
                turned = when_turned(&mut turning) => {
                    turning = None;
                    self.turned(turned);
                }
                Some(answer) = self.answers.recv() => self.answered(answer),
                Some(granted) = self.calls.answers.join_next_with_id() => self.granted(granted),
                Some(chore) = self.chores.join_next_with_id() => self.did(chore),
                asked = &mut drain_asked, if may_be_asked => {
                    may_be_asked = false;
                    if let Ok(deadline) = asked {
                        self.begin_drain(deadline);
                    }
                }
                () = tokio::time::sleep(wake) => {}
            }
        }
        self.leave(turning).await
    }

    /// Takes in all that has come, and does all that needs no waiting.
    fn turn(&mut self) -> u64 {
        let now_ns = self.clock.monotonic_ns();
        let rules = (self.rules_now)();
        if rules.version != self.rules.version {
            self.rules = rules;
            self.apply_rules(now_ns);
        }
        while let Ok(answer) = self.answers.try_recv() {
            self.answered(answer);
        }
        while let Some(granted) = self.calls.answers.try_join_next_with_id() {
            self.granted(granted);
        }
        while let Some(chore) = self.chores.try_join_next_with_id() {
            self.did(chore);
        }
        if now_ns.saturating_sub(self.swept_ns) >= SWEEP_EVERY_NS {
            self.swept_ns = now_ns;
            self.sweep(now_ns);
        }
        self.pump(now_ns);
        self.launch_copies(now_ns);
        self.archive_turn(now_ns);
        self.salvage_turn(now_ns);
        now_ns
    }

    fn apply_rules(&mut self, now_ns: u64) {
        self.gate.apply(&self.rules, Now(now_ns));
        let stats = Arc::clone(&self.stats);
        self.lanes.apply(&self.rules, self.gate.limiter(), |name| stats.of_type(name));
        self.stats.rules_version.set(self.rules.version);
        self.flush_lanes(now_ns);
    }

    pub fn pacing(&self) -> &Pacing {
        &self.rules.pacing
    }

    /// An instance that was stopped past its session time-out may have lost its partitions without knowing. It
    /// admits nothing before it has polled again, or the fleet's limit would be spent twice. The wall clock is a
    /// second witness: the monotonic one stands still while a machine sleeps.
    pub fn is_frozen(&mut self, now_ns: u64) -> bool {
        let limit_ms = self.options.session_timeout_ms;
        let is_frozen = self.polled.is_none_or(|(polled_ns, polled_wall_ms)| {
            let wall_ms = self.clock.wall_ms().saturating_sub(polled_wall_ms);
            now_ns.saturating_sub(polled_ns) > limit_ms * NS_PER_MS
                || u64::try_from(wall_ms).is_ok_and(|wall_ms| wall_ms > limit_ms)
        });
        if is_frozen && !self.was_frozen && self.polled.is_some() {
            self.stats.frozen.add(1);
            tracing::warn!(topic = %self.topic, "not polled within the session time-out: nothing is admitted");
        }
        if is_frozen != self.was_frozen {
            self.was_frozen = is_frozen;
            // I5: another instance may have our partitions, so other topics of this process must not count them.
            // The lanes keep their bounds meanwhile, and so what waits in them.
            self.set_owned(now_ns);
            if !is_frozen {
                self.lanes.set_bounds(&self.rules.pacing, self.gate.limiter());
            }
        }
        is_frozen
    }

    /// Tells the gate what we own, as far as we know.
    pub fn set_owned(&mut self, now_ns: u64) {
        let owned = u32::try_from(self.partitions.all.len()).unwrap_or(u32::MAX);
        self.stats.partitions.set(owned.into());
        let owned = if self.was_frozen { 0 } else { owned };
        self.gate.set_owned(self.member, &self.topic, owned, self.of, Now(now_ns));
    }

    fn disown(&self) {
        self.gate.set_owned(self.member, &self.topic, 0, self.of, Now(self.clock.monotonic_ns()));
    }

    /// The next turn with the broker, if there is reason for one.
    fn plan(&mut self, now_ns: u64) -> Option<Plan> {
        let due = now_ns.saturating_sub(self.committed_ns) >= self.options.commit_every_ms * NS_PER_MS;
        let mut commits = std::mem::take(&mut self.owed_commits);
        if due {
            self.committed_ns = now_ns;
            commits.extend(self.commits());
        }
        self.decide_pauses(now_ns);
        let alive_for_ns = self.polled.map_or(u64::MAX, |(polled_ns, _)| now_ns.saturating_sub(polled_ns));
        let beat_ns = self.options.session_timeout_ms * NS_PER_MS / 4;
        let may_poll = now_ns >= self.poll_pause.0;
        let records = if self.drain.is_some() { 0 } else { self.records_to_fetch(now_ns) };
        let fetch = (may_poll && (records > 0 || alive_for_ns >= beat_ns)).then(|| Fetch {
            max_records: records,
            max_bytes: self.options.fetch_bytes_max,
            wait: if records > 0 { Duration::from_nanos(beat_ns).min(POLL_WAIT) } else { Duration::ZERO },
        });
        let has_work =
            fetch.is_some() || !commits.is_empty() || !self.pauses.is_empty() || self.book.has_finished();
        has_work.then(|| Plan {
            pauses: std::mem::take(&mut self.pauses),
            commits,
            finished: self.book.take_finished(),
            fetch,
            commit_timeout: Duration::from_nanos(beat_ns),
        })
    }

    /// What there is to commit, where positions are committed.
    fn commits(&mut self) -> Vec<Commit> {
        match self.acks {
            Acks::Prefix => self.partitions.commits(),
            Acks::Each => Vec::new(),
        }
    }

    /// Takes in what a turn with the broker brought.
    fn turned(&mut self, turned: Turned) {
        let of = turned.source.partitions();
        self.source = Some(turned.source);
        match turned.committed {
            Ok(()) if turned.commits.is_empty() && turned.finished.is_empty() => {}
            Ok(()) => {
                self.stats.commits.add(1);
                turned.commits.iter().for_each(|commit| self.partitions.committed(commit));
            }
            Err(error) => {
                // What is still ours is committed with the next turn; what has gone is read again by its owner.
                self.stats.commits_failed.add(1);
                self.book.tell_again(turned.finished);
                tracing::warn!(topic = %self.topic, %error, "commit failed");
            }
        }
        let now_ns = self.clock.monotonic_ns();
        match turned.polled {
            None => {}
            Some(Ok(polled)) => {
                self.polled = Some((turned.polled_ns, turned.polled_wall_ms));
                self.poll_pause = (0, 0);
                self.take_in(polled, of, now_ns);
            }
            Some(Err(error)) => {
                self.stats.polls_failed.add(1);
                let pause_ns = (self.poll_pause.1 * 2).clamp(100 * NS_PER_MS, POLL_PAUSE_MAX_NS);
                self.poll_pause = (now_ns + pause_ns, pause_ns);
                tracing::warn!(topic = %self.topic, %error, "poll failed");
            }
        }
    }

    fn wake_ns(&self, now_ns: u64) -> u64 {
        let is_idle = self.book.len() == 0 && self.back.is_empty() && self.drain.is_none();
        let mut wake_ns = now_ns + if is_idle { IDLE_WAKE_NS } else { BUSY_WAKE_NS };
        for lane in &self.lanes.all {
            if let Some(at_ns) = lane.wants_to_go_ns() {
                wake_ns = wake_ns.min(at_ns.max(now_ns + NS_PER_MS));
            }
        }
        wake_ns
    }

    fn begin_drain(&mut self, deadline: Duration) {
        let now_ns = self.clock.monotonic_ns();
        let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.drain = Some(Drain {
            write_back_ns: now_ns.saturating_add(deadline_ns / 2),
            end_ns: now_ns.saturating_add(deadline_ns),
            has_written_back: false,
        });
    }

    fn is_drained(&self, now_ns: u64) -> bool {
        let Some(drain) = self.drain else { return false };
        let has_nothing = self.book.len() == 0 && self.back.is_empty();
        has_nothing || now_ns >= drain.end_ns
    }

    /// Commits what is finished and leaves the group.
    async fn leave(mut self, mut turning: Option<Turning>) -> DrainReport {
        // I5: before the broker gives our partitions to another.
        self.disown();
        if turning.is_some()
            && let Ok(turned) = tokio::time::timeout(TURN_TIMEOUT, when_turned(&mut turning)).await
        {
            // Records that a last poll brought stay unfinished: they are delivered again.
            let Turned { source, commits, finished, committed, .. } = turned;
            self.source = Some(source);
            if committed.is_ok() {
                commits.iter().for_each(|commit| self.partitions.committed(commit));
            } else {
                self.owed_commits.extend(commits);
                self.book.tell_again(finished);
            }
        }
        let mut report = DrainReport { unfinished_records: self.book.len(), committed: false, closed: false };
        let Some(mut source) = self.source.take() else { return report };
        let mut commits = std::mem::take(&mut self.owed_commits);
        commits.extend(self.commits());
        let finished = self.book.take_finished();
        let leave = async {
            report.committed = cycle::settle(&mut source, &commits, &finished).await.is_ok();
            source.close().await;
            report.closed = true;
        };
        if tokio::time::timeout(LEAVE_TIMEOUT, leave).await.is_err() {
            tracing::warn!(topic = %self.topic, "the broker did not answer the last commit or the leave-taking");
        }
        report
    }
}

impl Drop for Dispatch {
    /// Also when the loop is cancelled or panics: what the process no longer does it must not count on.
    fn drop(&mut self) {
        self.disown();
        self.give_back_replays();
    }
}

async fn when_turned(turning: &mut Option<Turning>) -> Turned {
    match turning {
        Some(turning) => turning.as_mut().await,
        None => std::future::pending().await,
    }
}
