//! Grants that a downstream pays: reserve → ask → post or release.
//!
//! The order is reserved, durably, before the downstream is asked. If the process dies in between, or the answer is
//! lost, the next call finds it reserved and asks again with the same key; the downstream pays it once. The order names
//! its downstream: whichever pays its type by now, only the one that was asked is asked again.
//!
//! Answers go to the writer as they come. A call that takes longer than its caller waits has then still made progress,
//! and the next one asks only for the rest.

use crate::claims::Claims;
use crate::connector::Downstream;
use crate::decode;
use crate::handle::RewardHandle;
use crate::job::{Ask, Decision, How, Job, Settle};
use crate::payouts;
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::{self, Stream, StreamExt};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::oneshot;
use windfall_contract::connector::{PayAnswer, PayOrder};
use windfall_contract::rewards::{GrantReply, RetryReason};

/// The number of answers that are settled together, at most; fewer when no more are there.
const SETTLE_MAX: usize = 256;

/// Answers that are being stored in the ledger.
struct Settling {
    /// Their indices in the call.
    at: Vec<usize>,
    stored: oneshot::Receiver<Vec<GrantReply>>,
}

/// The events of one call.
struct Asked<'e> {
    bonus_type: &'e Arc<str>,
    events: &'e [Bytes],
}

impl RewardHandle {
    pub(crate) async fn grant_external(
        &self,
        bonus_type: &Arc<str>,
        events: &[Bytes],
        reserve: How,
    ) -> Vec<GrantReply> {
        // Claimed before the ledger is asked how they stand: one that ends meanwhile is not asked for again.
        let mut claims = Claims::new(&self.inner.in_flight);
        // Malformed ones go along: the writer answers and archives them.
        let ours: Vec<usize> = (0..events.len())
            .filter(|at| {
                decode::order(&events[*at], Some(bonus_type), 0)
                    .map_or(true, |order| claims.claim_order(order.id()))
            })
            .collect();
        let others = events.len() - ours.len();
        let mut replies = vec![self.inner.later(bonus_type, RetryReason::Busy, others); events.len()];
        let own = ours.iter().map(|at| events[*at].clone()).collect();
        let decisions = self.decide(bonus_type, own, reserve).await;
        let mut ask: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
        for (at, decision) in ours.into_iter().zip(decisions) {
            match decision {
                Decision::Reply(reply) => replies[at] = reply,
                Decision::Ask(Ask { payer, key }) => ask.entry(payer).or_default().push((at, key)),
            }
        }
        let asked = Asked { bonus_type, events };
        let asking = ask.into_iter().map(|(payer, at)| self.ask_payer(&asked, payer, at));
        for (at, reply) in join_all(asking).await.concat() {
            replies[at] = reply;
        }
        replies
    }

    /// Asks one downstream for the orders that are reserved for it. Returns their indices and replies.
    /// Each stands beside the key that the downstream is given.
    async fn ask_payer(
        &self,
        asked: &Asked<'_>,
        payer: String,
        ask: Vec<(usize, String)>,
    ) -> Vec<(usize, GrantReply)> {
        let bonus_type = asked.bonus_type;
        if self.payouts_stopped() {
            let reply = payouts::stopped();
            self.inner.counters.count(bonus_type, std::iter::repeat_n(&reply, ask.len()));
            return ask.into_iter().map(|(at, _)| (at, reply.clone())).collect();
        }
        let Some(downstream) = self.inner.downstreams.get(&payer) else {
            // It may have paid. Asking or paying elsewhere could pay twice (I1): an operator has to look, so it counts
            // as a failure and goes to the archive.
            tracing::error!(
                payer,
                %bonus_type,
                orders = ask.len(),
                "orders are reserved for a downstream that is not configured; nobody else is asked"
            );
            let reply = GrantReply::Retry { after_ms: 1_000, reason: RetryReason::DownstreamTimeout };
            self.inner.counters.count(bonus_type, std::iter::repeat_n(&reply, ask.len()));
            return ask.into_iter().map(|(at, _)| (at, reply.clone())).collect();
        };
        let (mut replies, mut settling) = (Vec::with_capacity(ask.len()), Vec::new());
        let mut answers = pin!(asked.ask(downstream, ask).ready_chunks(SETTLE_MAX));
        while let Some(answers) = answers.next().await {
            settling.extend(self.settle(downstream, asked, &payer, answers, &mut replies));
        }
        for Settling { at, stored } in settling {
            match stored.await {
                Ok(stored) => replies.extend(at.into_iter().zip(stored)),
                Err(_) => self.not_stored(bonus_type, &at, &mut replies),
            }
        }
        replies
    }

