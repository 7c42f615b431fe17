//! Wire formats of Windfall, and the checked types that stand behind them.
//!
//! - [`v1`] holds the generated protobuf messages.
//! - [`record`] writes and reads a record (`BonusEventBatch`) without decoding its events: what packs,
//!   queues and windows work on.
//! - [`event`] is a borrowed view of one event, for the paths that cannot pay for seven allocations each.
//! - [`order`] has the checked types (`TradeNo`, `Amount`, …): parse once, at the edge.
//! - [`scene`] writes the order numbers of scenes, a format that other languages follow.
//! - [`send`] is the call of activity services, in process or over a wire.
//! - `methods` (features `rpc` and `json`) lists the methods of each service, for whoever mounts them.
//! - [`wire`] is the handful of protobuf encoders that borrowed views need.
//!
//! Not here: I/O, clocks, policy.
//!
//! ```
//! use windfall_proto::{record, v1};
//! use prost::Message;
//!
//! let event = v1::BonusEvent { trade_no: "rain-1-42".into(), ..Default::default() };
//! let mut body = Vec::new();
//! record::push_event(&mut body, &event.encode_to_vec());
//! let head = record::Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 0, count: 1 };
//! let mut bytes = Vec::new();
//! head.encode(&mut bytes);
//! bytes.extend_from_slice(&body);
//!
//! let (head, events) = record::split(&bytes)?;
//! assert_eq!((head.bonus_type, head.count), ("cash", 1));
//! let first = events.into_iter().next().expect("one event")?;
//! assert_eq!(windfall_proto::event::EventRef::parse(&bytes[first])?.trade_no, "rain-1-42");
//! # Ok::<(), windfall_proto::wire::Malformed>(())
//! ```

pub mod event;
#[cfg(all(feature = "rpc", feature = "json"))]
pub mod methods;
pub mod order;
pub mod record;
pub mod scene;
pub mod send;
pub mod wire;

/// Generated messages of `windfall.v1`; with feature `rpc` the services' stubs, with feature `json` serde.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/windfall.v1.rs"));
    #[cfg(feature = "json")]
    include!(concat!(env!("OUT_DIR"), "/windfall.v1.serde.rs"));
}

/// The descriptors of all messages and services, as an encoded `FileDescriptorSet` with comments.
#[cfg(feature = "json")]
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
