//! A circuit breaker: after some failures in a row it lets nothing through but a probe now and then.

/// What the breaker says to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The call may be made.
    Go,
    /// The breaker is open: no call before this moment (monotonic nanoseconds).
    OpenUntil(u64),
}

/// A circuit breaker that is closed, open or half open. The caller holds the lock and passes the time.
#[derive(Debug)]
pub struct Breaker {
    failures_in_a_row: u32,
    trip_at_failures: u32,
    probe_every_ns: u64,
    open_until_ns: Option<u64>,
    trips: u64,
}

impl Breaker {
    /// A closed breaker that opens after `trip_at_failures` failures in a row (at least 1), and then lets one probe
    /// through every `probe_every_ns` nanoseconds.
    pub const fn new(trip_at_failures: u32, probe_every_ns: u64) -> Self {
        let trip_at_failures = if trip_at_failures == 0 { 1 } else { trip_at_failures };
        Self { failures_in_a_row: 0, trip_at_failures, probe_every_ns, open_until_ns: None, trips: 0 }
    }

    /// Asks for one call. An open breaker whose time is over passes it as its probe and stays open for the others
    /// until the probe has been answered or the next probe is due.
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

    /// Notes that a call was answered, which closes the breaker.
    pub const fn succeeded(&mut self) {
        self.failures_in_a_row = 0;
        self.open_until_ns = None;
    }

    /// Notes that a call was not answered. The breaker opens when the number of failures in a row reaches its limit.
    pub const fn failed(&mut self, now_ns: u64) {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        if self.failures_in_a_row >= self.trip_at_failures {
            self.trip(now_ns);
        }
    }

    /// Opens the breaker at once, because an answer is overdue.
    pub const fn trip(&mut self, now_ns: u64) {
        if self.open_until_ns.is_none() {
            self.trips += 1;
        }
        self.open_until_ns = Some(now_ns.saturating_add(self.probe_every_ns));
    }

    /// Whether the breaker is open, so that calls are kept back.
    pub const fn is_open(&self) -> bool {
        self.open_until_ns.is_some()
    }

    /// How often the breaker has gone from closed to open.
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
