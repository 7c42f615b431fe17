//! Starts the service: its threads and its downstreams.

use crate::claims::InFlightTable;
use crate::connector::Downstream;
use crate::handle::{Inner, RewardHandle};
use crate::inbox::{Inbox, Weight};
use crate::options::{GrantObserver, Payer, RewardOptions};
use crate::reading;
use crate::stats::Counters;
use crate::writer::Writer;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use windfall_contract::Clock;
use windfall_contract::connector::Connector;
use windfall_ledger::{FRONT_END, Ledger, OpenError, Writers};

/// The service could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A type names a connector that is not there: correct the options.
    #[error("type {bonus_type} is paid by connector {connector}, which is not there")]
    UnknownConnector {
        /// The type.
        bonus_type: String,
        /// The name that was not found.
        connector: String,
    },
    /// A connector has the name that the ledger notes for front ends: rename it.
    #[error(
        "a connector must not be called {FRONT_END:?}, which the ledger notes for withdrawals that a front end pays out"
    )]
    ReservedName,
    /// The ledger gave no connection for another writer: correct it, or ask for fewer writers.
    #[error("the ledger takes no further writer: {0}")]
    Ledger(#[from] OpenError),
    /// The operating system gave no thread.
    #[error("a writer's thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Starts reward services.
#[derive(Debug)]
pub struct RewardService;

impl RewardService {
    /// Starts the writers' threads, which own the ledger until the handle is closed. `observer` is told of every
    /// credit.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        options: RewardOptions,
        ledger: Ledger,
        connectors: Vec<Arc<dyn Connector>>,
        observer: Option<GrantObserver>,
        clock: Clock,
    ) -> Result<RewardHandle, StartError> {
        let downstreams: BTreeMap<String, Arc<Downstream>> = connectors
            .into_iter()
            .map(|connector| {
                let name = connector.name().to_owned();
                let own = options.connectors.get(&name).copied().unwrap_or_default();
                (name, Arc::new(Downstream::new(connector, own, clock.clone())))
            })
            .collect();
        if downstreams.contains_key(FRONT_END) {
            return Err(StartError::ReservedName);
        }
        let named = options.pays.iter().map(|(name, payer)| (name.as_str(), payer));
        let others = [("(default)", &options.default_pays), ("(withdrawals)", &options.payout)];
        for (bonus_type, payer) in named.chain(others) {
            if let Payer::Connector(connector) = payer
                && !downstreams.contains_key(connector)
            {
                let (bonus_type, connector) = (bonus_type.to_owned(), connector.clone());
                return Err(StartError::UnknownConnector { bonus_type, connector });
            }
        }
        let max = Weight { events: options.queue_events_max, bytes: options.queue_bytes_max };
        let inbox = Arc::new(Inbox::new(max));
        let counters = Arc::new(Counters::default());
        let guard = ledger.guard();
        // All connections before the first thread: a start that fails leaves nothing behind.
        let (writers, batch_events) = suits(ledger.writers());
        let more = options.writers.unwrap_or(writers).clamp(1, 64) - 1;
        let readers =
            (0..options.readers.clamp(1, 16)).map(|_| ledger.reader()).collect::<Result<Vec<_>, _>>()?;
        let reads = Weight { events: options.reads_max.clamp(1, 1_000_000), bytes: 0 };
        let mut ledgers = (0..more).map(|_| ledger.another()).collect::<Result<Vec<_>, _>>()?;
        ledgers.push(ledger);
        let mut inner = Inner {
            inbox,
            downstreams,
            counters,
            in_flight: InFlightTable::default(),
            fence: Arc::default(),
            guard,
            mark_failures: AtomicU64::new(0),
            compared_ns: AtomicU64::new(clock.monotonic_ns()),
            clock,
            reads: Arc::new(Inbox::new(reads)),
            reading: Mutex::default(),
            #[cfg(feature = "rpc")]
            walk: Arc::new(tokio::sync::Semaphore::new(1)),
            carry: Arc::new(tokio::sync::Semaphore::new(1)),
            threads: Mutex::default(),
            options,
        };
        for reader in readers {
            let thread = reading::start(reader, Arc::clone(&inner.reads))?;
            inner.reading.get_mut().push(thread);
        }
        let apps = Arc::new(inner.options.apps.clone());
        let tenant: Arc<str> = Arc::from(inner.options.tenant.as_str());
        for ledger in ledgers {
            let writer = Writer {
                ledger,
                inbox: Arc::clone(&inner.inbox),
                batch_events_max: inner.options.batch_events_max.unwrap_or(batch_events).clamp(1, 65_536),
                apps: Arc::clone(&apps),
                tenant: Arc::clone(&tenant),
                fence: Arc::clone(&inner.fence),
                guard: inner.guard.clone(),
                grant_when_back: inner.options.grant_when_ledger_went_back,
                observer: observer.clone(),
                counters: Arc::clone(&inner.counters),
                clock: inner.clock.clone(),
            };
            let thread =
                std::thread::Builder::new().name("ledger-writer".into()).spawn(move || writer.run())?;
            inner.threads.get_mut().push(thread);
        }
        Ok(RewardHandle { inner: Arc::new(inner), fuses: None, verifier: None })
    }
}

/// The number of writers, and of events per transaction, that suit a ledger.
const fn suits(writers: Writers) -> (usize, usize) {
    match writers {
        Writers::One => (1, 8_192),
        Writers::Many => (3, 1_000),
    }
}
