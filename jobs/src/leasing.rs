//! Leases of runs: as long as a process has one, nobody else sends the run. Each lease of a run has a random number, by which
//! whoever has it knows it again, also where the answer to its last change was lost.

use crate::book::{Kept, group, put_run, run_key};
use crate::core::Core;
use crate::definition::{Definition, Delivery};
use crate::outbox::Ticket;
use crate::runs::{LEASE_MS, Run, RunState};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use windfall_contract::due::Shard;
use windfall_contract::entries::{Applied, EntryError, Expect};

/// A run that has waited for longer than this since its lease began gets a new one before it is sent. Each costs a call of the
/// store, so that a process that has more to send than it can must not need one for every run: it would send still less.
const FRESH_MS: u64 = RENEW_EVERY_MS;
/// A run is sent while so much of its lease is left: a renewal may have been on its way for long, or may have failed.
const LEFT_MS: u64 = 1_500;
/// While a call is open, its lease is renewed as often.
const RENEW_EVERY_MS: u64 = 1_500;
/// The same after the store has failed.
const RENEW_AGAIN_MS: u64 = 300;
/// A store that is slow to renew leases is asked again after so long.
const LEAST_WAIT_MS: u64 = 100;
const CONFLICTS_MAX: usize = 3;

/// The numbers of a process's leases. They are random, so that two processes never give a run the same one, also where one of
/// them is of a version that does not write them.
pub(crate) struct LeaseNumbers(AtomicU64);

