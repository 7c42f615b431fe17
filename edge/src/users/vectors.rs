//! The signed examples of RFC 7515 (appendix A), RFC 7520 (section 4) and RFC 8037 (appendix A). None of them is about a
//! user of ours: one whose signature is good is refused for what it says, and any other one before that is read.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::jwt::{Expected, Token, parse_algorithm};
use super::{KeySet, Refused};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use jsonwebtoken::Algorithm;
use ring::hmac;
use serde_json::{Value, json};

/// The claims of RFC 7515: of the issuer `joe`, and for no audience.
const JOE: &str =
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
/// The text of RFC 7520, which is no JSON.
const FRODO: &str = "SXTigJlzIGEgZGFuZ2Vyb3VzIGJ1c2luZXNzLCBGcm9kbywgZ29pbmcgb3V0IHlvdXIgZG9vci4gWW91IHN0ZXAgb250byB0\
    aGUgcm9hZCwgYW5kIGlmIHlvdSBkb24ndCBrZWVwIHlvdXIgZmVldCwgdGhlcmXigJlzIG5vIGtub3dpbmcgd2hlcmUgeW91IG1pZ2h0IGJlIHN3ZXB0\
    IG9mZiB0by4";
const BILBO: &str = "bilbo.baggins@hobbiton.example";

/// An example: its key, header, payload and signature, and what it is refused for.
struct Vector {
    source: &'static str,
    key: Value,
    header: &'static str,
    payload: &'static str,
    signature: &'static str,
    refused: Refused,
}

fn vectors() -> [Vector; 5] {
    let bilbo = json!({
        "kty": "RSA", "kid": BILBO, "use": "sig", "e": "AQAB",
        "n": "n4EPtAOCc9AlkeQHPzHStgAbgs7bTZLwUBZdR8_KuKPEHLd4rHVTeT-O-XV2jRojdNhxJWTDvNd7nqQ0VEiZQHz_AJmSCpMaJMRBSFKrKb2w\
            qVwGU_NsYOYL-QtiWN2lbzcEe6XC0dApr5ydQLrHqkHHig3RBordaZ6Aj-oBHqFEHYpPe7Tpe-OfVfHd1E6cS6M1FZcD1NNLYD5lFHpPI9bTwJls\
            de3uhGqC0ZCuEHg8lhzwOHrtIQbS0FVbb9k3-tVTU4fg_3L_vniUFAKwuCLqKnS2BYwdq_mzSnbLY7h_qixoR7jig3__kRhuaxwUkRz5iaiQkqgc\
            5gHdrNP5zw",
    });
    [
        Vector {
            source: "RFC 7515, A.2",
            key: json!({
                "kty": "RSA", "e": "AQAB",
                "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT\
                    -SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-\
                    UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2eth\
                    FkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
            }),
            header: "eyJhbGciOiJSUzI1NiJ9",
            payload: JOE,
            signature: "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds\
                9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN938\
                3LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlV\
                mtVrBp0igcN_IoypGlUPQGe77Rw",
            refused: Refused::Audience,
        },
        Vector {
            source: "RFC 7515, A.3",
            key: json!({
                "kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
                "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
            }),
            header: "eyJhbGciOiJFUzI1NiJ9",
            payload: JOE,
            signature: "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
            refused: Refused::Audience,
        },
        Vector {
            source: "RFC 7520, 4.1",
            key: bilbo.clone(),
            header: "eyJhbGciOiJSUzI1NiIsImtpZCI6ImJpbGJvLmJhZ2dpbnNAaG9iYml0b24uZXhhbXBsZSJ9",
            payload: FRODO,
            signature: "MRjdkly7_-oTPTS3AXP41iQIGKa80A0ZmTuV5MEaHoxnW2e5CZ5NlKtainoFmKZopdHM1O2U4mwzJdQx996ivp83xuglII7PNDi\
                84wnB-BDkoBwA78185hX-Es4JIwmDLJK3lfWRa-XtL0RnltuYv746iYTh_qHRD68BNt1uSNCrUCTJDt5aAE6x8wW1Kt9eRo4QPocSadnHXFx\
                nt8Is9UzpERV0ePPQdLuW3IS_de3xyIrDaLGdjluPxUAhb6L2aXic1U12podGU0KLUQSE_oI-ZnmKJ3F4uOZDnd6QZWJushZ41Axf_fcIe8u\
                9ipH84ogoree7vjbU5y18kDquDg",
            refused: Refused::Malformed,
        },
        Vector {
            source: "RFC 7520, 4.2",
            key: bilbo,
            header: "eyJhbGciOiJQUzM4NCIsImtpZCI6ImJpbGJvLmJhZ2dpbnNAaG9iYml0b24uZXhhbXBsZSJ9",
            payload: FRODO,
            signature: "cu22eBqkYDKgIlTpzDXGvaFfz6WGoz7fUDcfT0kkOy42miAh2qyBzk1xEsnk2IpN6-tPid6VrklHkqsGqDqHCdP6O8TTB5dDDIt\
                llVo6_1OLPpcbUrhiUSMxbbXUvdvWXzg-UD8biiReQFlfz28zGWVsdiNAUf8ZnyPEgVFn442ZdNqiVJRmBqrYRXe8P_ijQ7p8Vdz0TTrxUeT\
                3lm8d9shnr2lfJT8ImUjvAA2Xez2Mlp8cBE5awDzT0qI0n6uiP1aCN_2_jLAeQTlqRHtfa64QQSUmFAAjVKPbByi7xho0uTOcbH510a6GYmJ\
                UAfmWjwZ6oD4ifKo8DYM-X72Eaw",
            refused: Refused::Malformed,
        },
        Vector {
            source: "RFC 8037, A.4",
            key: json!({
                "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
            }),
            header: "eyJhbGciOiJFZERTQSJ9",
            payload: "RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
            signature: "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
            refused: Refused::Malformed,
        },
    ]
}

