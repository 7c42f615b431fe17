//! A topic, a reward service and a requeue sink in memory, which do what a seed says, and check I3 at each commit.
#![allow(dead_code, clippy::unwrap_used)]

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use windfall_consumer::{
    ConsumerHandle, Done, Options, Parts, RequeueOutcome, RequeueRecord, RequeueSink, SharedLimiter,
    Signatures, SpillLog, SupervisedParts, Supervisor, spawn,
};
use windfall_contract::Clock;
use windfall_contract::broker::{
    Acks, Change, Commit, CommitError, Consumer, Epoch, Fetch, InRecord, OpenError, PollError, Polled,
    Position,
};
use windfall_contract::long_delays::LongDelays;
use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, Rejection, RetryReason, Rewards};
use windfall_contract::rules::{Fuse, Limit, Limits, Pacing, Rules, TypeLimit};
use windfall_limiter::{Limit as LimiterLimit, Limiter, Now};
use windfall_proto::event::{self, EventRef};
use windfall_proto::record::{self, Head};
use windfall_signing::{QueueTag, Signer};

pub const WALL_START_MS: i64 = 1_800_000_000_000;

/// Tokio's clock, so that a test may pause it, plus what the test adds.
pub struct TestClock {
    start: Instant,
    pub ahead_ms: AtomicU64,
}

impl TestClock {
    pub fn now_ns(&self) -> u64 {
        let ahead_ns = self.ahead_ms.load(Ordering::SeqCst) * 1_000_000;
        u64::try_from(self.start.elapsed().as_nanos()).unwrap() + ahead_ns
    }

    pub fn wall_ms(&self) -> i64 {
        WALL_START_MS + i64::try_from(self.now_ns() / 1_000_000).unwrap()
    }
}

/// SplitMix64; equal seeds, equal stories.
pub struct Rng(pub u64);

impl Rng {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    pub fn per_cent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// What grants answer while something is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// The store of the reward service cannot answer.
    Store,
    /// The reward service takes no more calls.
    Busy,
    /// Each downstream answers that it has no room, or its breaker is open.
    DownstreamBusy,
    /// Nothing answers at all until it is over; half of what was asked for is credited all the same.
    Silent,
    /// Each downstream is asked and does not answer; half of what was asked for is credited all the same.
    Timeouts,
    /// Each downstream answers that it takes nothing now.
    Refusals,
}

/// How likely each trouble is, in per cent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Troubles {
    pub retry: u64,
    pub timeout_after_credit: u64,
    pub undecided: u64,
    pub reject: u64,
    pub hang: u64,
    pub short_answer: u64,
    pub refuse_requeue: u64,
    pub lose_requeue_answer: u64,
    pub archive_down: u64,
    pub commit_fails: u64,
    pub poll_fails: u64,
}

pub struct Stored {
    pub offset: u64,
    pub key: Bytes,
    pub payload: Bytes,
}

#[derive(Default)]
pub struct State {
    pub partitions: Vec<Vec<Stored>>,
    next_offset: Vec<u64>,
    pub committed: Vec<u64>,
    checked: Vec<u64>,
    /// Partition and offset of the records that were finished one by one.
    pub finished: BTreeSet<(u32, u64)>,
    epochs: Vec<u32>,
    /// What the one consumer owns, with the offset that it reads next.
    owned: BTreeMap<u32, u64>,
    paused: BTreeSet<u32>,
    pub pauses: u64,
    changes: VecDeque<Change>,
    /// Revoked; still ours until the next poll.
    going: BTreeSet<u32>,
    pub credited: HashMap<String, u32>,
    pub archived: BTreeMap<String, Rejection>,
    pub archived_raw: Vec<Bytes>,
    /// Orders that the service of long delays has.
    pub handed_over: BTreeSet<String>,
    /// Malformed records that were written back as they were.
    requeued_raw: BTreeSet<Bytes>,
    /// The highest attempt of a stored requeue record, by order.
    requeued: HashMap<String, u32>,
    /// Highest count of failed grants, of attempts, of any stored requeue record.
    pub most_failures: u32,
    pub most_attempts: u32,
    pub requeued_records: u64,
    pub granted_by_type: BTreeMap<String, u64>,
    pub hanging: u64,
    pub calls: u64,
    pub events_in_calls: u64,
    pub most_events_in_calls: u64,
    pub violations: Vec<String>,
}

