//! The faults that the demo injects while rewards are sent, and their times.

use super::backends::Backends;
use super::data::Manifest;
use super::guest::{self, Guest, GuestReport};
use super::pipeline::Pipeline;
use super::rules;
use super::servers::{Activity, ServersProgram};
use anyhow::{Context, Result};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::block_in_place;
use windfall_config::ChangeRules;
use windfall_contract::rules::Fuse;
use windfall_queue_faulty::Faults;

/// One fault, or the end of one.
struct Trouble {
    /// When it happens, in per mille of the rain.
    at: u64,
    what: String,
    act: Act,
}

type Act = Box<dyn Fn(&Stage<'_>) -> Result<()> + Send + Sync>;

/// The parts that faults act on.
pub struct Stage<'a> {
    pipeline: &'a Pipeline,
    data: &'a Path,
    rules: Box<dyn ChangeRules>,
    /// The real servers that may be stopped. Whatever happens, they run again when this is dropped.
    servers: Option<Servers<'a>>,
    /// A second process that consumes.
    guest: Mutex<Option<Guest>>,
}

/// Real servers that the demo may stop.
struct Servers<'a> {
    program: &'a ServersProgram,
    names: &'a [String],
}

impl<'a> Stage<'a> {
    /// The stage of a demo. Without a program no server is stopped.
    pub fn new(
        pipeline: &'a Pipeline,
        data: &'a Path,
        backends: &'a Backends,
        program: Option<&'a ServersProgram>,
    ) -> Result<Self> {
        let names = &backends.controlled[..];
        let servers = program.filter(|_| !names.is_empty()).map(|program| Servers { program, names });
        if let Some(servers) = &servers {
            servers.activities()?;
        }
        let rules = backends.rules().store(data, None)?;
        Ok(Self { pipeline, data, rules, servers, guest: Mutex::default() })
    }

    fn program(&self) -> Result<&ServersProgram> {
        self.servers.as_ref().map(|servers| servers.program).context("this demo stops no servers")
    }

    /// Whether the demo may stop the server of this name.
    fn stops(&self, name: &str) -> bool {
        self.servers.as_ref().is_some_and(|servers| servers.names.iter().any(|own| own == name))
    }

    /// The name of the server behind a broker of the rules, if it is ours to stop.
    fn stoppable(&self, parts: &Backends, broker: &str) -> Option<&'static str> {
        parts.kind(broker).server().filter(|name| self.stops(name))
    }

    /// Gives the second process the time to get partitions and to credit something: Kafka divides them anew only
    /// once the members from before its outage are given up.
    async fn guest_works(&self, stop: &AtomicBool) {
        let works = || self.guest.lock().as_ref().is_none_or(Guest::works);
        let began = Instant::now();
        while !works() && !stop.load(Relaxed) && began.elapsed() < GUEST_WAITS {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Lets the second process leave; what it did, if there was one.
    pub async fn guest_leaves(&self) -> Result<Option<GuestReport>> {
        let guest = self.guest.lock().take();
        match guest {
            Some(guest) => guest.leave().await.map(Some),
            None => Ok(None),
        }
    }

    /// Starts what stands still, without waiting for it.
    fn wake(&self) -> Result<()> {
        let Some(servers) = &self.servers else { return Ok(()) };
        for (name, activity) in servers.activities()? {
            match activity {
                Activity::Running => {}
                Activity::Frozen => servers.program.thaw(name)?,
                Activity::Stopped => servers.program.start_without_waiting(name)?,
            }
        }
        Ok(())
    }

    /// Waits until every server answers.
    fn wait_for_servers(&self) -> Result<()> {
        let Some(servers) = &self.servers else { return Ok(()) };
        servers.names.iter().try_for_each(|name| servers.program.start(name))?;
        servers.program.wait_for_starts()
    }
}

impl Servers<'_> {
    fn activities(&self) -> Result<Vec<(&str, Activity)>> {
        let all = self.program.status()?;
        let mut found = Vec::with_capacity(self.names.len());
        for name in self.names {
            let server = all.get(name).with_context(|| {
                format!("`./dev up` runs other servers than it did: there is no {name} among them")
            })?;
            found.push((name.as_str(), server.activity));
        }
        Ok(found)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.wake() {
            tracing::error!(
                error = format!("{error:#}"),
                "a server that the demo has stopped does not start again; see `./dev up`"
            );
        }
    }
}

