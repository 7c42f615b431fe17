//! Payers' statements against what the ledger says that these payers paid.
//!
//! A payer hands out which payments it made in a period, each with the key that Windfall gave it, its bonus type and its
//! amount. The lines are uploaded in batches ([`upload`]), and compared in steps ([`compare`], [`walk`]), each of which reads
//! a bounded number of rows in one transaction and notes its place in it. So whoever died meanwhile, each line and each
//! payment was compared once.
//!
//! ## What is claimed of a line
//! The key of a line leads to one order or one withdrawal ([`of_payer_key`](crate::key::of_payer_key)), whenever that was paid: no time of the payer is
//! compared with a time of the ledger here. The ledger fixes the key, and reserves the order or holds the withdrawal, in a
//! transaction that is committed before the payer is asked. So a sound ledger knows every key that a payer can have.
//! What it says of the key is read at one moment, by one statement:
//! - credited (or paid) by this payer, with this type and amount: both agree;
//! - not credited, for good: the payer has paid what the ledger gave back ([`PayerPaidReturned`](super::DifferenceKind::PayerPaidReturned));
//! - still reserved or held: the payer has paid, and the ledger does not know ([`PayerInFlight`](super::DifferenceKind::PayerInFlight)).
//!
//! A payment is in flight for the moment that an answer takes, and that is no difference. So nothing is compared before the
//! end of the period and the margin behind it have passed: whatever stands in the statement was paid a margin ago.
//!
//! ## What is claimed of a payment that the statement lacks
//! The ledger first saw the order (or held the withdrawal) at a time `made`, and wrote the transfer that says it was paid
//! at a time `paid`. The payer was asked after the one, and had paid before the other. So by its own clock it paid between
//! `made` less the margin and `paid` plus the margin, where the margin is more than the clocks differ, and more than a payer
//! takes to list a payment. The statement speaks of the period from `from` up to `to`. It must list the payment if
//!
//! > `from` + margin ≤ `made`, and `paid` < `to` - margin
//!
//! and nothing may be claimed otherwise: an order that was made before may have been paid in the period before, with its
//! answer lost; one that was paid in the last hour may stand in the next statement.
//!
//! But then no statement would ever be asked for these payments. So statements of one payer whose periods meet or overlap speak
//! together: `from` above is the beginning of the first of those that were compared before and reach up to this one without a
//! gap, and a payment is lacking where none of them lists it. A payment within the margin in front of this statement's own
//! beginning, which the statement before could not claim, is claimed by this one. What cannot be claimed for lack of the
//! statement before is counted ([`PayerStatement::unclear`]).
//!
//! **A line that says returned** says how things stand at the end of its period. An order that a payer refused may be replayed, and be paid
//! under the same key in a later period. So what was paid at `to` or later is no difference of this statement, and no line of an
//! earlier statement that says returned stands for a payment: the statement of the period in which it was paid has to list it.
//!
//! **Nothing that differs is missed.** Each payment is a transfer, and all transfers are looked at whose time is in the window:
//! `audit_times` has the earliest and the latest time of each closed range of places, which can never change, and what is not
//! closed is read as a whole, up to where the ledger ended at that moment. A transfer that is not seen was not committed by `to` and a
//! margin, though its time is before `to` less the margin: no transaction of Windfall stays open for so long, for its server ends it.
//!
//! **Orders that two operators took back** are lacking nowhere: the payer may list what it paid or not, and what it gets back is
//! between it and the fleet's operator.
//!
//! ## What is not found here
//! A payment that stands in the statements of two periods, once in each. What two operators have taken back, and the payer lists as
//! paid. A payment whose order was migrated from version 3 or older with a part of it left on the user's balance, where the statement
//! lacks it: its transfer went to the user.

mod auditor;
mod compare;
mod conditions;
mod model;
mod stored;
mod upload;
mod walk;

pub use model::{
    BadPayerStatement, NewPayerStatement, PayerLine, PayerStatement, PayerStatementError,
    PayerStatementState, PayerSum, PayerTotals,
};
