//! Each trap of a limiter under changes, told as a story.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use windfall_limiter::{Admission, Fuse, Limit, Limiter, Now, Share, TypeId, TypeLimit, Wait};

const SECOND_NS: u64 = 1_000_000_000;
const PLENTY: Limit = Limit { rate_per_s: Limit::RATE_PER_S_MAX, burst: Limit::BURST_MAX };

fn at(s: u64) -> Now {
    Now(s * SECOND_NS)
}

fn limit(rate_per_s: u64, burst: u32) -> Limit {
    Limit { rate_per_s, burst }
}

fn rule(rate_per_s: u64, burst: u32) -> TypeLimit {
    TypeLimit { limit: limit(rate_per_s, burst), fuse: Fuse::Closed, priority: 0 }
}

fn set(limiter: &Limiter, rule: TypeLimit, now: Now) {
    limiter.apply(PLENTY, &[("cash".into(), rule)], now);
}

/// One type, `cash`, with its rule since time 0.
fn cash(rule: TypeLimit) -> (Limiter, TypeId) {
    let limiter = Limiter::new(PLENTY, at(0));
    set(&limiter, rule, at(0));
    let id = limiter.type_id("cash");
    (limiter, id)
}

fn passed(limiter: &Limiter, id: TypeId, now: Now) -> u32 {
    limiter.admit(id, u32::MAX, now).granted
}

/// An operator turns a limit up and down while a type waits: a limiter that is built anew each time starts full.
#[test]
fn a_rate_that_is_changed_back_and_forth_grants_no_fresh_burst() {
    let (limiter, id) = cash(rule(10, 100));
    assert_eq!(passed(&limiter, id, at(60)), 100);
    for _ in 0..1_000 {
        set(&limiter, rule(1_000, 5_000), at(60));
        assert_eq!(passed(&limiter, id, at(60)), 0);
        set(&limiter, rule(10, 100), at(60));
        assert_eq!(passed(&limiter, id, at(60)), 0);
    }
    assert_eq!(passed(&limiter, id, at(61)), 10);
}

/// A limit that is cut holds at once, for what was saved up under the old one too; raised again, what was cut is gone.
#[test]
fn a_cut_burst_is_gone_at_once_and_does_not_come_back() {
    let (limiter, id) = cash(rule(10, 1_000));
    set(&limiter, rule(10, 20), at(1_000));
    set(&limiter, rule(10, 1_000), at(1_000));
    assert_eq!(passed(&limiter, id, at(1_000)), 20);
}

/// The time before a change was earned at the rate that held then.
#[test]
fn a_raised_rate_counts_from_the_change_on() {
    let (limiter, id) = cash(rule(1, 10_000));
    set(&limiter, rule(1_000, 10_000), at(100));
    assert_eq!(passed(&limiter, id, at(100)), 100);
    set(&limiter, rule(1, 10_000), at(101));
    assert_eq!(passed(&limiter, id, at(101)), 1_000);
    assert_eq!(passed(&limiter, id, at(111)), 10);
}

/// A type is dropped from the rules and put back: that is no way to a fresh burst either, nor a lasting refusal.
#[test]
fn a_type_that_leaves_the_rules_and_comes_back_finds_its_own_level() {
    let (limiter, id) = cash(rule(10, 100));
    assert_eq!(passed(&limiter, id, at(60)), 100);
    limiter.apply(PLENTY, &[], at(60));
    assert_eq!(limiter.admit(id, 1, at(3_600)), Admission { granted: 0, wait: Wait::Never });
    set(&limiter, rule(10, 100), at(3_600));
    assert_eq!(passed(&limiter, id, at(3_600)), 0);
    assert_eq!(passed(&limiter, id, at(3_601)), 10);
    assert_eq!(limiter.type_id("cash"), id);

    // What it had earned before it left is still its own, and its fuse left with its rule.
    set(&limiter, TypeLimit { fuse: Fuse::Pause, priority: 3, ..rule(10, 100) }, at(3_602));
    limiter.apply(PLENTY, &[], at(3_605));
    assert_eq!((limiter.fuse(id), limiter.priority(id)), (Fuse::Closed, 255));
    set(&limiter, rule(10, 100), at(7_200));
    assert_eq!(passed(&limiter, id, at(7_200)), 40);
}

/// A state that is carried to a limiter with another start denies for as long as the process has been up.
#[test]
fn after_a_hundred_days_a_change_denies_no_longer_than_one_event_takes() {
    let (limiter, id) = cash(rule(10, 100));
    let now = at(100 * 86_400);
    assert_eq!(passed(&limiter, id, now), 100);
    set(&limiter, rule(4, 8), now);
    let wait = Duration::from_millis(250);
    assert_eq!(limiter.admit(id, 1, now), Admission { granted: 0, wait: Wait::For(wait) });
    assert_eq!(passed(&limiter, id, Now(now.0 + 250_000_000)), 1);
}

