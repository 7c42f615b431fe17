//! A topic of a broker.

use super::deliveries::Deliveries;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;
use windfall_contract::Clock;
use windfall_contract::broker::{
    Broker, Delivery, DeliverySink, OpenError, OutRecord, Producer, SendRefused, Tag,
};
use windfall_contract::due::{Fired, Firing, Target};

/// Between two attempts to open a topic.
const OPEN_AGAIN_NS: u64 = 1_000_000_000;

/// Which topic, and how long it is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicOptions {
    /// The topic's name.
    pub topic: String,
    /// The partitions that it has at least; it is made where it is missing.
    pub partitions: u32,
    /// A record without an answer after so long is tried again.
    pub timeout_ms: u64,
    /// What happens where the topic may lose records that it has stored.
    pub checks: TopicChecks,
    /// Whether id, due time and attempt stand in headers beside the record, too.
    pub headers: bool,
}

/// What happens where a topic's settings may lose records that were reported stored: too few replicas, a record that is
/// acknowledged by one of them alone, an unclean election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopicChecks {
    /// Nobody looks.
    Off,
    /// It is said.
    #[default]
    Warn,
    /// The topic is not written to, and its timers wait.
    Refuse,
}

/// Writes timers to a topic: the record's value is a [`FiredTimer`](windfall_proto::v1::FiredTimer), its key the timer's
/// key or, where it has none, its id.
///
/// A timer is [`Fired::Done`] when the broker has stored its record. A record that the broker did not store, or of which
/// nobody knows, is tried again, with the same id; that counts as an attempt only if the topic stored others meanwhile,
/// so that no timer is given up because a broker is away. The topic is opened when it is first needed.
pub struct TopicTarget {
    broker: Arc<dyn Broker>,
    options: TopicOptions,
    deliveries: Arc<Deliveries>,
    producer: OnceCell<Arc<dyn Producer>>,
    /// When opening failed last, and why.
    failed: Mutex<Option<(u64, String)>>,
    clock: Clock,
}

impl TopicTarget {
    /// Its options.
    pub const fn options(&self) -> &TopicOptions {
        &self.options
    }

    /// Makes the topic where it is missing, and looks what may lose records that it has stored. Nothing, where the
    /// options do not ask.
    ///
    /// # Errors
    /// The topic cannot be looked at now, with the reason.
    pub async fn hazards(&self) -> Result<Vec<String>, String> {
        if self.options.checks == TopicChecks::Off {
            return Ok(Vec::new());
        }
        let (broker, options) = (Arc::clone(&self.broker), self.options.clone());
        self.blocking("looked at", move || {
            broker.ensure_topic(&options.topic, options.partitions)?;
            broker.hazards(&options.topic)
        })
        .await
    }

    /// A target on a topic of this broker. Connects to nothing yet.
    pub fn new(broker: Arc<dyn Broker>, options: TopicOptions, clock: Clock) -> Self {
        Self {
            broker,
            options,
            deliveries: Arc::default(),
            producer: OnceCell::new(),
            failed: Mutex::new(None),
            clock,
        }
    }

    /// Closes the producer, after the dispatcher: waits at most `timeout` for what is in flight. Records that are still
    /// open then fire again, as their timers are not noted as over.
    pub async fn close(&self, timeout: Duration) {
        let Some(producer) = self.producer.get().map(Arc::clone) else { return };
        let closing = tokio::task::spawn_blocking(move || producer.close(timeout)).await;
        match closing {
            Ok(0) => {}
            Ok(open) => tracing::warn!(topic = self.options.topic, open, "records had no answer at the end"),
            Err(error) => tracing::error!(topic = self.options.topic, %error, "closing a topic has panicked"),
        }
    }

    /// The producer, opened if need be, and if the last attempt is not too near.
    async fn producer(&self) -> Result<&Arc<dyn Producer>, String> {
        let opening = self.producer.get_or_try_init(|| async {
            let now_ns = self.clock.monotonic_ns();
            if let Some((failed_ns, why)) = &*self.failed.lock()
                && now_ns.saturating_sub(*failed_ns) < OPEN_AGAIN_NS
            {
                return Err(why.clone());
            }
            let opened = self.open().await;
            if let Err(why) = &opened {
                *self.failed.lock() = Some((self.clock.monotonic_ns(), why.clone()));
            }
            opened
        });
        opening.await
    }

