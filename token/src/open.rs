//! Opens and verifies tokens: compares what a client presents with the key ring and the token store. // I7

use windfall_proto::v1;

use crate::{
    KeyId, KeyRing, State, TEXT_MAX_BYTES, fields,
    ring::LiveKey,
    text::{self, RAW_MAX_BYTES, VERSION},
};

/// The text is not a token of this owner. The error deliberately says no more: every cause looks the same outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("illegal token")]
pub struct Illegal;

/// Why a text is illegal: for operators and metrics alone, never for the one who presented it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Step 1.
    #[error("length: {len} bytes; a token text has at most 1024")]
    Length {
        /// Its length in bytes.
        len: usize,
    },
    /// Step 2.
    #[error("base64: not canonical base64url without padding")]
    Base64,
    /// Step 3: too short to have a header.
    #[error("header: too short for a version, a key id, a nonce and a tag")]
    Header,
    /// Step 3.
    #[error("version: {0}; this release knows 1")]
    Version(u8),
    /// Step 3.
    #[error("key: {0} is not in this ring")]
    UnknownKey(KeyId),
    /// Step 3.
    #[error("key: {key} is {state}, it opens nothing")]
    KeyState {
        /// The key.
        key: KeyId,
        /// Its state, pending or destroyed.
        state: State,
    },
    /// Step 4.
    #[error("seal: altered, of another ring, or of another tenant")]
    Seal,
    /// Step 5.
    #[error("signature: does not verify")]
    Signature,
    /// Step 6.
    #[error("content: not a canonical BonusToken")]
    Content,
    /// Step 7.
    #[error("owner: the token is of user {0}")]
    Owner(i64),
}

/// The token store's answer for (user, order number).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreAnswer<'a> {
    /// It holds this token text.
    Held(&'a str),
    /// It answered, and holds none.
    Absent,
    /// It did not answer, or not in time.
    Unavailable,
}

/// The verdict on a presented token.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Opens, belongs to the caller, equals the stored one in every field but the award time: may force a credit.
    /// Holds the earlier of the two award times, which is nearer to the first send.
    Valid(v1::BonusToken),
    /// It opens and belongs to the caller, but the store holds none: it is never forced.
    Unknown,
    /// Anything else that was presented.
    Illegal,
    /// It opens and belongs to the caller, but the store could not be asked: ask again later.
    Unavailable,
}

impl KeyRing {
    /// Opens a token for its owner.
    ///
    /// # Errors
    /// [`Illegal`], whatever the cause. Operators use [`diagnose`](Self::diagnose).
    pub fn open(&self, text: &[u8], tenant: &str, owner_user_id: i64) -> Result<v1::BonusToken, Illegal> {
        self.diagnose(text, tenant, Some(owner_user_id)).map_err(|_| Illegal)
    }

    /// Opens a token and says which step failed: for operators, `windfall token open`. Without an owner, a
    /// token of anybody opens.
    ///
    /// The order of steps: length → canonical base64 → version, key id → seal → signature → strict decoding
    /// → owner.
    ///
    /// # Errors
    /// [`Reason`].
    pub fn diagnose(
        &self,
        text: &[u8],
        tenant: &str,
        owner_user_id: Option<i64>,
    ) -> Result<v1::BonusToken, Reason> {
        // Before any decoding: a text of 10 MB costs one comparison. // I9
        if text.len() > TEXT_MAX_BYTES {
            return Err(Reason::Length { len: text.len() });
        }
        let mut raw = [0; RAW_MAX_BYTES];
        let raw = text::decode(text, &mut raw).ok_or(Reason::Base64)?;
        let parts = text::split(raw).ok_or(Reason::Header)?;
        if parts.version != VERSION {
            return Err(Reason::Version(parts.version));
        }
        // The key id alone fixes key and algorithms: nothing is tried in turn.
        let key = self.key(parts.key).ok_or(Reason::UnknownKey(parts.key))?;
        let live = key.live.as_ref().ok_or(Reason::KeyState { key: parts.key, state: key.info.state })?;
        let token = unseal(live, parts, tenant)?;
        match owner_user_id {
            Some(owner) if !is_owner(&token, owner) => Err(Reason::Owner(token.user_id)),
            _ => Ok(token),
        }
    }

