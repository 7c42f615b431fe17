//! Options of an SDK instance. All limits of this crate live here.

use serde::Deserialize;
use std::path::PathBuf;

/// Bytes of a device id.
pub const DEVICE_ID_MAX_BYTES: usize = 128;
/// Bytes of a description.
pub const DESCRIPTION_MAX_BYTES: usize = 256;
/// Entries of an extension map.
pub const EXTENSION_ENTRIES_MAX: usize = 16;
/// Bytes of an extension's key: 1 to this.
pub const EXTENSION_KEY_MAX_BYTES: usize = 64;
/// Bytes of an extension's value.
pub const EXTENSION_VALUE_MAX_BYTES: usize = 512;

/// How an SDK instance gathers, keeps and sends.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SdkOptions {
    /// The tenant that tokens are bound to; requests name the same app or none. Default `windfall`.
    pub app_id: String,
    /// How long a pack waits for more events. 0 to 1,000; default 5: far below what a user notices, and at 50,000
    /// events a second enough to fill a pack.
    pub linger_ms: u64,
    /// Events of a pack at most; 1 for readers that know no packs. 1 to 256; default 256.
    pub pack_events_max: u32,
    /// Open packs of one queue, side and type, so that threads do not wait for each other. 1 to 64; default 2.
    pub shards: usize,
    /// Where events wait until a broker has them.
    pub spool: SpoolMode,
    /// Size of the spool. Default 64 MiB: about 300,000 events of 200 bytes.
    pub spool_bytes: u64,
    /// Events that wait for the token store; the newest are dropped and counted beyond. Default 65,536.
    pub tokens_waiting_max: usize,
    /// Tokens in one write to the store. 1 to 10,000; default 1,000.
    pub tokens_batch: usize,
    /// A store that takes longer is taken for down. 1 to 60,000; default 500.
    pub tokens_timeout_ms: u64,
}

impl Default for SdkOptions {
    fn default() -> Self {
        Self {
            app_id: "windfall".into(),
            linger_ms: 5,
            pack_events_max: 256,
            shards: 2,
            spool: SpoolMode::default(),
            spool_bytes: 64 << 20,
            tokens_waiting_max: 65_536,
            tokens_batch: 1_000,
            tokens_timeout_ms: 500,
        }
    }
}

impl SdkOptions {
    /// The first option that is out of its range, with what is allowed.
    pub(crate) fn out_of_range(&self) -> Option<String> {
        let wrong = |name: &str, value: u64, low: u64, high: u64| {
            (value < low || value > high).then(|| format!("{name} = {value}: {low} to {high} is allowed"))
        };
        let number = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        wrong("linger_ms", self.linger_ms, 0, 1_000)
            .or_else(|| wrong("pack_events_max", self.pack_events_max.into(), 1, 256))
            .or_else(|| wrong("shards", number(self.shards), 1, 64))
            .or_else(|| wrong("tokens_waiting_max", number(self.tokens_waiting_max), 1, 10_000_000))
            .or_else(|| wrong("tokens_batch", number(self.tokens_batch), 1, 10_000))
            .or_else(|| wrong("tokens_timeout_ms", self.tokens_timeout_ms, 1, 60_000))
    }
}

/// Where events wait until a broker has acknowledged them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SpoolMode {
    /// In memory: what no broker has is lost when the process dies. For those who can lose rewards.
    #[default]
    Memory,
    /// In a memory-mapped file below this directory: survives the death of the process.
    Process(PathBuf),
    /// The same, synced before each Ok: survives the machine, at the cost of a disk sync a call.
    Machine(PathBuf),
}
