//! What every backend has to show: each sentence of [`contract`](windfall_contract::tokens), as a check.

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use windfall_contract::tokens::{NEVER, StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};

/// A store under test.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Names the backend in messages.
    fn name(&self) -> &str;

    /// Opens the store; again after all handles of the last were dropped, with the same data.
    ///
    /// # Errors
    /// What the backend says; it fails the check.
    async fn open(&self) -> Result<Arc<dyn TokenStore>, String>;
}

/// Runs all checks on users of their own each, and returns the failed ones with what was wrong.
pub async fn run(fixture: &dyn Fixture) -> Vec<(&'static str, String)> {
    let results = [
        ("last_put_wins", last_put_wins(fixture, 1000).await),
        ("removes", removes(fixture, 2000).await),
        ("answers_in_order", answers_in_order(fixture, 3000).await),
        ("pages", pages(fixture, 4000).await),
        ("users_apart", users_apart(fixture).await),
        ("large_batches", large_batches(fixture, 6000).await),
        ("survives_restart", survives_restart(fixture, 7000).await),
        ("at_once", at_once(fixture, 8000).await),
        ("kept_until_expiry", kept_until_expiry(fixture, 9000).await),
    ];
    let failed = results.into_iter().filter_map(|(name, result)| Some((name, result.err()?)));
    failed.map(|(name, what)| (name, format!("{}: {what}", fixture.name()))).collect()
}

fn put(user_id: i64, name: &str, token: &str) -> TokenPut {
    TokenPut { user_id, name: name.into(), token: token.into(), expires_at_ms: NEVER }
}

