//! The independent check: the rain's own record against the ledger, the archive and the downstream's book.
//!
//! It trusts nobody who took part: it opens the files afresh after the pipeline has closed, and asks of each
//! order what became of it.

pub mod journal;
pub mod ledger_side;
pub mod samples;

use anyhow::{Result, bail};
use journal::Line;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// What one order was meant to be, and what became of it. 48 bytes, so that a million fit a small machine.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The first 128 bits of the order number's SHA-256.
    key: u128,
    number: u64,
    user_id: i64,
    amount: i64,
    bonus_type: u16,
    answer: Answer,
    /// Credits found in the ledger; 255 stands for more, too.
    credits: u8,
    /// Payments found in the downstream's book; 255 stands for more, too.
    payments: u8,
    archived: bool,
    mismatched: bool,
}

/// What the activity service heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The kill swallowed it: either may have happened.
    None,
    Ok,
    Refused,
}

/// The figures of one bonus type, or of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Calls that were answered Ok.
    pub sent: u64,
    /// Calls that were refused: nothing of them may arrive.
    pub refused: u64,
    /// Calls whose answer a kill swallowed: they may have arrived, once.
    pub unanswered: u64,
    /// Orders that were credited.
    pub credited: u64,
    /// Orders that were archived and not credited.
    pub archived: u64,
    /// Answered Ok, neither credited nor archived.
    pub lost: u64,
    /// Credited more than once, or paid more than once downstream, or credited and archived.
    pub double: u64,
    /// Another user, type or amount than intended; credited or paid though refused or never intended; ledger and
    /// downstream disagree; rows of the ledger that disagree with each other.
    pub mismatched: u64,
    /// What was given out beyond a budget, in budgets.
    pub budget_over: u64,
}

impl Figures {
    /// Nothing lost, double, mismatched or over.
    pub const fn is_clean(&self) -> bool {
        self.lost == 0 && self.double == 0 && self.mismatched == 0 && self.budget_over == 0
    }

    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.credited += other.credited;
        self.archived += other.archived;
        self.lost += other.lost;
        self.double += other.double;
        self.mismatched += other.mismatched;
        self.budget_over += other.budget_over;
    }
}

/// What the check found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Over all types.
    pub total: Figures,
    /// By bonus type.
    pub by_type: BTreeMap<String, Figures>,
    /// The first findings, in words; at most [`FINDINGS_MAX`].
    pub findings: Vec<String>,
}

/// Findings that are put in words.
pub const FINDINGS_MAX: usize = 20;

impl Verdict {
    /// Nothing lost, double, mismatched or over.
    pub const fn is_clean(&self) -> bool {
        self.total.is_clean()
    }

    fn say(&mut self, finding: impl FnOnce() -> String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding());
        }
    }
}

/// Everything that was intended, ready to be asked by order number.
pub struct Book {
    entries: Vec<Entry>,
    types: Vec<String>,
    verdict: Verdict,
}

impl Book {
    /// Reads the journal of a data directory.
    pub fn read(data: &Path) -> Result<Self> {
        let mut book = Self { entries: Vec::new(), types: Vec::new(), verdict: Verdict::default() };
        let mut answers: Vec<(u64, Answer)> = Vec::new();
        journal::read(data, |line| {
            match line {
                Line::Intent(intent) => {
                    let bonus_type = book.type_id(&intent.bonus_type)?;
                    book.entries.push(Entry {
                        key: key(&intent.trade_no),
                        number: intent.number,
                        user_id: intent.user_id,
                        amount: intent.amount,
                        bonus_type,
                        answer: Answer::None,
                        credits: 0,
                        payments: 0,
                        archived: false,
                        mismatched: false,
                    });
                }
                Line::Answer(number, answer) => {
                    answers.push((number, if answer.is_ok() { Answer::Ok } else { Answer::Refused }));
                }
                Line::Token(..) => {}
            }
            Ok(())
        })?;
        // A resumed rain asks again for what the kill left unanswered: the same number, the same order.
        book.entries.sort_unstable_by_key(|entry| (entry.number, entry.key));
        book.entries.dedup_by_key(|entry| (entry.number, entry.key, entry.user_id, entry.amount));
        if let Some(twice) = book.entries.windows(2).find(|pair| pair[0].number == pair[1].number) {
            bail!("the journal has two different intents numbered {}", twice[0].number);
        }
        for (number, answer) in answers {
            let Ok(at) = book.entries.binary_search_by_key(&number, |entry| entry.number) else {
                bail!("the journal has an answer to number {number}, which it never intended");
            };
            // Once Ok, always Ok.
            if book.entries[at].answer != Answer::Ok {
                book.entries[at].answer = answer;
            }
        }
        book.entries.sort_unstable_by_key(|entry| entry.key);
        Ok(book)
    }

