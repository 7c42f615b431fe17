//! Withdrawals: held once for each id, never below 0, then paid or given back.

use super::concurrent::all_at_once;
use super::{Outcome, Place, clean, id, names, open, order, out};
use std::sync::atomic::{AtomicI64, Ordering};
use windfall_contract::accounts::{FlowKind, Withdrawal, WithdrawalOutcome};
use windfall_ledger::{
    Attempt, FRONT_END, Finish, HeldByTime, HeldCursor, HeldFor, HoldOutcome, Ledger, LedgerError, Order,
    OrderOutcome, WithdrawalStatus,
};

fn take(id: &str, user_id: i64, amount: i64) -> Withdrawal {
    Withdrawal { id: id.to_owned(), user_id, bonus_type: "cash".to_owned(), amount }
}

/// Withdrawals that the ledger itself pays.
fn own(batch: &[Withdrawal]) -> Vec<(&Withdrawal, &str)> {
    batch.iter().map(|one| (one, "")).collect()
}

fn hold(ledger: &mut Ledger, batch: &[Withdrawal]) -> Result<Vec<HoldOutcome>, LedgerError> {
    ledger.transact(|tx| tx.hold(&own(batch), 2_000))
}

const CONFLICT: HoldOutcome = HoldOutcome::Decided(WithdrawalOutcome::Conflict);

const fn short(balance: i64) -> HoldOutcome {
    HoldOutcome::Decided(WithdrawalOutcome::Short { balance })
}

pub(super) fn once(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 10), order("b", 2, 10)])?;
    assert_eq!(hold(&mut ledger, &[take("x", 1, 4)])?, [HoldOutcome::Held]);
    let others = [
        take("x", 1, 4),
        take("x", 1, 3),
        Withdrawal { bonus_type: "coin".into(), ..take("x", 1, 4) },
        // As large as everything, and as nobody has.
        take("y", 1, 7),
        Withdrawal { bonus_type: "coin".into(), ..take("y", 1, 1) },
        take("y", 3, 1),
    ];
    for _ in 0..2 {
        let expected =
            [HoldOutcome::HeldBefore { payer: "".into() }, CONFLICT, CONFLICT, short(6), short(0), short(0)];
        assert_eq!(hold(&mut ledger, &others)?, expected);
        drop(ledger);
        ledger = open(place)?;
    }
    assert_eq!(ledger.withdrawal(out(1, "y"))?, None, "nothing of what was short is kept");
    assert_eq!(hold(&mut ledger, &[take("y", 1, 6)])?, [HoldOutcome::Held], "the id may be used again");
    assert_eq!(ledger.balance(1, "cash")?, 0);
    clean(place)
}

/// An id belongs to its user: another user's is held, ended and shown by itself, also in one call. Each has a key for its
/// payer that no other has.
pub(super) fn users(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 10), order("b", 2, 10)])?;
    let batch = [take("x", 1, 4), take("x", 2, 4), take("x", 2, 4), take("x", 1, 5)];
    let hold = |ledger: &mut Ledger, tenant: &str| {
        ledger.transact(|tx| {
            tx.name_tenant(tenant);
            tx.hold(&batch.iter().map(|one| (one, "bank")).collect::<Vec<_>>(), 2_000)
        })
    };
    let before = HoldOutcome::HeldBefore { payer: "bank".into() };
    assert_eq!(hold(&mut ledger, "acme")?, [HoldOutcome::Held, HoldOutcome::Held, before.clone(), CONFLICT]);
    // The key that a payer was given stays, whatever the tenant is called later.
    assert_eq!(hold(&mut ledger, "rival")?, [before.clone(), before.clone(), before, CONFLICT]);
    let held = place.reader()?.held_withdrawals(HeldFor::Anybody, 3_000, "", 9)?;
    let keys: Vec<&str> = held.iter().map(|one| one.payer_key.as_str()).collect();
    assert_eq!(keys, ["withdrawal acme 1 x", "withdrawal acme 2 x"]);
    let last = place.reader()?.held_withdrawals(HeldFor::Anybody, 3_000, &held[0].key, 9)?;
    assert_eq!(last, held[1..]);
    let (paid, back) = ledger.transact(|tx| {
        let paid = tx.pay_out(&[out(2, "x"), out(3, "x")], 3_000)?;
        Ok((paid, tx.give_back(&[(out(1, "x"), "no"), (out(2, "x"), "no")], 3_000)?))
    })?;
    assert_eq!(paid, [Finish::Done, Finish::Unknown]);
    assert_eq!(back, [Finish::Done, Finish::Otherwise]);
    assert_eq!((ledger.balance(1, "cash")?, ledger.balance(2, "cash")?), (10, 6));
    let flow = place.reader()?.flow(1, 9)?;
    assert!(flow[..2].iter().all(|line| line.trade_no == "x"), "{flow:?}");
    clean(place)
}

