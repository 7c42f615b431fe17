//! The process's share of the fleet's limits.
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::rules;
use std::sync::Arc;
use windfall_consumer::SharedLimiter;
use windfall_contract::rules::{DrainingTopic, Limit, Rules, Topic};
use windfall_limiter::{self as limiter, Limiter, Now};

fn at_1000_per_s(version: u64) -> Rules {
    let limit = Limit { rate_per_s: 1_000, burst: 100 };
    let mut rules = rules(&["cash"]);
    rules.version = version;
    rules.limits.types.get_mut("cash").unwrap().limit = limit;
    for (name, partitions) in [("a", 4), ("b", 4)] {
        rules.topics.insert(name.into(), Topic { broker: "one".into(), partitions });
    }
    rules
}

fn shared_limiter() -> SharedLimiter {
    let limiter = Limiter::new(limiter::Limit { rate_per_s: 0, burst: 1 }, Now(0));
    SharedLimiter::new(Arc::new(limiter), Now(0))
}

fn may_pass_per_s(shared: &SharedLimiter) -> f64 {
    shared.limiter().may_pass_per_s(shared.limiter().type_id("cash"))
}

#[test]
fn the_share_is_what_the_process_owns_of_all_topics() {
    let shared = shared_limiter();
    shared.apply(&at_1000_per_s(1), Now(0));
    let (a, b) = (shared.join(), shared.join());
    assert_eq!(may_pass_per_s(&shared), 0.0, "nothing is owned yet");
    shared.set_owned(a, "a", 4, 4, Now(0));
    assert_eq!(
        may_pass_per_s(&shared),
        500.0,
        "half of all partitions, though this process has no other topic"
    );
    shared.set_owned(b, "b", 2, 4, Now(0));
    assert_eq!(may_pass_per_s(&shared), 750.0);
    shared.set_owned(a, "a", 0, 4, Now(0));
    assert_eq!(may_pass_per_s(&shared), 250.0);
}

#[test]
fn three_instances_with_different_topics_never_pass_more_than_the_limit() {
    let owned = [[("a", 1), ("b", 4)], [("a", 3), ("b", 0)], [("a", 0), ("b", 0)]];
    let passes = owned.map(|topics| {
        let shared = shared_limiter();
        shared.apply(&at_1000_per_s(1), Now(0));
        for (topic, owned) in topics.into_iter().filter(|(_, owned)| *owned > 0) {
            shared.set_owned(shared.join(), topic, owned, 4, Now(0));
        }
        may_pass_per_s(&shared)
    });
    assert_eq!(passes.iter().sum::<f64>(), 1_000.0);
}

#[test]
fn of_two_consumers_the_one_that_is_behind_does_not_undo_a_change() {
    let shared = shared_limiter();
    let (a, b) = (shared.join(), shared.join());
    shared.set_owned(a, "a", 4, 4, Now(0));
    shared.set_owned(b, "b", 4, 4, Now(0));
    let mut newer = at_1000_per_s(2);
    newer.limits.types.get_mut("cash").unwrap().limit.rate_per_s = 10;
    shared.apply(&newer, Now(0));
    shared.apply(&at_1000_per_s(1), Now(0));
    assert_eq!(may_pass_per_s(&shared), 10.0);
}

#[test]
fn of_two_consumers_of_a_topic_the_one_that_goes_takes_only_its_own_share_along() {
    let shared = shared_limiter();
    shared.apply(&at_1000_per_s(1), Now(0));
    let (stays, goes) = (shared.join(), shared.join());
    shared.set_owned(stays, "a", 2, 4, Now(0));
    shared.set_owned(goes, "a", 2, 4, Now(0));
    assert_eq!(may_pass_per_s(&shared), 500.0);
    // The broker is quick: the other has its partitions before it has said good-bye.
    shared.set_owned(stays, "a", 4, 4, Now(0));
    assert_eq!(may_pass_per_s(&shared), 500.0);
    shared.set_owned(goes, "a", 0, 4, Now(0));
    assert_eq!(may_pass_per_s(&shared), 500.0, "or the one that stays would never pass anything again");
}

/// A process that has followed a change of the topics, and one that has not, never pass more than the limit together; when
/// the change has settled, the one that followed has its part.
#[test]
fn a_change_of_the_topics_lowers_first_and_raises_when_it_has_settled() {
    let behind = shared_limiter();
    behind.apply(&at_1000_per_s(1), Now(0));
    behind.set_owned(behind.join(), "a", 4, 4, Now(0));
    behind.set_owned(behind.join(), "b", 4, 4, Now(0));
    assert_eq!(may_pass_per_s(&behind), 1_000.0);
    let ahead = shared_limiter();
    ahead.apply(&at_1000_per_s(1), Now(0));
    let mut rules = at_1000_per_s(2);
    rules.topics.insert("c".into(), Topic { broker: "one".into(), partitions: 8 });
    ahead.apply(&rules, Now(0));
    ahead.set_owned(ahead.join(), "c", 8, 8, Now(0));
    assert_eq!(may_pass_per_s(&ahead), 0.0, "the other one passes the whole limit");
    let second = 1_000_000_000;
    behind.apply(&rules, Now(second));
    assert_eq!(may_pass_per_s(&behind), 500.0);
    for (at_s, passes) in [(14, 0.0), (15, 500.0)] {
        ahead.settle(Now(at_s * second));
        assert_eq!(may_pass_per_s(&ahead), passes);
    }
}

/// Draining topics carry their part, so that a fleet that reads them passes the whole limit and no more.
#[test]
fn a_topic_that_drains_counts_as_long_as_the_rules_name_it() {
    let shared = shared_limiter();
    let mut rules = at_1000_per_s(1);
    let old = DrainingTopic { topic: "a".into(), broker: "two".into(), partitions: 8 };
    rules.draining.push(old);
    shared.apply(&rules, Now(0));
    shared.set_owned(shared.join(), "a@one", 4, 4, Now(0));
    shared.set_owned(shared.join(), "b@one", 4, 4, Now(0));
    assert_eq!(may_pass_per_s(&shared), 500.0);
    shared.set_owned(shared.join(), "a@two", 8, 8, Now(0));
    assert_eq!(may_pass_per_s(&shared), 1_000.0);
}
