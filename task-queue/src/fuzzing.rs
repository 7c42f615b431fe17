//! What fuzz targets reach of this crate, and nobody else.

pub use crate::http::fuzzing::{
    attributes, bulk_bodies, consume_terms, consumed_queues, decode, logged_path, pairs, publish_terms, route,
};
