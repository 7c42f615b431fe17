//! A store of jobs on Redis 7: one server, or a Redis Cluster, for any number of processes.
//!
//! All keys of a shard have its hash tag, so that they lie on one node, and a script changes one shard as a whole. `q` is
//! namespace and queue with a slash between them:
//!
//! | key | type | what |
//! |---|---|---|
//! | `{wfq:0003}:s` | string | the number of the shard's last job |
//! | `{wfq:0003}:r:q` | list | jobs without a delay that were never taken |
//! | `{wfq:0003}:b:<ms>:q` | list | jobs with a delay that were never taken and are ready from this time on |
//! | `{wfq:0003}:i:q` | sorted set | the times of these lists |
//! | `{wfq:0003}:x:q` | hash | time → jobs of that list that were deleted before it was due |
//! | `{wfq:0003}:j:q` | hash | id → a job that was taken: leased, ready again or dead |
//! | `{wfq:0003}:q:q` | list | since when, and ids of jobs that are ready again |
//! | `{wfq:0003}:d:q` | list | ids of dead jobs |
//! | `{wfq:0003}:m:q` | hash | how many are ready `n`, delayed `d`, dead `k`; the time `w` up to which lists are counted as ready |
//! | `{wfq:0003}:L` | sorted set | id and queue by the end of the lease |
//! | `{wfq:0003}:Q` | set | the shard's queues |
//! | `{wfq:0003}:o:<hour>:<0 to 255>` | set | marks of jobs that are published at most once; those of far jobs are id and queue |
//! | `{wfq:0003}:v` | sorted set | id and queue of far jobs that were deleted, by the hour until which that is remembered |
//! | `{wfq:0003}:f` | string | the last of these hours of which any was forgotten |
//! | `{wfq:names}:s`, `:k`, `:w` | string, hash, hash | the number of shards; tokens; their limits |
//! | `{wfq:names}:c:…` | string | calls of a limited token in its interval |
//!
//! A job that waits costs one entry of a list, and nothing is moved when it becomes ready: a list is taken from as soon as
//! its time has come. A list is in the order of its jobs' numbers, so a job is found by its id, and a deleted one is
//! overwritten where it lies. A script that is asked to look at many lists or entries stops at a bound, and says so.
//!
//! **Time** is the server's, read inside the scripts.
//!
//! **Durability.** [`RedisJobs::durability`](JobStore::durability) says what `appendfsync` is set to. A server without an
//! append-only file and one that evicts keys are refused, unless an option by name allows them. Redis replicates after it
//! has answered: a fail-over to a replica may lose the last moments.
//!
//! **A server that is away at the start.** [`RedisJobs::open_later`] needs no server; until [`RedisJobs::connect`] has
//! succeeded once, each call is [`JobStoreError::Unavailable`] with the reason.
//!
//! **Doubt.** A call whose connection was lost after it was sent is not sent again where that could do it twice: what it
//! published may be there, and what it took is ready again when its ttr has ended, or dead if that was its last try.
//!
//! **Slots that move.** While a slot of a cluster is on its way to another node, a script on its shard changes nothing: it
//! is asked again until it is there, or the call's time is over.
//!
//! **A full server.** At `maxmemory` a server refuses to publish, and to note that a far job was deleted. Whatever lets jobs
//! go is carried out.
//!
//! Connections live on the runtime on which the store is opened.

mod answers;
mod connected;
mod options;
mod scripts;
mod tokens;

pub use options::RedisJobsOptions;
pub use windfall_redis_link::OpenRedisError;

use crate::checks;
use answers::{array, count, found, held, id, number, parts, text, unexpected};
use async_trait::async_trait;
use connected::{Connected, Way};
use options::{LOOKED_MAX, SWEPT, TENDED_MAX};
use parking_lot::Mutex;
use redis::{ConnectionInfo, Value};
use scripts::{Argument, Known, Scripts};
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::task_queue::{
    DoubtfulJobs, FarJob, FoundJob, JobId, JobStore, JobStoreError, Lease, NewJobs, OnceJob, PublishedFar,
    QUEUES_PAGE, QueueCounts, QueueName, Swept, TAKE_MAX, Take, TakenJobs, Tended, encode_tail,
};
use windfall_redis_link::slot_of;

