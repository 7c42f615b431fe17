//! The callers of the demo: they add, move and cancel timers as planned, and note what they are told.

use super::fleet::{TARGET, TENANT};
use super::journal::{Called, Journal, State, payload};
use super::plan::{Change, Plan};
use anyhow::{Result, bail};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use windfall_contract::Clock;
use windfall_contract::due::{Added, Changed, Moved, TaskAt, TaskKey};
use windfall_scheduler::{AddError, NewTask, Timers, TimersError};

/// How many callers add.
const ADDERS: usize = 4;
/// Timers of one add.
const BATCH: u64 = 100;
/// Changes that are under way at a time.
const CHANGES: usize = 500;
/// The pause before a call that was refused is made again, and between two looks at the plan.
const PAUSE: Duration = Duration::from_millis(10);

/// What all callers share.
#[derive(Clone)]
pub struct Callers {
    /// What they do.
    pub plan: Plan,
    /// When the minute began, in Unix milliseconds.
    pub begin_ms: u64,
    /// The time by which they act.
    pub clock: Clock,
    /// What they note.
    pub journal: Arc<Journal>,
    /// What they call; `None` while the store is closed.
    pub timers: watch::Receiver<Option<Timers>>,
}

impl Callers {
    /// Adds and changes every timer. Ends when every call has its answer.
    pub async fn run(self) -> Result<()> {
        let next = Arc::new(AtomicU64::new(0));
        let mut callers = JoinSet::new();
        for _ in 0..ADDERS {
            callers.spawn(self.clone().add_all(Arc::clone(&next)));
        }
        callers.spawn(self.change_all());
        while let Some(ended) = callers.join_next().await {
            ended??;
        }
        Ok(())
    }

