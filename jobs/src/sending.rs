//! Sends runs to executors and targets, side by side, within a bound, and writes how that went.

use crate::core::{Core, Ticket};
use crate::definition::{Delivery, Destination, Priority};
use crate::executors::{App, RunCall};
use crate::occurrences::Tickets;
use crate::routing::{Choice, Request};
use crate::runs::{Part, Reported, RunNumber, Sent};
use crate::settling::{SETTLE_MAX, settle};
use crate::transition::{Event, Happened};
use futures_util::FutureExt;
use futures_util::future::join_all;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use windfall_contract::due::{Fired, Firing, Shard, SlotMinute, TaskId, TaskKey};

/// Runs that are taken from the queue at once.
const BATCH_MAX: usize = 256;
/// Work that waits for its turn.
const WAITING_MAX: usize = 2_000;
/// Calls that one app or one target may have open, as a part of all: one that hangs leaves room for the others.
const SHARE_OF_CALLS: usize = 2;
/// Destinations whose calls are counted; those without calls are forgotten beyond it.
const DESTINATIONS_MAX: usize = 10_000;
/// A run that has waited for longer than this since its lease began gets a new one before it is sent.
const FRESH_MS: u64 = 500;
/// While a call is open, its lease is renewed as often.
const RENEW_EVERY: Duration = Duration::from_millis(1_500);
/// Parts of a broadcast at most.
const PARTS_MAX: usize = 450;
/// How many of each priority go in a round: each has its floor.
const TURNS: [(Priority, usize); 3] = [(Priority::Urgent, 8), (Priority::Normal, 4), (Priority::Bulk, 1)];

/// Sends what comes through the queue until it is to close, then what it still has, and waits for all calls.
pub(crate) async fn run(core: Arc<Core>, mut tickets: Tickets, closing: CancellationToken) {
    let (settling, settled) = mpsc::channel(SETTLE_MAX);
    let settler = tokio::spawn(settle(Arc::clone(&core), settled));
    let calls = Arc::new(Semaphore::new(core.options.calls_max));
    let (mut tasks, mut batch, mut waiting) = (JoinSet::new(), Vec::new(), Waiting::default());
    let mut open = Destinations::new(core.options.calls_max);
    let mut is_ended = false;
    while !is_ended || waiting.len() > 0 {
        tokio::select! {
            biased;
            () = closing.cancelled(), if !is_ended && !tickets.is_closed() => tickets.close(),
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended {
                    // The run's lease ends, and its sending is counted: it is not repeated for ever.
                    tracing::error!(%error, "the sending of a run has ended without an outcome");
                }
            }
            taken = tickets.recv_many(&mut batch, BATCH_MAX), if !is_ended && waiting.len() < WAITING_MAX => {
                is_ended = taken == 0;
                works(batch.drain(..)).into_iter().for_each(|work| waiting.push(work));
            }
            Ok(permit) = Arc::clone(&calls).acquire_owned(), if waiting.len() > 0 => {
                let Some(work) = waiting.pop() else { continue };
                let place = open.take(work.destination());
                let (core, settling) = (Arc::clone(&core), settling.clone());
                tasks.spawn(async move {
                    match place {
                        Some(_place) => work.go(&core, &settling).await,
                        None => work.later(&settling).await,
                    }
                    drop(permit);
                });
            }
        }
        core.stats.waiting.set(u64::try_from(tickets.len() + waiting.len()).unwrap_or(u64::MAX));
    }
    while tasks.join_next().await.is_some() {}
    drop(settling);
    if let Err(error) = settler.await {
        tracing::error!(%error, "what was sent of jobs' runs cannot be written any more");
    }
}

/// Work by priority, in turns.
#[derive(Default)]
struct Waiting {
    queues: BTreeMap<Priority, VecDeque<Work>>,
    /// What is left of this round.
    left: BTreeMap<Priority, usize>,
    len: usize,
}

impl Waiting {
    const fn len(&self) -> usize {
        self.len
    }

    fn push(&mut self, work: Work) {
        self.queues.entry(work.priority()).or_default().push_back(work);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<Work> {
        for _ in 0..2 {
            for (priority, _) in TURNS {
                let Some(left) = self.left.get_mut(&priority).filter(|left| **left > 0) else { continue };
                if let Some(work) = self.queues.get_mut(&priority).and_then(VecDeque::pop_front) {
                    *left -= 1;
                    self.len -= 1;
                    return Some(work);
                }
            }
            self.left = TURNS.into();
        }
        None
    }
}

/// The calls that each app and each target has open.
struct Destinations {
    each_max: usize,
    open: HashMap<(String, String), Arc<Semaphore>>,
}

impl Destinations {
    fn new(calls_max: usize) -> Self {
        Self { each_max: calls_max.div_ceil(SHARE_OF_CALLS), open: HashMap::new() }
    }

