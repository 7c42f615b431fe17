//! Which real parts a command line asks for.

use super::Backends;
use anyhow::{Context, Result, bail};
use windfall_servers::Servers;

/// Stands for "the one that `./dev up` runs".
const UP: &str = "up";

/// Real parts in place of the embedded ones. Without an address: the server that `./dev up` runs.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct BackendArgs {
    /// Broker a is this Kafka cluster (host:port,…)
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    kafka: Option<String>,
    /// Broker b is this Kafka cluster
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    kafka2: Option<String>,
    /// Broker b is this RocketMQ: its proxy's gRPC address and its broker's own (host:port,host:port)
    #[arg(long, value_name = "PROXY,BROKER", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts",
          conflicts_with = "kafka2")]
    rocketmq: Option<String>,
    /// Brokers a and b change places: RocketMQ (or --kafka2) is the master of cash, --kafka its backup
    #[arg(long, help_heading = "Real parts")]
    swap: bool,
    /// Tokens are kept in this Redis (redis://…; several with commas are a cluster)
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    redis: Option<String>,
    /// The ledger is in this PostgreSQL (postgres://user:password@host:port/database)
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    postgres: Option<String>,
    /// The live rules are in this etcd (http://host:port; several with commas)
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    etcd: Option<String>,
}

impl BackendArgs {
    /// Whether anything real is asked for.
    pub fn is_empty(&self) -> bool {
        let parts = [&self.kafka, &self.kafka2, &self.rocketmq, &self.redis, &self.postgres, &self.etcd];
        parts.iter().all(|part| part.is_none())
    }

    /// Finds the addresses. `run` keeps this run's topics, keys and tables apart from others.
    pub fn resolve(&self, run: &str) -> Result<Backends> {
        let mut found = Backends { run: run.to_owned(), swap: self.swap, ..Backends::default() };
        let parts = [
            ("kafka", &self.kafka, &mut found.kafka),
            ("kafka2", &self.kafka2, &mut found.kafka2),
            ("rocketmq", &self.rocketmq, &mut found.rocketmq),
            ("redis", &self.redis, &mut found.redis),
            ("postgres", &self.postgres, &mut found.postgres),
            ("etcd", &self.etcd, &mut found.etcd),
        ];
        for (name, asked, place) in parts {
            *place = match asked.as_deref() {
                None => None,
                Some(UP) => {
                    found.controlled.push(name.to_owned());
                    Some(running(name)?)
                }
                Some("") => bail!("--{name} has an empty address"),
                Some(address) if name == "rocketmq" && address.split(',').count() != 2 => bail!(
                    "--rocketmq takes the proxy's gRPC address and the broker's own, as host:port,host:port; \
                     not {address:?}"
                ),
                Some(address) => Some(address.to_owned()),
            };
        }
        Ok(found)
    }
}

/// The address of a server that `./dev up` runs.
fn running(name: &str) -> Result<String> {
    let server = Servers::from_env().server(name).with_context(|| {
        format!("no {name} is up; start it with `./dev up {name}`, or give --{name} an address")
    })?;
    match name {
        "rocketmq" => Ok(format!("{},{}", server.url(), server.address("broker")?)),
        _ => Ok(server.url().to_owned()),
    }
}
