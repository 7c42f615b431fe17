//! The queues of one pool: between the API and the store.
//!
//! [`Queues`] gathers calls, finds the shard that has a job, keeps consumers waiting who poll, and gives back what
//! reached nobody; its task sees to leases that end, and wakes those who poll for what other processes have published.

mod polls;
mod tending;

use crate::gather::{Call, Gather, GatherError, bytes_of};
use crate::metrics::QueueCounters;
use parking_lot::Mutex;
use polls::Polls;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{
    FoundJob, JobId, JobStore, JobStoreError, NewJobs, QueueCounts, QueueName, TAKE_MAX, Take, TakenJob,
    TakenJobs,
};

pub(crate) use polls::PollLimits;

/// How long a stop waits for jobs to be given back.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(2);
/// How often a call that finds nothing but jobs that are over asks again, at most.
const CUT_MAX: usize = 1_000;

/// A job that is on its way to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) queue: QueueName,
    pub(crate) job: TakenJob,
    /// The store's clock when it was taken.
    pub(crate) now_ms: u64,
}

/// What a consumer asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// The leftmost comes first.
    pub(crate) queues: Vec<QueueName>,
    pub(crate) count: usize,
    pub(crate) ttr_s: u32,
    pub(crate) timeout: Duration,
    /// Whose poll it is, for the limit of each.
    pub(crate) poller: u64,
}

/// Why a call was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueueError {
    /// Too many calls wait for the store.
    Busy,
    /// Too many consumers poll.
    TooManyPolls,
    /// Too many consumers poll with one token.
    TooManyPollsOfToken,
    /// The store's own.
    Store(JobStoreError),
}

impl From<GatherError> for QueueError {
    fn from(error: GatherError) -> Self {
        match error {
            GatherError::Busy => Self::Busy,
            GatherError::Store(error) => Self::Store(error),
        }
    }
}

impl From<JobStoreError> for QueueError {
    fn from(error: JobStoreError) -> Self {
        Self::Store(error)
    }
}

/// The queues of a pool. Dropped, it ends its task.
pub(crate) struct Queues {
    inner: Arc<Inner>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    store: Arc<dyn JobStore>,
    publishing: Gather<NewJobs, Vec<JobId>>,
    taking: Gather<Take, (QueueName, u64, TakenJobs)>,
    removing: Gather<(QueueName, JobId), bool>,
    giving: Arc<Gather<(QueueName, JobId), ()>>,
    looking: Gather<QueueName, QueueCounts>,
    polls: Polls,
    counters: Arc<QueueCounters>,
    leaving: CancellationToken,
    random: RandomState,
    turns: AtomicU64,
}

impl Queues {
    /// Begins. Must be called within a tokio runtime.
    pub(crate) fn start(store: Arc<dyn JobStore>, counters: Arc<QueueCounters>, limits: PollLimits) -> Self {
        let shards = store.shards();
        let giving = Arc::new(Gather::start(shards, giving(&store), Arc::new(|_, ()| {})));
        let giver = Arc::clone(&giving);
        let unclaimed = Arc::new(move |shard: Shard, (queue, _, taken): (QueueName, u64, TakenJobs)| {
            for job in taken.jobs {
                give_back(&giver, shard, queue.clone(), job.id);
            }
        });
        let inner = Arc::new(Inner {
            publishing: Gather::start(shards, publishing(&store), Arc::new(|_, _| {})),
            taking: Gather::start(shards, taking(&store), unclaimed),
            removing: Gather::start(shards, removing(&store), Arc::new(|_, _| {})),
            looking: Gather::start(shards, looking(&store), Arc::new(|_, _| {})),
            giving,
            store,
            polls: Polls::new(limits),
            counters,
            leaving: CancellationToken::new(),
            random: RandomState::new(),
            turns: AtomicU64::new(0),
        });
        let keeper = tokio::spawn(tending::keep(Arc::clone(&inner)));
        Self { inner, keeper: Mutex::new(Some(keeper)) }
    }

    /// Ends all polls with nothing; calls still work.
    pub(crate) fn leave(&self) {
        self.inner.leaving.cancel();
    }

