//! The options of the service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use windfall_ledger::OrderId;

/// Called with the user id and the order's name of events that have just been credited, or were found to be, after that is
/// durable. It is called on the path of every grant, so it must not block.
pub type GrantObserver = Arc<dyn Fn(&[(i64, OrderId<'_>)]) + Send + Sync>;

/// Options of the reward service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewardOptions {
    /// The apps (`user.app_id`) whose events are granted; an event of another app is archived as `ForeignApp` and never
    /// credited. An event that names no app is the service's own. Default: empty, which takes any app.
    pub apps: BTreeSet<String>,
    /// The tenant whose users withdraw here. It is part of the key that the payer of a new withdrawal is given, so that two
    /// tenants can share a payer; those that are held keep their keys. Default: empty.
    pub tenant: String,
    /// The number of events in one transaction at most, 1 to 65,536. The default depends on the ledger: 8,192 in a
    /// file, where the cost of a commit and of the accounts' pages is shared by so many, 1,000 on PostgreSQL, where
    /// others wait for what a transaction holds.
    pub batch_events_max: Option<usize>,
    /// The number of threads that write, each on a connection of its own, 1 to 64. The default depends on the ledger: 1
    /// in a file,
    /// which has one writer, 3 on PostgreSQL, so that one computes while another waits for the disk.
    pub writers: Option<usize>,
    /// The number of events that wait for the writer at most, 1 to 1,000,000. Default 65,536. When full, calls answer
    /// `Busy`.
    pub queue_events_max: usize,
    /// The bytes of events that wait for the writer at most. Default 32 MiB. When full, calls answer `Busy`.
    pub queue_bytes_max: usize,
    /// The least wait that `Busy` and `StoreUnavailable` ask for, in ms. Default 20.
    pub busy_retry_ms: u64,
    /// The payer of a type that `pays` does not name. Default: the ledger.
    pub default_pays: Payer,
    /// The payer of each type.
    pub pays: BTreeMap<String, Payer>,
    /// The payer of withdrawals. The ledger: a front end pays them out elsewhere, and acknowledges each. A connector is asked with the key `withdrawal TENANT
    /// USER ID`, with neither activity nor scene; one that was held before schema version 6 with `withdrawal ID`. Only types that the ledger pays can be withdrawn: what a
    /// connector pays has been paid out already. A held withdrawal is asked of the payer that it was held for, even if
    /// this option has changed since. Default: the ledger.
    pub payout: Payer,
    /// Options of connectors by name; those not named have the defaults.
    pub connectors: BTreeMap<String, ConnectorOptions>,
    /// Whether the ledger goes on crediting while it does not hold its mark, because it went back in time: a person may
    /// accept it later or bring another server back, and then these credits stay or are lost with it. Payouts are
    /// stopped all the same. Default false: events wait in their queues.
    pub grant_when_ledger_went_back: bool,
    /// The number of threads that only read, each on a connection of its own, 1 to 16. Default 2.
    pub readers: usize,
    /// The number of reads that wait at most, 1 to 1,000,000. Default 1,024. When full, calls are told to come again.
    pub reads_max: usize,
}

impl Default for RewardOptions {
    fn default() -> Self {
        Self {
            apps: BTreeSet::new(),
            tenant: String::new(),
            batch_events_max: None,
            writers: None,
            queue_events_max: 65_536,
            queue_bytes_max: 32 << 20,
            busy_retry_ms: 20,
            default_pays: Payer::Ledger,
            pays: BTreeMap::new(),
            payout: Payer::Ledger,
            connectors: BTreeMap::new(),
            grant_when_ledger_went_back: false,
            readers: 2,
            reads_max: 1_024,
        }
    }
}

/// The payer of a bonus type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payer {
    /// The ledger itself: credited in the transaction that records the order.
    Ledger,
    /// The connector of this name.
    Connector(String),
    /// There is no payer: the type's events are rejected as `UnknownType`.
    Nobody,
}

/// Options of one connector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectorOptions {
    /// The number of calls at once, 1 to 10,000. Default 64. While calls time out it is lower, down to one; calls that are
    /// answered raise it again.
    pub concurrency: usize,
    /// The time without an answer after which a call's outcome is unknown, in ms, 1 to 600,000. Default 1,000.
    pub timeout_ms: u64,
    /// The least wait that a time-out asks for, in ms. Default 50.
    pub timeout_retry_ms: u64,
    /// The number of unknown answers in a row that open the breaker, at least 1. Default 16. Those of calls that were in
    /// flight together count once.
    pub breaker_failures: u32,
    /// The time after which an open breaker lets one call through, in ms. Default 500.
    pub breaker_open_ms: u64,
}

impl Default for ConnectorOptions {
    fn default() -> Self {
        Self {
            concurrency: 64,
            timeout_ms: 1_000,
            timeout_retry_ms: 50,
            breaker_failures: 16,
            breaker_open_ms: 500,
        }
    }
}
