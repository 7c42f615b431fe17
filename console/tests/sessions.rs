//! Who may see the console: sign-in, cookies, forged requests, keys that are taken away.

#![allow(clippy::unwrap_used)]

mod fixture;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fixture::{Browser, Keys, parts, start, until};
use http::request::Builder;
use http::{Method, Response};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use windfall_console::{Console, ConsoleOptions, Parts};
use windfall_contract::Clock;
use windfall_edge::{ByHead, Pages, Visitor};

/// What a console decides by the head of a request; none where the request passes on.
fn at_door(
    console: &Console,
    request: Builder,
    address: &str,
    is_tls: bool,
) -> Option<Response<bytes::Bytes>> {
    let (head, ()) = request.body(()).unwrap().into_parts();
    match console.by_head(&head, Visitor { address: address.parse().unwrap(), is_tls }) {
        ByHead::Answer(answer) => Some(answer),
        ByHead::Known { .. } => None,
    }
}

#[tokio::test]
async fn a_session_begins_with_a_key_and_ends_with_a_sign_out() {
    let running = start(ConsoleOptions::default()).await;
    let mut browser = Browser::new(&running);
    assert_eq!(browser.get("/console/api/session").await.status, 401);
    assert_eq!(browser.sign_in("wfk_nothing").await.status, 401);
    let stranger = browser.sign_in(&running.keys.foreign.text).await;
    assert_eq!((stranger.status, stranger.header("set-cookie")), (401, None), "a caller of another app");

    let begun = browser.sign_in(&running.keys.operate.text).await;
    let cookie = begun.header("set-cookie").unwrap();
    assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains("Secure") && !cookie.contains(&running.keys.operate.text), "{cookie}");
    let who = browser.get("/console/api/session").await.json();
    assert_eq!((&who["name"], &who["roles"]), (&json!("operator"), &json!(["observe", "operate"])));
    assert!(!who.to_string().contains(&running.keys.operate.text), "the key never comes back");
    assert_eq!(running.console.sessions(), 1);

    let out =
        browser.send("DELETE", "/console/api/session", &[("x-windfall-csrf", &browser.csrf)], None).await;
    assert_eq!((out.status, out.header("set-cookie").unwrap().contains("Max-Age=0")), (200, true));
    assert_eq!(browser.get("/console/api/session").await.status, 401);
    assert_eq!(running.console.sessions(), 0);
}

#[tokio::test]
async fn behind_tls_the_cookie_is_secure_and_a_plain_one_is_not_taken() {
    let running = start(ConsoleOptions { behind_tls: true, ..Default::default() }).await;
    let mut browser = Browser::new(&running);
    let cookie = browser.sign_in(&running.keys.operate.text).await.header("set-cookie").unwrap().to_owned();
    assert!(
        cookie.starts_with("__Host-") && cookie.contains("; Secure") && cookie.contains("; Path=/;"),
        "{cookie}"
    );
    assert_eq!(browser.get("/console/api/session").await.status, 200);
    browser.cookie = browser.cookie.trim_start_matches("__Host-").to_owned();
    assert_eq!(browser.get("/console/api/session").await.status, 401);
}

#[tokio::test]
async fn a_forged_request_reaches_no_service() {
    let running = start(ConsoleOptions::default()).await;
    let browser = Browser::signed_in(&running, &running.keys.front).await;
    let other = Browser::signed_in(&running, &running.keys.front).await;
    let path = "/console/api/call/v1/tokens/list";
    let proof = ("x-windfall-csrf", browser.csrf.as_str());
    for (headers, named) in [
        (&[][..], "x-windfall-csrf"),
        (&[("x-windfall-csrf", other.csrf.as_str())], "x-windfall-csrf"),
        (&[proof, ("sec-fetch-site", "cross-site")], "another site"),
        (&[proof, ("origin", "https://evil.example.com")], "another origin"),
    ] {
        let refused = browser.send("POST", path, headers, Some("{}")).await;
        assert_eq!(refused.status, 403, "{named}");
        assert!(refused.message().contains(named), "{named}: {}", refused.message());
    }
    let out = browser.send("DELETE", "/console/api/session", &[], None).await;
    assert_eq!(out.status, 403, "nobody else signs a user out");
    assert!(running.fake.0.lock().is_empty());
    let origin = format!("http://{}", browser.address);
    let own = [proof, ("origin", &origin), ("sec-fetch-site", "same-origin"), ("x-windfall-user", "42")];
    assert_eq!(browser.send("POST", path, &own, Some("{}")).await.status, 200);
}

