//! A user's statement and withdrawals: pages that hold each line once, with the balances that these lines make.

use super::concurrent::all_at_once;
use super::{Outcome, Place, clean, id, names, open, order, out};
use std::collections::BTreeMap;
use std::error::Error;
use windfall_contract::accounts::{FlowKind, FlowLine, FlowPage, Reason, Withdrawal};
use windfall_ledger::{
    Attempt, BudgetSet, Ledger, LedgerError, LedgerReader, Order, STATEMENT_SKIP_MAX, StatementCursor,
    StatementFrom, StatementLine, WithdrawalStatus,
};

const USER: i64 = 7;

fn take(id: &str, bonus_type: &str, amount: i64) -> Withdrawal {
    Withdrawal { id: id.to_owned(), user_id: USER, bonus_type: bonus_type.to_owned(), amount }
}

/// A statement of two bonus types with lines of each kind that needs one operator at most, one line a moment from 1,000 on.
fn busy(place: &dyn Place) -> Result<Ledger, Box<dyn Error>> {
    let mut ledger = open(place)?;
    let coin =
        |trade_no, amount, time_ms| Order { bonus_type: "coin", time_ms, ..order(trade_no, USER, amount) };
    ledger.apply(&[order("a", USER, 10), order("other", 8, 99)])?;
    ledger.apply(&[coin("b", 5, 1_001)])?;
    let paid = order("c", USER, 70);
    ledger.transact(|tx| {
        tx.reserve(&[paid], &["bank"], Attempt::Normal)?;
        tx.post(&[id("c")], 1_002)
    })?;
    let holds = [
        (take("x", "cash", 4), 1_003),
        (take("y", "coin", 2), 1_004),
        (take("z", "cash", 1), 1_005),
        (take("v", "cash", 2), 1_006),
    ];
    for (asked, time_ms) in &holds {
        ledger.transact(|tx| tx.hold(&[(asked, "bank")], *time_ms))?;
    }
    ledger.transact(|tx| {
        tx.pay_out(&[out(USER, "x")], 1_007)?;
        tx.give_back(&[(out(USER, "y"), "closed account")], 1_007)
    })?;
    ledger.apply(&[Order { time_ms: 1_008, ..order("d", USER, 3) }])?;
    Ok(ledger)
}

/// What a line changes.
fn change(line: &FlowLine) -> i64 {
    match line.kind {
        FlowKind::Credit | FlowKind::Return => line.amount,
        FlowKind::Withdrawal | FlowKind::TakenBack => -line.amount,
        FlowKind::Settled | FlowKind::SettledTakenBack => 0,
    }
}

/// Each line of the flow with the balance that the lines up to it make.
fn expected(flow: Vec<FlowLine>) -> Vec<StatementLine> {
    let mut balances: BTreeMap<String, i64> = BTreeMap::new();
    let counted = |line: FlowLine| {
        let balance = balances.entry(line.bonus_type.clone()).or_default();
        *balance += change(&line);
        StatementLine { balance: *balance, line }
    };
    let mut lines: Vec<_> = flow.into_iter().rev().map(counted).collect();
    lines.reverse();
    lines
}

/// All pages of this size.
fn pages(reader: &LedgerReader, user_id: i64, limit: u32) -> Result<Vec<StatementLine>, LedgerError> {
    let mut page = reader.statement(user_id, StatementFrom::Newest, limit)?;
    let mut lines = page.lines;
    while let Some(cursor) = page.next {
        let cursor = cursor.to_string().parse()?;
        page = reader.statement(user_id, StatementFrom::After(&cursor), limit)?;
        assert!(!page.lines.is_empty(), "a cursor leads to a line");
        lines.extend(page.lines);
    }
    Ok(lines)
}

pub(super) fn balances_of_lines(place: &dyn Place) -> Outcome {
    let ledger = busy(place)?;
    let reader = place.reader()?;
    let all = expected(reader.flow(USER, 100)?);
    assert_eq!(all.len(), 9);
    for limit in [1, 2, 3, 4, 9, 1_000] {
        assert_eq!(pages(&reader, USER, limit)?, all, "by {limit}");
    }
    assert_eq!(reader.statement(USER, StatementFrom::Newest, 0)?.lines, all[..1], "0 is 1");
    let whole = reader.statement(USER, StatementFrom::Newest, 9)?;
    assert_eq!((&whole.balances, &whole.next), (&reader.balances(USER)?, &None));
    assert_eq!(whole.balances, [("cash".to_owned(), 6), ("coin".to_owned(), 5)]);
    let nobody = reader.statement(9, StatementFrom::Newest, 9)?;
    assert_eq!((nobody.balances.len(), nobody.lines.len(), nobody.next), (0, 0, None));
    drop(ledger);
    clean(place)
}

