//! A consumer's counters and gauges, which are cheap to read at any time.

use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use windfall_contract::declare_metrics;
use windfall_contract::metrics::{Each, Readable};
use windfall_signing::Refused;

/// A number that one loop writes and any thread reads.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Why an event was written back to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its grant failed (counts towards `max_failures`).
    Failed,
    /// Its lane was full of what waits for a limit or a downstream, and another type could flow.
    Limit,
    /// The type's fuse diverts it, or is open while the lane is full and another type could flow.
    Fuse,
    /// It is not due yet, could not be kept, and a type could flow.
    NotDue,
    /// The head-of-line deadline passed while something else flowed.
    Deadline,
    /// The rules do not know its type.
    UnknownType,
    /// The consumer is closing.
    Drain,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 7] =
        [Self::Failed, Self::Limit, Self::Fuse, Self::NotDue, Self::Deadline, Self::UnknownType, Self::Drain];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Limit => "limit",
            Self::Fuse => "fuse",
            Self::NotDue => "not_due",
            Self::Deadline => "deadline",
            Self::UnknownType => "unknown_type",
            Self::Drain => "drain",
        }
    }
}

/// Events written back, by [`Cause`].
#[derive(Debug, Default)]
struct ByCause([Count; Cause::ALL.len()]);

/// Records that were refused, by the name of the reason.
#[derive(Debug, Default)]
struct ByRefusal([Count; Refused::NAMES.len()]);

impl Readable for ByRefusal {
    fn read(&self, _value: &[&str], each: &mut Each<'_>) {
        Refused::NAMES.into_iter().zip(&self.0).for_each(|(name, count)| each(&[name], count.get()));
    }
}

impl Readable for Count {
    fn read(&self, value: &[&str], each: &mut Each<'_>) {
        each(value, self.get());
    }
}

impl Readable for ByCause {
    fn read(&self, _value: &[&str], each: &mut Each<'_>) {
        Cause::ALL.into_iter().zip(&self.0).for_each(|(cause, count)| each(&[cause.name()], count.get()));
    }
}

