//! One run, from its first shard to its last.

use super::pace::Pace;
use super::waiting::waiting;
use super::{BackfillRequest, BackfillState, BackfillStatus, Parts, Run};
use crate::caught::caught;
use crate::stats::{BackfillStats, Count};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use windfall_contract::due::{
    FAR_INDEX, FarRecord, LoadBatch, Loaded, PastPage, PastTasks, Route, Shard, SlotMinute, StoreError,
    TaskAt, TaskId, Waiting,
};

/// How often it is looked whether a run that was cancelled has ended.
pub(super) const CANCEL_LOOK: Duration = Duration::from_millis(10);
const HOUR_MINUTES: u32 = 60;
/// How long a run waits before it asks again for what had no answer, and whether a target is still behind.
const AGAIN: Duration = Duration::from_millis(200);
/// The bytes of the payloads of a step from which on it is full.
const STEP_BYTES: usize = 1 << 20;
/// Minutes beyond this host's clock at which the store's clock may stand.
const CLOCKS_APART_MINUTES: u32 = 2;

/// Why a run ended before its end.
enum Ended {
    Cancelled,
    Failed(String),
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Carries a run out, and says in its status how it ended.
pub(super) async fn carry_out(parts: Parts, past: Arc<dyn PastTasks>, run: Arc<Run>) {
    let stats = Arc::clone(&parts.stats);
    stats.running.set(1);
    let request = run.status.lock().request.clone();
    let cancelled = run.cancel.subscribe();
    let running = Running {
        routes: BTreeMap::new(),
        log: log_of(&request),
        parts,
        past,
        run: Arc::clone(&run),
        request,
        cancelled,
    };
    let state = match caught(running.all()).await {
        Ok(Ok(())) => BackfillState::Done,
        Ok(Err(Ended::Cancelled)) => BackfillState::Cancelled,
        Ok(Err(Ended::Failed(why))) => BackfillState::Failed(why),
        Err(panic) => BackfillState::Failed(format!("it panicked: {panic}")),
    };
    // Before it is seen to have ended: another one may begin then.
    stats.running.set(0);
    run.status.lock().state = state;
    run.log("a backfill has ended");
}

/// The log by whose name the store knows the batches of a backfill, whichever process runs it, and however often.
fn log_of(request: &BackfillRequest) -> u64 {
    let BackfillRequest { from_ms, to_ms, tenant, target, name, .. } = request;
    let mut which = b"backfill".to_vec();
    which.extend(from_ms.to_be_bytes().into_iter().chain(to_ms.to_be_bytes()));
    for part in [tenant.as_deref().unwrap_or_default(), target.as_deref().unwrap_or_default(), name.as_str()]
    {
        which.extend(part.bytes().chain([0]));
    }
    windfall_contract::fnv1a(&which)
}

/// A route of a task that is kept, as the store knows it now.
#[derive(Clone)]
struct Known {
    route: Route,
    names: (String, String),
}

/// What was there of a shard when a run came to it.
struct Before {
    /// The place of the last task that this backfill has stored, by earlier runs and this one.
    place: u64,
    waiting: HashSet<TaskId>,
}

struct Running {
    parts: Parts,
    past: Arc<dyn PastTasks>,
    run: Arc<Run>,
    request: BackfillRequest,
    cancelled: watch::Receiver<bool>,
    /// `None` where nobody has the target, or it is not asked for.
    routes: BTreeMap<(u16, u16), Option<Known>>,
    log: u64,
}

impl Running {
    async fn all(mut self) -> Result<(), Ended> {
        let tenants = self.tenants().await?;
        let hour_of = |ms: u64| SlotMinute::of(ms).0 / HOUR_MINUTES;
        let hours = hour_of(self.request.from_ms)..=hour_of(self.request.to_ms - 1);
        for shard in (0..self.parts.given.store.shards()).map(Shard) {
            let place = self.past_place(shard).await?;
            let mut before = Before { place, waiting: self.waiting(shard, &tenants).await? };
            for hour in hours.clone() {
                self.hour(SlotMinute(hour * HOUR_MINUTES), shard, &mut before).await?;
            }
            self.run.status.lock().shards.0 += 1;
        }
        Ok(())
    }

    /// The numbers of the tenants whose tasks may be fired.
    async fn tenants(&mut self) -> Result<Vec<u16>, Ended> {
        let store = Arc::clone(&self.parts.given.store);
        let names: Vec<String> = match &self.request.tenant {
            Some(tenant) => vec![tenant.clone()],
            None => self.parts.given.tenants.0.keys().cloned().collect(),
        };
        let mut numbers = Vec::with_capacity(names.len());
        for name in names {
            numbers.push(self.asked(|| store.tenant(&name)).await?);
        }
        Ok(numbers)
    }

