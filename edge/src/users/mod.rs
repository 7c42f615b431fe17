//! End users by signed assertion: a JWT, and the keys that it may be signed with.

mod fetch;
mod jwks;
mod jwt;
#[cfg(test)]
mod vectors;
mod verifier;

pub(crate) use jwks::KeySet;
pub(crate) use jwt::{Refused, parse_user_id};

use arc_swap::ArcSwapOption;
use fetch::{FetchError, Fetcher};
use http::Uri;
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::{Mutex, Semaphore};

/// The age at which keys by address are fetched again.
const REFRESH_S: u64 = 300;
/// The least time between two fetches for unknown keys, however many of them are sent.
const UNKNOWN_KEY_S: u64 = 30;
/// The number of calls that may wait for a fetch at a time. Whoever sends tokens of unknown keys while the keys'
/// address is slow must not take the places of all other calls.
const WAITING_MAX: usize = 64;

/// `[users.jwt]` of an access file: the issuer whose assertions about end users are accepted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtOptions {
    /// A file with a JSON Web Key Set, followed like the access file. Either this or `jwks_url`.
    pub jwks_file: Option<PathBuf>,
    /// The address of a key set, `https` (or `http` to this machine). It is fetched again every 5 minutes, and for an
    /// unknown key at most every 30 seconds. Redirects are not followed.
    pub jwks_url: Option<String>,
    /// Certificates (PEM) that the address's server is checked against. Default: the system's.
    pub jwks_ca_file: Option<PathBuf>,
    /// The `iss` that a token must have.
    pub issuer: String,
    /// The `aud` that a token must have, alone or among others.
    pub audience: String,
    /// RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA. Default: RS256, ES256, EdDSA.
    #[serde(default = "default_algorithms")]
    pub algorithms: Vec<String>,
    /// How many seconds the issuer's clock may differ, 0 to 300, default 30.
    #[serde(default = "default_leeway_s")]
    pub leeway_s: u64,
    /// The claim that holds the user's number, as a number or a decimal string. Default: `sub`.
    #[serde(default = "default_claim")]
    pub claim: String,
    /// How many seconds keys by address are used without an answer from there, 300 to 604,800, default 86,400.
    #[serde(default = "default_stale_max_s")]
    pub stale_max_s: u64,
}

/// How often keys were fetched, over all versions of the options.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    pub(crate) answered: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// Judges the assertions of one `[users.jwt]`.
pub(crate) struct Users {
    options: JwtOptions,
    algorithms: Vec<Algorithm>,
    keys: ArcSwapOption<Fetched>,
    remote: Option<Remote>,
}

struct Fetched {
    keys: KeySet,
    at_s: u64,
}

struct Remote {
    fetcher: Fetcher,
    fetches: Arc<Fetches>,
    /// One fetch at a time; callers that need it wait for it, within its time-out.
    attempt: Mutex<Attempt>,
    waiting: Semaphore,
}

#[derive(Default)]
struct Attempt {
    at_s: Option<u64>,
    failed: bool,
}

fn default_algorithms() -> Vec<String> {
    ["RS256", "ES256", "EdDSA"].map(str::to_owned).to_vec()
}

const fn default_leeway_s() -> u64 {
    30
}

fn default_claim() -> String {
    "sub".to_owned()
}

const fn default_stale_max_s() -> u64 {
    86_400
}

impl JwtOptions {
    /// Checks the options; the error names the key, what is wrong and the remedy.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (&self.jwks_file, &self.jwks_url) {
            (Some(_), None) => {}
            (None, Some(url)) => {
                fetch::check_url(url).map(|_| ()).map_err(|why| format!("jwks_url {why}"))?
            }
            _ => return Err("users.jwt: give either jwks_file or jwks_url".to_owned()),
        }
        for (key, text) in [("issuer", &self.issuer), ("audience", &self.audience), ("claim", &self.claim)] {
            if text.is_empty() {
                return Err(format!("users.jwt: {key} is empty; without it, any token would do"));
            }
        }
        if self.leeway_s > 300 {
            return Err("users.jwt: leeway_s is above 300; mend the clocks instead".to_owned());
        }
        if !(REFRESH_S..=604_800).contains(&self.stale_max_s) {
            return Err("users.jwt: stale_max_s must be between 300 and 604800".to_owned());
        }
        self.parse_algorithms().map(|_| ())
    }

    fn parse_algorithms(&self) -> Result<Vec<Algorithm>, String> {
        if self.algorithms.is_empty() {
            return Err("users.jwt: algorithms is empty; leave it out for the default".to_owned());
        }
        let parse = |name: &String| {
            jwt::parse_algorithm(name).ok_or_else(|| {
                format!(
                    "users.jwt: algorithms has `{name}`; only public-key signatures are taken: {}",
                    jwt::ALGORITHMS
                )
            })
        };
        self.algorithms.iter().map(parse).collect()
    }
}

