//! Every command explains itself, and a wrong call ends with 2. Cargo also builds the binary for the end-to-end tests
//! because this test needs it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

fn windfall(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_windfall")).args(arguments).output().unwrap()
}

/// The commands that a page of help lists.
fn listed(help: &str) -> Vec<String> {
    let lines =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_explains_itself() {
    let mut pages = vec![Vec::new()];
    let mut seen = 0;
    while let Some(path) = pages.pop() {
        let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let shown = windfall(&arguments);
        assert_eq!(shown.status.code(), Some(0), "{arguments:?}");
        let help = String::from_utf8(shown.stdout).unwrap();
        assert!(help.contains("Usage:"), "{arguments:?}: {help}");
        seen += 1;
        for name in listed(&help).into_iter().filter(|name| name != "help") {
            pages.push(path.iter().cloned().chain([name]).collect());
        }
    }
    assert!(seen > 30, "{seen} pages of help");
}

/// It was refused when the port was opened, which a process does last: a consumer had granted rewards by then.
#[test]
fn a_port_beyond_this_machine_is_refused_before_anything_else_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    for role in ["consumer", "token-service", "task-queue"] {
        let refused = windfall(&[role, "--listen", "0.0.0.0:0", "--data", data]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{role}: {said}");
        // The access file is missing, too, and nobody has come to it.
        assert!(said.contains("serve.listen 0.0.0.0:0 is not on this machine alone"), "{role}: {said}");
    }
}

#[test]
fn a_wrong_call_ends_with_2_and_says_why() {
    for arguments in [&["rain"][..], &["demo", "--rewards", "many"], &["rules", "show", "--nowhere"]] {
        let refused = windfall(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(!refused.stderr.is_empty(), "{arguments:?}");
    }
}

/// Users of two apps would share accounts by their numbers: whoever grants or holds accounts does not start.
#[test]
fn a_process_of_several_apps_does_not_start_unless_their_users_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let [options, data] = ["windfall.toml", "data"].map(|name| folder.path().join(name));
    std::fs::write(&options, "tenant = \"shop\"\n[rewards]\napps = [\"shop\", \"games\"]\n").unwrap();
    let [options, data] = [&options, &data].map(|path| path.to_str().unwrap());
    for role in ["serve", "consumer", "reward-service", "wallet"] {
        let refused = windfall(&[role, "--listen", "127.0.0.1:0", "--config", options, "--data", data]);
        let told = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{role}: {told}");
        assert!(told.contains("games, shop") && told.contains("users_are_shared_by_apps"), "{role}: {told}");
    }
}

#[test]
fn a_shell_and_man_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = windfall(&["completions", shell]);
        let text = String::from_utf8(script.stdout).unwrap();
        assert!(
            script.status.success() && text.contains("reward-service") && text.contains("rollback"),
            "{shell}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(windfall(&["man", pages.to_str().unwrap()]).status.success());
    let page = std::fs::read_to_string(pages.join("windfall-rules-limit.1")).unwrap();
    assert!(page.contains("windfall-rules-limit") && page.contains("\\-\\-dry\\-run"), "{page}");
    assert!(std::fs::read_dir(pages).unwrap().count() > 30);
    let refused = windfall(&["man", "/dev/null/nowhere"]);
    assert!(refused.status.code() == Some(2) && !refused.stderr.is_empty());
}
