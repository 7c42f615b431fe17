//! TLS with ring, certificates that are renewed while the server runs, and the names in a client's certificate.

use super::TlsOptions;
use arc_swap::ArcSwap;
use ring::digest;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConnection};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The protocols of the services' port, by their names in a handshake (ALPN).
pub(super) const EITHER: &[&[u8]] = &[b"h2", b"http/1.1"];
/// Those of a port that speaks HTTP/1.1 alone.
pub(super) const HTTP1: &[&[u8]] = &[b"http/1.1"];

/// TLS cannot be set up as the options say.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not what it should be.
    #[error("{}: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The key does not fit the certificate, or the like.
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// The authorities of clients cannot be used.
    #[error("the authorities of clients cannot be used: {0}")]
    ClientAuthorities(#[from] rustls::server::VerifierBuilderError),
    /// This option needs the authorities of clients.
    #[error("{0} needs client_ca_file")]
    NoAuthorities(&'static str),
}

/// The certificates in force.
pub(super) struct Tls {
    options: TlsOptions,
    protocols: &'static [&'static [u8]],
    now: ArcSwap<Loaded>,
    refused: AtomicU64,
}

pub(super) struct Loaded {
    acceptor: TlsAcceptor,
    /// Checks the certificates of clients, where they may have some.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// The digest of the files that it was made of.
    digest: Vec<u8>,
}

/// The certificate that a client has shown, with its chain.
pub(super) struct Presented {
    chain: Vec<CertificateDer<'static>>,
    /// The files by which it was found good last.
    loaded: Arc<Loaded>,
}

impl Tls {
    pub(super) fn new(options: TlsOptions, protocols: &'static [&'static [u8]]) -> Result<Self, TlsError> {
        let loaded = load(&options, protocols, digest(&options))?;
        Ok(Self { options, protocols, now: ArcSwap::from_pointee(loaded), refused: AtomicU64::new(0) })
    }

    /// What is in force now.
    pub(super) fn loaded(&self) -> Arc<Loaded> {
        self.now.load_full()
    }

    /// Whether a client's certificate is good by the files in force. It is looked at again when they have changed.
    pub(super) fn still_takes(&self, presented: &mut Presented) -> bool {
        let now = self.now.load();
        if Arc::ptr_eq(&now, &presented.loaded) {
            return true;
        }
        presented.loaded = Arc::clone(&now);
        let Some((own, issuers)) = presented.chain.split_first() else { return true };
        // Where there are no authorities any more, none is good.
        let verifier = now.verifier.as_ref();
        verifier.is_some_and(|verifier| verifier.verify_client_cert(own, issuers, UnixTime::now()).is_ok())
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Loads what differs from both what is in force and what was refused last. A certificate and its key may be
    /// seen while only one of them is written: they do not fit, and the next look finds both.
    fn look(&self, refused: &mut Vec<u8>) {
        let digest = digest(&self.options);
        if digest == self.now.load().digest || digest == *refused {
            return;
        }
        match load(&self.options, self.protocols, digest.clone()) {
            Ok(loaded) => {
                self.now.store(Arc::new(loaded));
                tracing::info!("the certificates were renewed");
            }
            Err(error) => {
                self.refused.fetch_add(1, Relaxed);
                tracing::warn!(%error, "renewed certificates were refused; the last good ones stay");
                *refused = digest;
            }
        }
    }
}

impl Loaded {
    pub(super) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

impl Presented {
    /// The certificate of a client whose handshake is done, by these files.
    pub(super) fn of(connection: &ServerConnection, loaded: Arc<Loaded>) -> Option<Self> {
        let chain = connection.peer_certificates()?;
        Some(Self { chain: chain.iter().map(|one| one.clone().into_owned()).collect(), loaded })
    }

    /// DNS names and URIs of its subject alternative names.
    pub(super) fn names(&self) -> Vec<String> {
        let own = self.chain.first().map(webpki::EndEntityCert::try_from);
        let Some(Ok(own)) = own else { return Vec::new() };
        own.valid_dns_names().chain(own.valid_uri_names()).map(str::to_owned).collect()
    }
}

/// Follows the certificates' files. Owned by a server, which aborts it.
pub(super) async fn renew(tls: Arc<Tls>) {
    let mut refused = Vec::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let (looked, before) = (Arc::clone(&tls), refused.clone());
        let look = move || {
            let mut refused = before;
            looked.look(&mut refused);
            refused
        };
        match tokio::task::spawn_blocking(look).await {
            Ok(after) => refused = after,
            Err(error) => tracing::warn!(%error, "the certificates could not be looked at"),
        }
    }
}

/// A file that cannot be read counts as empty, and is refused when it is loaded.
fn digest(options: &TlsOptions) -> Vec<u8> {
    let mut context = digest::Context::new(&digest::SHA256);
    let of_clients = [options.client_ca_file.as_ref(), options.client_crl_file.as_ref()];
    for path in [Some(&options.cert_file), Some(&options.key_file)].into_iter().chain(of_clients) {
        let bytes = path.and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(&bytes);
    }
    context.finish().as_ref().to_vec()
}

fn load(options: &TlsOptions, protocols: &[&[u8]], digest: Vec<u8>) -> Result<Loaded, TlsError> {
    let chain = certificates(&options.cert_file)?;
    warn_if_exposed(&options.key_file);
    let key = PrivateKeyDer::from_pem_file(&options.key_file)
        // The error, not the content: a private key is in there.
        .map_err(|_| wrong(&options.key_file, "holds no private key in PEM"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = verifier(options, Arc::clone(&provider))?;
    let builder =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = match &verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
    };
    // It also begins without sessions: none is resumed whose certificate was good only by the files before.
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Loaded { acceptor: TlsAcceptor::from(Arc::new(config)), verifier, digest })
}

/// Where a file cannot be looked at, reading it says why.
fn warn_if_exposed(key_file: &Path) {
    if let Some(mode) = key_file.metadata().ok().and_then(|found| windfall_key_file::exposed_mode(&found)) {
        let (path, mode) = (key_file.display(), format!("{mode:03o}"));
        tracing::warn!(%path, mode, "a private key is open to others than its owner; run chmod 600 on its file");
    }
}

/// Checks the certificates of clients: by the authorities, and by what these have revoked.
fn verifier(
    options: &TlsOptions,
    provider: Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let Some(path) = &options.client_ca_file else {
        if options.client_cert_required {
            return Err(TlsError::NoAuthorities("client_cert_required"));
        }
        return match options.client_crl_file {
            Some(_) => Err(TlsError::NoAuthorities("client_crl_file")),
            None => Ok(None),
        };
    };
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority)?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if let Some(path) = &options.client_crl_file {
        // A certificate whose authority has no list here is refused: whether it is revoked is not known.
        builder = builder.with_crls(revocation_lists(path)?);
    }
    if !options.client_cert_required {
        builder = builder.allow_unauthenticated();
    }
    Ok(Some(builder.build()?))
}

fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let read = || CertificateRevocationListDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let all = read().map_err(|error| wrong(path, &error.to_string()))?;
    // An empty file would silently revoke nothing.
    if all.is_empty() { Err(wrong(path, "holds no revocation list in PEM")) } else { Ok(all) }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let all = read().map_err(|error| wrong(path, &error.to_string()))?;
    if all.is_empty() { Err(wrong(path, "holds no certificate in PEM")) } else { Ok(all) }
}

fn wrong(path: &Path, what: &str) -> TlsError {
    TlsError::File { path: path.to_owned(), what: what.to_owned() }
}
