//! Groups of changes, what they expect, versions, the last time, numbers.

use super::{Case, Checked, Fixture, delete, group, holds, keep, key, put, said, same};
use bytes::Bytes;
use std::collections::BTreeSet;
use windfall_contract::entries::{
    Applied, EntryChange, EntryGroup, Expect, KEY_MAX_BYTES, NUMBERS_MAX, To, VALUE_MAX_BYTES, WAKE_MAX_MS,
};

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("an entry is read as it was put", as_put(fixture).await),
        ("a change is made where its expectation holds, and not elsewhere", expectations(fixture).await),
        ("a group is made as a whole or not at all", whole(fixture).await),
        ("a later group of a call sees what an earlier one did", in_order(fixture).await),
        ("versions go up and none is given twice", versions(fixture).await),
        ("after its last time nothing is changed", last_times(fixture).await),
        ("what was done is there when it is opened again", reopening(fixture).await),
        ("numbers go up from 1, and none is given twice", numbers(fixture).await),
    ]
}

async fn as_put(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 1).await?;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let entries = [
        (vec![0], Bytes::new(), None),
        (vec![0, 0], Bytes::from(all_bytes.clone()), Some(0)),
        (all_bytes, Bytes::from_static(b"A"), Some(1)),
        (vec![255; KEY_MAX_BYTES], Bytes::from(vec![7; VALUE_MAX_BYTES]), Some(WAKE_MAX_MS - 1)),
        (b"{tag}:a b".to_vec(), Bytes::from_static(b"\xff\xff\xff\xff\xff\xff\xff\xff"), None),
    ];
    let mut changes = Vec::new();
    for (bytes, value, wake_ms) in &entries {
        let to = To::Put { value: value.clone(), wake_ms: *wake_ms };
        changes.push(EntryChange { key: key(bytes)?, expect: Expect::Absent, to });
    }
    let version = case.done(changes).await?;
    let asked = [key(&entries[3].0)?, key("none")?, key(&entries[0].0)?, key(&entries[3].0)?];
    let found = case.store.read(case.shard, &asked).await.map_err(said)?;
    let place = |at: usize| found[at].as_ref().map(|entry| (entry.key.clone(), entry.value.len()));
    same("answers", &found.len(), &4)?;
    same("the first", &place(0), &Some((key(&entries[3].0)?, VALUE_MAX_BYTES)))?;
    same("one that is not there", &place(1), &None)?;
    same("the third", &place(2), &Some((key(&entries[0].0)?, 0)))?;
    same("the first, asked for again", &found[3], &found[0])?;
    for (bytes, value, wake_ms) in entries {
        let entry = case.get(&bytes).await?.ok_or("an entry is not there")?;
        same("key", &entry.key, &key(&bytes)?)?;
        same("version and time", &(entry.version, entry.wake_ms), &(version, wake_ms))?;
        holds("a value is as it was put", entry.value == value)?;
    }
    same("no keys", &case.store.read(case.shard, &[]).await.map_err(said)?, &Vec::new())?;
    let other = Case { shard: windfall_contract::due::Shard(2), ..case };
    same("the same key in another shard", &other.get([0]).await?, &None)
}

async fn expectations(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 3).await?;
    let is_refused =
        async |what: &str, change: EntryChange| same(what, &case.one([change]).await?, &Applied::Conflict);
    for expect in [Expect::Version(0), Expect::Version(1), Expect::Version(u64::MAX)] {
        is_refused("a version of nothing", put("a", expect, "x")?).await?;
        is_refused("a version of nothing, deleted", delete("a", expect)?).await?;
        is_refused("a version of nothing, kept", keep("a", expect)?).await?;
    }
    case.done([keep("a", Expect::Absent)?]).await?;
    case.done([delete("a", Expect::Absent)?]).await?;
    case.done([delete("a", Expect::Anything)?]).await?;
    same("nothing was put so far", &case.get("a").await?, &None)?;
    let first = case.done([put("a", Expect::Absent, "1")?]).await?;
    is_refused("absent, and it is there", put("a", Expect::Absent, "x")?).await?;
    is_refused("absent, kept", keep("a", Expect::Absent)?).await?;
    is_refused("absent, deleted", delete("a", Expect::Absent)?).await?;
    for wrong in [first - 1, first + 1, 0, u64::MAX] {
        is_refused("another version", put("a", Expect::Version(wrong), "x")?).await?;
        is_refused("another version, kept", keep("a", Expect::Version(wrong))?).await?;
        is_refused("another version, deleted", delete("a", Expect::Version(wrong))?).await?;
    }
    case.done([keep("a", Expect::Version(first))?]).await?;
    case.done([keep("a", Expect::Anything)?]).await?;
    let entry = case.get("a").await?.ok_or("it is gone")?;
    same("version and value, kept", &(entry.version, &entry.value[..]), &(first, &b"1"[..]))?;
    let second = case.done([put("a", Expect::Version(first), "2")?]).await?;
    is_refused("the version before", put("a", Expect::Version(first), "x")?).await?;
    let third = case.done([put("a", Expect::Anything, "3")?]).await?;
    is_refused("the version before, deleted", delete("a", Expect::Version(second))?).await?;
    same("value", &case.value("a").await?, &Some("3".into()))?;
    case.done([delete("a", Expect::Version(third))?]).await?;
    same("deleted", &case.get("a").await?, &None)?;
    is_refused("the version of a deleted one", put("a", Expect::Version(third), "x")?).await
}

