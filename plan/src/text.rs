//! A plan as text.

use crate::costs::Basis;
use crate::figure::Figure;
use crate::numbers::{bytes, real, seconds, text};
use crate::plan::Plan;
use std::fmt::{self, Display, Formatter};

/// The widths of a table's columns.
fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    (0..columns).map(|at| width(at).unwrap_or(0)).collect()
}

/// Rows below each other: the columns of `right` end at one place, the others begin at one.
fn table(f: &mut Formatter<'_>, rows: &[Vec<String>], right: &[usize]) -> fmt::Result {
    let widths = widths(rows);
    for row in rows {
        let mut line = String::from("  ");
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let blank = " ".repeat(width - cell.chars().count());
            match right.contains(&at) {
                true => line.extend([blank.as_str(), cell, "  "]),
                false => line.extend([cell, blank.as_str(), "  "]),
            }
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

fn value(figure: &Figure) -> String {
    match figure.unit {
        "B" => bytes(figure.value),
        "B/s" => format!("{}/s", bytes(figure.value)),
        unit => format!("{}{unit}", text(figure.value)),
    }
}

const fn mark(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured => "",
        Basis::Extrapolated => "e",
        Basis::Assumed => "a",
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let inputs = &self.inputs;
        let (rate, for_s) = (text(real(inputs.rewards_per_s)), text(real(inputs.for_s)));
        writeln!(f, "{rate} rewards per second for {for_s} s, headroom {}", text(inputs.headroom))?;
        self.drain(f)?;
        for line in &self.bottlenecks {
            writeln!(f, "  {line}")?;
        }
        for figures in self.figures.chunk_by(|one, next| one.part == next.part) {
            writeln!(f, "\n{}", figures[0].part)?;
            let row = |figure: &Figure| {
                vec![figure.name.clone(), value(figure), mark(figure.basis).into(), figure.formula.clone()]
            };
            table(f, &figures.iter().map(row).collect::<Vec<_>>(), &[1])?;
        }
        self.costs(f)?;
        if !self.notes.is_empty() {
            writeln!(f, "\nmind")?;
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}

impl Plan {
    fn drain(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ndrain, simulated with seed {}", self.inputs.seed)?;
        let head = [
            "type",
            "rewards",
            "come",
            "pass",
            "waiting at most",
            "all credited after",
            "as a fluid",
            "age p50",
            "age p99",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for one in &self.drains {
            rows.push(vec![
                one.name.clone(),
                text(real(one.rewards)),
                format!("{}/s", text(one.come_per_s.round())),
                one.limit_per_s.map_or_else(|| "all".to_owned(), |limit| format!("{}/s", text(real(limit)))),
                text(real(one.backlog_max)),
                seconds(one.simulated_s),
                seconds(one.fluid_s),
                seconds(one.age_p50_s),
                seconds(one.age_p99_s),
            ]);
        }
        table(f, &rows, &[1, 2, 3, 4, 5, 6, 7, 8])
    }

    fn costs(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\ncosts   (e: extrapolated beyond the size at which its cost was measured; a: rests on an assumption)"
        )?;
        let is_used = |name: &str| self.figures.iter().any(|figure| figure.costs.contains(&name));
        let simulated = ["path_ms", "connector_ms"];
        let used = self.costs.iter().filter(|cost| is_used(cost.name) || simulated.contains(&cost.name));
        let rows: Vec<Vec<String>> = used
            .map(|cost| {
                let value = format!("{} {}", text(cost.value), cost.unit);
                vec![cost.name.into(), value.trim_end().into(), mark(cost.basis).into(), cost.source.clone()]
            })
            .collect();
        table(f, &rows, &[1])
    }
}
