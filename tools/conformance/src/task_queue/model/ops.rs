//! The calls of a model test. They are drawn before any is made and name jobs by numbers that mean one in any state, so that
//! a run which fails can be made with fewer of them.

use windfall_contract::due::Shard;
use windfall_contract::task_queue::TTL_DEFAULT_S;

/// The queues of a run, and the shards that it uses.
pub(super) const QUEUES: usize = 3;
pub(super) const SHARDS: u16 = 2;
/// Marks of jobs that are published at most once.
const MARKS: u64 = 5;

/// Whose clock the stores of a model test go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelClock {
    /// It stands still until the test lets it go on, by whatever it likes.
    OfTheTest,
    /// It goes on by itself, and the test has to wait for it.
    OfTheStore,
}

/// A group of jobs to publish.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    pub(super) queue: usize,
    pub(super) delay_s: u32,
    pub(super) ttl_s: u32,
    pub(super) tries: u16,
    pub(super) is_versioned: bool,
    pub(super) bodies: usize,
}

/// What is asked of one queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) queue: usize,
    pub(super) count: usize,
    pub(super) ttr_s: u32,
}

/// A job: the n-th of these, counted round.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pick {
    Leased(u64),
    /// Of all that were ever published.
    Any(u64),
    /// The same, under the name of another queue.
    Misnamed(u64),
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Several groups in one call.
    Publish(Shard, Vec<Spec>),
    /// A job for each of these marks, in one call.
    PublishOnce(Shard, Vec<u8>, Spec),
    /// One call of the store.
    Take(Shard, Vec<Asked>),
    /// As a consumer does it: all shards, and the leftmost queue first.
    Consume {
        queues: Vec<usize>,
        count: usize,
        ttr_s: u32,
    },
    /// Several consumers at the same time.
    Rush(Shard, Asked),
    /// Acknowledges or cancels.
    Remove(Shard, Vec<Pick>),
    /// The n-th lease from the end.
    GiveBack(usize),
    Look,
    Peek(Shard, usize),
    Get(Shard, Pick),
    DeadHead(Shard, usize),
    Respawn {
        shard: Shard,
        queue: usize,
        limit: usize,
        ttl_s: u32,
    },
    DropDead {
        shard: Shard,
        queue: usize,
        limit: usize,
    },
    DropReady(Shard, usize),
    Tend(Shard),
    Sweep(Shard),
    Wait {
        ms: u64,
    },
    /// Looks at every job that there ever was.
    Compare,
    /// Closes the store and opens it again.
    Reopen,
    /// The process is killed where the driver can have that, and the store is opened again.
    Crash,
}

