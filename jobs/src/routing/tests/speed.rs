//! How long a choice takes.

use super::{addresses, router};
use crate::routing::{Request, Strategy};
use std::hint::black_box;
use std::time::Instant;

#[test]
#[ignore = "a measurement, for `cargo test --release -- --ignored --nocapture`"]
fn measure_choices() {
    for strategy in Strategy::ALL {
        let mut line = format!("{strategy:24}");
        for executors in [10, 100, 1_000] {
            let router = router();
            let alive = addresses(executors);
            let rounds = 4_000_000 / (executors as u64 + 20);
            let rounds_of_jobs = |from| {
                for round in from..from + rounds {
                    let request = Request { job: round % 20_000, key: None, strategy, now_ms: round };
                    black_box(router.choose(&request, &alive));
                }
            };
            rounds_of_jobs(0);
            let started = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| rounds_of_jobs(0));
                rounds_of_jobs(rounds);
            });
            let nanos = started.elapsed().as_nanos() / u128::from(rounds) / 2;
            line += &format!(" {executors} executors: {nanos:6} ns");
        }
        println!("{line}");
    }
}
