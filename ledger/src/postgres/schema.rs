//! The tables, and the migrations from older schemas.

use super::address::Address;
use super::indexes::{self, IndexProgress};
use super::session::{Session, open_error};
use super::shape::{KNOWN, THREE};
use crate::error::{LedgerError, OpenError};
use std::time::Duration;

/// The migrations. Each is applied once, in order, in the transaction that records it. Never change one that was
/// released: add the next one, and raise `KNOWN`. An index on a table that may have many rows is none of its statements, which lock the
/// table while they run: it belongs into the list of [`indexes`].
const MIGRATIONS: [(i64, &str); 6] = [(1, V1), (2, V2), (3, V3), (4, V4), (5, V5), (6, V6)];
/// The tables that are locked while the journal is made, in the order in which transactions come to them: in another order
/// each writer that waits would be in a deadlock.
const LOCKED: &str = "schema_version, rules_version, orders, names, programs, budget_shards, accounts, withdrawals, \
    transfers, withdrawal_moves";
/// The same where the journal is there.
const LOCKED_5: &str = "schema_version, rules_version, orders, withdrawals";
/// How long the locks are waited for at once, and the pause before they are asked for again: who waits for them lets
/// nobody else through.
const LOCK_MS: u64 = 2_000;
const LOCK_PAUSE: Duration = Duration::from_millis(1_000);
const LOCK_ATTEMPTS: u32 = 10;

/// Rows of `accounts`, `budget_shards` and `orders` are updated where they lie: the fill factor leaves room for
/// the new version on the same page, so that no index has to change. Order numbers are compared byte by byte
/// (`COLLATE "C"`), as in the file ledger.
///
/// `orders.transfer`, later `paid_by`, is the number of the transfer that paid it, 0 for none. `accounts.last` is the
/// newest transfer of a user's account, `transfers.prev` the one before: a user's flow is a walk along these, so the
/// hottest insert needs no second index. `accounts.before` is what `last` was before the latest change: it tells the
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

/// Strict budgets, and combined ones: a program whose scene or bonus type has the empty name. `careful` rows are taken from
/// with the budget locked as a whole: strict ones, and those that a combined one covers. It stands in the row itself,
/// since the row is what a writer that knows an older state of things is told anew, when it has waited for it.
/// Also the payer of an order, and the version of the rules whose budgets are set: one row, or none yet. The index of reserved
/// orders is one of [`indexes`].
const V3: &str = r#"
ALTER TABLE programs ADD COLUMN strict boolean NOT NULL DEFAULT false;
ALTER TABLE budget_shards ADD COLUMN careful boolean NOT NULL DEFAULT false;
ALTER TABLE orders ADD COLUMN payer text NOT NULL DEFAULT '';
CREATE TABLE rules_version (
    version bigint NOT NULL,
    one boolean NOT NULL PRIMARY KEY CHECK (one)
);
"#;

/// The journal: transfers name both accounts, and are only ever appended. `docs/ledger.md` says what each row means, and
/// what becomes of older rows. Old credits move from the user to the payer that paid them, as far as the money is still
/// there; what a downstream had refused, and is archived for that, the ledger itself may have paid. All tables are locked
/// before. The new table is made beside the old one, then filled, then the old one is dropped. Its indexes are built here: nobody else sees
/// it yet, and without the unique one nobody may write it.
///
/// Processes of older versions must not go on: they know nothing of pending transfers. `orders.paid_by` was `transfer`
/// until now, which every statement of theirs names that makes or changes an order; `guarded` was `careful`, which those
/// of version 3 name that change a budget; those of version 2 set one without it, which needs its default.
///
/// `tx` is the number of the transaction: all rows below the oldest number that is still running are final, which their
/// own numbers do not say, for writers draw them in blocks. Rows that the migration writes have numbers far below 0, in
/// their order, so that they can be sealed in parts.
const V4: &str = r#"
ALTER TABLE budget_shards RENAME COLUMN careful TO guarded;
ALTER TABLE budget_shards ALTER COLUMN guarded DROP DEFAULT;
ALTER TABLE orders RENAME COLUMN transfer TO paid_by;
-- Compared with names from now on.
ALTER TABLE orders ALTER COLUMN payer TYPE text COLLATE "C";
INSERT INTO names (name) SELECT DISTINCT payer FROM orders WHERE payer <> '' ORDER BY payer
ON CONFLICT (name) DO NOTHING;
ALTER TABLE transfers RENAME TO transfers_3;
ALTER INDEX transfers_pkey RENAME TO transfers_3_pkey;
CREATE TABLE transfers (
    id bigint PRIMARY KEY,
    asset bigint NOT NULL,
    debit_holder bigint NOT NULL,
    credit_holder bigint NOT NULL,
    amount bigint NOT NULL CHECK (amount > 0),
    prev bigint NOT NULL,
    time_ms bigint NOT NULL,
    tx bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
    kind smallint NOT NULL CHECK (kind BETWEEN 0 AND 4),
    debit smallint NOT NULL,
    credit smallint NOT NULL,
    reference text COLLATE "C" NOT NULL,
    CHECK (debit <> credit OR debit_holder <> credit_holder)
);
-- What payers have paid, and how much of it is still in the user's balance: all of the first ones, a part of one.
CREATE TABLE transfers_settled AS
SELECT paid.id, paid.payer, paid.user_id, paid.asset, paid.amount, paid.trade_no,
    greatest(0, least(paid.amount, paid.balance - paid.before))::bigint AS part
