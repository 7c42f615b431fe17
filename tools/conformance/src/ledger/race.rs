//! One race of all that moves money: many tasks, each with its own choices, on few users and one budget that is too small. They
//! grant, ask for the same grant again, withdraw, end payouts by their payer's word, and two operators reverse, adjust, settle,
//! freeze and thaw. Some die before their commit, and of some calls the answer is lost, so that they are made again.
//!
//! What the tasks may choose follows from the seed. Where one writer is all there can be, so does their order, and a run is
//! repeated as it was; where there are many writers, each has a thread.

mod proof;
mod seen;

use super::acts::{by, reversal};
use super::chain::{Memory, PATIENCE};
use super::model::{Dice, seed};
use super::{Outcome, Place, budget, id, open, order, out, writers};
use parking_lot::Mutex;
use seen::Seen;
use std::time::Instant;
use windfall_contract::accounts::{Reason, Withdrawal, WithdrawalOutcome};
use windfall_ledger::{
    Attempt, AuditError, Auditor, Compared, Deed, Ended, FRONT_END, Finish, HoldOutcome, Ledger, LedgerError,
    Order, OrderOutcome, Proposal, Proposed, Sealer, Tx, WithdrawalId,
};

const TASKS: u64 = 6;
/// Calls of a task, without repeats of those whose answer is lost.
const STEPS: u64 = 150;
const USERS: u64 = 4;
const ORDERS: u64 = 200;
const WITHDRAWALS: u64 = 100;
/// About a third of what all orders are worth.
const TOTAL: i64 = 500;
/// Nothing expires meanwhile.
const LONG_MS: i64 = 1_000_000;
/// Orders stand in groups of so many, of one user each: one is promised, two are a payer's, and two are credited at once.
const GROUP: u64 = 5;

/// Who ends an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// The ledger credits it at once.
    Credited,
    /// It is promised, and credited when its event comes.
    Promised,
    /// A payer is asked.
    Paid,
}

const fn path_of(order: u64) -> Path {
    match order % GROUP {
        0 => Path::Promised,
        1 | 2 => Path::Paid,
        _ => Path::Credited,
    }
}

fn user_of(number: u64) -> i64 {
    (number / GROUP % USERS).cast_signed()
}

fn amount_of(number: u64) -> i64 {
    1 + (number * 7 % 13).cast_signed()
}

fn trade_no(order: u64) -> String {
    format!("race/{order:04}")
}

fn withdrawal_id(withdrawal: u64) -> String {
    format!("out/{withdrawal:04}")
}

/// The number of an order or a withdrawal.
fn number_of(name: &str) -> Option<u64> {
    name.rsplit('/').next()?.parse().ok()
}

