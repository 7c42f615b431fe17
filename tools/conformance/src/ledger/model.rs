//! Random histories against a naive model: what the ledger answers and holds is what one would compute by hand.
use super::chain::Memory;
use super::{Fixture, Outcome, open};
use std::collections::BTreeMap;
use windfall_contract::accounts::{Reason, Status, Withdrawal, WithdrawalOutcome};
use windfall_ledger::{
    Attempt, BudgetSet, Finish, HoldOutcome, Ledger, LedgerReader, Order, OrderId, OrderLine, OrderOutcome,
    WithdrawalId, WithdrawalStatus,
};

const SCENES: [&str; 2] = ["rain", "cards"];
const TYPES: [&str; 2] = ["cash", "badge"];
const ACTIVITIES: [&str; 2] = ["spring", "autumn"];
/// Each activity has orders of the same so many numbers: those from this one on are the second activity's.
const NUMBERS: u8 = 12;
/// Withdrawals of one id and two users are so far apart.
const IDS: u8 = 6;
/// The index that stands for all scenes, or all types.
const ALL: usize = 2;

fn or_all(names: &[&'static str; 2], at: usize) -> &'static str {
    names.get(at).copied().unwrap_or("*")
}

#[derive(Debug, Clone)]
struct Spec {
    number: u8,
    user: i64,
    scene: usize,
    bonus_type: usize,
    amount: i64,
}

#[derive(Debug, Clone)]
struct Take {
    number: u8,
    user: i64,
    bonus_type: usize,
    amount: i64,
}

#[derive(Debug, Clone)]
enum Op {
    Apply {
        specs: Vec<Spec>,
        replay: bool,
    },
    Reserve {
        specs: Vec<Spec>,
        replay: bool,
    },
    Promise {
        specs: Vec<Spec>,
        replay: bool,
    },
    Post(Vec<u8>),
    Release(Vec<u8>),
    Budget {
        scene: usize,
        bonus_type: usize,
        total: i64,
        shards: u32,
    },
    /// The caps of these rules: of each type, or none.
    Caps([Option<i64>; 2]),
    Hold(Vec<Take>),
    PayOut(Vec<u8>),
    GiveBack(Vec<u8>),
    /// Everything above in one transaction that is never committed.
    Crash(Vec<Spec>),
    Reopen,
}

/// splitmix64 (<https://prng.di.unimi.it/splitmix64.c>).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides.max(1)
    }

    fn small(&mut self, sides: u8) -> u8 {
        u8::try_from(self.below(u64::from(sides))).unwrap_or(0)
    }

    fn numbers(&mut self) -> Vec<u8> {
        (0..self.below(6)).map(|_| self.small(24)).collect()
    }

    fn specs(&mut self) -> Vec<Spec> {
        (0..self.below(12)).map(|_| self.spec()).collect()
    }

    fn spec(&mut self) -> Spec {
        let number = self.small(24);
        // Mostly the order as it always is, sometimes another one under its number.
        let (user, amount) = match self.small(3) {
            0 => (i64::from(number % 5), 1 + i64::from(number % 7)),
            other => (i64::from(other), 1 + i64::from(self.small(3))),
        };
        let usual = usize::from(number % 2);
        let bonus_type = if amount == 3 { usize::from(self.small(2)) } else { usual };
        let scene = usize::from(if self.small(8) == 0 { self.small(2) } else { number / 2 % 2 });
        Spec { number, user, scene, bonus_type, amount }
    }

    fn takes(&mut self) -> Vec<Take> {
        (0..self.below(6))
            .map(|_| {
                let number = self.small(12);
                // Mostly the same under a number, sometimes another one.
                let amount = 1 + i64::from(if self.small(4) == 0 { self.small(9) } else { number % 5 });
                Take { number, user: user_of(number), bonus_type: usize::from(number % 2), amount }
            })
            .collect()
    }

    fn op(&mut self) -> Op {
        let replay = self.below(5) == 0;
        match self.below(25) {
            0..4 => Op::Apply { specs: self.specs(), replay },
            4..7 => Op::Reserve { specs: self.specs(), replay },
            7..9 => Op::Post(self.numbers()),
            9..11 => Op::Release(self.numbers()),
            11..13 => Op::Budget {
                scene: usize::from(self.small(3)),
                bonus_type: usize::from(self.small(3)),
                total: i64::from(self.small(60)),
                shards: u32::from(self.small(8)),
            },
            13 => Op::Crash(self.specs()),
            14..17 => Op::Hold(self.takes()),
            17 => Op::PayOut(self.numbers()),
            18 => Op::GiveBack(self.numbers()),
            19..22 => Op::Promise { specs: self.specs(), replay },
            22..24 => Op::Caps([0, 1].map(|_| (self.small(3) > 0).then(|| i64::from(self.small(80))))),
            _ => Op::Reopen,
        }
    }
}

