//! Tests of the router.

mod by_history;
mod load;
mod speed;
mod stateless;

use super::{Choice, Request, Router, RouterOptions, Strategy};
use std::collections::BTreeMap;
use std::sync::Arc;

fn router() -> Router {
    Router::new(RouterOptions::default(), 42)
}

/// Addresses in order.
fn addresses(count: usize) -> Vec<Arc<str>> {
    (0..count).map(|at| format!("http://10.0.{}.{}:9999", 100 + at / 100, 100 + at % 100).into()).collect()
}

fn without(alive: &[Arc<str>], gone: &Arc<str>) -> Vec<Arc<str>> {
    alive.iter().filter(|address| *address != gone).map(Arc::clone).collect()
}

/// Who gets a run of a job, and the fallbacks.
fn choose(router: &Router, strategy: Strategy, job: u64, alive: &[Arc<str>]) -> (Arc<str>, Vec<Arc<str>>) {
    match router.choose(&Request { job, key: None, strategy, now_ms: 0 }, alive) {
        Choice::One { address, fallbacks } => (address, fallbacks),
        other => panic!("{other:?}"),
    }
}

/// How many of the next runs of a job each address gets; 0 is left out.
fn shares(
    router: &Router,
    strategy: Strategy,
    job: u64,
    alive: &[Arc<str>],
    runs: usize,
) -> BTreeMap<Arc<str>, u64> {
    let mut shares = BTreeMap::new();
    for _ in 0..runs {
        *shares.entry(choose(router, strategy, job, alive).0).or_default() += 1;
    }
    shares
}

/// Whether counts are as even as chance makes them: less than the chi-square of 9 degrees of freedom that is exceeded
/// once in 1,000 times. For ten addresses.
fn is_even(counts: &BTreeMap<Arc<str>, u64>) -> bool {
    let total: u64 = counts.values().sum();
    let expected = f64::from(u32::try_from(total).unwrap()) / 10.0;
    let square = |count: &u64| (f64::from(u32::try_from(*count).unwrap()) - expected).powi(2) / expected;
    counts.len() == 10 && counts.values().map(square).sum::<f64>() < 27.88
}
