//! The live rules behind a console, for who changes them from elsewhere than the page: `windfall rules --server`.

use crate::options::ServiceAt;
use crate::upstream::{Asked, Upstream};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;
use std::{fmt, io, thread};
use windfall_config::{
    Actor, Change, ChangeRules, History, ProcessStatus, Proposals, ReadError, SetError, Written, parse_rules,
};
use zeroize::Zeroizing;

/// Where the calls about the rules are.
const RULES: &str = "/console/api/rules";
/// How long a console may take for an answer: as long as for the page.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The live rules, as the console changes them for whom a key proves. Each call has a connection of its own, and blocks.
pub struct RemoteRules {
    console: Upstream,
    key: Zeroizing<String>,
}

/// Rows of proposals, and the numbers of those that cannot be read, each with the reason.
type Waiting = (Vec<Value>, Vec<(u64, String)>);

/// The console has not done what it was asked for.
enum NotDone {
    /// It has refused it: nothing was written.
    Refused { status: StatusCode, code: String, message: String, proposal: Option<u64> },
    /// There is no answer, or one that leaves open what was done.
    Unknown(io::Error),
}

impl RemoteRules {
    /// The rules behind this console. Nothing is called before they are asked for.
    ///
    /// # Errors
    /// Why the address or the certificates cannot be used.
    pub fn new(at: &ServiceAt, key: String) -> Result<Self, String> {
        let instead = "use https, or a tunnel that ends on this machine";
        let console = Upstream::by_itself(at, CALL_TIMEOUT, instead)?;
        Ok(Self { console, key: Zeroizing::new(key) })
    }

    /// The newest changes, newest first, without their documents, as the console shows them; and what could not be read.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn changes(&self) -> Result<(Vec<Value>, Vec<String>), ReadError> {
        let answer = self.get("/history")?;
        let unreadable = answer["unreadable"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let unreadable = unreadable.map(str::to_owned).collect();
        Ok((answer["changes"].as_array().cloned().unwrap_or_default(), unreadable))
    }

    /// The changes that wait for approval, each with what it changes in place of its document
    /// ([`Proposal::row`](windfall_config::Proposal::row)); and those that cannot be read, by their numbers.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn waiting(&self) -> Result<Waiting, ReadError> {
        let answer = self.get("/proposals")?;
        let unreadable = answer["unreadable"].as_array().into_iter().flatten();
        let unreadable = unreadable
            .filter_map(|one| Some((one["number"].as_u64()?, one["why"].as_str()?.to_owned())))
            .collect();
        Ok((answer["proposals"].as_array().cloned().unwrap_or_default(), unreadable))
    }

    /// The version in force; none where what is there are no rules.
    fn version(&self) -> Result<Option<u64>, ReadError> {
        Ok(self.get("")?["checked"]["form"]["version"].as_u64())
    }

    fn get(&self, path: &str) -> Result<Value, ReadError> {
        self.ask(Method::GET, path, None).map_err(|error| self.unread(error))
    }

    /// Asks for a change. The console's conflict is one with the version `based_on`.
    fn post(&self, path: &str, body: &Value, based_on: Option<u64>) -> Result<Value, SetError> {
        let error = match self.ask(Method::POST, path, Some(body)) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        Err(match (error, based_on) {
            (NotDone::Refused { proposal: Some(number), .. }, _) => SetError::Waits { number },
            (NotDone::Refused { code, .. }, Some(based_on)) if code == "ABORTED" => {
                SetError::Conflict { based_on, current: self.version()?.unwrap_or(0) }
            }
            (NotDone::Refused { message, .. }, _) => SetError::Elsewhere(message),
            (NotDone::Unknown(source), _) => SetError::Io {
                what: "it is not known whether a change was made by",
                place: self.console.name.clone(),
                source,
            },
        })
    }

    fn changed(&self, path: &str, body: &Value, based_on: Option<u64>) -> Result<Written, SetError> {
        let answer = self.post(path, body, based_on)?;
        match (answer["version"].as_u64(), answer["changed"].as_bool()) {
            (Some(version), Some(true)) => Ok(Written::Changed { version }),
            (Some(version), Some(false)) => Ok(Written::Unchanged { version }),
            _ => Err(SetError::Io {
                what: "it is not known whether a change was made by",
                place: self.console.name.clone(),
                source: io::Error::other("its answer is not that of a console"),
            }),
        }
    }

    /// One call, on a thread of its own: the caller's may have a runtime that must not be blocked on.
    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, NotDone> {
        let path = format!("{RULES}{path}");
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let asked = Asked { method, path: &path, key: &self.key, user: None, body };
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(self.console.call(asked)).map_err(io::Error::other)
        };
        let called = thread::scope(|scope| scope.spawn(run).join())
            .unwrap_or_else(|_| Err(io::Error::other("the call had panicked")))
            .map_err(NotDone::Unknown)?;
        answered(called.status, &called.body)
    }

    fn unread(&self, error: NotDone) -> ReadError {
        let source = match error {
            NotDone::Refused { message, .. } => io::Error::other(message),
            NotDone::Unknown(source) => source,
        };
        ReadError { place: format!("the rules by {}", self.console.name), source }
    }

    fn not_handed_out(&self, what: &str) -> ReadError {
        let source = io::Error::new(io::ErrorKind::Unsupported, format!("a console does not {what}"));
        ReadError { place: format!("the rules by {}", self.console.name), source }
    }
}

