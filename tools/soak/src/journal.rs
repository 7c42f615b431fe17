//! What callers write down before and after each call. A line is written at once, so that the death of a caller loses
//! nothing that it has done.

use anyhow::{Context, Result};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A reward as its caller asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The order number.
    pub trade_no: String,
    /// The user who gets it.
    pub user_id: i64,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount.
    pub amount: i64,
}

/// The writing end of a journal. A journal has one writer.
#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    /// Continues the journal in this file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self(file.with_context(|| format!("the journal {} cannot be written", path.display()))?))
    }

    /// These are asked for now, for the first time.
    pub fn asked(&mut self, orders: &[Order]) -> Result<()> {
        let now_ms = now_ms();
        let line = |one: &Order| {
            let Order { trade_no, user_id, bonus_type, amount } = one;
            format!("asked\t{now_ms}\t{trade_no}\t{user_id}\t{bonus_type}\t{amount}\n")
        };
        self.write(&orders.iter().map(line).collect::<String>())
    }

    /// These were taken: each must be credited once.
    pub fn taken<'a>(&mut self, trade_nos: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let now_ms = now_ms();
        let lines: String = trade_nos.into_iter().map(|one| format!("taken\t{now_ms}\t{one}\n")).collect();
        self.write(&lines)
    }

    /// This was refused for good, which no call of the soak should be.
    pub fn refused(&mut self, trade_no: &str, why: &str) -> Result<()> {
        let why = why.replace(['\t', '\n'], " ");
        self.write(&format!("refused\t{}\t{trade_no}\t{why}\n", now_ms()))
    }

    /// An order number was used with another amount, and the answer was that this is a conflict.
    pub fn conflicted(&mut self, trade_no: &str) -> Result<()> {
        self.write(&format!("conflict\t{}\t{trade_no}\n", now_ms()))
    }

    /// A withdrawal of this order's amount is asked for. Its id is the order number.
    pub fn withdraws(&mut self, order: &Order) -> Result<()> {
        self.write(&format!("withdraws\t{}\t{}\n", now_ms(), order.trade_no))
    }

    /// A withdrawal was answered as paid.
    pub fn paid(&mut self, trade_no: &str) -> Result<()> {
        self.write(&format!("paid\t{}\t{trade_no}\n", now_ms()))
    }

    fn write(&mut self, lines: &str) -> Result<()> {
        self.0.write_all(lines.as_bytes()).context("the journal cannot be written")
    }
}

/// The journal's state of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The reward that was asked for.
    pub order: Order,
    /// When it was first answered as taken.
    pub taken_ms: Option<u64>,
    /// Why it was refused.
    pub refused: Option<String>,
    /// Whether its number was then used with another amount.
    pub is_conflicted: bool,
    /// Whether its amount was asked to be paid out.
    pub is_withdrawn: bool,
    /// Whether that was answered as paid.
    pub is_paid: bool,
}

/// The content of all journals, by order number.
#[derive(Debug, Default)]
pub struct Book(pub HashMap<String, Asked>);

impl Book {
    /// Adds a journal. A torn last line was not written: what it would have said has not happened yet.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let file =
            File::open(path).with_context(|| format!("the journal {} cannot be read", path.display()))?;
        let (mut reader, mut line) = (BufReader::new(file), String::new());
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 || !line.ends_with('\n') {
                return Ok(());
            }
            let fields: Vec<&str> = line.trim_end_matches('\n').split('\t').collect();
            self.line(&fields).with_context(|| format!("{} has the line {line:?}", path.display()))?;
        }
    }

    fn line(&mut self, fields: &[&str]) -> Result<()> {
        let at = |index: usize| fields.get(index).copied().context("a field is missing");
        let trade_no = at(2)?;
        if at(0)? == "asked" {
            let order = Order {
                trade_no: trade_no.to_owned(),
                user_id: at(3)?.parse()?,
                bonus_type: at(4)?.to_owned(),
                amount: at(5)?.parse()?,
            };
            let fresh = Asked {
                order,
                taken_ms: None,
                refused: None,
                is_conflicted: false,
                is_withdrawn: false,
                is_paid: false,
            };
            self.0.entry(trade_no.to_owned()).or_insert(fresh);
            return Ok(());
        }
        let asked = self.0.get_mut(trade_no).context("the order was never asked for")?;
        match at(0)? {
            "taken" => asked.taken_ms = asked.taken_ms.or(Some(at(1)?.parse()?)),
            "refused" => asked.refused = Some(at(3)?.to_owned()),
            "conflict" => asked.is_conflicted = true,
            "withdraws" => asked.is_withdrawn = true,
            "paid" => asked.is_paid = true,
            other => anyhow::bail!("{other:?} is no word of a journal"),
        }
        Ok(())
    }
}

/// Unix milliseconds.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_was_not_written_and_the_first_answer_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let order = Order { trade_no: "a".into(), user_id: 7, bonus_type: "cash".into(), amount: 5 };
        let mut journal = Journal::open(&path).unwrap();
        journal.asked(std::slice::from_ref(&order)).unwrap();
        journal.taken(["a"]).unwrap();
        journal.write("taken\t99999999999999\ta\n").unwrap();
        journal.write("asked\t1\tb\t7\tca").unwrap();
        let mut book = Book::default();
        book.read(&path).unwrap();
        assert_eq!(book.0.len(), 1);
        assert_eq!(book.0["a"].order, order);
        assert!(book.0["a"].taken_ms.unwrap() < 99_999_999_999_999);
    }
}
