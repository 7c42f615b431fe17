//! TLS with ring, certificates that are renewed while the server runs, and the names in a client's certificate.

use super::TlsOptions;
use arc_swap::ArcSwap;
use ring::digest;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

const LOOK_EVERY: Duration = Duration::from_secs(10);

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
    /// A required client certificate needs authorities to check it.
    #[error("client_cert_required needs client_ca_file")]
    NoAuthorities,
}

/// The certificates in force.
pub(super) struct Tls {
    options: TlsOptions,
    now: ArcSwap<Loaded>,
    refused: AtomicU64,
}

struct Loaded {
    acceptor: TlsAcceptor,
    /// The digest of the files that it was made of.
    digest: Vec<u8>,
}

impl Tls {
    pub(super) fn new(options: TlsOptions) -> Result<Self, TlsError> {
        let loaded = Loaded { digest: digest(&options), acceptor: acceptor(&options)? };
        Ok(Self { options, now: ArcSwap::from_pointee(loaded), refused: AtomicU64::new(0) })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.now.load().acceptor.clone()
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
        match acceptor(&self.options) {
            Ok(acceptor) => {
                self.now.store(Arc::new(Loaded { acceptor, digest }));
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
    for path in [Some(&options.cert_file), Some(&options.key_file), options.client_ca_file.as_ref()] {
        let bytes = path.and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(&bytes);
    }
    context.finish().as_ref().to_vec()
}

fn acceptor(options: &TlsOptions) -> Result<TlsAcceptor, TlsError> {
    let chain = certificates(&options.cert_file)?;
    let key = PrivateKeyDer::from_pem_file(&options.key_file)
        // The error, not the content: a private key is in there.
        .map_err(|_| wrong(&options.key_file, "holds no private key in PEM"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match &options.client_ca_file {
        None if options.client_cert_required => return Err(TlsError::NoAuthorities),
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier =
                if options.client_cert_required { verifier } else { verifier.allow_unauthenticated() };
            builder.with_client_cert_verifier(verifier.build()?)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// DNS names and URIs of a verified certificate's subject alternative names.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    certificate.valid_dns_names().chain(certificate.valid_uri_names()).map(str::to_owned).collect()
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let all = read().map_err(|error| wrong(path, &error.to_string()))?;
    if all.is_empty() { Err(wrong(path, "holds no certificate in PEM")) } else { Ok(all) }
}

fn wrong(path: &Path, what: &str) -> TlsError {
    TlsError::File { path: path.to_owned(), what: what.to_owned() }
}
