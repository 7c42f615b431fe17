//! What protects the connections to PostgreSQL: what the address and the options ask for, and TLS for its client.
//!
//! The client's own mode `prefer` goes on in plain text where a server takes no TLS; here a connection is one or the other.

use super::options::PostgresOptions;
use crate::error::OpenError;
use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use windfall_tls::{HandshakeError, Security, TlsError, TlsOptions};

/// The kind of server, in refusals.
const SERVER: &str = "PostgreSQL";
/// What the client knows no word for, and does anyway.
const VERIFY_FULL: &str = "sslmode=verify-full";

/// The address as the client understands it.
pub(super) fn readable(url: &str) -> Cow<'_, str> {
    // A password may stand before the question mark, and nothing but options behind it.
    match url.split_once('?') {
        Some((place, options)) if options.contains(VERIFY_FULL) => {
            Cow::Owned(format!("{place}?{}", options.replace(VERIFY_FULL, "sslmode=require")))
        }
        _ => Cow::Borrowed(url),
    }
}

/// What protects the connections, which the configuration has from then on.
pub(super) fn secure(config: &mut Config, options: &PostgresOptions) -> Result<Security, OpenError> {
    let invalid = |what: String| Err(OpenError::Invalid(what));
    let by_address = (config.get_ssl_mode() == SslMode::Require).then(TlsOptions::default);
    if config.get_ssl_mode() == SslMode::Disable && options.tls.is_some() {
        return invalid(
            "sslmode=disable in the PostgreSQL address contradicts tls; leave one of them out".into(),
        );
    }
    let tls = options.tls.as_ref().or(by_address.as_ref());
    let security = Security::new(tls, options.plaintext).map_err(refused)?;
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    for at in 0..hosts.len().max(addresses.len()) {
        match (addresses.get(at), hosts.get(at)) {
            // The host is a name in the certificate then, and the address is where the connection goes.
            (Some(address), _) => security.allow(SERVER, &address.to_string()).map_err(refused)?,
            (None, Some(Host::Tcp(name))) => security.allow(SERVER, name).map_err(refused)?,
            #[cfg(unix)]
            (None, Some(Host::Unix(path))) if security.tls().is_some() => {
                return invalid(format!(
                    "{} is a socket on this machine, on which PostgreSQL speaks no TLS; leave tls and sslmode out",
                    path.display()
                ));
            }
            _ => {}
        }
    }
    // The client begins no TLS without a host, not even where `tls.server_name` says which name counts.
    let is_nameless = |at: usize| !matches!(hosts.get(at), Some(Host::Tcp(_)));
    if security.tls().is_some() && (0..addresses.len()).any(is_nameless) {
        return invalid(
            "the PostgreSQL address has a hostaddr without a host, so nothing says which name the server's certificate must \
             bear; add host"
                .into(),
        );
    }
    // Never `prefer`, which falls back to plain text.
    config.ssl_mode(if security.tls().is_some() { SslMode::Require } else { SslMode::Disable });
    Ok(security)
}

fn refused(error: TlsError) -> OpenError {
    OpenError::Invalid(error.to_string())
}

/// TLS for the client of PostgreSQL. The files are read anew for each connection.
#[derive(Debug, Clone)]
pub(super) struct Tls(pub TlsOptions);

/// The same for one host.
pub(super) struct TlsTo {
    tls: TlsOptions,
    host: String,
}

/// A connection that TLS protects.
pub(super) struct Protected<S>(windfall_tls::TlsStream<S>);

type Connecting<S> = Pin<Box<dyn Future<Output = Result<Protected<S>, HandshakeError>> + Send>>;

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Protected<S>;
    type TlsConnect = TlsTo;
    type Error = TlsError;

    fn make_tls_connect(&mut self, host: &str) -> Result<TlsTo, TlsError> {
        Ok(TlsTo { tls: self.0.clone(), host: host.to_owned() })
    }
}

impl<S> TlsConnect<S> for TlsTo
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Protected<S>;
    type Error = HandshakeError;
    type Future = Connecting<S>;

    fn connect(self, stream: S) -> Connecting<S> {
        Box::pin(async move { Ok(Protected(self.tls.connect(&self.host, stream).await?)) })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Protected<S> {
    // It would tie the password's proof to the certificate, which was verified in full.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Protected<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, to)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Protected<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(url: &str, tls: bool, plaintext: bool) -> Result<SslMode, String> {
        let mut config: Config =
            readable(url).parse().map_err(|error: tokio_postgres::Error| error.to_string())?;
        let options =
            PostgresOptions { tls: tls.then(TlsOptions::default), plaintext, ..PostgresOptions::default() };
        secure(&mut config, &options).map_err(|error| error.to_string())?;
        Ok(config.get_ssl_mode())
    }

    #[test]
    fn a_connection_is_tls_or_plain_text_and_never_what_the_server_prefers() {
        for url in
            ["postgres://u:p@127.0.0.1/d", "postgres://u@localhost,[::1]/d", "host=/run/postgresql user=u"]
        {
            assert_eq!(said(url, false, false), Ok(SslMode::Disable), "{url}");
        }
        assert_eq!(said("postgres://u@db/d", false, true), Ok(SslMode::Disable));
        assert_eq!(said("postgres://u@db/d", true, false), Ok(SslMode::Require));
        for mode in ["require", "verify-full"] {
            assert_eq!(
                said(&format!("postgres://u@db/d?sslmode={mode}"), false, false),
                Ok(SslMode::Require)
            );
            assert!(
                said(&format!("postgres://u@db/d?sslmode={mode}"), false, true)
                    .unwrap_err()
                    .contains("contradict")
            );
        }
        assert!(
            said("postgres://u@db/d?sslmode=disable", true, false).unwrap_err().contains("contradicts tls")
        );
    }

    #[test]
    fn another_machine_is_not_reached_in_plain_text_unless_it_is_allowed_by_name() {
        for url in [
            "postgres://u:hush@10.0.0.5/d",
            "postgres://u:hush@127.0.0.1,10.0.0.5/d",
            "postgres://u:hush@10.0.0.5/d?sslmode=prefer",
            "postgres://u:hush@10.0.0.5/d?sslmode=disable",
            "host=localhost hostaddr=10.0.0.5 user=u password=hush",
        ] {
            let refused = said(url, false, false).unwrap_err();
            assert!(refused.starts_with("PostgreSQL at 10.0.0.5 is not on this machine"), "{refused}");
            assert!(refused.contains("plaintext = true") && !refused.contains("hush"), "{refused}");
        }
        assert_eq!(said("host=db hostaddr=127.0.0.1 user=u", false, false), Ok(SslMode::Disable));
    }

    #[test]
    fn what_cannot_be_tls_is_refused() {
        assert!(said("host=/run/postgresql user=u", true, false).unwrap_err().contains("speaks no TLS"));
        assert!(said("hostaddr=10.0.0.5 user=u", true, false).unwrap_err().contains("add host"));
        let socket = "host=/run/postgresql hostaddr=10.0.0.5 user=u";
        assert!(said(socket, true, false).unwrap_err().contains("add host"));
    }

    #[test]
    fn a_password_is_not_taken_for_an_option() {
        let config: Config =
            readable("postgres://u:sslmode=verify-full@db/d?sslmode=verify-full").parse().unwrap();
        assert_eq!(config.get_password(), Some(b"sslmode=verify-full".as_slice()));
    }
}
