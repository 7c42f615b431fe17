//! The judge. It believes the journals of the callers, the rows of the ledger and the book of the downstream system,
//! and compares them; it shares no code with the pipeline but the format of order numbers.

use crate::job_oracle::JobTally;
use crate::journal::{Asked, Book};
use crate::queue_oracle::QueueTally;
use crate::rules::{ACTIVITY, GIFT, History, IN_FLIGHT_MAX, SCARCE, TYPES};
use crate::shop::{Payment, is_refused};
use crate::sql::{BudgetRow, OrderRow, TransferRow, WithdrawalRow};
use crate::timer_oracle::TimerTally;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Display;

/// Examples that are kept of each kind of damage.
const EXAMPLES: usize = 5;
/// Three consumers, and an adopter.
const CONSUMERS: u64 = 4;
/// A process may follow older rules for so long: a frozen one that thaws, one that starts on its copy.
const RULES_GRACE_MS: u64 = 20_000;
/// Statuses of an order in the ledger.
const RESERVED: i16 = 0;
/// The same.
const CREDITED: i16 = 1;

/// All that the oracle compares.
pub struct Evidence {
    /// The callers' journals.
    pub book: Book,
    /// The ledger's orders.
    pub orders: Vec<OrderRow>,
    /// The ledger's transfers.
    pub transfers: Vec<TransferRow>,
    /// The ledger's budgets.
    pub budgets: Vec<BudgetRow>,
    /// Reason, order number and detail of the archive's entries.
    pub archive: Vec<(String, String, String)>,
    /// User, bonus type and balance.
    pub balances: Vec<(i64, String, i64)>,
    /// The ledger's withdrawals.
    pub withdrawals: Vec<WithdrawalRow>,
    /// The payments of the downstream system.
    pub payments: Vec<Payment>,
    /// The limits that were in force, and when.
    pub history: History,
}

/// One kind of damage.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// How often.
    pub count: u64,
    /// The first of them.
    pub examples: Vec<String>,
}

/// The result of the oracle.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Verdict {
    /// Rewards asked for, taken, credited, and archived as was expected, by bonus type.
    pub by_type: BTreeMap<String, [u64; 4]>,
    /// Damage by its kind; [`KINDS`] has all of them.
    pub damage: BTreeMap<&'static str, Damage>,
    /// From the answer to the caller until the commit of the credit: half, 99 %, all, in ms.
    pub latency_ms: [u64; 3],
    /// Timers in numbers.
    pub timers: TimerTally,
    /// The task queue in numbers.
    pub queues: QueueTally,
    /// Jobs in numbers, where there are any.
    pub jobs: Option<JobTally>,
}

/// The kinds of damage.
pub const KINDS: [&str; 7] =
    ["lost", "double", "mismatched", "unexplained", "over_limit", "early", "after_cancel"];

impl Verdict {
    /// Adds an instance of damage.
    pub fn damage(&mut self, kind: &'static str, what: impl Display) {
        let damage = self.damage.entry(kind).or_default();
        damage.count += 1;
        if damage.examples.len() < EXAMPLES {
            damage.examples.push(what.to_string());
        }
    }

    /// The count of findings of this kind.
    pub fn count(&self, kind: &str) -> u64 {
        self.damage.get(kind).map_or(0, |damage| damage.count)
    }

    fn tally(&mut self, of: &str, column: usize) {
        let row = self.by_type.entry(of.to_owned()).or_default();
        row[column] += 1;
    }
}

/// Compares everything.
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    for kind in KINDS {
        verdict.damage.insert(kind, Damage::default());
    }
    let orders: HashMap<&str, &OrderRow> =
        evidence.orders.iter().map(|order| (order.trade_no.as_str(), order)).collect();
    let mut transfers: HashMap<&str, Vec<&TransferRow>> = HashMap::new();
    for transfer in &evidence.transfers {
        transfers.entry(&transfer.trade_no).or_default().push(transfer);
    }
    let mut archive: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (reason, trade_no, _) in &evidence.archive {
        archive.entry(trade_no).or_default().insert(reason);
    }
    let nothing = HashSet::new();
    let mut latencies = Vec::new();
    for (trade_no, asked) in &evidence.book.0 {
        let order = orders.get(trade_no.as_str()).copied();
        let paid = transfers.get(trade_no.as_str()).map_or(&[][..], Vec::as_slice);
        let archived = archive.get(trade_no.as_str()).unwrap_or(&nothing);
        of_order(asked, order, paid, archived, &mut verdict);
        if let (Some(taken_ms), [transfer]) = (asked.taken_ms, paid) {
            latencies.push(transfer.committed_ms.saturating_sub(taken_ms));
        }
    }
    latencies.sort_unstable();
    let quantile = |part: usize| latencies.get(latencies.len().saturating_sub(1) * part / 1_000).copied();
    verdict.latency_ms = [500, 990, 1_000].map(|part| quantile(part).unwrap_or(0));
    strangers(evidence, &orders, &mut verdict);
    downstream(evidence, &orders, &mut verdict);
    budgets(evidence, &mut verdict);
    balances(evidence, &mut verdict);
    limits(evidence, &mut verdict);
    verdict
}

