//! What becomes of timers whose tenants' numbers the store has lost, on a simulated clock.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod model;

use model::{ModelStore, World, rules, simulate, sleep_ms, target_rules, wait_for};
use std::sync::Arc;
use windfall_contract::due::{KnownName, Route, SlotStore, Target};
use windfall_scheduler::{Class, DispatchOptions, Dispatcher};

fn two_tenants() -> World {
    let tenant = || rules(Class::Normal, target_rules(10));
    World::new(ModelStore::new(16, 1, None), vec![("acme", tenant()), ("beta", tenant())])
}

#[test]
fn names_that_the_store_has_lost_are_put_back_before_the_next_process_asks() {
    simulate(async {
        let world = two_tenants();
        let dispatcher = world.dispatcher("a");
        sleep_ms(8_000).await;
        world.add("beta", 0..100, |_| 20_000).await;
        world.store.lose_names();
        sleep_ms(8_000).await;
        // Whoever is first puts them back.
        assert!(dispatcher.stats().names_put_back.get() + world.timers.stats().names_put_back > 0);
        drop(dispatcher);
        let next = world.dispatcher("b");
        wait_for("timers of before", 30_000, || world.targets["beta"].distinct() == 100).await;
        assert_eq!(world.targets["acme"].distinct(), 0);
        assert_eq!(next.stats().names_taken.get(), 0);
    });
}

/// The numbers are lost, and somebody else names the tenants in another order before anybody can put them back.
#[test]
fn a_number_that_another_tenant_has_by_now_is_fired_for_nobody() {
    simulate(async {
        let world = two_tenants();
        let dispatcher = world.dispatcher("a");
        sleep_ms(8_000).await;
        let acme = world.store.tenant("acme").await.unwrap();
        world.add("acme", 0..50, |_| 10_000).await;
        world.store.lose_names();
        assert_eq!(world.store.tenant("beta").await.unwrap(), acme, "the test needs it");
        // The number that was beta's is withheld as well.
        world.store.tenant("third").await.unwrap();
        assert!(world.store.tenant("acme").await.unwrap() > acme + 1);
        world.store.target(acme, "out").await.unwrap();
        sleep_ms(8_000).await;
        assert!(dispatcher.stats().names_taken.get() > 0);
        assert!(world.timers.stats().names_taken > 0);
        // What is added from now on has the new number, and fires.
        world.add("acme", 100..150, |_| 10_000).await;
        sleep_ms(30_000).await;
        let mut fired = world.targets["acme"].numbers();
        fired.sort_unstable();
        assert_eq!(fired, (100..150).collect::<Vec<_>>());
        assert_eq!(world.targets["beta"].distinct(), 0, "nothing of acme goes to beta");
    });
}

#[test]
fn tasks_of_a_number_that_nobody_knew_fire_as_soon_as_somebody_puts_it_back() {
    simulate(async {
        let world = two_tenants();
        // Only the process that adds knows the names, and it is away while the store loses them.
        world.add("beta", 0..20, |_| 1_000).await;
        let tenant = world.store.tenant("beta").await.unwrap();
        let route = Route { tenant, target: world.store.target(tenant, "out").await.unwrap() };
        world.timers.close().await;
        world.store.lose_names();
        // A process without these tenants reads the tasks first.
        let stranger = World::new(ModelStore::new(16, 2, None), vec![]);
        let tenants = Arc::clone(&stranger.tenants);
        let targets =
            [(("beta".to_owned(), "out".to_owned()), Arc::clone(&world.targets["beta"]) as Arc<dyn Target>)];
        let store = Arc::clone(&world.store) as Arc<dyn SlotStore>;
        let _dispatcher = Dispatcher::start(
            DispatchOptions::default(),
            tenants,
            store,
            targets.into(),
            "a".to_owned(),
            model::clock(),
        );
        sleep_ms(8_000).await;
        assert_eq!(world.targets["beta"].distinct(), 0);
        let known =
            KnownName { tenant: (route.tenant, "beta".into()), target: Some((route.target, "out".into())) };
        world.store.keep_names(&[known]).await.unwrap();
        wait_for("timers of before", 10_000, || world.targets["beta"].distinct() == 20).await;
    });
}
