//! What publishers and consumers of the task queue note of each call, before it and after its answer.

use crate::event_book::EventBook;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// How its consumers treat a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// It is acknowledged when it comes.
    Prompt,
    /// It is acknowledged when it comes for the second time.
    Slow,
    /// It is not acknowledged before it has come more often than it may be taken, which the dead letter alone makes possible.
    Dying,
}

/// A job as its publisher asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// When the call began, Unix milliseconds.
    pub asked_ms: u64,
    /// How long it may not be taken, in seconds.
    pub delay_s: u64,
    /// How often it may be taken.
    pub tries: u64,
    /// How its consumers treat it.
    pub manner: Manner,
    /// Its id; `None` where the call had no answer: it may be there or not.
    pub id: Option<String>,
}

/// A job as a consumer got it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Its body, which names it.
    pub tag: String,
    /// Its id.
    pub id: String,
    /// When the call began that it came by, Unix milliseconds.
    pub asked_ms: u64,
    /// When it came.
    pub at_ms: u64,
    /// How often it may be taken after this.
    pub remain_tries: u64,
}

/// Something that happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueEvent {
    /// A job is published now.
    Publishes {
        /// Its body, which names it.
        tag: String,
        /// What is asked for.
        job: Published,
    },
    /// The publishing was answered.
    Published {
        /// The job's body.
        tag: String,
        /// Its id.
        id: String,
    },
    /// A consumer got a job.
    Came(Delivery),
    /// An acknowledgement was answered.
    Acknowledged {
        /// The job's id.
        id: String,
        /// When the answer came.
        at_ms: u64,
    },
    /// A call that consumes had no answer: it may have taken as many jobs as a call may.
    Unanswered,
    /// The dead letter is brought back from now on.
    Revives {
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// A call was refused, which no call of the soak should be.
    Refused(String),
}

/// All that was noted.
#[derive(Debug, Clone, Default)]
pub struct QueueBook {
    /// Jobs by their tags.
    pub jobs: BTreeMap<String, Published>,
    /// In the order in which they came.
    pub deliveries: Vec<Delivery>,
    /// When the acknowledgement of an id was answered first.
    pub acknowledged: HashMap<String, u64>,
    /// Calls that consume and had no answer.
    pub unanswered: u64,
    /// When jobs were first brought back from the dead letter.
    pub revived_ms: Option<u64>,
    /// Calls that were refused.
    pub refused: Vec<String>,
    /// How often each id came.
    came: HashMap<String, u64>,
}

impl EventBook for QueueBook {
    type Event = QueueEvent;

    fn apply(&mut self, event: QueueEvent) {
        match event {
            QueueEvent::Publishes { tag, job } => drop(self.jobs.insert(tag, job)),
            QueueEvent::Published { tag, id } => {
                if let Some(job) = self.jobs.get_mut(&tag) {
                    job.id = Some(id);
                }
            }
            QueueEvent::Came(delivery) => {
                *self.came.entry(delivery.id.clone()).or_default() += 1;
                self.deliveries.push(delivery);
            }
            QueueEvent::Acknowledged { id, at_ms } => drop(self.acknowledged.entry(id).or_insert(at_ms)),
            QueueEvent::Unanswered => self.unanswered += 1,
            QueueEvent::Revives { at_ms } => drop(self.revived_ms.get_or_insert(at_ms)),
            QueueEvent::Refused(why) => self.refused.push(why),
        }
    }
}

impl QueueBook {
    /// Whether a job that has come now is to be acknowledged.
    pub fn is_time(&self, tag: &str, id: &str) -> bool {
        let came = self.came.get(id).copied().unwrap_or_default();
        self.jobs.get(tag).is_none_or(|job| match job.manner {
            Manner::Prompt => true,
            Manner::Slow => came > 1,
            Manner::Dying => came > job.tries,
        })
    }

    /// How many jobs were answered and are not acknowledged.
    pub fn waiting(&self) -> usize {
        let ids = self.jobs.values().filter_map(|job| job.id.as_ref());
        ids.filter(|id| !self.acknowledged.contains_key(*id)).count()
    }
}
