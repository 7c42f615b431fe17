//! Budgets of many writers (I4).
//!
//! A budget is split over rows, and each writer takes from the row that its connection picks, so that writers do
//! not queue on one. The fast way is one conditional update; where it finds too little room, the careful way locks
//! the budget as a whole, gathers room from all rows, and levels what is left over them. The table's CHECK sees
//! every row whatever the code does.

use super::programs::{Program, Programs, cell};
use super::session::Session;
use crate::budget::{Shard, Shards, Take};
use crate::error::LedgerError;
use crate::model::{BUDGET_MAX, BudgetRaised, BudgetSet, Unbudgeted};
use std::collections::{BTreeMap, BTreeSet};

/// The room that orders ask for, by program: so that rows are locked in the order of their keys. The parts are in
/// the caller's order: a short budget goes to those who came first.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    programs: BTreeMap<i64, (Program, Vec<Part>)>,
}

#[derive(Debug)]
struct Part {
    /// The caller's own number of it.
    at: usize,
    amount: i64,
}

impl Demand {
    pub fn push(&mut self, at: usize, program: Program, amount: i64) {
        let (_, parts) = self.programs.entry(program.id).or_insert_with(|| (program, Vec::new()));
        parts.push(Part { at, amount });
    }

    /// Programs whose parts together can be asked for at once, with their sums.
    fn sums(&self) -> Vec<(Program, i64)> {
        let sum = |(program, parts): &(Program, Vec<Part>)| {
            let sum: i128 = parts.iter().map(|part| i128::from(part.amount)).sum();
            i64::try_from(sum).ok().filter(|sum| *sum <= BUDGET_MAX).map(|sum| (*program, sum))
        };
        self.programs.values().filter_map(sum).collect()
    }

    fn drop_all(&mut self, done: &BTreeSet<i64>, mut each: impl FnMut(usize)) {
        self.programs.retain(|id, (_, parts)| {
            let gone = done.contains(id);
            if gone {
                parts.iter().for_each(|part| each(part.at));
            }
            !gone
        });
    }
}

/// Takes room. Answers the parts that got it, by the caller's numbers.
pub(crate) fn take(
    session: &Session,
    programs: &mut Programs,
    unbudgeted: Unbudgeted,
    mut demand: Demand,
    what: Take,
) -> Result<BTreeSet<usize>, LedgerError> {
    let mut taken = BTreeSet::new();
    if unbudgeted == Unbudgeted::Refuse {
        refuse_unbudgeted(session, programs, &mut demand)?;
    }
    if demand.programs.is_empty() {
        return Ok(taken);
    }
    let fast = take_whole(session, &demand.sums(), what)?;
    demand.drop_all(&fast, |at| {
        taken.insert(at);
    });
    for (id, (_, parts)) in demand.programs {
        take_each(session, programs, id, &parts, what, &mut taken)?;
    }
    Ok(taken)
}

/// Drops the demands on programs without a budget. That there is none may be old news: another connection may
/// have set it meanwhile, and a refusal is final. So it is read again.
fn refuse_unbudgeted(
    session: &Session,
    programs: &mut Programs,
    demand: &mut Demand,
) -> Result<(), LedgerError> {
    let ids: Vec<i64> = demand
        .programs
        .values()
        .map(|(program, _)| program)
        .filter(|one| !one.budgeted)
        .map(|one| one.id)
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    let rows = session.query(
        "SELECT p.id, (SELECT count(*) FROM budget_shards h WHERE h.program = p.id) FROM programs p \
         WHERE p.id = ANY($1) AND p.budgeted",
        &[&ids],
    )?;
    let mut refused: BTreeSet<i64> = ids.into_iter().collect();
    for row in &rows {
        let id = cell(row, 0)?;
        programs.learn(id, true, cell::<i64>(row, 1)?.unsigned_abs());
        refused.remove(&id);
    }
    demand.drop_all(&refused, |_| {});
    Ok(())
}

/// Takes each program's sum from this writer's own row, where it has that much room; answers which had.
///
/// READ COMMITTED suffices: a row that another transaction has in hand is waited for, and the condition is then
/// checked again on its new version. Rows that are gone, since the budget was split anew, are not updated: the
/// careful way finds the new ones.
fn take_whole(session: &Session, sums: &[(Program, i64)], what: Take) -> Result<BTreeSet<i64>, LedgerError> {
    let ids: Vec<i64> = sums.iter().map(|(program, _)| program.id).collect();
    let rows: Vec<i64> = sums.iter().map(|(program, _)| own_row(session, program.shards)).collect();
    let amounts =
        |own: Take| -> Vec<i64> { sums.iter().map(|(_, sum)| if own == what { *sum } else { 0 }).collect() };
    let done = session.query(
        "UPDATE budget_shards h SET used = h.used + w.used, reserved = h.reserved + w.reserved \
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(program, shard, used, reserved) \
         WHERE h.program = w.program AND h.shard = w.shard \
         AND h.used + h.reserved + w.used + w.reserved <= h.total RETURNING h.program",
        &[&ids, &rows, &amounts(Take::Used), &amounts(Take::Reserved)],
    )?;
    done.iter().map(|row| cell(row, 0)).collect()
}

