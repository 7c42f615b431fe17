//! I6: what does not validate is refused, and the refusal says which key, what was found and what is allowed.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use windfall_config::{Fault, Refusal};

const SAMPLE: &str = include_str!("../samples/rules.toml");

fn sample_with(old: &str, new: &str) -> String {
    assert!(SAMPLE.contains(old), "the sample has no {old:?}");
    SAMPLE.replacen(old, new, 1)
}

fn refused(text: &str) -> Refusal {
    match windfall_config::parse_rules(text, None) {
        Ok(_) => panic!("taken, though it must not be:\n{text}"),
        Err(refusal) => refusal,
    }
}

/// Replaces `old` in the sample and expects exactly one problem, with this key and these words, on the line
/// where `new` stands.
#[track_caller]
fn one_problem(old: &str, new: &str, key: &str, words: &[&str]) {
    let text = sample_with(old, new);
    let refusal = refused(&text);
    let [problem] = refusal.problems() else { panic!("one problem expected: {refusal}") };
    assert_eq!(problem.key, key, "{refusal}");
    for word in words {
        assert!(refusal.to_string().contains(word), "{word:?} missing: {refusal}");
    }
    let first = SAMPLE.find(old).unwrap();
    let first_line = 1 + text[..first].matches('\n').count();
    let lines = first_line..=first_line + new.matches('\n').count();
    let line = problem.line.expect("a line");
    assert!(lines.contains(&line), "line {line}, expected {lines:?}: {refusal}");
}

#[test]
fn a_wrong_type() {
    one_problem(
        "partitions = 8 ",
        "partitions = \"8\" ",
        "topics.cash-a.partitions",
        &["a string", "1 to 1024"],
    );
    one_problem("broker = \"a\"", "broker = 1", "topics.cash-a.broker", &["an integer", "a broker's name"]);
    one_problem("ratio = 50", "ratio = 50.0", "queues.gifts.ratio", &["a float", "0 to 100"]);
    one_problem(
        "rate_per_s = 2000\n",
        "rate_per_s = true\n",
        "limits.types.badge.rate_per_s",
        &["a boolean"],
    );
    one_problem(
        "requeue = [\"cash\", \"gifts\"]",
        "requeue = \"cash\"",
        "routes[0].requeue",
        &["an array of"],
    );
    one_problem(
        "requeue = [\"cash\", \"gifts\"]",
        "requeue = [\"cash\", 1]",
        "routes[0].requeue[1]",
        &["an integer"],
    );
    one_problem("[pacing]", "[[pacing]]", "pacing", &["an array", "a table"]);
}

#[test]
fn an_unknown_key_with_the_nearest_known_one() {
    one_problem(
        "ratio = 50",
        "ration = 50",
        "queues.gifts",
        &["unknown key `ration`", "did you mean `ratio`?"],
    );
    one_problem("max_failures = 16", "max_failure = 16", "pacing", &["did you mean `max_failures`?"]);
    one_problem(
        "priority = 2",
        "colour = 2",
        "limits.types.badge",
        &["unknown key `colour`; there are `rate_per_s`"],
    );
    let text = sample_with("[limits.global]", "[limts.global]");
    assert!(refused(&text).to_string().contains("unknown key `limts`; did you mean `limits`?"));
}

#[test]
fn a_revocation_names_tokens_in_one_way_and_says_why() {
    let (key, order) = ("key = 7   ", "trade_no = \"autumn-2026:rain:1:42\"");
    one_problem(key, "key = 0   ", "revoke[0].key", &["is 0", "1 to 4294967295"]);
    one_problem(key, "key = \"7\"   ", "revoke[0].key", &["a string"]);
    one_problem(key, "kay = 7   \nkey = 7", "revoke[0]", &["unknown key `kay`", "did you mean `key`?"]);
    one_problem(order, "trade_no = \"a b\"", "revoke[2].trade_no", &["visible ASCII"]);
    one_problem("why = \"drawn twice\"", "why = \"\"", "revoke[2].why", &["1 to 256"]);
    one_problem("why = \"drawn twice\"", "why = \"a\\u0007b\"", "revoke[2].why", &["control characters"]);
    for (old, key) in [
        ("before_ms = 1790000000000", "revoke[1].before_ms"),
        ("activity = \"autumn-2026\"", "revoke[1].activity"),
        ("why = \"drawn twice\"", "revoke[2].why"),
    ] {
        let refusal = refused(&sample_with(old, ""));
        assert_eq!(refusal.problems()[0].key, key, "{refusal}");
        assert!(refusal.problems().len() == 1 && refusal.to_string().contains("is missing"), "{refusal}");
    }
    for (old, new, words) in [
        (order, "key = 8\ntrade_no = \"x\"", "more than one way"),
        (order, "before_ms = 5\ntrade_no = \"x\"", "more than one way"),
        (order, "# nothing", "exactly one of"),
        (order, "key = 7", "key `7` stands there twice"),
    ] {
        let refusal = refused(&sample_with(old, new));
        let [problem] = refusal.problems() else { panic!("one problem expected: {refusal}") };
        assert_eq!(problem.key, "revoke[2]", "{refusal}");
        assert!(refusal.to_string().contains(words), "{refusal}");
    }
}

