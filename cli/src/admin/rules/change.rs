//! `windfall rules diff|limit|fuse|ratio`: what differs, and changes of one thing.

use super::{KnownBrokers, Remark, RulesPlace, read, say};
use crate::admin::now_ms;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use windfall_config::{
    Actor, Bucket, ChangeRules, Difference, RulesEdit, SetError, Written, differences, parse_rules,
};
use windfall_contract::rules::{Fuse, Rules};

/// `windfall rules diff`
#[derive(Debug, Clone, clap::Args)]
pub struct DiffArgs {
    #[command(flatten)]
    place: RulesPlace,
    /// The file of the other document; - means standard input
    #[arg(required_unless_present = "from")]
    document: Option<PathBuf>,
    /// Compare this version of the history with the rules in force, or with --to
    #[arg(long, value_name = "VERSION", conflicts_with = "document")]
    from: Option<u64>,
    /// Compare --from with this version
    #[arg(long, value_name = "VERSION", requires = "from")]
    to: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The place of the rules, and who changes them.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    #[command(flatten)]
    pub place: RulesPlace,
    #[command(flatten)]
    pub remark: Remark,
    #[command(flatten)]
    brokers: KnownBrokers,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// The rules, as they are changed.
    pub fn store(&self) -> Result<Box<dyn ChangeRules>> {
        self.place.store(self.brokers.brokers.clone())
    }
}

/// How a change of one thing is made.
#[derive(Debug, Clone, clap::Args)]
pub struct How {
    #[command(flatten)]
    common: Common,
    /// Say what would differ, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// `windfall rules limit`
#[derive(Debug, Clone, clap::Args)]
pub struct LimitArgs {
    /// The bonus type; or `--global` or `--default` in its place
    #[arg(long = "type", value_name = "TYPE", group = "bucket")]
    bonus_type: Option<String>,
    /// The bucket over all types
    #[arg(long, group = "bucket")]
    global: bool,
    /// The bucket of each type that has none of its own
    #[arg(long, group = "bucket")]
    default: bool,
    /// The bonus type, unless one of the options above is given; then the rate in events per second, 0 to 100000000, where
    /// 0 admits nothing; then, if it is to change, the burst: the number of events that pass at once after an idle time, 1
    /// to 10000000
    #[arg(required = true, num_args = 1..=3, value_names = ["TYPE", "RATE", "BURST"])]
    what: Vec<String>,
    #[command(flatten)]
    how: How,
}

/// `windfall rules fuse`
#[derive(Debug, Clone, clap::Args)]
pub struct FuseArgs {
    /// The bonus type
    #[arg(value_name = "TYPE")]
    bonus_type: String,
    /// closed: events flow. pause: nothing is granted, events are held. divert: events are requeued at once
    state: FuseState,
    #[command(flatten)]
    how: How,
}

/// A fuse as an argument.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum FuseState {
    Closed,
    Pause,
    Divert,
}

impl From<FuseState> for Fuse {
    fn from(state: FuseState) -> Self {
        match state {
            FuseState::Closed => Self::Closed,
            FuseState::Pause => Self::Pause,
            FuseState::Divert => Self::Divert,
        }
    }
}

/// `windfall rules ratio`
#[derive(Debug, Clone, clap::Args)]
pub struct RatioArgs {
    /// The queue
    queue: String,
    /// Per cent of the users whose events go to the queue's master topic; the others go to its backup
    #[arg(value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    percent: u8,
    #[command(flatten)]
    how: How,
}

/// Says what differs.
pub fn diff(args: &DiffArgs) -> Result<()> {
    let store = args.place.store(None)?;
    let in_force = || -> Result<Rules> {
        parse_rules(&store.show()?, None).with_context(|| format!("{} is refused", args.place))
    };
    let of_version = |version: u64| -> Result<Rules> {
        let Some(change) = store.change_of(version)? else {
            bail!("the history has no version {version}: see `windfall rules history`")
        };
        parse_rules(&change.after, None)
            .with_context(|| format!("version {version} is refused by this program"))
    };
    let (before, after) = match (args.from, args.to, &args.document) {
        (Some(from), Some(to), _) => (of_version(from)?, of_version(to)?),
        (Some(from), None, _) => (of_version(from)?, in_force()?),
        (None, _, Some(document)) => {
            let after = windfall_config::parse_rules_bytes(&read(document)?, None)
                .with_context(|| format!("{} is refused", document.display()))?;
            (in_force()?, after)
        }
        (None, _, None) => bail!("name a document, or a version by --from"),
    };
    let found = differences(&before, &after);
    if args.json {
        let object = json!({"from": before.version, "to": after.version, "differences": found});
        println!("{}", serde_json::to_string_pretty(&object)?);
        return Ok(());
    }
    print(&found);
    if found.is_empty() {
        println!("version {} and version {} say the same", before.version, after.version);
    }
    Ok(())
}

