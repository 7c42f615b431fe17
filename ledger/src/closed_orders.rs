//! What orders of closed activities are answered.

use crate::contract::Transaction;
use crate::error::LedgerError;
use crate::model::{Attempt, Order, OrderOutcome};
use windfall_contract::accounts::{Reason, Status, StoredOrder};

/// Hands the orders of open activities to `run`, and answers those of closed ones by what is stored. The places of the former in the batch
/// are given where there are any of the latter.
pub(crate) fn split<'t, 'o>(
    tx: &mut (dyn Transaction + 't),
    batch: &[Order<'o>],
    attempt: Attempt,
    run: impl FnOnce(
        &mut (dyn Transaction + 't),
        &[Order<'o>],
        Option<&[usize]>,
    ) -> Result<Vec<OrderOutcome>, LedgerError>,
) -> Result<Vec<OrderOutcome>, LedgerError> {
    let closed = tx.closed(batch)?;
    if closed.is_empty() {
        return run(tx, batch, None);
    }
    batch.iter().try_for_each(Order::check)?;
    let is_closed = |order: &Order<'_>| closed.contains(order.activity);
    let places: Vec<usize> = (0..batch.len()).filter(|at| !is_closed(&batch[*at])).collect();
    let open: Vec<Order<'o>> = places.iter().map(|at| batch[*at]).collect();
    let mut decided = run(tx, &open, Some(&places))?.into_iter();
    let ids: Vec<_> = batch.iter().filter(|order| is_closed(order)).map(Order::id).collect();
    let mut stored = tx.orders(&ids)?.into_iter();
    let mut outcomes = Vec::with_capacity(batch.len());
    for order in batch {
        let outcome = match is_closed(order) {
            true => stored.next().map(|stored| answer(stored.as_ref(), order, attempt)),
            false => decided.next(),
        };
        outcomes.push(outcome.ok_or_else(|| LedgerError::Damaged("an answer is missing".into()))?);
    }
    Ok(outcomes)
}

/// The answer to an order of a closed activity.
fn answer(stored: Option<&StoredOrder>, order: &Order<'_>, attempt: Attempt) -> OrderOutcome {
    let Some(stored) = stored else { return OrderOutcome::Rejected(Reason::ActivityClosed) };
    let same = (stored.user_id, stored.amount) == (order.user_id, order.amount)
        && (&*stored.activity, &*stored.scene, &*stored.bonus_type)
            == (order.activity, order.scene, order.bonus_type);
    match stored.status {
        _ if !same => OrderOutcome::Conflict,
        Status::Credited => OrderOutcome::AlreadyCredited,
        Status::Reserved => OrderOutcome::Reserved,
        Status::Rejected(reason) if attempt == Attempt::Normal => OrderOutcome::Rejected(reason),
        Status::Rejected(_) => OrderOutcome::Rejected(Reason::ActivityClosed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order<'_> = Order {
        trade_no: "a",
        user_id: 7,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 10,
        time_ms: 1,
    };

    fn stored(status: Status) -> StoredOrder {
        StoredOrder {
            key: "a spring".into(),
            trade_no: "a".into(),
            user_id: 7,
            activity: "spring".into(),
            scene: "rain".into(),
            bonus_type: "cash".into(),
            amount: 10,
            status,
            payer: String::new(),
            created_ms: 1,
            decided_ms: None,
        }
    }

    #[test]
    fn nothing_that_asks_for_money_gets_it() {
        let closed = OrderOutcome::Rejected(Reason::ActivityClosed);
        let refused = Status::Rejected(Reason::BudgetExhausted);
        for attempt in [Attempt::Normal, Attempt::Replay] {
            assert_eq!(answer(None, &ORDER, attempt), closed);
            let known = |status| answer(Some(&stored(status)), &ORDER, attempt);
            assert_eq!(known(Status::Credited), OrderOutcome::AlreadyCredited);
            assert_eq!(known(Status::Reserved), OrderOutcome::Reserved);
            let again = match attempt {
                Attempt::Normal => OrderOutcome::Rejected(Reason::BudgetExhausted),
                Attempt::Replay => closed,
            };
            assert_eq!(known(refused), again);
            for other in [
                Order { user_id: 8, ..ORDER },
                Order { amount: 11, ..ORDER },
                Order { scene: "cards", ..ORDER },
                Order { bonus_type: "coin", ..ORDER },
            ] {
                assert_eq!(answer(Some(&stored(Status::Credited)), &other, attempt), OrderOutcome::Conflict);
            }
        }
    }
}
