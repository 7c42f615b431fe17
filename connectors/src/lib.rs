//! Connectors to systems that pay: the orders of a bonus type go to one, over HTTP or gRPC, and its answers come
//! back as [`PayAnswer`](windfall_contract::connector::PayAnswer).
//!
//! - [`HttpConnector`] posts signed JSON, [`GrpcConnector`] calls `windfall.v1.Downstream`. Both implement
//!   [`Connector`](windfall_contract::connector::Connector); the reward service has the guard around them: concurrency,
//!   time-out, breaker.
//! - [`HttpCallback`] posts a timer to an address, signed and guarded in the same way; it is a target of the scheduler.
//! - [`signature`] is what a downstream checks: the exact text that is signed, and a function that verifies it.
//! - [`AllowList`] says where a connector may connect to; it is checked for the address of every connection.
//! - [`fake`] is a downstream to try one on.
//! - [`Snapshot`] is what a connector counts.
//!
//! Not here: what an answer leads to, budgets, retries (`windfall_reward_service`).
//!
//! # The request over HTTP
//! `POST` to the operator's URL, HTTP/1.1, no redirect followed, no proxy, no cookies:
//!
//! ```text
//! content-type: application/json
//! accept: application/json
//! accept-encoding: identity
//! idempotency-key: <trade_no>
//! windfall-signature-v2: v2;key=<id>;time=<unix ms>;mac=<64 hex digits>   (see `signature`)
//! windfall-signature: v1;key=<id>;time=<unix ms>;mac=<64 hex digits>      (unless `signature_v1 = false`)
//!
//! {"trade_no":"rain-1-42","user_id":"42","activity":"spring-2027","scene":"rain","bonus_type":"badge","amount":"1"}
//! ```
//!
//! A withdrawal that a connector pays out has an empty `activity` and `scene`.
//!
//! `user_id` and `amount` are 64-bit whole numbers written as texts, and never as JSON numbers: many readers of JSON
//! keep 53 bits of those, and a user's id would silently become another one's.
//!
//! # What an answer means
//! The downstream answers with `content-type: application/json` and at most 64 KiB:
//! `{"outcome": "paid" | "already_paid" | "busy" | "retry" | "refused", "reason": "…", "retry_after_ms": 100,
//! "trade_no": "…"}`. `outcome` is needed; `reason` with `refused`; the others may be left out. A `trade_no`, where
//! there is one, must be the order's.
//!
//! | HTTP | gRPC | is | and then |
//! |---|---|---|---|
//! | 200, 201 `paid` | `PAID` | `Paid` | credited |
//! | 200, 201, 409 `already_paid`; 409 `paid` | `ALREADY_PAID` | `AlreadyPaid` | credited |
//! | 200, 201, 4xx, 5xx `busy`; 429 or 503 with `retry-after` and no JSON of ours | `BUSY` | `Busy` | asked again, not
//! before the wait; never counts against the order |
//! | 200, 201, 4xx, 5xx `retry` | `RETRY` | `Retry` | asked again; counts as a failed grant |
//! | 200, 201, 4xx `refused` with a reason | `REFUSED` with a reason | `Refused` | final: archived, budget freed |
//! | no connection (name not resolved, address not allowed, refused, no TLS, not within `connect_timeout_ms`) | the
//! same | `Retry` | asked again; nothing was sent, so nothing was paid |
//! | the next `pause_ms` after that | the same | `Busy` | asked again; one connection at a time tries |
//! | everything else: other statuses, 2xx without our JSON, redirects, another order's answer, contradictions (500
//! `paid`), a refusal without a reason, more than 64 KiB, compressed, a head over 16 KiB, a connection that broke after
//! the request, no whole answer within `timeout_ms` | `UNSPECIFIED`, any status (`UNAVAILABLE` too: a server may say it
//! after the work), larger than 64 KiB, as HTTP | `Unknown` | asked again with the same order number, as long as it
//! takes; its budget stays reserved |
//!
//! Only `paid`, `already_paid` and `refused` end an order. A refusal must be the truth for good: if the order was
//! ever paid, the answer is `already_paid`. An order that was paid with another user, type or amount is `refused`.
//! A wait is at most 10 minutes, whatever is asked for.
//!
//! ```no_run
//! use std::sync::Arc;
//! use windfall_connectors::{HttpConnector, HttpOptions};
//! use windfall_contract::Clock;
//! use windfall_reward_service::{Payer, RewardOptions};
//!
//! let options = HttpOptions {
//!     url: "https://pay.example.com/v1/{bonus_type}/pay".into(),
//!     allow: vec!["pay.example.com".into()],
//!     key_id: "2027-01".into(),
//!     secret_file: "/etc/windfall/badges.secret".into(),
//!     signature_v1: false,
//!     wire: Default::default(),
//! };
//! let badges = Arc::new(HttpConnector::new("badges", &options, Clock::system())?);
//! let mut rewards = RewardOptions::default();
//! rewards.pays.insert("badge".into(), Payer::Connector("badges".into()));
//! // RewardService::start(rewards, ledger, vec![badges.clone()], …), and for an exporter:
//! for (answer, calls) in badges.metrics().answers() {
//!     println!("windfall_connector_answers_total{{connector=\"badges\",answer=\"{answer}\"}} {calls}");
//! }
//! # Ok::<(), windfall_connectors::SetupError>(())
//! ```

mod allow;
mod answer;
mod callback;
mod dial;
pub mod fake;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod http;
mod metrics;
mod options;
mod sign;
pub mod signature;
mod target;

pub use allow::{AllowList, BadEntry};
pub use callback::HttpCallback;
pub use grpc::GrpcConnector;
pub use http::{ANSWER_MAX_BYTES, HttpConnector};
pub use metrics::{LATENCY_BOUNDS_MS, Latency, Snapshot};
pub use options::{GrpcOptions, HttpOptions, SetupError, WireOptions};
