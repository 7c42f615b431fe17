//! The connections on which no call has been authenticated yet: they are few, and a new one is let in at the cost of an
//! old one.
//!
//! Whoever reaches the port can open a connection and take memory with it. So these connections, the newcomers, have
//! a limit of their own, far below that of all connections, and another one for each peer. When a limit is reached, a
//! newcomer is closed, and not the connection that comes: a caller with a key shows it within a round trip, and who
//! holds connections without a key closes his own ones by opening more.

use super::counts::Counts;
use super::watch::Cut;
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// An address, or a network, whose connections have no limit per peer: `10.0.0.7`, `10.0.0.0/8`, `fd00::/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PeerNet {
    address: IpAddr,
    bits: u8,
}

/// A text is neither an address nor a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an address nor a network; give 10.0.0.7, 10.0.0.0/8 or fd00::/8")]
pub struct BadPeerNet(String);

/// The newcomers of a server.
pub(super) struct Newcomers {
    max: usize,
    per_peer_max: usize,
    trusted: Vec<PeerNet>,
    open: Mutex<Open>,
    counts: Counts,
}

/// A newcomer; it stops being one when this is dropped.
pub(super) struct Newcomer {
    newcomers: Arc<Newcomers>,
    peer: Peer,
    id: u64,
}

/// Who can be told from others by the address: an IPv4 address, or the /64 of an IPv6 address, of which one host
/// commonly has all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Peer {
    address: IpAddr,
    is_trusted: bool,
}

#[derive(Default)]
struct Open {
    next: u64,
    count: usize,
    /// By peer, the oldest first. No list is empty.
    by_peer: HashMap<Peer, BTreeMap<u64, Arc<Cut>>>,
}

impl Newcomers {
    pub(super) fn new(max: usize, per_peer_max: usize, trusted: Vec<PeerNet>, counts: Counts) -> Self {
        Self { max, per_peer_max, trusted, open: Mutex::default(), counts }
    }

    /// Lets a connection in; another newcomer makes room for it where there is none.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr, cut: Arc<Cut>) -> Newcomer {
        let peer = Peer::of(address, self.trusted.iter().any(|net| net.contains(address)));
        let mut open = self.open.lock();
        if !peer.is_trusted && open.by_peer.get(&peer).is_some_and(|own| own.len() >= self.per_peer_max) {
            open.close_oldest(peer, "peer_too_many");
        }
        if open.count >= self.max {
            open.close_one();
        }
        let id = open.next;
        open.next += 1;
        open.count += 1;
        open.by_peer.entry(peer).or_default().insert(id, cut);
        self.show(&open);
        Newcomer { newcomers: Arc::clone(self), peer, id }
    }

    /// Closes a newcomer, where there is one.
    pub(super) fn make_room(&self) -> bool {
        let mut open = self.open.lock();
        let is_closed = open.close_one();
        self.show(&open);
        is_closed
    }

    fn show(&self, open: &Open) {
        self.counts.newcomers(open.count);
    }
}

impl Open {
    /// The oldest one of the peer that has the most: who opens many loses his own ones. Behind a trusted peer are many
    /// callers, so it loses one only where nobody else has any.
    fn close_one(&mut self) -> bool {
        let crowded = self.by_peer.iter().max_by_key(|(peer, own)| {
            let oldest = own.first_key_value().map_or(u64::MAX, |(id, _)| *id);
            (!peer.is_trusted, own.len(), std::cmp::Reverse(oldest))
        });
        let Some((&peer, _)) = crowded else { return false };
        self.close_oldest(peer, "made_room");
        true
    }

    fn close_oldest(&mut self, peer: Peer, why: &'static str) {
        let oldest = self.by_peer.get(&peer).and_then(|own| Some(*own.first_key_value()?.0));
        if let Some(cut) = oldest.and_then(|id| self.remove(peer, id)) {
            cut.end(why);
        }
    }

    fn remove(&mut self, peer: Peer, id: u64) -> Option<Arc<Cut>> {
        let own = self.by_peer.get_mut(&peer)?;
        let cut = own.remove(&id)?;
        if own.is_empty() {
            self.by_peer.remove(&peer);
        }
        self.count -= 1;
        Some(cut)
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let mut open = self.newcomers.open.lock();
        // Or it has been closed to make room.
        open.remove(self.peer, self.id);
        self.newcomers.show(&open);
    }
}

impl Peer {
    fn of(address: IpAddr, is_trusted: bool) -> Self {
        let address = match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
            address @ IpAddr::V4(_) => address,
        };
        Self { address, is_trusted }
    }
}

impl PeerNet {
    fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                is_same_start(net.to_bits().into(), address.to_bits().into(), 32, self.bits)
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                is_same_start(net.to_bits(), address.to_bits(), 128, self.bits)
            }
            _ => false,
        }
    }
}

