//! What must be true when the race is over.

use super::seen::Seen;
use super::{
    ORDERS, Path, TOTAL, USERS, WITHDRAWALS, amount_of, end, number_of, path_of, trade_no, user_of,
    withdrawal_id,
};
use crate::ledger::chain::{Memory, PATIENCE};
use crate::ledger::{Outcome, Place, clean, id, open, out, settled};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};
use windfall_contract::accounts::{FlowKind, Reason, Status};
use windfall_ledger::{
    ActFilter, ActOutcome, Compared, Deed, Increment, Ledger, LedgerReader, StoredAct, WithdrawalStatus,
};

pub(super) fn everything_fits(place: &dyn Place, mut seen: Seen, anchor: Memory) -> Outcome {
    end_what_waits(&mut open(place)?, &mut seen)?;
    let (ledger, reader) = (open(place)?, place.reader()?);
    each_order_once(&reader, &seen)?;
    each_withdrawal_once(&ledger, &seen)?;
    let acts = acts_of(&reader)?;
    each_act_once(&reader, &acts, &seen)?;
    all_sums(place, &ledger, &reader, &acts)?;
    drop((ledger, reader));
    clean(place)?;
    the_chain_is_whole(place, anchor)?;
    nothing_differs(place)
}

/// Payers say of all that waits for them whether they have paid it. One whose answer was lost was never asked: it pays now.
fn end_what_waits(ledger: &mut Ledger, seen: &mut Seen) -> Outcome {
    for number in 0..WITHDRAWALS {
        let name = withdrawal_id(number);
        let which = out(user_of(number), &name);
        if ledger.withdrawal(which)?.is_some_and(|stored| stored.status == WithdrawalStatus::Held) {
            let paid = *seen.paid_withdrawals.entry(number).or_insert(true);
            for finish in ledger.transact(|tx| end(tx, which, paid))? {
                seen.tell_end(number, finish, paid);
            }
        }
    }
    for number in (0..ORDERS).filter(|number| path_of(*number) == Path::Paid) {
        let name = trade_no(number);
        if ledger.order(id(&name))?.is_none_or(|stored| stored.status != Status::Reserved) {
            continue;
        }
        if *seen.paid_orders.entry(number).or_insert(true) {
            for finish in ledger.transact(|tx| tx.post(&[id(&name)], 8_000))? {
                seen.tell_paid(number, finish);
            }
        } else {
            ledger.transact(|tx| tx.release(&[(id(&name), Reason::DownstreamRefused)], 8_000))?;
        }
    }
    Ok(())
}

/// Each order at most once, and exactly once if some answer, or its payer, has said so (I1).
fn each_order_once(reader: &LedgerReader, seen: &Seen) -> Outcome {
    let (mut credited, mut rejected) = (0, 0);
    for line in reader.orders()? {
        let line = line?;
        let number = number_of(&line.trade_no).ok_or("an order that nobody has asked for")?;
        let is_credited = line.status == Status::Credited;
        assert_eq!(line.credits, u32::from(is_credited), "I1: {line:?}");
        assert_eq!((line.user_id, line.amount), (user_of(number), amount_of(number)), "{line:?}");
        let times = seen.credited.get(&number).copied().unwrap_or(0);
        assert!(times <= u32::from(is_credited), "I1: answered as credited {times} times: {line:?}");
        assert!(is_credited || !seen.was_said(number), "an answer has said that it is credited: {line:?}");
        if path_of(number) == Path::Paid {
            let was_paid = seen.paid_orders.get(&number) == Some(&true);
            assert_eq!(was_paid, is_credited, "what its payer has done: {line:?}");
        }
        credited += u64::from(is_credited);
        rejected += u64::from(line.status == Status::Rejected(Reason::BudgetExhausted));
    }
    assert!(credited > 0 && rejected > 0, "{credited} credited, {rejected} without a budget: it was no race");
    Ok(())
}

