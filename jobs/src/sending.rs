//! Sends runs to executors and targets, side by side, within a bound, and writes how that went.

use crate::core::{Core, Ticket};
use crate::definition::Destination;
use crate::executors::{App, RunCall};
use crate::occurrences::Tickets;
use crate::routing::{Choice, Request};
use crate::runs::{LEASE_MS, Part, Reported, Sent};
use crate::transition::{Event, Happened};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use windfall_contract::due::{Fired, Firing, Shard, SlotMinute, TaskId, TaskKey};

/// Runs that are taken from the queue at once.
const BATCH_MAX: usize = 256;
/// Runs of one target that are handed over together.
const TARGET_BATCH_MAX: usize = 256;
/// What is left of a run's lease when its sending begins, at least; an older run's lease is renewed before. Calls to executors
/// must answer within it.
pub(crate) const CALL_MAX_MS: u64 = 2_500;
/// Parts of a broadcast at most.
const PARTS_MAX: usize = 450;
const SETTLE_MAX: usize = 2_000;
const SETTLE_RETRY: Duration = Duration::from_millis(200);

/// Sends what comes through the queue until it is to close, then what it still has, and waits for all calls.
pub(crate) async fn run(core: Arc<Core>, mut tickets: Tickets, closing: CancellationToken) {
    let (settling, settled) = mpsc::channel(SETTLE_MAX);
    let settler = tokio::spawn(settle(Arc::clone(&core), settled));
    let calls = Arc::new(Semaphore::new(core.options.calls_max));
    let (mut tasks, mut batch) = (JoinSet::new(), Vec::with_capacity(BATCH_MAX));
    loop {
        tokio::select! {
            biased;
            () = closing.cancelled(), if !tickets.is_closed() => {
                tickets.close();
                continue;
            }
            taken = tickets.recv_many(&mut batch, BATCH_MAX) => {
                if taken == 0 {
                    break;
                }
            }
        }
        core.stats.waiting.set(u64::try_from(tickets.len()).unwrap_or(u64::MAX));
        while tasks.try_join_next().is_some() {}
        for work in works(batch.drain(..)) {
            // It is closed nowhere.
            let Ok(permit) = Arc::clone(&calls).acquire_owned().await else { break };
            let (core, settling) = (Arc::clone(&core), settling.clone());
            tasks.spawn(async move {
                work.go(&core, &settling).await;
                drop(permit);
            });
        }
    }
    while tasks.join_next().await.is_some() {}
    drop(settling);
    if let Err(error) = settler.await {
        tracing::error!(%error, "what was sent of jobs' runs cannot be written any more");
    }
}

/// What is sent by one task.
enum Work {
    Executor(Box<Ticket>, String, String),
    Target(String, String, Vec<Ticket>),
}

/// Runs for one target go together; each executor's run goes by itself.
fn works(batch: impl Iterator<Item = Ticket>) -> Vec<Work> {
    let (mut works, mut targets) = (Vec::new(), std::collections::BTreeMap::<_, Vec<Ticket>>::new());
    for ticket in batch {
        match &ticket.definition.spec.destination {
            Destination::Executor { app, handler, .. } => {
                let (app, handler) = (app.clone(), handler.clone());
                works.push(Work::Executor(Box::new(ticket), app, handler));
            }
            Destination::Target { name } => {
                targets.entry((ticket.definition.tenant.clone(), name.clone())).or_default().push(ticket);
            }
        }
    }
    for ((tenant, name), tickets) in targets {
        let mut tickets = tickets.into_iter().peekable();
        while tickets.peek().is_some() {
            let part = tickets.by_ref().take(TARGET_BATCH_MAX).collect();
            works.push(Work::Target(tenant.clone(), name.clone(), part));
        }
    }
    works
}

type Settling = mpsc::Sender<Event>;

impl Work {
    async fn go(self, core: &Core, settling: &Settling) {
        match self {
            Self::Executor(ticket, app, handler) => {
                let Some(ticket) = renewed(core, *ticket).await else { return };
                to_executor(core, ticket, app, &handler, settling).await;
            }
            Self::Target(tenant, name, tickets) => {
                let mut good = Vec::with_capacity(tickets.len());
                for ticket in tickets {
                    good.extend(renewed(core, ticket).await);
                }
                to_target(core, (tenant, name), good, settling).await;
            }
        }
    }
}

/// A run whose lease lasts for a call. One that has waited for too long is written anew first, and is not sent where
/// somebody else has it by now.
async fn renewed(core: &Core, ticket: Ticket) -> Option<Ticket> {
    let waited_ms = core.clock.monotonic_ns().saturating_sub(ticket.begun_ns) / 1_000_000;
    if waited_ms + CALL_MAX_MS < LEASE_MS {
        return Some(ticket);
    }
    let shard = core.book.shard_of(ticket.number.0)?;
    match core.split(shard, &ticket, 1).await {
        Ok(tickets) => tickets?.pop(),
        Err(error) => {
            // Unwritten, it is found when its lease is over.
            core.store_failed("a run's lease cannot be renewed now", &error);
            None
        }
    }
}

