//! Random steps on a simulated clock against a model of what was acknowledged.

use super::*;
use std::collections::BTreeMap;

/// What a task may be: due time and payload, or `None` where it is cancelled. It may be several things after changes
/// that had no answer.
type Possible = Vec<Option<(u64, String)>>;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn place(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    fn shard(&mut self) -> u16 {
        u16::try_from(self.below(16)).unwrap()
    }
}

/// Runs so many steps, and returns what was answered.
async fn run(seed: u64, steps: u32) -> Vec<String> {
    let mut random = Random(seed);
    let mut world = World::new().await;
    let mut tasks: BTreeMap<TaskId, Possible> = BTreeMap::new();
    let mut cancelled: Vec<TaskId> = Vec::new();
    let mut trace = Vec::new();
    for step in 0..steps {
        let known = || tasks.keys().copied().collect::<Vec<_>>();
        let what = random.below(100);
        match what {
            0..=39 => {
                let due_ms = world.now_ms() + 3 * HOUR_MS + random.below(30 * HOUR_MS);
                let payload = format!("{step}");
                if let Ok(id) = world.add(random.shard(), due_ms, &payload).await {
                    assert!(!cancelled.contains(&id) && !tasks.contains_key(&id), "{id} is given twice");
                    trace.push(format!("{id} {due_ms}"));
                    tasks.insert(id, vec![Some((due_ms, payload))]);
                } else {
                    trace.push("add failed".into());
                }
            }
            40..=69 if !tasks.is_empty() => {
                let ids = known();
                let id = ids[random.place(ids.len())];
                let due_ms = (random.below(3) == 0).then(|| world.now_ms() + random.below(40 * HOUR_MS));
                let payload = format!("{step} changed");
                let to = (what < 60).then(|| Moved { due_ms, payload: Some(payload.clone().into()) });
                let possible = tasks.get_mut(&id).unwrap();
                let changed = |(old_ms, _): &(u64, String)| {
                    (what < 60).then(|| (due_ms.unwrap_or(*old_ms), payload.clone()))
                };
                let after: Possible = possible.iter().flatten().map(changed).collect();
                match world.change(id, to).await {
                    Ok(Changed::Done(_)) if what < 60 => *possible = after,
                    Ok(Changed::Done(_)) => {
                        tasks.remove(&id);
                        cancelled.push(id);
                    }
                    Ok(Changed::Cancelled) => {
                        assert!(possible.contains(&None), "{id} was not cancelled: {possible:?}");
                        tasks.remove(&id);
                        cancelled.push(id);
                    }
                    Ok(other) => panic!("{id}: {other:?}"),
                    Err(_) => possible.extend(after),
                }
                trace.push(format!("{id} changed"));
            }
            70..=79 if !tasks.is_empty() => {
                let ids = known();
                let id = ids[random.place(ids.len())];
                if let Ok(found) = world.get(id).await {
                    let found = found.filter(|found| found.state == Waiting::Waiting);
                    let payload = found.map(|found| found.record.payload);
                    let is = |one: &Option<(u64, String)>| {
                        one.as_ref().map(|(_, payload)| payload.as_bytes()) == payload.as_deref()
                    };
                    assert!(tasks[&id].iter().any(is), "{id}: {payload:?}, {:?}", tasks[&id]);
                }
            }
            80..=84 => drop(world.far.flush(0).await),
            85..=87 => drop(world.far.compact().await),
            88..=92 => {
                world.wait_ms(random.below(2 * HOUR_MS));
                drop(world.load().await);
            }
            93..=94 => world.objects.set_away(random.below(3) == 0),
            95..=96 => {
                let at = FailPoint::ALL[random.place(FailPoint::ALL.len())];
                world.die_at(at, 1);
            }
            _ => {}
        }
        if world.far.0.fail_points.is_dead() || what == 99 {
            world.objects.set_away(false);
            world = world.restart().await;
            trace.push("restart".into());
        }
    }
    world.objects.set_away(false);
    let mut world = world.restart().await;
    // What is loaded is what was acknowledged, each task once.
    world.wait_ms(80 * HOUR_MS);
    world.load().await.unwrap();
    let mut near: BTreeMap<TaskId, (u64, String)> = BTreeMap::new();
    for (id, due_ms, payload) in world.near_tasks().await {
        assert_eq!(near.insert(id, (due_ms, payload)), None, "{id} is near twice");
    }
    for id in &cancelled {
        assert_eq!(near.get(id), None, "{id} was cancelled");
    }
    for (id, possible) in &tasks {
        let is = near.remove(id);
        assert!(possible.contains(&is), "{id}: {is:?}, {possible:?}");
    }
    // An add without an answer may be there.
    let unanswered = trace.iter().filter(|line| *line == "add failed").count();
    assert!(near.len() <= unanswered, "{near:?}");
    world.far.compact().await.unwrap();
    assert_eq!((world.waiting(), world.far.gauges().segments), (0, 0));
    trace.push(format!("{:?}", world.near_tasks().await.len()));
    trace
}

#[tokio::test]
async fn random_steps_lose_repeat_and_revive_nothing() {
    let seeds = std::env::var("WINDFALL_FAR_SEEDS").map_or(16, |seeds| seeds.parse().unwrap());
    for seed in 1..=seeds {
        let first = run(seed * 0x9e37_79b9, 400).await;
        if seed == 1 {
            assert_eq!(run(seed * 0x9e37_79b9, 400).await, first, "the same seed, the same trace");
        }
    }
}