/// What a script answers for a job that it did not reach.
const NOT_REACHED: u8 = 2;
/// What it answers where there is no room to remember that far jobs are deleted.
const NO_ROOM: u8 = 3;

/// The store of jobs on Redis. Dropped, it closes its connections and ends their tasks.
pub struct RedisJobs {
    options: RedisJobsOptions,
    servers: Vec<ConnectionInfo>,
    scripts: Scripts,
    connected: OnceLock<Connected>,
    /// Why it is not connected, as far as it has been tried.
    why_not: Mutex<Option<String>>,
}

impl RedisJobs {
    /// Connects, looks whether jobs can be kept there, and stays connected from then on.
    ///
    /// # Errors
    /// [`OpenRedisError`] names the place and the remedy.
    pub async fn open(options: RedisJobsOptions) -> Result<Arc<Self>, OpenRedisError> {
        let store = Self::open_later(options)?;
        store.connect().await?;
        Ok(store)
    }

    /// Connects to nothing yet, for a process that shall start though Redis is away.
    ///
    /// # Errors
    /// [`OpenRedisError::Invalid`] alone.
    pub fn open_later(options: RedisJobsOptions) -> Result<Arc<Self>, OpenRedisError> {
        let servers = options.check()?;
        let (scripts, connected) = (Scripts::new(), OnceLock::new());
        Ok(Arc::new(Self { options, servers, scripts, connected, why_not: Mutex::default() }))
    }

    /// Connects, looks whether jobs can be kept there, and stays connected from then on; does nothing where it is
    /// connected. Must be called on the runtime on which the connections shall live.
    ///
    /// # Errors
    /// [`OpenRedisError`]. Where it [may pass](OpenRedisError::may_pass), call it again in a moment.
    pub async fn connect(&self) -> Result<(), OpenRedisError> {
        if self.connected.get().is_some() {
            return Ok(());
        }
        match Connected::make(&self.options, &self.servers).await {
            Ok(connected) => {
                // Of two calls at a time one is as good as the other.
                self.connected.set(connected).ok();
                Ok(())
            }
            Err(error) => {
                *self.why_not.lock() = Some(error.to_string());
                Err(error)
            }
        }
    }

    fn connected(&self) -> Result<&Connected, JobStoreError> {
        self.connected.get().ok_or_else(|| {
            let why = self.why_not.lock().clone();
            JobStoreError::Unavailable(why.unwrap_or_else(|| "Redis was not reached yet".into()))
        })
    }

    /// Calls a script on a shard.
    async fn call(
        &self,
        script: &Known,
        shard: Shard,
        arguments: &[Argument],
        way: Way,
    ) -> Result<Value, JobStoreError> {
        checks::shard(shard, self.options.shards)?;
        self.call_at(script, &self.options.counter(shard), arguments, way).await
    }

