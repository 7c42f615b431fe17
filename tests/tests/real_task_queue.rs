//! A running `windfall task-queue` and clients that know nothing of Windfall: one that was written for lmstfy, unmodified
//! (`tools/interop/task-queue`, a program of its own, so that its dependencies stay out of ours), and curl, which goes
//! through the rows of docs/task-queue.md.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use windfall_tests::{Run, Running, plain, scratch};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process with task queues in files.
struct TaskQueue {
    running: Running,
    api: String,
    admin: String,
    _dir: TempDir,
}

impl TaskQueue {
    fn start() -> Self {
        let dir = scratch();
        let options = dir.path().join("windfall.toml");
        let listen = "[task_queue.api]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n";
        std::fs::write(&options, listen).unwrap();
        let run = Run::new(plain()).args(["task-queue", "--listen", "127.0.0.1:0", "--config"]).arg(&options);
        let run = run.arg("--data").arg(dir.path().join("data")).time_out(Duration::from_secs(300));
        let mut running = run.start();
        let said = running.wait_for_output("their admin API at ", PATIENCE);
        let address = |before: &str| {
            let rest = said.split_once(before).unwrap().1;
            rest.split(|c: char| c == ',' || c.is_whitespace()).next().unwrap().to_owned()
        };
        Self {
            running,
            api: address("task queues are at "),
            admin: address("their admin API at "),
            _dir: dir,
        }
    }

    /// A new token for a namespace.
    fn token(&self, namespace: &str) -> String {
        let url = format!("http://{}/token/{namespace}?description=tests", self.admin);
        let (status, answer) = curl(&["-X", "POST", &url], "");
        assert_eq!(status, 201, "{answer}");
        serde_json::from_str::<Value>(&answer).unwrap()["token"].as_str().unwrap().to_owned()
    }

    fn stop(self) {
        self.running.terminate();
        let ended = self.running.end();
        assert_eq!(ended.code, Some(0), "{ended}");
    }
}

/// Status and body of the answer to a request by curl.
fn curl(arguments: &[&str], body: &str) -> (u16, String) {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "60", "-w", "\n%{http_code}"]).args(arguments);
    if !body.is_empty() {
        // Without a type of its own, as the contract's bodies are.
        command.args(["-H", "Content-Type:", "--data-binary", "@-"]);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let (answer, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), answer.to_owned())
}

fn peer() -> PathBuf {
    let built = "../tools/interop/task-queue/target/debug/windfall-task-queue-peer";
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(built);
    let program = std::env::var_os("WINDFALL_TASK_QUEUE_PEER").map_or(built, PathBuf::from);
    assert!(
        program.is_file(),
        "{} is absent: run cargo build in tools/interop/task-queue",
        program.display()
    );
    program
}

