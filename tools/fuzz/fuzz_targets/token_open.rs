//! I7: what is not a token opens to nothing, a token that was changed opens to nothing, and one that was not opens
//! to what was minted, for its owner and tenant alone.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use windfall_token::{Algorithm, Illegal, KeyRing, Minter, StoreAnswer, TokenFields, Verdict};

const NOW_MS: u64 = 1_800_000_000_000;
const TENANT: &str = "acme";

struct Known {
    ring: KeyRing,
    minter: Minter,
    token: String,
}

fn known() -> &'static [Known; 2] {
    static KNOWN: OnceLock<[Known; 2]> = OnceLock::new();
    KNOWN.get_or_init(|| {
        [Algorithm::HmacSha256, Algorithm::Ed25519].map(|algorithm| {
            let ring = KeyRing::ephemeral_of(algorithm).expect("randomness");
            let minter = ring.minter(TENANT).expect("a primary key");
            let token = minter.mint(&fields(), NOW_MS).expect("good fields");
            Known { ring, minter, token }
        })
    })
}

fn fields() -> TokenFields<'static> {
    TokenFields {
        trade_no: "spring-2027:rain:1:42",
        user_id: 42,
        app_id: "app",
        activity: "spring-2027",
        scene: "red-packet-rain",
        bonus_type: "cash",
        amount: 888,
        award_time_ms: 1,
        description: "",
    }
}

/// Edits, four bytes each: what, where (2), with what.
fn edit(text: &mut Vec<u8>, edits: &[u8]) {
    for one in edits.chunks_exact(4).take(64) {
        let at = usize::from(u16::from_le_bytes([one[1], one[2]])) % (text.len() + 1);
        match one[0] % 5 {
            0 if at < text.len() => text[at] = one[3],
            1 if at < text.len() => text[at] ^= 1 << (one[3] % 8),
            2 => text.insert(at, one[3]),
            3 if at < text.len() => drop(text.remove(at)),
            4 => text.truncate(at),
            _ => {}
        }
    }
}

fn changed(known: &Known, edits: &[u8]) {
    let mut text = known.token.clone().into_bytes();
    edit(&mut text, edits);
    let opened = known.ring.open(&text, TENANT, 42);
    if text == known.token.as_bytes() {
        assert_eq!(opened.expect("the token itself").amount, 888);
        assert_eq!(known.ring.open(&text, TENANT, 43), Err(Illegal));
        assert_eq!(known.ring.open(&text, "other", 42), Err(Illegal));
        return;
    }
    assert_eq!(opened, Err(Illegal), "a token that was changed");
    if let Ok(text) = std::str::from_utf8(&text) {
        // Whatever the store says, also that it holds this very text.
        assert_eq!(known.ring.verify(text, StoreAnswer::Held(text), TENANT, 42), Verdict::Illegal);
    }
}

/// Fields out of the input: what can be minted opens to the same.
fn minted(known: &Known, bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut parts = text.splitn(8, '\n');
    let mut next = || parts.next().unwrap_or_default();
    let mut number = || next().parse().unwrap_or(1);
    let (user_id, amount, award_time_ms) = (number(), number(), number());
    let fields = TokenFields {
        trade_no: next(),
        user_id,
        app_id: "app",
        activity: next(),
        scene: next(),
        bonus_type: next(),
        amount,
        award_time_ms,
        description: next(),
    };
    let Ok(token) = known.minter.mint(&fields, NOW_MS) else { return };
    let opened = known.ring.open(token.as_bytes(), TENANT, user_id).expect("just minted");
    let same = opened.trade_no == fields.trade_no
        && opened.user_id == user_id
        && opened.app_id == "app"
        && opened.activity == fields.activity
        && opened.scene == fields.scene
        && opened.bonus_type == fields.bonus_type
        && opened.amount == amount
        && opened.award_time_ms == award_time_ms
        && opened.description == fields.description;
    assert!(same, "{opened:?} is not {fields:?}");
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    let known = &known()[usize::from(mode & 1)];
    match mode >> 1 & 3 {
        0 => assert_eq!(known.ring.open(rest, TENANT, 42), Err(Illegal), "nobody minted this"),
        1 => minted(known, rest),
        _ => changed(known, rest),
    }
});
