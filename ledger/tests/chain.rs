//! The chain of a ledger in a file: each kind of tampering is found and named, and a sealer may die at any moment.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rusqlite::Connection;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use windfall_contract::accounts::Withdrawal;
use windfall_ledger::{
    Anchor, Attempt, FileAnchor, Guard, Head, Ledger, LedgerOptions, LedgerReader, Mark, Order, OrderId,
    SealError, Sealer, Tampering, Unbudgeted, Verified, WithdrawalId,
};

struct Sealed {
    folder: TempDir,
}

impl Sealed {
    fn path(&self) -> PathBuf {
        self.folder.path().join("ledger.db")
    }

    fn anchor(&self) -> FileAnchor {
        FileAnchor::new(self.folder.path().join("anchor"))
    }

    fn verify(&self) -> Verified {
        LedgerReader::open(self.path()).unwrap().verify(Some(&self.anchor())).unwrap()
    }

    fn sql(&self, sql: &str) {
        Connection::open(self.path()).unwrap().execute_batch(&format!("{DROP} {sql}")).unwrap();
    }

    fn seal_all(&self) -> Result<usize, SealError> {
        seal_all(&self.path(), &mut self.anchor())
    }
}

/// Whoever is the database's owner gets past its triggers.
const DROP: &str = "PRAGMA foreign_keys = OFF; DROP TRIGGER IF EXISTS transfers_no_update; DROP TRIGGER IF EXISTS transfers_no_delete;
    DROP TRIGGER IF EXISTS transfers_no_replace; DROP TRIGGER IF EXISTS seals_no_replace; DROP TRIGGER IF EXISTS seal_pages_no_replace;
    DROP TRIGGER IF EXISTS seals_no_update; DROP TRIGGER IF EXISTS seals_no_delete;
    DROP TRIGGER IF EXISTS seal_pages_no_update; DROP TRIGGER IF EXISTS seal_pages_no_delete;";

/// Seals of four transfers.
fn seal_all(path: &Path, anchor: &mut FileAnchor) -> Result<usize, SealError> {
    let mut sealer = Sealer::open(path).unwrap().with_rows_max(4);
    let mut seals = 0;
    while sealer.seal(anchor, 5_000)?.is_some() {
        seals += 1;
    }
    Ok(seals)
}

fn open(path: &Path) -> Ledger {
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    Ledger::open(path, &options).unwrap()
}

fn order(trade_no: &str, user_id: i64) -> Order<'_> {
    Order {
        trade_no,
        user_id,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 10,
        time_ms: 1_000,
    }
}

/// Ten credits, an order that its payer has paid, and a withdrawal; sealed while the writer has the file open.
fn sealed() -> Sealed {
    let sealed = Sealed { folder: tempfile::tempdir().unwrap() };
    let mut ledger = open(&sealed.path());
    let names: Vec<String> = (0..10).map(|nth| format!("order/{nth}")).collect();
    for name in &names {
        ledger.apply(&[order(name, 7)]).unwrap();
    }
    let found = sealed.verify();
    assert_eq!((found.transfers, found.unsealed, found.oldest_unsealed_ms), (0, 10, Some(1_000)));
    assert_eq!(sealed.seal_all().unwrap(), 3);
    let out = Withdrawal { id: "w".into(), user_id: 7, bonus_type: "cash".into(), amount: 3 };
    ledger
        .transact(|tx| {
            tx.reserve(&[order("held", 8)], &["bank"], Attempt::Normal)?;
            tx.post(&[OrderId { activity: "spring", trade_no: "held" }], 2_000)?;
            tx.hold(&[(&out, "")], 2_000)?;
            tx.pay_out(&[WithdrawalId { user_id: 7, id: "w" }], 2_000)
        })
        .unwrap();
    assert_eq!(sealed.seal_all().unwrap(), 1);
    drop(ledger);
    let found = sealed.verify();
    assert!(found.is_clean(), "{found:?}");
    assert_eq!((found.seals, found.transfers, found.anchored), (4, 14, 4));
    assert_eq!((found.unsealed, found.oldest_unsealed_ms), (0, None));
    sealed
}