/// What a wallet shows of a user's movements is what the statement has, page by page, also behind a page that has no line.
pub(super) fn flow_pages(place: &dyn Place) -> Outcome {
    let mut ledger = busy(place)?;
    let reader = ledger.reader()?;
    let all = reader.flow(USER, 100)?;
    for limit in [1, 2, 4, 9, 1_000] {
        let (mut lines, mut page) = (Vec::new(), reader.flow_page(USER, None, 0)?);
        assert_eq!(page.lines, []);
        while !page.next.is_empty() {
            let cursor: StatementCursor = page.next.parse()?;
            page = reader.flow_page(USER, Some(&cursor), limit)?;
            assert!(page.lines.len() <= limit);
            lines.append(&mut page.lines);
        }
        assert_eq!(lines, all, "by {limit}");
    }
    let first = reader.flow_page(USER, None, 2)?;
    let cursor: StatementCursor = first.next.parse()?;
    ledger.apply(&[order("e", USER, 1)])?;
    let behind = reader.flow_page(USER, Some(&cursor), 100)?;
    assert_eq!([first.lines, behind.lines].concat(), all, "what comes later shifts nothing");
    let nothing = FlowPage { lines: vec![], next: String::new() };
    assert_eq!(reader.flow_page(9, None, 9)?, nothing);
    let refused = reader.flow_page(8, Some(&cursor), 9);
    assert!(matches!(refused, Err(LedgerError::Invalid(_))), "{refused:?}");
    clean(place)
}

/// What comes later, on a bonus type that was there and on a new one, is no line of the pages behind a cursor.
pub(super) fn stable_cursors(place: &dyn Place) -> Outcome {
    let mut ledger = busy(place)?;
    let reader = ledger.reader()?;
    let all = expected(reader.flow(USER, 100)?);
    let page = reader.statement(USER, StatementFrom::Newest, 2)?;
    let cursor = page.next.ok_or("there are more lines")?;
    ledger.apply(&[
        order("e", USER, 1),
        Order { bonus_type: "coin", ..order("f", USER, 1) },
        Order { bonus_type: "badge", ..order("g", USER, 1) },
    ])?;
    let behind = reader.statement(USER, StatementFrom::After(&cursor), 100)?;
    assert_eq!(behind.lines, all[2..]);
    let now: Vec<i64> = reader.balances(USER)?.into_iter().map(|(_, balance)| balance).collect();
    assert_eq!(now, [1, 7, 6], "badge, cash and coin");
    let then: BTreeMap<String, i64> = behind.balances.into_iter().collect();
    let cash = all[2..].iter().find(|one| one.line.bonus_type == "cash").map(|one| one.balance);
    assert_eq!((then.len(), then.get("cash").copied()), (2, cash));
    // A cursor is of one user, and of numbers that are in the user's accounts.
    ledger.apply(&[Order { bonus_type: "coin", ..order("h", 8, 1) }])?;
    let text = cursor.to_string();
    let (_, places) = text.split_once('/').ok_or("no places")?;
    let first = places.split(':').next().ok_or("no bonus type")?;
    for wrong in [
        format!("8/{places}"),
        format!("{USER}/987654:1:0"),
        format!("{USER}/{first}:{}:0", i64::MAX),
        format!("{USER}/{first}:{}:0", transfer_of(&reader, 8)?),
    ] {
        let cursor = wrong.parse()?;
        let refused = reader.statement(USER, StatementFrom::After(&cursor), 9);
        assert!(matches!(refused, Err(LedgerError::Invalid(_))), "{wrong}: {refused:?}");
        let refused = reader.withdrawals_of(USER, None, Some(&cursor), 9);
        assert!(matches!(refused, Err(LedgerError::Invalid(_))), "{wrong}: {refused:?}");
    }
    clean(place)
}

