//! The admin API: tokens and their limits, what pools hold, metrics.

use super::answers::{self, Answer, Refused, error, nothing, value};
use super::body::ReadBody;
use super::request::{Query, decode, split_token};
use super::server::{Pool, Shared};
use crate::options::{TOKEN_MAX_BYTES, TOKEN_MIN_BYTES};
use crate::tokens::make_token;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use subtle::ConstantTimeEq;
use windfall_contract::task_queue::{QueueName, RateLimit, TokenRecord};
use windfall_edge::GuardedCall;

/// The bytes of an admin call's body at most.
const BODY_MAX_BYTES: usize = 64 << 10;
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A path as logs may show it: what follows a namespace is a token.
pub(super) fn logged_path(path: &str) -> Cow<'_, str> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match decode(parts[0], false) == "token" && parts.len() > 2 {
        true => Cow::Owned(format!("/token/{}/…", parts[1])),
        false => Cow::Borrowed(path),
    }
}

/// The admin API of a process.
pub(super) struct Admin<'s>(pub(super) &'s Shared);

/// A limit, as the wire has it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Limiter {
    #[serde(default)]
    read: u32,
    #[serde(default)]
    write: u32,
    #[serde(default)]
    interval: u32,
}

impl From<RateLimit> for Limiter {
    fn from(limit: RateLimit) -> Self {
        Self { read: limit.read, write: limit.write, interval: limit.interval_s }
    }
}

