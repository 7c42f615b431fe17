//! Acts of two operators: done once, by what is true then.

use super::concurrent::all_at_once;
use super::{
    Outcome, Place, budget, clean, id as name, ids as all, names, open, order, out, reserve, settled,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use windfall_contract::accounts::{FlowKind, Reason, Status, Withdrawal, WithdrawalOutcome};
use windfall_ledger::{
    ActFilter, ActOutcome, Attempt, BudgetSet, Deed, Ended, Finish, HoldOutcome, Ledger, LedgerError,
    Operator, Order, OrderId, OrderOutcome, Proposal, Proposed, StoredAct, Subject, WithdrawalStatus,
};

const LONG: i64 = 1_000_000;

pub(super) fn by(name: &str) -> Operator {
    Operator { name: name.into(), actor: String::new() }
}

pub(super) fn proposal(deed: Deed, evidence: &str) -> Proposal {
    Proposal {
        deed,
        reason: "the payer never answers".into(),
        evidence: evidence.into(),
        operator: by("ann"),
        time_ms: 5_000,
        expires_ms: 5_000 + LONG,
    }
}

/// Proposes an act that was not there before.
pub(super) fn propose(ledger: &mut Ledger, deed: Deed, evidence: &str) -> Result<i64, Box<dyn Error>> {
    match ledger.transact(|tx| tx.propose_act(&proposal(deed.clone(), evidence)))? {
        Proposed::Now(act) => Ok(act.id),
        other => Err(format!("{other:?}").into()),
    }
}

pub(super) fn approve(ledger: &mut Ledger, id: i64) -> Result<Ended, LedgerError> {
    ledger.transact(|tx| tx.approve_act(id, &by("bob"), 6_000))
}

/// Proposes and approves it, and returns how it ended.
fn both(ledger: &mut Ledger, deed: Deed) -> Result<(ActOutcome, i64, String), Box<dyn Error>> {
    let id = propose(ledger, deed, "a statement")?;
    match approve(ledger, id)? {
        Ended::Now(StoredAct { end: Some(end), .. }) => Ok((end.outcome, end.amount, end.detail)),
        other => Err(format!("{other:?}").into()),
    }
}

fn not_possible(ledger: &mut Ledger, deed: Deed) -> Result<String, Box<dyn Error>> {
    match ledger.transact(|tx| tx.propose_act(&proposal(deed.clone(), "a statement")))? {
        Proposed::NotPossible(why) => Ok(why),
        other => Err(format!("{other:?}").into()),
    }
}

pub(super) fn reversal(trade_no: &str, take_what_is_there: bool) -> Deed {
    Deed::Reverse { activity: "spring".into(), trade_no: trade_no.into(), take_what_is_there, keep: 0 }
}

fn adjustment(user_id: i64, scene: &str, amount: i64, to_user: bool) -> Deed {
    let (activity, bonus_type) = ("spring".into(), "cash".into());
    Deed::Adjust { user_id, activity, scene: scene.into(), bonus_type, amount, to_user }
}

fn settle(trade_no: &str, paid: bool) -> Deed {
    Deed::SettleOrder { activity: String::new(), trade_no: trade_no.into(), paid }
}

pub(super) fn take(id: &str, user_id: i64, amount: i64) -> Withdrawal {
    Withdrawal { id: id.into(), user_id, bonus_type: "cash".into(), amount }
}

pub(super) fn used(ledger: &Ledger) -> Result<i64, LedgerError> {
    Ok(ledger.budgets()?.iter().filter(|one| one.scene == "rain").map(|one| one.used).sum())
}

pub(super) fn two_operators(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    assert_eq!(ledger.transact(|tx| tx.approve_act(1, &by("bob"), 6_000))?, Ended::Unknown);
    assert_eq!(place.reader()?.acts(&ActFilter { limit: 9, ..ActFilter::default() })?, []);
    let id = propose(&mut ledger, Deed::Freeze { user_id: 7 }, "ticket 1")?;
    let own = ledger.transact(|tx| tx.approve_act(id, &by("ann"), 6_000))?;
    assert!(matches!(own, Ended::SameOperator(_)), "{own:?}");
    let late = ledger.transact(|tx| tx.approve_act(id, &by("bob"), 5_000 + LONG))?;
    assert!(matches!(late, Ended::Expired(_)), "{late:?}");
    assert_eq!(place.reader()?.frozen(7)?, None);
    assert!(matches!(approve(&mut ledger, id)?, Ended::Now(_)));
    assert_eq!(place.reader()?.frozen(7)?, Some((id, 6_000)));
    for name in ["bob", "eve", "ann"] {
        let again = ledger.transact(|tx| tx.approve_act(id, &by(name), 7_000))?;
        let Ended::Before(act) = again else { panic!("{again:?}") };
        let end = act.end.ok_or("it has ended")?;
        assert_eq!((end.outcome, end.operator.name.as_str(), end.time_ms), (ActOutcome::Done, "bob", 6_000));
    }
    // Whoever proposes an act may take it back.
    let other = propose(&mut ledger, Deed::Thaw { user_id: 7 }, "ticket 2")?;
    let refused = ledger.transact(|tx| tx.refuse_act(other, &by("ann"), "too early", 6_000))?;
    assert!(matches!(refused, Ended::Now(_)), "{refused:?}");
    assert!(matches!(approve(&mut ledger, other)?, Ended::Before(_)));
    assert_eq!(place.reader()?.frozen(7)?.map(|(act, _)| act), Some(id));
    let open = ActFilter { parent: 0, open_at_ms: Some(6_000), after: 0, limit: 9 };
    assert_eq!(place.reader()?.acts(&open)?, []);
    let third = propose(&mut ledger, Deed::Thaw { user_id: 7 }, "ticket 3")?;
    let found = place.reader()?.acts(&open)?;
    assert_eq!(found.iter().map(|act| act.id).collect::<Vec<_>>(), [third]);
    assert_eq!(place.reader()?.acts(&ActFilter { open_at_ms: Some(5_000 + LONG), ..open })?, []);
    let all = place.reader()?.acts(&ActFilter { after: id, limit: 1, ..ActFilter::default() })?;
    assert_eq!(all.iter().map(|act| act.id).collect::<Vec<_>>(), [other]);
    let stored = place.reader()?.act(third)?.ok_or("no such act")?;
    assert_eq!(stored.proposal, proposal(Deed::Thaw { user_id: 7 }, "ticket 3"));
    clean(place)
}

pub(super) fn repeats(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 10)])?;
    let deed = adjustment(1, "", 3, true);
    let id = propose(&mut ledger, deed.clone(), "ticket 1")?;
    let mut again = |evidence: &str, time_ms| {
        let proposal = Proposal { time_ms, expires_ms: time_ms + LONG, ..proposal(deed.clone(), evidence) };
        ledger.transact(|tx| tx.propose_act(&proposal))
    };
    assert!(matches!(again("ticket 1", 6_000)?, Proposed::Before(act) if act.id == id));
    assert!(matches!(again("ticket 2", 6_000)?, Proposed::Now(act) if act.id != id));
    // Nobody approved it in time, so nothing was done.
    let Proposed::Now(anew) = again("ticket 1", 6_000 + LONG)? else { panic!("it had expired") };
    assert_ne!(anew.id, id);
    let ended = ledger.transact(|tx| tx.approve_act(anew.id, &by("bob"), 7_000 + LONG))?;
    assert!(matches!(ended, Ended::Now(_)), "{ended:?}");
    // What was done is not done again, however late it is asked for.
    let proposal = Proposal { time_ms: 99 * LONG, expires_ms: 100 * LONG, ..proposal(deed, "ticket 1") };
    let proposed = ledger.transact(|tx| tx.propose_act(&proposal))?;
    assert!(matches!(proposed, Proposed::Before(act) if act.id == anew.id));
    assert_eq!(ledger.balance(1, "cash")?, 13);
    clean(place)
}

