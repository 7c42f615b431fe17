//! `windfall salvage`: what waits in salvage files, also in those that dead processes have left, and its replay.

use super::{now_ms, utc};
use crate::outcome::Outcome;
use crate::place;
use crate::services::ServiceOptions;
use crate::wiring::{RequeueToQueues, Work, open_queues};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::block_in_place;
use windfall_consumer::spill_log::{self, EntryId, Inspection, SpillOpenError};
use windfall_consumer::{RequeueOutcome, RequeueRecord, RequeueSink, SpillLog};
use windfall_contract::Clock;
use windfall_proto::event::EventRef;
use windfall_proto::record;

/// Directories below the one that is named are looked into this deep: a volume, its pods, their data, `salvage`.
const DEPTH_MAX: usize = 5;
/// The number of records that are sent at once.
const AT_ONCE: usize = 256;
/// Nothing is appended here, so any limit does that no file reaches.
const MAX_BYTES: u64 = u64::MAX;
/// How long the queues have to say what became of the last records.
const CLOSE: Duration = Duration::from_secs(10);

/// `windfall salvage …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum SalvageCommand {
    /// List the salvage files in a directory and below it: records, events, types, ages, damaged frames
    List {
        /// A data directory, or one that has data directories of many processes in it
        dir: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Send what is in the salvage file of a process that is gone to the queues
    ///
    /// A record leaves the file when a broker has stored it. An order is credited once, so the command can be
    /// interrupted and repeated.
    Replay {
        /// The options file (TOML) that names the brokers and the live rules
        #[arg(long)]
        config: Option<PathBuf>,
        /// The data directory of the process that is gone
        #[arg(long)]
        data: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs it.
pub fn run(command: &SalvageCommand) -> Result<Outcome> {
    match command {
        SalvageCommand::List { dir, json } => list(dir, *json),
        SalvageCommand::Replay { config, data, json } => replay(config.as_deref(), data, *json),
    }
}

fn list(dir: &Path, json: bool) -> Result<Outcome> {
    if !dir.is_dir() {
        bail!("{} is not a directory", dir.display());
    }
    let mut found = Vec::new();
    find(dir, DEPTH_MAX, &mut found)?;
    found.sort();
    let looked: Vec<_> = found.iter().map(|dir| (dir, spill_log::inspect(dir))).collect();
    if json {
        let row = |(dir, looked): &(&PathBuf, Result<Inspection, SpillOpenError>)| match looked {
            Ok(inspection) => to_json(dir, inspection),
            Err(error) => serde_json::json!({"dir": dir, "error": error.to_string()}),
        };
        println!("{}", serde_json::to_string_pretty(&looked.iter().map(row).collect::<Vec<_>>())?);
    } else if looked.is_empty() {
        println!("no salvage file in {} or below it", dir.display());
    } else {
        for (dir, looked) in &looked {
            match looked {
                Ok(inspection) => print(dir, inspection),
                Err(error) => println!("{}: {error}", dir.display()),
            }
        }
    }
    let is_whole = |looked: &Result<Inspection, SpillOpenError>| {
        looked.as_ref().is_ok_and(|own| own.damaged_frames == 0)
    };
    Ok(if looked.iter().all(|(_, looked)| is_whole(looked)) { Outcome::Clean } else { Outcome::Damage })
}

/// Finds the directories that have a salvage file.
fn find(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    let read = || format!("the directory {} cannot be read", dir.display());
    if dir.join("salvage.log").is_file() {
        found.push(dir.to_owned());
    }
    if depth == 0 {
        return Ok(());
    }
    for entry in std::fs::read_dir(dir).with_context(read)? {
        let entry = entry.with_context(read)?;
        // A link may lead back here.
        if entry.file_type().with_context(read)?.is_dir() {
            find(&entry.path(), depth - 1, found)?;
        }
    }
    Ok(())
}

/// The totals of one bonus type's records.
#[derive(Default)]
struct OfType {
    records: u64,
    events: u64,
    /// When the first and the last of their events were sent for the first time, Unix milliseconds.
    sent_ms: Option<(i64, i64)>,
}

/// The totals by bonus type; a record that was malformed when it came has the type `(malformed)`.
fn by_type(records: &[RequeueRecord]) -> BTreeMap<String, OfType> {
    let mut types: BTreeMap<String, OfType> = BTreeMap::new();
    for record in records {
        let name = if record.bonus_type.is_empty() { "(malformed)" } else { &record.bonus_type };
        let own = types.entry(name.to_owned()).or_default();
        own.records += 1;
        own.events += u64::from(record.events);
        for sent_ms in sent_ms(&record.payload) {
            let (first, last) = own.sent_ms.unwrap_or((sent_ms, sent_ms));
            own.sent_ms = Some((first.min(sent_ms), last.max(sent_ms)));
        }
    }
    types
}

/// The time at which the events of a record were first sent.
fn sent_ms(payload: &[u8]) -> Vec<i64> {
    let Ok((_, events)) = record::split(payload) else { return Vec::new() };
    let sent = events.filter_map(|range| EventRef::parse(&payload[range.ok()?]).ok());
    sent.map(|event| event.first_sent_ms).filter(|sent_ms| *sent_ms > 0).collect()
}

fn to_json(dir: &Path, own: &Inspection) -> serde_json::Value {
    let types = by_type(&own.records).into_iter().map(|(name, of_type)| {
        let row = serde_json::json!({
            "records": of_type.records,
            "events": of_type.events,
            "first_sent_ms": of_type.sent_ms.map(|sent| sent.0),
            "last_sent_ms": of_type.sent_ms.map(|sent| sent.1),
        });
        (name, row)
    });
    serde_json::json!({
        "dir": dir,
        "is_in_use": own.is_in_use,
        "records": own.records.len(),
        "events": own.records.iter().map(|record| u64::from(record.events)).sum::<u64>(),
        "types": types.collect::<serde_json::Map<_, _>>(),
        "damaged_frames": own.damaged_frames,
        "damaged_bytes": own.damaged_bytes,
        "set_aside_bytes": own.set_aside_bytes,
    })
}

fn print(dir: &Path, own: &Inspection) {
    let holder = if own.is_in_use { "a running process has it" } else { "no process has it" };
    println!("{}: {} records, {holder}", dir.display(), own.records.len());
    for (name, of_type) in by_type(&own.records) {
        let ages = of_type.sent_ms.map_or_else(String::new, |(first, last)| {
            let age_s = now_ms().saturating_sub(first.unsigned_abs()) / 1_000;
            let (first, last) = (utc(first.unsigned_abs()), utc(last.unsigned_abs()));
            format!(", sent from {first} to {last}, the oldest {age_s} s ago")
        });
        println!("  {name}: {} records, {} events{ages}", of_type.records, of_type.events);
    }
    if own.damaged_frames > 0 {
        println!("  damaged: {} frames of {} bytes in all", own.damaged_frames, own.damaged_bytes);
    }
    if own.set_aside_bytes > 0 {
        println!("  set aside in salvage.damaged earlier: {} bytes", own.set_aside_bytes);
    }
}

/// The result of a replay.
#[derive(Debug, Default)]
struct Replayed {
    records: u64,
    events: u64,
    refused: u64,
    damaged: u64,
}

fn replay(config: Option<&Path>, data: &Path, json: bool) -> Result<Outcome> {
    let dir = place::salvage(data);
    if !dir.join("salvage.log").is_file() {
        bail!("{} has no salvage file", dir.display());
    }
    // First of all: nothing is opened beside a process that runs.
    let log = SpillLog::open(&dir, MAX_BYTES).context("the salvage file cannot be replayed")?;
    let options = ServiceOptions::load(config, Some(data.to_owned()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let replayed = runtime.block_on(send_all(&options, Arc::new(log)))?;
    if json {
        let row = serde_json::json!({
            "dir": dir, "records": replayed.records, "events": replayed.events,
            "refused": replayed.refused, "damaged_frames": replayed.damaged,
        });
        println!("{}", serde_json::to_string_pretty(&row)?);
    } else {
        println!("{} records of {} events were sent to the queues", replayed.records, replayed.events);
        if replayed.refused > 0 {
            println!("{} records stay in the file: no queue took them; replay it again", replayed.refused);
        }
        if replayed.damaged > 0 {
            println!("{} damaged frames were set aside in salvage.damaged", replayed.damaged);
        }
    }
    let is_done = replayed.refused == 0 && replayed.damaged == 0;
    Ok(if is_done { Outcome::Clean } else { Outcome::Damage })
}

async fn send_all(options: &ServiceOptions, log: Arc<SpillLog>) -> Result<Replayed> {
    let clock = Clock::system();
    let known = options.brokers.keys().cloned().collect();
    let copy = place::rules_copy(&options.data);
    let (rules, follower) = block_in_place(|| options.rules.follow(&options.data, copy, known, &clock))?;
    let signing = options.open_signing(Work { consumes: true, ..Work::default() }, &rules.current())?;
    let signer = signing.as_ref().map(|signing| signing.keys().signer.clone());
    let brokers = options.open_brokers()?;
    let fanout = open_queues(&rules, &brokers, &clock)?;
    let sink = RequeueToQueues::new(Arc::clone(&fanout), rules, signer);
    let sent = send(&sink, &log).await;
    tokio::task::spawn_blocking(move || fanout.close(CLOSE)).await?;
    follower.close();
    let mut replayed = sent?;
    replayed.damaged = log.stats().damaged;
    Ok(replayed)
}

/// Sends each record once; a record that no queue takes stays.
async fn send(sink: &RequeueToQueues, log: &Arc<SpillLog>) -> Result<Replayed> {
    let mut replayed = Replayed::default();
    let mut refused = Vec::new();
    loop {
        let taken = block_in_place(|| log.take(AT_ONCE))?;
        if taken.is_empty() {
            break;
        }
        for (entry, events, outcome) in offer(sink, taken).await {
            match outcome {
                RequeueOutcome::Stored => {
                    replayed.records += 1;
                    replayed.events += u64::from(events);
                    block_in_place(|| log.settle(entry, outcome))?;
                }
                // Kept as taken until the end, so that each is offered once.
                RequeueOutcome::Refused => refused.push(entry),
            }
        }
        // Whoever kills us here leaves no more than these to be sent twice.
        block_in_place(|| log.forget_stored())?;
    }
    replayed.refused = log.pending() as u64;
    for entry in refused {
        block_in_place(|| log.settle(entry, RequeueOutcome::Refused))?;
    }
    Ok(replayed)
}

async fn offer(
    sink: &RequeueToQueues,
    taken: Vec<(EntryId, RequeueRecord)>,
) -> Vec<(EntryId, u32, RequeueOutcome)> {
    let many = taken.len();
    let (told, mut outcomes) = mpsc::channel(many);
    for (entry, record) in taken {
        let (told, events) = (told.clone(), record.events);
        // There is room for each answer. One that never comes closes the channel with its sender: it is refused.
        let done = move |outcome| {
            told.try_send((entry, events, outcome)).ok();
        };
        sink.requeue(record, Box::new(done));
    }
    drop(told);
    let mut all = Vec::with_capacity(many);
    while let Some(outcome) = outcomes.recv().await {
        all.push(outcome);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::{BrokerAt, RulesAt};
    use crate::services::dev;
    use crate::wiring::GROUP;
    use windfall_proto::record::Head;

    /// A data directory with rules, as a process left it that is gone.
    fn left_behind(records: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        std::fs::create_dir_all(place::rules(data).parent().unwrap()).unwrap();
        RulesAt::Data.store(data, None).unwrap().set(dev::RULES, "test", "first", 1).unwrap();
        let log = SpillLog::open(&place::salvage(data), 1 << 20).unwrap();
        let records: Vec<_> = (0..records).map(record).collect();
        log.append(&records).unwrap();
        folder
    }

    fn record(n: u32) -> RequeueRecord {
        let mut event = Vec::new();
        let trade_no = format!("order-{n}.");
        EventRef {
            trade_no: &trade_no,
            user_id: 7,
            activity: "spring",
            scene: "rain",
            bonus_type: "cash",
            amount: 1,
            first_sent_ms: 1_800_000_000_000 + i64::from(n),
            ..EventRef::default()
        }
        .encode([], &mut event);
        let head = Head { bonus_type: "cash", attempt: 1, failures: 0, not_before_ms: 0, count: 1 };
        RequeueRecord {
            bonus_type: "cash".into(),
            activity: "spring".into(),
            scene: "rain".into(),
            first_user_id: 7,
            key: format!("{trade_no}1").into_bytes(),
            payload: record::build(head, [event.as_slice()]),
            events: 1,
        }
    }

    fn records_in_queues(data: &Path) -> u64 {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let of = |name: &str| BrokerAt::Embedded.open(name, &place::broker(data, name)).unwrap();
        let lag = |name: &'static str, topic: &'static str| {
            let broker = of(name);
            async move { broker.lag(topic, GROUP).await.unwrap().records() }
        };
        runtime.block_on(async { lag("a", "cash-a").await + lag("b", "cash-b").await })
    }

    #[test]
    fn what_a_dead_process_has_left_is_sent_once_and_a_second_replay_finds_nothing() {
        let folder = left_behind(600);
        let data = folder.path();
        let replayed = replay(None, data, true).unwrap();
        assert_eq!(replayed, Outcome::Clean);
        assert!(spill_log::inspect(&place::salvage(data)).unwrap().records.is_empty());
        assert_eq!(replay(None, data, false).unwrap(), Outcome::Clean);
        assert_eq!(records_in_queues(data), 600);
    }

    #[test]
    fn a_file_that_a_process_holds_is_refused_and_not_touched() {
        let folder = left_behind(3);
        let data = folder.path();
        let held = SpillLog::open(&place::salvage(data), 1 << 20).unwrap();
        let refused = format!("{:#}", replay(None, data, false).unwrap_err());
        assert!(refused.contains("is in use by another process"), "{refused}");
        assert_eq!(held.waiting(), 3);
        assert!(!place::broker(data, "a").exists(), "nothing was opened");
        let missing = tempfile::tempdir().unwrap();
        assert!(replay(None, missing.path(), false).is_err(), "there is nothing to replay");
    }

    #[test]
    fn the_list_finds_the_files_of_many_processes_and_tells_damage() {
        let volume = tempfile::tempdir().unwrap();
        for (pod, records) in [("pod-1", 2), ("pod-2", 5)] {
            let folder = left_behind(records);
            let salvage = volume.path().join(pod).join("salvage");
            std::fs::create_dir_all(&salvage).unwrap();
            std::fs::copy(place::salvage(folder.path()).join("salvage.log"), salvage.join("salvage.log"))
                .unwrap();
        }
        let mut found = Vec::new();
        find(volume.path(), DEPTH_MAX, &mut found).unwrap();
        found.sort();
        assert_eq!(found, ["pod-1", "pod-2"].map(|pod| volume.path().join(pod).join("salvage")));
        assert_eq!(list(volume.path(), true).unwrap(), Outcome::Clean);
        let own = spill_log::inspect(&found[1]).unwrap();
        let row = to_json(&found[1], &own);
        assert_eq!((row["records"].as_u64(), row["events"].as_u64()), (Some(5), Some(5)));
        assert_eq!(row["types"]["cash"]["first_sent_ms"], 1_800_000_000_000_i64);
        assert_eq!(row["types"]["cash"]["last_sent_ms"], 1_800_000_000_004_i64);

        let path = found[0].join("salvage.log");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[30] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(list(volume.path(), false).unwrap(), Outcome::Damage);
        let row = to_json(&found[0], &spill_log::inspect(&found[0]).unwrap());
        assert_eq!((row["records"].as_u64(), row["damaged_frames"].as_u64()), (Some(1), Some(1)));
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "a list changes nothing");
        assert!(list(&volume.path().join("nowhere"), false).is_err());
    }
}