/// A caller may put any transfer's number into a cursor. It leads to lines of the user alone: not to budgets, to what is held,
/// to what has left for good, or to what a payer has paid to somebody else, though none of these names another user.
pub(super) fn invented_cursors(place: &dyn Place) -> Outcome {
    let mut ledger = busy(place)?;
    let (activity, scene) = ("spring", "rain");
    ledger.set_budgets(&[BudgetSet { activity, scene, bonus_type: "cash", total: 1_000, shards: 1 }])?;
    let others = [order("k", 8, 20), order("l", 8, 30), order("m", USER, 40)];
    ledger.transact(|tx| {
        tx.reserve(&others, &["bank"; 3], Attempt::Normal)?;
        tx.post(&[id("k")], 1_009)?;
        tx.release(&[(id("l"), Reason::DownstreamRefused)], 1_010)
    })?;
    let reader = ledger.reader()?;
    let own = expected(reader.flow(USER, 100)?);
    let cursor = reader.statement(USER, StatementFrom::Newest, 1)?.next.ok_or("there are more lines")?;
    let text = cursor.to_string();
    let assets: Vec<&str> = text.split('/').skip(1).filter_map(|place| place.split(':').next()).collect();
    assert_eq!(assets.len(), 2, "cash and coin: {text}");
    let numbers = own.iter().map(|one| one.line.transfer);
    let most = numbers.clone().max().ok_or("no line")?;
    let least = numbers.min().ok_or("no line")?;
    let mut found = 0;
    for transfer in (least - 50).max(1)..most + 50 {
        let line = own.iter().find(|one| one.line.transfer == transfer);
        let mut is_found = false;
        for asset in &assets {
            let cursor = format!("{USER}/{asset}:{transfer}:0").parse()?;
            match reader.statement(USER, StatementFrom::After(&cursor), 1) {
                Ok(page) => {
                    let shown = page.lines.first().map(|one| &one.line);
                    assert_eq!(shown, line.map(|one| &one.line), "{cursor}");
                    is_found = true;
                }
                Err(LedgerError::Invalid(_)) => {}
                Err(other) => return Err(other.into()),
            }
            let withdrawals = reader.withdrawals_of(USER, None, Some(&cursor), 9);
            assert!(withdrawals.is_ok() || matches!(withdrawals, Err(LedgerError::Invalid(_))));
        }
        assert_eq!(is_found, line.is_some(), "transfer {transfer}");
        found += usize::from(is_found);
    }
    assert_eq!(found, own.len());
    clean(place)
}

fn transfer_of(reader: &LedgerReader, user_id: i64) -> Result<i64, Box<dyn Error>> {
    Ok(reader.flow(user_id, 1)?.first().ok_or("no line")?.transfer)
}

pub(super) fn back_then(place: &dyn Place) -> Outcome {
    drop(busy(place)?);
    let reader = place.reader()?;
    let all = expected(reader.flow(USER, 100)?);
    let times: Vec<i64> = all.iter().map(|one| one.line.time_ms).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older), "{times:?}");
    for time_ms in 999..1_010 {
        let page = reader.statement(USER, StatementFrom::At(time_ms), 100)?;
        let rest: Vec<_> = all.iter().filter(|one| one.line.time_ms <= time_ms).cloned().collect();
        let mut balances: BTreeMap<String, i64> = BTreeMap::new();
        for one in rest.iter().rev() {
            balances.insert(one.line.bonus_type.clone(), one.balance);
        }
        assert_eq!(page.lines, rest, "at {time_ms}");
        assert_eq!(page.balances, balances.into_iter().collect::<Vec<_>>(), "at {time_ms}");
    }
    // Page by page from there.
    let page = reader.statement(USER, StatementFrom::At(1_005), 1)?;
    let cursor = page.next.ok_or("there are more lines")?;
    let next = reader.statement(USER, StatementFrom::After(&cursor), 100)?;
    assert_eq!([page.lines, next.lines].concat(), all[all.len() - 6..]);
    clean(place)
}

pub(super) fn withdrawals(place: &dyn Place) -> Outcome {
    let mut ledger = busy(place)?;
    let other = Withdrawal { user_id: 8, ..take("x", "cash", 1) };
    ledger.transact(|tx| tx.hold(&[(&other, "")], 2_000))?;
    let reader = place.reader()?;
    let cases: [(Option<WithdrawalStatus>, &[&str]); 4] = [
        (None, &["v", "z", "y", "x"]),
        (Some(WithdrawalStatus::Held), &["v", "z"]),
        (Some(WithdrawalStatus::Paid), &["x"]),
        (Some(WithdrawalStatus::Refused), &["y"]),
    ];
    for (status, ids) in cases {
        for limit in [1, 2, 1_000] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = reader.withdrawals_of(USER, status, after.as_ref(), limit)?;
                assert!(page.withdrawals.len() <= usize::try_from(limit)?);
                found.extend(page.withdrawals);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            let listed: Vec<&str> = found.iter().map(|one| one.withdrawal.id.as_str()).collect();
            assert_eq!(listed, ids, "{status:?} by {limit}");
            for one in found {
                assert_eq!(reader.withdrawal(out(USER, &one.withdrawal.id))?, Some(one));
            }
        }
    }
    assert_eq!(reader.withdrawals_of(9, None, None, 9)?.withdrawals, []);
    clean(place)
}

