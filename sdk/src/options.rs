//! The options of an SDK instance. All limits of this crate live here.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use windfall_proto::order::{NAME_MAX_BYTES, TRADE_NO_MAX_BYTES};
use windfall_proto::record::TYPE_MAX_BYTES;

/// The bytes of a device id at most.
pub const DEVICE_ID_MAX_BYTES: usize = 128;
/// The bytes of a description at most.
pub const DESCRIPTION_MAX_BYTES: usize = 256;
/// The number of entries of an extension map at most.
pub const EXTENSION_ENTRIES_MAX: usize = 16;
/// The bytes of an extension's key: 1 to this.
pub const EXTENSION_KEY_MAX_BYTES: usize = 64;
/// The bytes of an extension's value at most.
pub const EXTENSION_VALUE_MAX_BYTES: usize = 512;

/// The bytes of events in one pack at most.
pub(crate) const PACK_MAX_BYTES: u32 = 64 << 10;
/// The bytes of one framed event at most: the room of a pack that holds one event.
pub(crate) const EVENT_MAX_BYTES: u32 = windfall_proto::event::EVENT_BYTES_MAX;

// Every event that passes the checks fits an empty pack: all texts at their longest, and what protobuf adds.
const _: () = {
    let extension = EXTENSION_ENTRIES_MAX * (EXTENSION_KEY_MAX_BYTES + EXTENSION_VALUE_MAX_BYTES + 8);
    let names = TRADE_NO_MAX_BYTES + 3 * NAME_MAX_BYTES + TYPE_MAX_BYTES;
    let texts = names + DEVICE_ID_MAX_BYTES + DESCRIPTION_MAX_BYTES + extension;
    assert!(texts + 256 <= EVENT_MAX_BYTES as usize);
};

/// How an SDK instance gathers, keeps and sends. Where it keeps events has no default: [`SpoolMode`] is an argument.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SdkOptions {
    /// The tenant that tokens are bound to; requests name the same app or none. Default `windfall`.
    pub app_id: String,
    /// How long a pack waits for more events. 0 to 1,000; default 5: far below what a user notices, and long enough to
    /// fill a pack at 50,000 events per second.
    pub linger_ms: u64,
    /// The number of events in a pack at most; 1 for readers that cannot read packs. 1 to 256; default 256.
    pub pack_events_max: u32,
    /// Open packs of one queue, side and type, so that threads do not wait for each other. 1 to 64; default 2.
    pub shards: usize,
    /// Size of the spool. 256 KiB to 64 GiB; default 64 MiB: about 250,000 events of 200 bytes. Each open pack holds
    /// 64 KiB of it (11 KiB where `pack_events_max` is 1), so it needs room for more packs than there are queues,
    /// sides, types and shards in use. Where the rules have several queues, one of them may take its part and what the
    /// others leave, never all of it: see [`windfall_queue_virtual::Shares`].
    pub spool_bytes: u64,
    /// What an event in the spool's directory survives once its call has returned Ok: `process`, the death of the
    /// process, or `machine`, that of the machine as well, at the cost of a disk sync, which calls at the same time
    /// share. Default `process`.
    pub spool_durability: SpoolDurability,
    /// How far ahead the time may lie before which a reward is not to be granted (`not_before_ms`). 0 to 31,536,000,000, a
    /// year; default 300,000, five minutes. Consumers keep a delay of up to ten minutes themselves; set more only if they
    /// hand longer ones over to a scheduler, or such a reward is granted early. Each such reward travels in a record of its
    /// own, and takes the room of a pack in the spool until a broker has it.
    pub not_before_ahead_max_ms: u64,
    /// How far ahead of this process's clock a sender's award time may lie. 0 to 86,400,000, a day; default 300,000, five
    /// minutes, which clocks may differ by. The tokens of an activity are revoked by their award time, so whoever holds a
    /// stolen key must not be able to put it off: choose the moment of such a revocation that much later than the theft's end.
    pub award_time_ahead_max_ms: u64,
    /// How long a changed key ring is known before its new primary key mints; until then the key so far does, if it still
    /// can. 0 to 86,400,000, a day; default 150,000: a Secret that Kubernetes mounts reaches the last pod within two minutes,
    /// and a process looks at its ring every five seconds. Tokens of a key that a judging process lacks are illegal to it.
    pub mint_after_ms: u64,
    /// Tokens of at most 1 KiB that wait for the token store, beside the batches being written; the newest are
    /// dropped and counted beyond. 1 to 10,000,000; default 65,536.
    pub tokens_waiting_max: usize,
    /// The number of tokens in one write to the store. 1 to 10,000; default 1,000.
    pub tokens_batch: usize,
    /// The time in ms after which a store without an answer counts as down. 1 to 60,000; default 500.
    pub tokens_timeout_ms: u64,
    /// How many seconds the store keeps a token at least whose reward does not arrive. 60 to 315,360,000 (ten years);
    /// default 2,592,000, 30 days.
    pub tokens_ttl_s: u64,
    /// The same for activities that have a time of their own. At most 1,000 activities.
    pub tokens_ttl_by_activity_s: BTreeMap<String, u64>,
}

