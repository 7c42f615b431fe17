use super::*;
use crate::dispatch::memory::{RESERVE_BYTES, TargetMemory};
use crate::dispatch::shedding::Shedding;
use crate::stats::TargetStats;
use crate::tenants::{Class, TargetRules};
use std::sync::atomic::AtomicBool;
use windfall_contract::due::Route;

const MINUTE: SlotMinute = SlotMinute(10);
const START_MS: u64 = 600_000;

fn info(lane: usize) -> Arc<TargetInfo> {
    Arc::new(TargetInfo {
        lane,
        tenant_lane: 0,
        tenant: "shop".into(),
        class: Class::Normal,
        rules: TargetRules::default(),
        target: None,
        is_unknown: false,
        is_outdated: AtomicBool::new(false),
        memory: TargetMemory::default(),
        shedding: Shedding::default(),
        stats: Arc::new(TargetStats::default()),
    })
}

fn task(offset_ms: u16, info: &Arc<TargetInfo>) -> ReadEntry {
    sized(offset_ms, Bytes::new(), info)
}

fn sized(offset_ms: u16, payload: Bytes, info: &Arc<TargetInfo>) -> ReadEntry {
    let route = Route { tenant: 1, target: 1 };
    let record = DueRecord { offset_ms, route, key: None, asked_ms: None, first_id: None, payload };
    ReadEntry::Task(record, Arc::clone(info))
}

fn slot(max_bytes: usize, done: &'static [u8]) -> (Slot, Arc<Memory>) {
    let memory = Arc::new(Memory::new(max_bytes, 0));
    let state = SlotState { done: done.into(), attempts: [(1, 4)].into() };
    (Slot::new(MINUTE, state, 10_000, Arc::clone(&memory)), memory)
}

fn due(slot: &mut Slot) -> Vec<(u32, u32)> {
    let mut due = Vec::new();
    slot.take_due(|_, task| due.push((task.index, task.attempts)));
    due
}

fn over(slot: &mut Slot, index: u32) {
    let what = What::Over { tenant: 1, key: None };
    slot.finish(Shard(0), START_MS, Outcome { slot: MINUTE, index, what });
}

#[test]
fn tasks_go_in_the_order_of_their_time_and_none_above_the_watermark() {
    let (mut slot, _) = slot(1 << 20, &[]);
    let info = info(0);
    slot.take_in(0, vec![task(50, &info), task(20, &info), task(1_000, &info), task(20, &info)], START_MS);
    slot.saw(START_MS + 20, 4);
    assert_eq!(due(&mut slot), [(1, 4), (3, 0)]);
    slot.saw(START_MS + 999, 4);
    assert_eq!(due(&mut slot), [(0, 0)]);
    slot.saw(START_MS + 60_000, 4);
    assert_eq!(due(&mut slot), [(2, 0)]);
}

#[test]
fn a_watermark_counts_when_every_entry_that_it_counted_was_read() {
    let (mut slot, _) = slot(1 << 20, &[]);
    let info = info(0);
    slot.take_in(0, vec![task(5, &info)], START_MS);
    slot.saw(START_MS + 10, 3);
    assert_eq!(due(&mut slot), [], "an end may be among the two that were not read");
    slot.take_in(1, vec![task(7, &info)], START_MS);
    slot.saw(START_MS + 20, 4);
    assert_eq!(due(&mut slot), []);
    slot.take_in(2, vec![ReadEntry::End(0)], START_MS);
    slot.saw(START_MS + 30, 5);
    assert_eq!(due(&mut slot), [(1, 4)], "the first watermark counts now, and the first task was cancelled");
    assert!(slot.is_behind());
}

#[test]
fn a_slot_is_over_when_all_of_it_is_over_and_noted() {
    let (mut slot, _) = slot(1 << 20, &[0b0100_0000]);
    let info = info(0);
    slot.take_in(0, vec![task(5, &info), task(6, &info), task(7, &info), ReadEntry::End(2)], START_MS);
    slot.saw(START_MS + 60_000, 4);
    assert_eq!(due(&mut slot), [(0, 0)], "the second one was done before, the third one was cancelled");
    assert!(!slot.is_over(START_MS + 60_000));
    over(&mut slot, 0);
    let news = slot.take_news(7);
    assert_eq!(
        (news.sequence, news.done, news.over),
        (7, vec![(0, Bytes::from_static(&[0b1111_0000]))], [(1, 1)].into())
    );
    assert!(slot.is_over(START_MS + 60_000) && !slot.is_over(START_MS + 59_999));
}

