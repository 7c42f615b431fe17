//! `windfall archive`: what finally failed, and another try.

use super::utc;
use crate::demo::data::{DataDir, Manifest};
use crate::demo::parts;
use crate::outcome::Outcome;
use crate::place;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::block_in_place;
use windfall_connectors::fake::FakeDownstream;
use windfall_contract::Clock;
use windfall_contract::connector::Connector;
use windfall_contract::rewards::GrantReply;
use windfall_ledger::{ArchiveFilter, Archived, Unbudgeted};
use windfall_proto::event::EventRef;
use windfall_reward_service::{Replayed, RewardHandle, RewardService, RulesInForce};

/// The number of entries in one page.
const PAGE: u32 = 1_000;

/// `windfall archive …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum ArchiveCommand {
    /// List archived events, oldest first
    List {
        #[command(flatten)]
        which: Which,
        /// Only entries that no replay has credited
        #[arg(long)]
        open: bool,
        /// The largest number of entries to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Only entries after this number, which is the last one of the page before
        #[arg(long, default_value_t = 0)]
        after: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Grant archived events again; each attempt is kept with its actor, and an order is credited once at most
    Replay {
        #[command(flatten)]
        which: Which,
        /// Only the entries of these numbers
        #[arg(long, value_delimiter = ',')]
        id: Vec<i64>,
        /// Only entries of this activity's order; needed with --trade-no where several activities have an entry
        #[arg(long, requires = "trade_no", conflicts_with = "id")]
        activity: Option<String>,
        /// Who asks for it [default: $USER]
        #[arg(long)]
        actor: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// The filter that selects entries.
#[derive(Debug, Clone, clap::Args)]
pub struct Which {
    /// The data directory of a demo
    #[arg(long)]
    data: PathBuf,
    /// Only entries of this reason, as `list` shows it
    #[arg(long)]
    reason: Option<String>,
    /// Only entries of this order number
    #[arg(long)]
    trade_no: Option<String>,
}

/// Runs it.
pub fn run(command: &ArchiveCommand) -> Result<Outcome> {
    match command {
        ArchiveCommand::List { which, open, limit, after, json } => {
            let filter = ArchiveFilter {
                reason: which.reason.clone(),
                trade_no: which.trade_no.clone(),
                open: *open,
                after: *after,
                limit: *limit,
            };
            list(which, &filter, *json)?;
            Ok(Outcome::Clean)
        }
        ArchiveCommand::Replay { which, id, activity, actor, json } => {
            let actor = actor.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_default();
            if id.is_empty() && which.reason.is_none() && which.trade_no.is_none() {
                bail!("the entries to replay are not named: give --id, --reason or --trade-no");
            }
            replay(which, id, activity.as_deref(), &actor, *json)
        }
    }
}

fn list(which: &Which, filter: &ArchiveFilter, json: bool) -> Result<()> {
    let ledger = Manifest::read(&which.data)?.backends.ledger().open_reader(&which.data)?;
    let entries = ledger.archive_list(filter)?;
    if json {
        let rows: Vec<_> = entries.iter().map(to_json).collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    for entry in &entries {
        let replay = entry.replay.as_ref().map_or_else(String::new, |replay| {
            format!(
                "  replayed {} by {}: {}",
                utc(replay.time_ms.unsigned_abs()),
                replay.actor,
                replay.outcome
            )
        });
        println!(
            "{:>8}  {}  {:<18} {}  {}{replay}",
            entry.id,
            utc(entry.time_ms.unsigned_abs()),
            entry.reason,
            entry.trade_no.as_deref().unwrap_or("(no order number)"),
            entry.detail,
        );
    }
    if entries.len() == usize::try_from(filter.limit)?
        && let Some(last) = entries.last()
    {
        eprintln!("more with --after {}", last.id);
    }
    Ok(())
}

fn to_json(entry: &Archived) -> serde_json::Value {
    let event = EventRef::parse(&entry.payload).ok().map(|event| {
        serde_json::json!({
            "user_id": event.user_id, "activity": event.activity, "scene": event.scene,
            "type": event.bonus_type, "amount": event.amount,
        })
    });
    let replay = entry.replay.as_ref().map(|replay| {
        serde_json::json!({"time_ms": replay.time_ms, "actor": replay.actor, "outcome": replay.outcome})
    });
    serde_json::json!({
        "id": entry.id,
        "trade_no": entry.trade_no,
        "reason": entry.reason,
        "detail": entry.detail,
        "time_ms": entry.time_ms,
        "payload_bytes": entry.payload.len(),
        "event": event,
        "replay": replay,
    })
}

fn replay(which: &Which, ids: &[i64], activity: Option<&str>, actor: &str, json: bool) -> Result<Outcome> {
    let (data, manifest) = DataDir::open(&which.data)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let replayed = runtime.block_on(async {
        let badges =
            FakeDownstream::open(place::badge_book(data.path()), parts::badge_options(), Clock::system())
                .context("the badge downstream's book cannot be opened")?;
        let ledger = block_in_place(|| manifest.backends.ledger().open(data.path(), Unbudgeted::Refuse))?;
        let connectors: Vec<Arc<dyn Connector>> = vec![Arc::new(badges)];
        let rewards =
            RewardService::start(parts::reward_options(), ledger, connectors, None, Clock::system())
                .context("the reward service cannot start")?;
        if let Ok(rules) = block_in_place(|| {
            manifest.backends.rules().store(data.path(), None)?.show().map_err(anyhow::Error::from)
        }) {
            // A budget that was raised since is what a replay often waits for.
            let rules = windfall_config::parse_rules(&rules, None)?;
            let own = RulesInForce { version: rules.version, order_caps: rules.order_caps() };
            rewards.follow_rules(Box::new(move || own.clone()));
            rewards.apply_rules(&rules).await?;
        }
        let replayed = replay_named(&rewards, which, ids, activity, actor).await?;
        rewards.close();
        anyhow::Ok(replayed)
    })?;
    print(&replayed, json)?;
    let decided = replayed.iter().all(|one| one.reply.is_final());
    Ok(if decided { Outcome::Clean } else { Outcome::Damage })
}

/// Replays the entries of these numbers; where there are none, the open ones that `which` selects.
async fn replay_named(
    rewards: &RewardHandle,
    which: &Which,
    ids: &[i64],
    activity: Option<&str>,
    actor: &str,
) -> Result<Vec<Replayed>> {
    let mut filter = ArchiveFilter {
        reason: which.reason.clone(),
        trade_no: which.trade_no.clone(),
        open: true,
        after: 0,
        limit: PAGE,
    };
    let mut replayed = Vec::new();
    if ids.is_empty() && which.trade_no.is_none() {
        loop {
            let page = rewards.replay_all(filter.clone(), actor).await?;
            let Some(last) = page.last() else { return Ok(replayed) };
            filter.after = last.id;
            replayed.extend(page);
        }
    }
    let ids = if ids.is_empty() { open_of_number(rewards, filter, activity).await? } else { ids.to_vec() };
    for id in ids {
        replayed.push(rewards.replay(id, actor).await?);
    }
    Ok(replayed)
}

/// The open entries of an order number, of the one activity that has it or of this one.
async fn open_of_number(
    rewards: &RewardHandle,
    filter: ArchiveFilter,
    activity: Option<&str>,
) -> Result<Vec<i64>> {
    // Those that a replay has settled tell of an activity, too: it may be the one that is meant.
    let every = ArchiveFilter { reason: None, open: false, ..filter.clone() };
    let activities = activities_of(&every_entry(rewards, every).await?);
    if activity.is_none() && activities.len() > 1 {
        let activities: Vec<&str> = activities.iter().map(String::as_str).collect();
        bail!(
            "several activities have an entry of this order number: {}; name one with --activity",
            activities.join(", ")
        );
    }
    let open = every_entry(rewards, filter).await?;
    let meant = |entry: &&Archived| activity.is_none_or(|meant| is_of(entry, meant));
    Ok(open.iter().filter(meant).map(|entry| entry.id).collect())
}

/// The entries that a filter selects, of all its pages.
async fn every_entry(rewards: &RewardHandle, mut filter: ArchiveFilter) -> Result<Vec<Archived>> {
    let mut all = Vec::new();
    loop {
        let page = rewards.archive_list(filter.clone()).await?;
        let Some(last) = page.last() else { return Ok(all) };
        filter.after = last.id;
        all.extend(page);
    }
}

/// The activities that entries name, of those that hold an event.
fn activities_of(entries: &[Archived]) -> BTreeSet<String> {
    let events = entries.iter().filter_map(|entry| EventRef::parse(&entry.payload).ok());
    events.map(|event| event.activity.to_owned()).collect()
}

fn is_of(entry: &Archived, activity: &str) -> bool {
    EventRef::parse(&entry.payload).is_ok_and(|event| event.activity == activity)
}

fn print(replayed: &[Replayed], json: bool) -> Result<()> {
    let word = |reply: &GrantReply| match reply {
        GrantReply::Credited => "credited".to_owned(),
        GrantReply::AlreadyCredited => "already_credited".to_owned(),
        GrantReply::Conflict => "conflict".to_owned(),
        GrantReply::Rejected(why) => format!("rejected: {why}"),
        GrantReply::Retry { reason, .. } => format!("not decided ({reason}): replay it again"),
    };
    if json {
        let rows: Vec<_> = replayed
            .iter()
            .map(|one| serde_json::json!({"id": one.id, "trade_no": one.trade_no, "outcome": word(&one.reply)}))
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    for one in replayed {
        println!(
            "{:>8}  {}  {}",
            one.id,
            one.trade_no.as_deref().unwrap_or("(no order number)"),
            word(&one.reply)
        );
    }
    println!("{} replayed", replayed.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_contract::rewards::Rewards;
    use windfall_ledger::{Ledger, LedgerOptions};
    use windfall_reward_service::RewardOptions;

    fn cash(activity: &str, amount: i64) -> bytes::Bytes {
        let mut out = Vec::new();
        let event = EventRef { trade_no: "a", user_id: 7, activity, scene: "rain", ..EventRef::default() };
        let event = EventRef { bonus_type: "cash", amount, award_time_ms: 1, first_sent_ms: 1, ..event };
        event.encode([], &mut out);
        out.into()
    }

    #[tokio::test]
    async fn a_number_that_several_activities_have_is_replayed_for_the_one_that_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
        let ledger = Ledger::open(folder.path().join("ledger.db"), &options).unwrap();
        let rewards =
            RewardService::start(RewardOptions::default(), ledger, vec![], None, Clock::system()).unwrap();
        // What conflicts with the order of the same activity is archived.
        for activity in ["spring", "autumn"] {
            rewards.grant_batch("cash", &[cash(activity, 5)]).await;
            rewards.grant_batch("cash", &[cash(activity, 6)]).await;
        }
        let which = Which { data: folder.path().into(), reason: None, trade_no: Some("a".into()) };
        let refused = replay_named(&rewards, &which, &[], None, "ann").await.map(|done| done.len());
        assert!(refused.as_ref().is_err_and(|why| why.to_string().contains("autumn, spring")), "{refused:?}");
        let done = replay_named(&rewards, &which, &[], Some("spring"), "ann").await.unwrap();
        assert_eq!(done.len(), 1);
        let entries = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
        let replayed: Vec<bool> = entries.iter().map(|entry| entry.replay.is_some()).collect();
        assert_eq!(replayed, [true, false]);
        rewards.close();
    }
}
