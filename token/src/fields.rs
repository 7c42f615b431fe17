//! A token's content as bytes: `BonusToken` of `bonus.proto`, written from borrowed fields, read strictly.

use windfall_proto::{
    v1,
    wire::{self, Malformed, Reader},
};

/// What a token says, borrowed: a view of [`v1::BonusToken`], field by field.
///
/// Nothing is checked here; the SDK has checked its arguments before it mints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenFields<'a> {
    /// The order number.
    pub trade_no: &'a str,
    /// The owner: only this user can present the token.
    pub user_id: i64,
    /// The app that the user was in.
    pub app_id: &'a str,
    /// The campaign.
    pub activity: &'a str,
    /// The place in the campaign.
    pub scene: &'a str,
    /// cash, coupon, coin, …
    pub bonus_type: &'a str,
    /// In the smallest unit: fen, pieces.
    pub amount: i64,
    /// When the reward was awarded, in milliseconds since 1970.
    pub award_time_ms: i64,
    /// Text that the user may read.
    pub description: &'a str,
}

impl<'a> From<&'a v1::BonusToken> for TokenFields<'a> {
    fn from(token: &'a v1::BonusToken) -> Self {
        Self {
            trade_no: &token.trade_no,
            user_id: token.user_id,
            app_id: &token.app_id,
            activity: &token.activity,
            scene: &token.scene,
            bonus_type: &token.bonus_type,
            amount: token.amount,
            award_time_ms: token.award_time_ms,
            description: &token.description,
        }
    }
}

impl TokenFields<'_> {
    /// Appends the fields as protobuf, in ascending order, zero values left out: the one canonical encoding.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        wire::put_bytes(out, 1, self.trade_no.as_bytes());
        wire::put_i64(out, 2, self.user_id);
        wire::put_bytes(out, 3, self.app_id.as_bytes());
        wire::put_bytes(out, 4, self.activity.as_bytes());
        wire::put_bytes(out, 5, self.scene.as_bytes());
        wire::put_bytes(out, 6, self.bonus_type.as_bytes());
        wire::put_i64(out, 7, self.amount);
        wire::put_i64(out, 8, self.award_time_ms);
        wire::put_bytes(out, 9, self.description.as_bytes());
    }

    /// Bytes that [`encode`](Self::encode) appends.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        wire::bytes_field_len(self.trade_no.len())
            + wire::u64_field_len(self.user_id.cast_unsigned())
            + wire::bytes_field_len(self.app_id.len())
            + wire::bytes_field_len(self.activity.len())
            + wire::bytes_field_len(self.scene.len())
            + wire::bytes_field_len(self.bonus_type.len())
            + wire::u64_field_len(self.amount.cast_unsigned())
            + wire::u64_field_len(self.award_time_ms.cast_unsigned())
            + wire::bytes_field_len(self.description.len())
    }
}

/// Reads a token's content.
///
/// Strict: a field that is unknown, repeated, out of order, zero yet written, or a number in more bytes than
/// needed is refused, so that one token has one encoding.
pub(crate) fn decode(bytes: &[u8]) -> Result<v1::BonusToken, Malformed> {
    let mut token = v1::BonusToken::default();
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let at = reader.position();
        let (number, value) = reader.field()?;
        match number {
            1 => token.trade_no = wire::text(value, at)?.to_owned(),
            2 => token.user_id = wire::int64(value, at)?,
            3 => token.app_id = wire::text(value, at)?.to_owned(),
            4 => token.activity = wire::text(value, at)?.to_owned(),
            5 => token.scene = wire::text(value, at)?.to_owned(),
            6 => token.bonus_type = wire::text(value, at)?.to_owned(),
            7 => token.amount = wire::int64(value, at)?,
            8 => token.award_time_ms = wire::int64(value, at)?,
            9 => token.description = wire::text(value, at)?.to_owned(),
            _ => return Err(Malformed { at, what: "a field of BonusToken" }),
        }
    }
    let mut canonical = Vec::with_capacity(bytes.len());
    TokenFields::from(&token).encode(&mut canonical);
    if canonical == bytes { Ok(token) } else { Err(Malformed { at: 0, what: "the canonical encoding" }) }
}
