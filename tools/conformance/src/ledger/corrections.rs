//! Corrections: what was given wrongly is taken back from everybody, once, within what two operators agreed on.

use super::acts::{approve, by, propose, reversal, take, used};
use super::concurrent::all_at_once;
use super::{Outcome, Place, budget, clean, names, open, order, out, reserve, settled};
use std::error::Error;
use std::time::Duration;
use windfall_contract::accounts::{FlowKind, FlowLine, Status};
use windfall_ledger::{
    ActFilter, ActOutcome, Attempt, BudgetSet, CarriedOut, CarryOut, Correction, Deed, Ended, Ledger,
    LedgerError, Order, OrderId, OrderOutcome, Proposed, Selection, StoredAct, Survey, Totals,
};

/// Orders of 100 and more that were given in the first five seconds.
fn selection() -> Selection {
    Selection {
        activity: "spring".into(),
        scene: String::new(),
        bonus_type: "cash".into(),
        from_ms: 0,
        to_ms: 5_000,
        min_amount: 100,
        max_amount: 1_000,
    }
}

fn correction(max_orders: i64, max_taken: i64) -> Correction {
    Correction { selection: selection(), keep: 1, take_what_is_there: false, max_orders, max_taken }
}

fn survey(place: &dyn Place, which: &Selection, keep: i64) -> Result<Survey, Box<dyn Error>> {
    let reader = place.reader()?;
    let (mut sum, mut after) = (Survey::default(), String::new());
    loop {
        let part = reader.survey(which, keep, &after)?;
        sum.orders += part.orders;
        sum.amount += part.amount;
        sum.orders_of_payers += part.orders_of_payers;
        sum.short_orders += part.short_orders;
        sum.short_amount += part.short_amount;
        sum.orders_taken_back += part.orders_taken_back;
        sum.orders_reserved += part.orders_reserved;
        match part.next {
            Some(next) => after = next,
            None => return Ok(sum),
        }
    }
}

/// Proposes a correction, and has it approved.
fn approved(ledger: &mut Ledger, correction: Correction, evidence: &str) -> Result<i64, Box<dyn Error>> {
    let id = propose(ledger, Deed::Correct(correction), evidence)?;
    match approve(ledger, id)? {
        Ended::Now(StoredAct { end: Some(end), .. }) if end.outcome == ActOutcome::Done => Ok(id),
        other => Err(format!("{other:?}").into()),
    }
}

/// Carries out one pass, and sums its pages up.
fn pass(ledger: &mut Ledger, id: i64) -> Result<CarriedOut, LedgerError> {
    let (mut sum, mut after) = (CarriedOut::default(), String::new());
    loop {
        let page = match ledger.transact(|tx| tx.carry_out(id, &after, &by("bob"), 7_000)) {
            Err(LedgerError::Contended(_)) => continue,
            page => page?,
        };
        let page = match page {
            CarryOut::Page(page) => page,
            // Another writer carries a page out.
            CarryOut::Busy => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            other => panic!("{other:?}"),
        };
        sum = CarriedOut {
            orders: sum.orders + page.orders,
            taken: sum.taken + page.taken,
            short_orders: sum.short_orders + page.short_orders,
            short_amount: sum.short_amount + page.short_amount,
            ..page
        };
        match sum.next.clone() {
            Some(next) => after = next,
            None => return Ok(sum),
        }
    }
}

