//! What may be relied on for adds that come by a queue, in any number of copies.

use super::{Case, Checked, Fixture, holds, said, same, slot_of};
use bytes::Bytes;
use std::sync::Arc;
use windfall_contract::due::{
    Added, AddedOnce, CancelOnce, CancelledOnce, Change, Changed, DeadTask, DueRecord, FinishBatch,
    KEY_MARGIN_MS, Lease, Moved, NewRecord, OnceRecord, StoreError, TaskAt, TaskId, TaskKey, Waiting,
};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("a_queue_of_adds_has_one_id", a_queue_of_adds_has_one_id(fixture).await),
        ("an_add_is_stored_once", an_add_is_stored_once(fixture).await),
        ("a_key_stays_used_when_its_task_is_over", a_key_stays_used_when_its_task_is_over(fixture).await),
        ("a_cancel_may_come_first", a_cancel_may_come_first(fixture).await),
        ("any_cancel_uses_the_key_up", any_cancel_uses_the_key_up(fixture).await),
        ("old_adds_are_not_judged", old_adds_are_not_judged(fixture).await),
        ("a_longer_time_judges_nothing_older", a_longer_time_judges_nothing_older(fixture).await),
        ("marks_are_deleted_in_time", marks_are_deleted_in_time(fixture).await),
        ("other_adds_of_a_key", other_adds_of_a_key(fixture).await),
        ("a_task_of_the_past_is_added_once", a_task_of_the_past_is_added_once(fixture).await),
        ("bad_adds_change_nothing", bad_adds_change_nothing(fixture).await),
        ("a_restart_keeps_marks", a_restart_keeps_marks(fixture).await),
        ("a_repeated_cancel_renews_its_mark", a_repeated_cancel_renews_its_mark(fixture).await),
        ("a_dead_letter_sent_again_stays_used", a_dead_letter_sent_again_stays_used(fixture).await),
    ]
}

pub(super) async fn run_short(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("a_queue_of_adds_has_one_id", a_queue_of_adds_has_one_id(fixture).await),
        ("an_add_is_stored_once", an_add_is_stored_once(fixture).await),
        ("a_cancel_may_come_first", a_cancel_may_come_first(fixture).await),
    ]
}

impl Case {
    fn once(&self, fixture: &dyn Fixture, due_ms: u64, key: &TaskKey, payload: &str) -> OnceRecord {
        OnceRecord {
            due_ms,
            route: self.route,
            key: key.clone(),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            written_ms: fixture.now_ms(),
        }
    }

    async fn add_once(&self, batch: &[OnceRecord], kept_ms: u64) -> Result<Vec<AddedOnce>, String> {
        let answers = self.store.add_once(self.shard, batch, kept_ms).await.map_err(said)?;
        same("the number of answers", &answers.added.len(), &batch.len())?;
        Ok(answers.added)
    }

    async fn add_one_once(&self, record: &OnceRecord) -> Result<AddedOnce, String> {
        let mut answers = self.add_once(std::slice::from_ref(record), DAY_MS).await?;
        answers.pop().ok_or_else(|| "no answer".into())
    }

    async fn store_once(&self, record: &OnceRecord) -> Result<TaskId, String> {
        match self.add_one_once(record).await? {
            AddedOnce::Stored(id) => Ok(id),
            other => Err(format!("{other:?}, though it is new")),
        }
    }

    async fn cancel_once(&self, key: &TaskKey, may_mark: bool) -> Result<CancelledOnce, String> {
        let cancel = CancelOnce { tenant: self.route.tenant, key: key.clone(), may_mark };
        let answers = self.store.cancel_once(self.shard, &[cancel]).await.map_err(said)?;
        answers.into_iter().next().ok_or_else(|| "no answer".into())
    }

    /// Fires a task, as a dispatcher does that has an answer of its target.
    async fn fire(&self, lease: &Lease, sequence: u64, id: TaskId, key: &TaskKey) -> Result<(), String> {
        self.end(lease, sequence, id, key, Vec::new()).await
    }

