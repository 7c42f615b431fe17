//! Tasks that the far tier hands over.

use super::tasks::{cancel, change_one, find, shift};
use super::{Case, Checked, Fixture, holds, said, same, slot_of};
use bytes::Bytes;
use windfall_contract::due::{
    Changed, DUE_MAX_MS, FAR_INDEX, FarRecord, LoadBatch, Loaded, PAYLOAD_MAX_BYTES, Shard, SlotEntry,
    StoreError, TaskAt, TaskId, Waiting,
};

const HOUR_MS: u64 = 3_600_000;
/// A minute of so long ago is over, once the watermark has moved.
const PAST_MS: u64 = 5 * 60_000;
const LOG: u64 = 0xfeed_0000_0000_0001;

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("loaded_tasks_keep_their_ids", loaded_tasks_keep_their_ids(fixture).await),
        ("a_batch_is_loaded_once", a_batch_is_loaded_once(fixture).await),
        ("loaded_tasks_of_the_past_fire_at_once", loaded_tasks_of_the_past_fire_at_once(fixture).await),
        ("a_slot_of_ids_alone_is_dropped", a_slot_of_ids_alone_is_dropped(fixture).await),
        ("bad_batches_change_nothing", bad_batches_change_nothing(fixture).await),
    ]
}

pub(super) async fn run_short(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![("loaded_tasks_keep_their_ids", loaded_tasks_keep_their_ids(fixture).await)]
}

fn far(case: &Case, due_ms: u64, number: u32, payload: &'static str) -> FarRecord {
    let id = TaskId { shard: case.shard, slot: slot_of(due_ms), index: FAR_INDEX + number };
    FarRecord { id, due_ms, route: case.route, payload: Bytes::from_static(payload.as_bytes()) }
}

async fn load(case: &Case, sequence: u64, records: &[FarRecord]) -> Result<Loaded, String> {
    let batch = LoadBatch { log: LOG, sequence, follows: None, records: records.to_vec() };
    case.store.load(case.shard, &batch).await.map_err(said)
}

/// Finds the task by the id that its caller knows.
async fn known(case: &Case, record: &FarRecord) -> Result<Option<(Waiting, u64, Bytes)>, String> {
    let Some((_, state, due_ms, payload, first_id)) = find(case, TaskAt::Id(record.id)).await? else {
        return Ok(None);
    };
    same("the first id", &first_id, &Some(record.id))?;
    Ok(Some((state, due_ms, payload)))
}

/// The id that the far tier gave finds the task before and after moves, a cancel by it is a cancel, and it is the id
/// that a dispatcher reads.
async fn loaded_tasks_keep_their_ids(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 42, "far-ids").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let near = case.add_one(due_ms, "near").await?;
    let all = [
        far(&case, due_ms, 0, "first"),
        far(&case, due_ms, 7, "second"),
        far(&case, due_ms, FAR_INDEX - 1, "last"),
        far(&case, due_ms + HOUR_MS, 7, "other"),
    ];
    same("loaded", &load(&case, 1, &all).await?, &Loaded::Stored)?;
    same("the count", &case.waiting().await?, &5)?;
    for record in &all {
        let expected = Some((Waiting::Waiting, record.due_ms, record.payload.clone()));
        same("a loaded task", &known(&case, record).await?, &expected)?;
    }
    let unknown = far(&case, due_ms, 8, "");
    same("an id that was not loaded", &known(&case, &unknown).await?, &None)?;
    let cancelled = change_one(&case, cancel(&case, TaskAt::Id(unknown.id))).await?;
    same("a cancel of it", &cancelled, &Changed::Unknown)?;
    // Moved twice, found by the same id.
    for (to_ms, payload) in [(due_ms + 2 * HOUR_MS, "moved"), (due_ms + 3 * HOUR_MS, "again")] {
        let to = shift(&case, TaskAt::Id(all[1].id), Some(to_ms), Some(payload));
        let moved = change_one(&case, to).await?;
        holds("it is moved", matches!(moved, Changed::Done(_)))?;
        let expected = Some((Waiting::Waiting, to_ms, Bytes::from_static(payload.as_bytes())));
        same("where it is now", &known(&case, &all[1]).await?, &expected)?;
    }
    for record in &all[1..3] {
        let at = || TaskAt::Id(record.id);
        let done = change_one(&case, cancel(&case, at())).await?;
        holds("it is cancelled", matches!(done, Changed::Done(_)))?;
        same("again", &change_one(&case, cancel(&case, at())).await?, &Changed::Cancelled)?;
        let state = known(&case, record).await?.map(|known| known.0);
        same("its state", &state, &Some(Waiting::Cancelled))?;
    }
    same("the count", &case.waiting().await?, &3)?;
    same("the near one", &find(&case, TaskAt::Id(near)).await?.map(|f| f.1), &Some(Waiting::Waiting))?;
    let listed: Vec<_> = case.list(100).await?.into_iter().map(|found| found.record.payload).collect();
    same("listed", &listed, &["near", "first", "other"].map(Bytes::from).to_vec())?;
    let lease = case.acquire("one").await?;
    let entries = case.read(&lease, slot_of(due_ms)).await?;
    let first_ids: Vec<_> = entries
        .iter()
        .filter_map(|entry| match entry {
            SlotEntry::Task(record) => Some(record.first_id),
            SlotEntry::End(_) => None,
        })
        .collect();
    let expected = [None, Some(all[0].id), Some(all[1].id), Some(all[2].id)];
    same("what a dispatcher reads", &first_ids, &expected.to_vec())?;
    drop(case);
    let case = Case::open(fixture, 42, "far-ids").await?;
    let state = known(&case, &all[0]).await?.map(|known| known.0);
    same("after a restart", &state, &Some(Waiting::Waiting))
}

