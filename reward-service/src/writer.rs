//! The one thread that owns the ledger. It takes all calls that wait, puts them into one transaction, and
//! answers after its commit: group commit.

use crate::contract::{Failed, GrantReply, Rejection, RetryReason};
use crate::decode;
use crate::inbox::{Inbox, Weight};
use crate::options::{Clock, GrantObserver};
use crate::stats::Counters;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;
use windfall_ledger::{ArchiveEntry, Attempt, Finish, Ledger, LedgerError, Order, OrderOutcome, Reason, Tx};

/// What the ledger says about one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Decided.
    Reply(GrantReply),
    /// Reserved: ask the downstream.
    Ask,
}

/// Events of one type to decide in the ledger.
#[derive(Debug)]
pub(crate) struct Grant {
    pub bonus_type: Arc<str>,
    pub events: Vec<Bytes>,
    pub attempt: Attempt,
    /// A downstream pays: reserve in place of crediting.
    pub reserve: bool,
    pub reply: oneshot::Sender<Vec<Decision>>,
}

/// What a downstream decided.
#[derive(Debug)]
pub(crate) struct Settle {
    pub paid: Vec<Bytes>,
    pub refused: Vec<(Bytes, String)>,
    /// For the paid ones: `Ok` with what became of each; `Err` when nothing is stored.
    pub reply: oneshot::Sender<Vec<Finish>>,
}

/// Something else to do with the ledger, in a transaction of its own or none.
pub(crate) type Call = Box<dyn FnOnce(&mut Ledger) + Send>;

pub(crate) enum Job {
    Grant(Grant),
    Settle(Settle),
    Archive { failed: Vec<Failed>, reply: oneshot::Sender<Result<(), String>> },
    Call(Call),
}

impl Job {
    pub fn weight(&self) -> Weight {
        let of = |events: &mut dyn Iterator<Item = usize>| {
            let (count, bytes) = events.fold((0_usize, 0_usize), |(count, sum), len| (count + 1, sum + len));
            Weight { events: count.max(1), bytes }
        };
        match self {
            Self::Grant(grant) => of(&mut grant.events.iter().map(Bytes::len)),
            Self::Settle(settle) => of(&mut settle
                .paid
                .iter()
                .chain(settle.refused.iter().map(|(event, _)| event))
                .map(Bytes::len)),
            Self::Archive { failed, .. } => of(&mut failed.iter().map(|one| one.payload.len())),
            Self::Call(_) => Weight { events: 1, bytes: 0 },
        }
    }
}

enum Answer {
    Decisions(Vec<Decision>),
    Finished(Vec<Finish>),
    Archived,
    None,
}

pub(crate) struct Writer {
    pub ledger: Ledger,
    pub inbox: Arc<Inbox<Job>>,
    pub batch_events_max: usize,
    pub busy_retry_ms: u64,
    pub observer: Option<GrantObserver>,
    pub counters: Arc<Counters>,
    pub clock: Clock,
}

/// However the writer ends, nobody may wait for it: jobs left over are dropped, which answers their callers.
struct CloseAtEnd(Arc<Inbox<Job>>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.0.close();
        let mut left = Vec::new();
        while self.0.take(usize::MAX, &mut left) {}
    }
}

impl Writer {
    /// Runs until the inbox is closed and empty.
    pub fn run(mut self) {
        let end = CloseAtEnd(Arc::clone(&self.inbox));
        let mut jobs = Vec::new();
        while self.inbox.take(self.batch_events_max, &mut jobs) {
            self.round(&mut jobs);
        }
        drop(end);
    }

