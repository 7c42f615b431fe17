//! A run from its start to its verdict.

use crate::chaos::{Chaos, Done};
use crate::control::Control;
use crate::fleet::{Fleet, FleetOptions};
use crate::ground::Ground;
use crate::job_book::JobBook;
use crate::job_load::{self, JobLoad};
use crate::job_oracle::{self, JobEvidence, JobTally};
use crate::journal::{Book, now_ms};
use crate::load::{self, Load};
use crate::oracle::{self, Evidence, Verdict};
use crate::plan::{self, Action, How, Kind};
use crate::queue_book::QueueBook;
use crate::queue_load::QueueLoad;
use crate::queue_oracle;
use crate::report::Report;
use crate::rules::{Change, GIFT, LONGEST_DELAY_MS, Rules};
use crate::sdk_process::{JOURNAL, PAUSE};
use crate::shop::Mood;
use crate::shop::Shop;
use crate::sql::{Sql, TransferRow};
use crate::timer_oracle::{self, Crash, TimerEvidence};
use crate::timers::{self, TimerLoad};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Decides the faults.
    pub seed: u64,
    /// How long the load lasts.
    pub length: Duration,
    /// Rewards per second.
    pub rate_per_s: u64,
    /// Kinds of fault.
    pub kinds: Vec<Kind>,
    /// The control, which breaks something on purpose.
    pub control: Option<Control>,
    /// The program of an earlier version: processes take turns with it.
    pub earlier: Option<PathBuf>,
    /// How much longer than backlog ÷ rate the rewards may take after the last fault.
    pub slack: Duration,
    /// The line that replays it.
    pub replay: String,
}

/// A fleet that takes longer than is allowed has failed, but is waited for as long as it decides an order within this
/// time: a slow reward must not count as a lost one.
const STILL: Duration = Duration::from_secs(45);
/// Callers ask again for so long after the last fault.
const SETTLE: Duration = Duration::from_secs(60);
const EACH: Duration = Duration::from_secs(1);
/// A drain that stands still for so long has its metrics written down, so many times at most.
const STANDS: Duration = Duration::from_secs(4);
const PICTURES_MAX: usize = 8;

/// A killed scheduler delays its jobs by five seconds at most where the machine is quick, which it need not be.
const LATE_AFTER_KILL: Duration = Duration::from_secs(30);
/// Faults that are so near to each other are not told apart.
const NEAR_MS: u64 = 10_000;

/// Runs it in this directory with this `windfall`. `None` if it was told to stop.
pub fn run(options: &Options, dir: &Path, program: &Path, stop: &Arc<AtomicBool>) -> Result<Option<Report>> {
    let seconds = options.length.as_secs().max(1);
    let scarce_total = load::scarce_asked(options.rate_per_s, seconds) / 2;
    let mut rules =
        Rules::new(options.rate_per_s, scarce_total.max(1_000), options.control == Some(Control::Limits));
    if options.control == Some(Control::Limits) {
        rules.turn(Change::LowLimit, true);
    }
    let shop = Arc::new(Shop::open(options.control == Some(Control::Twice))?);
    eprintln!("soak: starting servers and processes in {}", dir.display());
    let has_jobs = options.earlier.as_deref().is_none_or(job_load::is_known);
    let knows = (has_jobs, options.earlier.is_none());
    let ground = Ground::make(dir, program, rules, options.rate_per_s, shop.address(), knows)?;
    let ground = Arc::new(ground);
    // Threads that are left behind by an error hold what they use: the end of a run must not wait for them.
    let _servers = Finally(|| ground.end());
    let fleet_options = FleetOptions {
        starts_without_servers: options.kinds.contains(&Kind::Start),
        sabotage: options.control.and_then(Control::switch),
        earlier: options.earlier.clone(),
    };
    let fleet = Arc::new(Fleet::start(Arc::clone(&ground), fleet_options)?);
    let _processes = Finally(|| fleet.end());
    let supervisor = {
        let fleet = Arc::clone(&fleet);
        std::thread::spawn(move || fleet.supervise())
    };
    if options.control.is_some_and(Control::forgets) && !fleet.forgets() {
        bail!("this control needs a C compiler, for the library that forgets what was not synced");
    }
    let kinds = possible(&options.kinds, &fleet);
    let length_ms = u64::try_from(options.length.as_millis())?;
    let plan = match options.control {
        Some(control) => control.plan(),
        None => plan::plan(options.seed, length_ms, &kinds, LONGEST_DELAY_MS),
    };
    let plan = if options.earlier.is_some() { plan::with_upgrades(plan, length_ms) } else { plan };
    eprintln!(
        "soak: {} faults in {:.0} s; again by: {}",
        plan.len(),
        options.length.as_secs_f64(),
        options.replay
    );
    let loads = Loads::start(&ground, &fleet, options)?;
    let chaos = Chaos::start(&plan, options.length, &ground, &fleet, &shop, stop);
    let mut watch = Watch::new(&ground)?;
    watch.until(options.length, &loads.rewards, &chaos, stop);
    std::fs::write(dir.join(PAUSE), "")?;
    let (done, failures) = chaos.close();
    if stop.load(SeqCst) {
        fleet.close();
        return Ok(None);
    }
    let books = Books { ground: &ground, shop: &shop };
    let (drained, queues, jobs) = drain(&books, &fleet, &mut watch, loads, &done, options.slack, stop)?;
    fleet.close();
    if supervisor.join().is_err() {
        bail!("the supervisor has panicked");
    }
    if options.control == Some(Control::Archive) {
        watch.sql.drop_archive_entry()?;
    }
    if options.control == Some(Control::Callback) {
        shop.drop_firings();
    }
    let mut verdict = judge(&books, &mut watch.sql, &done)?;
    if options.earlier.is_some() {
        make_journal(&ground, &mut watch.sql, &mut verdict)?;
    }
    verdict.queues = queue_oracle::judge(&queues, &mut verdict);
    verdict.jobs = jobs.map(|jobs| judge_jobs(&jobs, &done, options.slack, &mut verdict));
    for found in watch.findings {
        verdict.damage("over_limit", found);
    }
    Ok(Some(Report {
        replay: options.replay.clone(),
        load_s: options.length.as_secs_f64(),
        faults: done.into_iter().map(|done| done.fault).collect(),
        verdict,
        drained_s: (drained.took.map(|took| took.as_secs_f64()), drained.allowed.as_secs_f64()),
        backlog: drained.backlog,
        exits: fleet.remarks(),
        failures,
    }))
}

