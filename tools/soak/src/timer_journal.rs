//! What the callers of timers write down before and after each call, and what can be read from it afterwards.

use crate::journal::{Asked, Order, now_ms};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;

/// A timer as its caller adds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timer {
    /// Names it in journals and at its target; the order number of a reward.
    pub tag: String,
    /// When it is due, Unix milliseconds.
    pub due_ms: u64,
    /// Whether it has a key, which is its tag.
    pub is_keyed: bool,
    /// The reward that it sends; without one it is a callback.
    pub reward: Option<Order>,
}

/// The writing end of a journal. A journal has one writer.
#[derive(Debug)]
pub struct TimerJournal(File);

impl TimerJournal {
    /// Continues the journal in this file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self(file.with_context(|| format!("the journal {} cannot be written", path.display()))?))
    }

    /// It is added now, for the first time.
    pub fn adds(&mut self, timer: &Timer) -> Result<()> {
        let Timer { tag, due_ms, is_keyed, reward } = timer;
        let (user_id, amount) = reward.as_ref().map_or((0, 0), |order| (order.user_id, order.amount));
        self.line("adds", tag, &format!("{due_ms}\t{is_keyed}\t{user_id}\t{amount}"))
    }

    /// The add had no answer, and is repeated now.
    pub fn adds_again(&mut self, tag: &str) -> Result<()> {
        self.line("adds-again", tag, "")
    }

    /// The add was answered.
    pub fn added(&mut self, tag: &str) -> Result<()> {
        self.line("added", tag, "")
    }

    /// It is moved to this time now, or asked for so once more.
    pub fn moves(&mut self, tag: &str, due_ms: u64) -> Result<()> {
        self.line("moves", tag, &due_ms.to_string())
    }

    /// The move was answered with this change.
    pub fn moved(&mut self, tag: &str, change: &str) -> Result<()> {
        self.line("moved", tag, change)
    }

    /// It is cancelled now, or asked for so once more.
    pub fn cancels(&mut self, tag: &str) -> Result<()> {
        self.line("cancels", tag, "")
    }

    /// The cancel was answered with this change.
    pub fn cancelled(&mut self, tag: &str, change: &str) -> Result<()> {
        self.line("cancelled", tag, change)
    }

    /// A call was refused for good, which no call of the soak should be.
    pub fn refused(&mut self, tag: &str, why: &str) -> Result<()> {
        self.line("refused", tag, &why.replace(['\t', '\n'], " "))
    }

    fn line(&mut self, word: &str, tag: &str, rest: &str) -> Result<()> {
        let line = format!("{word}\t{}\t{tag}\t{rest}\n", now_ms());
        self.0.write_all(line.as_bytes()).context("the journal of timers cannot be written")
    }
}

/// What must become of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It must fire: its add was answered, and nothing took it back.
    Fires,
    /// It must not fire: its cancel was answered as done.
    Cancelled,
    /// Nobody knows: a call had no answer.
    Either,
}

/// The journal's state of a timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As it was added.
    pub timer: Timer,
    /// Before this time it must not fire.
    pub not_before_ms: u64,
    /// What must become of it.
    pub fate: Fate,
    /// Whether the add was repeated: there may be two timers, where the first one had fired by then.
    pub is_doubtful: bool,
    /// Why a call was refused.
    pub refused: Option<String>,
    /// Whether the move was answered as done.
    pub is_moved: bool,
    moving_ms: Option<u64>,
    cancels: u32,
}

impl Entry {
    fn of(timer: Timer) -> Self {
        Self {
            not_before_ms: timer.due_ms,
            timer,
            fate: Fate::Either,
            is_doubtful: false,
            refused: None,
            is_moved: false,
            moving_ms: None,
            cancels: 0,
        }
    }

    /// The reward as the judge of rewards knows it, if it is one.
    pub fn asked(&self) -> Option<Asked> {
        Some(Asked {
            order: self.timer.reward.clone()?,
            // It is not late before it is due.
            taken_ms: (self.fate == Fate::Fires).then_some(self.not_before_ms),
            refused: None,
            is_conflicted: false,
            is_withdrawn: false,
            is_paid: false,
        })
    }

