//! Many calls, one push: what is asked for within a moment goes to the store together, one call per shard.
//!
//! What belongs to no shard in particular goes to one shard per flush, in turn: one push of many records into one list
//! costs the store far less than the same records in many lists. For the same reason it gathers while such a flush is on
//! its way, for [`HOLD`] at most: the busier the store is, the more goes with each push. Callers that have their answers
//! come again at once, so nothing waits longer than for as many callers as there were last: one caller alone waits for
//! nobody. Where half of the callers make a push of [`PUSH_ITEMS`], they go without the other half: while the store works
//! for the one half, the other one gets its answers and comes again.

use crate::options::TimersOptions;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use windfall_contract::due::{Shard, StoreError};

/// A call to the store with all items of a flush: one answer for each, in order.
pub(super) type StoreCall<A> = Pin<Box<dyn Future<Output = Result<Vec<A>, StoreError>> + Send>>;
type MakeCall<I, A> = Box<dyn Fn(Shard, Vec<I>) -> StoreCall<A> + Send>;

/// Pieces that wait for the collector at most; the quotas of items and bytes are met long before.
const PIECES_MAX: usize = 16_384;

/// How long pieces for any shard wait at most for the answer to the flush before them.
const HOLD: Duration = Duration::from_millis(5);

/// Items for any shard that are a push of their own: more of them in one push hardly cost the store less each.
const PUSH_ITEMS: usize = 256;

/// What one flush made of a piece.
pub(super) type Answers<A> = Result<Vec<A>, StoreError>;

/// Why nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Too much waits already.
    Busy,
    /// It takes nothing any more.
    Closing,
}

/// Gathers items of many callers.
pub(super) struct GroupCommit<I, A> {
    pieces: Mutex<Option<mpsc::Sender<Piece<I, A>>>>,
    load: Arc<Load>,
    collector: Mutex<Option<JoinHandle<()>>>,
}

/// Items of one caller that go to one shard.
struct Piece<I, A> {
    /// `None`: any shard will do.
    shard: Option<Shard>,
    items: Vec<I>,
    reply: oneshot::Sender<Answers<A>>,
    _loaded: Loaded,
}

/// What was taken and has no answer yet.
struct Load {
    tasks: AtomicUsize,
    bytes: AtomicUsize,
    tasks_max: usize,
    bytes_max: usize,
}

/// A part of the load, given back when it is dropped.
struct Loaded {
    load: Arc<Load>,
    tasks: usize,
    bytes: usize,
}

