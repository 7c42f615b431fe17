//! `windfall reconcile`: what differs in a ledger in use, as its auditor has found it, a payer's statement against it; or the
//! files of a demo.

mod lines;
mod payer;
mod upload;

use super::ask::{Server, more, show, value};
use super::{now_ms, utc};
use crate::demo;
use crate::outcome::Outcome;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::PathBuf;
use windfall_client::{AuditsClient, CallError};
use windfall_proto::v1::{DifferenceState, GetAuditReply, ListDifferencesRequest, MarkDifferenceRequest};

/// Arguments of `windfall reconcile`.
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["data", "server"]))]
pub struct ReconcileArgs {
    /// The data directory of a demo
    #[arg(long)]
    data: Option<PathBuf>,
    /// The address of a running auditor: https://host:port, or http://host:port on this machine. The exit code is 0 if nothing
    /// differs, and 1 if anything does that nobody has resolved, or if that is not known: the ledger was not swept as a whole yet,
    /// or nothing was compared in the last ten minutes
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The file with the bearer key of a caller with the role observe, or operate for --acknowledge, --resolve and --statement [default: the environment variable WINDFALL_KEY]
    #[arg(long, requires = "server")]
    key_file: Option<PathBuf>,
    /// The file with the certificates (PEM) that the server is checked against; needed for https
    #[arg(long, requires = "server")]
    ca_file: Option<PathBuf>,
    /// List differences that were resolved, too
    #[arg(long, requires = "server")]
    all: bool,
    /// List only differences with higher numbers
    #[arg(long, requires = "server", default_value_t = 0)]
    after: i64,
    /// The largest number of differences to list
    #[arg(long, requires = "server", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Note that you are at the difference of this number: it stays, and its page ends
    #[arg(long, value_name = "NUMBER", requires_all = ["server", "note"], conflicts_with = "resolve")]
    acknowledge: Option<i64>,
    /// Note that the difference of this number was mended or explained; if it is found again, it is a new one
    #[arg(long, value_name = "NUMBER", requires_all = ["server", "note"])]
    resolve: Option<i64>,
    /// What was found out or done, with the evidence; kept with the difference
    #[arg(long, requires = "server")]
    note: Option<String>,
    /// Who says so; kept beside the name of the key
    #[arg(long, env = "USER", default_value = "")]
    actor: String,
    #[command(flatten)]
    payer: payer::PayerArgs,
    /// Print one JSON object on standard output and nothing else there
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &ReconcileArgs) -> Result<Outcome> {
    match (&args.data, &args.server) {
        (Some(data), _) => demo::reconcile(data, args.json),
        (None, Some(server)) => {
            let (key_file, ca_file) = (args.key_file.clone(), args.ca_file.clone());
            let options = Server::at(server.clone(), key_file, ca_file).options()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let client = AuditsClient::open(options)?;
                if args.payer.is_asked() {
                    return payer::run(&client, args).await;
                }
                ask(&client, args).await.context("the auditor has not answered as it should")
            })
        }
        (None, None) => bail!("give --server URL, or --data with the directory of a demo"),
    }
}

async fn ask(client: &AuditsClient, args: &ReconcileArgs) -> Result<Outcome, CallError> {
    let word = args.acknowledge.map(|id| (id, DifferenceState::Acknowledged));
    if let Some((id, state)) = word.or(args.resolve.map(|id| (id, DifferenceState::Resolved))) {
        let (note, actor) = (args.note.clone().unwrap_or_default(), args.actor.clone());
        client.mark(MarkDifferenceRequest { id, state: state.into(), note, actor }).await?;
        if args.json {
            println!("{:#}", json!({"id": id, "state": state.as_str_name()}));
        } else {
            println!("noted");
        }
        return Ok(Outcome::Clean);
    }
    let audit = client.get().await?;
    let not_known = not_known(&audit, i64::try_from(now_ms()).unwrap_or(i64::MAX));
    let is_clean = audit.differences.is_empty() && not_known.is_none();
    let (mut listed, mut next_after) = (Vec::new(), args.after);
    // Those that are resolved may be many more than the others.
    while let Ok(left) = usize::try_from(args.limit).map(|limit| limit.saturating_sub(listed.len()))
        && left > 0
    {
        let request =
            ListDifferencesRequest { after: next_after, limit: 1_000, ..ListDifferencesRequest::default() };
        let page = client.list(request).await?;
        let wanted = page.differences.into_iter().filter(|one| args.all || one.resolved.is_none());
        listed.extend(wanted.take(left));
        next_after = page.next_after;
        if next_after == 0 {
            break;
        }
    }
    let is_full = listed.len() >= usize::try_from(args.limit).unwrap_or(usize::MAX);
    if args.json {
        let differences: Vec<_> = listed.iter().map(value).collect();
        println!(
            "{:#}",
            json!({"clean": is_clean, "not_known": not_known, "audit": value(&audit), "differences": differences})
        );
    } else {
        if !listed.is_empty() {
            show(&listed, false);
        }
        println!("{}", summary(&audit, not_known.as_deref()));
        more(is_full, listed.last().map_or(0, |last| last.id));
    }
    Ok(if is_clean { Outcome::Clean } else { Outcome::Damage })
}

