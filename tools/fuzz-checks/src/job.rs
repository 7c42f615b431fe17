//! What a task queue reads back from its store, and names and numbers that callers send.

use bytes::Bytes;
use windfall_contract::due::TaskId;
use windfall_contract::task_queue::{FarJob, HeldRecord, JobRecord, QueueName};

/// The first byte says what the others are read as; what is read is written and read again as the same.
pub fn record(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let bytes = Bytes::copy_from_slice(rest);
    let text = std::str::from_utf8(rest).unwrap_or_default();
    match kind % 5 {
        0 => {
            if let Ok(Some(job)) = JobRecord::decode(&bytes) {
                assert_eq!(JobRecord::decode(&job.encode()), Ok(Some(job)));
            }
        }
        1 => {
            if let Ok(held) = HeldRecord::decode(&bytes) {
                assert_eq!(HeldRecord::decode(&held.encode()), Ok(held));
            }
        }
        2 => {
            let Ok(timer) = "0012-01c3a2f0-8000002a".parse::<TaskId>() else { return };
            if let Ok(job) = FarJob::of_timer(&bytes, timer, 64) {
                assert_eq!(QueueName::parse(job.queue.as_str()), Ok(job.queue));
            }
        }
        3 => {
            if let Ok(name) = QueueName::parse(text) {
                assert_eq!(name.as_str(), text);
            }
        }
        _ => {
            if let Ok(id) = text.parse::<TaskId>() {
                assert_eq!(id.to_string().parse::<TaskId>().ok(), Some(id));
            }
        }
    }
}