/// Everything outside the consumer.
pub struct World {
    pub state: Mutex<State>,
    pub troubles: Mutex<Troubles>,
    pub hanging_types: Mutex<BTreeSet<String>>,
    /// Of all types, or of these.
    pub outage: Mutex<Option<(Outage, Option<BTreeSet<String>>)>>,
    /// What happened, in order: for the comparison of two runs.
    pub trace: Mutex<Vec<String>>,
    pub grant_takes: Mutex<Duration>,
    /// All is paid by this downstream.
    pub one_server: Mutex<Option<Arc<OneServer>>>,
    pub dead_sink: AtomicBool,
    pub stuck_broker: AtomicBool,
    /// The loop panics so many times, whatever it does.
    pub loop_panics: AtomicU64,
    /// The broker's client panics so many times at a poll.
    pub poll_panics: AtomicU64,
    /// The broker's consumer cannot be opened.
    pub is_away: AtomicBool,
    /// Times that it was opened.
    pub opened: AtomicU64,
    /// The broker wants to hear of each record.
    pub each: AtomicBool,
    /// The service of long delays of consumers that start from now on.
    pub long_delays: Mutex<Option<Arc<dyn LongDelays>>>,
    /// How records are verified.
    pub signatures: Mutex<Option<Signatures>>,
    /// Signs requeue records, for the queue `rain`.
    pub signer: Mutex<Option<Signer>>,
    rng: Mutex<Rng>,
    pub clock: Arc<TestClock>,
    pub dir: PathBuf,
    pub rules: Arc<Mutex<Arc<Rules>>>,
    pub limiter: Mutex<Option<Arc<SharedLimiter>>>,
}

