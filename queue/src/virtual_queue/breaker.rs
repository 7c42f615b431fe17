//! A circuit breaker a topic: after some failures in a row it lets nothing through but a probe now and then.

/// What the breaker says of the next record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Send it here.
    Pass,
    /// Not here before this moment (monotonic ns).
    OpenUntil(u64),
}

/// State of one topic's breaker. The caller holds the lock and the clock.
#[derive(Debug)]
pub(super) struct Breaker {
    failures_in_a_row: u32,
    trip_at_failures: u32,
    probe_every_ns: u64,
    open_until_ns: Option<u64>,
    /// Times that it went from closed to open.
    pub(super) trips: u64,
}

impl Breaker {
    pub(super) const fn new(trip_at_failures: u32, probe_every_ns: u64) -> Self {
        Self { failures_in_a_row: 0, trip_at_failures, probe_every_ns, open_until_ns: None, trips: 0 }
    }

    /// Asks for one record. An open breaker whose time is over passes it as its probe and stays open for the
    /// others until the probe's fate is known or the next probe is due.
    pub(super) const fn ask(&mut self, now_ns: u64) -> Gate {
        match self.open_until_ns {
            Some(until) if now_ns < until => Gate::OpenUntil(until),
            Some(_) => {
                self.open_until_ns = Some(now_ns.saturating_add(self.probe_every_ns));
                Gate::Pass
            }
            None => Gate::Pass,
        }
    }

    pub(super) const fn succeeded(&mut self) {
        self.failures_in_a_row = 0;
        self.open_until_ns = None;
    }

    pub(super) const fn failed(&mut self, now_ns: u64) {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        if self.failures_in_a_row >= self.trip_at_failures {
            self.trip(now_ns);
        }
    }

    /// Opens at once: an answer is overdue.
    pub(super) const fn trip(&mut self, now_ns: u64) {
        if self.open_until_ns.is_none() {
            self.trips += 1;
        }
        self.open_until_ns = Some(now_ns.saturating_add(self.probe_every_ns));
    }

    pub(super) const fn is_open(&self) -> bool {
        self.open_until_ns.is_some()
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
            assert_eq!(breaker.ask(now), Gate::Pass);
        }
        breaker.failed(3);
        assert_eq!(breaker.ask(4), Gate::OpenUntil(103));
        assert_eq!(breaker.ask(103), Gate::Pass, "the probe");
        assert_eq!(breaker.ask(104), Gate::OpenUntil(203), "one probe at a time");
        breaker.succeeded();
        assert_eq!(breaker.ask(105), Gate::Pass);
        assert_eq!(breaker.trips, 1);
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
