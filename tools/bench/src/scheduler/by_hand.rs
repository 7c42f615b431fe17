//! What one would write by hand: the id of a task in one sorted set by its due time, its payload in a string, a pipeline
//! per batch.

use super::{CALLERS, payload};
use anyhow::Result;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

const QUEUE: &str = "timers";

/// A connection for each caller.
pub async fn connect(url: &str) -> Result<Vec<MultiplexedConnection>> {
    let client = redis::Client::open(url)?;
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let mut connections = Vec::new();
    for _ in 0..CALLERS {
        connections.push(client.get_multiplexed_async_connection_with_config(&patient).await?);
    }
    Ok(connections)
}

/// Adds tasks, so many per pipeline.
pub async fn add(
    connections: &[MultiplexedConnection],
    tasks: u64,
    batch: u64,
    due_ms: impl Fn(u64) -> u64 + Copy + Send + 'static,
) -> Result<()> {
    let mut callers = JoinSet::new();
    for (caller, connection) in (0..).zip(connections) {
        let mut connection = connection.clone();
        callers.spawn(async move {
            let mut first = caller * batch;
            while first < tasks {
                let mut pipe = redis::pipe();
                for number in first..tasks.min(first + batch) {
                    // As long as an id of the scheduler.
                    let id = format!("{number:022x}");
                    pipe.set(format!("t:{id}"), &*payload(number)).ignore();
                    pipe.zadd(QUEUE, id, due_ms(number)).ignore();
                }
                pipe.exec_async(&mut connection).await?;
                first += CALLERS * batch;
            }
            Ok::<_, redis::RedisError>(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(())
}
