//! The consuming side: errors, and rebalances that deliver again what was not committed.

use super::{Dice, TopicFaults};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::broker::{
    Acks, Broker, Change, Commit, CommitError, Consumer, Epoch, Fetch, OpenError, PollError, Polled, Position,
};

pub(super) struct FaultyConsumer {
    broker: Arc<dyn Broker>,
    topic: String,
    group: String,
    faults: Arc<TopicFaults>,
    dice: Dice,
    /// The consumer below; `None` between leaving and joining anew.
    below: Option<Box<dyn Consumer>>,
    /// Whether a rebalance is announced: the next poll leaves and joins again.
    leaving: bool,
    /// Partition → epoch, as the caller knows it.
    owned: BTreeMap<u32, Epoch>,
    /// Added to the epochs below, so that they grow although the consumer below is a new one.
    epoch_base: u32,
    highest_epoch: u32,
    partitions: u32,
    acks: Acks,
}

impl FaultyConsumer {
    pub(super) async fn open(
        broker: Arc<dyn Broker>,
        topic: &str,
        group: &str,
        faults: Arc<TopicFaults>,
        dice: Dice,
    ) -> Result<Self, OpenError> {
        let below = broker.consumer(topic, group).await?;
        let (partitions, acks) = (below.partitions(), below.acks());
        Ok(Self {
            acks,
            broker,
            topic: topic.into(),
            group: group.into(),
            faults,
            dice,
            below: Some(below),
            leaving: false,
            owned: BTreeMap::new(),
            epoch_base: 0,
            highest_epoch: 0,
            partitions,
        })
    }

    /// The consumer below, a new one if the last has left. Cancelled in between, it is asked for again.
    async fn below(&mut self) -> Result<&mut Box<dyn Consumer>, PollError> {
        if std::mem::take(&mut self.leaving) {
            // Dropping it leaves the group: what was read and not committed comes again.
            self.below = None;
            self.epoch_base = self.highest_epoch;
        }
        if self.below.is_none() {
            let opened = self.broker.consumer(&self.topic, &self.group).await;
            self.below = Some(opened.map_err(|error| PollError::Unavailable(error.to_string()))?);
        }
        self.below.as_mut().ok_or_else(|| PollError::Unavailable("the consumer is away".into()))
    }

    fn outer(&mut self, mut polled: Polled) -> Polled {
        for change in &mut polled.changes {
            let (Change::Assigned { epoch, .. }
            | Change::Passed { epoch, .. }
            | Change::Revoked { epoch, .. }) = change;
            epoch.0 = epoch.0.saturating_add(self.epoch_base);
            self.highest_epoch = self.highest_epoch.max(epoch.0);
            match *change {
                Change::Assigned { partition, epoch, .. } => self.owned.insert(partition, epoch),
                Change::Revoked { partition, .. } => self.owned.remove(&partition),
                Change::Passed { .. } => None,
            };
        }
        for record in &mut polled.records {
            record.epoch.0 = record.epoch.0.saturating_add(self.epoch_base);
        }
        polled
    }
}

#[async_trait]
impl Consumer for FaultyConsumer {
    async fn poll(&mut self, fetch: Fetch) -> Result<Polled, PollError> {
        let faults = self.faults.faults.lock().clone();
        if self.dice.hits(faults.poll_error_per_mille) {
            return Err(PollError::Unavailable("failed on purpose".into()));
        }
        if self.dice.hits(faults.rebalance_per_mille) && !self.owned.is_empty() && !self.leaving {
            self.leaving = true;
            let gone = std::mem::take(&mut self.owned);
            let changes = gone.into_iter().map(|(partition, epoch)| Change::Revoked { partition, epoch });
            return Ok(Polled { changes: changes.collect(), records: Vec::new() });
        }
        let below = self.below().await?;
        let polled = below.poll(fetch).await?;
        self.partitions = below.partitions();
        Ok(self.outer(polled))
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<(), CommitError> {
        let faults = self.faults.faults.lock().clone();
        if self.dice.hits(faults.commit_error_per_mille) {
            return Err(CommitError::Unavailable("failed on purpose".into()));
        }
        let lose_answer = self.dice.hits(faults.lose_commit_answer_per_mille);
        let base = self.epoch_base;
        // An epoch of an earlier life below is over.
        let current = commits.iter().filter(|commit| commit.epoch.0 > base);
        let current: Vec<_> =
            current.map(|commit| Commit { epoch: Epoch(commit.epoch.0 - base), ..commit.clone() }).collect();
        if let Some(below) = &mut self.below {
            below.commit(&current).await?;
        }
        if lose_answer {
            return Err(CommitError::Unavailable("the answer was lost on purpose".into()));
        }
        Ok(())
    }

    fn acks(&self) -> Acks {
        self.acks
    }

    async fn finish(&mut self, records: &[Position]) -> Result<(), CommitError> {
        let faults = self.faults.faults.lock().clone();
        if self.dice.hits(faults.commit_error_per_mille) {
            return Err(CommitError::Unavailable("failed on purpose".into()));
        }
        let lose_answer = self.dice.hits(faults.lose_commit_answer_per_mille);
        let base = self.epoch_base;
        // An epoch of an earlier life below is over.
        let current = records.iter().filter(|record| record.epoch.0 > base);
        let current: Vec<_> =
            current.map(|record| Position { epoch: Epoch(record.epoch.0 - base), ..*record }).collect();
        if let Some(below) = &mut self.below {
            below.finish(&current).await?;
        }
        if lose_answer {
            return Err(CommitError::Unavailable("the answer was lost on purpose".into()));
        }
        Ok(())
    }

    fn pause(&mut self, partition: u32, epoch: Epoch, paused: bool) {
        let base = self.epoch_base;
        // An epoch of an earlier life below is over.
        if let Some(below) = self.below.as_mut().filter(|_| epoch.0 > base) {
            below.pause(partition, Epoch(epoch.0 - base), paused);
        }
    }

    fn partitions(&self) -> u32 {
        self.partitions
    }

    fn may_delete_unread(&self) -> bool {
        self.below.as_ref().is_some_and(|below| below.may_delete_unread())
    }

    async fn close(mut self: Box<Self>) {
        if let Some(below) = self.below.take() {
            below.close().await;
        }
    }
}
