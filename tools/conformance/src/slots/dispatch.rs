//! What dispatchers may rely on.

use super::{Case, Checked, Fixture, LONG_MS, SOON_MS, holds, said, same, slot_of};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::due::{
    Added, Change, Changed, DeadTask, DueRecord, FinishBatch, Lease, LeaseError, NewRecord, ReadFrom, Shard,
    SlotEntry, SlotMinute, TaskAt, TaskId, Waiting,
};

const HOUR_MS: u64 = 3_600_000;

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("instances_that_beat_are_alive", instances_that_beat_are_alive(fixture).await),
        ("a_shard_has_one_lease", a_shard_has_one_lease(fixture).await),
        ("a_lost_lease_changes_nothing", a_lost_lease_changes_nothing(fixture).await),
        ("slots_are_read_as_far_as_asked", slots_are_read_as_far_as_asked(fixture).await),
        ("a_cancel_meets_the_watermark", a_cancel_meets_the_watermark(fixture).await),
        ("cancels_race_with_the_watermark", cancels_race_with_the_watermark(fixture).await),
        ("a_batch_is_finished_once", a_batch_is_finished_once(fixture).await),
        ("keys_are_freed_where_they_lead_here", keys_are_freed_where_they_lead_here(fixture).await),
        ("a_key_is_armed_again", a_key_is_armed_again(fixture).await),
        ("a_dropped_slot_stays_away", a_dropped_slot_stays_away(fixture).await),
        ("dead_letters_wait_for_people", dead_letters_wait_for_people(fixture).await),
        ("a_clock_that_goes_back", a_clock_that_goes_back(fixture).await),
        ("a_clock_that_jumps_ahead", a_clock_that_jumps_ahead(fixture).await),
    ]
}

pub(super) async fn run_short(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("instances_that_beat_are_alive", instances_that_beat_are_alive(fixture).await),
        ("a_lost_lease_changes_nothing", a_lost_lease_changes_nothing(fixture).await),
        ("slots_are_read_as_far_as_asked", slots_are_read_as_far_as_asked(fixture).await),
        ("a_dropped_slot_stays_away", a_dropped_slot_stays_away(fixture).await),
        ("dead_letters_wait_for_people", dead_letters_wait_for_people(fixture).await),
    ]
}

/// Who has beaten lives for as long as it said.
async fn instances_that_beat_are_alive(fixture: &dyn Fixture) -> Result<(), String> {
    let store = fixture.open().await?;
    same("the first", &store.beat("b", LONG_MS).await.map_err(said)?, &vec!["b".into()])?;
    let all = vec!["a".into(), "b".into()];
    same("in order", &store.beat("a", SOON_MS).await.map_err(said)?, &all)?;
    fixture.wait_ms(SOON_MS + 300).await;
    same("later", &store.beat("b", LONG_MS).await.map_err(said)?, &vec!["b".into()])
}

/// One instance has a shard until its lease runs out or is given back.
async fn a_shard_has_one_lease(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 20, "lease").await?;
    let (store, shard) = (&case.store, case.shard);
    let first = case.acquire("one").await?;
    let held = store.acquire(shard, "two", LONG_MS).await.map_err(said)?.err().ok_or("two leases")?;
    same("who has it", &held.instance, &"one".into())?;
    holds("its time is shown", (1..=LONG_MS).contains(&held.left_ms))?;
    let anew = case.acquire("one").await?;
    holds("epochs grow", anew.epoch > first.epoch)?;
    same("the older lease", &store.renew(&first, LONG_MS).await, &Err(LeaseError::Lost))?;
    store.release(&anew).await.map_err(said)?;
    // The answer may have got lost.
    store.release(&anew).await.map_err(said)?;
    same("given back", &store.renew(&anew, LONG_MS).await, &Err(LeaseError::Lost))?;
    let second =
        store.acquire(shard, "two", SOON_MS).await.map_err(said)?.map_err(|held| format!("{held:?}"))?;
    holds("epochs grow", second.epoch > anew.epoch)?;
    same("given back and taken", &store.release(&anew).await, &Err(LeaseError::Lost))?;
    fixture.wait_ms(SOON_MS + 300).await;
    // It has run out, and nobody has taken it.
    store.renew(&second, SOON_MS).await.map_err(said)?;
    let held = store.acquire(shard, "one", LONG_MS).await.map_err(said)?;
    holds("a renewed lease is held", held.is_err())?;
    fixture.wait_ms(SOON_MS + 300).await;
    case.advance(&second).await?;
    let third = case.acquire("one").await?;
    holds("epochs grow", third.epoch > second.epoch)?;
    same("taken over", &store.renew(&second, SOON_MS).await, &Err(LeaseError::Lost))
}

