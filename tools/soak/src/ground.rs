//! What the fleet stands on: servers of this run alone, keys, access and options files, and the rules in etcd.

use crate::rules::{History, Rules};
use crate::sdk_process::Place;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use windfall_servers::{PostgresOptions, Server, Servers};

/// Before the names of topics and keys, and the schema.
pub const PREFIX: &str = "soak";

/// Servers and shared files. The servers end with it.
pub struct Ground {
    /// The directory of this run.
    pub dir: PathBuf,
    /// The program `windfall`.
    pub program: PathBuf,
    /// The bearer keys by the name of their caller.
    pub keys: BTreeMap<&'static str, String>,
    /// Whether there are jobs.
    pub has_jobs: bool,
    /// Whether withdrawals are paid out from a list: every version in the fleet knows of it.
    pub pays_out: bool,
    /// Whether records are signed: every version in the fleet knows of it. Otherwise they are accepted unsigned, by name.
    pub signs: bool,
    servers: Servers,
    rules: Mutex<(Rules, u64, History)>,
}

/// The callers of the soak and their roles.
const CALLERS: [(&str, &str); 5] = [
    ("activity", "send"),
    ("wallet", "verify"),
    ("grants", "grant"),
    ("timers", "schedule"),
    ("operator", "operate"),
];
/// Who consumes, and signs what goes back to a queue.
const CONSUMER: &str = "consumer";
/// Who replays what was archived, and so verifies it.
const REWARD_SERVICE: &str = "reward-service";
/// The activity service that links the SDK, as a sender of records.
pub const SDK: &str = "sdk";
/// The senders of records: roles, each by its own name, and the SDK.
const SENDERS: [&str; 5] = [CONSUMER, REWARD_SERVICE, "sdk-gateway", "scheduler", SDK];
/// The caller that pays out, whose role earlier versions refuse.
pub const PAYER: (&str, &str) = ("payouts", "pay_out");

impl Ground {
    /// Starts the servers and writes the files.
    pub fn make(
        dir: &Path,
        program: &Path,
        rules: Rules,
        rate_per_s: u64,
        shop: SocketAddr,
        (has_jobs, is_one_version): (bool, bool),
    ) -> Result<Self> {
        let servers = Servers::at(dir.join("servers"));
        let mut own = Self {
            dir: dir.to_owned(),
            program: program.to_owned(),
            keys: BTreeMap::new(),
            has_jobs,
            pays_out: is_one_version,
            signs: is_one_version,
            servers,
            rules: Mutex::new((rules, 0, History::default())),
        };
        // The oracle asks PostgreSQL when a row was committed: no process's clock has a say in that.
        let settings = vec![("track_commit_timestamp".to_owned(), "on".to_owned())];
        own.servers.up_as("postgres", PostgresOptions { settings, ..PostgresOptions::default() })?;
        own.servers.up(&["kafka", "kafka2", "rocketmq", "redis", "etcd"])?;
        own.write_keys()?;
        if own.signs {
            own.write_signing_keys()?;
        }
        let options = own.options_text(shop)?;
        std::fs::write(own.timer_options(), format!("{options}{}", own.timer_options_text(shop)?))?;
        std::fs::write(own.options(), options)?;
        own.place(rate_per_s)?.write(dir)?;
        own.set_rules(|_| {}, "first version")?;
        Ok(own)
    }

    /// A server by its name.
    pub fn server(&self, name: &str) -> Result<Server> {
        Ok(self.servers.server(name)?)
    }

    /// The address of PostgreSQL.
    pub fn postgres(&self) -> Result<String> {
        Ok(self.server("postgres")?.url().to_owned())
    }

    /// The options file of all roles but the scheduler.
    pub fn options(&self) -> PathBuf {
        self.dir.join("windfall.toml")
    }

    /// The options file of the scheduler: an earlier version of the other roles may not know its options.
    pub fn timer_options(&self) -> PathBuf {
        self.dir.join("scheduler.toml")
    }

    /// The options file of a process of the task queue.
    pub fn queue_options(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.toml"))
    }

    /// Writes it: each process listens elsewhere.
    pub fn write_queue_options(&self, name: &str, api: SocketAddr, admin: SocketAddr) -> Result<()> {
        let text = format!(
            r#"access = {access:?}
drain_ms = 10000

[task_queue.api]
listen = "{api}"
admin_listen = "{admin}"

[task_queue.pools.default.store.redis]
urls = [{redis:?}]
prefix = "{PREFIX}-queue"
shards = 4
"#,
            access = self.dir.join("access.toml").display().to_string(),
            redis = self.server("redis")?.url(),
        );
        Ok(std::fs::write(self.queue_options(name), text)?)
    }

