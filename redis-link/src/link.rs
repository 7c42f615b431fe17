//! One connection that is made again whenever it is lost, by a task of its own.
//!
//! While there is none, calls fail at once and no caller waits for a dead server; the task goes on trying, at most
//! [`BACKOFF_MAX`] apart. A call that gets no answer in time gives the connection up: the outcome of what was in flight
//! there is unknown.

use super::options::{BACKOFF_FIRST, BACKOFF_MAX, LinkOptions, OpenRedisError, PROBE_EVERY};
use super::server::{self, Connection};
use redis::{Cmd, ConnectionInfo, Pipeline, RedisError, Value};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The connection. When it is dropped, it ends its task and closes.
pub(super) struct Link {
    state: watch::Receiver<State>,
    /// The number of the latest connection that was found dead.
    lost: watch::Sender<u64>,
    task: JoinHandle<()>,
}

#[derive(Clone)]
enum State {
    /// The first try is under way, after a loss or after the start.
    Connecting,
    Up(Connection, u64),
    /// Why the last try failed.
    Down(Arc<str>),
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection had been closed, perhaps long before: worth another try on a new one where the commands may be
    /// repeated.
    Closed,
    /// There is no connection, or there was no answer in time.
    Failed(String),
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    pub(super) fn start(runtime: &Handle, info: ConnectionInfo, options: &LinkOptions) -> Self {
        let (publish, state) = watch::channel(State::Connecting);
        let (lost, hear) = watch::channel(0);
        let keeper =
            Keeper { place: info.addr().to_string(), info, options: options.clone(), publish, lost: hear };
        Self { state, lost, task: runtime.spawn(keeper.run()) }
    }

    /// Sends a pipeline and waits for one answer per command, at most until `deadline`.
    pub(super) async fn exchange(
        &self,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> Result<Vec<Value>, Trouble> {
        let (mut connection, number) = self.connection(deadline).await?;
        let answers = connection.pipeline(pipeline);
        let error = match timeout_at(deadline, answers).await {
            Ok(Ok(answers)) if answers.len() == pipeline.len() => return Ok(answers),
            Ok(Ok(answers)) => Trouble::Failed(format!("{} answers for {}", answers.len(), pipeline.len())),
            Ok(Err(error)) if error.is_connection_dropped() => Trouble::Closed,
            Ok(Err(error)) => Trouble::Failed(error.to_string()),
            Err(_) => Trouble::Failed("no answer in time".into()),
        };
        // Whatever it was, nobody knows what that connection answers next.
        self.lost.send_if_modified(|lost| number > std::mem::replace(lost, number.max(*lost)));
        Err(error)
    }

    async fn connection(&self, deadline: Instant) -> Result<(Connection, u64), Trouble> {
        let mut state = self.state.clone();
        loop {
            let now = state.borrow_and_update().clone();
            match now {
                State::Up(connection, number) if number > *self.lost.borrow() => {
                    return Ok((connection, number));
                }
                State::Down(why) => return Err(Trouble::Failed(format!("no connection: {why}"))),
                State::Up(..) | State::Connecting => {}
            }
            match timeout_at(deadline, state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => {
                    return Err(Trouble::Failed("the runtime that keeps the connection is gone".into()));
                }
                Err(_) => return Err(Trouble::Failed("no connection in time".into())),
            }
        }
    }
}

/// The task that makes the connection, and makes it again.
struct Keeper {
    place: String,
    info: ConnectionInfo,
    options: LinkOptions,
    publish: watch::Sender<State>,
    lost: watch::Receiver<u64>,
}

impl Keeper {
    /// Ends when the link is dropped.
    async fn run(mut self) {
        let mut number = 0;
        let mut backoff = BACKOFF_FIRST;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    number += 1;
                    tracing::debug!(place = %self.place, number, "connected");
                    self.publish.send_replace(State::Up(connection.clone(), number));
                    let since = Instant::now();
                    self.until_lost(connection, number).await;
                    tracing::warn!(place = %self.place, "the connection to Redis is lost");
                    self.publish.send_replace(State::Connecting);
                    // One that breaks as soon as it is made must not be made in a hot loop.
                    if since.elapsed() > BACKOFF_MAX {
                        backoff = BACKOFF_FIRST;
                        continue;
                    }
                }
                Err(error) => {
                    self.publish.send_if_modified(|state| {
                        let is_news = !matches!(state, State::Down(_));
                        if is_news {
                            tracing::warn!(%error, "Redis cannot be reached; trying on");
                        }
                        *state = State::Down(error.to_string().into());
                        true
                    });
                }
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn connect(&self) -> Result<Connection, OpenRedisError> {
        let mut connection = server::connect(&self.info, &self.options).await?;
        // Each time: a server that was away may come back as another one, or as one that does not suit.
        server::suits(&mut connection, &self.info, &self.options).await?;
        Ok(connection)
    }

    /// A server that died in silence is noticed though nobody calls, and though callers give up before we do.
    async fn until_lost(&mut self, mut connection: Connection, number: u64) {
        let probe: Cmd = redis::cmd("PING");
        let patience = self.options.call_timeout.max(PROBE_EVERY);
        loop {
            // An error of `wait_for`: the link is gone, and with it this task.
            if timeout(PROBE_EVERY, self.lost.wait_for(|lost| *lost >= number)).await.is_ok() {
                return;
            }
            match timeout(patience, connection.command(&probe)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) if !is_fatal(&error) => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }
}

fn is_fatal(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_timeout() || error.is_io_error()
}
