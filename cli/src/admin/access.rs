//! `windfall access`: keys of callers.

use anyhow::{Context, Result};
use windfall_edge::mint_key;

/// `windfall access …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum AccessCommand {
    /// Make a bearer key, and print the key and its hash; give the key to its owner, and write the hash into the access file
    /// yourself
    NewKey {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs it.
pub fn run(command: &AccessCommand) -> Result<()> {
    let AccessCommand::NewKey { json } = command;
    let key = mint_key().context("the system gives no random numbers, so no key can be made")?;
    if *json {
        println!("{}", serde_json::json!({"key": key.text, "key_sha256": key.sha256}));
    } else {
        println!("key         {}\nkey_sha256  {}", key.text, key.sha256);
    }
    Ok(())
}
