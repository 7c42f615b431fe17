//! The rules that a process runs now: read anywhere, swapped as a whole.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::document::version_of;
use crate::refusal::{Fault, Problem, Refusal};
use crate::status::RefusedVersion;
use windfall_contract::rules::{DrainingTopic, Rules};

/// A handle on the rules that run now. Cheap to clone; all clones see the same rules.
/// Code that reads more than one field for one decision takes [`LiveRules::current`] once and keeps that `Arc`
/// for the decision, so that all of it comes from one version.
#[derive(Debug, Clone)]
pub struct LiveRules(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    current: ArcSwap<Rules>,
    changes: watch::Sender<Arc<Rules>>,
    record: Mutex<Record>,
}

/// The history of the candidates so far.
#[derive(Debug, Default)]
struct Record {
    applied_at_ms: Option<u64>,
    swaps: u64,
    refusals: u64,
    last_refusal: Option<Noted>,
    offered: Option<u64>,
    refuses: Option<RefusedVersion>,
    source_failures: u64,
    source_failure: Option<Noted>,
}

/// What a process runs, and what it was offered and did not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The version that is running.
    pub version: u64,
    /// When it was swapped in, ms since 1970; `None` for the rules of the start.
    pub applied_at_ms: Option<u64>,
    /// How often the rules were swapped since the start.
    pub swaps: u64,
    /// Candidates refused since the start (I6). The same bytes, seen again, count once.
    pub refusals: u64,
    /// The latest refusal; stays after a later candidate was taken.
    pub last_refusal: Option<Noted>,
    /// The version of the newest candidate, taken or not; the running one where there was none.
    pub offered: u64,
    /// The newest candidate, where it was refused and none was taken since.
    pub refuses: Option<RefusedVersion>,
    /// How often the source became unreadable since the start (I8).
    pub source_failures: u64,
    /// Why the source cannot be read now; `None` while it can.
    pub source_failure: Option<Noted>,
}

/// A message with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// When it was noted, in ms since 1970.
    pub at_ms: u64,
    /// What was wrong, with keys and lines.
    pub text: String,
}

/// The outcome of a candidate that validates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The candidate runs now.
    Swapped {
        /// The version that ran before.
        from: u64,
        /// The version that runs now.
        to: u64,
    },
    /// The candidate is what runs already.
    Unchanged,
}

impl LiveRules {
    /// Rules that never change: for tests, and for tools that need one look.
    pub fn fixed(rules: Rules) -> Self {
        let rules = Arc::new(rules);
        Self(Arc::new(Shared {
            current: ArcSwap::new(Arc::clone(&rules)),
            changes: watch::Sender::new(rules),
            record: Mutex::default(),
        }))
    }

    /// Rules that change by what the [`Applier`] is offered: a source's way in, and a test's.
    pub fn adjustable(rules: Rules, known_brokers: Option<Vec<String>>) -> (Self, Applier) {
        let live = Self::fixed(rules);
        (live.clone(), Applier { live, known_brokers })
    }

    /// The rules that run now, whole. Never waits, not even for a swap.
    #[inline]
    pub fn current(&self) -> Arc<Rules> {
        self.0.current.load_full()
    }

    /// Wakes at every swap with the new rules; a slow reader sees the latest and misses those between.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Rules>> {
        self.0.changes.subscribe()
    }

    /// What runs, and what was refused.
    pub fn status(&self) -> Status {
        let record = self.0.record.lock();
        let version = self.0.current.load().version;
        Status {
            version,
            offered: record.offered.unwrap_or(version),
            refuses: record.refuses.clone(),
            applied_at_ms: record.applied_at_ms,
            swaps: record.swaps,
            refusals: record.refusals,
            last_refusal: record.last_refusal.clone(),
            source_failures: record.source_failures,
            source_failure: record.source_failure.clone(),
        }
    }
}

/// Takes candidates for the rules of one [`LiveRules`].
#[derive(Debug)]
pub struct Applier {
    live: LiveRules,
    known_brokers: Option<Vec<String>>,
}

