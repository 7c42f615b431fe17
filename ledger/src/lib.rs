//! A journal of transfers in SQL, with the orders, accounts and budgets that rest on it, the failure archive, and
//! reconciliation.
//!
//! An order, which is a number within its activity, credits at most once, ever (I1): its row, the transfer, the balance and the budget's shard
//! change in one transaction, and [`Ledger::apply`] returns when that is durable. Amounts are integers in the
//! bonus type's smallest unit. Transfers are a journal, which is only ever appended to: each names the account that gives and
//! the one that gets, so all accounts of a bonus type sum to 0; balances and budgets are sums of it (`docs/ledger.md`).
//! Budgets are sharded rows that never go over (I4).
//! Money leaves an account by a [`Withdrawal`](windfall_contract::accounts::Withdrawal): [`Tx::hold`] moves it from the
//! user's account to the bonus type's clearing account, once for each id and never below 0; [`Tx::pay_out`] moves it on
//! to the payout account, [`Tx::give_back`] moves it back.
//!
//! - [`Ledger`] writes; [`Tx`] groups steps into one transaction. The ledger is kept in a file of its own (SQLite,
//!   [`Ledger::open`]), which has one writer, or in a PostgreSQL database (`Ledger::connect`, feature
//!   `postgres`), which has any number, over any number of processes.
//! - [`LedgerReader`] reads with a connection of its own, for checks that must not trust the writer.
//! - [`Reconciliation`] counts the contradictions in a ledger.
//! - [`Sealer`] chains closed ranges of the journal by their hashes, and [`LedgerReader::verify`] finds what was changed since.
//! - [`Auditor`] reconciles a ledger in use, in short steps, and keeps what it finds as rows.
//! - [`Tx::propose_act`] and [`Tx::approve_act`] are what two operators do beside the ordinary course: settle what a payer
//!   never answers, reverse, adjust, freeze.
//! - [`Ledger::close_activity`] ends an activity for good: nothing more is given for it, and its orders can be exported and
//!   detached.
//! - [`Guard`] notices a ledger that went back in time (a stale standby, a restored backup) by a [`Mark`] that is kept
//!   outside of the database.
//!
//! Every database passes the suite of `windfall-conformance`.
//!
//! Not here: decoding events, downstream systems, retries after an outage; the reward service has those.
//!
//! ```
//! use windfall_ledger::{BudgetSet, Ledger, LedgerOptions, Order, OrderOutcome};
//!
//! # let folder = tempfile::tempdir()?;
//! let mut ledger = Ledger::open(folder.path().join("ledger.db"), &LedgerOptions::default())?;
//! // What no budget covers is refused, unless the options allow it.
//! let (activity, scene, bonus_type) = ("spring-2027", "red-packet-rain", "cash");
//! ledger.set_budgets(&[BudgetSet { activity, scene, bonus_type, total: 100_000, shards: 8 }])?;
//! let order = Order {
//!     trade_no: "spring-2027/rain/000001/42",
//!     user_id: 42,
//!     activity,
//!     scene,
//!     bonus_type,
//!     amount: 888,
//!     time_ms: 1_800_000_000_000,
//! };
//! assert_eq!(ledger.apply(&[order])?, [OrderOutcome::Credited]);
//! assert_eq!(ledger.apply(&[order])?, [OrderOutcome::AlreadyCredited]);
//! assert_eq!(ledger.apply(&[Order { amount: 889, ..order }])?, [OrderOutcome::Conflict]);
//! assert_eq!(ledger.balance(42, "cash")?, 888);
//! // The same number in another activity is another order; no budget covers this one.
//! let other = Order { activity: "autumn-2027", ..order };
//! assert!(matches!(ledger.apply(&[other])?[..], [OrderOutcome::Rejected(_)]));
//! assert!(ledger.reconcile()?.is_clean());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod acts;
mod anchor;
mod archive;
mod audit;
mod budget;
mod chain;
mod closed_orders;
mod closing;
mod contract;
mod copies;
mod decision;
mod error;
mod guard;
mod guarded;
mod held;
mod journal;
mod key;
mod ledger;
mod mark;
mod mark_file;
mod model;
#[cfg(feature = "postgres")]
mod postgres;
mod reader;
mod reconcile;
mod rows_of;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod seal_error;
mod sealer;
mod sqlite;
mod statement;
mod statement_reads;
mod tx;
mod verify;
mod withdrawal;

pub use acts::{
    ActEnd, ActFilter, ActOutcome, CarriedOut, CarryOut, Correction, Deed, Ended, Operator, Proposal,
    Proposed, Selection, StoredAct, Subject, Survey, Totals,
};
pub use anchor::{Anchor, AnchorError, FileAnchor};
pub use archive::{ArchiveEntry, ArchiveFilter, Archived, Replay};
pub use audit::{
    AuditError, AuditLimits, AuditProgress, Auditor, BadPayerStatement, Compared, Difference, DifferenceKind,
    DifferenceState, Increment, NewPayerStatement, PayerLine, PayerStatement, PayerStatementError,
    PayerStatementState, PayerSum, PayerTotals,
};
pub use chain::{Head, Seal};
pub use closing::{
    Close, Closed, ClosedActivity, Detach, DetachBegun, DetachStep, Detached, DetachedBudget, Reopened,
    Unproven,
};
pub use copies::{CopyKey, ListCopies, Listing, LostOrder, TakeCopies, TakenCopies, WrittenCopy};
pub use error::{LedgerError, OpenError};
pub use guard::{Guard, GuardState};
pub use guarded::{Acceptance, Accepted, Beat};
pub use held::{HeldByTime, HeldCursor, HeldPage};
pub use key::{OrderId, WithdrawalId, payer_key};
pub use ledger::Ledger;
pub use mark::{Behind, Mark, Missing, ServerPosition};
pub use mark_file::{MarkFile, MarkStore, MarkStoreError};
pub use model::{
    Attempt, Awaits, BUDGET_MAX, BudgetRaised, BudgetSet, BudgetState, BudgetsApplied, Finish, Order,
    OrderLine, OrderOutcome, ReservedOrder, SHARDS_MAX, Settlement, Unbudgeted, Writers,
};
#[cfg(feature = "postgres")]
pub use postgres::{IndexProgress, MigrateOptions, Migrated, PostgresOptions};
pub use reader::{LedgerReader, OrderLines};
pub use reconcile::Reconciliation;
pub use rows_of::{OrderRow, RowsPage, TransferRow};
pub use seal_error::SealError;
pub use sealer::{SEAL_ROWS_MAX, Sealer};
pub use sqlite::LedgerOptions;
pub use statement::{
    STATEMENT_SKIP_MAX, Statement, StatementCursor, StatementFrom, StatementLine, WithdrawalsPage,
};
pub use tx::Tx;
pub use verify::{FINDINGS_MAX, Finding, Tampering, Verified, VerifyError};
#[cfg(feature = "postgres")]
pub use windfall_tls::TlsOptions;
pub use withdrawal::{FRONT_END, HeldFor, HoldOutcome, StoredWithdrawal, WithdrawalStatus};
