//! Many calls, one call of the store: what is asked for while a call is under way goes with the next one.
//!
//! Each shard has one call under way at a time, so the busier the store is, the more goes with each call. Where it is idle, a
//! piece waits for those alone that other tasks of the process are about to bring: a call costs the store ten times as much as
//! one piece more of it. What belongs to no shard in particular goes to the shards in turn, one call at a time too: few
//! calls with many jobs cost the store and this process less than many with few.

use crate::health::Health;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{Id, JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::JobStoreError;

/// Pieces that wait in front of the collector at most; beyond, callers are told to come again.
const WAITING_MAX: usize = 16_384;
/// Pieces of one call of the store at most.
const CALL_PIECES_MAX: usize = 1_024;
/// Bytes of one call of the store at most, besides its first piece.
const CALL_BYTES_MAX: usize = 4 << 20;
/// How often the tasks that are about to run go first, at most, as long as each time another piece comes of it.
const TURNS_MAX: usize = 4;

/// The answers to all pieces of a call, in their order.
pub(crate) type Answers<A> = Pin<Box<dyn Future<Output = Result<Vec<A>, JobStoreError>> + Send>>;
/// Calls the store.
pub(crate) type Call<I, A> = Box<dyn Fn(Shard, Vec<I>) -> Answers<A> + Send>;

/// Why a piece was not taken, or has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GatherError {
    /// Too much waits already.
    Busy,
    /// The store's own.
    Store(JobStoreError),
}

/// Gathers pieces of many callers. Dropped, it ends its task.
pub(crate) struct Gather<I, A> {
    pieces: mpsc::Sender<Piece<I, A>>,
    closing: CancellationToken,
    collector: Mutex<Option<JoinHandle<()>>>,
}

impl<I, A> Drop for Gather<I, A> {
    fn drop(&mut self) {
        if let Some(collector) = self.collector.lock().take() {
            collector.abort();
        }
    }
}

struct Piece<I, A> {
    shard: Option<Shard>,
    item: I,
    bytes: usize,
    reply: oneshot::Sender<Result<A, JobStoreError>>,
}

impl<I: Send + 'static, A: Send + 'static> Gather<I, A> {
    /// An answer whose caller has gone is dropped.
    pub(crate) fn start(health: Arc<Health>, call: Call<I, A>) -> Self {
        let (pieces, taken) = mpsc::channel(WAITING_MAX);
        let closing = CancellationToken::new();
        let collector = Collector {
            health,
            next_shard: 0,
            call,
            waiting: BTreeMap::new(),
            under_way: BTreeMap::new(),
            calls: JoinSet::new(),
            held: 0,
        };
        let collector = tokio::spawn(collector.run(taken, closing.clone()));
        Self { pieces, closing, collector: Mutex::new(Some(collector)) }
    }

    /// Takes nothing more, and waits until what was taken is answered.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        // Who gives up waiting ends it.
        let collector = self.collector.lock().take().map(AbortOnDropHandle::new);
        if let Some(collector) = collector {
            // A panic was its last word; its callers know.
            collector.await.ok();
        }
    }

    /// Asks the store; `bytes` is about what the item takes on its way.
    pub(crate) async fn ask(&self, shard: Option<Shard>, item: I, bytes: usize) -> Result<A, GatherError> {
        let answer = self.send(shard, item, bytes)?;
        match answer.await {
            Ok(answer) => answer.map_err(GatherError::Store),
            Err(_) => Err(GatherError::Store(JobStoreError::Unavailable("the call was given up".into()))),
        }
    }

    /// Asks the store, and returns what the answer comes by.
    pub(crate) fn send(
        &self,
        shard: Option<Shard>,
        item: I,
        bytes: usize,
    ) -> Result<oneshot::Receiver<Result<A, JobStoreError>>, GatherError> {
        let (reply, answer) = oneshot::channel();
        let piece = Piece { shard, item, bytes, reply };
        self.pieces.try_send(piece).map_err(|_| GatherError::Busy)?;
        Ok(answer)
    }
}

