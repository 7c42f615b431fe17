//! The store of jobs on files: the contract, random calls against a model, its open errors, restarts.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod planted;

use async_trait::async_trait;
use parking_lot::Mutex;
use planted::{Fault, Planted};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use windfall_conformance::task_queue::{self, Fixture, ModelClock};
use windfall_contract::Clock;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::task_queue::{
    JobStore, NewJobs, ONCE_KEPT_MS, OnceJob, OnceMark, QueueName, QueueTokens, Take,
};
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions, OpenJobsError};

/// Some day in 2027.
const START_MS: u64 = 1_800_000_030_050;

struct Embedded {
    /// The last one is in use. Another one was, until a crash left what the next one has.
    dirs: Mutex<Vec<tempfile::TempDir>>,
    options: EmbeddedJobsOptions,
    now_ms: Arc<AtomicU64>,
}

impl Embedded {
    fn new(options: EmbeddedJobsOptions) -> Self {
        let dirs = Mutex::new(vec![tempfile::tempdir().unwrap()]);
        Self { dirs, options, now_ms: Arc::new(AtomicU64::new(START_MS)) }
    }

    fn dir(&self) -> PathBuf {
        self.dirs.lock().last().unwrap().path().to_owned()
    }

    fn open_now(&self) -> Result<Arc<EmbeddedJobs>, OpenJobsError> {
        let now_ms = Arc::clone(&self.now_ms);
        let clock = Clock::from_unix_ms(move || now_ms.load(SeqCst));
        EmbeddedJobs::open(&self.dir(), &self.options, clock)
    }
}

#[async_trait]
impl Fixture for Embedded {
    fn name(&self) -> &str {
        "embedded"
    }

    async fn open(&self) -> Result<(Arc<dyn JobStore>, Arc<dyn QueueTokens>), String> {
        let store = self.open_now().map_err(|error| error.to_string())?;
        Ok((Arc::clone(&store) as _, store))
    }

    async fn wait_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, SeqCst);
    }

    /// A copy of the files, as a kill at this moment would leave them: nobody holds its locks, and closing the store does not
    /// change it.
    async fn crash(&self) -> Result<(), String> {
        let left = tempfile::tempdir().map_err(|error| error.to_string())?;
        copy_of_one_moment(&self.dir(), left.path()).map_err(|error| error.to_string())?;
        self.dirs.lock().push(left);
        Ok(())
    }
}

/// What lies below a directory: the bytes of files, and nothing for directories.
type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

fn read_tree(root: &Path, below: &Path, tree: &mut Tree) -> io::Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            tree.insert(path.clone(), None);
            read_tree(root, &path, tree)?;
        } else {
            tree.insert(path.clone(), Some(std::fs::read(root.join(&path))?));
        }
    }
    Ok(())
}

/// Copies files that threads of the store may be writing. What is read twice without a difference was there as a whole when the
/// first reading ended.
fn copy_of_one_moment(from: &Path, to: &Path) -> io::Result<()> {
    let mut last: Option<Tree> = None;
    for _ in 0..1_000 {
        let mut tree = Tree::new();
        // A file that has gone meanwhile is a difference, too.
        let found = read_tree(from, Path::new(""), &mut tree).map(|()| tree).ok();
        if let Some(tree) = found.as_ref().filter(|tree| last.as_ref() == Some(*tree)) {
            for (path, bytes) in tree {
                match bytes {
                    Some(bytes) => std::fs::write(to.join(path), bytes)?,
                    None => std::fs::create_dir(to.join(path))?,
                }
            }
            return Ok(());
        }
        last = found;
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::other("the files of the store do not come to rest"))
}

