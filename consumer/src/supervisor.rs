//! The owner of a topic's consumer: opens it, for as long as its broker takes, and starts it again after a panic.

use crate::caught::caught;
use crate::consumer::Crashed;
use crate::dispatch::Dispatch;
use crate::dispatch::restart::Remains;
use crate::drain::{DrainAsked, DrainReport};
use crate::options::Options;
use crate::parts::{Parts, RulesNow};
use crate::probation::{Suspicion, position};
use crate::requeue::RequeueSink;
use crate::shared_limiter::SharedLimiter;
use crate::signatures::Signatures;
use crate::spill_log::SpillLog;
use crate::stats::ConsumerStats;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use windfall_contract::Clock;
use windfall_contract::broker::{Consumer, OpenError, Position};
use windfall_contract::long_delays::LongDelays;
use windfall_contract::rewards::Rewards;

/// An attempt to open the broker's consumer.
pub type Opening = Pin<Box<dyn Future<Output = Result<Box<dyn Consumer>, OpenError>> + Send>>;
/// Opens the broker's consumer of the topic; asked again after each failure.
pub type OpenSource = Box<dyn FnMut() -> Opening + Send>;

const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two attempts, so that a broker that is back is noticed within five seconds, the attempt
/// included.
const OPEN_PAUSE_MAX: Duration = Duration::from_secs(3);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(5);
/// The time after which an attempt without an answer is given up, and the next one begins.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);
/// The number of records that go to quarantine without any other record being granted in between. Beyond that, the
/// records are not the cause of the panics.
const QUARANTINED_MAX: u32 = 3;

/// The parts of a supervised consumer: [`Parts`] without the source.
pub struct SupervisedParts {
    /// The topic's name, for the fleet's share and for the log.
    pub topic: String,
    /// Opens the broker's consumer that brings records.
    pub open: OpenSource,
    /// The service that grants and archives events.
    pub rewards: Arc<dyn Rewards>,
    /// The sink that events are requeued to.
    pub requeue_sink: Arc<dyn RequeueSink>,
    /// The log where they wait when no queue takes them; one per process.
    pub spill_log: Arc<SpillLog>,
    /// Keeps events whose senders want them to be granted long after now.
    pub long_delays: Option<Arc<dyn LongDelays>>,
    /// How records are verified before anything of them is granted; `None`: every record is taken.
    pub signatures: Option<Signatures>,
    /// The limiter with the fleet's share; one per process.
    pub limiter: Arc<SharedLimiter>,
    /// The live rules.
    pub rules: RulesNow,
    /// The same clock that the limiter was started with.
    pub clock: Clock,
}

/// The state of a supervised consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SupervisorState {
    /// The broker of the topic is asked for a consumer.
    Opening {
        /// Why the last attempt failed; `None` before the first answer.
        why: Option<String>,
    },
    /// It reads its topic.
    Running,
    /// It has panicked and starts again in a moment.
    Restarting {
        /// The message of the panic.
        why: String,
    },
    /// It finishes what it has, and leaves.
    Draining,
    /// It has given up: its process should end with an error.
    Failed {
        /// Why it has given up.
        why: String,
    },
    /// It was drained, or dropped.
    Closed,
}

/// A consumer that is started again when it panics. Dropped without [`drain`](Self::drain) it stops at once, as if its
/// process had died: what it held is delivered again.
#[derive(Debug)]
pub struct Supervisor {
    topic: Arc<str>,
    stats: Arc<ConsumerStats>,
    state: Arc<watch::Sender<SupervisorState>>,
    drain: Option<oneshot::Sender<Duration>>,
    task: JoinHandle<Result<DrainReport, Crashed>>,
}

impl SupervisorState {
    /// Whether the topic is read, or is on purpose no longer read.
    pub const fn is_ready(&self) -> bool {
        matches!(self, Self::Running | Self::Draining | Self::Closed)
    }

    /// Whether it goes on by itself. If not, its process should end.
    pub const fn is_alive(&self) -> bool {
        !matches!(self, Self::Failed { .. })
    }

