//! The schedule of faults, which the seed and the length of a run decide.

use crate::draw::{Deck, Draw};
use crate::rules::Change;
use crate::shop::Mood;
use std::fmt;

/// A kind of fault, as `--faults` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Kill a server or a process with SIGKILL, and start it again after seconds
    Kill,
    /// Stop a server or a process where it is (SIGSTOP), and let it go on after seconds
    Freeze,
    /// Stop a server or a process in order, and start it again
    Restart,
    /// Kill a process while a server is away, and start it at once
    Start,
    /// Keep a server away for longer than three times the longest delay of the rules
    Outage,
    /// Fill the disk under a spool or a salvage file (needs the right to mount a tmpfs)
    Disk,
    /// Change limits, fuses, ratios and routes
    Rules,
    /// Add, remove and move topics
    Topics,
    /// Restart a process with a clock that is ahead or behind (needs a C compiler)
    Clock,
    /// Make the downstream system late, silent, lying, busy or absent
    Downstream,
    /// Restart all processes, one after another
    Rolling,
    /// Kill a process whose replacement has other files; later a third process adopts what it left
    Gone,
}

/// The lanes, which do faults side by side: each lane does one fault at a time.
const LANES: [&[Kind]; 3] = [
    &[Kind::Kill, Kind::Freeze, Kind::Restart, Kind::Outage, Kind::Start],
    &[Kind::Kill, Kind::Freeze, Kind::Restart, Kind::Clock, Kind::Gone, Kind::Disk, Kind::Rolling],
    &[Kind::Rules, Kind::Topics, Kind::Downstream],
];

/// The servers of the fleet.
pub const SERVERS: [&str; 6] = ["kafka", "kafka2", "rocketmq", "redis", "postgres", "etcd"];
/// The processes of the fleet that faults are about.
pub const PROCESSES: [&str; 12] = [
    "gateway-0",
    "gateway-1",
    "sdk",
    "scheduler-0",
    "scheduler-1",
    "queue-0",
    "queue-1",
    "consumer-0",
    "consumer-1",
    "consumer-2",
    "rewards",
    "wallet",
];
/// The processes with a volume of their own, which a fault fills.
pub const VOLUMES: [&str; 2] = ["gateway-0", "consumer-0"];

/// What happens to a server or a process in a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, later SIGCONT.
    Freeze,
    /// An orderly stop.
    Stop,
}

