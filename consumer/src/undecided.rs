//! Decides what follows a grant that was not decided.
//!
//! An event is requeued only if its own grant has failed; any other waits in its lane and is asked for again. Only failed
//! grants lead to the archive, however often the event was asked for. Where most of a call times out, the downstream is away
//! or overloaded, and no grant has failed: the event may be paid, and a requeued copy would be one more payment to ask for.
//! Where a few time out, each is asked for again in place before it is requeued. If the downstream refuses all of them, the
//! grants have failed, but a requeued copy would fare no better.

use crate::health::{CallAnswer, TypeHealth};
use crate::requeue_delay::delay_ms;
use windfall_contract::rewards::{GrantReply, RetryReason};
use windfall_contract::rules::Pacing;

/// The least wait before an event that was not decided is asked for again.
const ASK_AGAIN_MIN_MS: u64 = 5;
/// The number of an event's own time-outs that are asked for again in place. A downstream at its limit lets some calls
/// time out now and then, and has paid most of them when it is asked again.
const TIMEOUTS_IN_PLACE: u32 = 3;

/// What the answer to a call says about those of its events that were not decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Undecided {
    fault: Fault,
    /// Most of what the downstream was asked for by the call was decided, so a time-out is the event's own.
    is_timeout_own: bool,
}

/// The cause of a grant that is not decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The event: others of its type are decided.
    OfTheEvent,
    /// The type: several calls in a row have decided nothing of it.
    OfTheType,
    /// Unknown: this call decided nothing of its type.
    Unknown,
}

/// What becomes of an event that was not decided, with the failed grants that it has by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// It goes to the archive.
    Archive { failures: u32 },
    /// It goes back to a queue.
    Requeue { failures: u32 },
    /// It waits in its lane, for so long at least, and is asked for again.
    AskAgain { failures: u32, after_ms: u64 },
}

impl Undecided {
    /// What the replies to a call of so many events say, which began at `began_ns`. `health` is that of the type before them.
    pub fn of(replies: &[GrantReply], events: usize, health: &TypeHealth, began_ns: u64) -> Self {
        let answer = CallAnswer::of(replies, events);
        let fault = match answer == CallAnswer::Decided || health.has_decided_since(began_ns) {
            true => Fault::OfTheEvent,
            false if health.is_open() => Fault::OfTheType,
            false => Fault::Unknown,
        };
        Self { fault, is_timeout_own: are_most_decided(replies, events) }
    }

    /// What follows for an event that had so many failed grants before, and is to wait for `after_ms` at least.
    pub fn next_step(self, reason: RetryReason, failures: u32, after_ms: u64, pacing: &Pacing) -> NextStep {
        let (has_failed, goes_back) = match (reason, self.fault) {
            (RetryReason::DownstreamRetry, fault) => (true, fault != Fault::OfTheType),
            (RetryReason::DownstreamTimeout, _) => {
                (self.is_timeout_own, self.is_timeout_own && failures >= TIMEOUTS_IN_PLACE)
            }
            _ => (false, false),
        };
        let failures = failures.saturating_add(u32::from(has_failed));
        if has_failed && failures > pacing.max_failures {
            return NextStep::Archive { failures };
        }
        if goes_back {
            return NextStep::Requeue { failures };
        }
        let least_ms = if has_failed { delay_ms(pacing, failures) } else { ASK_AGAIN_MIN_MS };
        NextStep::AskAgain { failures, after_ms: after_ms.max(least_ms) }
    }
}

/// Whether most of what a downstream was asked for by a call of so many events was decided.
fn are_most_decided(replies: &[GrantReply], events: usize) -> bool {
    let replies = &replies[..replies.len().min(events)];
    let decided = replies.iter().filter(|reply| reply.is_final()).count();
    let failed =
        |reply: &&GrantReply| matches!(reply, GrantReply::Retry { reason, .. } if reason.is_failure());
    decided > replies.iter().filter(failed).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: RetryReason = RetryReason::DownstreamTimeout;

    #[test]
    fn a_time_out_counts_only_where_most_of_its_call_was_decided() {
        let pacing = Pacing::default();
        let health = TypeHealth::new();
        let timeout = || GrantReply::Retry { after_ms: 0, reason: TIMEOUT };
        let alone = Undecided::of(&[timeout()], 1, &health, 1);
        let step = NextStep::AskAgain { failures: pacing.max_failures, after_ms: ASK_AGAIN_MIN_MS };
        assert_eq!(alone.next_step(TIMEOUT, pacing.max_failures, 0, &pacing), step, "it may be paid");
        let replies = [GrantReply::Credited, GrantReply::Credited, timeout()];
        let among_others = Undecided::of(&replies, replies.len(), &health, 1);
        let after_ms = delay_ms(&pacing, 1) + 7;
        assert_eq!(
            among_others.next_step(TIMEOUT, 0, after_ms, &pacing),
            NextStep::AskAgain { failures: 1, after_ms }
        );
        assert_eq!(
            among_others.next_step(TIMEOUT, TIMEOUTS_IN_PLACE, 0, &pacing),
            NextStep::Requeue { failures: TIMEOUTS_IN_PLACE + 1 }
        );
        assert_eq!(
            among_others.next_step(TIMEOUT, pacing.max_failures, 0, &pacing),
            NextStep::Archive { failures: pacing.max_failures + 1 }
        );
    }
}
