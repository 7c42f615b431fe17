//! A certificate authority for servers that speak TLS, and the certificates that it signs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::Error;

/// The names of a server that clients on this machine reach.
const HERE: [&str; 2] = ["127.0.0.1", "localhost"];

/// TLS of a server: it takes no plain text where its clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The authority of the clients, and of the server.
    pub ca_file: PathBuf,
    /// The server's certificate.
    pub server: Pair,
    /// The certificate of clients, which settings name.
    pub client: Pair,
    /// Whether a client needs a certificate of the authority.
    pub requires_client: bool,
}

/// A certificate and its key, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub cert_file: PathBuf,
    /// Its key, PKCS #8.
    pub key_file: PathBuf,
}

/// How long a certificate is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// For some thousand years.
    InForce,
    /// It ended years ago.
    Expired,
}

/// An authority, whose files lie in a folder.
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority with files in a folder: its certificate is `ca.pem` there. Its key is in memory alone.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn make(folder: &Path) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(Error::io(format!("make {}", folder.display())))?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        // Two authorities of one name would be taken for each other until a signature is checked.
        let own: String =
            key.public_key_raw().iter().skip(1).take(6).map(|byte| format!("{byte:02x}")).collect();
        params.distinguished_name.push(DnType::CommonName, format!("windfall-servers {own}"));
        let certificate = params.self_signed(&key).map_err(failed)?;
        write(&folder.join("ca.pem"), &certificate.pem(), 0o644)?;
        Ok(Self { folder: folder.to_owned(), issuer: Issuer::new(params, key) })
    }

    /// Its certificate.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Signs a certificate for these names, addresses among them, as `NAME.pem` and `NAME.key`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn sign(&self, name: &str, hosts: &[&str], validity: Validity) -> Result<Pair, Error> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, name);
        // Nodes of a cluster are each other's clients.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        if validity == Validity::Expired {
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let pair = Pair {
            cert_file: self.folder.join(format!("{name}.pem")),
            key_file: self.folder.join(format!("{name}.key")),
        };
        write(&pair.cert_file, &certificate.pem(), 0o644)?;
        write(&pair.key_file, &key.serialize_pem(), 0o600)?;
        Ok(pair)
    }

    /// TLS with certificates of this authority for this machine.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn tls(&self) -> Result<Tls, Error> {
        Ok(Tls {
            ca_file: self.ca_file(),
            server: self.sign("server", &HERE, Validity::InForce)?,
            client: self.sign("client", &["windfall"], Validity::InForce)?,
            requires_client: false,
        })
    }
}

impl Tls {
    /// TLS with the certificates that lie in a folder; an authority makes them where there are none.
    pub(crate) fn in_folder(folder: &Path) -> Result<Self, Error> {
        let pair = |name: &str| Pair {
            cert_file: folder.join(format!("{name}.pem")),
            key_file: folder.join(format!("{name}.key")),
        };
        let (ca_file, server, client) = (folder.join("ca.pem"), pair("server"), pair("client"));
        // Written last.
        if client.key_file.is_file() {
            return Ok(Self { ca_file, server, client, requires_client: false });
        }
        Authority::make(folder)?.tls()
    }

    /// What clients are told.
    pub(crate) fn settings(&self) -> [(String, String); 3] {
        [
            ("ca", &self.ca_file),
            ("client_cert", &self.client.cert_file),
            ("client_key", &self.client.key_file),
        ]
        .map(|(name, path)| (name.to_owned(), path.display().to_string()))
    }
}

fn failed(error: rcgen::Error) -> Error {
    Error::Io { what: "make a certificate".to_owned(), source: std::io::Error::other(error) }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let write = || {
        fs::write(path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    write().map_err(Error::io(format!("write {}", path.display())))
}
