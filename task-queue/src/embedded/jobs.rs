//! Publishing, taking and ending jobs.

use super::ShardStep;
use super::queue::QueueState;
use super::rows::{self, Key, Reading};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Bound;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{
    FoundJob, HeldRecord, HeldState, JobId, JobRecord, JobStoreError, Lease, NewJobs, QueueName,
    TAKE_BYTES_MAX, TAKE_MAX, Take, TakenJob, TakenJobs, ready_ms,
};

/// The bytes after which no more rows are read ahead.
const READ_AHEAD_BYTES: usize = 1 << 20;

impl ShardStep<'_> {
    /// The queue, which is there from now on.
    pub(super) fn queue(&mut self, name: &QueueName) -> &mut QueueState {
        let number = match self.state.queues.get(name) {
            Some(own) => own.number,
            None => {
                let number = self.state.free_number();
                let key = Key::of(b'q').u16(self.state.number).u32(number).end();
                self.step.put(key, Bytes::copy_from_slice(name.as_str().as_bytes()));
                self.state.names.insert(number, name.clone());
                number
            }
        };
        self.state.queues.entry(name.clone()).or_insert_with(|| QueueState::new(number))
    }

    /// The queue, if it is there, with what has become ready counted as such.
    pub(super) fn known(&mut self, name: &QueueName) -> Option<&mut QueueState> {
        let now_ms = self.now_ms;
        let queue = self.state.queues.get_mut(name)?;
        queue.advance(now_ms);
        Some(queue)
    }

    /// A job that was taken is in this state from now on, in the files and in memory.
    pub(super) fn hold(&mut self, name: &QueueName, at_ms: u64, record: &HeldRecord) {
        let (state, id) = (record.state, record.record.id);
        let queue = self.queue(name);
        let number = queue.number;
        queue.held(state, at_ms, id);
        if state == HeldState::Leased {
            self.state.leases.insert((at_ms, number, id));
        }
        let key = rows::held(self.state.number, number, id);
        self.step.put(key, rows::held_value(at_ms, record));
    }

    /// It is in this state no more, in memory.
    pub(super) fn unhold(&mut self, name: &QueueName, at_ms: u64, state: HeldState, id: JobId) {
        let queue = self.queue(name);
        let number = queue.number;
        queue.unheld(state, at_ms, id);
        if state == HeldState::Leased {
            self.state.leases.remove(&(at_ms, number, id));
        }
    }

    /// It is gone.
    pub(super) fn forget_held(&mut self, name: &QueueName, at_ms: u64, state: HeldState, id: JobId) {
        self.unhold(name, at_ms, state, id);
        let number = self.queue(name).number;
        let key = rows::held(self.state.number, number, id);
        self.step.remove(key);
    }

    pub(super) fn held_at(
        &self,
        name: &QueueName,
        id: JobId,
    ) -> Result<Option<(u64, HeldRecord)>, JobStoreError> {
        let Some(queue) = self.state.queues.get(name) else { return Ok(None) };
        let value = self.step.get(&rows::held(self.state.number, queue.number, id))?;
        value.map(|value| rows::read_held(&value)).transpose()
    }

    /// The row of a job that was never taken, if it is there.
    fn waiting_at(&self, name: &QueueName, id: JobId) -> Result<Option<(Vec<u8>, JobRecord)>, JobStoreError> {
        let Some(queue) = self.state.queues.get(name) else { return Ok(None) };
        let ready = ready_ms(id.published_ms(), id.delay_s());
        let key = rows::waiting(self.state.number, queue.number, ready, id.sequence());
        let Some(bytes) = self.step.get(&key)? else { return Ok(None) };
        // Another job may have the number, after more than ten to the twelve of them.
        let record = JobRecord::decode(&bytes)?.filter(|record| record.id == id);
        Ok(record.map(|record| (key, record)))
    }
}

