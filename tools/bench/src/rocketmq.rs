//! `rocketmq.send` and `rocketmq.receive`: events per second to and from a real RocketMQ by the driver, each event a
//! record of its own, in batches with a report or an acknowledgement each. Beside them what a careful user would write
//! by hand over the same generated stubs: one loop per client that sends 128 messages per request and has four requests
//! in flight, or receives up to 32 and acknowledges them together. In `more` the simplest loop: one message per
//! request, and its answer before the next. Two clients on each side, private server, alternating rounds, each of
//! `rocketmq.receive` from a topic of its own that was filled before.
//!
//! `rocketmq.receive` also runs the official client (`tools/interop/rocketmq`) where it has been built, in the same
//! rounds, and prints its rate.

mod bare;
mod ours;
mod peer;

use self::bare::{Bare, Loop};
use self::ours::Ours;
use crate::measure::{Row, Unit, median, per};
use anyhow::{Context, Result};
use bytes::Bytes;
use std::time::Duration;
use windfall_servers::{Private, RocketMqOptions};

const ROUNDS: usize = 7;
const CLIENTS: usize = 2;
const QUEUES: u32 = 8;
const EVENT_BYTES: usize = 200;
/// The number of events in a round: each side is kept busy for about a second.
const OURS: u64 = 40_000;
const BARE: u64 = 40_000;
const ONE_BY_ONE: u64 = 2_000;
const PEER: u64 = 1_000;
const GROUP: &str = "bench";

pub fn send(name: &'static str) -> Result<Row> {
    let server = Private::start(RocketMqOptions::default())?;
    let runtime = runtime()?;
    let ours = Ours::open(&server)?;
    runtime.block_on(ours.prepare("send"))?;
    let bare = Bare::new(server.url());
    let [mut ours_per_s, mut bare_per_s, mut one_by_one_per_s] = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        note(round, &mut ours_per_s, OURS, ours.send("send", OURS)?);
        let took = runtime.block_on(bare.send("send", BARE, Loop::Together))?;
        note(round, &mut bare_per_s, BARE, took);
        let took = runtime.block_on(bare.send("send", ONE_BY_ONE, Loop::OneByOne))?;
        note(round, &mut one_by_one_per_s, ONE_BY_ONE, took);
    }
    Ok(Row::new(name, median(ours_per_s), Unit::PerSecond, Some(median(bare_per_s)))
        .with("bare_one_by_one_per_s", median(one_by_one_per_s)))
}

pub fn receive(name: &'static str) -> Result<Row> {
    let server = Private::start(RocketMqOptions::default())?;
    let runtime = runtime()?;
    let ours = Ours::open(&server)?;
    let peer = peer::program();
    let bare = Bare::new(server.url());
    let [mut ours_per_s, mut bare_per_s, mut one_by_one_per_s, mut peer_per_s] = [const { Vec::new() }; 4];
    for round in 0..=ROUNDS {
        let filled = |who: &str, events: u64| -> Result<String> {
            let topic = format!("receive-{who}-{round}");
            runtime.block_on(ours.prepare(&topic))?;
            ours.send(&topic, events)?;
            Ok(topic)
        };
        let topic = filled("ours", OURS)?;
        note(round, &mut ours_per_s, OURS, runtime.block_on(ours.receive(&topic, OURS))?);
        let topic = filled("bare", BARE)?;
        let took = runtime.block_on(bare.receive(&topic, BARE, Loop::Together))?;
        note(round, &mut bare_per_s, BARE, took);
        let topic = filled("one", ONE_BY_ONE)?;
        let took = runtime.block_on(bare.receive(&topic, ONE_BY_ONE, Loop::OneByOne))?;
        note(round, &mut one_by_one_per_s, ONE_BY_ONE, took);
        if let Some(peer) = &peer {
            let topic = filled("peer", PEER)?;
            note(round, &mut peer_per_s, PEER, peer::receive(peer, server.url(), &topic)?);
        }
    }
    let (ours, bare) = (median(ours_per_s), median(bare_per_s));
    match peer_per_s.is_empty() {
        true => {
            eprintln!("  the official client is not built: cargo build --release in tools/interop/rocketmq")
        }
        false => {
            let peer = median(peer_per_s);
            eprintln!("  the official client: {peer:.0} a second; ours is {:.1} times as fast", ours / peer);
        }
    }
    Ok(Row::new(name, ours, Unit::PerSecond, Some(bare))
        .with("bare_one_by_one_per_s", median(one_by_one_per_s)))
}

/// The first round warms up.
fn note(round: usize, rates_per_s: &mut Vec<f64>, events: u64, took: Duration) {
    let rate_per_s = per(events, 1) / took.as_secs_f64();
    if round > 0 {
        rates_per_s.push(rate_per_s);
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(CLIENTS).enable_all().build();
    runtime.context("the threads of a loop by hand")
}

/// An event's bytes: its number, and what makes it as large as one.
fn event(number: u64) -> [u8; EVENT_BYTES] {
    let mut bytes = [7; EVENT_BYTES];
    if let Some(start) = bytes.first_chunk_mut() {
        *start = number.to_be_bytes();
    }
    bytes
}

/// The set of events that have come.
struct Seen {
    each: Vec<bool>,
    left: u64,
}

impl Seen {
    fn none_of(events: u64) -> Result<Self> {
        Ok(Self { each: vec![false; usize::try_from(events)?], left: events })
    }

    fn add(&mut self, payload: &Bytes) -> Result<()> {
        let number = payload.first_chunk().context("a record without a number")?;
        let number = usize::try_from(u64::from_be_bytes(*number))?;
        let seen = self.each.get_mut(number).context("a record of another round")?;
        self.left -= u64::from(!std::mem::replace(seen, true));
        Ok(())
    }
}
