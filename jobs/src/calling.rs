//! Hands runs over to executors and targets.

use crate::core::Core;
use crate::definition::{Delivery, Destination};
use crate::executors::{App, ExecutorCalls, RunCall};
use crate::leasing::{Fresh, fresh, leased};
use crate::outbox::{Door, Ticket};
use crate::routing::{Choice, FALLBACKS_MAX, Request};
use crate::runs::{Part, Reported, RunNumber, Sent};
use crate::sending::Settling;
use crate::transition::{Event, Happened};
use futures_util::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::due::{Fired, Firing, Shard, SlotMinute, TaskId, TaskKey};

/// Parts of a broadcast at most.
const PARTS_MAX: usize = 450;
/// Executors that are called for a run at most, one after the other, as long as it was certainly not sent.
const CALLED_MAX: usize = FALLBACKS_MAX + 1;
/// How long the first executor is asked by itself whether it gets a run, before all others are asked, too.
const ALONE: Duration = Duration::from_millis(200);

/// The runs that may be sent now; others are put off.
pub(crate) async fn ready(core: &Core, tickets: Vec<Ticket>, settling: &Settling) -> Vec<Ticket> {
    let Fresh { ready, later } = fresh(core, tickets).await;
    for ticket in &later {
        put_off_one(settling, ticket, "the store of jobs does not answer").await;
    }
    ready
}

/// Sends a run to one of an app's executors, as its job says.
pub(crate) async fn to_executor(
    core: &Core,
    ticket: Ticket,
    app: String,
    handler: &str,
    settling: &Settling,
) {
    let Destination::Executor { routing, .. } = ticket.definition.spec.destination else { return };
    let app = App { tenant: ticket.definition.tenant.clone(), app };
    let Some(addresses) = core.executors_of(&app) else {
        return put_off_one(settling, &ticket, "the executors have not been read yet").await;
    };
    let spec = &ticket.definition.spec;
    let params = ticket.run.params.as_deref().unwrap_or(&spec.params);
    let choice = match ticket.run.part {
        Some(part) => of_part(part, &addresses),
        None => {
            let key = Some(params).filter(|params| !params.is_empty());
            let now_ms = core.clock.monotonic_ns() / 1_000_000;
            let request = Request { job: ticket.run.job.0, key, strategy: routing, now_ms };
            core.router.choose(&request, &addresses)
        }
    };
    let calls = core.calls_of(&app.tenant, &app.app);
    match choice {
        Choice::None => {
            let why = format!("no executor is registered for the app `{}`", app.app);
            // While their heartbeats were lost, that says nothing of the executors.
            if core.heartbeats.are_awaited(core.book.shard_of_app(&app.tenant, &app.app)) {
                return put_off_one(settling, &ticket, &format!("{why} yet")).await;
            }
            settled(settling, &ticket, Sent::NotSent(why), None).await;
        }
        Choice::One { address, fallbacks } => {
            let order = std::iter::once(address).chain(fallbacks);
            let before = ticket.clone();
            core.count_late(&ticket);
            let called = call_in_order(core, &*calls, ticket, handler, order).await;
            called.settle(&before, settling).await;
        }
        Choice::FirstThatBeats(addresses) => {
            let ask = |address: Arc<str>| {
                let calls = Arc::clone(&calls);
                async move { calls.is_alive(&address).await }
            };
            let why_not = "no executor answers its beat";
            call_found(core, &*calls, ticket, handler, (&addresses[..], ask), why_not, settling).await;
        }
        Choice::FirstThatIsIdle(addresses) => {
            let job = ticket.run.job.0;
            let ask = |address: Arc<str>| {
                let calls = Arc::clone(&calls);
                async move { calls.is_idle(&address, job).await }
            };
            let why_not = "no executor is idle";
            call_found(core, &*calls, ticket, handler, (&addresses[..], ask), why_not, settling).await;
        }
        Choice::All(shards) => {
            broadcast(core, ticket, shards.len(), settling).await;
        }
    }
}

/// Who gets a part of a broadcast: it keeps its place among the executors that are there now.
fn of_part(part: Part, addresses: &[Arc<str>]) -> Choice {
    let place = usize::try_from(part.index).unwrap_or(0) % addresses.len().max(1);
    let count = addresses.len().min(CALLED_MAX);
    let mut order = addresses.iter().cycle().skip(place).take(count).map(Arc::clone);
    match order.next() {
        Some(address) => Choice::One { address, fallbacks: order.collect() },
        None => Choice::None,
    }
}

