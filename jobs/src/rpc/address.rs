//! Addresses of executors, as callers register them.

use super::spec::wrong;
use crate::JobsError;
use crate::xxl::{AddressRules, ExecutorAddress};

const GRPC: &str = "grpc://";

/// One text for all ways to write an address: `grpc://host:port`, or what the protocol of XXL-JOB allows.
///
/// # Errors
/// [`JobsError::WrongField`].
pub(super) fn canonical(address: &str) -> Result<String, JobsError> {
    let refused = |what: &dyn std::fmt::Display| {
        wrong(
            "address",
            format!("{what}; it is grpc://host:port, or http://host:port where XXL-JOB's protocol is spoken"),
        )
    };
    match address.strip_prefix(GRPC) {
        Some(rest) => {
            // Host and port by the rules of the other protocol.
            let plain = ExecutorAddress::parse(&format!("http://{rest}")).map_err(|error| refused(&error))?;
            let rest = plain.as_str().trim_start_matches("http://");
            match rest.contains('/') {
                true => Err(refused(&"it has a path")),
                false => Ok(format!("{GRPC}{rest}")),
            }
        }
        None => ExecutorAddress::parse(address)
            .map(|address| address.as_str().to_owned())
            .map_err(|error| refused(&error)),
    }
}

/// Refuses an address, in its one text, that is not called by these rules. A name is looked at when it is dialled.
///
/// # Errors
/// [`JobsError::WrongField`].
pub(super) fn permitted(address: &str, rules: &AddressRules) -> Result<(), JobsError> {
    let plain = host_and_port(address).map_or_else(|| address.to_owned(), |place| format!("http://{place}"));
    let ip = ExecutorAddress::parse(&plain).ok().and_then(|plain| plain.ip());
    match ip.is_some_and(|ip| !rules.permit(ip)) {
        true => {
            Err(wrong("address", format!("executors at {address} are not called: see the option jobs.allow")))
        }
        false => Ok(()),
    }
}

/// The host and the port of a gRPC executor; `None`, where the address is another protocol's.
pub(super) fn host_and_port(address: &str) -> Option<&str> {
    address.strip_prefix(GRPC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_a_host_and_a_port() {
        assert_eq!(canonical("grpc://Worker-1:7000/").unwrap(), "grpc://worker-1:7000");
        assert_eq!(canonical("http://10.0.0.1:9999/").unwrap(), "http://10.0.0.1:9999");
        assert_eq!(host_and_port("grpc://worker-1:7000"), Some("worker-1:7000"));
        for wrong in
            ["", "worker:7000", "grpc://", "grpc://a:1/path", "grpc://u@a:1", "ftp://a:1", "grpc://127.1:1"]
        {
            let why = canonical(wrong).unwrap_err().to_string();
            assert!(why.starts_with("`address`:"), "{wrong}: {why}");
        }
    }

    #[test]
    fn an_address_that_is_not_called_is_refused() {
        let rules = AddressRules::parse(&["10.0.0.0/8"]).unwrap();
        for good in ["grpc://10.0.0.7:7000", "http://10.0.0.7:9999", "grpc://worker-1:7000"] {
            assert!(permitted(good, &rules).is_ok(), "{good}");
        }
        for wrong in ["grpc://127.0.0.1:7000", "http://127.0.0.1:9999", "grpc://[::1]:7000"] {
            let why = permitted(&canonical(wrong).unwrap(), &rules).unwrap_err().to_string();
            assert!(why.contains(wrong) && why.contains("jobs.allow"), "{why}");
        }
    }
}
