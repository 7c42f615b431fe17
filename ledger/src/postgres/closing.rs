//! Closed activities. Their tables are no part of the schema's version, and are made with the first one that is closed, by the owner of
//! the others.
//!
//! An activity is closed under a lock of the table of orders, so every transaction that has written orders has ended, and every
//! later one meets the trigger, which sees what is committed when it runs. A connection asks for nothing until
//! the trigger has refused it: then it knows the activity by name, repeats the transaction, and asks whether the activity is still closed
//! whenever an order of it comes. While nothing is closed there is no trigger, and nothing costs anything.

use super::budget_keys::{cell, text};
use super::chain::SYSTEM;
use super::closed::are_there;
use super::places::{Place, end};
use super::position;
use super::session::{Params, Session};
use super::shape::Shape;
use super::store::PgLedger;
use crate::closing::{
    Close, Closed, ClosingSteps, Detach, DetachBegun, DetachStep, Reopened, Unproven, not_begun,
};
use crate::error::LedgerError;
use std::time::Duration;

/// How long the lock of the orders is waited for at once, and the pause before it is asked for again: who waits for it lets no
/// grant through.
const LOCK_MS: u64 = 2_000;
const LOCK_PAUSE: Duration = Duration::from_millis(1_000);
const LOCK_ATTEMPTS: u32 = 10;
/// The pages of the orders' table that one step reads: 2 MiB, some 24,000 orders.
const DETACH_PAGES: u32 = 256;
/// How many reserved orders are counted at most, and how many transfers that nobody has proved.
const COUNTED_MAX: i64 = 1_000;
/// What stands in front of a place, if the pass that has come to it has deleted orders.
const DELETED: &str = "+";

/// `WF001` is [`CLOSED`](super::session::CLOSED). No order of a closed activity is inserted or changed: none is reserved when it is
/// closed, so whoever changes one asks for money. The function has its owner's rights and its owner's tables, so that nothing depends on
/// who inserts.
const TABLES: &str = r#"
DO $$ DECLARE allowed record; BEGIN
    IF to_regclass('closed_activities') IS NOT NULL THEN
        RETURN;
    END IF;
    CREATE TABLE closed_activities (
        activity bigint NOT NULL PRIMARY KEY,
        operator text NOT NULL,
        reason text NOT NULL,
        closed_ms bigint NOT NULL,
        -- Every transfer that paid an order of it has a smaller number of its transaction.
        place bigint NOT NULL,
        export text,
        detach_ms bigint,
        detached_ms bigint
    );
    CREATE TABLE detached_budgets (
        program bigint NOT NULL PRIMARY KEY,
        place bigint NOT NULL,
        orders bigint NOT NULL,
        credited bigint NOT NULL,
        amount bigint NOT NULL
    );
    CREATE FUNCTION refuse_closed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $body$
    DECLARE found text; BEGIN
        SELECT string_agg(n.name, chr(31)) INTO found
        FROM (SELECT DISTINCT p.activity FROM (SELECT DISTINCT program FROM made) m JOIN programs p ON p.id = m.program) own
        JOIN closed_activities c ON c.activity = own.activity JOIN names n ON n.id = own.activity;
        IF found IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'WF001', MESSAGE = 'the activity is closed', DETAIL = found;
        END IF;
        RETURN NULL;
    END $body$;
    EXECUTE format('ALTER FUNCTION refuse_closed() SET search_path = %I, pg_temp', current_schema());
    CREATE TRIGGER orders_refuse_closed AFTER INSERT ON orders REFERENCING NEW TABLE AS made
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_closed();
    CREATE TRIGGER orders_refuse_closed_anew AFTER UPDATE ON orders REFERENCING NEW TABLE AS made
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_closed();
    -- What has begun to leave is never opened again.
    CREATE TRIGGER closed_activities_stay BEFORE DELETE ON closed_activities
    FOR EACH ROW WHEN (OLD.export IS NOT NULL) EXECUTE FUNCTION refuse_change();
    CREATE TRIGGER detached_budgets_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON detached_budgets
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
    -- Whoever reads orders reads these, and nobody but their owner writes them.
    FOR allowed IN SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid IN ('closed_activities'::regclass, 'detached_budgets'::regclass) AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON closed_activities, detached_budgets FROM %s',
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(allowed.grantee)) END);
    END LOOP;
    FOR allowed IN SELECT a.grantee FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'orders'::regclass AND a.grantee <> c.relowner AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE format('GRANT SELECT ON closed_activities, detached_budgets TO %s',
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(allowed.grantee)) END);
    END LOOP;
