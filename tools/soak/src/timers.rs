//! The callers of timers: they add them, move some and cancel some, and journal each call before and after it. A few
//! timers per second are enough, for it is faults that find damage.

use crate::draw::mix;
use crate::fleet::Fleet;
use crate::ground::Ground;
use crate::journal::now_ms;
use crate::load::{order, reward};
use crate::rules::TIMED;
use crate::scheduler_calls::{Answer, Refusal, SCHEDULERS, SchedulerCaller};
use crate::timer_journal::{Timer, TimerBook, TimerJournal};
use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The first number of a caller of timers among all callers.
const FIRST_CALLER: u64 = 30;
/// Each of two callers adds a timer so often.
const STEP: Duration = Duration::from_millis(350);
/// A timer is due this long after it is added, at least, and so much later at most.
const AHEAD_MS: (u64, u64) = (300, 6_000);

/// The running callers.
pub struct TimerLoad {
    threads: Vec<JoinHandle<Result<()>>>,
    closing: Arc<AtomicBool>,
    gives_up: Arc<AtomicBool>,
}

impl TimerLoad {
    /// Starts them.
    pub fn start(ground: &Arc<Ground>, fleet: &Arc<Fleet>) -> Result<Self> {
        let (closing, gives_up) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let mut threads = Vec::new();
        for at in 0..SCHEDULERS.len() {
            let number = FIRST_CALLER + at as u64;
            let mut caller = Caller {
                scheduler: SchedulerCaller::new(ground, fleet, at),
                journal: TimerJournal::open(&ground.dir.join(format!("timers-{number}")))?,
                number,
                closing: Arc::clone(&closing),
                gives_up: Arc::clone(&gives_up),
                later: Vec::new(),
            };
            let name = format!("timers-{number}");
            threads.push(std::thread::Builder::new().name(name).spawn(move || caller.run())?);
        }
        Ok(Self { threads, closing, gives_up })
    }

    /// Ends the adding; open calls are asked again for so long at most. Fails where a journal could not be written.
    pub fn close(self, patience: Duration) -> Result<()> {
        self.closing.store(true, Relaxed);
        let until = Instant::now() + patience;
        while Instant::now() < until && self.threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.gives_up.store(true, Relaxed);
        for thread in self.threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => bail!("a caller of timers has panicked"),
            }
        }
        Ok(())
    }
}

/// What the journals of timers in this directory say.
pub fn read_journals(dir: &Path) -> Result<TimerBook> {
    let mut book = TimerBook::default();
    let paths: Vec<PathBuf> =
        std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    let is_journal =
        |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("timers-"));
    paths.iter().filter(is_journal).try_for_each(|path| book.read(path, TIMED.name))?;
    Ok(book)
}

