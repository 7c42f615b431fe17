//! A thread that writes the ledger. It takes all calls that wait, puts them into one transaction, and answers
//! after its commit: group commit. A file has one such thread, a database several, each on its own connection.

use crate::decide::Round;
use crate::fence::{Fence, Permit};
use crate::inbox::{CloseAtEnd, Inbox};
use crate::job::{Answer, Decision, Grant, Job};
use crate::options::GrantObserver;
use crate::payouts::{STOPPED, Standing};
use crate::stats::Counters;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;
use windfall_contract::Clock;
use windfall_contract::rewards::{GrantReply, RetryReason};
use windfall_ledger::{Guard, Ledger, LedgerError};

/// How often a transaction that others were in the way of is tried before its callers are told to ask again.
const ATTEMPTS: u32 = 8;
/// The least wait of an event that the ledger does not take: an operator or a withdrawal has to make room.
const FAULT_RETRY_MS: u64 = 1_000;
/// The least wait of an event while this process runs older rules than the ledger has seen: it takes over new ones
/// within a second, if it can.
const OLD_RULES_RETRY_MS: u64 = 1_000;
/// The least wait of an event while the budgets of the own rules are not set: they wait in the same queue as events.
const BUDGETS_RETRY_MS: u64 = 100;

pub(crate) struct Writer {
    pub ledger: Ledger,
    pub inbox: Arc<Inbox<Job>>,
    pub batch_events_max: usize,
    pub apps: Arc<BTreeSet<String>>,
    /// The tenant in the keys of withdrawals.
    pub tenant: Arc<str>,
    pub fence: Arc<Fence>,
    pub guard: Option<Arc<Guard>>,
    /// Whether the ledger credits while it does not hold its mark.
    pub grant_when_back: bool,
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
                    // Nothing of it was stored: the whole transaction is repeated.
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
                // Calls run now, and may take long. Nobody whose answer is there waits for them.
                let (calls, decided): (Vec<_>, Vec<_>) =
                    jobs.drain(..).zip(answers).partition(|(job, _)| matches!(job, Job::Call(_)));
                for (job, answer) in decided.into_iter().chain(calls) {
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
                jobs.sort_by_key(|job| matches!(job, Job::Call(_)));
                for job in jobs.drain(..) {
                    self.refuse(job, &error);
                }
                // The service is closed and the database is away: each further round would wait for it in vain.
                if self.inbox.is_closed() && !may_lie_in_one_job(&error) {
                    self.inbox.drop_all();
                }
            }
        }
    }

    /// Grants each half of a batch alone whose transaction fails because of its content (a balance that would pass 64
    /// bits, an order that a newer build has stored), until only the events at fault are told to ask again. They must not
    /// hold up the others of their record.
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
        let apps = Arc::clone(&self.apps);
        let mut round = Round::begin(&mut self.ledger, &apps, now_ms)?;
        let mut answers: Vec<Answer> = jobs.iter().map(|_| Answer::None).collect();
        // The transaction has begun: this is so for the very database that it works on.
        let standing = Standing::of(self.guard.as_deref(), round.went_back(), self.grant_when_back);
        standing.refuse(jobs, &mut answers);
        if !standing.grants_stop && jobs.iter().any(|job| matches!(job, Job::Grant(_))) {
            match round.may_grant(&self.fence)? {
                Permit::Granted => round.grant_all(jobs, &mut answers)?,
                Permit::OldRules => refuse_grants(jobs, &mut answers, OLD_RULES_RETRY_MS),
                Permit::BudgetsNotSet => refuse_grants(jobs, &mut answers, BUDGETS_RETRY_MS),
            }
        }
        // What is left without an answer was not stored, and is asked for again.
        if !standing.payouts_stop {
            round.withdraw_all(jobs, &self.tenant, &mut answers)?;
        }
        for (job, answer) in jobs.iter().zip(&mut answers) {
            match job {
                Job::Settle(_) if standing.payouts_stop => {}
                // I2: where the server with everything comes back, an entry of this one would be gone.
                Job::Archive { .. } if standing.grants_stop => {}
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
        self.counters.late_answers.fetch_add(done.late_answers, Ordering::Relaxed);
        if !done.times.is_empty() {
            // It is read now, since the commit itself may have waited for long.
            let credited_ms = self.clock.wall_ms();
            for (bonus_type, from_ms) in &done.times {
                self.counters.count_times(bonus_type, from_ms, credited_ms);
            }
        }
        if let Some(observer) = self.observer.as_ref().filter(|_| !done.credited.is_empty()) {
            observer(&done.credited);
        }
        Ok(answers)
    }

    /// Answers a job. A caller that has gone misses its answer and will ask again; the decision counts all the same.
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
            (Job::Archive { reply, .. }, _) => drop(reply.send(Err(STOPPED.into()))),
            (Job::Call(call), _) => call(&mut self.ledger),
            (Job::Grant(_) | Job::Settle(_) | Job::Hold(_) | Job::End(_), _) => {}
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

/// Refuses grants for now, because newer rules than this process's may have paused them, or because its own rules may have
/// a budget for them that is not set yet. Nothing is decided or archived.
fn refuse_grants(jobs: &[Job], answers: &mut [Answer], after_ms: u64) {
    let later = GrantReply::Retry { after_ms, reason: RetryReason::OldRules };
    for (job, answer) in jobs.iter().zip(answers) {
        if let Job::Grant(grant) = job {
            *answer = Answer::Decisions(vec![Decision::Reply(later.clone()); grant.events.len()]);
        }
    }
}

/// Whether a part of the same job may succeed: the database answered, and refused what it was given, or returned a row
/// that this build cannot read.
const fn may_lie_in_one_event(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Invalid(_) | LedgerError::Sql(_) | LedgerError::Damaged(_))
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

/// Whether another transaction without the job at fault would succeed. If so, that job must not hold up all others
/// again and again.
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
