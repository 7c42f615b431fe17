//! Takes the records of one topic, and stores their tasks.

mod origin;

use super::health::{DamagedPartitions, Health};
use super::lane::{Lane, Place, Waiting};
use super::options::{
    CALLS_MAX, POLL_BYTES_MAX, POLL_RECORDS_MAX, POLL_WAIT, REFUSALS_MAX, RETRY_MAX, TICK, UNSETTLED_FACTOR,
};
use super::partition::{LastAnswer, Partition};
use super::record::QueuedAdd;
use super::set_aside::{ReadAt, Reason, SetAside};
use super::{Inner, QueueTopic, stopped};
use bytes::Bytes;
use origin::WaitingForKeys;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use windfall_contract::broker::{
    Acks, Change, Commit, Consumer, Fetch, InRecord, PollError, Polled, Position,
};
use windfall_contract::due::{AddedOnce, OnceAnswers, OnceRecord, Route, Shard, StoreError};
use windfall_contract::finished::Finished;

/// How the adds of a store are recognised, and by which numbers it knows tenants and targets.
pub(super) struct Known {
    pub id: u64,
    pub routes: BTreeMap<(String, String), Route>,
}

/// Why a topic is read no more.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It is to stop.
    Stopped,
    /// A server of the store may have lost what it answered: everything that is not committed is to be read again.
    ReadAgain,
}

/// What a call has come to.
enum Landed {
    Stored { shard: Shard, batch: Vec<Waiting>, asked_at: Instant, answer: Result<OnceAnswers, StoreError> },
    SetAside { batch: Vec<Aside>, is_written: bool },
}

/// A record on its way to the file of records set aside.
struct Aside {
    at: Place,
    bytes: usize,
    reason: Reason,
    entry: SetAside,
}

pub(super) struct Reader {
    inner: Arc<Inner>,
    topic: Arc<QueueTopic>,
    known: Arc<Known>,
    shards: u16,
    partitions: BTreeMap<u32, Partition>,
    lanes: BTreeMap<Shard, Lane>,
    late: WaitingForKeys,
    /// How often the keys had changed at the last look.
    key_changes: u64,
    asides: VecDeque<Aside>,
    asides_not_before: Option<Instant>,
    is_writing_asides: bool,
    calls: JoinSet<Landed>,
    /// The shard whose turn is next.
    next_shard: Shard,
    bytes: usize,
    reads_again: bool,
    polls: Health,
    commits: Health,
    damaged: DamagedPartitions,
    /// What of the shared gauges is this reader's.
    shown_held: u64,
    shown_in_memory: u64,
}

/// Reads until it is to stop or to read again; commits what is finished before it returns. Readiness shows what fails under
/// `name`, which may stand there already.
pub(super) async fn read_topic(
    inner: &Arc<Inner>,
    topic: &Arc<QueueTopic>,
    name: &str,
    known: &Arc<Known>,
    consumer: &mut Box<dyn Consumer>,
    stop: &mut watch::Receiver<bool>,
) -> Ended {
    let mut reader = Reader {
        inner: Arc::clone(inner),
        topic: Arc::clone(topic),
        known: Arc::clone(known),
        shards: inner.store.shards(),
        partitions: BTreeMap::new(),
        lanes: BTreeMap::new(),
        late: WaitingForKeys::default(),
        key_changes: inner.signatures.as_ref().map_or(0, |own| own.changes()),
        asides: VecDeque::new(),
        asides_not_before: None,
        is_writing_asides: false,
        calls: JoinSet::new(),
        next_shard: Shard(0),
        bytes: 0,
        reads_again: false,
        polls: Health::new(name.to_owned()),
        commits: Health::new(format!("committing {name}")),
        damaged: DamagedPartitions::new(format!("{name}, damaged records"), inner),
        shown_held: 0,
        shown_in_memory: 0,
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let fetch = reader.fetch();
        tokio::select! {
            biased;
            () = stopped(stop) => break,
            Some(landed) = reader.calls.join_next(), if !reader.calls.is_empty() => reader.landed(landed),
            _ = ticks.tick() => {
                reader.look_at_keys(Instant::now());
                reader.finish(&mut **consumer).await;
            }
            polled = consumer.poll(fetch) => match polled {
                Ok(polled) => {
                    reader.polls.succeeded(inner);
                    reader.take(polled);
                }
                Err(error) => reader.poll_failed(&error).await,
            },
        }
        if reader.reads_again {
            inner.stats.rereads.add(1);
            return Ended::ReadAgain;
        }
        reader.call();
        reader.show();
    }
    // What is being stored gets its answer; the rest is read again by the next owner, and copies are dropped.
    while let Some(landed) = reader.calls.join_next().await {
        reader.landed(landed);
    }
    reader.finish(&mut **consumer).await;
    Ended::Stopped
}