/// A rate of zero is an operator's stop, not a very long period and not an error; and it is no dead end.
#[test]
fn rate_zero_admits_nothing_and_ends_when_it_is_lifted() {
    let (limiter, id) = cash(rule(10, 100));
    set(&limiter, rule(0, 100), at(60));
    for s in [60, 61, 3_600, 365 * 86_400] {
        assert_eq!(limiter.admit(id, 1, at(s)), Admission { granted: 0, wait: Wait::Never });
    }
    assert_eq!(limiter.may_pass_per_s(id), 0.0);
    let lifted = at(365 * 86_400);
    set(&limiter, rule(10, 5), lifted);
    assert_eq!(passed(&limiter, id, lifted), 5, "what was earned before the stop, within the new burst");
    limiter.apply(limit(0, 1), &[("cash".into(), rule(10, 5))], lifted);
    assert_eq!(limiter.admit(id, 1, at(366 * 86_400)).wait, Wait::Never, "the global rate stops all");
}

/// 60 million a second is 16.67 ns an event: in whole nanoseconds it would be 62.5 million.
#[test]
fn a_rate_that_is_no_whole_number_of_nanoseconds_is_kept_to_the_event() {
    let (limiter, id) = cash(rule(60_000_000, 1_000_000));
    let passed: u64 = (1..=1_000).map(|ms| u64::from(passed(&limiter, id, Now(ms * 1_000_000)))).sum();
    assert_eq!(passed, 60_000_000);
}

/// A lane holds more than a burst: it gets what there is, not an error.
#[test]
fn more_than_a_burst_is_granted_in_parts() {
    let (limiter, id) = cash(rule(1, 10));
    let wait = Wait::For(Duration::from_secs(1));
    assert_eq!(limiter.admit(id, 256, at(60)), Admission { granted: 10, wait });
    assert_eq!(limiter.admit(id, 246, at(63)), Admission { granted: 3, wait });
    assert_eq!(limiter.admit(id, 0, at(63)), Admission { granted: 0, wait });
    assert_eq!(limiter.admit(id, 1, at(65)), Admission { granted: 1, wait: Wait::For(Duration::ZERO) });
}

/// The type may, the whole may not: what the global bucket refuses stays in the type's bucket, and the other way.
#[test]
fn events_are_taken_from_both_buckets_or_from_none() {
    let limiter = Limiter::new(limit(1, 10), at(0));
    let (cash, coin) = (limiter.type_id("cash"), limiter.type_id("coin"));
    let rules = [("cash".into(), rule(2, 100)), ("coin".into(), rule(1, 4))];
    limiter.apply(limit(1, 10), &rules, at(0));
    assert_eq!(passed(&limiter, coin, at(100)), 4);
    assert_eq!(passed(&limiter, cash, at(100)), 6);
    assert_eq!(limiter.may_pass_per_s(cash), 1.0);
    // Refused by the global bucket a hundred times; the 94 that cash has left are still there.
    (0..100).for_each(|_| assert_eq!(passed(&limiter, cash, at(100)), 0));
    limiter.apply(PLENTY, &rules, at(100));
    assert_eq!(passed(&limiter, cash, Now(100 * SECOND_NS + 1_000_000)), 94);
}

/// A watcher that applies the rules every millisecond must not round away the event that a slow type waits for.
#[test]
fn rules_applied_every_millisecond_do_not_starve_a_slow_type() {
    let (limiter, id) = cash(rule(3, 5));
    let mut sum = 0;
    for ms in 1..=60_000 {
        let now = Now(ms * 1_000_000);
        set(&limiter, rule(3, 5 + u32::from(ms % 2 == 0)), now);
        limiter.set_share(Share::new(3, 3 + u32::from(ms % 2 == 0)).unwrap(), now);
        sum += passed(&limiter, id, now);
    }
    // Half of the time a share of 1, half of the time of 3/4: 157.5 events in a minute.
    assert_eq!(sum, 157);
}

/// A clock that hangs, or is read by two threads out of order.
#[test]
fn a_clock_that_stands_still_or_steps_back_admits_nothing_extra() {
    let (limiter, id) = cash(rule(10, 100));
    assert_eq!(passed(&limiter, id, at(60)), 100);
    for _ in 0..10_000 {
        assert_eq!(passed(&limiter, id, at(60)), 0);
        assert_eq!(passed(&limiter, id, at(50)), 0);
        assert_eq!(passed(&limiter, id, Now(0)), 0);
    }
    set(&limiter, rule(20, 100), at(10));
    limiter.set_share(Share::ALL, at(10));
    assert_eq!(limiter.admit(id, 1, at(59)).wait, Wait::For(Duration::from_millis(1_050)));
    assert_eq!(passed(&limiter, id, at(61)), 20);
}