/// The numbers of an account that several write at once do not grow along its chain.
pub(super) fn at_once(place: &dyn Place) -> Outcome {
    let orders = names(400);
    all_at_once(place, |writer, ledger| {
        for (nth, name) in orders.iter().enumerate().skip(writer).step_by(4) {
            let bonus_type = if nth % 3 == 0 { "coin" } else { "cash" };
            ledger.apply(&[Order { bonus_type, ..order(name, USER, 2) }])?;
            let (id, asked) = (format!("out/{nth}"), nth % 5 == 0);
            if asked {
                ledger.transact(|tx| tx.hold(&[(&take(&id, bonus_type, 1), "")], 2_000))?;
            }
        }
        Ok(())
    })?;
    let mut ledger = open(place)?;
    let rest: Vec<Order<'_>> = orders.iter().map(|name| order(name, USER, 2)).collect();
    ledger.apply(&rest)?;
    let reader = place.reader()?;
    let all = expected(reader.flow(USER, 10_000)?);
    let whole = reader.statement(USER, StatementFrom::Newest, 1_000)?;
    assert_eq!((whole.lines.as_slice(), whole.balances), (all.as_slice(), reader.balances(USER)?));
    for limit in [7, 100] {
        assert_eq!(pages(&reader, USER, limit)?, all);
    }
    let held = all.iter().filter(|one| one.line.kind == FlowKind::Withdrawal).count();
    assert_eq!(reader.withdrawals_of(USER, None, None, 1_000)?.withdrawals.len(), held);
    clean(place)
}

/// Numbers do not tell which of two accounts was moved last: writers may draw theirs in blocks.
pub(super) fn by_time(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[Order { time_ms: 2_000, ..order("later", USER, 1) }])?;
    ledger.apply(&[Order { time_ms: 1_000, bonus_type: "coin", ..order("sooner", USER, 1) }])?;
    let reader = ledger.reader()?;
    let flow = reader.flow(USER, 9)?;
    let listed: Vec<&str> = flow.iter().map(|line| line.trade_no.as_str()).collect();
    assert_eq!(listed, ["later", "sooner"]);
    assert_eq!(reader.flow(USER, 1)?, flow[..1]);
    for limit in [1, 9] {
        assert_eq!(pages(&reader, USER, limit)?, expected(flow.clone()));
    }
    clean(place)
}

/// A page of one status ends early where it passes many withdrawals of another one.
pub(super) fn few_look_ups(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", USER, 150)])?;
    let asked: Vec<Withdrawal> = (0..150).map(|nth| take(&format!("w/{nth}"), "cash", 1)).collect();
    let batch: Vec<_> = asked.iter().map(|one| (one, "bank")).collect();
    ledger.transact(|tx| tx.hold(&batch, 2_000))?;
    let reader = ledger.reader()?;
    let page = reader.withdrawals_of(USER, Some(WithdrawalStatus::Paid), None, 1)?;
    assert_eq!(page.withdrawals, []);
    let cursor = page.next.ok_or("there are more lines")?;
    let page = reader.withdrawals_of(USER, Some(WithdrawalStatus::Paid), Some(&cursor), 1)?;
    assert_eq!((page.withdrawals, page.next), (vec![], None));
    Ok(())
}

/// A call passes over so many lines and no more; pages lead further.
pub(super) fn bounded(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[Order { time_ms: 1, ..order("first", USER, 1) }])?;
    ledger.transact(|tx| tx.hold(&[(&take("w", "cash", 1), "")], 1))?;
    let orders = names(STATEMENT_SKIP_MAX + 1);
    for part in orders[1..].chunks(10_000) {
        let batch: Vec<Order<'_>> = part.iter().map(|name| order(name, USER, 1)).collect();
        ledger.apply(&batch)?;
    }
    let reader = ledger.reader()?;
    assert_eq!(reader.statement(USER, StatementFrom::At(1), 9)?.balances, [("cash".to_owned(), 0)]);
    let (mut pages, mut page) = (1, reader.withdrawals_of(USER, None, None, 9)?);
    while let Some(cursor) = page.next.as_ref().filter(|_| page.withdrawals.is_empty()) {
        page = reader.withdrawals_of(USER, None, Some(cursor), 9)?;
        pages += 1;
    }
    assert_eq!((page.withdrawals.len(), pages), (1, 2), "a page looks at 10,000 lines");
    ledger.apply(&[order(&orders[0], USER, 1)])?;
    let refused = reader.statement(USER, StatementFrom::At(1), 9);
    assert!(matches!(&refused, Err(LedgerError::Invalid(what)) if what.contains("cursor")), "{refused:?}");
    Ok(())
}
