//! Real servers on loopback.
