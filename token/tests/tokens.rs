//! What is a token and what is not, through the public door.
#![allow(clippy::unwrap_used)]

use std::{collections::HashSet, fmt::Debug};

use base64::{
    Engine,
    engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD},
};
use proptest::prelude::*;
use windfall_proto::v1;
use windfall_token::{
    Algorithm, Illegal, KeyRing, MintError, Reason, StoreAnswer, TEXT_MAX_BYTES, TokenFields, Verdict,
};

const ALGORITHMS: [Algorithm; 2] = [Algorithm::HmacSha256, Algorithm::Ed25519];
const NOW_MS: u64 = 1_800_000_000_000;
const FIELDS: TokenFields<'_> = TokenFields {
    trade_no: "spring-2027:rain:1:42",
    user_id: 42,
    app_id: "com.example.video",
    activity: "spring-2027",
    scene: "red-packet-rain",
    bonus_type: "cash",
    amount: 888,
    award_time_ms: 1_800_000_000_000,
    description: "8.88 元",
};

fn ring(algorithm: Algorithm) -> KeyRing {
    KeyRing::ephemeral_of(algorithm).unwrap()
}

fn mint(ring: &KeyRing, fields: &TokenFields<'_>) -> String {
    ring.minter("acme").unwrap().mint(fields, NOW_MS).unwrap()
}

#[track_caller]
fn assert_illegal(ring: &KeyRing, text: &[u8], what: impl Debug) {
    assert_eq!(ring.open(text, "acme", 42), Err(Illegal), "{what:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_minted_opens(
        trade_no in "[!-~]{1,128}",
        user_id: i64,
        amount: i64,
        award_time_ms: i64,
        description in "\\PC{0,40}",
        tenant in "\\PC{0,80}",
        ed25519: bool,
    ) {
        let ring = ring(ALGORITHMS[usize::from(ed25519)]);
        let fields = TokenFields {
            trade_no: &trade_no, user_id, amount, award_time_ms, description: &description, ..FIELDS
        };
        let text = ring.minter(&tenant).unwrap().mint(&fields, NOW_MS).unwrap();
        prop_assert!(text.len() <= TEXT_MAX_BYTES);
        let token = ring.open(text.as_bytes(), &tenant, user_id).unwrap();
        prop_assert_eq!(TokenFields::from(&token), fields);
        let rival = tenant + "x";
        prop_assert!(ring.open(text.as_bytes(), &rival, user_id).is_err());
    }

    #[test]
    fn any_bytes_are_illegal(bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
        let ring = ring(Algorithm::HmacSha256);
        prop_assert_eq!(ring.open(&bytes, "acme", 42), Err(Illegal));
        prop_assert_eq!(ring.open(URL_SAFE_NO_PAD.encode(&bytes).as_bytes(), "acme", 42), Err(Illegal));
    }
}

#[test]
fn every_flipped_bit_is_illegal() {
    for algorithm in ALGORITHMS {
        let ring = ring(algorithm);
        let text = mint(&ring, &FIELDS);
        let raw = URL_SAFE_NO_PAD.decode(&text).unwrap();
        assert!(ring.open(URL_SAFE_NO_PAD.encode(&raw).as_bytes(), "acme", 42).is_ok());
        for bit in 0..raw.len() * 8 {
            let mut other = raw.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_illegal(&ring, URL_SAFE_NO_PAD.encode(&other).as_bytes(), (algorithm, "byte", bit));
        }
        for bit in 0..text.len() * 8 {
            let mut other = text.clone().into_bytes();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_illegal(&ring, &other, (algorithm, "text", bit));
        }
    }
}

