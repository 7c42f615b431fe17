//! One connection: its I/O thread, its settings, its prepared statements, and the meaning of its errors.

use super::address::Address;
use super::options::PostgresOptions;
use super::shape::{Shape, spell, spell_check};
use super::tls::Tls;
use super::wait::wait;
use crate::closing;
use crate::error::{LedgerError, OpenError};
use crate::model::Order;
use futures_util::future::{join, try_join3};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row, Socket, Statement};
use windfall_tls::{HandshakeError, Security, WANTS_TLS};

/// The oldest server that is known to work: 13.
const SERVER_VERSION_MIN: i32 = 130_000;
/// How long a closing connection may take to say goodbye.
const GOODBYE: Duration = Duration::from_millis(200);

/// The server's function that refuses a prepared statement whose columns have other types by now.
const PLAN_CHANGED: &str = "RevalidateCachedQuery";

/// The state with which the database refuses orders of closed activities; the detail is their names.
pub(super) const CLOSED: &str = "WF001";

/// Connections of this process so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

pub(crate) type Params<'p> = &'p [&'p (dyn ToSql + Sync)];

/// A connection. Its I/O runs on a thread of its own, which ends with it; callers block.
pub(crate) struct Session {
    client: Client,
    statements: RefCell<HashMap<&'static str, Statement>>,
    /// A number by which this connection picks its rows where data is spread over several.
    slot: u64,
    /// The shape of the tables, for which statements are prepared.
    shape: Cell<Shape>,
    timeout: Cell<Duration>,
    /// Whether the connection was lost or is in an unknown state, so that it cannot be used any more.
    broken: Cell<bool>,
    /// Whether the database behind it was found to have gone back in time.
    went_back: Cell<bool>,
    /// When it was compared last, by the machine's own clock.
    looked_at: Cell<Option<Instant>>,
    /// Whether the server does not say where its write-ahead log is; `None` before it was asked.
    hides_log: Cell<Option<bool>>,
    /// Whether the tables of operators' acts were found.
    has_acts: Cell<bool>,
    /// The activities that the database has called closed. They may be open again by now.
    closed: RefCell<BTreeSet<String>>,
    /// The number of this connection, which no other one of this process has.
    number: u64,
    _io: Io,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("slot", &self.slot)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

/// The thread that reads and writes the socket. When it is dropped, it says goodbye and ends, whatever the
/// server does.
#[derive(Debug)]
struct Io {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Io {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the I/O thread of a PostgreSQL connection had panicked");
        }
    }
}

enum NoClient {
    Postgres(Error),
    TimedOut,
    Runtime(std::io::Error),
}

fn run_io(
    config: &Config,
    security: &Security,
    connect_timeout: Duration,
    ready: &mpsc::SyncSender<Result<Client, NoClient>>,
    stop: oneshot::Receiver<()>,
) {
    let tell = |answer| {
        if ready.send(answer).is_err() {
            tracing::debug!("nobody waits for a PostgreSQL connection any more");
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tell(Err(NoClient::Runtime(error))),
    };
    runtime.block_on(async {
        match security {
            Security::Tls(tls) => drive(config, Tls(tls.clone()), connect_timeout, tell, stop).await,
            Security::Local | Security::Plaintext => drive(config, NoTls, connect_timeout, tell, stop).await,
        }
    });
    // A name look-up of the operating system may still hang.
    runtime.shutdown_background();
}

/// Connects, hands the client out, and reads and writes the socket until it is stopped or lost.
async fn drive<T>(
    config: &Config,
    tls: T,
    connect_timeout: Duration,
    tell: impl Fn(Result<Client, NoClient>),
    stop: oneshot::Receiver<()>,
) where
    T: MakeTlsConnect<Socket>,
{
    let mut connection = match tokio::time::timeout(connect_timeout, config.connect(tls)).await {
        Ok(Ok((client, connection))) => {
            tell(Ok(client));
            connection
        }
        Ok(Err(error)) => return tell(Err(NoClient::Postgres(error))),
        Err(_) => return tell(Err(NoClient::TimedOut)),
    };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        _ = stop => tokio::time::timeout(GOODBYE, connection).await.unwrap_or(Ok(())),
    };
    if let Err(error) = ended {
        tracing::warn!(%error, "a PostgreSQL connection was lost");
    }
}

impl Session {
    /// Connects. A connection for `reads` has few and long statements.
    pub fn open(address: &Address, reads: bool) -> Result<Self, OpenError> {
        let Address { place, options, .. } = address;
        let connect_timeout = Duration::from_millis(options.connect_timeout_ms);
        let (ready, client) = mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel();
        let (own, security) = (address.config.clone(), address.security.clone());
        let thread = std::thread::Builder::new()
            .name("ledger-postgres".into())
            .spawn(move || run_io(&own, &security, connect_timeout, &ready, stopped))
            .map_err(|error| OpenError::Io { path: place.into(), what: error.to_string() })?;
        let io = Io { stop: Some(stop), thread: Some(thread) };
        let unreachable = |what: String| OpenError::Unreachable { path: place.into(), what };
        let client = match client.recv() {
            Ok(Ok(client)) => client,
            Ok(Err(NoClient::Postgres(error))) => return Err(open_error(place, &error)),
            Ok(Err(NoClient::TimedOut)) => {
                return Err(unreachable(format!("no answer within {} ms", options.connect_timeout_ms)));
            }
            Ok(Err(NoClient::Runtime(error))) => return Err(unreachable(error.to_string())),
            Err(mpsc::RecvError) => return Err(unreachable("the I/O thread has ended".into())),
        };
        let mut session = Self {
            client,
            statements: RefCell::default(),
            slot: 0,
            shape: Cell::new(Shape::Keyed),
            timeout: Cell::new(options.answer_timeout()),
            broken: Cell::new(false),
            went_back: Cell::new(false),
            looked_at: Cell::new(None),
            hides_log: Cell::new(None),
            has_acts: Cell::new(false),
            closed: RefCell::default(),
            number: COUNT.fetch_add(1, Ordering::Relaxed) + 1,
            _io: io,
        };
        session.settle_in(place, options, reads)?;
        Ok(session)
    }

    fn settle_in(&mut self, place: &str, options: &PostgresOptions, reads: bool) -> Result<(), OpenError> {
        let failed = |error: Option<Error>| no_answer(place, error);
        let PostgresOptions { schema, lock_timeout_ms, .. } = options;
        let (statement_ms, idle_ms) = if reads {
            (options.read_timeout_ms, options.read_timeout_ms)
        } else {
            (options.statement_timeout_ms, options.idle_in_transaction_timeout_ms)
        };
        let settings = format!(
            "SET search_path = \"{schema}\"; SET statement_timeout = {statement_ms}; \
             SET lock_timeout = {lock_timeout_ms}; SET idle_in_transaction_session_timeout = {idle_ms}; \
             SET default_transaction_isolation = 'read committed'; SET client_min_messages = 'warning'; \
             SET jit = off; SET timezone = 'UTC'"
        );
        self.raw(self.client.batch_execute(&settings)).map_err(failed)?;
        let about = "SELECT pg_backend_pid(), current_setting('server_version_num')::int, \
                     current_setting('synchronous_commit'), current_setting('fsync')";
        let row = self.raw(self.client.query_one(about, &[])).map_err(failed)?;
        let read = |error: Error| open_error(place, &error);
        let (pid, version): (i32, i32) = (row.try_get(0).map_err(read)?, row.try_get(1).map_err(read)?);
        let (commit, fsync): (&str, &str) = (row.try_get(2).map_err(read)?, row.try_get(3).map_err(read)?);
        if version < SERVER_VERSION_MIN {
            return Err(OpenError::Invalid(format!(
                "{place} runs PostgreSQL {}.{}; 13 or newer is needed",
                version / 10_000,
                version % 10_000
            )));
        }
        if fsync != "on" && !reads {
            tracing::warn!("{place} runs with fsync = {fsync}: a crash of its machine may lose credits");
        }
        // Replies say "credited" after the commit: it has to be on disk by then, whatever the server's default.
        if commit == "off" {
            self.raw(self.client.batch_execute("SET synchronous_commit = on")).map_err(failed)?;
        }
        self.slot = u64::from(pid.unsigned_abs());
        self.timeout.set(if reads { options.read_timeout() } else { options.answer_timeout() });
        Ok(())
    }

    pub fn slot(&self) -> u64 {
        self.slot
    }

    pub fn shape(&self) -> Shape {
        self.shape.get()
    }

    /// Sets the shape of the tables. What was prepared for another one is forgotten.
    pub fn set_shape(&self, shape: Shape) {
        if self.shape.replace(shape) != shape {
            self.statements.borrow_mut().clear();
        }
    }

    /// The number of this connection, which no other one of this process has. It is at least 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the database behind it was found to have gone back in time.
    pub fn went_back(&self) -> bool {
        self.went_back.get()
    }

    /// Notes that the database behind it was compared now, and whether it has gone back in time.
    pub fn looked(&self, went_back: bool) {
        self.went_back.set(went_back);
        self.looked_at.set(Some(Instant::now()));
    }

    /// Whether the database behind it was found to be sound at most this long ago.
    pub fn is_sound_since(&self, age: Duration) -> bool {
        !self.went_back.get() && self.looked_at.get().is_some_and(|at| at.elapsed() < age)
    }

    /// Whether it is known if the server says where its write-ahead log is.
    pub fn log_is_known(&self) -> bool {
        self.hides_log.get().is_some()
    }

    /// Whether the server does not say where its write-ahead log is.
    pub fn hides_log(&self) -> bool {
        self.hides_log.get() == Some(true)
    }

    /// Whether the tables of operators' acts were found.
    pub fn has_acts(&self) -> bool {
        self.has_acts.get()
    }

    /// Notes whether the tables of operators' acts were found.
    pub fn set_acts(&self, found: bool) {
        self.has_acts.set(found);
    }

    /// Those of these orders' activities that the database has called closed. They may be open again by now.
    pub fn perhaps_closed(&self, batch: &[Order<'_>]) -> BTreeSet<String> {
        closing::among(&self.closed.borrow(), batch)
    }

    /// Notes whether the server does not say where its write-ahead log is.
    pub fn set_log(&self, hides_log: bool) {
        self.hides_log.set(Some(hides_log));
    }

    /// Whether it cannot be used any more, so that the caller must connect anew.
    pub fn is_broken(&self) -> bool {
        self.broken.get() || self.client.is_closed()
    }

    /// Ends the open transaction, if there is one, without a commit. A connection that cannot is given up.
    pub fn roll_back(&self) {
        // Perhaps that transaction made them.
        self.has_acts.set(false);
        if !self.is_broken()
            && let Err(error) = self.batch("ROLLBACK")
        {
            self.give_up();
            tracing::warn!(%error, "a transaction could not be rolled back; its connection is closed");
        }
    }

    /// Marks the connection as broken.
    pub fn give_up(&self) {
        self.broken.set(true);
    }

    /// Sets how long each answer is waited for from now on.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    /// Drives a request; `Err(None)` means that no answer came in time.
    fn raw<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Option<Error>> {
        match wait(self.timeout.get(), future) {
            Some(done) => done.map_err(Some),
            None => {
                self.broken.set(true);
                Err(None)
            }
        }
    }

    /// Waits for answers to what `future` asks.
    pub fn ask<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, LedgerError> {
        self.raw(future).map_err(|error| self.failed(error))
    }

    /// Runs a statement that answers no rows, and says how many it changed.
    pub fn execute(&self, sql: &'static str, params: Params<'_>) -> Result<u64, LedgerError> {
        let statement = self.prepared(sql)?;
        self.ask(self.client.execute(&statement, params))
    }

    /// Runs a statement and collects its rows.
    pub fn query(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, LedgerError> {
        let statement = self.prepared(sql)?;
        self.ask(self.client.query(&statement, params))
    }

    /// Runs statements without parameters, not prepared.
    pub fn batch(&self, sql: &str) -> Result<(), LedgerError> {
        self.ask(self.client.batch_execute(sql))
    }

    /// The same while a ledger is opened.
    pub fn open_batch(&self, sql: &str, place: &str) -> Result<(), OpenError> {
        self.raw(self.client.batch_execute(sql)).map_err(|error| no_answer(place, error))
    }

    /// The same for a statement that may take very long, without a limit for its answer; calls `meanwhile` every so often.
    pub fn open_batch_long(
        &self,
        sql: &str,
        place: &str,
        every: Duration,
        mut meanwhile: impl FnMut(),
    ) -> Result<(), OpenError> {
        let mut running = pin!(self.client.batch_execute(sql));
        loop {
            match wait(every, running.as_mut()) {
                Some(done) => return done.map_err(|error| open_error(place, &error)),
                None => meanwhile(),
            }
        }
    }

    /// Runs a statement and collects its rows, not prepared, while a ledger is opened.
    pub fn open_query(&self, sql: &str, place: &str) -> Result<Vec<Row>, OpenError> {
        self.raw(self.client.query(sql, &[])).map_err(|error| no_answer(place, error))
    }

    /// Runs a statement that is made on the spot, not prepared.
    pub fn query_once(&self, sql: &str) -> Result<Vec<Row>, LedgerError> {
        self.query_stored(&spell_check(self.shape.get(), sql))
    }

    /// Runs a statement that is made on the spot, with parameters, over the tables as they are stored.
    pub fn query_with(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, LedgerError> {
        self.ask(self.client.query(sql, params))
    }

    /// The same for one that answers no rows; says how many it changed.
    pub fn execute_with(&self, sql: &str, params: Params<'_>) -> Result<u64, LedgerError> {
        self.ask(self.client.execute(sql, params))
    }

    /// The same over the tables as they are stored, whatever their shape.
    pub fn query_stored(&self, sql: &str) -> Result<Vec<Row>, LedgerError> {
        self.ask(self.client.query(sql, &[]))
    }

    /// Sends `BEGIN`, and with it a read, and draws numbers from a sequence where some are needed. Nothing that writes
    /// may be sent before `BEGIN` is answered: if it failed, that would be a transaction of its own.
    pub fn begin(
        &self,
        read: &'static str,
        numbers: Option<&'static str>,
    ) -> Result<(Vec<Row>, Vec<Row>), LedgerError> {
        let read = self.prepared(read)?;
        let numbers = numbers.map(|sql| self.prepared(sql)).transpose()?;
        let begin = self.client.batch_execute("BEGIN");
        let read = self.client.query(&read, &[]);
        let numbers = async {
            match &numbers {
                Some(statement) => self.client.query(statement, &[]).await,
                None => Ok(Vec::new()),
            }
        };
        self.ask(async { try_join3(begin, read, numbers).await.map(|((), read, numbers)| (read, numbers)) })
    }

    /// Sends one last statement and `COMMIT` together. If the statement fails, `COMMIT` rolls back. Once they are
    /// sent, an answer that does not come leaves open what happened.
    pub fn commit(&self, last: Option<(&'static str, Params<'_>)>) -> Result<(), LedgerError> {
        let last = match last {
            Some((sql, params)) => Some((self.prepared(sql)?, params)),
            None => None,
        };
        let done = self.raw(async {
            let last = async {
                match &last {
                    Some((statement, params)) => self.client.execute(statement, params).await.map(drop),
                    None => Ok(()),
                }
            };
            let (last, commit) = join(last, self.client.batch_execute("COMMIT")).await;
            last.and(commit)
        });
        done.map_err(|error| {
            // Only an answer of the server that is about this transaction says that it is not stored.
            match self.failed(error) {
                LedgerError::Unavailable(what) => LedgerError::Unknown(what),
                other => other,
            }
        })
    }

    fn prepared(&self, sql: &'static str) -> Result<Statement, LedgerError> {
        if let Some(statement) = self.statements.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let spelled = spell(self.shape.get(), sql);
        let statement = self.ask(self.client.prepare(&spelled))?;
        self.statements.borrow_mut().insert(sql, statement.clone());
        Ok(statement)
    }

    /// The meaning of a failure; `None` stands for an answer that did not come.
    fn failed(&self, error: Option<Error>) -> LedgerError {
        let Some(error) = error else {
            let timeout_ms = self.timeout.get().as_millis();
            return LedgerError::Unavailable(format!("PostgreSQL has not answered for {timeout_ms} ms"));
        };
        let Some(code) = error.code() else {
            // Not an answer of the server: the connection, or what was read from it, is of no use.
            self.broken.set(true);
            return LedgerError::Unavailable(said(&error));
        };
        let what = said(&error);
        match code {
            &SqlState::T_R_SERIALIZATION_FAILURE
            | &SqlState::T_R_DEADLOCK_DETECTED
            | &SqlState::LOCK_NOT_AVAILABLE => LedgerError::Contended(what),
            &SqlState::QUERY_CANCELED => LedgerError::Unavailable(what),
            &SqlState::DISK_FULL => LedgerError::Full,
            &SqlState::READ_ONLY_SQL_TRANSACTION => {
                // A standby, or a server that was demoted: another one of the address's hosts may be the new one.
                self.broken.set(true);
                LedgerError::ReadOnly
            }
            &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => LedgerError::Damaged(what),
            code if code.code().starts_with("57P") || code.code().starts_with("08") => {
                self.broken.set(true);
                LedgerError::Unavailable(what)
            }
            code if code.code().starts_with("53") || code.code().starts_with("25P") => {
                self.broken.set(true);
                LedgerError::Unavailable(what)
            }
            code if code.code() == CLOSED => {
                // The transaction is repeated, and leaves its orders out.
                let names = error.as_db_error().and_then(DbError::detail).unwrap_or_default();
                self.closed.borrow_mut().extend(names.split('\x1f').map(str::to_owned));
                LedgerError::Contended("an activity of these orders was closed".into())
            }
            // Spelled for tables that are gone by now: they were migrated, or an older copy was loaded in their place.
            &SqlState::UNDEFINED_COLUMN | &SqlState::UNDEFINED_TABLE => self.tables_changed(what),
            &SqlState::FEATURE_NOT_SUPPORTED
                if error.as_db_error().and_then(DbError::routine) == Some(PLAN_CHANGED) =>
            {
                self.tables_changed(what)
            }
            _ => LedgerError::Sql(what),
        }
    }

    /// The next connection looks at the tables anew. Those of older versions are expected to go.
    fn tables_changed(&self, what: String) -> LedgerError {
        self.broken.set(true);
        match self.shape.get() {
            Shape::Three | Shape::Journal => {
                LedgerError::Unavailable(format!("it was migrated meanwhile: {what}"))
            }
            Shape::Keyed => LedgerError::Sql(what),
        }
    }
}

/// The message of the server or the system, which the error's own text hides.
fn said(error: &Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

fn no_answer(place: &str, error: Option<Error>) -> OpenError {
    match error {
        Some(error) => open_error(place, &error),
        None => OpenError::Unreachable { path: place.into(), what: "it does not answer".into() },
    }
}

/// What TLS has to say about a connection that could not be made.
fn of_tls(place: &str, error: &Error) -> Option<OpenError> {
    let path = place.to_owned();
    let source = std::error::Error::source(error);
    match source.and_then(|source| source.downcast_ref::<HandshakeError>()) {
        Some(HandshakeError::Lost(error)) => {
            let what = format!("the connection was lost during the TLS handshake: {error}");
            return Some(OpenError::Unreachable { path, what });
        }
        Some(refused) => return Some(OpenError::Untrusted { path, what: refused.to_string() }),
        None => {}
    }
    // The client has no word of its own for it.
    if source.is_some_and(|source| source.to_string() == "server does not support TLS") {
        let what = "the server takes no TLS; set ssl = on there, or leave tls and sslmode out".into();
        return Some(OpenError::Untrusted { path, what });
    }
    windfall_tls::explain(error).map(|what| OpenError::Untrusted { path, what })
}

/// Why a connection could not be made, and what to do.
pub(crate) fn open_error(place: &str, error: &Error) -> OpenError {
    let (path, what) = (place.to_owned(), said(error));
    if let Some(error) = of_tls(place, error) {
        return error;
    }
    match error.code() {
        // The server's rules for hosts have no line for such a connection.
        Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) if what.contains("no encryption") => {
            OpenError::Denied { path, what: format!("{what}; {WANTS_TLS}") }
        }
        Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) if what.contains("client certificate") => {
            OpenError::Denied { path, what: format!("{what}; set tls.cert_file and tls.key_file") }
        }
        Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
            OpenError::Denied { path, what: format!("{what}; correct the user and the password") }
        }
        Some(&SqlState::INVALID_CATALOG_NAME) => OpenError::NoDatabase { path },
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => OpenError::Denied {
            path,
            what: format!(
                "{what}; grant the user CREATE on the database, or USAGE on the schema and its tables and sequences"
            ),
        },
        Some(&SqlState::DUPLICATE_TABLE) => OpenError::Damaged {
            path,
            what: format!("{what}; it holds another program's tables: give the ledger a schema of its own"),
        },
        Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => OpenError::ReadOnly { path },
        // Away, starting, ending, without room, or busy with the same work for another process: it may come back.
        Some(code)
            if ["57P", "57014", "08", "53", "40", "55P03"]
                .iter()
                .any(|class| code.code().starts_with(class)) =>
        {
            OpenError::Unreachable { path, what }
        }
        Some(_) => OpenError::Io { path, what },
        // A proxy in front of a server that is away hangs up in the middle of the greeting.
        None if error.is_closed() => OpenError::Unreachable { path, what },
        None if std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>()) => {
            OpenError::Unreachable { path, what }
        }
        None => OpenError::Invalid(format!("{path}: {what}")),
    }
}