#[derive(Debug, Clone)]
struct Known {
    user: i64,
    scene: usize,
    bonus_type: usize,
    amount: i64,
    status: Status,
    /// Reserved for its event.
    promised: bool,
    /// A downstream has paid it.
    is_settled: bool,
}

fn covers(pattern: usize, at: usize) -> bool {
    pattern == ALL || pattern == at
}

#[derive(Debug, Clone, Default)]
struct Model {
    orders: BTreeMap<u8, Known>,
    withdrawals: BTreeMap<u8, (Take, WithdrawalStatus)>,
    totals: BTreeMap<(usize, usize), i64>,
    caps: BTreeMap<usize, i64>,
}

impl Model {
    fn sum(&self, activity: usize, scene: usize, bonus_type: usize, status: Status) -> i64 {
        let of = |(number, order): &(&u8, &Known)| {
            covers(activity, activity_of(**number))
                && covers(scene, order.scene)
                && covers(bonus_type, order.bonus_type)
                && order.status == status
        };
        self.orders.iter().filter(of).map(|(_, order)| order.amount).sum()
    }

    fn taken(&self, activity: usize, scene: usize, bonus_type: usize) -> i64 {
        [Status::Credited, Status::Reserved]
            .map(|status| self.sum(activity, scene, bonus_type, status))
            .iter()
            .sum()
    }

    fn decide(&mut self, spec: &Spec, replay: bool, goal: Status, promise: bool) -> OrderOutcome {
        if let Some(known) = self.orders.get_mut(&spec.number) {
            if (known.user, known.scene, known.bonus_type, known.amount)
                != (spec.user, spec.scene, spec.bonus_type, spec.amount)
            {
                return OrderOutcome::Conflict;
            }
            match known.status {
                Status::Credited => return OrderOutcome::AlreadyCredited,
                Status::Reserved if known.promised && goal == Status::Credited => {
                    known.status = Status::Credited;
                    return OrderOutcome::Credited;
                }
                Status::Reserved => {
                    known.promised &= promise;
                    return OrderOutcome::Reserved;
                }
                Status::Rejected(reason) if !replay => return OrderOutcome::Rejected(reason),
                Status::Rejected(_) => {}
            }
        }
        let fits = self.totals.iter().all(|((own, bonus_type), total)| {
            // The first activity has budgets.
            let applies = activity_of(spec.number) == 0
                && covers(*own, spec.scene)
                && covers(*bonus_type, spec.bonus_type);
            !applies || spec.amount <= total - self.taken(0, *own, *bonus_type)
        });
        let cap = self.caps.get(&spec.bonus_type);
        let is_capped = cap.is_some_and(|cap| spec.amount > cap - self.taken(ALL, ALL, spec.bonus_type));
        let status = match (fits, is_capped) {
            (false, _) => Status::Rejected(Reason::BudgetExhausted),
            (true, true) => Status::Rejected(Reason::OverTypeCap),
            (true, false) => goal,
        };
        let Spec { user, scene, bonus_type, amount, .. } = *spec;
        self.orders.insert(
            spec.number,
            Known { user, scene, bonus_type, amount, status, promised: promise, is_settled: false },
        );
        match status {
            Status::Credited => OrderOutcome::Credited,
            Status::Reserved => OrderOutcome::Reserved,
            Status::Rejected(reason) => OrderOutcome::Rejected(reason),
        }
    }

