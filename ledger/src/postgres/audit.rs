//! An auditor's connection to a ledger in PostgreSQL ([`crate::audit`]). A transfer's place is the number of its transaction.

use super::act_tables;
use super::address::Address;
use super::audit_near::{self, PAYMENTS_MIN, SAMPLED};
use super::audit_packed::{self, ADD_MIN};
use super::budget_keys::cell;
use super::closed;
use super::link::{Link, Purpose};
use super::options::PostgresOptions;
use super::position;
use super::session::Session;
use super::shape::spell_check;
use crate::audit::db::{AuditDb, Cell, Value, add_to_sums, one, sums_of_users};
use crate::audit::increment::pays_order;
use crate::audit::model::AuditError;
use crate::audit::tables::SETS as TABLE_SETS;
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use std::cell::RefMut;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

const LOCK: &str =
    "SELECT pg_try_advisory_xact_lock(hashtextextended('windfall auditor ' || current_schema(), 0))";
/// Whoever moves the position waits until this transaction has ended.
const HOLD_POSITION: &str = "SELECT one FROM audit_position FOR UPDATE";
const HORIZON: &str = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
const AHEAD: &str = "SELECT id, tx FROM transfers \
    WHERE tx >= (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint) ORDER BY tx, id LIMIT 1";
const SYSTEM: &str = "SELECT system_identifier FROM pg_control_system()";
/// A step's rows are sorted and hashed in memory, up to this.
const WORK_MEM: &str = "64MB";
/// Whether pages of a table can be read by their numbers.
const READS_PAGES: &str = "SELECT current_setting('server_version_num')::int >= 140000";
const MAY_MAKE: &str = "SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)";

/// A connection that audits.
#[derive(Debug)]
pub(crate) struct PgAudit {
    link: Link,
    /// The number of the connection on which the tables were found; 0 for none.
    ready: u64,
    /// The number of the connection on which a transaction is open.
    open: Option<u64>,
    /// The identifier of the database cluster of that connection, 0 where its server does not tell it.
    cluster: i64,
    /// Whether that server can read pages of a table by their numbers.
    reads_pages: bool,
}

pub(crate) fn open(url: &str, options: &PostgresOptions) -> Result<PgAudit, OpenError> {
    let link = Link::connect(Address::new(url, options)?, Purpose::Seal)?;
    Ok(PgAudit { link, ready: 0, open: None, cluster: 0, reads_pages: false })
}

fn lost() -> LedgerError {
    LedgerError::Unavailable("the connection was lost within a transaction of the auditor".into())
}

fn first<T: for<'r> tokio_postgres::types::FromSql<'r>>(
    session: &Session,
    sql: &'static str,
) -> Result<T, LedgerError> {
    let rows = session.query(sql, &[])?;
    cell(rows.first().ok_or_else(|| LedgerError::Sql("an answer is missing".into()))?, 0)
}

impl PgAudit {
    /// The connection. Within a transaction it is the one on which that has begun, never a new one.
    fn session(&self) -> Result<RefMut<'_, Session>, LedgerError> {
        let session = self.link.session()?;
        match self.open {
            Some(number) if session.number() != number => Err(lost()),
            _ => Ok(session),
        }
    }

    /// Settles a new connection in: its statements may take long, and its server may lack the tables.
    fn settle_in(&self, session: &Session) -> Result<(), AuditError> {
        session.need_journal()?;
        let options = &self.link.address.options;
        session.batch(&format!(
            "SET statement_timeout = {}; SET work_mem = '{WORK_MEM}'",
            options.read_timeout_ms
        ))?;
        session.set_timeout(options.read_timeout());
        for set in TABLE_SETS {
            let names = set.names.iter().map(|name| format!("to_regclass('{name}') IS NOT NULL"));
            let asked = format!("SELECT {}", names.collect::<Vec<_>>().join(" AND "));
            let rows = session.query_stored(&asked)?;
            let are_there: bool =
                cell(rows.first().ok_or_else(|| LedgerError::Sql("an answer is missing".into()))?, 0)?;
            if are_there {
                continue;
            }
            if !first::<bool>(session, MAY_MAKE)? {
                return Err(AuditError::NoTables);
            }
            let schema = &options.schema;
            let make = format!(
                "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0)); {} COMMIT",
                set.sql(true)
            );
            // A transaction that failed is still open on it.
            session.batch(&make).inspect_err(|_| session.give_up())?;
        }
        Ok(())
    }
}