fn small(shards: u16) -> EmbeddedJobsOptions {
    EmbeddedJobsOptions { shards, memtable_bytes: 1 << 20, cache_bytes: 1 << 20, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_conforms() {
    for durability in [Durability::Process, Durability::Machine] {
        let fixture = Embedded::new(EmbeddedJobsOptions { durability, ..small(4) });
        let failed = task_queue::run(&fixture).await;
        assert!(failed.is_empty(), "{durability:?}: {failed:#?}");
    }
}

/// `WINDFALL_TASK_QUEUE_SEED` runs one seed alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_is_as_the_model() {
    let fresh = || Box::new(Embedded::new(small(3))) as Box<dyn Fixture>;
    if let Err(what) = task_queue::run_model(&fresh, ModelClock::OfTheTest, 24, 300).await {
        panic!("{what}");
    }
}

/// A model that passes whatever the store does would prove nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_finds_each_fault_that_is_planted() {
    for fault in Fault::ALL {
        let fresh = || Box::new(Planted::new(Embedded::new(small(2)), fault)) as Box<dyn Fixture>;
        let found = task_queue::run_model(&fresh, ModelClock::OfTheTest, 12, 200).await;
        let Err(what) = found else { panic!("{fault:?} is not found") };
        assert!(fault.is_named_by(&what), "{fault:?} is found as something else: {what}");
        println!("{fault:?}: {what}");
    }
}

#[tokio::test]
async fn open_says_what_is_wrong() {
    let fixture = Embedded::new(small(2));
    let store = fixture.open_now().unwrap();
    assert!(matches!(fixture.open_now().map(drop), Err(OpenJobsError::InUse(_))));
    drop(store);
    let open = |options| EmbeddedJobs::open(&fixture.dir(), &options, Clock::system()).map(drop);
    assert!(matches!(open(small(3)), Err(OpenJobsError::OtherShards { found: 2, asked: 3, .. })));
    assert!(matches!(open(small(0)), Err(OpenJobsError::Invalid(what)) if what.starts_with("shards is 0")));
    std::fs::write(fixture.dir().join("WINDFALL-JOBS"), "9\n").unwrap();
    assert!(matches!(open(small(2)), Err(OpenJobsError::Newer { found: 9, known: 1, .. })));
}

#[tokio::test]
async fn marks_are_kept_for_an_hour_though_the_clock_goes_back_by_one_and_no_longer_than_two() {
    let fixture = Embedded::new(small(1));
    let store = fixture.open_now().unwrap();
    let queue = QueueName::new("n", "q").unwrap();
    let job = NewJobs {
        queue: queue.clone(),
        delay_s: 0,
        ttl_s: 1,
        tries: 1,
        is_versioned: false,
        attributes: Vec::new(),
        bodies: vec!["x".into()],
    };
    let batch: Vec<OnceJob> = (0..5_000_u16)
        .map(|number| {
            let mut mark = [0; 16];
            mark[..2].copy_from_slice(&number.to_be_bytes());
            OnceJob { mark: OnceMark(mark), job: job.clone() }
        })
        .collect();
    let publish = async |store: &EmbeddedJobs| {
        let ids = store.publish_once(Shard(0), &batch).await.unwrap();
        ids.into_iter().flatten().count()
    };
    assert_eq!(publish(&store).await, 5_000);
    // Their jobs are over, and so is their queue.
    let take = [Take { queue: queue.clone(), count: 1_000, ttr_s: 60 }];
    loop {
        let (_, taken) = store.take(Shard(0), &take).await.unwrap();
        let ids: Vec<_> = taken[0].jobs.iter().map(|job| (queue.clone(), job.id)).collect();
        if ids.is_empty() {
            break;
        }
        store.remove(Shard(0), &ids).await.unwrap();
    }
    store.sweep(Shard(0), 0).await.unwrap();
    assert_eq!(store.queues(Shard(0), 0).await.unwrap(), (0, Vec::new()));
    // Back and forth again: the clock was wrong for a while.
    fixture.now_ms.fetch_sub(ONCE_KEPT_MS, SeqCst);
    assert_eq!(publish(&store).await, 0);
    fixture.now_ms.fetch_add(2 * ONCE_KEPT_MS - 1, SeqCst);
    assert_eq!(publish(&store).await, 0);
    // By then a sweep has forgotten them, several calls of it, and the rows are gone: also where the store was opened anew.
    drop(store);
    fixture.now_ms.fetch_add(2 * ONCE_KEPT_MS, SeqCst);
    let store = fixture.open_now().unwrap();
    for _ in 0..40 {
        store.sweep(Shard(0), 0).await.unwrap();
    }
    fixture.now_ms.fetch_sub(2 * ONCE_KEPT_MS, SeqCst);
    assert_eq!(publish(&store).await, 5_000);
}
