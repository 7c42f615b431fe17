//! Too long, too slow, too many, too dense: cut off, within bounded memory, while good callers go on.

use super::{GRANT_BATCH, PATIENCE, SEND, SEND_BATCH, Target, VERIFY, WALLET, code};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};
use windfall_client::{ClientOptions, GatewayClient, SendBonus, SendError};
use windfall_proto::v1::{Bonus, SendBonusRequest, User};
use windfall_tests::Answer;
use windfall_tests::raw::{answers, connect, exchange, read_answers};

const GIGABYTE: u64 = 1 << 30;
/// What may be on its way into a connection that nobody reads: the kernel's buffers of both sides.
const ON_THE_WIRE_MAX: u64 = 64 << 20;
/// Short, so that the test is; callers that mean well take a thousandth of it.
const OPTIONS: &str =
    "[serve]\nheader_timeout_ms = 3000\nbody_timeout_ms = 3000\nbodies_bytes_max = 16777216\n";
/// Slow connections of each kind.
const SLOW: usize = 60;
const DRIP_EVERY: Duration = Duration::from_millis(100);

#[test]
fn floods_are_cut_off_and_the_others_go_on() {
    let mut target = Target::start(OPTIONS, &[], "");
    declared(&target);
    streamed(&target);
    by_grpc(&target);
    target.within_memory("a gigabyte");
    dense(&target);
    target.within_memory("dense bodies");
    compressed(&target);
    headers(&target);
    target.within_memory("compressed bodies and long headers");
    slow(&mut target);
    target.within_memory("slow connections");
    let kept = target.memory.grown_bytes();
    assert!(kept <= super::MEMORY_MAX_BYTES / 2, "{} MiB are kept for nobody", kept >> 20);
    target.stop(&[]);
}

fn head(target: &Target, caller: &str, path: &str, more: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: h\r\nauthorization: {}\r\ncontent-type: application/json\r\n{more}\r\n",
        target.bearer(caller)
    )
}

/// A length beyond the limit is refused before a byte of it, `100 Continue` or not.
fn declared(target: &Target) {
    for expect in ["", "expect: 100-continue\r\n"] {
        for length in [GIGABYTE, (4 << 20) + 1, u64::MAX] {
            let more = format!("content-length: {length}\r\n{expect}");
            let said = head(target, "activity", SEND, &more);
            let mut stream = connect(target.service.address);
            stream.write_all(said.as_bytes()).unwrap();
            let answers = read_answers(&mut stream);
            // The last is no length at all to the reader of heads.
            let is_refused = |answer: &Answer| {
                code(answer) == (413, "RESOURCE_EXHAUSTED")
                    || (length == u64::MAX && matches!(answer.status, 400 | 431))
            };
            assert!(answers.len() == 1 && is_refused(&answers[0]), "{length} {expect:?}: {answers:?}");
        }
    }
}

/// A gigabyte that really comes, declared or not, on eight connections at once.
fn streamed(target: &Target) {
    let zeros = vec![b' '; 64 << 10];
    let chunk = [b"10000\r\n".as_slice(), &zeros, b"\r\n"].concat();
    let declared = head(target, "activity", SEND, &format!("content-length: {GIGABYTE}\r\n"));
    let chunked = head(target, "activity", SEND, "transfer-encoding: chunked\r\n");
    let pour = |head: &str, part: &[u8]| {
        let mut stream = connect(target.service.address);
        stream.write_all(head.as_bytes()).unwrap();
        let mut sent = 0;
        while sent < GIGABYTE && stream.write_all(part).is_ok() {
            sent += part.len() as u64;
        }
        sent
    };
    thread::scope(|scope| {
        let (pour, declared, chunked, zeros, chunk) = (&pour, &declared, &chunked, &zeros, &chunk);
        let pours: Vec<_> = (0..8)
            .map(|nth| {
                scope.spawn(move || if nth % 2 == 0 { pour(declared, zeros) } else { pour(chunked, chunk) })
            })
            .collect();
        for pour in pours {
            let sent = pour.join().unwrap();
            assert!(sent <= ON_THE_WIRE_MAX, "{} MiB were taken", sent >> 20);
        }
    });
}

