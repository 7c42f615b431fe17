//! The loop of one consumer.
//!
//! One task does everything for a topic but the grants themselves, so nothing here is locked and an event costs a
//! cut of the record's bytes. Each turn: take in what has come (answers, outcomes, polled records), look at
//! deadlines and due times, let the lanes pass, requeue what has to go back, and start the next turn with the broker if
//! there is room, something to commit, or a sign of life to give.

pub(crate) mod restart;

use crate::archive::Archive;
use crate::broker_link::{BrokerLink, Plan, Turned};
use crate::delay_queue::DelayQueue;
use crate::drain::{Drain, DrainAsked, DrainReport};
use crate::flow::Flow;
use crate::grant_calls::GrantCalls;
use crate::hand_over::HandOver;
use crate::in_flight::InFlightTable;
use crate::key_gone::KeyGone;
use crate::lanes::Lanes;
use crate::late_keys::LateKeys;
use crate::liveness::{Liveness, SessionChange};
use crate::membership::Membership;
use crate::options::Options;
use crate::pace::Pace;
use crate::partitions::Partitions;
use crate::parts::{Parts, RulesNow};
use crate::probation::{Held, Probation};
use crate::replay::Replay;
use crate::retry_state::RetryState;
use crate::shared_limiter::SharedLimiter;
use crate::signatures::Entrance;
use crate::stats::ConsumerStats;
use crate::units::NS_PER_MS;
use crate::watchdog;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::broker::{Change, Fetch, InRecord, PollError, Polled};
use windfall_limiter::Now;

const SWEEP_EVERY_NS: u64 = 5 * NS_PER_MS;
const LOOK_EVERY_NS: u64 = 100 * NS_PER_MS;
const BUSY_WAKE_NS: u64 = 10 * NS_PER_MS;
const IDLE_WAKE_NS: u64 = 100 * NS_PER_MS;
const POLL_WAIT: Duration = Duration::from_millis(50);

/// One consumer.
pub(crate) struct Dispatch {
    topic: Arc<str>,
    clock: Clock,
    stats: Arc<ConsumerStats>,
    options: Options,
    rules_now: RulesNow,
    limiter: Arc<SharedLimiter>,
    membership: Membership,
    liveness: Liveness,
    broker: BrokerLink,
    flow: Flow,
    replay: Replay,
    drain: Drain,
    /// The records that an earlier loop left behind when it panicked.
    probation: Probation,
    /// Polled records that were not taken in yet, the one that is being taken in first.
    arriving: VecDeque<InRecord>,
    /// Whether assignments are being changed: after a panic at this moment it is not known which of them are in force.
    is_reassigning: bool,
    swept_ns: u64,
    looked_ns: u64,
}

impl Dispatch {
    pub fn new(parts: Parts, options: Options, stats: Arc<ConsumerStats>) -> Self {
        let Parts {
            topic,
            source,
            rewards,
            requeue_sink,
            spill_log,
            long_delays,
            limiter,
            rules,
            clock,
            signatures,
        } = parts;
        let topic: Arc<str> = topic.into();
        let now_ns = clock.monotonic_ns();
        let of = source.partitions();
        let membership = Membership::join(Arc::clone(&limiter), Arc::clone(&topic), of, clock.clone());
        let broker = BrokerLink::new(source, clock.clone());
        let retries = RetryState::new(
            Arc::clone(&topic),
            Arc::clone(&requeue_sink),
            Arc::clone(&spill_log),
            options.jitter_seed,
            Arc::clone(&stats),
        );
        let entrance = Entrance::new(Arc::clone(&topic), signatures);
        entrance.show(&stats);
        let flow = Flow {
            topic: Arc::clone(&topic),
            stats: Arc::clone(&stats),
            entrance,
            late_keys: LateKeys::default(),
            key_gone: KeyGone::default(),
            limiter: Arc::clone(limiter.limiter()),
            rules: rules(),
            table: InFlightTable::new(broker.acks()),
            partitions: Partitions::new(broker.acks(), options.commit_every_ms, now_ns),
            lanes: Lanes::default(),
            delay_queue: DelayQueue::default(),
            hand_over: HandOver::new(
                Arc::clone(&topic),
                long_delays,
                options.hand_over_after_ms,
                Arc::clone(&stats),
            ),
            pace: Pace::new(&options),
            grants: GrantCalls::new(Arc::clone(&topic), Arc::clone(&rewards)),
            retries,
            archive: Archive::new(Arc::clone(&topic), rewards),
        };
        let mut new = Self {
            replay: Replay::new(Arc::clone(&topic), requeue_sink, spill_log, Arc::clone(&stats)),
            liveness: Liveness::new(options.session_timeout_ms),
            drain: Drain::default(),
            probation: Probation::default(),
            arriving: VecDeque::new(),
            is_reassigning: false,
            swept_ns: 0,
            looked_ns: 0,
            rules_now: rules,
            topic,
            clock,
            stats,
            options,
            limiter,
            membership,
            broker,
            flow,
        };
        new.apply_rules(now_ns);
        new
    }

