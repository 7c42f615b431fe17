//! Names without end: who may grant can give each reward a bonus type of its own.

use super::{GRANT_BATCH, Target, reward};
use serde_json::{Value, json};

/// The rewards of a call, which is the most that one may have.
const BATCH: usize = 1_000;

/// More than what is kept of them in memory: caches begin anew, and metrics count what is beyond them together.
#[test]
fn many_names_of_bonus_types_take_little_memory_and_the_others_go_on() {
    grant_names(100_000);
}

#[test]
#[ignore = "takes minutes: ./dev test --long runs it"]
fn a_million_names_of_bonus_types_take_no_more_memory() {
    grant_names(1_000_000);
}

fn grant_names(count: usize) {
    let mut target = Target::start("", &[], "");
    for begin in (0..count).step_by(BATCH) {
        let event = |number: usize| {
            let user_id = 2_000_000 + i64::try_from(number % 1_000).unwrap();
            let mut event = reward(&format!("name:{number}"), user_id, 1);
            event["bonus"]["type"] = json!(format!("asset-{number}"));
            event
        };
        let events: Vec<Value> = (begin..begin + BATCH).map(event).collect();
        let granted = target.ok("grants", None, GRANT_BATCH, &json!({ "events": events }));
        let replies = granted["replies"].as_array().unwrap();
        assert_eq!(replies.len(), BATCH);
        for reply in replies {
            // Taken or refused for good: nothing of it waits.
            let outcome = reply["outcome"].as_str().unwrap_or_default();
            assert!(
                matches!(outcome, "GRANT_OUTCOME_CREDITED" | "GRANT_OUTCOME_REJECTED"),
                "{begin}: {reply}"
            );
        }
        if begin % (count / 10) == 0 {
            target.still_serves();
        }
    }
    target.within_memory("names of bonus types");
    target.stop(&[]);
}
