//! What goes wrong while it rains, and when.

use super::rules;
use crate::data::place;
use crate::pipeline::Pipeline;
use anyhow::Result;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_config::rules::Fuse;
use windfall_queue::faulty::Faults;

/// One thing that happens.
struct Trouble {
    /// When, in per mille of the rain.
    at: u64,
    what: &'static str,
    act: fn(&Pipeline, &Path) -> Result<()>,
}

const TROUBLES: [Trouble; 12] = [
    Trouble {
        at: 20,
        what: "broker a writes some records of cash-a twice and loses some answers",
        act: stutter,
    },
    Trouble { at: 100, what: "broker a refuses topic cash-a, the master of queue cash", act: refuse },
    Trouble { at: 200, what: "broker a hangs on topic cash-a", act: hang },
    Trouble { at: 350, what: "broker a is back", act: recover },
    Trouble { at: 400, what: "an operator cuts the limit of coin to 500 a second", act: cut },
    Trouble { at: 450, what: "an operator sets the fuse of coupon_tea to divert", act: divert },
    Trouble { at: 550, what: "the fuse of coupon_tea is closed again", act: close },
    Trouble { at: 600, what: "the limit of coin is raised again", act: raise },
    Trouble { at: 650, what: "the token store is down", act: store_down },
    Trouble { at: 850, what: "the token store is back", act: store_up },
    Trouble { at: 900, what: "the badge downstream gets worse: retry for 10 %", act: worse },
    Trouble {
        at: 990,
        what: "the badge downstream is as before: retry for 5 %, lost answers for 1 %",
        act: better,
    },
];

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Happening {
    /// Seconds since the rain began, in milliseconds.
    pub at_ms: u64,
    /// What.
    pub what: String,
}

/// Lets things go wrong over `rain`, or until `stop` is set; then mends whatever is still broken.
pub async fn run(
    pipeline: &Pipeline,
    data: &Path,
    rain: Duration,
    stop: &AtomicBool,
    say: impl Fn(&str),
) -> Result<Vec<Happening>> {
    let started = Instant::now();
    let mut happened = Vec::new();
    let mut note = |what: &str| {
        say(what);
        let at_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        happened.push(Happening { at_ms, what: what.to_owned() });
    };
    for trouble in &TROUBLES {
        let due = rain.mul_f64(f64::from(u32::try_from(trouble.at)?) / 1_000.0);
        while let Some(left) = due.checked_sub(started.elapsed()) {
            if stop.load(Relaxed) {
                break;
            }
            tokio::time::sleep(left.min(Duration::from_millis(50))).await;
        }
        if stop.load(Relaxed) {
            break;
        }
        (trouble.act)(pipeline, data)?;
        note(trouble.what);
    }
    if stop.load(Relaxed) {
        mend(pipeline, data)?;
        note("everything is mended before the end");
    }
    Ok(happened)
}

/// Puts everything right, as far as this process broke it.
pub fn mend(pipeline: &Pipeline, data: &Path) -> Result<()> {
    recover(pipeline, data)?;
    store_up(pipeline, data)?;
    rules_as_they_were(data)
}

/// Closes the fuses and raises the limits that an earlier process left changed.
pub fn rules_as_they_were(data: &Path) -> Result<()> {
    raise_and_close(data, "mended")
}

fn faults(pipeline: &Pipeline, faults: Faults) {
    if let Some(broker) = pipeline.brokers.get("a") {
        broker.set("cash-a", faults);
    }
}

fn stutter(pipeline: &Pipeline, _: &Path) -> Result<()> {
    faults(
        pipeline,
        Faults {
            duplicate_per_mille: 30,
            lose_answer_per_mille: 20,
            fail_per_mille: 20,
            ..Faults::default()
        },
    );
    Ok(())
}

fn refuse(pipeline: &Pipeline, _: &Path) -> Result<()> {
    faults(pipeline, Faults { refuse: true, ..Faults::default() });
    Ok(())
}

fn hang(pipeline: &Pipeline, _: &Path) -> Result<()> {
    faults(pipeline, Faults { hang: true, ..Faults::default() });
    Ok(())
}

fn recover(pipeline: &Pipeline, _: &Path) -> Result<()> {
    if let Some(broker) = pipeline.brokers.get("a") {
        broker.clear("cash-a");
    }
    Ok(())
}

fn cut(_: &Pipeline, data: &Path) -> Result<()> {
    rules::change(&place::rules(data), "cut coin", now_ms(), |rules| {
        if let Some(coin) = rules.limits.types.get_mut("coin") {
            coin.limit.rate_per_s = 500;
            coin.limit.burst = 100;
        }
    })
}

fn divert(_: &Pipeline, data: &Path) -> Result<()> {
    rules::change(&place::rules(data), "divert coupon_tea", now_ms(), |rules| {
        if let Some(tea) = rules.limits.types.get_mut("coupon_tea") {
            tea.fuse = Fuse::Divert;
        }
    })
}

fn close(_: &Pipeline, data: &Path) -> Result<()> {
    rules::change(&place::rules(data), "close coupon_tea", now_ms(), |rules| {
        if let Some(tea) = rules.limits.types.get_mut("coupon_tea") {
            tea.fuse = Fuse::Closed;
        }
    })
}

fn raise(_: &Pipeline, data: &Path) -> Result<()> {
    raise_and_close(data, "raise coin")
}

fn raise_and_close(data: &Path, why: &str) -> Result<()> {
    rules::change(&place::rules(data), why, now_ms(), |rules| {
        if let Some(coin) = rules.limits.types.get_mut("coin") {
            coin.limit.rate_per_s = 500_000;
            coin.limit.burst = 50_000;
        }
        if let Some(tea) = rules.limits.types.get_mut("coupon_tea") {
            tea.fuse = Fuse::Closed;
        }
    })
}

fn store_down(pipeline: &Pipeline, _: &Path) -> Result<()> {
    pipeline.tokens.set_down(true);
    Ok(())
}

fn store_up(pipeline: &Pipeline, _: &Path) -> Result<()> {
    pipeline.tokens.set_down(false);
    Ok(())
}

fn worse(pipeline: &Pipeline, _: &Path) -> Result<()> {
    pipeline.badges.set_faults(100, 10);
    Ok(())
}

fn better(pipeline: &Pipeline, _: &Path) -> Result<()> {
    pipeline.badges.set_faults(50, 10);
    Ok(())
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