impl Reader {
    fn open(&self) -> usize {
        self.partitions.values().map(Partition::open).sum()
    }

    /// How much may be read now. Nothing, while as much is held as may be.
    fn fetch(&self) -> Fetch {
        let options = &self.inner.options;
        let room = options.held_records_max.saturating_sub(self.open());
        let unsettled: usize = self.partitions.values().map(Partition::unsettled).sum();
        let is_full = self.bytes >= options.held_bytes_max
            || unsettled >= options.held_records_max.saturating_mul(UNSETTLED_FACTOR);
        let max_records = if is_full { 0 } else { room.min(POLL_RECORDS_MAX) };
        Fetch { max_records, max_bytes: POLL_BYTES_MAX, wait: POLL_WAIT }
    }

    async fn poll_failed(&mut self, error: &PollError) {
        self.inner.stats.errors.add(1);
        match error {
            PollError::Unavailable(what) => self.polls.failed(&self.inner, what, Instant::now()),
            PollError::Damaged { partition, offset, what } => {
                self.damaged.found(&self.inner, *partition, *offset, what);
            }
            PollError::Lost { .. } => {
                tracing::error!(topic = self.topic.name, %error, "adds of timers in the queue are lost");
            }
        }
        tokio::time::sleep(TICK).await;
    }

    fn take(&mut self, polled: Polled) {
        for change in polled.changes {
            match change {
                Change::Assigned { partition, epoch, next_offset } => {
                    self.forget(partition);
                    self.partitions.insert(partition, Partition::new(epoch, next_offset));
                }
                Change::Passed { partition, epoch, next_offset } => {
                    let own = self.partitions.get_mut(&partition).filter(|own| own.epoch == epoch);
                    own.into_iter().for_each(|own| own.passed(next_offset));
                }
                Change::Revoked { partition, .. } => self.forget(partition),
            }
        }
        polled.records.into_iter().for_each(|record| self.take_one(record));
    }

    /// Another member has the partition now, and reads everything again that is not committed.
    fn forget(&mut self, partition: u32) {
        self.damaged.forget(&self.inner, partition);
        self.partitions.remove(&partition);
        for lane in self.lanes.values_mut() {
            self.bytes -= lane.forget(partition).1;
        }
        self.bytes -= self.late.forget(partition);
        let bytes = &mut self.bytes;
        self.asides.retain(|aside| {
            let stays = aside.at.partition != partition;
            *bytes -= if stays { 0 } else { aside.bytes };
            stays
        });
    }

    fn take_one(&mut self, record: InRecord) {
        let InRecord { partition, epoch, offset, payload, .. } = record;
        let Some(own) = self.partitions.get_mut(&partition).filter(|own| own.epoch == epoch) else { return };
        own.read(offset);
        self.damaged.read(&self.inner, partition, offset);
        self.bytes += payload.len();
        let at = Place { partition, epoch, offset };
        self.sort(at, payload, Instant::now(), None);
    }

    /// Where a record's task goes. Nothing that the record says is taken for granted.
    fn judge(&self, record: &Bytes) -> Result<(Shard, OnceRecord), Reason> {
        let add = QueuedAdd::decode(record).map_err(|fault| Reason::Unreadable(fault.to_string()))?;
        let own = self.known.id;
        if add.store != own {
            return Err(Reason::OtherStore { theirs: add.store, own });
        }
        self.check_origin(record)?;
        let route = self.known.routes.get(&(add.tenant, add.target)).copied();
        let route = route.ok_or(Reason::UnknownTarget)?;
        let shard = add.key.shard(route.tenant, self.shards);
        let QueuedAdd { due_ms, key, payload, written_ms, .. } = add;
        Ok((shard, OnceRecord { due_ms, route, key, payload, written_ms }))
    }

