//! A reward at its time.

use async_trait::async_trait;
use prost::Message;
use windfall_contract::due::{Fired, Firing, Target};
use windfall_proto::order::Invalid;
use windfall_proto::send::{SendBonus, SendError};
use windfall_proto::v1::SendBonusRequest;

/// Rewards that are sent without letting others run: some 0.1 ms.
const SENT_AT_A_TIME: usize = 64;
/// The first byte of a request that begins with its order number.
const TRADE_NO_TAG: u8 = 0x0a;

/// Sends the reward that a timer's payload asks for: a `SendBonusRequest`, as JSON (it begins with `{`) or protobuf.
///
/// The payload names the order number, so a timer that fires twice credits once (I1). Where it names no award time, that is
/// the timer's due time, and so the same in each attempt. It is [`Fired::Done`] only when the SDK has taken the reward as
/// durably as its spool is set to.
#[derive(Debug)]
pub struct BonusTarget<S> {
    sender: S,
}

impl<S: SendBonus> BonusTarget<S> {
    /// Sends by this SDK. Whoever opened it closes it, after the dispatcher.
    pub const fn new(sender: S) -> Self {
        Self { sender }
    }

    async fn send(&self, firing: &Firing) -> Fired {
        let mut request = match read(&firing.payload) {
            Ok(request) => request,
            Err(why) => return Fired::Refused(why),
        };
        if request.award_time_ms == 0 {
            request.award_time_ms = i64::try_from(firing.due_ms).unwrap_or(i64::MAX);
        }
        match self.sender.send_bonus(request).await {
            Ok(_) => Fired::Done,
            Err(error) => outcome_of(&error),
        }
    }
}

#[async_trait]
impl<S: SendBonus> Target for BonusTarget<S> {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for (nth, firing) in batch.iter().enumerate() {
            if nth > 0 && nth.is_multiple_of(SENT_AT_A_TIME) {
                tokio::task::yield_now().await;
            }
            outcomes.push(self.send(firing).await);
        }
        outcomes
    }
}

/// No field of the message has the tag that `{` would be. But the first byte of a message with an order number is the line
/// feed that JSON may begin with, and the length behind it may be a `{`: so what is no JSON is read as a message as well.
fn read(payload: &[u8]) -> Result<SendBonusRequest, String> {
    let message = || {
        SendBonusRequest::decode(payload)
            .map_err(|error| format!("the payload is no SendBonusRequest: {error}"))
    };
    if payload.trim_ascii_start().first() != Some(&b'{') {
        return message();
    }
    match serde_json::from_slice(payload) {
        Ok(request) => Ok(request),
        Err(_) if payload.first() == Some(&TRADE_NO_TAG) && message().is_ok() => message(),
        Err(error) => Err(format!("the payload is no SendBonusRequest in JSON: {error}")),
    }
}

