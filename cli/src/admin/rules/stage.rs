//! Has some processes try a change of limits or pacing: `windfall rules stage`, `promote`, `abort`.

use super::change::{Common, FuseState, Made, found, make_change};
use super::{now_ms, read, utc};
use crate::admin::schedule::times::duration_ms;
use crate::outcome::Outcome;
use anyhow::{Context, Result, bail};
use clap::ValueEnum as _;
use serde_json::json;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;
use windfall_config::{
    Bucket, ChangeRules, Difference, ProcessStatus, REMARK_MAX_BYTES, REPORT_EVERY_MS, RulesEdit, SetError,
    StageError, StageFor, Trial, Triers, Written, check_remarks, parse_rules, shortened_reasons, trial,
};
use windfall_contract::rules::{Guards, Rules, Staged};

/// The pause between two looks at what processes report.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// `windfall rules stage`
#[derive(Debug, Clone, clap::Args)]
pub struct StageArgs {
    #[command(flatten)]
    common: Common,
    /// The file of the whole document with the change made; - means standard input. It may differ in limits, fuses,
    /// priorities and pacing
    #[arg(required_unless_present_any = ["limit", "fuse"], conflicts_with_all = ["limit", "fuse"])]
    document: Option<PathBuf>,
    /// The limit of a bonus type that is tried, in events per second, with its burst if that is to change, too. The limit over
    /// all types is tried by a document
    #[arg(long, value_name = "TYPE=RATE[:BURST]")]
    limit: Vec<String>,
    /// The fuse of a bonus type that is tried: closed, pause or divert
    #[arg(long, value_name = "TYPE=STATE")]
    fuse: Vec<String>,
    /// A process that tries the change, by its name in `windfall rules status`; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with = "percent", required_unless_present = "percent")]
    process: Vec<String>,
    /// Per cent of the processes with consumers that try the change, at least one. The command chooses them, and prints
    /// their names
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    percent: Option<u8>,
    /// How long the change is tried before it counts as proven. A minute after that every process gives the change up,
    /// unless it was promoted
    #[arg(long = "for", value_name = "DURATION", default_value = "10m", value_parser = duration_ms)]
    proven_after_ms: u64,
    /// A process gives the change up if an event that waits in one of its lanes has been in its memory for more than this, in
    /// ms: 1000 to 86400000
    #[arg(long, value_name = "MS")]
    oldest_max_ms: Option<u64>,
    /// A process gives the change up if more than this share of its grants within ten seconds failed, in per cent: 0 to 99
    #[arg(long, value_name = "PERCENT")]
    failed_max_percent: Option<u8>,
    /// A process gives the change up if a topic has more records than this that were not committed
    #[arg(long, value_name = "RECORDS")]
    lag_max_records: Option<u64>,
    /// A process gives the change up if the p99 of the time from send to credit is longer than this, in ms: 10 to 86400000. It
    /// counts the rewards that the process credited within ten seconds, and says nothing where they are fewer than 100
    #[arg(long, value_name = "MS")]
    latency_p99_max_ms: Option<u64>,
    /// A process gives the change up if a budget that the change touches lasts for less than this at the pace of the last
    /// minute, in ms: 60000 to 2592000000
    #[arg(long, value_name = "MS")]
    budget_lasts_min_ms: Option<u64>,
    /// Say what would be staged and for whom, and change nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Wait until the change has proven itself and promote it then, or take it back where a process gives it up. If the
    /// command is interrupted, the change stays staged; `windfall rules promote --wait` goes on waiting
    #[arg(long)]
    wait: bool,
}

/// `windfall rules promote`
#[derive(Debug, Clone, clap::Args)]
pub struct PromoteArgs {
    #[command(flatten)]
    common: Common,
    /// Wait until the change has proven itself and promote it then, or take it back where a process gives it up
    #[arg(long, conflicts_with = "force")]
    wait: bool,
    /// Promote the change even if a process has given it up or does not report, or before its time is over
    #[arg(long)]
    force: bool,
}

/// `windfall rules abort`
#[derive(Debug, Clone, clap::Args)]
pub struct AbortArgs {
    #[command(flatten)]
    common: Common,
}

/// Stages a change.
pub fn stage(args: &StageArgs) -> Result<Outcome> {
    let common = &args.common;
    let store = common.store()?;
    let unchanged = || format!("{} stays as it is", common.place);
    let guards = guards(args);
    let who = StageFor {
        processes: triers(args).choose(&store.reports()?, &guards, now_ms()).with_context(unchanged)?,
        guards,
        proven_after_ms: args.proven_after_ms,
    };
    let wanted = |text: &str| -> Result<String> {
        let rules = wanted(args, text)?;
        Ok(windfall_config::stage(text, &rules, &who, now_ms())?)
    };
    if args.dry_run {
        let text = store.show()?;
        let found = found(&text, &wanted(&text).with_context(unchanged)?)?;
        report(common, "would be staged", &found, None, &who.processes, &[])?;
        return Ok(Outcome::Clean);
    }
    let made = change(common, store.as_ref(), "stage", false, wanted)?;
    if !(args.wait && common.json) {
        report(common, "staged", &made.found, Some(made.written), &who.processes, &[])?;
    }
    if !args.wait {
        return Ok(Outcome::Clean);
    }
    if who.guards == Guards::default() {
        eprintln!("no guard was given, so the change fails only where a process ends or does not report");
    }
    match parse_rules(&made.text, None)?.staged {
        Some(staged) => wait(common, store.as_ref(), &staged),
        None => Err(StageError::Nothing.into()),
    }
}