pub(super) fn ends(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 10)])?;
    hold(&mut ledger, &[take("x", 1, 4), take("y", 1, 6)])?;
    for first in [Finish::Done, Finish::Before] {
        let (paid, refused, other) = ledger.transact(|tx| {
            Ok((
                tx.pay_out(&[out(1, "x"), out(1, "x"), out(1, "none")], 3_000)?,
                tx.give_back(
                    &[(out(1, "y"), "closed account"), (out(1, "y"), "again"), (out(1, "x"), "late")],
                    3_000,
                )?,
                tx.pay_out(&[out(1, "y")], 3_000)?,
            ))
        })?;
        assert_eq!(paid, [first, Finish::Before, Finish::Unknown]);
        assert_eq!(refused, [first, Finish::Before, Finish::Otherwise]);
        assert_eq!(other, [Finish::Otherwise]);
    }
    let again = [take("x", 1, 4), take("y", 1, 6), take("y", 1, 5)];
    let refused = HoldOutcome::Decided(WithdrawalOutcome::Refused("closed account".into()));
    let paid = HoldOutcome::Decided(WithdrawalOutcome::AlreadyPaid);
    assert_eq!(hold(&mut ledger, &again)?, [paid, refused, CONFLICT]);
    assert_eq!(ledger.balance(1, "cash")?, 6);
    let stored = ledger.withdrawal(out(1, "x"))?.ok_or("no such withdrawal")?;
    assert_eq!(stored.withdrawal, take("x", 1, 4));
    assert_eq!(
        (stored.status, stored.created_ms, stored.decided_ms),
        (WithdrawalStatus::Paid, 2_000, Some(3_000))
    );
    // The next credit hangs on the movements, and they on the one before.
    ledger.apply(&[order("b", 1, 1)])?;
    let flow = place.reader()?.flow(1, 10)?;
    let lines: Vec<_> = flow.iter().map(|line| (line.kind, line.trade_no.as_str(), line.amount)).collect();
    let expected = [
        (FlowKind::Credit, "b", 1),
        (FlowKind::Return, "y", 6),
        (FlowKind::Withdrawal, "y", 6),
        (FlowKind::Withdrawal, "x", 4),
        (FlowKind::Credit, "a", 10),
    ];
    assert_eq!(lines, expected);
    assert_eq!(ledger.flow(1, 2)?, flow[..2]);
    clean(place)
}

