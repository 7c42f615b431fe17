//! The task queues of a process: their options, their start and their end.

use super::metrics::{self, Sources};
use super::options::ServiceOptions;
use super::role::Role;
use super::run::{Stops, tell_readiness};
use super::scheduler::SchedulerAt;
use crate::drivers::{DurabilityAt, JobsAt, OpenJobs};
use crate::outcome::Outcome;
use crate::place;
use crate::wiring::{Background, Hopeless, Tasks, connect};
use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use windfall_contract::Clock;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{DoubtfulJobs, JobStore, JobStoreError};
use windfall_edge::{Access, AccessSource, Health, ListenerCounts, Metrics, Need, Part, Parts, Router};
use windfall_scheduler::Timers;
use windfall_scheduler_service::{FarJobTarget, FarJobTimers};
use windfall_task_queue::{ApiOptions, FarJobs, PoolParts, QueueCounters, TaskQueues};

/// The pause between two looks at a pool's store.
const STORE_EVERY: Duration = Duration::from_secs(1);

/// Options of the task queues.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskQueueAt {
    /// Where the APIs listen, and their limits.
    pub api: ApiOptions,
    /// Jobs with a longer delay than this, in seconds, wait as timers of this process's scheduler; 0: no more of them, and
    /// those that wait can still be found and cancelled. Default: none. A pool in Redis needs timers in Redis, and a pool in
    /// files timers in files.
    pub horizon_s: Option<u32>,
    /// Whether a job that has waited as a timer is published though it comes so late that its pool has forgotten which jobs
    /// of its time were deleted. Default `false`: its timer is given up, for an operator to decide.
    pub publish_doubtful_jobs: bool,
    /// Where jobs wait, by the name of the pool that a token begins with. Default of the role `task-queue`: one pool
    /// `default` in files; `serve` has task queues where a pool is named.
    pub pools: BTreeMap<String, PoolAt>,
}

/// A pool.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolAt {
    /// What keeps its jobs: `embedded`, or `redis` with its options. Default `embedded`.
    pub store: JobsAt,
    /// What the Ok of a call survives, of files: `process` or `machine`. Default `process`.
    pub durability: DurabilityAt,
}

impl TaskQueueAt {
    /// Whether the options say by name that jobs of a pool wait as timers, or have waited so.
    pub fn asks_for_far_jobs(&self) -> bool {
        self.horizon_s.is_some() && !self.pools.is_empty()
    }

    /// What becomes of jobs of which their pool no longer knows whether they were deleted.
    pub const fn doubtful_jobs(&self) -> DoubtfulJobs {
        match self.publish_doubtful_jobs {
            true => DoubtfulJobs::Publish,
            false => DoubtfulJobs::Refuse,
        }
    }

    /// The pools whose jobs may wait as timers: timers that one process has are no place for jobs that several share, nor the
    /// other way round. Whoever fires timers knows them whatever its own horizon is: another process may have published them.
    pub fn far_pools(&self, scheduler: &SchedulerAt) -> impl Iterator<Item = &str> {
        let is_shared = scheduler.store.is_shared();
        let fitting = self.pools.iter().filter(move |(_, at)| at.store.is_shared() == is_shared);
        fitting.map(|(name, _)| name.as_str())
    }

    /// Refuses a horizon that a pool cannot have, and a time limit that would cut off far jobs on their way to their pool.
    pub fn check_far_jobs(&self, scheduler: &SchedulerAt) -> Result<()> {
        let Some(horizon_s) = self.horizon_s else { return Ok(()) };
        let fire_timeout_ms = scheduler.dispatch.fire_timeout_ms;
        for name in self.far_pools(scheduler) {
            let call_timeout_ms = self.pools.get(name).and_then(|at| at.store.call_timeout_ms());
            let fire_max_ms = call_timeout_ms.map(FarJobTarget::fire_max_ms);
            if let Some(fire_max_ms) = fire_max_ms.filter(|max_ms| *max_ms >= fire_timeout_ms) {
                bail!(
                    "scheduler.dispatch.fire_timeout_ms is {fire_timeout_ms}, but publishing jobs that wait as timers to \
                     task_queue.pools.{name} may take {fire_max_ms} ms, which is twice its call_timeout_ms and ten seconds: \
                     give fire_timeout_ms more than that"
                );
            }
        }
        if horizon_s == 0 {
            return Ok(());
        }
        let fitting: BTreeSet<&str> = self.far_pools(scheduler).collect();
        match self.pools.keys().find(|name| !fitting.contains(name.as_str())) {
            None => Ok(()),
            Some(name) => bail!(
                "task_queue.horizon_s lets jobs of task_queue.pools.{name} wait as timers, but one of them lies in files of \
                 one process and the other in Redis: let both be in files, or both in Redis"
            ),
        }
    }

