//! End users by signed assertion: what is believed, and what is not.

use crate::fixture::http::{JSON, Reply, bearer, channel, request, with};
use crate::fixture::jwt::{AUDIENCE, ISSUER, Issuer, NOW_S, claims, header, signed_part};
use crate::fixture::{Running, options, start, until};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use ring::hmac;
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tonic::Code;
use windfall_contract::Clock;
use windfall_proto::v1::tokens_client::TokensClient;

async fn with_key_file(issuer: &Issuer, more: &str) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jwks.json");
    fs::write(&path, issuer.jwks().to_string()).unwrap();
    let users = format!(
        "[users.jwt]\njwks_file = \"{}\"\nissuer = \"{ISSUER}\"\naudience = \"{AUDIENCE}\"\n{more}",
        path.display()
    );
    start(options(), &users, Clock::from_unix_ms(|| NOW_S * 1_000)).await
}

async fn list(running: &Running, token: &str) -> Reply {
    let key = bearer(&running.keys.verify.text);
    let headers = [("authorization", key.as_str()), JSON, ("x-windfall-user-token", token)];
    request(running.server.address(), "POST", "/v1/tokens/list", &headers, "{}").await
}

fn changed(change: impl FnOnce(&mut Value)) -> Value {
    let mut claims = claims();
    change(&mut claims);
    claims
}

#[tokio::test]
async fn a_good_token_of_each_algorithm_names_its_user() {
    let issuer = Issuer::new();
    let running = with_key_file(&issuer, "").await;
    for (algorithm, key) in [("RS256", "rsa"), ("ES256", "ec"), ("EdDSA", "ed")] {
        let token = issuer.sign(&header(algorithm, key), &claims());
        assert_eq!(list(&running, &token).await.json()["next_page_token"], "42", "{algorithm}");
    }
    let as_number = issuer.sign(&header("EdDSA", "ed"), &changed(|claims| claims["sub"] = json!(43)));
    assert_eq!(list(&running, &as_number).await.json()["next_page_token"], "43");
    let among = changed(|claims| claims["aud"] = json!(["other", AUDIENCE]));
    assert_eq!(list(&running, &issuer.sign(&header("EdDSA", "ed"), &among)).await.status, 200);
    let without_id = issuer.sign(&json!({ "alg": "ES256" }), &claims());
    assert_eq!(list(&running, &without_id).await.status, 200);
}

