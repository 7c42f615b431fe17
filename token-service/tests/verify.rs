//! What presented tokens are worth, and that nothing else passes. // I7
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod desk;

use desk::{Desk, Mood, TENANT, USER, fields, mint};
use prost::Message;
use tonic::Request;
use windfall_contract::rules::Revoked;
use windfall_contract::tokens;
use windfall_contract::verifier::{TEXTS_MAX, Verdict, VerifyError};
use windfall_edge::{Call, Caller, Role};
use windfall_proto::v1::tokens_server::Tokens as _;
use windfall_proto::v1::{TokenVerdict, VerifyTokensReply, VerifyTokensRequest};
use windfall_token::{Algorithm, KeyFile, KeyId, KeyRing, TokenFields};
use windfall_token_service::{Cause, TokenService};

async fn verdict(desk: &Desk, text: &str) -> Verdict {
    let mut verdicts = desk.verifier.verify(TENANT, USER, &[text]).await.unwrap();
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

/// A text with its last character but one changed: the seal breaks, the base64 holds.
fn altered(text: &str) -> String {
    let at = text.len() - 2;
    let other = if text.as_bytes()[at] == b'A' { "B" } else { "A" };
    format!("{}{other}{}", &text[..at], &text[at + 1..])
}

#[tokio::test]
async fn each_verdict_in_one_call_with_one_read() {
    let desk = Desk::new();
    let (held, gone) = (desk.hold(&fields("held")), desk.mint(&fields("gone")));
    let texts = [held.as_str(), &gone, &altered(&held), &held, "", "no token"];
    let verdicts = desk.verifier.verify(TENANT, USER, &texts).await.unwrap();
    let Verdict::Valid(content) = &verdicts[0] else { panic!("{:?}", verdicts[0]) };
    assert_eq!(TokenFields::from(content), fields("held"));
    assert_eq!(verdicts[1..3], [Verdict::Unknown, Verdict::Illegal]);
    assert_eq!(verdicts[3], verdicts[0], "the same text twice");
    assert_eq!(verdicts[4..], [Verdict::Illegal, Verdict::Illegal]);
    assert_eq!(desk.reads(), 1);
    let stats = desk.verifier.stats();
    assert_eq!((stats.valid, stats.unknown, stats.unavailable), (2, 1, 0));
    assert_eq!((stats.illegal_by(Cause::Seal), stats.illegal.iter().sum()), (1, 3));
}

/// A process of an older version keeps tokens under their order numbers alone: there one of another activity may lie, which
/// says nothing about this one. // I7
#[tokio::test]
async fn tokens_of_two_activities_under_one_number_are_each_their_own() {
    let desk = Desk::new();
    let autumn = TokenFields { activity: "autumn-2027", amount: 5, ..fields("o") };
    let texts = [desk.mint(&fields("o")), desk.mint(&autumn)];
    desk.store.put_text(USER, "o", &texts[1]);
    let verdicts = || async { desk.verifier.verify(TENANT, USER, &texts).await.unwrap() };
    let found = verdicts().await;
    assert!(
        matches!(&found[..], [Verdict::Unknown, Verdict::Valid(token)] if token.amount == 5),
        "{found:?}"
    );
    // Each under its own name: both are there, whatever lies under the number.
    for (fields, text) in [(fields("o"), &texts[0]), (autumn, &texts[1])] {
        desk.store.put_text(USER, &tokens::name(fields.activity, fields.trade_no), text);
    }
    desk.store.put_text(USER, "o", "no token at all");
    let found = verdicts().await;
    assert!(found.iter().all(|verdict| matches!(verdict, Verdict::Valid(_))), "{found:?}");
    // One that differs under its own name is not excused by an older one.
    desk.store.put_text(USER, "o spring-2027", &desk.mint(&TokenFields { amount: 889, ..fields("o") }));
    desk.store.put_text(USER, "o", &texts[0]);
    assert_eq!(verdicts().await[0], Verdict::Illegal);
}

/// Every kind of illegal text, with what operators are told.
fn illegal(desk: &Desk, destroyed: &str) -> Vec<(Cause, String)> {
    let good = desk.mint(&fields("good"));
    let others = mint(&desk.ring, TENANT, &TokenFields { user_id: USER + 1, ..fields("others") });
    let mut version = good.clone();
    version.replace_range(0..1, "B");
    desk.store.put_text(USER, "differs", &desk.mint(&TokenFields { amount: 889, ..fields("differs") }));
    vec![
        (Cause::Length, "A".repeat(1025)),
        (Cause::Length, "A".repeat(10 << 20)),
        (Cause::Base64, format!("{good}=")),
        (Cause::Base64, good.replacen(&good[9..10], "!", 1)),
        (Cause::Header, good[..40].to_owned()),
        (Cause::Version, version),
        (Cause::UnknownKey, mint_with_key_9(&good)),
        (Cause::KeyState, destroyed.to_owned()),
        (Cause::Seal, altered(&good)),
        (Cause::Seal, mint(&desk.ring, "rival", &fields("rivals"))),
        (Cause::Owner, others),
        (Cause::Revoked, desk.hold(&fields("revoked"))),
        (Cause::Differs, desk.mint(&fields("differs"))),
    ]
}

/// Names key 9 in place of its own; the four bytes after the version.
fn mint_with_key_9(text: &str) -> String {
    // version 1, key 2: "AQAAAAI…"; key 9 differs in the seventh character alone.
    format!("{}k{}", &text[..6], &text[7..])
}

/// A ring whose first key was destroyed, and a token of that key.
fn ring_with_a_past() -> (KeyRing, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let mut file = KeyFile::create(&path, Algorithm::HmacSha256, 0).unwrap();
    let old = mint(&KeyRing::load(&path).unwrap(), TENANT, &fields("old"));
    let next = file.add(Algorithm::HmacSha256, 0).unwrap();
    file.promote(next).unwrap();
    file.promote(next).unwrap();
    file.destroy(KeyId(1)).unwrap();
    (KeyRing::load(&path).unwrap(), old)
}

#[tokio::test]
async fn whatever_is_illegal_gets_the_same_bytes_and_is_told_apart_for_operators() {
    let (ring, old) = ring_with_a_past();
    let mut desk = Desk::with(ring);
    desk.revoke([Revoked::TradeNo("revoked".into())]);
    let service = TokenService::new(desk.verifier.clone());
    let mut answers = Vec::new();
    for (cause, text) in illegal(&desk, &old) {
        let before = (desk.verifier.stats().illegal_by(cause), desk.reads());
        let mut request = Request::new(VerifyTokensRequest { tokens: vec![text] });
        request.extensions_mut().insert(call());
        let reply = service.verify_tokens(request).await.unwrap().into_inner();
        answers.push(reply.encode_to_vec());
        let after = (desk.verifier.stats().illegal_by(cause), desk.reads());
        assert_eq!(after, (before.0 + 1, before.1 + 1), "{cause:?}");
    }
    let expected = VerifyTokensReply {
        tokens: vec![windfall_proto::v1::VerifiedToken {
            verdict: TokenVerdict::Illegal.into(),
            content: None,
        }],
    };
    assert!(answers.iter().all(|answer| *answer == expected.encode_to_vec()));
}

fn call() -> Call {
    let caller = Caller {
        name: "front".into(),
        tenant: TENANT.into(),
        roles: [Role::Verify].into(),
        timers_of: Default::default(),
    };
    Call { caller, user_id: Some(USER), trace_id: None }
}

#[tokio::test]
async fn no_flipped_bit_and_no_cut_passes() {
    let desk = Desk::new();
    let text = desk.hold(&fields("held"));
    let mut texts = Vec::new();
    for at in 0..text.len() {
        texts.push(text[..at].to_owned());
        for bit in 0..7 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            texts.push(String::from_utf8(bytes).unwrap());
        }
    }
    for some in texts.chunks(TEXTS_MAX) {
        let verdicts = desk.verifier.verify(TENANT, USER, some).await.unwrap();
        for (text, verdict) in some.iter().zip(verdicts) {
            assert_eq!(verdict, Verdict::Illegal, "{text}");
        }
    }
    assert!(matches!(verdict(&desk, &text).await, Verdict::Valid(_)));
}

