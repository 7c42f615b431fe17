//! A ledger in PostgreSQL that goes back in time: stale standbys, restored backups, databases that were made anew.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_ledger::{
    Acceptance, Accepted, Beat, Guard, Ledger, LedgerError, Mark, MarkFile, MarkStore, Missing, OpenError,
    Order, OrderOutcome, PostgresOptions, Unbudgeted,
};
use windfall_servers::{PostgresOptions as ServerOptions, Private};

const PATIENCE: Duration = Duration::from_secs(90);

fn options() -> PostgresOptions {
    PostgresOptions { connect_timeout_ms: 3_000, unbudgeted: Unbudgeted::Allow, ..PostgresOptions::default() }
}

/// Several hosts without a synchronous standby, which these tests ask for by name.
fn unsafe_options() -> PostgresOptions {
    PostgresOptions { failover_without_synchronous_standby: true, ..options() }
}

/// A server with settings of its own.
fn server(settings: &[(&str, &str)]) -> Private {
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Private::start(ServerOptions { settings, ..ServerOptions::default() }).unwrap()
}

/// One address for both.
fn both(one: &Private, other: &Private) -> String {
    let other = other.address("main").unwrap();
    let (before, after) = one.url().rsplit_once('/').unwrap();
    format!("{before},{other}/{after}?target_session_attrs=read-write")
}

/// What a process does at its start: it reads the mark, and opens the ledger.
fn open(url: &str, options: &PostgresOptions, file: &Path) -> (Ledger, Arc<Guard>) {
    let guard = Arc::new(Guard::new(vec![Some(MarkFile::new(file).load().unwrap())]));
    let ledger = Ledger::connect_when_used(url, options).unwrap().guarded(Arc::clone(&guard)).unwrap();
    (ledger, guard)
}

/// Counts a beat, and writes the mark out.
fn beat(ledger: &mut Ledger, file: &Path) -> Option<Mark> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ledger.beat(true) {
            Ok(Some(Beat { mark, .. })) => {
                let file = MarkFile::new(file);
                assert!(file.replace(file.load().unwrap().as_ref(), &mark).unwrap());
                return Some(mark);
            }
            Ok(None) => return None,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn credit(ledger: &mut Ledger, trade_no: &str) -> Result<OrderOutcome, LedgerError> {
    let order = Order {
        trade_no,
        user_id: 7,
        activity: "spring-2027",
        scene: "rain",
        bonus_type: "cash",
        amount: 5,
        time_ms: 1,
    };
    Ok(ledger.apply(&[order])?[0])
}

/// Credits an order, whatever the server goes through.
fn credit_at_last(ledger: &mut Ledger, trade_no: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        match credit(ledger, trade_no) {
            Ok(outcome) => {
                assert!(matches!(outcome, OrderOutcome::Credited | OrderOutcome::AlreadyCredited));
                return;
            }
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn query(url: &str, sql: &str) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        let driver = tokio::spawn(connection);
        let mut rows = Vec::new();
        for sql in sql.split(';').filter(|sql| !sql.trim().is_empty()) {
            rows = client.query(sql, &[]).await?;
        }
        drop(client);
        driver.await.unwrap()?;
        Ok(rows)
    })
}

