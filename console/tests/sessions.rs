//! Who may see the console: sign-in, cookies, forged requests, keys that are taken away.

#![allow(clippy::unwrap_used)]

mod fixture;

use fixture::{Browser, start, until};
use serde_json::json;
use windfall_console::ConsoleOptions;

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
    let headers = [("content-type", "text/plain"), ("content-length", "0")];
    assert_eq!(browser.send("POST", "/console/api/session", &headers, None).await.status, 400);
}

#[tokio::test]
async fn whoever_guesses_keys_has_to_wait() {
    let running = start(ConsoleOptions { attempts_per_min: 3, ..Default::default() }).await;
    let mut browser = Browser::new(&running);
    for _ in 0..3 {
        assert_eq!(browser.sign_in("wfk_wrong").await.status, 401);
    }
    let refused = browser.sign_in(&running.keys.operate.text).await;
    assert_eq!(refused.status, 429);
    assert!(refused.message().contains("try again in"), "{}", refused.message());
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
