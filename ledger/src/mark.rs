//! The high-water mark: how far a ledger was seen to be committed, kept outside of its database; and the rule that
//! tells whether a database still holds it.
//!
//! A database cannot know that it went back in time: a standby that was behind when it was promoted, a restored backup
//! and a copied file are whole and sound, and lack the newest commits. So the ledger counts *beats* in a row of its own.
//! A beat is a transaction, and begins after the commits that it stands for. A database that holds a beat holds every
//! commit that was answered before that beat began, because databases lose what is newest first. The number of the last
//! beat whose commit was answered is the mark.
//!
//! Numbers alone do not suffice: a database that went back would count the lost numbers once more. So beats belong to a
//! *lineage*, a random name that the ledger takes whenever it finds itself on another server, another timeline or
//! another start of its server. The ledger keeps every lineage with its first beat, so that it can say how far it followed
//! each of them.
//!
//! A person who has reconciled ends the state by raising the ledger's *generation*: marks of earlier generations are
//! given up, whoever holds them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A beat that was committed, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// 1 at first. A person who accepts a ledger that went back in time raises it above that of every known mark.
    pub generation: i64,
    /// The lineage in which the beat was counted.
    pub lineage: String,
    /// The number of the beat.
    pub beat: i64,
    /// The server that committed it.
    pub server: ServerPosition,
}

/// A place in the write-ahead log of a server. A ledger in a file has none: its timeline and its position are 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerPosition {
    /// The identifier of the database cluster, which a standby and a physical backup share with their origin.
    pub system: String,
    /// The timeline, which each promotion raises.
    pub timeline: i64,
    /// A position in the write-ahead log that was reached before the beat was committed, in bytes.
    pub wal: i64,
}

/// A lineage that the ledger has followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub id: String,
    pub first_beat: i64,
}

/// What a database says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    /// The last beat that it has committed.
    pub last: Mark,
    /// Every lineage that it has followed, the present one too.
    pub lineages: Vec<Lineage>,
    /// Where its server is now.
    pub server: ServerPosition,
    /// The mark that a process knew and the database lacked, by what that process has noted in it.
    pub missed: Option<Mark>,
}

/// Why a database does not hold a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The mark was made after a person had accepted another state of the ledger.
    Generation,
    /// The database has never been in the mark's lineage.
    Lineage,
    /// The database has been in the mark's lineage, but only up to this beat.
    Beats {
        /// The last beat of the lineage that it holds.
        reached: i64,
    },
    /// The server is the mark's and on its timeline, but its write-ahead log ends before the mark.
    Wal,
}

/// A ledger that does not hold a mark: it went back in time, or it is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// What was committed: from here …
    pub mark: Mark,
    /// … the ledger went back to here.
    pub ledger: Mark,
    /// Where the server is now.
    pub server: ServerPosition,
    /// What is missing.
    pub why: Missing,
}

impl Position {
    /// Whether this database holds everything that was committed when the mark was made.
    pub fn holds(&self, mark: &Mark) -> Result<(), Missing> {
        if mark.generation < self.last.generation {
            return Ok(());
        }
        if mark.generation > self.last.generation {
            return Err(Missing::Generation);
        }
        let own = self.lineages.iter().find(|one| one.id == mark.lineage).ok_or(Missing::Lineage)?;
        // A later lineage begins with the beat after the last one that was there.
        let next = self.lineages.iter().map(|one| one.first_beat).filter(|beat| *beat > own.first_beat).min();
        let reached = next.map_or(self.last.beat, |next| next - 1);
        if reached < mark.beat {
            return Err(Missing::Beats { reached });
        }
        let now = &self.server;
        if (&now.system, now.timeline) == (&mark.server.system, mark.server.timeline)
            && now.wal < mark.server.wal
        {
            return Err(Missing::Wal);
        }
        Ok(())
    }
}

impl Mark {
    /// Whether this one was made after `other`, where both are of one history.
    pub(crate) fn is_after(&self, other: &Self) -> bool {
        (self.generation, self.beat) > (other.generation, other.beat)
    }
}

