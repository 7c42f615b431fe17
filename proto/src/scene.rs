//! The order numbers of scenes: a documented format (`docs/order-numbers.md`), so that a reward that is sent by the SDK's
//! helpers and one that is sent over a wire, from whatever language, are one order.

use crate::order::{self, Invalid, TRADE_NO_MAX_BYTES};

/// A kind of scene that has helpers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scene {
    /// Users tap packets that fall in rounds.
    RedPacketRain,
    /// A user draws cards, so many on each day.
    CardDraw,
    /// Everyone who watches a show gets something of each burst.
    Fireworks,
}

impl Scene {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::RedPacketRain, Self::CardDraw, Self::Fireworks];

    /// Its name in routes, budgets, requests and tokens.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RedPacketRain => "red-packet-rain",
            Self::CardDraw => "card-draw",
            Self::Fireworks => "fireworks",
        }
    }

    /// Its name in order numbers.
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::RedPacketRain => "rain",
            Self::CardDraw => "draw",
            Self::Fireworks => "show",
        }
    }
}

/// Writes the order numbers of one activity, scene and bonus type.
///
/// They begin with the campaign and the round, so that those of one moment lie side by side in the ledger's index. A
/// number that began with the user would scatter every batch of inserts over the whole of it.
///
/// ```
/// use windfall_proto::scene::{Scene, SceneOrders};
///
/// let orders = SceneOrders::new(Scene::RedPacketRain, "spring-2027", "cash")?;
/// assert_eq!(orders.trade_no(1, 42, 0), "spring-2027/rain/0000000001/cash/42/0");
/// # Ok::<(), windfall_proto::order::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SceneOrders {
    /// The activity and the scene, each with a `/` after it.
    prefix: Box<str>,
    bonus_type: Box<str>,
}

impl SceneOrders {
    /// # Errors
    /// [`Invalid`], for a bad name, or one with which the longest order number would be too long.
    pub fn new(scene: Scene, activity: &str, bonus_type: &str) -> Result<Self, Invalid> {
        order::check_name(activity)?;
        order::check_bonus_type(bonus_type)?;
        let prefix = format!("{activity}/{}/", scene.short_name());
        let own = Self { prefix: prefix.into(), bonus_type: bonus_type.into() };
        // No call can fail for the length of its number if the longest one fits.
        let len = own.trade_no(u32::MAX, i64::MAX, u32::MAX).len();
        if len > TRADE_NO_MAX_BYTES {
            return Err(Invalid::TooLong { len, max: TRADE_NO_MAX_BYTES });
        }
        Ok(own)
    }

    /// The order number of a user's reward. `round` is the rain's round, the draw's day or the show; `number` is the
    /// packet, the draw of that day or the burst.
    pub fn trade_no(&self, round: u32, user_id: i64, number: u32) -> String {
        let mut trade_no = String::with_capacity(TRADE_NO_MAX_BYTES);
        self.write(&mut trade_no, round, user_id, number);
        trade_no
    }

    /// Appends what [`trade_no`](Self::trade_no) returns.
    #[inline]
    pub fn write(&self, out: &mut String, round: u32, user_id: i64, number: u32) {
        out.push_str(&self.prefix);
        // Padded, so that numbers sort by round; user and number need not.
        push_number(out, round.into(), 10);
        out.push('/');
        out.push_str(&self.bonus_type);
        out.push('/');
        push_number(out, user_id.cast_unsigned(), 1);
        out.push('/');
        push_number(out, number.into(), 1);
    }
}

/// Appends `value` in at least `width` digits. By hand: three numbers through `write!` take longer than a tenth of
/// a whole call of the SDK.
#[inline]
fn push_number(out: &mut String, value: u64, width: usize) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    let mut rest = value;
    while rest > 0 || digits.len() - at < width {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    out.extend(digits[at..].iter().copied().map(char::from));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_standard_library_does() {
        for value in [0, 1, 9, 10, 42, 4_294_967_295, u64::MAX] {
            for width in [1, 10] {
                let mut out = String::new();
                push_number(&mut out, value, width);
                assert_eq!(out, format!("{value:0width$}"));
            }
        }
    }
}
