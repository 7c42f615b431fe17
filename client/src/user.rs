//! The end user for whom a call is made.

use std::fmt;
use tonic::Status;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

/// The end user of a call. Servers accept the first by its signature, and the second from callers that may name users.
#[derive(Clone, Copy)]
pub enum EndUser<'a> {
    /// A signed assertion (JWT), as the user's front end holds it.
    Signed(&'a str),
    /// The user's number.
    Named(i64),
}

impl EndUser<'_> {
    pub(crate) fn write(self, metadata: &mut MetadataMap) -> Result<(), Status> {
        match self {
            Self::Signed(token) => {
                // The token itself stays out of the error.
                let mut value: MetadataValue<Ascii> = token
                    .parse()
                    .map_err(|_| Status::invalid_argument("the user's token is not visible ASCII"))?;
                value.set_sensitive(true);
                metadata.insert("x-windfall-user-token", value);
            }
            Self::Named(user_id) => {
                metadata.insert("x-windfall-user", MetadataValue::from(user_id));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for EndUser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signed(_) => f.write_str("Signed(redacted)"),
            Self::Named(user_id) => f.debug_tuple("Named").field(user_id).finish(),
        }
    }
}
