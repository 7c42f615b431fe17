//! The precedence at the global bucket while it is short: types with a lower priority number go first, whichever
//! consumer asks for them, with a floor for the rest.
//!
//! The callers of one limiter ask one by one, so a type can only go first if the others leave its tokens where they
//! are. Therefore the limiter remembers which types the global bucket alone has kept waiting, and how many events each
//! would have passed. A type of a lower rank takes what is left beyond that. So that it does not starve, it is owed one
//! event in [`FLOOR_PART`] of those that pass before it, and what is owed to it is set aside once it has waited for
//! [`FLOOR_AFTER_NS`].

/// A waiting type is owed one event for every so many that pass ahead of it.
const FLOOR_PART: u64 = 20;
/// The wait after which a type counts as starving, and its floor is set aside.
const FLOOR_AFTER_NS: u64 = 200_000_000;
/// The most events that one type is owed; without it a long wait would reverse the order.
const OWED_MAX: u64 = 1_000;
/// A type that does not ask again within this time after it could have passed waits no longer.
const FRESH_NS: u64 = 50_000_000;

/// The types that wait for the global bucket.
#[derive(Debug, Default)]
pub(crate) struct Precedence {
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    slot: u16,
    priority: u8,
    /// Events that its own bucket would have passed.
    short: u32,
    since_ns: u64,
    until_ns: u64,
    /// What the type is owed, in parts of an event.
    owed: u64,
}

/// What one type got at the global bucket.
#[derive(Debug)]
pub(crate) struct Taken {
    pub slot: u16,
    pub priority: u8,
    pub granted: u32,
    /// Events that only the global bucket has refused.
    pub short: u32,
    /// The time until the bucket has the next event.
    pub wait_ns: u64,
}

impl Precedence {
    /// A precedence in which no type waits.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of the bucket's events that a type may take.
    pub(crate) fn may_take(&mut self, slot: u16, priority: u8, there_are: u32, now_ns: u64) -> u32 {
        self.waiting.retain(|waiting| waiting.until_ns > now_ns);
        let (mut left, mut floor) = (there_are, 0);
        for waiting in &self.waiting {
            if waiting.slot == slot {
                floor = waiting.floor(now_ns);
            } else if waiting.priority < priority {
                left = left.saturating_sub(waiting.short);
            } else if waiting.priority > priority {
                left = left.saturating_sub(waiting.floor(now_ns).min(waiting.short));
            }
        }
        left.max(floor.min(there_are))
    }

    /// Takes note of what a type got, and of what it still waits for.
    pub(crate) fn took(&mut self, taken: &Taken, now_ns: u64) {
        let granted = u64::from(taken.granted);
        for waiting in &mut self.waiting {
            if waiting.slot == taken.slot {
                waiting.owed = waiting.owed.saturating_sub(granted * FLOOR_PART);
            } else if waiting.priority > taken.priority {
                waiting.owed = (waiting.owed + granted).min(OWED_MAX * FLOOR_PART);
            }
        }
        let until_ns = now_ns.saturating_add(taken.wait_ns.saturating_mul(2)).saturating_add(FRESH_NS);
        let own = self.waiting.iter().position(|waiting| waiting.slot == taken.slot);
        match own {
            Some(at) if taken.short == 0 => drop(self.waiting.swap_remove(at)),
            Some(at) => {
                let own = &mut self.waiting[at];
                (own.priority, own.short, own.until_ns) = (taken.priority, taken.short, until_ns);
            }
            None if taken.short == 0 => {}
            None => self.waiting.push(Waiting {
                slot: taken.slot,
                priority: taken.priority,
                short: taken.short,
                since_ns: now_ns,
                until_ns,
                owed: 0,
            }),
        }
    }
}

impl Waiting {
    /// The number of events that are set aside for the type.
    fn floor(&self, now_ns: u64) -> u32 {
        let has_waited = now_ns.saturating_sub(self.since_ns) >= FLOOR_AFTER_NS;
        if has_waited { u32::try_from(self.owed / FLOOR_PART).unwrap_or(u32::MAX) } else { 0 }
    }
}
