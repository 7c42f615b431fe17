//! From an event's bytes to an order, checked once, here.

use windfall_ledger::Order;
use windfall_proto::event::EventRef;
use windfall_proto::order::{check_amount, check_bonus_type, check_name, check_trade_no};

/// Why bytes are no order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoOrder(String);

#[cfg(feature = "rpc")]
impl NoOrder {
    pub fn of(what: &str) -> Self {
        Self(format!("{what} is not allowed"))
    }
}

/// Reads an event, of this bonus type where one is given.
pub(crate) fn order<'a>(
    bytes: &'a [u8],
    bonus_type: Option<&str>,
    now_ms: i64,
) -> Result<Order<'a>, NoOrder> {
    let event = EventRef::parse(bytes).map_err(|bad| NoOrder(bad.to_string()))?;
    let named = |field: &'static str| move |invalid| NoOrder(format!("{field} {invalid}"));
    let trade_no = check_trade_no(event.trade_no).map_err(named("trade_no"))?.as_str();
    let amount = check_amount(event.amount).map_err(named("amount"))?.get();
    check_name(event.activity).map_err(named("activity"))?;
    check_name(event.scene).map_err(named("scene"))?;
    match bonus_type {
        Some(expected) if expected == event.bonus_type => {}
        Some(expected) => {
            return Err(NoOrder(format!(
                "the event is of type {:?}, its batch of {expected:?}",
                event.bonus_type
            )));
        }
        None => {
            check_bonus_type(event.bonus_type).map_err(named("bonus type"))?;
        }
    }
    Ok(Order {
        trade_no,
        user_id: event.user_id,
        activity: event.activity,
        scene: event.scene,
        bonus_type: event.bonus_type,
        amount,
        time_ms: now_ms,
    })
}
