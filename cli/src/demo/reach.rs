//! A demo's servers are there when it starts. A service waits for brokers that are away; whoever gave a demo a wrong
//! address wants to read so at once.

use super::backends::{Backends, Kind};
use crate::wiring::Parts;
use anyhow::{Context, Result};
use std::sync::Arc;

/// Makes the topics of the rules on each broker that is a server.
///
/// # Errors
/// The first broker that does not answer, by its name and address.
pub async fn brokers(backends: &Backends, parts: &Parts) -> Result<()> {
    let rules = parts.rules.current();
    for (name, broker) in &parts.brokers {
        let address = match backends.kind(name) {
            Kind::Embedded => continue,
            Kind::Kafka(_, address) => address.to_owned(),
            Kind::RocketMq(proxy, admin) => format!("{proxy},{admin}"),
        };
        let topics: Vec<_> = rules
            .topics
            .iter()
            .filter(|(_, topic)| topic.broker == *name)
            .map(|(topic, own)| (topic.clone(), own.partitions))
            .collect();
        let broker = Arc::clone(broker);
        let ensure =
            move || topics.iter().try_for_each(|(topic, partitions)| broker.ensure_topic(topic, *partitions));
        tokio::task::spawn_blocking(ensure)
            .await?
            .with_context(|| format!("the queues on broker {name} at {address} cannot be opened"))?;
    }
    Ok(())
}