    fn balance(&self, user: i64, bonus_type: usize) -> i64 {
        let credited = |order: &&Known| {
            (order.user, order.bonus_type, order.status) == (user, bonus_type, Status::Credited)
                && !order.is_settled
        };
        let credits: i64 = self.orders.values().filter(credited).map(|order| order.amount).sum();
        let gone = |one: &&(Take, WithdrawalStatus)| {
            (one.0.user, one.0.bonus_type) == (user, bonus_type) && one.1 != WithdrawalStatus::Refused
        };
        credits - self.withdrawals.values().filter(gone).map(|(one, _)| one.amount).sum::<i64>()
    }

    fn hold(&mut self, take: &Take) -> HoldOutcome {
        if let Some((known, status)) = self.withdrawals.get(&take.number) {
            if (known.user, known.bonus_type, known.amount) != (take.user, take.bonus_type, take.amount) {
                return HoldOutcome::Decided(WithdrawalOutcome::Conflict);
            }
            return match status {
                WithdrawalStatus::Held => HoldOutcome::HeldBefore { payer: "".into() },
                WithdrawalStatus::Paid => HoldOutcome::Decided(WithdrawalOutcome::AlreadyPaid),
                WithdrawalStatus::Refused => HoldOutcome::Decided(WithdrawalOutcome::Refused("no".into())),
            };
        }
        let balance = self.balance(take.user, take.bonus_type);
        if balance < take.amount {
            return HoldOutcome::Decided(WithdrawalOutcome::Short { balance });
        }
        self.withdrawals.insert(take.number, (take.clone(), WithdrawalStatus::Held));
        HoldOutcome::Held
    }

    fn end(&mut self, number: u8, goal: WithdrawalStatus) -> Finish {
        match self.withdrawals.get_mut(&number) {
            None => Finish::Unknown,
            Some((_, status)) if *status == WithdrawalStatus::Held => {
                *status = goal;
                Finish::Done
            }
            Some((_, status)) if *status == goal => Finish::Before,
            Some(_) => Finish::Otherwise,
        }
    }

    fn finish(&mut self, number: u8, goal: Status) -> Finish {
        match self.orders.get_mut(&number) {
            None => Finish::Unknown,
            Some(order) if order.status == Status::Reserved => {
                order.status = goal;
                order.is_settled = goal == Status::Credited && !order.promised;
                Finish::Done
            }
            Some(order) => match (order.status, goal) {
                (Status::Credited, Status::Credited) | (Status::Rejected(_), Status::Rejected(_)) => {
                    Finish::Before
                }
                _ => Finish::Otherwise,
            },
        }
    }
}

fn name(number: u8) -> String {
    // Not in the order of the numbers.
    format!("{:02x}/order", (number % NUMBERS).wrapping_mul(37))
}

const fn activity_of(number: u8) -> usize {
    if number < NUMBERS { 0 } else { 1 }
}

/// The order's name.
fn order_id(number: u8, trade_no: &str) -> OrderId<'_> {
    OrderId { activity: ACTIVITIES[activity_of(number)], trade_no }
}

/// The id of a withdrawal, which two users have.
fn withdrawal(number: u8) -> String {
    name(number % IDS)
}

fn user_of(number: u8) -> i64 {
    i64::from(number % 5)
}

fn orders<'a>(specs: &'a [Spec], names: &'a [String]) -> Vec<Order<'a>> {
    specs
        .iter()
        .zip(names)
        .map(|(spec, trade_no)| Order {
            trade_no,
            user_id: spec.user,
            activity: ACTIVITIES[activity_of(spec.number)],
            scene: SCENES[spec.scene],
            bonus_type: TYPES[spec.bonus_type],
            amount: spec.amount,
            time_ms: 1_000,
        })
        .collect()
}

