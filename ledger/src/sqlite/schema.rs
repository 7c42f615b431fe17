//! Opens a file: the pragmas, the schema's version, and the writer's lock.

use super::tables::{BUDGET_CHECK, MIGRATIONS};
use super::{act_tables, closed};
use crate::error::OpenError;
use crate::model::Unbudgeted;
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

/// The schema's version, in `user_version`.
pub(crate) const VERSION: i64 = 6;
/// "Wfal" in `application_id`, by which a ledger differs from another SQLite file.
const APPLICATION_ID: i64 = 0x5766_616c;
/// A batch touches most pages of `accounts`: fewer, larger ones cost less to find and to write. Measured by
/// `examples/grant.rs` at batches of 8,192: 4 KiB 3.8 µs per order, 8 KiB 3.3, 16 KiB 3.3.
const PAGE_BYTES: u64 = 8192;

/// Options of a ledger in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerOptions {
    /// What happens to orders of an activity, scene and type for which no budget was set. Default: they
    /// are refused.
    pub unbudgeted: Unbudgeted,
    /// How long a statement waits for another connection's lock, 0 to 60,000 ms. Default 5,000.
    pub busy_timeout_ms: u64,
    /// Page cache, 1 to 1,024 MiB. Default 32.
    pub cache_mib: u32,
    /// The size at which the write-ahead log is copied into the file, 1 to 4,096 MiB. Default 64:
    /// a page that many transactions touch is then written back once.
    pub checkpoint_mib: u32,
    /// The file refuses to grow beyond this; `None` leaves it to the disk.
    pub max_bytes: Option<u64>,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            unbudgeted: Unbudgeted::Refuse,
            busy_timeout_ms: 5_000,
            cache_mib: 32,
            checkpoint_mib: 64,
            max_bytes: None,
        }
    }
}

/// The writer's lock, which is held while the ledger is open; the system releases it when the process dies.
#[derive(Debug)]
pub(crate) struct WriterLock {
    _file: File,
}

fn lock(path: &Path) -> Result<WriterLock, OpenError> {
    let shown = || path.display().to_string();
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(name).map_err(
            |error| match error.kind() {
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                    OpenError::ReadOnly { path: shown() }
                }
                _ => OpenError::Io { path: shown(), what: error.to_string() },
            },
        )?;
    match file.try_lock() {
        Ok(()) => Ok(WriterLock { _file: file }),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: shown() }),
        Err(TryLockError::Error(error)) => Err(OpenError::Io { path: shown(), what: error.to_string() }),
    }
}

