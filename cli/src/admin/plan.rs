//! `windfall plan`: what a load needs, from measured costs and a simulation.

use crate::outcome::Outcome;
use anyhow::{Context, Result};
use windfall_plan::{Costs, Plan, PlanArgs, svg};

/// Prints a plan, and draws it if a file is named.
pub fn run(args: &PlanArgs) -> Result<Outcome> {
    let mut costs = Costs::default();
    if let Some(path) = &args.costs {
        let place = || format!("the costs in {} cannot be used", path.display());
        let text = std::fs::read_to_string(path).with_context(place)?;
        costs.replace(&text).with_context(place)?;
    }
    let plan = Plan::new(&args.inputs(), &costs)?;
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::picture(&plan))
            .with_context(|| format!("the plots cannot be written to {}", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&plan)?);
    } else {
        print!("{plan}");
    }
    Ok(Outcome::Clean)
}
