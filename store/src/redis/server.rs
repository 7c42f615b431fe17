//! Checks of a server: whether tokens can be kept there, and what is wrong where they cannot.

use super::options::{OpenRedisError, RedisOptions, VERSION_MIN};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value,
};
use std::time::Duration;
use tokio::time::timeout;

/// Makes a connection and introduces itself.
pub(super) async fn connect(
    info: &ConnectionInfo,
    within: Duration,
) -> Result<MultiplexedConnection, OpenRedisError> {
    let place = info.addr().to_string();
    let client = Client::open(info.clone()).map_err(|error| explain(&place, &error))?;
    // Our own time limits hold for calls: they know what to give up.
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(within)).set_response_timeout(None);
    match timeout(within, client.get_multiplexed_async_connection_with_config(&config)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(explain(&place, &error)),
        Err(_) => Err(OpenRedisError::Unreachable { place, what: "no answer in time".into() }),
    }
}

/// Sends one command and waits for its answer, at most for `within`.
pub(super) async fn ask(
    connection: &mut MultiplexedConnection,
    question: &Cmd,
    within: Duration,
) -> Result<Value, RedisError> {
    match timeout(within, connection.send_packed_command(question)).await {
        Ok(Ok(Value::ServerError(error))) => Err(error.into()),
        Ok(answer) => answer,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

/// Connects once and checks whether tokens can be kept on the server.
pub(super) async fn check(info: &ConnectionInfo, options: &RedisOptions) -> Result<(), OpenRedisError> {
    let mut connection = connect(info, options.connect_timeout()).await?;
    let report = suits(&mut connection, info, options).await?;
    if value(&report, "aof_enabled") == "0" && value(&report, "loading") == "0" {
        tracing::warn!("Redis keeps no append-only file: tokens go with a restart (appendonly yes)");
    }
    Ok(())
}

/// Checks whether tokens can be kept on the server behind a connection, and returns the server's report of itself.
pub(super) async fn suits(
    connection: &mut MultiplexedConnection,
    info: &ConnectionInfo,
    options: &RedisOptions,
) -> Result<String, OpenRedisError> {
    let place = info.addr().to_string();
    let within = options.connect_timeout();
    let answer = ask(connection, redis::cmd("INFO").arg("everything"), within).await;
    let report = match answer {
        Ok(Value::BulkString(report)) => String::from_utf8_lossy(&report).into_owned(),
        Ok(Value::VerbatimString { text, .. }) => text,
        Ok(other) => return Err(OpenRedisError::NotRedis { place, what: format!("INFO says {other:?}") }),
        Err(error) => return Err(explain(&place, &error)),
    };
    if let Err(what) = judge(&report, options) {
        return Err(OpenRedisError::Unsuited { place, what });
    }
    if !options.is_cluster && value(&report, "role") != "master" {
        return Err(OpenRedisError::NotNow { place, what: REPLICA.into() });
    }
    Ok(report)
}

/// A value of the server's report, empty where it has none of that name.
fn value<'r>(report: &'r str, key: &str) -> &'r str {
    let line = report.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.map(str::trim).unwrap_or_default()
}

/// Checks the server's report for what rules it out, whatever happens to it later.
fn judge(report: &str, options: &RedisOptions) -> Result<(), String> {
    let value = |key: &str| value(report, key);
    let version = value("redis_version");
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < VERSION_MIN {
        let (major, minor) = VERSION_MIN;
        return Err(format!("is of version {version}; {major}.{minor} or newer is needed"));
    }
    let in_cluster = value("cluster_enabled") == "1";
    if in_cluster && !options.is_cluster {
        return Err("is a node of a cluster; set is_cluster".into());
    }
    if !in_cluster && options.is_cluster {
        return Err("is no cluster; leave is_cluster out".into());
    }
    let policy = value("maxmemory_policy");
    let evicts = value("maxmemory") != "0" && !matches!(policy, "noeviction" | "volatile-ttl" | "");
    if evicts && !options.allow_eviction {
        return Err(format!(
            "has maxmemory-policy {policy}, which evicts tokens of rewards that are still on their way; set \
             noeviction or volatile-ttl, or allow_eviction"
        ));
    }
    Ok(())
}

const REPLICA: &str = "is a replica, whose answers may be old; give the master's address";

/// Refuses a replica: one that is behind its master would answer "no such token" for one that there is. // I7
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
            let what = format!("it hung up: {what}; perhaps it is not Redis, so check the port");
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
        judge(&all, &RedisOptions::default())
    }

    #[test]
    fn what_a_server_says_of_itself_is_judged() {
        let good = "redis_version:7.0.15\r\nrole:master\r\ncluster_enabled:0\r\nmaxmemory:0\r\naof_enabled:1";
        assert_eq!(report(good), Ok(()));
        assert_eq!(report(&good.replace("7.0.15", "10.0.1")), Ok(()));
        assert!(report(&good.replace("7.0.15", "6.2.20")).is_err_and(|what| what.contains("7.0 or newer")));
        assert_eq!(report(&good.replace("master", "slave")), Ok(()), "it may become the master");
        assert!(
            report(&good.replace("enabled:0", "enabled:1")).is_err_and(|what| what.contains("is_cluster"))
        );
        let full = good.replace("maxmemory:0", "maxmemory:9\r\nmaxmemory_policy:allkeys-lru");
        assert!(report(&full).is_err_and(|what| what.contains("allkeys-lru")));
        assert_eq!(report(&full.replace("allkeys-lru", "volatile-ttl")), Ok(()));
        assert_eq!(report(&full.replace("maxmemory:9", "maxmemory:0")), Ok(()));
    }
}
