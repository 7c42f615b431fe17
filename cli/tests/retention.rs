//! `windfall ledger close`, `export`, `check-export` and `detach`, as an operator uses them when an activity is over.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use parquet::file::reader::SerializedFileReader;
use parquet::record::RowAccessor;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use windfall_ledger::{
    ArchiveEntry, Auditor, Ledger, LedgerOptions, LedgerReader, Order, OrderOutcome, Unbudgeted,
};
use windfall_proto::event::EventRef;

const USERS: i64 = 1_200;

fn windfall(data: &Path, args: &[&str]) -> Output {
    let mut own = Command::new(env!("CARGO_BIN_EXE_windfall"));
    own.arg("ledger").args(args).arg("--data").arg(data).output().unwrap()
}

fn check_export(folder: &Path) -> Output {
    let mut own = Command::new(env!("CARGO_BIN_EXE_windfall"));
    own.args(["ledger", "check-export", "--json"]).arg(folder).output().unwrap()
}

#[track_caller]
fn done(output: Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Refused, and nothing was changed.
#[track_caller]
fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(why), "{said}");
}

fn open(data: &Path) -> Ledger {
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    Ledger::open(data.join("ledger.db"), &options).unwrap()
}

fn order(trade_no: &str, user_id: i64) -> Order<'_> {
    let (activity, scene, bonus_type) = ("spring", "rain", "cash");
    Order { trade_no, user_id, activity, scene, bonus_type, amount: 7, time_ms: 1_700_000_000_000 }
}

fn names() -> Vec<String> {
    (1..=USERS).map(|user| format!("r/{user:05}")).collect()
}

/// Two activities, each with an order for every user and one event in the archive.
fn fill(data: &Path) {
    let (mut ledger, names) = (open(data), names());
    for activity in ["spring", "autumn"] {
        let orders: Vec<Order<'_>> =
            (1..).zip(&names).map(|(user, name)| Order { activity, ..order(name, user) }).collect();
        ledger.apply(&orders).unwrap();
        let mut payload = Vec::new();
        let event = EventRef { trade_no: "late", user_id: 1, activity, scene: "rain", ..EventRef::default() };
        EventRef { bonus_type: "cash", amount: 7, ..event }.encode([], &mut payload);
        let entry = ArchiveEntry {
            trade_no: Some("late"),
            payload: &payload,
            reason: "budget_exhausted".into(),
            detail: activity.into(),
            time_ms: 1_700_000_000_500,
        };
        ledger.transact(|tx| tx.archive(std::slice::from_ref(&entry))).unwrap();
    }
}

#[test]
fn an_activity_that_is_over_leaves_the_ledger_and_is_never_paid_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    fill(data);
    let to = data.join("export");
    let (to, config) =
        (to.to_str().unwrap(), ["--reason", "over", "--operator", "ann", "--watch-s", "0", "--json"]);

    let nowhere = data.join("nowhere");
    refused(&windfall(&nowhere, &[&["close", "spring"], &config[..]].concat()), "unable to open");
    assert!(!nowhere.join("ledger.db").exists(), "a mistyped place makes no ledger");
    refused(&windfall(data, &[&["close", "sprnig"], &config[..]].concat()), "Check the spelling");
    refused(&windfall(data, &["export", "spring", "--to", to]), "is not closed");
    assert_eq!(done(windfall(data, &[&["close", "spring"], &config[..]].concat()))["outcome"], "closed");
    assert_eq!(
        done(windfall(data, &[&["close", "spring"], &config[..]].concat()))["outcome"],
        "closed_before"
    );
    let list = done(windfall(data, &["closed", "--json"]));
    assert_eq!((&list[0]["activity"], &list[0]["operator"]), (&"spring".into(), &"ann".into()), "{list}");

    // What an export left that died is a person's to delete: another one may be at it.
    fs::create_dir(data.join("export.partial")).unwrap();
    refused(&windfall(data, &["export", "spring", "--to", to]), "is running, or one was interrupted");
    fs::remove_dir(data.join("export.partial")).unwrap();
    let exported = done(windfall(data, &["export", "spring", "--to", to, "--json"]));
    assert_eq!((&exported["orders"], &exported["archive"]), (&USERS.into(), &1.into()), "{exported}");
    assert_eq!(exported["transfers"], USERS);
    refused(&windfall(data, &["export", "spring", "--to", to]), "already exists");
    read_back(Path::new(to));
    let checked = done(check_export(Path::new(to)));
    assert_eq!((&checked["ok"], &checked["checksum"]), (&true.into(), &exported["checksum"]));

    // A damaged export, and one of another activity, take nothing out of the ledger.
    let damaged = data.join("damaged");
    copy(Path::new(to), &damaged);
    let orders = damaged.join("orders.parquet");
    let mut bytes = fs::read(&orders).unwrap();
    bytes[100] ^= 1;
    fs::write(&orders, bytes).unwrap();
    assert_eq!(check_export(&damaged).status.code(), Some(1));
    // Whoever sums it up anew as well is told by the orders in it.
    let rewritten = data.join("rewritten");
    copy(Path::new(to), &rewritten);
    let manifest = rewritten.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let digest = serde_json::from_str::<Value>(&text).unwrap()["orders_digest"].as_str().unwrap().to_owned();
    fs::write(&manifest, text.replace(&digest, &"0".repeat(32))).unwrap();
    let rewritten = rewritten.to_str().unwrap();
    refused(&windfall(data, &["detach", "spring", "--export", rewritten]), "is damaged");
    let damaged = damaged.to_str().unwrap();
    refused(&windfall(data, &["detach", "spring", "--export", damaged]), "is damaged");
    refused(&windfall(data, &["detach", "autumn", "--export", to]), "is an export of activity spring");
    assert_eq!(count(data, "spring"), USERS);

    // Without its orders nobody could compare what was paid any more, so the auditor and the sealer come first.
    refused(&windfall(data, &["detach", "spring", "--export", to]), "1000 transfers from before the close");
    refused(&windfall(data, &["detach", "spring", "--export", to]), "were not read by the auditor");
    audit(data);
    let unsealed = windfall(data, &["detach", "spring", "--export", to]);
    refused(&unsealed, "run windfall ledger seal");
    assert!(!String::from_utf8_lossy(&unsealed.stderr).contains("auditor"), "it has read them");
    assert_eq!(count(data, "spring"), USERS);
    assert_eq!(done(windfall(data, &["seal", "--json"]))["transfers"], 2 * USERS);
    let gone = done(windfall(data, &["detach", "spring", "--export", to, "--json"]));
    assert_eq!((&gone["orders"], &gone["export"]), (&USERS.into(), &exported["checksum"]));
    assert_eq!((count(data, "spring"), count(data, "autumn")), (0, USERS));
    // Run again, as after a lost answer.
    assert_eq!(done(windfall(data, &["detach", "spring", "--export", to, "--json"]))["orders"], 0);
    refused(&windfall(data, &["reopen", "spring"]), "detach has begun");
    refused(&windfall(data, &["export", "spring", "--to", damaged]), "left the ledger");

    let mut ledger = open(data);
    let names = names();
    let shut = ledger.apply(&[order(&names[0], 1), order("new", 2)]).unwrap();
    assert!(shut.iter().all(|outcome| matches!(outcome, OrderOutcome::Rejected(_))), "{shut:?}");
    assert_eq!(ledger.balance(1, "cash").unwrap(), 14);
    assert_eq!(ledger.flow(1, 9).unwrap().len(), 2);
    let found = ledger.reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
}

