//! A closed activity gives nothing more, whoever asks; its rows can be read as a whole, and its orders can go.

use super::chain::{Memory, PATIENCE};
use super::concurrent::all_at_once;
use super::{Outcome, Place, budget, clean, id, names, open, order, reserve, settled};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};
use windfall_contract::accounts::{Reason, Status};
use windfall_ledger::{
    Attempt, BudgetSet, Close, Closed, Detach, DetachBegun, DetachedBudget, Ledger, LedgerError,
    LedgerReader, Order, OrderOutcome, OrderRow, Reopened, StatementFrom, TransferRow, Unproven,
};

const SHUT: OrderOutcome = OrderOutcome::Rejected(Reason::ActivityClosed);

/// Does what the owner of the tables does, on this handle where that is the same user.
fn as_owner<T>(
    place: &dyn Place,
    ledger: &mut Ledger,
    what: impl FnOnce(&mut Ledger) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    match place.owner().map_err(|error| LedgerError::Unavailable(error.to_string()))? {
        Some(mut owner) => what(&mut owner),
        None => what(ledger),
    }
}

fn close(place: &dyn Place, ledger: &mut Ledger, activity: &str) -> Result<Closed, LedgerError> {
    let which = Close { activity, operator: "alice", reason: "it is over", time_ms: 5_000 };
    as_owner(place, ledger, |ledger| ledger.close_activity(&which))
}

fn reopen(place: &dyn Place, ledger: &mut Ledger, activity: &str) -> Result<Reopened, LedgerError> {
    as_owner(place, ledger, |ledger| ledger.reopen_activity(activity))
}

fn begin_detach(
    place: &dyn Place,
    ledger: &mut Ledger,
    which: &Detach<'_>,
) -> Result<DetachBegun, LedgerError> {
    as_owner(place, ledger, |ledger| ledger.begin_detach(which))
}

