//! What a ledger in PostgreSQL does while its synchronous standby is away, and what its connections find out alone.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod past;

use past::{PATIENCE, beat, credit, credit_at_last, open, options, query, server};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_ledger::{
    Acceptance, Accepted, Guard, Ledger, LedgerError, LedgerReader, Mark, Order, OrderOutcome,
    PostgresOptions, ServerPosition,
};

/// A mark that no ledger of a test holds.
fn ahead(generation: i64) -> Mark {
    Mark { generation, lineage: "another".into(), beat: 9, server: ServerPosition::default() }
}

/// Accepts the ledger as this guard has found it.
fn acceptance(generation: i64, guard: &Guard) -> Acceptance {
    let Mark { lineage, beat, .. } = guard.state().ledger.unwrap_or_else(|| ahead(generation));
    Acceptance {
        generation,
        lineage,
        beat,
        actor: "ann".into(),
        reason: "reconciled".into(),
        lost: "beats".into(),
        time_ms: 42,
    }
}

/// Makes every further commit of the server wait for a standby that does not exist.
fn send_standby_away(url: &str) {
    query(url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()").unwrap();
    await_setting(url, "nobody");
}

fn await_setting(url: &str, value: &str) {
    let until = Instant::now() + PATIENCE;
    let sql = "SELECT current_setting('synchronous_standby_names')";
    while query(url, sql).unwrap()[0].get::<_, String>(0) != value {
        assert!(Instant::now() < until, "the server does not take the setting over");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The commits that wait for a standby.
fn waiting(url: &str) -> i64 {
    query(url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").unwrap()[0].get(0)
}

/// Credits an order that shares no row with any other one.
fn credit_another(ledger: &mut Ledger, number: i64) -> Result<OrderOutcome, LedgerError> {
    let (trade_no, activity) = (format!("n/{number}"), format!("activity-{number}"));
    let order = Order {
        trade_no: &trade_no,
        user_id: number,
        activity: &activity,
        scene: "rain",
        bonus_type: "cash",
        amount: 5,
        time_ms: 1,
    };
    Ok(ledger.apply(&[order])?[0])
}

/// What the user of the other orders has.
fn balance(reader: &LedgerReader) -> Result<i64, LedgerError> {
    Ok(reader.balances(7)?.into_iter().map(|(_, balance)| balance).sum())
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn commits_that_wait_for_a_standby_do_not_use_up_the_connections_and_readers_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let origin = server(&[]);
    let options = PostgresOptions { statement_timeout_ms: 3_000, backoff_max_ms: 50, ..options() };
    let (mut ledger, guard) = open(origin.url(), &options, &file);
    credit_at_last(&mut ledger, "o/1");
    beat(&mut ledger, &file).unwrap();
    send_standby_away(origin.url());
    // No time-out of the server ends such a wait: nobody knows whether it is stored. The setting takes a moment to arrive.
    let is_unknown = |number| matches!(credit_another(&mut ledger, number), Err(LedgerError::Unknown(_)));
    assert!((1_000..1_000_000).any(is_unknown));
    // Further ones, which no lock holds up, each on a new connection.
    let until = Instant::now() + PATIENCE;
    let (mut number, mut refused) = (1_000_000, 0);
    while refused < 20 {
        assert!(Instant::now() < until, "{refused} attempts were refused");
        number += 1;
        match credit_another(&mut ledger, number) {
            Err(LedgerError::Unavailable(why)) if why.contains("synchronous standby") => refused += 1,
            Err(_) => {}
            Ok(outcome) => panic!("{outcome:?}"),
        }
    }
    let waits = waiting(origin.url());
    assert!((1..=2).contains(&waits), "{waits} commits wait");
    // A reader that connects now does not wait.
    assert_eq!(balance(&ledger.reader().unwrap()).unwrap(), 5);
    assert!(!guard.stops_payouts());
    query(origin.url(), "ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf()").unwrap();
    credit_at_last(&mut ledger, "o/2");
    assert_eq!(credit(&mut ledger, "o/1").unwrap(), OrderOutcome::AlreadyCredited);
    assert!(ledger.reconcile().unwrap().is_clean());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_reader_that_connects_writes_nothing_and_compares_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let origin = server(&[]);
    let (mut ledger, _) = open(origin.url(), &options(), &file);
    credit_at_last(&mut ledger, "o/1");
    let mark = beat(&mut ledger, &file).unwrap();
    let reader = ledger.reader().unwrap();
    assert_eq!(balance(&reader).unwrap(), 5);
    // Another start of the server: whoever writes begins a lineage, and a reader does not wait for that.
    origin.kill().unwrap();
    origin.start().unwrap();
    send_standby_away(origin.url());
    let until = Instant::now() + PATIENCE;
    while !balance(&reader).is_ok_and(|balance| balance == 5) {
        assert!(Instant::now() < until, "the reader does not come back");
        std::thread::sleep(Duration::from_millis(20));
    }
    let lineages = "SELECT lineage FROM windfall.ledger_position";
    assert_eq!(query(origin.url(), lineages).unwrap()[0].get::<_, String>(0), mark.lineage);
    // A database without the tables holds no mark, and a reader finds that, too.
    query(origin.url(), "ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf()").unwrap();
    await_setting(origin.url(), "");
    for table in ["ledger_position", "ledger_lineages", "ledger_acceptances"] {
        query(origin.url(), &format!("DROP TABLE windfall.{table}")).unwrap();
    }
    let guard = Arc::new(Guard::new(vec![Some(Some(mark))]));
    let ledger = Ledger::connect(origin.url(), &options()).unwrap().guarded(Arc::clone(&guard)).unwrap();
    assert_eq!(balance(&ledger.reader().unwrap()).unwrap(), 5);
    assert!(guard.is_back());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn each_connection_finds_a_newer_mark_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let origin = server(&[]);
    let (ledger, guard) = open(origin.url(), &options(), &file);
    let mut writer = ledger.another().unwrap();
    credit_at_last(&mut writer, "o/1");
    assert!(!writer.begin().unwrap().went_back());
    // Nobody but this writer looks from now on.
    guard.learn(0, Some(ahead(1)));
    let until = Instant::now() + PATIENCE;
    while !writer.begin().unwrap().went_back() {
        assert!(Instant::now() < until, "it never looks again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(guard.is_back());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_beat_says_whether_it_was_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let origin = server(&[]);
    let (mut ledger, _) = open(origin.url(), &options(), &file);
    let counted = ledger.beat(true).unwrap().unwrap();
    assert!(counted.is_counted && !ledger.beat(false).unwrap().unwrap().is_counted);
    // Another process is at it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(origin.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("BEGIN; SELECT 1 FROM windfall.ledger_position FOR UPDATE").await.unwrap();
        client
    });
    let older = ledger.beat(true).unwrap().unwrap();
    assert_eq!((older.is_counted, older.mark), (false, counted.mark.clone()));
    runtime.block_on(async { client.batch_execute("COMMIT").await.unwrap() });
    let newer = ledger.beat(true).unwrap().unwrap();
    assert!(newer.is_counted && newer.mark.beat > counted.mark.beat);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn an_acceptance_is_above_every_known_generation_and_there_is_none_of_a_sound_ledger() {
    let origin = server(&[]);
    let open = |places| {
        let guard = Arc::new(Guard::new(places));
        let ledger = Ledger::connect_when_used(origin.url(), &options()).unwrap();
        (ledger.guarded(Arc::clone(&guard)).unwrap(), guard)
    };
    // A place that was not read may have any mark.
    let (mut blind, guard) = open(vec![None]);
    let refused = blind.accept(&acceptance(1, &guard)).unwrap_err();
    assert!(matches!(&refused, LedgerError::Invalid(why) if why.contains("nothing to accept")), "{refused}");
    assert!(guard.stops_payouts());
    // Accepted twice, and then restored from a backup of before both.
    let (mut ledger, guard) = open(vec![Some(Some(ahead(3)))]);
    assert!(ledger.begin().unwrap().went_back());
    let shown = acceptance(1, &guard);
    for other in [
        Acceptance { beat: shown.beat + 1, ..shown.clone() },
        Acceptance { lineage: "older".into(), ..shown.clone() },
    ] {
        let refused = ledger.accept(&other).unwrap_err();
        assert!(matches!(&refused, LedgerError::Invalid(why) if why.contains("not the one")), "{refused}");
    }
    let accepted = ledger.accept(&shown).unwrap();
    assert!(matches!(accepted, Accepted::Now { ref ledger, .. } if ledger.generation == 4), "{accepted:?}");
    assert!(!guard.stops_payouts() && !ledger.begin().unwrap().went_back(), "it goes on");
    assert!(matches!(ledger.accept(&acceptance(1, &guard)).unwrap(), Accepted::Before { .. }));
    assert!(matches!(ledger.accept(&acceptance(4, &guard)), Err(LedgerError::Invalid(_))));
    // A database from before the tables of the mark is accepted as well.
    for table in ["ledger_position", "ledger_lineages", "ledger_acceptances"] {
        query(origin.url(), &format!("DROP TABLE windfall.{table}")).unwrap();
    }
    let (mut ledger, guard) = open(vec![Some(Some(ahead(7)))]);
    assert!(ledger.begin().unwrap().went_back());
    let accepted = ledger.accept(&acceptance(1, &guard)).unwrap();
    assert!(matches!(accepted, Accepted::Now { ref ledger, .. } if ledger.generation == 8), "{accepted:?}");
    assert!(!guard.stops_payouts());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_process_that_knows_better_stops_those_without_a_mark_until_the_ledger_is_accepted() {
    let origin = server(&[]);
    let open = |mark| {
        let guard = Arc::new(Guard::new(vec![Some(mark)]));
        let ledger = Ledger::connect_when_used(origin.url(), &options()).unwrap();
        (ledger.guarded(Arc::clone(&guard)).unwrap(), guard)
    };
    let (mut deceived, its_guard) = open(None);
    assert!(deceived.beat(true).unwrap().is_some(), "it has no mark, and takes the ledger as it is");
    let (mut knowing, _) = open(Some(ahead(1)));
    assert_eq!(knowing.beat(true).unwrap(), None);
    assert_eq!(deceived.beat(true).unwrap(), None);
    assert!(deceived.begin().unwrap().went_back() && its_guard.stops_payouts());
    assert_eq!(its_guard.state().mark, Some(ahead(1)));
    drop(knowing);
    // The note outlives the process, and one of a newer mark takes its place.
    let (mut next, guard) = open(None);
    assert_eq!(next.beat(true).unwrap(), None);
    let (mut newer, _) = open(Some(ahead(5)));
    assert_eq!(newer.beat(true).unwrap(), None);
    let accepted = next.accept(&acceptance(1, &guard)).unwrap();
    assert!(matches!(accepted, Accepted::Now { ref ledger, .. } if ledger.generation == 6), "{accepted:?}");
    for ledger in [&mut deceived, &mut next, &mut newer] {
        assert!(ledger.beat(true).unwrap().is_some() && !ledger.begin().unwrap().went_back());
    }
    let noted = query(origin.url(), "SELECT missed FROM windfall.ledger_position").unwrap();
    assert_eq!(noted[0].get::<_, Option<String>>(0), None, "the acceptance has cleared it");
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_ledger_of_before_the_mark_whose_user_may_make_no_tables_is_granted_from_without_a_mark() {
    let origin = server(&[]);
    query(origin.url(), "CREATE ROLE plain LOGIN PASSWORD 'rain'").unwrap();
    let mut before = Ledger::connect(origin.url(), &options()).unwrap();
    credit_another(&mut before, 1).unwrap();
    for granted in ["USAGE ON SCHEMA", "ALL ON ALL TABLES IN SCHEMA", "ALL ON ALL SEQUENCES IN SCHEMA"] {
        query(origin.url(), &format!("GRANT {granted} windfall TO plain")).unwrap();
    }
    let url = origin.url().replacen("windfall:", "plain:", 1);
    let guarded = |mark| {
        let guard = Arc::new(Guard::new(vec![Some(mark)]));
        let ledger = Ledger::connect_when_used(&url, &options()).unwrap();
        (ledger.guarded(Arc::clone(&guard)).unwrap(), guard)
    };
    let (mut ledger, guard) = guarded(None);
    assert_eq!(credit_another(&mut ledger, 2).unwrap(), OrderOutcome::Credited);
    assert_eq!(ledger.beat(true).unwrap(), None);
    assert!(guard.is_unmarkable() && !guard.stops_payouts());
    // With a mark that it cannot hold it is behind, as ever, and cannot be accepted like this.
    let (mut marked, its_guard) = guarded(Some(ahead(1)));
    assert!(marked.begin().unwrap().went_back());
    let refused = marked.accept(&acceptance(1, &its_guard)).unwrap_err();
    assert!(refused.to_string().contains("grant it CREATE"), "{refused}");
    query(origin.url(), "GRANT CREATE ON SCHEMA windfall TO plain").unwrap();
    assert!(ledger.beat(true).unwrap().is_some() && !guard.is_unmarkable(), "without a restart");
    drop(marked);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_server_that_does_not_say_where_its_log_is_is_marked_by_beats_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let origin = server(&[]);
    for sql in [
        "CREATE ROLE plain LOGIN PASSWORD 'rain'",
        "CREATE SCHEMA plain AUTHORIZATION plain",
        "REVOKE EXECUTE ON FUNCTION pg_current_wal_insert_lsn() FROM PUBLIC",
    ] {
        query(origin.url(), sql).unwrap();
    }
    let url = origin.url().replacen("windfall:", "plain:", 1);
    let options = PostgresOptions { schema: "plain".into(), ..options() };
    let (mut ledger, guard) = open(&url, &options, &file);
    assert_eq!(credit(&mut ledger, "o/1").unwrap(), OrderOutcome::Credited);
    let mark = beat(&mut ledger, &file).unwrap();
    assert_eq!((mark.server.timeline, mark.server.wal), (0, 0));
    let next = beat(&mut ledger, &file).unwrap();
    assert!(next.beat == mark.beat + 1 && next.lineage == mark.lineage && !guard.stops_payouts());
    // The server tells it later: that begins a lineage, and lacks nothing.
    query(origin.url(), "GRANT EXECUTE ON FUNCTION pg_current_wal_insert_lsn() TO PUBLIC").unwrap();
    let (mut later, its_guard) = open(&url, &options, &file);
    let told = beat(&mut later, &file).unwrap();
    assert!(told.server.wal > 0 && told.lineage != next.lineage && !its_guard.stops_payouts());
    // A process that has not connected anew holds the marks as well, and counts on no more.
    assert!(!ledger.begin().unwrap().went_back());
}