END $$;
"#;

/// Who owns the table of orders, and whether this user is the same.
const OWNER: &str = "SELECT pg_get_userbyid(relowner)::text, relowner = current_user::regrole FROM pg_class \
    WHERE oid = 'orders'::regclass";
/// Whether both triggers work.
const GUARDED: &str = "SELECT count(*) = 2 FROM pg_trigger WHERE tgrelid = 'orders'::regclass \
    AND tgname IN ('orders_refuse_closed', 'orders_refuse_closed_anew') AND tgenabled IN ('O', 'A')";
/// The number of an activity of which an order or a budget is known.
const KNOWN: &str = "SELECT n.id FROM names n WHERE n.name = $1 AND EXISTS (SELECT 1 FROM programs p WHERE p.activity = n.id)";
const RESERVED: &str = "SELECT count(*) FROM (SELECT 1 FROM orders o JOIN programs p ON p.id = o.program \
    WHERE o.status = 0 AND p.activity = $1 LIMIT $2) AS own";
/// The transaction gets its number here, under the lock: those of all that have written orders are smaller.
const INSERT: &str = "INSERT INTO closed_activities (activity, operator, reason, closed_ms, place) \
    VALUES ($1, $2, $3, $4, pg_current_xact_id()::text::bigint) ON CONFLICT (activity) DO NOTHING";
const LOCK_ONE: &str = "SELECT c.activity, c.export, c.closed_ms FROM closed_activities c JOIN names n ON n.id = c.activity \
    WHERE n.name = $1 FOR UPDATE OF c";
const BUDGETS: &str = "INSERT INTO detached_budgets (program, place, orders, credited, amount) \
    SELECT p.id, c.place, w.orders, w.credited, w.amount \
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(program, orders, credited, amount) \
    JOIN programs p ON p.id = w.program AND p.activity = $5 JOIN closed_activities c ON c.activity = p.activity";
const CLOSED_AT: &str = "SELECT place FROM closed_activities WHERE activity = $1";
const IS_AUDITED: &str = "SELECT to_regclass('audit_position') IS NOT NULL";
const SEALED: &str = "SELECT to_at, coalesce(system, 0) FROM seals ORDER BY id DESC LIMIT 1";
/// Whoever moves the auditor's position, or sets it back, waits until this transaction has ended.
const AUDITED: &str = "SELECT at, cluster FROM audit_position FOR SHARE";
const BETWEEN: &str =
    "SELECT count(*) FROM (SELECT 1 FROM transfers WHERE tx >= $1 AND tx < $2 LIMIT $3) AS own";
const DETACHING: &str = "SELECT p.id FROM programs p JOIN closed_activities c ON c.activity = p.activity AND c.export IS NOT NULL \
    JOIN names n ON n.id = c.activity WHERE n.name = $1";
const DELETE: &str =
    "DELETE FROM orders WHERE ctid > $1::text::tid AND ctid < $2::text::tid AND program = ANY($3)";
const DONE: &str = "UPDATE closed_activities c SET detached_ms = coalesce(c.detached_ms, $2) FROM names n \
    WHERE n.id = c.activity AND n.name = $1";