impl Users {
    /// Makes it with keys that stay.
    pub(crate) fn of_keys(options: JwtOptions, keys: KeySet) -> Self {
        let users = Self::new(options, None);
        users.keys.store(Some(Arc::new(Fetched { keys, at_s: u64::MAX })));
        users
    }

    /// Makes it with keys that are fetched when they are first needed.
    pub(crate) fn of_url(options: JwtOptions, fetches: Arc<Fetches>) -> Result<Self, String> {
        let url = options.jwks_url.as_deref().unwrap_or_default();
        let url: Uri = fetch::check_url(url).map_err(str::to_owned)?;
        let fetcher = Fetcher::new(url, options.jwks_ca_file.as_deref())?;
        Ok(Self::new(
            options,
            Some(Remote {
                fetcher,
                fetches,
                attempt: Mutex::default(),
                waiting: Semaphore::new(WAITING_MAX),
            }),
        ))
    }

    fn new(options: JwtOptions, remote: Option<Remote>) -> Self {
        verifier::install();
        // Checked with the options; an empty list would take no token at all.
        let algorithms = options.parse_algorithms().unwrap_or_default();
        Self { options, algorithms, keys: ArcSwapOption::empty(), remote }
    }

    pub(crate) fn options(&self) -> &JwtOptions {
        &self.options
    }

    /// The user that a token asserts. An unavailable key set gives `Unavailable`, never access.
    pub(crate) async fn user_of(&self, token: &str, now_s: u64) -> Result<i64, Refused> {
        let token = jwt::Token::parse(token, &self.algorithms)?;
        let known = self.fresh(now_s);
        let user = known.as_ref().map(|known| self.judge(&token, &known.keys, now_s));
        match user {
            Some(Err(Refused::UnknownKey)) | None => {}
            Some(judged) => return judged,
        }
        let Some(remote) = &self.remote else { return Err(Refused::UnknownKey) };
        let is_reached = self.refresh(remote, now_s, UNKNOWN_KEY_S).await;
        match self.fresh(now_s) {
            None => Err(Refused::Unavailable),
            Some(known) => match self.judge(&token, &known.keys, now_s) {
                // It may be a key that could not be fetched: that is not known.
                Err(Refused::UnknownKey) if !is_reached => Err(Refused::Unavailable),
                judged => judged,
            },
        }
    }

    /// Fetches keys that have been fetched before and are 5 minutes old.
    pub(crate) async fn refresh_if_old(&self, now_s: u64) {
        let (Some(remote), Some(known)) = (&self.remote, self.keys.load_full()) else { return };
        if now_s.saturating_sub(known.at_s) >= REFRESH_S {
            self.refresh(remote, now_s, UNKNOWN_KEY_S).await;
        }
    }

    fn judge(&self, token: &jwt::Token<'_>, keys: &KeySet, now_s: u64) -> Result<i64, Refused> {
        let expected = jwt::Expected {
            issuer: &self.options.issuer,
            audience: &self.options.audience,
            leeway_s: self.options.leeway_s,
            claim: &self.options.claim,
        };
        token.judge(keys, &expected, now_s)
    }

    fn fresh(&self, now_s: u64) -> Option<Arc<Fetched>> {
        self.keys.load_full().filter(|known| now_s.saturating_sub(known.at_s) <= self.options.stale_max_s)
    }

    /// Whether the newest attempt, this one or one of the last `at_most_every_s`, was answered.
    async fn refresh(&self, remote: &Remote, now_s: u64, at_most_every_s: u64) -> bool {
        // Those beyond are told to come again, as if the fetch had failed.
        let Ok(_waits) = remote.waiting.try_acquire() else { return false };
        let mut attempt = remote.attempt.lock().await;
        if attempt.at_s.is_some_and(|at_s| now_s.saturating_sub(at_s) < at_most_every_s) {
            return !attempt.failed;
        }
        // Before the fetch: a call that is given up in it counts as an attempt all the same.
        *attempt = Attempt { at_s: Some(now_s), failed: true };
        let fetched = remote.fetcher.get().await.map_err(|error: FetchError| error.to_string());
        let parsed = fetched.and_then(|text| {
            let text = std::str::from_utf8(&text).map_err(|error| error.to_string())?;
            KeySet::parse(text).map_err(|error| error.to_string())
        });
        match parsed {
            Ok(keys) => {
                self.keys.store(Some(Arc::new(Fetched { keys, at_s: now_s })));
                attempt.failed = false;
                remote.fetches.answered.fetch_add(1, Relaxed);
            }
            Err(why) => {
                remote.fetches.failed.fetch_add(1, Relaxed);
                tracing::warn!(why, "the users' keys could not be fetched; the last ones stay");
            }
        }
        !attempt.failed
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("options", &self.options).finish_non_exhaustive()
    }
}
