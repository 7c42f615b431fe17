//! The places outside of the ledger's database that keep its mark. Each is asked on a thread of its own, with one call at a
//! time, and none is waited for longer than [`WAIT`]: one that hangs delays neither the comparison of the ledger nor the
//! other places.

use futures_util::future::join_all;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use windfall_contract::Clock;
use windfall_ledger::{Guard, Mark, MarkStore, MarkStoreError};

/// How long a place is waited for. One that was too slow is not waited for again until it has answered.
const WAIT: Duration = Duration::from_secs(2);

/// All places of a ledger's mark.
pub(crate) struct Places {
    list: Vec<Arc<Place>>,
}

struct Place {
    store: Arc<dyn MarkStore>,
    /// Its number in the guard.
    number: usize,
    guard: Arc<Guard>,
    seen: Mutex<Seen>,
    clock: Clock,
    /// A call that was not answered in time.
    late: Mutex<Option<JoinHandle<Result<(), MarkStoreError>>>>,
}

/// What is known of a place.
#[derive(Debug, Default)]
struct Seen {
    /// What it had when it was read or written last; `None` before it was read.
    has: Option<Option<Mark>>,
    /// Whether another process had replaced the mark when it was read last.
    is_fresh: bool,
    /// When it was found or made to have another mark last.
    changed_ns: Option<u64>,
    /// The mark for which it has not taken another one.
    refused: Option<Option<Mark>>,
}

/// When a mark is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writing {
    /// At once.
    Always,
    /// Unless another process has written one since the last pass: that says as much of what was committed before it,
    /// and the next pass is soon. So the writes to a place do not grow with the number of processes.
    UnlessFresh,
}

enum Step {
    Read,
    Write(Mark, Writing),
}

impl Places {
    /// The places, in the order of their numbers in the guard.
    pub fn new(guard: &Arc<Guard>, stores: Vec<Arc<dyn MarkStore>>, clock: &Clock) -> Self {
        let place = |(number, store)| {
            let (guard, seen, late) = (Arc::clone(guard), Mutex::default(), Mutex::default());
            Arc::new(Place { store, number, guard, seen, clock: clock.clone(), late })
        };
        Self { list: stores.into_iter().enumerate().map(place).collect() }
    }

    /// Reads each place, and tells the guard of what it has. One answer for each place.
    pub async fn read(&self) -> Vec<Result<(), MarkStoreError>> {
        join_all(self.list.iter().map(|place| place.step(Step::Read))).await
    }

    /// Writes the mark to those places that could be read. Where another process was faster, its mark is as good.
    pub async fn write(
        &self,
        mark: &Mark,
        could_be_read: &[bool],
        writing: Writing,
    ) -> Vec<Result<(), MarkStoreError>> {
        let places = self.list.iter().zip(could_be_read).filter(|(_, could)| **could);
        join_all(places.map(|(place, _)| place.step(Step::Write(mark.clone(), writing)))).await
    }
}

impl Place {
    async fn step(self: &Arc<Self>, step: Step) -> Result<(), MarkStoreError> {
        let late = self.late.lock().take();
        if let Some(late) = late.filter(|late| !late.is_finished()) {
            *self.late.lock() = Some(late);
            return Err(self.failed("it has not answered an earlier call yet"));
        }
        let own = Arc::clone(self);
        let mut call = tokio::task::spawn_blocking(move || own.work(step));
        match tokio::time::timeout(WAIT, &mut call).await {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => Err(self.failed(format!("the call has panicked: {error}"))),
            Err(_) => {
                *self.late.lock() = Some(call);
                Err(self.failed(format!("no answer within {} ms", WAIT.as_millis())))
            }
        }
    }

    /// Does a step. It blocks.
    fn work(&self, step: Step) -> Result<(), MarkStoreError> {
        match step {
            Step::Read => {
                let found = self.store.load()?;
                self.guard.learn(self.number, found.clone());
                let mut seen = self.seen.lock();
                seen.is_fresh = seen.has.as_ref().is_some_and(|has| *has != found);
                if seen.is_fresh {
                    seen.changed_ns = Some(self.clock.monotonic_ns());
                }
                seen.has = Some(found);
                Ok(())
            }
            Step::Write(mark, writing) => self.write(mark, writing),
        }
    }

