//! The document and the rules say the same, both ways.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use windfall_contract::rules::{
    Budget, BudgetKind, Cap, Fuse, Limit, Limits, Pacing, Pattern, Queue, Ratio, Revocation, Revocations,
    Revoked, Route, Topic, TypeLimit,
};
use windfall_contract::rules::{DrainingTopic, Rules};

const SAMPLE: &str = include_str!("../samples/rules.toml");

#[test]
fn the_sample_says_what_it_says() {
    let rules = windfall_config::parse_rules(SAMPLE, Some(&["a", "b"])).unwrap();
    assert_eq!(rules.version, 1);
    assert_eq!(rules.bonus_types, ["cash", "coupon_tea", "coupon_taxi", "coin", "badge"]);
    assert_eq!(rules.topics["gifts-b"], Topic { broker: "b".to_owned(), partitions: 4 });
    assert_eq!(rules.queues["gifts"].ratio.percent(), 50);
    assert_eq!(rules.route("any", "scene", "cash").unwrap().requeue, ["cash", "gifts"]);
    assert_eq!(rules.route("any", "scene", "coin").unwrap().requeue, ["gifts"]);
    assert_eq!(rules.limits.types.len(), 5);
    assert_eq!(rules.limits.types["coin"].limit, Limit { rate_per_s: 100_000, burst: 10_000 });
    assert_eq!(rules.limits.types["coin"].priority, 1);
    assert_eq!(rules.limits.types["cash"].priority, 0);
    assert_eq!(rules.limits.types["badge"].priority, 2);
    assert_eq!(rules.budgets[0].total, 5_000_000_000);
    assert_eq!(rules.budgets[1].shards, 8);
}

#[test]
fn kinds_of_budgets() {
    let more = "[[budgets]]\nactivity = \"a\"\nscene = \"*\"\ntype = \"*\"\ntotal = 9007199254740991\nshards = 2\n\
        [[budgets]]\nkind = \"combined\"\nactivity = \"a\"\nscene = \"s\"\ntype = \"*\"\ntotal = 9007199254740991\n\
        [[budgets]]\nkind = \"strict\"\nactivity = \"a\"\nscene = \"s\"\ntype = \"coin\"\ntotal = 9\n";
    let text = SAMPLE.replacen("[pacing]", &format!("{more}[pacing]"), 1);
    let rules = windfall_config::parse_rules(&text, None).unwrap();
    let kinds: Vec<_> = rules.budgets.iter().map(|one| (one.kind, one.scene.as_str(), one.shards)).collect();
    assert_eq!(kinds[0], (BudgetKind::Sharded, "red-packet-rain", 8));
    let expected =
        [(BudgetKind::Combined, "*", 2), (BudgetKind::Combined, "s", 8), (BudgetKind::Strict, "s", 1)];
    assert_eq!(kinds[2..], expected);
    assert_eq!(
        windfall_config::parse_rules(&windfall_config::rules_text(&rules), None).unwrap().budgets,
        rules.budgets
    );
}

/// The sample writes every pacing default out; a document without `[pacing]` must mean the same.
#[test]
fn the_defaults_are_those_of_the_sample() {
    let start = SAMPLE.find("[pacing]").unwrap();
    let without = format!("{}[end]", &SAMPLE[..start]);
    let rules = windfall_config::parse_rules(&without, None).unwrap();
    assert_eq!(rules.pacing, windfall_config::parse_rules(SAMPLE, None).unwrap().pacing);
    let expected = Pacing {
        hold_max_ms: 500,
        deadline_ms: 10_000,
        requeue_delay_ms: 200,
        requeue_delay_max_ms: 30_000,
        max_failures: 16,
        grant_batch: 1000,
        in_hand_max: 8192,
        lane_events_max: 65_536,
        lane_bytes_max: 32 << 20,
    };
    assert_eq!(rules.pacing, expected);
    assert_eq!(Pacing::default(), expected);
    let fewer = SAMPLE.replacen("total = 2000000\n", "total = 3\n", 1);
    assert_eq!(windfall_config::parse_rules(&fewer, None).unwrap().budgets[1].shards, 3);
}

#[test]
fn a_fuse_alone_keeps_the_default_limit() {
    let text = SAMPLE.replacen("rate_per_s = 2000\nburst = 200\n", "fuse = \"divert\"\n", 1);
    let badge = windfall_config::parse_rules(&text, None).unwrap().limits.types["badge"];
    assert_eq!(badge.fuse, Fuse::Divert);
    assert_eq!(badge.limit.rate_per_s, 100_000);
}

#[test]
fn zero_rate_and_quoted_names_are_fine() {
    let text = SAMPLE.replacen("rate_per_s = 2000\n", "rate_per_s = 0\n", 1).replacen(
        "activity = \"spring-2027\"",
        "activity = 'say-\"hi\"\\o/'",
        1,
    );
    let rules = windfall_config::parse_rules(&text, None).unwrap();
    assert_eq!(rules.limits.types["badge"].limit.rate_per_s, 0);
    assert_eq!(rules.budgets[0].activity, "say-\"hi\"\\o/");
    assert_eq!(windfall_config::parse_rules(&windfall_config::rules_text(&rules), None).unwrap(), rules);
}

