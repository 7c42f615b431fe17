//! A call's place in its caller's trace (W3C Trace Context), and the span around its service.
//! The span exists whether traces are exported or not: log lines of a call carry its trace id, by which they can be
//! joined over services. The code that sets up the subscriber decides about exporting.

use crate::identity::Call;
use crate::refusal::Transport;
use crate::router::Route;
use http::header::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tonic::Code;
use tracing::Span;
use tracing::field::{Empty, display};
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";

/// The span that a call continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceParent {
    trace_id: u128,
    span_id: u64,
    is_sampled: bool,
}

impl TraceParent {
    /// Reads the span from the headers. A value that is malformed or there twice is ignored, as the standard says.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        let mut parts = value.to_str().ok()?.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, len| {
            text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let has_more = parts.next().is_some();
        if !is_hex(version, 2) || version == "ff" || (version == "00" && has_more) {
            return None;
        }
        if !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
            return None;
        }
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        let trace_id = u128::from_str_radix(trace, 16).ok()?;
        let span_id = u64::from_str_radix(span, 16).ok()?;
        (trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, is_sampled })
    }

    fn context(self) -> opentelemetry::Context {
        let flags = if self.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
        let (trace_id, span_id) = (TraceId::from(self.trace_id), SpanId::from(self.span_id));
        let remote = SpanContext::new(trace_id, span_id, flags, true, TraceState::default());
        opentelemetry::Context::new().with_remote_span_context(remote)
    }
}

/// The span of a call; sets the call's trace id, if the trace is sampled.
pub(crate) fn begin(route: &Route, call: &mut Call, transport: Transport, headers: &HeaderMap) -> Span {
    // Of level `error`: whatever is logged, a line about an error has its trace id.
    let span = tracing::error_span!(
        "call",
        otel.name = format_args!("{}/{}", route.service, route.method),
        otel.kind = "server",
        otel.status_code = Empty,
        face = transport.name(),
        caller = %call.caller.name,
        code = Empty,
        trace_id = Empty,
    );
    let parent = TraceParent::of(headers);
    // Fails where no traces are exported: then there is nothing to continue.
    let exported = parent.is_none_or(|parent| span.set_parent(parent.context()).is_ok());
    let context = if exported { span.context() } else { opentelemetry::Context::new() };
    let own = context.span().span_context().clone();
    let (trace_id, is_sampled) = match parent {
        _ if own.is_valid() => (u128::from_be_bytes(own.trace_id().to_bytes()), own.is_sampled()),
        Some(parent) => (parent.trace_id, parent.is_sampled),
        None => (random_id(), false),
    };
    span.record("trace_id", display(format_args!("{trace_id:032x}")));
    call.trace_id = is_sampled.then(|| trace_id.to_be_bytes());
    span
}

/// Notes how the call ended.
pub(crate) fn end(span: &Span, code: Code, name: &'static str) {
    span.record("code", name);
    // As the conventions for gRPC servers say: what the caller did wrong is not our error.
    let is_ours = matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    );
    if is_ours {
        span.record("otel.status_code", "ERROR");
    }
}

/// A random id; 0 without the system's random numbers: the log lines of calls cannot then be told apart, and no call
/// fails.
fn random_id() -> u128 {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        return 0;
    }
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(value: &str) -> Option<TraceParent> {
        TraceParent::of(&HeaderMap::from_iter([(TRACEPARENT.parse().unwrap(), value.parse().unwrap())]))
    }

    #[test]
    fn a_trace_counts_when_it_is_well_formed() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let expected = |is_sampled| {
            let (trace_id, span_id) = (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7);
            Some(TraceParent { trace_id, span_id, is_sampled })
        };
        assert_eq!(parent(&format!("00-{id}-00f067aa0ba902b7-01")), expected(true));
        assert_eq!(parent(&format!("00-{id}-00f067aa0ba902b7-00")), expected(false));
        assert_eq!(parent(&format!("01-{id}-00f067aa0ba902b7-03-later")), expected(true));
        for wrong in [
            format!("00-{id}-00f067aa0ba902b7-01-more"),
            format!("ff-{id}-00f067aa0ba902b7-01"),
            format!("00-{id}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01".to_owned(),
            "00".to_owned(),
        ] {
            assert_eq!(parent(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn two_parents_are_none() {
        let mut headers = HeaderMap::new();
        for last in ["1", "2"] {
            let value = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-000000000000000{last}-01");
            headers.append(TRACEPARENT, value.parse().unwrap());
        }
        assert_eq!(TraceParent::of(&headers), None);
    }
}
