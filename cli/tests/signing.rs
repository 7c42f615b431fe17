//! `windfall signing`: the life of a ring of signing keys, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_windfall")).args(arguments).output().unwrap()
}

/// `windfall signing` on this file, which is to succeed.
fn signing(file: &Path, command: &str, more: &[&str]) -> String {
    let arguments = [&["signing", command, "--file", file.to_str().unwrap()], more].concat();
    let ended = run(&arguments);
    assert_eq!(ended.status.code(), Some(0), "{arguments:?}: {ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

/// The same, which is to be refused with these words.
fn refused(file: &Path, command: &str, more: &[&str], words: &str) {
    let before = std::fs::read(file).ok();
    let arguments = [&["signing", command, "--file", file.to_str().unwrap()], more].concat();
    let ended = run(&arguments);
    let told = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {told}");
    assert!(told.contains(words), "{arguments:?}: {told}");
    assert_eq!(std::fs::read(file).ok(), before, "{arguments:?}: nothing changed");
}

/// Number, sender and state of each key.
fn keys(file: &Path) -> Vec<(u64, String, String)> {
    let list: Value = serde_json::from_str(&signing(file, "list", &["--json"])).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |key: &Value| (key["id"].as_u64().unwrap(), text(&key["sender"]), text(&key["state"]));
    list.as_array().unwrap().iter().map(row).collect()
}

fn row(id: u64, sender: &str, state: &str) -> (u64, String, String) {
    (id, sender.into(), state.into())
}

#[test]
fn the_life_of_a_ring() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("signing.toml");
    signing(&file, "new", &["--sender", "consumer", "--may-copy"]);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(signing(&file, "add", &["--sender", "gateway"]).contains("promote"));
    signing(&file, "promote", &["2"]);
    signing(&file, "add", &["--sender", "gateway"]);
    let [consumer, old, new] =
        [row(1, "consumer", "primary"), row(2, "gateway", "primary"), row(3, "gateway", "verify-only")];
    assert_eq!(keys(&file), [consumer.clone(), old, new]);
    let list: Value = serde_json::from_str(&signing(&file, "list", &["--json"])).unwrap();
    assert_eq!((&list[0]["may_copy"], &list[1]["may_copy"]), (&json!(true), &json!(false)));

    signing(&file, "promote", &["3"]);
    signing(&file, "destroy", &["2"]);
    let rest = [row(2, "gateway", "destroyed"), row(3, "gateway", "primary")];
    assert_eq!(keys(&file)[1..], rest);
    // The number of a destroyed key is not given again.
    signing(&file, "add", &["--sender", "gateway"]);
    assert_eq!(keys(&file)[3].0, 4);
    let shown = signing(&file, "list", &[]);
    let text = std::fs::read_to_string(&file).unwrap();
    let secrets = text.lines().filter_map(|line| line.strip_prefix("secret = \"")?.strip_suffix('"'));
    let secrets: Vec<&str> = secrets.collect();
    assert_eq!(secrets.len(), 3, "a destroyed key has none: {shown}");
    assert!(secrets.iter().all(|secret| !shown.contains(secret) && !list.to_string().contains(secret)));

    let copy = dir.path().join("gateway.toml");
    signing(&file, "export", &["--sender", "gateway", copy.to_str().unwrap()]);
    assert!(keys(&copy).iter().all(|(_, sender, _)| sender == "gateway"));
    assert!(!std::fs::read_to_string(&copy).unwrap().contains(secrets[0]), "the consumer's secret");
    refused(&copy, "add", &["--sender", "gateway"], "copy");
    signing(&file, "retire", &["3"]);
    assert_eq!(keys(&file)[2], row(3, "gateway", "verify-only"));
}

#[test]
fn what_is_refused_says_why_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("signing.toml");
    refused(&file, "list", &[], "windfall signing new");
    signing(&file, "new", &["--sender", "gateway"]);
    refused(&file, "new", &["--sender", "gateway"], "exists already");
    refused(&file, "add", &["--sender", "a b"], "sender");
    refused(&file, "promote", &["9"], "9");
    refused(&file, "destroy", &["1"], "primary");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&file, "list", &[], "chmod 600");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("gateway", "getaway")).unwrap();
    refused(&file, "list", &[], "digest");
}

#[test]
fn a_process_that_cannot_sign_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let (file, options) = (dir.path().join("signing.toml"), dir.path().join("windfall.toml"));
    let data = dir.path().join("data");
    let start = |sender: &str, words: &str| {
        std::fs::write(&options, format!("[signing]\nkeys = {file:?}\n{sender}\n")).unwrap();
        let [options, data] = [&options, &data].map(|path| path.to_str().unwrap());
        let ended = run(&["serve", "--dev", "--listen", "127.0.0.1:0", "--config", options, "--data", data]);
        let told = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{told}");
        assert!(told.contains(words), "{told}");
    };
    start("sender = \"gateway\"", "there is no key file");
    signing(&file, "new", &["--sender", "gateway"]);
    start("", "signing.sender is missing");
    start("sender = \"mall\"", "mall");
    start("sender = \"gateway\"", "may sign no copies");
    start("sender = \"gateway\"\nunsigned = \"perhaps\"", "perhaps");
}

#[cfg(feature = "kafka")]
#[test]
fn a_process_without_keys_does_not_start_on_real_brokers_and_says_so_before_it_has_its_rules() {
    let dir = tempfile::tempdir().unwrap();
    let (options, data) = (dir.path().join("windfall.toml"), dir.path().join("data"));
    let brokers =
        ["a", "b"].map(|name| format!("[brokers.{name}.kafka]\nbootstrap_servers = \"127.0.0.1:1\"\n"));
    // Rules that nobody ever sets.
    let rules = "[rules.etcd]\nendpoints = [\"http://127.0.0.1:1\"]\n";
    std::fs::write(&options, format!("{}{rules}", brokers.concat())).unwrap();
    let [options, data] = [&options, &data].map(|path| path.to_str().unwrap());
    for role in ["serve", "consumer", "reward-service", "sdk-gateway"] {
        let ended = run(&[role, "--listen", "127.0.0.1:0", "--config", options, "--data", data]);
        let told = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{role}: {told}");
        for said in ["signing.keys is missing", "signing.unsigned = \"accept\"", "docs/signed-records.md"] {
            assert!(told.contains(said), "{role}: {told}");
        }
    }
}
