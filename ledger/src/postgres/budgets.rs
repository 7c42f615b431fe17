//! Budgets that many writers take from at once (I4).
//! A budget is split over rows, and each writer takes from the row that its connection picks, so that writers do not
//! wait for each other. The fast way is one conditional update; where it finds too little room, the careful way locks
//! the budget as a whole, gathers room from all rows, and levels what is left over them. The table's CHECK sees
//! every row whatever the code does.

use super::budget_keys::{BudgetKey, BudgetKeys, cell, hold_alone};
use super::session::Session;
use crate::budget::{Shard, Shards, Take};
use crate::decision;
use crate::error::LedgerError;
use crate::journal::Funded;
use crate::model::{BUDGET_MAX, BudgetRaised, BudgetSet, Unbudgeted};
use std::collections::{BTreeMap, BTreeSet};
use windfall_contract::accounts::Reason;

/// The room that orders ask for, by budget key, so that rows are locked in the order of their keys. The parts are in
/// the caller's order: a short budget goes to the orders that came first.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    budget_keys: BTreeMap<i64, (BudgetKey, Vec<Part>)>,
}

#[derive(Debug)]
struct Part {
    /// The caller's own number of the part.
    at: usize,
    amount: i64,
}

impl Demand {
    pub fn push(&mut self, at: usize, budget_key: BudgetKey, amount: i64) {
        let (_, parts) = self.budget_keys.entry(budget_key.id).or_insert_with(|| (budget_key, Vec::new()));
        parts.push(Part { at, amount });
    }

    /// Budget keys whose parts together can be asked for at once, with their sums.
    fn sums(&self) -> Vec<(BudgetKey, i64)> {
        let sum = |(budget_key, parts): &(BudgetKey, Vec<Part>)| {
            let sum: i128 = parts.iter().map(|part| i128::from(part.amount)).sum();
            i64::try_from(sum).ok().filter(|sum| *sum <= BUDGET_MAX).map(|sum| (*budget_key, sum))
        };
        self.budget_keys.values().filter_map(sum).collect()
    }

    fn drop_all(&mut self, done: &BTreeSet<i64>, mut each: impl FnMut(usize)) {
        self.budget_keys.retain(|id, (_, parts)| {
            let gone = done.contains(id);
            if gone {
                parts.iter().for_each(|part| each(part.at));
            }
            !gone
        });
    }
}

/// The parts that got room, and why others did not, by the caller's numbers.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    parts: BTreeSet<usize>,
    unbudgeted: BTreeSet<usize>,
    over_cap: BTreeSet<usize>,
}

impl Taken {
    /// Why a part got no room; `None` where it got room.
    pub fn refused(&self, at: usize) -> Option<Reason> {
        if self.parts.contains(&at) {
            return None;
        }
        Some(if self.unbudgeted.contains(&at) {
            Reason::Unbudgeted
        } else if self.over_cap.contains(&at) {
            Reason::OverTypeCap
        } else {
            Reason::BudgetExhausted
        })
    }
}

/// Takes room for a demand.
pub(crate) fn take(
    session: &Session,
    budget_keys: &mut BudgetKeys,
    unbudgeted: Unbudgeted,
    mut demand: Demand,
    what: Take,
) -> Result<Taken, LedgerError> {
    let mut taken = Taken::default();
    if unbudgeted == Unbudgeted::Refuse {
        taken.unbudgeted = refuse_unbudgeted(session, budget_keys, &mut demand)?;
    }
    if demand.budget_keys.is_empty() {
        return Ok(taken);
    }
    let fast = take_whole(session, &demand.sums(), what)?;
    demand.drop_all(&fast, |at| {
        taken.parts.insert(at);
    });
    if demand.budget_keys.is_empty() {
        return Ok(taken);
    }
    let mut careful = careful(session, &demand)?;
    for (id, (_, parts)) in &demand.budget_keys {
        if !careful.contains(id) && !take_each(session, budget_keys, *id, parts, what, &mut taken.parts)? {
            careful.insert(*id);
        }
    }
    demand.budget_keys.retain(|id, _| careful.contains(id));
    if !demand.budget_keys.is_empty() {
        let mut all = Whole::lock(session, budget_keys, demand.budget_keys.keys().copied().collect())?;
        all.take(session, &demand, what, &mut taken);
        all.write(session)?;
    }
    Ok(taken)
}

