//! The demo's own parts: brokers that can be made to fail, a token store that can be switched off, a badge downstream
//! with a book of its own. The wiring is the services' own.

use super::backends::Backends;
use crate::place;
use crate::wiring::{self, AcceptedByName, Brokers};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::block_in_place;
use windfall_connectors::fake::{FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::connector::Connector;
use windfall_edge::Health;
use windfall_ledger::Unbudgeted;
use windfall_queue_faulty::Faulty;
use windfall_reward_service::{Again, AsyncGrantOptions, ConnectorOptions, Payer, RewardOptions};
use windfall_sdk::SdkOptions;
use windfall_store::switchable::Switchable;
use windfall_token_service::TokenOptions;
use windfall_wallet::WalletOptions;

/// The app that the demo's tokens are for.
pub const APP_ID: &str = "windfall";
/// The brokers that the demo's rules name.
const BROKERS: [&str; 2] = ["a", "b"];
/// Tokens that the SDK keeps: they wait in the table in front of the token store, where a credit finds them.
const TOKENS_WAITING_MAX: usize = 32_768;
/// The connector that pays badges.
const BADGES: &str = "badges";
/// About 480 packs on their way, enough for a broker that hangs for some seconds.
const SPOOL_BYTES: u64 = 32 << 20;

/// The parts that the demo can break.
pub struct Breakable {
    /// Brokers by name.
    pub brokers: BTreeMap<String, Arc<Faulty>>,
    /// The token store.
    pub tokens: Arc<Switchable>,
    /// The slow downstream.
    pub badges: Arc<FakeDownstream>,
}

/// Where the files are of one process on a demo's data directory.
pub struct Place<'a> {
    /// The data directory.
    pub data: &'a Path,
    /// The process's own copy of rules in etcd.
    pub rules_copy: PathBuf,
    /// Its spill log.
    pub salvage: PathBuf,
    /// The book of its badge downstream.
    pub badge_book: PathBuf,
}

impl<'a> Place<'a> {
    /// The paths of the demo itself.
    pub fn of_demo(data: &'a Path) -> Self {
        Self {
            data,
            rules_copy: place::rules_copy(data),
            salvage: place::salvage(data),
            badge_book: place::badge_book(data),
        }
    }

    /// The paths of a second process that joins it.
    pub fn of_guest(data: &'a Path) -> Self {
        let own = place::guest(data);
        Self {
            data,
            rules_copy: own.join("rules-copy.toml"),
            salvage: own.join("salvage"),
            badge_book: own.join("badge.book"),
        }
    }
}

/// How the badge downstream behaves.
pub fn badge_options() -> FakeOptions {
    FakeOptions { name: BADGES.into(), ..FakeOptions::default() }
}

/// Badges are paid by their downstream, everything else by the ledger.
pub fn reward_options() -> RewardOptions {
    let guard = ConnectorOptions { timeout_ms: 150, ..ConnectorOptions::default() };
    RewardOptions {
        apps: [APP_ID.to_owned()].into(),
        tenant: APP_ID.to_owned(),
        pays: [("badge".to_owned(), Payer::Connector(BADGES.into()))].into(),
        connectors: [(BADGES.to_owned(), guard)].into(),
        ..RewardOptions::default()
    }
}

/// Opens the parts of a process, without a key ring.
pub async fn open(
    place: &Place<'_>,
    backends: &Backends,
    badges: FakeOptions,
    seed: u64,
) -> Result<(Breakable, wiring::Parts)> {
    let (clock, health) = (Clock::system(), Health::new());
    let data = place.data;
    let known = BROKERS.map(str::to_owned).to_vec();
    let (rules, rules_follower) =
        block_in_place(|| backends.rules().follow(data, place.rules_copy.clone(), known, &clock))?;
    let mut faulty = BTreeMap::new();
    let mut brokers = Brokers::new();
    for name in BROKERS {
        let broker = block_in_place(|| backends.broker(name).open(name, &place::broker(data, name)))?;
        let broker = Faulty::new(broker, seed);
        brokers.insert(name.to_owned(), Arc::clone(&broker) as _);
        faulty.insert(name.to_owned(), broker);
    }
    let tokens = Switchable::new(backends.tokens().open(data).await?);
    let badges = FakeDownstream::open(&place.badge_book, badges, clock.clone())
        .context("the badge downstream's book cannot be opened")?;
    let badges = Arc::new(badges);
    let ledger = block_in_place(|| backends.ledger().open(data, Unbudgeted::Refuse))?;
    let parts = wiring::Parts {
        rules,
        rules_follower,
        brokers,
        tokens: Arc::clone(&tokens) as _,
        tokens_are_shared: backends.tokens().is_shared(),
        keys: None,
        signing: None,
        ledger: Some(ledger),
        ledger_mark: None,
        long_delays: None,
        slots: None,
        entries: None,
        far: None,
        connectors: vec![Arc::clone(&badges) as Arc<dyn Connector>],
        clock,
        tasks: wiring::Tasks::new(health.clone()),
        health,
    };
    Ok((Breakable { brokers: faulty, tokens, badges }, parts))
}

/// How the wiring uses them, to consume these topics (none: all).
pub fn wiring_options(place: &Place<'_>, topics: Vec<String>, seed: u64) -> wiring::Options {
    wiring::Options {
        sdk: SdkOptions {
            app_id: APP_ID.into(),
            spool_bytes: SPOOL_BYTES,
            tokens_waiting_max: TOKENS_WAITING_MAX,
            ..SdkOptions::default()
        },
        data: place.data.to_owned(),
        spool: place::spool(place.data),
        rewards: reward_options(),
        token_service: TokenOptions::default(),
        wallet: WalletOptions::default(),
        async_grants: AsyncGrantOptions::default(),
        rewrite: Again::default(),
        scheduling: None,
        topics,
        // A demo pays nobody: it works without keys on real brokers, too, where its topics have names of their own.
        accepted: AcceptedByName::default(),
        consumer: windfall_consumer::Options::default(),
        salvage: place.salvage.clone(),
        keys_file: place::keys(place.data),
        jitter_seed: seed,
    }
}