/// One order of a caller: asked for once or often, credited once or archived for a reason that is known.
fn of_order(
    asked: &Asked,
    order: Option<&OrderRow>,
    paid: &[&TransferRow],
    archived: &HashSet<&str>,
    verdict: &mut Verdict,
) {
    let wanted = &asked.order;
    let trade_no = &wanted.trade_no;
    verdict.tally(&wanted.bonus_type, 0);
    if let Some(why) = &asked.refused {
        verdict.damage("unexplained", format!("{trade_no} was refused: {why}"));
    }
    let mut expected: HashSet<&str> = HashSet::new();
    if asked.is_conflicted {
        expected.insert("conflict");
    }
    if asked.taken_ms.is_some() {
        verdict.tally(&wanted.bonus_type, 1);
    }
    match order {
        None if asked.taken_ms.is_some() => verdict.damage("lost", format!("{trade_no} has no order")),
        None => {}
        Some(order) => {
            let same = (order.user_id, order.bonus_type.as_str(), order.amount, order.activity.as_str())
                == (wanted.user_id, wanted.bonus_type.as_str(), wanted.amount, ACTIVITY);
            if !same {
                verdict.damage("mismatched", format!("{trade_no}: asked {wanted:?}, stored {order:?}"));
            }
            match (order.status, order.reason) {
                (CREDITED, _) => verdict.tally(&wanted.bonus_type, 2),
                (RESERVED, _) => verdict.damage("lost", format!("{trade_no} is still reserved")),
                (_, 1) if wanted.bonus_type == SCARCE.name => {
                    expected.insert("budget_exhausted");
                }
                (_, 2) if wanted.bonus_type == GIFT.name && is_refused(wanted.user_id) => {
                    expected.insert("downstream_refused");
                }
                _ => verdict.damage("unexplained", format!("{trade_no} was rejected: {order:?}")),
            }
            let credits = usize::from(order.status == CREDITED);
            if paid.len() > credits {
                verdict.damage("double", format!("{trade_no} has {} transfers: {paid:?}", paid.len()));
            } else if paid.len() < credits {
                verdict.damage("lost", format!("{trade_no} is credited without a transfer"));
            }
        }
    }
    for transfer in paid {
        if (transfer.user_id, transfer.bonus_type.as_str(), transfer.amount)
            != (wanted.user_id, wanted.bonus_type.as_str(), wanted.amount)
        {
            verdict.damage("mismatched", format!("{trade_no}: asked {wanted:?}, paid {transfer:?}"));
        }
    }
    if expected.iter().any(|reason| *reason != "conflict") {
        verdict.tally(&wanted.bonus_type, 3);
    }
    for reason in expected.difference(archived) {
        verdict.damage("lost", format!("{trade_no} is not in the archive, where it belongs for {reason}"));
    }
    for reason in archived.difference(&expected) {
        // The answer to a conflict may have been lost: only one with a number that was never in conflict is strange.
        if !(*reason == "conflict" && wanted.bonus_type == crate::rules::DIRECT.name) {
            verdict.damage("unexplained", format!("{trade_no} is in the archive for {reason}"));
        }
    }
}

/// Rows that no caller has asked for.
fn strangers(evidence: &Evidence, orders: &HashMap<&str, &OrderRow>, verdict: &mut Verdict) {
    for order in evidence.orders.iter().filter(|order| !evidence.book.0.contains_key(&order.trade_no)) {
        verdict.damage("unexplained", format!("nobody asked for {order:?}"));
    }
    for transfer in evidence.transfers.iter().filter(|one| !orders.contains_key(one.trade_no.as_str())) {
        verdict.damage("unexplained", format!("no order has {transfer:?}"));
    }
    for entry in evidence.archive.iter().filter(|entry| !evidence.book.0.contains_key(&entry.1)) {
        verdict.damage("unexplained", format!("nobody asked for what the archive has: {entry:?}"));
    }
}

