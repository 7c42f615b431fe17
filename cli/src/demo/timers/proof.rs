//! The proof: what the callers were told against what the target got.

use super::journal::{Called, Delivery, State};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// The findings that are put into words.
const FINDINGS_MAX: usize = 20;
/// What is later counts as so late.
const LATE_MAX_MS: u64 = 3_600_000;

/// What is judged.
#[derive(Debug, Default)]
pub struct Evidence {
    /// What the callers were told, by the timers' numbers.
    pub called: Vec<Called>,
    /// What the target got, in the order in which it came.
    pub got: Vec<Delivery>,
    /// Which dispatchers were killed, by their numbers.
    pub killed: Vec<bool>,
    /// How many tasks the others had handed over and not noted when they lost a lease.
    pub unnoted: u64,
    /// How many tasks the store counts as waiting at the end.
    pub left: u64,
    /// From when to when, in Unix milliseconds, due timers were bound to be late.
    pub troubled: Vec<(u64, u64)>,
}

/// The judgement.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Figures by what the callers were told last.
    pub by_state: BTreeMap<State, Figures>,
    /// Repeats.
    pub repeats: Repeats,
    /// The first findings, in words.
    pub findings: Vec<String>,
    /// How late timers came that were due while nothing was broken, in milliseconds.
    pub calm_late_ms: Option<Histogram<u64>>,
    /// How late all timers came, in milliseconds.
    pub late_ms: Option<Histogram<u64>>,
    is_damaged: bool,
}

/// Counts of timers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Timers that were asked for.
    pub timers: u64,
    /// Timers that the target got.
    pub fired: u64,
    /// Timers that the target had to get and did not.
    pub lost: u64,
    /// Timers that came before they were due.
    pub early: u64,
    /// Timers that came though their cancel had been acknowledged.
    pub fired_after_cancel: u64,
    /// Timers that came with another id or due time than their callers know, and such that nobody had asked for.
    pub mismatched: u64,
    /// Deliveries beyond the first one of a timer.
    pub repeated: u64,
}

/// Why timers came again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Repeats {
    /// The killed dispatcher had handed them over, and nobody knew.
    pub after_kill: u64,
    /// Another dispatcher had lost a lease before it had noted them.
    pub after_lost_lease: u64,
    /// Nothing explains them.
    pub unexplained: u64,
}

impl Verdict {
    /// Judges.
    pub fn of(evidence: &Evidence) -> Self {
        let mut verdict = Self {
            calm_late_ms: Histogram::new_with_bounds(1, LATE_MAX_MS, 3).ok(),
            late_ms: Histogram::new_with_bounds(1, LATE_MAX_MS, 3).ok(),
            ..Self::default()
        };
        let mut by_number: BTreeMap<u64, Vec<&Delivery>> = BTreeMap::new();
        for delivery in &evidence.got {
            by_number.entry(delivery.number).or_default().push(delivery);
        }
        for (number, called) in (0..).zip(&evidence.called) {
            verdict.timer(number, called, by_number.remove(&number).unwrap_or_default(), evidence);
        }
        for number in by_number.into_keys() {
            verdict.found(format!("timer {number} came, but there is none"));
        }
        let explained = verdict.repeats.unexplained.min(evidence.unnoted);
        verdict.repeats.after_lost_lease = explained;
        verdict.repeats.unexplained -= explained;
        if verdict.repeats.unexplained > 0 {
            verdict.found(format!("{} repeats are explained by nothing", verdict.repeats.unexplained));
        }
        if evidence.left > 0 {
            verdict.found(format!("the store still counts {} tasks as waiting", evidence.left));
        }
        verdict
    }

    /// Whether everything holds.
    pub const fn is_clean(&self) -> bool {
        !self.is_damaged
    }

    /// Figures over all timers.
    pub fn total(&self) -> Figures {
        self.by_state.values().fold(Figures::default(), |sum, one| Figures {
            timers: sum.timers + one.timers,
            fired: sum.fired + one.fired,
            lost: sum.lost + one.lost,
            early: sum.early + one.early,
            fired_after_cancel: sum.fired_after_cancel + one.fired_after_cancel,
            mismatched: sum.mismatched + one.mismatched,
            repeated: sum.repeated + one.repeated,
        })
    }

