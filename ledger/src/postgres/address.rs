//! Where a ledger in PostgreSQL is, and how it is reached.

use super::options::PostgresOptions;
use super::shape::KNOWN;
use super::tls;
use crate::error::OpenError;
use crate::guard::Guard;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use windfall_tls::Security;

/// The name of a connection, where the address gives none.
pub(crate) const NAME: &str = "windfall-ledger";
/// PostgreSQL cuts names of connections to so many bytes.
const NAME_BYTES_MAX: usize = 63;

/// Where a ledger is and how it is reached.
#[derive(Clone)]
pub(crate) struct Address {
    pub config: Config,
    /// What protects the connections.
    pub security: Security,
    pub options: PostgresOptions,
    /// The name of the place in errors, without a password.
    pub place: String,
    /// The name by which connections of older versions are known, which put nothing behind it.
    pub older_name: String,
    /// Whether a connection that was made from this address has found the tables, or made them. No other one makes any.
    pub(super) opened: Arc<AtomicBool>,
    /// Whether it was logged that the tables are of an older version.
    pub(super) told_older: Arc<AtomicBool>,
    /// Whether it was logged that the tables are no ledger of Windfall, or that the server refuses this client.
    pub(super) told: Arc<AtomicBool>,
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
        let mut config: Config = tls::readable(url).parse().map_err(|error: tokio_postgres::Error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            // The address itself may hold a password: it is not repeated.
            OpenError::Invalid(format!(
                "the PostgreSQL address is not understood: {why}; write postgres://user:password@host:port/database"
            ))
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(OpenError::Invalid("the PostgreSQL address names no host".into()));
        }
        let security = tls::secure(&mut config, options)?;
        let answer = options.answer_timeout();
        config
            .connect_timeout(Duration::from_millis(options.connect_timeout_ms))
            .tcp_user_timeout(answer)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        let name = config.get_application_name().unwrap_or(NAME);
        let older_name = name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
        config.application_name(marked_as(&older_name, KNOWN));
        let place = place(&config, &options.schema);
        let (opened, told_older, told) = (Arc::default(), Arc::default(), Arc::default());
        let options = options.clone();
        Ok(Self { config, security, options, place, older_name, opened, told_older, told, guard: None })
    }

    /// The name of the ledger whatever server it is on: its database and its schema.
    pub fn ledger_name(&self) -> String {
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("{database}/{}", self.options.schema)
    }
}

impl PostgresOptions {
    /// The name of the ledger at this address, whatever server of the address has it: its database and its schema. What is
    /// kept of several ledgers in one place is told apart by it.
    ///
    /// # Errors
    /// [`OpenError::Invalid`]: the address is not understood, or an option has no valid value.
    pub fn ledger_name(&self, url: &str) -> Result<String, OpenError> {
        Ok(Address::new(url, self)?.ledger_name())
    }

    /// Checks whether the server at this address may be reached like this. Reads no files, and connects to nothing; an address
    /// that is not understood is refused when it is opened.
    ///
    /// # Errors
    /// [`OpenError::Invalid`].
    pub fn check_address(&self, url: &str) -> Result<(), OpenError> {
        match tls::readable(url).parse::<Config>() {
            Ok(mut config) => tls::secure(&mut config, self).map(drop),
            Err(_) => Ok(()),
        }
    }
}

/// The name of a connection of a build that writes this version: those of before version 4 put none behind it.
pub(crate) fn marked_as(name: &str, version: i64) -> String {
    let mark = format!("/{version}");
    let end = name.floor_char_boundary(NAME_BYTES_MAX - mark.len());
    format!("{}{mark}", &name[..end])
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
