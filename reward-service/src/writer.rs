//! A thread that writes the ledger. It takes all calls that wait, puts them into one transaction, and answers
//! after its commit: group commit. A file has one such thread, a database several, each on its own connection.

use crate::decide::Round;
use crate::inbox::{CloseAtEnd, Inbox, Weight};
use crate::options::GrantObserver;
use crate::stats::Counters;
use crate::withdraw::Held;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;
use windfall_contract::Clock;
use windfall_contract::accounts::WithdrawOrder;
use windfall_contract::rewards::{Failed, GrantReply, RetryReason};
use windfall_ledger::{Attempt, Finish, Ledger, LedgerError};

/// What the ledger says about one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Decided.
    Reply(GrantReply),
    /// Reserved: ask this downstream and no other. Empty: none is known, as with orders that await their event.
    Ask(String),
}

impl Decision {
    const fn reply(&self) -> Option<&GrantReply> {
        match self {
            Self::Reply(reply) => Some(reply),
            Self::Ask(_) => None,
        }
    }
}

/// Events of one type to decide in the ledger.
#[derive(Debug)]
pub(crate) struct Grant {
    pub bonus_type: Arc<str>,
    pub events: Vec<Bytes>,
    pub how: How,
    pub reply: oneshot::Sender<Vec<Decision>>,
}

/// Who pays, and so what the ledger is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum How {
    /// The ledger itself.
    Credit(Attempt),
    /// The downstream of this name, unless another is asked already: hold the budget meanwhile.
    Reserve(Attempt, Arc<str>),
    /// The ledger itself, when the event comes: hold the budget meanwhile.
    Promise(Attempt),
    /// Nobody.
    Reject,
}

/// What a downstream decided.
#[derive(Debug)]
pub(crate) struct Settle {
    pub bonus_type: Arc<str>,
    /// Its name.
    pub payer: String,
    pub paid: Vec<Bytes>,
    pub refused: Vec<(Bytes, String)>,
    /// First the paid ones, then the refused; dropped when nothing is stored.
    pub reply: oneshot::Sender<Vec<GrantReply>>,
}

/// A withdrawal to hold.
#[derive(Debug)]
pub(crate) struct Hold {
    pub order: WithdrawOrder,
    /// Who pays it, if it is not held yet; empty: the ledger itself, in the same transaction.
    pub payer: String,
    pub reply: oneshot::Sender<Held>,
}

/// A withdrawal whose payer has decided: it has paid, or refused for this reason.
#[derive(Debug)]
pub(crate) struct End {
    pub id: String,
    pub refused: Option<String>,
    pub reply: oneshot::Sender<Finish>,
}

/// Something else to do with the ledger, in a transaction of its own or none.
pub(crate) type Call = Box<dyn FnOnce(&mut Ledger) + Send>;

pub(crate) enum Job {
    Grant(Grant),
    Settle(Settle),
    Hold(Hold),
    End(End),
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
            Self::Call(_) | Self::Hold(_) | Self::End(_) => Weight { events: 1, bytes: 0 },
        }
    }

    const fn is_withdrawal(&self) -> bool {
        matches!(self, Self::Hold(_) | Self::End(_))
    }
}

/// What a job's caller is told once the transaction is durable.
pub(crate) enum Answer {
    Decisions(Vec<Decision>),
    Settled(Vec<GrantReply>),
    Held(Held),
    Ended(Finish),
    Archived,
    None,
}

/// A transaction that others were in the way of is tried so often before its callers are told to ask again.
const ATTEMPTS: u32 = 8;
/// The least wait of an event that the ledger does not take: a person or a withdrawal has to make room.
const FAULT_RETRY_MS: u64 = 1_000;

pub(crate) struct Writer {
    pub ledger: Ledger,
    pub inbox: Arc<Inbox<Job>>,
    pub batch_events_max: usize,
    pub observer: Option<GrantObserver>,
    pub counters: Arc<Counters>,
    pub clock: Clock,
}

impl Writer {
    /// Runs until the inbox is closed and empty.
    pub fn run(mut self) {
        let end = CloseAtEnd::new(Arc::clone(&self.inbox), "the ledger's writer");
        let mut jobs = Vec::new();
        while self.inbox.take(self.batch_events_max, &mut jobs) {
            // Withdrawals lock their users' accounts at their beginning, grants at their end: in one transaction
            // many writers would lock them in any order, and wait for each other in a ring.
            let (mut withdrawals, mut others): (Vec<Job>, Vec<Job>) =
                jobs.drain(..).partition(Job::is_withdrawal);
            for jobs in [&mut others, &mut withdrawals] {
                if !jobs.is_empty() {
                    self.round(jobs);
                }
            }
        }
        drop(end);
    }

