//! The reading of requests, as fuzz targets see it: what is refused is `None`.

use super::admin;
use super::api::{self, Route};
use super::request::{self, ConsumeTerms, PublishTerms, Query};
use crate::options::CONSUME_COUNT_MAX;
use bytes::Bytes;
use http::{HeaderMap, Method};
use windfall_contract::task_queue::QueueName;

/// Namespace, queue and call of a path.
pub fn route(method: &Method, path: &str) -> Option<(String, String, String)> {
    let (namespace, queue, route) = Route::of(method, path)?;
    Some((namespace.into_owned(), queue.into_owned(), format!("{route:?}")))
}

/// Part of a path, or of a query, as it is read.
pub fn decode(text: &str, is_query: bool) -> String {
    request::decode(text, is_query).into_owned()
}

/// The first values of these names in a query.
pub fn pairs(query: &str, names: &[&str]) -> Vec<Option<String>> {
    let query = Query::parse(Some(query));
    names.iter().map(|name| query.get(name).map(str::to_owned)).collect()
}

/// Seconds of delay, seconds to live and tries.
pub fn publish_terms(query: &str) -> Option<(u32, u32, u16)> {
    let PublishTerms { delay_s, ttl_s, tries } = PublishTerms::of(&Query::parse(Some(query))).ok()?;
    Some((delay_s, ttl_s, tries))
}

/// Seconds to run, seconds to wait, and how many jobs.
pub fn consume_terms(query: &str) -> Option<(u32, u32, usize)> {
    let terms = ConsumeTerms::of(&Query::parse(Some(query)), CONSUME_COUNT_MAX).ok()?;
    Some((terms.ttr_s, terms.timeout_s, terms.count))
}

/// The queues of a list.
pub fn consumed_queues(namespace: &str, list: &str) -> Option<Vec<QueueName>> {
    api::consumed_queues(namespace, list).ok()
}

/// Whether a job has a version, and its attributes.
pub fn attributes(headers: &HeaderMap) -> Option<(bool, Vec<(String, String)>)> {
    api::attributes(headers).ok()
}

/// The jobs of a bulk call.
pub fn bulk_bodies(body: &Bytes) -> Option<Vec<Bytes>> {
    api::bulk_bodies(body).ok()
}

/// A path of the admin API, as logs show it.
pub fn logged_path(path: &str) -> String {
    admin::logged_path(path).into_owned()
}