impl fmt::Display for ServerPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wal = self.wal.unsigned_abs();
        write!(
            f,
            "system {}, timeline {}, WAL {:X}/{:X}",
            self.system,
            self.timeline,
            wal >> 32,
            wal & 0xffff_ffff
        )
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, lineage, beat, server } = self;
        write!(f, "beat {beat} of lineage {lineage}, generation {generation} ({server})")
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generation => {
                f.write_str("the ledger is older than the last state that a person has accepted")
            }
            Self::Lineage => f.write_str("the ledger has never been in the lineage of the mark"),
            Self::Beats { reached } => {
                write!(f, "the ledger holds the lineage of the mark up to beat {reached} only")
            }
            Self::Wal => {
                f.write_str("the server's write-ahead log ends before the mark, on the same timeline")
            }
        }
    }
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mark, ledger, server, why } = self;
        write!(f, "{why}: the mark is {mark}; the ledger is at {ledger}, and its server at {server}")?;
        if *why == Missing::Lineage && mark.server.system != server.system {
            f.write_str(
                ". Nothing in common: if this is the mark of another ledger, give each ledger a ledger_mark.name and a \
                 ledger_mark.file of its own, and then accept this one",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(timeline: i64, wal: i64) -> ServerPosition {
        ServerPosition { system: "one".into(), timeline, wal }
    }

    fn mark(generation: i64, lineage: &str, beat: i64, server: ServerPosition) -> Mark {
        Mark { generation, lineage: lineage.into(), beat, server }
    }

    /// A database in the last of these lineages, at this beat.
    fn position(generation: i64, lineages: &[(&str, i64)], beat: i64, server: ServerPosition) -> Position {
        let (last, _) = lineages.last().unwrap();
        let last = mark(generation, last, beat, server.clone());
        let lineages =
            lineages.iter().map(|(id, first)| Lineage { id: (*id).into(), first_beat: *first }).collect();
        Position { last, lineages, server, missed: None }
    }

    #[test]
    fn a_ledger_holds_what_it_has_committed_and_every_older_mark() {
        let now = position(1, &[("a", 1), ("b", 40)], 90, server(1, 900));
        for held in [("b", 90), ("b", 40), ("a", 39), ("a", 1)] {
            assert_eq!(now.holds(&mark(1, held.0, held.1, server(1, 900))), Ok(()), "{held:?}");
        }
    }

    #[test]
    fn a_fail_over_to_a_standby_that_has_everything_passes() {
        let primary = mark(1, "a", 105, server(1, 5_000));
        // Looked at before it takes a lineage of its own, and after.
        assert_eq!(position(1, &[("a", 1)], 105, server(2, 4_000)).holds(&primary), Ok(()));
        assert_eq!(position(1, &[("a", 1), ("b", 106)], 106, server(2, 5_100)).holds(&primary), Ok(()));
    }

    #[test]
    fn a_stale_standby_a_restored_backup_and_an_empty_database_are_noticed() {
        let primary = mark(1, "a", 105, server(1, 5_000));
        let stale = position(1, &[("a", 1)], 104, server(2, 4_900));
        assert_eq!(stale.holds(&primary), Err(Missing::Beats { reached: 104 }));
        let empty = position(1, &[("z", 1)], 1, server(1, 100));
        assert_eq!(empty.holds(&primary), Err(Missing::Lineage));
    }

    #[test]
    fn a_ledger_that_counted_the_lost_beats_once_more_is_noticed_all_the_same() {
        let primary = mark(1, "a", 105, server(1, 5_000));
        let counted_on = position(1, &[("a", 1), ("b", 91)], 2_000, server(2, 90_000));
        assert_eq!(counted_on.holds(&primary), Err(Missing::Beats { reached: 90 }));
        // The other half of such a split: each lacks the other's lineage.
        let old_primary = position(1, &[("a", 1)], 3_000, server(1, 90_000));
        assert_eq!(old_primary.holds(&mark(1, "b", 2_000, server(2, 90_000))), Err(Missing::Lineage));
    }

    #[test]
    fn a_log_that_is_shorter_on_the_same_timeline_is_noticed() {
        let made = mark(1, "a", 10, server(3, 5_000));
        assert_eq!(position(1, &[("a", 1)], 10, server(3, 4_999)).holds(&made), Err(Missing::Wal));
        assert_eq!(position(1, &[("a", 1)], 10, server(3, 5_000)).holds(&made), Ok(()));
        let other = ServerPosition { system: "another".into(), ..server(3, 1) };
        assert_eq!(
            position(1, &[("a", 1)], 10, other).holds(&made),
            Ok(()),
            "a dump that was restored elsewhere"
        );
    }

    #[test]
    fn what_a_person_has_accepted_gives_up_every_mark_of_before_and_no_later_one() {
        let accepted = position(2, &[("a", 1), ("c", 91)], 91, server(2, 100));
        for given_up in [mark(1, "a", 105, server(1, 5_000)), mark(1, "b", 7_000, server(2, 9_000))] {
            assert_eq!(accepted.holds(&given_up), Ok(()));
        }
        // Gone back once more, to before it was accepted.
        let again = position(1, &[("a", 1)], 80, server(1, 90));
        assert_eq!(again.holds(&mark(2, "c", 91, server(2, 100))), Err(Missing::Generation));
    }

    #[test]
    fn a_mark_is_the_same_after_it_was_written_and_read() {
        let made = mark(1, "a", 105, server(1, 5_000));
        let text = serde_json::to_string(&made).unwrap();
        assert_eq!(serde_json::from_str::<Mark>(&text).unwrap(), made);
        assert_eq!(
            made.to_string(),
            "beat 105 of lineage a, generation 1 (system one, timeline 1, WAL 0/1388)"
        );
    }
}
