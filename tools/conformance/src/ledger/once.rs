//! An order credits once (I1).

use super::{Outcome, Place, clean, id, names, open, order};
use windfall_contract::accounts::Reason;
use windfall_ledger::{
    ArchiveEntry, ArchiveFilter, Attempt, BUDGET_MAX, LedgerError, Order, OrderOutcome, Unbudgeted,
};

pub(super) fn credits_once(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    assert_eq!(ledger.apply(&[order("a", 1, 5)])?, [OrderOutcome::Credited]);
    let batch = [
        order("a", 1, 5),
        order("a", 2, 5),
        order("a", 1, 6),
        Order { bonus_type: "coin", ..order("a", 1, 5) },
        Order { scene: "cards", ..order("a", 1, 5) },
        order("a", 1, 5),
    ];
    let expected = [
        OrderOutcome::AlreadyCredited,
        OrderOutcome::Conflict,
        OrderOutcome::Conflict,
        OrderOutcome::Conflict,
        OrderOutcome::Conflict,
        OrderOutcome::AlreadyCredited,
    ];
    assert_eq!(ledger.apply(&batch)?, expected);
    drop(ledger);
    let mut ledger = open(place)?;
    assert_eq!(ledger.apply(&batch)?, expected, "opened again as well");
    assert_eq!(ledger.balance(1, "cash")?, 5);
    assert_eq!(ledger.balance(2, "cash")?, 0);
    assert_eq!(ledger.apply(&[])?, []);
    clean(place)
}

pub(super) fn repeats_within_a_batch(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let batch = [order("b", 1, 5), order("a", 1, 5), order("b", 1, 5), order("b", 1, 7), order("a", 1, 5)];
    assert_eq!(
        ledger.apply(&batch)?,
        [
            OrderOutcome::Credited,
            OrderOutcome::Credited,
            OrderOutcome::AlreadyCredited,
            OrderOutcome::Conflict,
            OrderOutcome::AlreadyCredited
        ]
    );
    assert_eq!(ledger.balance(1, "cash")?, 10);
    clean(place)
}

pub(super) fn large_batches(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let names = names(6_000);
    let all: Vec<_> = (0_i64..).zip(&names).map(|(nth, name)| order(name, nth % 7, 3)).collect();
    let old: Vec<_> = all.iter().copied().step_by(13).collect();
    assert!(ledger.apply(&old)?.iter().all(|outcome| *outcome == OrderOutcome::Credited));
    for (nth, outcome) in ledger.apply(&all)?.into_iter().enumerate() {
        let expected = if nth % 13 == 0 { OrderOutcome::AlreadyCredited } else { OrderOutcome::Credited };
        assert_eq!(outcome, expected, "{nth}");
    }
    let reader = place.reader()?;
    let flow = reader.flow(3, 10_000)?;
    assert_eq!(flow.len(), 857);
    assert!(flow.is_sorted_by(|a, b| a.transfer > b.transfer), "newest first");
    assert_eq!(reader.flow(3, 10)?, flow[..10]);
    assert_eq!(reader.balances(3)?, [("cash".to_owned(), 2_571)]);
    assert_eq!(reader.orders()?.collect::<Result<Vec<_>, _>>()?.len(), names.len());
    reader.check()?;
    clean(place)
}

