//! Idempotency, budgets, the archive, and what an unusable file answers.

#![allow(clippy::unwrap_used, clippy::cast_possible_wrap)]

use std::path::PathBuf;
use tempfile::TempDir;
use windfall_ledger::{
    ArchiveEntry, ArchiveFilter, Attempt, BUDGET_MAX, BudgetSet, Finish, Ledger, LedgerError, LedgerOptions,
    LedgerReader, OpenError, Order, OrderOutcome, Reason, Replay, Status, Unbudgeted,
};

fn fresh() -> (TempDir, PathBuf, Ledger) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let ledger = Ledger::open(&path, &LedgerOptions::default()).unwrap();
    (folder, path, ledger)
}

fn order(trade_no: &str, user_id: i64, amount: i64) -> Order<'_> {
    Order { trade_no, user_id, activity: "spring", scene: "rain", bonus_type: "cash", amount, time_ms: 1_000 }
}

fn budget(total: i64, shards: u32) -> BudgetSet<'static> {
    BudgetSet { activity: "spring", scene: "rain", bonus_type: "cash", total, shards }
}

#[test]
fn an_order_credits_once_and_another_one_under_its_number_never() {
    let (_folder, path, mut ledger) = fresh();
    assert_eq!(ledger.apply(&[order("a", 1, 5)]).unwrap(), [OrderOutcome::Credited]);
    let batch = [
        order("a", 1, 5),
        order("a", 2, 5),
        order("a", 1, 6),
        Order { bonus_type: "coin", ..order("a", 1, 5) },
        // The scene is not part of the comparison.
        Order { scene: "cards", ..order("a", 1, 5) },
    ];
    let expected = [
        OrderOutcome::AlreadyCredited,
        OrderOutcome::Conflict,
        OrderOutcome::Conflict,
        OrderOutcome::Conflict,
        OrderOutcome::AlreadyCredited,
    ];
    assert_eq!(ledger.apply(&batch).unwrap(), expected);
    drop(ledger);
    let mut ledger = Ledger::open(&path, &LedgerOptions::default()).unwrap();
    assert_eq!(ledger.apply(&batch).unwrap(), expected, "after a restart as well");
    assert_eq!(ledger.balance(1, "cash").unwrap(), 5);
    assert_eq!(ledger.balance(2, "cash").unwrap(), 0);
    assert!(ledger.reconcile().unwrap().is_clean());
}

#[test]
fn repeats_within_a_batch_are_answered_as_if_one_after_another() {
    let (_folder, _, mut ledger) = fresh();
    let batch = [order("b", 1, 5), order("a", 1, 5), order("b", 1, 5), order("b", 1, 7), order("a", 1, 5)];
    assert_eq!(
        ledger.apply(&batch).unwrap(),
        [
            OrderOutcome::Credited,
            OrderOutcome::Credited,
            OrderOutcome::AlreadyCredited,
            OrderOutcome::Conflict,
            OrderOutcome::AlreadyCredited
        ]
    );
    assert_eq!(ledger.balance(1, "cash").unwrap(), 10);
}

#[test]
fn batches_larger_than_a_statement_with_old_orders_among_them() {
    let (_folder, path, mut ledger) = fresh();
    let names: Vec<String> = (0..1_000).map(|nth| format!("order/{nth:04}")).collect();
    let all: Vec<_> = names.iter().enumerate().map(|(nth, name)| order(name, nth as i64 % 7, 3)).collect();
    let old: Vec<_> = all.iter().copied().step_by(13).collect();
    assert!(ledger.apply(&old).unwrap().iter().all(|outcome| *outcome == OrderOutcome::Credited));
    for (nth, outcome) in ledger.apply(&all).unwrap().into_iter().enumerate() {
        let expected = if nth % 13 == 0 { OrderOutcome::AlreadyCredited } else { OrderOutcome::Credited };
        assert_eq!(outcome, expected, "{nth}");
    }
    let reader = LedgerReader::open(&path).unwrap();
    assert_eq!(reader.flow(3, 1_000).unwrap().len(), 143);
    assert_eq!(reader.flow(3, 10).unwrap().len(), 10);
    assert_eq!(reader.balances(3).unwrap(), [("cash".to_owned(), 429)]);
    assert!(reader.reconcile().unwrap().is_clean());
}

