//! A store of entries on Redis 7: one server, or a Redis Cluster, for any number of processes.
//!
//! All keys of a shard have its hash tag, so that they lie on one node, and a script changes one shard as a whole:
//!
//! | key | type | what |
//! |---|---|---|
//! | `{wfj:0003}:e` | hash | key → version and time to wake in 8 bytes each (2^64 - 1: never), and value; but for [`marks`](RedisEntriesOptions::marks) |
//! | `{wfj:0003}:k` | sorted set | keys in the order of their bytes, but for those that [`unlisted`](RedisEntriesOptions::unlisted) names |
//! | `{wfj:0003}:w` | sorted set | keys by their times to wake |
//! | `{wfj:0003}:m` | hash | the version of the last change `v`, the last number `n`, and the run of the server that gave it `r` |
//! | `{wfj:names}:s` | string | the number of shards |
//!
//! The script that changes entries reads all that it has to know, decides, and then writes; its first write is the one that
//! a server refuses that is full, or a replica, or out of disk. What a user may do is tried when the store connects.
//!
//! **Lists.** A place in the order of keys costs as much as an entry itself. Runs, states and marks of jobs are only read by
//! their keys and woken, so that [`RedisEntriesOptions::for_jobs`] leaves them out, and a scan for them is refused. Those that
//! were written without it keep their place until they are deleted; stores with it and without it may work side by side.
//! The other way round, of what is listed and never read ([`marks`](RedisEntriesOptions::marks)) the place is all that is kept.
//! A store without these marks cannot scan for them.
//!
//! **Time** is the server's, read inside the scripts.
//!
//! **Durability.** [`RedisEntries::durability`](EntryStore::durability) says what `appendfsync` is set to. A server without
//! an append-only file and one that evicts keys are refused, unless an option by name allows them. Redis replicates after it
//! has answered: a fail-over to a replica, also in a cluster, may lose the last moments, and so may the death of a machine
//! with `appendfsync everysec`. What was answered [`Applied::Done`] may be undone then, groups as a whole.
//!
//! **Versions and numbers after such a loss.** A version is the server's clock in microseconds, or one more than the shard's
//! last version where that is not less. A process that holds a version of a lost change therefore finds a conflict, and
//! never overwrites another's entry, as long as the new server's clock is not behind the old one's by more than the time
//! that the fail-over took. Where it is, the same version is given again only if both servers changed the same entry and
//! their clocks said the same microsecond. A number is one more than the last one, and 1,000,000 are skipped where another run
//! of a server gave the last one (`run_id`): after a restart, a fail-over or the return of a backup none is given twice,
//! unless a shard gave more than 1,000,000 numbers in the moments that were lost, or all that it ever gave were lost.
//!
//! **A server that is away at the start.** [`RedisEntries::open_later`] needs no server; until [`RedisEntries::connect`] has
//! succeeded once, nothing is sent there, and each call is [`EntryError::Unavailable`] with the reason. What is checked once,
//! by the first connection: the number of shards, rights and `appendfsync`. What is checked by each connection: version,
//! append-only file, eviction; a server that comes back as one that does not suit is not used until it suits again.
//!
//! **Doubt.** A call whose connection was lost after it was sent is not sent again where that could do it twice: a change may
//! be done or not, and numbers may be skipped. Reads are sent again, and only a master is asked.
//!
//! **Slots that move.** While a slot of a cluster is on its way to another node, a script on its shard changes nothing: it
//! is asked again until it is there, or the call's time is over.
//!
//! **A full server.** At `maxmemory` a server refuses numbers, and calls that add entries, as a whole. Calls that delete
//! entries or change those that are there are carried out, also where these grow: so runs end, and memory falls again.
//!
//! **Rights.** The user needs `EVAL`, `EVALSHA`, the commands of the scripts (`EXISTS`, `TIME`, `INFO`, `HGET`, `HMGET`, `HSET`,
//! `HDEL`, `ZADD`, `ZREM`, `ZCARD`, `ZRANGEBYLEX`, `ZRANGEBYSCORE`), `SET`, `GET`, `CONFIG|GET`, `ROLE` and `PING`, in a cluster
//! `CLUSTER` and `ASKING` too.
//!
//! Connections live on the runtime on which the store is opened.

mod answers;
mod connected;
mod options;
mod scripts;

pub use options::RedisEntriesOptions;
pub use windfall_redis_link::OpenRedisError;

