//! Too long, too slow, too many, compressed, smuggled: each gets its answer, within bounded memory.

#![allow(clippy::unwrap_used)] // a test that cannot go on says so

mod fixture;

use bytes::Bytes;
use fixture::http::{JSON, Reply, bearer, channel, parse, post, read, request, with};
use fixture::{Running, options, start, until};
use prost::Message;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use windfall_contract::Clock;
use windfall_edge::ServeOptions;
use windfall_proto::v1;
use windfall_proto::v1::send_client::SendClient;

const SEND: &str = "/v1/bonuses/send";
const GRPC_SEND: &str = "/windfall.v1.Send/SendBonus";
const GIGABYTE: u64 = 1 << 30;

type Connection = tokio::task::JoinHandle<Result<(), h2::Error>>;

async fn running(options: ServeOptions) -> Running {
    start(options, "", Clock::system()).await
}

fn order(trade_no: &str) -> v1::SendBonusRequest {
    v1::SendBonusRequest { trade_no: trade_no.to_owned(), ..Default::default() }
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// An HTTP/2 request without its body, and what sends it.
async fn open_stream(
    running: &Running,
    path: &str,
    kind: &str,
) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>, Connection) {
    open_stream_with(running, path, kind, None).await
}

async fn open_stream_with(
    running: &Running,
    path: &str,
    kind: &str,
    timeout: Option<&str>,
) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>, Connection) {
    let stream = TcpStream::connect(running.server.address()).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut sender = sender.ready().await.unwrap();
    let request = http::Request::post(format!("http://h{path}"))
        .header("content-type", kind)
        .header("te", "trailers")
        .header("authorization", bearer(&running.keys.send.text));
    let request = match timeout {
        Some(timeout) => request.header("grpc-timeout", timeout),
        None => request,
    };
    let request = request.body(()).unwrap();
    let (response, body) = sender.send_request(request, false).unwrap();
    (response, body, connection)
}

#[tokio::test]
async fn a_body_that_declares_a_gigabyte_is_refused_at_once() {
    let running = running(options()).await;
    let key = bearer(&running.keys.send.text);
    let length = GIGABYTE.to_string();
    let headers = [("authorization", key.as_str()), JSON, ("content-length", &length)];
    let reply = request(running.server.address(), "POST", SEND, &headers, "").await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "RESOURCE_EXHAUSTED"));
    let headers =
        [("authorization", key.as_str()), JSON, ("content-length", &length), ("expect", "100-continue")];
    let reply = request(running.server.address(), "POST", SEND, &headers, "").await;
    assert_eq!(reply.status, 413, "no `100 Continue` before it");
}

#[tokio::test]
async fn a_gigabyte_that_really_comes_stays_on_the_wire() {
    let running = running(options()).await;
    let before = resident_bytes();
    // HTTP/1, chunked, so that nothing is declared.
    let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
    let head = format!(
        "POST {SEND} HTTP/1.1\r\nhost: h\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n",
        bearer(&running.keys.send.text)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    let mut sent = 0;
    while sent < GIGABYTE && stream.write_all(&chunk).await.is_ok() {
        sent += 0x10000;
    }
    assert!(sent < 64 << 20, "{sent} bytes were taken");

    // HTTP/2, as gRPC: a message that says how long it is, and one that does not stop.
    let (response, mut body, connection) = open_stream(&running, GRPC_SEND, "application/grpc").await;
    let zeros = Bytes::from_static(&[0; 16 << 10]);
    body.send_data(Bytes::from_static(&[0, 0x40, 0, 0, 0]), false).unwrap();
    let sending = async {
        let mut sent = 0;
        while sent < GIGABYTE {
            body.reserve_capacity(zeros.len());
            match std::future::poll_fn(|context| body.poll_capacity(context)).await {
                Some(Ok(room)) => {
                    let part = zeros.slice(..room.min(zeros.len()));
                    sent += part.len() as u64;
                    if body.send_data(part, false).is_err() {
                        break;
                    }
                }
                _ => break,
            }
        }
        sent
    };
    let (answer, sent) = tokio::join!(response, sending);
    assert!(sent < 64 << 20, "{sent} bytes were taken");
    let answer = answer.unwrap();
    assert_eq!(answer.headers()["grpc-status"], (Code::ResourceExhausted as i32).to_string().as_str());
    connection.abort();

    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "memory grew by {grown} bytes");
    assert_eq!(running.metric("windfall_edge_bodies_in_hand_bytes"), 0.0);
    assert!(running.fake.calls.lock().is_empty());
}

