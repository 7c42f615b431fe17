//! `windfall rules`: look at the live rules, check and set them, change one thing, try a change, roll back.

mod change;
mod proposals;
mod stage;

use super::{ask, now_ms, utc};
use crate::drivers::{Driver, ON_A_COMMAND_LINE, ReachArgs, RulesAt};
use crate::outcome::Outcome;
use crate::services::ServiceOptions;
use anyhow::{Context, Result, bail};
use std::io::Read;
use std::path::{Path, PathBuf};
use windfall_config::{ChangeRules, ProcessStatus, SetError, StagedStatus, Written};
use windfall_console::{RemoteRules, ServiceAt};
use windfall_ledger::Unbudgeted;

/// `windfall rules …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum RulesCommand {
    /// Say whether a document is valid, and everything that is wrong with it; this changes nothing
    Check {
        /// The file of the document; - means standard input
        document: PathBuf,
        #[command(flatten)]
        brokers: KnownBrokers,
    },
    /// Print the rules in force
    Show {
        #[command(flatten)]
        place: RulesPlace,
        /// Print one JSON object with everything that the document says, every default written out
        #[arg(long)]
        json: bool,
    },
    /// Replace the rules, as a whole or not at all; running processes follow within a second
    Set {
        #[command(flatten)]
        place: RulesPlace,
        /// The file of the new document, which names the version that it was made from; - means standard input
        document: PathBuf,
        #[command(flatten)]
        remark: Remark,
        #[command(flatten)]
        brokers: KnownBrokers,
    },
    /// Say what differs between the rules in force and a document, or between two versions of the history
    ///
    /// Each line is a key with its value before and after; + is new, - is gone. Comments, the order of tables and defaults that
    /// are written out are no difference.
    Diff(change::DiffArgs),
    /// Set the limit of a bonus type: `windfall rules limit badge 2000 200 --why "badge system is slow"`
    ///
    /// The rest of the document stays as it is, with its comments. If somebody else changes the rules at the same time, both changes
    /// are made. The same command again changes nothing.
    Limit(change::LimitArgs),
    /// Set the fuse of a bonus type: closed, pause or divert
    ///
    /// The rest of the document stays as it is, with its comments. If somebody else changes the rules at the same time, both changes
    /// are made. The same command again changes nothing.
    Fuse(change::FuseArgs),
    /// Set the share of a queue's users whose events go to its master topic
    ///
    /// The rest of the document stays as it is, with its comments. If somebody else changes the rules at the same time, both changes
    /// are made. The same command again changes nothing.
    Ratio(change::RatioArgs),
    /// List the changes that wait for approval, each with what it changes
    ///
    /// Where the rules have `changes_need_approval = true`, a change waits until another person approves it, unless it only
    /// stops or slows down what is granted: a fuse to pause or divert, a lower limit, a trial that is taken back.
    Proposals {
        #[command(flatten)]
        place: RulesPlace,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Approve a change that another person has proposed: it is made now, once
    ///
    /// It needs --server, and a key of a caller with the roles `approve` and `observe` who has not proposed it. It is refused if
    /// the rules have changed since.
    Approve(proposals::EndArgs),
    /// Refuse a proposed change, also one's own: nobody can approve it any more
    Refuse(proposals::EndArgs),
    /// List every change, with its version, its time, who made it and why, and who has approved it
    ///
    /// `proved` means that a key has proved who made it (--server), `said` that the name was only given.
    History {
        #[command(flatten)]
        place: RulesPlace,
        /// Print JSON, with the documents
        #[arg(long)]
        json: bool,
    },
    /// Say which process runs which version, and why one refuses the newest; the exit code is 1 unless all run it
    Status {
        #[command(flatten)]
        place: RulesPlace,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Have some processes try a change of limits, fuses, priorities or pacing
    ///
    /// All other processes run the rules without it. A process gives the change up by itself when a guard is exceeded, and every
    /// process does a minute after the time of the trial, unless the change was promoted. A process takes its share of a staged
    /// limit, so the fleet passes at most the larger one of the two limits.
    ///
    /// `windfall rules stage --limit badge=1500:150 --percent 10 --for 10m --oldest-max-ms 30000 --wait --why "badge system is slow"`
    Stage(stage::StageArgs),
    /// Make the staged change for all processes
    ///
    /// It is refused before the time of the trial is over, and where a process has given the change up or does not report, unless
    /// --force is given. --force promotes also a change that was given up everywhere.
    Promote(stage::PromoteArgs),
    /// Take the staged change back
    Abort(stage::AbortArgs),
    /// Make an earlier version the newest
    Rollback {
        #[command(flatten)]
        place: RulesPlace,
        /// The version to go back to
        version: u64,
        #[command(flatten)]
        remark: Remark,
    },
    /// Let the ledger accept rules of this version, after they were restored from an older copy on purpose
    ///
    /// The ledger keeps the newest version that any process has run, and a process with older rules grants nothing.
    /// First restart every process on the restored rules: one that still runs the newer ones would note their version
    /// again.
    Accept {
        /// The version of the restored rules
        version: u64,
        /// The options file of the services, which names the ledger. A ledger in a file must not be in use
        #[arg(long)]
        config: Option<PathBuf>,
        /// The directory of the process's own files, in place of the option `data`
        #[arg(long)]
        data: Option<PathBuf>,
    },
}

/// The place of the rules.
#[derive(Debug, Clone, clap::Args)]
pub struct RulesPlace {
    /// The file of the live rules
    #[arg(long, default_value = "rules.toml", conflicts_with = "etcd")]
    file: PathBuf,
    /// The members of the etcd that holds the rules: host:port, also as https://host:port for TLS, separated by commas
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd: Vec<String>,
    /// The prefix of their keys in etcd
    #[arg(long, value_name = "PREFIX", default_value = "/windfall/rules/", requires = "etcd")]
    etcd_prefix: String,
    /// The user of etcd, whose password is in the environment variable WINDFALL_ETCD_PASSWORD
    #[arg(long, value_name = "NAME", requires = "etcd")]
    etcd_user: Option<String>,
    /// The console that changes the rules: https://host:port, or http://host:port on this machine. The history then has the name
    /// that your key proves, and beside it the one of --who
    #[arg(long, value_name = "URL", conflicts_with_all = ["file", "etcd"])]
    server: Option<String>,
    /// The file with the bearer key of a caller of the console [default: the environment variable WINDFALL_KEY]
    #[arg(long, value_name = "FILE", requires = "server")]
    key_file: Option<PathBuf>,
    /// The file with the certificates (PEM) that the console is checked against [default: those of the system]
    #[arg(long, value_name = "FILE", requires = "server")]
    ca_file: Option<PathBuf>,
    #[command(flatten)]
    reach: ReachArgs,
}

impl RulesPlace {
    /// The console that is asked in place of a store, where one is named.
    fn console(&self) -> Result<Option<RemoteRules>> {
        let Some(server) = &self.server else { return Ok(None) };
        let at = ServiceAt {
            name: server.clone(),
            url: server.clone(),
            ca_file: self.ca_file.clone(),
            server_name: None,
            key_in_plain_text: false,
        };
        let rules = RemoteRules::new(&at, ask::key(self.key_file.as_ref())?);
        rules.map(Some).map_err(|why| anyhow::anyhow!("--server {server}: {why}"))
    }

    fn store(&self, known_brokers: Option<Vec<String>>) -> Result<Box<dyn ChangeRules>> {
        if let Some(console) = self.console()? {
            if known_brokers.is_some() {
                bail!("--brokers is for rules in a file or in etcd: the console knows its brokers itself");
            }
            return Ok(Box::new(console));
        }
        if self.etcd.is_empty() {
            return RulesAt::File(self.file.clone()).store(Path::new("."), known_brokers);
        }
        Driver::Etcd.check().context("--etcd cannot be used")?;
        let user = match &self.etcd_user {
            Some(name) => {
                let password = std::env::var("WINDFALL_ETCD_PASSWORD").context(
                    "--etcd-user needs the password in the environment variable WINDFALL_ETCD_PASSWORD",
                )?;
                Some((name.clone(), password))
            }
            None => None,
        };
        let reach = self.reach.reach();
        let at = RulesAt::etcd(self.etcd.clone(), self.etcd_prefix.clone(), user, &reach);
        at.check().with_context(|| format!("--etcd cannot be used ({ON_A_COMMAND_LINE})"))?;
        at.store(Path::new("."), known_brokers)
    }
}

impl std::fmt::Display for RulesPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.server, self.etcd.is_empty()) {
            (Some(server), _) => write!(f, "the document behind {server}"),
            (None, true) => self.file.display().fmt(f),
            (None, false) => write!(f, "{} in etcd", self.etcd_prefix),
        }
    }
}

