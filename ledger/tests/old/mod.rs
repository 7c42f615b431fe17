//! Ledgers as versions 1 to 5 left them, and what must have become of them. The tables are copies of what those versions
//! made.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use windfall_contract::accounts::{FlowKind, Withdrawal, WithdrawalOutcome};
use windfall_ledger::{
    Attempt, Finish, HeldFor, HoldOutcome, Ledger, LedgerReader, Order, OrderId, OrderOutcome, Settlement,
    StatementFrom, StatementLine, WithdrawalId, WithdrawalStatus, payer_key,
};

/// The databases that differ in how they write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each test uses one of them")]
pub enum Dialect {
    Sqlite,
    Postgres,
}

/// The tables of a version, with data.
pub fn ledger_of(version: i64, dialect: Dialect) -> String {
    let tables = match dialect {
        Dialect::Sqlite => [
            include_str!("sqlite_1.sql"),
            include_str!("sqlite_2.sql"),
            include_str!("sqlite_3.sql"),
            include_str!("sqlite_4.sql"),
            include_str!("sqlite_5.sql"),
        ],
        Dialect::Postgres => [
            include_str!("postgres_1.sql"),
            include_str!("postgres_2.sql"),
            include_str!("postgres_3.sql"),
            include_str!("postgres_4.sql"),
            include_str!("postgres_5.sql"),
        ],
    };
    // Versions 4 and 5 wrote the same anew, which their migrations do here.
    let data = [V1, V2, V3, "", ""];
    let mut sql = String::new();
    for at in 0..usize::try_from(version).unwrap() {
        sql.push_str(tables[at]);
        sql.push_str(data[at]);
    }
    match dialect {
        Dialect::Sqlite => sql
            .replace("OVERRIDING SYSTEM VALUE", "")
            .replace(", before)", ")")
            .replace(", 0) -- before", ")")
            .replace("BYTES", "X'68'")
            .replace("PAYLOAD", "X'69'")
            .replace("POSTGRES ", "-- "),
        Dialect::Postgres => sql
            .replace(" -- before", "")
            .replace("(1, 1, 2, 3, 0)", "(1, 1, 2, 3, false)")
            .replace("(2, 1, 2, 4, 1)", "(2, 1, 2, 4, true)")
            .replace("(3, 1, 5, 5, 1)", "(3, 1, 5, 5, true)")
            .replace("VALUES (1, 7);", "VALUES (true, 7);")
            .replace("BYTES", "'h'")
            .replace("PAYLOAD", "'i'")
            .replace("POSTGRES ", ""),
    }
}

/// User 7 got 10 cash and 20 coins; 5 cash are held for user 8; user 9 was refused. Cash has no budget, coins have one.
const V1: &str = "
INSERT INTO names (id, name) OVERRIDING SYSTEM VALUE VALUES (1, 'spring'), (2, 'rain'), (3, 'cash'), (4, 'coin');
INSERT INTO programs (id, activity, scene, asset, budgeted) OVERRIDING SYSTEM VALUE
VALUES (1, 1, 2, 3, 0), (2, 1, 2, 4, 1);
INSERT INTO budget_shards (program, shard, total, used, reserved)
VALUES (1, 0, 288230376151711744, 10, 5), (2, 0, 60, 20, 0), (2, 1, 40, 0, 0);
INSERT INTO orders (trade_no, user_id, program, amount, status, reason, transfer, created_ms, took_ms) VALUES
('a', 7, 1, 10, 1, 0, 1, 1000, 0), ('b', 7, 2, 20, 1, 0, 2, 1000, 0), ('r', 8, 1, 5, 0, 0, 0, 1000, NULL),
('x', 9, 1, 3, 2, 1, 0, 1000, 0);
INSERT INTO transfers (id, trade_no, user_id, program, amount, prev, time_ms)
VALUES (1, 'a', 7, 1, 10, 0, 1000), (2, 'b', 7, 2, 20, 0, 1000);
INSERT INTO accounts (kind, asset, holder, balance, last, before) VALUES (0, 3, 7, 10, 1, 0) -- before
, (0, 4, 7, 20, 2, 0) -- before
, (1, 3, 1, -10, 0, 0) -- before
, (1, 4, 1, -20, 0, 0) -- before
;
POSTGRES SELECT setval(pg_get_serial_sequence('names', 'id'), 100), setval(pg_get_serial_sequence('programs', 'id'), 100);
";