async fn whole(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 4).await?;
    let version = case.done([put("a", Expect::Anything, "1")?, put("b", Expect::Anything, "1")?]).await?;
    let stale = Expect::Version(version - 1);
    let conflicting = [
        vec![put("a", Expect::Anything, "x")?, put("b", stale, "x")?],
        vec![put("b", stale, "x")?, put("a", Expect::Anything, "x")?],
        vec![put("new", Expect::Absent, "x")?, delete("a", Expect::Anything)?, keep("b", Expect::Absent)?],
        vec![keep("none", stale)?, delete("b", Expect::Version(version))?],
    ];
    for changes in conflicting {
        same("a group with a conflict", &case.one(changes).await?, &Applied::Conflict)?;
        let found = case.scan(b"", 10).await?;
        let found: Vec<_> = found.iter().map(|one| (one.version, &one.value[..])).collect();
        same("what is there", &found, &vec![(version, &b"1"[..]), (version, b"1")])?;
    }
    let mixed = [
        put("a", Expect::Version(version), "2")?,
        delete("b", Expect::Version(version))?,
        put("c", Expect::Absent, "2")?,
        keep("d", Expect::Absent)?,
    ];
    let next = case.done(mixed).await?;
    let found = case.scan(b"", 10).await?;
    let found: Vec<_> = found.iter().map(|one| (one.key.as_bytes(), one.version)).collect();
    same("what the whole group wrote", &found, &vec![(&b"a"[..], next), (b"c", next)])
}

async fn in_order(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 5).await?;
    let groups = [
        group([put("a", Expect::Absent, "1")?, put("b", Expect::Absent, "1")?]),
        group([put("a", Expect::Absent, "2")?]),
        group([put("c", Expect::Anything, "2")?, keep("a", Expect::Absent)?]),
        group([delete("a", Expect::Anything)?]),
        group([put("a", Expect::Absent, "3")?]),
        group([delete("b", Expect::Anything)?, keep("a", Expect::Anything)?]),
        group([keep("c", Expect::Absent)?, keep("b", Expect::Absent)?]),
    ];
    let applied = case.apply(&groups).await?;
    let is_done: Vec<_> = applied.iter().map(|one| matches!(one, Applied::Done(_))).collect();
    same("what is done", &is_done, &vec![true, false, false, true, true, true, true])?;
    let found = case.scan(b"", 10).await?;
    let found: Vec<_> = found.iter().map(|one| (one.key.as_bytes(), &one.value[..])).collect();
    same("what is there", &found, &vec![(&b"a"[..], &b"3"[..])])?;
    let entry = case.get("a").await?.ok_or("it is gone")?;
    same("its version", &Applied::Done(entry.version), &applied[4])?;

    // An entry that a call makes, wakes, and deletes again leaves nothing.
    let to = To::Put { value: Bytes::new(), wake_ms: Some(1) };
    let made = EntryChange { key: key("b")?, expect: Expect::Absent, to };
    let groups = [group([made]), group([delete("b", Expect::Anything)?])];
    holds("both are done", !case.apply(&groups).await?.contains(&Applied::Conflict))?;
    same("to be woken", &case.woken().await?, &Vec::new())
}

