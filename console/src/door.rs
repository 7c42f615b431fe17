//! The door: what the head of a request alone decides, before a byte of its body is read. Strangers get the page's files,
//! a sign-in or a refusal; who has signed in passes on, with as many bytes as the path may have.

use crate::answer::{Answer, Refused};
use crate::console::Inner;
use crate::cookie::{self, Cookie};
use crate::gateway;
use crate::options::{CALL_BYTES_MAX, ROLLBACK_BYTES_MAX, RULES_BYTES_MAX};
use crate::session::{Session, Use};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use serde_json::{Value, json};
use std::net::IpAddr;
use windfall_edge::{Caller, Role, Visitor};
use zeroize::Zeroizing;

/// Where the page is.
pub(crate) const ROOT: &str = "/console/";
/// Where the calls of the page are, below [`ROOT`].
const API: &str = "api/";
/// The roles that some page is for.
const ROLES: [Role; 4] = [Role::Observe, Role::Verify, Role::PayOut, Role::Schedule];

/// What the head decides.
pub(crate) enum AtDoor {
    Answered(Answer),
    /// Somebody has signed in, and changes nothing without the session's proof.
    Known {
        body_bytes_max: usize,
    },
}

/// A request of somebody who has signed in.
pub(crate) struct SignedIn {
    pub(crate) session: Session,
    pub(crate) caller: Caller,
}

/// The path of a call of the page; none where the path is not one.
pub(crate) fn api_path(path: &str) -> Option<&str> {
    path.strip_prefix(ROOT)?.strip_prefix(API)
}

impl Inner {
    pub(crate) fn at_door(&self, head: &Parts, visitor: Visitor) -> Result<AtDoor, Refused> {
        cookie::check_origin(&head.method, &head.uri, &head.headers)?;
        let Some(path) = head.uri.path().strip_prefix(ROOT) else {
            let moved = Answer::new(StatusCode::TEMPORARY_REDIRECT, "text/plain", Bytes::new());
            return Ok(AtDoor::Answered(moved.with(header::LOCATION, HeaderValue::from_static(ROOT))));
        };
        let Some(path) = path.strip_prefix(API) else {
            check_method(&head.method, &[Method::GET, Method::HEAD])?;
            let file = self.assets.answer(path, &head.headers).ok_or_else(nothing_here)?;
            return Ok(AtDoor::Answered(file));
        };
        if let Some(caller) = self.caller_by_key(path, &head.headers, visitor)? {
            return Ok(AtDoor::Known { body_bytes_max: body_bytes_max(head, path, &caller) });
        }
        let cookie = self.cookie(&head.uri, &head.headers, visitor);
        if path == "session" && head.method == Method::POST {
            return self.sign_in(&head.headers, &cookie, visitor).map(AtDoor::Answered);
        }
        // A page that asks by itself is not a person that is there.
        let is_repeated = matches!(path, "flow" | "history" | "rules/status");
        let used = if is_repeated { Use::ByItself } else { Use::ByPerson };
        let signed_in = self.signed_in(&head.headers, &cookie, used)?;
        if head.method != Method::GET {
            let proof = head.headers.get(cookie::CSRF).and_then(|value| value.to_str().ok());
            if !proof.is_some_and(|proof| signed_in.session.is_proved_by(proof)) {
                let what = format!("a changing request needs the header {}", cookie::CSRF);
                return Err(Refused::forbidden(what));
            }
        }
        if path == "session" {
            check_method(&head.method, &[Method::GET, Method::DELETE])?;
            return Ok(AtDoor::Answered(match head.method {
                Method::DELETE => self.sign_out(&head.headers, &cookie, &signed_in.caller)?,
                _ => Answer::json(StatusCode::OK, &self.who(&signed_in)),
            }));
        }
        Ok(AtDoor::Known { body_bytes_max: body_bytes_max(head, path, &signed_in.caller) })
    }

    /// The session that the request's cookie names, if its key is still a caller's.
    pub(crate) fn signed_in(
        &self,
        headers: &HeaderMap,
        cookie: &Cookie,
        used: Use,
    ) -> Result<SignedIn, Refused> {
        let name = cookie.find(headers).ok_or_else(signed_out)?;
        let session = self.sessions.find(name, used).ok_or_else(signed_out)?;
        match self.caller_of(&session.key) {
            Some(caller) => Ok(SignedIn { session, caller }),
            None => {
                self.sessions.end(name);
                Err(signed_out())
            }
        }
    }

    /// The caller whose key a request about the rules shows with itself, as `windfall rules --server` does; none where it
    /// shows none. Another site lets no browser send this header, so it needs no proof of a session.
    pub(crate) fn caller_by_key(
        &self,
        path: &str,
        headers: &HeaderMap,
        visitor: Visitor,
    ) -> Result<Option<Caller>, Refused> {
        let is_of_rules = path == "rules" || path.starts_with("rules/");
        if !is_of_rules || !headers.contains_key(header::AUTHORIZATION) {
            return Ok(None);
        }
        let address = visitor.address.ip().to_canonical();
        self.check_transport(visitor, address)?;
        let key = bearer(headers)?;
        match self.caller_of(key.trim()) {
            Some(caller) => Ok(Some(caller)),
            None => Err(self.unknown_key(address)),
        }
    }

