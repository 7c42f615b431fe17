//! `windfall operate statement` and `withdrawals`: what moved a user's accounts, with balances, and what a user took out, or what
//! all users take out that is held.

use super::ask::{more, show, value};
use super::schedule::times;
use super::utc;
use crate::outcome::Outcome;
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};
use windfall_client::{ArchiveClient, CallError};
use windfall_proto::v1::{
    FlowKind, GetStatementReply, GetStatementRequest, LedgerWithdrawal, ListWithdrawalsRequest,
    StatementLine, WithdrawalStatus,
};

#[derive(Debug, Clone, clap::Subcommand)]
pub enum OfUser {
    /// Show what moved a user's accounts, newest first, with the balance after each line
    #[command(group(clap::ArgGroup::new("from").args(["after", "at"])))]
    Statement {
        /// The number of the user
        #[arg(value_parser = clap::value_parser!(i64).range(1..))]
        user: i64,
        /// The lines behind the page before, which has told this cursor
        #[arg(long, value_name = "CURSOR")]
        after: Option<String>,
        /// The statement and the balances as they were at this time: 2027-02-06T10:00:00Z, or Unix milliseconds. A time of whole
        /// seconds is the end of its second
        #[arg(long, value_name = "TIME", value_parser = at_ms)]
        at: Option<i64>,
        /// The largest number of lines to show
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// List a user's withdrawals as they stand now, the one that was held last first; or with --status held those of all users, by
    /// the time at which they were held
    Withdrawals {
        /// The number of the user; without it, those of all users that are held
        #[arg(required_unless_present = "status", value_parser = clap::value_parser!(i64).range(1..))]
        user: Option<i64>,
        /// Only those that stand so
        #[arg(long)]
        status: Option<Standing>,
        /// Of all users: the one that was held first comes first
        #[arg(long, conflicts_with = "user")]
        oldest_first: bool,
        /// Of all users: only those that were held at this time or later: 2027-02-06T10:00:00Z, or Unix milliseconds
        #[arg(long, value_name = "TIME", conflicts_with = "user", value_parser = times::time_ms)]
        from: Option<u64>,
        /// Of all users: only those that were held before this time
        #[arg(long, value_name = "TIME", conflicts_with = "user", value_parser = times::time_ms)]
        to: Option<u64>,
        /// The withdrawals behind the page before, which has told this cursor
        #[arg(long, value_name = "CURSOR", default_value = "")]
        after: String,
        /// The largest number to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
}

/// How a withdrawal stands.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Standing {
    /// Its payer has not said whether it paid
    Held,
    /// It was paid
    Paid,
    /// Its payer refused it, and the money is back on the balance
    Refused,
}

/// A time as the table shows it, in whole seconds, means all of its second, so that the line that shows it is there. In a
/// request 0 stands for the present; a millisecond later nothing had moved either.
fn at_ms(text: &str) -> Result<i64, String> {
    let given = i64::try_from(times::time_ms(text)?).unwrap_or(i64::MAX);
    Ok(if text.ends_with('Z') { given.saturating_add(999) } else { given.max(1) })
}

/// Asks a reward service what the command says, and prints the answer.
pub async fn ask(client: &ArchiveClient, command: &OfUser, json: bool) -> Result<Outcome, CallError> {
    match command.clone() {
        OfUser::Statement { user, after, at, limit } => {
            let reply = client
                .statement(GetStatementRequest {
                    user_id: user,
                    page_size: limit,
                    after: after.unwrap_or_default(),
                    at_ms: at.unwrap_or_default(),
                })
                .await?;
            if json {
                println!("{:#}", value(&reply));
            } else {
                println!("{}", told(&reply));
            }
            more(!reply.next_after.is_empty(), reply.next_after);
        }
        OfUser::Withdrawals { user, status, oldest_first, from, to, after, limit } => {
            let status = match status {
                None => WithdrawalStatus::Unspecified,
                Some(Standing::Held) => WithdrawalStatus::Held,
                Some(Standing::Paid) => WithdrawalStatus::Paid,
                Some(Standing::Refused) => WithdrawalStatus::Refused,
            };
            let ms = |time: Option<u64>| i64::try_from(time.unwrap_or(0)).unwrap_or(i64::MAX);
            let request = ListWithdrawalsRequest {
                user_id: user.unwrap_or(0),
                status: status.into(),
                after,
                page_size: limit,
                oldest_first,
                from_ms: ms(from),
                to_ms: ms(to),
            };
            let (found, after) = withdrawals(client, request).await?;
            if json || found.is_empty() {
                show(&found, json);
            } else {
                println!("{}", listed(&found, !after.is_empty()));
            }
            more(!after.is_empty(), after);
        }
    }
    Ok(Outcome::Clean)
}

/// As many withdrawals as one page may have, and the cursor behind them. A page may have fewer than it was asked for, and none,
/// though another one follows.
async fn withdrawals(
    client: &ArchiveClient,
    mut request: ListWithdrawalsRequest,
) -> Result<(Vec<LedgerWithdrawal>, String), CallError> {
    let mut found = Vec::new();
    loop {
        let page = client.withdrawals(request.clone()).await?;
        let count = u32::try_from(page.withdrawals.len()).unwrap_or(u32::MAX);
        request.page_size = request.page_size.saturating_sub(count);
        found.extend(page.withdrawals);
        // A page size of 0 stands for another one.
        if page.next_after.is_empty() || request.page_size == 0 {
            return Ok((found, page.next_after));
        }
        request.after = page.next_after;
    }
}

fn time(ms: i64) -> String {
    utc(u64::try_from(ms).unwrap_or(0))
}

/// The name of an enum's value, as people write it.
fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase().replace('_', " ")
}

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header(head);
    table
}

