//! A consumer that checks what it is brought, as it is brought.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use windfall_contract::broker::{
    Acks, Change, Commit, CommitError, Consumer, Epoch, Fetch, InRecord, PollError, Position,
};
use windfall_contract::finished::Finished;

/// Reads like a careful service: owns what it was assigned, and knows how far it is.
pub struct Reader {
    consumer: Box<dyn Consumer>,
    /// Partition → epoch and the offset expected at least.
    owned: BTreeMap<u32, (Epoch, u64)>,
    /// Announced as revoked by the last poll: still to be committed now.
    going: BTreeMap<u32, (Epoch, u64)>,
    last_epochs: BTreeMap<u32, Epoch>,
    /// Brought and not yet finished, where records are finished one by one.
    unfinished: Vec<Position>,
}

/// The records that were read: partition and offset → payload.
pub type Seen = BTreeMap<(u32, u64), InRecord>;

impl Reader {
    /// Reads from `consumer`.
    pub fn new(consumer: Box<dyn Consumer>) -> Self {
        Self {
            consumer,
            owned: BTreeMap::new(),
            going: BTreeMap::new(),
            last_epochs: BTreeMap::new(),
            unfinished: Vec::new(),
        }
    }

    /// The partitions it owns now.
    pub fn owned(&self) -> BTreeSet<u32> {
        self.owned.keys().copied().collect()
    }

    /// The epochs of the partitions it owns now.
    pub fn epochs(&self) -> BTreeMap<u32, Epoch> {
        self.owned.iter().map(|(partition, (epoch, _))| (*partition, *epoch)).collect()
    }

    /// How the broker below is told what is finished.
    pub fn acks(&self) -> Acks {
        self.consumer.acks()
    }

    /// The consumer itself.
    pub fn consumer(&mut self) -> &mut dyn Consumer {
        &mut *self.consumer
    }

    /// Polls once and checks what comes against the contract. A failed poll, which a fault may cause, brings nothing.
    ///
    /// # Errors
    /// What breaks the contract.
    pub async fn poll(&mut self, fetch: Fetch) -> Result<Vec<InRecord>, String> {
        self.going.clear();
        let polled = match self.consumer.poll(fetch).await {
            Ok(polled) => polled,
            Err(PollError::Unavailable(_)) => return Ok(Vec::new()),
            Err(damaged) => return Err(damaged.to_string()),
        };
        for change in polled.changes {
            self.apply(change)?;
        }
        for record in &polled.records {
            let Some((epoch, next)) = self.owned.get_mut(&record.partition) else {
                return Err(format!("a record of partition {}, which is not owned", record.partition));
            };
            if *epoch != record.epoch {
                return Err(format!("a record of {:?} while {epoch:?} lasts", record.epoch));
            }
            if record.offset < *next {
                return Err(format!("offset {} after {}, in one partition", record.offset, *next));
            }
            *next = record.offset + 1;
            if self.consumer.acks() == Acks::Each {
                let (partition, epoch, offset) = (record.partition, record.epoch, record.offset);
                self.unfinished.push(Position { partition, epoch, offset });
            }
        }
        Ok(polled.records)
    }

    fn apply(&mut self, change: Change) -> Result<(), String> {
        match change {
            Change::Assigned { partition, epoch, next_offset } => {
                if self.owned.insert(partition, (epoch, next_offset)).is_some() {
                    return Err(format!("partition {partition} was assigned twice"));
                }
                if self.last_epochs.insert(partition, epoch).is_some_and(|last| last >= epoch) {
                    return Err(format!("{epoch:?} of partition {partition} does not grow"));
                }
                if partition >= self.consumer.partitions() {
                    return Err(format!("partition {partition} of {}", self.consumer.partitions()));
                }
            }
            Change::Passed { partition, epoch, next_offset } => match self.owned.get_mut(&partition) {
                Some((owned, next)) if *owned == epoch && *next < next_offset => *next = next_offset,
                other => return Err(format!("{epoch:?} of {partition} passed {next_offset}, at {other:?}")),
            },
            Change::Revoked { partition, epoch } => match self.owned.remove(&partition) {
                Some((owned, next)) if owned == epoch => {
                    self.going.insert(partition, (epoch, next));
                }
                other => return Err(format!("{epoch:?} of {partition} was revoked, not {other:?}")),
            },
        }
        Ok(())
    }

    /// Commits all that was polled, including what was just revoked, or finishes each record of it, as the broker
    /// wants; tries again where a fault forbids it.
    ///
    /// # Errors
    /// After many tries.
    pub async fn commit(&mut self) -> Result<(), String> {
        let positions = self.owned.iter().chain(&self.going);
        let commits: Vec<_> = positions
            .map(|(partition, (epoch, next))| Commit {
                partition: *partition,
                epoch: *epoch,
                next_offset: *next,
                finished: Finished::default(),
            })
            .collect();
        let mut last = String::new();
        for tries in 0..1000 {
            let done = match self.consumer.acks() {
                Acks::Prefix => self.consumer.commit(&commits).await,
                Acks::Each => self.consumer.finish(&self.unfinished).await,
            };
            match done {
                Ok(()) => {
                    self.unfinished.clear();
                    return Ok(());
                }
                Err(CommitError::Unavailable(what)) => {
                    last = what;
                    // A broker that is busy with a rebalance wants time, not zeal.
                    tokio::time::sleep(Duration::from_millis(tries / 10)).await;
                }
            }
        }
        Err(format!("no commit in 1000 tries: {last}"))
    }

    /// Commits like [`commit`](Self::commit); but where nothing is about to go, one short try is enough. True if it
    /// is stored.
    ///
    /// A member that joins a rebalance may have to wait with its commits until the others have joined, and those
    /// join when they are polled: who polls them all must not wait for one.
    ///
    /// # Errors
    /// After many tries.
    pub async fn commit_or_later(&mut self) -> Result<bool, String> {
        if !self.going.is_empty() || self.consumer.acks() == Acks::Each {
            return self.commit().await.map(|()| true);
        }
        let owned = self.owned.iter();
        let commits: Vec<_> = owned
            .map(|(&partition, &(epoch, next_offset))| Commit {
                partition,
                epoch,
                next_offset,
                finished: Finished::default(),
            })
            .collect();
        let trying = tokio::time::timeout(Duration::from_millis(200), self.consumer.commit(&commits));
        Ok(matches!(trying.await, Ok(Ok(()))))
    }

    /// Polls until `count` records have been seen in all, or `patience` is over. A record seen twice is an error.
    ///
    /// # Errors
    /// What breaks the contract.
    pub async fn read(&mut self, count: usize, patience: Duration) -> Result<Seen, String> {
        let started = Instant::now();
        let mut seen = Seen::new();
        while seen.len() < count {
            if started.elapsed() > patience {
                return Err(format!("{} of {count} records within {patience:?}", seen.len()));
            }
            for record in self.poll(fetch(64, Duration::from_millis(20))).await? {
                let place = (record.partition, record.offset);
                if seen.insert(place, record).is_some() {
                    return Err(format!("{place:?} came twice"));
                }
            }
        }
        Ok(seen)
    }

    /// Leaves the group.
    pub async fn close(self) {
        self.consumer.close().await;
    }
}

/// Up to `max_records` within `wait`.
pub(super) const fn fetch(max_records: usize, wait: Duration) -> Fetch {
    Fetch { max_records, max_bytes: 1 << 20, wait }
}