    async fn call_at(
        &self,
        script: &Known,
        key: &[u8],
        arguments: &[Argument],
        way: Way,
    ) -> Result<Value, JobStoreError> {
        let (slot, deadline) = (slot_of(key), Instant::now() + self.options.call_timeout());
        let connected = self.connected()?;
        match connected.send(slot, || script.call(false, key, arguments), way, deadline).await? {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                refused(connected.send(slot, || script.call(true, key, arguments), way, deadline).await?)
            }
            answer => refused(answer),
        }
    }

    /// Ends jobs. Far jobs are kept away afterwards.
    async fn end(
        &self,
        shard: Shard,
        jobs: &[(QueueName, JobId)],
        are_far: bool,
    ) -> Result<Vec<bool>, JobStoreError> {
        let script = if are_far { &self.scripts.remove_far } else { &self.scripts.remove };
        let removals_max = if are_far { self.options.far_removals_of_shard() } else { 0 };
        let mut removed = vec![false; jobs.len()];
        let mut asked: Vec<usize> = (0..jobs.len()).collect();
        while !asked.is_empty() {
            let arguments = ended_arguments(removals_max, asked.iter().map(|at| &jobs[*at]));
            let answer = self.call(script, shard, &arguments, Way::Repeats).await?;
            let mut again = Vec::new();
            for (at, one) in asked.iter().zip(&array(answer)?) {
                match number::<u8>(one)? {
                    NOT_REACHED => again.push(*at),
                    NO_ROOM => return Err(JobStoreError::TooManyFarRemovals),
                    found => removed[*at] = found == 1,
                }
            }
            if again.len() == asked.len() {
                return Err(JobStoreError::Unavailable("the script that removes jobs does not go on".into()));
            }
            asked = again;
        }
        Ok(removed)
    }

    async fn end_dead(
        &self,
        shard: Shard,
        queue: &QueueName,
        limit: usize,
        ttl_s: Option<u32>,
    ) -> Result<usize, JobStoreError> {
        let mut arguments = vec![Argument::text(queue.as_str()), Argument::count(limit.min(TAKE_MAX))];
        arguments.extend(ttl_s.map(|ttl_s| Argument::Number(ttl_s.into())));
        loop {
            let answer = self.call(&self.scripts.end_dead, shard, &arguments, Way::Once).await?;
            let [done, is_cut] = parts(answer)?;
            let done = number(&done)?;
            // Nothing but entries of jobs that are gone were passed over.
            if done > 0 || number::<u8>(&is_cut)? == 0 {
                return Ok(done);
            }
        }
    }
}

/// A script says no by an error; nothing was changed.
fn refused(answer: Value) -> Result<Value, JobStoreError> {
    match answer {
        Value::ServerError(error) => {
            Err(JobStoreError::Unavailable(format!("Redis refuses the call: {error}")))
        }
        answer => Ok(answer),
    }
}

fn ended_arguments<'j>(
    removals_max: u64,
    jobs: impl Iterator<Item = &'j (QueueName, JobId)>,
) -> Vec<Argument> {
    let pair =
        |(queue, id): &(QueueName, JobId)| [Argument::text(queue.as_str()), Argument::bytes(id.as_bytes())];
    std::iter::once(Argument::Number(removals_max)).chain(jobs.flat_map(pair)).collect()
}

fn far_arguments(batch: &[FarJob], doubtful: DoubtfulJobs) -> Vec<Argument> {
    let each = |FarJob { queue, record }: &FarJob| {
        [
            Argument::text(queue.as_str()),
            Argument::bytes(record.id.as_bytes()),
            Argument::Number(record.expires_ms()),
            Argument::Number(record.tries.into()),
            Argument::Bytes(record.encode()),
        ]
    };
    let doubtful = Argument::Number((doubtful == DoubtfulJobs::Publish).into());
    std::iter::once(doubtful).chain(batch.iter().flat_map(each)).collect()
}

fn lease_arguments(lease: &Lease) -> [Argument; 3] {
    let Lease { queue, id, end_ms } = lease;
    [Argument::text(queue.as_str()), Argument::bytes(id.as_bytes()), Argument::Number(*end_ms)]
}