    /// A row of the ledger: an order and the times that it was credited.
    pub fn ledger_row(&mut self, trade_no: &str, user_id: i64, bonus_type: &str, amount: i64, credits: u32) {
        let Some(at) = self.find(trade_no) else {
            self.unintended(bonus_type, || format!("order {trade_no} in the ledger was never intended"));
            return;
        };
        let type_fits = self.types[usize::from(self.entries[at].bonus_type)] == bonus_type;
        let entry = &mut self.entries[at];
        entry.credits = u8::try_from(credits).unwrap_or(u8::MAX);
        if !type_fits || entry.user_id != user_id || entry.amount != amount {
            entry.mismatched = true;
            let meant = (entry.user_id, entry.amount);
            self.verdict.say(|| {
                format!(
                    "order {trade_no}: user {user_id}, {bonus_type} {amount}; meant for user {}: {}",
                    meant.0, meant.1
                )
            });
        }
    }

    /// An entry of the archive.
    pub fn archived(&mut self, trade_no: &str) {
        match self.find(trade_no) {
            Some(at) => self.entries[at].archived = true,
            None => self.unintended("", || format!("archived order {trade_no} was never intended")),
        }
    }

    /// A payment in the downstream's own book.
    pub fn paid(&mut self, trade_no: &str, user_id: i64, amount: i64) {
        let Some(at) = self.find(trade_no) else {
            self.unintended("", || format!("the downstream paid {trade_no}, which was never intended"));
            return;
        };
        let entry = &mut self.entries[at];
        entry.payments = entry.payments.saturating_add(1);
        if entry.user_id != user_id || entry.amount != amount {
            entry.mismatched = true;
            self.verdict.say(|| format!("the downstream paid {trade_no} to user {user_id}: {amount}"));
        }
    }

    /// Something that is wrong with no order in particular.
    pub fn wrong(
        &mut self,
        bonus_type: &str,
        count: u64,
        pick: fn(&mut Figures) -> &mut u64,
        finding: String,
    ) {
        *pick(self.verdict.by_type.entry(bonus_type.to_owned()).or_default()) += count;
        self.verdict.say(|| finding);
    }

    /// Adds it all up. `by_book` are the types whose every credit must stand in the downstream's book.
    pub fn verdict(mut self, by_book: &[&str]) -> Verdict {
        for entry in &self.entries {
            let bonus_type = &self.types[usize::from(entry.bonus_type)];
            let figures = self.verdict.by_type.entry(bonus_type.clone()).or_default();
            let credited = entry.credits > 0;
            match entry.answer {
                Answer::Ok => figures.sent += 1,
                Answer::Refused => figures.refused += 1,
                Answer::None => figures.unanswered += 1,
            }
            figures.credited += u64::from(credited);
            figures.archived += u64::from(entry.archived && !credited);
            let lost = entry.answer == Answer::Ok && !credited && !entry.archived;
            let double = entry.credits > 1 || entry.payments > 1 || (credited && entry.archived);
            let though_refused = entry.answer == Answer::Refused && (credited || entry.payments > 0);
            let disagree =
                by_book.contains(&bonus_type.as_str()) && credited != (entry.payments > 0) && !entry.archived;
            let mismatched = entry.mismatched || though_refused || disagree;
            figures.lost += u64::from(lost);
            figures.double += u64::from(double);
            figures.mismatched += u64::from(mismatched);
            if lost || double || mismatched {
                let entry = *entry;
                let bonus_type = bonus_type.clone();
                self.verdict.say(|| {
                    format!(
                        "reward {} ({bonus_type} {} for user {}): answered {:?}, credited {} times, paid {} times \
                         downstream, archived: {}",
                        entry.number, entry.amount, entry.user_id, entry.answer, entry.credits, entry.payments,
                        entry.archived,
                    )
                });
            }
        }
        let mut total = Figures::default();
        for figures in self.verdict.by_type.values() {
            total.add(figures);
        }
        self.verdict.total = total;
        self.verdict
    }

    fn unintended(&mut self, bonus_type: &str, finding: impl FnOnce() -> String) {
        let name = if bonus_type.is_empty() { "(unknown)" } else { bonus_type };
        self.verdict.by_type.entry(name.to_owned()).or_default().mismatched += 1;
        self.verdict.say(finding);
    }