pub(super) fn settle_orders(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(100, 3)])?;
    ledger.transact(|tx| {
        reserve(tx, &[order("p", 1, 10), order("r", 1, 20), order("x", 1, 30)], Attempt::Normal)?;
        tx.promise(&[order("e", 1, 5)], Attempt::Normal)
    })?;
    assert!(not_possible(&mut ledger, settle("none", true))?.contains("no such order"));
    assert!(not_possible(&mut ledger, settle("e", true))?.contains("waits for its event"));
    let other = Deed::SettleOrder { activity: "autumn".into(), trade_no: "p".into(), paid: true };
    assert!(not_possible(&mut ledger, other)?.contains("no such order of this activity"));
    assert_eq!(both(&mut ledger, settle("p", true))?.0, ActOutcome::Done);
    assert_eq!(both(&mut ledger, settle("r", false))?.0, ActOutcome::Done);
    assert_eq!((settled(place, "bank")?, used(&ledger)?, ledger.balance(1, "cash")?), (10, 10, 0));
    assert_eq!(ledger.order(name("p"))?.map(|order| order.status), Some(Status::Credited));
    assert_eq!(ledger.order(name("r"))?.map(|order| order.status), Some(Status::Rejected(Reason::Released)));
    // The payer answers after all: it has the same answer, or another one.
    let (posted, released) = ledger.transact(|tx| {
        Ok((
            tx.post(&all(&["p", "r"]), 7_000)?,
            tx.release(&[(name("p"), Reason::Released), (name("r"), Reason::Released)], 7_000)?,
        ))
    })?;
    assert_eq!(posted, [Finish::Before, Finish::Otherwise]);
    assert_eq!(released, [Finish::Otherwise, Finish::Before]);
    let by_act = |tx: &mut windfall_ledger::Tx<'_>, trade_no: &str| {
        tx.settled_by(Subject::Order { activity: "spring", trade_no })
    };
    let found = ledger.transact(|tx| Ok((by_act(tx, "p")?, by_act(tx, "r")?, by_act(tx, "x")?)))?;
    assert_eq!(
        (found.0.map(|one| one.0), found.1.map(|one| one.0), found.2),
        (Some(true), Some(false), None)
    );
    // A replay asks the payer again, and it refuses: from then on that is how the order ended, not the settlement.
    ledger.transact(|tx| reserve(tx, &[order("r", 1, 20)], Attempt::Replay))?;
    let refused = (name("r"), Reason::DownstreamRefused);
    assert_eq!(ledger.transact(|tx| tx.release(&[refused], 7_500))?, [Finish::Done]);
    assert_eq!(ledger.transact(|tx| by_act(tx, "r"))?, None);
    // Nor is it the settlement that ended it where a release came after it.
    ledger.transact(|tx| reserve(tx, &[order("r", 1, 20)], Attempt::Replay))?;
    let release = Deed::Release { activity: String::new(), trade_no: "r".into() };
    assert_eq!(both(&mut ledger, release)?.0, ActOutcome::Done);
    assert_eq!(ledger.transact(|tx| by_act(tx, "r"))?, None);
    // The payer answers between the proposal and the approval: what it said holds.
    let id = propose(&mut ledger, settle("x", false), "a letter")?;
    assert_eq!(ledger.transact(|tx| tx.post(&all(&["x"]), 5_500))?, [Finish::Done]);
    let Ended::Now(act) = approve(&mut ledger, id)? else { panic!("it was open") };
    let end = act.end.ok_or("it has ended")?;
    assert_eq!((end.outcome, end.amount), (ActOutcome::NotDone, 0));
    assert!(end.detail.contains("credited meanwhile"), "{}", end.detail);
    assert_eq!(settled(place, "bank")?, 40);
    // A release says nothing of whether it was paid, and settles nothing.
    ledger.transact(|tx| reserve(tx, &[order("z", 1, 1)], Attempt::Normal))?;
    let release = Deed::Release { activity: String::new(), trade_no: "z".into() };
    assert_eq!(both(&mut ledger, release)?.0, ActOutcome::Done);
    assert_eq!(ledger.transact(|tx| by_act(tx, "z"))?, None);
    clean(place)
}

