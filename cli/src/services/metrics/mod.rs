//! The metrics of a process, for Prometheus: each table that a component declares, and where its values are read at a
//! scrape. Names, labels and help texts stand with the counters; `docs/services.md` has the list, which
//! `documented.rs` checks.

mod connectors;
#[cfg(test)]
mod documented;
mod jobs;
mod live_rules;
mod process;
mod send_to_credit;
mod signing;
mod task_queue;

use super::parts::Parts;
use super::polled_metrics::Found;
use crate::wiring::topic_life::{self, TopicLives};
use crate::wiring::{ReadXxlStats, RunningJobs, SigningKeys, Tasks};
use connectors::ReadSnapshot;
use parking_lot::Mutex;
use std::sync::Arc;
use windfall_auditor::{AuditDifferences, AuditHandle, AuditStats};
use windfall_config::LiveRules;
use windfall_consumer::spill_log::SpillStats;
use windfall_consumer::{ConsumerStats, SpillLog};
use windfall_edge::{Health, ListenerCounts, Metrics};
use windfall_far::{FarGauges, FarStats, FarTenantGauges, FarTier};
use windfall_queue_virtual::{Fanout, FanoutStats, TopicStats};
use windfall_reward_service::{LedgerMarkStats, RewardHandle, RewardStats};
use windfall_scheduler::{
    AddQueueStats, BackfillStats, DispatchStats, TargetStats, TenantStats, Timers, TimersStats,
};
use windfall_sdk::{Sdk, SdkStats};
use windfall_store::write_behind::WriteBehindCounts;
use windfall_token_service::{KeyRingVerifier, TokenStats};
use windfall_wallet::{Wallet, WalletStats};

/// Reads topics with the counters of their consumers: these come and go.
type ReadCounters = Arc<dyn Fn() -> Vec<(String, Arc<ConsumerStats>)> + Send + Sync>;

/// Reads the lag of draining topics.
type ReadLives = Arc<dyn Fn() -> TopicLives + Send + Sync>;