#[test]
fn a_budget_gives_all_it_has_and_no_more_whatever_its_shards() {
    for shards in [1, 3, 64] {
        let (_folder, _, mut ledger) = fresh();
        ledger.set_budgets(&[budget(100, shards)]).unwrap();
        let names: Vec<String> = (0..60).map(|nth| format!("order/{nth}")).collect();
        let batch: Vec<_> = names.iter().map(|name| order(name, 1, 2)).collect();
        let outcomes = ledger.apply(&batch).unwrap();
        let credited = outcomes.iter().filter(|outcome| **outcome == OrderOutcome::Credited).count();
        assert_eq!(credited, 50, "{shards} shards");
        assert!(outcomes[..50].iter().all(|outcome| *outcome == OrderOutcome::Credited), "first come");
        assert_eq!(outcomes[50], OrderOutcome::Rejected(Reason::BudgetExhausted));
        assert_eq!(ledger.apply(&batch[50..51]).unwrap(), outcomes[50..51], "a rejection stays");
        let state = &ledger.budgets().unwrap()[0];
        assert_eq!((state.total, state.used, state.reserved), (Some(100), 100, 0));
    }
}

#[test]
fn an_amount_that_no_shard_holds_alone_is_gathered_from_all() {
    let (_folder, _, mut ledger) = fresh();
    ledger.set_budgets(&[budget(64, 64)]).unwrap();
    assert_eq!(
        ledger.apply(&[order("a", 1, 65), order("b", 1, 64)]).unwrap(),
        [OrderOutcome::Rejected(Reason::BudgetExhausted), OrderOutcome::Credited]
    );
}

#[test]
fn a_total_is_never_lowered_below_what_is_given_and_held() {
    let (_folder, _, mut ledger) = fresh();
    ledger.apply(&[order("a", 1, 10)]).unwrap();
    let mut tx = ledger.begin().unwrap();
    assert_eq!(tx.reserve(&[order("b", 1, 5)], Attempt::Normal).unwrap(), [OrderOutcome::Reserved]);
    tx.commit().unwrap();
    let raised = ledger.set_budgets(&[budget(12, 4)]).unwrap();
    assert_eq!((raised[0].asked, raised[0].total), (12, 15), "what was given before it was set counts");
    assert_eq!(ledger.apply(&[order("c", 1, 1)]).unwrap(), [OrderOutcome::Rejected(Reason::BudgetExhausted)]);
    assert!(ledger.set_budgets(&[budget(16, 1)]).unwrap().is_empty());
    assert_eq!(ledger.apply(&[order("d", 1, 1)]).unwrap(), [OrderOutcome::Credited]);
    let mut tx = ledger.begin().unwrap();
    assert_eq!(tx.post(&["b"], 2_000).unwrap(), [Finish::Done]);
    tx.commit().unwrap();
    assert!(ledger.reconcile().unwrap().is_clean());
    let bad = ledger.set_budgets(&[budget(BUDGET_MAX + 1, 1)]);
    assert!(matches!(bad, Err(LedgerError::Invalid(_))), "{bad:?}");
}

#[test]
fn without_a_budget_orders_are_refused_where_the_option_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let options = LedgerOptions { unbudgeted: Unbudgeted::Refuse, ..LedgerOptions::default() };
    let mut ledger = Ledger::open(&path, &options).unwrap();
    let rejected = [OrderOutcome::Rejected(Reason::BudgetExhausted)];
    assert_eq!(ledger.apply(&[order("a", 1, 1)]).unwrap(), rejected);
    ledger.set_budgets(&[budget(1, 1)]).unwrap();
    assert_eq!(ledger.apply(&[order("b", 1, 1)]).unwrap(), [OrderOutcome::Credited]);
}

