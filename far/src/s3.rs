//! A bucket of an S3 server, as the place of the segments.

use serde::Deserialize;
use windfall_tls::{Security, TlsError, TlsOptions};

/// Where a bucket is, and who may use it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Options {
    /// The server's address, for instance `https://s3.eu-central-1.amazonaws.com`. The bucket comes behind it in the path.
    pub endpoint: String,
    /// The bucket. It must be there.
    pub bucket: String,
    /// The server's region. Default `us-east-1`, which most servers that have none expect.
    #[serde(default = "default_region")]
    pub region: String,
    /// The folder in the bucket; it belongs to one far tier alone. Default: the bucket as a whole.
    #[serde(default)]
    pub prefix: String,
    /// The name of the access key.
    pub access_key_id: String,
    /// The access key.
    pub secret_access_key: String,
    /// TLS by authorities or with a client certificate of one's own; `https:` alone trusts the system's authorities. Its
    /// files are read when the process starts, and it has no `server_name`. Default: none.
    #[serde(default)]
    pub tls: Option<TlsOptions>,
    /// Whether an address that begins with `http:` may be of another machine: what timers carry is then readable on the
    /// way. Default `false`. (Its earlier name, `allow_http`, is understood.)
    #[serde(default, alias = "allow_http")]
    pub plaintext: bool,
}

/// The options of a bucket are wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum S3OptionsError {
    /// An option that has no default is empty.
    #[error("s3.{0} is empty")]
    Empty(&'static str),
    /// The address is of no use.
    #[error(
        "s3.endpoint is {0}, but it must begin with https:// (or http://, on this machine or with plaintext = true)"
    )]
    Endpoint(String),
    /// The server cannot be reached like this.
    #[error("s3: {0}")]
    Tls(#[from] TlsError),
    /// The client of S3 takes the name from the address.
    #[error("s3.tls.server_name cannot be set; put the name that the certificate bears into s3.endpoint")]
    ServerName,
    /// The folder cannot be one.
    #[error("s3.prefix is {0:?}, but its parts must be names with single slashes between them")]
    Prefix(String),
    /// The client refuses them.
    #[error("the options of s3 cannot be used: {0}")]
    Client(String),
}

fn default_region() -> String {
    "us-east-1".into()
}

impl std::fmt::Debug for S3Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Options")
            .field("endpoint", &self.endpoint)
            .field("bucket", &self.bucket)
            .field("region", &self.region)
            .field("prefix", &self.prefix)
            .field("tls", &self.tls)
            .field("plaintext", &self.plaintext)
            .finish_non_exhaustive()
    }
}

impl S3Options {
    /// Checks them without asking the server.
    ///
    /// # Errors
    /// [`S3OptionsError`] names the first option that is wrong.
    pub fn check(&self) -> Result<(), S3OptionsError> {
        let needed = [
            ("endpoint", &self.endpoint),
            ("bucket", &self.bucket),
            ("region", &self.region),
            ("access_key_id", &self.access_key_id),
            ("secret_access_key", &self.secret_access_key),
        ];
        if let Some((name, _)) = needed.into_iter().find(|(_, value)| value.is_empty()) {
            return Err(S3OptionsError::Empty(name));
        }
        let host = ["https://", "http://"].iter().find_map(|scheme| self.endpoint.strip_prefix(scheme));
        // A user and a password in it would be printed with it.
        if host.is_none_or(|host| host.is_empty() || host.contains('@')) {
            let hidden = if self.endpoint.contains('@') { "an address with a user" } else { &self.endpoint };
            return Err(S3OptionsError::Endpoint(hidden.to_owned()));
        }
        let is_plain = self.endpoint.starts_with("http://");
        let https = TlsOptions::default();
        // What its scheme says counts, so a table `tls` with `http:` is a contradiction.
        match (self.tls.as_ref(), is_plain) {
            (Some(_), true) => return Err(TlsError::Contradiction.into()),
            (Some(tls), false) if tls.server_name.is_some() => return Err(S3OptionsError::ServerName),
            (Some(tls), false) => drop(Security::new(Some(tls), self.plaintext)?),
            (None, false) => drop(Security::new(Some(&https), false)?),
            (None, true) => Security::new(None, self.plaintext)?.allow_address("S3", &self.endpoint)?,
        }
        if !self.prefix.is_empty() && object_store::path::Path::parse(&self.prefix).is_err() {
            return Err(S3OptionsError::Prefix(self.prefix.clone()));
        }
        Ok(())
    }
}

