//! The grant calls in flight: the events that were asked for, their records, and which records still wait for the
//! answer.

use crate::in_flight::{InFlightTable, Key};
use crate::lane::{Lane, Segment};
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use windfall_contract::rewards::{GrantReply, Rewards};
use windfall_limiter::Held;

/// How a call's task ended.
pub(crate) type CallEnd = Result<(Id, (u64, Vec<GrantReply>)), JoinError>;

/// Grant calls in flight. The lanes bound them to `in_hand_max` events.
pub(crate) struct GrantCalls {
    topic: Arc<str>,
    rewards: Arc<dyn Rewards>,
    tasks: JoinSet<(u64, Vec<GrantReply>)>,
    in_flight: BTreeMap<u64, GrantCall>,
    next_serial: u64,
}

/// One grant call.
#[derive(Debug)]
pub(crate) struct GrantCall {
    pub lane: usize,
    pub events: Arc<Vec<Bytes>>,
    segments: Vec<Segment>,
    pub began_ns: u64,
    /// Whether it is the only call of a type whose last call has decided nothing.
    pub is_probe: bool,
    /// Tokens of the limiter that come back for events which were credited before.
    pub held: Option<Held>,
    task: AbortHandle,
}

/// The events of an overdue record that were in a call.
#[derive(Debug)]
pub(crate) struct Overdue {
    pub key: Key,
    pub lane: usize,
    pub failures: u32,
    pub events: Vec<Bytes>,
}

/// The summary of a call's answers.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub credited: u64,
    pub already: u64,
    pub rejected: u64,
}

impl Tally {
    pub fn settled(&self) -> u64 {
        self.credited + self.already + self.rejected
    }
}

impl GrantCall {
    /// Its segments, each with the range of its events.
    pub fn segments(&self) -> impl Iterator<Item = (Segment, Range<usize>)> {
        let mut at = 0;
        self.segments.iter().map(move |segment| {
            let from = at;
            at += segment.events as usize;
            (*segment, from..at)
        })
    }
}

impl GrantCalls {
    pub fn new(topic: Arc<str>, rewards: Arc<dyn Rewards>) -> Self {
        Self { topic, rewards, tasks: JoinSet::new(), in_flight: BTreeMap::new(), next_serial: 0 }
    }

    /// Asks for the events of this lane to be granted.
    pub fn begin(
        &mut self,
        at: usize,
        lane: &mut Lane,
        cut: (Vec<Bytes>, Vec<Segment>),
        held: Option<Held>,
        now_ns: u64,
    ) {
        let (events, segments) = cut;
        let is_probe = lane.call_begins(events.len() as u64, now_ns);
        let (events, serial) = (Arc::new(events), self.next_serial);
        self.next_serial += 1;
        let (rewards, name, asked) = (Arc::clone(&self.rewards), Arc::clone(&lane.name), Arc::clone(&events));
        let task = self.tasks.spawn(async move {
            let replies = rewards.grant_batch(&name, &asked).await;
            (serial, replies)
        });
        let call = GrantCall { lane: at, events, segments, began_ns: now_ns, is_probe, held, task };
        self.in_flight.insert(serial, call);
    }

    /// Waits for the end of a call; `None` where there is none. Cancel-safe.
    pub async fn next(&mut self) -> Option<CallEnd> {
        self.tasks.join_next_with_id().await
    }

    /// A call that has ended already.
    pub fn try_next(&mut self) -> Option<CallEnd> {
        self.tasks.try_join_next_with_id()
    }

    /// The call that has ended, with its replies; none where the call decided nothing. `None` for a call that was given
    /// up, whose answer is not waited for any more (I3).
    pub fn take(&mut self, ended: CallEnd) -> Option<(GrantCall, Vec<GrantReply>)> {
        let (serial, replies) = match ended {
            Ok((_, answer)) => answer,
            Err(error) => {
                // A call that we cancelled is no longer known; one that panicked has decided nothing.
                let is_it = |call: &GrantCall| call.task.id() == error.id();
                let serial =
                    self.in_flight.iter().find(|(_, call)| is_it(call)).map(|(&serial, _)| serial)?;
                tracing::error!(topic = %self.topic, %error, "a grant call ended by itself");
                (serial, Vec::new())
            }
        };
        self.in_flight.remove(&serial).map(|call| (call, replies))
    }

    /// Takes the events of overdue records out of their calls: their answers are no longer waited for. A call that no
    /// record waits for is cancelled, and leaves its room to others; such calls are returned too.
    pub fn give_up_overdue(&mut self, table: &InFlightTable) -> (Vec<Overdue>, Vec<GrantCall>) {
        let mut overdue = Vec::new();
        let mut ended = Vec::new();
        for (&serial, call) in &mut self.in_flight {
            let mut at = 0;
            for segment in &mut call.segments {
                let events = &call.events[at..at + segment.events as usize];
                at += segment.events as usize;
                let Some(key) = segment.key else { continue };
                match table.get(key) {
                    Some(record) if !record.is_overdue() => continue,
                    Some(_) => overdue.push(Overdue {
                        key,
                        lane: call.lane,
                        failures: segment.failures,
                        events: events.to_vec(),
                    }),
                    None => {}
                }
                segment.key = None;
            }
            if call.segments.iter().all(|segment| segment.key.is_none()) {
                ended.push(serial);
            }
        }
        (overdue, self.cancel(ended))
    }

    /// The records that wait for the answer to a call which began at `before_ns` or earlier.
    pub fn unanswered(&self, before_ns: u64) -> HashSet<Key> {
        let calls = self.in_flight.values().filter(|call| call.began_ns <= before_ns);
        calls.flat_map(|call| call.segments.iter().filter_map(|segment| segment.key)).collect()
    }

    /// Gives up the calls that began at `before_ns` or earlier: the outcome of their events is not known (I1), so they
    /// are to be asked for again.
    pub fn give_up_unanswered(&mut self, before_ns: u64) -> Vec<GrantCall> {
        let unanswered = self.in_flight.iter().filter(|(_, call)| call.began_ns <= before_ns);
        let serials = unanswered.map(|(&serial, _)| serial).collect();
        self.cancel(serials)
    }

    fn cancel(&mut self, serials: Vec<u64>) -> Vec<GrantCall> {
        let calls: Vec<GrantCall> =
            serials.into_iter().filter_map(|serial| self.in_flight.remove(&serial)).collect();
        calls.iter().for_each(|call| call.task.abort());
        calls
    }
}
