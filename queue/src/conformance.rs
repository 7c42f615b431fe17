//! What every driver has to show: each sentence of [`contract`](crate::contract), as a check.
//!
//! A driver's tests make a [`Fixture`] and call [`run`]; each check opens the broker anew and uses a topic of its
//! own, so a fixture may keep one directory, or one cluster, for all of them.

mod consuming;
mod groups;
mod producing;
mod reader;

pub use self::reader::{Reader, Seen};

use crate::contract::{Broker, Delivery, DeliverySink, OpenError, OutRecord, Producer, SendRefused, Tag};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is wrong.
pub type Outcome = Result<(), String>;

/// How long a check waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A broker under test.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Names the driver in messages.
    fn name(&self) -> &str;

    /// Opens the broker; again after all handles of the last were dropped, with the same data.
    ///
    /// # Errors
    /// What the driver says; it fails the check.
    async fn open(&self) -> Result<Arc<dyn Broker>, OpenError>;

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
pub type Check = (&'static str, for<'a> fn(&'a dyn Fixture, &'a str) -> BoxFuture<'a, Outcome>);

/// All checks.
pub const CHECKS: &[Check] = &[
    ("reports_once", |fixture, topic| Box::pin(producing::reports_once(fixture, topic))),
    ("close_accounts", |fixture, topic| Box::pin(producing::close_accounts(fixture, topic))),
    ("sizes", |fixture, topic| Box::pin(producing::sizes(fixture, topic))),
    ("order_by_key", |fixture, topic| Box::pin(producing::order_by_key(fixture, topic))),
    ("names", |fixture, topic| Box::pin(producing::names(fixture, topic))),
    ("limits_of_a_poll", |fixture, topic| Box::pin(consuming::limits_of_a_poll(fixture, topic))),
    ("waits_and_wakes", |fixture, topic| Box::pin(consuming::waits_and_wakes(fixture, topic))),
    ("cancelled_polls", |fixture, topic| Box::pin(consuming::cancelled_polls(fixture, topic))),
    ("pauses", |fixture, topic| Box::pin(consuming::pauses(fixture, topic))),
    ("groups_apart", |fixture, topic| Box::pin(consuming::groups_apart(fixture, topic))),
    ("lag_counts", |fixture, topic| Box::pin(consuming::lag_counts(fixture, topic))),
    ("resumes", |fixture, topic| Box::pin(groups::resumes(fixture, topic))),
    ("survives_restart", |fixture, topic| Box::pin(groups::survives_restart(fixture, topic))),
    ("survives_crash", |fixture, topic| Box::pin(groups::survives_crash(fixture, topic))),
    ("fences", |fixture, topic| Box::pin(groups::fences(fixture, topic))),
    ("rebalances", |fixture, topic| Box::pin(groups::rebalances(fixture, topic))),
    ("grows", |fixture, topic| Box::pin(groups::grows(fixture, topic))),
];

/// Runs all checks, and returns the failed ones with what was wrong.
pub async fn run(fixture: &dyn Fixture) -> Vec<(&'static str, String)> {
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        let topic = format!("conformance-{name}");
        if let Err(what) = check(fixture, &topic).await {
            failed.push((*name, format!("{}: {what}", fixture.name())));
        }
    }
    failed
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

/// Sends one record, waiting while the buffer is full.
fn send(producer: &dyn Producer, tag: u64, key: &[u8], payload: &[u8]) -> Outcome {
    let started = Instant::now();
    loop {
        match producer.send(Tag(tag), OutRecord { key, payload }) {
            Ok(()) => return Ok(()),
            Err(SendRefused::Full) if started.elapsed() < PATIENCE => {
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

/// Writes records `range`, the number both key and payload, and waits until all are stored.
async fn write(broker: &dyn Broker, topic: &str, range: std::ops::Range<u64>) -> Outcome {
    let ledger = Arc::new(Ledger::default());
    let producer = broker.producer(topic, ledger.clone()).map_err(said)?;
    for number in range.clone() {
        send(&*producer, number, &number.to_be_bytes(), &number.to_be_bytes())?;
    }
    ensure!(close(producer, PATIENCE).await? == 0, "records were left open");
    let reports = ledger.reports();
    for number in range {
        let report = reports.get(&Tag(number));
        ensure!(report == Some(&vec![Delivery::Stored]), "record {number} was reported {report:?}");
    }
    Ok(())
}
