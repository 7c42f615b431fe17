//! The queue API.

use super::answers::{self, Answer, Refused, error, json, value};
use super::body::{BodyRoom, ReadBody};
use super::request::{ConsumeTerms, PublishTerms, Query, dead_limit, decode, respawn_ttl_s, split_token};
use super::server::Pool;
use crate::options::{
    ATTRIBUTE_KEY_MAX_BYTES, ATTRIBUTE_VALUE_MAX_BYTES, ATTRIBUTES_MAX, ApiOptions, BULK_JOBS_MAX,
    CONSUME_COUNT_MAX, CONSUME_QUEUES_MAX,
};
use crate::queues::Wanted;
use crate::room::Taken;
use crate::tokens::{KnownToken, Use};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::body::Incoming;
use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::json as to_value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::task_queue::{BODY_MAX_BYTES, JobId, JobStoreError, NewJobs, QueueName};
use windfall_edge::GuardedCall;

/// What the queue API works on.
pub(super) struct Api {
    pub(super) options: ApiOptions,
    pub(super) pools: BTreeMap<String, Pool>,
    pub(super) bodies: Arc<BodyRoom>,
}

/// A call of a queue, by its path and method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route<'p> {
    Publish,
    Bulk,
    Replace(Cow<'p, str>),
    Consume,
    Peek,
    Get(Cow<'p, str>),
    Remove(Cow<'p, str>),
    DropReady,
    Size,
    DeadSize,
    DeadHead,
    Respawn,
    DropDead,
}

impl<'p> Route<'p> {
    /// Namespace, queue and call.
    pub(super) fn of(method: &Method, path: &'p str) -> Option<(Cow<'p, str>, Cow<'p, str>, Self)> {
        let mut parts = path.strip_prefix("/api/")?.split('/').map(|part| decode(part, false));
        let (namespace, queue) = (parts.next()?, parts.next()?);
        let (first, second) = (parts.next(), parts.next());
        if namespace.is_empty() || queue.is_empty() || parts.next().is_some() {
            return None;
        }
        let route = match (method.as_str(), first.as_deref(), second) {
            ("PUT", None, None) => Self::Publish,
            ("PUT", Some("bulk"), None) => Self::Bulk,
            ("PUT", Some("job"), Some(id)) if !id.is_empty() => Self::Replace(id),
            ("GET", None, None) => Self::Consume,
            ("GET", Some("peek"), None) => Self::Peek,
            ("GET", Some("job"), Some(id)) if !id.is_empty() => Self::Get(id),
            ("DELETE", Some("job"), Some(id)) if !id.is_empty() => Self::Remove(id),
            ("DELETE", None, None) => Self::DropReady,
            ("GET", Some("size"), None) => Self::Size,
            ("GET", Some("deadletter"), Some(size)) if size == "size" => Self::DeadSize,
            ("GET", Some("deadletter"), None) => Self::DeadHead,
            ("PUT", Some("deadletter"), None) => Self::Respawn,
            ("DELETE", Some("deadletter"), None) => Self::DropDead,
            _ => return None,
        };
        Some((namespace, queue, route))
    }

    /// Whether anybody may call it.
    const fn is_open(&self) -> bool {
        matches!(self, Self::Size | Self::DeadSize)
    }

    /// What it counts as for a token's limit.
    const fn counts_as(&self) -> Option<Use> {
        match self {
            Self::Publish | Self::Bulk | Self::Replace(_) => Some(Use::Produce),
            Self::Consume => Some(Use::Consume),
            _ => None,
        }
    }
}

impl Api {
    pub(super) async fn answer(&self, request: Request<Incoming>, guarded: &GuardedCall) -> Answer {
        // Taken apart, so that path, query and headers are read where they lie.
        let (head, body) = request.into_parts();
        let Some((namespace, queue, route)) = Route::of(&head.method, head.uri.path()) else {
            return error(StatusCode::NOT_FOUND, "api not found");
        };
        let called = self.call(&namespace, &queue, route, (&head, body), guarded).await;
        called.unwrap_or_else(|refused| refused.answer())
    }

    async fn call(
        &self,
        namespace: &str,
        queue: &str,
        route: Route<'_>,
        (head, body): (&Parts, Incoming),
        guarded: &GuardedCall,
    ) -> Result<Answer, Refused> {
        let queues = if route == Route::Consume {
            consumed_queues(namespace, queue)?
        } else {
            vec![QueueName::new(namespace, queue)?]
        };
        let query = Query::parse(head.uri.query());
        let header = head.headers.get("x-token").and_then(|token| token.to_str().ok());
        let header = header.filter(|token| !token.is_empty());
        let whole = header.or_else(|| query.get("token")).unwrap_or_default();
        let (pool, token) = split_token(whole);
        let pool =
            self.pools.get(pool).ok_or_else(|| Refused::new(StatusCode::NOT_FOUND, "pool not found"))?;
        if route.is_open() {
            return sizes(pool, &queues[0], &route).await;
        }
        let known = authenticate(pool, namespace, token).await?;
        guarded.authenticated();
        if let Some(what) = route.counts_as()
            && !pool.tokens.admit(&known, what).await?
        {
            let name = if what == Use::Produce { "produce" } else { "consume" };
            let what = format!("token({token}) {name} reach the limit rate, please retry later");
            return Err(Refused::new(StatusCode::TOO_MANY_REQUESTS, what));
        }
        match route {
            Route::Publish => self.publish(pool, &queues[0], &query, token, (head, body), None).await,
            Route::Replace(id) => {
                self.publish(pool, &queues[0], &query, token, (head, body), Some(&id)).await
            }
            Route::Bulk => self.publish_bulk(pool, &queues[0], &query, token, (head, body)).await,
            Route::Consume => self.consume(pool, queues, &query, token, &known).await,
            other => on_queue(pool, &queues[0], &query, other).await,
        }
    }

    async fn publish(
        &self,
        pool: &Pool,
        queue: &QueueName,
        query: &Query<'_>,
        token: &str,
        (head, body): (&Parts, Incoming),
        replaced: Option<&str>,
    ) -> Result<Answer, Refused> {
        let terms = PublishTerms::of(query)?;
        let (is_versioned, attributes) = attributes(&head.headers)?;
        let (body, room) = self.body(pool, queue, token, body, BODY_MAX_BYTES).await?;
        let jobs = new_jobs(queue, terms, is_versioned, attributes, vec![body]);
        let old = replaced.and_then(|id| id.parse::<JobId>().ok());
        // A caller that hangs up does not free memory that the store still waits for.
        let ids = pool.queues.publish(jobs, Box::new(room)).await?;
        let id = ids.first().copied();
        let id = id.ok_or_else(|| JobStoreError::Unusable("it has given no id".into()))?;
        // The new one is there before the old one goes: whoever dies in between has two, and not none.
        if let Some(old) = old {
            pool.queues.remove(queue, old).await?;
        }
        Ok(answers::published(id))
    }

    async fn publish_bulk(
        &self,
        pool: &Pool,
        queue: &QueueName,
        query: &Query<'_>,
        token: &str,
        (head, body): (&Parts, Incoming),
    ) -> Result<Answer, Refused> {
        let terms = PublishTerms::of(query)?;
        let (is_versioned, attributes) = attributes(&head.headers)?;
        let (body, room) = self.body(pool, queue, token, body, self.options.bulk_bytes_max).await?;
        let jobs = new_jobs(queue, terms, is_versioned, attributes, bulk_bodies(&body)?);
        let ids = pool.queues.publish(jobs, Box::new(room)).await?;
        Ok(answers::published_all(&ids))
    }

    /// A publish's body, and its memory.
    async fn body(
        &self,
        pool: &Pool,
        queue: &QueueName,
        token: &str,
        body: Incoming,
        bytes_max: usize,
    ) -> Result<(Bytes, Taken), Refused> {
        let ReadBody { bytes, room, was_awaited } = self.bodies.read(body, bytes_max).await?;
        if was_awaited {
            // The token may be gone since the call began.
            authenticate(pool, queue.namespace(), token).await?;
        }
        Ok((bytes, room))
    }

    async fn consume(
        &self,
        pool: &Pool,
        queues: Vec<QueueName>,
        query: &Query<'_>,
        token: &str,
        known: &KnownToken,
    ) -> Result<Answer, Refused> {
        let ConsumeTerms { ttr_s, timeout_s, count } = ConsumeTerms::of(query, CONSUME_COUNT_MAX)?;
        let timeout = Duration::from_secs(timeout_s.min(self.options.poll_max_s).into());
        let wanted = Wanted { queues, count, ttr_s, timeout, poller: known.number };
        let got = pool.queues.consume(wanted).await?;
        if timeout_s > 0 && !got.jobs().is_empty() {
            // The token may be gone since the poll began; what was taken is given back then.
            authenticate(pool, known.namespace(), token).await?;
        }
        let mut answer = answers::delivered(got.jobs(), count > 1);
        answers::keep(&mut answer, pool.queues.claim(got));
        Ok(answer)
    }
}

async fn authenticate(pool: &Pool, namespace: &str, token: &str) -> Result<Arc<KnownToken>, Refused> {
    if token.is_empty() {
        return Err(Refused::new(StatusCode::UNAUTHORIZED, "token not found"));
    }
    let known = pool.tokens.check(namespace, token).await?;
    known.ok_or_else(|| Refused::new(StatusCode::UNAUTHORIZED, "invalid token"))
}

async fn sizes(pool: &Pool, queue: &QueueName, route: &Route<'_>) -> Result<Answer, Refused> {
    let counts = pool.queues.counts(queue).await?;
    let size = if *route == Route::Size { counts.ready } else { counts.dead };
    let (namespace, queue) = (queue.namespace(), queue.queue());
    Ok(value(StatusCode::OK, &to_value!({ "namespace": namespace, "queue": queue, "size": size })))
}

/// Calls that need neither a body nor a wait.
async fn on_queue(
    pool: &Pool,
    queue: &QueueName,
    query: &Query<'_>,
    route: Route<'_>,
) -> Result<Answer, Refused> {
    let queues = &pool.queues;
    Ok(match route {
        Route::Peek => match queues.peek(queue).await? {
            Some(found) => answers::found(queue, &found, found.job.tries_left),
            None => error(StatusCode::NOT_FOUND, "the queue is empty"),
        },
        Route::Get(id) => {
            let found = match id.parse::<JobId>() {
                Ok(id) => queues.get(queue, id).await?.filter(|found| !found.is_expired()),
                Err(_) => None,
            };
            match found {
                Some(found) => answers::found(queue, &found, 0),
                None => error(StatusCode::NOT_FOUND, "job not found"),
            }
        }
        Route::Remove(id) => {
            // What is no id is the id of no job.
            if let Ok(id) = id.parse::<JobId>() {
                queues.remove(queue, id).await?;
            }
            answers::nothing()
        }
        Route::DropReady => {
            queues.drop_ready(queue).await?;
            answers::nothing()
        }
        Route::DeadHead => {
            let size = queues.counts(queue).await?.dead;
            let head = queues.dead_head(queue).await?.map_or_else(String::new, |id| id.to_string());
            value(
                StatusCode::OK,
                &to_value!({
                    "namespace": queue.namespace(),
                    "queue": queue.queue(),
                    "deadletter_size": size,
                    "deadletter_head": head,
                }),
            )
        }
        Route::Respawn => {
            let count = queues.respawn(queue, dead_limit(query)?, respawn_ttl_s(query)?).await?;
            json(StatusCode::OK, format!(r#"{{"msg":"respawned","count":{count}}}"#))
        }
        Route::DropDead => {
            queues.drop_dead(queue, dead_limit(query)?).await?;
            answers::nothing()
        }
        _ => error(StatusCode::NOT_FOUND, "api not found"),
    })
}

/// The queues of `q1,q2`, each once.
pub(super) fn consumed_queues(namespace: &str, list: &str) -> Result<Vec<QueueName>, Refused> {
    QueueName::check_namespace(namespace)?;
    let mut queues: Vec<QueueName> = Vec::new();
    for name in list.split(',').filter(|name| !name.is_empty()) {
        let queue = QueueName::new(namespace, name)?;
        if !queues.contains(&queue) {
            queues.push(queue);
        }
        if queues.len() > CONSUME_QUEUES_MAX {
            return Err("invalid queue name(s)".into());
        }
    }
    if queues.is_empty() {
        return Err("invalid queue name(s)".into());
    }
    Ok(queues)
}

fn new_jobs(
    queue: &QueueName,
    terms: PublishTerms,
    is_versioned: bool,
    attributes: Vec<(String, String)>,
    bodies: Vec<Bytes>,
) -> NewJobs {
    let PublishTerms { delay_s, ttl_s, tries } = terms;
    NewJobs { queue: queue.clone(), delay_s, ttl_s, tries, is_versioned, attributes, bodies }
}

/// Whether a job has a version, and its attributes, which only such a job has.
pub(super) type Versioned = (bool, Vec<(String, String)>);

/// What the headers say of a job's version and attributes. An attribute without a value is none.
pub(super) fn attributes(headers: &HeaderMap) -> Result<Versioned, &'static str> {
    let asks = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"yes");
    if !headers.get("enable-job-version").is_some_and(asks) {
        return Ok((false, Vec::new()));
    }
    let mut all: Vec<(String, String)> = Vec::new();
    for (name, value) in headers {
        // Names of headers are in lower case already.
        let Some(key) = name.as_str().strip_prefix("job-attr-").filter(|key| !key.is_empty()) else {
            continue;
        };
        let key = cut(key, ATTRIBUTE_KEY_MAX_BYTES);
        if value.is_empty() || all.iter().any(|(known, _)| known == key) {
            continue;
        }
        if all.len() == ATTRIBUTES_MAX {
            return Err(TOO_MANY_ATTRIBUTES);
        }
        let value = String::from_utf8_lossy(value.as_bytes());
        all.push((key.to_owned(), cut(&value, ATTRIBUTE_VALUE_MAX_BYTES).to_owned()));
    }
    Ok((true, all))
}

/// The first bytes, without a part of a character.
fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// The elements of an array, up to the one that is too much: the rest is passed over without being kept.
struct FirstJobs<'b>(Vec<&'b RawValue>);

impl<'de> Deserialize<'de> for FirstJobs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FirstJobsVisitor)
    }
}