    /// The key ring.
    pub fn key_ring(&self) -> PathBuf {
        self.dir.join("keys.toml")
    }

    /// The history of the limits.
    pub fn history(&self) -> History {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).2.clone()
    }

    /// The rules as they are now.
    pub fn rules(&self) -> Rules {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Changes the rules by the operators' own command.
    pub fn set_rules(&self, change: impl FnOnce(&mut Rules), why: &str) -> Result<()> {
        let mut held = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = held.0.clone();
        change(&mut next);
        let etcd = self.server("etcd")?.url().to_owned();
        // An earlier command may have been done though its answer was lost.
        let version = if held.1 == 0 { 1 } else { self.rules_version(&etcd)? };
        let path = self.dir.join("rules.toml");
        std::fs::write(&path, next.document(version))?;
        let path = path.display().to_string();
        // Processes may follow before the command has ended.
        held.2.note(crate::journal::now_ms(), next.limits());
        let args =
            ["rules", "set", "--etcd", &etcd, "--who", "soak", "--why", why, "--brokers", "a,b,c", &path];
        if let Err(error) = self.windfall(&args) {
            let old = held.0.limits();
            held.2.note(crate::journal::now_ms(), old);
            return Err(error);
        }
        held.1 = version;
        held.0 = next;
        Ok(())
    }

    /// Ends the servers.
    pub fn end(&self) {
        if let Err(error) = self.servers.down(&[]) {
            eprintln!("soak: the servers do not end: {error}");
        }
    }

    fn rules_version(&self, etcd: &str) -> Result<u64> {
        let shown: Value =
            serde_json::from_str(&self.windfall(&["rules", "show", "--etcd", etcd, "--json"])?)?;
        shown["version"].as_u64().with_context(|| format!("no version: {shown}"))
    }

    /// Runs a command of `windfall` to its end.
    pub fn windfall(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(args).stdin(Stdio::null()).env_remove("WINDFALL_SABOTAGE");
        let output = command.output().with_context(|| format!("{} cannot be run", self.program.display()))?;
        if !output.status.success() {
            bail!("`windfall {}` failed: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn write_keys(&mut self) -> Result<()> {
        self.windfall(&["keys", "new", "--file", &self.key_ring().display().to_string()])?;
        let mut access = String::new();
        for (name, role) in CALLERS.into_iter().chain(self.pays_out.then_some(PAYER)) {
            let key: Value = serde_json::from_str(&self.windfall(&["access", "new-key", "--json"])?)?;
            write!(
                access,
                "[[caller]]\nname = {name:?}\ntenant = \"windfall\"\nroles = [{role:?}]\nkey_sha256 = {}\n\
                 may_name_users = {}\n\n",
                key["key_sha256"],
                role == "verify"
            )?;
            self.keys.insert(name, key["key"].as_str().context("no key")?.to_owned());
        }
        std::fs::write(self.dir.join("access.toml"), access)?;
        std::fs::write(self.dir.join("shop.secret"), "a secret of the soak, which is nobody's\n")?;
        Ok(())
    }

    /// A ring with a key for each sender: the whole of it for those that verify, and an export for each of the others.
    fn write_signing_keys(&self) -> Result<()> {
        let whole = self.dir.join("signing.toml");
        let ring = whole.display().to_string();
        for (nth, sender) in (1..).zip(SENDERS) {
            let is_first = nth == 1;
            let mut words =
                vec!["signing", if is_first { "new" } else { "add" }, "--file", &ring, "--sender", sender];
            // Who consumes signs copies of what others have signed.
            words.extend((sender == CONSUMER).then_some("--may-copy"));
            self.windfall(&words)?;
            if !is_first {
                self.windfall(&["signing", "promote", "--file", &ring, &nth.to_string()])?;
            }
        }
        for sender in SENDERS {
            let own = self.signing_keys(sender);
            if own != whole {
                let own = own.display().to_string();
                self.windfall(&["signing", "export", "--file", &ring, "--sender", sender, &own])?;
            }
        }
        Ok(())
    }

    /// The file of signing keys of a sender.
    pub fn signing_keys(&self, sender: &str) -> PathBuf {
        match sender {
            CONSUMER | REWARD_SERVICE => self.dir.join("signing.toml"),
            _ => self.dir.join(format!("signing-{sender}.toml")),
        }
    }

    /// What a process of this role is told about signatures, by its environment: the roles share an options file.
    pub fn signing_environment(&self, role: &str) -> Vec<(&'static str, String)> {
        if !SENDERS.contains(&role) {
            return Vec::new();
        }
        if !self.signs {
            return vec![("WINDFALL_OPTION_SIGNING__UNSIGNED", "accept".to_owned())];
        }
        let keys = self.signing_keys(role).display().to_string();
        vec![("WINDFALL_OPTION_SIGNING__KEYS", keys), ("WINDFALL_OPTION_SIGNING__SENDER", role.to_owned())]
    }

    /// The addresses at which the SDK process finds the servers.
    fn place(&self, rate_per_s: u64) -> Result<Place> {
        let url = |name: &str| self.server(name).map(|server| server.url().to_owned());
        Ok(Place {
            kafka_a: url("kafka")?,
            kafka_b: url("kafka2")?,
            proxy: url("rocketmq")?,
            broker: self.server("rocketmq")?.address("broker")?.to_owned(),
            etcd: url("etcd")?,
            prefix: format!("{PREFIX}-"),
            keys: self.key_ring(),
            signing: self.signs.then(|| self.signing_keys(SDK)),
            rate_per_s,
        })
    }

    fn options_text(&self, shop: SocketAddr) -> Result<String> {
        let url = |name: &str| self.server(name).map(|server| server.url().to_owned());
        let rocketmq = self.server("rocketmq")?;
        let file = |name: &str| self.dir.join(name).display().to_string();
        let kafka = |name: &str, url: String| {
            format!(
                "[brokers.{name}.kafka]\nbootstrap_servers = {url:?}\nprefix = \"{PREFIX}-\"\n\
                 session_timeout_ms = 6000\nconnect_timeout_ms = 3000\n\n"
            )
        };
        Ok(format!(
            r#"keys = {keys:?}
access = {access:?}
drain_ms = 10000

[sdk]
spool_bytes = 8388608

[rules.etcd]
endpoints = [{etcd:?}]

{a}{b}[brokers.c.rocketmq]
endpoints = [{proxy:?}]
admin = [{broker:?}]
prefix = "{PREFIX}-"
invisible_ms = 10000
session_timeout_ms = 10000
# Three consumers, and one that has adopted another's files.
instances = 4

[tokens.redis]
urls = [{redis:?}]
prefix = "{PREFIX}:"

[ledger.postgres]
url = {postgres:?}
schema = "{PREFIX}"

[rewards]
pays = {{ gift = "shop" }}

[grant_async]
again_after_ms = 5000

[connectors.shop.wire.http]
url = "http://{shop}/pay"
allow = ["127.0.0.1"]
key_id = "soak"
secret_file = {secret:?}
wire = {{ plaintext = true }}

[connectors.shop.guard]
concurrency = 16
timeout_ms = 600
"#,
            keys = file("keys.toml"),
            access = file("access.toml"),
            secret = file("shop.secret"),
            etcd = url("etcd")?,
            a = kafka("a", url("kafka")?),
            b = kafka("b", url("kafka2")?),
            proxy = rocketmq.url(),
            broker = rocketmq.address("broker")?,
            redis = url("redis")?,
            postgres = url("postgres")?,
        ))
    }
}

impl Ground {
    /// What the scheduler's options have besides those of the other roles.
    fn timer_options_text(&self, shop: SocketAddr) -> Result<String> {
        let jobs = if self.has_jobs { self.job_options_text()? } else { String::new() };
        let retry = "retry = { exponential = { attempts_max = 100, first_ms = 200, max_ms = 2000 } }";
        Ok(format!(
            r#"
[scheduler]
shards = 16
store = {{ redis = {{ urls = [{redis:?}], prefix = "{PREFIX}-timers" }} }}

[scheduler.tenants.windfall.targets.rewards]
to = "send_bonus"
{retry}

[scheduler.tenants.windfall.targets.hook]
{retry}

[scheduler.tenants.windfall.targets.hook.to.http]
url = "http://{shop}/fired"
allow = ["127.0.0.1"]
key_id = "soak"
secret_file = {secret:?}
wire = {{ plaintext = true, timeout_ms = 2000 }}
{jobs}"#,
            redis = self.server("redis")?.url(),
            secret = self.dir.join("shop.secret").display().to_string(),
        ))
    }
}

impl Ground {
    fn job_options_text(&self) -> Result<String> {
        Ok(format!(
            r#"
[jobs]
shards = 8
allow = ["127.0.0.0/8"]
store = {{ redis = {{ urls = [{redis:?}], prefix = "{PREFIX}-jobs" }} }}
"#,
            redis = self.server("redis")?.url(),
        ))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.end();
    }
}
