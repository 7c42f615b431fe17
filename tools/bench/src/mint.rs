//! `mint.hmac` and `mint.ed25519`: one `mint_into` of a token of usual size, the text's buffer reused.

use crate::measure::{Row, Unit, ns_a_call};
use anyhow::Result;
use std::hint::black_box;
use windfall_token::{Algorithm, KeyRing, TokenFields};

/// 155 bytes, encoded.
pub const FIELDS: TokenFields<'_> = TokenFields {
    trade_no: "spring-2027/rain/0000000001/cash/1234567890/0",
    user_id: 1_234_567_890,
    app_id: "windfall",
    activity: "spring-2027",
    scene: "red-packet-rain",
    bonus_type: "cash",
    amount: 888,
    award_time_ms: 1_800_000_000_000,
    description: "red packet",
};

pub fn hmac(name: &'static str) -> Result<Row> {
    measure(name, Algorithm::HmacSha256)
}

pub fn ed25519(name: &'static str) -> Result<Row> {
    measure(name, Algorithm::Ed25519)
}

fn measure(name: &'static str, algorithm: Algorithm) -> Result<Row> {
    let minter = KeyRing::ephemeral_of(algorithm)?.minter(FIELDS.app_id)?;
    let mut text = String::new();
    let [cost_ns] = ns_a_call([&mut |calls| {
        for _ in 0..calls {
            text.clear();
            minter.mint_into(black_box(&FIELDS), 0, &mut text)?;
            black_box(&text);
        }
        Ok(())
    }])?;
    eprintln!("  a token of {} bytes of text", text.len());
    Ok(Row::new(name, cost_ns, Unit::NsACall, None))
}
