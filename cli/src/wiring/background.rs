//! Tasks that work beside the calls, and their owner: a task that panics is started again, and one that does nothing
//! but panic ends the process.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use windfall_edge::Health;

/// The pause between a panic and the next start of its task, which doubles with each panic in a row.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A task that has worked for so long begins a new row of panics.
const SOUND: Duration = Duration::from_secs(60);
/// The number of panics in a row that ends the process: a new process may start where this one cannot go on.
const PANICS_MAX: u32 = 8;

/// The owner of a process's long-lived tasks. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Tasks(Arc<Inner>);

/// Why a process cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hopeless {
    /// A part of it failed again and again: another start may go on.
    Failed(String),
    /// A server or an option cannot be used: another start fails like this one until that is corrected.
    Refused(String),
}

struct Inner {
    health: Health,
    panics: Mutex<BTreeMap<&'static str, u64>>,
    /// Why the process cannot go on.
    fatal: watch::Sender<Option<Hopeless>>,
    #[cfg(test)]
    injected: Mutex<BTreeMap<&'static str, u32>>,
    /// Panics of each task that is not in `injected` yet.
    #[cfg(test)]
    injected_in_each: std::sync::atomic::AtomicU32,
}

impl Tasks {
    /// A set without tasks; a failure that ends the process is reported to `health`.
    pub fn new(health: Health) -> Self {
        Self(Arc::new(Inner {
            health,
            panics: Mutex::default(),
            fatal: watch::Sender::new(None),
            #[cfg(test)]
            injected: Mutex::default(),
            #[cfg(test)]
            injected_in_each: Default::default(),
        }))
    }

    /// Starts a task, and starts it again whenever it panics. It ends when the answer is dropped, or by itself. `work`
    /// makes the task anew each time, from what it keeps.
    pub fn spawn<F>(&self, name: &'static str, work: impl Fn() -> F + Send + 'static) -> Background
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_until(PANICS_MAX, name, work)
    }

    /// The same for a task that the process can do without: however often it panics, the process goes on.
    pub fn spawn_aside<F>(&self, name: &'static str, work: impl Fn() -> F + Send + 'static) -> Background
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_until(u32::MAX, name, work)
    }

    fn spawn_until<F>(
        &self,
        panics_max: u32,
        name: &'static str,
        work: impl Fn() -> F + Send + 'static,
    ) -> Background
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.0.panics.lock().entry(name).or_default();
        let own = self.clone();
        let task = tokio::spawn(async move {
            let mut in_a_row = 0_u32;
            loop {
                let began = Instant::now();
                // Dropped, it ends with its owner.
                let mut run = Running(tokio::spawn(own.with_injected(name, work())));
                match (&mut run.0).await {
                    Err(error) if error.is_panic() => {}
                    _ => return,
                }
                in_a_row = if began.elapsed() >= SOUND { 1 } else { in_a_row.saturating_add(1) };
                own.panicked(name, in_a_row, panics_max);
                let doubled = PAUSE_FIRST.saturating_mul(1 << in_a_row.min(16).saturating_sub(1));
                tokio::time::sleep(doubled.min(PAUSE_MAX)).await;
            }
        });
        Background { name, task }
    }

    /// Panics by the name of their task.
    pub fn panics(&self) -> Vec<(&'static str, u64)> {
        self.0.panics.lock().iter().map(|(name, count)| (*name, *count)).collect()
    }

    /// Ends the process, for what another owner of tasks found hopeless.
    pub fn fatal(&self, why: Hopeless) {
        self.0.health.die(why.to_string());
        self.0.fatal.send_if_modified(|fatal| fatal.is_none() && fatal.replace(why).is_none());
    }

    /// Why the process cannot go on, where it cannot.
    pub fn is_hopeless(&self) -> Option<Hopeless> {
        self.0.fatal.borrow().clone()
    }

    /// Waits until the process cannot go on, and says why.
    pub async fn hopeless(&self) -> Hopeless {
        let mut fatal = self.0.fatal.subscribe();
        // The sender lives as long as we do.
        match fatal.wait_for(Option::is_some).await {
            Ok(why) => match why.clone() {
                Some(why) => why,
                None => std::future::pending().await,
            },
            Err(_) => std::future::pending().await,
        }
    }

    fn panicked(&self, name: &'static str, in_a_row: u32, panics_max: u32) {
        *self.0.panics.lock().entry(name).or_default() += 1;
        tracing::error!(task = name, in_a_row, "a task has panicked and is started again");
        if in_a_row >= panics_max {
            let why = format!("the task for {name} has panicked {in_a_row} times in a row");
            self.fatal(Hopeless::Failed(why));
        }
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests inject panics here")]
    fn with_injected<F: Future<Output = ()>>(&self, _: &'static str, work: F) -> F {
        work
    }

    #[cfg(test)]
    fn with_injected<F: Future<Output = ()> + Send>(
        &self,
        name: &'static str,
        work: F,
    ) -> impl Future<Output = ()> + Send + use<F> {
        let mut injected = self.0.injected.lock();
        let each = self.0.injected_in_each.load(std::sync::atomic::Ordering::Relaxed);
        let left = injected.entry(name).or_insert(each);
        let panics = *left > 0;
        *left = left.saturating_sub(1);
        async move {
            assert!(!panics, "injected");
            work.await;
        }
    }

    /// Lets the first `count` starts of every task panic.
    #[cfg(test)]
    pub fn inject_in_each(&self, count: u32) {
        self.0.injected_in_each.store(count, std::sync::atomic::Ordering::Relaxed);
    }

    /// Lets the next `count` starts of a task panic.
    #[cfg(test)]
    pub fn inject(&self, name: &'static str, count: u32) {
        self.0.injected.lock().insert(name, count);
    }
}