/// The careful way: part by part, from all rows.
fn take_each(
    session: &Session,
    programs: &mut Programs,
    id: i64,
    parts: &[Part],
    what: Take,
    taken: &mut BTreeSet<usize>,
) -> Result<(), LedgerError> {
    // Where nothing is left, nobody needs to lock anything: one statement sees all rows at one moment, and at
    // that moment there was no room for any of the parts.
    let rows = session.query(
        "SELECT coalesce(sum(total - used - reserved), 0)::bigint FROM budget_shards WHERE program = $1",
        &[&id],
    )?;
    let room: i64 = rows.first().map_or(Ok(0), |row| cell(row, 0))?;
    if parts.iter().all(|part| part.amount > room) {
        return Ok(());
    }
    let (mut shards, budgeted) = lock(session, id)?;
    programs.learn(id, budgeted, shards.len());
    for part in parts {
        if shards.take(session.slot(), part.amount, what) {
            taken.insert(part.at);
        }
    }
    shards.level();
    write(session, id, &shards)
}

/// Locks a budget as a whole and reads it: first the program, since a new number of rows is set under that lock;
/// then its rows, by a later statement that sees what the one before had to wait for.
fn lock(session: &Session, id: i64) -> Result<(Shards, bool), LedgerError> {
    let rows = session.query("SELECT budgeted FROM programs WHERE id = $1 FOR NO KEY UPDATE", &[&id])?;
    let missing = || LedgerError::Damaged(format!("program {id} is not there"));
    let budgeted = cell(rows.first().ok_or_else(missing)?, 0)?;
    let shards = session
        .query(
            "SELECT total, used, reserved FROM budget_shards WHERE program = $1 ORDER BY shard FOR UPDATE",
            &[&id],
        )?
        .iter()
        .map(|row| Ok(Shard { total: cell(row, 0)?, used: cell(row, 1)?, reserved: cell(row, 2)? }))
        .collect::<Result<Vec<_>, LedgerError>>()?;
    Ok((Shards::new(shards), budgeted))
}

/// Writes what has changed. The rows are locked, or new under the program's lock.
fn write(session: &Session, id: i64, shards: &Shards) -> Result<(), LedgerError> {
    let changed: Vec<(i64, Shard)> =
        shards.changed().map(|(at, shard)| (i64::try_from(at).unwrap_or(i64::MAX), shard)).collect();
    if changed.is_empty() {
        return Ok(());
    }
    let column = |of: fn(&(i64, Shard)) -> i64| changed.iter().map(of).collect::<Vec<i64>>();
    session.execute(
        "INSERT INTO budget_shards (program, shard, total, used, reserved) \
         SELECT $1::bigint, w.* FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS w \
         ON CONFLICT (program, shard) DO UPDATE SET total = excluded.total, used = excluded.used, \
         reserved = excluded.reserved",
        &[
            &id,
            &column(|(at, _)| *at),
            &column(|(_, shard)| shard.total),
            &column(|(_, shard)| shard.used),
            &column(|(_, shard)| shard.reserved),
        ],
    )?;
    Ok(())
}

fn own_row(session: &Session, shards: u64) -> i64 {
    i64::try_from(session.slot() % shards.max(1)).unwrap_or(0)
}

/// Turns reservations into use, or gives them back: first from this writer's own row, else from all.
pub(crate) fn settle(
    session: &Session,
    programs: &mut Programs,
    demand: &Demand,
    credited: bool,
) -> Result<(), LedgerError> {
    let sums = demand.sums();
    if demand.programs.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = sums.iter().map(|(program, _)| program.id).collect();
    let rows: Vec<i64> = sums.iter().map(|(program, _)| own_row(session, program.shards)).collect();
    let amounts: Vec<i64> = sums.iter().map(|(_, sum)| *sum).collect();
    let used: Vec<i64> = amounts.iter().map(|sum| if credited { *sum } else { 0 }).collect();
    let done: BTreeSet<i64> = session
        .query(
            "UPDATE budget_shards h SET reserved = h.reserved - w.amount, used = h.used + w.used \
             FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(program, shard, amount, used) \
             WHERE h.program = w.program AND h.shard = w.shard AND h.reserved >= w.amount RETURNING h.program",
            &[&ids, &rows, &amounts, &used],
        )?
        .iter()
        .map(|row| cell(row, 0))
        .collect::<Result<_, _>>()?;
    for (id, (_, parts)) in demand.programs.iter().filter(|(id, _)| !done.contains(id)) {
        let (mut shards, budgeted) = lock(session, *id)?;
        programs.learn(*id, budgeted, shards.len());
        for part in parts {
            if !shards.settle(session.slot(), part.amount, credited) {
                return Err(LedgerError::Damaged(format!(
                    "program {id}: {} is reserved by an order, but its budget holds less",
                    part.amount
                )));
            }
        }
        write(session, *id, &shards)?;
    }
    Ok(())
}

/// Sets one budget, under the program's lock: what was given out before counts.
pub(crate) fn set(
    session: &Session,
    programs: &mut Programs,
    program: i64,
    budget: &BudgetSet<'_>,
) -> Result<Option<BudgetRaised>, LedgerError> {
    let BudgetSet { activity, scene, bonus_type, total, shards } = *budget;
    let (mut own, _) = lock(session, program)?;
    let holds = own.reset(total, usize::try_from(shards).unwrap_or(1));
    session.execute(
        "DELETE FROM budget_shards WHERE program = $1 AND shard >= $2",
        &[&program, &i64::from(shards)],
    )?;
    write(session, program, &own)?;
    session.execute("UPDATE programs SET budgeted = true WHERE id = $1", &[&program])?;
    programs.learn(program, true, u64::from(shards));
    Ok((holds > total).then(|| BudgetRaised {
        activity: activity.into(),
        scene: scene.into(),
        bonus_type: bonus_type.into(),
        asked: total,
        total: holds,
    }))
}