async fn to_executor(core: &Core, ticket: Ticket, app: String, handler: &str, settling: &Settling) {
    let Destination::Executor { routing, .. } = ticket.definition.spec.destination else { return };
    let app = App { tenant: ticket.definition.tenant.clone(), app };
    let addresses = core.executors.of(&app);
    let spec = &ticket.definition.spec;
    let params = ticket.run.params.as_deref().unwrap_or(&spec.params);
    let choice = match ticket.run.part {
        // A part keeps its place among the executors that are there now.
        Some(part) => {
            let place = usize::try_from(part.index).unwrap_or(0) % addresses.len().max(1);
            addresses.get(place).map_or(Choice::None, |address| Choice::One {
                address: Arc::clone(address),
                fallbacks: Vec::new(),
            })
        }
        None => {
            let key = Some(params).filter(|params| !params.is_empty());
            let now_ms = core.clock.monotonic_ns() / 1_000_000;
            let request = Request { job: ticket.run.job.0, key, strategy: routing, now_ms };
            core.router.choose(&request, &addresses)
        }
    };
    match choice {
        Choice::None => {
            let why = format!("no executor is registered for the app `{}`", app.app);
            settled(settling, &ticket, Sent::NotSent(why), None).await;
        }
        Choice::One { address, fallbacks } => {
            let order = std::iter::once(address).chain(fallbacks);
            call_in_order(core, ticket, handler, order, settling).await;
        }
        Choice::FirstThatBeats(addresses) => {
            let calls = core.calls_of(&app.tenant, &app.app);
            let alive = first(&addresses, join_all(addresses.iter().map(|address| calls.is_alive(address))).await);
            call_found(core, ticket, handler, alive, "no executor answers its beat", settling).await;
        }
        Choice::FirstThatIsIdle(addresses) => {
            let job = ticket.run.job.0;
            let calls = core.calls_of(&app.tenant, &app.app);
            let idle = first(&addresses, join_all(addresses.iter().map(|address| calls.is_idle(address, job))).await);
            call_found(core, ticket, handler, idle, "no executor is idle", settling).await;
        }
        Choice::All(shards) => {
            let addresses: Vec<_> = shards.into_iter().map(|shard| shard.address).collect();
            broadcast(core, ticket, handler, &addresses, settling).await;
        }
    }
}

/// The first address of which something is true. All were asked at once, so that those that hang cost one time-out.
fn first(addresses: &[Arc<str>], answers: Vec<bool>) -> Option<Arc<str>> {
    addresses.iter().zip(answers).find(|(_, is_good)| *is_good).map(|(address, _)| Arc::clone(address))
}

async fn call_found(
    core: &Core,
    ticket: Ticket,
    handler: &str,
    found: Option<Arc<str>>,
    why_not: &str,
    settling: &Settling,
) {
    match found {
        Some(address) => match renewed(core, ticket).await {
            Some(ticket) => call_in_order(core, ticket, handler, std::iter::once(address), settling).await,
            None => {}
        },
        None => settled(settling, &ticket, Sent::NotSent(why_not.to_owned()), None).await,
    }
}

