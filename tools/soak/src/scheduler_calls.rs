//! Calls of the schedulers' services over HTTP, which timers and jobs share: an answer, or that nobody knows.

use crate::fleet::Fleet;
use crate::ground::Ground;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The processes that keep timers and jobs.
pub const SCHEDULERS: [&str; 2] = ["scheduler-0", "scheduler-1"];
const CALL_TIMEOUT: Duration = Duration::from_secs(4);
const AGAIN: Duration = Duration::from_millis(150);

/// The answer to a call.
pub enum Answer {
    /// It is done.
    Done(Value),
    /// Nothing was done: ask again.
    Busy,
    /// Nobody knows whether it was done.
    Unknown,
    /// It was refused for good.
    Refused(Refusal),
}

/// Why a call was refused.
pub struct Refusal {
    /// The name of its code.
    pub code: String,
    /// All that was answered.
    pub why: String,
}

/// A caller, who turns to the other scheduler where one does not answer.
pub struct SchedulerCaller {
    ground: Arc<Ground>,
    fleet: Arc<Fleet>,
    agent: ureq::Agent,
    /// The scheduler that answered last.
    at: usize,
}

impl SchedulerCaller {
    /// A caller, who asks the scheduler `at` first.
    pub fn new(ground: &Arc<Ground>, fleet: &Arc<Fleet>, at: usize) -> Self {
        let config = ureq::Agent::config_builder();
        let config = config.http_status_as_error(false).timeout_global(Some(CALL_TIMEOUT)).build();
        let (ground, fleet, at) = (Arc::clone(ground), Arc::clone(fleet), at % SCHEDULERS.len());
        Self { ground, fleet, agent: config.into(), at }
    }

    /// Asks the other scheduler the next time.
    pub fn turn(&mut self) {
        self.at = (self.at + 1) % SCHEDULERS.len();
        std::thread::sleep(AGAIN);
    }

    /// Makes a call.
    pub fn call(&self, path: &str, body: &Value) -> Answer {
        let key = self.ground.keys.get("timers").map_or("", String::as_str);
        let request = self
            .agent
            .post(format!("http://{}{path}", self.fleet.address(SCHEDULERS[self.at])))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {key}"));
        let Ok(mut response) = request.send(body.to_string()) else { return Answer::Unknown };
        let status = response.status().as_u16();
        let Ok(text) = response.body_mut().read_to_string() else { return Answer::Unknown };
        let reply: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        match status {
            200 => Answer::Done(reply),
            // With a wait, nothing was done.
            _ if reply["retry_after_ms"].as_u64().is_some_and(|wait_ms| wait_ms > 0) => Answer::Busy,
            429 | 502 | 503 | 504 => Answer::Unknown,
            _ => Answer::Refused(Refusal {
                code: reply["code"].as_str().unwrap_or_default().to_owned(),
                why: format!("HTTP {status} {reply}"),
            }),
        }
    }
}
