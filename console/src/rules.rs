//! The live rules on the page: shown, checked, changed and rolled back, in the place that every process has them from.

use crate::answer::Refused;
use crate::flow::Recorded;
use crate::forecast::Pace;
use crate::replay::{Replayed, Traffic, ends, replay};
use crate::trial;
use http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use windfall_config::{
    Actor, ChangeRules, Problem, Proposal, Proposals, ReadError, Refusal, SetError, Written, parse_rules,
};
use windfall_contract::Clock;
use windfall_contract::rules::Rules;

/// Looks at the rules and changes of them at once. Nothing can end one that has begun, so none begins beyond these.
const AT_ONCE: usize = 2;
/// The versions that the history shows, the newest ones.
const HISTORY_MAX: usize = 100;

/// The rules, as far as the console may see and change them.
#[derive(Clone)]
pub(crate) struct RulesEditor {
    pub(crate) store: Arc<dyn ChangeRules>,
    known_brokers: Option<Arc<[String]>>,
    /// Held by the threads themselves: a request that ends leaves its look running.
    at_work: Arc<Semaphore>,
    pub(crate) clock: Clock,
}

/// Who changes the rules.
#[derive(Clone)]
pub(crate) struct By {
    /// The name that the history shows.
    pub(crate) who: String,
    /// The caller whose key was shown.
    pub(crate) caller: String,
}

impl By {
    pub(crate) fn actor(&self) -> Actor<'_> {
        Actor::proved(&self.who, &self.caller)
    }
}

/// A change that somebody asks for.
pub(crate) enum Wanted {
    /// `by_force`: it promotes a trial that has not proven itself.
    Set { text: String, by_force: bool },
    /// `based_on`: the version that was shown to who rolls back; none where the shown text was no rules.
    Rollback { version: u64, based_on: Option<u64> },
}

impl RulesEditor {
    pub(crate) fn new(store: Arc<dyn ChangeRules>, known_brokers: Option<Vec<String>>, clock: Clock) -> Self {
        let at_work = Arc::new(Semaphore::new(AT_ONCE));
        Self { store, known_brokers: known_brokers.map(Arc::from), at_work, clock }
    }

    /// The document as it stands, and what it says.
    pub(crate) async fn show(&self, may_change: bool) -> Result<Value, Refused> {
        let shown = self.blocking(|own| {
            let text = own.store.show()?;
            let form = own.parse(&text);
            Ok::<_, ReadError>((text, form))
        });
        let (text, form) = shown.await?.map_err(unreadable)?;
        Ok(json!({ "text": text, "may_change": may_change, "checked": form }))
    }

    /// What a document says, or everything that is wrong with it.
    pub(crate) async fn check(&self, text: String) -> Result<Value, Refused> {
        self.blocking(move |own| own.parse(&text)).await
    }

    /// What the rules in force and what a document would have done with the last hour's traffic, by type, and when budgets would
    /// end under them. The traffic is copied when it is this call's turn, so that calls that wait hold no copies.
    pub(crate) async fn replay(
        &self,
        text: String,
        known: impl FnOnce() -> (Recorded, Vec<Pace>) + Send,
    ) -> Result<Value, Refused> {
        let turn = self.turn().await?;
        let (recorded, paces) = known();
        let replayed = self.on_a_thread(turn, move |own| {
            let wanted = own.rules_of(&text);
            let in_force = parse_rules(&own.store.show()?, None).ok();
            let traffic = Traffic::of(&recorded);
            let outcomes = |rules: &Rules| replay(&traffic, &rules.limits);
            let (from_ms, to_ms) = (recorded.at_ms.first(), recorded.at_ms.last());
            Ok::<_, ReadError>(match wanted {
                Ok(wanted) => {
                    let (before, after) = (in_force.as_ref().map(outcomes), outcomes(&wanted));
                    let budgets = match (&in_force, &before) {
                        (Some(rules), Some(before)) => {
                            let in_force = Replayed { rules, outcomes: before };
                            ends(&traffic, &paces, in_force, Replayed { rules: &wanted, outcomes: &after })
                        }
                        _ => Vec::new(),
                    };
                    json!({
                        "ok": true, "from_ms": from_ms, "to_ms": to_ms, "in_force": before, "wanted": after,
                        "budgets": budgets, "unknown": traffic.unknown,
                    })
                }
                // What is wrong is the check's to say.
                Err(_) => json!({ "ok": false }),
            })
        });
        replayed.await?.map_err(unreadable)
    }

