//! The calls of the page by somebody who has signed in.

use crate::answer::{Answer, Refused};
use crate::console::Inner;
use crate::door::{SignedIn, api_path, check_method, nothing_here};
use crate::forecast::Forecast;
use crate::gateway;
use crate::options::RulesRight;
use crate::replay::METRICS;
use crate::rules::Wanted;
use crate::session::Use;
use crate::trial::{Step, Wish};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windfall_edge::{Caller, Role, Visitor};

/// The bytes of a person's name, beside that of the key, at most; services take as many.
const ACTOR_BYTES_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    text: String,
    why: String,
    #[serde(default)]
    actor: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rollback {
    version: u64,
    based_on: Option<u64>,
    why: String,
    #[serde(default)]
    actor: String,
}

/// `since_ms`: the staged change that was shown to who asks.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Promote {
    since_ms: u64,
    #[serde(default)]
    force: bool,
    why: String,
    #[serde(default)]
    actor: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Abort {
    since_ms: u64,
    why: String,
    #[serde(default)]
    actor: String,
}

impl Inner {
    /// Answers a request that has passed the door. Its session may have ended while its body came.
    pub(crate) async fn answer(&self, request: &Request<Bytes>, visitor: Visitor) -> Result<Answer, Refused> {
        let cookie = self.cookie(request.uri(), request.headers(), visitor);
        let signed_in = self.signed_in(request.headers(), &cookie, Use::ByItself)?;
        self.watch();
        let path = api_path(request.uri().path()).ok_or_else(nothing_here)?;
        if let Some(path) = path.strip_prefix("call") {
            check_method(request.method(), &[Method::POST])?;
            return gateway::call(&self.upstreams, path, request, &signed_in.session.key).await;
        }
        // What stands behind these has the same role in the APIs: `/metrics`, and the rules that `windfall rules` shows.
        if !signed_in.caller.roles.has(Role::Observe) {
            return Err(Refused::forbidden(
                "this page needs the role `observe`, which your key does not have",
            ));
        }
        match path {
            "flow" => {
                check_method(request.method(), &[Method::GET])?;
                Ok(Answer::written(&self.flow.newest(), request.headers()))
            }
            "history" => {
                check_method(request.method(), &[Method::GET])?;
                Ok(Answer::written(&self.flow.history(), request.headers()))
            }
            "budgets" => {
                check_method(request.method(), &[Method::GET])?;
                Ok(Answer::json(StatusCode::OK, &Forecast::of(&self.flow)))
            }
            _ => match path.strip_prefix("rules") {
                Some(path) => self.rules_api(path, request, &signed_in).await,
                None => Err(nothing_here()),
            },
        }
    }

    async fn rules_api(
        &self,
        path: &str,
        request: &Request<Bytes>,
        SignedIn { caller, .. }: &SignedIn,
    ) -> Result<Answer, Refused> {
        let Some(rules) = &self.rules else {
            return Err(Refused::forbidden(
                "this console has nothing to do with the rules (its option console.rules)",
            ));
        };
        let is_change = matches!(path, "/set" | "/rollback" | "/stage" | "/promote" | "/abort");
        let is_post = is_change || matches!(path, "/check" | "/stage/check" | "/replay");
        check_method(request.method(), if is_post { &[Method::POST] } else { &[Method::GET] })?;
        if is_change {
            self.check_may_change(caller)?;
        }
        let value = match path {
            "" => rules.show(self.rules_right(caller) == RulesRight::Change).await?,
            "/history" => rules.history().await?,
            "/version" => rules.version(number(request, "version")?).await?,
            "/status" => rules.status().await?,
            "/check" => rules.check(body::<Check>(request)?.text).await?,
            "/replay" => {
                let known = || (self.flow.recorded(&METRICS), Forecast::of(&self.flow).budgets);
                rules.replay(body::<Check>(request)?.text, known).await?
            }
            "/stage/check" => rules.check_wish(body(request)?).await?,
            "/set" => {
                let Set { text, why, actor } = body(request)?;
                let who = who_changes(caller, &actor)?;
                let changed = rules.change(Wanted::Set { text }, who.clone(), why).await?;
                noted(changed, &who, "the rules were changed")
            }
            "/rollback" => {
                let Rollback { version, based_on, why, actor } = body(request)?;
                let who = who_changes(caller, &actor)?;
                let changed = rules.change(Wanted::Rollback { version, based_on }, who.clone(), why).await?;
                noted(changed, &who, "the rules were rolled back")
            }
            "/stage" => {
                let wish: Wish = body(request)?;
                let who = who_changes(caller, &wish.actor)?;
                noted(rules.stage(wish, who.clone()).await?, &who, "a change of the rules was staged")
            }
            "/promote" => {
                let Promote { since_ms, force, why, actor } = body(request)?;
                let who = who_changes(caller, &actor)?;
                let step = Step::Promote { is_forced: force };
                let changed = rules.end_trial(step, since_ms, who.clone(), why).await?;
                let what = if force { "promoted by force" } else { "promoted" };
                noted(changed, &who, &format!("the staged change of the rules was {what}"))
            }
            "/abort" => {
                let Abort { since_ms, why, actor } = body(request)?;
                let who = who_changes(caller, &actor)?;
                let changed = rules.end_trial(Step::Abort, since_ms, who.clone(), why).await?;
                noted(changed, &who, "the staged change of the rules was taken back")
            }
            _ => return Err(nothing_here()),
        };
        Ok(Answer::json(StatusCode::OK, &value))
    }