/// The budget keys that are strict, or that a combined budget covers, as of now.
fn careful(session: &Session, demand: &Demand) -> Result<BTreeSet<i64>, LedgerError> {
    let ids: Vec<i64> = demand.budget_keys.keys().copied().collect();
    let rows = session
        .query("SELECT DISTINCT program FROM budget_shards WHERE program = ANY($1) AND guarded", &[&ids])?;
    rows.iter().map(|row| cell(row, 0)).collect()
}

/// Budgets that are locked as a whole: budget keys, then the combined budgets that cover them, each in the order of
/// their numbers. The covering budgets are read after the budget keys are locked: a new combined budget
/// locks them first.
pub(crate) struct Whole {
    shards: BTreeMap<i64, Shards>,
    covered_by: BTreeMap<i64, Vec<i64>>,
    /// The budgets among them that are caps of a type.
    caps: BTreeSet<i64>,
}

impl Whole {
    fn lock(session: &Session, budget_keys: &mut BudgetKeys, ids: Vec<i64>) -> Result<Self, LedgerError> {
        let mut whole = Self { shards: BTreeMap::new(), covered_by: BTreeMap::new(), caps: BTreeSet::new() };
        for id in &ids {
            whole.add(session, budget_keys, *id)?;
        }
        let rows = session.query(
            "SELECT p.id, q.id, q.activity = star.id FROM programs p \
             CROSS JOIN (SELECT id FROM names WHERE name = '') AS star \
             JOIN programs q ON q.activity IN (p.activity, star.id) AND q.id <> p.id \
             WHERE p.id = ANY($1) AND q.budgeted AND (q.scene = star.id OR q.asset = star.id) \
             AND (q.scene = star.id OR q.scene = p.scene) AND (q.asset = star.id OR q.asset = p.asset)",
            &[&ids],
        )?;
        let mut above = BTreeSet::new();
        for row in &rows {
            let (id, combined) = (cell(row, 0)?, cell(row, 1)?);
            if cell(row, 2)? {
                whole.caps.insert(combined);
            }
            whole.covered_by.entry(id).or_default().push(combined);
            above.insert(combined);
        }
        for id in above {
            whole.add(session, budget_keys, id)?;
        }
        Ok(whole)
    }

    fn add(&mut self, session: &Session, budget_keys: &mut BudgetKeys, id: i64) -> Result<(), LedgerError> {
        let Locked { shards, budgeted, .. } = lock(session, id)?;
        budget_keys.learn(id, budgeted, shards.len());
        self.shards.insert(id, shards);
        Ok(())
    }

    /// Every budget that an order of this budget key takes from.
    fn of(&self, budget_key: i64) -> Vec<i64> {
        let above = self.covered_by.get(&budget_key).into_iter().flatten().copied();
        std::iter::once(budget_key).chain(above).collect()
    }

    /// Takes part by part, in the caller's order over all budget keys, each from all of its budgets or from none.
    fn take(&mut self, session: &Session, demand: &Demand, what: Take, taken: &mut Taken) {
        let mut parts: Vec<(usize, i64, i64)> = demand
            .budget_keys
            .iter()
            .flat_map(|(id, (_, parts))| parts.iter().map(|part| (part.at, *id, part.amount)))
            .collect();
        parts.sort_unstable();
        for (at, id, amount) in parts {
            let own = self.of(id);
            let short = |id: &&i64| !self.shards.get(id).is_some_and(|shards| shards.fits(amount));
            let short: Vec<i64> = own.iter().filter(short).copied().collect();
            let refused = decision::refusal(short.iter().map(|id| self.caps.contains(id)));
            if refused == Some(Reason::OverTypeCap) {
                taken.over_cap.insert(at);
            }
            if refused.is_none() {
                for id in own {
                    if let Some(shards) = self.shards.get_mut(&id) {
                        shards.take(session.slot(), amount, what);
                    }
                }
                taken.parts.insert(at);
            }
        }
        self.shards.values_mut().for_each(Shards::level);
    }

