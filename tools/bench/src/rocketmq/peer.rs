//! The official client, a program of its own: its dependencies stay out of ours.

use super::{CLIENTS, GROUP, PEER};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PLACE: &str = "tools/interop/rocketmq/target/release/windfall-rocketmq-peer";

/// The path of the program, if it has been built.
pub fn program() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let program = std::env::var_os("WINDFALL_ROCKETMQ_PEER").map_or_else(|| root.join(PLACE), PathBuf::from);
    program.is_file().then_some(program)
}

/// How long it takes, from its first message to its last acknowledgement, with one receiver per client.
pub fn receive(program: &Path, endpoint: &str, topic: &str) -> Result<Duration> {
    let (count, receivers) = (PEER.to_string(), CLIENTS.to_string());
    let output = Command::new(program)
        .args(["receive", endpoint, topic, GROUP, &count, &receivers])
        .output()
        .with_context(|| format!("{} cannot be run", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the official client failed: {}: {said}", output.status);
    // It may log there too.
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().context("the official client says nothing")?;
    let answer: serde_json::Value = serde_json::from_str(last).context("the official client's answer")?;
    let seconds = answer.get("seconds").and_then(serde_json::Value::as_f64).context("no seconds")?;
    Ok(Duration::from_secs_f64(seconds))
}
