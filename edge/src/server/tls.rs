//! TLS with ring, and the names in a client's certificate.

use super::TlsOptions;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

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

pub(super) fn acceptor(options: &TlsOptions) -> Result<TlsAcceptor, TlsError> {
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
