//! The ledger's mark, and its acceptance, over gRPC.

use super::status;
use crate::handle::RewardHandle;
use tonic::Status;
use windfall_ledger::{Accepted, GuardState, Mark};
use windfall_proto::order::check_text;
use windfall_proto::v1;

const REASON_MAX_BYTES: usize = 1_000;

fn wire(mark: Mark) -> v1::LedgerMark {
    let Mark { generation, lineage, beat, server } = mark;
    v1::LedgerMark {
        generation,
        lineage,
        beat,
        system: server.system,
        timeline: server.timeline,
        wal: server.wal,
    }
}

/// What this process knows of the ledger's mark.
pub(super) fn get(rewards: &RewardHandle) -> Result<v1::GetLedgerMarkReply, Status> {
    let guard = rewards.guard().ok_or_else(|| Status::failed_precondition("the ledger has no mark"))?;
    let GuardState { mark, ledger, behind } = guard.state();
    Ok(v1::GetLedgerMarkReply {
        went_back: guard.is_back(),
        payouts_stopped: guard.stops_payouts(),
        mark: mark.map(wire),
        ledger: ledger.map(wire),
        why: behind.map(|behind| behind.why.to_string()).unwrap_or_default(),
    })
}

/// Accepts the ledger of this generation, lineage and beat in the name of this actor.
pub(super) async fn accept(
    rewards: &RewardHandle,
    shown: (i64, &str, i64),
    reason: &str,
    actor: &str,
) -> Result<v1::AcceptLedgerReply, Status> {
    if reason.trim().is_empty() {
        return Err(Status::invalid_argument("reason is empty: say how the ledger was reconciled"));
    }
    if shown.1.is_empty() {
        return Err(Status::invalid_argument(
            "lineage is empty: give the ledger's lineage and beat as they were shown",
        ));
    }
    check_text(reason, REASON_MAX_BYTES).map_err(|why| Status::invalid_argument(format!("reason {why}")))?;
    let accepted = rewards.accept_ledger(shown, actor, reason).await;
    Ok(match accepted.map_err(|error| status::of_call(&error))? {
        Accepted::Now { ledger, time_ms } => v1::AcceptLedgerReply {
            ledger: Some(wire(ledger)),
            actor: actor.into(),
            reason: reason.into(),
            accepted_ms: time_ms,
        },
        Accepted::Before { actor, reason, time_ms } => {
            v1::AcceptLedgerReply { ledger: None, actor, reason, accepted_ms: time_ms }
        }
    })
}
