//! The SDK's handle: `send_bonus`, init and close.

use crate::error::{InitError, SendError};
use crate::lane::{ClosedPack, Desk, LaneKey, Ready};
use crate::options::{SdkOptions, SpoolMode};
use crate::plan::{LaneBook, Plan};
use crate::pump::{self, Returned};
use crate::reward::{self, Checked};
use crate::tokens::{TokenBuffer, TokenWriter};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_proto::v1::{SendBonusReply, SendBonusRequest};
use windfall_proto::{event, order, record};
use windfall_queue::virtual_queue::{Clock, Fanout, Side};
use windfall_spool::{Durability, RecoveredPack, Spool, SpoolOptions};
use windfall_store::contract::TokenStore;
use windfall_token::{KeyRing, Minter, TokenFields};

/// Bytes of events in one pack.
const PACK_BYTES: u32 = 64 << 10;

/// What an SDK is wired to.
pub struct SdkParts {
    /// Its primary key mints.
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
#[derive(Clone)]
pub struct Sdk {
    shared: Arc<Shared>,
    threads: Arc<Mutex<Option<Threads>>>,
}

struct Threads {
    pump: JoinHandle<()>,
    tokens: Option<TokenWriter>,
}

/// What an earlier process left in the spool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inherited {
    /// Packs that are being sent again.
    pub packs: usize,
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
    /// Packs that no broker has yet.
    pub packs_in_flight: usize,
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
        let (spool, recovered) = open_spool(&options)?;
        let shared = Arc::new(Shared {
            minter,
            lanes: LaneBook::new(options.shards, options.pack_events_max),
            plan: ArcSwap::default(),
            tokens: parts.tokens.is_some().then(|| Arc::new(TokenBuffer::new(&options))),
            spool,
            ready: Ready::default(),
            returned: Returned::default(),
            returns: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            give_up: AtomicBool::new(false),
            rules: parts.rules,
            fanout: parts.fanout,
            clock: parts.clock,
            options,
        });
        shared.follow_rules();
        let mut inherited = Inherited {
            torn_entries: recovered.torn_entries,
            set_aside: recovered.unrecovered.iter().map(|left| format!("{left:?}")).collect(),
            ..Inherited::default()
        };
        for pack in recovered.packs {
            shared.inherit(pack, &mut inherited);
        }
        let tokens = match (&shared.tokens, parts.tokens) {
            (Some(buffer), Some(store)) => {
                Some(TokenWriter::start(Arc::clone(buffer), store, &shared.options)?)
            }
            _ => None,
        };
        let own = Arc::clone(&shared);
        let pump = std::thread::Builder::new().name("windfall-pump".into()).spawn(move || pump::run(&own))?;
        let threads = Arc::new(Mutex::new(Some(Threads { pump, tokens })));
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

