//! The SDK's handle: `send_bonus`, init and close.

use crate::error::InitError;
use crate::lane::{AppendContext, NewEvent, Ready};
use crate::minting::Minting;
use crate::options::{EVENT_MAX_BYTES, PACK_MAX_BYTES, SdkOptions, SpoolMode};
use crate::plan::{LaneTable, Plan};
use crate::pump::Returned;
use crate::reward::{self, Checked};
use crate::stats::SdkStats;
use crate::threads::Threads;
use crate::tokens::TokenBuffer;
use crate::unrouted::UnroutedPack;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use windfall_config::{FileSource, LiveRules};
use windfall_contract::Clock;
use windfall_contract::broker::OpenError;
use windfall_contract::rules::Rules;
use windfall_contract::tokens::TokenStore;
use windfall_proto::order::Invalid;
use windfall_proto::send::{SendBonus, SendError};
use windfall_proto::v1::{SendBonusReply, SendBonusRequest};
use windfall_proto::{event, order, record};
use windfall_queue_virtual::{Fanout, Shares, ThreadHealth, TopicStatus};
use windfall_signing::{RingFile, Signer};
use windfall_spool::{Durability, Spool, SpoolOptions};
use windfall_token::{KeyRing, KeyRingFile, NoPrimary, TokenFields};

/// The pause between two looks at the rules: far below the second within which they must be in force.
const RULES_TICK: Duration = Duration::from_millis(50);
/// The pause between two looks at the files of keys.
const RING_TICK: Duration = Duration::from_secs(5);
/// The pause between two tries to take over rules that the fan-out refuses.
const RULES_RETRY: Duration = Duration::from_secs(1);

/// The parts that an SDK is wired to.
pub struct SdkParts {
    /// Where events wait until a broker has them.
    pub spool: SpoolMode,
    /// The ring whose primary key mints; [`Sdk::set_keys`] replaces it.
    pub keys: KeyRing,
    /// Signs records; `None` where consumers take unsigned ones.
    pub signer: Option<Signer>,
    /// Queues and routes, as they change.
    pub rules: LiveRules,
    /// Sends records. The caller closes it, after [`Sdk::close`].
    pub fanout: Arc<Fanout>,
    /// The store that keeps tokens for wallets; `None` where there is none.
    pub tokens: Option<Arc<dyn TokenStore>>,
    /// The clock.
    pub clock: Clock,
}

/// The handle by which an activity service sends rewards. It is cheap to clone, and any number of threads may call it.
///
/// [`close`](Self::close) it before the last handle goes. Dropping the last handle stops the threads without
/// waiting for brokers; on a runtime it does not block at all.
#[derive(Clone)]
pub struct Sdk {
    // Dropped before the threads, so that these let go of it last.
    shared: Arc<Shared>,
    threads: Arc<Threads>,
    inherited: Arc<Inherited>,
}

/// What an earlier process left in the spool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inherited {
    /// Packs that are being sent again.
    pub packs: usize,
    /// The part of these packs that no route takes now: they are sent when the rules have one.
    pub waiting: usize,
    /// Events in them.
    pub events: u64,
    /// Entries that were torn: their calls never returned Ok.
    pub torn_entries: u64,
    /// Paths that could not be read and were set aside, each with the reason. An operator must look at them.
    pub set_aside: Vec<String>,
}

/// The packs that `close` left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SdkCloseReport {
    /// Packs that wait in the spool for the next start (with a spool in memory: that are lost).
    pub packs_left: usize,
}

impl Sdk {
    /// Opens the spool, takes over what earlier processes left in it, and starts the pump. It does not wait for
    /// brokers: while they are away, events wait in the spool.
    ///
    /// # Errors
    /// [`InitError`]; nothing is left running.
    pub fn init(options: SdkOptions, parts: SdkParts) -> Result<(Self, Inherited), InitError> {
        Self::open(options, parts, None)
    }

