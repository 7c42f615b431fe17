//! Budgets are never over, and are used up to the last piece (I4).

use super::{Outcome, Place, budget, clean, id, ids, open, order};
use windfall_contract::accounts::Reason;
use windfall_ledger::{
    Attempt, BUDGET_MAX, BudgetSet, BudgetsApplied, Finish, Ledger, LedgerError, Order, OrderOutcome,
    Unbudgeted, Writers,
};

pub(super) fn all_and_no_more(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    for shards in [1, 3, 64] {
        let scene = format!("scene-{shards}");
        ledger.set_budgets(&[BudgetSet { scene: &scene, ..budget(100, shards) }])?;
        let names: Vec<String> = (0..60).map(|nth| format!("order/{shards}/{nth}")).collect();
        let batch: Vec<_> = names.iter().map(|name| Order { scene: &scene, ..order(name, 1, 2) }).collect();
        let mut outcomes = ledger.apply(&batch[..20])?;
        outcomes.extend(ledger.apply(&batch[20..])?);
        let credited = outcomes.iter().filter(|outcome| **outcome == OrderOutcome::Credited).count();
        assert_eq!(credited, 50, "{shards} shards");
        assert!(outcomes[..50].iter().all(|outcome| *outcome == OrderOutcome::Credited), "first come");
        assert_eq!(outcomes[50], OrderOutcome::Rejected(Reason::BudgetExhausted));
        assert_eq!(ledger.apply(&batch[50..51])?, outcomes[50..51], "a rejection stays");
        let all = ledger.budgets()?;
        let state = all.iter().find(|state| state.scene == scene).ok_or("no such budget")?;
        assert_eq!((state.total, state.used, state.reserved), (Some(100), 100, 0));
        assert_eq!(state.shards, shards);
    }
    clean(place)
}

pub(super) fn gathered(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(64, 64)])?;
    assert_eq!(
        ledger.apply(&[order("a", 1, 65), order("b", 1, 64)])?,
        [OrderOutcome::Rejected(Reason::BudgetExhausted), OrderOutcome::Credited]
    );
    clean(place)
}

pub(super) fn never_below(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 10)])?;
    let mut tx = ledger.begin()?;
    assert_eq!(super::reserve(&mut tx, &[order("b", 1, 5)], Attempt::Normal)?, [OrderOutcome::Reserved]);
    tx.commit()?;
    let raised = ledger.set_budgets(&[budget(12, 4)])?;
    assert_eq!((raised[0].asked, raised[0].total), (12, 15), "what was given before it was set counts");
    assert_eq!(ledger.apply(&[order("c", 1, 1)])?, [OrderOutcome::Rejected(Reason::BudgetExhausted)]);
    assert!(ledger.set_budgets(&[budget(16, 1)])?.is_empty());
    assert_eq!(ledger.apply(&[order("d", 1, 1)])?, [OrderOutcome::Credited]);
    let mut tx = ledger.begin()?;
    assert_eq!(tx.post(&ids(&["b"]), 2_000)?, [Finish::Done]);
    tx.commit()?;
    let bad = ledger.set_budgets(&[budget(BUDGET_MAX + 1, 1)]);
    assert!(matches!(bad, Err(LedgerError::Invalid(_))), "{bad:?}");
    clean(place)
}

pub(super) fn unbudgeted(place: &dyn Place) -> Outcome {
    let mut ledger = place.open(Unbudgeted::Refuse)?;
    let rejected = [OrderOutcome::Rejected(Reason::Unbudgeted)];
    assert_eq!(ledger.apply(&[order("a", 1, 1)])?, rejected);
    let held = super::reserve(&mut ledger.begin()?, &[order("h", 1, 1)], Attempt::Normal)?;
    assert_eq!(held, rejected);
    if ledger.writers() == Writers::Many {
        // Set by another: what this one remembers is old.
        open(place)?.set_budgets(&[budget(2, 1)])?;
    } else {
        ledger.set_budgets(&[budget(2, 1)])?;
    }
    assert_eq!(ledger.apply(&[order("b", 1, 1)])?, [OrderOutcome::Credited]);
    assert_eq!(ledger.apply(&[order("a", 1, 1)])?, rejected, "a decision stands");
    let replayed = ledger.transact(|tx| tx.apply(&[order("a", 1, 1)], Attempt::Replay))?;
    assert_eq!(replayed, [OrderOutcome::Credited]);
    assert_eq!(ledger.apply(&[order("c", 1, 1)])?, [OrderOutcome::Rejected(Reason::BudgetExhausted)]);
    clean(place)
}

