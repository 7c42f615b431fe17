//! librdkafka's log, and its errors that concern no single request.

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// Remembers the last error, for messages, and whether it is one that waiting does not mend.
#[derive(Debug, Default)]
pub(super) struct Watch {
    last: Mutex<Option<(RDKafkaErrorCode, String)>>,
}

impl Watch {
    /// The last error, as text.
    pub(super) fn last(&self) -> Option<String> {
        self.last.lock().as_ref().map(|(_, what)| what.clone())
    }

    /// Forgets the last error, before another try.
    pub(super) fn forget(&self) {
        *self.last.lock() = None;
    }

    /// The last error, if it comes from what the options say: a password, a certificate.
    pub(super) fn hopeless(&self) -> Option<String> {
        let last = self.last.lock();
        let (code, what) = last.as_ref()?;
        use RDKafkaErrorCode as Code;
        let hopeless = matches!(code, Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL);
        hopeless.then(|| what.clone())
    }

    pub(super) fn note(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        let mut last = self.last.lock();
        // "All brokers are down" follows from what was said before, and says less.
        if code != RDKafkaErrorCode::AllBrokersDown || last.is_none() {
            *last = Some((code, if reason.is_empty() { error.to_string() } else { reason.to_owned() }));
        }
    }
}

impl ClientContext for Watch {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "kafka");
        self.note(&error, reason);
    }
}

impl rdkafka::consumer::ConsumerContext for Watch {}

/// Writes librdkafka's log lines to the process's log. What librdkafka calls an error is often a reconnect.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::error!(facility, message, "kafka");
        }
        RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => tracing::warn!(facility, message, "kafka"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => tracing::info!(facility, message, "kafka"),
        RDKafkaLogLevel::Debug => tracing::debug!(facility, message, "kafka"),
    }
}
