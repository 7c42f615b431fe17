//! The calls of a connection, its times, and what it may do before a call of it is authenticated.

use super::newcomers::Newcomer;
use crate::pipeline::Held;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long an answer may wait to be read by a peer that has shown no key for it.
const UNREAD_TIME: Duration = Duration::from_secs(5);
/// The number of calls without a key in flight, from which on no more is read from a newcomer.
const UNKNOWN_IN_FLIGHT: usize = 8;
/// The number of calls in a row without a key, after which a newcomer over HTTP/2 is read once in a look at its
/// times: it costs others no time.
const UNKNOWN_AT_ONCE: u32 = 16;
/// The bytes that are read of a newcomer over HTTP/2 while it has such calls: trailers of theirs are kept, and a byte
/// of them may stand for a hundred.
const BYTES_BESIDE_UNKNOWN: usize = 1_024;
/// The number of such calls that are answered and not read, at which a connection is cut at once.
const UNREAD_MAX: usize = 32;
/// The bytes that a newcomer over HTTP/2 is read at once: they hold about twenty calls at most.
const PIECE_BYTES: usize = 256;

/// The end of a connection that something outside of it asks for. The first reason counts.
#[derive(Default)]
pub(super) struct Cut {
    token: CancellationToken,
    why: OnceLock<&'static str>,
}

/// The time-outs of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) header: Duration,
    pub(super) idle: Duration,
    /// The time-out of a whole call, with its body in and its answer out.
    pub(super) call: Duration,
    /// How old a connection becomes.
    pub(super) age: Duration,
}

/// The bounds of a connection without an authenticated call.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnknownLimits {
    /// The calls in a row without a key, on any connection.
    pub(super) calls_max: u32,
    /// The bytes that are read until the first key.
    pub(super) bytes_max: usize,
}

/// Watches one connection.
pub(super) struct Watch {
    cut: Arc<Cut>,
    limits: UnknownLimits,
    opened_at: Instant,
    age: Duration,
    /// A copy of the one in `calls`, for each read of a connection that is known.
    is_known: AtomicBool,
    calls: Mutex<Calls>,
}

struct Calls {
    next: u64,
    /// The begin of each call, by its number, so the first is the oldest.
    begun: BTreeMap<u64, Instant>,
    /// Those of them that showed no key (yet), with the time of their answers.
    unknown: BTreeMap<u64, Option<Instant>>,
    /// The calls of a newcomer in a row that showed no key (yet).
    unknown_in_a_row: u32,
    /// The calls in a row that are over, or answered, and showed none. A call that was not looked at yet does not count:
    /// many may begin before the first one's key is seen.
    without_key_in_a_row: u32,
    is_known: bool,
    newcomer: Option<Newcomer>,
    bytes_read: usize,
    /// Those of them that were read while calls without a key were in flight.
    bytes_beside_unknown: usize,
    /// Over HTTP/2, whether all calls of the piece that was read last have begun.
    has_turn: bool,
    /// Waits until more may be read.
    reader: Option<Waker>,
    quiet_since: Instant,
}

/// The result of a look at a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Keep,
    Leave(&'static str),
    Cut(&'static str),
}

/// How much may be read from a connection now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    All,
    /// This many bytes at most.
    Piece(usize),
    /// Nothing; the reader is woken.
    Later,
}

/// A call on a connection; it ends when this is dropped.
pub(super) struct OnWatch {
    watch: Arc<Watch>,
    number: u64,
}

impl Cut {
    pub(super) fn end(&self, why: &'static str) {
        self.why.get_or_init(|| why);
        self.token.cancel();
    }

    pub(super) fn why(&self) -> Option<&'static str> {
        self.why.get().copied()
    }

    /// Waits for the end, and tells its reason.
    pub(super) async fn ended(&self) -> &'static str {
        self.token.cancelled().await;
        self.why().unwrap_or("cut")
    }
}

impl Watch {
    /// `number` spreads the ages of connections that came together, so that they do not all come again together. One that
    /// is no newcomer is known from the start: it comes from this process.
    pub(super) fn new(
        cut: Arc<Cut>,
        newcomer: Option<Newcomer>,
        limits: UnknownLimits,
        times: &Times,
        number: u64,
    ) -> Self {
        let now = Instant::now();
        let is_known = newcomer.is_none();
        let calls = Calls {
            next: 0,
            begun: BTreeMap::new(),
            unknown: BTreeMap::new(),
            unknown_in_a_row: 0,
            without_key_in_a_row: 0,
            is_known,
            newcomer,
            bytes_read: 0,
            bytes_beside_unknown: 0,
            has_turn: true,
            reader: None,
            quiet_since: now,
        };
        Self {
            cut,
            limits,
            opened_at: now,
            age: spread(times.age, number),
            is_known: AtomicBool::new(is_known),
            calls: Mutex::new(calls),
        }
    }

