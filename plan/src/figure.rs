//! One result of a plan.

use crate::costs::{Basis, Costs, Key};
use serde::Serialize;

/// A number, the formula that it comes from, and how it is known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The part of the system that it is about.
    pub part: &'static str,
    /// What it counts.
    pub name: String,
    /// The value.
    pub value: f64,
    /// Its unit: `""` for a count.
    pub unit: &'static str,
    /// How it is computed.
    pub formula: String,
    /// The names of the costs in the formula.
    pub costs: Vec<&'static str>,
    /// The weakest of how these are known, and of the way from there to here.
    pub basis: Basis,
}

/// Collects figures.
pub(crate) struct Figures<'a> {
    pub costs: &'a Costs,
    pub all: Vec<Figure>,
    part: &'static str,
}

impl<'a> Figures<'a> {
    pub fn new(costs: &'a Costs) -> Self {
        Self { costs, all: Vec::new(), part: "" }
    }

    /// What follows is about this part.
    pub fn part(&mut self, part: &'static str) {
        self.part = part;
    }

    /// Adds a figure whose formula stays within what was measured; returns its value.
    pub fn add(&mut self, name: &str, value: f64, unit: &'static str, formula: &str, keys: &[Key]) -> f64 {
        self.push(name, value, unit, formula, keys, Basis::Measured)
    }

    /// Adds one that leaves the size or the machine at which its costs were measured.
    pub fn extrapolate(
        &mut self,
        name: &str,
        value: f64,
        unit: &'static str,
        formula: &str,
        keys: &[Key],
    ) -> f64 {
        self.push(name, value, unit, formula, keys, Basis::Extrapolated)
    }

    fn push(
        &mut self,
        name: &str,
        value: f64,
        unit: &'static str,
        formula: &str,
        keys: &[Key],
        least: Basis,
    ) -> f64 {
        let rows = || keys.iter().map(|key| self.costs.row(*key));
        let basis = rows().map(|cost| cost.basis).fold(least, Basis::max);
        let costs = rows().map(|cost| cost.name).collect();
        let formula = formula.into();
        self.all.push(Figure { part: self.part, name: name.into(), value, unit, formula, costs, basis });
        value
    }
}