pub(super) fn publish(step: &mut ShardStep<'_>, batch: &[NewJobs]) -> Vec<Vec<JobId>> {
    let now_ms = step.now_ms;
    let shard = Shard(step.state.number);
    let mut all = Vec::with_capacity(batch.len());
    for jobs in batch {
        let mut ids = Vec::with_capacity(jobs.bodies.len());
        for body in &jobs.bodies {
            step.state.sequence = (step.state.sequence + 1) % JobId::SEQUENCES;
            let sequence = step.state.sequence;
            let id = JobId::new(now_ms, shard, sequence, jobs.delay_s, jobs.is_versioned);
            let ready = ready_ms(now_ms, jobs.delay_s);
            let queue = step.queue(&jobs.queue);
            queue.advance(now_ms);
            queue.published(ready, sequence, 1);
            let key = rows::waiting(shard.0, queue.number, ready, sequence);
            let record = JobRecord {
                id,
                tries: jobs.tries,
                ttl_s: jobs.ttl_s,
                attributes: jobs.attributes.clone(),
                body: body.clone(),
            };
            step.step.append(key, record.encode());
            ids.push(id);
        }
        all.push(ids);
    }
    let sequence = step.state.sequence.to_be_bytes().to_vec();
    step.step.put(Key::of(b's').u16(shard.0).end(), sequence);
    all
}

/// What one step has looked at, over all that it was asked for.
#[derive(Default)]
pub(super) struct Looked {
    entries: usize,
    bytes: usize,
}

impl Looked {
    /// Whether the step has done as much as one may.
    pub(super) const fn is_enough(&self) -> bool {
        self.entries >= 2 * TAKE_MAX || self.bytes > TAKE_BYTES_MAX
    }

    pub(super) fn add(&mut self, record: &HeldRecord) {
        self.entries += 1;
        self.bytes += record.record.body.len();
    }
}

pub(super) fn take(
    step: &mut ShardStep<'_>,
    take: &Take,
    looked: &mut Looked,
) -> Result<TakenJobs, JobStoreError> {
    let mut taken = TakenJobs::default();
    let mut ready = ReadyJobs::default();
    while taken.jobs.len() < take.count {
        if looked.is_enough() {
            let left = step.known(&take.queue).map_or(0, |queue| queue.counts().ready);
            taken.is_cut = taken.jobs.is_empty() && left > 0;
            break;
        }
        let Some(next) = ready.next(step, &take.queue, take.count - taken.jobs.len())? else { break };
        let record = pop(step, &take.queue, next);
        looked.add(&record);
        if is_expired(&record, step.now_ms) {
            taken.expired += 1;
            continue;
        }
        let tries_left = record.tries_left.saturating_sub(1);
        let record = HeldRecord { state: HeldState::Leased, tries_left, ..record };
        step.hold(&take.queue, Lease::end_ms(step.now_ms, take.ttr_s), &record);
        taken.jobs.push(taken_job(record));
    }
    if let Some(queue) = step.known(&take.queue) {
        taken.ready_left = queue.counts().ready;
    }
    Ok(taken)
}

pub(super) fn is_expired(record: &HeldRecord, now_ms: u64) -> bool {
    record.expires_ms != 0 && record.expires_ms <= now_ms
}

/// A job that is ready, where it lies.
pub(super) enum Ready {
    /// Never taken: the place of its row.
    Fresh { ready_ms: u64, sequence: u64, record: JobRecord },
    /// Taken before.
    Again { at_ms: u64, record: HeldRecord },
}

impl Ready {
    pub(super) fn is_expired(&self, now_ms: u64) -> bool {
        let expires_ms = match self {
            Self::Fresh { record, .. } => record.expires_ms(),
            Self::Again { record, .. } => record.expires_ms,
        };
        expires_ms != 0 && expires_ms <= now_ms
    }
}

/// Goes through the jobs of a queue that are ready, those first that have been ready longest. Each has to be taken out
/// before the next one is asked for.
#[derive(Default)]
pub(super) struct ReadyJobs {
    fresh: VecDeque<(u64, u64, JobRecord)>,
}

