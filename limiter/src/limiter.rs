//! Buckets and fuses behind one lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::bucket::{Bucket, Scale};
use crate::precedence::{Precedence, Taken};
use crate::{Fuse, Limit, Now, Share, TypeLimit};

/// How soon to ask again where the global bucket has tokens that are kept for types of a higher rank.
const KEPT_WAIT_NS: u64 = 1_000_000;

/// Decides how many events may be granted now. `Send + Sync`; the consumers of a process share one in an `Arc`.
///
/// One lock guards it all, held for tens of nanoseconds: both buckets are taken from or none is, and a change is
/// seen whole or not at all.
#[derive(Debug)]
pub struct Limiter {
    state: Mutex<State>,
}

/// The id of a bonus type in one [`Limiter`]; given out by [`Limiter::type_id`], good for that limiter's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeId(u16);

/// The answer to [`Limiter::admit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "events that were granted are gone from the buckets"]
pub struct Admission {
    /// Events that may be granted now; taken from both buckets.
    pub granted: u32,
    /// How long to wait before asking for the next one.
    pub wait: Wait,
}

/// How long until one more event of the type may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// From the time given, if no rule or share changes and nobody else takes it; zero where it may pass now.
    For(Duration),
    /// Nothing passes before a rule or the share changes: the rate is 0, a fuse is not closed, or there is no partition
    /// or no rule.
    Never,
}

/// Tokens that were granted and may come back. Dropped, they are spent.
#[derive(Debug)]
#[must_use = "dropped at once, it keeps no room"]
pub struct Held {
    limiter: Arc<Limiter>,
    id: TypeId,
    events: u32,
    era: u64,
}

impl Held {
    /// Gives back as many of them as were not needed.
    pub fn give_back(mut self, unused: u32, now: Now) {
        self.limiter.give_back(&self, unused, now);
        self.events = 0;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.events > 0 {
            self.limiter.give_back(self, 0, Now(0));
        }
    }
}

#[derive(Debug)]
struct State {
    /// The latest time given. I5: a clock that steps back counts as standing still until it reaches this time again.
    latest: Now,
    scale: Scale,
    global: Bucket,
    precedence: Precedence,
    slots: Vec<Slot>,
    ids: HashMap<String, TypeId>,
}

/// What is known of one type.
#[derive(Debug)]
struct Slot {
    bucket: Bucket,
    fuse: Fuse,
    priority: u8,
}

impl Slot {
    fn without_rule() -> Self {
        Self { bucket: Bucket::shut(), fuse: Fuse::Closed, priority: u8::MAX }
    }
}

impl Limiter {
    /// Starts with empty buckets, a share of [`Share::ALL`], and no rule for any type: nothing passes before
    /// [`apply`](Self::apply). An instance of a fleet sets [`Share::NONE`] before it asks for partitions.
    pub fn new(global: Limit, now: Now) -> Self {
        let scale = Scale::new(Share::ALL);
        let mut bucket = Bucket::shut();
        bucket.set_limit(global, &scale, now);
        let (precedence, slots, ids) = (Precedence::default(), Vec::new(), HashMap::new());
        Self { state: Mutex::new(State { latest: now, scale, global: bucket, precedence, slots, ids }) }
    }

    /// The id of a type's name; the same one each time. Registers it, without a rule if it is new.
    ///
    /// There is room for 65,535 names; what comes after shares an id that admits nothing. Ask once per lane, not once
    /// per event.
    pub fn type_id(&self, name: &str) -> TypeId {
        self.state.lock().type_id(name)
    }

    /// Swaps the global limit and all rules at once, from `now` on. Levels are carried over (I5), fuses are not
    /// merged: a type without a rule here passes nothing. Of two rules with one name the later counts.
    pub fn apply(&self, global: Limit, rules: &[(String, TypeLimit)], now: Now) {
        let state = &mut *self.state.lock();
        let now = state.at(now);
        state.global.set_limit(global, &state.scale, now);
        let mut by_slot: HashMap<u16, &TypeLimit> = HashMap::with_capacity(rules.len());
        for (name, rule) in rules {
            by_slot.insert(state.type_id(name).0, rule);
        }
        for (index, slot) in (0..u16::MAX).zip(&mut state.slots) {
            match by_slot.get(&index) {
                Some(rule) => {
                    slot.bucket.set_limit(rule.limit, &state.scale, now);
                    slot.fuse = rule.fuse;
                    slot.priority = rule.priority;
                }
                None => {
                    slot.bucket.shut_at(now);
                    slot.fuse = Fuse::Closed;
                    slot.priority = u8::MAX;
                }
            }
        }
    }

    /// Changes this instance's part of all limits, from `now` on. Levels are carried over, cut where they no
    /// longer fit (I5). On losing partitions, call it before the next owner can take them.
    pub fn set_share(&self, share: Share, now: Now) {
        let state = &mut *self.state.lock();
        let now = state.at(now);
        let (old, new) = (state.scale, Scale::new(share));
        for bucket in std::iter::once(&mut state.global).chain(state.slots.iter_mut().map(|s| &mut s.bucket))
        {
            bucket.set_scale(&old, &new, now);
        }
        state.scale = new;
    }

