//! XAES-256-GCM as <https://c2sp.org/XAES-256-GCM> specifies it, with the derived key kept apart, so that one
//! derivation serves many messages.

use aes::{
    Aes256, Block,
    cipher::{BlockCipherEncrypt, KeyInit},
};
use aes_gcm::{
    Aes256Gcm,
    aead::{AeadInOut, inout::InOutBuf},
};
use zeroize::Zeroizing;

/// Bytes of the nonce's first half, which picks the derived key.
pub(crate) const PREFIX_BYTES: usize = 12;
/// Bytes of the nonce's second half, which is AES-256-GCM's own nonce.
pub(crate) const COUNT_BYTES: usize = 12;
/// Bytes of a nonce.
pub(crate) const NONCE_BYTES: usize = PREFIX_BYTES + COUNT_BYTES;
/// Bytes of an authentication tag.
pub(crate) const TAG_BYTES: usize = 16;

/// The tag does not fit what was opened, or the input passes the 64 GiB that GCM can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

/// An input key, ready to derive from.
pub(crate) struct SealKey {
    cipher: Aes256,
    /// CMAC's subkey K1 (NIST SP 800-38B, 6.1).
    k1: Zeroizing<[u8; 16]>,
}

impl SealKey {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let cipher = Aes256::new(key.into());
        let mut l = Zeroizing::new([0_u8; 16]);
        cipher.encrypt_block(as_block(&mut l));
        let doubled = u128::from_be_bytes(*l) << 1;
        // The field's polynomial goes back in where the top bit fell out; a mask, not a branch on a secret.
        let k1 = doubled ^ (0x87 & 0_u128.wrapping_sub(u128::from_be_bytes(*l) >> 127));
        Self { cipher, k1: Zeroizing::new(k1.to_be_bytes()) }
    }

    /// The key that the nonce's first half picks.
    pub(crate) fn derive(&self, prefix: &[u8; PREFIX_BYTES]) -> Zeroizing<[u8; 32]> {
        let mut key = Zeroizing::new([0_u8; 32]);
        for (half, counter) in key.chunks_exact_mut(16).zip([1, 2]) {
            let mut message = Zeroizing::new([0_u8; 16]);
            message[..4].copy_from_slice(&[0, counter, b'X', 0]);
            message[4..].copy_from_slice(prefix);
            message.iter_mut().zip(self.k1.iter()).for_each(|(byte, mask)| *byte ^= mask);
            self.cipher.encrypt_block(as_block(&mut message));
            half.copy_from_slice(&*message);
        }
        key
    }

    /// The cipher for every nonce with this first half.
    pub(crate) fn subkey(&self, prefix: &[u8; PREFIX_BYTES]) -> Subkey {
        Subkey::new(&self.derive(prefix))
    }
}

/// AES-256-GCM under a derived key, its key schedule and GHASH key at hand.
pub(crate) struct Subkey(Aes256Gcm);

impl Subkey {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Aes256Gcm::new(key.into()))
    }

    /// Encrypts in place and returns the tag. A count must never be used twice.
    #[inline]
    pub(crate) fn seal(
        &self,
        count: &[u8; COUNT_BYTES],
        associated: &[u8],
        text: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], Refused> {
        self.0
            .encrypt_inout_detached(count.into(), associated, InOutBuf::from(text))
            .map(Into::into)
            .map_err(|_| Refused)
    }

    /// Checks the tag in constant time, then decrypts in place.
    #[inline]
    pub(crate) fn open(
        &self,
        count: &[u8; COUNT_BYTES],
        associated: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Refused> {
        self.0
            .decrypt_inout_detached(count.into(), associated, InOutBuf::from(text), tag.into())
            .map_err(|_| Refused)
    }
}

fn as_block(bytes: &mut [u8; 16]) -> &mut Block {
    bytes.into()
}
