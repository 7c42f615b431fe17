//! One transaction of the writer: decisions on events, and the archive entries that go with them.

use crate::contract::{Failed, GrantReply, Rejection, RetryReason};
use crate::decode::{self, NoOrder};
use crate::writer::{Answer, Decision, Grant, How, Job, Settle};
use bytes::Bytes;
use windfall_ledger::{
    ArchiveEntry, Attempt, Finish, Ledger, LedgerError, Order, OrderOutcome, Reason, Status, Tx,
};

/// A transaction in the making, over jobs of lifetime `'j`.
pub(crate) struct Round<'l, 'j> {
    tx: Tx<'l>,
    now_ms: i64,
    done: Done<'j>,
}

/// What a committed transaction has done.
#[derive(Debug, Default)]
pub(crate) struct Done<'j> {
    /// Credited now or before: user id, order number.
    pub credited: Vec<(i64, &'j str)>,
    /// New entries in the archive.
    pub archived: u64,
}

impl Grant {
    /// Credited by the ledger itself, in the normal way.
    fn is_plain(&self) -> bool {
        self.how == How::Credit(Attempt::Normal)
    }
}

impl<'l, 'j> Round<'l, 'j> {
    pub fn begin(ledger: &'l mut Ledger, now_ms: i64) -> Result<Self, LedgerError> {
        Ok(Self { tx: ledger.begin()?, now_ms, done: Done::default() })
    }

