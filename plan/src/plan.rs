//! A plan: the figures, the drain of each type, and what decides.

use crate::costs::{Cost, Costs, Key};
use crate::figure::Figure;
use crate::inputs::{Inputs, PlanError};
use crate::numbers::{ceil, narrow, real, round, seconds, text};
use crate::sim::{self, LedgerModel, Outcome, Pacing, Scenario, TypeLoad};
use crate::sizing::{self, Flow, MASTER_PART};
use serde::Serialize;

/// Packs of a simulated load at most, so that a festival takes seconds.
const PACKS_MAX: u64 = 200_000;
/// Samples of the backlog.
const SAMPLES: f64 = 240.0;
/// Writers of each ledger in the row `postgres.grant`, and the orders of its transactions.
const WRITERS: f64 = 3.0;
const TRANSACTION_EVENTS: u64 = 1_000;

/// What a load needs, and what becomes of its backlog.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The question.
    pub inputs: Inputs,
    /// The answers, part by part.
    pub figures: Vec<Figure>,
    /// By type, when its backlog is gone.
    pub drains: Vec<Drain>,
    /// The times of the samples in `drains`, in seconds from the first send.
    pub sampled_s: Vec<f64>,
    /// What decides how long the backlog lasts, and which part has the least room.
    pub bottlenecks: Vec<String>,
    /// What must be known beside the figures.
    pub notes: Vec<String>,
    /// The costs.
    pub costs: Vec<Cost>,
}

/// The backlog of one type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drain {
    /// The type.
    pub name: String,
    /// Its rewards at the peak.
    pub rewards: u64,
    /// Rewards per second that come.
    pub come_per_s: f64,
    /// What its downstream takes per second; `None`: as much as comes.
    pub limit_per_s: Option<u64>,
    /// Seconds from the first send to its last credit, as a fluid.
    pub fluid_s: f64,
    /// The same by the simulation.
    pub simulated_s: f64,
    /// Its largest backlog in the simulation.
    pub backlog_max: u64,
    /// The age at which half of it is credited, in seconds.
    pub age_p50_s: f64,
    /// The age that 99 of 100 stay below.
    pub age_p99_s: f64,
    /// Its backlog at each sample.
    pub backlog: Vec<u64>,
}

impl Plan {
    /// Computes and simulates it.
    pub fn new(inputs: &Inputs, costs: &Costs) -> Result<Self, PlanError> {
        inputs.check()?;
        let flow = Flow::new(inputs);
        let ledgers = sizing::ledgers(inputs, costs, &flow);
        let scenario = scenario(inputs, costs, &flow, ledgers);
        let fluid = sim::fluid(&scenario);
        let outcome = sim::simulate(&scenario);
        if outcome.last_credit_s.is_none() {
            return Err(PlanError(vec![format!(
                "the backlog is not gone after {}: the limits pass too little for such a load",
                seconds(scenario.end_s)
            )]));
        }
        let backlog_max = backlog_of_all(&outcome);
        let drains = drains(inputs, &flow, &outcome, &fluid);
        let sized = sizing::size(inputs, costs, &flow, real(backlog_max));
        let bottlenecks = bottlenecks(inputs, &drains, &outcome, &sized);
        let mut notes = sized.notes;
        notes.extend(too_long(inputs, &drains));
        Ok(Self {
            inputs: inputs.clone(),
            figures: sized.figures,
            drains,
            sampled_s: outcome.sampled_s,
            bottlenecks,
            notes,
            costs: costs.iter().cloned().collect(),
        })
    }
}

