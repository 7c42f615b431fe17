//! Operators' web page: what flows where, what waits and why, the failure archive, budgets, users' statements, payouts, acts of
//! two operators, what differs in the ledger, and the live rules.
//!
//! The page is a program for the browser (`console/web`), whose built files are embedded here. What it shows comes through
//! this crate, and through public APIs alone:
//! - `door` decides by the head of a request alone who it is that asks, and refuses strangers before a body is read.
//! - `session` keeps the access key of who has signed in; the browser holds an opaque cookie.
//! - `gateway` calls the services' HTTP APIs with that key, for a list of paths. The service decides what the key may do.
//! - `flow` follows the metrics of all instances, a sample a second that all viewers share, and keeps an hour of them;
//!   `forecast` says of them how fast budgets are used.
//! - `rules` shows the live rules in the place that every process has them from, and changes them if an option says so;
//!   `trial` has some processes try a change first, and `replay` says what it would have done with the last hour's traffic.
//!
//! [`RemoteRules`] are the rules behind a console for `windfall rules --server`, whose key says who changes them.
//! [`Reader`] reads a process' metrics and health by the same calls for who shows them elsewhere: `windfall top`.
//!
//! [`Console`] is mounted in a server of `windfall-edge` as its [`Pages`](windfall_edge::Pages): limits, time-outs and TLS are
//! the server's. Not here: a right that a key does not have, but for the live rules; new rewards and withdrawals; a store of any
//! kind.
//!
//! ```
//! use windfall_console::{Console, ConsoleOptions, Parts};
//! use windfall_contract::Clock;
//! use windfall_edge::{Access, AccessSource, Health, Metrics, Router, ServeOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = Clock::system();
//! let access = AccessSource::fixed(Access::parse("")?, clock.clone())?;
//! let metrics = Metrics::new();
//! let console = Console::open(
//!     &ConsoleOptions::default(),
//!     Parts {
//!         access: access.clone(),
//!         tenant: "windfall".into(),
//!         rules: None,
//!         brokers: None,
//!         own: Some(metrics.clone()),
//!         clock,
//!     },
//! )?;
//! let router = Router::new().pages(std::sync::Arc::new(console.clone()));
//! let options = ServeOptions { listen: "127.0.0.1:0".parse()?, ..Default::default() };
//! let parts = windfall_edge::Parts { router, access, metrics, health: Health::new() };
//! let server = windfall_edge::serve(&options, parts).await?;
//! console.attach(&server.local_calls());
//! println!("http://{}/console/", server.address());
//! # server.stop().await;
//! # Ok(())
//! # }
//! ```

mod answer;
mod api;
mod assets;
mod console;
mod cookie;
mod door;
mod flow;
mod forecast;
mod gateway;
mod options;
mod reader;
mod remote;
mod replay;
mod rules;
mod samples;
mod session;
mod trial;
mod upstream;

pub use console::{Console, OpenError, Parts};
pub use options::{ConsoleOptions, OptionError, RulesRight, ServiceAt};
pub use reader::{ReadError, Reader};
pub use remote::RemoteRules;
pub use samples::{Sample, read as read_samples, read_labels};
