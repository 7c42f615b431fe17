//! The SDK's handle: `send_bonus`, init and close.

use crate::error::InitError;
use crate::lane::{Desk, Ready};
use crate::options::{EVENT_MAX_BYTES, PACK_MAX_BYTES, SdkOptions, SpoolMode};
use crate::plan::{LaneBook, Plan};
use crate::pump::{self, Returned};
use crate::reward::{self, Checked};
use crate::strays::Stray;
use crate::tokens::{TokenBuffer, TokenWriter};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::broker::OpenError;
use windfall_contract::rules::Rules;
use windfall_contract::tokens::TokenStore;
use windfall_proto::send::{SendBonus, SendError};
use windfall_proto::v1::{SendBonusReply, SendBonusRequest};
use windfall_proto::{order, record};
use windfall_queue_virtual::Fanout;
use windfall_spool::{Durability, Spool, SpoolOptions};
use windfall_token::{KeyRing, Minter, TokenFields};

/// Between two looks at the rules: far below the second within which they shall be in force.
const RULES_TICK: Duration = Duration::from_millis(50);
/// Between two tries to take over rules whose topics cannot be opened.
const RULES_RETRY: Duration = Duration::from_secs(1);

/// What an SDK is wired to.
pub struct SdkParts {
    /// Where events wait until a broker has them.
    pub spool: SpoolMode,
    /// The ring whose primary key mints.
    pub keys: KeyRing,
    /// Queues and routes, as they change.
    pub rules: LiveRules,
    /// Sends records. The caller closes it, after [`Sdk::close`].
    pub fanout: Arc<Fanout>,
    /// Keeps tokens for wallets; `None` for those who have none.
    pub tokens: Option<Arc<dyn TokenStore>>,
    /// Time.
    pub clock: Clock,
}

/// An activity service's way in. Cheap to clone; any number of threads may call it.
///
/// [`close`](Self::close) it before the last handle goes: that one stops the threads, and waits for nothing.
#[derive(Clone)]
pub struct Sdk {
    shared: Arc<Shared>,
    threads: Arc<Threads>,
}

/// The threads of an SDK. Dropped with the last handle.
struct Threads {
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
}

struct Running {
    pump: JoinHandle<()>,
    rules: JoinHandle<()>,
    tokens: Option<TokenWriter>,
}

/// What an earlier process left in the spool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inherited {
    /// Packs that are being sent again.
    pub packs: usize,
    /// Of these, packs that no route takes now: they are sent when the rules have one.
    pub waiting: usize,
    /// Events in them.
    pub events: u64,
    /// Entries that were torn: their calls never returned Ok.
    pub torn_entries: u64,
    /// What could not be read and was set aside: where, and why. A person must look at it.
    pub set_aside: Vec<String>,
}

/// Counters since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SdkStats {
    /// Calls that returned Ok.
    pub sent: u64,
    /// The version of the rules that calls follow.
    pub rules_version: u64,
    /// Packs, closed ones, that no broker has yet.
    pub packs_in_flight: usize,
    /// Of these, packs that wait for rules that take them.
    pub packs_waiting: usize,
    /// Slots of the spool in use, and in all.
    pub spool_slots: (u64, u64),
    /// Times that the fan-out gave a pack back.
    pub packs_returned: u64,
    /// Tokens written to the store.
    pub tokens_written: u64,
    /// Tokens that wait for the store.
    pub tokens_waiting: usize,
    /// Tokens dropped because the store was behind or down.
    pub tokens_dropped: u64,
    /// Writes that the store did not take.
    pub token_store_failures: u64,
}

/// What `close` left undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SdkCloseReport {
    /// Packs that wait in the spool for the next start (with a spool in memory: that are lost).
    pub packs_left: usize,
}

