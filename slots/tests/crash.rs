//! The embedded slot store is killed while it writes: whatever it had acknowledged is there when it is opened again, and
//! nothing is there by half. The killed process is this program, started again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::due::{
    Added, Change, Changed, FinishBatch, NewRecord, Route, Shard, SlotMinute, SlotStore, TaskAt, TaskId,
    TaskKey, Waiting,
};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

const DIR: &str = "WINDFALL_SLOTS_CRASH_DIR";
const NOW_MS: u64 = 1_800_000_030_000;
const ROUNDS: u64 = 12;
const BATCH: u64 = 40;

fn open(dir: &Path) -> Arc<EmbeddedSlots> {
    // Small memtables, so that tables are written and merged all the time.
    let options =
        EmbeddedSlotsOptions { shards: 16, memtable_bytes: 1 << 20, ..EmbeddedSlotsOptions::default() };
    EmbeddedSlots::open(dir, &options, Clock::from_unix_ms(|| NOW_MS)).unwrap()
}

/// Adds, cancels, finishes and drops without end, and says so after each answer.
async fn write_until_killed(store: &EmbeddedSlots) {
    let say = |what: &str, ids: &[TaskId]| {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let mut out = std::io::stdout().lock();
        writeln!(out, "{what} {}", ids.join(" ")).unwrap();
        out.flush().unwrap();
    };
    let lease = store.acquire(Shard(2), "one", 60_000).await.unwrap().unwrap();
    for round in 0..u64::MAX {
        let key = |at: u64| {
            let names = (0_u32..).map(|one| format!("{}-{round}-{at}-{one}", lease.epoch));
            let mut keys = names.map(|name| TaskKey::new(name.as_bytes()).unwrap());
            keys.find(|key| key.shard(1, 16) == Shard(1)).unwrap()
        };
        let batch: Vec<_> = (0..BATCH)
            .map(|at| NewRecord {
                due_ms: NOW_MS + at * 60_000 + 60_000,
                route: Route { tenant: 1, target: 1 },
                key: (at % 10 == 0).then(|| key(at)),
                payload: vec![7; 500].into(),
            })
            .collect();
        let added = store.add(Shard(1), &batch).await.unwrap();
        let ids: Vec<_> = added
            .iter()
            .map(|added| match added {
                Added::Stored(id) => *id,
                Added::Exists(id) => panic!("{id} exists"),
            })
            .collect();
        say("added", &ids);
        let cancels: Vec<_> =
            ids[..10].iter().map(|id| Change { tenant: 1, at: TaskAt::Id(*id), to: None }).collect();
        let changed = store.change(Shard(1), &cancels).await.unwrap();
        assert!(changed.iter().all(|changed| matches!(changed, Changed::Done(_))));
        say("cancelled", &ids[..10]);
        // Another shard fires and drops a slot in each round.
        let minute =
            |key: Option<TaskKey>| NewRecord { due_ms: NOW_MS - 60_000 * 60, key, ..batch[1].clone() };
        let fired = store.add(Shard(2), &[minute(None), minute(None)]).await.unwrap();
        let Added::Stored(first) = fired[0] else { panic!("{fired:?}") };
        let batch =
            FinishBatch { sequence: round + 1, over: BTreeMap::from([(1, 2)]), ..FinishBatch::default() };
        store.finish(&lease, first.slot, &batch).await.unwrap();
        say("finished", &[]);
        if round == 2 && first.slot < SlotMinute::of(NOW_MS) {
            store.advance(&lease, 0, &[], 0).await.unwrap();
            assert!(store.drop_slot(&lease, first.slot, first.index + 2).await.unwrap());
        }
    }
}

/// What the killed process said.
#[derive(Default)]
struct Said {
    waiting: BTreeSet<TaskId>,
    cancelled: BTreeSet<TaskId>,
}

fn run_and_kill(dir: &Path, said: &mut Said, lines: u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_at_any_write", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut hear = |line: &str| {
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let what = words.next().unwrap_or_default().to_owned();
        // A line that the kill has cut short is no acknowledgement of its last word.
        let ids: BTreeSet<TaskId> = words.filter_map(|word| word.parse().ok()).collect();
        match &*what {
            "added" => said.waiting.extend(ids),
            "cancelled" => said.cancelled.extend(ids),
            _ => {}
        }
    };
    for _ in 0..lines {
        hear(&out.next().unwrap().unwrap());
    }
    // A bit later, in the middle of whatever it does.
    std::thread::sleep(Duration::from_micros(lines * 137 % 3_000));
    child.kill().unwrap();
    out.map_while(Result::ok).for_each(|line| hear(&line));
    child.wait().unwrap();
}

#[test]
fn killed_at_any_write() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    if let Some(dir) = std::env::var_os(DIR) {
        runtime.block_on(async {
            let store = open(Path::new(&dir));
            write_until_killed(&store).await;
        });
    }
    let dir = tempfile::tempdir().unwrap();
    let mut said = Said::default();
    for round in 0..ROUNDS {
        run_and_kill(dir.path(), &mut said, 10 + round * 41);
        runtime.block_on(check(&open(dir.path()), &said));
    }
    assert!(said.waiting.len() > 10_000, "{} tasks were acknowledged", said.waiting.len());
}

async fn check(store: &EmbeddedSlots, said: &Said) {
    let at: Vec<_> = said.waiting.iter().map(|id| TaskAt::Id(*id)).collect();
    let found = store.get(Shard(1), 1, &at).await.unwrap();
    for (id, found) in said.waiting.iter().zip(&found) {
        let found = found.as_ref().unwrap_or_else(|| panic!("{id} is lost"));
        assert_eq!(found.record.payload, vec![7; 500]);
        // The last cancel may have been done without an answer.
        let is_right = found.state == Waiting::Cancelled || !said.cancelled.contains(id);
        assert!(is_right, "the cancel of {id} is lost");
        if let Some(key) = found.record.key.as_ref().filter(|_| found.state == Waiting::Waiting) {
            let by_key = store.get(Shard(1), 1, &[TaskAt::Key(key.clone())]).await.unwrap();
            assert_eq!(by_key[0].as_ref().map(|found| found.id), Some(*id));
        }
    }
    // Whole calls: what is there and was not acknowledged is one batch at most for each kill, and none is by half.
    let (mut waiting, mut after) = (0_u64, None);
    loop {
        let page = store.list(1, after, 10_000).await.unwrap();
        waiting += page.tasks.iter().filter(|task| task.id.shard == Shard(1)).count() as u64;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(store.counts(Shard(1)).await.unwrap()[&1], waiting, "the count of what waits");
    assert_eq!(waiting % 10, 0, "batches have 40 tasks, of which 10 are cancelled at once");
    let left = store.counts(Shard(2)).await.unwrap().get(&1).copied().unwrap_or(0);
    assert_eq!(left % 2, 0, "tasks of the other shard are added and finished by two");
}