    /// The operator's switch; [`Fuse::Closed`] for a type without a rule.
    #[inline]
    pub fn fuse(&self, id: TypeId) -> Fuse {
        self.state.lock().slots.get(usize::from(id.0)).map_or(Fuse::Closed, |slot| slot.fuse)
    }

    /// The rank at the global bucket, 0 first; 255 for a type without a rule.
    #[inline]
    pub fn priority(&self, id: TypeId) -> u8 {
        self.state.lock().slots.get(usize::from(id.0)).map_or(u8::MAX, |slot| slot.priority)
    }

    /// Takes as many of `wanted` events as the type's bucket and the global one both hold, from both.
    ///
    /// While the global bucket is short, it is taken from by priority, whoever asks first: types of a higher rank that
    /// wait leave to the others what they do not need, and a twentieth of what passes before them.
    ///
    /// What was granted is spent, but for what [`hold`](Self::hold) keeps room for.
    #[inline]
    pub fn admit(&self, id: TypeId, wanted: u32, now: Now) -> Admission {
        const NOTHING: Admission = Admission { granted: 0, wait: Wait::Never };
        let state = &mut *self.state.lock();
        let at = state.at(now);
        let (scale, global, precedence) = (&state.scale, &mut state.global, &mut state.precedence);
        let Some(slot) = state.slots.get_mut(usize::from(id.0)) else { return NOTHING };
        if slot.fuse != Fuse::Closed || slot.bucket.is_shut() || global.is_shut() {
            return NOTHING;
        }
        slot.bucket.fill(at);
        global.fill(at);
        let own = slot.bucket.whole(wanted, scale);
        let granted = match precedence.is_idle() {
            true => global.whole(own, scale),
            false => {
                let there_are = global.whole(u32::MAX, scale);
                own.min(precedence.may_take(id.0, slot.priority, there_are, at.0))
            }
        };
        slot.bucket.take(granted, scale);
        global.take(granted, scale);
        let filling_ns = slot.bucket.wait_ns(scale).max(global.wait_ns(scale));
        if granted < own || !precedence.is_idle() {
            let (priority, short) = (slot.priority, own - granted);
            precedence.took(&Taken { slot: id.0, priority, granted, short, wait_ns: filling_ns }, at.0);
        }
        let is_kept = granted < own && filling_ns == 0;
        let filling_ns = if is_kept { KEPT_WAIT_NS } else { filling_ns };
        let wait_ns = if filling_ns == 0 { 0 } else { filling_ns.saturating_add(at.0 - now.0) };
        Admission { granted, wait: Wait::For(Duration::from_nanos(wait_ns)) }
    }

    /// Keeps room for tokens of the type that [`admit`](Self::admit) has just granted, and that may turn out not to be
    /// needed: an event that was credited before takes nothing from what the limit protects. Meanwhile the type's bucket
    /// fills up to its burst less this room, which is half of the burst at most; so hold no more than is likely to come
    /// back. The global bucket gets nothing back: asking costs as much for an event that was credited before.
    pub fn hold(self: &Arc<Self>, id: TypeId, events: u32, now: Now) -> Held {
        let state = &mut *self.state.lock();
        let at = state.at(now);
        let (mut kept, mut era) = (0, 0);
        if let Some(slot) = state.slots.get_mut(usize::from(id.0)) {
            slot.bucket.fill(at);
            (kept, era) = slot.bucket.hold(events, &state.scale);
        }
        Held { limiter: Arc::clone(self), id, events: kept, era }
    }

    fn give_back(&self, held: &Held, unused: u32, now: Now) {
        let state = &mut *self.state.lock();
        let at = state.at(now);
        if let Some(slot) = state.slots.get_mut(usize::from(held.id.0)) {
            slot.bucket.fill(at);
            slot.bucket.give_back(held.events, held.era, unused, &state.scale);
        }
    }

    /// The events per second that the type may pass here in the long run, for pacing: the smaller of its own rate and
    /// the global one, times the share; 0 where nothing passes.
    pub fn may_pass_per_s(&self, id: TypeId) -> f64 {
        let state = self.state.lock();
        match state.slots.get(usize::from(id.0)) {
            Some(slot) if slot.fuse == Fuse::Closed => {
                state.scale.of_rate(slot.bucket.rate_per_s().min(state.global.rate_per_s()))
            }
            _ => 0.0,
        }
    }
}

impl State {
    #[inline]
    fn at(&mut self, now: Now) -> Now {
        self.latest = self.latest.max(now);
        self.latest
    }

    fn type_id(&mut self, name: &str) -> TypeId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        // The last number has no slot: I9, names that come from outside cannot grow this without bound.
        let Some(next) = u16::try_from(self.slots.len()).ok().filter(|next| *next < u16::MAX) else {
            return TypeId(u16::MAX);
        };
        let id = TypeId(next);
        self.slots.push(Slot::without_rule());
        self.ids.insert(name.to_owned(), id);
        id
    }
}