/// The action of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// To a server.
    Server(&'static str, How),
    /// To a process.
    Process(&'static str, How),
    /// A process is killed and started while a server is away.
    StartWithout { process: &'static str, server: &'static str },
    /// All processes restart, one after another.
    Rolling,
    /// The clock of a process is off by so much.
    Clock { process: &'static str, ahead_ms: i64 },
    /// A process goes for good.
    Gone(&'static str),
    /// The disk under a process is full.
    Disk(&'static str),
    /// The rules change, and change back.
    Rules(Change),
    /// The downstream system's mood.
    Downstream(Mood),
}

/// A fault with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The lane that it happens in.
    pub lane: usize,
    /// When it begins, since the start of the load.
    pub at_ms: u64,
    /// How long it lasts.
    pub for_ms: u64,
    /// Its action.
    pub action: Action,
}

/// The load runs alone for so long at first.
const CALM_MS: u64 = 4_000;

/// Draws the faults of a run of `length_ms`, of these kinds, in the order of their times.
pub fn plan(seed: u64, length_ms: u64, kinds: &[Kind], longest_delay_ms: u64) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (lane, all) in LANES.iter().enumerate() {
        let mut draw = Draw::new(seed, lane as u64);
        let mut cards = Cards {
            kinds: Deck::new(&all.iter().copied().filter(|kind| kinds.contains(kind)).collect::<Vec<_>>()),
            servers: Deck::new(&SERVERS),
            processes: Deck::new(&PROCESSES),
            changes: Deck::new(&Change::live()),
            topics: Deck::new(&Change::topics()),
            moods: Deck::new(&Mood::BAD),
        };
        let mut at_ms = CALM_MS + draw.ms(0, 3_000);
        while let Some(kind) = cards.kinds.next(&mut draw) {
            let (action, for_ms) = action(lane, kind, longest_delay_ms, &mut cards, &mut draw);
            if at_ms + for_ms > length_ms {
                break;
            }
            faults.push(Fault { lane, at_ms, for_ms, action });
            at_ms += for_ms + draw.ms(1_500, 5_000);
        }
    }
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}

/// The plan with two restarts in turn more: to the other version, and back.
pub fn with_upgrades(mut faults: Vec<Fault>, length_ms: u64) -> Vec<Fault> {
    let lane = 1;
    for at_ms in [length_ms / 4, length_ms / 2] {
        faults.push(Fault { lane, at_ms, for_ms: 10_000, action: Action::Rolling });
    }
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}

struct Cards {
    kinds: Deck<Kind>,
    servers: Deck<&'static str>,
    processes: Deck<&'static str>,
    changes: Deck<Change>,
    topics: Deck<Change>,
    moods: Deck<Mood>,
}

fn action(
    lane: usize,
    kind: Kind,
    longest_delay_ms: u64,
    cards: &mut Cards,
    draw: &mut Draw,
) -> (Action, u64) {
    let server = cards.servers.next(draw).unwrap_or(SERVERS[0]);
    let process = cards.processes.next(draw).unwrap_or(PROCESSES[0]);
    let to = |how| if lane == 0 { Action::Server(server, how) } else { Action::Process(process, how) };
    match kind {
        Kind::Kill => (to(How::Kill), draw.ms(500, 5_000)),
        Kind::Freeze => (to(How::Freeze), draw.ms(1_000, 9_000)),
        Kind::Restart => (to(How::Stop), draw.ms(200, 2_000)),
        Kind::Outage => {
            (Action::Server(server, How::Kill), longest_delay_ms * 3 + draw.ms(500, longest_delay_ms))
        }
        Kind::Start => (Action::StartWithout { process, server }, draw.ms(5_000, 9_000)),
        Kind::Rolling => (Action::Rolling, 10_000),
        Kind::Clock => {
            let ahead_ms = draw.one_of(&[-300_000, -20_000, -2_000, 2_000, 20_000, 300_000]);
            (Action::Clock { process, ahead_ms }, draw.ms(5_000, 12_000))
        }
        Kind::Gone => {
            let process = draw.one_of(&["gateway-0", "gateway-1", "consumer-0", "consumer-1", "consumer-2"]);
            (Action::Gone(process), draw.ms(3_000, 8_000))
        }
        Kind::Disk => (Action::Disk(draw.one_of(&VOLUMES)), draw.ms(4_000, 9_000)),
        Kind::Rules => {
            (Action::Rules(cards.changes.next(draw).unwrap_or(Change::Ratio)), draw.ms(4_000, 9_000))
        }
        Kind::Topics => {
            (Action::Rules(cards.topics.next(draw).unwrap_or(Change::Move)), draw.ms(4_000, 9_000))
        }
        Kind::Downstream => {
            (Action::Downstream(cards.moods.next(draw).unwrap_or(Mood::Silent)), draw.ms(3_000, 9_000))
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |how: &How| match how {
            How::Kill => "kill -9",
            How::Freeze => "freeze",
            How::Stop => "stop",
        };
        match self {
            Self::Server(name, how) | Self::Process(name, how) => write!(f, "{} {name}", word(how)),
            Self::StartWithout { process, server } => write!(f, "start {process} while {server} is away"),
            Self::Rolling => write!(f, "restart all processes in turn"),
            Self::Clock { process, ahead_ms } => {
                write!(f, "restart {process} with its clock {ahead_ms:+} ms off")
            }
            Self::Gone(process) => write!(f, "{process} goes for good and leaves its files"),
            Self::Disk(process) => write!(f, "fill the disk of {process}"),
            Self::Rules(change) => write!(f, "rules: {change}"),
            Self::Downstream(mood) => write!(f, "the downstream system {mood}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    fn drawn(seed: u64) -> Vec<Fault> {
        plan(seed, 600_000, Kind::value_variants(), 3_000)
    }

    #[test]
    fn a_seed_repeats_its_faults_and_another_has_others() {
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }

    #[test]
    fn ten_minutes_see_every_kind_and_a_lane_does_one_thing_at_a_time() {
        let faults = drawn(1);
        for lane in 0..LANES.len() {
            let own: Vec<_> = faults.iter().filter(|fault| fault.lane == lane).collect();
            assert!(own.len() > 20, "{}", own.len());
            assert!(own.windows(2).all(|two| two[0].at_ms + two[0].for_ms < two[1].at_ms));
        }
        let any = |test: fn(&Action) -> bool| faults.iter().any(|fault| test(&fault.action));
        assert!(any(|action| matches!(action, Action::StartWithout { .. })));
        assert!(
            any(|action| matches!(action, Action::Gone(_)))
                && any(|action| matches!(action, Action::Disk(_)))
        );
        assert!(
            any(|action| matches!(action, Action::Clock { .. })) && any(|action| *action == Action::Rolling)
        );
        assert!(any(|action| matches!(action, Action::Rules(Change::Move))));
        let longest = faults.iter().map(|fault| fault.for_ms).max().unwrap();
        assert!(longest >= 9_000, "an outage lasts for three times the longest delay");
    }

    #[test]
    fn kinds_that_are_left_out_do_not_happen() {
        let only = plan(3, 600_000, &[Kind::Freeze], 3_000);
        assert!(!only.is_empty());
        assert!(only.iter().all(|fault| matches!(
            fault.action,
            Action::Server(_, How::Freeze) | Action::Process(_, How::Freeze)
        )));
    }
}
