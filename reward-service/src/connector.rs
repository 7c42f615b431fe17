//! The guard around each downstream system: an adaptive limit of calls at once, time-out, breaker.
//!
//! A downstream that answers a few calls in time, but not as many as may be in flight, must not be driven into time-outs
//! for ever: each stall halves the limit, and answers raise it again. What was in flight together when it stalled is one
//! stall, not many.

use crate::options::ConnectorOptions;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::Instrument;
use windfall_contract::Clock;
use windfall_contract::breaker::{Breaker, Pass};
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};

const NS_PER_MS: u64 = 1_000_000;
/// Payments of a call begin within this time, so that the call ends no later than a time-out after it.
const BEGIN_WITHIN_NS: u64 = 1_000 * NS_PER_MS;

/// A connector behind its guard.
pub(crate) struct Downstream {
    connector: Arc<dyn Connector>,
    options: ConnectorOptions,
    permits: Semaphore,
    pressure: Mutex<Pressure>,
    clock: Clock,
}

/// How many calls at once the downstream has shown to take.
struct Pressure {
    breaker: Breaker,
    /// Calls at once, from 1 to the `concurrency` of the options.
    limit: usize,
    /// Answers since the limit was changed. As many as the limit raise it by one.
    answers: usize,
    /// Permits that are held beyond the limit: they are not given back.
    owed: usize,
    /// When the last stall was counted. Calls that began before belong to it.
    stalled_ns: Option<u64>,
}

/// The room of one call. It is left when the call ends, and when nobody waits for it any more.
struct Slot<'d> {
    downstream: &'d Downstream,
    permit: Option<SemaphorePermit<'d>>,
}

impl Downstream {
    pub fn new(connector: Arc<dyn Connector>, options: ConnectorOptions, clock: Clock) -> Self {
        let limit = options.concurrency.clamp(1, 10_000);
        let breaker =
            Breaker::new(options.breaker_failures, options.breaker_open_ms.saturating_mul(NS_PER_MS));
        Self {
            connector,
            options,
            permits: Semaphore::new(limit),
            pressure: Mutex::new(Pressure { breaker, limit, answers: 0, owed: 0, stalled_ns: None }),
            clock,
        }
    }

    pub fn concurrency(&self) -> usize {
        self.options.concurrency.clamp(1, 10_000)
    }

    pub const fn timeout_retry_ms(&self) -> u64 {
        self.options.timeout_retry_ms
    }

    /// When the payments of a call that begins now must have begun.
    pub fn begin_by_ns(&self) -> u64 {
        self.clock.monotonic_ns().saturating_add(BEGIN_WITHIN_NS)
    }

    /// Asks for one payment, if there is room by then and the breaker lets it.
    pub async fn pay(&self, order: PayOrder<'_>, begin_by_ns: u64) -> PayAnswer {
        let _slot = match self.enter(begin_by_ns).await {
            Ok(slot) => slot,
            Err(after_ms) => return PayAnswer::Busy { after_ms },
        };
        let began_ns = self.clock.monotonic_ns();
        if let Pass::OpenUntil(until_ns) = self.pressure.lock().breaker.ask(began_ns) {
            return PayAnswer::Busy { after_ms: until_ns.saturating_sub(began_ns).div_ceil(NS_PER_MS) };
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
        self.learn(&answer, began_ns);
        answer
    }

    /// Waits for room; where none comes in time, says after how many ms to come again.
    async fn enter(&self, begin_by_ns: u64) -> Result<Slot<'_>, u64> {
        // One probe at a time is in flight while the breaker is open, and nobody waits for it.
        if self.permits.available_permits() == 0 && self.pressure.lock().breaker.is_open() {
            return Err(self.options.breaker_open_ms);
        }
        let left_ns = begin_by_ns.saturating_sub(self.clock.monotonic_ns());
        if left_ns == 0 {
            return Err(self.options.timeout_retry_ms);
        }
        match tokio::time::timeout(Duration::from_nanos(left_ns), self.permits.acquire()).await {
            Ok(Ok(permit)) => Ok(Slot { downstream: self, permit: Some(permit) }),
            Ok(Err(_)) | Err(_) => Err(self.options.timeout_retry_ms),
        }
    }

