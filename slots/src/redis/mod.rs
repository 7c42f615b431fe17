//! A slot store on Redis 7: one server, or a Redis Cluster.
//!
//! All keys of a shard have its hash tag, so that they lie on one node, and a script changes one shard as a whole:
//!
//! | key | type | what |
//! |---|---|---|
//! | `{wf:0012}:l:<slot>` | list | the slot's entries |
//! | `{wf:0012}:c:<slot>` | bitmap | entries that were cancelled or moved |
//! | `{wf:0012}:v:<slot>` | hash | index → slot and index to which it was moved, or loaded from the far tier |
//! | `{wf:0012}:f:<slot>` | bitmap | entries that are done |
//! | `{wf:0012}:a:<slot>` | hash | index → how often it was tried in vain |
//! | `{wf:0012}:k` | hash | tenant's number and key → slot and index, and the digest of an add that came by a queue |
//! | `{wf:0012}:u` | hash | tenant's number and key that was used once → how it ended, and the digest of its add |
//! | `{wf:0012}:x` | sorted set | these keys, by the time at which they were used up |
//! | `{wf:0012}:n` | hash | tenant's number → how many tasks wait |
//! | `{wf:0012}:i` | sorted set | the slots that are there |
//! | `{wf:0012}:m` | hash | watermark `w`, advances `t`, epoch `e`, owner `o`, end of the lease `u`, last finished batch `fe`, `fs`, how long used keys are kept `qk`, and from when they are known `qf`, and by far log `l<log>` the last batch that it loaded |
//! | `{wf:0012}:d` | sorted set | dead letters: tenant, slot, index, and what they were |
//! | `{wf:names}:t`, `:b`, `:s`, `:q` | hash, hash, string, string | names and their numbers, instances, the number of shards, the id of the queue of adds |
//!
//! **Time** is the server's, read inside the scripts. After a fail-over to a server whose clock is behind, no watermark
//! goes back, and a lease counts from the new clock.
//!
//! **Durability.** [`RedisSlots::durability`](SlotStore::durability) says what `appendfsync` is set to. A server without
//! an append-only file and one that evicts keys are refused, unless an option by name allows them. Redis replicates after
//! it has answered: a fail-over to a replica may lose the last moments, also in a cluster. An owner may have read entries
//! that are lost then, and others may take their places: each advance is counted, the count is lost with the entries, and
//! an owner that knows of a later advance than the server has lost its lease, and reads everything anew.
//!
//! **A server that is away at the start.** [`RedisSlots::open_later`] needs no server; until [`RedisSlots::connect`] has
//! succeeded once, nothing is sent there, and each call is [`StoreError::Unavailable`] with the reason. What is checked
//! once, by the first connection: the number of shards and `appendfsync`. What is checked by each connection: version,
//! append-only file, eviction; a server that comes back as one that does not suit is not used until it suits again.
//!
//! **Names.** Their numbers are lost with a server's data as anything else is. Processes say again and again which ones
//! they know ([`SlotStore::keep_names`]), and what nobody else has by then is put back.
//!
//! **Doubt.** A call whose connection was lost after it was sent is not sent again where that could do it twice; its
//! caller gets [`StoreError::Unavailable`]. A script looks at every key before it changes one, so that a cluster's slot
//! that is on its way to another node refuses the call as a whole; it is then asked again until its deadline.
//!
//! **A full server.** At `maxmemory` a server refuses what needs lasting memory: adds, new names, and batches of changes
//! that move a task. Whatever lets tasks fire and go is carried out, so that memory falls again; names are put back, too.
//!
//! **Rights.** The user needs `EVAL`, `EVALSHA`, the commands of the scripts, `LRANGE`, `HGETALL`, `ZRANGEBYLEX`, `SET`,
//! `GET`, `CONFIG|GET`, `ROLE`, `INFO` and `PING`, in a cluster `CLUSTER` and `ASKING` too.
//!
//! Connections live on the runtime on which the store is opened.

mod adding;
mod answers;
mod connected;
mod loading;
mod once;
mod options;
mod scripts;

pub use options::RedisSlotsOptions;
pub use windfall_redis_link::OpenRedisError;

