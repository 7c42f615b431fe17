//! Names that must be unique: of clients and of messages.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 2021-01-01, from which message ids count their seconds.
const EPOCH_2021: Duration = Duration::from_secs(1_609_459_200);

/// Version, machine, process and start, in hex: the same for all ids of this process.
static PREFIX: LazyLock<String> = LazyLock::new(|| {
    // In place of a network card's address, which need not be unique in containers.
    let mut machine = [0u8; 6];
    if getrandom::fill(&mut machine).is_err() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_be_bytes();
        machine.copy_from_slice(&now[10..]);
    }
    let mut prefix = String::from("01");
    for byte in machine {
        prefix.push_str(&format!("{byte:02X}"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH + EPOCH_2021).unwrap_or_default();
    let seconds = now.as_secs() & u64::from(u32::MAX);
    format!("{prefix}{:04X}{seconds:08X}", std::process::id() & 0xFFFF)
});

static SEQUENCE: AtomicU32 = AtomicU32::new(0);

/// A new message id, as version 1 of the protocol lays it out: 34 hex digits of version, machine (6 bytes), process
/// (2), seconds since 2021 (4) and a count (4).
pub(crate) fn message_id() -> String {
    format!("{}{:08X}", *PREFIX, SEQUENCE.fetch_add(1, Ordering::Relaxed))
}

/// A new client id.
pub(crate) fn client_id() -> String {
    static CLIENTS: AtomicU32 = AtomicU32::new(0);
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
    format!("windfall@{}#{number}@{}", std::process::id(), *PREFIX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_differ() {
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|_| super::message_id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 34 && id.bytes().all(|byte| byte.is_ascii_hexdigit())));
        assert_ne!(super::client_id(), super::client_id());
    }
}