#[tokio::test]
async fn many_bodies_together_have_a_limit_too() {
    let small = ServeOptions { body_bytes_max: 64 << 10, bodies_bytes_max: 64 << 10, ..options() };
    let running = running(small).await;
    let (_held, mut body, connection) = open_stream(&running, SEND, "application/json").await;
    body.send_data(vec![b' '; 60 << 10].into(), false).unwrap();
    until("the first body is in memory", async || {
        running.metric("windfall_edge_bodies_in_hand_bytes") >= f64::from(60 << 10)
    })
    .await;
    let key = running.keys.send.text.clone();
    let big = format!("{{{}}}", " ".repeat(8 << 10));
    let reply = post(running.server.address(), SEND, &key, &big).await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "UNAVAILABLE"));
    assert_eq!(reply.json()["retry_after_ms"], 200);
    connection.abort();
    until("it has gone", async || post(running.server.address(), SEND, &key, &big).await.status == 200).await;
}

#[tokio::test]
async fn a_grpc_body_is_one_whole_message_whose_fields_are_counted() {
    let running = running(options()).await;
    let framed = |message: &[u8]| {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0][..], &length, message].concat()
    };
    let extension = (0..70_000).map(|nth| (nth.to_string(), String::new())).collect();
    let many = v1::SendBonusRequest { extension, ..Default::default() }.encode_to_vec();
    let one = framed(&order("a").encode_to_vec());
    let refused = [
        ("too many values", framed(&many)),
        ("them behind a group", framed(&[&b"\x7b\x7c"[..], &many].concat())),
        ("them in a second message", [&one[..], &framed(&many)].concat()),
        ("a second message", [&one[..], &one].concat()),
        ("less than the prefix says", one[..one.len() - 1].to_vec()),
        ("the longest length, and nothing", b"\0\xff\xff\xff\xff".to_vec()),
    ];
    let send = async |message: Vec<u8>| {
        let (response, mut body, connection) = open_stream(&running, GRPC_SEND, "application/grpc").await;
        body.send_data(message.into(), true).unwrap();
        let answer = response.await.unwrap();
        connection.abort();
        answer.headers().get("grpc-status").map(|status| status.to_str().unwrap().parse().unwrap())
    };
    for (what, message) in refused {
        assert_eq!(send(message).await, Some(Code::InvalidArgument as i32), "{what}");
    }
    assert!(running.fake.calls.lock().is_empty());
    assert_eq!(send(one).await, None, "its status comes after its answer");
    assert_eq!(send(Vec::new()).await, Some(Code::Internal as i32), "there is no message");
    assert_eq!(running.fake.calls.lock().len(), 1);
}

#[tokio::test]
async fn compressed_bodies_are_not_taken() {
    let running = running(options()).await;
    let address = running.server.address();
    let key = bearer(&running.keys.send.text);
    for encoding in ["gzip", "br", "identity, gzip", "GZIP"] {
        let headers = [("authorization", key.as_str()), JSON, ("content-encoding", encoding)];
        let reply = request(address, "POST", SEND, &headers, "\u{1f}").await;
        assert_eq!((reply.status, reply.code().as_str()), (415, "UNIMPLEMENTED"), "{encoding}");
        let headers = [("authorization", key.as_str()), ("grpc-encoding", encoding)];
        let sent = SendClient::new(channel(address).await).send_bonus(with(order("a"), &headers)).await;
        assert_eq!(sent.unwrap_err().code(), Code::Unimplemented, "{encoding}");
    }
    let headers = [("authorization", key.as_str()), JSON, ("content-encoding", "identity")];
    assert_eq!(request(address, "POST", SEND, &headers, "{}").await.status, 200);
    assert_eq!(running.fake.calls.lock().len(), 1);
}

