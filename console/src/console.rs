//! The console of a process: it opens from options, follows the fleet, and answers what its page asks.

use crate::answer::Answer;
use crate::assets::Assets;
use crate::door::{AtDoor, ROOT};
use crate::flow::{Flow, Scraped};
use crate::options::{ConsoleOptions, OptionError, RulesRight, SCRAPE_TIMEOUT};
use crate::rules::RulesEditor;
use crate::session::Sessions;
use crate::upstream::Upstream;
use bytes::Bytes;
use futures_util::future::join_all;
use http::request::Parts as Head;
use http::{Request, Response};
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, timeout};
use windfall_config::ChangeRules;
use windfall_contract::Clock;
use windfall_edge::{AccessSource, ByHead, LocalCalls, Metrics, Pages, Visitor};
use zeroize::Zeroizing;

/// Seconds between two looks at the rules, and at services whose paths are not known, while somebody looks.
const LOOK_EVERY: u64 = 5;
/// Seconds between two questions to all services what they serve, and between two looks while nobody looks.
const LEARN_EVERY: u64 = 60;
/// Seconds between two points of the charts.
const HISTORY_EVERY: u64 = 10;
/// Seconds between two samples while nobody looks: a sample is work for every process of the fleet.
const UNWATCHED_EVERY: u64 = 5;
/// How long after a question somebody is taken to look.
const WATCHED_FOR: Duration = Duration::from_secs(60);

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

