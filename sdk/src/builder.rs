//! Builds an SDK with all its parts: rules, keys, brokers, queues, spool.

use crate::brokers::{Broker, BrokerSource};
use crate::error::BuildError;
use crate::options::{SdkOptions, SpoolMode};
use crate::sdk::{Owned, Sdk, SdkParts};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use windfall_config::{FileSource, LiveRules};
use windfall_contract::Clock;
use windfall_contract::tokens::TokenStore;
use windfall_queue_virtual::{Fanout, FanoutOptions};
use windfall_signing::{RingFile, RingUse, Signer};
use windfall_token::{KeyRing, KeyRingFile};

/// How long a start waits for topics to be open.
const START_GRACE: Duration = Duration::from_millis(250);

/// Puts an SDK together. Rules, keys, a spool and the brokers that the rules name are needed; the rest has defaults.
///
/// Made by [`Sdk::builder`]. What it opens the SDK closes: [`Sdk::close`] ends the queues and the watching of the
/// rules as well.
#[must_use = "nothing is opened before `build`"]
pub struct SdkBuilder {
    options: SdkOptions,
    rules: Option<RulesSource>,
    keys: Option<KeysSource>,
    signing: Option<SigningSource>,
    brokers: BTreeMap<String, BrokerSource>,
    spool: Option<SpoolAt>,
    tokens: Option<Arc<dyn TokenStore>>,
    fanout: FanoutOptions,
    clock: Clock,
}

enum SpoolAt {
    /// A directory, with the durability that the options set.
    Dir(PathBuf),
    Mode(SpoolMode),
}

enum RulesSource {
    File(PathBuf),
    Live(LiveRules),
}

enum KeysSource {
    File(PathBuf),
    Ring(KeyRing),
}

enum SigningSource {
    File(PathBuf, String),
    Signer(Signer),
}

impl Sdk {
    /// Begins an SDK whose tokens are bound to the app `app_id`.
    pub fn builder(app_id: impl Into<String>) -> SdkBuilder {
        SdkBuilder {
            options: SdkOptions { app_id: app_id.into(), ..SdkOptions::default() },
            rules: None,
            keys: None,
            signing: None,
            brokers: BTreeMap::new(),
            spool: None,
            tokens: None,
            fanout: FanoutOptions::default(),
            clock: Clock::system(),
        }
    }
}

