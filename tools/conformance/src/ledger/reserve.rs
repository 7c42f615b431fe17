//! Orders that a downstream decides: reserved, then posted or released.

use super::{Outcome, Place, budget, clean, id, ids, names, open, order, settled};
use windfall_contract::accounts::{FlowKind, Reason, Status, Withdrawal, WithdrawalOutcome};
use windfall_ledger::{
    Attempt, Awaits, Finish, HoldOutcome, Ledger, LedgerError, Order, OrderId, OrderOutcome, payer_key,
};

pub(super) fn ends_once(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(10, 2)])?;
    let mut tx = ledger.begin()?;
    let batch = [order("a", 1, 5), order("b", 1, 5), order("c", 1, 1)];
    assert_eq!(
        super::reserve(&mut tx, &batch, Attempt::Normal)?,
        [OrderOutcome::Reserved, OrderOutcome::Reserved, OrderOutcome::Rejected(Reason::BudgetExhausted)]
    );
    tx.commit()?;
    assert_eq!(ledger.apply(&batch[..1])?, [OrderOutcome::Reserved], "not paid twice");
    let refused = [(id("b"), Reason::DownstreamRefused)];
    for first in [Finish::Done, Finish::Before] {
        let mut tx = ledger.begin()?;
        assert_eq!(tx.post(&ids(&["a", "a"]), 1_500)?, [first, Finish::Before]);
        assert_eq!(tx.release(&refused, 1_500)?, [first]);
        assert_eq!(tx.post(&ids(&["b", "x"]), 1_500)?, [Finish::Otherwise, Finish::Unknown]);
        assert_eq!(tx.release(&[(id("a"), Reason::DownstreamRefused)], 1_500)?, [Finish::Otherwise]);
        assert_eq!(tx.order(id("a"))?.map(|order| order.status), Some(Status::Credited));
        tx.commit()?;
    }
    assert_eq!((ledger.balance(1, "cash")?, settled(place, "bank")?), (0, 5), "its payer paid it");
    let stored = ledger.order(id("a"))?.ok_or("no such order")?;
    assert_eq!((stored.status, stored.created_ms, stored.decided_ms), (Status::Credited, 1_000, Some(1_500)));
    // Its budget came back: a replay gets it.
    let mut tx = ledger.begin()?;
    assert_eq!(tx.apply(&batch[1..2], Attempt::Replay)?, [OrderOutcome::Credited]);
    tx.commit()?;
    clean(place)
}

pub(super) fn many(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(3_000, 8)])?;
    let names = names(2_000);
    let batch: Vec<_> = names.iter().map(|name| order(name, 1, 2)).collect();
    let reserved = ledger.transact(|tx| super::reserve(tx, &batch, Attempt::Normal))?;
    assert!(reserved[..1_500].iter().all(|outcome| *outcome == OrderOutcome::Reserved));
    assert!(reserved[1_500..].iter().all(|outcome| matches!(outcome, OrderOutcome::Rejected(_))));
    // Split anew meanwhile: the reservations lie in other shards than those they were taken from.
    ledger.set_budgets(&[budget(3_000, 3)])?;
    let paid: Vec<&str> = names[..1_000].iter().map(String::as_str).collect();
    let refused: Vec<_> =
        names[1_000..1_500].iter().map(|name| (id(name), Reason::DownstreamRefused)).collect();
    let (posted, released) =
        ledger.transact(|tx| Ok((tx.post(&ids(&paid), 2_000)?, tx.release(&refused, 2_000)?)))?;
    assert!(posted.iter().chain(&released).all(|finish| *finish == Finish::Done));
    let state = &ledger.budgets()?[0];
    assert_eq!((state.total, state.used, state.reserved), (Some(3_000), 2_000, 0));
    assert_eq!((ledger.balance(1, "cash")?, settled(place, "bank")?), (0, 2_000));
    let found = ledger.transact(|tx| tx.orders(&ids(&["order/00000", "none", "order/01999"])))?;
    let found: Vec<_> = found.into_iter().map(|order| order.map(|order| order.status)).collect();
    assert_eq!(found, [Some(Status::Credited), None, Some(Status::Rejected(Reason::BudgetExhausted))]);
    clean(place)
}