impl World {
    pub fn new(partitions: usize, seed: u64, dir: &Path, rules: Rules) -> Arc<Self> {
        let state = State {
            partitions: (0..partitions).map(|_| Vec::new()).collect(),
            next_offset: vec![0; partitions],
            committed: vec![0; partitions],
            checked: vec![0; partitions],
            epochs: vec![0; partitions],
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            troubles: Mutex::default(),
            hanging_types: Mutex::default(),
            outage: Mutex::default(),
            trace: Mutex::default(),
            grant_takes: Mutex::default(),
            one_server: Mutex::default(),
            dead_sink: AtomicBool::new(false),
            stuck_broker: AtomicBool::new(false),
            loop_panics: AtomicU64::new(0),
            poll_panics: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            opened: AtomicU64::new(0),
            each: AtomicBool::new(false),
            long_delays: Mutex::default(),
            signatures: Mutex::default(),
            signer: Mutex::default(),
            rng: Mutex::new(Rng(seed)),
            clock: Arc::new(TestClock { start: Instant::now(), ahead_ms: AtomicU64::new(0) }),
            dir: dir.to_owned(),
            rules: Arc::new(Mutex::new(Arc::new(rules))),
            limiter: Mutex::default(),
        })
    }

    fn luck(&self, chance: u64) -> bool {
        chance > 0 && self.rng.lock().per_cent(chance)
    }

    /// Appends a record, sometimes behind a gap.
    pub fn append(&self, partition: usize, payload: Vec<u8>) {
        let gap = if self.luck(10) { self.rng.lock().below(5) } else { 0 };
        let mut state = self.state.lock();
        let offset = state.next_offset[partition] + gap;
        state.next_offset[partition] = offset + 1;
        state.partitions[partition].push(Stored { offset, key: Bytes::new(), payload: payload.into() });
    }

    /// The limiter of a new process.
    pub fn new_limiter(&self) -> Arc<SharedLimiter> {
        let limit = LimiterLimit { rate_per_s: 100_000_000, burst: 10_000_000 };
        let now = Now(self.clock.now_ns());
        Arc::new(SharedLimiter::new(Arc::new(Limiter::new(limit, now)), now))
    }

    /// Starts a consumer that owns all partitions, as a new process would after the death of the last.
    pub fn start(self: &Arc<Self>, options: Options) -> ConsumerHandle {
        self.start_as("rain-a", self.new_limiter(), options)
    }

    /// The same with this name and limiter, which a process has for all its topics.
    pub fn start_as(
        self: &Arc<Self>,
        topic: &str,
        limiter: Arc<SharedLimiter>,
        options: Options,
    ) -> ConsumerHandle {
        spawn(self.parts(topic, limiter), options)
    }

    /// The same, started again after panics, by a broker that may be away.
    pub fn supervise(self: &Arc<Self>, options: Options) -> Supervisor {
        let signatures = self.signatures.lock().clone();
        let Parts { topic, rewards, requeue_sink, spill_log, long_delays, limiter, rules, clock, .. } =
            self.parts("rain-a", self.new_limiter());
        let world = Arc::clone(self);
        let open = move || -> windfall_consumer::Opening {
            let world = Arc::clone(&world);
            Box::pin(async move {
                if world.is_away.load(Ordering::SeqCst) {
                    return Err(OpenError::Unavailable("nobody is there".into()));
                }
                world.opened.fetch_add(1, Ordering::SeqCst);
                world.assign_all();
                Ok(Box::new(FakeConsumer(world)) as Box<dyn Consumer>)
            })
        };
        let open = Box::new(open);
        let parts = SupervisedParts {
            topic,
            open,
            rewards,
            requeue_sink,
            spill_log,
            long_delays,
            signatures,
            limiter,
            rules,
            clock,
        };
        Supervisor::start(parts, options)
    }

    fn assign_all(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.owned.clear();
        state.going.clear();
        state.changes.clear();
        state.paused.clear();
        for partition in 0..state.partitions.len() {
            state.assign(u32::try_from(partition).unwrap());
        }
    }

    fn parts(self: &Arc<Self>, topic: &str, limiter: Arc<SharedLimiter>) -> Parts {
        self.assign_all();
        let (mono, wall) = (Arc::clone(&self.clock), Arc::clone(&self.clock));
        let clock = Clock::from_sources(move || mono.now_ns(), move || wall.wall_ms().cast_unsigned());
        let rules = Arc::clone(&self.rules);
        *self.limiter.lock() = Some(Arc::clone(&limiter));
        let world = Arc::clone(self);
        Parts {
            topic: topic.to_owned(),
            source: Box::new(FakeConsumer(Arc::clone(self))),
            rewards: Arc::new(FakeRewards(Arc::clone(self))),
            requeue_sink: Arc::new(FakeSink(Arc::clone(self))),
            spill_log: Arc::new(SpillLog::open(&self.dir, 1 << 20).unwrap()),
            long_delays: self.long_delays.lock().clone(),
            signatures: self.signatures.lock().clone(),
            limiter,
            rules: Arc::new(move || {
                assert!(!is_one_left(&world.loop_panics), "a test wants the loop to panic");
                Arc::clone(&rules.lock())
            }),
            clock,
        }
    }

    /// What the limiter of the process lets pass of a type.
    pub fn may_pass_per_s(&self, bonus_type: &str) -> f64 {
        let limiter = self.limiter.lock().clone().unwrap();
        limiter.limiter().may_pass_per_s(limiter.limiter().type_id(bonus_type))
    }

    /// The topic gets a partition that another instance owns.
    pub fn grow(&self) {
        let mut state = self.state.lock();
        state.partitions.push(Vec::new());
        state.next_offset.push(0);
        state.committed.push(0);
        state.checked.push(0);
        state.epochs.push(0);
    }

    pub fn set_rules(&self, change: impl FnOnce(&mut Rules)) {
        let mut current = self.rules.lock();
        let mut rules = (**current).clone();
        change(&mut rules);
        rules.version += 1;
        *current = Arc::new(rules);
    }

    /// Takes a partition away, and gives it back with the next poll but one.
    pub fn rebalance(&self, partition: u32) {
        let mut state = self.state.lock();
        if state.owned.remove(&partition).is_some() {
            let epoch = Epoch(state.epochs[partition as usize]);
            state.going.insert(partition);
            state.changes.push_back(Change::Revoked { partition, epoch });
        }
    }

    /// Order numbers of all events ever appended.
    pub fn orders(&self) -> BTreeSet<String> {
        let state = self.state.lock();
        state.partitions.iter().flatten().flat_map(|stored| orders_of(&stored.payload)).collect()
    }

    pub fn is_settled(state: &State, order: &str) -> bool {
        state.credited.contains_key(order) || state.archived.contains_key(order)
    }

    pub fn open_orders(&self) -> Vec<String> {
        let orders = self.orders();
        let state = self.state.lock();
        orders.into_iter().filter(|order| !Self::is_settled(&state, order)).collect()
    }

    /// Whether everything is committed.
    pub fn is_drained(&self) -> bool {
        let state = self.state.lock();
        (0..state.partitions.len()).all(|at| state.committed[at] == state.next_offset[at])
    }

    /// Waits until all is committed and every order is settled; panics after `patience`.
    pub async fn settle(&self, patience: Duration) {
        let end = Instant::now() + patience;
        loop {
            if self.is_drained() && self.open_orders().is_empty() {
                break;
            }
            if Instant::now() >= end {
                let open = self.open_orders();
                let state = self.state.lock();
                panic!(
                    "not settled: {} open, the first {:?}; committed {:?} of {:?}",
                    open.len(),
                    open.first(),
                    state.committed,
                    state.next_offset
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.assert_promises();
    }

    pub fn assert_promises(&self) {
        let state = self.state.lock();
        assert!(state.violations.is_empty(), "{:#?}", state.violations);
    }

    fn check_commit(&self, state: &mut State, commit: &Commit) {
        let at = commit.partition as usize;
        let from = state.checked[at];
        self.check_finished(state, at, from..commit.next_offset);
        state.checked[at] = state.checked[at].max(commit.next_offset);
    }

    /// Whatever lies at these offsets is credited, archived or stored elsewhere.
    fn check_finished(&self, state: &mut State, at: usize, offsets: std::ops::Range<u64>) {
        let spilled = std::fs::read(self.dir.join("salvage.log")).unwrap_or_default();
        let mut violations = Vec::new();
        let first = state.partitions[at].partition_point(|stored| stored.offset < offsets.start);
        for stored in state.partitions[at][first..].iter().take_while(|stored| stored.offset < offsets.end) {
            let attempt = record::split(&stored.payload).map_or(0, |(head, _)| head.attempt);
            let is_safe =
                state.archived_raw.contains(&stored.payload) || state.requeued_raw.contains(&stored.payload);
            if orders_of(&stored.payload).is_empty() && !is_safe {
                violations.push(format!("a malformed record at {} was lost", stored.offset));
            }
            for order in orders_of(&stored.payload).into_iter().filter(|_| !is_safe) {
                let is_requeued = state.requeued.get(&order).is_some_and(|latest| *latest > attempt);
                let is_spilled = || spilled.windows(order.len()).any(|bytes| bytes == order.as_bytes());
                let is_handed_over = state.handed_over.contains(&order);
                if !Self::is_settled(state, &order) && !is_requeued && !is_handed_over && !is_spilled() {
                    violations.push(format!(
                        "I3: a commit passes {order} at {}, which is not finished",
                        stored.offset
                    ));
                }
            }
        }
        state.violations.extend(violations);
    }
}

/// Counts down.
fn is_one_left(count: &AtomicU64) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl State {
    fn assign(&mut self, partition: u32) {
        let at = partition as usize;
        self.epochs[at] += 1;
        let next_offset = self.committed[at];
        self.owned.insert(partition, next_offset);
        let epoch = Epoch(self.epochs[at]);
        self.changes.push_back(Change::Assigned { partition, epoch, next_offset });
    }
}

pub fn orders_of(payload: &Bytes) -> Vec<String> {
    let Ok((_, events)) = record::split(payload) else { return Vec::new() };
    let ranges: Result<Vec<_>, _> = events.collect();
    let order = |range: std::ops::Range<usize>| event::trade_no(&payload[range]).unwrap().to_owned();
    ranges.map(|ranges| ranges.into_iter().map(order).collect()).unwrap_or_default()
}

struct FakeConsumer(Arc<World>);

#[async_trait]
impl Consumer for FakeConsumer {
    async fn poll(&mut self, fetch: Fetch) -> Result<Polled, PollError> {
        let world = &self.0;
        assert!(!is_one_left(&world.poll_panics), "a test wants the poll to panic");
        while world.stuck_broker.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if world.luck(world.troubles.lock().poll_fails) {
            return Err(PollError::Unavailable("a bad moment".into()));
        }
        let mut polled = Polled::default();
        let end = Instant::now() + fetch.wait;
        loop {
            {
                let mut state = world.state.lock();
                let state = &mut *state;
                for partition in std::mem::take(&mut state.going) {
                    // What was announced with the last poll is gone now, and comes back.
                    let is_announced = !state.changes.iter().any(
                        |change| matches!(change, Change::Revoked { partition: own, .. } if *own == partition),
                    );
                    if is_announced {
                        state.assign(partition);
                    } else {
                        state.going.insert(partition);
                    }
                }
                polled.changes.extend(state.changes.drain(..));
                let mut bytes = 0;
                for (&partition, next) in &mut state.owned {
                    if state.paused.contains(&partition) {
                        continue;
                    }
                    let stored = &state.partitions[partition as usize];
                    let from = stored.partition_point(|stored| stored.offset < *next);
                    for stored in &stored[from..] {
                        if polled.records.len() >= fetch.max_records || bytes >= fetch.max_bytes {
                            break;
                        }
                        if state.finished.contains(&(partition, stored.offset)) {
                            continue;
                        }
                        bytes += stored.payload.len();
                        *next = stored.offset + 1;
                        polled.records.push(InRecord {
                            partition,
                            epoch: Epoch(state.epochs[partition as usize]),
                            offset: stored.offset,
                            key: stored.key.clone(),
                            payload: stored.payload.clone(),
                        });
                    }
                }
            }
            if !polled.records.is_empty() || !polled.changes.is_empty() || Instant::now() >= end {
                return Ok(polled);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<(), CommitError> {
        let world = &self.0;
        tokio::task::yield_now().await;
        if world.luck(world.troubles.lock().commit_fails) {
            return Err(CommitError::Unavailable("a bad moment".into()));
        }
        let mut state = world.state.lock();
        let state = &mut *state;
        if world.each.load(Ordering::SeqCst) {
            state.violations.push("a position was committed where each record is finished".into());
        }
        for commit in commits {
            let at = commit.partition as usize;
            let is_ours =
                state.owned.contains_key(&commit.partition) || state.going.contains(&commit.partition);
            if is_ours && commit.epoch.0 == state.epochs[at] && commit.next_offset > state.committed[at] {
                world.check_commit(state, commit);
                // A gap at the end of the topic is not there for the broker either.
                state.committed[at] = commit.next_offset;
            }
        }
        Ok(())
    }

    fn acks(&self) -> Acks {
        if self.0.each.load(Ordering::SeqCst) { Acks::Each } else { Acks::Prefix }
    }

    async fn finish(&mut self, records: &[Position]) -> Result<(), CommitError> {
        let world = &self.0;
        tokio::task::yield_now().await;
        if world.luck(world.troubles.lock().commit_fails) {
            return Err(CommitError::Unavailable("a bad moment".into()));
        }
        let mut state = world.state.lock();
        let state = &mut *state;
        for record in records {
            let at = record.partition as usize;
            if state.owned.contains_key(&record.partition) && record.epoch.0 == state.epochs[at] {
                world.check_finished(state, at, record.offset..record.offset + 1);
                state.finished.insert((record.partition, record.offset));
                let open = state.partitions[at]
                    .iter()
                    .find(|stored| !state.finished.contains(&(record.partition, stored.offset)));
                state.committed[at] = open.map_or(state.next_offset[at], |stored| stored.offset);
            }
        }
        Ok(())
    }

    fn pause(&mut self, partition: u32, epoch: Epoch, paused: bool) {
        let mut state = self.0.state.lock();
        if state.epochs[partition as usize] != epoch.0 {
            return;
        }
        if paused {
            state.pauses += 1;
            assert!(state.pauses < 10_000, "paused and resumed without end");
            state.paused.insert(partition);
        } else {
            state.paused.remove(&partition);
        }
    }

    fn partitions(&self) -> u32 {
        u32::try_from(self.0.state.lock().partitions.len()).unwrap()
    }

    async fn close(self: Box<Self>) {}
}

struct FakeRewards(Arc<World>);

#[async_trait]
impl Rewards for FakeRewards {
    async fn grant_batch(&self, bonus_type: &str, events: &[Bytes]) -> Vec<GrantReply> {
        let world = &self.0;
        let troubles = *world.troubles.lock();
        {
            let mut state = world.state.lock();
            state.calls += 1;
            state.events_in_calls += events.len() as u64;
            state.most_events_in_calls = state.most_events_in_calls.max(state.events_in_calls);
        }
        let _count = counted_in(world, events.len() as u64);
        let takes = *world.grant_takes.lock();
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        if world.luck(troubles.hang) || world.hanging_types.lock().contains(bonus_type) {
            world.state.lock().hanging += 1;
            // Half of those that never answer have been credited all the same.
            if world.luck(50) {
                events.iter().for_each(|event| {
                    world.credit(event);
                });
            }
            std::future::pending::<()>().await;
        }
        let server = world.one_server.lock().clone();
        if let Some(server) = server {
            return server.pay_all(world, events).await;
        }
        while world.outage_of(bonus_type) == Some(Outage::Silent) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if let Some(outage) = world.outage_of(bonus_type) {
            return world.refuse(events, outage);
        }
        let mut replies: Vec<_> = events.iter().map(|event| world.grant(event, &troubles)).collect();
        world.note(|| format!("{bonus_type} {} from {}", events.len(), event::trade_no(&events[0]).unwrap()));
        *world.state.lock().granted_by_type.entry(bonus_type.to_owned()).or_default() += events.len() as u64;
        if world.luck(troubles.short_answer) {
            replies.truncate(events.len() / 2);
        }
        replies
    }

    async fn archive(&self, failed: &[Failed]) -> Result<(), ArchiveUnavailable> {
        let world = &self.0;
        if world.luck(world.troubles.lock().archive_down) {
            return Err(ArchiveUnavailable("a bad moment".into()));
        }
        let mut state = world.state.lock();
        for failed in failed {
            if matches!(
                failed.rejection,
                Rejection::Malformed | Rejection::Quarantined | Rejection::Unverified
            ) {
                state.archived_raw.push(failed.payload.clone());
                for order in orders_of(&failed.payload) {
                    state.archived.insert(order, failed.rejection);
                }
            } else {
                let order = event::trade_no(&failed.payload).unwrap().to_owned();
                state.archived.insert(order, failed.rejection);
            }
        }
        Ok(())
    }
}

/// A downstream with one server, which takes 50 ms for a payment, behind a guard that has found out that it takes eight
/// at once. The guard tries more now and then, so that one answer of 40 comes after its time-out. It begins no payment
/// after the first second of a call.
pub struct OneServer {
    permits: Semaphore,
    free_at: Mutex<Instant>,
    asked: AtomicU64,
}

impl OneServer {
    pub fn new() -> Arc<Self> {
        let free_at = Mutex::new(Instant::now());
        Arc::new(Self { permits: Semaphore::new(8), free_at, asked: AtomicU64::new(0) })
    }

    async fn pay_all(self: &Arc<Self>, world: &Arc<World>, events: &[Bytes]) -> Vec<GrantReply> {
        let begin_by = Instant::now() + Duration::from_secs(1);
        let mut asked = Vec::new();
        for event in events {
            let (server, world, event) = (Arc::clone(self), Arc::clone(world), event.clone());
            asked.push(tokio::spawn(async move { server.pay(&world, event, begin_by).await }));
        }
        let mut replies = Vec::new();
        for asked in asked {
            replies.push(asked.await.unwrap());
        }
        replies
    }

    async fn pay(&self, world: &Arc<World>, event: Bytes, begin_by: Instant) -> GrantReply {
        let later = |reason| GrantReply::Retry { after_ms: 50, reason };
        let Ok(permit) = tokio::time::timeout_at(begin_by, self.permits.acquire()).await else {
            return later(RetryReason::DownstreamBusy);
        };
        let ends_at = {
            let mut free_at = self.free_at.lock();
            *free_at = (*free_at).max(Instant::now()) + Duration::from_millis(50);
            *free_at
        };
        let world = Arc::clone(world);
        let work = tokio::spawn(async move {
            tokio::time::sleep_until(ends_at).await;
            world.credit(&event)
        });
        let is_late = self.asked.fetch_add(1, Ordering::SeqCst) % 40 == 39;
        let answer = work.await.unwrap();
        drop(permit);
        if is_late { later(RetryReason::DownstreamTimeout) } else { answer }
    }
}

struct CountedOut(Arc<World>, u64);

impl Drop for CountedOut {
    fn drop(&mut self) {
        self.0.state.lock().events_in_calls -= self.1;
    }
}

fn counted_in(world: &Arc<World>, events: u64) -> CountedOut {
    CountedOut(Arc::clone(world), events)
}

impl World {
    fn note(&self, what: impl FnOnce() -> String) {
        let at_ms = self.clock.now_ns() / 1_000_000;
        self.trace.lock().push(format!("{at_ms} {}", what()));
    }

    fn outage_of(&self, bonus_type: &str) -> Option<Outage> {
        let outage = self.outage.lock();
        let (kind, types) = outage.as_ref()?;
        types.as_ref().is_none_or(|types| types.contains(bonus_type)).then_some(*kind)
    }

    fn refuse(&self, events: &[Bytes], outage: Outage) -> Vec<GrantReply> {
        let reason = match outage {
            Outage::Store | Outage::Silent => RetryReason::StoreUnavailable,
            Outage::Busy => RetryReason::Busy,
            Outage::DownstreamBusy => RetryReason::DownstreamBusy,
            Outage::Timeouts => RetryReason::DownstreamTimeout,
            Outage::Refusals => RetryReason::DownstreamRetry,
        };
        if outage == Outage::Timeouts {
            for event in events {
                if self.luck(50) {
                    self.credit(event);
                }
            }
        }
        vec![GrantReply::Retry { after_ms: 100, reason }; events.len()]
    }

    fn credit(&self, event: &Bytes) -> GrantReply {
        let order = event::trade_no(event).unwrap().to_owned();
        let mut state = self.state.lock();
        let times = state.credited.entry(order).or_default();
        *times += 1;
        if *times == 1 { GrantReply::Credited } else { GrantReply::AlreadyCredited }
    }

    fn grant(&self, event: &Bytes, troubles: &Troubles) -> GrantReply {
        let retry = |reason| GrantReply::Retry { after_ms: 5, reason };
        if self.luck(troubles.retry) {
            return retry(RetryReason::DownstreamRetry);
        }
        if self.luck(troubles.undecided) {
            return retry(RetryReason::Busy);
        }
        if self.luck(troubles.timeout_after_credit) {
            self.credit(event);
            return retry(RetryReason::DownstreamTimeout);
        }
        if self.luck(troubles.reject) {
            let order = event::trade_no(event).unwrap().to_owned();
            let mut state = self.state.lock();
            if !state.credited.contains_key(&order) {
                state.archived.insert(order, Rejection::DownstreamRefused);
                return GrantReply::Rejected(Rejection::DownstreamRefused);
            }
            return GrantReply::AlreadyCredited;
        }
        self.credit(event)
    }
}

struct FakeSink(Arc<World>);

impl RequeueSink for FakeSink {
    fn requeue(&self, record: RequeueRecord, done: Done) {
        let world = Arc::clone(&self.0);
        let troubles = *world.troubles.lock();
        if world.dead_sink.load(Ordering::SeqCst) || world.luck(troubles.refuse_requeue) {
            return done(RequeueOutcome::Refused);
        }
        tokio::spawn(async move {
            let late_ms = drawn_for(&record.key).below(4);
            tokio::time::sleep(Duration::from_millis(late_ms)).await;
            world.store_requeued(&record);
            if !world.luck(troubles.lose_requeue_answer) {
                done(RequeueOutcome::Stored);
            }
        });
    }
}

impl World {
    fn store_requeued(&self, record: &RequeueRecord) {
        let payload = Bytes::from(record.payload.clone());
        if record.bonus_type.is_empty() {
            self.state.lock().requeued_raw.insert(payload);
            return self.append(0, record.payload.clone());
        }
        let (head, _) = record::split(&record.payload).unwrap();
        let first = orders_of(&payload).first().cloned().unwrap_or_default();
        let mut state = self.state.lock();
        if record.key != format!("{first}{}", head.attempt).into_bytes() {
            state.violations.push(format!("a requeue record of {first} has the key {:?}", record.key));
        }
        state.requeued_records += 1;
        let due_ms = head.not_before_ms - WALL_START_MS;
        self.note(|| {
            format!("copy of {first}, attempt {}, {} events, due {due_ms}", head.attempt, head.count)
        });
        state.most_failures = state.most_failures.max(head.failures);
        state.most_attempts = state.most_attempts.max(head.attempt);
        for order in orders_of(&payload) {
            let latest = state.requeued.entry(order).or_default();
            *latest = (*latest).max(head.attempt);
        }
        let partitions = state.partitions.len();
        drop(state);
        let mut drawn = drawn_for(&record.key);
        drawn.draw();
        let to = usize::try_from(drawn.below(partitions as u64)).unwrap();
        let signer = self.signer.lock().clone();
        let sign = |signer: Signer| signer.sign_record(&record.payload, QueueTag::of("rain")).unwrap();
        self.append(to, signer.map_or_else(|| record.payload.clone(), sign));
    }
}

/// Luck that belongs to a copy, and does not depend on which of two comes first.
fn drawn_for(key: &[u8]) -> Rng {
    Rng(key.iter().fold(7, |seed, byte| (seed ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)))
}

/// A record of `count` events of a type, with order numbers `prefix-n`.
pub fn record_of(bonus_type: &str, prefix: &str, count: u32) -> Vec<u8> {
    record_with(Head { bonus_type, attempt: 0, failures: 0, not_before_ms: 0, count }, prefix)
}

pub fn record_with(head: Head<'_>, prefix: &str) -> Vec<u8> {
    let events: Vec<Vec<u8>> = (0..head.count)
        .map(|n| {
            let mut out = Vec::new();
            let trade_no = format!("{prefix}-{n}.");
            let event = EventRef {
                trade_no: &trade_no,
                user_id: i64::from(n),
                activity: "spring",
                scene: "rain",
                bonus_type: head.bonus_type,
                amount: 1,
                ..EventRef::default()
            };
            event.encode([], &mut out);
            out
        })
        .collect();
    record::build(head, events.iter().map(Vec::as_slice))
}

/// Rules with limits that do not matter, unless a test changes them.
pub fn rules(types: &[&str]) -> Rules {
    let wide = Limit { rate_per_s: 10_000_000, burst: 1_000_000 };
    let type_limit = |(at, _): (usize, _)| TypeLimit {
        limit: wide,
        fuse: Fuse::Closed,
        priority: u8::try_from(at).unwrap(),
    };
    Rules {
        version: 1,
        bonus_types: types.iter().map(|&name| name.to_owned()).collect(),
        draining: Vec::new(),
        topics: BTreeMap::new(),
        queues: BTreeMap::new(),
        routes: Vec::new(),
        limits: Limits {
            global: wide,
            types: types
                .iter()
                .enumerate()
                .map(|(at, &name)| (name.to_owned(), type_limit((at, name))))
                .collect(),
        },
        budgets: Vec::new(),
        caps: Default::default(),
        revocations: Default::default(),
        changes_need_approval: false,
        staged: None,
        tries_staged: false,
        pacing: Pacing {
            hold_max_ms: 200,
            deadline_ms: 2_000,
            requeue_delay_ms: 20,
            requeue_delay_max_ms: 500,
            max_failures: 40,
            grant_batch: 32,
            in_hand_max: 512,
            lane_events_max: 2_000,
            lane_bytes_max: 1 << 20,
        },
    }
}