    pub(super) fn cut(&self) -> &Cut {
        &self.cut
    }

    pub(super) fn begin(self: &Arc<Self>) -> OnWatch {
        let mut calls = self.calls.lock();
        let number = calls.next;
        calls.next += 1;
        calls.begun.insert(number, Instant::now());
        calls.unknown.insert(number, None);
        if !calls.is_known {
            calls.unknown_in_a_row = calls.unknown_in_a_row.saturating_add(1);
        }
        OnWatch { watch: Arc::clone(self), number }
    }

    /// A newcomer that was asked to leave and goes on is cut. A known caller has calls in flight, and is asked alone.
    fn count_without_key(&self, calls: &mut Calls) {
        calls.without_key_in_a_row = calls.without_key_in_a_row.saturating_add(1);
        if !calls.is_known && calls.without_key_in_a_row > self.limits.calls_max.saturating_mul(2) {
            self.cut.end("calls_without_key");
        }
    }

    /// Whether it is a newcomer without a call. A known caller's answers may be on their way, and calls that he made
    /// before he heard that he should leave.
    pub(super) fn is_idle_newcomer(&self) -> bool {
        let calls = self.calls.lock();
        !calls.is_known && calls.begun.is_empty()
    }

    /// Whether the next answer should be the last one, where the protocol lets an answer say so.
    pub(super) fn should_say_goodbye(&self) -> bool {
        self.opened_at.elapsed() > self.age || self.calls.lock().without_key_in_a_row > self.limits.calls_max
    }

    /// A poll of the connection begins. The reader of frames reads as long as there is something, and hands over one
    /// call each time, so that only here no call is between the two.
    pub(super) fn begin_turn(&self) {
        if !self.is_known.load(Ordering::Acquire) {
            let mut calls = self.calls.lock();
            calls.has_turn |= calls.unknown_in_a_row <= UNKNOWN_AT_ONCE;
        }
    }

