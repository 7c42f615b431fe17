//! Copies on their way to a queue, and to the salvage file where no queue takes them. A record is finished when
//! its copies are stored in one or the other (I2, I3).

use crate::archive::Item;
use crate::dispatch::{Dispatch, NS_PER_MS};
use crate::held::Key;
use crate::requeue::{COPIES_ON_THE_WAY_MAX, Copy, Done, Fate, Jitter, Outbox, RequeueOutcome, Requeued};
use crate::salvage::{EntryId, SalvageError};
use crate::stats::Cause;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError};
use windfall_contract::rewards::{ArchiveUnavailable, Rejection};
use windfall_contract::rules::Pacing;

/// How long refused copies wait before the queues are tried again, where the salvage file fails too.
const TRY_AGAIN_NS: u64 = 500 * NS_PER_MS;
/// Salvaged copies that are replayed at once.
const REPLAY_MOST: usize = 32;
const REPLAY_EVERY_NS: u64 = 1_000 * NS_PER_MS;
const REPLAY_PAUSE_MAX_NS: u64 = 30_000 * NS_PER_MS;

/// The fate of what was given to the outlet.
#[derive(Debug)]
pub(crate) struct Answer {
    id: u64,
    outcome: RequeueOutcome,
}

/// What a helper task has done.
#[derive(Debug)]
pub(crate) enum Chore {
    Archived(Result<(), ArchiveUnavailable>),
    Appended(Result<(), SalvageError>),
    Taken(Result<Vec<(EntryId, Requeued)>, SalvageError>),
    Settled(Result<(), SalvageError>),
}

/// Copies, wherever they are.
#[derive(Debug)]
pub(crate) struct GoingBack {
    outbox: Outbox,
    /// For room among those on the way.
    waiting: VecDeque<Copy>,
    on_the_way: HashMap<u64, OnTheWay>,
    /// For the salvage file.
    refused: Vec<Copy>,
    /// Being written to it, and by which task.
    appending: Option<(Id, Vec<Copy>)>,
    /// What the file would not take either, until the queues are tried again.
    stranded: Vec<Copy>,
    try_again_ns: u64,
    /// Salvaged copies on their way.
    replaying: usize,
    replay_at_ns: u64,
    replay_pause_ns: u64,
    taking: Option<Id>,
    replayed: Vec<(EntryId, RequeueOutcome)>,
    next_id: u64,
    answers: mpsc::Sender<Answer>,
    jitter: Jitter,
    /// Events in copies of all states.
    events: u64,
}

#[derive(Debug)]
enum OnTheWay {
    Copy(Copy),
    Replay(EntryId),
}

/// Answers when it is called, or when it is dropped.
struct Reply {
    id: u64,
    answers: mpsc::Sender<Answer>,
    outcome: RequeueOutcome,
}

impl Drop for Reply {
    fn drop(&mut self) {
        // One place for each that is on the way: full it cannot be; closed it is when the loop has gone.
        self.answers.try_send(Answer { id: self.id, outcome: self.outcome }).ok();
    }
}

impl GoingBack {
    pub fn new(seed: u64) -> (Self, mpsc::Receiver<Answer>) {
        let (answers, received) = mpsc::channel(COPIES_ON_THE_WAY_MAX + REPLAY_MOST);
        let new = Self {
            outbox: Outbox::default(),
            waiting: VecDeque::new(),
            on_the_way: HashMap::new(),
            refused: Vec::new(),
            appending: None,
            stranded: Vec::new(),
            try_again_ns: 0,
            replaying: 0,
            replay_at_ns: 0,
            replay_pause_ns: REPLAY_EVERY_NS,
            taking: None,
            replayed: Vec::new(),
            next_id: 0,
            answers,
            jitter: Jitter::new(seed),
            events: 0,
        };
        (new, received)
    }

    pub fn push(&mut self, fate: &Fate, after_ms: u64, key: Key, event: Bytes) {
        self.events += 1;
        self.outbox.push(fate, after_ms, key, event);
    }

    pub fn push_record(&mut self, key: Key, record: Bytes) {
        self.events += 1;
        self.outbox.push_raw(key, record);
    }

    /// Whether no more should come in: as much is going back as waits in a lane.
    pub fn is_full(&self, pacing: &Pacing) -> bool {
        self.events >= u64::from(pacing.lane_events_max)
    }

    pub fn is_empty(&self) -> bool {
        self.events == 0 && self.outbox.is_empty()
    }

