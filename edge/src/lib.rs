//! The layer between the network and a service: authentication, roles, limits, and both transports, gRPC and HTTP/JSON,
//! on one port.
//! The steps of a request, which are also the order of this crate's modules:
//! 1. `server` accepts the connection, reads the names in its client certificate, and cuts off
//!    connections that are too slow or too many ([`ServeOptions`]). Until a call of it is authenticated, a connection
//!    may hold very little, and makes room for others.
//! 2. `pipeline` checks the headers' size, takes a place among the calls in flight, and asks
//! 3. `authenticate` who calls ([`Access`]: a bearer key or a certificate) and for whom (a signed token about the end
//!    user, or a header from a front proxy that may name users): a [`Call`].
//! 4. `pipeline` finds the method, checks the [`Role`], the media type, and only then reads the body, bounded.
//! 5. `trace` puts a span around it, in the caller's trace where it names one.
//! 6. [`Router`] hands it to the service: the generated trait, in process, whichever transport was used. A service
//!    reads the [`Call`] from the request's extensions, and nothing about identity from a message.
//! 7. `refusal` is the one place where errors become answers; [`retry_later`] is for services that know when to ask
//!    again, [`refused_for`] for those whose code has several reasons.
//!
//! Besides these steps there are [`Health`] and [`Metrics`], to which other crates add their own; `openapi`, which
//! makes `/openapi.json` from the protobuf descriptors.
//!
//! A [`Listener`] is a port with a protocol of its own over HTTP/1.1, as task queues and executors of XXL-JOB have: step
//! 1 is the same there, and so are its options.
//!
//! [`Pages`] are for people: a server answers them beside its services, and they authenticate by themselves. Nothing
//! else is open but `/health/…` to this machine. Not here: what the services do; limits per caller; TLS to other
//! services.
//!
//! ```
//! use std::sync::Arc;
//! use windfall_contract::Clock;
//! use windfall_edge::{Access, AccessSource, Call, Router, Health, Metrics, Parts, ServeOptions};
//! use windfall_proto::v1::{self, send_server::Send};
//!
//! /// A service knows neither HTTP nor keys.
//! struct Gateway;
//!
//! #[tonic::async_trait]
//! impl Send for Gateway {
//!     async fn send_bonus(
//!         &self,
//!         request: tonic::Request<v1::SendBonusRequest>,
//!     ) -> Result<tonic::Response<v1::SendBonusReply>, tonic::Status> {
//!         let token = format!("sent by {}", Call::of(&request)?.caller.name);
//!         Ok(tonic::Response::new(v1::SendBonusReply { token }))
//!     }
//!
//!     async fn send_bonus_batch(
//!         &self,
//!         _request: tonic::Request<v1::SendBonusBatchRequest>,
//!     ) -> Result<tonic::Response<v1::SendBonusBatchReply>, tonic::Status> {
//!         Err(windfall_edge::retry_later(tonic::Code::Unavailable, "the spool is full", 50))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = windfall_edge::mint_key()?;
//! let access = Access::parse(&format!(
//!     "[[caller]]\nname = \"rain\"\ntenant = \"windfall\"\nroles = [\"send\"]\nkey_sha256 = \"{}\"",
//!     key.sha256
//! ))?;
//! let parts = Parts {
//!     router: Router::new().send(Arc::new(Gateway)),
//!     access: AccessSource::fixed(access, Clock::system())?,
//!     metrics: Metrics::new(),
//!     health: Health::new(),
//! };
//! let options = ServeOptions { listen: "127.0.0.1:0".parse()?, ..Default::default() };
//! let server = windfall_edge::serve(&options, parts).await?;
//! println!("curl -H 'authorization: Bearer {}' http://{}/openapi.json", key.text, server.address());
//! server.stop().await;
//! # Ok(())
//! # }
//! ```

mod access;
mod authenticate;
mod body;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod identity;
mod key;
mod metrics;
mod openapi;
mod pages;
mod pipeline;
mod refusal;
mod router;
mod server;
mod trace;
mod users;

pub use access::{Access, AccessError, AccessSource, CALLERS_MAX};
pub use health::{Health, Need, Part};
pub use identity::{Call, Caller, Role, Roles};
pub use key::{MintedKey, mint_key};
pub use metrics::{Described, EachOf, Metrics};
pub use openapi::OpenApiError;
pub use pages::{ByHead, Pages, Visitor};
/// The metrics crate, for collectors of your own: [`Metrics::register_collector`].
pub use prometheus_client;
pub use refusal::{REASON, RETRY_AFTER_MS, code_name, http_status, refused_for, retry_later};
pub use router::Router;
pub use server::{
    BadPeerNet, Guard, GuardedCall, GuardedStream, Life, ListenError, Listener, ListenerCounts,
    ListenerLimits, LocalCalls, Notice, OutOfRange, Parts, PeerNet, PlainTextRefused, ServeError,
    ServeOptions, Server, Stopped, TlsError, TlsOptions, check_plaintext, serve,
};
pub use users::JwtOptions;