fn trouble(
    at: u64,
    what: impl Into<String>,
    act: impl Fn(&Stage<'_>) -> Result<()> + Send + Sync + 'static,
) -> Trouble {
    Trouble { at, what: what.into(), act: Box::new(act) }
}

/// All that goes wrong, in order: with real servers real troubles, with embedded parts made ones.
fn troubles(stage: &Stage<'_>, manifest: &Manifest) -> Vec<Trouble> {
    let parts = &manifest.backends;
    let mut all = vec![
        trouble(20, "broker a writes some records of cash-a twice and loses some answers", |on| {
            faults(on.pipeline, stutter());
            Ok(())
        }),
        trouble(400, "an operator cuts the limit of coin to 500 a second", |on| cut(&*on.rules)),
        trouble(450, "an operator sets the fuse of coupon_tea to divert", |on| divert(&*on.rules)),
        trouble(550, "the fuse of coupon_tea is closed again", |on| close(&*on.rules)),
        trouble(600, "the limit of coin is raised again", |on| raise_and_close(&*on.rules, "raise coin")),
        trouble(900, "the badge downstream gets worse: retry for 10 %", |on| {
            on.pipeline.breakable.badges.set_faults(100, 10);
            Ok(())
        }),
        trouble(990, "the badge downstream is as before: retry for 5 %, lost answers for 1 %", |on| {
            on.pipeline.breakable.badges.set_faults(50, 10);
            Ok(())
        }),
    ];
    brokers(stage, parts, &mut all);
    stores(stage, &mut all);
    if guest::topic(manifest).is_some() {
        all.push(trouble(350, "a second process joins and consumes", |on| {
            // It is to find both brokers there: what a start without them does is not its subject.
            on.wait_for_servers()?;
            *on.guest.lock() = Some(Guest::start(on.data)?);
            Ok(())
        }));
    }
    all.sort_by_key(|trouble| trouble.at);
    all
}

fn brokers(stage: &Stage<'_>, parts: &Backends, all: &mut Vec<Trouble>) {
    if let Some(name) = stage.stoppable(parts, "a") {
        all.extend([
            trouble(80, format!("{name}, broker a, is frozen"), move |on| on.program()?.freeze(name)),
            trouble(170, format!("{name} is killed"), move |on| on.program()?.kill(name)),
            trouble(180, format!("{name} is started again"), move |on| {
                faults(on.pipeline, Faults::default());
                on.program()?.start_without_waiting(name)
            }),
        ]);
    } else {
        all.extend([
            trouble(100, "broker a refuses topic cash-a, the master of queue cash", |on| {
                faults(on.pipeline, Faults { refuse: true, ..Faults::default() });
                Ok(())
            }),
            trouble(200, "broker a hangs on topic cash-a", |on| {
                faults(on.pipeline, Faults { hang: true, ..Faults::default() });
                Ok(())
            }),
            trouble(350, "broker a is back", |on| {
                faults(on.pipeline, Faults::default());
                Ok(())
            }),
        ]);
    }
    if let Some(name) = stage.stoppable(parts, "b") {
        all.extend([
            trouble(520, format!("{name}, broker b, is killed"), move |on| on.program()?.kill(name)),
            trouble(540, format!("{name} is started again"), move |on| {
                on.program()?.start_without_waiting(name)
            }),
        ]);
    }
}

fn stores(stage: &Stage<'_>, all: &mut Vec<Trouble>) {
    if stage.stops("redis") {
        all.extend([
            trouble(650, "redis, the token store, is killed", |on| on.program()?.kill("redis")),
            trouble(720, "redis is started again", |on| on.program()?.start_without_waiting("redis")),
        ]);
    } else {
        all.extend([
            trouble(650, "the token store is down", |on| {
                on.pipeline.breakable.tokens.set_down(true);
                Ok(())
            }),
            trouble(850, "the token store is back", |on| {
                on.pipeline.breakable.tokens.set_down(false);
                Ok(())
            }),
        ]);
    }
    if stage.stops("etcd") {
        all.extend([
            trouble(420, "etcd, with the live rules, is killed", |on| on.program()?.kill("etcd")),
            trouble(430, "etcd is started again", |on| on.program()?.start("etcd")),
        ]);
    }
    if stage.stops("postgres") {
        all.extend([
            trouble(750, "postgres, the ledger, is killed", |on| on.program()?.kill("postgres")),
            trouble(780, "postgres is started again", |on| on.program()?.start_without_waiting("postgres")),
        ]);
    }
}

/// When the second process is told to leave, in per mille of the rain.
const GUEST_LEAVES: u64 = 620;

/// It may stay so much longer, if it has had nothing to do until then.
const GUEST_WAITS: Duration = Duration::from_secs(30);

/// A fault that happened.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Happening {
    /// The time since the rain began, in seconds with millisecond precision.
    pub at_ms: u64,
    /// What happened, in words.
    pub what: String,
}

