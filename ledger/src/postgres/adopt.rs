//! How a connection learns the shape of the tables, and what it refuses for it.

use super::session::Session;
use super::shape::{FIVE, KNOWN, Shape, THREE};
use crate::error::LedgerError;

impl Session {
    /// Takes note of the tables' version, as just read.
    pub fn adopt(&self, version: i64) -> Result<(), LedgerError> {
        match version {
            THREE => self.set_shape(Shape::Three),
            FIVE => self.set_shape(Shape::Journal),
            KNOWN => self.set_shape(Shape::Keyed),
            // Read again, and refused, when it connects anew.
            other => {
                self.give_up();
                return Err(LedgerError::Unavailable(format!("its schema has version {other} by now")));
            }
        }
        Ok(())
    }

    /// Refuses what only a journal can answer.
    pub fn need_journal(&self) -> Result<(), LedgerError> {
        match self.shape() {
            Shape::Journal | Shape::Keyed => Ok(()),
            Shape::Three => Err(LedgerError::NotMigrated(
                "the ledger has no journal yet: its schema has version 3; run windfall ledger migrate when no process of \
                 an older version is left"
                    .into(),
            )),
        }
    }
}
