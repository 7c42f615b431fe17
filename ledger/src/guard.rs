//! What a process knows of its ledger's marks, shared by all of its connections.
//!
//! Every connection that is made compares the database with the marks before it is handed out, and the process compares
//! again while it runs ([`Ledger::beat`](crate::Ledger::beat)). While the ledger does not hold a mark, no beat is
//! counted and no mark is replaced, so that a process that starts meanwhile finds the same.
//!
//! A place of marks that fails, or loses its mark, takes nothing back: what it had when it was read last counts on. Nor
//! does one that has an older mark by now: the mark that the ledger lacks counts until the ledger holds it, or until a
//! person has accepted that. Until each place was read once, and the ledger was compared after that, nobody can know, and
//! payouts wait.

use crate::mark::{Behind, Mark, Position};
use parking_lot::Mutex;
#[cfg(feature = "postgres")]
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// The marks of a ledger, and whether the ledger holds them.
#[derive(Debug, Default)]
pub struct Guard {
    state: Mutex<State>,
    /// Whether the latest look found the ledger behind a mark.
    is_back: AtomicBool,
    /// Whether the ledger was not compared yet with what every place has.
    is_blind: AtomicBool,
    /// Whether the server waits for no standby, although the address names several hosts.
    is_alone: AtomicBool,
    /// Whether the tables of the mark are missing, and may not be made.
    is_unmarkable: AtomicBool,
    /// What was logged once.
    #[cfg(feature = "postgres")]
    told: Mutex<BTreeSet<&'static str>>,
}

#[derive(Debug, Default)]
struct State {
    /// The last beat of this process whose commit was answered.
    own: Option<Mark>,
    /// What each place outside of the database had when it was read last; `None` for one that was never read.
    places: Vec<Option<Option<Mark>>>,
    /// Raised whenever a place is found to have something else.
    revision: u64,
    behind: Option<Behind>,
    /// What the database has said of itself last.
    ledger: Option<Mark>,
}

/// The state of a ledger's marks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuardState {
    /// The newest mark that is known.
    pub mark: Option<Mark>,
    /// What the database has said of itself last.
    pub ledger: Option<Mark>,
    /// Where the ledger went back in time: from where to where.
    pub behind: Option<Behind>,
}

/// The marks to compare a database with.
#[derive(Debug)]
pub(crate) struct Marks {
    list: Vec<Mark>,
    revision: u64,
    /// Whether every place had been read when they were taken.
    is_all: bool,
}

impl Guard {
    /// Guards a ledger with the marks that are kept outside of its database: what each place was found to have, and
    /// `None` for a place that could not be read. Payouts wait until every place was read.
    pub fn new(places: Vec<Option<Option<Mark>>>) -> Self {
        let is_blind = AtomicBool::new(places.iter().any(Option::is_none));
        let state = Mutex::new(State { places, ..State::default() });
        Self { state, is_blind, ..Self::default() }
    }

    /// Takes over what was read at the place of this number, for the next look. A place that could not be read is not
    /// told of: what it had counts on. So it does where a mark is gone, as from a disk that is not mounted.
    pub fn learn(&self, place: usize, found: Option<Mark>) {
        let mut state = self.state.lock();
        if state.places.len() <= place {
            state.places.resize(place + 1, None);
        }
        let known = &mut state.places[place];
        if found.is_some() || known.is_none() {
            let is_new = known.as_ref() != Some(&found);
            *known = Some(found);
            state.revision += u64::from(is_new);
        }
    }

    /// Whether nothing may leave the house: the ledger went back in time, or nobody can know whether it did.
    pub fn stops_payouts(&self) -> bool {
        // In this order: a look that ends the blindness has set the other one before.
        self.is_blind.load(Ordering::Acquire) || self.is_back()
    }

    /// Whether the ledger was found behind a mark, and nobody has accepted that.
    pub fn is_back(&self) -> bool {
        self.is_back.load(Ordering::Acquire)
    }

