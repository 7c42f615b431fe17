//! The judge of jobs: it holds the calls for jobs and their answers against the runs that the executor got, and against what the
//! scheduler shows of them.

use crate::job_book::{EVERY_MS, Fixed, JobBook, Kind, Note, Once, Shown};
use crate::oracle::Verdict;
use crate::timer_oracle::Crash;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What an executor answered so long before a crash may not be noted.
const UNNOTED_MS: u64 = 3_000;
/// What was in flight when a crash was repaired may be sent again: leases have to end, and shards to be found.
const SETTLES_MS: u64 = 10_000;
/// An occurrence that is due is started or taken for missed within this time.
const DECIDED_MS: u64 = 30_000;
/// Occurrences that become due within this time after a kill are those that its shards delay.
const AFTER_KILL_MS: u64 = 5_000;

/// All that is compared.
pub struct JobEvidence<'e> {
    /// The callers' and the executor's journal.
    pub book: &'e JobBook,
    /// When repeats and misses are explained.
    pub crashes: &'e [Crash],
    /// Those of them in which nothing but a scheduler was killed.
    pub kills: &'e [Crash],
    /// How late an occurrence may be after such a kill.
    pub late_max_ms: u64,
}

/// Jobs in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct JobTally {
    /// Jobs that are due once: asked for.
    pub once: u64,
    /// Occurrences that had to be decided.
    pub expected: u64,
    /// Occurrences that came.
    pub came: u64,
    /// Runs that came again because an attempt had failed.
    pub retried: u64,
    /// Runs of at-least-once jobs that came again, each with an explanation.
    pub repeated: u64,
    /// Runs of at-most-once jobs that never came, each with an explanation.
    pub missed: u64,
    /// From the due time to the executor: half, 99 %, all, in ms.
    pub late_ms: [u64; 3],
    /// The same, the longest of what was due just after a scheduler was killed, in ms.
    pub late_after_kill_ms: u64,
}

/// Compares them; damage is added to the verdict.
pub fn judge(evidence: &JobEvidence<'_>, verdict: &mut Verdict) -> JobTally {
    let book = evidence.book;
    let mut judge = Judge { evidence, verdict, tally: JobTally::default(), late_ms: Vec::new() };
    for why in &book.refused {
        judge.damage("unexplained", format!("a call for jobs was refused: {why}"));
    }
    let mut by_name: BTreeMap<&str, Vec<&Note>> = BTreeMap::new();
    for note in &book.notes {
        by_name.entry(&note.params).or_default().push(note);
    }
    for (name, fixed) in &book.fixed {
        let came = by_name.remove(name.as_str()).unwrap_or_default();
        judge.fixed(name, fixed, &came, book.shown.get(name).map_or(&[][..], Vec::as_slice));
    }
    for (name, once) in &book.once {
        let came = by_name.remove(name.as_str()).unwrap_or_default();
        judge.once(name, once, &came);
    }
    for stranger in by_name.into_values().flatten() {
        judge.damage("unexplained", format!("nobody made the job of {stranger:?}"));
    }
    judge.close()
}

struct Judge<'a, 'e> {
    evidence: &'a JobEvidence<'e>,
    verdict: &'a mut Verdict,
    tally: JobTally,
    late_ms: Vec<u64>,
}

impl Judge<'_, '_> {
    fn damage(&mut self, kind: &'static str, what: String) {
        self.verdict.damage(kind, what);
    }

    fn close(mut self) -> JobTally {
        self.late_ms.sort_unstable();
        let late_ms = &self.late_ms;
        let quantile = |part: usize| late_ms.get(late_ms.len().saturating_sub(1) * part / 1_000).copied();
        self.tally.late_ms = [500, 990, 1_000].map(|part| quantile(part).unwrap_or(0));
        let (late_ms, max_ms) = (self.tally.late_after_kill_ms, self.evidence.late_max_ms);
        if late_ms > max_ms {
            let what =
                format!("a killed scheduler delayed its jobs by {late_ms} ms; {max_ms} ms are allowed");
            self.damage("unexplained", what);
        }
        self.tally
    }