    fn round(&mut self, jobs: &mut Vec<Job>) {
        let now_ms = (self.clock)();
        let answers = if jobs.iter().all(|job| matches!(job, Job::Call(_))) {
            Ok(jobs.iter().map(|_| Answer::None).collect())
        } else {
            self.commit(jobs, now_ms)
        };
        match answers {
            // Only now: it is durable.
            Ok(answers) => {
                for (job, answer) in jobs.drain(..).zip(answers) {
                    self.answer(job, answer);
                }
            }
            Err(error) => {
                self.counters.failed_commits.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "a grant transaction failed; its callers are told to ask again");
                for job in jobs.drain(..) {
                    self.refuse(job, &error);
                }
            }
        }
    }

    fn commit(&mut self, jobs: &[Job], now_ms: i64) -> Result<Vec<Answer>, LedgerError> {
        let mut credited = Vec::new();
        let mut tx = self.ledger.begin()?;
        let mut answers: Vec<Answer> = jobs.iter().map(|_| Answer::None).collect();
        let mut archived = grant_all(&mut tx, jobs, &mut answers, now_ms, &mut credited)?;
        for (job, answer) in jobs.iter().zip(&mut answers) {
            match job {
                Job::Settle(settle) => {
                    *answer = Answer::Finished(finish(&mut tx, settle, now_ms, &mut credited)?);
                    archived += archive_refused(&mut tx, settle, now_ms)?;
                }
                Job::Archive { failed, .. } => {
                    archived += archive_failed(&mut tx, failed, now_ms)?;
                    *answer = Answer::Archived;
                }
                Job::Grant(_) | Job::Call(_) => {}
            }
        }
        tx.commit()?;
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.archived.fetch_add(archived as u64, Ordering::Relaxed);
        if let Some(observer) = self.observer.as_ref().filter(|_| !credited.is_empty()) {
            observer(&credited);
        }
        Ok(answers)
    }

    /// A caller that has gone does not want its answer; it will ask again.
    fn answer(&mut self, job: Job, answer: Answer) {
        match (job, answer) {
            (Job::Grant(grant), Answer::Decisions(decisions)) => drop(grant.reply.send(decisions)),
            (Job::Settle(settle), Answer::Finished(finished)) => drop(settle.reply.send(finished)),
            (Job::Archive { reply, .. }, Answer::Archived) => drop(reply.send(Ok(()))),
            (Job::Call(call), _) => call(&mut self.ledger),
            (Job::Grant(_) | Job::Settle(_) | Job::Archive { .. }, _) => {}
        }
    }

    fn refuse(&mut self, job: Job, error: &LedgerError) {
        match job {
            Job::Grant(grant) => {
                let reason = RetryReason::StoreUnavailable;
                let retry = Decision::Reply(GrantReply::Retry { after_ms: self.busy_retry_ms, reason });
                drop(grant.reply.send(vec![retry; grant.events.len()]));
            }
            // Its caller sees that the sender is gone.
            Job::Settle(_) => {}
            Job::Archive { reply, .. } => drop(reply.send(Err(error.to_string()))),
            Job::Call(call) => call(&mut self.ledger),
        }
    }
}

/// Decides the events of all grant jobs. Those that the ledger pays go in one group.
fn grant_all<'j>(
    tx: &mut Tx<'_>,
    jobs: &'j [Job],
    answers: &mut [Answer],
    now_ms: i64,
    credited: &mut Vec<(i64, &'j str)>,
) -> Result<usize, LedgerError> {
    let mut plain: Vec<Order<'j>> = Vec::new();
    let mut read: Vec<Vec<Result<Order<'j>, decode::NoOrder>>> = Vec::with_capacity(jobs.len());
    for job in jobs {
        let Job::Grant(grant) = job else {
            read.push(Vec::new());
            continue;
        };
        let orders: Vec<_> =
            grant.events.iter().map(|event| decode::order(event, Some(&grant.bonus_type), now_ms)).collect();
        if grant.is_plain() {
            plain.extend(orders.iter().flatten());
        }
        read.push(orders);
    }
    let mut plain = tx.apply(&plain, Attempt::Normal)?.into_iter();
    let mut archived = 0;
    for ((job, orders), answer) in jobs.iter().zip(&read).zip(answers) {
        let Job::Grant(grant) = job else { continue };
        let mut own;
        let outcomes: &mut dyn Iterator<Item = OrderOutcome> = if grant.is_plain() {
            &mut plain
        } else {
            let valid: Vec<_> = orders.iter().flatten().copied().collect();
            own = if grant.reserve {
                tx.reserve(&valid, grant.attempt)
            } else {
                tx.apply(&valid, grant.attempt)
            }?
            .into_iter();
            &mut own
        };
        let mut decisions = Vec::with_capacity(orders.len());
        let mut rejected = Vec::new();
        for (event, order) in grant.events.iter().zip(orders) {
            let decision = match order {
                Ok(order) => {
                    let outcome = outcomes.next().ok_or(LedgerError::Poisoned)?;
                    let decision = decision(outcome, grant.reserve);
                    if matches!(&decision, Decision::Reply(reply) if reply.is_credited()) {
                        credited.push((order.user_id, order.trade_no));
                    }
                    decision
                }
                Err(_) => Decision::Reply(GrantReply::Rejected(Rejection::Malformed)),
            };
            if let Some((rejection, detail)) = reason_of(&decision, order) {
                rejected.push((event, order, rejection, detail));
            }
            decisions.push(decision);
        }
        // In the transaction of the decision: neither without the other (I2).
        for (event, order, rejection, detail) in rejected {
            archived += tx.archive(&[ArchiveEntry {
                trade_no: order.as_ref().ok().map(|order| order.trade_no),
                payload: event,
                reason: &rejection.to_string(),
                detail: &detail,
                time_ms: now_ms,
            }])?;
        }
        *answer = Answer::Decisions(decisions);
    }
    Ok(archived)
}

