//! What a transaction offers of acts.

use super::correction::{self, CarryOut};
use super::model::{Ended, Operator, Proposal, Proposed, Subject};
use super::perform;
use crate::error::LedgerError;
use crate::key::WithdrawalId;
use crate::tx::Tx;
use crate::withdrawal::StoredWithdrawal;

impl Tx<'_> {
    /// Proposes an act. An empty activity becomes that of the one order with this number, and user 0 that of the one withdrawal
    /// with this id; where there are several, the act names one. The same deed with the same reason and evidence is one act while
    /// it is open, and for ever once it was done. One that was refused, not done, or has expired is proposed anew.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`], also where the tables of acts are missing and may not be made; the transaction is lost.
    pub fn propose_act(&mut self, proposal: &Proposal) -> Result<Proposed, LedgerError> {
        self.run(|tx| perform::propose(tx, proposal))
    }

    /// Approves an act and performs it, once: whoever comes second is told how it ended.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn approve_act(&mut self, id: i64, by: &Operator, now_ms: i64) -> Result<Ended, LedgerError> {
        self.run(|tx| perform::approve(tx, id, by, now_ms))
    }

    /// Refuses an act; who proposed it may do so, too.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn refuse_act(
        &mut self,
        id: i64,
        by: &Operator,
        why: &str,
        now_ms: i64,
    ) -> Result<Ended, LedgerError> {
        self.run(|tx| perform::refuse(tx, id, by, why, now_ms))
    }

    /// Carries a page of an approved correction out: takes back the orders that lie behind `after`, empty at first, then what the
    /// page before says comes next. Safe to repeat: what was decided is not decided again.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn carry_out(
        &mut self,
        id: i64,
        after: &str,
        by: &Operator,
        now_ms: i64,
    ) -> Result<CarryOut, LedgerError> {
        self.run(|tx| correction::carry_out(tx, id, after, by, now_ms))
    }

    /// A withdrawal as this transaction sees it.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn withdrawal(&mut self, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError> {
        self.run(|tx| tx.withdrawal(id))
    }

    /// The act by which two operators have settled this order or withdrawal, as long as that is how it stands: whether it was
    /// paid, and the act's number. `None` also where it was decided again since, or released.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn settled_by(&mut self, subject: Subject<'_>) -> Result<Option<(bool, i64)>, LedgerError> {
        self.run(|tx| perform::settled_by(tx, subject))
    }
}
