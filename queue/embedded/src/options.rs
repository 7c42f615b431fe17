//! What an operator may choose, with defaults that keep a broker under 64 MiB.

use std::time::Duration;
use windfall_contract::broker::OpenError;

/// When written records reach the disk itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// The operating system decides: `Stored` survives the death of the process, not that of the machine.
    #[default]
    Never,
    /// Each batch is synced before it is reported: `Stored` survives the machine. It costs one `fdatasync` per batch,
    /// so fewer, larger batches (a longer linger) pay.
    EachBatch,
}

/// How an embedded broker uses memory and disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// When records reach the disk. Default [`Fsync::Never`].
    pub fsync: Fsync,
    /// Bytes that all producers together may have unreported; `Full` beyond. 1 MiB to 1 GiB, default 8 MiB.
    pub max_unreported_bytes: usize,
    /// Records that all producers together may have unreported; `Full` beyond. 1 to 16 Mi, default 65,536.
    pub max_unreported_records: usize,
    /// The largest payload that is taken. 1 MiB to `max_unreported_bytes`, default 2 MiB.
    pub max_record_bytes: usize,
    /// How long the writer gathers before it writes, unless 256 KiB are there. 0 to 1 s, default 1 ms.
    pub linger: Duration,
    /// Memory for records before they move to table files; up to three times this is in use. 1 to 256 MiB,
    /// default 8 MiB.
    pub memtable_bytes: u64,
    /// Cache for blocks read back from disk. Default 2 MiB: a log is read once.
    pub cache_bytes: u64,
    /// What a consumer reads ahead, shared by its partitions (at least one chunk each). 64 KiB to 256 MiB,
    /// default 4 MiB.
    pub prefetch_bytes: usize,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            fsync: Fsync::Never,
            max_unreported_bytes: 8 << 20,
            max_unreported_records: 65_536,
            max_record_bytes: 2 << 20,
            linger: Duration::from_millis(1),
            memtable_bytes: 8 << 20,
            cache_bytes: 2 << 20,
            prefetch_bytes: 4 << 20,
        }
    }
}

impl EmbeddedOptions {
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let within = [
            ("max_unreported_bytes", self.max_unreported_bytes as u64, 1 << 20, 1 << 30),
            ("max_unreported_records", self.max_unreported_records as u64, 1, 16 << 20),
            ("max_record_bytes", self.max_record_bytes as u64, 1 << 20, self.max_unreported_bytes as u64),
            ("memtable_bytes", self.memtable_bytes, 1 << 20, 256 << 20),
            ("cache_bytes", self.cache_bytes, 0, 1 << 30),
            ("prefetch_bytes", self.prefetch_bytes as u64, 64 << 10, 256 << 20),
        ];
        for (name, value, low, high) in within {
            if !(low..=high).contains(&value) {
                return Err(OpenError::Invalid(format!("{name} is {value}; it may be {low} to {high}")));
            }
        }
        if self.linger > Duration::from_secs(1) {
            return Err(OpenError::Invalid(format!("linger is {:?}; it may be 0 to 1 s", self.linger)));
        }
        Ok(())
    }
}