    /// Runs until it is drained; then it is time to [`leave`](Self::leave).
    pub async fn run(&mut self, drain_asked: &mut DrainAsked) {
        loop {
            let now_ns = self.turn();
            if self.drain.is_over(self.flow.is_empty(), now_ns) {
                break;
            }
            if self.broker.is_at_rest()
                && let Some(plan) = self.plan(now_ns)
            {
                self.broker.begin(plan);
            }
            let wake = Duration::from_nanos(self.wake_ns(now_ns).saturating_sub(now_ns));
            tokio::select! {
                // In this order, so that a simulation with the same seed takes the same steps. No branch starves: each
                // turn takes in
                        // all answers that are there.
                biased;
                deadline = drain_asked.asked() => self.drain.begin(deadline, self.clock.monotonic_ns()),
                turned = self.broker.ended() => self.turned(turned),
                answer = self.flow.retries.next() => self.flow.retried(answer, self.clock.monotonic_ns()),
                Some(ended) = self.flow.grants.next() => self.flow.granted(ended, self.clock.monotonic_ns()),
                Some(ended) = self.flow.archive.next() => self.flow.archived(ended, self.clock.monotonic_ns()),
                Some(ended) = self.flow.hand_over.next() => self.flow.handed_over(ended, self.clock.monotonic_ns()),
                answer = self.replay.next() => self.replay.take_in(answer, self.clock.monotonic_ns()),
                () = tokio::time::sleep(wake) => {}
            }
        }
    }

    /// Takes in all that has come, and does all that needs no waiting.
    fn turn(&mut self) -> u64 {
        let now_ns = self.clock.monotonic_ns();
        let rules = (self.rules_now)();
        if rules.edition() != self.flow.rules.edition() {
            self.flow.rules = rules;
            self.apply_rules(now_ns);
        }
        self.take_in_answers();
        if now_ns.saturating_sub(self.swept_ns) >= SWEEP_EVERY_NS {
            self.swept_ns = now_ns;
            self.sweep(now_ns);
        }
        if !self.is_frozen(now_ns) {
            self.let_in(now_ns);
            self.flow.pump(!self.drain.is_under_way(), now_ns);
        }
        let clock = &self.clock;
        self.flow.send_off(now_ns, || clock.wall_ms());
        self.replay.turn(!self.drain.is_under_way(), now_ns);
        now_ns
    }

    fn take_in_answers(&mut self) {
        while let Some(answer) = self.flow.retries.try_next() {
            self.flow.retried(answer, self.clock.monotonic_ns());
        }
        while let Some(ended) = self.flow.grants.try_next() {
            self.flow.granted(ended, self.clock.monotonic_ns());
        }
        while let Some(ended) = self.flow.archive.try_next() {
            self.flow.archived(ended, self.clock.monotonic_ns());
        }
        while let Some(ended) = self.flow.hand_over.try_next() {
            self.flow.handed_over(ended, self.clock.monotonic_ns());
        }
        while let Some(answer) = self.replay.try_next() {
            self.replay.take_in(answer, self.clock.monotonic_ns());
        }
    }

    fn apply_rules(&mut self, now_ns: u64) {
        let Self { flow, limiter, stats, topic, .. } = self;
        limiter.apply(&flow.rules, Now(now_ns));
        flow.lanes.apply(&flow.rules, topic, limiter.limiter(), |name| stats.of_type(name));
        flow.entrance.apply(&flow.rules);
        stats.rules_version.set(flow.rules.version);
        flow.send_back_closed_lanes();
    }