    /// A place for a call; `None` where the destination has as many as it may.
    fn take(&mut self, destination: (String, String)) -> Option<OwnedSemaphorePermit> {
        if self.open.len() > DESTINATIONS_MAX {
            self.open.retain(|_, open| open.available_permits() < self.each_max);
        }
        let open = self.open.entry(destination).or_insert_with(|| Arc::new(Semaphore::new(self.each_max)));
        Arc::clone(open).try_acquire_owned().ok()
    }
}

/// What is sent by one task: an executor's run by itself, runs for one target together.
enum Work {
    Executor(Box<Ticket>, String, String),
    Target(String, String, Vec<Ticket>),
}

/// Runs for one target and of one priority go together; each executor's run goes by itself.
fn works(batch: impl Iterator<Item = Ticket>) -> Vec<Work> {
    let (mut works, mut targets) = (Vec::new(), BTreeMap::<_, Vec<Ticket>>::new());
    for ticket in batch {
        let spec = &ticket.definition.spec;
        match &spec.destination {
            Destination::Executor { app, handler, .. } => {
                let (app, handler) = (app.clone(), handler.clone());
                works.push(Work::Executor(Box::new(ticket), app, handler));
            }
            Destination::Target { name } => {
                let target = (spec.priority, ticket.definition.tenant.clone(), name.clone());
                targets.entry(target).or_default().push(ticket);
            }
        }
    }
    works.extend(targets.into_iter().map(|((_, tenant, name), tickets)| Work::Target(tenant, name, tickets)));
    works
}

type Settling = mpsc::Sender<Event>;

impl Work {
    fn tickets(&self) -> &[Ticket] {
        match self {
            Self::Executor(ticket, ..) => std::slice::from_ref(ticket),
            Self::Target(_, _, tickets) => tickets,
        }
    }

    fn priority(&self) -> Priority {
        self.tickets().first().map_or(Priority::Normal, |ticket| ticket.definition.spec.priority)
    }

    fn destination(&self) -> (String, String) {
        match self {
            // No target's name has a zero byte.
            Self::Executor(ticket, app, _) => (ticket.definition.tenant.clone(), format!("{app}\0")),
            Self::Target(tenant, name, _) => (tenant.clone(), name.clone()),
        }
    }

    /// Its destination has as many calls open as it may.
    async fn later(self, settling: &Settling) {
        for ticket in self.tickets() {
            let why = "its destination has as many calls open as it may".to_owned();
            settled(settling, ticket, Sent::Later(why), None).await;
        }
    }

