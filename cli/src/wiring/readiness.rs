//! Looks now and then at what lies outside of the process, and reports it to the process's health.

use super::background::{Background, Hopeless, Tasks};
use super::scheduling::{Scheduling, TimersTopic};
use super::work::Work;
use crate::drivers::{self, Connect, Far};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_config::LiveRules;
use windfall_contract::due::Shard;
use windfall_contract::entries::EntryStore;
use windfall_contract::tokens::{TokenKey, TokenStore};
use windfall_edge::{Health, Need, Part};
use windfall_ledger::LedgerError;
use windfall_queue_virtual::{Fanout, TopicState, TopicStatus};
use windfall_reward_service::{CallError, RewardHandle};
use windfall_scheduler::AddQueue;
use windfall_scheduler_service::{TopicChecks, refusal};
use windfall_sdk::Sdk;

/// The pause between two looks at a part.
const EVERY: Duration = Duration::from_secs(1);
/// The pause between two looks at the scheduler.
const STORE_EVERY: Duration = Duration::from_millis(200);
/// The pause between two attempts to connect to its store.
const CONNECT_AGAIN: Duration = Duration::from_millis(500);
/// How often it is looked whether far timers are taken.
const FAR_LOOK: Duration = Duration::from_secs(1);
/// The pause between two attempts to open the segments of far timers.
const SEGMENTS_AGAIN: Duration = Duration::from_secs(1);
/// A slot store that is there answers within this time.
const STORE_AT_ONCE: Duration = Duration::from_secs(1);
/// The pause between two looks at topics of timers that are refused, or were not seen yet.
const TOPICS_EVERY: Duration = Duration::from_secs(5);
/// A ledger that has not answered for so long is missing: more than a frozen server's time limit.
const LEDGER_PATIENCE: Duration = Duration::from_secs(12);
/// The time without an answer after which a token store counts as missing.
const TOKENS_PATIENCE: Duration = Duration::from_secs(3);

/// Follows the ledger by a read that finds nothing.
pub fn ledger(tasks: &Tasks, health: &Health, rewards: &RewardHandle) -> Background {
    let part = Arc::new(health.part("ledger", Need::Strong));
    let (rewards, owner) = (rewards.clone(), tasks.clone());
    tasks.spawn("looks at the ledger", move || {
        let (part, rewards, owner) = (Arc::clone(&part), rewards.clone(), owner.clone());
        async move {
            loop {
                if rewards.stats().is_closed {
                    owner.fatal(Hopeless::Failed("a thread of the ledger has ended by itself".into()));
                }
                let asked = rewards.read(|reader| reader.orders_of_number("-").map(drop));
                match tokio::time::timeout(LEDGER_PATIENCE, asked).await {
                    // Too many wait for it, which says that they do not wait in vain.
                    Ok(Ok(()) | Err(CallError::Busy)) => part.is_there(),
                    Ok(Err(CallError::Ledger(LedgerError::Unavailable(why)))) => part.is_missing(why),
                    Ok(Err(error)) => part.is_missing(error.to_string()),
                    Err(_) => part.is_missing(format!("no answer for {} s", LEDGER_PATIENCE.as_secs())),
                }
                tokio::time::sleep(EVERY).await;
            }
        }
    })
}

/// Follows the token store by a read that finds nothing. A service that does nothing but answer from it needs it; all
/// others go on without (I8).
pub fn tokens(tasks: &Tasks, health: &Health, work: Work, store: &Arc<dyn TokenStore>) -> Background {
    let is_all = work == Work { serves_tokens: true, ..Work::default() };
    let part = Arc::new(health.part("tokens", if is_all { Need::Strong } else { Need::Weak }));
    let store = Arc::clone(store);
    tasks.spawn("looks at the token store", move || {
        let (part, store) = (Arc::clone(&part), Arc::clone(&store));
        async move {
            let nobody = [TokenKey { user_id: 0, name: "-".into() }];
            loop {
                match tokio::time::timeout(TOKENS_PATIENCE, store.get(&nobody)).await {
                    Ok(Ok(_)) => part.is_there(),
                    Ok(Err(why)) => part.is_missing(why.0),
                    Err(_) => part.is_missing(format!("no answer for {} s", TOKENS_PATIENCE.as_secs())),
                }
                tokio::time::sleep(EVERY).await;
            }
        }
    })
}

/// Connects to the slot store where its server was away at the start, and follows whether timers can be kept and fired.
/// A store that cannot be used at all ends the process: it has stored and fired nothing yet. Later nothing does, for the
/// process then knows what has fired and is not noted.
pub fn scheduler(
    tasks: &Tasks,
    health: &Health,
    scheduling: &Scheduling,
    away: Option<Arc<dyn Connect>>,
) -> Background {
    let part = Arc::new(health.part("scheduler", Need::Strong));
    let (check, timers, owner) = (Arc::new(scheduling.check()), scheduling.timers.clone(), tasks.clone());
    tasks.spawn("looks at the scheduler", move || {
        let (part, check, timers, owner) =
            (Arc::clone(&part), Arc::clone(&check), timers.clone(), owner.clone());
        let away = away.clone();
        async move {
            if let Some(away) = away {
                connect(&part, &owner, &*away).await;
            }
            tracing::info!(durability = ?timers.durability(), "an Ok for a timer survives this");
            let began = Instant::now();
            loop {
                let found = check();
                // Before its first answer there is nothing to say.
                if found.is_ok() || began.elapsed() > STORE_AT_ONCE {
                    part.looked(found);
                }
                tokio::time::sleep(STORE_EVERY).await;
            }
        }
    })
}