impl AuditDb for PgAudit {
    fn place(&self) -> &'static str {
        "tx"
    }

    fn ready(&mut self) -> Result<(), AuditError> {
        let (number, cluster, reads_pages) = {
            let session = self.link.session()?;
            if session.number() == self.ready {
                return Ok(());
            }
            self.settle_in(&session)?;
            // Asked here: within a transaction an error would end it.
            let cluster = match first(&session, SYSTEM) {
                Err(error) if position::hides_log(&error) => 0,
                other => other?,
            };
            (session.number(), cluster, first(&session, READS_PAGES)?)
        };
        (self.ready, self.cluster, self.reads_pages) = (number, cluster, reads_pages);
        Ok(())
    }

    fn begin(&mut self) -> Result<bool, AuditError> {
        self.ready()?;
        let (number, is_own) = {
            let session = self.link.session()?;
            // Another one than was found to be ready.
            if session.number() != self.ready {
                return Err(lost().into());
            }
            if session.went_back() {
                let why = "its connection leads to a server that went back in time";
                return Err(LedgerError::Unavailable(why.into()).into());
            }
            session.batch("BEGIN")?;
            let own = first::<bool>(&session, LOCK).and_then(|own| {
                if own {
                    first::<i64>(&session, HOLD_POSITION)?;
                }
                Ok(own)
            });
            (session.number(), own.inspect_err(|_| session.roll_back())?)
        };
        self.open = Some(number);
        Ok(is_own)
    }

    fn commit(&mut self) -> Result<(), LedgerError> {
        let done = self.session().and_then(|session| session.commit(None));
        self.open = None;
        done
    }

    fn roll_back(&mut self) {
        if let Ok(session) = self.session() {
            session.roll_back();
        }
        self.open = None;
    }

    fn rows(&self, sql: &str, params: &[Value<'_>]) -> Result<Vec<Vec<Cell>>, LedgerError> {
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(param).collect();
        let session = self.session()?;
        session.query_with(&spell_check(session.shape(), sql), &params)?.iter().map(cells).collect()
    }

    fn execute(&self, sql: &str, params: &[Value<'_>]) -> Result<u64, LedgerError> {
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(param).collect();
        let session = self.session()?;
        session.execute_with(&spell_check(session.shape(), sql), &params)
    }

    fn rows_hashed(&self, sql: &str, params: &[Value<'_>]) -> Result<Vec<Vec<Cell>>, LedgerError> {
        // Where the statistics are old, the planner may take many rows for one, and read all of the other side for each.
        self.session()?.batch("SET LOCAL enable_nestloop = off; SET LOCAL enable_mergejoin = off")?;
        let rows = self.rows(sql, params)?;
        self.session()?.batch("SET LOCAL enable_nestloop = on; SET LOCAL enable_mergejoin = on")?;
        Ok(rows)
    }

    fn orders_near(&self, range: &[Value<'_>; 2], count: i64) -> Result<Option<String>, LedgerError> {
        if !self.reads_pages || count < PAYMENTS_MIN {
            return Ok(None);
        }
        // The look is an expression, so that it is never a join with all orders.
        let sampled = format!(
            "SELECT DISTINCT (((SELECT o.ctid FROM orders o WHERE o.order_key = t.reference)::text::point)[0])::bigint AS page \
             FROM transfers t WHERE tx >= $1 AND tx < $2 AND hashint8(id) % {SAMPLED} = 0 AND {} ORDER BY page",
            pays_order()
        );
        let rows = self.rows(&sampled, range)?;
        let mut pages = Vec::with_capacity(rows.len());
        for row in &rows {
            // None where there is no such order.
            pages.extend(row[0].int_or_none()?);
        }
        Ok(audit_near::runs(&pages, count / 4).map(|runs| audit_near::orders_of(&runs)))
    }

    fn add_to_users(&self, added: &str, range: &[Value<'_>; 2], count: i64) -> Result<(), LedgerError> {
        let sql = if count < ADD_MIN { add_to_sums(&sums_of_users(added)) } else { audit_packed::add(added) };
        self.execute(&sql, range)?;
        Ok(())
    }

    fn packed_sums(&self, page: &[Value<'_>], accounts: u64) -> Result<Option<String>, LedgerError> {
        let rows = one(self, &audit_packed::count(page), page)?[0].int()?;
        if rows == 0 {
            return Ok(None);
        }
        if audit_packed::are_too_many(rows, i64::try_from(accounts).unwrap_or(i64::MAX)) {
            self.execute(&audit_packed::tidy(page), page)?;
        }
        Ok(Some(audit_packed::packed_sums(page)))
    }

    fn clear_sums(&self) -> Result<(), LedgerError> {
        for table in ["audit_sums", "audit_packed", "audit_pending"] {
            self.execute(&format!("DELETE FROM {table}"), &[])?;
        }
        Ok(())
    }

    fn horizon(&self) -> Result<i64, LedgerError> {
        first(&*self.session()?, HORIZON)
    }

    fn cluster(&self) -> Result<i64, LedgerError> {
        Ok(self.cluster)
    }

    fn ahead(&self) -> Result<Option<(i64, i64)>, LedgerError> {
        let rows = self.session()?.query(AHEAD, &[])?;
        rows.first().map(|row| Ok((cell(row, 0)?, cell(row, 1)?))).transpose()
    }

    fn has_acts(&self) -> Result<bool, LedgerError> {
        act_tables::are_there(&*self.session()?)
    }

    fn has_closed(&self) -> Result<bool, LedgerError> {
        closed::are_there(&*self.session()?)
    }

    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError> {
        self.link.guard_by(guard)
    }

    fn look(&mut self) -> Result<(), LedgerError> {
        let Some(guard) = &self.link.address.guard else { return Ok(()) };
        position::look(&*self.link.session()?, guard).map(drop)
    }
}

fn param<'p>(value: &'p Value<'_>) -> &'p (dyn ToSql + Sync) {
    match value {
        Value::Int(value) => value,
        Value::Text(text) => text,
    }
}

fn cells(row: &Row) -> Result<Vec<Cell>, LedgerError> {
    let int = |value: Option<i64>| value.map_or(Cell::Null, Cell::Int);
    (0..row.len())
        .map(|at| match *row.columns()[at].type_() {
            Type::INT2 => Ok(int(cell::<Option<i16>>(row, at)?.map(i64::from))),
            Type::INT4 => Ok(int(cell::<Option<i32>>(row, at)?.map(i64::from))),
            Type::INT8 => Ok(int(cell(row, at)?)),
            _ => Ok(cell::<Option<String>>(row, at)?.map_or(Cell::Null, Cell::Text)),
        })
        .collect()
}
