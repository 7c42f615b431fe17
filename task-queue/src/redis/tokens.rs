//! Tokens, their limits, and how often they are used.

use super::answers::{array, number, text, unexpected};
use super::connected::Way;
use super::{RedisJobs, refused};
use crate::redis::scripts::Argument;
use async_trait::async_trait;
use redis::{Cmd, Value};
use std::collections::BTreeMap;
use tokio::time::Instant;
use windfall_contract::task_queue::{JobStoreError, QueueTokens, RateLimit, TokenRecord};
use windfall_redis_link::slot_of;

fn field(namespace: &str, digest: &str) -> String {
    format!("{namespace}/{digest}")
}

/// Fields and values of a hash.
fn fields(answer: Value) -> Result<Vec<(String, Value)>, JobStoreError> {
    let pairs: Vec<(Value, Value)> = match answer {
        Value::Map(pairs) => pairs,
        other => {
            let mut values = array(other)?.into_iter();
            std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect()
        }
    };
    pairs.into_iter().map(|(field, value)| Ok((text(&field)?.to_owned(), value))).collect()
}

fn read_token(namespace: &str, value: &Value, limit: &Value) -> Result<TokenRecord, JobStoreError> {
    let (token, description) = text(value)?.split_once('\n').ok_or_else(|| unexpected(value))?;
    let limit = match limit {
        Value::Nil => None,
        found => {
            let numbers: Vec<u32> = text(found)?.split(' ').filter_map(|part| part.parse().ok()).collect();
            let [read, write, interval_s] = numbers[..] else { return Err(unexpected(found)) };
            Some(RateLimit { read, write, interval_s })
        }
    };
    let (namespace, token) = (namespace.to_owned(), token.to_owned());
    Ok(TokenRecord { namespace, token, description: description.to_owned(), limit })
}

impl RedisJobs {
    async fn registry(&self, name: &str, words: &[&str]) -> Result<Value, JobStoreError> {
        let key = self.options.registry(name);
        let mut command = Cmd::new();
        command.arg(words[0]).arg(&key);
        for word in &words[1..] {
            command.arg(*word);
        }
        let deadline = Instant::now() + self.options.call_timeout();
        let sent = self.connected()?.send(slot_of(&key), || command.clone(), Way::Repeats, deadline);
        refused(sent.await?)
    }
}

#[async_trait]
impl QueueTokens for RedisJobs {
    async fn token(&self, namespace: &str, digest: &str) -> Result<Option<TokenRecord>, JobStoreError> {
        let field = field(namespace, digest);
        let get = ["HGET", &field];
        let (token, limit) = tokio::try_join!(self.registry("k", &get), self.registry("w", &get))?;
        match token {
            Value::Nil => Ok(None),
            found => read_token(namespace, &found, &limit).map(Some),
        }
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>, JobStoreError> {
        let limits = self.registry("w", &["HGETALL"]).await?;
        let limits: BTreeMap<String, Value> = fields(limits)?.into_iter().collect();
        let tokens = fields(self.registry("k", &["HGETALL"]).await?)?;
        let read = |(field, value): &(String, Value)| {
            let (namespace, _) = field.split_once('/').ok_or_else(|| unexpected(value))?;
            read_token(namespace, value, limits.get(field).unwrap_or(&Value::Nil))
        };
        tokens.iter().map(read).collect()
    }

    async fn add_token(&self, record: &TokenRecord, digest: &str) -> Result<bool, JobStoreError> {
        let value = format!("{}\n{}", record.token, record.description);
        let field = field(&record.namespace, digest);
        let added: u8 = number(&self.registry("k", &["HSETNX", &field, &value]).await?)?;
        Ok(added == 1)
    }

    async fn remove_token(&self, namespace: &str, digest: &str) -> Result<(), JobStoreError> {
        let arguments = [Argument::text(&field(namespace, digest))];
        let tokens = self.options.registry("k");
        self.call_at(&self.scripts.remove_token, &tokens, &arguments, Way::Repeats).await.map(drop)
    }

    async fn limit_token(
        &self,
        namespace: &str,
        digest: &str,
        limit: Option<RateLimit>,
    ) -> Result<bool, JobStoreError> {
        let mut arguments = vec![Argument::text(&field(namespace, digest))];
        if let Some(RateLimit { read, write, interval_s }) = limit {
            arguments.push(Argument::text(&format!("{read} {write} {interval_s}")));
        }
        let tokens = self.options.registry("k");
        let limited = self.call_at(&self.scripts.limit_token, &tokens, &arguments, Way::Repeats).await?;
        Ok(number::<u8>(&limited)? == 1)
    }

    async fn count_call(&self, name: &str, interval_s: u32) -> Result<u64, JobStoreError> {
        let key = self.options.registry(&format!("c:{name}"));
        let arguments = [Argument::Number(u64::from(interval_s) * 1_000)];
        let answer = self.call_at(&self.scripts.count_call, &key, &arguments, Way::Once).await?;
        number(&answer)
    }
}
