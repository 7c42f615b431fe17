//! Whose sub-batch goes next: by class, and in turn between the tenants of a class.
//!
//! A class goes before the ones after it, and each keeps a floor. Inside a class it is deficit round robin: a tenant
//! sends tasks up to a quantum per turn. A tenant has fewer sub-batches in flight than are free, so that one whose
//! targets answer slowly never has them all.

use crate::tenants::Class;
use std::collections::VecDeque;

/// A class that was passed over so often, while it had work, goes next.
const PASSED_OVER_MAX: [u32; 3] = [u32::MAX, 8, 16];

/// The lanes that have something to send.
#[derive(Debug)]
pub(super) struct Turns {
    quantum_tasks: usize,
    /// The tenants that have lanes to send from, by class.
    rings: [VecDeque<usize>; 3],
    passed_over: [u32; 3],
    tenants: Vec<TenantTurn>,
}

#[derive(Debug, Clone, Default)]
struct TenantTurn {
    class: usize,
    lanes: VecDeque<usize>,
    left_tasks: usize,
    in_flight: usize,
    is_in_ring: bool,
}

/// A lane whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub tenant: usize,
    pub lane: usize,
}

impl Turns {
    pub fn new(quantum_tasks: usize) -> Self {
        Self {
            quantum_tasks: quantum_tasks.max(1),
            rings: [const { VecDeque::new() }; 3],
            passed_over: [0; 3],
            tenants: Vec::new(),
        }
    }

    /// A lane has something to send; it must not be waiting for its turn already.
    pub fn offer(&mut self, tenant: usize, class: Class, lane: usize) {
        if self.tenants.len() <= tenant {
            self.tenants.resize_with(tenant + 1, TenantTurn::default);
        }
        self.tenants[tenant].class = class as usize;
        self.tenants[tenant].lanes.push_back(lane);
        self.join_ring(tenant);
    }

    /// Takes the lane whose turn it is, while so many sub-batches more may be sent.
    pub fn next(&mut self, free: usize) -> Option<Turn> {
        if free == 0 {
            return None;
        }
        loop {
            let class = self.pick_class()?;
            let &tenant = self.rings[class].front()?;
            let turn = &mut self.tenants[tenant];
            let is_capped = turn.in_flight >= free;
            let lane = if is_capped { None } else { turn.lanes.pop_front() };
            let Some(lane) = lane else {
                turn.is_in_ring = false;
                turn.left_tasks = 0;
                self.rings[class].pop_front();
                continue;
            };
            if turn.left_tasks == 0 {
                turn.left_tasks = self.quantum_tasks;
            }
            self.passed_over[class] = 0;
            for other in class + 1..self.rings.len() {
                if !self.rings[other].is_empty() {
                    self.passed_over[other] += 1;
                }
            }
            return Some(Turn { tenant, lane });
        }
    }

    /// The tenant whose turn it was has sent a sub-batch of so many tasks.
    pub fn sent(&mut self, tenant: usize, tasks: usize) {
        let turn = &mut self.tenants[tenant];
        turn.in_flight += 1;
        turn.left_tasks = turn.left_tasks.saturating_sub(tasks);
        let ring = &mut self.rings[turn.class];
        if turn.left_tasks == 0 && ring.front() == Some(&tenant) {
            ring.rotate_left(1);
        }
    }

    /// A sub-batch of the tenant has its answers.
    pub fn landed(&mut self, tenant: usize) {
        let turn = &mut self.tenants[tenant];
        turn.in_flight = turn.in_flight.saturating_sub(1);
        if !turn.lanes.is_empty() {
            self.join_ring(tenant);
        }
    }

    fn join_ring(&mut self, tenant: usize) {
        let turn = &mut self.tenants[tenant];
        if !turn.is_in_ring {
            turn.is_in_ring = true;
            self.rings[turn.class].push_back(tenant);
        }
    }

    fn pick_class(&self) -> Option<usize> {
        let has_work = |class: &usize| !self.rings[*class].is_empty();
        let overdue = |class: &usize| has_work(class) && self.passed_over[*class] >= PASSED_OVER_MAX[*class];
        (0..3).rev().find(overdue).or_else(|| (0..3).find(has_work))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `count` sub-batches of lanes that never run dry, each answered at once; says how many each lane sent.
    fn send(turns: &mut Turns, lanes: &[(usize, Class, usize)], count: usize) -> Vec<usize> {
        lanes.iter().enumerate().for_each(|(lane, &(tenant, class, _))| turns.offer(tenant, class, lane));
        let mut sent = vec![0; lanes.len()];
        for _ in 0..count {
            let turn = turns.next(8).expect("somebody has work");
            let (tenant, class, tasks) = lanes[turn.lane];
            turns.sent(tenant, tasks);
            turns.landed(tenant);
            turns.offer(tenant, class, turn.lane);
            sent[turn.lane] += 1;
        }
        sent
    }

    #[test]
    fn tenants_of_a_class_send_the_same_number_of_tasks() {
        let lanes = [
            (0, Class::Normal, 300),
            (1, Class::Normal, 300),
            (1, Class::Normal, 300),
            (2, Class::Normal, 30),
        ];
        let sent = send(&mut Turns::new(300), &lanes, 1_200);
        assert_eq!(sent, [100, 50, 50, 1_000]);
    }

    #[test]
    fn a_class_goes_first_and_the_others_keep_a_floor() {
        let lanes = [(0, Class::Urgent, 300), (1, Class::Normal, 300), (2, Class::Bulk, 300)];
        let sent = send(&mut Turns::new(300), &lanes, 1_000);
        assert!(sent[0] > 800 && sent[1] > 80 && sent[2] > 40, "{sent:?}");
    }

    #[test]
    fn a_tenant_whose_targets_are_slow_leaves_room_for_others() {
        let mut turns = Turns::new(300);
        let mut free = 8;
        let mut drain = |turns: &mut Turns, tenant: usize, lane: usize| {
            turns.offer(tenant, Class::Normal, lane);
            let mut sent = 0;
            while turns.next(free).is_some() {
                turns.sent(tenant, 300);
                free -= 1;
                sent += 1;
                turns.offer(tenant, Class::Normal, lane);
            }
            sent
        };
        assert_eq!(drain(&mut turns, 0, 0), 4);
        assert_eq!(drain(&mut turns, 1, 1), 2);
        assert_eq!(drain(&mut turns, 2, 2), 1);
        turns.landed(0);
        assert_eq!(
            turns.next(6),
            Some(Turn { tenant: 0, lane: 0 }),
            "it is asked again when it has an answer"
        );
    }
}
