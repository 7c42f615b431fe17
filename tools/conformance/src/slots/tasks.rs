//! What callers may rely on.

use super::{Case, Checked, Fixture, LONG_MS, holds, said, same, slot_of};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use windfall_contract::due::{
    Added, Change, Changed, DUE_MAX_MS, Found, KnownName, Moved, NameKept, NewRecord, PAYLOAD_MAX_BYTES,
    Route, Shard, StoreError, TaskAt, TaskId, Waiting,
};

const HOUR_MS: u64 = 3_600_000;
const YEARS_400_MS: u64 = 400 * 365 * 24 * HOUR_MS;

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("names_have_numbers", names_have_numbers(fixture).await),
        ("names_are_kept", names_are_kept(fixture).await),
        ("tasks_are_found_as_they_were_added", tasks_are_found_as_they_were_added(fixture).await),
        ("bad_input_changes_nothing", bad_input_changes_nothing(fixture).await),
        ("keys_are_unique_and_freed", keys_are_unique_and_freed(fixture).await),
        ("a_cancel_is_done_once", a_cancel_is_done_once(fixture).await),
        ("moved_tasks_are_followed", moved_tasks_are_followed(fixture).await),
        ("the_past_is_due_at_once", the_past_is_due_at_once(fixture).await),
        ("lists_have_pages", lists_have_pages(fixture).await),
        ("a_page_looks_at_a_bounded_number", a_page_looks_at_a_bounded_number(fixture).await),
        ("large_batches_are_whole", large_batches_are_whole(fixture).await),
        ("callers_at_once", callers_at_once(fixture).await),
        ("a_restart_keeps_all", a_restart_keeps_all(fixture).await),
    ]
}

pub(super) async fn run_short(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("names_are_kept", names_are_kept(fixture).await),
        ("tasks_are_found_as_they_were_added", tasks_are_found_as_they_were_added(fixture).await),
        ("moved_tasks_are_followed", moved_tasks_are_followed(fixture).await),
        ("lists_have_pages", lists_have_pages(fixture).await),
        ("large_batches_are_whole", large_batches_are_whole(fixture).await),
        ("a_restart_keeps_all", a_restart_keeps_all(fixture).await),
    ]
}

pub(super) fn cancel(case: &Case, at: TaskAt) -> Change {
    Change { tenant: case.route.tenant, at, to: None }
}

pub(super) fn shift(case: &Case, at: TaskAt, due_ms: Option<u64>, payload: Option<&'static str>) -> Change {
    let payload = payload.map(|payload| Bytes::from_static(payload.as_bytes()));
    Change { tenant: case.route.tenant, at, to: Some(Moved { due_ms, payload }) }
}

pub(super) async fn change(case: &Case, batch: &[Change]) -> Result<Vec<Changed>, String> {
    case.store.change(case.shard, batch).await.map_err(said)
}

pub(super) async fn change_one(case: &Case, one: Change) -> Result<Changed, String> {
    change(case, &[one]).await?.pop().ok_or_else(|| "no answer".into())
}

pub(super) async fn find(
    case: &Case,
    at: TaskAt,
) -> Result<Option<(TaskId, Waiting, u64, Bytes, Option<TaskId>)>, String> {
    let found = case.store.get(case.shard, case.route.tenant, &[at]).await.map_err(said)?;
    let found = found.into_iter().next().ok_or("no answer")?;
    Ok(found.map(|found| {
        let due_ms = found.id.slot.start_ms() + u64::from(found.record.offset_ms);
        (found.id, found.state, due_ms, found.record.payload, found.record.first_id)
    }))
}

/// A name has one number for ever, another name has another; each tenant has targets of its own.
async fn names_have_numbers(fixture: &dyn Fixture) -> Result<(), String> {
    let store = fixture.open().await?;
    let (one, other) =
        (store.tenant("name-one").await.map_err(said)?, store.tenant("name-other").await.map_err(said)?);
    holds("two tenants have two numbers", one != other)?;
    let first = store.target(one, "same").await.map_err(said)?;
    let second = store.target(one, "second").await.map_err(said)?;
    let others = store.target(other, "same").await.map_err(said)?;
    holds("two targets have two numbers", first != second)?;
    drop(store);
    let store = fixture.open().await?;
    same("the number after a restart", &store.tenant("name-one").await.map_err(said)?, &one)?;
    same("the target after a restart", &store.target(one, "second").await.map_err(said)?, &second)?;
    for (tenant, target, expected) in [
        (one, first, Some(("name-one".to_owned(), "same".to_owned()))),
        (one, second, Some(("name-one".to_owned(), "second".to_owned()))),
        (other, others, Some(("name-other".to_owned(), "same".to_owned()))),
        (u16::MAX, first, None),
        (one, u16::MAX, None),
    ] {
        same("names", &store.names(Route { tenant, target }).await.map_err(said)?, &expected)?;
    }
    Ok(())
}

