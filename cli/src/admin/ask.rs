//! What commands that ask a running service share: where it is, with which key, and how answers are shown.

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use windfall_client::ClientOptions;

/// Which service is asked, and as whom.
#[derive(Debug, Clone, clap::Args)]
pub struct Server {
    /// The address of the service: https://host:port, or http://host:port on this machine
    #[arg(long, global = true, default_value = "http://127.0.0.1:8080", env = "WINDFALL_SERVER")]
    server: String,
    /// The file with the bearer key of a caller with the role that this needs [default: the environment variable WINDFALL_KEY]
    #[arg(long, global = true)]
    key_file: Option<PathBuf>,
    /// The file with the certificates (PEM) that the server is checked against; needed for https
    #[arg(long, global = true)]
    ca_file: Option<PathBuf>,
}

impl Server {
    /// One that a command names by options of its own.
    pub fn at(server: String, key_file: Option<PathBuf>, ca_file: Option<PathBuf>) -> Self {
        Self { server, key_file, ca_file }
    }

    /// How it is reached.
    pub fn options(&self) -> Result<ClientOptions> {
        Ok(ClientOptions {
            endpoints: vec![self.server.clone()],
            bearer_key: Some(key(self.key_file.as_ref())?),
            ca_file: self.ca_file.clone(),
            attempt_timeout_ms: 10_000,
            ..ClientOptions::default()
        })
    }
}

/// The bearer key in this file, or in the environment.
pub fn key(file: Option<&PathBuf>) -> Result<String> {
    let key = match file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("the key file {} cannot be read", path.display()))?,
        None => std::env::var("WINDFALL_KEY").unwrap_or_default(),
    };
    if key.trim().is_empty() {
        bail!("there is no key: give --key-file, or set the environment variable WINDFALL_KEY");
    }
    Ok(key.trim().to_owned())
}

/// Says that there are more rows behind these.
pub fn more(is_more: bool, after: impl std::fmt::Display) {
    if is_more {
        eprintln!("more with --after {after}");
    }
}

/// Messages become JSON as in answers over HTTP; that cannot fail for what was decoded.
pub fn value<T: Serialize>(message: &T) -> Value {
    serde_json::to_value(message).unwrap_or_default()
}

/// Shows messages as a table, or as JSON.
pub fn show(rows: &[impl Serialize], json: bool) {
    let rows: Vec<Value> = rows.iter().map(value).collect();
    if json {
        println!("{:#}", Value::Array(rows));
        return;
    }
    if rows.is_empty() {
        println!("none");
        return;
    }
    let none = serde_json::Map::new();
    let of = |row: &Value| row.as_object().unwrap_or(&none).clone();
    // Fields that say nothing are left out of a message, so no row has all of them.
    let columns: BTreeSet<String> =
        rows.iter().flat_map(|row| of(row).into_iter().map(|(name, _)| name)).collect();
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header(&columns);
    for row in &rows {
        let row = of(row);
        table.add_row(columns.iter().map(|name| match row.get(name) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }));
    }
    println!("{table}\n{} in all", rows.len());
}
