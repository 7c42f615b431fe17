//! Rules in a real etcd: the suite of all homes of rules; killed, frozen, compacted, wiped; refusals at the start.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use etcd_client::{Client, Permission, PermissionType};
use tempfile::TempDir;
use windfall_config::etcd::{EtcdOptions, EtcdRulesStore, EtcdSource, EtcdValue, OpenEtcdError};
use windfall_config::{Actor, ChangeRules, LiveRules, ProcessStatus, SetError, Status};
use windfall_conformance::rules::{self, Fixture, Kept, Place};
use windfall_servers::{Private, Spec};

const SAMPLE: &str = include_str!("../samples/rules.toml");
/// Makes the users that a deployment has.
const USERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/etcd/users.sh");
/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(90);

/// An etcd of its own, and places in it that do not touch each other.
struct Etcd {
    server: Arc<Private>,
    places: AtomicU32,
}

struct InEtcd {
    server: Arc<Private>,
    options: EtcdOptions,
    _directory: TempDir,
}

impl Etcd {
    fn new() -> Self {
        Self { server: Arc::new(Private::start(Spec::Etcd).unwrap()), places: AtomicU32::new(0) }
    }

    fn bed(&self) -> InEtcd {
        let number = self.places.fetch_add(1, Ordering::Relaxed);
        let directory = tempfile::tempdir().unwrap();
        let options = EtcdOptions {
            endpoints: vec![self.server.url().to_owned()],
            prefix: format!("/test/{number}/"),
            copy: Some(directory.path().join("copy.toml")),
            start_timeout_ms: 10_000,
            ..EtcdOptions::default()
        };
        InEtcd { server: Arc::clone(&self.server), options, _directory: directory }
    }
}

impl Fixture for Etcd {
    fn name(&self) -> &str {
        "etcd"
    }

    fn place(&self) -> Result<Box<dyn Place>, String> {
        Ok(Box::new(self.bed()))
    }
}

impl InEtcd {
    fn copy(&self) -> PathBuf {
        self.options.copy.clone().unwrap()
    }

    fn open(&self) -> (LiveRules, EtcdSource) {
        EtcdSource::open(self.options.clone(), None, || 7).unwrap()
    }

    fn begin(&self) -> (Box<dyn ChangeRules>, LiveRules, EtcdSource) {
        let store = self.store();
        store.set(SAMPLE, "ann", "first", 1).unwrap();
        let (live, source) = self.open();
        (store, live, source)
    }
}

impl Place for InEtcd {
    fn store(&self) -> Box<dyn ChangeRules> {
        let options = EtcdOptions { call_timeout_ms: 10_000, ..self.options.clone() };
        Box::new(EtcdRulesStore::new(options, None).unwrap())
    }

    fn follow(&self) -> Result<(LiveRules, Box<dyn Send>), String> {
        // A start without etcd shall not take long.
        let options = EtcdOptions { start_timeout_ms: 2_000, ..self.options.clone() };
        let (live, source) = EtcdSource::open(options, None, || 7).map_err(|error| error.to_string())?;
        Ok((live, Box::new(source)))
    }

    fn overwrite(&self, bytes: &[u8]) -> Result<(), String> {
        let (key, bytes) = (format!("{}current", self.options.prefix), bytes.to_vec());
        with_client(self.server.url(), async |mut client| {
            client.put(key, bytes, None).await.unwrap();
        });
        Ok(())
    }

    fn damage(&self, kept: Kept) -> Result<(), String> {
        let prefix = &self.options.prefix;
        let key = match kept {
            Kept::Change(version) => format!("{prefix}changes/{version:016}"),
            Kept::Proposal(number) => format!("{prefix}proposals/{number:016}"),
        };
        let there = with_client(self.server.url(), async |mut client| {
            let there = client.get(key.clone(), None).await.unwrap().count();
            client.put(key.clone(), "number = ", None).await.unwrap();
            there
        });
        if there == 1 { Ok(()) } else { Err(format!("there is no {key}")) }
    }

    fn set_away(&self, is_away: bool) -> Result<(), String> {
        let done = if is_away { self.server.kill() } else { self.server.start() };
        done.map_err(|error| error.to_string())
    }

    fn starts_while_away(&self) -> bool {
        true
    }
}

/// What an operator does by hand.
fn with_client<T>(url: &str, work: impl AsyncFnOnce(Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { work(Client::connect([url], None).await.unwrap()).await })
}

#[track_caller]
fn wait(live: &LiveRules, what: &str, reached: impl Fn(&Status) -> bool) {
    let started = Instant::now();
    while !reached(&live.status()) {
        assert!(started.elapsed() < PATIENCE, "waited for {what}: {:?}", live.status());
        thread::sleep(Duration::from_millis(2));
    }
}

