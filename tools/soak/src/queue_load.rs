//! The callers of the task queue: publishers, and consumers who acknowledge most jobs at once, some late and some never. A few
//! jobs per second are enough, for it is faults that find damage.

use crate::control::Control;
use crate::draw::mix;
use crate::event_book::{Writing, read};
use crate::fleet::{Fleet, QUEUES};
use crate::journal::now_ms;
use crate::queue_book::{Delivery, Manner, Published, QueueBook, QueueEvent};
use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a job is its consumer's, in seconds.
pub const TTR_S: u64 = 2;
/// Jobs that a call may take.
pub const COUNT: u64 = 3;
/// How long a call waits for a job, in seconds.
const POLL_S: u64 = 2;
/// Each of two publishers publishes a job so often.
const STEP: Duration = Duration::from_millis(350);
/// A namespace and a queue in it.
const QUEUE: &str = "soak/work";
/// Its token, which has the length that the admin API wants.
const TOKEN: &str = "a-token-of-the-soak-which-is-nobody's";
const CALL_TIMEOUT: Duration = Duration::from_secs(6);
const AGAIN: Duration = Duration::from_millis(150);
/// The pause between two looks at the dead letter.
const REVIVE_EVERY: Duration = Duration::from_secs(1);

/// The journal in the directory of the run.
const JOURNAL: &str = "task-queue.ndjson";

/// The state that all callers share.
struct Shared {
    fleet: Arc<Fleet>,
    agent: ureq::Agent,
    book: Mutex<Writing<QueueBook>>,
    /// No new jobs; the dead letter is brought back.
    closing: AtomicBool,
    ends: AtomicBool,
    control: Option<Control>,
}

/// The running callers.
pub struct QueueLoad {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    journal: PathBuf,
}

impl QueueLoad {
    /// Makes the queue's token and starts them.
    pub fn start(dir: &Path, fleet: &Arc<Fleet>, control: Option<Control>) -> Result<Self> {
        let journal = dir.join(JOURNAL);
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let agent = config.timeout_global(Some(CALL_TIMEOUT)).build().into();
        let shared = Arc::new(Shared {
            fleet: Arc::clone(fleet),
            agent,
            book: Mutex::new(Writing::open(&journal)?),
            closing: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            control,
        });
        shared.make_token()?;
        let mut own = Self { shared, threads: Vec::new(), journal };
        for at in 0..QUEUES.len() {
            own.spawn(&format!("publisher-{at}"), move |shared| shared.publish_all(at))?;
            own.spawn(&format!("taker-{at}"), move |shared| shared.consume_all(at))?;
        }
        own.spawn("reviver", Shared::revive_all)?;
        Ok(own)
    }

    /// Ends the publishing. Consumers go on, and what the dead letter has is brought back.
    pub fn close(&self) {
        self.shared.closing.store(true, Relaxed);
    }

    /// How many jobs are neither acknowledged nor out of the dead letter yet.
    pub fn waiting(&self) -> usize {
        self.shared.book().book().waiting()
    }

    /// Ends all callers; what their journal has.
    pub fn finish(self) -> Result<QueueBook> {
        self.shared.ends.store(true, Relaxed);
        for thread in self.threads {
            if thread.join().is_err() {
                bail!("a caller of the task queue has panicked");
            }
        }
        self.shared.book().check()?;
        read(&self.journal)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce(&Shared) + Send + 'static) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared))?);
        Ok(())
    }
}