/// Sets a token bucket.
pub fn limit(args: &LimitArgs) -> Result<()> {
    let (named, numbers) = match (&args.bonus_type, args.global, args.default, &args.what[..]) {
        (Some(name), ..) => (Some(Bucket::Type(name.clone())), &args.what[..]),
        (_, true, ..) => (Some(Bucket::Global), &args.what[..]),
        (_, _, true, _) => (Some(Bucket::Default), &args.what[..]),
        (.., [name, numbers @ ..]) => (Some(Bucket::Type(name.clone())), numbers),
        _ => (None, &args.what[..]),
    };
    let number = |what: &str, text: &String| {
        text.parse::<u64>().with_context(|| format!("{what} is a whole number, and not `{text}`"))
    };
    let (Some(bucket), [rate, burst @ ..]) = (named, numbers) else {
        bail!("give a type and its rate, as in `windfall rules limit badge 2000 200 --why …`");
    };
    let burst = match burst {
        [] => None,
        [burst] => Some(number("the burst", burst)?),
        _ => bail!("after the rate and the burst nothing is expected"),
    };
    let rate_per_s = number("the rate per second", rate)?;
    change(&RulesEdit::Limit { bucket, rate_per_s, burst }, &args.how)
}

/// Sets a fuse.
pub fn fuse(args: &FuseArgs) -> Result<()> {
    change(&RulesEdit::Fuse { bonus_type: args.bonus_type.clone(), fuse: args.state.into() }, &args.how)
}

/// Sets the ratio of a queue.
pub fn ratio(args: &RatioArgs) -> Result<()> {
    change(&RulesEdit::Ratio { queue: args.queue.clone(), percent: args.percent }, &args.how)
}

/// How often a change is made anew on what another one has left meanwhile.
const ATTEMPTS: u32 = 10;

/// A change that was made.
pub struct Made {
    /// The document with it.
    pub text: String,
    /// What differs by it.
    pub found: Vec<Difference>,
    pub written: Written,
}

/// Makes a change on the rules in force, whoever else changes them meanwhile: `make` is asked again for what another
/// change has left. `by_force`: it promotes a trial that has not proven itself.
pub fn make_change(
    common: &Common,
    store: &dyn ChangeRules,
    why: &str,
    by_force: bool,
    make: impl Fn(&str) -> Result<String>,
) -> Result<Made> {
    let unchanged = || format!("{} stays as it is", common.place);
    let mut attempt = 1;
    loop {
        let before = store.show()?;
        let text = make(&before).with_context(unchanged)?;
        let who = common.remark.who();
        let written = if by_force {
            store.force_by(&text, Actor::said(&who), why, now_ms())
        } else {
            store.set(&text, &who, why, now_ms())
        };
        match written {
            Ok(written) => return Ok(Made { found: found(&before, &text)?, text, written }),
            Err(SetError::Conflict { .. } | SetError::Locked(_)) if attempt < ATTEMPTS => {
                std::thread::sleep(Duration::from_millis(50 * u64::from(attempt)));
                attempt += 1;
            }
            // Where it may have been written, the error says so.
            Err(error @ SetError::Io { .. }) => return Err(error.into()),
            Err(error) => return Err(error).with_context(unchanged),
        }
    }
}

/// What differs between two documents that are valid.
pub fn found(before: &str, after: &str) -> Result<Vec<Difference>> {
    let rules = parse_rules(before, None).context("the rules in force are refused")?;
    let after = parse_rules(after, None).context("the rules with this change are refused")?;
    Ok(differences(&rules, &after))
}

/// Makes a change that says what shall hold afterwards, so that it may be made again where the answer was lost.
fn change(edit: &RulesEdit, how: &How) -> Result<()> {
    let store = how.common.store()?;
    let candidate = |before: &str| {
        let text = edit.apply(before)?;
        // Also where a dry run sets nothing.
        let brokers = how.common.brokers.brokers.as_ref();
        let known: Option<Vec<&str>> = brokers.map(|names| names.iter().map(String::as_str).collect());
        parse_rules(&text, known.as_deref()).context("the rules with this change are refused")?;
        Ok(text)
    };
    if how.dry_run {
        let before = store.show()?;
        let found = candidate(&before).and_then(|text| found(&before, &text));
        return report(how, &found.with_context(|| format!("{} stays as it is", how.common.place))?, None);
    }
    let made = make_change(&how.common, store.as_ref(), &how.common.remark.why, false, candidate)?;
    let is_staged = |text: &str| parse_rules(text, None).is_ok_and(|rules| rules.staged.is_some());
    // The change is made, whether this look at it works or not.
    if is_staged(&made.text) && store.show().is_ok_and(|now| !is_staged(&now)) {
        eprintln!("the staged change is taken back, since it was about the same thing");
    }
    report(how, &made.found, Some(made.written))
}

fn report(how: &How, found: &[Difference], written: Option<Written>) -> Result<()> {
    if how.common.json {
        let (version, changed) = match written {
            Some(Written::Changed { version }) => (Some(version), true),
            Some(Written::Unchanged { version }) => (Some(version), false),
            None => (None, false),
        };
        let object =
            json!({"changed": changed, "version": version, "dry_run": how.dry_run, "differences": found});
        println!("{}", serde_json::to_string_pretty(&object)?);
        return Ok(());
    }
    print(found);
    match written {
        Some(written) => say(&how.common.place, written),
        None if found.is_empty() => {
            println!("{} says so already", how.common.place);
            Ok(())
        }
        None => {
            println!("nothing was changed (--dry-run)");
            Ok(())
        }
    }
}

fn print(found: &[Difference]) {
    for one in found {
        println!("{one}");
    }
}