pub(super) fn held(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 10)])?;
    let by = |ledger: &mut Ledger, id, amount, payer, time_ms| {
        let asked = take(id, 1, amount);
        ledger.transact(|tx| tx.hold(&[(&asked, payer)], time_ms))
    };
    for (id, amount, payer, time_ms) in
        [("c", 1, "bank", 2_000), ("a", 2, "", 1_000), ("b", 3, "bank", 3_000)]
    {
        assert_eq!(by(&mut ledger, id, amount, payer, time_ms)?, [HoldOutcome::Held]);
    }
    let before = |payer: &str| [HoldOutcome::HeldBefore { payer: payer.into() }];
    assert_eq!(by(&mut ledger, "c", 1, "till", 4_000)?, before("bank"));
    assert_eq!(by(&mut ledger, "a", 2, "till", 4_000)?, before(""));
    let bad = by(&mut ledger, "d", 1, "no\0", 1);
    assert!(matches!(bad, Err(LedgerError::Invalid(_))), "{bad:?}");
    let listed = |before_ms,
                  after: &str,
                  limit|
     -> Result<Vec<(String, String)>, Box<dyn std::error::Error>> {
        let found = place.reader()?.held_withdrawals(HeldFor::Anybody, before_ms, after, limit)?;
        assert!(found.iter().all(|one| one.status == WithdrawalStatus::Held && one.withdrawal.user_id == 1));
        Ok(found.into_iter().map(|one| (one.withdrawal.id, one.payer)).collect())
    };
    let pair = |id: &str, payer: &str| (id.to_owned(), payer.to_owned());
    assert_eq!(listed(3_001, "", 9)?, [pair("a", ""), pair("b", "bank"), pair("c", "bank")]);
    assert_eq!(listed(3_000, "", 9)?, [pair("a", ""), pair("c", "bank")], "since before");
    let first = place.reader()?.held_withdrawals(HeldFor::Anybody, 3_001, "", 1)?.remove(0).key;
    assert_eq!(listed(3_001, &first, 1)?, [pair("b", "bank")]);
    ledger.transact(|tx| {
        tx.pay_out(&[out(1, "b")], 5_000)?;
        tx.give_back(&[(out(1, "c"), "closed account")], 5_000)
    })?;
    assert_eq!(listed(9_000, "", 9)?, [pair("a", "")]);
    // A front end's are told from all others, page by page.
    for id in ["e", "f"] {
        assert_eq!(by(&mut ledger, id, 1, FRONT_END, 6_000)?, [HoldOutcome::Held]);
    }
    assert_eq!(by(&mut ledger, "g", 1, "bank", 6_000)?, [HoldOutcome::Held]);
    let of = |which, after: &str, limit| -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let found = place.reader()?.held_withdrawals(which, 9_000, after, limit)?;
        Ok(found.into_iter().map(|one| one.withdrawal.id).collect())
    };
    assert_eq!(of(HeldFor::FrontEnd, "", 1)?, ["e"]);
    assert_eq!(of(HeldFor::FrontEnd, "e 1", 9)?, ["f"]);
    assert_eq!(of(HeldFor::Downstream, "", 9)?, ["a", "g"], "an unknown payer is no front end");
    assert_eq!(of(HeldFor::Anybody, "", 9)?, ["a", "e", "f", "g"]);
    assert_eq!(place.reader()?.withdrawal(out(1, "c"))?.map(|one| one.payer), Some("bank".into()));
    clean(place)
}

/// Of all users, in the order of time either way, in pages of any size, and of a part of the time.
pub(super) fn held_by_time(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 20), order("b", 2, 20)])?;
    for (id, user_id, time_ms) in [
        ("d", 1, 1_000),
        ("c", 2, 3_000),
        ("x", 1, 2_000),
        ("y", 2, 2_000),
        ("a/b", 2, 1_500),
        ("paid", 1, 1_200),
    ] {
        let asked = take(id, user_id, 1);
        ledger.transact(|tx| tx.hold(&[(&asked, "bank")], time_ms))?;
    }
    ledger.transact(|tx| tx.pay_out(&[out(1, "paid")], 5_000))?;
    let reader = place.reader()?;
    let listed = |from_ms: i64,
                  to_ms: i64,
                  newest_first: bool,
                  limit: u32|
     -> Result<Vec<(String, i64)>, Box<dyn std::error::Error>> {
        let mut which = HeldByTime { from_ms, to_ms, newest_first, after: None, limit };
        let mut found = Vec::new();
        loop {
            let page = reader.held_page(&which)?;
            assert!(page.withdrawals.len() <= usize::try_from(limit)?);
            found.extend(page.withdrawals.into_iter().map(|one| (one.withdrawal.id, one.withdrawal.user_id)));
            let Some(next) = page.next else { return Ok(found) };
            let next: HeldCursor = next.to_string().parse()?;
            which.after = Some(next);
        }
    };
    let oldest = [("d", 1), ("a/b", 2), ("x", 1), ("y", 2), ("c", 2)];
    let oldest: Vec<(String, i64)> = oldest.into_iter().map(|(id, user)| (id.to_owned(), user)).collect();
    let newest: Vec<(String, i64)> = oldest.iter().rev().cloned().collect();
    for limit in [1, 2, 5, 100] {
        assert_eq!(listed(0, i64::MAX, false, limit)?, oldest, "by {limit}");
        assert_eq!(listed(0, i64::MAX, true, limit)?, newest, "by {limit}");
        assert_eq!(listed(1_500, 3_000, false, limit)?, oldest[1..4], "by {limit}");
        assert_eq!(listed(1_500, 3_000, true, limit)?, newest[1..4], "by {limit}");
    }
    assert!(listed(3_001, i64::MAX, true, 9)?.is_empty());
    clean(place)
}