    /// Refuses what cannot be, and names the option.
    pub fn check(&self) -> Result<()> {
        self.api.check().context("the options [task_queue.api] cannot be used")?;
        for name in self.pools.keys() {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
                bail!("task_queue.pools.{name}: a pool's name has 1 to 64 letters, digits, `-` and `_`");
            }
        }
        let mut pools = self.pools.iter();
        while let Some((name, pool)) = pools.next() {
            let same = pools.clone().find(|(_, other)| pool.store.is_same_store(&other.store));
            if let Some((other, _)) = same {
                bail!(
                    "task_queue.pools.{name} and {other} have one Redis and one prefix: give each a prefix of its own"
                );
            }
        }
        Ok(())
    }
}

/// The stores of jobs that are open, by pool.
pub type JobStores = BTreeMap<String, Arc<dyn JobStore>>;

/// The pools of a process.
pub struct Pools(BTreeMap<String, OpenJobs>);

impl Pools {
    /// Opens the pools of a role: all of them where it has task queues, else those that its timers are published to.
    pub async fn open(options: &ServiceOptions, role: Role, clock: &Clock) -> Result<Self> {
        let mut pools = options.task_queue.pools.clone();
        if options.has_task_queues(role) {
            if pools.is_empty() {
                pools.insert("default".into(), PoolAt::default());
            }
        } else {
            let schedules = options.work_of(role).schedules;
            let mut named = if schedules { options.scheduler.pools() } else { BTreeSet::new() };
            // A fleet's processes fire each other's timers. Nobody else fires those beside files.
            if schedules && options.scheduler.store.is_shared() {
                named.extend(options.task_queue.far_pools(&options.scheduler));
            }
            pools.retain(|name, _| named.contains(name.as_str()));
            if let Some((name, _)) = pools.iter().find(|(_, at)| matches!(at.store, JobsAt::Embedded)) {
                bail!(
                    "timers are published to task_queue.pools.{name}, which lies in files of one process: name a Redis, or \
                     let one `windfall serve` have timers and task queues"
                );
            }
        }
        let mut open = BTreeMap::new();
        for (name, at) in pools {
            let dir = place::jobs(&options.data, &name);
            let opened = at.store.open(&dir, at.durability, clock).await;
            let opened = opened.with_context(|| format!("the pool {name} of the task queue"))?;
            tracing::info!(pool = name, durability = ?opened.store.durability(), "an Ok for a job survives this");
            open.insert(name, opened);
        }
        Ok(Self(open))
    }

    /// Where their jobs wait.
    pub fn stores(&self) -> JobStores {
        self.0.iter().map(|(name, open)| (name.clone(), Arc::clone(&open.store))).collect()
    }

    /// Connects to stores that were away, and reports how they are.
    pub fn follow(&self, tasks: &Tasks, health: &Health, need: Need) -> Vec<Background> {
        let each = |(name, open): (&String, &OpenJobs)| {
            let whole = health.part(format!("pool {name} of the task queue"), need);
            let shards = health.part(format!("shards of pool {name} of the task queue"), Need::Weak);
            follow(tasks, whole, shards, open)
        };
        self.0.iter().map(each).collect()
    }
}

/// The running task queues of a process.
pub struct Pulling {
    queues: TaskQueues,
    background: Vec<Background>,
}

