//! Free ports on loopback.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::{Ipv4Addr, TcpListener};

use crate::Error;

/// Below the range that the system gives to outgoing connections (32768 and up): a client that keeps
/// asking a stopped server's port there would one day be given that very port, connect to itself and
/// keep the server from coming back.
const FIRST: u16 = 15_000;
const LAST: u16 = 32_700;

/// Chooses `count` different ports on which no process listens now.
///
/// All are held until the last is chosen. Between the choice and the server's own bind somebody else may
/// take one; the server's start then fails with its log's words, and a second `up` chooses again.
pub(crate) fn free(count: usize) -> Result<Vec<u16>, Error> {
    let mut held = Vec::with_capacity(count);
    let span = LAST - FIRST;
    // Two processes that choose at once begin at different places.
    let start = u16::try_from(RandomState::new().hash_one(std::process::id()) % u64::from(span)).unwrap_or(0);
    for step in 0..span {
        if held.len() == count {
            break;
        }
        let port = FIRST + u16::try_from((u32::from(start) + u32::from(step)) % u32::from(span)).unwrap_or(0);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push((port, listener));
        }
    }
    if held.len() < count {
        let source = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        return Err(Error::Io { what: format!("find {count} free ports on 127.0.0.1"), source });
    }
    Ok(held.iter().map(|(port, _)| *port).collect())
}

/// True when a server can listen on it.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_are_free() {
        let mut ports = free(20).unwrap();
        assert!(ports.iter().all(|port| (FIRST..LAST).contains(port)));
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, ports[0])).unwrap();
        assert!(!is_free(taken.local_addr().unwrap().port()));
    }
}