    async fn go(self, core: &Core, settling: &Settling) {
        match self {
            Self::Executor(ticket, app, handler) => {
                if let Some(ticket) = fresh(core, vec![*ticket]).await.pop() {
                    to_executor(core, ticket, app, &handler, settling).await;
                }
            }
            Self::Target(tenant, name, tickets) => {
                let tickets = fresh(core, tickets).await;
                to_target(core, (tenant, name), tickets, settling).await;
            }
        }
    }
}

/// Runs whose lease has just begun, and of which it is written that they are being sent where they may be sent only once.
/// Those that somebody else has by now are left out.
async fn fresh(core: &Core, tickets: Vec<Ticket>) -> Vec<Ticket> {
    let now_ns = core.clock.monotonic_ns();
    let (old, mut fresh): (Vec<_>, Vec<_>) = tickets.into_iter().partition(|ticket| {
        let waited_ms = now_ns.saturating_sub(ticket.begun_ns) / 1_000_000;
        waited_ms > FRESH_MS || ticket.definition.spec.delivery == Delivery::AtMostOnce
    });
    fresh.extend(renewed(core, old).await);
    fresh
}

/// Runs with new leases. Where the store does not answer, they are left out: they are found when their lease is over.
async fn renewed(core: &Core, tickets: Vec<Ticket>) -> Vec<Ticket> {
    let mut by_shard: BTreeMap<Shard, Vec<Ticket>> = BTreeMap::new();
    for ticket in tickets {
        if let Some(shard) = core.book.shard_of(ticket.number.0) {
            by_shard.entry(shard).or_default().push(ticket);
        }
    }
    let shards = by_shard.into_iter().map(|(shard, tickets)| core.renew(shard, tickets));
    let mut renewed = Vec::new();
    for result in join_all(shards).await {
        match result {
            Ok(tickets) => renewed.extend(tickets),
            Err(error) => core.store_failed("the leases of runs cannot be renewed now", &error),
        }
    }
    renewed
}

/// Waits for a call, and renews the leases of its runs meanwhile: the call's answer, and the runs that are still ours.
async fn leased<T>(core: &Core, mut tickets: Vec<Ticket>, call: impl Future<Output = T>) -> (T, Vec<Ticket>) {
    let mut call = std::pin::pin!(call);
    loop {
        tokio::select! {
            biased;
            answer = &mut call => return (answer, tickets),
            () = tokio::time::sleep(RENEW_EVERY) => tickets = renewed(core, tickets).await,
        }
    }
}

async fn to_executor(core: &Core, ticket: Ticket, app: String, handler: &str, settling: &Settling) {
    let Destination::Executor { routing, .. } = ticket.definition.spec.destination else { return };
    let app = App { tenant: ticket.definition.tenant.clone(), app };
    let Some(addresses) = core.executors.of(&app) else {
        let why = "the executors have not been read yet".to_owned();
        return settled(settling, &ticket, Sent::Later(why), None).await;
    };
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
            let asked = addresses.iter().map(|address| calls.is_alive(address));
            let alive = first(&addresses, join_all(asked).await);
            call_found(core, ticket, handler, alive, "no executor answers its beat", settling).await;
        }
        Choice::FirstThatIsIdle(addresses) => {
            let job = ticket.run.job.0;
            let calls = core.calls_of(&app.tenant, &app.app);
            let asked = addresses.iter().map(|address| calls.is_idle(address, job));
            let idle = first(&addresses, join_all(asked).await);
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
        // The probes have taken a while.
        Some(address) => {
            if let Some(ticket) = fresh(core, vec![ticket]).await.pop() {
                call_in_order(core, ticket, handler, std::iter::once(address), settling).await;
            }
        }
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
    let call = call_of(&ticket, handler);
    let Destination::Executor { app, .. } = &ticket.definition.spec.destination else { return };
    let calls = core.calls_of(&ticket.definition.tenant, app);
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
    let (number, version, run) = (ticket.number, ticket.version, ticket.run.clone());
    let ((sent, executor), ours) = leased(core, vec![ticket], asked).await;
    match ours.first() {
        Some(ticket) => settled(settling, ticket, sent, executor).await,
        // Somebody else has it by now; but an end is an end.
        None if matches!(sent, Sent::Finished(_)) => {
            let event =
                Event { number, happened: Happened::Sent(sent, executor), read: Some((version, run)) };
            send_event(settling, event).await;
        }
        None => {}
    }
}

/// Splits a run into one for each executor, and sends them.
async fn broadcast(core: &Core, ticket: Ticket, handler: &str, addresses: &[Arc<str>], settling: &Settling) {
    if addresses.len() > PARTS_MAX {
        let why =
            format!("a broadcast goes to at most {PARTS_MAX} executors, and {} are there", addresses.len());
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
    let order: Vec<_> =
        tickets.iter().map(|ticket| (ticket.number, ticket.version, ticket.run.clone())).collect();
    let firings = tickets.iter().map(firing_of).collect();
    let call = AssertUnwindSafe(target.fire(firings)).catch_unwind();
    let (fired, ours) = leased(core, tickets, call).await;
    let fired = fired.unwrap_or_else(|_| {
        tracing::error!(target = name.1, "a target has panicked");
        Vec::new()
    });
    let mut ours: BTreeMap<RunNumber, Ticket> =
        ours.into_iter().map(|ticket| (ticket.number, ticket)).collect();
    let silent = || Fired::Failed("the target has not answered".to_owned());
    for ((number, version, run), fired) in
        order.into_iter().zip(fired.into_iter().chain(std::iter::repeat_with(silent)))
    {
        let ticket = ours.remove(&number);
        let delivery = ticket.as_ref().map(|ticket| ticket.definition.spec.delivery);
        let sent = match fired {
            Fired::Done => Sent::Finished(Reported::Succeeded(String::new())),
            Fired::Failed(why) => Sent::Finished(Reported::Failed(why)),
            Fired::Refused(why) => Sent::Refused(why),
            // A target says so, too, where it does not know whether it has it.
            Fired::Away(why) if delivery == Some(Delivery::AtMostOnce) => Sent::Unknown(why),
            Fired::Away(why) | Fired::Busy(why) => Sent::Later(why),
        };
        match ticket {
            Some(ticket) => settled(settling, &ticket, sent, None).await,
            None if matches!(sent, Sent::Finished(Reported::Succeeded(_))) => {
                let happened = Happened::Sent(sent, None);
                send_event(settling, Event { number, happened, read: Some((version, run)) }).await;
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
        key: TaskKey::new(run.occurrence_id(*number).as_bytes()).ok(),
        due_ms: run.due_ms,
        attempt: run.attempt,
        payload: params.clone().into_bytes().into(),
    }
}

/// Has an outcome written.
async fn settled(settling: &Settling, ticket: &Ticket, sent: Sent, executor: Option<String>) {
    let happened = Happened::Sent(sent, executor);
    let read = Some((ticket.version, ticket.run.clone()));
    send_event(settling, Event { number: ticket.number, happened, read }).await;
}

/// Where the writer is gone, the run is found when its lease is over.
async fn send_event(settling: &Settling, event: Event) {
    let number = event.number.0;
    if settling.send(event).await.is_err() {
        tracing::error!(run = number, "the outcome of a run cannot be written any more");
    }
}