    fn timer(&mut self, number: u64, called: &Called, came: Vec<&Delivery>, evidence: &Evidence) {
        let mut figures = Figures { timers: 1, fired: u64::from(!came.is_empty()), ..Figures::default() };
        let mut wrong = Vec::new();
        if called.state.must_fire() && came.is_empty() {
            figures.lost = 1;
            wrong.push("is lost".to_owned());
        }
        if called.state == State::Cancelled && !came.is_empty() {
            figures.fired_after_cancel = 1;
            wrong.push("came though its cancel had been acknowledged".to_owned());
        }
        let due_ms = called.perhaps_due_ms.map_or(called.due_ms, |perhaps_ms| perhaps_ms.min(called.due_ms));
        if let Some(early) = came.iter().find(|delivery| delivery.at_ms < due_ms) {
            figures.early = 1;
            wrong.push(format!("came {} ms early", due_ms - early.at_ms));
        }
        let is_other = |delivery: &&&Delivery| {
            let is_due = delivery.due_ms == called.due_ms || Some(delivery.due_ms) == called.perhaps_due_ms;
            !is_due || called.id.is_some_and(|id| id != delivery.id) || called.state == State::Unasked
        };
        if let Some(other) = came.iter().find(is_other) {
            figures.mismatched = 1;
            wrong.push(format!("came as {}, due at {}: {called:?}", other.id, other.due_ms));
        }
        for what in wrong {
            self.found(format!("timer {number} {what}"));
        }
        figures.repeated = self.repeats(&came, &evidence.killed);
        if let Some(first) = came.first().filter(|_| called.perhaps_due_ms.is_none()) {
            self.late(called.due_ms, first.at_ms.saturating_sub(called.due_ms), &evidence.troubled);
        }
        self.by_state.entry(called.state).or_default().add(figures);
    }

    /// A delivery of a killed dispatcher explains one more of the same timer.
    fn repeats(&mut self, came: &[&Delivery], killed: &[bool]) -> u64 {
        let repeated = u64::try_from(came.len().saturating_sub(1)).unwrap_or(u64::MAX);
        let of_killed = |delivery: &&&Delivery| killed.get(delivery.instance).is_some_and(|killed| *killed);
        let killed = came.iter().filter(of_killed).count();
        let explained = repeated.min(u64::try_from(killed).unwrap_or(u64::MAX));
        self.repeats.after_kill += explained;
        self.repeats.unexplained += repeated - explained;
        repeated
    }

    fn late(&mut self, due_ms: u64, late_ms: u64, troubled: &[(u64, u64)]) {
        let is_calm = !troubled.iter().any(|(from_ms, to_ms)| (*from_ms..*to_ms).contains(&due_ms));
        let calm = self.calm_late_ms.as_mut().filter(|_| is_calm);
        for histogram in self.late_ms.as_mut().into_iter().chain(calm) {
            histogram.saturating_record(late_ms);
        }
    }

    fn found(&mut self, what: String) {
        self.is_damaged = true;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what);
        }
    }
}

