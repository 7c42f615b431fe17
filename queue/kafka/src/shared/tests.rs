use super::*;
use crate::finished::{of_text, to_text, topic_text};
use bytes::Bytes;
use windfall_contract::finished::Finished;

fn state(bytes_max: usize) -> State {
    Shared::new(2, bytes_max).state.into_inner()
}

fn record(partition: u32, offset: u64) -> Read {
    let payload = Bytes::from(vec![0; 1000]);
    (InRecord { partition, epoch: Epoch(0), offset, key: Bytes::new(), payload }, Some(3))
}

fn assign(state: &mut State, partition: u32, next: u64) {
    state.assigned(partition, next, Inherited::default());
}

fn commit(partition: u32, epoch: u32, next_offset: u64) -> Commit {
    Commit { partition, epoch: Epoch(epoch), next_offset, finished: Finished::default() }
}

fn fetch(max_records: usize) -> Fetch {
    Fetch { max_records, max_bytes: usize::MAX, wait: Duration::ZERO }
}

fn offsets(state: &mut State, max_records: usize) -> Vec<(u32, u64)> {
    match state.take(fetch(max_records)) {
        Some(Ok(polled)) => polled.records.iter().map(|one| (one.partition, one.offset)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn a_partition_that_is_lost_while_it_leaves_takes_no_commit_any_more() {
    let mut state = state(10_000);
    assign(&mut state, 0, 0);
    state.append(record(0, 0));
    assert_eq!(offsets(&mut state, 10), [(0, 0)]);
    assert!(state.revoked(0, false));
    assert_eq!(offsets(&mut state, 10), [], "this poll says so");
    assert_eq!(state.commits(&[commit(0, 1, 1)]).len(), 1);
    assert!(!state.revoked(0, true));
    assert_eq!(state.commits(&[commit(0, 1, 1)]), []);
    assert!(!state.begin_poll(), "it is given back already");
}

#[test]
fn a_revoked_partition_goes_with_the_poll_after_the_one_that_says_so() {
    let mut state = state(1 << 20);
    assign(&mut state, 0, 5);
    state.append(record(0, 5));
    assert_eq!(offsets(&mut state, 9), [(0, 5)]);
    state.append(record(0, 6));
    assert!(state.revoked(0, false));
    let commit = commit(0, 1, 6);
    assert!(!state.begin_poll(), "not announced yet");
    assert_eq!(offsets(&mut state, 9), [], "what was read ahead is not ours to bring");
    assert_eq!(state.commits(std::slice::from_ref(&commit)).len(), 1, "announced: commits count");
    assert!(state.begin_poll());
    assert_eq!(state.commits(std::slice::from_ref(&commit)), [], "gone");
    assert_eq!(state.orders, [Order::Release(vec![0])]);
    assign(&mut state, 0, 5);
    assert_eq!(state.commits(std::slice::from_ref(&commit)), [], "an old epoch");
}

#[test]
fn a_lost_partition_goes_at_once() {
    let mut state = state(1 << 20);
    assign(&mut state, 0, 0);
    state.append(record(0, 0));
    assert_eq!(offsets(&mut state, 9), [(0, 0)]);
    state.revoked(0, true);
    let commit = commit(0, 1, 1);
    assert_eq!(state.commits(std::slice::from_ref(&commit)), []);
    assert!(matches!(state.take(fetch(1)), Some(Ok(polled)) if polled.changes.len() == 1));
    assert!(!state.begin_poll(), "nothing is left to release");
}

#[test]
fn commits_go_forwards_and_not_beyond_what_was_brought() {
    let mut state = state(1 << 20);
    assign(&mut state, 1, 10);
    for offset in 10..14 {
        state.append(record(1, offset));
    }
    assert_eq!(offsets(&mut state, 2).len(), 2);
    let commit = |next_offset| commit(1, 1, next_offset);
    let counted = state.begin_commit(&[commit(10), commit(12), commit(13)]);
    assert_eq!(counted.iter().map(|(commit, _)| commit.next_offset).collect::<Vec<_>>(), [12]);
    state.end_commit(&counted, false);
    assert_eq!(state.commits(&[commit(12)]), [commit(12)], "refused: said again");
    state.end_commit(&counted, true);
    assert_eq!(state.commits(&[commit(12)]), []);
}

/// The answer to an earlier commit stays away, and meanwhile the partition goes to another member.
#[test]
fn a_commit_that_waited_is_held_against_the_epochs_when_it_runs() {
    let mut state = state(1 << 20);
    assign(&mut state, 0, 0);
    state.append(record(0, 0));
    assert_eq!(offsets(&mut state, 9), [(0, 0)]);
    let queued = state.commits(&[commit(0, 1, 1)]);
    assert_eq!(queued.len(), 1);
    let runs = state.begin_commit(&queued);
    assert_eq!(runs.len(), 1);
    assert!(state.is_committing(&[7, 0]), "it is not given back before the commit has ended");
    state.end_commit(&runs, false);
    assert!(!state.is_committing(&[0]));
    assert!(state.revoked(0, false));
    offsets(&mut state, 9);
    state.begin_poll();
    assert_eq!(state.begin_commit(&queued), [], "it is another's now");
    assign(&mut state, 0, 0);
    assert_eq!(state.begin_commit(&queued), [], "it is ours again, under another epoch");
}

#[test]
fn a_loss_is_told_once_and_only_a_log_that_was_cut_off_begins_anew() {
    let mut state = state(1 << 20);
    assign(&mut state, 0, 5);
    assign(&mut state, 1, 0);
    state.append(record(0, 5));
    assert_eq!(offsets(&mut state, 9), [(0, 5)]);
    assert_eq!(state.positions(), [(0, 6), (1, 0)]);
    let taken = |state: &mut State| state.take(fetch(9)).unwrap();
    let lost =
        |from, to, resumes_at| PollError::Lost { partition: 0, from, to, resumes_at, what: "gone".into() };
    state.append(record(0, 6));
    state.lost(0, 20, lost(7, 20, 20));
    assert_eq!(taken(&mut state).err(), Some(lost(7, 20, 20)));
    state.append(record(0, 20));
    let polled = taken(&mut state).unwrap();
    assert_eq!(polled.changes, [], "what the caller holds may be nowhere else");
    assert_eq!(polled.records.iter().map(|record| record.offset).collect::<Vec<_>>(), [6, 20]);
    state.lost(0, 10, lost(15, 21, 10));
    assert_eq!(taken(&mut state).err(), Some(lost(15, 21, 10)));
    state.append(record(0, 10));
    let polled = taken(&mut state).unwrap();
    let assigned = Change::Assigned { partition: 0, epoch: Epoch(2), next_offset: 10 };
    assert_eq!(polled.changes, [Change::Revoked { partition: 0, epoch: Epoch(1) }, assigned]);
    assert_eq!(polled.records[0].epoch, Epoch(2));
}

fn losses(state: &mut State) -> Vec<(u32, u64, u64)> {
    let range = |loss: PollError| match loss {
        PollError::Lost { partition, from, to, .. } => Some((partition, from, to)),
        _ => None,
    };
    std::mem::take(&mut state.losses).into_iter().filter_map(range).collect()
}

/// A member stands at 2 and reads nothing, while the topic is deleted, created anew, and filled beyond 2. librdkafka
/// would go on at 2, which is within the new log.
#[test]
fn a_topic_that_was_created_anew_is_begun_at_its_beginning() {
    const OLD: TopicId = [7; 16];
    const NEW: TopicId = [8; 16];
    let mut state = state(1 << 20);
    assert!(state.topic_is(OLD).is_empty());
    assign(&mut state, 0, 0);
    (0..4).for_each(|offset| state.append(record(0, offset)));
    assert_eq!(offsets(&mut state, 3).len(), 3);
    let said = state.begin_commit(&[commit(0, 1, 2)]);
    assert_eq!(said[0].1.topic, OLD, "each commit names its topic");
    state.end_commit(&said, true);
    assert!(state.topic_is(OLD).is_empty());

    assert_eq!(state.topic_is(NEW), [0]);
    assert!(state.topic_is(NEW).is_empty(), "said once");
    assert_eq!(losses(&mut state), [(0, 2, 4)]);
    assert_eq!(state.begin_commit(&[commit(0, 1, 3)]), [], "a position in a log that is no more");
    assert_eq!(state.positions(), [], "it is not looked for in the new log");
    state.append(record(0, 4));
    assert_eq!(state.void_partitions(), [0]);
    state.begun_anew(0);
    assert!(state.void_partitions().is_empty());
    state.append(record(0, 0));
    let polled = state.take(fetch(9)).unwrap().unwrap();
    let assigned = Change::Assigned { partition: 0, epoch: Epoch(2), next_offset: 0 };
    assert!(polled.changes.ends_with(&[Change::Revoked { partition: 0, epoch: Epoch(1) }, assigned]));
    assert_eq!(polled.records.iter().map(|one| (one.offset, one.epoch)).collect::<Vec<_>>(), [(0, Epoch(2))]);
    assert_eq!(state.commits(&[commit(0, 1, 1)]), [], "tickets of the old log do nothing");
    let said = state.begin_commit(&[commit(0, 2, 1)]);
    assert_eq!((said[0].0.next_offset, said[0].1.topic), (1, NEW), "backwards, since it is another log");
}

#[test]
fn a_topic_that_was_created_anew_during_a_rebalance_is_reported_by_who_had_the_partition() {
    const OLD: TopicId = [7; 16];
    const NEW: TopicId = [8; 16];
    let mut state = state(1 << 20);
    state.topic_is(OLD);
    (0..2).for_each(|partition| assign(&mut state, partition, 3));
    // One is to be given back: it is reported, takes no commit, and is not begun anew here.
    state.revoked(0, false);
    state.revoked(1, true);
    assert_eq!(state.topic_is(NEW), [0]);
    assert_eq!(losses(&mut state), [(0, 3, 4)]);
    assert_eq!(state.commits(&[commit(0, 1, 3)]), []);
    assert!(state.void_partitions().is_empty());
    // The other one had gone. Should it come back without a position, this member knows what was left.
    assert_eq!(state.left(0, NEW), None, "said already");
    assert_eq!(state.left(1, NEW), Some(Left { committed: 3, seen: 3 }));
    state.started(1, Start::of(1, None, b"", Some(NEW), state.left(1, NEW)));
    assert_eq!(losses(&mut state), [(1, 3, 4)]);
    assert_eq!((state.left(1, NEW), state.void_partitions()), (None, Vec::new()));
}

/// The cluster did not tell the topic's id when the partition was assigned; the position's metadata did.
#[test]
fn a_position_is_held_against_the_topics_id_also_when_it_is_told_later() {
    const OLD: TopicId = [7; 16];
    let mut state = state(1 << 20);
    let text = topic_text(OLD).unwrap();
    (0..2).for_each(|partition| {
        state.started(partition, Start::of(partition, Some(9), text.as_bytes(), None, None));
    });
    state.started(1, Start::of(1, Some(9), b"", None, None));
    assert_eq!(state.topic_is([8; 16]), [0], "of the other one nobody knows");
}

#[test]
fn a_first_record_beyond_the_beginning_is_a_gap_that_is_reported_once() {
    let mut state = state(2_500);
    assign(&mut state, 0, 0);
    state.append(record(0, 7));
    assert_eq!(losses(&mut state), [(0, 0, 7)]);
    state.pause(0, Epoch(1), true);
    (8..10).for_each(|offset| state.append(record(0, offset)));
    assert_eq!(state.orders, [Order::Park(0)]);
    state.pause(0, Epoch(1), false);
    assert_eq!(state.wanted(0), Some(7));
    state.unpark(0);
    state.append(record(0, 7));
    assert_eq!(losses(&mut state), []);
    assert_eq!(offsets(&mut state, 9), [(0, 7)]);
}

/// What goes with a commit keeps the next owner from being brought what is finished, and then the position goes on.
#[test]
fn what_was_finished_beyond_the_position_is_not_brought_again() {
    const TOPIC: TopicId = [9; 16];
    let mut state = state(1 << 20);
    state.topic_is(TOPIC);
    assign(&mut state, 0, 0);
    (0..20).for_each(|offset| state.append(record(0, offset)));
    assert_eq!(offsets(&mut state, 99).len(), 20);
    let finished = Finished::of([2..5, 8..20]);
    let said = state.begin_commit(&[Commit { finished, ..commit(0, 1, 1) }]);
    state.end_commit(&said, true);
    let text = to_text(&said[0].0.finished, &said[0].1).unwrap();

    state.revoked(0, true);
    state.assigned(0, 1, of_text(text.as_bytes(), TOPIC));
    (1..20).for_each(|offset| state.append(record(0, offset)));
    assert_eq!(offsets(&mut state, 3), [(0, 1), (0, 5), (0, 6)]);
    // The map goes on with the next commit, though the caller knows nothing of it.
    let said = state.begin_commit(&[commit(0, 2, 2)]);
    assert_eq!(said[0].0.finished.ranges().collect::<Vec<_>>(), [2..5, 8..20]);
    state.end_commit(&said, true);
    assert_eq!(offsets(&mut state, 9), [(0, 7)]);
    let polled = state.take(fetch(9)).unwrap().unwrap();
    assert_eq!(polled.changes, [Change::Passed { partition: 0, epoch: Epoch(2), next_offset: 20 }]);
    assert!(state.take(fetch(9)).is_none(), "said once");
    assert_eq!(state.commits(&[commit(0, 2, 20)]).len(), 1);

    // The same offsets, written anew after an unclean election.
    state.revoked(0, true);
    state.assigned(0, 1, of_text(text.as_bytes(), TOPIC));
    (1..20).for_each(|offset| state.append((record(0, offset).0, Some(4))));
    assert_eq!(offsets(&mut state, 99).len(), 19, "these are other records");
}

#[test]
fn a_pause_keeps_what_it_may_and_reads_the_rest_again() {
    let mut state = state(2_500);
    assign(&mut state, 0, 0);
    assign(&mut state, 1, 0);
    for offset in 0..2 {
        state.append(record(0, offset));
    }
    state.pause(0, Epoch(1), true);
    for offset in 0..2 {
        state.append(record(1, offset));
    }
    assert_eq!(offsets(&mut state, 9), [(1, 0), (1, 1)]);
    state.pause(0, Epoch(1), false);
    assert_eq!(offsets(&mut state, 1), [(0, 0)], "a short pause costs nothing");
    state.pause(0, Epoch(1), true);
    for offset in 2..5 {
        state.append(record(0, offset));
    }
    assert_eq!(state.orders, [Order::Park(0)]);
    state.append(record(0, 5));
    state.pause(0, Epoch(1), false);
    assert_eq!(state.orders.back(), Some(&Order::Resume(0)));
    assert_eq!((state.flowing.records, state.paused.records), (0, 0));
    // I3: until it has been sought back, what still comes would leave a gap behind it.
    state.append(record(0, 6));
    assert_eq!(offsets(&mut state, 9), []);
    assert_eq!(state.wanted(0), Some(1));
    state.pause(0, Epoch(1), true);
    assert_eq!(state.wanted(0), None, "an order of before the pause does nothing");
    state.pause(0, Epoch(1), false);
    state.unpark(0);
    assert_eq!(state.wanted(0), None);
    state.append(record(0, 1));
    assert_eq!(offsets(&mut state, 9), [(0, 1)]);
}

/// Records that an earlier owner has finished lie behind two that nobody has: when those are thrown away in a pause,
/// nothing is passed, or the two would be lost.
#[test]
fn what_a_pause_throws_away_is_not_passed_with_what_was_left_out_behind_it() {
    const TOPIC: TopicId = [9; 16];
    let mut state = state(2_500);
    state.topic_is(TOPIC);
    assign(&mut state, 0, 0);
    (0..5).for_each(|offset| {
        state.append(record(0, offset));
        assert_eq!(offsets(&mut state, 9), [(0, offset)]);
    });
    let finished = Finished::of(std::iter::once(2..5));
    let said = state.begin_commit(&[Commit { finished, ..commit(0, 1, 0) }]);
    state.end_commit(&said, true);
    let text = to_text(&said[0].0.finished, &said[0].1).unwrap();
    state.revoked(0, true);
    state.take(fetch(0));
    state.assigned(0, 0, of_text(text.as_bytes(), TOPIC));
    (0..5).for_each(|offset| state.append(record(0, offset)));
    state.pause(0, Epoch(2), true);
    state.append(record(0, 5));
    assert_eq!(state.orders, [Order::Park(0)]);
    let polled = state.take(fetch(9)).unwrap().unwrap();
    assert!(!polled.changes.iter().any(|change| matches!(change, Change::Passed { .. })), "{polled:?}");
    state.pause(0, Epoch(2), false);
    assert_eq!(state.wanted(0), Some(0));
    state.unpark(0);
    (0..6).for_each(|offset| state.append(record(0, offset)));
    assert_eq!(offsets(&mut state, 9), [(0, 0), (0, 1), (0, 5)]);
}

#[test]
fn a_pause_of_an_epoch_that_is_over_stops_nothing() {
    let mut state = state(1 << 20);
    assign(&mut state, 0, 0);
    state.revoked(0, true);
    assign(&mut state, 0, 0);
    state.pause(0, Epoch(1), true);
    state.append(record(0, 0));
    assert_eq!(offsets(&mut state, 9), [(0, 0)]);
    state.pause(0, Epoch(2), true);
    state.append(record(0, 1));
    assert_eq!(offsets(&mut state, 9), []);
    state.pause(0, Epoch(1), false);
    assert_eq!(offsets(&mut state, 9), [], "nor does its end resume anything");
}

#[test]
fn partitions_take_turns_and_limits_hold() {
    let mut state = state(1 << 20);
    assign(&mut state, 0, 0);
    assign(&mut state, 1, 0);
    for offset in 0..200 {
        state.append(record(0, offset));
        state.append(record(1, offset));
    }
    let brought = offsets(&mut state, 200);
    assert!(brought.iter().any(|(partition, _)| *partition == 0));
    assert!(brought.iter().any(|(partition, _)| *partition == 1));
    let small = Fetch { max_records: 100, max_bytes: 10, wait: Duration::ZERO };
    assert!(matches!(state.take(small), Some(Ok(polled)) if polled.records.len() == 1));
}
