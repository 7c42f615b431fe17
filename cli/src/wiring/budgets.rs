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
/// Between two attempts to set budgets while the ledger has seen newer rules.
const STALE_RETRY: Duration = Duration::from_secs(1);

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
            // The reward service says once, and louder, that it grants nothing.
            tracing::debug!(
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
pub struct BudgetsReady(Arc<watch::Sender<bool>>);

impl BudgetsReady {
    /// No budgets are set yet.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Whether they are set.
    pub fn is_ready(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until they are set.
    pub async fn ready(&self) {
        // The sender lives as long as we do.
        self.0.subscribe().wait_for(|is_ready| *is_ready).await.ok();
    }

    /// Notes that they are set, which stays so.
    pub fn set_ready(&self) {
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
/// rules that are older than what the ledger has noted. The budgets are `ready` when the ledger has answered.
pub fn follow(
    tasks: &Tasks,
    health: &Health,
    rules: &LiveRules,
    rewards: &RewardHandle,
    ready: &BudgetsReady,
) -> Background {
    let part = Arc::new(health.part("budgets", Need::Strong));
    if ready.is_ready() {
        part.is_there();
    }
    let (rules, rewards, ready) = (rules.clone(), rewards.clone(), ready.clone());
    tasks.spawn("budgets", move || keep_set(rules.clone(), rewards.clone(), ready.clone(), Arc::clone(&part)))
}

/// Notes rules whose budgets are those of the version `since`. Another process may have set those of a version in between, which this
/// one never saw: then they are set. Answers whether they are.
async fn note(rewards: &RewardHandle, since: u64, rules: &Rules) -> Result<bool, CallError> {
    match rewards.note_rules_version(since, rules.version).await? {
        newest if newest < rules.version => set(rewards, rules).await,
        newest => Ok(newest == rules.version),
    }
}

async fn keep_set(rules: LiveRules, rewards: RewardHandle, ready: BudgetsReady, part: Arc<Part>) {
    let mut changes = rules.subscribe();
    // Once at the beginning: the rules may have changed since the start set them. Then the budgets that this process has set, or found
    // set, and by which version.
    let mut applied = None;
    loop {
        let now = Arc::clone(&changes.borrow_and_update());
        let wanted = (now.budgets.clone(), now.total_caps());
        let done = match &applied {
            Some((same, since)) if *same == wanted && *since <= now.version => {
                note(&rewards, *since, &now).await
            }
            _ => set(&rewards, &now).await,
        };
        match done {
            // Budgets that were not set because newer rules had set theirs are set by the next version, even if they
            // are the same.
            Ok(is_set) => {
                applied = is_set.then_some((wanted, now.version));
                ready.set_ready();
                part.is_there();
                if !is_set {
                    // Or by this one, where an operator accepts it: nothing is granted by it before.
                    if let Ok(Err(_)) = tokio::time::timeout(STALE_RETRY, changes.changed()).await {
                        // The rules will not change any more.
                        tokio::time::sleep(STALE_RETRY).await;
                    }
                    continue;
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::LedgerAt;
    use crate::services::dev;
    use bytes::Bytes;
    use windfall_contract::Clock;
    use windfall_contract::rewards::{GrantReply, RetryReason, Rewards};
    use windfall_ledger::{ArchiveFilter, BudgetSet, Unbudgeted};
    use windfall_proto::event::EventRef;
    use windfall_reward_service::{RewardOptions, RewardService, RulesInForce};

    /// Follows the rules as a process does, over a ledger that refuses what no budget covers.
    async fn start(data: &std::path::Path, rules: &LiveRules) -> (RewardHandle, Background) {
        let ledger = LedgerAt::File.open(data, Unbudgeted::Refuse).unwrap();
        let rewards =
            RewardService::start(RewardOptions::default(), ledger, vec![], None, Clock::system()).unwrap();
        let own = rules.clone();
        rewards.follow_rules(Box::new(move || RulesInForce {
            version: own.current().version,
            ..RulesInForce::default()
        }));
        let health = Health::new();
        let following = follow(&Tasks::new(health.clone()), &health, rules, &rewards, &BudgetsReady::new());
        (rewards, following)
    }

    fn event(activity: &str, trade_no: &str) -> Bytes {
        let mut out = Vec::new();
        EventRef {
            trade_no,
            user_id: 1,
            activity,
            scene: "rain",
            bonus_type: "cash",
            amount: 1,
            ..EventRef::default()
        }
        .encode([], &mut out);
        out.into()
    }

    /// Rules of this version with a budget for each of these activities.
    fn text(version: u64, activities: &[&str]) -> String {
        let mut text = dev::RULES.replacen("version = 1", &format!("version = {version}"), 1);
        let end = text.split_off(text.find("[end]").unwrap());
        for activity in activities {
            text += &format!(
                "[[budgets]]\nactivity = \"{activity}\"\nscene = \"rain\"\ntype = \"cash\"\ntotal = 1000\n\n"
            );
        }
        text + &end
    }

    /// Asks again as long as it is told to for the rules.
    async fn until_decided(rewards: &RewardHandle, event: Bytes) -> GrantReply {
        let until = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            match rewards.grant_batch("cash", std::slice::from_ref(&event)).await.remove(0) {
                GrantReply::Retry { reason: RetryReason::OldRules, .. } => {}
                decided => return decided,
            }
            assert!(std::time::Instant::now() < until, "the budgets are not set");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_event_of_a_new_activity_is_refused_before_its_budget_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let first = windfall_config::parse_rules(&text(1, &["a0"]), None).unwrap();
        let (rules, applier) = LiveRules::adjustable(first, None);
        let (rewards, following) = start(folder.path(), &rules).await;
        assert_eq!(until_decided(&rewards, event("a0", "order-0")).await, GrantReply::Credited);
        for version in 2..12 {
            let activity = format!("a{version}");
            applier.apply(text(version, &["a0", &activity]).as_bytes(), 1).unwrap();
            let order = event(&activity, &format!("order-{version}"));
            assert_eq!(until_decided(&rewards, order).await, GrantReply::Credited, "version {version}");
        }
        // These change no budget.
        let same = text(12, &["a0", "a11"]).replace("burst = 5000", "burst = 5001");
        applier.apply(same.as_bytes(), 1).unwrap();
        assert_eq!(until_decided(&rewards, event("a0", "order-12")).await, GrantReply::Credited);
        assert!(rewards.archive_list(ArchiveFilter::default()).await.unwrap().is_empty());
        drop(following);
        tokio::task::spawn_blocking(move || rewards.close()).await.unwrap();
    }

    /// An operator's typo, which another process has carried out before it died, and its roll-back, which this process sees alone.
    #[tokio::test(flavor = "multi_thread")]
    async fn budgets_of_a_version_in_between_do_not_survive_its_roll_back() {
        let folder = tempfile::tempdir().unwrap();
        let first = windfall_config::parse_rules(&text(5, &["a0"]), None).unwrap();
        let (rules, applier) = LiveRules::adjustable(first, None);
        let (rewards, following) = start(folder.path(), &rules).await;
        assert_eq!(until_decided(&rewards, event("a0", "order-0")).await, GrantReply::Credited);
        let typo =
            BudgetSet { activity: "a0", scene: "rain", bonus_type: "cash", total: 1_000_000, shards: 1 };
        rewards.call(move |ledger| ledger.apply_budgets(6, &[typo])).await.unwrap();
        applier.apply(text(7, &["a0"]).as_bytes(), 1).unwrap();
        assert_eq!(until_decided(&rewards, event("a0", "order-1")).await, GrantReply::Credited);
        let budgets = rewards.read(|reader| reader.budgets()).await.unwrap();
        let of_a0 = budgets.iter().find(|one| one.activity == "a0").unwrap();
        assert_eq!(of_a0.total, Some(1_000));
        drop(following);
        tokio::task::spawn_blocking(move || rewards.close()).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn older_rules_set_their_budgets_once_an_operator_has_accepted_them() {
        let folder = tempfile::tempdir().unwrap();
        LedgerAt::File.open(folder.path(), Unbudgeted::Refuse).unwrap().note_rules_version(0, 5).unwrap();
        let rules = LiveRules::fixed(windfall_config::parse_rules(&text(3, &["a0"]), None).unwrap());
        let (rewards, following) = start(folder.path(), &rules).await;
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while rewards.behind_rules() != Some((3, 5)) {
            assert!(std::time::Instant::now() < until, "nobody has noticed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        rewards.call(|ledger| ledger.transact(|tx| tx.replace_rules_version(3))).await.unwrap();
        assert_eq!(until_decided(&rewards, event("a0", "order-0")).await, GrantReply::Credited);
        drop(following);
        tokio::task::spawn_blocking(move || rewards.close()).await.unwrap();
    }
}
