//! Stores of jobs and their runs: the drivers of [`windfall_contract::entries`].
//!
//! | driver | for |
//! |---|---|
//! | [`embedded`] | one process, files in a directory of its own |
//! | `redis` (feature `redis`) | any number of processes, Redis 7 or Redis Cluster |

mod checks;
pub mod embedded;
#[cfg(feature = "redis")]
pub mod redis;