#[test]
fn revocations_are_bounded() {
    let many = |count: usize| {
        let entries =
            (0..count).map(|n| format!("[[revoke]]\ntrade_no='o{n}'\nwhy='w'\n")).collect::<String>();
        sample_with("[[revoke]]\nkey", &format!("{entries}[[revoke]]\nkey"))
    };
    assert_eq!(windfall_config::parse_rules(&many(9_997), None).unwrap().revocations.len(), 10_000);
    let refusal = refused(&many(9_998));
    assert!(refusal.to_string().contains("10001 entries"), "{refusal}");
}

#[test]
fn a_number_out_of_its_range() {
    one_problem("ratio = 50", "ratio = 101", "queues.gifts.ratio", &["is 101", "0 to 100"]);
    one_problem("ratio = 50", "ratio = -1", "queues.gifts.ratio", &["is -1"]);
    one_problem("version = 1\n", "version = 0\n", "version", &["is 0"]);
    one_problem("version = 1\n", "version = 9007199254740992\n", "version", &["9007199254740991"]);
    one_problem("partitions = 8 ", "partitions = 0 ", "topics.cash-a.partitions", &["is 0"]);
    one_problem("partitions = 8 ", "partitions = 1025 ", "topics.cash-a.partitions", &["is 1025"]);
    one_problem("burst = 200\n", "burst = 0\n", "limits.types.badge.burst", &["1 to 10000000"]);
    one_problem("priority = 2", "priority = 256", "limits.types.badge.priority", &["0 to 255"]);
    one_problem(
        "total = 2000000\n",
        "total = 99999999999999999999999999\n",
        "budgets[1].total",
        &["is 9999"],
    );
    one_problem("total = 2000000\n", "total = 0\n", "budgets[1].total", &["is 0"]);
    one_problem("shards = 8", "shards = 65", "budgets[0].shards", &["1 to 64"]);
    one_problem("grant_batch = 1000 ", "grant_batch = 0 ", "pacing.grant_batch", &["1 to 10000"]);
    one_problem("lane_events_max = 65536", "lane_events_max = 4095", "pacing.lane_events_max", &["4096"]);
}

#[test]
fn a_reference_to_what_is_not_there() {
    one_problem(
        "[limits.types.badge]",
        "[limits.types.bagde]",
        "limits.types",
        &["unknown type `bagde`", "`badge`?"],
    );
    one_problem(
        "master = \"cash-a\"",
        "master = \"cahs-a\"",
        "queues.cash.master",
        &["topic `cahs-a`", "`cash-a`?"],
    );
    one_problem("queue = \"gifts\"", "queue = \"gift\"", "routes[1].queue", &["queue `gift`", "`gifts`?"]);
    one_problem(
        "[\"cash\", \"gifts\"]",
        "[\"cash\", \"x\"]",
        "routes[0].requeue",
        &["queue `x`", "there are `cash`"],
    );
    one_problem(
        "type = \"cash\"           #",
        "type = \"cas\" #",
        "routes[0].type",
        &["type `cas`", "`cash`?"],
    );
    one_problem("type = \"badge\"", "type = \"bagde\"", "budgets[1].type", &["type `bagde`", "`badge`?"]);
}

#[test]
fn an_unknown_broker_where_the_brokers_are_known() {
    assert!(windfall_config::parse_rules(SAMPLE, Some(&["a", "b"])).is_ok());
    let refusal = windfall_config::parse_rules(SAMPLE, Some(&["a", "bb"])).unwrap_err();
    assert_eq!(refusal.problems().len(), 2, "{refusal}");
    assert!(
        refusal
            .to_string()
            .contains("topics.cash-b.broker: names the unknown broker `b`; did you mean `bb`?")
    );
    assert!(
        windfall_config::parse_rules(SAMPLE, Some(&[])).unwrap_err().to_string().contains("there are none")
    );
}

