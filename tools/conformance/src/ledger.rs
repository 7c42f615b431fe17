//! What every database has to show behind [`Ledger`]: each sentence of its contract, as a check.
//!
//! A database's tests make a [`Fixture`] and call [`run`]; each check has a fresh ledger. Where one writer is all
//! there can be ([`Writers::One`]), checks of concurrency run with one.

mod acts;
mod archive;
mod budgets;
mod chain;
mod closing;
mod concurrent;
mod corrections;
mod model;
mod once;
mod race;
mod reserve;
mod statement;
mod withdrawals;

use std::error::Error;
use windfall_ledger::{
    Attempt, Auditor, Ledger, LedgerError, LedgerReader, OpenError, Order, OrderId, OrderOutcome, Sealer, Tx,
    Unbudgeted, WithdrawalId, Writers,
};

/// The result of a check; its assertions panic.
pub type Outcome = Result<(), Box<dyn Error>>;

/// Makes ledgers of one database.
pub trait Fixture {
    /// A ledger that was never there before.
    ///
    /// # Errors
    /// Whatever stands in the way; it fails the check.
    fn fresh(&self) -> Result<Box<dyn Place>, Box<dyn Error>>;
}

/// The place of one ledger.
pub trait Place: Send + Sync {
    /// Opens it for writing.
    ///
    /// # Errors
    /// What the database says; it fails the check.
    fn open(&self, unbudgeted: Unbudgeted) -> Result<Ledger, OpenError>;

    /// Opens it for reading.
    ///
    /// # Errors
    /// What the database says; it fails the check.
    fn reader(&self) -> Result<LedgerReader, OpenError>;

    /// Opens it as the owner of its tables, where that is another user than who writes it. None: who writes it owns it.
    ///
    /// # Errors
    /// What the database says; it fails the check.
    fn owner(&self) -> Result<Option<Ledger>, OpenError> {
        Ok(None)
    }

    /// Opens it for sealing.
    ///
    /// # Errors
    /// What the database says; it fails the check.
    fn sealer(&self) -> Result<Sealer, OpenError>;

    /// Opens it for auditing.
    ///
    /// # Errors
    /// What the database says; it fails the check.
    fn auditor(&self) -> Result<Auditor, OpenError>;
}