/// What a line changes in the balance; in brackets what changes none.
fn amount(line: &StatementLine) -> String {
    match line.kind() {
        FlowKind::Credit | FlowKind::Return => format!("+{}", line.amount),
        FlowKind::Withdrawal | FlowKind::TakenBack => format!("-{}", line.amount),
        _ => format!("({})", line.amount),
    }
}

/// How many rows a table has, and whether these are all.
fn count(rows: usize, is_more: bool) -> String {
    format!("{rows} {}", if is_more { "shown" } else { "in all" })
}

fn told(page: &GetStatementReply) -> String {
    let mut text = String::new();
    for one in &page.balances {
        text.push_str(&format!("balance   {} {}\n", one.balance, one.bonus_type));
    }
    if page.lines.is_empty() {
        return text + "none";
    }
    let mut table =
        table(&["transfer", "time", "what", "amount", "type", "balance", "reference", "activity"]);
    for line in &page.lines {
        table.add_row([
            line.transfer.to_string(),
            time(line.time_ms),
            word(line.kind().as_str_name(), "FLOW_KIND_"),
            amount(line),
            line.bonus_type.clone(),
            line.balance.to_string(),
            line.reference.clone(),
            line.activity.clone(),
        ]);
    }
    format!("{text}{table}\n{}", count(page.lines.len(), !page.next_after.is_empty()))
}

fn listed(withdrawals: &[LedgerWithdrawal], is_more: bool) -> String {
    let mut table =
        table(&["withdrawal", "user", "status", "amount", "type", "held", "ended", "payer", "reason"]);
    for one in withdrawals {
        let ended = if one.decided_ms == 0 { String::new() } else { time(one.decided_ms) };
        table.add_row([
            one.withdrawal_id.clone(),
            one.user_id.to_string(),
            word(one.status().as_str_name(), "WITHDRAWAL_STATUS_"),
            one.amount.to_string(),
            one.bonus_type.clone(),
            time(one.held_ms),
            ended,
            one.payer.clone(),
            one.reason.clone(),
        ]);
    }
    format!("{table}\n{}", count(withdrawals.len(), is_more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_proto::v1::StatementBalance;

    #[test]
    fn a_statement_reads_from_the_newest_line_back() {
        let line = |kind: FlowKind, reference: &str, amount, balance| StatementLine {
            transfer: 9,
            kind: kind.into(),
            reference: reference.into(),
            bonus_type: "cash".into(),
            amount,
            activity: String::new(),
            time_ms: 1_801_915_199_000,
            balance,
        };
        let page = GetStatementReply {
            balances: vec![StatementBalance { bonus_type: "cash".into(), balance: 5 }],
            lines: vec![
                line(FlowKind::Withdrawal, "w", 4, 5),
                line(FlowKind::Settled, "b", 7, 9),
                line(FlowKind::Credit, "a", 9, 9),
            ],
            next_after: String::new(),
        };
        let text = told(&page);
        assert!(text.starts_with("balance   5 cash\n") && text.ends_with("3 in all"), "{text}");
        for shown in ["2027-02-06T11:59:59Z", "withdrawal", "-4", "settled", "(7)", "+9"] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
        let text = told(&GetStatementReply { next_after: "7/1:1:1".into(), ..page });
        assert!(text.ends_with("3 shown"), "{text}");
        assert_eq!(told(&GetStatementReply::default()), "none");
    }

    #[test]
    fn withdrawals_show_when_they_ended() {
        let held = LedgerWithdrawal {
            withdrawal_id: "w".into(),
            status: WithdrawalStatus::Held.into(),
            held_ms: 951_782_400_000,
            payer: "bank".into(),
            ..LedgerWithdrawal::default()
        };
        let refused = LedgerWithdrawal {
            status: WithdrawalStatus::Refused.into(),
            decided_ms: 1_801_915_199_000,
            reason: "closed account".into(),
            ..held.clone()
        };
        let text = listed(std::slice::from_ref(&held), true);
        assert!(
            text.contains("held")
                && text.contains("2000-02-29T00:00:00Z")
                && !text.contains("1970")
                && text.ends_with("1 shown"),
            "{text}"
        );
        let text = listed(&[held, refused], false);
        assert!(text.contains("refused") && text.contains("2027-02-06T11:59:59Z"), "{text}");
        assert!(text.contains("closed account") && text.ends_with("2 in all"), "{text}");
    }

    #[test]
    fn the_time_of_a_statement_is_never_that_of_the_present() {
        assert_eq!(["0", "5", "2000"].map(at_ms), [Ok(1), Ok(5), Ok(2_000)]);
        assert!(at_ms("soon").is_err());
    }

    #[test]
    fn a_time_of_whole_seconds_has_the_lines_that_show_it() {
        assert_eq!(at_ms("1970-01-01T00:00:02Z"), Ok(2_999));
    }
}
