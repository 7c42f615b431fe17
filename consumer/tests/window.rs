//! The window, rule by rule, and against a naive set.
#![allow(missing_docs, clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::BTreeSet;
use windfall_consumer::window::{BLOCK_OFFSETS, Dropped, NotAscending, Ticket, Window};
use windfall_contract::finished::Finished;

/// What a window is, said with a set.
struct Naive {
    next: u64,
    unfinished: BTreeSet<u64>,
}

impl Naive {
    fn position(&self) -> u64 {
        self.unfinished.first().copied().unwrap_or(self.next)
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Deliver so many records, each this far after the one before.
    Deliver { count: u16, gap: u64 },
    /// Finish one of the open tickets.
    Finish { pick: usize },
    /// Finish all but one.
    FinishAll,
    /// Drop one of the open tickets.
    Drop { pick: usize },
    /// What comes next will not be delivered: it was finished before.
    Pass { gap: u64 },
    /// A new assignment from the committed position; the old tickets stay around.
    Revoke,
}

fn step() -> impl Strategy<Value = Step> {
    let gap = prop_oneof![8 => Just(0_u64), 2 => 1..4_u64, 1 => 60..70_u64, 1 => 1000..5000_u64];
    prop_oneof![
        6 => (1..200_u16, gap).prop_map(|(count, gap)| Step::Deliver { count, gap }),
        10 => any::<usize>().prop_map(|pick| Step::Finish { pick }),
        2 => Just(Step::FinishAll),
        1 => any::<usize>().prop_map(|pick| Step::Drop { pick }),
        1 => prop_oneof![0..70_u64, 1000..5000_u64].prop_map(|gap| Step::Pass { gap }),
        1 => Just(Step::Revoke),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn agrees_with_a_set(start in 0..3000_u64, steps in proptest::collection::vec(step(), 1..60)) {
        let mut window = Window::new(1, start);
        let mut naive = Naive { next: start, unfinished: BTreeSet::new() };
        let mut open: Vec<(u64, Ticket)> = Vec::new();
        let mut late: Vec<Ticket> = Vec::new();
        let mut finished = BTreeSet::new();
        let mut dropped = 0;
        for step in steps {
            match step {
                Step::Deliver { count, gap } => {
                    for _ in 0..count {
                        let offset = naive.next + gap;
                        open.push((offset, window.deliver(offset).unwrap()));
                        naive.unfinished.insert(offset);
                        finished.insert(offset);
                        naive.next = offset + 1;
                    }
                }
                Step::Finish { pick } if !open.is_empty() => {
                    let (offset, ticket) = open.swap_remove(pick % open.len());
                    ticket.finish();
                    naive.unfinished.remove(&offset);
                }
                Step::FinishAll => {
                    for (offset, ticket) in open.drain(open.len().min(1)..) {
                        ticket.finish();
                        naive.unfinished.remove(&offset);
                    }
                }
                Step::Drop { pick } if !open.is_empty() => {
                    drop(open.swap_remove(pick % open.len()));
                    dropped += 1;
                }
                Step::Finish { .. } | Step::Drop { .. } => {
                    if let Some(ticket) = late.pop() {
                        ticket.finish();
                    }
                }
                Step::Pass { gap } => {
                    naive.next += gap;
                    window.pass(naive.next);
                    window.pass(naive.next.saturating_sub(1));
                }
                Step::Revoke => {
                    late.extend(open.drain(..).map(|(_, ticket)| ticket));
                    let position = window.advance();
                    window = Window::new(window.epoch() + 1, position);
                    naive = Naive { next: position, unfinished: BTreeSet::new() };
                    finished.clear();
                    dropped = 0;
                }
            }
            prop_assert_eq!(window.advance(), naive.position());
            let beyond = window.finished_beyond();
            for offset in beyond.ranges().flatten() {
                prop_assert!(offset < naive.next && offset > naive.position() && !naive.unfinished.contains(&offset));
            }
            // As far as a map covers, it names all that was delivered and is finished.
            let covered = naive.position()..naive.next.min(naive.position() + Finished::SPAN_MAX / 2);
            let mut missed = finished.range(covered).filter(|offset| !naive.unfinished.contains(offset));
            prop_assert!(missed.all(|offset| beyond.contains(*offset)));
            prop_assert_eq!(window.in_flight(), naive.unfinished.len() as u64);
            prop_assert_eq!(window.dropped().map_or(0, |dropped| dropped.count), dropped);
        }
    }
}

#[test]
fn a_dropped_ticket_pins_its_record_and_is_named() {
    let mut window = Window::new(7, 10);
    let tickets: Vec<_> = (10..13).map(|offset| window.deliver(offset).unwrap()).collect();
    for (at, ticket) in tickets.into_iter().enumerate() {
        if at != 1 {
            ticket.finish();
        }
    }
    assert_eq!(window.advance(), 11);
    assert_eq!(window.dropped(), Some(Dropped { count: 1, first_offset: 11 }));
}

#[test]
fn after_a_revoke_tickets_do_nothing_and_are_not_reported() {
    let mut old = Window::new(1, 0);
    let (first, second) = (old.deliver(0).unwrap(), old.deliver(1).unwrap());
    assert_eq!(first.epoch(), Some(1));
    drop(old);
    let mut new = Window::new(2, 0);
    let again = new.deliver(0).unwrap();
    first.finish();
    drop(second);
    assert_eq!(new.advance(), 0);
    assert_eq!(new.dropped(), None);
    again.finish();
    assert_eq!(new.advance(), 1);
}

#[test]
fn an_offset_is_taken_once_and_in_order() {
    let mut window = Window::new(1, 5);
    window.deliver(7).unwrap().finish();
    for again in [4, 6, 7] {
        assert_eq!(window.deliver(again).map(Ticket::finish), Err(NotAscending { offset: again, next: 8 }));
    }
    assert!(window.deliver(u64::MAX).is_err(), "there is no offset after it to commit");
    assert_eq!(window.advance(), 8);
}

#[test]
fn a_gap_of_any_width_costs_one_block() {
    let mut window = Window::new(1, 0);
    let tickets: Vec<_> = (0..10).map(|n| window.deliver(n << 40).unwrap()).collect();
    assert_eq!(window.blocks(), 10);
    for ticket in tickets {
        ticket.finish();
    }
    assert_eq!(window.advance(), (9 << 40) + 1);
    assert!(window.blocks() <= 1);
}

#[test]
fn blocks_are_reused_as_the_prefix_passes() {
    let mut window = Window::new(1, 0);
    for offset in 0..BLOCK_OFFSETS * 8 {
        window.deliver(offset).unwrap().finish();
        assert_eq!(window.advance(), offset + 1);
        assert!(window.blocks() <= 1);
    }
}
