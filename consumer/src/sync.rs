//! The synchronisation that the window is built on. The concurrency model (`tests/window_model.rs`) compiles the
//! window against shuttle's types of the same names.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
