//! What one event, token, order or timer costs, and how it is known.

use serde::Serialize;
use serde_json::Value;

/// How a figure is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Measured, at about the size at which it is used.
    Measured,
    /// Computed from what was measured at another size or on another machine.
    Extrapolated,
    /// Not measured: replace it with what you know of your machines.
    Assumed,
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// Its name, by which figures and files name it.
    pub name: &'static str,
    /// The value.
    pub value: f64,
    /// The unit of the value.
    pub unit: &'static str,
    /// How it is known.
    pub basis: Basis,
    /// Where it comes from.
    pub source: String,
    /// The row of `windfall-bench … --json`, and the field of its `more`, that replaces it.
    #[serde(skip)]
    row: Option<(&'static str, Option<&'static str>)>,
}

/// The costs, by [`Key`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Costs(Vec<Cost>);

/// A file of costs that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CostError {
    /// It is no JSON.
    #[error("the file of costs is no JSON: {0}")]
    NoJson(String),
    /// It has neither rows nor costs.
    #[error(
        "the file of costs has neither \"rows\", as `windfall-bench … --json` prints them, nor \"costs\""
    )]
    Empty,
    /// It names a cost that there is not.
    #[error("there is no cost {0}; `windfall plan … --json` lists them")]
    Unknown(String),
    /// A value is no positive number.
    #[error("the cost {0} must be a number above 0")]
    NoNumber(String),
}

macro_rules! costs {
    ($($key:ident, $name:literal, $value:expr, $unit:literal, $basis:ident, $row:expr, $source:expr;)*) => {
        /// The costs that there are.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Key {
            $(
                #[doc = $source]
                $key,
            )*
        }

        impl Default for Costs {
            fn default() -> Self {
                Self(vec![$(
                    Cost {
                        name: $name,
                        value: $value,
                        unit: $unit,
                        basis: Basis::$basis,
                        source: $source.into(),
                        row: $row,
                    },
                )*])
            }
        }
    };
}

