//! Payers' statements against a ledger: one suite for every database.

use std::collections::BTreeMap;
use windfall_contract::accounts::{Reason, Withdrawal};
use windfall_ledger::{
    ActOutcome, Attempt, AuditError, AuditLimits, Auditor, BadPayerStatement, Deed, Ended, Increment, Ledger,
    NewPayerStatement, Operator, Order, OrderId, PayerLine, PayerStatement, PayerStatementError,
    PayerStatementState, PayerTotals, Proposal, Proposed, WithdrawalId,
};

/// Small, so that each part takes many steps.
pub const LIMITS: AuditLimits =
    AuditLimits { increment_rows: 3, tail_rows_max: 10_000, account_rows: 5, order_rows: 2 };

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
/// Long behind all that is compared here.
const NOW: i64 = 1_000 * DAY;

/// A ledger, and how to audit it and to change it by hand.
pub struct Place<'a> {
    pub ledger: Ledger,
    pub auditor: &'a dyn Fn() -> Auditor,
    pub raw: &'a dyn Fn(&str),
}

type Line = (String, &'static str, i64, bool);

fn paid(key: &str, amount: i64) -> Line {
    (key.to_owned(), "cash", amount, false)
}

fn returned(key: &str, amount: i64) -> Line {
    (key.to_owned(), "cash", amount, true)
}

fn order_key(trade_no: &str) -> String {
    format!("order spring {trade_no}")
}

const fn id(trade_no: &str) -> OrderId<'_> {
    OrderId { activity: "spring", trade_no }
}

fn order(trade_no: &str, amount: i64, time_ms: i64) -> Order<'_> {
    Order { trade_no, user_id: 1, activity: "spring", scene: "rain", bonus_type: "cash", amount, time_ms }
}

impl Place<'_> {
    fn reserve(&mut self, trade_no: &str, amount: i64, payer: &str, made_ms: i64) {
        let orders = [order(trade_no, amount, made_ms)];
        self.ledger.transact(|tx| tx.reserve(&orders, &[payer], Attempt::Normal)).unwrap();
    }

    fn pay(&mut self, trade_no: &str, amount: i64, payer: &str, made_ms: i64, paid_ms: i64) {
        self.reserve(trade_no, amount, payer, made_ms);
        self.ledger.transact(|tx| tx.post(&[id(trade_no)], paid_ms)).unwrap();
    }

    /// Withdraws from user 2, whom the ledger pays itself.
    fn hold(&mut self, name: &str, amount: i64, payer: &str, made_ms: i64) {
        let own = format!("for {name}").replace(' ', "-");
        let credit = Order { user_id: 2, ..order(&own, amount, made_ms) };
        self.ledger.transact(|tx| tx.apply(&[credit], Attempt::Normal)).unwrap();
        let out = Withdrawal { id: name.into(), user_id: 2, bonus_type: "cash".into(), amount };
        self.ledger
            .transact(|tx| {
                tx.name_tenant("app");
                tx.hold(&[(&out, payer)], made_ms)
            })
            .unwrap();
    }

    fn pay_out(&mut self, name: &str, paid_ms: i64) {
        self.ledger.transact(|tx| tx.pay_out(&[WithdrawalId { user_id: 2, id: name }], paid_ms)).unwrap();
    }

    fn give_back(&mut self, name: &str) {
        let id = WithdrawalId { user_id: 2, id: name };
        self.ledger.transact(|tx| tx.give_back(&[(id, "no account")], 30 * HOUR)).unwrap();
    }

    /// What PostgreSQL's auditor compares it must have read once: it knows its server then.
    fn audited(&self) -> Auditor {
        let mut auditor = (self.auditor)();
        while patient(|| auditor.increment(7)) != Increment::default() {}
        auditor
    }

    fn compare(&self, payer: &str, from_ms: i64, to_ms: i64, lines: &[Line]) -> PayerStatement {
        let mut auditor = self.audited();
        let id = upload(&mut auditor, payer, from_ms, to_ms, lines);
        let totals = totals(lines);
        let mut steps = 0;
        loop {
            // Another process goes on where this one has died.
            if steps % 3 == 2 {
                auditor = (self.auditor)();
            }
            steps += 1;
            let statement = auditor.compare_payer_statement(id, &totals, NOW).unwrap();
            if statement.state == PayerStatementState::Compared {
                assert!(steps > 2, "it takes steps");
                return statement;
            }
        }
    }

    /// The kinds and subjects of the differences that a statement has found.
    fn found(&self, statement: &PayerStatement) -> Vec<(String, String)> {
        let found = (self.auditor)().payer_differences(statement.id, None, 0, 1_000).unwrap();
        assert_eq!(found.len() as u64, statement.differences);
        let mut found: Vec<_> = found.into_iter().map(|one| (one.kind, one.subject)).collect();
        found.sort();
        found
    }

    fn open(&self) -> u64 {
        (self.auditor)().progress().unwrap().open.values().sum()
    }
}

