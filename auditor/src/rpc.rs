//! The gRPC service `windfall.v1.Audits`.

use crate::service::AuditHandle;
use crate::statements::{COMPARE_FOR, lines, message, new_statement, refusal, statement_refusal, totals};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tonic::{Request, Response, Status};
use windfall_edge::Call;
use windfall_ledger::{
    AuditProgress, Auditor, Difference, DifferenceState, PayerStatementError, PayerStatementState,
};
use windfall_proto::order::check_text;
use windfall_proto::v1;
use windfall_proto::v1::audits_server;

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1_000;
const NOTE_MAX_BYTES: usize = 1_000;

/// How far the auditor has come, and what differs, for operators. Roles: observe; operate to mark, to upload and to compare.
#[derive(Debug, Clone)]
pub struct AuditsService {
    auditor: AuditHandle,
}

impl AuditsService {
    /// Makes the service on this auditor.
    pub const fn new(auditor: AuditHandle) -> Self {
        Self { auditor }
    }

    /// Runs a step of a payer's statement between two steps of the auditor.
    async fn step<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Auditor) -> Result<T, PayerStatementError> + Send + 'static,
    ) -> Result<T, Status> {
        let done = self.auditor.call(move |auditor| Ok(step(auditor))).await;
        done.map_err(|error| refusal(&error))?.map_err(|error| statement_refusal(&error))
    }
}

fn reply(progress: AuditProgress) -> v1::GetAuditReply {
    let count = |of: &BTreeMap<String, u64>, kind: &str| of.get(kind).copied().unwrap_or(0);
    let kinds: BTreeSet<&String> = progress.open.keys().chain(progress.acknowledged.keys()).collect();
    let differences = kinds
        .into_iter()
        .map(|kind| v1::DifferenceCount {
            kind: kind.clone(),
            open: count(&progress.open, kind),
            acknowledged: count(&progress.acknowledged, kind),
        })
        .collect();
    v1::GetAuditReply {
        transfers: progress.transfers,
        unread: progress.tail,
        is_behind: progress.is_behind,
        oldest_unread_ms: progress.oldest_unread_ms.unwrap_or(0),
        read_ms: progress.read_ms,
        compared_ms: progress.compared_ms,
        sweeps: progress.sweeps,
        swept_ms: progress.swept_ms,
        differences,
        resolved: progress.resolved,
    }
}

fn line(difference: Difference) -> v1::Difference {
    let word = |(actor, time_ms, note)| v1::DifferenceWord { actor, note, time_ms };
    let state = match difference.state {
        DifferenceState::Open => v1::DifferenceState::Open,
        DifferenceState::Acknowledged => v1::DifferenceState::Acknowledged,
        DifferenceState::Resolved => v1::DifferenceState::Resolved,
    };
    v1::Difference {
        id: difference.id,
        kind: difference.kind,
        subject: difference.subject,
        detail: difference.detail,
        first_seen_ms: difference.first_seen_ms,
        last_seen_ms: difference.last_seen_ms,
        seen: difference.seen,
        state: state.into(),
        acknowledged: difference.acknowledged.map(word),
        resolved: difference.resolved.map(word),
    }
}

#[tonic::async_trait]
impl audits_server::Audits for AuditsService {
    async fn get_audit(
        &self,
        _request: Request<v1::GetAuditRequest>,
    ) -> Result<Response<v1::GetAuditReply>, Status> {
        let progress = self.auditor.call(|auditor| auditor.progress()).await;
        progress.map(|progress| Response::new(reply(progress))).map_err(|error| refusal(&error))
    }

    async fn list_differences(
        &self,
        request: Request<v1::ListDifferencesRequest>,
    ) -> Result<Response<v1::ListDifferencesReply>, Status> {
        let request = request.into_inner();
        let state = match request.state() {
            v1::DifferenceState::Unspecified => None,
            v1::DifferenceState::Open => Some(DifferenceState::Open),
            v1::DifferenceState::Acknowledged => Some(DifferenceState::Acknowledged),
            v1::DifferenceState::Resolved => Some(DifferenceState::Resolved),
        };
        let limit = if request.limit == 0 { PAGE_DEFAULT } else { request.limit.min(PAGE_MAX) };
        let (after, statement) = (request.after, request.statement);
        let found = self.auditor.call(move |auditor| match statement {
            0 => auditor.differences(state, after, limit),
            statement => auditor.payer_differences(statement, state, after, limit),
        });
        let found = found.await;
        let found = found.map_err(|error| refusal(&error))?;
        let is_full = found.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next_after = found.last().filter(|_| is_full).map_or(0, |last| last.id);
        Ok(Response::new(v1::ListDifferencesReply {
            differences: found.into_iter().map(line).collect(),
            next_after,
        }))
    }

