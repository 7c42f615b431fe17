//! What protects the connections to a server, and the rule where nothing needs to.

use crate::options::{TlsError, TlsOptions};
use std::net::{IpAddr, Ipv6Addr};

/// What protects the connections to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Security {
    /// TLS, everywhere.
    Tls(TlsOptions),
    /// Plain text, to servers on this machine alone.
    Local,
    /// Plain text, wherever the server is: an operator allowed it by name.
    Plaintext,
}

impl Security {
    /// What a server's options `tls` and `plaintext` come to. Reads no files: those of a server that a process does not use
    /// need not be there.
    ///
    /// # Errors
    /// [`TlsError::Contradiction`]: both at once.
    pub fn new(tls: Option<&TlsOptions>, plaintext: bool) -> Result<Self, TlsError> {
        match (tls, plaintext) {
            (Some(_), true) => Err(TlsError::Contradiction),
            (Some(tls), false) => Ok(Self::Tls(tls.clone())),
            (None, true) => Ok(Self::Plaintext),
            (None, false) => Ok(Self::Local),
        }
    }

    /// Whether this host may be connected to; `server` is the kind of server, for the refusal.
    ///
    /// # Errors
    /// [`TlsError::PlainText`].
    pub fn allow(&self, server: &'static str, host: &str) -> Result<(), TlsError> {
        match self {
            Self::Local if !is_local(host) => Err(TlsError::PlainText { server, host: host.to_owned() }),
            _ => Ok(()),
        }
    }

    /// The same for an address `[scheme://][user[:password]@]host[:port][/…]`, of which the refusal shows the host alone.
    ///
    /// # Errors
    /// [`TlsError::PlainText`].
    pub fn allow_address(&self, server: &'static str, address: &str) -> Result<(), TlsError> {
        self.allow(server, host_of(address))
    }

    /// The options of TLS, where it is TLS.
    pub const fn tls(&self) -> Option<&TlsOptions> {
        match self {
            Self::Tls(tls) => Some(tls),
            Self::Local | Self::Plaintext => None,
        }
    }
}

/// The host of an address.
fn host_of(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if let Some(bracketed) = rest.strip_prefix('[') {
        return bracketed.split(']').next().unwrap_or_default();
    }
    // An IPv6 address without brackets has more colons than one, and no port.
    match rest.split_once(':') {
        Some((host, port)) if !port.contains(':') => host,
        _ => rest,
    }
}

/// Whether a host is this machine whatever a name server says: a loopback address, `localhost`, a path of a socket.
fn is_local(host: &str) -> bool {
    let host = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host);
    if host.starts_with('/') || host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback(),
        Ok(IpAddr::V6(address)) => {
            address == Ipv6Addr::LOCALHOST
                || address.to_ipv4_mapped().is_some_and(|mapped| mapped.is_loopback())
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_on_this_machine_unless_it_is_allowed_by_name() {
        let local = Security::new(None, false).unwrap();
        for host in [
            "127.0.0.1",
            "127.8.9.10",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
            "localhost",
            "LocalHost",
            "/run/redis.sock",
        ] {
            assert_eq!(local.allow("Redis", host), Ok(()), "{host}");
        }
        for host in [
            "10.0.0.1",
            "0.0.0.0",
            "::",
            "redis",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "1270.0.1",
            "",
            "::ffff:10.0.0.1",
        ] {
            let refused = local.allow("Redis", host).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("Redis at {host} is not on this machine")), "{refused}");
            assert!(refused.contains("tls = {}") && refused.contains("plaintext = true"), "{refused}");
            assert_eq!(Security::new(None, true).unwrap().allow("Redis", host), Ok(()));
            assert_eq!(
                Security::new(Some(&TlsOptions::default()), false).unwrap().allow("Redis", host),
                Ok(())
            );
        }
    }

    #[test]
    fn tls_and_plain_text_by_name_contradict_each_other() {
        assert_eq!(Security::new(Some(&TlsOptions::default()), true), Err(TlsError::Contradiction));
    }

    #[test]
    fn an_address_is_judged_by_its_host_and_never_shown_as_a_whole() {
        let local = Security::Local;
        for address in [
            "127.0.0.1:6379",
            "redis://u:p@127.0.0.1:6379/0",
            "http://[::1]:2379",
            "localhost",
            "::1",
            "https://localhost/x",
        ] {
            assert_eq!(local.allow_address("etcd", address), Ok(()), "{address}");
        }
        for address in [
            "redis://localhost:hush@10.0.0.5:6379/0",
            "redis://127.0.0.1@10.0.0.5",
            "10.0.0.5:1",
            "http://10.0.0.5/127.0.0.1",
        ] {
            let refused = local.allow_address("etcd", address).unwrap_err().to_string();
            assert!(refused.starts_with("etcd at 10.0.0.5 is") && !refused.contains("hush"), "{refused}");
        }
    }
}
