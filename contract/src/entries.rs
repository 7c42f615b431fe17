//! A store of small entries by shard: each has a version, groups of them change together, and an entry can be woken at a
//! time. What is kept there decides by these three alone, so that its rules are written once, above the stores.

use crate::due::{Durability, Shard};
use async_trait::async_trait;
use bytes::Bytes;

/// Shards of a store at most.
pub const SHARDS_MAX: u16 = 1_024;
/// Bytes of a key at most.
pub const KEY_MAX_BYTES: usize = 512;
/// Bytes of a value at most.
pub const VALUE_MAX_BYTES: usize = 256 * 1024;
/// Keys that one [`read`](EntryStore::read), entries that one [`scan`](EntryStore::scan) or [`woken`](EntryStore::woken), and
/// groups that one [`apply`](EntryStore::apply) has at most.
pub const CALL_MAX: usize = 1_000;
/// Changes of one group at most.
pub const GROUP_MAX: usize = 100;
/// Changes that the groups of one [`apply`](EntryStore::apply) have together at most.
pub const APPLY_MAX_CHANGES: usize = 10_000;
/// Bytes of keys and values that the groups of one [`apply`](EntryStore::apply) have together at most. One group always fits.
pub const APPLY_MAX_BYTES: usize = 32 * 1024 * 1024;
const _: () = assert!(GROUP_MAX * (KEY_MAX_BYTES + VALUE_MAX_BYTES) <= APPLY_MAX_BYTES);
/// Numbers that one [`numbers`](EntryStore::numbers) gives at most.
pub const NUMBERS_MAX: u32 = 100_000;
/// Times to wake are below this, in Unix milliseconds: 2^53.
pub const WAKE_MAX_MS: u64 = 1 << 53;
/// Bytes that an answer of [`scan`](EntryStore::scan) or [`woken`](EntryStore::woken) has at most, but for one entry, which is
/// always there.
pub const ANSWER_MAX_BYTES: usize = 4 * 1024 * 1024;

/// Names an entry within its shard: 1 to [`KEY_MAX_BYTES`] bytes. Keys are ordered by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey(Bytes);

/// A key that is empty or too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key has 1 to {KEY_MAX_BYTES} bytes, this one has {0}")]
pub struct InvalidKey(pub usize);

impl EntryKey {
    /// A key.
    ///
    /// # Errors
    /// [`InvalidKey`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, InvalidKey> {
        let bytes = bytes.into();
        match bytes.len() {
            1..=KEY_MAX_BYTES => Ok(Self(bytes)),
            other => Err(InvalidKey(other)),
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An entry as it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: EntryKey,
    /// Which change wrote it: the shard's changes are numbered upwards, below 2^53, and no two have the same number, also
    /// where an entry was deleted and made anew. Numbers of changes that the store has lost ([`EntryStore::durability`], a
    /// fail-over) are not given again as long as its clock has not gone back; what holds beyond that, the store says.
    pub version: u64,
    /// When it is to be woken, in Unix milliseconds by the store's clock.
    pub wake_ms: Option<u64>,
    /// What it says.
    pub value: Bytes,
}

/// What must be true of an entry, so that a change is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Anything,
    /// There is no such entry.
    Absent,
    /// It is there, in this version.
    Version(u64),
}

/// What an entry becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    /// It is written.
    Put {
        /// What it says, at most [`VALUE_MAX_BYTES`].
        value: Bytes,
        /// When it is to be woken, below [`WAKE_MAX_MS`]; `None`: never.
        wake_ms: Option<u64>,
    },
    /// It is deleted. One that is not there stays so.
    Deleted,
    /// It stays as it is; the expectation holds all the same.
    Same,
}

/// A change of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryChange {
    /// Which entry. A group names an entry once.
    pub key: EntryKey,
    /// What must be true before.
    pub expect: Expect,
    /// What it becomes.
    pub to: To,
}

