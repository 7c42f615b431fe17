//! The orders and withdrawals that downstreams are being asked for: no two calls ask for the same one at once.

use parking_lot::Mutex;
use std::collections::HashSet;
use windfall_ledger::{OrderId, WithdrawalId};

/// The orders that a downstream is being asked for; never more than the batches in flight hold.
#[derive(Debug, Default)]
pub(crate) struct InFlightTable(Mutex<HashSet<Box<str>>>);

/// Orders claimed by one call; freed when it ends, cancelled or not.
pub(crate) struct Claims<'f> {
    in_flight: &'f InFlightTable,
    own: Vec<Box<str>>,
}

impl<'f> Claims<'f> {
    pub fn new(in_flight: &'f InFlightTable) -> Self {
        Self { in_flight, own: Vec::new() }
    }

    /// Claims an order; false where another call, or this one, has it in flight already.
    pub fn claim_order(&mut self, id: OrderId<'_>) -> bool {
        self.claim(format!("order {} {}", id.activity, id.trade_no).into())
    }

    /// Claims a withdrawal likewise.
    pub fn claim_withdrawal(&mut self, id: WithdrawalId<'_>) -> bool {
        self.claim(format!("withdrawal {} {}", id.user_id, id.id).into())
    }

    fn claim(&mut self, name: Box<str>) -> bool {
        let fresh = self.in_flight.0.lock().insert(name.clone());
        if fresh {
            self.own.push(name);
        }
        fresh
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let mut all = self.in_flight.0.lock();
        for name in &self.own {
            all.remove(name);
        }
    }
}
