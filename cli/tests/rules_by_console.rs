//! `windfall rules --server`: the console of `windfall serve --dev` changes the rules for whom a key proves, and a second person
//! approves what waits.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A process of `windfall serve --dev`, and the keys that it has printed.
struct Process {
    child: Child,
    address: String,
    operator: String,
    approver: String,
    data: PathBuf,
}

impl Process {
    fn start(folder: &Path) -> Self {
        let data = folder.join("data");
        let mut child = Command::new(env!("CARGO_BIN_EXE_windfall"))
            .args(["serve", "--dev", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut operator, mut approver, mut address) = (String::new(), String::new(), String::new());
        while address.is_empty() {
            let line = lines.next().expect("it has ended").unwrap();
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("operator"), Some(key)) => operator = key.to_owned(),
                (Some("approver"), Some(key)) => approver = key.to_owned(),
                _ => {}
            }
            if let Some(rest) = line.strip_prefix("windfall serve is ready at ") {
                address = rest.to_owned();
            }
        }
        // Nobody reads what comes later, and it may say more.
        std::thread::spawn(move || lines.for_each(drop));
        assert!(!operator.is_empty() && !approver.is_empty(), "the keys are printed");
        Self { child, address, operator, approver, data }
    }

    /// `windfall rules … --server`
    fn rules(&self, key: &str, arguments: &[&str]) -> Output {
        let server = format!("http://{}", self.address);
        Command::new(env!("CARGO_BIN_EXE_windfall"))
            .arg("rules")
            .args(arguments)
            .args(["--server", &server])
            .env("WINDFALL_KEY", key)
            .env("USER", "kim")
            .output()
            .unwrap()
    }

    /// The same, which must end with this exit code.
    fn ended(&self, key: &str, arguments: &[&str], code: i32) -> (String, String) {
        let output = self.rules(key, arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stdout}{stderr}");
        (stdout, stderr)
    }

    fn json(&self, key: &str, arguments: &[&str]) -> Value {
        let (stdout, _) = self.ended(key, &[arguments, &["--json"]].concat(), 0);
        serde_json::from_str(&stdout).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_second_person_approves_by_a_key_of_her_own() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path());
    let (operator, approver) = (process.operator.as_str(), process.approver.as_str());

    // The name is the one that the key proves, whatever is said beside it.
    let slower = ["limit", "--global", "1000", "100", "--why", "slow", "--who", "lee"];
    let (said, _) = process.ended(operator, &slower, 0);
    assert!(said.contains("limits.global.rate_per_s") && said.contains("→ 1000"), "{said}");
    let newest = |key: &str| process.json(key, &["history"]).as_array().unwrap().last().unwrap().clone();
    let made = newest(operator);
    assert_eq!((&made["who"], &made["identity"]), (&json!("operator: lee"), &json!("proved")));

    // Two persons from now on.
    let document = folder.path().join("wanted.toml");
    let (text, _) = process.ended(operator, &["show"], 0);
    fs::write(&document, format!("changes_need_approval = true\n{text}")).unwrap();
    let document = document.to_str().unwrap();
    process.ended(operator, &["set", document, "--why", "two see more than one"], 0);
    let faster = ["limit", "--global", "2000", "--why", "the evening"];
    let (_, waits) = process.ended(operator, &faster, 1);
    assert!(waits.contains("waits for approval as proposal 1"), "{waits}");
    // The same again is the same proposal.
    assert!(process.ended(operator, &faster, 1).1.contains("proposal 1."));
    let rows = process.json(approver, &["proposals"]);
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["identity"]), (1, &json!("proved")));
    let (shown, _) = process.ended(approver, &["proposals"], 0);
    assert!(shown.contains("by operator: kim (proved)") && shown.contains("1000 → 2000"), "{shown}");

    // Not by the operator, nor past the console, where nothing proves who it is.
    let (_, refused) = process.ended(operator, &["approve", "1"], 2);
    assert!(refused.contains("role `approve`"), "{refused}");
    let rules = process.data.join("rules").join("rules.toml");
    let past = Command::new(env!("CARGO_BIN_EXE_windfall"))
        .args(["rules", "approve", "1", "--who", "lee", "--file"])
        .arg(&rules)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&past.stderr);
    assert!(past.status.code() == Some(2) && stderr.contains("--server"), "{stderr}");

    let approved = process.json(approver, &["approve", "1"]);
    assert_eq!(approved["changed"], true, "{approved}");
    let made = newest(approver);
    assert_eq!(
        (&made["who"], &made["approved_by"], &made["why"]),
        (&json!("operator: kim"), &json!("approver: kim"), &json!("the evening"))
    );
    let (_, refused) = process.ended(approver, &["approve", "1"], 2);
    assert!(refused.contains("no proposal 1 waits"), "{refused}");
    // An emergency waits for nobody.
    process.ended(operator, &["limit", "--global", "10", "10", "--why", "it pays twice"], 0);
    let (history, _) = process.ended(operator, &["history"], 0);
    assert!(history.contains("proved the evening (approved by approver: kim)"), "{history}");
}

#[test]
fn a_console_that_is_not_there_or_a_wrong_key_changes_nothing_and_says_why() {
    let ask = |server: &str, key: Option<&str>, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windfall"));
        command.args(["rules", "show", "--server", server]).args(more).env_remove("WINDFALL_KEY");
        if let Some(key) = key {
            command.env("WINDFALL_KEY", key);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let away = ask("http://127.0.0.1:1", Some("wfk_x"), &[]);
    assert!(away.contains("cannot be reached"), "{away}");
    let open = ask("http://10.0.0.1:80", Some("wfk_x"), &[]);
    assert!(open.contains("in the clear"), "{open}");
    assert!(ask("http://127.0.0.1:1", None, &[]).contains("WINDFALL_KEY"));
    let both = ask("http://127.0.0.1:1", Some("wfk_x"), &["--file", "rules.toml"]);
    assert!(both.contains("--file"), "{both}");
}