fn with_burst(store: &dyn ChangeRules, burst: u32) -> u64 {
    let mut rules = windfall_config::parse_rules(&store.show().unwrap(), None).unwrap();
    rules.limits.global.burst = burst;
    store.set(&windfall_config::rules_text(&rules), "ann", "a test", 2).unwrap();
    windfall_config::parse_rules(&store.show().unwrap(), None).unwrap().version
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn etcd_conforms() {
    let failed = rules::run(&Etcd::new());
    assert!(failed.is_empty(), "{failed:#?}");
}

/// A frozen etcd breaks no connection; it is noticed all the same, and what changed is applied after it.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn frozen_and_compacted() {
    let etcd = Etcd::new();
    let bed = etcd.bed();
    let (store, live, source) = bed.begin();
    etcd.server.freeze().unwrap();
    wait(&live, "the silence to show", |status| status.source_failure.is_some());
    assert_eq!(live.current().version, 1);
    etcd.server.thaw().unwrap();
    wait(&live, "it to be back", |status| status.source_failure.is_none());
    let version = with_burst(&*store, 5);
    wait(&live, "the change", |status| status.version == version);

    // Changed and compacted while nobody could watch: what is there now is what counts.
    etcd.server.freeze().unwrap();
    wait(&live, "the silence to show", |status| status.source_failure.is_some());
    let compactor = {
        let url = etcd.server.url().to_owned();
        let prefix = bed.options.prefix.clone();
        thread::spawn(move || {
            with_client(&url, async |mut client| {
                for _ in 0..20 {
                    client.put(format!("{prefix}noise"), "x", None).await.unwrap();
                }
                let newest = client.get("x", None).await.unwrap().header().unwrap().revision();
                client.compact(newest, None).await.unwrap();
            });
        })
    };
    etcd.server.thaw().unwrap();
    compactor.join().unwrap();
    let version = with_burst(&*store, 6);
    wait(&live, "the change after it", |status| status.version == version);
    assert_eq!(live.status().refusals, 0);
    source.close();
}

/// All data is lost, the revision begins anew: nobody goes back, and the fleet is mended from a copy.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn wiped() {
    let etcd = Etcd::new();
    let bed = etcd.bed();
    let (store, live, source) = bed.begin();
    for burst in 5..9 {
        with_burst(&*store, burst);
    }
    wait(&live, "the changes", |status| status.version == 5);
    let started = Instant::now();
    while std::fs::read_to_string(bed.copy()).unwrap() != store.show().unwrap() {
        assert!(started.elapsed() < PATIENCE, "waited for the copy");
    }
    etcd.server.kill().unwrap();
    let data = find_data(etcd.server.dir());
    std::fs::remove_dir_all(data.join("member")).unwrap();
    etcd.server.start().unwrap();
    wait(&live, "the loss to show", |status| {
        status.source_failure.as_ref().is_some_and(|failure| failure.text.contains("no such key"))
    });
    assert_eq!((live.current().version, live.current().limits.global.burst), (5, 8));

    // Somebody begins again with the first document: it is older than what runs.
    store.set(SAMPLE, "bob", "begin again", 3).unwrap();
    wait(&live, "the refusal", |status| status.refusals == 1);
    assert_eq!((live.current().version, live.current().limits.global.burst), (5, 8));
    assert!(live.status().last_refusal.unwrap().text.contains("needs a higher version"));
    // So does a process that starts now.
    source.close();
    let (live, source) = bed.open();
    assert_eq!((live.current().version, live.status().refusals), (5, 1));

    // Mended with the copy that every process has.
    with_client(etcd.server.url(), async |mut client| {
        client.delete(format!("{}current", bed.options.prefix), None).await.unwrap();
    });
    let copy = std::fs::read_to_string(bed.copy()).unwrap();
    bed.overwrite(copy.as_bytes()).unwrap();
    wait(&live, "it to be whole", |status| status.source_failure.is_none());
    let version = with_burst(&*store, 9);
    assert_eq!(version, 6);
    wait(&live, "the next change", |status| status.version == 6);
    source.close();
}