fn outcome_of(error: &SendError) -> Fired {
    let what = error.to_string();
    match error {
        // A clock is behind by now, and may be right at the next attempt.
        SendError::Invalid { field: "award_time_ms", why: Invalid::Range { .. } } => Fired::Failed(what),
        SendError::Invalid { .. } | SendError::OtherApp { .. } | SendError::Refused(_) => {
            Fired::Refused(what)
        }
        // Of this one reward: others have a route.
        SendError::NoRoute { .. } => Fired::Failed(what),
        // Its order number makes the next attempt harmless.
        SendError::Unanswered(_) => Fired::Unknown(what),
        SendError::QueueFull { .. } => Fired::Away(what),
        SendError::SpoolFull | SendError::Busy(_) | SendError::Mint(_) | SendError::Closed => {
            Fired::Busy(what)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use parking_lot::Mutex;
    use windfall_proto::v1::{Bonus, SendBonusReply, User};

    #[derive(Default)]
    struct Sdk {
        taken: Mutex<Vec<SendBonusRequest>>,
        next: Mutex<Option<SendError>>,
    }

    #[async_trait]
    impl SendBonus for &Sdk {
        async fn send_bonus(&self, request: SendBonusRequest) -> Result<SendBonusReply, SendError> {
            match self.next.lock().take() {
                Some(error) => Err(error),
                None => {
                    self.taken.lock().push(request);
                    Ok(SendBonusReply::default())
                }
            }
        }

        async fn send_bonus_batch(&self, _: Vec<SendBonusRequest>) -> Vec<Result<SendBonusReply, SendError>> {
            Vec::new()
        }
    }

    fn firing(payload: impl Into<Bytes>) -> Firing {
        let id = "0001-01c3a2f0-00000000".parse().unwrap();
        let payload = payload.into();
        Firing { id, tenant: "t".into(), key: None, due_ms: 1_234, attempt: 1, payload }
    }

    fn request() -> SendBonusRequest {
        SendBonusRequest {
            trade_no: "o-1".into(),
            user: Some(User { user_id: 42, ..User::default() }),
            activity: "a".into(),
            scene: "s".into(),
            bonus: Some(Bonus { r#type: "cash".into(), amount: 7, ..Bonus::default() }),
            ..SendBonusRequest::default()
        }
    }

    #[tokio::test]
    async fn both_forms_of_a_request_are_sent_with_the_due_time_as_the_award_time() {
        let sdk = Sdk::default();
        let json = " \n{\"trade_no\": \"o-1\", \"user\": {\"user_id\": \"42\"}, \"activity\": \"a\", \"scene\": \"s\", \
                    \"bonus\": {\"type\": \"cash\", \"amount\": 7}}";
        let own_time = SendBonusRequest { award_time_ms: 99, ..request() };
        let batch = vec![firing(json), firing(request().encode_to_vec()), firing(own_time.encode_to_vec())];
        assert_eq!(BonusTarget::new(&sdk).fire(batch).await, [Fired::Done, Fired::Done, Fired::Done]);
        let expected = SendBonusRequest { award_time_ms: 1_234, ..request() };
        assert_eq!(*sdk.taken.lock(), [expected.clone(), expected, own_time]);
    }

    /// An order number of 123 bytes, or one that begins with a brace and whose length is white space, looked like JSON, and
    /// the reward was given up.
    #[tokio::test]
    async fn a_message_that_looks_like_json_at_its_beginning_is_read_as_what_it_is() {
        let sdk = Sdk::default();
        let numbers = ["n".repeat(123), "{23456789".into(), format!("{{{}", "n".repeat(31)), "{".into()];
        for trade_no in &numbers {
            let sent = SendBonusRequest { trade_no: trade_no.clone(), award_time_ms: 1, ..request() };
            let outcomes = BonusTarget::new(&sdk).fire(vec![firing(sent.encode_to_vec())]).await;
            assert_eq!(outcomes, [Fired::Done], "{trade_no}");
            assert_eq!(sdk.taken.lock().pop(), Some(sent));
        }
        let json = "\n{\"trade_no\": \"o-1\"}";
        assert_eq!(BonusTarget::new(&sdk).fire(vec![firing(json)]).await, [Fired::Done]);
        assert_eq!(sdk.taken.lock().pop().unwrap().trade_no, "o-1");
    }

    #[tokio::test]
    async fn what_is_no_request_is_refused_for_good_and_sends_nothing() {
        let sdk = Sdk::default();
        for payload in ["{", "{\"trade_number\": \"o-1\"}", "hello", "\u{1}"] {
            let outcomes = BonusTarget::new(&sdk).fire(vec![firing(payload)]).await;
            let [Fired::Refused(why)] = &outcomes[..] else { panic!("{payload}: {outcomes:?}") };
            assert!(why.contains("SendBonusRequest"), "{why}");
        }
        assert!(sdk.taken.lock().is_empty());
    }

    #[tokio::test]
    async fn a_full_spool_is_no_attempt_and_a_wrong_reward_is_not_tried_again() {
        let sdk = Sdk::default();
        let target = BonusTarget::new(&sdk);
        for (error, is_expected) in [
            (SendError::SpoolFull, (|outcome| matches!(outcome, Fired::Busy(_))) as fn(&Fired) -> bool),
            (SendError::QueueFull { queue: "q".into() }, |outcome| matches!(outcome, Fired::Away(_))),
            (SendError::Closed, |outcome| matches!(outcome, Fired::Busy(_))),
            (SendError::Unanswered("lost".into()), |outcome| matches!(outcome, Fired::Unknown(_))),
            (SendError::Refused("no".into()), |outcome| matches!(outcome, Fired::Refused(_))),
            (
                SendError::Invalid { field: "award_time_ms", why: Invalid::Range { value: 9, max: 8 } },
                |outcome| matches!(outcome, Fired::Failed(_)),
            ),
            (SendError::Invalid { field: "bonus_type", why: Invalid::Empty }, |outcome| {
                matches!(outcome, Fired::Refused(_))
            }),
        ] {
            *sdk.next.lock() = Some(error.clone());
            let outcomes = target.fire(vec![firing(request().encode_to_vec())]).await;
            assert!(is_expected(&outcomes[0]), "{error}: {outcomes:?}");
        }
    }
}