impl SdkBuilder {
    /// Reads the live rules from a file and follows its changes.
    pub fn rules_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.rules = Some(RulesSource::File(path.into()));
        self
    }

    /// Follows rules that the caller has opened, from etcd for example.
    pub fn rules(mut self, rules: LiveRules) -> Self {
        self.rules = Some(RulesSource::Live(rules));
        self
    }

    /// Reads the key ring from a file, which `windfall keys new` makes, and follows it: a key that is promoted there mints
    /// once that has been known for [`SdkOptions::mint_after_ms`].
    pub fn keys_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.keys = Some(KeysSource::File(path.into()));
        self
    }

    /// Mints with a key ring that the caller has opened.
    pub fn keys(mut self, keys: KeyRing) -> Self {
        self.keys = Some(KeysSource::Ring(keys));
        self
    }

    /// Signs records as `sender`, with its primary key in this file, which `windfall signing export` makes. The file is read
    /// again when it changes. Without a key records are not signed, which the log warns of: consumers archive such records as
    /// `unverified`, and grant nothing of them, unless their options accept them by name (`unsigned = "accept"`).
    pub fn signing_file(mut self, path: impl Into<PathBuf>, sender: impl Into<String>) -> Self {
        self.signing = Some(SigningSource::File(path.into(), sender.into()));
        self
    }

    /// Signs records by a signer that the caller has made, for the app of this builder.
    pub fn signer(mut self, signer: Signer) -> Self {
        self.signing = Some(SigningSource::Signer(signer));
        self
    }

    /// The Kafka cluster at `bootstrap_servers` (`host:port` with commas between) is what the rules call `name`. It is
    /// on this machine; elsewhere [`kafka_with`](Self::kafka_with) has to say `tls`, or `plaintext`.
    #[cfg(feature = "kafka")]
    pub fn kafka(self, name: impl Into<String>, bootstrap_servers: &str) -> Self {
        self.kafka_with(name, crate::brokers::KafkaOptions::at(bootstrap_servers))
    }

    /// [`kafka`](Self::kafka) with TLS, credentials ([`Sasl`](crate::brokers::kafka::Sasl)) and other options.
    #[cfg(feature = "kafka")]
    pub fn kafka_with(self, name: impl Into<String>, options: crate::brokers::KafkaOptions) -> Self {
        self.source(name, BrokerSource::Kafka(Box::new(options)))
    }

    /// The RocketMQ proxy at `endpoint` (`host:port` of its gRPC port) is what the rules call `name`. It is on this machine;
    /// elsewhere [`rocketmq_with`](Self::rocketmq_with) has to say `tls`, or `plaintext`.
    #[cfg(feature = "rocketmq")]
    pub fn rocketmq(self, name: impl Into<String>, endpoint: impl Into<String>) -> Self {
        let endpoints = vec![endpoint.into()];
        self.rocketmq_with(name, crate::brokers::RocketOptions { endpoints, ..Default::default() })
    }

    /// [`rocketmq`](Self::rocketmq) with several proxies, TLS, credentials (a [`Secret`](crate::brokers::rocketmq::Secret)) and
    /// other options.
    #[cfg(feature = "rocketmq")]
    pub fn rocketmq_with(self, name: impl Into<String>, options: crate::brokers::RocketOptions) -> Self {
        self.source(name, BrokerSource::RocketMq(Box::new(options)))
    }

    /// A broker inside this process, on files below `dir`, is what the rules call `name`. No other process can read
    /// it: for tests and trials.
    #[cfg(feature = "embedded")]
    pub fn embedded(self, name: impl Into<String>, dir: impl Into<PathBuf>) -> Self {
        self.source(name, BrokerSource::Embedded(dir.into(), crate::brokers::EmbeddedOptions::default()))
    }

    /// A broker that the caller has opened is what the rules call `name`.
    pub fn broker(self, name: impl Into<String>, broker: Arc<dyn Broker>) -> Self {
        self.source(name, BrokerSource::Opened(broker))
    }

    /// Keeps events in memory-mapped files below `dir` until a broker has them: they survive the death of the
    /// process (I2), and with [`SdkOptions::spool_durability`] that of the machine.
    pub fn spool_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.spool = Some(SpoolAt::Dir(dir.into()));
        self
    }

    /// Keeps events where [`SpoolMode`] says, whatever the options' durability.
    pub fn spool(mut self, spool: SpoolMode) -> Self {
        self.spool = Some(SpoolAt::Mode(spool));
        self
    }

    /// Writes tokens to this store for wallets to list and verify. Without one, users hold the only copies.
    pub fn tokens(mut self, store: Arc<dyn TokenStore>) -> Self {
        self.tokens = Some(store);
        self
    }

    /// Sets how the SDK gathers and keeps. The app id stays the one that the builder was made with.
    pub fn options(mut self, options: SdkOptions) -> Self {
        self.options = SdkOptions { app_id: self.options.app_id, ..options };
        self
    }

    /// Sets how patient the queues are with their brokers.
    pub fn fanout(mut self, options: FanoutOptions) -> Self {
        self.fanout = options;
        self
    }

    /// Sets the clock. The default is the machine's.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Opens everything, takes over what earlier processes left in the spool (see [`Sdk::inherited`]), and starts
    /// sending. Blocks for the disk: on a runtime, call it by `spawn_blocking`.
    ///
    /// Brokers may be away: their topics are opened when they come, and events wait in the spool until then
    /// ([`Sdk::topics`] says how each topic is doing). So that the first packs go where the rules say, a start waits
    /// for the topics a quarter of a second at most.
    ///
    /// # Errors
    /// [`BuildError`]; nothing is left running.
    pub fn build(self) -> Result<Sdk, BuildError> {
        let Self { options, rules, keys, signing, brokers, spool, tokens, fanout, clock } = self;
        // What is missing is said before anything is opened.
        let spool = spool.ok_or(BuildError::Missing { what: "a spool", call: "spool_dir" })?;
        let spool = match spool {
            SpoolAt::Dir(dir) => options.spool_in(dir),
            SpoolAt::Mode(mode) => mode,
        };
        let keys = keys.ok_or(BuildError::Missing { what: "keys", call: "keys_file" })?;
        let rules = rules.ok_or(BuildError::Missing { what: "rules", call: "rules_file" })?;
        let (keys, keys_file) = match keys {
            KeysSource::File(path) => match KeyRing::load(&path) {
                Ok(ring) => (ring, Some(KeyRingFile::new(path))),
                Err(source) => return Err(BuildError::Keys { path, source }),
            },
            KeysSource::Ring(ring) => (ring, None),
        };
        let (signer, ring_file) = open_signer(signing, &options.app_id)?;
        if signer.is_none() && brokers.values().any(BrokerSource::is_shared) {
            // Nobody can steal by it, and a program that links the SDK must not fail to start over it after an update: consumers
            // archive such records by default, and an operator can vouch for them.
            tracing::warn!(
                app = options.app_id.as_str(),
                "records are not signed, since the builder was given no signing_file: a consumer archives them as unverified, unless \
                 its options accept unsigned records of the topic by name"
            );
        }
        let (rules, rules_source) = match rules {
            RulesSource::File(path) => {
                let (known, now) = (Some(brokers.keys().cloned().collect()), clock.clone());
                let (live, source) = FileSource::open(&path, known, move || now.unix_ms())?;
                (live, Some(source))
            }
            RulesSource::Live(live) => (live, None),
        };
        let open = |(name, source): (String, BrokerSource)| match source.open() {
            Ok(broker) => Ok((name, broker)),
            Err(source) => Err(BuildError::Broker { name, source }),
        };
        let brokers = brokers.into_iter().map(open).collect::<Result<BTreeMap<_, _>, BuildError>>()?;
        let fanout = Fanout::open(&rules.current(), brokers, fanout, clock.clone());
        let fanout = Arc::new(fanout.map_err(BuildError::Queues)?);
        fanout.wait_until_open(START_GRACE);
        let parts = SdkParts { spool, keys, signer, rules, fanout: Arc::clone(&fanout), tokens, clock };
        match Sdk::open(options, parts, Some(Owned { rules_source, keys_file, ring_file })) {
            Ok((sdk, _inherited)) => Ok(sdk),
            Err(error) => {
                fanout.close(Duration::ZERO);
                Err(error.into())
            }
        }
    }

    fn source(mut self, name: impl Into<String>, source: BrokerSource) -> Self {
        self.brokers.insert(name.into(), source);
        self
    }
}

fn open_signer(
    signing: Option<SigningSource>,
    app_id: &str,
) -> Result<(Option<Signer>, Option<RingFile>), BuildError> {
    let (path, sender) = match signing {
        None => return Ok((None, None)),
        Some(SigningSource::Signer(signer)) => return Ok((Some(signer), None)),
        Some(SigningSource::File(path, sender)) => (path, sender),
    };
    let opened = RingFile::open(&path, &sender, RingUse::Sends).and_then(|file| {
        let signer = Signer::new(file.ring(), &sender, app_id)?;
        Ok((Some(signer), Some(file)))
    });
    opened.map_err(|source| BuildError::Signing { path, source })
}