fn patient<T>(mut step: impl FnMut() -> Result<T, AuditError>) -> T {
    loop {
        match step() {
            Err(AuditError::Busy) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

fn of(lines: &[Line]) -> Vec<PayerLine> {
    let line =
        |(key, bonus_type, amount, back): &Line| PayerLine::new(key, bonus_type, *amount, *back).unwrap();
    lines.iter().map(line).collect()
}

fn totals(lines: &[Line]) -> PayerTotals {
    let mut paid: BTreeMap<String, (u64, i64)> = BTreeMap::new();
    for (_, bonus_type, amount, _) in lines.iter().filter(|line| !line.3) {
        let sum = paid.entry((*bonus_type).to_owned()).or_default();
        *sum = (sum.0 + 1, sum.1 + amount);
    }
    PayerTotals { lines: lines.len() as u64, paid }
}

fn new(upload: &str, payer: &str, from_ms: i64, to_ms: i64) -> NewPayerStatement {
    NewPayerStatement::new(upload, payer, from_ms..to_ms, HOUR, "ann").unwrap()
}

fn upload(auditor: &mut Auditor, payer: &str, from_ms: i64, to_ms: i64, lines: &[Line]) -> i64 {
    static NTH: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let name = format!("upload {}", NTH.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let id = auditor.begin_payer_statement(&new(&name, payer, from_ms, to_ms), NOW).unwrap().id;
    let mut next = 1;
    for batch in of(lines).chunks(3) {
        let behind = auditor.append_payer_lines(id, next, batch).unwrap();
        // Its answer was lost.
        assert_eq!(auditor.append_payer_lines(id, next, batch).unwrap(), behind);
        next = behind;
    }
    id
}

/// Payments of a day, from hour 24 up to hour 48, and what a payer says who agrees. Whatever the margins leave open is left out.
fn day(place: &mut Place<'_>) -> Vec<Line> {
    place.pay("in-time", 10, "bank", 25 * HOUR, 25 * HOUR + 1);
    place.pay("over-an-end", 20, "bank", 23 * HOUR + HOUR / 2, 26 * HOUR);
    place.pay("at-the-end", 30, "bank", 47 * HOUR, 47 * HOUR + HOUR / 2);
    place.pay("of-another", 40, "post", 30 * HOUR, 30 * HOUR);
    place.pay("yesterday", 50, "bank", 3 * HOUR, 3 * HOUR);
    place.pay("tomorrow", 60, "bank", 50 * HOUR, 50 * HOUR);
    place.reserve("refused", 70, "bank", 30 * HOUR);
    place.ledger.transact(|tx| tx.release(&[(id("refused"), Reason::DownstreamRefused)], 31 * HOUR)).unwrap();
    place.reserve("waits", 80, "bank", 30 * HOUR);
    let own = [order("own", 90, 30 * HOUR)];
    place.ledger.transact(|tx| tx.apply(&own, Attempt::Normal)).unwrap();
    for (name, payer) in
        [("w-paid", "bank"), ("w-back", "bank"), ("w-held", "bank"), ("w-front", "front end")]
    {
        place.hold(name, 5, payer, 30 * HOUR);
    }
    place.pay_out("w-paid", 30 * HOUR + 1);
    place.pay_out("w-front", 30 * HOUR + 1);
    place.give_back("w-back");
    vec![paid(&order_key("in-time"), 10), paid("withdrawal app 2 w-paid", 5)]
}

/// A payer that agrees: nothing differs, whatever is close to an end of the period, and the sums are those of both sides.
pub fn a_payer_that_agrees_has_no_difference(mut place: Place<'_>) {
    let mut lines = day(&mut place);
    let statement = place.compare("bank", DAY, 2 * DAY, &lines);
    assert_eq!(place.found(&statement), []);
    assert!(statement.agrees());
    // The one whose order was made before: nobody knows on which day the payer has paid it.
    assert_eq!((statement.unclear, statement.compared_lines), (1, 2));
    let sum = &statement.sums[0];
    assert_eq!((sum.paid, sum.agreed, sum.in_ledger), ((2, 15), (2, 15), (4, 65)));
    // The payer may list all of these.
    lines.extend(
        ["over-an-end", "at-the-end"].map(order_key).iter().zip([20, 30]).map(|(key, sum)| paid(key, sum)),
    );
    lines.push(paid(&order_key("yesterday"), 50));
    let statement = place.compare("bank", DAY, 2 * DAY, &lines);
    assert_eq!((place.found(&statement), statement.unclear), (vec![], 0));
    let front = [paid("withdrawal app 2 w-front", 5)];
    assert!(place.compare("front end", DAY, 2 * DAY, &front).agrees());
    // A payer may list what it returned, too; it is in no sum of what it paid.
    lines.push(returned(&order_key("refused"), 70));
    lines.push(returned("withdrawal app 2 w-back", 5));
    let statement = place.compare("bank", DAY, 2 * DAY, &lines);
    assert_eq!(place.found(&statement), []);
    assert_eq!((statement.sums[0].paid.0, statement.sums[0].returned), (5, (2, 75)));
    assert_eq!(place.open(), 0);
    // Whoever has nothing to say speaks, too.
    let nothing = place.compare("nobody", DAY, 2 * DAY, &[]);
    assert!(nothing.agrees() && nothing.sums.is_empty());
}

/// Each kind, by what the payer says.
pub fn each_kind_of_difference_is_found(mut place: Place<'_>) {
    let agreed = day(&mut place);
    let with = |more: &[Line]| [&agreed[..], more].concat();
    let held = "withdrawal app 2 w-held";
    let mut of_type = paid(&order_key("at-the-end"), 30);
    of_type.1 = "coin";
    let cases: Vec<(&str, Vec<Line>, String)> = vec![
        ("payer_key_unknown", with(&[paid("order spring nobody", 1)]), order_key("nobody")),
        ("payer_key_unknown", with(&[paid("what is this", 1)]), "what is this".into()),
        // The tenant is a part of the key that the payer was given.
        (
            "payer_key_unknown",
            with(&[paid("withdrawal other 2 w-held", 5)]),
            "withdrawal other 2 w-held".into(),
        ),
        ("payer_is_another", with(&[paid(&order_key("of-another"), 40)]), order_key("of-another")),
        ("payer_is_another", with(&[paid(&order_key("own"), 90)]), order_key("own")),
        ("payer_is_another", with(&[paid("withdrawal app 2 w-front", 5)]), "withdrawal app 2 w-front".into()),
        ("payer_paid_returned", with(&[paid(&order_key("refused"), 70)]), order_key("refused")),
        (
            "payer_paid_returned",
            with(&[paid("withdrawal app 2 w-back", 5)]),
            "withdrawal app 2 w-back".into(),
        ),
        ("payer_in_flight", with(&[paid(&order_key("waits"), 80)]), order_key("waits")),
        ("payer_in_flight", with(&[paid(held, 5)]), held.into()),
        ("payer_mismatch", with(&[paid(&order_key("at-the-end"), 31)]), order_key("at-the-end")),
        ("payer_mismatch", with(&[of_type]), order_key("at-the-end")),
        ("payer_repeated", with(&agreed[..1]), order_key("in-time")),
        ("payer_lacks", agreed[1..].to_vec(), order_key("in-time")),
        ("payer_lacks", agreed[..1].to_vec(), "withdrawal app 2 w-paid".into()),
        ("payer_returned_paid", with(&[returned(&order_key("at-the-end"), 30)]), order_key("at-the-end")),
    ];
    for (kind, lines, key) in &cases {
        let statement = place.compare("bank", DAY, 2 * DAY, lines);
        let subject = format!("key \"{key}\" of payer \"bank\"");
        assert_eq!(place.found(&statement), [((*kind).to_owned(), subject)], "{lines:?}");
        assert!(!statement.agrees());
        // The same difference in another statement of the same payer is the same row.
        let open = place.open();
        let again = place.compare("bank", DAY, 2 * DAY, lines);
        assert_eq!((again.differences, place.open()), (1, open));
    }
    // What differs in more than one way is told as such.
    let both = place.compare("bank", DAY, 2 * DAY, &with(&[paid(&order_key("waits"), 81)]));
    let kinds: Vec<String> = place.found(&both).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["payer_in_flight", "payer_mismatch"]);
    let sum = &both.sums[0];
    assert_eq!((sum.paid, sum.agreed), ((3, 96), (2, 15)));
}

/// Statements that meet speak together: what one cannot claim the next one does, and no payment is claimed that another lists.
pub fn statements_that_meet_leave_no_gap(mut place: Place<'_>) {
    place.pay("late", 10, "bank", 23 * HOUR, 26 * HOUR);
    place.pay("close", 20, "bank", 23 * HOUR, 23 * HOUR + HOUR / 2);
    let first = [paid(&order_key("late"), 10), paid(&order_key("close"), 20)];
    // The payer paid both on the first day, and the ledger learned of one of them on the second.
    assert!(place.compare("bank", 0, DAY, &first).agrees());
    let second = place.compare("bank", DAY, 2 * DAY, &[]);
    assert_eq!((place.found(&second), second.unclear), (vec![], 0));
    // Another payer's statement says nothing about them.
    let other = place.compare("post", DAY, 2 * DAY, &[]);
    assert!(other.agrees());
    // Payments that neither day lists.
    place.pay("lost-late", 10, "bank", 3 * DAY - HOUR, 3 * DAY + 2 * HOUR);
    place.pay("lost-close", 20, "bank", 3 * DAY - HOUR, 3 * DAY - HOUR / 2);
    let third = place.compare("bank", 2 * DAY, 3 * DAY, &[]);
    assert!(third.agrees());
    let fourth = place.compare("bank", 3 * DAY, 4 * DAY, &[]);
    let keys: Vec<String> = place.found(&fourth).into_iter().map(|(_, subject)| subject).collect();
    let subject = |name: &str| format!("key \"{}\" of payer \"bank\"", order_key(name));
    assert_eq!(keys, [subject("lost-close"), subject("lost-late")]);
}

/// What a payer refused may be replayed and paid afterwards: the statement of its day says returned, and is right; that of the day on
/// which it was paid has to list it.
pub fn a_refused_order_that_is_paid_later_is_the_next_statements(mut place: Place<'_>) {
    let key = order_key("again");
    place.reserve("again", 10, "bank", 12 * HOUR);
    place.ledger.transact(|tx| tx.release(&[(id("again"), Reason::DownstreamRefused)], 13 * HOUR)).unwrap();
    assert!(place.compare("bank", 0, DAY, &[returned(&key, 10)]).agrees());
    let orders = [order("again", 10, 12 * HOUR)];
    place.ledger.transact(|tx| tx.reserve(&orders, &["bank"], Attempt::Replay)).unwrap();
    place.ledger.transact(|tx| tx.post(&[id("again")], DAY + HOUR / 2)).unwrap();
    assert!(place.compare("bank", 0, DAY, &[returned(&key, 10)]).agrees(), "it was paid on the next day");
    let lacks = place.compare("bank", DAY, 2 * DAY, &[]);
    assert_eq!(place.found(&lacks), [("payer_lacks".to_owned(), format!("key \"{key}\" of payer \"bank\""))]);
    assert!(place.compare("bank", DAY, 2 * DAY, &[paid(&key, 10)]).agrees());
    let wrong = place.compare("bank", DAY, 2 * DAY, &[returned(&key, 10)]);
    assert_eq!(place.found(&wrong)[0].0, "payer_returned_paid");
}

/// A payment in the margin of a statement whose order may be older than all statements is counted by the next one.
pub fn what_nobody_can_claim_is_counted(mut place: Place<'_>) {
    place.pay("old", 5, "bank", HOUR / 2, DAY - HOUR / 2);
    assert_eq!(place.compare("bank", 0, DAY, &[]).unclear, 0);
    let next = place.compare("bank", DAY, 2 * DAY, &[]);
    assert_eq!((place.found(&next), next.unclear), (vec![], 1));
}

fn act(ledger: &mut Ledger, deed: Deed) {
    let by = |name: &str| Operator { name: name.into(), actor: String::new() };
    let (reason, evidence) = ("why".into(), "ticket".into());
    let proposal = Proposal { deed, reason, evidence, operator: by("ann"), time_ms: 1, expires_ms: 99 * DAY };
    let Proposed::Now(act) = ledger.transact(|tx| tx.propose_act(&proposal)).unwrap() else { panic!("new") };
    let ended = ledger.transact(|tx| tx.approve_act(act.id, &by("bob"), 2)).unwrap();
    let Ended::Now(act) = ended else { panic!("{ended:?}") };
    assert_eq!(act.end.unwrap().outcome, ActOutcome::Done);
}

/// What two operators did counts: what they took back, and what they settled.
pub fn what_operators_did_is_known(mut place: Place<'_>) {
    let agreed = day(&mut place);
    let (activity, trade_no) = ("spring".to_owned(), "in-time".to_owned());
    act(&mut place.ledger, Deed::Reverse { activity, trade_no, take_what_is_there: false, keep: 0 });
    for lines in [
        agreed.clone(),
        agreed[1..].to_vec(),
        [&agreed[1..], &[returned(&order_key("in-time"), 10)]].concat(),
    ] {
        let statement = place.compare("bank", DAY, 2 * DAY, &lines);
        assert_eq!(place.found(&statement), [], "{lines:?}");
    }
    let (activity, trade_no) = ("spring".to_owned(), "waits".to_owned());
    let lines = [&agreed[..], &[paid(&order_key("waits"), 80)]].concat();
    let before = place.compare("bank", DAY, 2 * DAY, &lines);
    assert_eq!(place.found(&before)[0].0, "payer_in_flight");
    act(&mut place.ledger, Deed::SettleOrder { activity, trade_no, paid: true });
    assert!(place.compare("bank", DAY, 2 * DAY, &lines).agrees());
}

/// An upload is whole or nothing, and each batch counts once.
pub fn a_statement_is_compared_only_as_a_whole(mut place: Place<'_>) {
    let lines = day(&mut place);
    let mut auditor = place.audited();
    let early = auditor.begin_payer_statement(&new("early", "bank", DAY, 2 * DAY), 2 * DAY + HOUR - 1);
    assert!(matches!(early, Err(PayerStatementError::TooEarly { at_ms }) if at_ms == 2 * DAY + HOUR));
    let id = auditor.begin_payer_statement(&new("one", "bank", DAY, 2 * DAY), NOW).unwrap().id;
    assert_eq!(auditor.begin_payer_statement(&new("one", "bank", DAY, 2 * DAY), NOW + 1).unwrap().id, id);
    let other = auditor.begin_payer_statement(&new("one", "post", DAY, 2 * DAY), NOW);
    assert!(matches!(other, Err(PayerStatementError::OtherUpload)));
    let all = of(&lines);
    for first in [0, 2] {
        let gap = auditor.append_payer_lines(id, first, &all[..1]);
        assert!(matches!(gap, Err(PayerStatementError::OutOfPlace { next: 1 })), "{gap:?}");
    }
    let none = auditor.append_payer_lines(id, 1, &[]);
    assert!(matches!(none, Err(PayerStatementError::Bad(BadPayerStatement::Batch))));
    assert_eq!(auditor.append_payer_lines(id, 1, &all[..1]).unwrap(), 2);
    let overlaps = auditor.append_payer_lines(id, 1, &all);
    assert!(matches!(overlaps, Err(PayerStatementError::OutOfPlace { next: 2 })));
    let changed = auditor.append_payer_lines(id, 1, &all[1..]);
    assert!(matches!(changed, Err(PayerStatementError::OtherLine(1))));
    // Half of it is here, by its lines or by its sums.
    let whole = totals(&lines);
    let half = auditor.compare_payer_statement(id, &whole, NOW).unwrap_err();
    assert_eq!(
        half.to_string(),
        "the statement is not here as a whole: 2 lines were announced, and 1 are here"
    );
    assert_eq!(auditor.append_payer_lines(id, 2, &all[1..]).unwrap(), 3);
    let mut wrong = whole.clone();
    wrong.paid.get_mut("cash").unwrap().1 += 1;
    let sums = auditor.compare_payer_statement(id, &wrong, NOW).unwrap_err();
    assert!(matches!(sums, PayerStatementError::NotWhole { .. }), "{sums}");
    assert_eq!(place.open(), 0);
    let begun = auditor.compare_payer_statement(id, &whole, NOW).unwrap();
    assert_eq!(begun.state, PayerStatementState::Comparing);
    let late = auditor.append_payer_lines(id, 3, &all[..1]);
    assert!(matches!(late, Err(PayerStatementError::Ended(_))));
    while auditor.compare_payer_statement(id, &whole, NOW).unwrap().state != PayerStatementState::Compared {}
    // After its end a call changes nothing.
    let sums = auditor.compare_payer_statement(id, &whole, NOW + 1).unwrap();
    assert_eq!((sums.compared_ms, sums.sums[0].agreed), (Some(NOW), (2, 15)));
    let unknown = auditor.append_payer_lines(id + 99, 1, &all);
    assert!(matches!(unknown, Err(PayerStatementError::NotFound(_))));
    let large = of(&[paid("a", i64::MAX), paid("b", 1)]);
    let id = auditor.begin_payer_statement(&new("large", "bank", DAY, 2 * DAY), NOW).unwrap().id;
    let large = auditor.append_payer_lines(id, 1, &large);
    assert!(matches!(large, Err(PayerStatementError::Bad(BadPayerStatement::Sum(_)))), "{large:?}");
    let listed = auditor.payer_statements(Some("bank"), i64::MAX, 10).unwrap();
    let states: Vec<_> = listed.iter().map(|one| (one.lines, one.state)).collect();
    assert_eq!(states, [(0, PayerStatementState::Uploading), (2, PayerStatementState::Compared)]);
    assert!(auditor.payer_statements(Some("post"), i64::MAX, 10).unwrap().is_empty());
}

/// A file that has nothing to do with the ledger does not fill the table of differences.
pub fn a_wrong_file_does_not_fill_the_table(place: Place<'_>) {
    let lines: Vec<Line> = (0..1_200).map(|nth| paid(&format!("strange {nth}"), 1)).collect();
    let mut auditor = place.audited().with_limits(AuditLimits::default());
    let id = upload(&mut auditor, "bank", DAY, 2 * DAY, &lines);
    let totals = totals(&lines);
    let statement = loop {
        let statement = auditor.compare_payer_statement(id, &totals, NOW).unwrap();
        if statement.state == PayerStatementState::Compared {
            break statement;
        }
    };
    assert_eq!((statement.differences, place.open()), (1_001, 1_001));
}

/// An auditor of the release before has made tables, but not these.
pub fn tables_are_made_beside_those_of_the_release_before(mut place: Place<'_>) {
    let lines = day(&mut place);
    let own =
        "audit_statements audit_statement_lines audit_statement_sums audit_statement_differences audit_times";
    drop(place.audited());
    for table in own.split(' ') {
        (place.raw)(&format!("DROP TABLE {table}"));
    }
    assert!(place.compare("bank", DAY, 2 * DAY, &lines).agrees());
}

/// A payer whose clock is not the ledger's, answers that are lost, days that follow one another: nothing is claimed of what
/// agrees, and each payment that the payer has not made is found by the day that must have had it, or by the next.
pub fn days_of_a_payer_with_another_clock_agree(mut place: Place<'_>) {
    let mut days: Vec<Vec<Line>> = vec![Vec::new(); 6];
    let mut seed = 42_u64;
    let mut below = |limit: i64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(seed >> 33).unwrap() % limit
    };
    let mut lost = Vec::new();
    for nth in 0..150 {
        let name = format!("n-{nth}");
        let made_ms = HOUR + below(4 * DAY);
        // The payer pays at once, or after its outage; the ledger learns of it then, or much later.
        let by_payer_ms = made_ms + if below(5) == 0 { below(5 * HOUR) } else { below(HOUR / 60) };
        let known_ms = by_payer_ms + if below(5) == 0 { below(20 * HOUR) } else { below(HOUR / 60) };
        let shown_ms = by_payer_ms + below(HOUR) - HOUR / 2;
        place.pay(&name, 1 + nth, "bank", made_ms, known_ms);
        if below(10) == 0 {
            lost.push(name);
        } else {
            days[usize::try_from(shown_ms / DAY).unwrap()].push(paid(&order_key(&name), 1 + nth));
        }
    }
    let mut found = Vec::new();
    for (nth, lines) in (0..).zip(&days) {
        let statement = place.compare("bank", nth * DAY, (nth + 1) * DAY, lines);
        found.extend(place.found(&statement));
    }
    let mut expected: Vec<_> = lost
        .iter()
        .map(|name| ("payer_lacks".to_owned(), format!("key \"{}\" of payer \"bank\"", order_key(name))))
        .collect();
    found.sort();
    expected.sort();
    assert!(!expected.is_empty());
    assert_eq!(found, expected);
}

/// Writers go on meanwhile: a comparison ends at what there was.
pub fn writers_do_not_hold_a_comparison_up(mut place: Place<'_>) {
    let lines = day(&mut place);
    let mut auditor = place.audited();
    let id = upload(&mut auditor, "bank", DAY, 2 * DAY, &lines);
    for nth in 0..100 {
        let statement = auditor.compare_payer_statement(id, &totals(&lines), NOW).unwrap();
        if statement.state == PayerStatementState::Compared {
            assert!(statement.agrees(), "{:?}", place.found(&statement));
            return;
        }
        for more in 0..4 {
            place.pay(&format!("now-{nth}-{more}"), 1, "bank", NOW, NOW);
        }
        // Another comparison closes ranges that this one is in the middle of.
        if nth == 5 {
            assert!(place.compare("post", 9 * DAY, 10 * DAY, &[]).agrees());
        }
    }
    panic!("it does not end");
}
