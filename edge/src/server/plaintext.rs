//! Where a port may speak plain text: on this machine, and elsewhere by name.

use std::net::SocketAddr;

/// A port that others reach has neither TLS nor leave to do without.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlainTextRefused {
    /// Both ways at once.
    #[error("tls and plaintext = true contradict each other; leave one of them out")]
    Contradiction,
    /// An address that is not of this machine alone, and no word about how it is reached.
    #[error(
        "{option} {address} is not on this machine alone, and without TLS its data and passwords would be readable on the \
         way: set tls = {{ cert_file = \"…\", key_file = \"…\" }}, listen on a loopback address, or allow plain text by name \
         with plaintext = true"
    )]
    Reachable {
        /// The option with the address.
        option: &'static str,
        /// The address.
        address: SocketAddr,
    },
}

/// Whether these options may listen at `address`, which `option` names. The rule is that for servers which Windfall connects
/// to (the crate `windfall-tls`): plain text stays on this machine, unless `plaintext = true` allows it elsewhere.
///
/// # Errors
/// [`PlainTextRefused`].
pub fn check_plaintext(
    option: &'static str,
    address: SocketAddr,
    has_tls: bool,
    plaintext: bool,
) -> Result<(), PlainTextRefused> {
    match (has_tls, plaintext) {
        (true, true) => Err(PlainTextRefused::Contradiction),
        (false, false) if !address.ip().to_canonical().is_loopback() => {
            Err(PlainTextRefused::Reachable { option, address })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_on_this_machine_unless_it_is_allowed_by_name() {
        let check = |address: &str, has_tls, plaintext| {
            check_plaintext("listen", address.parse().unwrap(), has_tls, plaintext)
        };
        for here in ["127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(check(here, false, false), Ok(()), "{here}");
        }
        for elsewhere in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
            let refused = check(elsewhere, false, false).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("listen {elsewhere} is not on this machine")), "{refused}");
            assert!(refused.contains("tls = {") && refused.contains("plaintext = true"), "{refused}");
            assert_eq!((check(elsewhere, true, false), check(elsewhere, false, true)), (Ok(()), Ok(())));
        }
        assert_eq!(check("127.0.0.1:1", true, true), Err(PlainTextRefused::Contradiction));
    }
}