#[test]
fn changed_bytes_that_lie_together_are_one_part() {
    let (mut slot, _) = slot(1 << 20, &[]);
    let info = info(0);
    slot.take_in(0, (0..400).map(|_| task(5, &info)).collect(), START_MS);
    slot.saw(START_MS + 5, 400);
    assert_eq!(due(&mut slot).len(), 400);
    [0, 8, 9, 399].into_iter().for_each(|index| over(&mut slot, index));
    let done = slot.take_news(1).done;
    assert_eq!(done, [(0, Bytes::from_static(&[128, 192])), (49, Bytes::from_static(&[1]))]);
    assert!(!slot.has_news());
}

#[test]
fn what_has_no_room_is_read_again_and_ends_reach_it_meanwhile() {
    let (mut slot, memory) = slot(3_000, &[]);
    let info = info(0);
    let all = || (0..20).map(|at| task(at, &info)).collect::<Vec<_>>();
    assert!(slot.take_in(0, all(), START_MS) > 5);
    slot.take_in(20, vec![ReadEntry::End(19)], START_MS);
    slot.saw(START_MS + 100, 21);
    let mut fired = Vec::new();
    for _ in 0..20 {
        for (index, _) in due(&mut slot) {
            fired.push(index);
            memory.give_back(&info.memory, 176);
            over(&mut slot, index);
        }
        if let Some(from) = slot.read_again_from(START_MS + 100) {
            slot.take_in(from, all().split_off(wide(from)), START_MS);
            slot.take_in(20, vec![ReadEntry::End(19)], START_MS);
        }
    }
    fired.sort_unstable();
    assert_eq!(fired, (0..19).collect::<Vec<_>>());
    assert_eq!(memory.used_bytes(), 0);
    slot.take_news(1);
    assert!(slot.is_over(START_MS + 60_000));
}

#[test]
fn a_slot_that_is_let_go_gives_its_memory_back() {
    let (mut slot, memory) = slot(1 << 20, &[]);
    slot.take_in(0, vec![task(5, &info(0))], START_MS);
    assert!(memory.used_bytes() > 0);
    drop(slot);
    assert_eq!(memory.used_bytes(), 0);
}

#[test]
fn a_slot_that_does_not_fit_is_read_again_as_its_time_comes_and_the_near_tasks_have_the_room() {
    let (mut slot, memory) = slot(6_000, &[]);
    let info = info(0);
    // Forty tasks, the latest ones first: as many as are kept that far ahead, and no more.
    let all = || (0..40_u16).rev().map(|second| task(second * 1_000, &info)).collect::<Vec<_>>();
    let without_room = slot.take_in(0, all(), START_MS - 10_000);
    let kept_bytes = memory.used_bytes();
    assert!(without_room > 0 && kept_bytes <= 3_000, "{without_room} {kept_bytes}");
    slot.saw(START_MS, 40);
    let mut fired = Vec::new();
    let mut passes = 0;
    for now_ms in (START_MS..START_MS + 40_000).step_by(500) {
        if let Some(from) = slot.read_again_from(now_ms) {
            passes += 1;
            slot.take_in(from, all().split_off(wide(from)), now_ms);
        }
        slot.saw(now_ms, 40);
        for (index, _) in due(&mut slot) {
            fired.push((index, now_ms));
            memory.give_back(&info.memory, 176);
            over(&mut slot, index);
        }
    }
    let late = |(index, at_ms): &(u32, u64)| at_ms - (START_MS + u64::from(39 - index) * 1_000);
    assert!(fired.len() == 40 && fired.iter().all(|task| late(task) == 0), "{fired:?}");
    assert!(passes < 40, "{passes}");
}

