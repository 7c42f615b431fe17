//! Which real parts a command line asks for.

use super::backends::Backends;
use super::servers::{Described, ServersProgram};
use crate::drivers::{Driver, ReachArgs};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use windfall_tls::TlsOptions;

/// Stands for "the one that `./dev up` runs".
const UP: &str = "up";

/// Real parts in place of the embedded ones. Without an address: the server that `./dev up` runs.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct BackendArgs {
    /// Broker a is this Kafka cluster (host:port,…); without an address, the one that `./dev up` runs
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    kafka: Option<String>,
    /// Broker b is this Kafka cluster
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    kafka2: Option<String>,
    /// Broker b is this RocketMQ: its proxy's gRPC address and its broker's own (host:port,host:port)
    #[arg(long, value_name = "PROXY,BROKER", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts",
          conflicts_with = "kafka2")]
    rocketmq: Option<String>,
    /// Brokers a and b change places: RocketMQ (or --kafka2) is the master of cash, and --kafka is its backup
    #[arg(long, help_heading = "Real parts")]
    swap: bool,
    /// Tokens are kept in this Redis (redis://…, or rediss://… for TLS; several URLs with commas between are a cluster)
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    redis: Option<String>,
    /// The ledger is in this PostgreSQL (postgres://user:password@host:port/database)
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    postgres: Option<String>,
    /// The live rules are in this etcd (http://host:port, or https://… for TLS; several URLs with commas between)
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = UP, help_heading = "Real parts")]
    etcd: Option<String>,
    #[command(flatten)]
    reach: ReachArgs,
}

/// The program that knows the servers which `./dev up` runs.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServersArgs {
    /// The program windfall-servers: it tells the addresses of the servers that `./dev up` runs, and the demo freezes,
    /// kills and starts these servers through it; `./dev demo` builds it and names it here. Without it no server is
    /// stopped
    #[arg(long, value_name = "FILE", env = "WINDFALL_SERVERS_PROGRAM", help_heading = "Real parts")]
    servers_program: Option<OsString>,
}

impl ServersArgs {
    /// The program, where one is named.
    pub fn program(&self) -> Option<ServersProgram> {
        // An empty variable names nothing.
        let named = self.servers_program.as_deref().filter(|path| !path.is_empty());
        named.map(|path| ServersProgram::new(Path::new(path)))
    }
}

impl BackendArgs {
    /// Whether any real server is asked for.
    pub fn is_empty(&self) -> bool {
        let parts = [&self.kafka, &self.kafka2, &self.rocketmq, &self.redis, &self.postgres, &self.etcd];
        parts.iter().all(|part| part.is_none())
    }

    /// Finds the addresses. `run` keeps this run's topics, keys and tables apart from others.
    pub fn resolve(&self, run: &str, program: Option<&ServersProgram>) -> Result<Backends> {
        let reach = self.reach.reach();
        let mut found = Backends { run: run.to_owned(), swap: self.swap, reach, ..Backends::default() };
        let mut up = None;
        let mut authority = None;
        let parts = [
            ("kafka", Driver::Kafka, &self.kafka, &mut found.kafka),
            ("kafka2", Driver::Kafka, &self.kafka2, &mut found.kafka2),
            ("rocketmq", Driver::RocketMq, &self.rocketmq, &mut found.rocketmq),
            ("redis", Driver::Redis, &self.redis, &mut found.redis),
            ("postgres", Driver::Postgres, &self.postgres, &mut found.postgres),
            ("etcd", Driver::Etcd, &self.etcd, &mut found.etcd),
        ];
        for (name, driver, asked, place) in parts {
            let Some(asked) = asked.as_deref() else { continue };
            driver.check().with_context(|| format!("--{name} cannot be used"))?;
            *place = Some(match asked {
                UP => {
                    found.controlled.push(name.to_owned());
                    if up.is_none() {
                        up = Some(running(name, program)?);
                    }
                    let server = up.as_ref().and_then(|up| up.get(name));
                    authority =
                        authority.or_else(|| server.and_then(|server| server.settings.get("ca").cloned()));
                    address(name, server)?
                }
                "" => bail!("--{name} has an empty address"),
                address if name == "rocketmq" && address.split(',').count() != 2 => bail!(
                    "--rocketmq takes the proxy's gRPC address and the broker's own, as host:port,host:port; \
                     not {address:?}"
                ),
                address => address.to_owned(),
            });
        }
        // Servers of `./dev up --tls` have an authority of their own.
        if let (Some(file), None) = (authority, &found.reach.tls) {
            found.reach.tls = Some(TlsOptions { ca_file: Some(file.into()), ..TlsOptions::default() });
        }
        found.check()?;
        Ok(found)
    }
}

/// The servers that `./dev up` runs.
fn running(name: &str, program: Option<&ServersProgram>) -> Result<BTreeMap<String, Described>> {
    let Some(program) = program else {
        bail!(
            "--{name} without an address means the server that `./dev up` runs, and the program windfall-servers knows \
             where that is: run `./dev demo --{name}`, or name the program by --servers-program or \
             WINDFALL_SERVERS_PROGRAM, or give --{name} an address"
        );
    };
    program.status().context("the servers that `./dev up` runs are not known")
}

/// The address of one of them.
fn address(name: &str, server: Option<&Described>) -> Result<String> {
    let server = server.with_context(|| {
        format!("no {name} is up; start it with `./dev up {name}`, or give --{name} an address")
    })?;
    if name != "rocketmq" {
        return Ok(server.url.clone());
    }
    let broker =
        server.addresses.get("broker").context("the running rocketmq has no address of its broker")?;
    Ok(format!("{},{broker}", server.url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_dev_up_without_the_program_is_refused_with_what_to_do() {
        let asked = BackendArgs { postgres: Some(UP.into()), ..BackendArgs::default() };
        let refused = format!("{:#}", asked.resolve("run", None).unwrap_err());
        // A binary without the driver says that first.
        let expected =
            if Driver::Postgres.is_built() { "--servers-program" } else { "built without PostgreSQL" };
        assert!(refused.contains("--postgres") && refused.contains(expected), "{refused}");
    }

    #[test]
    fn an_address_needs_no_program_and_is_not_ours_to_stop() {
        let asked = BackendArgs { kafka: Some("localhost:9092".into()), ..BackendArgs::default() };
        match asked.resolve("run", None) {
            Ok(found) => {
                assert_eq!(found.kafka.as_deref(), Some("localhost:9092"));
                assert!(found.controlled.is_empty());
                let elsewhere = BackendArgs { kafka: Some("host:9092".into()), ..asked };
                let refused = format!("{:#}", elsewhere.resolve("run", None).unwrap_err());
                assert!(refused.contains("Kafka at host") && refused.contains("--plaintext"), "{refused}");
            }
            Err(error) => {
                assert!(!Driver::Kafka.is_built(), "{error:#}");
                assert!(
                    format!("{error:#}")
                        .starts_with("--kafka cannot be used: this binary was built without Kafka")
                );
            }
        }
    }
}
