//! What each request carries besides its message: who asks, when, until when, and the proof.
//!
//! Source of the names: `org.apache.rocketmq.common.constant.GrpcConstants`; of the proof:
//! `DefaultAuthenticationContextBuilder` in `rocketmq-auth` (HMAC-SHA1 of the date's text, in hex).

use crate::options::Credentials;
use ring::hmac;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

/// Signs requests.
pub(crate) struct Signer {
    client_id: String,
    namespace: String,
    key: Option<(String, hmac::Key)>,
}

impl Signer {
    pub(crate) fn new(client_id: String, namespace: String, credentials: Option<&Credentials>) -> Self {
        let key = credentials.map(|credentials| {
            let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, credentials.secret_key.as_bytes());
            (credentials.access_key.clone(), key)
        });
        Self { client_id, namespace, key }
    }

    pub(crate) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// A request with a deadline, which the server is told as well.
    pub(crate) fn request<T>(&self, message: T, deadline: Duration) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(deadline);
        self.sign(request.metadata_mut(), SystemTime::now());
        request
    }

    /// A request that lasts as long as its stream.
    pub(crate) fn lasting<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        self.sign(request.metadata_mut(), SystemTime::now());
        request
    }

    fn sign(&self, metadata: &mut MetadataMap, now: SystemTime) {
        let mut put = |name: &'static str, text: &str| {
            if let Ok(value) = AsciiMetadataValue::try_from(text) {
                metadata.insert(name, value);
            }
        };
        let date = date_time(now);
        put("x-mq-client-id", &self.client_id);
        put("x-mq-language", "RUST");
        put("x-mq-protocol", "v2");
        put("x-mq-client-version", "5.1.0");
        put("x-mq-date-time", &date);
        if !self.namespace.is_empty() {
            put("x-mq-namespace", &self.namespace);
        }
        if let Some((access_key, key)) = &self.key {
            let proof = hex(hmac::sign(key, date.as_bytes()).as_ref());
            let text = format!(
                "MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={proof}"
            );
            put("authorization", &text);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// A time in the form `20260131T235959Z`.
fn date_time(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days to a date of the proleptic Gregorian calendar, counted from 0000-03-01 in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let at = |seconds| date_time(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "19700101T000000Z");
        assert_eq!(at(951_782_399), "20000228T235959Z");
        assert_eq!(at(951_782_400), "20000229T000000Z");
        assert_eq!(at(1_767_225_599), "20251231T235959Z");
        assert_eq!(at(1_767_225_600), "20260101T000000Z");
    }

    #[test]
    fn proofs_are_of_the_date() {
        let credentials = Credentials { access_key: "me".into(), secret_key: "key".into() };
        let signer = Signer::new("c".into(), String::new(), Some(&credentials));
        let mut metadata = MetadataMap::new();
        signer.sign(&mut metadata, UNIX_EPOCH);
        let proof = metadata.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        // By `printf 19700101T000000Z | openssl dgst -sha1 -hmac key`.
        assert_eq!(
            proof,
            "MQv2-HMAC-SHA1 Credential=me, SignedHeaders=x-mq-date-time, Signature=AB387D5C0B5C410C8F69629A05A2BFD6DE6DB62F"
        );
    }
}
