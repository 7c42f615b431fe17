//! When the events of reserved orders are written again ([`crate::copies`]). Each step is one statement or one
//! transaction, so that it is done or not, whatever becomes of the connection.

use super::budget_keys::cell;
use super::session::Session;
use super::stored_orders::order;
use crate::copies::{CopyKey, ListCopies, Listing, LostOrder, TakeCopies, TakenCopies, WrittenCopy};
use crate::error::LedgerError;
use std::collections::BTreeSet;

/// The tables; [`GRANTS`] go with them.
pub(super) const TABLES: &str = r#"
CREATE TABLE IF NOT EXISTS order_copies (
    program bigint NOT NULL,
    reference text COLLATE "C" NOT NULL,
    next_write_ms bigint NOT NULL,
    PRIMARY KEY (program, reference)
);
CREATE INDEX IF NOT EXISTS order_copies_due ON order_copies (program, next_write_ms);
CREATE TABLE IF NOT EXISTS order_copies_listing (
    one boolean NOT NULL PRIMARY KEY CHECK (one),
    next_ms bigint NOT NULL,
    reference text COLLATE "C" NOT NULL,
    program bigint NOT NULL
);
INSERT INTO order_copies_listing (one, next_ms, reference, program) VALUES (true, 0, '', 0) ON CONFLICT DO NOTHING;
"#;

/// Whoever appends transfers writes these tables, too. Only their owner can say so: a process that may make tables has perhaps
/// made them as its own.
pub(super) const GRANTS: &str = r"
DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN SELECT a.grantee FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'transfers'::regclass AND a.grantee <> c.relowner AND a.privilege_type = 'INSERT'
            AND (SELECT pg_has_role(o.relowner, 'USAGE') FROM pg_class o WHERE o.oid = 'order_copies'::regclass)
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON order_copies, order_copies_listing TO %s',
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(allowed.grantee)) END);
    END LOOP;
END $$;
";

const ARE_THERE: &str = "SELECT to_regclass('order_copies_listing') IS NOT NULL, \
     coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)";

/// $1 is the present time, $2 the age, $3 the pause, $4 the limit, $5 how far ahead a due time may be beside twice the order's
/// age. A next pass that is further away than a pause was set by a clock that is ahead, and is not waited for. Orders of the
/// page that are due too far ahead come as keys with their times: each is one look by the table's key.
const LIST: &str = "WITH own AS ( \
        SELECT one, reference, program FROM order_copies_listing \
        WHERE one AND NOT (next_ms > $1::bigint AND next_ms <= $1::bigint + $3::bigint) FOR UPDATE SKIP LOCKED \
    ), page AS MATERIALIZED ( \
        SELECT o.reference, o.program, o.created_ms FROM own, LATERAL ( \
            SELECT r.order_key AS reference, r.program, r.created_ms FROM orders r \
            WHERE r.status = 0 AND r.created_ms <= $1::bigint - $2::bigint \
                AND (r.order_key, r.program) > (own.reference, own.program) \
            ORDER BY r.order_key, r.program LIMIT $4::bigint) AS o \
    ), made AS ( \
        INSERT INTO order_copies (program, reference, next_write_ms) \
        SELECT program, reference, created_ms + $2::bigint FROM page ON CONFLICT DO NOTHING \
    ), far AS (SELECT f.program, f.reference, f.next_write_ms FROM page p, LATERAL ( \
            SELECT c.program, c.reference, c.next_write_ms FROM order_copies c WHERE c.program = p.program AND c.reference = p.reference \
                AND c.next_write_ms > $1::bigint + $5::bigint + 2 * abs($1::bigint - p.created_ms) OFFSET 0) AS f \
    ), counted AS (SELECT count(*) AS orders FROM page \
    ), last AS (SELECT reference, program FROM page ORDER BY reference DESC, program DESC LIMIT 1 \
    ), moved AS ( \
        UPDATE order_copies_listing s SET \
            reference = CASE WHEN c.orders >= $4::bigint THEN l.reference ELSE '' END, \
            program = CASE WHEN c.orders >= $4::bigint THEN l.program ELSE 0 END, \
            next_ms = CASE WHEN c.orders >= $4::bigint THEN $1::bigint ELSE $1::bigint + $3::bigint END \
        FROM own CROSS JOIN counted c LEFT JOIN last l ON true WHERE s.one = own.one \
    ) SELECT (SELECT count(*) FROM own), (SELECT orders FROM counted), \
        coalesce((SELECT array_agg(program) FROM far), '{}'), coalesce((SELECT array_agg(reference) FROM far), '{}'), \
        coalesce((SELECT array_agg(next_write_ms) FROM far), '{}')";
