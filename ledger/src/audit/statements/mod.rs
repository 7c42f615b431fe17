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

mod compare;
mod upload;
mod walk;

use super::db::{AuditDb, Row, Value};
use super::{AuditError, AuditLimits, Auditor, Difference, DifferenceState, differences};
use crate::error::LedgerError;
use std::collections::BTreeMap;
use std::time::Duration;
use windfall_proto::order::check_text;

/// The lines of a batch at most.
const BATCH_MAX: usize = 5_000;
/// The bonus types of a statement at most: each has a sum.
const TYPES_MAX: usize = 1_000;
/// The bytes of a key at most. Windfall's own have at most 225.
const KEY_MAX_BYTES: usize = 512;
const NAME_MAX_BYTES: usize = 64;
/// The longest margin: 30 days, for payers that list a payment when they book it.
const MARGIN_MAX_MS: i64 = 30 * 86_400_000;
/// How often a step is tried while another auditor is at work, with [`BUSY_PAUSE`] in between.
const BUSY_TRIES: u32 = 40;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Why a statement, or a line of one, is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPayerStatement {
    /// A text is empty, too long, or has control characters.
    #[error("{name} must have 1 to {max} bytes, none of them a control character")]
    Text {
        /// What the text is: the key, the payer, …
        name: &'static str,
        /// How long it may be.
        max: usize,
    },
    /// An amount below 1.
    #[error("the amount is {0}, but must be at least 1")]
    Amount(i64),
    /// The period ends before it begins, or begins before 1970.
    #[error("the period must begin at 1970 or later, and end after it begins")]
    Period,
    /// The margin is out of its range.
    #[error("the margin must be 0 to 30 days")]
    Margin,
    /// No lines, or too many.
    #[error("a batch has 1 to {BATCH_MAX} lines")]
    Batch,
    /// The lines' amounts are more than a number holds.
    #[error("the amounts of the type {0:?} are too large to be added up")]
    Sum(String),
    /// Too many bonus types.
    #[error("a statement has at most {TYPES_MAX} bonus types")]
    Types,
}

/// Why nothing was uploaded or compared.
#[derive(Debug, thiserror::Error)]
pub enum PayerStatementError {
    /// The ledger or its auditor cannot: try again later.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The call is wrong.
    #[error(transparent)]
    Bad(#[from] BadPayerStatement),
    /// There is no statement of this number.
    #[error("there is no statement {0}")]
    NotFound(i64),
    /// An upload of this name began with another payer, period or margin.
    #[error("an upload of this name has another payer, period or margin")]
    OtherUpload,
    /// The batch does not begin behind the lines that are there.
    #[error("line {next} comes next")]
    OutOfPlace {
        /// The line that comes next.
        next: u64,
    },
    /// A line is there already, and is another one.
    #[error("line {0} is there already, and is another one")]
    OtherLine(u64),
    /// Its comparison has begun.
    #[error("the comparison of statement {0} has begun: it takes no more lines")]
    Ended(i64),
    /// It is not there as a whole.
    #[error("the statement is not here as a whole: {what}")]
    NotWhole {
        /// What is missing, or too much.
        what: String,
    },
    /// The period, or the margin behind it, has not passed.
    #[error("the period and its margin have not passed: compare at {at_ms} (Unix milliseconds) or later")]
    TooEarly {
        /// From when on it may be compared.
        at_ms: i64,
    },
}

impl From<LedgerError> for PayerStatementError {
    fn from(error: LedgerError) -> Self {
        Self::Audit(error.into())
    }
}

/// A statement to upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPayerStatement {
    upload: String,
    payer: String,
    from_ms: i64,
    to_ms: i64,
    margin_ms: i64,
    actor: String,
}