/// The load as the simulation takes it: a queue per type with its two topics, and ledgers of the measured speed.
fn scenario(inputs: &Inputs, costs: &Costs, flow: &Flow, ledgers: f64) -> Scenario {
    let types = inputs.types.iter().zip(&flow.come_per_s).enumerate().map(|(nth, (one, come))| TypeLoad {
        name: one.name.clone(),
        events: round(come * real(inputs.for_s)).max(1),
        topics: vec![(2 * nth, MASTER_PART), (2 * nth + 1, 1.0 - MASTER_PART)],
        limit: one.rate_per_s.map(with_burst),
        priority: one.priority,
        connector_ms: one.by_connector.then(|| costs.of(Key::ConnectorMs)),
    });
    let types: Vec<TypeLoad> = types.collect();
    let total: u64 = types.iter().map(|one| one.events).sum();
    let own = Pacing::default();
    // Two consumers per ledger, each with lanes of its own per topic.
    let consumers = round(2.0 * ledgers).max(round(flow.granted() / costs.of(Key::ConsumeRate)));
    let mut scenario = Scenario {
        seed: inputs.seed,
        load_s: real(inputs.for_s),
        types,
        global: inputs.global_per_s.map(with_burst),
        pack_events: narrow((total / PACKS_MAX).max(256)),
        path_ms: costs.of(Key::PathMs),
        pacing: Pacing {
            lane_events_max: own.lane_events_max * consumers,
            in_flight_max: own.in_flight_max * consumers,
            // Five times coarser than the product looks, and five times quicker.
            look_ms: 10.0,
            ..own
        },
        ledger: LedgerModel {
            writers: narrow(round(ledgers * WRITERS)),
            transaction_events_max: TRANSACTION_EVENTS,
            transaction_ms: 0.0,
            event_us: WRITERS * 1e6 / costs.of(Key::LedgerGrants),
        },
        sample_s: 1.0,
        end_s: f64::INFINITY,
    };
    let last_s = sim::fluid(&scenario).iter().map(|(last_s, _)| *last_s).fold(real(inputs.for_s), f64::max);
    scenario.sample_s = (last_s / SAMPLES).max(0.05);
    scenario.end_s = 3.0 * last_s + 60.0;
    scenario
}

/// A burst of a tenth of a second.
fn with_burst(rate_per_s: u64) -> (u64, u32) {
    (rate_per_s, narrow((rate_per_s / 10).max(1)))
}

fn backlog_of_all(outcome: &Outcome) -> u64 {
    let at = |sample: usize| outcome.types.iter().map(|one| one.backlog[sample]).sum();
    (0..outcome.sampled_s.len()).map(at).max().unwrap_or(0)
}

fn drains(inputs: &Inputs, flow: &Flow, outcome: &Outcome, fluid: &[(f64, f64)]) -> Vec<Drain> {
    let all = inputs.types.iter().zip(&flow.come_per_s).zip(&outcome.types).zip(fluid);
    all.map(|(((one, come), outcome), (fluid_s, _))| Drain {
        name: one.name.clone(),
        rewards: outcome.credited,
        come_per_s: *come,
        limit_per_s: one.rate_per_s,
        fluid_s: *fluid_s,
        simulated_s: outcome.last_credit_s.unwrap_or(f64::INFINITY),
        backlog_max: outcome.backlog_max,
        age_p50_s: outcome.age_p50_s,
        age_p99_s: outcome.age_p99_s,
        backlog: outcome.backlog.clone(),
    })
    .collect()
}

/// Brokers delete what is older than their retention, read or not.
fn too_long(inputs: &Inputs, drains: &[Drain]) -> Option<String> {
    let last_s = drains.iter().map(|one| one.simulated_s).fold(0.0, f64::max);
    (last_s > real(inputs.retention_days) * 86_400.0).then(|| {
        format!(
            "The backlog lasts {}, and the brokers keep records for {} days: they would delete rewards that nobody has \
             granted. Raise the limits or the retention.",
            seconds(last_s),
            inputs.retention_days
        )
    })
}

fn bottlenecks(inputs: &Inputs, drains: &[Drain], outcome: &Outcome, sized: &sizing::Sized) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(last) = drains.iter().max_by(|one, other| one.simulated_s.total_cmp(&other.simulated_s)) {
        let after_s = last.simulated_s - real(inputs.for_s);
        let why = match last.limit_per_s {
            _ if outcome.ledger_busy > 0.9 => {
                format!("the ledgers, which are busy {} % of the time", ceil(outcome.ledger_busy * 100.0))
            }
            Some(limit) if real(limit) < last.come_per_s => {
                format!("its downstream, which takes {} per second", text(real(limit)))
            }
            _ if inputs.global_per_s.is_some() => "the global limit".to_owned(),
            _ => "nothing but the way itself".to_owned(),
        };
        out.push(format!(
            "{} is credited last, {} after the peak is over; what decides it is {why}.",
            last.name,
            seconds(after_s.max(0.0))
        ));
    }
    let least = sized.covers.iter().min_by(|one, other| one.1.total_cmp(&other.1));
    if let Some((part, covers)) = least {
        out.push(format!(
            "Of what is sized here, this has the least room: {part}, with {} times what the peak needs.",
            text(*covers)
        ));
    }
    out
}