use crate::{checks, dead_letter};
use adding::Adding;
use answers::{array, bytes, id, number, record, text, unexpected};
use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use connected::{Connected, Way};
use options::OVERTAKEN_MAX;
use parking_lot::Mutex;
use redis::{Cmd, ConnectionInfo, Value};
use scripts::{Argument, Known, Scripts};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;
use windfall_contract::due::{
    Added, Advanced, CancelOnce, CancelledOnce, Change, Changed, DeadTask, Durability, FinishBatch, Found,
    HeldBy, KnownName, Lease, LeaseError, LoadBatch, Loaded, NameKept, NewRecord, OnceAnswers, OnceRecord,
    ReadFrom, Route, Shard, SlotMinute, SlotState, SlotStore, StoreError, TaskAt, TaskId, Waiting,
    WaitingPage,
};
use windfall_redis_link::slot_of;

/// The entries that the first part of a read takes, and how many times as many the next one may.
const READ_FIRST: u32 = 16;

/// The slot store on Redis. Dropped, it closes its connections and ends their tasks.
pub struct RedisSlots {
    options: RedisSlotsOptions,
    servers: Vec<ConnectionInfo>,
    scripts: Scripts,
    connected: OnceLock<Connected>,
    /// By shard: the epoch of the latest lease, and its last advance that was answered.
    turns: Mutex<BTreeMap<Shard, (u64, u64)>>,
    /// Why it is not connected, as far as it has been tried.
    why_not: Mutex<Option<String>>,
}

/// The names of a shard's keys.
struct Keys(String);

impl Keys {
    fn of(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.0).into_bytes()
    }

    fn slot(&self, name: &str, slot: u32) -> Vec<u8> {
        format!("{}{name}:{slot}", self.0).into_bytes()
    }
}

impl RedisSlots {
    /// Connects, looks whether tasks can be kept there, and stays connected from then on.
    ///
    /// # Errors
    /// [`OpenRedisError`] names the place and the remedy.
    pub async fn open(options: RedisSlotsOptions) -> Result<Arc<Self>, OpenRedisError> {
        let store = Self::open_later(options)?;
        store.connect().await?;
        Ok(store)
    }

    /// Connects to nothing yet, for a process that shall start though Redis is away. Until [`connect`](Self::connect)
    /// has succeeded, every call is [`StoreError::Unavailable`] and says why.
    ///
    /// # Errors
    /// [`OpenRedisError::Invalid`] alone.
    pub fn open_later(options: RedisSlotsOptions) -> Result<Arc<Self>, OpenRedisError> {
        let servers = options.check()?;
        Ok(Arc::new(Self {
            options,
            servers,
            scripts: Scripts::new(),
            connected: OnceLock::new(),
            turns: Mutex::default(),
            why_not: Mutex::default(),
        }))
    }

    /// Connects, looks whether tasks can be kept there, and stays connected from then on; does nothing where it is
    /// connected. Must be called on the runtime on which the connections shall live.
    ///
    /// # Errors
    /// [`OpenRedisError`]. Where it [may pass](OpenRedisError::may_pass), call it again in a moment.
    pub async fn connect(&self) -> Result<(), OpenRedisError> {
        if self.connected.get().is_some() {
            return Ok(());
        }
        match Connected::make(&self.options, &self.servers).await {
            Ok(connected) => {
                // Of two calls at a time one is as good as the other.
                self.connected.set(connected).ok();
                Ok(())
            }
            Err(error) => {
                *self.why_not.lock() = Some(error.to_string());
                Err(error)
            }
        }
    }

    fn connected(&self) -> Result<&Connected, StoreError> {
        self.connected.get().ok_or_else(|| {
            let why = self.why_not.lock().clone();
            StoreError::Unavailable(why.unwrap_or_else(|| "Redis was not reached yet".into()))
        })
    }

    fn keys(&self, shard: Shard) -> Keys {
        Keys(self.options.of_shard(shard))
    }

    fn registry(&self, name: &str) -> Vec<u8> {
        self.options.registry(name)
    }

    async fn command(&self, key: &[u8], command: Cmd, way: Way) -> Result<Value, StoreError> {
        self.send(slot_of(key), || command.clone(), way, self.deadline()).await
    }

    async fn send(
        &self,
        slot: u16,
        command: impl Fn() -> Cmd,
        way: Way,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        self.connected()?.send(slot, command, way, deadline).await
    }

    /// Calls a script on the keys, which are of one shard.
    async fn call(
        &self,
        script: &Known,
        keys: &[Vec<u8>],
        arguments: &[Argument],
        way: Way,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let slot = slot_of(&keys[0]);
        match self.send(slot, || script.call(false, keys, arguments), way, deadline).await? {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                let answer = self.send(slot, || script.call(true, keys, arguments), way, deadline).await?;
                refused(answer)
            }
            answer => refused(answer),
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.options.call_timeout()
    }

