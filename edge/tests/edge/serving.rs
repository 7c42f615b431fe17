//! Errors of services, health, the document, and the end of a server.

use crate::fixture::http::{bearer, channel, get, post, request, with};
use crate::fixture::{options, start, until};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use windfall_contract::Clock;
use windfall_edge::{
    Access, AccessSource, Health, Metrics, Need, Parts, PlainTextRefused, Router, ServeError, ServeOptions,
    Stopped, code_name, http_status,
};
use windfall_proto::v1;
use windfall_proto::v1::send_client::SendClient;

fn order(trade_no: &str) -> v1::SendBonusRequest {
    v1::SendBonusRequest { trade_no: trade_no.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_services_error_is_the_same_on_both_faces() {
    let running = start(options(), "", Clock::system()).await;
    let (address, key) = (running.server.address(), running.keys.send.text.clone());
    let channel = channel(address).await;
    let authorized = bearer(&key);
    for number in 1..=16 {
        let code = Code::from(number);
        let reply =
            post(address, "/v1/bonuses/send", &key, &format!(r#"{{"trade_no": "fail-{number}"}}"#)).await;
        assert_eq!(reply.status, http_status(code).as_u16());
        assert_eq!(reply.json(), json!({ "code": code_name(code), "message": "as asked" }));
        let request = with(order(&format!("fail-{number}")), &[("authorization", &authorized)]);
        assert_eq!(SendClient::new(channel.clone()).send_bonus(request).await.unwrap_err().code(), code);
        let line = format!(
            "windfall_edge_calls_total{{face=\"http\",service=\"Send\",method=\"SendBonus\",code=\"{}\"}}",
            code_name(code)
        );
        assert_eq!(running.metric(&line), 1.0, "{line}");
    }
    let reply = post(address, "/v1/bonuses/send", &key, r#"{"trade_no": "busy"}"#).await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("2")));
    assert_eq!(reply.json()["retry_after_ms"], 1_500);
    let request = with(order("busy"), &[("authorization", &authorized)]);
    let error = SendClient::new(channel).send_bonus(request).await.unwrap_err();
    assert_eq!(error.metadata().get("retry-after-ms").unwrap(), "1500");
}

#[tokio::test]
async fn a_weak_part_that_is_missing_is_named_and_a_strong_one_makes_unready() {
    let running = start(options(), "", Clock::system()).await;
    let address = running.server.address();
    let ready = async || request(address, "GET", "/health/ready", &[], "").await;
    let tokens = running.health.part("tokens", Need::Weak);
    assert_eq!(
        ready().await.json(),
        json!({ "ready": true, "failing": {}, "missing": { "tokens": "not reached yet" } })
    );
    tokens.is_there();
    let ledger = running.health.part("ledger", Need::Strong);
    ledger.is_missing("does not answer");
    let reply = ready().await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json(), json!({ "ready": false, "failing": { "ledger": "does not answer" } }));
    assert_eq!(running.health.parts(), [("ledger".to_owned(), false), ("tokens".to_owned(), true)]);
    ledger.is_there();
    assert_eq!(ready().await.json(), json!({ "ready": true, "failing": {} }));
    ledger.is_missing("does not answer");
    let newer = running.health.part("ledger", Need::Strong);
    newer.is_there();
    drop(ledger);
    assert_eq!(running.health.parts().len(), 2, "the one of that name that is known now stays");
    drop(newer);
    assert!(running.health.is_ready(), "a part that is not used any more is not missing");
    assert_eq!(request(address, "GET", "/health/live", &[], "").await.status, 200);
    running.health.die("the task of the budgets panics again and again");
    let reply = request(address, "GET", "/health/live", &[], "").await;
    assert_eq!(reply.status, 503);
    assert_eq!(
        reply.json(),
        json!({ "live": false, "why": "the task of the budgets panics again and again" })
    );
    assert!(!running.health.is_ready());
}

#[tokio::test]
async fn readiness_names_the_check_that_fails() {
    let running = start(options(), "", Clock::system()).await;
    let address = running.server.address();
    let ready = async || request(address, "GET", "/health/ready", &[], "").await;
    assert_eq!(ready().await.json(), json!({ "ready": true, "failing": {} }));
    running.health.check("ledger", || Err("does not answer".to_owned()));
    let reply = ready().await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json(), json!({ "ready": false, "failing": { "ledger": "does not answer" } }));
    assert_eq!(request(address, "GET", "/health/live", &[], "").await.status, 200);
    let mut grpc = HealthClient::new(channel(address).await);
    let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let status = async |grpc: &mut HealthClient<_>, service| {
        grpc.check(check(service)).await.map(|reply| reply.get_ref().status).map_err(|error| error.code())
    };
    assert_eq!(status(&mut grpc, "").await, Ok(2));
    running.health.check("ledger", || Ok(()));
    assert_eq!(status(&mut grpc, "").await, Ok(1));
    assert_eq!(status(&mut grpc, "windfall.v1.Wallet").await, Ok(1));
    assert_eq!(status(&mut grpc, "windfall.v1.Nothing").await, Err(Code::NotFound));
    assert_eq!(grpc.watch(check("")).await.unwrap_err().code(), Code::Unimplemented);
    running.server.ready(false);
    assert_eq!(ready().await.status, 503);
    running.server.ready(true);
    assert_eq!(ready().await.status, 200);
}

#[tokio::test]
async fn health_from_beyond_this_machine_needs_a_key_or_an_option() {
    // An address of this machine that is not loopback, where it has one.
    let Some(own) = own_address() else { return };
    for health_open in [false, true] {
        let listen = std::net::SocketAddr::new(own, 0);
        let open = ServeOptions { listen, health_open, plaintext: true, ..options() };
        let running = start(open, "", Clock::system()).await;
        let address = running.server.address();
        let status = request(address, "GET", "/health/live", &[], "").await.status;
        assert_eq!(status, if health_open { 200 } else { 401 });
        let grpc = HealthClient::new(channel(address).await).check(HealthCheckRequest::default()).await;
        assert_eq!(grpc.is_ok(), health_open);
        assert_eq!(get(address, "/health/ready", &running.keys.send.text).await.status, 200);
    }
}

#[tokio::test]
async fn a_port_that_others_reach_needs_tls_or_leave_by_name() {
    let listen: std::net::SocketAddr = "0.0.0.0:0".parse().unwrap();
    let serve = async |options: ServeOptions| {
        let access = AccessSource::fixed(Access::parse("").unwrap(), Clock::system()).unwrap();
        let (metrics, health) = (Metrics::new(), Health::new());
        windfall_edge::serve(&options, Parts { router: Router::new(), access, metrics, health }).await
    };
    let open = ServeOptions { listen, ..options() };
    let refused = serve(open.clone()).await.unwrap_err();
    assert!(matches!(refused, ServeError::PlainText(PlainTextRefused::Reachable { .. })), "{refused}");
    let refused = refused.to_string();
    assert!(refused.starts_with("listen 0.0.0.0:0 is not on this machine"), "{refused}");
    serve(ServeOptions { plaintext: true, ..open }).await.unwrap().stop().await;
}

/// Connecting a datagram socket sends nothing, and tells which address would be used.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[tokio::test]
async fn the_document_says_what_is_served() {
    let running = start(options(), "", Clock::system()).await;
    let address = running.server.address();
    let document = get(address, "/openapi.json", &running.keys.send.text).await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut references = BTreeSet::new();
    collect_references(&document, &mut references);
    for reference in &references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some_and(Value::is_object), "{reference} leads nowhere");
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for (name, schema) in schemas {
        assert!(references.contains(&format!("#/components/schemas/{name}")), "{name} is not used");
        if schema["type"] == "object" {
            assert_eq!(schema["additionalProperties"], false, "{name}");
        }
    }
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 68);
    let mut names = HashSet::new();
    for (path, item) in paths {
        let operation = &item["post"];
        assert!(names.insert(operation["operationId"].as_str().unwrap()), "{path}");
        assert!(!operation["summary"].as_str().unwrap().is_empty(), "{path}");
        for status in
            ["200", "400", "401", "403", "404", "405", "408", "413", "415", "429", "431", "500", "503", "504"]
        {
            assert!(operation["responses"][status].is_object(), "{path} {status}");
        }
        // It answers as it says: the fields of the reply are those of its schema.
        let headers = [
            ("authorization", &*bearer(&running.keys.front.text)),
            ("x-windfall-user", "42"),
            crate::fixture::http::JSON,
        ];
        let reply = request(address, "POST", path, &headers, "{}").await;
        assert_eq!(reply.status, 200, "{path} {reply:?}");
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        fits(&document, schema, &reply.json(), path);
    }
    let amount = &schemas["Bonus"]["properties"]["amount"];
    assert_eq!(amount["description"], "Smallest unit: fen, pieces. Always positive.");
    assert_eq!(amount["anyOf"][0]["maximum"], i64::MAX);
    assert_eq!(schemas["GrantOutcome"]["enum"][1], "GRANT_OUTCOME_CREDITED");
    assert_eq!(
        schemas["SendBonusRequest"]["properties"]["extension"]["additionalProperties"]["type"],
        "string"
    );
    assert!(operation_text(&document, "/v1/bonuses/send").contains("Role: send."));
}

#[tokio::test]
async fn the_document_has_no_more_than_what_is_mounted() {
    let parts = windfall_edge::Parts {
        router: windfall_edge::Router::new().wallet(std::sync::Arc::new(crate::fixture::Fake::default())),
        access: windfall_edge::AccessSource::fixed(
            windfall_edge::Access::parse(&crate::fixture::Keys::mint().access_text()).unwrap(),
            Clock::system(),
        )
        .unwrap(),
        metrics: windfall_edge::Metrics::new(),
        health: windfall_edge::Health::new(),
    };
    let key = windfall_edge::mint_key().unwrap();
    let access = format!(
        "[[caller]]\nname = \"a\"\ntenant = \"t\"\nroles = [\"send\"]\nkey_sha256 = \"{}\"",
        key.sha256
    );
    let access = windfall_edge::Access::parse(&access).unwrap();
    let access = windfall_edge::AccessSource::fixed(access, Clock::system()).unwrap();
    let server = windfall_edge::serve(&options(), windfall_edge::Parts { access, ..parts }).await.unwrap();
    let document = get(server.address(), "/openapi.json", &key.text).await.json();
    let paths: Vec<_> = document["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(paths, ["/v1/wallet/get", "/v1/wallet/withdraw"]);
    assert!(document["components"]["schemas"].get("Bonus").is_none());
    assert_eq!(post(server.address(), "/v1/bonuses/send", &key.text, "{}").await.status, 404);
}

fn operation_text<'a>(document: &'a Value, path: &str) -> &'a str {
    document["paths"][path]["post"]["description"].as_str().unwrap()
}

