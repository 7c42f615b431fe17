//! How real servers are reached, as a command line says it for all of them; an options file says it for each.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use windfall_tls::TlsOptions;

/// What a refusal of an address means on a command line.
pub const ON_A_COMMAND_LINE: &str =
    "on a command line, --tls, --tls-ca FILE or --plaintext say how servers are reached";

/// How servers are reached that a command line names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reach {
    /// TLS.
    pub tls: Option<TlsOptions>,
    /// Whether plain text may leave this machine.
    pub plaintext: bool,
}

/// The same as arguments.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ReachArgs {
    /// Reach servers by TLS, and trust the certificate authorities of the system. An address that says https://, rediss:// or
    /// sslmode=verify-full does so without it
    #[arg(long, conflicts_with = "plaintext", help_heading = "How servers are reached")]
    tls: bool,
    /// Reach servers by TLS, and trust the certificate authorities in this PEM file alone
    #[arg(long, value_name = "FILE", conflicts_with = "plaintext", help_heading = "How servers are reached")]
    tls_ca: Option<PathBuf>,
    /// The client certificate (PEM), for servers that ask for one
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "plaintext",
        help_heading = "How servers are reached"
    )]
    tls_cert: Option<PathBuf>,
    /// The key (PEM) of the client certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "How servers are reached")]
    tls_key: Option<PathBuf>,
    /// Let plain text leave this machine; without it, and without TLS, only servers on this machine are reached
    #[arg(long, help_heading = "How servers are reached")]
    plaintext: bool,
}

impl ReachArgs {
    /// What they come to.
    pub fn reach(&self) -> Reach {
        let Self { tls, tls_ca, tls_cert, tls_key, plaintext } = self.clone();
        let by_tls = tls || tls_ca.is_some() || tls_cert.is_some();
        let options =
            TlsOptions { ca_file: tls_ca, cert_file: tls_cert, key_file: tls_key, server_name: None };
        Reach { tls: by_tls.then_some(options), plaintext }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        reach: ReachArgs,
    }

    fn reach(words: &[&str]) -> Option<Reach> {
        let words = ["windfall"].iter().chain(words);
        Line::try_parse_from(words).ok().map(|line| line.reach.reach())
    }

    #[test]
    fn a_command_line_says_how_servers_are_reached() {
        assert_eq!(reach(&[]), Some(Reach::default()));
        assert_eq!(reach(&["--tls"]).unwrap().tls, Some(TlsOptions::default()));
        let by_file =
            reach(&["--tls-ca", "ca.pem", "--tls-cert", "c.pem", "--tls-key", "c.key"]).unwrap().tls.unwrap();
        assert_eq!(by_file.ca_file, Some("ca.pem".into()));
        assert_eq!((by_file.cert_file, by_file.key_file), (Some("c.pem".into()), Some("c.key".into())));
        assert!(reach(&["--plaintext"]).unwrap().plaintext);
        for wrong in [
            &["--plaintext", "--tls"][..],
            &["--plaintext", "--tls-ca", "a"],
            &["--tls-cert", "a"],
            &["--tls-key", "a"],
        ] {
            assert_eq!(reach(wrong), None, "{wrong:?}");
        }
    }
}
