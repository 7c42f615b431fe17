//! Budget rows: loaded once a transaction and program, written once a shard.

use super::tx::SqliteTx;
use crate::budget::{Shard, Shards};
use crate::error::LedgerError;
use crate::model::{BudgetRaised, BudgetSet};
use rusqlite::params;

impl SqliteTx<'_> {
    pub(crate) fn set_budget(&mut self, budget: &BudgetSet<'_>) -> Result<Option<BudgetRaised>, LedgerError> {
        let BudgetSet { activity, scene, bonus_type, total, shards } = *budget;
        budget.check()?;
        let program = self.ledger.programs.intern(&self.ledger.db, activity, scene, bonus_type)?.id;
        let own = self.shards_of(program)?;
        let holds = own.reset(total, usize::try_from(shards).unwrap_or(1));
        let db = &self.ledger.db;
        db.prepare_cached("DELETE FROM budget_shards WHERE program = ?1 AND shard >= ?2")?
            .execute(params![program, shards])?;
        db.prepare_cached("UPDATE programs SET budgeted = 1 WHERE id = ?1")?.execute([program])?;
        self.ledger.programs.clear();
        Ok((holds > total).then(|| BudgetRaised {
            activity: activity.into(),
            scene: scene.into(),
            bonus_type: bonus_type.into(),
            asked: total,
            total: holds,
        }))
    }

    /// The shards of a program, as this transaction has left them so far.
    pub(crate) fn shards_of(&mut self, program: i64) -> Result<&mut Shards, LedgerError> {
        if !self.shards.contains_key(&program) {
            let shards = self
                .ledger
                .db
                .prepare_cached(
                    "SELECT total, used, reserved FROM budget_shards WHERE program = ?1 ORDER BY shard",
                )?
                .query_map([program], |row| {
                    Ok(Shard { total: row.get(0)?, used: row.get(1)?, reserved: row.get(2)? })
                })?
                .collect::<Result<Vec<_>, _>>()?;
            self.shards.insert(program, Shards::new(shards));
        }
        self.shards
            .get_mut(&program)
            .ok_or_else(|| LedgerError::Damaged(format!("program {program} has no shards")))
    }

    /// Writes every shard that changed: one statement a shard. The table's CHECK sees each row (I4).
    pub(crate) fn write_shards(&mut self) -> Result<(), LedgerError> {
        let mut statement = self.ledger.db.prepare_cached(
            "INSERT INTO budget_shards (program, shard, total, used, reserved) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (program, shard) DO UPDATE SET total = excluded.total, used = excluded.used, \
             reserved = excluded.reserved",
        )?;
        for (program, shards) in &self.shards {
            for (number, shard) in shards.changed() {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                statement.execute(params![program, number, shard.total, shard.used, shard.reserved])?;
            }
        }
        Ok(())
    }
}