declare_metrics! {
    /// The numbers of one consumer. They are counters unless their text says "now".
    #[derive(Debug, Default)]
    pub struct ConsumerStats {
        counter "windfall_fetched_records_total"
        "Records read" {
            /// Records read.
            pub records_fetched: Count,
        }
        counter "windfall_fetched_events_total"
        "Events in the records that were read" {
            /// Events in them.
            pub events_fetched: Count,
        }
        counter "windfall_grant_calls_total"
        "Grant calls begun" {
            /// Grant calls begun.
            pub grant_calls: Count,
        }
        counter "windfall_finished_events_total" ["outcome"]
        "Events that this consumer brought to their end, by outcome" {
            /// Events credited by this consumer's calls.
            pub credited: Count as "credited",
            /// Events that had been credited before.
            pub already_credited: Count as "already_credited",
            /// Events that the reward service refused for good and archived.
            pub rejected: Count as "rejected",
            /// Events, and malformed records, that this consumer archived.
            pub archived: Count as "archived",
        }
        counter "windfall_malformed_records_total"
        "Records that could not be read as such; each is archived" {
            /// Records that could not be read as such; each is also counted as archived.
            pub malformed: Count,
        }
        counter "windfall_unverified_records_total" ["reason"]
        "Records whose signature was missing or wrong; each is archived whole, and nothing of it is granted" {
            /// Records whose signature was missing or wrong, by reason; each is also counted as archived.
            refused_by: ByRefusal,
        }
        counter "windfall_unsigned_records_total"
        "Records that were taken though nobody had signed them, or the original of a copy, because the options say so of a topic" {
            /// Records that were taken though nobody had signed them, or the original of a copy.
            pub unsigned: Count,
        }
        gauge "windfall_record_verification" ["unsigned"]
        "1 for what becomes of a topic's records without a signature: refuse, accept, or unverified, where no record is verified" {
            /// Whether records are verified, and those without a signature are refused.
            pub refuses_unsigned: Count as "refuse",
            /// Whether records are verified, and those without a signature are taken.
            pub accepts_unsigned: Count as "accept",
            /// Whether no record is verified.
            pub verifies_nothing: Count as "unverified",
        }
        counter "windfall_requeued_events_total" ["cause"]
        "Events written back to a queue, by cause" {
            /// Events written back, by cause.
            requeued_by: ByCause,
        }
        counter "windfall_failed_grants_total"
        "Grants of events that failed, timed out, or met a store or a reward service that did not answer; each event counts once per try" {
            /// Grants of events that failed, or that nobody decided, but for those that had to wait their turn.
            pub failed_grants: Count,
        }
        counter "windfall_undecided_events_total"
        "Events whose grant was not decided and that wait in their lane to be asked for again" {
            /// Events whose grant was not decided, and that wait in place to be asked for again.
            pub undecided: Count,
        }
        counter "windfall_not_before_clamped_total"
        "Records whose due time was brought back to ten minutes: a wrong clock has set it, or nothing here keeps longer delays" {
            /// Records whose due time was brought back to the latest one that is allowed.
            pub not_before_clamped: Count,
        }
        counter "windfall_handed_over_events_total"
        "Events due long after now that the service of long delays has taken" {
            /// Events that the service of long delays has taken.
            pub handed_over: Count,
        }
        counter "windfall_not_handed_over_events_total"
        "Events due long after now that a call to the service of long delays did not hand over; they wait and are handed over again" {
            /// Events that a call to the service of long delays did not hand over, once per call.
            pub not_handed_over: Count,
        }
        counter "windfall_requeued_records_total" ["outcome"]
        "Records written back to a queue: stored by a broker, or refused by every candidate queue" {
            /// Copies that a broker has stored.
            pub requeues_stored: Count as "stored",
            /// Copies that every candidate refused.
            pub requeues_refused: Count as "refused",
        }
        counter "windfall_salvaged_records_total"
        "Records that every queue refused and that were written to the salvage file" {
            /// Copies written to the salvage file.
            pub salvaged: Count,
        }
        counter "windfall_salvage_replayed_records_total"
        "Salvaged records that a broker has stored since" {
            /// Salvaged copies that a broker has stored since.
            pub replayed: Count,
        }
        counter "windfall_salvage_failed_total"
        "Appends to the salvage file that failed; the record stays in the window" {
            /// Failed appends to the salvage file; what it was for stays in the window.
            pub salvage_failed: Count,
        }
        counter "windfall_late_grant_answers_total"
        "Answers of grant calls that came after their events had been requeued" {
            /// Answers of grant calls that came after their events had been requeued.
            pub late_answers: Count,
        }
        counter "windfall_commits_total"
        "Commits that were stored" {
            /// Commits that were stored.
            pub commits: Count,
        }
        counter "windfall_commits_failed_total"
        "Commits that failed; they are tried again" {
            /// Commits that failed; tried again.
            pub commits_failed: Count,
        }
        counter "windfall_polls_failed_total"
        "Polls that failed; they are tried again" {
            /// Polls that failed; tried again.
            pub polls_failed: Count,
        }
        counter "windfall_broker_lost_records_total"
        "Records that the broker lost before this consumer had read them, by retention or with the end of a log" {
            /// Records that the broker lost before they were read, by their offsets.
            pub broker_lost: Count,
        }
        counter "windfall_consumer_frozen_total"
        "Times that the consumer found its session over and granted nothing until it had polled again" {
            /// How often the loop found its session over and held back until it had polled.
            pub frozen: Count,
        }
        counter "windfall_consumer_panics_total"
        "Times that the consumer's loop panicked; it is started again" {
            /// How often the loop panicked.
            pub panics: Count,
        }
        counter "windfall_quarantined_records_total"
        "Records that made the consumer's loop panic and were archived whole, with the reason quarantined" {
            /// Records that made the loop panic and were sent to the archive.
            pub quarantined: Count,
        }
        gauge "windfall_consumer_running"
        "1 while the consumer reads its topic; 0 while it waits for its broker, starts again, or has failed" {
            /// Whether the loop runs, now.
            pub running: Count,
        }
        counter "windfall_not_ascending_records_total"
        "Records that were skipped because their offset, or a later one, was in flight already" {
            /// Records skipped because their offset, or a later one, was in flight.
            pub not_ascending: Count,
        }
        counter "windfall_tickets_dropped_total"
        "Tickets that were dropped unfinished: a bug, and each pins its partition until that is assigned anew" {
            /// Tickets dropped unfinished: a bug, each pins its partition until it is assigned anew.
            pub tickets_dropped: Count,
        }
        gauge "windfall_broker_may_delete_unread"
        "1 while the broker may delete records of the topic before they are read: it keeps them for less than is asked" {
            /// Whether the broker may delete records before they are read, now.
            pub may_delete_unread: Count,
        }
        gauge "windfall_partitions"
        "Partitions that this consumer owns" {
            /// Partitions owned, now.
            pub partitions: Count,
        }
        gauge "windfall_consumer_in_flight_records"
        "Records in flight in this consumer" {
            /// Records in flight, now.
            pub records_in_flight: Count,
        }
        gauge "windfall_granting_events"
        "Events in grant calls that have not answered" {
            /// Events in grant calls, now.
            pub events_granting: Count,
        }
        gauge "windfall_delayed_records"
        "Records that wait in memory for their due time" {
            /// Records in the delay queue, now.
            pub delayed: Count,
        }
        gauge "windfall_waiting_for_key_records"
        "Records that wait for the ring or the rules to be read again, since their signature may be good by newer ones" {
            /// Records whose signature may be good by a newer ring or newer rules, now.
            pub waiting_for_key: Count,
        }
        gauge "windfall_waiting_for_hand_over_records"
        "Records due long after now that wait in memory to be handed over" {
            /// Records that wait to be handed over, now.
            pub waiting_for_hand_over: Count,
        }
        gauge "windfall_window_records"
        "Records delivered and not finished, at the last commit" {
            /// Records delivered and not finished, as the windows count them, at the last commit.
            pub window_depth: Count,
        }
        gauge "windfall_window_oldest_milliseconds"
        "Age of the oldest record in flight" {
            /// The age of the oldest record in flight, now; milliseconds.
            pub oldest_ms: Count,
        }
        gauge "windfall_stuck_partitions"
        "Partitions without progress for longer than twice the head-of-line deadline" {
            /// Partitions without progress for longer than twice the deadline, now.
            pub stuck_partitions: Count,
        }
        gauge "windfall_paused_partitions"
        "Partitions whose intake is paused" {
            /// Partitions whose intake is paused, now.
            pub paused_partitions: Count,
        }
        gauge "windfall_consumer_rules_version"
        "The version of the live rules that the consumer runs" {
            /// The version of the rules that it runs, now.
            pub rules_version: Count,
        }
        .. {
            types: RwLock<Vec<Arc<TypeStats>>>
        }
    }
}