    async fn end(
        &self,
        lease: &Lease,
        sequence: u64,
        id: TaskId,
        key: &TaskKey,
        dead: Vec<DeadTask>,
    ) -> Result<(), String> {
        self.advance(lease).await?;
        let byte = id.index / 8;
        let state = self.store.state(lease, id.slot).await.map_err(said)?;
        let before = usize::try_from(byte).ok().and_then(|at| state.done.get(at)).copied().unwrap_or(0);
        let batch = FinishBatch {
            sequence,
            done: vec![(byte, Bytes::from(vec![before | (0x80 >> (id.index % 8))]))],
            keys: vec![(self.route.tenant, key.clone(), id.index)],
            over: [(self.route.tenant, 1)].into(),
            dead,
            ..FinishBatch::default()
        };
        self.store.finish(lease, id.slot, &batch).await.map_err(said)
    }
}

/// The first id that is given stays.
async fn a_queue_of_adds_has_one_id(fixture: &dyn Fixture) -> Result<(), String> {
    let store = fixture.open().await?;
    let (none, first) = (store.queue_id(None).await.map_err(said)?, store.queue_id(Some(7)).await);
    same("before", &none, &None)?;
    same("the first", &first.map_err(said)?, &Some(7))?;
    same("another", &store.queue_id(Some(u64::MAX)).await.map_err(said)?, &Some(7))?;
    drop(store);
    same("after a restart", &fixture.open().await?.queue_id(None).await.map_err(said)?, &Some(7))
}

/// Copies of an add, in the same batch and in others, store nothing; another add of the key neither.
async fn an_add_is_stored_once(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 50, "once").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let (one, two) = (case.key("one")?, case.key("two")?);
    let first = case.once(fixture, due_ms, &one, "first");
    let other = OnceRecord { payload: "other".into(), ..first.clone() };
    let second = case.once(fixture, due_ms + HOUR_MS, &two, "second");
    let batch = [first.clone(), first.clone(), other.clone(), second.clone()];
    let answers = case.add_once(&batch, DAY_MS).await?;
    let [AddedOnce::Stored(id), AddedOnce::Known, AddedOnce::Other, AddedOnce::Stored(_)] = answers[..]
    else {
        return Err(format!("{answers:?}"));
    };
    same("the slot", &(id.shard, id.slot), &(case.shard, slot_of(due_ms)))?;
    let later = OnceRecord { written_ms: first.written_ms + 5, ..first.clone() };
    let again = case.add_once(&[other, later, second], DAY_MS).await?;
    same("again", &again, &vec![AddedOnce::Other, AddedOnce::Known, AddedOnce::Known])?;
    same("the count", &case.waiting().await?, &2)?;
    let found = super::tasks::find(&case, TaskAt::Key(one.clone())).await?;
    same("by key", &found, &Some((id, Waiting::Waiting, due_ms, Bytes::from_static(b"first"), None)))?;
    // A task that was moved keeps the mark of the add that it came by.
    let to = Some(Moved { due_ms: Some(due_ms + 60_000), payload: Some("moved".into()) });
    let moved = Change { tenant: case.route.tenant, at: TaskAt::Key(one), to };
    let changed = super::tasks::change_one(&case, moved).await?;
    holds("it is moved", matches!(changed, Changed::Done(_)))?;
    same("after the move", &case.add_one_once(&first).await?, &AddedOnce::Known)?;
    same("the count", &case.waiting().await?, &2)
}

/// A copy that comes after the task has fired is dropped, and so is one that comes after its slot has gone.
async fn a_key_stays_used_when_its_task_is_over(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 51, "used").await?;
    let key = case.key("used")?;
    let record = case.once(fixture, fixture.now_ms() - 120_000, &key, "fires");
    let id = case.store_once(&record).await?;
    let lease = case.acquire("one").await?;
    case.advance(&lease).await?;
    same("while it fires", &case.add_one_once(&record).await?, &AddedOnce::Known)?;
    same("a cancel while it fires", &case.cancel_once(&key, true).await?, &CancelledOnce::Firing)?;
    case.fire(&lease, 1, id, &key).await?;
    same("the count", &case.waiting().await?, &0)?;
    same("when it has fired", &case.add_one_once(&record).await?, &AddedOnce::Known)?;
    let other = OnceRecord { payload: "other".into(), ..record.clone() };
    same("another one", &case.add_one_once(&other).await?, &AddedOnce::Other)?;
    same("a cancel", &case.cancel_once(&key, true).await?, &CancelledOnce::Firing)?;
    same("the count", &case.waiting().await?, &0)?;
    // An ordinary add is not concerned.
    let ordinary = NewRecord { key: Some(key.clone()), ..case.task(fixture.now_ms() + HOUR_MS, "ordinary") };
    case.add(&[ordinary]).await?;
    same("a copy beside an ordinary one", &case.add_one_once(&record).await?, &AddedOnce::Known)?;
    same("another one beside it", &case.add_one_once(&other).await?, &AddedOnce::Other)
}