/// What an answer says.
fn answered(status: StatusCode, body: &[u8]) -> Result<Value, NotDone> {
    let said = serde_json::from_slice::<Value>(body).ok();
    match said {
        Some(said) if status.is_success() => Ok(said),
        // Refusals of a console are JSON with a message; a proxy's may be anything.
        Some(said) if status.is_client_error() && said["message"].is_string() => Err(NotDone::Refused {
            status,
            code: said["code"].as_str().unwrap_or_default().to_owned(),
            message: said["message"].as_str().unwrap_or_default().to_owned(),
            proposal: said["proposal"].as_u64(),
        }),
        said => {
            let said = said.unwrap_or_default();
            let what = said["message"].as_str().map_or_else(|| format!("it answers {status}"), str::to_owned);
            Err(NotDone::Unknown(io::Error::other(what)))
        }
    }
}

impl ChangeRules for RemoteRules {
    fn show(&self) -> Result<String, ReadError> {
        let answer = self.get("")?;
        let text = answer["text"].as_str().map(str::to_owned);
        text.ok_or_else(|| self.unread(NotDone::Unknown(io::Error::other("its answer has no rules"))))
    }

    /// The name is kept beside the caller's, whose key proves it.
    fn set_by(&self, new_text: &str, by: Actor<'_>, why: &str, _now_ms: u64) -> Result<Written, SetError> {
        let based_on = parse_rules(new_text, None)?.version;
        self.changed("/set", &json!({ "text": new_text, "why": why, "actor": by.who }), Some(based_on))
    }

    /// An older console does not know of force, and refuses the call.
    fn force_by(&self, new_text: &str, by: Actor<'_>, why: &str, _now_ms: u64) -> Result<Written, SetError> {
        let based_on = parse_rules(new_text, None)?.version;
        let body = json!({ "text": new_text, "why": why, "actor": by.who, "by_force": true });
        self.changed("/set", &body, Some(based_on))
    }

    fn rollback_by(&self, version: u64, by: Actor<'_>, why: &str, _now_ms: u64) -> Result<Written, SetError> {
        let based_on = self.version()?;
        let body = json!({ "version": version, "based_on": based_on, "why": why, "actor": by.who });
        self.changed("/rollback", &body, based_on)
    }

    fn rollback_from(
        &self,
        based_on: u64,
        version: u64,
        by: Actor<'_>,
        why: &str,
        _now_ms: u64,
    ) -> Result<Written, SetError> {
        let body = json!({ "version": version, "based_on": based_on, "why": why, "actor": by.who });
        self.changed("/rollback", &body, Some(based_on))
    }

    /// Not handed out: see [`RemoteRules::changes`] and [`ChangeRules::change_of`].
    fn history(&self) -> Result<History, ReadError> {
        Err(self.not_handed_out("hand out all documents of the history at once"))
    }

    fn change_of(&self, version: u64) -> Result<Option<Change>, ReadError> {
        match self.ask(Method::GET, &format!("/version?version={version}"), None) {
            Ok(answer) => serde_json::from_value(answer)
                .map(Some)
                .map_err(|error| self.unread(NotDone::Unknown(io::Error::other(error)))),
            Err(NotDone::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(self.unread(error)),
        }
    }

    /// Not handed out: see [`RemoteRules::waiting`].
    fn proposals(&self, _now_ms: u64) -> Result<Proposals, ReadError> {
        Err(self.not_handed_out("hand out the documents of all proposals at once"))
    }

    fn approve(&self, number: u64, by: Actor<'_>, _now_ms: u64) -> Result<Written, SetError> {
        self.changed("/approve", &json!({ "number": number, "actor": by.who }), None)
    }

    fn refuse(&self, number: u64, by: Actor<'_>, _now_ms: u64) -> Result<(), SetError> {
        self.post("/refuse", &json!({ "number": number, "actor": by.who }), None).map(drop)
    }

    fn report(&self, _status: &ProcessStatus) -> Result<(), ReadError> {
        Err(self.not_handed_out("take reports of processes"))
    }

    fn reports(&self) -> Result<Vec<ProcessStatus>, ReadError> {
        let answer = self.get("/status")?;
        let processes = answer["processes"].as_array().cloned().unwrap_or_default();
        // As in a store, a report that cannot be read is left out.
        Ok(processes.into_iter().filter_map(|row| serde_json::from_value(row).ok()).collect())
    }

    fn withdraw(&self, _process: &str) -> Result<(), ReadError> {
        Err(self.not_handed_out("take reports of processes back"))
    }
}

impl fmt::Debug for RemoteRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteRules").field(&self.console.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_an_answer_that_leaves_open_what_was_done() {
        let waits = answered(
            StatusCode::CONFLICT,
            br#"{"code":"FAILED_PRECONDITION","message":"it waits","proposal":3}"#,
        );
        assert!(matches!(waits, Err(NotDone::Refused { proposal: Some(3), .. })));
        for (status, body) in [
            (StatusCode::SERVICE_UNAVAILABLE, &br#"{"code":"UNAVAILABLE","message":"away"}"#[..]),
            (StatusCode::BAD_GATEWAY, b"<html>"),
            (StatusCode::NOT_FOUND, b"<html>"),
        ] {
            assert!(matches!(answered(status, body), Err(NotDone::Unknown(_))), "{status}");
        }
    }

    #[test]
    fn a_console_that_is_away_has_made_no_change_that_anybody_knows_of() {
        let at = ServiceAt {
            name: "a".into(),
            url: "http://127.0.0.1:1".into(),
            ca_file: None,
            server_name: None,
            key_in_plain_text: false,
        };
        let rules = RemoteRules::new(&at, "key".into()).unwrap();
        let error = rules.approve(1, Actor::said("ann"), 0).unwrap_err();
        assert!(matches!(&error, SetError::Io { .. }), "{error}");
        assert!(rules.show().unwrap_err().to_string().contains("cannot be reached"));
        let refused = RemoteRules::new(&ServiceAt { url: "http://10.0.0.1".into(), ..at }, "key".into());
        assert!(refused.unwrap_err().contains("in the clear"));
    }
}
