//! The store of jobs on files is killed while it writes: whatever it had acknowledged is there when it is opened again.
//! The killed process is this program, started again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{JobId, JobStore, NewJobs, QueueName, TTL_DEFAULT_S, Take};
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};

const DIR: &str = "WINDFALL_JOBS_CRASH_DIR";
const NOW_MS: u64 = 1_800_000_030_000;
const ROUNDS: u64 = 10;

fn open(dir: &Path) -> Arc<EmbeddedJobs> {
    // Small memtables, so that tables are written and merged all the time.
    let options = EmbeddedJobsOptions { memtable_bytes: 1 << 20, ..EmbeddedJobsOptions::default() };
    EmbeddedJobs::open(dir, &options, Clock::from_unix_ms(|| NOW_MS)).unwrap()
}

fn queue() -> QueueName {
    QueueName::new("n", "crash").unwrap()
}

/// Publishes, takes and acknowledges without end, and says so after each answer.
async fn work_until_killed(store: &EmbeddedJobs) {
    let say = |what: &str, ids: &[JobId]| {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let mut out = std::io::stdout().lock();
        writeln!(out, "{what} {}", ids.join(" ")).unwrap();
        out.flush().unwrap();
    };
    let jobs = NewJobs {
        queue: queue(),
        delay_s: 0,
        ttl_s: TTL_DEFAULT_S,
        tries: 2,
        is_versioned: false,
        attributes: Vec::new(),
        bodies: vec![vec![7; 300].into(); 40],
    };
    loop {
        let ids = store.publish(Shard(0), std::slice::from_ref(&jobs)).await.unwrap().concat();
        say("published", &ids);
        let take = [Take { queue: queue(), count: 20, ttr_s: 600 }];
        let (_, taken) = store.take(Shard(0), &take).await.unwrap();
        let taken: Vec<_> = taken[0].jobs.iter().map(|job| job.id).collect();
        let ended: Vec<_> = taken[..10].iter().map(|id| (queue(), *id)).collect();
        assert!(store.remove(Shard(0), &ended).await.unwrap().iter().all(|was_there| *was_there));
        say("ended", &taken[..10]);
        // Others are cancelled where they wait.
        let cancelled: Vec<_> = ids[35..].iter().map(|id| (queue(), *id)).collect();
        store.remove(Shard(0), &cancelled).await.unwrap();
        say("ended", &ids[35..]);
    }
}

/// What the killed process said.
#[derive(Default)]
struct Said {
    published: BTreeSet<JobId>,
    ended: BTreeSet<JobId>,
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
        let ids: BTreeSet<JobId> = words.filter_map(|word| word.parse().ok()).collect();
        match &*what {
            "published" => said.published.extend(ids),
            "ended" => said.ended.extend(ids),
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
            work_until_killed(&store).await;
        });
    }
    let dir = tempfile::tempdir().unwrap();
    let mut said = Said::default();
    for round in 0..ROUNDS {
        run_and_kill(dir.path(), &mut said, 10 + round * 41);
        runtime.block_on(check(&open(dir.path()), &said));
    }
    assert!(said.published.len() > 10_000, "{} jobs were acknowledged", said.published.len());
}

async fn check(store: &EmbeddedJobs, said: &Said) {
    let mut lost = 0;
    for id in &said.published {
        let found = store.get(&queue(), *id).await.unwrap();
        match said.ended.contains(id) {
            true => assert!(found.is_none(), "{id} was ended, and is there again"),
            // The last end may have been done without an answer.
            false => lost += usize::from(found.is_none()),
        }
    }
    let kills = usize::try_from(ROUNDS).unwrap();
    assert!(lost <= 15 * kills, "{lost} jobs are lost");
}
