//! `windfall ledger`: seals the journal, proves that nobody has changed what was sealed, ends activities and exports their rows,
//! prepares a ledger for users with few rights, and brings up a ledger that older versions wrote.

mod closing;
mod export;
mod manifest;
mod parquet;

use super::{now_ms, utc};
use crate::drivers::{LedgerMark, Migration};
use crate::outcome::Outcome;
use crate::place;
use crate::services::ServiceOptions;
use anyhow::{Context, Result};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use windfall_ledger::{FileAnchor, LedgerError, SealError, Sealer, Verified};

/// `windfall ledger …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum LedgerCommand {
    /// Seal the transfers that are final by now: chain their hashes, and anchor the chain's head in a file
    ///
    /// Services may run meanwhile, and other sealers: one at a time seals. A transfer that is sealed cannot be changed, taken
    /// away or added to any more without `windfall ledger verify` finding it. Nothing is sealed while the ledger does not hold
    /// its mark; the exit code is 1 then.
    Seal {
        #[command(flatten)]
        place: LedgerPlace,
        /// Go on until Ctrl-C, with so many seconds between two looks
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
        every_s: Option<u64>,
        /// Believe the seals that the ledger has, and begin a new anchor behind them; without this, an empty anchor is
        /// refused where there are seals
        #[arg(long)]
        new_anchor: bool,
        /// Give up the anchored seals up to this one, which the database has lost, as after a fail-over to a standby that
        /// was behind: the anchor notes it, and sealing goes on behind the last seal that is there
        #[arg(long, value_name = "SEAL")]
        accept_loss: Option<i64>,
        /// Go on though the last seal was made on another PostgreSQL cluster, which this one continues, as after
        /// pg_upgrade; verify first. Needed once
        #[arg(long)]
        accept_cluster: bool,
        /// Print JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// Compare every sealed transfer with its seal, and the chain with its anchor; the exit code is 1 if anything differs
    Verify {
        #[command(flatten)]
        place: LedgerPlace,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Close an activity that is over: the ledger credits no more orders of it
    ///
    /// Later events of the activity are archived with the reason activity_closed. First check that the consumer lag of its topics is 0. In
    /// PostgreSQL all processes must be of a release that knows closed activities (docs/retention.md), and this command connects as the owner of the
    /// tables; grants of all activities wait while it takes its lock. With a ledger in a file, stop its process first. The command
    /// refuses while orders of the activity are reserved, or while its budgets change.
    Close(closing::CloseArgs),
    /// Reopen a closed activity; this is refused as soon as `detach` has begun
    Reopen(closing::ActivityPlace),
    /// List the closed activities
    Closed {
        /// The options file of the services, which names the ledger
        #[arg(long)]
        config: Option<PathBuf>,
        /// The data directory, instead of the option `data`; a ledger in a file is in it
        #[arg(long)]
        data: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Export all rows of a closed activity: its orders, their transfers and its entries of the failure archive, as Parquet, with
    /// a manifest
    ///
    /// Services may run meanwhile. The export is written to FOLDER.partial, read back and compared, and renamed to FOLDER when all of it is
    /// on disk.
    Export(export::ExportArgs),
    /// Compare the files of an export, and each order in them, with its manifest; the exit code is 1 if anything differs
    CheckExport {
        /// The folder of the export
        folder: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Delete the orders of a closed activity from the ledger, after comparing them with an export
    ///
    /// Transfers stay: users' statements and the chain of seals are as they were, and a deleted order is never credited again. The command
    /// refuses until the auditor has read, and `windfall ledger seal` has sealed, every transfer from before the close: without the orders
    /// the auditor can compare them with nothing. With PostgreSQL, services may run meanwhile. With a ledger in a file, stop its process
    /// first. If the command is interrupted, run it again with the same export: it continues. The deletion cannot be undone.
    Detach(closing::DetachArgs),
    /// Make the tables of a ledger in PostgreSQL as the user who is to own them, and give the groups of
    /// deploy/postgres/roles.sql their rights on them
    ///
    /// With it no process needs the right to make tables. Run it with a user of the group windfall_owner, after roles.sql and
    /// before the first process, and again with each new release before its processes. It makes what is missing, changes no row,
    /// and may be run beside processes, and again.
    Prepare {
        /// The options file of the services, which names the ledger; WINDFALL_OPTION_LEDGER__POSTGRES__URL names the owner
        #[arg(long)]
        config: Option<PathBuf>,
    },
    /// Bring a ledger in PostgreSQL that an older version wrote to the newest version: the last step of an upgrade
    ///
    /// Replace all processes by those of this version first, one by one; they write the tables as they are until this
    /// command has run, and go on afterwards. It refuses while a process of an older version is connected, and while the ledger
    /// does not hold its mark. A process of an older version can grant nothing afterwards. Either all of it happens or nothing,
    /// and it can be started again.
    ///
    /// Indexes of large tables are built first, while everybody grants and pays; how far they are is told on standard error every two
    /// seconds. What was built stays when the command is ended, and is not built again.
    Migrate {
        /// The options file of the services, which names the ledger
        #[arg(long)]
        config: Option<PathBuf>,
        #[command(flatten)]
        how: Migration,
        /// Print one JSON object: the versions from and to, null for a ledger in a file
        #[arg(long)]
        json: bool,
    },
}

/// Where the ledger and its anchor are.
#[derive(Debug, Clone, clap::Args)]
pub struct LedgerPlace {
    /// The options file of the services, which names the ledger
    #[arg(long)]
    config: Option<PathBuf>,
    /// The directory of the process's own files, in place of the option `data`
    #[arg(long)]
    data: Option<PathBuf>,
    /// The file that keeps the chain's head outside the database; keep it, or a copy, on another machine than the database
    /// [default: ledger.anchor in the data directory]
    #[arg(long, value_name = "FILE")]
    anchor: Option<PathBuf>,
}

impl LedgerPlace {
    fn open(&self) -> Result<(ServiceOptions, FileAnchor)> {
        let options = ServiceOptions::load(self.config.as_deref(), self.data.clone())?;
        let anchor = self.anchor.clone().unwrap_or_else(|| place::ledger_anchor(&options.data));
        Ok((options, FileAnchor::new(anchor)))
    }
}

/// Runs it.
pub fn run(command: &LedgerCommand) -> Result<Outcome> {
    match command {
        LedgerCommand::Seal { place, every_s, new_anchor, accept_loss, accept_cluster, json } => {
            let (options, mut anchor) = place.open()?;
            let mark = options.open_mark()?;
            let mut sealer = options.ledger.open_sealer(&options.data)?;
            if let Some(mark) = &mark {
                sealer = sealer.guarded(Arc::clone(&mark.guard))?;
            }
            if *new_anchor {
                sealer = sealer.with_new_anchor();
            }
            if *accept_cluster {
                sealer = sealer.with_accepted_cluster();
            }
            if let Some(lost) = accept_loss {
                sealer = sealer.with_accepted_loss(*lost);
            }
            seal(sealer, &mut anchor, mark.as_ref(), *every_s, *json)
        }
        LedgerCommand::Verify { place, json } => verify(place, *json),
        LedgerCommand::Close(args) => closing::close(args),
        LedgerCommand::Reopen(place) => closing::reopen(place),
        LedgerCommand::Closed { config, data, json } => closing::list(config.as_deref(), data.clone(), *json),
        LedgerCommand::Export(args) => export::run(args),
        LedgerCommand::CheckExport { folder, json } => export::check(folder, *json),
        LedgerCommand::Detach(args) => closing::detach(args),
        LedgerCommand::Prepare { config } => prepare(config.as_deref()),
        LedgerCommand::Migrate { config, how, json } => migrate(config.as_deref(), *how, *json),
    }
}

fn seal(
    mut sealer: Sealer,
    anchor: &mut FileAnchor,
    mark: Option<&LedgerMark>,
    every_s: Option<u64>,
    json: bool,
) -> Result<Outcome> {
    loop {
        let (mut seals, mut transfers, mut last) = (0_u64, 0_i64, None);
        loop {
            let now_ms = i64::try_from(now_ms()).unwrap_or(i64::MAX);
            match sealer.seal(anchor, now_ms) {
                Ok(Some(seal)) => {
                    seals += 1;
                    transfers += seal.rows;
                    last = Some(seal.id);
                }
                Ok(None) => break,
                Err(error) if needs_a_person(&error, every_s.is_some()) => {
                    eprintln!("windfall: {error}");
                    return Ok(Outcome::Damage);
                }
                // It is away, or another one is in the way: it goes on later.
                Err(error) if every_s.is_some() => {
                    eprintln!("windfall: {error}");
                    break;
                }
                Err(error) => return Err(error).context("the ledger cannot be sealed"),
            }
        }
        match (json, last) {
            (true, _) => println!("{}", json!({"seals": seals, "transfers": transfers, "last": last})),
            (false, Some(last)) => println!("sealed {transfers} transfers; the last seal is {last}"),
            (false, None) => println!("nothing is to be sealed"),
        }
        let Some(pause_s) = every_s else { return Ok(Outcome::Clean) };
        std::thread::sleep(Duration::from_secs(pause_s));
        if let Some(mark) = mark {
            mark.learn();
        }
    }
}

/// Whether no later attempt mends it: the ledger is damaged, or not the one that is anchored. One that went back in time may
/// be accepted, or the right one may come back, while the sealer goes on.
fn needs_a_person(error: &SealError, goes_on: bool) -> bool {
    match error {
        SealError::WentBack { .. } => !goes_on,
        SealError::Gone { .. }
        | SealError::Rewritten { .. }
        | SealError::Unanchored { .. }
        | SealError::Moved { .. } => true,
        SealError::Ledger(error) => matches!(error, LedgerError::Damaged(_)),
        SealError::Anchor(_) => false,
    }
}

fn prepare(config: Option<&Path>) -> Result<Outcome> {
    let options = ServiceOptions::load(config, None)?;
    let guard = options.open_mark()?.map(|mark| mark.guard).unwrap_or_default();
    match options.ledger.prepare(guard)? {
        None => println!("a ledger in a file is made by its process; nothing is to be done"),
        Some(version) => {
            println!("the ledger has version {version}; its tables and the rights on them are made")
        }
    }
    Ok(Outcome::Clean)
}

fn migrate(config: Option<&Path>, how: Migration, json: bool) -> Result<Outcome> {
    let options = ServiceOptions::load(config, None)?;
    let guard = options.open_mark()?.map(|mark| mark.guard).unwrap_or_default();
    let done = options.ledger.migrate(how, &guard, &|progress: &str| eprintln!("{progress}"))?;
    if json {
        let (from, to) = done.unzip();
        println!("{}", json!({"from": from, "to": to}));
        return Ok(Outcome::Clean);
    }
    match done {
        None => println!(
            "a ledger in a file is brought up by its process, when it opens it; nothing is to be done"
        ),
        Some((from, to)) if from == to => println!("the ledger has version {to}; nothing is to be done"),
        Some((from, to)) => {
            println!("the ledger had version {from}, and has version {to} now")
        }
    }
    Ok(Outcome::Clean)
}

fn verify(place: &LedgerPlace, json: bool) -> Result<Outcome> {
    let (options, anchor) = place.open()?;
    let reader = options.ledger.open_reader(&options.data)?;
    let found = reader.verify(Some(&anchor)).context("the ledger cannot be verified")?;
    if json {
        println!("{}", as_json(&found));
    } else {
        for finding in &found.findings {
            println!("{finding}");
        }
        if found.more_findings > 0 {
            println!("and {} more", found.more_findings);
        }
        if let Some(seal) = found.unanchored {
            println!(
                "seal {seal} is not anchored yet: its sealer is about to do it, or died; the next windfall ledger seal does"
            );
        }
        if found.losses > 0 {
            println!("{} times seals were lost, and somebody has accepted it", found.losses);
        }
        if let Some(oldest_ms) = found.oldest_unsealed_ms {
            let since = utc(u64::try_from(oldest_ms).unwrap_or(0));
            println!("{} transfers are not sealed yet, the oldest since {since}", found.unsealed);
        }
        if found.erased > 0 {
            println!("{} transfers are erased", found.erased);
        }
        println!(
            "{} transfers in {} seals were compared, {} seals are anchored: {}",
            found.transfers,
            found.seals,
            found.anchored,
            if found.is_clean() { "nothing was changed" } else { "DAMAGED" }
        );
    }
    Ok(if found.is_clean() { Outcome::Clean } else { Outcome::Damage })
}

fn as_json(found: &Verified) -> serde_json::Value {
    let findings: Vec<_> = found
        .findings
        .iter()
        .map(|one| {
            json!({
                "kind": one.tampering.name(),
                "seal": one.seal,
                "transfer": one.transfer,
                "what": one.what,
            })
        })
        .collect();
    json!({
        "ok": found.is_clean(),
        "seals": found.seals,
        "transfers": found.transfers,
        "erased": found.erased,
        "unsealed": found.unsealed,
        "oldest_unsealed_ms": found.oldest_unsealed_ms,
        "anchored": found.anchored,
        "unanchored": found.unanchored,
        "losses": found.losses,
        "findings": findings,
        "more_findings": found.more_findings,
    })
}