/// Sends a run to the first address of which something is true, and to the next such address where it was certainly not sent.
/// The run stays ours meanwhile.
async fn call_found<F: Future<Output = bool>>(
    core: &Core,
    calls: &dyn ExecutorCalls,
    mut ticket: Ticket,
    handler: &str,
    (mut left, ask): (&[Arc<str>], impl Fn(Arc<str>) -> F),
    why_not: &str,
    settling: &Settling,
) {
    let (mut sent, mut executor) = (Sent::NotSent(why_not.to_owned()), None);
    for called in 0..CALLED_MAX {
        let (found, ours) = leased(core, vec![ticket], first_good(left, &ask)).await;
        // It may be somebody else's by now, and the store may not have answered for a while.
        let Some(ours) = ready(core, ours, settling).await.pop() else { return };
        ticket = ours;
        let asked = left;
        let found = found.and_then(|place| asked.get(place..)).and_then(<[_]>::split_first);
        let Some((address, behind)) = found else { break };
        left = behind;
        let before = ticket.clone();
        if called == 0 {
            core.count_late(&ticket);
        }
        let order = std::iter::once(Arc::clone(address));
        let called = call_in_order(core, calls, ticket, handler, order).await;
        match called {
            Called { sent: not_sent @ Sent::NotSent(_), executor: silent, ours: Some(mut ours) } => {
                // It may be put off before the next one is called.
                ours.run.was_called = true;
                (ticket, sent, executor) = (ours, not_sent, silent);
            }
            called => return called.settle(&before, settling).await,
        }
    }
    settled(settling, &ticket, sent, executor).await;
}

/// The place of the first address of which something is true. The first one is asked by itself for a moment, because it mostly
/// is well. Then all are asked side by side, so that those that hang cost one time-out together, and nobody is waited for who comes
/// behind the one that is found.
async fn first_good<F: Future<Output = bool>>(
    addresses: &[Arc<str>],
    ask: impl Fn(Arc<str>) -> F,
) -> Option<usize> {
    let (first, others) = addresses.split_first()?;
    let mut first = Box::pin(ask(Arc::clone(first)));
    let mut asked = FuturesOrdered::new();
    let mut place = match tokio::time::timeout(ALONE, &mut first).await {
        Ok(true) => return Some(0),
        Ok(false) => 1,
        Err(_) => {
            asked.push_back(first);
            0
        }
    };
    for address in others {
        asked.push_back(Box::pin(ask(Arc::clone(address))));
    }
    while let Some(is_good) = asked.next().await {
        if is_good {
            return Some(place);
        }
        place += 1;
    }
    None
}

/// What became of the calls for a run.
struct Called {
    /// What the last executor that was asked has said.
    sent: Sent,
    /// Its address.
    executor: Option<String>,
    /// The run, where it is still ours.
    ours: Option<Ticket>,
}

impl Called {
    /// Has it written, with the run as it was before the calls.
    async fn settle(self, before: &Ticket, settling: &Settling) {
        let Self { sent, executor, ours } = self;
        match ours {
            Some(ticket) => settled(settling, &ticket, sent, executor).await,
            // It was reported meanwhile, or somebody else has it by now; but an end is an end, and who has it is to be known.
            None if matches!(sent, Sent::Finished(_) | Sent::Accepted) => {
                settled(settling, before, sent, executor).await;
            }
            None => {}
        }
    }
}

/// Asks one executor after the other, as long as a run was certainly not sent.
async fn call_in_order(
    core: &Core,
    calls: &dyn ExecutorCalls,
    ticket: Ticket,
    handler: &str,
    order: impl Iterator<Item = Arc<str>>,
) -> Called {
    let call = call_of(&ticket, handler);
    let asked = async {
        let mut last = (Sent::NotSent("there is no executor".to_owned()), None);
        for address in order {
            core.stats.sent.add(1);
            let began_ms = core.clock.monotonic_ns() / 1_000_000;
            core.router.sent(&address, began_ms);
            let sent = calls.run(&address, call.clone()).await;
            let now_ms = core.clock.monotonic_ns() / 1_000_000;
            let took_ms = now_ms.saturating_sub(began_ms);
            match sent {
                Sent::NotSent(_) | Sent::Unknown(_) => core.router.failed(&address, took_ms, now_ms),
                _ => core.router.answered(&address, took_ms, now_ms),
            }
            let goes_on = matches!(sent, Sent::NotSent(_));
            last = (sent, Some(address.to_string()));
            if !goes_on {
                break;
            }
        }
        last
    };
    let ((sent, executor), mut ours) = leased(core, vec![ticket], asked).await;
    Called { sent, executor, ours: ours.pop() }
}

/// Splits a run into one for each executor, and puts them into the queue.
async fn broadcast(core: &Core, ticket: Ticket, addresses: usize, settling: &Settling) {
    if addresses > PARTS_MAX {
        let why = format!("a broadcast goes to at most {PARTS_MAX} executors, and {addresses} are there");
        return settled(settling, &ticket, Sent::Refused(why), None).await;
    }
    let Some(shard) = core.book.shard_of(ticket.number.0) else { return };
    let parts = match core.split(shard, &ticket, addresses).await {
        Ok(Some(parts)) => parts,
        Ok(None) => return,
        Err(error) => {
            core.store_failed("a broadcast cannot be written now", &error);
            // Where it is written all the same, it has another lease by now, and stays.
            return put_off_one(settling, &ticket, "the store of jobs does not answer").await;
        }
    };
    let mut room = core.outbox.try_reserve(Door::Again, parts.len());
    for part in parts {
        let left = match &mut room {
            Some(room) => room.send(part).err(),
            None => Some(Box::new(part)),
        };
        if let Some(part) = left {
            put_off_one(settling, &part, "as many runs wait to be sent as may").await;
        }
    }
}