/// Gathers pieces and sends them. Ends when the [`Gather`] is dropped.
struct Collector<I, A> {
    health: Arc<Health>,
    next_shard: u16,
    call: Call<I, A>,
    waiting: BTreeMap<Option<Shard>, Vec<Piece<I, A>>>,
    under_way: BTreeMap<Option<Shard>, Id>,
    calls: JoinSet<()>,
    /// Pieces in `waiting`.
    held: usize,
}

impl<I: Send + 'static, A: Send + 'static> Collector<I, A> {
    async fn run(mut self, mut taken: mpsc::Receiver<Piece<I, A>>, closing: CancellationToken) {
        loop {
            if closing.is_cancelled() {
                taken.close();
            }
            tokio::select! {
                piece = taken.recv(), if self.takes_more() => match piece {
                    Some(piece) => self.hold(piece),
                    None => break,
                },
                () = closing.cancelled(), if !taken.is_closed() => {}
                Some(done) = self.calls.join_next_with_id() => self.ended(done),
            }
            self.gather(&mut taken).await;
            self.send();
        }
        while self.held > 0 || !self.calls.is_empty() {
            if let Some(done) = self.calls.join_next_with_id().await {
                self.ended(done);
            }
            self.send();
        }
    }

    /// What comes at the same time goes together: whoever is about to bring a piece goes first.
    async fn gather(&mut self, taken: &mut mpsc::Receiver<Piece<I, A>>) {
        self.hold_all(taken);
        let mut before = 0;
        for _ in 0..TURNS_MAX {
            if self.held == before {
                break;
            }
            before = self.held;
            tokio::task::yield_now().await;
            self.hold_all(taken);
        }
    }

    /// Whether pieces are taken as they come. What belongs to no shard in particular waits where it is while its call is under
    /// way, so that this task does not wake for each piece.
    fn takes_more(&self) -> bool {
        self.held < WAITING_MAX && !self.under_way.contains_key(&None)
    }

    fn hold_all(&mut self, taken: &mut mpsc::Receiver<Piece<I, A>>) {
        while self.held < WAITING_MAX
            && let Ok(piece) = taken.try_recv()
        {
            self.hold(piece);
        }
    }

    /// A call that panicked has dropped its replies, and its callers know.
    fn ended(&mut self, done: Result<(Id, ()), JoinError>) {
        let ended = done.map_or_else(|error| error.id(), |(id, ())| id);
        self.under_way.retain(|_, id| *id != ended);
    }

    fn hold(&mut self, piece: Piece<I, A>) {
        self.held += 1;
        self.waiting.entry(piece.shard).or_default().push(piece);
    }

    /// Sends what waits for shards that are idle.
    fn send(&mut self) {
        let keys: Vec<Option<Shard>> = self.waiting.keys().copied().collect();
        for key in keys {
            if self.under_way.contains_key(&key) {
                continue;
            }
            if let Some(pieces) = self.next_pieces(key) {
                let shard = key.unwrap_or_else(|| self.turn());
                let id = self.spawn(shard, pieces);
                self.under_way.insert(key, id);
            }
        }
    }

    /// The next shard that answers, or the next one where none does.
    fn turn(&mut self) -> Shard {
        let shards = self.health.shards();
        let mut in_turn = (0..shards).map(|at| Shard((self.next_shard + at) % shards));
        let shard = in_turn.find(|shard| self.health.is_well(*shard));
        let shard = shard.unwrap_or(Shard(self.next_shard));
        self.next_shard = (shard.0 + 1) % shards;
        shard
    }

    /// As many pieces as one call may have.
    fn next_pieces(&mut self, key: Option<Shard>) -> Option<Vec<Piece<I, A>>> {
        let waiting = self.waiting.get_mut(&key)?;
        let (mut count, mut bytes) = (0, 0);
        for piece in waiting.iter().take(CALL_PIECES_MAX) {
            bytes += piece.bytes;
            if count > 0 && bytes > CALL_BYTES_MAX {
                break;
            }
            count += 1;
        }
        let rest = waiting.split_off(count);
        let pieces = std::mem::replace(waiting, rest);
        if waiting.is_empty() {
            self.waiting.remove(&key);
        }
        self.held -= pieces.len();
        (!pieces.is_empty()).then_some(pieces)
    }

