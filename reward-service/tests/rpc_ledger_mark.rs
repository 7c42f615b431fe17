//! The ledger's mark and its acceptance as operators ask for them.
#![cfg(feature = "rpc")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::sync::Arc;
use support::ledger_path;
use tonic::{Code, Request};
use windfall_contract::Clock;
use windfall_edge::{Call, Caller, Role};
use windfall_ledger::{Guard, Ledger, LedgerOptions, Mark, ServerPosition};
use windfall_proto::v1::archive_server::Archive;
use windfall_proto::v1::{AcceptLedgerRequest, GetLedgerMarkRequest};
use windfall_reward_service::rpc::ArchiveService;
use windfall_reward_service::{RewardOptions, RewardService};

fn of<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let roles = [Role::Operate].into();
    let caller = Caller { name: "ops".into(), tenant: "app".into(), roles, timers_of: Default::default() };
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    request
}

#[tokio::test]
async fn an_operator_sees_from_where_to_where_the_ledger_went_and_accepts_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerPosition { system: "7".into(), timeline: 3, wal: 16 };
    let mark = Mark { generation: 1, lineage: "lost".into(), beat: 105, server };
    let ledger = Ledger::open(ledger_path(folder.path()), &LedgerOptions::default()).unwrap();
    let ledger = ledger.guarded(Arc::new(Guard::new(vec![Some(Some(mark))]))).unwrap();
    let rewards =
        RewardService::start(RewardOptions::default(), ledger, vec![], None, Clock::system()).unwrap();
    let service = ArchiveService::new(rewards.clone());

    let shown = service.get_ledger_mark(of(GetLedgerMarkRequest {})).await.unwrap().into_inner();
    assert!(shown.went_back && shown.payouts_stopped && shown.why.contains("lineage"), "{shown:?}");
    let (mark, ledger) = (shown.mark.unwrap(), shown.ledger.unwrap());
    assert_eq!((mark.beat, mark.timeline, mark.wal, mark.system.as_str()), (105, 3, 16, "7"));
    assert_eq!((ledger.generation, ledger.system.as_str()), (1, "file"));

    let asked = |generation, reason: &str| AcceptLedgerRequest {
        generation,
        reason: reason.into(),
        actor: "ann".into(),
        lineage: ledger.lineage.clone(),
        beat: ledger.beat,
    };
    let accept = |generation, reason: &str| service.accept_ledger(of(asked(generation, reason)));
    for another in [
        AcceptLedgerRequest { lineage: String::new(), ..asked(1, "reconciled") },
        AcceptLedgerRequest { lineage: "older".into(), ..asked(1, "reconciled") },
        AcceptLedgerRequest { beat: ledger.beat + 1, ..asked(1, "reconciled") },
    ] {
        let refused = service.accept_ledger(of(another)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    for (generation, reason) in [(1, " "), (2, "reconciled"), (1, "two\nlines")] {
        assert_eq!(accept(generation, reason).await.unwrap_err().code(), Code::InvalidArgument, "{reason:?}");
    }
    let done = accept(1, "reconciled").await.unwrap().into_inner();
    assert_eq!((done.ledger.unwrap().generation, done.actor.as_str()), (2, "ops: ann"));
    let again = accept(1, "another reason").await.unwrap().into_inner();
    assert_eq!((again.ledger, again.actor.as_str(), again.reason.as_str()), (None, "ops: ann", "reconciled"));
    assert_eq!(again.accepted_ms, done.accepted_ms);
    let shown = service.get_ledger_mark(of(GetLedgerMarkRequest {})).await.unwrap().into_inner();
    assert!(!shown.went_back && !shown.payouts_stopped && shown.why.is_empty(), "{shown:?}");
    rewards.close();
}

#[tokio::test]
async fn a_ledger_without_a_mark_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = support::start(folder.path());
    let service = ArchiveService::new(rewards.clone());
    let refused = service.get_ledger_mark(of(GetLedgerMarkRequest {})).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let request = AcceptLedgerRequest {
        generation: 1,
        reason: "why".into(),
        lineage: "a".into(),
        ..AcceptLedgerRequest::default()
    };
    assert_eq!(service.accept_ledger(of(request)).await.unwrap_err().code(), Code::InvalidArgument);
    rewards.close();
}