    /// The last advance under a lease that was answered; 0 where there is none.
    fn turn(&self, lease: &Lease) -> u64 {
        let known = self.turns.lock().get(&lease.shard).copied();
        known.filter(|(epoch, _)| *epoch == lease.epoch).map_or(0, |(_, turn)| turn)
    }

    fn saw_turn(&self, lease: &Lease, turn: u64) {
        let mut turns = self.turns.lock();
        let known = turns.entry(lease.shard).or_default();
        *known = (*known).max((lease.epoch, turn));
    }

    /// Calls a script under a lease.
    async fn leased(
        &self,
        script: &Known,
        keys: &[Vec<u8>],
        arguments: &[Argument],
    ) -> Result<Value, LeaseError> {
        let answer = self.call(script, keys, arguments, Way::Repeats, self.deadline()).await?;
        match text(&answer) {
            Ok("lost") => Err(LeaseError::Lost),
            _ => Ok(answer),
        }
    }

    async fn number_of(
        &self,
        name_field: Vec<u8>,
        counter: String,
        before: String,
        name: &str,
    ) -> Result<u16, StoreError> {
        let arguments: [Argument; 5] =
            [name_field.into(), counter.into(), before.into(), name.to_owned().into(), u16::MAX.into()];
        let keys = [self.registry("t")];
        let answer = self.call(&self.scripts.name, &keys, &arguments, Way::Repeats, self.deadline()).await?;
        match number(&answer)? {
            0 => Err(StoreError::Unusable(format!("all {} numbers of names are taken", u16::MAX))),
            number => Ok(number),
        }
    }

    /// Entries of slots as far as `max_bytes` goes, and one at least. `reads` says how many entries of each slot there
    /// are: those that came since are read when they are counted.
    async fn read(
        &self,
        shard: Shard,
        reads: impl Iterator<Item = (ReadFrom, u32)>,
        max_bytes: usize,
        deadline: Instant,
    ) -> Result<Vec<(SlotMinute, u32, Vec<Bytes>)>, StoreError> {
        let keys = self.keys(shard);
        let mut parts = Vec::new();
        let (mut bytes_read, mut entries_read) = (0, 0);
        let mut at_once = READ_FIRST;
        for (ReadFrom { slot, next_index }, counted) in reads {
            let key = keys.slot("l", slot.0);
            let mut entries: Vec<Bytes> = Vec::new();
            let mut is_full = false;
            loop {
                let from = next_index.saturating_add(u32::try_from(entries.len()).unwrap_or(u32::MAX));
                let asked = at_once.min(counted.saturating_sub(from));
                if asked == 0 {
                    break;
                }
                let mut command = redis::cmd("LRANGE");
                command.arg(&key).arg(from).arg(from + (asked - 1));
                let answer = self.send(slot_of(&key), || command.clone(), Way::Reads, deadline).await?;
                let part = array(refused(answer)?)?;
                let is_last = part.len() < usize::try_from(asked).unwrap_or(usize::MAX);
                for entry in part {
                    let entry = bytes(entry)?;
                    is_full = bytes_read + entry.len() > max_bytes && entries_read > 0;
                    if is_full {
                        break;
                    }
                    bytes_read += entry.len();
                    entries_read += 1;
                    entries.push(entry);
                }
                if is_full || is_last {
                    break;
                }
                // As many as the rest of the bytes will hold, by those that were read.
                let fits = max_bytes.saturating_sub(bytes_read) / (bytes_read / entries_read).max(1) + 1;
                at_once = u32::try_from(fits).unwrap_or(u32::MAX).clamp(1, at_once.saturating_mul(16));
            }
            if !entries.is_empty() {
                parts.push((slot, next_index, entries));
            }
            if is_full {
                break;
            }
        }
        Ok(parts)
    }
}

/// A script says no by an error; nothing was changed.
fn refused(answer: Value) -> Result<Value, StoreError> {
    match answer {
        Value::ServerError(error) => Err(StoreError::Unavailable(format!("Redis refuses the call: {error}"))),
        answer => Ok(answer),
    }
}

/// A field of the `k` hash.
fn key_field(tenant: u16, key: &[u8]) -> Vec<u8> {
    [&tenant.to_be_bytes(), key].concat()
}

