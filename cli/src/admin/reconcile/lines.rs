//! The lines of a payer's statement, as CSV with a header. Columns `key`, `type` and `amount` are needed, `status` may be there,
//! and others are ignored.

use std::collections::BTreeMap;
use std::io::Read;
use windfall_ledger::PayerLine as Checked;
use windfall_proto::v1::{PayerLine, PayerTotal};

/// Why a file is no statement. The first wrong line is named.
#[derive(Debug, thiserror::Error)]
pub enum BadStatement {
    /// It is no CSV, is not UTF-8, or cannot be read; the cause names the line.
    #[error("the statement cannot be read as CSV in UTF-8: {0}")]
    Csv(#[from] csv::Error),
    /// A column is missing.
    #[error("the header of the statement has no column `{0}`; it needs key, type and amount")]
    NoColumn(&'static str),
    /// A column is there twice.
    #[error("the header of the statement has the column `{0}` twice")]
    TwoColumns(&'static str),
    /// A line is none.
    #[error("line {line} of the statement: {why}")]
    Line {
        /// Its number in the file, where the header is line 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
}

/// Where the columns are.
#[derive(Debug, Clone, Copy)]
struct Columns {
    key: usize,
    bonus_type: usize,
    amount: usize,
    status: Option<usize>,
}

impl Columns {
    fn of(header: &csv::StringRecord) -> Result<Self, BadStatement> {
        let find = |name: &'static str| {
            let mut places = header.iter().enumerate().filter(|(_, column)| *column == name);
            match (places.next(), places.next()) {
                (_, Some(_)) => Err(BadStatement::TwoColumns(name)),
                (found, None) => Ok(found.map(|(place, _)| place)),
            }
        };
        let needed = |name| find(name)?.ok_or(BadStatement::NoColumn(name));
        Ok(Self {
            key: needed("key")?,
            bonus_type: needed("type")?,
            amount: needed("amount")?,
            status: find("status")?,
        })
    }

    fn line(&self, record: &csv::StringRecord) -> Result<PayerLine, BadStatement> {
        let number = record.position().map_or(0, csv::Position::line);
        let wrong = |why: String| BadStatement::Line { line: number, why };
        let field = |place: usize| record.get(place).unwrap_or_default();
        let is_returned = match self.status.map(field) {
            None | Some("paid") => false,
            Some("returned") => true,
            Some(other) => {
                return Err(wrong(format!("its status is {other:?}, but must be paid or returned")));
            }
        };
        let text = field(self.amount);
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let amount = text.parse::<i64>().ok().filter(|_| is_number).ok_or_else(|| {
            wrong(format!("its amount is {text:?}, but must be a whole number of the smallest unit"))
        })?;
        let (key, bonus_type) = (field(self.key), field(self.bonus_type));
        Checked::new(key, bonus_type, amount, is_returned).map_err(|why| wrong(why.to_string()))?;
        Ok(PayerLine { key: key.to_owned(), bonus_type: bonus_type.to_owned(), amount, is_returned })
    }
}

/// Reads the lines, one after the other, and hands each over.
///
/// # Errors
/// What `each` says; and the first line that is none.
pub fn read<E: From<BadStatement>>(
    source: impl Read,
    mut each: impl FnMut(PayerLine) -> Result<(), E>,
) -> Result<(), E> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(source);
    let columns = Columns::of(reader.headers().map_err(BadStatement::from)?)?;
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(BadStatement::from)? {
        each(columns.line(&record)?)?;
    }
    Ok(())
}

/// What all lines are together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    /// How many they are.
    pub lines: u64,
    paid: BTreeMap<String, (u64, i64)>,
}

impl Totals {
    /// Adds a line.
    ///
    /// # Errors
    /// A sum is more than a number holds.
    pub fn add(&mut self, line: &PayerLine) -> Result<(), BadStatement> {
        self.lines += 1;
        if !line.is_returned {
            let sum = self.paid.entry(line.bonus_type.clone()).or_default();
            sum.0 += 1;
            sum.1 = sum.1.checked_add(line.amount).ok_or_else(|| BadStatement::Line {
                line: self.lines + 1,
                why: "the amounts of its type are too large to be added up".into(),
            })?;
        }
        Ok(())
    }

    /// As a call has them.
    pub fn paid(&self) -> Vec<PayerTotal> {
        let of = |(bonus_type, (lines, amount)): (&String, &(u64, i64))| PayerTotal {
            bonus_type: bonus_type.clone(),
            lines: *lines,
            amount: *amount,
        };
        self.paid.iter().map(of).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Result<Vec<PayerLine>, BadStatement> {
        let mut found = Vec::new();
        read(text, |line| {
            found.push(line);
            Ok::<_, BadStatement>(())
        })?;
        Ok(found)
    }

    #[test]
    fn lines_have_their_columns_in_any_order_and_others_are_ignored() {
        let text = "\u{feff}amount , booked,type,key\r\n10,2027-02-06,cash,order spring a\r\n\r\n\
                    20,\"a, \"\"b\"\"\",coin, \"withdrawal app 7 w\" \n";
        let found = lines(text.as_bytes()).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].key.as_str(), found[0].amount), ("order spring a", 10));
        assert_eq!(
            (found[1].key.trim_matches('"'), found[1].bonus_type.as_str()),
            ("withdrawal app 7 w", "coin")
        );
        let with = lines(b"key,type,amount,status\na,cash,1,paid\nb,cash,2,returned\n").unwrap();
        assert_eq!(with.iter().map(|line| line.is_returned).collect::<Vec<_>>(), [false, true]);
        assert_eq!(lines(b"key,type,amount\n").unwrap(), []);
        let mut totals = Totals::default();
        with.iter().try_for_each(|line| totals.add(line)).unwrap();
        let cash = PayerTotal { bonus_type: "cash".into(), lines: 1, amount: 1 };
        assert_eq!((totals.lines, totals.paid()), (2, vec![cash]));
        let most = PayerLine { amount: i64::MAX, ..with[0].clone() };
        assert!(totals.add(&most).is_err());
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let long = format!("key,type,amount\n{},cash,1\n", "k".repeat(513));
        let cases: [(&[u8], &str); 13] = [
            (b"", "no column `key`"),
            (b"key;type;amount\na;cash;1\n", "no column `key`"),
            (b"key,type\na,cash\n", "no column `amount`"),
            (b"key,type,amount,key\n", "the column `key` twice"),
            (b"key,type,amount\na,cash,1\nb,cash\n", "line: 3"),
            (b"key,type,amount\na,cash,1\nb,cash,1.50\n", "line 3 of the statement: its amount is \"1.50\""),
            (b"key,type,amount\na,cash,-1\n", "line 2 of the statement: its amount is \"-1\""),
            (b"key,type,amount\na,cash,0\n", "the amount is 0"),
            (b"key,type,amount\na,cash,9223372036854775808\n", "its amount"),
            (b"key,type,amount\n,cash,1\n", "line 2 of the statement: the key must have"),
            (b"key,type,amount,status\na,cash,1,\n", "its status is \"\""),
            (b"key,type,amount\na\xff,cash,1\n", "(line 2, field: 0"),
            (long.as_bytes(), "the key must have 1 to 512 bytes"),
        ];
        for (text, what) in cases {
            let refused = lines(text).unwrap_err().to_string();
            assert!(refused.contains(what), "{what}: {refused}");
        }
    }
}