/// What nobody has is put back under its number, and the number is given to no other name; what another name has stays.
async fn names_are_kept(fixture: &dyn Fixture) -> Result<(), String> {
    let store = fixture.open().await?;
    let name = |tenant: (u16, &str), target: Option<(u16, &str)>| KnownName {
        tenant: (tenant.0, tenant.1.to_owned()),
        target: target.map(|(number, name)| (number, name.to_owned())),
    };
    let first = store.tenant("kept-first").await.map_err(said)?;
    let target = store.target(first, "out").await.map_err(said)?;
    // A number that the store has not given, as if it had lost it.
    let lost = first + 40;
    let known = [
        name((first, "kept-first"), None),
        name((first, "kept-first"), Some((target, "out"))),
        name((lost, "kept-lost"), Some((7, "out"))),
        name((lost, "kept-lost"), None),
        name((lost, "kept-other"), Some((8, "out"))),
        name((lost, "kept-lost"), Some((7, "other"))),
        name((lost + 1, "kept-lost"), Some((7, "out"))),
        name((lost, "kept-lost"), Some((9, "out"))),
    ];
    let expected = [
        NameKept::Same,
        NameKept::Same,
        NameKept::PutBack,
        NameKept::Same,
        NameKept::Taken,
        NameKept::Taken,
        NameKept::Moved,
        NameKept::Moved,
    ];
    same("what is kept", &store.keep_names(&known).await.map_err(said)?, &expected.to_vec())?;
    same("kept by nobody", &store.keep_names(&[]).await.map_err(said)?, &Vec::new())?;
    same("its number", &store.tenant("kept-lost").await.map_err(said)?, &lost)?;
    same("the number of its target", &store.target(lost, "out").await.map_err(said)?, &7)?;
    for route in [(lost, 7), (lost + 1, 7), (lost, 9)].map(|(tenant, target)| Route { tenant, target }) {
        let expected = Some(("kept-lost".to_owned(), "out".to_owned()));
        same("whose it is", &store.names(route).await.map_err(said)?, &expected)?;
    }
    same("whose nothing is", &store.names(Route { tenant: lost, target: 8 }).await.map_err(said)?, &None)?;
    let next = store.tenant("kept-next").await.map_err(said)?;
    holds("a number that was put back is given to nobody else", next > lost + 1)?;
    let next = store.target(lost, "next").await.map_err(said)?;
    holds("nor is the number of a target", next > 9)
}

/// One answer each, in order; a task lies in the slot of its time, behind those before it, and is found as it was
/// added, from an empty payload to the longest, from the same millisecond to 400 years ahead.
async fn tasks_are_found_as_they_were_added(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 1, "found").await?;
    same("an empty batch", &case.add(&[]).await?, &Vec::new())?;
    let soon_ms = fixture.now_ms() + HOUR_MS;
    let long = "x".repeat(PAYLOAD_MAX_BYTES);
    let key = case.key("found")?;
    let mut batch = vec![
        case.task(soon_ms, ""),
        case.task(soon_ms, &long),
        case.task(fixture.now_ms() + YEARS_400_MS, "far"),
        case.task(DUE_MAX_MS, "last"),
    ];
    batch.push(NewRecord { key: Some(key.clone()), ..case.task(soon_ms, "keyed") });
    let ids = case.add(&batch).await?;
    for (id, task) in ids.iter().zip(&batch) {
        same("the slot", &(id.shard, id.slot), &(case.shard, slot_of(task.due_ms)))?;
        let found = find(&case, TaskAt::Id(*id)).await?;
        same("a task", &found, &Some((*id, Waiting::Waiting, task.due_ms, task.payload.clone(), None)))?;
    }
    same("indices", &[ids[0].index, ids[1].index, ids[4].index], &[0, 1, 2])?;
    same("by key", &find(&case, TaskAt::Key(key)).await?.map(|found| found.0), &Some(ids[4]))?;
    let more = case.add_one(soon_ms, "next").await?;
    same("the next index", &more.index, &3)?;
    same("an index that is not there", &find(&case, TaskAt::Id(TaskId { index: 4, ..more })).await?, &None)?;
    let others = case.store.get(case.shard, u16::MAX, &[TaskAt::Id(more)]).await.map_err(said)?;
    same("of another tenant", &others, &vec![None])?;
    same("the count", &case.waiting().await?, &6)
}

