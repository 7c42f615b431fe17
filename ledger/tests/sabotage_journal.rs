//! With a promise of acts or of seals broken on purpose, reconciliation, the auditor or the chain's check must say so. A check that
//! stays green here is broken.
#![cfg(feature = "sabotage")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use windfall_ledger::{
    ActOutcome, Auditor, BudgetSet, Compared, Deed, Ended, FileAnchor, Increment, Ledger, LedgerOptions,
    LedgerReader, Operator, Order, OrderOutcome, Proposal, Proposed, Sealer, StoredAct, Tampering, sabotage,
};

/// A ledger in which one user has three credits of 10.
fn ledger(path: &Path) -> Ledger {
    let mut ledger = Ledger::open(path, &LedgerOptions::default()).unwrap();
    let cash = BudgetSet { activity: "spring", scene: "rain", bonus_type: "cash", total: 100, shards: 2 };
    ledger.set_budgets(&[cash]).unwrap();
    let order = |trade_no| Order {
        trade_no,
        user_id: 1,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 10,
        time_ms: 1,
    };
    assert_eq!(ledger.apply(&[order("a"), order("b"), order("c")]).unwrap(), [OrderOutcome::Credited; 3]);
    ledger
}

/// Two operators take order `a` back.
fn reverse(ledger: &mut Ledger, evidence: &str) -> ActOutcome {
    let by = |name: &str| Operator { name: name.into(), actor: String::new() };
    let deed =
        Deed::Reverse { activity: "spring".into(), trade_no: "a".into(), take_what_is_there: false, keep: 0 };
    let proposal = Proposal {
        deed,
        reason: "a mistake".into(),
        evidence: evidence.into(),
        operator: by("ann"),
        time_ms: 2,
        expires_ms: 1_000,
    };
    let proposed = ledger.transact(|tx| tx.propose_act(&proposal)).unwrap();
    let Proposed::Now(act) = proposed else { panic!("{proposed:?}") };
    let ended = ledger.transact(|tx| tx.approve_act(act.id, &by("bob"), 3)).unwrap();
    let Ended::Now(StoredAct { end: Some(end), .. }) = ended else { panic!("{ended:?}") };
    end.outcome
}

/// What an auditor finds who reads and sweeps all, by kind.
fn found(path: &Path) -> BTreeMap<String, u64> {
    let mut auditor = Auditor::open(path).unwrap();
    while auditor.increment(7).unwrap() != Increment::default() {}
    assert!(matches!(auditor.compare(7).unwrap(), Compared::Done { .. }));
    while !matches!(auditor.sweep(7).unwrap(), Compared::Done { is_last: true, .. }) {}
    auditor.progress().unwrap().open
}

/// Seals all, and returns what the chain's check says.
fn sealed(path: &Path, anchor: &Path) -> Vec<Tampering> {
    let mut anchor = FileAnchor::new(anchor);
    let mut sealer = Sealer::open(path).unwrap();
    assert!(sealer.seal(&mut anchor, 5).unwrap().is_some_and(|seal| seal.rows > 0));
    let verified = LedgerReader::open(path).unwrap().verify(Some(&anchor)).unwrap();
    verified.findings.iter().map(|finding| finding.tampering).collect()
}

/// One test, since the switches act on the whole process.
#[test]
fn each_broken_promise_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);

    let path = at("sound.db");
    let mut sound = ledger(&path);
    assert_eq!(reverse(&mut sound, "a letter"), ActOutcome::Done);
    assert_eq!(sealed(&path, &at("sound.anchor")), []);
    assert!(sound.reconcile().unwrap().is_clean() && found(&path).is_empty());

    let path = at("forgotten.db");
    let mut forgotten = ledger(&path);
    sabotage::forget_budgets_of_reversals(true);
    assert_eq!(reverse(&mut forgotten, "a letter"), ActOutcome::Done);
    sabotage::forget_budgets_of_reversals(false);
    let reconciled = forgotten.reconcile().unwrap();
    assert_eq!(reconciled.wrong_used, 1, "{reconciled:?}");
    assert_eq!(found(&path).get("wrong_used"), Some(&1));

    let path = at("twice.db");
    let mut twice = ledger(&path);
    sabotage::reverse_twice(true);
    for evidence in ["a letter", "another letter"] {
        assert_eq!(reverse(&mut twice, evidence), ActOutcome::Done);
    }
    sabotage::reverse_twice(false);
    assert_eq!(twice.balance(1, "cash").unwrap(), 10);
    let reconciled = twice.reconcile().unwrap();
    assert_eq!(reconciled.wrong_acts, 1, "{reconciled:?}");
    assert!(found(&path).contains_key("transfer_without_act"));

    let path = at("skipped.db");
    let _skipped = ledger(&path);
    sabotage::skip_a_row_of_seals(true);
    let findings = sealed(&path, &at("skipped.anchor"));
    sabotage::skip_a_row_of_seals(false);
    assert_eq!(findings, [Tampering::Added]);
}