/// Which scene an order names is a part of it, whatever has become of it: held for a downstream, held for its
/// event, or rejected; also within the batch that stores it.
pub(super) fn scene(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let elsewhere = |order| [Order { scene: "cards", ..order }, Order { scene: "quiz", ..order }];
    let batch = |name| [order(name, 1, 5), elsewhere(order(name, 1, 5))[0], elsewhere(order(name, 1, 5))[1]];
    let conflict = OrderOutcome::Conflict;
    assert_eq!(ledger.apply(&batch("paid"))?, [OrderOutcome::Credited, conflict, conflict]);
    let mut tx = ledger.begin()?;
    let held = [OrderOutcome::Reserved, conflict, conflict];
    assert_eq!(super::reserve(&mut tx, &batch("held"), Attempt::Normal)?, held);
    assert_eq!(tx.promise(&batch("promised"), Attempt::Normal)?, held);
    let no = OrderOutcome::Rejected(Reason::DownstreamRefused);
    super::reserve(&mut tx, &[order("refused", 1, 5)], Attempt::Normal)?;
    tx.release(&[(id("refused"), Reason::DownstreamRefused)], 1_000)?;
    assert_eq!(tx.apply(&batch("refused"), Attempt::Normal)?, [no, conflict, conflict]);
    tx.commit()?;
    for name in ["paid", "held", "promised", "refused"] {
        for attempt in [Attempt::Normal, Attempt::Replay] {
            let mut tx = ledger.begin()?;
            assert_eq!(tx.apply(&elsewhere(order(name, 1, 5)), attempt)?, [conflict; 2], "{name}");
            assert_eq!(super::reserve(&mut tx, &elsewhere(order(name, 1, 5)), attempt)?, [conflict; 2]);
            assert_eq!(tx.promise(&elsewhere(order(name, 1, 5)), attempt)?, [conflict; 2], "{name}");
            tx.commit()?;
        }
    }
    // The repeat of the very order is what it was.
    assert_eq!(ledger.apply(&[order("paid", 1, 5)])?, [OrderOutcome::AlreadyCredited]);
    assert_eq!(ledger.apply(&[order("promised", 1, 5)])?, [OrderOutcome::Credited]);
    let again = ledger.transact(|tx| tx.apply(&[order("refused", 1, 5)], Attempt::Replay))?;
    assert_eq!(again, [OrderOutcome::Credited]);
    assert_eq!(ledger.balance(1, "cash")?, 15);
    clean(place)
}

/// A number counts within its activity, and conflicts are of that activity alone; also within one batch, in any order, and
/// after an activity's order was rejected, or is held.
pub(super) fn activities(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let autumn = |order| Order { activity: "autumn", ..order };
    let (yes, before, conflict) =
        (OrderOutcome::Credited, OrderOutcome::AlreadyCredited, OrderOutcome::Conflict);
    let batch = [
        order("a", 1, 5),
        autumn(order("a", 2, 7)),
        order("a", 1, 5),
        autumn(order("a", 2, 7)),
        autumn(order("a", 1, 5)),
        order("a", 2, 7),
        // A number that begins like another one.
        autumn(order("a!", 1, 1)),
    ];
    assert_eq!(ledger.apply(&batch)?, [yes, yes, before, before, conflict, conflict, yes]);
    assert_eq!(ledger.apply(&batch[..2])?, [before, before]);
    assert_eq!((ledger.balance(1, "cash")?, ledger.balance(2, "cash")?), (6, 7));
    let no = OrderOutcome::Rejected(Reason::DownstreamRefused);
    let mut tx = ledger.begin()?;
    super::reserve(&mut tx, &[order("b", 1, 5), order("c", 1, 5)], Attempt::Normal)?;
    tx.release(&[(id("b"), Reason::DownstreamRefused)], 1_000)?;
    let others = [autumn(order("b", 1, 5)), autumn(order("c", 1, 5)), order("b", 1, 5), order("c", 1, 5)];
    assert_eq!(tx.apply(&others, Attempt::Normal)?, [yes, yes, no, OrderOutcome::Reserved]);
    assert_eq!(tx.apply(&others, Attempt::Replay)?, [before, before, yes, OrderOutcome::Reserved]);
    tx.commit()?;
    let reader = place.reader()?;
    let of = |trade_no| -> Result<Vec<(String, i64)>, LedgerError> {
        let found = reader.orders_of_number(trade_no)?;
        Ok(found.into_iter().map(|order| (order.activity, order.user_id)).collect())
    };
    assert_eq!(of("a")?, [("autumn".to_owned(), 2), ("spring".to_owned(), 1)]);
    assert_eq!((of("a!")?.len(), of("none")?.len(), of("b")?.len()), (1, 0, 2));
    let lines = reader.orders()?.collect::<Result<Vec<_>, _>>()?;
    assert!(
        lines.iter().all(|line| line.credits == u32::from(line.trade_no != "c" || line.activity == "autumn"))
    );
    let flow: Vec<_> = reader.flow(2, 9)?.into_iter().map(|line| (line.trade_no, line.activity)).collect();
    assert_eq!(flow, [("a".to_owned(), "autumn".to_owned())]);
    clean(place)
}