/// A cancel of a key that nobody knows keeps its add away, and counts until the add comes.
async fn a_cancel_may_come_first(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 52, "first").await?;
    let key = case.key("first")?;
    same("no mark", &case.cancel_once(&key, false).await?, &CancelledOnce::Unmarked)?;
    same("a mark", &case.cancel_once(&key, true).await?, &CancelledOnce::Marked)?;
    same("again", &case.cancel_once(&key, true).await?, &CancelledOnce::Cancelled)?;
    same("without a mark", &case.cancel_once(&key, false).await?, &CancelledOnce::Cancelled)?;
    same("the mark counts", &case.waiting().await?, &1)?;
    let record = case.once(fixture, fixture.now_ms() + HOUR_MS, &key, "late");
    let dropped = case.add_once(&[record.clone(), record], DAY_MS).await?;
    let (first, then) = (AddedOnce::Cancelled { had_come: false }, AddedOnce::Cancelled { had_come: true });
    same("its add", &dropped, &vec![first, then])?;
    same("the count", &case.waiting().await?, &0)?;
    same("by key", &super::tasks::find(&case, TaskAt::Key(key.clone())).await?, &None)?;
    same("a cancel again", &case.cancel_once(&key, true).await?, &CancelledOnce::Cancelled)
}

/// However a task is cancelled that came by a queue, its copies are dropped.
async fn any_cancel_uses_the_key_up(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 53, "cancelled").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let dropped = AddedOnce::Cancelled { had_come: true };
    for (nth, name) in ["by-key", "by-id", "once", "moved"].into_iter().enumerate() {
        let key = case.key(name)?;
        let record = case.once(fixture, due_ms, &key, name);
        let mut id = case.store_once(&record).await?;
        if name == "moved" {
            let to = Some(Moved { due_ms: Some(due_ms + 60_000), payload: None });
            let moved = Change { tenant: case.route.tenant, at: TaskAt::Id(id), to };
            if let Changed::Done(now) = super::tasks::change_one(&case, moved).await? {
                id = now;
            }
        }
        if name == "once" {
            same(name, &case.cancel_once(&key, false).await?, &CancelledOnce::Done(id))?;
        } else {
            let at = if nth == 0 { TaskAt::Key(key.clone()) } else { TaskAt::Id(id) };
            let cancel = super::tasks::cancel(&case, at);
            same(name, &super::tasks::change_one(&case, cancel).await?, &Changed::Done(id))?;
        }
        same(name, &case.add_one_once(&record).await?, &dropped)?;
        same(name, &case.cancel_once(&key, true).await?, &CancelledOnce::Cancelled)?;
    }
    same("the count", &case.waiting().await?, &0)
}

/// What was written longer ago than keys are kept is stored by no one, unless its task is known.
async fn old_adds_are_not_judged(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 54, "old").await?;
    let (one, two) = (case.key("one")?, case.key("two")?);
    let record = case.once(fixture, fixture.now_ms() + HOUR_MS, &one, "one");
    case.store_once(&record).await?;
    let old = OnceRecord { written_ms: fixture.now_ms() - DAY_MS - 60_000, ..record };
    same("its copy is known", &case.add_one_once(&old).await?, &AddedOnce::Known)?;
    let other = OnceRecord { key: two.clone(), ..old };
    same("one that nobody knows", &case.add_one_once(&other).await?, &AddedOnce::TooOld)?;
    let young = OnceRecord { written_ms: fixture.now_ms() - DAY_MS + 60_000, ..other };
    case.store_once(&young).await.map(drop)
}

