//! Attacks on the running binary, from outside: each gets the documented answer, memory stays within a stated limit,
//! and the service goes on for everybody else.
//!
//! `tokens`: what is not the user's, or was changed. `money`: withdrawals again, sums beyond 64 bits, users in bodies.
//! `callers`: keys, roles and signed users. `smuggling`: requests of two meanings. `floods`: too long, too slow, too
//! dense, compressed. `keyless`: who has no key. `downstream`: a paying system that lies. `names`: a million bonus types.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod callers;
mod downstream;
mod floods;
mod jwt;
mod keyless;
mod money;
mod names;
mod smuggling;
mod tokens;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use windfall_tests::{Answer, Memory, Run, Service, plain, scratch, sign};

const SEND: &str = "/v1/bonuses/send";
const SEND_BATCH: &str = "/v1/bonuses/send-batch";
const GRANT: &str = "/v1/rewards/grant";
const GRANT_BATCH: &str = "/v1/rewards/grant-batch";
const LIST: &str = "/v1/tokens/list";
const VERIFY: &str = "/v1/tokens/verify";
const WALLET: &str = "/v1/wallet/get";
const WITHDRAW: &str = "/v1/wallet/withdraw";

/// What no attack here may add to the server's memory, at its peak: bodies in hand, what is parsed of them, and what
/// an ordinary call takes.
const MEMORY_MAX_BYTES: u64 = 96 << 20;
/// For what must come, on the slowest of machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server under attack.
struct Target {
    service: Service,
    memory: Memory,
    _dir: TempDir,
    goods: i64,
    /// What a good withdrawal is answered: who pays it out decides that.
    withdrawn: &'static str,
}

