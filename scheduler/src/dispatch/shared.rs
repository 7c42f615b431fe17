//! What the parts of a dispatcher share.

use super::memory::{Memory, RESERVE_BYTES, TargetMemory};
use super::shedding::Shedding;
use super::target_lane::{DueChunk, TargetInfo};
use crate::fail_points::{FailPoint, reach};
use crate::options::DispatchOptions;
use crate::stats::DispatchStats;
use crate::tenants::{Class, TargetRules, Tenants};
use crate::timers::Names;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Notify;
use windfall_contract::Clock;
use windfall_contract::due::{LeaseError, Route, SlotStore, StoreError, Target};

/// Names that one beat asks for at most, and routes that it looks up again.
const ASKED_AT_ONCE: usize = 64;

/// The targets of this instance, by the names of tenant and target.
pub(super) type Targets = BTreeMap<(String, String), Arc<dyn Target>>;

/// One run of a dispatcher.
pub(super) struct Shared {
    pub options: DispatchOptions,
    pub tenants: Arc<Tenants>,
    pub store: Arc<dyn SlotStore>,
    pub targets: Arc<Targets>,
    pub instance: Arc<str>,
    pub clock: Clock,
    pub stats: Arc<DispatchStats>,
    pub memory: Arc<Memory>,
    pub intake: Intake,
    /// Whether a target catches up with the newest tasks first.
    pub has_newest_first: bool,
    /// Shards that this instance fires now.
    pub owned_shards: AtomicU32,
    /// How often a route was found to stand for something else than before.
    pub outdated: AtomicU64,
    names: Names,
    /// Where the next look at routes begins that nobody knew.
    next_look: AtomicUsize,
    lanes: RwLock<Lanes>,
}

/// Due tasks on their way to the firing loop; bounded by the memory.
#[derive(Default)]
pub(super) struct Intake {
    pub chunks: Mutex<Vec<DueChunk>>,
    pub wake: Notify,
}

#[derive(Default)]
struct Lanes {
    by_route: HashMap<Route, Arc<TargetInfo>>,
    /// How many were made; those of routes that stood for something else before count, too.
    made: usize,
    tenants: Vec<u16>,
}

impl Shared {
    pub fn new(parts: super::Parts) -> Self {
        let super::Parts { options, tenants, store, targets, instance, clock, stats, .. } = parts;
        Self {
            memory: Arc::new(Memory::new(options.memory_bytes_max, RESERVE_BYTES)),
            names: Names::new(Arc::clone(&store)),
            has_newest_first: tenants.has_newest_first(),
            options,
            tenants,
            store,
            targets,
            instance,
            clock,
            stats,
            intake: Intake::default(),
            owned_shards: AtomicU32::new(0),
            outdated: AtomicU64::new(0),
            next_look: AtomicUsize::new(0),
            lanes: RwLock::default(),
        }
    }

    /// The target that tasks of a route go to.
    pub async fn target(&self, route: Route) -> Result<Arc<TargetInfo>, StoreError> {
        if let Some(known) = self.lanes.read().by_route.get(&route) {
            return Ok(Arc::clone(known));
        }
        let names = self.asked(self.names.route(route)).await?;
        let unknown =
            || (Arc::from(format!("tenant {}", route.tenant)), Arc::from(format!("target {}", route.target)));
        let mut lanes = self.lanes.write();
        if let Some(known) = lanes.by_route.get(&route) {
            return Ok(Arc::clone(known));
        }
        // Another name may have got the number since it was looked up.
        let names = names.filter(|_| !self.names.is_withheld(route));
        let is_unknown = names.is_none();
        let (tenant, target) = names.unwrap_or_else(unknown);
        let tenant_lane =
            lanes.tenants.iter().position(|known| *known == route.tenant).unwrap_or_else(|| {
                lanes.tenants.push(route.tenant);
                lanes.tenants.len() - 1
            });
        let found = self.targets.get(&(tenant.to_string(), target.to_string())).map(Arc::clone);
        if found.is_none() {
            tracing::error!(%tenant, %target, "due tasks go to a target that this instance does not have; they wait");
        }
        let lane = lanes.made;
        lanes.made += 1;
        let info = Arc::new(TargetInfo {
            lane,
            tenant_lane,
            class: self.tenants.0.get(&*tenant).map_or(Class::Normal, |rules| rules.class),
            rules: self.tenants.target(&tenant, &target).copied().unwrap_or_else(TargetRules::default),
            target: found,
            is_unknown,
            is_outdated: AtomicBool::new(false),
            memory: TargetMemory::default(),
            shedding: Shedding::default(),
            stats: self.stats.of_target(&tenant, &target),
            tenant,
        });
        lanes.by_route.insert(route, Arc::clone(&info));
        Ok(info)
    }

