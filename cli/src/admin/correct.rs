//! `windfall operate correct`, which counts what a campaign gave wrongly and proposes to take it back, and `carry-out`, which does
//! that once another operator has approved it.

use super::acts::Because;
use super::ask::value;
use super::schedule::times;
use crate::outcome::Outcome;
use serde_json::json;
use std::time::{Duration, Instant};
use windfall_client::{ActsClient, CallError};
use windfall_proto::v1::act_deed::Deed;
use windfall_proto::v1::{
    CarryOutActReply, CarryOutActRequest, CorrectOrders, OrderSelection, SurveyOrdersReply,
    SurveyOrdersRequest,
};

/// How often the command says how far it has come.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// `windfall operate correct …`
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Without --reason and --evidence it only counts, and changes nothing.

First mend or stop what sends the wrong rewards, and wait until those that are on their way are granted. Then count, propose, have it \
approved by another operator, and carry it out. A correction takes from no more orders, and no more in all, than were counted when \
it was proposed.

Example: 100.00 was given for 1.00
  windfall operate correct --activity spring --type cash --from 2027-02-06T12:00:00Z --to 2027-02-06T12:20:00Z \
--min-amount 10000 --max-amount 10000 --keep 100")]
pub struct Correct {
    /// The activity that gave the rewards
    #[arg(long)]
    activity: String,
    /// Only this scene of it
    #[arg(long, default_value = "", hide_default_value = true)]
    scene: String,
    /// The bonus type of the rewards; one correction is of one type
    #[arg(long = "type", value_name = "TYPE")]
    bonus_type: String,
    /// Orders that the ledger took from this time on: 2027-02-06T10:00:00Z, or Unix milliseconds
    #[arg(long, value_name = "TIME", value_parser = times::time_ms)]
    from: u64,
    /// Orders that the ledger took before this time; to propose a correction it must have passed
    #[arg(long, value_name = "TIME", value_parser = times::time_ms)]
    to: u64,
    /// Only orders of at least this amount, in the smallest unit
    #[arg(long, value_name = "AMOUNT", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..))]
    min_amount: i64,
    /// Only orders of at most this amount
    #[arg(long, value_name = "AMOUNT", value_parser = clap::value_parser!(i64).range(1..))]
    max_amount: Option<i64>,
    /// So much of each order is its user's to keep: what would have been right. Orders that a payer paid are left alone then
    #[arg(long, value_name = "AMOUNT", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    keep: i64,
    /// Where a user has spent it, take what is there; otherwise nothing is taken from such a user
    #[arg(long)]
    take_what_is_there: bool,
    /// Propose it, for this reason; kept with the act
    #[arg(long, requires = "evidence")]
    reason: Option<String>,
    /// What proves it, as a ticket; kept with the act
    #[arg(long, requires = "reason")]
    evidence: Option<String>,
    /// Who proposes it; kept beside the name of the key
    #[arg(long, env = "USER", default_value = "")]
    actor: String,
    /// How long it can be approved, in hours
    #[arg(long, default_value_t = 168, value_parser = clap::value_parser!(u32).range(1..=720))]
    valid_h: u32,
}

/// Counts the orders, and says what a correction would take. The correction to propose, where it was asked for and there is
/// anything to take.
pub async fn survey(
    client: &ActsClient,
    asked: &Correct,
    json: bool,
) -> Result<Option<(Deed, Because)>, CallError> {
    let orders = asked.selection();
    let mut sum = SurveyOrdersReply::default();
    let mut told = Instant::now();
    loop {
        let request = SurveyOrdersRequest {
            orders: Some(orders.clone()),
            keep: asked.keep,
            after: std::mem::take(&mut sum.next),
        };
        let part = client.survey(request).await?;
        add(&mut sum, part);
        if sum.next.is_empty() {
            break;
        }
        tell(&mut told, || format!("{} orders found so far", sum.orders));
    }
    let (Some(reason), Some(evidence)) = (&asked.reason, &asked.evidence) else {
        if json {
            println!("{:#}", value(&sum))
        } else {
            asked.print(&sum)
        }
        return Ok(None);
    };
    if !json {
        asked.print(&sum);
    }
    if sum.orders == 0 {
        if json {
            println!("{:#}", json!({ "act": null, "survey": value(&sum) }));
        }
        eprintln!("windfall: there is nothing to take back, so nothing was proposed");
        return Ok(None);
    }
    let deed = CorrectOrders {
        orders: Some(orders),
        keep: asked.keep,
        take_what_is_there: asked.take_what_is_there,
        max_orders: sum.orders,
        max_taken: sum.amount,
    };
    let because = Because::of(reason, evidence, &asked.actor, asked.valid_h);
    Ok(Some((Deed::CorrectOrders(deed), because)))
}