#[test]
fn every_other_length_is_illegal() {
    for algorithm in ALGORITHMS {
        let ring = ring(algorithm);
        let text = mint(&ring, &FIELDS);
        let raw = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for len in 0..text.len() {
            assert_illegal(&ring, &text.as_bytes()[..len], (algorithm, "text", len));
            assert_illegal(&ring, &text.as_bytes()[text.len() - len..], (algorithm, "end of text", len));
        }
        for len in 0..raw.len() {
            assert_illegal(&ring, URL_SAFE_NO_PAD.encode(&raw[..len]).as_bytes(), (algorithm, "bytes", len));
        }
        for more in ["A", "AA", "AAA", "AAAA", " ", "\n", "="] {
            assert_illegal(&ring, format!("{text}{more}").as_bytes(), (algorithm, more));
            assert_illegal(&ring, format!("{more}{text}").as_bytes(), (algorithm, more));
        }
    }
}

/// Ten megabytes of good base64: the answer comes from the length, before anything is decoded.
#[test]
fn a_text_of_ten_megabytes_is_refused_by_its_length() {
    let ring = ring(Algorithm::HmacSha256);
    let long = mint(&ring, &FIELDS).repeat(10_000_000 / 200);
    assert!(long.len() > 10_000_000);
    let begun = std::time::Instant::now();
    for _ in 0..1000 {
        assert_eq!(ring.diagnose(long.as_bytes(), "acme", Some(42)), Err(Reason::Length { len: long.len() }));
    }
    // Decoding once alone takes milliseconds.
    assert!(begun.elapsed().as_millis() < 500, "it was read, not measured");

    assert_illegal(&ring, &[b'A'; TEXT_MAX_BYTES + 1], "one byte too long");
    assert_eq!(ring.diagnose(&[b'A'; TEXT_MAX_BYTES], "acme", None), Err(Reason::Version(0)));
}

#[test]
fn only_canonical_base64url_is_read() {
    let ring = ring(Algorithm::HmacSha256);
    // Descriptions of three lengths, so that the text ends in each of base64's three ways.
    let mut with_spare_bits = 0;
    for description in ["x", "xx", "xxx"] {
        let fields = TokenFields { description, ..FIELDS };
        let text = std::iter::repeat_with(|| mint(&ring, &fields))
            .find(|text| text.contains('-') || text.contains('_'))
            .unwrap();
        let raw = URL_SAFE_NO_PAD.decode(&text).unwrap();
        assert!(ring.open(text.as_bytes(), "acme", 42).is_ok());

        let padded = URL_SAFE.encode(&raw);
        if padded != text {
            assert_eq!(ring.diagnose(padded.as_bytes(), "acme", None), Err(Reason::Base64), "padding");
            with_spare_bits += 1;
            // The last character carries 2 or 4 spare bits: setting the lowest spells the same bytes anew.
            let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            let last = alphabet.find(text.chars().last().unwrap()).unwrap();
            let spelled = format!("{}{}", &text[..text.len() - 1], &alphabet[last + 1..last + 2]);
            assert_eq!(ring.diagnose(spelled.as_bytes(), "acme", None), Err(Reason::Base64), "spare bits");
        }
        let standard = text.replace('-', "+").replace('_', "/");
        assert_eq!(ring.diagnose(standard.as_bytes(), "acme", None), Err(Reason::Base64), "alphabet");
    }
    assert_eq!(with_spare_bits, 2);
}