    /// Handles what depends on time: deadlines, due records, bounds that follow the limits, partitions that do not
    /// move.
    fn sweep(&mut self, now_ns: u64) {
        if self.drain.begins_to_write_back(now_ns) {
            self.flow.send_all_back(now_ns);
        } else {
            self.flow.look_at_heads(now_ns);
        }
        self.flow.release_due(now_ns);
        if now_ns.saturating_sub(self.looked_ns) >= LOOK_EVERY_NS {
            self.looked_ns = now_ns;
            // While the session is frozen, the share is none: what waits in the lanes stays there.
            if !self.liveness.is_frozen() {
                self.set_bounds();
            }
            self.flow.lanes.look(now_ns);
            self.flow.send_back_closed_lanes();
            self.flow.unpin_full_windows(now_ns);
            self.flow.look_at_late_keys(now_ns, self.clock.wall_ms());
            watchdog::look(&mut self.flow, now_ns);
        }
    }

    /// Checks whether the session is over; see [`Liveness`].
    fn is_frozen(&mut self, now_ns: u64) -> bool {
        let change = self.liveness.look(now_ns, self.clock.wall_ms());
        if change == Some(SessionChange::Frozen { had_begun: true }) {
            self.stats.frozen.add(1);
            tracing::warn!(topic = %self.topic, "not polled within the session time-out: nothing is admitted");
        }
        if change.is_some() {
            // I5: another instance may own these partitions, so other topics of this process must not count them.
            // The lanes keep their bounds meanwhile, and so what waits in them.
            self.set_owned(now_ns);
        }
        if change == Some(SessionChange::Thawed) {
            self.set_bounds();
        }
        self.liveness.is_frozen()
    }

    /// Tells the limiter how many partitions this consumer owns, as far as it knows.
    fn set_owned(&mut self, now_ns: u64) {
        let owned = u32::try_from(self.flow.partitions.len()).unwrap_or(u32::MAX);
        self.stats.partitions.set(owned.into());
        self.membership.owns(if self.liveness.is_frozen() { 0 } else { owned }, now_ns);
    }

    fn set_bounds(&mut self) {
        self.flow.lanes.set_bounds(&self.flow.rules.pacing, self.limiter.limiter());
    }

    /// The next turn with the broker, if there is reason for one.
    fn plan(&mut self, now_ns: u64) -> Option<Plan> {
        let flow = &mut self.flow;
        let commits = flow.partitions.take_commits(now_ns);
        let paused = flow.partitions.decide_pauses(&flow.lanes, &flow.rules.pacing, now_ns);
        self.stats.paused_partitions.set(paused);
        let may_fetch = !self.drain.is_under_way() && !self.probation.is_active();
        let records = if !may_fetch { 0 } else { flow.records_to_fetch(now_ns) };
        let wants_poll = records > 0 || self.liveness.needs_a_beat(now_ns);
        let beat = self.liveness.beat();
        let fetch = (wants_poll && self.broker.may_poll(now_ns)).then(|| Fetch {
            max_records: records,
            max_bytes: self.options.fetch_bytes_max,
            wait: if records > 0 { beat.min(POLL_WAIT) } else { Duration::ZERO },
        });
        let has_work = fetch.is_some()
            || !commits.is_empty()
            || flow.partitions.has_pauses()
            || flow.table.finished() > 0;
        has_work.then(|| Plan {
            pauses: flow.partitions.take_pauses(),
            commits,
            finished: flow.table.take_finished(),
            fetch,
            commit_timeout: beat,
        })
    }