fn of<'a>(scene: &'a str, bonus_type: &'a str, total: i64) -> BudgetSet<'a> {
    BudgetSet { scene, bonus_type, ..budget(total, 3) }
}

fn in_scene<'a>(scene: &'a str, bonus_type: &'a str, trade_no: &'a str, amount: i64) -> Order<'a> {
    Order { scene, bonus_type, ..order(trade_no, 1, amount) }
}

/// The amounts of a combined budget: used and reserved.
fn state(ledger: &windfall_ledger::Ledger, scene: &str, bonus_type: &str) -> Result<(i64, i64), LedgerError> {
    let all = ledger.budgets()?;
    let found = all.iter().find(|one| (one.scene.as_str(), one.bonus_type.as_str()) == (scene, bonus_type));
    Ok(found.map_or((-1, -1), |one| (one.used, one.reserved)))
}

pub(super) fn combined(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    // What was given out before counts.
    assert_eq!(ledger.apply(&[in_scene("rain", "cash", "a", 3)])?, [OrderOutcome::Credited]);
    ledger.transact(|tx| super::reserve(tx, &[in_scene("cards", "cash", "b", 2)], Attempt::Normal))?;
    let sets = [of("rain", "cash", 8), of("*", "cash", 10), of("rain", "*", 30), of("*", "*", 12)];
    assert!(ledger.set_budgets(&sets)?.is_empty());
    assert_eq!((state(&ledger, "*", "cash")?, state(&ledger, "rain", "*")?), ((3, 2), (3, 0)));
    let no = OrderOutcome::Rejected(Reason::BudgetExhausted);
    let yes = OrderOutcome::Credited;
    let batch = [
        // Its own has 5 left, all cash 5, all 7.
        in_scene("rain", "cash", "c", 6),
        in_scene("rain", "cash", "d", 4),
        in_scene("cards", "cash", "e", 2),
        in_scene("cards", "cash", "f", 1),
        in_scene("new", "cash", "g", 1),
        in_scene("new", "coin", "h", 3),
        in_scene("rain", "coin", "i", 2),
        in_scene("rain", "coin", "j", 1),
    ];
    assert_eq!(ledger.apply(&batch)?, [no, yes, no, yes, no, no, yes, no], "from all of them, or from none");
    assert_eq!((state(&ledger, "*", "*")?, state(&ledger, "*", "cash")?), ((10, 2), (8, 2)));
    assert_eq!(state(&ledger, "rain", "*")?, (9, 0));
    assert_eq!(state(&ledger, "new", "coin")?, (0, 0), "nothing of what was refused");
    let (set, others): (Vec<_>, Vec<_>) = ledger.budgets()?.into_iter().partition(|one| one.total.is_some());
    assert_eq!((set.len(), others.is_empty()), (sets.len(), false));
    assert_eq!(place.reader()?.set_budgets()?, set, "and none that a name has made");
    clean(place)?;
    // A scene that is called like all of them is one of them.
    assert_eq!(ledger.apply(&[in_scene("*", "coin", "k", 1)])?, [no]);
    // What was reserved before they were set is given back to all, or posted in all.
    ledger.transact(|tx| tx.release(&[(id("b"), Reason::DownstreamRefused)], 2_000))?;
    assert_eq!((state(&ledger, "*", "*")?, state(&ledger, "*", "cash")?), ((10, 0), (8, 0)));
    let next = [in_scene("cards", "cash", "l", 1)];
    assert_eq!(ledger.transact(|tx| super::reserve(tx, &next, Attempt::Normal))?, [OrderOutcome::Reserved]);
    assert_eq!(ledger.transact(|tx| tx.post(&ids(&["l"]), 2_000))?, [Finish::Done]);
    assert_eq!(state(&ledger, "*", "*")?, (11, 0));
    // Never below what is given; set again it counts on.
    let raised = ledger.set_budgets(&[of("*", "*", 5)])?;
    assert_eq!((raised[0].scene.as_str(), raised[0].asked, raised[0].total), ("*", 5, 11));
    assert_eq!(ledger.apply(&[in_scene("new", "coin", "m", 1)])?, [no]);
    ledger.set_budgets(&[of("*", "*", 12)])?;
    assert_eq!(ledger.apply(&[in_scene("new", "coin", "n", 1), in_scene("new", "coin", "o", 1)])?, [yes, no]);
    for bad in [BudgetSet { activity: "*", ..of("rain", "cash", 1) }, of("", "cash", 1), of("rain", "", 1)] {
        assert!(matches!(ledger.set_budgets(&[bad]), Err(LedgerError::Invalid(_))), "{bad:?}");
    }
    clean(place)?;
    drop(ledger);
    // What it covers has a budget, also where one is needed.
    let mut ledger = place.open(Unbudgeted::Refuse)?;
    ledger.set_budgets(&[of("*", "*", 13)])?;
    let other = Order { activity: "autumn", ..in_scene("rain", "cash", "p", 1) };
    let none = OrderOutcome::Rejected(Reason::Unbudgeted);
    assert_eq!(ledger.apply(&[other, in_scene("fresh", "badge", "q", 1)])?, [none, yes]);
    clean(place)
}