/// Runs steps in a transaction under the lock of those that make tables, which is rolled back after an error.
fn transact<T>(
    session: &Session,
    schema: &str,
    steps: impl FnOnce() -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    let begin = format!(
        "BEGIN; SET LOCAL lock_timeout = {LOCK_MS}; \
         SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0))"
    );
    let done = session.batch(&begin).and_then(|()| steps()).inspect_err(|_| session.roll_back())?;
    // An error of the commit leaves open whether it happened; the caller asks again.
    session.commit(None)?;
    Ok(done)
}

/// The number of an activity, and how many of its orders are reserved.
fn look(session: &Session, activity: &str) -> Result<Result<i64, Closed>, LedgerError> {
    let known = session.query(KNOWN, &[&activity])?;
    let Some(number) = known.first().map(|row| cell::<i64>(row, 0)).transpose()? else {
        return Ok(Err(Closed::Unknown));
    };
    let reserved = session.query(RESERVED, &[&number, &COUNTED_MAX])?;
    Ok(match reserved.first().map_or(Ok(0), |row| cell::<i64>(row, 0))? {
        0 => Ok(number),
        orders => Err(Closed::Reserved { orders: orders.unsigned_abs() }),
    })
}

fn close(session: &Session, schema: &str, which: &Close<'_>) -> Result<Closed, LedgerError> {
    transact(session, schema, || {
        // From here on every transaction that has written orders has ended, and no other one writes any.
        session.batch("LOCK TABLE orders IN SHARE ROW EXCLUSIVE MODE")?;
        let activity = match look(session, which.activity)? {
            Ok(activity) => activity,
            Err(no) => return Ok(no),
        };
        session.batch(TABLES)?;
        need_triggers(session)?;
        let new = session.execute(INSERT, &[&activity, &which.operator, &which.reason, &which.time_ms])?;
        Ok(if new == 1 { Closed::Now } else { Closed::Before })
    })
}

/// Nothing is closed, and no order deleted, where the database would credit it again.
fn need_triggers(session: &Session) -> Result<(), LedgerError> {
    if session.query(GUARDED, &[])?.first().map_or(Ok(false), |row| cell(row, 0))? {
        return Ok(());
    }
    Err(LedgerError::Damaged(
        "the triggers orders_refuse_closed and orders_refuse_closed_anew of the table orders are missing or disabled, so orders of \
         closed activities would be credited; enable them, or restore them from a whole copy"
            .into(),
    ))
}

/// Locks a closed activity. Returns its number, the export that has its orders, if they are being detached, and when it was closed.
fn lock(session: &Session, activity: &str) -> Result<Option<(i64, Option<String>, i64)>, LedgerError> {
    if !are_there(session)? {
        return Ok(None);
    }
    let rows = session.query(LOCK_ONE, &[&activity])?;
    rows.first().map(|row| Ok((cell(row, 0)?, cell(row, 1)?, cell(row, 2)?))).transpose()
}

/// The one number that a statement answers.
fn number_of(session: &Session, sql: &'static str, params: Params<'_>) -> Result<i64, LedgerError> {
    let rows = session.query(sql, params)?;
    cell(rows.first().ok_or_else(|| LedgerError::Sql("an answer is missing".into()))?, 0)
}

/// The identifier of the database cluster, 0 where its server does not tell it. Not within a transaction, which an error would end.
fn cluster_of(session: &Session) -> Result<i64, LedgerError> {
    match number_of(session, SYSTEM, &[]) {
        Err(error) if position::hides_log(&error) => Ok(0),
        other => other,
    }
}