/// Does some of the work that has to be done before, and asks again, until the answer is another one than `before`: other transactions of
/// the server may keep the newest transfers from being final.
fn begin_detach_after(
    place: &dyn Place,
    ledger: &mut Ledger,
    which: &Detach<'_>,
    before: DetachBegun,
    mut work: impl FnMut() -> Outcome,
) -> Result<DetachBegun, Box<dyn Error>> {
    let began = Instant::now();
    loop {
        work()?;
        let answer = begin_detach(place, ledger, which)?;
        if answer != before {
            return Ok(answer);
        }
        assert!(began.elapsed() < PATIENCE, "{answer:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Audits and seals until the orders may go.
fn begin_proved(
    place: &dyn Place,
    ledger: &mut Ledger,
    which: &Detach<'_>,
) -> Result<DetachBegun, Box<dyn Error>> {
    let (mut auditor, mut sealer, mut anchor) = (place.auditor()?, place.sealer()?, Memory::default());
    let began = Instant::now();
    loop {
        while auditor.increment(6_000)?.has_more {}
        while sealer.seal(&mut anchor, 6_000)?.is_some() {}
        match begin_detach(place, ledger, which)? {
            DetachBegun::Unproven(what) => assert!(began.elapsed() < PATIENCE, "{what}"),
            other => return Ok(other),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn orders_of(reader: &LedgerReader, activity: &str) -> Result<Vec<OrderRow>, LedgerError> {
    let (mut rows, mut after) = (Vec::new(), String::new());
    loop {
        let page = reader.orders_of_activity(activity, &after)?;
        rows.extend(page.rows);
        match page.next {
            Some(next) => after = next,
            None => return Ok(rows),
        }
    }
}

fn transfers_of(reader: &LedgerReader, activity: &str) -> Result<Vec<TransferRow>, LedgerError> {
    let (mut rows, mut after) = (Vec::new(), String::new());
    loop {
        let page = reader.transfers_of_activity(activity, &after)?;
        rows.extend(page.rows);
        match page.next {
            Some(next) => after = next,
            None => return Ok(rows),
        }
    }
}

/// What an export of these orders says of each budget.
fn budgets_of(rows: &[OrderRow]) -> Vec<DetachedBudget> {
    let mut budgets: BTreeMap<i64, DetachedBudget> = BTreeMap::new();
    for row in rows {
        let own =
            budgets.entry(row.budget).or_insert(DetachedBudget { budget: row.budget, ..Default::default() });
        own.orders += 1;
        if row.order.status == Status::Credited {
            own.credited += 1;
            own.amount += row.order.amount;
        }
    }
    budgets.into_values().collect()
}

fn detach<'a>(activity: &'a str, export: &'a str, budgets: &'a [DetachedBudget]) -> Detach<'a> {
    let (accept_unaudited, accept_unsealed) = (false, false);
    Detach { activity, closed_ms: 5_000, export, budgets, accept_unaudited, accept_unsealed, time_ms: 8_000 }
}

/// The same, whatever the auditor has read and whatever is sealed.
fn by_name(which: Detach<'_>) -> Detach<'_> {
    Detach { accept_unaudited: true, accept_unsealed: true, ..which }
}

fn detach_all(place: &dyn Place, ledger: &mut Ledger, activity: &str) -> Result<u64, LedgerError> {
    as_owner(place, ledger, |ledger| {
        let (mut orders, mut after) = (0, String::new());
        loop {
            let step = ledger.detach_step(activity, &after, 9_000)?;
            orders += step.orders;
            match step.next {
                Some(next) => after = next,
                None => return Ok(orders),
            }
        }
    })
}

pub(super) fn gives_nothing(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(1_000, 3), BudgetSet { activity: "autumn", ..budget(1_000, 1) }])?;
    let autumn = |order| Order { activity: "autumn", ..order };
    ledger.apply(&[order("paid", 1, 5), autumn(order("paid", 1, 5))])?;
    let over = OrderOutcome::Rejected(Reason::BudgetExhausted);
    assert_eq!(ledger.apply(&[order("refused", 1, 5_000)])?, [over]);
    assert_eq!(close(place, &mut ledger, "nothing of this name")?, Closed::Unknown);
    assert_eq!(place.reader()?.closed_activities()?, []);
    // What waits for its payer may have been paid: it ends first.
    ledger.transact(|tx| reserve(tx, &[order("held", 2, 7)], Attempt::Normal))?;
    assert_eq!(close(place, &mut ledger, "spring")?, Closed::Reserved { orders: 1 });
    ledger.transact(|tx| tx.post(&[id("held")], 2_000))?;
    assert_eq!(close(place, &mut ledger, "spring")?, Closed::Now);
    assert_eq!(close(place, &mut ledger, "spring")?, Closed::Before);
    let asked = [
        autumn(order("new", 1, 5)),
        order("new", 1, 5),
        order("paid", 1, 5),
        order("refused", 1, 5_000),
        order("paid", 2, 5),
        autumn(order("paid", 1, 5)),
        order("new", 1, 5),
        order("held", 2, 7),
    ];
    let answers = |new| {
        let before = OrderOutcome::AlreadyCredited;
        [new, SHUT, before, over, OrderOutcome::Conflict, before, SHUT, before]
    };
    assert_eq!(ledger.apply(&asked)?, answers(OrderOutcome::Credited));
    // Another connection, and one that was opened since.
    drop(ledger);
    let mut ledger = open(place)?;
    assert_eq!(ledger.apply(&asked)?, answers(OrderOutcome::AlreadyCredited));
    let mut tx = ledger.begin()?;
    assert_eq!(
        reserve(&mut tx, &[order("new", 1, 5), autumn(order("more", 3, 5))], Attempt::Normal)?,
        [SHUT, OrderOutcome::Reserved]
    );
    assert_eq!(tx.promise(&[order("new", 1, 5)], Attempt::Normal)?, [SHUT]);
    tx.release(
        &[(windfall_ledger::OrderId { activity: "autumn", trade_no: "more" }, Reason::Released)],
        3_000,
    )?;
    tx.commit()?;
    // A replay decides nothing anew, whatever room there is.
    ledger.set_budgets(&[budget(1_000_000, 3)])?;
    let replayed = ledger
        .transact(|tx| tx.apply(&[order("refused", 1, 5_000), order("paid", 1, 5)], Attempt::Replay))?;
    assert_eq!(replayed, [SHUT, OrderOutcome::AlreadyCredited]);
    assert_eq!((ledger.balance(1, "cash")?, settled(place, "bank")?), (15, 7));
    let [closed] = &place.reader()?.closed_activities()?[..] else { panic!("one is closed") };
    assert_eq!(
        (closed.activity.as_str(), closed.operator.as_str(), closed.closed_ms),
        ("spring", "alice", 5_000)
    );
    assert_eq!((closed.reason.as_str(), &closed.detached), ("it is over", &None));
    clean(place)
}

pub(super) fn reopened(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 5)])?;
    assert_eq!(reopen(place, &mut ledger, "spring")?, Reopened::WasOpen);
    close(place, &mut ledger, "spring")?;
    assert_eq!(ledger.apply(&[order("b", 1, 5)])?, [SHUT]);
    assert_eq!(reopen(place, &mut ledger, "spring")?, Reopened::Now);
    assert_eq!(
        ledger.apply(&[order("b", 1, 5), order("a", 1, 5)])?,
        [OrderOutcome::Credited, OrderOutcome::AlreadyCredited]
    );
    // It may be closed again.
    assert_eq!(close(place, &mut ledger, "spring")?, Closed::Now);
    assert_eq!(ledger.apply(&[order("c", 1, 5), order("b", 1, 5)])?, [SHUT, OrderOutcome::AlreadyCredited]);
    clean(place)
}