use super::checks;
use answers::{NEVER, applied, array, entries, entry, number};
use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use connected::{Connected, Way};
use options::SKIPPED;
use parking_lot::Mutex;
use redis::{ConnectionInfo, Value};
use scripts::{Known, Scripts};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Named;
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::entries::{
    Applied, Entry, EntryChange, EntryError, EntryGroup, EntryKey, EntryPage, EntryStore, Expect, To, Woken,
};
use windfall_redis_link::slot_of;

/// The store of entries on Redis. Dropped, it closes its connections and ends their tasks.
pub struct RedisEntries {
    options: RedisEntriesOptions,
    servers: Vec<ConnectionInfo>,
    scripts: Scripts,
    connected: OnceLock<Connected>,
    /// Why it is not connected, as far as it has been tried.
    why_not: Mutex<Option<String>>,
}

impl RedisEntries {
    /// Connects, looks whether entries can be kept there, and stays connected from then on.
    ///
    /// # Errors
    /// [`OpenRedisError`] names the place and the remedy.
    pub async fn open(options: RedisEntriesOptions) -> Result<Arc<Self>, OpenRedisError> {
        let store = Self::open_later(options)?;
        store.connect().await?;
        Ok(store)
    }

    /// Connects to nothing yet, for a process that shall start though Redis is away. Until [`connect`](Self::connect) has
    /// succeeded, every call is [`EntryError::Unavailable`] and says why.
    ///
    /// # Errors
    /// [`OpenRedisError::Invalid`] alone.
    pub fn open_later(options: RedisEntriesOptions) -> Result<Arc<Self>, OpenRedisError> {
        let servers = options.check()?;
        let (scripts, connected) = (Scripts::new(), OnceLock::new());
        Ok(Arc::new(Self { options, servers, scripts, connected, why_not: Mutex::default() }))
    }

