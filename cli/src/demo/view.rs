//! The live view: bars on a terminal, and one line per second elsewhere. All of it goes to standard error.

use super::pipeline::Snapshot;
use super::rain::Progress;
use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The display while rewards are sent.
pub struct View {
    bars: Option<Bars>,
    started: Instant,
    last: parking_lot::Mutex<Last>,
}

struct Bars {
    all: MultiProgress,
    sent: ProgressBar,
    credited: ProgressBar,
    lines: Vec<ProgressBar>,
}

struct Last {
    at: Instant,
    printed: Instant,
    sent: u64,
    credited: u64,
}

impl View {
    /// A view of a rain of `rewards` rewards.
    pub fn new(rewards: u64) -> Self {
        let now = Instant::now();
        let bars = std::io::stderr().is_terminal().then(|| Bars::new(rewards));
        let last = parking_lot::Mutex::new(Last { at: now, printed: now, sent: 0, credited: 0 });
        Self { bars, started: now, last }
    }

    /// A line for something that happened.
    pub fn say(&self, what: &str) {
        let line = format!("{:>7.1} s  {what}", self.started.elapsed().as_secs_f64());
        match &self.bars {
            // A line that cannot be drawn is no reason to stop the rain.
            Some(bars) => drop(bars.all.println(line)),
            None => eprintln!("{line}"),
        }
    }

    /// Shows the present state.
    pub fn show(&self, progress: &Progress, now: &Snapshot) {
        let mut last = self.last.lock();
        let sent = progress.sent.load(Relaxed);
        let credited = credited(now);
        let seconds = last.at.elapsed().max(Duration::from_millis(1)).as_secs_f64();
        let rate = |now: u64, before: u64| per_second(now.saturating_sub(before), seconds);
        let (sent_rate, credited_rate) = (rate(sent, last.sent), rate(credited, last.credited));
        (last.at, last.sent, last.credited) = (Instant::now(), sent, credited);
        let lines = lines(progress, now);
        match &self.bars {
            Some(bars) => {
                bars.sent.set_position(sent);
                bars.sent.set_message(format!("{}/s", HumanCount(sent_rate)));
                bars.credited.set_position(credited);
                bars.credited.set_message(format!("{}/s", HumanCount(credited_rate)));
                for (bar, line) in bars.lines.iter().zip(lines) {
                    bar.set_message(line);
                }
            }
            None if last.printed.elapsed() >= Duration::from_secs(1) => {
                last.printed = Instant::now();
                eprintln!(
                    "{:>7.1} s  sent {} ({}/s), credited {} ({}/s); {}",
                    self.started.elapsed().as_secs_f64(),
                    HumanCount(sent),
                    HumanCount(sent_rate),
                    HumanCount(credited),
                    HumanCount(credited_rate),
                    lines[1]
                );
            }
            None => {}
        }
    }

    /// Leaves the last state on the screen.
    pub fn finish(&self) {
        if let Some(bars) = &self.bars {
            for bar in [&bars.sent, &bars.credited].into_iter().chain(&bars.lines) {
                bar.abandon();
            }
        }
    }
}

impl Bars {
    fn new(rewards: u64) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        let bar = |name: &'static str| {
            let bar = all.add(ProgressBar::new(rewards));
            if let Ok(style) =
                ProgressStyle::with_template("{prefix:>9} {bar:40} {human_pos:>9} / {human_len} {msg}")
            {
                bar.set_style(style);
            }
            bar.with_prefix(name)
        };
        let (sent, credited) = (bar("sent"), bar("credited"));
        let line = |name: &'static str| {
            let line = all.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{prefix:>9} {wide_msg}") {
                line.set_style(style);
            }
            line.with_prefix(name)
        };
        let lines = ["tokens", "queues", "by type"].map(line).to_vec();
        Self { all, sent, credited, lines }
    }
}

/// Events credited so far.
pub fn credited(now: &Snapshot) -> u64 {
    now.rewards.types.values().map(|one| one.credited).sum()
}

fn lines(progress: &Progress, now: &Snapshot) -> [String; 3] {
    let tokens = format!(
        "{} stored, {} waiting, {} dropped; {} removed after credit; spool {} of {} slots; {} waits for the spool",
        HumanCount(now.sdk.tokens_written),
        HumanCount(now.sdk.tokens_waiting as u64),
        HumanCount(now.sdk.tokens_dropped),
        HumanCount(now.tokens_removed.0),
        now.sdk.spool_slots.0,
        now.sdk.spool_slots.1,
        HumanCount(progress.waits.load(Relaxed)),
    );
    let lag: Vec<String> = now
        .lag
        .iter()
        .map(|(topic, records)| match records {
            Some(records) => format!("{topic} {records}"),
            None => format!("{topic} ?"),
        })
        .collect();
    let queues = format!(
        "records queued: {}; events in flight {}, requeued {}, archived {}; rules {}",
        lag.join(", "),
        HumanCount(now.in_flight),
        HumanCount(now.requeued),
        HumanCount(now.rewards.archived),
        now.rules_version,
    );
    let types: Vec<String> = now
        .rewards
        .types
        .iter()
        .map(|(name, counts)| format!("{name} {}", HumanCount(counts.credited)))
        .collect();
    [tokens, queues, types.join(", ")]
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // for eyes
fn per_second(count: u64, seconds: f64) -> u64 {
    (count as f64 / seconds) as u64
}