/// The actor and the reason of a change, which are kept with it.
#[derive(Debug, Clone, clap::Args)]
pub struct Remark {
    /// Who makes the change [default: $USER]
    #[arg(long)]
    who: Option<String>,
    /// Why the change is made
    #[arg(long)]
    why: String,
}

impl Remark {
    fn who(&self) -> String {
        self.who.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_default()
    }
}

/// Brokers that topics may name.
#[derive(Debug, Clone, clap::Args)]
pub struct KnownBrokers {
    /// The brokers that the processes know, separated by commas; without it a topic may name any broker
    #[arg(long, value_delimiter = ',')]
    brokers: Option<Vec<String>>,
}

/// Runs it. A change that waits for approval is not made, and not wrong either.
pub fn run(command: &RulesCommand) -> Result<Outcome> {
    match make(command) {
        Err(error) if matches!(error.downcast_ref::<SetError>(), Some(SetError::Waits { .. })) => {
            eprintln!("windfall: {error:#}");
            Ok(Outcome::Damage)
        }
        ended => ended,
    }
}

fn make(command: &RulesCommand) -> Result<Outcome> {
    match command {
        RulesCommand::Check { document, brokers } => {
            let known: Option<Vec<&str>> =
                brokers.brokers.as_ref().map(|names| names.iter().map(String::as_str).collect());
            let rules = windfall_config::parse_rules_bytes(&read(document)?, known.as_deref())
                .with_context(|| format!("{} is refused", document.display()))?;
            println!(
                "valid: version {}, {} types, {} queues, {} routes, {} budgets",
                rules.version,
                rules.bonus_types.len(),
                rules.queues.len(),
                rules.routes.len(),
                rules.budgets.len()
            );
        }
        RulesCommand::Show { place, json } => show(place, *json)?,
        RulesCommand::Set { place, document, remark, brokers } => {
            let text = String::from_utf8(read(document)?)
                .with_context(|| format!("{} is not UTF-8 text", document.display()))?;
            let written = place
                .store(brokers.brokers.clone())?
                .set(&text, &remark.who(), &remark.why, now_ms())
                .with_context(|| format!("{place} stays as it is"))?;
            say(place, written)?;
        }
        RulesCommand::Diff(args) => change::diff(args)?,
        RulesCommand::Limit(args) => change::limit(args)?,
        RulesCommand::Fuse(args) => change::fuse(args)?,
        RulesCommand::Ratio(args) => change::ratio(args)?,
        RulesCommand::Stage(args) => return stage::stage(args),
        RulesCommand::Promote(args) => return stage::promote(args),
        RulesCommand::Abort(args) => return stage::abort(args),
        RulesCommand::Proposals { place, json } => proposals::list(place, *json)?,
        RulesCommand::Approve(args) => proposals::approve(args)?,
        RulesCommand::Refuse(args) => proposals::refuse(args)?,
        RulesCommand::History { place, json } => history(place, *json)?,
        RulesCommand::Status { place, json } => return status(place, *json),
        RulesCommand::Rollback { place, version, remark } => {
            let written = place
                .store(None)?
                .rollback(*version, &remark.who(), &remark.why, now_ms())
                .with_context(|| format!("{place} stays as it is"))?;
            say(place, written)?;
        }
        RulesCommand::Accept { version, config, data } => {
            let options = ServiceOptions::load(config.as_deref(), data.clone())?;
            let before = options
                .ledger
                .open(&options.data, Unbudgeted::Refuse)?
                .transact(|tx| tx.replace_rules_version(*version))
                .context("the ledger stays as it is, or nobody knows; run this again")?;
            println!(
                "the ledger had seen version {before} of the rules; now processes with version {version} or a newer one grant"
            );
        }
    }
    Ok(Outcome::Clean)
}