/// The calls that a seed stands for.
pub(super) fn drawn(seed: u64, steps: usize, clock: ModelClock) -> Vec<Op> {
    let mut dice = Dice(seed);
    (0..steps).map(|_| dice.op(clock)).collect()
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    fn size(&mut self, below: u64) -> usize {
        usize::try_from(self.roll(below)).unwrap_or(0)
    }

    fn seconds(&mut self, below: u64) -> u32 {
        u32::try_from(self.roll(below)).unwrap_or(0)
    }

    fn shard(&mut self) -> Shard {
        Shard(u16::try_from(self.roll(SHARDS.into())).unwrap_or(0))
    }

    fn queue(&mut self) -> usize {
        self.size(QUEUES as u64)
    }

    fn op(&mut self, clock: ModelClock) -> Op {
        match self.roll(100) {
            0..15 => Op::Publish(self.shard(), (0..1 + self.roll(3)).map(|_| self.spec()).collect()),
            15..18 => {
                let marks = (0..1 + self.roll(3)).map(|_| u8::try_from(self.roll(MARKS)).unwrap_or(0));
                let marks = marks.collect();
                Op::PublishOnce(self.shard(), marks, Spec { bodies: 1, ..self.spec() })
            }
            18..31 => Op::Take(self.shard(), (0..1 + self.roll(3)).map(|_| self.asked()).collect()),
            31..38 => {
                let mut queues: Vec<usize> = (0..QUEUES).collect();
                queues.rotate_left(self.queue());
                if self.roll(2) == 0 {
                    queues.reverse();
                }
                queues.truncate(1 + self.queue());
                let Asked { count, ttr_s, .. } = self.asked();
                Op::Consume { queues, count, ttr_s }
            }
            38..41 => Op::Rush(self.shard(), self.asked()),
            41..52 => Op::Remove(self.shard(), (0..1 + self.roll(4)).map(|_| self.pick()).collect()),
            52..56 => Op::GiveBack(self.size(8)),
            56..61 => Op::Look,
            61..65 => Op::Peek(self.shard(), self.queue()),
            65..68 => Op::Get(self.shard(), self.pick()),
            68..71 => Op::DeadHead(self.shard(), self.queue()),
            71..74 => Op::Respawn {
                shard: self.shard(),
                queue: self.queue(),
                limit: 1 + self.size(4),
                ttl_s: self.ttl_s(0),
            },
            74..76 => Op::DropDead { shard: self.shard(), queue: self.queue(), limit: 1 + self.size(3) },
            76 => Op::DropReady(self.shard(), self.queue()),
            77..84 => Op::Tend(self.shard()),
            84..86 => Op::Sweep(self.shard()),
            86..95 => Op::Wait { ms: self.wait_ms(clock) },
            95..97 => Op::Compare,
            97..99 => Op::Reopen,
            _ => Op::Crash,
        }
    }

    fn spec(&mut self) -> Spec {
        let delay_s = match self.roll(12) {
            0..6 => 0,
            6..10 => 1 + self.seconds(2),
            10 => 3 + self.seconds(20),
            // The lists of such jobs are of whole seconds.
            _ => 700 + self.seconds(4_000),
        };
        let tries = if self.roll(40) == 0 { u16::MAX } else { 1 + u16::try_from(self.roll(3)).unwrap_or(0) };
        Spec {
            queue: self.queue(),
            delay_s,
            ttl_s: self.ttl_s(delay_s),
            tries,
            is_versioned: self.roll(4) == 0,
            bodies: 1 + self.size(4),
        }
    }

    fn ttl_s(&mut self, delay_s: u32) -> u32 {
        match self.roll(10) {
            0..4 => TTL_DEFAULT_S,
            4..6 => 0,
            6..9 => 1 + self.seconds(4),
            _ => delay_s + self.seconds(2),
        }
    }

    fn asked(&mut self) -> Asked {
        let count = if self.roll(6) == 0 { 50 } else { 1 + self.size(4) };
        let ttr_s = match self.roll(8) {
            0 => 0,
            1..5 => 1 + self.seconds(2),
            5..7 => 3 + self.seconds(5),
            _ => 600,
        };
        Asked { queue: self.queue(), count, ttr_s }
    }

    fn pick(&mut self) -> Pick {
        let kind = self.roll(8);
        let nth = self.roll(u64::MAX);
        match kind {
            0..5 => Pick::Leased(nth),
            5..7 => Pick::Any(nth),
            _ => Pick::Misnamed(nth),
        }
    }

    /// A clock of the store's own makes the test wait as long.
    fn wait_ms(&mut self, clock: ModelClock) -> u64 {
        match (clock, self.roll(20)) {
            (ModelClock::OfTheStore, _) => 1 + self.roll(700),
            (ModelClock::OfTheTest, 0..12) => 1 + self.roll(1_500),
            (ModelClock::OfTheTest, 12..18) => 1 + self.roll(6_000),
            (ModelClock::OfTheTest, 18) => 1 + self.roll(700_000),
            // Beyond the end of marks.
            (ModelClock::OfTheTest, _) => 1 + self.roll(8_000_000),
        }
    }
}