    fn set_aside(&mut self, at: Place, reason: Reason, record: &Bytes) {
        let read_at = ReadAt { topic: &self.topic.name, partition: at.partition, offset: at.offset };
        let entry = SetAside::new(self.inner.clock.unix_ms(), &reason, read_at, record);
        self.asides.push_back(Aside { at, bytes: record.len(), reason, entry });
    }

    /// Calls the shards that have something to store or to confirm, and the file of records set aside.
    fn call(&mut self) {
        let (now, settle) = (Instant::now(), Duration::from_millis(self.inner.options.settle_ms));
        for shard in self.callable(settle, now) {
            let Some(lane) = self.lanes.get_mut(&shard).filter(|_| self.calls.len() < CALLS_MAX) else {
                break;
            };
            self.next_shard = Shard(shard.0.wrapping_add(1));
            let (inner, batch) = (Arc::clone(&self.inner), lane.next_batch());
            self.calls.spawn(async move {
                let records: Vec<_> = batch.iter().map(|waiting| waiting.once.clone()).collect();
                let asked_at = Instant::now();
                let answer = inner.store.add_once(shard, &records, inner.options.keys_kept_ms).await;
                Landed::Stored { shard, batch, asked_at, answer }
            });
        }
        let may_write = self.asides_not_before.is_none_or(|at| at <= now) && !self.is_writing_asides;
        if may_write && !self.asides.is_empty() {
            self.is_writing_asides = true;
            let batch: Vec<Aside> = self.asides.drain(..).collect();
            let inner = Arc::clone(&self.inner);
            self.calls.spawn(async move {
                let entries: Vec<_> = batch.iter().map(|aside| aside.entry.clone()).collect();
                let is_written = inner.write_set_aside(entries).await;
                Landed::SetAside { batch, is_written }
            });
        }
    }

    /// The shards that may be called now and have something to say, each in its turn. Those that did not answer last may take
    /// half of all calls, so that they never take the others' place.
    fn callable(&self, settle: Duration, now: Instant) -> Vec<Shard> {
        let is_hanging = |lane: &&Lane| lane.is_failing() && lane.is_called();
        let hanging = self.lanes.values().filter(is_hanging).count();
        let mut room_for_failing = (CALLS_MAX / 2).saturating_sub(hanging);
        let (from, before) = (self.lanes.range(self.next_shard..), self.lanes.range(..self.next_shard));
        let may_be_called = |(_, lane): &(&Shard, &Lane)| {
            let is_wanted = lane.is_wanted() || lane.is_to_be_confirmed(settle, now);
            is_wanted && lane.may_be_called(now)
        };
        let mut callable = Vec::new();
        for (shard, lane) in from.chain(before).filter(may_be_called) {
            if lane.is_failing() {
                if room_for_failing == 0 {
                    continue;
                }
                room_for_failing -= 1;
            }
            callable.push(*shard);
        }
        callable
    }

    fn landed(&mut self, landed: Result<Landed, tokio::task::JoinError>) {
        match landed {
            Ok(Landed::Stored { shard, batch, asked_at, answer }) => {
                self.stored(shard, batch, asked_at, answer);
            }
            Ok(Landed::SetAside { batch, is_written }) => self.written(batch, is_written),
            Err(error) => {
                // Nobody knows whose records they were: they are not committed.
                tracing::error!(%error, "a call of the queue of adds panicked");
                self.reads_again = true;
            }
        }
    }