pub(super) fn settle_withdrawals(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 10)])?;
    for id in ["p", "r", "x"] {
        let asked = take(id, 1, 2);
        assert_eq!(ledger.transact(|tx| tx.hold(&[(&asked, "bank")], 2_000))?, [HoldOutcome::Held]);
    }
    let deed = |id: &str, user_id, paid| Deed::SettleWithdrawal { user_id, withdrawal: id.into(), paid };
    assert!(not_possible(&mut ledger, deed("p", 2, true))?.contains("of this user"));
    assert!(not_possible(&mut ledger, deed("none", 0, true))?.contains("no such withdrawal"));
    assert_eq!(both(&mut ledger, deed("p", 0, true))?.1, 2);
    assert_eq!(both(&mut ledger, deed("r", 1, false))?.1, 2);
    assert_eq!(ledger.balance(1, "cash")?, 6);
    // Late answers move nothing.
    let late = ledger.transact(|tx| {
        Ok((tx.give_back(&[(out(1, "p"), "no")], 7_000)?, tx.pay_out(&[out(1, "r")], 7_000)?))
    })?;
    assert_eq!(late, (vec![Finish::Otherwise], vec![Finish::Otherwise]));
    let by_act = ledger.transact(|tx| tx.settled_by(Subject::Withdrawal { user_id: 1, id: "r" }))?;
    assert_eq!(by_act.map(|one| one.0), Some(false));
    let id = propose(&mut ledger, deed("x", 1, false), "a letter")?;
    ledger.transact(|tx| tx.pay_out(&[out(1, "x")], 5_500))?;
    let Ended::Now(act) = approve(&mut ledger, id)? else { panic!("it was open") };
    assert_eq!(act.end.map(|end| end.outcome), Some(ActOutcome::NotDone));
    assert_eq!(ledger.withdrawal(out(1, "x"))?.map(|one| one.status), Some(WithdrawalStatus::Paid));
    assert_eq!(ledger.balance(1, "cash")?, 6);
    clean(place)
}