/// A cap of a type over all activities.
fn cap(bonus_type: &str, total: i64) -> BudgetSet<'_> {
    BudgetSet { activity: "*", scene: "*", bonus_type, total, shards: 1 }
}

pub(super) fn caps(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let (yes, over) = (OrderOutcome::Credited, OrderOutcome::Rejected(Reason::OverTypeCap));
    let autumn = |name, amount| Order { activity: "autumn", ..order(name, 1, amount) };
    // What was given out and is held before counts, in every activity.
    assert_eq!(ledger.apply(&[order("a", 1, 3), autumn("b", 2)])?, [yes, yes]);
    ledger.transact(|tx| super::reserve(tx, &[autumn("held", 1)], Attempt::Normal))?;
    assert!(ledger.apply_budgets(1, &[cap("cash", 10)])?.is_set());
    assert_eq!(state(&ledger, "*", "cash")?, (5, 1));
    let coin = Order { bonus_type: "coin", ..order("c", 1, 99) };
    assert_eq!(
        ledger.apply(&[order("d", 1, 5), autumn("e", 2), coin, order("f", 1, 2)])?,
        [over, yes, yes, yes]
    );
    assert_eq!(ledger.apply(&[order("g", 1, 1), order("a", 1, 3)])?, [over, OrderOutcome::AlreadyCredited]);
    assert_eq!(ledger.apply(&[order("d", 1, 5)])?, [over], "a decision stands");
    // Room comes back with what a downstream refuses.
    ledger.transact(|tx| tx.release(&[(autumn("held", 1).id(), Reason::DownstreamRefused)], 2_000))?;
    assert_eq!(ledger.apply(&[autumn("h", 1)])?, [yes]);
    let held = ledger.transact(|tx| super::reserve(tx, &[autumn("i", 1)], Attempt::Normal))?;
    assert_eq!(held, [over]);
    clean(place)?;
    // Raised, and replayed; a budget's own refusal keeps its name.
    ledger.apply_budgets(2, &[budget(10, 2), cap("cash", 16)])?;
    let replayed = ledger.transact(|tx| tx.apply(&[order("d", 1, 5), order("g", 1, 1)], Attempt::Replay))?;
    assert_eq!(replayed, [yes, OrderOutcome::Rejected(Reason::BudgetExhausted)]);
    // It cannot go below what was given out.
    let BudgetsApplied::Set(raised) = ledger.apply_budgets(3, &[cap("cash", 1)])? else { panic!("stale") };
    assert_eq!((raised[0].activity.as_str(), raised[0].total), ("*", 15));
    assert_eq!(ledger.apply(&[autumn("j", 1)])?, [over]);
    // Rules that do not name it lift it; set again, it counts what was given out meanwhile.
    ledger.apply_budgets(4, &[])?;
    clean(place)?;
    assert_eq!(ledger.apply(&[autumn("k", 7)])?, [yes]);
    ledger.apply_budgets(5, &[cap("cash", 23)])?;
    assert_eq!(state(&ledger, "*", "cash")?, (22, 0));
    assert_eq!(ledger.apply(&[Order { activity: "new", ..order("l", 1, 2) }, autumn("m", 1)])?, [over, yes]);
    for bad in [cap("*", 1), BudgetSet { scene: "rain", ..cap("cash", 1) }] {
        assert!(matches!(ledger.set_budgets(&[bad]), Err(LedgerError::Invalid(_))), "{bad:?}");
    }
    drop(ledger);
    // It is no budget.
    let mut ledger = place.open(Unbudgeted::Refuse)?;
    assert_eq!(ledger.apply(&[autumn("n", 1)])?, [OrderOutcome::Rejected(Reason::Unbudgeted)]);
    drop(ledger);
    order_caps(place)
}

