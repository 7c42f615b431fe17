//! The threads of an SDK, from init to close.

use crate::pump;
use crate::sdk::Shared;
use crate::tokens::TokenWriter;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;
use windfall_contract::tokens::TokenStore;

/// The threads of an SDK. Dropped with the last handle.
pub(crate) struct Threads {
    /// The shared state; `None` only while this is dropped.
    shared: Option<Arc<Shared>>,
    running: Mutex<Option<Running>>,
}

struct Running {
    pump: JoinHandle<()>,
    rules: JoinHandle<()>,
    tokens: Option<TokenWriter>,
}

impl Threads {
    /// Starts the threads.
    pub(crate) fn start(shared: &Arc<Shared>, store: Option<Arc<dyn TokenStore>>) -> std::io::Result<Self> {
        let running = Running::start(shared, store).inspect_err(|_| {
            // Those that did start end.
            shared.closed.store(true, Relaxed);
            shared.give_up.store(true, Relaxed);
        })?;
        Ok(Self { shared: Some(Arc::clone(shared)), running: Mutex::new(Some(running)) })
    }

    /// Ends the threads, and closes what the SDK opened for itself. Blocks.
    pub(crate) fn close(&self, timeout: Duration) {
        let running = self.running.lock().take();
        if let (Some(running), Some(shared)) = (running, &self.shared) {
            running.close(shared, timeout);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let (Some(running), Some(shared)) = (self.running.lock().take(), self.shared.take()) else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            return running.close(&shared, Duration::ZERO);
        }
        // On a runtime nothing may block. What no broker has stays in the spool for the next start, so that the
        // process may end before this thread does. // I2
        let slot = Arc::new(Mutex::new(Some((running, shared))));
        let own = Arc::clone(&slot);
        let close = move || {
            let taken = own.lock().take();
            if let Some((running, shared)) = taken {
                running.close(&shared, Duration::ZERO);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("windfall-close".into()).spawn(close) {
            tracing::warn!(%error, "no thread can be started to end the SDK's threads: this one waits for them");
            let taken = slot.lock().take();
            if let Some((running, shared)) = taken {
                running.close(&shared, Duration::ZERO);
            }
        }
    }
}

impl Running {
    fn start(shared: &Arc<Shared>, store: Option<Arc<dyn TokenStore>>) -> std::io::Result<Self> {
        let pump = spawn("windfall-pump", shared, |shared| {
            let is_over = || shared.give_up.load(Relaxed);
            shared.pump_health.supervise("windfall-pump", is_over, || pump::run(shared));
        })?;
        let rules = spawn("windfall-rules", shared, |shared| {
            let is_over = || shared.closed.load(Relaxed);
            shared.rules_health.supervise("windfall-rules", is_over, || shared.follow_rules());
        })?;
        // Last: it is ended by its handle alone.
        let tokens = match (&shared.tokens, store) {
            (Some(buffer), Some(store)) => {
                Some(TokenWriter::start(Arc::clone(buffer), store, &shared.options)?)
            }
            _ => None,
        };
        Ok(Self { pump, rules, tokens })
    }

    fn close(self, shared: &Shared, timeout: Duration) {
        let Self { pump, rules, tokens } = self;
        let started_ns = shared.clock.monotonic_ns();
        let left = || {
            let gone_ns = shared.clock.monotonic_ns().saturating_sub(started_ns);
            timeout.saturating_sub(Duration::from_nanos(gone_ns))
        };
        let is_over = || left().is_zero();
        shared.closed.store(true, Relaxed);
        rules.thread().unpark();
        while !pump.is_finished() {
            if is_over() {
                shared.give_up.store(true, Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if pump.join().is_err() {
            tracing::error!("the pump had panicked");
        }
        if let Some(tokens) = tokens {
            tokens.close(is_over);
        }
        while !rules.is_finished() && !is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !rules.is_finished() {
            tracing::warn!("the thread that follows the rules takes long to end");
        } else if rules.join().is_err() {
            tracing::error!("the thread that follows the rules had panicked");
        }
        shared.close_owned(left());
    }
}

fn spawn(
    name: &str,
    shared: &Arc<Shared>,
    run: impl FnOnce(&Arc<Shared>) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let own = Arc::clone(shared);
    std::thread::Builder::new().name(name.into()).spawn(move || run(&own))
}
