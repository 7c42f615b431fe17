//! The loop over the events.

use super::outcome::{Outcome, Tally};
use super::random::Random;
use super::scenario::{Scenario, TypeLoad};
use super::topic::{Pack, Topic};
use crate::numbers::{ceil, narrow, real, round};
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use windfall_limiter::{Fuse, Limit, Limiter, Now, TypeId, TypeLimit, Wait};

/// A limit that never matters.
const UNLIMITED: Limit = Limit { rate_per_s: Limit::RATE_PER_S_MAX, burst: Limit::BURST_MAX };
/// A type that brings so large a part of its topic, 1 in so many, paces the topic.
const LARGE_PART: f64 = 4.0;

/// Runs a scenario until everything is credited, or its end.
pub fn simulate(scenario: &Scenario) -> Outcome {
    let mut run = Run::new(scenario);
    while let Some(Reverse(Scheduled { at_s, what, .. })) = run.heap.pop() {
        if at_s > scenario.end_s || run.is_over() {
            break;
        }
        run.sample_until(at_s);
        run.now_s = at_s;
        run.happen(what);
        run.fetch();
        run.admit();
        run.write();
    }
    run.finish()
}

/// Something that happens.
enum Event {
    /// A pack of a type is in its topic; the next one follows.
    Stored(Pack),
    /// A pack that was sent back is in its topic again.
    BackAgain(Pack),
    /// A lane may ask the limiter again.
    Look,
    /// A transaction is committed.
    Committed(Vec<Call>),
    /// A connector has answered for these events.
    Paid(Call),
}

/// Grants of one type that are asked for together.
struct Call {
    topic: usize,
    kind: usize,
    packs: Vec<Pack>,
    events: u64,
    /// The connector has still to pay them.
    is_reservation: bool,
}

struct Scheduled {
    at_s: f64,
    /// Among equal times the first that was scheduled comes first.
    nth: u64,
    what: Event,
}

