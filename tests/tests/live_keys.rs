//! Keys that change under load, in files that are replaced as Kubernetes replaces a mounted Secret: no call is refused, no token
//! is illegal before its key is destroyed, no record is refused, and every reward is credited once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use windfall_signing::KeyFile as SigningFile;
use windfall_tests::{Caller, Mount, Run, Service, plain, scratch};
use windfall_token::{Algorithm, KeyFile, KeyId};

const SENDER: &str = "process";
const USER: i64 = 42;
/// Processes look at key files every five seconds.
const LOOKS: Duration = Duration::from_secs(6);
/// How long whoever mints waits with a new primary key: longer than a look takes.
const MINT_AFTER: Duration = Duration::from_secs(12);
const PATIENCE: Duration = Duration::from_secs(90);

const RULES: &str = r#"version = 1
types = ["cash"]
[topics]
cash-a = { broker = "a", partitions = 2 }
cash-b = { broker = "b", partitions = 2 }
[queues.cash]
master = "cash-a"
backup = "cash-b"
ratio = 90
[[routes]]
type = "cash"
queue = "cash"
requeue = ["cash"]
[limits.global]
rate_per_s = 100000
burst = 10000
[limits.default]
rate_per_s = 50000
burst = 5000
[end]
"#;

/// The operator's own files, and what is published of them.
struct Desk {
    ring: PathBuf,
    signing: PathBuf,
    access: String,
    mount: Mount,
}

impl Desk {
    fn new(dir: &Path, access: String) -> Self {
        let own = Self {
            ring: dir.join("ring.toml"),
            signing: dir.join("senders.toml"),
            access,
            mount: Mount::new(&dir.join("mounted")),
        };
        KeyFile::create(&own.ring, Algorithm::HmacSha256, 1).unwrap();
        SigningFile::create(&own.signing, SENDER, true, 1).unwrap();
        own
    }

    fn publish(&mut self) {
        let read = |path: &Path| fs::read(path).unwrap();
        let files = [
            ("keys.toml", read(&self.ring)),
            ("signing.toml", read(&self.signing)),
            ("access.toml", self.access.clone().into_bytes()),
        ];
        self.mount.publish(&files);
    }

    fn change_ring<T>(&mut self, change: impl FnOnce(&mut KeyFile) -> T) -> T {
        let changed = change(&mut KeyFile::open(&self.ring).unwrap());
        self.publish();
        changed
    }

    fn change_signing<T>(&mut self, change: impl FnOnce(&mut SigningFile) -> T) -> T {
        let changed = change(&mut SigningFile::open(&self.signing).unwrap());
        self.publish();
        changed
    }
}

fn new_key() -> (String, String) {
    let made = Run::new(plain()).args(["access", "new-key", "--json"]).end().json();
    (made["key"].as_str().unwrap().to_owned(), made["key_sha256"].to_string())
}

fn caller(name: &str, roles: &str, hash: &str) -> String {
    let may_name_users = name == "wallet-front";
    format!(
        "[[caller]]\nname = {name:?}\ntenant = \"windfall\"\nroles = [{roles}]\nkey_sha256 = {hash}\n\
         may_name_users = {may_name_users}\n\n"
    )
}

/// The value of a metric's first series.
fn metric(caller: &Caller, name: &str, label: &str) -> Option<f64> {
    let key = [("authorization", format!("Bearer {}", caller.keys["prometheus"]))];
    let Value::String(text) = caller.send("GET", "/metrics", &key, b"").body else { panic!("no text") };
    let of_it = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
    };
    text.lines().find(of_it).and_then(|line| line.rsplit(' ').next()?.parse().ok())
}

fn wait_for(what: &str, service: &Service, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}\n{}", service.said());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn verdicts(caller: &Caller, tokens: &[String]) -> Vec<String> {
    let answer = caller.post("wallet-front", Some(USER), "/v1/tokens/verify", &json!({ "tokens": tokens }));
    assert_eq!(answer.status, 200, "{answer:?}");
    let verified = answer.body["tokens"].as_array().unwrap();
    verified.iter().map(|one| one["verdict"].as_str().unwrap_or_default().to_owned()).collect()
}

fn credited(caller: &Caller) -> usize {
    let wallet = caller.post("wallet-front", Some(USER), "/v1/wallet/get", &json!({}));
    let balances = wallet.body["balances"].as_array().cloned().unwrap_or_default();
    balances.first().map_or(0, |own| own["credited"].as_str().unwrap_or("0").parse().unwrap())
}

