//! Scans: order, prefixes, pages, bytes of an answer.

use super::{Case, Checked, Fixture, delete, holds, key, keys_of, put, said, same};
use bytes::Bytes;
use windfall_contract::entries::{ANSWER_MAX_BYTES, EntryChange, EntryKey, Expect, To, VALUE_MAX_BYTES};

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("a scan has the keys of a prefix in the order of their bytes", prefixes(fixture).await),
        ("pages have each entry once, and the last one says so", pages(fixture).await),
        ("pages go on though entries come and go between them", changing(fixture).await),
        ("an answer has no more bytes than one may, and one entry at least", bytes(fixture).await),
    ]
}

/// Keys at all the edges that prefixes have.
pub(super) fn edges() -> Result<Vec<EntryKey>, String> {
    let keys: [&[u8]; 20] = [
        b"\x00",
        b"\x00\x00",
        b"\x00\xff",
        b"\x01",
        b"a",
        b"a\x00",
        b"a\x00b",
        b"a/",
        b"a/1",
        b"a/10",
        b"a/2",
        b"a0",
        b"a\xfe",
        b"a\xff",
        b"a\xff\xff",
        b"a\xff\xff\x00",
        b"b",
        b"\xfe\xff",
        b"\xff",
        b"\xff\xff",
    ];
    keys.iter().map(key).collect()
}

async fn prefixes(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 13).await?;
    let sorted = edges()?;
    let mut changes = Vec::new();
    for key in sorted.iter().rev() {
        changes.push(put(key.as_bytes(), Expect::Absent, "x")?);
    }
    let version = case.done(changes).await?;
    let mut prefixes =
        vec![Vec::new(), b"c".to_vec(), b"\xff\xff\xff".to_vec(), vec![255; 600], b"a/1/".to_vec()];
    prefixes.extend(sorted.iter().map(|key| key.as_bytes().to_vec()));
    let mut afters: Vec<Option<EntryKey>> =
        vec![None, Some(key("A")?), Some(key("c")?), Some(key([255; 3])?)];
    afters.extend(sorted.iter().cloned().map(Some));
    for prefix in &prefixes {
        for after in &afters {
            let found = case.store.scan(case.shard, prefix, after.as_ref(), 100).await.map_err(said)?;
            let is_in = |key: &&EntryKey| {
                key.as_bytes().starts_with(prefix) && after.as_ref().is_none_or(|after| *key > after)
            };
            let expected: Vec<_> = sorted.iter().filter(is_in).cloned().collect();
            same(&format!("keys of {prefix:.20?} behind {after:?}"), &keys_of(&found.entries), &expected)?;
            same("the end", &found.next, &None)?;
            let is_whole = |entry: &windfall_contract::entries::Entry| {
                entry.version == version && entry.wake_ms.is_none() && entry.value == "x"
            };
            holds("entries are as they were put", found.entries.iter().all(is_whole))?;
        }
    }
    Ok(())
}

async fn pages(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 14).await?;
    let mut changes = Vec::new();
    for at in 0..60 {
        changes.push(put(format!("p-{at:03}"), Expect::Absent, "x")?);
    }
    changes.push(put("o", Expect::Absent, "x")?);
    changes.push(put("q", Expect::Absent, "x")?);
    case.done(changes).await?;
    let whole = case.scan(b"p-", 1_000).await?;
    same("entries", &whole.len(), &60)?;
    for limit in [1, 7, 20, 30, 59, 60, 61] {
        same("entries of all pages", &case.scan(b"p-", limit).await?, &whole)?;
    }
    // A full page is the last one where nothing follows.
    let page = case.store.scan(case.shard, b"p-", None, 60).await.map_err(said)?;
    same("behind a full page", &page.next, &None)?;
    let page = case.store.scan(case.shard, b"p-", None, 59).await.map_err(said)?;
    same("behind a page", &page.next, &Some(key("p-058")?))?;
    let page = case.store.scan(case.shard, b"p-", page.next.as_ref(), 1).await.map_err(said)?;
    same("the last page", &(keys_of(&page.entries), page.next), &(vec![key("p-059")?], None))
}

async fn changing(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 15).await?;
    let mut changes = Vec::new();
    for at in 0..20 {
        changes.push(put(format!("c-{at:02}"), Expect::Absent, "x")?);
    }
    case.done(changes).await?;
    let page = case.store.scan(case.shard, b"c-", None, 5).await.map_err(said)?;
    same("go on behind", &page.next, &Some(key("c-04")?))?;
    case.done([
        delete("c-04", Expect::Anything)?,
        delete("c-05", Expect::Anything)?,
        put("c-03", Expect::Anything, "behind")?,
        put("c-07", Expect::Anything, "ahead")?,
        put("c-065", Expect::Absent, "new")?,
    ])
    .await?;
    let page = case.store.scan(case.shard, b"c-", page.next.as_ref(), 4).await.map_err(said)?;
    let expected = [key("c-06")?, key("c-065")?, key("c-07")?, key("c-08")?];
    same("the second page", &keys_of(&page.entries), &expected.to_vec())?;
    same("what is new there", &page.entries[2].value, &Bytes::from_static(b"ahead"))
}

async fn bytes(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 16).await?;
    let mut changes = Vec::new();
    for at in 0..40_u64 {
        let value = Bytes::from(vec![7; VALUE_MAX_BYTES]);
        let to = To::Put { value, wake_ms: Some(at) };
        changes.push(EntryChange { key: key(format!("b-{at:02}"))?, expect: Expect::Absent, to });
    }
    case.done(changes).await?;
    let page = case.store.scan(case.shard, b"", None, 40).await.map_err(said)?;
    let sum: usize = page.entries.iter().map(|one| one.key.as_bytes().len() + one.value.len()).sum();
    holds("a page is bounded in bytes", sum <= ANSWER_MAX_BYTES && page.next.is_some())?;
    holds("a page is not much smaller than it may be", page.entries.len() > 10)?;
    same("entries of all pages", &case.scan(b"", 40).await?.len(), &40)?;
    let woken = case.store.woken(case.shard, 40).await.map_err(said)?;
    let sum: usize = woken.entries.iter().map(|one| one.key.as_bytes().len() + one.value.len()).sum();
    holds("those to be woken are bounded in bytes", sum <= ANSWER_MAX_BYTES && woken.is_cut)?;
    holds("and not much fewer than may be", woken.entries.len() > 10)?;
    let first: Vec<_> = (0..woken.entries.len() as u64).map(Some).collect();
    let times: Vec<_> = woken.entries.iter().map(|one| one.wake_ms).collect();
    same("times", &times, &first)
}