    /// The state's name in metrics and the log.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Opening { .. } => "opening",
            Self::Running => "running",
            Self::Restarting { .. } => "restarting",
            Self::Draining => "draining",
            Self::Failed { .. } => "failed",
            Self::Closed => "closed",
        }
    }

    /// Why it does not read, where there is a reason.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Opening { why } => why.as_deref(),
            Self::Restarting { why } | Self::Failed { why } => Some(why),
            Self::Running | Self::Draining | Self::Closed => None,
        }
    }
}

impl fmt::Display for SupervisorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why() {
            Some(why) => write!(f, "{}: {why}", self.name()),
            None => f.write_str(self.name()),
        }
    }
}

impl Supervisor {
    /// Starts as a task of the current tokio runtime. It never waits and never fails: a broker that is away is asked
    /// until it answers.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(parts: SupervisedParts, options: Options) -> Self {
        let stats = Arc::new(ConsumerStats::default());
        let state = Arc::new(watch::Sender::new(SupervisorState::Opening { why: None }));
        let (drain, asked) = oneshot::channel();
        let topic: Arc<str> = parts.topic.as_str().into();
        let supervised = Supervised {
            topic: Arc::clone(&topic),
            parts,
            options,
            stats: Arc::clone(&stats),
            state: StateKeeper(Arc::clone(&state)),
            asked: DrainAsked::by(asked),
            streak: Streak::default(),
        };
        Self { topic, stats, state, drain: Some(drain), task: tokio::spawn(supervised.run()) }
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Its counters, which go on over restarts.
    pub fn stats(&self) -> &Arc<ConsumerStats> {
        &self.stats
    }

    /// What it does now.
    pub fn state(&self) -> SupervisorState {
        self.state.borrow().clone()
    }

    /// What it does, for those who watch it. The last state stays readable when it has ended.
    pub fn watch(&self) -> watch::Receiver<SupervisorState> {
        self.state.subscribe()
    }

    /// Stops fetching, finishes what is in flight, writes back at half of `deadline` what is not finished by then,
    /// commits, and leaves the group. It is asked at once; the future waits until it has, at most `deadline` and seven
    /// seconds for the commit and leaving the group. Keep the requeue sink and the rewards open until then.
    ///
    /// # Errors
    /// [`Crashed`]: it had failed before, or panicked meanwhile. What it held is delivered again.
    pub fn drain(mut self, deadline: Duration) -> impl Future<Output = Result<DrainReport, Crashed>> {
        self.state.send_if_modified(|state| {
            let is_open = !matches!(state, SupervisorState::Failed { .. } | SupervisorState::Closed);
            if is_open {
                *state = SupervisorState::Draining;
            }
            is_open
        });
        if let Some(drain) = self.drain.take() {
            // One that has failed does not listen; awaiting its task says why.
            drain.send(deadline).ok();
        }
        async move { (&mut self.task).await.unwrap_or_else(|error| Err(Crashed(error.to_string()))) }
    }

