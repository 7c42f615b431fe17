//! The dispatchers of the demo and the store that they share, which can be killed, closed and opened.

use super::journal::{Journal, Receiver};
use crate::drivers::{DurabilityAt, SlotsAt};
use crate::wiring::{Brokers, Scheduling, SchedulingOptions, TargetPart};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use windfall_contract::Clock;
use windfall_contract::due::{Shard, SlotStore};
use windfall_scheduler::{
    Class, DispatchOptions, DispatchStats, TargetRules, TenantRules, Tenants, Timers, TimersOptions,
};

/// Whose timers they are.
pub const TENANT: &str = "calls";
/// Where they go.
pub const TARGET: &str = "hang-up";
const SHARDS: u16 = 64;
/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(20);
/// How long calls that were cut off may hold the files of the store.
const RELEASE: Duration = Duration::from_secs(10);

/// The store and the dispatchers.
pub struct Fleet {
    data: PathBuf,
    clock: Clock,
    journal: Arc<Journal>,
    tenants: Arc<Tenants>,
    store: Option<Arc<dyn SlotStore>>,
    instances: Vec<Instance>,
    callers: watch::Sender<Option<Timers>>,
}

struct Instance {
    scheduling: Option<Scheduling>,
    fired: Arc<DispatchStats>,
    is_killed: bool,
}

impl Fleet {
    /// A fleet without a store; `timers` bounds how many may wait.
    pub fn new(data: PathBuf, timers: u64, journal: Arc<Journal>, clock: Clock) -> Self {
        let rules = TenantRules {
            waiting_max: timers,
            adds_per_s: 10_000_000,
            class: Class::Normal,
            targets: BTreeMap::from([(TARGET.to_owned(), TargetRules::default())]),
        };
        let tenants = Arc::new(Tenants(BTreeMap::from([(TENANT.to_owned(), rules)])));
        let callers = watch::Sender::new(None);
        Self { data, clock, journal, tenants, store: None, instances: Vec::new(), callers }
    }

    /// What callers call; `None` while the store is closed.
    pub fn timers(&self) -> watch::Receiver<Option<Timers>> {
        self.callers.subscribe()
    }

    /// Opens the store, starts two dispatchers, and lets callers in by the second one.
    pub async fn open(&mut self) -> Result<()> {
        let since = Instant::now();
        let slots = loop {
            match SlotsAt::Embedded.open(&self.data, SHARDS, DurabilityAt::Process, &self.clock).await {
                // A call that was cut off goes on to its end, and holds the files until then.
                Err(_) if since.elapsed() < RELEASE => tokio::time::sleep(Duration::from_millis(20)).await,
                opened => break opened?,
            }
        };
        self.store = Some(slots.store);
        self.join()?;
        self.join()?;
        let last = self.instances.last().and_then(|instance| instance.scheduling.as_ref());
        self.callers.send_replace(last.map(|scheduling| scheduling.timers.clone()));
        Ok(())
    }

    /// Starts one more dispatcher.
    pub fn join(&mut self) -> Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        let number = self.instances.len();
        let receiver =
            Receiver { journal: Arc::clone(&self.journal), instance: number, clock: self.clock.clone() };
        let target = TargetPart::Ready(Arc::new(receiver));
        let options = SchedulingOptions {
            timers: TimersOptions::default(),
            dispatch: DispatchOptions::default(),
            tenants: Arc::clone(&self.tenants),
            targets: BTreeMap::from([((TENANT.to_owned(), TARGET.to_owned()), target)]),
            queue: None,
            signing: None,
            jobs: None,
            instance: format!("dispatcher-{number}"),
        };
        let scheduling =
            Scheduling::start(Arc::clone(store), None, None, options, &Brokers::new(), None, &self.clock)?;
        let fired = Arc::clone(&scheduling.fired);
        self.instances.push(Instance { scheduling: Some(scheduling), fired, is_killed: false });
        Ok(())
    }

    /// Ends the first dispatcher on the spot: what it has handed over and not noted stays so, and its leases run out.
    pub fn kill_first(&mut self) {
        if let Some(first) = self.instances.first_mut() {
            first.is_killed = true;
            drop(first.scheduling.take());
        }
    }

    /// Ends the dispatchers in order, one after the other, and closes the store.
    pub async fn close(&mut self) {
        self.drain().await;
        self.store = None;
    }

    /// Closes everything. Says how many tasks the store still counts as waiting.
    pub async fn end(&mut self) -> Result<u64> {
        self.drain().await;
        let mut left = 0;
        if let Some(store) = self.store.take() {
            for shard in (0..store.shards()).map(Shard) {
                left += store.counts(shard).await?.values().sum::<u64>();
            }
        }
        Ok(left)
    }

    /// Which dispatchers were killed, by their numbers.
    pub fn killed(&self) -> Vec<bool> {
        self.instances.iter().map(|instance| instance.is_killed).collect()
    }

    /// How many tasks the others had handed over when they lost a lease before they had noted it.
    pub fn unnoted(&self) -> u64 {
        self.instances.iter().map(|instance| instance.fired.unnoted.get()).sum()
    }

    async fn drain(&mut self) {
        self.callers.send_replace(None);
        for instance in &mut self.instances {
            if let Some(scheduling) = instance.scheduling.take() {
                scheduling.close(CLOSE).await;
            }
        }
    }
}
