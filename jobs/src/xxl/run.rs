//! A run as it goes to an executor.

use serde::{Deserialize, Serialize, Serializer};

/// What an executor does when a run of the job comes while another one still goes or waits there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum BlockStrategy {
    /// The new run waits in the executor's memory until the others have ended.
    #[default]
    SerialExecution,
    /// The new run is refused ([`Refusal::Blocked`](super::Refusal::Blocked)).
    DiscardLater,
    /// The others are ended and reported as failed, then the new one begins.
    CoverEarly,
}

/// One run of a job. Its handler is a method in the executor's code (`BEAN`); scripts and sources are never sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRequest {
    /// The job. An executor has one thread for each, so that the block strategy, [`kill`](super::XxlClient::kill) and
    /// [`idle_beat`](super::XxlClient::idle_beat) go by it.
    pub job_id: i32,
    /// The handler's name (`@XxlJob`). A run with another handler than the last one of the job ends that one's thread.
    #[serde(rename = "executorHandler")]
    pub handler: String,
    /// What the handler reads as its parameter.
    #[serde(rename = "executorParams", default)]
    pub params: String,
    /// What happens beside a run that still goes.
    #[serde(rename = "executorBlockStrategy")]
    pub block: BlockStrategy,
    /// The executor ends the run after so many seconds and reports a time-out. 0: never.
    #[serde(rename = "executorTimeout", serialize_with = "java_int", default)]
    pub timeout_s: u32,
    /// The run's number, which its result carries. While a run waits in the executor, one of the same number is refused
    /// ([`Refusal::Repeated`](super::Refusal::Repeated)); once it has begun, the executor has forgotten the number and
    /// begins again.
    pub log_id: i64,
    /// When the run was triggered, Unix milliseconds. The executor files the log lines under its day, so that
    /// [`log`](super::XxlClient::log) needs the same value.
    #[serde(rename = "logDateTime")]
    pub log_date_time_ms: i64,
    /// Which of the executors this one is in a broadcast, from 0.
    #[serde(serialize_with = "java_int", default)]
    pub broadcast_index: u32,
    /// How many executors take part in the broadcast; 1 for a run without one.
    #[serde(serialize_with = "java_int", default)]
    pub broadcast_total: u32,
}

/// A request with the fields that are the same for every run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunBody<'a> {
    #[serde(flatten)]
    request: &'a RunRequest,
    glue_type: &'static str,
    glue_source: &'static str,
    glue_updatetime: i64,
}

impl<'a> RunBody<'a> {
    pub(super) fn new(request: &'a RunRequest) -> Self {
        Self { request, glue_type: "BEAN", glue_source: "", glue_updatetime: 0 }
    }
}

/// A number that Java's `int` holds; the executor could read no larger one.
fn java_int<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i32(i32::try_from(*value).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_fields_that_executors_read() {
        let request = RunRequest {
            job_id: 7,
            handler: "echo".into(),
            params: "a=1&b=\"2\"".into(),
            block: BlockStrategy::CoverEarly,
            timeout_s: u32::MAX,
            log_id: i64::MAX,
            log_date_time_ms: 1_800_000_000_000,
            broadcast_index: 1,
            broadcast_total: 3,
        };
        let sent = serde_json::to_value(RunBody::new(&request)).unwrap();
        let expected = serde_json::json!({
            "jobId": 7,
            "executorHandler": "echo",
            "executorParams": "a=1&b=\"2\"",
            "executorBlockStrategy": "COVER_EARLY",
            "executorTimeout": i32::MAX,
            "logId": i64::MAX,
            "logDateTime": 1_800_000_000_000_i64,
            "glueType": "BEAN",
            "glueSource": "",
            "glueUpdatetime": 0,
            "broadcastIndex": 1,
            "broadcastTotal": 3,
        });
        assert_eq!(sent, expected);
        let read: RunRequest = serde_json::from_value(sent).unwrap();
        assert_eq!(read.log_id, request.log_id);
        for (strategy, name) in [
            (BlockStrategy::SerialExecution, "\"SERIAL_EXECUTION\""),
            (BlockStrategy::DiscardLater, "\"DISCARD_LATER\""),
            (BlockStrategy::CoverEarly, "\"COVER_EARLY\""),
        ] {
            assert_eq!(serde_json::to_string(&strategy).unwrap(), name);
        }
    }
}
