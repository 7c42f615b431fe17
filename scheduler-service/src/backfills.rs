//! `windfall.v1.Backfills` over a [`Backfills`].

use async_trait::async_trait;
use tonic::{Request, Response, Status};
use windfall_edge::Call;
use windfall_proto::v1::{
    Backfill, BackfillState, BackfilledTarget, CancelBackfillRequest, GetBackfillRequest,
    StartBackfillRequest, backfills_server,
};
use windfall_scheduler::{
    BackfillError, BackfillRequest, BackfillState as State, BackfillStatus, Backfills, RATE_DEFAULT_PER_S,
};

/// The service. Mount it as `BackfillsServer::new(BackfillsService::new(backfills))`.
#[derive(Debug, Clone)]
pub struct BackfillsService {
    backfills: Backfills,
}

impl BackfillsService {
    /// The service over these backfills.
    pub const fn new(backfills: Backfills) -> Self {
        Self { backfills }
    }
}

#[async_trait]
impl backfills_server::Backfills for BackfillsService {
    async fn start_backfill(
        &self,
        request: Request<StartBackfillRequest>,
    ) -> Result<Response<Backfill>, Status> {
        let caller = Call::of(&request)?.caller.clone();
        let StartBackfillRequest { from_ms, to_ms, tenant, target, rate_per_s, dry_run, actor, name } =
            request.into_inner();
        let by = caller.acts_as(&actor)?;
        let named = |name: String| Some(name).filter(|name| !name.is_empty());
        let request = BackfillRequest {
            from_ms,
            to_ms,
            tenant: named(tenant),
            target: named(target),
            name,
            rate_per_s: if rate_per_s == 0 { RATE_DEFAULT_PER_S } else { rate_per_s },
            is_dry_run: dry_run,
        };
        let started = self.backfills.start(request, &by).map_err(|error| match error {
            BackfillError::Invalid(what) => Status::invalid_argument(what),
            BackfillError::NotNow(what) => Status::failed_precondition(what),
        })?;
        Ok(Response::new(message(started)))
    }

    async fn get_backfill(&self, request: Request<GetBackfillRequest>) -> Result<Response<Backfill>, Status> {
        let id = request.into_inner().id;
        let found = if id.is_empty() { self.backfills.last() } else { self.backfills.get(&id) };
        found.map(|found| Response::new(message(found))).ok_or_else(|| no_run(&id))
    }

    async fn cancel_backfill(
        &self,
        request: Request<CancelBackfillRequest>,
    ) -> Result<Response<Backfill>, Status> {
        let id = request.into_inner().id;
        let ended = self.backfills.cancel(&id).await;
        ended.map(|ended| Response::new(message(ended))).ok_or_else(|| no_run(&id))
    }
}

fn no_run(id: &str) -> Status {
    Status::not_found(match id {
        "" => "this process has had no backfill since it was started".to_owned(),
        id => format!(
            "this process has no backfill {id:?}: ask the process that began it; one that was started again has \
             forgotten it"
        ),
    })
}

fn message(status: BackfillStatus) -> Backfill {
    let BackfillStatus { id, request, state, fired, cancelled, moved, waiting, before, unknown, .. } = status;
    let (state, reason) = match state {
        State::Running(reason) => (BackfillState::Running, reason.unwrap_or_default()),
        State::Done => (BackfillState::Done, String::new()),
        State::Cancelled => (BackfillState::Cancelled, String::new()),
        State::Failed(reason) => (BackfillState::Failed, reason),
    };
    let target = |((tenant, target), timers)| BackfilledTarget { tenant, target, timers };
    Backfill {
        id,
        state: state.into(),
        reason,
        from_ms: request.from_ms,
        to_ms: request.to_ms,
        dry_run: request.is_dry_run,
        fired: fired.into_iter().map(target).collect(),
        cancelled,
        moved,
        waiting,
        unknown,
        shards_done: status.shards.0.into(),
        shards: status.shards.1.into(),
        before,
        name: request.name,
    }
}
