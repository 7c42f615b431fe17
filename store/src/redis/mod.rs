//! A token store on Redis: one server, or a Redis Cluster.
//! Each user has one hash `{prefix}{user_id}`, from name to token; canonical base64url is kept as the bytes it
//! stands for. A batch is sent in pipelines, one connection after the other, without waiting in between. A user's first
//! tokens take one command, which restores a whole hash with its expiry; further ones take one `HSET` per user with all
//! the user's tokens of the batch.
//!
//! **Expiry.** A hash lives until the last of its tokens may go. A new one has its expiry from the start; after an
//! `HSET` follow `PEXPIREAT … NX`, for one that was freed meanwhile, and `PEXPIREAT … GT`, which moves the end forward,
//! never back. So a token of an activity that ends soon may outlive it beside one of a longer activity, and never the
//! other way round. The last removal frees the hash.
//!
//! **Rights.** The user needs `HSET`, `PEXPIREAT`, `HDEL`, `HMGET`, `HLEN`, `HKEYS`, `RESTORE`, `ROLE`, `INFO` and
//! `PING`, in a cluster `CLUSTER` and `ASKING` too. Without `RESTORE` everything works, at three
//! commands for each user of a batch.
//!
//! **Time.** Every call ends within [`RedisOptions::call_timeout_ms`]. A connection that gave no answer in time is
//! given up and made again in the background; meanwhile calls fail at once. A frozen or dead Redis costs its callers
//! one time-out, not one per call. **Uncertainty.** Anything but an answer of a master is [`Unavailable`]: no
//! connection, no answer in time, loading, out of memory, a replica, a cluster that is down (I7). Reads go to masters
//! only, and a single server is asked whether it is one with every read.
//!
//! **What may be lost.** Redis replicates after it has answered: a fail-over may lose the last moments, and without
//! `appendonly yes` a restart loses all. Users then see a reward later; no reward is lost. A write that
//! timed out may still be carried out later; a token that comes back that way goes when its hash expires.
//!
//! The server's memory policy should be `noeviction` (a full server refuses puts, which are counted) or
//! `volatile-ttl`; [`RedisStore::open`] refuses others where a memory limit is set. Redis 7.0 or newer is needed.
//!
//! Connections live on the runtime on which the store is opened; callers may be on any other with time enabled.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use windfall_contract::tokens::{NEVER, TokenPut, TokenStore};
//! use windfall_store::redis::{RedisOptions, RedisStore};
//!
//! let store = RedisStore::open(RedisOptions::at("rediss://:secret@10.0.0.7:6379")).await?;
//! let put = TokenPut { user_id: 7, name: "rain-7-1".into(), token: "AQAB".into(), expires_at_ms: NEVER };
//! store.put(&[put]).await?;
//! assert_eq!(store.list(7, None, 10).await?.len(), 1);
//! # Ok(())
//! # }
//! ```

mod options;
mod whole;

pub use options::RedisOptions;
pub use windfall_redis_link::OpenRedisError;

use crate::packing::{packed, text, unpacked};
use async_trait::async_trait;
use options::LISTED_MAX;
use redis::{Cmd, Value};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use whole::Seen;
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};
use windfall_redis_link::{Nodes, Request, check, slot_of};

/// The latest millisecond that is handed to Redis: the end of the year 9999.
const LATEST_MS: u64 = 253_402_300_799_000;

/// The token store on Redis. Dropped, it closes its connections and ends their tasks.
pub struct RedisStore {
    nodes: Nodes,
    prefix: Box<[u8]>,
    calls: Semaphore,
    call_timeout: Duration,
    seen: Seen,
    /// Whether the server takes a hash as a whole, as far as is known.
    takes_whole: AtomicBool,
}

impl RedisStore {
    /// Connects, looks whether tokens can be kept there, and stays connected from then on.
    ///
    /// # Errors
    /// [`OpenRedisError`] names the place and the remedy.
    pub async fn open(options: RedisOptions) -> Result<Arc<Self>, OpenRedisError> {
        let servers = options.check()?;
        for (at, server) in servers.iter().enumerate() {
            match check(server, &options.link()).await {
                Ok(report) => {
                    if report.value("aof_enabled") == "0" && report.value("loading") == "0" {
                        tracing::warn!(
                            "Redis keeps no append-only file: tokens go with a restart (appendonly yes)"
                        );
                    }
                    break;
                }
                // Of a cluster's nodes some may be away.
                Err(error) if error.may_pass() && at + 1 < servers.len() => {}
                Err(error) => return Err(error),
            }
        }
        let store = Self::open_in_background(options)?;
        store.nodes.learn().await?;
        Ok(store)
    }