impl Load {
    fn take(self: &Arc<Self>, tasks: usize, bytes: usize) -> Option<Loaded> {
        let tasks_now = self.tasks.fetch_add(tasks, Ordering::Relaxed) + tasks;
        let bytes_now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let loaded = Loaded { load: Arc::clone(self), tasks, bytes };
        (tasks_now <= self.tasks_max && bytes_now <= self.bytes_max).then_some(loaded)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.load.tasks.fetch_sub(self.tasks, Ordering::Relaxed);
        self.load.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<I: Send + 'static, A: Send + 'static> GroupCommit<I, A> {
    pub fn start(options: &TimersOptions, shards: u16, call: MakeCall<I, A>) -> Self {
        Self::run(options, shards, call, false)
    }

    /// The same for items that are not sent where their caller has gone before they are: it may have asked for something
    /// else since, which these must not undo.
    pub fn start_for_callers(options: &TimersOptions, shards: u16, call: MakeCall<I, A>) -> Self {
        Self::run(options, shards, call, true)
    }

    fn run(options: &TimersOptions, shards: u16, call: MakeCall<I, A>, is_for_callers: bool) -> Self {
        let load = Load {
            tasks: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            tasks_max: options.queue_tasks_max,
            bytes_max: options.queue_bytes_max,
        };
        let (pieces, taken) = mpsc::channel(PIECES_MAX);
        let collector = Collector {
            linger: Duration::from_millis(options.linger_ms),
            batch_max: options.batch_tasks_max,
            flushes_max: options.flushes_max,
            shards: shards.max(1),
            next_shard: 0,
            call,
            is_for_callers,
            groups: HashMap::new(),
            order: VecDeque::new(),
            flights: JoinSet::new(),
            any: ForAny { flights: 0, pieces: Arc::default(), callers: 1, landed: Instant::now() },
        };
        let collector = Mutex::new(Some(tokio::spawn(collector.run(taken))));
        Self { pieces: Mutex::new(Some(pieces)), load: Arc::new(load), collector }
    }

    /// Takes items; the answer comes when the store has answered.
    pub fn submit(
        &self,
        shard: Option<Shard>,
        items: Vec<I>,
        bytes: usize,
    ) -> Result<oneshot::Receiver<Answers<A>>, Refused> {
        let loaded = self.load.take(items.len(), bytes).ok_or(Refused::Busy)?;
        let (reply, answer) = oneshot::channel();
        let pieces = self.pieces.lock();
        let sent =
            pieces.as_ref().ok_or(Refused::Closing)?.try_send(Piece { shard, items, reply, _loaded: loaded });
        match sent {
            Ok(()) => Ok(answer),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Refused::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Refused::Closing),
        }
    }

    /// Takes nothing any more, and waits until all that was taken has its answer.
    pub async fn close(&self) {
        self.pieces.lock().take();
        let collector = self.collector.lock().take();
        let Some(collector) = collector else { return };
        if let Err(error) = collector.await {
            tracing::error!(%error, "the group commit ended badly");
        }
    }
}

impl<I, A> Drop for GroupCommit<I, A> {
    fn drop(&mut self) {
        if let Some(collector) = self.collector.get_mut().take() {
            collector.abort();
        }
    }
}

/// Waits for the answer to what was submitted.
pub(super) async fn answered<A>(answer: oneshot::Receiver<Answers<A>>) -> Answers<A> {
    let lost = |_| Err(StoreError::Unavailable("the call to the store ended without an answer".into()));
    answer.await.unwrap_or_else(lost)
}

/// Pieces for one shard, or for any.
struct Group<I, A> {
    pieces: VecDeque<Piece<I, A>>,
    items: usize,
    since: Instant,
}

struct Collector<I, A> {
    linger: Duration,
    batch_max: usize,
    flushes_max: usize,
    shards: u16,
    next_shard: u16,
    call: MakeCall<I, A>,
    /// Whether pieces are left out whose callers have gone.
    is_for_callers: bool,
    groups: HashMap<Option<Shard>, Group<I, A>>,
    /// The groups, the one that waits longest first.
    order: VecDeque<Option<Shard>>,
    /// Each says whether it was for any shard.
    flights: JoinSet<bool>,
    any: ForAny,
}

/// What is known of flushes for any shard.
struct ForAny {
    /// Flushes on their way.
    flights: usize,
    /// Pieces on their way, whose callers have no answer yet.
    pieces: Arc<AtomicUsize>,
    /// Pieces that were waiting or on their way at once, when there were most of them lately.
    callers: usize,
    /// When the last flush had its answer.
    landed: Instant,
}

impl<I: Send + 'static, A: Send + 'static> Collector<I, A> {
    async fn run(mut self, mut taken: mpsc::Receiver<Piece<I, A>>) {
        let mut is_open = true;
        let mut arrived = Vec::new();
        while is_open || !self.order.is_empty() || !self.flights.is_empty() {
            let has_room = self.flights.len() < self.flushes_max;
            let next = self.next_flush(is_open);
            // What is overdue goes first, or many new pieces would starve it.
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next.map_or_else(Instant::now, |(at, _)| at)),
                    if has_room && next.is_some() => if let Some((_, which)) = next { self.flush_in_time(which) },
                Some(ended) = self.flights.join_next(), if !self.flights.is_empty() => {
                    self.landed(ended);
                    self.flush_complete();
                }
                count = taken.recv_many(&mut arrived, 256), if is_open => {
                    is_open = count > 0;
                    for piece in arrived.drain(..) {
                        self.gather(piece);
                        if self.items_for_any() >= PUSH_ITEMS {
                            self.flush_complete();
                        }
                    }
                    self.flush_complete();
                }
            }
        }
    }

    fn gather(&mut self, piece: Piece<I, A>) {
        let shard = piece.shard;
        let group = self.groups.entry(shard).or_insert_with(|| {
            self.order.push_back(shard);
            Group { pieces: VecDeque::new(), items: 0, since: Instant::now() }
        });
        group.items += piece.items.len();
        group.pieces.push_back(piece);
        if group.items >= self.batch_max && self.flights.len() < self.flushes_max {
            self.flush(shard);
        }
    }

    /// Sends what is for any shard, if everybody is there who was there lately, or half of them with a large push.
    fn flush_complete(&mut self) {
        let (waiting, callers) = self.callers_for_any();
        self.any.callers = self.any.callers.max(callers);
        let parts = if self.items_for_any() >= PUSH_ITEMS { 2 } else { 1 };
        let has_room = self.any.flights < parts && self.flights.len() < self.flushes_max;
        if has_room && waiting >= self.any.callers.div_ceil(parts) {
            self.flush(None);
        }
    }

    /// Sends a group whose time has come.
    fn flush_in_time(&mut self, which: Option<Shard>) {
        if which.is_none() {
            // Somebody stayed away: the next flush does not wait for them.
            self.any.callers = self.callers_for_any().1.max(1);
        }
        self.flush(which);
    }

    fn items_for_any(&self) -> usize {
        self.groups.get(&None).map_or(0, |group| group.items)
    }

    /// Pieces for any shard: those that wait, and all that have no answer.
    fn callers_for_any(&self) -> (usize, usize) {
        let waiting = self.groups.get(&None).map_or(0, |group| group.pieces.len());
        (waiting, waiting + self.any.pieces.load(Ordering::Relaxed))
    }

    /// When which group goes next.
    fn next_flush(&self, is_open: bool) -> Option<(Instant, Option<Shard>)> {
        let due = |which: &Option<Shard>| {
            let at = |group: &Group<I, A>| match which {
                _ if !is_open => group.since,
                None if self.any.flights > 0 => group.since + HOLD.max(self.linger),
                // Callers whose answers have just come may come again.
                None => group.since.max(self.any.landed) + self.linger,
                Some(_) => group.since + self.linger,
            };
            self.groups.get(which).map(|group| (at(group), *which))
        };
        // All but the group for any shard wait equally long, so the first of these is due before the others.
        let first_of_shards = self.order.iter().find(|which| which.is_some()).and_then(due);
        due(&None).into_iter().chain(first_of_shards).min_by_key(|(at, _)| *at)
    }

    fn landed(&mut self, ended: Result<bool, tokio::task::JoinError>) {
        match ended {
            Ok(false) => {}
            Ok(true) => {
                self.any.flights = self.any.flights.saturating_sub(1);
                self.any.landed = Instant::now();
            }
            Err(error) => {
                // Nobody knows which one it was: gathering less is the safe side.
                (self.any.flights, self.any.pieces) = (0, Arc::default());
                tracing::error!(%error, "a call to the slot store panicked");
            }
        }
    }

    /// Sends as many pieces of a group as one call takes, at least one.
    fn flush(&mut self, which: Option<Shard>) {
        let Some(group) = self.groups.get_mut(&which) else { return };
        let (mut pieces, mut count) = (Vec::new(), 0);
        while let Some(piece) =
            group.pieces.pop_front_if(|next| count == 0 || count + next.items.len() <= self.batch_max)
        {
            group.items -= piece.items.len();
            if self.is_for_callers && piece.reply.is_closed() {
                continue;
            }
            count += piece.items.len();
            pieces.push(piece);
        }
        let is_empty = group.pieces.is_empty();
        group.since = Instant::now();
        self.order.retain(|other| *other != which);
        if is_empty {
            self.groups.remove(&which);
        } else {
            // Behind the others, or a group that is never empty would keep them waiting.
            self.order.push_back(which);
        }
        if pieces.is_empty() {
            return;
        }
        let shard = which.unwrap_or_else(|| {
            self.next_shard = (self.next_shard + 1) % self.shards;
            Shard(self.next_shard)
        });
        let mut items = Vec::with_capacity(count);
        let mut waiting = Vec::with_capacity(pieces.len());
        for Piece { items: more, reply, _loaded, .. } in pieces {
            waiting.push((more.len(), reply, _loaded));
            items.extend(more);
        }
        let call = (self.call)(shard, items);
        let for_any = which.is_none().then(|| Arc::clone(&self.any.pieces));
        if let Some(pieces) = &for_any {
            self.any.flights += 1;
            pieces.fetch_add(waiting.len(), Ordering::Relaxed);
        }
        self.flights.spawn(async move {
            let answers = match call.await {
                Ok(answers) if answers.len() != count => {
                    Err(StoreError::Unusable(format!("it gave {} answers to {count} tasks", answers.len())))
                }
                other => other,
            };
            // Before the answers: a caller that has one may come again.
            if let Some(pieces) = &for_any {
                pieces.fetch_sub(waiting.len(), Ordering::Relaxed);
            }
            let mut answers = answers.map(Vec::into_iter);
            for (len, reply, _loaded) in waiting {
                let part = match &mut answers {
                    Ok(answers) => Ok(answers.by_ref().take(len).collect()),
                    Err(error) => Err(error.clone()),
                };
                // A caller that has gone does not want its answer.
                reply.send(part).ok();
            }
            for_any.is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Calls = Arc<Mutex<Vec<(Shard, Vec<u32>)>>>;

    fn doubling(options: &TimersOptions, takes: Duration) -> (GroupCommit<u32, u32>, Calls) {
        let calls = Calls::default();
        let seen = Arc::clone(&calls);
        let call: MakeCall<u32, u32> = Box::new(move |shard, items| {
            seen.lock().push((shard, items.clone()));
            Box::pin(async move {
                tokio::time::sleep(takes).await;
                match items.contains(&13) {
                    true => Err(StoreError::Unavailable("13".into())),
                    false => Ok(items.iter().map(|item| item * 2).collect()),
                }
            })
        });
        (GroupCommit::start(options, 4, call), calls)
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_within_a_moment_goes_together_and_each_caller_gets_its_own_answers() {
        let (commit, calls) = doubling(&TimersOptions::default(), Duration::from_millis(5));
        let one = commit.submit(None, vec![1, 2], 2).unwrap();
        let two = commit.submit(None, vec![3], 1).unwrap();
        let keyed = commit.submit(Some(Shard(3)), vec![4], 1).unwrap();
        assert_eq!(answered(two).await, Ok(vec![6]));
        assert_eq!(answered(one).await, Ok(vec![2, 4]));
        assert_eq!(answered(keyed).await, Ok(vec![8]));
        let next = commit.submit(None, vec![5], 1).unwrap();
        assert_eq!(answered(next).await, Ok(vec![10]));
        let calls = calls.lock().clone();
        assert_eq!(calls, [(Shard(1), vec![1, 2, 3]), (Shard(3), vec![4]), (Shard(2), vec![5])]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_while_a_flush_is_on_its_way_goes_together_behind_it() {
        let (commit, calls) = doubling(&TimersOptions::default(), Duration::from_millis(4));
        let first = commit.submit(None, vec![1], 1).unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        let second = commit.submit(None, vec![2], 1).unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        let third = commit.submit(None, vec![3], 1).unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        let keyed = commit.submit(Some(Shard(3)), vec![4], 1).unwrap();
        for (answer, is) in [(first, 2), (second, 4), (third, 6), (keyed, 8)] {
            assert_eq!(answered(answer).await, Ok(vec![is]));
        }
        let calls = calls.lock().clone();
        assert_eq!(calls, [(Shard(1), vec![1]), (Shard(2), vec![2, 3]), (Shard(3), vec![4])]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_waits_for_nobody_and_many_go_together_again_and_again() {
        let (commit, calls) = doubling(&TimersOptions::default(), Duration::from_millis(4));
        let commit = Arc::new(commit);
        let began = Instant::now();
        for item in 0..3 {
            answered(commit.submit(None, vec![item], 1).unwrap()).await.unwrap();
        }
        assert_eq!(began.elapsed(), Duration::from_millis(12), "the store's time alone");
        calls.lock().clear();
        let mut callers = JoinSet::new();
        for caller in 0..4 {
            let commit = Arc::clone(&commit);
            callers.spawn(async move {
                for _ in 0..20 {
                    answered(commit.submit(None, vec![caller], 1).unwrap()).await.unwrap();
                    for _ in 0..caller {
                        tokio::task::yield_now().await;
                    }
                }
            });
        }
        callers.join_all().await;
        let sizes: Vec<usize> = calls.lock().iter().map(|(_, items)| items.len()).collect();
        assert!(sizes.iter().filter(|size| **size == 4).count() >= 18, "{sizes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn large_pushes_go_in_two_halves_side_by_side() {
        let (commit, calls) = doubling(&TimersOptions::default(), Duration::from_millis(4));
        let commit = Arc::new(commit);
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for _ in 0..4 {
            let commit = Arc::clone(&commit);
            callers.spawn(async move {
                for _ in 0..20 {
                    let items = vec![1; PUSH_ITEMS / 2];
                    answered(commit.submit(None, items, 1).unwrap()).await.unwrap();
                    // The caller's own work: as long as the store's.
                    tokio::time::sleep(Duration::from_millis(4)).await;
                }
            });
        }
        callers.join_all().await;
        let sizes: Vec<usize> = calls.lock().iter().map(|(_, items)| items.len()).collect();
        assert!(sizes.iter().filter(|size| **size == PUSH_ITEMS).count() >= 36, "{sizes:?}");
        assert!(began.elapsed() < Duration::from_millis(20 * 8 + 12), "nobody waits for the other half");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_without_an_answer_holds_the_next_one_for_a_moment_alone() {
        let (commit, calls) = doubling(&TimersOptions::default(), Duration::from_secs(60));
        let _first = commit.submit(None, vec![1], 1).unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        let _second = commit.submit(None, vec![2], 1).unwrap();
        tokio::time::sleep(HOLD + Duration::from_millis(1)).await;
        assert_eq!(calls.lock().clone(), [(Shard(1), vec![1]), (Shard(2), vec![2])]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_refuses_and_a_closed_one_finishes_what_it_took() {
        let options = TimersOptions { queue_tasks_max: 2, ..TimersOptions::default() };
        let (commit, _) = doubling(&options, Duration::from_secs(1));
        let taken = commit.submit(None, vec![1, 2], 2).unwrap();
        assert_eq!(commit.submit(None, vec![3], 1).unwrap_err(), Refused::Busy);
        commit.close().await;
        assert_eq!(answered(taken).await, Ok(vec![2, 4]));
        assert_eq!(commit.submit(None, vec![3], 1).unwrap_err(), Refused::Closing);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_any_more_is_not_sent() {
        let options = TimersOptions { flushes_max: 1, ..TimersOptions::default() };
        for is_for_callers in [true, false] {
            let calls = Calls::default();
            let seen = Arc::clone(&calls);
            let call: MakeCall<u32, u32> = Box::new(move |shard, items| {
                seen.lock().push((shard, items.clone()));
                Box::pin(async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Ok(items)
                })
            });
            let commit = GroupCommit::run(&options, 4, call, is_for_callers);
            let hangs = commit.submit(Some(Shard(1)), vec![1], 1).unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            for shard in [1, 2] {
                drop(commit.submit(Some(Shard(shard)), vec![2], 1).unwrap());
            }
            let stays = commit.submit(Some(Shard(1)), vec![3], 1).unwrap();
            assert_eq!(answered(hangs).await, Ok(vec![1]));
            assert_eq!(answered(stays).await, Ok(vec![3]));
            commit.close().await;
            let expected = match is_for_callers {
                true => vec![(Shard(1), vec![1]), (Shard(1), vec![3])],
                false => vec![(Shard(1), vec![1]), (Shard(1), vec![2, 3]), (Shard(2), vec![2])],
            };
            assert_eq!(calls.lock().clone(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_everybodys_answer_and_gives_the_room_back() {
        let options = TimersOptions { queue_tasks_max: 2, batch_tasks_max: 1, ..TimersOptions::default() };
        let (commit, calls) = doubling(&options, Duration::ZERO);
        for _ in 0..3 {
            let failing = commit.submit(None, vec![13], 1).unwrap();
            let well = commit.submit(None, vec![1], 1).unwrap();
            assert!(answered(failing).await.is_err());
            assert_eq!(answered(well).await, Ok(vec![2]), "another flush");
            tokio::task::yield_now().await;
        }
        assert_eq!(calls.lock().len(), 6);
    }
}
