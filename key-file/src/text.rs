//! The frame of a key file's text: a title, a format number and a digest, each on a line of its own, and the body.

use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

const FORMAT: u64 = 1;

/// The error for a text that is not a key file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It is not as it was written.
    Damaged(&'static str),
    /// It has this newer format.
    Newer(u64),
}

/// Checks the first three lines of a text; they are valid TOML, so the text can then be parsed as it is. `title` is a
/// comment, with its line's end.
///
/// # Errors
/// [`Refused`].
pub fn check(title: &str, text: &str) -> Result<(), Refused> {
    let mut rest = text;
    let mut line = || {
        let (line, after) = rest.split_once('\n')?;
        rest = after;
        Some(line)
    };
    let first = line().ok_or(Refused::Damaged("empty or cut in its first line"))?;
    if title.strip_suffix('\n') != Some(first) {
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
    Ok(())
}

/// Puts the first three lines in front of a body.
pub fn seal(title: &str, body: &str) -> Zeroizing<String> {
    // Room for all of it at once: growing would leave copies of secrets behind.
    let mut text = Zeroizing::new(String::with_capacity(title.len() + body.len() + 512));
    text.push_str(title);
    text.push_str(&format!("format = {FORMAT}\ndigest = \"{}\"\n", digest_of(body)));
    text.push_str(body);
    text
}

fn digest_of(body: &str) -> String {
    STANDARD.encode(Sha256::digest(body.as_bytes()))
}