#[tokio::test]
async fn every_field_counts_and_a_text_minted_anew_does_not() {
    let desk = Desk::new();
    desk.hold(&fields("order"));
    let again = desk.mint(&fields("order"));
    assert!(matches!(verdict(&desk, &again).await, Verdict::Valid(_)));
    let own = fields("order");
    let others = [
        TokenFields { app_id: "x", ..own },
        TokenFields { scene: "x", ..own },
        TokenFields { bonus_type: "coin", ..own },
        TokenFields { amount: 889, ..own },
        TokenFields { description: "x", ..own },
    ];
    for other in others {
        assert_eq!(verdict(&desk, &desk.mint(&other)).await, Verdict::Illegal, "{other:?}");
    }
    assert_eq!(verdict(&desk, &desk.mint(&fields("order2"))).await, Verdict::Unknown);
    // The same number in another activity is another order.
    let elsewhere = TokenFields { activity: "x", ..own };
    assert_eq!(verdict(&desk, &desk.mint(&elsewhere)).await, Verdict::Unknown);
    assert_eq!(desk.verifier.stats().illegal_by(Cause::Differs), 5);
}

/// A repeated send takes its award time from the clock again: the user may hold either token, the store either.
#[tokio::test]
async fn the_award_time_of_a_repeated_send_does_not_count_but_the_earlier_one_is_revoked() {
    let mut desk = Desk::new();
    let (first, second) = (TokenFields { award_time_ms: 1_000, ..fields("order") }, fields("order"));
    for (presented, stored) in [(first, second), (second, first)] {
        desk.hold(&stored);
        let Verdict::Valid(content) = verdict(&desk, &desk.mint(&presented)).await else { panic!() };
        assert_eq!(TokenFields::from(&content), first);
    }
    let before = |before_ms| Revoked::Activity { activity: "spring-2027".into(), before_ms };
    desk.revoke([before(1_000)]);
    assert!(matches!(verdict(&desk, &desk.mint(&second)).await, Verdict::Valid(_)));
    desk.revoke([before(1_001)]);
    for (presented, stored) in [(first, second), (second, first)] {
        desk.hold(&stored);
        assert_eq!(verdict(&desk, &desk.mint(&presented)).await, Verdict::Illegal);
    }
    assert_eq!(desk.verifier.stats().illegal_by(Cause::Revoked), 2);
}