    async fn waiting(&mut self, shard: Shard, tenants: &[u16]) -> Result<HashSet<TaskId>, Ended> {
        let store = Arc::clone(&self.parts.given.store);
        let from = SlotMinute::of(self.request.from_ms);
        let now = SlotMinute::of(self.parts.given.clock.unix_ms());
        let to = SlotMinute(now.0.saturating_add(CLOCKS_APART_MINUTES));
        self.asked(|| waiting(&*store, shard, tenants, from, to)).await
    }

    /// Up to which place earlier runs of this backfill have stored the tasks of a shard; 0 where there were none.
    async fn past_place(&mut self, shard: Shard) -> Result<u64, Ended> {
        let store = Arc::clone(&self.parts.given.store);
        let asking = LoadBatch { log: self.log, sequence: 0, follows: None, records: Vec::new() };
        match self.asked(|| store.load(shard, &asking)).await? {
            Loaded::Other(place) => Ok(place),
            Loaded::Stored | Loaded::Before => Ok(0),
        }
    }

    /// The place of a task among those of its shard, from 1 on: pages have them in this order.
    fn place(&self, id: TaskId) -> u64 {
        let minutes = id.slot.0.saturating_sub(SlotMinute::of(self.request.from_ms).0);
        (u64::from(minutes) << 31) + u64::from(id.index & !FAR_INDEX) + 1
    }