#[test]
fn a_reservation_ends_once_and_either_way() {
    let (_folder, _, mut ledger) = fresh();
    ledger.set_budgets(&[budget(10, 2)]).unwrap();
    let mut tx = ledger.begin().unwrap();
    let batch = [order("a", 1, 5), order("b", 1, 5), order("c", 1, 1)];
    assert_eq!(
        tx.reserve(&batch, Attempt::Normal).unwrap(),
        [OrderOutcome::Reserved, OrderOutcome::Reserved, OrderOutcome::Rejected(Reason::BudgetExhausted)]
    );
    tx.commit().unwrap();
    assert_eq!(ledger.apply(&batch[..1]).unwrap(), [OrderOutcome::Reserved], "not paid twice");
    let refused = [("b", Reason::DownstreamRefused)];
    for first in [Finish::Done, Finish::Before] {
        let mut tx = ledger.begin().unwrap();
        assert_eq!(tx.post(&["a", "a"], 1_500).unwrap(), [first, Finish::Before]);
        assert_eq!(tx.release(&refused, 1_500).unwrap(), [first]);
        assert_eq!(tx.post(&["b", "x"], 1_500).unwrap(), [Finish::Otherwise, Finish::Unknown]);
        assert_eq!(tx.release(&[("a", Reason::DownstreamRefused)], 1_500).unwrap(), [Finish::Otherwise]);
        assert_eq!(tx.order("a").unwrap().map(|order| order.status), Some(Status::Credited));
        tx.commit().unwrap();
    }
    assert_eq!(ledger.balance(1, "cash").unwrap(), 5);
    let stored = ledger.order("a").unwrap().unwrap();
    assert_eq!((stored.status, stored.created_ms, stored.decided_ms), (Status::Credited, 1_000, Some(1_500)));
    // Its budget came back: a replay gets it.
    let mut tx = ledger.begin().unwrap();
    assert_eq!(tx.apply(&batch[1..2], Attempt::Replay).unwrap(), [OrderOutcome::Credited]);
    tx.commit().unwrap();
    assert!(ledger.reconcile().unwrap().is_clean());
}

/// Found by the model: the first occurrence was a conflict, so the second was answered from the row alone.
#[test]
fn a_replay_behind_a_conflict_of_the_same_number_is_decided_anew() {
    let (_folder, _, mut ledger) = fresh();
    let mut tx = ledger.begin().unwrap();
    tx.reserve(&[order("a", 3, 4)], Attempt::Normal).unwrap();
    tx.release(&[("a", Reason::DownstreamRefused)], 1_000).unwrap();
    let batch = [order("a", 1, 1), order("a", 3, 4)];
    let outcomes = tx.apply(&batch, Attempt::Replay).unwrap();
    tx.commit().unwrap();
    assert_eq!(outcomes, [OrderOutcome::Conflict, OrderOutcome::Credited]);
    assert!(ledger.reconcile().unwrap().is_clean());
}

/// Found by the model: the transfer named the replay's scene, the order and its budget that of the first call.
#[test]
fn a_replay_from_another_scene_is_paid_by_the_first_one() {
    let (_folder, _, mut ledger) = fresh();
    let mut tx = ledger.begin().unwrap();
    tx.reserve(&[order("a", 3, 4)], Attempt::Normal).unwrap();
    tx.release(&[("a", Reason::DownstreamRefused)], 1_000).unwrap();
    let elsewhere = Order { scene: "cards", ..order("a", 3, 4) };
    assert_eq!(tx.apply(&[elsewhere], Attempt::Replay).unwrap(), [OrderOutcome::Credited]);
    tx.commit().unwrap();
    assert_eq!(ledger.order("a").unwrap().unwrap().scene, "rain");
    let used: Vec<_> = ledger.budgets().unwrap().into_iter().map(|one| (one.scene, one.used)).collect();
    assert_eq!(used, [("cards".to_owned(), 0), ("rain".to_owned(), 4)]);
    assert!(ledger.reconcile().unwrap().is_clean());
}