/// User 7 withdraws three times: one is held, one paid, one given back.
const V2: &str = "
INSERT INTO withdrawals (id, user_id, asset, amount, status, reason, payer, created_ms, decided_ms) VALUES
('held', 7, 3, 3, 0, '', 'bank', 2000, NULL), ('paid', 7, 3, 2, 1, '', '', 2000, 2000),
('back', 7, 3, 1, 2, 'no', 'bank', 2000, 3000);
INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) VALUES
(3, 'held', 0, 7, 3, 3, 1, 2000), (4, 'paid', 0, 7, 3, 2, 3, 2000), (5, 'back', 0, 7, 3, 1, 4, 2000),
(6, 'paid', 1, 7, 3, 2, 0, 2000), (7, 'back', 2, 7, 3, 1, 5, 3000);
UPDATE accounts SET balance = 5, last = 7 WHERE kind = 0 AND asset = 3 AND holder = 7;
INSERT INTO accounts (kind, asset, holder, balance, last, before) VALUES (-1, 3, 0, 3, 0, 0) -- before
, (-2, 3, 0, 2, 0, 0) -- before
;
";

/// Payers are named. The shop has paid user 7 coins, and user 6 twice, who has withdrawn a part of it; it had refused an
/// order of user 5, which was replayed, and one of user 4, which came again in a record that was replayed as a whole. What it
/// has paid is archived, too, for other reasons.
/// Order `p` is held for its event. One budget covers all of the activity.
const V3: &str = "
INSERT INTO names (id, name) OVERRIDING SYSTEM VALUE VALUES (5, '');
INSERT INTO programs (id, activity, scene, asset, budgeted) OVERRIDING SYSTEM VALUE VALUES (3, 1, 5, 5, 1);
UPDATE budget_shards SET used = 37, reserved = 7 WHERE program = 1;
UPDATE budget_shards SET used = 25 WHERE program = 2 AND shard = 0;
INSERT INTO budget_shards (program, shard, total, used, reserved) VALUES (3, 0, 500, 62, 7);
POSTGRES UPDATE budget_shards SET careful = true WHERE program <> 3;
UPDATE orders SET payer = 'bank' WHERE trade_no = 'r';
INSERT INTO orders (trade_no, user_id, program, amount, status, reason, transfer, created_ms, took_ms, payer) VALUES
('c', 7, 2, 5, 1, 0, 8, 4000, 9, 'shop'), ('d', 6, 1, 10, 1, 0, 9, 4000, 9, 'shop'),
('e', 6, 1, 10, 1, 0, 10, 4000, 9, 'shop'), ('f', 5, 1, 4, 1, 0, 11, 4000, 9, 'shop'),
('g', 4, 1, 3, 1, 0, 14, 4000, 9, 'shop'), ('p', 8, 1, 2, 0, 1, 0, 4000, NULL, '');
INSERT INTO transfers (id, trade_no, user_id, program, amount, prev, time_ms) VALUES
(8, 'c', 7, 2, 5, 2, 4000), (9, 'd', 6, 1, 10, 0, 4000), (10, 'e', 6, 1, 10, 9, 4000), (11, 'f', 5, 1, 4, 0, 4000),
(14, 'g', 4, 1, 3, 0, 4000);
INSERT INTO withdrawals (id, user_id, asset, amount, status, reason, payer, created_ms, decided_ms) VALUES
('early', 6, 3, 8, 1, '', '', 5000, 5000);
INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) VALUES
(12, 'early', 0, 6, 3, 8, 10, 5000), (13, 'early', 1, 6, 3, 8, 0, 5000);
INSERT INTO accounts (kind, asset, holder, balance, last, before) VALUES (0, 3, 6, 12, 12, 0) -- before
, (0, 3, 5, 4, 11, 0) -- before
, (0, 3, 4, 3, 14, 0) -- before
;
UPDATE accounts SET balance = 25, last = 8 WHERE kind = 0 AND asset = 4 AND holder = 7;
UPDATE accounts SET balance = 10 WHERE kind = -2;
UPDATE accounts SET balance = -37 WHERE kind = 1 AND asset = 3;
UPDATE accounts SET balance = -25 WHERE kind = 1 AND asset = 4;
INSERT INTO archive (hash, reason, trade_no, payload, detail, time_ms, replayed_ms, actor, outcome)
VALUES (BYTES, 'downstream_refused', 'f', BYTES, '', 4000, 4001, 'me', 'credited'),
(PAYLOAD, 'downstream_refused', 'g', BYTES, '', 4000, NULL, NULL, NULL),
(PAYLOAD, 'failed', NULL, BYTES, '', 4000, 4001, 'me', 'credited'),
(BYTES, 'conflict', 'c', BYTES, '', 4000, NULL, NULL, NULL),
(BYTES, 'max_failures', 'd', BYTES, '', 4000, 4001, 'me', 'credited'),
(BYTES, 'budget_exhausted', 'e', BYTES, '', 4000, 4001, 'me', 'credited');
INSERT INTO rules_version (one, version) VALUES (1, 7);
";

fn order<'a>(trade_no: &'a str, user_id: i64, bonus_type: &'static str, amount: i64) -> Order<'a> {
    Order { trade_no, user_id, activity: "spring", scene: "rain", bonus_type, amount, time_ms: 9_000 }
}

