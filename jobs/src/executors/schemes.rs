//! Picks who calls an executor by the scheme of its address.

use super::{AskError, ExecutorCalls, LogCall, LogLines, RunCall};
use crate::runs::Sent;
use async_trait::async_trait;
use std::sync::Arc;

/// Calls executors at `grpc://` addresses by one, and all others by the other.
#[derive(Clone)]
pub struct BySchemes {
    /// For `grpc://host:port`.
    pub grpc: Arc<dyn ExecutorCalls>,
    /// For `http://` and `https://`: the protocol of XXL-JOB.
    pub http: Arc<dyn ExecutorCalls>,
}

impl BySchemes {
    fn pick(&self, address: &str) -> &dyn ExecutorCalls {
        if address.starts_with("grpc://") { &*self.grpc } else { &*self.http }
    }
}

#[async_trait]
impl ExecutorCalls for BySchemes {
    fn of(&self, tenant: &str, app: &str) -> Option<Arc<dyn ExecutorCalls>> {
        let of = |calls: &Arc<dyn ExecutorCalls>| calls.of(tenant, app).unwrap_or_else(|| Arc::clone(calls));
        Some(Arc::new(Self { grpc: of(&self.grpc), http: of(&self.http) }))
    }

    async fn run(&self, address: &str, call: RunCall) -> Sent {
        self.pick(address).run(address, call).await
    }

    async fn is_alive(&self, address: &str) -> bool {
        self.pick(address).is_alive(address).await
    }

    async fn is_idle(&self, address: &str, job: u64) -> bool {
        self.pick(address).is_idle(address, job).await
    }

    async fn kill(&self, address: &str, job: u64, run: u64) -> Result<(), AskError> {
        self.pick(address).kill(address, job, run).await
    }

    async fn log(&self, address: &str, call: LogCall) -> Result<LogLines, AskError> {
        self.pick(address).log(address, call).await
    }
}