#[test]
fn what_is_not_committed_never_was() {
    let (_folder, _, mut ledger) = fresh();
    let mut tx = ledger.begin().unwrap();
    tx.apply(&[order("a", 1, 5)], Attempt::Normal).unwrap();
    tx.archive(&[ArchiveEntry {
        trade_no: None,
        payload: b"x",
        reason: "malformed",
        detail: "",
        time_ms: 0,
    }])
    .unwrap();
    drop(tx);
    assert_eq!(ledger.order("a").unwrap(), None);
    assert!(ledger.archive_list(&ArchiveFilter::default()).unwrap().is_empty());
    assert!(ledger.budgets().unwrap().is_empty(), "names made by it are gone as well");
    assert_eq!(ledger.apply(&[order("a", 1, 5)]).unwrap(), [OrderOutcome::Credited]);
}

#[test]
fn a_bad_order_spoils_its_whole_batch_and_nothing_of_it_is_stored() {
    let (_folder, _, mut ledger) = fresh();
    for bad in [order("b", 1, 0), order("b", 1, -1), order("", 1, 1)] {
        let mut tx = ledger.begin().unwrap();
        let error = tx.apply(&[order("a", 1, 5), bad], Attempt::Normal);
        assert!(matches!(error, Err(LedgerError::Invalid(_))), "{error:?}");
        assert!(matches!(tx.apply(&[order("c", 1, 5)], Attempt::Normal), Err(LedgerError::Poisoned)));
        assert!(matches!(tx.commit(), Err(LedgerError::Poisoned)));
    }
    assert_eq!(ledger.order("a").unwrap(), None);
}