#[test]
fn what_does_not_fit_together() {
    one_problem("backup = \"cash-b\"", "backup = \"cash-a\"", "queues.cash.backup", &["is the master too"]);
    one_problem(
        "backup = \"cash-b\"",
        "backup = \"gifts-a\"",
        "queues.cash.backup",
        &["broker `a`", "two brokers"],
    );
    one_problem(
        "requeue_delay_ms = 200 ",
        "requeue_delay_ms = 30001 ",
        "pacing.requeue_delay_ms",
        &["30000"],
    );
    one_problem("grant_batch = 1000 ", "grant_batch = 8193 ", "pacing.grant_batch", &["one full batch"]);
    one_problem(
        "total = 2000000\n",
        "total = 7\nshards = 8\n",
        "budgets[1].shards",
        &["8 shards of a total of 7"],
    );
    one_problem(
        "fuse = \"closed\"",
        "fuse = \"open\"",
        "limits.types.cash.fuse",
        &["`open`", "`closed`, `pause`"],
    );
    one_problem(
        "\"coin\", \"badge\"]",
        "\"coin\", \"badge\", \"coin\"]",
        "types[5]",
        &["`coin` stands there twice"],
    );
}

#[test]
fn a_missing_key_names_itself_and_its_table() {
    for (old, new, key, header) in [
        ("burst = 200\n", "\n", "limits.types.badge.burst", "[limits.types.badge]"),
        ("queue = \"cash\"  ", "#", "routes[0].queue", "[[routes]]"),
        ("broker = \"a\"", "#", "topics.cash-a.broker", "[topics.cash-a]"),
        (
            "total = 2000000\n",
            "\n",
            "budgets[1].total",
            "[[budgets]]\nactivity = \"spring-2027\"\nscene = \"card",
        ),
    ] {
        let refusal = refused(&sample_with(old, new));
        let [problem] = refusal.problems() else { panic!("{refusal}") };
        assert_eq!(problem.key, key);
        assert!(matches!(problem.fault, Fault::Missing { .. }), "{refusal}");
        let line = 1 + SAMPLE[..SAMPLE.find(header).unwrap()].matches('\n').count();
        assert_eq!(problem.line, Some(line), "{refusal}");
    }
}

#[test]
fn a_hold_past_the_deadline() {
    let refusal = refused(&sample_with("deadline_ms = 10000", "deadline_ms = 499"));
    assert_eq!(refusal.problems()[0].key, "pacing.hold_max_ms");
    assert!(refusal.to_string().contains("hold_max_ms = 500 is above deadline_ms = 499"), "{refusal}");
}

#[test]
fn names_that_no_broker_or_record_takes() {
    one_problem("\"coin\", \"badge\"]", "\"coin\", \"badge\", \"Cash\"]", "types", &["\"Cash\"", "a-z"]);
    one_problem("broker = \"a\"", "broker = \"../a\"", "topics.cash-a.broker", &["../a"]);
    one_problem("activity = \"*\"", "activity = \"two words\"", "routes[0].activity", &["visible ASCII"]);
    one_problem(
        "activity = \"spring-2027\"\nscene = \"card-draw\"",
        "activity = \"*\"\nscene = \"card-draw\"",
        "budgets[1].activity",
        &["a budget is of one activity"],
    );
    one_problem(
        "scene = \"card-draw\"",
        "kind = \"sharded\"\nscene = \"*\"",
        "budgets[1].kind",
        &["only a combined budget"],
    );
    one_problem(
        "scene = \"card-draw\"",
        "kind = \"combined\"\nscene = \"card-draw\"",
        "budgets[1].kind",
        &["it must have `*`"],
    );
    one_problem(
        "scene = \"card-draw\"",
        "kind = \"both\"\nscene = \"card-draw\"",
        "budgets[1].kind",
        &["`both`", "`strict`"],
    );
    one_problem("shards = 8 ", "kind = \"strict\"\nshards = 8 ", "budgets[0].shards", &["it has one row"]);
    let long = format!("scene = \"{}\"", "s".repeat(65));
    one_problem("scene = \"card-draw\"", &long, "budgets[1].scene", &["1 to 64"]);
}

#[test]
fn a_type_that_no_route_takes() {
    let text = sample_with("type = \"*\"\nqueue", "type = \"coin\"\nqueue");
    let refusal = refused(&text);
    assert_eq!(refusal.problems().len(), 3, "{refusal}");
    assert!(refusal.to_string().contains("no route takes the type `coupon_tea`"), "{refusal}");
}

#[test]
fn a_type_without_any_limit() {
    let text = sample_with("[limits.default] ", "[limits.types.coupon_tea] ");
    let refusal = refused(&text);
    let text = refusal.to_string();
    assert!(text.contains("the type `coin` has no limit") && text.contains("`coupon_taxi` has no"), "{text}");
    assert_eq!(refusal.problems().len(), 2, "{text}");
}