/// The place below which the auditor has read every transfer, and which stays until this transaction has ended.
fn audited(session: &Session, cluster: i64) -> Result<i64, LedgerError> {
    if !session.query(IS_AUDITED, &[])?.first().map_or(Ok(false), |row| cell::<bool>(row, 0))? {
        return Ok(i64::MIN);
    }
    let rows = session.query(AUDITED, &[])?;
    let Some(row) = rows.first() else { return Ok(i64::MIN) };
    let (at, known): (i64, i64) = (cell(row, 0)?, cell(row, 1)?);
    // A place of another cluster says nothing about this one's, and the auditor's next increment begins anew.
    Ok(if known != 0 && cluster != 0 && known != cluster { i64::MIN } else { at })
}

/// Where the last seal ends; below everything where there is none, or it is of another cluster, whose places say nothing about this
/// one's.
fn sealed(session: &Session, cluster: i64) -> Result<i64, LedgerError> {
    let rows = session.query(SEALED, &[])?;
    let Some(row) = rows.first() else { return Ok(i64::MIN) };
    let (to, known): (i64, i64) = (cell(row, 0)?, cell(row, 1)?);
    Ok(if known != 0 && cluster != 0 && known != cluster { i64::MIN } else { to })
}

/// What stands in the way of detaching the orders of this closed activity. Seals are only ever appended, so nothing holds the last one.
fn unproven(
    session: &Session,
    which: &Detach<'_>,
    number: i64,
    cluster: i64,
) -> Result<Unproven, LedgerError> {
    let place = number_of(session, CLOSED_AT, &[&number])?;
    // The place where the auditor or the sealer has come to may be below that of the close, with no transfer between them.
    let behind =
        |from: i64| number_of(session, BETWEEN, &[&from, &place, &COUNTED_MAX]).map(i64::unsigned_abs);
    let unread = if which.accept_unaudited { 0 } else { behind(audited(session, cluster)?)? };
    let unsealed = if which.accept_unsealed { 0 } else { behind(sealed(session, cluster)?)? };
    Ok(Unproven { unread, unsealed })
}

fn begin_detach(session: &Session, which: &Detach<'_>, cluster: i64) -> Result<DetachBegun, LedgerError> {
    let (number, export) = match lock(session, which.activity)? {
        Some((number, export, closed_ms)) if closed_ms == which.closed_ms => (number, export),
        _ => return Ok(DetachBegun::NotClosed),
    };
    match export {
        Some(export) if export == which.export => return Ok(DetachBegun::Before),
        Some(export) => return Ok(DetachBegun::OtherExport { export }),
        None => need_triggers(session)?,
    }
    let unproven = unproven(session, which, number, cluster)?;
    if !unproven.is_empty() {
        return Ok(DetachBegun::Unproven(unproven));
    }
    let columns = |of: fn(&crate::DetachedBudget) -> i64| which.budgets.iter().map(of).collect::<Vec<i64>>();
    let (budget_keys, orders) = (columns(|one| one.budget), columns(|one| one.orders));
    let (credited, amounts) = (columns(|one| one.credited), columns(|one| one.amount));
    let stored = session.execute(BUDGETS, &[&budget_keys, &orders, &credited, &amounts, &number])?;
    if usize::try_from(stored) != Ok(which.budgets.len()) {
        let what = format!("the export names budget keys that are not of activity {}", which.activity);
        return Err(LedgerError::Invalid(what));
    }
    session.execute(
        "UPDATE closed_activities SET export = $2, detach_ms = $3, reason = reason || $4::text WHERE activity = $1",
        &[&number, &which.export, &which.time_ms, &which.note()],
    )?;
    Ok(DetachBegun::Now)
}

