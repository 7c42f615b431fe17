//! Differences: rows that are found, acknowledged and resolved, and never deleted.

use super::db::{AuditDb, Cell, Value, one as one_row};
use super::model::AuditError;
use crate::error::LedgerError;
use std::fmt;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DifferenceKind {
    /// A transfer paid an order that is not there, or is not credited.
    TransferWithoutOrder,
    /// A transfer of an order that names another one.
    DoubleCredit,
    /// A transfer whose order has another user, amount or payer.
    TransferMismatch,
    /// A credited order without its transfer.
    OrderWithoutTransfer,
    /// What is pending of an order is not its amount while it is reserved, and nothing afterwards.
    WrongPending,
    /// A balance is not the sum of its transfers.
    WrongBalance,
    /// A user's account is below 0.
    Overdrawn,
    /// A budget gave more than its total.
    BudgetOver,
    /// A budget's total is not what funded it.
    WrongTotal,
    /// A budget's `used` is not what it gave.
    WrongUsed,
    /// A budget's `reserved` is not what is pending of it.
    WrongReserved,
    /// A movement of a withdrawal that is not there.
    MovementWithoutWithdrawal,
    /// A transfer that only an act of two operators makes, and no done act stands for it, or another one does already.
    TransferWithoutAct,
    /// A withdrawal whose movements are not those that its status says.
    WrongWithdrawal,
    /// A payer's statement has a key that the ledger does not know.
    PayerKeyUnknown,
    /// A payer's statement has the key of an order or a withdrawal that the ledger has for another payer, or for none.
    PayerIsAnother,
    /// A payer says that it has paid what the ledger holds as not paid: the money may be given twice.
    PayerPaidReturned,
    /// A payer says that it has not paid, or has the money back, and the ledger says that it has paid.
    PayerReturnedPaid,
    /// A payer's statement has a payment of which the ledger does not know yet how it ended.
    PayerInFlight,
    /// A payment has another amount or bonus type in the payer's statement than in the ledger.
    PayerMismatch,
    /// A payer's statement has a key more than once.
    PayerRepeated,
    /// The ledger says that a payer has paid, and its statement lacks it.
    PayerLacks,
    /// More of something is wrong than is listed.
    MoreThanListed,
}

impl DifferenceKind {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::TransferWithoutOrder,
        Self::DoubleCredit,
        Self::TransferMismatch,
        Self::OrderWithoutTransfer,
        Self::WrongPending,
        Self::WrongBalance,
        Self::Overdrawn,
        Self::BudgetOver,
        Self::WrongTotal,
        Self::WrongUsed,
        Self::WrongReserved,
        Self::MovementWithoutWithdrawal,
        Self::TransferWithoutAct,
        Self::WrongWithdrawal,
        Self::PayerKeyUnknown,
        Self::PayerIsAnother,
        Self::PayerPaidReturned,
        Self::PayerReturnedPaid,
        Self::PayerInFlight,
        Self::PayerMismatch,
        Self::PayerRepeated,
        Self::PayerLacks,
        Self::MoreThanListed,
    ];

    /// Its name in tables, metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TransferWithoutOrder => "transfer_without_order",
            Self::DoubleCredit => "double_credit",
            Self::TransferMismatch => "transfer_mismatch",
            Self::OrderWithoutTransfer => "order_without_transfer",
            Self::WrongPending => "wrong_pending",
            Self::WrongBalance => "wrong_balance",
            Self::Overdrawn => "overdrawn",
            Self::BudgetOver => "budget_over",
            Self::WrongTotal => "wrong_total",
            Self::WrongUsed => "wrong_used",
            Self::WrongReserved => "wrong_reserved",
            Self::MovementWithoutWithdrawal => "movement_without_withdrawal",
            Self::TransferWithoutAct => "transfer_without_act",
            Self::WrongWithdrawal => "wrong_withdrawal",
            Self::PayerKeyUnknown => "payer_key_unknown",
            Self::PayerIsAnother => "payer_is_another",
            Self::PayerPaidReturned => "payer_paid_returned",
            Self::PayerReturnedPaid => "payer_returned_paid",
            Self::PayerInFlight => "payer_in_flight",
            Self::PayerMismatch => "payer_mismatch",
            Self::PayerRepeated => "payer_repeated",
            Self::PayerLacks => "payer_lacks",
            Self::MoreThanListed => "more_than_listed",
        }
    }
}

impl fmt::Display for DifferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What people have done about a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceState {
    /// Nothing yet.
    Open,
    /// A person is at it.
    Acknowledged,
    /// It was mended or explained.
    Resolved,
}

impl DifferenceState {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Acknowledged => "acknowledged",
            Self::Resolved => "resolved",
        }
    }
}

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its number.
    pub id: i64,
    /// What is wrong: the name of a [`DifferenceKind`], perhaps one of a newer version.
    pub kind: String,
    /// With what: an account, an order, a transfer.
    pub subject: String,
    /// Both sides, as they were when it was seen last.
    pub detail: String,
    /// When it was seen first, in Unix milliseconds.
    pub first_seen_ms: i64,
    /// When it was seen last.
    pub last_seen_ms: i64,
    /// How often it was seen. What is wrong with a transfer is seen once, for it is read once.
    pub seen: u64,
    /// Whether people have seen to it.
    pub state: DifferenceState,
    /// Who acknowledged it, when, and with which note.
    pub acknowledged: Option<(String, i64, String)>,
    /// Who resolved it, when, and with which note.
    pub resolved: Option<(String, i64, String)>,
}