/// Method, path and headers; status and code.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16, &'a str);

#[tokio::test]
async fn other_media_methods_and_paths_get_their_errors_as_json() {
    let running = running(options()).await;
    let address = running.server.address();
    let key = bearer(&running.keys.front.text);
    let authorized = ("authorization", key.as_str());
    let cases: [Case<'_>; 12] = [
        ("POST", "/v1/nothing", &[JSON], 404, "NOT_FOUND"),
        ("POST", "/v1/bonuses/send/", &[JSON], 404, "NOT_FOUND"),
        ("POST", "/V1/bonuses/send", &[JSON], 404, "NOT_FOUND"),
        ("GET", SEND, &[], 405, "UNIMPLEMENTED"),
        ("DELETE", SEND, &[JSON], 405, "UNIMPLEMENTED"),
        ("POST", "/metrics", &[JSON], 405, "UNIMPLEMENTED"),
        ("POST", "/health/live", &[JSON], 405, "UNIMPLEMENTED"),
        ("POST", SEND, &[], 415, "UNIMPLEMENTED"),
        ("POST", SEND, &[("content-type", "text/plain")], 415, "UNIMPLEMENTED"),
        ("POST", SEND, &[JSON, ("content-type", "text/plain")], 415, "UNIMPLEMENTED"),
        ("POST", SEND, &[("content-type", "application/grpc")], 415, "UNIMPLEMENTED"),
        ("POST", GRPC_SEND, &[JSON], 415, "UNIMPLEMENTED"),
    ];
    for (method, path, headers, status, code) in cases {
        let headers: Vec<_> = headers.iter().copied().chain([authorized]).collect();
        let reply = request(address, method, path, &headers, "{}").await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{method} {path} {headers:?}");
        let allow = (status == 405).then_some(if path == SEND { "POST" } else { "GET" });
        assert_eq!(reply.header("allow"), allow);
    }
    let mut other = tonic::client::Grpc::new(channel(address).await);
    other.ready().await.unwrap();
    let path = "/windfall.v1.Send/Nothing".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<v1::SendBonusRequest, v1::SendBonusReply>::default();
    let answer = other.unary(with(order("a"), &[authorized]), path, codec).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn json_that_is_not_of_the_form_is_an_invalid_argument() {
    let running = running(options()).await;
    let key = running.keys.send.text.clone();
    let deep = "[".repeat(10_000);
    for body in [
        "",
        "{",
        "[]",
        "null",
        "\"x\"",
        r#"{"trade_no": 1}"#,
        r#"{"trade_no": "a", "trade_no": "b"}"#,
        r#"{"trade_no": "a", "tradeNo": "b"}"#,
        r#"{"bonus": {"amount": 1.5}}"#,
        r#"{"bonus": {"amount": "9223372036854775808"}}"#,
        r#"{"nothing": 1}"#,
        r#"{} {}"#,
        &deep,
    ] {
        let reply = post(running.server.address(), SEND, &key, body).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, "INVALID_ARGUMENT"), "{body:.40}");
        assert!(reply.body.len() < 600);
    }
    assert!(running.fake.calls.lock().is_empty());
}

#[tokio::test]
async fn headers_have_a_limit_in_bytes_and_number() {
    let running = running(options()).await;
    let address = running.server.address();
    let key = bearer(&running.keys.send.text);
    let long = "x".repeat(40 << 10);
    let reply =
        request(address, "POST", SEND, &[("authorization", &key), JSON, ("x-long", &long)], "{}").await;
    assert_eq!((reply.status, reply.code().as_str()), (431, "RESOURCE_EXHAUSTED"));
    let mut many = vec![("authorization", key.as_str()), JSON];
    many.extend(std::iter::repeat_n(("x-many", "1"), 80));
    let reply = request(address, "POST", SEND, &many, "{}").await;
    assert_eq!((reply.status, reply.code().as_str()), (431, "RESOURCE_EXHAUSTED"));
    // Far beyond, hyper answers by itself, and reads no further.
    let endless = "x".repeat(1 << 20);
    let reply = request(address, "POST", SEND, &[("x-long", &endless)], "{}").await;
    assert!(matches!(reply.status, 431 | 0), "{}", reply.status);
}

