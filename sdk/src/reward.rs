//! A reward to send, borrowed from the caller and checked once.

use crate::options::{
    DESCRIPTION_MAX_BYTES, DEVICE_ID_MAX_BYTES, EXTENSION_ENTRIES_MAX, EXTENSION_KEY_MAX_BYTES,
    EXTENSION_VALUE_MAX_BYTES,
};
use std::collections::HashMap;
use windfall_proto::event::EventRef;
use windfall_proto::order::{self, Invalid};
use windfall_proto::send::SendError;
use windfall_proto::v1::SendBonusRequest;

/// The user who gets a bonus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User<'a> {
    /// The user's id, 1 or more.
    pub user_id: i64,
    /// The user's device; may be empty.
    pub device_id: &'a str,
}

impl User<'_> {
    /// A user whose device does not matter.
    pub const fn id(user_id: i64) -> Self {
        Self { user_id, device_id: "" }
    }
}

/// A request whose arguments have been checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checked<'a> {
    pub(crate) event: EventRef<'a>,
    pub(crate) extension: Option<&'a HashMap<String, String>>,
    /// Unix milliseconds; 0 for at once.
    pub(crate) not_before_ms: i64,
}

/// Checks a request of the general call.
pub(crate) fn check<'a>(request: &'a SendBonusRequest, app_id: &'a str) -> Result<Checked<'a>, SendError> {
    let user = request.user.as_ref().ok_or(SendError::invalid("user", Invalid::Empty))?;
    let bonus = request.bonus.as_ref().ok_or(SendError::invalid("bonus", Invalid::Empty))?;
    if !user.app_id.is_empty() && user.app_id != app_id {
        return Err(SendError::OtherApp { named: user.app_id.clone(), own: app_id.to_owned() });
    }
    order::check_name(&request.activity).map_err(|why| SendError::invalid("activity", why))?;
    order::check_name(&request.scene).map_err(|why| SendError::invalid("scene", why))?;
    order::check_bonus_type(&bonus.r#type).map_err(|why| SendError::invalid("bonus.type", why))?;
    if !matches!(request.trace_id.len(), 0 | 16) {
        return Err(SendError::invalid(
            "trace_id",
            Invalid::TooLong { len: request.trace_id.len(), max: 16 },
        ));
    }
    check_extension(&request.extension)?;
    if request.not_before_ms < 0 {
        let why = Invalid::Range { value: request.not_before_ms, max: i64::MAX };
        return Err(SendError::invalid("not_before_ms", why));
    }
    let event = EventRef {
        trade_no: &request.trade_no,
        user_id: user.user_id,
        device_id: &user.device_id,
        app_id,
        activity: &request.activity,
        scene: &request.scene,
        bonus_type: &bonus.r#type,
        amount: bonus.amount,
        description: &bonus.description,
        award_time_ms: request.award_time_ms,
        first_sent_ms: 0,
        trace_id: &request.trace_id,
    };
    let checked = check_event(event, Some(&request.extension))?;
    Ok(Checked { not_before_ms: request.not_before_ms, ..checked })
}

/// Checks what differs from call to call; activity, scene and type have been checked before.
pub(crate) fn check_event<'a>(
    event: EventRef<'a>,
    extension: Option<&'a HashMap<String, String>>,
) -> Result<Checked<'a>, SendError> {
    order::check_trade_no(event.trade_no).map_err(|why| SendError::invalid("trade_no", why))?;
    if event.user_id < 1 {
        let why = Invalid::Range { value: event.user_id, max: i64::MAX };
        return Err(SendError::invalid("user.user_id", why));
    }
    order::check_text(event.device_id, DEVICE_ID_MAX_BYTES)
        .map_err(|why| SendError::invalid("user.device_id", why))?;
    order::check_amount(event.amount).map_err(|why| SendError::invalid("bonus.amount", why))?;
    order::check_text(event.description, DESCRIPTION_MAX_BYTES)
        .map_err(|why| SendError::invalid("bonus.description", why))?;
    if event.award_time_ms < 0 {
        let why = Invalid::Range { value: event.award_time_ms, max: i64::MAX };
        return Err(SendError::invalid("award_time_ms", why));
    }
    Ok(Checked { event, extension, not_before_ms: 0 })
}

fn check_extension(extension: &HashMap<String, String>) -> Result<(), SendError> {
    if extension.len() > EXTENSION_ENTRIES_MAX {
        let why = Invalid::TooLong { len: extension.len(), max: EXTENSION_ENTRIES_MAX };
        return Err(SendError::invalid("extension", why));
    }
    for (key, value) in extension {
        let key_fits = if key.is_empty() {
            Err(Invalid::Empty)
        } else {
            order::check_text(key, EXTENSION_KEY_MAX_BYTES)
        };
        key_fits.map_err(|why| SendError::invalid("extension key", why))?;
        order::check_text(value, EXTENSION_VALUE_MAX_BYTES)
            .map_err(|why| SendError::invalid("extension value", why))?;
    }
    Ok(())
}
