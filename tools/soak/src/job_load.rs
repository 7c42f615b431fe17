//! The callers of jobs: some jobs run each second throughout, two of them are paused now and then, and others are due once. A few
//! runs per second are enough, for it is faults that find damage.

use crate::control::Control;
use crate::draw::mix;
use crate::event_book::{Writing, read};
use crate::executor::{JobPad, LEAST, MOST, RunningExecutor, held};
use crate::fleet::Fleet;
use crate::ground::Ground;
use crate::job_book::{EVERY_MS, JobBook, JobEvent, Kind, Shown};
use crate::journal::now_ms;
use crate::scheduler_calls::{Answer, Refusal, SCHEDULERS, SchedulerCaller};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The jobs that are there for the whole run.
const FIXED: [(&str, Kind); 7] = [
    ("least-0", Kind::Least),
    ("least-1", Kind::Least),
    ("least-2", Kind::Least),
    ("most-0", Kind::Most),
    ("most-1", Kind::Most),
    ("delay-0", Kind::Delay),
    ("delay-1", Kind::Delay),
];
/// Those that are paused now and then.
const PAUSED: [&str; 2] = ["least-2", "most-1"];
/// The app of the executor.
const APP: &str = "soak";
/// Each of two callers adds a job that is due once so often.
const STEP: Duration = Duration::from_millis(900);
/// Such a job is due this long after it is added, at least, and so much later at most.
const AHEAD_MS: (u64, u64) = (500, 5_000);
/// A third of the shortest time after which a silent executor is gone.
const HEARTBEAT: Duration = Duration::from_secs(10);
const REPORT_EVERY: Duration = Duration::from_millis(300);
/// A job goes on for so long, and is paused for so long.
const GOES_ON: Duration = Duration::from_secs(4);
const IS_PAUSED: Duration = Duration::from_secs(3);
/// A run that was accepted is reported sooner, unless a server is away for long.
const RUN_TIMEOUT_S: u64 = 30;
/// The time within which the jobs are made at first, and the runs are read at last.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// The journal in the directory of the run.
const JOURNAL: &str = "jobs.ndjson";

/// The running callers, and their executor.
pub struct JobLoad {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    caller: SchedulerCaller,
    journal: PathBuf,
}

struct Shared {
    pad: JobPad,
    executor: RunningExecutor,
    control: Option<Control>,
    /// Nothing new is added or paused.
    closing: AtomicBool,
    ends: AtomicBool,
}

impl JobLoad {
    /// Registers the executor, makes the jobs, and starts the callers.
    pub fn start(ground: &Arc<Ground>, fleet: &Arc<Fleet>, control: Option<Control>) -> Result<Self> {
        let journal = ground.dir.join(JOURNAL);
        let pad: JobPad = Arc::new(Mutex::new(Writing::open(&journal)?));
        let executor = RunningExecutor::start(&pad, control)?;
        let (closing, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { pad, executor, control, closing, ends });
        let caller = |at| SchedulerCaller::new(ground, fleet, at);
        let mut own = Self { shared, threads: Vec::new(), caller: caller(0), journal };
        own.make()?;
        for at in 0..SCHEDULERS.len() {
            own.spawn(&format!("jobs-{at}"), caller(at), move |shared, caller| shared.add_all(caller, at))?;
        }
        own.spawn("job-pauses", caller(0), Shared::pause_all)?;
        own.spawn("job-reports", caller(1), Shared::report_all)?;
        own.spawn("job-executor", caller(0), Shared::beat_all)?;
        Ok(own)
    }

    /// Ends the adding. Jobs that run each second go on, but what is due from now on need not come.
    pub fn close(&self) {
        self.shared.closing.store(true, Relaxed);
        held(&self.shared.pad).note(JobEvent::Ends { at_ms: now_ms() });
    }

    /// How many occurrences must come that have not.
    pub fn waiting(&self) -> usize {
        held(&self.shared.pad).book().waiting()
    }

    /// Reads how the scheduler shows the runs, and ends all callers; what their journal has.
    pub fn finish(mut self) -> Result<JobBook> {
        let until = Instant::now() + PATIENCE;
        for (name, _) in FIXED {
            self.show(name, until)?;
        }
        self.shared.ends.store(true, Relaxed);
        for thread in self.threads {
            if thread.join().is_err() {
                bail!("a caller of jobs has panicked");
            }
        }
        held(&self.shared.pad).check()?;
        read(&self.journal)
    }