#[test]
fn what_was_granted_after_an_export_stays_in_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    fill(data);
    let (to, again) = (data.join("export"), data.join("again"));
    let (to, again) = (to.to_str().unwrap(), again.to_str().unwrap());
    let close = ["close", "spring", "--reason", "over", "--operator", "ann", "--watch-s", "0", "--json"];
    done(windfall(data, &close));
    done(windfall(data, &["export", "spring", "--to", to, "--json"]));
    assert_eq!(done(windfall(data, &["reopen", "spring", "--json"]))["outcome"], "open");
    assert_eq!(open(data).apply(&[order("more", 1)]).unwrap(), [OrderOutcome::Credited]);
    refused(&windfall(data, &["detach", "spring", "--export", to]), "is not closed");
    done(windfall(data, &close));
    refused(
        &windfall(data, &["detach", "spring", "--export", to]),
        "the export has 1200 orders, the ledger 1201",
    );
    assert_eq!(count(data, "spring"), USERS + 1);
    done(windfall(data, &["export", "spring", "--to", again, "--json"]));
    // Nobody audits or seals here, and somebody says so.
    let detach = ["detach", "spring", "--export", again, "--json", "--accept-unaudited"];
    refused(&windfall(data, &detach), "are in no seal");
    let gone = done(windfall(data, &[&detach[..], &["--accept-unsealed"]].concat()));
    assert_eq!(gone["orders"], USERS + 1);
    let list = done(windfall(data, &["closed", "--json"]));
    assert_eq!(list[0]["reason"], "over; detached with --accept-unaudited and --accept-unsealed");
    assert!(open(data).reconcile().unwrap().is_clean());
}

/// The auditor reads what there is.
fn audit(data: &Path) {
    let mut auditor = Auditor::open(data.join("ledger.db")).unwrap();
    while auditor.increment(1).unwrap().has_more {}
}

/// The orders of an activity that the ledger has.
fn count(data: &Path, activity: &str) -> i64 {
    let reader = LedgerReader::open(data.join("ledger.db")).unwrap();
    let own = reader.orders().unwrap().filter(|line| line.as_ref().unwrap().activity == activity);
    own.map(|_| 1).sum()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// What others read: each order once, with its transfer, and the event in the archive.
fn read_back(folder: &Path) {
    let rows = |file: &str| {
        let reader = SerializedFileReader::new(File::open(folder.join(file)).unwrap()).unwrap();
        reader.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    let (orders, transfers, archive) =
        (rows("orders.parquet"), rows("transfers.parquet"), rows("archive.parquet"));
    for (nth, (order, transfer)) in orders.iter().zip(&transfers).enumerate() {
        let user = i64::try_from(nth).unwrap() + 1;
        assert_eq!(order.get_string(1).unwrap(), &format!("r/{user:05}"));
        assert_eq!((order.get_long(2).unwrap(), order.get_long(6).unwrap()), (user, 7));
        assert_eq!(order.get_string(7).unwrap(), "credited");
        assert_eq!(order.get_timestamp_millis(10).unwrap(), 1_700_000_000_000);
        assert_eq!(order.get_long(12).unwrap(), transfer.get_long(0).unwrap());
        assert_eq!(order.get_string(0).unwrap(), transfer.get_string(8).unwrap());
        assert_eq!(
            (transfer.get_string(3).unwrap().as_str(), transfer.get_string(5).unwrap().as_str()),
            ("budget", "user")
        );
    }
    let event = EventRef::parse(archive[0].get_bytes(5).unwrap().data()).unwrap();
    assert_eq!((archive.len(), event.activity, event.amount), (1, "spring", 7));
}