struct FirstJobsVisitor;

impl<'de> Visitor<'de> for FirstJobsVisitor {
    type Value = FirstJobs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut jobs = Vec::new();
        while jobs.len() <= BULK_JOBS_MAX {
            match elements.next_element()? {
                Some(job) => jobs.push(job),
                None => return Ok(FirstJobs(jobs)),
            }
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FirstJobs(jobs))
    }
}

/// The jobs of a bulk call: the text of each element.
pub(super) fn bulk_bodies(body: &Bytes) -> Result<Vec<Bytes>, Refused> {
    let Ok(jobs) = serde_json::from_slice::<Option<FirstJobs<'_>>>(body) else {
        return Err("request body should be an array of objects".into());
    };
    let jobs = jobs.map(|FirstJobs(jobs)| jobs).unwrap_or_default();
    match jobs.len() {
        0 => return Err("no jobs".into()),
        count if count > BULK_JOBS_MAX => return Err("too many jobs".into()),
        _ => {}
    }
    if jobs.iter().any(|job| job.get().len() > BODY_MAX_BYTES) {
        return Err(Refused::new(StatusCode::PAYLOAD_TOO_LARGE, "job too large"));
    }
    Ok(jobs.into_iter().map(|job| body.slice_ref(job.get().as_bytes())).collect())
}