/// What acts do to an order, or to a withdrawal, they do to that of its activity, or of its user, alone.
pub(super) fn same_number(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let autumn = |order: Order<'static>| Order { activity: "autumn", ..order };
    let other = |trade_no| OrderId { activity: "autumn", trade_no };
    ledger.set_budgets(&[budget(100, 3), BudgetSet { activity: "autumn", ..budget(100, 1) }])?;
    // An order "act" of an activity "5" is no act, and neither is a withdrawal "act" of user 5.
    ledger.apply(&[Order { activity: "5", ..order("act", 5, 9) }, order("w", 6, 9)])?;
    ledger.transact(|tx| {
        let both = [order("p", 1, 10), autumn(order("p", 2, 20)), order("r", 1, 3), autumn(order("r", 2, 4))];
        assert_eq!(reserve(tx, &both, Attempt::Normal)?, [OrderOutcome::Reserved; 4]);
        tx.apply(&[order("c", 1, 5), autumn(order("c", 2, 6))], Attempt::Normal)
    })?;
    let before = ledger.order(other("p"))?.ok_or("it is reserved")?;
    let why = not_possible(&mut ledger, settle("p", true))?;
    assert!(why.contains("autumn, spring"), "{why}");
    let of = |activity: &str, trade_no: &str, paid| Deed::SettleOrder {
        activity: activity.into(),
        trade_no: trade_no.into(),
        paid,
    };
    assert_eq!(both(&mut ledger, of("spring", "p", true))?.1, 10);
    assert_eq!(ledger.order(name("p"))?.map(|order| order.status), Some(Status::Credited));
    assert_eq!(ledger.order(other("p"))?, Some(before), "it is as it was");
    assert_eq!(settled(place, "bank")?, 10);
    let by_act = |tx: &mut windfall_ledger::Tx<'_>, activity| {
        tx.settled_by(Subject::Order { activity, trade_no: "p" })
    };
    let found = ledger.transact(|tx| Ok((by_act(tx, "spring")?, by_act(tx, "autumn")?)))?;
    assert!(found.0.is_some() && found.1.is_none(), "{found:?}");
    clean(place)?;
    // The other one ends by its payer, and one is released while the other is paid.
    assert_eq!(ledger.transact(|tx| tx.post(&[other("p")], 7_000))?, [Finish::Done]);
    let release = Deed::Release { activity: "autumn".into(), trade_no: "r".into() };
    assert_eq!(both(&mut ledger, release)?.1, 4);
    assert_eq!(ledger.transact(|tx| tx.post(&all(&["r"]), 7_000))?, [Finish::Done]);
    assert_eq!(settled(place, "bank")?, 33);
    // A reversal takes back that of its activity, and each is reversed once.
    for (activity, amount) in [("autumn", 6), ("spring", 5)] {
        let deed = Deed::Reverse {
            activity: activity.into(),
            trade_no: "c".into(),
            take_what_is_there: false,
            keep: 0,
        };
        assert_eq!(both(&mut ledger, deed.clone())?.1, amount, "{activity}");
        let again = ledger.transact(|tx| tx.propose_act(&proposal(deed.clone(), "another one")))?;
        assert!(matches!(&again, Proposed::NotPossible(why) if why.contains("reversed before")), "{again:?}");
        clean(place)?;
    }
    assert_eq!((ledger.balance(1, "cash")?, ledger.balance(2, "cash")?), (0, 0));
    same_id(&mut ledger)?;
    assert_eq!(both(&mut ledger, adjustment(5, "", 1, true))?.0, ActOutcome::Done);
    assert_eq!(ledger.flow(5, 1)?[0].trade_no.split(' ').next(), Some("act"));
    clean(place)
}

