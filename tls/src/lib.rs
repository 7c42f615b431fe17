//! How Windfall's processes reach the servers that they use: PostgreSQL, Redis, etcd, Kafka, RocketMQ, S3.
//!
//! One vocabulary for all of them. Each server's options have a table `tls` ([`TlsOptions`]) and a switch `plaintext`, and
//! [`Security`] is what comes of both:
//!
//! - With `tls` (an empty table is enough) every connection is TLS. The server's certificate must lead to an authority
//!   that is trusted, must be in force, and must bear the name by which the server is addressed. There is no other mode,
//!   and no connection falls back to plain text.
//! - Without it, connections to this machine (127.0.0.0/8, `::1`, `localhost`, sockets in the file system) are plain text.
//! - Any other address without TLS is refused before anything is connected to, unless `plaintext = true` allows it by name.
//!
//! It is not for the port that Windfall itself listens on (`edge`), nor for paying systems (`connectors`).
//!
//! ```
//! use windfall_tls::{Security, TlsOptions};
//!
//! let local = Security::new(None, false)?;
//! assert!(local.allow("Redis", "127.0.0.1").is_ok());
//! assert!(local.allow("Redis", "redis.example.com").is_err());
//!
//! let tls = TlsOptions { ca_file: Some("/etc/windfall/ca.pem".into()), ..TlsOptions::default() };
//! assert!(Security::new(Some(&tls), false)?.allow("Redis", "redis.example.com").is_ok());
//! # Ok::<(), windfall_tls::TlsError>(())
//! ```

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
mod explain;
#[cfg(feature = "grpc")]
mod grpc;
mod options;
mod security;

#[cfg(feature = "client")]
pub use client::{HandshakeError, Refusal, TlsStream};
#[cfg(feature = "client")]
pub use explain::{WANTS_TLS, explain};
pub use options::{TlsError, TlsOptions};
pub use security::Security;
