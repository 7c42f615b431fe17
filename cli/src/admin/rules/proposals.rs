//! `windfall rules proposals|approve|refuse`: changes that wait for a second person.

use super::{RulesPlace, say};
use crate::admin::{now_ms, utc};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use windfall_config::{Actor, Difference, Proposals};

/// `windfall rules approve` and `windfall rules refuse`
#[derive(Debug, Clone, clap::Args)]
pub struct EndArgs {
    /// The proposal's number
    number: u64,
    #[command(flatten)]
    place: RulesPlace,
    /// Who approves or refuses it; kept beside the name that the key proves
    #[arg(long, env = "USER", default_value = "")]
    who: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Lists what waits.
pub fn list(place: &RulesPlace, json: bool) -> Result<()> {
    let (rows, unreadable) = match place.console()? {
        Some(console) => console.waiting()?,
        None => {
            let store = place.store(None)?;
            let Proposals { open, unreadable, .. } = store.proposals(now_ms())?;
            let in_force = if open.is_empty() { String::new() } else { store.show()? };
            let unreadable = unreadable.into_iter().map(|(number, why)| (number, why.to_string()));
            (open.iter().map(|one| one.row(&in_force)).collect(), unreadable.collect())
        }
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        for row in &rows {
            show(row)?;
        }
        if rows.is_empty() && unreadable.is_empty() {
            println!("no change of the rules waits for approval");
        }
    }
    for (number, why) in &unreadable {
        eprintln!(
            "proposal {number}: {why}; nobody can approve it, and `windfall rules refuse {number}` removes it"
        );
    }
    Ok(())
}

fn show(row: &Value) -> Result<()> {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let time = |key: &str| utc(row[key].as_u64().unwrap_or(0));
    let number = &row["number"];
    println!("proposal  {number}, made from version {}", row["based_on"]);
    println!(
        "proposed  {} by {} ({}), until {}",
        time("at_ms"),
        text("who"),
        text("identity"),
        time("expires_ms")
    );
    println!("why       {}", text("why"));
    if row["promotes"].is_u64() {
        println!(
            "{}",
            if row["by_force"] == true { "promotes a trial (by force)" } else { "promotes a trial" }
        );
    }
    if row["is_overtaken"] == true {
        println!("The rules have changed since, so it cannot be approved.");
        return Ok(());
    }
    let found: Vec<Difference> =
        serde_json::from_value(row["differences"].clone()).context("its differences are not understood")?;
    for one in &found {
        println!("{one}");
    }
    println!("Another person approves it with: windfall rules approve {number} --server URL");
    Ok(())
}

/// Makes a proposed change.
pub fn approve(args: &EndArgs) -> Result<()> {
    let store = args.place.store(None)?;
    let written = store
        .approve(args.number, Actor::said(&args.who), now_ms())
        .with_context(|| format!("the approval of proposal {} has failed for {}", args.number, args.place))?;
    if args.json {
        let (version, changed) = match written {
            windfall_config::Written::Changed { version } => (version, true),
            windfall_config::Written::Unchanged { version } => (version, false),
        };
        println!("{}", serde_json::to_string_pretty(&json!({ "changed": changed, "version": version }))?);
        return Ok(());
    }
    say(&args.place, written)
}

/// Takes a proposed change away.
pub fn refuse(args: &EndArgs) -> Result<()> {
    let store = args.place.store(None)?;
    store.refuse(args.number, Actor::said(&args.who), now_ms())?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&json!({ "refused": args.number }))?);
    } else {
        println!("refused {}", args.number);
    }
    Ok(())
}
