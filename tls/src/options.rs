//! The options of TLS, and what can be wrong with them.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The largest file of certificates that is read: the bundle of a system has 220 KiB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// TLS to a server: the table `tls` of its options. All files are PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsOptions {
    /// The authorities of the server's certificate; these alone are trusted. Default: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate with its chain, where the server asks for one; it needs `key_file`. Default: none.
    pub cert_file: Option<PathBuf>,
    /// The private key of `cert_file`, without a password.
    pub key_file: Option<PathBuf>,
    /// The name that the server's certificate must bear. Default: the host of the server's address.
    pub server_name: Option<String>,
}

/// The options of TLS, or of plain text, are wrong. Nothing was connected to; correct what it names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be used.
    #[error("tls.{option} {}: {what}", path.display())]
    File {
        /// The option.
        option: &'static str,
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A certificate without its key, or the other way round.
    #[error("tls.cert_file and tls.key_file come together or not at all")]
    Pair,
    /// The name cannot be one.
    #[error("tls.server_name {0:?} is neither a host name nor an IP address")]
    ServerName(String),
    /// There is nothing to check a server's certificate by.
    #[error("this system trusts no certificate authority; set tls.ca_file")]
    NoAuthorities,
    /// The certificate and its key cannot be used together, or at all.
    #[error("tls.cert_file and tls.key_file cannot be used: {0}")]
    Unusable(String),
    /// Both ways at once.
    #[error("tls and plaintext = true contradict each other; leave one of them out")]
    Contradiction,
    /// A server that is not on this machine, and no word about how to reach it.
    #[error(
        "{server} at {host} is not on this machine, and without TLS its data and passwords would be readable on the way: \
         set tls = {{}} (or tls = {{ ca_file = \"…\" }} for an authority of your own), or allow plain text by name with \
         plaintext = true"
    )]
    PlainText {
        /// The kind of server.
        server: &'static str,
        /// Its host.
        host: String,
    },
}

impl TlsOptions {
    /// Checks what can be checked without a connection.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn check(&self) -> Result<(), TlsError> {
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(TlsError::Pair);
        }
        let files = [
            ("ca_file", &self.ca_file, "CERTIFICATE-----"),
            ("cert_file", &self.cert_file, "CERTIFICATE-----"),
            ("key_file", &self.key_file, "PRIVATE KEY-----"),
        ];
        for (option, path, mark) in files {
            let Some(path) = path else { continue };
            let text = read(option, path)?;
            if !text.windows(mark.len()).any(|window| window == mark.as_bytes()) {
                let what = if option == "key_file" { "holds no private key" } else { "holds no certificate" };
                return Err(wrong(option, path, &format!("{what} in PEM")));
            }
        }
        match &self.server_name {
            Some(name) if !is_name(name) => Err(TlsError::ServerName(name.clone())),
            _ => Ok(()),
        }
    }
}

/// Reads a file as a whole, within a limit.
pub(crate) fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let bytes = std::fs::metadata(path).map_err(|error| wrong(option, path, &error))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(wrong(option, path, &format!("{bytes} bytes; {FILE_BYTES_MAX} are allowed")));
    }
    std::fs::read(path).map_err(|error| wrong(option, path, &error))
}

pub(crate) fn wrong(option: &'static str, path: &Path, what: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { option, path: path.to_owned(), what: what.to_string() }
}

fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.parse::<std::net::IpAddr>().is_ok() || (name.len() <= 253 && name.split('.').all(is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let said = |options: TlsOptions| options.check().unwrap_err().to_string();
        assert_eq!(TlsOptions::default().check(), Ok(()));
        let absent = Some(PathBuf::from("/nowhere/ca.pem"));
        assert!(
            said(TlsOptions { ca_file: absent.clone(), ..TlsOptions::default() })
                .contains("tls.ca_file /nowhere/ca.pem")
        );
        assert!(said(TlsOptions { key_file: absent, ..TlsOptions::default() }).contains("come together"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("empty.pem");
        std::fs::write(&file, "nothing").unwrap();
        assert!(
            said(TlsOptions { ca_file: Some(file), ..TlsOptions::default() })
                .contains("holds no certificate in PEM")
        );
        for name in ["", "a b", "https://host", "host:1", "a..b"] {
            let options = TlsOptions { server_name: Some(name.into()), ..TlsOptions::default() };
            assert_eq!(options.check(), Err(TlsError::ServerName(name.into())));
        }
        for name in ["redis.example.com", "10.0.0.5", "::1", "redis_1"] {
            let options = TlsOptions { server_name: Some(name.into()), ..TlsOptions::default() };
            assert_eq!(options.check(), Ok(()), "{name}");
        }
    }

    #[test]
    fn an_unknown_key_is_refused() {
        assert!(toml::from_str::<TlsOptions>("ca_file = \"a\"\nserver_name = \"b\"").is_ok());
        assert!(toml::from_str::<TlsOptions>("ca = \"a\"").is_err());
    }
}
