//! The scheduler of a process: what adds timers, what fires them, and where they go.

use super::add_queue::{AddQueuePart, RunningAddQueue};
use super::jobs::{JobsPart, RunningJobs};
use super::parts::Brokers;
use super::signing::SigningKeys;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::due::{PastTasks, SlotStore, Target};
use windfall_contract::entries::EntryStore;
use windfall_scheduler::{
    BackfillParts, Backfills, DispatchOptions, DispatchStats, Dispatcher, Tenants, Timers, TimersOptions,
};
use windfall_scheduler_service::{BonusTarget, TopicOptions, TopicTarget};
use windfall_sdk::Sdk;

/// How the scheduler is used.
#[derive(Clone)]
pub struct SchedulingOptions {
    /// How calls are gathered.
    pub timers: TimersOptions,
    /// How timers are fired.
    pub dispatch: DispatchOptions,
    /// Whose timers are kept, and how each target is treated.
    pub tenants: Arc<Tenants>,
    /// Where timers go, by tenant and target.
    pub targets: BTreeMap<(String, String), TargetPart>,
    /// The queue by which adds may come.
    pub queue: Option<AddQueuePart>,
    /// The keys that adds by the queue are signed and verified with.
    pub signing: Option<SigningKeys>,
    /// How jobs are run, if they are.
    pub jobs: Option<JobsPart>,
    /// The name of this process among those that fire the same store's timers.
    pub instance: String,
}

/// What a target is made of.
#[derive(Clone)]
pub enum TargetPart {
    /// It needs nothing of the process.
    Ready(Arc<dyn Target>),
    /// A topic of one of the process's brokers.
    Topic {
        /// The broker's name.
        broker: String,
        /// The topic.
        options: TopicOptions,
    },
    /// The process's SDK.
    SendBonus,
}

/// A running scheduler.
pub struct Scheduling {
    /// What adds, changes and shows timers.
    pub timers: Timers,
    /// What is counted of the firing.
    pub fired: Arc<DispatchStats>,
    /// What fires past timers again.
    pub backfills: Backfills,
    dispatcher: Dispatcher,
    topics: Vec<TimersTopic>,
    jobs: Option<RunningJobs>,
    queue: Option<RunningAddQueue>,
}

/// A topic that timers are written to.
#[derive(Clone)]
pub struct TimersTopic {
    /// The name of its broker.
    pub broker: String,
    /// The target.
    pub target: Arc<TopicTarget>,
}

impl Scheduling {
    /// Starts it. Callbacks are connected to when the first timer goes there, and so are topics that nobody looks at.
    pub fn start(
        store: Arc<dyn SlotStore>,
        past: Option<Arc<dyn PastTasks>>,
        entries: Option<Arc<dyn EntryStore>>,
        options: SchedulingOptions,
        brokers: &Brokers,
        sdk: Option<&Sdk>,
        clock: &Clock,
    ) -> Result<Self> {
        let SchedulingOptions { timers, dispatch, tenants, targets, queue, signing, jobs, instance } =
            options;
        let (mut open, mut topics) = (BTreeMap::new(), Vec::new());
        for (name, part) in targets {
            let target: Arc<dyn Target> = match part {
                TargetPart::Ready(target) => target,
                TargetPart::SendBonus => {
                    let sdk = sdk.context("a process whose timers send rewards needs an SDK")?;
                    Arc::new(BonusTarget::new(sdk.clone()))
                }
                TargetPart::Topic { broker, options } => {
                    let own = brokers
                        .get(&broker)
                        .with_context(|| format!("the broker {broker} of a timers' topic is not open"))?;
                    let target = Arc::new(TopicTarget::new(Arc::clone(own), options, clock.clone()));
                    topics.push(TimersTopic { broker, target: Arc::clone(&target) });
                    target
                }
            };
            open.insert(name, target);
        }
        let start = |part| RunningAddQueue::start(part, &tenants, &store, brokers, signing.as_ref(), clock);
        let queue = queue.map(start);
        let queue = queue.transpose()?;
        let by_queue = queue.as_ref().map(|running| running.queue.clone());
        let (whose, slots) = (Arc::clone(&tenants), Arc::clone(&store));
        let timers = Timers::start_with(timers, whose, slots, by_queue, clock.clone());
        let jobs = match jobs {
            Some(part) => {
                let entries = entries.context("a process that runs jobs needs a store of jobs")?;
                let running = RunningJobs::start(part, entries, timers.clone(), open.clone(), clock)?;
                open.extend(running.targets());
                Some(running)
            }
            None => None,
        };
        let (whose, slots) = (Arc::clone(&tenants), Arc::clone(&store));
        let dispatcher = Dispatcher::start(dispatch, whose, slots, open, instance, clock.clone());
        let fired = dispatcher.stats();
        let parts = BackfillParts { store, past, tenants, fired: Arc::clone(&fired), clock: clock.clone() };
        Ok(Self { timers, fired, backfills: Backfills::new(parts), dispatcher, topics, jobs, queue })
    }

    /// The topics that timers are written to.
    pub fn topics(&self) -> &[TimersTopic] {
        &self.topics
    }

    /// The queue by which adds may come.
    pub const fn queue(&self) -> Option<&RunningAddQueue> {
        self.queue.as_ref()
    }

    /// The jobs.
    pub const fn jobs(&self) -> Option<&RunningJobs> {
        self.jobs.as_ref()
    }

    /// Lets executors register, where the options say so.
    pub async fn listen(&mut self) -> Result<()> {
        match &mut self.jobs {
            Some(jobs) => jobs.listen().await,
            None => Ok(()),
        }
    }

    /// Whether it can fire.
    pub fn check(&self) -> impl Fn() -> Result<(), String> + Send + Sync + use<> {
        self.dispatcher.check()
    }

    /// Ends it: what is in flight is waited for, and the shards are given to other instances.
    pub async fn close(self, deadline: Duration) {
        let began = Instant::now();
        let left = || deadline.saturating_sub(began.elapsed());
        if self.jobs.is_none() {
            self.timers.close().await;
        }
        if let Some(queue) = self.queue {
            queue.close(left() / 2).await;
        }
        self.backfills.close().await;
        let draining = if self.jobs.is_some() { left() / 2 } else { left() };
        let drained = self.dispatcher.drain(draining).await;
        if drained.unnoted_tasks > 0 || drained.unreleased_shards > 0 {
            tracing::warn!(
                ?drained,
                "the scheduler was not done in time; what it had handed over may fire again"
            );
        }
        if let Some(jobs) = self.jobs {
            jobs.close(left()).await;
            // Jobs add their next occurrences to the end.
            self.timers.close().await;
        }
        for topic in self.topics {
            topic.target.close(left()).await;
        }
    }
}
