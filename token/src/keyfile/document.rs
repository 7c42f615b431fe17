//! The key file's text: TOML with a format number and a digest of all that follows, so that a file that was cut
//! or edited by hand is refused as a whole.
//!
//! ```toml
//! # Windfall key ring. It holds secrets: chmod 600, and change it with `windfall keys` alone.
//! format = 1
//! digest = "base64 of SHA-256 of what follows this line"
//!
//! [[key]]
//! id = 1
//! algorithm = "hmac-sha256-128"
//! state = "primary"
//! has_minted = true
//! created_ms = 1800000000000
//! seal_secret = "base64 of 32 bytes"
//! signing_secret = "base64 of 32 bytes"
//! ```

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, de};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use super::{Entry, Secrets};
use crate::{Algorithm, KeyId, KeyInfo, State};

const TITLE: &str =
    "# Windfall key ring. It holds secrets: chmod 600, and change it with `windfall keys` alone.\n";
const FORMAT: u64 = 1;

/// The error for a text that is not a key file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Damaged(&'static str),
    Newer(u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "format")]
    _format: u64,
    #[serde(rename = "digest")]
    _digest: de::IgnoredAny,
    #[serde(default)]
    key: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    id: u32,
    algorithm: Algorithm,
    state: State,
    has_minted: bool,
    created_ms: u64,
    seal_secret: Option<Secret>,
    signing_secret: Option<Secret>,
    public_key: Option<Secret>,
}

/// Thirty-two bytes, decoded straight from the text, so that no copy of it stays behind.
struct Secret(Zeroizing<[u8; 32]>);

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

impl<'de> Deserialize<'de> for Algorithm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_name(deserializer, |name| name.parse().ok())
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = [Self::Pending, Self::VerifyOnly, Self::Primary, Self::Destroyed];
        by_name(deserializer, |name| all.into_iter().find(|state| state.as_str() == name))
    }
}

fn by_name<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    find: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    let mut name = String::deserialize(deserializer)?;
    let found = find(&name).ok_or_else(|| de::Error::custom("an unknown name"));
    name.zeroize();
    found
}

/// Reads a key file's text, and checks it as a whole.
pub(super) fn read(text: &str) -> Result<Vec<Entry>, Refused> {
    let mut rest = text;
    let mut line = || {
        let (line, after) = rest.split_once('\n')?;
        rest = after;
        Some(line)
    };
    let first = line().ok_or(Refused::Damaged("empty or cut in its first line"))?;
    if format!("{first}\n") != TITLE {
        return Err(Refused::Damaged("the first line is not that of a key ring"));
    }
    let format = line().and_then(|line| line.strip_prefix("format = ")?.parse().ok());
    match format.ok_or(Refused::Damaged("no format number"))? {
        FORMAT => {}
        newer if newer > FORMAT => return Err(Refused::Newer(newer)),
        _ => return Err(Refused::Damaged("an unknown format number")),
    }
    let digest = line().and_then(|line| line.strip_prefix("digest = \"")?.strip_suffix('"'));
    if digest.ok_or(Refused::Damaged("no digest"))? != digest_of(rest) {
        return Err(Refused::Damaged("it is not what its digest says: cut or altered"));
    }
    // The parser's own message would quote the line, with the secret in it.
    let document: Document =
        toml::from_str(text).map_err(|_| Refused::Damaged("not the TOML of format 1"))?;
    let entries: Vec<Entry> = document.key.into_iter().map(Entry::try_from).collect::<Result<_, _>>()?;
    check(&entries).map(|()| entries)
}

impl TryFrom<Key> for Entry {
    type Error = Refused;

    fn try_from(key: Key) -> Result<Self, Refused> {
        let Key { id, algorithm, state, has_minted, created_ms, .. } = key;
        let info = KeyInfo { id: KeyId(id), algorithm, state, has_minted, created_ms };
        let secrets = match (key.seal_secret, key.signing_secret, key.public_key) {
            (None, None, None) if state == State::Destroyed => None,
            (Some(seal), Some(signing), None) if state != State::Destroyed => {
                Some(Secrets { seal: seal.0, signing: Some(signing.0), public: None })
            }
            (Some(seal), None, Some(public))
                if state != State::Destroyed && algorithm == Algorithm::Ed25519 =>
            {
                Some(Secrets { seal: seal.0, signing: None, public: Some(*public.0) })
            }
            _ => return Err(Refused::Damaged("a key whose secrets do not go with its state")),
        };
        Ok(Self { info, secrets })
    }
}

fn check(entries: &[Entry]) -> Result<(), Refused> {
    if entries.first().is_none_or(|entry| entry.info.id.0 == 0) {
        return Err(Refused::Damaged("no key, or a key numbered 0"));
    }
    if !entries.is_sorted_by(|a, b| a.info.id < b.info.id) {
        return Err(Refused::Damaged("key numbers out of order"));
    }
    let fits = |info: &KeyInfo| match info.state {
        State::Pending => !info.has_minted,
        State::Primary => info.has_minted,
        State::VerifyOnly | State::Destroyed => true,
    };
    if !entries.iter().all(|entry| fits(&entry.info)) {
        return Err(Refused::Damaged("a key whose history does not go with its state"));
    }
    if entries.iter().filter(|entry| entry.info.state == State::Primary).count() > 1 {
        return Err(Refused::Damaged("more than one primary key"));
    }
    Ok(())
}

/// Writes a key file's text.
pub(super) fn write(entries: &[Entry]) -> Zeroizing<String> {
    // Room for all of it at once: growing would leave copies of secrets behind.
    let mut body = Zeroizing::new(String::with_capacity(entries.len() * 512));
    for entry in entries {
        put_key(&mut body, entry);
    }
    let digest = digest_of(&body);
    let mut text = Zeroizing::new(String::with_capacity(body.len() + 512));
    text.push_str(TITLE);
    text.push_str(&format!("format = {FORMAT}\ndigest = \"{digest}\"\n"));
    text.push_str(&body);
    text
}

fn put_key(body: &mut String, Entry { info, secrets }: &Entry) {
    body.push_str(&format!("\n[[key]]\nid = {}\nalgorithm = \"{}\"\n", info.id, info.algorithm));
    body.push_str(&format!("state = \"{}\"\nhas_minted = {}\n", info.state, info.has_minted));
    body.push_str(&format!("created_ms = {}\n", info.created_ms));
    let Some(secrets) = secrets else { return };
    let named = [
        ("seal_secret", Some(&*secrets.seal)),
        ("signing_secret", secrets.signing.as_deref()),
        ("public_key", secrets.public.as_ref()),
    ];
    for (name, bytes) in named {
        let Some(bytes) = bytes else { continue };
        body.push_str(&format!("{name} = \""));
        STANDARD.encode_string(bytes, body);
        body.push_str("\"\n");
    }
}

fn digest_of(body: &str) -> String {
    STANDARD.encode(Sha256::digest(body.as_bytes()))
}
