//! Jobs as an operator has them: `windfall serve` with `[jobs]`, an executor that speaks the protocol of XXL-JOB, and
//! `windfall jobs`. The process is killed and started again meanwhile.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const APP: &str = "reports";
/// What nothing here takes, also on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// A process of `windfall serve --dev`.
struct Process {
    child: Child,
    address: String,
    xxl: String,
    key: String,
}

impl Process {
    fn start(data: &Path, options: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_windfall"))
            .args(["serve", "--dev", "--listen", "127.0.0.1:0", "--config"])
            .arg(options)
            .arg("--data")
            .arg(data)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut xxl, mut key, mut address) = (String::new(), String::new(), String::new());
        while address.is_empty() {
            let line = lines.next().expect("it has ended").unwrap();
            let mut words = line.split_whitespace();
            if let (Some("scheduler"), Some(word)) = (words.next(), words.next()) {
                key = word.to_owned();
            }
            if let Some(rest) = line.strip_prefix("windfall jobs: executors of XXL-JOB register at http://") {
                xxl = rest.trim_end_matches("/xxl-job-admin").to_owned();
            }
            if let Some(rest) = line.strip_prefix("windfall serve is ready at ") {
                address = rest.to_owned();
            }
        }
        // Nobody reads what comes later, and it may say more.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, xxl, key }
    }

    /// `windfall jobs …`
    fn jobs(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_windfall"))
            .arg("jobs")
            .args(args)
            .env("WINDFALL_SERVER", format!("http://{}", self.address))
            .env("WINDFALL_KEY", &self.key)
            .output()
            .unwrap()
    }

    /// The same with `--json`, which must succeed.
    fn json(&self, args: &[&str]) -> Value {
        let output = self.jobs(&[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until the answer is as wanted.
    fn json_until(&self, args: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let found = self.json(args);
            if wanted(&found) {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "{args:?} stays {found:#}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn stop(mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// An executor: it takes every run, and reports it as succeeded, again and again until the scheduler takes the report.
struct Executor {
    address: SocketAddr,
    /// The due times of the runs that came, by their numbers.
    runs: Arc<Mutex<BTreeMap<i64, i64>>>,
    scheduler: Arc<Mutex<String>>,
    ends: Arc<AtomicBool>,
}

fn post(address: &str, path: &str, body: &Value) -> Option<Value> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

fn is_taken(answer: Option<Value>) -> bool {
    answer.is_some_and(|answer| answer["code"] == 200)
}

impl Executor {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let own = Self { address, runs: Arc::default(), scheduler: Arc::default(), ends: Arc::default() };
        let (runs, (sender, reports)) = (Arc::clone(&own.runs), sync_channel::<(i64, i64)>(10_000));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (runs, sender) = (Arc::clone(&runs), sender.clone());
                std::thread::spawn(move || {
                    answer(stream.unwrap(), |path, body| {
                        if path == "/run" {
                            let run =
                                (body["logId"].as_i64().unwrap(), body["logDateTime"].as_i64().unwrap());
                            runs.lock().unwrap().insert(run.0, run.1);
                            sender.send(run).unwrap();
                        }
                    });
                });
            }
        });
        own.report(reports);
        own.beat();
        own
    }

    fn report(&self, reports: Receiver<(i64, i64)>) {
        let (scheduler, ends) = (Arc::clone(&self.scheduler), Arc::clone(&self.ends));
        std::thread::spawn(move || {
            while let Ok((run, due_ms)) = reports.recv() {
                let body =
                    json!([{"logId": run, "logDateTim": due_ms, "handleCode": 200, "handleMsg": "done"}]);
                while !ends.load(SeqCst) {
                    let to = scheduler.lock().unwrap().clone();
                    if is_taken(post(&to, "/xxl-job-admin/api/callback", &body)) {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        });
    }

    /// It registers again and again, as executors do every 30 s.
    fn beat(&self) {
        let (scheduler, ends) = (Arc::clone(&self.scheduler), Arc::clone(&self.ends));
        let body = json!({"registryGroup": "EXECUTOR", "registryKey": APP,
                          "registryValue": format!("http://{}/", self.address)});
        std::thread::spawn(move || {
            while !ends.load(SeqCst) {
                let to = scheduler.lock().unwrap().clone();
                post(&to, "/xxl-job-admin/api/registry", &body);
                std::thread::sleep(Duration::from_millis(500));
            }
        });
    }

    fn belongs_to(&self, process: &Process) {
        self.scheduler.lock().unwrap().clone_from(&process.xxl);
    }

    fn runs(&self) -> BTreeMap<i64, i64> {
        self.runs.lock().unwrap().clone()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
    }
}

/// Answers calls of one connection with the protocol's code of success.
fn answer(mut stream: TcpStream, mut called: impl FnMut(&str, &Value)) {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                called(&path, &serde_json::from_str(body).unwrap_or_default());
                bytes.clear();
                let said = r#"{"code":200,"msg":null,"content":null}"#;
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    said.len()
                );
                if stream.write_all((head + said).as_bytes()).is_err() {
                    return;
                }
                continue;
            }
        }
        let mut part = [0; 4_096];
        match stream.read(&mut part) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&part[..count]),
            _ => return,
        }
    }
}

fn options(folder: &Path) -> PathBuf {
    let path = folder.join("windfall.toml");
    std::fs::write(&path, "[jobs.xxl]\nlisten = \"127.0.0.1:0\"\n[jobs.runs]\nkeep_succeeded_ms = 3600000\n")
        .unwrap();
    path
}