    /// Turns a reservation of this budget key into use, or gives it back, in all of its budgets.
    fn settle(&mut self, session: &Session, budget_key: i64, amount: i64, credited: bool) -> bool {
        self.of(budget_key).into_iter().all(|id| {
            self.shards.get_mut(&id).is_some_and(|shards| shards.settle(session.slot(), amount, credited))
        })
    }

    /// Takes back what this budget key has given out, in all of its budgets. `None`: it has given out less, and nothing was
    /// changed. `Some(false)`: what covers it has.
    pub fn take_back(&mut self, session: &Session, budget_key: i64, amount: i64) -> Option<bool> {
        let mut ids = self.of(budget_key).into_iter();
        let mut back =
            |id: i64| self.shards.get_mut(&id).is_some_and(|shards| shards.take_back(session.slot(), amount));
        if !ids.next().is_some_and(&mut back) {
            return None;
        }
        Some(ids.all(back))
    }

    pub fn write(&self, session: &Session) -> Result<(), LedgerError> {
        self.shards.iter().try_for_each(|(id, shards)| write(session, *id, shards))
    }
}

/// Locks budget keys, which are sorted, and all that cover them.
pub(crate) fn lock_whole(
    session: &Session,
    budget_keys: &mut BudgetKeys,
    ids: Vec<i64>,
) -> Result<Whole, LedgerError> {
    Whole::lock(session, budget_keys, ids)
}

/// Drops the demands on budget keys without a budget, and returns the parts that they belonged to. The cache may be out
/// of date: another connection may have set a budget meanwhile, and a refusal is final. So it is read again.
fn refuse_unbudgeted(
    session: &Session,
    budget_keys: &mut BudgetKeys,
    demand: &mut Demand,
) -> Result<BTreeSet<usize>, LedgerError> {
    let mut unbudgeted = BTreeSet::new();
    let ids: Vec<i64> = demand
        .budget_keys
        .values()
        .map(|(budget_key, _)| budget_key)
        .filter(|one| !one.budgeted)
        .map(|one| one.id)
        .collect();
    if ids.is_empty() {
        return Ok(unbudgeted);
    }
    let rows = session.query(
        "SELECT p.id, (SELECT count(*) FROM budget_shards h WHERE h.program = p.id) FROM programs p \
         WHERE p.id = ANY($1) AND (p.budgeted OR EXISTS ( \
             SELECT 1 FROM programs q, (SELECT id FROM names WHERE name = '') AS star \
             WHERE q.activity = p.activity AND q.id <> p.id AND q.budgeted \
             AND (q.scene = star.id OR q.asset = star.id) \
             AND (q.scene = star.id OR q.scene = p.scene) AND (q.asset = star.id OR q.asset = p.asset)))",
        &[&ids],
    )?;
    let mut refused: BTreeSet<i64> = ids.into_iter().collect();
    for row in &rows {
        let id = cell(row, 0)?;
        budget_keys.learn(id, true, cell::<i64>(row, 1)?.unsigned_abs());
        refused.remove(&id);
    }
    demand.drop_all(&refused, |at| {
        unbudgeted.insert(at);
    });
    Ok(unbudgeted)
}

/// Takes each budget key's sum from this writer's own row, where it has that much room; returns the keys
/// that had.
///
/// READ COMMITTED suffices: a row that another transaction works on is waited for, and the condition is then
/// checked again on its new version. Rows that are gone, since the budget was split anew, are not updated: the
/// careful way finds the new ones.
fn take_whole(
    session: &Session,
    sums: &[(BudgetKey, i64)],
    what: Take,
) -> Result<BTreeSet<i64>, LedgerError> {
    let ids: Vec<i64> = sums.iter().map(|(budget_key, _)| budget_key.id).collect();
    let rows: Vec<i64> = sums.iter().map(|(budget_key, _)| own_row(session, budget_key.shards)).collect();
    let amounts =
        |own: Take| -> Vec<i64> { sums.iter().map(|(_, sum)| if own == what { *sum } else { 0 }).collect() };
    let done = session.query(
        "UPDATE budget_shards h SET used = h.used + w.used, reserved = h.reserved + w.reserved \
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(program, shard, used, reserved) \
         WHERE h.program = w.program AND h.shard = w.shard AND NOT h.guarded \
         AND h.used + h.reserved + w.used + w.reserved <= h.total RETURNING h.program",
        &[&ids, &rows, &amounts(Take::Used), &amounts(Take::Reserved)],
    )?;
    done.iter().map(|row| cell(row, 0)).collect()
}

