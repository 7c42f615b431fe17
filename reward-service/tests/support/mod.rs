//! What the tests of this crate share.
#![allow(dead_code, clippy::unwrap_used)]

use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use windfall_contract::Clock;
use windfall_contract::connector::Connector;
use windfall_ledger::{Ledger, LedgerOptions, LedgerReader, OrderId, Unbudgeted};
use windfall_proto::event::EventRef;
use windfall_reward_service::{Payer, RewardHandle, RewardOptions, RewardService};

pub fn event<'a>(trade_no: &'a str, user_id: i64, bonus_type: &'a str, amount: i64) -> EventRef<'a> {
    EventRef {
        trade_no,
        user_id,
        app_id: "app",
        activity: "spring-2027",
        scene: "rain",
        bonus_type,
        amount,
        award_time_ms: 1,
        first_sent_ms: 1,
        ..EventRef::default()
    }
}

pub fn bytes(event: EventRef<'_>) -> Bytes {
    let mut out = Vec::new();
    event.encode([], &mut out);
    out.into()
}

pub fn cash(trade_no: &str, user_id: i64, amount: i64) -> Bytes {
    bytes(event(trade_no, user_id, "cash", amount))
}

pub fn badge(trade_no: &str) -> Bytes {
    bytes(event(trade_no, 7, "badge", 1))
}

/// The name of an order of [`event`].
pub fn id(trade_no: &str) -> OrderId<'_> {
    OrderId { activity: "spring-2027", trade_no }
}

pub fn ledger_path(folder: &Path) -> PathBuf {
    folder.join("ledger.db")
}

pub fn start(folder: &Path) -> RewardHandle {
    start_with(folder, RewardOptions::default(), vec![])
}

/// Badges are paid by the connector `fake`.
pub fn badge_options() -> RewardOptions {
    let mut options = RewardOptions::default();
    options.pays.insert("badge".into(), Payer::Connector("fake".into()));
    options
}

pub fn start_with(
    folder: &Path,
    options: RewardOptions,
    connectors: Vec<Arc<dyn Connector>>,
) -> RewardHandle {
    let ledger = Ledger::open(
        ledger_path(folder),
        &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
    )
    .unwrap();
    RewardService::start(options, ledger, connectors, None, Clock::system()).unwrap()
}

pub fn assert_clean(folder: &Path) {
    let found = LedgerReader::open(ledger_path(folder)).unwrap().reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
}