/// Every call of an instance whose shard was taken over is refused, and has changed nothing.
async fn a_lost_lease_changes_nothing(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 21, "fencing").await?;
    let (store, shard) = (&case.store, case.shard);
    let past_ms = fixture.now_ms() - 5 * 60_000;
    let key = case.key("fencing")?;
    let id = case.add(&[NewRecord { key: Some(key.clone()), ..case.task(past_ms, "x") }]).await?[0];
    let old = store.acquire(shard, "old", 1).await.map_err(said)?.map_err(|held| format!("{held:?}"))?;
    fixture.wait_ms(50).await;
    let new = case.acquire("new").await?;
    let slot = id.slot;
    let batch = FinishBatch {
        sequence: 1,
        done: vec![(0, Bytes::from_static(&[0x80]))],
        keys: vec![(case.route.tenant, key.clone(), 0)],
        over: BTreeMap::from([(case.route.tenant, 1)]),
        attempts: BTreeMap::from([(0, 3)]),
        dead: vec![dead_task(&case, id, past_ms)],
    };
    let unknown = Lease { shard, epoch: new.epoch + 1 };
    for lease in [&old, &unknown] {
        let lost = [
            store.renew(lease, LONG_MS).await.err(),
            store.release(lease).await.err(),
            store.advance(lease, HOUR_MS, &[], 1_000).await.err(),
            store.state(lease, slot).await.err(),
            store.finish(lease, slot, &batch).await.err(),
            store.drop_slot(lease, slot, 1).await.err(),
        ];
        same("all calls", &lost, &[const { Some(LeaseError::Lost) }; 6])?;
    }
    let state = store.state(&new, slot).await.map_err(said)?;
    holds("nothing is done", state.done.iter().all(|byte| *byte == 0) && state.attempts.is_empty())?;
    same("the count", &case.waiting().await?, &1)?;
    same("dead letters", &store.dead(case.route.tenant, None, 10).await.map_err(said)?, &Vec::new())?;
    let found = store.get(shard, case.route.tenant, &[TaskAt::Key(key)]).await.map_err(said)?;
    // The watermark has not moved either: the task still waits.
    let found = found.into_iter().flatten().next().map(|found| (found.id, found.state));
    same("the task", &found, &Some((id, Waiting::Waiting)))?;
    // The new owner's own first batch is not taken for one of the old owner's.
    store.finish(&new, slot, &batch).await.map_err(said)?;
    same("the count", &case.waiting().await?, &0)
}

