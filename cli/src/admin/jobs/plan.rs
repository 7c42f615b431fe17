//! `windfall jobs plan`: a plan of millions of lines, each of which becomes a timer of a target.
//!
//! Lines go out in batches, several at a time, and are acknowledged in any order. What is noted in the progress file is how far
//! *all* lines are acknowledged: an upload that is broken off goes on there. The few batches behind it go out again, under the
//! same keys, so that nothing is added twice while it waits.

use super::super::ask::Server;
use super::super::now_ms;
use super::super::schedule::times::time_ms;
use crate::outcome::Outcome;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinSet;
use windfall_client::{CallError, TimersClient};
use windfall_proto::v1::{AddTimersRequest, NewTimer, add_timer_result};

/// Timers of one call.
const BATCH: usize = 1_000;
/// Bytes of payloads of one call, and of one line, at most.
const BATCH_BYTES: usize = 2 << 20;
const LINE_MAX_BYTES: u64 = 1 << 20;
/// Wrong lines that are told one by one.
const TOLD_MAX: u64 = 20;
/// Between two attempts of a batch that the scheduler did not take: the first wait, which doubles, and the longest one.
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A line whose time has passed by so much when its upload begins is left out.
const PAST_MS: u64 = 60_000;

/// `windfall jobs plan …`
#[derive(Debug, Clone, clap::Args)]
pub struct PlanArgs {
    /// The plan: one JSON object a line, `{"time": …, "payload": …, "user": …, "id": …}`; only the time must be there
    file: PathBuf,
    /// The target that gets the payloads
    #[arg(long)]
    target: String,
    /// The plan's name, which begins every key [default: the name of the file without its extension]
    #[arg(long)]
    name: Option<String>,
    /// Calls of 1,000 lines at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    calls: u16,
    /// Send lines too whose time has passed; they fire at once [default: they are left out]
    #[arg(long)]
    send_past: bool,
    /// Begin at the first line, whatever was uploaded before
    #[arg(long)]
    restart: bool,
}

/// A line of a plan.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    time: Value,
    #[serde(default)]
    payload: Option<Value>,
    #[serde(default)]
    user: Option<Value>,
    #[serde(default)]
    id: Option<Value>,
}

/// What is noted of an upload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    /// The plan's name and target: an upload of another one begins anew.
    plan: String,
    /// The size of the file, by which a plan that was changed is recognised.
    file_bytes: u64,
    /// Bytes and lines that are done.
    bytes: u64,
    lines: u64,
    counts: Counts,
}

/// What became of lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    added: u64,
    existed: u64,
    past: u64,
    refused: u64,
}

/// Lines that go together, and where the file goes on behind them.
struct Batch {
    number: u64,
    timers: Vec<(u64, NewTimer)>,
    counts: Counts,
    bytes_end: u64,
    lines_end: u64,
}

/// Runs the command.
pub fn run(args: &PlanArgs, server: &Server, tenant: &str, json: bool) -> Result<Outcome> {
    let options = server.options()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = TimersClient::open(options)?;
        let progress = upload(&client, args, tenant).await?;
        let Counts { added, existed, past, refused } = progress.counts;
        let lines = progress.lines;
        match json {
            true => println!(
                "{:#}",
                json!({"lines": lines, "added": added, "existed": existed, "past": past, "refused": refused})
            ),
            false => println!(
                "{lines} lines: {added} were added, {existed} waited already, {past} were left out because their time has passed, \
                 {refused} were refused"
            ),
        }
        Ok(if refused == 0 && past == 0 { Outcome::Clean } else { Outcome::Damage })
    })
}

