//! Bad input: each gets a clear error that names what is wrong and what to do, and nothing changes.

#![allow(clippy::unwrap_used)] // a test ends where its premise fails

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use windfall_tests::{Ended, Run, assert_clean, figure, files, plain, scratch};

fn windfall(args: &[&str]) -> Run {
    Run::new(plain()).args(args)
}

/// Demands a refusal: exit 2, nothing on standard output, and these words on standard error.
#[track_caller]
fn assert_refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code, Some(2), "{ended}");
    assert_eq!(ended.stdout, "", "{ended}");
    for word in words {
        assert!(ended.stderr.contains(word), "no word of {word:?}: {ended}");
    }
    assert!(!ended.stderr.contains("panicked"), "{ended}");
}

/// A small demo in `dir` that ended well.
fn finished(dir: &Path, args: &[&str]) {
    let ended = windfall(&["demo", "--data"]).arg(dir).args(args).end();
    assert_eq!(ended.code, Some(0), "{ended}");
}

fn reconciled(data: &Path) -> Ended {
    windfall(&["reconcile", "--json", "--data"]).arg(data).end()
}

mod rules {
    use super::*;

    const GOOD: &str = include_str!("../../config/samples/rules.toml");

    /// What is refused, how it comes about, and what the error has to name.
    type Case = (&'static str, fn(&str) -> String, &'static [&'static str]);

    const CASES: [Case; 8] = [
        (
            "a wrong type",
            |good| with(good, "ratio = ", "ratio = \"ninety\""),
            &["ratio", "string", "0 to 100"],
        ),
        ("a ratio of 101", |good| with(good, "ratio = ", "ratio = 101"), &["ratio", "101", "0 to 100"]),
        ("an unknown key", |good| with(good, "ratio = ", "ratoi = 90"), &["unknown key `ratoi`", "`ratio`"]),
        (
            "a limit of an unknown type",
            |good| {
                good.replacen(
                    "\n[end]",
                    "\n[limits.types.cahs]\nrate_per_s = 1\nburst = 1\npriority = 0\n\n[end]",
                    1,
                )
            },
            &["limits.types", "unknown type `cahs`", "`cash`"],
        ),
        ("an empty file", |_| String::new(), &["the document is empty"]),
        (
            "a file half written, cut between two lines",
            |good| good[..good.rfind("[end]").unwrap()].to_owned(),
            &["half written", "`[end]`"],
        ),
        ("a file half written, cut in a line", |good| cut_in_a_line(good), &["line ", "TOML"]),
        (
            "two things wrong",
            |good| with(&with(good, "ratio = ", "ratio = 101"), "burst = ", "burst = -1"),
            &["ratio", "burst"],
        ),
    ];

    /// Replaces the first line that starts so.
    fn with(good: &str, start: &str, line: &str) -> String {
        let old = good
            .lines()
            .find(|one| one.starts_with(start))
            .unwrap_or_else(|| panic!("no {start} in the sample"));
        good.replacen(old, line, 1)
    }

    fn cut_in_a_line(good: &str) -> String {
        let at = good.find("\nrate_per_s").unwrap();
        good[..at + "\nrate_p".len()].to_owned()
    }

    #[test]
    fn a_document_with_something_wrong_changes_nothing() {
        let dir = scratch();
        let live = dir.path().join("live.toml");
        let set = |document: String| {
            windfall(&["rules", "set", "-", "--who", "ann", "--why", "test", "--file"])
                .arg(&live)
                .stdin(document)
                .end()
        };
        let first = set(GOOD.to_owned());
        assert_eq!(first.code, Some(0), "{first}");
        let before = files(dir.path());
        let history = windfall(&["rules", "history", "--json", "--file"]).arg(&live);
        let told = history.end().json();
        for (what, make, words) in CASES {
            let bad = make(GOOD);
            assert_ne!(bad, GOOD, "{what}");
            let check = windfall(&["rules", "check", "-"]).stdin(bad.clone()).end();
            assert_refused(&check, words);
            let refused = set(bad);
            assert_refused(&refused, words);
            assert!(refused.stderr.contains("stays as it is"), "{what}: {refused}");
            assert_eq!(files(dir.path()), before, "{what}: not a byte of rules or history changed");
        }
        assert_eq!(history.end().json(), told);
        let shown = windfall(&["rules", "show", "--json", "--file"]).arg(&live).end();
        assert_eq!(figure(&shown.json(), "version"), 1, "{shown}");
    }

    #[test]
    fn a_document_from_an_older_version_and_one_without_a_reason_are_refused() {
        let dir = scratch();
        let live = dir.path().join("live.toml");
        let set = |document: &str, why: &str| {
            let run = windfall(&["rules", "set", "-", "--who", "ann", "--why", why, "--file"]).arg(&live);
            run.stdin(document).end()
        };
        assert_eq!(set(GOOD, "first").code, Some(0));
        assert_eq!(set(&with(GOOD, "ratio = ", "ratio = 50"), "second").code, Some(0));
        let before = files(dir.path());
        // Made from version 1 as well, by somebody who has not seen version 2.
        assert_refused(&set(&with(GOOD, "ratio = ", "ratio = 60"), "third"), &["version", "2"]);
        assert_refused(&set(&with(GOOD, "ratio = ", "ratio = 60"), ""), &["why"]);
        assert_eq!(files(dir.path()), before);
    }

    #[test]
    fn what_is_no_document_at_all_is_refused() {
        let dir = scratch();
        assert_refused(
            &windfall(&["rules", "check", "missing.toml"]).within(dir.path()).end(),
            &["missing.toml"],
        );
        assert_refused(&windfall(&["rules", "check", "."]).within(dir.path()).end(), &["directory"]);
        assert_refused(&windfall(&["rules", "check", "-"]).stdin([0xFF, 0xFE, b'a']).end(), &["UTF-8"]);
        assert_refused(&windfall(&["rules", "check", "-"]).stdin(vec![b'#'; 3 << 20]).end(), &["bytes"]);
        let unknown = windfall(&["rules", "check", "-", "--brokers", "x,y"]).stdin(GOOD).end();
        assert_refused(&unknown, &["unknown broker", "`x`"]);
        assert_eq!(files(dir.path()), []);
    }
}

mod tokens {
    use super::*;

    /// A demo's key file, and a token with its user, out of the rain's record.
    fn token(data: &Path) -> (String, String) {
        finished(data, &["--calm", "--rewards", "400", "--users", "20"]);
        let journal = fs::read_to_string(data.join("rain/00.log")).unwrap();
        let token = journal.lines().find_map(|line| line.strip_prefix("T ")).expect("a sampled user's token");
        let mut words = token.split(' ');
        let (number, token) = (words.next().unwrap(), words.next().unwrap());
        let intent = journal.lines().find(|line| line.starts_with(&format!("I {number} "))).unwrap();
        (token.to_owned(), intent.split(' ').nth(2).unwrap().to_owned())
    }

    #[test]
    fn only_the_owners_own_token_opens() {
        let dir = scratch();
        let data = dir.path().join("data");
        let (token, user_id) = token(&data);
        let keys = data.join("keys.toml");
        let other = dir.path().join("other.toml");
        assert_eq!(windfall(&["keys", "new", "--file"]).arg(&other).end().code, Some(0));
        let before = files(dir.path());

        let open = |text: &str, keys: &Path| windfall(&["token", "open", text, "--file"]).arg(keys);
        let opened = open(&token, &keys).args(["--user-id", &user_id]).end();
        assert_eq!(opened.code, Some(0), "{opened}");
        assert_eq!(opened.json()["user_id"].to_string(), user_id);
        let piped = open("-", &keys).stdin(format!("{token}\n")).end();
        assert_eq!(piped.json(), opened.json());

        assert_refused(&open(&token, &keys).args(["--user-id", "7"]).end(), &["illegal token", "user"]);
        assert_refused(&open(&token, &other).end(), &["illegal token", "another ring"]);
        assert_refused(&open(&token, &keys).args(["--app-id", "rival"]).end(), &["illegal token", "tenant"]);
        assert_refused(&open("A", &keys).end(), &["illegal token"]);
        assert_refused(&open("", &keys).end(), &["illegal token", "short"]);
        assert_refused(&open("-", &keys).stdin(vec![b'A'; 10 << 20]).end(), &["illegal token", "1024"]);
        assert_refused(&open("-", &keys).stdin(vec![0xFF; 300]).end(), &[]);
        assert_refused(
            &open(&token, &dir.path().join("none.toml")).end(),
            &["none.toml", "windfall keys new"],
        );
        for at in [0, 1, 7, 40, token.len() / 2, token.len() - 2] {
            let mut flipped = token.clone().into_bytes();
            flipped[at] = if flipped[at] == b'A' { b'B' } else { b'A' };
            let flipped = String::from_utf8(flipped).unwrap();
            assert_refused(&open(&flipped, &keys).end(), &["illegal token"]);
        }
        assert_eq!(files(dir.path()), before, "asking changes nothing");
    }
}

mod keys {
    use super::*;

    #[test]
    fn a_key_lives_from_pending_to_destroyed_and_no_step_is_skipped() {
        let dir = scratch();
        let file = dir.path().join("keys.toml");
        let keys = |args: &[&str]| windfall(&["keys"]).args(args).arg("--file").arg(&file).end();
        let done = |args: &[&str]| {
            let ended = keys(args);
            assert_eq!(ended.code, Some(0), "{ended}");
        };
        let states = || {
            let list = keys(&["list", "--json"]).json();
            let states = list.as_array().unwrap().iter().map(|key| key["state"].as_str().unwrap().to_owned());
            states.collect::<Vec<_>>()
        };
        done(&["new"]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "its owner's alone");
        assert_eq!(states(), ["primary"]);
        done(&["add", "--algorithm", "ed25519"]);
        assert_eq!(states(), ["primary", "pending"]);

        let before = fs::read(&file).unwrap();
        assert_refused(&keys(&["new"]), &["exists", "never replaced"]);
        assert_refused(&keys(&["destroy", "1"]), &["key 1", "primary", "retire"]);
        assert_refused(&keys(&["retire", "2"]), &["key 2", "pending"]);
        assert_refused(&keys(&["promote", "99"]), &["no key 99"]);
        assert_refused(&keys(&["promote", "1"]), &["key 1", "primary"]);
        assert_refused(&keys(&["add", "--algorithm", "rsa"]), &["rsa", "ed25519"]);
        assert_eq!(fs::read(&file).unwrap(), before, "a refusal changes nothing");

        done(&["promote", "2"]);
        assert_eq!(states(), ["primary", "verify-only"]);
        done(&["promote", "2"]);
        assert_eq!(states(), ["verify-only", "primary"], "one mints at a time");
        assert_refused(&keys(&["retire", "1"]), &["key 1", "retired already"]);
        done(&["destroy", "1"]);
        assert_eq!(states(), ["destroyed", "primary"]);
        assert_refused(&keys(&["promote", "1"]), &["key 1", "destroyed"]);
        done(&["retire", "2"]);
        assert_eq!(states(), ["destroyed", "verify-only"]);
        done(&["add"]);
        let newest = keys(&["list", "--json"]).json()[2]["algorithm"].clone();
        assert_eq!(newest, "ed25519", "no primary key is there, and verifiers keep their copies");
        let listed = keys(&["list"]);
        for secret in fs::read_to_string(&file).unwrap().lines().filter(|line| line.contains("secret = ")) {
            let (_, secret) = secret.split_once('"').unwrap();
            assert!(!listed.stdout.contains(secret.trim_end_matches('"')), "secrets stay in the file");
        }
    }

    #[test]
    fn a_damaged_or_open_key_file_is_refused_and_kept() {
        let dir = scratch();
        let file = dir.path().join("keys.toml");
        let keys = |args: &[&str]| windfall(&["keys"]).args(args).arg("--file").arg(&file).end();
        assert_eq!(keys(&["new"]).code, Some(0));
        let sound = fs::read_to_string(&file).unwrap();
        let damages = [
            String::new(),
            sound[..sound.len() / 2].to_owned(),
            sound.replace("primary", "pending"),
            "x".repeat(99),
        ];
        for damage in damages {
            fs::write(&file, &damage).unwrap();
            for command in ["list", "add"] {
                assert_refused(&keys(&[command]), &["keys.toml", "damaged", "backup"]);
            }
            assert_refused(&keys(&["new"]), &["exists"]);
            assert_eq!(fs::read_to_string(&file).unwrap(), damage, "kept for whoever restores it");
        }
        fs::write(&file, &sound).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_refused(&keys(&["list"]), &["open to others", "chmod 600"]);
        fs::remove_file(&file).unwrap();
        assert_refused(&keys(&["list"]), &["no key file", "windfall keys new"]);
    }
}

mod data_directory {
    use super::*;

    #[test]
    fn one_that_is_in_use_is_left_to_its_user() {
        let dir = scratch();
        let data = dir.path().join("data");
        let demo = windfall(&["demo", "--json", "--data"]).arg(&data);
        let mut first = demo.clone().args(["--rewards", "3000", "--seconds-of-rain", "3"]).start();
        assert!(first.wait_for("broker a is back"), "{}", first.end());
        for second in [
            demo.clone(),
            demo.clone().arg("--resume"),
            windfall(&["reconcile", "--data"]).arg(&data),
            windfall(&["archive", "replay", "--id", "1", "--actor", "ann", "--data"]).arg(&data),
        ] {
            assert_refused(&second.end(), &["in use by another process"]);
        }
        let ended = first.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        assert_clean(&ended.json(), "undisturbed");
    }

    #[test]
    fn one_that_holds_an_earlier_demo_is_not_written_over() {
        let dir = scratch();
        let data = dir.path().join("data");
        finished(&data, &["--calm", "--rewards", "300"]);
        let before = files(&data);
        assert_refused(
            &windfall(&["demo", "--data"]).arg(&data).end(),
            &["earlier demo", "--resume", "reconcile"],
        );
        assert_eq!(files(&data), before);
    }

    #[test]
    fn one_that_cannot_be_written_is_named() {
        let dir = scratch();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let below = windfall(&["demo", "--data"]).arg(file.join("data")).end();
        assert_refused(&below, &["cannot create", "file/data"]);

        // Permissions do not bind root: run as somebody else then, with a binary that everybody may reach.
        let locked = dir.path().join("locked");
        fs::create_dir(&locked).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
        let binary = dir.path().join("windfall");
        fs::copy(plain(), &binary).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let as_anybody = |run: Run| if is_root { run.user(65_534) } else { run };
        for data in [locked.clone(), locked.join("data")] {
            let run = Run::new(&binary).args(["demo", "--rewards", "10", "--data"]).arg(&data);
            assert_refused(&as_anybody(run).end(), &["cannot", "locked", "Permission denied"]);
        }
        assert_eq!(files(&locked), []);
    }

    #[test]
    fn a_newer_a_damaged_and_a_foreign_one_are_refused() {
        let dir = scratch();
        let data = dir.path().join("data");
        finished(&data, &["--calm", "--rewards", "300"]);
        let manifest = data.join("demo.toml");
        let sound = fs::read_to_string(&manifest).unwrap();
        let cases: [(String, &[&str]); 4] = [
            (
                sound.replacen("format = 2", "format = 99", 1) + "new_key = 1\n",
                &["format 99", "version of windfall"],
            ),
            (sound.replacen("rewards = ", "rewards = -", 1), &["demo.toml", "damaged"]),
            (String::new(), &["demo.toml", "damaged"]),
            (sound.clone() + "colour = 3\n", &["demo.toml", "colour"]),
        ];
        for (text, words) in cases {
            fs::write(&manifest, text).unwrap();
            let before = files(&data);
            for args in [&["demo", "--resume", "--data"][..], &["reconcile", "--data"]] {
                assert_refused(&windfall(args).arg(&data).end(), words);
            }
            assert_eq!(files(&data), before);
        }
        fs::write(&manifest, &sound).unwrap();
        assert_eq!(reconciled(&data).code, Some(0));

        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("novel.txt"), "Chapter one").unwrap();
        for args in [&["demo", "--resume", "--data"][..], &["reconcile", "--data"]] {
            assert_refused(
                &windfall(args).arg(&foreign).end(),
                &["not the data directory of a demo", "foreign"],
            );
        }
        assert_eq!(files(&foreign).len(), 1);
    }
}

mod damage {
    use super::*;
    use std::path::PathBuf;
    use std::time::Duration;

