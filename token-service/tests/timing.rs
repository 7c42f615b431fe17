//! All Illegal look alike in time: medians of the classes, measured in turn.
//!
//! The bound is generous, for machines that are busy: it shows a class that skips the decoy or the store, which is
//! some ten times faster, and not the microsecond that the crate's page says is not hidden.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod desk;

use desk::{Desk, TENANT, USER, fields, mint};
use std::time::{Duration, Instant};
use windfall_contract::rules::Revoked;
use windfall_contract::verifier::Verdict;
use windfall_token::{Algorithm, KeyRing, TokenFields};

const ROUNDS: usize = 301;
const BATCH: usize = 64;

#[tokio::test]
async fn no_class_of_illegal_is_much_faster_or_slower_than_another() {
    for algorithm in [Algorithm::HmacSha256, Algorithm::Ed25519] {
        compare(algorithm).await;
    }
}

async fn compare(algorithm: Algorithm) {
    let mut desk = Desk::with(KeyRing::ephemeral_of(algorithm).unwrap());
    desk.revoke([Revoked::TradeNo("revoked".into())]);
    let good = desk.mint(&fields("good"));
    let mut version = good.clone();
    version.replace_range(0..1, "B");
    let mut seal = good.clone();
    let at = seal.len() - 2;
    let other = if &seal[at..=at] == "A" { "B" } else { "A" };
    seal.replace_range(at..=at, other);
    let classes = [
        ("base64", format!("{good}=")),
        ("header", good[..20].to_owned()),
        ("version", version),
        ("key", format!("{}k{}", &good[..6], &good[7..])),
        ("seal", seal),
        ("tenant", mint(&desk.ring, "rival", &fields("good"))),
        ("owner", desk.mint(&TokenFields { user_id: USER + 1, ..fields("good") })),
        ("revoked", desk.mint(&fields("revoked"))),
    ];
    let mut times = vec![Vec::with_capacity(ROUNDS); classes.len()];
    for round in 0..ROUNDS {
        for step in 0..classes.len() {
            // Another order each round, so that no class always follows the same one.
            let class = (step + round) % classes.len();
            let texts = vec![classes[class].1.as_str(); BATCH];
            let started = Instant::now();
            let verdicts = desk.verifier.verify(TENANT, USER, &texts).await.unwrap();
            times[class].push(started.elapsed());
            assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Illegal), "{}", classes[class].0);
        }
    }
    let medians: Vec<(&str, Duration)> = classes
        .iter()
        .zip(&mut times)
        .map(|((name, _), times)| {
            times.sort_unstable();
            (*name, times[ROUNDS / 2])
        })
        .collect();
    println!("{algorithm}, medians of {BATCH} texts: {medians:?}");
    let fastest = medians.iter().map(|(_, median)| *median).min().unwrap();
    let slowest = medians.iter().map(|(_, median)| *median).max().unwrap();
    assert!(slowest <= fastest * 3, "{algorithm}: {medians:?}");
}
