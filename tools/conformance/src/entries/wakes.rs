//! Entries that are woken at a time.

use super::{Case, Checked, Fixture, delete, holds, key, keys_of, put, put_to_wake, said, same};
use windfall_contract::entries::{EntryKey, Expect, WAKE_MAX_MS};

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("an entry is woken at its time and not before", in_time(fixture).await),
        ("those with the earliest times come first", order(fixture).await),
        ("an entry is found again until it has another time", found_again(fixture).await),
        ("an earlier time is found though later ones were", earlier(fixture).await),
    ]
}

fn keys(names: &[&str]) -> Result<Vec<EntryKey>, String> {
    names.iter().map(key).collect()
}

async fn in_time(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 17).await?;
    let start_ms = case.now_ms().await?;
    case.done([
        put_to_wake("past", start_ms - 10_000)?,
        put_to_wake("far", start_ms + 86_400_000)?,
        put_to_wake("never", WAKE_MAX_MS - 1)?,
        put("plain", Expect::Absent, "x")?,
    ])
    .await?;
    // On a machine that stands still meanwhile, the time may have come before it is looked at.
    let mut was_early = false;
    for delay_ms in [500, 5_000, 50_000] {
        let wake_ms = case.now_ms().await? + delay_ms;
        case.done([put_to_wake("soon", wake_ms)?]).await?;
        was_early |= until_woken(fixture, &case, wake_ms).await?;
        if was_early {
            break;
        }
    }
    holds("it was looked at before the time", was_early)?;
    drop(case);
    let case = Case::open(fixture, 17).await?;
    same("opened again", &case.woken().await?, &keys(&["past", "soon"])?)?;
    let other = Case { shard: windfall_contract::due::Shard(18), ..case };
    same("of another shard", &other.woken().await?, &Vec::new())
}

/// Looks until the time has come, and says whether it had not come at first.
async fn until_woken(fixture: &dyn Fixture, case: &Case, wake_ms: u64) -> Result<bool, String> {
    let mut was_early = false;
    loop {
        let woken = case.store.woken(case.shard, 10).await.map_err(said)?;
        let is_time = woken.now_ms >= wake_ms;
        let expected = keys(if is_time { &["past", "soon"] } else { &["past"] })?;
        same("to be woken", &keys_of(&woken.entries), &expected)?;
        same("an entry that is woken", &woken.entries.first().cloned(), &case.get("past").await?)?;
        if is_time {
            return Ok(was_early);
        }
        was_early = true;
        fixture.wait_ms(wake_ms - woken.now_ms - 1).await;
        fixture.wait_ms(1).await;
    }
}

async fn order(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 19).await?;
    // Times of which the order by bytes or by digits is another one than by size.
    let mut times: Vec<u64> = vec![0, 9, 10, 99, 255, 256, 65_535, 65_536, 1 << 32, (1 << 32) - 1, 5, 5];
    for (at, ms) in times.iter().enumerate() {
        case.done([put_to_wake(format!("{:02}", 99 - at), *ms)?]).await?;
    }
    times.sort_unstable();
    for limit in [1, 3, 11, 12, 13] {
        let woken = case.store.woken(case.shard, limit).await.map_err(said)?;
        let found: Vec<_> = woken.entries.iter().filter_map(|one| one.wake_ms).collect();
        same("times", &found, &times[..limit.min(times.len())].to_vec())?;
        same("whether there are more", &woken.is_cut, &(limit < times.len()))?;
    }
    Ok(())
}

async fn found_again(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 20).await?;
    let now_ms = case.now_ms().await?;
    for name in ["a", "b", "c", "d", "e"] {
        case.done([put_to_wake(name, now_ms - 1_000)?]).await?;
    }
    for _ in 0..3 {
        same("all of them", &case.woken().await?, &keys(&["a", "b", "c", "d", "e"])?)?;
    }
    case.done([put_to_wake("a", now_ms + 86_400_000)?]).await?;
    case.done([put("b", Expect::Anything, "no time")?]).await?;
    case.done([delete("c", Expect::Anything)?]).await?;
    // The same time is as good as none before.
    let version = case.done([put_to_wake("d", now_ms - 1_000)?]).await?;
    same("those that are left", &case.woken().await?, &keys(&["d", "e"])?)?;
    let woken = case.store.woken(case.shard, 1).await.map_err(said)?;
    same("its version", &woken.entries.first().map(|entry| entry.version), &Some(version))?;
    case.done([put_to_wake("a", now_ms - 2_000)?, put_to_wake("c", now_ms - 500)?]).await?;
    same("with new times", &case.woken().await?, &keys(&["a", "d", "e", "c"])?)
}

async fn earlier(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 21).await?;
    let now_ms = case.now_ms().await?;
    same("at first", &case.woken().await?, &Vec::new())?;
    for round in 1..20_u64 {
        let name = format!("k-{round:02}");
        let wake_ms = now_ms - if round % 2 == 0 { round * 100 } else { 10_000 - round * 100 };
        case.done([put_to_wake(&name, wake_ms)?]).await?;
        same("the one that came", &case.woken().await?, &vec![key(&name)?])?;
        case.done([delete(&name, Expect::Anything)?]).await?;
        same("none", &case.woken().await?, &Vec::new())?;
    }
    fixture.clock_back_ms(60_000);
    case.done([put_to_wake("z", now_ms - 70_000)?]).await?;
    same("after the clock went back", &case.woken().await?, &vec![key("z")?])
}
