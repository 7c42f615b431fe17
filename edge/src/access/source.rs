//! The access file as it is now, followed while the process runs.

use super::{Access, AccessError};
use crate::identity::Caller;
use crate::users::{Fetches, KeySet, Users};
use arc_swap::ArcSwap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;
use windfall_contract::Clock;

const LOOK_EVERY: Duration = Duration::from_secs(1);
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The access rules in force. It is cheap to clone; the file is followed as long as a clone lives.
#[derive(Clone)]
pub struct AccessSource(Arc<Inner>);

struct Inner {
    state: Arc<State>,
    follower: Option<AbortHandle>,
}

/// The state that callers and the follower share.
pub(crate) struct State {
    live: ArcSwap<Live>,
    clock: Clock,
    changes: AtomicU64,
    refused: AtomicU64,
    fetches: Arc<Fetches>,
}

/// One version of the file with the access rules made from it.
pub(crate) struct Live {
    pub(crate) access: Access,
    pub(crate) users: Option<Arc<Users>>,
}

/// The result of a look at the files.
#[derive(Clone, PartialEq, Eq)]
struct Texts {
    access: String,
    jwks: Option<String>,
}

impl AccessSource {
    /// Access rules that do not change while this process runs, for `serve --dev` and tests. Users' keys by file are
    /// read once; those by address are fetched when the first user token comes.
    ///
    /// # Errors
    /// The users' keys cannot be read.
    pub fn fixed(access: Access, clock: Clock) -> Result<Self, AccessError> {
        let jwks = match access.jwt().and_then(|jwt| jwt.jwks_file.as_deref()) {
            Some(path) => Some(read_bounded(path)?),
            None => None,
        };
        let fetches = Arc::default();
        let live = Live::build(access, jwks.as_deref(), None, &fetches)?;
        Ok(Self(Arc::new(Inner { state: State::new(live, clock, fetches), follower: None })))
    }

    /// Reads the file, then looks at it, and at the file of the users' keys, every second. A version that does not
    /// validate as a whole changes nothing, and is logged and counted (I6). A valid one is in force two looks after it
    /// was written, since a file that is still being written is not used.
    ///
    /// Must be called within a tokio runtime; the follower is one task, which ends with the last clone.
    ///
    /// # Errors
    /// The file cannot be read, or does not validate: a process must not start with it.
    pub fn follow(path: impl Into<PathBuf>, clock: Clock) -> Result<Self, AccessError> {
        let path = path.into();
        let texts = read(&path)?;
        let fetches = Arc::default();
        let live = Live::build(Access::parse(&texts.access)?, texts.jwks.as_deref(), None, &fetches)?;
        tell_of_withdraw(&live.access);
        let state = State::new(live, clock, fetches);
        let follower = tokio::spawn(follow(path, texts, Arc::clone(&state))).abort_handle();
        Ok(Self(Arc::new(Inner { state, follower: Some(follower) })))
    }

    /// The version in force: see [`Access::version`].
    pub fn version(&self) -> String {
        self.live().access.version().to_owned()
    }

    /// How many times another version came into force.
    pub fn changes(&self) -> u64 {
        self.0.state.changes.load(Relaxed)
    }

    /// How many versions were refused.
    pub fn refused(&self) -> u64 {
        self.0.state.refused.load(Relaxed)
    }

    /// How often the users' keys were fetched from their address and came, and how often they did not.
    pub fn user_key_fetches(&self) -> (u64, u64) {
        let fetches = &self.0.state.fetches;
        (fetches.answered.load(Relaxed), fetches.failed.load(Relaxed))
    }

    /// The caller whose bearer key this is, by the version in force; none where no caller has it.
    pub fn caller_of_key(&self, key: &str) -> Option<Caller> {
        self.live().access.by_key(key).map(|entry| entry.caller.clone())
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        self.0.state.live.load_full()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.state.clock
    }
}

impl fmt::Debug for AccessSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessSource").field(&self.live().access).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(follower) = &self.follower {
            follower.abort();
        }
    }
}

impl State {
    fn new(live: Live, clock: Clock, fetches: Arc<Fetches>) -> Arc<Self> {
        Arc::new(Self {
            live: ArcSwap::from_pointee(live),
            clock,
            changes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            fetches,
        })
    }