pub(super) fn rows_and_orders_go(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let others = BudgetSet { activity: "autumn", ..budget(1_000_000, 1) };
    ledger.set_budgets(&[budget(1_000_000, 3), others, BudgetSet { bonus_type: "badge", ..budget(9, 1) }])?;
    let names = names(2_500);
    let spring: Vec<Order<'_>> = (1..).zip(&names).map(|(user, name)| order(name, user, 3)).collect();
    let autumn: Vec<Order<'_>> = spring.iter().map(|order| Order { activity: "autumn", ..*order }).collect();
    for (one, other) in spring.chunks(500).zip(autumn.chunks(500)) {
        ledger.apply(one)?;
        ledger.apply(other)?;
    }
    let badges = ["x", "y", "z"].map(|name| Order { bonus_type: "badge", ..order(name, 1, 5) });
    ledger.transact(|tx| reserve(tx, &badges[..1], Attempt::Normal))?;
    ledger.transact(|tx| tx.post(&[id("x")], 2_000))?;
    assert_eq!(ledger.apply(&badges[1..])?, [OrderOutcome::Rejected(Reason::BudgetExhausted); 2]);
    close(place, &mut ledger, "spring")?;
    let reader = place.reader()?;
    let rows = orders_of(&reader, "spring")?;
    drop(reader);
    assert_eq!(rows.len(), names.len() + 3);
    let mut found: Vec<&str> = rows.iter().map(|row| row.order.trade_no.as_str()).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), rows.len(), "each order once");
    let paid = |name: &str| rows.iter().find(|row| row.order.trade_no == name).cloned();
    let one = paid(&names[0]).ok_or("the first order")?;
    let first = &one.order;
    assert_eq!((first.user_id, first.amount, first.status, &*first.scene), (1, 3, Status::Credited, "rain"));
    assert_eq!((paid("x").ok_or("x")?.order.payer.as_str(), &*first.payer), ("bank", ""));
    // Each credited order's transfer, the funding of two budgets, and what was pending of one order.
    let transfers = transfers_of(&place.reader()?, "spring")?;
    let paying: Vec<&TransferRow> = transfers
        .iter()
        .filter(|one| one.debit == "budget" && matches!(one.kind, "direct" | "post"))
        .collect();
    assert_eq!(paying.len(), names.len() + 1);
    assert!(paying.iter().any(|transfer| transfer.id == one.paid_by && transfer.reference == first.key));
    assert_eq!(transfers.iter().filter(|one| one.debit == "funding").count(), 2);
    assert_eq!(transfers.len(), names.len() + 1 + 1 + 2);

    let budgets = budgets_of(&rows);
    let detach = |export| detach("spring", export, &budgets);
    assert!(matches!(detach_all(place, &mut ledger, "spring"), Err(LedgerError::Invalid(_))));
    let open_one = Detach { activity: "autumn", ..detach("e1") };
    assert_eq!(begin_detach(place, &mut ledger, &open_one)?, DetachBegun::NotClosed);
    let closed_anew = Detach { closed_ms: 4_999, ..detach("e1") };
    assert_eq!(begin_detach(place, &mut ledger, &closed_anew)?, DetachBegun::NotClosed);
    assert_eq!(begin_proved(place, &mut ledger, &detach("e1"))?, DetachBegun::Now);
    assert_eq!(begin_detach(place, &mut ledger, &detach("e1"))?, DetachBegun::Before);
    let other = DetachBegun::OtherExport { export: "e1".into() };
    assert_eq!(begin_detach(place, &mut ledger, &detach("e2"))?, other);
    assert_eq!(reopen(place, &mut ledger, "spring")?, Reopened::Detached);
    clean(place)?;
    assert_eq!(detach_all(place, &mut ledger, "spring")?, rows.len() as u64);
    assert_eq!(detach_all(place, &mut ledger, "spring")?, 0, "again, as after a crash");
    assert_eq!(orders_of(&place.reader()?, "spring")?, []);
    assert_eq!(orders_of(&place.reader()?, "autumn")?.len(), names.len());
    // I1, also now: what was paid is never paid again, under whatever amount.
    let again: Vec<OrderOutcome> = ledger.apply(&spring)?;
    assert!(again.iter().all(|outcome| *outcome == SHUT));
    assert_eq!(ledger.apply(&autumn[..2])?, [OrderOutcome::AlreadyCredited; 2]);
    assert_eq!((ledger.balance(1, "cash")?, ledger.balance(2_500, "cash")?), (6, 6));
    assert_eq!(ledger.flow(1, 9)?.len(), 3, "a statement is as it was: transfers stay");
    pages_lead_past_what_was_detached(place, &mut ledger)?;
    let [closed] = &place.reader()?.closed_activities()?[..] else { panic!("one is closed") };
    let detached = closed.detached.clone().ok_or("it is detached")?;
    assert_eq!((detached.orders, detached.done_ms), (rows.len() as u64, Some(9_000)));
    assert!(place.reader()?.orders()?.collect::<Result<Vec<_>, _>>()?.iter().all(|line| line.credits <= 1));
    clean(place)
}