pub(super) fn takes_back(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(1_000_000, 3), BudgetSet { scene: "*", ..budget(1_000_000, 1) }])?;
    let names = names(2_300);
    // 2,300 users got 100 in place of 1.
    let wrong: Vec<Order<'_>> = (1..).zip(&names).map(|(user, name)| order(name, user, 100)).collect();
    ledger.apply(&wrong)?;
    // None of these are meant: another activity, another amount, another time, not credited.
    ledger.apply(&[
        Order { activity: "autumn", ..order(&names[0], 1, 100) },
        order("right", 1, 1),
        Order { time_ms: 5_000, ..order("later", 1, 100) },
    ])?;
    ledger
        .transact(|tx| reserve(tx, &[order("reserved", 1, 100), order("bank", 2, 500)], Attempt::Normal))?;
    ledger.transact(|tx| tx.post(&[super::id("bank")], 2_000))?;
    // User 3 has withdrawn all, user 4 a part; user 5's order was taken back before.
    for (user, amount) in [(3, 100), (4, 60)] {
        let id = format!("w{user}");
        let spent = take(&id, user, amount);
        ledger.transact(|tx| tx.hold(&[(&spent, "")], 2_000))?;
        ledger.transact(|tx| tx.pay_out(&[out(user, &id)], 2_000))?;
    }
    let before = propose(&mut ledger, reversal(&names[4], false), "a letter")?;
    approve(&mut ledger, before)?;
    let expected = Survey {
        orders: 2_299,
        amount: 2_299 * 99,
        orders_of_payers: 1,
        short_orders: 2,
        short_amount: 99 + 59,
        orders_taken_back: 1,
        orders_reserved: 1,
        next: None,
    };
    assert_eq!(survey(place, &selection(), 1)?, expected);
    let other = Selection { scene: "none".into(), ..selection() };
    assert_eq!(survey(place, &other, 1)?, Survey::default());
    let given = used(&ledger)?;
    let id = propose(&mut ledger, Deed::Correct(correction(2_299, expected.amount)), "ticket 1")?;
    let early = ledger.transact(|tx| tx.carry_out(id, "", &by("bob"), 7_000))?;
    assert!(matches!(early, CarryOut::NotApproved(_)), "{early:?}");
    assert!(matches!(approve(&mut ledger, id)?, Ended::Now(_)));
    assert_eq!(used(&ledger)?, given, "an approval takes nothing");
    let done = pass(&mut ledger, id)?;
    assert_eq!((done.orders, done.taken), (2_297, 2_297 * 99));
    assert_eq!((done.short_orders, done.short_amount), (2, 2 * 99));
    let Totals { orders, taken, short_orders, short_amount, .. } = done.all;
    assert_eq!((orders, taken, short_orders, short_amount), (2_297, 2_297 * 99, 2, 2 * 99));
    let again = pass(&mut ledger, id)?;
    assert_eq!((again.orders, again.taken, again.short_orders), (0, 0, 0), "all is decided");
    assert_eq!(again.all, done.all);
    let balances = [1, 2, 3, 4, 5, 6, 2_300].map(|user| ledger.balance(user, "cash"));
    let balances = balances.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(balances, [1 + 100 + 1 + 100, 1, 0, 40, 0, 1, 1]);
    assert_eq!((settled(place, "bank")?, used(&ledger)?), (500, given - done.taken), "a payer's part stays");
    // Nobody takes it back a second time, and it is never credited again.
    let why = ledger
        .transact(|tx| tx.propose_act(&super::acts::proposal(reversal(&names[9], true), "another letter")))?;
    assert!(matches!(&why, Proposed::NotPossible(why) if why.contains("reversed before")), "{why:?}");
    assert_eq!(ledger.apply(&[order(&names[9], 10, 100)])?, [OrderOutcome::AlreadyCredited]);
    assert_eq!(ledger.order(super::id(&names[9]))?.map(|order| order.status), Some(Status::Credited));
    let flow = ledger.flow(6, 9)?;
    assert_eq!((flow[0].kind, flow[0].amount), (FlowKind::TakenBack, 99));
    parts_are_acts(place, id)?;
    // Who was short is asked again by another correction, which takes what is there.
    let rest = Correction { take_what_is_there: true, ..correction(2, 2 * 99) };
    let rest = approved(&mut ledger, rest, "ticket 2")?;
    let done = pass(&mut ledger, rest)?;
    assert_eq!((done.orders, done.taken, done.short_orders, done.short_amount), (1, 40, 2, 99 + 59));
    // As a whole, what a payer paid is taken back, too. The budget has given out less than that by now: the rest stays.
    let all = Selection { min_amount: 500, ..selection() };
    let all = Correction { selection: all, keep: 0, ..correction(1, 500) };
    let left = used(&ledger)?;
    let out = Deed::Adjust {
        user_id: 6_000,
        activity: "spring".into(),
        scene: "rain".into(),
        bonus_type: "cash".into(),
        amount: left - 599,
        to_user: false,
    };
    ledger.apply(&[Order { scene: "snow", ..order("rich", 6_000, left) }])?;
    let adjusted = propose(&mut ledger, out, "a letter")?;
    approve(&mut ledger, adjusted)?;
    assert_eq!(used(&ledger)?, 599, "100 of them are another activity's");
    let refused = approved(&mut ledger, all.clone(), "ticket 3")?;
    let done = pass(&mut ledger, refused)?;
    assert_eq!((done.orders, done.short_orders, settled(place, "bank")?), (0, 1, 500));
    ledger.apply(&[Order { time_ms: 6_000, ..order("one-more", 8_000, 1) }])?;
    let done = approved(&mut ledger, all, "ticket 4")?;
    let done = pass(&mut ledger, done)?;
    assert_eq!((done.orders, done.taken, settled(place, "bank")?, used(&ledger)?), (1, 500, 0, 100));
    clean(place)
}

