//! What time it is, as the caller of this crate says.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Wall clock in Unix seconds: for the validity of user tokens and the age of keys.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    /// The system's. A system that stands before 1970 reads 0, at which every user token is refused as not yet valid
    /// or is judged by its expiry alone.
    pub fn system() -> Self {
        Self::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// Any other.
    pub fn new(unix_s: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(unix_s))
    }

    pub(crate) fn now_s(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