impl NewPayerStatement {
    /// A statement of this payer over the period from `from_ms` up to `to_ms`, in Unix milliseconds, with the margin that the module
    /// speaks of. `upload` is a name of the caller's choice: a statement that is begun again under it is the same one. `actor`
    /// uploads it.
    ///
    /// # Errors
    /// [`BadPayerStatement`].
    pub fn new(
        upload: &str,
        payer: &str,
        period_ms: std::ops::Range<i64>,
        margin_ms: i64,
        actor: &str,
    ) -> Result<Self, BadPayerStatement> {
        checked("the name of the upload", upload, NAME_MAX_BYTES)?;
        checked("the payer", payer, NAME_MAX_BYTES)?;
        if period_ms.start < 0 || period_ms.end <= period_ms.start || period_ms.end > i64::MAX / 2 {
            return Err(BadPayerStatement::Period);
        }
        if !(0..=MARGIN_MAX_MS).contains(&margin_ms) {
            return Err(BadPayerStatement::Margin);
        }
        Ok(Self {
            upload: upload.to_owned(),
            payer: payer.to_owned(),
            from_ms: period_ms.start,
            to_ms: period_ms.end,
            margin_ms,
            actor: actor.to_owned(),
        })
    }
}

/// A line of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayerLine {
    key: String,
    bonus_type: String,
    amount: i64,
    is_returned: bool,
}

impl PayerLine {
    /// The payment with the key that the payer was given. `is_returned` says that the payer has not paid it in the end, or has the
    /// money back.
    ///
    /// # Errors
    /// [`BadPayerStatement`].
    pub fn new(
        key: &str,
        bonus_type: &str,
        amount: i64,
        is_returned: bool,
    ) -> Result<Self, BadPayerStatement> {
        checked("the key", key, KEY_MAX_BYTES)?;
        checked("the type", bonus_type, NAME_MAX_BYTES)?;
        if amount < 1 {
            return Err(BadPayerStatement::Amount(amount));
        }
        Ok(Self { key: key.to_owned(), bonus_type: bonus_type.to_owned(), amount, is_returned })
    }
}

fn checked(name: &'static str, text: &str, max: usize) -> Result<(), BadPayerStatement> {
    match check_text(text, max) {
        Ok(text) if !text.is_empty() => Ok(()),
        _ => Err(BadPayerStatement::Text { name, max }),
    }
}

/// What a statement has as a whole, by the word of who uploads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PayerTotals {
    /// The number of all lines.
    pub lines: u64,
    /// By bonus type, the number of lines that say paid, and the sum of their amounts.
    pub paid: BTreeMap<String, (u64, i64)>,
}

/// Where a statement stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayerStatementState {
    /// Lines are awaited.
    Uploading,
    /// It is being compared.
    Comparing,
    /// It was compared.
    Compared,
}

/// A bonus type of a statement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PayerSum {
    /// The bonus type.
    pub bonus_type: String,
    /// What the payer says that it has paid: lines and their sum.
    pub paid: (u64, i64),
    /// What the payer says that it has not paid, or has back.
    pub returned: (u64, i64),
    /// Those of the paid ones with which the ledger agrees.
    pub agreed: (u64, i64),
    /// What the payer paid in the period by the ledger's own times. It differs from `paid` in a sound ledger, too: by what was
    /// paid close to an end of the period.
    pub in_ledger: (u64, i64),
}

/// A payer's statement, as far as it was uploaded and compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayerStatement {
    /// Its number.
    pub id: i64,
    /// The payer.
    pub payer: String,
    /// The beginning of the period.
    pub from_ms: i64,
    /// The end of the period, which is no part of it.
    pub to_ms: i64,
    /// The margin.
    pub margin_ms: i64,
    /// Who uploaded it.
    pub actor: String,
    /// When its upload began.
    pub begun_ms: i64,
    /// Its lines so far.
    pub lines: u64,
    /// Where it stands.
    pub state: PayerStatementState,
    /// The lines that were compared.
    pub compared_lines: u64,
    /// The differences that were found, as far as they are listed.
    pub differences: u64,
    /// Payments that the statement lacks, which the statement of the period before may have.
    pub unclear: u64,
    /// When it was compared as a whole.
    pub compared_ms: Option<i64>,
    /// Its bonus types, sorted.
    pub sums: Vec<PayerSum>,
}

impl PayerStatement {
    /// Whether both sides agree.
    pub fn agrees(&self) -> bool {
        self.state == PayerStatementState::Compared && self.differences == 0
    }
}