/// One check: its name, and what it does.
pub type Check = (&'static str, fn(&dyn Place) -> Outcome);

/// All checks on one ledger.
pub const CHECKS: &[Check] = &[
    ("an order credits once, and another one under its number never", once::credits_once),
    ("repeats within a batch are answered as if one after another", once::repeats_within_a_batch),
    ("old orders among new ones, in large batches", once::large_batches),
    ("an order number of another scene is a conflict", once::scene),
    ("the same order number in another activity is another order", once::activities),
    ("two activities with the same order numbers, held and ended at once", reserve::activities),
    ("a replay decides a rejected order anew", once::replays),
    ("what is not committed never was", once::not_committed),
    ("a bad order spoils its whole batch", once::bad_order),
    ("a sum beyond 64 bits is an error", once::overflow),
    ("a budget gives all it has and no more, whatever its shards", budgets::all_and_no_more),
    ("an amount that no shard holds alone is gathered", budgets::gathered),
    ("a total is never lowered below what is given and held", budgets::never_below),
    ("without a budget, orders are refused where the option says so", budgets::unbudgeted),
    ("an order takes from every combined budget that covers it, or from none", budgets::combined),
    ("a strict budget goes out in the order of arrival", budgets::strict),
    (
        "writers at once take from combined budgets, make new ones under them, and set them",
        concurrent::combined,
    ),
    ("writers at once never pass a cap that is set and lifted under them", concurrent::cap),
    ("a reservation ends once and either way", reserve::ends_once),
    ("many reservations in one call", reserve::many),
    ("a promised order is credited once, from what is held, when its event comes", reserve::promised),
    ("a promised order whose type a downstream pays by now is not paid twice", reserve::promised_then_asked),
    ("a reservation is the payer's that was given first, whatever a repeat gives", reserve::first_payer),
    ("what a payer paid is settled with it, and never withdrawn", reserve::settled_with_its_payer),
    ("an order of version 1 gets the payer that is asked first, and keeps it", reserve::no_payer_yet),
    ("a cap bounds one order, or its type in every activity", budgets::caps),
    ("a process with older rules sets no budget back", budgets::older_rules),
    ("the newest rules that were run are noted, and lowered by name alone", budgets::newest_rules),
    ("writers at once keep and give up promises once", concurrent::promises),
    ("writers at once hand promised orders over once", concurrent::hand_overs),
    ("the archive keeps an event once a reason, and audits replays", archive::once_a_reason),
    ("writers at once credit an order once", concurrent::same_orders),
    ("writers at once never overdraw a budget, and use all of it", concurrent::one_budget),
    ("writers at once set a budget while others take from it", concurrent::split_anew),
    ("writers at once credit the same order numbers of two activities once each", concurrent::activities),
    ("writers at once end a reservation once", concurrent::finishes),
    ("writers at once replay an order once", concurrent::replays),
    ("a withdrawal is held once, another under its id never, and no balance goes below 0", withdrawals::once),
    ("the same id of another user is another withdrawal", withdrawals::users),
    ("a withdrawal ends once, paid or given back, and the flow shows it", withdrawals::ends),
    ("a held withdrawal is its first payer's, and is listed until it ends", withdrawals::held),
    ("withdrawals that are held, of all users, by time", withdrawals::held_by_time),
    ("withdrawals and credits in one transaction", withdrawals::within_a_transaction),
    ("a withdrawal that is not committed never was", withdrawals::not_committed),
    ("writers at once hold and end withdrawals while credits arrive", withdrawals::at_once),
    ("a reader that is kept sees what was committed since", withdrawals::kept_reader),
    ("a statement's pages hold each line once, with the balance after it", statement::balances_of_lines),
    ("the pages of a wallet's movements are the statement's lines", statement::flow_pages),
    ("a cursor of a statement leads to the same lines, whatever comes later", statement::stable_cursors),
    ("a cursor that a caller has made up leads to the user's own lines alone", statement::invented_cursors),
    ("a statement and its balances as they were at a time", statement::back_then),
    ("a user's withdrawals by status, in pages", statement::withdrawals),
    ("writers at once move an account: its statement follows its chain", statement::at_once),
    ("lines of several accounts are in the order of their times", statement::by_time),
    ("a page of withdrawals of one status looks a bounded number up", statement::few_look_ups),
    ("a call passes over a bounded number of lines", statement::bounded),
    ("an act is done once, in time, and by two operators", acts::two_operators),
    (
        "an act that was done is never done again, and one that came to nothing is proposed anew",
        acts::repeats,
    ),
    ("an order that waits for its payer is settled or released by an act, once", acts::settle_orders),
    ("a held withdrawal is settled by an act, once", acts::settle_withdrawals),
    ("an act is about the order of its activity, and the withdrawal of its user, alone", acts::same_number),
    ("a credited order is reversed once, never below 0, and never credited again", acts::reverse),
    ("what a payer paid is reversed from its settlement", acts::reverse_settled),
    ("an adjustment moves money between a user and a budget or a funding", acts::adjust),
    ("no withdrawal of a frozen user is held, and grants go on", acts::freeze),
    ("writers at once approve an act once, and reverse an order once", acts::at_once),
    ("writers at once freeze users and hold withdrawals: nothing is held behind", acts::freeze_at_once),
    ("a correction takes every wrong order back once, and each of them is an act", corrections::takes_back),
    (
        "a correction takes no more than was approved, and none that could not be is proposed",
        corrections::within_its_limits,
    ),
    ("writers at once carry two corrections out: each order is taken back once", corrections::at_once),
    ("random acts among grants and withdrawals: each thing once, all sums zero", acts::random),
    (
        "a race of all that moves money, acts of operators and withdrawals among it, with lost answers",
        race::all_that_moves_money,
    ),
    ("a closed activity gives nothing more, and others go on", closing::gives_nothing),
    ("a closed activity is opened again while its orders are there", closing::reopened),
    ("the rows of a closed activity are read as a whole, and its orders go", closing::rows_and_orders_go),
    ("orders go when their transfers were audited and sealed, or by name", closing::proved_or_by_name),
    ("orders that an export lacks are noticed when they have gone", closing::wrong_export),
    ("writers at once grant what is being closed: nothing comes behind", closing::at_once),
    ("a place that is none is refused, and an activity that is none has no rows", closing::bad_places),
    ("each transfer is sealed once, in ranges of whole transactions", chain::seals_once),
    ("writers and sealers at once: each transfer is sealed once, and the chain is whole", chain::at_once),
];

/// Runs all checks, and random histories against a model.
///
/// # Panics
/// A check failed; its name and the failure are printed.
pub fn run(fixture: &dyn Fixture) {
    for (name, check) in CHECKS {
        let outcome = fixture.fresh().and_then(|place| check(&*place));
        passed(name, outcome);
    }
    passed("random histories do what a model does", model::histories(fixture));
}

fn passed(name: &str, outcome: Outcome) {
    if let Err(error) = outcome {
        panic!("{name}: {error}");
    }
    eprintln!("passed: {name}");
}

fn order(trade_no: &str, user_id: i64, amount: i64) -> Order<'_> {
    Order { trade_no, user_id, activity: "spring", scene: "rain", bonus_type: "cash", amount, time_ms: 1_000 }
}