#[tokio::test]
async fn what_is_not_a_good_token_names_nobody_on_either_face() {
    let issuer = Issuer::new();
    let running = with_key_file(&issuer, "").await;
    let good = issuer.sign(&header("RS256", "rsa"), &claims());
    let sign = |claims: Value| issuer.sign(&header("EdDSA", "ed"), &claims);
    let by_shared_secret = |algorithm: &str, key: &str, secret: &[u8]| {
        let signed = signed_part(&header(algorithm, key), &claims());
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
        format!("{signed}.{}", B64.encode(tag.as_ref()))
    };
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let other_claims = changed(|claims| claims["sub"] = json!("43"));
    let cases = [
        ("expired", sign(changed(|claims| claims["exp"] = json!(NOW_S - 31))), "expired"),
        ("no end", sign(changed(|claims| drop(claims.as_object_mut().unwrap().remove("exp")))), "expired"),
        ("not yet", sign(changed(|claims| claims["nbf"] = json!(NOW_S + 31))), "not valid yet"),
        ("other issuer", sign(changed(|claims| claims["iss"] = json!("https://evil.test"))), "issuer"),
        ("no issuer", sign(changed(|claims| drop(claims.as_object_mut().unwrap().remove("iss")))), "issuer"),
        (
            "issuer among others",
            sign(changed(|claims| claims["iss"] = json!([ISSUER, "https://evil.test"]))),
            "no signed",
        ),
        ("other audience", sign(changed(|claims| claims["aud"] = json!("other"))), "audience"),
        ("no number", sign(changed(|claims| claims["sub"] = json!("alice"))), "no user"),
        ("a broken number", sign(changed(|claims| claims["sub"] = json!(4.2))), "no user"),
        ("zero", sign(changed(|claims| claims["sub"] = json!("0"))), "no user"),
        ("no user", sign(changed(|claims| drop(claims.as_object_mut().unwrap().remove("sub")))), "no user"),
        ("none", format!("{}.", signed_part(&header("none", "rsa"), &claims())), "algorithm"),
        ("None", format!("{}.{signature}", signed_part(&header("None", "rsa"), &claims())), "algorithm"),
        ("public key as secret", by_shared_secret("HS256", "rsa", &issuer.rsa_public_bytes()), "algorithm"),
        ("a set's shared secret", by_shared_secret("HS256", "shared", b"secret"), "algorithm"),
        ("RS256 over a secret", by_shared_secret("RS256", "shared", b"secret"), "not known"),
        ("unknown key", issuer.sign(&header("EdDSA", "gone"), &claims()), "not known"),
        ("another kind of key", issuer.sign(&header("RS256", "ed"), &claims()), "not known"),
        ("not taken here", issuer.sign(&header("PS256", "rsa"), &claims()), "algorithm"),
        (
            "other claims",
            format!("{}.{signature}", signed_part(&header("RS256", "rsa"), &other_claims)),
            "signature",
        ),
        ("no signature", format!("{signed}."), "signature"),
        (
            "an extension",
            issuer.sign(&json!({ "alg": "EdDSA", "kid": "ed", "crit": ["b64"] }), &claims()),
            "no signed",
        ),
        ("two parts", signed.to_owned(), "no signed"),
        ("four parts", format!("{good}.x"), "no signed"),
        ("padded", format!("{good}=="), "no signed"),
        ("no token", "x".to_owned(), "no signed"),
        ("nothing", String::new(), "no signed"),
        ("too long", format!("{good}{}", "A".repeat(9_000)), "no signed"),
    ];
    let channel = channel(running.server.address()).await;
    let key = bearer(&running.keys.verify.text);
    for (what, token, words) in cases {
        let reply = list(&running, &token).await;
        assert_eq!((reply.status, reply.code().as_str()), (401, "UNAUTHENTICATED"), "{what} {reply:?}");
        let message = reply.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(words), "{what}: {message}");
        assert!(token.len() < 8 || !message.contains(&token), "{what}: repeats the token");
        let headers = [("authorization", key.as_str()), ("x-windfall-user-token", token.as_str())];
        let error = TokensClient::new(channel.clone()).list_tokens(with(Default::default(), &headers)).await;
        assert_eq!(error.unwrap_err().code(), Code::Unauthenticated, "{what}");
    }
    assert!(running.fake.calls.lock().is_empty());
    assert_eq!(list(&running, &good).await.status, 200);
}

#[tokio::test]
async fn a_user_token_where_no_issuer_is_configured_is_refused() {
    let running = start(options(), "", Clock::system()).await;
    let token = Issuer::new().sign(&header("EdDSA", "ed"), &claims());
    assert_eq!(list(&running, &token).await.status, 401);
}