/// Takes part by part from all rows, the careful way. Returns false and takes nothing if it finds, with the lock held,
/// that a combined budget covers the key by now, or that it is strict.
fn take_each(
    session: &Session,
    budget_keys: &mut BudgetKeys,
    id: i64,
    parts: &[Part],
    what: Take,
    taken: &mut BTreeSet<usize>,
) -> Result<bool, LedgerError> {
    // Where nothing is left, no lock is needed: one statement sees all rows at one moment, and at
    // that moment there was no room for any of the parts.
    let rows = session.query(
        "SELECT coalesce(sum(total - used - reserved), 0)::bigint FROM budget_shards WHERE program = $1",
        &[&id],
    )?;
    let room: i64 = rows.first().map_or(Ok(0), |row| cell(row, 0))?;
    if parts.iter().all(|part| part.amount > room) {
        return Ok(true);
    }
    let Locked { mut shards, budgeted, careful, .. } = lock(session, id)?;
    budget_keys.learn(id, budgeted, shards.len());
    if careful {
        return Ok(false);
    }
    for part in parts {
        if shards.take(session.slot(), part.amount, what) {
            taken.insert(part.at);
        }
    }
    shards.level();
    write(session, id, &shards)?;
    Ok(true)
}

/// A budget that is locked as a whole.
struct Locked {
    shards: Shards,
    budgeted: bool,
    careful: bool,
    activity: i64,
    bonus_type: i64,
}

/// Locks a budget as a whole and reads it: first the budget key, since a new number of rows is set under that lock;
/// then its rows, by a later statement that sees what the one before had to wait for.
fn lock(session: &Session, id: i64) -> Result<Locked, LedgerError> {
    let rows = session
        .query("SELECT budgeted, activity, asset FROM programs WHERE id = $1 FOR NO KEY UPDATE", &[&id])?;
    let missing = || LedgerError::Damaged(format!("budget key {id} is not there"));
    let row = rows.first().ok_or_else(missing)?;
    let (budgeted, activity, bonus_type) = (cell(row, 0)?, cell(row, 1)?, cell(row, 2)?);
    let shards = session
        .query(
            "SELECT total, used, reserved, guarded FROM budget_shards WHERE program = $1 ORDER BY shard FOR UPDATE",
            &[&id],
        )?
        .iter()
        .map(|row| {
            let shard = Shard { total: cell(row, 0)?, used: cell(row, 1)?, reserved: cell(row, 2)? };
            Ok((shard, cell::<bool>(row, 3)?))
        })
        .collect::<Result<Vec<_>, LedgerError>>()?;
    let careful = shards.iter().any(|(_, careful)| *careful);
    Ok(Locked {
        shards: Shards::new(shards.into_iter().map(|(shard, _)| shard).collect()),
        budgeted,
        careful,
        activity,
        bonus_type,
    })
}

