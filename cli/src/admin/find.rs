//! `windfall find`: where a reward is, by its order number.

use super::ask::{Server, value};
use super::utc;
use crate::outcome::Outcome;
use anyhow::Result;
use std::fmt::Write;
use windfall_client::{ArchiveClient, CallError};
use windfall_proto::v1::{ArchiveEntry, GetOrderReply, LedgerOrder, OrderStatus};

/// `windfall find ORDER`
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit codes: 0 it was found; 1 neither the ledger nor the archive knows it, or they did not answer; 2 the \
                        call was wrong, or refused."
)]
pub struct FindArgs {
    /// The order number of the reward
    #[arg(value_name = "ORDER")]
    trade_no: String,
    /// Only the order of this activity; without it the orders of all activities with this number
    #[arg(long, default_value = "")]
    activity: String,
    #[command(flatten)]
    server: Server,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &FindArgs) -> Result<Outcome> {
    let options = args.server.options()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(async {
        let client = ArchiveClient::open(options)?;
        Ok::<_, anyhow::Error>(client.order(args.activity.clone(), args.trade_no.clone()).await)
    });
    let found = match found? {
        Ok(found) => found,
        Err(error @ (CallError::Busy { .. } | CallError::Unanswered(_))) => {
            eprintln!("windfall: {error}");
            return Ok(Outcome::Damage);
        }
        Err(error) => return Err(error.into()),
    };
    if args.json {
        println!("{:#}", value(&found));
    } else {
        print!("{}", told(&args.trade_no, &found));
    }
    let is_known = found.order.is_some() || !found.archived.is_empty();
    Ok(if is_known { Outcome::Clean } else { Outcome::Damage })
}

/// What people read of the orders of all activities, one after the other.
fn told(trade_no: &str, found: &GetOrderReply) -> String {
    if found.others.is_empty() {
        return told_one(trade_no, found);
    }
    let of_activity =
        |entry: &ArchiveEntry| entry.event.as_ref().map_or("", |event| &event.activity).to_owned();
    let orders: Vec<&LedgerOrder> = found.order.iter().chain(&found.others).collect();
    let mut texts: Vec<String> = orders
        .iter()
        .map(|order| {
            let of_order = found.archived.iter().filter(|entry| of_activity(entry) == order.activity);
            let archived = of_order.cloned().collect();
            let one = GetOrderReply { order: Some((*order).clone()), archived, others: Vec::new() };
            told_one(trade_no, &one)
        })
        .collect();
    // What the archive has of activities of which the ledger has no such order.
    let is_told = |entry: &&ArchiveEntry| orders.iter().any(|order| order.activity == of_activity(entry));
    let rest: Vec<ArchiveEntry> = found.archived.iter().filter(|entry| !is_told(entry)).cloned().collect();
    if !rest.is_empty() {
        texts.push(told_one(trade_no, &GetOrderReply { archived: rest, ..GetOrderReply::default() }));
    }
    texts.join("\n")
}

/// What people read of one order: one line per station, in the order of time, and what to ask next.
fn told_one(trade_no: &str, found: &GetOrderReply) -> String {
    let mut lines: Vec<(i64, String)> = found.archived.iter().flat_map(archived).collect();
    let mut next = Vec::new();
    let mut text = format!("order     {trade_no}\n");
    if let Some(order) = &found.order {
        let LedgerOrder { user_id, activity, scene, bonus_type, amount, .. } = order;
        // Writing to a text cannot fail.
        writeln!(
            text,
            "reward    {amount} {bonus_type} for user {user_id}, activity {activity}, scene {scene}"
        )
        .ok();
        lines.extend(stations(order));
    }
    for entry in found.archived.iter().filter(|_| !is_credited(found)) {
        next.push(format!(
            "windfall operate inspect {}    the entry of the archive; `replay` grants it again",
            entry.id
        ));
    }
    lines.sort_by_key(|(time_ms, _)| *time_ms);
    for (time_ms, line) in lines {
        writeln!(text, "{}  {line}", utc(u64::try_from(time_ms).unwrap_or(0))).ok();
    }
    if found.order.is_none() {
        text.push_str("The ledger does not know this order.\n");
    }
    if found.order.is_none() && found.archived.is_empty() {
        text.push_str(
            "Nor does the archive. It may be on its way: in the sender's spool, in its queue, held by a fuse or behind a limit \
             of its type (`windfall topics` shows the queues). Or it was never sent: the user's token proves that it was \
             (`windfall token open`).\n",
        );
    }
    for line in next {
        writeln!(text, "see       {line}").ok();
    }
    text
}

fn is_credited(found: &GetOrderReply) -> bool {
    found.order.as_ref().is_some_and(|order| order.status() == OrderStatus::Credited)
}

/// What the ledger has of an order.
fn stations(order: &LedgerOrder) -> Vec<(i64, String)> {
    let payer = match order.payer.as_str() {
        "" => "the ledger".to_owned(),
        payer => format!("the payer {payer}"),
    };
    let mut lines = Vec::new();
    let took_ms = order.decided_ms - order.created_ms;
    let seen = (order.created_ms, "the ledger saw it for the first time".to_owned());
    match order.status() {
        OrderStatus::Credited if took_ms == 0 => {
            lines.push((
                order.decided_ms,
                format!("credited by {payer}, when the ledger saw it for the first time"),
            ));
        }
        OrderStatus::Credited => {
            lines.extend([seen, (order.decided_ms, format!("credited by {payer}, {took_ms} ms later"))]);
        }
        OrderStatus::Rejected => {
            lines.extend([seen, (order.decided_ms, format!("rejected: {}", order.reason))]);
        }
        OrderStatus::Reserved | OrderStatus::Unspecified => {
            let waits = if order.payer.is_empty() {
                "for its event, with which the ledger pays it"
            } else {
                "for its payer, who has not decided and is asked again"
            };
            lines.push((
                order.created_ms,
                format!("reserved: its budget is held, and it waits {waits} ({payer})"),
            ));
        }
    }
    lines
}

