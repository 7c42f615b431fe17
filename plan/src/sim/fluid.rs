//! The same without chance, packs or delays: rewards as a fluid, which limits let through at their rates.

use super::scenario::Scenario;
use crate::numbers::real;

/// When the last of each type is through, in seconds from the first send, and the largest backlog of each.
///
/// The global limit and the ledger serve the types strictly by priority here; the product leaves a twentieth to those
/// behind, and the ledger serves calls in their order. Where neither binds, this is exact.
pub fn fluid(scenario: &Scenario) -> Vec<(f64, f64)> {
    let types = &scenario.types;
    let ledger = &scenario.ledger;
    let of_one = real(ledger.transaction_events_max)
        / (ledger.transaction_ms / 1e3 + real(ledger.transaction_events_max) * ledger.event_us / 1e6);
    let ledger_per_s = of_one * f64::from(ledger.writers);
    let mut ranks: Vec<usize> = (0..types.len()).collect();
    ranks.sort_by_key(|&at| types[at].priority);
    let come: Vec<f64> = types.iter().map(|one| real(one.events) / scenario.load_s).collect();
    let (mut now_s, mut backlog) = (0.0, vec![0.0; types.len()]);
    let mut found = vec![(scenario.load_s, 0.0_f64); types.len()];
    loop {
        let is_coming = now_s < scenario.load_s;
        let (mut global, mut written) =
            (scenario.global.map_or(f64::INFINITY, |(rate, _)| real(rate)), ledger_per_s);
        let mut gains = vec![0.0; types.len()];
        for &at in &ranks {
            let inflow = if is_coming { come[at] } else { 0.0 };
            let wanted = if backlog[at] > 0.0 { f64::INFINITY } else { inflow };
            let writes = if types[at].connector_ms.is_some() { 2.0 } else { 1.0 };
            let limit = types[at].limit.map_or(f64::INFINITY, |(rate, _)| real(rate));
            let passes = wanted.min(limit).min(global).min(written / writes);
            global -= passes;
            written -= passes * writes;
            gains[at] = inflow - passes;
        }
        // To the next moment at which a rate changes: the load's end, or a backlog that is gone.
        let until_end = if is_coming { scenario.load_s - now_s } else { f64::INFINITY };
        let step_s = (0..types.len())
            .filter(|&at| backlog[at] > 0.0 && gains[at] < 0.0)
            .map(|at| backlog[at] / -gains[at])
            .fold(until_end, f64::min);
        if step_s.is_infinite() {
            return found;
        }
        now_s += step_s;
        for at in 0..types.len() {
            let had = backlog[at];
            backlog[at] = (had + gains[at] * step_s).max(0.0);
            // What rounding leaves is no backlog.
            if backlog[at] < 1e-6 {
                backlog[at] = 0.0;
            }
            found[at].1 = found[at].1.max(backlog[at]);
            if had > 0.0 && backlog[at] == 0.0 {
                found[at].0 = now_s.max(scenario.load_s);
            }
        }
    }
}
