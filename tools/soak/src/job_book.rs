//! What is noted of jobs: the calls for them before and after their answers, and each run as the executor got it.

use crate::event_book::EventBook;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The interval of jobs that are due again and again, and the delay of those that wait for the end of their last run.
pub const EVERY_MS: u64 = 1_000;

/// When a job is due, and how its runs are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Each second, at least once.
    Least,
    /// Each second, at most once.
    Most,
    /// A second after the end of the run before, at least once.
    Delay,
}

/// The job goes on from its first occurrence to its last one: all of them are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first one, as the answer to the call that made it or let it go on has it.
    pub from_ms: u64,
    /// The last one; `None` while it goes on.
    pub to_ms: Option<u64>,
}

/// No run that is due in it may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Behind the last occurrence, as the answer to the pause has it.
    pub from_ms: u64,
    /// When the job was asked to go on.
    pub to_ms: Option<u64>,
}

/// A job that is there for the whole run.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The occurrences that must be decided, up to the end of the load; none are known of a job that waits for its runs' ends.
    pub fn expected(&self, end_ms: u64) -> impl Iterator<Item = u64> {
        let spans = self.spans.iter().filter(|_| self.kind != Kind::Delay);
        spans.flat_map(move |span| {
            let to_ms = span.to_ms.unwrap_or(end_ms).min(end_ms);
            (span.from_ms..=to_ms).step_by(usize::try_from(EVERY_MS).unwrap_or(usize::MAX))
        })
    }

    fn goes_on(&self) -> bool {
        self.spans.last().is_some_and(|span| span.to_ms.is_none())
    }
}

/// A job that is due once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Once {
    /// Its time.
    pub due_ms: u64,
    /// Whether it was answered that it is there.
    pub is_answered: bool,
}

/// A run as the executor got it. Repeats are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The number of its job.
    pub job: u64,
    /// Its own number.
    pub run: u64,
    /// The occurrence's id.
    pub occurrence: String,
    /// The job's parameters: its name.
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Its number.
    pub run: u64,
    /// When it was due.
    pub due_ms: u64,
    /// The word for how it is.
    pub state: String,
    /// The word for how it ended.
    pub outcome: String,
    /// What was said of it last.
    pub message: String,
}

impl Shown {
    /// Whether it is over, and not well.
    pub fn is_dead(&self) -> bool {
        self.state == "JOB_RUN_STATE_ENDED" && self.outcome != "JOB_RUN_OUTCOME_SUCCEEDED"
    }
}