    /// A demo that was killed while records were on their way: badges and coupons wait for their limits.
    fn killed(data: &Path) {
        let run =
            windfall(&["demo", "--rewards", "6000", "--users", "500", "--seconds-of-rain", "3", "--data"]);
        let mut run = run.arg(data).start();
        assert!(run.wait_for("to divert"), "{}", run.end());
        let age = run.age() + Duration::from_millis(100);
        assert!(run.kill_at(age).is_none());
    }

    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let (path, to) = (entry.path(), to.join(entry.file_name()));
            if path.is_dir() {
                copy(&path, &to);
            } else {
                fs::copy(&path, &to).unwrap();
            }
        }
    }

    /// The one file that a young broker writes its records to.
    fn journal(broker: &Path) -> PathBuf {
        let mut journals =
            files(broker).into_iter().map(|(path, _)| path).filter(|path| path.ends_with("0.jnl"));
        journals.next().expect("a journal")
    }

    /// Either it is refused by name, or its loss is reported; it never ends well with rewards missing, never
    /// hangs, never panics.
    #[test]
    fn of_a_brokers_log_is_never_a_silent_loss() {
        let dir = scratch();
        let sound = dir.path().join("sound");
        killed(&sound);
        let mut noticed = 0;
        for (broker, part) in [("a", 0.02), ("a", 0.5), ("a", 0.98), ("b", 0.5), ("b", 0.98)] {
            let data = dir.path().join(format!("{broker}-{part}"));
            copy(&sound, &data);
            let log = journal(&data.join("brokers").join(broker));
            let mut bytes = fs::read(&log).unwrap();
            // What was written, not what is preallocated.
            let written = bytes.iter().rposition(|byte| *byte != 0).unwrap();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let at = (written as f64 * part) as usize;
            for byte in &mut bytes[at..(at + 16).min(written)] {
                *byte ^= 0x5A;
            }
            fs::write(&log, bytes).unwrap();
            let ended = windfall(&["demo", "--resume", "--json", "--data"]).arg(&data).end();
            println!(
                "broker {broker} damaged at {part}: {:?} {}",
                ended.code,
                ended.stderr.lines().last().unwrap_or("")
            );
            match ended.code {
                Some(0) => assert_clean(&ended.json(), "harmless damage"),
                Some(1) => {
                    noticed += 1;
                    assert!(figure(&ended.json(), "total.lost") > 0, "{ended}");
                }
                _ => {
                    noticed += 1;
                    assert_refused(&ended, &[&format!("broker {broker}"), "damaged"]);
                }
            }
        }
        assert!(noticed > 0, "some of it must have hit a record");
    }

    fn unreadable_answer(journal: &mut [u8]) {
        let at = journal.windows(3).position(|window| window == b"\nA ").unwrap();
        journal[at + 1] = b'X';
    }

    #[test]
    fn of_ledger_keys_rules_or_record_is_named_by_resume_and_reconcile() {
        let dir = scratch();
        let sound = dir.path().join("sound");
        finished(&sound, &["--calm", "--rewards", "500"]);
        // So few may all have been sent by one of the threads.
        let has_answer = |journal: &String| {
            fs::read(sound.join(journal)).unwrap().windows(3).any(|window| window == b"\nA ")
        };
        let journal = (0..).map(|nth| format!("rain/{nth:02}.log")).find(has_answer).unwrap();
        let of_journal = [journal.as_str(), "line", "not a line of a journal"];
        type Damage = fn(&mut Vec<u8>);
        let cases: [(&str, Damage, &[&str], bool); 6] = [
            ("ledger.db", |bytes| bytes[..100].fill(0x5A), &["ledger", "damaged"], true),
            ("ledger.db", |bytes| bytes.truncate(bytes.len() / 2), &["ledger"], true),
            ("keys.toml", |bytes| bytes.truncate(bytes.len() / 2), &["keys.toml", "damaged"], true),
            (&journal, |bytes| unreadable_answer(bytes), &of_journal, true),
            ("rules/rules.toml", |bytes| bytes.truncate(bytes.len() / 2), &["rules"], false),
            (
                "badge.book",
                |bytes| bytes.splice(0..0, *b"rubbish\n").for_each(drop),
                &["downstream's book", "not a line of a book"],
                true,
            ),
        ];
        for (name, damage, words, in_reconcile) in cases {
            let data = dir.path().join(name.replace('/', "-"));
            fs::remove_dir_all(&data).ok();
            copy(&sound, &data);
            let mut bytes = fs::read(data.join(name)).unwrap();
            damage(&mut bytes);
            fs::write(data.join(name), &bytes).unwrap();
            println!("{name}");
            if in_reconcile {
                assert_refused(&reconciled(&data), words);
            }
            assert_refused(&windfall(&["demo", "--resume", "--data"]).arg(&data).end(), words);
            assert_eq!(fs::read(data.join(name)).unwrap(), bytes, "{name} is kept for whoever repairs it");
        }
    }
}

