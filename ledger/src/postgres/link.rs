//! A connection that is made again when it was lost, with pauses that grow.

use super::options::PostgresOptions;
use super::session::Session;
use super::{failover, position, schema};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// A writer compares its own connection anew before a transaction, when it was compared longer ago than this: of two
/// servers behind one address, another connection's look says nothing.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where a ledger is and how it is reached.
#[derive(Clone)]
pub(crate) struct Address {
    pub config: Config,
    pub options: PostgresOptions,
    /// The name of the place in errors, without a password.
    pub place: String,
    /// Whether the tables are those that this build writes, for all connections that were made from this address. Until
    /// then no connection is handed out.
    opened: Arc<AtomicBool>,
    /// Whether it was logged that the tables are no ledger of Windfall, or that the server refuses this client.
    told: Arc<AtomicBool>,
    /// Compares every connection with the ledger's marks.
    pub guard: Option<Arc<Guard>>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

impl Address {
    pub fn new(url: &str, options: &PostgresOptions) -> Result<Self, OpenError> {
        options.check()?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            // The address itself may hold a password: it is not repeated.
            OpenError::Invalid(format!(
                "the PostgreSQL address is not understood: {why}; write postgres://user:password@host:port/database"
            ))
        })?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(OpenError::Invalid(
                "sslmode=require: this build speaks to PostgreSQL without TLS; use a local TLS proxy or socket"
                    .into(),
            ));
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(OpenError::Invalid("the PostgreSQL address names no host".into()));
        }
        let answer = options.answer_timeout();
        config
            .connect_timeout(Duration::from_millis(options.connect_timeout_ms))
            .tcp_user_timeout(answer)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        if config.get_application_name().is_none() {
            config.application_name("windfall-ledger");
        }
        let place = place(&config, &options.schema);
        let (opened, told) = (Arc::default(), Arc::default());
        Ok(Self { config, options: options.clone(), place, opened, told, guard: None })
    }

    /// The name of the ledger whatever server it is on: its database and its schema.
    pub fn ledger_name(&self) -> String {
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("{database}/{}", self.options.schema)
    }

    /// Connects. The first connection of all brings the tables up to date, or refuses them. A connection that only reads
    /// does not write anything else: it is ready also where a commit waits or fails.
    fn connect(&self, purpose: Purpose) -> Result<Session, OpenError> {
        let session = Session::open(&self.config, &self.place, &self.options, false)?;
        let is_first = !self.opened.load(Acquire);
        let is_unmarked = self.guard.as_ref().is_some_and(|guard| guard.is_unmarked());
        let is_new = is_first && (is_unmarked || schema::is_missing(&session, self)?);
        failover::check(&session, self, is_new)?;
        let writes = purpose == Purpose::Write;
        if writes {
            failover::check_waiting(&session, self)?;
        }
        if is_first {
            schema::migrate(&session, self)?;
            self.opened.store(true, Release);
        }
        if let Some(guard) = &self.guard {
            let compared = match writes {
                true => position::follow(&session, guard, &self.options.schema).map(drop),
                false => position::look(&session, guard).map(drop),
            };
            compared.map_err(|error| schema::refused(&self.place, error))?;
        }
        self.told.store(false, Release);
        Ok(session)
    }

    /// Logs once an error that does not pass by itself.
    fn tell(&self, error: &OpenError) {
        if !error.may_pass() && !self.told.swap(true, AcqRel) {
            tracing::error!(%error, "the ledger cannot be opened as it is; nothing is granted until that is mended");
        }
    }
}

fn place(config: &Config, schema: &str) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(at, host)| {
            let ports = config.get_ports();
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                #[cfg(unix)]
                Host::Unix(path) => format!("{}:{port}", path.display()),
            }
        })
        .collect();
    let user = config.get_user().unwrap_or("(the system's user)");
    let database = config.get_dbname().unwrap_or(user);
    format!("PostgreSQL at {}, database {database}, schema {schema}, user {user}", hosts.join(","))
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To write, and to read in between.
    Write,
    /// To read what is committed at each read.
    Read,
    /// To read one moment, which a new connection would change.
    Snapshot,
}

/// A connection that may be missing.
#[derive(Debug)]
pub(crate) struct Link {
    pub address: Address,
    session: RefCell<Option<Session>>,
    failures: Cell<u32>,
    failed_at: Cell<Option<Instant>>,
    purpose: Purpose,
}