/// A cursor that stands at a line whose order has gone stays good for its user, and leads nobody else there.
fn pages_lead_past_what_was_detached(place: &dyn Place, ledger: &mut Ledger) -> Outcome {
    let late = |order| Order { activity: "autumn", time_ms: 3_000, ..order };
    ledger.apply(&[late(order("late", 1, 3)), late(Order { bonus_type: "badge", ..order("own", 2, 1) })])?;
    let reader = place.reader()?;
    let all = reader.statement(1, StatementFrom::Newest, 9)?.lines;
    assert_eq!(all.len(), 4);
    let badge = all.iter().find(|one| one.line.bonus_type == "badge").ok_or("the badge")?.line.transfer;
    let mut page = reader.statement(1, StatementFrom::Newest, 1)?;
    let first = page.next.as_ref().ok_or("more lines follow")?.to_string();
    let mut lines = page.lines;
    while let Some(cursor) = page.next {
        page = reader.statement(1, StatementFrom::After(&cursor), 1)?;
        lines.extend(page.lines);
    }
    assert_eq!(lines, all);
    let is_there = format!(":{badge}:");
    let stands_at = first
        .split(['/', ','])
        .find(|one| one.contains(&is_there))
        .ok_or("the cursor stands at the badge")?;
    let invented = format!("2/{stands_at}").parse()?;
    let refused = reader.statement(2, StatementFrom::After(&invented), 1);
    assert!(matches!(refused, Err(LedgerError::Invalid(_))), "{refused:?}");
    Ok(())
}

/// The auditor takes what paid an order that was detached as right. So it has to have compared it before, and a seal has to cover it.
pub(super) fn proved_or_by_name(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let autumn = |order| Order { activity: "autumn", ..order };
    ledger.apply(&[order("a", 1, 5), order("b", 2, 5)])?;
    close(place, &mut ledger, "spring")?;
    // What comes behind the close is not asked for.
    ledger.apply(&[autumn(order("a", 1, 5)), autumn(order("b", 2, 5)), autumn(order("c", 3, 5))])?;
    let rows = orders_of(&place.reader()?, "spring")?;
    let budgets = budgets_of(&rows);
    let spring = detach("spring", "e", &budgets);
    let lacks = |unread, unsealed| DetachBegun::Unproven(Unproven { unread, unsealed });
    // Nobody has ever audited, and the auditor's tables may be missing. Then they are there, and say that nothing was read.
    assert_eq!(begin_detach(place, &mut ledger, &spring)?, lacks(2, 2));
    let (mut auditor, mut sealer, mut anchor) = (place.auditor()?, place.sealer()?, Memory::default());
    auditor.progress()?;
    assert_eq!(begin_detach(place, &mut ledger, &spring)?, lacks(2, 2));
    assert_eq!(orders_of(&place.reader()?, "spring")?, rows, "nothing was changed");
    let audit = || -> Outcome {
        while auditor.increment(6_000)?.has_more {}
        Ok(())
    };
    let audited = begin_detach_after(place, &mut ledger, &spring, lacks(2, 2), audit)?;
    assert_eq!(audited, lacks(0, 2));
    let only_unaudited = Detach { accept_unaudited: true, ..spring };
    assert_eq!(begin_detach(place, &mut ledger, &only_unaudited)?, lacks(0, 2));
    let seal = || -> Outcome {
        while sealer.seal(&mut anchor, 6_000)?.is_some() {}
        Ok(())
    };
    assert_eq!(begin_detach_after(place, &mut ledger, &spring, lacks(0, 2), seal)?, DetachBegun::Now);
    assert_eq!(detach_all(place, &mut ledger, "spring")?, 2);

    // A fleet without an auditor, or without seals, says so by name; it is noted with the activity.
    let winter = |order| Order { activity: "winter", ..order };
    ledger.apply(&[winter(order("a", 1, 5))])?;
    close(place, &mut ledger, "winter")?;
    let budgets = budgets_of(&orders_of(&place.reader()?, "winter")?);
    let winter = detach("winter", "e", &budgets);
    let DetachBegun::Unproven(Unproven { unread: 1.., unsealed: 1.. }) =
        begin_detach(place, &mut ledger, &winter)?
    else {
        panic!("neither was read nor sealed")
    };
    assert_eq!(begin_detach(place, &mut ledger, &by_name(winter))?, DetachBegun::Now);
    assert_eq!(begin_detach(place, &mut ledger, &winter)?, DetachBegun::Before, "it has begun");
    assert_eq!(detach_all(place, &mut ledger, "winter")?, 1);
    let closed = place.reader()?.closed_activities()?;
    let reasons: Vec<&str> = closed.iter().map(|one| one.reason.as_str()).collect();
    let noted = "it is over; detached with --accept-unaudited and --accept-unsealed";
    assert_eq!(reasons, ["it is over", noted]);
    clean(place)
}