    /// Gives back what has reached nobody, and ends its tasks.
    pub(crate) async fn close(&self) {
        self.leave();
        if tokio::time::timeout(GIVE_BACK_WITHIN, self.inner.giving.close()).await.is_err() {
            tracing::warn!("the store was too slow to take back jobs; they are ready when their ttr ends");
        }
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            keeper.abort();
            // Aborted, or it had ended: both are an end.
            keeper.await.ok();
        }
    }

    /// Publishes jobs to the shard whose turn it is.
    pub(crate) async fn publish(&self, jobs: NewJobs) -> Result<Vec<JobId>, QueueError> {
        let (queue, delay_s) = (jobs.queue.clone(), jobs.delay_s);
        let bytes = bytes_of(&jobs.bodies);
        let ids = self.inner.publishing.ask(None, jobs, bytes).await?;
        self.inner.counters.produced(&queue, ids.len());
        if delay_s == 0 {
            self.inner.polls.wake(&queue, ids.len());
        }
        Ok(ids)
    }

    /// Takes jobs; waits for one where there is none and the consumer polls.
    pub(crate) async fn consume(&self, wanted: Wanted) -> Result<Deliveries, QueueError> {
        let inner = &self.inner;
        let mut got = inner.take_now(&wanted.queues, wanted.count, wanted.ttr_s).await?;
        if got.jobs.is_empty() && !wanted.timeout.is_zero() {
            let end = tokio::time::Instant::now() + wanted.timeout;
            let poll = inner.polls.begin(&wanted.queues, wanted.poller)?;
            loop {
                // Again, now that nothing can be published unnoticed.
                got = inner.take_now(&wanted.queues, 1, wanted.ttr_s).await?;
                if !got.jobs.is_empty() {
                    break;
                }
                tokio::select! {
                    () = poll.woken() => {}
                    () = tokio::time::sleep_until(end) => break,
                    () = inner.leaving.cancelled() => break,
                }
            }
        }
        for delivery in &got.jobs {
            let waited_ms = delivery.now_ms.saturating_sub(delivery.job.id.published_ms());
            inner.counters.consumed(&delivery.queue, waited_ms);
        }
        Ok(got)
    }

    /// Acknowledges or cancels a job. Whether it was there.
    pub(crate) async fn remove(&self, queue: &QueueName, id: JobId) -> Result<bool, QueueError> {
        if id.shard().0 >= self.inner.store.shards() {
            return Ok(false);
        }
        Ok(self.inner.removing.ask(Some(id.shard()), (queue.clone(), id), 64).await?)
    }

    /// A job, wherever it is.
    pub(crate) async fn get(&self, queue: &QueueName, id: JobId) -> Result<Option<FoundJob>, QueueError> {
        if id.shard().0 >= self.inner.store.shards() {
            return Ok(None);
        }
        Ok(self.inner.store.get(queue, id).await?)
    }

    /// The job that about comes next.
    pub(crate) async fn peek(&self, queue: &QueueName) -> Result<Option<FoundJob>, QueueError> {
        let looks = self.inner.look(std::slice::from_ref(queue)).await?;
        for (shard, counts) in looks {
            if counts[0].ready > 0
                && let Some(found) = self.inner.store.peek(shard, queue).await?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// How many jobs a queue has.
    pub(crate) async fn counts(&self, queue: &QueueName) -> Result<QueueCounts, QueueError> {
        let mut all = QueueCounts::default();
        for (_, counts) in self.inner.look(std::slice::from_ref(queue)).await? {
            all += counts[0];
        }
        Ok(all)
    }

    /// Ends all jobs that are ready.
    pub(crate) async fn drop_ready(&self, queue: &QueueName) -> Result<(), QueueError> {
        for shard in self.inner.shards() {
            while self.inner.store.drop_ready(shard, queue).await? {}
        }
        Ok(())
    }

    /// The job that has been in the dead letter longest, of about all shards.
    pub(crate) async fn dead_head(&self, queue: &QueueName) -> Result<Option<JobId>, QueueError> {
        let mut first: Option<JobId> = None;
        for shard in self.inner.shards() {
            let head = self.inner.store.dead_head(shard, queue).await?;
            first = match (first, head) {
                (Some(first), Some(head)) if head.published_ms() < first.published_ms() => Some(head),
                (first, head) => first.or(head),
            };
        }
        Ok(first)
    }

    /// Makes dead jobs ready again. How many.
    pub(crate) async fn respawn(&self, queue: &QueueName, limit: u64, ttl_s: u32) -> Result<u64, QueueError> {
        let count = self.end_dead(queue, limit, Some(ttl_s)).await?;
        self.inner.polls.wake(queue, usize::try_from(count).unwrap_or(usize::MAX));
        Ok(count)
    }

    /// Ends dead jobs. How many.
    pub(crate) async fn drop_dead(&self, queue: &QueueName, limit: u64) -> Result<u64, QueueError> {
        self.end_dead(queue, limit, None).await
    }

    async fn end_dead(&self, queue: &QueueName, limit: u64, ttl_s: Option<u32>) -> Result<u64, QueueError> {
        let store = &self.inner.store;
        let mut done = 0;
        for shard in self.inner.shards() {
            while done < limit {
                let most = usize::try_from(limit - done).unwrap_or(TAKE_MAX).min(TAKE_MAX);
                let count = match ttl_s {
                    Some(ttl_s) => store.respawn(shard, queue, most, ttl_s).await?,
                    None => store.drop_dead(shard, queue, most).await?,
                };
                done += count as u64;
                if count == 0 {
                    break;
                }
            }
        }
        Ok(done)
    }

    /// All queues, in order.
    pub(crate) async fn names(&self) -> Result<Vec<QueueName>, QueueError> {
        let mut names = Vec::new();
        for shard in self.inner.shards() {
            names.extend(self.inner.store.queues(shard).await?);
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.lock().take() {
            keeper.abort();
        }
    }
}

impl Inner {
    fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        // Each caller begins at another one, so that none is always last.
        let count = self.store.shards();
        let first = self.random_shard();
        (0..count).map(move |at| Shard((first + at) % count))
    }

    /// A shard that no habit of callers leads to: a turn of its own for each call could make a queue's consumers see
    /// some of its shards only.
    fn random_shard(&self) -> u16 {
        self.random_of(self.store.shards())
    }

    /// A number below `end`.
    fn random_of(&self, end: u16) -> u16 {
        let mut hasher = self.random.build_hasher();
        hasher.write_u64(self.turns.fetch_add(1, Relaxed));
        u16::try_from(hasher.finish() % u64::from(end.max(1))).unwrap_or(0)
    }

    /// Takes what is ready now.
    async fn take_now(
        self: &Arc<Self>,
        queues: &[QueueName],
        count: usize,
        ttr_s: u32,
    ) -> Result<Deliveries, QueueError> {
        let mut got = Deliveries { jobs: Vec::new(), inner: Arc::clone(self), is_claimed: false };
        if let [queue] = queues {
            // A busy queue has jobs in each shard, so the first look is mostly the last.
            let shard = Shard(self.random_shard());
            self.take_from(shard, queue, count, ttr_s, &mut got).await?;
            if got.jobs.len() >= count || self.store.shards() == 1 {
                return Ok(got);
            }
        }
        let looks = self.look(queues).await?;
        for (at, queue) in queues.iter().enumerate() {
            for (shard, counts) in &looks {
                if got.jobs.len() < count && counts[at].ready > 0 {
                    self.take_from(*shard, queue, count, ttr_s, &mut got).await?;
                }
            }
        }
        Ok(got)
    }

    async fn take_from(
        &self,
        shard: Shard,
        queue: &QueueName,
        count: usize,
        ttr_s: u32,
        got: &mut Deliveries,
    ) -> Result<(), QueueError> {
        for _ in 0..CUT_MAX {
            let missing = count - got.jobs.len();
            let take = Take { queue: queue.clone(), count: missing, ttr_s };
            // About a thousand jobs go with one call.
            let asked = self.taking.ask(Some(shard), take, missing * 4_096).await;
            let (_, now_ms, taken) = match asked {
                Ok(answer) => answer,
                // What there is already goes out: it is leased.
                Err(_) if !got.jobs.is_empty() => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let deliveries = taken.jobs.into_iter().map(|job| Delivery { queue: queue.clone(), job, now_ms });
            got.jobs.extend(deliveries);
            if !taken.is_cut || got.jobs.len() >= count {
                break;
            }
        }
        Ok(())
    }

    /// How many jobs of these queues each shard has.
    async fn look(&self, queues: &[QueueName]) -> Result<Vec<(Shard, Vec<QueueCounts>)>, QueueError> {
        let mut asked = Vec::new();
        for shard in self.shards() {
            for queue in queues {
                asked.push((shard, self.looking.send(Some(shard), queue.clone(), 64)?));
            }
        }
        let mut looks: Vec<(Shard, Vec<QueueCounts>)> = Vec::new();
        for (shard, answer) in asked {
            let stopped = |_| JobStoreError::Unavailable("the call was given up".into());
            let counts = answer.await.map_err(stopped)??;
            match looks.last_mut() {
                Some((of, all)) if *of == shard => all.push(counts),
                _ => looks.push((shard, vec![counts])),
            }
        }
        Ok(looks)
    }
}

/// Jobs that were taken. Those that nobody has claimed when it is dropped are given back: their consumer has gone.
pub(crate) struct Deliveries {
    jobs: Vec<Delivery>,
    inner: Arc<Inner>,
    is_claimed: bool,
}

impl Deliveries {
    pub(crate) fn jobs(&self) -> &[Delivery] {
        &self.jobs
    }

    /// The answer goes out now.
    pub(crate) fn claim(mut self) {
        self.is_claimed = true;
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        if !self.is_claimed {
            for delivery in self.jobs.drain(..) {
                let id = delivery.job.id;
                give_back(&self.inner.giving, id.shard(), delivery.queue, id);
            }
        }
    }
}

fn give_back(giving: &Gather<(QueueName, JobId), ()>, shard: Shard, queue: QueueName, id: JobId) {
    // A store that is too busy gets it back when its lease ends.
    giving.send(Some(shard), (queue, id), 64).ok();
}

/// Merges what differs in the bodies alone, so that a store writes it at once.
fn publishing(store: &Arc<dyn JobStore>) -> Call<NewJobs, Vec<JobId>> {
    let store = Arc::clone(store);
    Box::new(move |shard, items: Vec<NewJobs>| {
        let store = Arc::clone(&store);
        Box::pin(async move {
            let mut groups: Vec<NewJobs> = Vec::new();
            let mut places = Vec::with_capacity(items.len());
            for mut item in items {
                let same = |group: &NewJobs| {
                    group.queue == item.queue
                        && (group.delay_s, group.ttl_s, group.tries) == (item.delay_s, item.ttl_s, item.tries)
                        && group.is_versioned == item.is_versioned
                        && group.attributes == item.attributes
                };
                // Those that come together are mostly alike; looking further would cost more than it saves.
                let alike = groups.iter().rposition(same).filter(|at| groups.len() - at <= 8);
                let count = item.bodies.len();
                let at = match alike {
                    Some(at) => {
                        groups[at].bodies.append(&mut item.bodies);
                        at
                    }
                    None => {
                        groups.push(item);
                        groups.len() - 1
                    }
                };
                places.push((at, count));
            }
            let ids = store.publish(shard, &groups).await?;
            let mut ids: Vec<_> = ids.into_iter().map(Vec::into_iter).collect();
            let answer = |(at, count): (usize, usize)| {
                let ids = ids.get_mut(at).map(|ids| ids.by_ref().take(count).collect());
                ids.unwrap_or_default()
            };
            Ok(places.into_iter().map(answer).collect())
        })
    })
}

fn taking(store: &Arc<dyn JobStore>) -> Call<Take, (QueueName, u64, TakenJobs)> {
    let store = Arc::clone(store);
    Box::new(move |shard, items: Vec<Take>| {
        let store = Arc::clone(&store);
        Box::pin(async move {
            let (now_ms, taken) = store.take(shard, &items).await?;
            Ok(items.into_iter().zip(taken).map(|(take, taken)| (take.queue, now_ms, taken)).collect())
        })
    })
}

fn removing(store: &Arc<dyn JobStore>) -> Call<(QueueName, JobId), bool> {
    let store = Arc::clone(store);
    Box::new(move |shard, jobs: Vec<(QueueName, JobId)>| {
        let store = Arc::clone(&store);
        Box::pin(async move { store.remove(shard, &jobs).await })
    })
}

fn giving(store: &Arc<dyn JobStore>) -> Call<(QueueName, JobId), ()> {
    let store = Arc::clone(store);
    Box::new(move |shard, jobs: Vec<(QueueName, JobId)>| {
        let store = Arc::clone(&store);
        Box::pin(async move {
            store.give_back(shard, &jobs).await?;
            Ok(vec![(); jobs.len()])
        })
    })
}

fn looking(store: &Arc<dyn JobStore>) -> Call<QueueName, QueueCounts> {
    let store = Arc::clone(store);
    Box::new(move |shard, queues: Vec<QueueName>| {
        let store = Arc::clone(&store);
        Box::pin(async move { store.look(shard, &queues).await })
    })
}