impl ReadyJobs {
    /// The next one; about so many are wanted.
    pub(super) fn next(
        &mut self,
        step: &mut ShardStep<'_>,
        name: &QueueName,
        wanted: usize,
    ) -> Result<Option<Ready>, JobStoreError> {
        let Some(queue) = step.known(name) else { return Ok(None) };
        let (number, fresh, from) = (queue.number, queue.fresh, queue.from);
        let again = queue.again.first().copied();
        if self.fresh.is_empty() && fresh > 0 {
            let prefix = Key::of(b'w').u16(step.state.number).u32(number).end();
            let start = rows::waiting(step.state.number, number, from.0, from.1);
            let mut bytes = 0;
            for row in step.files.range(&prefix, Bound::Included(start)).take(wanted) {
                let (key, value) = row?;
                let mut at = Reading(&key[prefix.len()..]);
                let (ready_ms, sequence) = (at.u64()?, at.u64()?);
                if ready_ms > step.now_ms {
                    break;
                }
                bytes += value.len();
                let record = JobRecord::decode(&value)?.ok_or_else(rows::damaged)?;
                self.fresh.push_back((ready_ms, sequence, record));
                if bytes > READ_AHEAD_BYTES {
                    break;
                }
            }
        }
        let first_ms = self.fresh.front().map(|(ready_ms, ..)| *ready_ms);
        match again.filter(|(at_ms, _)| first_ms.is_none_or(|first_ms| *at_ms < first_ms)) {
            Some((at_ms, id)) => {
                let (_, record) = step.held_at(name, id)?.ok_or_else(rows::damaged)?;
                Ok(Some(Ready::Again { at_ms, record }))
            }
            None => Ok(self.fresh.pop_front().map(|(ready_ms, sequence, record)| Ready::Fresh {
                ready_ms,
                sequence,
                record,
            })),
        }
    }
}

/// Takes a ready job out of its queue, row and all.
pub(super) fn pop(step: &mut ShardStep<'_>, name: &QueueName, ready: Ready) -> HeldRecord {
    match ready {
        Ready::Fresh { ready_ms, sequence, record } => {
            let queue = step.queue(name);
            queue.fresh_gone(ready_ms);
            queue.from = (ready_ms, sequence + 1);
            let number = queue.number;
            step.step.forget(rows::waiting(step.state.number, number, ready_ms, sequence));
            fresh_record(record)
        }
        Ready::Again { at_ms, record } => {
            step.forget_held(name, at_ms, record.state, record.record.id);
            record
        }
    }
}

fn fresh_record(record: JobRecord) -> HeldRecord {
    let (expires_ms, tries_left) = (record.expires_ms(), record.tries);
    HeldRecord { state: HeldState::ReadyAgain, expires_ms, tries_left, record }
}

fn taken_job(record: HeldRecord) -> TakenJob {
    let HeldRecord { expires_ms, tries_left, record, .. } = record;
    TakenJob { id: record.id, body: record.body, attributes: record.attributes, expires_ms, tries_left }
}

pub(super) fn remove(step: &mut ShardStep<'_>, name: &QueueName, id: JobId) -> Result<bool, JobStoreError> {
    if let Some((at_ms, record)) = step.held_at(name, id)? {
        step.forget_held(name, at_ms, record.state, id);
        return Ok(true);
    }
    let Some((key, _)) = step.waiting_at(name, id)? else { return Ok(false) };
    if let Some(queue) = step.known(name) {
        queue.fresh_gone(ready_ms(id.published_ms(), id.delay_s()));
    }
    step.step.remove(key);
    Ok(true)
}

/// Undoes a lease, if it has not ended: another end is that of somebody else's.
pub(super) fn give_back(step: &mut ShardStep<'_>, lease: &Lease) -> Result<(), JobStoreError> {
    let (name, id) = (&lease.queue, lease.id);
    let Some((at_ms, record)) = step.held_at(name, id)? else { return Ok(()) };
    if record.state == HeldState::Leased && at_ms == lease.end_ms {
        step.unhold(name, at_ms, record.state, id);
        let tries_left = record.tries_left.saturating_add(1);
        let record = HeldRecord { state: HeldState::ReadyAgain, tries_left, ..record };
        // It comes before what was published after it.
        step.hold(name, ready_ms(id.published_ms(), id.delay_s()), &record);
    }
    Ok(())
}