/// Each order that was decided is an act of its own, which lists of other acts do not show.
fn parts_are_acts(place: &dyn Place, id: i64) -> Outcome {
    let reader = place.reader()?;
    let (mut after, mut parts, mut short) = (0, 0, 0);
    loop {
        let page = reader.acts(&ActFilter { parent: id, after, limit: 700, ..ActFilter::default() })?;
        let Some(last) = page.last() else { break };
        after = last.id;
        for part in &page {
            let end = part.end.as_ref().ok_or("a part has ended")?;
            assert_eq!((part.parent, part.proposal.evidence.as_str()), (id, "ticket 1"));
            assert_eq!((part.proposal.operator.name.as_str(), end.operator.name.as_str()), ("ann", "bob"));
            parts += 1;
            short += i64::from(end.outcome == ActOutcome::NotDone);
        }
    }
    assert_eq!((parts, short), (2_299, 2));
    let all = reader.acts(&ActFilter { limit: 9, ..ActFilter::default() })?;
    assert_eq!(all.iter().map(|act| act.id).max(), Some(id));
    Ok(())
}

pub(super) fn within_its_limits(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 100), order("b", 2, 100)])?;
    for wrong in [
        Correction { keep: 100, ..correction(1, 1) },
        Correction { keep: -1, ..correction(1, 1) },
        Correction { selection: Selection { to_ms: 5_001, ..selection() }, ..correction(1, 1) },
        Correction { selection: Selection { from_ms: 5_000, ..selection() }, ..correction(1, 1) },
        Correction { selection: Selection { activity: String::new(), ..selection() }, ..correction(1, 1) },
        Correction { selection: Selection { max_amount: 99, ..selection() }, ..correction(1, 1) },
        correction(0, 1),
        correction(1, 0),
    ] {
        let asked = super::acts::proposal(Deed::Correct(wrong.clone()), "x");
        let refused = ledger.transact(|tx| tx.propose_act(&asked));
        assert!(matches!(refused, Err(LedgerError::Invalid(_))), "{wrong:?}: {refused:?}");
    }
    let bad = ledger.transact(|tx| tx.propose_act(&super::acts::proposal(reversal("a", false), "x")))?;
    let Proposed::Now(single) = bad else { panic!("{bad:?}") };
    assert!(matches!(
        ledger.transact(|tx| tx.carry_out(single.id, "", &by("bob"), 7_000))?,
        CarryOut::NoCorrection(_)
    ));
    assert!(matches!(ledger.transact(|tx| tx.carry_out(99, "", &by("bob"), 7_000))?, CarryOut::Unknown));
    // Less was approved than is there by now: nothing is taken, not even a part.
    for (orders, taken) in [(1, 2 * 99), (2, 2 * 99 - 1)] {
        let id = approved(&mut ledger, correction(orders, taken), &format!("{orders} {taken}"))?;
        let page = ledger.transact(|tx| tx.carry_out(id, "", &by("bob"), 7_000))?;
        assert!(matches!(page, CarryOut::TooMuch { orders: 0, taken: 0 }), "{page:?}");
    }
    assert_eq!((ledger.balance(1, "cash")?, ledger.balance(2, "cash")?), (100, 100));
    let id = approved(&mut ledger, correction(2, 2 * 99), "as many as there are")?;
    assert_eq!(pass(&mut ledger, id)?.taken, 2 * 99);
    // What was credited behind the proposal was not counted.
    ledger.transact(|tx| reserve(tx, &[order("d", 3, 100)], Attempt::Normal))?;
    ledger.transact(|tx| tx.post(&[super::id("d")], 5_500))?;
    let all = Correction { keep: 0, ..correction(9, 900) };
    let whole = approved(&mut ledger, all, "with payers")?;
    assert_eq!(pass(&mut ledger, whole)?.orders, 0);
    assert_eq!(settled(place, "bank")?, 100);
    // One that joins nevertheless, by a clock that is wrong, is beyond what was agreed on.
    ledger.apply(&[order("c", 3, 100)])?;
    let late = ledger.transact(|tx| tx.carry_out(id, "", &by("bob"), 99_000_000))?;
    assert!(matches!(late, CarryOut::Expired(_)), "{late:?}");
    let page = ledger.transact(|tx| tx.carry_out(id, "", &by("bob"), 7_000))?;
    assert!(matches!(page, CarryOut::TooMuch { orders: 2, taken: 198 }), "{page:?}");
    assert_eq!(ledger.balance(3, "cash")?, 100);
    clean(place)
}

