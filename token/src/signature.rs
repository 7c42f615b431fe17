//! Signatures over domain ‖ header ‖ payload: HMAC-SHA256 cut to 128 bits, or Ed25519.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of an HMAC-SHA256-128 signature.
pub(crate) const HMAC_BYTES: usize = 16;
/// Bytes of an Ed25519 signature.
pub(crate) const ED25519_BYTES: usize = 64;

/// What a key signs and verifies with. Its parts zeroize themselves.
pub(crate) enum SigningMaterial {
    /// HMAC-SHA256, keyed.
    Hmac(Hmac<Sha256>),
    /// Ed25519; a verifier's copy has no secret.
    Ed25519 { secret: Option<SigningKey>, public: VerifyingKey },
}

impl SigningMaterial {
    pub(crate) fn hmac(secret: &[u8; 32]) -> Self {
        let mut block = zeroize::Zeroizing::new([0_u8; 64]);
        // HMAC (RFC 2104) pads a short key with zeros to the hash's block.
        block[..32].copy_from_slice(secret);
        Self::Hmac(<Hmac<Sha256> as KeyInit>::new((&*block).into()))
    }

    pub(crate) fn ed25519(secret: &[u8; 32]) -> Self {
        let secret = SigningKey::from_bytes(secret);
        Self::Ed25519 { public: secret.verifying_key(), secret: Some(secret) }
    }

    /// A verifier's copy; `None` where the bytes are no point of the curve.
    pub(crate) fn ed25519_public(public: &[u8; 32]) -> Option<Self> {
        let public = VerifyingKey::from_bytes(public).ok()?;
        Some(Self::Ed25519 { secret: None, public })
    }

    /// Ed25519's public key.
    pub(crate) fn public_bytes(&self) -> Option<[u8; 32]> {
        match self {
            Self::Hmac(_) => None,
            Self::Ed25519 { public, .. } => Some(public.to_bytes()),
        }
    }

    /// Bytes of a signature.
    pub(crate) const fn signature_len(&self) -> usize {
        match self {
            Self::Hmac(_) => HMAC_BYTES,
            Self::Ed25519 { .. } => ED25519_BYTES,
        }
    }

    /// A signer for messages that begin with `domain`; `None` in a verifier's copy.
    pub(crate) fn signer(&self, domain: &[u8]) -> Option<MessageSigner> {
        match self {
            Self::Hmac(mac) => Some(MessageSigner::Hmac(mac.clone().chain_update(domain))),
            Self::Ed25519 { secret, .. } => {
                secret.clone().map(|secret| MessageSigner::Ed25519(Box::new(secret)))
            }
        }
    }

    /// `signature` is this key's over `message`, which begins with the domain. Constant time in the signature.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            // The length is checked first: verify_truncated_left alone would take a shorter prefix.
            Self::Hmac(mac) => {
                signature.len() == HMAC_BYTES
                    && mac.clone().chain_update(message).verify_truncated_left(signature).is_ok()
            }
            Self::Ed25519 { public, .. } => Signature::from_slice(signature)
                .is_ok_and(|signature| public.verify_strict(message, &signature).is_ok()),
        }
    }
}

/// Signs messages of one domain.
pub(crate) enum MessageSigner {
    /// HMAC that has absorbed the domain.
    Hmac(Hmac<Sha256>),
    /// Ed25519 needs the message as a whole.
    Ed25519(Box<SigningKey>),
}

impl MessageSigner {
    /// Bytes of a signature.
    pub(crate) const fn signature_len(&self) -> usize {
        match self {
            Self::Hmac(_) => HMAC_BYTES,
            Self::Ed25519(_) => ED25519_BYTES,
        }
    }

    /// Appends the signature over `message`, whose first `domain_len` bytes are the domain.
    #[inline]
    pub(crate) fn append(&self, message: &mut Vec<u8>, domain_len: usize) {
        match self {
            Self::Hmac(mac) => {
                let tag = mac.clone().chain_update(&message[domain_len..]).finalize().into_bytes();
                message.extend_from_slice(&tag[..HMAC_BYTES]);
            }
            Self::Ed25519(secret) => {
                let signature = secret.sign(message);
                message.extend_from_slice(&signature.to_bytes());
            }
        }
    }
}
