//! The headers that say who sends a request, and which one it is.

use crate::options::{HttpOptions, SetupError, read_secret};
use crate::signature::{HEADER, HEADER_V2, Signed, SigningKey};
use crate::target::Target;
use hyper::http::request::Builder;

/// Signs the requests to one host.
pub(crate) struct Sign {
    key: SigningKey,
    host: String,
    with_v1: bool,
}

impl Sign {
    /// Reads the secret.
    pub fn new(options: &HttpOptions, target: &Target) -> Result<Self, SetupError> {
        let secret = read_secret("secret_file", &options.secret_file)?;
        let key = SigningKey::new(&options.key_id, &secret)?;
        Ok(Self { key, host: target.authority(), with_v1: options.signature_v1 })
    }

    /// Adds `idempotency-key` and the signatures to a `POST`.
    pub fn headers(
        &self,
        request: Builder,
        path_and_query: &str,
        idempotency_key: &str,
        now_ms: i64,
        body: &[u8],
    ) -> Builder {
        let signed = Signed { method: "POST", host: &self.host, path_and_query, idempotency_key, body };
        let request = request
            .header("idempotency-key", idempotency_key)
            .header(HEADER_V2, self.key.sign_v2(&signed, now_ms));
        if self.with_v1 {
            request.header(HEADER, self.key.sign("POST", path_and_query, now_ms, body))
        } else {
            request
        }
    }
}