    /// Refuses a key that is nobody's, and counts it.
    fn unknown_key(&self, address: IpAddr) -> Refused {
        match self.sessions.failed(address) {
            Ok(()) => {
                // Not beyond the count: strangers must not fill the log.
                tracing::warn!(%address, "an attempt to sign in to the console failed");
                Refused::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "the key is not known here")
            }
            Err(after_s) => {
                let what = format!("too many attempts failed from your address; try again in {after_s} s");
                Refused::new(StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", what)
            }
        }
    }

    /// The key comes in a header, as it does to the services: another site's form cannot set it, and nothing of a stranger's
    /// body is read.
    fn sign_in(&self, headers: &HeaderMap, cookie: &Cookie, visitor: Visitor) -> Result<Answer, Refused> {
        let address = visitor.address.ip().to_canonical();
        self.check_transport(visitor, address)?;
        let key = bearer(headers)?;
        let Some(caller) = self.caller_of(key.trim()) else {
            return Err(self.unknown_key(address));
        };
        if !ROLES.iter().any(|role| caller.roles.has(*role)) {
            return Err(Refused::forbidden(
                "no page is for this key: it needs the role `observe`, `operate`, `verify`, `pay_out` or `schedule`",
            ));
        }
        if let Some(old) = cookie.find(headers) {
            self.sessions.end(old);
        }
        let (name, session) = self
            .sessions
            .begin(&caller.name, key.trim().to_owned())
            .map_err(|error| Refused::unavailable(error.to_string()))?;
        tracing::info!(caller = %caller.name, %address, "signed in to the console");
        let answer = Answer::json(StatusCode::OK, &self.who(&SignedIn { session, caller }));
        Ok(answer.with(header::SET_COOKIE, cookie.begin(&name)?))
    }

    fn sign_out(&self, headers: &HeaderMap, cookie: &Cookie, caller: &Caller) -> Result<Answer, Refused> {
        if let Some(name) = cookie.find(headers) {
            self.sessions.end(name);
        }
        tracing::info!(caller = %caller.name, "signed out of the console");
        let gone = Answer::json(StatusCode::OK, &json!({}));
        Ok(gone.with(header::SET_COOKIE, cookie.end()?))
    }

    /// A key that has crossed a network in the clear is not secret any more: better refuse the first one than take many.
    fn check_transport(&self, visitor: Visitor, address: IpAddr) -> Result<(), Refused> {
        if self.is_secure(visitor) || address.is_loopback() || self.is_plaintext_allowed {
            return Ok(());
        }
        Err(Refused::forbidden(
            "this console has no TLS, and your key would cross the network in the clear: use https, a proxy with TLS \
             (console.behind_tls), a tunnel, or allow it by console.plaintext",
        ))
    }

    fn caller_of(&self, key: &str) -> Option<Caller> {
        self.access.caller_of_key(key).filter(|caller| *caller.tenant == *self.tenant)
    }

    /// The cookie of the console that this visitor reached.
    pub(crate) fn cookie(&self, uri: &Uri, headers: &HeaderMap, visitor: Visitor) -> Cookie {
        Cookie::of(uri, headers, self.is_secure(visitor))
    }

    const fn is_secure(&self, visitor: Visitor) -> bool {
        self.behind_tls || visitor.is_tls
    }

    fn who(&self, SignedIn { session, caller }: &SignedIn) -> Value {
        let roles: Vec<_> =
            Role::ALL.iter().filter(|role| caller.roles.has(**role)).map(|role| role.name()).collect();
        json!({
            "name": &*caller.name, "tenant": &*caller.tenant, "roles": roles, "csrf": &*session.csrf,
            "rules": self.rules_right(caller).name(), "version": env!("CARGO_PKG_VERSION"),
        })
    }
}

/// The bytes that a request of this caller may have. Where it is refused anyway, none is read.
fn body_bytes_max(head: &Parts, path: &str, caller: &Caller) -> usize {
    if head.method != Method::POST {
        return 0;
    }
    match path {
        "rules/check" | "rules/replay" | "rules/set" | "rules/stage" | "rules/stage/check"
            if caller.roles.has(Role::Operate) =>
        {
            RULES_BYTES_MAX
        }
        "rules/rollback" | "rules/promote" | "rules/abort" if caller.roles.has(Role::Operate) => {
            ROLLBACK_BYTES_MAX
        }
        "rules/approve" | "rules/refuse"
            if caller.roles.has(Role::Approve) || caller.roles.has(Role::Operate) =>
        {
            ROLLBACK_BYTES_MAX
        }
        _ => match path.strip_prefix("call") {
            Some(path) if gateway::has(path) => CALL_BYTES_MAX,
            _ => 0,
        },
    }
}

fn bearer(headers: &HeaderMap) -> Result<Zeroizing<String>, Refused> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    // Given twice, readers of the first and of the last one would disagree.
    let given = all.next().filter(|_| all.next().is_none());
    let key = given
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    key.map(|(_, key)| Zeroizing::new(key.to_owned()))
        .ok_or_else(|| Refused::invalid("a sign-in gives the key as `authorization: Bearer`"))
}

pub(crate) fn check_method(method: &Method, allowed: &[Method]) -> Result<(), Refused> {
    if allowed.contains(method) {
        return Ok(());
    }
    let what = format!("this path takes {} only", allowed[0]);
    Err(Refused::new(StatusCode::METHOD_NOT_ALLOWED, "UNIMPLEMENTED", what))
}

pub(crate) fn nothing_here() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is nothing at this path")
}

fn signed_out() -> Refused {
    Refused::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "sign in first")
}