costs! {
    SendCpu, "send_cpu_ns", 987.0, "ns/event", Measured, Some(("kafka.send", Some("cpu_ns_an_event"))),
        "benchmarks.md, kafka.send: CPU time of the sender with token, spool, pack and librdkafka";
    BrokerEvents, "broker_events_per_s", 1_278_000.0, "/s", Measured, Some(("kafka.send", None)),
        "benchmarks.md, kafka.send: one broker without replicas, 10 partitions, beside its senders on two cores, records of 256 events";
    BrokerRecords, "broker_records_per_s", 792_000.0, "/s", Measured, None,
        "benchmarks.md, kafka.send, baseline: the same broker with one event per record, by a bare producer";
    ConsumeCpu, "consume_cpu_ns", 109.0, "ns/event", Measured, Some(("kafka.consume", Some("cpu_ns_an_event"))),
        "benchmarks.md, kafka.consume: CPU time of the consumer, with a grant that does nothing";
    ConsumeRate, "consume_events_per_s", 2_394_000.0, "/s", Measured, Some(("kafka.consume", None)),
        "benchmarks.md, kafka.consume: one consumer, 10 partitions, beside the broker on two cores";
    LedgerGrants, "ledger_grants_per_s", 97_100.0, "/s", Measured, Some(("postgres.grant", None)),
        "benchmarks.md, postgres.grant: 1,000 orders per transaction, 3 writers; consumer's grant path and PostgreSQL on two cores";
    TokenPuts, "token_puts_per_s", 303_000.0, "/s", Measured, Some(("redis.store", None)),
        "benchmarks.md, redis.store: one Redis, whose one thread limits it";
    TokensVerified, "tokens_verified_per_s", 271_000.0, "/s", Measured, Some(("token.verify", Some("over_grpc_per_s"))),
        "benchmarks.md, token.verify over gRPC: 64 tokens per call; caller, token service and Redis on two cores";
    RedisAddCpu, "timer_add_redis_cpu_ns", 1_686.0, "ns/timer", Measured, Some(("scheduler.add", Some("redis_cpu_ns_a_task"))),
        "benchmarks.md, scheduler.add: CPU time of Redis";
    RedisFireCpu, "timer_fire_redis_cpu_ns", 2_404.0, "ns/timer", Measured, Some(("scheduler.lateness", Some("redis_cpu_ns_a_task"))),
        "benchmarks.md, scheduler.lateness: CPU time of Redis";
    AddCpu, "timer_add_cpu_ns", 2_400.0, "ns/timer", Measured, Some(("scheduler.add", Some("cpu_ns_a_task"))),
        "benchmarks.md, scheduler.add: CPU time of the scheduler, with its callers";
    FireCpu, "timer_fire_cpu_ns", 3_500.0, "ns/timer", Measured, Some(("scheduler.fire", Some("cpu_ns_a_task"))),
        "benchmarks.md, scheduler.fire: CPU time of the scheduler, with Kafka's producer";
    NearTimer, "near_timer_bytes", 78.1, "B/timer", Measured, Some(("scheduler.bytes_per_task", None)),
        "benchmarks.md, scheduler.bytes_per_task: Redis's memory per timer of 64 bytes";
    FarTimer, "far_timer_bytes", 75.7, "B/timer", Measured, Some(("scheduler.far", None)),
        "benchmarks.md, scheduler.far: segments and log per timer of 64 bytes";
    PackSlot, "pack_slot_bytes", 65_536.0, "B/pack", Measured, None,
        "sdk/src/options.rs: a pack takes a slot of 64 KiB in the spool, full or not";
    WireEvent, "wire_event_bytes", 200.0, "B/event", Measured, None,
        "benchmarks.md, consume.embedded: about 200 bytes per event";
    OrderBytes, "order_bytes", 567.0, "B/order", Measured, None,
        "capacity.md: tables and indexes in PostgreSQL ÷ orders, two orders per user";
    TokenUser, "token_user_bytes", 328.0, "B/token", Extrapolated, None,
        "benchmarks.md, redis.store: the hash of a user with one token; its key is not in it";
    LingerMs, "linger_ms", 5.0, "ms", Measured, None,
        "sdk/src/options.rs: how long a pack waits for more events (a setting)";
    PathMs, "path_ms", 20.0, "ms", Assumed, None,
        "from the call to the record in its topic: the linger time and the brokers' answer";
    ConnectorMs, "connector_ms", 20.0, "ms", Assumed, None,
        "the answer of a connector";
    Cores, "machine_cores", 16.0, "cores", Assumed, None,
        "cores of one machine";
    CoreUse, "core_use", 0.6, "", Assumed, None,
        "the part of a core that is in use at most";
    Nic, "nic_bytes_per_s", 1.25e9, "B/s", Assumed, None,
        "the network of one machine, each way: 10 Gbit/s";
    DiskWrite, "disk_bytes_per_s", 500e6, "B/s", Assumed, None,
        "what a broker's disk writes in the long run";
    DiskSize, "disk_bytes", 8e12, "B", Assumed, None,
        "the disk of one broker";
    RedisNode, "redis_node_bytes", 40e9, "B", Assumed, None,
        "what data may fill of a Redis of 64 GB; the rest is for the rewrite of its append-only file";
    TokensRead, "tokens_a_read", 8.0, "tokens", Assumed, None,
        "tokens of a user that one read of a wallet lists and verifies";
}

impl Costs {
    /// The value of a cost.
    pub fn of(&self, key: Key) -> f64 {
        self.row(key).value
    }

