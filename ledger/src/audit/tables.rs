//! The auditor's tables. They belong to no version of the schema: processes that do not know them do no harm to them.
//!
//! They are made in sets, each where one of its tables is missing: an auditor of a release before has made the older sets, and
//! may own tables that this one's user does not.

/// A set of tables that is made as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableSet {
    /// The names of its tables.
    #[cfg(feature = "postgres")]
    pub names: &'static [&'static str],
    tables: &'static str,
    postgres: &'static str,
    sqlite: &'static str,
}

/// All sets, in the order in which they are made.
pub(crate) const SETS: [TableSet; 3] = [
    TableSet {
        #[cfg(feature = "postgres")]
        names: &["audit_position", "audit_sums", "audit_pending", "audit_differences"],
        tables: TABLES,
        postgres: POSTGRES,
        sqlite: SQLITE,
    },
    TableSet {
        #[cfg(feature = "postgres")]
        names: &[
            "audit_statements",
            "audit_statement_lines",
            "audit_statement_sums",
            "audit_statement_differences",
            "audit_times",
        ],
        tables: STATEMENTS,
        postgres: "",
        sqlite: "",
    },
    TableSet {
        #[cfg(feature = "postgres")]
        names: &["audit_packed"],
        tables: "",
        postgres: PACKED,
        sqlite: "",
    },
];

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

/// Payers' statements. `stage`, `place`, `end_place`, `covered_ms` and `low_ms` say how far the comparison of one has come.
///
/// A line has the key that its payer was given, and the key that the ledger has for it: of an order (`what` 0), of a withdrawal
/// (1), or of neither (2).
///
/// `audit_times` has the earliest and the latest time of the transfers of each range of places, so that those of a period are
/// found without an index of times, which nobody else would need.
const STATEMENTS: &str = "
CREATE TABLE IF NOT EXISTS audit_statements (
    id NUMBER,
    upload TEXT NOT NULL UNIQUE,
    payer TEXT NOT NULL,
    from_ms INTEGER NOT NULL,
    to_ms INTEGER NOT NULL,
    margin_ms INTEGER NOT NULL,
    actor TEXT NOT NULL,
    begun_ms INTEGER NOT NULL,
    lines INTEGER NOT NULL,
    stage INTEGER NOT NULL,
    place INTEGER NOT NULL,
    end_place INTEGER NOT NULL,
    covered_ms INTEGER NOT NULL,
    low_ms INTEGER NOT NULL,
    differences INTEGER NOT NULL,
    unclear INTEGER NOT NULL,
    compared_ms INTEGER
)STRICT;
CREATE INDEX IF NOT EXISTS audit_statements_compared ON audit_statements (payer, from_ms) WHERE compared_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS audit_statement_lines (
    statement INTEGER NOT NULL,
    line INTEGER NOT NULL,
    what INTEGER NOT NULL,
    returned INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    bonus_type TEXT NOT NULL,
    key TEXT NOT NULL,
    ledger_key TEXT NOT NULL,
    PRIMARY KEY (statement, line)
)STRICT_LINES;
CREATE INDEX IF NOT EXISTS audit_statement_lines_key ON audit_statement_lines (ledger_key, statement, line);
CREATE TABLE IF NOT EXISTS audit_statement_sums (
    statement INTEGER NOT NULL,
    bonus_type TEXT NOT NULL,
    lines INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    returned_lines INTEGER NOT NULL,
    returned_amount INTEGER NOT NULL,
    agreed_lines INTEGER NOT NULL,
    agreed_amount INTEGER NOT NULL,
    ledger_rows INTEGER NOT NULL,
    ledger_amount INTEGER NOT NULL,
    PRIMARY KEY (statement, bonus_type)
)STRICT;
CREATE TABLE IF NOT EXISTS audit_statement_differences (
    statement INTEGER NOT NULL,
    difference INTEGER NOT NULL,
    PRIMARY KEY (statement, difference)
)STRICT;
CREATE TABLE IF NOT EXISTS audit_times (
    from_at INTEGER NOT NULL PRIMARY KEY,
    to_at INTEGER NOT NULL,
    min_ms INTEGER NOT NULL,
    max_ms INTEGER NOT NULL
)STRICT;
";

/// `audit_packed` has sums of users' accounts, too: many accounts in a row, beside each other by their holders, so that to add one costs
/// no look at an index. They lie outside of the row, as they are: whoever looks for rows reads the keys alone. Where it is there,
/// nothing is asked of it: whoever makes the tables at the same time as another one would wait for an auditor that waits for them.
const PACKED: &str = "
DO $$ BEGIN IF to_regclass('audit_packed') IS NULL THEN
    CREATE TABLE audit_packed (
        asset bigint NOT NULL,
        first bigint NOT NULL,
        last bigint NOT NULL,
        holders bigint[] NOT NULL,
        amounts bigint[] NOT NULL
    );
    ALTER TABLE audit_packed ALTER holders SET STORAGE EXTERNAL, ALTER amounts SET STORAGE EXTERNAL;
    CREATE INDEX audit_packed_holders ON audit_packed USING gist (numrange(first::numeric, last::numeric, '[]'));
END IF; END $$;
";

const POSTGRES: &str = "
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

impl TableSet {
    /// The statements that make it, for PostgreSQL, or for a file.
    pub(crate) fn sql(&self, postgres: bool) -> String {
        let (own, types) = if postgres {
            let types = [
                ("TEXT", "text COLLATE \"C\""),
                ("NUMBER", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
                ("SMALL", "smallint"),
                ("INTEGER", "bigint"),
                (")STRICT_SUMS", ") WITH (fillfactor = 80)"),
                (")STRICT_LINES", ")"),
                (")STRICT", ")"),
            ];
            (self.postgres, types)
        } else {
            let types = [
                ("TEXT", "TEXT"),
                ("NUMBER", "INTEGER PRIMARY KEY"),
                ("SMALL", "INTEGER"),
                ("INTEGER", "INTEGER"),
                (")STRICT_SUMS", ") STRICT, WITHOUT ROWID"),
                (")STRICT_LINES", ") STRICT, WITHOUT ROWID"),
                (")STRICT", ") STRICT"),
            ];
            (self.sqlite, types)
        };
        types.into_iter().fold(self.tables.to_owned(), |sql, (word, by)| sql.replace(word, by)) + own
    }
}
