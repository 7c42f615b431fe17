//! Client and server against fakes and against callers by hand.

mod client;
mod server;
mod tls;

use crate::xxl::fake::{FakeExecutor, FakeOptions, Reply, Script};
use crate::xxl::{AccessToken, AddressRules, AppName, BlockStrategy, ClientOptions, RunRequest, XxlClient};
use std::sync::Arc;
use std::time::Duration;

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(60);

fn app() -> AppName {
    AppName::parse("mails").unwrap()
}

fn token() -> AccessToken {
    AccessToken::new("s3cret-token").unwrap()
}

fn here() -> AddressRules {
    AddressRules::parse(&["127.0.0.1"]).unwrap()
}

/// Waits for what comes in any case.
fn patient() -> ClientOptions {
    ClientOptions { connect_timeout_ms: 20_000, call_timeout_ms: 30_000, ..ClientOptions::default() }
}

fn client(options: ClientOptions) -> XxlClient {
    XxlClient::new(options, Some(&token()), here()).unwrap()
}

async fn fake(script: impl Fn(&RunRequest) -> Reply + Send + Sync + 'static) -> FakeExecutor {
    let script: Script = Arc::new(script);
    FakeExecutor::start(FakeOptions { token: Some(token()), script, ..FakeOptions::new(app()) })
        .await
        .unwrap()
}

fn run(log_id: i64) -> RunRequest {
    RunRequest {
        job_id: 7,
        handler: "echo".into(),
        params: "höflich".into(),
        block: BlockStrategy::SerialExecution,
        timeout_s: 0,
        log_id,
        log_date_time_ms: 1_800_000_000_000,
        broadcast_index: 0,
        broadcast_total: 1,
    }
}
