//! A token's content as bytes: `BonusToken` of `bonus.proto`, written from borrowed fields, read strictly.

use windfall_proto::{
    v1,
    wire::{self, Malformed, Reader},
};

/// The borrowed fields of a token: a view of [`v1::BonusToken`], field by field.
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
    /// The bonus type: cash, coupon, coin, …
    pub bonus_type: &'a str,
    /// The amount in the smallest unit: fen, pieces.
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
/// It reads strictly: a field that is unknown, repeated, out of order, zero yet written, or a number in more bytes than
/// necessary is refused, so that one token has one encoding.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn any_token() -> impl Strategy<Value = v1::BonusToken> {
        let text = || prop_oneof![Just(String::new()), "\\PC{0,40}"];
        let number = || prop_oneof![Just(0), any::<i64>()];
        let texts = (text(), text(), text(), text(), text(), text());
        (texts, number(), number(), number()).prop_map(
            |(
                (trade_no, app_id, activity, scene, bonus_type, description),
                user_id,
                amount,
                award_time_ms,
            )| {
                v1::BonusToken {
                    trade_no,
                    user_id,
                    app_id,
                    activity,
                    scene,
                    bonus_type,
                    amount,
                    award_time_ms,
                    description,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn the_bytes_are_those_of_prost(token in any_token()) {
            let fields = TokenFields::from(&token);
            let mut bytes = Vec::new();
            fields.encode(&mut bytes);
            prop_assert_eq!(&bytes, &token.encode_to_vec());
            prop_assert_eq!(bytes.len(), fields.encoded_len());
            prop_assert_eq!(decode(&bytes), Ok(token));
        }

        /// Whatever decodes is the one encoding of what it says.
        #[test]
        fn nothing_else_decodes(token in any_token(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let mut bytes = token.encode_to_vec();
            prop_assume!(!bytes.is_empty());
            let at = at.index(bytes.len());
            bytes[at] = byte;
            for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                if let Ok(other) = decode(bytes) {
                    prop_assert_eq!(other.encode_to_vec(), bytes);
                }
            }
        }

        #[test]
        fn any_bytes_end_without_panic(bytes: Vec<u8>) {
            if let Ok(token) = decode(&bytes) {
                prop_assert_eq!(token.encode_to_vec(), bytes);
            }
        }
    }

    #[test]
    fn a_second_encoding_is_refused() {
        let good = [&[0x0a, 1, b'x'][..], &[0x10, 42], &[0x32, 4], b"cash", &[0x38, 8]].concat();
        assert!(decode(&good).is_ok());
        let bad: &[(&str, &[u8])] = &[
            ("unknown field", &[0x52, 0]),
            ("out of order", &[0x10, 42, 0x0a, 1, b'x']),
            ("twice", &[0x10, 41, 0x10, 42]),
            ("zero, yet written", &[0x10, 0]),
            ("empty, yet written", &[0x0a, 0]),
            ("number in more bytes than needed", &[0x10, 0xaa, 0x00]),
            ("length in more bytes than needed", &[0x0a, 0x81, 0x00, b'x']),
            ("field number in more bytes than needed", &[0x90, 0x00, 42]),
            ("wrong wire type", &[0x0d, 1, 2, 3, 4]),
            ("group", &[0x13, 0x14]),
            ("not UTF-8", &[0x0a, 1, 0xff]),
            ("cut", &[0x0a, 9, b'x']),
        ];
        for (what, bytes) in bad {
            assert!(decode(bytes).is_err(), "{what}");
        }
    }
}
