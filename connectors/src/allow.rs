//! The hosts that a connector may connect to: names that the operator lists, and public addresses alone unless a
//! network is listed too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The operator's list of hosts and networks.
///
/// An entry is a host name, with a port or without (`pay.example.com`, `pay.example.com:8443`), a network
/// (`10.20.0.0/16`, `fd00::/8`) or one address (`127.0.0.1`). There are no wildcards.
///
/// - A URL's host must be listed by name, or, where it is an address, lie in a listed network.
/// - The address that is really connected to must be public or lie in a listed network, whatever the name resolved
///   to before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList {
    hosts: Vec<(String, Option<u16>)>,
    networks: Vec<Network>,
}

/// An entry of the list is none of the three kinds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no host name, no host name with a port, no address and no network")]
pub struct BadEntry(pub String);

impl AllowList {
    /// Reads the entries.
    ///
    /// # Errors
    /// [`BadEntry`], the first that cannot be read.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> Result<Self, BadEntry> {
        let mut list = Self::default();
        for entry in entries {
            let entry = entry.as_ref();
            let bad = || BadEntry(entry.to_owned());
            if let Ok(address) = entry.parse::<IpAddr>() {
                list.networks.push(Network::one(address));
            } else if let Some((base, bits)) = entry.split_once('/') {
                list.networks.push(Network::parse(base, bits).ok_or_else(bad)?);
            } else {
                let (host, port) = match entry.split_once(':') {
                    Some((host, port)) => (host, Some(port.parse().map_err(|_| bad())?)),
                    None => (entry, None),
                };
                if !is_host_name(host) {
                    return Err(bad());
                }
                list.hosts.push((host.to_ascii_lowercase(), port));
            }
        }
        Ok(list)
    }

    /// Whether a URL may name this host and port.
    pub fn host(&self, host: &str, port: u16) -> bool {
        match host.parse() {
            Ok(address) => self.listed(address),
            Err(_) => self
                .hosts
                .iter()
                .any(|(name, only)| name.eq_ignore_ascii_case(host) && only.is_none_or(|only| only == port)),
        }
    }

    /// Whether this address may be connected to.
    pub fn address(&self, address: IpAddr) -> bool {
        is_public(address) || self.listed(address)
    }

    fn listed(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address.to_canonical()))
    }
}

fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    // What ends in a number is an address to some resolvers (`127.1`, `0x7f.1`).
    let numeric = |last: &str| last.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    text.len() <= 253 && text.split('.').all(label) && !text.rsplit('.').next().is_some_and(numeric)
}

/// A block of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    base: IpAddr,
    bits: u8,
}

impl Network {
    fn one(address: IpAddr) -> Self {
        let base = address.to_canonical();
        Self { base, bits: if base.is_ipv4() { 32 } else { 128 } }
    }

    fn parse(base: &str, bits: &str) -> Option<Self> {
        let base: IpAddr = base.parse().ok()?;
        let bits: u8 = bits.parse().ok()?;
        (bits <= if base.is_ipv4() { 32 } else { 128 }).then_some(Self { base, bits })
    }

    fn contains(self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => same_v4(base, address, self.bits),
            (IpAddr::V6(base), IpAddr::V6(address)) => same_v6(base, address, self.bits),
            _ => false,
        }
    }
}

fn same_v4(base: Ipv4Addr, address: Ipv4Addr, bits: u8) -> bool {
    (base.to_bits() ^ address.to_bits()).checked_shr(32 - u32::from(bits)).is_none_or(|rest| rest == 0)
}

fn same_v6(base: Ipv6Addr, address: Ipv6Addr, bits: u8) -> bool {
    (base.to_bits() ^ address.to_bits()).checked_shr(128 - u32::from(bits)).is_none_or(|rest| rest == 0)
}

/// Blocks that belong to nobody on the public internet (IANA's special-purpose registry, multicast and reserved space).
const SPECIAL_V4: [([u8; 4], u8); 16] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 31, 196, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// Of the global unicast block 2000::/3: protocol assignments with Teredo, documentation, 6to4.
const SPECIAL_V6: [([u16; 8], u8); 4] = [
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
];

/// Whether an address is one of the public internet. Addresses that carry an IPv4 address inside (mapped, NAT64,
/// 6to4, Teredo) are not, so that none of them leads to a private network.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => !SPECIAL_V4.iter().any(|(base, bits)| same_v4((*base).into(), v4, *bits)),
        IpAddr::V6(v6) => {
            v6.segments()[0] >> 13 == 1
                && !SPECIAL_V6.iter().any(|(base, bits)| same_v6((*base).into(), v6, *bits))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_unless_listed() {
        let none = AllowList::default();
        let private = "127.0.0.1 10.1.2.3 172.31.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 \
                       255.255.255.255 198.18.0.1 ::1 :: fe80::1 fc00::1 fd12::1 ff02::1 ::ffff:127.0.0.1 \
                       ::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2001::1 2001:db8::1 fec0::1 ::127.0.0.1";
        for address in private.split_whitespace() {
            assert!(!none.address(address.parse().unwrap()), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(none.address(address.parse().unwrap()), "{address}");
        }
        let some = AllowList::parse(&["10.1.0.0/16", "::1", "fd00::/8"]).unwrap();
        for (address, allowed) in [
            ("10.1.255.1", true),
            ("::ffff:10.1.0.1", true),
            ("10.2.0.1", false),
            ("::1", true),
            ("::2", false),
            ("fd12::1", true),
            ("fe80::1", false),
        ] {
            assert_eq!(some.address(address.parse().unwrap()), allowed, "{address}");
        }
        assert!(AllowList::parse(&["0.0.0.0/0"]).unwrap().address(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn hosts_are_listed_by_name_and_port() {
        let list = AllowList::parse(&["pay.example.com", "b.example.com:8443", "127.0.0.1"]).unwrap();
        assert!(list.host("pay.example.com", 1) && list.host("PAY.example.com", 443));
        assert!(list.host("b.example.com", 8443) && !list.host("b.example.com", 443));
        assert!(list.host("127.0.0.1", 80) && !list.host("127.0.0.2", 80));
        assert!(!list.host("a.pay.example.com", 443) && !list.host("1.1.1.1", 443));
        for bad in ["", "a b", "*.example.com", "host:port", "10.0.0.0/33", "x/8", "127.1", "0x7f.1", "a..b"]
        {
            assert_eq!(AllowList::parse(&[bad]), Err(BadEntry(bad.into())));
        }
    }
}
