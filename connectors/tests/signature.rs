//! Vectors and refusals of the signature. The codes were computed with Python's `hmac`.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use windfall_connectors::signature::{
    BadKey, SKEW_MS, SignatureError, Signed, SigningKey, verify, verify_v2,
};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const BODY: &[u8] = br#"{"trade_no":"rain-1-42","user_id":"42","activity":"spring-2027","scene":"rain","bonus_type":"badge","amount":"1"}"#;
const TIME_MS: i64 = 1_800_000_000_000;

fn key(id: &str) -> SigningKey {
    SigningKey::new(id, SECRET).unwrap()
}

#[test]
fn vectors() {
    for (id, method, path, time_ms, body, mac) in [
        (
            "2027-01",
            "POST",
            "/v1/badge/pay",
            TIME_MS,
            BODY,
            "73f963bc8aa09c093d9ac0d48a22e1543e6e1afce06f8ed6e4a41977561031d5",
        ),
        ("k", "POST", "/?a=%2F", 0, b"", "c2d5482594a7c7f4729910f3b4e1cfc16f2ba0cdb52da3f08672a4f60af51e4f"),
        ("k", "PUT", "/", -1, b"a\nb", "ccaedf15f95bffa45e5c6540577c36944b8ead870509488bbc4f254ee4e9101a"),
    ] {
        let header = key(id).sign(method, path, time_ms, body);
        assert_eq!(header, format!("v1;key={id};time={time_ms};mac={mac}"));
        assert_eq!(verify(&[key(id)], &header, method, path, body, time_ms, 0), Ok(()));
    }
}

fn signed() -> Signed<'static> {
    Signed {
        method: "POST",
        host: "pay.example.com",
        path_and_query: "/v1/badge/pay",
        idempotency_key: "rain-1-42",
        body: BODY,
    }
}

#[test]
fn vectors_of_version_2() {
    let small = Signed {
        method: "PUT",
        host: "[::1]:8443",
        path_and_query: "/?a=%2F",
        idempotency_key: "",
        body: b"",
    };
    for (id, request, time_ms, mac) in [
        ("2027-01", signed(), TIME_MS, "d3d6019058c7e8733fecd7780f645fa54bb21d763a3a3907cf047957399ad7a0"),
        ("k", small, -1, "d5a2ba8b085aaa32028cb4401ab6d77293f4b751915357d3328942ed919be516"),
    ] {
        let header = key(id).sign_v2(&request, time_ms);
        assert_eq!(header, format!("v2;key={id};time={time_ms};mac={mac}"));
        assert_eq!(verify_v2(&[key(id)], &header, &request, time_ms, 0), Ok(()));
    }
    let shouted = Signed { host: "PAY.Example.com", ..signed() };
    assert_eq!(key("k").sign_v2(&shouted, 1), key("k").sign_v2(&signed(), 1));
}

/// What version 1 let through: another idempotency key, and another host with the same secret.
#[test]
fn version_2_covers_all_that_a_downstream_acts_on() {
    let header = key("k").sign_v2(&signed(), TIME_MS);
    let check = |request: Signed<'_>| verify_v2(&[key("k")], &header, &request, TIME_MS, SKEW_MS);
    assert_eq!(check(signed()), Ok(()));
    for changed in [
        Signed { method: "PUT", ..signed() },
        Signed { host: "coupons.example.com", ..signed() },
        Signed { host: "pay.example.com:8443", ..signed() },
        Signed { path_and_query: "/v1/coupon/pay", ..signed() },
        Signed { idempotency_key: "rain-1-43", ..signed() },
        Signed { idempotency_key: "", ..signed() },
        Signed { body: &BODY[1..], ..signed() },
    ] {
        assert_eq!(check(changed), Err(SignatureError::Mismatch), "{changed:?}");
    }
    // Parts that slide over the line between them.
    let slid = Signed { path_and_query: "/v1/badge/pay\nrain-1-42", idempotency_key: "", ..signed() };
    assert_eq!(check(slid), Err(SignatureError::Malformed));
    assert_eq!(
        verify_v2(&[key("k")], &header, &signed(), TIME_MS + 300_001, SKEW_MS),
        Err(SignatureError::Time)
    );
}

/// A code of one version never passes for the other one's.
#[test]
fn the_versions_do_not_stand_for_each_other() {
    let (v1, v2) =
        (key("k").sign("POST", "/v1/badge/pay", TIME_MS, BODY), key("k").sign_v2(&signed(), TIME_MS));
    let check_v1 = |header: &str| verify(&[key("k")], header, "POST", "/v1/badge/pay", BODY, TIME_MS, 0);
    let check_v2 = |header: &str| verify_v2(&[key("k")], header, &signed(), TIME_MS, 0);
    assert_eq!((check_v1(&v1), check_v2(&v2)), (Ok(()), Ok(())));
    assert_eq!(check_v1(&v2), Err(SignatureError::Malformed));
    assert_eq!(check_v2(&v1), Err(SignatureError::Malformed));
    assert_eq!(check_v1(&v2.replace("v2;", "v1;")), Err(SignatureError::Mismatch));
    assert_eq!(check_v2(&v1.replace("v1;", "v2;")), Err(SignatureError::Mismatch));
}

