//! `windfall operate`: what operators ask of running services, over gRPC.

use super::acts;
use super::ask::{Server, more, show, value};
use super::ledger_mark;
use super::payouts;
use super::statement;
use crate::outcome::Outcome;
use anyhow::Result;
use serde_json::json;
use windfall_client::{ActsClient, ArchiveClient, CallError, PayoutsClient};
use windfall_proto::v1::{
    AcceptLedgerRequest, GrantOutcome, ListArchiveRequest, ListHeldRequest, ListReservedRequest,
};

/// `windfall operate …`
#[derive(Debug, Clone, clap::Args)]
pub struct OperateArgs {
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Ask,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Ask {
    /// List the events that finally failed, oldest first
    Archive {
        /// Only entries of this reason
        #[arg(long, default_value = "")]
        reason: String,
        /// Only the entry of this order number
        #[arg(long, default_value = "")]
        trade_no: String,
        /// Only entries that no replay has credited
        #[arg(long)]
        open: bool,
        /// Only entries after this number, which is the last one of the page before
        #[arg(long, default_value_t = 0)]
        after: i64,
        /// The largest number of entries to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// Show one entry of the archive, with its bytes and every replay of it
    Inspect {
        /// The entry's number
        id: i64,
    },
    /// Grant entries of the archive again; each attempt is kept with its actor, and an order is credited once at most
    Replay {
        /// The entries' numbers
        #[arg(required = true)]
        ids: Vec<i64>,
        /// Who asks for it; kept beside the name of the key
        #[arg(long, env = "USER", default_value = "")]
        actor: String,
        /// Grant unverified records although nothing proves who wrote them, because you know that they are good; the reason
        /// is kept with the replay. A record whose signature is wrong stays refused
        #[arg(long, value_name = "REASON", default_value = "")]
        despite_signature: String,
    },
    /// Show the budgets as they stand
    Budgets,
    /// List orders that have held budget for long: their downstream has not decided, or their event has not arrived
    Reserved(Page),
    /// End reserved orders: their budget becomes free again, and the archive gets an entry. For an order that waits for its
    /// payer, which may have paid it, this proposes an act to another operator and needs --reason and --evidence
    Release {
        /// The orders' numbers
        #[arg(required = true)]
        trade_nos: Vec<String>,
        /// Their activity; needed where several activities have an order with such a number
        #[arg(long, default_value = "")]
        activity: String,
        /// Why; kept with the act
        #[arg(long, requires = "evidence")]
        reason: Option<String>,
        /// What proves it; kept with the act
        #[arg(long, requires = "reason")]
        evidence: Option<String>,
        /// How long the act can be approved, in hours
        #[arg(long, default_value_t = 168, value_parser = clap::value_parser!(u32).range(1..=720))]
        valid_h: u32,
        /// Who asks for it; kept beside the name of the key
        #[arg(long, env = "USER", default_value = "")]
        actor: String,
    },
    #[command(flatten)]
    Acts(acts::Acts),
    #[command(flatten)]
    Payouts(payouts::Payouts),
    /// List all withdrawals that have been held for long: a connector is asked again, and a front end acknowledges its own
    /// (`payouts`)
    Held(Page),
    #[command(flatten)]
    OfUser(statement::OfUser),
    /// Show whether the ledger holds its mark: one that went back in time pays nothing out
    Ledger,
    /// Accept a ledger that went back in time as it is, after it was reconciled (docs/restore.md); payouts go on
    AcceptLedger {
        /// The generation of the ledger that `windfall operate ledger` shows
        #[arg(long)]
        generation: i64,
        /// The lineage of the ledger that it shows; a ledger that has never been in it is not accepted
        #[arg(long)]
        lineage: String,
        /// The beat of the ledger that it shows; a ledger that does not hold it is not accepted
        #[arg(long)]
        beat: i64,
        /// Why it is accepted, with the evidence of the reconciliation; kept in the ledger
        #[arg(long)]
        reason: String,
        /// Who asks for it; kept beside the name of the key
        #[arg(long, env = "USER", default_value = "")]
        actor: String,
    },
}

#[derive(Debug, Clone, clap::Args)]
struct Page {
    /// Only what is at least this old, in seconds
    #[arg(long, default_value_t = 60)]
    older_than_s: u64,
    /// Only what comes after this one, which is the last of the page before
    #[arg(long, default_value = "")]
    after: String,
    /// The largest number to list
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

/// Runs it.
pub fn run(args: &OperateArgs) -> Result<Outcome> {
    let options = args.server.options()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let clients = Clients {
            archive: ArchiveClient::open(options.clone())?,
            payouts: PayoutsClient::open(options.clone())?,
            acts: ActsClient::open(options)?,
        };
        match ask(&clients, &args.command, args.json).await {
            Ok(outcome) => Ok(outcome),
            Err(error @ (CallError::Busy { .. } | CallError::Unanswered(_))) => {
                eprintln!("windfall: {error}");
                Ok(Outcome::Damage)
            }
            Err(error) => Err(error.into()),
        }
    })
}

/// The services that are asked.
struct Clients {
    archive: ArchiveClient,
    payouts: PayoutsClient,
    acts: ActsClient,
}

async fn ask(clients: &Clients, command: &Ask, json: bool) -> Result<Outcome, CallError> {
    let client = &clients.archive;
    match command {
        Ask::Payouts(command) => return payouts::ask(&clients.payouts, command, json).await,
        Ask::Acts(command) => return acts::ask(&clients.acts, command, json).await,
        Ask::Release {
            trade_nos,
            activity,
            reason: Some(reason),
            evidence: Some(evidence),
            actor,
            valid_h,
        } => {
            let because = acts::Because::of(reason, evidence, actor, *valid_h);
            for (done, trade_no) in trade_nos.iter().enumerate() {
                let order = (activity.clone(), trade_no.clone());
                if let Err(error) = acts::release(&clients.acts, order, &because, json).await {
                    return after_some(done, error);
                }
            }
        }
        Ask::Archive { reason, trade_no, open, after, limit } => {
            let (reason, trade_no) = (reason.clone(), trade_no.clone());
            let request =
                ListArchiveRequest { reason, trade_no, open: *open, page_size: *limit, after: *after };
            let reply = client.list(request).await?;
            show(&reply.entries, json);
            more(reply.next_after != 0, reply.next_after);
        }
        Ask::Inspect { id } => {
            let reply = client.get(*id).await?;
            println!("{:#}", value(&reply));
        }
        Ask::Replay { ids, actor, despite_signature } => {
            let (mut rows, mut failed) = (Vec::new(), None);
            let mut is_decided = true;
            for id in ids {
                let (actor, reason) = (actor.clone(), despite_signature.clone());
                match client.replay_despite_signature(*id, actor, reason).await {
                    Ok(reply) => {
                        is_decided &= reply.outcome() != GrantOutcome::Retry;
                        let outcome = reply.outcome().as_str_name();
                        rows.push(json!({"id": id, "outcome": outcome, "reason": reply.reason}));
                    }
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            show(&rows, json);
            return match failed {
                Some(error) => after_some(rows.len(), error),
                None => Ok(if is_decided { Outcome::Clean } else { Outcome::Damage }),
            };
        }
        Ask::Budgets => show(&client.budgets().await?, json),
        Ask::Reserved(page) => {
            let reply = client
                .reserved(ListReservedRequest {
                    older_than_ms: page.older_than_s.saturating_mul(1_000),
                    after: page.after.clone(),
                    page_size: page.limit,
                })
                .await?;
            show(&reply.orders, json);
            more(!reply.next_after.is_empty(), reply.next_after);
        }
        Ask::Release { trade_nos, activity, actor, .. } => {
            for (done, trade_no) in trade_nos.iter().enumerate() {
                match client.release(activity.clone(), trade_no.clone(), actor.clone()).await {
                    Ok(()) => println!("released {trade_no}"),
                    Err(error) => return after_some(done, error),
                }
            }
        }
        Ask::Held(page) => {
            let reply = client
                .held(ListHeldRequest {
                    older_than_ms: page.older_than_s.saturating_mul(1_000),
                    after: page.after.clone(),
                    page_size: page.limit,
                })
                .await?;
            show(&reply.withdrawals, json);
            more(!reply.next_after.is_empty(), reply.next_after);
        }
        Ask::OfUser(command) => return statement::ask(client, command, json).await,
        Ask::Ledger => return ledger_mark::show(client, json).await,
        Ask::AcceptLedger { generation, lineage, beat, reason, actor } => {
            let request = AcceptLedgerRequest {
                generation: *generation,
                lineage: lineage.clone(),
                beat: *beat,
                reason: reason.clone(),
                actor: actor.clone(),
            };
            return ledger_mark::accept(client, request, json).await;
        }
    }
    Ok(Outcome::Clean)
}

/// A failure behind others that were done is not one that changed nothing.
fn after_some(done: usize, error: CallError) -> Result<Outcome, CallError> {
    if done == 0 {
        return Err(error);
    }
    eprintln!("windfall: {done} were done, then this failed: {error}");
    Ok(Outcome::Damage)
}