impl Sdk {
    /// Opens the spool, takes over what earlier processes left in it, and starts the pump.
    ///
    /// # Errors
    /// [`InitError`]; nothing is left running.
    pub fn init(options: SdkOptions, parts: SdkParts) -> Result<(Self, Inherited), InitError> {
        if let Some(wrong) = options.out_of_range() {
            return Err(InitError::Option(wrong));
        }
        order::check_name(&options.app_id).map_err(|why| InitError::Option(format!("app_id {why}")))?;
        let minter = parts.keys.minter(&options.app_id)?;
        let (spool, recovered) = open_spool(&parts.spool, &options)?;
        let shared = Arc::new(Shared {
            minter,
            lanes: LaneBook::new(options.shards, options.pack_events_max),
            plan: ArcSwap::default(),
            tokens: parts.tokens.is_some().then(|| Arc::new(TokenBuffer::new(&options))),
            spool,
            ready: Ready::default(),
            returned: Arc::default(),
            strays: Mutex::default(),
            closed: AtomicBool::new(false),
            give_up: AtomicBool::new(false),
            rules: parts.rules,
            fanout: parts.fanout,
            clock: parts.clock,
            options,
        });
        let rules_now = shared.rules.current();
        if let Err(error) = shared.take_over(&rules_now) {
            tracing::warn!(%error, version = rules_now.version, "rules not taken over yet");
        }
        let mut inherited = Inherited {
            torn_entries: recovered.torn_entries,
            set_aside: recovered.unrecovered.iter().map(|left| format!("{left:?}")).collect(),
            ..Inherited::default()
        };
        for pack in recovered.packs {
            shared.inherit(pack, &mut inherited);
        }
        let running = Running::start(&shared, parts.tokens).inspect_err(|_| {
            // Those that did start end.
            shared.closed.store(true, Relaxed);
            shared.give_up.store(true, Relaxed);
        })?;
        let threads = Arc::new(Threads { shared: Arc::clone(&shared), running: Mutex::new(Some(running)) });
        Ok((Self { shared, threads }, inherited))
    }

    /// Sends a reward. When it returns Ok, the event is on its way and survives the death of this process (I2);
    /// the reply holds the user's token. Takes microseconds and never waits for a network (I9).
    ///
    /// Calling again with the same request is harmless: the order number credits once (I1).
    ///
    /// # Errors
    /// [`SendError`] names the field, or says what to do. Nothing was kept.
    pub fn send_bonus(&self, request: &SendBonusRequest) -> Result<SendBonusReply, SendError> {
        let checked = reward::check(request, &self.shared.options.app_id)?;
        self.shared.send(checked)
    }

    /// Sends several: one answer a request, in order. Some may be taken and others not.
    pub fn send_bonus_batch(&self, requests: &[SendBonusRequest]) -> Vec<Result<SendBonusReply, SendError>> {
        requests.iter().map(|request| self.send_bonus(request)).collect()
    }

    /// The app that this SDK was opened for.
    pub fn app_id(&self) -> &str {
        &self.shared.options.app_id
    }

    /// Counters.
    pub fn stats(&self) -> SdkStats {
        self.shared.stats()
    }

    /// Takes no more, sends what it has and waits for brokers, at most `timeout` (and once the token store's
    /// time-out, if that is down). What is left stays in the spool for the next start; the fan-out goes on with it
    /// until that is closed, too. A second call only says what is left. Blocks.
    pub fn close(&self, timeout: Duration) -> SdkCloseReport {
        self.threads.close(timeout);
        SdkCloseReport { packs_left: self.shared.packs_in_flight() }
    }

    /// Sends what has been checked already.
    #[inline]
    pub(crate) fn send_checked(&self, checked: Checked<'_>) -> Result<SendBonusReply, SendError> {
        self.shared.send(checked)
    }

    /// Whether the rules in force have a route for it now.
    pub(crate) fn has_route(&self, activity: &str, scene: &str, bonus_type: &str) -> bool {
        self.shared.plan.load().lane(activity, scene, bonus_type, 0).is_some()
    }
}

#[async_trait]
impl SendBonus for Sdk {
    async fn send_bonus(&self, request: SendBonusRequest) -> Result<SendBonusReply, SendError> {
        Self::send_bonus(self, &request)
    }

    async fn send_bonus_batch(
        &self,
        requests: Vec<SendBonusRequest>,
    ) -> Vec<Result<SendBonusReply, SendError>> {
        Self::send_bonus_batch(self, &requests)
    }
}