fn detach_step(
    session: &Session,
    activity: &str,
    after: &str,
    time_ms: i64,
) -> Result<DetachStep, LedgerError> {
    if !are_there(session)? {
        return Err(not_begun(activity));
    }
    need_triggers(session)?;
    let rows = session.query(DETACHING, &[&activity])?;
    let budget_keys = rows.iter().map(|row| cell(row, 0)).collect::<Result<Vec<i64>, _>>()?;
    if budget_keys.is_empty() {
        return Err(not_begun(activity));
    }
    // An order may have been moved to a part that was read before, by a command that rewrites the table: passes go on until one
    // deletes nothing. The mark in front says that this one has.
    let (has_deleted, place) = after.strip_prefix(DELETED).map_or((false, after), |place| (true, place));
    let (from, end) = (Place::of(place)?, end(session, "orders")?);
    let behind = from.behind(DETACH_PAGES);
    let orders = session.execute(DELETE, &[&from.to_string(), &behind.to_string(), &budget_keys])?;
    let has_deleted = has_deleted || orders > 0;
    if behind.is_before(end) {
        let mark = if has_deleted { DELETED } else { "" };
        return Ok(DetachStep { orders, next: Some(format!("{mark}{behind}")) });
    }
    if has_deleted {
        return Ok(DetachStep { orders, next: Some(Place::of("")?.to_string()) });
    }
    session.execute(DONE, &[&activity, &time_ms])?;
    Ok(DetachStep { orders, next: None })
}

impl PgLedger {
    /// The connection on which activities are closed, and the name of its schema.
    fn own(&mut self) -> Result<(&Session, String), LedgerError> {
        self.link.look_again()?;
        self.connected()?;
        let schema = self.link.address.options.schema.clone();
        let session = self.link.held()?;
        if session.went_back() {
            let what = "the ledger went back in time; see windfall operate ledger and docs/restore.md";
            return Err(LedgerError::Invalid(what.into()));
        }
        if session.shape() != Shape::Keyed {
            let what =
                "activities are closed in ledgers of schema version 6; run windfall ledger migrate first";
            return Err(LedgerError::NotMigrated(what.into()));
        }
        let rows = session.query(OWNER, &[])?;
        let row = rows.first().ok_or_else(|| LedgerError::Sql("a row is missing".into()))?;
        if !cell::<bool>(row, 1)? {
            let owner = text(row, 0)?;
            let what = format!("the tables are {owner}'s; connect as {owner}, or with SET role = '{owner}'");
            return Err(LedgerError::Invalid(what));
        }
        Ok((session, schema))
    }
}

/// Repeats a step that another transaction was in the way of.
fn repeat<T>(step: impl Fn() -> Result<T, LedgerError>) -> Result<T, LedgerError> {
    let mut attempt = 1;
    loop {
        match step() {
            Err(LedgerError::Contended(_)) if attempt < LOCK_ATTEMPTS => {
                attempt += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            done => return done,
        }
    }
}

impl ClosingSteps for PgLedger {
    fn close(&mut self, which: &Close<'_>) -> Result<Closed, LedgerError> {
        let (session, schema) = self.own()?;
        // Once before the lock, under which all grants wait.
        if let Err(no) = look(session, which.activity)? {
            return Ok(no);
        }
        repeat(|| close(session, &schema, which))
    }

    fn reopen(&mut self, activity: &str) -> Result<Reopened, LedgerError> {
        let (session, schema) = self.own()?;
        repeat(|| {
            transact(session, &schema, || match lock(session, activity)? {
                None => Ok(Reopened::WasOpen),
                Some((_, Some(_), _)) => Ok(Reopened::Detached),
                Some((number, None, _)) => {
                    session.execute("DELETE FROM closed_activities WHERE activity = $1", &[&number])?;
                    Ok(Reopened::Now)
                }
            })
        })
    }

    fn begin_detach(&mut self, which: &Detach<'_>) -> Result<DetachBegun, LedgerError> {
        let (session, schema) = self.own()?;
        let cluster = cluster_of(session)?;
        repeat(|| transact(session, &schema, || begin_detach(session, which, cluster)))
    }

    fn detach_step(&mut self, activity: &str, after: &str, time_ms: i64) -> Result<DetachStep, LedgerError> {
        let (session, schema) = self.own()?;
        repeat(|| transact(session, &schema, || detach_step(session, activity, after, time_ms)))
    }
}