#[test]
fn each_step_is_named_for_operators_and_hidden_from_users() {
    let ring = ring(Algorithm::HmacSha256);
    let text = mint(&ring, &FIELDS);
    let altered = |at: usize, mask: u8| {
        let mut raw = URL_SAFE_NO_PAD.decode(&text).unwrap();
        raw[at] ^= mask;
        URL_SAFE_NO_PAD.encode(raw)
    };
    let cases = [
        (Reason::Length { len: 2000 }, "A".repeat(2000)),
        (Reason::Base64, "A".to_owned()),
        (Reason::Header, String::new()),
        (Reason::Header, "AQAA".to_owned()),
        (Reason::Version(2), altered(0, 3)),
        (Reason::UnknownKey(windfall_token::KeyId(9)), altered(4, 8)),
        (Reason::Seal, altered(60, 1)),
        (Reason::Seal, mint(&self::ring(Algorithm::HmacSha256), &FIELDS)),
        (Reason::Owner(43), mint(&ring, &TokenFields { user_id: 43, ..FIELDS })),
    ];
    let mut seen = HashSet::new();
    for (reason, text) in cases {
        assert_eq!(ring.diagnose(text.as_bytes(), "acme", Some(42)), Err(reason));
        let outside = ring.open(text.as_bytes(), "acme", 42).unwrap_err();
        seen.insert((outside.to_string(), format!("{outside:?}")));
        assert_eq!(ring.verify(&text, StoreAnswer::Held(&text), "acme", 42), Verdict::Illegal);
    }
    assert_eq!(seen, HashSet::from([("illegal token".to_owned(), "Illegal".to_owned())]));
    // Without an owner an operator opens anybody's.
    assert!(ring.diagnose(text.as_bytes(), "acme", None).is_ok());
}

#[test]
fn another_owner_tenant_or_ring_is_illegal() {
    for algorithm in ALGORITHMS {
        let ring = ring(algorithm);
        let text = mint(&ring, &FIELDS);
        for owner in [0, 41, 43, -42, i64::MIN, i64::MAX] {
            assert_eq!(ring.open(text.as_bytes(), "acme", owner), Err(Illegal));
        }
        for tenant in ["", "Acme", "acm", "acme2", "acme\0"] {
            assert_eq!(ring.open(text.as_bytes(), tenant, 42), Err(Illegal));
        }
        for other in ALGORITHMS.map(self::ring) {
            assert_illegal(&other, text.as_bytes(), algorithm);
        }
    }
}

#[test]
fn the_longest_token_fits_and_one_byte_more_does_not() {
    for (algorithm, signature_len) in [(Algorithm::HmacSha256, 16), (Algorithm::Ed25519, 64)] {
        let minter = ring(algorithm).minter("acme").unwrap();
        let room = 768 - 29 - 16 - signature_len;
        let short = TokenFields { description: "", ..FIELDS }.encoded_len();
        let description = "x".repeat(room - short - 3);
        let fields = TokenFields { description: &description, ..FIELDS };
        assert_eq!(minter.mint(&fields, NOW_MS).unwrap().len(), TEXT_MAX_BYTES);

        let description = description + "x";
        let fields = TokenFields { description: &description, ..FIELDS };
        let mut out = "kept".to_owned();
        let refused = minter.mint_into(&fields, NOW_MS, &mut out);
        assert_eq!(refused, Err(MintError::TooLarge { len: room + 1, max: room }));
        assert_eq!(out, "kept");
    }
}

