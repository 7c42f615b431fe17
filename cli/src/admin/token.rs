//! `windfall token open`: what a token says, or which step refuses it.

use anyhow::{Context, Result, bail};
use std::io::Read;
use std::path::PathBuf;
use windfall_token::{KeyRing, Reason, TEXT_MAX_BYTES};

/// `windfall token …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum TokenCommand {
    /// Open a token and print its fields as JSON, or say which step refuses it, which only operators may know
    Open {
        /// The token's text; - means standard input
        token: String,
        /// The file of the key ring
        #[arg(long, default_value = "keys.toml")]
        file: PathBuf,
        /// The app that the token was minted for
        #[arg(long, default_value = crate::demo::parts::APP_ID)]
        app_id: String,
        /// Refuse the token unless it belongs to this user
        #[arg(long)]
        user_id: Option<i64>,
    },
}

/// Runs it.
pub fn run(command: &TokenCommand) -> Result<()> {
    let TokenCommand::Open { token, file, app_id, user_id } = command;
    let ring = KeyRing::load(file)?;
    let text = if token == "-" { read_stdin()? } else { token.clone().into_bytes() };
    let token = match ring.diagnose(text.trim_ascii_end(), app_id, *user_id) {
        Ok(token) => token,
        Err(Reason::Length { len }) if len > TEXT_MAX_BYTES => {
            bail!(
                "illegal token: length: a token text has at most {TEXT_MAX_BYTES} bytes, and this one has more"
            )
        }
        Err(reason) => bail!("illegal token: {reason}"),
    };
    let object = serde_json::json!({
        "trade_no": token.trade_no,
        "user_id": token.user_id,
        "app_id": token.app_id,
        "activity": token.activity,
        "scene": token.scene,
        "type": token.bonus_type,
        "amount": token.amount,
        "award_time_ms": token.award_time_ms,
        "description": token.description,
    });
    println!("{}", serde_json::to_string_pretty(&object)?);
    Ok(())
}

fn read_stdin() -> Result<Vec<u8>> {
    let mut text = Vec::new();
    // A token is far shorter; what is longer is refused by its length, not read.
    let limit = u64::try_from(TEXT_MAX_BYTES)? + 2;
    std::io::stdin().lock().take(limit).read_to_end(&mut text).context("standard input cannot be read")?;
    Ok(text)
}
