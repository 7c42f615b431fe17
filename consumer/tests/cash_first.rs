//! Cash first across the topics of a process.
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{World, record_of, rules};
use std::time::Duration;
use windfall_consumer::Options;
use windfall_contract::rules::{Limit, Rules};

/// Cash goes first, and only the global limit is short.
fn short() -> Rules {
    let mut rules = rules(&["cash", "badge"]);
    rules.limits.global = Limit { rate_per_s: 1_000, burst: 100 };
    rules
}

#[tokio::test(start_paused = true)]
async fn cash_in_one_topic_goes_before_badges_in_another_that_keep_their_floor() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [badges, cash] = [0, 1].map(|at| World::new(1, 7, dirs[at].path(), short()));
    for n in 0..1_000 {
        badges.append(0, record_of("badge", &format!("b{n}"), 10));
    }
    for n in 0..600 {
        cash.append(0, record_of("cash", &format!("c{n}"), 10));
    }
    let limiter = badges.new_limiter();
    let options = || Options { commit_every_ms: 10, session_timeout_ms: 1_000, ..Options::default() };
    let _consumers = [
        badges.start_as("topic-a", limiter.clone(), options()),
        cash.start_as("topic-b", limiter, options()),
    ];
    tokio::time::sleep(Duration::from_secs(4)).await;
    let granted = |world: &World| world.state.lock().credited.len();
    let (of_cash, of_badges) = (granted(&cash), granted(&badges));
    println!("in 4 s at 1,000/s: {of_cash} cash, {of_badges} badges");
    assert!(of_cash >= 3_400, "{of_cash} cash and {of_badges} badges: cash goes first");
    assert!(
        (100..=400).contains(&of_badges),
        "{of_badges} badges: a twentieth, and what came before the cash"
    );
    // The cash is done after about 6.3 s; from then on the badges have all of it.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(granted(&cash), 6_000);
    assert!(granted(&badges) >= 1_500, "{}", granted(&badges));
    badges.settle(Duration::from_secs(30)).await;
    cash.settle(Duration::from_secs(1)).await;
}
