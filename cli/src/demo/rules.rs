//! The demo's live rules.

use super::rain::{ACTIVITY, SHARES};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use windfall_config::ChangeRules;
use windfall_contract::rules::Rules;
use windfall_sdk::RedPacketRain;

/// The type whose budget is too small for the troubled rain, on purpose: what exceeds it is archived.
pub const SHORT_BUDGET: &str = "coupon_film";

/// Writes the first version. Blocks.
pub fn write(store: &dyn ChangeRules, rewards: u64, calm: bool, now_ms: u64) -> Result<()> {
    store
        .set(&document(rewards, calm), "windfall demo", "first version", now_ms)
        .context("the demo's rules cannot be written")?;
    Ok(())
}

/// Whether there are rules already. Blocks.
pub fn exist(store: &dyn ChangeRules) -> Result<bool> {
    match store.show() {
        Ok(_) => Ok(true),
        Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Changes the rules as an operator would: read, change, set. Blocks.
pub fn change(
    store: &dyn ChangeRules,
    why: &str,
    now_ms: u64,
    change: impl FnOnce(&mut Rules),
) -> Result<()> {
    let mut rules = windfall_config::parse_rules(&store.show()?, None)?;
    change(&mut rules);
    store.set(&windfall_config::rules_text(&rules), "windfall demo", why, now_ms)?;
    Ok(())
}

fn document(rewards: u64, calm: bool) -> String {
    let types: Vec<String> = SHARES.iter().map(|(name, _)| format!("{name:?}")).collect();
    let mut text = format!(
        r#"version = 1
types = [{types}]

[topics]
cash-a = {{ broker = "a", partitions = 4 }}
cash-b = {{ broker = "b", partitions = 4 }}
gifts-a = {{ broker = "a", partitions = 4 }}
gifts-b = {{ broker = "b", partitions = 4 }}

[queues.cash]
master = "cash-a"
backup = "cash-b"
ratio = 90

[queues.gifts]
master = "gifts-b"
backup = "gifts-a"
ratio = 90

[[routes]]
type = "cash"
queue = "cash"
requeue = ["cash", "gifts"]

[[routes]]
type = "*"
queue = "gifts"
requeue = ["gifts", "cash"]

[limits.global]
rate_per_s = 1000000
burst = 100000

[limits.default]
rate_per_s = 500000
burst = 50000

[limits.types.cash]
rate_per_s = 1000000
burst = 100000
priority = 0

[limits.types.badge]
rate_per_s = 2000
burst = 200
priority = 2

[pacing]
deadline_ms = 5000
in_hand_max = 16384
grant_batch = 2000
lane_events_max = 32768
lane_bytes_max = 8388608
requeue_delay_max_ms = 1000
hold_max_ms = 2000
"#,
        types = types.join(", "),
    );
    for (name, per_mille) in SHARES {
        let expected = rewards * per_mille / 1_000;
        let unit = if name == "cash" { 20_000 } else { 500 };
        let total =
            if name == SHORT_BUDGET && !calm { expected * 95 / 100 } else { (expected + 1_000) * unit };
        write!(
            text,
            "\n[[budgets]]\nactivity = \"{ACTIVITY}\"\nscene = \"{scene}\"\ntype = \"{name}\"\ntotal = {total}\n",
            scene = RedPacketRain::SCENE,
            total = total.max(1),
        )
        .ok();
    }
    text.push_str("\n[end]\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_for_every_size() {
        for (rewards, calm) in [(1, false), (200_000, false), (1_000_000, true)] {
            windfall_config::parse_rules(&document(rewards, calm), Some(&["a", "b"])).unwrap();
        }
    }
}
