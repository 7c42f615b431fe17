//! What every driver has to show: each sentence of [`contract`](windfall_contract::broker), as a check.
//!
//! A driver's tests make a [`Fixture`] and call [`run`]; each check opens the broker anew and uses a topic of its
//! own, so a fixture may keep one directory, or one cluster, for all of them. Checks that speak of positions run on
//! brokers with [`Acks::Prefix`], those of single records on brokers with [`Acks::Each`]; the rest run on both.

mod consuming;
mod each;
mod groups;
mod producing;
mod reader;

pub use self::reader::{Reader, Seen};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use windfall_contract::broker::{
    Acks, Broker, Consumer, Delivery, DeliverySink, OpenError, OutRecord, Producer, SendRefused, Tag,
};

/// What is wrong.
pub type Outcome = Result<(), String>;

/// A broker under test.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Names the driver in messages.
    fn name(&self) -> &str;

    /// Put before the names of all topics and groups, so that runs on a shared broker stay apart.
    fn prefix(&self) -> &str {
        ""
    }

    /// How long a check waits for what must come.
    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// How long nothing must come before a check believes that nothing will.
    fn quiet(&self) -> Duration {
        Duration::from_millis(100)
    }

    /// How often a broker that was opened has given a reason for which finished records may rightly come again: it took
    /// partitions away from a member at once, its last commits with them; or a call failed, or was answered too late.
    /// Brokers to which that cannot happen keep the 0.
    fn reasons_to_repeat(&self) -> u64 {
        0
    }

    /// Opens the broker; again after all handles of the last were dropped, with the same data.
    ///
    /// # Errors
    /// What the driver says; it fails the check.
    async fn open(&self) -> Result<Arc<dyn Broker>, OpenError>;

    /// Makes or grows a topic; by [`Broker::ensure_topic`], unless the broker wants it done by other means.
    ///
    /// # Errors
    /// What the driver says; it fails the check.
    async fn ensure(&self, broker: Arc<dyn Broker>, topic: &str, partitions: u32) -> Result<(), OpenError> {
        let topic = topic.to_owned();
        let made = tokio::task::spawn_blocking(move || broker.ensure_topic(&topic, partitions)).await;
        made.unwrap_or_else(|died| Err(OpenError::Unavailable(died.to_string())))
    }

    /// The broker as it would be found had its process been killed now, while `broker` is still open; `None` if
    /// this fixture cannot do that.
    ///
    /// # Errors
    /// What the driver says; it fails the check.
    async fn crashed(&self, broker: &dyn Broker) -> Result<Option<Arc<dyn Broker>>, OpenError> {
        let _ = broker;
        Ok(None)
    }
}

/// One check: its name, and what it does.
pub type Check = (&'static str, for<'a> fn(&'a Stage<'a>) -> BoxFuture<'a, Outcome>);

/// All checks.
pub const CHECKS: &[Check] = &[
    ("reports_once", |stage| Box::pin(producing::reports_once(stage))),
    ("close_accounts", |stage| Box::pin(producing::close_accounts(stage))),
    ("sizes", |stage| Box::pin(producing::sizes(stage))),
    ("order_by_key", |stage| Box::pin(producing::order_by_key(stage))),
    ("names", |stage| Box::pin(producing::names(stage))),
    ("limits_of_a_poll", |stage| Box::pin(consuming::limits_of_a_poll(stage))),
    ("waits_and_wakes", |stage| Box::pin(consuming::waits_and_wakes(stage))),
    ("cancelled_polls", |stage| Box::pin(consuming::cancelled_polls(stage))),
    ("pauses", |stage| Box::pin(consuming::pauses(stage))),
    ("old_pauses", |stage| Box::pin(consuming::old_pauses(stage))),
    ("groups_apart", |stage| Box::pin(consuming::groups_apart(stage))),
    ("lag_counts", |stage| Box::pin(consuming::lag_counts(stage))),
    ("resumes", |stage| Box::pin(groups::resumes(stage))),
    ("survives_restart", |stage| Box::pin(groups::survives_restart(stage))),
    ("survives_crash", |stage| Box::pin(groups::survives_crash(stage))),
    ("fences", |stage| Box::pin(groups::fences(stage))),
    ("finished_stay_finished", |stage| Box::pin(groups::finished_stay_finished(stage))),
    ("rebalances", |stage| Box::pin(groups::rebalances(stage))),
    ("grows", |stage| Box::pin(groups::grows(stage))),
    ("unfinished_come_again", |stage| Box::pin(each::unfinished_come_again(stage))),
    ("held_stay_hidden", |stage| Box::pin(each::held_stay_hidden(stage))),
];

/// The topic and the groups that the check `name` uses, for brokers where these are made by other means.
pub fn names(fixture: &dyn Fixture, check: &str) -> (String, Vec<String>) {
    let stage = Stage::new(fixture, check, 1);
    (stage.topic(), GROUPS.iter().map(|group| stage.group(group)).collect())
}

/// All groups that checks use.
const GROUPS: &[&str] = &["g", "one", "two"];

/// Runs all checks, and returns the failed ones with what was wrong.
pub async fn run(fixture: &dyn Fixture) -> Vec<(&'static str, String)> {
    let mut failed = Vec::new();
    for (name, _) in CHECKS {
        if let Err(what) = run_one(fixture, name).await {
            failed.push((*name, format!("{}: {what}", fixture.name())));
        }
    }
    failed
}

/// Runs the check `name`. Where it fails because a record came again, and the broker had a reason for that, it is run anew
/// on names of its own: it must pass once in [`ATTEMPTS`], without a reason or in spite of one. No reason excuses anything
/// else.
///
/// # Errors
/// What was wrong.
pub async fn run_one(fixture: &dyn Fixture, name: &str) -> Outcome {
    let Some((name, check)) = CHECKS.iter().find(|(known, _)| *known == name) else {
        return Err(format!("there is no check {name}"));
    };
    let mut attempt = 1;
    loop {
        let (started, before) = (Instant::now(), fixture.reasons_to_repeat());
        let stage = Stage::new(fixture, name, attempt);
        let outcome = check(&stage).await;
        tracing::info!(
            check = name,
            attempt,
            took_ms = started.elapsed().as_millis(),
            ?outcome,
            "conformance"
        );
        let reasons = fixture.reasons_to_repeat().saturating_sub(before);
        match outcome {
            Err(what) if stage.came_again.load(Ordering::Relaxed) && reasons > 0 && attempt < ATTEMPTS => {
                println!(
                    "{name}: {what}, and the broker had {reasons} reasons to bring records again: once more"
                );
            }
            outcome => return outcome,
        }
        attempt += 1;
    }
}

/// How often a check is run whose broker had reasons to bring finished records again.
pub const ATTEMPTS: u32 = 3;

/// What a check plays on: the broker under test, and names of its own.
pub struct Stage<'a> {
    fixture: &'a dyn Fixture,
    check: &'a str,
    attempt: u32,
    /// Whether the check failed because a record came again.
    came_again: AtomicBool,
}