impl Pulling {
    /// Listens. `timers` are those of the process's scheduler.
    pub async fn start(
        options: &ServiceOptions,
        pools: Pools,
        timers: Option<&Timers>,
        tasks: &Tasks,
        health: &Health,
        clock: &Clock,
    ) -> Result<Self> {
        let background = pools.follow(tasks, health, Need::Strong);
        let parts = pools.0.into_iter().map(|(name, open)| {
            let far = options.far_jobs(&name, timers);
            (name, PoolParts { store: open.store, tokens: open.tokens, far })
        });
        let parts = parts.collect();
        let api = options.task_queue.api.clone();
        let is_open = |address: &SocketAddr| api.tls.is_none() && !address.ip().is_loopback();
        if let Some(address) = [api.listen, api.admin_listen].into_iter().find(is_open) {
            tracing::warn!(
                %address,
                "serving without TLS, because task_queue.api.plaintext is set: tokens cross the network in the clear"
            );
        }
        let queues = windfall_task_queue::start(api, parts, clock.clone()).await;
        let queues = queues.context("the task queues cannot be served")?;
        println!(
            "windfall task queues are at {}, their admin API at {}",
            queues.api_address(),
            queues.admin_address()
        );
        Ok(Self { queues, background })
    }

    /// The counters of each pool.
    pub fn counters(&self) -> Vec<(String, Arc<QueueCounters>)> {
        self.queues.counters()
    }

    /// What the ports of both APIs count.
    pub fn ports(&self) -> Vec<(&'static str, Arc<ListenerCounts>)> {
        self.queues.listeners()
    }

    /// Where the queue API listens.
    pub const fn address(&self) -> SocketAddr {
        self.queues.api_address()
    }

    /// Shows the process's metrics on the admin API too.
    pub fn show_metrics(&self, metrics: Metrics) {
        self.queues.show_metrics(move || metrics.text().ok());
    }

    /// Ends it: polls end at once, calls in flight are answered.
    pub async fn close(self, deadline: Duration) {
        let closed = self.queues.close(deadline).await;
        if closed.connections_cut > 0 {
            tracing::warn!(closed.connections_cut, "calls of task queues were in flight for too long");
        }
        for task in self.background {
            task.end().await;
        }
    }
}

impl ServiceOptions {
    /// Where jobs of a pool wait that are due much later, where that is not its store.
    fn far_jobs(&self, pool: &str, timers: Option<&Timers>) -> Option<FarJobs> {
        // No delay is longer than that of 0.
        let horizon_s =
            self.task_queue.horizon_s.map(|horizon_s| if horizon_s == 0 { u32::MAX } else { horizon_s })?;
        let timers =
            timers.filter(|_| self.task_queue.far_pools(&self.scheduler).any(|name| name == pool))?;
        tracing::info!(pool, horizon_s, "jobs with a longer delay than this wait as timers of the scheduler");
        Some(FarJobs { timers: Arc::new(FarJobTimers::new(timers.clone(), pool)), horizon_s })
    }
}