fn id(trade_no: &str) -> OrderId<'_> {
    OrderId { activity: "spring", trade_no }
}

/// The name of a withdrawal of user 7.
fn out(id: &str) -> WithdrawalId<'_> {
    WithdrawalId { user_id: 7, id }
}

fn clean(reader: &LedgerReader) {
    let found = reader.reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
}

fn settled(payer: &str, bonus_type: &str, amount: i64) -> Settlement {
    Settlement { payer: payer.into(), bonus_type: bonus_type.into(), amount }
}

/// The keys of payers that were asked before version 6: they are asked with the same ones again.
fn keeps_payers_keys(version: i64, reader: &LedgerReader) {
    let reserved = reader.reserved(None, 10_000, "", 9).unwrap();
    for one in &reserved {
        assert_eq!(payer_key(&one.order), one.order.trade_no, "it may have paid under its number alone");
    }
    let held = reader.held_withdrawals(HeldFor::Anybody, 10_000, "", 9).unwrap();
    let keys: Vec<&str> = held.iter().map(|one| one.payer_key.as_str()).collect();
    let is_ended = held.is_empty();
    assert!(is_ended || (version >= 2 && keys == ["withdrawal held"]), "{keys:?}");
}

/// A withdrawal that was paid before version 6 is known when its front end asks for it again: paying it twice costs money.
pub fn is_not_held_again(ledger: &mut Ledger) {
    let paid = Withdrawal { id: "paid".into(), user_id: 7, bonus_type: "cash".into(), amount: 2 };
    let again = ledger.transact(|tx| tx.hold(&[(&paid, "bank")], 9_000)).unwrap();
    assert_eq!(again, [HoldOutcome::Decided(WithdrawalOutcome::AlreadyPaid)]);
}

/// Everything that a ledger of this version held is still there, and goes on. Repeating it finds the same.
/// `keyed`: an order's number counts within its activity by now.
pub fn check(version: i64, keyed: bool, ledger: &mut Ledger, reader: impl Fn() -> LedgerReader) {
    clean(&reader());
    keeps_payers_keys(version, &reader());
    // Nothing is paid again.
    let known = [order("a", 7, "cash", 10), order("b", 7, "coin", 20)];
    assert_eq!(ledger.apply(&known).unwrap(), [OrderOutcome::AlreadyCredited; 2]);
    let other = [order("a", 7, "cash", 11), Order { scene: "cards", ..known[0] }];
    assert_eq!(ledger.apply(&other).unwrap(), [OrderOutcome::Conflict; 2]);
    let elsewhere = ledger.apply(&[Order { activity: "autumn", user_id: 70, ..known[0] }]).unwrap();
    match keyed {
        true => assert!(matches!(elsewhere[..], [OrderOutcome::Credited | OrderOutcome::AlreadyCredited])),
        false => assert_eq!(elsewhere, [OrderOutcome::Conflict]),
    }
    assert!(matches!(ledger.apply(&[order("x", 9, "cash", 3)]).unwrap()[..], [OrderOutcome::Rejected(_)]));
    assert_eq!(ledger.balance(7, "coin").unwrap(), 20);
    assert_eq!(ledger.balance(7, "cash").unwrap(), if version == 1 { 10 } else { 5 });
    let kinds = |user: i64| reader().flow(user, 99).unwrap().iter().map(|line| line.kind).collect::<Vec<_>>();
    match version {
        1 => assert_eq!(kinds(7), [FlowKind::Credit; 2]),
        2 => assert_eq!(kinds(7).len(), 6),
        _ => {
            assert_eq!(kinds(7).iter().filter(|kind| **kind == FlowKind::Settled).count(), 1);
            // What is left of the second payment leaves the balance by a transfer of its own.
            let left = [FlowKind::Withdrawal, FlowKind::Withdrawal, FlowKind::Credit, FlowKind::Settled];
            assert_eq!(kinds(6), left);
        }
    }
    if version >= 2 {
        let end = ledger.transact(|tx| tx.pay_out(&[out("held"), out("paid"), out("back")], 9_000)).unwrap();
        assert_eq!(end[1..], [Finish::Before, Finish::Otherwise]);
        assert!(matches!(end[0], Finish::Done | Finish::Before));
        assert_eq!(
            ledger.withdrawal(out("held")).unwrap().map(|one| one.status),
            Some(WithdrawalStatus::Paid)
        );
        is_not_held_again(ledger);
    }
    if version >= 3 {
        assert_eq!((ledger.balance(6, "cash").unwrap(), ledger.balance(5, "cash").unwrap()), (0, 4));
        assert_eq!(ledger.balance(4, "cash").unwrap(), 3, "the ledger may have paid it");
        let paid = ledger.apply(&[order("p", 8, "cash", 2)]).unwrap();
        assert!(matches!(paid[..], [OrderOutcome::Credited | OrderOutcome::AlreadyCredited]));
        assert_eq!(ledger.balance(8, "cash").unwrap(), 2);
    }
    // What was reserved is the payer's; version 1 and 2 did not note who that is.
    let held = [order("r", 8, "cash", 5)];
    let asked = ledger.transact(|tx| tx.reserve(&held, &["other"], Attempt::Normal)).unwrap();
    assert!(matches!(asked[..], [OrderOutcome::Reserved | OrderOutcome::AlreadyCredited]));
    let payer = ledger.order(id("r")).unwrap().unwrap().payer;
    assert_eq!(payer, if version >= 3 { "bank" } else { "other" });
    let done = ledger.transact(|tx| tx.post(&[id("r")], 9_000)).unwrap();
    assert!(matches!(done[..], [Finish::Done | Finish::Before]));
    let own = settled(&payer, "cash", 5);
    let expected = match version {
        3.. => vec![own, settled("shop", "cash", 12), settled("shop", "coin", 5)],
        _ => vec![own],
    };
    assert_eq!(reader().settlements().unwrap(), expected);
    clean(&reader());
}