#[tokio::test]
async fn somebody_elses_token_is_illegal_whoever_holds_it() {
    let desk = Desk::new();
    let theirs = desk.hold(&TokenFields { user_id: USER + 1, ..fields("theirs") });
    assert_eq!(verdict(&desk, &theirs).await, Verdict::Illegal);
    // Even where it lies under this user by mistake.
    desk.store.put_text(USER, "theirs", &theirs);
    assert_eq!(verdict(&desk, &theirs).await, Verdict::Illegal);
    assert_eq!(desk.verifier.verify("rival", USER + 1, &[&theirs]).await.unwrap(), [Verdict::Illegal]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_answer_makes_neither_valid_nor_unknown() {
    let desk = Desk::new();
    let held = desk.hold(&fields("held"));
    for (failures, mood) in [Mood::Refuses, Mood::Hangs, Mood::Short].into_iter().enumerate() {
        desk.mood(mood);
        let started = tokio::time::Instant::now();
        let verdicts = desk.verifier.verify(TENANT, USER, &[held.as_str(), &altered(&held)]).await.unwrap();
        assert_eq!(verdicts, [Verdict::Unavailable, Verdict::Illegal], "{mood:?}");
        assert!(started.elapsed() <= std::time::Duration::from_millis(600), "{mood:?}");
        assert_eq!(desk.verifier.stats().unavailable, u64::try_from(failures).unwrap() + 1);
    }
    assert_eq!(desk.verifier.stats().store_failures, 2);
    desk.mood(Mood::Fine);
    assert!(matches!(verdict(&desk, &held).await, Verdict::Valid(_)));
}

#[tokio::test]
async fn at_most_512_a_call() {
    let desk = Desk::new();
    let text = desk.hold(&fields("held"));
    let texts = vec![text.clone(); TEXTS_MAX];
    let verdicts = desk.verifier.verify(TENANT, USER, &texts).await.unwrap();
    assert!(verdicts.len() == TEXTS_MAX && verdicts.iter().all(|one| matches!(one, Verdict::Valid(_))));
    let texts = vec![text; TEXTS_MAX + 1];
    let refused = desk.verifier.verify(TENANT, USER, &texts).await;
    assert_eq!(refused, Err(VerifyError::TooMany { texts: 513 }));
    assert_eq!(desk.verifier.verify::<&str>(TENANT, USER, &[]).await, Ok(vec![]));
    assert_eq!(desk.reads(), 1);
}

#[tokio::test]
async fn revocations_are_in_force_with_the_next_call() {
    let mut desk = Desk::new();
    let text = desk.hold(&fields("held"));
    let valid = verdict(&desk, &text).await;
    assert!(matches!(valid, Verdict::Valid(_)));
    let activity = |before_ms| Revoked::Activity { activity: "spring-2027".into(), before_ms };
    let cases = [
        (Revoked::Key(1), true),
        (Revoked::Key(2), false),
        (activity(1_800_000_000_001), true),
        (activity(1_800_000_000_000), false),
        (Revoked::Activity { activity: "autumn".into(), before_ms: i64::MAX >> 11 }, false),
        (Revoked::TradeNo("held".into()), true),
        (Revoked::TradeNo("hel".into()), false),
    ];
    let mut revoked = 0;
    for (what, is_revoked) in cases {
        desk.revoke([what.clone()]);
        let now = verdict(&desk, &text).await;
        assert_eq!(now == Verdict::Illegal, is_revoked, "{what:?}");
        revoked += u64::from(is_revoked);
    }
    assert_eq!(desk.verifier.stats().illegal_by(Cause::Revoked), revoked);
    desk.revoke([]);
    assert_eq!(verdict(&desk, &text).await, valid);
}

/// The secrets of key 1 are in other hands, and so may be what was stored with it.
#[tokio::test]
async fn a_revoked_key_proves_nothing_in_the_store_either() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let mut file = KeyFile::create(&path, Algorithm::HmacSha256, 0).unwrap();
    let old = KeyRing::load(&path).unwrap();
    let next = file.add(Algorithm::HmacSha256, 0).unwrap();
    file.promote(next).unwrap();
    file.promote(next).unwrap();
    let mut desk = Desk::with(KeyRing::load(&path).unwrap());
    desk.store.put_text(USER, "order", &mint(&old, TENANT, &fields("order")));
    let of_new_key = desk.mint(&fields("order"));
    assert!(matches!(verdict(&desk, &of_new_key).await, Verdict::Valid(_)));
    desk.revoke([Revoked::Key(1)]);
    assert_eq!(verdict(&desk, &of_new_key).await, Verdict::Illegal);
}

#[tokio::test]
async fn a_changed_ring_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let mut file = KeyFile::create(&path, Algorithm::HmacSha256, 0).unwrap();
    let desk = Desk::with(KeyRing::load(&path).unwrap());
    let old = desk.hold(&fields("old"));

    let next = file.add(Algorithm::Ed25519, 0).unwrap();
    file.promote(next).unwrap();
    file.promote(next).unwrap();
    let ring = KeyRing::load(&path).unwrap();
    let new = mint(&ring, TENANT, &fields("new"));
    desk.store.put_text(USER, "new", &new);
    assert_eq!(verdict(&desk, &new).await, Verdict::Illegal, "not yet");
    desk.verifier.set_keys(ring).unwrap();
    for text in [&old, &new] {
        assert!(matches!(verdict(&desk, text).await, Verdict::Valid(_)), "old and new keys");
    }

    file.destroy(KeyId(1)).unwrap();
    desk.verifier.set_keys(KeyRing::load(&path).unwrap()).unwrap();
    assert_eq!(verdict(&desk, &old).await, Verdict::Illegal);
    assert!(matches!(verdict(&desk, &new).await, Verdict::Valid(_)));
}
