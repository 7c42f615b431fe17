//! The role `task-queue` as an operator runs it: it starts without options, survives a kill, and stops in order.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct Process {
    child: Child,
    api: String,
    admin: String,
}

impl Process {
    fn start(data: &Path) -> Self {
        let any_port = "127.0.0.1:0";
        let mut child = Command::new(env!("CARGO_BIN_EXE_windfall"))
            .args(["task-queue", "--listen", any_port, "--data"])
            .arg(data)
            .env("WINDFALL_OPTION_TASK_QUEUE__API__LISTEN", any_port)
            .env("WINDFALL_OPTION_TASK_QUEUE__API__ADMIN_LISTEN", any_port)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut api, mut admin) = (String::new(), String::new());
        loop {
            let line = lines.next().expect("it has ended").unwrap();
            if let Some(rest) = line.strip_prefix("windfall task queues are at ") {
                let both = rest.split_once(", their admin API at ").unwrap();
                (api, admin) = (both.0.to_owned(), both.1.to_owned());
            }
            if line.starts_with("windfall task-queue is ready at ") {
                break;
            }
        }
        // Nobody reads what comes later, and it may say more.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, api, admin }
    }
}

fn call(address: &str, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-token: {token}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn it_starts_without_options_survives_a_kill_and_stops_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Process::start(folder.path());
    let (status, made) = call(&first.admin, "POST", "/token/shop?description=mails", "", "");
    assert_eq!(status, 201, "{made}");
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let token = made["token"].as_str().unwrap().to_owned();
    for body in ["one", "two"] {
        assert_eq!(call(&first.api, "PUT", "/api/shop/mails?tries=2", &token, body).0, 201);
    }
    assert_eq!(call(&first.api, "GET", "/api/shop/mails?ttr=1", &token, "").0, 200);
    let (status, metrics) = call(&first.admin, "GET", "/metrics", "", "");
    assert_eq!(status, 200);
    let named =
        "windfall_taskqueue_produced_jobs_total{pool=\"default\",namespace=\"shop\",queue=\"mails\"} 2";
    assert!(metrics.contains(named), "{metrics}");
    assert!(metrics.contains("windfall_taskqueue_wait_seconds_count{pool=\"default\""), "{metrics}");
    first.child.kill().unwrap();
    first.child.wait().unwrap();

    let mut second = Process::start(folder.path());
    let mut data = Vec::new();
    for _ in 0..2 {
        let (status, job) = call(&second.api, "GET", "/api/shop/mails?ttr=600&timeout=30", &token, "");
        assert_eq!(status, 200, "{job}");
        let job: serde_json::Value = serde_json::from_str(&job).unwrap();
        data.push(job["data"].as_str().unwrap().to_owned());
    }
    data.sort_unstable();
    assert_eq!(data, ["b25l", "dHdv"], "the one that was leased is there again");
    let id = second.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(second.child.wait().unwrap().code(), Some(0));
}
