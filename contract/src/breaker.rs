//! A circuit breaker: after some failures in a row it lets nothing through but a probe now and then.

/// What the breaker says to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Call.
    Go,
    /// Do not call before this moment (monotonic ns).
    OpenUntil(u64),
}

/// Closed, open, or half open. The caller holds the lock and brings the time.
#[derive(Debug)]
pub struct Breaker {
    failures_in_a_row: u32,
    trip_at_failures: u32,
    probe_every_ns: u64,
    open_until_ns: Option<u64>,
    trips: u64,
}

impl Breaker {
    /// Opens after so many failures in a row (at least 1), and lets a probe through every so many nanoseconds.
    pub const fn new(trip_at_failures: u32, probe_every_ns: u64) -> Self {
        let trip_at_failures = if trip_at_failures == 0 { 1 } else { trip_at_failures };
        Self { failures_in_a_row: 0, trip_at_failures, probe_every_ns, open_until_ns: None, trips: 0 }
    }

    /// Asks for one call. An open breaker whose time is over passes it as its probe and stays open for the others
    /// until the probe's fate is known or the next probe is due.
    pub const fn ask(&mut self, now_ns: u64) -> Pass {
        match self.open_until_ns {
            Some(until) if now_ns < until => Pass::OpenUntil(until),
            Some(_) => {
                self.open_until_ns = Some(now_ns.saturating_add(self.probe_every_ns));
                Pass::Go
            }
            None => Pass::Go,
        }
    }

    /// An answer came: closes.
    pub const fn succeeded(&mut self) {
        self.failures_in_a_row = 0;
        self.open_until_ns = None;
    }

    /// No answer came: opens with the last failure that it forgives.
    pub const fn failed(&mut self, now_ns: u64) {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        if self.failures_in_a_row >= self.trip_at_failures {
            self.trip(now_ns);
        }
    }

    /// Opens at once: an answer is overdue.
    pub const fn trip(&mut self, now_ns: u64) {
        if self.open_until_ns.is_none() {
            self.trips += 1;
        }
        self.open_until_ns = Some(now_ns.saturating_add(self.probe_every_ns));
    }

    /// Whether calls are kept back.
    pub const fn is_open(&self) -> bool {
        self.open_until_ns.is_some()
    }

    /// Times that it went from closed to open.
    pub const fn trips(&self) -> u64 {
        self.trips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_failures_in_a_row_probes_and_closes_on_success() {
        let mut breaker = Breaker::new(3, 100);
        for now in [1, 2] {
            breaker.failed(now);
            assert_eq!(breaker.ask(now), Pass::Go);
        }
        breaker.failed(3);
        assert_eq!(breaker.ask(4), Pass::OpenUntil(103));
        assert_eq!(breaker.ask(103), Pass::Go, "the probe");
        assert_eq!(breaker.ask(104), Pass::OpenUntil(203), "one probe at a time");
        breaker.succeeded();
        assert_eq!(breaker.ask(105), Pass::Go);
        assert_eq!(breaker.trips(), 1);
        breaker.failed(106);
        assert_eq!(breaker.ask(107), Pass::Go, "an answer resets the count");
    }

    #[test]
    fn a_success_between_failures_keeps_it_closed() {
        let mut breaker = Breaker::new(2, 100);
        for now in 0..10 {
            breaker.failed(now);
            breaker.succeeded();
        }
        assert!(!breaker.is_open());
    }
}
