//! Steps of runs are written together, but so that those which a full or failing store refuses keep no other ones away.

use crate::book::{dead_key, following_key, group, push_run, run_key};
use crate::core::Core;
use crate::definition::{Definition, JobName, Priority};
use crate::occurrences::Occurrence;
use crate::runs::Run;
use crate::transition::Event;
use std::sync::Arc;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, EntryChange, EntryError, EntryGroup, To};

/// How long a run that has ended is left alone where it cannot be listed, or have its children started, because the store takes
/// no new entries.
const FULL_MS: u64 = 5_000;

/// What a step asks of a store that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It deletes entries: the store always has room for it, and more afterwards.
    Forgets,
    /// It changes entries that are there.
    Changes,
    /// It makes new ones.
    Adds,
}

/// An occurrence whose due task is to be added, and the priority of its job.
pub(crate) type Next = (Priority, Occurrence);

/// What is written for an event.
pub(crate) struct Step {
    pub event: Event,
    pub changes: Vec<EntryChange>,
    pub kind: Kind,
    pub definition: Option<Arc<Definition>>,
    /// The run afterwards, where it has gone on.
    pub run: Option<Run>,
    pub is_to_send: bool,
    pub next: Option<Next>,
    /// Children that it has started.
    pub children: Vec<JobName>,
}

impl Step {
    pub const fn new(event: Event, changes: Vec<EntryChange>, kind: Kind) -> Self {
        Self {
            event,
            changes,
            kind,
            definition: None,
            run: None,
            is_to_send: false,
            next: None,
            children: Vec::new(),
        }
    }
}

impl Step {
    /// The same without entries that are new: the run is looked at in a moment, and listed then as dead. Until then it keeps the
    /// children that it has to start.
    fn without_new(&self, now_ms: u64) -> Option<Vec<EntryChange>> {
        let (_, before) = self.event.read.as_ref()?;
        let number = self.event.number;
        let (own, new) = (run_key(number), [dead_key(&before.tenant, number), following_key(number)]);
        let after = self.run.as_ref().unwrap_or(before);
        let run = Run { children: self.children.clone(), ..after.clone() };
        let wake_ms = now_ms.saturating_add(FULL_MS);
        let is_new = |change: &EntryChange| new.contains(&change.key) && !matches!(change.to, To::Deleted);
        let kept = self.changes.iter().filter(|change| !is_new(change));
        let later = |change: &EntryChange| match change.key == own {
            true => push_run(number, change.expect, &run, wake_ms),
            false => change.clone(),
        };
        Some(kept.map(later).collect())
    }
}

type Answer = Result<Applied, EntryError>;

impl Core {
    /// Writes steps of one shard: one answer for each, in order.
    pub async fn apply_steps(&self, shard: Shard, steps: &[Step], now_ms: u64) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; steps.len()];
        let places = |is_one: fn(Kind) -> bool| -> Vec<usize> {
            (0..steps.len()).filter(|place| is_one(steps[*place].kind)).collect()
        };
        // What makes room goes first, and by itself.
        self.apply_these(shard, steps, places(|kind| kind == Kind::Forgets), &mut answers).await;
        let is_away = answers.iter().any(|answer| matches!(answer, Some(Err(EntryError::Unavailable(_)))));
        let rest = places(|kind| kind != Kind::Forgets);
        if !is_away && !self.apply_these(shard, steps, rest, &mut answers).await {
            let changes = places(|kind| kind == Kind::Changes);
            let adds = places(|kind| kind == Kind::Adds);
            // A full store refuses a call with new entries as a whole. What was done by the call all the same is a conflict now.
            let is_mixed = !changes.is_empty() && !adds.is_empty();
            let is_there = !is_mixed
                || (self.apply_these(shard, steps, changes, &mut answers).await
                    && !self.apply_these(shard, steps, adds.clone(), &mut answers).await);
            if is_there {
                self.apply_without_new(shard, steps, adds, &mut answers, now_ms).await;
            }
        }
        let unknown = || Err(EntryError::Unavailable("the store of entries does not answer".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unknown)).collect()
    }

    /// Writes some of the steps by one call. Whether the store has answered it.
    async fn apply_these(
        &self,
        shard: Shard,
        steps: &[Step],
        places: Vec<usize>,
        answers: &mut [Option<Answer>],
    ) -> bool {
        if places.is_empty() {
            return true;
        }
        let groups: Vec<EntryGroup> =
            places.iter().map(|place| group(steps[*place].changes.clone())).collect();
        match self.apply(shard, &groups).await {
            Ok((_, applied)) => {
                for (place, applied) in places.into_iter().zip(applied) {
                    answers[place] = Some(Ok(applied));
                }
                true
            }
            // One of them cannot be written, ever: the others can.
            Err(EntryError::Unusable(_)) => {
                for (place, group) in places.into_iter().zip(groups) {
                    let applied = self.apply(shard, &[group]).await;
                    answers[place] = applied.map(|(_, applied)| applied.first().copied()).transpose();
                }
                true
            }
            Err(error) => {
                for place in places {
                    answers[place] = Some(Err(error.clone()));
                }
                false
            }
        }
    }

    /// Writes steps without the entries that a full store does not take, as far as that can be: they are made up for later.
    async fn apply_without_new(
        &self,
        shard: Shard,
        steps: &[Step],
        places: Vec<usize>,
        answers: &mut [Option<Answer>],
        now_ms: u64,
    ) {
        let without = |place: usize| Some((place, group(steps[place].without_new(now_ms)?)));
        let (places, groups): (Vec<_>, Vec<_>) = places.into_iter().filter_map(without).unzip();
        if groups.is_empty() {
            return;
        }
        match self.apply(shard, &groups).await {
            Ok((_, applied)) => {
                for (place, applied) in places.into_iter().zip(applied) {
                    answers[place] = Some(Ok(applied));
                }
            }
            Err(error) => self.store_failed("runs that end cannot be written now", &error),
        }
    }
}