/// The book of the downstream system against the orders that it pays.
fn downstream(evidence: &Evidence, orders: &HashMap<&str, &OrderRow>, verdict: &mut Verdict) {
    let mut paid: HashMap<&str, u64> = HashMap::new();
    for payment in &evidence.payments {
        let times = paid.entry(&payment.trade_no).or_default();
        *times += 1;
        if *times > 1 {
            verdict.damage("double", format!("the downstream system paid {payment:?} {times} times"));
        }
        let order = orders.get(payment.trade_no.as_str());
        let same = order.is_some_and(|order| {
            order.status == CREDITED
                && (order.user_id, order.bonus_type.as_str(), order.amount)
                    == (payment.user_id, payment.bonus_type.as_str(), payment.amount)
        });
        if !same {
            verdict
                .damage("mismatched", format!("the downstream system paid {payment:?}, stored is {order:?}"));
        }
    }
    let gifts =
        evidence.orders.iter().filter(|order| order.bonus_type == GIFT.name && order.status == CREDITED);
    for order in gifts.filter(|order| !paid.contains_key(order.trade_no.as_str())) {
        verdict.damage("lost", format!("the downstream system never paid {order:?}"));
    }
}

/// Budgets: never over, spent by what was credited, and nothing refused while there was room.
fn budgets(evidence: &Evidence, verdict: &mut Verdict) {
    for budget in &evidence.budgets {
        let own = || evidence.orders.iter().filter(|order| order.bonus_type == budget.bonus_type);
        let credited: i64 = own().filter(|order| order.status == CREDITED).map(|order| order.amount).sum();
        if budget.used > budget.total || budget.used != credited || budget.reserved != 0 {
            verdict.damage("mismatched", format!("{credited} was credited, but the budget is {budget:?}"));
        }
        let smallest =
            own().filter(|order| order.status == 2 && order.reason == 1).map(|order| order.amount).min();
        if let Some(smallest) = smallest.filter(|amount| budget.total - budget.used >= *amount) {
            verdict.damage("unexplained", format!("{smallest} was refused, though {budget:?} has room"));
        }
    }
}