/// A withdrawal that is held of money that its payer has paid already, and that would come back if it is refused.
pub const HELD_OF_SETTLED: &str = "
INSERT INTO withdrawals (id, user_id, asset, amount, status, reason, payer, created_ms, decided_ms) VALUES
('late', 6, 3, 12, 0, '', '', 6000, NULL);
INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) VALUES
(15, 'late', 0, 6, 3, 12, 12, 6000);
UPDATE accounts SET balance = 0, last = 15 WHERE kind = 0 AND asset = 3 AND holder = 6;
UPDATE accounts SET balance = 15 WHERE kind = -1;
";

/// Its older version has refused it.
pub const GIVEN_BACK: &str = "
UPDATE withdrawals SET status = 2, reason = 'no', decided_ms = 7000 WHERE id = 'late';
INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) VALUES
(16, 'late', 2, 6, 3, 12, 15, 7000);
UPDATE accounts SET balance = 12, last = 16 WHERE kind = 0 AND asset = 3 AND holder = 6;
UPDATE accounts SET balance = 3 WHERE kind = -1;
";

/// It goes on as a ledger of the newest version does.
pub fn goes_on(ledger: &mut Ledger, reader: impl Fn() -> LedgerReader) {
    assert_eq!(ledger.apply(&[order("new", 7, "coin", 1)]).unwrap(), [OrderOutcome::Credited]);
    let out = Withdrawal { id: "new".into(), user_id: 7, bonus_type: "coin".into(), amount: 21 };
    assert_eq!(ledger.transact(|tx| tx.hold(&[(&out, "")], 9_000)).unwrap(), [HoldOutcome::Held]);
    let budgets = ledger.budgets().unwrap();
    let coins = budgets.iter().find(|one| one.bonus_type == "coin").unwrap();
    assert_eq!(coins.total, Some(100));
    clean(&reader());
    statements_begin_at_0(&reader());
}

/// The lines of each account make its balance, those that were migrated, too.
fn statements_begin_at_0(reader: &LedgerReader) {
    for user_id in 1..=9 {
        let page = reader.statement(user_id, StatementFrom::Newest, 1_000).unwrap();
        let (lines, flow) = (&page.lines, reader.flow(user_id, 1_000).unwrap());
        assert!(lines.iter().map(|one| &one.line).eq(&flow), "{lines:?}, {flow:?}");
        let mut left: BTreeMap<String, i64> = page.balances.into_iter().collect();
        for StatementLine { line, balance } in lines {
            let after = left.get_mut(&line.bonus_type).unwrap();
            assert_eq!(after, balance, "{line:?}");
            *after -= match line.kind {
                FlowKind::Credit | FlowKind::Return => line.amount,
                FlowKind::Withdrawal | FlowKind::TakenBack => -line.amount,
                FlowKind::Settled | FlowKind::SettledTakenBack => 0,
            };
        }
        assert!(left.values().all(|balance| *balance == 0), "user {user_id}: {left:?}");
        let held = reader.withdrawals_of(user_id, None, None, 1_000).unwrap().withdrawals;
        assert!(held.iter().all(|one| one.withdrawal.user_id == user_id), "{held:?}");
        // A line of what was left of a payment names an order, of which there is no withdrawal.
        let outs: Vec<_> = lines
            .iter()
            .filter(|one| one.line.kind == FlowKind::Withdrawal)
            .filter_map(|one| reader.withdrawal(WithdrawalId { user_id, id: &one.line.trade_no }).unwrap())
            .collect();
        assert_eq!(held, outs, "user {user_id}");
    }
}
