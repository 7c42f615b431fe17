//! `windfall.v1.Jobs` over [`Jobs`].

use super::messages::{executor, job, report, run, size, version};
use super::spec::{spec_of, wrong};
use super::status::{failure, status};
use crate::definition::{ChangeNote, Destination, JobName, JobSpec};
use crate::runs::RunNumber;
use crate::xxl::AddressRules;
use crate::{Jobs, JobsError};
use async_trait::async_trait;
use futures_util::stream::{self, StreamExt};
use tonic::{Request, Response, Status};
use windfall_contract::Clock;
use windfall_edge::Call;
use windfall_proto::v1;
use windfall_proto::v1::jobs_server;

/// Jobs or runs of a page at most, and reports or new jobs of a call.
const PAGE_MAX: usize = 1_000;
/// Jobs or runs of a page, where a call does not say.
const PAGE_DEFAULT: usize = 100;
const PREVIEW_MAX: usize = 100;
const PREVIEW_DEFAULT: usize = 5;
/// Bytes of a reason at most.
const WHY_MAX_BYTES: usize = 1_000;
/// Jobs of a page that are read side by side.
const SIDE_BY_SIDE: usize = 16;

/// The service. Mount it as `Router::jobs(Arc::new(JobsService::new(jobs, clock)))`.
#[derive(Clone)]
pub struct JobsService {
    jobs: Jobs,
    clock: Clock,
    rules: Option<AddressRules>,
}

type Answer<T> = Result<Response<T>, Status>;

impl JobsService {
    /// The service over these jobs.
    pub const fn new(jobs: Jobs, clock: Clock) -> Self {
        Self { jobs, clock, rules: None }
    }

    /// Refuses to register executors at addresses that the rules do not permit, which would not be called.
    #[must_use]
    pub fn with_rules(self, rules: AddressRules) -> Self {
        Self { rules: Some(rules), ..self }
    }

    fn note(&self, call: &Call, why: String) -> Result<ChangeNote, JobsError> {
        if why.len() > WHY_MAX_BYTES {
            return Err(wrong("why", format!("at most {WHY_MAX_BYTES} bytes, not {}", why.len())));
        }
        Ok(ChangeNote { at_ms: self.clock.unix_ms(), by: call.caller.name.to_string(), why })
    }

    /// A spec that this process can carry out.
    fn spec(&self, tenant: &str, wire: Option<v1::JobSpec>) -> Result<JobSpec, JobsError> {
        let spec = spec_of(wire)?;
        match &spec.destination {
            Destination::Target { name } if !self.jobs.has_target(tenant, name) => {
                let what = format!(
                    "the tenant `{tenant}` has no target `{name}`; [scheduler.tenants.{tenant}.targets] of the options names \
                     them"
                );
                Err(wrong("spec.target.name", what))
            }
            _ => Ok(spec),
        }
    }

