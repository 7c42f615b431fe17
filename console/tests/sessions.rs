//! Who may see the console: sign-in, cookies, forged requests, keys that are taken away.

#![allow(clippy::unwrap_used)]

mod fixture;

use fixture::{Browser, start, until};
use serde_json::json;
use windfall_console::ConsoleOptions;
use windfall_edge::{ByHead, Pages, Visitor};

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
    assert_eq!((&who["name"], &who["roles"]), (&json!("operator"), &json!(["operate"])));
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
    for (kind, body) in [
        ("text/plain", json!({ "key": key }).to_string()),
        ("application/x-www-form-urlencoded", format!("key={key}")),
    ] {
        let length = body.len().to_string();
        let headers = [("content-type", kind), ("content-length", length.as_str())];
        let refused = browser.send_raw("POST", "/console/api/session", &headers, &body).await;
        assert_eq!((refused.status, refused.header("set-cookie")), (400, None), "{kind}");
    }
    assert_eq!(running.console.sessions(), 0);
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
        let (head, ()) = request.body(()).unwrap().into_parts();
        let visitor = Visitor { address: "192.0.2.1:1".parse().unwrap(), is_tls };
        match of.console.by_head(&head, visitor) {
            ByHead::Answer(answer) => answer.status().as_u16(),
            known @ ByHead::Known { .. } => panic!("{known:?}"),
        }
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