    fn spawn(
        &mut self,
        name: &str,
        mut caller: SchedulerCaller,
        run: impl FnOnce(&Shared, &mut SchedulerCaller) + Send + 'static,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(thread.spawn(move || run(&shared, &mut caller))?);
        Ok(())
    }

    fn make(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let executor = self.shared.executor_body();
        self.ask("/v1/jobs/executors/register", &executor, until)?;
        for (name, kind) in FIXED {
            let job = self.ask(
                "/v1/jobs/put",
                &json!({"name": name, "spec": self.shared.spec(name, kind)}),
                until,
            )?;
            let (number, from_ms) = (number(&job["number"]), number(&job["next_ms"]));
            let name = name.to_owned();
            held(&self.shared.pad).note(JobEvent::Made { name, number, kind, from_ms });
        }
        Ok(())
    }

    /// The runs of a job, page by page.
    fn show(&mut self, name: &str, until: Instant) -> Result<()> {
        let mut after = 0;
        loop {
            let body = json!({"name": name, "after": after, "page_size": 1_000});
            let reply = self.ask("/v1/jobs/runs/list", &body, until)?;
            let text = |run: &Value, field: &str| run[field].as_str().unwrap_or_default().to_owned();
            let shown = |run: &Value| Shown {
                run: number(&run["run"]),
                due_ms: number(&run["due_ms"]),
                state: text(run, "state"),
                outcome: text(run, "outcome"),
                message: text(run, "message"),
            };
            let runs = reply["runs"].as_array().into_iter().flatten().map(shown).collect();
            held(&self.shared.pad).note(JobEvent::Shows { name: name.to_owned(), runs });
            after = number(&reply["next_after"]);
            if after == 0 {
                return Ok(());
            }
        }
    }

    /// The answer to a call that may be repeated.
    fn ask(&mut self, path: &str, body: &Value, until: Instant) -> Result<Value> {
        loop {
            match self.caller.call(path, body) {
                Answer::Done(reply) => return Ok(reply),
                Answer::Refused(Refusal { why, .. }) => bail!("{path} was refused: {why}"),
                Answer::Busy | Answer::Unknown if Instant::now() > until => {
                    bail!("no scheduler answers {path}")
                }
                Answer::Busy | Answer::Unknown => self.caller.turn(),
            }
        }
    }
}

impl Shared {
    fn note(&self, event: JobEvent) {
        held(&self.pad).note(event);
    }

    fn executor_body(&self) -> Value {
        json!({"app": APP, "address": self.executor.address()})
    }

    fn spec(&self, name: &str, kind: Kind) -> Value {
        let mut spec = match kind {
            Kind::Delay => json!({"fixed_delay": {"delay_ms": EVERY_MS}}),
            Kind::Least | Kind::Most => json!({"fixed_rate": {"every_ms": EVERY_MS}}),
        };
        let is_most = kind == Kind::Most && self.control != Some(Control::Repeat);
        spec["executor"] = json!({"app": APP, "handler": if kind == Kind::Most { MOST } else { LEAST }});
        spec["params"] = name.into();
        spec["timeout_s"] = RUN_TIMEOUT_S.into();
        if is_most {
            spec["delivery"] = "JOB_DELIVERY_AT_MOST_ONCE".into();
        } else {
            spec["retries"] = json!({"max": 100, "wait_ms": 500});
        }
        if self.control != Some(Control::Misfire) {
            spec["misfire"] = "JOB_MISFIRE_FIRE_ALL".into();
            spec["fire_all_max"] = 1_000.into();
        }
        spec
    }

