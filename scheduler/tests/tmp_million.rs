#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_precision_loss)]
mod model;
use model::{ModelStore, World, rules, target_rules};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use windfall_scheduler::{Class, TargetRules};

#[test]
fn million() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let wide = TargetRules { concurrency: 16, ..target_rules(10) };
        let world = World::new(ModelStore::new(64, 1, None), vec![("shop", rules(Class::Normal, wide))]);
        world.target().takes_ms.store(2, Ordering::SeqCst);
        let started = Instant::now();
        let due_ms = world.store.now_ms() + 25_000;
        let dispatcher = world.dispatcher("a");
        for part in 0..125u64 {
            let now = world.store.now_ms();
            let (a, b, c, d, e, f, g, h) = tokio::join!(
                world.add("shop", part * 8000..part * 8000 + 1000, |n| (due_ms - now + n % 1000) as i64),
                world.add("shop", part * 8000 + 1000..part * 8000 + 2000, |n| (due_ms - now + n % 1000)
                    as i64),
                world.add("shop", part * 8000 + 2000..part * 8000 + 3000, |n| (due_ms - now + n % 1000)
                    as i64),
                world.add("shop", part * 8000 + 3000..part * 8000 + 4000, |n| (due_ms - now + n % 1000)
                    as i64),
                world.add("shop", part * 8000 + 4000..part * 8000 + 5000, |n| (due_ms - now + n % 1000)
                    as i64),
                world.add("shop", part * 8000 + 5000..part * 8000 + 6000, |n| (due_ms - now + n % 1000)
                    as i64),
                world.add("shop", part * 8000 + 6000..part * 8000 + 7000, |n| (due_ms - now + n % 1000)
                    as i64),
                world.add("shop", part * 8000 + 7000..part * 8000 + 8000, |n| (due_ms - now + n % 1000)
                    as i64),
            );
            drop((a, b, c, d, e, f, g, h));
        }
        println!("added in {:?}, flushes {}", started.elapsed(), world.timers.stats().flushes);
        while world.store.now_ms() < due_ms {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let began = Instant::now();
        println!(
            "memory {} MB, deferred {}",
            dispatcher.stats().memory_bytes.get() >> 20,
            dispatcher.stats().deferred.get()
        );
        while world.target().got.lock().len() < 1_000_000 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        println!(
            "fired in {:?}; lateness {:?}; batches {}",
            began.elapsed(),
            dispatcher.stats().lateness.cumulative(),
            world.target().sizes.lock().len()
        );
        let mut waits = 0;
        while world.store.waiting_count() > 0 && waits < 500 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            waits += 1;
        }
        println!("noted in {:?}, store errors {}", began.elapsed(), dispatcher.stats().store_errors.get());
    });
}
