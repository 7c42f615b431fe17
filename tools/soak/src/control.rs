//! Controls: something is broken on purpose, and the oracle must find it.

use crate::plan::{Action, Fault, How};
use crate::rules::Change;
use crate::shop::Mood;

/// Something that is broken on purpose, which the oracle must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Control {
    /// Consumers mark a record as finished when it comes (a switch of the binary), and are killed
    Window,
    /// Consumers finish a record before the queue has acknowledged its copy (a switch of the binary), and are killed
    Copy,
    /// Consumers do not sync the salvage file (a switch of the binary), and are killed as if their machine had ended
    Salvage,
    /// Senders answer before an event is in the spool (a switch of the binary), and are killed
    Spool,
    /// An entry of the archive is dropped
    Archive,
    /// Callbacks of timers are dropped
    Callback,
    /// The downstream system forgets whom it has paid
    Twice,
    /// The rules have no limits, though the oracle believes that coins have a low one
    Limits,
    /// Consumers of the task queue believe that they have acknowledged jobs for which they have not asked
    Acknowledge,
    /// Publishers give jobs no time to live, which the oracle does not know
    Expire,
    /// Jobs leave out what they have missed, which the oracle does not know, and Redis is away for long
    Misfire,
    /// At-most-once jobs are made as at-least-once ones, and some of their runs fail
    Repeat,
}

impl Control {
    /// The switch of `WINDFALL_SABOTAGE` that it throws.
    pub const fn switch(self) -> Option<&'static str> {
        match self {
            Self::Window => Some("window"),
            Self::Copy => Some("copy"),
            Self::Salvage => Some("salvage"),
            Self::Spool => Some("spool"),
            Self::Archive
            | Self::Callback
            | Self::Twice
            | Self::Limits
            | Self::Acknowledge
            | Self::Expire
            | Self::Misfire
            | Self::Repeat => None,
        }
    }

    /// Whether it needs the library that forgets what was not synced.
    pub const fn forgets(self) -> bool {
        matches!(self, Self::Salvage)
    }

    /// The damage that it must show as.
    pub const fn shows_as(self) -> &'static str {
        match self {
            Self::Window
            | Self::Copy
            | Self::Salvage
            | Self::Spool
            | Self::Archive
            | Self::Callback
            | Self::Expire
            | Self::Misfire => "lost",
            Self::Acknowledge => "after_cancel",
            Self::Twice | Self::Repeat => "double",
            Self::Limits => "over_limit",
        }
    }

    /// The faults under which it must show: a control proves something only where it is given the occasion.
    pub fn plan(self) -> Vec<Fault> {
        let fault = |lane, at_s: u64, for_s: u64, action| Fault {
            lane,
            at_ms: at_s * 1_000,
            for_ms: for_s * 1_000,
            action,
        };
        let kill = |at_s, name| fault(1, at_s, 1, Action::Process(name, How::Kill));
        let freeze = |lane, name| fault(lane, 6, 12, Action::Server(name, How::Freeze));
        match self {
            // Coins wait in the consumers that are killed.
            Self::Window => vec![
                fault(2, 5, 20, Action::Rules(Change::Pause)),
                kill(10, "consumer-0"),
                kill(14, "consumer-1"),
                kill(18, "consumer-2"),
            ],
            // The copies of coins wait for brokers that are away,
            Self::Copy => copies_without_brokers(12_500),
            // and are in the salvage file some seconds later.
            Self::Salvage => copies_without_brokers(19_000),
            // Cash waits in the gateways that are killed.
            Self::Spool => {
                vec![freeze(0, "kafka"), freeze(2, "kafka2"), kill(10, "gateway-0"), kill(13, "gateway-1")]
            }
            // Coins come faster than the limit that the oracle believes in.
            Self::Archive
            | Self::Callback
            | Self::Limits
            | Self::Acknowledge
            | Self::Expire
            | Self::Repeat => Vec::new(),
            // Longer than occurrences may be late.
            Self::Misfire => vec![fault(0, 6, 25, Action::Server("redis", How::Kill))],
            Self::Twice => vec![fault(2, 5, 8, Action::Downstream(Mood::Silent))],
        }
    }
}

/// Coins that wait in the consumers must all be copied, to queues whose brokers are away, while the broker that they came
/// from hears that they are finished. The consumers are killed at this time.
fn copies_without_brokers(killed_ms: u64) -> Vec<Fault> {
    let fault = |lane, at_ms, for_ms, action| Fault { lane, at_ms, for_ms, action };
    let kill = |lane, name| fault(lane, killed_ms, 1_000, Action::Process(name, How::Kill));
    vec![
        fault(0, 9_500, 15_000, Action::Server("kafka", How::Kill)),
        fault(1, 9_500, 15_000, Action::Server("kafka2", How::Kill)),
        fault(2, 4_000, 6_000, Action::Rules(Change::Pause)),
        fault(3, 8_000, 22_000, Action::Rules(Change::Route)),
        fault(4, 8_500, 22_000, Action::Rules(Change::Divert)),
        kill(5, "consumer-0"),
        kill(6, "consumer-1"),
        kill(7, "consumer-2"),
    ]
}
