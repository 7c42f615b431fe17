//! The tables, the pragmas, the schema's version, and the writer's lock.

use crate::error::OpenError;
use crate::model::Unbudgeted;
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

/// The schema's version, in `user_version`.
pub(crate) const VERSION: i64 = 5;
/// "Wfal" in `application_id`, by which a ledger differs from another SQLite file.
const APPLICATION_ID: i64 = 0x5766_616c;
/// A batch touches most pages of `accounts`: fewer, larger ones cost less to find and to write. Measured by
/// `examples/grant.rs` at batches of 8,192: 4 KiB 3.8 µs per order, 8 KiB 3.3, 16 KiB 3.3.
const PAGE_BYTES: u64 = 8192;

/// `orders.transfer`, later `paid_by`, is the number of the transfer that paid it, 0 for none. `transfers.prev` is the
/// transfer before it on the user's account, `accounts.last` the newest: a user's flow is a walk along these, so the
/// hottest insert needs no second index.
const V1: &str = "
CREATE TABLE names (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE programs (
    id INTEGER PRIMARY KEY,
    activity INTEGER NOT NULL REFERENCES names (id),
    scene INTEGER NOT NULL REFERENCES names (id),
    asset INTEGER NOT NULL REFERENCES names (id),
    budgeted INTEGER NOT NULL,
    UNIQUE (activity, scene, asset)
) STRICT;
CREATE TABLE budget_shards (
    program INTEGER NOT NULL REFERENCES programs (id),
    shard INTEGER NOT NULL,
    total INTEGER NOT NULL,
    used INTEGER NOT NULL CHECK (used >= 0),
    reserved INTEGER NOT NULL CHECK (reserved >= 0),
    PRIMARY KEY (program, shard)
    BUDGET_CHECK
) STRICT, WITHOUT ROWID;
CREATE TABLE orders (
    trade_no TEXT NOT NULL PRIMARY KEY,
    user_id INTEGER NOT NULL,
    program INTEGER NOT NULL,
    amount INTEGER NOT NULL CHECK (amount > 0),
    status INTEGER NOT NULL,
    reason INTEGER NOT NULL,
    transfer INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    took_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE transfers (
    id INTEGER PRIMARY KEY,
    trade_no TEXT NOT NULL,
    user_id INTEGER NOT NULL,
    program INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    prev INTEGER NOT NULL,
    time_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE accounts (
    kind INTEGER NOT NULL,
    asset INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    balance INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (kind, asset, holder)
) STRICT, WITHOUT ROWID;
CREATE TABLE archive (
    id INTEGER PRIMARY KEY,
    hash BLOB NOT NULL,
    reason TEXT NOT NULL,
    trade_no TEXT,
    payload BLOB NOT NULL,
    detail TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    replayed_ms INTEGER,
    actor TEXT,
    outcome TEXT,
    UNIQUE (hash, reason)
) STRICT;
CREATE TABLE replays (
    id INTEGER PRIMARY KEY,
    archive_id INTEGER NOT NULL REFERENCES archive (id),
    actor TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    outcome TEXT NOT NULL
) STRICT;
";

/// The text that replaces `BUDGET_CHECK` in the tables above.
const BUDGET_CHECK: &str = ", CHECK (used + reserved <= total)";

/// Withdrawals. The database itself ensures that a withdrawal is held once and ends once, and that no user's account
/// goes below 0, whatever the code above it does. A movement's number is drawn from the row of the transfers' numbers:
/// it stands in the account's chain like a transfer.
const V2: &str = "
CREATE TABLE withdrawals (
    id TEXT NOT NULL PRIMARY KEY,
    user_id INTEGER NOT NULL,
    asset INTEGER NOT NULL REFERENCES names (id),
    amount INTEGER NOT NULL CHECK (amount > 0),
    status INTEGER NOT NULL,
    reason TEXT NOT NULL,
    payer TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    decided_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX withdrawals_held ON withdrawals (id) WHERE status = 0;
CREATE TABLE withdrawal_moves (
    id INTEGER PRIMARY KEY,
    withdrawal TEXT NOT NULL,
    kind INTEGER NOT NULL,
    user_id INTEGER NOT NULL,
    asset INTEGER NOT NULL,
    amount INTEGER NOT NULL CHECK (amount > 0),
    prev INTEGER NOT NULL,
    time_ms INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX withdrawal_moves_once ON withdrawal_moves (withdrawal, kind > 0);
CREATE TABLE accounts_2 (
    kind INTEGER NOT NULL,
    asset INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    balance INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (kind, asset, holder),
    CHECK (kind <> 0 OR balance >= 0)
) STRICT, WITHOUT ROWID;
INSERT INTO accounts_2 SELECT kind, asset, holder, balance, last FROM accounts ORDER BY kind, asset, holder;
DROP TABLE accounts;
ALTER TABLE accounts_2 RENAME TO accounts;
";

/// Strict budgets, and combined ones: a program whose scene or asset has the empty name. Also the payer of an
/// order, and the version of the rules whose budgets are set: one row, or none yet.
const V3: &str = "
ALTER TABLE programs ADD COLUMN strict INTEGER NOT NULL DEFAULT 0;
ALTER TABLE orders ADD COLUMN payer TEXT NOT NULL DEFAULT '';
CREATE INDEX orders_reserved ON orders (trade_no) WHERE status = 0;
CREATE TABLE rules_version (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
) STRICT;
";

/// The journal: transfers name both accounts, and are only ever appended. `docs/ledger.md` says what each row means, and
/// what becomes of older rows. Old credits move from the user to the payer that paid them, as far as the money is still
/// there; what a downstream had refused, and is archived for that, the ledger itself may have paid.
const V4: &str = "
INSERT INTO names (name) SELECT DISTINCT payer FROM orders WHERE payer <> '' ON CONFLICT (name) DO NOTHING;
ALTER TABLE orders RENAME COLUMN transfer TO paid_by;
ALTER TABLE transfers RENAME TO transfers_3;
CREATE TABLE transfers (
    id INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 4),
    asset INTEGER NOT NULL,
    debit INTEGER NOT NULL,
    debit_holder INTEGER NOT NULL,
    credit INTEGER NOT NULL,
    credit_holder INTEGER NOT NULL,
    amount INTEGER NOT NULL CHECK (amount > 0),
    prev INTEGER NOT NULL,
    time_ms INTEGER NOT NULL,
    reference TEXT NOT NULL,
    CHECK (debit <> credit OR debit_holder <> credit_holder)
) STRICT;
CREATE TABLE transfers_settled AS
SELECT paid.id, paid.payer, paid.user_id, paid.asset, paid.amount, paid.trade_no,
    max(0, min(paid.amount, paid.balance - paid.before)) AS part
FROM (
    SELECT t.id, n.id AS payer, t.user_id, p.asset, t.amount, t.trade_no, a.balance,
        sum(t.amount) OVER (PARTITION BY p.asset, t.user_id ORDER BY t.id) - t.amount AS before
    FROM transfers_3 t JOIN orders o ON o.trade_no = t.trade_no AND o.paid_by = t.id
    JOIN names n ON n.name = o.payer JOIN programs p ON p.id = t.program
    JOIN accounts a ON a.kind = 0 AND a.asset = p.asset AND a.holder = t.user_id
    WHERE o.payer <> '' AND o.status = 1
        AND NOT EXISTS (SELECT 1 FROM archive r WHERE r.trade_no = o.trade_no)
) AS paid;
CREATE INDEX transfers_settled_id ON transfers_settled (id);
CREATE TABLE held_of_settled (
    withdrawals INTEGER CONSTRAINT
        \"withdrawals are held of money that a payer has paid already: let the older version end them first, paid or refused\"
        CHECK (withdrawals = 0)
);
INSERT INTO held_of_settled SELECT count(*) FROM withdrawals w JOIN (
    SELECT asset, user_id FROM transfers_settled GROUP BY asset, user_id HAVING sum(part) < sum(amount)
) AS spent ON spent.asset = w.asset AND spent.user_id = w.user_id WHERE w.status = 0;
DROP TABLE held_of_settled;
INSERT INTO transfers
SELECT t.id, 0, (SELECT asset FROM programs WHERE id = t.program), 2, t.program,
    CASE WHEN s.id IS NULL THEN 0 ELSE -3 END, coalesce(s.payer, t.user_id), t.amount, t.prev, t.time_ms, t.trade_no
FROM transfers_3 t LEFT JOIN transfers_settled s ON s.id = t.id AND s.part = s.amount ORDER BY t.id;
UPDATE accounts SET balance = balance - moved.amount FROM (
    SELECT asset, user_id, sum(part) AS amount FROM transfers_settled GROUP BY asset, user_id
) AS moved WHERE accounts.kind = 0 AND accounts.asset = moved.asset AND accounts.holder = moved.user_id;
INSERT INTO accounts (kind, asset, holder, balance, last)
SELECT -3, asset, payer, sum(part), 0 FROM transfers_settled WHERE part > 0 GROUP BY asset, payer;
INSERT INTO transfers
SELECT id, 0, asset, CASE kind WHEN 0 THEN 0 ELSE -1 END, CASE kind WHEN 0 THEN user_id ELSE 0 END,
    CASE kind WHEN 0 THEN -1 WHEN 1 THEN -2 ELSE 0 END, CASE kind WHEN 2 THEN user_id ELSE 0 END,
    amount, prev, time_ms, withdrawal
FROM withdrawal_moves ORDER BY id;
INSERT INTO transfers
SELECT (SELECT coalesce(max(id), 0) FROM transfers) + row_number() OVER (ORDER BY s.id), 0, s.asset, 0, s.user_id, -3,
    s.payer, s.part, a.last, CAST(strftime('%s', 'now') AS INTEGER) * 1000, s.trade_no
FROM transfers_settled s JOIN accounts a ON a.kind = 0 AND a.asset = s.asset AND a.holder = s.user_id
WHERE s.part > 0 AND s.part < s.amount;
UPDATE accounts SET last = t.id FROM transfers t
WHERE t.debit = 0 AND t.credit = -3 AND accounts.kind = 0 AND accounts.asset = t.asset
    AND accounts.holder = t.debit_holder;
INSERT INTO transfers
SELECT (SELECT coalesce(max(id), 0) FROM transfers) + row_number() OVER (ORDER BY o.trade_no), 1, p.asset, 2,
    o.program, CASE o.reason WHEN 1 THEN 0 ELSE -3 END,
    CASE o.reason WHEN 1 THEN o.user_id ELSE coalesce((SELECT id FROM names WHERE name = o.payer AND o.payer <> ''), 0) END,
    o.amount, 0, o.created_ms, o.trade_no
FROM orders o JOIN programs p ON p.id = o.program WHERE o.status = 0;
INSERT INTO transfers
SELECT (SELECT coalesce(max(id), 0) FROM transfers) + row_number() OVER (ORDER BY p.id), 0, p.asset, 1, p.activity, 2,
    p.id, h.total, 0, CAST(strftime('%s', 'now') AS INTEGER) * 1000, ''
FROM programs p JOIN (SELECT program, sum(total) AS total FROM budget_shards GROUP BY program) h ON h.program = p.id
WHERE p.budgeted AND h.total > 0;
DELETE FROM accounts WHERE kind > 0;
DROP TABLE transfers_3;
DROP TABLE transfers_settled;
DROP TABLE withdrawal_moves;
CREATE UNIQUE INDEX transfers_withdrawal_once ON transfers (reference, debit = -1) WHERE debit = -1 OR credit = -1;
CREATE TRIGGER transfers_no_update BEFORE UPDATE ON transfers
BEGIN SELECT RAISE(ABORT, 'transfers are only ever appended'); END;
CREATE TRIGGER transfers_no_delete BEFORE DELETE ON transfers
BEGIN SELECT RAISE(ABORT, 'transfers are only ever appended'); END;
-- REPLACE takes a row away without its trigger.
CREATE TRIGGER transfers_no_replace BEFORE INSERT ON transfers
WHEN EXISTS (SELECT 1 FROM transfers WHERE id = NEW.id)
    OR ((NEW.debit = -1 OR NEW.credit = -1) AND EXISTS (SELECT 1 FROM transfers
        WHERE reference = NEW.reference AND (debit = -1) = (NEW.debit = -1) AND (debit = -1 OR credit = -1)))
BEGIN SELECT RAISE(ABORT, 'transfers are only ever appended'); END;
";

/// The chain of sealed ranges. A page holds the commitments of many transfers side by side.
const V5: &str = "
CREATE TABLE seals (
    id INTEGER PRIMARY KEY,
    from_at INTEGER NOT NULL UNIQUE,
    to_at INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    sealed_ms INTEGER NOT NULL,
    previous BLOB NOT NULL,
    content BLOB NOT NULL,
    names BLOB NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE TABLE seal_pages (
    seal INTEGER NOT NULL REFERENCES seals (id),
    page INTEGER NOT NULL,
    ids BLOB NOT NULL,
    guards BLOB NOT NULL,
    hashes BLOB NOT NULL,
    PRIMARY KEY (seal, page)
) STRICT;
CREATE TRIGGER seals_no_update BEFORE UPDATE ON seals
BEGIN SELECT RAISE(ABORT, 'seals are only ever appended'); END;
CREATE TRIGGER seals_no_delete BEFORE DELETE ON seals
BEGIN SELECT RAISE(ABORT, 'seals are only ever appended'); END;
CREATE TRIGGER seals_no_replace BEFORE INSERT ON seals
WHEN EXISTS (SELECT 1 FROM seals WHERE id = NEW.id OR from_at = NEW.from_at)
BEGIN SELECT RAISE(ABORT, 'seals are only ever appended'); END;
CREATE TRIGGER seal_pages_no_replace BEFORE INSERT ON seal_pages
WHEN EXISTS (SELECT 1 FROM seal_pages WHERE seal = NEW.seal AND page = NEW.page)
BEGIN SELECT RAISE(ABORT, 'commitments are only ever appended'); END;
CREATE TRIGGER seal_pages_no_update BEFORE UPDATE ON seal_pages
BEGIN SELECT RAISE(ABORT, 'commitments are only ever appended'); END;
CREATE TRIGGER seal_pages_no_delete BEFORE DELETE ON seal_pages
BEGIN SELECT RAISE(ABORT, 'commitments are only ever appended'); END;
";

/// The migrations from each version to the next, in order. Never change one that was released.
const MIGRATIONS: [&str; 5] = [V1, V2, V3, V4, V5];

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
        let tables = V1.replace("BUDGET_CHECK", BUDGET_CHECK);
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
            // The earlier versions compared neither, but stored both.
            let others = [Order { scene: "cards", ..order }, Order { activity: "autumn", ..order }];
            assert_eq!(ledger.apply(&others).unwrap(), [OrderOutcome::Conflict; 2]);
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