/// $1 and $2 are keys, $3 the times that they were found with, $4 the present time. A row that has another time by now was taken
/// or written since, and one that is locked is about to be: both are left alone. So this waits for nobody, and no two locks of
/// rows can wait for each other by it.
const RESET: &str = "UPDATE order_copies c SET next_write_ms = $4::bigint FROM ( \
        SELECT o.program, o.reference FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS f(program, reference, next_write_ms) \
        JOIN order_copies o ON o.program = f.program AND o.reference = f.reference AND o.next_write_ms = f.next_write_ms \
        FOR UPDATE OF o SKIP LOCKED) AS own \
    WHERE c.program = own.program AND c.reference = own.reference";

const KEYS: &str = "SELECT p.id, a.name, s.name, b.name FROM programs p JOIN names a ON a.id = p.activity \
    JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset \
    WHERE EXISTS (SELECT 1 FROM order_copies c WHERE c.program = p.id) ORDER BY p.id";

/// $1 are budget keys, $2 the time by which they were due, $3 the limit. A row that another process has taken meanwhile is
/// locked, or has another time by then, and is passed over.
const DUE: &str = "SELECT program, reference FROM order_copies WHERE program = ANY($1) AND next_write_ms <= $2 \
    ORDER BY next_write_ms LIMIT $3 FOR UPDATE SKIP LOCKED";
const RESERVED: &str = "SELECT o.order_key, o.user_id, a.name, s.name, b.name, o.amount, o.status, o.reason, o.created_ms, \
    o.took_ms, o.payer, o.program FROM unnest($1::bigint[], $2::text[]) AS d(program, reference) \
    JOIN orders o ON o.order_key = d.reference AND o.program = d.program \
    JOIN programs p ON p.id = o.program JOIN names a ON a.id = p.activity \
    JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset WHERE o.status = 0";
const FORGET: &str = "DELETE FROM order_copies c USING unnest($1::bigint[], $2::text[]) AS w(program, reference) \
    WHERE c.program = w.program AND c.reference = w.reference";
const NOTE: &str = "UPDATE order_copies c SET next_write_ms = w.next_write_ms \
    FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS w(program, reference, next_write_ms) \
    WHERE c.program = w.program AND c.reference = w.reference";

/// Whether the tables can be used; they are made where they are missing. Many processes may do so at once.
fn are_there(session: &Session, schema: &str) -> Result<bool, LedgerError> {
    let rows = session.query(ARE_THERE, &[])?;
    let row = rows.first().ok_or_else(|| LedgerError::Sql("an answer is missing".into()))?;
    if cell(row, 0)? {
        return Ok(true);
    }
    if !cell::<bool>(row, 1)? {
        return Ok(false);
    }
    let make = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0)); {TABLES} {GRANTS} COMMIT"
    );
    // A transaction that failed is still open on it.
    session.batch(&make).inspect_err(|_| session.give_up())?;
    Ok(true)
}