/// What cannot be stored is refused as a whole.
async fn bad_input_changes_nothing(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 2, "bad").await?;
    let good = case.task(fixture.now_ms() + HOUR_MS, "good");
    let foreign = (0..1_000_u32)
        .filter_map(|one| windfall_contract::due::TaskKey::new(&one.to_be_bytes()).ok())
        .find(|key| key.shard(case.route.tenant, case.store.shards()) != case.shard);
    let wrong = [
        case.task(good.due_ms, &"x".repeat(PAYLOAD_MAX_BYTES + 1)),
        case.task(DUE_MAX_MS + 1, "late"),
        NewRecord { key: foreign, ..good.clone() },
    ];
    for wrong in wrong {
        let added = case.store.add(case.shard, &[good.clone(), wrong]).await;
        holds("a bad task is refused", matches!(added, Err(StoreError::Unusable(_))))?;
    }
    let beyond = case.store.add(Shard(case.store.shards()), &[good]).await;
    holds("a shard that is not there is refused", matches!(beyond, Err(StoreError::Unusable(_))))?;
    same("the count", &case.waiting().await?, &0)?;
    let nameless = case.store.tenant("").await;
    holds("an empty name is refused", matches!(nameless, Err(StoreError::Unusable(_))))
}

/// A key is unique among the tasks of its tenant that wait, within a batch and over batches; a cancel frees it.
async fn keys_are_unique_and_freed(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 3, "keys").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let key = case.key("keys")?;
    let keyed = |payload: &str| NewRecord { key: Some(key.clone()), ..case.task(due_ms, payload) };
    let answers =
        case.store.add(case.shard, &[keyed("one"), keyed("two"), keyed("three")]).await.map_err(said)?;
    let [Added::Stored(id), Added::Exists(second), Added::Exists(third)] = answers[..] else {
        return Err(format!("answers: {answers:?}"));
    };
    same("what exists", &[second, third], &[id, id])?;
    let again = case.store.add(case.shard, &[keyed("again")]).await.map_err(said)?;
    same("added again", &again, &vec![Added::Exists(id)])?;
    same("the count", &case.waiting().await?, &1)?;
    same(
        "the first one is stored",
        &find(&case, TaskAt::Key(key.clone())).await?.map(|found| found.3),
        &Some(Bytes::from_static(b"one")),
    )?;
    // Moved, it keeps its key.
    let moved =
        change_one(&case, shift(&case, TaskAt::Key(key.clone()), Some(due_ms + HOUR_MS), None)).await?;
    let Changed::Done(moved) = moved else { return Err(format!("moved: {moved:?}")) };
    let again = case.store.add(case.shard, &[keyed("again")]).await.map_err(said)?;
    same("added after a move", &again, &vec![Added::Exists(moved)])?;
    same(
        "cancelled by key",
        &change_one(&case, cancel(&case, TaskAt::Key(key.clone()))).await?,
        &Changed::Done(moved),
    )?;
    same(
        "the key is free",
        &change_one(&case, cancel(&case, TaskAt::Key(key.clone()))).await?,
        &Changed::Unknown,
    )?;
    let fresh = case.add(&[keyed("fresh")]).await?;
    same("by key", &find(&case, TaskAt::Key(key.clone())).await?.map(|found| found.0), &Some(fresh[0]))?;
    // The key of a task that was moved and cancelled within one batch is free too.
    let both = [
        shift(&case, TaskAt::Key(key.clone()), None, Some("moved")),
        cancel(&case, TaskAt::Key(key.clone())),
    ];
    let answers = change(&case, &both).await?;
    let [Changed::Done(moved), Changed::Done(cancelled)] = answers[..] else {
        return Err(format!("answers: {answers:?}"));
    };
    same("cancelled where it was moved to", &cancelled, &moved)?;
    holds("the key can be used again", case.add(&[keyed("last")]).await.is_ok())
}

