//! Typed helpers: one a kind of scene. Each fixes activity, scene and bonus type once, and builds the order
//! number from what makes a reward unique there.
//!
//! Order numbers begin with the campaign and the round, so that those of one moment lie side by side in the
//! ledger's index; a number that began with the user would scatter every batch of inserts over the whole of it.

use crate::reward::{self, User};
use crate::sdk::Sdk;
use std::cell::RefCell;
use windfall_proto::event::EventRef;
use windfall_proto::order::{self, TRADE_NO_MAX_BYTES};
use windfall_proto::send::SendError;
use windfall_proto::v1::SendBonusReply;

/// What was won: an amount in the type's smallest unit, and what the user reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prize<'a> {
    /// 1 or more.
    pub amount: i64,
    /// At most 256 bytes; may be empty.
    pub description: &'a str,
}

impl Prize<'_> {
    /// A prize that needs no words.
    pub const fn of(amount: i64) -> Self {
        Self { amount, description: "" }
    }
}

/// Red-packet rain: users tap packets that fall in rounds.
#[derive(Clone)]
pub struct RedPacketRain(Scene);

impl RedPacketRain {
    /// The scene's name in routes, budgets and tokens.
    pub const SCENE: &'static str = "red-packet-rain";

    /// # Errors
    /// [`SendError::Invalid`] for a bad name, [`SendError::NoRoute`] where the rules take it nowhere.
    pub fn new(sdk: &Sdk, activity: &str, bonus_type: &str) -> Result<Self, SendError> {
        Scene::new(sdk, activity, Self::SCENE, "rain", bonus_type).map(Self)
    }

    /// A user's packet of a round. `packet` numbers the packets that one user takes in it.
    ///
    /// # Errors
    /// [`SendError`], as [`Sdk::send_bonus`].
    pub fn send(
        &self,
        round: u32,
        user: User<'_>,
        packet: u32,
        prize: Prize<'_>,
    ) -> Result<SendBonusReply, SendError> {
        self.0.send(round, user, packet, prize)
    }

    /// The order number that [`send`](Self::send) uses, for those who keep books of their own.
    pub fn trade_no(&self, round: u32, user_id: i64, packet: u32) -> String {
        self.0.trade_no(round, user_id, packet)
    }
}

/// Card draw: a user draws, each draw has its number.
#[derive(Clone)]
pub struct CardDraw(Scene);

impl CardDraw {
    /// The scene's name in routes, budgets and tokens.
    pub const SCENE: &'static str = "card-draw";

    /// # Errors
    /// As [`RedPacketRain::new`].
    pub fn new(sdk: &Sdk, activity: &str, bonus_type: &str) -> Result<Self, SendError> {
        Scene::new(sdk, activity, Self::SCENE, "draw", bonus_type).map(Self)
    }

    /// What a draw brought. `day` counts the campaign's days, `draw` the user's draws of that day.
    ///
    /// # Errors
    /// [`SendError`], as [`Sdk::send_bonus`].
    pub fn send(
        &self,
        day: u32,
        user: User<'_>,
        draw: u32,
        prize: Prize<'_>,
    ) -> Result<SendBonusReply, SendError> {
        self.0.send(day, user, draw, prize)
    }

    /// The order number that [`send`](Self::send) uses.
    pub fn trade_no(&self, day: u32, user_id: i64, draw: u32) -> String {
        self.0.trade_no(day, user_id, draw)
    }
}

/// Fireworks: a show goes up, everyone who watches gets something of each burst.
#[derive(Clone)]
pub struct Fireworks(Scene);

impl Fireworks {
    /// The scene's name in routes, budgets and tokens.
    pub const SCENE: &'static str = "fireworks";

    /// # Errors
    /// As [`RedPacketRain::new`].
    pub fn new(sdk: &Sdk, activity: &str, bonus_type: &str) -> Result<Self, SendError> {
        Scene::new(sdk, activity, Self::SCENE, "show", bonus_type).map(Self)
    }

    /// A user's share of one burst of a show.
    ///
    /// # Errors
    /// [`SendError`], as [`Sdk::send_bonus`].
    pub fn send(
        &self,
        show: u32,
        user: User<'_>,
        burst: u32,
        prize: Prize<'_>,
    ) -> Result<SendBonusReply, SendError> {
        self.0.send(show, user, burst, prize)
    }

    /// The order number that [`send`](Self::send) uses.
    pub fn trade_no(&self, show: u32, user_id: i64, burst: u32) -> String {
        self.0.trade_no(show, user_id, burst)
    }
}

/// What all scenes share: fixed names, and order numbers of round, user and a number within the round.
#[derive(Clone)]
struct Scene {
    sdk: Sdk,
    activity: Box<str>,
    scene: &'static str,
    bonus_type: Box<str>,
    order_prefix: Box<str>,
}

impl Scene {
    fn new(
        sdk: &Sdk,
        activity: &str,
        scene: &'static str,
        short: &str,
        bonus_type: &str,
    ) -> Result<Self, SendError> {
        order::check_name(activity).map_err(|why| SendError::invalid("activity", why))?;
        order::check_bonus_type(bonus_type).map_err(|why| SendError::invalid("bonus.type", why))?;
        if !sdk.has_route(activity, scene, bonus_type) {
            return Err(SendError::NoRoute {
                activity: activity.into(),
                scene: scene.into(),
                bonus_type: bonus_type.into(),
            });
        }
        let own = Self {
            sdk: sdk.clone(),
            activity: activity.into(),
            scene,
            bonus_type: bonus_type.into(),
            order_prefix: format!("{activity}/{short}/").into(),
        };
        // No call can fail for the length of its number if the longest one fits.
        let longest = own.trade_no(u32::MAX, i64::MAX, u32::MAX);
        if longest.len() > TRADE_NO_MAX_BYTES {
            let why = order::Invalid::TooLong { len: longest.len(), max: TRADE_NO_MAX_BYTES };
            return Err(SendError::invalid("activity (in the order number)", why));
        }
        Ok(own)
    }

    fn trade_no(&self, round: u32, user_id: i64, number: u32) -> String {
        let mut trade_no = String::with_capacity(TRADE_NO_MAX_BYTES);
        self.write_trade_no(&mut trade_no, round, user_id, number);
        trade_no
    }

    fn write_trade_no(&self, out: &mut String, round: u32, user_id: i64, number: u32) {
        out.push_str(&self.order_prefix);
        // Padded, so that numbers sort by round; user and number need not.
        push_number(out, round.into(), 10);
        out.push('/');
        out.push_str(&self.bonus_type);
        out.push('/');
        push_number(out, user_id.cast_unsigned(), 1);
        out.push('/');
        push_number(out, number.into(), 1);
    }

    fn send(
        &self,
        round: u32,
        user: User<'_>,
        number: u32,
        prize: Prize<'_>,
    ) -> Result<SendBonusReply, SendError> {
        TRADE_NO.with_borrow_mut(|trade_no| {
            trade_no.clear();
            self.write_trade_no(trade_no, round, user.user_id, number);
            let event = EventRef {
                trade_no,
                user_id: user.user_id,
                device_id: user.device_id,
                app_id: self.sdk.app_id(),
                activity: &self.activity,
                scene: self.scene,
                bonus_type: &self.bonus_type,
                amount: prize.amount,
                description: prize.description,
                ..EventRef::default()
            };
            self.sdk.send_checked(reward::check_event(event, None)?)
        })
    }
}

thread_local! {
    /// Each thread writes its order numbers into the same place.
    static TRADE_NO: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Appends `value` in at least `width` digits. By hand: three numbers through `write!` take longer than a tenth of
/// the whole call.
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