fn publish_arguments(batch: &[NewJobs]) -> Vec<Argument> {
    let total: usize = batch.iter().map(|jobs| jobs.bodies.len()).sum();
    let mut arguments = Vec::with_capacity(1 + 6 * batch.len() + total);
    arguments.push(Argument::count(total));
    for jobs in batch {
        let tail = |body: &[u8]| encode_tail(jobs.tries, jobs.ttl_s, &jobs.attributes, body);
        let (flags, _) = tail(&[]);
        arguments.push(Argument::text(jobs.queue.as_str()));
        arguments.push(Argument::Number(jobs.is_versioned.into()));
        arguments.push(Argument::Number(jobs.delay_s.into()));
        arguments.push(Argument::bytes(&jobs.delay_s.to_le_bytes()));
        arguments.push(Argument::bytes(&[flags]));
        arguments.push(Argument::count(jobs.bodies.len()));
        for body in &jobs.bodies {
            // Without flags a tail is the body as it lies.
            arguments.push(Argument::Bytes(if flags == 0 { body.clone() } else { tail(body).1 }));
        }
    }
    arguments
}

fn once_arguments(batch: &[OnceJob]) -> Vec<Argument> {
    let mut arguments = Vec::with_capacity(7 * batch.len());
    for OnceJob { mark, job } in batch {
        let body = job.bodies.first().map_or(&[][..], |body| body);
        let (flags, tail) = encode_tail(job.tries, job.ttl_s, &job.attributes, body);
        arguments.push(Argument::bytes(&mark.0));
        arguments.push(Argument::text(job.queue.as_str()));
        arguments.push(Argument::Number(job.is_versioned.into()));
        arguments.push(Argument::Number(job.delay_s.into()));
        arguments.push(Argument::bytes(&job.delay_s.to_le_bytes()));
        arguments.push(Argument::bytes(&[flags]));
        arguments.push(Argument::Bytes(tail));
    }
    arguments
}

#[async_trait]
impl JobStore for RedisJobs {
    fn shards(&self) -> u16 {
        self.options.shards
    }

    fn durability(&self) -> Durability {
        // Nothing is stored before a server is known, so the least is no lie.
        self.connected.get().map_or(Durability::Process, |connected| connected.durability)
    }

    async fn publish(&self, shard: Shard, batch: &[NewJobs]) -> Result<Vec<Vec<JobId>>, JobStoreError> {
        checks::publish(shard, self.options.shards, batch)?;
        let arguments = publish_arguments(batch);
        let answer = self.call(&self.scripts.publish, shard, &arguments, Way::Once).await?;
        let [now, first] = parts(answer)?;
        let (now_ms, mut sequence): (u64, u64) = (number(&now)?, number(&first)?);
        let ids = batch.iter().map(|jobs| {
            let id = |_: &bytes::Bytes| {
                sequence += 1;
                JobId::new(now_ms, shard, sequence % JobId::SEQUENCES, jobs.delay_s, jobs.is_versioned)
            };
            jobs.bodies.iter().map(id).collect()
        });
        Ok(ids.collect())
    }

    async fn publish_once(
        &self,
        shard: Shard,
        batch: &[OnceJob],
    ) -> Result<Vec<Option<JobId>>, JobStoreError> {
        checks::publish_once(shard, self.options.shards, batch)?;
        let arguments = once_arguments(batch);
        let answer = self.call(&self.scripts.publish_once, shard, &arguments, Way::Repeats).await?;
        let mut answer = array(answer)?.into_iter();
        let now_ms: u64 = number(&answer.next().unwrap_or(Value::Nil))?;
        if answer.len() != batch.len() {
            return Err(JobStoreError::Unusable("the script does not answer for each job".into()));
        }
        let ids = batch.iter().zip(answer).map(|(once, sequence)| {
            let (sequence, job): (u64, _) = (number(&sequence)?, &once.job);
            let id = || JobId::new(now_ms, shard, sequence % JobId::SEQUENCES, job.delay_s, job.is_versioned);
            Ok((sequence != 0).then(id))
        });
        ids.collect()
    }

