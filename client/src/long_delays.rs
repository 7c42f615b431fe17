//! Long delays of a consumer: each event becomes a timer that sends it as a reward when it is due.

use crate::options::{ClientOptions, OpenError};
use crate::timers::TimersClient;
use async_trait::async_trait;
use prost::Message;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use windfall_contract::due::DUE_MAX_MS;
use windfall_contract::long_delays::{DelayedEvent, LongDelays, NotHandedOver};
use windfall_proto::event::EventRef;
use windfall_proto::order;
use windfall_proto::v1::add_timer_result::Result as Outcome;
use windfall_proto::v1::{AddTimersRequest, NewTimer, SendBonusRequest, TimerAccept, TimerNeeds};

/// Timers in one call at most, as the scheduler takes them.
const CALL_TIMERS_MAX: usize = 1_000;
/// Bytes of payloads in one call, unless one alone is larger: far below what a server takes as a request.
const CALL_BYTES_MAX: usize = 1 << 20;

/// Where delayed events are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerDelaysOptions {
    /// The app whose events are taken, which is the one that the target sends rewards for.
    pub app_id: String,
    /// The tenant of the timers; empty: the caller's own app.
    pub tenant: String,
    /// The tenant's target that sends rewards (`send_bonus`).
    pub target: String,
    /// Whether an event is handed over only to a scheduler whose OK survives the end of its machine.
    pub needs_machine_durability: bool,
}

/// Keeps delayed events as timers whose target sends rewards.
///
/// A timer's payload is the event as a request, so that it is sent as the same order: only the moment at which it was first
/// sent, and the time before which it was not to be granted, are left out. Its key is made of the order and its due time, so
/// that an event which is handed over again adds nothing; should it be stored twice all the same, its order number credits
/// once (I1).
#[derive(Debug)]
pub struct TimerDelays {
    timers: TimersClient,
    options: TimerDelaysOptions,
}

impl TimerDelays {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(client: ClientOptions, options: TimerDelaysOptions) -> Result<Self, OpenError> {
        if options.target.is_empty() {
            return Err(OpenError::Option("target is empty, but it must name a target of the tenant".into()));
        }
        Ok(Self { timers: TimersClient::open(client)?, options })
    }

    fn timer(&self, delayed: &DelayedEvent) -> Result<NewTimer, String> {
        let event = EventRef::parse(&delayed.event).map_err(|error| error.to_string())?;
        check_order(&event, &self.options.app_id)?;
        if delayed.due_ms > DUE_MAX_MS {
            return Err(format!("it is due at {}, which is later than a timer can be", delayed.due_ms));
        }
        // The fields of the request have the numbers of the event's.
        let request = SendBonusRequest::decode(&delayed.event[..]).map_err(|error| error.to_string())?;
        let payload = SendBonusRequest { not_before_ms: 0, ..request }.encode_to_vec();
        let (target, due_ms) = (self.options.target.clone(), delayed.due_ms);
        Ok(NewTimer { target, due_ms, key: key(&event, due_ms), payload })
    }

    async fn add(&self, timers: Vec<NewTimer>, together: usize) -> Vec<Result<(), NotHandedOver>> {
        let count = timers.len();
        let together = u32::try_from(together).unwrap_or(u32::MAX);
        let machine_durability = self.options.needs_machine_durability;
        let needs = TimerNeeds { machine_durability, rewards: true, together };
        // An event that is sent again has another award time under the same key, and the queue would set the second one aside.
        let accept = TimerAccept::Store.into();
        let (tenant, needs) = (self.options.tenant.clone(), Some(needs));
        let request = AddTimersRequest { tenant, timers, needs, forwarded: None, accept };
        match self.timers.add_batch(request).await {
            Ok(results) if results.len() == count => {
                results.into_iter().map(|result| read(result.result)).collect()
            }
            Ok(_) => vec![Err(NotHandedOver("the answer does not fit the question".into())); count],
            Err(error) => vec![Err(NotHandedOver(error.to_string())); count],
        }
    }
}

#[async_trait]
impl LongDelays for TimerDelays {
    fn check(&self, delayed: &DelayedEvent) -> Result<(), String> {
        self.timer(delayed).map(drop)
    }