impl Applier {
    /// Validates a candidate as a whole and swaps it in; or changes nothing and counts it (I6).
    ///
    /// # Errors
    /// [`Refusal`]: it does not validate, or its version is not above the running one though it differs.
    pub fn apply(&self, candidate: &[u8], now_ms: u64) -> Result<Applied, Refusal> {
        let shared = &self.live.0;
        // Held over the whole change, so that two candidates at once are judged one after the other.
        let mut record = shared.record.lock();
        let running = shared.current.load_full();
        let offered = str::from_utf8(candidate).ok().and_then(version_of);
        let judged = self.judge(candidate, &running);
        record.offered = offered.or(record.offered);
        record.refuses = None;
        match judged {
            Ok(None) => Ok(Applied::Unchanged),
            Ok(Some(rules)) => {
                let (from, to) = (running.version, rules.version);
                let rules = Arc::new(rules);
                shared.current.store(Arc::clone(&rules));
                shared.changes.send_replace(rules);
                record.applied_at_ms = Some(now_ms);
                record.swaps += 1;
                tracing::info!(from, to, "the rules changed");
                Ok(Applied::Swapped { from, to })
            }
            Err(refusal) => {
                record.refusals += 1;
                let text = refusal.to_string();
                record.refuses = Some(RefusedVersion { version: offered, at_ms: now_ms, why: text.clone() });
                record.last_refusal = Some(Noted { at_ms: now_ms, text });
                tracing::warn!(running = running.version, %refusal, "the rules stay as they are");
                Err(refusal)
            }
        }
    }

    /// The source cannot be read; what runs goes on (I8). Counted where it could be read before.
    pub(crate) fn source_failed(&self, text: String, now_ms: u64) {
        let mut record = self.live.0.record.lock();
        if record.source_failure.is_none() {
            record.source_failures += 1;
            tracing::warn!(%text, "the source of the rules cannot be read; the rules stay as they are");
        }
        record.source_failure = Some(Noted { at_ms: now_ms, text });
    }

    /// The source can be read.
    pub(crate) fn source_works(&self) {
        if self.live.0.record.lock().source_failure.take().is_some() {
            tracing::info!("the source of the rules can be read again");
        }
    }

