//! The brokers that an SDK can be built with. A driver costs nothing unless its feature is on.
//!
//! Each driver's crate is here as a module, with whatever its options name: `kafka::Sasl` and `kafka::Secret` are the
//! credentials for Kafka, `rocketmq::Secret` is for RocketMQ. A driver of your own implements [`Broker`], whose other types are
//! in [`contract::broker`](crate::contract::broker).

pub use windfall_contract::broker::{Broker, OpenError};

#[cfg(feature = "embedded")]
pub use windfall_queue_embedded as embedded;
#[cfg(feature = "embedded")]
pub use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
#[cfg(feature = "kafka")]
pub use windfall_queue_kafka as kafka;
#[cfg(feature = "kafka")]
pub use windfall_queue_kafka::TlsOptions;
#[cfg(feature = "kafka")]
pub use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
#[cfg(feature = "rocketmq")]
pub use windfall_queue_rocketmq as rocketmq;
#[cfg(all(feature = "rocketmq", not(feature = "kafka")))]
pub use windfall_queue_rocketmq::TlsOptions;
#[cfg(feature = "rocketmq")]
pub use windfall_queue_rocketmq::{RocketBroker, RocketOptions};

use std::sync::Arc;

/// How `build` opens a broker that the builder was given.
///
/// The binary chooses among the same drivers in `cli/src/drivers/brokers.rs`. The two stay apart: the binary reads its choice from
/// an options file and refuses a driver that it was built without by an error, while the builder lacks the method of such a
/// driver. Neither crate can use the other's choice: whoever links the SDK does not link the binary, and the binary opens brokers
/// in processes that have no SDK.
pub(crate) enum BrokerSource {
    /// A broker that the caller has opened.
    Opened(Arc<dyn Broker>),
    #[cfg(feature = "embedded")]
    Embedded(std::path::PathBuf, EmbeddedOptions),
    #[cfg(feature = "kafka")]
    Kafka(Box<KafkaOptions>),
    #[cfg(feature = "rocketmq")]
    RocketMq(Box<RocketOptions>),
}

impl BrokerSource {
    /// Whether it is known that other processes can write to the broker. Of one that the caller has opened it is not.
    pub(crate) const fn is_shared(&self) -> bool {
        #[cfg(feature = "kafka")]
        if matches!(self, Self::Kafka(_)) {
            return true;
        }
        #[cfg(feature = "rocketmq")]
        if matches!(self, Self::RocketMq(_)) {
            return true;
        }
        false
    }

    /// Opens the broker. It blocks where a cluster is asked.
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

#[cfg(all(test, feature = "embedded", feature = "kafka", feature = "rocketmq"))]
mod tests {
    use super::*;

    #[test]
    fn clusters_can_be_written_by_others_and_files_of_this_process_cannot() {
        assert!(BrokerSource::Kafka(Box::new(KafkaOptions::at("127.0.0.1:1"))).is_shared());
        assert!(BrokerSource::RocketMq(Box::default()).is_shared());
        assert!(!BrokerSource::Embedded("brokers".into(), EmbeddedOptions::default()).is_shared());
    }
}
