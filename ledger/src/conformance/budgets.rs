//! Budgets are never over, and are used up to the last piece (I4).

use super::{Outcome, Place, budget, clean, open, order};
use crate::{
    Attempt, BUDGET_MAX, BudgetSet, Finish, LedgerError, Order, OrderOutcome, Reason, Unbudgeted, Writers,
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
    assert_eq!(tx.reserve(&[order("b", 1, 5)], Attempt::Normal)?, [OrderOutcome::Reserved]);
    tx.commit()?;
    let raised = ledger.set_budgets(&[budget(12, 4)])?;
    assert_eq!((raised[0].asked, raised[0].total), (12, 15), "what was given before it was set counts");
    assert_eq!(ledger.apply(&[order("c", 1, 1)])?, [OrderOutcome::Rejected(Reason::BudgetExhausted)]);
    assert!(ledger.set_budgets(&[budget(16, 1)])?.is_empty());
    assert_eq!(ledger.apply(&[order("d", 1, 1)])?, [OrderOutcome::Credited]);
    let mut tx = ledger.begin()?;
    assert_eq!(tx.post(&["b"], 2_000)?, [Finish::Done]);
    tx.commit()?;
    let bad = ledger.set_budgets(&[budget(BUDGET_MAX + 1, 1)]);
    assert!(matches!(bad, Err(LedgerError::Invalid(_))), "{bad:?}");
    clean(place)
}

pub(super) fn unbudgeted(place: &dyn Place) -> Outcome {
    let mut ledger = place.open(Unbudgeted::Refuse)?;
    let rejected = [OrderOutcome::Rejected(Reason::BudgetExhausted)];
    assert_eq!(ledger.apply(&[order("a", 1, 1)])?, rejected);
    if ledger.writers() == Writers::Many {
        // Set by another: what this one remembers is old.
        open(place)?.set_budgets(&[budget(1, 1)])?;
    } else {
        ledger.set_budgets(&[budget(1, 1)])?;
    }
    assert_eq!(ledger.apply(&[order("b", 1, 1)])?, [OrderOutcome::Credited]);
    clean(place)
}