    fn parse(&self, text: &str) -> Value {
        match self.rules_of(text) {
            Ok(rules) => json!({ "ok": true, "problems": [], "form": form(&rules) }),
            Err(refusal) => {
                let problems: Vec<_> = refusal.problems().iter().map(problem).collect();
                json!({ "ok": false, "problems": problems, "form": null })
            }
        }
    }

    /// The newest changes, newest first, without their documents: each may have a megabyte.
    pub(crate) async fn history(&self) -> Result<Value, Refused> {
        let history = self.blocking(|own| own.store.history()).await?.map_err(unreadable)?;
        let changes = &history.changes;
        let row = |at: usize| {
            let one = &changes[at];
            let earlier = at.checked_sub(1).map(|at| &changes[at]);
            // Somebody has changed the document past the history.
            let is_outside = one.before.is_some() && earlier.is_some_and(|earlier| !one.follows(earlier));
            json!({
                "version": one.version, "at_ms": one.at_ms, "who": one.who, "why": one.why, "is_outside": is_outside,
                "identity": one.identity(), "approved_by": one.approved_by,
            })
        };
        let newest: Vec<_> = (0..changes.len()).rev().take(HISTORY_MAX).map(row).collect();
        let unreadable: Vec<_> =
            history.unreadable.iter().map(|(place, why)| format!("{place}: {why}")).collect();
        Ok(json!({ "changes": newest, "unreadable": unreadable }))
    }

    /// The change that made a version, with the documents before and after it.
    pub(crate) async fn version(&self, version: u64) -> Result<Value, Refused> {
        let found = self.blocking(move |own| own.store.change_of(version)).await?.map_err(unreadable)?;
        let found = found.ok_or_else(|| not_set(SetError::UnknownVersion(version)))?;
        Ok(json!(found))
    }

    /// The changes that wait for approval, each with what it changes, and those that cannot be read.
    pub(crate) async fn proposals(&self) -> Result<Value, Refused> {
        let looked = self.blocking(|own| {
            let Proposals { open, unreadable, .. } = own.store.proposals(own.clock.unix_ms())?;
            let in_force = if open.is_empty() { String::new() } else { own.store.show()? };
            let rows: Vec<Value> = open.iter().map(|one| one.row(&in_force)).collect();
            Ok::<_, ReadError>((rows, unreadable))
        });
        let (proposals, unreadable) = looked.await?.map_err(unreadable)?;
        let row = |(number, why): &(u64, ReadError)| json!({ "number": number, "why": why.to_string() });
        let unreadable: Vec<Value> = unreadable.iter().map(row).collect();
        Ok(json!({ "proposals": proposals, "unreadable": unreadable }))
    }

    /// Makes a proposed change, for whom the caller has found to be allowed to.
    pub(crate) async fn approve(&self, number: u64, by: By) -> Result<Value, Refused> {
        let made = self.blocking(move |own| {
            let now_ms = own.clock.unix_ms();
            let found = own.store.proposals(now_ms)?.open.into_iter().find(|one| one.number == number);
            // What the brokers were when it was proposed says nothing about now.
            if let Some(refused) = found.and_then(|Proposal { text, .. }| own.refuse_unknown_brokers(&text)) {
                return Err(refused);
            }
            own.store.approve(number, by.actor(), now_ms)
        });
        Ok(told(made.await?.map_err(not_set)?))
    }

    /// Takes a proposal away, for whom the caller has found to be allowed to.
    pub(crate) async fn refuse(&self, number: u64, by: By) -> Result<Value, Refused> {
        let refused = self.blocking(move |own| own.store.refuse(number, by.actor(), own.clock.unix_ms()));
        refused.await?.map_err(not_set)?;
        Ok(json!({ "number": number, "refused": true }))
    }

