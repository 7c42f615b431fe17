//! Many writers at once.

use super::{Outcome, Place, budget, clean, id, ids, names, open, order, settled, writers};
use std::sync::atomic::{AtomicUsize, Ordering};
use windfall_contract::accounts::Reason;
use windfall_ledger::{Attempt, BUDGET_MAX, Finish, Ledger, LedgerError, Order, OrderOutcome};

const WRITERS: usize = 4;

/// Runs `work` with every writer at once, and gathers what each answers.
pub(super) fn all_at_once<T: Send>(
    place: &dyn Place,
    work: impl Fn(usize, &mut Ledger) -> Result<T, LedgerError> + Sync,
) -> Result<Vec<T>, Box<dyn std::error::Error>> {
    let writers = writers(place, WRITERS)?;
    let work = &work;
    let done: Vec<Result<T, LedgerError>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..).zip(writers).map(|(nth, mut ledger)| scope.spawn(move || work(nth, &mut ledger))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(LedgerError::Sql("a writer has panicked".into()))))
            .collect()
    });
    Ok(done.into_iter().collect::<Result<_, _>>()?)
}

/// The same new orders in the hands of all, in batches that are cut and turned differently.
pub(super) fn same_orders(place: &dyn Place) -> Outcome {
    let names = names(1_200);
    let credited = AtomicUsize::new(0);
    all_at_once(place, |nth, ledger| {
        let mut all: Vec<Order<'_>> =
            (0_i64..).zip(&names).map(|(at, name)| order(name, at % 9, 1 + at % 5)).collect();
        all.rotate_left(nth * 100);
        if nth % 2 == 1 {
            all.reverse();
        }
        for batch in all.chunks(70 + nth * 11) {
            for outcome in ledger.apply(batch)? {
                match outcome {
                    OrderOutcome::Credited => {
                        credited.fetch_add(1, Ordering::Relaxed);
                    }
                    outcome => assert_eq!(outcome, OrderOutcome::AlreadyCredited),
                }
            }
        }
        Ok(())
    })?;
    assert_eq!(credited.into_inner(), names.len(), "I1");
    let reader = place.reader()?;
    let sum: i64 = (0..9).map(|user| reader.balances(user).map(|all| all[0].1)).sum::<Result<i64, _>>()?;
    assert_eq!(sum, (0_i64..1_200).map(|at| 1 + at % 5).sum::<i64>());
    let flow: usize =
        (0..9).map(|user| reader.flow(user, 10_000).map(|all| all.len())).sum::<Result<_, _>>()?;
    assert_eq!(flow, names.len(), "every transfer hangs on its user's chain");
    clean(place)
}

