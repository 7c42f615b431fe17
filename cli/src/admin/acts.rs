//! `windfall operate settle`, `reverse`, `correct`, `adjust`, `freeze` and `thaw`, which propose an act to the ledger, and `acts`,
//! `act`, `approve`, `refuse` and `carry-out`, by which another operator ends it.

use super::ask::{more, show, value};
use super::correct::{self, Correct};
use super::utc;
use crate::outcome::Outcome;
use serde_json::json;
use windfall_client::{ActsClient, CallError};
use windfall_proto::v1::act_deed::Deed;
use windfall_proto::v1::{
    Act, ActDeed, ActStatus, AdjustAccount, FreezeUser, ListActsRequest, ProposeActRequest, ReleaseOrder,
    ReverseOrder, SettleOrder, SettleWithdrawal, ThawUser,
};

#[derive(Debug, Clone, clap::Subcommand)]
pub enum Acts {
    /// Propose to end an order or a withdrawal that waits for a payer who never answers
    #[command(group(clap::ArgGroup::new("how").required(true).args(["paid", "returned"])))]
    #[command(group(clap::ArgGroup::new("what").required(true).args(["trade_no", "withdrawal"])))]
    Settle {
        /// The order's number
        trade_no: Option<String>,
        /// Instead of an order: the id of a withdrawal
        #[arg(long, value_name = "ID")]
        withdrawal: Option<String>,
        /// The order's activity; needed where several activities have such an order [default: that of the order]
        #[arg(long, default_value = "")]
        activity: String,
        /// The withdrawal's user; needed where several users have such a withdrawal [default: that of the withdrawal]
        #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
        user: i64,
        /// The payer of the order or withdrawal has paid it
        #[arg(long)]
        paid: bool,
        /// The payer of the order or withdrawal has certainly not paid it: the budget of an order is free again, the money of a withdrawal goes back
        #[arg(long)]
        returned: bool,
        #[command(flatten)]
        because: Because,
    },
    /// Propose to take a credited order back: from the user, or from the settlement of the payer that paid it, to its budget
    Reverse {
        /// The order's number
        trade_no: String,
        /// The order's activity; needed where several activities have such an order [default: that of the order]
        #[arg(long, default_value = "")]
        activity: String,
        /// Where the user has spent it, take what is there; otherwise nothing is taken then
        #[arg(long)]
        take_what_is_there: bool,
        /// So much of it is the user's to keep, in the smallest unit
        #[arg(long, value_name = "AMOUNT", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
        keep: i64,
        #[command(flatten)]
        because: Because,
    },
    /// Count what a campaign gave wrongly, and propose to take it back from everybody who got it
    Correct(Box<Correct>),
    /// Propose to give money to a user, or to take it, from or to a budget or an activity's funding
    #[command(group(clap::ArgGroup::new("way").required(true).args(["give", "take"])))]
    #[command(group(clap::ArgGroup::new("from").required(true).args(["scene", "funding"])))]
    Adjust {
        /// The number of the user whose balance changes
        #[arg(allow_hyphen_values = true)]
        user: i64,
        /// Give so much to the user, in the smallest unit
        #[arg(long, value_name = "AMOUNT")]
        give: Option<i64>,
        /// Take so much from the user
        #[arg(long, value_name = "AMOUNT")]
        take: Option<i64>,
        /// The bonus type of the money
        #[arg(long = "type", value_name = "TYPE")]
        bonus_type: String,
        /// The activity whose budget or funding is the other side
        #[arg(long)]
        activity: String,
        /// From, or to, the budget of this scene: what it has given out changes, and it has to have room
        #[arg(long)]
        scene: Option<String>,
        /// From, or to, the activity's funding: no budget changes
        #[arg(long)]
        funding: bool,
        #[command(flatten)]
        because: Because,
    },
    /// Propose that no withdrawal of a user is held from now on; grants go on
    Freeze {
        /// The number of the user who can withdraw nothing from then on
        #[arg(allow_hyphen_values = true)]
        user: i64,
        #[command(flatten)]
        because: Because,
    },
    /// Propose that withdrawals of a frozen user are held again
    Thaw {
        /// The number of the frozen user
        #[arg(allow_hyphen_values = true)]
        user: i64,
        #[command(flatten)]
        because: Because,
    },
    /// List the acts that wait for another operator
    #[command(name = "acts")]
    List {
        /// Those that have ended or expired, too
        #[arg(long)]
        all: bool,
        /// The parts of this correction, one for each order that it has decided
        #[arg(long, value_name = "ID", default_value_t = 0, hide_default_value = true)]
        part_of: i64,
        /// Only acts after this number, which is the last one of the page before
        #[arg(long, default_value_t = 0)]
        after: i64,
        /// The largest number of acts to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// Show an act, and how what it is about stands now
    Act {
        /// The act's number
        id: i64,
    },
    /// Approve an act that another operator has proposed: it is done now, once
    Approve {
        /// The act's number
        id: i64,
        /// Who approves it; kept beside the name of the key
        #[arg(long, env = "USER", default_value = "")]
        actor: String,
    },
    /// Carry an approved correction out: it takes the orders back, page by page, and may be run again at any time
    CarryOut {
        /// The act's number
        id: i64,
        /// Who does it; noted in the log beside the name of the key
        #[arg(long, env = "USER", default_value = "")]
        actor: String,
    },
    /// Refuse an act, also one's own
    Refuse {
        /// The act's number
        id: i64,
        /// Why; kept with the act
        #[arg(long, default_value = "")]
        reason: String,
        /// Who refuses it; kept beside the name of the key
        #[arg(long, env = "USER", default_value = "")]
        actor: String,
    },
}

/// Why an act is proposed.
#[derive(Debug, Clone, clap::Args)]
pub struct Because {
    /// Why; kept with the act
    #[arg(long)]
    reason: String,
    /// What proves it, as a ticket or a line of the payer's statement. The same act with the same reason and evidence is one
    /// act: if the answer is lost, run the command again
    #[arg(long)]
    evidence: String,
    /// Who proposes it; kept beside the name of the key
    #[arg(long, env = "USER", default_value = "")]
    actor: String,
    /// How long it can be approved, in hours
    #[arg(long, default_value_t = 168, value_parser = clap::value_parser!(u32).range(1..=720))]
    valid_h: u32,
}

/// Asks it. An act that waits for another operator is no damage; one that was approved and could not be done is.
pub async fn ask(client: &ActsClient, command: &Acts, json: bool) -> Result<Outcome, CallError> {
    match command {
        Acts::List { all, part_of, after, limit } => {
            // Parts have ended when they are there.
            let open = !all && *part_of == 0;
            let request = ListActsRequest { open, after: *after, page_size: *limit, part_of: *part_of };
            let reply = client.list(request).await?;
            if json {
                show(&reply.acts, true);
            } else {
                reply.acts.iter().for_each(|act| println!("{}", line(act)));
            }
            more(reply.next_after != 0, reply.next_after);
            Ok(Outcome::Clean)
        }
        Acts::Act { id } => {
            print(&client.get(*id).await?, json, None);
            Ok(Outcome::Clean)
        }
        Acts::Approve { id, actor } => {
            let reply = client.approve(*id, actor.clone()).await?;
            let act = reply.act.unwrap_or_default();
            print(&act, json, Some(("was_ended", reply.was_ended)));
            let is_done = act.status() == ActStatus::Done;
            if is_done && !json && matches!(act.deed, Some(ActDeed { deed: Some(Deed::CorrectOrders(_)) })) {
                println!("Carry it out with: windfall operate carry-out {}", act.id);
            }
            Ok(if is_done { Outcome::Clean } else { Outcome::Damage })
        }
        Acts::CarryOut { id, actor } => correct::carry_out(client, *id, actor, json).await,
        Acts::Correct(asked) => match correct::survey(client, asked, json).await? {
            None => Ok(Outcome::Clean),
            Some((deed, because)) => propose(client, Some(deed), &because, json).await,
        },
        Acts::Refuse { id, reason, actor } => {
            let reply = client.refuse(*id, actor.clone(), reason.clone()).await?;
            let act = reply.act.unwrap_or_default();
            print(&act, json, Some(("was_ended", reply.was_ended)));
            Ok(if act.status() == ActStatus::Refused { Outcome::Clean } else { Outcome::Damage })
        }
        Acts::Settle { because, .. }
        | Acts::Reverse { because, .. }
        | Acts::Adjust { because, .. }
        | Acts::Freeze { because, .. }
        | Acts::Thaw { because, .. } => propose(client, deed(command), because, json).await,
    }
}

/// Proposes to release an order that waits for its payer.
pub async fn release(
    client: &ActsClient,
    (activity, trade_no): (String, String),
    because: &Because,
    json: bool,
) -> Result<Outcome, CallError> {
    let deed = Deed::ReleaseOrder(ReleaseOrder { activity, trade_no });
    propose(client, Some(deed), because, json).await
}

impl Because {
    /// For commands to which it is an option.
    pub fn of(reason: &str, evidence: &str, actor: &str, valid_h: u32) -> Self {
        Self { reason: reason.into(), evidence: evidence.into(), actor: actor.into(), valid_h }
    }
}

fn deed(command: &Acts) -> Option<Deed> {
    Some(match command.clone() {
        Acts::Settle { trade_no: Some(trade_no), activity, paid, .. } => {
            Deed::SettleOrder(SettleOrder { activity, trade_no, paid })
        }
        Acts::Settle { withdrawal, user, paid, .. } => Deed::SettleWithdrawal(SettleWithdrawal {
            user_id: user,
            withdrawal_id: withdrawal.unwrap_or_default(),
            paid,
        }),
        Acts::Reverse { trade_no, activity, take_what_is_there, keep, .. } => {
            Deed::ReverseOrder(ReverseOrder { activity, trade_no, take_what_is_there, keep })
        }
        Acts::Adjust { user, give, take, bonus_type, activity, scene, .. } => {
            Deed::AdjustAccount(AdjustAccount {
                user_id: user,
                activity,
                scene: scene.unwrap_or_default(),
                bonus_type,
                amount: give.or(take).unwrap_or_default(),
                to_user: give.is_some(),
            })
        }
        Acts::Freeze { user, .. } => Deed::FreezeUser(FreezeUser { user_id: user }),
        Acts::Thaw { user, .. } => Deed::ThawUser(ThawUser { user_id: user }),
        Acts::List { .. }
        | Acts::Act { .. }
        | Acts::Approve { .. }
        | Acts::CarryOut { .. }
        | Acts::Correct(_)
        | Acts::Refuse { .. } => return None,
    })
}

async fn propose(
    client: &ActsClient,
    deed: Option<Deed>,
    because: &Because,
    json: bool,
) -> Result<Outcome, CallError> {
    let Because { reason, evidence, actor, valid_h } = because.clone();
    let deed = Some(ActDeed { deed });
    let valid_s = valid_h.saturating_mul(3_600);
    let reply = client.propose(ProposeActRequest { deed, reason, evidence, actor, valid_s }).await?;
    let act = reply.act.unwrap_or_default();
    print(&act, json, Some(("is_repeat", reply.is_repeat)));
    if !json && act.status() == ActStatus::Open {
        println!("Another operator approves it with: windfall operate approve {}", act.id);
    }
    Ok(Outcome::Clean)
}

fn time(ms: i64) -> String {
    utc(u64::try_from(ms).unwrap_or(0))
}

fn word(act: &Act) -> String {
    act.status().as_str_name().trim_start_matches("ACT_STATUS_").to_lowercase().replace('_', " ")
}

/// A deed as its JSON on the wire, in one line.
fn what(act: &Act) -> String {
    act.deed.as_ref().map(|deed| value(deed).to_string()).unwrap_or_default()
}

fn line(act: &Act) -> String {
    format!("{}  {}  {}  by {}  {}", act.id, word(act), time(act.proposed_ms), act.proposed_by, what(act))
}

fn print(act: &Act, json: bool, flag: Option<(&str, bool)>) {
    if json {
        let mut shown = json!({ "act": value(act) });
        if let (Some((name, is)), Some(object)) = (flag, shown.as_object_mut()) {
            object.insert(name.into(), is.into());
        }
        println!("{shown:#}");
        return;
    }
    println!("act       {}, {}", act.id, word(act));
    println!("deed      {}", what(act));
    if !act.about.is_empty() {
        println!("about     {}", act.about);
    }
    println!("reason    {}", act.reason);
    println!("evidence  {}", act.evidence);
    println!("proposed  {} by {}, until {}", time(act.proposed_ms), act.proposed_by, time(act.expires_ms));
    if act.ended_ms != 0 {
        println!("ended     {} by {}: {}", time(act.ended_ms), act.ended_by, act.detail);
    }
    match flag {
        Some(("was_ended", true)) => println!("It had ended before; this call did nothing."),
        Some(("is_repeat", true)) => println!("It was proposed before; this call did nothing."),
        _ => {}
    }
}
