//! `windfall signing`: the ring of keys that senders sign records with.

use super::{now_ms, utc};
use anyhow::Result;
use std::path::PathBuf;
use windfall_signing::{KeyFile, Ring};

/// `windfall signing …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum SigningCommand {
    /// Make a file of signing keys with one key, which signs at once
    New {
        #[command(flatten)]
        file: SigningFile,
        #[command(flatten)]
        sender: Sender,
    },
    /// Add a key that verifies and does not sign yet; give the file to every consumer before you promote the key
    Add {
        #[command(flatten)]
        file: SigningFile,
        #[command(flatten)]
        sender: Sender,
    },
    /// Let a key sign; its sender's primary key so far only verifies from then on
    Promote {
        #[command(flatten)]
        file: SigningFile,
        /// The key's number
        id: u32,
    },
    /// Stop signing with a primary key; what it signed is still verified
    Retire {
        #[command(flatten)]
        file: SigningFile,
        /// The key's number
        id: u32,
    },
    /// Destroy a key: what it signed is refused from then on, copies of it too, and nothing brings it back
    Destroy {
        #[command(flatten)]
        file: SigningFile,
        /// The key's number
        id: u32,
    },
    /// List the keys, without their secrets
    List {
        #[command(flatten)]
        file: SigningFile,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a copy that has one sender's keys alone, for a process that sends and does not consume
    Export {
        #[command(flatten)]
        file: SigningFile,
        /// The sender
        #[arg(long)]
        sender: String,
        /// The file to write the copy to; an earlier copy for the same sender is replaced
        to: PathBuf,
    },
}

/// The file of signing keys.
#[derive(Debug, Clone, clap::Args)]
pub struct SigningFile {
    /// The file of the signing keys
    #[arg(long, default_value = "signing.toml")]
    file: PathBuf,
}

/// Whose key it is.
#[derive(Debug, Clone, clap::Args)]
pub struct Sender {
    /// The sender, as the option signing.sender of its processes names it
    #[arg(long)]
    sender: String,
    /// Let the key sign copies of other senders' records, which consumers do when they requeue
    #[arg(long)]
    may_copy: bool,
}

/// Runs it.
pub fn run(command: &SigningCommand) -> Result<()> {
    match command {
        SigningCommand::New { file, sender: Sender { sender, may_copy } } => {
            KeyFile::create(&file.file, sender, *may_copy, now_ms())?;
            println!("{}: key 1 signs for {sender}", file.file.display());
        }
        SigningCommand::Add { file, sender: Sender { sender, may_copy } } => {
            let id = KeyFile::open(&file.file)?.add(sender, *may_copy, now_ms())?;
            println!("key {id} of {sender} verifies; give the file to every consumer, then promote it");
        }
        SigningCommand::Promote { file, id } => {
            KeyFile::open(&file.file)?.promote(*id)?;
            println!("key {id} signs");
        }
        SigningCommand::Retire { file, id } => {
            KeyFile::open(&file.file)?.retire(*id)?;
            println!("key {id} verifies and signs no more");
        }
        SigningCommand::Destroy { file, id } => {
            KeyFile::open(&file.file)?.destroy(*id)?;
            println!("key {id} is destroyed");
        }
        SigningCommand::List { file, json } => list(file, *json)?,
        SigningCommand::Export { file, sender, to } => {
            KeyFile::open(&file.file)?.export(sender, to)?;
            println!("{} has the keys of {sender} alone", to.display());
        }
    }
    Ok(())
}

fn list(file: &SigningFile, json: bool) -> Result<()> {
    // Not opened for changes: a sender's copy can be listed, too.
    let ring = Ring::load(&file.file)?;
    if json {
        let rows: Vec<_> = ring
            .keys()
            .map(|key| {
                serde_json::json!({
                    "id": key.id,
                    "sender": key.sender,
                    "may_copy": key.may_copy,
                    "state": key.state.as_str(),
                    "created_ms": key.created_ms,
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        for key in ring.keys() {
            let copies = if key.may_copy { "may copy" } else { "" };
            println!(
                "{:>4}  {:<24} {:<12} {copies:<8} made {}",
                key.id,
                key.sender,
                key.state.as_str(),
                utc(key.created_ms)
            );
        }
    }
    Ok(())
}
