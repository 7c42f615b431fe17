//! A token store on Redis: one server, or a Redis Cluster.
//!
//! A user has a hash `{prefix}{user_id}`, order number → token; canonical base64url is kept as the bytes it stands
//! for. A batch is one `HSET` a user with all his tokens of the batch, in pipelines, a connection after the other,
//! without waiting in between.
//!
//! **Expiry.** A hash lives until the last of its tokens may go: `EXPIREAT … NX` gives a new one its end in the same
//! pipeline, and where there was one already `EXPIREAT … GT` moves it forward, never back. So a token of an activity
//! that ends soon may outlive it beside one of a longer activity, and never the other way round. The last removal
//! frees the hash.
//!
//! **Time.** Every call ends within [`RedisOptions::call_timeout_ms`]. A connection that gave no answer in time is
//! given up and made again in the background; meanwhile calls fail at once. A frozen or dead Redis costs its callers
//! one time-out, not one a call.
//!
//! **Doubt.** Anything but an answer of a master is [`Unavailable`]: no connection, no answer in time, loading, out of
//! memory, a replica, a cluster that is down (I7). Reads go to masters only, and a single server is asked whether it
//! is one with every read.
//!
//! **What may be lost.** Redis replicates after it has answered: a fail-over may lose the last moments, and without
//! `appendonly yes` a restart loses all. That costs users the early sight of a reward, never the reward. A write that
//! timed out may still be carried out later; a token that comes back that way goes when its hash expires.
//!
//! The server's memory policy should be `noeviction` (a full server refuses puts, which are counted) or
//! `volatile-ttl`; [`RedisStore::open`] refuses others where a memory limit is set. Redis 7.0 or newer is needed.
//!
//! Connections live on the runtime on which the store is opened; callers may be on any other with time enabled.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use windfall_store::contract::{NEVER, TokenPut, TokenStore};
//! use windfall_store::redis::{RedisOptions, RedisStore};
//!
//! let store = RedisStore::open(RedisOptions::at("redis://:secret@10.0.0.7:6379")).await?;
//! let put = TokenPut { user_id: 7, trade_no: "rain-7-1".into(), token: "AQAB".into(), expires_at_ms: NEVER };
//! store.put(&[put]).await?;
//! assert_eq!(store.list(7, None, 10).await?.len(), 1);
//! # Ok(())
//! # }
//! ```

mod link;
mod nodes;
mod options;
mod server;
mod slots;

pub use options::{OpenRedisError, RedisOptions};

use crate::contract::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};
use crate::packing::{packed, text, unpacked};
use async_trait::async_trait;
use nodes::{Answer, Nodes, Request};
use options::LISTED_MAX;
use redis::{Cmd, Value};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The latest second that is handed to Redis: the end of the year 9999.
const LATEST_S: u64 = 253_402_300_799;

/// The token store on Redis. Dropped, it closes its connections and ends their tasks.
pub struct RedisStore {
    nodes: Nodes,
    prefix: Box<[u8]>,
    calls: Semaphore,
    call_timeout: Duration,
}

impl RedisStore {
    /// Connects, looks whether tokens can be kept there, and stays connected from then on.
    ///
    /// # Errors
    /// [`OpenRedisError`] names the place and the remedy.
    pub async fn open(options: RedisOptions) -> Result<Arc<Self>, OpenRedisError> {
        let servers = options.check()?;
        let mut checked = Ok(());
        for server in &servers {
            checked = server::check(server, &options).await;
            // Of a cluster's nodes some may be away.
            if !matches!(checked, Err(OpenRedisError::Unreachable { .. })) {
                break;
            }
        }
        checked?;
        let store = Self::open_in_background(options)?;
        store.nodes.learn().await?;
        Ok(store)
    }

    /// Connects in the background: for a process that shall start though Redis is away (I8). Until it is there, and
    /// while it is not one for tokens, calls are [`Unavailable`]; the log says why. Must be called on a runtime.
    ///
    /// # Errors
    /// [`OpenRedisError::Invalid`] alone.
    pub fn open_in_background(options: RedisOptions) -> Result<Arc<Self>, OpenRedisError> {
        let servers = options.check()?;
        Ok(Arc::new(Self {
            nodes: Nodes::start(&Handle::current(), &options, servers),
            prefix: options.prefix.as_bytes().into(),
            calls: Semaphore::new(options.max_calls),
            call_timeout: options.call_timeout(),
        }))
    }

    async fn run(
        &self,
        requests: Vec<Request>,
        guarded: bool,
        deadline: Instant,
    ) -> Result<Vec<Answer>, Unavailable> {
        self.nodes.run(requests, guarded, deadline).await
    }