#[test]
fn what_is_changed_on_the_way_is_refused() {
    let header = key("k").sign("POST", "/pay", TIME_MS, BODY);
    let check = |header: &str, method: &str, path: &str, body: &[u8], now_ms: i64| {
        verify(&[key("k")], header, method, path, body, now_ms, SKEW_MS)
    };
    let mismatch = Err(SignatureError::Mismatch);
    assert_eq!(check(&header, "POST", "/pay", BODY, TIME_MS), Ok(()));
    assert_eq!(check(&header, "GET", "/pay", BODY, TIME_MS), mismatch);
    assert_eq!(check(&header, "POST", "/pay?", BODY, TIME_MS), mismatch);
    assert_eq!(check(&header, "POST", "/pay", &BODY[1..], TIME_MS), mismatch);
    let later = header.replace("time=18", "time=19");
    assert_eq!(check(&later, "POST", "/pay", BODY, 1_900_000_000_000), mismatch);
    // Clocks: five minutes either way, and no further; the ends of the range included.
    for (now_ms, expected) in [
        (TIME_MS + 300_000, Ok(())),
        (TIME_MS - 300_000, Ok(())),
        (TIME_MS + 300_001, Err(SignatureError::Time)),
        (TIME_MS - 300_001, Err(SignatureError::Time)),
        (i64::MIN, Err(SignatureError::Time)),
        (i64::MAX, Err(SignatureError::Time)),
    ] {
        assert_eq!(check(&header, "POST", "/pay", BODY, now_ms), expected, "{now_ms}");
    }
    assert_eq!(
        verify(&[key("other")], &header, "POST", "/pay", BODY, TIME_MS, 0),
        Err(SignatureError::UnknownKey)
    );
    assert_eq!(verify(&[], &header, "POST", "/pay", BODY, TIME_MS, 0), Err(SignatureError::UnknownKey));
    let rotated = [SigningKey::new("new", &[7; 32]).unwrap(), key("k")];
    assert_eq!(verify(&rotated, &header, "POST", "/pay", BODY, TIME_MS, 0), Ok(()));
    let swapped = header.replace("key=k", "key=new");
    assert_eq!(verify(&rotated, &swapped, "POST", "/pay", BODY, TIME_MS, 0), mismatch);
}

#[test]
fn only_one_form_is_read() {
    let good = key("k").sign("POST", "/pay", TIME_MS, BODY);
    let upper = good.rsplit_once('=').map(|(head, mac)| format!("{head}={}", mac.to_uppercase())).unwrap();
    for bad in [
        "",
        "v1",
        &good.replace("v1", "v2"),
        &good.replace("time=", "time=+"),
        &good.replace("time=", "time=0"),
        &good.replace("mac=", "mac=+"),
        &good[..good.len() - 1],
        &format!("{good};"),
        &format!("{good};more=1"),
        &format!(" {good}"),
        &upper,
        "v1;time=1;key=k;mac=",
        "v1;key=k;time=99999999999999999999;mac=0000000000000000000000000000000000000000000000000000000000000000",
    ] {
        let found = verify(&[key("k")], bad, "POST", "/pay", BODY, TIME_MS, SKEW_MS);
        assert_eq!(found, Err(SignatureError::Malformed), "{bad}");
    }
}

#[test]
fn keys_are_checked_and_never_shown() {
    for (id, secret, error) in [
        ("", SECRET, BadKey::Id),
        ("a;b", SECRET, BadKey::Id),
        ("a\nb", SECRET, BadKey::Id),
        ("k", &SECRET[1..], BadKey::Secret),
    ] {
        assert_eq!(SigningKey::new(id, secret).unwrap_err(), error);
    }
    assert!(matches!(SigningKey::new(&"k".repeat(65), SECRET), Err(BadKey::Id)));
    assert!(matches!(SigningKey::new("k", &[1; 1_025]), Err(BadKey::Secret)));
    assert_eq!(format!("{:?}", key("k")), "SigningKey { id: \"k\", .. }");
}

proptest! {
    #[test]
    fn any_header_ends_without_panic(header in ".{0,120}", now_ms: i64, skew_ms: u64) {
        prop_assert!(verify(&[key("k")], &header, "POST", "/", b"", now_ms, skew_ms).is_err());
    }

    #[test]
    fn what_is_signed_verifies(path in "/[a-z?&=%]{0,40}", time_ms: i64, body: Vec<u8>) {
        let header = key("k").sign("POST", &path, time_ms, &body);
        prop_assert_eq!(verify(&[key("k")], &header, "POST", &path, &body, time_ms, 0), Ok(()));
    }
}