/// Budget held for orders whose events come later; then the ledger pays them from what is held.
pub(super) fn promised(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(10, 2)])?;
    let batch = [order("a", 1, 5), order("b", 1, 5), order("c", 1, 1)];
    let exhausted = OrderOutcome::Rejected(Reason::BudgetExhausted);
    for _ in 0..2 {
        let outcomes = ledger.transact(|tx| tx.promise(&batch, Attempt::Normal))?;
        assert_eq!(outcomes, [OrderOutcome::Reserved, OrderOutcome::Reserved, exhausted]);
    }
    assert_eq!(ledger.balance(1, "cash")?, 0);
    let state = ledger.budgets()?.remove(0);
    assert_eq!((state.used, state.reserved), (0, 10));
    let listed = place.reader()?.reserved(None, 1_001, "", 9)?;
    let listed: Vec<_> = listed.iter().map(|one| (one.order.trade_no.as_str(), one.awaits)).collect();
    assert_eq!(listed, [("a", Awaits::Event), ("b", Awaits::Event)]);
    assert_eq!(place.reader()?.reserved(Some(Awaits::Event), 1_001, "", 9)?.len(), 2);
    assert_eq!(place.reader()?.reserved(Some(Awaits::Payer), 1_001, "", 9)?, []);
    let first = place.reader()?.reserved(None, 1_001, "", 9)?.remove(0).order.key;
    assert_eq!(place.reader()?.reserved(None, 1_001, &first, 9)?.len(), 1);
    assert_eq!(place.reader()?.reserved(None, 1_000, "", 9)?, [], "since before");
    // Another order under the number first, then its own event, twice; and one that was never promised.
    let events = [order("a", 2, 5), order("a", 1, 5), order("a", 1, 5), order("d", 1, 1)];
    assert_eq!(
        ledger.apply(&events)?,
        [OrderOutcome::Conflict, OrderOutcome::Credited, OrderOutcome::AlreadyCredited, exhausted]
    );
    assert_eq!(
        ledger.transact(|tx| tx.promise(&batch[..1], Attempt::Normal))?,
        [OrderOutcome::AlreadyCredited]
    );
    // An operator gives up on the other one; its late event is rejected, and a replay decides it anew.
    assert_eq!(ledger.transact(|tx| tx.release(&[(id("b"), Reason::Released)], 2_000))?, [Finish::Done]);
    assert_eq!(ledger.apply(&batch[1..2])?, [OrderOutcome::Rejected(Reason::Released)]);
    assert_eq!(ledger.transact(|tx| tx.apply(&batch[1..2], Attempt::Replay))?, [OrderOutcome::Credited]);
    assert_eq!(ledger.balance(1, "cash")?, 10);
    let state = ledger.budgets()?.remove(0);
    assert_eq!((state.used, state.reserved), (10, 0));
    clean(place)
}

/// A type that a downstream pays by the time its event comes is never paid twice.
pub(super) fn promised_then_asked(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let batch = [order("a", 1, 5), order("b", 1, 5)];
    ledger.transact(|tx| tx.promise(&batch, Attempt::Normal))?;
    assert_eq!(
        ledger.transact(|tx| super::reserve(tx, &batch[..1], Attempt::Normal))?,
        [OrderOutcome::Reserved]
    );
    assert_eq!(ledger.apply(&batch)?, [OrderOutcome::Reserved, OrderOutcome::Credited], "it may have paid");
    assert_eq!(ledger.transact(|tx| tx.promise(&batch[..1], Attempt::Normal))?, [OrderOutcome::Reserved]);
    assert_eq!(ledger.apply(&batch[..1])?, [OrderOutcome::Reserved], "a promise takes nothing over");
    assert_eq!(ledger.transact(|tx| tx.post(&ids(&["a"]), 2_000))?, [Finish::Done]);
    // A released one that is promised anew by a replay is the event's again.
    let order = [order("c", 1, 2)];
    ledger.transact(|tx| {
        tx.promise(&order, Attempt::Normal)?;
        tx.release(&[(id("c"), Reason::Released)], 2_000)?;
        tx.promise(&order, Attempt::Replay)
    })?;
    assert_eq!(ledger.apply(&order)?, [OrderOutcome::Credited]);
    clean(place)
}