    /// Whether the server waits for no synchronous standby, although the ledger's address names several hosts: a
    /// fail-over now would lose what was answered.
    pub fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::Relaxed)
    }

    /// Whether the database has no tables for the mark, and its user may not make them: nothing is noticed.
    pub fn is_unmarkable(&self) -> bool {
        self.is_unmarkable.load(Ordering::Relaxed)
    }

    /// What is known now.
    pub fn state(&self) -> GuardState {
        let state = self.state.lock();
        let mark = match &state.behind {
            Some(behind) => Some(behind.mark.clone()),
            None => newest(state.known()).cloned(),
        };
        GuardState { mark, ledger: state.ledger.clone(), behind: state.behind.clone() }
    }

    /// Whether every place was read, and none has a mark: the ledger is new, or all of its marks were lost.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_unmarked(&self) -> bool {
        let state = self.state.lock();
        state.places.iter().all(Option::is_some) && state.known().next().is_none()
    }

    /// Notes whether the server waits for no standby, although the address names several hosts.
    #[cfg(feature = "postgres")]
    pub(crate) fn set_alone(&self, is_alone: bool) {
        self.is_alone.store(is_alone, Ordering::Relaxed);
    }

    /// Notes whether the tables of the mark are missing and may not be made.
    #[cfg(feature = "postgres")]
    pub(crate) fn set_unmarkable(&self, is_unmarkable: bool) {
        self.is_unmarkable.store(is_unmarkable, Ordering::Relaxed);
    }

    /// Whether this is asked for the first time: what would be logged at each look is logged once.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_news(&self, what: &'static str) -> bool {
        self.told.lock().insert(what)
    }

    /// The generation that gives up every known mark, the one that is noted in this ledger, and the ledger's own.
    pub(crate) fn next_generation(&self, ledger: &Position) -> i64 {
        let state = self.state.lock();
        let known = state.known().chain(&ledger.missed).map(|mark| mark.generation);
        known.fold(ledger.last.generation, i64::max).saturating_add(1)
    }

    /// The marks to compare with. They have to be taken before the database is read: marks that this process makes
    /// meanwhile would be ahead of what was read.
    pub(crate) fn marks(&self) -> Marks {
        let state = self.state.lock();
        let is_all = state.places.iter().all(Option::is_some);
        Marks { list: state.known().cloned().collect(), revision: state.revision, is_all }
    }

    /// Compares marks with what the database has said after they were taken. Returns whether the ledger went back.
    pub(crate) fn judge(&self, marks: &Marks, position: &Position) -> bool {
        let missing = marks
            .list
            .iter()
            .chain(&position.missed)
            .find_map(|mark| position.holds(mark).err().map(|why| (mark, why)));
        let behind = missing.map(|(mark, why)| Behind {
            mark: mark.clone(),
            ledger: position.last.clone(),
            server: position.server.clone(),
            why,
        });
        let mut state = self.state.lock();
        let was_back = state.behind.is_some();
        if behind.is_none() && was_back && marks.revision != state.revision {
            // It says nothing of a mark that was read after these were taken. The next look does.
            return true;
        }
        // For calls that are on their way: set before anything is logged.
        self.is_back.store(behind.is_some(), Ordering::Release);
        match &behind {
            Some(behind) if !was_back => tracing::error!(
                %behind,
                "the ledger went back in time: payouts are stopped. Bring back the server that has everything, or \
                 reconcile as docs/restore.md says and run `windfall operate accept-ledger`"
            ),
            None if was_back => {
                tracing::info!(ledger = %position.last, "the ledger holds its mark; payouts go on");
            }
            _ => {}
        }
        if marks.is_all && self.is_blind.swap(false, Ordering::AcqRel) {
            let holds = behind.is_none();
            tracing::info!(
                holds,
                "every place of the ledger's mark was read, and the ledger was compared with it"
            );
        }
        state.behind = behind;
        state.ledger = Some(position.last.clone());
        state.behind.is_some()
    }

    /// Takes over a beat whose commit was answered.
    pub(crate) fn advance(&self, mark: &Mark) {
        let mut state = self.state.lock();
        if state.own.as_ref().is_none_or(|own| mark.is_after(own)) {
            state.own = Some(mark.clone());
        }
        if state.ledger.as_ref().is_none_or(|ledger| mark.is_after(ledger)) {
            state.ledger = Some(mark.clone());
        }
    }
}

impl State {
    /// Every mark that is known; first the one that the ledger lacks.
    fn known(&self) -> impl Iterator<Item = &Mark> {
        let lacked = self.behind.iter().map(|behind| &behind.mark);
        lacked.chain(&self.own).chain(self.places.iter().flatten().flatten())
    }
}

