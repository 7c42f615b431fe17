//! `windfall rules`: look at the live rules, check a candidate, set it, roll back.

use super::{now_ms, utc};
use anyhow::{Context, Result};
use std::io::Read;
use std::path::{Path, PathBuf};
use windfall_config::{Rules, RulesStore, Written};

/// `windfall rules …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum RulesCommand {
    /// Say whether a document is valid, and everything that is wrong with it; changes nothing
    Check {
        /// The document; - for standard input
        document: PathBuf,
        #[command(flatten)]
        brokers: KnownBrokers,
    },
    /// Print the rules in force
    Show {
        #[command(flatten)]
        file: RulesFile,
        /// As one JSON object: version, queues, limits and budgets
        #[arg(long)]
        json: bool,
    },
    /// Replace the rules, as a whole or not at all; running processes follow within a second
    Set {
        #[command(flatten)]
        file: RulesFile,
        /// The new document, with the version it was made from; - for standard input
        document: PathBuf,
        #[command(flatten)]
        remark: Remark,
        #[command(flatten)]
        brokers: KnownBrokers,
    },
    /// List every change: version, time, who, why
    History {
        #[command(flatten)]
        file: RulesFile,
        /// As JSON, with the documents
        #[arg(long)]
        json: bool,
    },
    /// Make an earlier version the newest
    Rollback {
        #[command(flatten)]
        file: RulesFile,
        /// The version to go back to
        version: u64,
        #[command(flatten)]
        remark: Remark,
    },
}

/// The rules' file.
#[derive(Debug, Clone, clap::Args)]
pub struct RulesFile {
    /// The file of the live rules
    #[arg(long, default_value = "rules.toml")]
    file: PathBuf,
}

/// Who changes the rules, and why: kept with the change.
#[derive(Debug, Clone, clap::Args)]
pub struct Remark {
    /// Who makes the change. Default: $USER
    #[arg(long)]
    who: Option<String>,
    /// Why
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
    /// Brokers that the processes know, separated by commas; without it any name will do
    #[arg(long, value_delimiter = ',')]
    brokers: Option<Vec<String>>,
}

/// Runs it.
pub fn run(command: &RulesCommand) -> Result<()> {
    match command {
        RulesCommand::Check { document, brokers } => {
            let known: Option<Vec<&str>> =
                brokers.brokers.as_ref().map(|names| names.iter().map(String::as_str).collect());
            let rules = Rules::parse_bytes(&read(document)?, known.as_deref())
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
        RulesCommand::Show { file, json } => show(&file.file, *json)?,
        RulesCommand::Set { file, document, remark, brokers } => {
            let text = String::from_utf8(read(document)?)
                .with_context(|| format!("{} is not UTF-8 text", document.display()))?;
            let store = RulesStore::new(&file.file, brokers.brokers.clone());
            let written = store
                .set(&text, &remark.who(), &remark.why, now_ms())
                .with_context(|| format!("{} stays as it is", file.file.display()))?;
            say(&file.file, written);
        }
        RulesCommand::History { file, json } => history(&file.file, *json)?,
        RulesCommand::Rollback { file, version, remark } => {
            let written = RulesStore::new(&file.file, None)
                .rollback(*version, &remark.who(), &remark.why, now_ms())
                .with_context(|| format!("{} stays as it is", file.file.display()))?;
            say(&file.file, written);
        }
    }
    Ok(())
}

fn say(file: &Path, written: Written) {
    match written {
        Written::Changed { version } => println!("{} has version {version} now", file.display()),
        Written::Unchanged { version } => {
            println!("{} had version {version} already; nothing changed", file.display())
        }
    }
}

fn show(file: &Path, json: bool) -> Result<()> {
    let text = RulesStore::new(file, None).show()?;
    if !json {
        print!("{text}");
        return Ok(());
    }
    let rules = Rules::parse(&text, None).with_context(|| format!("{} is refused", file.display()))?;
    let limit = |limit: windfall_config::rules::Limit| serde_json::json!({"rate_per_s": limit.rate_per_s, "burst": limit.burst});
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
    let queues: serde_json::Map<_, _> = rules
        .queues
        .iter()
        .map(|(name, queue)| {
            let row = serde_json::json!({
                "master": queue.master, "backup": queue.backup, "ratio": queue.ratio.percent(),
            });
            (name.clone(), row)
        })
        .collect();
    let budgets: Vec<_> = rules
        .budgets
        .iter()
        .map(|budget| {
            serde_json::json!({
                "activity": budget.activity, "scene": budget.scene, "type": budget.bonus_type,
                "total": budget.total, "shards": budget.shards,
            })
        })
        .collect();
    let object = serde_json::json!({
        "version": rules.version,
        "queues": queues,
        "limits": {"global": limit(rules.limits.global), "types": types},
        "budgets": budgets,
    });
    println!("{}", serde_json::to_string_pretty(&object)?);
    Ok(())
}

fn history(file: &Path, json: bool) -> Result<()> {
    let history = RulesStore::new(file, None).history()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&history.changes)?);
    } else {
        for change in &history.changes {
            println!("{:>6}  {}  {:<16} {}", change.version, utc(change.at_ms), change.who, change.why);
        }
    }
    for (place, why) in &history.unreadable {
        eprintln!("{place} cannot be read: {why}");
    }
    Ok(())
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