async fn upload(client: &TimersClient, args: &PlanArgs, tenant: &str) -> Result<Progress> {
    let mut plan = Plan::open(args)?;
    let note = progress_file(&args.file);
    let bar = ProgressBar::new(plan.progress.file_bytes).with_style(
        ProgressStyle::with_template("{bar:40} {percent}%  {msg}  {eta} left")
            .context("the bar's own text")?,
    );
    let mut done = plan.progress.clone();
    let (mut calls, mut behind) = (JoinSet::new(), BTreeMap::<u64, Batch>::new());
    let (mut next_read, mut next_done, mut is_end) = (0, 0, false);
    loop {
        while !is_end && calls.len() + behind.len() < usize::from(args.calls) {
            match plan.next_batch(next_read, now_ms())? {
                Some(batch) => {
                    next_read += 1;
                    calls.spawn(send(client.clone(), tenant.to_owned(), batch));
                }
                None => is_end = true,
            }
        }
        let Some(sent) = calls.join_next().await else { break };
        let batch = sent.context("a call has panicked")??;
        behind.insert(batch.number, batch);
        // What is acknowledged without a gap is done.
        while let Some(batch) = behind.remove(&next_done) {
            next_done += 1;
            done = done.after(&batch);
            write_progress(&note, &done)?;
        }
        bar.set_position(done.bytes);
        bar.set_message(format!("{} lines", done.lines));
    }
    bar.finish_and_clear();
    Ok(done)
}

/// A plan that is being read.
struct Plan {
    file: BufReader<File>,
    progress: Progress,
    name: String,
    target: String,
    send_past: bool,
    told: u64,
    /// Bytes and lines that were read.
    bytes: u64,
    lines: u64,
}

impl Plan {
    fn open(args: &PlanArgs) -> Result<Self> {
        let path = &args.file;
        let unread = || format!("the plan {} cannot be read", path.display());
        let mut file = File::open(path).with_context(unread)?;
        let file_bytes = file.metadata().with_context(unread)?.len();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let name = args.name.as_deref().or(stem).context("the plan has no name: give --name")?.to_owned();
        if name.is_empty() || name.len() > 100 || name.contains('/') {
            bail!("`{name}` is no name of a plan, which has 1 to 100 bytes and no `/`: give --name");
        }
        let fresh =
            Progress { plan: format!("{name} → {}", args.target), file_bytes, ..Progress::default() };
        let progress = match args.restart {
            true => fresh,
            false => read_progress(&progress_file(path), fresh)?,
        };
        if progress.bytes > 0 {
            let done = if progress.bytes < file_bytes {
                "it goes on behind them"
            } else {
                "nothing is left to upload"
            };
            eprintln!(
                "windfall: {} lines of {} were uploaded before: {done} (--restart begins at the first line)",
                progress.lines,
                path.display()
            );
        }
        file.seek(SeekFrom::Start(progress.bytes)).with_context(unread)?;
        let (bytes, lines) = (progress.bytes, progress.lines);
        let (target, send_past, file) = (args.target.clone(), args.send_past, BufReader::new(file));
        Ok(Self { file, progress, name, target, send_past, told: 0, bytes, lines })
    }