#[test]
fn only_a_token_that_equals_the_stored_one_is_valid() {
    let ring = ring(Algorithm::HmacSha256);
    let client = mint(&ring, &FIELDS);
    let verify = |stored: StoreAnswer<'_>| ring.verify(&client, stored, "acme", 42);
    let token = ring.open(client.as_bytes(), "acme", 42).unwrap();

    assert_eq!(verify(StoreAnswer::Held(&client)), Verdict::Valid(token.clone()));
    // A repeated send mints another text that says the same.
    let again = mint(&ring, &FIELDS);
    assert_ne!(again, client);
    assert_eq!(verify(StoreAnswer::Held(&again)), Verdict::Valid(token.clone()));
    assert_eq!(verify(StoreAnswer::Absent), Verdict::Unknown);
    assert_eq!(verify(StoreAnswer::Unavailable), Verdict::Unavailable);

    let others = [
        TokenFields { trade_no: "spring-2027:rain:1:43", ..FIELDS },
        TokenFields { user_id: 43, ..FIELDS },
        TokenFields { app_id: "other", ..FIELDS },
        TokenFields { activity: "spring-2028", ..FIELDS },
        TokenFields { scene: "draw", ..FIELDS },
        TokenFields { bonus_type: "coin", ..FIELDS },
        TokenFields { amount: 889, ..FIELDS },
        TokenFields { description: "", ..FIELDS },
    ];
    for other in others {
        let stored = mint(&ring, &other);
        assert_eq!(verify(StoreAnswer::Held(&stored)), Verdict::Illegal, "{other:?}");
    }
    // A repeated send takes its award time from the clock again; the earlier one holds, whichever is stored.
    for (moved_ms, held_ms) in [(-1, -1), (0, 0), (1, 0)] {
        let moved = FIELDS.award_time_ms + moved_ms;
        let stored = mint(&ring, &TokenFields { award_time_ms: moved, ..FIELDS });
        let first = v1::BonusToken { award_time_ms: FIELDS.award_time_ms + held_ms, ..token.clone() };
        assert_eq!(verify(StoreAnswer::Held(&stored)), Verdict::Valid(first));
        let forged = TokenFields { award_time_ms: moved, amount: 889, ..FIELDS };
        assert_eq!(verify(StoreAnswer::Held(&mint(&ring, &forged))), Verdict::Illegal);
    }
    for stored in ["", "A", &mint(&self::ring(Algorithm::HmacSha256), &FIELDS)] {
        assert_eq!(verify(StoreAnswer::Held(stored)), Verdict::Illegal, "{stored}");
    }
    // An illegal token stays illegal, whatever the store says: a store that is down opens no door.
    for stored in [StoreAnswer::Held(&client), StoreAnswer::Absent, StoreAnswer::Unavailable] {
        assert_eq!(ring.verify(&client, stored, "acme", 43), Verdict::Illegal);
        assert_eq!(ring.verify("x", stored, "acme", 42), Verdict::Illegal);
    }
    // The last step alone asks for the owner too.
    let forged = v1::BonusToken { user_id: 43, ..token };
    let answer = ring.verify_against(forged, StoreAnswer::Held(&client), "acme", 42);
    assert_eq!(answer, Verdict::Illegal);
}

#[test]
fn real_tokens_from_four_threads_share_no_nonce() {
    let ring = ring(Algorithm::HmacSha256);
    let each = 30_000;
    let nonces: Vec<[u8; 24]> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                // Two minters of one key share a thread's count; a clone does too.
                let minters = [ring.minter("acme").unwrap(), ring.minter("rival").unwrap()];
                scope.spawn(move || {
                    let mint = |n: u64| {
                        let minter = minters[usize::from(n.is_multiple_of(3))].clone();
                        // A new derived key every 5000 tokens.
                        let text = minter.mint(&FIELDS, NOW_MS + n / 5).unwrap();
                        let raw = URL_SAFE_NO_PAD.decode(text).unwrap();
                        raw[5..29].try_into().unwrap()
                    };
                    (0..each).map(mint).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let prefixes: HashSet<_> = nonces.iter().map(|nonce| &nonce[..12]).collect();
    assert_eq!(prefixes.len(), 4 * 6, "derived keys");
    assert_eq!(nonces.iter().collect::<HashSet<_>>().len(), nonces.len());
}

#[test]
fn many_rings_on_one_thread_mint_good_tokens() {
    let rings: Vec<_> = (0..20).map(|n| ring(ALGORITHMS[n % 2])).collect();
    for round in 0..3 {
        for ring in &rings {
            let minter = ring.minter("acme").unwrap();
            let text = minter.mint(&FIELDS, NOW_MS + round * 600).unwrap();
            assert!(ring.open(text.as_bytes(), "acme", 42).is_ok());
        }
    }
}

#[test]
fn a_minter_may_be_sent_anywhere() {
    const fn anywhere<T: Send + Sync + Clone + 'static>() {}
    anywhere::<windfall_token::Minter>();
    anywhere::<KeyRing>();
}
