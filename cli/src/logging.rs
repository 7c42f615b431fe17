//! Log lines on standard error, and spans to a collector by OTLP.

#[cfg(feature = "otlp")]
mod otlp;

#[cfg(not(feature = "otlp"))]
use crate::drivers::Driver;
#[cfg(not(feature = "otlp"))]
use anyhow::Context;
use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Deserialize;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The options of logging.
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// The least severe level that is logged to standard error: error, warn, info, debug, trace, or off
    #[arg(long, global = true, default_value = "error", env = "WINDFALL_LOG")]
    log: LevelFilter,
    /// The format of the log
    #[arg(long, global = true, default_value = "text", env = "WINDFALL_LOG_FORMAT")]
    log_format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// The collector of traces. Without an address none are exported.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceOptions {
    /// The collector's address for OTLP over gRPC: `http://host:4317`, or `https://…`, checked by the system's roots.
    pub otlp: Option<String>,
    /// How many of 1,000 traces are kept that begin here. A trace that a caller began is kept if the caller keeps it.
    /// 0 to 1,000; default 10.
    pub sampled_per_mille: u32,
    /// How long a collector may take for a batch, in ms. 1 to 60,000; default 5,000.
    pub timeout_ms: u64,
}

/// Spans are exported to the collector.
#[derive(Debug, Default)]
pub struct Traces {
    #[cfg(feature = "otlp")]
    exporting: Option<otlp::Exporting>,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self { otlp: None, sampled_per_mille: 10, timeout_ms: 5_000 }
    }
}

impl LogArgs {
    /// Only log lines are written.
    pub fn start(&self) {
        tracing_subscriber::registry().with(self.lines()).init();
    }

    /// Lines, and spans where the options say to whom. Needs a tokio runtime.
    pub fn start_with_traces(&self, role: &str, options: &TraceOptions) -> Result<Traces> {
        options.check()?;
        #[cfg(not(feature = "otlp"))]
        options
            .otlp
            .as_ref()
            .map_or(Ok(()), |_| Driver::Otlp.check())
            .with_context(|| format!("the role {role} exports no traces"))?;
        #[cfg(feature = "otlp")]
        if let Some(address) = &options.otlp {
            let (exporting, spans) = otlp::Exporting::start(role, address, options)?;
            tracing_subscriber::registry().with(spans).with(self.lines()).init();
            return Ok(Traces { exporting: Some(exporting) });
        }
        self.start();
        Ok(Traces::default())
    }

    fn lines<S: tracing::Subscriber + for<'a> LookupSpan<'a>>(&self) -> Box<dyn Layer<S> + Send + Sync> {
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        match self.log_format {
            Format::Text => lines.with_filter(self.log).boxed(),
            Format::Json => {
                lines.json().flatten_event(true).with_span_list(false).with_filter(self.log).boxed()
            }
        }
    }
}

impl TraceOptions {
    fn check(&self) -> Result<()> {
        if self.sampled_per_mille > 1_000 {
            bail!("trace.sampled_per_mille is {}, but only 0 to 1000 is allowed", self.sampled_per_mille);
        }
        if !(1..=60_000).contains(&self.timeout_ms) {
            bail!("trace.timeout_ms is {}, but only 1 to 60000 is allowed", self.timeout_ms);
        }
        match &self.otlp {
            Some(address) if !address.starts_with("http://") && !address.starts_with("https://") => {
                bail!("trace.otlp is {address:?}, but only http://host:port or https://host:port is allowed")
            }
            _ => Ok(()),
        }
    }
}

impl Traces {
    /// Sends what is left, within a few seconds. Blocks.
    pub fn close(self) {
        #[cfg(feature = "otlp")]
        if let Some(exporting) = self.exporting {
            exporting.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_named() {
        let cases = [
            (TraceOptions { sampled_per_mille: 1_001, ..TraceOptions::default() }, "sampled_per_mille"),
            (TraceOptions { timeout_ms: 0, ..TraceOptions::default() }, "timeout_ms"),
            (TraceOptions { otlp: Some("collector:4317".into()), ..TraceOptions::default() }, "trace.otlp"),
        ];
        for (options, word) in cases {
            let error = options.check().unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        TraceOptions::default().check().unwrap();
    }
}