impl<'a> Stage<'a> {
    fn new(fixture: &'a dyn Fixture, check: &'a str, attempt: u32) -> Self {
        Self { fixture, check, attempt, came_again: AtomicBool::new(false) }
    }

    /// Notes that a record came again, which is what is wrong.
    fn again(&self, what: String) -> String {
        self.came_again.store(true, Ordering::Relaxed);
        what
    }

    /// Fails unless the records that were read are those that were `wanted`, after those of `before`.
    fn came(&self, seen: &Seen, wanted: &BTreeSet<Vec<u8>>, before: &BTreeSet<Vec<u8>>) -> Outcome {
        let came = groups::payloads(seen);
        if came == *wanted {
            return Ok(());
        }
        let what = format!("{} records, not the {} that were wanted", came.len(), wanted.len());
        // A record that came again has taken the place of another one, which was not waited for.
        let is_again = came.len() < seen.len() || !came.is_disjoint(before);
        Err(if is_again { self.again(what) } else { what })
    }

    fn topic(&self) -> String {
        format!("{}conformance-{}{}", self.fixture.prefix(), self.check.replace('_', "-"), self.nth())
    }

    fn group(&self, group: &str) -> String {
        format!("{}{group}{}", self.fixture.prefix(), self.nth())
    }

    /// What tells the names of a later attempt from those of the first.
    fn nth(&self) -> String {
        if self.attempt == 1 { String::new() } else { format!("-{}", self.attempt) }
    }

    fn patience(&self) -> Duration {
        self.fixture.patience()
    }

    /// Opens the broker, without a topic.
    async fn open(&self) -> Result<Arc<dyn Broker>, String> {
        self.fixture.open().await.map_err(said)
    }

    /// Opens the broker, and makes or grows the topic.
    async fn open_with(&self, partitions: u32) -> Result<Arc<dyn Broker>, String> {
        let broker = self.open().await?;
        self.ensure(&broker, partitions).await?;
        Ok(broker)
    }

    async fn ensure(&self, broker: &Arc<dyn Broker>, partitions: u32) -> Outcome {
        self.fixture.ensure(Arc::clone(broker), &self.topic(), partitions).await.map_err(said)
    }

    /// A producer of the topic, and where it reports.
    async fn producer(&self, broker: &Arc<dyn Broker>) -> Result<(Arc<dyn Producer>, Arc<Ledger>), String> {
        let ledger = Arc::new(Ledger::default());
        let (broker, topic, sink) = (Arc::clone(broker), self.topic(), Arc::clone(&ledger));
        let opened = tokio::task::spawn_blocking(move || broker.producer(&topic, sink)).await;
        Ok((opened.map_err(said)?.map_err(said)?, ledger))
    }

