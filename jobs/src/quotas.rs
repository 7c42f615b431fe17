//! How many jobs a tenant has, so that one cannot fill the store for all. It is counted now and then, and each process adds what
//! it makes itself: with several processes a tenant may have a few more for a moment.

use crate::api::JobsError;
use crate::core::Core;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use std::collections::HashMap;
use tokio::sync::Semaphore;
use windfall_contract::Clock;
use windfall_contract::due::Shard;
use windfall_contract::entries::{CALL_MAX, EntryError};

/// A count is good for so long: other processes make jobs as well.
const COUNTED_FOR_MS: u64 = 60_000;
/// One that refuses a job is made anew after so long: jobs may have been removed.
const REFUSED_FOR_MS: u64 = 1_000;
/// And not before so many times as long as it took: whoever goes on asking for a job too many does not keep the store busy.
const REFUSED_FOR_COUNTS: u64 = 20;
/// Jobs that could not be counted are not counted again for so long: each call that makes a job would wait for its own count, one
/// after the other, and each count for a store that does not answer.
const FAILED_FOR_MS: u64 = 5_000;
/// Shards that are counted side by side.
const SIDE_BY_SIDE: usize = 16;
/// Tenants that are remembered; beyond it all are counted anew.
const TENANTS_MAX: usize = 10_000;

#[derive(Clone, Copy)]
struct Counted {
    jobs: u64,
    counted_ns: u64,
    /// How long that took.
    took_ms: u64,
}

pub(crate) struct Quotas {
    clock: Clock,
    jobs_max: u64,
    known: Mutex<HashMap<String, Counted>>,
    /// When jobs could not be counted last, by the monotonic clock.
    failed_ns: Mutex<Option<u64>>,
    /// Whoever counts: the others wait for what it finds.
    counting: Semaphore,
}

impl Quotas {
    pub fn new(clock: Clock, jobs_max: u64) -> Self {
        let (known, failed_ns) = (Mutex::default(), Mutex::default());
        Self { clock, jobs_max, known, failed_ns, counting: Semaphore::new(1) }
    }

    /// Whether the tenant may have so many more jobs; `None` where its jobs have to be counted first.
    fn has_room(&self, tenant: &str, more: u64) -> Option<bool> {
        let counted = self.known.lock().get(tenant).copied();
        let found = counted.and_then(|Counted { jobs, counted_ns, took_ms }| {
            let has_room = jobs.saturating_add(more) <= self.jobs_max;
            let good_ms = match has_room {
                true => COUNTED_FOR_MS,
                false => REFUSED_FOR_MS.max(took_ms.saturating_mul(REFUSED_FOR_COUNTS)),
            };
            (self.since_ms(counted_ns) < good_ms).then_some(has_room)
        });
        let failed_ns = *self.failed_ns.lock();
        let has_failed = failed_ns.is_some_and(|failed_ns| self.since_ms(failed_ns) < FAILED_FOR_MS);
        found.or_else(|| has_failed.then_some(true))
    }

    fn since_ms(&self, then_ns: u64) -> u64 {
        self.clock.monotonic_ns().saturating_sub(then_ns) / 1_000_000
    }

    fn counted(&self, tenant: &str, jobs: u64, begun_ns: u64) {
        let (counted_ns, took_ms) = (self.clock.monotonic_ns(), self.since_ms(begun_ns));
        let mut known = self.known.lock();
        if known.len() >= TENANTS_MAX {
            known.clear();
        }
        known.insert(tenant.to_owned(), Counted { jobs, counted_ns, took_ms });
    }

    fn failed(&self) {
        *self.failed_ns.lock() = Some(self.clock.monotonic_ns());
    }

    /// The tenant has so many more jobs.
    pub fn made(&self, tenant: &str, more: u64) {
        if let Some(counted) = self.known.lock().get_mut(tenant) {
            counted.jobs = counted.jobs.saturating_add(more);
        }
    }

    /// The tenant has one job less.
    pub fn removed(&self, tenant: &str) {
        if let Some(counted) = self.known.lock().get_mut(tenant) {
            counted.jobs = counted.jobs.saturating_sub(1);
        }
    }
}

impl Core {
    /// Checks that a tenant may have so many more jobs. Where they cannot be counted, it may: a shard that does not answer
    /// keeps no job of another one from being made.
    pub async fn check_quota(&self, tenant: &str, more: u64) -> Result<(), JobsError> {
        let has_room = match self.quotas.has_room(tenant, more) {
            Some(has_room) => has_room,
            None => {
                let _counting = self.quotas.counting.acquire().await;
                match self.quotas.has_room(tenant, more) {
                    Some(has_room) => has_room,
                    None => self.count_jobs(tenant, more).await,
                }
            }
        };
        let jobs_max = self.quotas.jobs_max;
        if has_room { Ok(()) } else { Err(JobsError::TooManyJobs { jobs_max }) }
    }

    async fn count_jobs(&self, tenant: &str, more: u64) -> bool {
        let prefix = [b"n/", tenant.as_bytes(), b"\0"].concat();
        let (prefix, begun_ns) = (&prefix, self.clock.monotonic_ns());
        let counts: Vec<Result<u64, EntryError>> = stream::iter(self.book.shards())
            .map(|shard| async move { self.count_of(shard, prefix).await })
            .buffer_unordered(SIDE_BY_SIDE)
            .collect()
            .await;
        match counts.into_iter().sum::<Result<u64, EntryError>>() {
            Ok(jobs) => {
                self.quotas.counted(tenant, jobs, begun_ns);
                jobs.saturating_add(more) <= self.quotas.jobs_max
            }
            Err(error) => {
                self.quotas.failed();
                self.store_failed("the jobs of a tenant cannot be counted now", &error);
                true
            }
        }
    }

    async fn count_of(&self, shard: Shard, prefix: &[u8]) -> Result<u64, EntryError> {
        let (mut count, mut after) = (0, None);
        loop {
            let page = self.book.scan(shard, prefix, after.as_ref(), CALL_MAX).await?;
            count += u64::try_from(page.entries.len()).unwrap_or(u64::MAX);
            after = page.next;
            if after.is_none() {
                return Ok(count);
            }
        }
    }
}