    /// Connects in the background: for a process that shall start though Redis is away (I8). Until it is there, and
    /// while it is not one for tokens (a replica, a version that is too old, one that evicts tokens), calls are
    /// [`Unavailable`]; their error and the log say why. Must be called on a runtime.
    ///
    /// # Errors
    /// [`OpenRedisError::Invalid`] alone.
    pub fn open_in_background(options: RedisOptions) -> Result<Arc<Self>, OpenRedisError> {
        let servers = options.check()?;
        Ok(Arc::new(Self {
            nodes: Nodes::start(&Handle::current(), &options.link(), servers),
            prefix: options.prefix.as_bytes().into(),
            calls: Semaphore::new(options.max_calls),
            call_timeout: options.call_timeout(),
            seen: Seen::default(),
            takes_whole: AtomicBool::new(true),
        }))
    }

    async fn run(
        &self,
        requests: Vec<Request>,
        guarded: bool,
        deadline: Instant,
    ) -> Result<Vec<Value>, Unavailable> {
        self.nodes.run(requests, guarded, deadline).await.map_err(|error| Unavailable(error.0))
    }

    /// Begins a call, so that calls which a slow server holds up do not pile up. // I9
    fn begin(&self) -> Result<(tokio::sync::SemaphorePermit<'_>, Instant), Unavailable> {
        let permit = self.calls.try_acquire().map_err(|_| Unavailable("too many calls at a time".into()))?;
        Ok((permit, Instant::now() + self.call_timeout))
    }

    fn request(&self, name: &str, user_id: i64, key: &mut Vec<u8>, arguments: usize) -> Request {
        key.clear();
        key.extend_from_slice(&self.prefix);
        // Writing to memory does not fail.
        write!(key, "{user_id}").ok();
        let mut command = Cmd::with_capacity(2 + arguments, 64 + arguments * 128);
        command.arg(name).arg(key.as_slice());
        Request::new(slot_of(key), command)
    }

    /// One request per user, with the names of this user in `keys`; and the indices of these.
    fn by_user(&self, name: &str, keys: &[TokenKey]) -> (Vec<Request>, Vec<usize>) {
        let order = sorted(keys.len(), |at| keys[at].user_id);
        let mut text = Vec::new();
        let runs = order.chunk_by(|one, next| keys[*one].user_id == keys[*next].user_id);
        let requests = runs.map(|run| {
            let mut request = self.request(name, keys[run[0]].user_id, &mut text, run.len());
            for at in run {
                request.command.arg(&*keys[*at].name);
            }
            request
        });
        (requests.collect(), order)
    }
}

impl RedisStore {
    /// A user's tokens as a new hash with its expiry; `None` where the user probably has a hash, or has many tokens.
    fn whole(
        &self,
        batch: &[TokenPut],
        puts: &[usize],
        key: &mut Vec<u8>,
        dump: &mut Vec<u8>,
    ) -> Option<Request> {
        let user_id = batch[puts[0]].user_id;
        if puts.len() > whole::FIELDS_MAX || self.seen.has(user_id) || !self.takes_whole.load(Relaxed) {
            return None;
        }
        let later = |nth: usize, name: &str| puts[nth + 1..].iter().any(|at| *batch[*at].name == *name);
        let fields = puts.iter().map(|at| &batch[*at]).enumerate();
        // The last put of an order wins.
        let fields = fields.filter(|(nth, put)| !later(*nth, &put.name));
        let fields = fields.map(|(_, put)| (put.name.as_bytes(), packed(&put.token)));
        whole::dump(fields, dump);
        let mut request = self.request("RESTORE", user_id, key, 3);
        request.command.arg(end_ms(batch, puts)).arg(dump.as_slice()).arg("ABSTTL");
        request.may_be_refused = true;
        Some(request)
    }

    /// A user's tokens for a hash that may exist. `HSET` comes first: from then on the hash exists until the user's
    /// tokens of this batch are removed. So it gets an expiry, or its expiry moves forward, never back.
    fn addition(&self, batch: &[TokenPut], puts: &[usize], key: &mut Vec<u8>) -> Request {
        let mut request = self.request("HSET", batch[puts[0]].user_id, key, 2 * puts.len());
        for at in puts {
            let put = &batch[*at];
            request.command.arg(&*put.name).arg(packed(&put.token));
        }
        let end_ms = end_ms(batch, puts);
        request.then = ["NX", "GT"]
            .map(|only| {
                let mut expire = Cmd::with_capacity(4, 64);
                expire.arg("PEXPIREAT").arg(key.as_slice()).arg(end_ms).arg(only);
                expire
            })
            .into();
        request
    }
}

/// When a user's hash is to expire. It is never 0, which `RESTORE` takes for "no expiry".
fn end_ms(batch: &[TokenPut], puts: &[usize]) -> u64 {
    puts.iter().map(|at| batch[*at].expires_at_ms).max().unwrap_or(0).clamp(1, LATEST_MS)
}

/// Indices sorted by user; those of one user keep their order, so that the last put of an order wins.
fn sorted(count: usize, user_of: impl Fn(usize) -> i64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|at| user_of(*at));
    order
}

fn unexpected(answer: &Value) -> Unavailable {
    Unavailable(format!("an answer of another kind: {answer:.100?}"))
}

fn number(answer: &Value) -> Result<i64, Unavailable> {
    match answer {
        Value::Int(number) => Ok(*number),
        other => Err(unexpected(other)),
    }
}

