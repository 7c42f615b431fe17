//! The tables of closed activities in a file. A build that does not know them leaves them as they are, and meets their triggers.

use rusqlite::Connection;
use std::collections::BTreeSet;

pub(super) const TABLES: &str = "
BEGIN;
CREATE TABLE IF NOT EXISTS closed_activities (
    activity INTEGER NOT NULL PRIMARY KEY,
    operator TEXT NOT NULL,
    reason TEXT NOT NULL,
    closed_ms INTEGER NOT NULL,
    -- Every transfer that paid an order of it has a smaller number.
    place INTEGER NOT NULL,
    export TEXT,
    detach_ms INTEGER,
    detached_ms INTEGER
) STRICT;
CREATE TABLE IF NOT EXISTS detached_budgets (
    program INTEGER NOT NULL PRIMARY KEY,
    place INTEGER NOT NULL,
    orders INTEGER NOT NULL,
    credited INTEGER NOT NULL,
    amount INTEGER NOT NULL
) STRICT;
COMMIT;";

/// Whether the tables are there: nobody may have opened the file for writing since the build before.
pub(super) fn are_there(db: &Connection) -> Result<bool, rusqlite::Error> {
    db.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'detached_budgets')", [], |row| {
        row.get(0)
    })
}

/// The column of a transfer's place, if the tables are there.
pub(super) fn place(db: &Connection) -> Result<Option<&'static str>, rusqlite::Error> {
    Ok(are_there(db)?.then_some("id"))
}

/// The closed activities.
pub(super) fn names(db: &Connection) -> Result<BTreeSet<String>, rusqlite::Error> {
    db.prepare("SELECT n.name FROM closed_activities c JOIN names n ON n.id = c.activity")?
        .query_map([], |row| row.get(0))?
        .collect()
}
