//! Traces of the running binary, as a collector and a reader of its log get them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use parking_lot::Mutex;
use serde_json::json;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use windfall_tests::{Service, scratch};

/// A span, as far as it matters here.
#[derive(Debug, Clone)]
struct Seen {
    service: String,
    name: String,
    trace_id: String,
    parent: String,
    trade_no: Option<String>,
}

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Seen>>>);

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        for of_resource in request.into_inner().resource_spans {
            let resource = of_resource.resource.unwrap_or_default();
            let service = text(&resource.attributes, "service.name").unwrap_or_default();
            for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                self.0.lock().push(Seen {
                    service: service.clone(),
                    trade_no: text(&span.attributes, "trade_no"),
                    name: span.name,
                    trace_id: hex(&span.trace_id),
                    parent: hex(&span.parent_span_id),
                });
            }
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

#[test]
fn a_callers_trace_goes_on_through_the_queue_and_into_the_log() {
    let collector = Collector::default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let incoming = {
        let _in_runtime = runtime.enter();
        TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap())
    };
    let serving = TraceServiceServer::new(collector.clone());
    runtime.spawn(async move { Server::builder().add_service(serving).serve_with_incoming(incoming).await });

    let dir = scratch();
    let config = dir.path().join("windfall.toml");
    // Of traces that begin here none is kept.
    std::fs::write(&config, format!("[trace]\notlp = \"http://{address}\"\nsampled_per_mille = 0\n"))
        .unwrap();
    let args =
        ["serve", "--dev", "--listen", "127.0.0.1:0", "--log", "info", "--log-format", "json", "--config"];
    let args = args.map(OsStr::new).into_iter().chain([config.as_os_str(), OsStr::new("--data")]);
    let service = Service::start(args, dir.path().join("data").as_os_str());

    let trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let send = |trade_no: &str, parent: Option<String>| {
        let reward = json!({
            "trade_no": trade_no, "user": {"user_id": 42}, "activity": "spring-2027", "scene": "red-packet-rain",
            "bonus": {"type": "cash", "amount": 888, "description": "red packet"},
        });
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("authorization", format!("Bearer {}", service.keys["activity"])),
        ];
        headers.extend(parent.map(|parent| ("traceparent", parent)));
        let sent = service.send("POST", "/v1/bonuses/send", &headers, reward.to_string().as_bytes());
        assert_eq!(sent.status, 200, "{sent:?}");
    };
    send("untraced:1", None);
    send("unsampled:1", Some("00-11111111111111111111111111111111-00f067aa0ba902b7-00".into()));
    send("traced:1", Some(format!("00-{trace_id}-00f067aa0ba902b7-01")));
    let wallet = json!({});
    service.post_until("wallet-front", Some(42), "/v1/wallet/get", &wallet, |answer| {
        answer.body["balances"][0]["credited"].as_str() == Some("2664")
    });
    let said = service.said();
    // What is left goes out before the end.
    assert_eq!(service.stop().code, Some(0));

    let seen = collector.0.lock().clone();
    assert!(
        seen.iter().all(|span| span.trace_id == trace_id && span.service == "windfall-serve"),
        "{seen:#?}"
    );
    let call = seen.iter().find(|span| span.name == "Send/SendBonus").unwrap_or_else(|| panic!("{seen:#?}"));
    assert_eq!(call.parent, "00f067aa0ba902b7");
    let grants: Vec<_> = seen.iter().filter_map(|span| span.trade_no.as_deref()).collect();
    assert_eq!(grants, ["traced:1"], "{seen:#?}");

    let lines = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let line = lines.into_iter().find(|line| line["span"]["trade_no"] == "traced:1");
    assert_eq!(line.unwrap_or_else(|| panic!("{said}"))["span"]["trace_id"], trace_id);
}