/// An export that has not what was paid is noticed, whatever it says.
pub(super) fn wrong_export(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 5), order("b", 2, 5)])?;
    close(place, &mut ledger, "spring")?;
    let rows = orders_of(&place.reader()?, "spring")?;
    let budgets = budgets_of(&rows[..1]);
    begin_proved(place, &mut ledger, &detach("spring", "e", &budgets))?;
    detach_all(place, &mut ledger, "spring")?;
    assert_eq!(place.reader()?.reconcile()?.wrong_detached, 1);
    let foreign = [DetachedBudget { budget: 999_999, orders: 1, credited: 1, amount: 1 }];
    ledger.apply(&[Order { activity: "autumn", ..order("a", 1, 5) }])?;
    close(place, &mut ledger, "autumn")?;
    let asked = by_name(detach("autumn", "e", &foreign));
    assert!(matches!(begin_detach(place, &mut ledger, &asked), Err(LedgerError::Invalid(_))));
    assert_eq!(reopen(place, &mut ledger, "autumn")?, Reopened::Now, "nothing was begun");
    Ok(())
}

/// Writers grant orders of an activity while it is closed: what they were answered is what the ledger has, and nothing comes behind.
pub(super) fn at_once(place: &dyn Place) -> Outcome {
    const EACH: usize = 40;
    let mut ledger = open(place)?;
    ledger.set_budgets(&[budget(1_000_000, 4)])?;
    ledger.apply(&[order("first", 1, 1)])?;
    drop(ledger);
    let names = names(EACH);
    let answers = all_at_once(place, |nth, ledger| {
        let mut credited = 0;
        for (at, name) in names.iter().enumerate() {
            let own = format!("{nth}/{name}");
            let batch = [order(&own, 1, 1), Order { activity: "autumn", ..order(&own, 2, 1) }];
            let outcomes = ledger.apply(&batch)?;
            assert!([OrderOutcome::Credited, SHUT].contains(&outcomes[0]));
            assert_eq!(outcomes[1], OrderOutcome::Credited, "the other activity goes on");
            credited += i64::from(outcomes[0] == OrderOutcome::Credited);
            if nth == 0 && at == 10 {
                assert_eq!(close(place, ledger, "spring")?, Closed::Now);
                assert_eq!(ledger.apply(&[order("behind", 1, 1)])?, [SHUT]);
            }
        }
        Ok(credited)
    })?;
    let credited: i64 = 1 + answers.iter().sum::<i64>();
    let mut ledger = open(place)?;
    assert_eq!(ledger.balance(1, "cash")?, credited);
    assert_eq!(i64::try_from(orders_of(&place.reader()?, "spring")?.len())?, credited);
    assert_eq!(ledger.balance(2, "cash")?, i64::try_from(answers.len() * EACH)?);
    assert_eq!(ledger.apply(&[order("behind", 1, 1)])?, [SHUT]);
    clean(place)
}

pub(super) fn bad_places(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    ledger.apply(&[order("a", 1, 5)])?;
    let reader = place.reader()?;
    assert_eq!(orders_of(&reader, "nothing of this name")?, []);
    assert_eq!(transfers_of(&reader, "nothing of this name")?, []);
    assert!(matches!(reader.transfers_of_activity("spring", "a place"), Err(LedgerError::Invalid(_))));
    assert!(matches!(close(place, &mut ledger, ""), Err(LedgerError::Invalid(_))));
    clean(place)
}