/// Each withdrawal is held at most once, and ended once, as its payer has said.
fn each_withdrawal_once(ledger: &Ledger, seen: &Seen) -> Outcome {
    let mut all_paid = 0;
    for number in 0..WITHDRAWALS {
        let count = |of: &BTreeMap<u64, u32>| of.get(&number).copied().unwrap_or(0);
        let (held, ended) = (count(&seen.held), count(&seen.ended));
        let was_paid = seen.paid_withdrawals.get(&number) == Some(&true);
        let Some(stored) = ledger.withdrawal(out(user_of(number), &withdrawal_id(number)))? else {
            assert_eq!((held, ended, was_paid), (0, 0, false), "withdrawal {number} is gone");
            continue;
        };
        assert!(held <= 1 && ended <= 1, "held {held} times, ended {ended} times: {stored:?}");
        let status = if was_paid { WithdrawalStatus::Paid } else { WithdrawalStatus::Refused };
        assert_eq!(stored.status, status, "what its payer has done: {stored:?}");
        all_paid += u64::from(was_paid);
    }
    assert!(all_paid > 0, "nothing was paid out: it was no race");
    Ok(())
}

fn acts_of(reader: &LedgerReader) -> Result<Vec<StoredAct>, Box<dyn Error>> {
    let mut all: Vec<StoredAct> = Vec::new();
    loop {
        let after = all.last().map_or(0, |act| act.id);
        let page = reader.acts(&ActFilter { after, limit: 500, ..ActFilter::default() })?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// What an act that was done has moved; `None` where it was not done.
fn done(act: &StoredAct) -> Option<i64> {
    act.end.as_ref().filter(|end| end.outcome == ActOutcome::Done).map(|end| end.amount)
}

/// Each act ends once, each order is reversed once, and a user is frozen as often as thawed, or once more.
fn each_act_once(reader: &LedgerReader, acts: &[StoredAct], seen: &Seen) -> Outcome {
    let (mut reversed, mut frozen) = (BTreeMap::<&str, u32>::new(), BTreeMap::<i64, i32>::new());
    for act in acts {
        let times = seen.ended_acts.get(&act.id).copied().unwrap_or(0);
        assert!(times <= u32::from(act.end.is_some()), "ended {times} times: {act:?}");
        if done(act).is_none() {
            continue;
        }
        let by = act.end.as_ref().map(|end| &end.operator.name);
        assert_ne!(by, Some(&act.proposal.operator.name), "two operators: {act:?}");
        match &act.proposal.deed {
            Deed::Reverse { trade_no, .. } => *reversed.entry(trade_no).or_default() += 1,
            Deed::Freeze { user_id } => *frozen.entry(*user_id).or_default() += 1,
            Deed::Thaw { user_id } => *frozen.entry(*user_id).or_default() -= 1,
            _ => {}
        }
    }
    // Whether one of them was still to be reversed is the race's own matter: it may have been withdrawn or never credited.
    let is_decided = |act: &StoredAct| matches!(act.proposal.deed, Deed::Reverse { .. }) && act.end.is_some();
    assert!(acts.iter().any(is_decided), "no reversal was decided: it was no race");
    assert!(reversed.values().all(|times| *times == 1), "{reversed:?}");
    for user in 0..USERS {
        let user = user.cast_signed();
        let expected = i32::from(reader.frozen(user)?.is_some());
        assert_eq!(frozen.get(&user).copied().unwrap_or(0), expected, "user {user}");
    }
    Ok(())
}

/// Balances, the budget and the payer's settlement are what orders, withdrawals and acts come to, and a balance is the sum of
/// its lines.
fn all_sums(place: &dyn Place, ledger: &Ledger, reader: &LedgerReader, acts: &[StoredAct]) -> Outcome {
    let mut balances = BTreeMap::<i64, i64>::new();
    let (mut used, mut reserved, mut paid) = (0, 0, 0);
    for line in reader.orders()? {
        let line = line?;
        let number = number_of(&line.trade_no).ok_or("an order that nobody has asked for")?;
        match (line.status, path_of(number)) {
            (Status::Credited, Path::Paid) => (used, paid) = (used + line.amount, paid + line.amount),
            (Status::Credited, _) => {
                used += line.amount;
                *balances.entry(line.user_id).or_default() += line.amount;
            }
            (Status::Reserved, _) => reserved += line.amount,
            (Status::Rejected(_), _) => {}
        }
    }
    for act in acts {
        let Some(amount) = done(act) else { continue };
        match &act.proposal.deed {
            Deed::Reverse { trade_no, .. } => {
                let number = number_of(trade_no).ok_or("a reversal of what nobody has asked for")?;
                used -= amount;
                match path_of(number) {
                    Path::Paid => paid -= amount,
                    Path::Credited | Path::Promised => {
                        *balances.entry(user_of(number)).or_default() -= amount
                    }
                }
            }
            Deed::Adjust { user_id, scene, to_user, .. } => {
                let change = if *to_user { amount } else { -amount };
                *balances.entry(*user_id).or_default() += change;
                used += if scene.is_empty() { 0 } else { change };
            }
            _ => {}
        }
    }
    for number in 0..WITHDRAWALS {
        let stored = ledger.withdrawal(out(user_of(number), &withdrawal_id(number)))?;
        if stored.is_some_and(|stored| stored.status == WithdrawalStatus::Paid) {
            *balances.entry(user_of(number)).or_default() -= amount_of(number);
        }
    }
    for user in 0..USERS {
        let user = user.cast_signed();
        let balance = ledger.balance(user, "cash")?;
        assert!(balance >= 0, "user {user} has {balance}");
        assert_eq!(balance, balances.get(&user).copied().unwrap_or(0), "user {user}");
        let lines = reader.flow(user, 10_000)?;
        let sum: i64 = lines.iter().map(|line| signed(line.kind, line.amount)).sum();
        assert_eq!(balance, sum, "the lines of user {user}");
    }
    let states = ledger.budgets()?;
    let own = states.iter().find(|state| state.scene == "rain").ok_or("no budget")?;
    assert_eq!((own.used, own.reserved, own.total), (used, reserved, Some(TOTAL)));
    assert!(own.used + own.reserved <= TOTAL, "I4: {own:?}");
    assert_eq!(settled(place, "bank")?, paid, "what its payer has paid");
    Ok(())
}

const fn signed(kind: FlowKind, amount: i64) -> i64 {
    match kind {
        FlowKind::Credit | FlowKind::Return => amount,
        FlowKind::Withdrawal | FlowKind::TakenBack => -amount,
        FlowKind::Settled | FlowKind::SettledTakenBack => 0,
    }
}

fn the_chain_is_whole(place: &dyn Place, mut anchor: Memory) -> Outcome {
    let (mut sealer, began) = (place.sealer()?, Instant::now());
    loop {
        while sealer.seal(&mut anchor, 9_000)?.is_some() {}
        let found = place.reader()?.verify(Some(&anchor))?;
        assert!(found.is_clean() && found.seals > 0, "{found:?}");
        if found.unsealed == 0 {
            return Ok(());
        }
        // Another transaction of the server may be open for a while: nothing behind it is final.
        assert!(began.elapsed() < PATIENCE, "{found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The auditor reads what is left, compares, and sweeps all.
fn nothing_differs(place: &dyn Place) -> Outcome {
    let (mut auditor, began) = (place.auditor()?, Instant::now());
    while auditor.increment(9_000)? != Increment::default() || auditor.progress()?.tail > 0 {
        assert!(began.elapsed() < PATIENCE, "{:?}", auditor.progress()?);
    }
    assert!(matches!(auditor.compare(9_000)?, Compared::Done { .. }));
    while !matches!(auditor.sweep(9_000)?, Compared::Done { is_last: true, .. }) {
        assert!(began.elapsed() < PATIENCE, "the sweep does not end");
    }
    let progress = auditor.progress()?;
    assert!(progress.is_clean() && progress.unsealed == 0, "{progress:?}");
    Ok(())
}
