//! Tasks that wait are listed, page by page.

use super::*;
use windfall_contract::due::WaitingPage;

/// All pages of a tenant.
async fn listed(world: &World, tenant: u16, limit: usize) -> Vec<Found> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let WaitingPage { tasks, next } = world.far.list(tenant, after, limit).await.unwrap();
        assert!(tasks.len() <= limit);
        all.extend(tasks);
        match next {
            Some(next) => assert!(after.replace(next) != Some(next), "it goes on"),
            None => return all,
        }
    }
}

fn ids(found: &[Found]) -> Vec<TaskId> {
    found.iter().map(|found| found.id).collect()
}

#[tokio::test]
async fn a_tenant_sees_what_waits_by_hour_and_shard_and_nothing_of_another_one() {
    let mut world = World::new().await;
    let mut expected = Vec::new();
    for number in 0..300_u64 {
        let due_ms = START_MS + (5 + number % 3) * HOUR_MS + number;
        let id =
            world.add(u16::try_from(number % 16).unwrap(), due_ms, &format!("task {number}")).await.unwrap();
        expected.push((due_ms / HOUR_MS, id, format!("task {number}")));
        let other = Route { tenant: 9, target: 9 };
        let task = NewRecord { due_ms, route: other, key: None, payload: "another tenant's".into() };
        world.far.add(Shard(3), vec![task]).await.unwrap();
        if number % 70 == 0 {
            world.far.flush(0).await.unwrap();
        }
    }
    // Neither what was cancelled nor what was moved waits here, wherever its row is.
    let gone: Vec<TaskId> = [5, 100, 299].map(|at: usize| expected[at].1).to_vec();
    assert_eq!(world.change(gone[0], None).await, Ok(Changed::Done(gone[0])));
    assert_eq!(world.change(gone[1], None).await, Ok(Changed::Done(gone[1])));
    let to = Moved { due_ms: Some(START_MS + 99 * HOUR_MS), payload: None };
    assert!(matches!(world.change(gone[2], Some(to)).await, Ok(Changed::Done(_))));
    expected.retain(|(_, id, _)| !gone.contains(id));
    expected.sort();
    for compacts in [false, true] {
        if compacts {
            world.far.flush(0).await.unwrap();
            world.far.compact().await.unwrap();
        }
        for limit in [1, 7, 1_000] {
            let found = listed(&world, TENANT, limit).await;
            let payloads: Vec<_> =
                found.iter().map(|found| String::from_utf8(found.record.payload.to_vec()).unwrap()).collect();
            assert_eq!(ids(&found), expected.iter().map(|(_, id, _)| *id).collect::<Vec<_>>(), "{limit}");
            assert_eq!(payloads, expected.iter().map(|(.., payload)| payload.clone()).collect::<Vec<_>>());
            assert!(found.iter().all(|found| found.state == Waiting::Waiting));
        }
    }
    assert_eq!(listed(&world, 9, 100).await.len(), 300);
    assert_eq!(listed(&world, 8, 100).await, []);
    // What is near is listed there.
    world.wait_ms(4 * HOUR_MS + 1);
    world.load().await.unwrap();
    let left = ids(&listed(&world, TENANT, 10).await);
    let first_hour = expected[0].0;
    let later = expected.iter().filter(|(hour, ..)| *hour > first_hour).map(|(_, id, _)| *id);
    assert_eq!(left, later.collect::<Vec<_>>());
}

/// A page looks at so many rows, also where few are the tenant's.
#[tokio::test]
async fn a_page_reads_a_bounded_part_and_the_next_one_goes_on() {
    let options = FarOptions { flush_bytes: 4 << 20, memory_bytes_max: 64 << 20, ..options() };
    let world = World::with(options).await;
    let due_ms = START_MS + 5 * HOUR_MS;
    let route = Route { tenant: 9, target: 9 };
    let many = NewRecord { due_ms, route, key: None, payload: "x".into() };
    for _ in 0..20 {
        world.far.add(Shard(1), vec![many.clone(); 1_000]).await.unwrap();
    }
    let own = world.add(2, due_ms, "own").await.unwrap();
    for flushes in [false, true] {
        if flushes {
            world.far.flush(0).await.unwrap();
        }
        let first = world.far.list(TENANT, None, 100).await.unwrap();
        assert!(first.tasks.is_empty() && first.next.is_some(), "{first:?}");
        assert_eq!(ids(&listed(&world, TENANT, 100).await), [own]);
    }
    let big = "x".repeat(60_000);
    for _ in 0..40 {
        world.add(3, due_ms, &big).await.unwrap();
    }
    let page = world.far.list(TENANT, None, 1_000).await.unwrap();
    assert!(page.tasks.len() < 20 && page.next.is_some());
    assert_eq!(listed(&world, TENANT, 1_000).await.len(), 41);
}