/// A dead letter without its body, as far as it says so.
fn dead_prefix(tenant: u16, id: TaskId) -> BytesMut {
    let mut prefix = BytesMut::with_capacity(10);
    prefix.put_u16(tenant);
    prefix.put_u32(id.slot.0);
    prefix.put_u32(id.index);
    prefix
}

/// The key or nothing, slot, index. An id of another shard leads nowhere.
fn push_at(arguments: &mut Vec<Argument>, shard: Shard, tenant: u16, at: &TaskAt) {
    let (field, slot, index) = match at {
        TaskAt::Key(key) => (key_field(tenant, key.as_bytes()), 0, 0),
        TaskAt::Id(id) if id.shard == shard => (Vec::new(), id.slot.0, id.index),
        TaskAt::Id(_) => (Vec::new(), u32::MAX, u32::MAX),
    };
    arguments.extend([field.into(), slot.into(), index.into()]);
}

fn state_at(id: TaskId, offset_ms: u16, watermark_ms: u64) -> Waiting {
    match id.slot.start_ms() + u64::from(offset_ms) <= watermark_ms {
        true => Waiting::Firing,
        false => Waiting::Waiting,
    }
}

#[async_trait]
impl SlotStore for RedisSlots {
    fn shards(&self) -> u16 {
        self.options.shards
    }

    fn durability(&self) -> Durability {
        // Nothing is stored before a server is known, so the least is no lie.
        self.connected.get().map_or(Durability::Process, |connected| connected.durability)
    }

    async fn tenant(&self, name: &str) -> Result<u16, StoreError> {
        checks::name(name)?;
        self.number_of([b"t", name.as_bytes()].concat(), "c".into(), "T".into(), name).await
    }

    async fn target(&self, tenant: u16, name: &str) -> Result<u16, StoreError> {
        checks::name(name)?;
        let field = format!("g{tenant}:{name}").into_bytes();
        self.number_of(field, format!("c{tenant}"), format!("G{tenant}:"), name).await
    }

    async fn names(&self, route: Route) -> Result<Option<(String, String)>, StoreError> {
        let key = self.registry("t");
        let mut command = redis::cmd("HMGET");
        command
            .arg(&key)
            .arg(format!("T{}", route.tenant))
            .arg(format!("G{}:{}", route.tenant, route.target));
        match &array(refused(self.command(&key, command, Way::Reads).await?)?)?[..] {
            [tenant @ Value::BulkString(_), target @ Value::BulkString(_)] => {
                Ok(Some((text(tenant)?.to_owned(), text(target)?.to_owned())))
            }
            _ => Ok(None),
        }
    }

    async fn keep_names(&self, known: &[KnownName]) -> Result<Vec<NameKept>, StoreError> {
        checks::known_names(known)?;
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let mut arguments: Vec<Argument> = Vec::with_capacity(4 * known.len());
        for KnownName { tenant: (tenant, name), target } in known {
            arguments.extend([Argument::from(*tenant), Argument::from(name.clone())]);
            match target {
                Some((target, name)) => {
                    arguments.extend([Argument::from(*target), Argument::from(name.clone())]);
                }
                None => arguments.extend([Argument::from(""), Argument::from("")]),
            }
        }
        let keys = [self.registry("t")];
        let script = &self.scripts.keep_names;
        let answer = self.call(script, &keys, &arguments, Way::Repeats, self.deadline()).await?;
        let kept = array(answer)?;
        if kept.len() != known.len() {
            return Err(StoreError::Unavailable("names were kept, and an answer is missing".into()));
        }
        let is_kept = |answer: &Value| match number::<u8>(answer)? {
            0 => Ok(NameKept::Same),
            1 => Ok(NameKept::PutBack),
            2 => Ok(NameKept::Moved),
            3 => Ok(NameKept::Taken),
            _ => Err(unexpected(answer)),
        };
        kept.iter().map(is_kept).collect()
    }

    async fn add(&self, shard: Shard, batch: &[NewRecord]) -> Result<Vec<Added>, StoreError> {
        checks::add(shard, self.options.shards, batch)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let (keys, deadline) = (self.keys(shard), self.deadline());
        // The script says the watermark where it is beyond tasks that it did not expect there, and has stored nothing.
        let mut watermark_ms = 0;
        for _ in 0..OVERTAKEN_MAX {
            let adding = Adding::new(&keys, batch, watermark_ms);
            let answer =
                self.call(&self.scripts.add, &adding.keys, &adding.arguments, Way::Once, deadline).await?;
            match answer {
                Value::BulkString(_) => watermark_ms = number(&answer)?,
                answer => return adding.answers(shard, answer),
            }
        }
        Err(StoreError::Unavailable("the watermark has overtaken the tasks again and again".into()))
    }

