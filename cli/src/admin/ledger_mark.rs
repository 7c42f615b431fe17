//! `windfall operate ledger` and `accept-ledger`: whether the ledger holds its mark, and a person's word that it is to go
//! on as it is.

use super::ask::value;
use super::utc;
use crate::outcome::Outcome;
use windfall_client::{ArchiveClient, CallError};
use windfall_proto::v1::{AcceptLedgerRequest, GetLedgerMarkReply, LedgerMark};

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
            let generation = reply.ledger.as_ref().map_or(0, |ledger| ledger.generation);
            lines.push(format!("The ledger went back in time: {}. Payouts are stopped.", reply.why));
            lines.push(format!(
                "Bring back the server that has everything; or reconcile as docs/restore.md says, and then run: windfall \
                 operate accept-ledger --generation {generation} --reason '…'"
            ));
        }
        (false, true) => lines.push(
            "The ledger's mark could not be read since the process started. Payouts are stopped until it is read.".into(),
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

/// Accepts the ledger as it is.
pub async fn accept(
    client: &ArchiveClient,
    request: AcceptLedgerRequest,
    json: bool,
) -> Result<Outcome, CallError> {
    let generation = request.generation;
    let reply = client.accept_ledger(request).await?;
    if json {
        println!("{:#}", value(&reply));
        return Ok(Outcome::Clean);
    }
    let at = utc(u64::try_from(reply.accepted_ms).unwrap_or_default());
    let (actor, reason) = (&reply.actor, &reply.reason);
    match reply.ledger.as_ref() {
        Some(now) => println!("accepted by {actor}; the ledger goes on at {}", line(Some(now))),
        None => println!("generation {generation} was accepted at {at} by {actor}: {reason}"),
    }
    Ok(Outcome::Clean)
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
            shown.contains("accept-ledger --generation 3") && shown.contains("it lacks beats"),
            "{shown}"
        );
        let sound =
            GetLedgerMarkReply { mark: None, ledger: Some(mark(1, 1)), ..GetLedgerMarkReply::default() };
        assert!(
            text(&sound).contains("not known yet") && text(&sound).ends_with("The ledger holds its mark.")
        );
    }
}