/// Follows the store of jobs: without it jobs wait, and everything else goes on.
pub fn jobs(
    tasks: &Tasks,
    health: &Health,
    store: &Arc<dyn EntryStore>,
    away: Option<Arc<dyn Connect>>,
) -> Background {
    let part = Arc::new(health.part("jobs", Need::Weak));
    let (store, owner) = (Arc::clone(store), tasks.clone());
    tasks.spawn("looks at the store of jobs", move || {
        let (part, store, owner, away) = (Arc::clone(&part), Arc::clone(&store), owner.clone(), away.clone());
        async move {
            if let Some(away) = away {
                connect(&part, &owner, &*away).await;
            }
            tracing::info!(durability = ?store.durability(), "an Ok for a job survives this");
            loop {
                let found = store.woken(Shard(0), 1).await;
                part.looked(found.map(drop).map_err(|error| error.to_string()));
                tokio::time::sleep(STORE_EVERY).await;
            }
        }
    })
}

/// Tries until it succeeds, or can never.
pub async fn connect(part: &Part, owner: &Tasks, away: &dyn Connect) {
    loop {
        match away.connect().await {
            Ok(()) => return,
            Err(error) if drivers::may_pass(&error) => part.is_missing(format!("{error:#}")),
            Err(error) => {
                owner.fatal(Hopeless::Refused(format!("{error:#}")));
                return std::future::pending().await;
            }
        }
        tokio::time::sleep(CONNECT_AGAIN).await;
    }
}

/// Opens the segments of far timers where they had no answer at the start. Near timers are added and fire meanwhile, so
/// nothing that is found ends the process.
#[cfg(feature = "roles")]
pub fn far(tasks: &Tasks, health: &Health, far: Far) -> Background {
    let part = Arc::new(health.part("far timers", Need::Weak));
    tasks.spawn("opens the far timers", move || {
        let (part, away, tier) = (Arc::clone(&part), far.away.clone(), far.tier.clone());
        async move {
            if let Some(away) = away {
                while let Err(error) = away.connect().await {
                    part.is_missing(format!("{error:#}"));
                    tokio::time::sleep(SEGMENTS_AGAIN).await;
                }
            }
            loop {
                part.looked(tier.check());
                tokio::time::sleep(FAR_LOOK).await;
            }
        }
    })
}

/// Looks once at each topic that timers are written to, and again and again at one that is refused, or whose broker is
/// away. The other targets go on without it.
pub fn timers_topics(tasks: &Tasks, health: &Health, topics: &[TimersTopic]) -> Background {
    let (health, topics) = (health.clone(), topics.to_vec());
    tasks.spawn("looks at the topics of timers", move || {
        let (health, mut open) = (health.clone(), topics.clone());
        async move {
            let mut refused: BTreeMap<String, Part> = BTreeMap::new();
            loop {
                let mut left = Vec::new();
                for topic in open {
                    let options = topic.target.options();
                    let name = format!("timers' topic {} on {}", options.topic, topic.broker);
                    match topic.target.hazards().await {
                        Ok(hazards) if hazards.is_empty() => {
                            if let Some(part) = refused.get(&name) {
                                part.is_there();
                            }
                        }
                        Ok(hazards) if options.checks == TopicChecks::Refuse => {
                            let part = refused.entry(name.clone());
                            let part = part.or_insert_with(|| health.part(name, Need::Weak));
                            part.is_missing(refusal(&options.topic, &hazards));
                            left.push(topic);
                        }
                        Ok(hazards) => {
                            let hazards = hazards.join("; ");
                            tracing::warn!(name, hazards, "a topic of timers may lose what it has stored");
                        }
                        // Whoever fires says so; that nobody has looked matters to nobody before.
                        Err(_) => left.push(topic),
                    }
                }
                if left.is_empty() {
                    // The parts stay known.
                    std::future::pending::<()>().await;
                }
                open = left;
                tokio::time::sleep(TOPICS_EVERY).await;
            }
        }
    })
}

/// Follows whether adds can be written to their queue, and are taken from there. Ordinary adds go on without it.
pub fn add_queue(tasks: &Tasks, health: &Health, queue: &AddQueue) -> Background {
    let part = Arc::new(health.part("timers' queue of adds", Need::Weak));
    let queue = queue.clone();
    tasks.spawn("looks at the queue of adds", move || {
        let (part, queue) = (Arc::clone(&part), queue.clone());
        async move {
            let began = Instant::now();
            loop {
                let found = queue.check();
                // Before its first answer there is nothing to say.
                if found.is_ok() || began.elapsed() > STORE_AT_ONCE {
                    part.looked(found);
                }
                tokio::time::sleep(EVERY).await;
            }
        }
    })
}