    async fn load(&self, shard: Shard, batch: &LoadBatch) -> Result<Loaded, StoreError> {
        checks::load(shard, self.options.shards, batch)?;
        let keys = self.keys(shard);
        let keys = ["m", "n", "i"].map(|name| keys.of(name));
        let arguments = loading::arguments(self.options.is_cluster, batch);
        let answer = self.call(&self.scripts.load, &keys, &arguments, Way::Repeats, self.deadline()).await?;
        match text(&answer)? {
            "stored" => Ok(Loaded::Stored),
            "before" => Ok(Loaded::Before),
            _ => Ok(Loaded::Other(number(&answer)?)),
        }
    }

    async fn queue_id(&self, fresh: Option<u64>) -> Result<Option<u64>, StoreError> {
        let key = self.registry("q");
        if let Some(fresh) = fresh {
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(format!("{fresh:016x}")).arg("NX");
            refused(self.command(&key, set, Way::Repeats).await?)?;
        }
        let mut get = redis::cmd("GET");
        get.arg(&key);
        match refused(self.command(&key, get, Way::Reads).await?)? {
            Value::Nil => Ok(None),
            found => match u64::from_str_radix(text(&found)?, 16) {
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(unexpected(&found)),
            },
        }
    }

    async fn add_once(
        &self,
        shard: Shard,
        batch: &[OnceRecord],
        keys_kept_ms: u64,
    ) -> Result<OnceAnswers, StoreError> {
        checks::add_once(shard, self.options.shards, batch)?;
        let (keys, deadline) = (self.keys(shard), self.deadline());
        let mut watermark_ms = 0;
        for _ in 0..OVERTAKEN_MAX {
            let (keys, arguments) = once::adding(&keys, batch, keys_kept_ms, watermark_ms);
            let answer = self.call(&self.scripts.add_once, &keys, &arguments, Way::Repeats, deadline).await?;
            match answer {
                Value::BulkString(_) => watermark_ms = number(&answer)?,
                answer => return once::added(shard, batch.len(), answer),
            }
        }
        Err(StoreError::Unavailable("the watermark has overtaken the tasks again and again".into()))
    }

    async fn cancel_once(
        &self,
        shard: Shard,
        batch: &[CancelOnce],
    ) -> Result<Vec<CancelledOnce>, StoreError> {
        checks::cancel_once(shard, self.options.shards, batch)?;
        let (keys, arguments) = once::cancelling(&self.keys(shard), self.options.is_cluster, batch);
        let script = &self.scripts.cancel_once;
        once::cancelled(shard, self.call(script, &keys, &arguments, Way::Once, self.deadline()).await?)
    }

    async fn change(&self, shard: Shard, batch: &[Change]) -> Result<Vec<Changed>, StoreError> {
        checks::change(shard, self.options.shards, batch)?;
        let keys = self.keys(shard);
        let keys = ["m", "n", "i", "k", "u", "x"].map(|name| keys.of(name));
        let mut arguments: Vec<Argument> = Vec::with_capacity(2 + 8 * batch.len());
        arguments.push(u16::from(self.options.is_cluster).into());
        arguments.push(shard.0.to_be_bytes().to_vec().into());
        for Change { tenant, at, to } in batch {
            arguments.push(tenant.to_be_bytes().to_vec().into());
            arguments.push((*tenant).into());
            push_at(&mut arguments, shard, *tenant, at);
            arguments.push(if to.is_some() { "m" } else { "c" }.into());
            match to.as_ref().and_then(|to| to.due_ms) {
                Some(due_ms) => arguments.push(due_ms.into()),
                None => arguments.push("".into()),
            }
            match to.as_ref().and_then(|to| to.payload.as_ref()) {
                Some(payload) => arguments.push([b"p", &payload[..]].concat().into()),
                None => arguments.push("".into()),
            }
        }
        let script = match batch.iter().any(|change| change.to.is_some()) {
            true => &self.scripts.change,
            false => &self.scripts.cancel,
        };
        let answer = self.call(script, &keys, &arguments, Way::Once, self.deadline()).await?;
        let read = |one: Value| {
            let one = array(one)?;
            Ok(match (one.first().map(text).transpose()?, &one[..]) {
                (Some("d"), [_, slot, index]) => Changed::Done(id(shard, slot, index)?),
                (Some("c"), _) => Changed::Cancelled,
                (Some("f"), _) => Changed::Firing,
                (Some("u"), _) => Changed::Unknown,
                _ => return Err(unexpected(&Value::Array(one))),
            })
        };
        array(answer)?.into_iter().map(read).collect()
    }