/// The largest amount of one order.
fn order_caps(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let (yes, over) = (OrderOutcome::Credited, OrderOutcome::Rejected(Reason::OverOrderCap));
    let coin = |name, amount| Order { bonus_type: "coin", activity: "caps", ..order(name, 1, amount) };
    let up_to = |most: i64| std::collections::BTreeMap::from([("coin".to_owned(), most)]);
    assert_eq!(ledger.apply(&[coin("o/a", 100)])?, [yes]);
    let mut tx = ledger.begin()?;
    tx.promise(&[coin("o/p", 100)], Attempt::Normal)?;
    tx.commit()?;
    let capped = |ledger: &mut Ledger, most, attempt, batch: &[Order<'_>]| {
        ledger.transact(|tx| {
            tx.cap_orders(&up_to(most));
            tx.apply(batch, attempt)
        })
    };
    let badge = Order { bonus_type: "badge", ..coin("o/d", 100) };
    let batch = [coin("o/b", 11), coin("o/c", 10), badge, coin("o/a", 100), coin("o/p", 100)];
    let outcomes = capped(&mut ledger, 10, Attempt::Normal, &batch)?;
    // What is given or held is not looked at again, and another type is not touched.
    assert_eq!(outcomes, [over, yes, yes, OrderOutcome::AlreadyCredited, yes]);
    assert_eq!(capped(&mut ledger, 11, Attempt::Normal, &[coin("o/b", 11)])?, [over], "a decision stands");
    assert_eq!(capped(&mut ledger, 10, Attempt::Replay, &[coin("o/b", 11)])?, [over]);
    assert_eq!(capped(&mut ledger, 11, Attempt::Replay, &[coin("o/b", 11)])?, [yes]);
    let held = ledger.transact(|tx| {
        tx.cap_orders(&up_to(5));
        super::reserve(tx, &[coin("o/e", 6), coin("o/f", 5)], Attempt::Normal)
    })?;
    assert_eq!(held, [over, OrderOutcome::Reserved]);
    assert_eq!(ledger.apply(&[coin("o/g", 100)])?, [yes], "each transaction has its own");
    clean(place)
}

pub(super) fn strict(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(10, 0)])?;
    let batch = [order("a", 1, 8), order("b", 1, 3), order("c", 1, 2), order("d", 1, 1)];
    let no = OrderOutcome::Rejected(Reason::BudgetExhausted);
    let yes = OrderOutcome::Credited;
    assert_eq!(ledger.apply(&batch)?, [yes, no, yes, no]);
    let state = ledger.budgets()?.remove(0);
    assert_eq!((state.total, state.used, state.shards), (Some(10), 10, 0));
    ledger.set_budgets(&[budget(20, 4)])?;
    assert_eq!(ledger.budgets()?.remove(0).shards, 4, "sharded from now on");
    ledger.set_budgets(&[budget(20, 0)])?;
    ledger.transact(|tx| super::reserve(tx, &[order("e", 1, 10)], Attempt::Normal))?;
    assert_eq!(ledger.apply(&[order("f", 1, 1)])?, [no]);
    ledger.transact(|tx| tx.release(&[(id("e"), Reason::DownstreamRefused)], 2_000))?;
    assert_eq!(ledger.apply(&[order("g", 1, 1)])?, [yes]);
    clean(place)
}