fn step(ledger: &mut Ledger, model: &mut Model, op: &Op) -> Outcome {
    let names = |specs: &[Spec]| specs.iter().map(|spec| name(spec.number)).collect::<Vec<_>>();
    let attempt = |replay: bool| if replay { Attempt::Replay } else { Attempt::Normal };
    match op {
        Op::Apply { specs, replay } => {
            let names = names(specs);
            let mut tx = ledger.begin()?;
            let got = tx.apply(&orders(specs, &names), attempt(*replay))?;
            tx.commit()?;
            let want: Vec<_> =
                specs.iter().map(|spec| model.decide(spec, *replay, Status::Credited, false)).collect();
            assert_eq!(got, want);
        }
        Op::Reserve { specs, replay } => {
            let names = names(specs);
            let mut tx = ledger.begin()?;
            let got = super::reserve(&mut tx, &orders(specs, &names), attempt(*replay))?;
            tx.commit()?;
            let want: Vec<_> =
                specs.iter().map(|spec| model.decide(spec, *replay, Status::Reserved, false)).collect();
            assert_eq!(got, want);
        }
        Op::Promise { specs, replay } => {
            let names = names(specs);
            let attempt = if *replay { Attempt::Replay } else { Attempt::Normal };
            let got = ledger.transact(|tx| tx.promise(&orders(specs, &names), attempt))?;
            let want: Vec<_> =
                specs.iter().map(|spec| model.decide(spec, *replay, Status::Reserved, true)).collect();
            assert_eq!(got, want);
        }
        Op::Post(numbers) => {
            let names: Vec<String> = numbers.iter().map(|number| name(*number)).collect();
            let ids: Vec<_> =
                numbers.iter().zip(&names).map(|(number, name)| order_id(*number, name)).collect();
            let mut tx = ledger.begin()?;
            let got = tx.post(&ids, 2_000)?;
            tx.commit()?;
            let want: Vec<_> = numbers.iter().map(|number| model.finish(*number, Status::Credited)).collect();
            assert_eq!(got, want);
        }
        Op::Release(numbers) => {
            let names: Vec<String> = numbers.iter().map(|number| name(*number)).collect();
            let reason = Reason::DownstreamRefused;
            let ids = numbers.iter().zip(&names).map(|(number, name)| order_id(*number, name));
            let refused: Vec<_> = ids.map(|id| (id, reason)).collect();
            let mut tx = ledger.begin()?;
            let got = tx.release(&refused, 2_000)?;
            tx.commit()?;
            let goal = Status::Rejected(reason);
            let want: Vec<_> = numbers.iter().map(|number| model.finish(*number, goal)).collect();
            assert_eq!(got, want);
        }
        Op::Budget { scene, bonus_type, total, shards } => {
            let set = BudgetSet {
                activity: "spring",
                scene: or_all(&SCENES, *scene),
                bonus_type: or_all(&TYPES, *bonus_type),
                total: *total,
                shards: *shards,
            };
            let raised = ledger.set_budgets(&[set])?;
            let holds = model.taken(0, *scene, *bonus_type).max(*total);
            assert_eq!(raised.first().map(|raised| raised.total), (holds > *total).then_some(holds));
            model.totals.insert((*scene, *bonus_type), holds);
        }
        Op::Caps(totals) => {
            let of = |(at, total): (usize, &Option<i64>)| Some((at, (*total)?));
            let caps: BTreeMap<usize, i64> = totals.iter().enumerate().filter_map(of).collect();
            let sets: Vec<BudgetSet<'_>> = caps
                .iter()
                .map(|(at, total)| BudgetSet {
                    activity: "*",
                    scene: "*",
                    bonus_type: TYPES[*at],
                    total: *total,
                    shards: 1,
                })
                .collect();
            assert!(ledger.apply_budgets(1, &sets)?.is_set());
            model.caps =
                caps.into_iter().map(|(at, total)| (at, total.max(model.taken(ALL, ALL, at)))).collect();
        }
        Op::Crash(specs) => {
            let names = names(specs);
            let mut tx = ledger.begin()?;
            let batch = orders(specs, &names);
            let (one, other) = batch.split_at(batch.len() / 2);
            tx.apply(one, Attempt::Normal)?;
            super::reserve(&mut tx, other, Attempt::Normal)?;
            drop(tx);
        }
        Op::Hold(_) | Op::PayOut(_) | Op::GiveBack(_) => withdraw(ledger, model, op)?,
        Op::Reopen => {}
    }
    Ok(())
}