fn key(user_id: i64, name: &str) -> TokenKey {
    TokenKey { user_id, name: name.into() }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

fn said(error: Unavailable) -> String {
    error.to_string()
}

/// Repeated puts of an order keep the last, within a batch and over batches; an empty batch is fine.
async fn last_put_wins(fixture: &dyn Fixture, user: i64) -> Result<(), String> {
    let store = fixture.open().await?;
    store.put(&[]).await.map_err(said)?;
    store.put(&[put(user, "a", "one"), put(user, "a", "two")]).await.map_err(said)?;
    same("within a batch", &store.get(&[key(user, "a")]).await.map_err(said)?, &vec![Some("two".into())])?;
    store.put(&[put(user, "a", "three")]).await.map_err(said)?;
    same("over batches", &store.get(&[key(user, "a")]).await.map_err(said)?, &vec![Some("three".into())])
}

/// A removed token is gone, a remove of nothing is done, a put after it counts again.
async fn removes(fixture: &dyn Fixture, user: i64) -> Result<(), String> {
    let store = fixture.open().await?;
    store.put(&[put(user, "a", "one"), put(user, "b", "two")]).await.map_err(said)?;
    for _ in 0..2 {
        store.remove(&[key(user, "a"), key(user, "never")]).await.map_err(said)?;
    }
    let left = store.list(user, None, 10).await.map_err(said)?;
    same("after a remove", &left, &vec![StoredToken { name: "b".into(), token: "two".into() }])?;
    store.put(&[put(user, "a", "again")]).await.map_err(said)?;
    same("put again", &store.get(&[key(user, "a")]).await.map_err(said)?, &vec![Some("again".into())])
}

/// One answer a key, in the order of the keys, repeated keys included.
async fn answers_in_order(fixture: &dyn Fixture, user: i64) -> Result<(), String> {
    let store = fixture.open().await?;
    store.put(&[put(user, "z", "last"), put(user, "a", "first")]).await.map_err(said)?;
    let keys = [key(user, "z"), key(user, "none"), key(user, "a"), key(user, "z")];
    let answers = store.get(&keys).await.map_err(said)?;
    same("answers", &answers, &vec![Some("last".into()), None, Some("first".into()), Some("last".into())])
}

/// Pages in the order of order numbers, `after` excluded, whatever the page size.
async fn pages(fixture: &dyn Fixture, user: i64) -> Result<(), String> {
    let store = fixture.open().await?;
    let mut model = BTreeMap::new();
    for number in 0..23 {
        // Some are prefixes of others.
        let name = format!("order-{}", number * 7 % 23);
        store.put(&[put(user, &name, &number.to_string())]).await.map_err(said)?;
        model.insert(name, number.to_string());
    }
    for limit in [1, 4, 23, 100] {
        let mut found = Vec::new();
        let mut after: Option<Box<str>> = None;
        loop {
            let page = store.list(user, after.as_deref(), limit).await.map_err(said)?;
            if page.len() > limit {
                return Err(format!("{} tokens where {limit} were asked for", page.len()));
            }
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            found.extend(page.into_iter().map(|one| (one.name.into_string(), one.token.into_string())));
        }
        same("all pages", &found, &model.clone().into_iter().collect())?;
    }
    same("no limit", &store.list(user, None, 0).await.map_err(said)?, &Vec::new())
}

/// A user's page holds nobody else's tokens, neighbours and negative ids included.
async fn users_apart(fixture: &dyn Fixture) -> Result<(), String> {
    let store = fixture.open().await?;
    let users = [i64::MIN, -5001, -5000, -1, 0, 1, 5000, 5001, i64::MAX];
    for user in users {
        store.put(&[put(user, "same", &user.to_string()), put(user, "", "empty")]).await.map_err(said)?;
    }
    for user in users {
        let page = store.list(user, None, 10).await.map_err(said)?;
        let found: Vec<_> = page.iter().map(|one| (&*one.name, &*one.token)).collect();
        same("a user's page", &found, &vec![("", "empty"), ("same", &*user.to_string())])?;
        same("after all", &store.list(user, Some("same"), 10).await.map_err(said)?, &Vec::new())?;
    }
    Ok(())
}

/// Batches of thousands, over more than what stays in memory.
async fn large_batches(fixture: &dyn Fixture, user: i64) -> Result<(), String> {
    const BATCH: usize = 2000;
    let store = fixture.open().await?;
    let token = "t".repeat(400);
    for batch in 0..8 {
        let puts: Vec<_> = (0..BATCH).map(|one| put(user, &format!("{batch}-{one:05}"), &token)).collect();
        store.put(&puts).await.map_err(said)?;
        let keys: Vec<_> = (0..BATCH).skip(1).map(|one| key(user, &format!("{batch}-{one:05}"))).collect();
        store.remove(&keys).await.map_err(said)?;
    }
    let left = store.list(user, None, BATCH).await.map_err(said)?;
    let left: Vec<_> = left.iter().map(|one| one.name.to_string()).collect();
    same("left", &left, &(0..8).map(|batch| format!("{batch}-00000")).collect())
}

/// Puts and removals survive a restart.
async fn survives_restart(fixture: &dyn Fixture, user: i64) -> Result<(), String> {
    let store = fixture.open().await?;
    store.put(&[put(user, "stays", "here"), put(user, "goes", "away")]).await.map_err(said)?;
    store.remove(&[key(user, "goes")]).await.map_err(said)?;
    drop(store);
    let store = fixture.open().await?;
    let answers = store.get(&[key(user, "stays"), key(user, "goes")]).await.map_err(said)?;
    same("after a restart", &answers, &vec![Some("here".into()), None])
}

/// Several callers at once do not disturb each other.
async fn at_once(fixture: &dyn Fixture, user: i64) -> Result<(), String> {
    let store = fixture.open().await?;
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for one in 0..50 {
                    store.put(&[put(user + task, &one.to_string(), "x")]).await?;
                    if one % 2 == 0 {
                        store.remove(&[key(user + task, &one.to_string())]).await?;
                    }
                }
                Ok::<_, Unavailable>(store.list(user + task, None, 100).await?.len())
            })
        })
        .collect();
    for task in tasks {
        let left = task.await.map_err(|error| error.to_string())?.map_err(said)?;
        same("tokens left", &left, &25)?;
    }
    Ok(())
}

/// A token is there until it expires, whatever is put beside it that expires sooner.
async fn kept_until_expiry(fixture: &dyn Fixture, user: i64) -> Result<(), String> {
    let store = fixture.open().await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
    let now_ms = u64::try_from(now.as_millis()).map_err(|error| error.to_string())?;
    let until = |name: &str, expires_at_ms| TokenPut { expires_at_ms, ..put(user, name, "x") };
    let (soon_ms, late_ms) = (now_ms + 1_000, now_ms + 3_600_000);
    // After a longer one, in one batch with it, before it; and a batch again, as after a lost answer.
    store.put(&[until("late-1", late_ms)]).await.map_err(said)?;
    for _ in 0..2 {
        store.put(&[until("soon-1", soon_ms)]).await.map_err(said)?;
    }
    let both = [until("late", late_ms), until("soon", soon_ms)];
    let both = both.map(|one| TokenPut { user_id: user + 1, ..one });
    store.put(&both).await.map_err(said)?;
    for one in [until("soon", soon_ms), until("late", late_ms)] {
        store.put(&[TokenPut { user_id: user + 2, ..one }]).await.map_err(said)?;
    }
    store.put(&[TokenPut { user_id: user + 3, ..until("never", NEVER) }]).await.map_err(said)?;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let keys = [key(user, "late-1"), key(user + 1, "late"), key(user + 2, "late"), key(user + 3, "never")];
    let there = store.get(&keys).await.map_err(said)?;
    same("not expired yet", &there, &vec![Some("x".into()); 4])
}