/// How old the last comparison may be. Rounds are seconds apart.
const COMPARED_AGE_MAX_MS: u64 = 600_000;

/// Why nobody knows whether anything differs at present.
fn not_known(audit: &GetAuditReply, now_ms: i64) -> Option<String> {
    if audit.is_behind {
        Some("too many transfers are unread, and nothing is compared".into())
    } else if audit.compared_ms == 0 {
        Some("nothing was ever compared".into())
    } else if audit.compared_ms.abs_diff(now_ms) >= COMPARED_AGE_MAX_MS {
        // One that lies in the future was made by a clock that is wrong, or this one is.
        let at = at(audit.compared_ms);
        Some(format!(
            "nothing was compared in the last ten minutes: the auditor is stopped or fails; last {at}"
        ))
    } else if audit.sweeps == 0 {
        Some("the first sweep has not ended".into())
    } else {
        None
    }
}

fn at(ms: i64) -> String {
    u64::try_from(ms).ok().filter(|ms| *ms > 0).map_or_else(|| "never".to_owned(), utc)
}

fn summary(audit: &GetAuditReply, not_known: Option<&str>) -> String {
    let (mut open, mut acknowledged) = (0, 0);
    for kind in &audit.differences {
        open += kind.open;
        acknowledged += kind.acknowledged;
    }
    let differ = format!("{open} differences are open, {acknowledged} acknowledged");
    let state = match (audit.differences.is_empty(), not_known) {
        (false, None) => differ,
        (false, Some(why)) => format!("{differ}, and whether there are more is not known: {why}"),
        (true, Some(why)) => format!("not known: {why}"),
        (true, None) => "nothing differs".to_owned(),
    };
    format!(
        "{state}; {} transfers were read, {} are unread; compared {}, swept {} times, last {}",
        audit.transfers,
        audit.unread,
        at(audit.compared_ms),
        audit.sweeps,
        at(audit.swept_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_proto::v1::DifferenceCount;

    #[test]
    fn only_a_ledger_that_was_swept_as_a_whole_and_is_compared_is_known() {
        const NOW_MS: i64 = 1_800_000_000_000;
        let swept = GetAuditReply { sweeps: 1, compared_ms: NOW_MS - 599_999, ..GetAuditReply::default() };
        assert_eq!(not_known(&swept, NOW_MS), None);
        let why = |audit: GetAuditReply| not_known(&audit, NOW_MS).unwrap_or_default();
        assert!(why(GetAuditReply::default()).contains("ever compared"));
        assert!(why(GetAuditReply { is_behind: true, ..swept.clone() }).contains("unread"));
        assert!(why(GetAuditReply { sweeps: 0, ..swept.clone() }).contains("sweep"));
        for compared_ms in [NOW_MS - 600_000, NOW_MS + 600_000] {
            assert!(why(GetAuditReply { compared_ms, ..swept.clone() }).contains("ten minutes"));
        }
        assert!(summary(&swept, None).starts_with("nothing differs"));
        let kind = "wrong_balance".to_owned();
        let acknowledged = DifferenceCount { kind, open: 0, acknowledged: 1 };
        let known = GetAuditReply { differences: vec![acknowledged], ..swept };
        assert!(summary(&known, Some("why")).starts_with("0 differences are open, 1 acknowledged, and"));
    }
}
