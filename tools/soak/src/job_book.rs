//! What is noted of jobs: the calls for them and their answers, and each run as the executor got it. The soak's own process is
//! never killed, so it is held in memory, and written to the directory of the run at its end.

use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// When a job is due, and how its runs are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Kind {
    /// Each second, at least once.
    Least,
    /// Each second, at most once.
    Most,
    /// Some time after the end of the run before, at least once.
    Delay,
}

/// The job goes on from its first occurrence to its last one: all of them are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The first one, as the answer to the call that made it or let it go on has it.
    pub from_ms: u64,
    /// The last one, as the answer to the pause has it; `None` while it goes on.
    pub to_ms: Option<u64>,
}

/// No run that is due in it may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// When it was answered.
    pub from_ms: u64,
    /// When the job was asked to go on.
    pub to_ms: Option<u64>,
}

/// A job that is there for the whole run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fixed {
    /// Its number.
    pub number: u64,
    /// When it is due.
    pub kind: Kind,
    /// Where it went on, in the order of time.
    pub spans: Vec<Span>,
    /// Where it was paused, in the order of time.
    pub pauses: Vec<Pause>,
}

impl Fixed {
    /// Whether it goes on now.
    pub fn goes_on(&self) -> bool {
        self.spans.last().is_some_and(|span| span.to_ms.is_none())
    }
}

/// A job that is due once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Once {
    /// Its time.
    pub due_ms: u64,
    /// Whether it was answered that it is there.
    pub is_answered: bool,
}

/// A run as the executor got it. Repeats are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The number of its job.
    pub job: u64,
    /// Its own number.
    pub run: u64,
    /// The occurrence's id.
    pub occurrence: String,
    /// The job's parameters: the name of a job that is due once.
    pub params: String,
    /// When it was due.
    pub due_ms: u64,
    /// Its attempt.
    pub attempt: u32,
    /// When it came, Unix milliseconds.
    pub at_ms: u64,
    /// Whether the executor said that it has failed.
    pub is_failed: bool,
}

/// A run as the scheduler shows it at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Its number.
    pub run: u64,
    /// The occurrence's id.
    pub occurrence: String,
    /// When it was due.
    pub due_ms: u64,
    /// Whether its time had come, and nobody asked for it.
    pub is_scheduled: bool,
    /// The word for how it is.
    pub state: String,
    /// The word for how it ended.
    pub outcome: String,
    /// What was said of it last.
    pub message: String,
}

impl Shown {
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.state == "JOB_RUN_STATE_ENDED"
    }

    /// Whether it ended well.
    pub fn is_succeeded(&self) -> bool {
        self.outcome == "JOB_RUN_OUTCOME_SUCCEEDED"
    }
}

/// All that was noted.
#[derive(Debug, Clone, Default, Serialize)]
pub struct JobBook {
    /// Jobs that are there for the whole run, by name.
    pub fixed: BTreeMap<String, Fixed>,
    /// Jobs that are due once, by name.
    pub once: BTreeMap<String, Once>,
    /// Calls that were refused, which no call of the soak should be.
    pub refused: Vec<String>,
    /// The runs in the order in which they came.
    pub notes: Vec<Note>,
    /// Times in which this process got no processor for a while, from and to: an answer may have come too late.
    pub stalls: Vec<(u64, u64)>,
    /// The runs of each fixed job, and those of other jobs that came, as the scheduler shows them at the end.
    pub shown: BTreeMap<String, Vec<Shown>>,
}

impl JobBook {
    /// The jobs that are behind: those that are due once and have not come, and those that had no run which was due at the
    /// end of the load or later.
    pub fn waiting(&self, end_ms: Option<u64>) -> Vec<&str> {
        let came: HashSet<&str> = self.notes.iter().map(|note| note.params.as_str()).collect();
        let mut last_ms: HashMap<u64, u64> = HashMap::new();
        for note in &self.notes {
            let last_ms = last_ms.entry(note.job).or_default();
            *last_ms = note.due_ms.max(*last_ms);
        }
        let once = self.once.iter().filter(|(name, once)| once.is_answered && !came.contains(name.as_str()));
        let is_behind = |fixed: &Fixed| {
            fixed.goes_on()
                && end_ms.is_some_and(|end_ms| last_ms.get(&fixed.number).is_none_or(|ms| *ms < end_ms))
        };
        let fixed = self.fixed.iter().filter(|(_, fixed)| is_behind(fixed));
        once.map(|(name, _)| name.as_str()).chain(fixed.map(|(name, _)| name.as_str())).collect()
    }
}