/// Slots come oldest first with the number of their entries, entries from where the dispatcher stands, as far as the
/// bytes go, and one at least.
async fn slots_are_read_as_far_as_asked(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 22, "reading").await?;
    let base_ms = (fixture.now_ms() / 60_000 + 30) * 60_000;
    for (minute, tasks) in [(2, 4_u32), (0, 3), (9, 1)] {
        let batch: Vec<_> =
            (0..tasks).map(|at| case.task(base_ms + minute * 60_000, &at.to_string())).collect();
        case.add(&batch).await?;
    }
    let lease = case.acquire("one").await?;
    let now_ms = case.advance(&lease).await?.watermark_ms;
    let slot = |minute: u64| slot_of(base_ms + minute * 60_000);
    let ahead = async |end_ms: u64, reads: &[ReadFrom], max_bytes: usize| {
        case.store.advance(&lease, end_ms.saturating_sub(now_ms), reads, max_bytes).await.map_err(said)
    };
    same("none yet", &ahead(base_ms - 60_000, &[], 0).await?.slots, &vec![])?;
    let two = vec![(slot(0), 3), (slot(2), 4)];
    same("two", &ahead(base_ms + 4 * 60_000, &[], 0).await?.slots, &two)?;
    let far = ahead(u64::MAX, &[], 0).await?;
    same("all", &far.slots, &vec![(slot(0), 3), (slot(2), 4), (slot(9), 1)])?;
    holds("nothing is read that was not asked for", far.entries.is_empty())?;

    let from = |minute, next_index| ReadFrom { slot: slot(minute), next_index };
    let reads = [from(0, 1), from(5, 0), from(2, 4), from(9, 0)];
    let read = ahead(0, &reads, 1 << 20).await?.entries;
    let shape: Vec<_> = read.iter().map(|(slot, first, entries)| (*slot, *first, entries.len())).collect();
    same("parts", &shape, &vec![(slot(0), 1, 2), (slot(9), 0, 1)])?;
    let entry = SlotEntry::decode(&read[0].2[0]).map_err(said)?;
    let SlotEntry::Task(DueRecord { payload, .. }) = entry else { return Err(format!("{entry:?}")) };
    same("an entry", &payload, &Bytes::from_static(b"1"))?;
    // Each of them has 8 bytes.
    for (max_bytes, expected) in [(0, 1), (8, 1), (23, 2), (24, 3), (32, 3), (40, 3)] {
        let read = ahead(0, &[from(0, 0), from(2, 0)], max_bytes).await?.entries;
        same(&format!("entries in {max_bytes} bytes"), &read[0].2.len(), &expected)?;
        let all: usize = read.iter().map(|part| part.2.len()).sum();
        same("all parts", &all, &(max_bytes / 8).clamp(1, 7))?;
    }
    Ok(())
}

/// Above the watermark a task can be cancelled, and the dispatcher learns of it; below it cannot.
async fn a_cancel_meets_the_watermark(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 23, "watermark").await?;
    let lease = case.acquire("one").await?;
    case.advance(&lease).await?;
    let due_ms = fixture.now_ms() + SOON_MS;
    let ids = case.add(&[case.task(due_ms, "a"), case.task(due_ms, "b")]).await?;
    let cancel = |at: usize| [Change { tenant: case.route.tenant, at: TaskAt::Id(ids[at]), to: None }];
    let before = case.store.change(case.shard, &cancel(0)).await.map_err(said)?;
    same("before its time", &before, &vec![Changed::Done(ids[0])])?;
    fixture.wait_ms(SOON_MS + 300).await;
    // The watermark decides, not the clock: nobody has been told yet that it is due.
    let entries = case.read(&lease, ids[0].slot).await?;
    holds("the watermark has passed it", case.advance(&lease).await?.watermark_ms >= due_ms)?;
    same("entries", &entries.len(), &3)?;
    same("the mark", &entries[2], &SlotEntry::End(ids[0].index))?;
    let after = case.store.change(case.shard, &cancel(1)).await.map_err(said)?;
    same("after its time", &after, &vec![Changed::Firing])?;
    let found = case.store.get(case.shard, case.route.tenant, &[TaskAt::Id(ids[1])]).await.map_err(said)?;
    same("its state", &found[0].as_ref().map(|found| found.state), &Some(Waiting::Firing))
}

