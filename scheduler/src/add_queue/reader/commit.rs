//! Tells a broker how far its records are finished.

use super::Reader;
use crate::add_queue::partition::Partition;
use std::time::Duration;
use windfall_contract::broker::{Acks, Commit, CommitError, Consumer, Position};
use windfall_contract::due::Shard;
use windfall_contract::finished::Finished;

impl Reader {
    /// Tells the broker what is finished.
    pub(super) async fn finish(&mut self, consumer: &mut dyn Consumer) {
        let settle = Duration::from_millis(self.inner.options.settle_ms);
        let lanes = &self.lanes;
        let last = |shard: Shard| lanes.get(&shard).and_then(|lane| lane.last);
        self.partitions.values_mut().for_each(|own| own.settle(settle, &last));
        let told = match consumer.acks() {
            Acks::Prefix => self.commit(consumer).await,
            Acks::Each => self.acknowledge(consumer).await,
        };
        if let Err(error) = told {
            self.inner.stats.errors.add(1);
            tracing::debug!(topic = self.topic.name, %error, "no commit; it is made again");
        }
    }

    async fn commit(&mut self, consumer: &mut dyn Consumer) -> Result<(), CommitError> {
        let commit = |(partition, own): (&u32, &mut Partition)| {
            own.take_finished();
            let next_offset = own.position()?;
            let (partition, epoch, finished) = (*partition, own.epoch, Finished::default());
            Some(Commit { partition, epoch, next_offset, finished })
        };
        let commits: Vec<Commit> = self.partitions.iter_mut().filter_map(commit).collect();
        if commits.is_empty() {
            return Ok(());
        }
        consumer.commit(&commits).await?;
        for Commit { partition, next_offset, .. } in commits {
            if let Some(own) = self.partitions.get_mut(&partition) {
                own.committed(next_offset);
            }
        }
        Ok(())
    }

    async fn acknowledge(&mut self, consumer: &mut dyn Consumer) -> Result<(), CommitError> {
        for (partition, own) in &mut self.partitions {
            let (partition, epoch, offsets) = (*partition, own.epoch, own.take_finished());
            let positions: Vec<_> =
                offsets.iter().map(|offset| Position { partition, epoch, offset: *offset }).collect();
            if positions.is_empty() {
                continue;
            }
            if let Err(error) = consumer.finish(&positions).await {
                own.give_back(offsets);
                return Err(error);
            }
        }
        Ok(())
    }
}