/// A cancel is answered Done once; afterwards the task is Cancelled, counts no more, and is nobody else's business.
async fn a_cancel_is_done_once(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 4, "cancel").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let ids = case.add(&[case.task(due_ms, "a"), case.task(due_ms, "b"), case.task(due_ms, "c")]).await?;
    let at = |index: usize| TaskAt::Id(ids[index]);
    let foreign = Change { tenant: u16::MAX, ..cancel(&case, at(0)) };
    same("another tenant's cancel", &change_one(&case, foreign).await?, &Changed::Unknown)?;
    let elsewhere = TaskAt::Id(TaskId { shard: Shard(5), ..ids[0] });
    same("of another shard", &change_one(&case, cancel(&case, elsewhere)).await?, &Changed::Unknown)?;
    let nowhere = TaskAt::Id(TaskId { index: 99, ..ids[0] });
    same("one that never was", &change_one(&case, cancel(&case, nowhere)).await?, &Changed::Unknown)?;
    let batch = [cancel(&case, at(1)), cancel(&case, at(1)), cancel(&case, at(2))];
    let expected = vec![Changed::Done(ids[1]), Changed::Cancelled, Changed::Done(ids[2])];
    same("a batch", &change(&case, &batch).await?, &expected)?;
    same("again", &change_one(&case, cancel(&case, at(1))).await?, &Changed::Cancelled)?;
    let to = shift(&case, at(1), Some(due_ms + 1), None);
    same("a move of a cancelled one", &change_one(&case, to).await?, &Changed::Cancelled)?;
    same("its state", &find(&case, at(1)).await?.map(|found| found.1), &Some(Waiting::Cancelled))?;
    same("the other's state", &find(&case, at(0)).await?.map(|found| found.1), &Some(Waiting::Waiting))?;
    same("the count", &case.waiting().await?, &1)?;
    // The mark that the cancel left in the slot is no task.
    for index in 3..5 {
        let mark = TaskAt::Id(TaskId { index, ..ids[0] });
        same("a mark", &find(&case, mark.clone()).await?, &None)?;
        same("a mark is not cancelled", &change_one(&case, cancel(&case, mark)).await?, &Changed::Unknown)?;
    }
    Ok(())
}

/// Every id that a task ever had leads to it, and it keeps what a move did not name.
async fn moved_tasks_are_followed(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 6, "move").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let first = case.add_one(due_ms, "one").await?;
    let mut ids = vec![first];
    let mut is = (due_ms, "one");
    let steps: [(Option<u64>, Option<&'static str>); 5] = [
        (Some(due_ms + HOUR_MS), None),
        (None, Some("two")),
        (Some(due_ms + 3 * HOUR_MS), Some("three")),
        (Some(due_ms), None),
        (Some(due_ms + 7), Some("")),
    ];
    for (at, (to_ms, payload)) in steps.into_iter().enumerate() {
        // By the first id, by the last one, by one in between.
        let by = [first, ids[ids.len() - 1], ids[ids.len() / 2]][at % 3];
        let done = change_one(&case, shift(&case, TaskAt::Id(by), to_ms, payload)).await?;
        let Changed::Done(now) = done else { return Err(format!("move {at}: {done:?}")) };
        is = (to_ms.unwrap_or(is.0), payload.unwrap_or(is.1));
        // An answer that got lost: asked again, the task stays where it is.
        let again = change_one(&case, shift(&case, TaskAt::Id(by), to_ms, payload)).await?;
        same("moved again", &again, &Changed::Done(now))?;
        ids.push(now);
        let expected = Some((now, Waiting::Waiting, is.0, Bytes::from_static(is.1.as_bytes()), Some(first)));
        for id in &ids {
            same("by each id", &find(&case, TaskAt::Id(*id)).await?, &expected)?;
        }
    }
    same("the count", &case.waiting().await?, &1)?;
    // Twice in one batch, by the same old id.
    let both = [
        shift(&case, TaskAt::Id(first), Some(due_ms + 8), None),
        shift(&case, TaskAt::Id(first), Some(due_ms + 9), None),
    ];
    let answers = change(&case, &both).await?;
    let [Changed::Done(_), Changed::Done(last)] = answers[..] else {
        return Err(format!("answers: {answers:?}"));
    };
    same(
        "where it is",
        &find(&case, TaskAt::Id(first)).await?.map(|f| (f.0, f.2)),
        &Some((last, due_ms + 9)),
    )?;
    same("cancelled", &change_one(&case, cancel(&case, TaskAt::Id(first))).await?, &Changed::Done(last))?;
    for id in ids {
        same("all ids know", &find(&case, TaskAt::Id(id)).await?.map(|f| f.1), &Some(Waiting::Cancelled))?;
    }
    same("the count", &case.waiting().await?, &0)
}

