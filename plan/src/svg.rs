//! The backlog as a picture: SVG, without scripts and fonts of its own.

use crate::numbers::{real, seconds, text};
use crate::plan::Plan;
use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 400.0;
/// Room for the axes' texts.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 70.0;
/// Okabe and Ito's colours, which people with any colour vision tell apart.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// Both plots of a plan, one below the other.
pub fn picture(plan: &Plan) -> String {
    let height = 2.0 * HEIGHT;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>
{}<g transform="translate(0 {HEIGHT})">
{}</g>
</svg>
"##,
        backlog(plan),
        drain(plan)
    )
}

/// Rewards that wait, by type, over time. Where a type's backlog is small beside another's, the other plot shows it better.
fn backlog(plan: &Plan) -> String {
    let most = plan.drains.iter().map(|one| real(one.backlog_max)).fold(1.0, f64::max);
    let curves: Vec<Curve<'_>> = plan
        .drains
        .iter()
        .map(|one| Curve {
            name: &one.name,
            note: format!("all credited after {}", seconds(one.simulated_s)),
            points: plan
                .sampled_s
                .iter()
                .copied()
                .zip(one.backlog.iter().map(|&waits| real(waits)))
                .collect(),
        })
        .collect();
    draw("Rewards that wait, by type", &curves, most, &|waits| short(waits))
}

/// The part of each type's rewards that is credited, over time, in per cent: how a small type drains is as well seen as how a
/// large one does.
fn drain(plan: &Plan) -> String {
    let for_s = real(plan.inputs.for_s);
    let curves: Vec<Curve<'_>> = plan
        .drains
        .iter()
        .map(|one| {
            let done = |at_s: f64, waits: u64| {
                let sent = real(one.rewards) * (at_s / for_s).min(1.0);
                (at_s, (sent - real(waits)).max(0.0) * 100.0 / real(one.rewards.max(1)))
            };
            let samples = plan.sampled_s.iter().zip(&one.backlog);
            Curve {
                name: &one.name,
                note: format!("{} rewards", text(real(one.rewards))),
                points: samples.map(|(&at_s, &waits)| done(at_s, waits)).collect(),
            }
        })
        .collect();
    draw("Rewards credited, in per cent of each type", &curves, 100.0, &|part| format!("{part:.0} %"))
}

struct Curve<'a> {
    name: &'a str,
    note: String,
    points: Vec<(f64, f64)>,
}

fn draw(title: &str, curves: &[Curve<'_>], most: f64, label: &dyn Fn(f64) -> String) -> String {
    let last_s = curves.iter().flat_map(|curve| curve.points.last()).map(|point| point.0).fold(1.0, f64::max);
    let (step_s, step) = (nice(last_s / 8.0), nice(most / 5.0));
    let (plot_w, plot_h) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let x = |at_s: f64| LEFT + at_s / last_s * plot_w;
    let y = |value: f64| TOP + plot_h - value / most * plot_h;
    let mut out = format!("<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{title}</text>\n");
    let mut line = |text: std::fmt::Arguments<'_>| {
        // Writing to a text cannot fail.
        out.write_fmt(text).ok();
        out.push('\n');
    };
    let mut value = 0.0;
    while value <= most * 1.0001 {
        let (at, label) = (y(value), label(value));
        line(format_args!(r##"<path d="M{LEFT} {at:.1}H{:.1}" stroke="#dddddd"/>"##, WIDTH - RIGHT));
        line(format_args!(
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"#,
            LEFT - 8.0,
            at + 4.0
        ));
        value += step;
    }
    let mut at_s = 0.0;
    while at_s <= last_s * 1.0001 {
        let at = x(at_s);
        line(format_args!(r##"<path d="M{at:.1} {:.1}v5" stroke="#000000"/>"##, TOP + plot_h));
        let label = text(at_s);
        line(format_args!(
            r#"<text x="{at:.1}" y="{:.1}" text-anchor="middle">{label} s</text>"#,
            TOP + plot_h + 20.0
        ));
        at_s += step_s;
    }
    line(format_args!(
        r##"<path d="M{LEFT} {TOP}V{:.1}H{:.1}" fill="none" stroke="#000000"/>"##,
        TOP + plot_h,
        WIDTH - RIGHT
    ));
    for (nth, curve) in curves.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let mut path = format!("M{:.1} {:.1}", x(0.0), y(0.0));
        for &(at_s, value) in &curve.points {
            write!(path, "L{:.1} {:.1}", x(at_s), y(value)).ok();
        }
        line(format_args!(r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>"#));
        let (left, base) = (LEFT + 260.0 * real(nth as u64 % 3), HEIGHT - 28.0 + 18.0 * real(nth as u64 / 3));
        line(format_args!(r#"<path d="M{left} {:.1}h18" stroke="{colour}" stroke-width="3"/>"#, base - 4.0));
        line(format_args!(r#"<text x="{}" y="{base}">{}: {}</text>"#, left + 24.0, curve.name, curve.note));
    }
    out
}

/// 1, 2 or 5 times a power of ten, at or above.
fn nice(step: f64) -> f64 {
    let power = 10.0_f64.powf(step.log10().floor());
    let found = [1.0, 2.0, 5.0].into_iter().map(|times| times * power).find(|nice| *nice >= step * 0.9999);
    found.unwrap_or(10.0 * power)
}

/// A count as an axis shows it: `400 M`.
fn short(count: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, " × 10⁹"), (1e6, " M"), (1e3, " k")];
    let found = UNITS.into_iter().find(|(unit, _)| count >= *unit);
    found.map_or_else(|| text(count), |(unit, name)| format!("{}{name}", text(count / unit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Costs, Inputs};

    #[test]
    fn steps_of_the_axes_are_round() {
        assert!((nice(73.0) - 100.0).abs() < 1e-9 && (nice(0.02) - 0.02).abs() < 1e-9);
        assert_eq!((short(4e8), short(1_500.0), short(7.0)), ("400 M".into(), "1.50 k".into(), "7".into()));
    }

    #[test]
    fn each_type_has_a_curve_and_a_name() {
        let types = ["cash=30000,share=90", "badge=20"].map(|one| one.parse().unwrap());
        let inputs = Inputs { rewards_per_s: 50_000, for_s: 10, types: types.into(), ..Inputs::default() };
        let plan = Plan::new(&inputs, &Costs::default()).unwrap();
        let picture = picture(&plan);
        assert_eq!(picture.matches("stroke-width=\"2\"").count(), 4);
        assert_eq!((picture.matches(">cash: ").count(), picture.matches(">badge: ").count()), (2, 2));
        assert!(picture.ends_with("</svg>\n") && !picture.contains("NaN") && !picture.contains("inf"));
    }
}