    /// Takes in what a turn with the broker brought.
    fn turned(&mut self, turned: Turned) {
        match turned.committed {
            Ok(()) if turned.commits.is_empty() && turned.finished.is_empty() => {}
            Ok(()) => {
                self.stats.commits.add(1);
                self.flow.partitions.committed(&turned.commits);
            }
            Err(error) => {
                // Partitions that are still owned are committed with the next turn; the others are read again by their
                // owner.
                self.stats.commits_failed.add(1);
                self.flow.table.tell_again(turned.finished);
                tracing::warn!(topic = %self.topic, %error, "the commit failed, it is repeated");
            }
        }
        let now_ns = self.clock.monotonic_ns();
        self.stats.may_delete_unread.set(turned.may_delete_unread.into());
        match turned.polled {
            None => {}
            Some(Ok(polled)) => {
                self.liveness.polled(turned.polled_ns, turned.polled_wall_ms);
                self.broker.poll_succeeded();
                self.take_in(polled, turned.partitions, now_ns);
            }
            Some(Err(PollError::Lost { partition, from, to, resumes_at, what })) => {
                self.stats.broker_lost.add(to.saturating_sub(from));
                tracing::error!(
                    topic = %self.topic, partition, from, to, resumes_at, what,
                    "the broker has lost records that were not read: compare what was sent with what was credited"
                );
            }
            Some(Err(error)) => {
                self.stats.polls_failed.add(1);
                self.broker.poll_failed(now_ns);
                tracing::warn!(topic = %self.topic, %error, "the poll failed, it is repeated");
            }
        }
    }

    fn take_in(&mut self, polled: Polled, of: u32, now_ns: u64) {
        // I5: of a topic that has grown we own a smaller part, though nothing of ours has changed. And what is
        // revoked counts no longer before the next poll lets it go.
        let has_grown = self.membership.topic_has(of);
        let moves = polled.changes.iter().any(|change| !matches!(change, Change::Passed { .. }));
        let share_changes = has_grown || moves;
        let records = polled.records.len();
        self.arriving = polled.records.into();
        self.is_reassigning = true;
        for change in polled.changes {
            match change {
                Change::Assigned { partition, epoch, next_offset } => {
                    self.flow.assigned(partition, epoch, next_offset, now_ns);
                }
                Change::Passed { partition, epoch, next_offset } => {
                    if let Some(own) = self.flow.partitions.under(partition, epoch) {
                        own.passed(next_offset);
                    }
                }
                Change::Revoked { partition, epoch } => self.flow.revoked(partition, epoch),
            }
        }
        self.is_reassigning = false;
        if share_changes {
            self.set_owned(now_ns);
            self.set_bounds();
        }
        // After the changes, before the records: partitions count again once it is known which are owned.
        self.is_frozen(now_ns);
        self.flow.pace.polled(records);
        self.stats.records_fetched.add(records as u64);
        let wall_ms = self.clock.wall_ms();
        while let Some(record) = self.arriving.front().cloned() {
            if !self.probation.is_active() {
                self.flow.arrived(record, now_ns, wall_ms);
            } else if let Some(ticket) = self.flow.deliver(&record) {
                self.probation.hold(Held { record, ticket });
            }
            self.arriving.pop_front();
        }
        self.stats.records_in_flight.set(self.flow.table.len() as u64);
    }

    fn wake_ns(&self, now_ns: u64) -> u64 {
        let is_idle = self.flow.is_empty() && !self.drain.is_under_way();
        let mut wake_ns = now_ns + if is_idle { IDLE_WAKE_NS } else { BUSY_WAKE_NS };
        if self.liveness.is_frozen() {
            // Nothing may go, whatever waits.
            return wake_ns;
        }
        for at_ns in self.flow.lanes.iter().filter_map(|lane| lane.wants_to_go_ns()) {
            wake_ns = wake_ns.min(at_ns.max(now_ns + NS_PER_MS));
        }
        wake_ns
    }

    /// Commits what is finished and leaves the group.
    pub async fn leave(mut self) -> DrainReport {
        // I5: before the broker gives the partitions to another member.
        self.membership.disown();
        let flow = &mut self.flow;
        if let Some(turned) = self.broker.last_turn().await {
            if turned.committed.is_ok() {
                flow.partitions.committed(&turned.commits);
            } else {
                flow.partitions.commit_again(turned.commits);
                flow.table.tell_again(turned.finished);
            }
        }
        let (commits, finished) = (flow.partitions.take_last_commits(), flow.table.take_finished());
        let left = self.broker.leave(&self.topic, &commits, &finished).await;
        DrainReport {
            unfinished_records: self.flow.table.len() + self.probation.waiting(),
            committed: left.committed,
            closed: left.closed,
        }
    }
}
