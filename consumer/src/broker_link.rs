//! The turns with the broker: pause, commit, poll. The source travels through a turn, so that nothing is cancelled
//! half way and the loop goes on meanwhile.

use crate::units::NS_PER_MS;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::broker::{Commit, CommitError, Consumer, Epoch, Fetch, PollError, Polled, Position};

const POLL_PAUSE_MIN_NS: u64 = 100 * NS_PER_MS;
const POLL_PAUSE_MAX_NS: u64 = 2_000 * NS_PER_MS;
/// How long a turn that is under way when the loop ends may still take.
const LAST_TURN_TIMEOUT: Duration = Duration::from_secs(1);
/// The same where the loop is started again with the same source: a commit and a poll.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The last commit and the leave-taking. A group that rebalances answers when its other members have joined anew,
/// which a heartbeat tells them: with Kafka, every 3 s.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(6);

pub(crate) type Source = Box<dyn Consumer>;
type Turning = Pin<Box<dyn Future<Output = (Source, Turned)> + Send>>;

/// The work of one turn.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub pauses: Vec<(u32, Epoch, bool)>,
    pub commits: Vec<Commit>,
    /// Records to finish one by one, where the broker wants it so.
    pub finished: Vec<Position>,
    pub fetch: Option<Fetch>,
    pub commit_timeout: Duration,
}

/// The result of a turn.
#[derive(Debug)]
pub(crate) struct Turned {
    pub commits: Vec<Commit>,
    pub finished: Vec<Position>,
    pub committed: Result<(), CommitError>,
    pub polled: Option<Result<Polled, PollError>>,
    /// When the poll began. The broker counted this member as alive then, or later; never earlier.
    pub polled_ns: u64,
    pub polled_wall_ms: i64,
    /// The number of the topic's partitions.
    pub partitions: u32,
    /// Whether the broker may delete records before they are read.
    pub may_delete_unread: bool,
}

/// How leaving the group went.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub committed: bool,
    pub closed: bool,
}

/// The connection to the broker, at rest or in a turn.
pub(crate) struct BrokerLink {
    source: Option<Source>,
    turning: Option<Turning>,
    clock: Clock,
    /// The time before which no poll begins, and the length of that pause.
    poll_at_ns: u64,
    poll_pause_ns: u64,
}

impl BrokerLink {
    pub fn new(source: Source, clock: Clock) -> Self {
        Self { source: Some(source), turning: None, clock, poll_at_ns: 0, poll_pause_ns: 0 }
    }

    /// Whether a turn may begin.
    pub fn is_at_rest(&self) -> bool {
        self.turning.is_none() && self.source.is_some()
    }

    pub fn begin(&mut self, plan: Plan) {
        if let Some(source) = self.source.take() {
            self.turning = Some(Box::pin(turn(source, plan, self.clock.clone())));
        }
    }

    /// Waits for the end of the turn, for ever if there is none. Cancel-safe.
    pub async fn ended(&mut self) -> Turned {
        let Some(turning) = &mut self.turning else { return std::future::pending().await };
        let (source, turned) = turning.as_mut().await;
        (self.source, self.turning) = (Some(source), None);
        turned
    }

    pub fn may_poll(&self, now_ns: u64) -> bool {
        now_ns >= self.poll_at_ns
    }

    pub fn poll_succeeded(&mut self) {
        (self.poll_at_ns, self.poll_pause_ns) = (0, 0);
    }

    pub fn poll_failed(&mut self, now_ns: u64) {
        self.poll_pause_ns = (self.poll_pause_ns * 2).clamp(POLL_PAUSE_MIN_NS, POLL_PAUSE_MAX_NS);
        self.poll_at_ns = now_ns + self.poll_pause_ns;
    }

    /// Waits a moment for the turn that is under way when the loop ends. Records that a last poll brought stay
    /// unfinished: they are delivered again.
    pub async fn last_turn(&mut self) -> Option<Turned> {
        self.turning.as_ref()?;
        tokio::time::timeout(LAST_TURN_TIMEOUT, self.ended()).await.ok()
    }

    /// Gives back the source, and the turn that was under way when the loop ended. `None` where that turn does not end.
    pub async fn release(mut self) -> Option<(Source, Option<Turned>)> {
        let turned = match &self.turning {
            Some(_) => Some(tokio::time::timeout(RELEASE_TIMEOUT, self.ended()).await.ok()?),
            None => None,
        };
        Some((self.source?, turned))
    }

    /// Commits for the last time and leaves the group.
    pub async fn leave(&mut self, topic: &str, commits: &[Commit], finished: &[Position]) -> Left {
        let mut left = Left::default();
        let Some(mut source) = self.source.take() else { return left };
        let leave = async {
            left.committed = settle(&mut source, commits, finished).await.is_ok();
            source.close().await;
            left.closed = true;
        };
        if tokio::time::timeout(LEAVE_TIMEOUT, leave).await.is_err() {
            tracing::warn!(topic, "the broker did not answer the last commit or the leave-taking");
        }
        left
    }
}

async fn turn(mut source: Source, plan: Plan, clock: Clock) -> (Source, Turned) {
    let Plan { pauses, commits, finished, fetch, commit_timeout } = plan;
    for (partition, epoch, paused) in pauses {
        source.pause(partition, epoch, paused);
    }
    // If this is dropped half way, none, some or all of it is stored; repeating it is harmless.
    let settling = settle(&mut source, &commits, &finished);
    let committed = match tokio::time::timeout(commit_timeout, settling).await {
        Ok(done) => done,
        Err(_) => Err(CommitError::Unavailable("no answer in time".into())),
    };
    let (polled_ns, polled_wall_ms) = (clock.monotonic_ns(), clock.wall_ms());
    let polled = match fetch {
        Some(fetch) => Some(source.poll(fetch).await),
        None => None,
    };
    let (partitions, may_delete_unread) = (source.partitions(), source.may_delete_unread());
    let turned = Turned {
        commits,
        finished,
        committed,
        polled,
        polled_ns,
        polled_wall_ms,
        partitions,
        may_delete_unread,
    };
    (source, turned)
}

/// Tells the broker what is finished.
async fn settle(source: &mut Source, commits: &[Commit], finished: &[Position]) -> Result<(), CommitError> {
    if !commits.is_empty() {
        source.commit(commits).await?;
    }
    if !finished.is_empty() {
        source.finish(finished).await?;
    }
    Ok(())
}