    /// Takes no more, sends what it has and waits for brokers, at most `timeout`. What is left stays in the spool
    /// for the next start. A second call does nothing. Blocks.
    pub fn close(&self, timeout: Duration) -> SdkCloseReport {
        let Some(threads) = self.threads.lock().take() else { return SdkCloseReport::default() };
        let started_ns = self.shared.clock.monotonic_ns();
        self.shared.closed.store(true, Relaxed);
        while !threads.pump.is_finished() {
            let gone_ns = self.shared.clock.monotonic_ns().saturating_sub(started_ns);
            if Duration::from_nanos(gone_ns) >= timeout {
                self.shared.give_up.store(true, Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if threads.pump.join().is_err() {
            tracing::error!("the pump had panicked");
        }
        if let Some(tokens) = threads.tokens {
            tokens.close();
        }
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

pub(crate) struct Shared {
    minter: Minter,
    pub(crate) lanes: LaneBook,
    plan: ArcSwap<Plan>,
    tokens: Option<Arc<TokenBuffer>>,
    spool: Spool,
    pub(crate) ready: Ready,
    pub(crate) returned: Returned,
    pub(crate) returns: AtomicU64,
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
            event.encode(extension.entries(), &mut scratch.event);
            scratch.framed.clear();
            record::push_event(&mut scratch.framed, &scratch.event);
            let desk = Desk { spool: &self.spool, ready: &self.ready, closed: &self.closed, shard };
            lane.append(&desk, &scratch.framed, event.trade_no, || self.clock.monotonic_ns())
        })?;
        if let Some(tokens) = &self.tokens {
            tokens.push(shard, event.user_id, event.trade_no, &token);
        }
        Ok(SendBonusReply { token })
    }

    /// Takes over rules that have changed. Where a topic cannot be opened, the old plan stays and it is tried
    /// again at the next look.
    pub(crate) fn follow_rules(&self) {
        let rules = self.rules.current();
        if self.plan.load().version == rules.version {
            return;
        }
        match self.fanout.apply(&rules) {
            Ok(()) => self.plan.store(Arc::new(self.lanes.plan(&rules, &self.fanout))),
            Err(error) => tracing::warn!(%error, version = rules.version, "rules not taken over yet"),
        }
    }

    pub(crate) fn packs_in_flight(&self) -> usize {
        self.lanes.all().iter().map(|lane| lane.packs_in_flight.load(Relaxed)).sum()
    }

    /// Sends a pack of an earlier process again. Its label says where it belongs; if the rules no longer have
    /// that queue, its first event is routed anew.
    fn inherit(&self, pack: RecoveredPack, inherited: &mut Inherited) {
        let Some((key, trade_no)) = self.place(&pack) else {
            inherited.set_aside.push(format!(
                "a pack of {} events, labelled {:?}: no route takes it; it stays in the spool",
                pack.count(),
                String::from_utf8_lossy(pack.label()),
            ));
            return;
        };
        inherited.packs += 1;
        inherited.events += u64::from(pack.count());
        let closed: ClosedPack = self.lanes.lane(key).readopt(pack, trade_no);
        self.ready.push(closed);
    }

    fn place(&self, pack: &RecoveredPack) -> Option<(LaneKey, Box<str>)> {
        let label = std::str::from_utf8(pack.label()).ok()?;
        let mut parts = label.split('\0');
        let (queue_name, side, bonus_type) = (parts.next()?, parts.next()?, parts.next()?);
        let side = if side == "b" { Side::Backup } else { Side::Master };
        let mut reader = windfall_proto::wire::Reader::new(pack.events());
        let (_, first) = reader.field().ok()?;
        let first = windfall_proto::wire::blob(first, 0).ok()?;
        let first = event::EventRef::parse(first).ok()?;
        let trade_no: Box<str> = first.trade_no.into();
        if self.rules.current().queues.contains_key(queue_name)
            && let Some(queue) = self.fanout.queue(queue_name)
        {
            let queue_name = queue_name.to_owned();
            return Some((LaneKey { queue_name, queue, side, bonus_type: bonus_type.to_owned() }, trade_no));
        }
        let plan = self.plan.load();
        let lane = plan.lane(first.activity, first.scene, bonus_type, first.user_id)?;
        Some((lane.key.clone(), trade_no))
    }

    fn stats(&self) -> SdkStats {
        let usage = self.spool.usage();
        let lanes = self.lanes.all();
        let count = |pick: fn(&TokenBuffer) -> u64| self.tokens.as_deref().map_or(0, pick);
        SdkStats {
            sent: lanes.iter().map(|lane| lane.events()).sum(),
            packs_in_flight: self.packs_in_flight(),
            spool_slots: (u64::from(usage.slots_in_use), u64::from(usage.slots)),
            packs_returned: self.returns.load(Relaxed),
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

fn open_spool(options: &SdkOptions) -> Result<(Spool, windfall_spool::Recovered), InitError> {
    let spool = |durability| SpoolOptions {
        total_bytes: options.spool_bytes,
        // A pack of one needs a slot for one.
        slot_bytes: if options.pack_events_max == 1 { 8 << 10 } else { PACK_BYTES },
        slot_events: options.pack_events_max,
        durability,
    };
    Ok(match &options.spool {
        SpoolMode::Memory => {
            (Spool::memory(&spool(Durability::Process)), windfall_spool::Recovered::default())
        }
        SpoolMode::Process(root) => Spool::open(root, &spool(Durability::Process))?,
        SpoolMode::Machine(root) => Spool::open(root, &spool(Durability::Machine))?,
    })
}
