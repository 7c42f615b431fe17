//! The networks in which executors may be. Whoever holds the access token registers any address, and we send requests
//! there: an address is input of an attacker (server-side request forgery).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks that no executor is in unless the operator lists them: this machine, link-local networks, broadcast and
/// multicast, the addresses at which clouds show a machine its credentials, and IPv6 addresses that carry an IPv4 one
/// inside.
const REFUSED: [&str; 20] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    // The metadata of Alibaba Cloud, of Oracle Cloud and of Azure, which are outside of 169.254.0.0/16.
    "100.100.100.200/32",
    "192.0.0.192/32",
    "168.63.129.16/32",
    "224.0.0.0/4",
    "240.0.0.0/4",
    // Unspecified, loopback and IPv4-compatible.
    "::/96",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    // The metadata of AWS and of Google Cloud by IPv6.
    "fd00:ec2::254/128",
    "fd20:ce::254/128",
    // NAT64, 6to4 and Teredo.
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2002::/16",
    "2001::/32",
    "100::/64",
    "5f00::/16",
];

/// Decides to which addresses a request may go.
///
/// With a list, these networks alone. Without one, any address but those of this machine, of link-local networks, of
/// multicast and of clouds' metadata: executors live in private networks as well as in public ones. An executor on the
/// same machine needs `127.0.0.0/8` in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRules {
    networks: Vec<Network>,
    is_list: bool,
}

/// An entry of the list is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no network (10.20.0.0/16, fd00::/8) and no address")]
pub struct BadNetwork(pub String);

impl AddressRules {
    /// Reads the operator's list; an empty one stands for the default.
    ///
    /// # Errors
    /// [`BadNetwork`], the first entry that cannot be read.
    pub fn parse<S: AsRef<str>>(list: &[S]) -> Result<Self, BadNetwork> {
        let read = |entry: &str| Network::parse(entry).ok_or_else(|| BadNetwork(entry.to_owned()));
        let is_list = !list.is_empty();
        let networks: Result<Vec<_>, _> = match is_list {
            true => list.iter().map(|entry| read(entry.as_ref())).collect(),
            false => REFUSED.iter().map(|entry| read(entry)).collect(),
        };
        Ok(Self { networks: networks?, is_list })
    }

    /// Whether a request may go to this address.
    pub fn permit(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(address)) == self.is_list
    }
}

/// A block of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    base: IpAddr,
    bits: u8,
}

impl Network {
    fn parse(entry: &str) -> Option<Self> {
        let (base, bits) = match entry.split_once('/') {
            Some((base, bits)) => (base.parse::<IpAddr>().ok()?, Some(bits.parse().ok()?)),
            None => (entry.parse::<IpAddr>().ok()?.to_canonical(), None),
        };
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Self { base, bits })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(rules: &AddressRules, address: &str) -> bool {
        rules.permit(address.parse().unwrap())
    }

    #[test]
    fn without_a_list_this_machine_and_metadata_are_refused() {
        let rules = AddressRules::parse::<&str>(&[]).unwrap();
        let refused = "0.0.0.0 127.0.0.1 127.8.8.8 169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 \
                       224.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 fe80::1 \
                       ff02::1 fd00:ec2::254 fd20:ce::254 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::1 2001::1";
        for address in refused.split_whitespace() {
            assert!(!permits(&rules, address), "{address}");
        }
        for address in
            ["10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "8.8.8.8", "fd12::1", "2606::1"]
        {
            assert!(permits(&rules, address), "{address}");
        }
    }

    #[test]
    fn a_list_alone_decides() {
        let rules = AddressRules::parse(&["10.20.0.0/16", "127.0.0.1", "fd00::/8"]).unwrap();
        for (address, is_permitted) in [
            ("10.20.255.1", true),
            ("::ffff:10.20.0.1", true),
            ("10.21.0.1", false),
            ("127.0.0.1", true),
            ("127.0.0.2", false),
            ("fd12::1", true),
            ("8.8.8.8", false),
            ("::1", false),
        ] {
            assert_eq!(permits(&rules, address), is_permitted, "{address}");
        }
        for bad in ["", "host", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "x/8", "10.0/16"] {
            assert_eq!(AddressRules::parse(&[bad]), Err(BadNetwork(bad.into())));
        }
        assert!(permits(&AddressRules::parse(&["0.0.0.0/0"]).unwrap(), "127.0.0.1"));
    }
}
