//! The queues of one pool: between the API and the store.
//!
//! [`Queues`] gathers calls, finds the shard that has a job, keeps consumers waiting who poll, and gives back what
//! reached nobody; its task sees to leases that end, and wakes those who poll for what other processes have published.

mod calls;
mod deliveries;
mod far;
mod polls;
mod tending;

use crate::gather::{Gather, GatherError, bytes_of};
use crate::health::Health;
use crate::metrics::QueueCounters;
use crate::room::{Room, Taken};
use calls::{NewPiece, TakenPiece};
use deliveries::Giving;
use parking_lot::Mutex;
use polls::Polls;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{
    FoundJob, JobId, JobStore, JobStoreError, NewJobs, QueueCounts, QueueName, TAKE_MAX, Take,
};

pub(crate) use calls::Kept;
pub(crate) use deliveries::{Deliveries, Delivery};
pub use far::FarJobs;
pub(crate) use polls::PollLimits;

/// How long a stop waits for jobs to be given back.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(2);
/// How often a call that finds nothing but jobs that are over asks again, at most.
const CUT_MAX: usize = 1_000;

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
    /// There is no memory for the answer.
    NoRoom,
    /// So many jobs that are over lie before the next one that this call has not reached it.
    TooManyOver,
    /// Too many consumers poll.
    TooManyPolls,
    /// Too many consumers poll with one token.
    TooManyPollsOfToken,
    /// The store remembers as many deletions of far jobs as it may.
    TooManyFarRemovals,
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
        match error {
            JobStoreError::TooManyFarRemovals => Self::TooManyFarRemovals,
            error => Self::Store(error),
        }
    }
}

/// The queues of a pool. Dropped, it ends its task.
pub(crate) struct Queues {
    inner: Arc<Inner>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    store: Arc<dyn JobStore>,
    far: Option<FarJobs>,
    /// The calls that publish far jobs, which go on though their callers hang up.
    far_publishing: Mutex<JoinSet<()>>,
    health: Arc<Health>,
    publishing: Gather<NewPiece, Vec<JobId>>,
    taking: Gather<Take, TakenPiece>,
    removing: Gather<(QueueName, JobId), bool>,
    giving: Arc<Giving>,
    /// The memory of what is on its way to consumers.
    answers: Arc<Room>,
    looking: Gather<Vec<QueueName>, Vec<QueueCounts>>,
    polls: Polls,
    counters: Arc<QueueCounters>,
    leaving: CancellationToken,
    random: RandomState,
    turns: AtomicU64,
}