/// The payer that was named first may have paid: no other is named, until the order has ended and is decided anew.
pub(super) fn first_payer(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let batch = [order("a", 1, 5), order("b", 1, 5), order("c", 1, 5)];
    ledger.transact(|tx| tx.promise(&batch[2..], Attempt::Normal))?;
    let reserved = [OrderOutcome::Reserved; 3];
    for payers in [["x", "y", "z"], ["y", "z", "x"], ["", "", ""]] {
        assert_eq!(ledger.transact(|tx| tx.reserve(&batch, &payers, Attempt::Normal))?, reserved);
        assert_eq!(ledger.transact(|tx| tx.reserve(&batch, &payers, Attempt::Replay))?, reserved);
        let stored = place.reader()?.orders_of(&ids(&["a", "b", "c"]))?;
        let payers: Vec<_> = stored.into_iter().flatten().map(|order| order.payer).collect();
        assert_eq!(payers, ["x", "y", "z"]);
    }
    assert_eq!(place.reader()?.reserved(None, 1_001, "", 9)?[0].order.payer, "x");
    ledger.transact(|tx| tx.release(&[(id("a"), Reason::DownstreamRefused)], 2_000))?;
    ledger.transact(|tx| tx.reserve(&batch[..1], &["y"], Attempt::Replay))?;
    assert_eq!(ledger.order(id("a"))?.map(|order| order.payer), Some("y".into()), "x will never pay it");
    for bad in [&[][..], &["x", "y"], &["x\0"]] {
        let refused = ledger.transact(|tx| tx.reserve(&batch[..1], bad, Attempt::Normal));
        assert!(matches!(refused, Err(LedgerError::Invalid(_))), "{refused:?}");
    }
    clean(place)
}

/// What a downstream has paid is its own, whoever pays the type later; the user sees it, and cannot withdraw it.
pub(super) fn settled_with_its_payer(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let batch = [order("a", 1, 5), order("b", 1, 7), order("c", 1, 9)];
    ledger.transact(|tx| tx.reserve(&batch, &["x", "y", "y"], Attempt::Normal))?;
    assert_eq!(place.reader()?.settlements()?, [], "not paid yet");
    let done = ledger.transact(|tx| {
        tx.release(&[(id("c"), Reason::DownstreamRefused)], 2_000)?;
        tx.post(&ids(&["a", "b"]), 2_000)
    })?;
    assert_eq!(done, [Finish::Done; 2]);
    assert_eq!((settled(place, "x")?, settled(place, "y")?), (5, 7));
    // By now the ledger pays the type itself, and an operator replays what the payer refused.
    assert_eq!(ledger.apply(&batch[..2])?, [OrderOutcome::AlreadyCredited; 2]);
    assert_eq!(ledger.transact(|tx| tx.apply(&batch[2..], Attempt::Replay))?, [OrderOutcome::Credited]);
    assert_eq!(ledger.order(id("c"))?.map(|order| order.payer), Some("".into()), "the ledger paid it");
    assert_eq!((ledger.balance(1, "cash")?, settled(place, "y")?), (9, 7));
    let flow = place.reader()?.flow(1, 9)?;
    let flow: Vec<_> = flow.iter().map(|line| (line.kind, line.amount, line.activity.as_str())).collect();
    assert_eq!(flow[0], (FlowKind::Credit, 9, "spring"));
    assert_eq!(flow[1..].iter().filter(|line| line.0 == FlowKind::Settled).count(), 2);
    let out = |id: &str, amount| Withdrawal { id: id.into(), user_id: 1, bonus_type: "cash".into(), amount };
    let (many, all) = (out("many", 10), out("all", 9));
    let held = ledger.transact(|tx| tx.hold(&[(&many, ""), (&all, "")], 3_000))?;
    let short = HoldOutcome::Decided(WithdrawalOutcome::Short { balance: 9 });
    assert_eq!(held, [short, HoldOutcome::Held]);
    // One in another activity belongs to the same payer.
    let other = Order { activity: "autumn", ..order("d", 2, 1) };
    ledger.transact(|tx| {
        tx.reserve(&[other], &["x"], Attempt::Normal)?;
        tx.post(&[other.id()], 4_000)
    })?;
    assert_eq!(settled(place, "x")?, 6);
    clean(place)
}

