//! Names and budget keys as numbers: an order row holds one small integer in place of three strings.
//! A budget key is what a budget is set for: an activity, a scene and a bonus type.

use crate::error::LedgerError;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;

/// The number of budget keys in the cache at most; when there are more, the cache starts anew.
const CACHE_MAX: usize = 16_384;

/// A budget key's parts, by name id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BudgetKey {
    pub id: i64,
    pub activity: i64,
    pub bonus_type: i64,
    /// Whether a budget was set for it.
    pub budgeted: bool,
    /// The budget keys of the combined budgets that cover it; 0 for none.
    pub covered_by: [i64; 3],
    /// The budget key of its type's cap; 0 for none.
    pub cap: i64,
}

impl BudgetKey {
    /// Every budget key that an order with this key takes from.
    pub fn all(&self) -> impl Iterator<Item = i64> + use<> {
        self.above().chain([self.id])
    }

    /// The budget keys that such an order takes from besides its own.
    pub fn above(&self) -> impl Iterator<Item = i64> + use<> {
        self.covered_by.into_iter().chain([self.cap]).filter(|id| *id != 0)
    }
}

/// Finds budget keys by name and by number.
#[derive(Debug, Default)]
pub(crate) struct BudgetKeys {
    by_name: HashMap<String, i64>,
    by_id: HashMap<i64, BudgetKey>,
    key: String,
}

impl BudgetKeys {
    /// Forgets everything: a rolled back transaction may have made some of it.
    pub fn clear(&mut self) {
        self.by_name.clear();
        self.by_id.clear();
    }

    /// Finds a budget key, or makes it with one shard that has room for anything.
    pub fn intern(
        &mut self,
        db: &Connection,
        activity: &str,
        scene: &str,
        bonus_type: &str,
    ) -> Result<BudgetKey, LedgerError> {
        self.key.clear();
        // Lengths in front, so that no two triples share a key.
        for part in [activity, scene, bonus_type] {
            self.key.push_str(&part.len().to_string());
            self.key.push(':');
            self.key.push_str(part);
        }
        if let Some(budget_key) = self.by_name.get(&self.key).and_then(|id| self.by_id.get(id)) {
            return Ok(*budget_key);
        }
        let (activity, scene, bonus_type) =
            (name_id(db, activity)?, name_id(db, scene)?, name_id(db, bonus_type)?);
        let found = db
            .prepare_cached("SELECT id FROM programs WHERE activity = ?1 AND scene = ?2 AND asset = ?3")?
            .query_row(params![activity, scene, bonus_type], |row| row.get::<_, i64>(0))
            .optional()?;
        let id = match found {
            Some(id) => id,
            None => create(db, activity, scene, bonus_type)?,
        };
        let budget_key = self.of_id(db, id)?;
        self.by_name.insert(self.key.clone(), id);
        Ok(budget_key)
    }

    /// The budget key of this number.
    pub fn of_id(&mut self, db: &Connection, id: i64) -> Result<BudgetKey, LedgerError> {
        if let Some(budget_key) = self.by_id.get(&id) {
            return Ok(*budget_key);
        }
        let budget_key = db
            .prepare_cached(
                "WITH star (id) AS (SELECT id FROM names WHERE name = ''), covers AS ( \
                     SELECT q.id, q.scene, q.asset FROM programs q JOIN programs p ON p.id = ?1 \
                     WHERE q.activity = p.activity AND q.budgeted AND q.id <> p.id) \
                 SELECT p.activity, p.asset, p.budgeted, \
                     (SELECT id FROM covers c WHERE c.scene = (SELECT id FROM star) AND c.asset = p.asset), \
                     (SELECT id FROM covers c WHERE c.scene = p.scene AND c.asset = (SELECT id FROM star)), \
                     (SELECT id FROM covers c WHERE c.scene = (SELECT id FROM star) \
                         AND c.asset = (SELECT id FROM star)), \
                     (SELECT q.id FROM programs q WHERE q.activity = (SELECT id FROM star) AND q.asset = p.asset \
                         AND q.budgeted AND p.scene <> (SELECT id FROM star)) \
                 FROM programs p WHERE p.id = ?1",
            )?
            .query_row([id], |row| {
                let cover = |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.unwrap_or(0));
                let covered_by = [cover(3)?, cover(4)?, cover(5)?];
                Ok(BudgetKey {
                    id,
                    activity: row.get(0)?,
                    bonus_type: row.get(1)?,
                    budgeted: row.get(2)?,
                    covered_by,
                    cap: cover(6)?,
                })
            })
            .optional()?
            .ok_or_else(|| {
                LedgerError::Damaged(format!("an order names budget key {id}, which is not there"))
            })?;
        if self.by_id.len() >= CACHE_MAX {
            self.clear();
        }
        self.by_id.insert(id, budget_key);
        Ok(budget_key)
    }
}

fn create(db: &Connection, activity: i64, scene: i64, bonus_type: i64) -> Result<i64, LedgerError> {
    let id = db
        .prepare_cached(
            "INSERT INTO programs (activity, scene, asset, budgeted) VALUES (?1, ?2, ?3, 0) RETURNING id",
        )?
        .query_row(params![activity, scene, bonus_type], |row| row.get(0))?;
    db.prepare_cached(
        "INSERT INTO budget_shards (program, shard, total, used, reserved) VALUES (?1, 0, ?2, 0, 0)",
    )?
    .execute(params![id, crate::model::BUDGET_MAX])?;
    Ok(id)
}

/// The number of a name, which is made where it is missing.
pub(crate) fn name_id(db: &Connection, name: &str) -> Result<i64, LedgerError> {
    db.prepare_cached("INSERT INTO names (name) VALUES (?1) ON CONFLICT (name) DO NOTHING")?
        .execute([name])?;
    Ok(db.prepare_cached("SELECT id FROM names WHERE name = ?1")?.query_row([name], |row| row.get(0))?)
}
