//! A ledger in PostgreSQL that goes back in time: stale standbys, restored backups, databases that were made anew.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod past;

use past::{
    PATIENCE, beat, both, credit, credit_at_last, open, options, query, server, unsafe_options,
    wait_for_standby,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use windfall_contract::accounts::Withdrawal;
use windfall_ledger::{
    Acceptance, Accepted, Beat, Guard, HoldOutcome, Ledger, LedgerError, LedgerReader, Mark, MarkFile,
    MarkStore, Missing, OpenError, OrderOutcome, PostgresOptions, WithdrawalId, WithdrawalStatus,
};
use windfall_servers::{PostgresOptions as ServerOptions, Private};

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

    // A process whose mark was lost would take the ledger as it is, if nobody had noted in it what it lacks. Where it was
    // faster, it counts on until then; nobody else is deceived.
    let other = folder.path().join("lost");
    let (mut deceived, _) = open(&url, &unsafe_options(), &other);
    assert_eq!(beat(&mut deceived, &other), None);
    query(standby.url(), "UPDATE windfall.ledger_position SET missed = NULL").unwrap();
    let (mut deceived, _) = open(&url, &unsafe_options(), &other);
    for _ in 0..5 {
        beat(&mut deceived, &other).unwrap();
    }
    assert!(beat(&mut deceived, &other).unwrap().beat > lost.beat);
    assert_eq!(beat(&mut ledger, &file), None);
    assert_eq!(beat(&mut deceived, &other), None);
    let (mut later, _) = open(&url, &unsafe_options(), &file);
    assert!(later.begin().unwrap().went_back());

    let shown = guard.state().ledger.unwrap();
    let acceptance = Acceptance {
        generation: 1,
        lineage: shown.lineage,
        beat: shown.beat,
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

/// Stops threads when it is dropped.
struct StopAtEnd<'s>(&'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
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
    // A process that is at work all the while, and one that looks whether anything is stopped.
    let (stop, credits) = (AtomicBool::new(false), AtomicU64::new(0));
    let was_stopped = std::thread::scope(|scope| {
        // Also where an assertion fails: the threads of the scope are waited for.
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                credit_at_last(&mut writer, &format!("w/{}", credits.load(Relaxed)));
                credits.fetch_add(1, Relaxed);
            }
        });
        let looking = scope.spawn(|| {
            let mut was_stopped = false;
            while !stop.load(Relaxed) {
                was_stopped |= guard.stops_payouts();
                std::thread::sleep(Duration::from_millis(1));
            }
            was_stopped
        });
        let before = beat(&mut ledger, &file).unwrap();
        primary.kill().unwrap();
        standby.promote().unwrap();
        let promoted = credits.load(Relaxed);
        let after = beat(&mut ledger, &file).unwrap();
        assert!(after.beat > before.beat && after.lineage != before.lineage, "{before} {after}");
        assert!(after.server.timeline > before.server.timeline);
        assert_eq!(after.server.system, before.server.system);
        // One that was begun before may be the next; the one after it is the new server's.
        let until = Instant::now() + PATIENCE;
        while credits.load(Relaxed) < promoted + 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Relaxed);
        assert!(credits.load(Relaxed) >= promoted + 2, "nothing is credited after the promotion");
        looking.join().unwrap()
    });
    assert!(!was_stopped && !guard.stops_payouts(), "nothing was stopped");
    // A process starts, though the promoted server has no standby yet; a gauge tells of it.
    let mark = MarkFile::new(&file).load().unwrap();
    let its_guard = Arc::new(Guard::new(vec![Some(mark)]));
    let next = Ledger::connect(&url, &options()).unwrap();
    let mut next = next.guarded(Arc::clone(&its_guard)).unwrap();
    assert!(!next.begin().unwrap().went_back() && !its_guard.stops_payouts() && its_guard.is_alone());
    for round in 0..credits.load(Relaxed) {
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
    // A ledger that is there, and has no mark: it was not run like this before.
    let unmarked = Arc::new(Guard::new(vec![Some(None)]));
    let refused = Ledger::connect(&twice, &options()).unwrap().guarded(Arc::clone(&unmarked));
    assert!(matches!(refused, Err(OpenError::Invalid(_))), "{refused:?}");
    let mut waiting =
        Ledger::connect_when_used(&twice, &options()).unwrap().guarded(Arc::clone(&unmarked)).unwrap();
    assert!(waiting.begin().is_err(), "nor where its server was away at the start");
    // A connection that is lost before the guard comes does not end the start: the next one is checked.
    let early = Ledger::connect(&twice, &options()).unwrap();
    query(
        origin.url(),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'windfall-ledger%'",
    )
    .unwrap();
    let mut early = early.guarded(Arc::clone(&unmarked)).unwrap();
    assert!(early.begin().is_err(), "it is refused then");
    // Once it has a mark, its processes start, and a gauge tells of the missing standby.
    let (mut marked, _) = open(&twice, &unsafe_options(), &file);
    beat(&mut marked, &file).unwrap();
    let (mut marked, guard) = open(&twice, &options(), &file);
    assert!(!marked.begin().unwrap().went_back() && guard.is_alone());
    std::fs::remove_file(&file).unwrap();
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

/// What a payer has paid, by the number of the withdrawal.
type Payer = Mutex<BTreeMap<u64, u32>>;

fn name(number: u64) -> String {
    format!("w/{number}")
}

/// Pays a withdrawal as the reward service does: it holds the money where the ledger holds its mark, pays when that is committed, and
/// then ends it. Returns whether payouts are stopped.
fn pay(ledger: &mut Ledger, guard: &Guard, number: u64, payer: &Payer) -> Result<bool, LedgerError> {
    let asked = Withdrawal { id: name(number), user_id: 7, bonus_type: "cash".into(), amount: 1 };
    let held = ledger.transact(|tx| {
        if tx.went_back() || guard.stops_payouts() {
            return Ok(None);
        }
        Ok(tx.hold(&[(&asked, "bank")], 3_000)?.pop())
    })?;
    match held {
        None => return Ok(true),
        Some(HoldOutcome::Held) => *payer.lock().unwrap().entry(number).or_default() += 1,
        // Whether it was paid before the answer was lost, the payer knows.
        Some(HoldOutcome::HeldBefore { .. }) => {
            payer.lock().unwrap().entry(number).or_insert(1);
        }
        Some(HoldOutcome::Decided(_)) => return Ok(false),
    }
    ledger.transact(|tx| tx.pay_out(&[WithdrawalId { user_id: 7, id: &asked.id }], 4_000))?;
    Ok(false)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Withdrawals are asked for again and again while an older copy takes over, which knows neither that they were held nor that they
/// were paid: it would hold each of them anew.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn an_older_copy_takes_over_among_payouts_and_nothing_is_paid_twice() {
    const WORKERS: u64 = 3;
    const ALL: u64 = 39;
    const AT_FIRST: u64 = 18;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let primary = server(&[]);
    let standby = Private::start(ServerOptions::standby_of(primary.url())).unwrap();
    let (mut ledger, guard) = open(&both(&primary, &standby), &unsafe_options(), &file);
    for nth in 0..20 {
        credit_at_last(&mut ledger, &format!("o/{nth}"));
    }
    beat(&mut ledger, &file).unwrap();
    wait_for_standby(&primary, &standby);
    standby.kill().unwrap();
    let (payer, stop) = (Payer::default(), AtomicBool::new(false));
    let (asked, refused) = (AtomicU64::new(AT_FIRST), AtomicU64::new(0));
    let workers: Vec<Ledger> = (0..WORKERS).map(|_| ledger.another().unwrap()).collect();
    std::thread::scope(|scope| {
        // Also where an assertion fails: the threads of the scope are waited for.
        let _stop = StopAtEnd(&stop);
        for (nth, mut own) in (0..WORKERS).zip(workers) {
            let (guard, payer, stop, asked, refused) = (&guard, &payer, &stop, &asked, &refused);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    for number in (0..asked.load(Relaxed)).filter(|number| number % WORKERS == nth) {
                        match pay(&mut own, guard, number, payer) {
                            Ok(is_stopped) => drop(refused.fetch_add(u64::from(is_stopped), Relaxed)),
                            // The server is away, or another one takes its place: it is asked again.
                            Err(_) => std::thread::sleep(Duration::from_millis(20)),
                        }
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let is_once_each = || payer.lock().unwrap().values().all(|times| *times == 1);
        wait_until("the first are not paid", || payer.lock().unwrap().values().sum::<u32>() == 18);
        beat(&mut ledger, &file).unwrap();
        // Some of these are on their way when the server dies.
        asked.store(AT_FIRST + 6, Relaxed);
        primary.kill().unwrap();
        standby.start().unwrap();
        standby.promote().unwrap();
        assert_eq!(beat(&mut ledger, &file), None, "the running process notices");
        wait_until("nobody is refused", || refused.load(Relaxed) > 3 * ALL);
        let stale = LedgerReader::connect(standby.url(), &options()).unwrap();
        for number in 0..AT_FIRST {
            let known = stale.withdrawal(WithdrawalId { user_id: 7, id: &name(number) }).unwrap();
            assert_eq!(known, None, "it would be held, and paid, once more");
        }
        drop(stale);
        assert!(is_once_each() && guard.stops_payouts(), "payouts are stopped");
        standby.kill().unwrap();
        primary.start().unwrap();
        wait_until("the server with everything is not taken", || beat(&mut ledger, &file).is_some());
        asked.store(ALL, Relaxed);
        wait_until("payouts do not go on", || {
            (0..ALL).all(|number| {
                let stored = ledger.withdrawal(WithdrawalId { user_id: 7, id: &name(number) });
                stored.is_ok_and(|stored| stored.is_some_and(|one| one.status == WithdrawalStatus::Paid))
            })
        });
    });
    let payer = payer.into_inner().unwrap();
    assert!(payer.len() == 39 && payer.values().all(|times| *times == 1), "paid once each: {payer:?}");
    assert_eq!(ledger.balance(7, "cash").unwrap(), 20 * 5 - 39);
    assert!(ledger.reconcile().unwrap().is_clean());
}