    /// Lets owners begin anew with routes by whose numbers somebody else is known by now. To be called after [`Shared::keep_names`] however
    /// it has ended, also when it was given up: a part of the names was said then.
    pub fn outdate_withheld(&self) {
        let lanes: Vec<Route> = self.lanes.read().by_route.keys().copied().collect();
        let withheld = lanes.into_iter().filter(|route| self.names.is_withheld(*route));
        withheld.for_each(|route| self.outdate(route));
    }

    /// Keeps the names of all targets in the store, and looks unknown ones up again.
    ///
    /// # Errors
    /// [`StoreError`]; it is to be done again in a moment anyway.
    pub async fn keep_names(&self) -> Result<(), StoreError> {
        let kept = self.asked(self.names.keep()).await?;
        self.stats.names_put_back.add(kept.put_back);
        self.stats.names_moved.add(kept.moved);
        self.stats.names_taken.add(kept.taken);
        self.asked(self.names.learn(&self.tenants, ASKED_AT_ONCE)).await?;
        self.look_again().await
    }

    /// Looks routes up again that the store did not know.
    async fn look_again(&self) -> Result<(), StoreError> {
        let mut unknown: Vec<Route> = {
            let lanes = self.lanes.read();
            let unknown = lanes.by_route.iter().filter(|(_, info)| info.is_unknown);
            unknown.map(|(route, _)| *route).filter(|route| !self.names.is_withheld(*route)).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        unknown.sort_unstable_by_key(|route| (route.tenant, route.target));
        let count = unknown.len().min(ASKED_AT_ONCE);
        let from = self.next_look.fetch_add(count, SeqCst) % unknown.len();
        unknown.rotate_left(from);
        for route in unknown.into_iter().take(count) {
            if self.asked(self.names.route(route)).await?.is_some() {
                self.outdate(route);
            }
        }
        Ok(())
    }

    /// What a route stood for is no longer so: nothing more is fired by it, and it is looked up when it is read again.
    fn outdate(&self, route: Route) {
        let mut lanes = self.lanes.write();
        // One that is unknown already stays so while its numbers are withheld.
        let is_news = |info: &Arc<TargetInfo>| !info.is_unknown || !self.names.is_withheld(route);
        if lanes.by_route.get(&route).is_some_and(is_news)
            && let Some(info) = lanes.by_route.remove(&route)
        {
            info.is_outdated.store(true, SeqCst);
            for gauge in [&info.stats.away, &info.stats.due, &info.stats.retrying] {
                gauge.set(0);
            }
            self.outdated.fetch_add(1, SeqCst);
        }
    }

    /// Waits for an answer of the store no longer than a lease lasts; counts what has none.
    pub async fn asked<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let answer = tokio::time::timeout(Duration::from_millis(self.options.lease_ttl_ms), call).await;
        let answer = answer.unwrap_or_else(|_| Err(StoreError::Unavailable("it does not answer".into())));
        if answer.is_err() {
            self.stats.store_errors.add(1);
        }
        answer
    }

    /// The same for a call under a lease.
    pub async fn asked_under_lease<T>(
        &self,
        call: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        let flat = async {
            match call.await {
                Ok(answer) => Ok(Ok(answer)),
                Err(LeaseError::Lost) => Ok(Err(LeaseError::Lost)),
                Err(LeaseError::Store(error)) => Err(error),
            }
        };
        self.asked(flat).await?
    }

    pub async fn reach(&self, point: FailPoint) {
        reach(&self.instance, point).await;
    }
}