/// The callers of all kinds.
struct Loads {
    rewards: Load,
    timers: TimerLoad,
    queues: QueueLoad,
    jobs: Option<JobLoad>,
}

impl Loads {
    fn start(ground: &Arc<Ground>, fleet: &Arc<Fleet>, options: &Options) -> Result<Self> {
        let jobs = ground.has_jobs.then(|| JobLoad::start(ground, fleet, options.control)).transpose()?;
        if jobs.is_none() {
            eprintln!("soak: no jobs, because the earlier version does not know them");
        }
        Ok(Self {
            rewards: Load::start(ground, fleet, options.rate_per_s)?,
            timers: TimerLoad::start(ground, fleet)?,
            queues: QueueLoad::start(&ground.dir, fleet, options.control)?,
            jobs,
        })
    }
}

/// Does something when it is dropped.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The kinds that can be done here.
fn possible(kinds: &[Kind], fleet: &Fleet) -> Vec<Kind> {
    let (disks, clocks) = fleet.abilities();
    let can = |kind: &&Kind| match kind {
        Kind::Disk if !disks => {
            eprintln!("soak: no full disks, because this user may not mount a tmpfs");
            false
        }
        Kind::Clock if !clocks => {
            eprintln!("soak: no clocks that are off, because there is no C compiler");
            false
        }
        _ => true,
    };
    kinds.iter().filter(can).copied().collect()
}

/// Looks at the ledger every second: progress for people, and budgets that must never be over.
struct Watch {
    sql: Sql,
    began: Instant,
    findings: Vec<String>,
}

impl Watch {
    fn new(ground: &Ground) -> Result<Self> {
        Ok(Self { sql: Sql::new(ground.postgres()?)?, began: Instant::now(), findings: Vec::new() })
    }

    fn until(&mut self, length: Duration, load: &Load, chaos: &Chaos, stop: &AtomicBool) {
        let mut looks = 0_u64;
        while self.began.elapsed() < length && !stop.load(SeqCst) {
            std::thread::sleep(EACH);
            looks += 1;
            // PostgreSQL may be away.
            let Ok(budgets) = self.sql.budgets(EACH) else { continue };
            for budget in budgets.iter().filter(|budget| budget.used + budget.reserved > budget.total) {
                self.findings.push(format!("a budget was over while the load ran: {budget:?}"));
            }
            if looks.is_multiple_of(5)
                && let Ok(decided) = self.sql.decided(EACH)
            {
                let (asked, taken) = load.counts();
                eprintln!(
                    "{:>7.1} s  callers asked for {asked} rewards, {taken} were taken; {decided} are decided, the SDK's \
                     with them; {} faults",
                    self.began.elapsed().as_secs_f64(),
                    chaos.count()
                );
            }
        }
    }
}

struct Drained {
    backlog: u64,
    took: Option<Duration>,
    allowed: Duration,
}

/// The places where it is written what was asked for and what came of it.
struct Books<'b> {
    ground: &'b Ground,
    shop: &'b Shop,
}