/// Users 5 and 6 have withdrawals of one id.
fn same_id(ledger: &mut Ledger) -> Outcome {
    let (five, six) = (take("act", 5, 2), take("act", 6, 3));
    ledger.transact(|tx| tx.hold(&[(&five, "bank"), (&six, "bank")], 2_000))?;
    let deed = |user_id| Deed::SettleWithdrawal { user_id, withdrawal: "act".into(), paid: false };
    let why = not_possible(ledger, deed(0))?;
    assert!(why.contains("5, 6"), "{why}");
    assert_eq!(both(ledger, deed(6))?.1, 3);
    let status = |ledger: &Ledger, user| {
        Ok::<_, LedgerError>(ledger.withdrawal(out(user, "act"))?.map(|one| one.status))
    };
    assert_eq!(status(ledger, 6)?, Some(WithdrawalStatus::Refused));
    assert_eq!(status(ledger, 5)?, Some(WithdrawalStatus::Held));
    assert_eq!((ledger.balance(5, "cash")?, ledger.balance(6, "cash")?), (7, 9));
    Ok(())
}

pub(super) fn reverse(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let combined = BudgetSet { scene: "*", ..budget(100, 1) };
    ledger.set_budgets(&[budget(60, 3), combined])?;
    ledger.apply(&[order("a", 1, 10), order("b", 1, 20), order("c", 1, 30)])?;
    assert!(not_possible(&mut ledger, reversal("none", false))?.contains("no such order"));
    assert_eq!(both(&mut ledger, reversal("a", false))?.1, 10);
    assert_eq!((ledger.balance(1, "cash")?, used(&ledger)?), (50, 50));
    assert!(not_possible(&mut ledger, reversal("a", true))?.contains("reversed before"));
    // It stays credited, so it is not credited again; its budget has room for another one.
    assert_eq!(ledger.apply(&[order("a", 1, 10)])?, [OrderOutcome::AlreadyCredited]);
    assert_eq!(ledger.apply(&[order("d", 2, 10)])?, [OrderOutcome::Credited]);
    let refused = OrderOutcome::Rejected(Reason::BudgetExhausted);
    assert_eq!(ledger.apply(&[order("f", 2, 1)])?, [refused]);
    // The user has spent a part.
    let spent = take("w", 1, 35);
    ledger.transact(|tx| tx.hold(&[(&spent, "")], 2_000))?;
    ledger.transact(|tx| tx.pay_out(&[out(1, "w")], 2_000))?;
    let (outcome, amount, detail) = both(&mut ledger, reversal("c", false))?;
    assert_eq!((outcome, amount), (ActOutcome::NotDone, 0));
    assert!(detail.contains("lacks 15"), "{detail}");
    assert_eq!(ledger.balance(1, "cash")?, 15);
    let (outcome, amount, detail) = both(&mut ledger, reversal("c", true))?;
    assert_eq!((outcome, amount), (ActOutcome::Done, 15));
    assert!(detail.contains("15 of 30"), "{detail}");
    assert_eq!((ledger.balance(1, "cash")?, used(&ledger)?), (0, 45));
    let (outcome, _, detail) = both(&mut ledger, reversal("b", true))?;
    assert_eq!(outcome, ActOutcome::NotDone, "{detail}");
    // The next credit hangs on the reversals.
    ledger.apply(&[order("g", 1, 1)])?;
    let flow = ledger.flow(1, 9)?;
    let lines: Vec<_> = flow.iter().map(|line| (line.kind, line.trade_no.as_str(), line.amount)).collect();
    let back = FlowKind::TakenBack;
    assert_eq!(lines[..3], [(FlowKind::Credit, "g", 1), (back, "c", 15), (FlowKind::Withdrawal, "w", 35)]);
    assert_eq!(lines[3], (back, "a", 10));
    clean(place)
}

