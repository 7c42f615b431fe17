//! What a server says about itself: whether a driver can use it, and what is wrong where it cannot.

use super::options::{LinkOptions, OpenRedisError, VERSION_MIN};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError,
    RedisResult, ServerErrorKind, Value,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use windfall_tls::{HandshakeError, Security, TlsOptions, WANTS_TLS};

/// A connection. When its last copy is dropped, it closes.
#[derive(Clone)]
pub(super) struct Connection {
    calls: MultiplexedConnection,
    /// What reads and writes a connection that was not made by the client itself.
    _io: Option<Arc<Io>>,
}

/// The task that reads and writes a connection.
struct Io(JoinHandle<()>);

impl Drop for Io {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    pub(super) async fn pipeline(&mut self, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        self.calls.send_packed_commands(pipeline, 0, pipeline.len()).await
    }

    pub(super) async fn command(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.calls.send_packed_command(command).await
    }
}

/// Makes a connection and introduces itself, both within the time that making a connection may take.
pub(super) async fn connect(
    info: &ConnectionInfo,
    options: &LinkOptions,
) -> Result<Connection, OpenRedisError> {
    let place = info.addr().to_string();
    let within = options.connect_timeout;
    let made = match &options.security {
        Security::Tls(tls) => timeout(within, protected(info, tls)).await,
        Security::Local | Security::Plaintext => timeout(within, plain(info, within)).await,
    };
    match made {
        Ok(made) => made,
        Err(_) if options.security.tls().is_some() => {
            let what = "no TLS connection in time; check that this port takes TLS".into();
            Err(OpenRedisError::Unreachable { place, what })
        }
        Err(_) => Err(OpenRedisError::Unreachable { place, what: "no answer in time".into() }),
    }
}

// Our own time limits hold for calls: they know what to give up.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(None)
}

async fn plain(info: &ConnectionInfo, within: Duration) -> Result<Connection, OpenRedisError> {
    let place = info.addr().to_string();
    let client = Client::open(info.clone()).map_err(|error| explain(&place, &error))?;
    let config = config().set_connection_timeout(Some(within));
    let calls = client.get_multiplexed_async_connection_with_config(&config).await;
    Ok(Connection { calls: calls.map_err(|error| explain(&place, &error))?, _io: None })
}

async fn protected(info: &ConnectionInfo, tls: &TlsOptions) -> Result<Connection, OpenRedisError> {
    let place = info.addr().to_string();
    let ConnectionAddr::Tcp(host, port) = info.addr() else {
        return Err(OpenRedisError::Invalid(format!("{place} is no address for TLS")));
    };
    let unreachable = |error: &std::io::Error| OpenRedisError::Unreachable {
        place: place.clone(),
        what: error.to_string(),
    };
    let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(|error| unreachable(&error))?;
    stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
    let stream = tls.connect(host, stream).await.map_err(|error| match error {
        HandshakeError::Lost(error) => {
            let what =
                format!("it hung up during the TLS handshake: {error}; check that this port takes TLS");
            OpenRedisError::Unreachable { place: place.clone(), what }
        }
        // The files may be replaced just now: a link tries on.
        refused => OpenRedisError::Untrusted { place: place.clone(), what: refused.to_string() },
    })?;
    let refusal = stream.refusal();
    let made = MultiplexedConnection::new_with_config(info.redis_settings(), stream, config()).await;
    let (calls, io) = made.map_err(|error| match refusal.get() {
        // The client's own error has lost it.
        Some(what) => OpenRedisError::Untrusted { place: place.clone(), what: what.to_owned() },
        None => explain(&place, &error),
    })?;
    Ok(Connection { calls, _io: Some(Arc::new(Io(tokio::spawn(io)))) })
}