    /// What this caller may do with the rules. The console writes them by its own right, not by that of the caller's key, so
    /// a role does not suffice: an option names the callers. The console's own key, which lies in a file for its
    /// scrapes, is never one of them.
    pub(crate) fn rules_right(&self, caller: &Caller) -> RulesRight {
        let is_named = self.rules_changed_by.iter().any(|name| **name == *caller.name);
        let is_own = || self.access.caller_of_key(&self.key).is_some_and(|own| own.name == caller.name);
        match self.right {
            RulesRight::Change if !is_named || !caller.roles.has(Role::Operate) || is_own() => {
                RulesRight::Read
            }
            right => right,
        }
    }

    fn check_may_change(&self, caller: &Caller) -> Result<(), Refused> {
        match (self.right, self.rules_right(caller)) {
            (_, RulesRight::Change) => Ok(()),
            (RulesRight::Change, _) => Err(Refused::forbidden(
                "your key may not change the rules: the option console.rules_changed_by does not name its caller",
            )),
            _ => Err(Refused::forbidden(
                "this console does not change the rules: its option console.rules would have to be `change`",
            )),
        }
    }
}

/// Writes into the log who has changed the rules, and hands the answer on.
fn noted(changed: Value, who: &str, what: &str) -> Value {
    tracing::info!(%who, version = %changed["version"], "{what} by the console");
    changed
}

/// Who the history of the rules names: the caller's key, and the person that the page names beside it.
fn who_changes(caller: &Caller, actor: &str) -> Result<String, Refused> {
    match actor.trim() {
        "" => Ok(caller.name.to_string()),
        actor if actor.len() > ACTOR_BYTES_MAX => {
            Err(Refused::invalid(format!("`actor` has more than {ACTOR_BYTES_MAX} bytes")))
        }
        // It goes into the log and the history, a line each.
        actor if actor.chars().any(char::is_control) => {
            Err(Refused::invalid("`actor` has a control character"))
        }
        actor => Ok(format!("{}: {actor}", caller.name)),
    }
}

fn body<T: DeserializeOwned>(request: &Request<Bytes>) -> Result<T, Refused> {
    // A form of another site cannot send this type unasked.
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if kind != Some(b"application/json") {
        return Err(Refused::invalid("`content-type` must be application/json"));
    }
    serde_json::from_slice(request.body())
        .map_err(|_| Refused::invalid("the body is not the JSON that is expected"))
}

fn number(request: &Request<Bytes>, name: &str) -> Result<u64, Refused> {
    let query = request.uri().query().unwrap_or_default();
    let found = query.split('&').find_map(|one| one.split_once('=').filter(|(key, _)| *key == name));
    let number = found.and_then(|(_, value)| value.parse().ok());
    number.ok_or_else(|| Refused::invalid(format!("the query must have `{name}`, a number")))
}
