//! `windfall ledger export` and `check-export`: all rows of a closed activity as Parquet, with a manifest.

use super::manifest::{self, Exported, Manifest, Sums, reason_of_word, status_words, sum_up};
use super::parquet::{Columns, Record, Table, each_row};
use crate::admin::{now_ms, utc};
use crate::outcome::Outcome;
use crate::services::ServiceOptions;
use anyhow::{Context, Result, bail};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use parquet::record::RowAccessor;
use serde_json::json;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use windfall_contract::accounts::{Status, StoredOrder};
use windfall_ledger::{
    ArchiveFilter, Archived, ClosedActivity, LedgerReader, OrderRow, RowsPage, TransferRow,
};
use windfall_proto::event::EventRef;

const ORDERS: &str = "orders.parquet";
const TRANSFERS: &str = "transfers.parquet";
const ARCHIVE: &str = "archive.parquet";
/// The entries of a page of the archive.
const ARCHIVE_PAGE: u32 = 1_000;

/// What is exported, and where to.
#[derive(Debug, Clone, clap::Args)]
pub struct ExportArgs {
    /// The closed activity
    activity: String,
    /// The folder to write; there must be none of this name, and the folder that it is in must be there
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
    /// The options file of the services, which says where the ledger is
    #[arg(long)]
    config: Option<PathBuf>,
    /// The data directory, instead of the option `data`; a ledger in a file is in it
    #[arg(long)]
    data: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The orders of an export, as their file has them.
pub fn read_orders(file: &Path, activity: &str, mut take: impl FnMut(&OrderRow)) -> Result<()> {
    each_row(file, |row| {
        let time = |at: usize| row.get_timestamp_millis(at);
        let status = match (row.get_string(7)?.as_str(), row.is_null(8)?) {
            ("credited", true) => Status::Credited,
            ("reserved", true) => Status::Reserved,
            ("rejected", false) => Status::Rejected(reason_of_word(row.get_string(8)?)?),
            (other, _) => bail!("an order has the unknown status {other:?}"),
        };
        let order = StoredOrder {
            key: row.get_string(0)?.clone(),
            trade_no: row.get_string(1)?.clone(),
            user_id: row.get_long(2)?,
            activity: activity.to_owned(),
            scene: row.get_string(4)?.clone(),
            bonus_type: row.get_string(5)?.clone(),
            amount: row.get_long(6)?,
            status,
            payer: row.get_string(9)?.clone(),
            created_ms: time(10)?,
            decided_ms: if row.is_null(11)? { None } else { Some(time(11)?) },
        };
        take(&OrderRow { order, budget: row.get_long(3)?, paid_by: row.get_long(12)? });
        Ok(())
    })
}

impl Record for OrderRow {
    const SCHEMA: &'static str = "message order {
        REQUIRED BINARY order_key (STRING);
        REQUIRED BINARY trade_no (STRING);
        REQUIRED INT64 user_id;
        REQUIRED INT64 budget;
        REQUIRED BINARY scene (STRING);
        REQUIRED BINARY bonus_type (STRING);
        REQUIRED INT64 amount;
        REQUIRED BINARY status (STRING);
        OPTIONAL BINARY reason (STRING);
        REQUIRED BINARY payer (STRING);
        REQUIRED INT64 created (TIMESTAMP(MILLIS,true));
        OPTIONAL INT64 decided (TIMESTAMP(MILLIS,true));
        REQUIRED INT64 paid_by;
    }";

    fn put(&self, columns: &mut Columns<'_>) {
        let Self { order, budget, paid_by } = self;
        let (status, reason) = status_words(order.status);
        columns.bytes(order.key.as_bytes());
        columns.bytes(order.trade_no.as_bytes());
        columns.int(order.user_id);
        columns.int(*budget);
        columns.bytes(order.scene.as_bytes());
        columns.bytes(order.bonus_type.as_bytes());
        columns.int(order.amount);
        columns.bytes(status.as_bytes());
        columns.maybe_bytes(reason.map(str::as_bytes));
        columns.bytes(order.payer.as_bytes());
        columns.int(order.created_ms);
        columns.maybe_int(order.decided_ms);
        columns.int(*paid_by);
    }
}

impl Record for TransferRow {
    const SCHEMA: &'static str = "message transfer {
        REQUIRED INT64 id;
        REQUIRED BINARY kind (STRING);
        REQUIRED BINARY bonus_type (STRING);
        REQUIRED BINARY debit (STRING);
        REQUIRED INT64 debit_holder;
        REQUIRED BINARY credit (STRING);
        REQUIRED INT64 credit_holder;
        REQUIRED INT64 amount;
        REQUIRED BINARY reference (STRING);
        REQUIRED INT64 prev;
        REQUIRED INT64 time (TIMESTAMP(MILLIS,true));
        REQUIRED INT64 place;
    }";

    fn put(&self, columns: &mut Columns<'_>) {
        columns.int(self.id);
        columns.bytes(self.kind.as_bytes());
        columns.bytes(self.bonus_type.as_bytes());
        columns.bytes(self.debit.as_bytes());
        columns.int(self.debit_holder);
        columns.bytes(self.credit.as_bytes());
        columns.int(self.credit_holder);
        columns.int(self.amount);
        columns.bytes(self.reference.as_bytes());
        columns.int(self.prev);
        columns.int(self.time_ms);
        columns.int(self.place);
    }
}

