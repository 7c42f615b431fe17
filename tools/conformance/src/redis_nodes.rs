//! Redis as an operator sees it: commands to one node, and hash slots that move between nodes.

use std::time::Duration;

/// The driver's own time for an answer is half a second, which a busy machine may need before the server is woken.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a command to a node, over a connection of its own.
///
/// # Errors
/// What the node or the connection says.
pub async fn command(url: &str, words: &[&str]) -> redis::RedisResult<redis::Value> {
    let client = redis::Client::open(url)?;
    let patient = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
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

/// The users that `deploy/redis/users.acl` ships.
pub const USERS: &str = include_str!("../../../deploy/redis/users.acl");
/// The password that [`give_users`] gives them.
pub const PASSWORD: &str = "rain";

/// Gives a server the users of the shipped file. Its default user stays as it was, for the test itself.
///
/// # Panics
/// If the server does not understand a line.
pub async fn give_users(url: &str) {
    let password = format!(">{PASSWORD}");
    for line in USERS.lines() {
        let words =
            line.strip_prefix("user ").expect("each line is a user, for Redis knows no comments there");
        let mut words: Vec<&str> = words.split(' ').collect();
        assert!(words.contains(&"resetpass"), "the file has a password: {line}");
        if words[0] != "default" {
            words.splice(..0, ["ACL", "SETUSER"]);
            words.push(&password);
            asked::<String>(url, &words).await;
        }
    }
}

/// Asserts that each of these commands is refused to a user for want of a right.
///
/// # Panics
/// If one is carried out, or fails for another reason.
pub async fn refuses(url: &str, user: &str, commands: &[&[&str]]) {
    let (scheme, place) = url.split_once("://").expect("an address with a scheme");
    let url = format!("{scheme}://{user}:{PASSWORD}@{place}");
    for words in commands {
        let error =
            command(&url, words).await.map(|answer| panic!("{user} may {words:?}: {answer:?}")).unwrap_err();
        assert_eq!(error.code(), Some("NOPERM"), "{user}: {words:?}: {error}");
    }
}

/// What no user of the shipped file may do, whatever its keys are.
pub const FOR_NO_USER: &[&[&str]] = &[
    &["FLUSHALL"],
    &["KEYS", "*"],
    &["SCAN", "0"],
    &["RANDOMKEY"],
    &["CONFIG", "SET", "maxmemory", "1"],
    &["ACL", "LIST"],
    &["SHUTDOWN", "NOSAVE"],
    &["REPLICAOF", "NO", "ONE"],
    &["SCRIPT", "FLUSH"],
    &["FUNCTION", "LIST"],
    &["PUBLISH", "c", "m"],
    &["MONITOR"],
    &["SET", "somebody", "else"],
];

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
        self.begin(slot).await;
        self.finish_slowly(slot, pause).await
    }

    /// Begins a move: until it is finished, keys of the slot lie on either node.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn begin(&self, slot: u16) {
        self.set(&self.urls[2], slot, "IMPORTING", &self.from_id).await;
        self.set(&self.urls[0], slot, "MIGRATING", &self.to_id).await;
    }

    /// Moves one key of a slot whose move has begun.
    ///
    /// # Panics
    /// If a node refuses, as it does where both nodes have the key.
    pub async fn move_key(&self, key: &str) {
        let to_port = self.urls[2].rsplit_once(':').map_or("", |(_, port)| port);
        asked::<()>(&self.urls[0], &["MIGRATE", "127.0.0.1", to_port, key, "0", "20000"]).await;
    }

    /// Moves the keys that are left, and the slot; returns how many keys moved.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn finish(&self, slot: u16) -> usize {
        self.finish_slowly(slot, Duration::ZERO).await
    }

    async fn finish_slowly(&self, slot: u16, pause: Duration) -> usize {
        let mut moved = 0;
        loop {
            let keys = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "3"];
            let keys: Vec<String> = asked(&self.urls[0], &keys).await;
            if keys.is_empty() {
                break;
            }
            moved += keys.len();
            for key in keys {
                self.move_key(&key).await;
            }
            tokio::time::sleep(pause).await;
        }
        for url in [&self.urls[2], &self.urls[0], &self.urls[1]] {
            self.set(url, slot, "NODE", &self.to_id).await;
        }
        moved
    }

    async fn set(&self, url: &str, slot: u16, how: &str, id: &str) {
        asked::<()>(url, &["CLUSTER", "SETSLOT", &slot.to_string(), how, id]).await;
    }
}