fn array(answer: Value) -> Result<Vec<Value>, Unavailable> {
    match answer {
        Value::Array(values) => Ok(values),
        other => Err(unexpected(&other)),
    }
}

fn token(value: &Value) -> Result<Option<Box<str>>, Unavailable> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => unpacked(bytes).map(Some).map_err(Unavailable),
        other => Err(unexpected(other)),
    }
}

#[async_trait]
impl TokenStore for RedisStore {
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable> {
        let (_permit, deadline) = self.begin()?;
        let order = sorted(batch.len(), |at| batch[at].user_id);
        let users: Vec<&[usize]> =
            order.chunk_by(|one, next| batch[*one].user_id == batch[*next].user_id).collect();
        let (mut key, mut dump) = (Vec::new(), Vec::new());
        let requests = users.iter().map(|puts| match self.whole(batch, puts, &mut key, &mut dump) {
            Some(whole) => whole,
            None => self.addition(batch, puts, &mut key),
        });
        let answers = self.run(requests.collect(), false, deadline).await?;
        let mut additions = Vec::new();
        for (puts, answer) in users.iter().zip(answers) {
            match answer {
                Value::Okay | Value::Int(_) => {}
                Value::ServerError(error) => {
                    // It is there already, or else this server takes no hash as a whole.
                    if error.code() != "BUSYKEY" && self.takes_whole.swap(false, Relaxed) {
                        tracing::warn!(
                            ?error,
                            "Redis does not take RESTORE; it takes two commands a user instead"
                        );
                    }
                    additions.push(self.addition(batch, puts, &mut key));
                }
                other => return Err(unexpected(&other)),
            }
        }
        if !additions.is_empty() {
            for answer in self.run(additions, false, deadline).await? {
                number(&answer)?;
            }
        }
        for puts in users {
            self.seen.add(batch[puts[0]].user_id);
        }
        Ok(())
    }

    async fn remove(&self, batch: &[TokenKey]) -> Result<(), Unavailable> {
        let (_permit, deadline) = self.begin()?;
        let (requests, _) = self.by_user("HDEL", batch);
        let answers = self.run(requests, false, deadline).await?;
        for key in batch {
            // The last one may have been among them.
            self.seen.remove(key.user_id);
        }
        answers.iter().try_for_each(|removed| number(removed).map(drop))
    }

    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        let (_permit, deadline) = self.begin()?;
        let (requests, order) = self.by_user("HMGET", keys);
        let answers = self.run(requests, true, deadline).await?;
        let mut found = vec![None; keys.len()];
        let mut places = order.into_iter();
        for values in answers {
            for value in array(values)? {
                let at = places.next().ok_or_else(|| unexpected(&value))?;
                found[at] = token(&value)?;
            }
        }
        if places.next().is_some() {
            return Err(Unavailable("an answer is missing".into()));
        }
        Ok(found)
    }

    async fn list(
        &self,
        user_id: i64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        let (_permit, deadline) = self.begin()?;
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut names = self.names(user_id, after, deadline).await?.into_iter().peekable();
        let mut page = Vec::new();
        // Again where tokens went between the two looks: a short page would be taken for the last.
        while page.len() < limit && names.peek().is_some() {
            let wanted: Vec<TokenKey> =
                names.by_ref().take(limit - page.len()).map(|name| TokenKey { user_id, name }).collect();
            let (requests, _) = self.by_user("HMGET", &wanted);
            let answers = self.run(requests, true, deadline).await?;
            let Some(values) = answers.into_iter().next() else { break };
            for (TokenKey { name, .. }, value) in wanted.into_iter().zip(array(values)?) {
                page.extend(token(&value)?.map(|token| StoredToken { name, token }));
            }
        }
        Ok(page)
    }
}

impl RedisStore {
    /// The names of a user's tokens after `after`, sorted.
    async fn names(
        &self,
        user_id: i64,
        after: Option<&str>,
        deadline: Instant,
    ) -> Result<Vec<Box<str>>, Unavailable> {
        let mut key = Vec::new();
        let count = self.request("HLEN", user_id, &mut key, 0);
        let answers = self.run(vec![count], true, deadline).await?;
        match answers.first() {
            Some(count) if number(count)? > LISTED_MAX => {
                return Err(Unavailable(format!("user {user_id} has more than {LISTED_MAX} tokens")));
            }
            Some(Value::Int(0)) | None => return Ok(Vec::new()),
            Some(_) => {}
        }
        let names = self.request("HKEYS", user_id, &mut key, 0);
        let answers = self.run(vec![names], true, deadline).await?;
        let Some(names) = answers.into_iter().next() else { return Ok(Vec::new()) };
        let mut sorted = Vec::new();
        for name in array(names)? {
            let Value::BulkString(bytes) = &name else { return Err(unexpected(&name)) };
            let name = text(bytes).map_err(Unavailable)?;
            if after.is_none_or(|after| *name > *after) {
                sorted.push(name);
            }
        }
        sorted.sort_unstable();
        Ok(sorted)
    }
}
