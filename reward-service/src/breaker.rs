//! A circuit breaker: a downstream that does not answer is not asked, but for one probe at a time.

/// Closed, open, or half open; the caller brings the time.
#[derive(Debug)]
pub(crate) struct Breaker {
    failures_max: u32,
    open_ms: i64,
    failures: u32,
    /// Calls are let through again from this time on; `None` while closed.
    open_until_ms: Option<i64>,
}

/// What the breaker says to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Call.
    Go,
    /// Do not call before so many milliseconds.
    Wait(u64),
}

impl Breaker {
    pub fn new(failures_max: u32, open_ms: u64) -> Self {
        let open_ms = i64::try_from(open_ms).unwrap_or(i64::MAX);
        Self { failures_max: failures_max.max(1), open_ms, failures: 0, open_until_ms: None }
    }

    /// Asks to call. Half open, the asker is the probe and all others wait one more period.
    pub fn ask(&mut self, now_ms: i64) -> Pass {
        match self.open_until_ms {
            Some(until_ms) if now_ms < until_ms => {
                Pass::Wait(u64::try_from(until_ms.saturating_sub(now_ms)).unwrap_or(0))
            }
            Some(_) => {
                self.open_until_ms = Some(now_ms.saturating_add(self.open_ms));
                Pass::Go
            }
            None => Pass::Go,
        }
    }

    /// Any answer closes it.
    pub fn answered(&mut self) {
        self.failures = 0;
        self.open_until_ms = None;
    }

    /// No answer came.
    pub fn unanswered(&mut self, now_ms: i64) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.failures_max {
            self.open_until_ms = Some(now_ms.saturating_add(self.open_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_probes_and_closes() {
        let mut breaker = Breaker::new(2, 100);
        breaker.unanswered(0);
        assert_eq!(breaker.ask(1), Pass::Go, "one failure is not enough");
        breaker.unanswered(1);
        assert_eq!(breaker.ask(50), Pass::Wait(51));
        assert_eq!(breaker.ask(101), Pass::Go, "the probe");
        assert_eq!(breaker.ask(101), Pass::Wait(100), "one probe at a time");
        breaker.answered();
        assert_eq!(breaker.ask(102), Pass::Go);
        breaker.unanswered(103);
        assert_eq!(breaker.ask(104), Pass::Go, "an answer resets the count");
    }
}