/// Serves whatever key set is set, and counts how often it is asked. Empty: it hangs up.
async fn key_server() -> (String, Arc<AtomicUsize>, Arc<parking_lot::Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/jwks", listener.local_addr().unwrap());
    let (asked, body) = (Arc::new(AtomicUsize::new(0)), Arc::new(parking_lot::Mutex::new(String::new())));
    let (count, answer) = (Arc::clone(&asked), Arc::clone(&body));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let _head = stream.read(&mut head).await;
            count.fetch_add(1, SeqCst);
            let text = answer.lock().clone();
            let _written = stream.write_all(text.as_bytes()).await;
        }
    });
    (url, asked, body)
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn keys_by_address_are_fetched_when_needed_and_never_guessed() {
    let (url, asked, served) = key_server().await;
    let now_s = Arc::new(AtomicU64::new(NOW_S));
    let clock = Arc::clone(&now_s);
    let users =
        format!("[users.jwt]\njwks_url = \"{url}\"\nissuer = \"{ISSUER}\"\naudience = \"{AUDIENCE}\"\n");
    let running = start(options(), &users, Clock::from_unix_ms(move || clock.load(SeqCst) * 1_000)).await;
    let issuer = Issuer::new();
    let token = issuer.sign(&header("EdDSA", "ed"), &claims());

    // No keys: nobody is let through, and nobody is told that the token is wrong.
    for answer in ["", "HTTP/1.1 302 Found\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n", &ok("{}")] {
        *served.lock() = answer.to_owned();
        now_s.fetch_add(30, SeqCst);
        let reply = list(&running, &token).await;
        assert_eq!((reply.status, reply.code().as_str()), (503, "UNAVAILABLE"), "{reply:?}");
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    assert_eq!(asked.load(SeqCst), 3);
    *served.lock() = ok(&issuer.jwks().to_string());
    assert_eq!(list(&running, &token).await.status, 503, "asked again within 30 s");
    now_s.fetch_add(30, SeqCst);
    assert_eq!(list(&running, &token).await.status, 200);
    assert_eq!(asked.load(SeqCst), 4);

    // Unknown keys, however many, make us look once in 30 s.
    now_s.fetch_add(30, SeqCst);
    for number in 0..20 {
        let unknown = issuer.sign(&header("EdDSA", &format!("gone-{number}")), &claims());
        assert_eq!(list(&running, &unknown).await.status, 401);
    }
    assert_eq!(asked.load(SeqCst), 5);

    // The address is away: known keys go on, of an unknown one nobody knows.
    *served.lock() = String::new();
    now_s.fetch_add(30, SeqCst);
    let unknown = issuer.sign(&header("EdDSA", "new"), &claims());
    assert_eq!(list(&running, &unknown).await.status, 503);
    assert_eq!(list(&running, &token).await.status, 200);
    assert_eq!(running.access.user_key_fetches(), (2, 4));
    assert_eq!(running.metric("windfall_edge_user_key_fetches_total{result=\"failed\"}"), 4.0);
}

#[tokio::test]
async fn an_endless_key_set_is_cut_off() {
    let (url, _, served) = key_server().await;
    *served.lock() = ok(&" ".repeat(300 << 10));
    let users =
        format!("[users.jwt]\njwks_url = \"{url}\"\nissuer = \"{ISSUER}\"\naudience = \"{AUDIENCE}\"\n");
    let running = start(options(), &users, Clock::from_unix_ms(|| NOW_S * 1_000)).await;
    let token = Issuer::new().sign(&header("EdDSA", "ed"), &claims());
    assert_eq!(list(&running, &token).await.status, 503);
}

/// A key set that comes by the byte is given up after seconds, and nobody else waits for it.
#[tokio::test]
async fn a_key_set_that_drips_is_given_up_and_holds_nobody_else_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/jwks", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let dripping = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        count.fetch_add(1, SeqCst);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 200000\r\n\r\n").await.unwrap();
        // Until the other side has had enough.
        while stream.write_all(b" ").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    let users =
        format!("[users.jwt]\njwks_url = \"{url}\"\nissuer = \"{ISSUER}\"\naudience = \"{AUDIENCE}\"\n");
    let running = Arc::new(start(options(), &users, Clock::from_unix_ms(|| NOW_S * 1_000)).await);
    let token = Issuer::new().sign(&header("EdDSA", "ed"), &claims());
    let waiting = tokio::spawn({
        let running = Arc::clone(&running);
        async move { list(&running, &token).await.status }
    });
    until("the keys are asked for", async || asked.load(SeqCst) == 1).await;
    // Callers whose calls need no such keys are answered while it drips.
    let key = bearer(&running.keys.send.text);
    for _ in 0..20 {
        let headers = [("authorization", key.as_str())];
        let answer = request(running.server.address(), "GET", "/openapi.json", &headers, "").await;
        assert_eq!(answer.status, 200);
    }
    assert_eq!(waiting.await.unwrap(), 503);
    dripping.await.unwrap();
    assert_eq!(running.access.user_key_fetches(), (0, 1));
}