impl Grant {
    fn is_plain(&self) -> bool {
        !self.reserve && self.attempt == Attempt::Normal
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
        // Its type was paid by a downstream, which may have paid it. Paying here as well could pay twice (I1):
        // a person has to look, so let it come to the archive.
        OrderOutcome::Reserved => {
            GrantReply::Retry { after_ms: 1_000, reason: RetryReason::DownstreamTimeout }
        }
    })
}

fn reason_of(decision: &Decision, order: &Result<Order<'_>, decode::NoOrder>) -> Option<(Rejection, String)> {
    match (decision, order) {
        (_, Err(bad)) => Some((Rejection::Malformed, bad.to_string())),
        (Decision::Reply(GrantReply::Conflict), Ok(order)) => Some((
            Rejection::Conflict,
            format!("order {} is stored with another user, type or amount", order.trade_no),
        )),
        (Decision::Reply(GrantReply::Rejected(rejection)), Ok(order)) => Some((
            *rejection,
            format!("activity {}, scene {}, type {}", order.activity, order.scene, order.bonus_type),
        )),
        _ => None,
    }
}

fn finish<'j>(
    tx: &mut Tx<'_>,
    settle: &'j Settle,
    now_ms: i64,
    credited: &mut Vec<(i64, &'j str)>,
) -> Result<Vec<Finish>, LedgerError> {
    let paid: Vec<Order<'_>> =
        settle.paid.iter().filter_map(|event| decode::order(event, None, now_ms).ok()).collect();
    let trade_nos: Vec<&str> = paid.iter().map(|order| order.trade_no).collect();
    let finished = tx.post(&trade_nos, now_ms)?;
    for (order, _) in paid.iter().zip(&finished).filter(|(_, finish)| **finish == Finish::Done) {
        credited.push((order.user_id, order.trade_no));
    }
    Ok(finished)
}

fn archive_refused(tx: &mut Tx<'_>, settle: &Settle, now_ms: i64) -> Result<usize, LedgerError> {
    let mut archived = 0;
    for (event, detail) in &settle.refused {
        let Ok(order) = decode::order(event, None, now_ms) else { continue };
        tx.release(&[(order.trade_no, Reason::DownstreamRefused)], now_ms)?;
        archived += tx.archive(&[ArchiveEntry {
            trade_no: Some(order.trade_no),
            payload: event,
            reason: &Rejection::DownstreamRefused.to_string(),
            detail,
            time_ms: now_ms,
        }])?;
    }
    Ok(archived)
}

fn archive_failed(tx: &mut Tx<'_>, failed: &[Failed], now_ms: i64) -> Result<usize, LedgerError> {
    let mut archived = 0;
    for one in failed {
        archived += tx.archive(&[ArchiveEntry {
            // A whole record is no order; only an event has a number.
            trade_no: decode::order(&one.payload, None, now_ms).ok().map(|order| order.trade_no),
            payload: &one.payload,
            reason: &one.rejection.to_string(),
            detail: &one.detail,
            time_ms: now_ms,
        }])?;
    }
    Ok(archived)
}
