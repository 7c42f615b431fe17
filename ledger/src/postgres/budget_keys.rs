//! Names and budget keys as numbers, which many writers make at once.

use super::session::Session;
use crate::budget::Shards;
use crate::error::LedgerError;
use crate::model::{BUDGET_MAX, Order};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio_postgres::Row;

/// The number of budget keys in the cache at most; when there are more, the cache starts anew.
const CACHE_MAX: usize = 16_384;
/// The number of rows that count for a budget key without a budget, so that as many writers do not wait for each
/// other.
const UNBUDGETED_SHARDS: usize = 8;

/// A budget key, which is an activity, a scene and a bonus type, as name ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BudgetKey {
    pub id: i64,
    pub activity: i64,
    pub bonus_type: i64,
    /// Whether a budget was set for it. Where this is false it may be out of date.
    pub budgeted: bool,
    /// The number of rows of its budget, which may be out of date.
    pub shards: u64,
}

/// Activity, scene and bonus type.
type Triple<'a> = [&'a str; 3];

/// Finds budget keys by name.
#[derive(Debug, Default)]
pub(crate) struct BudgetKeys {
    known: HashMap<String, BudgetKey>,
    /// The numbers of downstreams' names.
    payers: HashMap<String, i64>,
}

fn key(triple: Triple<'_>, into: &mut String) {
    into.clear();
    for part in triple {
        into.push_str(part);
        // PostgreSQL cannot store a text with it, so no two triples share a key.
        into.push('\0');
    }
}

impl BudgetKeys {
    /// Forgets everything: a rolled back transaction may have made some of it.
    pub fn clear(&mut self) {
        self.known.clear();
        self.payers.clear();
    }

    /// The numbers of downstreams' names; `None` for the empty one. Missing ones are made in this transaction.
    pub fn payers(&mut self, session: &Session, payers: &[&str]) -> Result<Vec<Option<i64>>, LedgerError> {
        let is_new = |name: &&&str| !name.is_empty() && !self.payers.contains_key(**name);
        let new: BTreeSet<&str> = payers.iter().filter(is_new).copied().collect();
        if !new.is_empty() {
            let new: Vec<&str> = new.into_iter().collect();
            make_names(session, &new)?;
            for row in &session.query("SELECT name, id FROM names WHERE name = ANY($1)", &[&new])? {
                self.payers.insert(text(row, 0)?.to_owned(), cell(row, 1)?);
            }
        }
        let id = |name: &&str| match (name.is_empty(), self.payers.get(*name)) {
            (true, _) => Ok(None),
            (false, Some(id)) => Ok(Some(*id)),
            (false, None) => Err(LedgerError::Damaged(format!("the name {name:?} has vanished"))),
        };
        payers.iter().map(id).collect()
    }

    /// Notes the number of rows, and whether there is a budget, as just read.
    pub fn learn(&mut self, id: i64, budgeted: bool, shards: u64) {
        for budget_key in self.known.values_mut().filter(|budget_key| budget_key.id == id) {
            budget_key.budgeted = budgeted;
            budget_key.shards = shards;
        }
    }

