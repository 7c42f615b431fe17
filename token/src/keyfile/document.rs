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

use serde::{Deserialize, Deserializer, de};
pub(super) use windfall_key_file::text::Refused;
use windfall_key_file::{Secret, by_name, put_secret, text};
use zeroize::Zeroizing;

use super::{Entry, Secrets};
use crate::{Algorithm, KeyId, KeyInfo, State};

const TITLE: &str =
    "# Windfall key ring. It holds secrets: chmod 600, and change it with `windfall keys` alone.\n";

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

/// Reads a key file's text, and checks it as a whole.
pub(super) fn read(content: &str) -> Result<Vec<Entry>, Refused> {
    text::check(TITLE, content)?;
    // The parser's own message would quote the line, with the secret in it.
    let document: Document =
        toml::from_str(content).map_err(|_| Refused::Damaged("not the TOML of format 1"))?;
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
    text::seal(TITLE, &body)
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
        put_secret(body, name, bytes);
    }
}
