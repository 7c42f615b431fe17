//! Several instances on one clock: the fleet's sum keeps the limit while partitions move and instances die.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use proptest::prelude::*;
use windfall_limiter::{Fuse, Limit, Limiter, Now, Share, TypeId, TypeLimit};

const SECOND_NS: u64 = 1_000_000_000;

struct Instance {
    limiter: Limiter,
    id: TypeId,
}

impl Instance {
    fn start(limit: Limit, now: Now) -> Self {
        let limiter = Limiter::new(limit, now);
        limiter.set_share(Share::NONE, now);
        let id = limiter.type_id("cash");
        let instance = Self { limiter, id };
        instance.apply(limit, now);
        instance
    }

    /// The same limit for the type and for all types: either bucket alone has to keep it.
    fn apply(&self, limit: Limit, now: Now) {
        let rule = TypeLimit { limit, fuse: Fuse::Closed, priority: 0 };
        self.limiter.apply(limit, &[("cash".into(), rule)], now);
    }

    fn admit(&self, wanted: u32, now: Now) -> u32 {
        self.limiter.admit(self.id, wanted, now).granted
    }
}

struct Fleet {
    now: Now,
    limit: Limit,
    instances: Vec<Instance>,
    /// Owner by partition.
    owners: Vec<Option<usize>>,
}

impl Fleet {
    fn start(limit: Limit, instances: usize, partitions: usize) -> Self {
        let now = Now(5);
        let instances = (0..instances).map(|_| Instance::start(limit, now)).collect();
        Self { now, limit, instances, owners: vec![None; partitions] }
    }

    fn partitions(&self) -> u32 {
        u32::try_from(self.owners.len()).unwrap()
    }

    fn tell(&self, instance: usize) {
        let owned = self.owners.iter().filter(|owner| **owner == Some(instance)).count();
        let share = Share::new(u32::try_from(owned).unwrap(), self.partitions()).unwrap();
        self.instances[instance].limiter.set_share(share, self.now);
    }

    fn drop_partition(&mut self, partition: usize) {
        if let Some(old) = self.owners[partition].take() {
            self.tell(old);
        }
    }

    fn take_partition(&mut self, partition: usize, instance: usize) {
        self.drop_partition(partition);
        self.owners[partition] = Some(instance);
        self.tell(instance);
    }

    /// Killed and started again: it has forgotten its levels, and others may take its partitions.
    fn restart(&mut self, instance: usize) {
        self.instances[instance] = Instance::start(self.limit, self.now);
        for owner in self.owners.iter_mut().filter(|owner| **owner == Some(instance)) {
            *owner = None;
        }
    }

    fn change(&mut self, limit: Limit) {
        self.limit = limit;
        self.instances.iter().for_each(|instance| instance.apply(limit, self.now));
    }

    /// Events that may pass at once: the burst, or one a partition where that is more (see the crate's page).
    fn burst(&self) -> u64 {
        u64::from(self.limit.burst.max(self.partitions()))
    }
}

#[derive(Debug, Clone)]
enum Op {
    Advance(u64),
    Admit(usize, u32),
    AdmitEverywhere,
    Drop(usize),
    Take(usize, usize),
    Restart(usize),
    Change(Limit),
}

const INSTANCES: usize = 4;
const PARTITIONS: usize = 12;

fn limit() -> impl Strategy<Value = Limit> {
    let rate_per_s = prop_oneof![1 => Just(0), 3 => 1_u64..50, 2 => 50_u64..100_000];
    let burst = prop_oneof![1 => 1_u32..12, 2 => 12_u32..40, 1 => 40_u32..2_000];
    (rate_per_s, burst).prop_map(|(rate_per_s, burst)| Limit { rate_per_s, burst })
}

fn op(partitions: usize) -> impl Strategy<Value = Op> {
    let wanted = prop_oneof![1_u32..4, 4_u32..100, Just(u32::MAX)];
    prop_oneof![
        5 => prop_oneof![0_u64..1_000_000, 1_000_000_u64..SECOND_NS, SECOND_NS..1_000 * SECOND_NS]
            .prop_map(Op::Advance),
        6 => (0..INSTANCES, wanted).prop_map(|(instance, wanted)| Op::Admit(instance, wanted)),
        3 => Just(Op::AdmitEverywhere),
        2 => (0..partitions).prop_map(Op::Drop),
        6 => (0..partitions, 0..INSTANCES).prop_map(|(partition, instance)| Op::Take(partition, instance)),
        1 => (0..INSTANCES).prop_map(Op::Restart),
        1 => limit().prop_map(Op::Change),
    ]
}

