//! The page token, which says where a page begins: base64url of `version(1) | CRC-32C(4) | name of a token`.
//! The checksum covers the user and the filter of the list. It catches a token of another list, and an invented one. It
//! is no secret, and need not be one: a page token says where in their own list a user goes on.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use windfall_proto::order::{NAME_MAX_BYTES, TRADE_NO_MAX_BYTES, check_text};

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + 4;
/// An order number, a space and an activity.
const TOKEN_NAME_MAX_BYTES: usize = TRADE_NO_MAX_BYTES + 1 + NAME_MAX_BYTES;
const TEXT_MAX_BYTES: usize = (HEAD_BYTES + TOKEN_NAME_MAX_BYTES).div_ceil(3) * 4;

/// The list that a page token belongs to: its user and filter.
#[derive(Clone, Copy)]
pub(crate) struct ListOf<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) user_id: i64,
    pub(crate) activity: &'a str,
}

impl ListOf<'_> {
    /// The token of the page that begins after the token of this name.
    pub(crate) fn token_after(self, name: &str) -> String {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + name.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.sum(name).to_be_bytes());
        bytes.extend_from_slice(name.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The name of the token after which a page begins; `None` where this is no page token of this list.
    pub(crate) fn read(self, token: &str) -> Option<String> {
        if token.len() > TEXT_MAX_BYTES {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (&[VERSION, a, b, c, d], name) = bytes.split_first_chunk::<HEAD_BYTES>()? else {
            return None;
        };
        let name = std::str::from_utf8(name).ok()?;
        check_text(name, TOKEN_NAME_MAX_BYTES).ok().filter(|text| !text.is_empty())?;
        (u32::from_be_bytes([a, b, c, d]) == self.sum(name)).then(|| name.to_owned())
    }

    fn sum(self, name: &str) -> u32 {
        let parts =
            [self.tenant.as_bytes(), b"\0", &self.user_id.to_be_bytes(), self.activity.as_bytes(), b"\0"];
        let sum = parts.into_iter().fold(0, crc32c::crc32c_append);
        crc32c::crc32c_append(sum, name.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    const LIST: ListOf<'_> = ListOf { tenant: "acme", user_id: 42, activity: "spring" };

    #[test]
    fn a_page_token_reads_back_for_its_list_alone() {
        for name in ["a", "spring:rain:1:42", "spring:rain:1:42 spring", &"x".repeat(TOKEN_NAME_MAX_BYTES)] {
            let token = LIST.token_after(name);
            assert_eq!(LIST.read(&token).as_deref(), Some(name));
            assert_eq!(ListOf { tenant: "rival", ..LIST }.read(&token), None);
            assert_eq!(ListOf { user_id: 43, ..LIST }.read(&token), None);
            assert_eq!(ListOf { activity: "", ..LIST }.read(&token), None);
        }
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let token = LIST.token_after("spring:rain:1:42");
        let mut bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(LIST.read(&URL_SAFE_NO_PAD.encode(&bytes)), None, "byte {at}");
            bytes[at] ^= 1;
        }
        let padded = format!("{token}=");
        let long = "A".repeat(10 << 20);
        for bad in ["", "AQ", "!", &token[..token.len() - 1], &padded, &long] {
            assert_eq!(LIST.read(bad), None);
        }
    }
}