fn limit() -> impl Strategy<Value = Limit> {
    (0..=100_000_000_u64, 1..=10_000_000_u32).prop_map(|(rate_per_s, burst)| Limit { rate_per_s, burst })
}

fn type_limit() -> impl Strategy<Value = TypeLimit> {
    let fuse = select(vec![Fuse::Closed, Fuse::Pause, Fuse::Divert]);
    (limit(), fuse, any::<u8>()).prop_map(|(limit, fuse, priority)| TypeLimit { limit, fuse, priority })
}

fn pattern(name: &'static str) -> impl Strategy<Value = Pattern> {
    prop_oneof![
        Just(Pattern::Any),
        name.prop_filter("`*` is no name", |name| name != "*").prop_map(Pattern::Is)
    ]
}

fn pacing() -> impl Strategy<Value = Pacing> {
    let times = (0..=10_000_u64, 10_000..=600_000_u64, 1..=60_000_u64, 60_000..=3_600_000_u64);
    let sizes =
        (1..=1000_u32, 1..=10_000_u32, 10_000..=1_000_000_u32, 4096..=16_777_216_u32, 1_u64 << 20..=1 << 32);
    (times, sizes).prop_map(|(times, sizes)| Pacing {
        hold_max_ms: times.0,
        deadline_ms: times.1,
        requeue_delay_ms: times.2,
        requeue_delay_max_ms: times.3,
        max_failures: sizes.0,
        grant_batch: sizes.1,
        in_hand_max: sizes.2,
        lane_events_max: sizes.3,
        lane_bytes_max: sizes.4,
    })
}

/// Topics on two brokers in turn, so that a queue of neighbours is one of two brokers.
fn topics(names: &[String], partitions: u32) -> BTreeMap<String, Topic> {
    let broker = |index: usize| if index.is_multiple_of(2) { "one" } else { "two" }.to_owned();
    let topics = names.iter().enumerate();
    topics.map(|(index, name)| (name.clone(), Topic { broker: broker(index), partitions })).collect()
}

fn names(name: &'static str, most: usize) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::btree_set(name, 2..=most).prop_map(|set| set.into_iter().collect())
}

fn routes(types: Vec<String>, queues: Vec<String>) -> impl Strategy<Value = Vec<Route>> {
    let count = queues.len();
    let own = prop_oneof![Just(Pattern::Any), select(types).prop_map(Pattern::Is)];
    let special = (
        pattern("[!-~]{1,64}"),
        pattern("[!-~]{1,64}"),
        own,
        select(queues.clone()),
        subsequence(queues.clone(), 1..=count),
    )
        .prop_map(|(activity, scene, bonus_type, queue, requeue)| Route {
            activity,
            scene,
            bonus_type,
            queue,
            requeue,
        });
    proptest::collection::vec(special, 0..6).prop_map(move |mut routes| {
        let any = || Pattern::Any;
        let (queue, requeue) = (queues[0].clone(), vec![queues[0].clone()]);
        routes.push(Route { activity: any(), scene: any(), bonus_type: any(), queue, requeue });
        routes
    })
}

fn budgets(types: Vec<String>) -> impl Strategy<Value = Vec<Budget>> {
    let key = ("[!-)+-~]{1,64}", "[!-)+-~]{1,64}", select(types));
    let budget = proptest::collection::btree_map(key, (64..=1_i64 << 50, 1..=64_u32), 0..6);
    budget.prop_map(|budgets| {
        let budgets = budgets.into_iter();
        budgets
            .map(|((activity, scene, bonus_type), (total, shards))| Budget {
                kind: if shards == 1 { BudgetKind::Strict } else { BudgetKind::Sharded },
                activity,
                scene,
                bonus_type,
                total,
                shards,
            })
            .collect()
    })
}

fn revocations() -> impl Strategy<Value = Revocations> {
    let why = "[^\\p{Cc}]{1,60}";
    let keys = proptest::collection::btree_map(1..=u32::MAX, why, 0..4);
    let activities = proptest::collection::btree_map("[!-~]{1,64}", (1..=1_i64 << 50, why), 0..4);
    let trade_nos = proptest::collection::btree_map("[!-~]{1,128}", why, 0..4);
    (keys, activities, trade_nos).prop_map(|(keys, activities, trade_nos)| {
        let keys = keys.into_iter().map(|(key, why)| (Revoked::Key(key), why));
        let activities = activities
            .into_iter()
            .map(|(activity, (before_ms, why))| (Revoked::Activity { activity, before_ms }, why));
        let trade_nos = trade_nos.into_iter().map(|(trade_no, why)| (Revoked::TradeNo(trade_no), why));
        let all = keys.chain(activities).chain(trade_nos);
        all.map(|(what, why)| Revocation { what, why }).collect()
    })
}