/// Whether two addresses of so many bits begin with the same ones.
fn is_same_start(one: u128, other: u128, width: u8, bits: u8) -> bool {
    // A shift by all 128 bits is what is left of a network that is everything.
    (one ^ other).checked_shr(u32::from(width - bits)).unwrap_or(0) == 0
}

impl FromStr for PeerNet {
    type Err = BadPeerNet;

    fn from_str(text: &str) -> Result<Self, BadPeerNet> {
        let bad = || BadPeerNet(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most { Err(bad()) } else { Ok(Self { address, bits }) }
    }
}

impl TryFrom<String> for PeerNet {
    type Error = BadPeerNet;

    fn try_from(text: String) -> Result<Self, BadPeerNet> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    struct Come {
        newcomers: Arc<Newcomers>,
    }

    impl Come {
        fn new(max: usize, per_peer_max: usize, trusted: &[&str]) -> Self {
            let trusted = trusted.iter().map(|text| text.parse().unwrap()).collect();
            let counts = Counts::Server(Metrics::new());
            Self { newcomers: Arc::new(Newcomers::new(max, per_peer_max, trusted, counts)) }
        }

        fn from(&self, address: &str) -> (Newcomer, Arc<Cut>) {
            let cut = Arc::new(Cut::default());
            (self.newcomers.admit(address.parse().unwrap(), Arc::clone(&cut)), cut)
        }
    }

    #[test]
    fn who_opens_many_closes_his_own() {
        let come = Come::new(4, 3, &[]);
        let good = come.from("10.0.0.1");
        let bad: Vec<_> = (0..5).map(|_| come.from("10.0.0.2")).collect();
        assert_eq!(good.1.why(), None);
        let why: Vec<_> = bad.iter().map(|(_, cut)| cut.why()).collect();
        assert_eq!(why, [Some("peer_too_many"), Some("peer_too_many"), None, None, None]);
        // All places are taken: the crowd makes room.
        let late = come.from("10.0.0.3");
        assert_eq!((late.1.why(), good.1.why()), (None, None));
        assert_eq!(bad[2].1.why(), Some("made_room"));
        drop(bad);
        assert_eq!(come.newcomers.open.lock().count, 2);
        assert!(come.newcomers.make_room() && come.newcomers.make_room() && !come.newcomers.make_room());
        assert_eq!(good.1.why(), Some("made_room"));
        drop((good, late));
        assert!(come.newcomers.open.lock().by_peer.is_empty());
    }

    #[test]
    fn an_ipv6_peer_is_its_network_and_a_trusted_one_has_no_limit_of_its_own() {
        let come = Come::new(8, 1, &["10.1.0.0/16", "192.0.2.7"]);
        let first = come.from("2001:db8::1");
        let second = come.from("2001:db8::ffff:2");
        let other = come.from("2001:db8:0:1::1");
        assert_eq!((first.1.why(), second.1.why(), other.1.why()), (Some("peer_too_many"), None, None));
        let trusted = ["10.1.2.3", "10.1.2.3", "192.0.2.7", "::ffff:192.0.2.7"].map(|peer| come.from(peer));
        assert!(trusted.iter().all(|(_, cut)| cut.why().is_none()));
        let near = ["10.2.2.3", "10.2.2.3"].map(|peer| come.from(peer));
        assert_eq!(near[0].1.why(), Some("peer_too_many"));
    }

    /// A stranger with a few addresses does not push out the callers behind a proxy.
    #[test]
    fn a_trusted_peer_makes_room_when_nobody_else_can() {
        let come = Come::new(6, 4, &["10.0.0.7"]);
        let proxied: Vec<_> = (0..4).map(|_| come.from("10.0.0.7")).collect();
        let strangers: Vec<_> =
            ["10.0.0.8", "10.0.0.9", "10.0.0.8", "10.0.0.9"].map(|own| come.from(own)).into();
        assert!(proxied.iter().all(|(_, cut)| cut.why().is_none()));
        let why: Vec<_> = strangers.iter().map(|(_, cut)| cut.why()).collect();
        assert_eq!(why, [Some("made_room"), Some("made_room"), None, None]);
        assert!(come.newcomers.make_room() && come.newcomers.make_room() && come.newcomers.make_room());
        assert_eq!(proxied[0].1.why(), Some("made_room"));
    }

    #[test]
    fn networks_are_read_as_documented() {
        let holds =
            |net: &str, address: &str| net.parse::<PeerNet>().unwrap().contains(address.parse().unwrap());
        assert!(holds("0.0.0.0/0", "203.0.113.9") && holds("::/0", "2001:db8::1"));
        assert!(!holds("::/0", "203.0.113.9") && !holds("10.0.0.0/9", "10.128.0.1"));
        for bad in ["", "10.0.0.0/33", "10.0.0.0/", "fd00::/129", "proxy.example.com", "10.0.0.0/-1"] {
            assert!(bad.parse::<PeerNet>().is_err(), "{bad}");
        }
    }
}
