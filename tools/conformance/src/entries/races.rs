//! Clients side by side, and calls that are given up.

use super::{Case, Checked, Fixture, group, holds, key, put, said, same};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;
use windfall_contract::entries::{Applied, Expect};

const CLIENTS: usize = 8;
const ROUNDS: usize = 40;

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("of those that change one version exactly one does", one_each(fixture).await),
        ("of those that make an entry exactly one does", one_maker(fixture).await),
        ("a group is never seen by half", never_by_half(fixture).await),
        ("numbers are given once, whoever asks", numbers(fixture).await),
        ("a call that is given up is done as a whole or not at all", given_up(fixture).await),
    ]
}

/// As many clients, each with a handle of its own where the store allows it.
async fn clients(fixture: &dyn Fixture, shard: u16) -> Result<Vec<Case>, String> {
    let first = Case::open(fixture, shard).await?;
    let second = Case { store: fixture.beside(&first.store).await?, ..first.clone() };
    Ok((0..CLIENTS).map(|client| if client % 2 == 0 { first.clone() } else { second.clone() }).collect())
}

async fn all<T: 'static>(mut tasks: JoinSet<Result<T, String>>) -> Result<Vec<T>, String> {
    let mut results = Vec::new();
    while let Some(result) = tasks.join_next().await {
        results.push(result.map_err(said)??);
    }
    Ok(results)
}

async fn one_each(fixture: &dyn Fixture) -> Result<(), String> {
    let clients = clients(fixture, 22).await?;
    clients[0].done([put("counter", Expect::Absent, "0")?]).await?;
    let mut tasks = JoinSet::new();
    for case in clients.clone() {
        tasks.spawn(async move {
            let mut done = BTreeMap::new();
            for _ in 0..ROUNDS {
                let entry = case.get("counter").await?.ok_or("the counter is gone")?;
                let count: u64 = String::from_utf8_lossy(&entry.value).parse().map_err(said)?;
                let more = put("counter", Expect::Version(entry.version), &(count + 1).to_string())?;
                if let Applied::Done(version) = case.one([more]).await? {
                    done.insert(entry.version, version);
                }
            }
            Ok(done)
        });
    }
    let (mut before, mut after, mut done) = (BTreeSet::new(), BTreeSet::new(), 0);
    for one in all(tasks).await? {
        done += one.len();
        before.extend(one.keys().copied());
        after.extend(one.values().copied());
    }
    same("changes by their versions before and after", &(before.len(), after.len()), &(done, done))?;
    same("the count", &clients[0].value("counter").await?, &Some(done.to_string()))?;
    holds("somebody got through in each round", done >= ROUNDS)
}

async fn one_maker(fixture: &dyn Fixture) -> Result<(), String> {
    let clients = clients(fixture, 23).await?;
    let mut tasks = JoinSet::new();
    for (client, case) in clients.iter().cloned().enumerate() {
        tasks.spawn(async move {
            let mut made = Vec::new();
            for round in 0..ROUNDS {
                let (name, own) = (format!("k-{round}"), client.to_string());
                let aside = format!("{name}-{client}");
                let changes = [put(&name, Expect::Absent, &own)?, put(&aside, Expect::Anything, &own)?];
                if let Applied::Done(_) = case.one(changes).await? {
                    made.push((round, own));
                }
            }
            Ok(made)
        });
    }
    let made: Vec<_> = all(tasks).await?.concat();
    same("makers", &made.len(), &ROUNDS)?;
    for (round, maker) in made {
        same("who made it", &clients[0].value(format!("k-{round}")).await?, &Some(maker))?;
    }
    same("entries", &clients[0].scan(b"", 100).await?.len(), &(2 * ROUNDS))
}

