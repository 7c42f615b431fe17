//! A paying system that lies, sends elsewhere, or never ends: its orders stay undecided, and are paid once when it
//! comes to its senses.

use super::{GRANT, Target, WITHDRAW};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use windfall_tests::scratch;

/// What is wrong with an answer: also the bonus type that is paid so.
const TROUBLES: [&str; 12] = [
    "nonsense",
    "no-http",
    "empty",
    "number",
    "other-order",
    "bare-refusal",
    "redirect",
    "see-other",
    "endless",
    "stalled",
    "huge-head",
    "unpacks",
];

/// What the paying system knows.
#[derive(Default)]
struct Books {
    is_good: AtomicBool,
    /// Orders that were asked for, with how often.
    asked: Mutex<BTreeMap<String, usize>>,
    /// Whoever was sent here by a redirect.
    trapped: AtomicUsize,
}

/// Listens until the test ends; connections have a thread each, which end with their peer.
fn listen(answer: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            thread::spawn(move || answer(stream));
        }
    });
    address
}

/// Reads one request: the trouble that its path names, and the key that it asks for.
fn order(stream: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut line, mut trouble, mut length) = (String::new(), String::new(), 0);
    loop {
        line.clear();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if trouble.is_empty() {
            trouble = line.split('/').nth(1)?.to_owned();
        }
        let (name, value) = line.trim_end().split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let body: Value = serde_json::from_slice(&body).ok()?;
    Some((trouble, body["trade_no"].as_str()?.to_owned()))
}

fn pay(stream: TcpStream, books: &Books, trap: SocketAddr) {
    let Ok(mut out) = stream.try_clone() else { return };
    let mut read = BufReader::new(stream);
    while let Some((trouble, trade_no)) = order(&mut read) {
        let mut asked = books.asked.lock().unwrap();
        // The last word of what a payer is given is the order's number, or the withdrawal's id.
        let number = trade_no.rsplit(' ').next().unwrap_or_default();
        let times = asked.entry(number.to_owned()).or_default();
        *times += 1;
        let is_first = *times == 1;
        drop(asked);
        let written = if books.is_good.load(SeqCst) {
            let outcome = if is_first { "paid" } else { "already_paid" };
            json_answer(&mut out, "200 OK", &json!({"outcome": outcome, "trade_no": trade_no}).to_string())
        } else {
            misbehave(&mut out, &trouble, trap)
        };
        if written.is_err() {
            return;
        }
    }
}

fn json_answer(out: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    out.write_all((head + body).as_bytes())
}