fn withdraw(ledger: &mut Ledger, model: &mut Model, op: &Op) -> Outcome {
    match op {
        Op::Hold(takes) => {
            let asked: Vec<Withdrawal> = takes
                .iter()
                .map(|take| Withdrawal {
                    id: withdrawal(take.number),
                    user_id: take.user,
                    bonus_type: TYPES[take.bonus_type].to_owned(),
                    amount: take.amount,
                })
                .collect();
            let batch: Vec<(&Withdrawal, &str)> = asked.iter().map(|one| (one, "")).collect();
            let got = ledger.transact(|tx| tx.hold(&batch, 3_000))?;
            assert_eq!(got, takes.iter().map(|take| model.hold(take)).collect::<Vec<_>>());
        }
        Op::PayOut(numbers) | Op::GiveBack(numbers) => {
            let names: Vec<String> = numbers.iter().map(|number| withdrawal(*number)).collect();
            let ids: Vec<WithdrawalId<'_>> = numbers
                .iter()
                .zip(&names)
                .map(|(number, id)| WithdrawalId { user_id: user_of(*number), id })
                .collect();
            let refused: Vec<_> = ids.iter().map(|id| (*id, "no")).collect();
            let paid = matches!(op, Op::PayOut(_));
            let got = ledger
                .transact(|tx| if paid { tx.pay_out(&ids, 4_000) } else { tx.give_back(&refused, 4_000) })?;
            let goal = if paid { WithdrawalStatus::Paid } else { WithdrawalStatus::Refused };
            assert_eq!(got, numbers.iter().map(|number| model.end(*number, goal)).collect::<Vec<_>>());
        }
        _ => {}
    }
    Ok(())
}

/// I4, after every step.
fn compare_budgets(ledger: &Ledger, model: &Model) -> Outcome {
    for budget in ledger.budgets()? {
        let scene = SCENES.iter().position(|scene| *scene == budget.scene).unwrap_or(ALL);
        let bonus_type = TYPES.iter().position(|name| *name == budget.bonus_type).unwrap_or(ALL);
        let activity = ACTIVITIES.iter().position(|name| *name == budget.activity).unwrap_or(ALL);
        assert_eq!(budget.used, model.sum(activity, scene, bonus_type, Status::Credited));
        assert_eq!(budget.reserved, model.sum(activity, scene, bonus_type, Status::Reserved));
        let total = match activity {
            ALL => model.caps.get(&bonus_type).copied(),
            0 => model.totals.get(&(scene, bonus_type)).copied(),
            _ => None,
        };
        assert_eq!(budget.total, total, "{budget:?}");
        if let Some(total) = budget.total {
            assert!(budget.used + budget.reserved <= total, "I4: {budget:?}");
        }
    }
    Ok(())
}