    async fn publish_far(
        &self,
        shard: Shard,
        batch: &[FarJob],
        doubtful: DoubtfulJobs,
    ) -> Result<Vec<PublishedFar>, JobStoreError> {
        checks::publish_far(shard, self.options.shards, batch)?;
        let arguments = far_arguments(batch, doubtful);
        let answer = array(self.call(&self.scripts.publish_far, shard, &arguments, Way::Repeats).await?)?;
        if answer.len() != batch.len() {
            return Err(JobStoreError::Unusable("the script does not answer for each job".into()));
        }
        let fate = |answer: &Value| {
            Ok(match number::<i64>(answer)? {
                -1 => PublishedFar::Stored,
                -3 => PublishedFar::Doubtful,
                early_ms => u64::try_from(early_ms).map_or(PublishedFar::Over, PublishedFar::Early),
            })
        };
        answer.iter().map(fate).collect()
    }

    async fn take(&self, shard: Shard, batch: &[Take]) -> Result<(u64, Vec<TakenJobs>), JobStoreError> {
        checks::take(shard, self.options.shards, batch)?;
        let mut arguments = vec![Argument::count(LOOKED_MAX)];
        for take in batch {
            arguments.push(Argument::text(take.queue.as_str()));
            arguments.push(Argument::count(take.count));
            arguments.push(Argument::Number(u64::from(take.ttr_s) * 1_000));
        }
        let answer = array(self.call(&self.scripts.take, shard, &arguments, Way::Once).await?)?;
        let mut answer = answer.into_iter();
        let now_ms = number(&answer.next().unwrap_or(Value::Nil))?;
        let taken = answer.map(|one| {
            let [ready_left, is_cut, jobs, expired] = parts(one)?;
            let jobs = array(jobs)?.into_iter().map(held).collect::<Result<_, _>>()?;
            let (ready_left, expired) = (count(&ready_left)?, count(&expired)?);
            Ok(TakenJobs { jobs, ready_left, expired, is_cut: number::<u8>(&is_cut)? == 1 })
        });
        Ok((now_ms, taken.collect::<Result<_, JobStoreError>>()?))
    }

    async fn remove(&self, shard: Shard, jobs: &[(QueueName, JobId)]) -> Result<Vec<bool>, JobStoreError> {
        self.end(shard, jobs, false).await
    }

    async fn remove_far(
        &self,
        shard: Shard,
        jobs: &[(QueueName, JobId)],
    ) -> Result<Vec<bool>, JobStoreError> {
        self.end(shard, jobs, true).await
    }

    async fn give_back(&self, shard: Shard, leases: &[Lease]) -> Result<(), JobStoreError> {
        let mut left = leases;
        while !left.is_empty() {
            let arguments: Vec<_> = left.iter().flat_map(lease_arguments).collect();
            let done: usize =
                number(&self.call(&self.scripts.give_back, shard, &arguments, Way::Once).await?)?;
            // At least one in each call.
            left = left.get(done.max(1)..).unwrap_or_default();
        }
        Ok(())
    }

    async fn look(&self, shard: Shard, queues: &[QueueName]) -> Result<Vec<QueueCounts>, JobStoreError> {
        let arguments: Vec<Argument> = queues.iter().map(|queue| Argument::text(queue.as_str())).collect();
        let answer = array(self.call(&self.scripts.look, shard, &arguments, Way::Repeats).await?)?;
        let counts = answer.chunks_exact(3).map(|three| {
            Ok(QueueCounts { ready: count(&three[0])?, delayed: count(&three[1])?, dead: count(&three[2])? })
        });
        counts.collect()
    }

    async fn ready_for_ms(
        &self,
        shard: Shard,
        queues: &[QueueName],
    ) -> Result<Vec<Option<u64>>, JobStoreError> {
        let arguments: Vec<Argument> = queues.iter().map(|queue| Argument::text(queue.as_str())).collect();
        let answer = array(self.call(&self.scripts.ready_for, shard, &arguments, Way::Repeats).await?)?;
        // Where nothing is ready, the number is below zero.
        answer.iter().map(|ms| Ok(u64::try_from(number::<i64>(ms)?).ok())).collect()
    }