    fn write(&self, mark: Mark, writing: Writing) -> Result<(), MarkStoreError> {
        let old = {
            let seen = self.seen.lock();
            let is_due = writing == Writing::Always || (!seen.is_fresh && !self.pauses(&seen, &mark));
            seen.has.clone().filter(|old| is_due && old.as_ref() != Some(&mark))
        };
        let Some(old) = old else { return Ok(()) };
        let is_taken = self.store.replace(old.as_ref(), &mark)?;
        let mut seen = self.seen.lock();
        if is_taken {
            (seen.has, seen.refused) = (Some(Some(mark)), None);
            seen.changed_ns = Some(self.clock.monotonic_ns());
            return Ok(());
        }
        // Where another process was faster, the next look finds another mark.
        match seen.refused.replace(old.clone()) == Some(old) {
            true => Err(self.failed("it takes no newer mark, although nobody else has written one")),
            false => Ok(()),
        }
    }

    /// Whether the place takes no further mark of this lineage yet.
    fn pauses(&self, seen: &Seen, mark: &Mark) -> bool {
        let is_of = |old: &Mark| (old.generation, &old.lineage) == (mark.generation, &mark.lineage);
        let pause_ns = self.store.pause_ms().saturating_mul(1_000_000);
        let age_ns = seen.changed_ns.map(|changed_ns| self.clock.monotonic_ns().saturating_sub(changed_ns));
        seen.has.iter().flatten().any(is_of) && age_ns.is_some_and(|age_ns| age_ns < pause_ns)
    }

