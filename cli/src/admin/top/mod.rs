//! `windfall top`: what operators look at when it rains, live in a terminal, or once as text or JSON.
//!
//! [`read`] asks the processes by the calls that everybody has: `/metrics` and `/health/ready`. [`rates`] makes a sample of
//! their answers, in which counters have become rates; [`picture`] makes of the sample what is shown, and [`findings`] what
//! needs a look. [`draw`] draws a picture for a [`view`], which the keys change. Nothing of this but `read` does any I/O.
//! [`mod@live`] is the loop around them. [`words`] writes numbers in few columns.

mod draw;
#[cfg(test)]
mod draw_tests;
mod findings;
mod live;
mod picture;
mod rates;
mod read;
#[cfg(test)]
mod samples;
mod view;
mod words;

use super::ask;
use crate::outcome::Outcome;
use anyhow::{Result, bail};
use read::{Fleet, Looked};
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;
use view::View;

/// The time between two readings where nothing else is said.
const INTERVAL: Duration = Duration::from_secs(1);

/// `windfall top`
#[derive(Debug, Clone, clap::Args)]
pub struct TopArgs {
    /// The addresses of the processes, with commas between them or each behind a --server of its own: https://host:port, or
    /// http://host:port on this machine. The picture is of all of them together
    #[arg(long, value_delimiter = ',', default_value = "http://127.0.0.1:8080", env = "WINDFALL_SERVER")]
    server: Vec<String>,
    /// The file with the bearer key of a caller with the role `observe` [default: the environment variable WINDFALL_KEY]
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// The file with the certificates (PEM) that the processes are checked against [default: those of the system]
    #[arg(long)]
    ca_file: Option<PathBuf>,
    /// The seconds between two readings, 0.2 to 3600 [default: 1]. With --json a picture is printed after each, until Ctrl-C
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// Print one picture as text and exit: it takes two readings, between which rates are counted. So it is where standard
    /// output is no terminal. Exit code 1 means that a process did not answer
    #[arg(long)]
    once: bool,
    /// Print one picture as a JSON document; with --interval and without --once one after another, each in a line of its own
    #[arg(long)]
    json: bool,
}

/// Shows the live view, or prints pictures, as the arguments say.
pub fn run(args: &TopArgs) -> Result<Outcome> {
    let key = ask::key(args.key_file.as_ref())?;
    let fleet = Fleet::new(&args.server, args.ca_file.as_ref(), &key)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let shown = runtime.block_on(show(args, fleet));
    // A name that is being looked up holds up nobody.
    runtime.shutdown_background();
    shown
}

async fn show(args: &TopArgs, fleet: Fleet) -> Result<Outcome> {
    let interval = args.interval.unwrap_or(INTERVAL);
    match args {
        TopArgs { json: true, once: false, interval: Some(_), .. } => stream(fleet, interval).await,
        TopArgs { json: true, .. } => once(fleet, interval, true).await,
        TopArgs { once: true, .. } => once(fleet, interval, false).await,
        _ if !std::io::stdout().is_terminal() => {
            eprintln!("windfall: standard output is no terminal, so one picture is printed, as with --once");
            once(fleet, interval, false).await
        }
        _ => live(fleet, interval).await,
    }
}

/// Whoever may not read is told so before the screen is taken; a fleet that is away is shown as away, until it comes.
async fn live(mut fleet: Fleet, interval: Duration) -> Result<Outcome> {
    let Looked { picture, denied, .. } = fleet.look().await;
    if let Some(why) = denied {
        bail!("{why}");
    }
    // https://no-color.org: any value that is not empty.
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    live::show(fleet, picture, View::new(has_colours), interval).await
}

/// Two readings, and the picture of the second one.
async fn once(mut fleet: Fleet, interval: Duration, json: bool) -> Result<Outcome> {
    let first = fleet.look().await;
    if let Some(outcome) = nobody(&first)? {
        return Ok(outcome);
    }
    tokio::select! {
        () = tokio::time::sleep(interval) => {}
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            return Ok(Outcome::Interrupted);
        }
    }
    let second = fleet.look().await;
    if let Some(outcome) = nobody(&second)? {
        return Ok(outcome);
    }
    let picture = &second.picture;
    let text = if json { serde_json::to_string_pretty(picture)? } else { draw::text(picture) };
    print(&text)?;
    Ok(if second.away.is_empty() { Outcome::Clean } else { Outcome::Damage })
}

/// A picture in a line after each reading, until Ctrl-C, or until nobody reads them. A fleet that is away is a line, too.
async fn stream(mut fleet: Fleet, interval: Duration) -> Result<Outcome> {
    let mut every = tokio::time::interval(interval);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let looked = tokio::select! {
            looked = async {
                every.tick().await;
                fleet.look().await
            } => looked,
            interrupted = &mut interrupted => {
                interrupted?;
                return Ok(Outcome::Clean);
            }
        };
        if let Some(why) = looked.denied {
            bail!("{why}");
        }
        if !print(&serde_json::to_string(&looked.picture)?)? {
            return Ok(Outcome::Clean);
        }
    }
}

/// What is said where there is nobody to show.
fn nobody(looked: &Looked) -> Result<Option<Outcome>> {
    if let Some(why) = &looked.denied {
        bail!("{why}");
    }
    if looked.picture.stale.is_none() {
        return Ok(None);
    }
    for (name, why) in &looked.away {
        eprintln!("windfall: {name}: {why}; start it, or name others with --server, and ask again");
    }
    Ok(Some(Outcome::Damage))
}

/// Prints a line; `false` where its reader has gone, such as `head`.
fn print(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.parse().map_err(|_| "a number of seconds is expected, such as 1 or 0.5".to_owned())?;
    if !(0.2..=3_600.0).contains(&seconds) {
        return Err("0.2 to 3600 seconds are allowed".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_of_seconds_within_bounds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("3600"), Ok(Duration::from_secs(3_600)));
        for wrong in ["0", "-1", "3601", "NaN", "inf", "1s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