mod archive {
    use super::*;
    use serde_json::Value;

    #[test]
    fn what_a_short_budget_left_is_listed_and_replayed_once_it_is_raised() {
        let dir = scratch();
        let data = dir.path().join("data");
        finished(&data, &["--rewards", "5000", "--seconds-of-rain", "1"]);
        let before = reconciled(&data).json();
        let archived = figure(&before, "total.archived");
        assert!(archived > 0, "{before:#}");

        let list = |args: &[&str]| {
            windfall(&["archive", "list", "--json", "--data"]).arg(&data).args(args).end().json()
        };
        let replay = |args: &[&str]| windfall(&["archive", "replay", "--data"]).arg(&data).args(args).end();
        let entries = list(&["--limit", "10000"]);
        let entries = entries.as_array().unwrap();
        assert_eq!(entries.len() as u64, archived);
        for entry in entries {
            assert_eq!(entry["reason"], "budget_exhausted", "{entry:#}");
            assert_eq!(entry["event"]["type"], "coupon_film", "{entry:#}");
            assert_eq!(entry["replay"], Value::Null);
        }
        let text = windfall(&["archive", "list", "--limit", "1", "--data"]).arg(&data).end();
        assert!(text.stdout.contains("budget_exhausted") && text.stderr.contains("--after"), "{text}");
        assert_eq!(list(&["--reason", "no_such_reason"]), Value::Array(Vec::new()));

        assert_refused(&replay(&["--actor", "ann"]), &["--id", "--reason", "--trade-no"]);
        assert_refused(&replay(&["--id", "999999", "--actor", "ann"]), &["no entry 999999"]);
        assert_refused(&replay(&["--id", "1", "--actor", ""]), &["name"]);
        assert_eq!(reconciled(&data).json()["total"], before["total"]);

        let still = replay(&["--reason", "budget_exhausted", "--actor", "ann"]);
        assert!(
            still.stdout.contains("rejected: budget_exhausted"),
            "the budget is as short as before: {still}"
        );
        assert_eq!(reconciled(&data).json()["total"], before["total"]);

        raise_budget(&data);
        let outcomes = replay(&["--reason", "budget_exhausted", "--actor", "ann", "--json"]);
        assert_eq!(outcomes.code, Some(0), "{outcomes}");
        let outcomes = outcomes.json();
        assert_eq!(outcomes.as_array().unwrap().len() as u64, archived);
        assert!(outcomes.as_array().unwrap().iter().all(|one| one["outcome"] == "credited"), "{outcomes:#}");

        let after = reconciled(&data);
        assert_eq!(after.code, Some(0), "{after}");
        let after = after.json();
        assert_clean(&after, "after the replay");
        assert_eq!(figure(&after, "total.archived"), 0);
        assert_eq!(figure(&after, "total.credited"), figure(&before, "total.sent"));
        assert_eq!(list(&["--open"]), Value::Array(Vec::new()));
        assert_eq!(list(&["--limit", "1"])[0]["replay"]["actor"], "ann", "who did it is kept");

        let id = entries[0]["id"].to_string();
        let twice = replay(&["--id", &id, "--actor", "bob"]);
        assert!(twice.stdout.contains("already_credited"), "{twice}");
        assert_eq!(reconciled(&data).json()["total"], after["total"]);
    }

