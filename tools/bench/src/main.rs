//! `windfall-bench`: what each part costs and how fast the whole is, in one table.
//!
//! Call it by `./dev bench [NAME …] [--json]`. docs/benchmarks.md says what each row measures, what it must reach
//! and what it reached. Not here: proof that the results are right; that is what the tests and the demo are for.

mod bare_producer;
mod consume_embedded;
mod demo_calm;
mod grpc_grant;
mod grpc_grant_async;
mod jobs;
mod kafka_consume;
mod kafka_send;
mod limiter_admit;
mod measure;
mod mint;
mod outage_send;
mod postgres_grant;
mod record_sign;
mod redis_store;
mod rocketmq;
mod scheduler;
mod send_call;
mod served;
mod taskqueue;
mod token_verify;
mod window_deliver_finish;

use anyhow::{Context, Result};
use clap::Parser;
use measure::Row;
use serde::Serialize;

/// What the binary `windfall` has, whose parts are measured here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One line of the table, and how it comes to its value.
type Measure = fn(&'static str) -> Result<Row>;

const ROWS: [(&str, Measure); 39] = [
    ("send.call", send_call::measure),
    ("mint.hmac", mint::hmac),
    ("mint.ed25519", mint::ed25519),
    ("record.sign", record_sign::sign),
    ("record.verify", record_sign::verify),
    ("window.deliver_finish", window_deliver_finish::measure),
    ("limiter.admit", limiter_admit::measure),
    ("consume.embedded", consume_embedded::measure),
    ("kafka.send", kafka_send::measure),
    ("kafka.consume", kafka_consume::packed),
    ("kafka.consume_pack1", kafka_consume::single),
    ("kafka.consume_10ms", kafka_consume::waiting),
    ("kafka.consume_zipf", kafka_consume::zipf),
    ("redis.store", redis_store::measure),
    ("rocketmq.send", rocketmq::send),
    ("rocketmq.receive", rocketmq::receive),
    ("postgres.grant", postgres_grant::measure),
    ("token.verify", token_verify::measure),
    ("grpc.grant", grpc_grant::measure),
    ("grpc.grant_async", grpc_grant_async::measure),
    ("scheduler.add", scheduler::add::measure),
    ("scheduler.bytes_per_task", scheduler::bytes_per_task::measure),
    ("scheduler.fire", scheduler::fire::measure),
    ("scheduler.lateness", scheduler::lateness::lateness),
    ("scheduler.mixed", scheduler::lateness::mixed),
    ("scheduler.cancel", scheduler::cancel::measure),
    ("scheduler.embedded", scheduler::embedded::measure),
    ("scheduler.far", scheduler::far::measure),
    ("taskqueue.publish", taskqueue::publish),
    ("taskqueue.bulk", taskqueue::bulk),
    ("taskqueue.consume", taskqueue::consume),
    ("taskqueue.ack", taskqueue::ack),
    ("taskqueue.ready", taskqueue::ready),
    ("taskqueue.bytes_per_job", taskqueue::bytes_per_job),
    ("jobs.trigger", jobs::trigger::measure),
    ("jobs.cron", jobs::cron::measure),
    ("jobs.one_off", jobs::one_off::measure),
    ("demo.calm", demo_calm::measure),
    ("outage.send", outage_send::measure),
];

/// Rows that take many minutes: measured only by their name.
const BY_NAME: [&str; 1] = ["outage.send"];

/// Rows that have a name together.
const GROUPS: [(&str, &[&str]); 1] = [("services", &["token.verify", "grpc.grant", "grpc.grant_async"])];

/// Measures Windfall; prints one table. What each row means stands in docs/benchmarks.md.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Rows to measure, or what stands before their dots (kafka, redis …), for all of these; `services` for those of
    /// the services; none: all but outage.send, which takes twelve minutes
    #[arg(value_name = "NAME", value_parser = known)]
    names: Vec<String>,
    /// Print one JSON object on standard output and nothing else there
    #[arg(long)]
    json: bool,
    /// Tasks of the row scheduler.far [default: 10000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    far_tasks: Option<u64>,
    /// Orders of each of three writers in a round of postgres.grant, grpc.grant and grpc.grant_async, whole thousands
    /// [default: 30000]
    #[arg(long, value_name = "N", value_parser = thousands)]
    orders: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Table {
    rows: Vec<Row>,
}

/// Whether a word from the command line means this row.
fn means(word: &str, row: &str) -> bool {
    let in_group = GROUPS.iter().any(|(name, rows)| *name == word && rows.contains(&row));
    in_group || row.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn known(word: &str) -> Result<String, String> {
    if ROWS.iter().any(|(row, _)| means(word, row)) {
        return Ok(word.into());
    }
    Err(format!("there are these: {}", ROWS.map(|(row, _)| row).join(" ")))
}

/// Whole batches of each row.
fn thousands(word: &str) -> Result<u64, String> {
    let orders: u64 = word.parse().map_err(|_| "a number from 1000 to 10000000".to_owned())?;
    match orders % 1_000 {
        0 if (1_000..=10_000_000).contains(&orders) => Ok(orders),
        _ => Err("whole thousands from 1000 to 10000000".into()),
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let wanted = |row: &str| match args.names.as_slice() {
        [] => !BY_NAME.contains(&row),
        names => names.iter().any(|word| means(word, row)),
    };
    if let Some(tasks) = args.far_tasks {
        scheduler::far::TASKS.get_or_init(|| tasks);
    }
    if let Some(orders) = args.orders {
        postgres_grant::ORDERS.get_or_init(|| orders);
    }
    let mut table = Table { rows: Vec::new() };
    for (name, measure) in ROWS.into_iter().filter(|(name, _)| wanted(name)) {
        eprintln!("{name} …");
        table.rows.push(measure(name).with_context(|| format!("{name} could not be measured"))?);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&table)?);
    } else {
        print_table(&table);
    }
    Ok(())
}

fn print_table(table: &Table) {
    println!("{:<24} {:>12} {:<4} {:>12} {:>7}", "name", "value", "unit", "baseline", "ratio");
    let number = |value: Option<f64>, digits| value.map_or("-".into(), |value| format!("{value:.digits$}"));
    for row in &table.rows {
        let (name, value, unit, baseline, ratio) = row.columns();
        let (baseline, ratio) = (number(baseline, 1), number(ratio, 2));
        println!("{name:<24} {value:>12.1} {:<4} {baseline:>12} {ratio:>7}", unit.name());
        for (figure, value) in row.more() {
            println!("  {figure:<30} {value:.2}");
        }
    }
}