fn call_of(ticket: &Ticket, handler: &str) -> RunCall {
    let spec = &ticket.definition.spec;
    RunCall {
        run: ticket.number.0,
        job: ticket.run.job.0,
        occurrence_id: ticket.run.occurrence_id(ticket.number),
        handler: handler.to_owned(),
        params: ticket.run.params.clone().unwrap_or_else(|| spec.params.clone()),
        block: spec.block,
        timeout_s: spec.timeout_s,
        due_ms: ticket.run.due_ms,
        sent_ms: ticket.run.sent_ms(),
        attempt: ticket.run.attempt,
        part: ticket.run.part.unwrap_or(Part { index: 0, total: 1 }),
    }
}

/// Hands runs over to one of the tenant's targets, which says at once what became of them.
pub(crate) async fn to_target(
    core: &Core,
    name: (String, String),
    tickets: Vec<Ticket>,
    settling: &Settling,
) {
    let Some(target) = core.targets.get(&name) else {
        let why = format!("the tenant has no target `{}` in this process", name.1);
        for ticket in &tickets {
            settled(settling, ticket, Sent::NotSent(why.clone()), None).await;
        }
        return;
    };
    core.stats.sent.add(u64::try_from(tickets.len()).unwrap_or(u64::MAX));
    tickets.iter().for_each(|ticket| core.count_late(ticket));
    let before = tickets.clone();
    let firings = tickets.iter().map(firing_of).collect();
    let call = AssertUnwindSafe(target.fire(firings)).catch_unwind();
    let (fired, ours) = leased(core, tickets, call).await;
    let fired = fired.unwrap_or_else(|_| {
        core.stats.panics.add(1);
        tracing::error!(target = name.1, "a target has panicked");
        Vec::new()
    });
    let ours: BTreeMap<RunNumber, Ticket> = ours.into_iter().map(|ticket| (ticket.number, ticket)).collect();
    let silent = || Fired::Unknown("the target has not answered".to_owned());
    let fired = fired.into_iter().chain(std::iter::repeat_with(silent));
    for (before, fired) in before.into_iter().zip(fired) {
        let sent = match fired {
            Fired::Done => Sent::Finished(Reported::Succeeded(String::new())),
            Fired::Failed(why) => Sent::Finished(Reported::Failed(why)),
            Fired::Refused(why) => Sent::Refused(why),
            Fired::Unknown(why) => Sent::Unknown(why),
            // A target says so, too, where it does not know whether it has it.
            Fired::Away(why) if before.definition.spec.delivery == Delivery::AtMostOnce => Sent::Unknown(why),
            Fired::Away(why) | Fired::Busy(why) => Sent::Later(why),
        };
        match ours.get(&before.number) {
            Some(ticket) => settled(settling, ticket, sent, None).await,
            // Somebody else has it by now; but an end is an end.
            None if matches!(sent, Sent::Finished(Reported::Succeeded(_))) => {
                settled(settling, &before, sent, None).await;
            }
            None => {}
        }
    }
}

/// A run as a target gets it. Its id is the same in every attempt, and no due task's: no slot store has its shard.
fn firing_of(ticket: &Ticket) -> Firing {
    let Ticket { number, run, definition, .. } = ticket;
    let counter = number.0 >> 10;
    let low = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0);
    let shard = u16::try_from(number.0 & 0x3ff).unwrap_or(0);
    let id =
        TaskId { shard: Shard(0x8000 | shard), slot: SlotMinute(low(counter >> 32)), index: low(counter) };
    let params = run.params.as_ref().unwrap_or(&definition.spec.params);
    Firing {
        id,
        tenant: definition.tenant.as_str().into(),
        key: TaskKey::new(run.target_key(*number).as_bytes()).ok(),
        due_ms: run.due_ms,
        attempt: run.attempt,
        payload: params.clone().into_bytes().into(),
    }
}

/// Has it written that a run is sent later: nobody was called for it now.
pub(crate) async fn put_off_one(settling: &Settling, ticket: &Ticket, why: &str) {
    tell(settling, ticket, Happened::PutOff { why: why.to_owned(), lease: ticket.run.lease }).await;
}

/// Has an outcome written.
async fn settled(settling: &Settling, ticket: &Ticket, how: Sent, executor: Option<String>) {
    tell(settling, ticket, Happened::Sent { how, executor, lease: ticket.run.lease }).await;
}

/// Has written what happened to a run. Where the writer is gone, the run is found when its lease is over.
async fn tell(settling: &Settling, ticket: &Ticket, happened: Happened) {
    let read = Some((ticket.version, ticket.run.clone()));
    if settling.send(Event { number: ticket.number, happened, read }).await.is_err() {
        tracing::error!(run = ticket.number.0, "the outcome of a run cannot be written any more");
    }
}
