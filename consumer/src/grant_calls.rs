//! The grant calls in flight: what was asked, of which records, and who still waits for the answer.

use crate::in_flight::{InFlightTable, Key};
use crate::lane::Segment;
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use windfall_contract::rewards::{GrantReply, Rewards};

/// How a call's task ended.
pub(crate) type CallEnd = Result<(Id, (u64, Vec<GrantReply>)), JoinError>;

/// Grant calls in flight. The lanes bound them to `in_hand_max` events.
pub(crate) struct GrantCalls {
    topic: Arc<str>,
    rewards: Arc<dyn Rewards>,
    tasks: JoinSet<(u64, Vec<GrantReply>)>,
    in_flight: HashMap<u64, GrantCall>,
    next_serial: u64,
}

/// One grant call.
#[derive(Debug)]
pub(crate) struct GrantCall {
    pub lane: usize,
    pub events: Arc<Vec<Bytes>>,
    segments: Vec<Segment>,
    task: AbortHandle,
}

/// The events of an overdue record that were in a call.
#[derive(Debug)]
pub(crate) struct Overdue {
    pub key: Key,
    pub lane: usize,
    pub events: Vec<Bytes>,
}

/// What a call's answers amount to.
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
    /// Its segments, each with the range of its events. The key is `None` where nobody waits for the answer.
    pub fn segments(&self) -> impl Iterator<Item = (Option<Key>, Range<usize>)> {
        let mut at = 0;
        self.segments.iter().map(move |segment| {
            let from = at;
            at += segment.events as usize;
            (segment.key, from..at)
        })
    }
}

impl GrantCalls {
    pub fn new(topic: Arc<str>, rewards: Arc<dyn Rewards>) -> Self {
        Self { topic, rewards, tasks: JoinSet::new(), in_flight: HashMap::new(), next_serial: 0 }
    }

    /// Asks for these events to be granted.
    pub fn begin(&mut self, lane: usize, name: &Arc<str>, events: Vec<Bytes>, segments: Vec<Segment>) {
        let (events, serial) = (Arc::new(events), self.next_serial);
        self.next_serial += 1;
        let (rewards, name, asked) = (Arc::clone(&self.rewards), Arc::clone(name), Arc::clone(&events));
        let task = self.tasks.spawn(async move {
            let replies = rewards.grant_batch(&name, &asked).await;
            (serial, replies)
        });
        self.in_flight.insert(serial, GrantCall { lane, events, segments, task });
    }

    /// Waits for the end of a call; `None` where there is none. Cancel-safe.
    pub async fn next(&mut self) -> Option<CallEnd> {
        self.tasks.join_next_with_id().await
    }

    /// A call that has ended already.
    pub fn try_next(&mut self) -> Option<CallEnd> {
        self.tasks.try_join_next_with_id()
    }

    /// The call that has ended, with its replies; none where the call decided nothing. `None` for a call that was
    /// given up, to which nobody listens any more (I3).
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

    /// Takes the events of overdue records out of their calls: their answers are no longer waited for. A call that
    /// nobody waits for is cancelled, and leaves its room to others; such calls are returned too.
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
                    Some(record) if !record.is_overdue => continue,
                    Some(_) => overdue.push(Overdue { key, lane: call.lane, events: events.to_vec() }),
                    None => {}
                }
                segment.key = None;
            }
            if call.segments.iter().all(|segment| segment.key.is_none()) {
                ended.push(serial);
            }
        }
        let ended: Vec<GrantCall> =
            ended.into_iter().filter_map(|serial| self.in_flight.remove(&serial)).collect();
        ended.iter().for_each(|call| call.task.abort());
        (overdue, ended)
    }
}
