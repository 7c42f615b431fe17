//! What fuzz targets check of bytes that come from outside: a function a target, which ends without panic or has found
//! something.
//!
//! `tools/fuzz` feeds them with libFuzzer's inputs, and `tests/replay.rs` of this crate with those that are kept in
//! `tools/fuzz/seeds`, at each run of the tests.
//!
//! Not here: the older targets, which stand in `tools/fuzz` as a whole.

mod connector;
mod cursor;
mod edits;
mod grpc_body;
mod job;
mod key_file;
mod key_set;
mod page_token;
mod queue_request;
mod record;
mod timer;
mod user_token;

/// The check of one target.
pub type Check = fn(&[u8]);

/// Each target with its check. Its name is that of its seeds' folder.
pub const TARGETS: [(&str, Check); 12] = [
    ("connector_answer", connector::answer),
    ("connector_signature", connector::signature),
    ("grpc_body", grpc_body::body),
    ("job_record", job::record),
    ("key_file", key_file::text),
    ("key_set", key_set::document),
    ("list_cursor", cursor::cursor),
    ("page_token", page_token::page_token),
    ("queue_request", queue_request::request),
    ("signed_record", record::signed),
    ("timer_record", timer::record),
    ("user_token", user_token::token),
];

/// Runs the check of a target.
///
/// # Panics
/// Where the check fails, and where there is no such target.
pub fn run(target: &str, data: &[u8]) {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    let (_, check) = found.unwrap_or_else(|| panic!("there is no target {target}"));
    check(data);
}
