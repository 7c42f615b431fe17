//! The live view: the screen that is given back whatever happens, the keys, and the loop between them and the readings.

use super::draw;
use super::picture::Picture;
use super::read::Fleet;
use super::view::{Asked, TableAt, View};
use crate::outcome::Outcome;
use anyhow::{Context, Result, anyhow};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// How often the thread that waits for keys looks whether it is still wanted.
const KEYS_LOOK: Duration = Duration::from_millis(100);
/// Keys that wait to be taken at most; beyond them, their thread waits.
const KEYS_MAX: usize = 64;

/// Shows it until a key or a signal ends it.
pub async fn show(fleet: Fleet, first: Picture, mut view: View, interval: Duration) -> Result<Outcome> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut readings = Readings::begin(fleet, first.clone(), interval);
    let mut picture = first;
    let mut screen = Screen::open()?;
    let mut keys = Keys::listen();
    loop {
        screen.draw(&picture, &view)?;
        tokio::select! {
            event = keys.events.recv() => {
                let event = event.context("the terminal gives no keys any more")?;
                // Another size is drawn anew.
                if let Event::Key(key) = event.context("the terminal gives no keys any more")? {
                    let rows = match view.table {
                        TableAt::Topics => picture.topics.len(),
                        TableAt::Types => picture.types.len(),
                    };
                    if view.key(key, rows) == Asked::Quit {
                        return Ok(Outcome::Clean);
                    }
                }
            }
            read = readings.newest.changed() => {
                read.map_err(|_| anyhow!("the readings ended: this is a bug of windfall top"))?;
                if !view.is_paused {
                    picture = readings.newest.borrow_and_update().clone();
                }
            }
            _ = interrupted.recv() => return Ok(Outcome::Clean),
            _ = terminated.recv() => return Ok(Outcome::Interrupted),
            _ = hung_up.recv() => return Ok(Outcome::Interrupted),
        }
    }
}

/// The screen. It is given back when this is dropped, and before a panic is reported.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self(terminal)),
            Err(error) => {
                give_back();
                Err(error).context("the terminal cannot be used for a live view; use --once")
            }
        }
    }

    fn draw(&mut self, picture: &Picture, view: &View) -> Result<()> {
        let drawn = self.0.draw(|frame| draw::screen(picture, view, frame.area(), frame.buffer_mut()));
        drawn.context("the terminal cannot be written to").map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Err(error) = self.0.show_cursor() {
            tracing::debug!(%error, "the cursor stays hidden");
        }
        give_back();
    }
}

fn give_back() {
    // A terminal that is gone cannot be given back, and needs not be.
    if let Err(error) = ratatui::try_restore() {
        tracing::debug!(%error, "the terminal was not given back");
    }
}

/// The thread that waits for keys; it ends soon after this is dropped.
struct Keys {
    events: mpsc::Receiver<std::io::Result<Event>>,
    is_over: Arc<AtomicBool>,
}

impl Keys {
    fn listen() -> Self {
        let (sender, events) = mpsc::channel(KEYS_MAX);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            while !over.load(Relaxed) {
                let event = match event::poll(KEYS_LOOK) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let is_last = event.is_err();
                if sender.blocking_send(event).is_err() || is_last {
                    return;
                }
            }
        });
        Self { events, is_over }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

/// The task that reads, so that no key waits for a process; it ends when this is dropped.
struct Readings {
    newest: watch::Receiver<Picture>,
    task: JoinHandle<()>,
}

impl Readings {
    fn begin(mut fleet: Fleet, first: Picture, interval: Duration) -> Self {
        let (sender, newest) = watch::channel(first);
        let task = tokio::spawn(async move {
            let mut every = tokio::time::interval(interval);
            every.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first one was read before.
            every.tick().await;
            loop {
                every.tick().await;
                if sender.send(fleet.look().await.picture).is_err() {
                    return;
                }
            }
        });
        Self { newest, task }
    }
}

impl Drop for Readings {
    fn drop(&mut self) {
        self.task.abort();
    }
}
