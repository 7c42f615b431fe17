//! A role's process: the wiring on the parts that the options name, and what is read of it now and then.

use super::connectors::Wired;
use super::options::ServiceOptions;
use super::polled_metrics::PolledMetrics;
use super::role::Role;
use super::rules_report::{RulesReport, process_name};
use super::scheduler::SchedulerAt;
use super::staged_watch::{self, Watched};
use super::task_queue::JobStores;
use crate::drivers::{self, LedgerMark, RulesFollower};
use crate::place;
use crate::wiring::{self, Wiring};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::block_in_place;
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::rules::Rules;
use windfall_edge::{Health, Need, Router};
use windfall_jobs::rpc::JobsService;
use windfall_ledger::{Ledger, Unbudgeted};
use windfall_reward_service::rpc::{ActsService, ArchiveService, PayoutsService, RewardsService};
use windfall_scheduler_service::{BackfillsService, TimersService};
use windfall_sdk::SdkOptions;
use windfall_sdk::rpc::Gateway;
use windfall_token::KeyRing;
use windfall_token_service::TokenService;
use windfall_wallet::WalletService;

/// The pause between two attempts to read the live rules.
const RULES_AGAIN: Duration = Duration::from_secs(1);

/// Names this process among those that fire the timers of one store. No other one has the name, also where containers
/// have one host name and one process number: two of one name would take each other's shards for their own.
fn instance_name(role: Role) -> String {
    format!("{}-{:016x}", process_name(role), RandomState::new().build_hasher().finish())
}

/// How long withdrawing a process's report may take.
const REPORT_CLOSE: Duration = Duration::from_millis(500);

/// A running role. It dereferences to its wiring.
pub struct Parts {
    wiring: Wiring,
    /// The downstream systems, for their counters.
    pub connectors: Vec<Wired>,
    polled: PolledMetrics,
    report: RulesReport,
    staged: wiring::Background,
    /// Whether another process keeps the far timers.
    forwards: bool,
    clock: Clock,
}

impl Deref for Parts {
    type Target = Wiring;

    fn deref(&self) -> &Wiring {
        &self.wiring
    }
}

impl Parts {
    /// Opens what the options name and the role needs, and starts it. `rules` are the live rules with their follower, and
    /// `jobs` the stores of the task queues that timers go to.
    pub async fn open(
        role: Role,
        options: &ServiceOptions,
        rules: (LiveRules, RulesFollower),
        jobs: &JobStores,
        health: &Health,
        clock: &Clock,
    ) -> Result<Self> {
        let work = options.work_of(role);
        let connectors = if work.grants() { options.wire_connectors(clock)? } else { Vec::new() };
        let parts = options.open_parts(work, rules, &connectors, health, clock).await?;
        parts.rules.name_process(&process_name(role), clock.unix_ms());
        let wiring = Wiring::start(work, parts, options.wiring_options(role, work, jobs, clock)?).await?;
        let (rules, brokers, rewards) =
            (wiring.rules.clone(), wiring.brokers.clone(), wiring.rewards.clone());
        let polled = PolledMetrics::start(&wiring.tasks, rules, brokers, rewards);
        let store = options.rules.store(&options.data, None)?;
        let stages = wiring.consuming.is_some();
        let report =
            RulesReport::start(&wiring.tasks, role, store, wiring.rules.clone(), stages, clock.clone());
        let counters = wiring.consuming.as_ref().map(|consuming| Box::new(consuming.read_counters()) as _);
        let watched = Watched { counters, rewards: wiring.rewards.clone(), polled: polled.found() };
        let staged = staged_watch::start(&wiring.tasks, wiring.rules.clone(), watched, clock.clone());
        let forwards = options.scheduler.far.as_ref().is_some_and(|far| far.forward_to.is_some());
        Ok(Self { wiring, connectors, polled, report, staged, forwards, clock: clock.clone() })
    }

    /// The metrics that are polled every few seconds.
    pub const fn polled_metrics(&self) -> Option<&PolledMetrics> {
        Some(&self.polled)
    }