pub(super) fn reverse_settled(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(100, 3)])?;
    ledger.transact(|tx| {
        reserve(tx, &[order("p", 1, 10)], Attempt::Normal)?;
        tx.post(&all(&["p"]), 2_000)
    })?;
    ledger.apply(&[order("a", 1, 7)])?;
    assert_eq!(both(&mut ledger, reversal("p", true))?.1, 10);
    assert_eq!((settled(place, "bank")?, used(&ledger)?, ledger.balance(1, "cash")?), (0, 7, 7));
    let flow = ledger.flow(1, 9)?;
    assert_eq!((flow[0].kind, flow[0].amount), (FlowKind::SettledTakenBack, 10));
    clean(place)
}

pub(super) fn adjust(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(20, 2)])?;
    ledger.apply(&[order("a", 1, 10)])?;
    // User 2 has no account yet.
    for (user_id, scene, amount, to_user, expected) in [
        (2, "rain", 10, true, ActOutcome::Done),
        (1, "rain", 1, true, ActOutcome::NotDone),
        (2, "", 5, true, ActOutcome::Done),
        (2, "", 16, false, ActOutcome::NotDone),
        (2, "", 12, false, ActOutcome::Done),
        (1, "rain", 4, false, ActOutcome::Done),
        (3, "rain", 1, false, ActOutcome::NotDone),
    ] {
        let deed = adjustment(user_id, scene, amount, to_user);
        let (outcome, moved, detail) = both(&mut ledger, deed.clone())?;
        assert_eq!(
            (outcome, moved),
            (expected, if expected == ActOutcome::Done { amount } else { 0 }),
            "{deed:?} {detail}"
        );
    }
    assert_eq!((ledger.balance(1, "cash")?, ledger.balance(2, "cash")?, used(&ledger)?), (6, 3, 16));
    // More than the budget has given out.
    both(&mut ledger, adjustment(1, "", 50, true))?;
    let (outcome, _, detail) = both(&mut ledger, adjustment(1, "rain", 17, false))?;
    assert_eq!(outcome, ActOutcome::NotDone);
    assert!(detail.contains("given out less"), "{detail}");
    let unknown = Deed::Adjust {
        user_id: 1,
        activity: "none".into(),
        scene: String::new(),
        bonus_type: "cash".into(),
        amount: 1,
        to_user: true,
    };
    assert_eq!(both(&mut ledger, unknown)?.0, ActOutcome::NotDone);
    let bad = ledger.transact(|tx| tx.propose_act(&proposal(adjustment(1, "", 0, true), "x")));
    assert!(matches!(bad, Err(LedgerError::Invalid(_))), "{bad:?}");
    clean(place)
}

pub(super) fn freeze(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 10), order("b", 2, 10)])?;
    let held = take("before", 1, 1);
    ledger.transact(|tx| tx.hold(&[(&held, "bank")], 2_000))?;
    assert_eq!(both(&mut ledger, Deed::Freeze { user_id: 1 })?.0, ActOutcome::Done);
    let batch = [take("before", 1, 1), take("x", 1, 1), take("y", 2, 1)];
    let all: Vec<(&Withdrawal, &str)> = batch.iter().map(|one| (one, "bank")).collect();
    let frozen = HoldOutcome::Decided(WithdrawalOutcome::Frozen);
    let before = HoldOutcome::HeldBefore { payer: "bank".into() };
    assert_eq!(ledger.transact(|tx| tx.hold(&all, 3_000))?, [before, frozen, HoldOutcome::Held]);
    assert_eq!(ledger.withdrawal(out(1, "x"))?, None, "nothing is kept, so the id may be used again");
    // What was held before goes on, either way; and grants.
    assert_eq!(ledger.transact(|tx| tx.give_back(&[(out(1, "before"), "no")], 3_000))?, [Finish::Done]);
    assert_eq!(ledger.apply(&[order("c", 1, 5)])?, [OrderOutcome::Credited]);
    assert_eq!(ledger.balance(1, "cash")?, 15);
    let again = Deed::Freeze { user_id: 1 };
    let id = propose(&mut ledger, again, "another letter")?;
    let Ended::Now(act) = approve(&mut ledger, id)? else { panic!("it was open") };
    assert_eq!(act.end.map(|end| end.outcome), Some(ActOutcome::NotDone));
    assert_eq!(both(&mut ledger, Deed::Thaw { user_id: 1 })?.0, ActOutcome::Done);
    assert_eq!(ledger.transact(|tx| tx.hold(&[(&batch[1], "bank")], 4_000))?, [HoldOutcome::Held]);
    clean(place)
}