fn add(sum: &mut SurveyOrdersReply, part: SurveyOrdersReply) {
    sum.orders += part.orders;
    sum.amount = sum.amount.saturating_add(part.amount);
    sum.orders_of_payers += part.orders_of_payers;
    sum.short_orders += part.short_orders;
    sum.short_amount = sum.short_amount.saturating_add(part.short_amount);
    sum.orders_taken_back += part.orders_taken_back;
    sum.orders_reserved += part.orders_reserved;
    sum.next = part.next;
}

impl Correct {
    fn selection(&self) -> OrderSelection {
        let ms = |time: u64| i64::try_from(time).unwrap_or(i64::MAX);
        OrderSelection {
            activity: self.activity.clone(),
            scene: self.scene.clone(),
            bonus_type: self.bonus_type.clone(),
            from_ms: ms(self.from),
            to_ms: ms(self.to),
            min_amount: self.min_amount,
            max_amount: self.max_amount.unwrap_or_default(),
        }
    }

    fn print(&self, sum: &SurveyOrdersReply) {
        let bonus_type = &self.bonus_type;
        println!("to take back   {} {bonus_type} of {} credited orders", sum.amount, sum.orders);
        if sum.orders_of_payers > 0 {
            let then = if self.keep == 0 {
                "among them, from the payer's settlement"
            } else {
                "beside them, left alone"
            };
            println!("paid by payers {} orders, {then}", sum.orders_of_payers);
        }
        if sum.short_orders > 0 {
            let then =
                if self.take_what_is_there { "what is there is taken" } else { "nothing is taken from them" };
            println!(
                "spent          {} of {} orders, by the balances as they are now: {then}",
                sum.short_amount, sum.short_orders
            );
        }
        if sum.orders_taken_back > 0 {
            println!("taken back     {} orders before", sum.orders_taken_back);
        }
        if sum.orders_reserved > 0 {
            println!(
                "reserved       {} orders, which may be credited yet: count again then",
                sum.orders_reserved
            );
        }
    }
}

/// Carries a correction out, pass after pass, until a pass decides nothing. Each page is a transaction of its own, so that it may be
/// broken off anywhere. What is missing in the end is damage, and so is an error behind pages that were carried out.
pub async fn carry_out(client: &ActsClient, id: i64, actor: &str, json: bool) -> Result<Outcome, CallError> {
    let mut sum = CarryOutActReply::default();
    let mut told = Instant::now();
    loop {
        let decided = sum.orders + sum.short_orders;
        loop {
            let request =
                CarryOutActRequest { id, after: std::mem::take(&mut sum.next), actor: actor.to_owned() };
            match client.carry_out(request).await {
                Ok(page) => add_page(&mut sum, page),
                Err(error) if sum.orders + sum.short_orders == 0 => return Err(error),
                Err(error) => {
                    report(id, &sum, json);
                    eprintln!("windfall: {error}; what is said above is done, and the rest is not");
                    return Ok(Outcome::Damage);
                }
            }
            if sum.next.is_empty() {
                break;
            }
            tell(&mut told, || format!("{} taken back from {} orders so far", sum.taken, sum.orders));
        }
        if sum.orders + sum.short_orders == decided {
            break;
        }
    }
    report(id, &sum, json);
    Ok(if sum.all_short_orders == 0 { Outcome::Clean } else { Outcome::Damage })
}

fn add_page(sum: &mut CarryOutActReply, page: CarryOutActReply) {
    *sum = CarryOutActReply {
        orders: sum.orders + page.orders,
        taken: sum.taken.saturating_add(page.taken),
        short_orders: sum.short_orders + page.short_orders,
        short_amount: sum.short_amount.saturating_add(page.short_amount),
        ..page
    };
}

fn report(id: i64, sum: &CarryOutActReply, json: bool) {
    if json {
        println!("{:#}", json!({ "act": id.to_string(), "carried_out": value(sum) }));
        return;
    }
    println!("taken back     {} from {} orders", sum.taken, sum.orders);
    if sum.all_orders > sum.orders {
        println!("               with earlier runs {} from {} orders", sum.all_taken, sum.all_orders);
    }
    if sum.all_short_orders > 0 {
        println!(
            "not taken      {} of {} orders: each one's act says why",
            sum.all_short_amount, sum.all_short_orders
        );
    }
    println!("Each order: windfall operate acts --part-of {id}");
}

fn tell(told: &mut Instant, what: impl FnOnce() -> String) {
    if told.elapsed() >= TELL_EVERY {
        *told = Instant::now();
        eprintln!("{}", what());
    }
}