    fn round(&mut self, jobs: &mut Vec<Job>) {
        let now_ms = self.clock.wall_ms();
        let answers = if jobs.iter().all(|job| matches!(job, Job::Call(_))) {
            Ok(jobs.iter().map(|_| Answer::None).collect())
        } else {
            let mut attempt = 1;
            loop {
                match self.commit(jobs, now_ms) {
                    // Nothing of it was stored: the whole transaction again.
                    Err(LedgerError::Contended(why)) if attempt < ATTEMPTS => {
                        tracing::debug!(why, "a grant transaction is repeated");
                        attempt += 1;
                    }
                    done => break done,
                }
            }
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
                if jobs.len() > 1 && may_lie_in_one_job(&error) {
                    tracing::warn!(%error, "a grant transaction failed; each of its calls is tried alone");
                    for job in jobs.drain(..) {
                        self.round(&mut vec![job]);
                    }
                    return;
                }
                if may_lie_in_one_event(&error)
                    && let Some(grant) = only_grant(jobs)
                {
                    tracing::warn!(%error, "a grant transaction failed; its events are tried in halves");
                    self.halves(grant);
                    return;
                }
                tracing::error!(%error, "a grant transaction failed; its callers are told to ask again");
                for job in jobs.drain(..) {
                    self.refuse(job, &error);
                }
                // Closed, with a database that is gone: each further round would wait for it in vain.
                if self.inbox.is_closed() && !may_lie_in_one_job(&error) {
                    self.inbox.drop_all();
                }
            }
        }
    }

    /// A grant whose transaction fails for what it holds (a balance that would pass 64 bits): each half alone, until
    /// only events at fault are told to ask again. They shall not hold up the others of their record.
    fn halves(&mut self, grant: Grant) {
        let Grant { bonus_type, events, how, reply } = grant;
        let later = GrantReply::Retry { after_ms: FAULT_RETRY_MS, reason: RetryReason::StoreUnavailable };
        let mut decisions = Vec::with_capacity(events.len());
        for half in events.chunks(events.len().div_ceil(2)) {
            let (own, mut decided) = oneshot::channel();
            let (name, how) = (Arc::clone(&bonus_type), how.clone());
            let part = Grant { bonus_type: name, events: half.to_vec(), how, reply: own };
            self.round(&mut vec![Job::Grant(part)]);
            match decided.try_recv() {
                Ok(own) => decisions.extend(own),
                // Nothing of it was stored.
                Err(_) => decisions.extend(half.iter().map(|_| Decision::Reply(later.clone()))),
            }
        }
        drop(reply.send(decisions));
    }

    fn commit(&mut self, jobs: &[Job], now_ms: i64) -> Result<Vec<Answer>, LedgerError> {
        let mut round = Round::begin(&mut self.ledger, now_ms)?;
        let mut answers: Vec<Answer> = jobs.iter().map(|_| Answer::None).collect();
        round.grant_all(jobs, &mut answers)?;
        round.withdraw_all(jobs, &mut answers)?;
        for (job, answer) in jobs.iter().zip(&mut answers) {
            match job {
                Job::Settle(settle) => *answer = Answer::Settled(round.settle(settle)?),
                Job::Archive { failed, .. } => {
                    round.archive_failed(failed)?;
                    *answer = Answer::Archived;
                }
                Job::Grant(_) | Job::Hold(_) | Job::End(_) | Job::Call(_) => {}
            }
        }
        let done = round.commit()?;
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.archived.fetch_add(done.archived, Ordering::Relaxed);
        if let Some(observer) = self.observer.as_ref().filter(|_| !done.credited.is_empty()) {
            observer(&done.credited);
        }
        Ok(answers)
    }

    /// A caller that has gone does not want its answer; it will ask again. What was decided counts all the same.
    fn answer(&mut self, job: Job, answer: Answer) {
        match (job, answer) {
            (Job::Grant(grant), Answer::Decisions(decisions)) => {
                self.counters.count(&grant.bonus_type, decisions.iter().filter_map(Decision::reply));
                drop(grant.reply.send(decisions));
            }
            (Job::Settle(settle), Answer::Settled(replies)) => {
                self.counters.count(&settle.bonus_type, &replies);
                drop(settle.reply.send(replies));
            }
            (Job::Hold(hold), Answer::Held(held)) => drop(hold.reply.send(held)),
            (Job::End(end), Answer::Ended(finish)) => drop(end.reply.send(finish)),
            (Job::Archive { reply, .. }, Answer::Archived) => drop(reply.send(Ok(()))),
            (Job::Call(call), _) => call(&mut self.ledger),
            (Job::Grant(_) | Job::Settle(_) | Job::Hold(_) | Job::End(_) | Job::Archive { .. }, _) => {}
        }
    }

    fn refuse(&mut self, job: Job, error: &LedgerError) {
        match job {
            // Their callers see that the sender is gone.
            Job::Grant(_) | Job::Settle(_) | Job::Hold(_) | Job::End(_) => {}
            Job::Archive { reply, .. } => drop(reply.send(Err(error.to_string()))),
            Job::Call(call) => call(&mut self.ledger),
        }
    }
}

/// Whether a part of the same job may go well: the database could be asked, and would not take what it was given.
const fn may_lie_in_one_event(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Invalid(_) | LedgerError::Sql(_))
}

/// The job, if it is one grant of more than one event.
fn only_grant(jobs: &mut Vec<Job>) -> Option<Grant> {
    match jobs.as_slice() {
        [Job::Grant(grant)] if grant.events.len() > 1 => match jobs.pop() {
            Some(Job::Grant(grant)) => Some(grant),
            _ => None,
        },
        _ => None,
    }
}

/// Whether another transaction without the job that it lies in would go well. If so that one must not hold up all
/// others, again and again.
const fn may_lie_in_one_job(error: &LedgerError) -> bool {
    !matches!(
        error,
        LedgerError::Busy
            | LedgerError::Full
            | LedgerError::ReadOnly
            | LedgerError::Contended(_)
            | LedgerError::Unavailable(_)
            | LedgerError::Unknown(_)
    )
}
