//! The far tier as its callers see it: tasks are added, found and changed.

use crate::OpenFarError;
use crate::entry::{Entry, Named, Push};
use crate::fail_points::{FailPoint, FailPoints};
use crate::log::{FarLog, LogError};
use crate::manifest::Manifest;
use crate::options::FarOptions;
use crate::probe::keeps_what_is_there;
use crate::row::{FarTask, Row, RowKey, hour_of};
use crate::segment::{ReadError, Segment};
use crate::state::State;
use crate::stats::{FarCounters, FarGauges, FarStats, FarTenantGauges};
use crate::turns::{Turn, Turns};
use bytes::{Bytes, BytesMut};
use object_store::ObjectStore;
use object_store::path::Path;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use windfall_contract::Clock;
use windfall_contract::due::{
    Changed, DUE_MAX_MS, DueRecord, Durability, Found, Moved, NewRecord, PAYLOAD_MAX_BYTES, Route, Shard,
    SlotMinute, SlotStore, StoreError, TaskId, Waiting,
};

/// The bytes of a frame of the log from which on another one is begun.
const FRAME_BYTES: usize = 1 << 20;
/// Hours ahead of now that tasks are taken for; what is due later stays near. Bounds the figures in memory.
const HOURS_AHEAD_MAX: u32 = 400 * 24;
/// Tasks that were moved and are not near yet, at most, and the bytes of their payloads: each checkpoint has them.
const PUSHES_MAX: usize = 10_000;
const PUSHES_BYTES_MAX: usize = 4 << 20;
/// Bytes in memory beyond `memory_bytes_max` that changes may take.
pub(crate) const CHANGES_BYTES: usize = 8 << 20;
/// The bytes of a part of the log, for each byte of `flush_bytes`, at which a segment is written, and for each byte of
/// `memory_bytes_max`, at which no more is taken. A part is read as a whole when the log is opened.
pub(crate) const LOG_BYTES_FACTOR: u64 = 4;
/// How often a look is repeated whose segments were merged meanwhile.
pub(crate) const LOOKS_MAX: usize = 10;
/// How long a move waits until the task is near.
const PUSH_WAIT: Duration = Duration::from_secs(5);
/// The folder of the segments.
pub(crate) const SEGMENTS: &str = "segments";

/// What the far tier says of a task by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FarFound {
    /// Ask the slot store: if the tenant has such a task, it is near.
    Near,
    /// It waits here, or was cancelled here.
    Here(Found),
}

/// What became of a change of a task by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FarChanged {
    /// Ask the slot store: if the tenant has such a task, it is near.
    Near,
    /// It was here.
    Here(Changed),
    /// It was here, has the other time, and is near by now. The slot store says where it lies.
    MovedNear,
}

/// The far tier. Clones share one.
#[derive(Clone)]
pub struct FarTier(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub options: FarOptions,
    pub clock: Clock,
    pub log: Box<dyn FarLog>,
    /// Where the segments are, once they have answered.
    objects: OnceLock<Arc<dyn ObjectStore>>,
    /// Whether they have.
    pub opened: watch::Sender<bool>,
    pub state: Mutex<State>,
    /// The manifest that was written last. One flush or merge at a time.
    pub manifest: tokio::sync::Mutex<Manifest>,
    /// Drawn at random by each process: no segment has the name of an earlier one, so that nothing that a dead process
    /// had sent, and that arrives late, writes or deletes another's.
    pub run: u64,
    /// The number that the next segment's name gets.
    pub next_segment: AtomicU64,
    /// Whether there may be segments that no manifest names.
    pub has_orphans: AtomicBool,
    /// Whether a manifest was sent last of which nobody knows whether it is there.
    pub is_in_doubt: AtomicBool,
    pub counters: Arc<FarCounters>,
    /// Why nothing is taken, changed or loaded any more until the next start: log and segments do not belong together, or
    /// another process writes the segments.
    pub refused: OnceLock<String>,
    /// The changes that go on.
    turns: Turns,
    /// Wakes the loader up.
    pub wake: Notify,
    /// Changes whenever a batch is near.
    pub loaded: watch::Sender<u64>,
    pub fail_points: FailPoints,
}

