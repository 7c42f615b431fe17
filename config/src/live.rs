//! The rules that a process runs now: read anywhere, swapped as a whole.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::document::version_of;
use crate::refusal::{Fault, Problem, Refusal};
use crate::stage::StagedStatus;
use crate::status::RefusedVersion;
use windfall_contract::rules::{DrainingTopic, Rules, Staged};

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
    /// The rules as the document has them, where a change is staged in it.
    document: Option<Arc<Rules>>,
    /// The name by which a staged change names this process.
    process: Option<String>,
    /// When it was named, in ms since 1970.
    named_ms: u64,
    /// The staged change that this process does not run any more, by its time, and why.
    given_up: Option<(u64, String)>,
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
    /// What the process does with the change that is staged; `None` where none is.
    pub staged: Option<StagedStatus>,
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
        let document = rules.staged.is_some().then(|| Arc::clone(&rules));
        Self(Arc::new(Shared {
            current: ArcSwap::new(Arc::clone(&rules)),
            changes: watch::Sender::new(rules),
            record: Mutex::new(Record { document, ..Record::default() }),
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
            staged: record.staged().map(|staged| StagedStatus {
                since_ms: staged.since_ms,
                runs: record.runs(staged),
                given_up: record.given_up_for(staged).map(str::to_owned),
            }),
        }
    }

    /// Names this process: from now on it runs what is staged for it. Call it before anything runs by these rules:
    /// within one version a process may give a staged change up, and not begin it. `now_ms` is ms since 1970.
    pub fn name_process(&self, name: &str, now_ms: u64) {
        let mut record = self.0.record.lock();
        record.process = Some(name.to_owned());
        record.named_ms = now_ms;
        record.give_up_what_is_over(now_ms);
        self.swap_to_what_is_staged(&mut record, now_ms);
    }

    /// The rules as the document has them, where this process runs the change that is staged in it.
    pub fn staged_here(&self) -> Option<Arc<Rules>> {
        let record = self.0.record.lock();
        let runs = record.staged().is_some_and(|staged| record.runs(staged));
        record.document.clone().filter(|_| runs)
    }

    /// Gives up the change that was staged at `since_ms`: this process runs the rules without it from now on, also where
    /// they change otherwise. Nothing happens where another change is staged. `now_ms` is ms since 1970.
    pub fn give_up_staged(&self, since_ms: u64, why: String, now_ms: u64) {
        let mut record = self.0.record.lock();
        let runs = record.staged().is_some_and(|staged| staged.since_ms == since_ms && record.runs(staged));
        if runs {
            tracing::warn!(why, "this process gives up the staged change of the rules");
            record.given_up = Some((since_ms, why));
            self.swap_to_what_is_staged(&mut record, now_ms);
        }
    }

    /// Runs what the record says of the staged change, if that is not what runs.
    fn swap_to_what_is_staged(&self, record: &mut Record, now_ms: u64) {
        let Some(document) = record.document.clone() else { return };
        let rules = record.in_force(&document);
        let running = self.0.current.load_full();
        if rules.tries_staged != running.tries_staged {
            self.swap(record, rules, now_ms);
        }
    }

    fn swap(&self, record: &mut Record, rules: Rules, now_ms: u64) {
        record.swaps += 1;
        record.applied_at_ms = Some(now_ms);
        let rules = Arc::new(rules);
        self.0.current.store(Arc::clone(&rules));
        self.0.changes.send_replace(rules);
    }
}

impl Record {
    fn staged(&self) -> Option<&Staged> {
        self.document.as_deref()?.staged.as_deref()
    }

    fn given_up_for(&self, staged: &Staged) -> Option<&str> {
        self.given_up.as_ref().filter(|(since_ms, _)| *since_ms == staged.since_ms).map(|(_, why)| &**why)
    }

    /// Whether this process runs it.
    fn runs(&self, staged: &Staged) -> bool {
        self.process.as_ref().is_some_and(|own| staged.processes.contains(own))
            && self.given_up_for(staged).is_none()
    }

    /// A change whose time is over is not even begun; nor is one of before the start, whose trial this process may have
    /// ended by giving it up or by crashing of it. A container has the same name when it starts again.
    fn give_up_what_is_over(&mut self, now_ms: u64) {
        let Some(staged) = self.staged().filter(|staged| self.runs(staged)) else { return };
        let why = if now_ms >= staged.until_ms {
            "its time is over"
        } else if staged.since_ms < self.named_ms {
            "the process has started since"
        } else {
            return;
        };
        self.given_up = Some((staged.since_ms, why.to_owned()));
    }

