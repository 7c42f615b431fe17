//! Prints nanoseconds a mint, median of several runs: `cargo run --release -p windfall-token --example mint`.

use std::{hint::black_box, time::Instant};

use windfall_token::{Algorithm, KeyRing, TokenFields};

const RUNS: usize = 15;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fields = TokenFields {
        trade_no: "spring-2027:rain:1:1234567890:000000000042",
        user_id: 1_234_567_890,
        app_id: "com.example.short-video",
        activity: "spring-2027",
        scene: "red-packet-rain",
        bonus_type: "cash",
        amount: 888,
        award_time_ms: 1_800_000_000_000,
        description: "Happy new year: 8.88 yuan",
    };
    println!("BonusToken: {} bytes", fields.encoded_len());
    for (algorithm, mints) in [(Algorithm::HmacSha256, 200_000), (Algorithm::Ed25519, 10_000)] {
        let ring = KeyRing::ephemeral_of(algorithm)?;
        let minter = ring.minter("acme")?;
        let mut text = String::new();
        let into = median_ns(mints, || {
            text.clear();
            minter.mint_into(black_box(&fields), 0, &mut text)?;
            black_box(&text);
            Ok(())
        })?;
        let mint = median_ns(mints, || {
            black_box(minter.mint(black_box(&fields), 0)?);
            Ok(())
        })?;
        let open = median_ns(mints / 4, || {
            black_box(ring.open(text.as_bytes(), "acme", fields.user_id)?);
            Ok(())
        })?;
        println!(
            "{algorithm}: {} bytes of text, mint_into {into} ns, mint {mint} ns, open {open} ns",
            text.len()
        );
    }
    Ok(())
}

/// The median over [`RUNS`] runs of what one call takes.
fn median_ns(
    calls: u32,
    mut call: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<u128, Box<dyn std::error::Error>> {
    let mut runs = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let begun = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        runs.push(begun.elapsed().as_nanos() / u128::from(calls));
    }
    runs.sort_unstable();
    Ok(runs[RUNS / 2])
}