    fn spawn(&mut self, shard: Shard, pieces: Vec<Piece<I, A>>) -> Id {
        let (items, replies): (Vec<I>, Vec<_>) =
            pieces.into_iter().map(|piece| (piece.item, piece.reply)).unzip();
        let answers = (self.call)(shard, items);
        let call = async move {
            match answers.await {
                Ok(answers) => {
                    for (reply, answer) in replies.into_iter().zip(answers) {
                        // Dropped where nobody waits for it any more.
                        reply.send(Ok(answer)).ok();
                    }
                }
                Err(error) => {
                    for reply in replies {
                        // Whoever has gone does not want to know.
                        reply.send(Err(error.clone())).ok();
                    }
                }
            }
        };
        self.calls.spawn(call).id()
    }
}

/// About what a job takes on its way to the store.
pub(crate) fn bytes_of(bodies: &[Bytes]) -> usize {
    bodies.iter().map(|body| body.len() + 64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::Semaphore;

    type Seen = Arc<Mutex<Vec<(u16, Vec<u32>)>>>;

    /// A store that notes its calls, and answers each with its items when it is let.
    fn gather(shards: u16, seen: &Seen, lets: &Arc<Semaphore>) -> Gather<u32, u32> {
        let (seen, lets) = (Arc::clone(seen), Arc::clone(lets));
        let call: Call<u32, u32> = Box::new(move |shard, items| {
            seen.lock().push((shard.0, items.clone()));
            let lets = Arc::clone(&lets);
            Box::pin(async move {
                lets.acquire().await.map_err(|_| JobStoreError::Unavailable("shut".into()))?.forget();
                Ok(items)
            })
        });
        Gather::start(Health::new(shards), call)
    }

    async fn settle() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_while_a_call_is_under_way_goes_with_the_next_one() {
        let (seen, lets) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let gather = gather(4, &seen, &lets);
        let mut answers = Vec::new();
        for item in 0..4 {
            answers.push(gather.send(Some(Shard(2)), item, 1).unwrap());
            settle().await;
        }
        assert_eq!(*seen.lock(), [(2, vec![0])]);
        lets.add_permits(2);
        for (item, answer) in (0..4).zip(answers) {
            assert_eq!(answer.await.unwrap(), Ok(item));
        }
        assert_eq!(*seen.lock(), [(2, vec![0]), (2, vec![1, 2, 3])]);
        // What belongs to no shard goes to them in turn, and no call has more than its bytes.
        seen.lock().clear();
        lets.add_permits(9);
        for item in 0..3 {
            assert_eq!(gather.ask(None, item, 1).await, Ok(item));
        }
        let asked: Vec<_> =
            (0..3).map(|item| gather.send(Some(Shard(1)), item, CALL_BYTES_MAX).unwrap()).collect();
        for answer in asked {
            answer.await.unwrap().unwrap();
        }
        let calls = [(0, vec![0]), (1, vec![1]), (2, vec![2]), (1, vec![0]), (1, vec![1]), (1, vec![2])];
        assert_eq!(*seen.lock(), calls);
    }

    /// The store is idle, so nothing but the gathering itself brings them together: half of the callers ask when the collector
    /// has been woken already, and would come too late for the first call.
    #[tokio::test(start_paused = true)]
    async fn what_many_ask_for_at_the_same_time_goes_in_one_call() {
        for shard in [None, Some(Shard(1))] {
            let (seen, lets) = (Seen::default(), Arc::new(Semaphore::new(64)));
            let gather = Arc::new(gather(2, &seen, &lets));
            settle().await;
            let mut callers = JoinSet::new();
            for item in 0..64 {
                let gather = Arc::clone(&gather);
                callers.spawn(async move {
                    if item % 2 == 1 {
                        tokio::task::yield_now().await;
                    }
                    assert_eq!(gather.ask(shard, item, 1).await, Ok(item));
                });
            }
            while let Some(asked) = callers.join_next().await {
                asked.unwrap();
            }
            let calls: Vec<usize> = seen.lock().iter().map(|(_, items)| items.len()).collect();
            assert_eq!(calls, [64], "{shard:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_receives_is_dropped_and_a_close_waits_for_it() {
        struct Noted(Arc<Mutex<Vec<u32>>>, u32);
        impl Drop for Noted {
            fn drop(&mut self) {
                self.0.lock().push(self.1);
            }
        }
        let left = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&left);
        let call: Call<u32, Noted> = Box::new(move |_, items| {
            let own = Arc::clone(&own);
            Box::pin(async move { Ok(items.into_iter().map(|item| Noted(Arc::clone(&own), item)).collect()) })
        });
        let gather = Gather::start(Health::new(1), call);
        drop(gather.send(Some(Shard(0)), 7, 1).unwrap());
        // Its answer was sent, and is in nobody's hands when the caller goes.
        let answered = gather.send(Some(Shard(0)), 8, 1).unwrap();
        settle().await;
        drop(answered);
        drop(gather.send(Some(Shard(0)), 9, 1).unwrap());
        gather.close().await;
        assert_eq!(*left.lock(), [7, 8, 9]);
        let refused = gather.ask(None, 10, 1).await.map(drop);
        assert_eq!(refused, Err(GatherError::Busy), "it takes nothing more");
    }

    #[tokio::test(start_paused = true)]
    async fn what_belongs_to_no_shard_passes_over_those_that_do_not_answer() {
        let (seen, lets) = (Seen::default(), Arc::new(Semaphore::new(9)));
        let health = Health::new(3);
        health.note(Shard(1), false);
        let (own, free) = (Arc::clone(&seen), Arc::clone(&lets));
        let call: Call<u32, u32> = Box::new(move |shard, items| {
            own.lock().push((shard.0, items.clone()));
            let free = Arc::clone(&free);
            Box::pin(async move {
                free.acquire().await.map_err(|_| JobStoreError::Unavailable("shut".into()))?.forget();
                Ok(items)
            })
        });
        let gather = Gather::start(Arc::clone(&health), call);
        for item in 0..3 {
            assert_eq!(gather.ask(None, item, 1).await, Ok(item));
        }
        assert_eq!(*seen.lock(), [(0, vec![0]), (2, vec![1]), (0, vec![2])]);
    }

    #[tokio::test]
    async fn a_call_that_panics_holds_up_nobody_but_its_callers() {
        let call: Call<u32, u32> = Box::new(|_, items| {
            Box::pin(async move {
                assert!(items != [13], "injected");
                Ok(items)
            })
        });
        let gather = Gather::start(Health::new(2), call);
        for key in [None, Some(Shard(1))] {
            let stopped = gather.ask(key, 13, 1).await;
            assert!(matches!(stopped, Err(GatherError::Store(JobStoreError::Unavailable(_)))), "{stopped:?}");
            assert_eq!(gather.ask(key, 7, 1).await, Ok(7));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_are_told_to_come_again() {
        let (seen, lets) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let gather = gather(1, &seen, &lets);
        let mut answers = Vec::new();
        let refused = loop {
            match gather.send(Some(Shard(0)), 1, 1) {
                Ok(answer) => answers.push(answer),
                Err(refused) => break refused,
            }
            if answers.len() % 1_000 == 0 {
                settle().await;
            }
        };
        assert_eq!(refused, GatherError::Busy);
        assert!(answers.len() <= 2 * WAITING_MAX + CALL_PIECES_MAX + 1_000, "{}", answers.len());
        lets.close();
        assert!(answers.pop().unwrap().await.unwrap().is_err());
    }
}