    async fn get(&self, shard: Shard, tenant: u16, at: &[TaskAt]) -> Result<Vec<Option<Found>>, StoreError> {
        checks::shard(shard, self.options.shards)?;
        let keys = [self.keys(shard).of("m")];
        let mut arguments: Vec<Argument> = vec![tenant.to_be_bytes().to_vec().into()];
        for at in at {
            push_at(&mut arguments, shard, tenant, at);
        }
        let answer = self.call(&self.scripts.get, &keys, &arguments, Way::Reads, self.deadline()).await?;
        let mut answer = array(answer)?.into_iter();
        let watermark_ms: u64 = number(&answer.next().unwrap_or(Value::Nil))?;
        let read = |one: Value| {
            let mut one = array(one)?;
            let Some(entry) = one.pop() else { return Ok(None) };
            let [slot, index, is_cancelled] = &one[..] else { return Err(unexpected(&Value::Array(one))) };
            let id = id(shard, slot, index)?;
            let record = record(id, entry)?;
            let state = match number::<u8>(is_cancelled)? {
                0 => state_at(id, record.offset_ms, watermark_ms),
                _ => Waiting::Cancelled,
            };
            Ok(Some(Found { id, state, record }))
        };
        answer.map(read).collect()
    }

    async fn list(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        let deadline = self.deadline();
        let limit = limit.max(1);
        let (first, mut slot, mut index) = match after {
            Some(after) => (after.shard.0, after.slot.0, u64::from(after.index) + 1),
            None => (0, 0, 0),
        };
        let mut page = WaitingPage::default();
        let mut looks = checks::LISTED_MAX as u64;
        for shard in (first..self.options.shards).map(Shard) {
            let arguments: [Argument; 5] = [
                tenant.to_be_bytes().to_vec().into(),
                slot.into(),
                index.into(),
                ((limit - page.tasks.len()) as u64).into(),
                looks.into(),
            ];
            (slot, index) = (0, 0);
            let keys = [self.keys(shard).of("m")];
            let answer = self.call(&self.scripts.list, &keys, &arguments, Way::Reads, deadline).await?;
            let mut answer = array(answer)?.into_iter();
            let mut next = || answer.next().unwrap_or(Value::Nil);
            let watermark_ms: u64 = number(&next())?;
            let (last_slot, last_index, looked) = (next(), next(), number::<u64>(&next())?);
            for one in answer {
                let mut one = array(one)?;
                let entry = one.pop().unwrap_or(Value::Nil);
                let [slot, index] = &one[..] else { return Err(unexpected(&Value::Array(one))) };
                let id = id(shard, slot, index)?;
                let record = record(id, entry)?;
                let state = state_at(id, record.offset_ms, watermark_ms);
                page.tasks.push(Found { id, state, record });
            }
            if !text(&last_slot)?.is_empty() {
                page.next = Some(id(shard, &last_slot, &last_index)?);
                break;
            }
            looks = looks.saturating_sub(looked).max(1);
        }
        Ok(page)
    }

    async fn counts(&self, shard: Shard) -> Result<BTreeMap<u16, u64>, StoreError> {
        checks::shard(shard, self.options.shards)?;
        let key = self.keys(shard).of("n");
        let mut command = redis::cmd("HGETALL");
        command.arg(&key);
        let pairs = array(refused(self.command(&key, command, Way::Reads).await?)?)?;
        pairs.chunks_exact(2).map(|pair| Ok((number(&pair[0])?, number(&pair[1])?))).collect()
    }

    async fn beat(&self, instance: &str, ttl_ms: u64) -> Result<Vec<String>, StoreError> {
        checks::name(instance)?;
        let (keys, arguments) = ([self.registry("b")], [instance.to_owned().into(), ttl_ms.into()]);
        let answer = self.call(&self.scripts.beat, &keys, &arguments, Way::Repeats, self.deadline()).await?;
        let living: Result<Vec<_>, _> =
            array(answer)?.iter().map(|name| text(name).map(str::to_owned)).collect();
        living.map(|mut living| {
            living.sort_unstable();
            living
        })
    }

