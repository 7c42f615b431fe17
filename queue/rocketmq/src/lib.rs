//! The driver of RocketMQ 5, by its gRPC protocol (`windfall-rocketmq-wire`).
//!
//! Each record is acknowledged by itself ([`Acks::Each`](windfall_contract::broker::Acks)): a received record is hidden
//! from the other members for `invisible_ms`, extended while polls come, acknowledged by `finish`, given back by
//! `close`.
//!
//! - [`RocketOptions`]: all that an operator may choose. `admin` matters: without the brokers' own ports no topic and
//!   no group is made, a new group may miss what was written before it, and there is no `lag`.
//! - `producer`, `pending`, `sender`: a bounded buffer, batches in flight, one report for each record. A time-out is
//!   `Unknown`.
//! - `member`, `tasks`, `held`, `consumer`: a consumer's records, as they are received ahead, extended, acknowledged
//!   and given back.
//! - `registry`: the shares of this process's consumers. There are no partitions to own: `instances` divides the
//!   group's limits, and the operator runs no more instances than that.
//! - `admin`: topics, groups, lag.
//!
//! What `lag` counts: records that no member has taken, and those that this process holds or has just given back. What
//! another process holds, or held when it died, is not seen until the server shows it again: nothing is on its way
//! only if the lag stays 0 for longer than `invisible_ms` and 6 s.
//!
//! The server moves a record to dead letters after so many redeliveries (16 by default). A group for which that is
//! fewer than a million is refused, and nothing is received while the proxy says so: nobody looks there, and rewards
//! would be lost.
//!
//! ```no_run
//! # async fn example() -> Result<(), windfall_contract::broker::OpenError> {
//! use windfall_contract::broker::Broker;
//! use windfall_queue_rocketmq::{RocketBroker, RocketOptions};
//!
//! let broker = RocketBroker::open(&RocketOptions {
//!     endpoints: vec!["127.0.0.1:8081".into()],
//!     admin: vec!["127.0.0.1:10911".into()],
//!     ..RocketOptions::default()
//! })?;
//! broker.ensure_topic("rewards", 8)?;
//! let consumer = broker.consumer("rewards", "grants").await?;
//! # Ok(())
//! # }
//! ```

mod admin;
mod consumer;
mod engine;
mod held;
mod member;
mod options;
mod payload;
mod pending;
mod producer;
mod registry;
mod sender;
mod tasks;

pub use self::options::{RocketOptions, Secret};
pub use windfall_tls::TlsOptions;

use self::admin::Admins;
use self::consumer::RocketConsumer;
use self::engine::Engine;
use self::member::Member;
use self::producer::RocketProducer;
use self::registry::{Place, Registry};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;
use windfall_contract::broker::{Broker, Consumer, DeliverySink, Lag, OpenError, Producer};
use windfall_rocketmq_wire::{Client, Role};

/// RocketMQ, behind one or more proxies.
pub struct RocketBroker {
    engine: Arc<Engine>,
    options: RocketOptions,
    admins: Admins,
    registry: Arc<Registry>,
    reasons_to_repeat: Arc<AtomicU64>,
}

impl RocketBroker {
    /// Checks the options and starts the driver's threads. Makes no connection: what is opened next does.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names the option that makes no sense.
    pub fn open(options: &RocketOptions) -> Result<Self, OpenError> {
        options.check()?;
        Ok(Self {
            engine: Arc::new(Engine::start(options.threads)?),
            admins: Admins::new(options),
            options: options.clone(),
            registry: Arc::default(),
            reasons_to_repeat: Arc::default(),
        })
    }