/// Follows the source of the live rules: without it the process goes on with the rules that it has.
pub fn rules(tasks: &Tasks, health: &Health, rules: &LiveRules) -> Background {
    let part = Arc::new(health.part("rules", Need::Weak));
    let rules = rules.clone();
    tasks.spawn("looks at the rules", move || {
        let (part, rules) = (Arc::clone(&part), rules.clone());
        async move {
            loop {
                report(&part, &rules);
                tokio::time::sleep(EVERY).await;
            }
        }
    })
}

fn report(part: &Part, rules: &LiveRules) {
    part.looked(rules.status().source_failure.map_or(Ok(()), |failure| Err(failure.text)));
}

/// Follows the outboxes of the queues: without one the other topic of the queue takes the rewards.
pub fn outboxes(tasks: &Tasks, health: &Health, fanout: &Arc<Fanout>) -> Background {
    let (health, fanout, owner) = (health.clone(), Arc::clone(fanout), tasks.clone());
    tasks.spawn("looks at the outboxes", move || {
        let (health, fanout, owner) = (health.clone(), Arc::clone(&fanout), owner.clone());
        async move {
            let mut parts: BTreeMap<String, Part> = BTreeMap::new();
            loop {
                if fanout.stats().is_failing {
                    let why = "the thread that sends records again panics again and again";
                    owner.fatal(Hopeless::Failed(why.into()));
                }
                let topics = fanout.topics();
                let name = |topic: &TopicStatus| format!("outbox of {} on {}", topic.topic, topic.broker);
                let names: BTreeSet<String> = topics.iter().map(name).collect();
                parts.retain(|known, _| names.contains(known));
                for topic in &topics {
                    let name = name(topic);
                    let part = parts.entry(name.clone()).or_insert_with(|| health.part(name, Need::Weak));
                    match topic.state {
                        // Before the first answer there is nothing to say.
                        TopicState::Opening if topic.reason.is_none() => {}
                        TopicState::Opening | TopicState::BreakerOpen => {
                            let state = topic.state.as_str();
                            part.is_missing(format!(
                                "{state}: {}",
                                topic.reason.as_deref().unwrap_or_default()
                            ));
                        }
                        TopicState::Ready | TopicState::Draining | TopicState::Closed => part.is_there(),
                    }
                }
                tokio::time::sleep(EVERY).await;
            }
        }
    })
}

/// Follows the threads of an SDK: one that does nothing but panic ends the process, whose next start takes over its
/// spool.
pub fn sdk(tasks: &Tasks, sdk: &Sdk) -> Background {
    let (sdk, owner) = (sdk.clone(), tasks.clone());
    tasks.spawn("looks at the SDK", move || {
        let (sdk, owner) = (sdk.clone(), owner.clone());
        async move {
            while sdk.stats().failing_threads == 0 {
                tokio::time::sleep(EVERY).await;
            }
            owner.fatal(Hopeless::Failed("a thread of the SDK panics again and again".into()));
        }
    })
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use windfall_slots::redis::OpenRedisError;

    /// A server that is away for so many tries, and then is there or of the wrong kind.
    struct Server {
        tries_away: AtomicU32,
        suits: bool,
    }

    #[async_trait]
    impl Connect for Server {
        async fn connect(&self) -> anyhow::Result<()> {
            let place = || "here:6379".to_owned();
            let left = self.tries_away.load(SeqCst);
            if left > 0 {
                self.tries_away.store(left - 1, SeqCst);
                return Err(OpenRedisError::Unreachable { place: place(), what: "refused".into() }.into());
            }
            match self.suits {
                true => Ok(()),
                false => {
                    Err(OpenRedisError::Unsuited { place: place(), what: "keeps no file".into() }.into())
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_is_waited_for_and_one_that_never_suits_ends_the_process() {
        let health = Health::new();
        let (tasks, part) = (Tasks::new(health.clone()), health.part("scheduler", Need::Strong));
        let server = Server { tries_away: 8.into(), suits: true };
        let began = tokio::time::Instant::now();
        tokio::select! {
            biased;
            () = connect(&part, &tasks, &server) => panic!("it was away"),
            () = tokio::time::sleep(Duration::from_secs(2)) => {}
        }
        assert!(health.failing()["scheduler"].contains("here:6379 cannot be reached: refused"));
        connect(&part, &tasks, &server).await;
        assert!(began.elapsed() < Duration::from_secs(5) && tasks.is_hopeless().is_none());

        let server = Server { tries_away: 1.into(), suits: false };
        tokio::select! {
            () = connect(&part, &tasks, &server) => panic!("it never suits"),
            why = tasks.hopeless() => {
                assert!(matches!(&why, Hopeless::Refused(why) if why.contains("keeps no file")), "{why}");
            }
        }
    }
}
