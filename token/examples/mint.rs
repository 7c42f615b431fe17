//! Prints the nanoseconds of one mint: `cargo run --release -p windfall-token --example mint`.
//! It prints the median over many short runs, and the fastest run, which shows the cost on an idle core also where the
//! machine is shared.

use std::{hint::black_box, time::Instant};

use windfall_token::{Algorithm, KeyRing, TokenFields};

const RUNS: usize = 401;
/// The length of one run in nanoseconds, roughly: shorter than a scheduler's slice.
const RUN_NS: u128 = 1_000_000;

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
    for algorithm in [Algorithm::HmacSha256, Algorithm::Ed25519] {
        let ring = KeyRing::ephemeral_of(algorithm)?;
        let minter = ring.minter("acme")?;
        let mut text = String::new();
        measure(&format!("{algorithm} mint_into"), || {
            text.clear();
            minter.mint_into(black_box(&fields), 0, &mut text)?;
            black_box(&text);
            Ok(())
        })?;
        measure(&format!("{algorithm} mint"), || {
            black_box(minter.mint(black_box(&fields), 0)?);
            Ok(())
        })?;
        measure(&format!("{algorithm} open"), || {
            black_box(ring.open(text.as_bytes(), "acme", fields.user_id)?);
            Ok(())
        })?;
        println!("{algorithm}: {} bytes of text", text.len());
    }
    Ok(())
}

/// Prints what one call takes.
fn measure(
    name: &str,
    mut call: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut run = |calls: u128| {
        let begun = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        Ok::<_, Box<dyn std::error::Error>>(begun.elapsed().as_nanos() / calls)
    };
    let calls = (RUN_NS / run(100)?.max(1)).max(1);
    let mut runs = (0..RUNS).map(|_| run(calls)).collect::<Result<Vec<_>, _>>()?;
    runs.sort_unstable();
    println!("{name}: median {} ns, fastest {} ns", runs[RUNS / 2], runs[0]);
    Ok(())
}
