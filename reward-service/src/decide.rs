//! One transaction of the writer: decisions on events, and the archive entries that go with them.

use crate::decode::{self, NoOrder};
use crate::fence::{Fence, Permit};
use crate::job::{Answer, Ask, Decision, End, Grant, Hold, How, Job, Settle};
use crate::send_to_credit;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use windfall_contract::accounts::{Reason, Status, StoredOrder, Withdrawal};
use windfall_contract::rewards::{Failed, GrantReply, Rejection};
use windfall_ledger::{
    ArchiveEntry, Attempt, Finish, Ledger, LedgerError, Order, OrderId, OrderOutcome, Subject, Tx,
    WithdrawalId, payer_key,
};

/// A transaction in progress, over jobs of lifetime `'j`.
pub(crate) struct Round<'l, 'j> {
    tx: Tx<'l>,
    /// The apps whose events are taken; empty: any.
    apps: &'j BTreeSet<String>,
    now_ms: i64,
    done: Done<'j>,
    /// Archive entries, written as one just before the commit.
    archive: Vec<ArchiveEntry<'j>>,
    notes: Vec<Note<'j>>,
}

/// An entry about an order or a withdrawal that has no event here. The same bytes for the same reason are kept once, so they
/// name it wholly: another activity has its number, or another user its id.
struct Note<'j> {
    id: &'j str,
    about: String,
    reason: &'static str,
    detail: String,
}