    pub fn commit(self) -> Result<Done<'j>, LedgerError> {
        self.tx.commit()?;
        Ok(self.done)
    }

    /// Decides the events of all grant jobs. Those that the ledger pays go to it as one group.
    pub fn grant_all(&mut self, jobs: &'j [Job], answers: &mut [Answer]) -> Result<(), LedgerError> {
        let mut read = Vec::with_capacity(jobs.len());
        let mut plain = Vec::new();
        for (at, job) in jobs.iter().enumerate() {
            if let Job::Grant(grant) = job {
                let orders: Vec<Result<Order<'j>, NoOrder>> = grant
                    .events
                    .iter()
                    .map(|event| decode::order(event, Some(&grant.bonus_type), self.now_ms))
                    .collect();
                if grant.is_plain() {
                    plain.extend(orders.iter().flatten());
                }
                read.push((at, grant, orders));
            }
        }
        let mut plain = self.tx.apply(&plain, Attempt::Normal)?.into_iter();
        for (at, grant, orders) in read {
            let valid = || orders.iter().flatten().copied();
            let outcomes = match grant.how {
                How::Credit(Attempt::Normal) => plain.by_ref().take(valid().count()).collect(),
                How::Credit(attempt) => self.tx.apply(&valid().collect::<Vec<_>>(), attempt)?,
                How::Reserve(attempt) => self.tx.reserve(&valid().collect::<Vec<_>>(), attempt)?,
                How::Reject => {
                    answers[at] = Answer::Decisions(self.reject(grant, &orders)?);
                    continue;
                }
            };
            answers[at] = Answer::Decisions(self.decide(grant, &orders, outcomes)?);
        }
        Ok(())
    }

    /// Nobody pays this type: its events go to the archive as they are.
    fn reject(
        &mut self,
        grant: &Grant,
        orders: &[Result<Order<'j>, NoOrder>],
    ) -> Result<Vec<Decision>, LedgerError> {
        for (event, order) in grant.events.iter().zip(orders) {
            let trade_no = order.as_ref().ok().map(|order| order.trade_no);
            self.archive(trade_no, event, Rejection::UnknownType, "no connector takes this bonus type")?;
        }
        let reply = GrantReply::Rejected(Rejection::UnknownType);
        Ok(vec![Decision::Reply(reply); orders.len()])
    }

    /// Turns outcomes into decisions, and archives what ends here: in the transaction of the decision, so that
    /// there is never one without the other (I2).
    fn decide(
        &mut self,
        grant: &'j Grant,
        orders: &[Result<Order<'j>, NoOrder>],
        outcomes: Vec<OrderOutcome>,
    ) -> Result<Vec<Decision>, LedgerError> {
        let mut outcomes = outcomes.into_iter();
        let mut decisions = Vec::with_capacity(orders.len());
        for (event, order) in grant.events.iter().zip(orders) {
            let decision = match order {
                Ok(order) => {
                    let outcome = outcomes.next().ok_or(LedgerError::Poisoned)?;
                    let decision = decision(outcome, matches!(grant.how, How::Reserve(_)));
                    match &decision {
                        Decision::Reply(reply) if reply.is_credited() => {
                            self.done.credited.push((order.user_id, order.trade_no));
                        }
                        Decision::Reply(reply) => self.archive_final(event, order, reply)?,
                        Decision::Ask => {}
                    }
                    decision
                }
                Err(bad) => {
                    self.archive(None, event, Rejection::Malformed, &bad.to_string())?;
                    Decision::Reply(GrantReply::Rejected(Rejection::Malformed))
                }
            };
            decisions.push(decision);
        }
        Ok(decisions)
    }

    fn archive_final(
        &mut self,
        event: &Bytes,
        order: &Order<'_>,
        reply: &GrantReply,
    ) -> Result<(), LedgerError> {
        let Order { trade_no, activity, scene, bonus_type, .. } = *order;
        match reply {
            GrantReply::Conflict => {
                let detail = format!("order {trade_no} is stored with another user, type or amount");
                self.archive(Some(trade_no), event, Rejection::Conflict, &detail)
            }
            GrantReply::Rejected(rejection) => {
                let detail = format!("activity {activity}, scene {scene}, type {bonus_type}");
                self.archive(Some(trade_no), event, *rejection, &detail)
            }
            _ => Ok(()),
        }
    }

    fn archive(
        &mut self,
        trade_no: Option<&str>,
        payload: &[u8],
        rejection: Rejection,
        detail: &str,
    ) -> Result<(), LedgerError> {
        let (reason, time_ms) = (&rejection.to_string(), self.now_ms);
        let new = self.tx.archive(&[ArchiveEntry { trade_no, payload, reason, detail, time_ms }])?;
        self.done.archived += new as u64;
        Ok(())
    }

    /// Stores what a downstream decided: one reply for each that it paid, then for each that it refused.
    pub fn settle(&mut self, settle: &'j Settle) -> Result<Vec<GrantReply>, LedgerError> {
        let mut replies = Vec::with_capacity(settle.paid.len() + settle.refused.len());
        for event in &settle.paid {
            let order = self.asked(settle, event)?;
            let reply = self.paid(event, &order)?;
            if reply.is_credited() {
                self.done.credited.push((order.user_id, order.trade_no));
            }
            replies.push(reply);
        }
        for (event, why) in &settle.refused {
            let order = self.asked(settle, event)?;
            replies.push(self.refused(event, &order, why)?);
        }
        Ok(replies)
    }

    /// The order of an event that was reserved, read in the same way.
    fn asked(&self, settle: &'j Settle, event: &'j Bytes) -> Result<Order<'j>, LedgerError> {
        decode::order(event, Some(&settle.bonus_type), self.now_ms)
            .map_err(|bad| LedgerError::Invalid(format!("a reserved event is none: {bad}")))
    }

    fn paid(&mut self, event: &Bytes, order: &Order<'j>) -> Result<GrantReply, LedgerError> {
        let trade_no = order.trade_no;
        match self.tx.post(&[trade_no], self.now_ms)?.first() {
            Some(Finish::Done) => return Ok(GrantReply::Credited),
            Some(Finish::Before) => return Ok(GrantReply::AlreadyCredited),
            _ => tracing::error!(trade_no, "a downstream has paid an order that it had refused before"),
        }
        // The money is out, so it has to stand in the books: from the budget again, or before a person's eyes (I4).
        match self.tx.reserve(&[*order], Attempt::Replay)?.first() {
            Some(OrderOutcome::Reserved) => {
                self.tx.post(&[trade_no], self.now_ms)?;
                Ok(GrantReply::Credited)
            }
            _ => {
                let detail =
                    "paid downstream after it was refused, and the budget has no room: raise it, replay";
                self.archive(Some(trade_no), event, Rejection::BudgetExhausted, detail)?;
                Ok(GrantReply::Rejected(Rejection::BudgetExhausted))
            }
        }
    }

    fn refused(&mut self, event: &Bytes, order: &Order<'j>, why: &str) -> Result<GrantReply, LedgerError> {
        let released = self.tx.release(&[(order.trade_no, Reason::DownstreamRefused)], self.now_ms)?;
        // Credited meanwhile, for a call that was given up: then it must not be archived as well (I2).
        if released.first() == Some(&Finish::Otherwise) {
            return Ok(GrantReply::AlreadyCredited);
        }
        self.archive(Some(order.trade_no), event, Rejection::DownstreamRefused, why)?;
        Ok(GrantReply::Rejected(Rejection::DownstreamRefused))
    }

    /// Archives what a caller gave up, but for what a late copy has been credited for meanwhile (I2). An order
    /// that a downstream may have paid stays reserved: a replay asks it again.
    pub fn archive_failed(&mut self, failed: &[Failed]) -> Result<(), LedgerError> {
        for one in failed {
            // A whole record is no order; only an event has a number.
            let order = decode::order(&one.payload, None, self.now_ms).ok();
            let is_credited = match &order {
                Some(order) => self.is_credited(order)?,
                None => false,
            };
            if !is_credited {
                let trade_no = order.map(|order| order.trade_no);
                self.archive(trade_no, &one.payload, one.rejection, &one.detail)?;
            }
        }
        Ok(())
    }

    fn is_credited(&mut self, order: &Order<'_>) -> Result<bool, LedgerError> {
        let stored = self.tx.order(order.trade_no)?;
        Ok(stored.is_some_and(|stored| {
            stored.status == Status::Credited
                && (stored.user_id, stored.bonus_type.as_str(), stored.amount)
                    == (order.user_id, order.bonus_type, order.amount)
        }))
    }
}

fn decision(outcome: OrderOutcome, reserve: bool) -> Decision {
    Decision::Reply(match outcome {
        OrderOutcome::Credited => GrantReply::Credited,
        OrderOutcome::AlreadyCredited => GrantReply::AlreadyCredited,
        OrderOutcome::Conflict => GrantReply::Conflict,
        OrderOutcome::Rejected(Reason::BudgetExhausted) => GrantReply::Rejected(Rejection::BudgetExhausted),
        OrderOutcome::Rejected(Reason::DownstreamRefused) => {
            GrantReply::Rejected(Rejection::DownstreamRefused)
        }
        OrderOutcome::Reserved if reserve => return Decision::Ask,
        // A downstream was to pay its type, and may have paid it. Paying here as well could pay twice (I1): a
        // person has to look, so it counts as a failure and comes to the archive.
        OrderOutcome::Reserved => {
            GrantReply::Retry { after_ms: 1_000, reason: RetryReason::DownstreamTimeout }
        }
    })
}
