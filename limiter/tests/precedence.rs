//! Cash first at the global bucket, whoever asks first, with a floor for the rest.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use windfall_limiter::{Fuse, Limit, Limiter, Now, TypeId, TypeLimit, Wait};

const MS: u64 = 1_000_000;
const GLOBAL: Limit = Limit { rate_per_s: 1_000, burst: 100 };

fn limiter(types: &[(&str, u8, u64)]) -> (Limiter, Vec<TypeId>) {
    let limiter = Limiter::new(GLOBAL, Now(0));
    let rules: Vec<_> = types
        .iter()
        .map(|&(name, priority, rate_per_s)| {
            let limit = Limit { rate_per_s, burst: 1_000 };
            (name.to_owned(), TypeLimit { limit, fuse: Fuse::Closed, priority })
        })
        .collect();
    limiter.apply(GLOBAL, &rules, Now(0));
    let ids = types.iter().map(|(name, ..)| limiter.type_id(name)).collect();
    (limiter, ids)
}

/// Asks for 100 events of each type every millisecond in this order, the last five times as often; returns what passed.
fn race(limiter: &Limiter, ids: &[TypeId], from_ms: u64, to_ms: u64) -> Vec<u64> {
    let mut passed = vec![0; ids.len()];
    for at_ms in from_ms..to_ms {
        for part in 0..5 {
            for (at, &id) in ids.iter().enumerate() {
                if part == 0 || at + 1 == ids.len() {
                    let now = Now(at_ms * MS + part * MS / 5);
                    passed[at] += u64::from(limiter.admit(id, 100, now).granted);
                }
            }
        }
    }
    passed
}

#[test]
fn the_first_rank_gets_all_but_the_floor_however_often_others_ask() {
    let (limiter, ids) = limiter(&[("cash", 0, 100_000), ("badge", 5, 100_000)]);
    let passed = race(&limiter, &ids, 100, 10_100);
    assert!((450..=600).contains(&passed[1]), "{passed:?}: a twentieth for the badges");
    assert!(passed.iter().sum::<u64>() >= 9_900, "{passed:?}: nothing is wasted");
}

#[test]
fn each_type_behind_has_its_floor() {
    let (limiter, ids) = limiter(&[("cash", 0, 100_000), ("coin", 3, 100_000), ("badge", 5, 100_000)]);
    let passed = race(&limiter, &ids, 100, 10_100);
    assert!(passed[0] > 8_500 && passed[1] > 400 && passed[2] > 400, "{passed:?}");
}

#[test]
fn a_first_rank_that_its_own_limit_holds_back_leaves_the_rest_to_others() {
    let (limiter, ids) = limiter(&[("cash", 0, 300), ("badge", 5, 100_000)]);
    let passed = race(&limiter, &ids, 1_000, 11_000);
    assert!((2_900..=4_000).contains(&passed[0]) && passed[1] >= 6_000, "{passed:?}");
}

#[test]
fn who_asks_no_longer_keeps_nothing_back() {
    let (limiter, ids) = limiter(&[("cash", 0, 100_000), ("badge", 5, 100_000)]);
    race(&limiter, &ids, 100, 200);
    let passed = race(&limiter, &ids[1..], 300, 1_300);
    assert!(passed[0] >= 990, "{passed:?}");
}

#[test]
fn what_is_kept_for_another_is_asked_for_again_soon_and_not_at_once() {
    let (limiter, ids) = limiter(&[("cash", 0, 100_000), ("badge", 5, 100_000)]);
    assert_eq!(limiter.admit(ids[0], 200, Now(100 * MS)).granted, 100);
    let kept = limiter.admit(ids[1], 10, Now(110 * MS));
    assert_eq!((kept.granted, kept.wait), (0, Wait::For(std::time::Duration::from_millis(1))));
}
