//! Switches that break a promise on purpose, so that a test can see the check notice it. Not in a release build:
//! only the feature `sabotage` has this file.

use anyhow::{Result, bail};

/// Names of the switches to throw, separated by commas.
const VARIABLE: &str = "WINDFALL_SABOTAGE";

/// Throws the switches that the environment names.
pub fn from_environment() -> Result<()> {
    let Ok(names) = std::env::var(VARIABLE) else { return Ok(()) };
    for name in names.split(',').filter(|name| !name.is_empty()) {
        match name {
            "dedupe" => windfall_ledger::sabotage::skip_dedupe(true),
            "budget" => windfall_ledger::sabotage::skip_budget_check(true),
            "window" => windfall_consumer::sabotage::early_mark(true),
            "copy" => windfall_consumer::sabotage::early_copy(true),
            "salvage" => windfall_consumer::sabotage::skip_salvage_sync(true),
            "spool" => windfall_spool::sabotage::skip_spool(true),
            "token" => windfall_token::sabotage::skip_token_comparison(true),
            other => bail!(
                "{VARIABLE} names `{other}`; known: dedupe, budget, window, copy, salvage, spool, token"
            ),
        }
    }
    Ok(())
}
