//! Controls: something is broken on purpose, and the oracle must find it.

use crate::plan::{Action, Fault, How};
use crate::rules::Change;
use crate::shop::Mood;

/// Something that is broken on purpose, which the oracle must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Control {
    /// Consumers mark a record as finished when it comes (a switch of the binary), and are killed
    Window,
    /// Senders answer before an event is in the spool (a switch of the binary), and are killed
    Spool,
    /// An entry of the archive is dropped
    Archive,
    /// The downstream system forgets whom it has paid
    Twice,
    /// The rules have no limits, though the oracle believes that coins have a low one
    Limits,
}

impl Control {
    /// The switch of `WINDFALL_SABOTAGE` that it throws.
    pub const fn switch(self) -> Option<&'static str> {
        match self {
            Self::Window => Some("window"),
            Self::Spool => Some("spool"),
            Self::Archive | Self::Twice | Self::Limits => None,
        }
    }

    /// The damage that it must show as.
    pub const fn shows_as(self) -> &'static str {
        match self {
            Self::Window | Self::Spool | Self::Archive => "lost",
            Self::Twice => "double",
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
            // Cash waits in the gateways that are killed.
            Self::Spool => {
                vec![freeze(0, "kafka"), freeze(2, "kafka2"), kill(10, "gateway-0"), kill(13, "gateway-1")]
            }
            // Coins come faster than the limit that the oracle believes in.
            Self::Archive | Self::Limits => Vec::new(),
            Self::Twice => vec![fault(2, 5, 8, Action::Downstream(Mood::Silent))],
        }
    }
}