/// Makes the staged change for all.
pub fn promote(args: &PromoteArgs) -> Result<Outcome> {
    let store = args.common.store()?;
    if args.wait {
        let Some(staged) = parse_rules(&store.show()?, None)?.staged else { bail!(StageError::Nothing) };
        return wait(&args.common, store.as_ref(), &staged);
    }
    promote_now(&args.common, store.as_ref(), args.force)?;
    Ok(Outcome::Clean)
}

/// Takes the staged change back.
pub fn abort(args: &AbortArgs) -> Result<Outcome> {
    let store = args.common.store()?;
    abort_now(&args.common, store.as_ref(), &[])?;
    Ok(Outcome::Clean)
}

/// How the staged change stands, for `windfall rules status`.
pub fn standing(staged: &Staged, reports: &[ProcessStatus], now_ms: u64) -> Vec<String> {
    let names = staged.processes.join(", ");
    let mut lines = vec![format!("a change is staged since {} for {names}", utc(staged.since_ms))];
    let guards = staged.guards.named().into_iter();
    let guards: Vec<_> = guards.filter_map(|(key, bound)| Some(format!("{key} = {}", bound?))).collect();
    lines.push(match guards.as_slice() {
        [] => "  without guards".to_owned(),
        guards => format!("  guards: {}", guards.join(", ")),
    });
    lines.push(match trial(staged, reports, now_ms) {
        Trial::Running { left_ms } => format!("  it counts as proven in {} s", left_ms.div_ceil(1000)),
        Trial::Proven => format!("  it has proven itself; promote it before {}", utc(staged.until_ms)),
        Trial::Failed(reasons) => format!("  it has failed, take it back: {}", shortened_reasons(&reasons)),
    });
    lines
}

fn promote_now(common: &Common, store: &dyn ChangeRules, is_forced: bool) -> Result<()> {
    let promoted = |text: &str| {
        let reports = store.reports()?;
        Ok(windfall_config::promote(text, &reports, is_forced, now_ms())?)
    };
    let made = change(common, store, "promote", is_forced, promoted)?;
    report(common, "promoted", &made.found, Some(made.written), &[], &[])
}

fn abort_now(common: &Common, store: &dyn ChangeRules, reasons: &[String]) -> Result<()> {
    let what = match reasons {
        [] => "abort".to_owned(),
        reasons => format!("abort, since {}", shortened_reasons(reasons)),
    };
    let made = change(common, store, &what, false, |text| Ok(windfall_config::abort(text)?))?;
    report(common, "taken back", &made.found, Some(made.written), &[], reasons)
}

