//! The console of a process: it opens from options, follows the fleet, and answers what its page asks.

use crate::answer::{Answer, Refused};
use crate::assets::Assets;
use crate::cookie;
use crate::flow::{Flow, Scraped};
use crate::gateway;
use crate::options::{BODY_BYTES_MAX, ConsoleOptions, OptionError, RulesRight, SCRAPE_TIMEOUT};
use crate::rules::{RulesDesk, Wanted};
use crate::session::{Session, Sessions};
use crate::upstream::Upstream;
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, timeout};
use windfall_config::ChangeRules;
use windfall_contract::Clock;
use windfall_edge::{AccessSource, Caller, LocalCalls, Metrics, Pages, Role, Visitor};
use zeroize::Zeroizing;

/// Where the page is.
const ROOT: &str = "/console/";
/// Samples between two looks at the rules, and at services whose paths are not known.
const LOOK_EVERY: u64 = 5;
/// The bytes of a person's name, beside that of the key, at most; services take as many.
const ACTOR_BYTES_MAX: usize = 64;

/// The parts that a console needs besides its options.
pub struct Parts {
    /// Who may sign in: the callers of this process.
    pub access: AccessSource,
    /// The app that is served; callers of another one cannot sign in.
    pub tenant: String,
    /// The place of the live rules, where the console has to do with them.
    pub rules: Option<Arc<dyn ChangeRules>>,
    /// The brokers that rules may name; none: any.
    pub brokers: Option<Vec<String>>,
    /// The metrics of this process, where it is itself what the console shows; its services are called by what
    /// [`Console::attach`] names.
    pub own: Option<Metrics>,
    /// The clock.
    pub clock: Clock,
}

/// A console could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option is wrong: correct it.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The file of the console's own key cannot be read.
    #[error("console.key_file {}: {error}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
}

/// The console of a process. Cheap to clone: all clones are one.
#[derive(Clone)]
pub struct Console(Arc<Inner>);

struct Inner {
    access: AccessSource,
    tenant: String,
    behind_tls: bool,
    right: RulesRight,
    sessions: Sessions,
    assets: Assets,
    flow: Flow,
    rules: Option<RulesDesk>,
    own: Option<Metrics>,
    upstreams: Vec<Upstream>,
    key: Zeroizing<String>,
    clock: Clock,
}

/// A request of somebody who has signed in.
struct SignedIn {
    session: Session,
    caller: Caller,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    key: String,
}

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
    why: String,
    #[serde(default)]
    actor: String,
}

impl Console {
    /// Opens it. Nothing is connected yet.
    ///
    /// # Errors
    /// [`OpenError`] names the option, or the file.
    pub fn open(options: &ConsoleOptions, parts: Parts) -> Result<Self, OpenError> {
        options.check()?;
        let call_timeout = Duration::from_millis(options.call_timeout_ms);
        let mut upstreams = Vec::new();
        if parts.own.is_some() {
            upstreams.push(Upstream::local("this process", call_timeout));
        }
        for at in &options.services {
            upstreams.push(Upstream::remote(at, call_timeout)?);
        }
        let key = match &options.key_file {
            None => Zeroizing::default(),
            Some(path) => {
                let read = std::fs::read_to_string(path).map(Zeroizing::new);
                let read = read.map_err(|error| OpenError::Key { path: path.clone(), error })?;
                Zeroizing::new(read.trim().to_owned())
            }
        };
        let (right, clock) = (options.rules, parts.clock);
        let rules = parts.rules.filter(|_| right != RulesRight::None);
        let rules = rules.map(|store| RulesDesk::new(store, parts.brokers, right, clock.clone()));
        Ok(Self(Arc::new(Inner {
            access: parts.access,
            tenant: parts.tenant,
            behind_tls: options.behind_tls,
            right: if rules.is_some() { right } else { RulesRight::None },
            sessions: Sessions::new(options, clock.clone()),
            assets: Assets::new(),
            flow: Flow::default(),
            rules,
            own: parts.own,
            upstreams,
            key,
            clock,
        })))
    }

    /// Names the server of this process, whose services the console calls.
    pub fn attach(&self, calls: &LocalCalls) {
        self.0.upstreams.iter().for_each(|upstream| upstream.attach(calls));
    }

    /// Follows the fleet: a sample a second, until it is dropped.
    pub async fn follow(&self) -> ! {
        let mut every = tokio::time::interval(Duration::from_secs(1));
        every.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (mut count, mut form) = (0_u64, Value::Null);
        loop {
            every.tick().await;
            if count.is_multiple_of(LOOK_EVERY) {
                self.0.look(&mut form).await;
            }
            count += 1;
            self.0.sample(&form).await;
        }
    }

