//! Random histories against a naive model: what the ledger answers and holds is what one would compute by hand.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::BTreeMap;
use windfall_ledger::{
    Attempt, BudgetSet, Finish, Ledger, LedgerOptions, LedgerReader, Order, OrderOutcome, Reason, Status,
};

const SCENES: [&str; 2] = ["rain", "cards"];
const TYPES: [&str; 2] = ["cash", "badge"];

#[derive(Debug, Clone)]
struct Spec {
    number: u8,
    user: i64,
    scene: usize,
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
    Post(Vec<u8>),
    Release(Vec<u8>),
    Budget {
        scene: usize,
        bonus_type: usize,
        total: i64,
        shards: u32,
    },
    /// Everything above in one transaction that is never committed.
    Crash(Vec<Spec>),
    Reopen,
}

fn spec() -> impl Strategy<Value = Spec> {
    (0_u8..24, 0_i64..3, 0_usize..2, 0_usize..2, 1_i64..4).prop_map(
        |(number, user, scene, bonus_type, amount)| {
            // Mostly the order as it always is, sometimes another one under its number.
            let usual = i64::from(number);
            let (user, amount) = if user == 0 { (usual % 5, 1 + usual % 7) } else { (user, amount) };
            let bonus_type = if amount == 3 { bonus_type } else { usize::from(number % 2) };
            Spec { number, user, scene, bonus_type, amount }
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let specs = || proptest::collection::vec(spec(), 0..12);
    let numbers = || proptest::collection::vec(0_u8..24, 0..6);
    prop_oneof![
        4 => (specs(), proptest::bool::weighted(0.2)).prop_map(|(specs, replay)| Op::Apply { specs, replay }),
        3 => (specs(), proptest::bool::weighted(0.2)).prop_map(|(specs, replay)| Op::Reserve { specs, replay }),
        2 => numbers().prop_map(Op::Post),
        2 => numbers().prop_map(Op::Release),
        2 => (0_usize..2, 0_usize..2, 0_i64..60, 1_u32..9)
            .prop_map(|(scene, bonus_type, total, shards)| Op::Budget { scene, bonus_type, total, shards }),
        1 => specs().prop_map(Op::Crash),
        1 => Just(Op::Reopen),
    ]
}

#[derive(Debug, Clone)]
struct Known {
    user: i64,
    scene: usize,
    bonus_type: usize,
    amount: i64,
    status: Status,
}

#[derive(Debug, Clone, Default)]
struct Model {
    orders: BTreeMap<u8, Known>,
    totals: BTreeMap<(usize, usize), i64>,
}

impl Model {
    fn sum(&self, scene: usize, bonus_type: usize, status: Status) -> i64 {
        let of =
            |order: &&Known| (order.scene, order.bonus_type, order.status) == (scene, bonus_type, status);
        self.orders.values().filter(of).map(|order| order.amount).sum()
    }

    fn taken(&self, scene: usize, bonus_type: usize) -> i64 {
        self.sum(scene, bonus_type, Status::Credited) + self.sum(scene, bonus_type, Status::Reserved)
    }

    fn decide(&mut self, spec: &Spec, replay: bool, goal: Status) -> OrderOutcome {
        if let Some(known) = self.orders.get(&spec.number) {
            if (known.user, known.bonus_type, known.amount) != (spec.user, spec.bonus_type, spec.amount) {
                return OrderOutcome::Conflict;
            }
            match known.status {
                Status::Credited => return OrderOutcome::AlreadyCredited,
                Status::Reserved => return OrderOutcome::Reserved,
                Status::Rejected(reason) if !replay => return OrderOutcome::Rejected(reason),
                Status::Rejected(_) => {}
            }
        }
        // The scene that it was first seen in pays.
        let scene = self.orders.get(&spec.number).map_or(spec.scene, |known| known.scene);
        let total = self.totals.get(&(scene, spec.bonus_type)).copied().unwrap_or(i64::MAX);
        let fits = spec.amount <= total - self.taken(scene, spec.bonus_type);
        let status = if fits { goal } else { Status::Rejected(Reason::BudgetExhausted) };
        let Spec { user, bonus_type, amount, .. } = *spec;
        self.orders.insert(spec.number, Known { user, scene, bonus_type, amount, status });
        match status {
            Status::Credited => OrderOutcome::Credited,
            Status::Reserved => OrderOutcome::Reserved,
            Status::Rejected(reason) => OrderOutcome::Rejected(reason),
        }
    }

    fn finish(&mut self, number: u8, goal: Status) -> Finish {
        match self.orders.get_mut(&number) {
            None => Finish::Unknown,
            Some(order) if order.status == Status::Reserved => {
                order.status = goal;
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
    format!("{:02x}/order", number.wrapping_mul(37))
}

fn orders<'a>(specs: &'a [Spec], names: &'a [String]) -> Vec<Order<'a>> {
    specs
        .iter()
        .zip(names)
        .map(|(spec, trade_no)| Order {
            trade_no,
            user_id: spec.user,
            activity: "spring",
            scene: SCENES[spec.scene],
            bonus_type: TYPES[spec.bonus_type],
            amount: spec.amount,
            time_ms: 1_000,
        })
        .collect()
}

fn step(ledger: &mut Ledger, model: &mut Model, op: &Op) -> Result<(), TestCaseError> {
    let names = |specs: &[Spec]| specs.iter().map(|spec| name(spec.number)).collect::<Vec<_>>();
    let attempt = |replay: bool| if replay { Attempt::Replay } else { Attempt::Normal };
    match op {
        Op::Apply { specs, replay } => {
            let names = names(specs);
            let mut tx = ledger.begin().unwrap();
            let got = tx.apply(&orders(specs, &names), attempt(*replay)).unwrap();
            tx.commit().unwrap();
            let want: Vec<_> =
                specs.iter().map(|spec| model.decide(spec, *replay, Status::Credited)).collect();
            prop_assert_eq!(got, want);
        }
        Op::Reserve { specs, replay } => {
            let names = names(specs);
            let mut tx = ledger.begin().unwrap();
            let got = tx.reserve(&orders(specs, &names), attempt(*replay)).unwrap();
            tx.commit().unwrap();
            let want: Vec<_> =
                specs.iter().map(|spec| model.decide(spec, *replay, Status::Reserved)).collect();
            prop_assert_eq!(got, want);
        }
        Op::Post(numbers) => {
            let names: Vec<String> = numbers.iter().map(|number| name(*number)).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut tx = ledger.begin().unwrap();
            let got = tx.post(&names, 2_000).unwrap();
            tx.commit().unwrap();
            let want: Vec<_> = numbers.iter().map(|number| model.finish(*number, Status::Credited)).collect();
            prop_assert_eq!(got, want);
        }
        Op::Release(numbers) => {
            let names: Vec<String> = numbers.iter().map(|number| name(*number)).collect();
            let reason = Reason::DownstreamRefused;
            let refused: Vec<_> = names.iter().map(|name| (name.as_str(), reason)).collect();
            let mut tx = ledger.begin().unwrap();
            let got = tx.release(&refused, 2_000).unwrap();
            tx.commit().unwrap();
            let goal = Status::Rejected(reason);
            let want: Vec<_> = numbers.iter().map(|number| model.finish(*number, goal)).collect();
            prop_assert_eq!(got, want);
        }
        Op::Budget { scene, bonus_type, total, shards } => {
            let set = BudgetSet {
                activity: "spring",
                scene: SCENES[*scene],
                bonus_type: TYPES[*bonus_type],
                total: *total,
                shards: *shards,
            };
            let raised = ledger.set_budgets(&[set]).unwrap();
            let holds = model.taken(*scene, *bonus_type).max(*total);
            prop_assert_eq!(raised.first().map(|raised| raised.total), (holds > *total).then_some(holds));
            model.totals.insert((*scene, *bonus_type), holds);
        }
        Op::Crash(specs) => {
            let names = names(specs);
            let mut tx = ledger.begin().unwrap();
            let batch = orders(specs, &names);
            let (one, other) = batch.split_at(batch.len() / 2);
            tx.apply(one, Attempt::Normal).unwrap();
            tx.reserve(other, Attempt::Normal).unwrap();
            drop(tx);
        }
        Op::Reopen => {}
    }
    Ok(())
}

/// I4, after every step.
fn compare_budgets(ledger: &Ledger, model: &Model) -> Result<(), TestCaseError> {
    for budget in ledger.budgets().unwrap() {
        let scene = SCENES.iter().position(|scene| *scene == budget.scene).unwrap();
        let bonus_type = TYPES.iter().position(|name| *name == budget.bonus_type).unwrap();
        prop_assert_eq!(budget.used, model.sum(scene, bonus_type, Status::Credited));
        prop_assert_eq!(budget.reserved, model.sum(scene, bonus_type, Status::Reserved));
        prop_assert_eq!(budget.total, model.totals.get(&(scene, bonus_type)).copied());
        if let Some(total) = budget.total {
            prop_assert!(budget.used + budget.reserved <= total, "I4: {budget:?}");
        }
    }
    Ok(())
}

/// Orders and balances are what the model says, and everything fits together.
fn compare(reader: &LedgerReader, model: &Model) -> Result<(), TestCaseError> {
    for user in 0..6 {
        let mut sums = BTreeMap::new();
        let of = |order: &&Known| order.user == user && order.status == Status::Credited;
        for order in model.orders.values().filter(of) {
            *sums.entry(TYPES[order.bonus_type].to_owned()).or_insert(0) += order.amount;
        }
        let credits = model.orders.values().filter(of).count();
        let flow = reader.flow(user, 1_000).unwrap();
        prop_assert_eq!(flow.len(), credits);
        prop_assert!(flow.is_sorted_by(|a, b| a.transfer > b.transfer), "newest first");
        prop_assert_eq!(reader.balances(user).unwrap(), sums.into_iter().collect::<Vec<_>>());
    }
    let lines: Vec<_> = reader.orders().unwrap().map(Result::unwrap).collect();
    prop_assert!(lines.is_sorted_by(|a, b| a.trade_no < b.trade_no));
    prop_assert_eq!(lines.len(), model.orders.len());
    for (number, known) in &model.orders {
        let line = lines.iter().find(|line| line.trade_no == name(*number)).unwrap();
        prop_assert_eq!((line.user_id, line.amount), (known.user, known.amount));
        prop_assert_eq!((line.bonus_type.as_str(), line.status), (TYPES[known.bonus_type], known.status));
        prop_assert_eq!(line.credits, u32::from(known.status == Status::Credited), "I1");
    }
    let found = reader.reconcile().unwrap();
    prop_assert!(found.is_clean(), "{found:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(48, |cases| cases.parse().unwrap()),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/model.regressions"))),
        ..ProptestConfig::default()
    })]
    #[test]
    fn the_ledger_does_what_the_model_does(ops in proptest::collection::vec(op(), 1..30)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let options = LedgerOptions::default();
        let mut ledger = Ledger::open(&path, &options).unwrap();
        let mut model = Model::default();
        for (nth, op) in ops.iter().enumerate() {
            if matches!(op, Op::Reopen) {
                drop(ledger);
                ledger = Ledger::open(&path, &options).unwrap();
            }
            step(&mut ledger, &mut model, op)?;
            compare_budgets(&ledger, &model)?;
            if nth % 5 == 4 || nth + 1 == ops.len() {
                compare(&LedgerReader::open(&path).unwrap(), &model)?;
            }
        }
        ledger.check().unwrap();
    }
}