/// A transaction that grants notes the rules that its process runs; one that does not commit has noted nothing.
pub(super) fn newest_rules(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let seen = |ledger: &mut Ledger| ledger.transact(|tx| tx.rules_version());
    assert_eq!(seen(&mut ledger)?, 0);
    let mut tx = ledger.begin()?;
    assert_eq!(tx.raise_rules_version(4)?, 4);
    tx.apply(&[order("a", 1, 1)], Attempt::Normal)?;
    drop(tx);
    assert_eq!(seen(&mut ledger)?, 0);
    assert_eq!(ledger.note_rules_version(0, 4)?, 4);
    assert_eq!((ledger.note_rules_version(0, 3)?, seen(&mut ledger)?), (4, 4));
    // Budgets and grants share the version.
    assert_eq!(ledger.apply_budgets(3, &[budget(1, 1)])?, BudgetsApplied::Stale { newest: 4 });
    ledger.apply_budgets(6, &[budget(5, 1)])?;
    drop(ledger);
    let mut ledger = open(place)?;
    assert_eq!(seen(&mut ledger)?, 6);
    // Those of version 4 are not the budgets that are set.
    assert_eq!((ledger.note_rules_version(4, 7)?, seen(&mut ledger)?), (6, 6));
    if ledger.writers() == Writers::Many {
        let mut other = open(place)?;
        assert_eq!(other.note_rules_version(6, 7)?, 7);
        assert_eq!(seen(&mut ledger)?, 7, "noted by another");
    }
    ledger.transact(|tx| tx.replace_rules_version(2))?;
    assert_eq!((seen(&mut ledger)?, ledger.note_rules_version(0, 1)?), (2, 2));
    assert!(ledger.transact(|tx| tx.replace_rules_version(u64::MAX)).is_err());
    assert_eq!(seen(&mut ledger)?, 2);
    clean(place)
}

/// Of many processes each sets the budgets of the rules that it runs.
pub(super) fn older_rules(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let total = |ledger: &Ledger| ledger.budgets().map(|budgets| budgets[0].total);
    let set = BudgetsApplied::Set(Vec::new());
    assert_eq!(ledger.apply_budgets(7, &[budget(600, 2)])?, set);
    for older in [6, 0] {
        assert_eq!(ledger.apply_budgets(older, &[budget(1_000, 2)])?, BudgetsApplied::Stale { newest: 7 });
        assert_eq!(total(&ledger)?, Some(600));
        drop(ledger);
        ledger = open(place)?;
    }
    assert_eq!(ledger.apply_budgets(7, &[budget(600, 4)])?, set, "as every process of the fleet does");
    assert_eq!(ledger.apply_budgets(8, &[budget(500, 2)])?, set);
    assert_eq!(total(&ledger)?, Some(500));
    // What fails leaves the version as it was.
    assert!(ledger.apply_budgets(9, &[budget(-1, 2)]).is_err());
    assert!(ledger.apply_budgets(u64::MAX, &[]).is_err());
    assert_eq!(ledger.apply_budgets(8, &[budget(400, 2)])?, set);
    drop(ledger);
    // Everybody at once: the newest holds, in whatever order they come.
    super::concurrent::all_at_once(place, |writer, ledger| {
        for step in 0..20_u64 {
            let version = 10 + step * 3 + writer as u64 % 3;
            let total = i64::try_from(version).unwrap_or(0);
            ledger.apply_budgets(version, &[budget(total, 2)])?;
            let found = ledger.budgets()?[0].total;
            assert!(found >= Some(total), "{found:?} after {total} was set or refused");
        }
        Ok(())
    })?;
    let newest = ledger_newest(&mut open(place)?)?;
    assert_eq!(i64::try_from(newest).ok(), total(&open(place)?)?);
    clean(place)
}

fn ledger_newest(ledger: &mut Ledger) -> Result<u64, LedgerError> {
    match ledger.apply_budgets(0, &[])? {
        BudgetsApplied::Stale { newest } => Ok(newest),
        BudgetsApplied::Set(_) => Ok(0),
    }
}
