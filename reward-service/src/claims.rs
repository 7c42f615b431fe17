//! The orders that downstreams are being asked for: no two calls ask for the same order at once.

use parking_lot::Mutex;
use std::collections::HashSet;

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
    pub fn claim(&mut self, trade_no: &str) -> bool {
        let fresh = self.in_flight.0.lock().insert(trade_no.into());
        if fresh {
            self.own.push(trade_no.into());
        }
        fresh
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let mut all = self.in_flight.0.lock();
        for trade_no in &self.own {
            all.remove(trade_no);
        }
    }
}