/// Each user's balance is what was credited less what was paid out, once per id.
fn balances(evidence: &Evidence, verdict: &mut Verdict) {
    let mut wanted: HashMap<(i64, &str), i64> = HashMap::new();
    for order in
        evidence.orders.iter().filter(|order| order.status == CREDITED && order.bonus_type != GIFT.name)
    {
        *wanted.entry((order.user_id, &order.bonus_type)).or_default() += order.amount;
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for row in &evidence.withdrawals {
        seen.insert(&row.id);
        let asked = evidence.book.0.get(&row.id).filter(|asked| asked.is_withdrawn);
        let same = asked.is_some_and(|asked| {
            let order = &asked.order;
            (order.user_id, &order.bonus_type, order.amount) == (row.user_id, &row.bonus_type, row.amount)
        });
        if !same {
            verdict.damage("mismatched", format!("nobody asked for {row:?}"));
        }
        // A front end pays them out; the last ones are not acknowledged any more.
        match row.status {
            0 if row.payer != "front end" => {
                verdict
                    .damage("unexplained", format!("{row:?} waits for a payer that nobody has configured"));
            }
            0 | 1 => *wanted.entry((row.user_id, &row.bonus_type)).or_default() -= row.amount,
            _ => verdict.damage("unexplained", format!("{row:?} was given back")),
        }
    }
    for asked in evidence.book.0.values().filter(|asked| asked.is_paid) {
        if !seen.contains(asked.order.trade_no.as_str()) {
            verdict.damage(
                "lost",
                format!(
                    "no withdrawal of {} is stored, though it was answered as paid",
                    asked.order.trade_no
                ),
            );
        }
    }
    let mut has: HashMap<(i64, &str), i64> =
        evidence.balances.iter().map(|(user, of, balance)| ((*user, of.as_str()), *balance)).collect();
    for (key, amount) in &wanted {
        let balance = has.remove(key).unwrap_or(0);
        if balance != *amount {
            verdict
                .damage("mismatched", format!("the balance of {key:?} is {balance}, but {amount} is right"));
        }
    }
    for (key, balance) in has.into_iter().filter(|((_, of), balance)| *balance != 0 && *of != GIFT.name) {
        verdict.damage("mismatched", format!("the balance of {key:?} is {balance}, but 0 is right"));
    }
}

/// At every moment: no more credits of a type than its bucket let through, and what was in flight behind it.
fn limits(evidence: &Evidence, verdict: &mut Verdict) {
    for of in TYPES.iter().filter(|of| of.is_limited) {
        let own = evidence.transfers.iter().filter(|transfer| transfer.bonus_type == of.name);
        let mut times: Vec<u64> = own.map(|transfer| transfer.committed_ms).collect();
        times.sort_unstable();
        // In thousandths of an event: what came in less what has run out.
        let (mut level, mut last_ms) = (0_u64, times.first().copied().unwrap_or(0));
        for at_ms in times {
            let limit = evidence.history.largest(of.name, at_ms, RULES_GRACE_MS);
            level = level.saturating_sub((at_ms - last_ms) * limit.rate_per_s) + 1_000;
            last_ms = at_ms;
            let room = limit.burst + CONSUMERS * IN_FLIGHT_MAX;
            if level > room * 1_000 {
                verdict.damage(
                    "over_limit",
                    format!("{}: more than {limit:?} lets through, at {at_ms} ms since 1970", of.name),
                );
                // One finding for each excess, not for each event of it.
                level = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Order;
    use crate::rules::{CASH, Rules};

    fn order(trade_no: &str) -> Order {
        Order { trade_no: trade_no.into(), user_id: 7, bonus_type: "cash".into(), amount: 5 }
    }

    fn row(trade_no: &str, status: i16) -> OrderRow {
        let (user_id, amount, reason) = (7, 5, 0);
        let (activity, bonus_type) = (ACTIVITY.into(), "cash".into());
        OrderRow { trade_no: trade_no.into(), user_id, activity, bonus_type, amount, status, reason }
    }

    fn transfer(trade_no: &str, committed_ms: u64) -> TransferRow {
        let (user_id, bonus_type, amount) = (7, "cash".into(), 5);
        TransferRow { trade_no: trade_no.into(), user_id, bonus_type, amount, committed_ms }
    }

    /// One reward that went well.
    fn sound() -> Evidence {
        let asked = Asked {
            order: order("a"),
            taken_ms: Some(1_000),
            refused: None,
            is_conflicted: false,
            is_withdrawn: false,
            is_paid: false,
        };
        let mut history = History::default();
        history.note(0, Rules::new(100, 0, false).limits());
        Evidence {
            book: Book([("a".to_owned(), asked)].into()),
            orders: vec![row("a", CREDITED)],
            transfers: vec![transfer("a", 1_250)],
            budgets: Vec::new(),
            archive: Vec::new(),
            balances: vec![(7, "cash".into(), 5)],
            withdrawals: Vec::new(),
            payments: Vec::new(),
            history,
        }
    }

    /// The first five kinds; the others are those of timers.
    fn counts(evidence: &Evidence) -> [u64; 5] {
        let verdict = judge(evidence);
        std::array::from_fn(|at| verdict.count(KINDS[at]))
    }

    #[test]
    fn what_went_well_is_no_damage() {
        assert_eq!(counts(&sound()), [0; 5]);
        assert_eq!(judge(&sound()).latency_ms, [250; 3]);
    }

    #[test]
    fn each_kind_of_damage_is_found() {
        let mut lost = sound();
        (lost.orders, lost.transfers, lost.balances) = (Vec::new(), Vec::new(), Vec::new());
        assert_eq!(counts(&lost), [1, 0, 0, 0, 0]);

        let mut reserved = sound();
        (reserved.orders[0].status, reserved.transfers, reserved.balances) =
            (RESERVED, Vec::new(), Vec::new());
        assert_eq!(counts(&reserved), [1, 0, 0, 0, 0]);

        let mut double = sound();
        double.transfers.push(transfer("a", 1_300));
        assert_eq!(counts(&double), [0, 1, 0, 0, 0]);

        let mut mismatched = sound();
        mismatched.balances[0].2 = 10;
        assert_eq!(counts(&mismatched), [0, 0, 1, 0, 0]);

        let mut stranger = sound();
        stranger.archive.push(("max_failures".into(), "a".into(), String::new()));
        assert_eq!(counts(&stranger), [0, 0, 0, 1, 0]);

        let mut rejected = sound();
        (rejected.orders[0].status, rejected.orders[0].reason) = (2, 1);
        (rejected.transfers, rejected.balances) = (Vec::new(), Vec::new());
        assert_eq!(counts(&rejected)[3], 1, "cash has a budget for all");
    }

    #[test]
    fn credits_faster_than_the_limit_are_found() {
        let mut fast = sound();
        let limit = Rules::new(100, 0, false).limits()[CASH.name];
        let room = limit.burst + CONSUMERS * IN_FLIGHT_MAX;
        let own = |count: u64| (0..count).map(|_| transfer("a", 1_250)).collect::<Vec<_>>();
        fast.transfers = own(room);
        assert_eq!(judge(&fast).count("over_limit"), 0);
        fast.transfers = own(room + 1);
        assert_eq!(judge(&fast).count("over_limit"), 1);
    }

    #[test]
    fn a_payment_without_an_order_and_a_second_payment_are_found() {
        let mut evidence = sound();
        let payment = Payment { trade_no: "a".into(), user_id: 7, bonus_type: "cash".into(), amount: 5 };
        evidence.payments = vec![payment.clone(), payment.clone()];
        assert_eq!(judge(&evidence).count("double"), 1);
        evidence.payments = vec![Payment { trade_no: "b".into(), ..payment }];
        assert_eq!(judge(&evidence).count("mismatched"), 1);
    }
}