fn history() -> impl Strategy<Value = (usize, Vec<Op>)> {
    (1..=PARTITIONS)
        .prop_flat_map(|partitions| (Just(partitions), prop::collection::vec(op(partitions), 1..200)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_fleet_passes_at_most_rate_and_burst_in_any_window(first in limit(), (partitions, ops) in history()) {
        let mut fleet = Fleet::start(first, INSTANCES, partitions);
        // After each step: nano-events earned by the fleet's whole limit, nano-events passed, burst.
        let mut lines = vec![(0_u128, 0_u128, fleet.burst())];
        for op in ops {
            let (mut earned, mut passed, _) = *lines.last().unwrap();
            let mut granted = 0;
            match op {
                Op::Advance(by) => {
                    fleet.now.0 += by;
                    earned += u128::from(fleet.limit.rate_per_s) * u128::from(by);
                }
                Op::Admit(instance, wanted) => {
                    granted = u64::from(fleet.instances[instance].admit(wanted, fleet.now));
                }
                Op::AdmitEverywhere => {
                    granted = fleet.instances.iter().map(|i| u64::from(i.admit(u32::MAX, fleet.now))).sum();
                }
                Op::Drop(partition) => fleet.drop_partition(partition),
                Op::Take(partition, instance) => fleet.take_partition(partition, instance),
                Op::Restart(instance) => fleet.restart(instance),
                Op::Change(limit) => fleet.change(limit),
            }
            passed += u128::from(granted) * u128::from(SECOND_NS);
            prop_assert!(passed <= earned, "the fleet passed what it never earned");
            lines.push((earned, passed, fleet.burst()));
        }
        for (start, (earned_before, passed_before, burst)) in lines.iter().enumerate() {
            for (end, (earned, passed, _)) in lines.iter().enumerate().skip(start) {
                let allowed = u128::from(*burst) * u128::from(SECOND_NS) + (earned - earned_before);
                prop_assert!(passed - passed_before <= allowed, "steps {} to {}", start, end);
            }
        }
    }
}

/// 16 instances own one partition each; a sixteenth of a burst of one is no event. Each still gets its part of the
/// rate, and what passes at one instant is one event per partition, as the crate's page says.
#[test]
fn an_instance_whose_part_of_the_burst_is_less_than_an_event_still_passes_its_rate() {
    let mut fleet = Fleet::start(Limit { rate_per_s: 8, burst: 1 }, 16, 16);
    (0..16).for_each(|n| fleet.take_partition(n, n));
    let mut passed = [0; 16];
    for _ in 0..600 {
        fleet.now.0 += SECOND_NS / 10;
        for (instance, passed) in fleet.instances.iter().zip(&mut passed) {
            let granted = instance.admit(u32::MAX, fleet.now);
            assert!(granted <= 1);
            *passed += granted;
        }
    }
    assert_eq!(passed, [30; 16], "60 s at half an event a second each");

    fleet.now.0 += 3_600 * SECOND_NS;
    let at_once: u32 = fleet.instances.iter().map(|i| i.admit(u32::MAX, fleet.now)).sum();
    assert_eq!(at_once, 16);
}

/// With a burst of one a partition or more, nothing is added to it, however the partitions lie.
#[test]
fn a_burst_of_one_a_partition_is_the_fleets_burst_exactly() {
    for owned_by_first in 0..=16 {
        let mut fleet = Fleet::start(Limit { rate_per_s: 1_000, burst: 16 }, 2, 16);
        (0..16).for_each(|n| fleet.take_partition(n, usize::from(n >= owned_by_first)));
        fleet.now.0 += 3_600 * SECOND_NS;
        let at_once: u32 = fleet.instances.iter().map(|i| i.admit(u32::MAX, fleet.now)).sum();
        assert_eq!(at_once, 16);
    }
}

/// A partition that goes round takes no burst with it and finds none.
#[test]
fn a_partition_that_moves_brings_no_burst() {
    let mut fleet = Fleet::start(Limit { rate_per_s: 1, burst: 1_000 }, 2, 1);
    fleet.take_partition(0, 0);
    fleet.now.0 += 3_600 * SECOND_NS;
    assert_eq!(fleet.instances[0].admit(u32::MAX, fleet.now), 1_000);
    for round in 0..100 {
        fleet.take_partition(0, (round + 1) % 2);
        assert_eq!(fleet.instances.iter().map(|i| i.admit(u32::MAX, fleet.now)).sum::<u32>(), 0);
    }
}

/// A process that is killed and started again in a loop passes no more than its rate.
#[test]
fn a_crash_loop_grants_no_bursts() {
    let mut fleet = Fleet::start(Limit { rate_per_s: 10, burst: 1_000 }, 1, 1);
    let mut passed = 0;
    for _ in 0..1_000 {
        fleet.restart(0);
        fleet.take_partition(0, 0);
        for _ in 0..2 {
            fleet.now.0 += SECOND_NS / 10;
            passed += fleet.instances[0].admit(u32::MAX, fleet.now);
        }
    }
    assert_eq!(passed, 2_000, "200 s at 10 a second");
}