    /// The whole row.
    pub fn row(&self, key: Key) -> &Cost {
        // The table has a row per key, in their order.
        &self.0[key as usize]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Cost> {
        self.0.iter()
    }

    /// Replaces what a file of one's own measures: the object that `windfall-bench … --json` prints, or
    /// `{"costs": {"nic_bytes_per_s": 3.1e9}}`, or both in one. Returns the names of what was replaced.
    pub fn replace(&mut self, json: &str) -> Result<Vec<&'static str>, CostError> {
        let file: Value = serde_json::from_str(json).map_err(|error| CostError::NoJson(error.to_string()))?;
        let (rows, named) =
            (file.get("rows").and_then(Value::as_array), file.get("costs").and_then(Value::as_object));
        if rows.is_none() && named.is_none() {
            return Err(CostError::Empty);
        }
        let mut replaced = Vec::new();
        for row in rows.into_iter().flatten() {
            for cost in &mut self.0 {
                let Some(value) = cost.row.and_then(|(name, more)| measured(row, name, more)) else {
                    continue;
                };
                cost.set(value, Basis::Measured, "the file of costs, its row of the benchmarks")?;
                replaced.push(cost.name);
            }
        }
        for (name, value) in named.into_iter().flatten() {
            let cost = self.0.iter_mut().find(|cost| cost.name == name);
            let cost = cost.ok_or_else(|| CostError::Unknown(name.clone()))?;
            let value = value.as_f64().ok_or_else(|| CostError::NoNumber(name.clone()))?;
            cost.set(value, cost.basis, "the file of costs")?;
            replaced.push(cost.name);
        }
        Ok(replaced)
    }
}

impl Cost {
    fn set(&mut self, value: f64, basis: Basis, source: &str) -> Result<(), CostError> {
        if !(value.is_finite() && value > 0.0) {
            return Err(CostError::NoNumber(self.name.into()));
        }
        (self.value, self.basis, self.source) = (value, basis, source.into());
        Ok(())
    }
}

/// What a row of the benchmarks says, if it is the row of that name.
fn measured(row: &Value, name: &str, more: Option<&str>) -> Option<f64> {
    let is_it = row.get("name").and_then(Value::as_str) == Some(name);
    let value = match more {
        None => row.get("value"),
        Some(more) => row.get("more").and_then(|all| all.get(more)),
    };
    value.filter(|_| is_it).and_then(Value::as_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_finds_its_own_row() {
        let costs = Costs::default();
        assert_eq!(costs.row(Key::SendCpu).name, "send_cpu_ns");
        assert_eq!(costs.row(Key::TokensRead).name, "tokens_a_read");
        assert!(costs.iter().all(|cost| cost.value > 0.0));
    }

    #[test]
    fn rows_of_the_benchmarks_replace_costs() {
        let mut costs = Costs::default();
        let file = r#"{"rows": [{"name": "kafka.send", "value": 2e6, "more": {"cpu_ns_an_event": 500.0}}, {"name": "x"}],
            "costs": {"machine_cores": 64}}"#;
        let replaced = costs.replace(file).unwrap();
        assert_eq!(replaced, ["send_cpu_ns", "broker_events_per_s", "machine_cores"]);
        assert_eq!((costs.of(Key::SendCpu), costs.of(Key::BrokerEvents)), (500.0, 2e6));
        assert_eq!((costs.of(Key::Cores), costs.row(Key::Cores).basis), (64.0, Basis::Assumed));
    }

    #[test]
    fn a_file_that_means_nothing_is_refused() {
        let refused = |json: &str| Costs::default().replace(json).unwrap_err();
        assert!(matches!(refused("nonsense"), CostError::NoJson(_)));
        assert_eq!(refused("{}"), CostError::Empty);
        assert_eq!(refused(r#"{"costs": {"speed": 1}}"#), CostError::Unknown("speed".into()));
        assert_eq!(refused(r#"{"costs": {"core_use": 0}}"#), CostError::NoNumber("core_use".into()));
        let row = r#"{"rows": [{"name": "kafka.send", "value": -1}]}"#;
        assert_eq!(refused(row), CostError::NoNumber("broker_events_per_s".into()));
    }
}
