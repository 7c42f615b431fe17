//! Tokens, their limits, and how often they are used.

use super::rows::{self, Reading};
use super::{EmbeddedJobs, Inner};
use async_trait::async_trait;
use std::collections::HashMap;
use std::ops::Bound;
use windfall_contract::task_queue::{JobStoreError, QueueTokens, RateLimit, TokenRecord};

/// Names that are counted at most; beyond, those whose interval is over are forgotten, and then all.
const COUNTED_MAX: usize = 100_000;

/// Calls by name: when the interval ends, and how many there were. They are not kept: a store that is opened again
/// begins new intervals.
#[derive(Default)]
pub(super) struct CallCounts(HashMap<String, (u64, u64)>);

impl CallCounts {
    fn count(&mut self, name: &str, interval_ms: u64, now_ms: u64) -> u64 {
        if self.0.len() >= COUNTED_MAX && !self.0.contains_key(name) {
            self.0.retain(|_, (end_ms, _)| *end_ms > now_ms);
            if self.0.len() >= COUNTED_MAX {
                self.0.clear();
            }
        }
        let (end_ms, count) = self.0.entry(name.to_owned()).or_default();
        // Where the clock has gone back, the interval ends no later than one that begins now.
        if *end_ms <= now_ms || *end_ms > now_ms + interval_ms {
            (*end_ms, *count) = (now_ms + interval_ms, 0);
        }
        *count += 1;
        *count
    }
}

impl Inner {
    fn token_at(&self, namespace: &str, digest: &str) -> Result<Option<TokenRecord>, JobStoreError> {
        let Some(value) = self.files.get(&rows::token(b't', namespace, digest))? else { return Ok(None) };
        let limit = self.files.get(&rows::token(b'l', namespace, digest))?;
        let limit = limit.map(|bytes| read_limit(&bytes)).transpose()?;
        read_token(namespace, &value, limit).map(Some)
    }
}

/// Token, a line's end, description.
fn token_value(record: &TokenRecord) -> Vec<u8> {
    format!("{}\n{}", record.token, record.description).into_bytes()
}

fn read_token(namespace: &str, value: &[u8], limit: Option<RateLimit>) -> Result<TokenRecord, JobStoreError> {
    let text = std::str::from_utf8(value).map_err(|_| rows::damaged())?;
    let (token, description) = text.split_once('\n').ok_or_else(rows::damaged)?;
    let (namespace, token) = (namespace.to_owned(), token.to_owned());
    Ok(TokenRecord { namespace, token, description: description.to_owned(), limit })
}

fn read_limit(bytes: &[u8]) -> Result<RateLimit, JobStoreError> {
    let mut at = Reading(bytes);
    Ok(RateLimit { read: at.u32()?, write: at.u32()?, interval_s: at.u32()? })
}

#[async_trait]
impl QueueTokens for EmbeddedJobs {
    async fn token(&self, namespace: &str, digest: &str) -> Result<Option<TokenRecord>, JobStoreError> {
        let (namespace, digest) = (namespace.to_owned(), digest.to_owned());
        self.call(move |inner| inner.token_at(&namespace, &digest)).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>, JobStoreError> {
        self.call(|inner| {
            let mut all = Vec::new();
            for row in inner.files.range(b"t", Bound::Included(b"t".to_vec())) {
                let (key, _) = row?;
                let text = std::str::from_utf8(&key[1..]).map_err(|_| rows::damaged())?;
                let (namespace, digest) = text.split_once('\0').ok_or_else(rows::damaged)?;
                all.extend(inner.token_at(namespace, digest)?);
            }
            Ok(all)
        })
        .await
    }

    async fn add_token(&self, record: &TokenRecord, digest: &str) -> Result<bool, JobStoreError> {
        let (record, digest) = (record.clone(), digest.to_owned());
        self.call(move |inner| {
            let _one = inner.calls.lock();
            if inner.token_at(&record.namespace, &digest)?.is_some() {
                return Ok(false);
            }
            let mut step = inner.files.step();
            step.put(rows::token(b't', &record.namespace, &digest), token_value(&record));
            step.commit()?;
            Ok(true)
        })
        .await
    }

    async fn remove_token(&self, namespace: &str, digest: &str) -> Result<(), JobStoreError> {
        let keys = [b't', b'l'].map(|letter| rows::token(letter, namespace, digest));
        self.call(move |inner| {
            let _one = inner.calls.lock();
            let mut step = inner.files.step();
            keys.into_iter().for_each(|key| step.remove(key));
            step.commit()
        })
        .await
    }

    async fn limit_token(
        &self,
        namespace: &str,
        digest: &str,
        limit: Option<RateLimit>,
    ) -> Result<bool, JobStoreError> {
        let (namespace, digest) = (namespace.to_owned(), digest.to_owned());
        self.call(move |inner| {
            let _one = inner.calls.lock();
            if inner.token_at(&namespace, &digest)?.is_none() {
                return Ok(false);
            }
            let mut step = inner.files.step();
            let key = rows::token(b'l', &namespace, &digest);
            match limit {
                Some(RateLimit { read, write, interval_s }) => {
                    step.put(key, [read, write, interval_s].map(u32::to_be_bytes).concat());
                }
                None => step.remove(key),
            }
            step.commit()?;
            Ok(true)
        })
        .await
    }

    async fn count_call(&self, name: &str, interval_s: u32) -> Result<u64, JobStoreError> {
        let now_ms = self.inner.clock.unix_ms();
        Ok(self.inner.calls.lock().count(name, u64::from(interval_s) * 1_000, now_ms))
    }
}