    async fn mark_difference(
        &self,
        request: Request<v1::MarkDifferenceRequest>,
    ) -> Result<Response<v1::MarkDifferenceReply>, Status> {
        let caller = Call::of(&request)?.caller.clone();
        let request = request.into_inner();
        let state = request.state();
        let v1::MarkDifferenceRequest { id, note, actor, .. } = request;
        let actor = caller.acts_as(&actor)?;
        if note.trim().is_empty() {
            return Err(Status::invalid_argument("note must say what was found out or done"));
        }
        check_text(&note, NOTE_MAX_BYTES).map_err(|why| Status::invalid_argument(format!("note {why}")))?;
        let now_ms = self.auditor.now_ms();
        let is_there = match state {
            v1::DifferenceState::Acknowledged => {
                self.auditor.call(move |auditor| auditor.acknowledge(id, &actor, &note, now_ms)).await
            }
            v1::DifferenceState::Resolved => {
                self.auditor.call(move |auditor| auditor.resolve(id, &actor, &note, now_ms)).await
            }
            _ => return Err(Status::invalid_argument("state must be acknowledged or resolved")),
        };
        match is_there.map_err(|error| refusal(&error))? {
            true => Ok(Response::new(v1::MarkDifferenceReply {})),
            false => Err(Status::not_found(format!("there is no difference {id} that is not resolved"))),
        }
    }

    async fn begin_payer_statement(
        &self,
        request: Request<v1::BeginPayerStatementRequest>,
    ) -> Result<Response<v1::PayerStatement>, Status> {
        let actor = Call::of(&request)?.caller.acts_as(&request.get_ref().actor)?;
        let new = new_statement(request.get_ref(), &actor)?;
        let now_ms = self.auditor.now_ms();
        let begun = self.step(move |auditor| auditor.begin_payer_statement(&new, now_ms)).await?;
        Ok(Response::new(message(begun)))
    }

    async fn append_payer_lines(
        &self,
        request: Request<v1::AppendPayerLinesRequest>,
    ) -> Result<Response<v1::AppendPayerLinesReply>, Status> {
        let lines = lines(request.get_ref())?;
        let v1::AppendPayerLinesRequest { statement, first_line, .. } = *request.get_ref();
        let next =
            self.step(move |auditor| auditor.append_payer_lines(statement, first_line, &lines)).await?;
        Ok(Response::new(v1::AppendPayerLinesReply { next_line: next }))
    }

    async fn compare_payer_statement(
        &self,
        request: Request<v1::ComparePayerStatementRequest>,
    ) -> Result<Response<v1::PayerStatement>, Status> {
        let (statement, totals) = (request.get_ref().statement, totals(request.get_ref()));
        let began = Instant::now();
        loop {
            let (totals, now_ms) = (totals.clone(), self.auditor.now_ms());
            let step = self.step(move |auditor| auditor.compare_payer_statement(statement, &totals, now_ms));
            let done = step.await?;
            let pause = self.auditor.step_pause();
            // A caller does not wait for a pause that is longer than a call.
            if done.state == PayerStatementState::Compared || began.elapsed() + pause >= COMPARE_FOR {
                return Ok(Response::new(message(done)));
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn list_payer_statements(
        &self,
        request: Request<v1::ListPayerStatementsRequest>,
    ) -> Result<Response<v1::ListPayerStatementsReply>, Status> {
        let v1::ListPayerStatementsRequest { payer, before, limit } = request.into_inner();
        let limit = if limit == 0 { PAGE_DEFAULT } else { limit.min(PAGE_MAX) };
        let before = if before == 0 { i64::MAX } else { before };
        let found = self.auditor.call(move |auditor| {
            let payer = Some(payer.as_str()).filter(|payer| !payer.is_empty());
            auditor.payer_statements(payer, before, limit)
        });
        let found = found.await.map_err(|error| refusal(&error))?;
        let is_full = found.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next_before = found.last().filter(|_| is_full).map_or(0, |last| last.id);
        let statements = found.into_iter().map(message).collect();
        Ok(Response::new(v1::ListPayerStatementsReply { statements, next_before }))
    }
}