#[cfg(feature = "s3")]
mod client {
    use super::{S3Options, S3OptionsError, TlsOptions};
    use async_trait::async_trait;
    use object_store::aws::AmazonS3Builder;
    use object_store::client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
        ReqwestConnector,
    };
    use object_store::prefix::PrefixStore;
    use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
    use std::error::Error as _;
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    /// One request: the largest is a part of 8 MiB.
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
    /// A call is repeated for so long, and then it has failed: whoever made it repeats it later.
    const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
    const RETRIES_MAX: usize = 3;

    /// Makes the client's connections.
    #[derive(Debug)]
    struct Connector {
        /// The settings of TLS; without them they are as the client makes them by itself.
        tls: Option<rustls::ClientConfig>,
        is_plain: bool,
    }

    impl HttpConnector for Connector {
        fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
            let client = match &self.tls {
                None => ReqwestConnector::default().connect(options)?,
                Some(tls) => by_tls(tls)?,
            };
            Ok(HttpClient::new(Explained { client, is_plain: self.is_plain }))
        }
    }

    fn by_tls(tls: &rustls::ClientConfig) -> object_store::Result<HttpClient> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.clone())
            .https_only(true)
            .http1_only()
            .timeout(REQUEST_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .build();
        let failed = |error| object_store::Error::Generic { store: "S3", source: Box::new(error) };
        Ok(HttpClient::new(client.map_err(failed)?))
    }

    /// A client whose errors say why there is no connection: its own leave that to their sources, which nobody prints.
    #[derive(Debug)]
    struct Explained {
        client: HttpClient,
        is_plain: bool,
    }

    #[async_trait]
    impl HttpService for Explained {
        async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
            self.client.execute(request).await.map_err(|error| explained(error, self.is_plain))
        }
    }

    fn explained(error: HttpError, is_plain: bool) -> HttpError {
        let kind = error.kind();
        // Somebody has taken the connection, and has not answered in HTTP.
        let may_want_tls = is_plain && !matches!(kind, HttpErrorKind::Connect | HttpErrorKind::Timeout);
        let what = match windfall_tls::explain(&error) {
            Some(what) => what,
            None if may_want_tls => {
                let cause = error.source().map(|cause| cause.to_string()).unwrap_or_default();
                format!("{cause}; if this port takes TLS alone, s3.endpoint must begin with https://")
            }
            None => return error,
        };
        HttpError::new(kind, io::Error::other(what))
    }

    impl S3Options {
        /// A client of the bucket. It connects with the first call.
        ///
        /// # Errors
        /// [`S3OptionsError`].
        pub fn objects(&self) -> Result<Arc<dyn ObjectStore>, S3OptionsError> {
            self.check()?;
            // The client takes the TLS of the process. Somebody else may have set it, which is as good.
            let _set_before = rustls::crypto::ring::default_provider().install_default().is_err();
            let is_plain = self.endpoint.starts_with("http://");
            let backoff = BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(2),
                base: 2.0,
            };
            let client = ClientOptions::new()
                .with_timeout(REQUEST_TIMEOUT)
                .with_connect_timeout(CONNECT_TIMEOUT)
                .with_allow_http(is_plain);
            // The files as they are now: the client keeps its connections' settings.
            let tls = self.tls.as_ref().map(TlsOptions::config).transpose()?;
            let objects = AmazonS3Builder::new()
                .with_http_connector(Connector { tls, is_plain })
                .with_endpoint(self.endpoint.trim_end_matches('/'))
                .with_bucket_name(&self.bucket)
                .with_region(&self.region)
                .with_access_key_id(&self.access_key_id)
                .with_secret_access_key(&self.secret_access_key)
                .with_allow_http(is_plain)
                // Some servers do not know it, and objects go one by one.
                .with_disable_bulk_delete(true)
                .with_client_options(client)
                .with_retry(RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout: RETRY_TIMEOUT })
                .build()
                .map_err(|error| S3OptionsError::Client(error.to_string()))?;
            Ok(match &*self.prefix {
                "" => Arc::new(objects),
                prefix => Arc::new(PrefixStore::new(objects, prefix)),
            })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn an_error_says_why_there_is_no_connection() {
            let said = |kind, cause: io::Error, is_plain| {
                let error = HttpError::new(kind, cause);
                explained(error, is_plain).to_string()
            };
            let unknown = rustls::CertificateError::UnknownIssuer;
            let stranger = io::Error::other(rustls::Error::InvalidCertificate(unknown));
            let of_tls = said(HttpErrorKind::Connect, stranger, false);
            assert!(of_tls.contains("set tls.ca_file"), "{of_tls}");
            let hung_up = || io::Error::other("it hung up");
            let plain = said(HttpErrorKind::Request, hung_up(), true);
            assert!(plain.contains("it hung up; if this port takes TLS alone"), "{plain}");
            // Nobody is there, or TLS was spoken already.
            assert_eq!(said(HttpErrorKind::Connect, hung_up(), true), "HTTP error: it hung up");
            assert_eq!(said(HttpErrorKind::Request, hung_up(), false), "HTTP error: it hung up");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> S3Options {
        S3Options {
            endpoint: "https://s3.example.com".into(),
            bucket: "timers".into(),
            region: default_region(),
            prefix: "far/one".into(),
            access_key_id: "id".into(),
            secret_access_key: "hush".into(),
            tls: None,
            plaintext: false,
        }
    }

    #[test]
    fn a_wrong_option_is_refused_by_its_name_and_the_secret_is_never_printed() {
        assert_eq!(options().check(), Ok(()));
        assert_eq!(S3Options { prefix: String::new(), ..options() }.check(), Ok(()));
        let said = |options: S3Options| options.check().unwrap_err().to_string();
        assert!(said(S3Options { bucket: String::new(), ..options() }).contains("s3.bucket is empty"));
        assert!(
            said(S3Options { secret_access_key: String::new(), ..options() }).contains("secret_access_key")
        );
        let plain = S3Options { endpoint: "http://127.0.0.1:1".into(), ..options() };
        assert_eq!(plain.check(), Ok(()));
        let elsewhere = S3Options { endpoint: "http://s3.example.com".into(), ..options() };
        assert!(said(elsewhere.clone()).contains("S3 at s3.example.com is not on this machine"));
        assert_eq!(S3Options { plaintext: true, ..elsewhere.clone() }.check(), Ok(()));
        let tls = Some(TlsOptions::default());
        assert!(said(S3Options { tls: tls.clone(), ..plain }).contains("contradict"));
        assert!(said(S3Options { tls: tls.clone(), plaintext: true, ..options() }).contains("contradict"));
        assert_eq!(S3Options { tls, ..options() }.check(), Ok(()));
        let named = Some(TlsOptions { server_name: Some("s3".into()), ..TlsOptions::default() });
        assert!(said(S3Options { tls: named, ..options() }).contains("server_name"));
        assert!(
            said(S3Options { endpoint: "ftp://s3.example.com".into(), ..options() }).contains("https://")
        );
        let with_user = said(S3Options { endpoint: "https://u:hush@s3.example.com".into(), ..options() });
        assert!(with_user.contains("s3.endpoint") && !with_user.contains("hush"), "{with_user}");
        assert!(said(S3Options { prefix: "a//b".into(), ..options() }).contains("s3.prefix"));
        assert!(!format!("{:?}", options()).contains("hush"));
    }

    #[cfg(feature = "s3")]
    #[test]
    fn a_client_is_made_without_a_connection_and_does_not_print_the_secret() {
        let objects = options().objects().unwrap();
        assert!(!format!("{objects:?} {objects}").contains("hush"));
    }
}
