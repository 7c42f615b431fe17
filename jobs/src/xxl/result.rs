//! The results of runs, as executors report them.

use serde::{Deserialize, Serialize};

const SUCCESS: i32 = 200;
const FAILURE: i32 = 500;
const TIMEOUT: i32 = 502;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandleCode {
    /// The handler ended well (200).
    Success,
    /// The handler failed, its result was lost, or the run was killed or never begun (500, and each code that a handler
    /// makes up).
    Failure,
    /// The handler was ended after its time-out (502).
    Timeout,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunResult {
    /// The run's number: [`RunRequest::log_id`](super::RunRequest::log_id).
    pub run: i64,
    /// When the run was triggered: [`RunRequest::log_date_time_ms`](super::RunRequest::log_date_time_ms), as the
    /// executor kept it.
    pub log_date_time_ms: i64,
    /// How it ended.
    pub handle_code: HandleCode,
    /// What the handler said, at most some 50,000 characters from a Java executor.
    pub message: String,
    /// When the report came, Unix milliseconds by our clock.
    pub at_ms: i64,
}

/// One entry of a callback.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResultBody {
    pub(super) log_id: i64,
    /// The protocol's own spelling.
    #[serde(rename = "logDateTim", default)]
    pub(super) log_date_time_ms: i64,
    pub(super) handle_code: i32,
    #[serde(default)]
    pub(super) handle_msg: Option<String>,
}

impl HandleCode {
    /// The number on the wire.
    pub const fn code(self) -> i32 {
        match self {
            Self::Success => SUCCESS,
            Self::Failure => FAILURE,
            Self::Timeout => TIMEOUT,
        }
    }
}

impl ResultBody {
    pub(super) fn into_result(self, at_ms: i64) -> RunResult {
        let said = self.handle_msg.unwrap_or_default();
        let (handle_code, message) = match self.handle_code {
            SUCCESS => (HandleCode::Success, said),
            FAILURE => (HandleCode::Failure, said),
            TIMEOUT => (HandleCode::Timeout, said),
            // `XxlJobHelper.handleResult` takes any number; to XXL-JOB, too, all but 200 have failed.
            own => (HandleCode::Failure, format!("code {own}: {said}")),
        };
        RunResult { run: self.log_id, log_date_time_ms: self.log_date_time_ms, handle_code, message, at_ms }
    }
}

/// Reads the body of a callback.
pub(super) fn read_results(body: &[u8], at_ms: i64) -> Result<Vec<RunResult>, serde_json::Error> {
    let read: Vec<ResultBody> = serde_json::from_slice(body)?;
    Ok(read.into_iter().map(|one| one.into_result(at_ms)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_whole_or_not_at_all() {
        let body = br#"[
            {"logId":1,"logDateTim":1800000000000,"handleCode":200},
            {"logId":2,"logDateTim":5,"handleCode":502,"handleMsg":"job execute timeout","more":[1]},
            {"logId":-3,"handleCode":300,"handleMsg":null}
        ]"#;
        let read = read_results(body, 9).unwrap();
        let seen: Vec<_> = read.iter().map(|one| (one.run, one.handle_code, one.message.as_str())).collect();
        let expected = [
            (1, HandleCode::Success, ""),
            (2, HandleCode::Timeout, "job execute timeout"),
            (-3, HandleCode::Failure, "code 300: "),
        ];
        assert_eq!(seen, expected);
        assert!(read.iter().all(|one| one.at_ms == 9) && read[0].log_date_time_ms == 1_800_000_000_000);
        for bad in ["", "{}", "[{}]", r#"[{"logId":1}]"#, r#"[{"logId":"x","handleCode":200}]"#, "[1]", "nul"]
        {
            assert!(read_results(bad.as_bytes(), 0).is_err(), "{bad}");
        }
        for code in [HandleCode::Success, HandleCode::Failure, HandleCode::Timeout] {
            let body = format!(r#"[{{"logId":1,"handleCode":{}}}]"#, code.code());
            assert_eq!(read_results(body.as_bytes(), 0).unwrap()[0].handle_code, code);
        }
    }
}