    fn find(&self, trade_no: &str) -> Option<usize> {
        self.entries.binary_search_by_key(&key(trade_no), |entry| entry.key).ok()
    }

    fn type_id(&mut self, bonus_type: &str) -> Result<u16> {
        if let Some(at) = self.types.iter().position(|own| own == bonus_type) {
            return Ok(u16::try_from(at)?);
        }
        self.types.push(bonus_type.to_owned());
        Ok(u16::try_from(self.types.len() - 1)?)
    }
}

fn key(trade_no: &str) -> u128 {
    let hash = Sha256::digest(trade_no.as_bytes());
    hash.iter().take(16).fold(0, |key, byte| key << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::JournalWriter;

    fn book(lines: impl FnOnce(&mut JournalWriter)) -> Book {
        let data = tempfile::tempdir().unwrap();
        let mut writer = JournalWriter::open(data.path(), 0).unwrap();
        lines(&mut writer);
        writer.flush().unwrap();
        Book::read(data.path()).unwrap()
    }

    fn three(writer: &mut JournalWriter) {
        for (number, answer) in [(1, Some(Ok(()))), (2, Some(Err("spool full"))), (3, None)] {
            writer.intent(number, 40, "cash", 5, &format!("o-{number}"));
            if let Some(answer) = answer {
                writer.answer(number, answer);
            }
        }
    }

    #[test]
    fn a_sound_story_is_clean_whatever_the_kill_swallowed() {
        for swallowed_arrived in [false, true] {
            let mut book = book(three);
            book.ledger_row("o-1", 40, "cash", 5, 1);
            if swallowed_arrived {
                book.ledger_row("o-3", 40, "cash", 5, 1);
            }
            let verdict = book.verdict(&[]);
            assert!(verdict.is_clean(), "{verdict:?}");
            assert_eq!((verdict.total.sent, verdict.total.refused, verdict.total.unanswered), (1, 1, 1));
        }
    }

    #[test]
    fn every_kind_of_damage_is_reported() {
        type Damage = (&'static str, fn(&mut Book), fn(&Figures) -> u64);
        let ok = |book: &mut Book| book.ledger_row("o-1", 40, "cash", 5, 1);
        let damages: [Damage; 9] = [
            ("lost", |_| {}, |figures| figures.lost),
            ("credited twice", |book| book.ledger_row("o-1", 40, "cash", 5, 2), |figures| figures.double),
            ("another user", |book| book.ledger_row("o-1", 41, "cash", 5, 1), |figures| figures.mismatched),
            ("another amount", |book| book.ledger_row("o-1", 40, "cash", 6, 1), |figures| figures.mismatched),
            ("another type", |book| book.ledger_row("o-1", 40, "coin", 5, 1), |figures| figures.mismatched),
            (
                "credited though refused",
                |book| book.ledger_row("o-2", 40, "cash", 5, 1),
                |figures| figures.mismatched,
            ),
            ("unintended", |book| book.ledger_row("o-9", 40, "cash", 5, 1), |figures| figures.mismatched),
            (
                "swallowed, then twice",
                |book| book.ledger_row("o-3", 40, "cash", 5, 2),
                |figures| figures.double,
            ),
            (
                "paid twice downstream",
                |book| {
                    book.paid("o-1", 40, 5);
                    book.paid("o-1", 40, 5);
                },
                |figures| figures.double,
            ),
        ];
        for (what, damage, count) in damages {
            let mut book = book(three);
            if !matches!(what, "lost" | "credited twice") && !what.starts_with("another") {
                ok(&mut book);
            }
            damage(&mut book);
            let verdict = book.verdict(&[]);
            assert_eq!(count(&verdict.total), 1, "{what}: {verdict:?}");
            assert!(!verdict.is_clean() && !verdict.findings.is_empty(), "{what}");
        }
    }

    #[test]
    fn an_archived_order_is_not_lost_and_a_credited_one_is_not_archived() {
        let mut sound = book(three);
        sound.archived("o-1");
        assert!(sound.verdict(&[]).is_clean());
        let mut both = book(three);
        both.ledger_row("o-1", 40, "cash", 5, 1);
        both.archived("o-1");
        assert_eq!(both.verdict(&[]).total.double, 1);
    }

    #[test]
    fn ledger_and_downstream_must_agree() {
        let mut book = book(three);
        book.ledger_row("o-1", 40, "cash", 5, 1);
        assert_eq!(book.verdict(&["cash"]).total.mismatched, 1, "credited, yet never paid");
    }
}
