//! Does the faults of the plan, each lane in a thread of its own, and undoes them.

use crate::fleet::Fleet;
use crate::ground::Ground;
use crate::journal::now_ms;
use crate::plan::{Action, Fault, How, PROCESSES};
use crate::shop::{Mood, Shop};
use anyhow::Result;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an adopter runs on the files of a process that went for good.
const ADOPTION: Duration = Duration::from_secs(8);

/// The pause between two faults of a lane.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// A fault as it was done.
#[derive(Debug, Clone)]
pub struct Done {
    /// The fault.
    pub fault: Fault,
    /// When it began, Unix milliseconds.
    pub from_ms: u64,
    /// When everything was repaired.
    pub to_ms: u64,
}

/// The running lanes.
pub struct Chaos {
    lanes: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

struct Shared {
    ground: Arc<Ground>,
    fleet: Arc<Fleet>,
    shop: Arc<Shop>,
    began: Instant,
    length: Duration,
    stop: Arc<AtomicBool>,
    count: AtomicUsize,
    done: Mutex<Vec<Done>>,
    failures: Mutex<Vec<String>>,
}

impl Chaos {
    /// Starts the lanes. A stop ends them before the next fault; what is broken is repaired in any case.
    pub fn start(
        plan: &[Fault],
        length: Duration,
        ground: &Arc<Ground>,
        fleet: &Arc<Fleet>,
        shop: &Arc<Shop>,
        stop: &Arc<AtomicBool>,
    ) -> Self {
        let shared = Arc::new(Shared {
            ground: Arc::clone(ground),
            fleet: Arc::clone(fleet),
            shop: Arc::clone(shop),
            began: Instant::now(),
            length,
            stop: Arc::clone(stop),
            count: AtomicUsize::new(0),
            done: Mutex::default(),
            failures: Mutex::default(),
        });
        let lane_count = plan.iter().map(|fault| fault.lane + 1).max().unwrap_or(0);
        let lanes = (0..lane_count).map(|lane| {
            let faults: Vec<Fault> = plan.iter().filter(|fault| fault.lane == lane).cloned().collect();
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || faults.iter().for_each(|fault| shared.run(fault)))
        });
        Self { lanes: lanes.collect(), shared }
    }

    /// How many faults have begun.
    pub fn count(&self) -> usize {
        self.shared.count.load(SeqCst)
    }

    /// Waits until everything is repaired. Returns the faults that were done, and those that the soak could not do.
    pub fn close(self) -> (Vec<Done>, Vec<String>) {
        for lane in self.lanes {
            if lane.join().is_err() {
                self.shared.fail("a lane of faults has panicked".into());
            }
        }
        let done = std::mem::take(&mut *self.shared.done.lock().unwrap_or_else(PoisonError::into_inner));
        let failed =
            std::mem::take(&mut *self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner));
        (done, failed)
    }
}

impl Shared {
    fn run(&self, fault: &Fault) {
        if self.began.elapsed() <= self.length {
            // A lane that is behind, because a server took long to come back, leaves some time all the same.
            self.sleep(
                Duration::from_millis(fault.at_ms).saturating_sub(self.began.elapsed()).max(LEAST_PAUSE),
            );
        }
        if self.stop.load(SeqCst) {
            return;
        }
        if self.began.elapsed() > self.length {
            self.say(&format!("the load is over, so this is left out: {}", fault.action));
            return;
        }
        self.count.fetch_add(1, SeqCst);
        self.say(&format!(
            "{}, for {:.1} s",
            fault.action,
            Duration::from_millis(fault.for_ms).as_secs_f64()
        ));
        let from_ms = now_ms();
        if let Err(error) = self.act(fault) {
            self.fail(format!("{}: {error:#}", fault.action));
        }
        self.say(&format!("    mended: {}", fault.action));
        let done = Done { fault: fault.clone(), from_ms, to_ms: now_ms() };
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
    }

    fn act(&self, fault: &Fault) -> Result<()> {
        let long = Duration::from_millis(fault.for_ms);
        match &fault.action {
            Action::Server(name, how) => self.server(name, *how, long, || Ok(())),
            Action::StartWithout { process, server } => self.server(server, How::Kill, long, || {
                self.fleet.hit(process, How::Kill)?;
                self.fleet.launch(process)
            }),
            Action::Process(name, how) => {
                self.fleet.hit(name, *how)?;
                self.sleep(long);
                self.fleet.mend(name, *how)
            }
            Action::Rolling => {
                let steps = u32::try_from(PROCESSES.len())?;
                PROCESSES.iter().try_for_each(|name| {
                    self.fleet.hit(name, How::Stop)?;
                    self.fleet.change_version(name)?;
                    self.fleet.launch(name)?;
                    self.sleep(long / steps);
                    Ok(())
                })
            }
            Action::Clock { process, ahead_ms } => {
                self.restart(process, *ahead_ms)?;
                self.sleep(long);
                self.restart(process, 0)
            }
            Action::Gone(process) => {
                self.fleet.hit(process, How::Kill)?;
                let left = self.fleet.replace_data(process)?;
                self.fleet.launch(process)?;
                self.sleep(long);
                self.fleet.adopt(process, &left, ADOPTION, &self.stop)
            }
            Action::Disk(process) => {
                self.fleet.fill(process, true)?;
                self.sleep(long);
                self.fleet.fill(process, false)
            }
            Action::Rules(change) => {
                self.rules(|rules| rules.turn(*change, true), &change.to_string())?;
                self.sleep(long);
                self.rules(|rules| rules.turn(*change, false), &format!("no more: {change}"))
            }
            Action::Downstream(mood) => {
                self.shop.set_mood(*mood);
                self.sleep(long);
                self.shop.set_mood(Mood::Good);
                Ok(())
            }
        }
    }

    /// Takes a server away, and brings it back whatever `meanwhile` says.
    fn server(
        &self,
        name: &str,
        how: How,
        long: Duration,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let server = self.ground.server(name)?;
        self.fleet.server_is_away(true);
        let broken = match how {
            How::Kill => server.kill(),
            How::Freeze => server.freeze(),
            How::Stop => server.stop(),
        };
        let done = meanwhile();
        self.sleep(long);
        let mended = match how {
            How::Freeze => server.thaw(),
            How::Kill | How::Stop => server.start(),
        };
        self.fleet.server_is_away(false);
        broken?;
        mended?;
        done
    }

    fn restart(&self, process: &'static str, ahead_ms: i64) -> Result<()> {
        self.fleet.hit(process, How::Stop)?;
        self.fleet.set_clock(process, ahead_ms)?;
        self.fleet.launch(process)
    }

    /// Changes the rules, as soon as etcd takes them.
    fn rules(&self, change: impl Fn(&mut crate::rules::Rules), why: &str) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match self.ground.set_rules(&change, why) {
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(300)),
                result => return result,
            }
        }
    }

    fn sleep(&self, long: Duration) {
        let until = Instant::now() + long;
        while Instant::now() < until && !self.stop.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn say(&self, text: &str) {
        eprintln!("{:>7.1} s  {text}", self.began.elapsed().as_secs_f64());
    }

    fn fail(&self, text: String) {
        self.say(&format!("the soak could not do this: {text}"));
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}