    /// Takes in what the answer to a call says about the downstream.
    fn learn(&self, answer: &PayAnswer, began_ns: u64) {
        let now_ns = self.clock.monotonic_ns();
        let mut pressure = self.pressure.lock();
        match answer {
            PayAnswer::Unknown => pressure.stalled(&self.permits, began_ns, now_ns),
            // It is there, but it takes no more than it is given.
            PayAnswer::Busy { .. } => pressure.breaker.succeeded(),
            _ => pressure.answered(&self.permits, self.concurrency()),
        }
    }
}

impl Pressure {
    fn answered(&mut self, permits: &Semaphore, most: usize) {
        self.breaker.succeeded();
        self.answers += 1;
        if self.limit < most && self.answers >= self.limit {
            (self.limit, self.answers) = (self.limit + 1, 0);
            if self.owed > 0 {
                self.owed -= 1;
            } else {
                permits.add_permits(1);
            }
        }
    }

    /// A call was not answered. One that began before the last stall was counted belongs to it.
    fn stalled(&mut self, permits: &Semaphore, began_ns: u64, now_ns: u64) {
        if self.stalled_ns.is_some_and(|stalled_ns| began_ns < stalled_ns) {
            return;
        }
        self.stalled_ns = Some(now_ns);
        self.breaker.failed(now_ns);
        let limit = if self.breaker.is_open() { 1 } else { (self.limit / 2).max(1) };
        let fewer = self.limit - limit;
        self.owed += fewer - permits.forget_permits(fewer);
        (self.limit, self.answers) = (limit, 0);
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut pressure = self.downstream.pressure.lock();
        if pressure.owed > 0
            && let Some(permit) = self.permit.take()
        {
            pressure.owed -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use futures_util::stream::{self, StreamExt};
    use std::collections::BTreeSet;
    use tokio::time::{Instant, sleep};

    /// One server that takes 50 ms for a payment. It works off what it was asked for, whether its caller waits or not.
    struct OneServer {
        free_at: Mutex<Instant>,
        paid: Arc<Mutex<BTreeSet<String>>>,
    }

    #[async_trait]
    impl Connector for OneServer {
        fn name(&self) -> &str {
            "one server"
        }

        async fn pay(&self, order: PayOrder<'_>) -> PayAnswer {
            let ends_at = {
                let mut free_at = self.free_at.lock();
                *free_at = (*free_at).max(Instant::now()) + Duration::from_millis(50);
                *free_at
            };
            let (paid, trade_no) = (Arc::clone(&self.paid), order.trade_no.to_owned());
            let work = tokio::spawn(async move {
                tokio::time::sleep_until(ends_at).await;
                paid.lock().insert(trade_no)
            });
            match work.await {
                Ok(true) => PayAnswer::Paid,
                _ => PayAnswer::AlreadyPaid,
            }
        }
    }

    /// Never answers.
    struct Hangs;

    #[async_trait]
    impl Connector for Hangs {
        fn name(&self) -> &str {
            "hangs"
        }

        async fn pay(&self, _order: PayOrder<'_>) -> PayAnswer {
            std::future::pending().await
        }
    }

    fn downstream(connector: Arc<dyn Connector>, options: ConnectorOptions) -> Downstream {
        let start = Instant::now();
        let clock = Clock::from_sources(move || u64::try_from(start.elapsed().as_nanos()).unwrap(), || 1_000);
        Downstream::new(connector, options, clock)
    }

    fn order(trade_no: &str) -> PayOrder<'_> {
        PayOrder { trade_no, user_id: 7, activity: "a", scene: "s", bonus_type: "gift", amount: 1 }
    }

    /// A call asks for its orders as the service does; answers those that are not decided, and the longest wait.
    async fn call(downstream: &Downstream, orders: Vec<String>) -> (Vec<String>, u64) {
        let begin_by_ns = downstream.begin_by_ns();
        let asked = orders.into_iter().map(|trade_no| async move {
            let answer = downstream.pay(order(&trade_no), begin_by_ns).await;
            (trade_no, answer)
        });
        let answers: Vec<_> = stream::iter(asked).buffer_unordered(downstream.concurrency()).collect().await;
        let mut wait_ms = 0;
        let open = answers.into_iter().filter_map(|(trade_no, answer)| {
            match answer {
                PayAnswer::Paid | PayAnswer::AlreadyPaid => return None,
                PayAnswer::Busy { after_ms } => wait_ms = wait_ms.max(after_ms),
                _ => wait_ms = wait_ms.max(downstream.timeout_retry_ms()),
            }
            Some(trade_no)
        });
        (open.collect(), wait_ms)
    }

    #[tokio::test(start_paused = true)]
    async fn a_downstream_that_takes_fewer_than_the_concurrency_is_not_driven_into_time_outs() {
        let server = OneServer { free_at: Mutex::new(Instant::now()), paid: Arc::default() };
        let options = ConnectorOptions { concurrency: 16, timeout_ms: 600, ..ConnectorOptions::default() };
        let downstream = downstream(Arc::new(server), options);
        let began = Instant::now();
        // Eight callers share the backlog, each with calls of 32.
        let callers = (0..8).map(|caller| {
            let downstream = &downstream;
            async move {
                let mut open: Vec<String> = (0..250).map(|nth| format!("{caller}/{nth}")).collect();
                while !open.is_empty() {
                    let rest = open.split_off(open.len().min(32));
                    let asked = Instant::now();
                    let (undecided, wait_ms) = call(downstream, open).await;
                    let took = asked.elapsed();
                    assert!(took <= Duration::from_millis(1_600), "a call took {took:?}");
                    open = rest;
                    open.extend(undecided);
                    sleep(Duration::from_millis(wait_ms.max(5))).await;
                }
            }
        });
        futures_util::future::join_all(callers).await;
        let took = began.elapsed();
        println!("2,000 payments in {took:?}");
        assert!(took <= Duration::from_secs(200), "fewer than 10 of 20 payments a second: {took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_stall_halves_the_limit_once_and_does_not_open_the_breaker() {
        let options = ConnectorOptions { concurrency: 16, timeout_ms: 600, ..ConnectorOptions::default() };
        let downstream = downstream(Arc::new(Hangs), options);
        let orders = |count: usize| (0..count).map(|nth| nth.to_string()).collect();
        let at = |downstream: &Downstream| {
            let pressure = downstream.pressure.lock();
            (pressure.limit, pressure.owed, downstream.permits.available_permits())
        };
        call(&downstream, orders(16)).await;
        assert_eq!(at(&downstream), (8, 0, 8), "sixteen time-outs of one stall");
        assert!(!downstream.pressure.lock().breaker.is_open());
        // Given up by its caller, a call leaves its room.
        let asked = tokio::time::timeout(Duration::from_millis(100), call(&downstream, orders(8))).await;
        assert!(asked.is_err());
        assert_eq!(at(&downstream), (8, 0, 8));
        for _ in 0..20 {
            call(&downstream, orders(16)).await;
        }
        assert!(downstream.pressure.lock().breaker.is_open(), "stall after stall");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(at(&downstream), (1, 0, 1), "after an open phase it starts with one call");
        let permits = &downstream.permits;
        let mut pressure = downstream.pressure.lock();
        (0..136).for_each(|_| pressure.answered(permits, 16));
        assert_eq!((pressure.limit, permits.available_permits()), (16, 16), "answers raise it again");
    }
}