/// Two activities hold and end orders of the same numbers, in one call, and neither touches the other's. Each order has a
/// key for its payer that no other order has.
pub(super) fn activities(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let other = |trade_no| OrderId { activity: "autumn", trade_no };
    let batch = [order("a", 1, 5), Order { activity: "autumn", ..order("a", 1, 5) }, order("b", 2, 3)];
    ledger.transact(|tx| tx.reserve(&batch, &["x", "y", "x"], Attempt::Normal))?;
    let listed = place.reader()?.reserved(None, 1_001, "", 9)?;
    assert_eq!(place.reader()?.reserved(Some(Awaits::Payer), 1_001, "", 9)?, listed);
    assert_eq!(place.reader()?.reserved(Some(Awaits::Event), 1_001, "", 9)?, []);
    let keys: Vec<String> = listed.iter().map(|one| payer_key(&one.order)).collect();
    assert_eq!(keys, ["order autumn a", "order spring a", "order spring b"]);
    // Page by page, none is left out and none comes twice.
    let (mut after, mut paged) = (String::new(), Vec::new());
    while let Some(one) = place.reader()?.reserved(None, 1_001, &after, 1)?.pop() {
        after.clone_from(&one.order.key);
        paged.push(one);
    }
    assert_eq!(paged, listed);
    let done = ledger.transact(|tx| {
        let refused = [(id("a"), Reason::DownstreamRefused), (other("b"), Reason::DownstreamRefused)];
        Ok((tx.post(&[other("a"), other("a")], 2_000)?, tx.release(&refused, 2_000)?))
    })?;
    assert_eq!(done, (vec![Finish::Done, Finish::Before], vec![Finish::Done, Finish::Unknown]));
    let stored = place.reader()?.orders_of(&[id("a"), other("a"), id("b"), other("b")])?;
    let stored: Vec<_> = stored.into_iter().map(|one| one.map(|one| (one.status, one.payer))).collect();
    let of = |status, payer: &str| Some((status, payer.to_owned()));
    let refused = Status::Rejected(Reason::DownstreamRefused);
    assert_eq!(stored, [of(refused, "x"), of(Status::Credited, "y"), of(Status::Reserved, "x"), None]);
    assert_eq!((settled(place, "x")?, settled(place, "y")?), (0, 5));
    clean(place)
}

/// Orders as version 1 reserved them.
pub(super) fn no_payer_yet(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let batch = [order("a", 1, 5), order("b", 1, 5)];
    let reserve = |ledger: &mut Ledger, payers: &[&str]| {
        ledger.transact(|tx| tx.reserve(&batch[..payers.len()], payers, Attempt::Normal))
    };
    assert_eq!(reserve(&mut ledger, &["", ""])?, [OrderOutcome::Reserved; 2]);
    assert_eq!(ledger.apply(&batch)?, [OrderOutcome::Reserved; 2], "somebody may have paid");
    assert_eq!(reserve(&mut ledger, &["x"])?, [OrderOutcome::Reserved]);
    assert_eq!(reserve(&mut ledger, &["y", "y"])?, [OrderOutcome::Reserved; 2]);
    let stored = place.reader()?.orders_of(&ids(&["a", "b"]))?;
    let payers: Vec<_> = stored.into_iter().flatten().map(|order| order.payer).collect();
    assert_eq!(payers, ["x", "y"]);
    let state = ledger.budgets()?.remove(0);
    assert_eq!((state.used, state.reserved), (0, 10), "held once");
    clean(place)
}
