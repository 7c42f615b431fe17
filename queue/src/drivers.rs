//! The kinds of brokers that this build knows. A new driver is a folder and one line in [`DRIVERS`].

use crate::embedded::{EmbeddedBroker, EmbeddedOptions};
#[cfg(feature = "kafka")]
use crate::kafka::{KafkaBroker, KafkaOptions};
use std::path::Path;
use std::sync::Arc;
use windfall_contract::broker::{Broker, OpenError};

/// What a driver is opened with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokerOptions {
    /// Where the broker is: a directory for `embedded`, `host:port` and more of them with commas for `kafka`, unless
    /// its own options say so.
    pub place: String,
    /// For `embedded` alone.
    pub embedded: EmbeddedOptions,
    /// For `kafka` alone.
    #[cfg(feature = "kafka")]
    pub kafka: KafkaOptions,
}

/// One kind of broker.
#[derive(Debug, Clone, Copy)]
pub struct Driver {
    /// As the configuration names it.
    pub name: &'static str,
    /// Opens a broker of this kind. May block.
    pub open: fn(&BrokerOptions) -> Result<Arc<dyn Broker>, OpenError>,
}

/// All kinds of brokers.
pub const DRIVERS: &[Driver] = &[
    Driver { name: "embedded", open: open_embedded },
    #[cfg(feature = "kafka")]
    Driver { name: "kafka", open: open_kafka },
];

/// Opens a broker of the kind `kind`. May block.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use windfall_queue::drivers::{self, BrokerOptions};
///
/// let options = BrokerOptions { place: dir.path().display().to_string(), ..BrokerOptions::default() };
/// let broker = drivers::open("embedded", &options)?;
/// broker.ensure_topic("rewards", 4)?;
///
/// let refused = drivers::open("embeded", &options).err().map(|error| error.to_string());
/// assert!(refused.is_some_and(|why| why.starts_with("there is no broker kind \"embeded\"; known: embedded")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OpenError::Invalid`] for an unknown kind, else what the driver says.
pub fn open(kind: &str, options: &BrokerOptions) -> Result<Arc<dyn Broker>, OpenError> {
    match DRIVERS.iter().find(|driver| driver.name == kind) {
        Some(driver) => (driver.open)(options),
        None => {
            let known: Vec<_> = DRIVERS.iter().map(|driver| driver.name).collect();
            let known = known.join(", ");
            Err(OpenError::Invalid(format!("there is no broker kind {kind:?}; known: {known}")))
        }
    }
}

fn open_embedded(options: &BrokerOptions) -> Result<Arc<dyn Broker>, OpenError> {
    Ok(EmbeddedBroker::open(Path::new(&options.place), &options.embedded)?)
}

#[cfg(feature = "kafka")]
fn open_kafka(options: &BrokerOptions) -> Result<Arc<dyn Broker>, OpenError> {
    let mut kafka = options.kafka.clone();
    if kafka.bootstrap_servers.is_empty() {
        kafka.bootstrap_servers.clone_from(&options.place);
    }
    Ok(KafkaBroker::open(&kafka)?)
}