    async fn hand_over(&self, events: &[DelayedEvent], together: usize) -> Vec<Result<(), NotHandedOver>> {
        let mut answers = Vec::with_capacity(events.len());
        let mut rest = events;
        while !rest.is_empty() {
            let (mut timers, mut bytes, mut wrong) = (Vec::new(), 0, None);
            for delayed in rest {
                if timers.len() == CALL_TIMERS_MAX || bytes >= CALL_BYTES_MAX {
                    break;
                }
                match self.timer(delayed) {
                    Ok(timer) => {
                        bytes += timer.payload.len();
                        timers.push(timer);
                    }
                    Err(why) => {
                        wrong = Some(why);
                        break;
                    }
                }
            }
            rest = &rest[timers.len() + usize::from(wrong.is_some())..];
            let asked = if timers.is_empty() { Vec::new() } else { self.add(timers, together).await };
            let is_away = !asked.is_empty() && asked.iter().all(Result::is_err);
            answers.extend(asked);
            answers.extend(wrong.map(|why| Err(NotHandedOver(why))));
            if is_away {
                // The next call would wait as long for the same answer.
                let why = || Err(NotHandedOver("the call before it stored nothing".into()));
                answers.extend(rest.iter().map(|_| why()));
                break;
            }
        }
        answers
    }
}

/// Whether the timer is stored: now, or by an earlier call of the same event.
fn read(result: Option<Outcome>) -> Result<(), NotHandedOver> {
    match result {
        Some(Outcome::Added(_)) => Ok(()),
        Some(Outcome::Failure(failure)) => Err(NotHandedOver(failure.message)),
        None => Err(NotHandedOver("the answer says neither yes nor no".into())),
    }
}

/// What the sender at the other end of the timer would refuse, and what would come back as another order.
fn check_order(event: &EventRef<'_>, app_id: &str) -> Result<(), String> {
    if event.app_id != app_id {
        return Err(format!("it is of the app `{}`, and timers send for `{app_id}`", event.app_id));
    }
    let named = |name: &'static str| move |why: order::Invalid| format!("its {name} {why}");
    order::check_trade_no(event.trade_no).map_err(named("order number"))?;
    order::check_name(event.activity).map_err(named("activity"))?;
    order::check_name(event.scene).map_err(named("scene"))?;
    order::check_bonus_type(event.bonus_type).map_err(named("bonus type"))?;
    order::check_amount(event.amount).map_err(named("amount"))?;
    if event.user_id < 1 || event.award_time_ms < 1 {
        // The target would set the award time to the due time.
        return Err("it has no user or no award time".into());
    }
    Ok(())
}

