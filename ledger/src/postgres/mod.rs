//! The ledger in a PostgreSQL database: any number of writers, over any number of processes.
//!
//! A transaction is a handful of statements whatever its batch: insert the orders that are new, read back those
//! that were there, take the budgets, move the accounts, write the transfers, commit. Each takes arrays
//! (`unnest`).
//!
//! ## Why READ COMMITTED suffices
//! A statement sees what was committed when it began, and one that changes a row first locks its newest version.
//! So every decision here rests on a unique index, on a condition in the very statement that changes the row, or
//! on a row that an earlier statement of the transaction has locked; the statement that does so says which. What
//! was waited for is read by a later statement, never by the one that waited.
//!
//! ## Locks
//! Order numbers (or withdrawals), budget rows, then accounts, each in the order of their keys. Where two writers still
//! deadlock, the server ends one of them, which gets [`LedgerError::Contended`](crate::LedgerError::Contended) and
//! repeats its transaction.
//!
//! ## What may be lost
//! A connection that is lost before `COMMIT` was sent has stored nothing; after it, nobody knows
//! ([`LedgerError::Unknown`](crate::LedgerError::Unknown)): the callers ask again, and an order that was credited
//! answers so (I1).

mod act_tables;
mod acts;
mod address;
mod adopt;
mod archive;
mod audit;
mod audit_near;
mod audit_packed;
mod budget_keys;
mod budgets;
mod chain;
mod closed;
mod closing;
mod copies;
mod corrections;
mod decide;
mod failover;
mod indexes;
mod link;
mod migrate;
mod options;
mod orders;
mod places;
mod position;
mod position_sql;
mod prepare;
mod read;
mod respelled;
mod rows_of;
mod schema;
mod session;
mod shape;
mod state;
mod statement;
mod store;
mod stored_orders;
mod tls;
mod transfers;
mod tx;
mod wait;
mod withdrawals;

pub(crate) use audit::open as open_audit;
pub(crate) use chain::open as open_sealer;
pub use indexes::IndexProgress;
pub(crate) use migrate::migrate;
pub use migrate::{MigrateOptions, Migrated};
pub use options::PostgresOptions;
pub(crate) use prepare::prepare;
pub(crate) use store::{PgLedger, open_reader};