pub(super) fn list(session: &Session, schema: &str, how: &ListCopies) -> Result<Listing, LedgerError> {
    if !are_there(session, schema)? {
        return Ok(Listing::NoTables);
    }
    let ListCopies { now_ms, after_ms, pause_ms, ahead_ms, limit } = how;
    let rows = match session.query(LIST, &[now_ms, after_ms, pause_ms, &i64::from(*limit), ahead_ms]) {
        // Another user has made them.
        Err(LedgerError::Sql(what)) if what.ends_with("(42501)") => return Ok(Listing::NoTables),
        other => other?,
    };
    let row = rows.first().ok_or_else(|| LedgerError::Sql("an answer is missing".into()))?;
    let (own, orders): (i64, i64) = (cell(row, 0)?, cell(row, 1)?);
    let (budget_keys, keys): (Vec<i64>, Vec<String>) = (cell(row, 2)?, cell(row, 3)?);
    if !budget_keys.is_empty() {
        // If we die before, the next pass finds them again.
        let times: Vec<i64> = cell(row, 4)?;
        session.execute(RESET, &[&budget_keys, &keys, &times, now_ms])?;
    }
    Ok(if own == 0 { Listing::NotNow } else { Listing::Page(u64::try_from(orders).unwrap_or(0)) })
}

pub(super) fn keys(session: &Session) -> Result<Vec<CopyKey>, LedgerError> {
    let rows = session.query(KEYS, &[])?;
    rows.iter()
        .map(|row| {
            Ok(CopyKey {
                budget_key: cell(row, 0)?,
                activity: cell(row, 1)?,
                scene: cell(row, 2)?,
                bonus_type: cell(row, 3)?,
            })
        })
        .collect()
}

pub(super) fn take(session: &Session, which: &TakeCopies<'_>) -> Result<TakenCopies, LedgerError> {
    session.batch("BEGIN")?;
    match take_locked(session, which) {
        Ok(taken) => session.commit(None).map(|()| taken),
        Err(error) => {
            session.roll_back();
            Err(error)
        }
    }
}

/// Takes what is due in the open transaction, which keeps it locked.
fn take_locked(session: &Session, which: &TakeCopies<'_>) -> Result<TakenCopies, LedgerError> {
    let limit = i64::from(which.limit);
    let rows = session.query(DUE, &[&which.budget_keys, &which.due_ms, &limit])?;
    let mut due = BTreeSet::new();
    for row in &rows {
        due.insert((cell::<i64>(row, 0)?, cell::<String>(row, 1)?));
    }
    let mut taken = TakenCopies { due: due.len() as u64, orders: Vec::new() };
    if due.is_empty() {
        return Ok(taken);
    }
    let (budget_keys, keys): (Vec<i64>, Vec<&str>) =
        due.iter().map(|(budget_key, key)| (*budget_key, key.as_str())).unzip();
    for row in &session.query(RESERVED, &[&budget_keys, &keys])? {
        taken.orders.push(LostOrder { budget_key: cell(row, 11)?, order: order(row)? });
    }
    let leases: Vec<WrittenCopy<'_>> = taken
        .orders
        .iter()
        .map(|one| WrittenCopy {
            budget_key: one.budget_key,
            key: &one.order.key,
            next_write_ms: which.lease_ends_ms,
        })
        .collect();
    note(session, &leases)?;
    let is_taken: BTreeSet<(i64, &str)> = leases.iter().map(|one| (one.budget_key, one.key)).collect();
    // They have ended meanwhile.
    let (budget_keys, keys): (Vec<i64>, Vec<&str>) =
        budget_keys.into_iter().zip(keys).filter(|one| !is_taken.contains(one)).unzip();
    if !budget_keys.is_empty() {
        session.execute(FORGET, &[&budget_keys, &keys])?;
    }
    Ok(taken)
}

pub(super) fn note(session: &Session, written: &[WrittenCopy<'_>]) -> Result<(), LedgerError> {
    if written.is_empty() {
        return Ok(());
    }
    let budget_keys: Vec<i64> = written.iter().map(|one| one.budget_key).collect();
    let keys: Vec<&str> = written.iter().map(|one| one.key).collect();
    let next: Vec<i64> = written.iter().map(|one| one.next_write_ms).collect();
    session.execute(NOTE, &[&budget_keys, &keys, &next]).map(drop)
}
