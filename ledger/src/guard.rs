//! What a process knows of its ledger's marks, shared by all of its connections.
//!
//! Every connection that is made compares the database with the marks before it is handed out, and the process compares
//! again while it runs ([`Ledger::beat`](crate::Ledger::beat)). While the ledger does not hold a mark, no beat is
//! counted and no mark is replaced, so that a process that starts meanwhile finds the same.

use crate::mark::{Behind, Mark, Position};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The marks of a ledger, and whether the ledger holds them.
#[derive(Debug, Default)]
pub struct Guard {
    state: Mutex<State>,
    /// Whether the latest look found the ledger behind a mark.
    is_back: AtomicBool,
    /// Whether no mark is known, and a place that may have one could not be read yet.
    is_blind: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The last beat of this process whose commit was answered.
    own: Option<Mark>,
    /// What the places outside of the database have, as last read.
    stored: Vec<Mark>,
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

impl Guard {
    /// Guards a ledger with the marks that were kept outside of its database. `all_read` says whether every place that
    /// may have one could be read.
    pub fn new(stored: Vec<Mark>, all_read: bool) -> Self {
        let is_blind = AtomicBool::new(stored.is_empty() && !all_read);
        Self {
            state: Mutex::new(State { stored, ..State::default() }),
            is_back: AtomicBool::new(false),
            is_blind,
        }
    }

    /// Takes over what was read outside of the database, for the next look.
    pub fn learn(&self, stored: Vec<Mark>, all_read: bool) {
        let mut state = self.state.lock();
        if (all_read || !stored.is_empty()) && self.is_blind.swap(false, Ordering::AcqRel) {
            tracing::info!("the ledger's mark could be read; payouts go on if the ledger holds it");
        }
        state.stored = stored;
    }

    /// Whether nothing may leave the house: the ledger went back in time, or nobody can know whether it did.
    pub fn stops_payouts(&self) -> bool {
        self.is_back() || self.is_blind.load(Ordering::Acquire)
    }

    /// Whether the ledger was found behind a mark, and nobody has accepted that.
    pub fn is_back(&self) -> bool {
        self.is_back.load(Ordering::Acquire)
    }

    /// What is known now.
    pub fn state(&self) -> GuardState {
        let state = self.state.lock();
        let mark = match &state.behind {
            Some(behind) => Some(behind.mark.clone()),
            None => newest(state.own.iter().chain(&state.stored)).cloned(),
        };
        GuardState { mark, ledger: state.ledger.clone(), behind: state.behind.clone() }
    }

    /// The marks to compare with. They have to be taken before the database is read: marks that this process makes
    /// meanwhile would be ahead of what was read.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        let state = self.state.lock();
        state.own.iter().chain(&state.stored).cloned().collect()
    }

    /// Compares marks with what the database has said after they were taken. Returns whether the ledger went back.
    pub(crate) fn judge(&self, marks: &[Mark], position: &Position) -> bool {
        let missing = marks.iter().find_map(|mark| position.holds(mark).err().map(|why| (mark, why)));
        let behind = missing.map(|(mark, why)| Behind {
            mark: mark.clone(),
            ledger: position.last.clone(),
            server: position.server.clone(),
            why,
        });
        let mut state = self.state.lock();
        let was_back = state.behind.is_some();
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
        Position { last: mark(generation, lineage, beat), lineages, server: ServerPosition::default() }
    }

    #[test]
    fn a_ledger_without_marks_is_taken_as_it_is() {
        let guard = Guard::new(Vec::new(), true);
        assert!(!guard.judge(&guard.marks(), &at(1, "a", 7)) && !guard.stops_payouts());
        guard.advance(&mark(1, "a", 8));
        assert_eq!(guard.state().mark, Some(mark(1, "a", 8)));
    }

    #[test]
    fn where_no_mark_could_be_read_payouts_wait_for_it() {
        let guard = Guard::new(Vec::new(), false);
        assert!(guard.stops_payouts() && !guard.is_back());
        guard.learn(Vec::new(), false);
        assert!(guard.stops_payouts());
        guard.learn(Vec::new(), true);
        assert!(!guard.stops_payouts());
        assert!(!Guard::new(vec![mark(1, "a", 1)], false).stops_payouts(), "another place has one");
    }

    #[test]
    fn an_older_stored_mark_is_no_harm_and_a_newer_one_stops_payouts_until_it_is_accepted() {
        let guard = Guard::new(vec![mark(1, "a", 3)], true);
        assert!(!guard.judge(&guard.marks(), &at(1, "a", 7)));
        guard.advance(&mark(1, "a", 8));
        // The file of a process that ran after this one is read.
        guard.learn(vec![mark(1, "a", 9)], true);
        assert!(guard.judge(&guard.marks(), &at(1, "a", 8)) && guard.stops_payouts());
        let behind = guard.state().behind.unwrap();
        assert_eq!((behind.mark.beat, behind.ledger.beat), (9, 8));
        assert!(!guard.judge(&guard.marks(), &at(2, "a", 9)) && !guard.stops_payouts(), "accepted");
    }

    #[test]
    fn a_mark_that_this_process_makes_while_the_database_is_read_does_not_count_against_what_was_read() {
        let guard = Guard::new(Vec::new(), true);
        let (marks, read) = (guard.marks(), at(1, "a", 7));
        guard.advance(&mark(1, "a", 8));
        assert!(!guard.judge(&marks, &read));
    }
}