fn collect_references(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(reference) if name == "$ref" => drop(into.insert(reference.clone())),
                    _ => collect_references(value, into),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_references(value, into)),
        _ => {}
    }
}

/// Structure alone: kinds and names of fields.
fn fits(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        return fits(document, document.pointer(&reference[1..]).unwrap(), value, at);
    }
    if let Some(several) = schema["anyOf"].as_array() {
        let kinds: Vec<_> = several.iter().map(|one| one["type"].as_str().unwrap_or("object")).collect();
        assert!(kinds.contains(&kind(value)), "{at}: {value} is none of {kinds:?}");
        return;
    }
    assert_eq!(schema["type"], kind(value), "{at}: {value}");
    for (name, value) in value.as_object().into_iter().flatten() {
        let property = &schema["properties"][name];
        assert!(property.is_object(), "{at}: `{name}` is not in the document");
        fits(document, property, value, &format!("{at} {name}"));
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[tokio::test]
async fn a_stop_lets_calls_in_flight_finish() {
    let patient = ServeOptions {
        header_timeout_ms: 300_000,
        request_timeout_ms: 300_000,
        stop_timeout_ms: 600_000,
        ..options()
    };
    let running = start(patient, "", Clock::system()).await;
    let (address, key) = (running.server.address(), running.keys.send.text.clone());
    let idle = TcpStream::connect(address).await.unwrap();
    let http = tokio::spawn({
        let key = key.clone();
        async move { post(address, "/v1/bonuses/send", &key, r#"{"trade_no": "held"}"#).await }
    });
    let mut client = SendClient::new(channel(address).await);
    let grpc = tokio::spawn(async move {
        let first = client.send_bonus(with(order("held"), &[("authorization", &bearer(&key))])).await;
        let second = client.send_bonus(with(order("late"), &[("authorization", &bearer(&key))])).await;
        (first, second)
    });
    until("both are in flight", async || running.metric("windfall_edge_calls_in_hand") == 2.0).await;
    let stopping = tokio::spawn(running.server.stop());
    until("nothing listens any more", async || TcpStream::connect(address).await.is_err()).await;
    assert!(!running.health.is_ready() && !stopping.is_finished(), "it does not wait for calls in flight");
    running.fake.let_go.cancel();
    // The connection that has said nothing is not waited for: its own time-out is five minutes.
    let stopped = tokio::time::timeout(Duration::from_secs(60), stopping).await.unwrap();
    assert_eq!(stopped.unwrap(), Stopped { connections_cut: 0 });
    assert_eq!(http.await.unwrap().status, 200);
    let (first, second) = grpc.await.unwrap();
    assert!(first.is_ok(), "{first:?}");
    assert_eq!(second.unwrap_err().code(), Code::Unavailable);
    drop(idle);
}

#[tokio::test]
async fn a_stop_cuts_what_is_not_done_at_the_deadline() {
    let impatient = ServeOptions { stop_timeout_ms: 300, request_timeout_ms: 300_000, ..options() };
    let running = start(impatient, "", Clock::system()).await;
    let (address, key) = (running.server.address(), running.keys.send.text.clone());
    let http = tokio::spawn({
        let key = key.clone();
        async move { post(address, "/v1/bonuses/send", &key, r#"{"trade_no": "held"}"#).await }
    });
    let mut client = SendClient::new(channel(address).await);
    let grpc = tokio::spawn(async move {
        client.send_bonus(with(order("held"), &[("authorization", &bearer(&key))])).await
    });
    until("both are in flight", async || running.metric("windfall_edge_calls_in_hand") == 2.0).await;
    let stopped = tokio::time::timeout(Duration::from_secs(60), running.server.stop()).await.unwrap();
    assert_eq!(stopped, Stopped { connections_cut: 2 });
    assert_eq!(http.await.unwrap().status, 0, "no answer: nobody knows");
    assert!(grpc.await.unwrap().is_err());
    let in_flight = &running.fake.in_flight;
    until("the services were let go", async || in_flight.load(std::sync::atomic::Ordering::SeqCst) == 0)
        .await;
}

#[tokio::test]
async fn a_dropped_server_is_gone() {
    let running = start(options(), "", Clock::system()).await;
    let address = running.server.address();
    let mut open = TcpStream::connect(address).await.unwrap();
    open.write_all(b"POST / HTTP/1.1\r\n").await.unwrap();
    until("it is in", async || running.metrics.text().unwrap().contains("windfall_edge_connections 1")).await;
    drop(running.server);
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(60), open.read_to_end(&mut rest)).await;
    assert!(end.is_ok());
    until("nothing listens", async || TcpStream::connect(address).await.is_err()).await;
}
