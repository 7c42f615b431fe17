//! Requests that a front and a back could read in two ways: each has one meaning here, or none.

use super::{Target, WALLET, WITHDRAW, code};
use serde_json::json;
use windfall_tests::Answer;
use windfall_tests::raw::exchange;

const OWNER: i64 = 42;
const THIEF: i64 = 43;
/// The last on a connection: makes the server close it.
const GOODBYE: &str = "GET /health/live HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";

#[test]
fn a_request_has_one_meaning_or_none() {
    let mut target = Target::start("", &[], "");
    target.grant("smuggle:1", OWNER, 500);
    target.grant("smuggle:2", THIEF, 5);
    let good = say(&target, &head(&target, WALLET, OWNER), "content-length: 2\r\n", "{}");
    assert_eq!(statuses(&good), [200, 200], "the way it is done, and goodbye: {good:?}");
    lengths_that_disagree(&target);
    heads_that_are_none(&target);
    bodies_that_nobody_reads(&target);
    names_given_twice(&target);
    paths_in_other_writings(&target);
    assert_eq!((target.credited(OWNER), target.credited(THIEF)), (500, 5));
    target.still_serves();
    target.stop(&[]);
}

fn head(target: &Target, path: &str, user_id: i64) -> String {
    let bearer = target.bearer("wallet-front");
    format!(
        "POST {path} HTTP/1.1\r\nhost: h\r\nauthorization: {bearer}\r\nx-windfall-user: {user_id}\r\n\
         content-type: application/json\r\n"
    )
}

/// A whole request that takes the owner's money, to hide in another one.
fn hidden(target: &Target) -> String {
    let body = json!({"withdrawal_id": "smuggled", "bonus_type": "cash", "amount": 1}).to_string();
    format!("{}content-length: {}\r\n\r\n{body}", head(target, WITHDRAW, OWNER), body.len())
}