/// I10: whatever was acknowledged as cancelled is known to a dispatcher that has read all entries which were there when
/// the watermark passed the task.
async fn cancels_race_with_the_watermark(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 24, "race").await?;
    let lease = case.acquire("one").await?;
    case.advance(&lease).await?;
    let from_ms = fixture.now_ms() + 300;
    let batch: Vec<_> = (0..600).map(|at| case.task(from_ms + at, "x")).collect();
    let ids = case.add(&batch).await?;
    let (store, own, tenant) = (Arc::clone(&case.store), ids.clone(), case.route.tenant);
    let canceller = tokio::spawn(async move {
        let mut done = BTreeSet::new();
        // Every second one; first early ones, then those that are due just now.
        for ids in own.chunks(6) {
            for id in ids.iter().step_by(2) {
                let change = Change { tenant, at: TaskAt::Id(*id), to: None };
                let changed = store.change(Shard(24), &[change]).await?;
                if changed == [Changed::Done(*id)] {
                    done.insert(*id);
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        Ok::<_, windfall_contract::due::StoreError>(done)
    });
    let (mut read, mut ends, mut fired): (BTreeMap<_, u32>, _, _) =
        (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    read.extend(ids.iter().map(|id| (id.slot, 0_u32)));
    loop {
        let advanced = case.store.advance(&lease, 0, &[], 0).await.map_err(said)?;
        for (slot, entries) in &advanced.slots {
            let Some(next) = read.get_mut(slot) else { continue };
            while *next < *entries {
                let from = [ReadFrom { slot: *slot, next_index: *next }];
                let part = case.store.advance(&lease, 0, &from, 1 << 20).await.map_err(said)?;
                for entry in part.entries.into_iter().flat_map(|part| part.2) {
                    if let SlotEntry::End(index) = SlotEntry::decode(&entry).map_err(said)? {
                        ends.insert(TaskId { shard: Shard(24), slot: *slot, index });
                    }
                    *next += 1;
                }
            }
        }
        for (id, due_ms) in ids.iter().zip(from_ms..) {
            if due_ms <= advanced.watermark_ms && !ends.contains(id) {
                fired.insert(*id);
            }
        }
        if fired.len() + ends.len() >= ids.len() {
            break;
        }
        fixture.wait_ms(3).await;
    }
    let done = canceller.await.map_err(said)?.map_err(said)?;
    holds("some were cancelled", !done.is_empty())?;
    same("cancelled and fired", &done.intersection(&fired).collect::<Vec<_>>(), &Vec::new())
}

fn dead_task(case: &Case, id: TaskId, due_ms: u64) -> DeadTask {
    let offset_ms = u16::try_from(due_ms % 60_000).unwrap_or(0);
    let payload = Bytes::from_static(b"dead");
    let record =
        DueRecord { offset_ms, route: case.route, key: None, asked_ms: None, first_id: None, payload };
    DeadTask { id, due_ms, died_ms: due_ms + 9, attempts: 3, reason: "it was refused".into(), record }
}

/// A batch that comes again after a lost answer is passed over, and a new lease counts anew.
async fn a_batch_is_finished_once(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 25, "finish").await?;
    let tenant = case.route.tenant;
    let past_ms = fixture.now_ms() - 5 * 60_000;
    let slot = slot_of(past_ms);
    case.add(&vec![case.task(past_ms, "x"); 5_000]).await?;
    let lease = case.acquire("one").await?;
    case.advance(&lease).await?;
    let batch = |sequence, first: u32, bits: &'static [u8], over| FinishBatch {
        sequence,
        done: vec![(first, Bytes::from_static(bits))],
        over: BTreeMap::from([(tenant, over)]),
        attempts: BTreeMap::from([(first / 254 * 10 + 10, 2)]),
        ..FinishBatch::default()
    };
    let finish = async |lease: &Lease, batch: &FinishBatch| case.store.finish(lease, slot, batch).await;
    let (one, two) = (batch(1, 0, &[0xff, 0x80], 9), batch(2, 254, &[0xf0, 0, 0, 1], 5));
    for _ in 0..2 {
        finish(&lease, &one).await.map_err(said)?;
        same("the count after the first", &case.waiting().await?, &4_991)?;
    }
    for batch in [&two, &two, &one] {
        finish(&lease, batch).await.map_err(said)?;
        same("the count after the second", &case.waiting().await?, &4_986)?;
    }
    let state = case.store.state(&lease, slot).await.map_err(said)?;
    let mut expected = vec![0; 258];
    (expected[0], expected[1], expected[254], expected[257]) = (0xff, 0x80, 0xf0, 1);
    let mut done = state.done.to_vec();
    done.resize(done.len().max(258), 0);
    holds("the done bits", done[..258] == expected[..] && done[258..].iter().all(|byte| *byte == 0))?;
    same("the attempts", &state.attempts, &BTreeMap::from([(10, 2), (20, 2)]))?;
    let beyond = FinishBatch { sequence: 3, done: vec![(625, Bytes::from_static(&[1]))], ..one.clone() };
    same("bits beyond the slot", &finish(&lease, &beyond).await, &Err(LeaseError::Lost))?;
    same("the count", &case.waiting().await?, &4_986)?;
    let list = case.list(1_000).await?;
    same("those that wait", &(list.len(), list[0].id.index), &(4_986, 9))?;

    let next = case.acquire("one").await?;
    finish(&next, &batch(1, 2, &[0xff], 8)).await.map_err(said)?;
    same("the count under the next lease", &case.waiting().await?, &4_978)?;
    same("the old lease", &finish(&lease, &batch(9, 3, &[0xff], 8)).await, &Err(LeaseError::Lost))?;
    let state = case.store.state(&next, slot).await.map_err(said)?;
    same("all owners' bits", &state.done.slice(..3), &Bytes::from_static(&[0xff, 0x80, 0xff]))?;
    same(
        "of a slot that is not there",
        &case.store.state(&next, SlotMinute(1)).await,
        &Ok(Default::default()),
    )
}

/// The key of a task that is over is free; one that leads elsewhere meanwhile stays.
async fn keys_are_freed_where_they_lead_here(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 26, "freeing").await?;
    let tenant = case.route.tenant;
    let (ours, other) = (case.key("ours")?, case.key("other")?);
    let keyed = |key: &_, due_ms| NewRecord { key: Some(Clone::clone(key)), ..case.task(due_ms, "x") };
    let due_ms = fixture.now_ms() + 2 * SOON_MS;
    let ids = case.add(&[keyed(&ours, due_ms), keyed(&other, due_ms)]).await?;
    // Its key leads to another slot from now on.
    let to = windfall_contract::due::Moved { due_ms: Some(due_ms + HOUR_MS), payload: None };
    let moved = Change { tenant, at: TaskAt::Key(other.clone()), to: Some(to) };
    let moved = case.store.change(case.shard, &[moved]).await.map_err(said)?;
    fixture.wait_ms(2 * SOON_MS + 300).await;
    let lease = case.acquire("one").await?;
    case.advance(&lease).await?;
    // It fires, so it still has its key.
    let again = case.store.add(case.shard, &[keyed(&ours, due_ms)]).await.map_err(said)?;
    same("while it fires", &again, &vec![Added::Exists(ids[0])])?;
    let keys = vec![(tenant, ours.clone(), 0), (tenant, other.clone(), 1), (tenant, ours.clone(), 1)];
    let batch = FinishBatch {
        sequence: 1,
        done: vec![(0, Bytes::from_static(&[0xc0]))],
        keys,
        over: BTreeMap::from([(tenant, 1)]),
        ..FinishBatch::default()
    };
    case.store.finish(&lease, ids[0].slot, &batch).await.map_err(said)?;
    let at = [TaskAt::Key(ours.clone()), TaskAt::Key(other)];
    let found = case.store.get(case.shard, tenant, &at).await.map_err(said)?;
    same("the freed key", &found[0], &None)?;
    same("the moved one", &found[1].as_ref().map(|found| Changed::Done(found.id)), &moved.first().copied())?;
    case.add(&[keyed(&ours, due_ms)]).await.map(drop)
}