/// Ends the load and waits until every reward that was asked for is decided, and every timer has fired.
fn drain(
    books: &Books<'_>,
    fleet: &Fleet,
    watch: &mut Watch,
    loads: Loads,
    done: &[Done],
    slack: Duration,
    stop: &AtomicBool,
) -> Result<(Drained, QueueBook, Option<JobBook>)> {
    let Loads { rewards, timers, queues, jobs } = loads;
    queues.close();
    if let Some(jobs) = &jobs {
        jobs.close();
    }
    let last_fault_ms = done.iter().map(|fault| fault.to_ms).max().unwrap_or_else(now_ms);
    let took = || Duration::from_millis(now_ms().saturating_sub(last_fault_ms));
    let (backlog, longest) = backlog(&undecided(books, watch)?, books.ground);
    let allowed = longest + slack;
    timers.close(SETTLE)?;
    rewards.close(SETTLE)?;
    let (mut least, mut moved) = (usize::MAX, Instant::now());
    let mut pictures = 0;
    loop {
        // A caller that gave up leaves a reward that is not taken, and may never be.
        let looked = Instant::now();
        let mut left = undecided(books, watch)?;
        let look = looked.elapsed();
        left.extend(std::iter::repeat_n("task queue".to_owned(), queues.waiting()));
        left.extend(std::iter::repeat_n("job".to_owned(), jobs.as_ref().map_or(0, JobLoad::waiting)));
        if left.is_empty() {
            let drained = Drained { backlog, took: Some(took()), allowed };
            return Ok((drained, queues.finish()?, jobs.map(JobLoad::finish).transpose()?));
        }
        if left.len() < least {
            (least, moved) = (left.len(), Instant::now());
        }
        if pictures < PICTURES_MAX && moved.elapsed() > STANDS {
            pictures += 1;
            fleet.write_metrics(&format!("stands-{pictures}"));
        }
        if took() > allowed && moved.elapsed() > STILL || stop.load(SeqCst) {
            let drained = Drained { backlog, took: None, allowed };
            return Ok((drained, queues.finish()?, jobs.map(JobLoad::finish).transpose()?));
        }
        let by_type = by_type(&left);
        eprintln!("    {:>5.1} s after the last fault, not decided: {by_type:?}", took().as_secs_f64());
        // A look reads every order and every journal: the fleet that is watched needs the processors, too.
        std::thread::sleep((EACH * 2).max(look * 3));
    }
}

/// The bonus types of the rewards that were asked for and are neither credited nor rejected, and `timer` for each timer
/// that must fire and has not.
fn undecided(books: &Books<'_>, watch: &mut Watch) -> Result<Vec<String>> {
    // The journals first: what they do not have yet is no backlog.
    let book = read_journals(&books.ground.dir)?;
    let timers = timers::read_journals(&books.ground.dir)?;
    let orders = watch.sql.orders()?.into_iter().filter(|order| order.status != 0);
    let decided: HashSet<String> = orders.map(|order| order.trade_no).collect();
    let left = book
        .0
        .into_values()
        .filter(|asked| asked.refused.is_none() && !decided.contains(&asked.order.trade_no));
    let timers = timer_oracle::waiting(&timers, &books.shop.firings()).into_iter();
    let timers = timers.filter(|entry| !decided.contains(&entry.timer.tag)).map(|_| "timer".to_owned());
    Ok(left.map(|asked| asked.order.bonus_type).chain(timers).collect())
}

/// How many are left, and how long the slowest type takes for its own.
fn backlog(left: &[String], ground: &Ground) -> (u64, Duration) {
    let limits = ground.rules().limits();
    let long = |(of, count): (&&str, &u64)| {
        // Timers are as many as come.
        let rate_per_s = limits.get(*of).map_or(u64::MAX, |limit| limit.rate_per_s.max(1));
        Duration::from_millis(count * 1_000 / rate_per_s)
    };
    (left.len() as u64, by_type(left).iter().map(long).max().unwrap_or_default())
}

fn by_type(left: &[String]) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for of in left {
        *counts.entry(of.as_str()).or_default() += 1;
    }
    counts
}

fn read_journals(dir: &Path) -> Result<Book> {
    let entries = std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = entries.collect::<Result<_, _>>()?;
    paths.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("journal-")));
    paths.sort();
    let mut book = Book::default();
    for path in paths {
        book.read(&path)?;
    }
    if !dir.join(JOURNAL).exists() {
        bail!("the SDK process has no journal");
    }
    Ok(book)
}