/// Orders and balances are what the model says, and everything fits together.
fn compare(reader: &LedgerReader, model: &Model) -> Outcome {
    for user in 0..6 {
        let mut sums = BTreeMap::new();
        let of = |order: &&Known| order.user == user && order.status == Status::Credited;
        for order in model.orders.values().filter(of) {
            let balance = model.balance(user, order.bonus_type);
            assert!(balance >= 0);
            sums.insert(TYPES[order.bonus_type].to_owned(), balance);
        }
        let credits = model.orders.values().filter(of).count();
        let withdrawn = model.withdrawals.values().filter(|(take, _)| take.user == user);
        let moves: usize =
            withdrawn.map(|(_, status)| if *status == WithdrawalStatus::Refused { 2 } else { 1 }).sum();
        let flow = reader.flow(user, 1_000)?;
        assert_eq!(flow.len(), credits + moves);
        for name in TYPES {
            let own = flow.iter().filter(|line| line.bonus_type == name).map(|line| line.transfer);
            assert!(own.is_sorted_by(|a, b| a > b), "newest first");
        }
        assert_eq!(reader.balances(user)?, sums.into_iter().collect::<Vec<_>>());
    }
    for (at, name) in TYPES.iter().enumerate() {
        let own = model.orders.values().filter(|order| order.is_settled && order.bonus_type == at);
        let settled = reader.settlements()?.into_iter().filter(|one| one.bonus_type == *name);
        assert_eq!(settled.map(|one| one.amount).sum::<i64>(), own.map(|order| order.amount).sum::<i64>());
    }
    let lines: Vec<_> = reader.orders()?.collect::<Result<_, _>>()?;
    assert!(lines.is_sorted_by(|a, b| (&a.trade_no, &a.activity) < (&b.trade_no, &b.activity)));
    assert_eq!(lines.len(), model.orders.len());
    for (number, known) in &model.orders {
        let own = (name(*number), ACTIVITIES[activity_of(*number)]);
        let is_own = |line: &&OrderLine| (line.trade_no.as_str(), line.activity.as_str()) == (&own.0, own.1);
        let line = lines.iter().find(is_own).ok_or("an order is missing")?;
        assert_eq!((line.user_id, line.amount), (known.user, known.amount));
        assert_eq!((line.bonus_type.as_str(), line.status), (TYPES[known.bonus_type], known.status));
        assert_eq!(line.credits, u32::from(known.status == Status::Credited), "I1");
    }
    let found = reader.reconcile()?;
    assert!(found.is_clean(), "{found:?}");
    Ok(())
}

/// Histories, each of random steps.
const HISTORIES: u64 = 24;

/// The seed that `WINDFALL_SEED` names, or else a new one; and whether it is named.
pub(super) fn seed() -> (u64, bool) {
    let named = std::env::var("WINDFALL_SEED").ok().and_then(|seed| seed.parse().ok());
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    (named.unwrap_or_else(|| u64::try_from(since.as_millis()).unwrap_or(0)), named.is_some())
}

/// Each history has a fresh ledger. The seed of each is printed; `WINDFALL_SEED` runs one again.
pub(super) fn histories(fixture: &dyn Fixture) -> Outcome {
    let (first, is_named) = seed();
    let count = if is_named { 1 } else { HISTORIES };
    for seed in first..first + count {
        eprintln!("a random history: WINDFALL_SEED={seed}");
        history(fixture, seed).map_err(|error| format!("WINDFALL_SEED={seed}: {error}"))?;
    }
    Ok(())
}

fn history(fixture: &dyn Fixture, seed: u64) -> Outcome {
    let place = fixture.fresh()?;
    let (mut dice, mut model) = (Dice(seed), Model::default());
    let mut ledger = open(&*place)?;
    let (mut sealer, mut anchor) = (place.sealer()?.with_rows_max(9), Memory::default());
    for nth in 0..25 {
        let op = dice.op();
        if matches!(op, Op::Reopen) {
            drop(ledger);
            ledger = open(&*place)?;
        }
        step(&mut ledger, &mut model, &op).map_err(|error| format!("step {nth}, {op:?}: {error}"))?;
        compare_budgets(&ledger, &model)?;
        if dice.below(3) == 0 {
            sealer.seal(&mut anchor, 5_000)?;
        }
    }
    let verified = place.reader()?.verify(Some(&anchor))?;
    assert!(verified.is_clean(), "{verified:?}");
    compare(&place.reader()?, &model)?;
    ledger.check()?;
    Ok(())
}