    fn stored(
        &mut self,
        shard: Shard,
        batch: Vec<Waiting>,
        asked_at: Instant,
        answer: Result<OnceAnswers, StoreError>,
    ) {
        let now = Instant::now();
        let lane = self.lanes.entry(shard).or_default();
        lane.answered();
        let answers = match answer {
            Ok(answers) if answers.added.len() == batch.len() => answers,
            Ok(_) => return self.refused(shard, batch, "it gave another number of answers", now),
            // Stored or not: what is sent again as it is, is stored once.
            Err(StoreError::Unavailable(what)) => {
                if !lane.is_failing() {
                    tracing::warn!(
                        shard = shard.0,
                        what,
                        "a shard takes no adds of the queue; they are held"
                    );
                }
                lane.failed(now);
                return self.keep(shard, batch);
            }
            Err(StoreError::Unusable(what)) => return self.refused(shard, batch, &what, now),
        };
        lane.one_by_one = lane.one_by_one.saturating_sub(batch.len());
        let run = answers.run;
        lane.succeeded(LastAnswer { run, asked_at });
        if !batch.is_empty() {
            lane.stored_at = Some(now);
        }
        if self.partitions.values().any(|own| own.may_have_lost(shard, run)) {
            tracing::warn!(
                shard = shard.0,
                "a server of the timers' store was started again; the last adds of the queue are read again"
            );
            self.reads_again = true;
            return;
        }
        let mut cancelled: Option<(u64, String)> = None;
        for (waiting, added) in batch.into_iter().zip(answers.added) {
            self.added(shard, run, now, waiting, added, &mut cancelled);
        }
        if let Some((count, key)) = cancelled {
            tracing::warn!(
                count,
                key,
                "adds by the queue were dropped, for their keys were cancelled before"
            );
        }
    }

    /// What the store has made of one record.
    fn added(
        &mut self,
        shard: Shard,
        run: u64,
        now: Instant,
        waiting: Waiting,
        added: AddedOnce,
        cancelled: &mut Option<(u64, String)>,
    ) {
        let stats = &self.inner.stats;
        match added {
            AddedOnce::Stored(_) => stats.stored.add(1),
            AddedOnce::Known => stats.known.add(1),
            AddedOnce::Cancelled { had_come } => {
                stats.cancelled.add(1);
                if had_come {
                    let key = || String::from_utf8_lossy(waiting.once.key.as_bytes()).into_owned();
                    cancelled.get_or_insert_with(|| (0, key())).0 += 1;
                }
            }
            AddedOnce::Other => return self.set_aside(waiting.at, Reason::OtherTask, &waiting.record),
            AddedOnce::TooOld => {
                let reason = Reason::TooOld { kept_ms: self.inner.options.keys_kept_ms };
                return self.set_aside(waiting.at, reason, &waiting.record);
            }
        }
        self.bytes -= waiting.record.len();
        if let Some(own) = self.partition(waiting.at) {
            own.answered(waiting.at.offset, shard, run, now);
        }
    }

    /// The store refuses a batch as a whole: its records go one by one, and one that is refused alone again and again while
    /// the shard takes others, or at least is there, is set aside.
    fn refused(&mut self, shard: Shard, mut batch: Vec<Waiting>, what: &str, now: Instant) {
        let lane = self.lanes.entry(shard).or_default();
        if batch.len() != 1 {
            lane.one_by_one = lane.one_by_one.max(batch.len());
            lane.failed(now);
            return self.keep(shard, batch);
        }
        let Some(mut waiting) = batch.pop() else { return };
        waiting.refusals += 1;
        let first = *waiting.refused_at.get_or_insert(now);
        // A shard that has begun to refuse everything has answered before that.
        let is_since = |last: LastAnswer| last.asked_at > first && last.asked_at + RETRY_MAX * 4 > now;
        let has_answered = lane.last.is_some_and(is_since);
        if waiting.refusals >= REFUSALS_MAX && has_answered {
            return self.set_aside(waiting.at, Reason::Refused(what.to_owned()), &waiting.record);
        }
        if waiting.refusals == 1 {
            tracing::error!(shard = shard.0, what, "the timers' store refuses an add of the queue");
        }
        // Whether the shard is there, or refuses everything.
        lane.is_probed = waiting.refusals >= REFUSALS_MAX;
        lane.one_by_one = lane.one_by_one.max(lane.len() + 1);
        lane.failed(now);
        let is_ours =
            self.partitions.get(&waiting.at.partition).is_some_and(|own| own.epoch == waiting.at.epoch);
        if is_ours && self.check_origin(&waiting.record).is_err() {
            // Its key was destroyed while it was in a call.
            return self.sort(waiting.at, waiting.record, Instant::now(), None);
        }
        match self.lanes.get_mut(&shard) {
            Some(lane) if is_ours => lane.put_behind(waiting),
            _ => self.bytes -= waiting.record.len(),
        }
    }