/// Sends one command and waits for its answer, at most for `within`.
pub(super) async fn ask(
    connection: &mut Connection,
    question: &Cmd,
    within: Duration,
) -> Result<Value, RedisError> {
    match timeout(within, connection.command(question)).await {
        Ok(Ok(Value::ServerError(error))) => Err(error.into()),
        Ok(answer) => answer,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

/// What a server says of itself: the answer to `INFO everything`.
pub struct Report(String);

impl From<String> for Report {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Report {
    /// A value, empty where the report has none of that name.
    pub fn value(&self, name: &str) -> &str {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).unwrap_or_default()
    }
}

/// Connects once and looks whether the server suits the driver.
///
/// # Errors
/// [`OpenRedisError`].
pub async fn check(info: &ConnectionInfo, options: &LinkOptions) -> Result<Report, OpenRedisError> {
    let mut connection = connect(info, options).await?;
    suits(&mut connection, info, options).await
}

/// Looks whether the server behind a connection suits the driver, and answers with what it says of itself.
pub(super) async fn suits(
    connection: &mut Connection,
    info: &ConnectionInfo,
    options: &LinkOptions,
) -> Result<Report, OpenRedisError> {
    let place = info.addr().to_string();
    let within = options.connect_timeout;
    let answer = ask(connection, redis::cmd("INFO").arg("everything"), within).await;
    let report = match answer {
        Ok(Value::BulkString(report)) => String::from_utf8_lossy(&report).into_owned(),
        Ok(Value::VerbatimString { text, .. }) => text,
        Ok(other) => return Err(OpenRedisError::NotRedis { place, what: format!("INFO says {other:?}") }),
        Err(error) => return Err(explain(&place, &error)),
    };
    let report = Report(report);
    if let Err(what) = judge(&report, options.is_cluster).and_then(|()| (options.judge)(&report)) {
        return Err(OpenRedisError::Unsuited { place, what });
    }
    if !options.is_cluster && report.value("role") != "master" {
        return Err(OpenRedisError::NotNow { place, what: REPLICA.into() });
    }
    Ok(report)
}

/// What in the server's report speaks against it, whatever happens to it later.
fn judge(report: &Report, is_cluster: bool) -> Result<(), String> {
    let version = report.value("redis_version");
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < VERSION_MIN {
        let (major, minor) = VERSION_MIN;
        return Err(format!("is of version {version}; {major}.{minor} or newer is needed"));
    }
    // Its scripts would cut times in milliseconds off.
    if report.value("arch_bits") == "32" {
        return Err("is built for 32 bits; a build for 64 bits is needed".into());
    }
    let in_cluster = report.value("cluster_enabled") == "1";
    if in_cluster && !is_cluster {
        return Err("is a node of a cluster; set is_cluster".into());
    }
    if !in_cluster && is_cluster {
        return Err("is no cluster; leave is_cluster out".into());
    }
    Ok(())
}

const REPLICA: &str = "is a replica, whose answers may be old; give the master's address";

/// A replica behind its master would answer "no such key" for one that there is. // I7
pub(super) fn must_be_master(role: &Value) -> Result<(), String> {
    let name = match role {
        Value::Array(parts) => parts.first(),
        _ => None,
    };
    match name {
        Some(Value::BulkString(name)) if name == b"master" => Ok(()),
        Some(Value::SimpleString(name)) if name == "master" => Ok(()),
        _ => Err(REPLICA.into()),
    }
}

/// Sorts what went wrong by what the operator has to do.
pub(super) fn explain(place: &str, error: &RedisError) -> OpenRedisError {
    let (place, what) = (place.to_owned(), error.to_string());
    match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => {
            OpenRedisError::Credentials { place, what }
        }
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
            OpenRedisError::Credentials { place, what }
        }
        ErrorKind::Parse => OpenRedisError::NotRedis { place, what },
        // So does a proxy in front of a Redis that is away, and what is no Redis and does not understand us.
        ErrorKind::Io if error.is_connection_dropped() && !error.is_connection_refusal() => {
            let what = format!("it hung up: {what}; check the port, perhaps it is not Redis, or {WANTS_TLS}");
            OpenRedisError::Unreachable { place, what }
        }
        ErrorKind::Io => OpenRedisError::Unreachable { place, what },
        _ if PASSING.iter().any(|code| error.code() == Some(code)) => OpenRedisError::NotNow { place, what },
        _ => OpenRedisError::Unsuited { place, what },
    }
}

/// The error codes of a server that will take calls later.
const PASSING: [&str; 7] =
    ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "TRYAGAIN", "READONLY", "MISCONF"];

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lines: &str) -> Result<(), String> {
        let all = format!("# Server\r\n{lines}\r\n");
        judge(&Report(all), false)
    }

    #[test]
    fn what_a_server_says_of_itself_is_judged() {
        let good = "redis_version:7.0.15\r\nrole:master\r\ncluster_enabled:0\r\nmaxmemory:0\r\naof_enabled:1";
        assert_eq!(report(good), Ok(()));
        assert_eq!(report(&good.replace("7.0.15", "10.0.1")), Ok(()));
        assert!(report(&good.replace("7.0.15", "6.2.20")).is_err_and(|what| what.contains("7.0 or newer")));
        assert_eq!(report(&good.replace("redis_version", "arch_bits:64\r\nredis_version")), Ok(()));
        let narrow = good.replace("redis_version", "arch_bits:32\r\nredis_version");
        assert!(report(&narrow).is_err_and(|what| what.contains("64 bits")));
        assert_eq!(report(&good.replace("master", "slave")), Ok(()), "it may become the master");
        assert!(
            report(&good.replace("enabled:0", "enabled:1")).is_err_and(|what| what.contains("is_cluster"))
        );
    }
}
