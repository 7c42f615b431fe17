//! Carries the budgets and the types' caps of the live rules to the ledger.

use super::background::Background;
use std::sync::Arc;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_contract::rules::Rules;
use windfall_ledger::BudgetsApplied;
use windfall_reward_service::{CallError, RewardHandle};

/// Between two attempts to set the same budgets.
const RETRY: Duration = Duration::from_millis(200);

/// Sets the budgets of these rules, unless newer rules have set theirs, and says what could not be set as asked. Answers
/// whether they are set.
pub async fn set(rewards: &RewardHandle, rules: &Rules) -> Result<bool, CallError> {
    match rewards.apply_rules(rules).await? {
        BudgetsApplied::Set(raised) => {
            for one in raised {
                tracing::warn!(?one, "a budget cannot go below what was given out");
            }
        }
        BudgetsApplied::Stale { newest } => {
            tracing::warn!(
                version = rules.version,
                newest,
                "the ledger has the budgets of newer rules, and keeps them; this process has old ones"
            );
            return Ok(false);
        }
    }
    Ok(true)
}

/// Sets budgets anew with every version of the rules that changes them, and notes the others: no process grants by rules
/// that are older than what the ledger has noted.
pub fn follow(rules: LiveRules, rewards: RewardHandle) -> Background {
    Background::spawn("budgets", async move {
        let mut changes = rules.subscribe();
        // Once at the beginning: the rules may have changed since the start set them.
        let mut applied = None;
        loop {
            let now = Arc::clone(&changes.borrow_and_update());
            let wanted = (now.budgets.clone(), now.total_caps());
            let done = if applied.as_ref() == Some(&wanted) {
                rewards.note_rules_version(now.version).await.map(|()| true)
            } else {
                set(&rewards, &now).await
            };
            match done {
                // What was not set, since newer rules had theirs, is set by the next version, and be they the same.
                Ok(is_set) => applied = is_set.then_some(wanted),
                Err(error) => {
                    tracing::warn!(%error, "budgets not set yet; trying again");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    })
}
