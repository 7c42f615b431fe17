//! The tables, and the migrations from older schemas.

use super::link::Address;
use super::session::{Session, open_error};
use crate::error::{LedgerError, OpenError};

/// The migrations. Each is applied once, in order, in the transaction that records it. Never change one that was
/// released: add the next one, and raise `KNOWN`.
const MIGRATIONS: [(i64, &str); 3] = [(1, V1), (2, V2), (3, V3)];
/// The version that this build writes.
const KNOWN: i64 = 3;

/// Rows of `accounts`, `budget_shards` and `orders` are updated where they lie: the fill factor leaves room for
/// the new version on the same page, so that no index has to change. Order numbers are compared byte by byte
/// (`COLLATE "C"`), as in the file ledger.
///
/// `orders.transfer` is the number of the transfer that paid it, 0 for none. `accounts.last` is the newest transfer
/// of a user's account, `transfers.prev` the one before: a user's flow is a walk along these, so the hottest
/// insert needs no second index. `accounts.before` is what `last` was before the latest change: it tells the
/// writer where its own transfers hang.
const V1: &str = r#"
CREATE TABLE names (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);
CREATE TABLE programs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    activity bigint NOT NULL REFERENCES names (id),
    scene bigint NOT NULL REFERENCES names (id),
    asset bigint NOT NULL REFERENCES names (id),
    budgeted boolean NOT NULL,
    UNIQUE (activity, scene, asset)
);
CREATE TABLE budget_shards (
    program bigint NOT NULL REFERENCES programs (id),
    shard bigint NOT NULL,
    total bigint NOT NULL,
    used bigint NOT NULL CHECK (used >= 0),
    reserved bigint NOT NULL CHECK (reserved >= 0),
    PRIMARY KEY (program, shard),
    CHECK (used + reserved <= total)
) WITH (fillfactor = 25);
CREATE TABLE orders (
    user_id bigint NOT NULL,
    program bigint NOT NULL,
    amount bigint NOT NULL CHECK (amount > 0),
    transfer bigint NOT NULL,
    created_ms bigint NOT NULL,
    took_ms bigint,
    status smallint NOT NULL,
    reason smallint NOT NULL,
    trade_no text COLLATE "C" NOT NULL PRIMARY KEY
);
CREATE SEQUENCE transfer_blocks;
CREATE TABLE transfers (
    id bigint PRIMARY KEY,
    user_id bigint NOT NULL,
    program bigint NOT NULL,
    amount bigint NOT NULL,
    prev bigint NOT NULL,
    time_ms bigint NOT NULL,
    trade_no text COLLATE "C" NOT NULL
);
CREATE TABLE accounts (
    kind smallint NOT NULL,
    asset bigint NOT NULL,
    holder bigint NOT NULL,
    balance bigint NOT NULL,
    last bigint NOT NULL,
    before bigint NOT NULL,
    PRIMARY KEY (kind, asset, holder)
) WITH (fillfactor = 60);
CREATE TABLE archive (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash bytea NOT NULL,
    reason text COLLATE "C" NOT NULL,
    trade_no text COLLATE "C",
    payload bytea NOT NULL,
    detail text NOT NULL,
    time_ms bigint NOT NULL,
    replayed_ms bigint,
    actor text,
    outcome text,
    UNIQUE (hash, reason)
);
CREATE TABLE replays (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    archive_id bigint NOT NULL REFERENCES archive (id),
    actor text NOT NULL,
    time_ms bigint NOT NULL,
    outcome text NOT NULL
);
CREATE INDEX replays_archive_id ON replays (archive_id);
"#;