    async fn get(&self, queue: &QueueName, id: JobId) -> Result<Option<FoundJob>, JobStoreError> {
        let arguments = [Argument::text(queue.as_str()), Argument::bytes(id.as_bytes())];
        found(self.call(&self.scripts.get, id.shard(), &arguments, Way::Repeats).await?)
    }

    async fn peek(&self, shard: Shard, queue: &QueueName) -> Result<Option<FoundJob>, JobStoreError> {
        let arguments = [Argument::text(queue.as_str())];
        loop {
            let [now, job] = parts(self.call(&self.scripts.peek, shard, &arguments, Way::Repeats).await?)?;
            // It has taken off what is over, and has not reached the end.
            if !matches!(job, Value::Int(1)) {
                return found(Value::Array(vec![now, job]));
            }
        }
    }

    async fn drop_ready(&self, shard: Shard, queue: &QueueName) -> Result<bool, JobStoreError> {
        let arguments = [Argument::text(queue.as_str())];
        let more = self.call(&self.scripts.drop_ready, shard, &arguments, Way::Repeats).await?;
        Ok(number::<u8>(&more)? == 1)
    }

    async fn dead_head(&self, shard: Shard, queue: &QueueName) -> Result<Option<JobId>, JobStoreError> {
        let arguments = [Argument::text(queue.as_str())];
        match self.call(&self.scripts.dead_head, shard, &arguments, Way::Repeats).await? {
            Value::Nil | Value::Boolean(false) => Ok(None),
            found => id(found).map(Some),
        }
    }

    async fn respawn(
        &self,
        shard: Shard,
        queue: &QueueName,
        limit: usize,
        ttl_s: u32,
    ) -> Result<usize, JobStoreError> {
        self.end_dead(shard, queue, limit, Some(ttl_s)).await
    }

    async fn drop_dead(&self, shard: Shard, queue: &QueueName, limit: usize) -> Result<usize, JobStoreError> {
        self.end_dead(shard, queue, limit, None).await
    }

    async fn tend(&self, shard: Shard) -> Result<Tended, JobStoreError> {
        let arguments = [Argument::count(TENDED_MAX)];
        let answer = self.call(&self.scripts.tend, shard, &arguments, Way::Repeats).await?;
        let [again, dead, expired, is_cut] = parts(answer)?;
        let is_cut = number::<u8>(&is_cut)? == 1;
        Ok(Tended { again: count(&again)?, dead: count(&dead)?, expired: count(&expired)?, is_cut })
    }

    async fn sweep(&self, shard: Shard, cursor: u64) -> Result<Swept, JobStoreError> {
        let arguments = [Argument::Number(cursor), Argument::count(SWEPT.0), Argument::count(SWEPT.1)];
        let answer = self.call(&self.scripts.sweep, shard, &arguments, Way::Repeats).await?;
        let [cursor, expired, forgotten, far_removals] = parts(answer)?;
        let (expired, forgotten) = (count(&expired)?, count(&forgotten)?);
        Ok(Swept { cursor: number(&cursor)?, expired, forgotten, far_removals: count(&far_removals)? })
    }

    async fn queues(&self, shard: Shard, cursor: u64) -> Result<(u64, Vec<QueueName>), JobStoreError> {
        checks::shard(shard, self.options.shards)?;
        let mut key = self.options.counter(shard);
        key.pop();
        key.push(b'Q');
        let mut command = redis::cmd("SSCAN");
        command.arg(&key).arg(cursor).arg("COUNT").arg(QUEUES_PAGE);
        let deadline = Instant::now() + self.options.call_timeout();
        let sent = self.connected()?.send(slot_of(&key), || command.clone(), Way::Repeats, deadline);
        let [next, names] = parts(refused(sent.await?)?)?;
        let read = |name: &Value| QueueName::parse(text(name)?).map_err(|_| unexpected(name));
        let names = array(names)?.iter().map(read).collect::<Result<_, _>>()?;
        Ok((number(&next)?, names))
    }
}
