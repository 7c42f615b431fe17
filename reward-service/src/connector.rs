//! The guard around each downstream system: concurrency limit, time-out and circuit breaker.

use crate::options::ConnectorOptions;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tracing::Instrument;
use windfall_contract::Clock;
use windfall_contract::breaker::{Breaker, Pass};
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};

const NS_PER_MS: u64 = 1_000_000;

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
            breaker: Mutex::new(Breaker::new(
                options.breaker_failures,
                options.breaker_open_ms.saturating_mul(NS_PER_MS),
            )),
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
        let now_ns = self.clock.monotonic_ns();
        if let Pass::OpenUntil(until_ns) = self.breaker.lock().ask(now_ns) {
            return PayAnswer::Busy { after_ms: until_ns.saturating_sub(now_ns).div_ceil(NS_PER_MS) };
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
            PayAnswer::Unknown => breaker.failed(self.clock.monotonic_ns()),
            _ => breaker.succeeded(),
        }
        answer
    }
}