/// Something that happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEvent {
    /// A job for the whole run was answered as made.
    Made {
        /// Its name.
        name: String,
        /// Its number.
        number: u64,
        /// When it is due.
        kind: Kind,
        /// Its first occurrence.
        from_ms: u64,
    },
    /// A pause is asked for: what this span has decided is not known until the answer.
    Pauses {
        /// The job's name.
        name: String,
    },
    /// The pause was answered.
    Paused {
        /// The job's name.
        name: String,
        /// The last occurrence that was decided.
        last_ms: u64,
    },
    /// It is asked to go on.
    GoesOn {
        /// The job's name.
        name: String,
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// That was answered.
    WentOn {
        /// The job's name.
        name: String,
        /// The occurrence that comes next.
        next_ms: u64,
    },
    /// A job that is due once is asked for.
    Adds {
        /// Its name.
        name: String,
        /// Its time.
        due_ms: u64,
    },
    /// It was answered as made.
    Added {
        /// Its name.
        name: String,
    },
    /// A call was refused, which no call of the soak should be.
    Refused(String),
    /// The executor got a run.
    Came(Note),
    /// The soak got no processor for a while, so that an answer may have come too late.
    Stalled {
        /// From then,
        from_ms: u64,
        /// to then.
        to_ms: u64,
    },
    /// The load is over.
    Ends {
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// Runs of a job as the scheduler shows them at the end.
    Shows {
        /// The job's name.
        name: String,
        /// Its runs.
        runs: Vec<Shown>,
    },
}

/// All that was noted.
#[derive(Debug, Clone, Default)]
pub struct JobBook {
    /// Jobs that are there for the whole run, by name.
    pub fixed: BTreeMap<String, Fixed>,
    /// Jobs that are due once, by name.
    pub once: BTreeMap<String, Once>,
    /// Calls that were refused.
    pub refused: Vec<String>,
    /// The runs in the order in which they came.
    pub notes: Vec<Note>,
    /// Times in which the soak got no processor, from and to.
    pub stalls: Vec<(u64, u64)>,
    /// When the load ended.
    pub end_ms: Option<u64>,
    /// The runs of each fixed job, as the scheduler shows them at the end.
    pub shown: BTreeMap<String, Vec<Shown>>,
}

impl EventBook for JobBook {
    type Event = JobEvent;

    fn apply(&mut self, event: JobEvent) {
        match event {
            JobEvent::Made { name, number, kind, from_ms } => {
                let spans = vec![Span { from_ms, to_ms: None }];
                self.fixed.insert(name, Fixed { number, kind, spans, pauses: Vec::new() });
            }
            JobEvent::Pauses { name } => {
                self.span(&name, |span| span.to_ms = Some(span.from_ms.saturating_sub(1)));
            }
            JobEvent::Paused { name, last_ms } => {
                self.span(&name, |span| span.to_ms = Some(last_ms));
                let pause = Pause { from_ms: last_ms.saturating_add(1), to_ms: None };
                self.of(&name, |fixed| fixed.pauses.push(pause));
            }
            JobEvent::GoesOn { name, at_ms } => self.of(&name, |fixed| {
                if let Some(pause) = fixed.pauses.last_mut() {
                    pause.to_ms.get_or_insert(at_ms);
                }
            }),
            JobEvent::WentOn { name, next_ms } => {
                self.of(&name, |fixed| fixed.spans.push(Span { from_ms: next_ms, to_ms: None }));
            }
            JobEvent::Adds { name, due_ms } => {
                self.once.entry(name).or_insert(Once { due_ms, is_answered: false });
            }
            JobEvent::Added { name } => {
                if let Some(once) = self.once.get_mut(&name) {
                    once.is_answered = true;
                }
            }
            JobEvent::Refused(why) => self.refused.push(why),
            JobEvent::Came(note) => self.notes.push(note),
            JobEvent::Stalled { from_ms, to_ms } => self.stalls.push((from_ms, to_ms)),
            JobEvent::Ends { at_ms } => self.end_ms = Some(at_ms),
            JobEvent::Shows { name, runs } => self.shown.entry(name).or_default().extend(runs),
        }
    }
}

impl JobBook {
    fn of(&mut self, name: &str, change: impl FnOnce(&mut Fixed)) {
        if let Some(fixed) = self.fixed.get_mut(name) {
            change(fixed);
        }
    }

    fn span(&mut self, name: &str, change: impl FnOnce(&mut Span)) {
        self.of(name, |fixed| {
            if let Some(span) = fixed.spans.last_mut() {
                change(span);
            }
        });
    }

    /// How many occurrences must come that have not, once the load is over. A job that waits for its runs' ends is behind until
    /// it had one that was due at the end of the load or later.
    pub fn waiting(&self) -> usize {
        let Some(end_ms) = self.end_ms else { return 0 };
        let came: HashSet<(u64, u64)> = self.notes.iter().map(|note| (note.job, note.due_ms)).collect();
        let names: HashSet<&str> = self.notes.iter().map(|note| note.params.as_str()).collect();
        let mut last_ms: HashMap<u64, u64> = HashMap::new();
        for note in &self.notes {
            let last_ms = last_ms.entry(note.job).or_default();
            *last_ms = note.due_ms.max(*last_ms);
        }
        let once = self.once.iter().filter(|(name, once)| once.is_answered && !names.contains(name.as_str()));
        let fixed = self.fixed.values().map(|fixed| match fixed.kind {
            Kind::Least => {
                fixed.expected(end_ms).filter(|due_ms| !came.contains(&(fixed.number, *due_ms))).count()
            }
            Kind::Most => 0,
            Kind::Delay => {
                let is_behind = last_ms.get(&fixed.number).is_none_or(|last_ms| *last_ms < end_ms);
                usize::from(fixed.goes_on() && is_behind)
            }
        });
        once.count() + fixed.sum::<usize>()
    }
}