    /// The services of a role.
    pub fn router(&self, role: Role, tenant: &str) -> Router {
        let mut router = Router::of_tenants([tenant.to_owned()]);
        if role.work().sends {
            router = router.send(Arc::new(Gateway::new(self.sdks.clone())));
        }
        if let Some(verifier) = &self.verifier
            && role.work().serves_tokens
        {
            router = router.tokens(Arc::new(TokenService::new(verifier.clone())));
        }
        if let (Some(rewards), Some(grants)) = (&self.rewards, &self.async_grants) {
            let service = RewardsService::with_queue(grants.clone());
            router = router
                .rewards(Arc::new(service))
                .archive(Arc::new(ArchiveService::new(rewards.clone())))
                .acts(Arc::new(ActsService::new(rewards.clone())))
                .payouts(Arc::new(PayoutsService::new(rewards.clone())));
        }
        if let Some(wallet) = &self.wallet {
            router = router.wallet(Arc::new(WalletService::new(wallet.clone())));
        }
        if let Some(scheduling) = &self.scheduling {
            let timers = TimersService::new(scheduling.timers.clone()).forwarding(self.forwards);
            router = router
                .timers(Arc::new(timers))
                .backfills(Arc::new(BackfillsService::new(scheduling.backfills.clone())));
            if let Some(running) = scheduling.jobs() {
                let service = JobsService::new(running.jobs.clone(), self.clock.clone());
                router = router.jobs(Arc::new(service.with_rules(running.rules().clone())));
            }
        }
        router
    }

    /// Closes the parts in the order of an event's path.
    pub async fn close(self, deadline: Duration) -> Result<()> {
        drop(self.polled);
        // An etcd that is away must not take the time that the process has.
        tokio::time::timeout(REPORT_CLOSE, self.report.close()).await.ok();
        // What drains is granted within the guards, too.
        let closed = self.wiring.close(deadline).await.map(drop);
        drop(self.staged);
        closed
    }
}

impl ServiceOptions {
    /// Opens the parts that the options name, as far as this work needs them.
    async fn open_parts(
        &self,
        work: wiring::Work,
        (rules, rules_follower): (LiveRules, RulesFollower),
        connectors: &[Wired],
        health: &Health,
        clock: &Clock,
    ) -> Result<wiring::Parts> {
        // First: a process that is refused for its lack of keys connects to nothing.
        let signing = self.open_signing(work, &rules.current())?;
        let brokers = if work.needs_brokers() { self.open_brokers()? } else { BTreeMap::new() };
        let keys = if work.needs_keys() { Some(self.open_keys()?) } else { None };
        let tokens = self.tokens.open_or_wait(&self.data).await?;
        let ledger = if work.grants() {
            let unbudgeted = self.unbudgeted(&rules.current());
            Some(block_in_place(|| self.open_ledger(unbudgeted))?)
        } else {
            None
        };
        let (ledger, ledger_mark) = ledger.unzip();
        let (mut slots, mut far) = (None, None);
        if work.schedules {
            let SchedulerAt { store, shards, durability, far: far_at, .. } = &self.scheduler;
            let mut opened = store.open(&self.data, *shards, *durability, clock).await?;
            let near = Arc::clone(&opened.store);
            match far_at {
                Some(at) => {
                    let both = at.open(&self.data, near, store.is_shared(), *durability, clock).await?;
                    (opened.store, far) = both;
                }
                None if store.is_shared() => opened.store = drivers::far_elsewhere(near, clock),
                None => {}
            }
            slots = Some(opened);
        }
        let entries = match &self.jobs {
            Some(at) if work.schedules => {
                let dir = place::entries(&self.data);
                Some(at.store.open(&dir, at.shards, at.durability, clock).await?)
            }
            _ => None,
        };
        let long_delays = if work.consumes { self.open_long_delays()? } else { None };
        let connectors = connectors.iter().map(|wired| Arc::clone(&wired.connector)).collect();
        let clock = clock.clone();
        let tokens_are_shared = self.tokens.is_shared();
        Ok(wiring::Parts {
            rules,
            rules_follower,
            brokers,
            tokens,
            tokens_are_shared,
            keys,
            signing,
            ledger,
            ledger_mark: ledger_mark.flatten(),
            long_delays,
            slots,
            far,
            entries,
            connectors,
            clock,
            tasks: wiring::Tasks::new(health.clone()),
            health: health.clone(),
        })
    }