    fn raise_budget(data: &Path) {
        let file = data.join("rules/rules.toml");
        let rules = fs::read_to_string(&file).unwrap();
        let mut film = false;
        let changed: Vec<String> = rules
            .lines()
            .map(|line| {
                film = if line.starts_with('[') { false } else { film || line == "type = \"coupon_film\"" };
                if film && line.starts_with("total = ") {
                    "total = 1000000".to_owned()
                } else {
                    line.to_owned()
                }
            })
            .collect();
        let set =
            windfall(&["rules", "set", "-", "--who", "ann", "--why", "more films", "--file"]).arg(&file);
        let set = set.stdin(changed.join("\n") + "\n").end();
        assert_eq!(set.code, Some(0), "{set}");
    }
}

#[test]
fn arguments_out_of_range_are_refused_with_the_range() {
    let dir = scratch();
    let cases: [(&[&str], &[&str]); 7] = [
        (&["demo", "--rewards", "0"], &["--rewards", "1.."]),
        (&["demo", "--rewards", "many"], &["--rewards", "many"]),
        (&["demo", "--users", "-1"], &["-1"]),
        (&["demo", "--resume"], &["--data"]),
        (&["demo", "--speed", "9"], &["--speed"]),
        (&["reconcile"], &["--data"]),
        (&["dmeo"], &["dmeo", "demo"]),
    ];
    for (args, words) in cases {
        assert_refused(&windfall(args).within(dir.path()).end(), words);
    }
    assert_eq!(files(dir.path()), []);
    let help = windfall(&["demo", "--help"]).end();
    assert_eq!(help.code, Some(0), "{help}");
    assert!(help.stdout.contains("docs/demo.md"), "{help}");
}
