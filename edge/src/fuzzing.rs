//! What fuzz targets reach of this crate, and nobody else.

use crate::router::shape;
use crate::users::{JwtOptions, KeySet, Users};
use std::task::{Context, Poll, Waker};

/// Judges users' tokens by keys that stay.
#[derive(Debug)]
pub struct UserTokens(Users);

impl UserTokens {
    /// With the keys of a key set. `options` names a file, which is not read.
    ///
    /// # Errors
    /// Why options or key set are refused.
    pub fn new(options: JwtOptions, key_set: &str) -> Result<Self, String> {
        options.check()?;
        let keys = KeySet::parse(key_set).map_err(|error| error.to_string())?;
        Ok(Self(Users::of_keys(options, keys)))
    }

    /// The user that a token asserts.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn user_of(&self, token: &str, now_s: u64) -> Result<i64, String> {
        let judging = std::pin::pin!(self.0.user_of(token, now_s));
        match judging.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(judged) => judged.map_err(|refused| refused.to_string()),
            Poll::Pending => Err("keys that stay are waited for".to_owned()),
        }
    }
}

/// The ids of a key set's keys, and the names of the algorithms that each may be used with; `None` where it is refused.
pub fn key_uses(key_set: &str) -> Option<Vec<(Option<String>, Vec<String>)>> {
    let keys = KeySet::parse(key_set).ok()?;
    let of_key = |(id, algorithms): (Option<&str>, &[_])| {
        (id.map(str::to_owned), algorithms.iter().map(|one| format!("{one:?}")).collect())
    };
    Some(keys.uses().map(of_key).collect())
}

/// The fields that a gRPC body's only message is counted to have; `None` where it is refused.
pub fn grpc_fields(body: &[u8]) -> Option<usize> {
    shape::count_grpc(body).ok()
}

/// The parts that a body of JSON is counted to have.
pub fn json_parts(body: &[u8]) -> usize {
    shape::count_json(body)
}
