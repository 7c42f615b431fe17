//! Redis as an operator sees it: commands to one node, and hash slots that move between nodes.

use std::time::Duration;

/// Sends a command to a node, over a connection of its own.
///
/// # Errors
/// What the node or the connection says.
pub async fn command(url: &str, words: &[&str]) -> redis::RedisResult<redis::Value> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command.query_async(&mut connection).await
}

/// The answer to a command.
///
/// # Panics
/// If there is none, or it is of another type.
pub async fn asked<T: redis::FromRedisValue>(url: &str, words: &[&str]) -> T {
    let answer = command(url, words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    redis::from_redis_value(answer).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Waits in small steps until something is so.
///
/// # Panics
/// If it is not within `patience`.
pub async fn until(what: &str, patience: Duration, mut reached: impl AsyncFnMut() -> bool) {
    let started = std::time::Instant::now();
    while !reached().await {
        assert!(started.elapsed() < patience, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Moves hash slots from the first of three masters to the last one.
#[derive(Debug)]
pub struct SlotMoves<'u> {
    urls: &'u [String],
    from_id: String,
    to_id: String,
}

impl<'u> SlotMoves<'u> {
    /// Between the nodes of a cluster at these addresses.
    pub async fn between(urls: &'u [String]) -> Self {
        let from_id = asked(&urls[0], &["CLUSTER", "MYID"]).await;
        Self { urls, from_id, to_id: asked(&urls[2], &["CLUSTER", "MYID"]).await }
    }

    /// The slot of a key, if it lies on the first node.
    pub async fn slot_of(&self, key: &str) -> Option<u16> {
        let slot = asked(&self.urls[0], &["CLUSTER", "KEYSLOT", key]).await;
        (slot < 5_000).then_some(slot)
    }

    /// Moves a slot of the first node; returns how many keys moved.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn run(&self, slot: u16) -> usize {
        self.run_slowly(slot, Duration::ZERO).await
    }

    /// The same, with a pause behind every few keys.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn run_slowly(&self, slot: u16, pause: Duration) -> usize {
        let (from, to, slot) = (&self.urls[0], &self.urls[2], slot.to_string());
        let to_port = to.rsplit_once(':').map_or("", |(_, port)| port);
        let set = async |url: &str, how: &str, id: &str| {
            asked::<()>(url, &["CLUSTER", "SETSLOT", &slot, how, id]).await;
        };
        set(to, "IMPORTING", &self.from_id).await;
        set(from, "MIGRATING", &self.to_id).await;
        let mut moved = 0;
        loop {
            let keys: Vec<String> = asked(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "3"]).await;
            if keys.is_empty() {
                break;
            }
            moved += keys.len();
            for key in keys {
                asked::<()>(from, &["MIGRATE", "127.0.0.1", to_port, &key, "0", "5000"]).await;
            }
            tokio::time::sleep(pause).await;
        }
        for url in [to, from, &self.urls[1]] {
            set(url, "NODE", &self.to_id).await;
        }
        moved
    }
}
