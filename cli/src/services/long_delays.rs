//! Where consumers hand over events that are due long after now.

use super::options::ServiceOptions;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::sync::Arc;
use windfall_client::{ClientOptions, TimerDelays, TimerDelaysOptions};
use windfall_contract::long_delays::LongDelays;

/// The longest delay that every consumer keeps by itself.
const KEPT_BY_CONSUMERS_MS: u64 = 600_000;

/// The scheduler that keeps events which are due long after now. All processes of a fleet need the section: consumers hand
/// events over, and gateways take rewards for later only where it is.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongDelaysAt {
    /// Its addresses, and the key of a caller with the role `schedule`.
    pub scheduler: ClientOptions,
    /// The tenant of its timers. Default: the caller's own app.
    #[serde(default)]
    pub tenant: String,
    /// The tenant's target that sends rewards: its `to` is `send_bonus`.
    pub target: String,
    /// What an event that was handed over must survive. Default: the end of the scheduler's machine.
    #[serde(default)]
    pub durability: HandedOverDurability,
}

/// What an event that was handed over survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandedOverDurability {
    /// The end of the scheduler's process, and no more: it is lost with the machine.
    Process,
    /// The end of the machine: a scheduler whose store promises less is not handed anything.
    #[default]
    Machine,
}

impl ServiceOptions {
    /// Refuses delays that nobody would keep.
    pub(super) fn check_long_delays(&self) -> Result<()> {
        let ahead_ms = self.sdk.not_before_ahead_max_ms;
        match &self.long_delays {
            Some(at) if at.target.is_empty() => {
                bail!("long_delays.target is empty, but it must name a target that sends rewards")
            }
            None if ahead_ms > KEPT_BY_CONSUMERS_MS => bail!(
                "sdk.not_before_ahead_max_ms is {ahead_ms}, but without [long_delays] only {KEPT_BY_CONSUMERS_MS} is \
                 allowed: consumers keep no longer delay by themselves"
            ),
            _ => Ok(()),
        }
    }

    /// The client by which a consumer hands events over. On a runtime; connects to nothing yet.
    pub(super) fn open_long_delays(&self) -> Result<Option<Arc<dyn LongDelays>>> {
        let Some(LongDelaysAt { scheduler, tenant, target, durability }) = &self.long_delays else {
            return Ok(None);
        };
        let options = TimerDelaysOptions {
            app_id: self.tenant.clone(),
            tenant: tenant.clone(),
            target: target.clone(),
            needs_machine_durability: *durability == HandedOverDurability::Machine,
        };
        let delays = TimerDelays::open(scheduler.clone(), options)
            .context("the options [long_delays.scheduler] cannot be used")?;
        Ok(Some(Arc::new(delays)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<ServiceOptions> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options.toml");
        std::fs::write(&file, text).unwrap();
        ServiceOptions::load(Some(&file), Some(folder.path().join("data")))
    }

    const SECTION: &str = "[long_delays]\ntarget = \"rewards\"\n[long_delays.scheduler]\n\
                           endpoints = [\"http://127.0.0.1:1\"]\nbearer_key = \"secret\"\n";

    #[test]
    fn a_gateway_takes_a_reward_for_later_only_where_somebody_keeps_it() {
        let month = "[sdk]\nnot_before_ahead_max_ms = 2592000000\n";
        let refused = format!("{:#}", load(month).err().unwrap());
        assert!(refused.contains("sdk.not_before_ahead_max_ms is 2592000000"), "{refused}");
        assert!(load(&format!("{month}{SECTION}")).is_ok());
        assert!(load("[sdk]\nnot_before_ahead_max_ms = 600000\n").is_ok());
        let nowhere = SECTION.replace("\"rewards\"", "\"\"");
        assert!(format!("{:#}", load(&nowhere).err().unwrap()).contains("long_delays.target is empty"));
        let unknown = format!("{SECTION}\n[long_delays.queue]\n");
        assert!(format!("{:#}", load(&unknown).err().unwrap()).contains("queue"));
    }

    #[tokio::test]
    async fn the_client_is_opened_where_it_is_named_and_its_key_is_not_shown() {
        assert!(load("").unwrap().open_long_delays().unwrap().is_none());
        let options = load(SECTION).unwrap();
        assert!(options.open_long_delays().unwrap().is_some());
        assert!(!format!("{options:?}").contains("secret"));
        let wrong = load(&SECTION.replace("http://127.0.0.1:1", "ftp://a")).unwrap();
        let refused = format!("{:#}", wrong.open_long_delays().err().unwrap());
        assert!(refused.contains("[long_delays.scheduler]") && refused.contains("ftp://a"), "{refused}");
    }

    #[test]
    fn the_documented_options_are_options() {
        let text = include_str!("../../../docs/scheduler.md");
        let block = text.split("```toml\n").find(|block| block.contains("[long_delays]")).unwrap();
        let options = load(block.split("```").next().unwrap()).unwrap();
        assert_eq!(options.long_delays.unwrap().target, "rewards");
    }
}
