//! Reconciliation of a ledger in use: beside its writers, in short steps, without a moment of it being held.
//!
//! [`LedgerReader::reconcile`](crate::LedgerReader::reconcile) reads everything at one moment. On a large ledger that takes long,
//! and meanwhile the database cannot clean old rows away. The auditor reads each transfer once, keeps what it has read as sums, and
//! compares these with what the ledger keeps.
//!
//! ## What is kept
//! - **The position**: all transfers at places below it are in the sums. A place is what the chain of seals counts by
//!   ([`crate::Sealer`]): a transfer's number in a file, its transaction's number in PostgreSQL.
//! - **The sums**, by account: what was moved to it less what was moved from it; by budget key: what it gave (`used`), what is
//!   pending of it, and what funded it; and what is pending by order, for orders of which something is. In PostgreSQL what large
//!   ranges add to users' accounts is kept in rows of many accounts each (`audit_packed`), beside `audit_sums`: the sum of an account is
//!   that of all that both have of it.
//! - **Differences**, as rows that nobody deletes, and how far the sweeps have come.
//!
//! They are tables of the ledger's own database (`audit_…`), made where they are missing: a restored or stale database has the
//! position and the sums that belong to its rows.
//!
//! ## Increments ([`Auditor::increment`])
//! A range begins at the position and ends where nothing can come in front of it any more: in PostgreSQL at the oldest
//! transaction that runs (`pg_snapshot_xmin`). All transactions below it have ended, so a later statement sees their rows, or
//! nobody ever will. One transaction adds the range to the sums, notes what is wrong with its transfers, and moves the position:
//! all of it happens or none, and one auditor at a time does so. So each transfer is in the sums exactly once, and the sums are those of
//! all transfers below the position, however they were cut into ranges, and whoever died meanwhile.
//!
//! A transfer that paid an order is compared with the order when its range is read. A writer commits both in one transaction, so
//! the order is seen whenever the transfer is. A credited order never changes, and it names one transfer; so what was right once
//! stays right, and no two transfers are right for one order.
//!
//! Where the database says where rows lie, the orders of a large range are read together, from the pages around some of them. An
//! order that was read there, and says in each column what the transfer says, is the same row that its key would lead to; each
//! transfer without such a one is compared with the order of its key. So which pages are read decides what it costs, and not what is
//! found.
//!
//! ## Comparisons ([`Auditor::compare`], [`Auditor::sweep`])
//! Balances move while one looks. But whatever moves a balance writes its transfer in the same transaction, and a statement
//! sees one moment. So in each moment, for each account,
//!
//! > balance = sum of all transfers that are seen = sum below the position + sum of those that are seen at or above it
//!
//! One statement reads all three: the balance, the sum that is kept, and the transfers from the position on (the **tail**). The
//! position is read by the same statement, and sums and position change in one transaction; rows below the position were
//! committed before it moved, so all of them are seen. If the two sides differ, then they differ in the ledger: there is no moment
//! at which a sound ledger looks wrong (no false alarm), for whatever a writer has in flight is seen on both sides or on neither.
//! The same holds for budgets, for reserved orders against what is pending, and for withdrawals and orders against their transfers.
//!
//! What is small (the accounts of payers and payouts, budgets, reserved orders) is compared as a whole each time. Users'
//! accounts, orders and withdrawals are swept in pages, by key, again and again; the place of the sweep is stored. A key that is
//! new in front of it is compared by the next sweep. So a difference that stays is found: by the increment that reads its transfer,
//! or by the next sweep over its key (none is missed for good).
//!
//! While the tail is long (the first time over an old ledger, or while a transaction stays open for hours), a comparison would
//! read all of it; nothing is compared then ([`Compared::Behind`]), and the progress says so.
//!
//! ## Payers' statements
//! What payers say that they paid is compared with orders and withdrawals; [`statements`] has the argument.
//!
//! ## What is not found here
//! A row below the position that is changed or taken away later, as long as it is no order's own: the sums have it already.
//! `windfall ledger verify` finds these by the seals. A row that is put below the position by hand, with a place of long ago:
//! `verify` finds it, too.

mod auditor;
mod compare;
pub(crate) mod db;
mod differences;
pub(crate) mod increment;
pub(crate) mod model;
mod progress;
mod sides;
mod statements;
mod sweep;
pub(crate) mod tables;

pub use auditor::Auditor;
pub use differences::{Difference, DifferenceKind, DifferenceState};
pub use model::{AuditError, AuditLimits, Compared, Increment};
pub use progress::AuditProgress;
pub use statements::{
    BadPayerStatement, NewPayerStatement, PayerLine, PayerStatement, PayerStatementError,
    PayerStatementState, PayerSum, PayerTotals,
};