    /// Judges a candidate; `None` if it equals the rules that run already.
    fn judge(&self, candidate: &[u8], running: &Rules) -> Result<Option<Rules>, Refusal> {
        let known: Option<Vec<&str>> =
            self.known_brokers.as_ref().map(|known| known.iter().map(String::as_str).collect());
        let rules = crate::parse_rules_bytes(candidate, known.as_deref())?;
        if rules == *running {
            return Ok(None);
        }
        if rules.version <= running.version {
            let fault = Fault::StaleVersion { found: rules.version, running: running.version };
            return Err(Refusal::of(Problem { key: "version".to_owned(), line: None, fault }));
        }
        let forgotten = rules.forgotten(running);
        if !forgotten.is_empty() {
            let problem = |old: &DrainingTopic| {
                let found = format!("nothing of the topic `{}` on broker `{}`", old.topic, old.broker);
                let allowed = "a topic that the running rules write to, in [topics] or in [[draining]] until it is empty \
                               (`windfall rules set` sees to that)";
                Problem { key: "topics".to_owned(), line: None, fault: Fault::Clash { found, allowed } }
            };
            return Err(Refusal::new(forgotten.iter().map(problem).collect()));
        }
        Ok(Some(rules))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const SAMPLE: &str = include_str!("../samples/rules.toml");

    fn sample() -> Rules {
        crate::parse_rules(SAMPLE, None).unwrap()
    }

    fn at_version(version: u64, edit: impl Fn(&mut Rules)) -> String {
        let mut rules = sample();
        rules.version = version;
        edit(&mut rules);
        crate::rules_text(&rules)
    }

    #[test]
    fn a_higher_version_is_swapped_in_and_told() {
        let (live, applier) = LiveRules::adjustable(sample(), None);
        let mut changes = live.subscribe();
        let text = at_version(2, |rules| rules.limits.global.burst = 7);
        assert_eq!(applier.apply(text.as_bytes(), 99).unwrap(), Applied::Swapped { from: 1, to: 2 });
        assert!(changes.has_changed().unwrap());
        assert_eq!(changes.borrow_and_update().limits.global.burst, 7);
        assert_eq!(live.current().limits.global.burst, 7);
        let status = live.status();
        assert_eq!((status.version, status.swaps, status.applied_at_ms), (2, 1, Some(99)));
    }

    #[test]
    fn the_same_rules_in_other_words_change_nothing() {
        let (live, applier) = LiveRules::adjustable(sample(), None);
        let changes = live.subscribe();
        let text = at_version(1, |_| {});
        assert_ne!(text, SAMPLE);
        assert_eq!(applier.apply(text.as_bytes(), 1).unwrap(), Applied::Unchanged);
        assert!(!changes.has_changed().unwrap());
        assert_eq!(live.status().refusals, 0);
    }

    #[test]
    fn a_version_that_is_not_above_the_running_one_is_refused_and_says_so() {
        let (live, applier) = LiveRules::adjustable(sample(), None);
        applier.apply(at_version(5, |_| {}).as_bytes(), 1).unwrap();
        for version in [4, 5] {
            let text = at_version(version, |rules| rules.limits.global.rate_per_s = 1);
            let refusal = applier.apply(text.as_bytes(), 2).unwrap_err();
            assert_eq!(refusal.problems()[0].key, "version");
            assert!(refusal.to_string().contains("needs a higher version"), "{refusal}");
        }
        assert_eq!(live.status().refusals, 2);
        assert_eq!(*live.current(), crate::parse_rules(&at_version(5, |_| {}), None).unwrap());
    }

    #[test]
    fn a_refused_candidate_changes_nothing_and_is_counted() {
        let (live, applier) = LiveRules::adjustable(sample(), Some(vec!["a".to_owned(), "b".to_owned()]));
        let before = live.current();
        let text = at_version(2, |rules| rules.pacing.grant_batch = 0);
        assert!(applier.apply(text.as_bytes(), 42).is_err());
        let unknown_broker =
            at_version(2, |rules| rules.topics.values_mut().next().unwrap().broker = "c".to_owned());
        assert!(applier.apply(unknown_broker.as_bytes(), 43).is_err());
        assert!(Arc::ptr_eq(&before, &live.current()));
        let status = live.status();
        assert_eq!((status.version, status.swaps, status.refusals), (1, 0, 2));
        assert_eq!((status.offered, status.refuses.as_ref().unwrap().version), (2, Some(2)));
        let last = status.last_refusal.unwrap();
        assert_eq!(last.at_ms, 43);
        assert!(last.text.contains("unknown broker `c`"), "{}", last.text);
        // What was refused is not what is refused.
        applier.apply(at_version(3, |_| {}).as_bytes(), 44).unwrap();
        let status = live.status();
        assert_eq!((status.offered, status.refuses), (3, None));
        assert_eq!(status.last_refusal, Some(last));
    }

    #[test]
    fn a_document_that_forgets_a_topic_is_refused_until_it_has_it_read_until_it_is_empty() {
        let (live, applier) = LiveRules::adjustable(sample(), None);
        let moved = |rules: &mut Rules| {
            let old = rules.topics["cash-a"].clone();
            rules.topics.get_mut("cash-a").unwrap().broker = "c".to_owned();
            DrainingTopic { topic: "cash-a".to_owned(), broker: old.broker, partitions: old.partitions }
        };
        let forgetful = at_version(2, |rules| drop(moved(rules)));
        let refusal = applier.apply(forgetful.as_bytes(), 1).unwrap_err().to_string();
        assert!(refusal.contains("`cash-a` on broker `a`") && refusal.contains("[[draining]]"), "{refusal}");
        assert_eq!(live.current().version, 1);
        let keeping = at_version(2, |rules| {
            let old = moved(rules);
            rules.draining.push(old);
        });
        applier.apply(keeping.as_bytes(), 2).unwrap();
        assert!(live.current().knows_topic("cash-a", "a") && live.current().knows_topic("cash-a", "c"));
        // Empty, says the operator: that needs no more than its removal.
        let gone = at_version(3, |rules| drop(moved(rules)));
        applier.apply(gone.as_bytes(), 3).unwrap();
        assert!(!live.current().knows_topic("cash-a", "a"));
    }

    #[test]
    fn a_failing_source_is_counted_once_until_it_works_again() {
        let (live, applier) = LiveRules::adjustable(sample(), None);
        for at in 1..4 {
            applier.source_failed("gone".to_owned(), at);
        }
        assert_eq!(live.status().source_failures, 1);
        assert_eq!(live.status().source_failure.unwrap().at_ms, 3);
        applier.source_works();
        assert_eq!(live.status().source_failure, None);
        applier.source_failed("gone".to_owned(), 9);
        assert_eq!(live.status().source_failures, 2);
    }

    /// Every version N carries N in two far-apart places; a reader must never see two different ones.
    #[test]
    fn readers_under_swaps_see_one_whole_version() {
        let (live, applier) = LiveRules::adjustable(sample(), None);
        let last = 300;
        let mark = |rules: &mut Rules, version: u64| {
            rules.limits.global.rate_per_s = version;
            rules.pacing.deadline_ms = 1000 + version;
        };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut newest = 0;
                    while !done.load(Ordering::Acquire) {
                        let rules = live.current();
                        if rules.version > 1 {
                            assert_eq!(rules.limits.global.rate_per_s, rules.version);
                            assert_eq!(rules.pacing.deadline_ms, 1000 + rules.version);
                        }
                        assert!(rules.version >= newest, "went back");
                        newest = rules.version;
                    }
                });
            }
            for version in 2..=last {
                let text = at_version(version, |rules| mark(rules, version));
                if applier.apply(text.as_bytes(), version).is_err() {
                    break;
                }
            }
            done.store(true, Ordering::Release);
        });
        assert_eq!(live.status().swaps, last - 1);
    }
}
