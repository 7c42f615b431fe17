//! `windfall jobs log`: what a run has logged, once or until it is over.

use crate::outcome::Outcome;
use anyhow::Result;
use std::io::Write;
use std::time::Duration;
use windfall_client::JobsClient;
use windfall_proto::v1::{GetRunRequest, JobRunState, RunLogRequest};

/// The pause between two looks for new lines.
const EVERY: Duration = Duration::from_secs(1);

/// Prints lines from one on.
pub(super) async fn log(
    client: &JobsClient,
    tenant: &str,
    run: u64,
    from_line: u32,
    follow: bool,
) -> Result<Outcome> {
    let mut line = from_line;
    loop {
        // Whether it was over before the lines were read: what comes later than the end is then in them.
        let state = match follow {
            true => client.get_run(GetRunRequest { tenant: tenant.to_owned(), run }).await?.state(),
            false => JobRunState::Ended,
        };
        let request = RunLogRequest { tenant: tenant.to_owned(), run, from_line: line };
        let lines = client.log(request).await?;
        let mut out = std::io::stdout().lock();
        out.write_all(lines.text.as_bytes())?;
        out.flush()?;
        drop(out);
        let is_new = lines.next_line > line;
        line = lines.next_line.max(line);
        if !follow || lines.is_end || (state == JobRunState::Ended && !is_new) {
            return Ok(Outcome::Clean);
        }
        tokio::time::sleep(EVERY).await;
    }
}