    fn fixed(&mut self, name: &str, fixed: &Fixed, came: &[&Note], shown: &[Shown]) {
        let mut by_due: BTreeMap<u64, Vec<&Note>> = BTreeMap::new();
        for note in came {
            by_due.entry(note.due_ms).or_default().push(note);
        }
        for pause in &fixed.pauses {
            let to_ms = pause.to_ms.unwrap_or(u64::MAX);
            for (_, notes) in by_due.range(pause.from_ms..to_ms.max(pause.from_ms)) {
                self.damage("after_cancel", format!("the job {name} was paused: {pause:?}, {notes:?}"));
            }
        }
        let shown: HashMap<u64, &Shown> = shown.iter().map(|run| (run.due_ms, run)).collect();
        let expected: Vec<u64> = fixed.expected(self.evidence.book.end_ms.unwrap_or(0)).collect();
        self.tally.expected += expected.len() as u64;
        for due_ms in expected.iter().filter(|due_ms| !by_due.contains_key(due_ms)) {
            self.absent(name, fixed.kind, *due_ms, shown.get(due_ms).copied());
        }
        let mut runs = HashSet::new();
        for (due_ms, notes) in &by_due {
            self.occurrence(name, fixed.number, fixed.kind, notes);
            if notes.first().is_some_and(|note| !runs.insert(note.run)) {
                self.damage("double", format!("two occurrences of the job {name} have one run: {notes:?}"));
            }
            // Whoever is killed in time ends badly, too: at-least-once jobs have retries enough.
            if let Some(run) = shown.get(due_ms).filter(|run| run.is_dead() && fixed.kind != Kind::Most) {
                self.damage(
                    "unexplained",
                    format!("a run of the job {name} has ended as {run:?}: {notes:?}"),
                );
            }
        }
        if fixed.kind == Kind::Delay {
            self.delays(name, &by_due);
        }
    }

    /// An occurrence that had to be decided and did not come.
    fn absent(&mut self, name: &str, kind: Kind, due_ms: u64, shown: Option<&Shown>) {
        let what = format!("the occurrence {due_ms} of the job {name} never came: {shown:?}");
        match (kind, shown) {
            (Kind::Most, Some(_)) if self.is_explained(due_ms, due_ms + DECIDED_MS) => self.tally.missed += 1,
            (Kind::Most, Some(_)) => self.damage("unexplained", what),
            _ => self.damage("lost", what),
        }
    }

    /// The next occurrence follows from the end of the run before. Its time is counted by the store's clock as the scheduler knows
    /// it, which is behind by as long as the store's last answer took.
    fn delays(&mut self, name: &str, by_due: &BTreeMap<u64, Vec<&Note>>) {
        let mut last: Option<&Note> = None;
        for (due_ms, notes) in by_due {
            let is_hasty = |last: &&Note| {
                *due_ms < last.due_ms + EVERY_MS
                    || (*due_ms < last.at_ms && !self.is_explained(last.at_ms, last.at_ms))
            };
            if let Some(last) = last.filter(is_hasty) {
                let what = format!("the job {name} did not wait for the end of {last:?}: {notes:?}");
                self.damage("early", what);
            }
            last = notes.iter().min_by_key(|note| note.at_ms).copied();
        }
    }

    fn once(&mut self, name: &str, once: &Once, came: &[&Note]) {
        self.tally.once += 1;
        self.tally.expected += u64::from(once.is_answered);
        let Some(first) = came.first() else {
            if once.is_answered {
                self.damage("lost", format!("the job {name} {once:?} never came"));
            }
            return;
        };
        if first.due_ms != once.due_ms {
            self.damage("mismatched", format!("the job {name} {once:?} came as {first:?}"));
        }
        self.occurrence(name, first.job, Kind::Least, came);
    }

