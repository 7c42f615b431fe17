//! Carries the budgets and the types' caps of the live rules to the ledger.

use super::background::{Background, Tasks};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use windfall_config::LiveRules;
use windfall_contract::rules::Rules;
use windfall_edge::{Health, Need, Part};
use windfall_ledger::{BudgetsApplied, LedgerError};
use windfall_reward_service::{CallError, RewardHandle};

/// The pause between two attempts to set the same budgets.
const RETRY: Duration = Duration::from_millis(200);

/// Sets the budgets of these rules, unless newer rules have set theirs, and says what could not be set as asked.
/// Answers whether they are set.
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

/// Whether the budgets of any rules were set since the start. Before that a process grants nothing: it would give out
/// what the rules do not allow, or refuse what they do.
#[derive(Debug, Clone)]
pub struct BudgetsGate(Arc<watch::Sender<bool>>);

impl BudgetsGate {
    /// Closed.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is open.
    pub async fn opened(&self) {
        // The sender lives as long as we do.
        self.0.subscribe().wait_for(|open| *open).await.ok();
    }

    /// Opens it for good.
    pub fn open(&self) {
        self.0.send_replace(true);
    }
}

/// Whether budgets may be set later without a change of the rules.
pub const fn may_pass(error: &CallError) -> bool {
    match error {
        CallError::Busy => true,
        CallError::Closed => false,
        CallError::Ledger(error) => !matches!(error, LedgerError::Invalid(_) | LedgerError::Damaged(_)),
    }
}

/// Sets budgets anew with every version of the rules that changes them, and notes the others: no process grants by
/// rules that are older than what the ledger has noted. Opens the gate when the ledger has answered.
pub fn follow(
    tasks: &Tasks,
    health: &Health,
    rules: &LiveRules,
    rewards: &RewardHandle,
    gate: &BudgetsGate,
) -> Background {
    let part = Arc::new(health.part("budgets", Need::Strong));
    if gate.is_open() {
        part.is_there();
    }
    let (rules, rewards, gate) = (rules.clone(), rewards.clone(), gate.clone());
    tasks.spawn("budgets", move || keep_set(rules.clone(), rewards.clone(), gate.clone(), Arc::clone(&part)))
}

async fn keep_set(rules: LiveRules, rewards: RewardHandle, gate: BudgetsGate, part: Arc<Part>) {
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
            // Budgets that were not set because newer rules had set theirs are set by the next version, even if they
            // are the same.
            Ok(is_set) => {
                applied = is_set.then_some(wanted);
                gate.open();
                part.is_there();
            }
            Err(error) => {
                part.is_missing(format!("those of the rules' version {} are not set: {error}", now.version));
                tokio::time::sleep(RETRY).await;
                continue;
            }
        }
        if changes.changed().await.is_err() {
            // The rules will not change any more.
            return std::future::pending().await;
        }
    }
}