#[tokio::test]
async fn a_form_cannot_sign_in() {
    let running = start(ConsoleOptions::default()).await;
    let browser = Browser::new(&running);
    let key = &running.keys.operate.text;
    let bearer = format!("Bearer {key}");
    // A user name and a password in an address come as this.
    let basic = format!("Basic {}", STANDARD.encode(format!("Bearer:{key}")));
    let by_query = format!("/console/api/session?key={key}&authorization=Bearer%20{key}");
    let (json, form) = (json!({ "key": key }).to_string(), format!("key={key}&authorization={bearer}"));
    let fields = ["text/plain", "application/x-www-form-urlencoded", "application/json"];
    for (kind, path, body, header) in [
        (fields[0], "/console/api/session", &json, None),
        (fields[1], "/console/api/session", &form, None),
        (fields[2], "/console/api/session", &json, None),
        (fields[0], &by_query, &json, None),
        (fields[0], "/console/api/session", &json, Some(&basic)),
        (fields[0], "/console/api/session", &json, Some(&bearer)),
    ] {
        let length = body.len().to_string();
        let mut headers = vec![("content-type", kind), ("content-length", length.as_str())];
        headers.extend(header.map(|value| ("authorization", value.as_str())));
        let answered = browser.send_raw("POST", path, &headers, body).await;
        // The same request with what no form can set.
        let is_set = header == Some(&bearer);
        let expected = if is_set { (200, true) } else { (400, false) };
        assert_eq!(
            (answered.status, answered.header("set-cookie").is_some()),
            expected,
            "{path} {headers:?}"
        );
    }
    assert_eq!(running.console.sessions(), 1);
    let twice = [("authorization", bearer.as_str()), ("authorization", "Bearer x")];
    assert_eq!(browser.send("POST", "/console/api/session", &twice, None).await.status, 400);
}

#[tokio::test]
async fn an_open_page_that_nobody_uses_is_signed_out() {
    let (folder, keys) = (tempfile::tempdir().unwrap(), Keys::mint());
    let now_ms = Arc::new(AtomicU64::new(1_000_000));
    let own = Arc::clone(&now_ms);
    let parts = Parts { clock: Clock::from_unix_ms(move || own.load(SeqCst)), ..parts(folder.path(), &keys) };
    let console = Console::open(&ConsoleOptions { idle_s: 60, ..Default::default() }, parts).unwrap();
    let door = |request| at_door(&console, request, "127.0.0.1:1", false);
    let bearer = format!("Bearer {}", keys.operate.text);
    let begun = door(http::Request::post("/console/api/session").header("authorization", bearer)).unwrap();
    let cookie = begun.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let get = |path: &str| {
        now_ms.fetch_add(1_000, SeqCst);
        let request = http::Request::builder().method(Method::GET).uri(format!("/console/api/{path}"));
        door(request.header("cookie", &cookie)).map_or(200, |answer| answer.status().as_u16())
    };
    // A person was there at the 30th second; the page asks each second by itself.
    for second in 1..90 {
        let path = ["flow", "history", "rules/status"][second % 3];
        assert_eq!(get(if second == 30 { "rules" } else { path }), 200, "second {second}");
    }
    assert_eq!(get("flow"), 401);
}