    /// What came of one occurrence, which did: one run of one job, not early, and again only for a reason.
    fn occurrence(&mut self, name: &str, number: u64, kind: Kind, came: &[&Note]) {
        let Some(first) = came.first() else { return };
        self.tally.came += 1;
        let late_ms = first.at_ms.saturating_sub(first.due_ms);
        self.late_ms.push(late_ms);
        if self.is_after_kill(first.due_ms) {
            self.tally.late_after_kill_ms = self.tally.late_after_kill_ms.max(late_ms);
        }
        if first.at_ms < first.due_ms {
            self.damage("early", format!("the job {name} came too early: {first:?}"));
        }
        let is_one = |note: &&Note| {
            (note.job, note.run, &note.occurrence) == (number, first.run, &first.occurrence)
                && note.due_ms == first.due_ms
        };
        if !came.iter().all(is_one) {
            self.damage("double", format!("an occurrence of the job {name} became several runs: {came:?}"));
        }
        for two in came.windows(2) {
            let (last, again) = (two[0], two[1]);
            if kind == Kind::Most {
                self.damage("double", format!("the job {name}, at most once, came again: {two:?}"));
            } else if last.is_failed && again.attempt > last.attempt {
                self.tally.retried += 1;
            } else if self.is_explained(last.at_ms, last.at_ms) {
                self.tally.repeated += 1;
            } else {
                self.damage(
                    "unexplained",
                    format!("no crash explains that the job {name} came again: {two:?}"),
                );
            }
        }
    }

    /// Whether something happened between these times, or near them, after which runs come again or not at all.
    fn is_explained(&self, from_ms: u64, to_ms: u64) -> bool {
        let is_near =
            |crash: &Crash| to_ms + UNNOTED_MS >= crash.from_ms && from_ms <= crash.to_ms + SETTLES_MS;
        let mut stalls = self
            .evidence
            .book
            .stalls
            .iter()
            .map(|(from_ms, to_ms)| Crash { from_ms: *from_ms, to_ms: *to_ms });
        self.evidence.crashes.iter().any(is_near) || stalls.any(|stall| is_near(&stall))
    }