/// Sends a reward every few milliseconds until it is told to stop, and has each token judged at once. Returns the tokens.
fn load(caller: &Caller, thread: usize, ends: &AtomicBool, failed: &Mutex<Vec<String>>) -> Vec<String> {
    let mut tokens = Vec::new();
    for n in 0.. {
        if ends.load(Relaxed) {
            break;
        }
        let body = json!({
            "trade_no": format!("live/{thread}/{n}"), "user": {"user_id": USER}, "activity": "spring-2027",
            "scene": "red-packet-rain", "bonus": {"type": "cash", "amount": 1},
        });
        let sent = caller.post("activity", None, "/v1/bonuses/send", &body);
        match sent.body["token"].as_str() {
            Some(token) if sent.status == 200 => {
                tokens.push(token.to_owned());
                let verdict = verdicts(caller, &[token.to_owned()]);
                if verdict == ["TOKEN_VERDICT_ILLEGAL"] {
                    failed.lock().unwrap().push(format!("{thread}/{n} is illegal"));
                }
            }
            _ => failed.lock().unwrap().push(format!("{thread}/{n}: {sent:?}")),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    tokens
}

#[test]
fn keys_are_rotated_promoted_and_destroyed_under_load() {
    let dir = scratch();
    let (mut keys, mut access) = (BTreeMap::new(), "version = 2\n".to_owned());
    let callers = [
        ("activity", r#""send""#),
        ("wallet-front", r#""verify""#),
        ("prometheus", r#""observe""#),
        ("operator", r#""operate""#),
    ];
    for (name, roles) in callers {
        let (key, hash) = new_key();
        access.push_str(&caller(name, roles, &hash));
        keys.insert(name.to_owned(), key);
    }
    let without_guest = access.clone();
    let (guest, guest_hash) = new_key();
    let mut desk = Desk::new(dir.path(), access);
    desk.publish();
    let rules = dir.path().join("rules.toml");
    fs::write(&rules, RULES).unwrap();
    let options = dir.path().join("windfall.toml");
    let text = format!(
        "keys = {:?}\naccess = {:?}\nrules = {{ file = {rules:?} }}\n[rewards]\nunbudgeted = \"allow\"\n[signing]\nkeys = {:?}\n\
         sender = {SENDER:?}\nunsigned = \"refuse\"\n[sdk]\nmint_after_ms = {}\n",
        desk.mount.file("keys.toml"),
        desk.mount.file("access.toml"),
        desk.mount.file("signing.toml"),
        MINT_AFTER.as_millis()
    );
    fs::write(&options, text).unwrap();
    let words = ["serve", "--log", "info", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
    let words = words.into_iter().chain([options.as_os_str(), OsStr::new("--data")]);
    let service = Service::start(words, dir.path().join("data").as_os_str()).with_keys(keys);
    let client = service.caller();

    let (ends, failed) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let tokens: Vec<Vec<String>> = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..2)
            .map(|thread| {
                let (client, ends, failed) = (&client, &ends, &failed);
                scope.spawn(move || load(client, thread, ends, failed))
            })
            .collect();
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            rotate(&mut desk, &service, &client, (&guest, &guest_hash), &without_guest);
        }));
        ends.store(true, Relaxed);
        let tokens = loads.into_iter().map(|load| load.join().unwrap()).collect();
        changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        tokens
    });
    assert_eq!(*failed.lock().unwrap(), Vec::<String>::new());
    let sent: usize = tokens.iter().map(Vec::len).sum();
    assert!(sent > 100, "{sent} rewards are no load");
    wait_for("all rewards", &service, || credited(&client) == sent);

    // The end of the old keys: what they made counts no more, and what was credited stays.
    desk.change_ring(|ring| ring.destroy(KeyId(1)).unwrap());
    desk.change_signing(|ring| ring.destroy(1).unwrap());
    let (first, last) = (tokens[0][0].clone(), tokens[0].last().unwrap().clone());
    let end = ["TOKEN_VERDICT_ILLEGAL", "TOKEN_VERDICT_UNKNOWN"];
    wait_for("the end of the first key", &service, || {
        verdicts(&client, &[first.clone(), last.clone()]) == end
    });
    let destroyed = || metric(&client, "windfall_signing_ring_keys", "destroyed");
    wait_for("the end of the first signing key", &service, || destroyed() == Some(1.0));
    assert_eq!(credited(&client), sent, "each once");
    let unverified = client.post("operator", None, "/v1/archive/list", &json!({"reason": "unverified"}));
    assert_eq!(unverified.body["entries"].as_array().map_or(0, Vec::len), 0, "{unverified:?}");
    assert_eq!(service.stop().code, Some(0));
}

fn rotate(
    desk: &mut Desk,
    service: &Service,
    client: &Caller,
    (guest, guest_hash): (&str, &str),
    without_guest: &str,
) {
    // The ring of tokens.
    assert_eq!(desk.change_ring(|ring| ring.add(Algorithm::Ed25519, 2).unwrap()), KeyId(2));
    desk.change_ring(|ring| ring.promote(KeyId(2)).unwrap());
    std::thread::sleep(LOOKS);
    assert_eq!(metric(client, "windfall_minting_key", ""), Some(1.0), "it verifies, and does not mint yet");
    let promoted = Instant::now();
    desk.change_ring(|ring| ring.promote(KeyId(2)).unwrap());
    wait_for("the new key mints", service, || metric(client, "windfall_minting_key", "") == Some(2.0));
    assert!(promoted.elapsed() >= MINT_AFTER, "others had no time to learn it");

    // The ring of senders.
    assert_eq!(desk.change_signing(|ring| ring.add(SENDER, true, 2).unwrap()), 2);
    let newest = || metric(client, "windfall_signing_ring_newest_key", "");
    wait_for("the new signing key is known", service, || newest() == Some(2.0));
    desk.change_signing(|ring| ring.promote(2).unwrap());
    let signs = || metric(client, "windfall_signing_key", "");
    wait_for("the new key signs", service, || signs() == Some(2.0));

    // The callers.
    let body = json!({});
    let as_guest = || {
        let headers =
            [("authorization", format!("Bearer {guest}")), ("content-type", "application/json".to_owned())];
        client.send("POST", "/v1/budgets/list", &headers, body.to_string().as_bytes()).status
    };
    assert_eq!(as_guest(), 401);
    desk.access = format!("{without_guest}{}", caller("guest", r#""observe""#, guest_hash));
    desk.publish();
    wait_for("the new caller", service, || as_guest() == 200);
    without_guest.clone_into(&mut desk.access);
    desk.publish();
    wait_for("the end of the new caller", service, || as_guest() == 401);
    // Records of the old signing key are read by now.
    std::thread::sleep(LOOKS);
}
