//! The signatures that `jsonwebtoken` checks, by ring, which the process has anyway: of the crate's own providers, one
//! brings an RSA with an open advisory, the other a second TLS-sized library in C.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, new_error};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature as by_ring;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes ring the provider of this process, unless the process has chosen one before.
pub(super) fn install() {
    if PROVIDER.install_default().is_err() {
        tracing::debug!("this process verifies users' tokens with a provider that was installed before");
    }
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKeyKind,
}

fn no_signer(_algorithm: &Algorithm, _key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(new_error(ErrorKind::UnsupportedAlgorithm))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.kind().clone() }))
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match &self.key {
            DecodingKeyKind::RsaModulusExponent { n, e } => rsa(self.algorithm).map(|parameters| {
                by_ring::RsaPublicKeyComponents { n, e }.verify(parameters, message, signed).is_ok()
            }),
            DecodingKeyKind::SecretOrDer(point) => other(self.algorithm).map(|algorithm| {
                by_ring::UnparsedPublicKey::new(algorithm, point).verify(message, signed).is_ok()
            }),
        };
        if verified == Some(true) { Ok(()) } else { Err(signature::Error::new()) }
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static by_ring::RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&by_ring::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&by_ring::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&by_ring::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&by_ring::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&by_ring::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&by_ring::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

fn other(algorithm: Algorithm) -> Option<&'static dyn by_ring::VerificationAlgorithm> {
    match algorithm {
        Algorithm::ES256 => Some(&by_ring::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Some(&by_ring::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Some(&by_ring::ED25519),
        _ => None,
    }
}