/// Where keys are kept for longer from now on, adds are not judged whose marks may have ended by the shorter time.
async fn a_longer_time_judges_nothing_older(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 55, "longer").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let of = |key: &TaskKey, ago_ms: u64| OnceRecord {
        written_ms: fixture.now_ms() - ago_ms,
        ..case.once(fixture, due_ms, key, "task")
    };
    case.add_once(&[], HOUR_MS).await?;
    let keys = [case.key("a")?, case.key("b")?, case.key("c")?];
    let batch = [of(&keys[0], 2 * HOUR_MS), of(&keys[1], HOUR_MS / 2)];
    let answers = case.add_once(&batch, DAY_MS).await?;
    let is_so = matches!(answers[..], [AddedOnce::TooOld, AddedOnce::Stored(_)]);
    holds("an add older than the shorter time is not judged", is_so)?;
    // For as long as it takes, whatever time comes next.
    same("the next call", &case.add_once(&batch[..1], 2 * DAY_MS).await?, &vec![AddedOnce::TooOld])?;
    let shorter = case.add_once(&[of(&keys[2], HOUR_MS / 2)], HOUR_MS / 4).await?;
    same("a shorter time", &shorter, &vec![AddedOnce::TooOld])
}

/// A mark lasts as long as it has to, by the time that is asked for last, and no longer.
async fn marks_are_deleted_in_time(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 56, "marks").await?;
    let (used, cancelled) = (case.key("used")?, case.key("cancelled")?);
    let record = case.once(fixture, fixture.now_ms() + 30 * DAY_MS, &used, "task");
    case.store_once(&record).await?;
    case.cancel_once(&used, true).await?;
    case.cancel_once(&cancelled, true).await?;
    same("the mark counts", &case.waiting().await?, &1)?;
    case.add_once(&[], DAY_MS).await?;
    if !fixture.clock_ahead_ms(DAY_MS + KEY_MARGIN_MS / 2) {
        return Ok(());
    }
    case.add_once(&[], DAY_MS).await?;
    let copy = AddedOnce::Cancelled { had_come: true };
    same("a copy in time", &case.add_one_once(&record).await?, &copy)?;
    // Another time by a restart: it counts for the marks that are there.
    case.add_once(&[], 3 * DAY_MS).await?;
    fixture.clock_ahead_ms(KEY_MARGIN_MS);
    case.add_once(&[], 3 * DAY_MS).await?;
    let after = case.add_once(std::slice::from_ref(&record), 3 * DAY_MS).await?;
    same("a copy after the first time", &after, &vec![copy])?;
    same("the mark counts", &case.waiting().await?, &1)?;
    fixture.clock_ahead_ms(3 * DAY_MS);
    case.add_once(&[], 3 * DAY_MS).await?;
    same("a mark that is over does not count", &case.waiting().await?, &0)?;
    let late = case.add_once(std::slice::from_ref(&record), 3 * DAY_MS).await?;
    same("a copy that is too late", &late, &vec![AddedOnce::TooOld])?;
    let anew = OnceRecord { written_ms: fixture.now_ms(), ..record };
    case.store_once(&anew).await.map(drop)
}

/// Ordinary adds keep their own rules beside adds that come by a queue.
async fn other_adds_of_a_key(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 57, "beside").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let key = case.key("beside")?;
    let ordinary = NewRecord { key: Some(key.clone()), ..case.task(due_ms, "same") };
    let held = case.add(std::slice::from_ref(&ordinary)).await?[0];
    let record = case.once(fixture, due_ms, &key, "same");
    same("the same task", &case.add_one_once(&record).await?, &AddedOnce::Known)?;
    let other = OnceRecord { payload: "other".into(), ..record };
    same("another task", &case.add_one_once(&other).await?, &AddedOnce::Other)?;
    same("the count", &case.waiting().await?, &1)?;
    // A cancel that may come before an add ends an ordinary task as well.
    same("its cancel", &case.cancel_once(&key, true).await?, &CancelledOnce::Done(held))?;
    let cancelled = AddedOnce::Cancelled { had_come: true };
    same("an add after it", &case.add_one_once(&other).await?, &cancelled)?;
    cancel_beside_an_ordinary_task(fixture, &case).await?;
    // A task that came by a queue holds its key like any other, and stays marked when it loses the key.
    let next = case.key("next")?;
    let record = case.once(fixture, fixture.now_ms() - 120_000, &next, "once");
    let id = case.store_once(&record).await?;
    let same_again = NewRecord { key: Some(next.clone()), ..case.task(record.due_ms, "once") };
    let lease = case.acquire("one").await?;
    case.advance(&lease).await?;
    let added = case.store.add(case.shard, &[same_again]).await.map_err(said)?;
    same("its ordinary repeat", &added, &vec![Added::Exists(id)])?;
    let armed = NewRecord { key: Some(next.clone()), ..case.task(due_ms, "armed again") };
    case.add(&[armed]).await?;
    case.fire(&lease, 1, id, &next).await?;
    let change = super::tasks::cancel(&case, TaskAt::Key(next));
    holds("it was armed", matches!(super::tasks::change_one(&case, change).await?, Changed::Done(_)))?;
    same("a copy", &case.add_one_once(&record).await?, &AddedOnce::Known)
}

