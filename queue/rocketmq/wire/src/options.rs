//! A client's options: the server's address, the client's credentials, and time-outs.

use crate::error::OptionsError;
use std::time::Duration;
use windfall_tls::TlsOptions;

/// How a client reaches RocketMQ's proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// Proxies as `host:port`, tried in turn. At least one.
    pub endpoints: Vec<String>,
    /// Namespace of topics and groups. Default empty.
    pub namespace: String,
    /// Access key and secret; none where the server asks for none.
    pub credentials: Option<Credentials>,
    /// TLS to the proxies. None: plain text.
    pub tls: Option<TlsOptions>,
    /// Deadline of making a connection and of each call; of a long poll, the time beyond it. 100 ms to 60 s,
    /// default 3 s: a server that stands still is noticed after so long.
    pub timeout: Duration,
}

/// The credentials by which the server knows this client.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name.
    pub access_key: String,
    /// Its secret. Never printed.
    pub secret_key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// The role of a client at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Sends to these topics.
    Producer {
        /// The topics.
        topics: Vec<String>,
    },
    /// Receives from these topics as a member of a group.
    Consumer {
        /// The group.
        group: String,
        /// The topics.
        topics: Vec<String>,
    },
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            namespace: String::new(),
            credentials: None,
            tls: None,
            timeout: Duration::from_secs(3),
        }
    }
}

impl ClientOptions {
    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// Names the option and what it may be.
    pub fn check(&self) -> Result<(), OptionsError> {
        let no = |what: String| Err(OptionsError(what));
        if self.endpoints.is_empty() {
            return no("endpoints is empty; name at least one proxy as host:port".into());
        }
        for endpoint in &self.endpoints {
            let port = endpoint
                .rsplit_once(':')
                .filter(|(host, _)| !host.is_empty())
                .map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(1..))) || endpoint.contains('/') {
                return no(format!("endpoint {endpoint:?} is not host:port, such as 127.0.0.1:8081"));
            }
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.timeout) {
            return no(format!("timeout is {:?}; it may be 100 ms to 60 s", self.timeout));
        }
        if let Some(credentials) = &self.credentials {
            let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
            if !plain(&credentials.access_key) || credentials.access_key.contains([',', '/', '=']) {
                return no("access_key must be printable ASCII without , / =".into());
            }
            if credentials.secret_key.is_empty() {
                return no("secret_key is empty".into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_named() {
        let said = |options: &ClientOptions| {
            options.check().err().map(|error| error.to_string()).unwrap_or_default()
        };
        let fine = ClientOptions { endpoints: vec!["localhost:8081".into()], ..ClientOptions::default() };
        assert_eq!(said(&fine), "");
        assert!(said(&ClientOptions::default()).contains("endpoints is empty"));
        for endpoint in ["localhost", "http://localhost:8081", ":8081", "localhost:0", "localhost:99999"] {
            let options = ClientOptions { endpoints: vec![endpoint.into()], ..fine.clone() };
            assert!(said(&options).contains(endpoint), "{endpoint}: {}", said(&options));
        }
        assert!(said(&ClientOptions { timeout: Duration::ZERO, ..fine.clone() }).contains("timeout"));
        let credentials = Credentials { access_key: "a,b".into(), secret_key: "hidden".into() };
        assert!(!format!("{credentials:?}").contains("hidden"));
        assert!(said(&ClientOptions { credentials: Some(credentials), ..fine }).contains("access_key"));
    }
}