#[test]
fn a_sum_beyond_64_bits_is_an_error_and_not_a_wrong_balance() {
    let (_folder, _, mut ledger) = fresh();
    let scenes: Vec<String> = (0..40).map(|nth| format!("scene-{nth}")).collect();
    let mut refused = 0;
    for (nth, scene) in scenes.iter().enumerate() {
        let name = format!("order/{nth}");
        let order = Order { scene, ..order(&name, 1, BUDGET_MAX) };
        match ledger.apply(&[order]) {
            Ok(outcomes) => assert_eq!(outcomes, [OrderOutcome::Credited]),
            Err(LedgerError::Sql(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(refused, 40 - 31);
    assert_eq!(ledger.balance(1, "cash").unwrap(), 31 * BUDGET_MAX);
    assert!(ledger.reconcile().unwrap().is_clean());
}

#[test]
fn the_archive_keeps_an_event_once_a_reason_and_audits_replays() {
    let (_folder, path, mut ledger) = fresh();
    let entry = |reason, payload| ArchiveEntry {
        trade_no: Some("a"),
        payload,
        reason,
        detail: "because",
        time_ms: 7,
    };
    let mut tx = ledger.begin().unwrap();
    let entries =
        [entry("conflict", b"one".as_slice()), entry("max_failures", b"one"), entry("conflict", b"two")];
    assert_eq!(tx.archive(&entries).unwrap(), 3);
    assert_eq!(tx.archive(&entries).unwrap(), 0, "repeating it archives nothing twice");
    tx.commit().unwrap();
    let reader = LedgerReader::open(&path).unwrap();
    let all = reader.archive_list(&ArchiveFilter::default()).unwrap();
    assert_eq!(all.iter().map(|one| one.payload.as_slice()).collect::<Vec<_>>(), [b"one", b"one", b"two"]);
    let filter = ArchiveFilter { reason: Some("conflict".into()), limit: 1, ..ArchiveFilter::default() };
    let page = ledger.archive_list(&filter).unwrap();
    let next = ledger.archive_list(&ArchiveFilter { after: page[0].id, ..filter }).unwrap();
    assert_eq!((page[0].id, next[0].id), (all[0].id, all[2].id));
    for outcome in ["conflict", "credited"] {
        let replay = Replay { time_ms: 8, actor: "ann".into(), outcome: outcome.into() };
        let mut tx = ledger.begin().unwrap();
        assert!(tx.mark_replayed(all[0].id, &replay).unwrap());
        assert!(!tx.mark_replayed(99, &replay).unwrap());
        tx.commit().unwrap();
    }
    assert_eq!(ledger.replays(all[0].id).unwrap().len(), 2);
    assert_eq!(ledger.archived(all[0].id).unwrap().unwrap().replay.unwrap().outcome, "credited");
    let open = ledger.archive_list(&ArchiveFilter { open: true, ..ArchiveFilter::default() }).unwrap();
    assert_eq!(open.iter().map(|one| one.id).collect::<Vec<_>>(), [all[1].id, all[2].id]);
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing_half_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let small = LedgerOptions { max_bytes: Some(400 * 1024), ..LedgerOptions::default() };
    let mut ledger = Ledger::open(&path, &small).unwrap();
    let names: Vec<String> = (0..20_000).map(|nth| format!("order/{nth:05}")).collect();
    let mut credited = 0;
    let mut full = false;
    for part in names.chunks(500) {
        let batch: Vec<_> = part.iter().map(|name| order(name, 1, 1)).collect();
        match ledger.apply(&batch) {
            Ok(outcomes) => credited += outcomes.len() as i64,
            Err(LedgerError::Full) => full = true,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(full);
    assert_eq!(ledger.balance(1, "cash").unwrap(), credited);
    assert!(ledger.reconcile().unwrap().is_clean());
    drop(ledger);
    // With room again, the same batches are asked again.
    let mut ledger = Ledger::open(&path, &LedgerOptions::default()).unwrap();
    for part in names.chunks(500) {
        let batch: Vec<_> = part.iter().map(|name| order(name, 1, 1)).collect();
        ledger.apply(&batch).unwrap();
    }
    assert_eq!(ledger.balance(1, "cash").unwrap(), 20_000);
    assert!(ledger.reconcile().unwrap().is_clean());
}

#[test]
fn a_file_that_cannot_be_used_says_why() {
    let (folder, path, ledger) = fresh();
    let options = LedgerOptions::default();
    assert!(matches!(Ledger::open(&path, &options), Err(OpenError::InUse { .. })));
    LedgerReader::open(&path).unwrap();
    drop(ledger);
    let other = folder.path().join("other.db");
    std::fs::write(
        &other,
        "this is a letter to my aunt, not a database, and longer than a header of 100 bytes. \
        Dear aunt, the weather is fine.",
    )
    .unwrap();
    assert!(matches!(Ledger::open(&other, &options), Err(OpenError::Damaged { .. })));
    assert!(matches!(LedgerReader::open(&other), Err(OpenError::Damaged { .. })));
    assert!(LedgerReader::open(folder.path().join("none.db")).is_err());
    assert!(!folder.path().join("none.db").exists(), "a reader creates nothing");
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(raw);
    let newer = Ledger::open(&path, &options).map(drop);
    assert!(matches!(newer, Err(OpenError::Newer { found: 99, known: 1, .. })), "{newer:?}");
    assert!(Ledger::open(folder.path().join("no/such/folder.db"), &options).is_err());
    let foreign = folder.path().join("foreign.db");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(matches!(Ledger::open(&foreign, &options), Err(OpenError::Damaged { .. })));
}

#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_may_not_be_written_is_named() {
    // Not even root makes files there.
    let refused = Ledger::open("/sys/ledger.db", &LedgerOptions::default()).map(drop);
    assert!(matches!(refused, Err(OpenError::ReadOnly { .. })), "{refused:?}");
}

#[test]
fn a_locked_file_is_busy_and_the_batch_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let options = LedgerOptions { busy_timeout_ms: 10, ..LedgerOptions::default() };
    let mut ledger = Ledger::open(&path, &options).unwrap();
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = ledger.apply(&[order("a", 1, 1)]);
    assert!(matches!(busy, Err(LedgerError::Busy)), "{busy:?}");
    raw.execute_batch("ROLLBACK").unwrap();
    assert_eq!(ledger.apply(&[order("a", 1, 1)]).unwrap(), [OrderOutcome::Credited]);
}