pub(super) fn within_a_transaction(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 3)])?;
    let mut tx = ledger.begin()?;
    tx.apply(&[order("b", 1, 3), order("c", 2, 5)], Attempt::Normal)?;
    let batch = [take("x", 1, 7), take("x", 1, 2), take("x", 1, 2), take("y", 1, 4), take("z", 2, 6)];
    let expected = [
        short(6),
        HoldOutcome::Held,
        HoldOutcome::HeldBefore { payer: "".into() },
        HoldOutcome::Held,
        short(5),
    ];
    assert_eq!(tx.hold(&own(&batch), 2_000)?, expected, "what it credited before counts");
    assert_eq!(tx.pay_out(&[out(1, "x")], 2_000)?, [Finish::Done]);
    assert_eq!(tx.apply(&[order("d", 1, 9)], Attempt::Normal)?, [OrderOutcome::Credited]);
    tx.commit()?;
    assert_eq!((ledger.balance(1, "cash")?, ledger.balance(2, "cash")?), (9, 5));
    assert_eq!(ledger.flow(1, 10)?.len(), 5);
    for bad in [
        take("", 1, 1),
        take("v", 1, 0),
        take("v\0", 1, 1),
        take("v 1", 1, 1),
        Withdrawal { bonus_type: String::new(), ..take("v", 1, 1) },
    ] {
        let refused = hold(&mut ledger, &[bad]);
        assert!(matches!(refused, Err(LedgerError::Invalid(_))), "{refused:?}");
    }
    assert_eq!(hold(&mut ledger, &[])?, []);
    clean(place)
}

pub(super) fn not_committed(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 3)])?;
    for steps in 1..4 {
        let mut tx = ledger.begin()?;
        tx.hold(&own(&[take("x", 1, 2)]), 2_000)?;
        if steps > 1 {
            tx.pay_out(&[out(1, "x")], 2_000)?;
        }
        if steps > 2 {
            tx.apply(&[order("b", 1, 3)], Attempt::Normal)?;
        }
        drop(tx);
        assert_eq!((ledger.withdrawal(out(1, "x"))?, ledger.balance(1, "cash")?), (None, 3));
        assert_eq!(ledger.flow(1, 10)?.len(), 1);
    }
    assert_eq!(hold(&mut ledger, &[take("x", 1, 3)])?, [HoldOutcome::Held]);
    clean(place)
}

