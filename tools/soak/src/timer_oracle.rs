//! The judge of timers: it holds the journals of their callers against what the downstream system received and what the
//! ledger credited.

use crate::oracle::Verdict;
use crate::shop::Firing;
use crate::sql::TransferRow;
use crate::timer_journal::{Entry, Fate, TimerBook};
use std::collections::{BTreeMap, HashMap};

/// What was fired so long before a crash may not be noted: `finish_every_ms`, a call, and a slow machine.
const UNNOTED_MS: u64 = 2_000;
/// What was in flight when a crash was repaired may be fired again: shards have moved, and have to be found.
const SETTLES_MS: u64 = 5_000;

/// A time in which what was fired may fire again: a scheduler or Redis was killed or frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crash {
    /// Its beginning, Unix milliseconds.
    pub from_ms: u64,
    /// Its end.
    pub to_ms: u64,
}

/// All that is compared.
pub struct TimerEvidence<'e> {
    /// The callers' journals.
    pub book: &'e TimerBook,
    /// The callbacks that the downstream system received.
    pub firings: &'e [Firing],
    /// The ledger's transfers.
    pub transfers: &'e [TransferRow],
    /// When repeats are explained.
    pub crashes: &'e [Crash],
}

/// Timers in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct TimerTally {
    /// Timers that callers asked for.
    pub asked: u64,
    /// Those that were answered, moved, and cancelled as done.
    pub added: u64,
    /// The same.
    pub moved: u64,
    /// The same.
    pub cancelled: u64,
    /// Those that have fired.
    pub fired: u64,
    /// Callbacks that came again, each with an explanation.
    pub repeated: u64,
    /// From the due time to the firing: half, 99 %, all, in ms.
    pub late_ms: [u64; 3],
}

/// Compares them; damage is added to the verdict.
pub fn judge(evidence: &TimerEvidence<'_>, verdict: &mut Verdict) -> TimerTally {
    let mut tally = TimerTally::default();
    let mut callbacks: BTreeMap<&str, Vec<&Firing>> = BTreeMap::new();
    for firing in evidence.firings {
        callbacks.entry(&firing.tag).or_default().push(firing);
    }
    let credited: HashMap<&str, u64> =
        evidence.transfers.iter().map(|row| (row.trade_no.as_str(), row.committed_ms)).collect();
    let mut late_ms = Vec::new();
    for (tag, entry) in &evidence.book.0 {
        tally.asked += 1;
        tally.added += u64::from(entry.fate == Fate::Fires);
        tally.moved += u64::from(entry.is_moved);
        tally.cancelled += u64::from(entry.fate == Fate::Cancelled);
        if let Some(why) = &entry.refused {
            verdict.damage("unexplained", format!("a call for the timer {tag} was refused: {why}"));
        }
        let came = callbacks.get(tag.as_str()).map_or(&[][..], Vec::as_slice);
        let first_ms = match &entry.timer.reward {
            // That it is credited, and once, is for the judge of rewards.
            Some(_) => credited.get(tag.as_str()).copied(),
            None => came.iter().map(|firing| firing.at_ms).min(),
        };
        of_timer(entry, first_ms, verdict);
        if let Some(first_ms) = first_ms {
            tally.fired += 1;
            late_ms.push(first_ms.saturating_sub(entry.not_before_ms));
        }
        tally.repeated += repeats(entry, came, evidence.crashes, verdict);
    }
    for firing in evidence.firings.iter().filter(|firing| !evidence.book.0.contains_key(&firing.tag)) {
        verdict.damage("unexplained", format!("nobody added the timer of {firing:?}"));
    }
    late_ms.sort_unstable();
    let quantile = |part: usize| late_ms.get(late_ms.len().saturating_sub(1) * part / 1_000).copied();
    tally.late_ms = [500, 990, 1_000].map(|part| quantile(part).unwrap_or(0));
    tally
}

/// The timers that must fire and have not; a reward has when it is decided.
pub fn waiting<'b>(book: &'b TimerBook, firings: &[Firing]) -> Vec<&'b Entry> {
    let fired: std::collections::HashSet<&str> = firings.iter().map(|firing| firing.tag.as_str()).collect();
    let waits = |entry: &&Entry| {
        entry.fate == Fate::Fires
            && (entry.timer.reward.is_some() || !fired.contains(entry.timer.tag.as_str()))
    };
    book.0.values().filter(waits).collect()
}

fn of_timer(entry: &Entry, first_ms: Option<u64>, verdict: &mut Verdict) {
    let tag = &entry.timer.tag;
    match (entry.fate, first_ms) {
        // A reward that never came is missed by the judge of rewards.
        (Fate::Fires, None) if entry.timer.reward.is_none() => {
            verdict.damage("lost", format!("the timer {tag} never fired: {entry:?}"));
        }
        // Where an add was repeated there may have been two of them.
        (Fate::Cancelled, Some(first_ms)) if !entry.is_doubtful => verdict.damage(
            "after_cancel",
            format!("the timer {tag} fired at {first_ms} and was cancelled: {entry:?}"),
        ),
        _ => {}
    }
    if let Some(first_ms) = first_ms.filter(|first_ms| *first_ms < entry.not_before_ms) {
        verdict.damage("early", format!("the timer {tag} fired at {first_ms}: {entry:?}"));
    }
}