impl LeaseNumbers {
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Another number; never 0.
    pub fn next(&self) -> u32 {
        loop {
            // SplitMix64.
            let at = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            let mixed = (at ^ (at >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let lease = u32::try_from(mixed >> 32).unwrap_or(0);
            if lease != 0 {
                return lease;
            }
        }
    }
}

/// Runs before they are sent.
#[derive(Default)]
pub(crate) struct Fresh {
    /// Those that may be sent now.
    pub ready: Vec<Ticket>,
    /// Those that may not, because the store does not answer: they were not sent.
    pub later: Vec<Ticket>,
}

/// Looks after the leases of runs that are to be sent now: they have just begun, and it is written that they are being sent
/// where they may be sent only once. Those that somebody else has by now are left out.
pub(crate) async fn fresh(core: &Core, tickets: Vec<Ticket>) -> Fresh {
    let is_once = |ticket: &Ticket| ticket.definition.spec.delivery == Delivery::AtMostOnce;
    let (old, ready): (Vec<_>, Vec<_>) =
        tickets.into_iter().partition(|ticket| age_ms(core, ticket) > FRESH_MS || is_once(ticket));
    let mut fresh = Fresh { ready, later: Vec::new() };
    if old.is_empty() {
        return fresh;
    }
    let Renewed { renewed, unknown } = renewed(core, &old).await;
    let has_time = |ticket: &Ticket| age_ms(core, ticket) + LEFT_MS <= LEASE_MS;
    let (ready, later): (Vec<_>, Vec<_>) = renewed.into_iter().partition(has_time);
    fresh.ready.extend(ready);
    fresh.later.extend(later);
    let may_go = |ticket: &Ticket| !is_once(ticket) && has_time(ticket);
    let (ready, later): (Vec<_>, Vec<_>) = unknown.into_iter().partition(may_go);
    fresh.ready.extend(ready);
    fresh.later.extend(later);
    fresh
}

/// Waits for a call, and renews the leases of its runs meanwhile: the call's answer, and the runs that are still ours.
pub(crate) async fn leased<T>(
    core: &Core,
    mut tickets: Vec<Ticket>,
    call: impl Future<Output = T>,
) -> (T, Vec<Ticket>) {
    let mut call = std::pin::pin!(call);
    let mut is_known = true;
    while !tickets.is_empty() {
        let oldest_ms = tickets.iter().map(|ticket| age_ms(core, ticket)).max().unwrap_or(0);
        let wait_ms = match is_known {
            true => RENEW_EVERY_MS.saturating_sub(oldest_ms).max(LEAST_WAIT_MS),
            false => RENEW_AGAIN_MS,
        };
        let renewing = async {
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            renewed(core, &tickets).await
        };
        let Renewed { renewed, unknown } = tokio::select! {
            biased;
            // A renewal that is on its way does no harm: the lease is known by its number, whatever its version is.
            answer = &mut call => return (answer, tickets),
            renewed = renewing => renewed,
        };
        is_known = unknown.is_empty();
        tickets = renewed;
        tickets.extend(unknown);
    }
    (call.await, tickets)
}

/// What became of renewals.
struct Renewed {
    /// With their new leases.
    renewed: Vec<Ticket>,
    /// With the leases that they had: the store has not answered, or others change them again and again.
    unknown: Vec<Ticket>,
}

async fn renewed(core: &Core, tickets: &[Ticket]) -> Renewed {
    let mut by_shard: BTreeMap<Shard, Vec<Ticket>> = BTreeMap::new();
    for ticket in tickets {
        if let Some(shard) = core.book.shard_of(ticket.number.0) {
            by_shard.entry(shard).or_default().push(ticket.clone());
        }
    }
    let shards = by_shard.into_iter().map(|(shard, tickets)| async move {
        let renewed = core.renew(shard, &tickets).await;
        (tickets, renewed)
    });
    let mut all = Renewed { renewed: Vec::new(), unknown: Vec::new() };
    for (tickets, renewed) in join_all(shards).await {
        match renewed {
            Ok(Renewed { renewed, unknown }) => {
                all.renewed.extend(renewed);
                all.unknown.extend(unknown);
            }
            Err(error) => {
                core.store_failed("the leases of runs cannot be renewed now", &error);
                all.unknown.extend(tickets);
            }
        }
    }
    all
}

fn age_ms(core: &Core, ticket: &Ticket) -> u64 {
    core.clock.monotonic_ns().saturating_sub(ticket.begun_ns) / 1_000_000
}

impl Core {
    /// Gives leases of one shard anew, from now, and notes that the runs are being sent. Those that somebody else has taken
    /// over, or heard of, are left out.
    async fn renew(&self, shard: Shard, tickets: &[Ticket]) -> Result<Renewed, EntryError> {
        let mut renewed = Vec::with_capacity(tickets.len());
        let mut left = tickets.to_vec();
        for _ in 0..CONFLICTS_MAX {
            let begun_ns = self.clock.monotonic_ns();
            for ticket in &mut left {
                ticket.run.state = self.lease(shard, &ticket.definition).await?;
            }
            let keep = self.options.keep();
            let write = |ticket: &Ticket| {
                group(put_run(ticket.number, Expect::Version(ticket.version), &ticket.run, keep))
            };
            let groups: Vec<_> = left.iter().map(write).collect();
            let (_, applied) = self.apply(shard, &groups).await?;
            let mut conflicts = Vec::new();
            for (ticket, applied) in left.into_iter().zip(applied) {
                match applied {
                    Applied::Done(version) => renewed.push(Ticket { version, begun_ns, ..ticket }),
                    Applied::Conflict | Applied::Late => conflicts.push(ticket),
                }
            }
            left = self.still_leased(shard, conflicts).await?;
            if left.is_empty() {
                break;
            }
        }
        Ok(Renewed { renewed, unknown: left })
    }

    /// Of runs that have changed, those that still have our lease: it was our own change, whose answer was lost.
    async fn still_leased(&self, shard: Shard, tickets: Vec<Ticket>) -> Result<Vec<Ticket>, EntryError> {
        if tickets.is_empty() {
            return Ok(tickets);
        }
        let keys: Vec<_> = tickets.iter().map(|ticket| run_key(ticket.number)).collect();
        let read = self.book.read::<Run>(shard, &keys).await?;
        let is_ours = |(ticket, read): (Ticket, Result<Option<Kept<Run>>, EntryError>)| match read {
            Ok(kept) => {
                let Kept { version, is } = kept.filter(|kept| kept.is.is_leased_as(ticket.run.lease))?;
                Some(Ticket { version, run: is, ..ticket })
            }
            Err(error) => {
                self.unreadable(&error);
                None
            }
        };
        Ok(tickets.into_iter().zip(read).filter_map(is_ours).collect())
    }

    /// The state of a run of which the lease begins now.
    pub async fn lease(&self, shard: Shard, definition: &Definition) -> Result<RunState, EntryError> {
        let until_ms = self.now_ms(shard).await?.saturating_add(LEASE_MS);
        let is_sending = definition.spec.delivery == Delivery::AtMostOnce;
        Ok(RunState::Starting { until_ms, is_sending })
    }
}
