//! Requests of task queues over HTTP: paths, queries, headers and bodies.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;
use std::fmt::Write as _;
use windfall_contract::task_queue::{BODY_MAX_BYTES, QueueName};
use windfall_task_queue::fuzzing;

const METHODS: [Method; 4] = [Method::GET, Method::PUT, Method::DELETE, Method::POST];
const BULK_JOBS_MAX: usize = 64;
const CONSUME_QUEUES_MAX: usize = 32;
const CONSUME_COUNT_MAX: usize = 100;
const ATTRIBUTES_MAX: usize = 16;

/// The first byte says what the others are a part of.
pub fn request(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    match kind % 6 {
        0 => path(METHODS[usize::from(kind / 6) % METHODS.len()].clone(), &text),
        1 => query(&text),
        2 => bulk(&Bytes::copy_from_slice(rest)),
        3 => headers(rest),
        4 => admin_path(&text),
        _ => queues(&text),
    }
}

/// Every byte written as `%41`.
fn coded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut coded, byte| {
        // Writing to a string does not fail.
        write!(coded, "%{byte:02X}").ok();
        coded
    })
}

/// Whoever codes more of a path than they must, reaches the same call, and no part becomes two.
fn path(method: Method, path: &str) {
    let route = fuzzing::route(&method, path);
    let Some(parts) = path.strip_prefix("/api/") else {
        assert_eq!(route, None, "{path}");
        return;
    };
    let parts: Vec<String> = parts.split('/').map(|part| fuzzing::decode(part, false)).collect();
    let again: Vec<String> = parts.iter().map(|part| coded(part)).collect();
    assert_eq!(fuzzing::route(&method, &format!("/api/{}", again.join("/"))), route, "{path}");
    if let Some((namespace, queue, _)) = route {
        assert!(!namespace.is_empty() && !queue.is_empty() && parts.len() <= 4, "{path}");
        assert_eq!([namespace, queue], parts[..2], "{path}");
    }
}

/// What is coded is read as it was; limits hold, and terms that are written plainly are read again as the same.
fn query(text: &str) {
    for is_query in [false, true] {
        let read = fuzzing::decode(text, is_query);
        assert!(read.len() <= text.len(), "{text}");
        assert_eq!(fuzzing::decode(&coded(&read), is_query), read, "{text}");
    }
    let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (fuzzing::decode(name, true), fuzzing::decode(value, true))
    });
    let pairs: Vec<(String, String)> = pairs.take(32).collect();
    let whole = pairs.iter().map(|(name, value)| format!("{}={}", coded(name), coded(value)));
    let whole = whole.collect::<Vec<_>>().join("&");
    let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
    let values = fuzzing::pairs(text, &names);
    assert_eq!(fuzzing::pairs(&whole, &names), values, "{text}");
    for (name, value) in names.iter().zip(values) {
        let first = pairs.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
        assert_eq!(value, first, "{name} of {text}");
    }
    if let Some(terms @ (delay_s, ttl_s, tries)) = fuzzing::publish_terms(text) {
        assert!(tries > 0 && (ttl_s == 0 || ttl_s >= delay_s), "{terms:?} of {text}");
        let plain = format!("delay={delay_s}&ttl={ttl_s}&tries={tries}");
        assert_eq!(fuzzing::publish_terms(&plain), Some(terms), "{text}");
    }
    if let Some(terms @ (ttr_s, timeout_s, count)) = fuzzing::consume_terms(text) {
        assert!((1..=CONSUME_COUNT_MAX).contains(&count), "{terms:?} of {text}");
        let plain = format!("ttr={ttr_s}&timeout={timeout_s}&count={count}");
        assert_eq!(fuzzing::consume_terms(&plain), Some(terms), "{text}");
    }
}

/// The jobs of a body of several are the elements of one array, byte for byte, and no more of them than are allowed.
fn bulk(body: &Bytes) {
    let Some(jobs) = fuzzing::bulk_bodies(body) else { return };
    assert!((1..=BULK_JOBS_MAX).contains(&jobs.len()));
    assert!(jobs.iter().all(|job| job.len() <= BODY_MAX_BYTES));
    let array = Bytes::from([b"[", &jobs.join(&b","[..])[..], b"]"].concat());
    assert_eq!(fuzzing::bulk_bodies(&array).as_ref(), Some(&jobs), "{body:?}");
    if let Ok(whole) = serde_json::from_slice::<Vec<Value>>(body) {
        let parsed: Result<Vec<Value>, _> = jobs.iter().map(|job| serde_json::from_slice(job)).collect();
        assert_eq!(parsed.ok(), Some(whole), "{body:?}");
    }
}

/// Lines of a name, a colon and a value: attributes are few, short and each there once.
fn headers(lines: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n').take(64) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().and_then(|name| HeaderName::from_bytes(name).ok());
        let value = parts.next().and_then(|value| HeaderValue::from_bytes(value).ok());
        if let (Some(name), Some(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let Some((is_versioned, attributes)) = fuzzing::attributes(&headers) else { return };
    assert!(is_versioned || attributes.is_empty());
    assert!(attributes.len() <= ATTRIBUTES_MAX);
    for (nth, (key, value)) in attributes.iter().enumerate() {
        assert!((1..=32).contains(&key.len()) && (1..=128).contains(&value.len()), "{key}: {value}");
        assert!(attributes[..nth].iter().all(|(earlier, _)| earlier != key), "{key} is there twice");
    }
}

/// The token that a path of the admin API names is never logged.
fn admin_path(path: &str) {
    let logged = fuzzing::logged_path(path);
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    if let [first, namespace, _token, ..] = parts[..]
        && fuzzing::decode(first, false) == "token"
    {
        assert_eq!(logged, format!("/token/{namespace}/…"), "{path}");
    } else {
        assert_eq!(logged, path);
    }
}

/// A namespace, and after a line's end queues: each is one of the namespace, and there once.
fn queues(text: &str) {
    let (namespace, list) = text.split_once('\n').unwrap_or((text, ""));
    let Some(queues) = fuzzing::consumed_queues(namespace, list) else { return };
    assert!((1..=CONSUME_QUEUES_MAX).contains(&queues.len()), "{text}");
    for (nth, queue) in queues.iter().enumerate() {
        assert!(
            queue.namespace() == namespace && list.split(',').any(|name| name == queue.queue()),
            "{text}"
        );
        assert_eq!(QueueName::parse(queue.as_str()).as_ref(), Ok(queue), "{text}");
        assert!(!queues[..nth].contains(queue), "{text}");
    }
}