    /// Connects, looks whether entries can be kept there, and stays connected from then on; does nothing where it is
    /// connected. Must be called on the runtime on which the connections shall live.
    ///
    /// # Errors
    /// [`OpenRedisError`]. Where it [may pass](OpenRedisError::may_pass), call it again in a moment.
    pub async fn connect(&self) -> Result<(), OpenRedisError> {
        if self.connected.get().is_some() {
            return Ok(());
        }
        match Connected::make(&self.options, &self.servers, &self.scripts.rights).await {
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

    fn connected(&self) -> Result<&Connected, EntryError> {
        self.connected.get().ok_or_else(|| {
            let why = self.why_not.lock().clone();
            EntryError::Unavailable(why.unwrap_or_else(|| "Redis was not reached yet".into()))
        })
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.options.call_timeout()
    }

    /// Calls a script on a shard. The answer may be a refusal.
    async fn call(
        &self,
        script: &Known,
        shard: Shard,
        arguments: &[Bytes],
        way: Way,
        deadline: Instant,
    ) -> Result<Value, EntryError> {
        let key = self.options.counters(shard);
        let (slot, connected) = (slot_of(&key), self.connected()?);
        match connected.send(slot, || script.call(false, &key, arguments), way, deadline).await? {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                connected.send(slot, || script.call(true, &key, arguments), way, deadline).await
            }
            answer => Ok(answer),
        }
    }
}

/// A server or a script says no by an error; nothing was changed.
fn refused(answer: Value) -> Result<Value, EntryError> {
    match answer {
        Value::ServerError(error) if error.details().is_some_and(|what| what.starts_with("unusable:")) => {
            Err(EntryError::Unusable(format!("Redis refuses the call: {error}")))
        }
        Value::ServerError(error) => Err(EntryError::Unavailable(format!("Redis refuses the call: {error}"))),
        answer => Ok(answer),
    }
}

/// The server has no memory for what the call may add, and nothing was changed.
fn is_full(answer: &Value) -> bool {
    matches!(answer, Value::Array(parts) if matches!(&parts[..], [Value::BulkString(word)] if word == b"full"))
}

fn digits(number: impl ToString) -> Bytes {
    number.to_string().into_bytes().into()
}

/// Groups as their script takes them: each key once, then the changes by letters and what these call for.
fn apply_arguments(groups: &[EntryGroup], unlisted: &[&[u8]], marks: &[&[u8]]) -> Vec<Bytes> {
    let changes: usize = groups.iter().map(|group| group.changes.len()).sum();
    let mut arguments = Vec::with_capacity(1 + 2 * groups.len() + 3 * changes);
    arguments.push(Bytes::new());
    let mut places: HashMap<&EntryKey, usize> = HashMap::with_capacity(changes);
    // By change: the place of its key, if a change before it names the key too.
    let mut named_before = Vec::with_capacity(changes);
    let keys = groups.iter().flat_map(|group| &group.changes).map(|change| &change.key);
    for key in keys.filter(|key| !begins_so(key, marks)) {
        let next = places.len() + 1;
        match places.entry(key) {
            Named::Occupied(named) => named_before.push(Some(*named.get())),
            Named::Vacant(free) => {
                free.insert(next);
                named_before.push(None);
                arguments.push(Bytes::copy_from_slice(key.as_bytes()));
            }
        }
    }
    arguments[0] = digits(places.len());
    let mut named_before = named_before.into_iter();
    for EntryGroup { changes, not_after_ms } in groups {
        arguments.push(not_after_ms.map_or_else(Bytes::new, digits));
        let letters_at = arguments.len();
        arguments.push(Bytes::new());
        let mut letters = Vec::with_capacity(2 * changes.len());
        for change in changes {
            if begins_so(&change.key, marks) {
                let is_listed = matches!(change.to, To::Put { .. });
                letters.extend([b'-', if is_listed { b'L' } else { b'F' }]);
                arguments.push(Bytes::copy_from_slice(change.key.as_bytes()));
                continue;
            }
            let named_before = named_before.next().flatten();
            letters.push(expected_letter(change.expect, named_before.is_some()));
            letters.push(match &change.to {
                To::Same => b'S',
                To::Deleted => b'D',
                To::Put { .. } if begins_so(&change.key, unlisted) => b'U',
                To::Put { .. } => b'P',
            });
            arguments.extend(named_before.map(digits));
            if let Expect::Version(version) = change.expect {
                arguments.push(Bytes::copy_from_slice(&version.to_be_bytes()));
            }
            if let To::Put { value, wake_ms } = &change.to {
                let mut put = BytesMut::with_capacity(8 + value.len());
                put.put_u64(wake_ms.unwrap_or(NEVER));
                put.put_slice(value);
                arguments.push(put.freeze());
            }
        }
        arguments[letters_at] = letters.into();
    }
    arguments
}

const fn expected_letter(expect: Expect, is_named_before: bool) -> u8 {
    match (expect, is_named_before) {
        (Expect::Anything, false) => b'-',
        (Expect::Anything, true) => b'x',
        (Expect::Absent, false) => b'A',
        (Expect::Absent, true) => b'a',
        (Expect::Version(_), false) => b'V',
        (Expect::Version(_), true) => b'v',
    }
}

fn begins_so(key: &EntryKey, prefixes: &[&[u8]]) -> bool {
    prefixes.iter().any(|prefix| key.as_bytes().starts_with(prefix))
}

/// Of marks nothing is expected, and nothing but the key is kept.
fn check_marks(groups: &[EntryGroup], marks: &[&[u8]]) -> Result<(), EntryError> {
    let is_right = |change: &EntryChange| {
        let is_bare = match &change.to {
            To::Put { value, wake_ms } => value.is_empty() && wake_ms.is_none(),
            To::Deleted => true,
            To::Same => false,
        };
        is_bare && change.expect == Expect::Anything
    };
    let mut of_marks =
        groups.iter().flat_map(|group| &group.changes).filter(|change| begins_so(&change.key, marks));
    match of_marks.find(|change| !is_right(change)) {
        None => Ok(()),
        Some(wrong) => Err(EntryError::Unusable(format!(
            "the entry {:?} is a mark, which is put without a value and a time, or deleted, whatever was there",
            String::from_utf8_lossy(wrong.key.as_bytes())
        ))),
    }
}

/// The range of keys that begin with a prefix and lie behind a key, as sorted sets take it; `None` where there are none.
fn range_of(prefix: &[u8], after: Option<&[u8]>) -> Option<(Bytes, Bytes)> {
    let bound = |sign: u8, key: &[u8]| Bytes::from([&[sign][..], key].concat());
    // The first key behind all those that begin with the prefix.
    let end = prefix.iter().rposition(|byte| *byte != u8::MAX).map(|last| {
        let mut end = prefix[..=last].to_vec();
        end[last] += 1;
        end
    });
    if let (Some(after), Some(end)) = (after, &end)
        && after >= &end[..]
    {
        return None;
    }
    let from = match after {
        Some(after) if after >= prefix => bound(b'(', after),
        _ if prefix.is_empty() => Bytes::from_static(b"-"),
        _ => bound(b'[', prefix),
    };
    Some((from, end.map_or_else(|| Bytes::from_static(b"+"), |end| bound(b'(', &end))))
}

#[async_trait]
impl EntryStore for RedisEntries {
    fn shards(&self) -> u16 {
        self.options.shards
    }