/// The name of an order of [`order`].
fn id(trade_no: &str) -> OrderId<'_> {
    OrderId { activity: "spring", trade_no }
}

fn ids<'a>(trade_nos: &[&'a str]) -> Vec<OrderId<'a>> {
    trade_nos.iter().map(|trade_no| id(trade_no)).collect()
}

/// The name of a withdrawal.
const fn out(user_id: i64, id: &str) -> WithdrawalId<'_> {
    WithdrawalId { user_id, id }
}

/// For a downstream.
fn reserve(tx: &mut Tx<'_>, batch: &[Order<'_>], attempt: Attempt) -> Result<Vec<OrderOutcome>, LedgerError> {
    tx.reserve(batch, &vec!["bank"; batch.len()], attempt)
}

fn budget(total: i64, shards: u32) -> windfall_ledger::BudgetSet<'static> {
    windfall_ledger::BudgetSet { activity: "spring", scene: "rain", bonus_type: "cash", total, shards }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("order/{nth:05}")).collect()
}

fn open(place: &dyn Place) -> Result<Ledger, OpenError> {
    place.open(Unbudgeted::Allow)
}

/// Opens `count` writers, as far as the database allows.
fn writers(place: &dyn Place, count: usize) -> Result<Vec<Ledger>, OpenError> {
    let first = open(place)?;
    let more = if first.writers() == Writers::One { 0 } else { count - 1 };
    let more = (0..more).map(|_| first.another()).collect::<Result<Vec<_>, _>>()?;
    Ok(std::iter::once(first).chain(more).collect())
}

/// What this payer has settled in cash.
fn settled(place: &dyn Place, payer: &str) -> Result<i64, Box<dyn Error>> {
    let all = place.reader()?.settlements()?;
    let own = all.iter().filter(|one| (one.payer.as_str(), one.bonus_type.as_str()) == (payer, "cash"));
    Ok(own.map(|one| one.amount).sum())
}

/// Everything fits together.
fn clean(place: &dyn Place) -> Outcome {
    let found = place.reader()?.reconcile()?;
    assert!(found.is_clean(), "{found:?}");
    Ok(())
}
