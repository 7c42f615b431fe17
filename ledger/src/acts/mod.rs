//! Acts: what people do to the ledger beside its ordinary course. One operator proposes an act with its reason and its
//! evidence, another one approves it, and the transaction that approves it performs it once. What was proposed and how it
//! ended are rows that are only ever appended.
//!
//! An act says what it is about by all of its key: an order by activity and number, a withdrawal by user and id. What is true
//! in the transaction that approves it decides: an order that was credited meanwhile, or a balance that was spent, ends the
//! act as not done, and its end says why.

mod correction;
pub(crate) mod decision;
pub(crate) mod model;
pub(crate) mod perform;
pub(crate) mod selection;
pub(crate) mod steps;
mod tx;

pub use correction::{CarriedOut, CarryOut};
pub use model::{
    ActEnd, ActFilter, ActOutcome, Deed, Ended, Operator, Proposal, Proposed, StoredAct, Subject,
};
pub use selection::{Correction, Selection, Survey, Totals};
