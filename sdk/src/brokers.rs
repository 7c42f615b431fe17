//! The brokers that an SDK can be built with. Each driver but those of the features in use costs nothing.

pub use windfall_contract::broker::{Broker, OpenError};

#[cfg(feature = "embedded")]
pub use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
#[cfg(feature = "kafka")]
pub use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
#[cfg(feature = "rocketmq")]
pub use windfall_queue_rocketmq::{RocketBroker, RocketOptions};

use std::sync::Arc;

/// How a broker of a builder comes to be. It is opened by `build`.
pub(crate) enum BrokerSource {
    /// The caller has opened it.
    Opened(Arc<dyn Broker>),
    #[cfg(feature = "embedded")]
    Embedded(std::path::PathBuf, EmbeddedOptions),
    #[cfg(feature = "kafka")]
    Kafka(Box<KafkaOptions>),
    #[cfg(feature = "rocketmq")]
    RocketMq(Box<RocketOptions>),
}

impl BrokerSource {
    /// Opens it. Blocks, where a cluster is asked.
    pub(crate) fn open(self) -> Result<Arc<dyn Broker>, OpenError> {
        match self {
            Self::Opened(broker) => Ok(broker),
            #[cfg(feature = "embedded")]
            Self::Embedded(dir, options) => EmbeddedBroker::open(&dir, &options).map(|broker| broker as _),
            #[cfg(feature = "kafka")]
            Self::Kafka(options) => KafkaBroker::open(&options).map(|broker| broker as _),
            #[cfg(feature = "rocketmq")]
            Self::RocketMq(options) => RocketBroker::open(&options).map(|broker| Arc::new(broker) as _),
        }
    }
}
