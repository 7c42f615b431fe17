//! The driver of Kafka.