    fn add_all(&self, caller: &mut SchedulerCaller, at: usize) {
        let (mut nth, mut due) = (0_u64, Instant::now());
        while !self.closing.load(Relaxed) {
            if due <= Instant::now() {
                self.add(caller, &format!("once-{at}-{nth}"), mix(nth * 2 + at as u64));
                nth += 1;
                // What was not added while calls hung is not made up for.
                due = (due + STEP).max(Instant::now());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Adds a job that is due once, and asks again until that is answered.
    fn add(&self, caller: &mut SchedulerCaller, name: &str, draw: u64) {
        let due_ms = now_ms() + AHEAD_MS.0 + draw % (AHEAD_MS.1 - AHEAD_MS.0);
        let body = json!({"name": name, "spec": {
            "at": {"time_ms": due_ms},
            "executor": {"app": APP, "handler": LEAST},
            "params": name,
            "timeout_s": RUN_TIMEOUT_S,
            "retries": {"max": 100, "wait_ms": 500},
            "misfire": "JOB_MISFIRE_FIRE_ONCE_NOW",
        }});
        self.note(JobEvent::Adds { name: name.to_owned(), due_ms });
        while !self.ends.load(Relaxed) {
            match caller.call("/v1/jobs/put", &body) {
                Answer::Done(_) => return self.note(JobEvent::Added { name: name.to_owned() }),
                // It was not made before its time was over.
                Answer::Refused(Refusal { code, .. })
                    if code == "FAILED_PRECONDITION" && due_ms < now_ms() =>
                {
                    return;
                }
                Answer::Refused(Refusal { why, .. }) => return self.note(JobEvent::Refused(why)),
                Answer::Busy | Answer::Unknown => caller.turn(),
            }
        }
    }

    fn pause_all(&self, caller: &mut SchedulerCaller) {
        for name in PAUSED.iter().cycle() {
            self.sleep(GOES_ON);
            if self.closing.load(Relaxed) {
                return;
            }
            self.note(JobEvent::Pauses { name: (*name).to_owned() });
            let Some(job) = self.set_paused(caller, name, true) else { return };
            self.note(JobEvent::Paused { name: (*name).to_owned(), last_ms: number(&job["last_ms"]) });
            self.sleep(IS_PAUSED);
            self.note(JobEvent::GoesOn { name: (*name).to_owned(), at_ms: now_ms() });
            let Some(job) = self.set_paused(caller, name, false) else { return };
            self.note(JobEvent::WentOn { name: (*name).to_owned(), next_ms: number(&job["next_ms"]) });
        }
    }

    fn set_paused(&self, caller: &mut SchedulerCaller, name: &str, paused: bool) -> Option<Value> {
        while !self.ends.load(Relaxed) {
            match caller.call("/v1/jobs/set-paused", &json!({"name": name, "paused": paused})) {
                Answer::Done(job) => return Some(job),
                Answer::Refused(Refusal { why, .. }) => {
                    self.note(JobEvent::Refused(why));
                    return None;
                }
                Answer::Busy | Answer::Unknown => caller.turn(),
            }
        }
        None
    }

    fn report_all(&self, caller: &mut SchedulerCaller) {
        while !self.ends.load(Relaxed) {
            std::thread::sleep(REPORT_EVERY);
            let runs = self.executor.take_reports();
            if runs.is_empty() {
                continue;
            }
            let report =
                |run: &u64| json!({"run": run, "result": "RUN_RESULT_SUCCEEDED", "message": "reported"});
            let reports: Vec<Value> = runs.iter().map(report).collect();
            match caller.call("/v1/jobs/runs/report", &json!({"reports": reports})) {
                Answer::Done(_) => {}
                Answer::Refused(Refusal { why, .. }) => self.note(JobEvent::Refused(why)),
                Answer::Busy | Answer::Unknown => {
                    self.executor.report_later(runs);
                    caller.turn();
                }
            }
        }
    }

    fn beat_all(&self, caller: &mut SchedulerCaller) {
        let mut due = Instant::now() + HEARTBEAT;
        while !self.ends.load(Relaxed) {
            std::thread::sleep(POLL);
            if due > Instant::now() {
                continue;
            }
            match caller.call("/v1/jobs/executors/register", &self.executor_body()) {
                Answer::Done(_) => due = Instant::now() + HEARTBEAT,
                Answer::Refused(Refusal { why, .. }) => {
                    self.note(JobEvent::Refused(why));
                    due = Instant::now() + HEARTBEAT;
                }
                Answer::Busy | Answer::Unknown => caller.turn(),
            }
        }
    }

    fn sleep(&self, long: Duration) {
        let until = Instant::now() + long;
        while Instant::now() < until && !self.closing.load(Relaxed) {
            std::thread::sleep(POLL);
        }
    }
}

/// A number of 64 bits, which is a string in JSON.
fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).or_else(|| value.as_u64()).unwrap_or_default()
}

/// Whether jobs can be in this run: all schedulers must know them, the earlier version too.
pub fn is_known(program: &Path) -> bool {
    let mut command = std::process::Command::new(program);
    command.args(["jobs", "--help"]).stdin(std::process::Stdio::null());
    command.output().is_ok_and(|output| output.status.success())
}