    async fn acquire(
        &self,
        shard: Shard,
        instance: &str,
        ttl_ms: u64,
    ) -> Result<Result<Lease, HeldBy>, StoreError> {
        checks::shard(shard, self.options.shards)?;
        checks::name(instance)?;
        let (keys, arguments) = ([self.keys(shard).of("m")], [instance.to_owned().into(), ttl_ms.into()]);
        match self.call(&self.scripts.acquire, &keys, &arguments, Way::Repeats, self.deadline()).await? {
            Value::Array(held) => match &held[..] {
                [owner, left_ms] => {
                    Ok(Err(HeldBy { instance: text(owner)?.to_owned(), left_ms: number(left_ms)? }))
                }
                _ => Err(unexpected(&Value::Array(held))),
            },
            epoch => Ok(Ok(Lease { shard, epoch: number(&epoch)? })),
        }
    }

    async fn renew(&self, lease: &Lease, ttl_ms: u64) -> Result<(), LeaseError> {
        let (keys, arguments) = ([self.keys(lease.shard).of("m")], [lease.epoch.into(), ttl_ms.into()]);
        self.leased(&self.scripts.renew, &keys, &arguments).await.map(drop)
    }

    async fn release(&self, lease: &Lease) -> Result<(), LeaseError> {
        let (keys, arguments) = ([self.keys(lease.shard).of("m")], [lease.epoch.into()]);
        self.leased(&self.scripts.release, &keys, &arguments).await.map(drop)
    }

    async fn advance(
        &self,
        lease: &Lease,
        ahead_ms: u64,
        reads: &[ReadFrom],
        max_bytes: usize,
    ) -> Result<Advanced, LeaseError> {
        let deadline = self.deadline();
        let keys = [self.keys(lease.shard).of("m")];
        let mut arguments: Vec<Argument> = vec![lease.epoch.into(), ahead_ms.into(), self.turn(lease).into()];
        arguments.extend(reads.iter().map(|read| Argument::from(read.slot.0)));
        let answer = array(self.leased(&self.scripts.advance, &keys, &arguments).await?)?;
        let [watermark_ms, turn, Value::Array(slots), Value::Array(counted)] = &answer[..] else {
            return Err(unexpected(&Value::Array(answer)).into());
        };
        let watermark_ms = number(watermark_ms)?;
        let slot = |pair: &[Value]| Ok::<_, StoreError>((SlotMinute(number(&pair[0])?), number(&pair[1])?));
        let slots = slots.chunks_exact(2).map(slot).collect::<Result<_, _>>()?;
        let counted = counted.iter().map(number).collect::<Result<Vec<u32>, _>>()?;
        self.saw_turn(lease, number(turn)?);
        // Entries never change, so they may be read while others go on.
        let reads = reads.iter().copied().zip(counted);
        let entries = self.read(lease.shard, reads, max_bytes, deadline).await?;
        Ok(Advanced { watermark_ms, slots, entries })
    }

    async fn state(&self, lease: &Lease, slot: SlotMinute) -> Result<SlotState, LeaseError> {
        let (keys, arguments) = ([self.keys(lease.shard).of("m")], [lease.epoch.into(), slot.0.into()]);
        let mut answer = array(self.leased(&self.scripts.state, &keys, &arguments).await?)?;
        let attempts = array(answer.pop().unwrap_or(Value::Nil))?;
        let done = bytes(answer.pop().unwrap_or(Value::Nil))?;
        let pair = |pair: &[Value]| Ok::<_, StoreError>((number(&pair[0])?, number(&pair[1])?));
        Ok(SlotState { done, attempts: attempts.chunks_exact(2).map(pair).collect::<Result<_, _>>()? })
    }