impl Figures {
    fn add(&mut self, more: Self) {
        self.timers += more.timers;
        self.fired += more.fired;
        self.lost += more.lost;
        self.early += more.early;
        self.fired_after_cancel += more.fired_after_cancel;
        self.mismatched += more.mismatched;
        self.repeated += more.repeated;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_contract::due::{Shard, SlotMinute, TaskId};

    const DUE_MS: u64 = 1_000;

    type BreakIt = fn(&mut Evidence);
    type Count = fn(&Figures) -> u64;

    fn id(index: u32) -> TaskId {
        TaskId { shard: Shard(1), slot: SlotMinute(0), index }
    }

    fn called(state: State, index: u32) -> Called {
        Called { state, id: Some(id(index)), due_ms: DUE_MS, perhaps_due_ms: None }
    }

    fn delivery(number: u32, at_ms: u64, instance: usize) -> Delivery {
        Delivery { number: number.into(), at_ms, id: id(number), due_ms: DUE_MS, instance }
    }

    /// One timer that waits, one that was moved, one that was cancelled; the first dispatcher was killed.
    fn evidence() -> Evidence {
        Evidence {
            called: vec![called(State::Waiting, 0), called(State::Moved, 1), called(State::Cancelled, 2)],
            got: vec![delivery(0, 1_004, 0), delivery(1, 1_000, 1)],
            killed: vec![true, false],
            ..Evidence::default()
        }
    }

    #[test]
    fn what_was_told_and_came_is_clean() {
        let verdict = Verdict::of(&evidence());
        assert!(verdict.is_clean(), "{:?}", verdict.findings);
        assert_eq!(verdict.total(), Figures { timers: 3, fired: 2, ..Figures::default() });
        assert_eq!(verdict.late_ms.unwrap().max(), 4);
    }

    #[test]
    fn each_kind_of_damage_is_found() {
        let damage: [(BreakIt, Count); 5] = [
            (|evidence| evidence.got.truncate(1), |figures| figures.lost),
            (|evidence| evidence.got[0].at_ms = 999, |figures| figures.early),
            (|evidence| evidence.got.push(delivery(2, 2_000, 1)), |figures| figures.fired_after_cancel),
            (|evidence| evidence.got[0].id = id(9), |figures| figures.mismatched),
            (|evidence| evidence.got[1].due_ms = 999, |figures| figures.mismatched),
        ];
        for (at, (break_it, count)) in damage.into_iter().enumerate() {
            let mut evidence = evidence();
            break_it(&mut evidence);
            let verdict = Verdict::of(&evidence);
            assert!(!verdict.is_clean(), "damage {at}");
            assert_eq!((count(&verdict.total()), verdict.findings.len()), (1, 1), "damage {at}");
        }
        let stranger = Evidence { got: vec![delivery(7, 1_000, 1)], ..evidence() };
        assert!(Verdict::of(&stranger).findings.iter().any(|found| found.contains("there is none")));
        assert!(!Verdict::of(&Evidence { left: 1, ..evidence() }).is_clean());
    }

    #[test]
    fn a_repeat_is_explained_by_a_kill_or_a_lost_lease_and_by_nothing_else() {
        let mut repeated = evidence();
        repeated.got.push(delivery(0, 4_000, 1));
        let verdict = Verdict::of(&repeated);
        assert!(verdict.is_clean(), "{:?}", verdict.findings);
        assert_eq!(verdict.repeats, Repeats { after_kill: 1, ..Repeats::default() });

        repeated.got.push(delivery(1, 1_100, 1));
        let verdict = Verdict::of(&repeated);
        assert!(!verdict.is_clean());
        assert_eq!(verdict.repeats, Repeats { after_kill: 1, unexplained: 1, after_lost_lease: 0 });

        repeated.unnoted = 1;
        let verdict = Verdict::of(&repeated);
        assert!(verdict.is_clean(), "{:?}", verdict.findings);
        assert_eq!(verdict.repeats, Repeats { after_kill: 1, after_lost_lease: 1, unexplained: 0 });
    }

    #[test]
    fn a_move_without_an_answer_may_have_been_carried_out_or_not() {
        let mut doubtful = evidence();
        doubtful.called[0].perhaps_due_ms = Some(2_000);
        assert!(Verdict::of(&doubtful).is_clean());
        (doubtful.got[0].due_ms, doubtful.got[0].at_ms) = (2_000, 2_010);
        assert!(Verdict::of(&doubtful).is_clean());
        doubtful.got[0].due_ms = 3_000;
        assert!(!Verdict::of(&doubtful).is_clean());
    }

    #[test]
    fn lateness_in_troubled_times_counts_apart() {
        let mut late = evidence();
        late.got[0].at_ms = 4_000;
        late.called[1].due_ms = 500;
        late.got[1].due_ms = 500;
        late.troubled = vec![(900, 1_100)];
        let verdict = Verdict::of(&late);
        assert!((3_000..3_010).contains(&verdict.late_ms.unwrap().max()));
        assert_eq!(verdict.calm_late_ms.unwrap().max(), 500);
    }
}