/// The life of a process of the role `task-queue`: it needs neither live rules nor callers' keys; where there is an access
/// file, its callers may ask for metrics.
pub async fn live(options: &ServiceOptions, stops: &mut Stops, clock: &Clock) -> Result<Outcome> {
    let path = options.access_path();
    let access = match path.exists() {
        true => AccessSource::follow(&path, clock.clone()),
        false => AccessSource::fixed(Access::parse("")?, clock.clone()),
    };
    let access = access.with_context(|| format!("callers cannot be read from {}", path.display()))?;
    let health = Health::new();
    let tasks = Tasks::new(health.clone());
    let pools = Pools::open(options, Role::TaskQueue, clock).await?;
    let pulling = Pulling::start(options, pools, None, &tasks, &health, clock).await?;
    let measured = Metrics::new();
    let sources =
        Sources::of_process(&health, &tasks).with_pools(pulling.counters()).with_ports(pulling.ports());
    metrics::export(&measured, &sources);
    pulling.show_metrics(measured.clone());
    let served = Parts { router: Router::default(), access, metrics: measured, health: health.clone() };
    let mut serve = options.serve.clone();
    serve.stop_timeout_ms = serve.stop_timeout_ms.min(options.drain_ms / 2);
    let server = windfall_edge::serve(&serve, served).await.context("health and metrics cannot be served")?;
    let role = Role::TaskQueue;
    let outcome = tokio::select! {
        why = stops.first() => {
            tracing::info!(%role, why, "stops");
            Ok(Outcome::Clean)
        }
        why = tasks.hopeless() => {
            tracing::error!(%role, %why, "the process cannot go on");
            match why {
                Hopeless::Failed(_) => Ok(Outcome::Failed),
                Hopeless::Refused(why) => Err(anyhow!(why)),
            }
        }
        never = tell_readiness(role, pulling.address(), &health) => never,
    };
    // Load balancers see that it is not ready, while it answers what is in flight.
    server.ready(false);
    let ending = async {
        pulling.close(Duration::from_millis(options.drain_ms)).await;
        server.stop().await;
        outcome
    };
    tokio::select! {
        outcome = ending => outcome,
        _ = stops.first() => {
            eprintln!("windfall: stopped by the second signal; jobs that were on their way to a consumer come back when their ttr ends");
            Ok(Outcome::Interrupted)
        }
    }
}

/// Connects to a pool's store where its server was away at the start, and follows whether it answers: as a whole, and each of
/// its shards.
fn follow(tasks: &Tasks, whole: Part, shards: Part, open: &OpenJobs) -> Background {
    let parts = Arc::new((whole, shards));
    let (store, tokens, away) = (Arc::clone(&open.store), Arc::clone(&open.tokens), open.away.clone());
    let owner = tasks.clone();
    tasks.spawn("looks at a store of jobs", move || {
        let (parts, owner, away) = (Arc::clone(&parts), owner.clone(), away.clone());
        let (store, tokens) = (Arc::clone(&store), Arc::clone(&tokens));
        async move {
            let (whole, shards) = &*parts;
            if let Some(away) = away {
                connect(whole, &owner, &*away).await;
            }
            loop {
                if let Some(why) = store.has_ended() {
                    owner.fatal(Hopeless::Failed(format!(
                        "a pool of the task queue has to be opened again: {why}"
                    )));
                }
                // No token has this name.
                let registry = tokens.token("-", "-").await.map(drop);
                let found = Found { registry: said(registry), shards: look_at_shards(&store).await };
                whole.looked(found.whole());
                shards.looked(found.each_shard());
                tokio::time::sleep(STORE_EVERY).await;
            }
        }
    })
}

fn said(answer: Result<(), JobStoreError>) -> Result<(), String> {
    answer.map_err(|error| error.to_string())
}

/// Asks all shards at the same time: one that is away takes as long as a call may.
async fn look_at_shards(store: &Arc<dyn JobStore>) -> BTreeMap<Shard, Result<(), String>> {
    let mut looks = JoinSet::new();
    let mut found = BTreeMap::new();
    for shard in (0..store.shards()).map(Shard) {
        // What is said of one whose look ends by a panic.
        found.insert(shard, Err("the look at it has stopped".to_owned()));
        let store = Arc::clone(store);
        looks.spawn(async move { (shard, store.look(shard, &[]).await.map(drop)) });
    }
    while let Some(looked) = looks.join_next().await {
        if let Ok((shard, answer)) = looked {
            found.insert(shard, said(answer));
        }
    }
    found
}

/// What a look at a pool's store has found.
struct Found {
    /// Where its tokens are.
    registry: Result<(), String>,
    shards: BTreeMap<Shard, Result<(), String>>,
}

impl Found {
    /// Calls are answered as long as tokens can be read and any shard answers: the others are passed over.
    fn whole(&self) -> Result<(), String> {
        self.registry.clone().map_err(|why| format!("its tokens cannot be read: {why}"))?;
        let is_any_well = self.shards.values().any(Result::is_ok);
        if is_any_well { Ok(()) } else { self.each_shard() }
    }

