//! The callers of the task queue: publishers, and consumers who acknowledge most jobs at once, some late and some never. A few
//! jobs per second are enough, for it is faults that find damage.

use crate::control::Control;
use crate::draw::mix;
use crate::fleet::{Fleet, QUEUES};
use crate::ground::Ground;
use crate::journal::now_ms;
use crate::queue_book::{Delivery, Manner, Published, QueueBook};
use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::path::Path;
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
/// An acknowledgement is repeated so often; after that the job comes again.
const ACKNOWLEDGEMENTS: u32 = 3;
/// The pause between two looks at the dead letter.
const REVIVE_EVERY: Duration = Duration::from_secs(1);

/// The state that all callers share.
struct Shared {
    fleet: Arc<Fleet>,
    agent: ureq::Agent,
    book: Mutex<QueueBook>,
    /// No new jobs; the dead letter is brought back.
    closing: AtomicBool,
    ends: AtomicBool,
    /// Some acknowledgements are noted and never asked for.
    forgets: bool,
}

/// The running callers.
pub struct QueueLoad {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl QueueLoad {
    /// Makes the queue's token and starts them.
    pub fn start(fleet: &Arc<Fleet>, control: Option<Control>) -> Result<Self> {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let agent = config.timeout_global(Some(CALL_TIMEOUT)).build().into();
        let shared = Arc::new(Shared {
            fleet: Arc::clone(fleet),
            agent,
            book: Mutex::default(),
            closing: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            forgets: control == Some(Control::Acknowledge),
        });
        shared.make_token()?;
        let mut own = Self { shared, threads: Vec::new() };
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
        self.shared.book().waiting()
    }

    /// Ends all callers; what they have noted, which is also written to this directory.
    pub fn finish(self, dir: &Path) -> Result<QueueBook> {
        self.shared.ends.store(true, Relaxed);
        for thread in self.threads {
            if thread.join().is_err() {
                bail!("a caller of the task queue has panicked");
            }
        }
        let book = self.shared.book().clone();
        let path = dir.join("task-queue.json");
        std::fs::write(&path, serde_json::to_vec(&book)?)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(book)
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
    fn book(&self) -> MutexGuard<'_, QueueBook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_token(&self) -> Result<()> {
        let (_, admin) = self.fleet.queue_addresses(QUEUES[0]);
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
        let (api, _) = self.fleet.queue_addresses(QUEUES[at % QUEUES.len()]);
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
            self.book().refused.push(format!("{rest}: HTTP {status} {said}"));
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
        self.book().jobs.insert(tag.to_owned(), job);
        let answer = self.call(at, Method::Put, &format!("?delay={delay_s}&tries={tries}&ttl=0"), tag);
        let Some((201, said)) = answer else { return false };
        let said: Value = serde_json::from_str(&said).unwrap_or(Value::Null);
        let Some(id) = said["job_id"].as_str() else {
            self.book().refused.push(format!("a publish was answered 201 and {said}"));
            return true;
        };
        if let Some(job) = self.book().jobs.get_mut(tag) {
            job.id = Some(id.to_owned());
        }
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
            self.book().unanswered += 1;
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
            let id = delivery.id.clone();
            let is_forgotten = self.forgets && mix(at_ms).is_multiple_of(4);
            if self.book().comes(delivery) && (is_forgotten || self.acknowledge(at, &id)) {
                self.book().acknowledges(&id, now_ms());
            }
        }
        true
    }

    /// Whether the acknowledgement was answered.
    fn acknowledge(&self, at: usize, id: &str) -> bool {
        for again in 0..ACKNOWLEDGEMENTS {
            // The other process may be there where this one is not.
            let place = at + usize::try_from(again).unwrap_or(0);
            if let Some((204, _)) = self.call(place, Method::Delete, &format!("/job/{id}"), "") {
                return true;
            }
            std::thread::sleep(AGAIN);
        }
        false
    }

    /// Brings back what the dead letter has, as soon as nothing new is published.
    fn revive_all(&self) {
        let mut at = 0;
        while !self.ends.load(Relaxed) {
            std::thread::sleep(REVIVE_EVERY);
            if self.closing.load(Relaxed) {
                self.book().revived_ms.get_or_insert_with(now_ms);
                if self.call(at, Method::Put, "/deadletter?limit=100&ttl=86400", "").is_none() {
                    at += 1;
                }
            }
        }
    }
}