    async fn page(&self, tenant: &str, after: &str, limit: usize) -> Result<v1::ListJobsReply, JobsError> {
        let after = match after {
            "" => None,
            name => Some(JobName::new(name)?),
        };
        let (names, is_more) = self.jobs.names(tenant, after.as_ref(), limit).await?;
        let next_after = names.last().filter(|_| is_more).map(ToString::to_string).unwrap_or_default();
        let views = stream::iter(names).map(|name| async move { self.jobs.get(tenant, &name).await });
        let views: Vec<_> = views.buffered(SIDE_BY_SIDE).collect().await;
        let mut jobs = Vec::with_capacity(views.len());
        for view in views {
            match view {
                Ok(view) => jobs.push(job(&view)),
                // It was removed between the two reads.
                Err(JobsError::UnknownJob(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(v1::ListJobsReply { jobs, next_after })
    }

    /// When a job with this spec is due.
    fn preview(&self, asked: v1::PreviewJobRequest) -> Result<Vec<u64>, JobsError> {
        let count = size("count", asked.count, PREVIEW_DEFAULT, PREVIEW_MAX)?;
        let mut wire = asked.spec.unwrap_or_default();
        // Where its runs go does not matter.
        wire.destination =
            Some(v1::job_spec::Destination::Target(v1::TargetDestination { name: "any".into() }));
        let spec = spec_of(Some(wire))?;
        spec.check()?;
        let after_ms = if asked.after_ms == 0 { self.clock.unix_ms() } else { asked.after_ms };
        if let Some(first_ms) = spec.next_after_end(after_ms) {
            return Ok(vec![first_ms]);
        }
        let times = std::iter::successors(spec.next_after(after_ms), |last_ms| spec.next_after(*last_ms));
        Ok(times.take(count).collect())
    }
}

/// What a call wants, with the tenant that it acts for.
fn begin<T>(request: Request<T>, tenant: impl Fn(&T) -> &str) -> Result<(Call, String, T), Status> {
    let call = Call::of(&request)?.clone();
    let message = request.into_inner();
    let tenant = call.caller.timers_tenant(tenant(&message))?.to_owned();
    Ok((call, tenant, message))
}

fn answer<T>(done: Result<T, JobsError>) -> Answer<T> {
    done.map(Response::new).map_err(|error| status(&error))
}

fn name_of(name: &str) -> Result<JobName, Status> {
    JobName::new(name).map_err(|error| status(&error.into()))
}

fn check_count(field: &'static str, count: usize) -> Result<(), Status> {
    match count {
        1..=PAGE_MAX => Ok(()),
        _ => Err(status(&wrong(field, format!("1 to {PAGE_MAX}, not {count}")))),
    }
}

#[async_trait]
impl jobs_server::Jobs for JobsService {
    async fn put(&self, request: Request<v1::PutJobRequest>) -> Answer<v1::Job> {
        let (call, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let name = name_of(&asked.name)?;
        let put = async {
            let spec = self.spec(&tenant, asked.spec)?;
            let note = self.note(&call, asked.why)?;
            self.jobs.put(&tenant, &name, &spec, asked.expected_version, note).await
        };
        answer(put.await.map(|view| job(&view)))
    }

    async fn put_many(&self, request: Request<v1::PutJobsRequest>) -> Answer<v1::PutJobsReply> {
        let (call, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        check_count("jobs", asked.jobs.len())?;
        let note = self.note(&call, asked.why).map_err(|error| status(&error))?;
        // What is malformed is answered here, and does not keep the others from being made.
        let (mut good, mut results) = (Vec::new(), Vec::with_capacity(asked.jobs.len()));
        for new in asked.jobs {
            let read = JobName::new(&new.name).map_err(JobsError::from);
            match read.and_then(|name| Ok((name, self.spec(&tenant, new.spec)?))) {
                Ok(new) => {
                    good.push(new);
                    results.push(None);
                }
                Err(error) => results.push(Some(v1::put_job_result::Result::Failure(failure(&error)))),
            }
        }
        let mut made = self.jobs.put_new(&tenant, &good, &note).await.into_iter();
        for result in results.iter_mut().filter(|result| result.is_none()) {
            *result = made.next().map(|made| match made {
                Ok(number) => v1::put_job_result::Result::Number(number.0),
                Err(error) => v1::put_job_result::Result::Failure(failure(&error)),
            });
        }
        let results = results.into_iter().map(|result| v1::PutJobResult { result }).collect();
        Ok(Response::new(v1::PutJobsReply { results }))
    }

    async fn get(&self, request: Request<v1::GetJobRequest>) -> Answer<v1::Job> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        answer(self.jobs.get(&tenant, &name_of(&asked.name)?).await.map(|view| job(&view)))
    }

    async fn list(&self, request: Request<v1::ListJobsRequest>) -> Answer<v1::ListJobsReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let limit = size("page_size", asked.page_size, PAGE_DEFAULT, PAGE_MAX);
        answer(self.page(&tenant, &asked.after, limit.map_err(|error| status(&error))?).await)
    }

    async fn versions(&self, request: Request<v1::JobVersionsRequest>) -> Answer<v1::JobVersionsReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let versions = self.jobs.versions(&tenant, &name_of(&asked.name)?).await;
        answer(versions.map(|all| v1::JobVersionsReply { versions: all.iter().map(version).collect() }))
    }

    async fn set_paused(&self, request: Request<v1::SetJobPausedRequest>) -> Answer<v1::Job> {
        let (call, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let name = name_of(&asked.name)?;
        let set = async {
            let note = self.note(&call, asked.why)?;
            self.jobs.set_paused(&tenant, &name, asked.paused, note).await
        };
        answer(set.await.map(|view| job(&view)))
    }

    async fn remove(&self, request: Request<v1::RemoveJobRequest>) -> Answer<v1::RemoveJobReply> {
        let (call, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let removed = self.jobs.remove(&tenant, &name_of(&asked.name)?).await;
        if let Ok(true) = removed {
            tracing::info!(tenant, job = asked.name, by = &*call.caller.name, "a job was removed");
        }
        answer(removed.map(|found| v1::RemoveJobReply { found }))
    }

    async fn run(&self, request: Request<v1::RunJobRequest>) -> Answer<v1::RunJobReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let started = self.jobs.run(&tenant, &name_of(&asked.name)?, asked.params).await;
        answer(started.map(|number| v1::RunJobReply { run: number.0 }))
    }

    async fn list_runs(&self, request: Request<v1::ListRunsRequest>) -> Answer<v1::ListRunsReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let name = name_of(&asked.name)?;
        let after = Some(asked.after).filter(|after| *after > 0).map(RunNumber);
        let list = async {
            let limit = size("page_size", asked.page_size, PAGE_DEFAULT, PAGE_MAX)?;
            let runs = self.jobs.runs(&tenant, &name, after, limit).await?;
            let next_after = runs.last().filter(|_| runs.len() == limit).map_or(0, |last| last.number.0);
            Ok(v1::ListRunsReply { runs: runs.iter().map(run).collect(), next_after })
        };
        answer(list.await)
    }

    async fn get_run(&self, request: Request<v1::GetRunRequest>) -> Answer<v1::JobRun> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        answer(self.jobs.find_run(&tenant, RunNumber(asked.run)).await.map(|view| run(&view)))
    }

    async fn run_again(&self, request: Request<v1::RunAgainRequest>) -> Answer<v1::RunAgainReply> {
        let (call, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let again = self.jobs.run_again(&tenant, RunNumber(asked.run)).await;
        if again.is_ok() {
            tracing::info!(tenant, run = asked.run, by = &*call.caller.name, "a run is run again");
        }
        answer(again.map(|()| v1::RunAgainReply {}))
    }

    async fn kill(&self, request: Request<v1::KillRunRequest>) -> Answer<v1::KillRunReply> {
        let (call, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let killed = self.jobs.kill(&tenant, RunNumber(asked.run), &call.caller.name).await;
        answer(killed.map(|is_ended| v1::KillRunReply { was_over: !is_ended }))
    }

    async fn log(&self, request: Request<v1::RunLogRequest>) -> Answer<v1::RunLogReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let lines = self.jobs.log(&tenant, RunNumber(asked.run), asked.from_line.max(1)).await;
        answer(lines.map(|lines| v1::RunLogReply {
            text: lines.text,
            next_line: lines.next_line,
            is_end: lines.is_end,
        }))
    }

    async fn list_dead(&self, request: Request<v1::ListDeadRunsRequest>) -> Answer<v1::ListDeadRunsReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let list = async {
            let limit = size("limit", asked.limit, PAGE_DEFAULT, PAGE_MAX)?;
            let after = Some(asked.after).filter(|after| *after > 0).map(RunNumber);
            let runs = self.jobs.dead_runs(&tenant, after, limit).await?;
            let next_after = runs.last().filter(|_| runs.len() == limit).map_or(0, |last| last.number.0);
            Ok(v1::ListDeadRunsReply { runs: runs.iter().map(run).collect(), next_after })
        };
        answer(list.await)
    }

    async fn list_executors(
        &self,
        request: Request<v1::ListExecutorsRequest>,
    ) -> Answer<v1::ListExecutorsReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let executors = self.jobs.executors(&tenant, &asked.app).await;
        answer(
            executors
                .map(|views| v1::ListExecutorsReply { executors: views.into_iter().map(executor).collect() }),
        )
    }

    async fn register(
        &self,
        request: Request<v1::RegisterExecutorRequest>,
    ) -> Answer<v1::RegisterExecutorReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let registered = async {
            let address = super::address::canonical(&asked.address)?;
            if let Some(rules) = &self.rules {
                super::address::permitted(&address, rules)?;
            }
            self.jobs.register(&tenant, &asked.app, &address).await
        };
        answer(registered.await.map(|()| v1::RegisterExecutorReply {}))
    }

    async fn unregister(
        &self,
        request: Request<v1::RegisterExecutorRequest>,
    ) -> Answer<v1::RegisterExecutorReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        let unregistered = async {
            let address = super::address::canonical(&asked.address)?;
            self.jobs.unregister(&tenant, &asked.app, &address).await
        };
        answer(unregistered.await.map(|()| v1::RegisterExecutorReply {}))
    }

    async fn report(&self, request: Request<v1::ReportRunsRequest>) -> Answer<v1::ReportRunsReply> {
        let (_, tenant, asked) = begin(request, |asked| &asked.tenant)?;
        check_count("reports", asked.reports.len())?;
        let reported = async {
            let reports = asked.reports.into_iter().map(report).collect::<Result<Vec<_>, _>>()?;
            self.jobs.report(&tenant, reports).await
        };
        answer(reported.await.map(|()| v1::ReportRunsReply {}))
    }

    async fn preview(&self, request: Request<v1::PreviewJobRequest>) -> Answer<v1::PreviewJobReply> {
        answer(self.preview(request.into_inner()).map(|times_ms| v1::PreviewJobReply { times_ms }))
    }
}
