//! How many tasks a tenant may add now.

use crate::task::AddError;
use crate::tenants::Tenants;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::rules::{Fuse, Limit, TypeLimit};
use windfall_limiter::{Limiter, Now, TypeId, Wait};

/// What a tenant whose rate is 0 is told.
const NEVER_RETRY_MS: u64 = 60_000;
const NS_PER_S: u64 = 1_000_000_000;

/// The quotas of all tenants.
pub(super) struct Quotas {
    clock: Clock,
    /// What the buckets call the time 1 s: they start empty, so each begins with the burst of a second.
    start_ns: u64,
    tenants: BTreeMap<String, Quota>,
}

struct Quota {
    waiting_max: u64,
    waiting: Mutex<WaitingCount>,
    limiter: Limiter,
    adds: TypeId,
}

/// The tasks of one tenant that wait: as the store counted them last, and what was added here since.
#[derive(Debug, Default, Clone, Copy)]
struct WaitingCount {
    counted: u64,
    /// Admitted, and not yet answered: a count may see them or not.
    in_flight: u64,
    /// Stored, or perhaps stored, since the last count began.
    since: u64,
}

/// What may be added of a call, and why the rest may not.
pub(super) struct Admitted<'a> {
    pub count: usize,
    pub rest: Option<AddError>,
    /// Holds the room of what was admitted until the call has its answers, or is given up.
    pub reserved: Reserved<'a>,
}

/// Room for tasks. What is not said to be [`not_stored`](Self::not_stored) counts as stored when it is dropped.
pub(super) struct Reserved<'a> {
    quota: Option<&'a Quota>,
    count: u64,
    not_stored: u64,
}

impl Reserved<'_> {
    pub fn not_stored(&mut self, count: u64) {
        self.not_stored = self.not_stored.saturating_add(count).min(self.count);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(quota) = self.quota {
            let mut waiting = quota.waiting.lock();
            waiting.in_flight = waiting.in_flight.saturating_sub(self.count);
            waiting.since = waiting.since.saturating_add(self.count - self.not_stored);
        }
    }
}

impl WaitingCount {
    fn sum(&self) -> u64 {
        self.counted.saturating_add(self.in_flight).saturating_add(self.since)
    }
}

impl Quotas {
    pub fn new(tenants: &Tenants, clock: Clock) -> Self {
        let quota = |waiting_max: u64, adds_per_s: u64| {
            let rate_per_s = adds_per_s.min(Limit::RATE_PER_S_MAX);
            let burst = u32::try_from(rate_per_s).unwrap_or(Limit::BURST_MAX).clamp(1, Limit::BURST_MAX);
            let limit = Limit { rate_per_s, burst };
            let limiter = Limiter::new(limit, Now(0));
            let adds = limiter.type_id("adds");
            let rule = TypeLimit { limit, fuse: Fuse::Closed, priority: 0 };
            limiter.apply(limit, &[("adds".to_owned(), rule)], Now(0));
            Quota { waiting_max, waiting: Mutex::default(), limiter, adds }
        };
        let of = |rules: &crate::tenants::TenantRules| quota(rules.waiting_max, rules.adds_per_s);
        let tenants = tenants.0.iter().map(|(name, rules)| (name.clone(), of(rules))).collect();
        Self { start_ns: clock.monotonic_ns(), clock, tenants }
    }