/// Waits until this change has proven itself or failed, and promotes it or takes it back. What cannot be read or written
/// for a moment ends nothing: the processes watch their guards by themselves.
fn wait(common: &Common, store: &dyn ChangeRules, first: &Staged) -> Result<Outcome> {
    // Nobody waits for ten minutes to hear that the promotion has no reason.
    check_remarks(&common.remark.who(), &reason("promote", &common.remark.why))?;
    let (mut told, mut told_error) = (None, String::new());
    // Where the place was away, no process could report there either.
    let mut blind_until_ms = 0;
    loop {
        let looked =
            (|| -> Result<_> { Ok((parse_rules(&store.show()?, None)?.staged, store.reports()?)) })();
        let done = match looked {
            Ok((Some(now), reports)) if now.since_ms == first.since_ms => {
                match trial(&now, &reports, now_ms()) {
                    Trial::Running { left_ms } => {
                        progress(&mut told, left_ms);
                        None
                    }
                    Trial::Failed(_) if now_ms() < blind_until_ms => None,
                    Trial::Proven => {
                        progress_end(&mut told);
                        Some(promote_now(common, store, false).map(|()| Outcome::Clean))
                    }
                    Trial::Failed(reasons) => {
                        progress_end(&mut told);
                        reasons.iter().for_each(|reason| eprintln!("{reason}"));
                        Some(abort_now(common, store, &reasons).map(|()| Outcome::Damage))
                    }
                }
            }
            Ok(_) => bail!(
                "the change is not staged any more: it was promoted or taken back meanwhile; see `windfall rules history`"
            ),
            Err(error) => {
                blind_until_ms = now_ms() + 2 * REPORT_EVERY_MS;
                Some(Err(error))
            }
        };
        match done {
            Some(Ok(outcome)) => return Ok(outcome),
            Some(Err(error)) if now_ms() >= first.until_ms => return Err(error),
            Some(Err(error)) => {
                let error = format!("{error:#}; looking again");
                if error != told_error {
                    progress_end(&mut told);
                    eprintln!("{error}");
                    told_error = error;
                }
            }
            None => {}
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Says on standard error how long it still takes: in one line on a terminal, else every half minute.
fn progress(told: &mut Option<u64>, left_ms: u64) {
    let left_s = left_ms.div_ceil(1000);
    if std::io::stderr().is_terminal() {
        eprint!("\rproven in {left_s} s    ");
        std::io::stderr().flush().ok();
        *told = Some(left_s);
    } else if told.is_none_or(|told| told >= left_s + 30) {
        eprintln!("proven in {left_s} s");
        *told = Some(left_s);
    }
}

fn progress_end(told: &mut Option<u64>) {
    if told.take().is_some() && std::io::stderr().is_terminal() {
        eprintln!();
    }
}

/// Makes a step of a trial, with a reason in the history that names the step.
fn change(
    common: &Common,
    store: &dyn ChangeRules,
    what: &str,
    by_force: bool,
    make: impl Fn(&str) -> Result<String>,
) -> Result<Made> {
    make_change(common, store, &reason(what, &common.remark.why), by_force, make)
}

/// The reason of a step, as the history keeps it. What is said of the step is cut where it has no room beside the reason
/// that was given. No reason stays none, and is refused as with any change.
fn reason(what: &str, why: &str) -> String {
    if why.trim().is_empty() {
        return String::new();
    }
    let room = REMARK_MAX_BYTES.saturating_sub(why.len() + 2);
    format!("{}: {why}", &what[..what.floor_char_boundary(room)])
}

/// The rules with the change made.
fn wanted(args: &StageArgs, text: &str) -> Result<Rules> {
    if let Some(document) = &args.document {
        let rules = windfall_config::parse_rules_bytes(&read(document)?, None)
            .with_context(|| format!("{} is refused", document.display()))?;
        let current = parse_rules(text, None)?.version;
        if rules.version != current {
            bail!(SetError::Conflict { based_on: rules.version, current });
        }
        return Ok(rules);
    }
    let mut text = text.to_owned();
    for limit in &args.limit {
        text = limit_edit(limit)?.apply(&text)?;
    }
    for fuse in &args.fuse {
        text = fuse_edit(fuse)?.apply(&text)?;
    }
    parse_rules(&text, None).context("the rules with this change are refused")
}

fn limit_edit(text: &str) -> Result<RulesEdit> {
    let wrong = || format!("--limit takes TYPE=RATE or TYPE=RATE:BURST with whole numbers, and not `{text}`");
    let (name, numbers) = text.split_once('=').with_context(wrong)?;
    let (rate, burst) = match numbers.split_once(':') {
        Some((rate, burst)) => (rate, Some(burst.parse().ok().with_context(wrong)?)),
        None => (numbers, None),
    };
    let rate_per_s = rate.parse().ok().with_context(wrong)?;
    Ok(RulesEdit::Limit { bucket: Bucket::Type(name.to_owned()), rate_per_s, burst })
}

fn fuse_edit(text: &str) -> Result<RulesEdit> {
    let wrong = || format!("--fuse takes TYPE=closed, TYPE=pause or TYPE=divert, and not `{text}`");
    let (name, state) = text.split_once('=').with_context(wrong)?;
    let state = FuseState::from_str(state, false).ok().with_context(wrong)?;
    Ok(RulesEdit::Fuse { bonus_type: name.to_owned(), fuse: state.into() })
}

const fn guards(args: &StageArgs) -> Guards {
    Guards {
        oldest_max_ms: args.oldest_max_ms,
        failed_max_percent: args.failed_max_percent,
        lag_max_records: args.lag_max_records,
        latency_p99_max_ms: args.latency_p99_max_ms,
        budget_lasts_min_ms: args.budget_lasts_min_ms,
    }
}

/// Who tries it.
fn triers(args: &StageArgs) -> Triers {
    args.percent.map_or_else(|| Triers::Named(args.process.clone()), Triers::Percent)
}

/// `processes` are those that a change is staged for, `reasons` are why it was taken back.
fn report(
    common: &Common,
    what: &str,
    found: &[Difference],
    written: Option<Written>,
    processes: &[String],
    reasons: &[String],
) -> Result<()> {
    let version = written.map(|written| match written {
        Written::Changed { version } | Written::Unchanged { version } => version,
    });
    if common.json {
        let object = json!({
            "outcome": what, "version": version, "processes": processes, "reasons": reasons, "differences": found,
        });
        println!("{}", serde_json::to_string_pretty(&object)?);
        return Ok(());
    }
    for one in found {
        println!("{one}");
    }
    match version {
        _ if !processes.is_empty() => println!("{what} for {}", processes.join(", ")),
        Some(version) => println!("{what}: {} has version {version} now", common.place),
        None => println!("{what}"),
    }
    Ok(())
}