/// Two entries always sum up to 1,000, in whatever way they are read.
async fn never_by_half(fixture: &dyn Fixture) -> Result<(), String> {
    let clients = clients(fixture, 24).await?;
    clients[0].done([put("a", Expect::Absent, "1000")?, put("b", Expect::Absent, "0")?]).await?;
    let mut tasks = JoinSet::new();
    for (client, case) in clients.into_iter().enumerate() {
        tasks.spawn(async move {
            let mut done = 0;
            for round in 0..ROUNDS {
                let (a, b) = match round % 2 {
                    0 => {
                        let both =
                            case.store.read(case.shard, &[key("b")?, key("a")?]).await.map_err(said)?;
                        let [Some(b), Some(a)] = &both[..] else { return Err("one is gone".into()) };
                        (a.clone(), b.clone())
                    }
                    _ => {
                        let both = case.scan(b"", 10).await?;
                        let [a, b] = &both[..] else { return Err(format!("{} are there", both.len())) };
                        (a.clone(), b.clone())
                    }
                };
                same("versions of both", &a.version, &b.version)?;
                let number = |value: &[u8]| String::from_utf8_lossy(value).parse::<usize>().map_err(said);
                let (one, other) = (number(&a.value)?, number(&b.value)?);
                same("the sum", &(one + other), &1_000)?;
                let more = (one + 7 * client + round) % 1_000;
                let changes = [
                    put("a", Expect::Version(a.version), &more.to_string())?,
                    put("b", Expect::Version(b.version), &(1_000 - more).to_string())?,
                ];
                done += usize::from(matches!(case.one(changes).await?, Applied::Done(_)));
            }
            Ok(done)
        });
    }
    let done: usize = all(tasks).await?.iter().sum();
    holds("somebody got through in each round", done >= ROUNDS)
}

async fn numbers(fixture: &dyn Fixture) -> Result<(), String> {
    let mut tasks = JoinSet::new();
    for (client, case) in (1_u32..).zip(clients(fixture, 25).await?) {
        tasks.spawn(async move {
            let mut given = Vec::new();
            for _ in 0..ROUNDS {
                let first = case.store.numbers(case.shard, client).await.map_err(said)?;
                given.extend(first..first + u64::from(client));
            }
            Ok(given)
        });
    }
    let given = all(tasks).await?.concat();
    let count = given.len();
    same("numbers that were given once", &given.into_iter().collect::<BTreeSet<_>>().len(), &count)
}

async fn given_up(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, 26).await?;
    let mut last = 0;
    for round in 0..60_u64 {
        let value = round.to_string();
        let groups = [
            group([put("a", Expect::Anything, &value)?, put("b", Expect::Anything, &value)?]),
            group([put("c", Expect::Anything, &value)?]),
        ];
        // The first is given up before it has begun, others in the middle.
        let patience = Duration::from_micros(round / 4 * round);
        let answered = timeout(patience, case.store.apply(case.shard, &groups)).await;
        let applied = answered.ok().transpose().map_err(said)?;
        let names = [key("a")?, key("b")?, key("c")?];
        let found = case.store.read(case.shard, &names).await.map_err(said)?;
        let values: BTreeSet<_> = found.iter().map(|one| one.as_ref().map(|one| one.value.clone())).collect();
        same("how many values there are", &values.len(), &1)?;
        if let Some((_, applied)) = applied {
            // One that was given up in an earlier round may come to its end only now.
            same("entries", &found.iter().flatten().count(), &3)?;
            let (Applied::Done(answered), Some(Some(entry))) = (applied[0], found.first()) else {
                return Err(format!("{applied:?}"));
            };
            holds("nothing is older than what was answered", entry.version >= answered)?;
        }
        for entry in found.iter().flatten() {
            holds("versions go up", entry.version >= last)?;
        }
        last = found.iter().flatten().map(|entry| entry.version).min().unwrap_or(0).max(last);
        case.store.numbers(case.shard, 1).await.map_err(said)?;
        drop(timeout(patience, case.store.numbers(case.shard, 1)).await);
        drop(timeout(patience, case.store.woken(case.shard, 1)).await);
    }
    case.done([put("a", Expect::Anything, "end")?]).await.map(drop)
}
