//! Task queues that consumers pull from over HTTP, by the contract that clients of lmstfy speak.
//!
//! - [`contract`](windfall_contract::task_queue): jobs, their ids, and what a store of them offers.
//! - [`embedded`]: a store on files inside the process.
//! - `redis`, with the feature of that name: a store on Redis 7 and Redis Cluster, for any number of processes.
//! - [`start`]: both APIs, on the stores of each pool.
//!
//! A call's way: the API checks it, `queues` gathers it with others (`gather`) and finds a shard that has a job, and the
//! store does it in one step. Consumers that poll wait in memory; they are woken by what this process publishes, and by a
//! look at the store every 40 ms for what others have. What was taken for a consumer that has gone is given back.
//!
//! Jobs that are due much later than a horizon wait as timers ([`FarJobs`]), which whoever wires the process provides.
//!
//! Not here: the scheduler, which keeps and fires timers; how connections are accepted, encrypted and bounded, which both APIs
//! have from the services' port (`windfall_edge::Listener`).
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! use std::collections::BTreeMap;
//! use windfall_contract::Clock;
//! use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};
//! use windfall_task_queue::{ApiOptions, PoolParts};
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
//! # runtime.block_on(async {
//! let store = EmbeddedJobs::open(dir.path(), &EmbeddedJobsOptions::default(), Clock::system())?;
//! let pool = PoolParts { store: store.clone(), tokens: store, far: None };
//! let pools = BTreeMap::from([("default".to_owned(), pool)]);
//! let any_port = "127.0.0.1:0".parse()?;
//! let options = ApiOptions { listen: any_port, admin_listen: any_port, ..ApiOptions::default() };
//! let queues = windfall_task_queue::start(options, pools, Clock::system()).await?;
//! println!("curl -X POST 'http://{}/token/shop?description=mails'", queues.admin_address());
//! queues.close(std::time::Duration::from_secs(1)).await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checks;
pub mod embedded;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod health;
mod http;
mod metrics;
mod options;
mod queues;
#[cfg(feature = "redis")]
pub mod redis;
mod room;
mod tokens;

pub use http::{Closed, PoolParts, StartError, TaskQueues, start};
pub use metrics::{PoolStats, QueueCounters, QueueGauges, QueueStats, WAIT_BUCKETS_MS, WaitTimes};
pub use options::{ApiOptions, WrongOption};
pub use queues::FarJobs;