/// A batch that is sent again is passed over, also when its tasks were cancelled and their slot is gone; an earlier one
/// is told the later one; another log has numbers of its own; a batch without tasks asks, and changes nothing.
async fn a_batch_is_loaded_once(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 43, "far-once").await?;
    let due_ms = fixture.now_ms() - PAST_MS;
    let all = [far(&case, due_ms, 1, "fires"), far(&case, due_ms, 2, "cancelled")];
    same("nothing asks", &load(&case, 41, &[]).await?, &Loaded::Stored)?;
    same("loaded", &load(&case, 40, &all).await?, &Loaded::Stored)?;
    same("again", &load(&case, 40, &all).await?, &Loaded::Before)?;
    for (sequence, answer) in [(0, Loaded::Other(40)), (40, Loaded::Before), (41, Loaded::Stored)] {
        same("nothing asks again", &load(&case, sequence, &[]).await?, &answer)?;
    }
    same("the count", &case.waiting().await?, &2)?;
    let done = change_one(&case, cancel(&case, TaskAt::Id(all[1].id))).await?;
    // A store that has lost its last second may have fired what is due by its clock.
    holds("it is cancelled or fires", matches!(done, Changed::Done(_) | Changed::Firing))?;
    let lease = case.acquire("one").await?;
    case.advance(&lease).await?;
    let slot = slot_of(due_ms);
    let entries = u32::try_from(case.read(&lease, slot).await?.len()).map_err(said)?;
    same("the slot goes", &case.store.drop_slot(&lease, slot, entries).await, &Ok(true))?;
    drop((case, lease));
    let case = Case::open(fixture, 43, "far-once").await?;
    same("after the slot is gone", &load(&case, 40, &all).await?, &Loaded::Before)?;
    // A far tier in front of the store may still know that it was cancelled.
    let state = find(&case, TaskAt::Id(all[1].id)).await?.map(|found| found.1);
    holds("nothing of it waits", matches!(state, None | Some(Waiting::Cancelled)))?;
    let earlier = LoadBatch { log: LOG, sequence: 39, follows: None, records: all.to_vec() };
    let earlier = case.store.load(case.shard, &earlier).await;
    same("an earlier batch is told the later one", &earlier, &Ok(Loaded::Other(40)))?;
    let count = case.waiting().await?;
    let later_ms = fixture.now_ms() + HOUR_MS;
    let next = [far(&case, later_ms, 1, "next")];
    same("the next one", &load(&case, 41, &next).await?, &Loaded::Stored)?;
    let of_another = LoadBatch {
        log: LOG + 1,
        sequence: 1,
        follows: Some(0),
        records: vec![far(&case, later_ms, 2, "other")],
    };
    same("of another log", &case.store.load(case.shard, &of_another).await, &Ok(Loaded::Stored))?;
    same("the count", &case.waiting().await?, &(count + 2))?;
    // One that was sent before another sender came further, and arrives behind it.
    let late = |sequence, follows| LoadBatch {
        log: LOG + 1,
        sequence,
        follows: Some(follows),
        records: vec![far(&case, later_ms, 3, "late")],
    };
    for (sequence, follows, answer) in
        [(7, 0, Loaded::Other(1)), (7, 2, Loaded::Other(1)), (1, 0, Loaded::Before)]
    {
        let answered = case.store.load(case.shard, &late(sequence, follows)).await;
        same("what does not follow", &answered, &Ok(answer))?;
    }
    same("the count", &case.waiting().await?, &(count + 2))?;
    same("what follows", &case.store.load(case.shard, &late(7, 1)).await, &Ok(Loaded::Stored))?;
    same("the count", &case.waiting().await?, &(count + 3))
}

