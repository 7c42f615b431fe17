//! XAES-256-GCM as <https://c2sp.org/XAES-256-GCM> specifies it, with the derived key kept apart, so that one
//! derivation serves many messages.
#![allow(unsafe_code, reason = "the cipher is wiped in place of being dropped, as it does not wipe itself")]

use std::mem::MaybeUninit;

use aes::{
    Aes256, Block,
    cipher::{BlockCipherEncrypt, KeyInit},
};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of the nonce's first half, which picks the derived key.
pub(crate) const PREFIX_BYTES: usize = 12;
/// Bytes of the nonce's second half, which is AES-256-GCM's own nonce.
pub(crate) const COUNT_BYTES: usize = 12;
/// Bytes of a nonce.
pub(crate) const NONCE_BYTES: usize = PREFIX_BYTES + COUNT_BYTES;
/// Bytes of an authentication tag.
pub(crate) const TAG_BYTES: usize = 16;

/// The error of opening: the tag does not fit the text, or the input passes the 64 GiB that GCM can carry.
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
///
/// From `ring`: it interleaves AES with GHASH and seals a token in a third of the time that `aes-gcm` takes.
/// It does not zeroize its keys, so that is done here: once wiped, this memory holds no valid key any more.
pub(crate) struct Subkey(Box<MaybeUninit<LessSafeKey>>);

impl Subkey {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        // Wiping in place of dropping is right only while there is nothing to drop.
        const { assert!(!std::mem::needs_drop::<LessSafeKey>()) };
        let Ok(key) = UnboundKey::new(&AES_256_GCM, key) else {
            unreachable!("32 bytes are an AES-256 key");
        };
        Self(Box::new(MaybeUninit::new(LessSafeKey::new(key))))
    }

    #[inline]
    fn cipher(&self) -> &LessSafeKey {
        // SAFETY: written by `new`, wiped by `drop` alone.
        unsafe { self.0.assume_init_ref() }
    }

    /// Encrypts in place and returns the tag. A count must never be used twice.
    #[inline]
    pub(crate) fn seal(
        &self,
        count: &[u8; COUNT_BYTES],
        associated: &[u8],
        text: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], Refused> {
        let nonce = Nonce::assume_unique_for_key(*count);
        let tag = self
            .cipher()
            .seal_in_place_separate_tag(nonce, Aad::from(associated), text)
            .map_err(|_| Refused)?;
        tag.as_ref().try_into().map_err(|_| Refused)
    }

    /// Checks the tag in constant time and decrypts in place; where it is refused, `text` is of no use any more.
    #[inline]
    pub(crate) fn open(
        &self,
        count: &[u8; COUNT_BYTES],
        associated: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Refused> {
        let nonce = Nonce::assume_unique_for_key(*count);
        self.cipher()
            .open_in_place_separate_tag(nonce, Aad::from(associated), Tag::from(*tag), text, 0..)
            .map(|_| ())
            .map_err(|_| Refused)
    }
}