#[tokio::test]
async fn requests_of_two_meanings_are_refused() {
    let running = running(options()).await;
    let key = bearer(&running.keys.send.text);
    let head = format!(
        "POST {SEND} HTTP/1.1\r\nhost: h\r\nauthorization: {key}\r\ncontent-type: application/json\r\n"
    );
    let smuggled = format!("POST /v1/bonuses/send-batch HTTP/1.1\r\nhost: h\r\nauthorization: {key}\r\n\r\n");
    for framing in [
        "content-length: 2\r\ncontent-length: 80\r\n",
        "content-length: 2\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: gzip, chunked, x\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "content-length: +2\r\n",
        "content-length: 2, 2\r\ncontent-length: 3\r\n",
    ] {
        let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
        stream.write_all(format!("{head}{framing}\r\n{{}}{smuggled}").as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        let reading = stream.read_to_end(&mut bytes);
        let _end = tokio::time::timeout(Duration::from_secs(2), reading).await;
        let answers = String::from_utf8_lossy(&bytes);
        assert_eq!(answers.matches("HTTP/1.1 200").count(), 0, "{framing} {answers}");
        assert!(answers.matches("HTTP/1.1 ").count() <= 1, "{framing} {answers}");
    }
    assert!(running.fake.calls.lock().is_empty());
}

#[tokio::test]
async fn slow_heads_are_cut_off_whatever_they_look_like() {
    let running = running(ServeOptions { header_timeout_ms: 300, ..options() }).await;
    let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let half_frame = [settings.as_slice(), b"\0\0\x20\x01\x04\0\0\0\x01"].concat();
    let cases: [(&str, &[u8]); 6] = [
        ("nothing", b""),
        ("one byte of either", b"P"),
        ("half a preface", b"PRI * HTTP/2.0\r\n\r\n"),
        ("half a head", b"POST / HTTP/1.1\r\nhost: h\r\nx-slow: "),
        ("a preface and silence", settings),
        ("half a frame of headers", &half_frame),
    ];
    // Six times the default of 15 s would be more.
    let end_by = tokio::time::Instant::now() + Duration::from_secs(60);
    for (what, bytes) in cases {
        let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let started = Instant::now();
        let mut rest = Vec::new();
        let end = tokio::time::timeout_at(end_by, stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "{what}: still open after {:?}", started.elapsed());
        assert!(started.elapsed() >= Duration::from_millis(250), "{what}: cut too soon");
    }
    until("all are counted", async || {
        running.metric("windfall_edge_cut_connections_total{reason=\"headers_too_slow\"}") == 6.0
    })
    .await;
    // One that trickles: each byte is in time, the head is not.
    let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
    let mut sent = 0;
    for byte in std::iter::repeat_n(b"x", 100) {
        if stream.write_all(byte).await.is_err() {
            break;
        }
        sent += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(sent < 100);
}

#[tokio::test]
async fn slow_bodies_are_cut_off_on_both_faces() {
    let running = running(ServeOptions { body_timeout_ms: 300, ..options() }).await;
    let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
    let head = format!(
        "POST {SEND} HTTP/1.1\r\nhost: h\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{",
        bearer(&running.keys.send.text)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let reply = tokio::time::timeout(Duration::from_secs(3), read(&mut stream)).await.unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (408, "DEADLINE_EXCEEDED"));

    let (response, mut body, connection) = open_stream(&running, GRPC_SEND, "application/grpc").await;
    body.send_data(Bytes::from_static(&[0, 0, 0, 0, 9]), false).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(3), response).await.unwrap().unwrap();
    assert_eq!(answer.headers()["grpc-status"], (Code::DeadlineExceeded as i32).to_string().as_str());
    connection.abort();
}

#[tokio::test]
async fn who_does_not_read_the_answer_is_cut_off() {
    let running =
        running(ServeOptions { body_timeout_ms: 100, request_timeout_ms: 1_500, ..options() }).await;
    let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
    let body = format!("{{\"id\": {}}}", 16 << 20);
    let head = format!(
        "POST /v1/archive/get HTTP/1.1\r\nhost: h\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        bearer(&running.keys.operate.text),
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    until("it is cut", async || {
        running.metric("windfall_edge_cut_connections_total{reason=\"answer_too_slow\"}") == 1.0
    })
    .await;
    assert_eq!(running.metric("windfall_edge_calls_in_hand"), 0.0);
}

/// A connection on which a call was answered.
async fn known(running: &Running) -> TcpStream {
    let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
    assert_eq!(call_on(running, &mut stream).await.status, 200);
    stream
}

async fn call_on(running: &Running, stream: &mut TcpStream) -> Reply {
    let call = format!(
        "POST {SEND} HTTP/1.1\r\nhost: h\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
         content-length: 2\r\n\r\n{{}}",
        bearer(&running.keys.send.text)
    );
    stream.write_all(call.as_bytes()).await.unwrap();
    let mut bytes = vec![0; 4096];
    let count = stream.read(&mut bytes).await.unwrap();
    parse(&bytes[..count])
}

/// Whether the server closes it soon.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0])).await.unwrap();
    matches!(read, Ok(0) | Err(_))
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once() {
    let running = running(ServeOptions { connections_max: 2, ..options() }).await;
    let (first, mut second) = (known(&running).await, known(&running).await);
    let mut third = TcpStream::connect(running.server.address()).await.unwrap();
    assert!(is_closed(&mut third).await);
    assert_eq!(call_on(&running, &mut second).await.status, 200);
    drop((first, second));
    until("there is room again", async || running.metric("windfall_edge_connections") == 0.0).await;
    known(&running).await;
    assert!(running.metric("windfall_edge_cut_connections_total{reason=\"too_many\"}") >= 1.0);
}

#[tokio::test]
async fn a_connection_without_a_key_makes_room_for_a_new_one() {
    let running = running(ServeOptions { connections_max: 2, ..options() }).await;
    let mut keyed = known(&running).await;
    let mut silent = TcpStream::connect(running.server.address()).await.unwrap();
    until("it is in", async || running.metric("windfall_edge_unauthenticated_connections") == 1.0).await;
    let mut other = known(&running).await;
    assert!(is_closed(&mut silent).await);
    assert_eq!(running.metric("windfall_edge_cut_connections_total{reason=\"made_room\"}"), 1.0);
    for stream in [&mut keyed, &mut other] {
        assert_eq!(call_on(&running, stream).await.status, 200);
    }
    // Those with a key stay, however many there are of one address; those without make room for each other.
    let few = ServeOptions { unauthenticated_connections_per_peer_max: 2, ..options() };
    let running = self::running(few.clone()).await;
    let mut keyed = Vec::new();
    for _ in 0..4 {
        keyed.push(known(&running).await);
    }
    let mut silent = Vec::new();
    for count in 1..=3 {
        silent.push(TcpStream::connect(running.server.address()).await.unwrap());
        let open = f64::from(count.min(2));
        until("it is in", async || {
            running.metric("windfall_edge_unauthenticated_connections") == open
                && running.metric("windfall_edge_connections") == 4.0 + open
        })
        .await;
    }
    assert!(is_closed(&mut silent[0]).await);
    assert_eq!(running.metric("windfall_edge_cut_connections_total{reason=\"peer_too_many\"}"), 1.0);
    assert_eq!(call_on(&running, &mut silent[1]).await.status, 200);
    for stream in &mut keyed {
        assert_eq!(call_on(&running, stream).await.status, 200);
    }
    let trusting = ServeOptions { trusted_peers: vec!["127.0.0.0/8".parse().unwrap()], ..few };
    let running = self::running(trusting).await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(running.server.address()).await.unwrap());
    }
    until("all are in", async || running.metric("windfall_edge_unauthenticated_connections") == 3.0).await;
}