/// Found by the model: a first occurrence that was a conflict, so that the second was answered from the row alone.
pub(super) fn replays(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let mut tx = ledger.begin()?;
    super::reserve(&mut tx, &[order("a", 3, 4), order("b", 3, 4)], Attempt::Normal)?;
    tx.release(&[(id("a"), Reason::DownstreamRefused), (id("b"), Reason::DownstreamRefused)], 1_000)?;
    let batch = [order("a", 1, 1), order("a", 3, 4)];
    assert_eq!(tx.apply(&batch, Attempt::Replay)?, [OrderOutcome::Conflict, OrderOutcome::Credited]);
    assert_eq!(tx.apply(&[order("b", 3, 4)], Attempt::Replay)?, [OrderOutcome::Credited]);
    tx.commit()?;
    assert_eq!(ledger.order(id("b"))?.map(|order| order.scene), Some("rain".into()));
    let used: Vec<_> = ledger.budgets()?.into_iter().map(|one| (one.scene, one.used)).collect();
    assert_eq!(used, [("rain".to_owned(), 8)]);
    clean(place)
}

pub(super) fn not_committed(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let mut tx = ledger.begin()?;
    tx.apply(&[order("a", 1, 5)], Attempt::Normal)?;
    let entry = ArchiveEntry {
        trade_no: None,
        payload: b"x",
        reason: "malformed".into(),
        detail: "".into(),
        time_ms: 0,
    };
    tx.archive(&[entry])?;
    drop(tx);
    assert_eq!(ledger.order(id("a"))?, None);
    assert!(ledger.archive_list(&ArchiveFilter::default())?.is_empty());
    assert!(ledger.budgets()?.is_empty(), "names made by it are gone as well");
    assert_eq!(ledger.apply(&[order("a", 1, 5)])?, [OrderOutcome::Credited]);
    clean(place)
}

pub(super) fn bad_order(place: &dyn Place) -> Outcome {
    let mut ledger = place.open(Unbudgeted::Allow)?;
    for bad in [order("b", 1, 0), order("b", 1, -1), order("", 1, 1), order("a b", 1, 1), order("a\0", 1, 1)]
    {
        let mut tx = ledger.begin()?;
        let error = tx.apply(&[order("a", 1, 5), bad], Attempt::Normal);
        assert!(matches!(error, Err(LedgerError::Invalid(_))), "{error:?}");
        let again = tx.apply(&[order("c", 1, 5)], Attempt::Normal);
        assert!(matches!(again, Err(LedgerError::Poisoned)), "{again:?}");
        assert!(matches!(tx.commit(), Err(LedgerError::Poisoned)));
    }
    assert_eq!(ledger.order(id("a"))?, None);
    Ok(())
}

pub(super) fn overflow(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let scenes: Vec<String> = (0..40).map(|nth| format!("scene-{nth}")).collect();
    let mut refused = 0;
    for (nth, scene) in scenes.iter().enumerate() {
        let name = format!("order/{nth}");
        let order = Order { scene, ..order(&name, 1, BUDGET_MAX) };
        match ledger.apply(&[order]) {
            Ok(outcomes) => assert_eq!(outcomes, [OrderOutcome::Credited]),
            Err(LedgerError::Sql(_)) => refused += 1,
            Err(other) => return Err(other.into()),
        }
    }
    assert_eq!(refused, 40 - 31, "a wrong balance must not be");
    assert_eq!(ledger.balance(1, "cash")?, 31 * BUDGET_MAX);
    clean(place)
}
