//! Spans to a collector by OTLP over gRPC.

use super::TraceOptions;
use anyhow::{Context, Result};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use std::time::Duration;
use tonic::transport::ClientTlsConfig;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

/// A running export.
#[derive(Debug)]
pub struct Exporting(SdkTracerProvider);

impl Exporting {
    /// Starts it, with the layer that feeds it. Needs a tokio runtime.
    pub fn start<S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync>(
        role: &str,
        address: &str,
        options: &TraceOptions,
    ) -> Result<(Self, impl Layer<S> + use<S>)> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(address)
            .with_timeout(Duration::from_millis(options.timeout_ms));
        let exporter = if address.starts_with("https://") {
            exporter.with_tls_config(ClientTlsConfig::new().with_native_roots())
        } else {
            exporter
        };
        let exporter = exporter
            .build()
            .with_context(|| format!("traces cannot be exported to trace.otlp, {address:?}"))?;
        let root = Sampler::TraceIdRatioBased(f64::from(options.sampled_per_mille) / 1_000.0);
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .with_resource(Resource::builder().with_service_name(format!("windfall-{role}")).build())
            // Full, its queue drops spans and says so: traces must not hold up money.
            .with_batch_exporter(exporter)
            .build();
        // Our own spans: the exporter's transport has some, too, which would be exported for ever.
        let ours = Targets::new().with_target("windfall", LevelFilter::INFO);
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("windfall")).with_filter(ours);
        Ok((Self(provider), spans))
    }

    /// Sends what is left, within a few seconds. Blocks.
    pub fn close(self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}