/// Asks one executor after the other, as long as a run was certainly not sent.
async fn call_in_order(
    core: &Core,
    ticket: Ticket,
    handler: &str,
    order: impl Iterator<Item = Arc<str>>,
    settling: &Settling,
) {
    let mut last = (Sent::NotSent("there is no executor".to_owned()), None);
    let Destination::Executor { app, .. } = &ticket.definition.spec.destination else { return };
    let calls = core.calls_of(&ticket.definition.tenant, app);
    for address in order {
        let waited_ms = core.clock.monotonic_ns().saturating_sub(ticket.begun_ns) / 1_000_000;
        if waited_ms + CALL_MAX_MS >= LEASE_MS {
            // Its next attempt goes on.
            break;
        }
        core.stats.sent.add(1);
        let began_ns = core.clock.monotonic_ns();
        core.router.sent(&address, began_ns / 1_000_000);
        let sent = calls.run(&address, call_of(&ticket, handler)).await;
        let now_ms = core.clock.monotonic_ns() / 1_000_000;
        let took_ms = now_ms.saturating_sub(began_ns / 1_000_000);
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
    settled(settling, &ticket, last.0, last.1).await;
}

/// Splits a run into one for each executor, and sends them.
async fn broadcast(
    core: &Core,
    ticket: Ticket,
    handler: &str,
    addresses: &[Arc<str>],
    settling: &Settling,
) {
    if addresses.len() > PARTS_MAX {
        let why = format!("a broadcast goes to at most {PARTS_MAX} executors, and {} are there", addresses.len());
        return settled(settling, &ticket, Sent::Refused(why), None).await;
    }
    let Some(shard) = core.book.shard_of(ticket.number.0) else { return };
    match core.split(shard, &ticket, addresses.len()).await {
        Ok(Some(parts)) => {
            let calls = parts.into_iter().zip(addresses).map(|(part, address)| {
                call_in_order(core, part, handler, std::iter::once(Arc::clone(address)), settling)
            });
            join_all(calls).await;
        }
        Ok(None) => {}
        Err(error) => core.store_failed("a broadcast cannot be written now", &error),
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
        attempt: ticket.run.attempt,
        part: ticket.run.part.unwrap_or(Part { index: 0, total: 1 }),
    }
}

/// Hands runs over to one of the tenant's targets, which says at once what became of them.
async fn to_target(core: &Core, name: (String, String), tickets: Vec<Ticket>, settling: &Settling) {
    let Some(target) = core.targets.get(&name) else {
        let why = format!("the tenant has no target `{}` in this process", name.1);
        for ticket in &tickets {
            settled(settling, ticket, Sent::NotSent(why.clone()), None).await;
        }
        return;
    };
    core.stats.sent.add(u64::try_from(tickets.len()).unwrap_or(u64::MAX));
    let fired = target.fire(tickets.iter().map(firing_of).collect()).await;
    let silent = || Fired::Failed("the target has not answered".to_owned());
    for (ticket, fired) in tickets.iter().zip(fired.into_iter().chain(std::iter::repeat_with(silent))) {
        let sent = match fired {
            Fired::Done => Sent::Finished(Reported::Succeeded(String::new())),
            Fired::Failed(why) => Sent::Finished(Reported::Failed(why)),
            Fired::Refused(why) => Sent::Refused(why),
            Fired::Away(why) | Fired::Busy(why) => Sent::Later(why),
        };
        settled(settling, ticket, sent, None).await;
    }
}

/// A run as a target gets it. Its id is the same in every attempt, and no due task's: no slot store has its shard.
fn firing_of(ticket: &Ticket) -> Firing {
    let Ticket { number, run, definition, .. } = ticket;
    let counter = number.0 >> 10;
    let low = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0);
    let shard = u16::try_from(number.0 & 0x3ff).unwrap_or(0);
    let id = TaskId { shard: Shard(0x8000 | shard), slot: SlotMinute(low(counter >> 32)), index: low(counter) };
    let params = run.params.as_ref().unwrap_or(&definition.spec.params);
    Firing {
        id,
        tenant: definition.tenant.as_str().into(),
        key: TaskKey::new(run.occurrence_id(*number).as_bytes()).ok(),
        due_ms: run.due_ms,
        attempt: run.attempt,
        payload: params.clone().into_bytes().into(),
    }
}

/// Has an outcome written. Where the writer is gone, the run is found when its lease is over.
async fn settled(settling: &Settling, ticket: &Ticket, sent: Sent, executor: Option<String>) {
    let event = Event {
        number: ticket.number,
        happened: Happened::Sent(sent, executor),
        read: Some((ticket.version, ticket.run.clone())),
    };
    if settling.send(event).await.is_err() {
        tracing::error!(run = ticket.number.0, "the outcome of a run cannot be written any more");
    }
}

/// Writes outcomes, as many together as have come meanwhile.
async fn settle(core: Arc<Core>, mut events: mpsc::Receiver<Event>) {
    let mut batch = Vec::with_capacity(SETTLE_MAX);
    while events.recv_many(&mut batch, SETTLE_MAX).await > 0 {
        let shards = crate::transition::by_shard(&core, std::mem::take(&mut batch)).into_iter();
        let written = shards.map(|(shard, events)| settle_shard(&core, shard, events));
        join_all(written).await;
    }
}

/// Writes the outcomes of one shard. While the store is away they are kept for as long as a lease; then the look for runs
/// whose lease is over decides.
async fn settle_shard(core: &Core, shard: Shard, events: Vec<Event>) {
    let began_ns = core.clock.monotonic_ns();
    loop {
        let Err(error) = core.happened(shard, events.clone()).await else { return };
        core.store_failed("the outcomes of runs cannot be written now", &error);
        let waited_ms = core.clock.monotonic_ns().saturating_sub(began_ns) / 1_000_000;
        if waited_ms > LEASE_MS {
            return;
        }
        tokio::time::sleep(SETTLE_RETRY).await;
    }
}
