//! Typed helpers: one for each kind of scene. Each fixes activity, scene and bonus type once, and builds the order
//! number from what makes a reward unique there.
//! [`SceneOrders`] writes it, in the format that `docs/order-numbers.md` gives for other languages.

use crate::reward::{self, User};
use crate::sdk::Sdk;
use std::cell::RefCell;
use windfall_proto::event::EventRef;
use windfall_proto::order;
use windfall_proto::scene::{Scene as SceneKind, SceneOrders};
use windfall_proto::send::SendError;
use windfall_proto::v1::SendBonusReply;

/// What was won: an amount in the type's smallest unit, and what the user reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prize<'a> {
    /// The amount, 1 or more.
    pub amount: i64,
    /// The description, at most 256 bytes; it may be empty.
    pub description: &'a str,
}

impl Prize<'_> {
    /// A prize without a description.
    pub const fn of(amount: i64) -> Self {
        Self { amount, description: "" }
    }
}

/// Red-packet rain: users tap packets that fall in rounds.
#[derive(Clone)]
pub struct RedPacketRain(Scene);

impl RedPacketRain {
    /// The scene's name in routes, budgets and tokens.
    pub const SCENE: &'static str = SceneKind::RedPacketRain.name();

    /// # Errors
    /// [`SendError::Invalid`] for a bad name, [`SendError::NoRoute`] where the rules take it nowhere.
    pub fn new(sdk: &Sdk, activity: &str, bonus_type: &str) -> Result<Self, SendError> {
        Scene::new(sdk, activity, SceneKind::RedPacketRain, bonus_type).map(Self)
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

    /// The order number that [`send`](Self::send) uses, for callers that keep their own records.
    pub fn trade_no(&self, round: u32, user_id: i64, packet: u32) -> String {
        self.0.trade_no(round, user_id, packet)
    }
}

/// Card draw: a user draws, each draw has its number.
#[derive(Clone)]
pub struct CardDraw(Scene);

impl CardDraw {
    /// The scene's name in routes, budgets and tokens.
    pub const SCENE: &'static str = SceneKind::CardDraw.name();

    /// # Errors
    /// As [`RedPacketRain::new`].
    pub fn new(sdk: &Sdk, activity: &str, bonus_type: &str) -> Result<Self, SendError> {
        Scene::new(sdk, activity, SceneKind::CardDraw, bonus_type).map(Self)
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
    pub const SCENE: &'static str = SceneKind::Fireworks.name();

    /// # Errors
    /// As [`RedPacketRain::new`].
    pub fn new(sdk: &Sdk, activity: &str, bonus_type: &str) -> Result<Self, SendError> {
        Scene::new(sdk, activity, SceneKind::Fireworks, bonus_type).map(Self)
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

/// The part that all scenes share: fixed names, and order numbers of round, user and a number within the round.
#[derive(Clone)]
struct Scene {
    sdk: Sdk,
    activity: Box<str>,
    kind: SceneKind,
    bonus_type: Box<str>,
    orders: SceneOrders,
}

impl Scene {
    fn new(sdk: &Sdk, activity: &str, kind: SceneKind, bonus_type: &str) -> Result<Self, SendError> {
        order::check_name(activity).map_err(|why| SendError::invalid("activity", why))?;
        order::check_bonus_type(bonus_type).map_err(|why| SendError::invalid("bonus.type", why))?;
        if !sdk.has_route(activity, kind.name(), bonus_type) {
            return Err(SendError::NoRoute {
                activity: activity.into(),
                scene: kind.name().into(),
                bonus_type: bonus_type.into(),
            });
        }
        let orders = SceneOrders::new(kind, activity, bonus_type)
            .map_err(|why| SendError::invalid("activity (in the order number)", why))?;
        Ok(Self { sdk: sdk.clone(), activity: activity.into(), kind, bonus_type: bonus_type.into(), orders })
    }

    fn trade_no(&self, round: u32, user_id: i64, number: u32) -> String {
        self.orders.trade_no(round, user_id, number)
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
            self.orders.write(trade_no, round, user.user_id, number);
            let event = EventRef {
                trade_no,
                user_id: user.user_id,
                device_id: user.device_id,
                app_id: self.sdk.app_id(),
                activity: &self.activity,
                scene: self.kind.name(),
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
    /// The buffer into which each thread writes its order numbers.
    static TRADE_NO: RefCell<String> = const { RefCell::new(String::new()) };
}