FROM (
    SELECT t.id, n.id AS payer, t.user_id, p.asset, t.amount, t.trade_no, a.balance,
        sum(t.amount) OVER (PARTITION BY p.asset, t.user_id ORDER BY t.id) - t.amount AS before
    FROM transfers_3 t JOIN orders o ON o.trade_no = t.trade_no AND o.paid_by = t.id
    JOIN names n ON n.name = o.payer JOIN programs p ON p.id = t.program
    JOIN accounts a ON a.kind = 0 AND a.asset = p.asset AND a.holder = t.user_id
    WHERE o.payer <> '' AND o.status = 1
        AND NOT EXISTS (SELECT 1 FROM archive r WHERE r.trade_no = o.trade_no AND r.reason = 'downstream_refused')
) AS paid;
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM withdrawals w JOIN (
        SELECT asset, user_id FROM transfers_settled GROUP BY asset, user_id HAVING sum(part) < sum(amount)
    ) AS spent ON spent.asset = w.asset AND spent.user_id = w.user_id WHERE w.status = 0) THEN
        RAISE EXCEPTION 'withdrawals are held of money that a payer has paid already: let the older version end them first, paid or refused';
    END IF;
END $$;
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT t.id, 0, p.asset, 2, t.program, CASE WHEN s.id IS NULL THEN 0 ELSE -3 END, coalesce(s.payer, t.user_id),
    t.amount, t.prev, t.time_ms, t.trade_no, t.id - 4611686018427387904
FROM transfers_3 t LEFT JOIN programs p ON p.id = t.program
LEFT JOIN transfers_settled s ON s.id = t.id AND s.part = s.amount;
UPDATE accounts a SET balance = a.balance - moved.amount FROM (
    SELECT asset, user_id, sum(part)::bigint AS amount FROM transfers_settled GROUP BY asset, user_id
) AS moved WHERE a.kind = 0 AND a.asset = moved.asset AND a.holder = moved.user_id;
INSERT INTO accounts (kind, asset, holder, balance, last, before)
SELECT -3, asset, payer, sum(part)::bigint, 0, 0 FROM transfers_settled WHERE part > 0 GROUP BY asset, payer;
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT id, 0, asset, CASE kind WHEN 0 THEN 0 ELSE -1 END, CASE kind WHEN 0 THEN user_id ELSE 0 END,
    CASE kind WHEN 0 THEN -1 WHEN 1 THEN -2 ELSE 0 END, CASE kind WHEN 2 THEN user_id ELSE 0 END,
    amount, prev, time_ms, withdrawal, id - 4611686018427387904
FROM withdrawal_moves;
-- The part goes from the user's account, at the end of the user's statement.
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT m.id, 0, m.asset, 0, m.user_id, -3, m.payer, m.part, m.last, (extract(epoch FROM now()) * 1000)::bigint,
    m.trade_no, m.id - 4611686018427387904
