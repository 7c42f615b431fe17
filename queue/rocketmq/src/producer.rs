//! A producer as callers hold it: its records wait in [`PendingRecords`], its sender sends them.

use super::engine::Engine;
use super::options::RocketOptions;
use super::pending::PendingRecords;
use super::sender;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use windfall_contract::broker::{DeliverySink, OutRecord, Producer, SendRefused, Tag};
use windfall_rocketmq_wire::Client;

pub(super) struct RocketProducer {
    pending: Arc<PendingRecords>,
    sender: JoinHandle<()>,
    /// Keeps the driver's threads alive as long as this producer.
    _engine: Arc<Engine>,
}

impl RocketProducer {
    pub(super) fn start(
        engine: Arc<Engine>,
        options: RocketOptions,
        client: Client,
        topic: String,
        sink: Arc<dyn DeliverySink>,
    ) -> Self {
        let pending = Arc::new(PendingRecords::new(options, sink));
        let sender = engine.spawn(sender::run(Arc::clone(&pending), Arc::new(client), topic));
        Self { pending, sender, _engine: engine }
    }
}

impl Producer for RocketProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        self.pending.take(tag, record)
    }

    fn close(&self, timeout: Duration) -> usize {
        let Some(open) = self.pending.close(timeout) else { return 0 };
        self.sender.abort();
        self.pending.report_open(&open);
        open.len()
    }
}

impl Drop for RocketProducer {
    fn drop(&mut self) {
        self.sender.abort();
    }
}