    /// Waits until it has given up; for ever while it has not. May be asked any number of times.
    pub async fn ended(&self) -> Crashed {
        let mut states = self.state.subscribe();
        // The sender is ours, so the wait cannot fail.
        match states.wait_for(|state| !state.is_alive()).await {
            Ok(state) => Crashed(state.why().unwrap_or_default().to_owned()),
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps the state, and sets the last one even if the task is cancelled.
struct StateKeeper(Arc<watch::Sender<SupervisorState>>);

impl StateKeeper {
    /// A drain that was asked for stays visible until its end.
    fn set(&self, next: SupervisorState) {
        self.0.send_if_modified(|state| {
            let is_end = matches!(next, SupervisorState::Failed { .. } | SupervisorState::Closed);
            let is_change = *state != next && (is_end || *state != SupervisorState::Draining);
            if is_change {
                *state = next;
            }
            is_change
        });
    }
}

impl Drop for StateKeeper {
    fn drop(&mut self) {
        if self.0.borrow().is_alive() {
            self.set(match std::thread::panicking() {
                true => SupervisorState::Failed { why: "its supervisor panicked".into() },
                false => SupervisorState::Closed,
            });
        }
    }
}

/// The panics since the last progress.
#[derive(Debug, Default)]
struct Streak {
    /// Panics in a row without progress.
    panics: u32,
    /// Events that had come to their end at the last panic.
    finished: u64,
    /// The fewest suspects since an event came to its end.
    fewest: Option<usize>,
    /// The record that was alone in flight at the last panic.
    alone: Option<Position>,
    /// Records that went to quarantine since an event was granted, and how many were granted then.
    quarantined: u32,
    granted: u64,
}

struct Supervised {
    topic: Arc<str>,
    parts: SupervisedParts,
    options: Options,
    stats: Arc<ConsumerStats>,
    state: StateKeeper,
    asked: DrainAsked,
    streak: Streak,
}

/// How a phase before the loop ended.
enum Begun {
    Source(Box<dyn Consumer>),
    /// A drain was asked for.
    DrainAsked,
    Panicked(String),
}

impl Supervised {
    async fn run(mut self) -> Result<DrainReport, Crashed> {
        let mut remains: Option<Remains> = None;
        loop {
            let (source, carried) = match remains.take() {
                Some(Remains { source, carried }) => (source, Some(carried)),
                None => match self.open().await {
                    Begun::Source(source) => (source, None),
                    Begun::DrainAsked => return Ok(self.nothing_to_drain()),
                    Begun::Panicked(why) => {
                        if self.after_panic(why, None).await? {
                            return Ok(self.nothing_to_drain());
                        }
                        continue;
                    }
                },
            };
            let mut dispatch = None;
            let ran = {
                let (parts, options, stats) = (self.parts_with(source), self.options.clone(), &self.stats);
                let (state, asked, dispatch) = (&self.state, &mut self.asked, &mut dispatch);
                caught(async move {
                    let dispatch = dispatch.insert(Dispatch::new(parts, options, Arc::clone(stats)));
                    if let Some(carried) = carried {
                        dispatch.resume(carried);
                    }
                    stats.running.set(1);
                    state.set(SupervisorState::Running);
                    dispatch.run(asked).await;
                })
                .await
            };
            self.stats.running.set(0);
            let panicked = match (ran, dispatch) {
                (Ok(()), Some(dispatch)) => match caught(dispatch.leave()).await {
                    Ok(report) => {
                        self.state.set(SupervisorState::Closed);
                        return Ok(report);
                    }
                    Err(panicked) => return Err(self.fail(panicked.0)),
                },
                (Err(panicked), Some(dispatch)) if dispatch.is_draining() => {
                    return Err(self.fail(panicked.0));
                }
                (Err(panicked), Some(dispatch)) => {
                    remains = caught(dispatch.into_remains()).await.ok().flatten();
                    panicked.0
                }
                (Err(panicked), None) => panicked.0,
                (Ok(()), None) => "it has not begun".into(),
            };
            self.stats.partitions.set(0);
            let suspicion = remains.as_mut().map(|remains| &mut remains.carried.suspicion);
            if self.after_panic(panicked, suspicion).await? {
                // Its source is dropped: the broker delivers again what it held.
                let left = remains.map_or(0, |remains| remains.carried.suspicion.records.len());
                self.state.set(SupervisorState::Closed);
                return Ok(DrainReport { unfinished_records: left, committed: false, closed: false });
            }
        }
    }

    /// Opens the source, for as long as it takes.
    async fn open(&mut self) -> Begun {
        let mut pause = PAUSE_MIN;
        self.state.set(SupervisorState::Opening { why: None });
        let mut said = String::new();
        loop {
            let open = &mut self.parts.open;
            let attempt = caught(async { tokio::time::timeout(OPEN_PATIENCE, open()).await });
            let answer = tokio::select! {
                answer = attempt => answer,
                _ = self.asked.asked() => return Begun::DrainAsked,
            };
            let why = match answer {
                Ok(Ok(Ok(source))) => return Begun::Source(source),
                Ok(Ok(Err(error))) => error.to_string(),
                Ok(Err(_)) => format!("no answer in {} s", OPEN_PATIENCE.as_secs()),
                Err(panicked) => return Begun::Panicked(panicked.0),
            };
            if why != said {
                tracing::warn!(topic = %self.topic, why, "the topic cannot be read yet; it is tried again");
                said.clone_from(&why);
            }
            self.state.set(SupervisorState::Opening { why: Some(why) });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.asked.asked() => return Begun::DrainAsked,
            }
            pause = (pause * 2).min(OPEN_PAUSE_MAX);
        }
    }

    /// Decides what is to become of a loop that panicked, and waits a moment; says whether a drain was asked for
    /// meanwhile.
    async fn after_panic(&mut self, why: String, suspicion: Option<&mut Suspicion>) -> Result<bool, Crashed> {
        self.stats.panics.add(1);
        let suspects = suspicion.as_ref().map_or(0, |suspicion| suspicion.in_flight);
        tracing::error!(topic = %self.topic, why, suspects, "a consumer panicked");
        let finished = self.stats.finished();
        self.streak.panicked(finished, suspects);
        if let Some(suspicion) = suspicion {
            self.judge(suspicion, &why)?;
        }
        if self.streak.panics >= self.options.panics_max.max(1) {
            let panics = self.streak.panics;
            return Err(self.fail(format!("{panics} panics in a row without progress, the last: {why}")));
        }
        self.state.set(SupervisorState::Restarting { why });
        let pause = (PAUSE_MIN * (1 << self.streak.panics.saturating_sub(1).min(10))).min(RESTART_PAUSE_MAX);
        Ok(tokio::select! {
            () = tokio::time::sleep(pause) => false,
            _ = self.asked.asked() => true,
        })
    }

    /// A record that was alone in flight at two panics is what makes the loop panic.
    fn judge(&mut self, suspicion: &mut Suspicion, why: &str) -> Result<(), Crashed> {
        let alone = suspicion.alone();
        if alone.is_none() || std::mem::replace(&mut self.streak.alone, alone) != alone {
            return Ok(());
        }
        let granted = self.stats.granted();
        if std::mem::replace(&mut self.streak.granted, granted) != granted {
            self.streak.quarantined = 0;
        }
        if self.streak.quarantined >= QUARANTINED_MAX {
            // A record that may not be the cause is not archived.
            return Err(self.fail(format!("every record makes it panic, the last: {why}")));
        }
        let Some(found) = suspicion.quarantine() else { return Ok(()) };
        let Position { partition, offset, .. } = position(found);
        tracing::error!(
            topic = %self.topic, partition, offset, bytes = found.payload.len(), why,
            "a record makes the consumer panic; it goes to the archive whole, as quarantined"
        );
        self.stats.quarantined.add(1);
        self.streak = Streak { quarantined: self.streak.quarantined + 1, granted, ..Streak::default() };
        self.streak.finished = self.stats.finished();
        Ok(())
    }

    fn parts_with(&self, source: Box<dyn Consumer>) -> Parts {
        let own = &self.parts;
        Parts {
            topic: own.topic.clone(),
            source,
            rewards: Arc::clone(&own.rewards),
            requeue_sink: Arc::clone(&own.requeue_sink),
            spill_log: Arc::clone(&own.spill_log),
            long_delays: own.long_delays.clone(),
            signatures: own.signatures.clone(),
            limiter: Arc::clone(&own.limiter),
            rules: Arc::clone(&own.rules),
            clock: own.clock.clone(),
        }
    }

    fn nothing_to_drain(&self) -> DrainReport {
        self.state.set(SupervisorState::Closed);
        DrainReport { unfinished_records: 0, committed: true, closed: true }
    }

    fn fail(&self, why: String) -> Crashed {
        tracing::error!(topic = %self.topic, why, "a consumer has failed for good");
        self.state.set(SupervisorState::Failed { why: why.clone() });
        Crashed(why)
    }
}

impl Streak {
    /// Counts a panic; fewer suspects than ever, or a finished event, are progress.
    fn panicked(&mut self, finished: u64, suspects: usize) {
        let has_finished = finished > std::mem::replace(&mut self.finished, finished);
        let is_closer = suspects > 0 && self.fewest.is_none_or(|fewest| suspects < fewest);
        if has_finished || is_closer {
            self.panics = 0;
            self.fewest = (suspects > 0).then_some(suspects);
        }
        self.panics = self.panics.saturating_add(1);
    }
}