FROM (
    SELECT nextval('transfer_blocks') * 4096 AS id, s.asset, s.user_id, s.payer, s.part, s.trade_no, a.last
    FROM transfers_settled s JOIN accounts a ON a.kind = 0 AND a.asset = s.asset AND a.holder = s.user_id
    WHERE s.part > 0 AND s.part < s.amount
) AS m;
UPDATE accounts a SET before = a.last, last = t.id FROM transfers t
WHERE t.debit = 0 AND t.credit = -3 AND a.kind = 0 AND a.asset = t.asset AND a.holder = t.debit_holder;
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT m.id, 1, m.asset, 2, m.program, m.credit, m.credit_holder, m.amount, 0, m.created_ms, m.trade_no,
    m.id - 4611686018427387904
FROM (
    SELECT nextval('transfer_blocks') * 4096 AS id, p.asset, o.program, o.amount, o.created_ms, o.trade_no,
        CASE o.reason WHEN 1 THEN 0 ELSE -3 END AS credit,
        CASE o.reason WHEN 1 THEN o.user_id ELSE coalesce(n.id, 0) END AS credit_holder
    FROM orders o JOIN programs p ON p.id = o.program LEFT JOIN names n ON n.name = o.payer AND o.payer <> ''
    WHERE o.status = 0
) AS m;
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT m.id, 0, m.asset, 1, m.activity, 2, m.program, m.total, 0, (extract(epoch FROM now()) * 1000)::bigint, '',
    m.id - 4611686018427387904
FROM (
    SELECT nextval('transfer_blocks') * 4096 AS id, p.asset, p.activity, p.id AS program, h.total
    FROM programs p JOIN (
        SELECT program, sum(total)::bigint AS total FROM budget_shards GROUP BY program
    ) AS h ON h.program = p.id WHERE p.budgeted AND h.total > 0
) AS m;
DELETE FROM accounts WHERE kind > 0;
-- Who could write the old transfers may append to the new ones.
DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN SELECT a.grantee, a.privilege_type AS what FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'transfers_3'::regclass AND a.grantee <> c.relowner AND a.privilege_type IN ('SELECT', 'INSERT')
    LOOP
        EXECUTE format('GRANT %s ON transfers TO %s', allowed.what,
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(allowed.grantee)) END);
    END LOOP;
END $$;
DROP TABLE transfers_3;
DROP TABLE transfers_settled;
DROP TABLE withdrawal_moves;
CREATE UNIQUE INDEX transfers_withdrawal_once ON transfers (reference, (debit = -1)) WHERE debit = -1 OR credit = -1;
CREATE INDEX transfers_tx ON transfers (tx);
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION '% is only ever appended to; % is refused', TG_TABLE_NAME, TG_OP; END $$;
CREATE TRIGGER transfers_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON transfers
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
"#;

/// The chain of sealed ranges. A page holds the commitments of many transfers side by side.
const V5: &str = r#"
CREATE TABLE seals (
    id bigint PRIMARY KEY,
    from_at bigint NOT NULL UNIQUE,
    to_at bigint NOT NULL,
    rows bigint NOT NULL,
    sealed_ms bigint NOT NULL,
    -- The identifier of the database cluster; NULL where the server does not tell it.
    system bigint,
    previous bytea NOT NULL,
    content bytea NOT NULL,
    names bytea NOT NULL,
    hash bytea NOT NULL
);
CREATE TABLE seal_pages (
    seal bigint NOT NULL REFERENCES seals (id),
    page bigint NOT NULL,
    ids bytea NOT NULL,
    guards bytea NOT NULL,
    hashes bytea NOT NULL,
    PRIMARY KEY (seal, page)
);
ALTER TABLE seal_pages ALTER ids SET STORAGE EXTERNAL, ALTER guards SET STORAGE EXTERNAL,
    ALTER hashes SET STORAGE EXTERNAL;
CREATE TRIGGER seals_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON seals
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER seal_pages_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON seal_pages
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- A new table of the same owner: whoever reads and appends transfers reads and appends seals.
DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN SELECT a.grantee, a.privilege_type AS what FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'transfers'::regclass AND a.grantee <> c.relowner AND a.privilege_type IN ('SELECT', 'INSERT')
    LOOP
        EXECUTE format('GRANT %s ON seals, seal_pages TO %s', allowed.what,
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(allowed.grantee)) END);
    END LOOP;
END $$;
"#;

