//! `windfall operate ledger` and `accept-ledger`: whether the ledger holds its mark, and a person's word that it is to go
//! on as it is.

use super::ask::value;
use super::utc;
use crate::outcome::Outcome;
use serde_json::json;
use windfall_client::{ArchiveClient, CallError};
use windfall_proto::v1::{AcceptLedgerReply, AcceptLedgerRequest, GetLedgerMarkReply, LedgerMark};

/// A mark in one line.
fn line(mark: Option<&LedgerMark>) -> String {
    let Some(LedgerMark { generation, lineage, beat, system, timeline, wal }) = mark else {
        return "not known yet".into();
    };
    let wal = wal.unsigned_abs();
    format!(
        "beat {beat} of lineage {lineage}, generation {generation} (system {system}, timeline {timeline}, WAL {:X}/{:X})",
        wal >> 32,
        wal & 0xffff_ffff
    )
}

fn text(reply: &GetLedgerMarkReply) -> String {
    let mut lines = vec![
        format!("mark:    {}", line(reply.mark.as_ref())),
        format!("ledger:  {}", line(reply.ledger.as_ref())),
    ];
    match (reply.went_back, reply.payouts_stopped) {
        (true, _) => {
            let LedgerMark { generation, lineage, beat, .. } = reply.ledger.clone().unwrap_or_default();
            lines.push(format!("The ledger went back in time: {}. Payouts are stopped.", reply.why));
            lines.push(format!(
                "Bring back the server that has everything; or reconcile as docs/restore.md says, and then run: windfall \
                 operate accept-ledger --generation {generation} --lineage {lineage} --beat {beat} --reason '…'"
            ));
        }
        (false, true) => lines.push(
            "A place of the ledger's mark could not be read since the process started. Payouts are stopped until it is \
             read, and the ledger was compared with what it has."
                .into(),
        ),
        (false, false) => lines.push("The ledger holds its mark.".into()),
    }
    lines.join("\n")
}

/// Shows the state of the ledger's mark. Damage, where payouts are stopped.
pub async fn show(client: &ArchiveClient, json: bool) -> Result<Outcome, CallError> {
    let reply = client.ledger_mark().await?;
    if json {
        println!("{:#}", value(&reply));
    } else {
        println!("{}", text(&reply));
    }
    Ok(if reply.payouts_stopped { Outcome::Damage } else { Outcome::Clean })
}

/// Accepts the ledger as it is, and shows how it stands then. Damage, where payouts are stopped all the same.
pub async fn accept(
    client: &ArchiveClient,
    request: AcceptLedgerRequest,
    json: bool,
) -> Result<Outcome, CallError> {
    let generation = request.generation;
    let reply = client.accept_ledger(request).await?;
    let stands = client.ledger_mark().await?;
    if json {
        println!("{:#}", json!({ "accepted": value(&reply), "stands": value(&stands) }));
    } else {
        println!("{}\n{}", accepted(generation, &reply), text(&stands));
    }
    Ok(if stands.payouts_stopped { Outcome::Damage } else { Outcome::Clean })
}

fn accepted(generation: i64, reply: &AcceptLedgerReply) -> String {
    let AcceptLedgerReply { ledger, actor, reason, accepted_ms } = reply;
    match ledger {
        Some(_) => format!("Generation {generation} was accepted by {actor}."),
        None => {
            let at = utc(u64::try_from(*accepted_ms).unwrap_or_default());
            format!("Generation {generation} was accepted before, at {at} by {actor}: {reason}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(generation: i64, beat: i64) -> LedgerMark {
        LedgerMark {
            generation,
            lineage: "a".into(),
            beat,
            system: "7".into(),
            timeline: 2,
            wal: 0x1_0000_0010,
        }
    }

    #[test]
    fn a_ledger_that_went_back_is_shown_with_what_to_do() {
        let reply = GetLedgerMarkReply {
            went_back: true,
            payouts_stopped: true,
            mark: Some(mark(3, 105)),
            ledger: Some(mark(3, 90)),
            why: "it lacks beats".into(),
        };
        let shown = text(&reply);
        assert!(
            shown.contains("beat 105 of lineage a, generation 3 (system 7, timeline 2, WAL 1/10)"),
            "{shown}"
        );
        assert!(
            shown.contains("accept-ledger --generation 3 --lineage a --beat 90 --reason")
                && shown.contains("it lacks beats"),
            "{shown}"
        );
        let sound =
            GetLedgerMarkReply { mark: None, ledger: Some(mark(1, 1)), ..GetLedgerMarkReply::default() };
        assert!(
            text(&sound).contains("not known yet") && text(&sound).ends_with("The ledger holds its mark.")
        );
    }

    #[test]
    fn an_acceptance_is_told_apart_from_one_of_before() {
        let now = AcceptLedgerReply {
            ledger: Some(mark(4, 106)),
            actor: "ops: ann".into(),
            reason: "reconciled".into(),
            accepted_ms: 1_000,
        };
        assert_eq!(accepted(1, &now), "Generation 1 was accepted by ops: ann.");
        let before = accepted(1, &AcceptLedgerReply { ledger: None, ..now });
        assert!(before.contains("before") && before.ends_with("by ops: ann: reconciled"), "{before}");
    }
}