#[test]
fn budgets_of_a_type_that_add_up_to_too_much_and_twice_the_same() {
    let budget = |scene: &str, total: u64| {
        format!("[[budgets]]\nactivity = \"a\"\nscene = \"{scene}\"\ntype = \"coin\"\ntotal = {total}\n")
    };
    let largest = 9_007_199_254_740_991;
    let fits = budget("one", largest - 1) + &budget("two", 1);
    assert!(windfall_config::parse_rules(&sample_with("[pacing]", &(fits + "[pacing]")), None).is_ok());
    let over = budget("one", largest) + &budget("two", 1);
    let refusal = refused(&sample_with("[pacing]", &(over + "[pacing]")));
    assert_eq!(refusal.problems().len(), 1);
    assert!(
        refusal.to_string().contains("budgets[3].total: the totals of the type `coin` add up to"),
        "{refusal}"
    );
    let twice = budget("one", 5) + &budget("one", 6);
    let refusal = refused(&sample_with("[pacing]", &(twice + "[pacing]")));
    assert!(refusal.to_string().contains("stands there twice"), "{refusal}");
}

#[test]
fn every_problem_is_told_at_once_in_the_documents_order() {
    let text = sample_with("ratio = 50", "ratio = 101")
        .replacen("version = 1\n", "version = \"one\"\n", 1)
        .replacen("burst = 200\n", "burts = 200\n", 1)
        .replacen("grant_batch = 1000", "grant_batch = 0", 1);
    let refusal = refused(&text);
    let keys: Vec<&str> = refusal.problems().iter().map(|problem| problem.key.as_str()).collect();
    let expected = [
        "version",
        "queues.gifts.ratio",
        "limits.types.badge.burst",
        "limits.types.badge",
        "pacing.grant_batch",
    ];
    assert_eq!(keys, expected, "{refusal}");
    assert!(refusal.to_string().starts_with("the rules are refused, 5 problems:\n  line "), "{refusal}");
}

#[test]
fn a_document_with_nothing_in_it_says_what_it_needs() {
    for text in ["", "\n\n", "# only a comment\n", "   \n\t# another"] {
        assert_eq!(refused(text).problems()[0].fault, Fault::Empty, "{text:?}");
    }
    let refusal = refused("[end]");
    for key in ["version", "types", "topics", "queues", "limits"] {
        assert!(refusal.problems().iter().any(|problem| problem.key == key), "{key}: {refusal}");
    }
}

#[test]
fn too_long_or_not_text() {
    let long = format!("{SAMPLE}#{}", "x".repeat(1 << 20));
    assert!(matches!(refused(&long).problems()[0].fault, Fault::TooLarge { .. }));
    let mut bytes = SAMPLE.as_bytes().to_vec();
    let at = SAMPLE.find("cash").unwrap();
    bytes[at] = 0xff;
    let refusal = windfall_config::parse_rules_bytes(&bytes, None).unwrap_err();
    assert_eq!(refusal.problems()[0].fault, Fault::NotUtf8 { at });
    assert!(refusal.problems()[0].line.is_some());
}

#[test]
fn the_problems_are_bounded() {
    let keys: String = (0..500).map(|i| format!("zz{i} = 1\n")).collect();
    let refusal = refused(&format!("{keys}{SAMPLE}"));
    assert_eq!(refusal.problems().len(), 50);
}

/// A prefix of a document is TOML as often as not; without the rest, defaults would hold where values were.
#[test]
fn a_file_half_written_is_refused_at_every_byte() {
    let whole = windfall_config::parse_rules(SAMPLE, None).unwrap();
    let mut taken = 0;
    for end in 0..SAMPLE.len() {
        match windfall_config::parse_rules_bytes(&SAMPLE.as_bytes()[..end], None) {
            Ok(rules) => {
                assert_eq!(rules, whole, "{end} bytes");
                taken += 1;
            }
            Err(refusal) => assert!(!refusal.problems().is_empty()),
        }
    }
    // The last newline alone may be missing.
    assert_eq!(taken, 1);
}

