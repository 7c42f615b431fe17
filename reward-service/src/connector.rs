//! The contract of downstream systems, and the guard around each: concurrency, time-out, breaker.

use crate::breaker::{Breaker, Pass};
use crate::options::{Clock, ConnectorOptions};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tracing::Instrument;

/// What a downstream is asked to pay. `trade_no` is the idempotency key: the same order may be asked for again
/// and again, and must be paid once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayOrder<'a> {
    /// The order number, the idempotency key.
    pub trade_no: &'a str,
    /// Who gets it.
    pub user_id: i64,
    /// The campaign.
    pub activity: &'a str,
    /// The place in it.
    pub scene: &'a str,
    /// The bonus type.
    pub bonus_type: &'a str,
    /// In the smallest unit.
    pub amount: i64,
}

/// What a downstream answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayAnswer {
    /// Paid by this call, durably.
    Paid,
    /// Paid by an earlier call with the same key.
    AlreadyPaid,
    /// Over its rate: come again. Not the order's fault, never counted against it.
    Busy {
        /// The least wait.
        after_ms: u64,
    },
    /// It failed and certainly has not paid: come again.
    Retry {
        /// The least wait.
        after_ms: u64,
    },
    /// It will never pay this order, and has not.
    Refused(String),
    /// Paid or not, nobody knows: ask again with the same key.
    Unknown,
}

/// A downstream system that pays a kind of bonus.
#[async_trait]
pub trait Connector: Send + Sync {
    /// Its name in options and logs.
    fn name(&self) -> &str;

    /// Asks for one payment. Dropped before it answers, its outcome is unknown.
    async fn pay(&self, order: PayOrder<'_>) -> PayAnswer;
}

/// A connector behind its guard.
pub(crate) struct Downstream {
    connector: Arc<dyn Connector>,
    options: ConnectorOptions,
    permits: Semaphore,
    breaker: Mutex<Breaker>,
    clock: Clock,
}

impl Downstream {
    pub fn new(connector: Arc<dyn Connector>, options: ConnectorOptions, clock: Clock) -> Self {
        Self {
            connector,
            options,
            permits: Semaphore::new(options.concurrency.clamp(1, 10_000)),
            breaker: Mutex::new(Breaker::new(options.breaker_failures, options.breaker_open_ms)),
            clock,
        }
    }

    pub fn concurrency(&self) -> usize {
        self.options.concurrency.clamp(1, 10_000)
    }

    pub const fn timeout_retry_ms(&self) -> u64 {
        self.options.timeout_retry_ms
    }

    /// Asks for one payment, if there is room and the breaker lets it.
    pub async fn pay(&self, order: PayOrder<'_>) -> PayAnswer {
        let Ok(_permit) = self.permits.acquire().await else {
            return PayAnswer::Busy { after_ms: self.options.timeout_retry_ms };
        };
        if let Pass::Wait(after_ms) = self.breaker.lock().ask((self.clock)()) {
            return PayAnswer::Busy { after_ms };
        }
        let timeout = Duration::from_millis(self.options.timeout_ms);
        let span = tracing::info_span!(
            "pay",
            otel.kind = "client",
            connector = self.connector.name(),
            order.trade_no
        );
        let answer = match tokio::time::timeout(timeout, self.connector.pay(order)).instrument(span).await {
            Ok(answer) => answer,
            Err(_) => {
                tracing::debug!(connector = self.connector.name(), order.trade_no, "no answer in time");
                PayAnswer::Unknown
            }
        };
        let mut breaker = self.breaker.lock();
        match answer {
            PayAnswer::Unknown => breaker.unanswered((self.clock)()),
            _ => breaker.answered(),
        }
        answer
    }
}