/// The timer's key: the order number, for whoever looks at timers, and a hash of all that makes it this order at this time.
/// Another order of the same number (I1: a conflict) thus has a timer of its own, and is decided when it is granted.
fn key(event: &EventRef<'_>, due_ms: u64) -> String {
    let mut hash = Sha256::new();
    for text in [event.trade_no, event.activity, event.scene, event.bonus_type, event.app_id] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.update(event.user_id.to_be_bytes());
    hash.update(event.amount.to_be_bytes());
    hash.update(due_ms.to_be_bytes());
    let mut key = format!("{}#", event.trade_no);
    for byte in &hash.finalize()[..16] {
        // Writing to a string does not fail.
        write!(key, "{byte:02x}").ok();
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_contract::due::KEY_MAX_BYTES;
    use windfall_proto::event;

    const DUE_MS: i64 = 1_900_000_000_000;

    fn own() -> EventRef<'static> {
        EventRef {
            trade_no: "spring/42",
            user_id: 42,
            device_id: "phone",
            app_id: "windfall",
            activity: "spring",
            scene: "rain",
            bonus_type: "cash",
            amount: 7,
            description: "for you",
            award_time_ms: 1_800_000_000_000,
            first_sent_ms: 1_800_000_000_001,
            trace_id: &[7; 16],
        }
    }

    fn delayed(event: &EventRef<'_>, extension: &[(&str, &str)]) -> DelayedEvent {
        let mut bytes = Vec::new();
        event.encode(extension.iter().copied(), &mut bytes);
        event::put_not_before(&mut bytes, DUE_MS);
        DelayedEvent { due_ms: DUE_MS.cast_unsigned(), event: bytes.into() }
    }

    fn delays() -> TimerDelays {
        let options = TimerDelaysOptions {
            app_id: "windfall".into(),
            tenant: String::new(),
            target: "rewards".into(),
            needs_machine_durability: true,
        };
        TimerDelays::open(ClientOptions::default(), options).unwrap()
    }

    #[tokio::test]
    async fn the_payload_is_the_same_order_and_waits_for_nothing_more() {
        let timer = delays().timer(&delayed(&own(), &[("shard", "eu")])).unwrap();
        let request = SendBonusRequest::decode(&timer.payload[..]).unwrap();
        let user = request.user.unwrap();
        assert_eq!((user.user_id, &user.device_id[..], &user.app_id[..]), (42, "phone", "windfall"));
        let bonus = request.bonus.unwrap();
        assert_eq!((&bonus.r#type[..], bonus.amount, &bonus.description[..]), ("cash", 7, "for you"));
        assert_eq!((&request.trade_no[..], &request.activity[..]), ("spring/42", "spring"));
        assert_eq!((&request.scene[..], request.award_time_ms), ("rain", 1_800_000_000_000));
        assert_eq!((request.trace_id, request.not_before_ms), (vec![7; 16], 0));
        assert_eq!(request.extension["shard"], "eu");
        assert_eq!((&timer.target[..], timer.due_ms), ("rewards", DUE_MS.cast_unsigned()));
    }

    #[tokio::test]
    async fn the_key_is_that_of_the_order_and_its_time() {
        let key_of = |event: &EventRef<'_>| delays().timer(&delayed(event, &[])).unwrap().key;
        let first = key_of(&own());
        assert!(first.starts_with("spring/42#"), "{first}");
        // Sent again: the same order.
        assert_eq!(key_of(&EventRef { first_sent_ms: 9, trace_id: &[], award_time_ms: 5, ..own() }), first);
        for other in [
            EventRef { trade_no: "spring/43", ..own() },
            EventRef { user_id: 43, ..own() },
            EventRef { amount: 8, ..own() },
            EventRef { bonus_type: "coin", ..own() },
            EventRef { activity: "spring2", ..own() },
            EventRef { activity: "spring/4", scene: "2rain", ..own() },
            EventRef { scene: "cards", ..own() },
        ] {
            assert_ne!(key_of(&other), first, "{other:?}");
        }
        let later = DelayedEvent { due_ms: DUE_MS.cast_unsigned() + 1, ..delayed(&own(), &[]) };
        assert_ne!(delays().timer(&later).unwrap().key, first);
        let longest = "n".repeat(order::TRADE_NO_MAX_BYTES);
        assert!(key_of(&EventRef { trade_no: &longest, ..own() }).len() <= KEY_MAX_BYTES);
    }

    #[tokio::test]
    async fn what_would_not_come_back_as_the_same_order_is_refused() {
        for (wrong, named) in [
            (EventRef { app_id: "other", ..own() }, "app `other`"),
            (EventRef { trade_no: "", ..own() }, "order number is empty"),
            (EventRef { activity: "a b", ..own() }, "activity"),
            (EventRef { scene: "", ..own() }, "scene"),
            (EventRef { bonus_type: "Cash", ..own() }, "bonus type"),
            (EventRef { amount: 0, ..own() }, "amount"),
            (EventRef { user_id: 0, ..own() }, "no user"),
            (EventRef { award_time_ms: 0, ..own() }, "award time"),
        ] {
            let why = delays().check(&delayed(&wrong, &[])).unwrap_err();
            assert!(why.contains(named), "{why}");
        }
        let never = DelayedEvent { due_ms: u64::MAX, ..delayed(&own(), &[]) };
        assert!(delays().check(&never).is_err());
        let damaged = DelayedEvent { event: vec![0xff; 9].into(), ..never };
        assert!(delays().check(&damaged).is_err());
        assert_eq!(delays().check(&delayed(&own(), &[])), Ok(()));
    }
}
