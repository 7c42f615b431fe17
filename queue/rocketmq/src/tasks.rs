//! A consumer's tasks: receiving ahead, extending what is held, acknowledging, giving back.

use super::admin::MIN_ATTEMPTS;
use super::member::Member;
use futures_util::StreamExt as _;
use futures_util::stream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::broker::CommitError;
use windfall_rocketmq_wire::proto::Code;
use windfall_rocketmq_wire::{AckEntry, CallError, Receive};

/// The shortest pause between two tries after a failure.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Extensions, acknowledgements and returns under way at once.
const CALLS_AT_ONCE: usize = 32;
/// How long a topic's route is used before it is asked for again: the server needs about as long to find new brokers.
const ROUTE_LASTS: Duration = Duration::from_secs(30);
/// The invisible duration of records that are given back: they are shown as soon as the server can, after 2 to 3 s.
const SHOWN_SOON: Duration = Duration::from_millis(10);

/// One stream of requests: each waits at one of the topic's brokers, in turn. Ends when the member stops.
pub(super) async fn receive(member: Arc<Member>, stream: usize) {
    let mut brokers: Vec<String> = Vec::new();
    let mut routed: Option<Instant> = None;
    let mut turn = stream;
    let mut pause = MIN_PAUSE;
    loop {
        let wanted = member.wanted.notified();
        if member.is_stopping() {
            return;
        }
        let Some(promised) = member.promise() else {
            // Also looks up by itself, should a wake-up fall between the check and the wait.
            tokio::time::timeout(MAX_PAUSE / 20, wanted).await.ok();
            continue;
        };
        if routed.is_none_or(|at| at.elapsed() > ROUTE_LASTS)
            && let Ok(route) = member.client.route(&member.topic).await
        {
            (brokers, routed) = (route.brokers, Some(Instant::now()));
        }
        turn = turn.wrapping_add(1);
        let ask = Receive {
            topic: member.topic.clone(),
            broker: brokers.get(turn % brokers.len().max(1)).cloned(),
            max_messages: promised,
            invisible: member.options.invisible(),
            wait: Duration::from_millis(member.options.receive_wait_ms),
            // I1: dead letters are lost rewards.
            min_attempts: MIN_ATTEMPTS,
        };
        let outcome = member.client.receive(&ask, |message| member.arrived(message)).await;
        member.fulfilled(promised, &outcome, Instant::now());
        match outcome {
            Ok(_) => pause = MIN_PAUSE,
            Err(error) => {
                tracing::debug!(topic = member.topic, %error, "nothing could be received");
                routed = None;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}

/// Keeps what is held hidden from others, as long as polls come. Ends soon after the member stops.
pub(super) async fn extend(member: Arc<Member>) {
    let invisible = member.options.invisible();
    let mut next_round = Instant::now();
    loop {
        tokio::time::sleep_until(next_round.into()).await;
        if member.is_stopping() {
            return;
        }
        let now = Instant::now();
        next_round = now + invisible / 10;
        let gone = member.state.lock().held.forget_shown(now);
        if gone > 0 {
            member.may_repeat(gone);
            tracing::warn!(
                topic = member.topic,
                gone,
                "records were shown to others before they were finished"
            );
        }
        if !member.is_polled(now) {
            continue;
        }
        let due = member.state.lock().held.due_to_extend(now, invisible / 2);
        let extend_one = |offset: u64| {
            let member = &member;
            async move {
                let asked = Instant::now();
                // A new round, in a new order: calls that hang must not keep the others from their turn.
                if asked >= next_round {
                    return;
                }
                // Marked only now: what waits for its turn may be acknowledged.
                let Some(entry) = member.state.lock().held.begin_extend(offset, asked) else { return };
                let outcome = member.client.change_invisible(&member.topic, &entry, invisible).await;
                let (mut state, now) = (member.state.lock(), Instant::now());
                match outcome {
                    Ok(handle) => state.held.extended(offset, now, Some((handle, asked + invisible))),
                    // The record comes again, with another handle.
                    Err(error) if is_over(&error) => {
                        state.held.remove(offset);
                        member.may_repeat(1);
                    }
                    // Perhaps extended all the same. Then the old handle acknowledges nothing, and the record comes
                    // again: a duplicate, not a loss.
                    Err(_) => {
                        state.held.extended(offset, now, None);
                        member.may_repeat(1);
                    }
                }
                drop(state);
                member.settled.notify_waiters();
            }
        };
        stream::iter(due).for_each_concurrent(CALLS_AT_ONCE, extend_one).await;
    }
}

/// Acknowledges records, and tries again for twice the deadline of a call. Ok: none of them comes again from here.
pub(super) async fn finish(member: Arc<Member>, mut offsets: Vec<u64>) -> Result<(), CommitError> {
    let until = Instant::now() + 2 * member.options.timeout();
    let mut pause = MIN_PAUSE;
    loop {
        let settled = member.settled.notified();
        let to_ack = member.state.lock().held.take_to_ack(&offsets);
        offsets = to_ack.later;
        let mut trouble = None;
        let batches: Vec<Vec<_>> = to_ack.now.chunks(member.options.ack_records).map(<[_]>::to_vec).collect();
        let acknowledged = batches.into_iter().map(|batch| acknowledge(&member, batch));
        let mut acknowledged = stream::iter(acknowledged).buffer_unordered(CALLS_AT_ONCE);
        while let Some((open, error)) = acknowledged.next().await {
            offsets.extend(open);
            trouble = error.or(trouble);
        }
        drop(acknowledged);
        member.settled.notify_waiters();
        if offsets.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let what = trouble.map_or_else(|| "extensions hang".into(), |error| error.to_string());
            return Err(CommitError::Unavailable(what));
        }
        if trouble.is_some() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        } else {
            tokio::time::timeout(MAX_PAUSE / 20, settled).await.ok();
        }
    }
}

/// Sends one acknowledgement request. Returns the records that are still open after it, and why.
async fn acknowledge(member: &Member, batch: Vec<(u64, AckEntry)>) -> (Vec<u64>, Option<CallError>) {
    let entries: Vec<_> = batch.iter().map(|(_, entry)| entry.clone()).collect();
    let outcomes = match member.client.ack(&member.topic, &entries).await {
        Ok(outcomes) => outcomes,
        Err(error) => vec![Err(error); entries.len()],
    };
    let (mut open, mut over, mut trouble) = (Vec::new(), 0, None);
    let mut state = member.state.lock();
    let late = state.held.shown_of(batch.iter().map(|(offset, _)| *offset), Instant::now());
    for ((offset, _), outcome) in batch.iter().zip(outcomes) {
        match outcome {
            Ok(()) => state.held.remove(*offset),
            // It is acknowledged already, or shown to others: a duplicate at worst.
            Err(error) if is_over(&error) => {
                state.held.remove(*offset);
                over += 1;
            }
            Err(error) => {
                state.held.not_acked(*offset);
                open.push(*offset);
                trouble = Some(error);
            }
        }
    }
    drop(state);
    member.may_repeat(late.max(over));
    if over > 0 {
        tracing::warn!(topic = member.topic, over, "acknowledged too late: these records come again");
    }
    (open, trouble)
}

/// Whether the handle has expired. Any other refusal is a mistake that must be seen: the record would come for ever.
fn is_over(error: &CallError) -> bool {
    error.code() == Some(Code::InvalidReceiptHandle.into())
}

/// Gives back what is held and not finished, so that others get it soon. Gives up after twice a call's deadline: then
/// it comes to others when its hiding ends. Returns how many were given back.
pub(super) async fn give_back(member: &Member) -> usize {
    let until = Instant::now() + 2 * member.options.timeout();
    let mut count = 0;
    loop {
        let (entries, left) = member.state.lock().held.give_back(Instant::now());
        count += entries.len();
        let give_one = |entry: AckEntry| async move {
            if Instant::now() >= until {
                return;
            }
            if let Err(error) = member.client.change_invisible(&member.topic, &entry, SHOWN_SOON).await {
                tracing::debug!(topic = member.topic, %error, "a record could not be given back");
                // Perhaps given back all the same, and the delivery that we had kept beside it: then it comes twice, the
                // second time perhaps after the next member has finished it.
                member.may_repeat(1);
            }
        };
        stream::iter(entries).for_each_concurrent(CALLS_AT_ONCE, give_one).await;
        if !left || Instant::now() >= until {
            return count;
        }
        tokio::time::sleep(MIN_PAUSE).await;
    }
}