fn succeeded(runs: &Value) -> usize {
    runs.as_array().unwrap().iter().filter(|run| run["outcome"] == "JOB_RUN_OUTCOME_SUCCEEDED").count()
}

#[test]
fn occurrences_go_on_over_a_kill_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (data, options) = (folder.path().join("data"), options(folder.path()));
    let executor = Executor::start();
    let mut process = Process::start(&data, &options);
    executor.belongs_to(&process);
    process.json_until(&["executors", APP], |found| found.as_array().unwrap().len() == 1);

    let to = format!("{APP}/daily");
    let every_second = ["add", "tick", "--cron", "* * * * * ?", "--zone", "Asia/Shanghai", "--executor", &to];
    let misfire = ["--misfire", "fire-all:1000", "--retries", "100", "--why", "to see it run"];
    let made = process.json(&[&every_second[..], &misfire].concat());
    assert_eq!(made["job"]["version"], "1", "{made:#}");
    assert_eq!(made["next_times_ms"].as_array().unwrap().len(), 5);
    // Made again, it is there already; changed, it is another version.
    let again = process.jobs(&[&every_second[..], &["--params", "x"]].concat());
    assert_eq!(again.status.code(), Some(2), "{}", String::from_utf8_lossy(&again.stderr));
    let list = process.json(&["list"]);
    assert_eq!(list[0]["name"], "tick", "{list:#}");

    process.json_until(&["runs", "tick"], |runs| succeeded(runs) >= 3);
    let by_hand = process.json(&["run", "tick", "--params", "now"]);
    let by_hand: i64 = by_hand["run"].as_str().unwrap().parse().unwrap();
    process.json_until(&["runs", "--run", &by_hand.to_string()], |run| {
        run["outcome"] == "JOB_RUN_OUTCOME_SUCCEEDED" && run["message"] == "done"
    });

    process.kill();
    let before = executor.runs();
    assert!(before.contains_key(&by_hand), "{before:?}");
    std::thread::sleep(Duration::from_secs(3));
    let process = Process::start(&data, &options);
    executor.belongs_to(&process);
    let last_before = before.values().max().copied().unwrap();
    let began = Instant::now();
    while executor.runs().values().max().copied().unwrap() < last_before + 8_000 {
        assert!(began.elapsed() < PATIENCE, "no occurrences after the start: {:?}", executor.runs());
        std::thread::sleep(Duration::from_millis(100));
    }

    // Paused, so that the list stands still; everything ends.
    process.json(&["pause", "tick"]);
    let runs = process.json_until(&["runs", "tick", "--limit", "1000"], |runs| {
        succeeded(runs) == runs.as_array().unwrap().len()
    });
    // Each second of the whole time was run, also those while nobody lived.
    let due: std::collections::BTreeSet<i64> =
        executor.runs().iter().filter(|(run, _)| **run != by_hand).map(|(_, due_ms)| *due_ms).collect();
    let (first, last) = (due.first().copied().unwrap(), due.last().copied().unwrap());
    let missing: Vec<i64> = (first..last).step_by(1_000).filter(|due_ms| !due.contains(due_ms)).collect();
    assert!(missing.is_empty(), "of {first} to {last} never ran: {missing:?}");
    // What was acknowledged before the kill is known.
    let known: Vec<i64> =
        runs.as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap().parse().unwrap()).collect();
    for run in before.keys() {
        assert!(known.contains(run), "the run {run} is forgotten: {runs:#}");
    }
    let versions = process.json(&["versions", "tick"]);
    assert_eq!(versions.as_array().unwrap().len(), 2, "{versions:#}");
    assert_eq!(versions[0]["change"]["why"], "to see it run");
    assert_eq!(versions[0]["change"]["by"], "scheduler");
    process.stop();
}

#[test]
fn bad_input_ends_with_2_says_why_and_makes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(&folder.path().join("data"), &options(folder.path()));
    let to = ["--executor", "reports/daily"];
    for (args, words) in [
        (&["--cron", "* * * * * ?", "--zone", "Mars/Olympus", to[0], to[1]][..], "Mars/Olympus"),
        (&["--cron", "61 * * * * ?", to[0], to[1]], "61"),
        (&["--cron", "* * *", to[0], to[1]], "it has 3 fields"),
        (&["--every", "1ms", to[0], to[1]], "every_ms is 1"),
        (&["--every", "5s", "--target", "nowhere"], "no target `nowhere`"),
        (&["--at", "2001-01-01T00:00:00Z", to[0], to[1]], "no occurrence"),
        (&["--every", "5s"], "--executor"),
        (&[to[0], to[1]], "--cron"),
        (&["--every", "5s", to[0], to[1], "--at-most-once", "--retries", "3"], "retries"),
    ] {
        let refused = process.jobs(&[&["add", "bad"], args].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    for args in [
        &["show", "bad"][..],
        &["run", "bad"],
        &["runs", "bad"],
        &["log", "7"],
        &["remove", "bad"],
        &["again", "7"],
    ] {
        let refused = process.jobs(args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&refused.stderr));
    }
    assert_eq!(process.json(&["list"]), json!([]));
    let preview =
        process.json(&["preview", "--cron", "0 30 2 * * ?", "--zone", "Europe/Berlin", "--count", "7"]);
    assert_eq!(preview["next_times_ms"].as_array().unwrap().len(), 7);
}
