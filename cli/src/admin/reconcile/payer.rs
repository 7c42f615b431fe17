//! `windfall reconcile --statement`: what a payer says that it has paid against the ledger.

use super::super::ask::{more, show, value};
use super::super::schedule::times::time_ms;
use super::lines::{self, Totals};
use super::upload::{UploadName, upload};
use super::{ReconcileArgs, at};
use crate::outcome::Outcome;
use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use windfall_client::{AuditsClient, CallError};
use windfall_proto::v1::{
    BeginPayerStatementRequest, ComparePayerStatementRequest, Difference, ListDifferencesRequest,
    ListPayerStatementsRequest, PayerStatement, PayerStatementState,
};

/// How often the progress is told.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Arguments about payers' statements.
#[derive(Debug, Clone, clap::Args)]
pub struct PayerArgs {
    /// The payer that hands the statement out: the name of its connector, or `front end`
    #[arg(long, requires = "server")]
    payer: Option<String>,
    /// Compare this statement of a payer with the ledger: a CSV file with a header and the columns key, type and amount (in the
    /// smallest unit), perhaps status (paid or returned); `-` for standard input. The exit code is 0 if both sides agree, 1 if
    /// they differ, and 2 if a line is wrong, which is named, or the auditor does not answer
    #[arg(long, value_name = "FILE", requires_all = ["server", "payer", "from", "to"], conflicts_with_all = ["acknowledge", "resolve", "statements"])]
    statement: Option<PathBuf>,
    /// The beginning of the period that the statement is about: 2027-02-06T00:00:00Z, or Unix milliseconds
    #[arg(long, value_name = "TIME", requires = "statement", value_parser = time_ms)]
    from: Option<u64>,
    /// The end of that period: the first moment that is no longer part of it
    #[arg(long, value_name = "TIME", requires = "statement", value_parser = time_ms)]
    to: Option<u64>,
    /// Seconds at both ends of the period in which a payment that the statement lacks is not claimed: more than the clocks
    /// differ, and more than the payer takes to list a payment. It can be compared when they have passed
    #[arg(long, requires = "statement", default_value_t = 3_600, value_parser = clap::value_parser!(u32).range(0..=2_592_000))]
    margin_s: u32,
    /// Upload and compare the file anew, as the upload of this number. Otherwise the same file for the same payer, period and margin
    /// continues the upload that was begun before, or shows the result of the one that was compared before
    #[arg(long, value_name = "N", requires = "statement", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    again: u32,
    /// List the payers' statements that were uploaded, newest first; of one payer with --payer
    #[arg(long, requires = "server", conflicts_with_all = ["acknowledge", "resolve"])]
    statements: bool,
}

impl PayerArgs {
    /// Whether a statement is to be compared, or statements are listed.
    pub fn is_asked(&self) -> bool {
        self.statement.is_some() || self.statements
    }
}

/// Compares a payer's statement with the ledger, or lists those that were uploaded.
pub async fn run(client: &AuditsClient, args: &ReconcileArgs) -> Result<Outcome> {
    let own = &args.payer;
    let (Some(file), Some(payer), Some(from), Some(to)) = (&own.statement, &own.payer, own.from, own.to)
    else {
        return list(client, args).await.context("the auditor has not answered as it should");
    };
    let mut source = open(file)?;
    let [from_ms, to_ms] = [from, to].map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
    let unread = UploadName::new(payer, [from_ms, to_ms], own.margin_s, own.again);
    let mut name = unread.clone();
    let mut totals = Totals::default();
    lines::read(BufReader::new(&source), |line| {
        name.add(&line);
        totals.add(&line)
    })?;
    source.rewind().context("the statement cannot be read again")?;
    let begin = BeginPayerStatementRequest {
        upload: name.text(),
        payer: payer.clone(),
        from_ms,
        to_ms,
        margin_s: Some(own.margin_s),
        actor: args.actor.clone(),
    };
    let mut progress = Progress::new(totals.lines);
    let found = upload(client, &begin, unread, source, &mut progress).await?;
    tell_found(&found, own.again);
    let statement = compare(client, found.id, &totals, &mut progress)
        .await
        .context("the statement cannot be compared")?;
    let found = differences(client, args, &statement).await.context("the differences cannot be listed")?;
    tell(args, &statement, &found);
    Ok(if statement.differences == 0 { Outcome::Clean } else { Outcome::Damage })
}

/// Opens the file. It is read twice, so that nothing is sent of one that has a wrong line; what comes from standard input is
/// therefore kept in a file without a name.
fn open(path: &Path) -> Result<File> {
    if path == Path::new("-") {
        let mut kept = tempfile::tempfile().context("standard input cannot be kept in a file meanwhile")?;
        std::io::copy(&mut std::io::stdin().lock(), &mut kept).context("standard input cannot be read")?;
        kept.rewind().context("the statement cannot be read again")?;
        return Ok(kept);
    }
    let file = File::open(path).with_context(|| format!("{} cannot be opened", path.display()))?;
    let is_file = file.metadata().is_ok_and(|about| about.is_file());
    if !is_file {
        bail!("{} is no file; give a pipe's text by `--statement -`", path.display());
    }
    Ok(file)
}