impl Running {
    fn start(shared: &Arc<Shared>, store: Option<Arc<dyn TokenStore>>) -> std::io::Result<Self> {
        let pump = spawn("windfall-pump", shared, pump::run)?;
        let rules = spawn("windfall-rules", shared, |shared| shared.follow_rules())?;
        // Last: it is ended by its handle alone.
        let tokens = match (&shared.tokens, store) {
            (Some(buffer), Some(store)) => {
                Some(TokenWriter::start(Arc::clone(buffer), store, &shared.options)?)
            }
            _ => None,
        };
        Ok(Self { pump, rules, tokens })
    }
}

impl Threads {
    fn close(&self, timeout: Duration) {
        let Some(Running { pump, rules, tokens }) = self.running.lock().take() else { return };
        let shared = &self.shared;
        let started_ns = shared.clock.monotonic_ns();
        let is_over = || {
            let gone_ns = shared.clock.monotonic_ns().saturating_sub(started_ns);
            Duration::from_nanos(gone_ns) >= timeout
        };
        shared.closed.store(true, Relaxed);
        rules.thread().unpark();
        while !pump.is_finished() {
            if is_over() {
                shared.give_up.store(true, Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if pump.join().is_err() {
            tracing::error!("the pump had panicked");
        }
        if let Some(tokens) = tokens {
            tokens.close(is_over);
        }
        while !rules.is_finished() && !is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !rules.is_finished() {
            tracing::warn!(
                "a broker is slow to open a topic; the thread that waits for it ends when it answers"
            );
        } else if rules.join().is_err() {
            tracing::error!("the thread that follows the rules had panicked");
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

fn spawn(
    name: &str,
    shared: &Arc<Shared>,
    run: impl FnOnce(&Arc<Shared>) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let own = Arc::clone(shared);
    std::thread::Builder::new().name(name.into()).spawn(move || run(&own))
}

pub(crate) struct Shared {
    minter: Minter,
    pub(crate) lanes: LaneBook,
    pub(crate) plan: ArcSwap<Plan>,
    tokens: Option<Arc<TokenBuffer>>,
    spool: Spool,
    pub(crate) ready: Ready,
    pub(crate) returned: Arc<Returned>,
    pub(crate) strays: Mutex<Vec<Stray>>,
    pub(crate) closed: AtomicBool,
    pub(crate) give_up: AtomicBool,
    rules: LiveRules,
    pub(crate) fanout: Arc<Fanout>,
    pub(crate) clock: Clock,
    pub(crate) options: SdkOptions,
}

thread_local! {
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { event: Vec::new(), framed: Vec::new() }) };
}

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

struct Scratch {
    event: Vec<u8>,
    framed: Vec<u8>,
}

impl Shared {
    fn send(&self, checked: Checked<'_>) -> Result<SendBonusReply, SendError> {
        let Checked { mut event, extension } = checked;
        let plan = self.plan.load();
        let lane =
            plan.lane(event.activity, event.scene, event.bonus_type, event.user_id).ok_or_else(|| {
                SendError::NoRoute {
                    activity: event.activity.into(),
                    scene: event.scene.into(),
                    bonus_type: event.bonus_type.into(),
                }
            })?;
        let now_ms = self.clock.unix_ms();
        event.first_sent_ms = now_ms.cast_signed();
        if event.award_time_ms == 0 {
            event.award_time_ms = event.first_sent_ms;
        }
        let fields = TokenFields {
            trade_no: event.trade_no,
            user_id: event.user_id,
            app_id: event.app_id,
            activity: event.activity,
            scene: event.scene,
            bonus_type: event.bonus_type,
            amount: event.amount,
            award_time_ms: event.award_time_ms,
            description: event.description,
        };
        // Minted first: a token is worth nothing without its event, an event without a token cannot be proved.
        let token = self.minter.mint(&fields, now_ms).map_err(|error| SendError::Mint(error.to_string()))?;
        let shard = own_shard();
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.event.clear();
            let extension = extension.into_iter().flatten();
            event.encode(extension.map(|(key, value)| (key.as_str(), value.as_str())), &mut scratch.event);
            scratch.framed.clear();
            record::push_event(&mut scratch.framed, &scratch.event);
            let desk = Desk { spool: &self.spool, ready: &self.ready, closed: &self.closed, shard };
            lane.append(&desk, &scratch.framed, event.trade_no, || self.clock.monotonic_ns())
        })?;
        if let Some(tokens) = &self.tokens {
            let expires_at_ms = self.options.token_expires_at_ms(event.activity, now_ms);
            tokens.push(shard, event.user_id, event.trade_no, &token, expires_at_ms);
        }
        Ok(SendBonusReply { token })
    }

    /// Follows the rules until the SDK is closed. A thread of its own: opening a topic may wait for a broker, and
    /// neither callers nor the pump shall wait with it. Where a topic cannot be opened the old plan stays.
    fn follow_rules(&self) {
        let mut refused = None;
        while !self.closed.load(Relaxed) {
            let rules = self.rules.current();
            let now_ns = self.clock.monotonic_ns();
            let wait =
                refused.is_some_and(|(version, again_ns)| version == rules.version && now_ns < again_ns);
            if rules.version != self.plan.load().version
                && !wait
                && let Err(error) = self.take_over(&rules)
            {
                if refused.is_none_or(|(version, _)| version != rules.version) {
                    tracing::warn!(%error, version = rules.version, "rules not taken over yet; trying again");
                }
                let retry_ns = u64::try_from(RULES_RETRY.as_nanos()).unwrap_or(u64::MAX);
                refused = Some((rules.version, now_ns.saturating_add(retry_ns)));
            }
            std::thread::park_timeout(RULES_TICK);
        }
    }

    fn take_over(&self, rules: &Rules) -> Result<(), OpenError> {
        self.fanout.apply(rules)?;
        self.plan.store(Arc::new(self.lanes.plan(rules, &self.fanout)));
        Ok(())
    }

    pub(crate) fn packs_in_flight(&self) -> usize {
        let in_lanes: usize = self.lanes.all().iter().map(|lane| lane.packs_in_flight.load(Relaxed)).sum();
        in_lanes + self.strays.lock().len()
    }

    fn stats(&self) -> SdkStats {
        let usage = self.spool.usage();
        let lanes = self.lanes.all();
        let count = |pick: fn(&TokenBuffer) -> u64| self.tokens.as_deref().map_or(0, pick);
        // Its own statement: a guard in the literal below would live until its end.
        let packs_waiting = self.strays.lock().len();
        SdkStats {
            rules_version: self.plan.load().version,
            packs_waiting,
            sent: lanes.iter().map(|lane| lane.events()).sum(),
            packs_in_flight: self.packs_in_flight(),
            spool_slots: (u64::from(usage.slots_in_use), u64::from(usage.slots)),
            packs_returned: self.returned.count.load(Relaxed),
            tokens_written: count(|tokens| tokens.written.load(Relaxed)),
            tokens_waiting: self.tokens.as_deref().map_or(0, TokenBuffer::waiting),
            tokens_dropped: count(|tokens| tokens.dropped.load(Relaxed)),
            token_store_failures: count(|tokens| tokens.failures.load(Relaxed)),
        }
    }
}

fn own_shard() -> usize {
    SHARD.with(|own| match own.get() {
        Some(shard) => shard,
        None => {
            let shard = NEXT_SHARD.fetch_add(1, Relaxed);
            own.set(Some(shard));
            shard
        }
    })
}

fn open_spool(
    mode: &SpoolMode,
    options: &SdkOptions,
) -> Result<(Spool, windfall_spool::Recovered), InitError> {
    let spool = |durability| SpoolOptions {
        total_bytes: options.spool_bytes,
        // A pack of one needs a slot for one.
        slot_bytes: if options.pack_events_max == 1 { EVENT_MAX_BYTES } else { PACK_MAX_BYTES },
        slot_events: options.pack_events_max,
        durability,
    };
    Ok(match mode {
        SpoolMode::LossyMemory => {
            (Spool::memory(&spool(Durability::Process)), windfall_spool::Recovered::default())
        }
        SpoolMode::Process(root) => Spool::open(root, &spool(Durability::Process))?,
        SpoolMode::Machine(root) => Spool::open(root, &spool(Durability::Machine))?,
    })
}
