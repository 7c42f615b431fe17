//! The auditor as a service: it audits by itself, answers operators, and goes on after the ledger was away.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tonic::{Code, Request};
use windfall_auditor::{AuditCallError, AuditHandle, AuditService, AuditorOptions, AuditsService};
use windfall_contract::Clock;
use windfall_edge::{Call, Caller, Role};
use windfall_ledger::{Auditor, Ledger, LedgerOptions, Order, Unbudgeted};
use windfall_proto::v1::audits_server::Audits;
use windfall_proto::v1::{DifferenceState, GetAuditRequest, ListDifferencesRequest, MarkDifferenceRequest};

const PATIENCE: Duration = Duration::from_secs(60);

fn ledger(folder: &Path) -> (PathBuf, Ledger) {
    let path = folder.join("ledger.db");
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    let mut ledger = Ledger::open(&path, &options).unwrap();
    let order = |trade_no| Order {
        trade_no,
        user_id: 7,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 10,
        time_ms: 1,
    };
    ledger.apply(&[order("a"), order("b")]).unwrap();
    (path, ledger)
}

fn pace() -> AuditorOptions {
    AuditorOptions { every_ms: 100, step_pause_ms: 1, ..AuditorOptions::default() }
}

fn until(auditor: &AuditHandle, what: &str, is_so: impl Fn(&AuditHandle) -> bool) {
    let began = Instant::now();
    while !is_so(auditor) {
        assert!(began.elapsed() < PATIENCE, "{what}: {:?}", auditor.stats());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn it_sweeps_by_itself_and_shows_what_it_finds_until_a_person_has_seen_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, ledger) = ledger(folder.path());
    let own = path.clone();
    let open = move || Auditor::open(&own).map_err(|error| error.to_string());
    let auditor = AuditService::start(pace(), Box::new(open), Clock::system()).unwrap();
    until(&auditor, "a sweep", |auditor| auditor.stats().sweeps.is_some_and(|sweeps| sweeps > 0));
    let stats = auditor.stats();
    assert_eq!(
        (stats.transfers, stats.unread, stats.is_behind, stats.failures),
        (Some(2), Some(0), Some(false), 0)
    );
    assert_eq!((stats.unsealed, stats.unsealed_age_s.is_some_and(|age_s| age_s > 0)), (Some(2), true));
    assert!(auditor.differences().open.is_empty() && stats.age_s < 60);
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.busy_timeout(PATIENCE).unwrap();
    raw.execute("UPDATE accounts SET balance = 21 WHERE kind = 0", []).unwrap();
    until(&auditor, "the difference", |auditor| auditor.differences().open.get("wrong_balance") == Some(&1));
    let found = auditor.call_blocking(|auditor| auditor.differences(None, 0, 10)).unwrap();
    let (id, now_ms) = (found[0].id, found[0].first_seen_ms + 1);
    assert!(auditor.call_blocking(move |auditor| auditor.acknowledge(id, "ann", "mine", now_ms)).unwrap());
    until(&auditor, "the word", |auditor| {
        auditor.differences().acknowledged.get("wrong_balance") == Some(&1)
    });
    raw.execute("UPDATE accounts SET balance = 20 WHERE kind = 0", []).unwrap();
    assert!(auditor.call_blocking(move |auditor| auditor.resolve(id, "ann", "put back", now_ms)).unwrap());
    until(&auditor, "the end", |auditor| {
        auditor.differences().open.is_empty() && auditor.differences().acknowledged.is_empty()
    });
    auditor.close();
    let closed = auditor.call_blocking(|auditor| auditor.progress()).unwrap_err();
    assert!(matches!(closed, AuditCallError::Closed), "{closed}");
    assert!(ledger.reconcile().unwrap().is_clean());
}

