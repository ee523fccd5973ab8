//! The trace context that a job carries, by the feature `opentelemetry`. Without the feature, this module does nothing.
//!
//! The W3C trace context of the add is stored in the payload, `{"_trace": {"traceparent": …, "tracestate": …}}`, and
//! the span of the run links to it. It is a link and not a parent, because a job may run days later, many times, and
//! long after the trace that added it has ended. Only payloads that are objects carry it, and an existing `_trace` is
//! not changed. Everything else in the payload keeps its text. A payload type that rejects unknown fields rejects
//! `_trace` as well.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tracing::Span;

use crate::Job;

/// The payload with the current trace context added, if there is one and the payload can carry it.
#[cfg(feature = "opentelemetry")]
pub(crate) fn carry(payload: &RawValue) -> Cow<'_, RawValue> {
    let carried = payload.get().starts_with('{').then(w3c::current).flatten();
    match carried.and_then(|context| w3c::insert(payload.get(), &context)) {
        Some(payload) => Cow::Owned(payload),
        None => Cow::Borrowed(payload),
    }
}

/// Links the span of a run to the trace context that the job carries.
#[cfg(feature = "opentelemetry")]
pub(crate) fn link(span: &Span, job: &Job) {
    if let Some(context) = w3c::read(job.payload_json()) {
        tracing_opentelemetry::OpenTelemetrySpanExt::add_link(span, context);
    }
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn carry(payload: &RawValue) -> Cow<'_, RawValue> {
    Cow::Borrowed(payload)
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn link(_: &Span, _: &Job) {}

/// Converts between a span's context and its text.
#[cfg(feature = "opentelemetry")]
mod w3c {
    use std::collections::HashMap;

    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};
    use serde::de::IgnoredAny;
    use serde::{Deserialize, Serialize};
    use serde_json::value::RawValue;
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    #[derive(Deserialize)]
    struct Payload {
        _trace: Trace,
    }

    #[derive(Deserialize, Serialize)]
    struct Trace {
        traceparent: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        tracestate: Option<String>,
    }

    /// The context of the current span, or else the one that the application set through OpenTelemetry directly.
    pub(super) fn current() -> Option<SpanContext> {
        [Span::current().context(), Context::current()]
            .iter()
            .map(|context| context.span().span_context().clone())
            .find(SpanContext::is_valid)
    }

    /// None if the payload already has a `_trace`.
    pub(super) fn insert(payload: &str, context: &SpanContext) -> Option<Box<RawValue>> {
        let fields: HashMap<String, IgnoredAny> = serde_json::from_str(payload).ok()?;
        if fields.contains_key("_trace") {
            return None;
        }
        let trace = serde_json::to_string(&write(context)).ok()?;
        let comma = if fields.is_empty() { "" } else { "," };
        let open = payload.strip_suffix('}')?;
        RawValue::from_string(format!(r#"{open}{comma}"_trace":{trace}}}"#)).ok()
    }

    fn write(context: &SpanContext) -> Trace {
        let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
        let tracestate = context.trace_state().header();
        Trace {
            traceparent: format!("00-{trace}-{span}-{flags:02x}"),
            tracestate: (!tracestate.is_empty()).then_some(tracestate),
        }
    }

    /// None if there is no `_trace`, or if it is not a trace context but the user's own data.
    pub(super) fn read(payload: &str) -> Option<SpanContext> {
        if !payload.starts_with('{') {
            return None;
        }
        let Payload { _trace: trace } = serde_json::from_str(payload).ok()?;
        let mut parts = trace.traceparent.split('-');
        // Versions after 00 may append parts; ff is not a valid version.
        let version = parts.next().filter(|version| is_hex(version, 2) && *version != "ff")?;
        let trace_id = parts.next().filter(|id| is_hex(id, 32))?;
        let span_id = parts.next().filter(|id| is_hex(id, 16))?;
        let flags = parts.next().filter(|flags| is_hex(flags, 2))?;
        if version == "00" && parts.next().is_some() {
            return None;
        }
        let context = SpanContext::new(
            TraceId::from_hex(trace_id).ok()?,
            SpanId::from_hex(span_id).ok()?,
            TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
            true,
            trace.tracestate.and_then(|state| state.parse().ok()).unwrap_or_default(),
        );
        context.is_valid().then_some(context)
    }

    fn is_hex(text: &str, len: usize) -> bool {
        text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}
