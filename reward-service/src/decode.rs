//! From an event's bytes to an order, checked once, here; and from a stored order to the bytes of its event.

use bytes::Bytes;
use std::collections::BTreeSet;
use windfall_contract::accounts::StoredOrder;
use windfall_contract::rewards::Rejection;
use windfall_ledger::Order;
use windfall_proto::event::EventRef;
use windfall_proto::order::{check_amount, check_bonus_type, check_name, check_trade_no};

/// The error for bytes that are no order which this service takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(crate) struct NoOrder {
    pub rejection: Rejection,
    what: String,
}

impl NoOrder {
    fn malformed(what: String) -> Self {
        Self { rejection: Rejection::Malformed, what }
    }

    #[cfg(feature = "rpc")]
    pub fn of(what: &str) -> Self {
        Self::malformed(format!("{what} is not allowed"))
    }
}

/// The apps whose events a service takes; empty: any app. An event that names no app is the service's own.
pub(crate) fn takes_app(apps: &BTreeSet<String>, app_id: &str) -> bool {
    apps.is_empty() || app_id.is_empty() || apps.contains(app_id)
}

/// Reads an event of one of these apps.
pub(crate) fn own_order<'a>(
    bytes: &'a [u8],
    bonus_type: &str,
    now_ms: i64,
    apps: &BTreeSet<String>,
) -> Result<Order<'a>, NoOrder> {
    let (order, app_id) = read(bytes, Some(bonus_type), now_ms)?;
    if takes_app(apps, app_id) {
        return Ok(order);
    }
    let what = format!("the event is of app {app_id:?}, which this service does not take");
    Err(NoOrder { rejection: Rejection::ForeignApp, what })
}

/// The order number of an event, where it has a valid one.
pub(crate) fn trade_no(bytes: &[u8]) -> Option<&str> {
    Some(check_trade_no(EventRef::parse(bytes).ok()?.trade_no).ok()?.as_str())
}

/// Reads an event, of this bonus type where one is given, whatever its app.
pub(crate) fn order<'a>(
    bytes: &'a [u8],
    bonus_type: Option<&str>,
    now_ms: i64,
) -> Result<Order<'a>, NoOrder> {
    read(bytes, bonus_type, now_ms).map(|(order, _)| order)
}

fn read<'a>(bytes: &'a [u8], bonus_type: Option<&str>, now_ms: i64) -> Result<(Order<'a>, &'a str), NoOrder> {
    let event = EventRef::parse(bytes).map_err(|bad| NoOrder::malformed(bad.to_string()))?;
    let named = |field: &'static str| move |invalid| NoOrder::malformed(format!("{field} {invalid}"));
    let trade_no = check_trade_no(event.trade_no).map_err(named("trade_no"))?.as_str();
    let amount = check_amount(event.amount).map_err(named("amount"))?.get();
    check_name(event.activity).map_err(named("activity"))?;
    check_name(event.scene).map_err(named("scene"))?;
    match bonus_type {
        Some(expected) if expected == event.bonus_type => {}
        Some(expected) => {
            return Err(NoOrder::malformed(format!(
                "the event is of type {:?}, its batch of {expected:?}",
                event.bonus_type
            )));
        }
        None => {
            check_bonus_type(event.bonus_type).map_err(named("bonus type"))?;
        }
    }
    // There is no user 0: a missing field reads as 0.
    if event.user_id < 1 {
        return Err(NoOrder::malformed(format!("user_id is {}; it must be at least 1", event.user_id)));
    }
    let order = Order {
        trade_no,
        user_id: event.user_id,
        activity: event.activity,
        scene: event.scene,
        bonus_type: event.bonus_type,
        amount,
        time_ms: now_ms,
    };
    Ok((order, event.app_id))
}

/// The event of a stored order, with every field that decides its grant.
pub(crate) fn event_of(order: &StoredOrder) -> Bytes {
    let mut bytes = Vec::new();
    let event = EventRef {
        trade_no: &order.trade_no,
        user_id: order.user_id,
        activity: &order.activity,
        scene: &order.scene,
        bonus_type: &order.bonus_type,
        amount: order.amount,
        award_time_ms: order.created_ms,
        first_sent_ms: order.created_ms,
        ..EventRef::default()
    };
    event.encode([], &mut bytes);
    bytes.into()
}
