//! Backfills over their service: what is asked for, what is answered, which error for what.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Request};
use windfall_contract::Clock;
use windfall_contract::due::{
    FAR_INDEX, FarRecord, PastPage, PastSpan, PastTasks, Route, Shard, SlotMinute, StoreError, TaskId,
};
use windfall_edge::{Call, Caller, Role};
use windfall_proto::v1::backfills_server::Backfills as _;
use windfall_proto::v1::{
    Backfill, BackfillState, CancelBackfillRequest, GetBackfillRequest, StartBackfillRequest,
};
use windfall_scheduler::{BackfillParts, Backfills, Class, DispatchStats, TargetRules, TenantRules, Tenants};
use windfall_scheduler_service::BackfillsService;
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

const HOUR_MS: u64 = 3_600_000;
const FROM_MS: u64 = 500_000 * HOUR_MS;

/// One task in each shard.
struct Kept;

#[async_trait]
impl PastTasks for Kept {
    fn span(&self) -> Result<PastSpan, StoreError> {
        Ok(PastSpan { from_ms: FROM_MS, to_ms: FROM_MS + HOUR_MS })
    }

    fn names(&self, _: Route) -> Option<(String, String)> {
        Some(("shop".into(), "hook".into()))
    }

    async fn page(&self, hour: SlotMinute, shard: Shard, _: Option<TaskId>) -> Result<PastPage, StoreError> {
        let id = TaskId { shard, slot: hour, index: FAR_INDEX };
        let route = Route { tenant: 1, target: 1 };
        let task = FarRecord { id, due_ms: hour.start_ms(), route, payload: "x".into() };
        Ok(PastPage { tasks: vec![task], cancelled: 1, moved: 2, next: None })
    }
}

fn service(dir: &tempfile::TempDir, past: Option<Arc<dyn PastTasks>>) -> BackfillsService {
    let clock = Clock::from_unix_ms(|| FROM_MS + 2 * HOUR_MS);
    let options = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
    let store = EmbeddedSlots::open(dir.path(), &options, clock.clone()).unwrap();
    let targets = [("hook".to_owned(), TargetRules::default())].into();
    let rules = TenantRules { waiting_max: 1_000, adds_per_s: 10, class: Class::Normal, targets };
    let tenants = Arc::new(Tenants([("shop".to_owned(), rules)].into()));
    let fired = Arc::new(DispatchStats::default());
    let parts = BackfillParts { store, past, tenants, fired, clock };
    BackfillsService::new(Backfills::new(parts))
}

fn asking<T>(message: T) -> Request<T> {
    let caller = Caller {
        name: "ops".into(),
        tenant: "windfall".into(),
        roles: [Role::Operate].into(),
        timers_of: Arc::default(),
    };
    let mut request = Request::new(message);
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    request
}

fn start(from_ms: u64, to_ms: u64) -> StartBackfillRequest {
    StartBackfillRequest { from_ms, to_ms, ..StartBackfillRequest::default() }
}

async fn ended(service: &BackfillsService, id: &str) -> Backfill {
    loop {
        let asked = asking(GetBackfillRequest { id: id.to_owned() });
        let now = service.get_backfill(asked).await.unwrap().into_inner();
        if now.state() != BackfillState::Running {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_begun_shown_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(&dir, Some(Arc::new(Kept)));
    let dry = StartBackfillRequest { dry_run: true, ..start(FROM_MS, FROM_MS + HOUR_MS) };
    let began = service.start_backfill(asking(dry)).await.unwrap().into_inner();
    let counted = ended(&service, &began.id).await;
    assert_eq!((counted.state(), counted.dry_run), (BackfillState::Done, true));
    let [target] = &counted.fired[..] else { panic!("{counted:?}") };
    assert_eq!((target.tenant.as_str(), target.target.as_str(), target.timers), ("shop", "hook", 16));
    assert_eq!((counted.cancelled, counted.moved, counted.shards_done, counted.shards), (16, 32, 16, 16));
    let slow = StartBackfillRequest { rate_per_s: 1, ..start(FROM_MS, FROM_MS + HOUR_MS) };
    let began = service.start_backfill(asking(slow)).await.unwrap().into_inner();
    let second = service.start_backfill(asking(start(FROM_MS, FROM_MS + HOUR_MS))).await.unwrap_err();
    assert_eq!(second.code(), Code::FailedPrecondition);
    let id = began.id.clone();
    let cancelled = service.cancel_backfill(asking(CancelBackfillRequest { id })).await.unwrap().into_inner();
    assert_eq!(cancelled.state(), BackfillState::Cancelled);
    let last = service.get_backfill(asking(GetBackfillRequest::default())).await.unwrap().into_inner();
    assert_eq!(last, cancelled);
    let stored = cancelled.fired.iter().map(|target| target.timers).sum::<u64>();
    let again = start(FROM_MS, FROM_MS + HOUR_MS);
    let began = service.start_backfill(asking(again.clone())).await.unwrap().into_inner();
    let rest = ended(&service, &began.id).await;
    assert_eq!((rest.state(), rest.before), (BackfillState::Done, stored), "it goes on where it stood");
    assert_eq!(rest.fired[0].timers, 16 - stored);
    let named = StartBackfillRequest { name: "once more".into(), dry_run: true, ..again };
    let began = service.start_backfill(asking(named)).await.unwrap().into_inner();
    let counted = ended(&service, &began.id).await;
    assert_eq!((counted.before, counted.name.as_str()), (0, "once more"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refusal_has_its_code_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let none = service(&dir, None);
    let refused = none.start_backfill(asking(start(FROM_MS, FROM_MS + 1))).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("[scheduler.far]"), "{refused}");
    let dir = tempfile::tempdir().unwrap();
    let service = service(&dir, Some(Arc::new(Kept)));
    let by = |actor: &str| StartBackfillRequest { actor: actor.into(), ..start(FROM_MS, FROM_MS + 1) };
    let other = StartBackfillRequest { tenant: "other".into(), ..start(FROM_MS, FROM_MS + 1) };
    let long_name = StartBackfillRequest { name: "x".repeat(65), ..start(FROM_MS, FROM_MS + 1) };
    for (wrong, code) in [
        (start(FROM_MS, FROM_MS), Code::InvalidArgument),
        (start(FROM_MS, FROM_MS + 9 * HOUR_MS), Code::InvalidArgument),
        (start(FROM_MS - 1, FROM_MS + 1), Code::FailedPrecondition),
        (start(FROM_MS, FROM_MS + HOUR_MS + 1), Code::FailedPrecondition),
        (by(&"x".repeat(65)), Code::InvalidArgument),
        (by("ann\nroot: bob"), Code::InvalidArgument),
        (other, Code::InvalidArgument),
        (long_name, Code::InvalidArgument),
    ] {
        let refused = service.start_backfill(asking(wrong.clone())).await.unwrap_err();
        assert_eq!(refused.code(), code, "{wrong:?}: {refused}");
    }
    for id in ["", "another"] {
        let unknown = service.get_backfill(asking(GetBackfillRequest { id: id.into() })).await.unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound);
    }
    let id = "another".to_owned();
    let unknown = service.cancel_backfill(asking(CancelBackfillRequest { id })).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}
