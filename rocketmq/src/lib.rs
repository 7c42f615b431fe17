//! RocketMQ gRPC v2 client.