/// Head, more of it, body, and goodbye.
fn say(target: &Target, head: &str, more: &str, body: &str) -> Vec<Answer> {
    exchange(target.service.address, format!("{head}{more}\r\n{body}{GOODBYE}").as_bytes())
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

/// What a front that believes the other length would send to us unseen.
fn lengths_that_disagree(target: &Target) {
    let (head, hidden) = (head(target, WALLET, THIEF), hidden(target));
    for framing in [
        "content-length: 2\r\ncontent-length: 3\r\n",
        "content-length: 2\r\ncontent-length: 0\r\n",
        "content-length: 2, 3\r\n",
        "content-length: +2\r\n",
        "content-length: -2\r\n",
        "content-length: 0x2\r\n",
        "content-length: 2 2\r\n",
        "content-length: 99999999999999999999\r\n",
        "content-length:\r\n",
        "content-length : 2\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding: gzip, chunked, x\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "transfer-encoding:\u{b}chunked\r\ncontent-length: 2\r\n",
        "transfer-encoding : chunked\r\ncontent-length: 2\r\n",
        "content-length: 2\r\ntransfer-encoding: chunked\r\n",
    ] {
        let answers = say(target, &head, framing, &format!("{{}}{hidden}"));
        assert!(matches!(statuses(&answers)[..], [] | [400]), "{framing:?}: {answers:?}");
    }
    // Both lengths: chunks count (RFC 9112, 6.3), and the connection ends, so that nothing can follow.
    for framing in [
        "content-length: 6\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 6\r\n",
        "Content-Length: 9999\r\nTransfer-Encoding: Chunked\r\n",
    ] {
        let answers = say(target, &head, framing, &format!("2\r\n{{}}\r\n0\r\n\r\n{hidden}"));
        assert_eq!(statuses(&answers).len(), 1, "{framing:?}: {answers:?}");
        assert!(answers[0].body["outcome"].is_null(), "{answers:?}");
    }
    for chunks in [
        "fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        "-2\r\n{}\r\n0\r\n\r\n",
        "2 2\r\n{}\r\n0\r\n\r\n",
        "2\r\n{}0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
    ] {
        let answers = say(target, &head, "transfer-encoding: chunked\r\n", &format!("{chunks}{hidden}"));
        assert!(matches!(statuses(&answers)[..], [] | [400]), "{chunks:?}: {answers:?}");
    }
    // A trailer comes after the user was read, and is no header.
    let trailer = format!("2\r\n{{}}\r\n0\r\nx-windfall-user: {OWNER}\r\n\r\n");
    let answers = say(target, &head, "transfer-encoding: chunked\r\n", &trailer);
    assert_eq!(answers[0].body["balances"][0]["credited"], "5", "the thief's own: {answers:?}");
}

/// Lines that one reader folds into the line before, and another takes for a header.
fn heads_that_are_none(target: &Target) {
    let head = head(target, WALLET, THIEF);
    let user = format!("x-windfall-user: {OWNER}");
    for line in [
        format!("x-a: 1\r\n {user}\r\n"),
        format!("x-a: 1\r\n\t{user}\r\n"),
        format!(" {user}\r\n"),
        format!("x-windfall-user : {OWNER}\r\n"),
        format!("x-windfall-user\t: {OWNER}\r\n"),
        format!("x-a: 1\r{user}\r\n"),
        format!("x-a: 1\0{user}\r\n"),
        format!("x-a\0: {OWNER}\r\n"),
        format!("x windfall user: {OWNER}\r\n"),
        format!(": {OWNER}\r\n"),
        "x-windfall-user\r\n".to_owned(),
        format!("x-windfall-üser: {OWNER}\r\n"),
    ] {
        let answers = say(target, &head, &format!("{line}content-length: 2\r\n"), "{}");
        assert!(matches!(statuses(&answers)[..], [] | [400]), "{line:?}: {answers:?}");
    }
    for first in
        ["POST  /v1/wallet/get HTTP/1.1", "POST /v1/wallet/get HTTP/1.1 x", "POST /v1/wallet/get HTTP/1.9"]
    {
        let said = format!("{first}\r\n{}content-length: 2\r\n\r\n{{}}", head.split_once("\r\n").unwrap().1);
        let answers = exchange(target.service.address, format!("{said}{GOODBYE}").as_bytes());
        assert!(matches!(statuses(&answers)[..], [] | [400 | 505]), "{first:?}: {answers:?}");
    }
}

/// What is refused by its head has a body all the same, and that is not the next request.
fn bodies_that_nobody_reads(target: &Target) {
    let hidden = hidden(target);
    let length = format!("content-length: {}\r\n", hidden.len());
    let owner = head(target, WALLET, OWNER);
    for (what, head, status) in [
        ("no such path", owner.replace(WALLET, "/v1/nothing"), 404),
        ("another method", owner.replace("POST", "GET"), 405),
        ("a method of old", owner.replace("POST", "TRACE"), 405),
        ("another kind", owner.replace("application/json", "text/plain"), 415),
        ("no key", owner.replace("Bearer", "Basic"), 401),
        ("health", "GET /health/live HTTP/1.1\r\nhost: h\r\n".to_owned(), 200),
    ] {
        let answers = say(target, &head, &length, &hidden);
        assert_eq!(answers[0].status, status, "{what}: {answers:?}");
        let is_alone = answers.iter().all(|answer| answer.body["outcome"].is_null());
        assert!(is_alone && answers.len() <= 2, "{what}: the body became a request: {answers:?}");
    }
}

/// A header that may be there once, and names that only look like it.
fn names_given_twice(target: &Target) {
    let (owner, thief) = (head(target, WALLET, OWNER), head(target, WALLET, THIEF));
    let key = target.bearer("operator");
    let activity = owner.replace(&target.bearer("wallet-front"), &target.bearer("activity"));
    let grants = thief.replace(&target.bearer("wallet-front"), &target.bearer("grants"));
    for (head, more, status, name) in [
        (&thief, format!("x-windfall-user: {OWNER}\r\n"), 401, "UNAUTHENTICATED"),
        (&thief, format!("X-WINDFALL-USER: {THIEF}\r\n"), 401, "UNAUTHENTICATED"),
        (&thief, "x-windfall-user:\r\n".to_owned(), 401, "UNAUTHENTICATED"),
        (&thief, "x-windfall-user-token: e30.e30.\r\n".to_owned(), 401, "UNAUTHENTICATED"),
        (&thief, format!("authorization: {key}\r\n"), 401, "UNAUTHENTICATED"),
        (&thief, format!("Authorization: {}\r\n", target.bearer("wallet-front")), 401, "UNAUTHENTICATED"),
        // Callers that may not name users: refused, not passed over.
        (&activity, String::new(), 403, "PERMISSION_DENIED"),
        (&grants, String::new(), 403, "PERMISSION_DENIED"),
    ] {
        let answers = say(target, head, &format!("{more}content-length: 2\r\n"), "{}");
        assert_eq!(code(&answers[0]), (status, name), "{more:?}: {answers:?}");
    }
    for user in
        ["42, 43", "42;43", "+42", "042", "42.0", "0x2a", "-42", "42\u{a0}", "٤٢", "9223372036854775808"]
    {
        let named = thief.replace("x-windfall-user: 43", &format!("x-windfall-user: {user}"));
        let answers = say(target, &named, "content-length: 2\r\n", "{}");
        assert_eq!(code(&answers[0]), (401, "UNAUTHENTICATED"), "{user}: {answers:?}");
    }
    // Other names are other headers.
    for name in
        ["x_windfall_user", "x-windfall_user", "xwindfalluser", "x-windfall-user-id", "x-original-user"]
    {
        let answers = say(target, &thief, &format!("{name}: {OWNER}\r\ncontent-length: 2\r\n"), "{}");
        assert_eq!(answers[0].body["balances"][0]["credited"], "5", "{name}: {answers:?}");
    }
    let connection = "connection: x-windfall-user, close\r\ncontent-length: 2\r\n";
    let answers = say(target, &thief, connection, "{}");
    assert_eq!(answers[0].body["balances"][0]["credited"], "5", "it is not taken off: {answers:?}");
}

fn paths_in_other_writings(target: &Target) {
    for path in [
        "/v1/wallet/get/",
        "//v1/wallet/get",
        "/v1//wallet/get",
        "/v1/wallet/./get",
        "/v1/tokens/../wallet/get",
        "/v1/wallet%2fget",
        "/V1/wallet/get",
        "/v1/wallet/get;x=1",
        "/windfall.v1.Wallet/GetWallet",
    ] {
        let answers = say(target, &head(target, path, OWNER), "content-length: 2\r\n", "{}");
        assert!(matches!(answers[0].status, 404 | 415), "{path}: {answers:?}");
    }
}
