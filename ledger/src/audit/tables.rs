//! The auditor's tables. They belong to no version of the schema: processes that do not know them do no harm to them.

/// All of them.
#[cfg(feature = "postgres")]
pub(crate) const NAMES: [&str; 5] =
    ["audit_position", "audit_sums", "audit_packed", "audit_pending", "audit_differences"];

/// `audit_position` has one row. `sweep_…` is the place of the sweep: its stage, and the last key of that stage.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS audit_position (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    at INTEGER NOT NULL,
    cluster INTEGER NOT NULL,
    transfers INTEGER NOT NULL,
    read_ms INTEGER NOT NULL,
    compared_ms INTEGER NOT NULL,
    sweep_stage INTEGER NOT NULL,
    sweep_first INTEGER NOT NULL,
    sweep_second INTEGER NOT NULL,
    sweep_text TEXT NOT NULL,
    sweep_began_ms INTEGER NOT NULL,
    sweeps INTEGER NOT NULL,
    swept_ms INTEGER NOT NULL
)STRICT;
CREATE TABLE IF NOT EXISTS audit_sums (
    kind SMALL NOT NULL,
    asset INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (kind, asset, holder)
)STRICT_SUMS;
CREATE TABLE IF NOT EXISTS audit_pending (
    program INTEGER NOT NULL,
    reference TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (program, reference)
)STRICT;
CREATE INDEX IF NOT EXISTS audit_pending_ended ON audit_pending (amount) WHERE amount = 0;
CREATE TABLE IF NOT EXISTS audit_differences (
    id NUMBER,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    first_seen_ms INTEGER NOT NULL,
    last_seen_ms INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    acknowledged_ms INTEGER,
    acknowledged_by TEXT,
    acknowledged_note TEXT,
    resolved_ms INTEGER,
    resolved_by TEXT,
    resolved_note TEXT
)STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS audit_differences_open ON audit_differences (kind, subject) WHERE resolved_ms IS NULL;
INSERT INTO audit_position VALUES (1, -9000000000000000000, 0, 0, 0, 0, 0, 0, 0, '', 0, 0, 0) ON CONFLICT (one) DO NOTHING;
";

/// `audit_packed` has sums of users' accounts, too: many accounts in a row, beside each other by their holders, so that to add one costs
/// no look at an index. They lie outside of the row, as they are: whoever looks for rows reads the keys alone. Where it is there,
/// nothing is asked of it: whoever makes the tables at the same time as another one would wait for an auditor that waits for them.
const POSTGRES: &str = "
DO $$ BEGIN IF to_regclass('audit_packed') IS NULL THEN
    CREATE TABLE audit_packed (
        asset bigint NOT NULL,
        first bigint NOT NULL,
        last bigint NOT NULL,
        holders bigint[] NOT NULL,
        amounts bigint[] NOT NULL
    );
    ALTER TABLE audit_packed ALTER holders SET STORAGE EXTERNAL, ALTER amounts SET STORAGE EXTERNAL;
    CREATE INDEX audit_packed_last ON audit_packed (asset, last);
END IF; END $$;
CREATE OR REPLACE FUNCTION audit_refuse_delete() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'rows of % are never deleted; % is refused', TG_TABLE_NAME, TG_OP; END $$;
DROP TRIGGER IF EXISTS audit_differences_stay ON audit_differences;
CREATE TRIGGER audit_differences_stay BEFORE DELETE OR TRUNCATE ON audit_differences
FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_delete();
";

const SQLITE: &str = "
CREATE TRIGGER IF NOT EXISTS audit_differences_stay BEFORE DELETE ON audit_differences
BEGIN SELECT RAISE(ABORT, 'differences are never deleted'); END;
";

/// The tables for PostgreSQL, or for a file.
pub(crate) fn tables(postgres: bool) -> String {
    let (own, types) = if postgres {
        let types = [
            ("TEXT", "text COLLATE \"C\""),
            ("NUMBER", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
            ("SMALL", "smallint"),
            ("INTEGER", "bigint"),
            (")STRICT_SUMS", ") WITH (fillfactor = 80)"),
            (")STRICT", ")"),
        ];
        (POSTGRES, types)
    } else {
        let types = [
            ("TEXT", "TEXT"),
            ("NUMBER", "INTEGER PRIMARY KEY"),
            ("SMALL", "INTEGER"),
            ("INTEGER", "INTEGER"),
            (")STRICT_SUMS", ") STRICT, WITHOUT ROWID"),
            (")STRICT", ") STRICT"),
        ];
        (SQLITE, types)
    };
    types.into_iter().fold(TABLES.to_owned(), |sql, (word, by)| sql.replace(word, by)) + own
}
