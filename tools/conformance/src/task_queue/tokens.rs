//! Tokens and their limits.

use super::{Checked, Fixture, holds, said, same};
use windfall_contract::task_queue::{RateLimit, TokenRecord};

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("tokens are kept by namespace", tokens(fixture).await),
        ("calls are counted by interval", counts(fixture).await),
    ]
}

async fn tokens(fixture: &dyn Fixture) -> Result<(), String> {
    let (_, store) = fixture.open().await?;
    let record = |namespace: &str| TokenRecord {
        namespace: namespace.to_owned(),
        token: "a-token-of-some-length".to_owned(),
        description: "two words\nand a line".to_owned(),
        limit: None,
    };
    let (one, two) = (record("checks-one"), record("checks-two"));
    let find = async |namespace: &str| store.token(namespace, "digest").await.map_err(said);
    same("before", &find("checks-one").await?, &None)?;
    same("added", &store.add_token(&one, "digest").await.map_err(said)?, &true)?;
    same("added again", &store.add_token(&one, "digest").await.map_err(said)?, &false)?;
    same("found", &find("checks-one").await?, &Some(one.clone()))?;
    same("another namespace", &find("checks-two").await?, &None)?;
    same("added there", &store.add_token(&two, "digest").await.map_err(said)?, &true)?;
    let limit = RateLimit { read: 3, write: 0, interval_s: 60 };
    let set =
        async |namespace: &str, limit| store.limit_token(namespace, "digest", limit).await.map_err(said);
    same("limited", &set("checks-one", Some(limit)).await?, &true)?;
    same("no token to limit", &set("checks-none", Some(limit)).await?, &false)?;
    let limited = TokenRecord { limit: Some(limit), ..one.clone() };
    same("with its limit", &find("checks-one").await?, &Some(limited.clone()))?;
    let all = store.tokens().await.map_err(said)?;
    holds("both are listed", all.contains(&limited) && all.contains(&two))?;
    same("without its limit", &set("checks-one", None).await?, &true)?;
    same("found", &find("checks-one").await?, &Some(one.clone()))?;
    set("checks-one", Some(limit)).await?;
    store.remove_token("checks-one", "digest").await.map_err(said)?;
    store.remove_token("checks-one", "digest").await.map_err(said)?;
    same("removed", &find("checks-one").await?, &None)?;
    same("the other one stays", &find("checks-two").await?, &Some(two))?;
    store.add_token(&one, "digest").await.map_err(said)?;
    same("a limit goes with its token", &find("checks-one").await?, &Some(one))
}

async fn counts(fixture: &dyn Fixture) -> Result<(), String> {
    let (_, store) = fixture.open().await?;
    let count = async |name: &str| store.count_call(name, 1).await.map_err(said);
    for call in 1..=3 {
        same("calls", &count("checks-a").await?, &call)?;
    }
    same("another name", &count("checks-b").await?, &1)?;
    for call in 1..=2 {
        same("of a long interval", &store.count_call("checks-c", 600).await.map_err(said)?, &call)?;
    }
    same("an interval that is shorter now", &count("checks-c").await?, &1)?;
    fixture.wait_ms(1_100).await;
    same("the next interval", &count("checks-a").await?, &1)
}