    fn refuse(&self, why: &str) {
        self.refused.fetch_add(1, Relaxed);
        tracing::warn!(why, "the access file was refused; the last good one stays");
    }
}

impl Live {
    /// Keeps the users' keys of the version before, where the options are the same: no gap while they are fetched.
    fn build(
        access: Access,
        jwks: Option<&str>,
        before: Option<&Self>,
        fetches: &Arc<Fetches>,
    ) -> Result<Self, AccessError> {
        let Some(options) = access.jwt() else {
            return Ok(Self { access, users: None });
        };
        let users = match (jwks, &options.jwks_file) {
            (Some(text), Some(path)) => {
                let keys = KeySet::parse(text)
                    .map_err(|what| AccessError::Jwks { path: path.clone(), what: what.to_string() })?;
                Arc::new(Users::of_keys(options.clone(), keys))
            }
            _ => match before.and_then(|live| live.users.as_ref()) {
                Some(users) if users.options() == options => Arc::clone(users),
                _ => {
                    let users = Users::of_url(options.clone(), Arc::clone(fetches));
                    Arc::new(users.map_err(AccessError::Tls)?)
                }
            },
        };
        Ok(Self { access, users: Some(users) })
    }
}

/// Owned by an [`AccessSource`]; ends by abort. A look that fails is counted, and the next one comes.
async fn follow(path: PathBuf, mut in_force: Texts, state: Arc<State>) {
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen: Result<Texts, String> = Ok(in_force.clone());
    let mut judged = seen.clone();
    loop {
        every.tick().await;
        let at = path.clone();
        let look = match tokio::task::spawn_blocking(move || read(&at)).await {
            Ok(look) => look.map_err(|error| error.to_string()),
            // The runtime is ending, or reading failed in a way that the next look may not.
            Err(error) => Err(error.to_string()),
        };
        let is_settled = look == seen;
        seen = look;
        if is_settled && seen != judged {
            judged = seen.clone();
            match &seen {
                Ok(texts) if *texts != in_force => match apply(texts, &state) {
                    Ok(()) => in_force = texts.clone(),
                    Err(error) => state.refuse(&error.to_string()),
                },
                Ok(_) => {}
                Err(why) => state.refuse(why),
            }
        }
        let users = state.live.load().users.clone();
        if let Some(users) = users {
            users.refresh_if_old(state.clock.unix_s()).await;
        }
    }
}

fn apply(texts: &Texts, state: &State) -> Result<(), AccessError> {
    let before = state.live.load_full();
    let access = Access::parse(&texts.access)?;
    let live = Live::build(access, texts.jwks.as_deref(), Some(&before), &state.fetches)?;
    let version = live.access.version().to_owned();
    tell_of_withdraw(&live.access);
    state.live.store(Arc::new(live));
    state.changes.fetch_add(1, Relaxed);
    tracing::info!(version, "the access file changed");
    Ok(())
}

/// Names the callers that have more than their roles say, for as long as the file has no `version = 2`.
fn tell_of_withdraw(access: &Access) {
    let callers: Vec<&str> = access.withdraw_by_verify().collect();
    if !callers.is_empty() {
        tracing::warn!(
            ?callers,
            "the access file has no `version = 2`, so these callers with the role `verify` may withdraw, too; give those \
             that do the role `withdraw`, then write `version = 2` at the top"
        );
    }
}

fn read(path: &Path) -> Result<Texts, AccessError> {
    let access = read_bounded(path)?;
    // Whether the text validates is judged once it has settled; here only the name of the other file counts.
    let jwks = match Access::parse(&access) {
        Ok(parsed) => match parsed.jwt().and_then(|jwt| jwt.jwks_file.as_deref()) {
            Some(path) => Some(read_bounded(path)?),
            None => None,
        },
        Err(_) => None,
    };
    Ok(Texts { access, jwks })
}

fn read_bounded(path: &Path) -> Result<String, AccessError> {
    let failed = |error| AccessError::Read { path: path.to_owned(), error };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(failed(std::io::Error::other(format!("is longer than {FILE_BYTES_MAX} bytes"))));
    }
    Ok(text)
}