/// The same numbers of two activities, in batches that hold both, in the hands of all.
pub(super) fn activities(place: &dyn Place) -> Outcome {
    let names = names(400);
    let credited = AtomicUsize::new(0);
    all_at_once(place, |nth, ledger| {
        let of = |activity| names.iter().map(move |name| Order { activity, ..order(name, 1, 1) });
        let mut all: Vec<Order<'_>> =
            of("spring").zip(of("autumn")).flat_map(|(one, other)| [one, other]).collect();
        all.rotate_left(nth * 77);
        if nth % 2 == 1 {
            all.reverse();
        }
        for batch in all.chunks(50 + nth * 9) {
            let outcomes = ledger.apply(batch)?;
            assert!(!outcomes.contains(&OrderOutcome::Conflict));
            let count = outcomes.iter().filter(|outcome| **outcome == OrderOutcome::Credited).count();
            credited.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    })?;
    assert_eq!(credited.into_inner(), 2 * names.len(), "I1");
    assert_eq!(open(place)?.balance(1, "cash")?, 800);
    clean(place)
}

pub(super) fn one_budget(place: &dyn Place) -> Outcome {
    for (round, shards) in [0_u32, 1, 3, 8].into_iter().enumerate() {
        let scene = format!("scene-{round}");
        let total = 3_000;
        open(place)?.set_budgets(&[windfall_ledger::BudgetSet { scene: &scene, ..budget(total, shards) }])?;
        let given: Vec<i64> = all_at_once(place, |nth, ledger| {
            let mut given = 0;
            for batch in 0..40 {
                let names: Vec<String> = (0..40).map(|at| format!("{round}/{nth}/{batch}/{at}")).collect();
                let orders: Vec<_> = (0_i64..)
                    .zip(&names)
                    .map(|(at, name)| Order { scene: &scene, ..order(name, at % 5, 1 + at % 3) })
                    .collect();
                for (outcome, order) in ledger.apply(&orders)?.into_iter().zip(&orders) {
                    match outcome {
                        OrderOutcome::Credited => given += order.amount,
                        outcome => assert_eq!(outcome, OrderOutcome::Rejected(Reason::BudgetExhausted)),
                    }
                }
            }
            Ok(given)
        })?;
        assert_eq!(given.iter().sum::<i64>(), total, "all of it, and no more (I4); {shards} shards");
    }
    clean(place)
}

/// One sets the budget again and again, in other numbers of shards, while the others take from it.
pub(super) fn split_anew(place: &dyn Place) -> Outcome {
    let total = 4_000;
    open(place)?.set_budgets(&[budget(total, 4)])?;
    let given: Vec<i64> = all_at_once(place, |nth, ledger| {
        let mut given = 0;
        for batch in 0..60 {
            if nth == 0 {
                let shards = [1, 7, 3, 16][batch % 4];
                assert!(ledger.set_budgets(&[budget(total, shards)])?.is_empty(), "nothing is over (I4)");
            }
            let names: Vec<String> = (0..20).map(|at| format!("{nth}/{batch}/{at}")).collect();
            let orders: Vec<_> = names.iter().map(|name| order(name, 1, 1)).collect();
            let outcomes = ledger.apply(&orders)?;
            given += i64::try_from(outcomes.iter().filter(|one| **one == OrderOutcome::Credited).count())
                .unwrap_or(BUDGET_MAX);
        }
        Ok(given)
    })?;
    let asked = i64::try_from(given.len() * 60 * 20)?;
    assert_eq!(given.iter().sum::<i64>(), asked.min(total), "refused only when nothing was left");
    clean(place)
}

pub(super) fn finishes(place: &dyn Place) -> Outcome {
    let names = names(300);
    let batch: Vec<_> = names.iter().map(|name| order(name, 1, 1)).collect();
    open(place)?.transact(|tx| super::reserve(tx, &batch, Attempt::Normal))?;
    let (paid, released) = (AtomicUsize::new(0), AtomicUsize::new(0));
    all_at_once(place, |nth, ledger| {
        for part in names.chunks(30) {
            let part: Vec<&str> = part.iter().map(String::as_str).collect();
            let refused: Vec<_> = part.iter().map(|name| (id(name), Reason::DownstreamRefused)).collect();
            let done = ledger.transact(|tx| {
                if nth % 2 == 0 { tx.post(&ids(&part), 2_000) } else { tx.release(&refused, 2_000) }
            })?;
            let count = done.iter().filter(|finish| **finish == Finish::Done).count();
            if nth % 2 == 0 { &paid } else { &released }.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let paid = paid.into_inner();
    assert_eq!(paid + released.into_inner(), names.len(), "each ends once");
    assert_eq!(open(place)?.balance(1, "cash")?, 0);
    assert_eq!(super::settled(place, "bank")?, i64::try_from(paid)?);
    clean(place)
}

pub(super) fn replays(place: &dyn Place) -> Outcome {
    let names = names(60);
    let batch: Vec<_> = names.iter().map(|name| order(name, 1, 1)).collect();
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(0, 1)])?;
    assert!(ledger.apply(&batch)?.iter().all(|outcome| matches!(outcome, OrderOutcome::Rejected(_))));
    ledger.set_budgets(&[budget(1_000, 4)])?;
    drop(ledger);
    let credited: Vec<usize> = all_at_once(place, |_, ledger| {
        let mut credited = 0;
        for part in batch.chunks(10) {
            let outcomes = ledger.transact(|tx| tx.apply(part, Attempt::Replay))?;
            credited += outcomes.iter().filter(|outcome| **outcome == OrderOutcome::Credited).count();
        }
        Ok(credited)
    })?;
    assert_eq!(credited.iter().sum::<usize>(), names.len(), "I1");
    clean(place)
}

/// The events of promised orders in the hands of all, while an operator gives some of them up.
pub(super) fn promises(place: &dyn Place) -> Outcome {
    let names = names(400);
    let total = 1_000;
    open(place)?.set_budgets(&[budget(total, 4)])?;
    let batch: Vec<_> = (0_i64..).zip(&names).map(|(at, name)| order(name, at % 7, 2)).collect();
    let (credited, released) = (AtomicUsize::new(0), AtomicUsize::new(0));
    all_at_once(place, |nth, ledger| {
        for part in batch.chunks(40) {
            ledger.transact(|tx| tx.promise(part, Attempt::Normal))?;
            if nth == 0 {
                let gone: Vec<_> =
                    part.iter().step_by(10).map(|order| (order.id(), Reason::Released)).collect();
                let done = ledger.transact(|tx| tx.release(&gone, 2_000))?;
                let count = done.iter().filter(|finish| **finish == Finish::Done).count();
                released.fetch_add(count, Ordering::Relaxed);
            }
            let outcomes = ledger.transact(|tx| tx.apply(part, Attempt::Normal))?;
            let count = outcomes.iter().filter(|outcome| **outcome == OrderOutcome::Credited).count();
            credited.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let credited = credited.into_inner();
    assert_eq!(credited + released.into_inner(), names.len(), "each ends once (I1)");
    let state = open(place)?.budgets()?.remove(0);
    assert_eq!((state.used, state.reserved), (i64::try_from(credited)? * 2, 0), "I4");
    clean(place)
}

/// Orders that were promised belong to a downstream by now, whose name is new, and each of their events comes to every
/// writer. Each writer finds them promised, waits for the others, and then finds them handed over.
pub(super) fn hand_overs(place: &dyn Place) -> Outcome {
    let names = names(400);
    open(place)?.set_budgets(&[budget(1_000, 4)])?;
    let batch: Vec<_> = (0_i64..).zip(&names).map(|(at, name)| order(name, at % 7, 2)).collect();
    open(place)?.transact(|tx| tx.promise(&batch, Attempt::Normal))?;
    all_at_once(place, |_, ledger| {
        for (nth, part) in batch.chunks(10).enumerate() {
            let payer = format!("bank/{nth}");
            let payers = vec![payer.as_str(); part.len()];
            let outcomes = ledger.transact(|tx| tx.reserve(part, &payers, Attempt::Normal))?;
            assert!(outcomes.iter().all(|outcome| *outcome == OrderOutcome::Reserved), "{outcomes:?}");
        }
        Ok(())
    })?;
    clean(place)?;
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let done = open(place)?.transact(|tx| tx.post(&ids(&all), 2_000))?;
    assert!(done.iter().all(|finish| *finish == Finish::Done), "{done:?}");
    for nth in 0..40 {
        assert_eq!(settled(place, &format!("bank/{nth}"))?, 20, "each was handed over once");
    }
    clean(place)
}

/// All take from budgets that a combined one covers, in scenes that are new each time, while one of them sets it.
pub(super) fn combined(place: &dyn Place) -> Outcome {
    for (round, shards) in [0_u32, 1, 4].into_iter().enumerate() {
        let activity = format!("activity-{round}");
        let total = 2_200;
        let all = windfall_ledger::BudgetSet {
            activity: &activity,
            scene: "*",
            bonus_type: "*",
            ..budget(total, shards)
        };
        let cash = windfall_ledger::BudgetSet { bonus_type: "cash", ..all };
        let own = windfall_ledger::BudgetSet { scene: "scene-0", bonus_type: "cash", ..all };
        open(place)?.set_budgets(&[own])?;
        let given: Vec<i64> = all_at_once(place, |nth, ledger| {
            let mut given = 0;
            for batch in 0..30 {
                if nth == 0 && batch == 4 {
                    assert!(ledger.set_budgets(&[all])?.is_empty(), "nothing is over (I4)");
                }
                if nth == 1 && batch == 8 {
                    ledger.set_budgets(&[cash])?;
                }
                let names: Vec<String> = (0..24).map(|at| format!("{round}/{nth}/{batch}/{at}")).collect();
                let scenes: Vec<String> = (0..3).map(|at| format!("scene-{}", (batch + at) / 2)).collect();
                let orders: Vec<Order<'_>> = (0_usize..)
                    .zip(&names)
                    .map(|(at, name)| Order {
                        activity: &activity,
                        scene: &scenes[at % 3],
                        bonus_type: if at % 2 == 0 { "cash" } else { "coin" },
                        ..order(name, 1, 1)
                    })
                    .collect();
                let (now, later) = orders.split_at(18);
                let outcomes = ledger.apply(now)?;
                given += outcomes.iter().filter(|outcome| **outcome == OrderOutcome::Credited).count();
                let held = ledger.transact(|tx| super::reserve(tx, later, Attempt::Normal))?;
                let held: Vec<_> = later
                    .iter()
                    .zip(held)
                    .filter(|(_, outcome)| *outcome == OrderOutcome::Reserved)
                    .map(|(order, _)| order.id())
                    .collect();
                let (paid, refused) = held.split_at(held.len() / 2);
                let refused: Vec<_> = refused.iter().map(|one| (*one, Reason::DownstreamRefused)).collect();
                given += ledger.transact(|tx| tx.post(paid, 2_000))?.len();
                ledger.transact(|tx| tx.release(&refused, 2_000))?;
            }
            Ok(i64::try_from(given).unwrap_or(BUDGET_MAX))
        })?;
        let ledger = open(place)?;
        let budgets = ledger.budgets()?;
        let of = |bonus_type: &str| {
            budgets.iter().find(|one| {
                (one.activity.as_str(), one.scene.as_str(), one.bonus_type.as_str())
                    == (&activity, "*", bonus_type)
            })
        };
        let state = of("*").ok_or("no such budget")?;
        assert_eq!((state.used, state.reserved), (given.iter().sum(), 0), "all that was given is counted");
        let asked = i64::try_from(given.len())? * 30 * 21;
        assert!(state.used <= total && (asked < total || state.used > total - 100), "{state:?}");
        let cash: i64 = budgets
            .iter()
            .filter(|one| one.activity == activity && one.bonus_type == "cash" && one.scene != "*")
            .map(|one| one.used)
            .sum();
        assert_eq!(of("cash").map_or(cash, |one| one.used), cash);
    }
    clean(place)
}

/// All grant and reserve in activities that are new each time, while one of them sets the type's cap, lifts it and sets it
/// again.
pub(super) fn cap(place: &dyn Place) -> Outcome {
    let total = 1_500;
    let cap = windfall_ledger::BudgetSet { activity: "*", scene: "*", ..budget(total, 1) };
    open(place)?.set_budgets(&[budget(400, 4)])?;
    let given: Vec<i64> = all_at_once(place, |nth, ledger| {
        let mut given = 0;
        for batch in 0..30_u64 {
            if nth == 0 && [3, 7, 11].contains(&batch) {
                let caps = if batch == 7 { &[][..] } else { &[cap][..] };
                assert!(ledger.apply_budgets(batch, caps)?.is_set());
            }
            let names: Vec<String> = (0..24).map(|at| format!("{nth}/{batch}/{at}")).collect();
            let activities = ["spring".to_owned(), format!("activity-{}", batch / 2), format!("own-{nth}")];
            let orders: Vec<Order<'_>> = (0_usize..)
                .zip(&names)
                .map(|(at, name)| Order { activity: &activities[at % 3], ..order(name, 1, 1) })
                .collect();
            let (now, later) = orders.split_at(18);
            let outcomes = ledger.apply(now)?;
            given += outcomes.iter().filter(|outcome| **outcome == OrderOutcome::Credited).count();
            let held = ledger.transact(|tx| super::reserve(tx, later, Attempt::Normal))?;
            let held = later.iter().zip(held).filter(|(_, outcome)| *outcome == OrderOutcome::Reserved);
            let held: Vec<_> = held.map(|(order, _)| order.id()).collect();
            let (paid, refused) = held.split_at(held.len() / 2);
            let refused: Vec<_> = refused.iter().map(|one| (*one, Reason::DownstreamRefused)).collect();
            given += ledger.transact(|tx| tx.post(paid, 2_000))?.len();
            ledger.transact(|tx| tx.release(&refused, 2_000))?;
        }
        Ok(i64::try_from(given).unwrap_or(BUDGET_MAX))
    })?;
    let budgets = open(place)?.budgets()?;
    let state = budgets.iter().find(|one| one.activity == "*").ok_or("no cap")?;
    assert_eq!((state.used, state.reserved), (given.iter().sum(), 0), "all that was given is counted");
    // Raised to what was given while it was lifted, if that was more.
    assert!(state.total.is_some_and(|holds| state.used <= holds), "{state:?}");
    let asked = i64::try_from(given.len())? * 30 * 21;
    assert!(asked < total || state.used > total - 100, "{state:?}");
    clean(place)
}