/// Opens a ledger for writing, and makes it where there is none.
pub(crate) fn open_writer(
    path: &Path,
    options: &LedgerOptions,
) -> Result<(Connection, WriterLock), OpenError> {
    let lock = lock(path)?;
    let sql = |error: rusqlite::Error| OpenError::of_sql(path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
    let db = Connection::open_with_flags(path, flags).map_err(sql)?;
    if db.is_readonly("main").map_err(sql)? {
        return Err(OpenError::ReadOnly { path: path.display().to_string() });
    }
    db.busy_timeout(Duration::from_millis(options.busy_timeout_ms)).map_err(sql)?;
    db.set_prepared_statement_cache_capacity(64);
    let found = check_version(&db, path)?;
    // page_size counts only before the first page is written.
    db.execute_batch(&format!("PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL;")).map_err(sql)?;
    let checkpoint_pages = u64::from(options.checkpoint_mib) * 1024 * 1024 / PAGE_BYTES;
    db.execute_batch(&format!(
        "PRAGMA synchronous = FULL; PRAGMA foreign_keys = OFF; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0;
         PRAGMA cache_size = -{}; PRAGMA wal_autocheckpoint = {checkpoint_pages};",
        u64::from(options.cache_mib) * 1024,
    ))
    .map_err(sql)?;
    if let Some(bytes) = options.max_bytes {
        db.execute_batch(&format!("PRAGMA max_page_count = {};", (bytes / PAGE_BYTES).max(1)))
            .map_err(sql)?;
    }
    if found < VERSION {
        migrate(&db, found).map_err(sql)?;
    }
    db.execute_batch(act_tables::TABLES).map_err(sql)?;
    db.execute_batch(closed::TABLES).map_err(sql)?;
    Ok((db, lock))
}

/// Migrates the file from version `found`, 0 where it is empty, to the newest one: completely or not at all.
fn migrate(db: &Connection, found: i64) -> Result<(), rusqlite::Error> {
    // I4 is checked by the database as well, whatever the code above it does.
    #[cfg(feature = "sabotage")]
    let check = if crate::sabotage::budget_check_is_off() { "" } else { BUDGET_CHECK };
    #[cfg(not(feature = "sabotage"))]
    let check = BUDGET_CHECK;
    let done = usize::try_from(found).unwrap_or(0).min(MIGRATIONS.len());
    let steps = MIGRATIONS[done..].concat().replace("BUDGET_CHECK", check);
    let tx = db.unchecked_transaction()?;
    tx.execute_batch(&format!(
        "{steps} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
    ))?;
    tx.commit()
}

/// Whether orders may be stored under their numbers alone, and withdrawals under their ids, since before version 6.
pub(crate) fn has_bare(db: &Connection) -> Result<bool, rusqlite::Error> {
    db.query_row("SELECT EXISTS (SELECT 1 FROM bare_orders)", [], |row| row.get(0))
}

/// Opens a ledger for reading alone; nothing is created.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    open_beside(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// Opens a ledger beside its writer, for sealing: what this writes, the writer never does.
pub(crate) fn open_sealer(path: &Path) -> Result<Connection, OpenError> {
    let db = open_beside(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // The log is copied into the file by its writer, when `checkpoint_mib` says so, or when the last connection closes.
    db.execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0")
        .map_err(|error| OpenError::of_sql(path, &error))?;
    Ok(db)
}

fn open_beside(path: &Path, access: OpenFlags) -> Result<Connection, OpenError> {
    let sql = |error: rusqlite::Error| OpenError::of_sql(path, &error);
    let db = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(sql)?;
    db.busy_timeout(Duration::from_secs(5)).map_err(sql)?;
    db.execute_batch("PRAGMA cache_size = -16384").map_err(sql)?;
    let what = match check_version(&db, path)? {
        VERSION => return Ok(db),
        0 => "it is empty".to_owned(),
        found => format!("its schema has version {found}; open it for writing once to bring it to {VERSION}"),
    };
    Err(OpenError::Damaged { path: path.display().to_string(), what })
}

/// The version of the file, 0 where it is empty. Refuses what is no ledger or a newer one, before anything is
/// written.
fn check_version(db: &Connection, path: &Path) -> Result<i64, OpenError> {
    let sql = |error: rusqlite::Error| OpenError::of_sql(path, &error);
    let pragma = |name| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(sql);
    let (id, version) = (pragma("application_id")?, pragma("user_version")?);
    let shown = path.display().to_string();
    if id == 0 && version == 0 {
        let tables: i64 =
            db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sql)?;
        if tables == 0 {
            return Ok(0);
        }
    }
    if id != APPLICATION_ID {
        return Err(OpenError::Damaged { path: shown, what: "it is another program's database".into() });
    }
    if version > VERSION {
        return Err(OpenError::Newer { path: shown, found: version, known: VERSION });
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{HoldOutcome, Ledger, LedgerReader, Order, OrderOutcome};
    use windfall_contract::accounts::Withdrawal;

    /// A file as version 1 left it: one order, credited, of one user.
    fn of_version_1(path: &Path) {
        let db = Connection::open(path).unwrap();
        let tables = MIGRATIONS[0].replace("BUDGET_CHECK", BUDGET_CHECK);
        db.execute_batch(&format!(
            "{tables} INSERT INTO names VALUES (1, 'spring'), (2, 'rain'), (3, 'cash'); \
             INSERT INTO programs VALUES (1, 1, 2, 3, 0); \
             INSERT INTO budget_shards VALUES (1, 0, 100, 10, 0); \
             INSERT INTO orders VALUES ('a', 7, 1, 10, 1, 0, 1, 1000, 0); \
             INSERT INTO transfers VALUES (1, 'a', 7, 1, 10, 0, 1000); \
             INSERT INTO accounts VALUES (0, 3, 7, 10, 1), (1, 3, 1, -10, 0); \
             PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;"
        ))
        .unwrap();
    }

    #[test]
    fn a_file_of_version_1_is_brought_up_and_a_reader_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        of_version_1(&path);
        let refused = LedgerReader::open(&path).map(drop).unwrap_err().to_string();
        assert!(refused.contains("version 1") && refused.contains("open it for writing"), "{refused}");
        for _ in 0..2 {
            let mut ledger = Ledger::open(
                &path,
                &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
            )
            .unwrap();
            let order = Order {
                trade_no: "a",
                user_id: 7,
                activity: "spring",
                scene: "rain",
                bonus_type: "cash",
                amount: 10,
                time_ms: 1,
            };
            assert_eq!(ledger.apply(&[order]).unwrap(), [OrderOutcome::AlreadyCredited]);
            // The earlier versions did not compare it, but stored it.
            let others = [Order { scene: "cards", ..order }];
            assert_eq!(ledger.apply(&others).unwrap(), [OrderOutcome::Conflict]);
        }
        let mut ledger =
            Ledger::open(&path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
                .unwrap();
        let take = Withdrawal { id: "w".into(), user_id: 7, bonus_type: "cash".into(), amount: 4 };
        assert_eq!(ledger.transact(|tx| tx.hold(&[(&take, "")], 2_000)).unwrap(), [HoldOutcome::Held]);
        assert_eq!(ledger.balance(7, "cash").unwrap(), 6);
        assert_eq!(ledger.flow(7, 9).unwrap().len(), 2);
        drop(ledger);
        let found = LedgerReader::open(&path).unwrap().reconcile().unwrap();
        assert!(found.is_clean(), "{found:?}");
    }

    #[test]
    fn a_sealer_leaves_the_log_to_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        drop(open_writer(&path, &LedgerOptions::default()).unwrap());
        let sealer = open_sealer(&path).unwrap();
        let pages: i64 = sealer.pragma_query_value(None, "wal_autocheckpoint", |row| row.get(0)).unwrap();
        assert_eq!(pages, 0);
    }

    #[test]
    fn a_migration_that_dies_leaves_version_1_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        of_version_1(&path);
        let raw = Connection::open(&path).unwrap();
        // It cannot make its last table.
        raw.execute_batch("CREATE TABLE accounts_2 (x)").unwrap();
        assert!(
            Ledger::open(&path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
                .is_err()
        );
        let version: i64 = raw.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        assert_eq!(version, 1);
        raw.execute_batch("DROP TABLE accounts_2").unwrap();
        drop(raw);
        assert_eq!(
            Ledger::open(&path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
                .unwrap()
                .balance(7, "cash")
                .unwrap(),
            10
        );
    }
}