/// The result of a run of faults.
#[derive(Debug, Default)]
pub struct Ran {
    /// What happened, in order.
    pub happened: Vec<Happening>,
    /// The counters of the second process, if there was one.
    pub guest: Option<GuestReport>,
}

/// Lets things go wrong over `rain`, or until `stop` is set; then repairs whatever is still broken.
pub async fn run(
    stage: &Stage<'_>,
    manifest: &Manifest,
    rain: Duration,
    stop: &AtomicBool,
    say: impl Fn(&str),
) -> Result<Ran> {
    let started = Instant::now();
    let mut ran = Ran::default();
    // A server that takes long to come back moves all that follows, so that each trouble has its time.
    let mut late = Duration::ZERO;
    let mut all = troubles(stage, manifest);
    if guest::topic(manifest).is_some() {
        let at = all.partition_point(|trouble| trouble.at <= GUEST_LEAVES);
        all.insert(at, trouble(GUEST_LEAVES, "the second process leaves", |_| Ok(())));
    }
    for trouble in &all {
        let due = rain.mul_f64(f64::from(u32::try_from(trouble.at)?) / 1_000.0) + late;
        while let Some(left) = due.checked_sub(started.elapsed()) {
            if stop.load(Relaxed) {
                break;
            }
            tokio::time::sleep(left.min(Duration::from_millis(50))).await;
        }
        if stop.load(Relaxed) {
            break;
        }
        note(&mut ran, started, &trouble.what, &say);
        let began = Instant::now();
        block_in_place(|| (trouble.act)(stage)).with_context(|| format!("at \"{}\"", trouble.what))?;
        if trouble.at == GUEST_LEAVES {
            stage.guest_works(stop).await;
            ran.guest = stage.guest_leaves().await?;
        }
        late += began.elapsed();
    }
    if stop.load(Relaxed) {
        stage.guest_leaves().await?;
        note(&mut ran, started, "everything is mended before the end", &say);
    }
    mend(stage)?;
    Ok(ran)
}

fn note(ran: &mut Ran, started: Instant, what: &str, say: impl Fn(&str)) {
    say(what);
    let at_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    ran.happened.push(Happening { at_ms, what: what.to_owned() });
}

/// Puts everything right, as far as this process broke it.
fn mend(stage: &Stage<'_>) -> Result<()> {
    faults(stage.pipeline, Faults::default());
    stage.pipeline.breakable.tokens.set_down(false);
    block_in_place(|| {
        rules_as_they_were(&*stage.rules)?;
        stage.wake()?;
        stage.wait_for_servers()
    })
}

/// Closes the fuses and raises the limits that an earlier process left changed.
pub fn rules_as_they_were(rules_at: &dyn ChangeRules) -> Result<()> {
    raise_and_close(rules_at, "mended")
}

/// Sets the faults of broker a on topic cash-a from now on.
fn faults(pipeline: &Pipeline, faults: Faults) {
    if let Some(broker) = pipeline.breakable.brokers.get("a") {
        broker.set("cash-a", faults);
    }
}

fn stutter() -> Faults {
    Faults { duplicate_per_mille: 30, lose_answer_per_mille: 20, fail_per_mille: 20, ..Faults::default() }
}

fn cut(rules_at: &dyn ChangeRules) -> Result<()> {
    rules::change(rules_at, "cut coin", now_ms(), |rules| {
        if let Some(coin) = rules.limits.types.get_mut("coin") {
            coin.limit.rate_per_s = 500;
            coin.limit.burst = 100;
        }
    })
}

fn divert(rules_at: &dyn ChangeRules) -> Result<()> {
    rules::change(rules_at, "divert coupon_tea", now_ms(), |rules| {
        if let Some(tea) = rules.limits.types.get_mut("coupon_tea") {
            tea.fuse = Fuse::Divert;
        }
    })
}

fn close(rules_at: &dyn ChangeRules) -> Result<()> {
    rules::change(rules_at, "close coupon_tea", now_ms(), |rules| {
        if let Some(tea) = rules.limits.types.get_mut("coupon_tea") {
            tea.fuse = Fuse::Closed;
        }
    })
}

fn raise_and_close(rules_at: &dyn ChangeRules, why: &str) -> Result<()> {
    rules::change(rules_at, why, now_ms(), |rules| {
        if let Some(coin) = rules.limits.types.get_mut("coin") {
            coin.limit.rate_per_s = 500_000;
            coin.limit.burst = 50_000;
        }
        if let Some(tea) = rules.limits.types.get_mut("coupon_tea") {
            tea.fuse = Fuse::Closed;
        }
    })
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