/// What the archive has of an order.
fn archived(entry: &ArchiveEntry) -> Vec<(i64, String)> {
    let ArchiveEntry { id, reason, detail, time_ms, .. } = entry;
    let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
    let mut lines = vec![(*time_ms, format!("archived as entry {id}: {reason}{detail}"))];
    if let Some(sent_ms) = entry.event.as_ref().map(|event| event.award_time_ms).filter(|ms| *ms > 0) {
        lines.push((sent_ms, format!("awarded, says the event of entry {id}")));
    }
    if let Some(replay) = &entry.replay {
        lines.push((
            replay.time_ms,
            format!("entry {id} was replayed by {}: {}", replay.actor, replay.outcome),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_proto::v1::{ArchiveReplay, BonusEvent};

    fn order(status: OrderStatus) -> LedgerOrder {
        LedgerOrder {
            trade_no: "o:1".into(),
            user_id: 7,
            activity: "spring".into(),
            scene: "rain".into(),
            bonus_type: "cash".into(),
            amount: 888,
            status: status.into(),
            created_ms: 1_801_915_199_000,
            decided_ms: 1_801_915_201_500,
            ..LedgerOrder::default()
        }
    }

    #[test]
    fn each_station_has_a_line_in_the_order_of_time() {
        let mut order = order(OrderStatus::Credited);
        order.payer = "bank".into();
        let entry = ArchiveEntry {
            id: 17,
            reason: "max_failures".into(),
            detail: "9 failures".into(),
            time_ms: 1_801_915_200_000,
            event: Some(BonusEvent { award_time_ms: 1_801_915_198_000, ..BonusEvent::default() }),
            replay: Some(ArchiveReplay {
                actor: "ann".into(),
                time_ms: 1_801_915_201_000,
                outcome: "asked".into(),
            }),
            ..ArchiveEntry::default()
        };
        let found = GetOrderReply { order: Some(order), archived: vec![entry], others: Vec::new() };
        assert_eq!(
            told("o:1", &found),
            "order     o:1\n\
             reward    888 cash for user 7, activity spring, scene rain\n\
             2027-02-06T11:59:58Z  awarded, says the event of entry 17\n\
             2027-02-06T11:59:59Z  the ledger saw it for the first time\n\
             2027-02-06T12:00:00Z  archived as entry 17: max_failures (9 failures)\n\
             2027-02-06T12:00:01Z  entry 17 was replayed by ann: asked\n\
             2027-02-06T12:00:01Z  credited by the payer bank, 2500 ms later\n"
        );
    }

    #[test]
    fn the_orders_of_several_activities_are_told_one_after_the_other() {
        let entry = |id, activity: &str| ArchiveEntry {
            id,
            reason: "conflict".into(),
            event: Some(BonusEvent { activity: activity.into(), ..BonusEvent::default() }),
            ..ArchiveEntry::default()
        };
        let autumn = LedgerOrder { activity: "autumn".into(), amount: 5, ..order(OrderStatus::Reserved) };
        let found = GetOrderReply {
            order: Some(autumn),
            others: vec![order(OrderStatus::Credited)],
            archived: vec![entry(3, "spring"), entry(4, "autumn"), entry(5, "winter")],
        };
        let text = told("o:1", &found);
        let parts: Vec<&str> = text.split("\n\n").collect();
        let has = |at: usize, what: &str| parts[at].contains(what);
        assert!(has(0, "activity autumn") && has(0, "entry 4") && !has(0, "entry 3"), "{text}");
        assert!(has(1, "activity spring") && has(1, "entry 3") && !has(1, "entry 4"), "{text}");
        assert!(has(2, "does not know") && has(2, "entry 5"), "{text}");
    }

    #[test]
    fn what_is_not_paid_says_what_it_waits_for() {
        let reserved = order(OrderStatus::Reserved);
        let found = GetOrderReply { order: Some(reserved.clone()), ..GetOrderReply::default() };
        assert!(told("o:1", &found).contains("waits for its event"), "{}", told("o:1", &found));
        let payer = LedgerOrder { payer: "bank".into(), ..reserved };
        let found = GetOrderReply { order: Some(payer), ..GetOrderReply::default() };
        assert!(told("o:1", &found).contains("(the payer bank)"), "{}", told("o:1", &found));
        let rejected = LedgerOrder { reason: "budget_exhausted".into(), ..order(OrderStatus::Rejected) };
        let entry = ArchiveEntry { id: 4, reason: "budget_exhausted".into(), ..ArchiveEntry::default() };
        let found = GetOrderReply { order: Some(rejected), archived: vec![entry], others: Vec::new() };
        let text = told("o:1", &found);
        assert!(text.contains("rejected: budget_exhausted") && text.contains("operate inspect 4"), "{text}");
        let text = told("o:2", &GetOrderReply::default());
        assert!(text.contains("does not know") && text.contains("on its way"), "{text}");
    }
}
