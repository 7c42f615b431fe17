//! Grants that a downstream pays: reserve → ask → post or release.
//!
//! The order is reserved, durably, before the downstream is asked. If we die in between, or its answer is lost,
//! the next call finds it reserved and asks again with the same key; the downstream pays it once.

use crate::connector::{Downstream, PayAnswer, PayOrder};
use crate::contract::{GrantReply, Rejection, RetryReason};
use crate::decode;
use crate::service::RewardHandle;
use crate::writer::{Decision, Job, Settle};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use std::collections::HashSet;
use tokio::sync::oneshot;
use windfall_ledger::{Attempt, Finish};

/// Orders that a downstream is being asked for. As large as the batches in hand.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<HashSet<Box<str>>>);

/// Orders claimed by one call; freed when it ends, cancelled or not.
struct Claims<'f> {
    in_flight: &'f InFlight,
    own: Vec<Box<str>>,
}

impl Claims<'_> {
    /// False where another call, or this one, has the order in hand already.
    fn claim(&mut self, trade_no: &str) -> bool {
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

impl RewardHandle {
    pub(crate) async fn grant_external(
        &self,
        downstream: &Downstream,
        bonus_type: &str,
        events: &[Bytes],
        attempt: Attempt,
    ) -> Vec<GrantReply> {
        let busy = self.inner.later(RetryReason::Busy);
        let mut replies = vec![busy; events.len()];
        let mut claims = Claims { in_flight: &self.inner.in_flight, own: Vec::new() };
        // Malformed ones go along: the writer answers and archives them.
        let ours: Vec<usize> = (0..events.len())
            .filter(|at| {
                decode::order(&events[*at], Some(bonus_type), 0)
                    .map_or(true, |order| claims.claim(order.trade_no))
            })
            .collect();
        let reserve = ours.iter().map(|at| events[*at].clone()).collect();
        let decisions = self.decide(bonus_type, reserve, attempt, true).await;
        let mut ask = Vec::new();
        for (at, decision) in ours.into_iter().zip(decisions) {
            match decision {
                Decision::Reply(reply) => replies[at] = reply,
                Decision::Ask => ask.push(at),
            }
        }
        let answers = self.ask_all(downstream, events, ask).await;
        self.settle(downstream, events, answers, &mut replies).await;
        replies
    }

    async fn ask_all(
        &self,
        downstream: &Downstream,
        events: &[Bytes],
        ask: Vec<usize>,
    ) -> Vec<(usize, PayAnswer)> {
        let calls = ask.into_iter().filter_map(|at| {
            let order = decode::order(&events[at], None, 0).ok()?;
            let pay = PayOrder {
                trade_no: order.trade_no,
                user_id: order.user_id,
                activity: order.activity,
                scene: order.scene,
                bonus_type: order.bonus_type,
                amount: order.amount,
            };
            Some(async move { (at, downstream.pay(pay).await) })
        });
        stream::iter(calls).buffer_unordered(downstream.concurrency()).collect().await
    }

    async fn settle(
        &self,
        downstream: &Downstream,
        events: &[Bytes],
        answers: Vec<(usize, PayAnswer)>,
        replies: &mut [GrantReply],
    ) {
        let (mut paid, mut refused) = (Vec::new(), Vec::new());
        for (at, answer) in answers {
            match answer {
                // Paid before, but credited only now: until here the order was reserved.
                PayAnswer::Paid | PayAnswer::AlreadyPaid => paid.push((at, GrantReply::Credited)),
                PayAnswer::Refused(why) => refused.push((at, why)),
                PayAnswer::Busy { after_ms } => {
                    replies[at] = GrantReply::Retry { after_ms, reason: RetryReason::Busy };
                }
                PayAnswer::Retry { after_ms } => {
                    replies[at] = GrantReply::Retry { after_ms, reason: RetryReason::DownstreamRetry };
                }
                PayAnswer::Unknown => {
                    let after_ms = downstream.timeout_retry_ms();
                    replies[at] = GrantReply::Retry { after_ms, reason: RetryReason::DownstreamTimeout };
                }
            }
        }
        if paid.is_empty() && refused.is_empty() {
            return;
        }
        let (reply, answer) = oneshot::channel();
        let job = Job::Settle(Settle {
            paid: paid.iter().map(|(at, _)| events[*at].clone()).collect(),
            refused: refused.iter().map(|(at, why)| (events[*at].clone(), why.clone())).collect(),
            reply,
        });
        let finished = match self.inner.push(job) {
            Ok(()) => answer.await.ok(),
            Err(_) => None,
        };
        // Not stored: reserved it stays, and the downstream is asked again; it pays once.
        let Some(finished) = finished else {
            let later = self.inner.later(RetryReason::StoreUnavailable);
            for at in paid.iter().map(|(at, _)| *at).chain(refused.iter().map(|(at, _)| *at)) {
                replies[at] = later.clone();
            }
            return;
        };
        for ((at, reply), finish) in paid.into_iter().zip(finished) {
            replies[at] = match finish {
                Finish::Done => reply,
                Finish::NotReserved => {
                    tracing::error!("a downstream has paid an order that the ledger rejected");
                    let after_ms = downstream.timeout_retry_ms();
                    GrantReply::Retry { after_ms, reason: RetryReason::DownstreamRetry }
                }
            };
        }
        for (at, _) in refused {
            replies[at] = GrantReply::Rejected(Rejection::DownstreamRefused);
        }
    }
}