    /// Writes records `range`, the number both key and payload, and waits until all are stored.
    async fn write(&self, broker: &Arc<dyn Broker>, range: std::ops::Range<u64>) -> Outcome {
        let (producer, ledger) = self.producer(broker).await?;
        for number in range.clone() {
            self.send(&*producer, number, &number.to_be_bytes(), &number.to_be_bytes())?;
        }
        ensure!(close(producer, self.patience()).await? == 0, "records were left open");
        let reports = ledger.reports();
        for number in range {
            let report = reports.get(&Tag(number));
            ensure!(report == Some(&vec![Delivery::Stored]), "record {number} was reported {report:?}");
        }
        Ok(())
    }

    /// Sends one record, waiting while the buffer is full.
    fn send(&self, producer: &dyn Producer, tag: u64, key: &[u8], payload: &[u8]) -> Outcome {
        send_within(self.patience(), producer, tag, key, payload)
    }

    /// A new member of `group`.
    async fn consumer(&self, broker: &Arc<dyn Broker>, group: &str) -> Result<Box<dyn Consumer>, String> {
        broker.consumer(&self.topic(), &self.group(group)).await.map_err(said)
    }

    /// A new member of `group` that checks what it is brought.
    async fn reader(&self, broker: &Arc<dyn Broker>, group: &str) -> Result<Reader, String> {
        Ok(Reader::new(self.consumer(broker, group).await?))
    }

    /// A new member that owns all `partitions` already; with [`Acks::Each`], one that was given anything.
    async fn settled(&self, broker: &Arc<dyn Broker>, partitions: usize) -> Result<Reader, String> {
        let mut reader = self.reader(broker, "g").await?;
        let wanted = if reader.acks() == Acks::Prefix { partitions } else { 1 };
        let started = Instant::now();
        while reader.owned().len() < wanted {
            ensure!(started.elapsed() < self.patience(), "owns {:?} of {partitions}", reader.owned());
            let records = reader.poll(reader::fetch(0, Duration::from_millis(20))).await?;
            ensure!(records.is_empty(), "{} records where none were asked for", records.len());
        }
        Ok(reader)
    }

    /// Waits until the group lags by `records`: some brokers count with a delay.
    async fn lags(&self, broker: &Arc<dyn Broker>, group: &str, records: u64) -> Outcome {
        let started = Instant::now();
        loop {
            let lag = broker.lag(&self.topic(), &self.group(group)).await.map_err(said)?;
            if lag.records() == records {
                return Ok(());
            }
            if started.elapsed() >= self.patience() {
                let what = format!("lags by {lag:?}, not by {records}");
                return Err(if lag.records() > records { self.again(what) } else { what });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Fails if anything comes within the time that the fixture calls quiet.
    async fn stays_quiet(&self, reader: &mut Reader) -> Outcome {
        let started = Instant::now();
        while started.elapsed() < self.fixture.quiet() {
            let records = reader.poll(reader::fetch(16, Duration::from_millis(20))).await?;
            if !records.is_empty() {
                return Err(self.again(format!("{} records came again", records.len())));
            }
        }
        Ok(())
    }
}

/// A sink that remembers each report.
#[derive(Debug, Default)]
pub struct Ledger {
    reports: Mutex<BTreeMap<Tag, Vec<Delivery>>>,
}

impl Ledger {
    /// All reports by tag, in the order they came.
    pub fn reports(&self) -> BTreeMap<Tag, Vec<Delivery>> {
        self.reports.lock().clone()
    }
}

impl DeliverySink for Ledger {
    fn delivered(&self, tag: Tag, delivery: Delivery) {
        self.reports.lock().entry(tag).or_default().push(delivery);
    }
}

/// Fails the check with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

fn said<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}

fn send_within(patience: Duration, producer: &dyn Producer, tag: u64, key: &[u8], payload: &[u8]) -> Outcome {
    let started = Instant::now();
    loop {
        match producer.send(Tag(tag), OutRecord { key, payload }) {
            Ok(()) => return Ok(()),
            Err(SendRefused::Full) if started.elapsed() < patience => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(refused) => return Err(format!("record {tag}: {refused}")),
        }
    }
}

/// Closes off the async threads, as it blocks.
async fn close(producer: Arc<dyn Producer>, timeout: Duration) -> Result<usize, String> {
    tokio::task::spawn_blocking(move || producer.close(timeout)).await.map_err(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Has a reason to bring records again each time it is opened, which always fails.
    #[derive(Default)]
    struct Broken(AtomicU64);

    #[async_trait]
    impl Fixture for Broken {
        fn name(&self) -> &str {
            "broken"
        }

        fn reasons_to_repeat(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        async fn open(&self) -> Result<Arc<dyn Broker>, OpenError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(OpenError::Unavailable("it is away".into()))
        }
    }

    #[tokio::test]
    async fn a_reason_to_repeat_excuses_nothing_but_repeats() {
        let broken = Broken::default();
        assert!(run_one(&broken, "resumes").await.is_err());
        assert_eq!(broken.reasons_to_repeat(), 1, "it was run once");
    }
}