/// A message beyond the limit, by the client that everybody uses.
fn by_grpc(target: &Target) {
    let options = ClientOptions {
        endpoints: vec![target.service.url()],
        bearer_key: Some(target.service.keys["activity"].clone()),
        attempts: 1,
        attempt_timeout_ms: 60_000,
        ..ClientOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let request = |description: String| SendBonusRequest {
        trade_no: "flood:1".into(),
        user: Some(User { user_id: 42, ..User::default() }),
        activity: "spring-2027".into(),
        scene: "rain".into(),
        bonus: Some(Bonus { r#type: "cash".into(), amount: 1, description }),
        ..SendBonusRequest::default()
    };
    runtime.block_on(async {
        let client = GatewayClient::open(options).unwrap();
        let long = client.send_bonus(request("x".repeat(32 << 20))).await;
        assert!(matches!(long, Err(SendError::Busy(_) | SendError::Unanswered(_))), "{long:?}");
        let sent = client.send_bonus(request("good".into())).await;
        assert!(sent.is_ok(), "the same connection, or another one, goes on: {sent:?}");
    });
}

/// Bodies within the limit that would be hundreds of times as much in memory, eight at once.
fn dense(target: &Target) {
    let most = 4_000_000;
    let of = |begin: &str, one: &str, end: &str| {
        [begin, &one.repeat((most - begin.len() - end.len()) / one.len()), end].concat()
    };
    let map = (0..350_000).fold(String::new(), |all, nth| all + &format!("\"{nth:x}\":\"\","));
    let cases = [
        ("activity", SEND_BATCH, of(r#"{"requests":["#, "{},", "{}]}")),
        ("activity", SEND_BATCH, of(r#"{"requests":["#, r#"{"user":{}},"#, "{}]}")),
        ("grants", GRANT_BATCH, of(r#"{"events":["#, "{},", "{}]}")),
        ("wallet-front", VERIFY, of(r#"{"tokens":["#, r#""","#, r#"""]}"#)),
        ("wallet-front", VERIFY, of(r#"{"tokens":["#, "[", "")),
        ("wallet-front", WALLET, "[".repeat(most)),
        ("wallet-front", WALLET, r#"{"tokens":"#.repeat(most / 10)),
        ("activity", SEND, format!(r#"{{"extension":{{{map}"x":"y"}}}}"#)),
        ("activity", SEND, of(r#"{"trade_no":""#, r"\u0000", r#""}"#)),
        ("activity", SEND, of(r#"{"bonus":{"amount":"#, "9", "}}")),
        ("activity", SEND, of("", " ", "{}")),
    ];
    // A longer one would be refused for its length before anything is read of it.
    assert!(cases.iter().all(|(_, _, body)| body.len() <= most));
    let mut answered = 0;
    thread::scope(|scope| {
        let calls: Vec<_> = (0..2)
            .flat_map(|_| &cases)
            .map(|(caller, path, body)| {
                let own = target.service.caller();
                let headers = [
                    ("authorization", target.bearer(caller)),
                    ("content-type", "application/json".to_owned()),
                    ("x-windfall-user", "42".to_owned()),
                ];
                let named = if *caller == "wallet-front" { 3 } else { 2 };
                scope.spawn(move || (path, own.try_send("POST", path, &headers[..named], body.as_bytes())))
            })
            .collect();
        for call in calls {
            let (path, answer) = call.join().unwrap();
            // Or there was no room for it beside the others; then the connection may be cut before it is read out.
            let is_refused =
                |answer: &Answer| matches!(code(answer), (400, "INVALID_ARGUMENT") | (503, "UNAVAILABLE"));
            assert!(answer.iter().all(is_refused), "{path}: {answer:?}");
            answered += usize::from(answer.is_some());
        }
    });
    assert!(answered >= 4, "only {answered} were told");
    let one = target.post("activity", None, SEND_BATCH, &json!({"requests": vec![json!({}); 60_000]}));
    assert_eq!(code(&one), (400, "INVALID_ARGUMENT"));
}

/// 256 MiB of blanks in a few hundred kilobytes: refused as it is.
fn compressed(target: &Target) {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    let blanks = vec![b' '; 1 << 20];
    for _ in 0..256 {
        bomb.write_all(&blanks).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 4 << 20, "within what a body may be");
    for encoding in ["gzip", "GZIP", "x-gzip", "deflate", "br", "zstd", "identity, gzip", "gzip, gzip"] {
        for name in ["content-encoding", "grpc-encoding"] {
            let more = format!("{name}: {encoding}\r\ncontent-length: {}\r\n", bomb.len());
            let said = [head(target, "activity", SEND, &more).as_bytes(), &bomb].concat();
            let refused = exchange(target.service.address, &said);
            assert_eq!(code(&refused[0]), (415, "UNIMPLEMENTED"), "{name}: {encoding}");
        }
    }
    // Not said, it is no JSON; packed for the way, it is no way that we take.
    let headers =
        [("authorization", target.bearer("activity")), ("content-type", "application/json".to_owned())];
    assert_eq!(code(&target.send(SEND, &headers, &bomb)), (400, "INVALID_ARGUMENT"));
    let more = format!("transfer-encoding: gzip, chunked\r\ncontent-length: {}\r\n", bomb.len());
    let said = [head(target, "activity", SEND, &more).into_bytes(), bomb].concat();
    let refused = exchange(target.service.address, &said);
    assert!(refused.iter().all(|answer| answer.status == 400), "{refused:?}");
}

/// Long ones and many: said where that is possible, cut off where they go on.
fn headers(target: &Target) {
    let long = format!("x-long: {}\r\n", "x".repeat(40 << 10));
    let many = "x-many: 1\r\n".repeat(100);
    let goodbye = "connection: close\r\ncontent-length: 2\r\n";
    for more in [&long, &many] {
        let said = head(target, "activity", SEND, &format!("{more}{goodbye}")) + "{}";
        let refused = exchange(target.service.address, said.as_bytes());
        assert_eq!(code(&refused[0]), (431, "RESOURCE_EXHAUSTED"));
    }
    let endless = "x".repeat(64 << 10);
    let mut stream = connect(target.service.address);
    stream.write_all(b"GET /health/live HTTP/1.1\r\nx-endless: ").unwrap();
    let mut sent = 0;
    while sent < GIGABYTE && stream.write_all(endless.as_bytes()).is_ok() {
        sent += endless.len() as u64;
    }
    assert!(sent <= ON_THE_WIRE_MAX, "{} MiB of a header were taken", sent >> 20);
}

/// A connection that takes its time.
struct Slow {
    what: &'static str,
    stream: TcpStream,
    drip: &'static [u8],
    heard: Vec<u8>,
    is_cut: bool,
}

impl Slow {
    fn open(target: &Target, what: &'static str, first: &[u8], drip: &'static [u8]) -> Self {
        let mut stream = connect(target.service.address);
        stream.write_all(first).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { what, stream, drip, heard: Vec::new(), is_cut: false }
    }

    fn go_on(&mut self) {
        let is_later = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
        if let Err(error) = self.stream.write(self.drip) {
            self.is_cut |= !is_later(&error);
        }
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.is_cut = true,
                Ok(count) => {
                    self.heard.extend_from_slice(&bytes[..count]);
                    continue;
                }
                Err(error) => self.is_cut |= !is_later(&error),
            }
            break;
        }
    }
}

/// Slow loris: heads and bodies by the byte, on many connections; all of them are cut off, and good callers never wait.
fn slow(target: &mut Target) {
    let body = head(target, "activity", SEND, "content-length: 1000\r\n") + "{";
    let chunked = head(target, "activity", SEND, "transfer-encoding: chunked\r\n") + "1\r\n{\r\n";
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let settings = [preface, b"\0\0\0\x04\0\0\0\0\0"].concat();
    let half_frame = [settings.as_slice(), b"\0\0\x40\x01\x04\0\0\0\x01"].concat();
    let kinds: [(&'static str, &[u8], &'static [u8]); 8] = [
        ("silence", b"", b""),
        ("a head by the byte", b"POST / HTTP/1.1\r\nhost: h\r\nx-slow: ", b"x"),
        ("a head by the line", b"POST / HTTP/1.1\r\nhost: h\r\n", b"a: b\r\n"),
        ("a body by the byte", body.as_bytes(), b" "),
        ("a body by the chunk", chunked.as_bytes(), b"1\r\n \r\n"),
        ("half a preface", &preface[..10], b""),
        ("a preface and no more", &settings, b""),
        ("half a frame by the byte", &half_frame, b"x"),
    ];
    let mut all: Vec<Slow> = (0..SLOW)
        .flat_map(|_| kinds)
        .map(|(what, first, drip)| Slow::open(target, what, first, drip))
        .collect();
    let began = Instant::now();
    let mut slowest_good = Duration::ZERO;
    while all.iter().any(|slow| !slow.is_cut) {
        for slow in all.iter_mut().filter(|slow| !slow.is_cut) {
            slow.go_on();
        }
        let asked = Instant::now();
        assert_eq!(target.post("wallet-front", 42, WALLET, &json!({})).status, 200);
        slowest_good = slowest_good.max(asked.elapsed());
        if began.elapsed() > PATIENCE {
            let left: Vec<_> = all.iter().filter(|slow| !slow.is_cut).map(|slow| slow.what).collect();
            panic!("{} are still there: {left:?}", left.len());
        }
        thread::sleep(DRIP_EVERY);
    }
    println!("all were cut after {:?}; the slowest good call took {slowest_good:?}", began.elapsed());
    // Good callers are never made to wait for the time-outs of slow ones.
    assert!(slowest_good < Duration::from_secs(2), "a good call took {slowest_good:?}");
    for slow in all.iter().filter(|slow| slow.what.starts_with("a body")) {
        let answers = answers(&slow.heard);
        // A reset may have overtaken the answer.
        let is_told = |answer: &Answer| code(answer) == (408, "DEADLINE_EXCEEDED");
        assert!(answers.iter().all(is_told), "{}: {answers:?}", slow.what);
    }
    target.still_serves();
}