/// The stages of a statement, as they are stored: never renumber.
const UPLOADING: i64 = 0;
const LINES: i64 = 1;
const TIMES: i64 = 2;
const LEDGER: i64 = 3;
const COMPARED: i64 = 4;

/// A row of `audit_statements`.
#[derive(Debug, Clone)]
struct Stored {
    statement: PayerStatement,
    stage: i64,
    /// The last line that was compared, or the place up to which the ledger was.
    place: i64,
    /// The place at which the ledger ended when its payments began to be compared.
    end_place: i64,
    /// From when on the statements of the payer speak without a gap, and from when on this one claims what they lack.
    covered_ms: i64,
    low_ms: i64,
}

const COLUMNS: &str = "id, payer, from_ms, to_ms, margin_ms, actor, begun_ms, lines, stage, place, differences, unclear, \
                       compared_ms, covered_ms, low_ms, end_place";

fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn stored(row: &Row) -> Result<Stored, LedgerError> {
    let (stage, place, lines) = (row[8].int()?, row[9].int()?, row[7].int()?);
    let statement = PayerStatement {
        id: row[0].int()?,
        payer: row[1].text().to_owned(),
        from_ms: row[2].int()?,
        to_ms: row[3].int()?,
        margin_ms: row[4].int()?,
        actor: row[5].text().to_owned(),
        begun_ms: row[6].int()?,
        lines: count(lines),
        state: match stage {
            UPLOADING => PayerStatementState::Uploading,
            COMPARED => PayerStatementState::Compared,
            _ => PayerStatementState::Comparing,
        },
        compared_lines: match stage {
            UPLOADING => 0,
            LINES => count(place),
            _ => count(lines),
        },
        differences: count(row[10].int()?),
        unclear: count(row[11].int()?),
        compared_ms: row[12].int_or_none()?,
        sums: Vec::new(),
    };
    let (covered_ms, low_ms) = (row[13].int()?, row[14].int()?);
    Ok(Stored { statement, stage, place, end_place: row[15].int()?, covered_ms, low_ms })
}

fn find(db: &dyn AuditDb, id: i64) -> Result<Stored, PayerStatementError> {
    let sql = format!("SELECT {COLUMNS} FROM audit_statements WHERE id = $1");
    let rows = db.rows(&sql, &[Value::Int(id)])?;
    let row = rows.first().ok_or(PayerStatementError::NotFound(id))?;
    let mut found = stored(row)?;
    found.statement.sums = sums(db, id)?;
    Ok(found)
}

fn sums(db: &dyn AuditDb, id: i64) -> Result<Vec<PayerSum>, LedgerError> {
    let sql = "SELECT bonus_type, lines, amount, returned_lines, returned_amount, agreed_lines, agreed_amount, ledger_rows, \
               ledger_amount FROM audit_statement_sums WHERE statement = $1 ORDER BY bonus_type";
    let pair =
        |row: &Row, at: usize| -> Result<_, LedgerError> { Ok((count(row[at].int()?), row[at + 1].int()?)) };
    let of_row = |row: &Row| {
        Ok(PayerSum {
            bonus_type: row[0].text().to_owned(),
            paid: pair(row, 1)?,
            returned: pair(row, 3)?,
            agreed: pair(row, 5)?,
            in_ledger: pair(row, 7)?,
        })
    };
    db.rows(sql, &[Value::Int(id)])?.iter().map(of_row).collect()
}

fn list(
    db: &dyn AuditDb,
    payer: Option<&str>,
    before: i64,
    limit: u32,
) -> Result<Vec<PayerStatement>, AuditError> {
    let of_payer = if payer.is_some() { "AND payer = $2" } else { "" };
    let sql = format!(
        "SELECT {COLUMNS} FROM audit_statements WHERE id < $1 {of_payer} ORDER BY id DESC LIMIT {}",
        limit.clamp(1, 1_000)
    );
    let mut params = vec![Value::Int(before)];
    params.extend(payer.map(Value::Text));
    let mut found = Vec::new();
    for row in db.rows(&sql, &params)? {
        let mut statement = stored(&row)?.statement;
        statement.sums = sums(db, statement.id)?;
        found.push(statement);
    }
    Ok(found)
}