impl Admin<'_> {
    pub(super) async fn answer(&self, request: Request<Incoming>, guarded: &GuardedCall) -> Answer {
        if !self.is_known(request.headers()) {
            let mut answer = error(StatusCode::UNAUTHORIZED, "an account of the admin API is needed");
            let ask = HeaderValue::from_static("Basic realm=\"windfall\"");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
            return answer;
        }
        guarded.authenticated();
        self.call(request).await.unwrap_or_else(|refused| refused.answer())
    }

    async fn call(&self, request: Request<Incoming>) -> Result<Answer, Refused> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().trim_matches('/');
        let parts: Vec<_> = path.split('/').map(|part| decode(part, false)).collect();
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        let query = Query::parse(head.uri.query());
        match (head.method.as_str(), &parts[..]) {
            ("POST", ["token", namespace]) => self.new_token(namespace, query, body).await,
            ("GET", ["token", namespace]) => self.list_tokens(namespace, &query).await,
            ("DELETE", ["token", namespace, token]) => {
                let (pool, token) = split_token(token);
                self.pool(pool)?.tokens.remove(namespace, token).await?;
                Ok(nothing())
            }
            (_, ["token", namespace, token, "limit"]) => {
                self.limit(&head.method, namespace, token, body).await
            }
            ("GET", ["limits"]) => self.list_limits().await,
            ("GET", ["info"]) => self.info(&query).await,
            ("GET", ["version"]) => {
                let version = env!("CARGO_PKG_VERSION");
                let body = json!({ "version": version, "build_commit": "", "build_date": "" });
                Ok(value(StatusCode::OK, &body))
            }
            ("GET", ["pools"]) => {
                let names: Vec<&String> = self.0.api.pools.keys().collect();
                Ok(value(StatusCode::OK, &json!(names)))
            }
            ("GET", ["accesslog"]) => Ok(self.access_log()),
            ("POST", ["accesslog"]) => match query.get("status") {
                Some(status @ ("enable" | "disable")) => {
                    self.0.logs_access.store(status == "enable", Relaxed);
                    Ok(self.access_log())
                }
                _ => Err("invalid status".into()),
            },
            ("GET", ["metrics"]) => Ok(self.metrics()),
            _ => Err(Refused::new(StatusCode::NOT_FOUND, "api not found")),
        }
    }

    fn pool(&self, name: &str) -> Result<&Pool, Refused> {
        let name = if name.is_empty() { "default" } else { name };
        self.0.api.pools.get(name).ok_or_else(|| "pool not found".into())
    }

    async fn new_token(&self, namespace: &str, query: Query<'_>, body: Incoming) -> Result<Answer, Refused> {
        let ReadBody { bytes: body, room: _room, .. } = self.0.api.bodies.read(body, BODY_MAX_BYTES).await?;
        // Values come in the query or as a form.
        let form = Query::parse(std::str::from_utf8(&body).ok());
        let given = |name: &str| query.get(name).or_else(|| form.get(name)).unwrap_or_default();
        let (description, own) = (given("description"), given("token"));
        if description.is_empty() || description.len() > TOKEN_MAX_BYTES {
            return Err("invalid description".into());
        }
        QueueName::check_namespace(namespace)?;
        let (mut pool, mut token) = (given("pool"), own.to_owned());
        if own.is_empty() {
            token = make_token().map_err(|why| {
                tracing::error!(%why, "no random bytes for a token");
                Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
            })?;
        } else if let Some((of, rest)) = own.split_once(':') {
            (pool, token) = (of, rest.to_owned());
        }
        if token.len() < TOKEN_MIN_BYTES {
            return Err("the user token was too short".into());
        }
        if token.len() > TOKEN_MAX_BYTES || !token.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
        {
            return Err("the user token has a forbidden character or is too long".into());
        }
        let namespace = namespace.to_owned();
        let record = TokenRecord { namespace, token, description: description.to_owned(), limit: None };
        if !self.pool(pool)?.tokens.add(&record).await? {
            return Err("token exists".into());
        }
        let shown = match pool {
            "" | "default" => record.token,
            pool => format!("{pool}:{}", record.token),
        };
        Ok(value(StatusCode::CREATED, &json!({ "token": shown })))
    }

    async fn list_tokens(&self, namespace: &str, query: &Query<'_>) -> Result<Answer, Refused> {
        let all = self.pool(query.get("pool").unwrap_or_default())?.tokens.list().await?;
        let own = all.into_iter().filter(|record| record.namespace == namespace);
        let tokens: Map<String, Value> =
            own.map(|record| (record.token, Value::String(record.description))).collect();
        Ok(value(StatusCode::OK, &json!({ "tokens": tokens })))
    }

    async fn limit(
        &self,
        method: &Method,
        namespace: &str,
        token: &str,
        body: Incoming,
    ) -> Result<Answer, Refused> {
        let (pool, token) = split_token(token);
        let tokens = &self.pool(pool)?.tokens;
        let status = match method.as_str() {
            "GET" => {
                return Ok(match tokens.limit_of(namespace, token).await? {
                    Some(limit) => value(StatusCode::OK, &json!(Limiter::from(limit))),
                    None => value(StatusCode::NOT_FOUND, &Value::Null),
                });
            }
            "DELETE" => {
                tokens.limit(namespace, token, None).await?;
                return Ok(value(StatusCode::OK, &json!({ "msg": "success" })));
            }
            "POST" => StatusCode::CREATED,
            "PUT" => StatusCode::OK,
            _ => return Err(Refused::new(StatusCode::NOT_FOUND, "api not found")),
        };
        let ReadBody { bytes: body, room: _room, .. } = self.0.api.bodies.read(body, BODY_MAX_BYTES).await?;
        let Ok(limiter) = serde_json::from_slice::<Limiter>(&body) else {
            return Err("request body should be a limiter".into());
        };
        if limiter.read == 0 && limiter.write == 0 {
            return Ok(value(StatusCode::BAD_REQUEST, &json!({ "limiter": limiter })));
        }
        if limiter.interval == 0 {
            return Err("interval should be > 0".into());
        }
        let limit = RateLimit { read: limiter.read, write: limiter.write, interval_s: limiter.interval };
        if !tokens.limit(namespace, token, Some(limit)).await? {
            return Err(Refused::new(StatusCode::NOT_FOUND, "token not found"));
        }
        Ok(value(status, &json!({ "limiter": limiter })))
    }

    async fn list_limits(&self) -> Result<Answer, Refused> {
        let mut limits = Map::new();
        for (name, pool) in &self.0.api.pools {
            for record in pool.tokens.list().await? {
                if let Some(limit) = record.limit {
                    let key = format!("{name}/{}/{}", record.namespace, record.token);
                    limits.insert(key, json!(Limiter::from(limit)));
                }
            }
        }
        Ok(value(StatusCode::OK, &Value::Object(limits)))
    }

    async fn info(&self, query: &Query<'_>) -> Result<Answer, Refused> {
        let mut info: Map<String, Value> = Map::new();
        for queue in self.pool(query.get("pool").unwrap_or_default())?.queues.names().await? {
            let queues = info.entry(queue.namespace()).or_insert_with(|| json!([]));
            if let Value::Array(queues) = queues {
                queues.push(queue.queue().into());
            }
        }
        Ok(value(StatusCode::OK, &Value::Object(info)))
    }

    fn access_log(&self) -> Answer {
        let status = if self.0.logs_access.load(Relaxed) { "enabled" } else { "disabled" };
        value(StatusCode::OK, &json!({ "status": status }))
    }

    fn metrics(&self) -> Answer {
        match self.0.metrics.get().and_then(|text| text()) {
            Some(text) => answers::text(StatusCode::OK, METRICS_TYPE, text),
            None => error(StatusCode::SERVICE_UNAVAILABLE, "the metrics are not there yet"),
        }
    }

    /// Whether the caller has one of the accounts, where there are any.
    fn is_known(&self, headers: &HeaderMap) -> bool {
        let accounts = &self.0.api.options.accounts;
        if accounts.is_empty() {
            return true;
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let coded = given.and_then(|value| value.strip_prefix("Basic "));
        let Some(given) = coded.and_then(|coded| STANDARD.decode(coded.trim()).ok()) else { return false };
        // Of equal length, so that the comparison takes as long for each guess.
        let given = Sha256::digest(&given);
        let mut is_known = subtle::Choice::from(0);
        for (name, password) in accounts {
            is_known |= Sha256::digest(format!("{name}:{password}")).ct_eq(&given);
        }
        is_known.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_is_logged() {
        for path in ["/token/n/secret", "//token/n/secret/limit", "/%74oken/n/secret"] {
            assert_eq!(logged_path(path), "/token/n/…", "{path}");
        }
        assert_eq!(logged_path("/token/n"), "/token/n");
        assert_eq!(logged_path("/api/n/q/job/x"), "/api/n/q/job/x");
    }
}