async fn versions(fixture: &dyn Fixture) -> Result<(), String> {
    let mut case = Case::open(fixture, 6).await?;
    let mut last = 0;
    for round in 0..30 {
        let name = format!("k-{}", round % 3);
        let calls = [
            vec![group([put(&name, Expect::Anything, "x")?])],
            vec![group([delete(&name, Expect::Anything)?]), group([put(&name, Expect::Absent, "y")?])],
            vec![group([put(&name, Expect::Anything, "z")?]); 20],
        ];
        for groups in calls {
            for applied in case.apply(&groups).await? {
                let Applied::Done(version) = applied else { return Err(format!("{applied:?}")) };
                holds("versions go up", version > last && version < 1 << 53)?;
                last = version;
            }
            same("the last one", &case.get(&name).await?.map(|entry| entry.version), &Some(last))?;
        }
        if round % 10 == 5 {
            drop(case);
            fixture.clock_back_ms(60_000);
            case = Case::open(fixture, 6).await?;
        }
    }
    // Where the clock stands still, or has gone back, and nothing is left that has the last version.
    case.done([delete("k-0", Expect::Anything)?, delete("k-1", Expect::Anything)?]).await?;
    drop(case);
    fixture.clock_back_ms(60_000);
    let case = Case::open(fixture, 6).await?;
    let next = case.done([put("k-0", Expect::Absent, "x")?]).await?;
    holds("a version is new after its entry was deleted", next > last + 1)
}

async fn last_times(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 7).await?;
    let until = |changes: EntryChange, ms| EntryGroup { changes: vec![changes], not_after_ms: Some(ms) };
    let now_ms = case.now_ms().await?;
    let groups = [
        until(put("late", Expect::Absent, "x")?, now_ms - 1),
        until(put("early", Expect::Absent, "x")?, now_ms + 3_600_000),
        until(put("never", Expect::Absent, "x")?, 0),
        until(put("always", Expect::Absent, "x")?, u64::MAX),
        until(put("early", Expect::Absent, "x")?, now_ms - 1),
        group([put("plain", Expect::Absent, "x")?]),
    ];
    fixture.wait_ms(2).await;
    let (then_ms, applied) = case.store.apply(case.shard, &groups).await.map_err(said)?;
    holds("the clock goes on", then_ms > now_ms && then_ms < now_ms + 3_600_000)?;
    let is_late: Vec<_> = applied.iter().map(|one| *one == Applied::Late).collect();
    same("late", &is_late, &vec![true, false, true, false, true, false])?;
    let found = case.scan(b"", 10).await?;
    let found: Vec<_> = found.iter().map(|one| one.key.as_bytes()).collect();
    same("what is there", &found, &vec![&b"always"[..], b"early", b"plain"])?;

    // Each group is held against the clock that the call answers: at its last time it is not late.
    for round in 0..50_u32 {
        let (name, last_ms) = (format!("r-{round}"), case.now_ms().await? + u64::from(round % 3));
        let groups = [until(put(&name, Expect::Absent, "x")?, last_ms)];
        let (at_ms, applied) = case.store.apply(case.shard, &groups).await.map_err(said)?;
        same("late", &(applied[0] == Applied::Late), &(at_ms > last_ms))?;
        same("there", &case.get(&name).await?.is_some(), &(at_ms <= last_ms))?;
    }
    Ok(())
}

async fn reopening(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 8).await?;
    let mut changes = Vec::new();
    for at in 0..50 {
        changes.push(put(format!("k-{at:02}"), Expect::Absent, &format!("v-{at}"))?);
    }
    let version = case.done(changes).await?;
    let gone: Result<Vec<_>, _> = (0..10).map(|at| delete(format!("k-{at:02}"), Expect::Anything)).collect();
    case.done(gone?).await?;
    let before = case.scan(b"", 100).await?;
    drop(case);
    let case = Case::open(fixture, 8).await?;
    same("all entries", &case.scan(b"", 7).await?, &before)?;
    same("how many", &before.len(), &40)?;
    case.done([put("k-11", Expect::Version(version), "x")?, put("k-00", Expect::Absent, "x")?])
        .await
        .map(drop)
}

async fn numbers(fixture: &dyn Fixture) -> Result<(), String> {
    let mut case = Case::open(fixture, 9).await?;
    let mut given = BTreeSet::new();
    for round in 0..12_u32 {
        let count = [1, 7, NUMBERS_MAX][round as usize % 3];
        let first = case.store.numbers(case.shard, count).await.map_err(said)?;
        if round == 0 {
            same("the first of all", &first, &1)?;
        }
        let last = first + u64::from(count) - 1;
        holds("numbers are small", last < 1 << 50)?;
        holds("numbers are new", given.iter().all(|(_, before): &(u64, u64)| *before < first))?;
        given.insert((first, last));
        if round % 4 == 3 {
            drop(case);
            case = Case::open(fixture, 9).await?;
        }
    }
    let other = case.store.numbers(windfall_contract::due::Shard(10), 1).await.map_err(said)?;
    same("the first of another shard", &other, &1)
}