/// A type that is first seen while the clock is behind must not be paid for the time until it catches up.
#[test]
fn a_type_registered_by_a_clock_that_is_behind_earns_from_the_latest_time_on() {
    let (limiter, _) = cash(rule(10, 100));
    limiter.set_share(Share::ALL, at(60));
    let badge = limiter.type_id("badge");
    limiter.apply(PLENTY, &[("badge".into(), rule(10, 100))], at(0));
    assert_eq!(passed(&limiter, badge, at(60)), 0);
    assert_eq!(passed(&limiter, badge, at(61)), 10);
}

/// Partitions are lost: the part of the burst that went with them is gone at once, and does not come back with them.
#[test]
fn a_share_that_shrinks_and_grows_again_brings_no_burst() {
    let (limiter, id) = cash(rule(12, 120));
    limiter.set_share(Share::new(1, 4).unwrap(), at(60));
    assert_eq!(limiter.may_pass_per_s(id), 3.0);
    limiter.set_share(Share::ALL, at(60));
    assert_eq!(passed(&limiter, id, at(60)), 30);
    limiter.set_share(Share::NONE, at(61));
    assert_eq!(limiter.admit(id, 1, at(61)), Admission { granted: 0, wait: Wait::Never });
    assert_eq!(limiter.may_pass_per_s(id), 0.0);
    limiter.set_share(Share::new(1, 6).unwrap(), at(70));
    assert_eq!(passed(&limiter, id, at(70)), 0);
    assert_eq!(passed(&limiter, id, at(71)), 2);
}

#[test]
fn a_fuse_stops_its_own_type_and_no_other() {
    let limiter = Limiter::new(PLENTY, at(0));
    let (cash, coin) = (limiter.type_id("cash"), limiter.type_id("coin"));
    for fuse in [Fuse::Pause, Fuse::Divert] {
        let blown = TypeLimit { fuse, priority: 7, ..rule(10, 10) };
        limiter.apply(PLENTY, &[("cash".into(), blown), ("coin".into(), rule(10, 10))], at(60));
        assert_eq!((limiter.fuse(cash), limiter.priority(cash)), (fuse, 7));
        assert_eq!(limiter.admit(cash, 1, at(120)), Admission { granted: 0, wait: Wait::Never });
        assert_eq!(limiter.may_pass_per_s(cash), 0.0);
        assert_eq!(limiter.fuse(coin), Fuse::Closed);
    }
    assert_eq!(passed(&limiter, coin, at(120)), 10);
    limiter.apply(PLENTY, &[("cash".into(), rule(10, 10))], at(180));
    assert_eq!(passed(&limiter, cash, at(180)), 10, "one burst, however long it was paused");
}

#[test]
fn a_type_without_a_rule_and_an_id_from_elsewhere_pass_nothing() {
    let (limiter, cash) = cash(rule(10, 10));
    let unknown = limiter.type_id("unknown");
    let other = Limiter::new(PLENTY, at(0));
    assert_eq!(other.admit(cash, 1, at(60)), Admission { granted: 0, wait: Wait::Never });
    assert_eq!(limiter.admit(unknown, 1, at(60)), Admission { granted: 0, wait: Wait::Never });
    assert_eq!((limiter.fuse(unknown), limiter.priority(unknown)), (Fuse::Closed, 255));
    assert_eq!(limiter.may_pass_per_s(unknown), 0.0);
}

/// Names come from outside too: they cannot grow the table without bound, nor take another type's bucket.
#[test]
fn names_past_the_last_id_share_one_that_admits_nothing() {
    let (limiter, cash) = cash(rule(10, 10));
    let ids: Vec<TypeId> = (0..70_000).map(|n| limiter.type_id(&format!("type-{n}"))).collect();
    assert_ne!(ids[65_533], ids[65_534]);
    assert_eq!(ids[65_534], ids[69_999]);
    limiter.apply(PLENTY, &[("cash".into(), rule(10, 10)), ("type-69999".into(), rule(10, 10))], at(60));
    assert_eq!(passed(&limiter, ids[69_999], at(120)), 0);
    assert_eq!(passed(&limiter, cash, at(120)), 10);
}

#[test]
fn of_two_rules_with_one_name_the_later_counts() {
    let (limiter, id) = cash(rule(10, 10));
    limiter.apply(PLENTY, &[("cash".into(), rule(1, 1)), ("cash".into(), rule(5, 5))], at(60));
    assert_eq!(passed(&limiter, id, at(60)), 5);
    assert_eq!(limiter.may_pass_per_s(id), 5.0);
}