/// Shows the version of the rules that each process runs.
fn status(place: &RulesPlace, json: bool) -> Result<Outcome> {
    let store = place.store(None)?;
    let rules = windfall_config::parse_rules(&store.show()?, None);
    let newest = rules.as_ref().ok().map(|rules| rules.version);
    let (reports, now) = (store.reports()?, now_ms());
    let state = |one: &ProcessStatus| match one {
        one if one.is_silent(now) => "silent",
        ProcessStatus { refuses: Some(_), .. } => "refuses",
        one if Some(one.version) == newest => "runs",
        _ => "behind",
    };
    let is_well = newest.is_some() && reports.iter().all(|one| matches!(state(one), "runs" | "silent"));
    if json {
        let process = |one: &ProcessStatus| {
            let mut row = serde_json::json!(one);
            row["state"] = state(one).into();
            row
        };
        let processes: Vec<_> = reports.iter().map(process).collect();
        let invalid = rules.as_ref().err().map(|refusal| refusal.to_string());
        let staged = rules.as_ref().ok().and_then(|rules| rules.staged.as_deref());
        let staged = staged.map(|staged| windfall_config::standing_json(staged, &reports, now));
        let object = serde_json::json!({ "staged": staged, "version": newest, "invalid": invalid, "ok": is_well, "processes": processes });
        println!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        match &rules {
            Ok(rules) => println!("{place} has version {}", rules.version),
            Err(refusal) => println!("{place} has a document that no process can run: {refusal}"),
        }
        if let Some(staged) = rules.as_ref().ok().and_then(|rules| rules.staged.as_deref()) {
            for line in stage::standing(staged, &reports, now) {
                println!("{line}");
            }
        }
        for one in &reports {
            println!("{:<8} version {:>6}  {}  {}", state(one), one.version, utc(one.at_ms), one.process);
            if let Some(refused) = &one.refuses {
                println!("         refuses {}: {}", refused.version.unwrap_or_default(), refused.why);
            }
            match &one.staged {
                Some(StagedStatus { runs: true, .. }) => println!("         tries the staged change"),
                Some(StagedStatus { given_up: Some(why), .. }) => {
                    println!("         has given the staged change up: {why}");
                }
                _ => {}
            }
            if let Some(why) = &one.source_failure {
                println!("         cannot read the rules: {why}");
            }
        }
        if reports.is_empty() {
            println!("No process has reported that it runs these rules.");
        }
    }
    Ok(if is_well { Outcome::Clean } else { Outcome::Damage })
}

