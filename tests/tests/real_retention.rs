//! An activity is closed, exported and detached while two reward services grant it and another one on PostgreSQL, and one of them is
//! killed: what was answered is what the ledger has, nothing of it is granted behind, and the other activity does not notice.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use windfall_ledger::{
    ArchiveFilter, Auditor, FileAnchor, LedgerReader, PostgresOptions as LedgerOptions, Sealer,
};
use windfall_servers::{PostgresOptions, Private};
use windfall_tests::{AboutMoney, Caller, Ended, Ground, Run, plain, scratch};

/// The orders of each activity in one call.
const BATCH: usize = 20;

/// What one sender was told, by order number.
#[derive(Debug, Default)]
struct Told {
    spring: BTreeSet<String>,
    autumn: BTreeSet<String>,
    refused: BTreeSet<String>,
}

fn event(activity: &str, trade_no: &str) -> Value {
    json!({
        "trade_no": trade_no, "user": {"user_id": if activity == "spring" { 7 } else { 8 }}, "activity": activity,
        "scene": "rain", "bonus": {"type": "cash", "amount": 3, "description": "red packet"},
    })
}

/// The final answers to these events. While the service is away, or asks for patience, it is asked again.
fn grant(service: &Mutex<Caller>, events: &[Value]) -> Vec<(String, String)> {
    loop {
        let at = service.lock().unwrap().clone();
        let answer = at.try_post("grants", None, "/v1/rewards/grant-batch", &json!({ "events": events }));
        let replies =
            answer.filter(|answer| answer.status == 200).map(|answer| answer.body["replies"].clone());
        let words = |one: &Value| {
            let word = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            (word("outcome"), word("reason"))
        };
        let replies: Vec<_> = replies.iter().flat_map(|all| all.as_array()).flatten().map(words).collect();
        if replies.len() == events.len()
            && replies.iter().all(|(outcome, _)| outcome != "GRANT_OUTCOME_RETRY")
        {
            return replies;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Grants new orders of both activities until it is stopped.
fn rain(nth: usize, service: &Mutex<Caller>, is_closed: &AtomicBool, stop: &AtomicBool) -> Told {
    let _about = AboutMoney;
    let mut told = Told::default();
    for round in 0_u32.. {
        if stop.load(SeqCst) {
            break;
        }
        let names: Vec<String> = (0..BATCH).map(|at| format!("{nth}/{round}/{at}")).collect();
        let of = |activity: &'static str| names.iter().map(move |name| event(activity, name));
        let events: Vec<Value> = of("spring").chain(of("autumn")).collect();
        let was_closed = is_closed.load(SeqCst);
        for (at, (outcome, reason)) in grant(service, &events).into_iter().enumerate() {
            let name = names[at % BATCH].clone();
            // The answer may be the second one, after a death.
            let is_credited =
                outcome == "GRANT_OUTCOME_CREDITED" || outcome == "GRANT_OUTCOME_ALREADY_CREDITED";
            match (at < BATCH, is_credited) {
                (true, true) => {
                    assert!(!was_closed, "{name} was credited in a closed activity");
                    told.spring.insert(name);
                }
                (true, false) => {
                    assert_eq!((&*outcome, &*reason), ("GRANT_OUTCOME_REJECTED", "activity_closed"));
                    told.refused.insert(name);
                }
                (false, _) => {
                    assert!(is_credited, "the other activity goes on: {outcome} {reason}");
                    told.autumn.insert(name);
                }
            }
        }
    }
    told
}

/// Audits and seals, while others write, until the orders may go: what is in flight holds the newest transfers back.
fn after_audit_and_seal(url: &str, folder: &Path, detach: impl Fn() -> Ended) -> Ended {
    let mut auditor = Auditor::connect(url, &LedgerOptions::default()).unwrap();
    let mut sealer = Sealer::connect(url, &LedgerOptions::default()).unwrap();
    let mut anchor = FileAnchor::new(folder.join("ledger.anchor"));
    let began = Instant::now();
    loop {
        auditor.increment(1).unwrap();
        sealer.seal(&mut anchor, 1).unwrap();
        let detached = detach();
        if detached.code == Some(0) {
            return detached;
        }
        assert!(detached.to_string().contains("transfers from before the close"), "{detached}");
        assert!(began.elapsed() < Duration::from_secs(120), "{detached}");
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn an_activity_ends_while_others_go_on() {
    let postgres = Private::start(PostgresOptions::default()).unwrap();
    let dir = scratch();
    let options =
        format!("[rewards]\nunbudgeted = \"allow\"\n[ledger.postgres]\nurl = {:?}\n", postgres.url());
    let ground = Ground::new(dir.path(), &[("grants", "grant")], &options);
    let start = |data: &str| {
        ground.start_with("reward-service", &["--log", "info", "--listen", "127.0.0.1:0"], data, true)
    };
    let (one, other) = (start("one"), start("other"));
    let callers = [one.caller(), other.caller()].map(Mutex::new);
    let (is_closed, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let ledger = |args: &[&str]| -> Ended {
        Run::new(plain()).arg("ledger").args(args).arg("--config").arg(ground.options()).arg("--json").end()
    };
    let export = dir.path().join("spring");
    let export = export.to_str().unwrap();
    let close =
        |watch_s| ledger(&["close", "spring", "--reason", "over", "--operator", "ann", "--watch-s", watch_s]);
    let told = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..)
            .zip(&callers)
            .map(|(nth, caller)| {
                scope.spawn({
                    let (c, s) = (&is_closed, &stop);
                    move || rain(nth, caller, c, s)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        let early = close("2");
        assert_eq!(early.code, Some(2), "{early}");
        assert!(early.to_string().contains("is still active"), "{early}");
        let closed = close("0");
        assert_eq!((closed.code, closed.json()["outcome"].as_str()), (Some(0), Some("closed")), "{closed}");
        is_closed.store(true, SeqCst);
        // A process that starts later learns it anew.
        drop(other.kill());
        let again = start("other");
        *callers[1].lock().unwrap() = again.caller();
        let exported = ledger(&["export", "spring", "--to", export]);
        assert_eq!(exported.code, Some(0), "{exported}");
        let detach = || ledger(&["detach", "spring", "--export", export]);
        let refused = detach();
        assert_eq!(refused.code, Some(2), "{refused}");
        assert!(refused.to_string().contains("were not read by the auditor"), "{refused}");
        let detached = after_audit_and_seal(postgres.url(), dir.path(), detach);
        std::thread::sleep(Duration::from_secs(1));
        stop.store(true, SeqCst);
        let told: Vec<Told> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
        let spring = told.iter().map(|one| one.spring.len()).sum::<usize>();
        assert_eq!(exported.json()["orders"], spring, "{exported}");
        assert_eq!(detached.json()["orders"], spring, "{detached}");
        for sent in &told {
            let paid: Vec<&String> = sent.spring.iter().collect();
            for names in paid.chunks(100) {
                let events: Vec<Value> = names.iter().map(|name| event("spring", name)).collect();
                for (outcome, reason) in grant(&callers[0], &events) {
                    assert_eq!(reason, "activity_closed", "an order that was detached: {outcome}");
                }
            }
        }
        assert_eq!(again.stop().code, Some(0));
        told
    });
    assert_eq!(one.stop().code, Some(0));

    let _about = AboutMoney;
    let reader = LedgerReader::connect(postgres.url(), &LedgerOptions::default()).unwrap();
    let count = |of: fn(&Told) -> usize| i64::try_from(told.iter().map(of).sum::<usize>()).unwrap();
    let (spring, autumn) = (count(|told| told.spring.len()), count(|told| told.autumn.len()));
    assert!(spring > 0 && autumn > spring, "{spring} and {autumn}");
    assert_eq!(reader.balances(7).unwrap(), [("cash".to_owned(), 3 * spring)]);
    assert_eq!(reader.balances(8).unwrap(), [("cash".to_owned(), 3 * autumn)]);
    let found = reader.reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
    // Whatever was refused is in the archive, and so is each order that came again.
    let mut archived = BTreeSet::new();
    let mut filter =
        ArchiveFilter { reason: Some("activity_closed".into()), limit: 1_000, ..Default::default() };
    loop {
        let page = reader.archive_list(&filter).unwrap();
        let Some(last) = page.last() else { break };
        filter.after = last.id;
        archived.extend(page.into_iter().filter_map(|entry| entry.trade_no));
    }
    for name in told.iter().flat_map(|told| told.refused.iter().chain(&told.spring)) {
        assert!(archived.contains(name), "{name} is lost");
    }
}
