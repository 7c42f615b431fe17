//! The token text: its layout, its limits and its base64.

use std::sync::LazyLock;

use base64::{
    Engine,
    engine::{
        DecodePaddingMode,
        general_purpose::{GeneralPurposeConfig, NO_PAD},
    },
};

use crate::{
    KeyId,
    xaes::{NONCE_BYTES, PREFIX_BYTES, TAG_BYTES},
};

/// The longest token text, in bytes.
pub const TEXT_MAX_BYTES: usize = 1024;

/// The only version so far.
pub(crate) const VERSION: u8 = 1;
/// The bytes of the header: version(1) | key id(4) | nonce(24).
pub(crate) const HEADER_BYTES: usize = 1 + 4 + NONCE_BYTES;
/// The most bytes that fit the longest text.
pub(crate) const RAW_MAX_BYTES: usize = TEXT_MAX_BYTES / 4 * 3;

/// The beginning of the associated data: bytes sealed for another purpose do not open as a token.
const PURPOSE: &[u8] = b"bonus-token";
/// The beginning of a signed message: a signature made for another purpose is none here.
const SIGNATURE_DOMAIN: &[u8] = b"windfall bonus token signature\0";

/// Base64url without padding, canonical only: spare bits must be zero, padding is refused (RFC 4648, 3.5).
const CONFIG: GeneralPurposeConfig =
    NO_PAD.with_decode_allow_trailing_bits(false).with_decode_padding_mode(DecodePaddingMode::RequireNone);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
type Base64 = base64::engine::Simd;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static BASE64: LazyLock<Base64> = LazyLock::new(|| Base64::url_safe(CONFIG));
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Base64 = base64::engine::GeneralPurpose;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static BASE64: LazyLock<Base64> = LazyLock::new(|| Base64::new(&base64::alphabet::URL_SAFE, CONFIG));

/// Bytes of the text that carries `raw` bytes.
pub(crate) const fn text_len(raw: usize) -> usize {
    raw / 3 * 4 + (raw % 3 * 8).div_ceil(6)
}

/// Appends `raw` as text.
#[inline]
pub(crate) fn append(raw: &[u8], out: &mut String) {
    out.reserve(text_len(raw.len()));
    BASE64.encode_string(raw, out);
}

/// Reads a text back into `raw`; `None` unless it is canonical. The caller has checked its length.
pub(crate) fn decode<'r>(text: &[u8], raw: &'r mut [u8; RAW_MAX_BYTES]) -> Option<&'r mut [u8]> {
    let len = BASE64.decode_slice(text, raw).ok()?;
    raw.get_mut(..len)
}

/// Writes version, key id and nonce.
#[inline]
pub(crate) fn put_header(out: &mut Vec<u8>, key: KeyId, prefix: &[u8], count: &[u8]) {
    out.push(VERSION);
    out.extend_from_slice(&key.0.to_be_bytes());
    out.extend_from_slice(prefix);
    out.extend_from_slice(count);
}

/// A token's bytes, taken apart.
pub(crate) struct Parts<'a> {
    pub(crate) version: u8,
    pub(crate) key: KeyId,
    pub(crate) header: &'a [u8; HEADER_BYTES],
    pub(crate) prefix: [u8; PREFIX_BYTES],
    pub(crate) count: [u8; NONCE_BYTES - PREFIX_BYTES],
    pub(crate) sealed: &'a mut [u8],
    pub(crate) tag: [u8; TAG_BYTES],
}

/// Takes a token's bytes apart; `None` where they are too few.
pub(crate) fn split(raw: &mut [u8]) -> Option<Parts<'_>> {
    let (header, rest) = raw.split_first_chunk_mut::<HEADER_BYTES>()?;
    let (sealed, tag) = rest.split_last_chunk_mut::<TAG_BYTES>()?;
    let header: &[u8; HEADER_BYTES] = header;
    let (&[version, a, b, c, d], nonce) = header.split_first_chunk::<5>()?;
    let (prefix, count) = nonce.split_first_chunk::<PREFIX_BYTES>()?;
    Some(Parts {
        version,
        key: KeyId(u32::from_be_bytes([a, b, c, d])),
        prefix: *prefix,
        count: count.try_into().ok()?,
        header,
        sealed,
        tag: *tag,
    })
}

/// purpose ‖ version ‖ key id ‖ tenant
pub(crate) fn associated_data(key: KeyId, tenant: &str) -> Vec<u8> {
    [PURPOSE, &[VERSION], &key.0.to_be_bytes(), tenant.as_bytes()].concat()
}

/// What a tenant's signed messages begin with. The tenant is in it, so that a verifier, who can seal but not
/// sign, cannot move a token to another tenant; its length is, so that no tenant's domain begins another's. Zeros
/// fill it up to a whole block of SHA-256, so that HMAC absorbs it once per minter, not once per token.
pub(crate) fn signature_domain(tenant: &str) -> Vec<u8> {
    let mut domain = [SIGNATURE_DOMAIN, &(tenant.len() as u64).to_be_bytes(), tenant.as_bytes()].concat();
    domain.resize(domain.len().next_multiple_of(64), 0);
    domain
}
