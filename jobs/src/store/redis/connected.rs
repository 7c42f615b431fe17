//! The connections to servers that were found fit to keep entries.

use super::answers::{number, text};
use super::options::{MOVING_PAUSE, RedisEntriesOptions};
use super::scripts::Known;
use redis::{Cmd, ConnectionInfo, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use windfall_contract::due::{Durability, Shard};
use windfall_contract::entries::EntryError;
use windfall_redis_link::{Nodes, OpenRedisError, Request, check, slot_of};

/// How a call may be sent.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// It changes nothing. Asked of a master alone.
    Reads,
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
    /// Connects, and looks whether entries can be kept there.
    pub(super) async fn make(
        options: &RedisEntriesOptions,
        servers: &[ConnectionInfo],
        rights: &Known,
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
        // A master that is away is looked at when its connection is made.
        for master in nodes.masters() {
            match check(&master, &link).await {
                Err(error) if !error.may_pass() => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        let mut own = Self { nodes, durability: Durability::Process };
        let place = servers.first().map(|server| server.addr().to_string()).unwrap_or_default();
        own.fix_shards(options, &place).await?;
        own.try_rights(options, rights, &place).await?;
        own.durability = own.weakest_appendfsync(options, &place).await?;
        Ok(own)
    }

    /// Makes the number of shards the store's own where it is new, and refuses another one than the store has.
    async fn fix_shards(&self, options: &RedisEntriesOptions, place: &str) -> Result<(), OpenRedisError> {
        let place = || place.to_owned();
        let key = options.registry("s");
        let deadline = Instant::now() + options.call_timeout();
        let (mut set, mut get) = (redis::cmd("SET"), redis::cmd("GET"));
        set.arg(&key).arg(options.shards).arg("NX");
        get.arg(&key);
        let mut found = Value::Nil;
        for (command, way) in [(set, Way::Repeats), (get, Way::Reads)] {
            let answer = self.send(slot_of(&key), || command.clone(), way, deadline).await;
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

    /// Whether the user may do all that the scripts do: one that lacks a right would be stopped in the middle of a call.
    async fn try_rights(
        &self,
        options: &RedisEntriesOptions,
        rights: &Known,
        place: &str,
    ) -> Result<(), OpenRedisError> {
        let deadline = Instant::now() + options.call_timeout();
        for shard in (0..options.shards).map(Shard) {
            let key = options.counters(shard);
            let call = || rights.call(true, &key, &[]);
            match self.send(slot_of(&key), call, Way::Repeats, deadline).await {
                Ok(Value::ServerError(error)) if is_denied(&error) => {
                    return Err(OpenRedisError::Credentials {
                        place: place.to_owned(),
                        what: error.to_string(),
                    });
                }
                // One that is full or still loading says so to the calls.
                Ok(_) => {}
                Err(error) => {
                    return Err(OpenRedisError::NotNow { place: place.to_owned(), what: error.to_string() });
                }
            }
        }
        Ok(())
    }

    /// What the weakest of the shards' servers sets `appendfsync` to. Where one does not say, the default of Redis is
    /// assumed.
    async fn weakest_appendfsync(
        &self,
        options: &RedisEntriesOptions,
        place: &str,
    ) -> Result<Durability, OpenRedisError> {
        let deadline = Instant::now() + options.call_timeout();
        let mut config = redis::cmd("CONFIG");
        config.arg("GET").arg("appendfsync");
        let (mut weakest, mut silent) = (Durability::Machine, None);
        for shard in (0..options.shards).map(Shard) {
            let slot = slot_of(&options.counters(shard));
            let answer = self.send(slot, || config.clone(), Way::Reads, deadline).await;
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
            if found.is_none() {
                silent = Some(format!("{answer:?}"));
            }
        }
        if let (true, Some(answer)) = (options.needs_disk_sync, &silent) {
            let what = format!("does not say its appendfsync, which has to be `always`: {answer}");
            return Err(OpenRedisError::NotNow { place: place.to_owned(), what });
        }
        if options.needs_disk_sync && weakest != Durability::Machine {
            let what = "has another appendfsync than `always`, so that an OK does not survive the end of the machine; \
                        set appendfsync always on the server, or leave out the durability `machine`";
            return Err(OpenRedisError::Unsuited { place: place.to_owned(), what: what.into() });
        }
        if let Some(answer) = silent {
            tracing::warn!(answer, "Redis does not say its appendfsync; everysec is assumed");
        }
        Ok(weakest)
    }

    /// Sends a command, again while its keys are on their way to another node. An answer may be a refusal.
    pub(super) async fn send(
        &self,
        slot: u16,
        command: impl Fn() -> Cmd,
        way: Way,
        deadline: Instant,
    ) -> Result<Value, EntryError> {
        loop {
            let (guarded, may_be_repeated) = match way {
                Way::Reads => (true, true),
                Way::Repeats => (false, true),
                Way::Once => (false, false),
            };
            let request = Request { may_be_refused: true, may_be_repeated, ..Request::new(slot, command()) };
            let answers = self.nodes.run(vec![request], guarded, deadline).await;
            let answer = answers.map_err(|error| EntryError::Unavailable(error.0))?.into_iter().next();
            match answer {
                Some(Value::ServerError(error))
                    if is_moving(&error) && Instant::now() + MOVING_PAUSE < deadline =>
                {
                    sleep(MOVING_PAUSE).await;
                }
                Some(answer) => return Ok(answer),
                None => return Err(EntryError::Unavailable("an answer is missing".into())),
            }
        }
    }
}

/// The user lacks a right. A script says so in its text.
fn is_denied(error: &redis::ServerError) -> bool {
    let says = |part| error.details().is_some_and(|what| what.contains(part));
    error.code() == "NOPERM" || says("can't run this command") || says("can't access") || says("ACL failure")
}

/// The keys are on their way to another node: some are here, some there, and nothing was changed.
fn is_moving(error: &redis::ServerError) -> bool {
    error.code() == "TRYAGAIN" || error.details().is_some_and(|what| what.contains("non local key"))
}