/// What lies below the watermark is stored at the watermark, keeps the time that was asked for, and cannot be changed.
async fn the_past_is_due_at_once(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 7, "past").await?;
    let waits = case.add_one(fixture.now_ms() + HOUR_MS, "moved into the past").await?;
    let lease = case.acquire("one").await?;
    let watermark_ms = case.advance(&lease).await?.watermark_ms;
    let past_ms = watermark_ms - 10 * HOUR_MS;
    let id = case.add_one(past_ms, "past").await?;
    let moved = change_one(&case, shift(&case, TaskAt::Id(waits), Some(past_ms), None)).await?;
    let Changed::Done(moved) = moved else { return Err(format!("moved: {moved:?}")) };
    for id in [id, moved] {
        let found = case.store.get(case.shard, case.route.tenant, &[TaskAt::Id(id)]).await.map_err(said)?;
        let Some(Some(found)) = found.into_iter().next() else { return Err("it is not found".into()) };
        let due_ms = found.id.slot.start_ms() + u64::from(found.record.offset_ms);
        same("where it is", &(due_ms, found.record.asked_ms), &(watermark_ms, Some(past_ms)))?;
        same("its state", &found.state, &Waiting::Firing)?;
        same("a cancel", &change_one(&case, cancel(&case, TaskAt::Id(id))).await?, &Changed::Firing)?;
        let to = shift(&case, TaskAt::Id(id), Some(watermark_ms + HOUR_MS), None);
        same("a move", &change_one(&case, to).await?, &Changed::Firing)?;
    }
    same("both count until they are over", &case.waiting().await?, &2)
}

/// Pages show what waits, in the order of ids, each task once, whatever the page's size.
async fn lists_have_pages(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 8, "pages").await?;
    let other = Case::of(Arc::clone(&case.store), 8, "pages-other").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let mut expected = BTreeSet::new();
    for shard in [8, 9, 60, 63] {
        let case = Case { store: Arc::clone(&case.store), shard: Shard(shard), ..case };
        let others = Case { store: Arc::clone(&other.store), shard: Shard(shard), ..other };
        for minute in [0, 5, 2] {
            let batch: Vec<_> = (0..5).map(|_| case.task(due_ms + minute * 60_000, "x")).collect();
            let ids = case.add(&batch).await?;
            others.add(&[others.task(due_ms + minute * 60_000, "y")]).await?;
            change_one(&case, cancel(&case, TaskAt::Id(ids[1]))).await?;
            let to = shift(&case, TaskAt::Id(ids[2]), Some(due_ms + HOUR_MS), None);
            let Changed::Done(moved) = change_one(&case, to).await? else {
                return Err("it was not moved".into());
            };
            expected.extend([ids[0], ids[3], ids[4], moved]);
        }
    }
    for limit in [1, 7, 1_000] {
        let found = case.list(limit).await?;
        let is_own = |task: &Found| task.record.route == case.route && task.state == Waiting::Waiting;
        holds("pages have the tenant's waiting tasks", found.iter().all(is_own))?;
        let found: Vec<_> = found.into_iter().map(|task| task.id).collect();
        same("all pages", &found, &expected.iter().copied().collect())?;
    }
    Ok(())
}

/// A page that has looked at 10,000 entries ends, also where it is empty.
async fn a_page_looks_at_a_bounded_number(fixture: &dyn Fixture) -> Result<(), String> {
    let crowd = Case::open(fixture, 10, "crowd").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let batch: Vec<_> = (0..10_500).map(|_| crowd.task(due_ms, "")).collect();
    crowd.add(&batch).await?;
    let case = Case::of(Arc::clone(&crowd.store), 11, "alone").await?;
    let id = case.add_one(due_ms, "alone").await?;
    let begin = Some(TaskId { shard: Shard(10), slot: slot_of(0), index: 0 });
    let page = case.store.list(case.route.tenant, begin, 10).await.map_err(said)?;
    holds("the first page is empty and has a cursor", page.tasks.is_empty() && page.next.is_some())?;
    let (mut after, mut found) = (page.next, Vec::new());
    while after.is_some() {
        let page = case.store.list(case.route.tenant, after, 10).await.map_err(said)?;
        found.extend(page.tasks.iter().map(|task| task.id));
        after = page.next;
    }
    same("what is found", &found, &vec![id])
}

