//! The rain's own record: what the activity service was about to send, and what it heard back.
//!
//! One text file a rain thread, `rain/NN.log`, written before and after the calls and never by the pipeline:
//!
//! ```text
//! I <number> <user_id> <type> <amount> <trade_no>    an intent, written before the call
//! A <number> ok | <error>                            its answer, written after the call
//! T <number> <token>                                 the token of a sampled user
//! ```
//!
//! Intents are written in groups, before the first call of the group; answers after its last. What a kill
//! swallows is therefore an answer, never an intent.

use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The directory of a data directory that holds the journal.
pub const DIR: &str = "rain";

/// The longest line that is read: a token has at most 1 KiB.
const LINE_MAX_BYTES: u64 = 4_096;

/// Writes one thread's file.
pub struct JournalWriter {
    file: File,
    text: String,
}

/// The reward that one call is about to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// The reward's number in the rain; unique in a data directory.
    pub number: u64,
    /// The user who gets it.
    pub user_id: i64,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount in the smallest unit.
    pub amount: i64,
    /// The order number.
    pub trade_no: String,
}

impl JournalWriter {
    /// Appends to a thread's file. A line that a kill cut in half is taken away first: its call had not begun, or
    /// its answer counts as swallowed.
    pub fn open(data: &Path, thread: usize) -> Result<Self> {
        let dir = data.join(DIR);
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("the directory {} cannot be created", dir.display()))?;
        let path = dir.join(format!("{thread:02}.log"));
        let context = || format!("the rain's journal {} cannot be opened", path.display());
        let mut file =
            OpenOptions::new().create(true).append(true).read(true).open(&path).with_context(context)?;
        let len = file.metadata().with_context(context)?.len();
        let tail_at = len.saturating_sub(LINE_MAX_BYTES);
        file.seek(SeekFrom::Start(tail_at))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail).with_context(context)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        file.set_len(tail_at + u64::try_from(whole)?).with_context(context)?;
        Ok(Self { file, text: String::new() })
    }

    /// Notes an intent; written by the next [`flush`](Self::flush).
    pub fn intent(&mut self, number: u64, user_id: i64, bonus_type: &str, amount: i64, trade_no: &str) {
        writeln!(self.text, "I {number} {user_id} {bonus_type} {amount} {trade_no}").ok();
    }

    /// Notes an answer.
    pub fn answer(&mut self, number: u64, answer: Result<(), &str>) {
        let answer = answer.err().unwrap_or("ok");
        writeln!(self.text, "A {number} {answer}").ok();
    }

    /// Notes a token.
    pub fn token(&mut self, number: u64, token: &str) {
        writeln!(self.text, "T {number} {token}").ok();
    }

    /// Hands what was noted to the system, whence a kill of this process does not take it back.
    pub fn flush(&mut self) -> Result<()> {
        self.file.write_all(self.text.as_bytes()).context("the rain's journal cannot be written")?;
        self.text.clear();
        Ok(())
    }
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// An intent.
    Intent(Intent),
    /// An answer: Ok, or the error's text.
    Answer(u64, Result<(), String>),
    /// A token.
    Token(u64, String),
}

/// Reads every line of a data directory's journal, file by file.
pub fn read(data: &Path, mut each: impl FnMut(Line) -> Result<()>) -> Result<()> {
    for path in files(data)? {
        let file = File::open(&path)
            .with_context(|| format!("the rain's journal {} cannot be read", path.display()))?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut text = String::new();
        let mut at = 0_u64;
        loop {
            text.clear();
            if reader
                .read_line(&mut text)
                .with_context(|| format!("the rain's journal {} cannot be read", path.display()))?
                == 0
            {
                break;
            }
            at += 1;
            // Half a line at the end is what a kill leaves.
            let Some(line) = text.strip_suffix('\n') else { break };
            match parse(line) {
                Some(line) => each(line)?,
                None => bail!("{} line {at} is not a line of a journal: {line:?}", path.display()),
            }
        }
    }
    Ok(())
}

fn files(data: &Path) -> Result<Vec<PathBuf>> {
    let dir = data.join(DIR);
    let entries = std::fs::read_dir(&dir).with_context(|| {
        format!("{} holds no record of a rain ({} cannot be read)", data.display(), dir.display())
    })?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

fn parse(text: &str) -> Option<Line> {
    let (kind, rest) = text.split_once(' ')?;
    match kind {
        "I" => {
            let mut words = rest.split(' ');
            let intent = Intent {
                number: words.next()?.parse().ok()?,
                user_id: words.next()?.parse().ok()?,
                bonus_type: words.next()?.to_owned(),
                amount: words.next()?.parse().ok()?,
                trade_no: words.next()?.to_owned(),
            };
            words.next().is_none().then_some(Line::Intent(intent))
        }
        "A" => {
            let (number, answer) = rest.split_once(' ')?;
            let answer = if answer == "ok" { Ok(()) } else { Err(answer.to_owned()) };
            Some(Line::Answer(number.parse().ok()?, answer))
        }
        "T" => {
            let (number, token) = rest.split_once(' ')?;
            Some(Line::Token(number.parse().ok()?, token.to_owned()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_and_a_cut_line_harms_no_other() {
        let data = tempfile::tempdir().unwrap();
        let mut writer = JournalWriter::open(data.path(), 0).unwrap();
        writer.intent(1, 42, "cash", 888, "spring/rain/1/42");
        writer.flush().unwrap();
        writer.answer(1, Ok(()));
        writer.token(1, "abc");
        writer.flush().unwrap();
        // A kill in the middle of a write.
        writer.text.push_str("I 2 43 cash 8");
        writer.flush().unwrap();
        let mut writer = JournalWriter::open(data.path(), 0).unwrap();
        writer.intent(3, 44, "coin", 5, "spring/rain/3/44");
        writer.answer(3, Err("the spool is full"));
        writer.flush().unwrap();

        let mut lines = Vec::new();
        read(data.path(), |line| {
            lines.push(line);
            Ok(())
        })
        .unwrap();
        let intent = |number, user_id, bonus_type: &str, amount, trade_no: &str| {
            let (bonus_type, trade_no) = (bonus_type.to_owned(), trade_no.to_owned());
            Line::Intent(Intent { number, user_id, bonus_type, amount, trade_no })
        };
        assert_eq!(
            lines,
            [
                intent(1, 42, "cash", 888, "spring/rain/1/42"),
                Line::Answer(1, Ok(())),
                Line::Token(1, "abc".into()),
                intent(3, 44, "coin", 5, "spring/rain/3/44"),
                Line::Answer(3, Err("the spool is full".into())),
            ]
        );
    }

    #[test]
    fn a_damaged_line_is_an_error_not_a_gap() {
        let data = tempfile::tempdir().unwrap();
        let mut writer = JournalWriter::open(data.path(), 0).unwrap();
        writer.text.push_str("X 2 43 cash 8\nA 1 ok\n");
        writer.flush().unwrap();
        assert!(read(data.path(), |_| Ok(())).is_err());
    }
}