#[test]
fn each_kind_of_tampering_is_found_and_named() {
    use Tampering::{Added, Anchor, Chain, Changed, Commitments, Missing, Names};
    let copy = "INSERT INTO transfers SELECT {id}, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, \
        time_ms, reference FROM transfers WHERE id = 3";
    let added = format!("DELETE FROM transfers WHERE id = 6; {}", copy.replace("{id}", "6"));
    let first = copy.replace("{id}", "-5");
    let cases: [(&str, &str, Tampering, Option<i64>); 18] = [
        ("an amount", "UPDATE transfers SET amount = 11 WHERE id = 3", Changed, Some(3)),
        ("a user", "UPDATE transfers SET credit_holder = 9 WHERE id = 3", Changed, Some(3)),
        ("an order number", "UPDATE transfers SET reference = 'x' WHERE id = 3", Changed, Some(3)),
        ("an account", "UPDATE transfers SET credit = -2 WHERE id = 12", Changed, Some(12)),
        ("a time", "UPDATE transfers SET time_ms = 0 WHERE id = 14", Changed, Some(14)),
        ("a row that is gone", "DELETE FROM transfers WHERE id = 5", Missing, Some(5)),
        ("the last row", "DELETE FROM transfers WHERE id = 14", Missing, Some(14)),
        ("a row that took another one's place", &added, Changed, Some(6)),
        ("a row in front of all", &first, Added, Some(-5)),
        ("a row that was moved", "UPDATE transfers SET id = -1 WHERE id = 2", Missing, Some(2)),
        (
            "a row that is said to be erased",
            "UPDATE transfers SET reference = '', credit_holder = 0 WHERE id = 1; UPDATE seal_pages SET guards = \
             CAST(X'01' || substr(guards, 2) AS BLOB) WHERE seal = 1",
            Changed,
            Some(1),
        ),
        (
            "commitments",
            "UPDATE seal_pages SET hashes = zeroblob(length(hashes)) WHERE seal = 2",
            Commitments,
            None,
        ),
        ("a payer's name", "UPDATE names SET name = 'friend' WHERE name = 'bank'", Names, None),
        ("a budget key's scene", "UPDATE programs SET scene = activity", Names, None),
        ("a page that is gone", "DELETE FROM seal_pages WHERE seal = 3", Commitments, None),
        ("a seal", "UPDATE seals SET rows = 3 WHERE id = 2", Chain, None),
        ("a seal that is gone", "DELETE FROM seals WHERE id = 2", Chain, None),
        ("the last seal and its rows", "DELETE FROM seals WHERE id = 4", Anchor, None),
    ];
    for (name, sql, tampering, transfer) in cases {
        let sealed = sealed();
        sealed.sql(sql);
        let found = sealed.verify();
        let named = found.findings.iter().any(|one| (one.tampering, one.transfer) == (tampering, transfer));
        assert!(named, "{name}: {found:?}");
    }
}

/// The salts lie beside the commitments: whoever may write both can make a row that its commitment fits, without its
/// user and its order number.
#[test]
fn a_transfer_that_was_erased_by_hand_is_found() {
    let sealed = sealed();
    let raw = Connection::open(sealed.path()).unwrap();
    let read = "SELECT guards FROM seal_pages WHERE seal = 1";
    let mut guards: Vec<u8> = raw.query_row(read, [], |row| row.get(0)).unwrap();
    let mut hash = Sha256::new_with_prefix(b"windfall transfer, personal");
    hash.update(&guards[1..33]);
    hash.update(0_i64.to_le_bytes());
    hash.update(7_i64.to_le_bytes());
    hash.update(b"order/0 spring");
    let inner: [u8; 32] = hash.finalize().into();
    guards[0] = 1;
    guards[1..33].copy_from_slice(&inner);
    let write = "UPDATE seal_pages SET guards = ?1 WHERE seal = 1";
    assert!(raw.execute(write, [&guards]).unwrap_err().to_string().contains("only ever appended"));
    raw.execute_batch(DROP).unwrap();
    raw.execute(write, [&guards]).unwrap();
    raw.execute_batch("UPDATE transfers SET reference = '', credit_holder = 0 WHERE id = 1").unwrap();
    let found = sealed.verify();
    let named: Vec<_> = found.findings.iter().map(|one| (one.tampering, one.transfer)).collect();
    assert_eq!((found.erased, named), (1, vec![(Tampering::Erased, Some(1))]), "{found:?}");
}

/// Who changes a row and seals everything anew makes a chain that fits, but not the one that was anchored.
#[test]
fn a_chain_that_was_rewritten_is_not_the_one_that_was_anchored() {
    let sealed = sealed();
    sealed.sql("UPDATE transfers SET amount = 11 WHERE id = 3; DELETE FROM seal_pages; DELETE FROM seals");
    let refused = sealed.seal_all();
    assert!(matches!(refused, Err(SealError::Gone { seal: 4 })), "{refused:?}");
    seal_all(&sealed.path(), &mut FileAnchor::new(sealed.folder.path().join("forged"))).unwrap();
    assert!(LedgerReader::open(sealed.path()).unwrap().verify(None).unwrap().is_clean());
    let found = sealed.verify();
    assert_eq!(
        found.findings.iter().filter(|one| one.tampering == Tampering::Anchor).count(),
        4,
        "{found:?}"
    );
    let refused = sealed.seal_all();
    assert!(matches!(refused, Err(SealError::Rewritten { seal: 4 })), "{refused:?}");
}