/// Says that an earlier call has begun the upload, or has ended it.
fn tell_found(found: &PayerStatement, again: u32) {
    if found.state() == PayerStatementState::Compared {
        eprintln!(
            "this file was compared before, at {}, as statement {}, whose result follows. Give --again {} to upload and compare it anew",
            at(found.compared_ms),
            found.id,
            again + 1
        );
    } else if found.lines > 0 {
        eprintln!(
            "statement {} had {} lines from an earlier upload, which was continued",
            found.id, found.lines
        );
    }
}

/// Tells how far it has come, where that takes longer than a moment.
pub struct Progress {
    lines: u64,
    told: Instant,
}

impl Progress {
    fn new(lines: u64) -> Self {
        Self { lines, told: Instant::now() }
    }

    /// Tells how many lines were done.
    pub fn tell(&mut self, what: &str, done: u64) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            eprintln!("{what} {done} of {} lines", self.lines);
        }
    }

    fn tell_ledger(&mut self) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            eprintln!("compared all lines; the ledger's payments are being read");
        }
    }
}

async fn compare(
    client: &AuditsClient,
    statement: i64,
    totals: &Totals,
    progress: &mut Progress,
) -> Result<PayerStatement, CallError> {
    let request = ComparePayerStatementRequest { statement, lines: totals.lines, paid: totals.paid() };
    loop {
        let done = client.compare_statement(request.clone()).await?;
        match done.state() {
            PayerStatementState::Compared => return Ok(done),
            _ if done.compared_lines < done.lines => progress.tell("compared", done.compared_lines),
            _ => progress.tell_ledger(),
        }
    }
}

/// The differences of the statement, at most as many as are asked for.
async fn differences(
    client: &AuditsClient,
    args: &ReconcileArgs,
    statement: &PayerStatement,
) -> Result<Vec<Difference>, CallError> {
    if statement.differences == 0 {
        return Ok(Vec::new());
    }
    let request = ListDifferencesRequest {
        after: args.after,
        limit: args.limit,
        statement: statement.id,
        ..ListDifferencesRequest::default()
    };
    Ok(client.list(request).await?.differences)
}

fn tell(args: &ReconcileArgs, statement: &PayerStatement, found: &[Difference]) {
    let agrees = statement.differences == 0;
    if args.json {
        let differences: Vec<_> = found.iter().map(value).collect();
        let all = json!({"agrees": agrees, "statement": value(statement), "differences": differences});
        println!("{all:#}");
        return;
    }
    if !found.is_empty() {
        show(found, false);
    }
    println!("{}", sums(statement));
    let end = match (agrees, statement.unclear) {
        (true, 0) => "both sides agree".to_owned(),
        (false, 0) => format!("{} differences", statement.differences),
        (true, unclear) => format!("both sides agree, but {}", not_clear(unclear)),
        (false, unclear) => {
            format!("{} differences, and {}", statement.differences, not_clear(unclear))
        }
    };
    println!(
        "statement {} of payer {}, {} to {}: {} lines; {end}",
        statement.id,
        statement.payer,
        at(statement.from_ms),
        at(statement.to_ms),
        statement.lines
    );
    let is_more = u64::try_from(found.len()).unwrap_or(0) < statement.differences;
    more(is_more, found.last().map_or(0, |last| last.id));
}

fn not_clear(unclear: u64) -> String {
    format!(
        "{unclear} payments may stand in the statement of the period before: compare that one, then this one anew with --again"
    )
}

/// Both sides by bonus type.
fn sums(statement: &PayerStatement) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header([
        "type",
        "lines",
        "statement",
        "agreed lines",
        "agreed",
        "payments by the ledger's clock",
        "ledger",
    ]);
    for sum in &statement.sums {
        table.add_row([
            sum.bonus_type.clone(),
            sum.lines.to_string(),
            sum.amount.to_string(),
            sum.agreed_lines.to_string(),
            sum.agreed_amount.to_string(),
            sum.ledger_payments.to_string(),
            sum.ledger_amount.to_string(),
        ]);
    }
    table
}

async fn list(client: &AuditsClient, args: &ReconcileArgs) -> Result<Outcome, CallError> {
    let payer = args.payer.payer.clone().unwrap_or_default();
    let request = ListPayerStatementsRequest { payer, before: args.after, limit: args.limit };
    let page = client.statements(request).await?;
    if args.json {
        show(&page.statements, true);
    } else {
        let mut table = Table::new();
        table.load_style(UTF8_BORDERS_ONLY).set_header([
            "id",
            "payer",
            "from",
            "to",
            "lines",
            "state",
            "differences",
            "uploaded",
            "by",
        ]);
        for one in &page.statements {
            let state = match one.state() {
                PayerStatementState::Compared => "compared",
                PayerStatementState::Comparing => "comparing",
                _ => "uploading",
            };
            table.add_row([
                one.id.to_string(),
                one.payer.clone(),
                at(one.from_ms),
                at(one.to_ms),
                one.lines.to_string(),
                state.to_owned(),
                one.differences.to_string(),
                at(one.begun_ms),
                one.actor.clone(),
            ]);
        }
        println!("{table}");
    }
    more(page.next_before != 0, page.next_before);
    Ok(Outcome::Clean)
}
