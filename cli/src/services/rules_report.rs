//! Reports beside the rules which version this process runs, and which one it refuses, for `windfall rules status`.

use super::role::Role;
use crate::wiring::{Background, Tasks};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use windfall_config::{ChangeRules, LiveRules, ProcessStatus, REPORT_EVERY_MS};
use windfall_contract::Clock;

/// Reports until it is dropped.
pub struct RulesReport {
    process: String,
    store: Arc<dyn ChangeRules>,
    reporting: Background,
}

impl RulesReport {
    /// Starts to report; `stages` says whether it has consumers. Weak: a place that cannot be written to is told once.
    pub fn start(
        tasks: &Tasks,
        role: Role,
        store: Box<dyn ChangeRules>,
        rules: LiveRules,
        stages: bool,
        clock: Clock,
    ) -> Self {
        let process = process_name(role);
        let store: Arc<dyn ChangeRules> = Arc::from(store);
        let (own, name) = (Arc::clone(&store), process.clone());
        let is_told = Arc::new(AtomicBool::new(false));
        let reporting = tasks.spawn("rules report", move || {
            let (store, rules, clock, name, is_told) =
                (Arc::clone(&own), rules.clone(), clock.clone(), name.clone(), Arc::clone(&is_told));
            async move {
                let mut changes = rules.subscribe();
                loop {
                    changes.mark_unchanged();
                    let status = ProcessStatus::of(&name, &rules.status(), stages, clock.unix_ms());
                    let store = Arc::clone(&store);
                    let written = tokio::task::spawn_blocking(move || store.report(&status)).await;
                    match written {
                        Ok(Ok(())) => is_told.store(false, Relaxed),
                        Ok(Err(error)) if !is_told.swap(true, Relaxed) => {
                            tracing::warn!(%error, "`windfall rules status` does not see this process");
                        }
                        _ => {}
                    }
                    let every = Duration::from_millis(REPORT_EVERY_MS);
                    // A change is told at once; an error says that there will be none.
                    if let Ok(Err(_)) = tokio::time::timeout(every, changes.changed()).await {
                        tokio::time::sleep(every).await;
                    }
                }
            }
        });
        Self { process, store, reporting }
    }

    /// Reports no more, and takes the report back.
    pub async fn close(self) {
        self.reporting.end().await;
        let (store, process) = (self.store, self.process);
        let withdrawn = tokio::task::spawn_blocking(move || store.withdraw(&process)).await;
        if let Ok(Err(error)) = withdrawn {
            tracing::debug!(%error, "the report of this process stays until it is old");
        }
    }
}

/// Names this process among those of a fleet.
pub fn process_name(role: Role) -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{role}-{}-{}", machine.trim(), std::process::id())
}
