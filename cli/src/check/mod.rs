//! The independent check: the rain's own record against the ledger, the archive and the downstream's book.
//!
//! It trusts nobody who took part: it opens the files afresh after the pipeline has closed, and asks of each
//! order what became of it.

pub mod journal;
pub mod ledger_side;
pub mod samples;

use anyhow::{Context, Result, bail};
use journal::Line;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// The intended content of one order, and its outcome. 48 bytes, so that a million fit a small machine.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The first 128 bits of the order number's SHA-256.
    key: u128,
    user_id: i64,
    amount: i64,
    number: u32,
    bonus_type: u16,
    answer: Answer,
    archived: Archived,
    /// Credits found in the ledger; 255 stands for more, too.
    credits: u8,
    /// Payments found in the downstream's book; 255 stands for more, too.
    payments: u8,
    /// Whether the ledger has a row of it, credited or not.
    in_ledger: bool,
    mismatched: bool,
}

/// The archive's state of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Archived {
    No,
    /// Given up without a decision, or replayed since: it may have been paid or credited all the same.
    Open,
    /// It was rejected for good.
    Final,
}

/// The content of an event, wherever it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content<'a> {
    /// The user who gets it.
    pub user_id: i64,
    /// The bonus type.
    pub bonus_type: &'a str,
    /// The amount in the smallest unit.
    pub amount: i64,
}

/// The answer that the activity service got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The answer was lost in the kill: the call may have succeeded or not.
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
    /// Orders that were answered Ok, and neither credited nor archived.
    pub lost: u64,
    /// Credited more than once, or paid more than once downstream, or credited and archived.
    pub double: u64,
    /// Another user, type or amount than intended; credited or paid though refused or never intended; ledger and
    /// downstream disagree; rows of the ledger that disagree with each other.
    pub mismatched: u64,
    /// The number of budgets that were exceeded.
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

/// The result of the check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The figures over all types.
    pub total: Figures,
    /// The figures by bonus type.
    pub by_type: BTreeMap<String, Figures>,
    /// The first findings, in words; at most [`FINDINGS_MAX`].
    pub findings: Vec<String>,
}

