//! The end of a consumer: it finishes what is in flight, requeues what does not finish, and leaves by a deadline.

use std::time::Duration;
use tokio::sync::oneshot;

/// How a consumer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainReport {
    /// Records that were in flight at the end. They are not committed and will be delivered again.
    pub unfinished_records: usize,
    /// Whether the last commit was stored. If not, finished records may be delivered again, which is harmless.
    pub committed: bool,
    /// Whether the source was closed in time, and left its group.
    pub closed: bool,
}

impl DrainReport {
    /// Whether nothing was left and nothing is uncertain.
    pub const fn is_clean(&self) -> bool {
        self.unfinished_records == 0 && self.committed && self.closed
    }
}

/// Waits to be asked for a drain, over any number of loops.
#[derive(Debug)]
pub(crate) struct DrainAsked(Option<oneshot::Receiver<Duration>>);

impl DrainAsked {
    /// A drain that the holder of the sender asks for.
    pub fn by(receiver: oneshot::Receiver<Duration>) -> Self {
        Self(Some(receiver))
    }

    /// Waits for the request and returns its deadline; a drain is requested once at most. Cancel-safe.
    pub async fn asked(&mut self) -> Duration {
        if let Some(receiver) = &mut self.0 {
            let asked = receiver.await;
            self.0 = None;
            if let Ok(deadline) = asked {
                return deadline;
            }
        }
        std::future::pending().await
    }
}

/// Whether a drain is under way, and how far it is.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    times: Option<Times>,
}

#[derive(Debug)]
struct Times {
    write_back_ns: u64,
    end_ns: u64,
    has_written_back: bool,
}

impl Drain {
    pub fn begin(&mut self, deadline: Duration, now_ns: u64) {
        let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.times = Some(Times {
            write_back_ns: now_ns.saturating_add(deadline_ns / 2),
            end_ns: now_ns.saturating_add(deadline_ns),
            has_written_back: false,
        });
    }

    pub fn is_under_way(&self) -> bool {
        self.times.is_some()
    }

    /// Whether it is time to write back what is not finished: once, at half of the deadline.
    pub fn begins_to_write_back(&mut self, now_ns: u64) -> bool {
        match &mut self.times {
            Some(times) if now_ns >= times.write_back_ns => {
                !std::mem::replace(&mut times.has_written_back, true)
            }
            _ => false,
        }
    }

    /// Whether the consumer is to leave now.
    pub fn is_over(&self, has_nothing_left: bool, now_ns: u64) -> bool {
        self.times.as_ref().is_some_and(|times| has_nothing_left || now_ns >= times.end_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_writes_back_once_at_half_of_its_deadline_and_ends_at_all_of_it() {
        let mut drain = Drain::default();
        assert!(!drain.begins_to_write_back(u64::MAX) && !drain.is_over(true, u64::MAX), "nobody asked");
        drain.begin(Duration::from_nanos(100), 1_000);
        assert!(!drain.begins_to_write_back(1_049));
        assert!(drain.begins_to_write_back(1_050));
        assert!(!drain.begins_to_write_back(1_060), "once");
        assert!(!drain.is_over(false, 1_099) && drain.is_over(false, 1_100));
        assert!(drain.is_over(true, 1_001), "nothing is left");
    }
}