impl Default for SdkOptions {
    fn default() -> Self {
        Self {
            app_id: "windfall".into(),
            linger_ms: 5,
            pack_events_max: 256,
            shards: 2,
            spool_bytes: 64 << 20,
            spool_durability: SpoolDurability::Process,
            not_before_ahead_max_ms: 300_000,
            award_time_ahead_max_ms: 300_000,
            mint_after_ms: 150_000,
            tokens_waiting_max: 65_536,
            tokens_batch: 1_000,
            tokens_timeout_ms: 500,
            tokens_ttl_s: 30 * 86_400,
            tokens_ttl_by_activity_s: BTreeMap::new(),
        }
    }
}

impl SdkOptions {
    /// The spool in this directory, as durable as these options say.
    pub fn spool_in(&self, dir: impl Into<PathBuf>) -> SpoolMode {
        match self.spool_durability {
            SpoolDurability::Process => SpoolMode::Process(dir.into()),
            SpoolDurability::Machine => SpoolMode::Machine(dir.into()),
        }
    }

    /// The first option that is out of its range, with what is allowed.
    pub(crate) fn out_of_range(&self) -> Option<String> {
        let wrong = |name: &str, value: u64, low: u64, high: u64| {
            (value < low || value > high).then(|| format!("{name} = {value}: {low} to {high} is allowed"))
        };
        let number = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        wrong("linger_ms", self.linger_ms, 0, 1_000)
            .or_else(|| wrong("pack_events_max", self.pack_events_max.into(), 1, 256))
            .or_else(|| wrong("shards", number(self.shards), 1, 64))
            .or_else(|| wrong("spool_bytes", self.spool_bytes, 256 << 10, 64 << 30))
            .or_else(|| wrong("not_before_ahead_max_ms", self.not_before_ahead_max_ms, 0, 31_536_000_000))
            .or_else(|| wrong("award_time_ahead_max_ms", self.award_time_ahead_max_ms, 0, 86_400_000))
            .or_else(|| wrong("mint_after_ms", self.mint_after_ms, 0, 86_400_000))
            .or_else(|| wrong("tokens_waiting_max", number(self.tokens_waiting_max), 1, 10_000_000))
            .or_else(|| wrong("tokens_batch", number(self.tokens_batch), 1, 10_000))
            .or_else(|| wrong("tokens_timeout_ms", self.tokens_timeout_ms, 1, 60_000))
            .or_else(|| wrong("tokens_ttl_s", self.tokens_ttl_s, 60, 315_360_000))
            .or_else(|| {
                wrong("tokens_ttl_by_activity_s", number(self.tokens_ttl_by_activity_s.len()), 0, 1_000)
            })
            .or_else(|| {
                let of = |(activity, ttl_s): (&String, &u64)| {
                    wrong(&format!("tokens_ttl_by_activity_s.{activity}"), *ttl_s, 60, 315_360_000)
                };
                self.tokens_ttl_by_activity_s.iter().find_map(of)
            })
    }

    /// The Unix milliseconds until which the store keeps a token of this activity at least.
    #[inline]
    pub(crate) fn token_expires_at_ms(&self, activity: &str, now_ms: u64) -> u64 {
        let own = self.tokens_ttl_by_activity_s.get(activity);
        now_ms.saturating_add(own.unwrap_or(&self.tokens_ttl_s).saturating_mul(1_000))
    }
}

/// How durable an event in a spool's directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpoolDurability {
    /// It survives the death of the process.
    #[default]
    Process,
    /// It survives the death of the machine as well.
    Machine,
}

/// Where events wait until a broker has acknowledged them. There is no default, so that nobody loses rewards without
/// having said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpoolMode {
    /// In a memory-mapped file below this directory: events survive the death of the process (I2).
    Process(PathBuf),
    /// The same, synced before each Ok: events survive the death of the machine, at the cost of a disk sync per call.
    Machine(PathBuf),
    /// In memory: events that no broker has are lost when the process dies. Only for tests, and for senders that can
    /// lose rewards.
    LossyMemory,
}