    async fn finish(&self, lease: &Lease, slot: SlotMinute, batch: &FinishBatch) -> Result<(), LeaseError> {
        let names = self.keys(lease.shard);
        let mut keys: Vec<_> = ["m", "n", "k", "d"].iter().map(|name| names.of(name)).collect();
        keys.extend(["l", "f", "a"].iter().map(|name| names.slot(name, slot.0)));
        keys.extend(["u", "x"].iter().map(|name| names.of(name)));
        let mut arguments: Vec<Argument> =
            vec![lease.epoch.into(), batch.sequence.into(), slot.0.into(), self.turn(lease).into()];
        arguments.push((batch.done.len() as u64).into());
        for (first, bytes) in &batch.done {
            arguments.extend([(*first).into(), bytes.clone().into()]);
        }
        arguments.push((batch.keys.len() as u64).into());
        for (tenant, key, index) in &batch.keys {
            let place = (u64::from(slot.0) << 32 | u64::from(*index)).to_be_bytes();
            arguments.extend([key_field(*tenant, key.as_bytes()).into(), place.to_vec().into()]);
        }
        arguments.push((batch.over.len() as u64).into());
        for (tenant, over) in &batch.over {
            arguments.extend([(*tenant).into(), (*over).into()]);
        }
        arguments.push((batch.attempts.len() as u64).into());
        for (index, attempts) in &batch.attempts {
            arguments.extend([(*index).into(), (*attempts).into()]);
        }
        arguments.push((batch.dead.len() as u64).into());
        for dead in &batch.dead {
            let prefix = dead_prefix(dead.record.route.tenant, dead.id).freeze();
            arguments.extend([prefix.into(), dead_letter::encode(dead).into()]);
        }
        let answer = self.leased(&self.scripts.finish, &keys, &arguments).await?;
        match text(&answer)? {
            "done" => Ok(()),
            _ => Err(unexpected(&answer).into()),
        }
    }

    async fn drop_slot(&self, lease: &Lease, slot: SlotMinute, entries: u32) -> Result<bool, LeaseError> {
        let names = self.keys(lease.shard);
        let mut keys = vec![names.of("m"), names.of("i")];
        keys.extend(["l", "c", "f", "v", "a"].iter().map(|name| names.slot(name, slot.0)));
        let arguments = [lease.epoch.into(), slot.0.into(), entries.into(), self.turn(lease).into()];
        let answer = self.leased(&self.scripts.drop, &keys, &arguments).await?;
        Ok(text(&answer)? == "gone")
    }

    async fn dead(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<DeadTask>, StoreError> {
        let deadline = self.deadline();
        let mut letters = Vec::new();
        for shard in (after.map_or(0, |after| after.shard.0)..self.options.shards).map(Shard) {
            let mut from = vec![b'['];
            match after.filter(|after| after.shard == shard) {
                // The body's first byte is 0: behind the id, whatever its body.
                Some(after) => {
                    from.extend_from_slice(&dead_prefix(tenant, after));
                    from.push(1);
                }
                None => from.extend_from_slice(&tenant.to_be_bytes()),
            }
            let to = match tenant.checked_add(1) {
                Some(next) => [b"(", &next.to_be_bytes()[..]].concat(),
                None => b"+".to_vec(),
            };
            let key = self.keys(shard).of("d");
            let mut command = redis::cmd("ZRANGEBYLEX");
            command.arg(&key).arg(from).arg(to).arg("LIMIT").arg(0).arg(limit - letters.len());
            let answer = self.send(slot_of(&key), || command.clone(), Way::Reads, deadline).await?;
            for letter in array(refused(answer)?)? {
                let mut letter = bytes(letter)?;
                if letter.len() < 10 {
                    return Err(StoreError::Unusable("a dead letter is damaged".into()));
                }
                let body = letter.split_off(10);
                let number = |at: usize| {
                    u32::from_be_bytes([letter[at], letter[at + 1], letter[at + 2], letter[at + 3]])
                };
                let id = TaskId { shard, slot: SlotMinute(number(2)), index: number(6) };
                letters.push(dead_letter::decode(id, body)?);
            }
            if letters.len() >= limit {
                break;
            }
        }
        Ok(letters)
    }

    async fn end_dead(
        &self,
        shard: Shard,
        tenant: u16,
        ids: &[TaskId],
        again: bool,
    ) -> Result<Vec<bool>, StoreError> {
        checks::shard(shard, self.options.shards)?;
        let names = self.keys(shard);
        let keys = ["m", "n", "i", "k", "d", "u"].map(|name| names.of(name));
        let mut arguments: Vec<Argument> = vec![tenant.into(), u16::from(again).into()];
        let here: Vec<bool> = ids.iter().map(|id| id.shard == shard).collect();
        let own = ids.iter().filter(|id| id.shard == shard);
        arguments.extend(own.map(|id| Argument::from(dead_prefix(tenant, *id).freeze())));
        let answer = self.call(&self.scripts.end_dead, &keys, &arguments, Way::Once, self.deadline()).await?;
        let mut were = array(answer)?.into_iter();
        let was_there = |is_here| match is_here {
            true => Ok(number::<u8>(&were.next().unwrap_or(Value::Nil))? == 1),
            false => Ok(false),
        };
        here.into_iter().map(was_there).collect()
    }
}