#[tokio::test]
async fn calls_without_a_key_end_their_connection_and_calls_with_one_do_not() {
    let running = running(ServeOptions { unauthenticated_calls_max: 3, ..options() }).await;
    let mut stream = known(&running).await;
    let wrong = format!("GET {SEND} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer wrong\r\n\r\n");
    let mut bytes = vec![0; 4096];
    for _ in 0..2 {
        for _ in 0..3 {
            stream.write_all(wrong.as_bytes()).await.unwrap();
            let count = stream.read(&mut bytes).await.unwrap();
            let reply = parse(&bytes[..count]);
            assert_eq!((reply.status, reply.header("connection")), (401, None));
        }
        assert_eq!(call_on(&running, &mut stream).await.status, 200, "which begins the row anew");
    }
    let said = wrong.repeat(4);
    stream.write_all(said.as_bytes()).await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert_eq!(rest.matches("HTTP/1.1 401").count(), 4, "{rest}");
    assert_eq!(rest.matches("connection: close").count(), 1, "the last one: {rest}");

    // Over HTTP/2 it is told to go.
    let mut client = tonic::client::Grpc::new(channel(running.server.address()).await);
    for _ in 0..4 {
        client.ready().await.unwrap();
        let path = GRPC_SEND.parse().unwrap();
        let codec = tonic_prost::ProstCodec::<v1::SendBonusRequest, v1::SendBonusReply>::default();
        let answer = client.unary(with(order("a"), &[("authorization", "Bearer wrong")]), path, codec).await;
        assert_eq!(answer.unwrap_err().code(), Code::Unauthenticated);
    }
    until("it is gone", async || {
        running.metric("windfall_edge_cut_connections_total{reason=\"calls_without_key\"}") >= 1.0
    })
    .await;
}

