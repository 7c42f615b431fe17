//! `windfall topics`: every topic of the live rules, whether it is written to, and what is left in it.

use crate::drivers::BrokerAt;
use crate::outcome::Outcome;
use crate::place;
use crate::services::ServiceOptions;
use crate::wiring::GROUP;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Duration;
use windfall_contract::broker::Lag;
use windfall_contract::rules::Rules;

/// The time without an answer after which a broker counts as away.
const PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of `windfall topics`.
#[derive(Debug, Clone, clap::Args)]
pub struct TopicsArgs {
    /// The options file of the processes (TOML), which names the brokers and the place of the live rules
    #[arg(long)]
    config: Option<PathBuf>,
    /// The data directory, in place of the option `data`
    #[arg(long)]
    data: Option<PathBuf>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// A topic and what is left in it.
#[derive(serde::Serialize)]
struct Row {
    topic: String,
    broker: String,
    partitions: u32,
    state: &'static str,
    /// Records that the consumers have not finished; `None`: the broker does not say.
    left: Option<u64>,
    why: Option<String>,
}

/// Prints them; the exit code is 1 while a topic that drains holds records, or may.
pub fn run(args: &TopicsArgs) -> Result<Outcome> {
    let options = ServiceOptions::load(args.config.as_deref(), args.data.clone())?;
    let text = options.rules.store(&options.data, None)?.show()?;
    let rules = windfall_config::parse_rules(&text, None).context("the live rules are refused")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let rows = runtime.block_on(async {
        let mut rows = named(&rules);
        for row in &mut rows {
            match left(&options, row).await {
                Ok(lag) => row.left = Some(lag.records()),
                Err(error) => row.why = Some(format!("{error:#}")),
            }
        }
        rows
    });
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        for Row { topic, broker, partitions, state, left, why } in &rows {
            let left = left.map_or_else(|| "?".to_owned(), |left| left.to_string());
            let why = why.as_deref().unwrap_or_default();
            println!(
                "{state:<8}  {left:>10} records  {partitions:>4} partitions  {topic} on {broker}  {why}"
            );
        }
    }
    let is_done = |row: &Row| row.state == "active" || row.left == Some(0);
    Ok(if rows.iter().all(is_done) { Outcome::Clean } else { Outcome::Damage })
}

fn named(rules: &Rules) -> Vec<Row> {
    let row = |topic: &String, broker: &String, partitions, state| Row {
        topic: topic.clone(),
        broker: broker.clone(),
        partitions,
        state,
        left: None,
        why: None,
    };
    let active =
        rules.topics.iter().map(|(name, topic)| row(name, &topic.broker, topic.partitions, "active"));
    let draining = rules.draining.iter().map(|old| row(&old.topic, &old.broker, old.partitions, "draining"));
    active.chain(draining).collect()
}

async fn left(options: &ServiceOptions, row: &Row) -> Result<Lag> {
    let at = options
        .brokers
        .get(&row.broker)
        .with_context(|| format!("the options do not name the broker {}", row.broker))?;
    if let BrokerAt::Embedded = at {
        anyhow::bail!("an embedded broker is its process's own; ask that process's metrics");
    }
    let (at, name, folder) = (at.clone(), row.broker.clone(), place::broker(&options.data, &row.broker));
    let broker = tokio::task::spawn_blocking(move || at.open(&name, &folder)).await??;
    let asked = tokio::time::timeout(PATIENCE, broker.lag(&row.topic, GROUP)).await;
    Ok(asked.with_context(|| format!("no answer in {} s", PATIENCE.as_secs()))??)
}