    /// Which process runs which version, and how a staged change stands.
    pub(crate) async fn status(&self) -> Result<Value, Refused> {
        let looked = self.blocking(|own| {
            let rules = parse_rules(&own.store.show()?, None).ok();
            Ok::<_, ReadError>((rules, own.store.reports()?))
        });
        let (rules, reports) = looked.await?.map_err(unreadable)?;
        let newest = rules.as_ref().map(|rules| rules.version);
        let now_ms = self.clock.unix_ms();
        let row = |one: &windfall_config::ProcessStatus| {
            let state = match one {
                one if one.is_silent(now_ms) => "silent",
                one if one.refuses.is_some() => "refuses",
                one if Some(one.version) == newest => "runs",
                _ => "behind",
            };
            let mut row = json!(one);
            row["state"] = state.into();
            row
        };
        let processes: Vec<_> = reports.iter().map(row).collect();
        let staged = rules.as_ref().and_then(|rules| Some((rules, rules.staged.as_deref()?)));
        let staged = staged.map(|(rules, staged)| trial::staged(rules, staged, &reports, now_ms));
        Ok(json!({ "version": newest, "now_ms": now_ms, "processes": processes, "staged": staged }))
    }

    /// Changes the rules, for whom the caller has found to be allowed to. An error that is not a refusal leaves open whether they were changed.
    pub(crate) async fn change(&self, wanted: Wanted, by: By, why: String) -> Result<Value, Refused> {
        let is_rollback = matches!(wanted, Wanted::Rollback { .. });
        let written = self
            .blocking(move |own| {
                let now_ms = own.clock.unix_ms();
                match wanted {
                    Wanted::Set { text, by_force } => {
                        if let Some(refused) = own.refuse_unknown_brokers(&text) {
                            return Err(refused);
                        }
                        own.set(&text, &by, &why, by_force, now_ms)
                    }
                    Wanted::Rollback { version, based_on: Some(based_on) } => {
                        own.store.rollback_from(based_on, version, by.actor(), &why, now_ms)
                    }
                    Wanted::Rollback { version, based_on: None } => {
                        own.refuse_valid()?;
                        own.store.rollback_by(version, by.actor(), &why, now_ms)
                    }
                }
            })
            .await?
            .map_err(|error| if is_rollback { not_rolled_back(error) } else { not_set(error) })?;
        Ok(told(written))
    }

    /// Sets a document. `by_force`: it promotes a trial that has not proven itself.
    pub(crate) fn set(
        &self,
        text: &str,
        by: &By,
        why: &str,
        by_force: bool,
        now_ms: u64,
    ) -> Result<Written, SetError> {
        if by_force {
            return self.store.force_by(text, by.actor(), why, now_ms);
        }
        self.store.set_by(text, by.actor(), why, now_ms)
    }

    /// What a sample of the flow says about the rules; null where they cannot be read, or earlier looks have not ended.
    pub(crate) async fn form(&self) -> Value {
        let Ok(turn) = Arc::clone(&self.at_work).try_acquire_owned() else { return Value::Null };
        let look = |own: &Self| parse_rules(&own.store.show().ok()?, None).ok().map(|rules| form(&rules));
        self.on_a_thread(turn, look).await.ok().flatten().unwrap_or(Value::Null)
    }

    /// Whoever was shown a document that was no rules has not seen the ones that are there now.
    fn refuse_valid(&self) -> Result<(), SetError> {
        match parse_rules(&self.store.show()?, None) {
            Ok(rules) => Err(SetError::Conflict { based_on: 0, current: rules.version }),
            Err(_) => Ok(()),
        }
    }

    /// What a document says, if it names no broker that the console does not know.
    pub(crate) fn rules_of(&self, text: &str) -> Result<Rules, Refusal> {
        let known: Option<Vec<&str>> =
            self.known_brokers.as_ref().map(|known| known.iter().map(String::as_str).collect());
        parse_rules(text, known.as_deref())
    }

    /// A store may know no brokers, where the console does.
    pub(crate) fn refuse_unknown_brokers(&self, text: &str) -> Option<SetError> {
        self.known_brokers.as_ref()?;
        self.rules_of(text).err().map(SetError::Refused)
    }

    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let turn = self.turn().await?;
        self.on_a_thread(turn, work).await
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Refused> {
        Arc::clone(&self.at_work).acquire_owned().await.map_err(|_| closed())
    }

