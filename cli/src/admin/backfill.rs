//! `windfall scheduler backfill`: has the timers of a past time fired again, over gRPC.

use super::ask::{Server, show, value};
use super::schedule::times;
use crate::outcome::Outcome;
use crate::services::ServiceArgs;
use anyhow::Result;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use windfall_client::{BackfillsClient, CallError};
use windfall_proto::v1::{Backfill, BackfillState, StartBackfillRequest};

/// How often it is asked how a run stands.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Answers in a row that may be missing before the command gives up; the run goes on.
const SILENT_MAX: u32 = 20;

/// `windfall scheduler …`
#[derive(Debug, Clone, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SchedulerArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    #[command(subcommand)]
    pub command: Option<SchedulerCommand>,
}

#[derive(Debug, Clone, clap::Subcommand)]
pub enum SchedulerCommand {
    /// Ask a running scheduler to fire the timers of a past time again, each id once
    Backfill(BackfillArgs),
}

/// `windfall scheduler backfill …`
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "It fires far timers alone, as long as their segments are kept (scheduler.far.keep_ms), with the ids of the \
first time. Timers that were near from the beginning (due within the horizon, with a key, or moved) are not there: add them \
again from your journal.

A backfill stores each id once, however often it is begun: range, --tenant, --target and --name say which backfill it is, \
and a second run goes on where the first one ended, also after a crash. Another --name fires the whole range once more.

Rewards are credited once, by their order number, whatever is repeated. Topics and HTTP callbacks get ids that they may have \
had when these timers fired for the first time.

Example:
  windfall scheduler backfill --from 2027-02-06T10:00:00Z --to 2027-02-06T12:00:00Z --dry-run"
)]
pub struct BackfillArgs {
    #[command(flatten)]
    server: Server,
    /// Timers that were due from this time on: 2027-02-06T10:00:00Z, or Unix milliseconds
    #[arg(long, value_name = "TIME", value_parser = times::time_ms)]
    from: u64,
    /// Timers that were due before this time, which must have passed
    #[arg(long, value_name = "TIME", value_parser = times::time_ms)]
    to: u64,
    /// Only timers of this tenant
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: String,
    /// Only timers of targets of this name
    #[arg(long, default_value = "", hide_default_value = true)]
    target: String,
    /// Timers per second at most; a target gets half of its own rate at most
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// The name of this backfill; another name fires all of the same range once more
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// Count the timers by tenant and target, and fire none
    #[arg(long)]
    dry_run: bool,
    /// Who asks for it; logged beside the name of the key
    #[arg(long, env = "USER", default_value = "", hide_default_value = true)]
    actor: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command until the run has ended.
pub fn run(args: &BackfillArgs) -> Result<Outcome> {
    let options = args.server.options()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = BackfillsClient::open(options)?;
        let interrupted = signal(SignalKind::interrupt())?;
        match follow(&client, args, interrupted).await {
            Ok(outcome) => Ok(outcome),
            Err(error @ (CallError::Busy { .. } | CallError::Unanswered(_))) => Ok(not_known(&error)),
            Err(error) => Err(error.into()),
        }
    })
}