/// The number of findings that are put in words.
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
        let mut answers: Vec<(u32, Answer)> = Vec::new();
        journal::read(data, |line| {
            match line {
                Line::Intent(intent) => {
                    let bonus_type = book.type_id(&intent.bonus_type)?;
                    book.entries.push(Entry {
                        key: key(&intent.trade_no),
                        user_id: intent.user_id,
                        amount: intent.amount,
                        number: small(intent.number)?,
                        bonus_type,
                        answer: Answer::None,
                        archived: Archived::No,
                        credits: 0,
                        payments: 0,
                        in_ledger: false,
                        mismatched: false,
                    });
                }
                Line::Answer(number, answer) => {
                    answers.push((small(number)?, if answer.is_ok() { Answer::Ok } else { Answer::Refused }));
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
                bail!(
                    "the record of the rain is damaged: it answers reward {number}, which it never intended"
                );
            };
            // Once Ok, always Ok.
            if book.entries[at].answer != Answer::Ok {
                book.entries[at].answer = answer;
            }
        }
        book.entries.sort_unstable_by_key(|entry| entry.key);
        if let Some(twice) = book.entries.windows(2).find(|pair| pair[0].key == pair[1].key) {
            bail!(
                "the journal gives rewards {} and {} the same order number",
                twice[0].number,
                twice[1].number
            );
        }
        Ok(book)
    }

    /// A row of the ledger: an order and the times that it was credited.
    pub fn ledger_row(&mut self, trade_no: &str, content: Content<'_>, credits: u32) {
        let Some(at) = self.compare("the ledger", trade_no, content) else { return };
        self.entries[at].in_ledger = true;
        self.entries[at].credits = u8::try_from(credits).unwrap_or(u8::MAX);
    }

    /// An entry of the archive; `content` where its bytes are an event. `decided`: it was rejected for good and never
    /// replayed.
    pub fn archived(&mut self, trade_no: &str, content: Option<Content<'_>>, decided: bool) {
        let at = match content {
            Some(content) => self.compare("the archive", trade_no, content),
            None => self.find(trade_no),
        };
        if let Some(at) = at {
            let archived = if decided { Archived::Final } else { Archived::Open };
            self.entries[at].archived = self.entries[at].archived.max(archived);
        }
    }

    /// An event under a number that is taken by another: the rain never sends one.
    pub fn conflict(&mut self, trade_no: &str, content: Content<'_>) {
        self.compare("the archive, as a conflict,", trade_no, content);
    }

    /// A payment in the downstream's own book.
    pub fn paid(&mut self, trade_no: &str, content: Content<'_>) {
        let Some(at) = self.compare("the downstream's book", trade_no, content) else { return };
        self.entries[at].payments = self.entries[at].payments.saturating_add(1);
    }

    /// Finds the order and compares what somebody says of it with what was intended.
    fn compare(&mut self, place: &str, trade_no: &str, content: Content<'_>) -> Option<usize> {
        let Some(at) = self.find(trade_no) else {
            let unintended = self.verdict.by_type.entry(content.bonus_type.to_owned()).or_default();
            unintended.mismatched += 1;
            self.verdict.say(|| format!("{place} has order {trade_no}, which was never intended"));
            return None;
        };
        let entry = &mut self.entries[at];
        let bonus_type = self.types[usize::from(entry.bonus_type)].as_str();
        let intended = Content { user_id: entry.user_id, bonus_type, amount: entry.amount };
        if content != intended {
            entry.mismatched = true;
            self.verdict
                .say(|| format!("{place} has order {trade_no} as {content:?}; intended was {intended:?}"));
        }
        Some(at)
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
            let archived = entry.archived != Archived::No;
            match entry.answer {
                Answer::Ok => figures.sent += 1,
                Answer::Refused => figures.refused += 1,
                Answer::None => figures.unanswered += 1,
            }
            figures.credited += u64::from(credited);
            figures.archived += u64::from(archived && !credited);
            // What the ledger has seen has arrived, whatever the kill swallowed.
            let arrived = entry.answer == Answer::Ok || entry.in_ledger;
            let lost = arrived && !credited && !archived;
            let both = credited && entry.archived == Archived::Final;
            let double = entry.credits > 1 || entry.payments > 1 || both;
            let traces = entry.in_ledger || archived || entry.payments > 0;
            let though_refused = entry.answer == Answer::Refused && traces;
            let paid = entry.payments > 0;
            let disagree = if by_book.contains(&bonus_type.as_str()) {
                // Given up without a decision, it may have been paid; in every other case both must know.
                credited != paid && entry.archived != Archived::Open
            } else {
                paid
            };
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
                         downstream, archived: {:?}",
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

/// A rain has at most 100,000,000 rewards.
fn small(number: u64) -> Result<u32> {
    u32::try_from(number).context("a reward's number in the journal is too large")
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

    fn cash(user_id: i64, amount: i64) -> Content<'static> {
        Content { user_id, bonus_type: "cash", amount }
    }

    #[test]
    fn a_sound_story_is_clean_whatever_the_kill_swallowed() {
        for swallowed_arrived in [false, true] {
            let mut book = book(three);
            book.ledger_row("o-1", cash(40, 5), 1);
            if swallowed_arrived {
                book.ledger_row("o-3", cash(40, 5), 1);
            }
            let verdict = book.verdict(&[]);
            assert!(verdict.is_clean(), "{verdict:?}");
            assert_eq!((verdict.total.sent, verdict.total.refused, verdict.total.unanswered), (1, 1, 1));
        }
    }

    /// Each damage alone, on top of a sound o-1 where `sound` says so.
    #[test]
    fn every_kind_of_damage_is_reported() {
        type Damage = (&'static str, bool, fn(&mut Book), fn(&Figures) -> u64);
        let damages: [Damage; 15] = [
            ("lost", false, |_| {}, |one| one.lost),
            ("credited twice", false, |book| book.ledger_row("o-1", cash(40, 5), 2), |one| one.double),
            ("another user", false, |book| book.ledger_row("o-1", cash(41, 5), 1), |one| one.mismatched),
            ("another amount", false, |book| book.ledger_row("o-1", cash(40, 6), 1), |one| one.mismatched),
            (
                "another type",
                false,
                |book| book.ledger_row("o-1", Content { bonus_type: "coin", ..cash(40, 5) }, 1),
                |one| one.mismatched,
            ),
            ("credited, refused", true, |book| book.ledger_row("o-2", cash(40, 5), 1), |one| one.mismatched),
            ("archived, refused", true, |book| book.archived("o-2", None, true), |one| one.mismatched),
            ("unintended", true, |book| book.ledger_row("o-9", cash(40, 5), 1), |one| one.mismatched),
            ("swallowed, twice", true, |book| book.ledger_row("o-3", cash(40, 5), 2), |one| one.double),
            ("swallowed, seen, gone", true, |book| book.ledger_row("o-3", cash(40, 5), 0), |one| one.lost),
            (
                "credited and rejected",
                true,
                |book| book.archived("o-1", Some(cash(40, 5)), true),
                |one| one.double,
            ),
            (
                "archived with another amount",
                false,
                |book| book.archived("o-1", Some(cash(40, 6)), true),
                |one| one.mismatched,
            ),
            ("conflicting event", true, |book| book.conflict("o-1", cash(41, 5)), |one| one.mismatched),
            ("paid by a stranger", true, |book| book.paid("o-1", cash(40, 5)), |one| one.mismatched),
            (
                "paid twice downstream",
                true,
                |book| {
                    book.paid("o-1", cash(40, 5));
                    book.paid("o-1", cash(40, 5));
                },
                |one| one.double,
            ),
        ];
        for (what, sound, damage, count) in damages {
            let mut book = book(three);
            if sound {
                book.ledger_row("o-1", cash(40, 5), 1);
            }
            damage(&mut book);
            let verdict = book.verdict(&[]);
            assert_eq!(count(&verdict.total), 1, "{what}: {verdict:?}");
            assert!(!verdict.is_clean() && !verdict.findings.is_empty(), "{what}");
        }
    }

    #[test]
    fn an_archived_order_is_not_lost_and_one_given_up_may_have_been_credited() {
        let mut rejected = book(three);
        rejected.archived("o-1", Some(cash(40, 5)), true);
        assert!(rejected.verdict(&[]).is_clean());
        let mut given_up = book(three);
        given_up.ledger_row("o-1", cash(40, 5), 1);
        given_up.archived("o-1", Some(cash(40, 5)), false);
        assert!(given_up.verdict(&[]).is_clean());
    }

    #[test]
    fn ledger_and_downstream_must_agree() {
        let mut unpaid = book(three);
        unpaid.ledger_row("o-1", cash(40, 5), 1);
        assert_eq!(unpaid.verdict(&["cash"]).total.mismatched, 1, "credited, yet never paid");
        for (decided, wrong) in [(true, 1), (false, 0)] {
            let mut book = book(three);
            book.paid("o-1", cash(40, 5));
            book.archived("o-1", Some(cash(40, 5)), decided);
            assert_eq!(book.verdict(&["cash"]).total.mismatched, wrong, "paid, then rejected: {decided}");
        }
    }
}