/// A change that is due after the add.
struct Later {
    at: Instant,
    /// The timer's tag, and its key or id in the body of a call.
    tag: String,
    name: (&'static str, String),
    what: Change,
}

#[derive(Clone, Copy)]
enum Change {
    Move { due_ms: u64 },
    Cancel,
}

struct Caller {
    scheduler: SchedulerCaller,
    journal: TimerJournal,
    number: u64,
    closing: Arc<AtomicBool>,
    gives_up: Arc<AtomicBool>,
    later: Vec<Later>,
}

impl Caller {
    fn run(&mut self) -> Result<()> {
        let (mut nth, mut due) = (0, Instant::now());
        // Callers that have not begun a change when the load ends do not begin it any more.
        while !self.closing.load(Relaxed) {
            while let Some(at) = self.later.iter().position(|later| later.at <= Instant::now()) {
                let later = self.later.swap_remove(at);
                self.change(&later)?;
            }
            if due <= Instant::now() {
                self.add(nth)?;
                nth += 1;
                // What was not added while calls hung is not made up for.
                due = (due + STEP).max(Instant::now());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn add(&mut self, nth: u64) -> Result<()> {
        let draw = mix(self.number * 100_000_000 + nth);
        let due_ms = now_ms() + AHEAD_MS.0 + draw % (AHEAD_MS.1 - AHEAD_MS.0);
        let reward = nth.is_multiple_of(4).then(|| order(self.number, nth, 0, TIMED));
        let tag =
            reward.as_ref().map_or_else(|| format!("hook/{}/{nth}", self.number), |one| one.trade_no.clone());
        let timer = Timer { tag, due_ms, is_keyed: !nth.is_multiple_of(3), reward };
        self.journal.adds(&timer)?;
        let Some(id) = self.added(&timer)? else { return Ok(()) };
        let name = if timer.is_keyed { ("key", timer.tag.clone()) } else { ("id", id) };
        let left_ms = due_ms.saturating_sub(now_ms());
        // Half of the changes come early, the others when the timer is about to fire.
        let wait_ms =
            if draw.is_multiple_of(2) { 100 + draw % 200 } else { left_ms.saturating_sub(40) + draw % 80 };
        let what = match nth % 10 {
            1 | 6 => Change::Cancel,
            3 | 8 => Change::Move { due_ms: due_ms + 1_000 + draw % 3_000 },
            _ => return Ok(()),
        };
        self.later.push(Later {
            at: Instant::now() + Duration::from_millis(wait_ms),
            tag: timer.tag,
            name,
            what,
        });
        Ok(())
    }

    /// The id of the timer, as soon as an add of it is answered; `None` where nobody will know.
    fn added(&mut self, timer: &Timer) -> Result<Option<String>> {
        let payload = match &timer.reward {
            Some(order) => reward(order).to_string(),
            None => timer.tag.clone(),
        };
        let body = json!({"timer": {
            "target": if timer.reward.is_some() { "rewards" } else { "hook" },
            "due_ms": timer.due_ms,
            "key": if timer.is_keyed { timer.tag.as_str() } else { "" },
            "payload": STANDARD.encode(payload),
        }});
        while !self.gives_up.load(Relaxed) {
            match self.scheduler.call("/v1/timers/add", &body) {
                Answer::Done(reply) => {
                    self.journal.added(&timer.tag)?;
                    return Ok(Some(reply["id"].as_str().context("a timer has no id")?.to_owned()));
                }
                Answer::Busy => {}
                // Without a key there might be two.
                Answer::Unknown if !timer.is_keyed => return Ok(None),
                Answer::Unknown => self.journal.adds_again(&timer.tag)?,
                Answer::Refused(Refusal { why, .. }) => {
                    self.journal.refused(&timer.tag, &why)?;
                    return Ok(None);
                }
            }
            self.scheduler.turn();
        }
        Ok(None)
    }

    /// Moves or cancels a timer, and asks again until that is answered.
    fn change(&mut self, later: &Later) -> Result<()> {
        let Later { tag, name: (field, name), what, .. } = later;
        let (path, mut body) = match what {
            Change::Move { due_ms } => ("/v1/timers/update", json!({"due_ms": due_ms})),
            Change::Cancel => ("/v1/timers/cancel", json!({})),
        };
        body[*field] = name.as_str().into();
        while !self.gives_up.load(Relaxed) {
            match what {
                Change::Move { due_ms } => self.journal.moves(tag, *due_ms)?,
                Change::Cancel => self.journal.cancels(tag)?,
            }
            match self.scheduler.call(path, &body) {
                Answer::Done(reply) => {
                    let change = reply["change"].as_str().unwrap_or_default();
                    return match what {
                        Change::Move { .. } => self.journal.moved(tag, change),
                        Change::Cancel => self.journal.cancelled(tag, change),
                    };
                }
                Answer::Busy | Answer::Unknown => {}
                Answer::Refused(Refusal { why, .. }) => return self.journal.refused(tag, &why),
            }
            self.scheduler.turn();
        }
        Ok(())
    }
}
