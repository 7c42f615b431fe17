//! The end of a consumer: finish what is in flight, write back what does not finish, leave by a deadline.

use std::time::Duration;

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
    /// Nothing was left and nothing is in doubt.
    pub const fn is_clean(&self) -> bool {
        self.unfinished_records == 0 && self.committed && self.closed
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
