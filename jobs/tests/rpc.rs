//! Jobs over their service: whose jobs, who changed them, which error for what.
#![cfg(feature = "rpc")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
mod fixture;

use fixture::{Fleet, eventually};
use std::sync::Arc;
use tonic::{Code, Request};
use windfall_contract::Clock;
use windfall_edge::{Call, Caller, Role};
use windfall_jobs::rpc::JobsService;
use windfall_jobs::runs::Sent;
use windfall_jobs::xxl::AddressRules;
use windfall_proto::v1;
use windfall_proto::v1::job_spec::{Destination, Schedule};
use windfall_proto::v1::jobs_server::Jobs as _;
use windfall_proto::v1::{JobRunOutcome, JobRunState, put_job_result};

/// Far enough ahead that nothing is due.
const LATER_MS: u64 = 4_000_000_000_000;

/// A caller of the app `t`, which is the fixture's tenant, that may act for `other` too.
fn asking<T>(message: T) -> Request<T> {
    let caller = Caller {
        name: "crm".into(),
        tenant: "t".into(),
        roles: [Role::Schedule].into(),
        timers_of: Arc::new(["other".to_owned()].into()),
    };
    let mut request = Request::new(message);
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    request
}

fn service(fleet: &Fleet) -> JobsService {
    JobsService::new(fleet.jobs().clone(), Clock::system())
}

fn spec() -> v1::JobSpec {
    let to = v1::ExecutorDestination { app: "app".into(), handler: "h".into(), routing: 0 };
    v1::JobSpec {
        schedule: Some(Schedule::At(v1::OneTime { time_ms: LATER_MS })),
        destination: Some(Destination::Executor(to)),
        ..v1::JobSpec::default()
    }
}

fn put(tenant: &str, name: &str, spec: v1::JobSpec) -> Request<v1::PutJobRequest> {
    asking(v1::PutJobRequest {
        tenant: tenant.into(),
        name: name.into(),
        spec: Some(spec),
        expected_version: None,
        why: "a test".into(),
    })
}