impl FarTier {
    /// Opens the far tier: reads what is in the log alone, its manifest and its indexes.
    ///
    /// # Errors
    /// [`OpenFarError`].
    pub async fn open(
        options: FarOptions,
        log: Box<dyn FarLog>,
        objects: Arc<dyn ObjectStore>,
        clock: Clock,
    ) -> Result<Self, OpenFarError> {
        let tier = Self::start(options, log, clock).await?;
        tier.attach(objects).await?;
        Ok(tier)
    }

    /// Reads the log alone. Tasks are taken from now on, as far as there is room in memory. What needs the segments is
    /// unavailable until [`attach`](Self::attach) has succeeded.
    ///
    /// # Errors
    /// [`OpenFarError`]; it says nothing of the segments.
    pub async fn start(
        options: FarOptions,
        log: Box<dyn FarLog>,
        clock: Clock,
    ) -> Result<Self, OpenFarError> {
        options.check()?;
        let run = getrandom::u64().map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let (manifest, first) = (Manifest::new(log.id()), log.first());
        let inner = Arc::new(Inner {
            options,
            clock,
            log,
            objects: OnceLock::new(),
            opened: watch::Sender::new(false),
            state: Mutex::default(),
            manifest: tokio::sync::Mutex::new(manifest),
            run,
            next_segment: AtomicU64::new(1),
            has_orphans: AtomicBool::new(true),
            is_in_doubt: AtomicBool::new(false),
            counters: Arc::new(FarCounters::default()),
            refused: OnceLock::new(),
            turns: Turns::default(),
            wake: Notify::new(),
            loaded: watch::Sender::new(0),
            fail_points: FailPoints::default(),
        });
        let tier = Self(inner);
        // It may go further back than the manifest says: what is in segments as well is in memory once more.
        tier.blocking(move |inner| inner.replay(&mut inner.state.lock(), first)).await??;
        Ok(tier)
    }

    /// Opens the segments: reads the manifest and the indexes. Does nothing where that was done. May be repeated after an
    /// error, and dropped at any moment.
    ///
    /// # Errors
    /// [`OpenFarError`].
    pub async fn attach(&self, objects: Arc<dyn ObjectStore>) -> Result<(), OpenFarError> {
        let attached = self.try_attach(objects).await;
        if let Err(error) = &attached
            && !error.may_pass()
        {
            // What was answered Ok from now on would be in a log that is refused at the next start.
            self.0.refuse(error.to_string());
        }
        attached
    }

    async fn try_attach(&self, objects: Arc<dyn ObjectStore>) -> Result<(), OpenFarError> {
        self.0.check_refused()?;
        let mut manifest = self.0.manifest.lock().await;
        if self.is_open() {
            return Ok(());
        }
        let log = &self.0.log;
        keeps_what_is_there(&*objects, self.0.run).await?;
        let closed_upto = self.0.state.lock().figures.closed_upto;
        let last = Manifest::take_over(&*objects, log.id(), log.is_new(), self.0.run, closed_upto).await?;
        let segments = open_segments(&*objects, &last, &self.0.counters).await?;
        let flushed = last.flushed;
        self.blocking(move |inner| inner.check_reaches(flushed)).await??;
        {
            let mut state = self.0.state.lock();
            state.segments = Arc::new(segments);
            // The log may say more than a manifest that was written before it.
            state.gone_for_good_upto = state.gone_for_good_upto.max(last.gone_upto.unwrap_or(closed_upto));
            let gone_upto = state.gone_for_good_upto;
            state.forget_upto(gone_upto);
        }
        *manifest = last;
        self.0.objects.get_or_init(|| objects);
        drop(manifest);
        if let Err(error) = self.drop_orphans().await {
            tracing::warn!(%error, "segments that nobody names are deleted later");
        }
        self.0.opened.send_replace(true);
        Ok(())
    }