#[tokio::test]
async fn a_process_that_is_full_does_not_take_its_callers_for_strangers() {
    let options = ServeOptions { calls_max: 1, unauthenticated_calls_max: 2, ..options() };
    let running = running(options).await;
    let (_held, _body, connection) = open_stream(&running, SEND, "application/json").await;
    until("a call is in hand", async || running.metric("windfall_edge_calls_in_hand") == 1.0).await;
    let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
    for _ in 0..8 {
        let reply = call_on(&running, &mut stream).await;
        assert_eq!((reply.status, reply.header("connection")), (503, None));
    }
    assert_eq!(running.metric("windfall_edge_unauthenticated_connections"), 0.0);
    connection.abort();
}

#[tokio::test]
async fn connections_end_in_order_when_they_are_old() {
    let running = running(ServeOptions { connection_age_max_ms: 1_000, ..options() }).await;
    let mut stream = known(&running).await;
    // Over HTTP/2 the call that is in hand is answered, and the next one takes another connection.
    let grpc = channel(running.server.address()).await;
    let key = bearer(&running.keys.send.text);
    let call = async |trade_no: &str| {
        let request = with(order(trade_no), &[("authorization", &key)]);
        SendClient::new(grpc.clone()).send_bonus(request).await.map(|_| ())
    };
    call("a").await.unwrap();
    call("wait-2500").await.unwrap();
    until("it is gone", async || {
        running.metric("windfall_edge_cut_connections_total{reason=\"age\"}") >= 1.0
    })
    .await;
    call("b").await.unwrap();
    let reply = call_on(&running, &mut stream).await;
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn heads_that_are_large_and_calls_that_are_many_pass_at_once_with_a_key() {
    let running = running(options()).await;
    let channel = channel(running.server.address()).await;
    let key = bearer(&running.keys.send.text);
    let large = "x".repeat(20 << 10);
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let (mut client, key, large) = (SendClient::new(channel.clone()), key.clone(), large.clone());
            tokio::spawn(async move {
                let headers = [("authorization", key.as_str()), ("x-large", &large)];
                client.send_bonus(with(order("a"), &headers)).await
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(running.metric("windfall_edge_unauthenticated_connections"), 0.0);
}

/// All calls of a burst may begin before the first one's key is looked at.
#[tokio::test]
async fn a_burst_of_a_known_caller_is_answered_whatever_strangers_may_do() {
    let running = running(ServeOptions { unauthenticated_calls_max: 1, ..options() }).await;
    let channel = channel(running.server.address()).await;
    let key = bearer(&running.keys.send.text);
    let call = |channel: tonic::transport::Channel, key: String| async move {
        SendClient::new(channel).send_bonus(with(order("a"), &[("authorization", &key)])).await
    };
    call(channel.clone(), key.clone()).await.unwrap();
    for _ in 0..4 {
        let burst: Vec<_> = (0..256).map(|_| tokio::spawn(call(channel.clone(), key.clone()))).collect();
        for one in burst {
            one.await.unwrap().unwrap();
        }
    }
    let cut = running.metric("windfall_edge_cut_connections_total{reason=\"calls_without_key\"}");
    assert_eq!(cut, 0.0);
}

#[tokio::test]
async fn streams_of_a_connection_have_a_limit() {
    let running = running(ServeOptions { streams_max: 2, ..options() }).await;
    let channel = channel(running.server.address()).await;
    let key = bearer(&running.keys.send.text);
    let burst = async || {
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let (mut client, key) = (SendClient::new(channel.clone()), key.clone());
                tokio::spawn(async move {
                    client.send_bonus(with(order("wait-50"), &[("authorization", &key)])).await.is_ok()
                })
            })
            .collect();
        let mut answered = 0;
        for call in calls {
            answered += usize::from(call.await.unwrap());
        }
        answered
    };
    // A client that has not seen our settings yet may send too many, and has them refused.
    assert!(burst().await >= 2);
    // One that has waits for its turn.
    assert_eq!(burst().await, 8);
    assert_eq!(running.fake.most_in_flight.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_refusal_reaches_who_is_still_sending_its_body() {
    let running = running(options()).await;
    let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
    let head = format!("POST {SEND} HTTP/1.1\r\nhost: h\r\ncontent-length: 20\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(&[b' '; 10]).await.unwrap();
    }
    // A reset that a write has caused would be here by now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
}

#[tokio::test]
async fn an_answer_that_does_not_come_in_time_is_not_known() {
    let running = running(ServeOptions { request_timeout_ms: 1_000, ..options() }).await;
    let address = running.server.address();
    let key = bearer(&running.keys.send.text);
    let reply = post(address, SEND, &running.keys.send.text, r#"{"trade_no": "wait-5000"}"#).await;
    assert_eq!((reply.status, reply.code().as_str()), (504, "DEADLINE_EXCEEDED"));
    let authorized = [("authorization", key.as_str())];
    let sent =
        SendClient::new(channel(address).await).send_bonus(with(order("wait-5000"), &authorized)).await;
    assert_eq!(sent.unwrap_err().code(), Code::DeadlineExceeded);
    // The caller's own deadline is kept on our side, too (tonic's client also keeps it on its own, so by hand).
    // Neither the server's own deadline nor the service ends the call within the minute that the answer may take.
    let patient = self::running(ServeOptions { request_timeout_ms: 300_000, ..options() }).await;
    let (response, mut body, connection) =
        open_stream_with(&patient, GRPC_SEND, "application/grpc", Some("50m")).await;
    let message = order("held").encode_to_vec();
    let length = u8::try_from(message.len()).unwrap();
    body.send_data([&[0, 0, 0, 0, length], message.as_slice()].concat().into(), true).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(60), response).await.unwrap().unwrap();
    assert_eq!(answer.headers()["grpc-status"], (Code::DeadlineExceeded as i32).to_string().as_str());
    connection.abort();
    until("none is in flight", async || {
        [&running, &patient]
            .iter()
            .all(|own| own.fake.in_flight.load(std::sync::atomic::Ordering::SeqCst) == 0)
    })
    .await;
}

#[tokio::test]
async fn one_connection_takes_one_call_after_another() {
    let running = running(options()).await;
    let mut stream = TcpStream::connect(running.server.address()).await.unwrap();
    let one = format!(
        "POST {SEND} HTTP/1.1\r\nhost: h\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
         content-length: 2\r\n\r\n{{}}",
        bearer(&running.keys.send.text)
    );
    for _ in 0..3 {
        stream.write_all(one.as_bytes()).await.unwrap();
        let mut bytes = vec![0; 4096];
        let count = stream.read(&mut bytes).await.unwrap();
        assert_eq!(parse(&bytes[..count]).status, 200);
    }
}
