//! Keys of 32 bytes, in the text of a key file and in memory.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// Thirty-two secret bytes, decoded straight from a file's text, so that no copy of them stays behind.
pub struct Secret(pub Zeroizing<[u8; 32]>);

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Secret;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64 of 32 bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
                // The message names no content: it may be a secret.
                decode(text).map(Secret).ok_or_else(|| E::custom("not base64 of 32 bytes"))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Secret, E> {
                self.visit_str(&Zeroizing::new(text))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

fn decode(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    // The decoder wants room for whole groups: 33 bytes.
    let mut room = Zeroizing::new([0_u8; 33]);
    let len = STANDARD.decode_slice(text, &mut *room).ok()?;
    let mut secret = Zeroizing::new([0_u8; 32]);
    secret.copy_from_slice(room.get(..len).filter(|bytes| bytes.len() == 32)?);
    Some(secret)
}

/// Appends a line `name = "base64"`.
pub fn put_secret(body: &mut String, name: &str, bytes: &[u8; 32]) {
    body.push_str(&format!("{name} = \""));
    STANDARD.encode_string(bytes, body);
    body.push_str("\"\n");
}

/// Thirty-two fresh secret bytes.
///
/// # Errors
/// The operating system has no randomness.
pub fn random_secret() -> Result<Zeroizing<[u8; 32]>, getrandom::Error> {
    let mut secret = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *secret)?;
    Ok(secret)
}

/// Reads a name and finds what it names; the text is zeroed, since a file with a mistake in it may have a secret there.
///
/// # Errors
/// It is no text, or names nothing.
pub fn by_name<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    find: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    let mut name = String::deserialize(deserializer)?;
    let found = find(&name).ok_or_else(|| de::Error::custom("an unknown name"));
    name.zeroize();
    found
}
