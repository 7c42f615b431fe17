//! The upload of a payer's statement. Its name is a hash of what it says, so a command that is given the same file again finds what
//! was uploaded before, and goes on where that ended.

use super::lines::{self, BadStatement};
use super::payer::Progress;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, Read};
use windfall_client::{AuditsClient, CallError};
use windfall_proto::v1::{
    AppendPayerLinesRequest, BeginPayerStatementRequest, PayerLine, PayerStatement, PayerStatementState,
};

/// The lines of a call.
const BATCH: usize = 2_000;

/// The name of an upload, made of all that its statement says.
#[derive(Clone)]
pub struct UploadName(Sha256);

impl UploadName {
    /// Begins with what the statement is about. `again` tells uploads of one file from each other.
    pub fn new(payer: &str, period_ms: [i64; 2], margin_s: u32, again: u32) -> Self {
        let mut own = Self(Sha256::new());
        own.field(payer);
        for number in [period_ms[0], period_ms[1], margin_s.into(), again.into()] {
            own.field(&number.to_string());
        }
        own
    }

    /// No field has a line break, so two statements are never the same text.
    fn field(&mut self, text: &str) {
        self.0.update(text.as_bytes());
        self.0.update(b"\n");
    }

    /// Adds a line.
    pub fn add(&mut self, line: &PayerLine) {
        let status = if line.is_returned { "returned" } else { "paid" };
        let amount = line.amount.to_string();
        for text in [line.key.as_str(), line.bonus_type.as_str(), amount.as_str(), status] {
            self.field(text);
        }
    }

    /// The name: 64 hexadecimal digits, which is as long as a name may be.
    pub fn text(self) -> String {
        let hash: [u8; 32] = self.0.finalize().into();
        let half = |bytes: Option<&[u8; 16]>| u128::from_be_bytes(bytes.copied().unwrap_or_default());
        format!("{:032x}{:032x}", half(hash.first_chunk()), half(hash.last_chunk()))
    }
}

/// Why the file was not read to its end the second time.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error(transparent)]
    Bad(#[from] BadStatement),
    /// The upload has failed, and says why.
    #[error("the upload was broken off")]
    NobodyWaits,
    /// The upload has the name of what the file said before.
    #[error(
        "the file has changed while it was read: repeat the command when nobody writes to the file; if it then has its first \
         content again, add --again with a number that was not used yet"
    )]
    Changed,
}

/// Reads a statement again and hands its lines over in batches, the last one only if it says what it said before. `unread` is the
/// beginning of its name.
fn read_again(
    source: impl Read,
    mut unread: UploadName,
    expected: &str,
    mut hand_over: impl FnMut(Vec<PayerLine>) -> Result<(), Unread>,
) -> Result<(), Unread> {
    let mut batch = Vec::with_capacity(BATCH);
    lines::read(source, |line| {
        if batch.len() == BATCH {
            hand_over(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)))?;
        }
        unread.add(&line);
        batch.push(line);
        Ok::<_, Unread>(())
    })?;
    if unread.text() != expected {
        return Err(Unread::Changed);
    }
    if batch.is_empty() { Ok(()) } else { hand_over(batch) }
}

/// Begins the upload, or finds it, and sends the lines that are not there. Returns the statement as it was found, with the lines
/// and the state of that moment. The file was read before, and `unread` is the name with which that began: one that says something
/// else now is not uploaded to its end, and so never compared.
pub async fn upload(
    client: &AuditsClient,
    begin: &BeginPayerStatementRequest,
    unread: UploadName,
    source: File,
    progress: &mut Progress,
) -> Result<PayerStatement> {
    let found =
        client.begin_statement(begin.clone()).await.context("the auditor does not take the statement")?;
    if found.state() != PayerStatementState::Uploading {
        return Ok(found);
    }
    // The reader blocks, and hands batches over as fast as they are sent.
    let (batches, mut ready) = tokio::sync::mpsc::channel::<Vec<PayerLine>>(2);
    let expected = begin.upload.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let hand_over = |batch| batches.blocking_send(batch).map_err(|_| Unread::NobodyWaits);
        read_again(BufReader::new(source), unread, &expected, hand_over)
    });
    let mut appending = Appending { client, begin, statement: found.id, next: found.lines + 1 };
    let mut first = 1;
    while let Some(batch) = ready.recv().await {
        appending.append(first, &batch).await.context("the upload was broken off")?;
        first += u64::try_from(batch.len()).unwrap_or(u64::MAX);
        progress.tell("uploaded", first - 1);
    }
    reading.await.context("the statement cannot be read again")??;
    Ok(found)
}