fn find_data(dir: &std::path::Path) -> PathBuf {
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        if dir.join("member").is_dir() {
            return dir;
        }
        open.extend(
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()),
        );
    }
    panic!("no data of etcd");
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn what_cannot_be_opened_says_why() {
    let etcd = Etcd::new();
    let bed = etcd.bed();
    let open = |options: EtcdOptions| EtcdSource::open(options, None, || 7).map(drop).unwrap_err();
    let error = open(bed.options.clone());
    assert!(matches!(error, OpenEtcdError::Missing { .. }), "{error}");
    bed.overwrite(b"version = = 1").unwrap();
    let error = open(bed.options.clone());
    assert!(matches!(error, OpenEtcdError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("/current"), "{error}");
    let wrong =
        EtcdOptions { endpoints: vec!["127.0.0.1:1".into()], start_timeout_ms: 1_000, ..bed.options.clone() };
    let error = open(wrong).to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("check endpoints"), "{error}");
    for wrong in [
        EtcdOptions { endpoints: Vec::new(), ..EtcdOptions::default() },
        EtcdOptions { endpoints: vec!["ftp://127.0.0.1:1".into()], ..EtcdOptions::default() },
        EtcdOptions { check_ms: 0, ..EtcdOptions::default() },
    ] {
        assert!(matches!(open(wrong), OpenEtcdError::Option(_)));
    }

    // With users: the right one may, a wrong one and none may not.
    with_client(etcd.server.url(), async |mut client| {
        client.role_add("rules").await.unwrap();
        let all = Permission::new(PermissionType::Readwrite, bed.options.prefix.clone()).with_prefix();
        client.role_grant_permission("rules", all).await.unwrap();
        client.user_add("windfall", "rain", None).await.unwrap();
        client.user_grant_role("windfall", "rules").await.unwrap();
        client.role_add("root").await.unwrap();
        client.user_add("root", "secret", None).await.unwrap();
        client.user_grant_role("root", "root").await.unwrap();
        client.auth_enable().await.unwrap();
    });
    let user = |password: &str| Some(("windfall".to_owned(), password.to_owned()));
    let right = EtcdOptions { user: user("rain"), ..bed.options.clone() };
    let store = EtcdRulesStore::new(right.clone(), None).unwrap();
    store.set(SAMPLE, "ann", "first", 1).unwrap();
    let (live, source) = EtcdSource::open(right, None, || 7).unwrap();
    let version = with_burst(&store, 5);
    wait(&live, "the change", |status| status.version == version);
    source.close();
    std::fs::remove_file(bed.copy()).unwrap();
    for user in [user("wrong"), None] {
        let error = open(EtcdOptions { user, ..bed.options.clone() });
        assert!(matches!(error, OpenEtcdError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("check endpoints and user"), "{error}");
    }
}

/// Runs the script that is shipped, with these variables.
fn make_users(bed: &InEtcd, variables: &[(&str, &str)]) {
    let mut script = Command::new("bash");
    script.args([USERS, bed.server.url(), bed.options.prefix.as_str()]).envs(variables.iter().copied());
    let done = script.output().unwrap();
    assert!(done.status.success(), "users.sh needs etcdctl (Debian: etcd-client): {done:?}");
}

/// The users of deploy/etcd: whoever runs the rules neither changes them nor their history, and whoever changes them does not
/// touch what processes keep there.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn the_shipped_users_suffice_and_do_no_more_than_their_work() {
    let etcd = Etcd::new();
    let bed = etcd.bed();
    let first = [
        ("PROCESS_PASSWORD", "rain"),
        ("LEDGER_PASSWORD", "rain"),
        ("OPERATOR_PASSWORD", "sun"),
        ("ROOT_PASSWORD", "secret"),
        ("ENABLE", "1"),
    ];
    make_users(&bed, &first);
    // Once more changes the passwords that are given, and nothing else.
    make_users(&bed, &[("ETCDCTL_USER", "root:secret"), ("OPERATOR_PASSWORD", "rain")]);
    let of = |user: &str| {
        let user = Some((user.to_owned(), "rain".to_owned()));
        EtcdOptions { user, call_timeout_ms: 10_000, ..bed.options.clone() }
    };
    let [process, ledger, operator] = ["windfall-process", "windfall-ledger", "windfall-operator"];
    let store = |user: &str| EtcdRulesStore::new(of(user), None).unwrap();
    let value = |user: &str, name: &str| EtcdValue::new(of(user), name).unwrap();

    // An operator sets the first rules and changes them, and a process of either kind runs them.
    store(operator).set(SAMPLE, "ann", "first", 1).unwrap();
    let (live, source) = EtcdSource::open(of(process), None, || 7).unwrap();
    let (other, other_source) =
        EtcdSource::open(EtcdOptions { copy: None, ..of(ledger) }, None, || 7).unwrap();
    let version = with_burst(&store(operator), 5);
    for running in [&live, &other] {
        wait(running, "the change", |status| status.version == version);
    }

    // They report that, which the operator reads, and withdraw it at the end.
    for user in [process, ledger] {
        store(user).report(&ProcessStatus::of(user, &live.status(), true, 7)).unwrap();
    }
    let reports = store(operator).reports().unwrap();
    let names: Vec<&str> = reports.iter().map(|one| one.process.as_str()).collect();
    assert_eq!(names, [ledger, process]);
    store(process).withdraw(process).unwrap();
    let by_operator = store(operator).report(&ProcessStatus::of(process, &live.status(), true, 8));
    assert!(by_operator.is_err(), "reports are the processes'");

    // No process changes the document or its history, by whatever way.
    let before = store(operator).show().unwrap();
    let mut rules = windfall_config::parse_rules(&before, None).unwrap();
    rules.limits.global.burst = 6;
    let more = windfall_config::rules_text(&rules);
    for user in [process, ledger] {
        let refused = store(user).set(&more, "eve", "more for me", 3).unwrap_err();
        assert!(refused.to_string().contains("permission denied"), "{user}: {refused}");
        assert!(store(user).rollback(1, "eve", "back", 3).is_err(), "{user}");
        for name in ["current", "changes/0000000000000001", "changes/0000000000000003"] {
            let found = value(user, name).get().unwrap();
            assert!(value(user, name).replace(found.as_deref(), b"x".to_vec()).is_err(), "{user}: {name}");
        }
    }
    assert_eq!(store(operator).show().unwrap(), before);
    assert_eq!(store(process).history().unwrap().changes.len(), 2);

    // What waits for approval is the operator's to write, and every process only reads it.
    let mut asking = windfall_config::parse_rules(&before, None).unwrap();
    asking.changes_need_approval = true;
    store(operator).set(&windfall_config::rules_text(&asking), "ann", "two see more", 4).unwrap();
    (asking.version, asking.limits.global.burst) = (3, asking.limits.global.burst + 1);
    let waits = store(operator).set(&windfall_config::rules_text(&asking), "ann", "more", 4);
    assert!(matches!(waits, Err(SetError::Waits { number: 1 })), "{waits:?}");
    for user in [process, ledger] {
        assert_eq!(store(user).proposals(5).unwrap().open.len(), 1, "{user}");
        assert!(store(user).refuse(1, Actor::said("eve"), 5).is_err(), "{user}");
    }
    store(operator).refuse(1, Actor::said("ann"), 5).unwrap();

    // The ledger's mark is kept by those with the ledger alone, and nobody reaches beyond the prefix.
    let mark = "ledger-mark/app/money/windfall";
    for user in [process, operator] {
        assert_eq!(value(user, mark).get().unwrap(), None);
        assert!(value(user, mark).replace(None, b"1".to_vec()).is_err(), "{user}");
    }
    assert!(value(ledger, mark).replace(None, b"1".to_vec()).unwrap());
    assert!(value(ledger, mark).replace(Some(b"1"), b"2".to_vec()).unwrap());
    for user in [process, ledger, operator] {
        let elsewhere = EtcdOptions { prefix: "/elsewhere/".into(), ..of(user) };
        assert!(EtcdValue::new(elsewhere, "current").unwrap().get().is_err(), "{user}");
    }
    source.close();
    other_source.close();
}

