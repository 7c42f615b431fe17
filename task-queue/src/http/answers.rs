//! Answers: the one place where results and errors become statuses and JSON.

use super::body::BodyError;
use crate::queues::{Delivery, QueueError};
use crate::room::Taken;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::json;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use windfall_contract::task_queue::{Attributes, FoundJob, InvalidName, JobId, JobStoreError, QueueName};

pub(super) type Answer = Response<Full<Bytes>>;

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

pub(super) fn json(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, JSON);
    answer
}

pub(super) fn value(status: StatusCode, body: &serde_json::Value) -> Answer {
    json(status, body.to_string())
}

pub(super) fn text(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

pub(super) fn nothing() -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

pub(super) fn error(status: StatusCode, what: &str) -> Answer {
    value(status, &json!({ "error": what }))
}

/// Ties the memory of an answer to it, until it is written.
pub(super) fn keep(answer: &mut Answer, room: Taken) {
    answer.extensions_mut().insert(Arc::new(room));
}

/// What was tied to an answer.
pub(super) fn kept(answer: &mut Answer) -> Option<Arc<Taken>> {
    answer.extensions_mut().remove()
}

/// What a call was refused for.
pub(super) struct Refused {
    status: StatusCode,
    what: Cow<'static, str>,
}

impl Refused {
    pub(super) fn new(status: StatusCode, what: impl Into<Cow<'static, str>>) -> Self {
        Self { status, what: what.into() }
    }

    pub(super) fn answer(&self) -> Answer {
        error(self.status, &self.what)
    }
}

impl From<&'static str> for Refused {
    fn from(what: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, what)
    }
}

impl From<InvalidName> for Refused {
    fn from(error: InvalidName) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl From<BodyError> for Refused {
    fn from(error: BodyError) -> Self {
        let (status, what) = match error {
            BodyError::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body too large"),
            BodyError::NoRoom => {
                (StatusCode::SERVICE_UNAVAILABLE, "too many request bodies are in memory, please retry later")
            }
            BodyError::Broken => (StatusCode::BAD_REQUEST, "failed to read body"),
            BodyError::TooSlow => (StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
        };
        Self::new(status, what)
    }
}

impl From<JobStoreError> for Refused {
    fn from(failed: JobStoreError) -> Self {
        tracing::warn!(error = %failed, "a call of the task queue failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
    }
}

impl From<QueueError> for Refused {
    fn from(failed: QueueError) -> Self {
        let (status, what) = match failed {
            QueueError::Store(error) => return error.into(),
            QueueError::Busy => {
                (StatusCode::SERVICE_UNAVAILABLE, "too many calls wait for the store, please retry later")
            }
            QueueError::TooManyOver => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many jobs that are over lie before the next one, please retry later",
            ),
            QueueError::NoRoom => {
                (StatusCode::SERVICE_UNAVAILABLE, "too many answers are in memory, please retry later")
            }
            QueueError::TooManyFarRemovals => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many deletions of jobs that wait elsewhere are remembered, please retry later",
            ),
            QueueError::TooManyPolls => {
                (StatusCode::SERVICE_UNAVAILABLE, "too many consumers wait for jobs, please retry later")
            }
            QueueError::TooManyPollsOfToken => (
                StatusCode::TOO_MANY_REQUESTS,
                "too many consumers wait for jobs with this token, please retry later",
            ),
        };
        Self::new(status, what)
    }
}

pub(super) fn published(id: JobId) -> Answer {
    json(StatusCode::CREATED, format!(r#"{{"msg":"published","job_id":"{id}"}}"#))
}

pub(super) fn published_all(ids: &[JobId]) -> Answer {
    let mut body = String::with_capacity(40 + 29 * ids.len());
    body.push_str(r#"{"msg":"published","job_ids":["#);
    for (at, id) in ids.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        // Writing to a string does not fail.
        write!(body, r#"{comma}"{id}""#).ok();
    }
    body.push_str("]}");
    json(StatusCode::CREATED, body)
}

/// An object, or a list where the consumer asked for more than one.
pub(super) fn delivered(deliveries: &[Delivery], is_list: bool) -> Answer {
    if deliveries.is_empty() {
        return json(StatusCode::NOT_FOUND, r#"{"msg":"no job available"}"#);
    }
    let bytes: usize = deliveries.iter().map(Delivery::answer_bytes).sum();
    let mut body = String::with_capacity(bytes);
    if is_list {
        body.push('[');
    }
    for (at, Delivery { queue, job, now_ms, .. }) in deliveries.iter().enumerate() {
        body.push_str(if at == 0 { r#"{"msg":"new job","# } else { r#",{"msg":"new job","# });
        push_job(&mut body, queue, job.id, Some(&job.body), left_s(job.expires_ms, *now_ms), *now_ms);
        push_end(&mut body, job.tries_left, &job.attributes);
    }
    if is_list {
        body.push(']');
    }
    json(StatusCode::OK, body)
}

/// A job that somebody looks at. Of one that has expired neither data nor tries are there any more, and nothing of its ttl.
pub(super) fn found(queue: &QueueName, found: &FoundJob, tries_left: u16) -> Answer {
    let FoundJob { job, now_ms } = found;
    let (data, ttl_s, tries_left) = match found.is_expired() {
        true => (None, 0, 0),
        false => (Some(&job.body), left_s(job.expires_ms, *now_ms), tries_left),
    };
    let mut body = String::with_capacity(300 + job.body.len() * 4 / 3);
    body.push('{');
    push_job(&mut body, queue, job.id, data, ttl_s, *now_ms);
    push_end(&mut body, tries_left, &job.attributes);
    json(StatusCode::OK, body)
}

fn push_job(body: &mut String, queue: &QueueName, id: JobId, data: Option<&Bytes>, ttl_s: u64, now_ms: u64) {
    let (namespace, name) = (queue.namespace(), queue.queue());
    write!(body, r#""namespace":"{namespace}","queue":"{name}","job_id":"{id}","data":"#).ok();
    match data {
        Some(data) => {
            body.push('"');
            STANDARD.encode_string(data, body);
            body.push('"');
        }
        None => body.push_str("null"),
    }
    let elapsed_ms = now_ms.saturating_sub(id.published_ms());
    write!(body, r#","ttl":{ttl_s},"elapsed_ms":{elapsed_ms}"#).ok();
}

fn push_end(body: &mut String, tries_left: u16, attributes: &Attributes) {
    write!(body, r#","remain_tries":{tries_left},"attributes":"#).ok();
    if attributes.is_empty() {
        body.push_str("null}");
        return;
    }
    let map: serde_json::Map<String, serde_json::Value> =
        attributes.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    write!(body, "{}}}", serde_json::Value::Object(map)).ok();
}

/// What is left of a ttl, in seconds; 0 is for ever, so the last second is one.
fn left_s(expires_ms: u64, now_ms: u64) -> u64 {
    match expires_ms {
        0 => 0,
        _ => expires_ms.saturating_sub(now_ms).div_ceil(1_000).max(1),
    }
}
