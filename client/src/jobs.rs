//! Jobs: made, changed, run and looked at; and what executors call.

use crate::error::CallError;
use crate::link::{Link, Repeat};
use crate::options::{ANSWER_MAX_BYTES, ClientOptions, OpenError};
use std::sync::Arc;
use tonic::transport::Channel;
use windfall_proto::v1::jobs_client::JobsClient as Stub;
use windfall_proto::v1::{
    GetJobRequest, GetRunRequest, Job, JobRun, JobVersionsReply, JobVersionsRequest, KillRunReply,
    KillRunRequest, ListDeadRunsReply, ListDeadRunsRequest, ListExecutorsReply, ListExecutorsRequest,
    ListJobsReply, ListJobsRequest, ListRunsReply, ListRunsRequest, PreviewJobReply, PreviewJobRequest,
    PutJobRequest, PutJobsReply, PutJobsRequest, RegisterExecutorReply, RegisterExecutorRequest,
    RemoveJobReply, RemoveJobRequest, ReportRunsReply, ReportRunsRequest, RunAgainReply, RunAgainRequest,
    RunJobReply, RunJobRequest, RunLogReply, RunLogRequest, SetJobPausedRequest,
};

/// The calls about jobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobsClient {
    link: Arc<Link>,
}

impl JobsClient {
    /// Prepares channels, which connect when they are needed. On a runtime, which they then live on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        Ok(Self { link: Arc::new(Link::open(&options)?) })
    }

    /// Makes a job, or changes it.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn put(&self, request: PutJobRequest) -> Result<Job, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).put(request).await
        });
        Ok(call.await?)
    }

    /// Makes up to 1,000 jobs, each of which must be new.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn put_many(&self, request: PutJobsRequest) -> Result<PutJobsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).put_many(request).await
        });
        Ok(call.await?)
    }

    /// One job.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get(&self, request: GetJobRequest) -> Result<Job, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).get(request).await
        });
        Ok(call.await?)
    }

    /// A page of jobs.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list(&self, request: ListJobsRequest) -> Result<ListJobsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list(request).await
        });
        Ok(call.await?)
    }

    /// The versions of a job, the oldest first.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn versions(&self, request: JobVersionsRequest) -> Result<JobVersionsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).versions(request).await
        });
        Ok(call.await?)
    }

    /// Pauses a job, or lets it go on.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn set_paused(&self, request: SetJobPausedRequest) -> Result<Job, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).set_paused(request).await
        });
        Ok(call.await?)
    }

    /// Removes a job. Never repeated by itself: made again after a lost answer it does not find the job.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn remove(&self, request: RemoveJobRequest) -> Result<RemoveJobReply, CallError> {
        let call = self.link.call(Repeat::Never, None, &request, |channel, request| async move {
            stub(channel).remove(request).await
        });
        Ok(call.await?)
    }

    /// Runs a job once, now. Never repeated by itself: each call is a run.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn run(&self, request: RunJobRequest) -> Result<RunJobReply, CallError> {
        let call = self.link.call(Repeat::Never, None, &request, |channel, request| async move {
            stub(channel).run(request).await
        });
        Ok(call.await?)
    }

    /// A page of a job's runs, the newest first.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list_runs(&self, request: ListRunsRequest) -> Result<ListRunsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_runs(request).await
        });
        Ok(call.await?)
    }

    /// One run.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get_run(&self, request: GetRunRequest) -> Result<JobRun, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).get_run(request).await
        });
        Ok(call.await?)
    }

    /// Runs a run that is over once more. Never repeated by itself: made again after a lost answer it does not find the run over, or runs
    /// it twice.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn run_again(&self, request: RunAgainRequest) -> Result<RunAgainReply, CallError> {
        let call = self.link.call(Repeat::Never, None, &request, |channel, request| async move {
            stub(channel).run_again(request).await
        });
        Ok(call.await?)
    }

    /// Ends a run.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn kill(&self, request: KillRunRequest) -> Result<KillRunReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).kill(request).await
        });
        Ok(call.await?)
    }

    /// Lines of a run's log.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn log(&self, request: RunLogRequest) -> Result<RunLogReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).log(request).await
        });
        Ok(call.await?)
    }

    /// Runs that ended badly.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list_dead(&self, request: ListDeadRunsRequest) -> Result<ListDeadRunsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_dead(request).await
        });
        Ok(call.await?)
    }

    /// The executors of an app.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list_executors(
        &self,
        request: ListExecutorsRequest,
    ) -> Result<ListExecutorsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).list_executors(request).await
        });
        Ok(call.await?)
    }

    /// An executor's heartbeat: repeat it every 30 s.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn register(
        &self,
        request: RegisterExecutorRequest,
    ) -> Result<RegisterExecutorReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).register(request).await
        });
        Ok(call.await?)
    }

    /// An executor says that it goes.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn unregister(
        &self,
        request: RegisterExecutorRequest,
    ) -> Result<RegisterExecutorReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).unregister(request).await
        });
        Ok(call.await?)
    }

    /// Says how runs ended.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn report(&self, request: ReportRunsRequest) -> Result<ReportRunsReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).report(request).await
        });
        Ok(call.await?)
    }

    /// When a job would be due.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn preview(&self, request: PreviewJobRequest) -> Result<PreviewJobReply, CallError> {
        let call = self.link.call(Repeat::Safe, None, &request, |channel, request| async move {
            stub(channel).preview(request).await
        });
        Ok(call.await?)
    }
}

fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES)
}