    fn each_shard(&self) -> Result<(), String> {
        let away: Vec<_> = self
            .shards
            .iter()
            .filter_map(|(shard, answer)| Some((shard.0, answer.as_ref().err()?)))
            .collect();
        let Some((first, why)) = away.first() else { return Ok(()) };
        let (count, all) = (away.len(), self.shards.len());
        Err(format!("{count} of {all} shards do not answer, the first of them {first}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Role;
    use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};

    fn load(text: &str) -> Result<ServiceOptions> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options.toml");
        std::fs::write(&file, text).unwrap();
        ServiceOptions::load(Some(&file), Some(folder.path().join("data")))
    }

    /// One master of a cluster made all processes unready, and a balancer had nobody left, though the other shards worked.
    #[test]
    fn a_pool_is_there_as_long_as_its_tokens_and_any_of_its_shards_are() {
        let found = |registry: bool, shards: &[bool]| {
            let answer = |is_well: bool| if is_well { Ok(()) } else { Err("it is away".to_owned()) };
            let shards = (0..).map(Shard).zip(shards.iter().map(|is_well| answer(*is_well))).collect();
            Found { registry: answer(registry), shards }
        };
        let well = found(true, &[true, true]);
        assert_eq!((well.whole(), well.each_shard()), (Ok(()), Ok(())));
        let part = found(true, &[false, true, false]);
        let why = "2 of 3 shards do not answer, the first of them 0: it is away";
        assert_eq!((part.whole(), part.each_shard()), (Ok(()), Err(why.to_owned())));
        let none = found(true, &[false, false]);
        assert!(none.whole().is_err() && none.each_shard().is_err());
        let nameless = found(false, &[true]);
        assert_eq!(nameless.whole(), Err("its tokens cannot be read: it is away".to_owned()));
        assert_eq!(nameless.each_shard(), Ok(()));
    }

    #[tokio::test]
    async fn every_shard_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedJobsOptions { shards: 3, ..EmbeddedJobsOptions::default() };
        let store = EmbeddedJobs::open(folder.path(), &options, Clock::system()).unwrap();
        let found = look_at_shards(&(store as Arc<dyn JobStore>)).await;
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [Shard(0), Shard(1), Shard(2)]);
        assert!(found.values().all(Result::is_ok), "{found:?}");
    }

    #[test]
    fn the_documented_options_are_options() {
        let text = include_str!("../../../docs/task-queue.md");
        for block in text.split("```toml\n").skip(1) {
            let options = load(block.split("```").next().unwrap()).unwrap();
            assert!(!options.task_queue.pools.is_empty());
        }
    }

    #[cfg(feature = "redis")]
    #[tokio::test(flavor = "multi_thread")]
    async fn a_scheduler_opens_the_pools_of_its_targets_alone_and_none_in_files() {
        let text = "[task_queue.pools.files]\n[task_queue.pools.far.store.redis]\nurls = [\"127.0.0.1:1\"]\n\
                    connect_timeout_ms = 100\nprefix = \"far\"\n[scheduler.tenants.t.targets.q]\n";
        let load_to = |pool: &str| {
            let to =
                format!("to = {{ task_queue = {{ pool = {pool:?}, namespace = \"n\", queue = \"q\" }} }}\n");
            load(&format!("{text}{to}"))
        };
        let files = load_to("files").unwrap();
        let refused = Pools::open(&files, Role::Scheduler, &Clock::system()).await.err().unwrap().to_string();
        assert!(
            refused.contains("task_queue.pools.files") && refused.contains("files of one process"),
            "{refused}"
        );
        let none = Pools::open(&files, Role::Wallet, &Clock::system()).await.unwrap();
        assert!(none.stores().is_empty());
        // Its server is away, which is no reason not to start.
        let far = Pools::open(&load_to("far").unwrap(), Role::Scheduler, &Clock::system()).await.unwrap();
        assert_eq!(far.stores().into_keys().collect::<Vec<_>>(), ["far"]);
    }

    #[test]
    fn serve_has_task_queues_if_a_pool_is_named_and_the_role_always_has() {
        let (none, one) = (load("").unwrap(), load("[task_queue.pools.default]\n").unwrap());
        let pulls = |options: &ServiceOptions| {
            [Role::Serve, Role::TaskQueue, Role::Wallet].map(|role| options.has_task_queues(role))
        };
        assert_eq!((pulls(&none), pulls(&one)), ([false, true, false], [true, true, false]));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn jobs_wait_as_timers_where_both_lie_in_the_same_kind_of_store() {
        let (files, redis) = ("[task_queue.pools.a]\n", "[task_queue.pools.b.store.redis]\n");
        let far_pools = |text: &str| {
            let options = load(text).unwrap();
            let pools: Vec<_> = options.task_queue.far_pools(&options.scheduler).map(str::to_owned).collect();
            (pools, options.work_of(Role::Serve).schedules)
        };
        let (far, shared) = ("[scheduler.far]\n", "[scheduler.store.redis]\n");
        let both = format!("{files}{redis}");
        // Also without a horizon: another process may have published them.
        assert_eq!(far_pools(&both), (vec!["a".to_owned()], false));
        assert_eq!(far_pools(&format!("{both}{far}")), (vec!["a".to_owned()], false));
        assert_eq!(far_pools(&format!("{both}{far}{shared}")), (vec!["b".to_owned()], false));
        // No more of them, but those that wait come.
        assert_eq!(far_pools(&format!("[task_queue]\nhorizon_s = 0\n{both}")), (vec!["a".to_owned()], true));
        assert_eq!(
            far_pools(&format!("[task_queue]\nhorizon_s = 60\n{files}")),
            (vec!["a".to_owned()], true)
        );
        let refused = load(&format!("[task_queue]\nhorizon_s = 60\n{both}")).unwrap_err().to_string();
        assert!(refused.contains("task_queue.pools.b wait as timers"), "{refused}");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_time_limit_that_would_cut_off_far_jobs_is_refused() {
        let load_with = |fire_timeout_ms: u64| {
            load(&format!(
                "[task_queue]\nhorizon_s = 60\n[task_queue.pools.b.store.redis]\ncall_timeout_ms = 5000\n\
                 [scheduler.store.redis]\n[scheduler.dispatch]\nfire_timeout_ms = {fire_timeout_ms}\n"
            ))
        };
        assert!(load_with(20_001).is_ok());
        let refused = load_with(20_000).unwrap_err().to_string();
        assert!(refused.contains("fire_timeout_ms is 20000") && refused.contains("pools.b"), "{refused}");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn two_pools_have_no_store_in_common() {
        let pools = |prefix: &str| {
            let pool = |name: &str, prefix: &str| {
                format!(
                    "[task_queue.pools.{name}.store.redis]\nurls = [\"127.0.0.1:6379\"]\nprefix = \"{prefix}\"\n"
                )
            };
            load(&(pool("a", "one") + &pool("b", prefix)))
        };
        assert!(pools("two").is_ok());
        let refused = format!("{:#}", pools("one").unwrap_err());
        assert!(refused.contains("task_queue.pools.a and b"), "{refused}");
    }

    #[test]
    fn a_wrong_option_is_refused_by_its_name() {
        for (wrong, named) in [
            ("[task_queue.pools.\"a:b\"]\n", "task_queue.pools.a:b"),
            ("[task_queue.api]\nadmin_listen = \"0.0.0.0:7778\"\n", "admin_listen"),
            ("[task_queue.api]\nlisten = \"0.0.0.0:7777\"\n", "listen 0.0.0.0:7777 is not on this machine"),
            (
                "[task_queue.api]\nplaintext = true\ntls = { cert_file = \"a\", key_file = \"b\" }\n",
                "contradict",
            ),
            ("[task_queue.api.connections]\nheader_timeout_ms = 0\n", "connections.header_timeout_ms is 0"),
            ("[task_queue.api]\npolls_max = 0\n", "polls_max is 0"),
            ("[task_queue.pools.default]\nstore = \"mysql\"\n", "line 2"),
        ] {
            let refused = format!("{:#}", load(wrong).unwrap_err());
            assert!(refused.contains(named), "{wrong}: {refused}");
        }
    }
}
