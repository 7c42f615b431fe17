//! `windfall keys`: the ring that tokens are sealed and signed with.

use super::{now_ms, utc};
use anyhow::Result;
use std::path::PathBuf;
use windfall_token::{Algorithm, KeyFile, KeyId, State};

/// `windfall keys …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum KeysCommand {
    /// Make a key ring with one key, which mints at once
    New {
        #[command(flatten)]
        file: RingFile,
        /// hmac-sha256-128 (fast; whoever verifies can mint) or ed25519 (verifiers cannot mint)
        #[arg(long, default_value = "hmac-sha256-128")]
        algorithm: Algorithm,
    },
    /// Add a pending key; give the file to every process before you promote the key
    Add {
        #[command(flatten)]
        file: RingFile,
        /// hmac-sha256-128 or ed25519 [default: that of the primary key, or else of the newest key that is not destroyed]
        #[arg(long)]
        algorithm: Option<Algorithm>,
    },
    /// Promote a key: pending to verify-only, verify-only to primary
    Promote {
        #[command(flatten)]
        file: RingFile,
        /// The key's number
        id: u32,
    },
    /// Stop minting with the primary key; its tokens stay valid
    Retire {
        #[command(flatten)]
        file: RingFile,
        /// The key's number
        id: u32,
    },
    /// Destroy a retired key: its tokens are illegal from then on, and nothing brings it back
    Destroy {
        #[command(flatten)]
        file: RingFile,
        /// The key's number
        id: u32,
    },
    /// List the keys, without their secrets
    List {
        #[command(flatten)]
        file: RingFile,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a copy of the ring that verifies and cannot mint; only for rings of ed25519 keys
    ExportVerifier {
        #[command(flatten)]
        file: RingFile,
        /// The file to write the copy to
        to: PathBuf,
    },
}

/// The ring's file.
#[derive(Debug, Clone, clap::Args)]
pub struct RingFile {
    /// The file of the key ring
    #[arg(long, default_value = "keys.toml")]
    file: PathBuf,
}

/// Runs it.
pub fn run(command: &KeysCommand) -> Result<()> {
    match command {
        KeysCommand::New { file, algorithm } => {
            let ring = KeyFile::create(&file.file, *algorithm, now_ms())?;
            println!("{}: key {} mints", file.file.display(), ring.list()[0].id);
        }
        KeysCommand::Add { file, algorithm } => {
            let mut ring = KeyFile::open(&file.file)?;
            // Where verifiers have copies that mint none, another algorithm would take these away from them.
            let keys = ring.list();
            let primary = keys.iter().find(|key| key.state == State::Primary);
            let newest = || keys.iter().rev().find(|key| key.state != State::Destroyed);
            let own = primary.or_else(newest).map_or(Algorithm::HmacSha256, |key| key.algorithm);
            let id = ring.add(algorithm.unwrap_or(own), now_ms())?;
            println!("key {id} is pending; give the file to every process, then promote it");
        }
        KeysCommand::Promote { file, id } => {
            let state = KeyFile::open(&file.file)?.promote(KeyId(*id))?;
            println!("key {id} is {state}");
        }
        KeysCommand::Retire { file, id } => {
            KeyFile::open(&file.file)?.retire(KeyId(*id))?;
            println!("key {id} verifies and mints no more");
        }
        KeysCommand::Destroy { file, id } => {
            KeyFile::open(&file.file)?.destroy(KeyId(*id))?;
            println!("key {id} is destroyed");
        }
        KeysCommand::List { file, json } => list(file, *json)?,
        KeysCommand::ExportVerifier { file, to } => {
            KeyFile::open(&file.file)?.export_verifier(to)?;
            println!("{} verifies and cannot mint", to.display());
        }
    }
    Ok(())
}

fn list(file: &RingFile, json: bool) -> Result<()> {
    let keys = KeyFile::open(&file.file)?.list();
    if json {
        let rows: Vec<_> = keys
            .iter()
            .map(|key| {
                serde_json::json!({
                    "id": key.id.0,
                    "algorithm": key.algorithm.as_str(),
                    "state": key.state.as_str(),
                    "created_ms": key.created_ms,
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        for key in keys {
            println!(
                "{:>4}  {:<16} {:<12} made {}",
                key.id,
                key.algorithm.as_str(),
                key.state.as_str(),
                utc(key.created_ms)
            );
        }
    }
    Ok(())
}
