//! The loop of one consumer.
//!
//! One task does everything for a topic but the grants themselves, so nothing here is locked and an event costs a
//! cut of the record's bytes. Each turn: take in what has come (answers, outcomes, polled records), look at
//! deadlines and due times, let the lanes pass, requeue what has to go back, and start the next turn with the broker if
//! there is room, something to commit, or a sign of life to give.

pub(crate) mod restart;

use self::restart::{Carried, Remains};
use crate::broker_link::{BrokerLink, Plan, Turned};
use crate::drain::{Drain, DrainAsked, DrainReport};
use crate::flow::Flow;
use crate::liveness::{Liveness, SessionChange};
use crate::membership::Membership;
use crate::options::Options;
use crate::parts::{Parts, RulesNow};
use crate::probation::{Held, Probation, Suspicion, position};
use crate::replay::Replay;
use crate::shared_limiter::SharedLimiter;
use crate::stats::ConsumerStats;
use crate::units::NS_PER_MS;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::broker::{Change, Fetch, InRecord, PollError, Polled};
use windfall_contract::rules::Rules;
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
        let now_ns = parts.clock.monotonic_ns();
        let flow = Flow::new(&parts, &options, &stats, now_ns);
        let Parts { topic, source, requeue_sink, spill_log, limiter, rules, clock, .. } = parts;
        let topic: Arc<str> = topic.into();
        let of = source.partitions();
        let membership = Membership::join(Arc::clone(&limiter), Arc::clone(&topic), of, clock.clone());
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
            stats,
            options,
            limiter,
            membership,
            broker: BrokerLink::new(source, clock.clone()),
            flow,
            clock,
        };
        new.apply_rules(Arc::clone(new.flow.rules()), now_ns);
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
                answer = self.flow.next() => self.flow.answered(answer, self.clock.monotonic_ns()),
                answer = self.replay.next() => self.replay.take_in(answer, self.clock.monotonic_ns()),
                () = tokio::time::sleep(wake) => {}
            }
        }
    }

    /// Takes in all that has come, and does all that needs no waiting.
    fn turn(&mut self) -> u64 {
        let now_ns = self.clock.monotonic_ns();
        let rules = (self.rules_now)();
        if rules.edition() != self.flow.rules().edition() {
            self.apply_rules(rules, now_ns);
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
        let clock = &self.clock;
        self.flow.take_in_answers(|| clock.monotonic_ns());
        while let Some(answer) = self.replay.try_next() {
            self.replay.take_in(answer, self.clock.monotonic_ns());
        }
    }

    fn apply_rules(&mut self, rules: Arc<Rules>, now_ns: u64) {
        self.limiter.apply(&rules, Now(now_ns));
        self.flow.apply(rules);
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
                self.flow.set_bounds();
            }
            self.flow.look(now_ns, self.clock.wall_ms());
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
            self.flow.set_bounds();
        }
        self.liveness.is_frozen()
    }

    /// Tells the limiter how many partitions this consumer owns, as far as it knows.
    fn set_owned(&mut self, now_ns: u64) {
        let owned = u32::try_from(self.flow.partitions()).unwrap_or(u32::MAX);
        self.stats.partitions.set(owned.into());
        self.membership.owns(if self.liveness.is_frozen() { 0 } else { owned }, now_ns);
    }

    /// The next turn with the broker, if there is reason for one.
    fn plan(&mut self, now_ns: u64) -> Option<Plan> {
        let commits = self.flow.plan(now_ns);
        let may_fetch = !self.drain.is_under_way() && !self.probation.is_active();
        let records = if !may_fetch { 0 } else { self.flow.records_to_fetch(now_ns) };
        let wants_poll = records > 0 || self.liveness.needs_a_beat(now_ns);
        let beat = self.liveness.beat();
        let fetch = (wants_poll && self.broker.may_poll(now_ns)).then(|| Fetch {
            max_records: records,
            max_bytes: self.options.fetch_bytes_max,
            wait: if records > 0 { beat.min(POLL_WAIT) } else { Duration::ZERO },
        });
        let has_work = fetch.is_some() || !commits.is_empty() || self.flow.has_news();
        has_work.then(|| Plan {
            pauses: self.flow.take_pauses(),
            commits,
            finished: self.flow.take_finished(),
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
                self.flow.committed(&turned.commits);
            }
            Err(error) => {
                // Partitions that are still owned are committed with the next turn; the others are read again by their
                // owner.
                self.stats.commits_failed.add(1);
                self.flow.not_committed(turned.finished);
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
                    self.flow.passed(partition, epoch, next_offset);
                }
                Change::Revoked { partition, epoch } => self.flow.revoked(partition, epoch),
            }
        }
        self.is_reassigning = false;
        if share_changes {
            self.set_owned(now_ns);
            self.flow.set_bounds();
        }
        // After the changes, before the records: partitions count again once it is known which are owned.
        self.is_frozen(now_ns);
        self.flow.polled(records);
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
        self.stats.records_in_flight.set(self.flow.table().len() as u64);
    }

    fn wake_ns(&self, now_ns: u64) -> u64 {
        let is_idle = self.flow.is_empty() && !self.drain.is_under_way();
        let wake_ns = now_ns + if is_idle { IDLE_WAKE_NS } else { BUSY_WAKE_NS };
        if self.liveness.is_frozen() {
            // Nothing may go, whatever waits.
            return wake_ns;
        }
        let pass_ns = self.flow.next_pass_ns().map(|at_ns| at_ns.max(now_ns + NS_PER_MS));
        pass_ns.map_or(wake_ns, |pass_ns| wake_ns.min(pass_ns))
    }

    /// Commits what is finished and leaves the group.
    pub async fn leave(mut self) -> DrainReport {
        // I5: before the broker gives the partitions to another member.
        self.membership.disown();
        let mut not_stored = Vec::new();
        if let Some(turned) = self.broker.last_turn().await {
            if turned.committed.is_ok() {
                self.flow.committed(&turned.commits);
            } else {
                not_stored = turned.commits;
                self.flow.not_committed(turned.finished);
            }
        }
        let (commits, finished) = (self.flow.take_last_commits(not_stored), self.flow.take_finished());
        let left = self.broker.leave(&self.topic, &commits, &finished).await;
        DrainReport {
            unfinished_records: self.flow.table().len() + self.probation.waiting(),
            committed: left.committed,
            closed: left.closed,
        }
    }

    /// Whether a drain has been asked for.
    pub fn is_draining(&self) -> bool {
        self.drain.is_under_way()
    }

    /// The state that this loop leaves after a panic. `None` where the source is lost, or where it is not certain what
    /// was in flight:
    /// then the source is given up, and the broker delivers again what is not committed.
    pub async fn into_remains(mut self) -> Option<Remains> {
        if self.is_reassigning {
            return None;
        }
        let standings = self.flow.standings();
        let left = restart::left_behind(&standings, self.flow.table(), self.arriving, &self.probation)?;
        let suspicion = self.probation.after_panic(left.in_flight, left.untouched, self.flow.table());
        let finished = self.flow.take_finished();
        let (source, turned) = self.broker.release().await?;
        Some(Remains { source, carried: Carried { turned, standings, finished, suspicion } })
    }

    /// Goes on with what an earlier loop has left: the same assignments, the same unfinished records.
    pub fn resume(&mut self, carried: Carried) {
        let now_ns = self.clock.monotonic_ns();
        let Carried { turned, standings, finished, suspicion } = carried;
        self.is_reassigning = true;
        self.flow.resume(&standings, finished, now_ns);
        self.take_over(suspicion, now_ns);
        self.flow.catch_up(&standings);
        self.is_reassigning = false;
        // I5: owned partitions count again with the first poll, which may be part of the turn.
        self.is_frozen(now_ns);
        if let Some(turned) = turned {
            self.turned(turned);
        }
    }

    fn take_over(&mut self, suspicion: Suspicion, now_ns: u64) {
        let Suspicion { records, suspects, group, quarantined, .. } = suspicion;
        let mut all: Vec<&InRecord> = records.iter().chain(&quarantined).collect();
        // A window takes its records in their order, whatever the order is in which they are let in.
        all.sort_unstable_by_key(|record| (record.partition, record.offset));
        let mut tickets = HashMap::new();
        for record in all {
            if let Some(ticket) = self.flow.deliver(record) {
                tickets.insert(position(record), ticket);
            }
        }
        for record in quarantined {
            let Some(ticket) = tickets.remove(&position(&record)) else { continue };
            let key = self.flow.quarantine(&record, ticket, now_ns);
            self.probation.quarantine(key, record);
        }
        for record in records {
            if let Some(ticket) = tickets.remove(&position(&record)) {
                self.probation.hold(Held { record, ticket });
            }
        }
        self.probation.begin(suspects, group);
    }

    /// Takes in records of an earlier loop, as far as there is room for them.
    fn let_in(&mut self, now_ns: u64) {
        if !self.probation.is_active() || self.drain.is_under_way() {
            return;
        }
        let most = self.flow.records_to_fetch(now_ns);
        let many = self.probation.open(most, self.flow.table(), now_ns);
        self.flow.polled(many);
        let wall_ms = self.clock.wall_ms();
        while let Some(Held { record, ticket }) = self.probation.next() {
            self.flow.take_in(record, ticket, now_ns, wall_ms);
            self.probation.is_in();
        }
    }
}