#[tokio::test]
async fn nothing_of_a_strangers_body_is_read() {
    let running = start(ConsoleOptions::default()).await;
    let stranger = Browser::new(&running);
    // Who waits for leave to send is answered without it.
    let headers = [("content-length", "3000000"), ("expect", "100-continue")];
    for (method, path, status) in [
        ("POST", "/console/api/session", 400),
        ("POST", "/console/api/rules/set", 401),
        ("POST", "/console/api/call/v1/tokens/list", 401),
        ("POST", "/console/", 405),
        ("GET", "/console/", 200),
        ("GET", "/console/nothing", 404),
    ] {
        assert_eq!(stranger.send(method, path, &headers, None).await.status, status, "{method} {path}");
    }
    // Neither is one without the session's proof, nor at a path that takes none.
    let browser = Browser::signed_in(&running, &running.keys.operate).await;
    assert_eq!(browser.send("POST", "/console/api/rules/check", &headers, None).await.status, 403);
    let proved = [headers[0], headers[1], ("x-windfall-csrf", browser.csrf.as_str())];
    assert_eq!(browser.send("POST", "/console/api/call/v1/bonuses/send", &proved, None).await.status, 404);
}

#[tokio::test]
async fn whoever_guesses_keys_has_to_wait_and_keeps_nobody_out() {
    let running = start(ConsoleOptions { attempts_per_min: 3, ..Default::default() }).await;
    let mut browser = Browser::new(&running);
    for _ in 0..3 {
        assert_eq!(browser.sign_in("wfk_wrong").await.status, 401);
    }
    let refused = browser.sign_in("wfk_wrong").await;
    assert_eq!(refused.status, 429);
    assert!(refused.message().contains("try again in"), "{}", refused.message());
    assert_eq!(browser.sign_in(&running.keys.operate.text).await.status, 200, "the right key passes");
}

#[tokio::test]
async fn a_new_sign_in_ends_the_session_before_it() {
    let running = start(ConsoleOptions::default()).await;
    let mut browser = Browser::signed_in(&running, &running.keys.operate).await;
    let before = browser.cookie.clone();
    assert_eq!(browser.sign_in(&running.keys.front.text).await.status, 200);
    assert_eq!(running.console.sessions(), 1);
    browser.cookie = before;
    assert_eq!(browser.get("/console/api/session").await.status, 401);
}

#[tokio::test]
async fn a_key_that_no_page_is_for_cannot_sign_in() {
    let running = start(ConsoleOptions::default()).await;
    let refused = Browser::new(&running).sign_in(&running.keys.sender.text).await;
    assert_eq!((refused.status, running.console.sessions()), (403, 0));
    assert!(refused.message().contains("no page"), "{}", refused.message());
}

#[tokio::test]
async fn a_key_does_not_come_from_another_machine_in_the_clear() {
    let running = start(ConsoleOptions::default()).await;
    let allowing = start(ConsoleOptions { plaintext: true, ..Default::default() }).await;
    let proxied = start(ConsoleOptions { behind_tls: true, ..Default::default() }).await;
    let sign_in = |of: &fixture::Running, is_tls| {
        let bearer = format!("Bearer {}", of.keys.operate.text);
        let request = http::Request::post("/console/api/session").header("authorization", bearer);
        at_door(&of.console, request, "192.0.2.1:1", is_tls).unwrap().status().as_u16()
    };
    assert_eq!((sign_in(&running, false), sign_in(&running, true)), (403, 200));
    assert_eq!((sign_in(&allowing, false), sign_in(&proxied, false)), (200, 200));
}

#[tokio::test]
async fn a_session_ends_when_its_key_leaves_the_access_file() {
    let running = start(ConsoleOptions::default()).await;
    let browser = Browser::signed_in(&running, &running.keys.operate).await;
    let front = Browser::signed_in(&running, &running.keys.front).await;
    let text = running.keys.text().replace(&running.keys.operate.sha256, &"0".repeat(64));
    std::fs::write(running.folder.path().join("access.toml"), text).unwrap();
    until("the session of a key that is gone ends", async || {
        browser.get("/console/api/session").await.status == 401
    })
    .await;
    assert_eq!(front.get("/console/api/session").await.status, 200);
    assert_eq!(running.console.sessions(), 1);
}
