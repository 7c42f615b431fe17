//! `send.call`: the whole cost of `send_bonus`: CPU time of all threads (caller, pump, fan-out, the broker's
//! driver, the token writer) ÷ calls, from the first call until every pack is acknowledged and every token written.
//! By the typed helper, one caller at full speed, memory-mapped spool, HMAC tokens, packs of 256. Broker and token
//! store copy what they are given and do nothing else. Beside it what no sender can leave out: mint, encode, copy.

pub mod null;

use crate::measure::{Row, Unit, median, per, process_cpu_ns, scratch};
use crate::mint::FIELDS;
use anyhow::{Context, Result, ensure};
use null::{NullBroker, NullStore};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_proto::event::EventRef;
use windfall_queue_virtual::{Fanout, FanoutOptions};
use windfall_sdk::{Prize, RedPacketRain, Sdk, SdkOptions, SdkParts, SendError, SpoolMode, User};
use windfall_token::KeyRing;

const RUNS: usize = 15;
const CALLS: u64 = 200_000;
/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(10);

const RULES: &str = r#"
version = 1
types = ["cash"]
[topics.a]
broker = "a"
partitions = 8
[topics.b]
broker = "b"
partitions = 8
[queues.cash]
master = "a"
backup = "b"
ratio = 90
[[routes]]
type = "*"
queue = "cash"
[limits.global]
rate_per_s = 1
burst = 1
[limits.default]
rate_per_s = 1
burst = 1
[end]
"#;

pub fn measure(name: &'static str) -> Result<Row> {
    let directory = scratch()?;
    let (sdk, fanout) = open(SpoolMode::Process(directory.path().join("spool")))?;
    let rain = RedPacketRain::new(&sdk, FIELDS.activity, FIELDS.bonus_type)?;
    let mut caller = Caller { sdk: &sdk, rain: &rain, sent: 0, spool_full: 0 };
    let minter = KeyRing::ephemeral()?.minter(FIELDS.app_id)?;
    let bare = || {
        let mut events = Vec::with_capacity(64 << 10);
        let mut event = Vec::with_capacity(256);
        for _ in 0..CALLS {
            black_box(minter.mint(black_box(&FIELDS), 0)?);
            event.clear();
            black_box(&EVENT).encode([], &mut event);
            if events.len() + event.len() > events.capacity() {
                events.clear();
            }
            events.extend_from_slice(&event);
            black_box(&events);
        }
        Ok(())
    };
    let (mut ours_ns, mut bare_ns) = (Vec::new(), Vec::new());
    caller.run()?; // warms up
    for _ in 0..RUNS {
        ours_ns.push(cpu_ns_a_call(|| caller.run())?);
        bare_ns.push(cpu_ns_a_call(bare)?);
    }
    let (sent, spool_full) = (caller.sent, caller.spool_full);
    drop(rain);
    let report = sdk.close_blocking(CLOSE);
    let stats = sdk.stats();
    eprintln!(
        "  {spool_full} of {sent} calls came again because the spool was full, {} tokens dropped",
        stats.tokens_dropped
    );
    ensure!(fanout.close(CLOSE).undelivered == 0 && report.packs_left == 0, "packs are left: {report:?}");
    ensure!(stats.sent == sent, "{} calls are counted, not {sent}", stats.sent);
    Ok(Row::new(name, median(ours_ns), Unit::NsACall, Some(median(bare_ns))))
}

/// What the helper makes of a call.
pub const EVENT: EventRef<'_> = EventRef {
    trade_no: FIELDS.trade_no,
    user_id: FIELDS.user_id,
    device_id: "",
    app_id: FIELDS.app_id,
    activity: FIELDS.activity,
    scene: FIELDS.scene,
    bonus_type: FIELDS.bonus_type,
    amount: FIELDS.amount,
    description: FIELDS.description,
    award_time_ms: FIELDS.award_time_ms,
    first_sent_ms: 1_800_000_000_000,
    trace_id: &[],
};

fn open(spool: SpoolMode) -> Result<(Sdk, Arc<Fanout>)> {
    let rules = LiveRules::fixed(windfall_config::parse_rules(RULES, None)?);
    let brokers = ["a", "b"].map(|name| (name.to_owned(), Arc::new(NullBroker) as Arc<dyn Broker>));
    let clock = Clock::system();
    let fanout = Fanout::open(&rules.current(), brokers.into(), FanoutOptions::default(), clock.clone())?;
    let fanout = Arc::new(fanout);
    let options = SdkOptions { app_id: FIELDS.app_id.into(), ..SdkOptions::default() };
    let parts = SdkParts {
        spool,
        keys: KeyRing::ephemeral()?,
        signer: None,
        rules,
        fanout: Arc::clone(&fanout),
        tokens: Some(Arc::new(NullStore)),
        clock,
    };
    let (sdk, _) = Sdk::init(options, parts)?;
    Ok((sdk, fanout))
}

/// An activity service with one thread.
struct Caller<'a> {
    sdk: &'a Sdk,
    rain: &'a RedPacketRain,
    sent: u64,
    spool_full: u64,
}

impl Caller<'_> {
    /// Sends, and waits until all of it is gone.
    fn run(&mut self) -> Result<()> {
        let prize = Prize { amount: FIELDS.amount, description: FIELDS.description };
        for _ in 0..CALLS {
            let user = User::id(FIELDS.user_id + i64::try_from(self.sent)?);
            loop {
                match self.rain.send(1, user, 0, prize) {
                    Ok(reply) => break drop(black_box(reply)),
                    Err(SendError::SpoolFull) => {
                        self.spool_full += 1;
                        std::thread::yield_now();
                    }
                    Err(other) => return Err(other).context("send_bonus"),
                }
            }
            self.sent += 1;
        }
        loop {
            let stats = self.sdk.stats();
            let tokens = stats.tokens_written + stats.tokens_dropped;
            if stats.packs_in_flight == 0 && stats.spool_slots.0 == 0 && tokens == self.sent {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn cpu_ns_a_call(run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let before = process_cpu_ns();
    run()?;
    Ok(per(process_cpu_ns() - before, CALLS))
}