/// A mark of a cancel counts until something else is noted of its key, and keeps its add away also where an ordinary task has
/// taken the key meanwhile.
async fn cancel_beside_an_ordinary_task(fixture: &dyn Fixture, case: &Case) -> Result<(), String> {
    let due_ms = fixture.now_ms() + HOUR_MS;
    for name in ["awaited", "awaited-add"] {
        let key = case.key(name)?;
        same("a mark", &case.cancel_once(&key, true).await?, &CancelledOnce::Marked)?;
        let ordinary = NewRecord { key: Some(key.clone()), ..case.task(due_ms, "ordinary") };
        let id = case.add(&[ordinary]).await?[0];
        same("the count with the mark", &case.waiting().await?, &2)?;
        if name == "awaited-add" {
            let dropped = case.add_one_once(&case.once(fixture, due_ms, &key, "dropped")).await?;
            same("its add", &dropped, &AddedOnce::Cancelled { had_come: false })?;
            same("the count with the ordinary task", &case.waiting().await?, &1)?;
        }
        same("the ordinary task", &case.cancel_once(&key, true).await?, &CancelledOnce::Done(id))?;
        same("the count without both", &case.waiting().await?, &0)?;
    }
    Ok(())
}

/// What is due in the past fires at once, and copies of it are dropped, in one batch and in two.
async fn a_task_of_the_past_is_added_once(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 58, "past").await?;
    let lease = case.acquire("one").await?;
    let watermark_ms = case.advance(&lease).await?.watermark_ms;
    let (late, early) = (case.key("late")?, case.key("early")?);
    let late = case.once(fixture, watermark_ms - HOUR_MS, &late, "late");
    let early = case.once(fixture, watermark_ms + HOUR_MS, &early, "early");
    let answers = case.add_once(&[early, late.clone(), late.clone()], DAY_MS).await?;
    let [AddedOnce::Stored(_), AddedOnce::Stored(id), AddedOnce::Known] = answers[..] else {
        return Err(format!("{answers:?}"));
    };
    same("it lies where it fires at once", &id.slot, &slot_of(watermark_ms))?;
    let found = case.store.get(case.shard, case.route.tenant, &[TaskAt::Id(id)]).await.map_err(said)?;
    let asked_ms = found.first().and_then(Option::as_ref).and_then(|found| found.record.asked_ms);
    same("the time that was asked for", &asked_ms, &Some(late.due_ms))?;
    same("a copy", &case.add_one_once(&late).await?, &AddedOnce::Known)
}

/// What cannot be stored is refused as a whole.
async fn bad_adds_change_nothing(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 59, "bad-once").await?;
    let good = case.once(fixture, fixture.now_ms() + HOUR_MS, &case.key("good")?, "good");
    let elsewhere = Case { shard: windfall_contract::due::Shard(60), store: Arc::clone(&case.store), ..case };
    let foreign = elsewhere.key("foreign")?;
    let case = Case { shard: windfall_contract::due::Shard(59), ..elsewhere };
    let long = "x".repeat(windfall_contract::due::PAYLOAD_MAX_BYTES + 1);
    for wrong in [
        OnceRecord { key: foreign.clone(), ..good.clone() },
        OnceRecord { payload: long.into(), ..good.clone() },
        OnceRecord { due_ms: windfall_contract::due::DUE_MAX_MS + 1, ..good.clone() },
    ] {
        let added = case.store.add_once(case.shard, &[good.clone(), wrong], DAY_MS).await;
        holds("a bad add is refused", matches!(added, Err(StoreError::Unusable(_))))?;
    }
    let cancel = CancelOnce { tenant: case.route.tenant, key: foreign, may_mark: true };
    let cancelled = case.store.cancel_once(case.shard, &[cancel]).await;
    holds("a key of another shard is refused", matches!(cancelled, Err(StoreError::Unusable(_))))?;
    same("the count", &case.waiting().await?, &0)?;
    case.store_once(&good).await.map(drop)
}

