//! What becomes of an act that is approved or refused, given what is stored of it and of its subject. Pure.

use super::model::{ActOutcome, Deed, Proposal, StoredAct};
use crate::error::LedgerError;
use crate::model::{Awaits, Finish};
use crate::withdrawal::StoredWithdrawal;
use windfall_contract::accounts::{Status, StoredOrder};
use windfall_proto::order::AMOUNT_MAX;

/// The longest reason and evidence, in bytes.
const TEXT_MAX_BYTES: usize = 1_000;

/// Whether an approval performs its act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Approval {
    Perform,
    Before,
    Expired,
    SameOperator,
}

/// What an approval by the operator of this name does.
pub(crate) fn approval(act: &StoredAct, by: &str, now_ms: i64) -> Approval {
    if act.end.is_some() {
        Approval::Before
    } else if act.is_expired(now_ms) {
        Approval::Expired
    } else if act.proposal.operator.name == by {
        Approval::SameOperator
    } else {
        Approval::Perform
    }
}

/// Whether an act with the same key makes a proposal a repeat: it is open, or was done.
pub(crate) fn is_repeat(before: &StoredAct, now_ms: i64) -> bool {
    match &before.end {
        None => !before.is_expired(now_ms),
        Some(end) => end.outcome == ActOutcome::Done,
    }
}

/// Checks a proposal. The edge checks texts as well; the database must not be the first to notice.
pub(crate) fn check(proposal: &Proposal) -> Result<(), LedgerError> {
    let invalid = |what: String| Err(LedgerError::Invalid(what));
    let Proposal { deed, reason, evidence, operator, time_ms, expires_ms } = proposal;
    for (name, text) in [("reason", reason), ("evidence", evidence)] {
        if text.trim().is_empty() || text.len() > TEXT_MAX_BYTES || text.chars().any(char::is_control) {
            return invalid(format!("{name}: 1 to {TEXT_MAX_BYTES} bytes without control characters"));
        }
    }
    if operator.name.trim().is_empty() {
        return invalid("an act needs the name of who proposes it".into());
    }
    if expires_ms <= time_ms {
        return invalid("an act must be open for a while".into());
    }
    let texts: &[&String] = match deed {
        Deed::Reverse { keep, .. } if !(0..AMOUNT_MAX).contains(keep) => {
            return invalid(format!("what is kept of an order is 0 to {}", AMOUNT_MAX - 1));
        }
        Deed::SettleOrder { activity, trade_no, .. }
        | Deed::Release { activity, trade_no }
        | Deed::Reverse { activity, trade_no, .. } => &[activity, trade_no],
        Deed::Correct(correction) => match correction.wrong(*time_ms) {
            Some(why) => return invalid(why),
            None => &[],
        },
        Deed::SettleWithdrawal { withdrawal, .. } => &[withdrawal],
        Deed::Adjust { activity, bonus_type, amount, .. } if (1..=AMOUNT_MAX).contains(amount) => {
            &[activity, bonus_type]
        }
        Deed::Adjust { .. } => return invalid(format!("an adjustment is of 1 to {AMOUNT_MAX}")),
        Deed::Freeze { .. } | Deed::Thaw { .. } => &[],
    };
    let scene = if let Deed::Adjust { scene, .. } = deed { scene.as_str() } else { "" };
    if texts.iter().any(|text| text.is_empty())
        || texts.iter().any(|text| text.contains('\0'))
        || scene.contains('\0')
    {
        return invalid("what an act is about must be named, without NUL".into());
    }
    Ok(())
}

/// An order as an act finds it, and what it waits for where it is reserved.
pub(crate) type Standing = (StoredOrder, Awaits);

/// Why an order cannot be settled or released; `None`: it can.
pub(crate) fn not_waiting(found: Option<&Standing>) -> Option<String> {
    let Some((order, awaits)) = found else {
        return Some("the ledger has no such order of this activity".into());
    };
    match (order.status, awaits) {
        (Status::Reserved, Awaits::Payer) => None,
        (Status::Reserved, Awaits::Event) => Some("the order waits for its event, not for a payer".into()),
        (status, _) => Some(ended(status)),
    }
}

/// Why an order cannot be reversed; `None`: it can.
pub(crate) fn not_credited(found: Option<&Standing>) -> Option<String> {
    let Some((order, _)) = found else {
        return Some("the ledger has no such order of this activity".into());
    };
    match order.status {
        Status::Credited => None,
        Status::Reserved => Some("the order is not credited: it is reserved".into()),
        Status::Rejected(_) => Some("the order is not credited: it was rejected".into()),
    }
}

fn ended(status: Status) -> String {
    match status {
        Status::Reserved => "the order is reserved".into(),
        Status::Credited => "the order was credited meanwhile".into(),
        Status::Rejected(reason) => format!("the order was rejected meanwhile: {reason:?}"),
    }
}

/// Why a withdrawal cannot be settled; `None`: it can.
pub(crate) fn not_held(found: Option<&StoredWithdrawal>) -> Option<String> {
    use crate::withdrawal::WithdrawalStatus::{Held, Paid, Refused};
    let Some(found) = found else {
        return Some("the ledger has no such withdrawal of this user".into());
    };
    match found.status {
        Held => None,
        Paid => Some("the withdrawal was paid meanwhile".into()),
        Refused => Some(format!("the withdrawal was given back meanwhile: {}", found.reason)),
    }
}