    /// The live rules. Waits for them for as long as etcd is away and there is no copy, or as they are not set.
    pub async fn open_rules(&self, health: &Health, clock: &Clock) -> Result<(LiveRules, RulesFollower)> {
        let part = health.part("rules", Need::Strong);
        loop {
            let known = self.brokers.keys().cloned().collect();
            let (rules, data, clock) = (self.rules.clone(), self.data.clone(), clock.clone());
            let opening = tokio::task::spawn_blocking(move || {
                rules.follow(&data, place::rules_copy(&data), known, &clock)
            });
            match opening.await.context("reading the live rules has panicked")? {
                Err(error) if drivers::may_pass(&error) => part.is_missing(format!("{error:#}")),
                done => return done,
            }
            tokio::time::sleep(RULES_AGAIN).await;
        }
    }

    /// What happens to rewards that no budget covers; it is logged, since the first reward of a campaign whose budget
    /// was forgotten depends on it.
    fn unbudgeted(&self, rules: &Rules) -> Unbudgeted {
        let unbudgeted = self.rewards.unbudgeted.map_or(Unbudgeted::default(), Unbudgeted::from);
        let budgets = rules.budgets.len();
        match unbudgeted {
            Unbudgeted::Refuse => tracing::info!(
                budgets,
                "rewards.unbudgeted = \"refuse\": what no budget of the rules covers is archived, not granted"
            ),
            Unbudgeted::Allow => tracing::warn!(
                budgets,
                "rewards.unbudgeted = \"allow\": what no budget of the rules covers is granted without an upper bound"
            ),
        }
        unbudgeted
    }

    /// Reads the ledger's mark; `None` where it has none. Blocks.
    pub fn open_mark(&self) -> Result<Option<LedgerMark>> {
        self.ledger_mark.open(&self.data, &self.tenant, &self.ledger, &self.rules)
    }

    /// Opens the ledger, guarded by its mark where it has one. Blocks.
    fn open_ledger(&self, unbudgeted: Unbudgeted) -> Result<(Ledger, Option<LedgerMark>)> {
        let mark = self.open_mark()?;
        let ledger = self.ledger.open_or_wait(&self.data, unbudgeted)?;
        Ok(match mark {
            Some(mark) => (ledger.guarded(Arc::clone(&mark.guard))?, Some(mark)),
            None => (ledger, None),
        })
    }

    /// Opens the brokers that the options name.
    pub fn open_brokers(&self) -> Result<wiring::Brokers> {
        let open = |(name, at): (&String, &crate::drivers::BrokerAt)| {
            let broker = block_in_place(|| at.open(name, &place::broker(&self.data, name)))?;
            Ok((name.clone(), broker))
        };
        self.brokers.iter().map(open).collect()
    }

    fn open_keys(&self) -> Result<KeyRing> {
        let path = self.keys_path();
        KeyRing::load(&path).with_context(|| {
            format!("the key ring cannot be read; `windfall keys new --file {}` makes one", path.display())
        })
    }

    /// How the wiring uses the parts.
    fn wiring_options(
        &self,
        role: Role,
        work: wiring::Work,
        jobs: &JobStores,
        clock: &Clock,
    ) -> Result<wiring::Options> {
        let scheduling = match work.schedules {
            true => Some(self.scheduling_options(instance_name(role), jobs, clock)?),
            false => None,
        };
        Ok(wiring::Options {
            sdk: SdkOptions { app_id: self.tenant.clone(), ..self.sdk.clone() },
            data: self.data.clone(),
            spool: place::spool(&self.data).join(&self.tenant),
            rewards: self.reward_options()?,
            token_service: self.token_service.clone(),
            wallet: self.wallet.clone(),
            async_grants: self.grant_async.later_options(),
            rewrite: self.grant_async.again(),
            scheduling,
            topics: self.topics.clone(),
            accepted: self.accepted_by_name(),
            consumer: self.consumer.clone(),
            salvage: place::salvage(&self.data),
            keys_file: self.keys_path(),
            jitter_seed: u64::from(std::process::id()),
        })
    }
}
