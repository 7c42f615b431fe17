//! `jobs.one_off`: one-off jobs that are made per second by `Jobs/PutMany` over gRPC with access keys and limits, 1,000 per call
//! by eight callers, due evenly over two hours of tomorrow. Beside it as many timers by `Timers/AddBatch` in calls of the same
//! size; rounds alternate. The further figures are those of the same jobs made inside the process, on Redis and in files.

use super::executors::Way;
use super::{CALLERS, Instance, JOBS_A_CALL, Stores, put_all};
use crate::measure::{Row, Unit, median, per, process_cpu_ns, scratch};
use crate::scheduler::{Control, add, on_redis, sized};
use crate::served::Served;
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Endpoint;
use windfall_contract::Clock;
use windfall_edge::{Role, Router};
use windfall_jobs::rpc::JobsService;
use windfall_proto::v1;
use windfall_proto::v1::job_spec::{Destination, Schedule};
use windfall_proto::v1::jobs_client::JobsClient;
use windfall_proto::v1::put_job_result::Result as PutResult;

const DAY_MS: u64 = 86_400_000;
const SPREAD_MS: u64 = 7_200_000;
/// Names of the rounds; the first one warms up.
const ROUNDS: [&str; 4] = ["zero", "one", "two", "three"];

/// What the rounds gave.
#[derive(Default)]
struct Figures {
    per_s: Vec<f64>,
    timers_per_s: Vec<f64>,
    cpu_ns: Vec<f64>,
    redis_cpu_ns: Vec<f64>,
    redis_bytes: Vec<f64>,
}

pub fn measure(name: &'static str) -> Result<Row> {
    let (figures, in_process_per_s) = on_redis(async |url: String| on_one(&url).await)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let folder = scratch()?;
    let embedded_per_s = runtime.block_on(async {
        let stores = Stores::in_folder(folder.path())?;
        in_process(Instance::start(&stores, "one", Way::Here.calls()?)).await
    })?;
    Ok(Row::new(name, median(figures.per_s), Unit::PerSecond, Some(median(figures.timers_per_s)))
        .with("cpu_ns_a_job", median(figures.cpu_ns))
        .with("redis_cpu_ns_a_job", median(figures.redis_cpu_ns))
        .with("redis_bytes_a_job", median(figures.redis_bytes))
        .with("in_process_per_s", in_process_per_s)
        .with("embedded_in_process_per_s", embedded_per_s))
}

/// The time of a job.
fn due_ms(from_ms: u64, number: u64, jobs: u64) -> u64 {
    from_ms + number * SPREAD_MS / jobs
}

/// On a Redis: the rounds over gRPC, and what is made per second inside the process.
async fn on_one(url: &str) -> Result<(Figures, f64)> {
    let mut control = Control::open(url).await?;
    let stores = Stores::on_redis(url).await?;
    let instance = Instance::start(&stores, "one", Way::Here.calls()?);
    let service = JobsService::new(instance.jobs.clone(), Clock::system());
    let served = Served::start(Router::new().jobs(service.into()), Role::Schedule).await?;
    let (jobs, from_ms) = (sized(100_000, 4_000), Clock::system().unix_ms() + DAY_MS);
    let mut figures = Figures::default();
    for round in ROUNDS {
        let (own_ns, redis_ns) = (process_cpu_ns(), control.cpu_ns().await?);
        let empty = control.used_bytes().await?;
        let took = put_many(&served, round, jobs, from_ms).await?;
        let own_cpu_ns = per(process_cpu_ns() - own_ns, jobs);
        let redis_cpu_ns = (control.cpu_ns().await? - redis_ns) / per(jobs, 1);
        let redis_bytes = (control.used_bytes().await? - empty) / per(jobs, 1);
        let timers_took =
            add::by_grpc(url, jobs, JOBS_A_CALL, move |number| due_ms(from_ms, number, jobs)).await?;
        eprintln!("  round {round}: {jobs} jobs in {took:.2?}, as many timers in {timers_took:.2?}");
        if round != ROUNDS[0] {
            figures.per_s.push(per(jobs, 1) / took.as_secs_f64());
            figures.timers_per_s.push(per(jobs, 1) / timers_took.as_secs_f64());
            figures.cpu_ns.push(own_cpu_ns);
            figures.redis_cpu_ns.push(redis_cpu_ns);
            figures.redis_bytes.push(redis_bytes);
        }
    }
    served.stop().await;
    Ok((figures, in_process(instance).await?))
}

/// Jobs that are made per second without a call over gRPC; the instance ends.
async fn in_process(instance: Instance) -> Result<f64> {
    let (jobs, from_ms) = (sized(100_000, 4_000), Clock::system().unix_ms() + DAY_MS);
    let at = move |number| format!(r#"{{"at": {{"time_ms": {}}}}}"#, due_ms(from_ms, number, jobs));
    let took = put_all(&instance.jobs, jobs, "own", at).await?;
    instance.stop().await;
    Ok(per(jobs, 1) / took.as_secs_f64())
}

/// Makes jobs over gRPC. How long that took.
async fn put_many(served: &Served, round: &'static str, jobs: u64, from_ms: u64) -> Result<Duration> {
    let options = served.client();
    let key = options.bearer_key.unwrap_or_default();
    let bearer: MetadataValue<Ascii> = format!("Bearer {key}").parse()?;
    let client = JobsClient::new(Endpoint::new(options.endpoints[0].clone())?.connect().await?);
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (mut client, bearer) = (client.clone(), bearer.clone());
        callers.spawn(async move {
            for first in (caller * JOBS_A_CALL..jobs).step_by(usize::try_from(CALLERS * JOBS_A_CALL)?) {
                let numbers = first..jobs.min(first + JOBS_A_CALL);
                let new = numbers.map(|number| new_job(round, number, due_ms(from_ms, number, jobs)));
                let message = v1::PutJobsRequest { jobs: new.collect(), ..v1::PutJobsRequest::default() };
                let mut request = Request::new(message);
                request.metadata_mut().insert("authorization", bearer.clone());
                let results = client.put_many(request).await?.into_inner().results;
                let is_made = |result: &v1::PutJobResult| matches!(result.result, Some(PutResult::Number(_)));
                let wrong = results.iter().find(|result| !is_made(result));
                ensure!(wrong.is_none(), "a job was not made: {wrong:?}");
            }
            Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}

fn new_job(round: &str, number: u64, time_ms: u64) -> v1::NewJob {
    let to = v1::ExecutorDestination { app: super::APP.into(), handler: "count".into(), routing: 0 };
    let spec = v1::JobSpec {
        schedule: Some(Schedule::At(v1::OneTime { time_ms })),
        destination: Some(Destination::Executor(to)),
        params: "greetings".into(),
        ..v1::JobSpec::default()
    };
    v1::NewJob { name: format!("{round}-{number}"), spec: Some(spec) }
}