/// Takes the last lines from the anchor.
fn cut(sealed: &Sealed, lines: usize) {
    let path = sealed.folder.path().join("anchor");
    let text = std::fs::read_to_string(&path).unwrap();
    let left = text.lines().count() - lines;
    let kept: String = text.split_inclusive('\n').take(left).collect();
    std::fs::write(&path, kept).unwrap();
}

/// Its sealer died between the commit and the anchor.
#[test]
fn a_seal_that_was_not_anchored_is_anchored_next() {
    let sealed = sealed();
    let all = sealed.anchor().heads().unwrap();
    assert_eq!(all[0], Head::NONE, "an anchor that was begun is not empty");
    cut(&sealed, 1);
    let found = sealed.verify();
    assert!(found.is_clean(), "{found:?}");
    assert_eq!((found.anchored, found.unanchored), (3, Some(4)));
    assert_eq!(sealed.seal_all().unwrap(), 0);
    assert_eq!(sealed.anchor().heads().unwrap(), all);
    assert_eq!(sealed.verify().unanchored, None);
}

/// A mistyped path, another machine, a file that was deleted, or one whose end was cut off.
#[test]
fn seals_that_nothing_anchors_are_found_and_nothing_is_sealed_behind_them() {
    for (lines, anchored) in [(2, 2), (4, 0), (5, 0)] {
        let sealed = sealed();
        cut(&sealed, lines);
        let found = sealed.verify();
        assert!(found.findings.iter().any(|one| one.tampering == Tampering::Anchor), "{lines}: {found:?}");
        let refused = sealed.seal_all();
        let is_named = matches!(
            refused,
            Err(SealError::Unanchored { seals: 4, anchored: found }) if found == anchored
        );
        assert!(is_named, "{lines}: {refused:?}");
    }
    let sealed = sealed();
    std::fs::remove_file(sealed.folder.path().join("anchor")).unwrap();
    assert!(!sealed.verify().is_clean());
    let mut sealer = Sealer::open(sealed.path()).unwrap().with_new_anchor();
    assert_eq!(sealer.seal(&mut sealed.anchor(), 5_000).unwrap(), None);
    assert!(matches!(sealed.anchor().heads().unwrap()[..], [Head { seal: 4, .. }]));
    assert!(sealed.verify().is_clean());
}

/// The database went back to an earlier state, as after a fail-over to a standby that was behind, and goes on from there.
#[test]
fn lost_seals_are_given_up_by_name_alone() {
    let sealed = sealed();
    let end = sealed.verify().seals;
    sealed.sql("DELETE FROM seal_pages WHERE seal > 2; DELETE FROM seals WHERE id > 2;");
    open(&sealed.path()).apply(&[order("later", 7)]).unwrap();
    let seal = |lost: Option<i64>| {
        let sealer = Sealer::open(sealed.path()).unwrap().with_rows_max(4);
        let mut sealer = match lost {
            Some(lost) => sealer.with_accepted_loss(lost),
            None => sealer,
        };
        sealer.seal(&mut sealed.anchor(), 5_000)
    };
    let last = i64::try_from(end).unwrap();
    for lost in [None, Some(last - 1), Some(last + 1)] {
        assert!(matches!(seal(lost), Err(SealError::Gone { seal }) if seal == last), "{lost:?}");
    }
    assert_eq!(seal(Some(last)).unwrap().map(|one| one.id), Some(3));
    sealed.seal_all().unwrap();
    let found = sealed.verify();
    assert!(found.is_clean(), "{found:?}");
    assert_eq!((found.losses, found.unsealed), (1, 0));
    // It is accepted once: the same again is an error.
    sealed.sql("DELETE FROM seal_pages WHERE seal > 2; DELETE FROM seals WHERE id > 2;");
    assert!(matches!(seal(None), Err(SealError::Gone { .. })));
    // A chain that was rewritten is no loss.
    let sealed = self::sealed();
    sealed.sql("UPDATE seals SET hash = previous WHERE id = 2; DELETE FROM seal_pages WHERE seal > 2; DELETE FROM seals WHERE id > 2;");
    let mut sealer = Sealer::open(sealed.path()).unwrap().with_accepted_loss(last);
    assert!(matches!(sealer.seal(&mut sealed.anchor(), 5_000), Err(SealError::Rewritten { seal: 2 })));
}

