//! What stands between a wire and a service: who calls, what they may, how much they may send, and both faces, gRPC
//! and HTTP/JSON, on one port.
//!
//! - [`Call`] says on whose behalf a request came. A service reads it from the request's extensions, and nothing
//!   about identity from a message.
//!
//! Not here: what the services do.
//!
//! ```
//! use windfall_edge::{Call, Caller, Role};
//!
//! let caller = Caller { name: "wallet-front".into(), tenant: "windfall".into(), roles: [Role::Verify].into() };
//! let mut request = tonic::Request::new(());
//! request.extensions_mut().insert(Call { caller, user_id: Some(42), trace_id: None });
//! assert_eq!(Call::of(&request)?.user()?, 42);
//! # Ok::<(), tonic::Status>(())
//! ```

mod identity;

pub use identity::{Call, Caller, Role, Roles};
