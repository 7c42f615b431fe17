//! The calls of the page by somebody who has signed in.

use crate::answer::{Answer, Refused};
use crate::console::Inner;
use crate::door::{api_path, check_method, nothing_here};
use crate::forecast::Forecast;
use crate::gateway;
use crate::options::RulesRight;
use crate::replay::METRICS;
use crate::rules::{By, RulesEditor, Wanted};
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
    /// Whether it promotes a trial that has not proven itself.
    #[serde(default)]
    by_force: bool,
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

/// A step that ends a proposal.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    number: u64,
    #[serde(default)]
    actor: String,
}

impl Inner {
    /// Answers a request that has passed the door. Its session may have ended while its body came.
    pub(crate) async fn answer(&self, request: &Request<Bytes>, visitor: Visitor) -> Result<Answer, Refused> {
        let path = api_path(request.uri().path()).ok_or_else(nothing_here)?;
        if let Some(caller) = self.caller_by_key(path, request.headers(), visitor)? {
            check_observes(&caller)?;
            return self.rules_api(path.strip_prefix("rules").unwrap_or(path), request, &caller).await;
        }
        let cookie = self.cookie(request.uri(), request.headers(), visitor);
        let signed_in = self.signed_in(request.headers(), &cookie, Use::ByItself)?;
        self.watch();
        if let Some(path) = path.strip_prefix("call") {
            check_method(request.method(), &[Method::POST])?;
            return gateway::call(&self.upstreams, path, request, &signed_in.session.key).await;
        }
        // What stands behind these has the same role in the APIs: `/metrics`, and the rules that `windfall rules` shows.
        check_observes(&signed_in.caller)?;
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
                Some(path) => self.rules_api(path, request, &signed_in.caller).await,
                None => Err(nothing_here()),
            },
        }
    }

    async fn rules_api(
        &self,
        path: &str,
        request: &Request<Bytes>,
        caller: &Caller,
    ) -> Result<Answer, Refused> {
        let Some(rules) = &self.rules else {
            return Err(Refused::forbidden(
                "this console has nothing to do with the rules (its option console.rules)",
            ));
        };
        let is_change = matches!(path, "/set" | "/rollback" | "/stage" | "/promote" | "/abort");
        let is_end = matches!(path, "/approve" | "/refuse");
        let is_post = is_change || is_end || matches!(path, "/check" | "/stage/check" | "/replay");
        check_method(request.method(), if is_post { &[Method::POST] } else { &[Method::GET] })?;
        if is_change {
            self.check_may_change(caller)?;
        }
        if is_end {
            self.check_may_end(caller, path == "/approve")?;
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
            "/proposals" => rules.proposals().await?,
            _ if is_change || is_end => rules_step(rules, path, request, caller).await?,
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

    /// Whether this caller may approve a proposal, or refuse one, which whoever could have made it may do, too.
    fn check_may_end(&self, caller: &Caller, is_approval: bool) -> Result<(), Refused> {
        let is_second = self.right == RulesRight::Change && caller.roles.has(Role::Approve);
        let is_own = || self.access.caller_of_key(&self.key).is_some_and(|own| own.name == caller.name);
        if (is_second && !is_own()) || (!is_approval && self.rules_right(caller) == RulesRight::Change) {
            return Ok(());
        }
        match self.right {
            RulesRight::Change => Err(Refused::forbidden(
                "only a key with the role `approve` approves or refuses a proposal, and yours does not have it",
            )),
            _ => self.check_may_change(caller),
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

/// A step that changes the rules, or ends a proposal, by whom the caller has found to be allowed to.
async fn rules_step(
    rules: &RulesEditor,
    path: &str,
    request: &Request<Bytes>,
    caller: &Caller,
) -> Result<Value, Refused> {
    match path {
        "/set" => {
            let Set { text, why, actor, by_force } = body(request)?;
            let by = who_changes(caller, &actor)?;
            let changed = rules.change(Wanted::Set { text, by_force }, by.clone(), why).await;
            noted(changed, &by, "the rules were changed")
        }
        "/rollback" => {
            let Rollback { version, based_on, why, actor } = body(request)?;
            let by = who_changes(caller, &actor)?;
            let changed = rules.change(Wanted::Rollback { version, based_on }, by.clone(), why).await;
            noted(changed, &by, "the rules were rolled back")
        }
        "/stage" => {
            let wish: Wish = body(request)?;
            let by = who_changes(caller, &wish.actor)?;
            noted(rules.stage(wish, by.clone()).await, &by, "a change of the rules was staged")
        }
        "/promote" => {
            let Promote { since_ms, force, why, actor } = body(request)?;
            let by = who_changes(caller, &actor)?;
            let step = Step::Promote { is_forced: force };
            let changed = rules.end_trial(step, since_ms, by.clone(), why).await;
            let what = if force { "promoted by force" } else { "promoted" };
            noted(changed, &by, &format!("the staged change of the rules was {what}"))
        }
        "/abort" => {
            let Abort { since_ms, why, actor } = body(request)?;
            let by = who_changes(caller, &actor)?;
            let changed = rules.end_trial(Step::Abort, since_ms, by.clone(), why).await;
            noted(changed, &by, "the staged change of the rules was taken back")
        }
        "/approve" => {
            let End { number, actor } = body(request)?;
            let by = who_changes(caller, &actor)?;
            let changed = rules.approve(number, by.clone()).await;
            noted(changed, &by, &format!("proposal {number} for the rules was approved"))
        }
        "/refuse" => {
            let End { number, actor } = body(request)?;
            let by = who_changes(caller, &actor)?;
            // The store writes into the log who has refused what.
            rules.refuse(number, by).await
        }
        _ => Err(nothing_here()),
    }
}

/// Refuses who may not look at the rules.
fn check_observes(caller: &Caller) -> Result<(), Refused> {
    if caller.roles.has(Role::Observe) {
        return Ok(());
    }
    Err(Refused::forbidden("this page needs the role `observe`, which your key does not have"))
}

/// Writes into the log who has changed the rules, or proposed that, and hands the answer on.
fn noted(changed: Result<Value, Refused>, by: &By, what: &str) -> Result<Value, Refused> {
    let who = &by.who;
    match &changed {
        Ok(changed) => tracing::info!(%who, version = %changed["version"], "{what} by the console"),
        Err(Refused { proposal: Some(number), .. }) => {
            tracing::info!(%who, number, "a change of the rules was proposed by the console");
        }
        Err(_) => {}
    }
    changed
}

/// Who the history of the rules names: the caller's key, and the person that the page names beside it.
fn who_changes(caller: &Caller, actor: &str) -> Result<By, Refused> {
    let by = |who: String| Ok(By { who, caller: caller.name.to_string() });
    match actor.trim() {
        "" => by(caller.name.to_string()),
        actor if actor.len() > ACTOR_BYTES_MAX => {
            Err(Refused::invalid(format!("`actor` has more than {ACTOR_BYTES_MAX} bytes")))
        }
        // It goes into the log and the history, a line each.
        actor if actor.chars().any(char::is_control) => {
            Err(Refused::invalid("`actor` has a control character"))
        }
        actor => by(format!("{}: {actor}", caller.name)),
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