    /// How often its consumers had a reason to expect finished records again. A record was shown to others before it
    /// was finished. An extension was refused or had no answer. An acknowledgement was refused, or answered when the
    /// record was no longer hidden; one without an answer is sent again and does not count by itself. Or a return was refused
    /// or had no answer: the server may have made the new delivery and kept the old one, which comes when its hiding
    /// ends, perhaps after the next member has finished the record. The counter outlives the broker.
    pub fn reasons_to_repeat(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.reasons_to_repeat)
    }

    /// The server's name of a topic or a group.
    fn name(&self, kind: &str, name: &str, max: usize) -> Result<String, OpenError> {
        let full = format!("{}{name}", self.options.prefix);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'%' | b'|');
        if name.is_empty() || full.len() > max || !full.bytes().all(allowed) {
            let what = format!("{kind} {full:?}: RocketMQ takes 1 to {max} letters, digits, - _ % and |");
            return Err(OpenError::Invalid(what));
        }
        Ok(full)
    }

    fn place(&self, topic: &str, group: &str) -> Result<Place, OpenError> {
        Ok((self.name("topic", topic, 127)?, self.name("group", group, 120)?))
    }

    fn client(&self, role: Role) -> Result<Client, OpenError> {
        let _runtime = self.engine.handle().enter();
        Client::open(&self.options.client(), role).map_err(|error| OpenError::Invalid(error.to_string()))
    }
}

#[async_trait]
impl Broker for RocketBroker {
    fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<(), OpenError> {
        let topic = self.name("topic", topic, 127)?;
        let client = self.client(Role::Producer { topics: vec![topic.clone()] })?;
        let admins = self.admins.clone();
        self.engine.block_on(async move { admins.ensure_topic(&client, &topic, partitions).await })
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        let topic = self.name("topic", topic, 127)?;
        let client = self.client(Role::Producer { topics: vec![topic.clone()] })?;
        let (name, away) = (topic.clone(), self.options.connect_timeout());
        let client = self.engine.block_on(async move {
            admin::route_soon(&client, &name, away).await?;
            Ok(client)
        })?;
        let engine = Arc::clone(&self.engine);
        Ok(Arc::new(RocketProducer::start(engine, self.options.clone(), client, topic, sink)))
    }

    async fn consumer(&self, topic: &str, group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        let place = self.place(topic, group)?;
        let (wait, admins) = (2 * self.options.timeout(), self.admins.clone());
        let looking = self.client(Role::Producer { topics: vec![place.0.clone()] })?;
        let (ensured, away) = (place.clone(), self.options.connect_timeout());
        // First the group, then the client: the proxy remembers for a while that there was none.
        self.run(async move {
            admin::route_soon(&looking, &ensured.0, away).await?;
            admins.ensure_group(&ensured).await
        })
        .await?;
        let (topic, group) = place.clone();
        let client = self.client(Role::Consumer { group: group.clone(), topics: vec![topic.clone()] })?;
        let made = !self.options.admin.is_empty();
        let client = self
            .run(async move {
                admin::check_group(&client, &group, wait, made).await?;
                Ok(client)
            })
            .await?;
        let seat = self.registry.sit(&place, self.options.instances);
        let reasons = Arc::clone(&self.reasons_to_repeat);
        let member = Member::new(client, self.options.clone(), topic, (seat.partition, seat.epoch), reasons);
        let member = Arc::new(member);
        seat.taken_by(&member);
        Ok(Box::new(RocketConsumer::start(Arc::clone(&self.engine), member, seat)))
    }

    async fn lag(&self, topic: &str, group: &str) -> Result<Lag, OpenError> {
        let place = self.place(topic, group)?;
        let (admins, asked) = (self.admins.clone(), place.clone());
        // Before and after: what is taken or finished in between counts once too often, not once too few.
        let before = self.registry.unfinished(&place, Instant::now());
        let mut lag = self.run(async move { admins.lag(&asked).await }).await?;
        let unfinished = before.max(self.registry.unfinished(&place, Instant::now()));
        lag.committed = lag.committed.saturating_sub(unfinished as u64);
        Ok(lag)
    }
}

impl RocketBroker {
    /// Runs a task on the driver's threads.
    async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, OpenError>> + Send + 'static,
    ) -> Result<T, OpenError> {
        let ended = self.engine.spawn(task).await;
        ended.unwrap_or_else(|died| Err(OpenError::Unavailable(died.to_string())))
    }
}