pub(super) fn at_once(place: &dyn Place) -> Outcome {
    let names = names(20);
    let ids = {
        let mut ledger = open(place)?;
        ledger.set_budgets(&[budget(200, 4)])?;
        let orders: Vec<Order<'_>> = names.iter().map(|name| order(name, 1, 10)).collect();
        ledger.apply(&orders)?;
        let mut ids = Vec::new();
        for name in &names {
            // Two acts for one order: one of them is done.
            ids.push(propose(&mut ledger, reversal(name, false), "one")?);
            ids.push(propose(&mut ledger, reversal(name, false), "two")?);
        }
        ids
    };
    let (done, now) = (AtomicUsize::new(0), AtomicUsize::new(0));
    all_at_once(place, |nth, ledger| {
        let mut own = ids.clone();
        own.rotate_left(nth * 7);
        for (at, id) in own.into_iter().enumerate() {
            let ended = loop {
                match ledger.transact(|tx| tx.approve_act(id, &by(&format!("bob {nth}")), 6_000)) {
                    Err(LedgerError::Contended(_)) => {}
                    ended => break ended?,
                }
            };
            if let Ended::Now(act) = &ended {
                now.fetch_add(1, Ordering::Relaxed);
                if act.end.as_ref().is_some_and(|end| end.outcome == ActOutcome::Done) {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
            assert!(matches!(ended, Ended::Now(_) | Ended::Before(_)), "{ended:?}");
            // Grants and withdrawals go on.
            let more = format!("more/{nth}/{at}");
            ledger.transact(|tx| tx.apply(&[order(&more, 2, 1)], Attempt::Normal))?;
        }
        Ok(())
    })?;
    assert_eq!(
        (now.into_inner(), done.into_inner()),
        (40, 20),
        "each act ends once, each order is reversed once"
    );
    assert_eq!(open(place)?.balance(1, "cash")?, 0);
    clean(place)
}

pub(super) fn freeze_at_once(place: &dyn Place) -> Outcome {
    const USERS: i64 = 12;
    let acts = {
        let mut ledger = open(place)?;
        let names = names(12);
        let orders: Vec<Order<'_>> =
            (0..USERS).zip(&names).map(|(user, name)| order(name, user, 100)).collect();
        ledger.apply(&orders)?;
        (0..USERS)
            .map(|user_id| propose(&mut ledger, Deed::Freeze { user_id }, "one"))
            .collect::<Result<Vec<_>, _>>()?
    };
    all_at_once(place, |nth, ledger| {
        for (user_id, act) in (0..USERS).zip(&acts) {
            if nth == 0 {
                loop {
                    match approve(ledger, *act) {
                        Err(LedgerError::Contended(_)) => {}
                        ended => {
                            ended?;
                            break;
                        }
                    }
                }
            }
            // Frozen as far as this one knows, or not: but behind the freeze nothing is held.
            let seen =
                ledger.reader().ok().and_then(|reader| reader.frozen(user_id).ok().flatten()).is_some();
            let asked = take(&format!("w/{nth}/{user_id}"), user_id, 1);
            let outcome = ledger.transact(|tx| tx.hold(&[(&asked, "bank")], 3_000))?;
            if seen || nth == 0 {
                assert_eq!(outcome, [HoldOutcome::Decided(WithdrawalOutcome::Frozen)]);
            }
        }
        Ok(())
    })?;
    clean(place)
}

/// A small generator; the seed is in the message of a failure.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What the ledger should say of users and of a budget.
#[derive(Default)]
struct Model {
    balances: BTreeMap<i64, i64>,
    used: i64,
    credited: BTreeMap<String, (i64, i64)>,
    reversed: Vec<String>,
    frozen: BTreeMap<i64, bool>,
}

pub(super) fn random(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(100_000, 3)])?;
    ledger.apply(&[order("first", 0, 1)])?;
    let mut model = Model { used: 1, ..Model::default() };
    model.balances.insert(0, 1);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for step in 0..250_u32 {
        let user = i64::try_from(dice.roll(3))?;
        let amount = 1 + i64::try_from(dice.roll(30))?;
        one_step(&mut ledger, &mut model, &mut dice, (step, user, amount))?;
        for user in 0..3 {
            let own = model.balances.get(&user).copied().unwrap_or(0);
            assert_eq!(ledger.balance(user, "cash")?, own, "step {step}, user {user}");
        }
        assert_eq!(used(&ledger)?, model.used, "step {step}");
        if step % 50 == 0 {
            clean(place)?;
        }
    }
    clean(place)
}