/// While a task fires its key takes another task, and nothing but that one's finish frees it; the repeat of an add whose
/// answer got lost is no other task.
async fn a_key_is_armed_again(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 32, "armed").await?;
    let (tenant, past_ms) = (case.route.tenant, fixture.now_ms() - 5 * 60_000);
    let (key, late) = (case.key("armed")?, case.key("late")?);
    let keyed =
        |key: &_, due_ms, payload| NewRecord { key: Some(Clone::clone(key)), ..case.task(due_ms, payload) };
    let add = async |batch: &[NewRecord]| case.store.add(case.shard, batch).await.map_err(said);
    let first = keyed(&key, past_ms, "x");
    let id = case.add(std::slice::from_ref(&first)).await?[0];
    let other = keyed(&key, past_ms, "other");
    same("before the watermark", &add(&[other]).await?, &vec![Added::Exists(id)])?;
    let lease = case.acquire("one").await?;
    case.advance(&lease).await?;
    same("the answer got lost", &add(std::slice::from_ref(&first)).await?, &vec![Added::Exists(id)])?;
    let again = keyed(&key, fixture.now_ms() + HOUR_MS, "x");
    let answers = add(&[first.clone(), again.clone(), again.clone()]).await?;
    let [Added::Exists(old), Added::Stored(next), Added::Exists(same_next)] = answers[..] else {
        return Err(format!("armed again: {answers:?}"));
    };
    same("the ids", &(old, same_next), &(id, next))?;
    same("once more", &add(&[again]).await?, &vec![Added::Exists(next)])?;
    same("while the other waits", &add(&[first]).await?, &vec![Added::Exists(next)])?;
    same("the count", &case.waiting().await?, &2)?;
    let batch = FinishBatch {
        sequence: 1,
        done: vec![(0, Bytes::from_static(&[0x80]))],
        keys: vec![(tenant, key.clone(), id.index)],
        over: BTreeMap::from([(tenant, 1)]),
        ..FinishBatch::default()
    };
    case.store.finish(&lease, id.slot, &batch).await.map_err(said)?;
    let found = case.store.get(case.shard, tenant, &[TaskAt::Key(key)]).await.map_err(said)?;
    same("the key leads to", &found[0].as_ref().map(|found| found.id), &Some(next))?;
    same("the count", &case.waiting().await?, &1)?;

    // Due time, target and payload each make it another task, also where it was too late for its time.
    let one = keyed(&late, past_ms, "late");
    let id = case.add(std::slice::from_ref(&one)).await?[0];
    same("the answer got lost", &add(&[one]).await?, &vec![Added::Exists(id)])?;
    let target = case.store.target(tenant, "another").await.map_err(said)?;
    let elsewhere = windfall_contract::due::Route { tenant, target };
    for other in [
        keyed(&late, past_ms + 1, "late"),
        keyed(&late, past_ms + 1, "lat"),
        NewRecord { route: elsewhere, ..keyed(&late, past_ms + 1, "lat") },
    ] {
        let id = case.add(std::slice::from_ref(&other)).await?[0];
        same("its repeat", &add(&[other]).await?, &vec![Added::Exists(id)])?;
    }
    same("the count", &case.waiting().await?, &5)
}

