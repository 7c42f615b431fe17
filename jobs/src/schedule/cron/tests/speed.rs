//! How long the search takes.

use super::{at, cron};
use std::hint::black_box;
use std::time::Instant;

#[test]
#[ignore = "a measurement, for `cargo test --release -- --ignored --nocapture`"]
fn measure_next_after() {
    let cases = [
        ("* * * * * ?", "UTC"),
        ("* * * * * ?", "Asia/Shanghai"),
        ("* * * * * ?", "Europe/Berlin"),
        ("0 0/5 * * * ?", "Europe/Berlin"),
        ("0 30 2 * * ?", "Europe/Berlin"),
        ("0 0 9 ? * MON#1", "Europe/Berlin"),
        ("0 0 0 29 2 ?", "Europe/Berlin"),
        ("0 0 0 1 1 ? 2199", "Europe/Berlin"),
        ("* * * 1 1 ? 2199", "Europe/Berlin"),
    ];
    for (expression, zone) in cases {
        let schedule = cron(expression, zone);
        let mut now_ms = at("2026-01-01T00:00:00[UTC]");
        let rounds = 100_000;
        let started = Instant::now();
        for _ in 0..rounds {
            now_ms = black_box(schedule.next_after(now_ms)).unwrap_or(1_767_225_600_000);
        }
        let nanos = started.elapsed().as_nanos() / rounds;
        println!("{expression:24} {zone:16} {nanos} ns");
    }
    let far = cron("* * * 1 1 ? 2199", "Europe/Berlin");
    let started = Instant::now();
    black_box(far.next_after(at("2026-01-02T00:00:00[UTC]")));
    println!("an interval of the last year: {:?}", started.elapsed());
    let started = Instant::now();
    assert!(crate::schedule::CronSchedule::new("0 0 0 30 2 ?", "Europe/Berlin").is_err());
    println!(
        "refused after {:?}; a schedule has {} bytes",
        started.elapsed(),
        size_of::<crate::schedule::Schedule>()
    );
}