    /// The next lines that go together; `None` at the end of the file.
    fn next_batch(&mut self, number: u64, now_ms: u64) -> Result<Option<Batch>> {
        let (mut timers, mut counts, mut size) = (Vec::new(), Counts::default(), 0);
        let begin = self.lines;
        while timers.len() < BATCH && size < BATCH_BYTES && self.lines < begin + 10 * BATCH as u64 {
            let mut line = Vec::new();
            let read = self.file.by_ref().take(LINE_MAX_BYTES + 1).read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            self.bytes += read as u64;
            self.lines += 1;
            if read as u64 > LINE_MAX_BYTES {
                bail!("line {} has more than {LINE_MAX_BYTES} bytes, which is no line of a plan", self.lines);
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match timer_of(&line, &self.name, self.lines, &self.target) {
                Ok(timer) if !self.send_past && timer.due_ms.saturating_add(PAST_MS) < now_ms => {
                    counts.past += 1
                }
                Ok(timer) => {
                    size += timer.payload.len();
                    timers.push((self.lines, timer));
                }
                Err(why) => {
                    counts.refused += 1;
                    self.told += 1;
                    if self.told <= TOLD_MAX {
                        eprintln!("windfall: line {}: {why:#}", self.lines);
                    }
                }
            }
        }
        let is_end = self.lines == begin;
        Ok((!is_end).then_some(Batch {
            number,
            timers,
            counts,
            bytes_end: self.bytes,
            lines_end: self.lines,
        }))
    }
}

impl Progress {
    fn after(self, batch: &Batch) -> Self {
        let Counts { added, existed, past, refused } = self.counts;
        let counts = Counts {
            added: added + batch.counts.added,
            existed: existed + batch.counts.existed,
            past: past + batch.counts.past,
            refused: refused + batch.counts.refused,
        };
        Self { bytes: batch.bytes_end, lines: batch.lines_end, counts, ..self }
    }
}

fn timer_of(line: &[u8], plan: &str, number: u64, target: &str) -> Result<NewTimer> {
    let line: Line = serde_json::from_slice(line).context("it is no object with a time")?;
    let due_ms = match &line.time {
        Value::Number(ms) => ms.as_u64().context("`time` is no Unix milliseconds")?,
        Value::String(text) => time_ms(text).map_err(anyhow::Error::msg)?,
        _ => bail!("`time` is neither a text such as 2027-02-06T12:00:00Z nor Unix milliseconds"),
    };
    let id = match line.id {
        None => number.to_string(),
        Some(Value::String(id)) if !id.is_empty() => id,
        Some(Value::Number(id)) => id.to_string(),
        Some(_) => bail!("`id` is neither a text nor a number"),
    };
    let payload = match (line.payload, line.user) {
        (Some(Value::String(text)), _) => text.into_bytes(),
        (Some(Value::Object(mut fields)), Some(user)) => {
            fields.entry("user").or_insert(user);
            serde_json::to_vec(&fields)?
        }
        (Some(other), _) => serde_json::to_vec(&other)?,
        (None, Some(user)) => serde_json::to_vec(&json!({"user": user}))?,
        (None, None) => Vec::new(),
    };
    let key = format!("plan/{plan}/{id}");
    Ok(NewTimer { target: target.to_owned(), due_ms, key, payload })
}

/// Sends lines until each is added, waits already, or is refused for good.
async fn send(client: TimersClient, tenant: String, mut batch: Batch) -> Result<Batch> {
    let mut left = std::mem::take(&mut batch.timers);
    let mut wait = WAIT_FIRST;
    while !left.is_empty() {
        let timers = left.iter().map(|(_, timer)| timer.clone()).collect();
        let request = AddTimersRequest { tenant: tenant.clone(), timers, ..AddTimersRequest::default() };
        match client.add_batch(request).await {
            Ok(results) => {
                let before = left.len();
                left = settle(left, results, &mut batch.counts);
                if left.len() < before {
                    wait = WAIT_FIRST;
                }
            }
            // Each has a key, so what was added before an answer was lost is not added again.
            Err(CallError::Busy { .. } | CallError::Unanswered(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if !left.is_empty() {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
    }
    Ok(batch)
}

/// Counts what is decided, and returns what has to be sent again.
fn settle(
    sent: Vec<(u64, NewTimer)>,
    results: Vec<windfall_proto::v1::AddTimerResult>,
    counts: &mut Counts,
) -> Vec<(u64, NewTimer)> {
    const FOR_GOOD: [i32; 5] = [3, 5, 7, 9, 12];
    let mut left = Vec::new();
    for ((line, timer), result) in
        sent.into_iter().zip(results.into_iter().map(Some).chain(std::iter::repeat(None)))
    {
        match result.and_then(|result| result.result) {
            Some(add_timer_result::Result::Added(added)) if added.existed => counts.existed += 1,
            Some(add_timer_result::Result::Added(_)) => counts.added += 1,
            Some(add_timer_result::Result::Failure(failure)) if FOR_GOOD.contains(&failure.code) => {
                counts.refused += 1;
                eprintln!("windfall: line {line}: {}", failure.message);
            }
            // A quota, or a store that is away.
            Some(add_timer_result::Result::Failure(_)) | None => left.push((line, timer)),
        }
    }
    left
}

fn progress_file(plan: &Path) -> PathBuf {
    let mut name = plan.as_os_str().to_owned();
    name.push(".progress");
    name.into()
}

/// What was noted, if it is of the same plan.
fn read_progress(path: &Path, fresh: Progress) -> Result<Progress> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(fresh),
        Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
    };
    let begin_anew =
        || format!("{} is of another plan, or damaged: delete it, or give --restart", path.display());
    let noted: Progress = serde_json::from_str(&text).with_context(begin_anew)?;
    if noted.plan != fresh.plan || noted.file_bytes < noted.bytes || fresh.file_bytes < noted.file_bytes {
        bail!("{}", begin_anew());
    }
    Ok(Progress { file_bytes: fresh.file_bytes, ..noted })
}

/// Replaces the file as a whole, so that a process that dies meanwhile leaves the one before.
fn write_progress(path: &Path, progress: &Progress) -> Result<()> {
    let unwritten = || format!("how far the upload is cannot be noted in {}", path.display());
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, serde_json::to_vec(progress)?).with_context(unwritten)?;
    std::fs::rename(&new, path).with_context(unwritten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_proto::v1::{AddTimerReply, AddTimerResult, TimerFailure};

    fn args(file: &Path) -> PlanArgs {
        PlanArgs {
            file: file.to_owned(),
            target: "hook".into(),
            name: None,
            calls: 8,
            send_past: false,
            restart: false,
        }
    }

    #[test]
    fn a_line_becomes_a_timer_with_a_key_of_its_own() {
        let timer = |line: &str| timer_of(line.as_bytes(), "day", 7, "hook");
        let full =
            timer(r#"{"user": 42, "time": "2027-02-06T12:00:00Z", "payload": {"sale": 1}, "id": "a"}"#)
                .unwrap();
        assert_eq!((full.key.as_str(), full.target.as_str()), ("plan/day/a", "hook"));
        assert_eq!(full.due_ms, 1_801_915_200_000);
        assert_eq!(serde_json::from_slice::<Value>(&full.payload).unwrap(), json!({"sale": 1, "user": 42}));
        let plain = timer(r#"{"time": 5, "payload": "hang up"}"#).unwrap();
        assert_eq!(
            (plain.key.as_str(), plain.due_ms, &plain.payload[..]),
            ("plan/day/7", 5, &b"hang up"[..])
        );
        assert_eq!(timer(r#"{"time": 5, "user": 42}"#).unwrap().payload, br#"{"user":42}"#);
        for wrong in [
            "",
            "{}",
            "[]",
            r#"{"time": "soon"}"#,
            r#"{"time": -1}"#,
            r#"{"time": 5, "when": 6}"#,
            r#"{"time": 5, "id": []}"#,
        ] {
            assert!(timer(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_upload_goes_on_where_all_lines_are_acknowledged_and_bad_lines_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("day.ndjson");
        let far = r#"{"time": "2100-01-01T00:00:00Z"}"#;
        std::fs::write(&file, format!("{far}\n\nno line\n{}\n{far}", r#"{"time": 5}"#)).unwrap();
        let mut plan = Plan::open(&args(&file)).unwrap();
        let batch = plan.next_batch(0, 10_000_000).unwrap().unwrap();
        assert_eq!(batch.timers.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 5]);
        assert_eq!((batch.counts.past, batch.counts.refused), (1, 1));
        assert!(plan.next_batch(1, 0).unwrap().is_none());
        let done = plan.progress.clone().after(&batch);
        assert_eq!(done.bytes, std::fs::metadata(&file).unwrap().len());
        write_progress(&progress_file(&file), &done).unwrap();
        let mut again = Plan::open(&args(&file)).unwrap();
        assert_eq!((again.progress.lines, again.progress.counts.refused), (5, 1));
        assert!(again.next_batch(0, 0).unwrap().is_none());
        // Of another target it is another plan.
        assert!(Plan::open(&PlanArgs { target: "other".into(), ..args(&file) }).is_err());
        let mut anew = Plan::open(&PlanArgs { restart: true, send_past: true, ..args(&file) }).unwrap();
        assert_eq!(anew.next_batch(0, u64::MAX).unwrap().unwrap().timers.len(), 3);
    }

    #[test]
    fn what_has_no_answer_or_no_room_is_sent_again_and_what_is_wrong_is_not() {
        let timers = (1..=5).map(|line| (line, NewTimer::default())).collect();
        let failure =
            |code| add_timer_result::Result::Failure(TimerFailure { code, ..TimerFailure::default() });
        let added =
            |existed| add_timer_result::Result::Added(AddTimerReply { existed, ..AddTimerReply::default() });
        let results = [added(false), added(true), failure(3), failure(8)]
            .map(|result| AddTimerResult { result: Some(result) });
        let mut counts = Counts::default();
        let left = settle(timers, results.into(), &mut counts);
        assert_eq!(left.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(counts, Counts { added: 1, existed: 1, past: 0, refused: 1 });
    }
}