const _: () = assert!(ATTRIBUTE_VALUE_MAX_BYTES <= 255);
const TOO_MANY_ATTRIBUTES: &str = "too many attributes, cannot exceed 16";
const _: () = assert!(ATTRIBUTES_MAX == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_its_call_and_no_other_one() {
        let route = |method: &str, path: &str| {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            Route::of(&method, path).map(|(namespace, queue, route)| format!("{namespace} {queue} {route:?}"))
        };
        assert_eq!(route("GET", "/api/n/q1%2Cq2").as_deref(), Some("n q1,q2 Consume"));
        assert_eq!(route("PUT", "/api/n/q/job/x").as_deref(), Some("n q Replace(\"x\")"));
        assert_eq!(route("DELETE", "/api/n/q/deadletter").as_deref(), Some("n q DropDead"));
        for (method, path) in [
            ("POST", "/api/n/q"),
            ("GET", "/api/n"),
            ("GET", "/api/n/"),
            ("GET", "/api//q"),
            ("GET", "/api/n/q/"),
            ("GET", "/api/n/q/job/"),
            ("GET", "/api/n/q/peek/x"),
            ("PUT", "/api/n/q/peek"),
            ("GET", "/"),
            ("GET", "/metrics"),
        ] {
            assert_eq!(route(method, path), None, "{method} {path}");
        }
    }

    #[test]
    fn a_bulk_call_is_read_up_to_the_job_that_is_too_much() {
        let count = |text: String| bulk_bodies(&Bytes::from(text)).map(|bodies| bodies.len()).ok();
        let array = |jobs: usize| format!("[{}]", vec!["1"; jobs].join(","));
        assert_eq!((count(array(1)), count(array(64))), (Some(1), Some(64)));
        assert_eq!((count(array(0)), count(array(65)), count("{}".into())), (None, None, None));
        let many = array(100_000);
        let FirstJobs(jobs) = serde_json::from_str(&many).unwrap();
        assert_eq!(jobs.len(), 65);
        assert!(serde_json::from_str::<FirstJobs<'_>>("[1,2").is_err());
    }

    #[test]
    fn attributes_are_cut_to_their_bounds() {
        let mut headers = HeaderMap::new();
        headers.insert("job-attr-color", "red".parse().unwrap());
        assert_eq!(attributes(&headers), Ok((false, Vec::new())));
        headers.insert("enable-job-version", "yes".parse().unwrap());
        headers.insert("job-attr-none", "".parse().unwrap());
        for at in 1..16 {
            let name: http::HeaderName = format!("job-attr-{at:x<40}").parse().unwrap();
            headers.insert(name, "v".repeat(200).parse().unwrap());
        }
        let (is_versioned, found) = attributes(&headers).unwrap();
        assert!(is_versioned && found.len() == ATTRIBUTES_MAX, "{found:?}");
        assert!(found.contains(&("color".to_owned(), "red".to_owned())));
        assert!(found.iter().all(|(key, value)| key.len() <= 32 && value.len() <= 128));
        // One of them was left out, and nobody could say which one.
        headers.insert("job-attr-more", "x".parse().unwrap());
        assert_eq!(attributes(&headers), Err("too many attributes, cannot exceed 16"));
        assert_eq!(cut("aü", 2), "a");
    }
}
