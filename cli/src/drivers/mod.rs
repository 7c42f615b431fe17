//! The one place where this binary opens drivers: brokers, token store, ledger, slot store and live rules, embedded or on real
//! servers. The SDK's builder opens brokers itself (`sdk/src/brokers.rs`), for services that link it and not this binary.
//!
//! An options file of a role and a demo's command line both come down to the same choices: [`BrokerAt`], [`TokensAt`],
//! [`LedgerAt`], [`RulesAt`]; a role also has [`SlotsAt`], where timers wait, and [`JobsAt`], where the jobs of
//! task queues do, and [`EntriesAt`], where cron and one-off jobs lie. Each driver of a real server is a cargo
//! feature of this binary; a binary that was built without one still reads the options that name it, and refuses them by
//! [`Driver::check`]. Each choice has a `check`, which refuses, before anything is connected to or changed, what cannot be
//! opened as it is asked for: also a server that would be reached in plain text without leave.

mod brokers;
#[cfg(feature = "roles")]
mod entries;
#[cfg(feature = "roles")]
mod far;
#[cfg(feature = "roles")]
mod far_keeper;
#[cfg(feature = "roles")]
mod jobs;
mod ledger;
mod ledger_mark;
mod opened;
mod reach;
mod rules;
mod slots;
mod tokens;

use anyhow::{Result, bail};
pub use brokers::BrokerAt;
#[cfg(feature = "roles")]
pub use entries::EntriesAt;
#[cfg(feature = "roles")]
pub use far::{Far, FarAt, far_elsewhere};
#[cfg(feature = "roles")]
pub use jobs::{JobsAt, OpenJobs};
pub use ledger::{LedgerAt, Migration, PostgresAt};
pub use ledger_mark::{LedgerMark, LedgerMarkAt};
pub use opened::{Connect, Entries, Slots};
pub use reach::{ON_A_COMMAND_LINE, Reach, ReachArgs};
pub use rules::{RulesAt, RulesFollower};
pub use slots::{DurabilityAt, SlotsAt};
pub use tokens::TokensAt;

/// The far tier, which a binary without the roles does not have.
#[cfg(not(feature = "roles"))]
pub enum Far {}

/// Whether opening a driver may succeed later though nobody changes an option: its server is away.
pub fn may_pass(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        #[cfg(feature = "redis")]
        if let Some(error) = cause.downcast_ref::<windfall_store::redis::OpenRedisError>() {
            return error.may_pass();
        }
        #[cfg(feature = "postgres")]
        if let Some(error) = cause.downcast_ref::<windfall_ledger::OpenError>() {
            return error.may_pass();
        }
        #[cfg(feature = "etcd")]
        if let Some(error) = cause.downcast_ref::<windfall_config::etcd::OpenEtcdError>() {
            return error.may_pass();
        }
        let _ = cause;
        false
    })
}

/// A driver that this binary may have been built without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// Apache Kafka.
    Kafka,
    /// Apache RocketMQ.
    RocketMq,
    /// Redis and Redis Cluster.
    Redis,
    /// PostgreSQL.
    Postgres,
    /// etcd.
    Etcd,
    /// S3.
    S3,
    /// OpenTelemetry's protocol, by which traces are exported.
    Otlp,
}

impl Driver {
    /// Its name, and the cargo feature that builds it.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Kafka => ("Kafka", "kafka"),
            Self::RocketMq => ("RocketMQ", "rocketmq"),
            Self::Redis => ("Redis", "redis"),
            Self::Postgres => ("PostgreSQL", "postgres"),
            Self::Etcd => ("etcd", "etcd"),
            Self::S3 => ("S3", "s3"),
            Self::Otlp => ("OTLP", "otlp"),
        }
    }

    /// Whether this binary was built with it.
    pub const fn is_built(self) -> bool {
        match self {
            Self::Kafka => cfg!(feature = "kafka"),
            Self::RocketMq => cfg!(feature = "rocketmq"),
            Self::Redis => cfg!(feature = "redis"),
            Self::Postgres => cfg!(feature = "postgres"),
            Self::Etcd => cfg!(feature = "etcd"),
            Self::S3 => cfg!(feature = "s3"),
            Self::Otlp => cfg!(feature = "otlp"),
        }
    }

    /// Refuses what needs a driver that is not there.
    pub fn check(self) -> Result<()> {
        if self.is_built() {
            return Ok(());
        }
        let (name, feature) = self.names();
        bail!(
            "this binary was built without {name}; build it with `./dev run …`, or with cargo's feature `{feature}`"
        )
    }

    /// The error of opening a driver for which [`Driver::check`] was not called before.
    #[cfg_attr(
        all(
            feature = "kafka",
            feature = "rocketmq",
            feature = "redis",
            feature = "postgres",
            feature = "etcd",
            feature = "s3"
        ),
        expect(dead_code, reason = "every driver is there")
    )]
    fn absent<T>(self) -> Result<T> {
        self.check()?;
        bail!("{} was not opened", self.names().0)
    }
}

/// Stands for the options of a driver that this binary was built without. It takes any, for nothing reads them.
#[cfg(not(all(feature = "kafka", feature = "rocketmq", feature = "redis", feature = "etcd")))]
#[derive(Debug, Clone, Copy)]
pub struct Absent;

#[cfg(not(all(feature = "kafka", feature = "rocketmq", feature = "redis", feature = "etcd")))]
impl<'de> serde::Deserialize<'de> for Absent {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(from).map(|_| Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_was_not_built_is_refused_by_name() {
        use Driver::{Etcd, Kafka, Otlp, Postgres, Redis, RocketMq, S3};
        for driver in [Kafka, RocketMq, Redis, Postgres, Etcd, S3, Otlp] {
            let refused = driver.check().map_err(|error| error.to_string());
            let (name, feature) = driver.names();
            match refused {
                Ok(()) => assert!(driver.is_built(), "{name}"),
                Err(error) => {
                    let expected =
                        format!("this binary was built without {name}; build it with `./dev run …`");
                    assert!(!driver.is_built() && error.starts_with(&expected), "{error}");
                    assert!(error.contains(&format!("`{feature}`")), "{error}");
                }
            }
        }
    }

    #[test]
    fn the_options_of_every_driver_are_read_whether_it_was_built_or_not() {
        let brokers = "kafka = { bootstrap_servers = \"localhost:9092\" }";
        let broker: BrokerAt = toml::from_str(brokers).unwrap();
        assert_eq!(broker.driver(), Some(Driver::Kafka));
        let broker: BrokerAt = toml::from_str("rocketmq = { endpoints = [\"localhost:8081\"] }").unwrap();
        assert_eq!(broker.driver(), Some(Driver::RocketMq));
        let tokens: TokensAt = toml::from_str("redis = { urls = [\"redis://localhost\"] }").unwrap();
        assert_eq!(tokens.driver(), Some(Driver::Redis));
        let ledger: LedgerAt = toml::from_str("postgres = { url = \"postgres://localhost\" }").unwrap();
        assert_eq!(ledger.driver(), Some(Driver::Postgres));
        let slots: SlotsAt = toml::from_str("redis = { urls = [\"redis://localhost\"] }").unwrap();
        assert_eq!(slots.driver(), Some(Driver::Redis));
        let rules: RulesAt = toml::from_str("etcd = { endpoints = [\"http://localhost:2379\"] }").unwrap();
        assert_eq!(rules.driver(), Some(Driver::Etcd));
    }
}