struct Run<'a> {
    scenario: &'a Scenario,
    random: Random,
    now_s: f64,
    heap: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    limiter: Limiter,
    ids: Vec<TypeId>,
    topics: Vec<Topic>,
    /// Types by priority.
    ranks: Vec<usize>,
    /// The time of the look that is scheduled.
    look_at_s: f64,
    calls: VecDeque<Call>,
    writers_busy: u32,
    busy_s: f64,
    tallies: Vec<Tally>,
    sampled_s: Vec<f64>,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let global = limit(scenario.global);
        let limiter = Limiter::new(global, Now(0));
        let ids = scenario.types.iter().map(|one| limiter.type_id(&one.name)).collect();
        let rules: Vec<(String, TypeLimit)> = scenario
            .types
            .iter()
            .map(|one| {
                let rule = TypeLimit { limit: limit(one.limit), fuse: Fuse::Closed, priority: one.priority };
                (one.name.clone(), rule)
            })
            .collect();
        limiter.apply(global, &rules, Now(0));
        let types = scenario.types.len();
        let topics = scenario.types.iter().flat_map(|one| &one.topics).map(|(topic, _)| topic + 1).max();
        let topic =
            |topic| Topic::new(&(0..types).map(|kind| bound(scenario, topic, kind)).collect::<Vec<_>>());
        let mut ranks: Vec<usize> = (0..types).collect();
        ranks.sort_by_key(|&kind| scenario.types[kind].priority);
        let mut run = Self {
            scenario,
            random: Random::new(scenario.seed),
            now_s: 0.0,
            heap: BinaryHeap::new(),
            scheduled: 0,
            limiter,
            ids,
            topics: (0..topics.unwrap_or(0)).map(topic).collect(),
            ranks,
            look_at_s: f64::INFINITY,
            calls: VecDeque::new(),
            writers_busy: 0,
            busy_s: 0.0,
            tallies: scenario.types.iter().map(|one| Tally::new(&one.name)).collect(),
            sampled_s: Vec::new(),
        };
        for kind in 0..types {
            run.send(kind);
        }
        run
    }

    fn is_over(&self) -> bool {
        let all = |(tally, load): (&Tally, &TypeLoad)| tally.outcome.credited == load.events;
        self.tallies.iter().zip(&self.scenario.types).all(all)
    }

    /// Schedules the next pack of a type: on average at its rate, and never behind the load's end.
    fn send(&mut self, kind: usize) {
        let load = &self.scenario.types[kind];
        let sent = self.tallies[kind].sent;
        let events = u64::from(self.scenario.pack_events).min(load.events - sent);
        if events == 0 {
            return;
        }
        let each_s = self.scenario.load_s / real(load.events);
        let (first_s, last_s) = (real(sent) * each_s, real(sent + events) * each_s);
        let gathered_s = first_s + self.random.around(last_s - first_s);
        let at_s = gathered_s.min(self.scenario.load_s) + self.scenario.path_ms / 1_000.0;
        let pack = Pack { topic: self.topic_of(kind), kind, events, sent_s: first_s.midpoint(last_s) };
        self.tallies[kind].sent += events;
        self.schedule(at_s.max(self.now_s), Event::Stored(pack));
    }

    /// The topic of the next pack of a type.
    fn topic_of(&mut self, kind: usize) -> usize {
        let topics = &self.scenario.types[kind].topics;
        let mut point = self.random.unit();
        let found = topics.iter().find(|(_, part)| {
            point -= part;
            point < 0.0
        });
        found.or(topics.last()).map_or(0, |(topic, _)| *topic)
    }

    fn schedule(&mut self, at_s: f64, what: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse(Scheduled { at_s, nth: self.scheduled, what }));
    }

    fn happen(&mut self, what: Event) {
        match what {
            Event::Stored(pack) => {
                self.topics[pack.topic].push(pack);
                self.send(pack.kind);
            }
            Event::BackAgain(pack) => self.topics[pack.topic].push(pack),
            Event::Look => self.look_at_s = f64::INFINITY,
            Event::Committed(calls) => {
                self.writers_busy -= 1;
                calls.into_iter().for_each(|call| self.committed(call));
            }
            Event::Paid(call) => self.calls.push_back(call),
        }
    }

    fn committed(&mut self, call: Call) {
        if call.is_reservation {
            let answer_ms = self.scenario.types[call.kind].connector_ms.unwrap_or(0.0);
            let at_s = self.now_s + self.random.around(answer_ms) / 1_000.0;
            return self.schedule(at_s, Event::Paid(Call { is_reservation: false, ..call }));
        }
        self.topics[call.topic].lanes[call.kind].granting -= call.events;
        for pack in &call.packs {
            self.tallies[call.kind].credited(self.now_s, pack.sent_s, pack.events);
        }
    }

    /// Moves packs from the topics to their lanes.
    fn fetch(&mut self) {
        let pacing = &self.scenario.pacing;
        for topic in 0..self.topics.len() {
            while let Some(&front) = self.topics[topic].front() {
                let own = &mut self.topics[topic];
                if own.lanes[front.kind].has_room() {
                    own.pop();
                    own.lanes[front.kind].push(front);
                } else if own.is_in_the_way(front.kind, self.now_s)
                    && own.may_churn(pacing.churn_per_s, self.now_s)
                {
                    own.pop();
                    self.tallies[front.kind].outcome.requeued += front.events;
                    let delay_ms = real(pacing.requeue_delay_ms) + self.scenario.path_ms;
                    self.schedule(self.now_s + delay_ms / 1_000.0, Event::BackAgain(front));
                } else {
                    break;
                }
            }
        }
    }

    /// Lets the lanes pass what the limiter admits: the consumers in any order, each its lanes by priority.
    fn admit(&mut self) {
        let count = self.topics.len();
        let (first, is_forward) = (self.random.below(count), self.random.below(2) == 0);
        for nth in 0..count {
            let step = if is_forward { nth } else { count - nth };
            let topic = (first + step) % count;
            for rank in 0..self.ranks.len() {
                let kind = self.ranks[rank];
                while self.pass(topic, kind) {}
            }
        }
        let lanes = self.topics.iter().flat_map(|topic| &topic.lanes).filter(|lane| lane.events > 0);
        let next_s = lanes.map(|lane| lane.ask_at_s).fold(f64::INFINITY, f64::min);
        if next_s > self.now_s && next_s < self.look_at_s {
            self.look_at_s = next_s;
            self.schedule(next_s, Event::Look);
        }
    }

    /// Asks the limiter for one batch of a lane; returns whether another may follow.
    fn pass(&mut self, topic: usize, kind: usize) -> bool {
        let own = &mut self.topics[topic];
        if own.lanes[kind].ask_at_s > self.now_s {
            return false;
        }
        let wanted = own.wanted(kind, &self.scenario.pacing);
        if wanted == 0 {
            return false;
        }
        let now = Now(round(self.now_s * 1e9));
        let admission = self.limiter.admit(self.ids[kind], narrow(wanted), now);
        let events = u64::from(admission.granted);
        let lane = &mut own.lanes[kind];
        if events > 0 {
            let is_reservation = self.scenario.types[kind].connector_ms.is_some();
            let packs = lane.cut(events);
            lane.granting += events;
            self.calls.push_back(Call { topic, kind, packs, events, is_reservation });
        }
        if events < wanted {
            // Two consumers that look in step would starve one of them for good.
            let look_s = self.random.around(self.scenario.pacing.look_ms) / 1_000.0;
            lane.ask_at_s = match admission.wait {
                Wait::For(wait) => self.now_s + wait.as_secs_f64().max(look_s),
                Wait::Never => f64::INFINITY,
            };
        }
        events == wanted
    }

    /// Starts transactions while calls wait and writers are free.
    fn write(&mut self) {
        let ledger = &self.scenario.ledger;
        while self.writers_busy < ledger.writers && !self.calls.is_empty() {
            let (mut taken, mut events) = (Vec::new(), 0);
            while let Some(call) = self.calls.front() {
                if events > 0 && events + call.events > ledger.transaction_events_max {
                    break;
                }
                events += call.events;
                taken.extend(self.calls.pop_front());
            }
            let mean_s = ledger.transaction_ms / 1e3 + real(events) * ledger.event_us / 1e6;
            let took_s = self.random.around(mean_s);
            self.busy_s += took_s;
            self.writers_busy += 1;
            self.schedule(self.now_s + took_s, Event::Committed(taken));
        }
    }

    fn sample_until(&mut self, at_s: f64) {
        loop {
            let next_s = real(self.sampled_s.len() as u64 + 1) * self.scenario.sample_s;
            if next_s > at_s {
                return;
            }
            self.sampled_s.push(next_s);
            for (tally, load) in self.tallies.iter_mut().zip(&self.scenario.types) {
                tally.sample(next_s, self.scenario.load_s, load.events);
            }
        }
    }

    fn finish(mut self) -> Outcome {
        self.sample_until(self.now_s);
        let is_over = self.is_over();
        let writers = f64::from(self.scenario.ledger.writers);
        let types = self.tallies.into_iter().zip(&self.scenario.types);
        Outcome {
            types: types.map(|(tally, load)| tally.finish(load.events)).collect(),
            sampled_s: self.sampled_s,
            last_credit_s: is_over.then_some(self.now_s),
            ledger_busy: self.busy_s / (writers * self.now_s).max(1e-9),
        }
    }
}

fn limit(given: Option<(u64, u32)>) -> Limit {
    given.map_or(UNLIMITED, |(rate_per_s, burst)| Limit { rate_per_s, burst })
}

/// What a lane holds at most. A type that is a large part of its topic is fetched as fast as it passes; a small one may fill
/// its lane, so that others need not wait behind it.
fn bound(scenario: &Scenario, topic: usize, kind: usize) -> u64 {
    let pacing = &scenario.pacing;
    let of_topic = |load: &TypeLoad| -> f64 {
        let parts = load.topics.iter().filter(|(own, _)| *own == topic).map(|(_, part)| part);
        real(load.events) * parts.sum::<f64>()
    };
    let load = &scenario.types[kind];
    let all: f64 = scenario.types.iter().map(of_topic).sum();
    if of_topic(load) * LARGE_PART < all {
        return pacing.lane_events_max;
    }
    let per_s = limit(load.limit).rate_per_s.min(limit(scenario.global).rate_per_s);
    ceil(real(per_s) * real(pacing.hold_max_ms) / 1_000.0)
        .clamp(u64::from(pacing.grant_batch).min(pacing.lane_events_max), pacing.lane_events_max)
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.nth.cmp(&other.nth))
    }
}