/// Copies that come after the store was opened anew are dropped as before.
async fn a_restart_keeps_marks(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 61, "marks-stay").await?;
    let (one, two, three) = (case.key("one")?, case.key("two")?, case.key("three")?);
    let due_ms = fixture.now_ms() + HOUR_MS;
    let waits = case.once(fixture, due_ms, &one, "waits");
    let cancelled = case.once(fixture, due_ms, &two, "cancelled");
    let awaited = case.once(fixture, due_ms, &three, "awaited");
    case.store_once(&waits).await?;
    case.store_once(&cancelled).await?;
    case.cancel_once(&two, true).await?;
    case.cancel_once(&three, true).await?;
    drop(case);
    let case = Case::open(fixture, 61, "marks-stay").await?;
    same("the count", &case.waiting().await?, &2)?;
    let answers = case.add_once(&[waits, cancelled, awaited], DAY_MS).await?;
    let expected = vec![
        AddedOnce::Known,
        AddedOnce::Cancelled { had_come: true },
        AddedOnce::Cancelled { had_come: false },
    ];
    same("copies", &answers, &expected)?;
    same("the count", &case.waiting().await?, &1)
}

/// Whoever repeats a cancel may rely on it for as long as on a first one.
async fn a_repeated_cancel_renews_its_mark(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 62, "renewed").await?;
    let (came, awaited) = (case.key("came")?, case.key("awaited")?);
    let came = case.once(fixture, fixture.now_ms() + 30 * DAY_MS, &came, "came");
    let awaited = case.once(fixture, fixture.now_ms() + 30 * DAY_MS, &awaited, "awaited");
    case.store_once(&came).await?;
    for key in [&came.key, &awaited.key] {
        case.cancel_once(key, true).await?;
    }
    if !fixture.clock_ahead_ms(DAY_MS) {
        return Ok(());
    }
    for key in [&came.key, &awaited.key] {
        same("again", &case.cancel_once(key, false).await?, &CancelledOnce::Cancelled)?;
    }
    same("the count", &case.waiting().await?, &1)?;
    fixture.clock_ahead_ms(DAY_MS);
    case.add_once(&[], DAY_MS).await?;
    for (record, had_come) in [(came, true), (awaited, false)] {
        let anew = OnceRecord { written_ms: fixture.now_ms(), ..record };
        same("an add", &case.add_one_once(&anew).await?, &AddedOnce::Cancelled { had_come })?;
    }
    same("the count", &case.waiting().await?, &0)
}

/// A task that was given up and is sent again came by a queue as before: its second end uses its key up, too.
async fn a_dead_letter_sent_again_stays_used(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 63, "again").await?;
    let key = case.key("again")?;
    let due_ms = fixture.now_ms() - 120_000;
    let record = case.once(fixture, due_ms, &key, "again");
    let id = case.store_once(&record).await?;
    let due = DueRecord {
        offset_ms: u16::try_from(due_ms % 60_000).unwrap_or(0),
        route: case.route,
        key: Some(key.clone()),
        asked_ms: None,
        first_id: None,
        payload: record.payload.clone(),
    };
    let dead = DeadTask { id, due_ms, died_ms: due_ms, attempts: 1, reason: "it failed".into(), record: due };
    case.end(&case.acquire("one").await?, 1, id, &key, vec![dead]).await?;
    // The mark of the first end is over before that of the second one.
    fixture.clock_ahead_ms(DAY_MS);
    let ended = case.store.end_dead(case.shard, case.route.tenant, &[id], true).await.map_err(said)?;
    same("sent again", &ended, &vec![true])?;
    let again = super::tasks::find(&case, TaskAt::Key(key.clone())).await?;
    let again = again.ok_or("it is not there")?.0;
    same("a copy", &case.add_one_once(&record).await?, &AddedOnce::Known)?;
    case.fire(&case.acquire("one").await?, 1, again, &key).await?;
    fixture.clock_ahead_ms(DAY_MS);
    case.add_once(&[], DAY_MS).await?;
    let anew = OnceRecord { written_ms: fixture.now_ms(), ..record };
    same("a copy after the second end", &case.add_one_once(&anew).await?, &AddedOnce::Known)
}