/// Batches of thousands, over one slot and over many, are stored whole and in order.
async fn large_batches_are_whole(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 12, "large").await?;
    let due_ms = (fixture.now_ms() / 60_000 + 60) * 60_000;
    let one: Vec<_> = (0..20_000).map(|number| case.task(due_ms, &number.to_string())).collect();
    let ids = case.add(&one).await?;
    same("indices", &ids.iter().map(|id| id.index).collect::<Vec<_>>(), &(0..20_000).collect())?;
    let many: Vec<_> = (0..9_000).map(|n| case.task(due_ms + (n + 1) * 60_000, "x")).collect();
    let mut all = ids;
    all.extend(case.add(&many).await?);
    same("ids", &all.iter().collect::<BTreeSet<_>>().len(), &29_000)?;
    let at: Vec<_> = all.iter().map(|id| TaskAt::Id(*id)).collect();
    let found = case.store.get(case.shard, case.route.tenant, &at).await.map_err(said)?;
    let payloads = found.into_iter().flatten().map(|found| found.record.payload);
    let expected = one.iter().chain(&many).map(|task| task.payload.clone());
    holds("all payloads are there in order", payloads.eq(expected))?;
    same("the count", &case.waiting().await?, &29_000)?;
    let batch: Vec<_> = at.iter().map(|at| cancel(&case, at.clone())).collect();
    let done = change(&case, &batch).await?;
    holds("all are cancelled", done.iter().zip(&all).all(|(done, id)| *done == Changed::Done(*id)))?;
    same("the count", &case.waiting().await?, &0)
}

/// Several callers at once get indices of their own.
async fn callers_at_once(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 13, "at-once").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (store, batch) = (Arc::clone(&case.store), vec![case.task(due_ms, "x"); 5]);
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..20 {
                    ids.extend(store.add(Shard(13), &batch).await?);
                }
                Ok::<_, StoreError>(ids)
            })
        })
        .collect();
    let mut indices = BTreeMap::new();
    for task in tasks {
        for added in task.await.map_err(said)?.map_err(said)? {
            let Added::Stored(id) = added else { return Err(format!("{added:?}")) };
            *indices.entry(id.index).or_insert(0) += 1;
        }
    }
    same("indices", &indices, &(0..800).map(|index| (index, 1)).collect())?;
    same("the count", &case.waiting().await?, &800)
}

/// Tasks, keys, cancels, moves, counts and leases are there after a restart.
async fn a_restart_keeps_all(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 14, "restart").await?;
    let due_ms = fixture.now_ms() + HOUR_MS;
    let key = case.key("restart")?;
    let keyed = NewRecord { key: Some(key.clone()), ..case.task(due_ms, "keyed") };
    let ids = case.add(&[case.task(due_ms, "a"), case.task(due_ms, "b"), keyed]).await?;
    change_one(&case, cancel(&case, TaskAt::Id(ids[0]))).await?;
    let moved = change_one(&case, shift(&case, TaskAt::Id(ids[1]), Some(due_ms + HOUR_MS), None)).await?;
    let lease = case.acquire("one").await?;
    let watermark_ms = case.advance(&lease).await?.watermark_ms;
    drop(case);
    let case = Case::open(fixture, 14, "restart").await?;
    same("cancelled", &find(&case, TaskAt::Id(ids[0])).await?.map(|f| f.1), &Some(Waiting::Cancelled))?;
    let found = find(&case, TaskAt::Id(ids[1])).await?;
    same("moved", &found.map(|found| Changed::Done(found.0)), &Some(moved))?;
    same("by key", &find(&case, TaskAt::Key(key)).await?.map(|f| f.0), &Some(ids[2]))?;
    same("the count", &case.waiting().await?, &2)?;
    let held = case.store.acquire(case.shard, "two", LONG_MS).await.map_err(said)?;
    same("who has it", &held.err().map(|held| held.instance), &Some("one".into()))?;
    case.store.renew(&lease, LONG_MS).await.map_err(said)?;
    holds("the watermark stays", case.advance(&lease).await?.watermark_ms >= watermark_ms)?;
    // The mark of the cancel, the mark of the move, and the next task behind them.
    same("the next index", &case.add_one(due_ms, "next").await?.index, &5)?;
    let again = case.acquire("one").await?;
    holds("epochs grow", again.epoch > lease.epoch)
}
