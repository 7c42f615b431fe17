//! The gateway over an SDK that answers as it is told.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tonic::{Code, Request};
use windfall_edge::{Call, Caller, RETRY_AFTER_MS, Role};
use windfall_proto::order::Invalid;
use windfall_proto::send::{SendBonus, SendError};
use windfall_proto::v1::send_bonus_result::Result as Taken;
use windfall_proto::v1::send_server::Send as _;
use windfall_proto::v1::{SendBonusBatchRequest, SendBonusReply, SendBonusRequest};
use windfall_sdk::rpc::{BATCH_MAX, Gateway};

/// Takes what it has no error for, by order number.
#[derive(Default)]
struct Fake {
    errors: BTreeMap<String, SendError>,
    taken: Arc<Mutex<Vec<SendBonusRequest>>>,
}

#[async_trait]
impl SendBonus for Fake {
    async fn send_bonus(&self, request: SendBonusRequest) -> Result<SendBonusReply, SendError> {
        if let Some(error) = self.errors.get(&request.trade_no) {
            return Err(error.clone());
        }
        let token = format!("token of {}", request.trade_no);
        self.taken.lock().unwrap().push(request);
        Ok(SendBonusReply { token })
    }

    async fn send_bonus_batch(
        &self,
        requests: Vec<SendBonusRequest>,
    ) -> Vec<Result<SendBonusReply, SendError>> {
        let mut answers = Vec::new();
        for request in requests {
            answers.push(self.send_bonus(request).await);
        }
        answers
    }
}

fn asking<T>(tenant: &str, message: T) -> Request<T> {
    let caller = Caller {
        name: "rain".into(),
        tenant: tenant.into(),
        roles: [Role::Send].into(),
        timers_of: Default::default(),
    };
    let mut request = Request::new(message);
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: Some([7; 16]) });
    request
}

fn request(trade_no: &str) -> SendBonusRequest {
    SendBonusRequest { trade_no: trade_no.into(), ..Default::default() }
}

fn errors() -> Vec<(SendError, Code)> {
    vec![
        (SendError::invalid("trade_no", Invalid::Empty), Code::InvalidArgument),
        (SendError::OtherApp { named: "a".into(), own: "b".into() }, Code::PermissionDenied),
        (
            SendError::NoRoute { activity: "a".into(), scene: "s".into(), bonus_type: "t".into() },
            Code::FailedPrecondition,
        ),
        (SendError::SpoolFull, Code::ResourceExhausted),
        (SendError::Mint("no randomness".into()), Code::Unavailable),
        (SendError::Closed, Code::Unavailable),
    ]
}

#[tokio::test]
async fn the_callers_tenant_picks_the_sdk_and_nothing_else_does() {
    let sdks = ["acme", "globex"].map(|tenant| (tenant.to_owned(), Fake::default()));
    let taken = sdks.each_ref().map(|(_, sdk)| sdk.taken.clone());
    let gateway = Gateway::new(sdks.into_iter().collect());
    let reply = gateway.send_bonus(asking("globex", request("one"))).await.unwrap();
    assert_eq!(reply.into_inner().token, "token of one");
    assert!(taken[0].lock().unwrap().is_empty());
    assert_eq!(taken[1].lock().unwrap()[0].trace_id, [7; 16], "the call's trace");

    for tenant in ["", "rival", "acm"] {
        let refused = gateway.send_bonus(asking(tenant, request("two"))).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        let batch = SendBonusBatchRequest { requests: vec![request("two")] };
        let refused = gateway.send_bonus_batch(asking(tenant, batch)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
    }
    let unmounted = gateway.send_bonus(Request::new(request("two"))).await.unwrap_err();
    assert_eq!(unmounted.code(), Code::Internal);
    assert_eq!(taken[1].lock().unwrap().len(), 1);
}

#[tokio::test]
async fn each_error_is_the_same_alone_and_in_a_batch() {
    let named = errors().into_iter().enumerate().map(|(nth, (error, _))| (format!("bad-{nth}"), error));
    let sdk = Fake { errors: named.collect(), ..Fake::default() };
    let gateway = Gateway::new([("acme".to_owned(), sdk)].into());
    let mut requests = vec![request("good-1")];
    requests.extend((0..errors().len()).map(|nth| request(&format!("bad-{nth}"))));
    requests.push(request("good-2"));

    let batch = SendBonusBatchRequest { requests: requests.clone() };
    let results = gateway.send_bonus_batch(asking("acme", batch)).await.unwrap().into_inner().results;
    assert_eq!(results.len(), requests.len());
    assert_eq!(results[0].result, Some(Taken::Token("token of good-1".into())));
    assert_eq!(results.last().unwrap().result, Some(Taken::Token("token of good-2".into())));
    for ((request, result), (error, code)) in requests[1..].iter().zip(&results[1..]).zip(errors()) {
        let status = gateway.send_bonus(asking("acme", request.clone())).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, error.to_string().as_str()));
        let Some(Taken::Failure(failure)) = &result.result else { panic!("{result:?}") };
        assert_eq!((failure.code, &failure.message), (i32::from(code), &error.to_string()));
        assert_eq!(failure.retryable, error.is_worth_retrying());
        // What another instance takes carries a hint, too, though this one never will.
        let hinted = error.is_worth_retrying() || error == SendError::Closed;
        assert_eq!(status.metadata().contains_key(RETRY_AFTER_MS), hinted, "{error}");
    }
}

#[tokio::test]
async fn at_most_512_a_batch() {
    let sdk = Fake::default();
    let taken = sdk.taken.clone();
    let gateway = Gateway::new([("acme".to_owned(), sdk)].into());
    let requests: Vec<_> = (0..=BATCH_MAX).map(|nth| request(&format!("order-{nth}"))).collect();
    let batch = SendBonusBatchRequest { requests: requests.clone() };
    let refused = gateway.send_bonus_batch(asking("acme", batch)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(taken.lock().unwrap().is_empty(), "nothing of it was taken");

    let batch = SendBonusBatchRequest { requests: requests[1..].to_vec() };
    let results = gateway.send_bonus_batch(asking("acme", batch)).await.unwrap().into_inner().results;
    assert!(results.len() == BATCH_MAX && taken.lock().unwrap().len() == BATCH_MAX);
}