/// A slot goes when the watermark is past its minute and nothing came behind what the dispatcher knows; its ids are
/// never given again.
async fn a_dropped_slot_stays_away(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 27, "dropping").await?;
    let store = &case.store;
    let past_ms = fixture.now_ms() - 5 * 60_000;
    let ids = case.add(&vec![case.task(past_ms, "x"); 3]).await?;
    let key = case.key("dropping")?;
    let keyed = NewRecord { key: Some(key.clone()), ..case.task(past_ms, "keyed") };
    case.add(std::slice::from_ref(&keyed)).await?;
    let lease = case.acquire("one").await?;
    let drop = async |slot, entries| store.drop_slot(&lease, slot, entries).await.map_err(said);
    same("before the watermark", &drop(ids[0].slot, 4).await?, &false)?;
    let watermark_ms = case.advance(&lease).await?.watermark_ms;
    same("with an entry more", &drop(ids[0].slot, 3).await?, &false)?;
    let now = case.add_one(watermark_ms, "now").await?;
    same("of the watermark's minute", &drop(slot_of(watermark_ms), 9).await?, &false)?;
    same("dropped", &drop(ids[0].slot, 4).await?, &true)?;
    same("again", &drop(ids[0].slot, 4).await?, &true)?;
    let at: Vec<_> = ids.iter().map(|id| TaskAt::Id(*id)).collect();
    let found = store.get(case.shard, case.route.tenant, &at).await.map_err(said)?;
    same("its tasks", &found, &vec![None; 3])?;
    let change = Change { tenant: case.route.tenant, at: at[0].clone(), to: None };
    same("a cancel", &store.change(case.shard, &[change]).await.map_err(said)?, &vec![Changed::Unknown])?;
    same("its state", &store.state(&lease, ids[0].slot).await, &Ok(Default::default()))?;
    let slots = store.advance(&lease, 0, &[ReadFrom { slot: ids[0].slot, next_index: 0 }], 1_000).await;
    let slots = slots.map_err(said)?;
    holds(
        "it is not read",
        slots.entries.is_empty() && slots.slots.iter().all(|slot| slot.0 != ids[0].slot),
    )?;
    let late = case.add_one(past_ms, "late").await?;
    holds("what is as late goes elsewhere", late.slot >= now.slot)?;
    // The key of a task whose slot is gone is free, whoever forgot it.
    holds("the key is free", case.add(&[keyed]).await.is_ok())
}