/// A call that consumes, acknowledges, publishes or revives.
#[derive(Clone, Copy)]
enum Method {
    Get,
    Put,
    Delete,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Writing<QueueBook>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, event: QueueEvent) {
        self.book().note(event);
    }

    fn make_token(&self) -> Result<()> {
        let [_, admin] = self.fleet.queue_addresses(QUEUES[0]);
        let url = format!("http://{admin}/token/soak?description=soak&token={TOKEN}");
        let mut answer = self.agent.post(url).send_empty().context("no token of the task queue")?;
        let (status, said) = (answer.status().as_u16(), answer.body_mut().read_to_string()?);
        if status != 201 {
            bail!("the task queue makes no token: HTTP {status} {said}");
        }
        Ok(())
    }

    /// Status and body of the answer; `None`: nobody knows whether it was done.
    fn call(&self, at: usize, method: Method, rest: &str, body: &str) -> Option<(u16, String)> {
        let [api, _] = self.fleet.queue_addresses(QUEUES[at % QUEUES.len()]);
        let url = format!("http://{api}/api/{QUEUE}{rest}");
        let answer = match method {
            Method::Get => self.agent.get(url).header("x-token", TOKEN).call(),
            Method::Put => self.agent.put(url).header("x-token", TOKEN).send(body),
            Method::Delete => self.agent.delete(url).header("x-token", TOKEN).call(),
        };
        let mut answer = answer.ok()?;
        let status = answer.status().as_u16();
        let said = answer.body_mut().read_to_string().ok()?;
        if (400..500).contains(&status) && status != 404 && status != 429 {
            self.note(QueueEvent::Refused(format!("{rest}: HTTP {status} {said}")));
        }
        Some((status, said))
    }

    fn publish_all(&self, first: usize) {
        let (mut at, mut nth, mut due) = (first, 0_u64, Instant::now());
        while !self.closing.load(Relaxed) && !self.ends.load(Relaxed) {
            if due > Instant::now() {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            if !self.publish(at, &format!("{first}/{nth}"), nth, mix(nth * 2 + first as u64)) {
                at += 1;
                std::thread::sleep(AGAIN);
            }
            nth += 1;
            due = (due + STEP).max(Instant::now());
        }
    }

    /// Publishes a job once; whether that was answered.
    fn publish(&self, at: usize, tag: &str, nth: u64, draw: u64) -> bool {
        let (manner, tries) = match nth % 10 {
            3 => (Manner::Dying, 2),
            7 => (Manner::Slow, 3),
            _ => (Manner::Prompt, 5),
        };
        let delay_s = [0, 0, 1, 2][usize::try_from(draw % 4).unwrap_or(0)];
        let job = Published { asked_ms: now_ms(), delay_s, tries, manner, id: None };
        self.note(QueueEvent::Publishes { tag: tag.to_owned(), job });
        // A job whose ttl equals its delay has expired when it is ready.
        let ttl_s = if self.control == Some(Control::Expire) { delay_s } else { 0 };
        let answer = self.call(at, Method::Put, &format!("?delay={delay_s}&tries={tries}&ttl={ttl_s}"), tag);
        let Some((201, said)) = answer else { return false };
        let said: Value = serde_json::from_str(&said).unwrap_or(Value::Null);
        let Some(id) = said["job_id"].as_str() else {
            self.note(QueueEvent::Refused(format!("a publish was answered 201 and {said}")));
            return true;
        };
        self.note(QueueEvent::Published { tag: tag.to_owned(), id: id.to_owned() });
        true
    }

    fn consume_all(&self, first: usize) {
        let mut at = first;
        while !self.ends.load(Relaxed) {
            if !self.consume(at) {
                at += 1;
                std::thread::sleep(AGAIN);
            }
        }
    }

    /// Takes some jobs and acknowledges those whose time it is; whether the call was answered.
    fn consume(&self, at: usize) -> bool {
        let asked_ms = now_ms();
        let rest = format!("?ttr={TTR_S}&timeout={POLL_S}&count={COUNT}");
        let jobs = match self.call(at, Method::Get, &rest, "") {
            Some((404, _)) => return true,
            Some((200, said)) => serde_json::from_str::<Vec<Value>>(&said).unwrap_or_default(),
            _ => Vec::new(),
        };
        if jobs.is_empty() {
            self.note(QueueEvent::Unanswered);
            return false;
        }
        let at_ms = now_ms();
        for job in jobs {
            let text = |key: &str| job[key].as_str().unwrap_or_default();
            let tag = STANDARD.decode(text("data")).unwrap_or_default();
            let delivery = Delivery {
                tag: String::from_utf8_lossy(&tag).into_owned(),
                id: text("job_id").to_owned(),
                asked_ms,
                at_ms,
                remain_tries: job["remain_tries"].as_u64().unwrap_or_default(),
            };
            let (tag, id) = (delivery.tag.clone(), delivery.id.clone());
            let is_time = {
                let mut book = self.book();
                book.note(QueueEvent::Came(delivery));
                book.book().is_time(&tag, &id)
            };
            if is_time && (self.forgets(at_ms) || self.acknowledge(at, &id)) {
                self.note(QueueEvent::Acknowledged { id, at_ms: now_ms() });
            }
        }
        true
    }

    /// Whether an acknowledgement is noted that was never asked for.
    fn forgets(&self, at_ms: u64) -> bool {
        self.control == Some(Control::Acknowledge) && mix(at_ms).is_multiple_of(4)
    }

    /// Asks until it is answered, also where the job has gone meanwhile. Whether it was.
    fn acknowledge(&self, first: usize, id: &str) -> bool {
        let mut at = first;
        while !self.ends.load(Relaxed) {
            if let Some((204, _)) = self.call(at, Method::Delete, &format!("/job/{id}"), "") {
                return true;
            }
            // The other process may be there where this one is not.
            at += 1;
            std::thread::sleep(AGAIN);
        }
        false
    }

    /// Brings back what the dead letter has, as soon as nothing new is published.
    fn revive_all(&self) {
        let (mut at, mut is_noted) = (0, false);
        while !self.ends.load(Relaxed) {
            std::thread::sleep(REVIVE_EVERY);
            if !self.closing.load(Relaxed) {
                continue;
            }
            if !std::mem::replace(&mut is_noted, true) {
                self.note(QueueEvent::Revives { at_ms: now_ms() });
            }
            let answer = self.call(at, Method::Put, "/deadletter?limit=100&ttl=86400", "");
            if answer.is_none_or(|(status, _)| status != 200) {
                at += 1;
            }
        }
    }
}