    /// The turn of a newcomer that has made many calls.
    pub(super) fn begin_late_turn(&self) {
        if self.is_known.load(Ordering::Acquire) {
            return;
        }
        let mut calls = self.calls.lock();
        calls.has_turn = true;
        let reader = calls.reader.take();
        drop(calls);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// How much may be read.
    pub(super) fn reading(&self, is_http2: bool, context: &Context<'_>) -> Reading {
        if self.is_known.load(Ordering::Acquire) {
            return Reading::All;
        }
        let mut calls = self.calls.lock();
        if calls.is_known {
            return Reading::All;
        }
        let left = self.limits.bytes_max.saturating_sub(calls.bytes_read);
        if left == 0 || (is_http2 && calls.are_many_unknown()) {
            calls.reader = Some(context.waker().clone());
            return Reading::Later;
        }
        if !is_http2 {
            return Reading::Piece(left);
        }
        if !calls.has_turn {
            if calls.unknown_in_a_row <= UNKNOWN_AT_ONCE {
                context.waker().wake_by_ref();
            } else {
                calls.reader = Some(context.waker().clone());
            }
            return Reading::Later;
        }
        Reading::Piece(left.min(PIECE_BYTES))
    }

    pub(super) fn has_read(&self, bytes: usize) {
        let mut calls = self.calls.lock();
        calls.bytes_read = calls.bytes_read.saturating_add(bytes);
        calls.has_turn = false;
        if !calls.unknown.is_empty() {
            calls.bytes_beside_unknown += bytes;
        }
    }

    /// A connection without an authenticated call has as long as for headers; one whose oldest call is not done with
    /// everything that a call may take is read too slowly.
    pub(super) fn judge(&self, now: Instant, times: &Times, is_http2: bool) -> Verdict {
        let calls = self.calls.lock();
        let since = |at: &Instant| now.saturating_duration_since(*at);
        if calls.begun.first_key_value().is_some_and(|(_, begun)| since(begun) > times.call) {
            return Verdict::Cut("answer_too_slow");
        }
        if calls.unknown.values().flatten().any(|answered| since(answered) > UNREAD_TIME) {
            return Verdict::Cut("refusal_unread");
        }
        let is_undecided = calls.unknown.values().any(Option::is_none);
        if !calls.is_known && calls.bytes_read >= self.limits.bytes_max && !is_undecided {
            return Verdict::Cut("bytes_without_key");
        }
        // Over HTTP/1 the next answer says so, and a connection without one is closed soon: whoever has just written a
        // request would have to ask again.
        if is_http2 && since(&self.opened_at) > self.age {
            return Verdict::Leave("age");
        }
        if calls.without_key_in_a_row > self.limits.calls_max {
            return Verdict::Leave("calls_without_key");
        }
        let quiet = if calls.begun.is_empty() { since(&calls.quiet_since) } else { Duration::ZERO };
        match calls.next {
            0 if quiet > times.header => Verdict::Leave("headers_too_slow"),
            _ if !calls.is_known && quiet > times.header => Verdict::Leave("idle_without_key"),
            _ if quiet > times.idle => Verdict::Leave("idle"),
            _ => Verdict::Keep,
        }
    }
}

impl Calls {
    /// Whether a newcomer over HTTP/2 has to wait until some of its calls are done.
    fn are_many_unknown(&self) -> bool {
        self.unknown.len() >= UNKNOWN_IN_FLIGHT || self.bytes_beside_unknown >= BYTES_BESIDE_UNKNOWN
    }
}

impl Held for OnWatch {
    /// From the first time on the connection is no newcomer.
    fn authenticated(&self) {
        let mut calls = self.watch.calls.lock();
        if calls.unknown.remove(&self.number).is_none() {
            return;
        }
        (calls.unknown_in_a_row, calls.without_key_in_a_row) = (0, 0);
        if calls.is_known {
            return;
        }
        calls.is_known = true;
        self.watch.is_known.store(true, Ordering::Release);
        let (newcomer, reader) = (calls.newcomer.take(), calls.reader.take());
        drop(calls);
        drop(newcomer);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn answered(&self) {
        let mut calls = self.watch.calls.lock();
        let Some(answered) = calls.unknown.get_mut(&self.number) else { return };
        if answered.replace(Instant::now()).is_none() {
            self.watch.count_without_key(&mut calls);
        }
        if calls.unknown.values().flatten().count() > UNREAD_MAX {
            self.watch.cut.end("refusal_unread");
        }
    }
}

impl Drop for OnWatch {
    fn drop(&mut self) {
        let mut calls = self.watch.calls.lock();
        calls.begun.remove(&self.number);
        if let Some(None) = calls.unknown.remove(&self.number) {
            // Its caller has given it up before it had an answer.
            self.watch.count_without_key(&mut calls);
        }
        if calls.unknown.is_empty() {
            calls.bytes_beside_unknown = 0;
        }
        calls.quiet_since = Instant::now();
        let reader = if calls.are_many_unknown() { None } else { calls.reader.take() };
        drop(calls);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// From nine tenths of it to all of it.
fn spread(age: Duration, number: u64) -> Duration {
    let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
    let tenth = age / 10;
    age - tenth + tenth * u32::try_from(hash).unwrap_or(0) / 1023
}

#[cfg(test)]
mod tests {
    use super::super::counts::Counts;
    use super::super::newcomers::Newcomers;
    use super::*;
    use crate::metrics::Metrics;
    use std::task::{Wake, Waker};

    const TIMES: Times = Times {
        header: Duration::from_secs(15),
        idle: Duration::from_secs(300),
        call: Duration::from_secs(80),
        age: Duration::from_secs(3_600),
    };

    fn watch() -> Arc<Watch> {
        let newcomers = Arc::new(Newcomers::new(4, 4, Vec::new(), Counts::Server(Metrics::new())));
        let cut = Arc::new(Cut::default());
        let newcomer = newcomers.admit([127, 0, 0, 1].into(), Arc::clone(&cut));
        let limits = UnknownLimits { calls_max: 40, bytes_max: 4_096 };
        Arc::new(Watch::new(cut, Some(newcomer), limits, &TIMES, 7))
    }

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_newcomer_is_read_in_pieces_until_it_shows_a_key() {
        let watch = watch();
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        let context = Context::from_waker(&waker);
        assert_eq!(watch.reading(true, &context), Reading::Piece(PIECE_BYTES));
        assert_eq!(watch.reading(false, &context), Reading::Piece(4_096));
        watch.has_read(7);
        assert_eq!(watch.reading(true, &context), Reading::Later);
        assert!(woken.0.swap(false, Ordering::SeqCst), "its turn comes at once");
        watch.begin_turn();
        assert_eq!(watch.reading(true, &context), Reading::Piece(PIECE_BYTES));
        let mut calls: Vec<_> = (0..UNKNOWN_IN_FLIGHT).map(|_| watch.begin()).collect();
        assert_eq!(watch.reading(true, &context), Reading::Later);
        assert!(!woken.0.load(Ordering::SeqCst));
        drop(calls.pop());
        assert!(woken.0.swap(false, Ordering::SeqCst), "there is room again");
        watch.has_read(BYTES_BESIDE_UNKNOWN);
        watch.begin_turn();
        assert_eq!(watch.reading(true, &context), Reading::Later);
        watch.has_read(4_096);
        assert_eq!(watch.reading(false, &context), Reading::Later);
        assert_eq!(watch.judge(Instant::now(), &TIMES, true), Verdict::Keep, "its calls are not decided");
        calls[3].authenticated();
        assert!(woken.0.load(Ordering::SeqCst));
        assert_eq!(watch.reading(true, &context), Reading::All);
        calls.iter().for_each(Held::answered);
        assert_eq!(watch.judge(Instant::now(), &TIMES, true), Verdict::Keep);
        let later = Instant::now() + UNREAD_TIME + Duration::from_secs(1);
        assert_eq!(watch.judge(later, &TIMES, true), Verdict::Cut("refusal_unread"));
        drop(calls);
        assert_eq!(watch.judge(later, &TIMES, true), Verdict::Keep);
        let old = Instant::now() + TIMES.age;
        assert_eq!(watch.judge(old, &TIMES, true), Verdict::Leave("age"));
        assert_eq!(watch.judge(old, &TIMES, false), Verdict::Leave("idle"));
    }

    #[test]
    fn who_never_shows_a_key_is_sent_away() {
        let watch = watch();
        let late = Instant::now() + TIMES.header + Duration::from_secs(1);
        assert_eq!(watch.judge(late, &TIMES, false), Verdict::Leave("headers_too_slow"));
        let ask = || watch.begin().answered();
        ask();
        assert_eq!(watch.judge(late, &TIMES, false), Verdict::Leave("idle_without_key"));
        (0..40).for_each(|_| ask());
        assert_eq!(watch.judge(Instant::now(), &TIMES, true), Verdict::Leave("calls_without_key"));
        assert!(watch.should_say_goodbye());
        (0..39).for_each(|_| ask());
        assert_eq!(watch.cut().why(), None);
        ask();
        assert_eq!(watch.cut().why(), Some("calls_without_key"));
        // It is read again when its times are looked at.
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        let context = Context::from_waker(&waker);
        watch.has_read(1);
        watch.begin_turn();
        assert_eq!(watch.reading(true, &context), Reading::Later);
        assert!(!woken.0.load(Ordering::SeqCst));
        watch.begin_late_turn();
        assert!(woken.0.load(Ordering::SeqCst));
        assert_eq!(watch.reading(true, &context), Reading::Piece(PIECE_BYTES));
        // A key in between begins the row anew.
        let other = self::watch();
        for nth in 0..200 {
            let call = other.begin();
            if nth % 40 == 0 {
                call.authenticated();
            }
        }
        assert_eq!(other.judge(Instant::now(), &TIMES, true), Verdict::Keep);
        other.has_read(1 << 20);
        assert_eq!(other.judge(Instant::now(), &TIMES, true), Verdict::Keep);
    }

    /// All of them begin before the first one's key is looked at.
    #[test]
    fn a_known_caller_may_begin_many_calls_at_once() {
        let watch = watch();
        watch.begin().authenticated();
        let burst: Vec<_> = (0..250).map(|_| watch.begin()).collect();
        assert_eq!((watch.cut().why(), watch.judge(Instant::now(), &TIMES, true)), (None, Verdict::Keep));
        burst.iter().for_each(Held::authenticated);
        drop(burst);
        assert_eq!(watch.judge(Instant::now(), &TIMES, true), Verdict::Keep);
        // One who has a key and uses it no more is asked to leave, and not cut.
        (0..200).for_each(|_| watch.begin().answered());
        assert_eq!(watch.cut().why(), None);
        assert_eq!(watch.judge(Instant::now(), &TIMES, true), Verdict::Leave("calls_without_key"));
    }

    #[test]
    fn refusals_that_nobody_reads_end_a_connection_at_once_when_they_are_many() {
        let watch = watch();
        let calls: Vec<_> = (0..=UNREAD_MAX).map(|_| watch.begin()).collect();
        calls[1..].iter().for_each(Held::answered);
        assert_eq!(watch.cut().why(), None);
        calls[0].answered();
        assert_eq!(watch.cut().why(), Some("refusal_unread"));
    }

    #[test]
    fn ages_are_spread() {
        let age = Duration::from_secs(1_000);
        let ages: Vec<_> = (0..50).map(|number| spread(age, number)).collect();
        assert!(ages.iter().all(|one| (age * 9 / 10..=age).contains(one)), "{ages:?}");
        let (least, most) = (ages.iter().min().unwrap(), ages.iter().max().unwrap());
        assert!(*most - *least > age / 20, "{ages:?}");
    }
}