    /// Judges a token that a user presents.
    ///
    /// The store must have been asked for the caller's id and the order number that [`open`](Self::open)
    /// returned. Only `Valid` may force a credit. // I7
    pub fn verify(
        &self,
        client_text: &str,
        stored: StoreAnswer<'_>,
        tenant: &str,
        owner_user_id: i64,
    ) -> Verdict {
        match self.open(client_text.as_bytes(), tenant, owner_user_id) {
            Ok(token) => self.verify_against(token, stored, tenant, owner_user_id),
            Err(Illegal) => Verdict::Illegal,
        }
    }

    /// The last step of [`verify`](Self::verify), for a token that [`open`](Self::open) has just returned for
    /// the same tenant and owner.
    ///
    /// Fields are compared, not texts: a repeated send mints another text of the same token. The award time is not
    /// compared: where a request names none, each send of the order takes it from the clock, and the token that the
    /// user holds is as good as the one that the store got last. The award time has no part in who gets how much of
    /// what. A caller that revokes by award time must judge the time in [`Verdict::Valid`].
    pub fn verify_against(
        &self,
        opened: v1::BonusToken,
        stored: StoreAnswer<'_>,
        tenant: &str,
        owner_user_id: i64,
    ) -> Verdict {
        let held = match stored {
            StoreAnswer::Unavailable => return Verdict::Unavailable,
            StoreAnswer::Absent => return Verdict::Unknown,
            StoreAnswer::Held(text) => text,
        };
        #[cfg(feature = "sabotage")]
        if crate::sabotage::skips_token_comparison() {
            return Verdict::Valid(opened);
        }
        let Ok(mut held) = self.open(held.as_bytes(), tenant, owner_user_id) else { return Verdict::Illegal };
        let award_time_ms = held.award_time_ms.min(opened.award_time_ms);
        held.award_time_ms = award_time_ms;
        let opened = v1::BonusToken { award_time_ms, ..opened };
        if is_owner(&opened, owner_user_id) && held == opened {
            Verdict::Valid(opened)
        } else {
            Verdict::Illegal
        }
    }
}

fn unseal(live: &LiveKey, parts: text::Parts<'_>, tenant: &str) -> Result<v1::BonusToken, Reason> {
    let subkey = live.seal.subkey(&parts.prefix);
    subkey
        .open(&parts.count, &text::associated_data(parts.key, tenant), parts.sealed, &parts.tag)
        .map_err(|_| Reason::Seal)?;
    let payload_len =
        parts.sealed.len().checked_sub(live.signing.signature_len()).ok_or(Reason::Signature)?;
    let (payload, signature) = parts.sealed.split_at(payload_len);
    let message = [&text::signature_domain(tenant), &parts.header[..], payload].concat();
    if !live.signing.verifies(&message, signature) {
        return Err(Reason::Signature);
    }
    // Only now are the bytes known to come from a minter; nothing was parsed before.
    fields::decode(payload).map_err(|_| Reason::Content)
}