fn newest<'m>(marks: impl Iterator<Item = &'m Mark>) -> Option<&'m Mark> {
    marks.reduce(|best, mark| if mark.is_after(best) { mark } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::{Lineage, ServerPosition};

    fn mark(generation: i64, lineage: &str, beat: i64) -> Mark {
        Mark { generation, lineage: lineage.into(), beat, server: ServerPosition::default() }
    }

    fn at(generation: i64, lineage: &str, beat: i64) -> Position {
        let lineages = vec![Lineage { id: lineage.into(), first_beat: 1 }];
        let last = mark(generation, lineage, beat);
        Position { last, lineages, server: ServerPosition::default(), missed: None }
    }

    #[test]
    fn a_ledger_without_marks_is_taken_as_it_is() {
        let guard = Guard::new(vec![Some(None)]);
        assert!(!guard.judge(&guard.marks(), &at(1, "a", 7)) && !guard.stops_payouts());
        guard.advance(&mark(1, "a", 8));
        assert_eq!(guard.state().mark, Some(mark(1, "a", 8)));
    }

    #[test]
    fn payouts_wait_until_every_place_was_read_and_the_ledger_was_compared_after_that() {
        let guard = Guard::new(vec![None, Some(Some(mark(1, "a", 1)))]);
        assert!(guard.stops_payouts() && !guard.is_back(), "the place that was read may have an old one");
        assert!(!guard.judge(&guard.marks(), &at(1, "a", 7)) && guard.stops_payouts());
        let before = guard.marks();
        guard.learn(0, Some(mark(1, "a", 9)));
        assert!(guard.stops_payouts(), "it was read, and nothing was compared with it");
        assert!(!guard.judge(&before, &at(1, "a", 7)) && guard.stops_payouts(), "by older marks");
        assert!(guard.judge(&guard.marks(), &at(1, "a", 7)) && guard.stops_payouts() && guard.is_back());
        assert!(!guard.judge(&guard.marks(), &at(1, "a", 9)) && !guard.stops_payouts());
    }

    #[test]
    fn a_place_that_fails_takes_nothing_back() {
        let guard = Guard::new(vec![Some(Some(mark(1, "a", 9))), Some(None)]);
        assert!(guard.judge(&guard.marks(), &at(1, "a", 7)));
        // The first place fails from now on, and the other one has nothing: nobody is told of the first.
        guard.learn(1, None);
        assert!(guard.judge(&guard.marks(), &at(1, "a", 8)) && guard.stops_payouts());
        // It is read again, and was lost.
        guard.learn(0, None);
        assert!(guard.judge(&guard.marks(), &at(1, "a", 8)) && guard.stops_payouts());
        // An older one is there, as of a backup, or of a process that lost its marks and took the ledger as it is.
        for older in [mark(1, "a", 8), mark(1, "a", 7)] {
            guard.learn(0, Some(older));
            assert!(guard.judge(&guard.marks(), &at(1, "a", 8)) && guard.stops_payouts());
        }
        assert_eq!(guard.state().mark, Some(mark(1, "a", 9)));
        assert!(
            !guard.judge(&guard.marks(), &at(1, "a", 9)) && !guard.stops_payouts(),
            "the server with everything is back"
        );
    }

    #[test]
    fn an_older_stored_mark_is_no_harm_and_a_newer_one_stops_payouts_until_it_is_accepted() {
        let guard = Guard::new(vec![Some(Some(mark(1, "a", 3)))]);
        assert!(!guard.judge(&guard.marks(), &at(1, "a", 7)));
        guard.advance(&mark(1, "a", 8));
        // The file of a process that ran after this one is read.
        guard.learn(0, Some(mark(1, "a", 9)));
        assert!(guard.judge(&guard.marks(), &at(1, "a", 8)) && guard.stops_payouts());
        let behind = guard.state().behind.unwrap();
        assert_eq!((behind.mark.beat, behind.ledger.beat), (9, 8));
        assert_eq!(guard.next_generation(&at(1, "a", 8)), 2);
        assert!(!guard.judge(&guard.marks(), &at(2, "a", 9)) && !guard.stops_payouts(), "accepted");
    }

    #[test]
    fn a_look_by_older_marks_does_not_end_what_a_newer_mark_has_shown() {
        let guard = Guard::new(vec![Some(None)]);
        let older = guard.marks();
        guard.learn(0, Some(mark(1, "a", 9)));
        assert!(guard.judge(&guard.marks(), &at(1, "a", 8)));
        assert!(guard.judge(&older, &at(1, "a", 8)) && guard.is_back());
    }

    #[test]
    fn what_is_accepted_gives_up_marks_of_every_known_generation() {
        let guard = Guard::new(vec![Some(Some(mark(3, "c", 9)))]);
        assert!(guard.judge(&guard.marks(), &at(1, "a", 8)));
        assert_eq!(guard.next_generation(&at(1, "a", 8)), 4);
        assert!(!guard.judge(&guard.marks(), &at(4, "d", 9)));
    }

    #[test]
    fn a_mark_that_this_process_makes_while_the_database_is_read_does_not_count_against_what_was_read() {
        let guard = Guard::new(vec![Some(None)]);
        let (marks, read) = (guard.marks(), at(1, "a", 7));
        guard.advance(&mark(1, "a", 8));
        assert!(!guard.judge(&marks, &read));
    }

    #[test]
    fn a_process_without_a_mark_stops_by_the_one_that_another_process_has_noted_in_the_ledger() {
        let guard = Guard::new(vec![Some(None)]);
        let noted = Position { missed: Some(mark(3, "c", 9)), ..at(1, "a", 8) };
        assert!(guard.judge(&guard.marks(), &noted) && guard.stops_payouts());
        assert_eq!(guard.state().behind.unwrap().mark, mark(3, "c", 9));
        assert_eq!(guard.next_generation(&noted), 4);
        // Another server, which lacks it as well, but has no note.
        assert!(guard.judge(&guard.marks(), &at(1, "a", 8)));
        let accepted = Position { missed: Some(mark(3, "c", 9)), ..at(4, "d", 9) };
        assert!(!guard.judge(&guard.marks(), &accepted) && !guard.stops_payouts(), "an old note is no harm");
    }
}