/// The results of a committed transaction.
#[derive(Debug, Default)]
pub(crate) struct Done<'j> {
    /// The users and names of events credited now or before.
    pub credited: Vec<(i64, OrderId<'j>)>,
    /// For events credited now, and not before, the moments from which on their times count: by job, with its bonus type.
    pub times: Vec<(&'j str, Vec<i64>)>,
    /// The number of new entries in the archive.
    pub archived: u64,
    /// Answers of payers that contradict what two operators had settled.
    pub late_answers: u64,
}

impl<'j> Done<'j> {
    fn note_times(&mut self, bonus_type: &'j str, from_ms: Vec<i64>) {
        if !from_ms.is_empty() {
            self.times.push((bonus_type, from_ms));
        }
    }
}

impl<'l, 'j> Round<'l, 'j> {
    pub fn begin(
        ledger: &'l mut Ledger,
        apps: &'j BTreeSet<String>,
        now_ms: i64,
    ) -> Result<Self, LedgerError> {
        Ok(Self {
            tx: ledger.begin()?,
            apps,
            now_ms,
            done: Done::default(),
            archive: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Whether events may be decided by the rules that this process runs. Call it first.
    pub fn may_grant(&mut self, fence: &Fence) -> Result<Permit, LedgerError> {
        fence.may_grant(&mut self.tx)
    }

    /// Whether the ledger is known to have gone back in time.
    pub fn went_back(&self) -> bool {
        self.tx.went_back()
    }

    pub fn commit(mut self) -> Result<Done<'j>, LedgerError> {
        let mut entries = self.archive;
        entries.extend(self.notes.iter().map(|note| ArchiveEntry {
            trade_no: Some(note.id),
            payload: note.about.as_bytes(),
            reason: note.reason.into(),
            detail: note.detail.as_str().into(),
            time_ms: self.now_ms,
        }));
        if !entries.is_empty() {
            self.done.archived += self.tx.archive(&entries)? as u64;
        }
        self.tx.commit()?;
        Ok(self.done)
    }

    /// Decides the events of all grant jobs. Those that the ledger pays go to it as one group, those that it holds
    /// for a downstream as another.
    pub fn grant_all(&mut self, jobs: &'j [Job], answers: &mut [Answer]) -> Result<(), LedgerError> {
        let mut read = Vec::with_capacity(jobs.len());
        let (mut plain, mut held, mut promised) = (Vec::new(), Vec::new(), Vec::new());
        let mut payers: Vec<&str> = Vec::new();
        for (at, job) in jobs.iter().enumerate() {
            // One that has its answer is not decided.
            if let Job::Grant(grant) = job
                && matches!(answers[at], Answer::None)
            {
                let orders: Vec<Result<Order<'j>, NoOrder>> = grant
                    .events
                    .iter()
                    .map(|event| decode::own_order(event, &grant.bonus_type, self.now_ms, self.apps))
                    .collect();
                if grant.is_plain() {
                    plain.extend(orders.iter().flatten());
                }
                if let How::Reserve(Attempt::Normal, payer) = &grant.how {
                    held.extend(orders.iter().flatten());
                    payers.resize(held.len(), payer);
                }
                if grant.is_promised() {
                    promised.extend(orders.iter().flatten());
                }
                read.push((at, grant, orders));
            }
        }
        let mut plain = self.tx.apply(&plain, Attempt::Normal)?.into_iter();
        let mut held = self.tx.reserve(&held, &payers, Attempt::Normal)?.into_iter();
        let mut promised = self.tx.promise(&promised, Attempt::Normal)?.into_iter();
        for (at, grant, orders) in read {
            let valid = || orders.iter().flatten().copied();
            let outcomes = match &grant.how {
                How::Credit(Attempt::Normal) => plain.by_ref().take(valid().count()).collect(),
                How::Credit(attempt) => self.tx.apply(&valid().collect::<Vec<_>>(), *attempt)?,
                How::Reserve(Attempt::Normal, _) => held.by_ref().take(valid().count()).collect(),
                How::Reserve(attempt, payer) => {
                    let batch: Vec<_> = valid().collect();
                    self.tx.reserve(&batch, &vec![&**payer; batch.len()], *attempt)?
                }
                How::Promise(Attempt::Normal) => promised.by_ref().take(valid().count()).collect(),
                How::Promise(attempt) => self.tx.promise(&valid().collect::<Vec<_>>(), *attempt)?,
                How::Reject => {
                    answers[at] = Answer::Decisions(self.reject(grant, &orders));
                    continue;
                }
            };
            answers[at] = Answer::Decisions(self.decide(grant, &orders, outcomes)?);
        }
        // A payment of a downstream is recorded, whatever its amount.
        self.tx.cap_orders(&BTreeMap::new());
        Ok(())
    }

    /// Rejects events of a type without a payer: they go to the archive as they are.
    fn reject(&mut self, grant: &'j Grant, orders: &[Result<Order<'j>, NoOrder>]) -> Vec<Decision> {
        for (event, order) in grant.events.iter().zip(orders) {
            let trade_no = order.as_ref().ok().map(|order| order.trade_no);
            self.archive(trade_no, event, Rejection::UnknownType, "no connector takes this bonus type");
        }
        let reply = GrantReply::Rejected(Rejection::UnknownType);
        vec![Decision::Reply(reply); orders.len()]
    }

    /// Turns outcomes into decisions, and archives what ends here: in the transaction of the decision, so that
    /// there is never one without the other (I2).
    fn decide(
        &mut self,
        grant: &'j Grant,
        orders: &[Result<Order<'j>, NoOrder>],
        outcomes: Vec<OrderOutcome>,
    ) -> Result<Vec<Decision>, LedgerError> {
        let mut asks = self.asks(grant, orders, &outcomes)?.into_iter();
        let mut conflicts = self.conflicts(orders, &outcomes)?.into_iter();
        let mut outcomes = outcomes.into_iter();
        let mut decisions = Vec::with_capacity(orders.len());
        let mut from_ms = Vec::new();
        for (event, order) in grant.events.iter().zip(orders) {
            let decision = match order {
                Ok(order) => {
                    let outcome = outcomes.next().ok_or(LedgerError::Poisoned)?;
                    let ask = if outcome == OrderOutcome::Reserved { asks.next() } else { None };
                    let decision = decision(outcome, ask);
                    match &decision {
                        Decision::Reply(reply) if reply.is_credited() => {
                            self.done.credited.push((order.user_id, order.id()));
                            if *reply == GrantReply::Credited {
                                send_to_credit::note(event, &mut from_ms);
                            }
                        }
                        Decision::Reply(GrantReply::Conflict) => {
                            let detail = conflict(order, conflicts.next().flatten());
                            self.archive(Some(order.trade_no), event, Rejection::Conflict, &detail);
                        }
                        Decision::Reply(reply) => self.archive_final(event, order, reply),
                        Decision::Ask(_) => {}
                    }
                    decision
                }
                Err(bad) => {
                    self.archive(decode::trade_no(event), event, bad.rejection, &bad.to_string());
                    Decision::Reply(GrantReply::Rejected(bad.rejection))
                }
            };
            decisions.push(decision);
        }
        self.done.note_times(&grant.bonus_type, from_ms);
        Ok(decisions)
    }

    /// The downstreams to ask for the reserved orders, in their order, and the keys to ask them with: those that the ledger
    /// names, since they may have paid, whichever downstream pays the type by now (I1).
    fn asks(
        &mut self,
        grant: &Grant,
        orders: &[Result<Order<'j>, NoOrder>],
        outcomes: &[OrderOutcome],
    ) -> Result<Vec<Ask>, LedgerError> {
        let valid = orders.iter().flatten().zip(outcomes);
        let reserved: Vec<OrderId<'_>> = valid
            .filter(|(_, outcome)| **outcome == OrderOutcome::Reserved)
            .map(|(order, _)| order.id())
            .collect();
        // Their event goes to a queue, whoever pays then.
        if reserved.is_empty() || matches!(grant.how, How::Promise(_)) {
            return Ok(vec![Ask::default(); reserved.len()]);
        }
        let stored = self.tx.orders(&reserved)?;
        // Without its key nobody is asked.
        let ask = |order: Option<StoredOrder>| {
            order.map(|order| Ask { key: payer_key(&order), payer: order.payer }).unwrap_or_default()
        };
        Ok(stored.into_iter().map(ask).collect())
    }

    /// The stored orders that others under their number are in conflict with, in their order.
    fn conflicts(
        &mut self,
        orders: &[Result<Order<'j>, NoOrder>],
        outcomes: &[OrderOutcome],
    ) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
        let of = orders.iter().flatten().zip(outcomes);
        let ids: Vec<OrderId<'_>> = of
            .filter(|(_, outcome)| **outcome == OrderOutcome::Conflict)
            .map(|(order, _)| order.id())
            .collect();
        if ids.is_empty() { Ok(Vec::new()) } else { self.tx.orders(&ids) }
    }

    fn archive_final(&mut self, event: &'j Bytes, order: &Order<'j>, reply: &GrantReply) {
        let Order { trade_no, activity, scene, bonus_type, amount, .. } = *order;
        if let GrantReply::Rejected(rejection) = reply {
            let detail = format!("activity {activity}, scene {scene}, type {bonus_type}, amount {amount}");
            self.archive(Some(trade_no), event, *rejection, &detail);
        }
    }

    fn archive(&mut self, trade_no: Option<&'j str>, payload: &'j [u8], rejection: Rejection, detail: &str) {
        let (reason, detail) = (rejection.to_string().into(), detail.to_owned().into());
        self.archive.push(ArchiveEntry { trade_no, payload, reason, detail, time_ms: self.now_ms });
    }

    /// Stores a downstream's decisions: one reply for each order that it paid, then for each that it refused.
    pub fn settle(&mut self, settle: &'j Settle) -> Result<Vec<GrantReply>, LedgerError> {
        let mut replies = Vec::with_capacity(settle.paid.len() + settle.refused.len());
        let asked = |event| self.asked(settle, event);
        let paid = settle.paid.iter().map(asked).collect::<Result<Vec<_>, _>>()?;
        let refused = settle.refused.iter().map(|(event, _)| asked(event)).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<OrderId<'_>> = paid.iter().map(Order::id).collect();
        let posted = self.tx.post(&ids, self.now_ms)?;
        let mut from_ms = Vec::new();
        for ((event, order), finish) in settle.paid.iter().zip(&paid).zip(posted) {
            let reply = self.paid(event, order, &settle.payer, finish)?;
            if reply.is_credited() {
                self.done.credited.push((order.user_id, order.id()));
                if reply == GrantReply::Credited {
                    send_to_credit::note(event, &mut from_ms);
                }
            }
            replies.push(reply);
        }
        self.done.note_times(&settle.bonus_type, from_ms);
        let reason = Reason::DownstreamRefused;
        let ids: Vec<_> = refused.iter().map(|order| (order.id(), reason)).collect();
        let released = self.tx.release(&ids, self.now_ms)?;
        for (((event, why), order), finish) in settle.refused.iter().zip(&refused).zip(released) {
            replies.push(self.refused(event, order, why, finish)?);
        }
        Ok(replies)
    }

    /// Holds withdrawals, and ends those whose payer has decided.
    pub fn withdraw_all(
        &mut self,
        jobs: &'j [Job],
        tenant: &str,
        answers: &mut [Answer],
    ) -> Result<(), LedgerError> {
        let holds: Vec<(usize, &Hold)> = jobs
            .iter()
            .enumerate()
            .filter_map(|(at, job)| if let Job::Hold(hold) = job { Some((at, hold)) } else { None })
            .collect();
        let batch: Vec<(&Withdrawal, &str)> =
            holds.iter().map(|(_, hold)| (&hold.withdrawal, hold.payer.as_str())).collect();
        self.tx.name_tenant(tenant);
        let outcomes = if batch.is_empty() { Vec::new() } else { self.tx.hold(&batch, self.now_ms)? };
        for ((at, _), outcome) in holds.iter().zip(outcomes) {
            answers[*at] = Answer::Held(outcome);
        }
        for (job, answer) in jobs.iter().zip(answers) {
            if let Job::End(end) = job {
                *answer = Answer::Ended(self.end(end)?);
            }
        }
        Ok(())
    }

    fn end(&mut self, end: &'j End) -> Result<Finish, LedgerError> {
        let id = end.id.as_str();
        let finish = match &end.refused {
            None => self.tx.pay_out(&[end.name()], self.now_ms)?,
            Some(why) => self.tx.give_back(&[(end.name(), why)], self.now_ms)?,
        };
        let finish = finish.first().copied().unwrap_or(Finish::Unknown);
        if finish == Finish::Otherwise && self.contradicts_settlement(end)? {
            return Ok(finish);
        }
        if end.refused.is_none() && finish == Finish::Otherwise {
            tracing::error!(id, "a withdrawal was paid out after it had been refused and given back");
            let user_id = end.name().user_id;
            let about = Subject::Withdrawal { user_id, id }.to_string();
            let detail = format!(
                "withdrawal {id} of user {user_id}: its payer refused it, so the money went back, and then paid it"
            );
            self.notes.push(Note { id, about, reason: "paid_after_refusal", detail });
        }
        Ok(finish)
    }

    /// Whether a payer's answer to a withdrawal contradicts what two operators had settled. If so, it is noted.
    fn contradicts_settlement(&mut self, end: &'j End) -> Result<bool, LedgerError> {
        let WithdrawalId { user_id, id } = end.name();
        self.note_late(Subject::Withdrawal { user_id, id }, id, end.refused.is_none())
    }

    /// Notes an answer that contradicts what two operators had settled: it pays nothing, and gives nothing back. False where
    /// nobody has settled it so.
    fn note_late(&mut self, subject: Subject<'_>, id: &'j str, paid: bool) -> Result<bool, LedgerError> {
        let Some((_, act)) = self.tx.settled_by(subject)?.filter(|(settled_paid, _)| *settled_paid != paid)
        else {
            return Ok(false);
        };
        let (reason, detail) = if paid {
            (
                "paid_after_settlement",
                format!(
                    "{subject}: act {act} has settled it as not paid; its payer says that it has paid it"
                ),
            )
        } else {
            (
                "refused_after_settlement",
                format!("{subject}: act {act} has settled it as paid; its payer says that it has not"),
            )
        };
        tracing::error!(%subject, act, "a payer's answer contradicts what two operators have settled");
        self.done.late_answers += 1;
        self.notes.push(Note { id, about: subject.to_string(), reason, detail });
        Ok(true)
    }

    /// The order of an event that was reserved, read in the same way.
    fn asked(&self, settle: &'j Settle, event: &'j Bytes) -> Result<Order<'j>, LedgerError> {
        decode::order(event, Some(&settle.bonus_type), self.now_ms)
            .map_err(|bad| LedgerError::Invalid(format!("a reserved event is none: {bad}")))
    }

    fn paid(
        &mut self,
        event: &'j Bytes,
        order: &Order<'j>,
        payer: &str,
        finish: Finish,
    ) -> Result<GrantReply, LedgerError> {
        let trade_no = order.trade_no;
        let subject = Subject::Order { activity: order.activity, trade_no };
        if finish == Finish::Otherwise && self.note_late(subject, trade_no, true)? {
            return Ok(GrantReply::Rejected(Rejection::Released));
        }
        match finish {
            Finish::Done => return Ok(GrantReply::Credited),
            Finish::Before => return Ok(GrantReply::AlreadyCredited),
            Finish::Otherwise | Finish::Unknown => {
                tracing::error!(
                    trade_no,
                    "a downstream has paid an order that it had refused before, or whose activity is closed"
                )
            }
        }
        // The money is paid out, so it must be recorded: against the budget again, or in the archive for an operator
        // (I4).
        match self.tx.reserve(&[*order], &[payer], Attempt::Replay)?.first() {
            Some(OrderOutcome::Reserved) => {
                self.tx.post(&[order.id()], self.now_ms)?;
                Ok(GrantReply::Credited)
            }
            Some(OrderOutcome::Rejected(Reason::ActivityClosed)) => {
                let detail = "paid downstream after its activity was closed: settle it with the payer";
                self.archive(Some(trade_no), event, Rejection::ActivityClosed, detail);
                Ok(GrantReply::Rejected(Rejection::ActivityClosed))
            }
            _ => {
                let detail =
                    "paid downstream after it was refused, and the budget has no room: raise it, replay";
                self.archive(Some(trade_no), event, Rejection::BudgetExhausted, detail);
                Ok(GrantReply::Rejected(Rejection::BudgetExhausted))
            }
        }
    }

    fn refused(
        &mut self,
        event: &'j Bytes,
        order: &Order<'j>,
        why: &str,
        finish: Finish,
    ) -> Result<GrantReply, LedgerError> {
        let Order { activity, trade_no, .. } = *order;
        // Credited meanwhile, for a call that was given up: then it must not be archived as well (I2).
        if finish == Finish::Otherwise {
            self.note_late(Subject::Order { activity, trade_no }, trade_no, false)?;
            return Ok(GrantReply::AlreadyCredited);
        }
        self.archive(Some(trade_no), event, Rejection::DownstreamRefused, why);
        Ok(GrantReply::Rejected(Rejection::DownstreamRefused))
    }

    /// Archives events that a caller gave up, except for those of which a late copy has been credited meanwhile (I2).
    /// An order that a downstream may have paid stays reserved: a replay asks it again.
    pub fn archive_failed(&mut self, failed: &'j [Failed]) -> Result<(), LedgerError> {
        // A whole record is no order; only an event has an order number.
        // What is not verified is no order either, whatever its bytes say: it may name somebody else's.
        let is_verified = |one: &&Failed| one.rejection != Rejection::Unverified;
        let order = |one: &'j Failed| {
            let verified = Some(one).filter(is_verified)?;
            decode::order(&verified.payload, None, self.now_ms).ok()
        };
        let orders: Vec<Option<Order<'j>>> = failed.iter().map(order).collect();
        let ids: Vec<OrderId<'_>> = orders.iter().flatten().map(Order::id).collect();
        let mut stored = self.tx.orders(&ids)?.into_iter();
        for (one, order) in failed.iter().zip(&orders) {
            let is_credited = match order {
                Some(order) => is_credited(order, stored.next().flatten()),
                None => false,
            };
            if !is_credited {
                let trade_no = order.map(|order| order.trade_no);
                self.archive(trade_no, &one.payload, one.rejection, &one.detail);
            }
        }
        Ok(())
    }
}

fn is_credited(order: &Order<'_>, stored: Option<StoredOrder>) -> bool {
    stored.is_some_and(|stored| {
        stored.status == Status::Credited
            && (stored.user_id, stored.activity.as_str(), stored.scene.as_str())
                == (order.user_id, order.activity, order.scene)
            && (stored.bonus_type.as_str(), stored.amount) == (order.bonus_type, order.amount)
    })
}

/// The text that helps an operator to find the sender that uses an order number twice.
fn conflict(order: &Order<'_>, stored: Option<StoredOrder>) -> String {
    let Order { trade_no, user_id, activity, scene, bonus_type, amount, .. } = *order;
    let asked =
        format!("user {user_id}, activity {activity}, scene {scene}, type {bonus_type}, amount {amount}");
    match stored {
        Some(StoredOrder { user_id, activity, scene, bonus_type, amount, .. }) => format!(
            "order {trade_no} is stored with user {user_id}, activity {activity}, scene {scene}, type {bonus_type}, \
             amount {amount}; this event has {asked}"
        ),
        None => format!("order {trade_no} is stored otherwise; this event has {asked}"),
    }
}

/// The ledger's reason, as callers and the archive know it.
pub(crate) const fn rejection(reason: Reason) -> Rejection {
    match reason {
        Reason::BudgetExhausted => Rejection::BudgetExhausted,
        Reason::DownstreamRefused => Rejection::DownstreamRefused,
        Reason::Released => Rejection::Released,
        Reason::Unbudgeted => Rejection::Unbudgeted,
        Reason::OverOrderCap => Rejection::OverOrderCap,
        Reason::OverTypeCap => Rejection::OverTypeCap,
        Reason::ActivityClosed => Rejection::ActivityClosed,
    }
}

/// The name of a withdrawal.
pub(crate) fn name(withdrawal: &Withdrawal) -> WithdrawalId<'_> {
    WithdrawalId { user_id: withdrawal.user_id, id: &withdrawal.id }
}

/// Turns an outcome into a decision; `ask` names the downstream of a reserved order.
fn decision(outcome: OrderOutcome, ask: Option<Ask>) -> Decision {
    Decision::Reply(match outcome {
        OrderOutcome::Credited => GrantReply::Credited,
        OrderOutcome::AlreadyCredited => GrantReply::AlreadyCredited,
        OrderOutcome::Conflict => GrantReply::Conflict,
        OrderOutcome::Rejected(reason) => GrantReply::Rejected(rejection(reason)),
        OrderOutcome::Reserved => return Decision::Ask(ask.unwrap_or_default()),
    })
}