impl Subkey {
    fn wipe(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for Subkey {
    fn drop(&mut self) {
        self.wipe();
    }
}

fn as_block(bytes: &mut [u8; 16]) -> &mut Block {
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_vectors::{hex, hex_array};

    /// Seals and opens through the functions that tokens go through.
    fn check(subkey: &Subkey, count: &str, associated: &[u8], plain: &[u8], cipher: &str, tag: &str) {
        let (count, tag) = (hex_array(count), hex_array(tag));
        let mut text = plain.to_vec();
        assert_eq!(subkey.seal(&count, associated, &mut text), Ok(tag));
        assert_eq!(text, hex(cipher));
        let mut forged = text.clone();
        assert_eq!(subkey.open(&count, associated, &mut text, &tag), Ok(()));
        assert_eq!(text, plain);

        let mut other = tag;
        other[15] ^= 1;
        assert_eq!(subkey.open(&count, associated, &mut forged, &other), Err(Refused));
    }

    /// AES-256-GCM: test cases 13 to 16 of the GCM submission to NIST (McGrew, Viega), then the first ones of
    /// NIST's CAVP file gcmEncryptExtIV256.rsp with 0 and 16 bytes of text.
    #[test]
    fn aes_256_gcm_gives_the_published_results() {
        let zero = "00".repeat(32);
        let keyed = |key: &str| Subkey::new(&hex_array(key));
        let none = "000000000000000000000000";
        check(&keyed(&zero), none, &[], &[], "", "530f8afbc74536b9a963b4f1c4cb738b");
        check(
            &keyed(&zero),
            none,
            &[],
            &[0; 16],
            "cea7403d4d606b6e074ec5d3baf39d18",
            "d0d1c8a799996bf0265b98b5d48ab919",
        );

        let key = keyed(&"feffe9928665731c6d6a8f9467308308".repeat(2));
        let plain = hex(concat!(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72",
            "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
        ));
        let cipher = concat!(
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa",
            "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
        );
        let count = "cafebabefacedbaddecaf888";
        check(&key, count, &[], &plain, cipher, "b094dac5d93471bdec1a502270e3cc6c");
        let associated = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let tag = "76fc6ece0f4e1768cddf8853bb2d551b";
        check(&key, count, &associated, &plain[..60], &cipher[..120], tag);

        check(
            &keyed("b52c505a37d78eda5dd34f20c22540ea1b58963cf8e5bf8ffa85f9f2492505b4"),
            "516c33929df5a3284ff463d7",
            &[],
            &[],
            "",
            "bdc1ac884d332457a1d2664f168c76f0",
        );
        check(
            &keyed("31bdadd96698c204aa9ce1448ea94ae1fb4a9a0b3c9d773b51bb1822666b8f22"),
            "0d18e06c7c725ac9e362e1ce",
            &[],
            &hex("2db5168e932556f8089a0622981d017d"),
            "fa4362189661d163fcd6a56d8bf0405a",
            "d636ac1bbedd5cc3ee727dc2ab4a9489",
        );
    }

    /// Both vectors of <https://c2sp.org/XAES-256-GCM>, with what lies between: K1 and the derived key. The top
    /// bit of L is 0 in the first and 1 in the second.
    #[test]
    fn xaes_256_gcm_gives_the_published_results() {
        let vectors = [
            (
                1,
                "e531954aca063d5b8d9c47a47d4cc6f0",
                "c8612c9ed53fe43e8e005b828a1631a0bbcb6ab2f46514ec4f439fcfd0fa969b",
                "",
                ("ce546ef63c9cc60765923609", "b33a9a1974e96e52daf2fcf7075e2271"),
            ),
            (
                3,
                "23810ec50edb99f374409466ed1f4b7b",
                "e9c621d4cdd9b11b00a6427ad7e559aeedd66b3857646677748f8ca796cb3fd8",
                "c2sp.org/XAES-256-GCM",
                ("986ec1832593df5443a17943", "7fd083bf3fdb41abd740a21f71eb769d"),
            ),
        ];
        for (key, k1, derived, associated, (cipher, tag)) in vectors {
            let key = SealKey::new(&[key; 32]);
            assert_eq!(*key.k1, hex_array(k1));
            assert_eq!(*key.derive(b"ABCDEFGHIJKL"), hex_array(derived));
            let subkey = key.subkey(b"ABCDEFGHIJKL");
            let count = "4d4e4f505152535455565758";
            check(&subkey, count, associated.as_bytes(), b"XAES-256-GCM", cipher, tag);
        }
    }

    #[test]
    fn a_dropped_subkey_leaves_nothing_behind() {
        let mut subkey = Subkey::new(&[7; 32]);
        let bytes = size_of::<LessSafeKey>();
        let at = subkey.0.as_ptr().cast::<u8>();
        subkey.wipe();
        // SAFETY: `wipe` has written every byte, and the box still owns them.
        assert!(unsafe { std::slice::from_raw_parts(at, bytes) }.iter().all(|byte| *byte == 0));
        // A second wipe, by the drop that follows, is harmless.
    }
}
