//! Budget rows: loaded once per transaction and budget key, and written once per shard.

use super::state::SqliteTx;
use super::transfers;
use crate::budget::{Shard, Shards};
use crate::error::LedgerError;
use crate::journal::Funded;
use crate::model::{BUDGET_MAX, BudgetRaised, BudgetSet};
use rusqlite::params;

impl SqliteTx<'_> {
    pub(crate) fn set_budget(&mut self, budget: &BudgetSet<'_>) -> Result<Option<BudgetRaised>, LedgerError> {
        let BudgetSet { activity, scene, bonus_type, total, shards } = *budget;
        budget.check()?;
        let [own_activity, own_scene, own_type] = budget.stored();
        let own = self.ledger.budget_keys.intern(&self.ledger.db, own_activity, own_scene, own_type)?;
        let budget_key = own.id;
        if budget.is_combined() && !own.budgeted {
            let (used, reserved) = self.given_by(budget_key)?;
            self.shards_of(budget_key)?.adopt(used, reserved);
        }
        let own_shards = self.shards_of(budget_key)?;
        let before = if own.budgeted { own_shards.sum().total } else { 0 };
        let holds = own_shards.reset(total, usize::try_from(budget.rows()).unwrap_or(1));
        let db = &self.ledger.db;
        db.prepare_cached("DELETE FROM budget_shards WHERE program = ?1 AND shard >= ?2")?
            .execute(params![budget_key, budget.rows()])?;
        db.prepare_cached("UPDATE programs SET budgeted = 1, strict = ?2 WHERE id = ?1")?
            .execute(params![budget_key, shards == 0])?;
        let change = holds - before;
        self.fund(Funded { budget_key, activity: own.activity, bonus_type: own.bonus_type, change })?;
        self.ledger.budget_keys.clear();
        Ok((holds > total).then(|| BudgetRaised {
            activity: activity.into(),
            scene: scene.into(),
            bonus_type: bonus_type.into(),
            asked: total,
            total: holds,
        }))
    }

    /// Lifts the caps of all types but these: their rows count nothing until they are set again.
    pub(crate) fn lift_caps(&mut self, keep: &[&str]) -> Result<(), LedgerError> {
        let set = self
            .ledger
            .db
            .prepare_cached(
                "SELECT p.id, n.name, p.activity, p.asset FROM programs p JOIN names n ON n.id = p.asset \
                 WHERE p.activity = (SELECT id FROM names WHERE name = '') AND p.budgeted",
            )?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
            .collect::<Result<Vec<(i64, String, i64, i64)>, _>>()?;
        for (cap, _, activity, bonus_type) in set.iter().filter(|one| !keep.contains(&one.1.as_str())) {
            let shards = self.shards_of(*cap)?;
            let before = shards.sum().total;
            shards.adopt(0, 0);
            shards.reset(BUDGET_MAX, 1);
            let db = &self.ledger.db;
            db.prepare_cached("DELETE FROM budget_shards WHERE program = ?1 AND shard >= 1")?
                .execute([cap])?;
            db.prepare_cached("UPDATE programs SET budgeted = 0 WHERE id = ?1")?.execute([cap])?;
            self.fund(Funded {
                budget_key: *cap,
                activity: *activity,
                bonus_type: *bonus_type,
                change: -before,
            })?;
            self.ledger.budget_keys.clear();
        }
        Ok(())
    }

    /// Notes in the journal that a budget's total has changed.
    fn fund(&mut self, funded: Funded) -> Result<(), LedgerError> {
        let now = "SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000";
        let time_ms = self.ledger.db.prepare_cached(now)?.query_row([], |row| row.get(0))?;
        match funded.entry(self.next_transfer, time_ms) {
            Some(entry) => {
                self.next_transfer += 1;
                transfers::insert(&self.ledger.db, &[entry])
            }
            None => Ok(()),
        }
    }

    /// The amounts that the budget keys under a combined budget have given out and hold.
    fn given_by(&mut self, combined: i64) -> Result<(i64, i64), LedgerError> {
        let covered = self
            .ledger
            .db
            .prepare_cached(
                "SELECT p.id FROM programs p JOIN programs q ON q.id = ?1 \
                 CROSS JOIN (SELECT id FROM names WHERE name = '') star \
                 WHERE (q.activity = star.id OR q.activity = p.activity) AND p.scene <> star.id AND p.asset <> star.id \
                 AND (q.scene = star.id OR q.scene = p.scene) AND (q.asset = star.id OR q.asset = p.asset)",
            )?
            .query_map([combined], |row| row.get(0))?
            .collect::<Result<Vec<i64>, _>>()?;
        let (mut used, mut reserved) = (0_i64, 0_i64);
        for budget_key in covered {
            let sum = self.shards_of(budget_key)?.sum();
            used = used.saturating_add(sum.used);
            reserved = reserved.saturating_add(sum.reserved);
        }
        match used.checked_add(reserved) {
            Some(_) => Ok((used, reserved)),
            None => Err(LedgerError::Invalid("what was given out already is beyond 64 bits".into())),
        }
    }

    /// The shards of a budget key, as this transaction has left them so far.
    pub(crate) fn shards_of(&mut self, budget_key: i64) -> Result<&mut Shards, LedgerError> {
        if !self.shards.contains_key(&budget_key) {
            let shards = self
                .ledger
                .db
                .prepare_cached(
                    "SELECT total, used, reserved FROM budget_shards WHERE program = ?1 ORDER BY shard",
                )?
                .query_map([budget_key], |row| {
                    Ok(Shard { total: row.get(0)?, used: row.get(1)?, reserved: row.get(2)? })
                })?
                .collect::<Result<Vec<_>, _>>()?;
            self.shards.insert(budget_key, Shards::new(shards));
        }
        self.shards
            .get_mut(&budget_key)
            .ok_or_else(|| LedgerError::Damaged(format!("budget key {budget_key} has no shards")))
    }

    /// Writes every shard that changed: one statement per shard. The table's CHECK guards each row (I4).
    pub(crate) fn write_shards(&mut self) -> Result<(), LedgerError> {
        let mut statement = self.ledger.db.prepare_cached(
            "INSERT INTO budget_shards (program, shard, total, used, reserved) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (program, shard) DO UPDATE SET total = excluded.total, used = excluded.used, \
             reserved = excluded.reserved",
        )?;
        for (budget_key, shards) in &self.shards {
            for (number, shard) in shards.changed() {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                statement.execute(params![budget_key, number, shard.total, shard.used, shard.reserved])?;
            }
        }
        Ok(())
    }
}
