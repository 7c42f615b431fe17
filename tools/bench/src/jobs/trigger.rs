//! `jobs.trigger`: runs that end per second, handed over gRPC to an executor that ends each at once. More jobs are due each
//! second than a process can run, so that there is always work; the first seconds do not count. Beside it bare calls of
//! the same executor, with as many runs a call as ours have at most. The further figures are those of an executor inside this
//! process, which is the cost of ours alone, on Redis and in files, and of one that speaks the protocol of XXL-JOB.

use super::executors::{Way, serve_wired};
use super::{APP, EVERY_SECOND, Instance, Stores, put_all};
use crate::measure::{Row, Unit, per, process_cpu_ns, scratch};
use crate::scheduler::{Control, on_redis, sized};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::transport::Endpoint;
use windfall_proto::v1;
use windfall_proto::v1::executor_client::ExecutorClient;

/// The first seconds do not count.
const WARM_UP: Duration = Duration::from_secs(4);
/// Bare calls at a time, and runs of a call.
const BARE_CALLERS: usize = 4;
const BARE_RUNS: u64 = 256;

/// What was measured.
struct Sustained {
    ended_per_s: f64,
    own_cpu_ns: f64,
    redis_cpu_ns: f64,
}

pub fn measure(name: &'static str) -> Result<Row> {
    let on_redis = |way| on_redis(async move |url: String| run(Some(&url), way).await);
    let grpc = on_redis(Way::Grpc)?;
    let here = on_redis(Way::Here)?;
    let xxl = on_redis(Way::Xxl)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let embedded = runtime.block_on(run(None, Way::Here))?;
    let bare_per_s = runtime.block_on(bare_calls())?;
    Ok(Row::new(name, grpc.ended_per_s, Unit::PerSecond, Some(bare_per_s))
        .with("cpu_ns_a_run", grpc.own_cpu_ns)
        .with("redis_cpu_ns_a_run", grpc.redis_cpu_ns)
        .with("in_process_per_s", here.ended_per_s)
        .with("in_process_cpu_ns_a_run", here.own_cpu_ns)
        .with("embedded_in_process_per_s", embedded.ended_per_s)
        .with("embedded_in_process_cpu_ns_a_run", embedded.own_cpu_ns)
        .with("xxl_per_s", xxl.ended_per_s)
        .with("xxl_cpu_ns_a_run", xxl.own_cpu_ns))
}

/// On a Redis, or in a folder.
async fn run(url: Option<&str>, way: Way) -> Result<Sustained> {
    let folder = scratch()?;
    let (stores, mut control) = match url {
        Some(url) => (Stores::on_redis(url).await?, Some(Control::open(url).await?)),
        None => (Stores::in_folder(folder.path())?, None),
    };
    let instance = Instance::start(&stores, "one", way.calls()?);
    let executor = way.start(&instance.jobs).await?;
    instance.has_executor().await?;
    put_all(&instance.jobs, sized(60_000, 2_000), "job", |_| EVERY_SECOND.to_owned()).await?;
    tokio::time::sleep(WARM_UP).await;

    let stats = instance.jobs.stats();
    let (redis_ns, own_ns) = (redis_cpu_ns(&mut control).await?, process_cpu_ns());
    let (before, began) = (stats.succeeded.get(), Instant::now());
    tokio::time::sleep(Duration::from_secs(sized(10, 3))).await;
    let (ended, took) = (stats.succeeded.get() - before, began.elapsed());
    ensure!(ended > 0, "no run has ended within {took:?}");
    let own_cpu_ns = per(process_cpu_ns() - own_ns, ended);
    let redis_cpu_ns = (redis_cpu_ns(&mut control).await? - redis_ns) / per(ended, 1);
    eprintln!(
        "  {way:?} on {}: {ended} runs ended in {took:.1?}; since the start failed {}, sent again {}, retried {}, found overdue \
         {}, left out {}",
        if url.is_some() { "Redis" } else { "files" },
        stats.failed.get(),
        stats.sent_again.get(),
        stats.retried.get(),
        stats.overdue_found.get(),
        stats.left_out.get(),
    );
    instance.stop().await;
    executor.stop().await;
    Ok(Sustained { ended_per_s: per(ended, 1) / took.as_secs_f64(), own_cpu_ns, redis_cpu_ns })
}

async fn redis_cpu_ns(control: &mut Option<Control>) -> Result<f64> {
    match control {
        Some(control) => control.cpu_ns().await,
        None => Ok(0.0),
    }
}

/// Runs per second by calls that are made one after the other by each of [`BARE_CALLERS`], and come from no store.
async fn bare_calls() -> Result<f64> {
    let (address, serving) = serve_wired().await?;
    let client = ExecutorClient::new(Endpoint::new(format!("http://{address}"))?.connect().await?);
    let (calls, began) = (sized(5_000, 50), Instant::now());
    let mut callers = JoinSet::new();
    for _ in 0..BARE_CALLERS {
        let mut client = client.clone();
        callers.spawn(async move {
            for call in 0..calls {
                let runs = (0..BARE_RUNS).map(|number| bare_run(call * BARE_RUNS + number)).collect();
                let request = v1::RunBatchRequest { app: APP.into(), runs };
                let receipts = client.run_batch(request).await?.into_inner().receipts;
                ensure!(
                    receipts.len() as u64 == BARE_RUNS,
                    "{} of {BARE_RUNS} receipts came",
                    receipts.len()
                );
            }
            Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    let took = began.elapsed();
    serving.abort();
    Ok(per(calls * BARE_RUNS * BARE_CALLERS as u64, 1) / took.as_secs_f64())
}

/// A run as large as one of ours.
fn bare_run(number: u64) -> v1::ExecutorRun {
    v1::ExecutorRun {
        run: number,
        job: number,
        occurrence_id: format!("{number:032x}"),
        handler: "count".into(),
        params: "greetings".into(),
        timeout_s: 300,
        due_ms: 1_800_000_000_000,
        attempt: 1,
        part_total: 1,
        ..v1::ExecutorRun::default()
    }
}
