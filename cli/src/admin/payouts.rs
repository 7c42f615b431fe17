//! `windfall operate payouts` and `acknowledge`: withdrawals that a front end pays out elsewhere, where `payout = "ledger"`.

use super::ask::{more, show, value};
use crate::outcome::Outcome;
use windfall_client::{CallError, PayoutsClient};
use windfall_proto::v1::{AcknowledgePayoutRequest, ListToPayOutRequest, PayoutResult};

/// What is asked of payouts.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Payouts {
    /// List withdrawals that a front end has to pay out elsewhere and that nobody has acknowledged (role pay_out)
    #[command(name = "payouts")]
    List {
        /// Only what is at least this old, in seconds
        #[arg(long, default_value_t = 0)]
        older_than_s: u64,
        /// Only what comes after this mark, which the page before has printed
        #[arg(long, default_value = "")]
        after: String,
        /// The largest number to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// Say how the payout of a withdrawal ended (role pay_out). Safe to repeat
    Acknowledge {
        /// The withdrawal's id
        withdrawal: String,
        /// The user who withdrew it
        #[arg(long)]
        user: i64,
        /// The money has arrived elsewhere
        #[arg(long, required_unless_present = "refused")]
        paid: bool,
        /// The money will certainly never arrive elsewhere, for this reason; it goes back to the balance
        #[arg(long, value_name = "REASON", conflicts_with = "paid")]
        refused: Option<String>,
    },
}

/// Asks a reward service what the command says, and prints the answer.
pub async fn ask(client: &PayoutsClient, command: &Payouts, json: bool) -> Result<Outcome, CallError> {
    match command {
        Payouts::List { older_than_s, after, limit } => {
            let request = ListToPayOutRequest {
                older_than_ms: older_than_s.saturating_mul(1_000),
                after: after.clone(),
                page_size: *limit,
            };
            let reply = client.list(request).await?;
            show(&reply.payouts, json);
            more(!reply.next_after.is_empty(), reply.next_after);
        }
        Payouts::Acknowledge { withdrawal, user, refused, .. } => {
            let result = if refused.is_some() { PayoutResult::Refused } else { PayoutResult::Paid };
            let request = AcknowledgePayoutRequest {
                user_id: *user,
                withdrawal_id: withdrawal.clone(),
                result: result.into(),
                reason: refused.clone().unwrap_or_default(),
            };
            let reply = client.acknowledge(request).await?;
            if json {
                println!("{:#}", value(&reply));
            } else {
                let how = if refused.is_some() { "refused" } else { "paid" };
                let before = if reply.is_new { "" } else { " before" };
                println!("withdrawal {withdrawal} of user {user} was acknowledged as {how}{before}");
            }
        }
    }
    Ok(Outcome::Clean)
}
