//! The backends of a demo: the embedded parts, or real brokers and stores.

use crate::drivers::{BrokerAt, LedgerAt, ON_A_COMMAND_LINE, PostgresAt, Reach, RulesAt, TokensAt};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The parts of one data directory. Kept in its manifest, so that `--resume` and `reconcile` find them again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Backends {
    /// A text in the names of this run's topics, keys and tables.
    pub run: String,
    /// Servers that `./dev up` runs: what the troubles may stop.
    pub controlled: Vec<String>,
    /// Bootstrap servers.
    pub kafka: Option<String>,
    /// Bootstrap servers of the other cluster.
    pub kafka2: Option<String>,
    /// A proxy's gRPC address and its broker's own, with a comma between.
    pub rocketmq: Option<String>,
    /// Broker a is the one that is broker b without it, and the other way round.
    pub swap: bool,
    /// URLs, with commas in a cluster.
    pub redis: Option<String>,
    /// A URL.
    pub postgres: Option<String>,
    /// URLs of the members that keep the live rules.
    pub etcd: Option<String>,
    /// How all of them are reached.
    pub reach: Reach,
}

/// The backend of a broker of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// Files in the data directory.
    Embedded,
    /// A Kafka cluster: the server's name and its bootstrap servers.
    Kafka(&'static str, &'a str),
    /// RocketMQ: a proxy's address and a broker's.
    RocketMq(&'a str, &'a str),
}

impl Kind<'_> {
    /// The name of the server, where it is one.
    pub fn server(self) -> Option<&'static str> {
        match self {
            Self::Embedded => None,
            Self::Kafka(name, _) => Some(name),
            Self::RocketMq(..) => Some("rocketmq"),
        }
    }
}

impl Backends {
    /// The real servers by name, with the addresses that were asked for.
    pub fn servers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let parts = [
            ("kafka", &self.kafka),
            ("kafka2", &self.kafka2),
            ("rocketmq", &self.rocketmq),
            ("redis", &self.redis),
            ("postgres", &self.postgres),
            ("etcd", &self.etcd),
        ];
        parts.into_iter().filter_map(|(name, address)| Some((name, address.as_deref()?)))
    }

    /// Whether every backend is embedded.
    pub fn is_embedded(&self) -> bool {
        self.servers().next().is_none()
    }

    /// Refuses servers that cannot be reached as they are asked for. Connects to nothing.
    pub fn check(&self) -> Result<()> {
        let said = |what: &str, checked: Result<()>| {
            checked.with_context(|| format!("{what} cannot be used ({ON_A_COMMAND_LINE})"))
        };
        for name in ["a", "b"] {
            said(&format!("broker {name}"), self.broker(name).check())?;
        }
        said("--redis", self.tokens().check())?;
        said("--postgres", self.ledger().check())?;
        said("--etcd", self.rules().check())
    }

    /// The backend of the broker that the rules call `name`.
    pub fn kind(&self, name: &str) -> Kind<'_> {
        let first = self.kafka.as_deref().map(|address| Kind::Kafka("kafka", address));
        let second = self.kafka2.as_deref().map(|address| Kind::Kafka("kafka2", address));
        let rocket = self.rocketmq.as_deref().and_then(|both| both.split_once(','));
        let other = rocket.map(|(proxy, broker)| Kind::RocketMq(proxy, broker)).or(second);
        (if (name == "a") != self.swap { first } else { other }).unwrap_or(Kind::Embedded)
    }

    /// The address of the broker that the rules call `name`.
    pub fn broker(&self, name: &str) -> BrokerAt {
        let prefix = format!("windfall-{}-", self.run);
        match self.kind(name) {
            Kind::Embedded => BrokerAt::Embedded,
            Kind::Kafka(_, address) => BrokerAt::kafka(address, prefix, &self.reach),
            Kind::RocketMq(proxy, broker) => BrokerAt::rocketmq(proxy, broker, prefix, &self.reach),
        }
    }

    /// Where the token store is.
    pub fn tokens(&self) -> TokensAt {
        match &self.redis {
            Some(urls) => TokensAt::redis(urls, format!("windfall-{}:", self.run), &self.reach),
            None => TokensAt::Embedded,
        }
    }

    /// Where the ledger is.
    pub fn ledger(&self) -> LedgerAt {
        match &self.postgres {
            Some(url) => LedgerAt::Postgres(PostgresAt {
                url: url.clone(),
                schema: format!("windfall_{}", self.run),
                tls: self.reach.tls.clone(),
                plaintext: self.reach.plaintext,
                failover_without_synchronous_standby: false,
            }),
            None => LedgerAt::File,
        }
    }

    /// Where the live rules are.
    pub fn rules(&self) -> RulesAt {
        match &self.etcd {
            Some(urls) => {
                let urls = urls.split(',').map(str::to_owned).collect();
                RulesAt::etcd(urls, format!("/windfall-{}/rules/", self.run), None, &self.reach)
            }
            None => RulesAt::Data,
        }
    }
}