pub(super) fn get(
    step: &mut ShardStep<'_>,
    name: &QueueName,
    id: JobId,
) -> Result<Option<FoundJob>, JobStoreError> {
    let mut found = step.held_at(name, id)?.map(|(_, record)| record);
    if found.is_none() {
        found = step.waiting_at(name, id)?.map(|(_, record)| fresh_record(record));
    }
    // What is in the dead letter has no ttl any more.
    let found = found.map(|record| match record.state {
        HeldState::Dead => HeldRecord { expires_ms: 0, ..record },
        _ => record,
    });
    Ok(found.map(|record| FoundJob { job: taken_job(record), now_ms: step.now_ms }))
}

/// For how long the job that comes next has been ready.
pub(super) fn ready_for_ms(step: &mut ShardStep<'_>, name: &QueueName) -> Result<Option<u64>, JobStoreError> {
    let next = ReadyJobs::default().next(step, name, 1)?;
    Ok(next.map(|ready| match ready {
        Ready::Fresh { ready_ms: since_ms, .. } | Ready::Again { at_ms: since_ms, .. } => {
            step.now_ms.saturating_sub(since_ms)
        }
    }))
}

pub(super) fn peek(step: &mut ShardStep<'_>, name: &QueueName) -> Result<Option<FoundJob>, JobStoreError> {
    let next = ReadyJobs::default().next(step, name, 1)?;
    Ok(next.map(|ready| {
        let record = match ready {
            Ready::Fresh { record, .. } => fresh_record(record),
            Ready::Again { record, .. } => record,
        };
        FoundJob { job: taken_job(record), now_ms: step.now_ms }
    }))
}

#[cfg(test)]
mod tests {
    use super::super::{EmbeddedJobs, EmbeddedJobsOptions};
    use super::*;
    use windfall_contract::Clock;
    use windfall_contract::task_queue::JobStore;

    /// Numbers of queues were used twice once they had come round, and two queues had their jobs in the same rows.
    #[tokio::test]
    async fn no_two_queues_have_one_number_when_numbers_come_round() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || EmbeddedJobs::open(dir.path(), &EmbeddedJobsOptions::default(), Clock::system()).unwrap();
        let names = ["old", "last", "new", "next"];
        let queue = |name: &str| QueueName::new("n", name).unwrap();
        let jobs = |name: &'static str| NewJobs {
            queue: queue(name),
            delay_s: 0,
            ttl_s: 0,
            tries: 1,
            is_versioned: false,
            attributes: Vec::new(),
            bodies: vec![name.into()],
        };
        let store = open();
        store.publish(Shard(0), &[jobs("old")]).await.unwrap();
        store.inner.shards[0].lock().next_queue = u32::MAX;
        store.publish(Shard(0), &[jobs("last"), jobs("new")]).await.unwrap();
        let numbers: Vec<u32> = store.inner.shards[0].lock().names.keys().copied().collect();
        assert_eq!(numbers, [0, 1, u32::MAX]);
        drop(store);
        // The greatest number is in use when it is opened again.
        let store = open();
        store.publish(Shard(0), &[jobs("next")]).await.unwrap();
        for name in names {
            let take = [Take { queue: queue(name), count: 9, ttr_s: 60 }];
            let (_, taken) = store.take(Shard(0), &take).await.unwrap();
            let bodies: Vec<_> = taken[0].jobs.iter().map(|job| job.body.clone()).collect();
            assert_eq!(bodies, [name]);
        }
    }

    /// One failed write refused everything from then on, and nothing told the process to end.
    #[tokio::test]
    async fn a_store_of_which_a_write_has_failed_says_that_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || EmbeddedJobs::open(dir.path(), &EmbeddedJobsOptions::default(), Clock::system()).unwrap();
        let store = open();
        assert_eq!(store.has_ended(), None);
        // As a write that the disk refuses does.
        store.inner.files.give_up();
        let why = store.has_ended().unwrap();
        assert!(why.contains("must be opened again"), "{why}");
        assert!(store.look(Shard(0), &[]).await.is_err());
        drop(store);
        assert_eq!(open().has_ended(), None);
    }
}
