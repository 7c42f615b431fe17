//! How fast events may be granted: one token bucket over all types, one per bonus type, an operator's fuse per type,
//! and this instance's share of the fleet's limits.
//!
//! For: a lane that holds `n` events asks [`Limiter::admit`] how many of them may go now and how long the rest
//! has to wait. Rules and shares change while it runs; [`Limiter::apply`] and [`Limiter::set_share`] swap them
//! under the same lock and carry every level over.
//! While the global bucket is short, types of a higher rank go first, across all who ask, and each other type keeps a
//! floor of a twentieth of what passes before it.
//! Not for: waiting, queueing, counting partitions. There is no I/O, no task and no clock in here: the caller passes
//! the time.
//!
//! # What it promises (I5)
//! - In any window of Δ seconds in which no limit changed, a type passes at most `rate · Δ + burst` events, and
//!   so do all types together under the global limit. A change holds from the next call on, for ever after.
//! - An event that turns out to have been credited before passes nothing: the token of its type may come back
//!   ([`Limiter::hold`]), and has had its place in the bucket meanwhile, so that the bound holds for all others.
//! - Tokens come into being in one way only: time passes at a positive rate. A bucket starts **empty**; a higher
//!   burst or a larger share raises the ceiling, not the level; a lower one cuts the level. So no sequence of
//!   changes, no type taken out of the rules and put back, and no restarted process grants a fresh burst.
//! - Rate 0, a share of none, a fuse that is not closed, or a type without a rule: nothing passes.
//! - Nothing is ever rounded up, and rounding loses less than 10⁻⁹ of an event per change of the share, so changes
//!   every millisecond starve nobody.
//! - A clock that stands still or steps back admits nothing extra: only time past the latest that was
//!   given counts.
//!
//! # The fleet
//! A limit is the fleet's. An instance that owns `o` of `p` partitions fills its buckets at `rate · o / p` up to
//! `max(1, burst · o / p)` events. A partition has one owner at most, so the levels of all instances together
//! never pass `max(burst, p)`, and the fleet passes at most `rate · Δ + max(burst, p)` in any window.
//!
//! The `max` is there for liveness. Where `burst < p`, an instance's part of the burst can be less than one
//! event, and a bucket that never holds one event never passes one. Two instances that may each pass an event
//! at a time of their own choosing can choose the same instant; without a coordinator nothing else keeps
//! `rate · 0 + 1` than forbidding one of them for good. A reward that is held for ever is worse than `p` events
//! in one instant, so the ceiling is one event where `o ≥ 1`. **Give a fleet's limit a burst of at least its
//! partitions, and the bound is `rate · Δ + burst` exactly.** With one instance it always is.
//!
//! A caller that comes back every `t` seconds gets `burst / t` events per second at most, whatever the rate.
//!
//! # Why not governor
//! governor's GCRA is quick and sound for a constant quota. It cannot express what I5 asks of changes:
//! - its state is private to one quota: a new `RateLimiter` starts with a full burst, and a state store that is
//!   reused under another quota or another start means a theoretical arrival time that nobody meant (a denial
//!   for as long as the process had been up);
//! - `check_n` is all or nothing, fails above the burst, and cannot be undone: "as many of `n` as there are,
//!   from both buckets or from none" cannot be expressed;
//! - a quota is a whole number of nanoseconds per event: 60,000,000/s is cut to 16 ns and passes 62,500,000/s;
//!   an instance's third of a limit is seldom a whole number either;
//! - a rate of zero cannot be constructed.
//!
//! So this crate has its own buckets: levels in integers, in units of 1/(10⁹ · p) of an event, in which what a
//! nanosecond adds (`rate · o`) is a whole number. `tests/governor.rs` shows each of these points, and the
//! example `admit` measures both.
//!
//! # Example
//! ```
//! use std::time::Duration;
//! use windfall_limiter::{Fuse, Limit, Limiter, Now, Share, TypeLimit, Wait};
//!
//! let second = |s: u64| Now(s * 1_000_000_000);
//! let limiter = Limiter::new(Limit { rate_per_s: 1_000, burst: 1_000 }, second(0));
//! let cash = limiter.type_id("cash");
//! let rule = TypeLimit { limit: Limit { rate_per_s: 10, burst: 5 }, fuse: Fuse::Closed, priority: 0 };
//! limiter.apply(Limit { rate_per_s: 1_000, burst: 1_000 }, &[("cash".into(), rule)], second(0));
//!
//! // Buckets start empty: the first event passes when 1/10 s has filled one.
//! let first = limiter.admit(cash, 100, second(0));
//! assert_eq!((first.granted, first.wait), (0, Wait::For(Duration::from_millis(100))));
//! // However long nothing passed, the burst is all there is.
//! assert_eq!(limiter.admit(cash, 100, second(3_600)).granted, 5);
//!
//! // This instance owns 1 of 4 partitions: a quarter of both limits.
//! limiter.set_share(Share::new(1, 4).unwrap(), second(3_600));
//! assert_eq!(limiter.may_pass_per_s(cash), 2.5);
//!
//! let paused = TypeLimit { fuse: Fuse::Pause, ..rule };
//! limiter.apply(Limit { rate_per_s: 1_000, burst: 1_000 }, &[("cash".into(), paused)], second(3_600));
//! assert_eq!(limiter.admit(cash, 1, second(9_999)).wait, Wait::Never);
//! ```

mod bucket;
mod limiter;
mod precedence;
mod rule;

pub use limiter::{Admission, Held, Limiter, TypeId, Wait};
pub use rule::{Now, Share};
pub use windfall_contract::rules::{Fuse, Limit, TypeLimit};