    fn is_after_kill(&self, due_ms: u64) -> bool {
        let mut kills = self.evidence.kills.iter();
        kills.any(|kill| (kill.from_ms..kill.from_ms + AFTER_KILL_MS).contains(&due_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_book::EventBook as _;
    use crate::job_book::JobEvent;

    /// A job with the occurrences 10,000 to 12,000.
    fn book(kind: Kind) -> JobBook {
        let mut book = JobBook::default();
        book.apply(JobEvent::Made { name: "a".into(), number: 7, kind, from_ms: 10_000 });
        book.apply(JobEvent::Ends { at_ms: 12_500 });
        book
    }

    fn note(due_ms: u64, at_ms: u64) -> Note {
        let (occurrence, params) = (format!("7-{due_ms}"), "a".into());
        Note { job: 7, run: due_ms, occurrence, params, due_ms, attempt: 1, at_ms, is_failed: false }
    }

    /// The same with all of them, in time.
    fn sound(kind: Kind) -> JobBook {
        let mut book = book(kind);
        [10_000, 11_000, 12_000].into_iter().for_each(|ms| book.apply(JobEvent::Came(note(ms, ms + 20))));
        book
    }

    fn found(book: &JobBook, crashes: &[Crash]) -> (Vec<&'static str>, JobTally) {
        let mut verdict = Verdict::default();
        let evidence = JobEvidence { book, crashes, kills: crashes, late_max_ms: 30_000 };
        let tally = judge(&evidence, &mut verdict);
        (verdict.damage.into_keys().collect(), tally)
    }

    const CRASH: Crash = Crash { from_ms: 11_500, to_ms: 12_500 };

    #[test]
    fn occurrences_that_come_once_and_in_time_are_no_damage() {
        for kind in [Kind::Least, Kind::Most] {
            let (damage, tally) = found(&sound(kind), &[]);
            assert_eq!((damage, tally.expected, tally.came, tally.late_ms), (vec![], 3, 3, [20; 3]));
            assert_eq!(sound(kind).waiting(), 0);
        }
        assert_eq!((book(Kind::Least).waiting(), book(Kind::Most).waiting()), (3, 0));
    }

    #[test]
    fn an_occurrence_that_never_came_is_lost_or_missed_for_a_reason() {
        assert_eq!(found(&book(Kind::Least), &[CRASH]).0, ["lost"]);
        assert_eq!(found(&book(Kind::Most), &[CRASH]).0, ["lost"], "nobody says that it was missed");
        let mut missed = book(Kind::Most);
        let shown = |due_ms| Shown { due_ms, outcome: "JOB_RUN_OUTCOME_MISSED".into(), ..Shown::default() };
        let runs = [10_000, 11_000, 12_000].map(shown).into();
        missed.apply(JobEvent::Shows { name: "a".into(), runs });
        assert_eq!(found(&missed, &[]).0, ["unexplained"]);
        let (damage, tally) = found(&missed, &[CRASH]);
        assert_eq!((damage, tally.missed), (vec![], 3));
    }

    #[test]
    fn a_run_that_comes_again_needs_a_reason_and_at_most_once_has_none() {
        let twice = |kind, is_failed| {
            let mut book = sound(kind);
            book.apply(JobEvent::Came(Note { is_failed, ..note(13_000, 13_020) }));
            let attempt = 1 + u32::from(is_failed);
            book.apply(JobEvent::Came(Note { attempt, ..note(13_000, 14_020) }));
            book
        };
        assert_eq!(found(&twice(Kind::Least, false), &[]).0, ["unexplained"]);
        let (damage, tally) = found(&twice(Kind::Least, false), &[CRASH]);
        assert_eq!((damage, tally.repeated, tally.retried), (vec![], 1, 0));
        let (damage, tally) = found(&twice(Kind::Least, true), &[]);
        assert_eq!((damage, tally.repeated, tally.retried), (vec![], 0, 1));
        assert_eq!(found(&twice(Kind::Most, true), &[CRASH]).0, ["double"]);
        let mut stalled = twice(Kind::Least, false);
        stalled.apply(JobEvent::Stalled { from_ms: 13_000, to_ms: 14_000 });
        assert_eq!(found(&stalled, &[]).0, [""; 0]);
        let mut other = sound(Kind::Least);
        other.apply(JobEvent::Came(Note { run: 1, ..note(12_000, 12_030) }));
        assert!(found(&other, &[CRASH]).0.contains(&"double"));
    }

    #[test]
    fn what_is_early_or_paused_or_a_stranger_is_found() {
        let mut early = sound(Kind::Least);
        early.apply(JobEvent::Came(note(13_000, 12_999)));
        assert_eq!(found(&early, &[]).0, ["early"]);
        let delayed = |first_ms, second_ms| {
            let mut book = book(Kind::Delay);
            book.apply(JobEvent::Came(note(10_000, first_ms)));
            book.apply(JobEvent::Came(note(second_ms, second_ms + 10)));
            found(&book, &[]).0
        };
        assert_eq!(delayed(10_100, 11_090), [""; 0]);
        assert_eq!((delayed(10_100, 10_990), delayed(11_500, 11_490)), (vec!["early"], vec!["early"]));
        let mut paused = sound(Kind::Least);
        paused.apply(JobEvent::Pauses { name: "a".into() });
        paused.apply(JobEvent::Paused { name: "a".into(), last_ms: 11_000 });
        paused.apply(JobEvent::GoesOn { name: "a".into(), at_ms: 15_500 });
        assert_eq!(found(&paused, &[]).0, ["after_cancel"]);
        let mut stranger = sound(Kind::Least);
        stranger.apply(JobEvent::Came(Note { params: "b".into(), ..note(13_000, 13_020) }));
        assert_eq!(found(&stranger, &[]).0, ["unexplained"]);
    }

    #[test]
    fn a_job_that_is_due_once_comes_if_it_was_answered() {
        let mut once = JobBook::default();
        once.apply(JobEvent::Ends { at_ms: 20_000 });
        once.apply(JobEvent::Adds { name: "a".into(), due_ms: 13_000 });
        assert_eq!((found(&once, &[]).0, once.waiting()), (vec![], 0));
        once.apply(JobEvent::Added { name: "a".into() });
        assert_eq!((found(&once, &[]).0, once.waiting()), (vec!["lost"], 1));
        once.apply(JobEvent::Came(note(13_000, 13_040)));
        assert_eq!((found(&once, &[]).0, once.waiting()), (vec![], 0));
    }

    #[test]
    fn the_delay_after_a_kill_is_a_figure_and_has_a_bound() {
        let mut late = sound(Kind::Least);
        late.apply(JobEvent::Came(note(13_000, 17_000)));
        let (damage, tally) = found(&late, &[CRASH]);
        assert_eq!((damage, tally.late_after_kill_ms), (vec![], 4_000));
        late.apply(JobEvent::Came(note(14_000, 44_001)));
        assert_eq!(found(&late, &[CRASH]).0, ["unexplained"]);
    }
}
