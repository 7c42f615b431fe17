//! `windfall schedule`: timers of a running scheduler, for people and scripts, over gRPC.

mod set_aside;
pub mod times;

use super::ask::{Server, more, show, value};
use super::{now_ms, utc};
use crate::outcome::Outcome;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::PathBuf;
use windfall_client::{CallError, TimersClient};
use windfall_proto::v1::{
    AddTimerRequest, CancelTimersRequest, ChangeTimerReply, DeadTimer, DeadTimerEnd, EndDeadTimersRequest,
    GetTimerRequest, ListDeadTimersRequest, ListTimersRequest, NewTimer, Timer, TimerAccept, TimerChange,
    TimerName, UpdateTimerRequest, cancel_timer_result,
};

/// What a table shows of a payload.
const PAYLOAD_SHOWN: usize = 60;

/// `windfall schedule …`
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  windfall schedule add --target hook --in 5m --key call-7 --payload 'hang up'
  windfall schedule update --key call-7 --in 10m
  windfall schedule cancel --key call-7
  windfall schedule add --target hook --in 5m --key call-8 --accept queue
  windfall schedule dead --again 0012-01c3a2f0-0000002a")]
pub struct ScheduleArgs {
    #[command(flatten)]
    server: Server,
    /// The tenant whose timers these are [default: the app of the key's caller]
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    tenant: String,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Ask,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Ask {
    /// Add a timer, and print its id
    Add {
        /// The target that it goes to
        #[arg(long)]
        target: String,
        #[command(flatten)]
        when: When,
        /// A name of your own for it, unique among the waiting timers; adding it again is then harmless
        #[arg(long, default_value = "", hide_default_value = true)]
        key: String,
        #[command(flatten)]
        payload: Payload,
        #[command(flatten)]
        first: First,
    },
    /// Give a waiting timer another time, another payload, or both
    Update {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        when: When,
        #[command(flatten)]
        payload: Payload,
        #[command(flatten)]
        first: First,
    },
    /// Cancel waiting timers: those that are reported as cancelled do not fire
    Cancel {
        /// The ids of the timers to cancel
        #[arg(required_unless_present = "key")]
        ids: Vec<String>,
        /// The key of a timer to cancel; may be given several times
        #[arg(long)]
        key: Vec<String>,
        #[command(flatten)]
        first: First,
    },
    /// Show one timer
    Get {
        #[command(flatten)]
        which: Which,
    },
    /// List waiting timers: those in the store by id, then far timers by hour
    List {
        /// Only timers after this id, which is the last one of the page before
        #[arg(long, default_value = "", hide_default_value = true)]
        after: String,
        /// The largest number to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// List timers that were given up, send them again, or delete them
    Dead {
        /// Send the timers of these ids again, at once
        #[arg(long, value_name = "ID", num_args = 1.., conflicts_with_all = ["delete", "after"])]
        again: Vec<String>,
        /// Delete the timers of these ids
        #[arg(long, value_name = "ID", num_args = 1.., conflicts_with = "after")]
        delete: Vec<String>,
        /// Only timers after this id, which is the last one of the page before
        #[arg(long, default_value = "", hide_default_value = true)]
        after: String,
        /// The largest number to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// List adds by the queue that a scheduler has set aside: their timers do not fire
    ///
    /// Reads the file in the data directory of the process that took them. The reason of each says what to find out before
    /// anything is done about it.
    SetAside {
        /// The data directory of the scheduler
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
}

/// Where a call goes first.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
struct First {
    /// Where it goes first: `store`, or `queue`, from which the timer is taken into the store. By the queue an add needs a
    /// key, which is used once, and succeeds while the store is away; a cancel or an update by key then expects that the add
    /// may still be on its way [default: what the operator has set for the tenant]
    #[arg(long, value_enum)]
    accept: Option<AcceptAt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AcceptAt {
    Store,
    Queue,
}

impl First {
    fn wire(self) -> i32 {
        let accept = match self.accept {
            None => TimerAccept::Unspecified,
            Some(AcceptAt::Store) => TimerAccept::Store,
            Some(AcceptAt::Queue) => TimerAccept::Queue,
        };
        accept.into()
    }
}

#[derive(Debug, Clone, clap::Args)]
#[group(multiple = false)]
struct When {
    /// How long from now it fires: 500ms, 90s, 5m, 2h or 30d
    #[arg(long = "in", value_name = "DURATION", value_parser = times::duration_ms)]
    after_ms: Option<u64>,
    /// When it fires: 2027-02-06T12:00:00Z, or Unix milliseconds
    #[arg(long = "at", value_name = "TIME", value_parser = times::time_ms)]
    at_ms: Option<u64>,
}

#[derive(Debug, Clone, clap::Args)]
#[group(multiple = false)]
struct Payload {
    /// The payload that its target gets, as text
    #[arg(long = "payload", value_name = "TEXT")]
    text: Option<String>,
    /// The file with the payload that its target gets, at most 65,536 bytes
    #[arg(long = "payload-file", value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The timer's id
    id: Option<String>,
    /// The timer's key
    #[arg(long)]
    key: Option<String>,
}

impl When {
    fn due_ms(&self) -> Option<u64> {
        self.at_ms.or_else(|| Some(now_ms().saturating_add(self.after_ms?)))
    }
}

impl Payload {
    fn read(&self) -> Result<Option<Vec<u8>>> {
        match (&self.text, &self.file) {
            (Some(text), _) => Ok(Some(text.clone().into_bytes())),
            (None, Some(path)) => {
                let bytes = std::fs::read(path)
                    .with_context(|| format!("the payload file {} cannot be read", path.display()))?;
                Ok(Some(bytes))
            }
            (None, None) => Ok(None),
        }
    }
}

/// Runs the command and prints its outcome.
pub fn run(args: &ScheduleArgs) -> Result<Outcome> {
    if let Ask::SetAside { data } = &args.command {
        return set_aside::list(data, args.json);
    }
    let options = args.server.options()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = TimersClient::open(options)?;
        match ask(&client, args).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => match error.downcast_ref::<CallError>() {
                Some(CallError::Busy { .. } | CallError::Unanswered(_)) => {
                    eprintln!("windfall: {error}");
                    Ok(Outcome::Damage)
                }
                _ => Err(error),
            },
        }
    })
}

async fn ask(client: &TimersClient, args: &ScheduleArgs) -> Result<Outcome> {
    let (tenant, json) = (args.tenant.clone(), args.json);
    match &args.command {
        Ask::SetAside { data } => set_aside::list(data, json),
        Ask::Add { target, when, key, payload, first } => {
            let due_ms = when.due_ms().context("the time is missing: give --in or --at")?;
            let payload = payload.read()?.unwrap_or_default();
            let timer = NewTimer { target: target.clone(), due_ms, key: key.clone(), payload };
            let request = AddTimerRequest { tenant, timer: Some(timer), accept: first.wire() };
            let added = client.add(request).await?;
            if json && added.queued {
                println!("{:#}", json!({"queued": true, "key": added.key}));
            } else if json {
                println!("{:#}", json!({"id": added.id, "existed": added.existed}));
            } else if added.queued {
                println!("{}  is in the queue under this key, and fires at {}", added.key, utc(due_ms));
            } else if added.existed {
                println!("{}  waits already under this key; nothing was stored", added.id);
            } else {
                println!("{}  fires at {}", added.id, utc(due_ms));
            }
            Ok(Outcome::Clean)
        }
        Ask::Update { which, when, payload, first } => {
            let (id, key) = (which.id.clone().unwrap_or_default(), which.key.clone().unwrap_or_default());
            let (due_ms, payload) = (when.due_ms(), payload.read()?);
            if due_ms.is_none() && payload.is_none() {
                bail!("nothing is to be changed: give --in, --at, --payload or --payload-file");
            }
            let accept = first.wire();
            let request = UpdateTimerRequest { tenant, id, key, due_ms, payload, forwarded: None, accept };
            changed(&[client.update(request).await?], json)
        }
        Ask::Cancel { ids, key, first } => {
            let by_id = ids.iter().map(|id| TimerName { id: id.clone(), ..TimerName::default() });
            let by_key = key.iter().map(|key| TimerName { key: key.clone(), ..TimerName::default() });
            let timers = by_id.chain(by_key).collect();
            let accept = first.wire();
            cancel(client, CancelTimersRequest { tenant, timers, accept }, json).await
        }
        Ask::Get { which } => {
            let (id, key) = (which.id.clone().unwrap_or_default(), which.key.clone().unwrap_or_default());
            let timer = client.get(GetTimerRequest { tenant, id, key, forwarded: None }).await?;
            println!("{:#}", if json { value(&timer) } else { timer_row(&timer) });
            Ok(Outcome::Clean)
        }
        Ask::List { after, limit } => {
            let (after, page_size) = (after.clone(), *limit);
            let request = ListTimersRequest { tenant, after, page_size, forwarded: None };
            let reply = client.list(request).await?;
            let row = if json { value::<Timer> } else { timer_row };
            show(&reply.timers.iter().map(row).collect::<Vec<_>>(), json);
            more(!reply.next_after.is_empty(), reply.next_after);
            Ok(Outcome::Clean)
        }
        Ask::Dead { again, delete, after, limit } if again.is_empty() && delete.is_empty() => {
            let request = ListDeadTimersRequest { tenant, after: after.clone(), page_size: *limit };
            let reply = client.list_dead(request).await?;
            let row = if json { value::<DeadTimer> } else { dead_row };
            show(&reply.timers.iter().map(row).collect::<Vec<_>>(), json);
            more(!reply.next_after.is_empty(), reply.next_after);
            Ok(Outcome::Clean)
        }
        Ask::Dead { again, delete, .. } => {
            let (ids, end) = match again.as_slice() {
                [] => (delete.clone(), DeadTimerEnd::Delete),
                _ => (again.clone(), DeadTimerEnd::SendAgain),
            };
            let request = EndDeadTimersRequest { tenant, ids: ids.clone(), end: end.into() };
            let found = client.end_dead(request).await?;
            let rows: Vec<Value> =
                ids.iter().zip(&found).map(|(id, found)| json!({"id": id, "found": found})).collect();
            show(&rows, json);
            all_or_some(found.iter().filter(|found| **found).count(), found.len())
        }
    }
}

async fn cancel(client: &TimersClient, request: CancelTimersRequest, json: bool) -> Result<Outcome> {
    let names = request.timers.clone();
    let results = client.cancel_batch(request).await?;
    let (mut rows, mut done) = (Vec::new(), 0);
    for (name, result) in names.iter().zip(&results) {
        let said = match &result.result {
            Some(cancel_timer_result::Result::Changed(reply)) => {
                done += usize::from(is_so(reply.change()));
                reply.change().as_str_name().to_owned()
            }
            Some(cancel_timer_result::Result::Failure(failure)) => failure.message.clone(),
            None => "no answer".to_owned(),
        };
        let name = if name.id.is_empty() { &name.key } else { &name.id };
        rows.push(json!({"timer": name, "change": said}));
    }
    show(&rows, json);
    all_or_some(done, names.len())
}

/// What became of changes; one that was not done is not one that failed on the way.
fn changed(replies: &[ChangeTimerReply], json: bool) -> Result<Outcome> {
    let rows: Vec<Value> =
        replies.iter().map(|reply| json!({"change": reply.change().as_str_name(), "id": reply.id})).collect();
    show(&rows, json);
    let done = replies.iter().filter(|reply| reply.change() == TimerChange::Done).count();
    all_or_some(done, replies.len())
}

fn is_so(change: TimerChange) -> bool {
    matches!(change, TimerChange::Done | TimerChange::AlreadyCancelled | TimerChange::Marked)
}

fn all_or_some(done: usize, all: usize) -> Result<Outcome> {
    match done {
        done if done == all => Ok(Outcome::Clean),
        0 => bail!("nothing was changed: the timers are over, cancelled, or not there"),
        done => {
            eprintln!("windfall: {done} of {all} were done");
            Ok(Outcome::Damage)
        }
    }
}

fn timer_row(timer: &Timer) -> Value {
    json!({
        "id": timer.id,
        "target": timer.target,
        "due": utc(timer.due_ms),
        "key": timer.key,
        "state": timer.state().as_str_name(),
        "payload": shown(&timer.payload),
    })
}

fn dead_row(timer: &DeadTimer) -> Value {
    json!({
        "id": timer.id,
        "target": timer.target,
        "due": utc(timer.due_ms),
        "given up": utc(timer.died_ms),
        "attempts": timer.attempts,
        "reason": timer.reason,
        "key": timer.key,
    })
}

/// A payload in a table: its beginning, where it is text.
fn shown(payload: &[u8]) -> String {
    match std::str::from_utf8(payload) {
        Ok(text) if text.len() <= PAYLOAD_SHOWN && !text.contains(char::is_control) => text.to_owned(),
        _ => format!("{} bytes", payload.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Trial {
        #[command(flatten)]
        args: ScheduleArgs,
    }

    fn parse(words: &str) -> Result<ScheduleArgs, clap::Error> {
        Trial::try_parse_from(["windfall"].into_iter().chain(words.split(' '))).map(|trial| trial.args)
    }

    #[test]
    fn a_timer_has_one_time_one_payload_and_one_name() {
        for good in [
            "add --target hook --in 5m --payload x",
            "add --target hook --at 2027-02-06T12:00:00Z --key k --tenant calls --json",
            "update --key k --in 1s",
            "update 0012-01c3a2f0-0000002a --payload y",
            "cancel a b --key c",
            "cancel --key c",
            "get --key c",
            "list --limit 5",
            "dead",
            "dead --again a b",
            "dead --delete a",
            "add --target hook --in 5m --key k --accept queue",
            "update --key k --in 1s --accept queue",
            "cancel --key c --accept store",
            "set-aside --data data",
        ] {
            assert!(parse(good).is_ok(), "{good}: {:?}", parse(good).err());
        }
        for bad in [
            "add --in 5m",
            "add --target hook --in 5m --at 7",
            "add --target hook --in 5 --payload x",
            "add --target hook --in 5m --payload x --payload-file y",
            "update --in 5m",
            "update a --key b --in 5m",
            "cancel",
            "get",
            "list --limit 0",
            "dead --again a --delete b",
            "add --target hook --in 5m --accept topic",
            "set-aside",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_from_now_is_counted_from_now() {
        let when = When { after_ms: Some(5_000), at_ms: None };
        let due_ms = when.due_ms().unwrap();
        assert!((now_ms() + 4_000..=now_ms() + 5_000).contains(&due_ms));
        assert_eq!(When { after_ms: None, at_ms: Some(7) }.due_ms(), Some(7));
        assert_eq!(When { after_ms: None, at_ms: None }.due_ms(), None);
    }

    #[test]
    fn a_part_that_was_not_done_is_told_by_the_exit_code() {
        assert_eq!(all_or_some(2, 2).unwrap(), Outcome::Clean);
        assert_eq!(all_or_some(1, 2).unwrap(), Outcome::Damage);
        assert!(all_or_some(0, 2).is_err());
    }
}