/// An anchor that was begun behind seals that the ledger had says nothing of its beginning.
#[test]
fn a_chain_that_was_lost_whole_begins_again() {
    let sealed = sealed();
    std::fs::remove_file(sealed.folder.path().join("anchor")).unwrap();
    let mut sealer = Sealer::open(sealed.path()).unwrap().with_new_anchor();
    assert_eq!(sealer.seal(&mut sealed.anchor(), 5_000).unwrap(), None);
    sealed.sql("DELETE FROM seal_pages; DELETE FROM seals;");
    let mut sealer = Sealer::open(sealed.path()).unwrap();
    assert!(matches!(sealer.seal(&mut sealed.anchor(), 5_000), Err(SealError::Gone { seal: 4 })));
    let mut sealer = Sealer::open(sealed.path()).unwrap().with_accepted_loss(4);
    assert_eq!(sealer.seal(&mut sealed.anchor(), 5_000).unwrap().map(|one| one.id), Some(1));
    sealed.seal_all().unwrap();
    let found = sealed.verify();
    assert!(found.is_clean(), "{found:?}");
    assert_eq!((found.losses, found.transfers, found.unsealed), (1, 14, 0));
}

/// Set for the child alone: its data directory.
const CHILD: &str = "WINDFALL_TEST_SEAL_DIR";

/// Does nothing unless the test below started it as a child.
#[test]
fn child_that_gets_killed() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let folder = PathBuf::from(folder);
    let mut sealer = Sealer::open(folder.join("ledger.db")).unwrap().with_rows_max(3);
    let mut anchor = FileAnchor::new(folder.join("anchor"));
    // It never comes to an end by itself: it is alive when it is killed.
    loop {
        sealer.seal(&mut anchor, 5_000).unwrap();
    }
}

#[test]
fn a_sealer_that_is_killed_leaves_a_chain_that_goes_on() {
    let sealed = Sealed { folder: tempfile::tempdir().unwrap() };
    let mut ledger = open(&sealed.path());
    let names: Vec<String> = (0..3_000).map(|nth| format!("order/{nth:04}")).collect();
    let batch: Vec<_> = names.iter().map(|name| order(name, 7)).collect();
    ledger.apply(&batch).unwrap();
    let mut sealed_before = 0;
    for more in [2, 7, 30, 90, 200] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_gets_killed", "--nocapture"])
            .env(CHILD, sealed.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // It is killed in the middle of its work, whenever that is on this machine. The first head is the beginning.
        let anchored = || sealed.anchor().heads().unwrap().len();
        let (goal, began) = (anchored() + more, Instant::now());
        while anchored() < goal {
            assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
            assert!(began.elapsed() < Duration::from_secs(120), "it does not seal");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        let found = sealed.verify();
        assert!(found.is_clean(), "{found:?}");
        assert!(found.seals > sealed_before, "{found:?}");
        sealed_before = found.seals;
        // On a machine that was busy elsewhere too little may be left for the next one.
        if sealed_before > 700 {
            break;
        }
    }
    sealed.seal_all().unwrap();
    let found = sealed.verify();
    assert!(found.is_clean(), "{found:?}");
    assert_eq!(found.transfers, 3_000, "each transfer is sealed once");
}

/// A copy from before the newest mark: its seals would stand in the anchor when the right file is back.
#[test]
fn nothing_is_sealed_of_a_file_that_does_not_hold_its_mark() {
    let sealed = sealed();
    let seal = |mark: Option<Mark>| {
        let guard = Arc::new(Guard::new(vec![Some(mark)]));
        let mut sealer = Sealer::open(sealed.path()).unwrap().guarded(guard).unwrap();
        sealer.seal(&mut sealed.anchor(), 6_000).map(|seal| seal.is_some())
    };
    assert!(!seal(None).unwrap(), "its writer keeps no mark, and nothing is left");
    let guard = Arc::new(Guard::new(vec![Some(None)]));
    let mut ledger = open(&sealed.path()).guarded(guard).unwrap();
    ledger.apply(&[order("marked", 7)]).unwrap();
    let mark = ledger.beat(true).unwrap().unwrap().mark;
    for newer in [
        Mark { beat: mark.beat + 1, ..mark.clone() },
        Mark { lineage: "another".into(), ..mark.clone() },
        Mark { generation: 2, ..mark.clone() },
    ] {
        let refused = seal(Some(newer));
        assert!(matches!(refused, Err(SealError::WentBack { .. })), "{refused:?}");
    }
    assert!(seal(Some(mark)).unwrap());
    // A place that was not read may have any mark.
    let blind = Arc::new(Guard::new(vec![None]));
    let mut blind = Sealer::open(sealed.path()).unwrap().guarded(blind).unwrap();
    let refused = blind.seal(&mut sealed.anchor(), 6_000);
    assert!(matches!(refused, Err(SealError::WentBack { .. })), "{refused:?}");
    assert!(sealed.verify().is_clean());
}
