//! Where an executor listens.

use super::app::AppName;
use http::Uri;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The bytes of an address at most, as in XXL-JOB.
const ADDRESS_MAX_BYTES: usize = 255;

/// An executor: its application and its address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Executor {
    /// Its application.
    pub app: AppName,
    /// Where it listens.
    pub address: ExecutorAddress,
}

/// Scheme, host and port of an executor, with the prefix of its paths where it has one: `http://10.1.2.3:9999`.
///
/// The text is one for all ways to write it: the host in lower case, the port always there, no `/` at its end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorAddress(Arc<str>);

/// Why an address is none of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// It is too long.
    #[error("an address has at most 255 bytes")]
    TooLong,
    /// It cannot be read, or says more than scheme, host, port and path.
    #[error("an address is http:// or https://, a host, a port and at most a path")]
    NoUrl,
    /// Its host is none.
    #[error("an address needs a host: a name, an IPv4 address or an IPv6 address in brackets")]
    NoHost,
}

impl ExecutorAddress {
    /// Reads an address as executors register it.
    ///
    /// # Errors
    /// [`BadAddress`]: another scheme, a user's name, a query, a fragment, a path that is not plain, no host.
    pub fn parse(text: &str) -> Result<Self, BadAddress> {
        if text.len() > ADDRESS_MAX_BYTES {
            return Err(BadAddress::TooLong);
        }
        // Uri would drop a fragment in silence.
        if text.contains(['#', '\\']) {
            return Err(BadAddress::NoUrl);
        }
        let uri: Uri = text.parse().map_err(|_| BadAddress::NoUrl)?;
        let scheme = uri.scheme_str().ok_or(BadAddress::NoUrl)?;
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return Err(BadAddress::NoUrl),
        };
        let authority = uri.authority().ok_or(BadAddress::NoHost)?;
        let host = authority.host();
        let port = match authority.as_str().strip_prefix(host).ok_or(BadAddress::NoUrl)? {
            "" => default_port,
            _ => authority.port_u16().filter(|port| *port > 0).ok_or(BadAddress::NoUrl)?,
        };
        if !is_host(host) {
            return Err(BadAddress::NoHost);
        }
        let path = uri.path().strip_suffix('/').unwrap_or(uri.path());
        if uri.query().is_some() || !is_plain_path(path) {
            return Err(BadAddress::NoUrl);
        }
        Ok(Self(format!("{scheme}://{}:{port}{path}", host.to_ascii_lowercase()).into()))
    }

    /// The address as a URL without a `/` at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host where it is an address and no name.
    pub fn ip(&self) -> Option<IpAddr> {
        let uri: Uri = self.0.parse().ok()?;
        let host = uri.host()?;
        host.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }
}

impl fmt::Display for ExecutorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ExecutorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

fn is_host(host: &str) -> bool {
    if let Some(inside) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return inside.parse::<Ipv6Addr>().is_ok();
    }
    host.parse::<Ipv4Addr>().is_ok() || is_host_name(host)
}

fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    // What ends in a number is an address to some resolvers (`127.1`, `0x7f.1`).
    let is_numeric = |last: &str| last.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    text.split('.').all(label) && !text.rsplit('.').next().is_some_and(is_numeric)
}

/// A path that every server reads alike: no escapes, no empty steps, no steps up.
fn is_plain_path(path: &str) -> bool {
    let is_step = |step: &str| {
        !matches!(step, "" | "." | "..")
            && step.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte))
    };
    path.is_empty() || path.strip_prefix('/').is_some_and(|steps| steps.split('/').all(is_step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_for_all_ways_to_write_an_address() {
        for (text, address) in [
            ("http://10.1.2.3:9999/", "http://10.1.2.3:9999"),
            ("HTTP://Exec-1.Example.com:9999", "http://exec-1.example.com:9999"),
            ("http://exec.example.com", "http://exec.example.com:80"),
            ("https://exec.example.com/jobs/v1/", "https://exec.example.com:443/jobs/v1"),
            ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]:80"),
        ] {
            let read = ExecutorAddress::parse(text).unwrap();
            assert_eq!(read.as_str(), address, "{text}");
            assert_eq!(ExecutorAddress::parse(address), Ok(read));
        }
        let ip = |text: &str| ExecutorAddress::parse(text).unwrap().ip();
        assert_eq!(ip("http://10.1.2.3:1/x"), Some(IpAddr::from([10, 1, 2, 3])));
        assert_eq!(ip("http://[::1]:1"), Some(Ipv6Addr::LOCALHOST.into()));
        assert_eq!(ip("http://name:1"), None);
    }

    #[test]
    fn what_is_no_plain_address_is_refused() {
        for bad in [
            "",
            "10.1.2.3:9999",
            "ftp://10.1.2.3:9999",
            "file:///etc/passwd",
            "http://",
            "http://:80/",
            "http://user@host:1/",
            "http://user:pass@host:1/",
            "http://host:0/",
            "http://host:99999/",
            "http://host:/",
            "http://host:1/?a=b",
            "http://host:1/#a",
            "http://host:1\\@other/",
            "http://host:1/../admin",
            "http://host:1/a//b",
            "http://host:1/%2e%2e/",
            "http://host:1//",
            "http://ho st:1/",
            "http://host:1/\r\nX: y",
            "http://127.1:80/",
            "http://0x7f.0.0.1:80/",
            "http://2130706433/",
            "http://[fe80::1%25eth0]:1/",
            "http://[127.0.0.1]:1/",
            "http://a..b:1/",
        ] {
            assert!(ExecutorAddress::parse(bad).is_err(), "{bad:?}");
        }
        let long = format!("http://{}.example.com:1/", "a.".repeat(130));
        assert_eq!(ExecutorAddress::parse(&long), Err(BadAddress::TooLong));
    }
}