fn say(place: &RulesPlace, written: Written) -> Result<()> {
    match written {
        Written::Changed { version } => {
            println!("{place} has version {version} now");
            let rules = windfall_config::parse_rules(&place.store(None)?.show()?, None)?;
            for old in &rules.draining {
                println!(
                    "  {} on broker {} is read until it is empty; `windfall topics` says what is left in it",
                    old.topic, old.broker
                );
            }
        }
        Written::Unchanged { version } => {
            println!("{place} had version {version} already; nothing changed")
        }
    }
    Ok(())
}

fn show(place: &RulesPlace, json: bool) -> Result<()> {
    let text = place.store(None)?.show()?;
    if !json {
        print!("{text}");
        return Ok(());
    }
    let rules = windfall_config::parse_rules(&text, None).with_context(|| format!("{place} is refused"))?;
    let limit = |limit: windfall_contract::rules::Limit| serde_json::json!({"rate_per_s": limit.rate_per_s, "burst": limit.burst});
    let types: serde_json::Map<_, _> = rules
        .limits
        .types
        .iter()
        .map(|(name, own)| {
            let fuse = format!("{:?}", own.fuse).to_lowercase();
            let row = serde_json::json!({"limit": limit(own.limit), "fuse": fuse, "priority": own.priority});
            (name.clone(), row)
        })
        .collect();
    // The document's own keys, and the limits with what each type has in the end.
    let mut object = windfall_config::rules_json(&rules);
    if let Some(document) = object.as_object_mut() {
        document.remove("end");
    }
    object["limits"] = serde_json::json!({"global": limit(rules.limits.global), "types": types});
    for list in ["draining", "routes", "budgets", "revoke"] {
        if object[list].is_null() {
            object[list] = serde_json::json!([]);
        }
    }
    if object["caps"].is_null() {
        object["caps"] = serde_json::json!({});
    }
    println!("{}", serde_json::to_string_pretty(&object)?);
    Ok(())
}

fn history(place: &RulesPlace, json: bool) -> Result<()> {
    let (rows, unreadable) = match place.console()? {
        // Without the documents, and the newest first.
        Some(console) => {
            let (mut rows, unreadable) = console.changes()?;
            rows.reverse();
            (rows, unreadable)
        }
        None => {
            let history = place.store(None)?.history()?;
            let row = |change: &windfall_config::Change| {
                let mut row = serde_json::json!(change);
                row["identity"] = change.identity().into();
                row
            };
            let unreadable = history.unreadable.iter().map(|(place, why)| format!("{place}: {why}"));
            (history.changes.iter().map(row).collect(), unreadable.collect())
        }
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        for row in &rows {
            println!("{}", line(row));
        }
    }
    for why in &unreadable {
        eprintln!("an entry cannot be read: {why}");
    }
    Ok(())
}

/// A change of the history in a line.
fn line(row: &serde_json::Value) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let (version, at_ms) = (row["version"].as_u64().unwrap_or(0), row["at_ms"].as_u64().unwrap_or(0));
    let (who, identity, why) = (text("who"), text("identity"), text("why"));
    let approved = match text("approved_by") {
        "" => String::new(),
        second => format!(" (approved by {second})"),
    };
    format!("{version:>6}  {}  {who:<16} {identity:<6} {why}{approved}", utc(at_ms))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One more than any document may have: enough for the refusal, and no more.
    let limit = (1 << 20) + 1;
    if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(limit)
            .read_to_end(&mut bytes)
            .context("standard input cannot be read")?;
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
        file.take(limit)
            .read_to_end(&mut bytes)
            .with_context(|| format!("{} cannot be read", path.display()))?;
    }
    Ok(bytes)
}
