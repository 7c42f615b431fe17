//! The connections to servers that were found fit to keep jobs.

use super::answers::{number, text};
use super::options::{MOVING_PAUSE, RedisJobsOptions};
use redis::{Cmd, ConnectionInfo, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use windfall_contract::due::{Durability, Shard};
use windfall_contract::task_queue::JobStoreError;
use windfall_redis_link::{Nodes, OpenRedisError, Request, check, slot_of};

/// How a call may be sent.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// It may be carried out twice.
    Repeats,
    /// It must not be carried out twice.
    Once,
}

/// Connections that stay. Dropped, they are closed.
pub(super) struct Connected {
    nodes: Nodes,
    pub(super) durability: Durability,
}

impl Connected {
    /// Connects, and looks whether jobs can be kept there.
    pub(super) async fn make(
        options: &RedisJobsOptions,
        servers: &[ConnectionInfo],
    ) -> Result<Self, OpenRedisError> {
        let link = options.link();
        for (at, server) in servers.iter().enumerate() {
            match check(server, &link).await {
                Ok(_) => break,
                // Of a cluster's nodes some may be away.
                Err(error) if error.may_pass() && at + 1 < servers.len() => {}
                Err(error) => return Err(error),
            }
        }
        let nodes = Nodes::start(&Handle::current(), &link, servers.to_vec());
        nodes.learn().await?;
        let mut own = Self { nodes, durability: Durability::Process };
        let place = servers.first().map(|server| server.addr().to_string()).unwrap_or_default();
        own.fix_shards(options, &place).await?;
        own.durability = own.weakest_appendfsync(options).await;
        Ok(own)
    }

    /// Makes the number of shards the store's own where it is new, and refuses another one than the store has.
    async fn fix_shards(&self, options: &RedisJobsOptions, place: &str) -> Result<(), OpenRedisError> {
        let place = || place.to_owned();
        let key = options.registry("s");
        let deadline = Instant::now() + options.call_timeout();
        let (mut set, mut get) = (redis::cmd("SET"), redis::cmd("GET"));
        set.arg(&key).arg(options.shards).arg("NX");
        get.arg(&key);
        let mut found = Value::Nil;
        for command in [set, get] {
            let answer = self.send(slot_of(&key), || command.clone(), Way::Repeats, deadline).await;
            found = match answer {
                Ok(Value::ServerError(error)) if error.code() == "NOPERM" => {
                    return Err(OpenRedisError::Credentials { place: place(), what: error.to_string() });
                }
                Ok(answer) => answer,
                Err(error) => return Err(OpenRedisError::NotNow { place: place(), what: error.to_string() }),
            };
        }
        match number::<u16>(&found) {
            Ok(found) if found == options.shards => Ok(()),
            Ok(found) => Err(OpenRedisError::Invalid(format!(
                "shards: {}, but the store with the prefix {} was made with {found}, which cannot be changed",
                options.shards, options.prefix
            ))),
            Err(error) => Err(OpenRedisError::NotNow { place: place(), what: error.to_string() }),
        }
    }

    /// What the weakest of the shards' servers sets `appendfsync` to. Where one does not say, the default of Redis is
    /// assumed.
    async fn weakest_appendfsync(&self, options: &RedisJobsOptions) -> Durability {
        let deadline = Instant::now() + options.call_timeout();
        let mut config = redis::cmd("CONFIG");
        config.arg("GET").arg("appendfsync");
        let mut weakest = Durability::Machine;
        for shard in (0..options.shards).map(Shard) {
            let slot = slot_of(&options.counter(shard));
            let answer = self.send(slot, || config.clone(), Way::Repeats, deadline).await;
            let found = match &answer {
                Ok(Value::Array(pair)) => pair.get(1).and_then(|value| text(value).ok()),
                Ok(Value::Map(pairs)) => pairs.first().and_then(|(_, value)| text(value).ok()),
                _ => None,
            };
            weakest = match (found, weakest) {
                (Some("no"), _) | (_, Durability::Process) => Durability::Process,
                (Some("always"), other) => other,
                (_, Durability::Machine | Durability::EverySecond) => Durability::EverySecond,
            };
        }
        weakest
    }

    /// Sends a command, again while its keys are on their way to another node. An answer may be a refusal.
    pub(super) async fn send(
        &self,
        slot: u16,
        command: impl Fn() -> Cmd,
        way: Way,
        deadline: Instant,
    ) -> Result<Value, JobStoreError> {
        loop {
            let may_be_repeated = matches!(way, Way::Repeats);
            let request = Request { may_be_refused: true, may_be_repeated, ..Request::new(slot, command()) };
            let answers = self.nodes.run(vec![request], false, deadline).await;
            let answer = answers.map_err(|error| JobStoreError::Unavailable(error.0))?.into_iter().next();
            match answer {
                Some(Value::ServerError(error))
                    if is_moving(&error) && Instant::now() + MOVING_PAUSE < deadline =>
                {
                    sleep(MOVING_PAUSE).await;
                }
                Some(answer) => return Ok(answer),
                None => return Err(JobStoreError::Unavailable("an answer is missing".into())),
            }
        }
    }
}

/// The keys are on their way to another node: some are here, some there. Nothing was changed: each script touches two keys
/// that never are before it changes anything, and a node that has a part of a slot refuses those.
fn is_moving(error: &redis::ServerError) -> bool {
    error.code() == "TRYAGAIN" || error.details().is_some_and(|what| what.contains("non local key"))
}