fn get(tenant: &str, name: &str) -> Request<v1::GetJobRequest> {
    asking(v1::GetJobRequest { tenant: tenant.into(), name: name.into() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_its_tenants_and_its_versions_say_who_made_them() {
    let fleet = Fleet::start().await;
    let service = service(&fleet);
    let made = service.put(put("", "a", spec())).await.unwrap().into_inner();
    assert_eq!((made.version, made.next_ms, made.change.unwrap().by.as_str()), (1, LATER_MS, "crm"));
    assert_eq!(service.get(get("t", "a")).await.unwrap().into_inner().number, made.number);
    assert_eq!(service.get(get("other", "a")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(service.get(get("foreign", "a")).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(service.put(put("foreign", "a", spec())).await.unwrap_err().code(), Code::PermissionDenied);

    let with = |expected_version, params: &str| {
        let spec = v1::JobSpec { params: params.into(), ..spec() };
        let request = put("", "a", spec).into_inner();
        asking(v1::PutJobRequest { expected_version, ..request })
    };
    let stale = service.put(with(Some(0), "p")).await.unwrap_err();
    assert_eq!(stale.code(), Code::FailedPrecondition, "{stale}");
    assert_eq!(service.put(with(Some(1), "p")).await.unwrap().into_inner().version, 2);
    // The same call again finds what it did.
    assert_eq!(service.put(with(Some(1), "p")).await.unwrap().into_inner().version, 2);
    let pause = v1::SetJobPausedRequest { name: "a".into(), paused: true, ..Default::default() };
    let paused = service.set_paused(asking(pause)).await.unwrap().into_inner();
    assert_eq!((paused.version, paused.paused, paused.next_ms), (3, true, 0));
    let versions = v1::JobVersionsRequest { name: "a".into(), ..Default::default() };
    let versions = service.versions(asking(versions)).await.unwrap().into_inner().versions;
    let shown = versions.iter().map(|version| (version.version, version.paused));
    assert_eq!(shown.collect::<Vec<_>>(), [(1, false), (2, false), (3, true)]);
    let remove = || asking(v1::RemoveJobRequest { tenant: String::new(), name: "a".into() });
    assert!(service.remove(remove()).await.unwrap().into_inner().found);
    assert!(!service.remove(remove()).await.unwrap().into_inner().found);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_made_with_an_answer_each_and_listed_by_pages() {
    let fleet = Fleet::start().await;
    let service = service(&fleet);
    let many = || {
        let mut jobs: Vec<_> =
            (0..30).map(|nth| v1::NewJob { name: format!("job-{nth}"), spec: Some(spec()) }).collect();
        jobs[3].name = "a b".into();
        jobs[7].spec = None;
        asking(v1::PutJobsRequest { jobs, ..Default::default() })
    };
    let first = service.put_many(many()).await.unwrap().into_inner().results;
    for (nth, result) in first.iter().enumerate() {
        match (&result.result, nth) {
            (Some(put_job_result::Result::Failure(failure)), 3 | 7) => {
                assert_eq!(failure.code, i32::from(Code::InvalidArgument), "{failure:?}");
            }
            (Some(put_job_result::Result::Number(_)), nth) => assert!(nth != 3 && nth != 7),
            (other, nth) => panic!("{nth}: {other:?}"),
        }
    }
    // Made again after a lost answer, it finds its own.
    assert_eq!(service.put_many(many()).await.unwrap().into_inner().results, first);
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = v1::ListJobsRequest { after, page_size: 7, ..Default::default() };
        let page = service.list(asking(page)).await.unwrap().into_inner();
        names.extend(page.jobs.into_iter().map(|job| job.name));
        if page.next_after.is_empty() {
            break;
        }
        after = page.next_after;
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 28);
    for count in [0, 1_001] {
        let jobs = vec![v1::NewJob { name: "x".into(), spec: Some(spec()) }; count];
        let refused = service.put_many(asking(v1::PutJobsRequest { jobs, ..Default::default() })).await;
        assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_reported_by_its_own_tenant_alone() {
    let fleet = Fleet::start().await;
    fleet.answer(|_| Sent::Accepted);
    fleet.register("app", &["http://10.0.0.1:1"]).await;
    let service = service(&fleet);
    service.put(put("", "a", spec())).await.unwrap();
    let run = v1::RunJobRequest { name: "a".into(), params: Some("now".into()), ..Default::default() };
    let run = service.run(asking(run)).await.unwrap().into_inner().run;
    let shown = || async {
        let asked = v1::GetRunRequest { tenant: String::new(), run };
        service.get_run(asking(asked)).await.unwrap().into_inner()
    };
    eventually(|| async { shown().await.state() == JobRunState::Running }).await;
    let report = |tenant: &str| {
        let reports = vec![v1::RunReport { run, result: 1, message: "done".into(), attempt: 0 }];
        asking(v1::ReportRunsRequest { tenant: tenant.into(), reports })
    };
    service.report(report("other")).await.unwrap();
    assert_eq!(shown().await.state(), JobRunState::Running, "another tenant has ended it");
    let foreign = v1::GetRunRequest { tenant: "other".into(), run };
    assert_eq!(service.get_run(asking(foreign)).await.unwrap_err().code(), Code::NotFound);
    let again = v1::RunAgainRequest { tenant: String::new(), run };
    assert_eq!(service.run_again(asking(again)).await.unwrap_err().code(), Code::FailedPrecondition);
    service.report(report("")).await.unwrap();
    service.report(report("t")).await.unwrap();
    let ended = shown().await;
    assert_eq!((ended.outcome(), ended.message.as_str()), (JobRunOutcome::Succeeded, "done"));
    let runs = v1::ListRunsRequest { name: "a".into(), ..Default::default() };
    let runs = service.list_runs(asking(runs)).await.unwrap().into_inner();
    assert_eq!((runs.runs.len(), runs.next_after), (1, 0));
    let dead = service.list_dead(asking(v1::ListDeadRunsRequest::default())).await.unwrap().into_inner();
    assert!(dead.runs.is_empty());
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_ended_once_and_its_log_is_read_by_its_own_tenant_alone() {
    let fleet = Fleet::start().await;
    fleet.answer(|_| Sent::Accepted);
    fleet.register("app", &["http://10.0.0.1:1"]).await;
    let service = service(&fleet);
    service.put(put("", "a", spec())).await.unwrap();
    let run = v1::RunJobRequest { name: "a".into(), ..Default::default() };
    let run = service.run(asking(run)).await.unwrap().into_inner().run;
    let shown = || async {
        let asked = v1::GetRunRequest { tenant: String::new(), run };
        service.get_run(asking(asked)).await.unwrap().into_inner()
    };
    eventually(|| async { shown().await.state() == JobRunState::Running }).await;
    let log = |tenant: &str| asking(v1::RunLogRequest { tenant: tenant.into(), run, ..Default::default() });
    assert_eq!(service.log(log("other")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(service.log(log("")).await.unwrap().into_inner(), v1::RunLogReply::default());
    let kill = |tenant: &str| asking(v1::KillRunRequest { tenant: tenant.into(), run });
    assert_eq!(service.kill(kill("other")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(shown().await.state(), JobRunState::Running, "another tenant has ended it");
    assert!(!service.kill(kill("")).await.unwrap().into_inner().was_over);
    let ended = shown().await;
    assert_eq!((ended.outcome(), ended.message.as_str()), (JobRunOutcome::Killed, "ended by crm"));
    assert!(service.kill(kill("")).await.unwrap().into_inner().was_over);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn executors_come_and_go_and_what_cannot_be_is_refused_by_its_field() {
    let fleet = Fleet::start().await;
    let service = service(&fleet);
    let at = |address: &str| {
        asking(v1::RegisterExecutorRequest {
            app: "app".into(),
            address: address.into(),
            ..Default::default()
        })
    };
    service.register(at("GRPC://a:1")).await.unwrap_err();
    service.register(at("grpc://Worker:7000")).await.unwrap();
    service.register(at("http://worker:9999/")).await.unwrap();
    let list = || async {
        let asked = v1::ListExecutorsRequest { app: "app".into(), ..Default::default() };
        let found = service.list_executors(asking(asked)).await.unwrap().into_inner().executors;
        found.into_iter().map(|executor| executor.address).collect::<Vec<_>>()
    };
    assert_eq!(list().await, ["grpc://worker:7000", "http://worker:9999"]);
    let elsewhere = service.clone().with_rules(AddressRules::parse(&["10.0.0.0/8"]).unwrap());
    let refused = elsewhere.register(at("grpc://127.0.0.1:7000")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert!(refused.message().contains("jobs.allow"), "{refused:?}");
    service.unregister(at("grpc://worker:7000")).await.unwrap();
    assert_eq!(list().await, ["http://worker:9999"]);

    let target = Destination::Target(v1::TargetDestination { name: "nowhere".into() });
    let past = Schedule::At(v1::OneTime { time_ms: 1 });
    for (name, spec, code, words) in [
        ("a b", spec(), Code::InvalidArgument, "is no name of a job"),
        (
            "a",
            v1::JobSpec { destination: Some(target), ..spec() },
            Code::InvalidArgument,
            "no target `nowhere`",
        ),
        ("a", v1::JobSpec { schedule: Some(past), ..spec() }, Code::FailedPrecondition, "no occurrence"),
        ("a", v1::JobSpec { timeout_s: 90_000, ..spec() }, Code::InvalidArgument, "timeout_s"),
    ] {
        let refused = service.put(put("", name, spec)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
    let cron = v1::CronSchedule { expression: "0 30 2 * * ?".into(), zone: "Europe/Berlin".into() };
    let preview = v1::PreviewJobRequest {
        spec: Some(v1::JobSpec { schedule: Some(Schedule::Cron(cron)), ..Default::default() }),
        after_ms: 1_800_000_000_000,
        count: 3,
    };
    assert_eq!(service.preview(asking(preview)).await.unwrap().into_inner().times_ms.len(), 3);
    let delay = Schedule::FixedDelay(v1::FixedDelay { delay_ms: 5_000 });
    let preview = v1::PreviewJobRequest {
        spec: Some(v1::JobSpec { schedule: Some(delay), ..Default::default() }),
        after_ms: 7_000,
        count: 3,
    };
    assert_eq!(service.preview(asking(preview)).await.unwrap().into_inner().times_ms, [12_000]);
    fleet.stop().await;
}