#[test]
fn a_large_task_that_has_no_room_is_read_again_when_it_has_and_not_before() {
    for (reserve_bytes, has_reserve) in [(0, false), (RESERVE_BYTES, true)] {
        let memory = Arc::new(Memory::new(1 << 20, reserve_bytes));
        let away: Vec<_> = (0..8).map(|_| TargetMemory::default()).collect();
        for target in &away {
            while memory.take(target, 1_000, Need::Now) {}
        }
        let mut slot = Slot::new(MINUTE, SlotState::default(), 10_000, Arc::clone(&memory));
        let info = info(0);
        let large = || vec![sized(9_000, vec![7; 64 << 10].into(), &info)];
        assert_eq!(slot.take_in(0, large(), START_MS), 1, "it has no room ahead of its time");
        for now_ms in (START_MS..START_MS + 7_000).step_by(50) {
            assert_eq!(slot.read_again_from(now_ms), None, "and is not read again in vain");
        }
        let now_ms = START_MS + 9_000;
        assert_eq!(slot.read_again_from(now_ms), has_reserve.then_some(0));
        slot.take_in(0, large(), now_ms);
        slot.saw(now_ms, 1);
        assert_eq!(due(&mut slot).len(), usize::from(has_reserve));
    }
}

fn newest_first(lane: usize) -> Arc<TargetInfo> {
    let rules = TargetRules { catch_up: crate::tenants::CatchUp::NewestFirst, ..TargetRules::default() };
    let Ok(info) = Arc::try_unwrap(info(lane)) else { unreachable!("nobody else has it") };
    Arc::new(TargetInfo { rules, ..info })
}

#[test]
fn a_task_that_gave_its_room_to_a_newer_one_is_read_again_with_its_attempts() {
    let (mut slot, memory) = slot(1 << 20, &[]);
    let info = newest_first(0);
    let entries = || vec![task(5, &info), task(6, &info)];
    slot.take_in(0, entries(), START_MS);
    slot.saw(START_MS + 60_000, 2);
    let mut held = Vec::new();
    slot.take_due(|_, task| held.push(task));
    let HeldTask { index, attempts, cost_bytes, .. } = held[1];
    memory.give_back(&info.memory, cost_bytes);
    let route = Route { tenant: 1, target: 1 };
    let back = PutBack { slot: MINUTE, index, offset_ms: 6, route, attempts: attempts + 1, cost_bytes };
    slot.put_back(back, &info);
    assert!(!slot.is_over(START_MS + 60_000));
    assert_eq!(slot.read_again_from(START_MS + 60_000), Some(1));
    slot.take_in(1, entries().split_off(1), START_MS + 60_000);
    assert_eq!(due(&mut slot), [(1, 5)]);
    over(&mut slot, 0);
    over(&mut slot, 1);
    slot.take_news(1);
    assert!(slot.is_over(START_MS + 60_000));
}

#[test]
fn a_minute_that_had_to_leave_takes_no_room_from_newer_ones() {
    let (mut slot, memory) = slot(4_000, &[]);
    let info = newest_first(0);
    assert!(memory.take(&info.memory, 2_990, Need::Now));
    slot.take_in(0, vec![task(5, &info)], START_MS);
    assert_eq!(slot.read_again_from(START_MS), None, "there is no room");
    assert!(!info.shedding.is_wanted(), "nothing older is queued");
    info.shedding.queued_from(Some(SlotMinute(9)));
    assert_eq!(slot.read_again_from(START_MS), None);
    assert_eq!(info.shedding.take_wanted(), Some(MINUTE));
    memory.give_back(&info.memory, 200);
    info.shedding.shed_upto(SlotMinute(9));
    assert_eq!(slot.read_again_from(START_MS), Some(0), "older minutes have left for this one");
    info.shedding.shed_upto(MINUTE);
    slot.take_in(0, vec![task(5, &info)], START_MS);
    assert_eq!(slot.read_again_from(START_MS), None, "it had to leave itself");
    memory.give_back(&info.memory, 1_500);
    assert_eq!(slot.read_again_from(START_MS), Some(0), "there is room for all");
}
