//! The HTTP protocol that XXL-JOB's executors speak, so that unmodified ones register here, get runs and report
//! results.
//!
//! - [`XxlClient`] calls executors.
//! - [`XxlServer`] takes their registrations and results, and passes them to an [`Admin`].
//! - [`AddressRules`]: where requests may go. An address is what a caller registered.
//! - `fake`, with the feature of that name: executors that run nothing, for tests and measurements.
//!
//! Not here: which executor gets a run ([`routing`](crate::routing)), when, and where results are kept.
//!
//! # The protocol
//! As the released jars speak it: `com.xuxueli:xxl-job-core` 2.4.2 and 3.3.2, which the tests run. Each call is a POST
//! with JSON, with the header `XXL-JOB-ACCESS-TOKEN` where there is a token. Both sides answer HTTP 200 to everything
//! and put the outcome into the body.
//!
//! | call | body | answer |
//! |---|---|---|
//! | `…/api/registry`, `…/api/registryRemove` | `registryGroup` ("EXECUTOR"), `registryKey` (the application), `registryValue` (`http://10.1.2.3:9999/`) | `code` |
//! | `…/api/callback` | a list of `logId`, `logDateTim`, `handleCode`, `handleMsg` | `code` |
//! | `/beat` | none | `code` |
//! | `/idleBeat` | `jobId` | `code`: 500 where a run goes or waits |
//! | `/run` | [`RunRequest`], `glueType` "BEAN", `glueSource`, `glueUpdatetime` | `code`, once the run is in a queue in memory |
//! | `/kill` | `jobId` | `code`: 200 also where there was nothing to end |
//! | `/log` | [`LogRequest`] | `code` and [`LogLines`] |
//!
//! | | 2.4 | 3.3 | after 3.3, not released |
//! |---|---|---|---|
//! | answer | `code`, `msg`, `content` | `code`, `msg`, `data` | as 3.3 |
//! | path of runs | `/run` | `/run` | `/trigger` |
//! | header with the application | – | – | `XXL-JOB-APPNAME`, in both directions |
//!
//! - **Codes**: 200 is success; 500 any failure, told apart by the words alone ([`Refusal`]). A path that is not there
//!   is 500, too, and not HTTP 404.
//! - **Registration** every 30 s, at each of the configured servers until one answers 200. An executor that ends in
//!   order says so before it kills its runs (3.3 waits 5 s between), and reports them as failed.
//! - **Reports**: all results that wait, in one call, to each server until one answers 200. A call takes at most 3 s
//!   (3.3: what is configured, up to 10). What none took goes to a file in the executor's log folder, and is tried
//!   again every 30 s and after a restart: at least once, in any order.
//! - **Runs** wait in memory: what an executor had not reported when it died is lost without a word. A run whose number
//!   waits already is refused; the number of one that has begun is not known any more.
//! - **A job's thread** belongs to its id: another handler under the same id ends the thread.
//! - **Limits of the executor**: 5 MiB a body; 200 threads and 2,000 waiting calls, beyond which it closes the
//!   connection without an answer; connections without traffic for 90 s are closed.
//! - **A time-out** interrupts the handler's thread and is reported as 502. A handler that catches the interruption
//!   goes on all the same.
//! - **Log lines** are read from a line on to the last one, without a limit.

mod address;
mod admin;
mod answer;
mod api;
mod app;
mod body;
mod client;
pub(crate) mod dial;
mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod log;
mod options;
mod peers;
mod result;
mod rules;
mod run;
mod server;
mod stall;
#[cfg(test)]
mod tests;
mod token;

pub use address::{BadAddress, Executor, ExecutorAddress};
pub use admin::{Admin, AdminError};
pub use api::ServerStats;
pub use app::{AppName, BadAppName};
pub use client::XxlClient;
pub use error::{CallError, Refusal};
pub use log::{LogLines, LogRequest};
pub use options::{ClientOptions, ServerOptions, WrongOption};
pub use result::{HandleCode, RunResult};
pub use rules::{AddressRules, BadNetwork};
pub use run::{BlockStrategy, RunRequest};
pub use server::{Closed, Door, StartError, XxlServer};
pub use token::{AccessToken, BadToken};