    /// I9: calls that a slow server holds up do not pile up.
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
        Request { slot: slots::slot_of(key), command, then: None }
    }

    /// One request a user, with the order numbers of his that `keys` names; and which these are.
    fn by_user(&self, name: &str, keys: &[TokenKey]) -> (Vec<Request>, Vec<usize>) {
        let order = sorted(keys.len(), |at| keys[at].user_id);
        let mut text = Vec::new();
        let runs = order.chunk_by(|one, next| keys[*one].user_id == keys[*next].user_id);
        let requests = runs.map(|run| {
            let mut request = self.request(name, keys[run[0]].user_id, &mut text, run.len());
            for at in run {
                request.command.arg(&*keys[*at].trade_no);
            }
            request
        });
        (requests.collect(), order)
    }
}

/// Indices by user; those of one user in their order, so that the last put of an order wins.
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
        let mut key = Vec::new();
        let mut requests = Vec::with_capacity(batch.len());
        let mut ends = Vec::with_capacity(batch.len());
        for run in order.chunk_by(|one, next| batch[*one].user_id == batch[*next].user_id) {
            let user_id = batch[run[0]].user_id;
            let mut request = self.request("HSET", user_id, &mut key, 2 * run.len());
            let mut end_ms = 0;
            for at in run {
                let put = &batch[*at];
                request.command.arg(&*put.trade_no).arg(packed(&put.token));
                end_ms = end_ms.max(put.expires_at_ms);
            }
            let end_s = end_ms.div_ceil(1000).min(LATEST_S);
            let mut expire = Cmd::with_capacity(4, 64);
            expire.arg("EXPIREAT").arg(key.as_slice()).arg(end_s).arg("NX");
            request.then = Some(expire);
            requests.push(request);
            ends.push((user_id, end_s));
        }
        let answers = self.run(requests, false, deadline).await?;
        let mut later = Vec::new();
        for ((stored, expires), (user_id, end_s)) in answers.into_iter().zip(ends) {
            number(&stored)?;
            if number(&expires)? == 0 {
                // There was an end already: it may be too early.
                let mut request = self.request("EXPIREAT", user_id, &mut key, 2);
                request.command.arg(end_s).arg("GT");
                later.push(request);
            }
        }
        if !later.is_empty() {
            self.run(later, false, deadline).await?;
        }
        Ok(())
    }

    async fn remove(&self, batch: &[TokenKey]) -> Result<(), Unavailable> {
        let (_permit, deadline) = self.begin()?;
        let (requests, _) = self.by_user("HDEL", batch);
        let answers = self.run(requests, false, deadline).await?;
        answers.iter().try_for_each(|(removed, _)| number(removed).map(drop))
    }

    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        let (_permit, deadline) = self.begin()?;
        let (requests, order) = self.by_user("HMGET", keys);
        let answers = self.run(requests, true, deadline).await?;
        let mut found = vec![None; keys.len()];
        let mut places = order.into_iter();
        for (values, _) in answers {
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
        let mut names = self.order_numbers(user_id, after, deadline).await?.into_iter().peekable();
        let mut page = Vec::new();
        // Again where tokens went between the two looks: a short page would be taken for the last.
        while page.len() < limit && names.peek().is_some() {
            let wanted: Vec<TokenKey> = names
                .by_ref()
                .take(limit - page.len())
                .map(|trade_no| TokenKey { user_id, trade_no })
                .collect();
            let (requests, _) = self.by_user("HMGET", &wanted);
            let answers = self.run(requests, true, deadline).await?;
            let Some((values, _)) = answers.into_iter().next() else { break };
            for (TokenKey { trade_no, .. }, value) in wanted.into_iter().zip(array(values)?) {
                page.extend(token(&value)?.map(|token| StoredToken { trade_no, token }));
            }
        }
        Ok(page)
    }
}

impl RedisStore {
    /// A user's order numbers after `after`, sorted.
    async fn order_numbers(
        &self,
        user_id: i64,
        after: Option<&str>,
        deadline: Instant,
    ) -> Result<Vec<Box<str>>, Unavailable> {
        let mut key = Vec::new();
        let count = self.request("HLEN", user_id, &mut key, 0);
        let answers = self.run(vec![count], true, deadline).await?;
        match answers.first() {
            Some((count, _)) if number(count)? > LISTED_MAX => {
                return Err(Unavailable(format!("user {user_id} has more than {LISTED_MAX} tokens")));
            }
            Some((Value::Int(0), _)) | None => return Ok(Vec::new()),
            Some(_) => {}
        }
        let names = self.request("HKEYS", user_id, &mut key, 0);
        let answers = self.run(vec![names], true, deadline).await?;
        let Some((names, _)) = answers.into_iter().next() else { return Ok(Vec::new()) };
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
