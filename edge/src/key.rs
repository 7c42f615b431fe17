//! Bearer keys of services: 32 random bytes as text. Only their SHA-256 is ever stored.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};
use std::fmt;
use subtle::ConstantTimeEq;

const PREFIX: &str = "wfk_";
const RANDOM_BYTES: usize = 32;
const TEXT_BYTES: usize = 47;

/// A key that was just made. Show it to its owner once; keep the hash.
pub struct MintedKey {
    /// The text that the service sends: `wfk_` and 43 characters.
    pub text: String,
    /// The SHA-256 of the text in hex, which the access file holds.
    pub sha256: String,
}

impl fmt::Debug for MintedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MintedKey").field("text", &"redacted").field("sha256", &self.sha256).finish()
    }
}

/// Makes a bearer key from the system's randomness.
///
/// # Errors
/// The system has none to give.
pub fn mint_key() -> Result<MintedKey, getrandom::Error> {
    let mut random = [0u8; RANDOM_BYTES];
    getrandom::fill(&mut random)?;
    let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
    let sha256 = KeyHash::of(&text).hex();
    Ok(MintedKey { text, sha256 })
}

/// Whether the text has the form of a key. Anything else need not be hashed.
pub(crate) fn has_form(text: &str) -> bool {
    text.len() == TEXT_BYTES && text.starts_with(PREFIX)
}

/// The SHA-256 of a key's text. For 256 random bits that is enough without salt or stretching.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeyHash([u8; 32]);

impl KeyHash {
    pub(crate) fn of(text: &str) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
        Self(hash)
    }

    /// Reads 64 hex digits.
    pub(crate) fn parse(hex: &str) -> Option<Self> {
        let digits = hex.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self(hash))
    }

    pub(crate) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Compares in constant time.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_key_has_the_form_and_its_hash_comes_back() {
        let key = mint_key().unwrap();
        assert!(has_form(&key.text));
        let hash = KeyHash::parse(&key.sha256).unwrap();
        assert!(hash.equals(&KeyHash::of(&key.text)));
        assert!(!hash.equals(&KeyHash::of(&mint_key().unwrap().text)));
        assert!(!format!("{key:?}").contains(&key.text));
    }

    #[test]
    fn what_is_not_64_hex_digits_is_no_hash() {
        for wrong in ["", "ab", &"g".repeat(64), &"a".repeat(63), &format!("{}é", "a".repeat(62))] {
            assert_eq!(KeyHash::parse(wrong), None, "{wrong}");
        }
    }
}