#[test]
#[ignore = "needs a client that ./dev test builds first"]
fn a_client_that_was_written_for_lmstfy_works_unmodified() {
    let queue = TaskQueue::start();
    let token = queue.token("theirs");
    let (host, port) = queue.api.rsplit_once(':').unwrap();
    let output = Command::new(peer()).args([host, port, "theirs", &token]).output().unwrap();
    let (told, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {told} {said}", output.status);
    assert!(told.ends_with("all steps were passed\n"), "{told}");
    queue.stop();
}

/// A row: `[header] METHOD /path < body => status answer`. `(open)` sends no token, `(admin)` asks the admin API,
/// `(until)` asks again until it is so. `$id` and `$token` are what the last answer with one has said. In an answer `"*"`
/// is anything. `$big` is a text of more than 1 MiB, `$many` an array of 65 jobs, `$long` a name of 256 bytes.
const ROWS: &str = r#"
PUT /api/n/plain?tries=2&ttl=60 < hello => 201 {"msg":"published","job_id":"*"}
(open) GET /api/n/plain/size => 200 {"namespace":"n","queue":"plain","size":1}
GET /api/n/plain/peek => 200 {"namespace":"n","queue":"plain","job_id":"$id","data":"aGVsbG8=","ttl":"*","elapsed_ms":"*","remain_tries":2,"attributes":null}
GET /api/n/plain/job/$id => 200 {"namespace":"n","queue":"plain","job_id":"$id","data":"aGVsbG8=","ttl":"*","elapsed_ms":"*","remain_tries":0,"attributes":null}
GET /api/n/plain?ttr=30 => 200 {"msg":"new job","namespace":"n","queue":"plain","job_id":"$id","data":"aGVsbG8=","ttl":"*","elapsed_ms":"*","remain_tries":1,"attributes":null}
GET /api/n/plain?ttr=30 => 404 {"msg":"no job available"}
GET /api/n/plain?ttr=30&count=2 => 404 {"msg":"no job available"}
GET /api/n/plain/peek => 404 {"error":"the queue is empty"}
DELETE /api/n/plain/job/$id => 204
DELETE /api/n/plain/job/$id => 204
GET /api/n/plain/job/$id => 404 {"error":"job not found"}

[Enable-Job-Version: YES] [Job-Attr-Color: red] PUT /api/n/attributes < body => 201 {"msg":"published","job_id":"*"}
GET /api/n/attributes => 200 {"msg":"new job","namespace":"n","queue":"attributes","job_id":"$id","data":"Ym9keQ==","ttl":"*","elapsed_ms":"*","remain_tries":0,"attributes":{"color":"red"}}

PUT /api/n/replaced < old => 201 {"msg":"published","job_id":"*"}
PUT /api/n/replaced/job/$id < new => 201 {"msg":"published","job_id":"*"}
GET /api/n/replaced?count=100 => 200 [{"msg":"new job","namespace":"n","queue":"replaced","job_id":"$id","data":"bmV3","ttl":"*","elapsed_ms":"*","remain_tries":0,"attributes":null}]

PUT /api/n/bulk/bulk?tries=2 < [{"a":1}, "text", 3] => 201 {"msg":"published","job_ids":["*","*","*"]}
GET /api/n/none,bulk?count=100&timeout=5 => 200 ["*","*","*"]

PUT /api/n/delayed?delay=1&ttl=0 < later => 201 {"msg":"published","job_id":"*"}
(open) GET /api/n/delayed/size => 200 {"namespace":"n","queue":"delayed","size":0}
GET /api/n/delayed?timeout=30 => 200 {"msg":"new job","namespace":"n","queue":"delayed","job_id":"$id","data":"bGF0ZXI=","ttl":0,"elapsed_ms":"*","remain_tries":0,"attributes":null}
PUT /api/n/delayed?delay=600 < cancelled => 201 {"msg":"published","job_id":"*"}
DELETE /api/n/delayed/job/$id => 204
GET /api/n/delayed/job/$id => 404 {"error":"job not found"}

PUT /api/n/asked < question => 201 {"msg":"published","job_id":"*"}
PUT /api/n/$id/bulk < ["answer"] => 201 {"msg":"published","job_ids":["*"]}
GET /api/n/$id?timeout=30 => 200 {"msg":"new job","namespace":"n","queue":"$id","job_id":"*","data":"ImFuc3dlciI=","ttl":"*","elapsed_ms":"*","remain_tries":0,"attributes":null}

PUT /api/n/dropped < x => 201 {"msg":"published","job_id":"*"}
DELETE /api/n/dropped => 204
(open) GET /api/n/dropped/size => 200 {"namespace":"n","queue":"dropped","size":0}

GET /api/n/dying/deadletter => 200 {"namespace":"n","queue":"dying","deadletter_size":0,"deadletter_head":""}
PUT /api/n/dying < x => 201 {"msg":"published","job_id":"*"}
GET /api/n/dying?ttr=1 => 200 "*"
(open) (until) GET /api/n/dying/deadletter/size => 200 {"namespace":"n","queue":"dying","size":1}
GET /api/n/dying/deadletter => 200 {"namespace":"n","queue":"dying","deadletter_size":1,"deadletter_head":"$id"}
PUT /api/n/dying/deadletter?limit=5&ttl=60 => 200 {"msg":"respawned","count":1}
GET /api/n/dying?ttr=1 => 200 {"msg":"new job","namespace":"n","queue":"dying","job_id":"$id","data":"eA==","ttl":"*","elapsed_ms":"*","remain_tries":0,"attributes":null}
(open) (until) GET /api/n/dying/deadletter/size => 200 {"namespace":"n","queue":"dying","size":1}
DELETE /api/n/dying/deadletter?limit=5 => 204
(open) GET /api/n/dying/deadletter/size => 200 {"namespace":"n","queue":"dying","size":0}

PUT /api/n/bad?delay=x < x => 400 {"error":"invalid delay"}
PUT /api/n/bad?ttl=x < x => 400 {"error":"invalid ttl"}
PUT /api/n/bad?tries=x < x => 400 {"error":"invalid tries"}
PUT /api/n/bad?tries=0 < x => 400 {"error":"tries shouldn't be zero"}
PUT /api/n/bad?delay=2&ttl=1 < x => 400 {"error":"ttl is shorter than delay"}
PUT /api/n/_bad < x => 400 {"error":"*"}
PUT /api/n/bad/bulk < {} => 400 {"error":"request body should be an array of objects"}
PUT /api/n/bad/bulk < [] => 400 {"error":"no jobs"}
PUT /api/n/bad/bulk < null => 400 {"error":"no jobs"}
PUT /api/n/bad/bulk < $many => 400 {"error":"too many jobs"}
PUT /api/n/bad/bulk < ["$big"] => 413 {"error":"job too large"}
PUT /api/n/bad < $big => 413 {"error":"body too large"}
PUT /api/n/$long < x => 400 {"error":"namespace or queue name too long"}
(open) GET /api/n/bad/size => 200 {"namespace":"n","queue":"bad","size":0}
GET /api/n/bad?ttr=x => 400 {"error":"invalid ttr"}
GET /api/n/bad?timeout=x => 400 {"error":"invalid timeout"}
GET /api/n/bad?count=101 => 400 {"error":"invalid count"}
GET /api/n/, => 400 {"error":"invalid queue name(s)"}
POST /api/n/bad => 404 {"error":"api not found"}
(open) GET /api/n/bad => 401 {"error":"token not found"}
(open) GET /api/n/bad?token=wrong-wrong-wrong-wrong => 401 {"error":"invalid token"}
(open) GET /api/n/bad?token=none:wrong => 404 {"error":"pool not found"}

(admin) POST /token/made => 400 {"error":"invalid description"}
(admin) POST /token/made?description=mails => 201 {"token":"*"}
(admin) GET /token/made => 200 {"tokens":{"$token":"mails"}}
(admin) POST /token/made?description=mails&pool=none => 400 {"error":"pool not found"}
(open) GET /api/made/limited?token=default:$token => 404 {"msg":"no job available"}
(admin) POST /token/made/$token/limit < {"read":1,"write":1,"interval":0} => 400 {"error":"interval should be > 0"}
(admin) GET /token/made/$token/limit => 404 null
(admin) POST /token/made/$token/limit < {"read":0,"write":0,"interval":9} => 400 {"limiter":{"read":0,"write":0,"interval":9}}
(admin) POST /token/made/$token/limit < {"read":1,"write":2,"interval":600} => 201 {"limiter":{"read":1,"write":2,"interval":600}}
(admin) PUT /token/made/$token/limit < {"read":1,"write":1,"interval":600} => 200 {"limiter":{"read":1,"write":1,"interval":600}}
(admin) GET /token/made/$token/limit => 200 {"read":1,"write":1,"interval":600}
(open) GET /api/made/limited?token=$token => 404 {"msg":"no job available"}
(open) GET /api/made/limited?token=$token => 429 {"error":"token($token) consume reach the limit rate, please retry later"}
(open) PUT /api/made/limited?token=$token < x => 201 {"msg":"published","job_id":"*"}
(open) PUT /api/made/limited?token=$token < x => 429 {"error":"token($token) produce reach the limit rate, please retry later"}
(admin) GET /limits => 200 {"default/made/$token":{"read":1,"write":1,"interval":600}}
(admin) DELETE /token/made/$token/limit => 200 {"msg":"success"}
(admin) DELETE /token/made/$token => 204
(open) (until) GET /api/made/limited?token=$token => 401 {"error":"invalid token"}
(admin) GET /pools => 200 ["default"]
(admin) GET /info?pool=default => 200 "*"
(admin) GET /version => 200 "*"
(admin) GET /accesslog => 200 {"status":"disabled"}
(admin) POST /accesslog?status=enable => 200 {"status":"enabled"}
(admin) GET /nothing => 404 {"error":"api not found"}
"#;

#[test]
#[ignore = "needs curl: ./dev test runs it"]
fn curl_is_answered_as_the_page_says_row_by_row() {
    let queue = TaskQueue::start();
    let own = queue.token("n");
    let (mut id, mut token) = (String::new(), String::new());
    let mut wrong = Vec::new();
    for row in ROWS.lines().filter(|row| !row.is_empty()) {
        let row = row.replace("$id", &id).replace("$token", &token);
        let (request, expected) = row.split_once(" => ").unwrap();
        let began = Instant::now();
        let (status, answer) = loop {
            let (status, answer) = ask(&queue, &own, request);
            let is_so = matches(expected, status, &answer);
            if is_so || !request.contains("(until)") || began.elapsed() > PATIENCE {
                break (status, answer);
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        println!("{request} => {status} {answer}");
        if !matches(expected, status, &answer) {
            wrong.push(format!("{request}\n  should be {expected}\n  and is    {status} {answer}"));
        }
        let said: Value = serde_json::from_str(&answer).unwrap_or_default();
        for (key, last) in [("job_id", &mut id), ("token", &mut token)] {
            if let Some(text) = said[key].as_str() {
                text.clone_into(last);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    queue.stop();
}

/// Asks what a row asks; status and body of the answer.
fn ask(queue: &TaskQueue, token: &str, request: &str) -> (u16, String) {
    let request = request.replace("$big", &"x".repeat((1 << 20) + 100)).replace("$long", &"q".repeat(256));
    let request = request.replace("$many", &format!("[{}]", ["1"; 65].join(",")));
    let (head, body) = request.split_once(" < ").unwrap_or((&request, ""));
    let (mut rest, mut arguments) = (head, Vec::new());
    let (mut host, mut is_open) = (&queue.api, false);
    loop {
        if let Some((header, behind)) = rest.strip_prefix('[').and_then(|inside| inside.split_once("] ")) {
            arguments.extend(["-H".to_owned(), header.to_owned()]);
            rest = behind;
        } else if let Some((word, behind)) = rest.strip_prefix('(').and_then(|inside| inside.split_once(") "))
        {
            is_open |= word == "open";
            if word == "admin" {
                (host, is_open) = (&queue.admin, true);
            }
            rest = behind;
        } else {
            break;
        }
    }
    let (method, path) = rest.split_once(' ').unwrap();
    if !is_open {
        arguments.extend(["-H".to_owned(), format!("X-Token: {token}")]);
    }
    arguments.extend(["-X".to_owned(), method.to_owned(), format!("http://{host}{path}")]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    curl(&arguments, body)
}

fn matches(expected: &str, status: u16, answer: &str) -> bool {
    let (expected_status, body) = expected.split_once(' ').unwrap_or((expected, ""));
    let is_body = match body {
        "" => answer.is_empty(),
        body => {
            let expected = serde_json::from_str(body).unwrap_or_else(|error| panic!("{body}: {error}"));
            serde_json::from_str(answer).is_ok_and(|answer| is_like(&expected, &answer))
        }
    };
    expected_status == status.to_string() && is_body
}

/// Whether an answer is as expected, where `"*"` is anything.
fn is_like(expected: &Value, answer: &Value) -> bool {
    match (expected, answer) {
        (Value::String(any), _) if any == "*" => true,
        (Value::Object(expected), Value::Object(answer)) => {
            let has =
                |(key, value): (&String, &Value)| answer.get(key).is_some_and(|own| is_like(value, own));
            expected.len() == answer.len() && expected.iter().all(has)
        }
        (Value::Array(expected), Value::Array(answer)) => {
            expected.len() == answer.len() && expected.iter().zip(answer).all(|(one, own)| is_like(one, own))
        }
        _ => expected == answer,
    }
}