/// The ports beside that of the services, by name.
type Ports = Vec<(&'static str, Arc<ListenerCounts>)>;
/// Reads what the table in front of the token store has counted.
type ReadWriteBehind = Arc<dyn Fn() -> WriteBehindCounts + Send + Sync>;

/// The parts of a process that have counters. A part that is missing shows no values.
#[derive(Default)]
pub struct Sources {
    rules: Option<LiveRules>,
    sdks: Vec<(String, Sdk)>,
    fanout: Option<Arc<Fanout>>,
    consumers: Option<ReadCounters>,
    lives: Option<ReadLives>,
    salvage: Option<Arc<SpillLog>>,
    health: Option<Health>,
    tasks: Option<Tasks>,
    signing: Option<SigningKeys>,
    rewards: Option<RewardHandle>,
    verifier: Option<KeyRingVerifier>,
    write_behind: Option<ReadWriteBehind>,
    wallet: Option<Wallet>,
    timers: Option<Timers>,
    add_queue: Option<Arc<AddQueueStats>>,
    far: Option<FarTier>,
    fired: Option<Arc<DispatchStats>>,
    backfills: Option<Arc<BackfillStats>>,
    polled: Option<Arc<Mutex<Found>>>,
    connectors: Vec<(String, ReadSnapshot)>,
    jobs: jobs::Jobs,
    xxl: Option<ReadXxlStats>,
    pools: task_queue::Pools,
    ports: Ports,
    audit: Option<AuditHandle>,
}

impl Sources {
    /// The sources of an open process.
    pub fn of(parts: &Parts, health: &Health) -> Self {
        let connectors = parts.connectors.iter();
        Self {
            rules: Some(parts.rules.clone()),
            sdks: parts.sdks.iter().map(|(tenant, sdk)| (tenant.clone(), sdk.clone())).collect(),
            fanout: parts.fanout.clone(),
            consumers: parts.consuming.as_ref().map(|consuming| Arc::new(consuming.read_counters()) as _),
            salvage: parts.consuming.as_ref().map(|consuming| Arc::clone(&consuming.salvage)),
            lives: parts.consuming.as_ref().map(|consuming| Arc::new(consuming.read_lives()) as _),
            health: Some(health.clone()),
            tasks: Some(parts.tasks.clone()),
            signing: parts.signing.clone(),
            rewards: parts.rewards.clone(),
            verifier: parts.verifier.clone(),
            write_behind: parts.read_write_behind().map(|read| Arc::new(read) as _),
            wallet: parts.wallet.clone(),
            far: parts.far.clone(),
            timers: parts.scheduling.as_ref().map(|scheduling| scheduling.timers.clone()),
            add_queue: parts
                .scheduling
                .as_ref()
                .and_then(|scheduling| scheduling.queue().map(|running| running.queue.stats())),
            fired: parts.scheduling.as_ref().map(|scheduling| Arc::clone(&scheduling.fired)),
            backfills: parts.scheduling.as_ref().map(|scheduling| scheduling.backfills.stats()),
            polled: parts.polled_metrics().map(|polled| polled.found()),
            connectors: connectors.map(|wired| (wired.name.clone(), Arc::clone(&wired.snapshot))).collect(),
            xxl: parts
                .scheduling
                .as_ref()
                .and_then(|scheduling| scheduling.jobs().and_then(RunningJobs::xxl_stats)),
            jobs: parts
                .scheduling
                .as_ref()
                .and_then(|scheduling| scheduling.jobs().map(|running| running.jobs.stats())),
            pools: task_queue::Pools::new(),
            ports: parts
                .scheduling
                .as_ref()
                .and_then(|scheduling| scheduling.jobs().and_then(RunningJobs::port_counts))
                .map(|counts| ("xxl", counts))
                .into_iter()
                .collect(),
            audit: None,
        }
    }

    /// The same with the pools of task queues.
    pub fn with_pools(self, pools: task_queue::Pools) -> Self {
        Self { pools, ..self }
    }

    /// The same with more ports.
    pub fn with_ports(mut self, ports: Ports) -> Self {
        self.ports.extend(ports);
        self
    }

    /// The same with an auditor.
    pub fn with_audit(self, audit: Option<AuditHandle>) -> Self {
        Self { audit, ..self }
    }

    /// The sources of a process that has nothing wired.
    pub fn of_process(health: &Health, tasks: &Tasks) -> Self {
        Self { health: Some(health.clone()), tasks: Some(tasks.clone()), ..Self::default() }
    }
}

/// Exports every table, whether the process has the component or not: so the list of metrics is one for all roles.
pub fn export(metrics: &Metrics, sources: &Sources) {
    let rules = sources.rules.clone();
    metrics.export(live_rules::METRICS, &[], move |each| rules.iter().for_each(|rules| each(&[], rules)));
    let (health, tasks) = (sources.health.clone(), sources.tasks.clone());
    metrics.export(process::PARTS, &[], move |each| health.iter().for_each(|health| each(&[], health)));
    metrics.export(process::TASKS, &[], move |each| tasks.iter().for_each(|tasks| each(&[], tasks)));
    let signing = sources.signing.clone();
    metrics.export(signing::RING, &[], move |each| signing.iter().for_each(|keys| each(&[], keys)));
    let sdks = sources.sdks.clone();
    metrics.export(SdkStats::METRICS, &["app"], move |each| {
        sdks.iter().for_each(|(tenant, sdk)| each(&[tenant], &sdk.stats()));
    });
    export_queues(metrics, sources);
    export_consumers(metrics, sources);
    export_draining(metrics, sources);
    export_rewards(metrics, sources);
    let verifier = sources.verifier.clone();
    metrics.export(TokenStats::METRICS, &[], move |each| {
        verifier.iter().for_each(|verifier| each(&[], &verifier.stats()));
    });
    let write_behind = sources.write_behind.clone();
    metrics.export(WriteBehindCounts::METRICS, &[], move |each| {
        write_behind.iter().for_each(|read| each(&[], &read()));
    });
    let wallet = sources.wallet.clone();
    metrics.export(WalletStats::METRICS, &[], move |each| {
        wallet.iter().for_each(|wallet| each(&[], &wallet.stats()));
    });
    export_scheduler(metrics, sources);
    let audit = sources.audit.clone();
    metrics.export(AuditStats::METRICS, &[], move |each| {
        audit.iter().for_each(|audit| each(&[], &audit.stats()));
    });
    let audit = sources.audit.clone();
    metrics.export(AuditDifferences::METRICS, &[], move |each| {
        audit.iter().for_each(|audit| each(&[], &audit.differences()));
    });
    let polled = sources.polled.clone();
    metrics.export(Found::METRICS, &[], move |each| {
        polled.iter().for_each(|found| each(&[], &found.lock()));
    });
    connectors::export(metrics, sources.connectors.clone());
    jobs::export(metrics, &sources.jobs, &sources.xxl);
    task_queue::export(metrics, &sources.pools);
    let ports = sources.ports.clone();
    metrics.export(ListenerCounts::METRICS, &["listener"], move |each| {
        ports.iter().for_each(|(name, counts)| each(&[name], counts));
    });
}

fn export_scheduler(metrics: &Metrics, sources: &Sources) {
    let timers = sources.timers.clone();
    metrics.export(TimersStats::METRICS, &[], move |each| {
        timers.iter().for_each(|timers| each(&[], &timers.stats()));
    });
    let timers = sources.timers.clone();
    metrics.export(TenantStats::METRICS, &["tenant"], move |each| {
        let tenants = timers.iter().flat_map(Timers::tenants);
        tenants.for_each(|tenant| each(&[&tenant.tenant], &tenant));
    });
    let add_queue = sources.add_queue.clone();
    metrics.export(AddQueueStats::METRICS, &[], move |each| {
        add_queue.iter().for_each(|stats| each(&[], stats.as_ref()));
    });
    let far = sources.far.clone();
    metrics.export(FarStats::METRICS, &[], move |each| {
        far.iter().for_each(|far| each(&[], &far.stats()));
    });
    let far = sources.far.clone();
    metrics.export(FarGauges::METRICS, &[], move |each| {
        far.iter().for_each(|far| each(&[], &far.gauges()));
    });
    let far = sources.far.clone();
    metrics.export(FarTenantGauges::METRICS, &["tenant"], move |each| {
        let tenants = far.iter().flat_map(FarTier::tenants);
        tenants.for_each(|tenant| each(&[&tenant.tenant], &tenant));
    });
    let fired = sources.fired.clone();
    metrics.export(DispatchStats::METRICS, &[], move |each| {
        fired.iter().for_each(|fired| each(&[], fired.as_ref()));
    });
    let backfills = sources.backfills.clone();
    metrics.export(BackfillStats::METRICS, &[], move |each| {
        backfills.iter().for_each(|backfills| each(&[], backfills.as_ref()));
    });
    let fired = sources.fired.clone();
    metrics.export(TargetStats::METRICS, &["tenant", "target"], move |each| {
        let targets = fired.iter().flat_map(|fired| fired.targets());
        targets.for_each(|target| each(&[&target.tenant, &target.target], &target));
    });
}

fn export_queues(metrics: &Metrics, sources: &Sources) {
    let fanout = sources.fanout.clone();
    metrics.export(FanoutStats::METRICS, &[], move |each| {
        fanout.iter().for_each(|fanout| each(&[], &fanout.stats()));
    });
    let fanout = sources.fanout.clone();
    metrics.export(TopicStats::METRICS, &["topic"], move |each| {
        let topics = fanout.iter().flat_map(|fanout| fanout.stats().topics);
        topics.for_each(|topic| each(&[&topic.topic], &topic));
    });
}

fn export_consumers(metrics: &Metrics, sources: &Sources) {
    let consumers = sources.consumers.clone();
    metrics.export(ConsumerStats::METRICS, &["topic"], move |each| {
        let all = consumers.iter().flat_map(|read| read());
        all.for_each(|(topic, stats)| each(&[&topic], &stats));
    });
    let consumers = sources.consumers.clone();
    metrics.export(windfall_consumer::TypeStats::METRICS, &["topic", "type"], move |each| {
        for (topic, stats) in consumers.iter().flat_map(|read| read()) {
            stats.types().iter().for_each(|lane| each(&[&topic, &lane.name], lane));
        }
    });
    let salvage = sources.salvage.clone();
    metrics.export(SpillStats::METRICS, &[], move |each| {
        salvage.iter().for_each(|log| each(&[], &log.stats()));
    });
}

fn export_draining(metrics: &Metrics, sources: &Sources) {
    let lives = sources.lives.clone();
    metrics.export(topic_life::METRICS, &[], move |each| lives.iter().for_each(|read| each(&[], &read())));
}

fn export_rewards(metrics: &Metrics, sources: &Sources) {
    let rewards = sources.rewards.clone();
    metrics.export(RewardStats::METRICS, &[], move |each| {
        rewards.iter().for_each(|rewards| each(&[], &rewards.stats()));
    });
    let rewards = sources.rewards.clone();
    metrics.export(LedgerMarkStats::METRICS, &[], move |each| {
        rewards.iter().filter_map(RewardHandle::mark_stats).for_each(|stats| each(&[], &stats));
    });
    let rewards = sources.rewards.clone();
    metrics.export(windfall_reward_service::TypeStats::METRICS, &["type"], move |each| {
        let types = rewards.iter().flat_map(|rewards| rewards.stats().types);
        types.for_each(|(name, stats)| each(&[&name], &stats));
    });
    send_to_credit::export(metrics, sources.rewards.clone());
}