impl Queues {
    /// Begins. Must be called within a tokio runtime.
    pub(crate) fn start(
        store: Arc<dyn JobStore>,
        far: Option<FarJobs>,
        counters: Arc<QueueCounters>,
        limits: PollLimits,
        answers: Arc<Room>,
    ) -> Self {
        let health = Health::new(store.shards());
        let start = || Arc::clone(&health);
        let giving = Arc::new(Gather::start(start(), calls::giving(&store)));
        let inner = Arc::new(Inner {
            publishing: Gather::start(start(), calls::publishing(&store)),
            taking: Gather::start(start(), calls::taking(&store, &giving, &answers, &counters)),
            removing: Gather::start(start(), calls::removing(&store)),
            looking: Gather::start(start(), calls::looking(&store)),
            health: start(),
            giving,
            answers,
            store,
            far,
            far_publishing: Mutex::default(),
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
        let mut far_publishing = std::mem::take(&mut *self.inner.far_publishing.lock());
        // What is still being taken comes back to nobody, and has to be given back too.
        let close = async {
            self.inner.taking.close().await;
            self.inner.giving.close().await;
            while far_publishing.join_next().await.is_some() {}
        };
        if tokio::time::timeout(GIVE_BACK_WITHIN, close).await.is_err() {
            tracing::warn!(
                "the store was too slow to take back jobs, which are ready when their ttr ends, or to publish jobs for later"
            );
        }
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            keeper.abort();
            // Aborted, or it had ended: both are an end.
            keeper.await.ok();
        }
    }

    /// Publishes jobs to the shard whose turn it is, or as timers where they are for later. `kept` lives until the store has
    /// answered, whether or not the caller waits for it.
    pub(crate) async fn publish(&self, jobs: NewJobs, kept: Kept) -> Result<Vec<JobId>, QueueError> {
        let (queue, delay_s) = (jobs.queue.clone(), jobs.delay_s);
        let (jobs, kept) = match self.publish_far(jobs, kept).await? {
            Ok(ids) => {
                self.inner.counters.produced(&queue, ids.len());
                return Ok(ids);
            }
            Err(near) => near,
        };
        let bytes = bytes_of(&jobs.bodies);
        let ids = self.inner.publishing.ask(None, NewPiece { jobs, kept }, bytes).await?;
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
        if got.jobs().is_empty() && !wanted.timeout.is_zero() {
            let end = tokio::time::Instant::now() + wanted.timeout;
            let poll = inner.polls.begin(&wanted.queues, wanted.poller)?;
            loop {
                // Again, now that nothing can be published unnoticed.
                got = inner.take_now(&wanted.queues, 1, wanted.ttr_s).await?;
                if !got.jobs().is_empty() {
                    break;
                }
                tokio::select! {
                    () = poll.woken() => {}
                    () = tokio::time::sleep_until(end) => break,
                    () = inner.leaving.cancelled() => break,
                }
            }
        }
        Ok(got)
    }

    /// The answer with these jobs goes out now; what is returned is to live as long as it is in memory.
    pub(crate) fn claim(&self, got: Deliveries) -> Taken {
        for delivery in got.jobs() {
            let waited_ms = delivery.now_ms.saturating_sub(delivery.job.id.published_ms());
            self.inner.counters.consumed(&delivery.queue, waited_ms);
        }
        got.claim()
    }

    /// Acknowledges or cancels a job. Whether it was there.
    pub(crate) async fn remove(&self, queue: &QueueName, id: JobId) -> Result<bool, QueueError> {
        if id.shard().0 >= self.inner.store.shards() {
            return Ok(false);
        }
        let was_there = self.inner.removing.ask(Some(id.shard()), (queue.clone(), id), 64).await?;
        Ok(was_there || self.inner.remove_far(queue, id).await?)
    }

    /// A job, wherever it is.
    pub(crate) async fn get(&self, queue: &QueueName, id: JobId) -> Result<Option<FoundJob>, QueueError> {
        if id.shard().0 >= self.inner.store.shards() {
            return Ok(None);
        }
        match self.inner.store.get(queue, id).await? {
            None => self.inner.get_far(queue, id).await,
            found => Ok(found),
        }
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
        let looks = self.inner.look_everywhere(std::slice::from_ref(queue)).await?;
        let mut all = QueueCounts::default();
        for (_, looked) in looks {
            // A size that leaves out a part would be a lie.
            all += looked?[0];
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
            let mut cursor = 0;
            loop {
                let (next, page) = self.inner.store.queues(shard, cursor).await?;
                names.extend(page);
                if next == 0 {
                    break;
                }
                cursor = next;
            }
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
        self.inner.far_publishing.lock().abort_all();
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

    /// Takes what is ready now. Shards that do not answer are passed over, unless none does. Where nothing came and a shard that
    /// answers has refused to let jobs go, that is the answer: nobody knows that there is none.
    async fn take_now(
        &self,
        queues: &[QueueName],
        count: usize,
        ttr_s: u32,
    ) -> Result<Deliveries, QueueError> {
        let mut got = Deliveries::new(Vec::new(), &self.giving, &self.answers);
        // Which shard has refused jobs of which queue.
        let mut refused: Option<((Shard, usize), QueueError)> = None;
        if let [queue] = queues {
            // A busy queue has jobs in each shard, so the first look is mostly the last.
            let shard = Shard(self.random_shard());
            if self.is_asked(shard) {
                let asked = self.take_from(shard, queue, count, ttr_s, &mut got).await;
                if self.store.shards() == 1 {
                    return asked.map(|()| got);
                }
                match asked {
                    Ok(()) => {}
                    // Busy is busy everywhere, and there is one room.
                    Err(error @ (QueueError::Busy | QueueError::NoRoom)) => return Err(error),
                    Err(error) => refused = Some(((shard, 0), error)),
                }
            }
            if got.is_enough(count) {
                return Ok(got);
            }
        }
        let looks = self.look(queues).await?;
        // One that does not answer a look either is away, and passed over; one that has nothing has refused nothing.
        let has_some =
            |shard: Shard, at: usize| looks.iter().any(|(own, counts)| *own == shard && counts[at].ready > 0);
        let mut refused = refused.filter(|((shard, at), _)| has_some(*shard, *at));
        for (at, queue) in queues.iter().enumerate() {
            for (shard, counts) in &looks {
                if got.is_enough(count) || counts[at].ready == 0 {
                    continue;
                }
                match self.take_from(*shard, queue, count, ttr_s, &mut got).await {
                    Ok(()) => refused = refused.filter(|(place, _)| *place != (*shard, at)),
                    Err(error) => refused = Some(((*shard, at), error)),
                }
            }
        }
        match refused {
            Some((_, error)) if got.jobs().is_empty() => Err(error),
            _ => Ok(got),
        }
    }

    /// Whether a shard is asked that need not be.
    fn is_asked(&self, shard: Shard) -> bool {
        self.health.is_well(shard) || !self.health.is_any_well()
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
            let missing = count - got.jobs().len();
            let take = Take { queue: queue.clone(), count: missing, ttr_s };
            // About a thousand jobs go with one call.
            let asked = self.taking.ask(Some(shard), take, missing * 4_096).await;
            let taken = match asked {
                Ok(taken) => taken,
                // What there is already goes out: it is leased.
                Err(_) if !got.jobs().is_empty() => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if taken.is_refused {
                return if got.jobs().is_empty() { Err(QueueError::NoRoom) } else { Ok(()) };
            }
            got.add(taken.deliveries);
            if !taken.is_cut || got.is_enough(count) {
                return Ok(());
            }
        }
        // Those that are over are gone for good, so whoever asks again gets further.
        if got.jobs().is_empty() { Err(QueueError::TooManyOver) } else { Ok(()) }
    }

    /// How many jobs of these queues each shard has that answers.
    async fn look(&self, queues: &[QueueName]) -> Result<Vec<(Shard, Vec<QueueCounts>)>, QueueError> {
        let (mut looks, mut failed) = (Vec::new(), None);
        for (shard, looked) in self.ask_look(queues, |shard| self.is_asked(shard)).await? {
            match looked {
                Ok(counts) => looks.push((shard, counts)),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if looks.is_empty() => Err(error),
            _ => Ok(looks),
        }
    }

    /// The same, with the answers of all shards.
    async fn look_everywhere(&self, queues: &[QueueName]) -> Result<Looks, QueueError> {
        self.ask_look(queues, |_| true).await
    }

    async fn ask_look(
        &self,
        queues: &[QueueName],
        is_asked: impl Fn(Shard) -> bool,
    ) -> Result<Looks, QueueError> {
        let mut asked = Vec::new();
        for shard in self.shards().filter(|shard| is_asked(*shard)) {
            // About a thousand queues go with one call.
            let bytes = queues.len() * 4_096;
            asked.push((shard, self.looking.send(Some(shard), queues.to_vec(), bytes)?));
        }
        let mut looks = Vec::with_capacity(asked.len());
        for (shard, answer) in asked {
            let stopped = |_| JobStoreError::Unavailable("the call was given up".into());
            let counts = answer.await.map_err(stopped).and_then(|answer| answer);
            let counts = counts.and_then(|counts| match counts.len() == queues.len() {
                true => Ok(counts),
                false => Err(JobStoreError::Unusable("it does not count each queue".into())),
            });
            looks.push((shard, counts.map_err(QueueError::Store)));
        }
        Ok(looks)
    }
}

/// What each shard has said of some queues.
type Looks = Vec<(Shard, Result<Vec<QueueCounts>, QueueError>)>;