impl Target {
    /// With these options beside the defaults of `serve --dev`, and these callers beside its own: name, and the rest
    /// of the entry in the access file. `access` may stand in it for other sections.
    fn start(options: &str, callers: &[(&str, &str)], access: &str) -> Self {
        let dir = scratch();
        let (data, file) = (dir.path().join("data"), dir.path().join("options.toml"));
        std::fs::write(&file, options).unwrap();
        // As in a fleet: what is granted here has a signature.
        sign(dir.path(), &file);
        let words = ["serve", "--dev", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
        let words = words.into_iter().chain([file.as_os_str(), OsStr::new("--data")]);
        let mut service = Service::start(words, data.as_os_str());
        let mut keys = service.keys.clone();
        let mut more = access.to_owned();
        for (name, rest) in callers {
            let (key, sha256) = new_key();
            more.push_str(&format!("\n[[caller]]\nname = {name:?}\nkey_sha256 = {sha256:?}\n{rest}\n"));
            keys.insert((*name).to_owned(), key);
        }
        let mut file = std::fs::OpenOptions::new().append(true).open(data.join("access.toml")).unwrap();
        file.write_all(more.as_bytes()).unwrap();
        service = service.with_keys(keys);
        // A connector pays at once; otherwise the money waits for a front end.
        let by_connector = options.contains("\npayout = ");
        let withdrawn = if by_connector { "WITHDRAW_OUTCOME_PAID" } else { "WITHDRAW_OUTCOME_TO_PAY_OUT" };
        let target = Self { memory: service.memory(), service, _dir: dir, goods: 0, withdrawn };
        // The file is followed; its last caller tells that it is in force.
        if let Some((name, _)) = callers.last() {
            target.until("the callers are known", |target| target.openapi(name).status == 200);
        }
        target
    }

    fn openapi(&self, caller: &str) -> Answer {
        self.service.send("GET", "/openapi.json", &[("authorization", self.bearer(caller))], b"")
    }

    fn bearer(&self, caller: &str) -> String {
        format!("Bearer {}", self.service.keys[caller])
    }

    fn post(&self, caller: &str, user_id: impl Into<Option<i64>>, path: &str, body: &Value) -> Answer {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        headers.extend(self.service.keys.get(caller).map(|key| ("authorization", format!("Bearer {key}"))));
        headers.extend(user_id.into().map(|user_id: i64| ("x-windfall-user", user_id.to_string())));
        self.send(path, &headers, body.to_string().as_bytes())
    }

    /// Posts. What is refused by its head may be cut off before its body is written, and its answer with it, as HTTP
    /// has it: then it is asked again.
    fn send(&self, path: &str, headers: &[(&str, String)], body: &[u8]) -> Answer {
        let mut tries = (0..20).filter_map(|_| self.service.try_send("POST", path, headers, body));
        tries.next().unwrap_or_else(|| panic!("no answer from {path}"))
    }

    /// The same, which must be answered well.
    fn ok(&self, caller: &str, user_id: impl Into<Option<i64>>, path: &str, body: &Value) -> Value {
        let answer = self.post(caller, user_id, path, body);
        assert_eq!(answer.status, 200, "{path}: {answer:?}\n{}", self.service.said());
        answer.body
    }

    fn credited(&self, user_id: i64) -> i64 {
        let wallet = self.ok("wallet-front", user_id, WALLET, &json!({"flow_limit": 1}));
        let of_cash = |one: &&Value| one["bonus_type"] == "cash";
        wallet["balances"].as_array().unwrap().iter().find(of_cash).map_or(0, |one| number(&one["credited"]))
    }

    /// Gives a user cash, by the ledger alone.
    fn grant(&self, trade_no: &str, user_id: i64, amount: i64) {
        let granted = self.ok("grants", None, GRANT, &json!({"event": reward(trade_no, user_id, amount)}));
        assert_eq!(granted["outcome"], "GRANT_OUTCOME_CREDITED", "{trade_no}");
    }

    /// The service does its work: what an honest user gets takes its whole way.
    fn still_serves(&mut self) {
        self.goods += 1;
        let (trade_no, user_id) = (format!("good:{}", self.goods), 1_000_000 + self.goods);
        let sent = self.ok("activity", None, SEND, &reward(&trade_no, user_id, 7));
        assert!(sent["token"].is_string(), "{sent}");
        self.until("a good reward arrives", |target| target.credited(user_id) == 7);
        let withdrawal = json!({"withdrawal_id": trade_no, "bonus_type": "cash", "amount": 7});
        assert_eq!(self.ok("wallet-front", user_id, WITHDRAW, &withdrawal)["outcome"], self.withdrawn);
    }

    fn within_memory(&self, what: &str) {
        let peak = self.memory.peak_bytes();
        println!("{what}: memory rose by {} KiB at its peak", peak >> 10);
        assert!(peak <= MEMORY_MAX_BYTES, "{what}: memory rose by {} MiB", peak >> 20);
    }

    fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < until, "never came: {what}\n{}", self.service.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as an orchestrator does. It has not said a key or a token.
    fn stop(mut self, secrets: &[String]) {
        self.still_serves();
        self.within_memory("all of it");
        let keys: BTreeMap<_, _> = self.service.keys.clone();
        let ended = self.service.stop();
        assert_eq!(ended.code, Some(0), "{ended}");
        for secret in keys.values().chain(secrets) {
            assert!(!ended.stderr.contains(secret.as_str()), "a secret is in the log: {ended}");
        }
        assert!(!ended.stderr.contains("panicked"), "{ended}");
    }
}

/// A key and its hash, as an operator makes them.
fn new_key() -> (String, String) {
    let ended = Run::new(plain()).args(["access", "new-key"]).end();
    let word = |name: &str| {
        let line = ended.stdout.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or_else(|| panic!("{ended}")).to_owned()
    };
    (word("key "), word("key_sha256 "))
}

fn reward(trade_no: &str, user_id: i64, amount: i64) -> Value {
    json!({
        "trade_no": trade_no,
        "user": {"user_id": user_id},
        "activity": "spring-2027",
        "scene": "red-packet-rain",
        "bonus": {"type": "cash", "amount": amount},
    })
}

fn code(answer: &Answer) -> (u16, &str) {
    (answer.status, answer.body["code"].as_str().unwrap_or_default())
}

/// pbjson writes 64-bit numbers as text.
fn number(value: &Value) -> i64 {
    value.as_str().map_or_else(|| value.as_i64().unwrap_or_default(), |text| text.parse().unwrap())
}
