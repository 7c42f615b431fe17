//! The key file's text: TOML with a format number and a digest of all that follows, so that a file that was cut or edited
//! by hand is refused as a whole.
//!
//! ```toml
//! # Windfall signing keys. They are secret: chmod 600, and change the file with `windfall signing` alone.
//! format = 1
//! digest = "base64 of SHA-256 of what follows this line"
//! copy_for = "gateway"       # in a copy for one sender alone
//!
//! [[key]]
//! id = 1
//! sender = "gateway"
//! may_copy = false
//! state = "primary"
//! has_signed = true
//! created_ms = 1800000000000
//! secret = "base64 of 32 bytes"
//! ```

use super::{Content, Entry};
use crate::key::{KeyInfo, KeyState, check_sender};
use crate::verify::UNSIGNED_ORIGIN;
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeSet;
use windfall_key_file::text::{self, Refused};
use windfall_key_file::{Secret, by_name, put_secret};
use zeroize::Zeroizing;

const TITLE: &str = "# Windfall signing keys. They are secret: chmod 600, and change the file with `windfall signing` alone.\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "format")]
    _format: u64,
    #[serde(rename = "digest")]
    _digest: de::IgnoredAny,
    copy_for: Option<String>,
    #[serde(default)]
    key: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    id: u32,
    sender: String,
    may_copy: bool,
    state: KeyState,
    has_signed: bool,
    created_ms: u64,
    secret: Option<Secret>,
}

impl<'de> Deserialize<'de> for KeyState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = [Self::VerifyOnly, Self::Primary, Self::Destroyed];
        by_name(deserializer, |name| all.into_iter().find(|state| state.as_str() == name))
    }
}

/// Reads a key file's text, and checks it as a whole.
pub(super) fn read(content: &str) -> Result<Content, Refused> {
    text::check(TITLE, content)?;
    // The parser's own message would quote the line, with the secret in it.
    let document: Document =
        toml::from_str(content).map_err(|_| Refused::Damaged("not the TOML of format 1"))?;
    let entries: Vec<Entry> = document.key.into_iter().map(entry).collect::<Result<_, _>>()?;
    check(&entries)?;
    Ok(Content { entries, copy_for: document.copy_for })
}

fn entry(key: Key) -> Result<Entry, Refused> {
    let Key { id, sender, may_copy, state, has_signed, created_ms, secret } = key;
    check_sender(&sender).map_err(|_| Refused::Damaged("a sender that has no such name"))?;
    if secret.is_some() != (state != KeyState::Destroyed) {
        return Err(Refused::Damaged("a key whose secret does not go with its state"));
    }
    let info = KeyInfo { id, sender, may_copy, state, has_signed, created_ms };
    Ok(Entry { info, secret: secret.map(|secret| secret.0) })
}

fn check(entries: &[Entry]) -> Result<(), Refused> {
    if entries.first().is_none_or(|entry| entry.info.id == 0) {
        return Err(Refused::Damaged("no key, or a key numbered 0"));
    }
    if entries.last().is_some_and(|entry| entry.info.id == UNSIGNED_ORIGIN) {
        return Err(Refused::Damaged("a key with a number that no key can have"));
    }
    if !entries.is_sorted_by(|a, b| a.info.id < b.info.id) {
        return Err(Refused::Damaged("key numbers out of order"));
    }
    let mut primaries = BTreeSet::new();
    for Entry { info, .. } in entries.iter().filter(|entry| entry.info.state == KeyState::Primary) {
        if !info.has_signed {
            return Err(Refused::Damaged("a key whose history does not go with its state"));
        }
        if !primaries.insert(&info.sender) {
            return Err(Refused::Damaged("more than one primary key of a sender"));
        }
    }
    Ok(())
}

/// Writes a key file's text.
pub(super) fn write(entries: &[Entry], copy_for: Option<&str>) -> Zeroizing<String> {
    // Room for all of it at once: growing would leave copies of secrets behind.
    let mut body = Zeroizing::new(String::with_capacity(entries.len() * 512 + 256));
    if let Some(sender) = copy_for {
        body.push_str(&format!("copy_for = \"{sender}\"\n"));
    }
    for Entry { info, secret } in entries {
        let KeyInfo { id, sender, may_copy, state, has_signed, created_ms } = info;
        body.push_str(&format!("\n[[key]]\nid = {id}\nsender = \"{sender}\"\nmay_copy = {may_copy}\n"));
        body.push_str(&format!(
            "state = \"{state}\"\nhas_signed = {has_signed}\ncreated_ms = {created_ms}\n"
        ));
        if let Some(secret) = secret {
            put_secret(&mut body, "secret", secret);
        }
    }
    text::seal(TITLE, &body)
}