/// Two corrections of the same orders, carried out by all writers, while orders are reversed, granted and withdrawn.
pub(super) fn at_once(place: &dyn Place) -> Outcome {
    const USERS: i64 = 7;
    let names = names(3_000);
    let (first, second, singles) = {
        let mut ledger = open(place)?;
        ledger.set_budgets(&[budget(1_000_000, 4), BudgetSet { scene: "*", ..budget(1_000_000, 1) }])?;
        // Of two scenes, and one in five paid by a payer.
        for (nth, chunk) in names.chunks(500).enumerate() {
            let scene = if nth % 2 == 0 { "rain" } else { "snow" };
            let orders = (0..).zip(chunk).map(|(at, name)| Order { scene, ..order(name, at % USERS, 100) });
            let orders: Vec<Order<'_>> = orders.collect();
            let (own, payers) = orders.split_at(400);
            ledger.apply(own)?;
            ledger.transact(|tx| reserve(tx, payers, Attempt::Normal))?;
            let paid: Vec<OrderId<'_>> = payers.iter().map(Order::id).collect();
            ledger.transact(|tx| tx.post(&paid, 2_000))?;
        }
        let singles =
            names.iter().step_by(40).map(|name| propose(&mut ledger, reversal(name, false), "a letter"));
        let singles = singles.collect::<Result<Vec<_>, _>>()?;
        let all = Correction { keep: 0, ..correction(3_000, 300_000) };
        (approved(&mut ledger, all.clone(), "one")?, approved(&mut ledger, all, "two")?, singles)
    };
    all_at_once(place, |nth, ledger| {
        let user = i64::try_from(nth).unwrap_or(0);
        for (at, id) in singles.iter().enumerate().filter(|(at, _)| at % 4 == nth) {
            loop {
                match ledger.transact(|tx| tx.approve_act(*id, &by("bob"), 6_000)) {
                    Err(LedgerError::Contended(_)) => {}
                    ended => break ended.map(drop)?,
                }
            }
            if at % 5 == 0 {
                pass(ledger, if nth % 2 == 0 { first } else { second })?;
            }
            // Orders that are not wrong, of the same budgets and the same users.
            let more = [format!("more/{nth}/{at}"), format!("other/{nth}/{at}")];
            let more = [order(&more[0], user, 1), Order { scene: "snow", ..order(&more[1], user + 1, 1) }];
            loop {
                match ledger.transact(|tx| tx.apply(&more, Attempt::Normal)) {
                    Err(LedgerError::Contended(_)) => {}
                    done => break done.map(drop)?,
                }
            }
            let asked = take(&format!("w/{nth}/{at}"), user, 1);
            ledger.transact(|tx| tx.hold(&[(&asked, "bank")], 6_000)).map(drop)?;
        }
        pass(ledger, first)?;
        pass(ledger, second).map(drop)
    })?;
    let mut ledger = open(place)?;
    let (one, two) = (pass(&mut ledger, first)?, pass(&mut ledger, second)?);
    let single = open_singles(place, &singles)?;
    assert_eq!((one.orders, two.orders), (0, 0), "all is decided");
    assert_eq!(one.all.orders + two.all.orders + single, 3_000, "each order is taken back once");
    // A user's statement is a chain of transfers, which several of a page and of both kinds must not break.
    let mut taken = 0;
    for user in 0..USERS {
        let flow = ledger.flow(user, 10_000)?;
        let back = |line: &&FlowLine| matches!(line.kind, FlowKind::TakenBack | FlowKind::SettledTakenBack);
        taken += flow.iter().filter(back).count();
    }
    assert_eq!(taken, 3_000, "each one stands in its user's statement");
    clean(place)
}

/// How many of these acts were done.
fn open_singles(place: &dyn Place, ids: &[i64]) -> Result<i64, Box<dyn Error>> {
    let reader = place.reader()?;
    let mut done = 0;
    for id in ids {
        let act = reader.act(*id)?.ok_or("it was proposed")?;
        done += i64::from(act.end.is_some_and(|end| end.outcome == ActOutcome::Done));
    }
    Ok(done)
}