    async fn open(&self) -> Result<Arc<dyn Producer>, String> {
        if self.options.checks == TopicChecks::Refuse {
            let hazards = self.hazards().await?;
            if !hazards.is_empty() {
                return Err(refusal(&self.options.topic, &hazards));
            }
        }
        let (broker, options) = (Arc::clone(&self.broker), self.options.clone());
        let sink = Arc::clone(&self.deliveries) as Arc<dyn DeliverySink>;
        self.blocking("opened", move || {
            broker.ensure_topic(&options.topic, options.partitions)?;
            broker.producer(&options.topic, sink)
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
    ) -> Result<T, String> {
        let topic = &self.options.topic;
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(format!("the topic {topic} cannot be {what}: {error}")),
            Err(error) => Err(format!("the topic {topic} was being {what}, and that has panicked: {error}")),
        }
    }
}

#[async_trait]
impl Target for TopicTarget {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let producer = match self.producer().await {
            Ok(producer) => producer,
            Err(why) => return vec![Fired::Away(why); batch.len()],
        };
        let stored_before = self.deliveries.stored();
        let in_flight = self.deliveries.begin(batch.len());
        let mut refused: Vec<Option<Fired>> = vec![None; batch.len()];
        let mut is_full = None;
        let mut value = Vec::new();
        for (nth, firing) in batch.iter().enumerate() {
            let sent = match &is_full {
                Some(outcome) => Err(Fired::clone(outcome)),
                None => {
                    value.clear();
                    firing.encode_to(&mut value);
                    let id = firing.id.text();
                    let key = firing.key.as_ref().map_or(id.as_bytes(), |key| key.as_bytes());
                    let (tag, record) = (in_flight.tag(nth), OutRecord { key, payload: &value });
                    match self.options.headers {
                        true => send_with_headers(&**producer, tag, record, firing, id.as_bytes()),
                        false => producer.send(tag, record),
                    }
                    .map_err(outcome_of)
                }
            };
            if let Err(outcome) = sent {
                if matches!(outcome, Fired::Busy(_)) {
                    // The next one would be told the same.
                    is_full.get_or_insert_with(|| outcome.clone());
                }
                in_flight.not_sent(nth);
                refused[nth] = Some(outcome);
            }
        }
        let timeout = Duration::from_millis(self.options.timeout_ms);
        // Whatever was not reported by then is unknown.
        tokio::time::timeout(timeout, in_flight.all()).await.ok();
        let deliveries = in_flight.take();
        let stores = self.deliveries.stored() > stored_before;
        let not_stored = |why: String| if stores { Fired::Failed(why) } else { Fired::Away(why) };
        let outcomes =
            refused.into_iter().zip(deliveries).map(|(refused, delivery)| match (refused, delivery) {
                (Some(outcome), _) => outcome,
                (None, Some(Delivery::Stored)) => Fired::Done,
                (None, Some(Delivery::Failed(why) | Delivery::Unknown(why))) => not_stored(why),
                (None, None) => {
                    not_stored(format!("the broker has not answered within {} ms", self.options.timeout_ms))
                }
            });
        outcomes.collect()
    }
}

fn send_with_headers(
    producer: &dyn Producer,
    tag: Tag,
    record: OutRecord<'_>,
    firing: &Firing,
    id: &[u8],
) -> Result<(), SendRefused> {
    let (due_ms, attempt) = (firing.due_ms.to_string(), firing.attempt.to_string());
    let headers = [
        ("windfall-timer-id", id),
        ("windfall-timer-due-ms", due_ms.as_bytes()),
        ("windfall-timer-attempt", attempt.as_bytes()),
    ];
    producer.send_with_headers(tag, record, &headers)
}

/// Why a topic is not written to.
pub fn refusal(topic: &str, hazards: &[String]) -> String {
    format!(
        "the topic {topic} is refused, for it may lose what it has stored: {}; correct it, or set checks = \"warn\"",
        hazards.join("; ")
    )
}

/// What a refused record means for its timer.
fn outcome_of(refused: SendRefused) -> Fired {
    let what = refused.to_string();
    match refused {
        SendRefused::TooLarge { .. } => Fired::Refused(what),
        SendRefused::Full | SendRefused::Unavailable(_) | SendRefused::Closed => Fired::Busy(what),
    }
}
