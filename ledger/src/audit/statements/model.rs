//! Payers' statements and their lines, before and after they are stored.

use crate::audit::model::AuditError;
use crate::error::LedgerError;
use std::collections::BTreeMap;
use windfall_proto::order::check_text;

/// The lines of a batch at most.
pub(super) const BATCH_MAX: usize = 5_000;
/// The bonus types of a statement at most: each has a sum.
pub(super) const TYPES_MAX: usize = 1_000;
/// The bytes of a key at most. Windfall's own have at most 225.
const KEY_MAX_BYTES: usize = 512;
const NAME_MAX_BYTES: usize = 64;
/// The longest margin: 30 days, for payers that list a payment when they book it.
const MARGIN_MAX_MS: i64 = 30 * 86_400_000;

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
    pub(super) upload: String,
    pub(super) payer: String,
    pub(super) from_ms: i64,
    pub(super) to_ms: i64,
    pub(super) margin_ms: i64,
    pub(super) actor: String,
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
    pub(super) key: String,
    pub(super) bonus_type: String,
    pub(super) amount: i64,
    pub(super) is_returned: bool,
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