    fn line(&mut self, fields: &[&str]) -> Result<()> {
        let rest = fields.get(3).copied().unwrap_or_default();
        match fields[0] {
            "adds-again" => self.is_doubtful = true,
            "added" => self.fate = Fate::Fires,
            "moves" => self.moving_ms = Some(rest.parse()?),
            "moved" => {
                // A timer is only ever moved to a later time: what is not known to be moved may fire at its first one.
                // Of two timers, one was moved.
                if let ("TIMER_CHANGE_DONE", Some(moving_ms), false) =
                    (rest, self.moving_ms.take(), self.is_doubtful)
                {
                    (self.not_before_ms, self.is_moved) = (moving_ms, true);
                }
            }
            "cancels" => {
                self.cancels += 1;
                if self.fate == Fate::Fires {
                    self.fate = Fate::Either;
                }
            }
            "cancelled" => {
                self.fate = match rest {
                    "TIMER_CHANGE_DONE" | "TIMER_CHANGE_ALREADY_CANCELLED" => Fate::Cancelled,
                    "TIMER_CHANGE_TOO_LATE" => Fate::Fires,
                    // It was there: it has fired, unless an earlier call that had no answer has cancelled it.
                    "TIMER_CHANGE_NOT_FOUND" if self.cancels == 1 && !self.is_doubtful => Fate::Fires,
                    _ => Fate::Either,
                };
            }
            "refused" => self.refused = Some(rest.to_owned()),
            other => bail!("{other:?} is no word of a journal of timers"),
        }
        Ok(())
    }
}

/// The content of the journals of timers, by tag.
#[derive(Debug, Clone, Default)]
pub struct TimerBook(pub BTreeMap<String, Entry>);

impl TimerBook {
    /// Adds a journal. A torn last line was not written: what it would have said has not happened yet.
    pub fn read(&mut self, path: &Path, bonus_type: &str) -> Result<()> {
        let file =
            File::open(path).with_context(|| format!("the journal {} cannot be read", path.display()))?;
        let (mut reader, mut line) = (BufReader::new(file), String::new());
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 || !line.ends_with('\n') {
                return Ok(());
            }
            let fields: Vec<&str> = line.trim_end_matches('\n').split('\t').collect();
            self.line(&fields, bonus_type)
                .with_context(|| format!("{} has the line {line:?}", path.display()))?;
        }
    }

    fn line(&mut self, fields: &[&str], bonus_type: &str) -> Result<()> {
        let at = |index: usize| fields.get(index).copied().context("a field is missing");
        let tag = at(2)?;
        if at(0)? != "adds" {
            return self.0.get_mut(tag).context("the timer was never added")?.line(fields);
        }
        let (user_id, amount): (i64, i64) = (at(5)?.parse()?, at(6)?.parse()?);
        let order = Order { trade_no: tag.to_owned(), user_id, bonus_type: bonus_type.to_owned(), amount };
        let timer = Timer {
            tag: tag.to_owned(),
            due_ms: at(3)?.parse()?,
            is_keyed: at(4)? == "true",
            reward: (amount > 0).then_some(order),
        };
        self.0.insert(tag.to_owned(), Entry::of(timer));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(write: impl FnOnce(&mut TimerJournal, &Timer)) -> Entry {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timers");
        let timer = Timer { tag: "a".into(), due_ms: 1_000, is_keyed: true, reward: None };
        let mut journal = TimerJournal::open(&path).unwrap();
        journal.adds(&timer).unwrap();
        write(&mut journal, &timer);
        let mut book = TimerBook::default();
        book.read(&path, "timed").unwrap();
        let entry = book.0.remove("a").unwrap();
        assert_eq!(entry.timer, timer);
        entry
    }

    #[test]
    fn only_what_was_answered_binds_a_timer() {
        assert_eq!(read(|_, _| {}).fate, Fate::Either);
        let added = read(|journal, _| journal.added("a").unwrap());
        assert_eq!((added.fate, added.not_before_ms), (Fate::Fires, 1_000));
        let cancel = |answers: &'static [&'static str]| {
            read(move |journal, _| {
                journal.added("a").unwrap();
                for answer in answers {
                    journal.cancels("a").unwrap();
                    if !answer.is_empty() {
                        journal.cancelled("a", answer).unwrap();
                    }
                }
            })
            .fate
        };
        assert_eq!(cancel(&[""]), Fate::Either);
        assert_eq!(cancel(&["TIMER_CHANGE_DONE"]), Fate::Cancelled);
        assert_eq!(cancel(&["", "TIMER_CHANGE_ALREADY_CANCELLED"]), Fate::Cancelled);
        assert_eq!(cancel(&["TIMER_CHANGE_TOO_LATE"]), Fate::Fires);
        assert_eq!(cancel(&["TIMER_CHANGE_NOT_FOUND"]), Fate::Fires);
        assert_eq!(cancel(&["", "TIMER_CHANGE_NOT_FOUND"]), Fate::Either);
    }

    #[test]
    fn a_move_counts_when_it_was_answered_as_done() {
        let moved = |answer: Option<&'static str>| {
            read(move |journal, _| {
                journal.added("a").unwrap();
                journal.moves("a", 5_000).unwrap();
                if let Some(answer) = answer {
                    journal.moved("a", answer).unwrap();
                }
            })
            .not_before_ms
        };
        assert_eq!(moved(None), 1_000);
        assert_eq!(moved(Some("TIMER_CHANGE_TOO_LATE")), 1_000);
        assert_eq!(moved(Some("TIMER_CHANGE_DONE")), 5_000);
    }
}