    /// The number of sessions.
    pub fn sessions(&self) -> usize {
        self.0.sessions.count()
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("sessions", &self.sessions()).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl Pages for Console {
    fn takes(&self, path: &str) -> bool {
        path == "/" || path == "/console" || path.starts_with(ROOT)
    }

    fn body_bytes_max(&self) -> usize {
        BODY_BYTES_MAX
    }

    async fn answer(&self, request: Request<Bytes>, visitor: Visitor) -> Response<Bytes> {
        let answered = self.0.answer(&request, visitor).await;
        answered.unwrap_or_else(Answer::from).into_response()
    }
}

impl Inner {
    /// Asks every instance for its metrics, side by side; one that hangs holds up the sample for two seconds.
    async fn sample(&self, form: &Value) {
        let asking = self.upstreams.iter().map(|upstream| async {
            let text = match &self.own {
                Some(own) if upstream.is_local() => own.text().map_err(|error| error.to_string()),
                _ => upstream.metrics(&self.key).await,
            };
            Scraped { instance: upstream.name.clone(), text }
        });
        let scraped = join_all(asking).await;
        self.flow.take(self.clock.unix_ms(), self.clock.monotonic_ns(), &scraped, form);
    }

    /// Looks at the rules, and at what the instances serve. A place of the rules that is away holds up the samples for two
    /// seconds, and what it said last is shown meanwhile.
    async fn look(&self, form: &mut Value) {
        let rules = async {
            let Some(rules) = &self.rules else { return };
            match timeout(SCRAPE_TIMEOUT, rules.form()).await {
                Ok(found) if !found.is_null() => *form = found,
                _ => tracing::debug!("the console has not read the rules"),
            }
        };
        let paths = async {
            if timeout(SCRAPE_TIMEOUT, self.learn_paths()).await.is_err() {
                tracing::debug!("a service has not said in time what it serves");
            }
        };
        tokio::join!(rules, paths);
    }

    /// Asks instances that have not said yet what they serve.
    async fn learn_paths(&self) {
        let unknown = self.upstreams.iter().filter(|upstream| !upstream.is_known());
        join_all(unknown.map(|upstream| async {
            if let Err(error) = upstream.learn_paths(&self.key).await {
                tracing::debug!(%error, "a service has not said what it serves");
            }
        }))
        .await;
    }

    async fn answer(&self, request: &Request<Bytes>, visitor: Visitor) -> Result<Answer, Refused> {
        let path = request.uri().path();
        cookie::check_origin(request.method(), request.uri(), request.headers())?;
        let Some(path) = path.strip_prefix(ROOT) else {
            return Ok(Answer::new(StatusCode::TEMPORARY_REDIRECT, "text/plain", Bytes::new())
                .with(header::LOCATION, HeaderValue::from_static(ROOT)));
        };
        match path.strip_prefix("api/") {
            None => self.page(path, request),
            Some(path) => self.api(path, request, visitor).await,
        }
    }

    fn page(&self, path: &str, request: &Request<Bytes>) -> Result<Answer, Refused> {
        check_method(request, &[Method::GET, Method::HEAD])?;
        self.assets.answer(path, request.headers()).ok_or_else(nothing_here)
    }

    async fn api(&self, path: &str, request: &Request<Bytes>, visitor: Visitor) -> Result<Answer, Refused> {
        let is_secure = self.behind_tls || visitor.is_tls;
        if path == "session" && request.method() == Method::POST {
            return self.sign_in(request, visitor, is_secure);
        }
        let Some(name) = cookie::find(request.headers(), is_secure) else { return Err(signed_out()) };
        let Some(signed_in) = self.signed_in(name) else { return Err(signed_out()) };
        if request.method() != Method::GET {
            let proof = request.headers().get(cookie::CSRF).and_then(|value| value.to_str().ok());
            if !proof.is_some_and(|proof| signed_in.session.is_proved_by(proof)) {
                return Err(Refused::forbidden(format!(
                    "a changing request needs the header {}",
                    cookie::CSRF
                )));
            }
        }
        if path == "session" && request.method() == Method::DELETE {
            self.sessions.end(name);
            tracing::info!(caller = %signed_in.caller.name, "signed out of the console");
            let gone = Answer::json(StatusCode::OK, &json!({}));
            return Ok(gone.with(header::SET_COOKIE, cookie::end(is_secure)));
        }
        self.signed_in_api(path, request, &signed_in).await
    }

    async fn signed_in_api(
        &self,
        path: &str,
        request: &Request<Bytes>,
        signed_in: &SignedIn,
    ) -> Result<Answer, Refused> {
        if let Some(path) = path.strip_prefix("call") {
            check_method(request, &[Method::POST])?;
            return gateway::call(&self.upstreams, path, request, &signed_in.session.key).await;
        }
        if path == "session" {
            check_method(request, &[Method::GET])?;
            return Ok(Answer::json(StatusCode::OK, &self.who(signed_in)));
        }
        // What stands behind these has the same role in the APIs: `/metrics`, and the rules that `windfall rules` shows.
        if !signed_in.caller.roles.has(Role::Operate) {
            return Err(Refused::forbidden(
                "this page needs the role `operate`, which your key does not have",
            ));
        }
        match path {
            "flow" => {
                check_method(request, &[Method::GET])?;
                Ok(Answer::written(&self.flow.newest(), request.headers()))
            }
            "history" => {
                check_method(request, &[Method::GET])?;
                let number = |name| query_number(request.uri().query().unwrap_or_default(), name);
                let (since_ms, step_ms) =
                    (number("since_ms").unwrap_or(0), number("step_ms").unwrap_or(10_000));
                match self.flow.history(since_ms, step_ms) {
                    Ok(written) => Ok(Answer::written(&written, request.headers())),
                    Err(error) => Err(Refused::unavailable(error.to_string())),
                }
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
        let is_change = matches!(path, "/check" | "/set" | "/rollback");
        check_method(request, if is_change { &[Method::POST] } else { &[Method::GET] })?;
        let value = match path {
            "" => rules.show().await?,
            "/history" => rules.history().await?,
            "/status" => rules.status().await?,
            "/check" => rules.check(&body::<Check>(request)?.text),
            "/set" => {
                let Set { text, why, actor } = body(request)?;
                let who = who_changes(caller, &actor)?;
                let changed = rules.change(Wanted::Set { text }, who.clone(), why).await?;
                tracing::info!(%who, version = %changed["version"], "the rules were changed by the console");
                changed
            }
            "/rollback" => {
                let Rollback { version, why, actor } = body(request)?;
                let who = who_changes(caller, &actor)?;
                let changed = rules.change(Wanted::Rollback { version }, who.clone(), why).await?;
                tracing::info!(%who, version = %changed["version"], "the rules were rolled back by the console");
                changed
            }
            _ => return Err(nothing_here()),
        };
        Ok(Answer::json(StatusCode::OK, &value))
    }

    fn sign_in(
        &self,
        request: &Request<Bytes>,
        visitor: Visitor,
        is_secure: bool,
    ) -> Result<Answer, Refused> {
        let address = visitor.address.ip().to_canonical();
        if let Err(after_s) = self.sessions.may_try(address) {
            let what = format!("too many attempts failed from your address; try again in {after_s} s");
            return Err(Refused::new(StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", what));
        }
        let SignIn { key } = body(request)?;
        let key = Zeroizing::new(key);
        let caller = self.access.caller_of_key(key.trim()).filter(|caller| *caller.tenant == *self.tenant);
        let Some(caller) = caller else {
            self.sessions.failed(address);
            tracing::warn!(%address, "an attempt to sign in to the console failed");
            let what = "the key is not known here";
            return Err(Refused::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", what));
        };
        let (name, session) = self
            .sessions
            .begin(key.trim().to_owned())
            .map_err(|error| Refused::unavailable(error.to_string()))?;
        tracing::info!(caller = %caller.name, %address, "signed in to the console");
        let answer = Answer::json(StatusCode::OK, &self.who(&SignedIn { session, caller }));
        Ok(answer.with(header::SET_COOKIE, cookie::begin(&name, is_secure)?))
    }

    /// The session of this name, if its key is still a caller's.
    fn signed_in(&self, name: &str) -> Option<SignedIn> {
        let session = self.sessions.find(name)?;
        let caller = self.access.caller_of_key(&session.key).filter(|caller| *caller.tenant == *self.tenant);
        match caller {
            Some(caller) => Some(SignedIn { session, caller }),
            None => {
                self.sessions.end(name);
                None
            }
        }
    }

    fn who(&self, SignedIn { session, caller }: &SignedIn) -> Value {
        let roles: Vec<_> =
            Role::ALL.iter().filter(|role| caller.roles.has(**role)).map(|role| role.name()).collect();
        json!({
            "name": &*caller.name, "tenant": &*caller.tenant, "roles": roles, "csrf": &*session.csrf,
            "rules": self.right.name(), "version": env!("CARGO_PKG_VERSION"),
        })
    }
}

/// Who the history of the rules names: the caller's key, and the person that the page names beside it.
fn who_changes(caller: &Caller, actor: &str) -> Result<String, Refused> {
    match actor.trim() {
        "" => Ok(caller.name.to_string()),
        actor if actor.len() > ACTOR_BYTES_MAX => {
            Err(Refused::invalid(format!("`actor` has more than {ACTOR_BYTES_MAX} bytes")))
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
    // Without what it says about the text, which may hold a key.
    serde_json::from_slice(request.body())
        .map_err(|_| Refused::invalid("the body is not the JSON that is expected"))
}

fn query_number(query: &str, name: &str) -> Option<u64> {
    query.split('&').find_map(|one| one.split_once('=').filter(|(key, _)| *key == name)?.1.parse().ok())
}

fn check_method(request: &Request<Bytes>, allowed: &[Method]) -> Result<(), Refused> {
    if allowed.contains(request.method()) {
        return Ok(());
    }
    let what = format!("this path takes {} only", allowed[0]);
    Err(Refused::new(StatusCode::METHOD_NOT_ALLOWED, "UNIMPLEMENTED", what))
}

fn nothing_here() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is nothing at this path")
}

fn signed_out() -> Refused {
    Refused::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "sign in first")
}