/// Writes what has changed. The rows are locked, or new under the budget key's lock.
fn write(session: &Session, id: i64, shards: &Shards) -> Result<(), LedgerError> {
    let changed: Vec<(i64, Shard)> =
        shards.changed().map(|(at, shard)| (i64::try_from(at).unwrap_or(i64::MAX), shard)).collect();
    if changed.is_empty() {
        return Ok(());
    }
    let column = |of: fn(&(i64, Shard)) -> i64| changed.iter().map(of).collect::<Vec<i64>>();
    session.execute(
        "INSERT INTO budget_shards (program, shard, total, used, reserved, guarded) \
         SELECT $1::bigint, w.*, false FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS w \
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

/// Turns reservations into use, or gives them back: first from this writer's own row, otherwise from all.
pub(crate) fn settle(
    session: &Session,
    budget_keys: &mut BudgetKeys,
    demand: &Demand,
    credited: bool,
) -> Result<(), LedgerError> {
    let sums = demand.sums();
    if demand.budget_keys.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = sums.iter().map(|(budget_key, _)| budget_key.id).collect();
    let rows: Vec<i64> = sums.iter().map(|(budget_key, _)| own_row(session, budget_key.shards)).collect();
    let amounts: Vec<i64> = sums.iter().map(|(_, sum)| *sum).collect();
    let used: Vec<i64> = amounts.iter().map(|sum| if credited { *sum } else { 0 }).collect();
    let done: BTreeSet<i64> = session
        .query(
            "UPDATE budget_shards h SET reserved = h.reserved - w.amount, used = h.used + w.used \
             FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(program, shard, amount, used) \
             WHERE h.program = w.program AND h.shard = w.shard AND NOT h.guarded AND h.reserved >= w.amount \
             RETURNING h.program",
            &[&ids, &rows, &amounts, &used],
        )?
        .iter()
        .map(|row| cell(row, 0))
        .collect::<Result<_, _>>()?;
    let left: Vec<i64> = demand.budget_keys.keys().copied().filter(|id| !done.contains(id)).collect();
    if left.is_empty() {
        return Ok(());
    }
    let mut all = Whole::lock(session, budget_keys, left.clone())?;
    for id in left {
        let parts = demand.budget_keys.get(&id).map(|(_, parts)| parts.as_slice()).unwrap_or_default();
        for part in parts {
            if !all.settle(session, id, part.amount, credited) {
                return Err(LedgerError::Damaged(format!(
                    "budget key {id}: {} is reserved by an order, but its budget holds less",
                    part.amount
                )));
            }
        }
    }
    all.write(session)
}

/// Sets one budget, under the budget key's lock; what was given out before counts. Also returns by how much its total has
/// changed.
pub(crate) fn set(
    session: &Session,
    budget_keys: &mut BudgetKeys,
    budget_key: i64,
    budget: &BudgetSet<'_>,
) -> Result<(Option<BudgetRaised>, Funded), LedgerError> {
    let BudgetSet { total, shards, .. } = *budget;
    // What it covers is locked before it is, as everywhere; nobody else makes or sets a combined one meanwhile.
    let given = if budget.is_combined() { cover(session, budget_key)? } else { None };
    let Locked { shards: mut own, budgeted, activity, bonus_type, .. } = lock(session, budget_key)?;
    let before = if budgeted { own.sum().total } else { 0 };
    if let Some((used, reserved)) = given {
        own.adopt(used, reserved);
    }
    let rows = budget.rows();
    let holds = own.reset(total, usize::try_from(rows).unwrap_or(1));
    session.execute(
        "DELETE FROM budget_shards WHERE program = $1 AND shard >= $2",
        &[&budget_key, &i64::from(rows)],
    )?;
    write(session, budget_key, &own)?;
    session.execute(
        "UPDATE programs SET budgeted = true, strict = $2 WHERE id = $1",
        &[&budget_key, &(shards == 0)],
    )?;
    session.execute(MARK_CAREFUL, &[&[budget_key].as_slice()])?;
    budget_keys.learn(budget_key, true, u64::from(rows));
    let raised = (holds > total).then(|| BudgetRaised {
        activity: budget.activity.into(),
        scene: budget.scene.into(),
        bonus_type: budget.bonus_type.into(),
        asked: total,
        total: holds,
    });
    Ok((raised, Funded { budget_key, activity, bonus_type, change: holds - before }))
}

/// Marks budget keys again as taken from the careful way, or not.
const MARK_CAREFUL: &str = "UPDATE budget_shards h SET guarded = p.strict OR EXISTS ( \
        SELECT 1 FROM programs q, (SELECT id FROM names WHERE name = '') AS star \
        WHERE q.activity IN (p.activity, star.id) AND q.id <> p.id AND q.budgeted \
        AND (q.scene = star.id OR q.asset = star.id) \
        AND (q.scene = star.id OR q.scene = p.scene) AND (q.asset = star.id OR q.asset = p.asset)) \
    FROM programs p WHERE p.id = h.program AND h.program = ANY($1)";

/// Locks the budget keys that a combined budget or a cap covers, in the order of their numbers.
const LOCK_COVERED: &str = "SELECT p.id FROM programs p JOIN programs q ON q.id = $1 \
    CROSS JOIN (SELECT id FROM names WHERE name = '') AS star \
    WHERE (q.activity = star.id OR q.activity = p.activity) AND p.scene <> star.id AND p.asset <> star.id \
    AND (q.scene = star.id OR q.scene = p.scene) AND (q.asset = star.id OR q.asset = p.asset) \
    ORDER BY p.id FOR NO KEY UPDATE OF p";

/// Lifts the caps of all types but these: they count nothing until they are set again, and the keys that they covered
/// are taken from without them. A transaction that waits for one of these keys meanwhile reads what covers it
/// afterwards. Returns by how much their totals have changed.
pub(crate) fn lift_caps(session: &Session, keep: &[&str]) -> Result<Vec<Funded>, LedgerError> {
    let caps = session.query(
        "SELECT p.id FROM programs p JOIN names n ON n.id = p.asset \
         WHERE p.activity = (SELECT id FROM names WHERE name = '') AND p.budgeted AND n.name <> ALL($1) ORDER BY p.id",
        &[&keep],
    )?;
    if caps.is_empty() {
        return Ok(Vec::new());
    }
    hold_alone(session, &[""])?;
    let mut lifted = Vec::with_capacity(caps.len());
    for row in &caps {
        let cap: i64 = cell(row, 0)?;
        let covered: Vec<i64> =
            session.query(LOCK_COVERED, &[&cap])?.iter().map(|row| cell(row, 0)).collect::<Result<_, _>>()?;
        let Locked { shards, budgeted, activity, bonus_type, .. } = lock(session, cap)?;
        // Another transaction may have lifted it while this one waited.
        let change = if budgeted { -shards.sum().total } else { 0 };
        lifted.push(Funded { budget_key: cap, activity, bonus_type, change });
        session.execute("DELETE FROM budget_shards WHERE program = $1 AND shard >= 1", &[&cap])?;
        session.execute(
            "UPDATE budget_shards SET total = $2, used = 0, reserved = 0 WHERE program = $1",
            &[&cap, &BUDGET_MAX],
        )?;
        session.execute("UPDATE programs SET budgeted = false WHERE id = $1", &[&cap])?;
        session.execute(MARK_CAREFUL, &[&covered])?;
    }
    Ok(lifted)
}

/// A combined budget or a cap that is set for the first time: from now on every budget key that it covers is taken from
/// the careful way. Returns what these have given out and hold; `None` where it was set before and has counted itself.
fn cover(session: &Session, combined: i64) -> Result<Option<(i64, i64)>, LedgerError> {
    let row = session.query("SELECT budgeted FROM programs WHERE id = $1", &[&combined])?;
    if row.first().map_or(Ok(false), |row| cell(row, 0))? {
        return Ok(None);
    }
    let covered: Vec<i64> = session
        .query(LOCK_COVERED, &[&combined])?
        .iter()
        .map(|row| cell(row, 0))
        .collect::<Result<_, _>>()?;
    let rows = session.query(
        "SELECT used, reserved FROM budget_shards WHERE program = ANY($1) ORDER BY program, shard FOR UPDATE",
        &[&covered],
    )?;
    let (mut used, mut reserved) = (0_i64, 0_i64);
    for row in &rows {
        used = used.saturating_add(cell(row, 0)?);
        reserved = reserved.saturating_add(cell(row, 1)?);
    }
    if used.checked_add(reserved).is_none() {
        return Err(LedgerError::Invalid("what was given out already is beyond 64 bits".into()));
    }
    session.execute("UPDATE budget_shards SET guarded = true WHERE program = ANY($1)", &[&covered])?;
    Ok(Some((used, reserved)))
}