    /// Whether the segments are open.
    pub fn is_open(&self) -> bool {
        *self.0.opened.borrow()
    }

    /// Waits until the segments are open.
    pub(crate) async fn until_open(&self) {
        let mut opened = self.0.opened.subscribe();
        // The other end is in `self`.
        opened.wait_for(|is_open| *is_open).await.ok();
    }

    /// Where the segments are.
    pub(crate) fn objects(&self) -> Result<&Arc<dyn ObjectStore>, StoreError> {
        self.0.objects.get().ok_or_else(not_open)
    }

    /// Names its log.
    pub(crate) fn log_id(&self) -> u64 {
        self.0.log.id()
    }

    /// What an Ok survives.
    pub fn durability(&self) -> Durability {
        match self.0.options.is_synced {
            true => Durability::Machine,
            false => Durability::Process,
        }
    }

    /// Whether a task that is due then is to be added here. It may be refused all the same when it is.
    pub fn takes(&self, due_ms: u64) -> bool {
        let hour = hour_of(SlotMinute::of(due_ms));
        let now_ms = self.0.clock.unix_ms();
        due_ms > now_ms.saturating_add(self.0.options.horizon_ms)
            && hour <= self.0.last_hour()
            && !self.0.state.lock().is_closed(hour)
    }

    /// Notes what the numbers of a route stand for, where it is not noted yet. Its tasks are loaded only into a slot store
    /// in which they stand for the same.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn name(&self, near: &dyn SlotStore, route: Route) -> Result<(), StoreError> {
        if self.0.state.lock().names.contains_key(&(route.tenant, route.target)) {
            return Ok(());
        }
        let Some(names) = near.names(route).await? else { return Ok(()) };
        let named = Entry::Names(vec![Named { tenant: route.tenant, target: route.target, names }]);
        self.blocking(move |inner| inner.append(&mut inner.state.lock(), vec![named])).await?.map(drop)
    }

    /// Adds tasks: one answer for each, in order; `None` for one that is to be added near, or refused there: it has a
    /// key, or its hour is on its way near already, or it is due in more than 400 days.
    ///
    /// # Errors
    /// [`StoreError`]: any of them may be stored.
    pub async fn add(&self, shard: Shard, tasks: Vec<NewRecord>) -> Result<Vec<Option<TaskId>>, StoreError> {
        let is_synced = self.0.options.is_synced;
        let (added, end) = self.blocking(move |inner| inner.add(shard, &tasks)).await??;
        if let Some(end) = end.filter(|_| is_synced) {
            self.blocking(move |inner| inner.log.sync(end)).await?.map_err(log_failed)?;
        }
        match self.0.fail_points.is_dead_at(FailPoint::Appended) {
            true => Err(dead()),
            false => Ok(added),
        }
    }

    /// Finds a tenant's task.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, tenant: u16, id: TaskId) -> Result<FarFound, StoreError> {
        let Some(key) = RowKey::of(id) else { return Ok(FarFound::Near) };
        if self.is_known_to_be_near(key)? {
            return Ok(FarFound::Near);
        }
        let row = self.look(key).await?.1;
        if matches!(row, Some(Row::Cancelled(_))) {
            self.sync_cancels().await?;
        }
        let state = self.0.state.lock();
        Ok(match row.filter(|row| row.tenant() == tenant) {
            Some(Row::Task(task)) if !state.is_near(key) => FarFound::Here(found(id, task)),
            Some(Row::Cancelled(tenant)) if !state.is_near(key) => {
                FarFound::Here(found_cancelled(id, tenant))
            }
            _ => {
                let pushed =
                    state.figures.pushes.iter().find(|(of, push)| *of == key && push.tenant == tenant);
                pushed.map_or(FarFound::Near, |(_, push)| FarFound::Here(found_push(id, push)))
            }
        })
    }

    /// Whether a task of a tenant that the slot store does not know was cancelled. It is known until the rows of its hour
    /// are let go of: what was cancelled before its hour was loaded is in them alone.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn was_cancelled(&self, tenant: u16, id: TaskId) -> Result<bool, StoreError> {
        let Some(key) = RowKey::of(id) else { return Ok(false) };
        if key.hour <= self.0.state.lock().dropped_upto() {
            return Ok(false);
        }
        if !self.is_open() {
            return Err(not_open());
        }
        let row = self.look(key).await?.1;
        let is_cancelled = matches!(row, Some(Row::Cancelled(of)) if of == tenant);
        if is_cancelled {
            self.sync_cancels().await?;
        }
        Ok(is_cancelled)
    }

    /// Nobody is told of a cancel that a machine which dies now would take along.
    async fn sync_cancels(&self) -> Result<(), StoreError> {
        match self.0.options.is_synced {
            true => self.blocking(|inner| inner.log.sync(inner.log.end())).await?.map_err(log_failed),
            false => Ok(()),
        }
    }

    /// Whether tasks are taken, changed and loaded.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), String> {
        if let Some(why) = self.0.refused.get() {
            return Err(format!("{why}; far timers are not taken, changed or loaded until the next start"));
        }
        match self.0.log.has_failed() {
            true => Err("a write to the log of far timers has failed; they are taken, changed and loaded again when what \
                         the log has is in segments, and it goes on in another file"
                .into()),
            false => Ok(()),
        }
    }

    /// Cancels or changes a tenant's task. One that gets another time goes near at once, and waits there.
    ///
    /// # Errors
    /// [`StoreError`]: it may be done or not, and may be repeated. So it is for a task that is on its way near, for a
    /// moment, and for a change that another one of the same task has overtaken. [`StoreError::Unusable`] for a time or
    /// a payload that no slot store takes.
    pub async fn change(&self, tenant: u16, id: TaskId, to: Option<Moved>) -> Result<FarChanged, StoreError> {
        let turn = self.turns().begin((tenant, id), vec![to.clone()]);
        self.change_in_turn(turn, tenant, id, to).await
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    /// The change whose turn it is.
    pub(crate) async fn change_in_turn(
        &self,
        turn: Arc<Turn>,
        tenant: u16,
        id: TaskId,
        to: Option<Moved>,
    ) -> Result<FarChanged, StoreError> {
        let Some(key) = RowKey::of(id) else { return Ok(FarChanged::Near) };
        if to.as_ref().is_some_and(|to| !may_be_stored(to)) {
            return Err(StoreError::Unusable("no slot store takes such a time or such a payload".into()));
        }
        if self.is_known_to_be_near(key)? {
            return Ok(FarChanged::Near);
        }
        for _ in 0..LOOKS_MAX {
            turn.check()?;
            let (segments, row) = self.look(key).await?;
            let (turn, to) = (Arc::clone(&turn), to.clone());
            let change = Asked { turn, tenant, key, to };
            let decided = self.blocking(move |inner| inner.change(&change, row, &segments)).await??;
            let Some((changed, end)) = decided else { continue };
            if let Some(end) = end.filter(|_| self.0.options.is_synced) {
                self.blocking(move |inner| inner.log.sync(end)).await?.map_err(log_failed)?;
            }
            if self.0.fail_points.is_dead_at(FailPoint::Appended) {
                return Err(dead());
            }
            if changed == FarChanged::MovedNear {
                self.wait_until_near(key).await?;
            }
            return Ok(changed);
        }
        Err(StoreError::Unavailable("the far tier was rewritten again and again during a look".into()))
    }

    /// How many tasks wait here, by tenant. While an hour is loaded, its tasks count here and near.
    pub fn counts(&self) -> BTreeMap<u16, u64> {
        let mut counts = BTreeMap::new();
        for hour in self.0.state.lock().figures.hours.values() {
            for (tenant, waiting) in &hour.waiting {
                *counts.entry(*tenant).or_default() += waiting;
            }
        }
        counts
    }

    /// How many tasks of each tenant wait here, by its name.
    pub fn tenants(&self) -> Vec<FarTenantGauges> {
        let counts = self.counts();
        let state = self.0.state.lock();
        let mut names: BTreeMap<u16, &String> = BTreeMap::new();
        names.extend(state.names.iter().map(|((tenant, _), (name, _))| (*tenant, name)));
        let named = |(number, name): (u16, &String)| {
            let waiting = counts.get(&number).copied().unwrap_or_default();
            FarTenantGauges { tenant: name.clone(), waiting }
        };
        names.into_iter().map(named).collect()
    }

    /// What was done.
    pub fn stats(&self) -> FarStats {
        self.0.counters.read()
    }

    /// What is held now.
    pub fn gauges(&self) -> FarGauges {
        let waiting = self.counts().values().sum();
        let state = self.0.state.lock();
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        FarGauges {
            waiting,
            segments: wide(state.segments.len()),
            segment_bytes: state.segments.iter().map(|segment| segment.meta.bytes).sum(),
            memory_bytes: wide(state.memory_bytes()),
            log_failed: u64::from(self.0.log.has_failed()),
            refused: u64::from(self.0.refused.get().is_some()),
        }
    }

    /// Runs `work` on a blocking thread. If the caller goes away, it still runs to its end.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    /// Whether the log alone says that a task is near. An error where only the segments could say so, and are not open.
    fn is_known_to_be_near(&self, key: RowKey) -> Result<bool, StoreError> {
        if self.0.state.lock().is_near_for_good(key) {
            return Ok(true);
        }
        match self.is_open() {
            true => Ok(false),
            false => Err(not_open()),
        }
    }

    /// The row of a key, and the segments in which it was looked for.
    async fn look(&self, key: RowKey) -> Result<(Segments, Option<Row>), StoreError> {
        for _ in 0..LOOKS_MAX {
            let (segments, in_memory) = {
                let state = self.0.state.lock();
                (Arc::clone(&state.segments), state.in_memory(key).cloned())
            };
            if in_memory.is_some() {
                return Ok((segments, in_memory));
            }
            match self.find(&segments, key).await {
                Ok(row) => return Ok((segments, row)),
                // Merged meanwhile, or lost: where the list is still the same one, it is lost.
                Err(ReadError::Gone(name)) if Arc::ptr_eq(&segments, &self.0.state.lock().segments) => {
                    return Err(StoreError::Unavailable(format!("the segment {name} is missing")));
                }
                Err(ReadError::Gone(_)) => {}
                Err(error) => {
                    self.0.counters.objects_failed();
                    return Err(StoreError::Unavailable(error.to_string()));
                }
            }
        }
        Err(StoreError::Unavailable("the far tier was rewritten again and again during a look".into()))
    }

    async fn find(&self, segments: &Segments, key: RowKey) -> Result<Option<Row>, ReadError> {
        // Without them there are no segments either.
        let Some(objects) = self.0.objects.get() else { return Ok(None) };
        for segment in segments.iter().rev() {
            let found = segment.find(&**objects, key, &self.0.counters).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Waits until a task that was moved is near.
    async fn wait_until_near(&self, key: RowKey) -> Result<(), StoreError> {
        let mut loaded = self.0.loaded.subscribe();
        let until_near = async {
            while self.0.state.lock().is_on_its_way(key) {
                self.0.wake.notify_one();
                if loaded.changed().await.is_err() {
                    return;
                }
            }
        };
        let late =
            |_| StoreError::Unavailable("the task is moved, and on its way into the slot store".into());
        tokio::time::timeout(PUSH_WAIT, until_near).await.map_err(late)
    }
}

type Segments = Arc<Vec<Arc<Segment>>>;
/// What became of a change, and the position of the log behind it; `None` where the row was not the last word.
type Decided = Option<(FarChanged, Option<u64>)>;

/// A change that is asked for.
struct Asked {
    turn: Arc<Turn>,
    tenant: u16,
    key: RowKey,
    to: Option<Moved>,
}

impl Inner {
    /// The last hour for which tasks are taken now.
    fn last_hour(&self) -> u32 {
        hour_of(SlotMinute::of(self.clock.unix_ms())).saturating_add(HOURS_AHEAD_MAX)
    }

    /// Takes, changes and loads nothing from now on.
    pub fn refuse(&self, why: String) {
        if self.refused.set(why.clone()).is_ok() {
            tracing::error!(why, "the far tier takes, changes and loads nothing until it is started again");
        }
    }

    /// An error where nothing is to be done any more.
    pub fn check_refused(&self) -> Result<(), StoreError> {
        self.refused.get().map_or(Ok(()), |why| Err(StoreError::Unavailable(why.clone())))
    }

    /// Appends entries, and takes them in. They are one frame.
    pub fn append(&self, state: &mut State, entries: Vec<Entry>) -> Result<u64, StoreError> {
        self.check_refused()?;
        self.append_always(state, entries)
    }

    /// The same in whatever case: for what a part of the log must begin with.
    pub fn append_always(&self, state: &mut State, entries: Vec<Entry>) -> Result<u64, StoreError> {
        let mut frame = BytesMut::new();
        entries.iter().for_each(|entry| entry.encode(&mut frame));
        let end = self.log.append(&frame).map_err(log_failed)?;
        entries.into_iter().for_each(|entry| state.apply(entry));
        Ok(end)
    }

    /// Checks that the log has all that the segments do not have, from this position on.
    fn check_reaches(&self, flushed: u64) -> Result<(), OpenFarError> {
        // Nothing is appended meanwhile.
        let _held = self.state.lock();
        match flushed == self.log.first() {
            // It was read from there on.
            true => Ok(()),
            false => self.replay(&mut State::default(), flushed),
        }
    }

    /// Reads the log from a part on.
    fn replay(&self, state: &mut State, from: u64) -> Result<(), OpenFarError> {
        let mut is_first = true;
        self.log.replay(from, &mut |mut frame| {
            while !frame.is_empty() {
                let entry = Entry::decode(&mut frame);
                let is_checkpoint =
                    matches!(entry, Ok(Entry::Names(_) | Entry::Hours(_) | Entry::Checkpoint(_)));
                let is_wrong = is_first && from > 0 && !is_checkpoint;
                match entry {
                    Ok(entry) if !is_wrong => state.apply(entry),
                    _ => {
                        let what = format!("a frame behind {from} is none of the far tier");
                        return Err(LogError::Damaged { place: "the far tier".into(), what });
                    }
                }
                is_first = false;
            }
            Ok(())
        })?;
        match is_first && from > 0 {
            true => {
                let what = format!("what is behind {from} is missing");
                Err(LogError::Damaged { place: "the far tier".into(), what }.into())
            }
            false => Ok(()),
        }
    }

    fn add(
        &self,
        shard: Shard,
        tasks: &[NewRecord],
    ) -> Result<(Vec<Option<TaskId>>, Option<u64>), StoreError> {
        let mut state = self.state.lock();
        if !self.make_room(&mut state, 0) {
            return Err(no_room());
        }
        let mut next: HashMap<u32, u32> = HashMap::new();
        let (mut ids, mut entries, mut bytes, mut end) =
            (Vec::with_capacity(tasks.len()), Vec::new(), 0, None);
        for task in tasks {
            let slot = SlotMinute::of(task.due_ms);
            let hour = hour_of(slot);
            let is_whole = task.payload.len() <= PAYLOAD_MAX_BYTES;
            if task.key.is_some() || !is_whole || state.is_closed(hour) || hour > self.last_hour() {
                ids.push(None);
                continue;
            }
            let number = next.get(&hour).copied().or_else(|| state.next_number(hour));
            let number = number.filter(|number| *number < u32::MAX >> 1);
            let number = number.ok_or_else(|| StoreError::Unavailable("the hour is full".into()))?;
            next.insert(hour, number + 1);
            let minute = u8::try_from(slot.0 % 60).unwrap_or(0);
            let key = RowKey { hour, shard: shard.0, minute, number };
            let offset_ms = u16::try_from(task.due_ms - slot.start_ms()).unwrap_or(0);
            // A payload may be a part of a larger buffer, which it would keep.
            let payload = Bytes::copy_from_slice(&task.payload);
            bytes += payload.len() + 32;
            entries.push(Entry::Add(key, Row::Task(FarTask { offset_ms, route: task.route, payload })));
            ids.push(Some(key.id()));
            if bytes >= FRAME_BYTES {
                self.counters.added(entries.len());
                end = Some(self.append(&mut state, std::mem::take(&mut entries))?);
                bytes = 0;
            }
        }
        if !entries.is_empty() {
            self.counters.added(entries.len());
            end = Some(self.append(&mut state, entries)?);
        }
        Ok((ids, end))
    }

    /// Whether more may be taken before what is there is in a segment. A task that is changed again and again takes no
    /// more memory, but more of the log.
    fn has_room(&self, state: &State, more: usize) -> bool {
        let max = self.options.memory_bytes_max.saturating_add(more);
        let log_max = u64::try_from(max).unwrap_or(u64::MAX).saturating_mul(LOG_BYTES_FACTOR);
        state.memory_bytes() <= max && self.log.part_bytes() <= log_max
    }

    /// The same; where there is none, rows of hours that are over make room. No task is lost with them: it is near, and
    /// no backfill fires it again.
    pub(crate) fn make_room(&self, state: &mut State, more: usize) -> bool {
        if self.has_room(state, more) {
            return true;
        }
        let over_upto = state.figures.over_upto;
        if state.memory_bytes() > self.options.memory_bytes_max.saturating_add(more) {
            if state.gone_upto < over_upto {
                tracing::error!(
                    "the far tier has no room in memory until the object store takes what is there; hours that have been \
                     loaded are not kept for a backfill, so that tasks can be added"
                );
            }
            state.forget_upto(over_upto);
        }
        self.has_room(state, more)
    }

    /// `row` is what the segments have, as long as they are these.
    fn change(&self, asked: &Asked, row: Option<Row>, segments: &Segments) -> Result<Decided, StoreError> {
        let Asked { turn, tenant, key, to } = asked;
        let (tenant, key) = (*tenant, *key);
        let mut state = self.state.lock();
        turn.check()?;
        let is_pushed = |(of, push): &(RowKey, Push)| *of == key && push.tenant == tenant;
        if state.figures.pushes.iter().any(is_pushed) {
            return Err(on_its_way());
        }
        if state.is_near(key) {
            return Ok(Some((FarChanged::Near, None)));
        }
        let row = match state.in_memory(key) {
            Some(row) => Some(row.clone()),
            None if Arc::ptr_eq(segments, &state.segments) => row,
            None => return Ok(None),
        };
        // The change that this one repeats may be on its way to the disk, or have failed there.
        let here = |changed| Ok(Some((FarChanged::Here(changed), Some(self.log.end()))));
        let id = key.id();
        let task = match row.filter(|row| row.tenant() == tenant) {
            Some(Row::Task(task)) => task,
            Some(Row::Cancelled(_)) => return here(Changed::Cancelled),
            Some(Row::Moved(_)) | None => return Ok(Some((FarChanged::Near, None))),
        };
        let due_ms = due_ms(key.slot(), &task);
        let entry = match to {
            _ if state.is_closed(key.hour) => return Err(on_its_way()),
            // Changes may go on a little longer than adds, so that cancels are the last that is refused.
            _ if !self.make_room(&mut state, CHANGES_BYTES) => return Err(no_room()),
            None => Entry::Change(key, Row::Cancelled(tenant)),
            Some(to) => {
                let payload = to.payload.clone().unwrap_or_else(|| task.payload.clone());
                match to.due_ms.filter(|to_ms| *to_ms != due_ms) {
                    None if payload == task.payload => return here(Changed::Done(id)),
                    None => {
                        let payload = Bytes::copy_from_slice(&payload);
                        Entry::Change(key, Row::Task(FarTask { payload, ..task }))
                    }
                    Some(_) if is_full(&state.figures.pushes) => {
                        return Err(StoreError::Unavailable("too many tasks are on their way near".into()));
                    }
                    Some(due_ms) => {
                        let (target, payload) = (task.route.target, payload.to_vec());
                        Entry::Push(key, Push { due_ms, tenant, target, payload })
                    }
                }
            }
        };
        let changed = match entry {
            Entry::Push(..) => FarChanged::MovedNear,
            _ => FarChanged::Here(Changed::Done(id)),
        };
        let end = self.append(&mut state, vec![entry])?;
        Ok(Some((changed, Some(end))))
    }
}

async fn open_segments(
    objects: &dyn ObjectStore,
    manifest: &Manifest,
    counters: &FarCounters,
) -> Result<Vec<Arc<Segment>>, OpenFarError> {
    let mut segments = Vec::with_capacity(manifest.segments.len());
    for meta in &manifest.segments {
        match Segment::open(objects, meta.clone()).await {
            Ok(segment) => segments.push(Arc::new(segment)),
            Err(ReadError::Store(error)) => return Err(error.into()),
            // The rest of the far tier must not stand still for it.
            Err(error) => {
                counters.segment_lost();
                tracing::error!(segment = %meta.name, tasks = meta.rows, %error, "a segment of the far tier is lost; its tasks will not fire");
            }
        }
    }
    Ok(segments)
}

pub(crate) fn not_open() -> StoreError {
    StoreError::Unavailable("the segments of the far tier have not answered yet; try again later".into())
}

pub(crate) fn no_room() -> StoreError {
    let what = "the far tier has no room in memory until the object store takes what is there";
    StoreError::Unavailable(what.into())
}

/// Whether a slot store takes it: else the log could not be read again, or the task never be loaded.
pub(crate) fn may_be_stored(to: &Moved) -> bool {
    to.payload.as_ref().is_none_or(|payload| payload.len() <= PAYLOAD_MAX_BYTES)
        && to.due_ms.is_none_or(|due_ms| due_ms <= DUE_MAX_MS)
}

fn is_full(pushes: &[(RowKey, Push)]) -> bool {
    let bytes: usize = pushes.iter().map(|(_, push)| push.payload.len()).sum();
    pushes.len() >= PUSHES_MAX || bytes >= PUSHES_BYTES_MAX
}

pub(crate) fn segment_name(run: u64, number: u64) -> String {
    Path::from(format!("{SEGMENTS}/{run:016x}-{number:08}.far")).to_string()
}

pub(crate) fn due_ms(slot: SlotMinute, task: &FarTask) -> u64 {
    slot.start_ms() + u64::from(task.offset_ms)
}

pub(crate) fn found(id: TaskId, task: FarTask) -> Found {
    let FarTask { offset_ms, route, payload } = task;
    let record = DueRecord { offset_ms, route, key: None, asked_ms: None, first_id: None, payload };
    Found { id, state: Waiting::Waiting, record }
}

/// What it was is gone already.
pub(crate) fn found_cancelled(id: TaskId, tenant: u16) -> Found {
    let route = windfall_contract::due::Route { tenant, target: 0 };
    let task = FarTask { offset_ms: 0, route, payload: Bytes::new() };
    Found { state: Waiting::Cancelled, ..found(id, task) }
}

/// A task that was moved, under the slot of its new time.
fn found_push(id: TaskId, push: &Push) -> Found {
    let slot = SlotMinute::of(push.due_ms);
    let offset_ms = u16::try_from(push.due_ms - slot.start_ms()).unwrap_or(0);
    let payload = Bytes::copy_from_slice(&push.payload);
    let mut found = found(TaskId { slot, ..id }, FarTask { offset_ms, route: push.route(), payload });
    found.record.first_id = Some(id);
    found
}

fn on_its_way() -> StoreError {
    StoreError::Unavailable("the task is on its way into the slot store; try again in a moment".into())
}

pub(crate) fn log_failed(error: LogError) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

pub(crate) fn dead() -> StoreError {
    StoreError::Unavailable("a test has ended the far tier".into())
}