    /// [`init`](Self::init). With `owned`, closing the SDK closes the fan-out among its parts and ends the watching of
    /// its rules as well.
    pub(crate) fn open(
        options: SdkOptions,
        parts: SdkParts,
        owned: Option<Owned>,
    ) -> Result<(Self, Inherited), InitError> {
        if let Some(wrong) = options.out_of_range() {
            return Err(InitError::Option(wrong));
        }
        order::check_name(&options.app_id).map_err(|why| InitError::Option(format!("app_id {why}")))?;
        let revocations = &parts.rules.current().revocations;
        let minting = Minting::open(&parts.keys, &options, parts.clock.clone(), revocations)?;
        // Another tenant's signature would not be verified.
        let signer = parts.signer.map(|signer| signer.for_tenant(&options.app_id));
        let (spool, recovered) = open_spool(&parts.spool, &options)?;
        let slots = usize::try_from(spool.usage().slots).unwrap_or(usize::MAX);
        let shared = Arc::new(Shared {
            minting,
            signer,
            shares: Shares::new(slots),
            lanes: LaneTable::new(options.shards, options.pack_events_max),
            plan: ArcSwap::default(),
            tokens: parts.tokens.is_some().then(|| Arc::new(TokenBuffer::new(&options))),
            spool,
            ready: Ready::default(),
            returned: Arc::default(),
            unrouted: Mutex::default(),
            refused: AtomicU64::new(0),
            pump_health: ThreadHealth::default(),
            rules_health: ThreadHealth::default(),
            closed: AtomicBool::new(false),
            give_up: AtomicBool::new(false),
            rules: parts.rules,
            owned: Mutex::new(owned),
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
        let threads = Arc::new(Threads::start(&shared, parts.tokens)?);
        let sdk = Self { shared, threads, inherited: Arc::new(inherited.clone()) };
        Ok((sdk, inherited))
    }

    /// What an earlier process left in the spool, as this one found it at its start.
    pub fn inherited(&self) -> &Inherited {
        &self.inherited
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

    /// Sends several rewards and returns one answer for each request, in order. Some may be taken and others not.
    pub fn send_bonus_batch(&self, requests: &[SendBonusRequest]) -> Vec<Result<SendBonusReply, SendError>> {
        requests.iter().map(|request| self.send_bonus(request)).collect()
    }

    /// Takes over a changed ring. A new primary key mints after [`SdkOptions::mint_after_ms`], so that whoever judges tokens
    /// can take the ring over first; until then the key so far mints, unless this ring or the rules say that it is no good
    /// any more. Calls that are under way end with the key that they began with. An SDK that a [builder](Self::builder)
    /// opened with a key file follows that file by itself.
    ///
    /// # Errors
    /// [`NoPrimary`]; the key that mints stays, and none waits to mint any more.
    pub fn set_keys(&self, keys: &KeyRing) -> Result<(), NoPrimary> {
        self.shared.set_keys(keys)
    }

    /// The app that this SDK was opened for.
    pub fn app_id(&self) -> &str {
        &self.shared.options.app_id
    }

    /// How the outbox of each topic is doing, for readiness and reports.
    pub fn topics(&self) -> Vec<TopicStatus> {
        self.shared.fanout.topics()
    }

    /// The counters since the start.
    pub fn stats(&self) -> SdkStats {
        self.shared.stats()
    }

    /// Takes no more, sends what it has and waits for brokers, at most `timeout` (and once the token store's
    /// time-out, if that is down). What is left stays in the spool for the next start. An SDK of a
    /// [builder](Self::builder) closes its queues as well; the fan-out of [`SdkParts`] goes on with what is left until
    /// its owner closes it. A second call only says what is left.
    ///
    /// Dropped before it is ready, the SDK closes all the same.
    pub async fn close(&self, timeout: Duration) -> SdkCloseReport {
        let (done, closed) = tokio::sync::oneshot::channel();
        let own = self.clone();
        let closing = std::thread::Builder::new().name("windfall-close".into());
        let spawned = closing.spawn(move || {
            own.close_blocking(timeout);
            // Nobody listens any more where the call was dropped.
            done.send(()).ok();
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread can be started to close the SDK: this one waits");
            return self.close_blocking(timeout);
        }
        if closed.await.is_err() {
            tracing::error!("the thread that closes the SDK had panicked");
        }
        self.close_report()
    }

    /// [`close`](Self::close) for callers without a runtime. Blocks.
    pub fn close_blocking(&self, timeout: Duration) -> SdkCloseReport {
        self.threads.close(timeout);
        self.close_report()
    }

    fn close_report(&self) -> SdkCloseReport {
        SdkCloseReport { packs_left: self.shared.packs_in_flight() }
    }

    /// Sends a reward that has been checked already.
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

/// What an SDK of a builder opened for itself: the fan-out among its parts, the watcher of its rules, and its signing keys.
pub(crate) struct Owned {
    pub(crate) rules_source: Option<FileSource>,
    /// The file of the key ring, which the thread that follows the rules follows, too.
    pub(crate) keys_file: Option<KeyRingFile>,
    /// The file of the signing keys, which the thread that follows the rules follows, too.
    pub(crate) ring_file: Option<RingFile>,
}

pub(crate) struct Shared {
    minting: Minting,
    pub(crate) signer: Option<Signer>,
    pub(crate) lanes: LaneTable,
    pub(crate) plan: ArcSwap<Plan>,
    pub(crate) tokens: Option<Arc<TokenBuffer>>,
    spool: Spool,
    /// The shares, which say how many slots of the spool each queue may have.
    pub(crate) shares: Arc<Shares>,
    pub(crate) ready: Ready,
    pub(crate) returned: Arc<Returned>,
    pub(crate) unrouted: Mutex<VecDeque<UnroutedPack>>,
    refused: AtomicU64,
    pub(crate) pump_health: ThreadHealth,
    pub(crate) rules_health: ThreadHealth,
    pub(crate) closed: AtomicBool,
    pub(crate) give_up: AtomicBool,
    rules: LiveRules,
    owned: Mutex<Option<Owned>>,
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
        let Checked { mut event, extension, not_before_ms } = checked;
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
        let early_ms = not_before_ms.cast_unsigned().saturating_sub(now_ms);
        if early_ms > self.options.not_before_ahead_max_ms {
            let max = now_ms.saturating_add(self.options.not_before_ahead_max_ms).cast_signed();
            return Err(SendError::invalid("not_before_ms", Invalid::Range { value: not_before_ms, max }));
        }
        let latest_ms = now_ms.saturating_add(self.options.award_time_ahead_max_ms).cast_signed();
        if event.award_time_ms > latest_ms {
            let why = Invalid::Range { value: event.award_time_ms, max: latest_ms };
            return Err(SendError::invalid("award_time_ms", why));
        }
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
        let minted = self.minting.minter().mint(&fields, now_ms);
        let token = minted.map_err(|error| SendError::Mint(error.to_string()))?;
        let shard = own_shard();
        SCRATCH
            .with_borrow_mut(|scratch| {
                scratch.event.clear();
                let extension = extension.into_iter().flatten();
                event
                    .encode(extension.map(|(key, value)| (key.as_str(), value.as_str())), &mut scratch.event);
                event::put_not_before(&mut scratch.event, not_before_ms);
                scratch.framed.clear();
                record::push_event(&mut scratch.framed, &scratch.event);
                let context = AppendContext {
                    spool: &self.spool,
                    shares: &self.shares,
                    ready: &self.ready,
                    closed: &self.closed,
                    shard,
                };
                let new = NewEvent {
                    framed: &scratch.framed,
                    trade_no: event.trade_no,
                    not_before_ms: if early_ms > 0 { not_before_ms } else { 0 },
                };
                lane.append(&context, &new, || self.clock.monotonic_ns())
            })
            .inspect_err(|error| {
                if matches!(error, SendError::SpoolFull | SendError::QueueFull { .. }) {
                    self.refused.fetch_add(1, Relaxed);
                }
            })?;
        if let Some(tokens) = &self.tokens {
            // A token outlives the wait of its reward.
            let arrives_ms = now_ms.saturating_add(early_ms);
            let expires_at_ms = self.options.token_expires_at_ms(event.activity, arrives_ms);
            tokens.push(shard, &event, &token, expires_at_ms);
        }
        Ok(SendBonusReply { token })
    }

    /// Follows the rules until the SDK is closed. Topics are opened in the background by the fan-out.
    pub(crate) fn follow_rules(&self) {
        let mut refused = None;
        let ring_tick_ns = u64::try_from(RING_TICK.as_nanos()).unwrap_or(u64::MAX);
        let mut look_ns = self.clock.monotonic_ns().saturating_add(ring_tick_ns);
        while !self.closed.load(Relaxed) {
            let rules = self.rules.current();
            let now_ns = self.clock.monotonic_ns();
            self.minting.look(&rules.revocations);
            if now_ns >= look_ns {
                look_ns = now_ns.saturating_add(ring_tick_ns);
                self.look_at_keys();
                self.look_at_ring();
            }
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

    fn set_keys(&self, keys: &KeyRing) -> Result<(), NoPrimary> {
        self.minting.take_over(keys, &self.rules.current().revocations)
    }

    /// Takes over a key ring that has changed in the file of a builder's SDK.
    fn look_at_keys(&self) {
        let mut owned = self.owned.lock();
        let Some(file) = owned.as_mut().and_then(|owned| owned.keys_file.as_mut()) else { return };
        let told = file.look(|ring| self.set_keys(&ring).map_err(|error| error.to_string()));
        match told {
            None => {}
            Some(Ok(())) => tracing::info!("the key ring is taken over"),
            Some(Err(why)) => tracing::warn!(why, "the key ring cannot be taken over; the keys so far stay"),
        }
    }

    /// Takes over signing keys that have changed in the file of a builder's SDK.
    fn look_at_ring(&self) {
        let mut owned = self.owned.lock();
        let Some(file) = owned.as_mut().and_then(|owned| owned.ring_file.as_mut()) else { return };
        match file.look() {
            None => {}
            Some(Ok(())) => tracing::info!("the signing keys are taken over"),
            Some(Err(why)) => tracing::warn!(why, "the signing keys cannot be read; those so far stay"),
        }
    }

    fn take_over(&self, rules: &Rules) -> Result<(), OpenError> {
        self.fanout.apply(rules)?;
        self.fanout.divide(&self.shares, rules);
        self.plan.store(Arc::new(self.lanes.plan(rules, &self.fanout)));
        Ok(())
    }

    /// Closes what the SDK opened for itself. Blocks.
    pub(crate) fn close_owned(&self, timeout: Duration) {
        let Some(Owned { rules_source, .. }) = self.owned.lock().take() else { return };
        self.fanout.close(timeout);
        if let Some(source) = rules_source {
            source.close();
        }
    }

    pub(crate) fn packs_in_flight(&self) -> usize {
        let in_lanes: usize = self.lanes.all().iter().map(|lane| lane.packs_in_flight.load(Relaxed)).sum();
        in_lanes + self.unrouted.lock().len()
    }

    fn stats(&self) -> SdkStats {
        let usage = self.spool.usage();
        let lanes = self.lanes.all();
        let count = |pick: fn(&TokenBuffer) -> u64| self.tokens.as_deref().map_or(0, pick);
        let tokens_health = self.tokens.as_deref().map(|tokens| &tokens.health);
        let threads = [Some(&self.pump_health), Some(&self.rules_health), tokens_health];
        let failing = threads.into_iter().flatten().filter(|health| health.is_failing()).count();
        // Its own statement: a guard in the literal below would live until its end.
        let packs_waiting = self.unrouted.lock().len();
        SdkStats {
            rules_version: self.plan.load().version,
            packs_waiting,
            sent: lanes.iter().map(|lane| lane.events()).sum(),
            packs_in_flight: self.packs_in_flight(),
            spool_slots: (u64::from(usage.slots_in_use), u64::from(usage.slots)),
            refused: self.refused.load(Relaxed),
            pump_panics: self.pump_health.panics(),
            rules_panics: self.rules_health.panics(),
            tokens_panics: tokens_health.map_or(0, ThreadHealth::panics),
            failing_threads: u64::try_from(failing).unwrap_or(u64::MAX),
            packs_returned: self.returned.count.load(Relaxed),
            minting_key: u64::from(self.minting.minter().key().0),
            signing_key: self.signer.as_ref().and_then(Signer::key).map_or(0, u64::from),
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
        // A pack that holds one event needs a slot for one event.
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