/// Orders count within their activities, and withdrawals belong to their users ([`key`](crate::key)). What was made before
/// keeps its number, or its id, as its key; a row of `bare_orders` says that there may be such orders; withdrawals are
/// looked for under both keys always. No row is changed. Two indexes of held withdrawals are among [`indexes`].
///
/// Processes of older versions must not go on: they would take two orders of one number for one. Every statement of theirs
/// that reads or changes an order or a withdrawal names a column that has another name from now on.
const V6: &str = r#"
ALTER TABLE orders RENAME COLUMN trade_no TO order_key;
ALTER TABLE withdrawals RENAME COLUMN id TO withdrawal_key;
ALTER TABLE withdrawals ADD COLUMN payer_key text COLLATE "C" NOT NULL DEFAULT '';
CREATE TABLE bare_orders (
    one boolean NOT NULL PRIMARY KEY CHECK (one)
);
INSERT INTO bare_orders SELECT true WHERE EXISTS (SELECT 1 FROM orders);
-- A new table of the same owner: whoever reads orders reads it.
DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN SELECT a.grantee FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'orders'::regclass AND a.grantee <> c.relowner AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE format('GRANT SELECT ON bare_orders TO %s',
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(allowed.grantee)) END);
    END LOOP;
END $$;
"#;

/// Makes the tables where there are none, and brings those of versions 1 and 2 to version 3, which older processes can
/// still write. Those of versions 3 and 5 stay as they are: only [`bring_up`] changes them. Many processes may call it at
/// once: one does the work, the others wait for it.
pub(crate) fn open(session: &Session, address: &Address) -> Result<(), OpenError> {
    // No rights to make anything are needed where everything is there.
    let found = match version(session, address)? {
        Some(found) if found >= THREE => found,
        older => {
            if let Some(older) = older {
                let tell = |progress: &IndexProgress| tracing::info!("{}: {progress}", address.place);
                indexes::build(session, address, older, THREE, &tell)?;
            }
            begin(session, address)?;
            let found = found_alone(session, address)?;
            let reached = apply(session, address, found, if found == 0 { KNOWN } else { THREE })?;
            session.open_batch("COMMIT", &address.place)?;
            reached
        }
    };
    adopt(session, address, found)
}

/// Brings tables of any older version to the newest one, if `allowed` says so when they are locked. Returns the version that was
/// found. Nothing is changed before all of it is done. [`indexes::build`] comes before.
pub(crate) fn bring_up(
    session: &Session,
    address: &Address,
    longest: Duration,
    allowed: impl FnOnce() -> Result<(), OpenError>,
) -> Result<i64, OpenError> {
    begin(session, address)?;
    let found = version(session, address)?.unwrap_or(0);
    if found == KNOWN {
        session.open_batch("ROLLBACK", &address.place)?;
        return Ok(found);
    }
    if found == 0 {
        return Err(absent(address));
    }
    apply(session, address, found, THREE)?;
    lock(session, address, if found <= THREE { LOCKED } else { LOCKED_5 })?;
    allowed()?;
    take_time(session, address, longest, found <= THREE)?;
    apply(session, address, THREE.max(found), KNOWN).map_err(|error| match error {
        error if error.may_pass() => error,
        error => OpenError::Invalid(format!(
            "{}: the tables cannot be migrated, and nothing was changed: {error}",
            address.place
        )),
    })?;
    session.open_batch("COMMIT", &address.place)?;
    Ok(found)
}

/// Begins a transaction in which no other process makes or changes tables.
fn begin(session: &Session, address: &Address) -> Result<(), OpenError> {
    let schema = &address.options.schema;
    session.open_batch(
        &format!("BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0))"),
        &address.place,
    )
}

/// The version of the tables; where there are none, their schema and the table of versions are made.
fn found_alone(session: &Session, address: &Address) -> Result<i64, OpenError> {
    let schema = &address.options.schema;
    let run = |sql: &str| session.open_batch(sql, &address.place);
    // Asked first: a user without rights on the database may own a schema that was made for it.
    let there = format!("SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'");
    if session.query_stored(&there).map_err(|error| refused(&address.place, error))?.is_empty() {
        run(&format!("CREATE SCHEMA \"{schema}\""))?;
    }
    let found = version(session, address)?.unwrap_or(0);
    if found == 0 {
        run("CREATE TABLE schema_version (version bigint PRIMARY KEY, \
             applied timestamptz NOT NULL DEFAULT clock_timestamp())")?;
    }
    Ok(found)
}

