//! Strategies that remember nothing, and the names of all.

use super::{addresses, choose, is_even, router, shares, without};
use crate::routing::hash::{hash, score};
use crate::routing::{Choice, FALLBACKS_MAX, Request, Router, RouterOptions, Strategy};
use std::collections::BTreeMap;
use std::sync::Arc;

#[test]
fn names_are_read_in_both_cases_and_written_in_snake_case() {
    for strategy in Strategy::ALL {
        let upper = strategy.name().to_ascii_uppercase();
        assert_eq!(upper.parse(), Ok(strategy));
        assert_eq!(serde_json::from_str::<Strategy>(&format!("\"{upper}\"")).unwrap(), strategy);
        assert_eq!(serde_json::to_string(&strategy).unwrap(), format!("\"{strategy}\""));
        assert_eq!(strategy.name().parse(), Ok(strategy));
    }
    assert_eq!("LEAST_FREQUENTLY_USED".parse(), Ok(Strategy::LeastFrequentlyUsed));
    let error = serde_json::from_str::<Strategy>("\"nearest\"").unwrap_err().to_string();
    assert!(
        error.contains("\"nearest\" is not a routing strategy; choose one of first, last, round"),
        "{error}"
    );
}

#[test]
fn nobody_alive_is_no_choice() {
    for strategy in Strategy::ALL {
        let request = Request { job: 1, key: None, strategy, now_ms: 0 };
        assert_eq!(router().choose(&request, &[]), Choice::None);
    }
}

#[test]
fn one_alive_is_chosen_without_fallbacks() {
    let alive = addresses(1);
    let probed = [Strategy::Failover, Strategy::Busyover, Strategy::ShardingBroadcast];
    for strategy in Strategy::ALL.into_iter().filter(|strategy| !probed.contains(strategy)) {
        assert_eq!(choose(&router(), strategy, 1, &alive), (Arc::clone(&alive[0]), vec![]));
    }
}

#[test]
fn fallbacks_are_others_each_once() {
    let alive = addresses(10);
    let probed = [Strategy::Failover, Strategy::Busyover, Strategy::ShardingBroadcast];
    let router = router();
    for strategy in Strategy::ALL.into_iter().filter(|strategy| !probed.contains(strategy)) {
        for job in 0..200 {
            let (address, fallbacks) = choose(&router, strategy, job, &alive);
            let mut all = fallbacks;
            all.push(address);
            all.sort();
            all.dedup();
            assert_eq!(all.len(), 1 + FALLBACKS_MAX, "{strategy}");
        }
    }
}

#[test]
fn first_and_last_take_the_ends_of_the_list() {
    let alive = addresses(5);
    let (address, fallbacks) = choose(&router(), Strategy::First, 1, &alive);
    assert_eq!((address, fallbacks), (Arc::clone(&alive[0]), alive[1..4].to_vec()));
    let (address, fallbacks) = choose(&router(), Strategy::Last, 1, &alive);
    let backwards = vec![Arc::clone(&alive[3]), Arc::clone(&alive[2]), Arc::clone(&alive[1])];
    assert_eq!((address, fallbacks), (Arc::clone(&alive[4]), backwards));
}

#[test]
fn probed_strategies_name_all_in_order() {
    let alive = addresses(5);
    let choose = |strategy| router().choose(&Request { job: 1, key: None, strategy, now_ms: 0 }, &alive);
    assert_eq!(choose(Strategy::Failover), Choice::FirstThatBeats(alive.clone()));
    assert_eq!(choose(Strategy::Busyover), Choice::FirstThatIsIdle(alive.clone()));
    let Choice::All(shards) = choose(Strategy::ShardingBroadcast) else { panic!("not all") };
    for (index, shard) in shards.iter().enumerate() {
        assert_eq!((&shard.address, shard.index, shard.total), (&alive[index], index, 5));
    }
    assert_eq!(shards.len(), 5);
}

#[test]
fn random_is_even_and_replays() {
    let alive = addresses(10);
    let counts = shares(&router(), Strategy::Random, 1, &alive, 10_000);
    assert!(is_even(&counts), "{counts:?}");
    assert_eq!(counts, shares(&router(), Strategy::Random, 1, &alive, 10_000));
    let other = Router::new(RouterOptions::default(), 43);
    assert_ne!(counts, shares(&other, Strategy::Random, 1, &alive, 10_000));
}

/// Who gets each of 20,000 keys.
fn owners(alive: &[Arc<str>]) -> Vec<Arc<str>> {
    let router = router();
    let choose = |number: u32| {
        let key = format!("user-{number}");
        let request = Request { job: 1, key: Some(&key), strategy: Strategy::ConsistentHash, now_ms: 0 };
        match router.choose(&request, alive) {
            Choice::One { address, .. } => address,
            other => panic!("{other:?}"),
        }
    };
    (0..20_000).map(choose).collect()
}

#[test]
fn keys_are_spread_evenly_and_only_the_share_of_who_leaves_moves() {
    let alive = addresses(10);
    let before = owners(&alive);
    let mut counts = BTreeMap::new();
    for owner in &before {
        *counts.entry(Arc::clone(owner)).or_default() += 1;
    }
    assert!(is_even(&counts), "{counts:?}");

    let gone = &alive[3];
    let after = owners(&without(&alive, gone));
    let mut moved = BTreeMap::<Arc<str>, u64>::new();
    for (before, after) in before.iter().zip(&after) {
        if before == gone {
            *moved.entry(Arc::clone(after)).or_default() += 1;
        } else {
            assert_eq!(before, after);
        }
    }
    // To each of the nine others, about 222.
    assert_eq!(moved.len(), 9);
    assert!(moved.values().all(|count| (160..290).contains(count)), "{moved:?}");
}

#[test]
fn the_fallback_of_a_key_is_who_gets_it_when_its_owner_leaves() {
    let alive = addresses(10);
    for job in 0..500 {
        let (address, fallbacks) = choose(&router(), Strategy::ConsistentHash, job, &alive);
        let (next, _) = choose(&router(), Strategy::ConsistentHash, job, &without(&alive, &address));
        assert_eq!(fallbacks[0], next);
    }
}

#[test]
fn without_a_key_the_number_of_the_job_in_decimal_is_hashed() {
    let alive = addresses(10);
    for job in [0, 7, 1_234, u64::MAX] {
        let key = job.to_string();
        let with_key = Request { job: 5, key: Some(&key), strategy: Strategy::ConsistentHash, now_ms: 0 };
        let without = Request { job, key: None, ..with_key };
        assert_eq!(router().choose(&with_key, &alive), router().choose(&without, &alive));
    }
}

/// Instances of different versions must agree. The figures come from a second implementation.
#[test]
fn the_hash_is_stable() {
    assert_eq!(hash(b""), 0xe220_a839_7b1d_cdaf);
    assert_eq!(hash(b"a"), 0x3e50_6e57_9633_5af0);
    assert_eq!(hash(b"12345678"), 0x8217_7327_e1e4_daac);
    assert_eq!(hash(b"123456789"), 0xb0f0_0539_162b_363b);
    assert_eq!(score("http://10.0.0.1:9999", hash(b"user-77")), 0x4965_409a_bb63_f27f);
}
