//! The trace context of a job.

use std::sync::{Mutex, Once};
use std::thread::ThreadId;

use atta::{JobSpec, WorkerOptions, WorkerUtils};
use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags, TraceState, TracerProvider};
use opentelemetry::{Context, SpanId, TraceId};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use testkit::Database;
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

use super::utils;

/// The spans that ended, each with its thread. The subscriber is that of the whole process: with one subscriber per test,
/// `tracing` sometimes remembers from another test that nobody wants a span.
#[derive(Clone, Copy, Debug)]
struct Exporter;

static ENDED: Mutex<Vec<(ThreadId, SpanData)>> = Mutex::new(Vec::new());

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let thread = std::thread::current().id();
        ENDED.lock().unwrap().extend(batch.into_iter().map(|span| (thread, span)));
        Ok(())
    }
}

/// The spans of this thread, which is the only one of such a test.
#[derive(Debug)]
struct Spans(ThreadId);

impl Spans {
    fn collect() -> Spans {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            let provider = SdkTracerProvider::builder().with_simple_exporter(Exporter).build();
            let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
            tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
        });
        Spans(std::thread::current().id())
    }

    fn named(&self, name: &str) -> Vec<SpanData> {
        let ended = ENDED.lock().unwrap();
        let of_test = ended.iter().filter(|(thread, _)| *thread == self.0).map(|(_, span)| span);
        of_test.filter(|span| span.name == name).cloned().collect()
    }
}

/// Adds a job within a span of its own, and returns its payload and the span.
async fn add_in_span(utils: &WorkerUtils, payload: impl Serialize) -> (String, SpanContext) {
    let span = tracing::info_span!("add");
    let context = span.context().span().span_context().clone();
    let job = utils.add_raw_job("traced", payload, JobSpec::default()).instrument(span).await.unwrap();
    (job.payload_json().to_owned(), context)
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn traceparent(context: &SpanContext) -> String {
    format!("00-{}-{}-01", context.trace_id(), context.span_id())
}

async fn run_once(db: &Database) {
    let worker = WorkerOptions::default().database_url(db.url()).define_raw_job("traced", |_| async {});
    let worker = worker.init().await.unwrap();
    worker.run_once().await.unwrap();
}

#[tokio::test]
async fn the_run_links_to_the_span_that_added_the_job() {
    let db = Database::migrated().await;
    let spans = Spans::collect();
    let (payload, added) = add_in_span(&utils(&db), json!({ "n": 1 })).await;
    assert_eq!(payload, format!(r#"{{"n":1,"_trace":{{"traceparent":"{}"}}}}"#, traceparent(&added)));
    run_once(&db).await;
    let [run] = &spans.named("job")[..] else { panic!("one run: {spans:?}") };
    let [link] = &run.links[..] else { panic!("one link: {run:?}") };
    assert_eq!(
        (link.span_context.trace_id(), link.span_context.span_id()),
        (added.trace_id(), added.span_id())
    );
    assert!(link.span_context.is_remote() && link.span_context.is_sampled());
    assert_ne!(run.span_context.trace_id(), added.trace_id());
}

#[tokio::test]
async fn the_rest_of_the_payload_keeps_its_text() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    Spans::collect();
    for (given, start) in [
        (r#"{ "b": 1.00, "a":[ 1e2 ], "b": "\u0041" }"#, r#"{ "b": 1.00, "a":[ 1e2 ], "b": "\u0041" ,"#),
        (r#"{"in":{"_trace":1}}"#, r#"{"in":{"_trace":1},"#),
        ("{}", "{"),
        ("{ }", "{ "),
    ] {
        let (stored, added) = add_in_span(&utils, raw(given)).await;
        assert_eq!(stored, format!(r#"{start}"_trace":{{"traceparent":"{}"}}}}"#, traceparent(&added)));
    }
}

#[tokio::test]
async fn a_trace_of_the_user_and_payloads_of_other_shapes_stay_unchanged() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let spans = Spans::collect();
    let all = [
        r#"{"_trace":null}"#,
        r#"{"\u005ftrace":"mine"}"#,
        r#"{"_trace":{"traceparent":"00-0-0-0"}}"#,
        r#"[{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}]"#,
        "[]",
        r#""{}""#,
        "1",
        "true",
    ];
    for given in all {
        assert_eq!(add_in_span(&utils, raw(given)).await.0, given);
    }
    run_once(&db).await;
    let runs = spans.named("job");
    assert_eq!(runs.len(), all.len());
    assert!(runs.iter().all(|run| run.links.is_empty()), "{runs:?}");
}

#[tokio::test]
async fn a_context_without_a_tracing_span_travels_with_its_state() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let spans = Spans::collect();
    let state = TraceState::from_key_value([("vendor", "a\"b")]).unwrap();
    let (trace_id, span_id) = (TraceId::from(7), SpanId::from(9));
    let context = SpanContext::new(trace_id, span_id, TraceFlags::default(), true, state.clone());
    let entered = Context::new().with_remote_span_context(context).attach();
    let job = utils.add_raw_job("traced", json!({}), JobSpec::default()).await.unwrap();
    drop(entered);
    let trace =
        json!({ "traceparent": format!("00-{trace_id}-{span_id}-00"), "tracestate": r#"vendor=a"b"# });
    assert_eq!(job.payload::<serde_json::Value>().unwrap(), json!({ "_trace": trace }));
    run_once(&db).await;
    let runs = spans.named("job");
    let links: Vec<&SpanContext> =
        runs.iter().flat_map(|run| &run.links[..]).map(|link| &link.span_context).collect();
    assert_eq!(links, [&SpanContext::new(trace_id, span_id, TraceFlags::default(), true, state)]);
}

#[tokio::test]
async fn without_a_trace_nothing_is_added() {
    let db = Database::migrated().await;
    let job = utils(&db).add_raw_job("traced", json!({ "n": 1 }), JobSpec::default()).await.unwrap();
    assert_eq!(job.payload_json(), r#"{"n":1}"#);
}