fn is_owner(token: &v1::BonusToken, owner_user_id: i64) -> bool {
    #[cfg(feature = "sabotage")]
    if crate::sabotage::skips_token_comparison() {
        return true;
    }
    token.user_id == owner_user_id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, TokenFields};

    const FIELDS: TokenFields<'_> = TokenFields {
        trade_no: "spring-2027:rain:1:42",
        user_id: 42,
        app_id: "app",
        activity: "spring-2027",
        scene: "rain",
        bonus_type: "cash",
        amount: 888,
        award_time_ms: 1_800_000_000_000,
        description: "",
    };

    /// A token whose seal is good and whose inside is `edit`'s: what somebody makes who has the sealing key and
    /// not the signing key, or what a faulty release makes.
    fn resealed(ring: &KeyRing, tenant: &str, edit: impl FnOnce(&mut Vec<u8>)) -> String {
        let live = ring.key(KeyId(1)).unwrap().live.as_ref().unwrap();
        let text = ring.minter("acme").unwrap().mint(&FIELDS, 0).unwrap();
        let mut raw = [0; RAW_MAX_BYTES];
        let parts = text::split(text::decode(text.as_bytes(), &mut raw).unwrap()).unwrap();
        let subkey = live.seal.subkey(&parts.prefix);
        subkey
            .open(&parts.count, &text::associated_data(parts.key, "acme"), parts.sealed, &parts.tag)
            .unwrap();

        let mut inside = parts.sealed.to_vec();
        edit(&mut inside);
        let tag = subkey.seal(&parts.count, &text::associated_data(parts.key, tenant), &mut inside).unwrap();
        let mut out = String::new();
        text::append(&[&parts.header[..], &inside, &tag].concat(), &mut out);
        out
    }

    #[test]
    fn whoever_can_seal_and_not_sign_cannot_change_a_bit() {
        for algorithm in [Algorithm::HmacSha256, Algorithm::Ed25519] {
            let ring = KeyRing::ephemeral_of(algorithm).unwrap();
            let mut len = 0;
            let same = resealed(&ring, "acme", |inside| len = inside.len());
            assert!(ring.diagnose(same.as_bytes(), "acme", Some(42)).is_ok());
            for bit in 0..len * 8 {
                let other = resealed(&ring, "acme", |inside| inside[bit / 8] ^= 1 << (bit % 8));
                let answer = ring.diagnose(other.as_bytes(), "acme", Some(42));
                assert_eq!(answer, Err(Reason::Signature), "{algorithm}, bit {bit}");
            }
            for cut in 0..len {
                let other = resealed(&ring, "acme", |inside| inside.truncate(cut));
                let answer = ring.diagnose(other.as_bytes(), "acme", Some(42));
                assert_eq!(answer, Err(Reason::Signature), "{algorithm}, cut to {cut}");
            }
        }
    }

    #[test]
    fn whoever_can_seal_and_not_sign_cannot_move_a_token_to_another_tenant() {
        let ring = KeyRing::ephemeral_of(Algorithm::Ed25519).unwrap();
        let moved = resealed(&ring, "rival", |_| {});
        assert_eq!(ring.diagnose(moved.as_bytes(), "rival", Some(42)), Err(Reason::Signature));
    }

    #[test]
    fn a_signed_content_that_is_not_canonical_is_refused() {
        let ring = KeyRing::ephemeral().unwrap();
        let live = ring.key(KeyId(1)).unwrap().live.as_ref().unwrap();
        for payload in [&[0x52, 0][..], &[0x10, 42, 0x10, 42], &[0x10, 0], &[0x0a, 9, b'x'], b"\xff"] {
            let text = ring.minter("acme").unwrap().mint(&FIELDS, 0).unwrap();
            let mut raw = [0; RAW_MAX_BYTES];
            let parts = text::split(text::decode(text.as_bytes(), &mut raw).unwrap()).unwrap();
            let domain = text::signature_domain("acme");
            let mut message = [&domain, &parts.header[..], payload].concat();
            live.signing.signer(&domain).unwrap().append(&mut message, domain.len());
            let mut inside = message.split_off(domain.len() + parts.header.len());
            let tag = live
                .seal
                .subkey(&parts.prefix)
                .seal(&parts.count, &text::associated_data(parts.key, "acme"), &mut inside)
                .unwrap();
            let mut out = String::new();
            text::append(&[&parts.header[..], &inside, &tag].concat(), &mut out);
            let answer = ring.diagnose(out.as_bytes(), "acme", Some(42));
            assert_eq!(answer, Err(Reason::Content), "{payload:02x?}");
        }
    }
}