    fn failed(&self, what: impl Into<String>) -> MarkStoreError {
        MarkStoreError { place: self.store.place(), what: what.into(), may_pass: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// A place whose calls hang until they are let go.
    #[derive(Debug)]
    struct Hung {
        go: Mutex<Receiver<()>>,
    }

    impl MarkStore for Hung {
        fn place(&self) -> String {
            "hung".into()
        }

        fn load(&self) -> Result<Option<Mark>, MarkStoreError> {
            // It also ends when nobody can let it go any more.
            self.go.lock().recv().ok();
            Ok(None)
        }

        fn replace(&self, _old: Option<&Mark>, _new: &Mark) -> Result<bool, MarkStoreError> {
            Ok(true)
        }
    }

    fn hung() -> (SyncSender<()>, Arc<dyn MarkStore>) {
        let (go, gone) = sync_channel(1);
        (go, Arc::new(Hung { go: Mutex::new(gone) }))
    }

    #[tokio::test]
    async fn a_place_that_hangs_is_asked_once_delays_no_other_one_and_is_read_when_it_answers() {
        let folder = tempfile::tempdir().unwrap();
        let file: Arc<dyn MarkStore> = Arc::new(windfall_ledger::MarkFile::new(folder.path().join("mark")));
        let (go, hung) = hung();
        let guard = Arc::new(Guard::new(vec![None, None]));
        let places = Places::new(&guard, vec![hung, file], &Clock::system());
        for _ in 0..3 {
            let read = places.read().await;
            assert!(read[0].is_err() && read[1].is_ok(), "{read:?}");
        }
        assert!(guard.stops_payouts(), "one place was not read");
        go.send(()).unwrap();
        let answered = || places.list[0].late.lock().as_ref().is_none_or(JoinHandle::is_finished);
        while !answered() {
            tokio::task::yield_now().await;
        }
        // Nothing holds up the next call.
        drop(go);
        assert!(places.read().await[0].is_ok());
    }

    fn mark(beat: i64) -> Mark {
        Mark { generation: 1, lineage: "a".into(), beat, server: windfall_ledger::ServerPosition::default() }
    }

    #[tokio::test]
    async fn of_several_processes_those_do_not_write_that_find_a_mark_of_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = || windfall_ledger::MarkFile::new(folder.path().join("mark"));
        let guard = || Arc::new(Guard::new(vec![None]));
        let process = || Places::new(&guard(), vec![Arc::new(file())], &Clock::system());
        let (one, other) = (process(), process());
        let pass = async |places: &Places, beat, writing| {
            assert!(places.read().await[0].is_ok());
            assert!(places.write(&mark(beat), &[true], writing).await[0].is_ok());
            file().load().unwrap()
        };
        assert_eq!(pass(&one, 1, Writing::UnlessFresh).await, Some(mark(1)));
        assert_eq!(pass(&other, 2, Writing::UnlessFresh).await, Some(mark(2)), "it has just begun");
        assert_eq!(pass(&one, 3, Writing::UnlessFresh).await, Some(mark(2)), "the other one has written");
        assert_eq!(pass(&one, 4, Writing::UnlessFresh).await, Some(mark(4)), "nobody has");
        assert_eq!(pass(&other, 5, Writing::Always).await, Some(mark(5)), "the last mark of a process");
    }

    /// A place that takes nothing.
    #[derive(Debug)]
    struct Full;

    impl MarkStore for Full {
        fn place(&self) -> String {
            "full".into()
        }

        fn load(&self) -> Result<Option<Mark>, MarkStoreError> {
            Ok(None)
        }

        fn replace(&self, _old: Option<&Mark>, _new: &Mark) -> Result<bool, MarkStoreError> {
            Ok(false)
        }
    }

    #[tokio::test]
    async fn a_place_that_takes_no_mark_though_nobody_else_writes_has_failed() {
        let places = Places::new(&Arc::new(Guard::new(vec![None])), vec![Arc::new(Full)], &Clock::system());
        for (beat, is_taken_for_a_race) in [(1, true), (2, false), (3, false)] {
            assert!(places.read().await[0].is_ok());
            let written = places.write(&mark(beat), &[true], Writing::Always).await;
            assert_eq!(written[0].is_ok(), is_taken_for_a_race, "{written:?}");
        }
    }

    /// A place that asks for a pause between two marks.
    #[derive(Debug, Default)]
    struct Dear {
        has: Mutex<Option<Mark>>,
    }

    impl MarkStore for Dear {
        fn place(&self) -> String {
            "dear".into()
        }

        fn pause_ms(&self) -> u64 {
            5_000
        }

        fn load(&self) -> Result<Option<Mark>, MarkStoreError> {
            Ok(self.has.lock().clone())
        }

        fn replace(&self, _old: Option<&Mark>, new: &Mark) -> Result<bool, MarkStoreError> {
            *self.has.lock() = Some(new.clone());
            Ok(true)
        }
    }

    #[tokio::test]
    async fn a_place_where_each_mark_costs_gets_one_in_a_while_and_those_of_a_new_lineage_at_once() {
        let time_ms = Arc::new(AtomicU64::new(1));
        let own = Arc::clone(&time_ms);
        let clock = Clock::from_unix_ms(move || own.load(Ordering::Relaxed));
        let store = Arc::new(Dear::default());
        let process = || {
            let guard = Arc::new(Guard::new(vec![None]));
            Places::new(&guard, vec![Arc::clone(&store) as _], &clock)
        };
        let (one, other) = (process(), process());
        let pass = async |places: &Places, mark: Mark, writing| {
            assert!(places.read().await[0].is_ok());
            assert!(places.write(&mark, &[true], writing).await[0].is_ok());
            store.load().unwrap().unwrap()
        };
        assert_eq!(pass(&one, mark(1), Writing::UnlessFresh).await, mark(1));
        assert_eq!(pass(&one, mark(2), Writing::UnlessFresh).await, mark(1));
        time_ms.fetch_add(5_000, Ordering::Relaxed);
        assert_eq!(pass(&one, mark(3), Writing::UnlessFresh).await, mark(3));
        assert_eq!(pass(&other, mark(4), Writing::UnlessFresh).await, mark(4), "it has just begun");
        for beat in [5, 6] {
            assert_eq!(pass(&one, mark(beat), Writing::UnlessFresh).await, mark(4), "the other one has");
        }
        let accepted = Mark { generation: 2, lineage: "b".into(), ..mark(7) };
        assert_eq!(pass(&one, accepted.clone(), Writing::UnlessFresh).await, accepted);
        let last = Mark { beat: 8, ..accepted };
        assert_eq!(pass(&one, last.clone(), Writing::Always).await, last, "the last mark of a process");
    }
}