    /// The budget key of each order. Missing ones are made in this transaction.
    pub fn of_orders(
        &mut self,
        session: &Session,
        batch: &[Order<'_>],
    ) -> Result<Vec<BudgetKey>, LedgerError> {
        let triples = |order: &Order<'_>| [order.activity, order.scene, order.bonus_type].map(str::as_ptr);
        let mut missing = BTreeSet::new();
        let mut found: Vec<Option<BudgetKey>> = Vec::with_capacity(batch.len());
        let mut name = String::new();
        for (at, order) in batch.iter().enumerate() {
            let triple = [order.activity, order.scene, order.bonus_type];
            // Neighbours are mostly of one budget key.
            let before = at.checked_sub(1).map(|at| &batch[at]);
            let same = before.is_some_and(|before| {
                triples(before) == triples(order)
                    || [before.activity, before.scene, before.bonus_type] == triple
            });
            if same {
                found.push(found.last().copied().flatten());
                continue;
            }
            key(triple, &mut name);
            let known = self.known.get(&name).copied();
            if known.is_none() {
                missing.insert(triple);
            }
            found.push(known);
        }
        if missing.is_empty() {
            return Ok(found.into_iter().flatten().collect());
        }
        self.load(session, &missing)?;
        batch
            .iter()
            .map(|order| {
                key([order.activity, order.scene, order.bonus_type], &mut name);
                let known = self.known.get(&name).copied();
                known.ok_or_else(|| LedgerError::Damaged(format!("budget key {name:?} has vanished")))
            })
            .collect()
    }

    /// Reads budget keys into the cache, and makes those that are missing.
    pub fn load(&mut self, session: &Session, missing: &BTreeSet<Triple<'_>>) -> Result<(), LedgerError> {
        if self.known.len().saturating_add(missing.len()) > CACHE_MAX {
            self.known.clear();
        }
        if let Some(text) = missing.iter().flatten().find(|text| text.contains('\0')) {
            return Err(LedgerError::Invalid(format!("{text:?}: a name must not contain NUL")));
        }
        if self.read(session, missing)? < missing.len() {
            make(session, missing)?;
            self.read(session, missing)?;
        }
        Ok(())
    }

    fn read(&mut self, session: &Session, triples: &BTreeSet<Triple<'_>>) -> Result<usize, LedgerError> {
        let column = |at: usize| triples.iter().map(|triple| triple[at]).collect::<Vec<_>>();
        let rows = session.query(
            "SELECT p.id, p.activity, p.asset, p.budgeted, \
             (SELECT count(*) FROM budget_shards h WHERE h.program = p.id), w.activity, w.scene, w.asset \
             FROM unnest($1::text[], $2::text[], $3::text[]) AS w(activity, scene, asset) \
             JOIN names a ON a.name = w.activity JOIN names s ON s.name = w.scene \
             JOIN names b ON b.name = w.asset \
             JOIN programs p ON p.activity = a.id AND p.scene = s.id AND p.asset = b.id",
            &[&column(0), &column(1), &column(2)],
        )?;
        let mut name = String::new();
        for row in &rows {
            key([text(row, 5)?, text(row, 6)?, text(row, 7)?], &mut name);
            let budget_key = BudgetKey {
                id: cell(row, 0)?,
                activity: cell(row, 1)?,
                bonus_type: cell(row, 2)?,
                budgeted: cell(row, 3)?,
                shards: cell::<i64>(row, 4)?.unsigned_abs(),
            };
            self.known.insert(name.clone(), budget_key);
        }
        Ok(rows.len())
    }
}

/// Makes names, budget keys and their first shards where they are missing. All are made in the order of the names: of
/// two writers that make the same ones, one waits for the other, and the second finds them made. It reads them
/// with a later statement, whose snapshot is later than what it has waited for.
fn make(session: &Session, triples: &BTreeSet<Triple<'_>>) -> Result<(), LedgerError> {
    let names: BTreeSet<&str> = triples.iter().flatten().copied().collect();
    let names: Vec<&str> = names.into_iter().collect();
    make_names(session, &names)?;
    // The empty one is that of caps, which cover all.
    let activities: BTreeSet<&str> = triples.iter().map(|triple| triple[0]).chain([""]).collect();
    share(session, &activities.into_iter().collect::<Vec<_>>())?;
    let ids: BTreeMap<String, i64> = session
        .query("SELECT name, id FROM names WHERE name = ANY($1)", &[&names])?
        .iter()
        .map(|row| Ok((text(row, 0)?.to_owned(), cell(row, 1)?)))
        .collect::<Result<_, LedgerError>>()?;
    let column = |at: usize| {
        let id = |triple: &Triple<'_>| ids.get(triple[at]).copied();
        triples.iter().filter_map(id).collect::<Vec<i64>>()
    };
    let new: Vec<i64> = session
        .query(
            "INSERT INTO programs (activity, scene, asset, budgeted) \
             SELECT w.activity, w.scene, w.asset, false \
             FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w(activity, scene, asset) \
             ON CONFLICT (activity, scene, asset) DO NOTHING RETURNING id",
            &[&column(0), &column(1), &column(2)],
        )?
        .iter()
        .map(|row| cell(row, 0))
        .collect::<Result<_, _>>()?;
    let mut first = Shards::new(Vec::new());
    first.reset(BUDGET_MAX, UNBUDGETED_SHARDS);
    let totals: Vec<i64> = first.changed().map(|(_, shard)| shard.total).collect();
    session.execute(
        "INSERT INTO budget_shards (program, shard, total, used, reserved, guarded) \
         SELECT p.id, t.nth - 1, t.total, 0, 0, EXISTS ( \
             SELECT 1 FROM programs q, (SELECT id FROM names WHERE name = '') AS star \
             WHERE q.activity IN (p.activity, star.id) AND q.id <> p.id AND q.budgeted \
             AND (q.scene = star.id OR q.asset = star.id) \
             AND (q.scene = star.id OR q.scene = p.scene) AND (q.asset = star.id OR q.asset = p.asset)) \
         FROM programs p CROSS JOIN unnest($2::bigint[]) WITH ORDINALITY AS t(total, nth) \
         WHERE p.id = ANY($1)",
        &[&new, &totals],
    )?;
    Ok(())
}

/// Makes those of these names, which are sorted, that are missing.
fn make_names(session: &Session, names: &[&str]) -> Result<(), LedgerError> {
    session.execute(
        "INSERT INTO names (name) SELECT w.name FROM unnest($1::text[]) AS w(name) \
         WHERE NOT EXISTS (SELECT 1 FROM names n WHERE n.name = w.name) ON CONFLICT (name) DO NOTHING",
        &[&names],
    )?;
    Ok(())
}

/// Locks activities in shared mode until the transaction's end. While a combined budget of an activity is made, no
/// budget key of that activity is, and the other way round: the combined budget has to know all keys that it covers. A
/// cap belongs to the empty activity, which every maker of budget keys locks too.
const SHARE: &str = "SELECT pg_advisory_xact_lock_shared(hashtextextended( \
    'windfall budgets ' || current_schema() || ' ' || w.name, 0)) FROM unnest($1::text[]) AS w(name)";
const HOLD_ALONE: &str = "SELECT pg_advisory_xact_lock(hashtextextended( \
    'windfall budgets ' || current_schema() || ' ' || w.name, 0)) FROM unnest($1::text[]) AS w(name)";

fn share(session: &Session, activities: &[&str]) -> Result<(), LedgerError> {
    session.query(SHARE, &[&activities]).map(drop)
}

/// Locks these activities, which are sorted, alone: for making their combined budgets.
pub(crate) fn hold_alone(session: &Session, activities: &[&str]) -> Result<(), LedgerError> {
    if activities.is_empty() {
        return Ok(());
    }
    session.query(HOLD_ALONE, &[&activities]).map(drop)
}

/// One value of a row.
pub(crate) fn cell<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r Row,
    at: usize,
) -> Result<T, LedgerError> {
    row.try_get(at).map_err(|error| LedgerError::Damaged(format!("column {at} of an answer: {error}")))
}

pub(crate) fn text(row: &Row, at: usize) -> Result<&str, LedgerError> {
    cell(row, at)
}
