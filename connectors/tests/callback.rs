//! Timers over HTTP: signed, to allowed addresses alone, and what each answer means.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use support::{SECRET, answering, by_hand, http_options, read_request};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use windfall_connectors::signature::{HEADER, HEADER_V2, SKEW_MS, Signed, SigningKey, verify, verify_v2};
use windfall_connectors::{HttpCallback, HttpOptions};
use windfall_contract::Clock;
use windfall_contract::due::{Fired, Firing, Target, TaskKey};
use windfall_proto::v1::FiredTimer;

fn callback(folder: &Path, url: &str) -> HttpCallback {
    HttpCallback::new("hook", &http_options(folder, url), 4, Clock::system()).unwrap()
}

fn firing(nth: u32) -> Firing {
    Firing {
        id: format!("0001-01c3a2f0-{nth:08x}").parse().unwrap(),
        tenant: "calls".into(),
        key: Some(TaskKey::new(b"call-7").unwrap()),
        due_ms: 1_795_345_200_000,
        attempt: 2,
        payload: Bytes::from_static(b"\x00\xffhang up"),
    }
}

#[tokio::test]
async fn a_timer_is_posted_as_signed_json() {
    let folder = tempfile::tempdir().unwrap();
    let (told, mut asked) = mpsc::channel(8);
    let server = by_hand(move |mut stream| {
        let told = told.clone();
        async move {
            while let Some(request) = read_request(&mut stream).await {
                told.send(request).await.unwrap();
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            }
        }
    })
    .await;
    let target = callback(folder.path(), &format!("http://{}/fired?from=windfall", server.address));
    assert_eq!(target.fire(vec![firing(7)]).await, [Fired::Done]);
    let request = asked.recv().await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /fired?from=windfall HTTP/1.1\r\n"), "{head}");
    let header = |name: &str| {
        let mut found = head.lines().filter_map(|line| line.strip_prefix(&format!("{name}: ")));
        found.next().unwrap_or_else(|| panic!("{name}: {head}"))
    };
    assert_eq!(header("idempotency-key"), "0001-01c3a2f0-00000007");
    assert_eq!(header("content-type"), "application/json");
    let keys = [SigningKey::new("k1", SECRET.as_bytes()).unwrap()];
    let now_ms = Clock::system().wall_ms();
    let (path, signature) = ("/fired?from=windfall", header(HEADER));
    assert_eq!(verify(&keys, signature, "POST", path, body.as_bytes(), now_ms, SKEW_MS), Ok(()));
    let (host, idempotency_key) = (server.address.to_string(), "0001-01c3a2f0-00000007");
    let signed =
        Signed { method: "POST", host: &host, path_and_query: path, idempotency_key, body: body.as_bytes() };
    assert_eq!(verify_v2(&keys, header(HEADER_V2), &signed, now_ms, SKEW_MS), Ok(()));
    let fired: FiredTimer = serde_json::from_str(body).unwrap();
    assert_eq!(fired, firing(7).to_wire());
    let json: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!((&json["due_ms"], &json["payload"]), (&"1795345200000".into(), &"AP9oYW5nIHVw".into()));
}

#[tokio::test]
async fn each_answer_decides_about_its_own_timer() {
    let folder = tempfile::tempdir().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let server = by_hand(move |mut stream| {
        let calls = Arc::clone(&calls);
        async move {
            while let Some(request) = read_request(&mut stream).await {
                calls.fetch_add(1, SeqCst);
                let nth = request.split("0001-01c3a2f0-0000000").nth(1).unwrap().as_bytes()[0] - b'0';
                let line = ["200 OK", "429 Slow", "500 Oh", "404 None", "302 Found"][usize::from(nth)];
                let answer = format!("HTTP/1.1 {line}\r\nlocation: /else\r\ncontent-length: 2\r\n\r\nno");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let target = callback(folder.path(), &format!("http://{}/", server.address));
    let fates = target.fire((0..5).map(firing).collect()).await;
    let expected = [
        Fired::Done,
        Fired::Busy("HTTP 429: no".into()),
        Fired::Failed("HTTP 500: no".into()),
        Fired::Refused("HTTP 404: no".into()),
        Fired::Failed("HTTP 302: no; a redirect is not followed".into()),
    ];
    assert_eq!(fates, expected);
}

#[tokio::test]
async fn after_silence_nobody_knows_and_a_host_that_is_not_there_has_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let silent = by_hand(|mut stream| async move {
        read_request(&mut stream).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
    })
    .await;
    let target = callback(folder.path(), &format!("http://{}/", silent.address));
    let fates = target.fire(vec![firing(1)]).await;
    assert!(matches!(&fates[0], Fired::Unknown(why) if why.contains("within")), "{fates:?}");
    let broken = by_hand(|mut stream| async move {
        read_request(&mut stream).await;
    })
    .await;
    let target = callback(folder.path(), &format!("http://{}/", broken.address));
    assert!(matches!(&target.fire(vec![firing(1)]).await[..], [Fired::Unknown(_)]));
    // Nobody listens on port 1.
    let target = callback(folder.path(), "http://127.0.0.1:1/");
    let fates = target.fire(vec![firing(1), firing(2)]).await;
    assert!(fates.iter().all(|fate| matches!(fate, Fired::Away(_))), "{fates:?}");
}

#[tokio::test]
async fn a_large_batch_behind_a_silent_host_ends_in_twice_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let silent = by_hand(|mut stream| async move {
        read_request(&mut stream).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
    })
    .await;
    let target = callback(folder.path(), &format!("http://{}/", silent.address));
    let firing_all = target.fire((0..100).map(firing).collect());
    let fates = tokio::time::timeout(Duration::from_secs(30), firing_all).await.unwrap();
    let failed = fates.iter().filter(|fate| matches!(fate, Fired::Unknown(_))).count();
    let busy = fates.iter().filter(|fate| matches!(fate, Fired::Busy(_))).count();
    assert!(failed >= 4 && failed + busy == 100 && busy > 0, "{failed} {busy}");
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_not_connected_to() {
    let folder = tempfile::tempdir().unwrap();
    let server = answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let url = format!("http://localhost:{}/", server.address.port());
    // The name is listed, and the address that it leads to is not.
    let options = HttpOptions { allow: vec!["localhost".into()], ..http_options(folder.path(), &url) };
    let target = HttpCallback::new("hook", &options, 4, Clock::system()).unwrap();
    let fates = target.fire(vec![firing(1)]).await;
    assert!(matches!(&fates[0], Fired::Away(why) if why.contains("not allowed")), "{fates:?}");
}

#[test]
fn a_url_with_a_place_is_none_of_a_callback() {
    let folder = tempfile::tempdir().unwrap();
    let options = http_options(folder.path(), "http://127.0.0.1/{scene}");
    let refused = HttpCallback::new("hook", &options, 4, Clock::system()).err().unwrap();
    assert!(refused.to_string().contains("place in braces"), "{refused}");
}
