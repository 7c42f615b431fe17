//! `windfall schedule set-aside`: what a scheduler has taken from the queue of adds and could not store.

use super::super::ask::show;
use super::super::utc;
use crate::outcome::Outcome;
use crate::place;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::Path;
use windfall_scheduler::{SetAside, read_set_aside};

/// Prints what was set aside in a data directory. Exit code 1 says that there is something.
pub(super) fn list(data: &Path, json: bool) -> Result<Outcome> {
    if !data.is_dir() {
        bail!("{} is not a directory", data.display());
    }
    let folder = place::add_queue(data);
    let (entries, damaged) = read_set_aside(&folder)
        .with_context(|| format!("what was set aside in {} cannot be read", folder.display()))?;
    let rows: Vec<Value> = match json {
        true => entries.iter().map(serde_json::to_value).collect::<Result<_, _>>()?,
        false => entries.iter().map(row).collect(),
    };
    show(&rows, json);
    if damaged > 0 {
        eprintln!("windfall: {damaged} lines of {} cannot be read", folder.display());
    }
    Ok(if entries.is_empty() && damaged == 0 { Outcome::Clean } else { Outcome::Damage })
}

fn row(entry: &SetAside) -> Value {
    let timer = entry.timer.as_ref();
    json!({
        "set aside": utc(entry.at_ms),
        "tenant": timer.map_or("", |timer| &timer.tenant),
        "target": timer.map_or("", |timer| &timer.target),
        "key": timer.map_or("", |timer| &timer.key),
        "due": timer.map_or(String::new(), |timer| utc(timer.due_ms)),
        "reason": entry.reason,
        "what": entry.what,
    })
}
