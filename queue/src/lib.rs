//! Queues.
pub mod conformance;
pub mod contract;
pub mod drivers;
pub mod embedded;
pub mod faulty;
pub mod virtual_queue;