/// Changes that are made together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryGroup {
    /// The changes, 1 to [`GROUP_MAX`].
    pub changes: Vec<EntryChange>,
    /// Later than this by the store's clock nothing is changed, whatever the expectations: a call whose answer was lost is
    /// over then.
    pub not_after_ms: Option<u64>,
}

/// What became of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is done. All entries that the group wrote have this version.
    Done(u64),
    /// An expectation did not hold: nothing was changed. Read, and decide anew.
    Conflict,
    /// [`not_after_ms`](EntryGroup::not_after_ms) was over: nothing was changed.
    Late,
}

/// A part of a shard's entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryPage {
    /// Entries in the order of their keys.
    pub entries: Vec<Entry>,
    /// Go on behind this key; `None` at the end.
    pub next: Option<EntryKey>,
}

/// Entries whose time has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Woken {
    /// The store's clock.
    pub now_ms: u64,
    /// Those with the earliest times first. They are found again until a change gives them another time.
    pub entries: Vec<Entry>,
    /// Whether there are more now.
    pub is_cut: bool,
}

/// The store cannot do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// It did not answer, or not in time, or cannot now: the call may be done or not. Read before it is repeated.
    #[error("the store of entries is unavailable: {0}")]
    Unavailable(String),
    /// What it holds or what it was asked cannot be; trying again does not help.
    #[error("the store of entries cannot be used: {0}")]
    Unusable(String),
}

/// Keeps entries. Each call is one step in one shard: what it answers Ok for is done and survives what
/// [`durability`](Self::durability) says. A call that is dropped before it is ready may be done or not. Any number of
/// processes may call it.
#[async_trait]
pub trait EntryStore: Send + Sync {
    /// How many shards it has, 1 to 1,024; fixed when it was made.
    fn shards(&self) -> u16;

    /// What an Ok survives.
    fn durability(&self) -> Durability;

    /// Entries of a shard: one answer for each key, in order. A key may be asked for twice.
    ///
    /// # Errors
    /// [`EntryError`]; [`EntryError::Unusable`] for more than [`CALL_MAX`] keys.
    async fn read(&self, shard: Shard, keys: &[EntryKey]) -> Result<Vec<Option<Entry>>, EntryError>;

    /// Changes groups of entries, one group after the other, so that a later one sees what an earlier one did: the store's
    /// clock, and one answer for each group, in order. Without groups it only tells the clock.
    ///
    /// # Errors
    /// [`EntryError`]: all groups were looked at or none. [`EntryError::Unusable`] for what is outside of the limits above,
    /// for a group without changes and for one that names an entry twice, and nothing was changed then.
    async fn apply(&self, shard: Shard, groups: &[EntryGroup]) -> Result<(u64, Vec<Applied>), EntryError>;

    /// Entries whose keys begin with `prefix`, behind `after`, at most `limit`, which counts as 1 to [`CALL_MAX`]. `after` need
    /// not be there, nor begin with `prefix`.
    ///
    /// # Errors
    /// [`EntryError`].
    async fn scan(
        &self,
        shard: Shard,
        prefix: &[u8],
        after: Option<&EntryKey>,
        limit: usize,
    ) -> Result<EntryPage, EntryError>;

    /// Entries of which the time to wake has come by the store's clock, at most `limit`, which counts as 1 to [`CALL_MAX`].
    ///
    /// # Errors
    /// [`EntryError`].
    async fn woken(&self, shard: Shard, limit: usize) -> Result<Woken, EntryError>;

    /// The first of `count` numbers that nobody had before, also where the store has lost what it answered: 1 upwards by
    /// shard, below 2^50. Numbers may be skipped.
    ///
    /// # Errors
    /// [`EntryError`]; [`EntryError::Unusable`] where `count` is not 1 to [`NUMBERS_MAX`].
    async fn numbers(&self, shard: Shard, count: u32) -> Result<u64, EntryError>;
}