/// Waits until a standby has everything that its primary has.
fn wait_for_standby(primary: &Private, standby: &Private) {
    let until = Instant::now() + PATIENCE;
    let lsn = query(primary.url(), "SELECT pg_current_wal_flush_lsn()::text").unwrap();
    let lsn: String = lsn[0].get(0);
    let sql = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn, false)");
    while !query(standby.url(), &sql).is_ok_and(|rows| rows[0].get(0)) {
        assert!(Instant::now() < until, "the standby does not follow");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_stale_standby_that_is_promoted_is_noticed_until_a_person_accepts_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let primary = server(&[]);
    let standby = Private::start(ServerOptions::standby_of(primary.url())).unwrap();
    let url = both(&primary, &standby);
    let (mut ledger, guard) = open(&url, &unsafe_options(), &file);
    assert_eq!(credit(&mut ledger, "o/1").unwrap(), OrderOutcome::Credited);
    let first = beat(&mut ledger, &file).unwrap();
    wait_for_standby(&primary, &standby);
    standby.kill().unwrap();
    // These are on the primary alone.
    assert_eq!(credit(&mut ledger, "o/2").unwrap(), OrderOutcome::Credited);
    let lost = beat(&mut ledger, &file).unwrap();
    assert!(lost.beat > first.beat && lost.lineage == first.lineage);
    primary.kill().unwrap();
    standby.start().unwrap();
    standby.promote().unwrap();

    assert_eq!(beat(&mut ledger, &file), None, "the running process notices");
    let behind = guard.state().behind.unwrap();
    assert_eq!(
        (behind.mark.clone(), behind.why.clone()),
        (lost.clone(), Missing::Beats { reached: first.beat })
    );
    assert!(behind.server.timeline > lost.server.timeline, "{behind}");
    assert!(ledger.begin().unwrap().went_back());
    assert_eq!(MarkFile::new(&file).load().unwrap(), Some(lost.clone()), "the mark is kept");
    let (mut next, its_guard) = open(&url, &unsafe_options(), &file);
    assert!(next.begin().unwrap().went_back() && its_guard.stops_payouts(), "so does a new one");

    // A process whose mark was lost takes the ledger as it is, and counts on; nobody else is deceived.
    let other = folder.path().join("lost");
    let (mut deceived, _) = open(&url, &unsafe_options(), &other);
    for _ in 0..5 {
        beat(&mut deceived, &other).unwrap();
    }
    assert!(beat(&mut deceived, &other).unwrap().beat > lost.beat);
    assert_eq!(beat(&mut ledger, &file), None);
    let (mut later, _) = open(&url, &unsafe_options(), &file);
    assert!(later.begin().unwrap().went_back());

    let acceptance = Acceptance {
        generation: 1,
        actor: "ann".into(),
        reason: "replayed from the brokers".into(),
        lost: behind.to_string(),
        time_ms: 42,
    };
    let wrong = Acceptance { generation: 7, ..acceptance.clone() };
    assert!(matches!(ledger.accept(&wrong), Err(LedgerError::Invalid(what)) if what.contains("is 1")));
    assert!(
        matches!(ledger.accept(&acceptance).unwrap(), Accepted::Now { ledger, .. } if ledger.generation == 2)
    );
    let Accepted::Before { actor, .. } = next.accept(&acceptance).unwrap() else { panic!("it was accepted") };
    assert_eq!(actor, "ann", "the answer was lost, and asked for again");
    assert!(!ledger.begin().unwrap().went_back() && !guard.stops_payouts());
    assert!(!next.begin().unwrap().went_back(), "without a new connection");
    let now = beat(&mut ledger, &file).unwrap();
    assert_eq!(now.generation, 2);
    assert_eq!(
        credit(&mut ledger, "o/2").unwrap(),
        OrderOutcome::Credited,
        "its credit was lost with the primary"
    );
    assert!(ledger.reconcile().unwrap().is_clean());

    // The old primary comes back with what it alone has: it has never been accepted.
    drop((standby, deceived, later, next));
    primary.start().unwrap();
    let (mut old, guard) = open(primary.url(), &options(), &file);
    assert!(old.begin().unwrap().went_back());
    assert_eq!(guard.state().behind.unwrap().why, Missing::Generation);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_fail_over_to_a_synchronous_standby_passes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let primary = server(&[("synchronous_standby_names", "'standby'")]);
    let standby = Private::start(ServerOptions::standby_of(primary.url())).unwrap();
    let url = both(&primary, &standby);
    let (mut ledger, guard) = open(&url, &options(), &file);
    let mut writer = ledger.another().unwrap();
    for round in 0..20 {
        credit_at_last(&mut writer, &format!("o/{round}"));
        beat(&mut ledger, &file).unwrap();
    }
    // A process that is at work all the while.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let went_back = std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let (mut went_back, mut count) = (false, 0);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                credit_at_last(&mut writer, &format!("w/{count}"));
                went_back |= guard.stops_payouts();
                count += 1;
            }
            (went_back, count)
        });
        let before = beat(&mut ledger, &file).unwrap();
        primary.kill().unwrap();
        standby.promote().unwrap();
        let after = beat(&mut ledger, &file).unwrap();
        assert!(after.beat > before.beat && after.lineage != before.lineage, "{before} {after}");
        assert!(after.server.timeline > before.server.timeline);
        assert_eq!(after.server.system, before.server.system);
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        working.join().unwrap()
    });
    assert!(!went_back.0 && !guard.stops_payouts(), "nothing was stopped");
    let (mut next, its_guard) = open(&url, &unsafe_options(), &file);
    assert!(!next.begin().unwrap().went_back() && !its_guard.stops_payouts());
    for round in 0..went_back.1 {
        assert_eq!(credit(&mut next, &format!("w/{round}")).unwrap(), OrderOutcome::AlreadyCredited, "kept");
    }
    assert!(next.reconcile().unwrap().is_clean());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_restored_backup_is_noticed_though_its_timeline_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let origin = server(&[]);
    let (mut ledger, _) = open(origin.url(), &options(), &file);
    credit(&mut ledger, "o/1").unwrap();
    beat(&mut ledger, &file).unwrap();
    let backup = Private::start(ServerOptions::backup_of(origin.url())).unwrap();
    let (mut at_once, guard) = open(backup.url(), &options(), &file);
    assert!(!at_once.begin().unwrap().went_back() && !guard.stops_payouts(), "nothing was committed since");
    credit(&mut ledger, "o/2").unwrap();
    let lost = beat(&mut ledger, &file).unwrap();
    let (mut restored, guard) = open(backup.url(), &options(), &file);
    assert!(restored.begin().unwrap().went_back());
    let behind = guard.state().behind.unwrap();
    assert_eq!(behind.server.timeline, lost.server.timeline);
    assert_eq!(restored.beat(true).unwrap(), None);
    // A database that was made anew holds nothing of it either.
    let empty = PostgresOptions { schema: "anew".into(), ..options() };
    let (mut anew, guard) = open(origin.url(), &empty, &file);
    assert!(anew.begin().unwrap().went_back());
    assert_eq!(guard.state().behind.unwrap().why, Missing::Lineage);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn restarts_lost_marks_older_marks_and_several_processes_are_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let origin = server(&[]);
    let (mut ledger, guard) = open(origin.url(), &options(), &file);
    let older = beat(&mut ledger, &file).unwrap();
    // Several processes count at once: each beat once, and each mark is held.
    let beats: Vec<i64> = std::thread::scope(|scope| {
        let counting = (0..4).map(|_| {
            scope.spawn(|| {
                let (mut own, its_guard) = open(origin.url(), &options(), &file);
                let beats: Vec<i64> = (0..50).map(|_| own.beat(true).unwrap().unwrap().mark.beat).collect();
                assert!(beats.is_sorted() && !its_guard.stops_payouts());
                *beats.last().unwrap()
            })
        });
        counting.collect::<Vec<_>>().into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(beats.iter().all(|beat| *beat > older.beat));
    assert!(ledger.beat(false).unwrap().unwrap().mark.beat >= *beats.iter().max().unwrap());
    // Committed, and killed before the mark: what is written is older, and the server is started again.
    credit(&mut ledger, "o/1").unwrap();
    origin.kill().unwrap();
    origin.start().unwrap();
    let now = beat(&mut ledger, &file).unwrap();
    assert!(now.lineage != older.lineage && now.beat > older.beat && !guard.stops_payouts());
    let places = |marks: &[&Mark]| -> Vec<Option<Option<Mark>>> {
        marks.iter().map(|mark| Some(Some((*mark).clone()))).collect()
    };
    for stored in [places(&[]), places(&[&older]), places(&[&older, &now])] {
        let guard = Arc::new(Guard::new(stored));
        let ledger = Ledger::connect(origin.url(), &options()).unwrap().guarded(Arc::clone(&guard));
        assert!(!ledger.unwrap().begin().unwrap().went_back() && !guard.stops_payouts());
    }
    // An idle process counts nothing.
    assert_eq!(ledger.beat(false).unwrap(), Some(Beat { mark: now, is_counted: false }));
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn several_hosts_without_a_synchronous_standby_are_refused_and_any_user_may_ask() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let origin = server(&[]);
    let (before, after) = origin.url().rsplit_once('/').unwrap();
    let twice = format!("{before},{}/{after}", origin.address("main").unwrap());
    match Ledger::connect(&twice, &options()) {
        Err(OpenError::Invalid(why)) => {
            for named in
                ["several hosts", "synchronous_standby_names", "failover_without_synchronous_standby"]
            {
                assert!(why.contains(named), "{why}");
            }
        }
        other => panic!("{other:?}"),
    }
    assert!(Ledger::connect(&twice, &unsafe_options()).is_ok());
    query(origin.url(), "CREATE ROLE plain LOGIN PASSWORD 'rain'; CREATE SCHEMA plain AUTHORIZATION plain")
        .unwrap();
    let url = origin.url().replacen("windfall:", "plain:", 1);
    let options = PostgresOptions { schema: "plain".into(), ..options() };
    let (mut ledger, guard) = open(&url, &options, &file);
    credit(&mut ledger, "o/1").unwrap();
    let mark = beat(&mut ledger, &file).unwrap();
    assert!(mark.server.timeline == 1 && mark.server.wal > 0 && !mark.server.system.is_empty());
    assert!(!guard.stops_payouts());
}
