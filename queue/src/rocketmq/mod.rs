//! The driver of RocketMQ 5.