/// An upload that is going on.
struct Appending<'a> {
    client: &'a AuditsClient,
    begin: &'a BeginPayerStatementRequest,
    statement: i64,
    /// The line that the auditor awaits.
    next: u64,
}

impl Appending<'_> {
    /// Sends what is not there of a batch that begins with this line.
    async fn append(&mut self, first: u64, batch: &[PayerLine]) -> Result<(), CallError> {
        loop {
            let lines = rest(batch, first, self.next);
            if lines.is_empty() {
                return Ok(());
            }
            let request = AppendPayerLinesRequest {
                statement: self.statement,
                first_line: self.next.max(first),
                lines: lines.to_vec(),
            };
            match self.client.append_lines(request).await {
                Ok(reply) => {
                    self.next = reply.next_line;
                    return Ok(());
                }
                // Another command may upload the same statement, so another line is awaited by now, or none. Which, the statement
                // says; where it is this one all the same, the lines were refused for another reason.
                Err(CallError::Refused(why)) => {
                    let awaited = self.client.begin_statement(self.begin.clone()).await?.lines + 1;
                    if awaited == self.next {
                        return Err(CallError::Refused(why));
                    }
                    self.next = awaited;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The lines of a batch that are not there, where it begins with line `first` and line `next` is awaited.
fn rest(batch: &[PayerLine], first: u64, next: u64) -> &[PayerLine] {
    let known = usize::try_from(next.saturating_sub(first)).unwrap_or(usize::MAX);
    batch.get(known..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &str, amount: i64) -> PayerLine {
        PayerLine { key: key.into(), bonus_type: "cash".into(), amount, is_returned: false }
    }

    #[test]
    fn the_same_statement_has_the_same_name_and_any_other_another_one() {
        let name = |payer: &str, period_ms, margin_s, again, lines: &[PayerLine]| {
            let mut name = UploadName::new(payer, period_ms, margin_s, again);
            lines.iter().for_each(|line| name.add(line));
            name.text()
        };
        let (period_ms, lines) = ([1, 2], [line("a", 1), line("b", 2)]);
        let own = name("bank", period_ms, 3_600, 0, &lines);
        assert_eq!(own, name("bank", period_ms, 3_600, 0, &lines));
        assert!(own.len() == 64 && own.bytes().all(|byte| byte.is_ascii_hexdigit()), "{own}");
        let returned = PayerLine { is_returned: true, ..line("b", 2) };
        let others = [
            name("shop", period_ms, 3_600, 0, &lines),
            name("bank", [1, 3], 3_600, 0, &lines),
            name("bank", period_ms, 3_601, 0, &lines),
            name("bank", period_ms, 3_600, 1, &lines),
            name("bank", period_ms, 3_600, 0, &lines[..1]),
            name("bank", period_ms, 3_600, 0, &[line("b", 2), line("a", 1)]),
            name("bank", period_ms, 3_600, 0, &[line("a", 1), returned]),
        ];
        let different: std::collections::BTreeSet<&String> = others.iter().chain([&own]).collect();
        assert_eq!(different.len(), others.len() + 1);
    }

    #[test]
    fn of_a_file_that_has_changed_since_it_was_read_the_last_lines_are_not_sent() {
        let unread = || UploadName::new("bank", [1, 2], 3_600, 0);
        let mut name = unread();
        let text = |last: i64| {
            let lines: String = (0..BATCH).map(|nth| format!("k{nth},cash,1\n")).collect();
            format!("key,type,amount\n{lines}last,cash,{last}\n")
        };
        lines::read(text(7).as_bytes(), |line| {
            name.add(&line);
            Ok::<_, BadStatement>(())
        })
        .unwrap();
        let expected = name.text();
        let sent = |text: String| {
            let mut sent = 0;
            let ended = read_again(text.as_bytes(), unread(), &expected, |batch| {
                sent += batch.len();
                Ok(())
            });
            (sent, ended)
        };
        assert!(matches!(sent(text(7)), (sent, Ok(())) if sent == BATCH + 1));
        assert!(matches!(sent(text(8)), (BATCH, Err(Unread::Changed))));
        let short = format!("key,type,amount\n{}", "k,cash,1\n".repeat(3));
        assert!(matches!(sent(short), (0, Err(Unread::Changed))));
    }

    #[test]
    fn lines_that_are_there_are_not_sent_again() {
        let batch = [line("a", 1), line("b", 2), line("c", 3)];
        // Lines 11 to 13.
        for (next, left) in [(1, 3), (11, 3), (12, 2), (13, 1), (14, 0), (2_000, 0), (u64::MAX, 0)] {
            assert_eq!(rest(&batch, 11, next), &batch[3 - left..], "line {next} is awaited");
        }
    }
}