    fn done(&self, id: u64) -> Done {
        let mut reply = Reply { id, answers: self.answers.clone(), outcome: RequeueOutcome::Refused };
        Box::new(move |outcome| {
            reply.outcome = outcome;
            drop(reply);
        })
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl Dispatch {
    /// Writes back what of a record has not been cut yet.
    pub fn send_back(&mut self, key: Key, cause: Cause) {
        self.leave_place(key);
        let Some((bonus_type, events)) = self.cut_rest(key) else { return };
        let Some(held) = self.book.get(key) else { return };
        let is_unknown = cause == Cause::UnknownType;
        let failures = held.failures.saturating_add(u32::from(is_unknown));
        if is_unknown && failures > self.pacing().max_failures {
            return self.archive_cut(key, events, Rejection::UnknownType);
        }
        let fate =
            Fate { bonus_type, attempt: held.attempt, failures, not_before_ms: held.not_before_ms, cause };
        if let Some(lane) = held.lane {
            self.lanes.all[lane].stats.requeued.add(events.len() as u64);
        }
        self.stats.count_requeued(cause, events.len() as u64);
        events.into_iter().for_each(|event| self.back.push(&fate, 0, key, event));
    }

    /// Archives what of a record has not been cut yet.
    pub fn archive_events(&mut self, key: Key, rejection: Rejection) {
        self.leave_place(key);
        if let Some((_, events)) = self.cut_rest(key) {
            self.archive_cut(key, events, rejection);
        }
    }

    fn archive_cut(&mut self, key: Key, events: Vec<Bytes>, rejection: Rejection) {
        let Some(held) = self.book.get(key) else { return };
        let detail = format!("{} failed grants", held.failures);
        for event in events {
            self.archive.push(Item::event(key, held.failures, event, rejection, detail.clone()));
        }
    }

    fn cut_rest(&mut self, key: Key) -> Option<(Arc<str>, Vec<Bytes>)> {
        let held = self.book.get_mut(key)?;
        let mut events = Vec::with_capacity(held.uncut as usize);
        // Every record was walked from end to end on arrival, so cutting does not fail.
        held.cut(u32::MAX, &mut events).ok()?;
        let bonus_type = match held.lane {
            Some(lane) => Arc::clone(&self.lanes.all[lane].name),
            None => windfall_proto::record::split(&held.payload).ok()?.0.bonus_type.into(),
        };
        Some((bonus_type, events))
    }

    /// Writes back all that waits in a lane. What a limit sends back counts as churn: it was fetched in vain.
    pub fn flush_lane(&mut self, at: usize, cause: Cause, now_ns: u64) {
        let keys: Vec<Key> = self.lanes.all[at].keys().collect();
        for key in keys {
            let is_there = self.book.get(key).is_some_and(|held| held.place == crate::held::Place::Lane);
            if is_there {
                if cause == Cause::Limit {
                    self.churned(now_ns);
                }
                self.send_back(key, cause);
            }
        }
    }

    /// Gives copies to the outlet, as many as may be on the way.
    pub fn launch_copies(&mut self, now_ns: u64) {
        if now_ns >= self.back.try_again_ns {
            let stranded = std::mem::take(&mut self.back.stranded);
            self.back.waiting.extend(stranded);
        }
        if !self.back.outbox.is_empty() {
            let wall_ms = self.clock.wall_ms();
            let Self { back, rules, .. } = self;
            let copies = back.outbox.take(&rules.pacing, wall_ms, &mut back.jitter);
            back.waiting.extend(copies);
        }
        while self.back.on_the_way.len() < COPIES_ON_THE_WAY_MAX + self.back.replaying {
            let Some(copy) = self.back.waiting.pop_front() else { break };
            let (record, id) = (copy.build(), self.back.id());
            let done = self.back.done(id);
            self.back.on_the_way.insert(id, OnTheWay::Copy(copy));
            self.outlet.requeue(record, done);
        }
    }

    /// Takes in the fate of what was given to the outlet.
    pub fn answered(&mut self, answer: Answer) {
        match (self.back.on_the_way.remove(&answer.id), answer.outcome) {
            (Some(OnTheWay::Copy(copy)), RequeueOutcome::Stored) => {
                self.stats.requeues_stored.add(1);
                self.stored(&copy);
            }
            (Some(OnTheWay::Copy(copy)), RequeueOutcome::Refused) => {
                self.stats.requeues_refused.add(1);
                self.back.refused.push(copy);
            }
            (Some(OnTheWay::Replay(entry)), outcome) => {
                self.back.replaying -= 1;
                let (replayed, pause_ns) = match outcome {
                    RequeueOutcome::Stored => (1, REPLAY_EVERY_NS),
                    RequeueOutcome::Refused => (0, self.back.replay_pause_ns * 2),
                };
                self.stats.replayed.add(replayed);
                self.back.replay_pause_ns = pause_ns.min(REPLAY_PAUSE_MAX_NS);
                if self.back.replaying == 0 && outcome == RequeueOutcome::Stored {
                    // The queues take records again: the next ones at once, until none is left.
                    self.back.replay_at_ns = 0;
                }
                self.back.replayed.push((entry, outcome));
            }
            (None, _) => {}
        }
    }

    /// I3: the copy is safe, so the originals need not be.
    fn stored(&mut self, copy: &Copy) {
        self.back.events = self.back.events.saturating_sub(copy.events().into());
        for &(key, events) in &copy.parts {
            self.book.settle(key, events);
        }
    }

    /// Appends refused copies to the salvage file, and replays what it holds.
    pub fn salvage_turn(&mut self, now_ns: u64) {
        let back = &mut self.back;
        if !back.refused.is_empty() && back.appending.is_none() {
            let copies = std::mem::take(&mut back.refused);
            let records: Vec<Requeued> = copies.iter().map(Copy::build).collect();
            let salvage = Arc::clone(&self.salvage);
            let task = self.chores.spawn_blocking(move || Chore::Appended(salvage.append(&records)));
            back.appending = Some((task.id(), copies));
        }
        if !back.replayed.is_empty() {
            let (settled, salvage) = (std::mem::take(&mut back.replayed), Arc::clone(&self.salvage));
            self.chores.spawn_blocking(move || {
                let settle = |(entry, outcome)| salvage.settle(entry, outcome);
                // Each of them, though one fails: the first failure is reported.
                Chore::Settled(settled.into_iter().map(settle).fold(Ok(()), Result::and))
            });
        }
        let may_replay = back.taking.is_none() && back.replaying == 0 && self.drain.is_none();
        if may_replay && now_ns >= back.replay_at_ns {
            let salvage = Arc::clone(&self.salvage);
            let task = self.chores.spawn_blocking(move || Chore::Taken(salvage.take(REPLAY_MOST)));
            back.taking = Some(task.id());
        }
    }

    /// Takes in what a helper task has done.
    pub fn did(&mut self, chore: Result<(Id, Chore), JoinError>) {
        let now_ns = self.clock.monotonic_ns();
        match chore {
            Ok((_, Chore::Archived(result))) => self.archived(result, now_ns),
            Ok((_, Chore::Appended(result))) => {
                self.appended(result.map_err(|error| error.to_string()), now_ns)
            }
            Ok((_, Chore::Taken(result))) => self.replay(result, now_ns),
            Ok((_, Chore::Settled(Ok(())))) => {}
            Ok((_, Chore::Settled(Err(error)))) => {
                tracing::warn!(topic = %self.topic, %error, "the salvage file could not be cut");
            }
            Err(error) => self.chore_panicked(&error, now_ns),
        }
    }

    fn chore_panicked(&mut self, error: &JoinError, now_ns: u64) {
        tracing::error!(topic = %self.topic, %error, "a helper task ended by itself");
        if self.back.appending.as_ref().is_some_and(|(task, _)| *task == error.id()) {
            self.appended(Err(error.to_string()), now_ns);
        } else if self.back.taking == Some(error.id()) {
            self.replay(Ok(Vec::new()), now_ns);
        } else if self.archive.is_asked_by(error.id()) {
            self.archived(Err(ArchiveUnavailable(error.to_string())), now_ns);
        }
    }

    fn appended(&mut self, result: Result<(), String>, now_ns: u64) {
        let Some((_, copies)) = self.back.appending.take() else { return };
        match result {
            Ok(()) => {
                self.stats.salvaged.add(copies.len() as u64);
                copies.iter().for_each(|copy| self.stored(copy));
            }
            Err(error) => {
                // Neither queue nor file: it stays in the window, unfinished, and the queues are tried again.
                self.stats.salvage_failed.add(1);
                tracing::error!(topic = %self.topic, %error, copies = copies.len(), "cannot salvage");
                self.back.try_again_ns = now_ns + TRY_AGAIN_NS;
                self.back.stranded.extend(copies);
            }
        }
    }

    fn replay(&mut self, taken: Result<Vec<(EntryId, Requeued)>, SalvageError>, now_ns: u64) {
        self.back.taking = None;
        self.back.replay_at_ns = now_ns + self.back.replay_pause_ns;
        let taken = taken.unwrap_or_else(|error| {
            tracing::warn!(topic = %self.topic, %error, "the salvage file cannot be read");
            Vec::new()
        });
        for (entry, record) in taken {
            let id = self.back.id();
            let done = self.back.done(id);
            self.back.on_the_way.insert(id, OnTheWay::Replay(entry));
            self.back.replaying += 1;
            self.outlet.requeue(record, done);
        }
    }

    /// Leaves salvaged copies that are still on their way to whoever replays next.
    pub fn give_back_replays(&mut self) {
        let back = &mut self.back;
        let open = back.on_the_way.values().filter_map(|on_the_way| match on_the_way {
            OnTheWay::Replay(entry) => Some((*entry, RequeueOutcome::Refused)),
            OnTheWay::Copy(_) => None,
        });
        for (entry, outcome) in std::mem::take(&mut back.replayed).into_iter().chain(open) {
            if let Err(error) = self.salvage.settle(entry, outcome) {
                tracing::warn!(topic = %self.topic, %error, "the salvage file could not be cut");
            }
        }
    }
}