    /// Reserves room for as many of `wanted` tasks as the tenant may add; they count as waiting from now on.
    pub fn admit(&self, tenant: &str, wanted: usize) -> Admitted<'_> {
        let Some(quota) = self.tenants.get(tenant) else {
            let reserved = Reserved { quota: None, count: 0, not_stored: 0 };
            return Admitted { count: 0, rest: Some(AddError::UnknownTenant(tenant.to_owned())), reserved };
        };
        let wanted_wide = u64::try_from(wanted).unwrap_or(u64::MAX);
        let mut waiting = quota.waiting.lock();
        let now_waiting = waiting.sum();
        let room = quota.waiting_max.saturating_sub(now_waiting).min(wanted_wide);
        let asked = u32::try_from(room).unwrap_or(u32::MAX);
        let now_ns = self.clock.monotonic_ns().saturating_sub(self.start_ns).saturating_add(NS_PER_S);
        let admission = (asked > 0).then(|| quota.limiter.admit(quota.adds, asked, Now(now_ns)));
        let granted = admission.map_or(0, |admission| admission.granted);
        waiting.in_flight = waiting.in_flight.saturating_add(u64::from(granted));
        let rest = match admission {
            Some(admission) if granted < asked => Some(AddError::QuotaRate {
                retry_after_ms: match admission.wait {
                    Wait::For(wait) => ms_up(wait),
                    Wait::Never => NEVER_RETRY_MS,
                },
            }),
            _ if room < wanted_wide => {
                Some(AddError::QuotaWaiting { waiting: now_waiting, max: quota.waiting_max })
            }
            _ => None,
        };
        let reserved = Reserved { quota: Some(quota), count: u64::from(granted), not_stored: 0 };
        Admitted { count: usize::try_from(granted).unwrap_or(wanted), rest, reserved }
    }

    /// Reserves room for as many of `wanted` marks of keys without a task as the tenant may have, which count as waiting tasks;
    /// returns how many.
    pub fn reserve_marks(&self, tenant: &str, wanted: usize) -> (usize, Reserved<'_>) {
        let quota = self.tenants.get(tenant);
        let wanted_wide = u64::try_from(wanted).unwrap_or(u64::MAX);
        let count = quota.map_or(0, |quota| {
            let mut waiting = quota.waiting.lock();
            let count = quota.waiting_max.saturating_sub(waiting.sum()).min(wanted_wide);
            waiting.in_flight = waiting.in_flight.saturating_add(count);
            count
        });
        (usize::try_from(count).unwrap_or(wanted), Reserved { quota, count, not_stored: 0 })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tenants.keys().map(String::as_str)
    }

    /// What was stored since the last count, by tenant: to be handed to [`counted`](Self::counted) with the count that
    /// begins now, which sees it.
    pub fn begin_count(&self) -> BTreeMap<String, u64> {
        self.tenants.iter().map(|(name, quota)| (name.clone(), quota.waiting.lock().since)).collect()
    }

    /// Takes a count in place of the last one, and of what was stored before the count began.
    pub fn counted(&self, began: &BTreeMap<String, u64>, counts: &BTreeMap<String, u64>) {
        for (name, quota) in &self.tenants {
            let mut waiting = quota.waiting.lock();
            waiting.counted = counts.get(name).copied().unwrap_or(0);
            waiting.since = waiting.since.saturating_sub(began.get(name).copied().unwrap_or(0));
        }
    }

    /// The tenants' names, how many of their tasks wait, and how many may.
    pub fn waiting(&self) -> Vec<(String, u64, u64)> {
        let each = |(name, quota): (&String, &Quota)| {
            let waiting = *quota.waiting.lock();
            (name.clone(), waiting.sum(), quota.waiting_max)
        };
        self.tenants.iter().map(each).collect()
    }
}

fn ms_up(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(NEVER_RETRY_MS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::{Class, TenantRules};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn quotas(waiting_max: u64, adds_per_s: u64) -> (Quotas, Arc<AtomicU64>) {
        let now_ms = Arc::new(AtomicU64::new(5));
        let reading = Arc::clone(&now_ms);
        let clock = Clock::from_unix_ms(move || reading.load(Ordering::Relaxed));
        let rules = TenantRules { waiting_max, adds_per_s, class: Class::Normal, targets: BTreeMap::new() };
        (Quotas::new(&Tenants([("shop".to_owned(), rules)].into()), clock), now_ms)
    }

    /// Everything that is admitted is stored.
    fn add(quotas: &Quotas, wanted: usize) -> (usize, Option<AddError>) {
        let Admitted { count, rest, .. } = quotas.admit("shop", wanted);
        (count, rest)
    }

    #[test]
    fn a_tenant_adds_at_its_rate_and_is_told_when_to_come_again() {
        let (quotas, now_ms) = quotas(1_000_000, 100);
        assert_eq!(add(&quotas, 60), (60, None));
        let rest = Some(AddError::QuotaRate { retry_after_ms: 10 });
        assert_eq!(add(&quotas, 60), (40, rest.clone()));
        now_ms.fetch_add(10, Ordering::Relaxed);
        assert_eq!(add(&quotas, 2), (1, rest));
    }

    #[test]
    fn a_rate_of_nothing_refuses_everything() {
        let rest = Some(AddError::QuotaRate { retry_after_ms: NEVER_RETRY_MS });
        assert_eq!(add(&quotas(10, 0).0, 1), (0, rest));
    }

    #[test]
    fn what_waits_is_what_was_counted_and_what_was_added_since_the_count_began() {
        let (quotas, _) = quotas(100, 1_000_000);
        assert_eq!(add(&quotas, 60).0, 60);
        let mut in_flight = quotas.admit("shop", 10);
        let began = quotas.begin_count();
        assert_eq!(add(&quotas, 20).0, 20);
        // The count has not seen the ten in flight.
        quotas.counted(&began, &[("shop".to_owned(), 50)].into());
        in_flight.reserved.not_stored(5);
        drop(in_flight);
        assert_eq!(add(&quotas, 40), (25, Some(AddError::QuotaWaiting { waiting: 75, max: 100 })));
        assert_eq!(quotas.waiting(), [("shop".to_owned(), 100, 100)]);
    }
}
