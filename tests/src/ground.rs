//! What processes of any role need besides servers: options, keys, an access file and rules, in one directory.

use crate::{Run, Service, plain};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// One type, `cash`, on one queue between the brokers `a` and `b`, without a limit to speak of.
const RULES: &str = r#"version = 1
types = ["cash"]

[topics]
cash-a = { broker = "a", partitions = 2 }
cash-b = { broker = "b", partitions = 2 }

[queues.cash]
master = "cash-a"
backup = "cash-b"
ratio = 80

[[routes]]
type = "*"
queue = "cash"

[limits.global]
rate_per_s = 100000
burst = 1000

[limits.default]
rate_per_s = 100000
burst = 1000

[[budgets]]
activity = "outage"
scene = "rain"
type = "cash"
total = 1000

[end]
"#;

/// The files of processes that work together.
#[derive(Debug)]
pub struct Ground {
    /// The directory that has them.
    pub dir: PathBuf,
    /// The bearer keys by the name of their caller.
    pub keys: BTreeMap<String, String>,
}

impl Ground {
    /// Writes them. `callers` are names with their roles, `servers` lines of the options file; rules that these do not
    /// read from etcd are in the file `rules.toml`.
    ///
    /// # Panics
    /// If that fails.
    pub fn new(dir: &Path, callers: &[(&str, &str)], servers: &str) -> Self {
        let keys_file = dir.join("keys.toml");
        let made = Run::new(plain()).args(["keys", "new", "--file"]).arg(&keys_file).end();
        assert_eq!(made.code, Some(0), "{made}");
        let (mut keys, mut access) = (BTreeMap::new(), String::new());
        for (name, role) in callers {
            let key = Run::new(plain()).args(["access", "new-key", "--json"]).end().json();
            access.push_str(&format!(
                "[[caller]]\nname = {name:?}\ntenant = \"windfall\"\nroles = [{role:?}]\nkey_sha256 = {}\n\
                 may_name_users = {}\n\n",
                key["key_sha256"],
                *role == "verify"
            ));
            keys.insert((*name).to_owned(), key["key"].as_str().expect("a key").to_owned());
        }
        let (access_file, rules) = (dir.join("access.toml"), dir.join("rules.toml"));
        fs::write(&access_file, access).expect("an access file");
        fs::write(&rules, RULES).expect("a file of rules");
        let rules = match servers.contains("rules.etcd") {
            true => String::new(),
            false => format!("rules = {{ file = {rules:?} }}\n"),
        };
        let text = format!("keys = {keys_file:?}\naccess = {access_file:?}\n{rules}{servers}");
        let own = Self { dir: dir.to_owned(), keys };
        fs::write(own.options(), text).expect("an options file");
        own
    }

    /// With signing keys for all its processes, each of which signs as the same sender: Kafka and RocketMQ need them.
    ///
    /// # Panics
    /// If they cannot be made.
    #[must_use]
    pub fn with_signing(self) -> Self {
        sign(&self.dir, &self.options());
        self
    }

    /// The options file.
    pub fn options(&self) -> PathBuf {
        self.dir.join("windfall.toml")
    }

    /// Starts a process of this role, and waits until it is ready.
    pub fn start(&self, role: &str) -> Service {
        self.start_with(role, &["--log", "info", "--listen", "127.0.0.1:0"], role, true)
    }

    /// Starts a process of this role, and waits until it listens.
    pub fn start_unready(&self, role: &str) -> Service {
        self.start_with(role, &["--log", "info", "--listen", "127.0.0.1:0"], role, false)
    }

    /// The same with arguments of the test's own, and the name of its data directory.
    pub fn start_with(&self, role: &str, more: &[&str], data: &str, is_ready: bool) -> Service {
        let (options, data) = (self.options(), self.dir.join(data));
        let args = [role, "--config"].map(OsStr::new).into_iter().chain([options.as_os_str()]);
        let args = args.chain(more.iter().map(OsStr::new)).chain([OsStr::new("--data")]);
        let service = match is_ready {
            true => Service::start(args, data.as_os_str()),
            false => Service::start_unready(args, data.as_os_str()),
        };
        service.with_keys(self.keys.clone())
    }
}

/// Makes a ring in this directory, and adds `[signing]` with it to an options file, as whose last table it stands.
///
/// # Panics
/// If that fails.
pub fn sign(dir: &Path, options: &Path) {
    let ring = dir.join("signing.toml");
    let made = Run::new(plain())
        .args(["signing", "new", "--sender", "fleet", "--may-copy", "--file"])
        .arg(&ring)
        .end();
    assert_eq!(made.code, Some(0), "{made}");
    let mut text = fs::read_to_string(options).expect("an options file");
    text.push_str(&format!("\n[signing]\nkeys = {ring:?}\nsender = \"fleet\"\n"));
    fs::write(options, text).expect("an options file");
}