fn one_step(
    ledger: &mut Ledger,
    model: &mut Model,
    dice: &mut Dice,
    (step, user, amount): (u32, i64, i64),
) -> Outcome {
    let balance = model.balances.entry(user).or_default();
    let evidence = format!("step {step}");
    let act = |ledger: &mut Ledger, deed: Deed| -> Result<Option<i64>, Box<dyn Error>> {
        let proposed = ledger.transact(|tx| tx.propose_act(&proposal(deed.clone(), &evidence)))?;
        let Proposed::Now(act) = proposed else { return Ok(None) };
        let Ended::Now(act) = approve(ledger, act.id)? else { panic!("it was open") };
        let end = act.end.ok_or("it has ended")?;
        Ok((end.outcome == ActOutcome::Done).then_some(end.amount))
    };
    match dice.roll(7) {
        0 | 1 => {
            let trade_no = format!("o/{step}");
            assert_eq!(ledger.apply(&[order(&trade_no, user, amount)])?, [OrderOutcome::Credited]);
            *balance += amount;
            model.used += amount;
            model.credited.insert(trade_no, (user, amount));
        }
        2 => {
            let asked = take(&format!("w/{step}"), user, amount);
            let outcome = ledger.transact(|tx| tx.hold(&[(&asked, "bank")], 3_000))?;
            let expected = if model.frozen.get(&user) == Some(&true) {
                HoldOutcome::Decided(WithdrawalOutcome::Frozen)
            } else if *balance >= amount {
                *balance -= amount;
                HoldOutcome::Held
            } else {
                HoldOutcome::Decided(WithdrawalOutcome::Short { balance: *balance })
            };
            assert_eq!(outcome, [expected]);
        }
        3 => {
            let at = usize::try_from(dice.roll(100))? % model.credited.len().max(1);
            let Some((trade_no, (owner, amount))) = model.credited.iter().nth(at) else { return Ok(()) };
            let partly = dice.roll(2) == 0;
            let own = model.balances.get(owner).copied().unwrap_or(0);
            let expected = match (model.reversed.contains(trade_no), own >= *amount, partly && own > 0) {
                (true, ..) | (false, false, false) => None,
                (false, true, _) => Some(*amount),
                (false, false, true) => Some(own),
            };
            assert_eq!(act(ledger, reversal(trade_no, partly))?, expected, "step {step}");
            if let Some(taken) = expected {
                *model.balances.entry(*owner).or_default() -= taken;
                model.used -= taken;
                model.reversed.push(trade_no.clone());
            }
        }
        4 => {
            let (scene, to_user) = (if dice.roll(2) == 0 { "rain" } else { "" }, dice.roll(2) == 0);
            let is_done = to_user || (*balance >= amount && (scene.is_empty() || model.used >= amount));
            assert_eq!(act(ledger, adjustment(user, scene, amount, to_user))?, is_done.then_some(amount));
            if is_done {
                let change = if to_user { amount } else { -amount };
                *balance += change;
                model.used += if scene.is_empty() { 0 } else { change };
            }
        }
        5 => {
            let to = dice.roll(2) == 0;
            let deed = if to { Deed::Freeze { user_id: user } } else { Deed::Thaw { user_id: user } };
            let was = model.frozen.insert(user, to).unwrap_or(false);
            assert_eq!(act(ledger, deed)?, (was != to).then_some(0), "step {step}");
        }
        _ => {
            let (trade_no, paid) = (format!("s/{step}"), dice.roll(2) == 0);
            ledger.transact(|tx| reserve(tx, &[order(&trade_no, user, amount)], Attempt::Normal))?;
            assert_eq!(act(ledger, settle(&trade_no, paid))?, Some(amount));
            model.used += if paid { amount } else { 0 };
        }
    }
    Ok(())
}
