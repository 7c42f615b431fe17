use super::*;
use crate::dispatch::term::Moment;
use bytes::Bytes;
use windfall_contract::Clock;
use windfall_contract::due::{DueRecord, Lease, Route, Shard};

fn term(shard: u16) -> Arc<Term> {
    let clock = Clock::from_sources(|| 0, || 0);
    let began = Moment::now(&clock);
    let term = Term::new(Lease { shard: Shard(shard), epoch: 1 }, clock, 2_000, began);
    term.saw_watermark(100 * 60_000);
    Arc::new(term)
}

fn task(minute: u32, index: u32, attempts: u32) -> HeldTask {
    let route = Route { tenant: 1, target: 1 };
    let record =
        DueRecord { offset_ms: 0, route, key: None, asked_ms: None, first_id: None, payload: Bytes::new() };
    HeldTask { slot: SlotMinute(minute), index, attempts, tried_at: None, cost_bytes: 10, record }
}

fn queue(catch_up: CatchUp, terms: &[Arc<Term>]) -> DueQueue {
    let mut queue = DueQueue::new(catch_up);
    for (number, minute) in [(0, 10), (1, 12), (2, 11), (3, 12)] {
        let term = &terms[number % terms.len()];
        queue.push(term, [task(minute, u32::try_from(number).unwrap(), 0)].into());
    }
    queue
}

fn popped(queue: &mut DueQueue, count: usize) -> Vec<u32> {
    queue.sift(count, &mut Vec::new());
    queue.pop(count).iter().flat_map(|part| &part.tasks).map(|task| task.index).collect()
}

#[test]
fn tasks_go_out_as_they_came_or_from_the_newest_minute_on() {
    let terms = [term(0), term(1)];
    assert_eq!(popped(&mut queue(CatchUp::OldestFirst, &terms), 9), [0, 1, 2, 3]);
    let mut newest = queue(CatchUp::NewestFirst, &terms);
    assert_eq!(newest.oldest().map(|(_, task)| task.index), Some(0));
    assert_eq!(popped(&mut newest, 1), [1]);
    newest.push(&terms[0], [task(90, 9, 0), task(91, 10, 0), task(9, 11, 0)].into());
    assert_eq!(popped(&mut newest, 9), [10, 9, 3, 2, 0, 11]);
    assert_eq!((newest.len(), newest.oldest_minute()), (0, None));
}

#[test]
fn a_task_that_was_tried_goes_out_when_its_time_has_come_however_old_it_is() {
    let terms = [term(0)];
    let mut queue = queue(CatchUp::NewestFirst, &terms);
    queue.push(&terms[0], [task(3, 7, 1)].into());
    assert_eq!(popped(&mut queue, 2), [7, 1]);
}

#[test]
fn what_is_set_aside_goes_last_and_is_put_back_to_its_minute() {
    let terms = [term(0)];
    let mut queue = queue(CatchUp::NewestFirst, &terms);
    for probed in [1, 3, 2] {
        let [part] = &mut queue.pop(1)[..] else { panic!("one part") };
        assert_eq!(part.tasks[0].index, probed, "each probe takes another one");
        queue.set_aside(&terms[0], std::mem::take(&mut part.tasks).into());
    }
    queue.restore();
    assert_eq!(popped(&mut queue, 9), [1, 3, 2, 0]);
}

#[test]
fn a_lease_that_may_be_over_holds_up_no_other_shard_and_one_that_is_over_leaves() {
    let terms = [term(0), term(1)];
    let mut queue = queue(CatchUp::NewestFirst, &terms);
    terms[1].close();
    let mut dropped = Vec::new();
    assert_eq!(queue.sift(9, &mut dropped), 2);
    assert_eq!(dropped.iter().map(|task| task.index).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(queue.len(), 2);
    terms[0].close();
    queue.drop_closed(&mut dropped);
    assert_eq!((queue.len(), dropped.len()), (0, 4));
}

#[test]
fn the_oldest_minutes_give_their_room_to_newer_ones_and_to_no_older_one() {
    let terms = [term(0), term(1)];
    let shed = |queue: &mut DueQueue, before, bytes| {
        let (parts, last) = queue.shed(SlotMinute(before), bytes);
        (parts.iter().flat_map(|part| &part.tasks).map(|task| task.index).collect::<Vec<_>>(), last)
    };
    let mut queue = queue(CatchUp::NewestFirst, &terms);
    assert_eq!(shed(&mut queue, 10, 100), (vec![], None));
    assert_eq!(shed(&mut queue, 20, 11), (vec![0, 2], Some(SlotMinute(11))));
    assert_eq!(shed(&mut queue, 12, 100), (vec![], None));
    assert_eq!(queue.oldest_minute(), Some(SlotMinute(12)));
    assert_eq!(popped(&mut queue, 9), [1, 3]);
}