impl Record for Archived {
    const SCHEMA: &'static str = "message archived {
        REQUIRED INT64 id;
        OPTIONAL BINARY trade_no (STRING);
        REQUIRED BINARY reason (STRING);
        REQUIRED BINARY detail (STRING);
        REQUIRED INT64 archived (TIMESTAMP(MILLIS,true));
        REQUIRED BINARY event;
        OPTIONAL INT64 replayed (TIMESTAMP(MILLIS,true));
        OPTIONAL BINARY replayed_by (STRING);
        OPTIONAL BINARY outcome (STRING);
    }";

    fn put(&self, columns: &mut Columns<'_>) {
        let replay = self.replay.as_ref();
        columns.int(self.id);
        columns.maybe_bytes(self.trade_no.as_deref().map(str::as_bytes));
        columns.bytes(self.reason.as_bytes());
        columns.bytes(self.detail.as_bytes());
        columns.int(self.time_ms);
        columns.bytes(&self.payload);
        columns.maybe_int(replay.map(|replay| replay.time_ms));
        columns.maybe_bytes(replay.map(|replay| replay.actor.as_bytes()));
        columns.maybe_bytes(replay.map(|replay| replay.outcome.as_bytes()));
    }
}

/// Runs `export`.
pub fn run(args: &ExportArgs) -> Result<Outcome> {
    let options = ServiceOptions::load(args.config.as_deref(), args.data.clone())?;
    let reader = options.ledger.open_kept_reader(&options.data)?;
    let closed = closed(&reader, &args.activity)?;
    if let Some(detached) = &closed.detached {
        bail!(
            "the orders of activity {} left the ledger from {} on; the export with the checksum {} has them",
            args.activity,
            utc(detached.began_ms.unsigned_abs()),
            detached.export
        );
    }
    let partial = begin(&args.to)?;
    let written = write(&reader, &closed, &partial)?;
    // Opened again and closed since, it may have other orders.
    if self::closed(&reader, &args.activity)? != closed {
        bail!(
            "activity {} was reopened during the export, so the export is incomplete. Delete {}, and export it again",
            args.activity,
            partial.display()
        );
    }
    let checksum = finish(&partial, &args.to, &written)?;
    let Manifest { orders, transfers, archive, .. } = &written;
    if args.json {
        println!(
            "{:#}",
            json!({
                "activity": args.activity,
                "folder": args.to,
                "checksum": checksum,
                "orders": orders.rows,
                "transfers": transfers.rows,
                "archive": archive.rows,
            })
        );
    } else {
        println!(
            "{}: {} orders, {} transfers and {} entries of the archive; the manifest's checksum is {checksum}",
            args.to.display(),
            HumanCount(orders.rows),
            HumanCount(transfers.rows),
            HumanCount(archive.rows)
        );
    }
    Ok(Outcome::Clean)
}

/// The closed activity of this name.
pub fn closed(reader: &LedgerReader, activity: &str) -> Result<ClosedActivity> {
    let all = reader.closed_activities().context("the ledger cannot be read")?;
    all.into_iter().find(|one| one.activity == activity).with_context(|| {
        format!(
            "activity {activity} is not closed; close it first: windfall ledger close {activity} --reason …"
        )
    })
}

/// Makes the folder that the export is written into, beside the one that it becomes: who finds that has all of it.
fn begin(to: &Path) -> Result<PathBuf> {
    let name = to.file_name().with_context(|| format!("{} is no folder to write", to.display()))?;
    if to.exists() {
        bail!(
            "{} already exists. Choose another folder, or check this one by windfall ledger check-export",
            to.display()
        );
    }
    let mut partial = name.to_owned();
    partial.push(".partial");
    let partial = to.with_file_name(partial);
    match fs::create_dir(&partial) {
        Ok(()) => Ok(partial),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => bail!(
            "{} already exists: another export is running, or one was interrupted. If none is running, delete it",
            partial.display()
        ),
        Err(error) => Err(error).with_context(|| format!("{} cannot be made", partial.display())),
    }
}