/// Repeats a transaction that others were in the way of. Of one whose commit was not answered nobody knows: it is asked again.
fn at_last<T>(
    ledger: &mut Ledger,
    steps: &mut impl FnMut(&mut Tx<'_>) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    let began = Instant::now();
    loop {
        match ledger.transact(&mut *steps) {
            Err(LedgerError::Contended(_) | LedgerError::Unknown(_)) if began.elapsed() < PATIENCE => {}
            done => return done,
        }
    }
}

/// A call: its process may die before the commit, or its answer may be lost, and then it is made again. `tell` hears of every
/// answer; what is returned is the one that came back.
fn ask<T>(
    ledger: &mut Ledger,
    dice: &mut Dice,
    mut steps: impl FnMut(&mut Tx<'_>) -> Result<T, LedgerError>,
    mut tell: impl FnMut(&T),
) -> Result<T, LedgerError> {
    match dice.below(6) {
        0 => {
            let mut tx = ledger.begin()?;
            match steps(&mut tx) {
                Ok(_) | Err(LedgerError::Contended(_)) => {}
                Err(error) => return Err(error),
            }
        }
        1 => tell(&at_last(ledger, &mut steps)?),
        _ => {}
    }
    let answer = at_last(ledger, &mut steps)?;
    tell(&answer);
    Ok(answer)
}

/// One who calls. Some also seal, and one audits.
struct Task<'r> {
    nth: u64,
    step: u64,
    dice: Dice,
    sealer: Option<(Sealer, Memory)>,
    auditor: Option<Auditor>,
    seen: &'r Mutex<Seen>,
}

impl<'r> Task<'r> {
    fn new(
        place: &dyn Place,
        nth: u64,
        seed: u64,
        anchor: &Memory,
        seen: &'r Mutex<Seen>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        // The first numbers of neighbouring seeds are unlike each other.
        let dice = Dice(Dice(seed.wrapping_mul(TASKS).wrapping_add(nth)).below(u64::MAX));
        let sealer = if nth < 2 { Some((place.sealer()?.with_rows_max(40), anchor.clone())) } else { None };
        let auditor = if nth == 0 { Some(place.auditor()?) } else { None };
        Ok(Self { nth, step: 0, dice, sealer, auditor, seen })
    }

    fn step(&mut self, ledger: &mut Ledger) -> Outcome {
        self.step += 1;
        match self.dice.below(26) {
            0..6 => self.grant(ledger, Path::Credited),
            6..8 => self.grant(ledger, Path::Promised),
            8..11 => self.grant(ledger, Path::Paid),
            11..13 => self.end_order(ledger),
            13..16 => self.withdraw(ledger),
            16..18 => self.end_withdrawal(ledger),
            18..21 => self.propose(ledger),
            21..25 => self.decide(ledger),
            _ => self.look(ledger),
        }
    }

    /// Grants a few orders of this path; those of a promise are credited by their event in a later step, or in this one.
    fn grant(&mut self, ledger: &mut Ledger, path: Path) -> Outcome {
        let count = 1 + self.dice.below(4);
        let numbers: Vec<u64> = (0..count).map(|_| self.order_of(path)).collect();
        let attempt = if self.dice.below(3) == 0 { Attempt::Replay } else { Attempt::Normal };
        let is_event = self.dice.below(2) == 0;
        let names: Vec<String> = numbers.iter().map(|number| trade_no(*number)).collect();
        let batch: Vec<Order<'_>> = numbers
            .iter()
            .zip(&names)
            .map(|(number, name)| order(name, user_of(*number), amount_of(*number)))
            .collect();
        let seen = self.seen;
        let before: Vec<bool> = numbers.iter().map(|number| seen.lock().was_said(*number)).collect();
        let steps = |tx: &mut Tx<'_>| match path {
            Path::Paid => super::reserve(tx, &batch, attempt),
            Path::Promised if !is_event => tx.promise(&batch, attempt),
            Path::Promised | Path::Credited => tx.apply(&batch, attempt),
        };
        let answer = ask(ledger, &mut self.dice, steps, |outcomes: &Vec<OrderOutcome>| {
            let mut seen = seen.lock();
            for ((number, outcome), was_said) in numbers.iter().zip(outcomes).zip(&before) {
                seen.tell_order(*number, *outcome, *was_said);
            }
        })?;
        if path == Path::Paid {
            for (number, outcome) in numbers.iter().zip(answer) {
                if outcome == OrderOutcome::Reserved {
                    let pays = self.dice.below(3) > 0;
                    seen.lock().paid_orders.entry(*number).or_insert(pays);
                }
            }
        }
        Ok(())
    }

    fn order_of(&mut self, path: Path) -> u64 {
        let within = match path {
            Path::Promised => 0,
            Path::Paid => 1 + self.dice.below(2),
            Path::Credited => 3 + self.dice.below(2),
        };
        self.dice.below(ORDERS / GROUP) * GROUP + within
    }

    /// A payer's word on an order, also one that was given before.
    fn end_order(&mut self, ledger: &mut Ledger) -> Outcome {
        let number = self.order_of(Path::Paid);
        let Some(paid) = self.seen.lock().paid_orders.get(&number).copied() else { return Ok(()) };
        let (name, seen) = (trade_no(number), self.seen);
        let steps = |tx: &mut Tx<'_>| match paid {
            true => tx.post(&[id(&name)], 2_000),
            false => tx.release(&[(id(&name), Reason::DownstreamRefused)], 2_000),
        };
        ask(ledger, &mut self.dice, steps, |done: &Vec<Finish>| {
            for finish in done {
                match paid {
                    true => seen.lock().tell_paid(number, *finish),
                    // One that an operator has had its payer refuse may never have been reserved.
                    false => {
                        assert_ne!(*finish, Finish::Otherwise, "order {number}, which its payer has refused")
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Holds money, and where the answer came back asks the payer, who pays at most once whatever it is asked.
    fn withdraw(&mut self, ledger: &mut Ledger) -> Outcome {
        let number = self.dice.below(WITHDRAWALS);
        let asked = Withdrawal {
            id: withdrawal_id(number),
            user_id: user_of(number),
            bonus_type: "cash".into(),
            amount: amount_of(number),
        };
        let payer = if number.is_multiple_of(2) { "bank" } else { FRONT_END };
        let seen = self.seen;
        let answer = ask(
            ledger,
            &mut self.dice,
            |tx| tx.hold(&[(&asked, payer)], 3_000),
            |outcomes: &Vec<HoldOutcome>| {
                for outcome in outcomes {
                    match outcome {
                        HoldOutcome::Held => *seen.lock().held.entry(number).or_default() += 1,
                        HoldOutcome::HeldBefore { payer: first } => assert_eq!(first, payer),
                        HoldOutcome::Decided(WithdrawalOutcome::Short { balance }) => {
                            assert!((0..asked.amount).contains(balance), "{asked:?}: {balance}");
                        }
                        HoldOutcome::Decided(WithdrawalOutcome::Conflict) => panic!("{asked:?}"),
                        HoldOutcome::Decided(_) => {}
                    }
                }
            },
        )?;
        if matches!(answer[..], [HoldOutcome::Held | HoldOutcome::HeldBefore { .. }]) {
            let pays = self.dice.below(3) > 0;
            seen.lock().paid_withdrawals.entry(number).or_insert(pays);
        }
        Ok(())
    }

    fn end_withdrawal(&mut self, ledger: &mut Ledger) -> Outcome {
        let number = self.dice.below(WITHDRAWALS);
        let Some(paid) = self.seen.lock().paid_withdrawals.get(&number).copied() else { return Ok(()) };
        let (name, seen) = (withdrawal_id(number), self.seen);
        let which = out(user_of(number), &name);
        let steps = |tx: &mut Tx<'_>| end(tx, which, paid);
        ask(ledger, &mut self.dice, steps, |done: &Vec<Finish>| {
            done.iter().for_each(|finish| seen.lock().tell_end(number, *finish, paid));
        })?;
        Ok(())
    }

    /// What an operator asks for. One who settles asks the payer first, which from then on stays with what it said.
    fn deed(&mut self) -> Deed {
        let user_id = self.dice.below(USERS).cast_signed();
        match self.dice.below(8) {
            0..3 => reversal(&trade_no(self.dice.below(ORDERS)), self.dice.below(2) == 0),
            3..5 => Deed::Adjust {
                user_id,
                activity: "spring".into(),
                scene: if self.dice.below(2) == 0 { "rain".into() } else { String::new() },
                bonus_type: "cash".into(),
                amount: 1 + self.dice.below(9).cast_signed(),
                to_user: self.dice.below(2) == 0,
            },
            5 => Deed::Freeze { user_id },
            6 => Deed::Thaw { user_id },
            _ if self.dice.below(2) == 0 => {
                let number = self.order_of(Path::Paid);
                let paid = *self.seen.lock().paid_orders.entry(number).or_insert(false);
                Deed::SettleOrder { activity: "spring".into(), trade_no: trade_no(number), paid }
            }
            _ => {
                let number = self.dice.below(WITHDRAWALS);
                let paid = *self.seen.lock().paid_withdrawals.entry(number).or_insert(false);
                Deed::SettleWithdrawal { user_id: user_of(number), withdrawal: withdrawal_id(number), paid }
            }
        }
    }

    fn operator(&mut self) -> &'static str {
        if self.dice.below(2) == 0 { "ann" } else { "bob" }
    }

    fn propose(&mut self, ledger: &mut Ledger) -> Outcome {
        let proposal = Proposal {
            deed: self.deed(),
            reason: "a race".into(),
            evidence: format!("step {} of task {}", self.step, self.nth),
            operator: by(self.operator()),
            time_ms: 5_000,
            expires_ms: 5_000 + LONG_MS,
        };
        let seen = self.seen;
        ask(
            ledger,
            &mut self.dice,
            |tx| tx.propose_act(&proposal),
            |proposed: &Proposed| {
                if let Proposed::Now(act) | Proposed::Before(act) = proposed {
                    let mut seen = seen.lock();
                    if !seen.acts.contains(&act.id) {
                        seen.acts.push(act.id);
                    }
                }
            },
        )?;
        Ok(())
    }

    /// Approves an act of anybody, or refuses it.
    fn decide(&mut self, ledger: &mut Ledger) -> Outcome {
        let (at, name) = (self.dice.below(u64::MAX), self.operator());
        let act = {
            let seen = self.seen.lock();
            let count = u64::try_from(seen.acts.len())?;
            usize::try_from(at % count.max(1)).ok().and_then(|at| seen.acts.get(at).copied())
        };
        let Some(act) = act else { return Ok(()) };
        let (approves, operator, seen) = (self.dice.below(8) > 0, by(name), self.seen);
        let steps = |tx: &mut Tx<'_>| match approves {
            true => tx.approve_act(act, &operator, 6_000),
            false => tx.refuse_act(act, &operator, "a mistake", 6_000),
        };
        ask(ledger, &mut self.dice, steps, |ended: &Ended| seen.lock().tell_act(ended, name))?;
        Ok(())
    }

    /// At any moment: no budget is over (I4), no balance is below 0, and what can be sealed and audited is sound. The budget is split
    /// over other shards meanwhile.
    fn look(&mut self, ledger: &mut Ledger) -> Outcome {
        let shards = [1, 5, 3][usize::try_from(self.dice.below(3))?];
        let steps = |tx: &mut Tx<'_>| tx.set_budgets(&[budget(TOTAL, shards)]);
        let raised = ask(ledger, &mut self.dice, steps, |_| {})?;
        assert!(raised.is_empty(), "nothing is over (I4): {raised:?}");
        for state in ledger.budgets()? {
            let over = state.total.is_some_and(|total| state.used + state.reserved > total);
            assert!(!over && state.used >= 0 && state.reserved >= 0, "I4: {state:?}");
        }
        for user in 0..USERS {
            assert!(ledger.balance(user.cast_signed(), "cash")? >= 0, "user {user}");
        }
        if let Some((sealer, anchor)) = &mut self.sealer {
            sealer.seal(anchor, 7_000)?;
        }
        if let Some(auditor) = &mut self.auditor {
            for found in [auditor.increment(7_000).map(|done| done.differences), compared(auditor)] {
                match found {
                    Ok(found) => assert_eq!(found, 0, "{:?}", auditor.differences(None, 0, 9)),
                    Err(AuditError::Ledger(LedgerError::Contended(_))) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

fn compared(auditor: &mut Auditor) -> Result<u64, AuditError> {
    Ok(match auditor.compare(7_000)? {
        Compared::Done { differences, .. } => differences,
        Compared::Behind => 0,
    })
}

/// Ends a withdrawal by its payer's word.
fn end(tx: &mut Tx<'_>, which: WithdrawalId<'_>, paid: bool) -> Result<Vec<Finish>, LedgerError> {
    if paid { tx.pay_out(&[which], 4_000) } else { tx.give_back(&[(which, "no")], 4_000) }
}

/// The seed is printed; `WINDFALL_SEED` runs its race again.
pub(super) fn all_that_moves_money(place: &dyn Place) -> Outcome {
    let (seed, _) = seed();
    eprintln!("a race: WINDFALL_SEED={seed}");
    run(place, seed).map_err(|error| format!("WINDFALL_SEED={seed}: {error}").into())
}

fn run(place: &dyn Place, seed: u64) -> Outcome {
    let (seen, anchor) = (Mutex::new(Seen::default()), Memory::default());
    {
        let mut ledger = open(place)?;
        ledger.set_budgets(&[budget(TOTAL, 3)])?;
        // It makes the tables of acts.
        let deed = Deed::Thaw { user_id: 0 };
        seen.lock().acts.push(super::acts::propose(&mut ledger, deed, "before the race")?);
    }
    match <[Ledger; 1]>::try_from(writers(place, usize::try_from(TASKS)?)?) {
        Ok([only]) => in_turn(place, only, seed, &anchor, &seen)?,
        Err(many) => at_once(place, many, seed, &anchor, &seen)?,
    }
    proof::everything_fits(place, seen.into_inner(), anchor)
}

/// The tasks share one writer, and take turns by the dice.
fn in_turn(place: &dyn Place, mut ledger: Ledger, seed: u64, anchor: &Memory, seen: &Mutex<Seen>) -> Outcome {
    let tasks = (0..TASKS).map(|nth| Task::new(place, nth, seed, anchor, seen));
    let mut tasks: Vec<Task<'_>> = tasks.collect::<Result<_, _>>()?;
    let mut turns = Dice(seed);
    for _ in 0..TASKS * STEPS {
        let at = usize::try_from(turns.below(TASKS))?;
        tasks[at].step(&mut ledger)?;
    }
    Ok(())
}

fn at_once(
    place: &dyn Place,
    ledgers: Vec<Ledger>,
    seed: u64,
    anchor: &Memory,
    seen: &Mutex<Seen>,
) -> Outcome {
    std::thread::scope(|scope| -> Outcome {
        let threads: Vec<_> = (0..TASKS)
            .zip(ledgers)
            .map(|(nth, mut ledger)| {
                scope.spawn(move || -> Result<(), String> {
                    let told = |error: Box<dyn std::error::Error>| format!("task {nth}: {error}");
                    let mut task = Task::new(place, nth, seed, anchor, seen).map_err(told)?;
                    (0..STEPS).try_for_each(|_| task.step(&mut ledger)).map_err(told)
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap_or_else(|_| Err("a task has panicked".into()))?;
        }
        Ok(())
    })
}