fn every_algorithm() -> Vec<Algorithm> {
    super::jwt::ALGORITHMS.split(", ").map(|name| parse_algorithm(name).unwrap()).collect()
}

fn judge(key: &Value, text: &str) -> Result<i64, Refused> {
    super::verifier::install();
    let keys = KeySet::parse(&json!({ "keys": [key] }).to_string()).unwrap();
    let expected = Expected { issuer: "joe", audience: "us", leeway_s: 0, claim: "sub" };
    Token::parse(text, &every_algorithm())?.judge(&keys, &expected, 1_300_819_000)
}

fn changed(coded: &str, at: usize) -> String {
    let mut bytes = B64.decode(coded).unwrap();
    bytes[at] ^= 1;
    B64.encode(bytes)
}

#[test]
fn the_signatures_of_the_rfcs_are_good_and_no_others() {
    for Vector { source, key, header, payload, signature, refused } in vectors() {
        let whole = |payload: &str, signature: &str| format!("{header}.{payload}.{signature}");
        assert_eq!(judge(&key, &whole(payload, signature)), Err(refused), "{source}");
        let bytes = B64.decode(signature).unwrap();
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let other = whole(payload, &changed(signature, at));
            assert_eq!(judge(&key, &other), Err(Refused::Signature), "{source}, byte {at} of the signature");
        }
        for signature in [B64.encode(&bytes[1..]), B64.encode([&bytes[..], b"\0"].concat()), String::new()] {
            assert_eq!(judge(&key, &whole(payload, &signature)), Err(Refused::Signature), "{source}");
        }
        let other = whole(&changed(payload, 3), signature);
        assert_eq!(judge(&key, &other), Err(Refused::Signature), "{source}, other words");
        // Whoever holds the public key alone: its numbers as a shared secret.
        for field in ["n", "x"].iter().filter_map(|name| key[*name].as_str()) {
            let signed = format!("{}.{payload}", B64.encode(json!({ "alg": "HS256" }).to_string()));
            for secret in [field.as_bytes(), &B64.decode(field).unwrap()] {
                let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
                let forged = format!("{signed}.{}", B64.encode(tag.as_ref()));
                assert_eq!(judge(&key, &forged), Err(Refused::Algorithm), "{source}");
            }
        }
    }
}

#[test]
fn a_key_of_the_rfcs_verifies_its_own_examples_alone() {
    let all = vectors();
    for own in &all {
        for other in all.iter().filter(|other| other.key != own.key) {
            let text = format!("{}.{}.{}", other.header, other.payload, other.signature);
            let refused = judge(&own.key, &text).unwrap_err();
            let may_be = [Refused::UnknownKey, Refused::Signature];
            assert!(may_be.contains(&refused), "{} by the key of {}: {refused}", other.source, own.source);
        }
    }
}

#[test]
fn examples_without_a_public_key_that_we_take_are_refused_by_their_algorithm() {
    let key = &vectors()[1].key;
    for (source, header, signature) in [
        (
            "RFC 7515, A.1",
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        ),
        (
            "RFC 7515, A.4, whose signature is cut",
            "eyJhbGciOiJFUzUxMiJ9",
            "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi",
        ),
        ("RFC 7515, A.5", "eyJhbGciOiJub25lIn0", ""),
    ] {
        assert_eq!(judge(key, &format!("{header}.{JOE}.{signature}")), Err(Refused::Algorithm), "{source}");
    }
}
