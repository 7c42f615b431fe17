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
    Ed25519 { secret: Option<Box<SigningKey>>, public: Box<VerifyingKey> },
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
        Self::Ed25519 { public: Box::new(secret.verifying_key()), secret: Some(Box::new(secret)) }
    }

    /// A verifier's copy; `None` where the bytes are no point of the curve, or one of small order, which is nobody's key.
    pub(crate) fn ed25519_public(public: &[u8; 32]) -> Option<Self> {
        let public = VerifyingKey::from_bytes(public).ok().filter(|public| !public.is_weak())?;
        Some(Self::Ed25519 { secret: None, public: Box::new(public) })
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
            Self::Ed25519 { secret, .. } => secret.clone().map(MessageSigner::Ed25519),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_vectors::{hex, hex_array};

    /// Signs and verifies through the functions that tokens go through, however the message is cut into domain
    /// and rest.
    fn check(material: &SigningMaterial, message: &[u8], signature: &str) {
        for cut in 0..=message.len() {
            let mut signed = message.to_vec();
            material.signer(&message[..cut]).unwrap().append(&mut signed, cut);
            assert_eq!(signed[message.len()..], hex(signature));
        }
        let signature = hex(signature);
        assert_eq!(signature.len(), material.signature_len());
        assert!(material.verifies(message, &signature));
        for bit in 0..signature.len() * 8 {
            let mut other = signature.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!material.verifies(message, &other), "bit {bit}");
        }
        for len in 0..signature.len() {
            assert!(!material.verifies(message, &signature[..len]), "cut to {len}");
        }
        assert!(!material.verifies(message, &[&signature[..], &[0]].concat()));
        assert!(!material.verifies(&[message, &[0]].concat(), &signature));
    }

    /// RFC 8032, 7.1, tests 1 to 3.
    #[test]
    fn ed25519_gives_the_published_results() {
        let vectors = [
            (
                "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
                "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
                "",
                concat!(
                    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155",
                    "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
                ),
            ),
            (
                "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
                "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
                "72",
                concat!(
                    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da",
                    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
                ),
            ),
            (
                "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
                "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
                "af82",
                concat!(
                    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac",
                    "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
                ),
            ),
        ];
        for (secret, public, message, signature) in vectors {
            let material = SigningMaterial::ed25519(&hex_array(secret));
            assert_eq!(material.public_bytes(), Some(hex_array(public)));
            check(&material, &hex(message), signature);

            let verifier = SigningMaterial::ed25519_public(&hex_array(public)).unwrap();
            assert!(verifier.verifies(&hex(message), &hex(signature)));
            assert!(verifier.signer(&[]).is_none(), "a verifier's copy signs");
        }
    }

    /// RFC 4231, test cases 1, 2 and 5 (which is the one cut to 128 bits). Their keys are shorter than ours; HMAC
    /// fills a key up with zeros, so that ours with the zeros written out are the same keys.
    #[test]
    fn hmac_sha256_128_gives_the_published_results() {
        let filled = |key: &[u8]| {
            let mut secret = [0; 32];
            secret[..key.len()].copy_from_slice(key);
            SigningMaterial::hmac(&secret)
        };
        check(&filled(&[0x0b; 20]), b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b");
        check(&filled(b"Jefe"), b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c7");
        check(&filled(&[0x0c; 20]), b"Test With Truncation", "a3b6167473100ee06e0c796c2955552b");
    }

    #[test]
    fn secrets_zeroize_when_dropped() {
        const fn zeroizes<T: zeroize::ZeroizeOnDrop>() {}
        // Hmac is made of two of these and their buffer.
        zeroizes::<Sha256>();
        zeroizes::<SigningKey>();
        zeroizes::<aes::Aes256>();
    }
}