impl fmt::Display for Hopeless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}

/// A run of a task, which ends when this is dropped.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A task with a name, which ends when this is dropped.
#[derive(Debug)]
pub struct Background {
    name: &'static str,
    task: JoinHandle<()>,
}

impl Background {
    /// Ends it, and waits until it has let go of what it held.
    pub async fn end(mut self) {
        self.task.abort();
        match (&mut self.task).await {
            Err(error) if error.is_panic() => {
                tracing::error!(task = self.name, "the owner of a background task had panicked")
            }
            _ => {}
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    fn counting(tasks: &Tasks, panics: u32) -> (Arc<AtomicU32>, Background) {
        let starts = Arc::new(AtomicU32::new(0));
        let own = Arc::clone(&starts);
        tasks.inject("trial", panics);
        let task = tasks.spawn("trial", move || {
            own.fetch_add(1, Relaxed);
            std::future::pending()
        });
        (starts, task)
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again_and_counted() {
        let (health, panics) = (Health::new(), PANICS_MAX - 1);
        let tasks = Tasks::new(health.clone());
        let (starts, task) = counting(&tasks, panics);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(starts.load(Relaxed), panics + 1);
        assert_eq!(tasks.panics(), [("trial", u64::from(panics))]);
        assert!(health.is_ready());
        task.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_only_panics_ends_the_process() {
        let health = Health::new();
        let tasks = Tasks::new(health.clone());
        let (starts, _task) = counting(&tasks, u32::MAX);
        let why = tasks.hopeless().await.to_string();
        assert!(why.contains("trial") && why.contains("8 times in a row"), "{why}");
        assert_eq!(starts.load(Relaxed), PANICS_MAX);
        assert_eq!(health.failing()["live"], why);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_process_can_do_without_never_ends_it() {
        let tasks = Tasks::new(Health::new());
        let _task = tasks.spawn_aside("aside", || async { panic!("always") });
        assert!(tokio::time::timeout(PAUSE_MAX * 100, tasks.hopeless()).await.is_err());
        assert!(tasks.panics()[0].1 > 10 * u64::from(PANICS_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn panics_far_apart_are_no_row() {
        let tasks = Tasks::new(Health::new());
        let _task = tasks.spawn("seldom", || async {
            tokio::time::sleep(SOUND).await;
            panic!("seldom");
        });
        let row = SOUND * PANICS_MAX * 3;
        assert!(tokio::time::timeout(row, tasks.hopeless()).await.is_err());
        assert!(tasks.panics()[0].1 > u64::from(PANICS_MAX));
    }

    #[tokio::test]
    async fn a_dropped_task_is_gone() {
        let tasks = Tasks::new(Health::new());
        let alive = Arc::new(());
        let own = Arc::clone(&alive);
        let task = tasks.spawn("trial", move || {
            let own = Arc::clone(&own);
            async move {
                let _own = own;
                std::future::pending::<()>().await;
            }
        });
        tokio::task::yield_now().await;
        drop(task);
        let until = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&alive) > 1 {
            assert!(Instant::now() < until, "the run outlives its owner");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