/// The same withdrawals of a few users in the hands of all, while all credit the same users.
pub(super) fn at_once(place: &dyn Place) -> Outcome {
    let (orders, ids) = (names(400), (0..200).map(|nth| format!("out/{nth:03}")).collect::<Vec<_>>());
    let (held, ended) = (AtomicI64::new(0), AtomicI64::new(0));
    let amount = |nth: usize| 1 + i64::try_from(nth % 4).unwrap_or(0);
    let user = |nth: usize| i64::try_from(nth % 3).unwrap_or(0);
    all_at_once(place, |writer, ledger| {
        for (round, part) in orders.chunks(20).enumerate() {
            let credits: Vec<Order<'_>> = (round * 20..)
                .zip(part)
                .map(|(nth, name)| order(name, user(nth), 1))
                .skip(writer % 2)
                .collect();
            ledger.apply(&credits)?;
            let batch: Vec<Withdrawal> = (0..ids.len())
                .skip(round % 7 + writer)
                .step_by(9)
                .map(|nth| take(&ids[nth], user(nth), amount(nth)))
                .collect();
            let outcomes = ledger.transact(|tx| tx.hold(&own(&batch), 2_000))?;
            for (outcome, asked) in outcomes.iter().zip(&batch) {
                match outcome {
                    HoldOutcome::Held => drop(held.fetch_add(asked.amount, Ordering::Relaxed)),
                    HoldOutcome::Decided(WithdrawalOutcome::Short { balance }) => {
                        assert!((0..asked.amount).contains(balance));
                    }
                    HoldOutcome::Decided(WithdrawalOutcome::Conflict) => panic!("{asked:?}"),
                    HoldOutcome::HeldBefore { .. } | HoldOutcome::Decided(_) => {}
                }
            }
            let mine: Vec<_> = batch.iter().step_by(2).map(|asked| out(asked.user_id, &asked.id)).collect();
            let back: Vec<_> =
                batch.iter().step_by(3).map(|asked| (out(asked.user_id, &asked.id), "no")).collect();
            let paid = ledger.transact(|tx| tx.pay_out(&mine, 3_000))?;
            let returned = ledger.transact(|tx| tx.give_back(&back, 3_000))?;
            let count = |done: &[Finish]| done.iter().filter(|finish| **finish == Finish::Done).count();
            ended.fetch_add(i64::try_from(count(&paid) + count(&returned)).unwrap_or(0), Ordering::Relaxed);
        }
        // What skipped its first: everything is credited in the end.
        let all: Vec<Order<'_>> = (0..).zip(&orders).map(|(nth, name)| order(name, user(nth), 1)).collect();
        ledger.apply(&all).map(drop)
    })?;
    let ledger = open(place)?;
    let (mut taken, mut returned, mut decided) = (0, 0, 0);
    for (nth, id) in ids.iter().enumerate() {
        let Some(stored) = ledger.withdrawal(out(user(nth), id))? else { continue };
        taken += stored.withdrawal.amount;
        decided += i64::from(stored.decided_ms.is_some());
        returned += if stored.status == WithdrawalStatus::Refused { stored.withdrawal.amount } else { 0 };
    }
    assert_eq!(held.into_inner(), taken, "each is held once");
    assert_eq!(ended.into_inner(), decided, "each ends once");
    let balances = (0..3).map(|user| ledger.balance(user, "cash")).collect::<Result<Vec<_>, _>>()?;
    assert!(balances.iter().all(|balance| *balance >= 0));
    assert_eq!(balances.iter().sum::<i64>(), 400 - taken + returned);
    let flow = (0..3).map(|user| ledger.flow(user, 10_000)).collect::<Result<Vec<_>, _>>()?.concat();
    let sum: i64 = flow
        .iter()
        .map(|line| if line.kind == FlowKind::Withdrawal { -line.amount } else { line.amount })
        .sum();
    assert_eq!(sum, balances.iter().sum::<i64>(), "every movement hangs on its user's chain");
    clean(place)
}

/// A reader that is kept sees what was committed since.
pub(super) fn kept_reader(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 3)])?;
    let reader = ledger.reader()?;
    assert_eq!(reader.balances(1)?, [("cash".to_owned(), 3)]);
    ledger.apply(&[order("b", 1, 4)])?;
    hold(&mut ledger, &[take("x", 1, 2)])?;
    assert_eq!(reader.balances(1)?, [("cash".to_owned(), 5)]);
    assert_eq!(reader.withdrawal(out(1, "x"))?.map(|one| one.status), Some(WithdrawalStatus::Held));
    let orders = reader.orders_of(&[id("b"), id("none"), id("a")])?;
    let amounts: Vec<_> = orders.into_iter().map(|order| order.map(|order| order.amount)).collect();
    assert_eq!(amounts, [Some(4), None, Some(3)]);
    assert!(reader.reconcile()?.is_clean());
    clean(place)
}