async fn follow(
    client: &BackfillsClient,
    args: &BackfillArgs,
    mut interrupted: Signal,
) -> Result<Outcome, CallError> {
    let request = StartBackfillRequest {
        from_ms: args.from,
        to_ms: args.to,
        tenant: args.tenant.clone(),
        target: args.target.clone(),
        rate_per_s: args.rate,
        dry_run: args.dry_run,
        actor: args.actor.clone(),
        name: args.name.clone(),
    };
    let mut backfill = client.start(request).await?;
    eprintln!("backfill {} was begun; Ctrl-C ends it", backfill.id);
    let mut silent = 0;
    while backfill.state() == BackfillState::Running {
        tokio::select! {
            biased;
            _ = interrupted.recv() => {
                return Ok(match client.cancel(backfill.id).await {
                    Ok(ended) => {
                        report(&ended, args.json);
                        Outcome::Interrupted
                    }
                    Err(error) => not_known(&error),
                });
            }
            () = tokio::time::sleep(ASK_EVERY) => {}
        }
        match client.get(backfill.id.clone()).await {
            Ok(now) => {
                silent = 0;
                progress(&now);
                backfill = now;
            }
            // It has forgotten the run: its process was started again.
            Err(error @ CallError::NotFound(_)) => {
                eprintln!("windfall: {error}; begin again: it goes on where it stood");
                return Ok(Outcome::Damage);
            }
            Err(error) => {
                silent += 1;
                if silent == SILENT_MAX {
                    return Ok(not_known(&error));
                }
                eprintln!("windfall: {error}; asking again");
            }
        }
    }
    report(&backfill, args.json);
    Ok(match backfill.state() {
        BackfillState::Done => Outcome::Clean,
        BackfillState::Cancelled => Outcome::Interrupted,
        _ => Outcome::Damage,
    })
}

/// Nobody knows how a run stands that has been begun, whatever is wrong now.
fn not_known(error: &CallError) -> Outcome {
    eprintln!(
        "windfall: {error}; the run may go on. Begin again when it has ended: what is stored is not stored twice"
    );
    Outcome::Damage
}

fn fired(backfill: &Backfill) -> u64 {
    backfill.fired.iter().map(|target| target.timers).sum()
}

fn progress(backfill: &Backfill) {
    let Backfill { shards_done, shards, reason, .. } = backfill;
    let waits = if reason.is_empty() { String::new() } else { format!("; it waits for {reason}") };
    eprintln!("{} timers, {shards_done} of {shards} shards{waits}", fired(backfill));
}

fn report(backfill: &Backfill, json: bool) {
    if json {
        println!("{:#}", value(backfill));
        return;
    }
    show(&backfill.fired, false);
    let Backfill { cancelled, moved, waiting, before, unknown, reason, .. } = backfill;
    let what = if backfill.dry_run { "would be fired again" } else { "were stored to be fired again" };
    println!("{} timers {what}", fired(backfill));
    for (count, why) in [
        (*cancelled, "had been cancelled"),
        (*moved, "had been moved or changed shortly before their time, which is not kept"),
        (*waiting, "still wait, and fire by themselves"),
        (*before, "were stored by an earlier run of this backfill, or passed by it"),
        (*unknown, "are of no tenant and target that is known"),
    ] {
        if count > 0 {
            println!("{count} were left out: they {why}");
        }
    }
    match backfill.state() {
        BackfillState::Failed => {
            println!("it could not go on: {reason}. Begin again: it goes on where it stood");
        }
        BackfillState::Cancelled => {
            println!(
                "it was ended before its end; what was stored fires. Begin again: it goes on where it stood"
            );
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        scheduler: SchedulerArgs,
    }

    #[test]
    fn a_scheduler_runs_as_before_and_a_backfill_needs_a_range() {
        let line = Line::try_parse_from(["scheduler", "--config", "a.toml"]).unwrap();
        assert!(line.scheduler.command.is_none());
        let line =
            "scheduler backfill --from 2027-02-06T10:00:00Z --to 1802000000000 --tenant shop --dry-run";
        let line = Line::try_parse_from(line.split(' ')).unwrap();
        let Some(SchedulerCommand::Backfill(args)) = line.scheduler.command else { panic!("no backfill") };
        assert_eq!((args.from, args.to, args.rate), (1_801_908_000_000, 1_802_000_000_000, 1_000));
        assert!(args.dry_run && args.tenant == "shop" && args.target.is_empty());
        for wrong in ["--from 1", "--from 1 --to yesterday", "--from 1 --to 2 --rate 0"] {
            let line = format!("scheduler backfill {wrong}");
            assert!(Line::try_parse_from(line.split(' ')).is_err(), "{wrong}");
        }
    }
}