/// What was given up is listed in the order of ids until it is deleted or sent again, which makes it wait again.
async fn dead_letters_wait_for_people(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 28, "dead").await?;
    let (store, tenant) = (&case.store, case.route.tenant);
    let past_ms = fixture.now_ms() - 5 * 60_000;
    let mut expected = Vec::new();
    let mut leases = BTreeMap::new();
    for shard in [28, 29] {
        let case = Case { store: Arc::clone(store), shard: Shard(shard), ..case };
        let ids = case.add(&vec![case.task(past_ms, "dead"); 4]).await?;
        let lease = case.acquire("one").await?;
        case.advance(&lease).await?;
        let dead: Vec<_> = ids.iter().rev().map(|id| dead_task(&case, *id, past_ms)).collect();
        let batch = FinishBatch {
            sequence: 1,
            done: vec![(0, Bytes::from_static(&[0xf0]))],
            over: BTreeMap::from([(tenant, 4)]),
            dead: dead.clone(),
            ..FinishBatch::default()
        };
        store.finish(&lease, ids[0].slot, &batch).await.map_err(said)?;
        same("the slot goes", &store.drop_slot(&lease, ids[0].slot, 4).await, &Ok(true))?;
        same("the count", &case.waiting().await?, &0)?;
        expected.extend(dead.into_iter().rev());
        leases.insert(shard, lease);
    }
    for limit in [1, 3, 100] {
        let mut found: Vec<DeadTask> = Vec::new();
        loop {
            let page = store.dead(tenant, found.last().map(|dead| dead.id), limit).await.map_err(said)?;
            if page.is_empty() {
                break;
            }
            holds("a page is no longer than asked for", page.len() <= limit)?;
            found.extend(page);
        }
        same("all pages", &found, &expected)?;
    }
    same("of another tenant", &store.dead(u16::MAX, None, 10).await.map_err(said)?, &Vec::new())?;

    let [again, gone] = [expected[0].id, expected[1].id];
    let end =
        async |ids: &[TaskId], again| store.end_dead(case.shard, tenant, ids, again).await.map_err(said);
    let others = store.end_dead(case.shard, u16::MAX, &[again], true).await.map_err(said)?;
    same("by another tenant", &others, &vec![false])?;
    same("of another shard", &end(&[expected[4].id], false).await?, &vec![false])?;
    same("deleted", &end(&[gone, gone], false).await?, &vec![true, false])?;
    same("sent again", &end(&[gone, again], true).await?, &vec![false, true])?;
    same("sent again once", &end(&[again], true).await?, &vec![false])?;
    same("those that are left", &store.dead(tenant, None, 10).await.map_err(said)?, &expected[2..].to_vec())?;
    same("the count", &case.waiting().await?, &1)?;
    let watermark_ms = case.advance(&leases[&28]).await?.watermark_ms;
    let all = case.list(10).await?;
    let [found] = &all[..] else { return Err(format!("{all:?}")) };
    let due_ms = found.id.slot.start_ms() + u64::from(found.record.offset_ms);
    holds("it is due at once", due_ms <= watermark_ms)?;
    let record = &found.record;
    let expected = (Some(again), Some(past_ms), Bytes::from_static(b"dead"));
    same("what it is", &(record.first_id, record.asked_ms, record.payload.clone()), &expected)
}