/// Why ending did nothing, where its subject ended between two statements; `None`: it was done.
pub(crate) fn not_done(finish: Option<&Finish>) -> Option<String> {
    match finish {
        Some(Finish::Done) => None,
        Some(Finish::Before) => Some("it had ended in this way before".into()),
        Some(Finish::Otherwise) => Some("it had ended otherwise before".into()),
        Some(Finish::Unknown) | None => Some("the ledger does not know it".into()),
    }
}

/// How much of an amount is taken from a balance; `Err` with what is missing.
pub(crate) const fn part(balance: i64, amount: i64, take_what_is_there: bool) -> Result<i64, i64> {
    if balance >= amount {
        Ok(amount)
    } else if take_what_is_there && balance > 0 {
        Ok(balance)
    } else {
        Err(amount - balance)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{ActEnd, Operator};
    use super::*;

    fn by(name: &str) -> Operator {
        Operator { name: name.into(), actor: String::new() }
    }

    fn act(end: Option<ActOutcome>) -> StoredAct {
        let proposal = Proposal {
            deed: Deed::Freeze { user_id: 7 },
            reason: "why".into(),
            evidence: "ticket 1".into(),
            operator: by("ann"),
            time_ms: 1_000,
            expires_ms: 2_000,
        };
        let end = end.map(|outcome| ActEnd {
            outcome,
            detail: String::new(),
            amount: 0,
            operator: by("bob"),
            time_ms: 1_500,
        });
        StoredAct { id: 1, proposal, parent: 0, end }
    }

    #[test]
    fn an_act_is_performed_once_in_time_and_by_another() {
        assert_eq!(approval(&act(None), "bob", 1_999), Approval::Perform);
        assert_eq!(approval(&act(None), "ann", 1_999), Approval::SameOperator);
        assert_eq!(approval(&act(None), "bob", 2_000), Approval::Expired);
        for end in [ActOutcome::Done, ActOutcome::NotDone, ActOutcome::Refused] {
            assert_eq!(approval(&act(Some(end)), "eve", 1_600), Approval::Before);
            assert_eq!(
                approval(&act(Some(end)), "eve", 9_000),
                Approval::Before,
                "it ended, it did not expire"
            );
        }
    }

    #[test]
    fn what_was_done_is_never_proposed_again_and_what_came_to_nothing_is() {
        assert!(is_repeat(&act(None), 1_999));
        assert!(!is_repeat(&act(None), 2_000), "nobody approved it in time");
        assert!(is_repeat(&act(Some(ActOutcome::Done)), 9_000));
        for end in [ActOutcome::NotDone, ActOutcome::Refused] {
            assert!(!is_repeat(&act(Some(end)), 1_600));
        }
    }

    #[test]
    fn no_balance_goes_below_0() {
        assert_eq!(part(10, 10, false), Ok(10));
        assert_eq!(part(9, 10, false), Err(1));
        assert_eq!(part(9, 10, true), Ok(9));
        assert_eq!(part(0, 10, true), Err(10), "there is nothing to take");
        assert_eq!(part(-3, 10, true), Err(13));
    }

    #[test]
    fn a_deed_is_the_same_after_it_was_stored() {
        let deed =
            Deed::Reverse { activity: "a b".into(), trade_no: "t".into(), take_what_is_there: true, keep: 0 };
        let text = serde_json::to_string(&deed).unwrap();
        assert!(text.starts_with(r#"{"kind":"reverse""#) && !text.contains("keep"), "{text}");
        assert_eq!(serde_json::from_str::<Deed>(&text).unwrap(), deed);
        assert_eq!(deed.subject().to_string(), "order t a b");
    }

    #[test]
    fn an_adjustment_is_of_no_more_than_an_order() {
        let (activity, scene, bonus_type) = ("a".to_owned(), "s".to_owned(), "cash".to_owned());
        let deed = Deed::Adjust { user_id: 7, activity, scene, bonus_type, amount: 1, to_user: true };
        for (own, is_allowed) in
            [(0, false), (1, true), (AMOUNT_MAX, true), (AMOUNT_MAX + 1, false), (i64::MAX, false)]
        {
            let mut deed = deed.clone();
            if let Deed::Adjust { amount, .. } = &mut deed {
                *amount = own;
            }
            let asked = Proposal { deed, ..act(None).proposal };
            assert_eq!(check(&asked).is_ok(), is_allowed, "{own}");
        }
    }

    #[test]
    fn a_proposal_without_reason_or_evidence_is_none() {
        assert!(check(&act(None).proposal).is_ok());
        for (reason, evidence) in [("", "x"), ("x", " "), ("x\ny", "x"), ("x", &*"x".repeat(1_001))] {
            let bad = Proposal { reason: reason.into(), evidence: evidence.into(), ..act(None).proposal };
            assert!(check(&bad).is_err(), "{reason:?} {evidence:?}");
        }
    }
}