/// Withdrawals. The database itself ensures that a withdrawal is held once and ends once, and that no user's account
/// goes below 0, whatever the code above it does. A movement's number is drawn from the sequence of the transfers'
/// numbers: it stands in the account's chain like a transfer.
const V2: &str = r#"
CREATE TABLE withdrawals (
    user_id bigint NOT NULL,
    asset bigint NOT NULL REFERENCES names (id),
    amount bigint NOT NULL CHECK (amount > 0),
    created_ms bigint NOT NULL,
    decided_ms bigint,
    status smallint NOT NULL,
    reason text NOT NULL,
    payer text NOT NULL,
    id text COLLATE "C" NOT NULL PRIMARY KEY
) WITH (fillfactor = 60);
CREATE INDEX withdrawals_held ON withdrawals (id) WHERE status = 0;
CREATE TABLE withdrawal_moves (
    id bigint PRIMARY KEY,
    user_id bigint NOT NULL,
    asset bigint NOT NULL,
    amount bigint NOT NULL CHECK (amount > 0),
    prev bigint NOT NULL,
    time_ms bigint NOT NULL,
    kind smallint NOT NULL,
    withdrawal text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX withdrawal_moves_once ON withdrawal_moves (withdrawal, (kind > 0));
ALTER TABLE accounts ADD CONSTRAINT accounts_not_below_0 CHECK (kind <> 0 OR balance >= 0);
"#;

/// Strict budgets, and combined ones: a program whose scene or asset has the empty name. `careful` rows are taken from
/// with the budget locked as a whole: strict ones, and those that a combined one covers. It stands in the row itself,
/// since the row is what a writer that knows an older state of things is told anew, when it has waited for it.
/// Also the payer of an order, and the version of the rules whose budgets are set: one row, or none yet.
const V3: &str = r#"
ALTER TABLE programs ADD COLUMN strict boolean NOT NULL DEFAULT false;
ALTER TABLE budget_shards ADD COLUMN careful boolean NOT NULL DEFAULT false;
ALTER TABLE orders ADD COLUMN payer text NOT NULL DEFAULT '';
CREATE INDEX orders_reserved ON orders (trade_no) WHERE status = 0;
CREATE TABLE rules_version (
    version bigint NOT NULL,
    one boolean NOT NULL PRIMARY KEY CHECK (one)
);
"#;

/// Updates the schema. Many processes may call it at once: one does the work, the others wait for it.
pub(crate) fn migrate(session: &Session, address: &Address) -> Result<(), OpenError> {
    // No rights to make anything are needed where everything is there.
    if version(session, address)? == Some(KNOWN) {
        return Ok(());
    }
    let schema = &address.options.schema;
    let run = |sql: &str| session.open_batch(sql, &address.place);
    run(&format!("BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0))"))?;
    // Asked first: a user without rights on the database may own a schema that was made for it.
    let there = format!("SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'");
    if session.query_once(&there).map_err(|error| refused(&address.place, error))?.is_empty() {
        run(&format!("CREATE SCHEMA \"{schema}\""))?;
    }
    let found = version(session, address)?.unwrap_or(0);
    if found == 0 {
        run("CREATE TABLE schema_version (version bigint PRIMARY KEY, \
             applied timestamptz NOT NULL DEFAULT clock_timestamp())")?;
    }
    for (at, sql) in MIGRATIONS.into_iter().filter(|(at, _)| *at > found) {
        run(sql)?;
        run(&format!("INSERT INTO schema_version (version) VALUES ({at})"))?;
    }
    run("COMMIT")
}

/// Whether there is no ledger yet.
pub(crate) fn is_missing(session: &Session, address: &Address) -> Result<bool, OpenError> {
    Ok(version(session, address)?.is_none())
}

/// Refuses a schema that this build does not understand, or that is not there.
pub(crate) fn check(session: &Session, address: &Address) -> Result<(), OpenError> {
    match version(session, address)? {
        Some(found) if found == KNOWN => Ok(()),
        Some(found) => Err(OpenError::Damaged {
            path: address.place.clone(),
            what: format!("its schema has version {found}; start a writer once to bring it to {KNOWN}"),
        }),
        None => {
            Err(OpenError::Damaged { path: address.place.clone(), what: "there is no ledger in it".into() })
        }
    }
}

/// The schema's version, `None` where there is no ledger yet. A newer one is refused.
fn version(session: &Session, address: &Address) -> Result<Option<i64>, OpenError> {
    let place = &address.place;
    let there = format!(
        "SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = '{}' AND tablename = 'schema_version')",
        address.options.schema
    );
    let row = |sql: &str| {
        let rows = session.query_once(sql).map_err(|error| refused(place, error))?;
        rows.into_iter()
            .next()
            .ok_or_else(|| OpenError::Damaged { path: place.clone(), what: "schema_version is empty".into() })
    };
    if !row(&there)?.try_get::<_, bool>(0).map_err(|error| open_error(place, &error))? {
        return Ok(None);
    }
    let newest: Option<i64> = row("SELECT max(version) FROM schema_version")?
        .try_get(0)
        .map_err(|error| open_error(place, &error))?;
    match newest {
        Some(found) if found > KNOWN => Err(OpenError::Newer { path: place.clone(), found, known: KNOWN }),
        Some(found) => Ok(Some(found)),
        None => Err(OpenError::Damaged { path: place.clone(), what: "schema_version is empty".into() }),
    }
}

/// What a failure means while a ledger is opened.
pub(super) fn refused(place: &str, error: LedgerError) -> OpenError {
    let path = place.to_owned();
    match error {
        LedgerError::Unavailable(what) | LedgerError::Unknown(what) | LedgerError::Contended(what) => {
            OpenError::Unreachable { path, what }
        }
        LedgerError::ReadOnly => OpenError::ReadOnly { path },
        other => OpenError::Denied {
            path,
            what: format!(
                "{other}; grant the user USAGE on the schema, and rights to its tables and sequences, also to those that were \
                 made later"
            ),
        },
    }
}