fn write(reader: &LedgerReader, closed: &ClosedActivity, folder: &Path) -> Result<Manifest> {
    let activity = closed.activity.as_str();
    let mut sums = Sums::default();
    let mut orders = Table::create::<OrderRow>(folder.join(ORDERS))?;
    each(
        "orders",
        |after| reader.orders_of_activity(activity, after),
        |order| {
            sums.add(order);
            orders.push(order)
        },
    )?;
    let orders = exported(folder, ORDERS, orders.finish()?)?;
    let mut transfers = Table::create::<TransferRow>(folder.join(TRANSFERS))?;
    each("transfers", |after| reader.transfers_of_activity(activity, after), |row| transfers.push(row))?;
    let transfers = exported(folder, TRANSFERS, transfers.finish()?)?;
    let mut archive = Table::create::<Archived>(folder.join(ARCHIVE))?;
    of_archive(reader, activity, |entry| archive.push(entry))?;
    let archive = exported(folder, ARCHIVE, archive.finish()?)?;
    let now = i64::try_from(now_ms()).unwrap_or(i64::MAX);
    Ok(Manifest::new(closed, now, [orders, transfers, archive], &sums))
}

/// Reads all pages, and hands each row on.
pub fn each<R>(
    what: &str,
    read: impl Fn(&str) -> Result<RowsPage<R>, windfall_ledger::LedgerError>,
    mut take: impl FnMut(&R) -> Result<()>,
) -> Result<()> {
    let style = ProgressStyle::with_template("{spinner} {msg}").context("the bar's own text")?;
    let bar = ProgressBar::new_spinner().with_style(style);
    let (mut after, mut rows) = (String::new(), 0_u64);
    loop {
        let page = read(&after).with_context(|| format!("the {what} cannot be read"))?;
        page.rows.iter().try_for_each(&mut take)?;
        rows += page.rows.len() as u64;
        let read = match page.read_per_mille {
            0 => String::new(),
            share => format!(", {}.{} % of the table is read", share / 10, share % 10),
        };
        bar.set_message(format!("{} {what}{read}", HumanCount(rows)));
        bar.tick();
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Entries of the archive whose event is of this activity. What holds no event that can be read belongs to none.
fn of_archive(
    reader: &LedgerReader,
    activity: &str,
    mut take: impl FnMut(&Archived) -> Result<()>,
) -> Result<()> {
    let mut filter = ArchiveFilter { limit: ARCHIVE_PAGE, ..ArchiveFilter::default() };
    loop {
        let entries = reader.archive_list(&filter).context("the archive cannot be read")?;
        for entry in &entries {
            if EventRef::parse(&entry.payload).is_ok_and(|event| event.activity == activity) {
                take(entry)?;
            }
        }
        match entries.last() {
            Some(last) => filter.after = last.id,
            None => return Ok(()),
        }
    }
}

fn exported(folder: &Path, file: &str, rows: u64) -> Result<Exported> {
    let (bytes, sha256) = sum_up(&folder.join(file))?;
    Ok(Exported { file: file.into(), rows, bytes, sha256 })
}

/// Writes the manifest, reads all of it back, and gives the folder its name: it is durable and whole then. Returns the manifest's checksum.
fn finish(partial: &Path, to: &Path, written: &Manifest) -> Result<String> {
    let path = partial.join(manifest::FILE);
    let failed = || format!("{} cannot be written", path.display());
    let mut text = serde_json::to_vec_pretty(written)?;
    text.push(b'\n');
    fs::write(&path, text).with_context(failed)?;
    File::open(&path).and_then(|file| file.sync_all()).with_context(failed)?;
    sync_folder(partial)?;
    let wrong = written.compare(partial);
    if !wrong.is_empty() {
        bail!("{} is not as it was written: {}", partial.display(), wrong.join("; "));
    }
    fs::rename(partial, to)
        .with_context(|| format!("{} cannot be named {}", partial.display(), to.display()))?;
    sync_folder(to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    Ok(Manifest::read(to)?.1)
}

fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("{} cannot be made durable", folder.display()))
}

/// Runs `check-export`.
pub fn check(folder: &Path, as_json: bool) -> Result<Outcome> {
    let (manifest, checksum) = Manifest::read(folder)?;
    let wrong = manifest.compare(folder);
    if as_json {
        println!(
            "{:#}",
            json!({
                "ok": wrong.is_empty(),
                "activity": manifest.activity,
                "checksum": checksum,
                "orders": manifest.orders.rows,
                "transfers": manifest.transfers.rows,
                "archive": manifest.archive.rows,
                "wrong": wrong,
            })
        );
    } else {
        wrong.iter().for_each(|line| println!("{line}"));
        println!(
            "activity {}, exported {}: {}; the manifest's checksum is {checksum}",
            manifest.activity,
            utc(manifest.exported_ms.unsigned_abs()),
            if wrong.is_empty() { "each file, and each order, is as the manifest says" } else { "DAMAGED" }
        );
    }
    Ok(if wrong.is_empty() { Outcome::Clean } else { Outcome::Damage })
}
