//! Whether all brokers are on this machine, where plain text must not leave it.
//!
//! librdkafka uses the bootstrap servers once, and then connects to the hosts that the cluster names
//! (`advertised.listeners`), with the password of SASL. A member of a group does so by itself at once. So a client that
//! is none, and that connects to bootstrap servers alone, asks for these hosts before any other client is made.

use super::cluster::{configured, tried};
use super::options::KafkaOptions;
use super::watch::Watch;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};
use std::time::Duration;
use windfall_contract::broker::OpenError;
use windfall_tls::Security;

/// Asks the bootstrap servers which brokers there are.
pub(super) struct Local(BaseProducer<Watch>);

impl ProducerContext for Watch {
    type DeliveryOpaque = ();

    /// Nothing is sent.
    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

impl Local {
    /// `None` where brokers may be anywhere.
    pub(super) fn new(options: &KafkaOptions) -> Result<Option<Self>, OpenError> {
        if Security::new(options.tls.as_ref(), options.plaintext).map_err(invalid)? != Security::Local {
            return Ok(None);
        }
        let mut config = options.client();
        // Else it would connect to every broker that it hears of.
        config.set("enable.sparse.connections", "true");
        config.create_with_context(Watch::default()).map(|client| Some(Self(client))).map_err(configured)
    }

    /// Whether all brokers may be reached.
    pub(super) fn judge(&self, options: &KafkaOptions) -> Result<(), OpenError> {
        let client = &self.0;
        let ask = |wait| client.client().fetch_metadata(None, wait);
        let hand_over = || {
            client.poll(Duration::ZERO);
        };
        let found = tried(options, client.context(), ask, hand_over)?;
        allowed(found.brokers().iter().map(|broker| broker.host()))
    }
}

/// Whether the hosts that the cluster names may be reached in plain text.
fn allowed<'a>(mut hosts: impl Iterator<Item = &'a str>) -> Result<(), OpenError> {
    hosts
        .try_for_each(|host| Security::Local.allow("Kafka, by its advertised.listeners", host))
        .map_err(invalid)
}

fn invalid(error: windfall_tls::TlsError) -> OpenError {
    OpenError::Invalid(format!("kafka: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_the_cluster_names_on_another_machine_is_refused() {
        assert_eq!(allowed(["127.0.0.1", "::1", "localhost"].into_iter()), Ok(()));
        let refused = allowed(["127.0.0.1", "kafka-2.corp"].into_iter()).unwrap_err();
        assert!(
            matches!(&refused, OpenError::Invalid(what) if what.contains("kafka-2.corp is not on")),
            "{refused}"
        );
    }

    #[test]
    fn brokers_are_judged_only_where_plain_text_must_not_leave() {
        let options = KafkaOptions::at("127.0.0.1:1");
        assert!(Local::new(&options).unwrap().is_some());
        assert!(Local::new(&KafkaOptions { plaintext: true, ..options }).unwrap().is_none());
    }
}
