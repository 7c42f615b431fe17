//! `windfall ledger close`, `reopen`, `closed` and `detach`: the end of an activity.

use super::export::{closed, each};
use super::manifest::{Manifest, Sums};
use crate::admin::{now_ms, utc};
use crate::outcome::Outcome;
use crate::services::ServiceOptions;
use anyhow::{Context, Result, bail};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;
use windfall_ledger::{
    Close, Closed, ClosedActivity, Detach, DetachBegun, Ledger, LedgerReader, Reopened, Unbudgeted,
};

/// The ledger of an activity.
#[derive(Debug, Clone, clap::Args)]
pub struct ActivityPlace {
    /// The name of the activity
    activity: String,
    /// The options file of the services, which says where the ledger is. For one in PostgreSQL, set
    /// WINDFALL_OPTION_LEDGER__POSTGRES__URL to the address of the owner of its tables
    #[arg(long)]
    config: Option<PathBuf>,
    /// The data directory, instead of the option `data`; a ledger in a file is in it
    #[arg(long)]
    data: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Why, by whom, and after what look an activity is closed.
#[derive(Debug, Clone, clap::Args)]
pub struct CloseArgs {
    #[command(flatten)]
    place: ActivityPlace,
    /// Why it is closed; stored with the closed activity
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who closes it; stored with the closed activity [default: the system's user]
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// Seconds between two readings of the activity's budgets; if they differ, the activity is still active and is not closed. 0 skips
    /// the check
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    watch_s: u64,
}

/// Which export has the orders that are to be deleted, and what is not asked for before.
#[derive(Debug, Clone, clap::Args)]
pub struct DetachArgs {
    #[command(flatten)]
    place: ActivityPlace,
    /// The folder of the export that has the orders
    #[arg(long, value_name = "FOLDER")]
    export: PathBuf,
    /// Detach without asking whether the auditor has read the transfers from before the close, as in a fleet that runs no auditor. Payments
    /// that it has not read are never compared with their orders. This option is noted behind the reason of the close
    #[arg(long)]
    accept_unaudited: bool,
    /// Detach without asking whether the transfers from before the close are sealed, as where the ledger is never sealed. This option is
    /// noted behind the reason of the close
    #[arg(long)]
    accept_unsealed: bool,
}

impl ActivityPlace {
    fn options(&self) -> Result<ServiceOptions> {
        ServiceOptions::load(self.config.as_deref(), self.data.clone())
    }

    /// Opens the ledger for writing, under its mark where it has one. There must be one: a mistyped place makes none.
    fn open(&self, options: &ServiceOptions) -> Result<Ledger> {
        drop(options.ledger.open_reader(&options.data)?);
        let ledger = options.ledger.open(&options.data, Unbudgeted::Refuse)?;
        match options.open_mark()? {
            Some(mark) => ledger.guarded(mark.guard).context("the ledger cannot be compared with its mark"),
            None => Ok(ledger),
        }
    }