    /// Keeps records that were not stored, unless somebody else has their partition now.
    fn keep(&mut self, shard: Shard, batch: Vec<Waiting>) {
        let mut own = Vec::with_capacity(batch.len());
        for waiting in batch {
            if self.partition(waiting.at).is_none() {
                self.bytes -= waiting.record.len();
            } else if self.check_origin(&waiting.record).is_err() {
                // Its key was destroyed while it was in a call.
                self.sort(waiting.at, waiting.record, Instant::now(), None);
            } else {
                own.push(waiting);
            }
        }
        self.lanes.entry(shard).or_default().give_back(own);
    }

    fn written(&mut self, batch: Vec<Aside>, is_written: bool) {
        self.is_writing_asides = false;
        if !is_written {
            self.asides_not_before = Some(Instant::now() + super::options::AGAIN);
            for aside in batch.into_iter().rev() {
                match self.partition(aside.at).is_some() {
                    true => self.asides.push_front(aside),
                    false => self.bytes -= aside.bytes,
                }
            }
            return;
        }
        self.asides_not_before = None;
        for aside in batch {
            aside.reason.count(&self.inner.stats);
            self.bytes -= aside.bytes;
            if let Some(own) = self.partition(aside.at) {
                own.finished(aside.at.offset);
            }
        }
    }

    fn partition(&mut self, at: Place) -> Option<&mut Partition> {
        self.partitions.get_mut(&at.partition).filter(|own| own.epoch == at.epoch)
    }

    /// Tells the broker what is finished.
    async fn finish(&mut self, consumer: &mut dyn Consumer) {
        let settle = Duration::from_millis(self.inner.options.settle_ms);
        let lanes = &self.lanes;
        let last = |shard: Shard| lanes.get(&shard).and_then(|lane| lane.last);
        self.partitions.values_mut().for_each(|own| own.settle(settle, &last));
        let told = match consumer.acks() {
            Acks::Prefix => self.commit(consumer).await,
            Acks::Each => self.acknowledge(consumer).await,
        };
        match told {
            Ok(()) => self.commits.succeeded(&self.inner),
            Err(error) => {
                self.inner.stats.errors.add(1);
                self.commits.failed(&self.inner, &error.to_string(), Instant::now());
            }
        }
    }

    async fn commit(
        &mut self,
        consumer: &mut dyn Consumer,
    ) -> Result<(), windfall_contract::broker::CommitError> {
        let commit = |(partition, own): (&u32, &mut Partition)| {
            own.take_finished();
            let next_offset = own.position()?;
            let (partition, epoch, finished) = (*partition, own.epoch, Finished::default());
            Some(Commit { partition, epoch, next_offset, finished })
        };
        let commits: Vec<Commit> = self.partitions.iter_mut().filter_map(commit).collect();
        if commits.is_empty() {
            return Ok(());
        }
        consumer.commit(&commits).await?;
        for Commit { partition, next_offset, .. } in commits {
            if let Some(own) = self.partitions.get_mut(&partition) {
                own.committed(next_offset);
            }
        }
        Ok(())
    }

    async fn acknowledge(
        &mut self,
        consumer: &mut dyn Consumer,
    ) -> Result<(), windfall_contract::broker::CommitError> {
        for (partition, own) in &mut self.partitions {
            let (partition, epoch, offsets) = (*partition, own.epoch, own.take_finished());
            let positions: Vec<_> =
                offsets.iter().map(|offset| Position { partition, epoch, offset: *offset }).collect();
            if positions.is_empty() {
                continue;
            }
            if let Err(error) = consumer.finish(&positions).await {
                own.give_back(offsets);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Shows what is held, and forgets shards of which nothing is known any more.
    fn show(&mut self) {
        let failing: usize = self.lanes.values().filter(|lane| lane.is_failing()).map(Lane::len).sum();
        let stuck = if self.asides_not_before.is_some() { self.asides.len() } else { 0 };
        let held = u64::try_from(failing + stuck).unwrap_or(u64::MAX);
        let in_memory = u64::try_from(self.open()).unwrap_or(u64::MAX);
        self.show_as(held, in_memory);
    }

    fn show_as(&mut self, held: u64, in_memory: u64) {
        let stats = &self.inner.stats;
        stats.held.add(held);
        stats.held.sub(std::mem::replace(&mut self.shown_held, held));
        stats.in_memory.add(in_memory);
        stats.in_memory.sub(std::mem::replace(&mut self.shown_in_memory, in_memory));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.show_as(0, 0);
    }
}