impl Auditor {
    /// Runs a step of a statement. Another auditor of the ledger may be at work for the moment of a step of its own.
    fn statement_step<T>(
        &mut self,
        step: impl Fn(&dyn AuditDb, AuditLimits) -> Result<T, PayerStatementError>,
    ) -> Result<T, PayerStatementError> {
        let mut tries = 1;
        loop {
            match self.transact(&step) {
                Err(PayerStatementError::Audit(AuditError::Busy)) if tries < BUSY_TRIES => {
                    tries += 1;
                    std::thread::sleep(BUSY_PAUSE);
                }
                other => return other,
            }
        }
    }

    /// Begins a statement, or finds the one that began under the same name of an upload.
    ///
    /// # Errors
    /// [`PayerStatementError`]; after [`LedgerError::Unknown`] begin it again.
    pub fn begin_payer_statement(
        &mut self,
        new: &NewPayerStatement,
        now_ms: i64,
    ) -> Result<PayerStatement, PayerStatementError> {
        self.statement_step(|db, _| upload::begin(db, new, now_ms))
    }

    /// Appends a batch of lines, of which the first has this number, counted from 1. A batch that is there already is not
    /// appended again. Returns the number of the line that comes next.
    ///
    /// # Errors
    /// [`PayerStatementError`]; after [`LedgerError::Unknown`] append the batch again.
    pub fn append_payer_lines(
        &mut self,
        statement: i64,
        first_line: u64,
        lines: &[PayerLine],
    ) -> Result<u64, PayerStatementError> {
        self.statement_step(|db, _| upload::append(db, statement, first_line, lines))
    }

    /// Takes the next step of the comparison of a statement that is there as a whole: call it until the statement is compared.
    ///
    /// # Errors
    /// [`PayerStatementError`]; the step was not taken, or nobody knows: take the next one.
    pub fn compare_payer_statement(
        &mut self,
        statement: i64,
        totals: &PayerTotals,
        now_ms: i64,
    ) -> Result<PayerStatement, PayerStatementError> {
        self.statement_step(|db, limits| compare::step(db, limits, statement, totals, now_ms))
    }

    /// Statements with numbers below `before`, of all payers or of one, newest first.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn payer_statements(
        &mut self,
        payer: Option<&str>,
        before: i64,
        limit: u32,
    ) -> Result<Vec<PayerStatement>, AuditError> {
        self.db.ready()?;
        list(&*self.db, payer, before, limit)
    }

    /// Differences that the comparison of a statement has found, otherwise like [`Auditor::differences`].
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn payer_differences(
        &mut self,
        statement: i64,
        state: Option<DifferenceState>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Difference>, AuditError> {
        self.db.ready()?;
        differences::list(&*self.db, state, Some(statement), after, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_statement_and_no_line_cannot_be_made() {
        let new = |payer: &str, from_ms, to_ms, margin_ms| {
            NewPayerStatement::new("u", payer, from_ms..to_ms, margin_ms, "ann")
        };
        assert!(new("bank", 0, 1, 0).is_ok());
        assert!(new("", 0, 1, 0).is_err() && new("a\n", 0, 1, 0).is_err());
        for (from_ms, to_ms) in [(-1, 1), (1, 1), (2, 1), (1, i64::MAX)] {
            assert_eq!(new("bank", from_ms, to_ms, 0), Err(BadPayerStatement::Period));
        }
        assert_eq!(new("bank", 0, 1, -1), Err(BadPayerStatement::Margin));
        assert_eq!(new("bank", 0, 1, MARGIN_MAX_MS + 1), Err(BadPayerStatement::Margin));
        assert!(PayerLine::new("k", "cash", 1, false).is_ok());
        assert_eq!(PayerLine::new("k", "cash", 0, false), Err(BadPayerStatement::Amount(0)));
        assert!(PayerLine::new("", "cash", 1, false).is_err());
        assert!(PayerLine::new("k\0", "cash", 1, false).is_err());
        assert!(PayerLine::new(&"k".repeat(KEY_MAX_BYTES + 1), "cash", 1, false).is_err());
        assert!(PayerLine::new("k", &"t".repeat(NAME_MAX_BYTES + 1), 1, false).is_err());
    }
}