/// What was found, to be noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    kind: DifferenceKind,
    subject: String,
    detail: String,
}

impl Found {
    pub const fn new(kind: DifferenceKind, subject: String, detail: String) -> Self {
        Self { kind, subject, detail }
    }
}

/// One that is not resolved is seen once more; others are new.
const NOTE: &str = "INSERT INTO audit_differences (kind, subject, detail, first_seen_ms, last_seen_ms, seen)
    VALUES ($1, $2, $3, $4, $5, 1) ON CONFLICT (kind, subject) WHERE resolved_ms IS NULL
    DO UPDATE SET detail = excluded.detail, last_seen_ms = excluded.last_seen_ms, seen = audit_differences.seen + 1
    RETURNING seen, id";

/// Notes what was found, in the caller's transaction. Returns how many these are.
pub(super) fn note(db: &dyn AuditDb, found: &[Found], now_ms: i64) -> Result<u64, LedgerError> {
    Ok(note_each(db, found, now_ms)?.len() as u64)
}

/// The same; returns their numbers, in the order of what was found.
pub(super) fn note_each(db: &dyn AuditDb, found: &[Found], now_ms: i64) -> Result<Vec<i64>, LedgerError> {
    let mut ids = Vec::with_capacity(found.len());
    for one in found {
        let Found { kind, subject, detail } = one;
        let params = [
            Value::Text(kind.name()),
            Value::Text(subject),
            Value::Text(detail),
            Value::Int(now_ms),
            Value::Int(now_ms),
        ];
        // Told once: a sweep sees it again and again.
        let row = one_row(db, NOTE, &params)?;
        if row[0].int()? == 1 {
            tracing::error!(%kind, subject, detail, "the auditor found a difference in the ledger");
        }
        ids.push(row[1].int()?);
    }
    Ok(ids)
}

pub(super) fn list(
    db: &dyn AuditDb,
    state: Option<DifferenceState>,
    statement: Option<i64>,
    after: i64,
    limit: u32,
) -> Result<Vec<Difference>, AuditError> {
    let of_statement = statement.map_or(String::new(), |statement| {
        format!(
            "AND id IN (SELECT difference FROM audit_statement_differences WHERE statement = {statement})"
        )
    });
    let wanted = match state {
        None => "",
        Some(DifferenceState::Open) => "AND resolved_ms IS NULL AND acknowledged_ms IS NULL",
        Some(DifferenceState::Acknowledged) => "AND resolved_ms IS NULL AND acknowledged_ms IS NOT NULL",
        Some(DifferenceState::Resolved) => "AND resolved_ms IS NOT NULL",
    };
    let sql = format!(
        "SELECT id, kind, subject, detail, first_seen_ms, last_seen_ms, seen, acknowledged_by, acknowledged_ms, \
         acknowledged_note, resolved_by, resolved_ms, resolved_note FROM audit_differences WHERE id > $1 {wanted} \
         {of_statement} ORDER BY id LIMIT {}",
        limit.clamp(1, 10_000)
    );
    let rows = db.rows(&sql, &[Value::Int(after)])?;
    rows.iter()
        .map(|row| {
            let (acknowledged, resolved) = (word(&row[7..10])?, word(&row[10..13])?);
            let state = match (&acknowledged, &resolved) {
                (_, Some(_)) => DifferenceState::Resolved,
                (Some(_), None) => DifferenceState::Acknowledged,
                (None, None) => DifferenceState::Open,
            };
            Ok(Difference {
                id: row[0].int()?,
                kind: row[1].text().to_owned(),
                subject: row[2].text().to_owned(),
                detail: row[3].text().to_owned(),
                first_seen_ms: row[4].int()?,
                last_seen_ms: row[5].int()?,
                seen: u64::try_from(row[6].int()?).unwrap_or(0),
                state,
                acknowledged,
                resolved,
            })
        })
        .collect()
}

/// A person's word: who, when and a note.
fn word(cells: &[Cell]) -> Result<Option<(String, i64, String)>, LedgerError> {
    let time_ms = cells[1].int_or_none()?;
    Ok(time_ms.map(|time_ms| (cells[0].text().to_owned(), time_ms, cells[2].text().to_owned())))
}

pub(super) fn acknowledge(
    db: &dyn AuditDb,
    id: i64,
    actor: &str,
    note: &str,
    now_ms: i64,
) -> Result<bool, AuditError> {
    let sql = "UPDATE audit_differences SET acknowledged_by = $1, acknowledged_note = $2, acknowledged_ms = $3 \
               WHERE id = $4 AND resolved_ms IS NULL";
    tell(db, sql, id, actor, note, now_ms)
}

pub(super) fn resolve(
    db: &dyn AuditDb,
    id: i64,
    actor: &str,
    note: &str,
    now_ms: i64,
) -> Result<bool, AuditError> {
    let sql = "UPDATE audit_differences SET resolved_by = $1, resolved_note = $2, resolved_ms = $3 \
               WHERE id = $4 AND resolved_ms IS NULL";
    tell(db, sql, id, actor, note, now_ms)
}

fn tell(
    db: &dyn AuditDb,
    sql: &str,
    id: i64,
    actor: &str,
    note: &str,
    now_ms: i64,
) -> Result<bool, AuditError> {
    if actor.trim().is_empty() || note.trim().is_empty() {
        return Err(LedgerError::Invalid("who it is, and why, must be said".into()).into());
    }
    let params = [Value::Text(actor), Value::Text(note), Value::Int(now_ms), Value::Int(id)];
    Ok(db.execute(sql, &params)? > 0)
}