#[test]
fn balances_are_compared_while_there_is_always_more_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut ledger) = ledger(folder.path());
    let names: Vec<_> = (0..5_000).map(|number| format!("more-{number}")).collect();
    let order = |trade_no| Order {
        trade_no,
        user_id: 8,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 1,
        time_ms: 1,
    };
    ledger.apply(&names.iter().map(|name| order(name)).collect::<Vec<_>>()).unwrap();
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute("UPDATE accounts SET balance = 21 WHERE kind = 0 AND holder = 7", []).unwrap();
    // One transfer a step, so that there is more to read for many times the pause between rounds.
    let options = AuditorOptions { increment_rows: 1, ..pace() };
    let open = move || Auditor::open(&path).map_err(|error| error.to_string());
    let auditor = AuditService::start(options, Box::new(open), Clock::system()).unwrap();
    until(&auditor, "the difference, and a whole sweep", |auditor| {
        let has_swept = auditor.stats().sweeps.is_some_and(|sweeps| sweeps > 0);
        has_swept && auditor.differences().open.get("wrong_balance") == Some(&1)
    });
    let stats = auditor.stats();
    assert!(stats.unread.unwrap() > 0, "{stats:?}");
    auditor.close();
}

#[test]
fn a_ledger_that_is_away_is_audited_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _ledger) = ledger(folder.path());
    let is_there = Arc::new(AtomicBool::new(false));
    let there = Arc::clone(&is_there);
    let open = move || match there.load(Ordering::Relaxed) {
        true => Auditor::open(&path).map_err(|error| error.to_string()),
        false => Err("it is away".to_owned()),
    };
    let auditor = AuditService::start(pace(), Box::new(open), Clock::system()).unwrap();
    until(&auditor, "failures", |auditor| auditor.stats().failures > 1);
    assert_eq!(auditor.stats().transfers, None);
    let away = auditor.call_blocking(|auditor| auditor.progress()).unwrap_err();
    assert_eq!(away.to_string(), "the ledger cannot be audited: it is away");
    is_there.store(true, Ordering::Relaxed);
    until(&auditor, "its return", |auditor| auditor.stats().transfers == Some(2));
    auditor.close();
}

fn of<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let roles = [Role::Operate].into();
    let caller = Caller { name: "ops".into(), tenant: "app".into(), roles, timers_of: Default::default() };
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_list_differences_and_say_who_sees_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _ledger) = ledger(folder.path());
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute("UPDATE accounts SET balance = 21 WHERE kind = 0", []).unwrap();
    let open = move || Auditor::open(&path).map_err(|error| error.to_string());
    let auditor = AuditService::start(pace(), Box::new(open), Clock::system()).unwrap();
    until(&auditor, "the difference", |auditor| !auditor.differences().open.is_empty());
    let service = AuditsService::new(auditor.clone());
    let audit = service.get_audit(of(GetAuditRequest {})).await.unwrap().into_inner();
    assert_eq!((audit.transfers, audit.differences[0].kind.as_str()), (2, "wrong_balance"));
    let list = |state: DifferenceState| {
        let request = ListDifferencesRequest { state: state.into(), ..ListDifferencesRequest::default() };
        service.list_differences(of(request))
    };
    let found = list(DifferenceState::Open).await.unwrap().into_inner().differences;
    assert_eq!(found[0].detail, "the ledger keeps 21; its transfers say 20");
    let mark = |id: i64, state: DifferenceState, note: &str| {
        let (note, actor) = (note.to_owned(), "ann".to_owned());
        service.mark_difference(of(MarkDifferenceRequest { id, state: state.into(), note, actor }))
    };
    let id = found[0].id;
    for (state, note) in [(DifferenceState::Open, "why"), (DifferenceState::Resolved, " ")] {
        assert_eq!(mark(id, state, note).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(mark(id + 9, DifferenceState::Resolved, "why").await.unwrap_err().code(), Code::NotFound);
    mark(id, DifferenceState::Acknowledged, "at it").await.unwrap();
    assert!(list(DifferenceState::Open).await.unwrap().into_inner().differences.is_empty());
    let known = list(DifferenceState::Unspecified).await.unwrap().into_inner().differences;
    assert_eq!(known[0].acknowledged.as_ref().unwrap().actor, "ops: ann");
    auditor.close();
    assert_eq!(list(DifferenceState::Open).await.unwrap_err().code(), Code::Unavailable);
}
