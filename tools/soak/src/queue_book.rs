//! What publishers and consumers of the task queue note of each call. Their process is never killed, so it is held in memory,
//! and written to the directory of the run at its end.

use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// How its consumers treat a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Manner {
    /// It is acknowledged when it comes.
    Prompt,
    /// It is acknowledged when it comes for the second time.
    Slow,
    /// It is not acknowledged before it has come more often than it may be taken, which the dead letter alone makes possible.
    Dying,
}

/// A job as its publisher asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

/// All that was noted.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QueueBook {
    /// Jobs by their tags.
    pub jobs: BTreeMap<String, Published>,
    /// In the order in which they came.
    pub deliveries: Vec<Delivery>,
    /// When the acknowledgement of an id was answered first.
    pub acknowledged: HashMap<String, u64>,
    /// Calls that consume and had no answer: each may have taken as many jobs as a call may.
    pub unanswered: u64,
    /// When jobs were first brought back from the dead letter.
    pub revived_ms: Option<u64>,
    /// Calls that were refused, which no call of the soak should be.
    pub refused: Vec<String>,
    /// How often each id came.
    #[serde(skip)]
    came: HashMap<String, u64>,
}

impl QueueBook {
    /// Notes a delivery; whether the job is to be acknowledged now.
    pub fn comes(&mut self, delivery: Delivery) -> bool {
        let came = self.came.entry(delivery.id.clone()).or_default();
        *came += 1;
        let is_time = self.jobs.get(&delivery.tag).is_none_or(|job| match job.manner {
            Manner::Prompt => true,
            Manner::Slow => *came > 1,
            Manner::Dying => *came > job.tries,
        });
        self.deliveries.push(delivery);
        is_time
    }

    /// The acknowledgement of a job was answered now.
    pub fn acknowledges(&mut self, id: &str, now_ms: u64) {
        self.acknowledged.entry(id.to_owned()).or_insert(now_ms);
    }

    /// How many jobs were answered and are not acknowledged.
    pub fn waiting(&self) -> usize {
        let ids = self.jobs.values().filter_map(|job| job.id.as_ref());
        ids.filter(|id| !self.acknowledged.contains_key(*id)).count()
    }
}
