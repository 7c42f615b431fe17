//! The ledger in one SQLite file: one writer at a time, over all processes.

mod act_tables;
mod acts;
mod archive;
mod audit;
mod budget_keys;
mod budgets;
mod chain;
mod closed;
mod closing;
mod copies;
mod corrections;
mod credit;
mod orders;
mod position;
mod query;
mod reader;
mod rows;
mod schema;
mod state;
mod statement;
mod store;
mod tables;
mod transfers;
mod tx;
mod withdrawals;

pub(crate) use audit::open as open_audit;
pub(crate) use chain::open as open_sealer;
pub(crate) use reader::open as open_reader;
pub use schema::LedgerOptions;
pub(crate) use store::SqliteLedger;
