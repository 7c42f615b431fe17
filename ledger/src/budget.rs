//! Budget arithmetic over the shards of one budget key, without SQL. It keeps I4.

/// One shard of a budget. Always `used + reserved <= total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shard {
    pub total: i64,
    pub used: i64,
    pub reserved: i64,
}

impl Shard {
    const fn room(&self) -> i64 {
        self.total - self.used - self.reserved
    }
}

/// The shards of one budget key while a transaction works on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shards {
    shards: Vec<Shard>,
    changed: Vec<bool>,
}

/// How an amount is taken from the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    Used,
    Reserved,
}

impl Shards {
    pub fn new(shards: Vec<Shard>) -> Self {
        let changed = vec![false; shards.len()];
        Self { shards, changed }
    }

    /// The shards that differ from what was loaded, by number.
    pub fn changed(&self) -> impl Iterator<Item = (usize, Shard)> + '_ {
        self.shards.iter().copied().enumerate().filter(|(at, _)| self.changed[*at])
    }

    /// Whether all shards together have room for `amount`.
    pub fn fits(&self, amount: i64) -> bool {
        let room: i128 = self.shards.iter().map(|shard| i128::from(shard.room())).sum();
        room >= i128::from(amount)
    }

    /// Begins with the amounts that were used and reserved before; [`Shards::reset`] then sets a total.
    pub fn adopt(&mut self, used: i64, reserved: i64) {
        self.shards = vec![Shard { total: 0, used, reserved }];
        self.changed = vec![true];
    }

    /// The number of shards.
    #[cfg(feature = "postgres")]
    pub fn len(&self) -> u64 {
        self.shards.len() as u64
    }

    /// Spreads the room that is left evenly, so that each writer's own shard lasts.
    #[cfg(feature = "postgres")]
    pub fn level(&mut self) {
        let room: i64 = self.shards.iter().map(Shard::room).fold(0, i64::saturating_add);
        let parts = i64::try_from(self.shards.len()).unwrap_or(i64::MAX).max(1);
        for (at, (shard, changed)) in (0..).zip(self.shards.iter_mut().zip(&mut self.changed)) {
            let total = shard.used + shard.reserved + room / parts + i64::from(at < room % parts);
            *changed |= total != shard.total;
            shard.total = total;
        }
    }

    /// The sum over all shards.
    pub fn sum(&self) -> Shard {
        self.shards.iter().fold(Shard::default(), |sum, shard| Shard {
            total: sum.total.saturating_add(shard.total),
            used: sum.used.saturating_add(shard.used),
            reserved: sum.reserved.saturating_add(shard.reserved),
        })
    }

    fn pick(&self, hash: u64) -> usize {
        let count = self.shards.len().max(1) as u64;
        usize::try_from(hash % count).unwrap_or(0)
    }

    /// Takes `amount` from the shard of this hash. When that one is short, room of the others moves to it; only
    /// when all of them together are short it is refused (I4).
    pub fn take(&mut self, hash: u64, amount: i64, what: Take) -> bool {
        let own = self.pick(hash);
        if self.shards.is_empty() || !self.gather(own, amount) {
            return false;
        }
        self.count(own, amount, what);
        true
    }

    /// Counts an amount without looking at the room.
    #[cfg(feature = "sabotage")]
    pub fn take_unchecked(&mut self, hash: u64, amount: i64, what: Take) {
        let own = self.pick(hash);
        self.count(own, amount, what);
    }

    fn count(&mut self, own: usize, amount: i64, what: Take) {
        match what {
            Take::Used => self.shards[own].used += amount,
            Take::Reserved => self.shards[own].reserved += amount,
        }
        self.changed[own] = true;
    }

    /// Moves room of the other shards to `own` until it has `amount`. Moves nothing when all together are short.
    fn gather(&mut self, own: usize, amount: i64) -> bool {
        let mut short = amount - self.shards[own].room();
        if short <= 0 {
            return true;
        }
        let others: i128 = self.shards.iter().map(|shard| i128::from(shard.room())).sum();
        if others < i128::from(amount) {
            return false;
        }
        for at in (0..self.shards.len()).filter(|at| *at != own) {
            let moved = self.shards[at].room().min(short);
            if moved > 0 {
                self.shards[at].total -= moved;
                self.shards[own].total += moved;
                self.changed[at] = true;
                self.changed[own] = true;
                short -= moved;
            }
        }
        short <= 0
    }

    /// Turns a reservation into use, or gives it back. The reservation may lie on other shards than its hash
    /// says, since the number of shards may have changed. False where less than `amount` is reserved at all.
    pub fn settle(&mut self, hash: u64, amount: i64, credited: bool) -> bool {
        let reserved: i128 = self.shards.iter().map(|shard| i128::from(shard.reserved)).sum();
        if reserved < i128::from(amount) {
            return false;
        }
        let own = self.pick(hash);
        let mut left = amount;
        for at in std::iter::once(own).chain((0..self.shards.len()).filter(|at| *at != own)) {
            let part = self.shards[at].reserved.min(left);
            if part > 0 {
                self.shards[at].reserved -= part;
                self.shards[at].used += if credited { part } else { 0 };
                self.changed[at] = true;
                left -= part;
            }
        }
        left == 0
    }

    /// Takes back what was given out, from this shard first. False where less than `amount` was given out at all: nothing is
    /// changed then.
    pub fn take_back(&mut self, hash: u64, amount: i64) -> bool {
        let used: i128 = self.shards.iter().map(|shard| i128::from(shard.used)).sum();
        if self.shards.is_empty() || used < i128::from(amount) {
            return false;
        }
        let own = self.pick(hash);
        let mut left = amount;
        for at in std::iter::once(own).chain((0..self.shards.len()).filter(|at| *at != own)) {
            let part = self.shards[at].used.min(left);
            if part > 0 {
                self.shards[at].used -= part;
                self.changed[at] = true;
                left -= part;
            }
        }
        left == 0
    }

    /// Spreads a new total evenly over `count` shards; what is used and reserved fills them from the first. The
    /// total never falls below that (I4); returns the one that holds.
    pub fn reset(&mut self, total: i64, count: usize) -> i64 {
        let sum = self.sum();
        let taken = sum.used.saturating_add(sum.reserved);
        let total = total.max(taken);
        let count = count.max(1);
        let parts = i64::try_from(count).unwrap_or(i64::MAX);
        let (mut used, mut reserved) = (sum.used, sum.reserved);
        self.shards = (0..parts)
            .map(|at| {
                let total = total / parts + i64::from(at < total % parts);
                let own_used = used.min(total);
                let own_reserved = reserved.min(total - own_used);
                used -= own_used;
                reserved -= own_reserved;
                Shard { total, used: own_used, reserved: own_reserved }
            })
            .collect();
        self.changed = vec![true; count];
        total
    }
}

/// Picks an order's shard, the same on every machine and in every version.
pub(crate) fn hash(trade_no: &str) -> u64 {
    windfall_contract::fnv1a(trade_no.as_bytes())
}