fn misbehave(out: &mut TcpStream, trouble: &str, trap: SocketAddr) -> std::io::Result<()> {
    let endless = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    match trouble {
        "no-http" => out.write_all(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03 what?\r\n\r\n"),
        "empty" => json_answer(out, "200 OK", ""),
        "number" => json_answer(out, "200 OK", "1"),
        "other-order" => json_answer(out, "200 OK", r#"{"outcome":"paid","trade_no":"another"}"#),
        "bare-refusal" => json_answer(out, "422 Unprocessable Content", r#"{"outcome":"refused"}"#),
        "redirect" | "see-other" => {
            let status = if trouble == "redirect" { "307 Temporary Redirect" } else { "303 See Other" };
            let head =
                format!("HTTP/1.1 {status}\r\nlocation: http://{trap}/paid\r\ncontent-length: 0\r\n\r\n");
            out.write_all(head.as_bytes())
        }
        "endless" => {
            out.write_all(endless.as_bytes())?;
            let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
            // Ends when the peer has had enough.
            loop {
                out.write_all(&chunk)?;
            }
        }
        "stalled" => {
            out.write_all(endless.as_bytes())?;
            out.write_all(b"b\r\n{\"outcome\":\r\n")
        }
        "huge-head" => {
            out.write_all(b"HTTP/1.1 200 OK\r\nx-huge: ")?;
            for _ in 0..1_024 {
                out.write_all(&[b'x'; 0x10000])?;
            }
            Ok(())
        }
        "unpacks" => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n";
            let body = r#"{"outcome":"paid"}"#;
            out.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
        }
        _ => json_answer(out, "200 OK", "<html><body>It works!</body></html>"),
    }
}

fn options(address: SocketAddr, secret: &str) -> String {
    let mut options = "[rewards]\npayout = \"stalled\"\n[rewards.pays]\n".to_owned();
    for trouble in TROUBLES {
        options.push_str(&format!("{trouble} = {trouble:?}\n"));
    }
    for trouble in TROUBLES {
        options.push_str(&format!(
            "[connectors.{trouble}.wire.http]\nurl = \"http://{address}/{trouble}/{{bonus_type}}\"\n\
             allow = [\"127.0.0.1\"]\nkey_id = \"k\"\nsecret_file = {secret:?}\n\
             [connectors.{trouble}.wire.http.wire]\nplaintext = true\npause_ms = 10\n\
             [connectors.{trouble}.guard]\ntimeout_ms = 1000\nbreaker_open_ms = 100\n"
        ));
    }
    options
}

#[test]
fn a_downstream_that_lies_decides_nothing() {
    let books = Arc::new(Books::default());
    let trap = {
        let books = Arc::clone(&books);
        listen(move |_| {
            books.trapped.fetch_add(1, SeqCst);
        })
    };
    let address = {
        let books = Arc::clone(&books);
        listen(move |stream| pay(stream, &books, trap))
    };
    let dir = scratch();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    let target = Target::start(&options(address, &secret.display().to_string()), &[], "");

    let event = |trouble: &str| {
        let mut reward = super::reward(&format!("down:{trouble}"), 42, 3);
        reward["bonus"]["type"] = json!(trouble);
        json!({"event": reward})
    };
    let grant = |trouble: &str| target.ok("grants", None, GRANT, &event(trouble))["outcome"].clone();
    let asked = |order: &str| books.asked.lock().unwrap().get(order).copied().unwrap_or_default();
    thread::scope(|scope| {
        for trouble in TROUBLES {
            let (grant, asked) = (&grant, &asked);
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(grant(trouble), "GRANT_OUTCOME_RETRY", "{trouble}: nobody knows");
                }
                assert!(asked(&format!("down:{trouble}")) > 0, "{trouble}: was asked");
            });
        }
        // Money on its way out: held, neither lost nor paid twice.
        scope.spawn(|| {
            target.grant("down:cash", 42, 100);
            for _ in 0..2 {
                let held = withdraw(&target);
                assert_eq!(held["outcome"], "WITHDRAW_OUTCOME_PENDING", "{held}");
                assert_eq!(target.credited(42), 0, "it is not to be spent again");
            }
        });
    });
    assert_eq!(books.trapped.load(SeqCst), 0, "a redirect was followed");
    target.within_memory("a downstream that lies");
    let entries = target.ok("operator", None, "/v1/archive/list", &json!({}));
    assert_eq!(entries["entries"], json!([]), "what is not decided is not given up");

    books.is_good.store(true, SeqCst);
    for trouble in TROUBLES {
        target.until("it is paid at last", |_| grant(trouble) == "GRANT_OUTCOME_CREDITED");
        assert_eq!(grant(trouble), "GRANT_OUTCOME_ALREADY_CREDITED");
    }
    target
        .until("it is paid out at last", |target| withdraw(target)["outcome"] != "WITHDRAW_OUTCOME_PENDING");
    let times = asked("down-1");
    assert_eq!(withdraw(&target)["outcome"], "WITHDRAW_OUTCOME_ALREADY_PAID");
    assert_eq!(asked("down-1"), times, "what is paid is not asked for again");
    target.stop(&["0123456789abcdef0123456789abcdef".to_owned()]);
}

fn withdraw(target: &Target) -> Value {
    let withdrawal = json!({"withdrawal_id": "down-1", "bonus_type": "cash", "amount": 100});
    target.ok("wallet-front", 42, WITHDRAW, &withdrawal)
}