/// The callbacks of a timer that came again, and for a reason.
fn repeats(entry: &Entry, came: &[&Firing], crashes: &[Crash], verdict: &mut Verdict) -> u64 {
    let mut last_of: BTreeMap<&str, &Firing> = BTreeMap::new();
    let mut explained = 0;
    for firing in came {
        let Some(last) = last_of.insert(&firing.id, firing) else {
            if last_of.len() > 1 && !entry.is_doubtful {
                verdict.damage("double", format!("the timer {entry:?} has two ids: {came:?}"));
            }
            continue;
        };
        let is_near = |crash: &Crash| {
            last.at_ms + UNNOTED_MS >= crash.from_ms && last.at_ms <= crash.to_ms + SETTLES_MS
        };
        if !last.is_answered || crashes.iter().any(is_near) {
            explained += 1;
        } else {
            verdict.damage("unexplained", format!("no crash explains that {last:?} came again: {firing:?}"));
        }
    }
    explained
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer_journal::{Timer, TimerJournal};

    fn book(write: impl FnOnce(&mut TimerJournal)) -> TimerBook {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timers-30");
        let mut journal = TimerJournal::open(&path).unwrap();
        journal.adds(&Timer { tag: "a".into(), due_ms: 10_000, is_keyed: false, reward: None }).unwrap();
        journal.added("a").unwrap();
        write(&mut journal);
        let mut book = TimerBook::default();
        book.read(&path, "timed").unwrap();
        book
    }

    fn firing(at_ms: u64) -> Firing {
        Firing { tag: "a".into(), id: "1".into(), at_ms, is_answered: true }
    }

    /// The kinds of damage that are found.
    fn found(book: &TimerBook, firings: &[Firing], crashes: &[Crash]) -> (Vec<&'static str>, TimerTally) {
        let mut verdict = Verdict::default();
        let tally = judge(&TimerEvidence { book, firings, transfers: &[], crashes }, &mut verdict);
        (verdict.damage.into_keys().collect(), tally)
    }

    #[test]
    fn a_timer_that_fires_once_in_time_is_no_damage() {
        let (damage, tally) = found(&book(|_| {}), &[firing(10_040)], &[]);
        assert_eq!((damage, tally.fired, tally.late_ms), (vec![], 1, [40; 3]));
    }

    #[test]
    fn what_is_lost_early_or_fires_after_its_cancel_is_found() {
        assert_eq!(found(&book(|_| {}), &[], &[]).0, ["lost"]);
        assert_eq!(found(&book(|_| {}), &[firing(9_999)], &[]).0, ["early"]);
        let cancelled = book(|journal| {
            journal.cancels("a").unwrap();
            journal.cancelled("a", "TIMER_CHANGE_DONE").unwrap();
        });
        assert_eq!(found(&cancelled, &[], &[]).0, [""; 0]);
        assert_eq!(found(&cancelled, &[firing(10_040)], &[]).0, ["after_cancel"]);
        let moved = book(|journal| {
            journal.moves("a", 15_000).unwrap();
            journal.moved("a", "TIMER_CHANGE_DONE").unwrap();
        });
        assert_eq!(found(&moved, &[firing(10_040)], &[]).0, ["early"]);
        assert_eq!(found(&moved, &[firing(15_040)], &[]).0, [""; 0]);
        let stranger = Firing { tag: "b".into(), ..firing(10_000) };
        assert_eq!(found(&book(|_| {}), &[firing(10_000), stranger], &[]).0, ["unexplained"]);
    }

    #[test]
    fn a_repeat_needs_a_crash_or_a_lost_answer() {
        let twice = [firing(10_040), firing(14_000)];
        assert_eq!(found(&book(|_| {}), &twice, &[]).0, ["unexplained"]);
        let crash = |from_ms| Crash { from_ms, to_ms: from_ms + 1_000 };
        let (damage, tally) = found(&book(|_| {}), &twice, &[crash(11_000)]);
        assert_eq!((damage, tally.repeated), (vec![], 1));
        assert_eq!(found(&book(|_| {}), &twice, &[crash(13_000)]).0, ["unexplained"]);
        let unanswered = [Firing { is_answered: false, ..firing(10_040) }, firing(14_000)];
        assert_eq!(found(&book(|_| {}), &unanswered, &[]).0, [""; 0]);
        let another = [firing(10_040), Firing { id: "2".into(), ..firing(14_000) }];
        assert_eq!(found(&book(|_| {}), &another, &[crash(11_000)]).0, ["double"]);
    }
}