/// Applies what is above `found`, up to `goal`. Returns the version that is reached.
fn apply(session: &Session, address: &Address, found: i64, goal: i64) -> Result<i64, OpenError> {
    for (at, sql) in MIGRATIONS.into_iter().filter(|(at, _)| *at > found && *at <= goal) {
        indexes::make(session, address, at)?;
        session.open_batch(sql, &address.place)?;
        session.open_batch(&format!("INSERT INTO schema_version (version) VALUES ({at})"), &address.place)?;
    }
    Ok(found.max(goal))
}

/// Locks the tables alone, in attempts that are short, with writers going on in between.
fn lock(session: &Session, address: &Address, tables: &str) -> Result<(), OpenError> {
    let run = |sql: &str| session.open_batch(sql, &address.place);
    let mut attempt = 1;
    loop {
        run("SAVEPOINT unlocked")?;
        let locked =
            run(&format!("SET LOCAL lock_timeout = {LOCK_MS}; LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"));
        match locked {
            Err(error) if error.may_pass() && !session.is_broken() && attempt < LOCK_ATTEMPTS => {
                tracing::warn!(attempt, %error, "{}: its tables are in use, and cannot be migrated yet", address.place);
                run("ROLLBACK TO SAVEPOINT unlocked")?;
                std::thread::sleep(LOCK_PAUSE);
                attempt += 1;
            }
            other => return other,
        }
    }
}

/// A migration may take as long as its operator says: it copies a large table.
fn take_time(session: &Session, address: &Address, longest: Duration, copies: bool) -> Result<(), OpenError> {
    let run = |sql: &str| session.open_batch(sql, &address.place);
    let longest_ms = longest.as_millis();
    if copies {
        let counted = "SELECT reltuples::bigint FROM pg_class WHERE oid = 'transfers'::regclass";
        let rows = session.query_stored(counted).map_err(|error| refused(&address.place, error))?;
        let about: i64 = rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or(0);
        tracing::warn!(
            about,
            longest_ms,
            "{}: all transfers are copied into the journal under locks; writers wait meanwhile",
            address.place
        );
    }
    session.set_timeout(longest + Duration::from_secs(1));
    // Its limit is for each statement, ours for all of them: when this process gives up or dies, the server gives up, too
    // (from version 14 on), and does not copy on under the locks.
    run(&format!("SET LOCAL statement_timeout = {longest_ms}"))?;
    run("SELECT set_config('client_connection_check_interval', '1s', true) \
         WHERE current_setting('server_version_num')::int >= 140000")
}

/// Whether there is no ledger yet.
pub(crate) fn is_missing(session: &Session, address: &Address) -> Result<bool, OpenError> {
    Ok(version(session, address)?.is_none())
}

/// Refuses a schema that this build does not understand, or that is not there.
pub(crate) fn check(session: &Session, address: &Address) -> Result<(), OpenError> {
    match version(session, address)? {
        Some(found) if found >= THREE => adopt(session, address, found),
        Some(found) => Err(OpenError::Damaged {
            path: address.place.clone(),
            what: format!("its schema has version {found}; start a writer once to bring it to {THREE}"),
        }),
        None => Err(absent(address)),
    }
}

fn adopt(session: &Session, address: &Address, found: i64) -> Result<(), OpenError> {
    // A migration that was not finished left none of its steps.
    let between = |_| OpenError::Damaged {
        path: address.place.clone(),
        what: format!("its schema has version {found}, which no process has left"),
    };
    session.adopt(found).map_err(between)
}

pub(crate) fn absent(address: &Address) -> OpenError {
    OpenError::Damaged { path: address.place.clone(), what: "there is no ledger in it".into() }
}

/// The schema's version, `None` where there is no ledger yet. A newer one is refused.
pub(crate) fn version(session: &Session, address: &Address) -> Result<Option<i64>, OpenError> {
    let place = &address.place;
    let there = format!(
        "SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = '{}' AND tablename = 'schema_version')",
        address.options.schema
    );
    let row = |sql: &str| {
        let rows = session.query_stored(sql).map_err(|error| refused(place, error))?;
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
