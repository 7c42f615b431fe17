//! Connections to Redis, one server or a Redis Cluster, for the drivers that keep something there.
//!
//! [`Nodes`] sends commands to the masters that have their keys, in pipelines, follows keys that move, and makes lost
//! connections again in the background. Every call has a deadline. Connections are TLS where the options ask for it, and
//! plain text leaves this machine only where they allow it by name ([`Access`]). What a server must be like, a driver says by
//! [`LinkOptions::judge`]; what commands mean is the driver's business alone.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tokio::runtime::Handle;
//! use tokio::time::Instant;
//! use windfall_redis_link::{Access, LinkOptions, Nodes, Request, slot_of};
//!
//! let urls = ["127.0.0.1:6379".into()];
//! let access =
//!     Access { urls: &urls, username: None, password: None, is_cluster: false, tls: None, plaintext: false };
//! let options = LinkOptions {
//!     is_cluster: false,
//!     security: access.security(),
//!     connections: 2,
//!     pipeline_requests: 250,
//!     connect_timeout: Duration::from_secs(1),
//!     call_timeout: Duration::from_millis(400),
//!     judge: |_| Ok(()),
//! };
//! let nodes = Nodes::start(&Handle::current(), &options, access.addresses()?);
//! let mut command = redis::cmd("GET");
//! command.arg("key");
//! let request = Request::new(slot_of(b"key"), command);
//! let answers = nodes.run(vec![request], true, Instant::now() + Duration::from_millis(400)).await?;
//! assert_eq!(answers.len(), 1);
//! # Ok(())
//! # }
//! ```

mod link;
mod nodes;
mod options;
mod server;
mod slots;

pub use nodes::{Nodes, Request};
pub use options::{Access, LinkOptions, NoAnswer, OpenRedisError};
pub use server::{Report, check};
pub use slots::slot_of;
pub use windfall_tls::TlsOptions;
