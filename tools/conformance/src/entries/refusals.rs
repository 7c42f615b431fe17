//! The limits, on both sides.

use super::{Case, Checked, Fixture, group, holds, key, put, refused, said, same};
use bytes::Bytes;
use windfall_contract::due::Shard;
use windfall_contract::entries::{
    APPLY_MAX_BYTES, APPLY_MAX_CHANGES, Applied, CALL_MAX, EntryChange, EntryGroup, EntryKey, Expect,
    GROUP_MAX, KEY_MAX_BYTES, NUMBERS_MAX, To, VALUE_MAX_BYTES, WAKE_MAX_MS,
};

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("what is within the limits is done", within(fixture).await),
        ("what is outside of the limits is unusable, and changes nothing", outside(fixture).await),
        ("a shard that is not there is unusable", no_shard(fixture).await),
    ]
}

fn names(count: usize) -> Result<Vec<EntryKey>, String> {
    (0..count).map(|at| key(format!("n-{at:05}"))).collect()
}

fn puts(count: usize, value: &Bytes) -> Result<Vec<EntryChange>, String> {
    let names = names(count)?.into_iter();
    let put = |key| EntryChange {
        key,
        expect: Expect::Anything,
        to: To::Put { value: value.clone(), wake_ms: None },
    };
    Ok(names.map(put).collect())
}

async fn within(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 11).await?;
    same("no groups", &case.apply(&[]).await?, &Vec::new())?;
    let value = Bytes::from(vec![1; VALUE_MAX_BYTES]);
    case.done(puts(GROUP_MAX, &value)?).await?;
    same("entries", &case.scan(b"", CALL_MAX).await?.len(), &GROUP_MAX)?;
    let changes = puts(APPLY_MAX_CHANGES, &Bytes::from_static(b"s"))?;
    let groups: Vec<_> =
        changes.chunks(APPLY_MAX_CHANGES / CALL_MAX).map(|some| group(some.iter().cloned())).collect();
    same("groups", &groups.len(), &CALL_MAX)?;
    let applied = case.apply(&groups).await?;
    same("answers", &applied.len(), &CALL_MAX)?;
    let versions: Vec<_> = applied
        .iter()
        .filter_map(|one| match one {
            Applied::Done(version) => Some(*version),
            _ => None,
        })
        .collect();
    holds(
        "each has a version of its own",
        versions.len() == CALL_MAX && versions.is_sorted_by(|a, b| a < b),
    )?;
    let found = case.store.read(case.shard, &names(CALL_MAX)?).await.map_err(said)?;
    holds("all are there", found.len() == CALL_MAX && found.iter().all(Option::is_some))?;
    same("all entries", &case.scan(b"n-", CALL_MAX).await?.len(), &APPLY_MAX_CHANGES)?;
    for limit in [0, CALL_MAX + 1, usize::MAX] {
        let page = case.store.scan(case.shard, b"", None, limit).await.map_err(said)?;
        same("entries of a page", &page.entries.len(), &limit.clamp(1, CALL_MAX))?;
        let woken = case.store.woken(case.shard, limit).await.map_err(said)?;
        same("to be woken", &(woken.entries.len(), woken.is_cut), &(0, false))?;
    }
    Ok(())
}

async fn outside(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 12).await?;
    holds("a key has 1 to 512 bytes", key([]).is_err() && key([7; KEY_MAX_BYTES + 1]).is_err())?;
    case.done([put("a", Expect::Anything, "1")?]).await?;
    let good = group([put("a", Expect::Anything, "2")?]);
    let to = |to: To| -> Result<EntryGroup, String> {
        Ok(group([EntryChange { key: key("b")?, expect: Expect::Anything, to }]))
    };
    let large = Bytes::from(vec![1; VALUE_MAX_BYTES]);
    let heavy = group(puts(GROUP_MAX, &large)?);
    let wrong = [
        ("a group without changes", vec![EntryGroup::default()]),
        ("a group of too many changes", vec![group(puts(GROUP_MAX + 1, &Bytes::new())?)]),
        (
            "a group that names an entry twice",
            vec![group([
                put("b", Expect::Anything, "x")?,
                put("c", Expect::Anything, "x")?,
                put("b", Expect::Anything, "x")?,
            ])],
        ),
        ("a long value", vec![to(To::Put { value: vec![1; VALUE_MAX_BYTES + 1].into(), wake_ms: None })?]),
        ("a late time", vec![to(To::Put { value: Bytes::new(), wake_ms: Some(WAKE_MAX_MS) })?]),
        ("the last time of all", vec![to(To::Put { value: Bytes::new(), wake_ms: Some(u64::MAX) })?]),
        ("too many groups", vec![to(To::Same)?; CALL_MAX]),
        ("too many changes", vec![group(puts(GROUP_MAX, &Bytes::new())?); APPLY_MAX_CHANGES / GROUP_MAX]),
        ("too many bytes", vec![heavy; APPLY_MAX_BYTES / VALUE_MAX_BYTES / GROUP_MAX + 1]),
    ];
    for (what, groups) in wrong {
        // What is good in the same call is not done either.
        let groups = [vec![good.clone()], groups].concat();
        refused(what, case.store.apply(case.shard, &groups).await)?;
    }
    refused("too many keys", case.store.read(case.shard, &names(CALL_MAX + 1)?).await)?;
    for count in [0, NUMBERS_MAX + 1, u32::MAX] {
        refused("a count of numbers", case.store.numbers(case.shard, count).await)?;
    }
    let found = case.scan(b"", 10).await?;
    same("entries", &found.len(), &1)?;
    same("the value", &case.value("a").await?, &Some("1".into()))
}

async fn no_shard(fixture: &dyn Fixture) -> Result<(), String> {
    let Case { store, .. } = Case::open(fixture, 0).await?;
    holds("there are 1 to 1,024 shards", (1..=1_024).contains(&store.shards()))?;
    for shard in [Shard(store.shards()), Shard(u16::MAX)] {
        refused("a read", store.read(shard, &[key("a")?]).await)?;
        refused("a read of nothing", store.read(shard, &[]).await)?;
        refused("a change", store.apply(shard, &[group([put("a", Expect::Anything, "x")?])]).await)?;
        refused("a scan", store.scan(shard, b"", None, 1).await)?;
        refused("who is to be woken", store.woken(shard, 1).await)?;
        refused("numbers", store.numbers(shard, 1).await)?;
    }
    let last = Case { shard: Shard(store.shards() - 1), store };
    case_is_usable(&last).await
}

async fn case_is_usable(case: &Case) -> Result<(), String> {
    case.done([put("no-shard", Expect::Anything, "x")?]).await.map(drop)
}
