//! The I3 check of these tests is worth something: with tickets finished at delivery it reports the damage.
#![cfg(feature = "sabotage")]
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{World, record_of, rules};
use std::time::Duration;
use windfall_consumer::{Options, sabotage};
use windfall_contract::rules::Fuse;

#[tokio::test(start_paused = true)]
async fn an_early_mark_is_reported_as_a_commit_past_a_gap() {
    sabotage::early_mark(true);
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(1, 7, dir.path(), rules(&["cash"]));
    world.set_rules(|rules| rules.limits.types.get_mut("cash").unwrap().fuse = Fuse::Pause);
    world.append(0, record_of("cash", "a", 10));
    let consumer = world.start(Options::default());
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(consumer);
    let violations = world.state.lock().violations.clone();
    assert!(violations.iter().any(|violation| violation.starts_with("I3")), "{violations:?}");
    // What a kill loses then: committed, and neither granted nor anywhere else.
    assert!(world.is_drained() && !world.open_orders().is_empty());
}