    /// Sorts answers, and hands those that decide something to the writer.
    fn settle(
        &self,
        downstream: &Downstream,
        asked: &Asked<'_>,
        payer: &str,
        answers: Vec<(usize, PayAnswer)>,
        replies: &mut Vec<(usize, GrantReply)>,
    ) -> Option<Settling> {
        let Asked { bonus_type, events } = *asked;
        let (mut paid_at, mut refused_at) = (Vec::new(), Vec::new());
        let (mut paid, mut refused) = (Vec::new(), Vec::new());
        for (at, answer) in answers {
            let (after_ms, reason) = match answer {
                PayAnswer::Paid | PayAnswer::AlreadyPaid => {
                    paid_at.push(at);
                    paid.push(events[at].clone());
                    continue;
                }
                PayAnswer::Refused(why) => {
                    refused_at.push(at);
                    refused.push((events[at].clone(), why));
                    continue;
                }
                PayAnswer::Busy { after_ms } => (after_ms, RetryReason::DownstreamBusy),
                PayAnswer::Retry { after_ms } => (after_ms, RetryReason::DownstreamRetry),
                PayAnswer::Unknown => (downstream.timeout_retry_ms(), RetryReason::DownstreamTimeout),
            };
            let reply = GrantReply::Retry { after_ms, reason };
            self.inner.counters.count(bonus_type, [&reply]);
            replies.push((at, reply));
        }
        let mut at = paid_at;
        at.extend(refused_at);
        if at.is_empty() {
            return None;
        }
        let (reply, stored) = oneshot::channel();
        let (bonus_type, payer) = (Arc::clone(bonus_type), payer.to_owned());
        let job = Job::Settle(Settle { bonus_type, payer, paid, refused, reply });
        if self.inner.push(job).is_err() {
            self.not_stored(asked.bonus_type, &at, replies);
            return None;
        }
        Some(Settling { at, stored })
    }

    /// Answers for orders whose decision could not be stored: they stay reserved, and the downstream is asked again and
    /// pays once.
    fn not_stored(&self, bonus_type: &str, at: &[usize], replies: &mut Vec<(usize, GrantReply)>) {
        let later = self.inner.later(bonus_type, RetryReason::StoreUnavailable, at.len());
        replies.extend(at.iter().map(|at| (*at, later.clone())));
    }
}

impl Asked<'_> {
    /// Asks for these orders, as many at once as the downstream takes. What has not begun after a while is answered `Busy`,
    /// so that the call ends before its caller gives it up, and no payment is dropped halfway.
    fn ask<'a>(
        &'a self,
        downstream: &'a Downstream,
        ask: Vec<(usize, String)>,
    ) -> impl Stream<Item = (usize, PayAnswer)> + 'a {
        let begin_by_ns = downstream.begin_by_ns();
        let calls = ask.into_iter().filter_map(move |(at, key)| {
            let order = decode::order(&self.events[at], Some(self.bonus_type), 0).ok()?;
            Some(async move {
                let pay = PayOrder {
                    trade_no: &key,
                    user_id: order.user_id,
                    activity: order.activity,
                    scene: order.scene,
                    bonus_type: order.bonus_type,
                    amount: order.amount,
                };
                (at, downstream.pay(pay, begin_by_ns).await)
            })
        });
        stream::iter(calls).buffer_unordered(downstream.concurrency())
    }
}