/// A small value beside the rules: of two that know the same, one replaces it; an etcd that is away is an error, and no
/// reason to start anew.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_value_is_replaced_by_those_who_know_what_it_was() {
    let etcd = Etcd::new();
    let bed = etcd.bed();
    let value = || EtcdValue::new(bed.options.clone(), "ledger-mark/app/money/windfall").unwrap();
    let (one, other) = (value(), value());
    assert!(one.place().contains("ledger-mark/app/money/windfall"), "{}", one.place());
    assert_eq!(one.get().unwrap(), None);
    assert!(one.replace(None, b"1".to_vec()).unwrap());
    assert!(!other.replace(None, b"2".to_vec()).unwrap(), "it has not read the first one");
    assert_eq!(other.get().unwrap().as_deref(), Some(&b"1"[..]));
    assert!(other.replace(Some(b"1"), b"2".to_vec()).unwrap());
    assert!(!one.replace(Some(b"1"), b"3".to_vec()).unwrap());
    let apart = EtcdValue::new(bed.options.clone(), "ledger-mark/app/coins/windfall").unwrap();
    assert_eq!(apart.get().unwrap(), None);

    etcd.server.freeze().unwrap();
    assert!(one.get().is_err() && one.replace(Some(b"2"), b"3".to_vec()).is_err());
    etcd.server.thaw().unwrap();
    let comes_back = |value: &EtcdValue| {
        let started = Instant::now();
        loop {
            match value.get() {
                Ok(found) => return found,
                Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
            }
        }
    };
    // The write that was not answered may have been done.
    let found = comes_back(&one).unwrap();
    assert!(found == b"2" || found == b"3", "{found:?}");
    etcd.server.kill().unwrap();
    assert!(one.get().is_err());
    etcd.server.start().unwrap();
    assert_eq!(comes_back(&one), Some(found));
}