impl ConsumerStats {
    /// Records that were refused for their signature, by the name of the reason.
    pub fn refused(&self, reason: &str) -> u64 {
        let known = Refused::NAMES.iter().position(|name| *name == reason);
        known.map_or(0, |at| self.refused_by.0[at].get())
    }

    pub(crate) fn count_refused(&self, refused: &Refused) {
        let at = Refused::NAMES.iter().position(|name| *name == refused.name());
        if let Some(at) = at {
            self.refused_by.0[at].add(1);
        }
    }

    /// Events written back for this cause.
    pub fn requeued(&self, cause: Cause) -> u64 {
        self.requeued_by.0[cause as usize].get()
    }

    /// Events written back for any cause.
    pub fn requeued_all(&self) -> u64 {
        Cause::ALL.iter().map(|&cause| self.requeued(cause)).sum()
    }

    /// Every type that has had a lane.
    pub fn types(&self) -> Vec<Arc<TypeStats>> {
        self.types.read().clone()
    }

    /// Events that came to their end here: credited, rejected or archived.
    pub fn finished(&self) -> u64 {
        self.granted() + self.archived.get()
    }

    /// Events that were granted here, or decided otherwise by the reward service.
    pub fn granted(&self) -> u64 {
        self.credited.get() + self.already_credited.get() + self.rejected.get()
    }

    pub(crate) fn count_requeued(&self, cause: Cause, events: u64) {
        self.requeued_by.0[cause as usize].add(events);
    }

    pub(crate) fn of_type(&self, name: &str) -> Arc<TypeStats> {
        let mut types = self.types.write();
        if let Some(known) = types.iter().find(|known| known.name == name) {
            return Arc::clone(known);
        }
        let new = Arc::new(TypeStats { name: name.to_owned(), ..TypeStats::default() });
        types.push(Arc::clone(&new));
        new
    }
}

declare_metrics! {
    /// One bonus type's numbers in one consumer.
    #[derive(Debug, Default)]
    pub struct TypeStats {
        gauge "windfall_lane_events"
        "Events that wait in the lane of their bonus type" {
            /// Events in its lane, now.
            pub lane_events: Count,
        }
        gauge "windfall_lane_oldest_milliseconds"
        "Age of the oldest record of which events wait in the lane of their bonus type; 0 while none do" {
            /// How long the oldest record of which events wait has been in memory, in milliseconds.
            pub oldest_ms: Count,
        }
        gauge "windfall_lane_breaker_open"
        "1 while nothing of a bonus type is decided: its events wait, and a few are asked for now and then" {
            /// 1 while the last calls have decided nothing.
            pub breaker_open: Count,
        }
        counter "windfall_lane_finished_events_total" ["outcome"]
        "Events that left the lane of their bonus type, by outcome; `credited`: by this call or before" {
            /// Events credited, now or before.
            pub credited: Count as "credited",
            /// Events requeued.
            pub requeued: Count as "requeued",
            /// Events rejected or archived.
            pub archived: Count as "archived",
        }
        .. {
            /// The bonus type.
            pub name: String,
        }
    }
}