/// The watermark never goes back, and a lease that was given before ends as if it were given now.
async fn a_clock_that_goes_back(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 30, "clock-back").await?;
    let began = Instant::now();
    let lease = case.store.acquire(case.shard, "gone", SOON_MS).await.map_err(said)?;
    let lease = lease.map_err(|held| format!("{held:?}"))?;
    let before = case.advance(&lease).await?.watermark_ms;
    case.store.beat("gone", SOON_MS).await.map_err(said)?;
    fixture.clock_back_ms(HOUR_MS).await?;
    let after = case.advance(&lease).await?.watermark_ms;
    holds("the watermark has not gone back", after >= before && after > fixture.now_ms())?;
    let id = case.add_one(fixture.now_ms() + 1_000, "below the watermark").await?;
    let change = Change { tenant: case.route.tenant, at: TaskAt::Id(id), to: None };
    same(
        "what the clock has passed before is due",
        &case.store.change(case.shard, &[change]).await.map_err(said)?,
        &vec![Changed::Firing],
    )?;
    let held = case.store.acquire(case.shard, "next", SOON_MS).await.map_err(said)?;
    let soon = match held {
        Err(held) => (1..=SOON_MS).contains(&held.left_ms),
        // On a busy machine the lease may have run out already.
        Ok(_) => began.elapsed() >= Duration::from_millis(SOON_MS),
    };
    holds("the lease ends soon", soon)?;
    case.store.beat("next", LONG_MS).await.map_err(said)?;
    fixture.wait_ms(SOON_MS + 300).await;
    let taken = case.store.acquire(case.shard, "next", SOON_MS).await.map_err(said)?;
    holds("it has run out", taken.is_ok())?;
    let living = case.store.beat("next", LONG_MS).await.map_err(said)?;
    holds("who was alive before is not for ever", !living.contains(&"gone".to_owned()))
}

/// All that is due by then fires, and leases have run out.
async fn a_clock_that_jumps_ahead(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 31, "clock-ahead").await?;
    let lease = case.acquire("one").await?;
    case.advance(&lease).await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let ids = case.add(&[case.task(due_ms, "due"), case.task(due_ms + 3 * HOUR_MS, "later")]).await?;
    if !fixture.clock_ahead_ms(2 * HOUR_MS) {
        return Ok(());
    }
    let advanced = case.advance(&lease).await?;
    holds("the watermark follows", advanced.watermark_ms >= due_ms)?;
    same("slots", &advanced.slots, &vec![(ids[0].slot, 1)])?;
    let at: Vec<_> = ids.iter().map(|id| TaskAt::Id(*id)).collect();
    let found = case.store.get(case.shard, case.route.tenant, &at).await.map_err(said)?;
    let states: Vec<_> = found.iter().flatten().map(|found| found.state).collect();
    same("states", &states, &vec![Waiting::Firing, Waiting::Waiting])?;
    let next = case.acquire("two").await?;
    same("who slept", &case.store.renew(&lease, LONG_MS).await, &Err(LeaseError::Lost))?;
    case.advance(&next).await.map(drop)
}