    async fn on_a_thread<T: Send + 'static>(
        &self,
        turn: OwnedSemaphorePermit,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let own = self.clone();
        let working = tokio::task::spawn_blocking(move || {
            let done = work(&own);
            drop(turn);
            done
        });
        working.await.map_err(|error| {
            tracing::error!(%error, "a look at the rules panicked");
            Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", "the rules could not be looked at")
        })
    }
}

/// The parts of rules that the page shows as a form.
fn form(rules: &Rules) -> Value {
    let queues = rules.queues.iter().map(|(name, queue)| {
        json!({ "name": name, "master": queue.master, "backup": queue.backup, "ratio": queue.ratio.percent() })
    });
    let topics = rules
        .topics
        .iter()
        .map(|(name, topic)| json!({ "name": name, "broker": topic.broker, "partitions": topic.partitions }));
    let draining: Vec<_> =
        rules.draining.iter().map(|old| json!({ "name": old.topic, "broker": old.broker })).collect();
    let types = rules.limits.types.iter().map(|(name, own)| {
        json!({
            "name": name, "rate_per_s": own.limit.rate_per_s, "burst": own.limit.burst,
            "fuse": own.fuse.to_string(), "priority": own.priority,
        })
    });
    let routes = rules.routes.iter().map(|route| {
        json!({
            "activity": route.activity.to_string(), "scene": route.scene.to_string(),
            "type": route.bonus_type.to_string(), "queue": route.queue, "requeue": route.requeue,
        })
    });
    let global = rules.limits.global;
    json!({
        "version": rules.version, "queues": queues.collect::<Vec<_>>(), "topics": topics.collect::<Vec<_>>(),
        "draining": draining, "types": types.collect::<Vec<_>>(), "routes": routes.collect::<Vec<_>>(),
        "global": { "rate_per_s": global.rate_per_s, "burst": global.burst },
        "budgets": rules.budgets.len(),
    })
}

fn closed() -> Refused {
    Refused::unavailable("the console stops")
}

/// What a change has come to, for the page.
pub(crate) fn told(written: Written) -> Value {
    let (version, changed) = match written {
        Written::Changed { version } => (version, true),
        Written::Unchanged { version } => (version, false),
    };
    json!({ "version": version, "changed": changed })
}

/// What is wrong with a document, for the page.
pub(crate) fn problem(one: &Problem) -> Value {
    json!({ "line": one.line, "key": one.key, "what": one.fault.to_string() })
}

pub(crate) fn unreadable(error: ReadError) -> Refused {
    Refused::unavailable(error.to_string())
}

/// A rollback takes back every change since its version: who asks for it must have seen the last one.
fn not_rolled_back(error: SetError) -> Refused {
    let SetError::Conflict { current, .. } = error else { return not_set(error) };
    conflict(current)
}

/// Somebody has changed the rules since they were shown to who asks.
pub(crate) fn conflict(current: u64) -> Refused {
    let what = format!(
        "the rules have version {current} now, which you were not shown: look at what has changed, and ask again"
    );
    Refused::new(StatusCode::CONFLICT, "ABORTED", what)
}

pub(crate) fn not_set(error: SetError) -> Refused {
    let (status, code) = match &error {
        SetError::Refused(_) | SetError::Remark(_) => (StatusCode::BAD_REQUEST, "INVALID_ARGUMENT"),
        SetError::Conflict { .. } | SetError::Moved { .. } => (StatusCode::CONFLICT, "ABORTED"),
        SetError::UnknownVersion(_) | SetError::UnknownProposal(_) => (StatusCode::NOT_FOUND, "NOT_FOUND"),
        // It is no success: what was asked for is not in force.
        SetError::Waits { .. }
        | SetError::NotProven { .. }
        | SetError::Trial(_)
        | SetError::DamagedProposal { .. }
        | SetError::OldProcess(_)
        | SetError::Elsewhere(_) => (StatusCode::CONFLICT, "FAILED_PRECONDITION"),
        SetError::TooManyProposals => (StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED"),
        SetError::OwnProposal(_) | SetError::Unproved => (StatusCode::FORBIDDEN, "PERMISSION_DENIED"),
        SetError::Locked(_) | SetError::Io { .. } => (StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE"),
    };
    let proposal = if let SetError::Waits { number } = error { Some(number) } else { None };
    Refused { proposal, ..Refused::new(status, code, error.to_string()) }
}