    /// The rules that this process runs by this document.
    fn in_force(&self, document: &Rules) -> Rules {
        match &document.staged {
            Some(staged) if self.runs(staged) => document.with_staged(),
            _ => document.clone(),
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
        let current = shared.current.load_full();
        let running = record.document.clone().unwrap_or_else(|| Arc::clone(&current));
        let offered = str::from_utf8(candidate).ok().and_then(version_of);
        let judged = self.judge(candidate, &running);
        record.offered = offered.or(record.offered);
        record.refuses = None;
        match judged {
            Ok(None) => Ok(Applied::Unchanged),
            Ok(Some(rules)) => {
                let (from, to) = (running.version, rules.version);
                record.document = rules.staged.is_some().then(|| Arc::new(rules.clone()));
                record.give_up_what_is_over(now_ms);
                let rules = record.in_force(&rules);
                self.live.swap(&mut record, rules, now_ms);
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

    const NOW_MS: u64 = 1_790_000_000_000;

    /// The sample with a change of the global limit's burst that `mine` tries.
    fn staged(version: u64, since_ms: u64) -> String {
        let who = crate::StageFor {
            processes: vec!["mine".to_owned()],
            guards: windfall_contract::rules::Guards::default(),
            proven_after_ms: 1000,
        };
        let mut wanted = sample();
        wanted.limits.global.burst = 7;
        let text = crate::stage(SAMPLE, &wanted, &who, since_ms).unwrap();
        crate::document::with_version(&text, version).unwrap()
    }

    #[test]
    fn a_staged_change_runs_where_it_is_named_until_it_is_given_up() {
        let burst = |live: &LiveRules| live.current().limits.global.burst;
        let (live, applier) = LiveRules::adjustable(sample(), None);
        let (others, of_others) = LiveRules::adjustable(sample(), None);
        let base = burst(&live);
        live.name_process("mine", NOW_MS);
        others.name_process("theirs", NOW_MS);
        for applier in [&applier, &of_others] {
            applier.apply(staged(2, NOW_MS).as_bytes(), NOW_MS).unwrap();
        }
        assert_eq!((burst(&live), burst(&others)), (7, base));
        assert_eq!((live.current().version, others.current().version), (2, 2), "the version is one");
        assert!(!others.status().staged.unwrap().runs && others.staged_here().is_none());
        // The same document again is no change, and no way back.
        assert_eq!(applier.apply(staged(2, NOW_MS).as_bytes(), NOW_MS).unwrap(), Applied::Unchanged);
        assert_eq!(burst(&live), 7);

        let mut changes = live.subscribe();
        let edition = changes.borrow_and_update().edition();
        live.give_up_staged(NOW_MS + 1, "another change".to_owned(), NOW_MS);
        assert!(!changes.has_changed().unwrap());
        live.give_up_staged(NOW_MS, "lag".to_owned(), NOW_MS);
        assert_eq!(changes.borrow_and_update().limits.global.burst, base);
        assert!(
            live.current().edition() > edition && live.current().version == 2,
            "newer, and the same version"
        );
        let status = live.status().staged.unwrap();
        assert_eq!((status.runs, status.given_up.as_deref()), (false, Some("lag")));
        // Another change of the rules does not bring it back; a new trial begins anew.
        applier.apply(staged(3, NOW_MS).as_bytes(), NOW_MS).unwrap();
        assert_eq!(burst(&live), base);
        applier.apply(staged(4, NOW_MS + 5).as_bytes(), NOW_MS + 5).unwrap();
        assert_eq!(burst(&live), 7);
        applier.apply(at_version(5, |_| {}).as_bytes(), NOW_MS + 6).unwrap();
        assert_eq!((burst(&live), live.status().staged), (base, None));
    }

    #[test]
    fn a_staged_change_whose_time_is_over_is_not_begun() {
        let text = staged(2, NOW_MS);
        let over_ms = NOW_MS + 1000 + crate::PROMOTE_WITHIN_MS;
        let of = |now_ms| {
            let (live, applier) = LiveRules::adjustable(sample(), None);
            live.name_process("mine", NOW_MS);
            applier.apply(text.as_bytes(), now_ms).unwrap();
            (live.current().limits.global.burst == 7, live.status().staged.unwrap().given_up)
        };
        assert_eq!(of(over_ms - 1), (true, None));
        assert_eq!(of(over_ms), (false, Some("its time is over".to_owned())));
        // One that starts again under its old name may have crashed of it.
        let live = LiveRules::fixed(crate::parse_rules(&text, None).unwrap());
        live.name_process("mine", NOW_MS + 1);
        let given_up = live.status().staged.unwrap().given_up;
        assert_eq!(given_up.as_deref(), Some("the process has started since"));
        assert_ne!(live.current().limits.global.burst, 7);
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