    /// Fires the tasks of an hour and a shard.
    async fn hour(&mut self, hour: SlotMinute, shard: Shard, before: &mut Before) -> Result<(), Ended> {
        let mut after = None;
        loop {
            let past = Arc::clone(&self.past);
            let PastPage { tasks, cancelled, moved, next } =
                self.asked(|| past.page(hour, shard, after)).await?;
            self.leave_out(cancelled, |status| &mut status.cancelled, |stats| &stats.cancelled);
            self.leave_out(moved, |status| &mut status.moved, |stats| &stats.moved);
            let mut step: Vec<(FarRecord, Known)> = Vec::new();
            let (mut room, mut bytes) = (usize::MAX, 0);
            for task in tasks {
                if !(self.request.from_ms..self.request.to_ms).contains(&task.due_ms) {
                    continue;
                }
                let Some(known) = self.known(task.route).await? else { continue };
                if self.place(task.id) <= before.place {
                    self.leave_out(1, |status| &mut status.before, |stats| &stats.before);
                    continue;
                }
                if before.waiting.contains(&task.id) {
                    self.leave_out(1, |status| &mut status.waiting, |stats| &stats.waiting);
                    continue;
                }
                room = room.min(self.pace().step_tasks(&known.names.0, &known.names.1));
                bytes += task.payload.len();
                step.push((task, known));
                if step.len() >= room || bytes >= STEP_BYTES {
                    self.step(shard, std::mem::take(&mut step), before).await?;
                    (room, bytes) = (usize::MAX, 0);
                }
            }
            self.step(shard, step, before).await?;
            after = next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// The route of a task as the store knows it now: one that has lost its data may have given its numbers to others.
    async fn known(&mut self, route: Route) -> Result<Option<Known>, Ended> {
        if let Some(known) = self.routes.get(&(route.tenant, route.target)) {
            return Ok(known.clone());
        }
        let names = self.past.names(route);
        let has = |names: &(String, String)| self.parts.given.tenants.target(&names.0, &names.1).is_some();
        let Some((tenant, target)) = names.filter(has) else {
            self.leave_out(1, |status| &mut status.unknown, |stats| &stats.unknown);
            return Ok(None);
        };
        let is_asked =
            |asked: &Option<String>, name: &String| asked.as_ref().is_none_or(|asked| asked == name);
        let is_wanted = is_asked(&self.request.tenant, &tenant) && is_asked(&self.request.target, &target);
        let known = if is_wanted {
            let store = Arc::clone(&self.parts.given.store);
            let number = self.asked(|| store.tenant(&tenant)).await?;
            let route = Route { tenant: number, target: self.asked(|| store.target(number, &target)).await? };
            Some(Known { route, names: (tenant, target) })
        } else {
            None
        };
        self.routes.insert((route.tenant, route.target), known.clone());
        Ok(known)
    }

    /// Stores tasks so that they fire.
    async fn step(
        &mut self,
        shard: Shard,
        tasks: Vec<(FarRecord, Known)>,
        before: &mut Before,
    ) -> Result<(), Ended> {
        let tasks = self.without_cancelled(shard, tasks).await?;
        if tasks.is_empty() {
            return Ok(());
        }
        let mut stored: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (_, known) in &tasks {
            *stored.entry(known.names.clone()).or_default() += 1;
        }
        if !self.request.is_dry_run {
            self.until_welcome(&stored).await?;
            let record = |(task, known): (FarRecord, Known)| FarRecord { route: known.route, ..task };
            let records: Vec<FarRecord> = tasks.into_iter().map(record).collect();
            let sequence = records.last().map_or(0, |last| self.place(last.id));
            // An earlier run's batch may arrive at any time, or the store may lose one: then this one does not follow.
            let batch = LoadBatch { log: self.log, sequence, follows: Some(before.place), records };
            let store = Arc::clone(&self.parts.given.store);
            if let Loaded::Other(_) = self.asked(|| store.load(shard, &batch)).await? {
                let what = "another run of the same backfill has come further, or the store has lost a part of this one; \
                            let the other one end, or begin again";
                return Err(Ended::Failed(what.into()));
            }
            before.place = sequence;
        }
        let pause = self.pace().pause(&stored);
        let count: u64 = stored.values().sum();
        self.count(|status| {
            for (names, count) in stored {
                *status.fired.entry(names).or_default() += count;
            }
        });
        if self.request.is_dry_run {
            return self.go_on();
        }
        self.parts.stats.fired.add(count);
        self.sleep(pause).await
    }

    /// Leaves out what the slot store says was cancelled, by whomever.
    async fn without_cancelled(
        &mut self,
        shard: Shard,
        tasks: Vec<(FarRecord, Known)>,
    ) -> Result<Vec<(FarRecord, Known)>, Ended> {
        let mut by_tenant: BTreeMap<u16, Vec<TaskAt>> = BTreeMap::new();
        for (task, known) in &tasks {
            by_tenant.entry(known.route.tenant).or_default().push(TaskAt::Id(task.id));
        }
        let mut cancelled = HashSet::new();
        for (tenant, at) in by_tenant {
            let store = Arc::clone(&self.parts.given.store);
            let found = self.asked(|| store.get(shard, tenant, &at)).await?;
            for (at, found) in at.iter().zip(found) {
                if let (TaskAt::Id(id), Some(Waiting::Cancelled)) = (at, found.map(|found| found.state)) {
                    cancelled.insert(*id);
                }
            }
        }
        let count = u64::try_from(cancelled.len()).unwrap_or(u64::MAX);
        self.leave_out(count, |status| &mut status.cancelled, |stats| &stats.cancelled);
        Ok(tasks.into_iter().filter(|(task, _)| !cancelled.contains(&task.id)).collect())
    }

    /// Waits until each of these targets keeps up with what is due now.
    async fn until_welcome(&mut self, targets: &BTreeMap<(String, String), u64>) -> Result<(), Ended> {
        loop {
            let why_not = targets.keys().find_map(|(tenant, target)| self.pace().why_not(tenant, target));
            let Some(why_not) = why_not else {
                self.waits_for(None);
                return Ok(());
            };
            self.waits_for(Some(why_not));
            self.sleep(AGAIN).await?;
        }
    }

    /// Asks until there is an answer: a repeated batch is stored once.
    async fn asked<T, F>(&mut self, call: impl Fn() -> F) -> Result<T, Ended>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            self.go_on()?;
            match call().await {
                Ok(answer) => {
                    self.waits_for(None);
                    return Ok(answer);
                }
                Err(StoreError::Unavailable(what)) => self.waits_for(Some(what)),
                Err(error) => return Err(error.into()),
            }
            self.sleep(AGAIN).await?;
        }
    }

    fn go_on(&self) -> Result<(), Ended> {
        if *self.cancelled.borrow() { Err(Ended::Cancelled) } else { Ok(()) }
    }

    async fn sleep(&mut self, pause: Duration) -> Result<(), Ended> {
        tokio::select! {
            biased;
            _ = self.cancelled.wait_for(|is_cancelled| *is_cancelled) => Err(Ended::Cancelled),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }

    fn pace(&self) -> Pace<'_> {
        let given = &self.parts.given;
        Pace { rate_per_s: self.request.rate_per_s, tenants: &given.tenants, fired: &given.fired }
    }

    /// Counts tasks that are not fired; a dry run fires none anyway, and shows itself alone.
    fn leave_out(
        &self,
        tasks: u64,
        of_status: impl FnOnce(&mut BackfillStatus) -> &mut u64,
        of_stats: impl FnOnce(&BackfillStats) -> &Count,
    ) {
        self.count(|status| *of_status(status) += tasks);
        if !self.request.is_dry_run {
            of_stats(&self.parts.stats).add(tasks);
        }
    }

    fn waits_for(&self, what: Option<String>) {
        self.count(|status| status.state = BackfillState::Running(what));
    }

    fn count(&self, change: impl FnOnce(&mut BackfillStatus)) {
        change(&mut self.run.status.lock());
    }
}