fn caps(types: Vec<String>) -> impl Strategy<Value = BTreeMap<String, Cap>> {
    let amount = 1..=(1_i64 << 53) - 1;
    let cap = (amount.clone(), amount, 0..3_u8).prop_map(|(one, other, which)| {
        let (order, total) = (one.min(other), one.max(other));
        Cap { order: (which != 1).then_some(order), total: (which != 2).then_some(total) }
    });
    proptest::collection::btree_map(proptest::sample::select(types), cap, 0..4)
}

fn rules() -> impl Strategy<Value = Rules> {
    let name = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}";
    let named = (names("[a-z0-9_.-]{1,32}", 5), names(name, 6), names(name, 5), 1..=1024_u32, 0..=100_u8);
    named.prop_flat_map(|(types, topic_names, queue_names, partitions, ratio)| {
        let queues: BTreeMap<String, Queue> = queue_names
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let master = topic_names[index % (topic_names.len() - 1)].clone();
                let backup = topic_names[index % (topic_names.len() - 1) + 1].clone();
                (name.clone(), Queue { master, backup, ratio: Ratio::new(ratio).unwrap() })
            })
            .collect();
        let topics = topics(&topic_names, partitions);
        let limits = proptest::collection::vec(type_limit(), types.len());
        let parts = (
            1..=(1_u64 << 53) - 1,
            routes(types.clone(), queue_names),
            (limit(), limits),
            budgets(types.clone()),
            caps(types.clone()),
            pacing(),
            revocations(),
        );
        parts.prop_map(move |(version, routes, (global, own), budgets, caps, pacing, revocations)| Rules {
            version,
            bonus_types: types.clone(),
            draining: topic_names
                .iter()
                .take(usize::try_from(version % 3).unwrap())
                .map(|name| DrainingTopic { topic: name.clone(), broker: "gone".to_owned(), partitions })
                .collect(),
            topics: topics.clone(),
            queues: queues.clone(),
            routes,
            limits: Limits { global, types: types.iter().cloned().zip(own).collect() },
            budgets,
            caps,
            pacing,
            revocations,
            changes_need_approval: version.is_multiple_of(2),
            staged: None,
            tries_staged: false,
        })
    })
}

#[test]
fn a_draining_topic_is_none_of_the_others_and_its_broker_may_be_unknown() {
    let entry = |topic: &str, broker: &str| {
        format!("[[draining]]\ntopic = \"{topic}\"\nbroker = \"{broker}\"\npartitions = 8\n\n")
    };
    let parse = |entries: &str| {
        let text = include_str!("../samples/rules.toml").replacen("[end]", &format!("{entries}[end]"), 1);
        windfall_config::parse_rules(&text, Some(&["a", "b"])).map_err(|refusal| refusal.to_string())
    };
    assert_eq!(parse(&(entry("cash-a", "c") + &entry("old", "a"))).unwrap().draining.len(), 2);
    assert!(parse(&entry("cash-a", "a")).unwrap_err().contains("draining[0]"));
    assert!(parse(&(entry("old", "a") + &entry("old", "a"))).unwrap_err().contains("draining[1]"));
    assert!(parse("[[draining]]\ntopic = \"old\"\n\n").unwrap_err().contains("draining[0].broker"));
    assert!(parse(&entry("old topic", "a")).unwrap_err().contains("draining[0].topic"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_reads_back_the_same(rules in rules()) {
        let text = windfall_config::rules_text(&rules);
        match windfall_config::parse_rules(&text, Some(&["one", "two"])) {
            Ok(again) => prop_assert_eq!(again, rules),
            Err(refusal) => prop_assert!(false, "{}\n{}", refusal, text),
        }
    }

    /// Half written at a random byte: refused, or (the last newline alone missing) the whole.
    #[test]
    fn no_written_document_survives_a_cut(rules in rules(), cut in 0.0..1.0_f64) {
        let text = windfall_config::rules_text(&rules);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let end = (text.len() as f64 * cut) as usize;
        // A cut may split a character of a reason.
        if let Ok(again) = windfall_config::parse_rules_bytes(&text.as_bytes()[..end], None) {
            prop_assert_eq!(again, rules);
        }
    }

    /// Whatever stands in the file: an answer, never a panic; and what is taken is whole.
    #[test]
    fn damaged_bytes_are_refused_or_valid(
        hits in proptest::collection::vec((0..SAMPLE.len(), any::<u8>()), 1..4),
    ) {
        let mut bytes = SAMPLE.as_bytes().to_vec();
        for (at, byte) in hits {
            bytes[at] = byte;
        }
        if let Ok(rules) = windfall_config::parse_rules_bytes(&bytes, None) {
            prop_assert_eq!(windfall_config::parse_rules(&windfall_config::rules_text(&rules), None).unwrap(), rules);
        }
    }

    #[test]
    fn arbitrary_toml_is_answered(text in "([a-z]{1,6}( = |\\.|\\]|\\[)[0-9a-z\"\\[\\]{}]{0,5}\n){0,12}") {
        prop_assert!(windfall_config::parse_rules(&text, None).is_err());
    }
}
