//! The memory-mapped in-flight buffer of a sender