    fn durability(&self) -> Durability {
        // Nothing is stored before a server is known, so the least is no lie.
        self.connected.get().map_or(Durability::Process, |connected| connected.durability)
    }

    async fn read(&self, shard: Shard, keys: &[EntryKey]) -> Result<Vec<Option<Entry>>, EntryError> {
        checks::shard(shard, self.options.shards)?;
        checks::keys(keys)?;
        let connected = self.connected()?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let all = self.options.of_shard(shard, 'e');
        let mut command = redis::cmd("HMGET");
        command.arg(&all);
        for key in keys {
            command.arg(key.as_bytes());
        }
        let sent = connected.send(slot_of(&all), || command.clone(), Way::Reads, self.deadline());
        let found = array(refused(sent.await?)?)?;
        if found.len() != keys.len() {
            return Err(EntryError::Unavailable(format!("{} answers for {}", found.len(), keys.len())));
        }
        let read = |(key, found): (&EntryKey, Value)| match found {
            Value::Nil => Ok(None),
            found => entry(key.clone(), found).map(Some),
        };
        keys.iter().zip(found).map(read).collect()
    }

    async fn apply(&self, shard: Shard, groups: &[EntryGroup]) -> Result<(u64, Vec<Applied>), EntryError> {
        checks::shard(shard, self.options.shards)?;
        checks::groups(groups)?;
        check_marks(groups, self.options.marks)?;
        let arguments = apply_arguments(groups, self.options.unlisted, self.options.marks);
        let deadline = self.deadline();
        let mut answer = self.call(&self.scripts.apply, shard, &arguments, Way::Once, deadline).await?;
        if is_full(&answer) {
            let full = &self.scripts.apply_when_full;
            answer = self.call(full, shard, &arguments, Way::Once, deadline).await?;
        }
        let answer = array(refused(answer)?)?;
        let [now, answers @ ..] = &answer[..] else {
            return Err(EntryError::Unavailable("an answer is empty".into()));
        };
        if answers.len() != groups.len() {
            return Err(EntryError::Unavailable(format!("{} answers for {}", answers.len(), groups.len())));
        }
        Ok((number(now)?, answers.iter().map(applied).collect::<Result<_, _>>()?))
    }

    async fn scan(
        &self,
        shard: Shard,
        prefix: &[u8],
        after: Option<&EntryKey>,
        limit: usize,
    ) -> Result<EntryPage, EntryError> {
        checks::shard(shard, self.options.shards)?;
        if self.options.unlisted.iter().any(|kind| kind.starts_with(prefix) || prefix.starts_with(kind)) {
            let prefix = String::from_utf8_lossy(prefix);
            return Err(EntryError::Unusable(format!(
                "entries whose keys begin with {prefix:?} are not listed"
            )));
        }
        let Some((from, to)) = range_of(prefix, after.map(EntryKey::as_bytes)) else {
            return self.connected().map(|_| EntryPage::default());
        };
        let is_of_marks = self.options.marks.iter().any(|kind| prefix.starts_with(kind));
        let arguments = [from, to, digits(checks::limit(limit)), digits(u8::from(is_of_marks))];
        let answer = self.call(&self.scripts.scan, shard, &arguments, Way::Reads, self.deadline()).await?;
        let (is_cut, entries) = entries(refused(answer)?)?;
        let next = entries.last().filter(|_| is_cut).map(|entry| entry.key.clone());
        Ok(EntryPage { entries, next })
    }

    async fn woken(&self, shard: Shard, limit: usize) -> Result<Woken, EntryError> {
        checks::shard(shard, self.options.shards)?;
        let arguments = [digits(checks::limit(limit))];
        let answer = self.call(&self.scripts.woken, shard, &arguments, Way::Reads, self.deadline()).await?;
        let parts = <[Value; 2]>::try_from(array(refused(answer)?)?);
        let [now, found] = parts.map_err(|parts| answers::unexpected(&Value::Array(parts)))?;
        let (is_cut, entries) = entries(found)?;
        Ok(Woken { now_ms: number(&now)?, entries, is_cut })
    }