/// What all clones share.
pub(crate) struct Inner {
    pub(crate) access: AccessSource,
    pub(crate) tenant: String,
    pub(crate) behind_tls: bool,
    pub(crate) is_plaintext_allowed: bool,
    pub(crate) right: RulesRight,
    pub(crate) rules_changed_by: Vec<String>,
    pub(crate) sessions: Sessions,
    pub(crate) assets: Assets,
    pub(crate) flow: Flow,
    pub(crate) rules: Option<RulesEditor>,
    own: Option<Metrics>,
    pub(crate) upstreams: Vec<Upstream>,
    /// The console's own key, for its scrapes.
    pub(crate) key: Zeroizing<String>,
    /// When somebody who has signed in has asked for something last, by the monotonic clock; 0: never.
    asked_ns: AtomicU64,
    clock: Clock,
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
        let own_caller = parts.access.caller_of_key(&key);
        if own_caller.is_some_and(|own| options.rules_changed_by.iter().any(|name| **name == *own.name)) {
            let what = "rules_changed_by names the caller of key_file, which lies on a disk for scrapes; name people's callers";
            return Err(OptionError::Wrong(what.into()).into());
        }
        let (right, clock) = (options.rules_right(), parts.clock);
        let rules = parts.rules.filter(|_| right != RulesRight::None);
        let rules = rules.map(|store| RulesEditor::new(store, parts.brokers, clock.clone()));
        Ok(Self(Arc::new(Inner {
            access: parts.access,
            tenant: parts.tenant,
            behind_tls: options.behind_tls,
            is_plaintext_allowed: options.plaintext,
            rules_changed_by: options.rules_changed_by.clone(),
            right: if rules.is_some() { right } else { RulesRight::None },
            sessions: Sessions::new(options, clock.clone()),
            assets: Assets::new(),
            flow: Flow::default(),
            rules,
            own: parts.own,
            upstreams,
            key,
            asked_ns: AtomicU64::new(0),
            clock,
        })))
    }

    /// Names the server of this process, whose services the console calls.
    pub fn attach(&self, calls: &LocalCalls) {
        self.0.upstreams.iter().for_each(|upstream| upstream.attach(calls));
    }

    /// Follows the fleet until it is dropped: a sample a second while somebody looks.
    pub async fn follow(&self) -> ! {
        let mut every = tokio::time::interval(Duration::from_secs(1));
        every.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (mut count, mut form) = (0_u64, Arc::new(Value::Null));
        loop {
            every.tick().await;
            let is_watched = self.0.is_watched();
            if count.is_multiple_of(if is_watched { LOOK_EVERY } else { LEARN_EVERY }) {
                self.0.look(&mut form, count.is_multiple_of(LEARN_EVERY)).await;
            }
            if is_watched || count.is_multiple_of(UNWATCHED_EVERY) {
                self.sample(Arc::clone(&form), count.is_multiple_of(HISTORY_EVERY)).await;
            }
            count += 1;
        }
    }

    /// Asks every instance for its metrics, side by side; one that hangs holds up the sample for two seconds. What is made of
    /// the answers takes its time beside the runtime's threads, which other services of this process may need.
    async fn sample(&self, form: Arc<Value>, with_history: bool) {
        let scraped = self.0.scrape().await;
        let inner = Arc::clone(&self.0);
        let taking = tokio::task::spawn_blocking(move || {
            inner.flow.take(inner.clock.unix_ms(), inner.clock.monotonic_ns(), &scraped, &form);
            if with_history {
                inner.flow.write_history();
            }
        });
        if let Err(error) = taking.await {
            tracing::error!(%error, "a sample of the metrics panicked");
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

    fn by_head(&self, head: &Head, visitor: Visitor) -> ByHead {
        match self.0.at_door(head, visitor) {
            Ok(AtDoor::Known { body_bytes_max }) => ByHead::Known { body_bytes_max },
            Ok(AtDoor::Answered(answer)) => ByHead::Answer(answer.into_response()),
            Err(refused) => ByHead::Answer(Answer::from(refused).into_response()),
        }
    }

    async fn answer(&self, request: Request<Bytes>, visitor: Visitor) -> Response<Bytes> {
        let answered = self.0.answer(&request, visitor).await;
        answered.unwrap_or_else(Answer::from).into_response()
    }
}

impl Inner {
    /// Somebody is there.
    pub(crate) fn watch(&self) {
        self.asked_ns.store(self.clock.monotonic_ns(), Relaxed);
    }

    fn is_watched(&self) -> bool {
        let asked_ns = self.asked_ns.load(Relaxed);
        let since = Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(asked_ns));
        asked_ns > 0 && since < WATCHED_FOR
    }

    async fn scrape(&self) -> Vec<Scraped> {
        let asking = self.upstreams.iter().map(|upstream| async {
            let text = match &self.own {
                Some(own) if upstream.is_local() => {
                    // All its registers are gone through: not on a thread that serves.
                    let own = own.clone();
                    let written =
                        tokio::task::spawn_blocking(move || own.text().map_err(|error| error.to_string()));
                    written.await.unwrap_or_else(|error| Err(error.to_string()))
                }
                _ => upstream.metrics(&self.key).await,
            };
            Scraped { instance: upstream.name.clone(), text }
        });
        join_all(asking).await
    }

    /// Looks at the rules, and at what the instances serve. A place of the rules that is away holds up the samples for two
    /// seconds, and what it said last is shown meanwhile.
    async fn look(&self, form: &mut Arc<Value>, with_known: bool) {
        let rules = async {
            let Some(rules) = &self.rules else { return };
            match timeout(SCRAPE_TIMEOUT, rules.form()).await {
                Ok(found) if !found.is_null() => *form = Arc::new(found),
                _ if form.is_null() => {}
                // The place is away, or what is there are no rules: the page must not take the last ones for those in force.
                _ => {
                    let mut stale = (**form).clone();
                    stale["is_stale"] = true.into();
                    *form = Arc::new(stale);
                }
            }
        };
        let paths = async {
            if timeout(SCRAPE_TIMEOUT, self.learn_paths(with_known)).await.is_err() {
                tracing::debug!("a service has not said in time what it serves");
            }
        };
        tokio::join!(rules, paths);
    }

    /// Asks instances what they serve: those that have not said it yet, or all. Behind an address may be another process by
    /// now.
    async fn learn_paths(&self, with_known: bool) {
        let asked = self
            .upstreams
            .iter()
            .filter(|upstream| !upstream.is_local() && (with_known || !upstream.is_known()));
        join_all(asked.map(|upstream| async {
            if let Err(error) = upstream.learn_paths(&self.key).await {
                tracing::debug!(%error, "a service has not said what it serves");
            }
        }))
        .await;
    }
}