    async fn add_all(mut self, next: Arc<AtomicU64>) -> Result<()> {
        loop {
            let first = next.fetch_add(BATCH, Relaxed);
            if first >= self.plan.timers {
                return Ok(());
            }
            let mut numbers: Vec<u64> = (first..self.plan.timers.min(first + BATCH)).collect();
            while self.now_ms() < self.plan.add_ms(first) {
                tokio::time::sleep(PAUSE).await;
            }
            while !numbers.is_empty() {
                numbers = self.add(numbers).await?;
                if !numbers.is_empty() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Adds timers; those that are to be added again are returned.
    async fn add(&mut self, numbers: Vec<u64>) -> Result<Vec<u64>> {
        let due_ms = |number: u64| self.begin_ms + self.plan.due_ms(number);
        let task = |number: u64| {
            let key = Plan::has_key(number).then(|| key(number)).transpose()?;
            Ok(NewTask { target: TARGET.into(), due_ms: due_ms(number), key, payload: payload(number) })
        };
        let tasks = numbers.iter().map(|number| task(*number)).collect::<Result<Vec<_>>>()?;
        let timers = open(&mut self.timers).await?;
        let answers = timers.add(TENANT, tasks).await;
        let mut again = Vec::new();
        for (number, answer) in numbers.into_iter().zip(answers) {
            let due_ms = self.begin_ms + self.plan.due_ms(number);
            let told = match answer {
                Ok(Added::Stored(id) | Added::Exists(id)) => {
                    self.journal.counts.added.fetch_add(1, Relaxed);
                    Called { state: State::Waiting, id: Some(id), due_ms, perhaps_due_ms: None }
                }
                // It may be stored or not, so it is not added again.
                Err(AddError::Store(_)) => {
                    Called { state: State::Unanswered, id: None, due_ms, perhaps_due_ms: None }
                }
                Err(AddError::Busy | AddError::Closing | AddError::QuotaRate { .. }) => {
                    again.push(number);
                    continue;
                }
                Err(other) => bail!("timer {number} was refused: {other}"),
            };
            self.journal.note(number, |called| *called = told);
        }
        Ok(again)
    }

    async fn change_all(mut self) -> Result<()> {
        let when = |number: u64| Some((self.plan.change(number)?.0, number));
        let mut planned: Vec<(u64, u64)> = (0..self.plan.timers).filter_map(when).collect();
        planned.sort_unstable();
        let mut planned = VecDeque::from(planned);
        let mut again: Vec<u64> = Vec::new();
        while !(planned.is_empty() && again.is_empty()) {
            let now_ms = self.now_ms();
            let mut turn = std::mem::take(&mut again);
            while turn.len() < CHANGES
                && let Some((_, number)) = planned.pop_front_if(|(at_ms, _)| *at_ms <= now_ms)
            {
                turn.push(number);
            }
            again = self.change(turn).await?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Changes timers; those that are to be changed again are returned.
    async fn change(&mut self, numbers: Vec<u64>) -> Result<Vec<u64>> {
        let timers = open(&mut self.timers).await?;
        let (mut again, mut cancels, mut moves) = (Vec::new(), Vec::new(), JoinSet::new());
        for number in numbers {
            let Some((called, (_, change))) = self.journal.called(number).zip(self.plan.change(number))
            else {
                continue;
            };
            let Some(id) = called.id else {
                // Not added yet; one without an answer has no id to be changed by.
                again.extend((called.state == State::Unasked).then_some(number));
                continue;
            };
            let at = match Plan::has_key(number) {
                true => TaskAt::Key(key(number)?),
                false => TaskAt::Id(id),
            };
            match change {
                Change::Cancel => cancels.push((number, at)),
                Change::Move { due_ms } => {
                    let (timers, due_ms) = (timers.clone(), self.begin_ms + due_ms);
                    let to = Moved { due_ms: Some(due_ms), payload: None };
                    moves.spawn(async move { (number, due_ms, timers.update(TENANT, at, to).await) });
                }
            }
        }
        for part in cancels.chunks(windfall_scheduler::CALL_TASKS_MAX) {
            let answers = timers.cancel(TENANT, part.iter().map(|(_, at)| at.clone()).collect()).await;
            for ((number, _), answer) in part.iter().zip(answers) {
                again.extend(self.changed(*number, None, answer)?.then_some(*number));
            }
        }
        while let Some(moved) = moves.join_next().await {
            let (number, due_ms, answer) = moved?;
            again.extend(self.changed(number, Some(due_ms), answer)?.then_some(number));
        }
        Ok(again)
    }

    /// Notes the answer of a change. Says whether to ask again.
    fn changed(
        &self,
        number: u64,
        due_ms: Option<u64>,
        answer: Result<Changed, TimersError>,
    ) -> Result<bool> {
        let counts = &self.journal.counts;
        match (answer, due_ms) {
            (Ok(Changed::Done(_)), Some(due_ms)) => {
                counts.moved.fetch_add(1, Relaxed);
                self.journal.note(number, |called| {
                    (called.state, called.due_ms, called.perhaps_due_ms) = (State::Moved, due_ms, None);
                });
            }
            (Ok(Changed::Done(_) | Changed::Cancelled), None) => {
                counts.cancelled.fetch_add(1, Relaxed);
                self.journal.note(number, |called| called.state = State::Cancelled);
            }
            // One whose minute is gone has fired, too.
            (Ok(Changed::Firing | Changed::Unknown), _) => {
                counts.too_late.fetch_add(1, Relaxed);
                self.journal.note(number, |called| called.state = State::TooLate);
            }
            (Ok(Changed::Cancelled), Some(_)) => {
                bail!("timer {number} is cancelled, but nobody cancelled it")
            }
            (Err(TimersError::Busy | TimersError::Closing), _) => return Ok(true),
            (Err(TimersError::Store(_)), _) => {
                self.journal.note(number, |called| called.perhaps_due_ms = due_ms);
                return Ok(true);
            }
            (Err(other), _) => bail!("the change of timer {number} was refused: {other}"),
        }
        Ok(false)
    }

    fn now_ms(&self) -> u64 {
        self.clock.unix_ms().saturating_sub(self.begin_ms)
    }
}

/// Waits until the store is open.
async fn open(timers: &mut watch::Receiver<Option<Timers>>) -> Result<Timers> {
    loop {
        if let Some(timers) = timers.borrow_and_update().clone() {
            return Ok(timers);
        }
        timers.changed().await?;
    }
}

fn key(number: u64) -> Result<TaskKey> {
    Ok(TaskKey::new(format!("call-{number}").as_bytes())?)
}