impl Link {
    /// Makes a link, and connects it to write.
    pub fn connect(address: Address) -> Result<Self, OpenError> {
        let session = address.connect(Purpose::Write)?;
        Ok(Self::new(address, Some(session), Purpose::Write))
    }

    /// Makes a link. Without a session it connects when it is first used.
    pub fn new(address: Address, session: Option<Session>, purpose: Purpose) -> Self {
        let session = RefCell::new(session);
        Self { address, session, failures: Cell::new(0), failed_at: Cell::new(None), purpose }
    }

    pub fn is_snapshot(&self) -> bool {
        self.purpose == Purpose::Snapshot
    }

    /// The number of its connection; 0 where it has none.
    pub fn number(&mut self) -> u64 {
        self.session.get_mut().as_ref().map_or(0, Session::number)
    }

    /// The connection; a new one where it was lost, after a pause where that failed before.
    pub fn session(&self) -> Result<RefMut<'_, Session>, LedgerError> {
        let mut own = self.session.borrow_mut();
        if own.as_ref().is_some_and(Session::is_broken) {
            *own = None;
        }
        if own.is_none() {
            *own = Some(self.reconnect()?);
        }
        RefMut::filter_map(own, Option::as_mut).map_err(|_| lost("there is none"))
    }

    /// The same for a writer, which holds it for a transaction. The second value says whether the connection is new.
    pub fn session_mut(&mut self) -> Result<(&mut Session, bool), LedgerError> {
        let mut own = self.session.take().filter(|session| !session.is_broken());
        let new = own.is_none();
        if new {
            own = Some(self.reconnect()?);
        }
        Ok((self.session.get_mut().insert(own.ok_or_else(|| lost("there is none"))?), new))
    }

    /// Looks again at the database, where it had gone back in time (a person may have accepted it), and where it was
    /// looked at too long ago.
    pub fn look_again(&mut self) -> Result<(), LedgerError> {
        let (Some(guard), Some(session)) = (&self.address.guard, self.session.get_mut()) else {
            return Ok(());
        };
        if session.is_broken() || session.is_sound_since(LOOK_EVERY) {
            return Ok(());
        }
        match position::look(session, guard) {
            // Lost meanwhile: the next connection is compared when it is made.
            Err(_) if session.is_broken() => Ok(()),
            looked => looked.map(drop),
        }
    }

    /// Guards every connection that is made from now on. An address with several hosts without a synchronous standby is
    /// refused where the ledger has no mark yet: it was not run like this before.
    pub fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError> {
        let is_unmarked = guard.is_unmarked();
        self.address.guard = Some(guard);
        // It was made without a look, so it is not kept.
        match self.session.get_mut().take() {
            Some(session) => match failover::check(&session, &self.address, is_unmarked) {
                Err(error) if error.may_pass() => {
                    // Lost meanwhile. The next connection is the first one once more, and is checked as such.
                    self.address.opened.store(false, Release);
                    Ok(())
                }
                checked => checked,
            },
            None => Ok(()),
        }
    }

    /// The connection on which a transaction has begun, even if it is lost; never a new one.
    pub fn held(&mut self) -> Result<&mut Session, LedgerError> {
        self.session.get_mut().as_mut().ok_or_else(|| lost("there is none"))
    }

    fn reconnect(&self) -> Result<Session, LedgerError> {
        if self.is_snapshot() {
            return Err(lost("a reader sees one moment, on one connection; open a new reader"));
        }
        if let Some(failed_at) = self.failed_at.get() {
            let longest = Duration::from_millis(self.address.options.backoff_max_ms);
            let pause = BACKOFF_MIN.saturating_mul(1 << self.failures.get().min(16)).min(longest);
            std::thread::sleep(pause.saturating_sub(failed_at.elapsed()));
        }
        match self.address.connect(self.purpose) {
            Ok(session) => {
                tracing::info!("connected: {}", self.address.place);
                self.failures.set(0);
                self.failed_at.set(None);
                Ok(session)
            }
            Err(error) => {
                self.address.tell(&error);
                self.failures.set(self.failures.get().saturating_add(1));
                self.failed_at.set(Some(Instant::now()));
                Err(LedgerError::Unavailable(error.to_string()))
            }
        }
    }
}

fn lost(what: &str) -> LedgerError {
    LedgerError::Unavailable(format!("the connection was lost: {what}"))
}