/// What is loaded too late is due at the watermark, with the time that was asked for.
async fn loaded_tasks_of_the_past_fire_at_once(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 44, "far-late").await?;
    let lease = case.acquire("one").await?;
    let watermark_ms = case.advance(&lease).await?.watermark_ms;
    let late = far(&case, watermark_ms - 2 * HOUR_MS, 1, "late");
    same("loaded", &load(&case, 1, std::slice::from_ref(&late)).await?, &Loaded::Stored)?;
    let entries = case.read(&lease, slot_of(watermark_ms)).await?;
    let [SlotEntry::Task(record)] = &entries[..] else { return Err(format!("{entries:?}")) };
    let due_ms = slot_of(watermark_ms).start_ms() + u64::from(record.offset_ms);
    let found = (due_ms, record.asked_ms, record.first_id, record.payload.clone());
    same("what is due", &found, &(watermark_ms, Some(late.due_ms), Some(late.id), late.payload.clone()))?;
    same("the slots", &case.advance(&lease).await?.slots, &vec![(slot_of(watermark_ms), 1)])
}

/// A task that is loaded for another time than that of its id is found by it as long as the minute of its id is there,
/// and that minute is dropped like any other.
async fn a_slot_of_ids_alone_is_dropped(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 45, "far-moved").await?;
    let first_ms = fixture.now_ms() - PAST_MS;
    let later_ms = first_ms + HOUR_MS;
    let moved = FarRecord { due_ms: later_ms, ..far(&case, first_ms, 5, "moved") };
    same("loaded", &load(&case, 1, std::slice::from_ref(&moved)).await?, &Loaded::Stored)?;
    let expected = Some((Waiting::Waiting, later_ms, moved.payload.clone()));
    same("by its id", &known(&case, &moved).await?, &expected)?;
    let lease = case.acquire("one").await?;
    let drop_it = async || case.store.drop_slot(&lease, moved.id.slot, 0).await.map_err(said);
    same("before the watermark", &drop_it().await?, &false)?;
    let slots = case.advance(&lease).await?.slots;
    same("the slots", &slots, &vec![(moved.id.slot, 0)])?;
    same("it goes", &drop_it().await?, &true)?;
    same("again", &drop_it().await?, &true)?;
    same("no slot is left", &case.advance(&lease).await?.slots, &Vec::new())?;
    same("its id leads nowhere", &known(&case, &moved).await?, &None)?;
    let entries = case.read(&lease, slot_of(later_ms)).await?;
    holds("it is still there", matches!(&entries[..], [SlotEntry::Task(_)]))
}

async fn bad_batches_change_nothing(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 46, "far-bad").await?;
    let good = far(&case, fixture.now_ms() + HOUR_MS, 1, "good");
    let wrong = [
        FarRecord { due_ms: DUE_MAX_MS + 1, ..good.clone() },
        FarRecord { payload: vec![0; PAYLOAD_MAX_BYTES + 1].into(), ..good.clone() },
        FarRecord { id: TaskId { index: FAR_INDEX - 1, ..good.id }, ..good.clone() },
        FarRecord { id: TaskId { shard: Shard(35), ..good.id }, ..good.clone() },
    ];
    for wrong in wrong {
        let batch = LoadBatch { log: LOG, sequence: 1, follows: None, records: vec![good.clone(), wrong] };
        let loaded = case.store.load(case.shard, &batch).await;
        holds("a bad task is refused", matches!(loaded, Err(StoreError::Unusable(_))))?;
    }
    let beyond = LoadBatch { log: LOG, sequence: 1 << 53, follows: None, records: vec![good.clone()] };
    let beyond = case.store.load(case.shard, &beyond).await;
    holds("a number that is too large is refused", matches!(beyond, Err(StoreError::Unusable(_))))?;
    same("the count", &case.waiting().await?, &0)?;
    same("the good one alone", &load(&case, 1, &[good]).await?, &Loaded::Stored)
}
