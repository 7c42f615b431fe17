//! Traces through the queue: an event that was sent in a sampled trace carries that trace's id, and its outcome is
//! reported there.

use bytes::Bytes;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::{Level, Span, field};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use windfall_contract::rewards::GrantReply;
use windfall_proto::event::EventRef;

/// The spans of the traced events of a call, by their index in it.
pub(crate) struct Traced(Vec<(usize, Span)>);

impl Traced {
    /// Begins the spans. There are none where the call has a span of its own, or where no spans are recorded.
    pub fn begin(bonus_type: &str, events: &[Bytes]) -> Self {
        if !tracing::enabled!(Level::INFO) || !Span::current().is_none() {
            return Self(Vec::new());
        }
        let of_event = |(at, bytes): (usize, &Bytes)| {
            let event = EventRef::parse(bytes).ok()?;
            let trace_id = u128::from_be_bytes(event.trace_id.try_into().ok()?);
            let span = tracing::info_span!(
                "grant",
                otel.kind = "consumer",
                bonus_type,
                trade_no = event.trade_no,
                trace_id = %format_args!("{trace_id:032x}"),
                outcome = field::Empty
            );
            // Fails where no traces are exported; log lines have the id all the same.
            span.set_parent(sender(trace_id)).ok();
            Some((at, span))
        };
        Self(events.iter().enumerate().filter_map(of_event).collect())
    }

    /// Ends the spans with the replies.
    pub fn end(self, replies: &[GrantReply]) {
        for (at, span) in self.0 {
            let Some(reply) = replies.get(at) else { continue };
            span.record("outcome", field::debug(reply));
            tracing::info!(parent: &span, "answered");
        }
    }
}

/// The context of the sender. An event carries the id of its trace, not of the span that it was sent in, so the span
/// gets an id that is made from the trace's. Viewers show it as missing.
fn sender(trace_id: u128) -> opentelemetry::Context {
    let bytes = trace_id.to_be_bytes();
    let mut span_id = [0; 8];
    span_id.copy_from_slice(&bytes[8..]);
    span_id[7] |= 1;
    let (trace_id, span_id) = (TraceId::from_bytes(bytes), SpanId::from_bytes(span_id));
    let remote = SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, true, TraceState::default());
    opentelemetry::Context::new().with_remote_span_context(remote)
}