fn judge(books: &Books<'_>, sql: &mut Sql, done: &[Done]) -> Result<Verdict> {
    let Books { ground, shop } = books;
    let timers = timers::read_journals(&ground.dir)?;
    let mut book = read_journals(&ground.dir)?;
    let rewards = timers.0.iter().filter_map(|(tag, entry)| Some((tag.clone(), entry.asked()?)));
    book.0.extend(rewards);
    let evidence = Evidence {
        book,
        orders: sql.orders().context("the orders cannot be read")?,
        transfers: sql.transfers()?,
        budgets: sql.budgets(Duration::from_secs(60))?,
        archive: sql.archive()?,
        balances: sql.balances()?,
        withdrawals: sql.withdrawals()?,
        payments: shop.payments(),
        history: ground.history(),
    };
    let mut verdict = oracle::judge(&evidence);
    let crashes: Vec<Crash> = done.iter().filter_map(crash).collect();
    let timers = TimerEvidence {
        book: &timers,
        firings: &shop.firings(),
        transfers: &evidence.transfers,
        crashes: &crashes,
    };
    verdict.timers = timer_oracle::judge(&timers, &mut verdict);
    Ok(verdict)
}

/// Makes the ledger's journal when all processes have ended: the last step of an upgrade. It holds the same orders, transfers,
/// withdrawals and balances then, but for what the downstream system has paid, which leaves the balances.
fn make_journal(ground: &Ground, sql: &mut Sql, verdict: &mut Verdict) -> Result<()> {
    let before = money(sql)?;
    let options = ground.options().display().to_string();
    let said = ground.windfall(&["ledger", "migrate", "--config", &options, "--watch-s", "1"])?;
    eprintln!("soak: {}", said.trim_end());
    let after = money(sql)?;
    for row in before.symmetric_difference(&after) {
        verdict.damage("mismatched", format!("the migration to a journal has changed {row}"));
    }
    Ok(())
}

/// Each row of the ledger that must not change, as text.
fn money(sql: &mut Sql) -> Result<BTreeSet<String>> {
    let mut rows: BTreeSet<String> = sql.orders()?.iter().map(|row| format!("{row:?}")).collect();
    rows.extend(sql.withdrawals()?.iter().map(|row| format!("{row:?}")));
    // When a transfer was committed is not what it was: the rows are new.
    let transfers = sql.transfers()?.into_iter().map(|row| TransferRow { committed_ms: 0, ..row });
    rows.extend(transfers.map(|row| format!("{row:?}")));
    rows.extend(sql.budgets(Duration::from_secs(60))?.iter().map(|row| format!("{row:?}")));
    let balances = sql.balances()?.into_iter().filter(|(_, of, balance)| *of != GIFT.name && *balance != 0);
    rows.extend(balances.map(|row| format!("{row:?}")));
    Ok(rows)
}

/// The time in which timers that have fired may fire again, if this fault is one that explains it. An orderly restart
/// does not.
fn crash(done: &Done) -> Option<Crash> {
    let is_scheduler = |name: &str| name.starts_with("scheduler");
    let explains = match &done.fault.action {
        Action::Server(name, _) => *name == "redis",
        Action::Process(name, how) => is_scheduler(name) && *how != How::Stop,
        Action::StartWithout { process, server } => is_scheduler(process) || *server == "redis",
        Action::Downstream(mood) => matches!(mood, Mood::Late | Mood::Silent | Mood::Absent),
        _ => false,
    };
    explains.then_some(Crash { from_ms: done.from_ms, to_ms: done.to_ms })
}

/// What explains repeats and misses of timers does so of jobs, but for the downstream system's moods.
fn judge_jobs(book: &JobBook, done: &[Done], slack: Duration, verdict: &mut Verdict) -> JobTally {
    let is_of_jobs = |done: &&Done| !matches!(done.fault.action, Action::Downstream(_));
    let crashes: Vec<Crash> = done.iter().filter(is_of_jobs).filter_map(crash).collect();
    let is_kill = |done: &&Done| matches!(done.fault.action, Action::Process(name, How::Kill) if name.starts_with("scheduler"));
    // Where Redis is away or a scheduler is frozen at the same time, jobs wait for that.
    let others: Vec<Crash> =
        done.iter().filter(|done| is_of_jobs(done) && !is_kill(done)).filter_map(crash).collect();
    let is_alone = |kill: &Crash| {
        let is_far =
            |other: &Crash| other.to_ms + NEAR_MS < kill.from_ms || kill.to_ms + NEAR_MS < other.from_ms;
        others.iter().all(is_far)
    };
    let kills: Vec<Crash> = done.iter().filter(is_kill).filter_map(crash).filter(is_alone).collect();
    let late_max_ms = u64::try_from((LATE_AFTER_KILL + slack).as_millis()).unwrap_or(u64::MAX);
    job_oracle::judge(&JobEvidence { book, crashes: &crashes, kills: &kills, late_max_ms }, verdict)
}
