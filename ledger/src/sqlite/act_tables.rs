//! The tables of operators' acts in a file. They are no part of the schema's version: a build that does not know them leaves
//! them as they are.

use crate::error::LedgerError;
use rusqlite::{Connection, OptionalExtension};

/// `acts` and `act_ends` are only ever appended to. `frozen_users` follows from them.
pub(super) const TABLES: &str = "
BEGIN;
CREATE TABLE IF NOT EXISTS acts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    nth INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    deed TEXT NOT NULL,
    reason TEXT NOT NULL,
    evidence TEXT NOT NULL,
    operator TEXT NOT NULL,
    actor TEXT NOT NULL,
    proposed_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    parent INTEGER NOT NULL DEFAULT 0,
    UNIQUE (key, nth)
) STRICT;
CREATE INDEX IF NOT EXISTS acts_subject ON acts (subject);
CREATE INDEX IF NOT EXISTS acts_parent ON acts (parent, id);
CREATE TABLE IF NOT EXISTS act_ends (
    act INTEGER NOT NULL PRIMARY KEY REFERENCES acts (id),
    outcome INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    detail TEXT NOT NULL,
    operator TEXT NOT NULL,
    actor TEXT NOT NULL,
    time_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS correction_pages (
    act INTEGER NOT NULL REFERENCES acts (id),
    nth INTEGER NOT NULL,
    orders INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    short_orders INTEGER NOT NULL,
    short_amount INTEGER NOT NULL,
    operator TEXT NOT NULL,
    actor TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    PRIMARY KEY (act, nth)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS frozen_users (
    user_id INTEGER NOT NULL PRIMARY KEY,
    act INTEGER NOT NULL,
    since_ms INTEGER NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS acts_no_update BEFORE UPDATE ON acts
BEGIN SELECT RAISE(ABORT, 'acts are only ever appended'); END;
CREATE TRIGGER IF NOT EXISTS acts_no_delete BEFORE DELETE ON acts
BEGIN SELECT RAISE(ABORT, 'acts are only ever appended'); END;
CREATE TRIGGER IF NOT EXISTS acts_no_replace BEFORE INSERT ON acts
WHEN EXISTS (SELECT 1 FROM acts WHERE id = NEW.id OR (key = NEW.key AND nth = NEW.nth))
BEGIN SELECT RAISE(ABORT, 'acts are only ever appended'); END;
CREATE TRIGGER IF NOT EXISTS act_ends_no_update BEFORE UPDATE ON act_ends
BEGIN SELECT RAISE(ABORT, 'ends of acts are only ever appended'); END;
CREATE TRIGGER IF NOT EXISTS act_ends_no_delete BEFORE DELETE ON act_ends
BEGIN SELECT RAISE(ABORT, 'ends of acts are only ever appended'); END;
CREATE TRIGGER IF NOT EXISTS act_ends_no_replace BEFORE INSERT ON act_ends
WHEN EXISTS (SELECT 1 FROM act_ends WHERE act = NEW.act)
BEGIN SELECT RAISE(ABORT, 'ends of acts are only ever appended'); END;
CREATE TRIGGER IF NOT EXISTS correction_pages_no_update BEFORE UPDATE ON correction_pages
BEGIN SELECT RAISE(ABORT, 'pages of corrections are only ever appended'); END;
CREATE TRIGGER IF NOT EXISTS correction_pages_no_delete BEFORE DELETE ON correction_pages
BEGIN SELECT RAISE(ABORT, 'pages of corrections are only ever appended'); END;
CREATE TRIGGER IF NOT EXISTS correction_pages_no_replace BEFORE INSERT ON correction_pages
WHEN EXISTS (SELECT 1 FROM correction_pages WHERE act = NEW.act AND nth = NEW.nth)
BEGIN SELECT RAISE(ABORT, 'pages of corrections are only ever appended'); END;
COMMIT;
";

/// Whether the tables are there: a file that no writer of this build has opened has none.
pub(super) fn are_there(db: &Connection) -> Result<bool, LedgerError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'correction_pages_no_replace')";
    Ok(db.query_row(sql, [], |row| row.get(0))?)
}

/// The act that froze a user, and when, where the tables are there.
pub(super) fn frozen(db: &Connection, user_id: i64) -> Result<Option<(i64, i64)>, LedgerError> {
    let sql = "SELECT act, since_ms FROM frozen_users WHERE user_id = ?1";
    Ok(db.prepare_cached(sql)?.query_row([user_id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}