/// An editor that writes over a longer file from its start leaves the old end behind the new one.
#[test]
fn a_shorter_document_over_a_longer_one_is_refused_until_it_is_cut() {
    let shorter = windfall_config::rules_text(&windfall_config::parse_rules(SAMPLE, None).unwrap());
    assert!(shorter.len() < SAMPLE.len());
    let mixed = [shorter.as_bytes(), &SAMPLE.as_bytes()[shorter.len()..]].concat();
    assert!(windfall_config::parse_rules_bytes(&mixed, None).is_err());
    let tail = format!("{SAMPLE}# a comment may follow\n\n");
    assert!(windfall_config::parse_rules(&tail, None).is_ok());
    for tail in ["hold_max_ms = 1\n", "[pacing]\n", "[end.more]\n", "x"] {
        assert!(windfall_config::parse_rules(&format!("{SAMPLE}{tail}"), None).is_err(), "{tail:?}");
    }
    let inside = sample_with("[pacing]", "[end]\n[pacing]").replacen("thing\n[end]", "", 1);
    assert!(windfall_config::parse_rules(&inside, None).is_err());
    let moved = SAMPLE.replace("\n[end]\n", "\n").replacen("version = 1\n", "version = 1\nend = {}\n", 1);
    assert!(refused(&moved).problems().iter().any(|problem| problem.fault == Fault::AfterEnd));
}

/// The largest documents, shaped to be slow to judge: each is judged, and soon, for the watcher waits for it.
#[test]
fn a_hostile_document_is_judged_soon() {
    let fill = |piece: &dyn Fn(usize) -> String| {
        let mut text = String::new();
        for index in 0.. {
            let piece = piece(index);
            if SAMPLE.len() + text.len() + piece.len() + 10 > 1 << 20 {
                return text;
            }
            text += &piece;
        }
        text
    };
    let in_sample = |pieces: String| sample_with("[pacing]", &(pieces + "[pacing]"));
    let hostile = [
        ("unknown queues", in_sample(fill(&|n| format!("[[routes]]\ntype='cash'\nqueue='q{n}'\n")))),
        ("topics", in_sample(fill(&|n| format!("[topics.t{n}]\nbroker='{n}'\n")))),
        (
            "long names",
            in_sample(fill(&|n| {
                format!("[queues.{n}{}]\nmaster='{n}{}'\n", "k".repeat(99_990), "m".repeat(99_990))
            })),
        ),
        ("unknown keys", format!("{}{SAMPLE}", fill(&|n| format!("k{n}=1\n")))),
        ("types", sample_with("\"cash\", ", &fill(&|n| format!("'t{n}',")))),
        (
            "requeue",
            sample_with(
                "requeue = [\"cash\"",
                &format!("requeue=[{}\"cash\"", fill(&|n| format!("'q{n}',"))),
            ),
        ),
        ("no TOML", fill(&|_| "= [\n".to_owned())),
        ("deep", fill(&|_| "[".to_owned())),
        ("deeper", format!("x={}", fill(&|_| "{a=".to_owned()))),
        (
            "budgets",
            in_sample(fill(&|n| {
                format!("[[budgets]]\nactivity='{n}'\nscene='s'\ntype='coin'\ntotal=9007199254740991\n")
            })),
        ),
    ];
    for (what, text) in hostile {
        let start = std::time::Instant::now();
        let refusal = refused(&text);
        let took = start.elapsed();
        assert!(took < std::time::Duration::from_secs(60), "{what}: {took:?}");
        assert!(refusal.problems().len() <= 50 && refusal.to_string().len() < 64 << 10, "{what}: {refusal}");
        println!("{what}: {took:?}, {} problems", refusal.problems().len());
    }
}

#[test]
fn caps_are_of_known_types_and_fit_together() {
    let with = |caps: &str| sample_with("[end]", &format!("{caps}\n[end]"));
    let caps = windfall_config::parse_rules(
        &with("[caps.cash]\norder = 5\ntotal = 9\n[caps.coin]\ntotal = 1"),
        None,
    );
    let caps = caps.unwrap();
    assert_eq!(caps.order_caps(), [("cash".to_owned(), 5)].into());
    assert_eq!(caps.total_caps(), [("cash".to_owned(), 9), ("coin".to_owned(), 1)].into());
    for (document, key, told) in [
        ("[caps.csh]\norder = 5", "caps", "csh"),
        ("[caps.cash]", "caps.cash", "neither"),
        ("[caps.cash]\norder = 10\ntotal = 9", "caps.cash.order", "above total"),
        ("[caps.cash]\norder = 0", "caps.cash.order", "0"),
        ("[caps.cash]\ntotal = -1", "caps.cash.total", "-1"),
        ("[caps.cash]\nlargest = 1\norder = 1", "caps.cash", "largest"),
    ] {
        let refusal = refused(&with(document));
        let [problem] = refusal.problems() else { panic!("{refusal}") };
        assert!(problem.key.starts_with(key) && refusal.to_string().contains(told), "{refusal}");
    }
}
