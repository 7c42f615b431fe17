//! Log lines on standard error, and spans to a collector by OTLP.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use serde::Deserialize;
use std::time::Duration;
use tonic::transport::ClientTlsConfig;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// What is logged, and how.
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// What to log on standard error: error, warn, info, debug, trace or off
    #[arg(long, global = true, default_value = "error", env = "WINDFALL_LOG")]
    log: LevelFilter,
    /// How: text or json
    #[arg(long, global = true, default_value = "text", env = "WINDFALL_LOG_FORMAT")]
    log_format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Where traces go. None do without an address.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceOptions {
    /// The collector's address for OTLP over gRPC: `http://host:4317`, or `https://…`, checked by the system's roots.
    pub otlp: Option<String>,
    /// How many of 1,000 traces are kept that begin here. A trace that a caller began is kept if the caller keeps it.
    /// 0 to 1,000; default 10.
    pub sampled_per_mille: u32,
    /// What a collector has for taking a batch, ms. 1 to 60,000; default 5,000.
    pub timeout_ms: u64,
}

/// Spans on their way to the collector.
#[derive(Debug)]
pub struct Traces(Option<SdkTracerProvider>);

impl Default for TraceOptions {
    fn default() -> Self {
        Self { otlp: None, sampled_per_mille: 10, timeout_ms: 5_000 }
    }
}

impl LogArgs {
    /// Lines only.
    pub fn start(&self) {
        tracing_subscriber::registry().with(self.lines()).init();
    }

    /// Lines, and spans where the options say to whom. Needs a tokio runtime.
    pub fn start_with_traces(&self, role: &str, options: &TraceOptions) -> Result<Traces> {
        let Some(provider) = options.provider(role)? else {
            self.start();
            return Ok(Traces(None));
        };
        // Our own spans: the exporter's transport has some, too, which would be exported for ever.
        let ours = Targets::new().with_target("windfall", LevelFilter::INFO);
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("windfall")).with_filter(ours);
        tracing_subscriber::registry().with(spans).with(self.lines()).init();
        Ok(Traces(Some(provider)))
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
    fn provider(&self, role: &str) -> Result<Option<SdkTracerProvider>> {
        if self.sampled_per_mille > 1_000 {
            bail!("trace.sampled_per_mille = {}: 0 to 1000 is allowed", self.sampled_per_mille);
        }
        if !(1..=60_000).contains(&self.timeout_ms) {
            bail!("trace.timeout_ms = {}: 1 to 60000 is allowed", self.timeout_ms);
        }
        let Some(address) = &self.otlp else { return Ok(None) };
        let wrong = || format!("trace.otlp = {address:?}");
        let is_secure = address.starts_with("https://");
        if !is_secure && !address.starts_with("http://") {
            bail!("{}: http://host:port or https://host:port", wrong());
        }
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(address)
            .with_timeout(Duration::from_millis(self.timeout_ms));
        let exporter = if is_secure {
            exporter.with_tls_config(ClientTlsConfig::new().with_native_roots())
        } else {
            exporter
        };
        let root = Sampler::TraceIdRatioBased(f64::from(self.sampled_per_mille) / 1_000.0);
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .with_resource(Resource::builder().with_service_name(format!("windfall-{role}")).build())
            // Full, its queue drops spans and says so: traces must not hold up money.
            .with_batch_exporter(exporter.build().with_context(wrong)?)
            .build();
        Ok(Some(provider))
    }
}

impl Traces {
    /// Sends what is left, within a few seconds. Blocks.
    pub fn close(self) {
        if let Some(provider) = self.0
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(%error, "the last spans were not exported");
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
            let error = options.provider("wallet").unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(TraceOptions::default().provider("wallet").unwrap().is_none());
    }
}
