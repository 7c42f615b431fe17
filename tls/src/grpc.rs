//! The same options for clients of gRPC, which make their connections themselves.

use crate::options::{TlsError, TlsOptions, read};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

impl TlsOptions {
    /// The settings of a gRPC channel: the files as they are now. A channel connects again by itself with what it was made
    /// with, so renewed files are in force with the next channel. Blocks.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn grpc(&self) -> Result<ClientTlsConfig, TlsError> {
        // Finds what is wrong with the files, where tonic would find it with the first call.
        self.config()?;
        let mut config = ClientTlsConfig::new();
        config = match &self.ca_file {
            Some(path) => config.ca_certificate(Certificate::from_pem(read("ca_file", path)?)),
            None => {
                let system = rustls_native_certs::load_native_certs().certs;
                // What of them cannot be read is not trusted, and the rest is.
                let anchors = system.iter().filter_map(|one| webpki::anchor_from_trusted_cert(one).ok());
                config.trust_anchors(anchors.map(|anchor| anchor.to_owned()).collect::<Vec<_>>())
            }
        };
        if let (Some(cert), Some(key)) = (&self.cert_file, &self.key_file) {
            config = config.identity(Identity::from_pem(read("cert_file", cert)?, read("key_file", key)?));
        }
        Ok(match &self.server_name {
            Some(name) => config.domain_name(name),
            None => config,
        })
    }
}