    fn say(&self, what: &str, text: &str) {
        match self.json {
            true => println!("{}", json!({"activity": self.activity, "outcome": what})),
            false => println!("{text}"),
        }
    }
}

/// Runs `close`.
pub fn close(args: &CloseArgs) -> Result<Outcome> {
    let CloseArgs { place, reason, operator, watch_s } = args;
    let activity = place.activity.as_str();
    if reason.trim().is_empty() {
        bail!("--reason must say why the activity is closed");
    }
    let options = place.options()?;
    let operator = operator
        .clone()
        .or_else(|| ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()))
        .context("the system does not say who you are: name yourself by --operator")?;
    let mut ledger = place.open(&options)?;
    let before = given(&ledger, activity)?;
    if *watch_s > 0 && !is_closed(&ledger, activity)? {
        eprintln!("watching the budgets of activity {activity} for {watch_s} s");
        std::thread::sleep(Duration::from_secs(*watch_s));
        if given(&ledger, activity)? != before {
            bail!(
                "activity {activity} is still active: its budgets changed within {watch_s} s. Nothing was changed. To close it anyway, use \
                 --watch-s 0"
            );
        }
    }
    let time_ms = i64::try_from(now_ms()).unwrap_or(i64::MAX);
    let which = Close { activity, operator: &operator, reason, time_ms };
    Ok(match ledger.close_activity(&which).context("the activity cannot be closed")? {
        Closed::Now => {
            place.say(
                "closed",
                &format!("activity {activity} is closed: the ledger credits no more orders of it"),
            );
            Outcome::Clean
        }
        Closed::Before => {
            place.say("closed_before", &format!("activity {activity} is already closed"));
            Outcome::Clean
        }
        Closed::Unknown => {
            bail!("the ledger knows no order and no budget of activity {activity}. Check the spelling")
        }
        Closed::Reserved { orders } => bail!(
            "activity {activity} has {orders} reserved orders (counted up to 1,000). Nothing was changed. List them by windfall operate reserved \
             --older-than-s 0; each must be credited, refused or released first"
        ),
    })
}

/// What the budgets of an activity have given out and hold.
fn given(ledger: &Ledger, activity: &str) -> Result<(i64, i64)> {
    let budgets = ledger.budgets().context("the budgets cannot be read")?;
    let own = budgets.iter().filter(|one| one.activity == activity);
    Ok(own.fold((0, 0), |(used, reserved), one| {
        (used.saturating_add(one.used), reserved.saturating_add(one.reserved))
    }))
}

fn is_closed(ledger: &Ledger, activity: &str) -> Result<bool> {
    let reader = ledger.reader().context("the ledger cannot be read")?;
    Ok(reader
        .closed_activities()
        .context("the ledger cannot be read")?
        .iter()
        .any(|one| one.activity == activity))
}

/// Runs `reopen`.
pub fn reopen(place: &ActivityPlace) -> Result<Outcome> {
    let activity = place.activity.as_str();
    let options = place.options()?;
    let mut ledger = place.open(&options)?;
    match ledger.reopen_activity(activity).context("the activity cannot be opened again")? {
        Reopened::Now => place.say(
            "open",
            &format!("activity {activity} is open again. Replay its entries of the archive: windfall operate archive --reason activity_closed --open, then \
             windfall operate replay ID …"),
        ),
        Reopened::WasOpen => place.say("was_open", &format!("activity {activity} was not closed")),
        Reopened::Detached => {
            bail!("activity {activity} cannot be reopened: detach has begun, and deleted orders could be credited a second time. Nothing was changed")
        }
    }
    Ok(Outcome::Clean)
}

/// Runs `closed`.
pub fn list(config: Option<&Path>, data: Option<PathBuf>, as_json: bool) -> Result<Outcome> {
    let options = ServiceOptions::load(config, data)?;
    let reader = options.ledger.open_kept_reader(&options.data)?;
    let all = reader.closed_activities().context("the ledger cannot be read")?;
    if as_json {
        println!("{:#}", all.iter().map(json_of).collect::<serde_json::Value>());
    } else if all.is_empty() {
        println!("no activity is closed");
    }
    for ClosedActivity { activity, operator, reason, closed_ms, detached } in all.iter().filter(|_| !as_json)
    {
        let gone = match detached {
            None => "its orders are in the ledger".to_owned(),
            Some(gone) if gone.done_ms.is_none() => format!(
                "detach of its {} orders is not finished; run windfall ledger detach {activity} --export FOLDER with the export whose checksum is \
                 {}",
                HumanCount(gone.orders),
                gone.export
            ),
            Some(gone) => format!("its {} orders are in the export {}", HumanCount(gone.orders), gone.export),
        };
        println!("{activity}: closed {} by {operator} ({reason}); {gone}", utc(closed_ms.unsigned_abs()));
    }
    Ok(Outcome::Clean)
}

fn json_of(one: &ClosedActivity) -> serde_json::Value {
    let detached = one.detached.as_ref().map(|gone| {
        json!({"orders": gone.orders, "export": gone.export, "began_ms": gone.began_ms, "done_ms": gone.done_ms})
    });
    json!({
        "activity": one.activity,
        "operator": one.operator,
        "reason": one.reason,
        "closed_ms": one.closed_ms,
        "detached": detached,
    })
}

/// Runs `detach`.
pub fn detach(args: &DetachArgs) -> Result<Outcome> {
    let DetachArgs { place, export, accept_unaudited, accept_unsealed } = args;
    let activity = place.activity.as_str();
    let (manifest, checksum) = Manifest::read(export)?;
    if manifest.activity != activity {
        bail!("{} is an export of activity {}, not of {activity}", export.display(), manifest.activity);
    }
    let wrong = manifest.compare(export);
    if !wrong.is_empty() {
        wrong.iter().for_each(|line| eprintln!("{line}"));
        bail!("{} is damaged; nothing was changed", export.display());
    }
    let options = place.options()?;
    let mut ledger = place.open(&options)?;
    let reader = ledger.reader().context("the ledger cannot be read")?;
    let known = closed(&reader, activity)?;
    if known.detached.is_none() {
        compare(&reader, &manifest)?;
    }
    let budgets = manifest.detached_budgets();
    let now = || i64::try_from(now_ms()).unwrap_or(i64::MAX);
    let which = Detach {
        activity,
        closed_ms: manifest.closed_ms,
        export: &checksum,
        budgets: &budgets,
        accept_unaudited: *accept_unaudited,
        accept_unsealed: *accept_unsealed,
        time_ms: now(),
    };
    match ledger.begin_detach(&which).context("the orders cannot be detached")? {
        DetachBegun::Now | DetachBegun::Before => {}
        DetachBegun::NotClosed => bail!(
            "activity {activity} is not closed, or was reopened since it was exported. Nothing was changed; close it, and export it again"
        ),
        DetachBegun::OtherExport { export } => {
            bail!("detach was begun with another export (checksum {export}). Run it again with that export")
        }
        DetachBegun::Unproven(missing) => bail!("{missing}. Nothing was changed"),
    }
    let gone = delete(&mut ledger, activity, manifest.orders.rows, now)?;
    match place.json {
        true => println!(
            "{}",
            json!({"activity": activity, "outcome": "detached", "orders": gone, "export": checksum})
        ),
        false => println!(
            "deleted {} orders of activity {activity} in this run; the export {checksum} has {}",
            HumanCount(gone),
            HumanCount(manifest.orders.rows)
        ),
    }
    Ok(Outcome::Clean)
}

/// Refuses an export that has not exactly the orders of the ledger.
fn compare(reader: &LedgerReader, manifest: &Manifest) -> Result<()> {
    let mut sums = Sums::default();
    each(
        "orders",
        |after| reader.orders_of_activity(&manifest.activity, after),
        |order| {
            sums.add(order);
            Ok(())
        },
    )?;
    match manifest.difference(&sums) {
        None => Ok(()),
        Some(what) => bail!("{what}. Nothing was changed; export the activity again"),
    }
}

fn delete(ledger: &mut Ledger, activity: &str, orders: u64, now: impl Fn() -> i64) -> Result<u64> {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} orders, {eta} left")
        .context("the bar's own text")?;
    let bar = ProgressBar::new(orders).with_style(style);
    let (mut gone, mut after) = (0, String::new());
    loop {
        let step = ledger.detach_step(activity, &after, now()).with_context(|| {
            format!("{gone} orders were deleted; run the same command again, and it continues")
        })?;
        gone += step.orders;
        bar.set_position(gone);
        match step.next {
            Some(next) => after = next,
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok(gone)
}