    async fn numbers(&self, shard: Shard, count: u32) -> Result<u64, EntryError> {
        checks::shard(shard, self.options.shards)?;
        checks::numbers(count)?;
        let arguments = [digits(count), digits(SKIPPED)];
        let answer = self.call(&self.scripts.numbers, shard, &arguments, Way::Once, self.deadline()).await?;
        number(&refused(answer)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sent_once_and_later_changes_say_its_place() {
        let change = |key: &'static str, expect, to| {
            let key = EntryKey::new(key.as_bytes()).unwrap();
            EntryChange { key, expect, to }
        };
        let put = |wake_ms| To::Put { value: Bytes::from_static(b"value"), wake_ms };
        let first = vec![
            change("r/1", Expect::Absent, put(Some(5))),
            change("i/1", Expect::Anything, put(None)),
            change("s/1", Expect::Version(7), To::Same),
        ];
        let second = vec![
            change("x", Expect::Anything, To::Deleted),
            change("i/1", Expect::Version(8), put(Some(6))),
            change("r/1", Expect::Absent, To::Same),
            change("s/1", Expect::Anything, To::Deleted),
        ];
        let groups = [
            EntryGroup { changes: first, not_after_ms: None },
            EntryGroup { changes: second, not_after_ms: Some(99) },
        ];
        let number = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
        let value = |wake_ms: u64| Bytes::from([&wake_ms.to_be_bytes()[..], b"value"].concat());
        let text = Bytes::from_static;
        let keys = ["4", "r/1", "i/1", "s/1", "x"].map(|key| text(key.as_bytes()));
        let of_first = [text(b""), text(b"AU-PVS"), value(5), value(NEVER), number(7)];
        let of_second =
            [text(b"99"), text(b"-DvPaSxD"), text(b"2"), number(8), value(6), text(b"1"), text(b"3")];
        let expected: Vec<Bytes> = keys.into_iter().chain(of_first).chain(of_second).collect();
        assert_eq!(apply_arguments(&groups, &crate::book::UNLISTED, &[]), expected);
    }

    #[test]
    fn the_key_of_a_mark_stands_at_its_change_and_carries_nothing() {
        let change = |key: &'static str, expect, to| EntryChange {
            key: EntryKey::new(key.as_bytes()).unwrap(),
            expect,
            to,
        };
        let put = |value: &'static [u8], wake_ms| To::Put { value: Bytes::from_static(value), wake_ms };
        let group = |changes| EntryGroup { changes, not_after_ms: None };
        let groups = [
            group(vec![
                change("r/1", Expect::Absent, To::Deleted),
                change("i/1", Expect::Anything, put(b"", None)),
                change("n/1", Expect::Absent, To::Same),
            ]),
            group(vec![
                change("x/1", Expect::Anything, To::Deleted),
                change("r/1", Expect::Absent, To::Same),
            ]),
        ];
        let marks = &crate::book::MARKS;
        let of_first = ["2", "r/1", "n/1", "", "AD-LAS", "i/1"];
        let of_second = ["", "-FaS", "x/1", "1"];
        let sent: Vec<_> =
            of_first.into_iter().chain(of_second).map(|text| Bytes::from_static(text.as_bytes())).collect();
        assert_eq!(apply_arguments(&groups, &crate::book::UNLISTED, marks), sent);
        check_marks(&groups, marks).unwrap();
        for wrong in [
            change("i/1", Expect::Absent, put(b"", None)),
            change("i/1", Expect::Anything, put(b"1", None)),
            change("i/1", Expect::Anything, put(b"", Some(1))),
            change("i/1", Expect::Anything, To::Same),
            change("x/1", Expect::Version(1), To::Deleted),
        ] {
            assert!(matches!(check_marks(&[group(vec![wrong])], marks), Err(EntryError::Unusable(_))));
        }
    }

    #[test]
    fn the_range_of_a_prefix_ends_behind_its_last_key() {
        let range = |prefix: &[u8], after: Option<&[u8]>| {
            range_of(prefix, after).map(|(from, to)| (from.to_vec(), to.to_vec()))
        };
        let is = |from: &[u8], to: &[u8]| Some((from.to_vec(), to.to_vec()));
        assert_eq!(range(b"", None), is(b"-", b"+"));
        assert_eq!(range(b"ab", None), is(b"[ab", b"(ac"));
        assert_eq!(range(b"a\xff\xff", None), is(b"[a\xff\xff", b"(b"));
        assert_eq!(range(b"\xff", None), is(b"[\xff", b"+"));
        assert_eq!(range(b"ab", Some(b"ab1")), is(b"(ab1", b"(ac"));
        assert_eq!(range(b"ab", Some(b"aa")), is(b"[ab", b"(ac"));
        assert_eq!(range(b"ab", Some(b"ac")), None);
        assert_eq!(range(b"\xff", Some(b"\xff\xff")), is(b"(\xff\xff", b"+"));
    }
}
