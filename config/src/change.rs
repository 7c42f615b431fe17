//! Changes to the rules: what is kept of each, and what a new one must fulfil, wherever the rules are stored.

use std::io;

use serde::{Deserialize, Serialize};

use crate::document::{version_of, with_draining, with_version, without_staged};
use crate::proposal::{PROPOSALS_MAX, Proposals};
use crate::refusal::Refusal;
use crate::stage::StageError;
use crate::status::ProcessStatus;
use windfall_contract::rules::Rules;

/// The most bytes of `who`, and of `why`.
pub const REMARK_MAX_BYTES: usize = 4096;

/// Rules with their history, as an operator changes them: [`crate::RulesStore`] has them in a file, `EtcdRulesStore`
/// in etcd. Every call blocks.
pub trait ChangeRules: Send + Sync {
    /// The document as it stands, valid or not; what is not UTF-8 is replaced by `U+FFFD`.
    ///
    /// # Errors
    /// [`ReadError`].
    fn show(&self) -> Result<String, ReadError>;

    /// Replaces the document, as a whole or not at all. `now_ms` is ms since 1970.
    ///
    /// `new_text` carries the version that it was made from, as [`ChangeRules::show`] gave it; it is written
    /// with the next one. A topic that it no longer names, or that it moves to another broker, is put among those that
    /// are read until they are empty (`[[draining]]`). So of two changes made from the same version the second is a
    /// [`SetError::Conflict`], and no change is lost. Where there is no document yet, or none that can be read, any
    /// version is taken.
    ///
    /// Where the rules in force ask for it (`changes_need_approval`), a change that may cost money is not made: it is kept
    /// as a [`Proposal`](crate::Proposal), and the answer is [`SetError::Waits`] with its number.
    ///
    /// # Errors
    /// [`SetError`] says for each case whether anything was written.
    fn set_by(&self, new_text: &str, by: Actor<'_>, why: &str, now_ms: u64) -> Result<Written, SetError>;

    /// As [`ChangeRules::set_by`], for a document that promotes the staged change though it has not proven itself. Where it
    /// waits, the proposal says so, and the staged change is not looked at again when it is approved.
    ///
    /// # Errors
    /// [`SetError`].
    fn force_by(&self, new_text: &str, by: Actor<'_>, why: &str, now_ms: u64) -> Result<Written, SetError>;

    /// As [`ChangeRules::set_by`], by whom nothing proves.
    ///
    /// # Errors
    /// [`SetError`].
    fn set(&self, new_text: &str, who: &str, why: &str, now_ms: u64) -> Result<Written, SetError> {
        self.set_by(new_text, Actor::said(who), why, now_ms)
    }

    /// Writes the document of an earlier version as a new one. `now_ms` is ms since 1970.
    ///
    /// It waits for approval as any other change does.
    ///
    /// # Errors
    /// [`SetError`], [`SetError::Refused`] too: a document of old may name a broker that is gone.
    fn rollback_by(&self, version: u64, by: Actor<'_>, why: &str, now_ms: u64) -> Result<Written, SetError>;

    /// As [`ChangeRules::rollback_by`], by whom nothing proves.
    ///
    /// # Errors
    /// [`SetError`].
    fn rollback(&self, version: u64, who: &str, why: &str, now_ms: u64) -> Result<Written, SetError> {
        self.rollback_by(version, Actor::said(who), why, now_ms)
    }

    /// As [`ChangeRules::rollback_by`], for whom was shown version `based_on`: where another one is there now, nothing is
    /// written, since it would take back a change that was not seen.
    ///
    /// # Errors
    /// [`SetError::Conflict`], and those of a rollback.
    fn rollback_from(
        &self,
        based_on: u64,
        version: u64,
        by: Actor<'_>,
        why: &str,
        now_ms: u64,
    ) -> Result<Written, SetError> {
        let text = self.history()?.text_of(version).ok_or(SetError::UnknownVersion(version))?;
        let text = with_version(&text, based_on).unwrap_or(text);
        self.set_by(&text, by, &rollback_reason(version, why), now_ms)
    }

    /// Every change that was made by [`ChangeRules::set_by`], [`ChangeRules::rollback_by`] and [`ChangeRules::approve`].
    ///
    /// # Errors
    /// [`ReadError`] where nothing can be read; damaged entries are listed in the result.
    fn history(&self) -> Result<History, ReadError>;

    /// The change that made a version; `None` where the history has none.
    ///
    /// # Errors
    /// [`ReadError`].
    fn change_of(&self, version: u64) -> Result<Option<Change>, ReadError> {
        Ok(self.history()?.changes.into_iter().find(|change| change.version == version))
    }

    /// The changes that wait for approval, by their numbers. Those that have expired by `now_ms` are left out.
    ///
    /// # Errors
    /// [`ReadError`] where nothing can be read; damaged ones are listed in the result.
    fn proposals(&self, now_ms: u64) -> Result<Proposals, ReadError>;

    /// Makes a proposed change, once: for a caller whose key has proved who it is, and who has not proposed it.
    ///
    /// # Errors
    /// [`SetError::Moved`] where the rules have changed since it was proposed; [`SetError::NotProven`] and [`SetError::Trial`]
    /// where the processes' reports speak against it; [`SetError::UnknownProposal`], [`SetError::OwnProposal`],
    /// [`SetError::Unproved`]; and those of [`ChangeRules::set_by`].
    fn approve(&self, number: u64, by: Actor<'_>, now_ms: u64) -> Result<Written, SetError>;

    /// Takes a proposal away, also one that cannot be read, so that nobody can approve it any more. The history has nothing
    /// of it.
    ///
    /// # Errors
    /// [`SetError::UnknownProposal`] where it has ended or expired already.
    fn refuse(&self, number: u64, by: Actor<'_>, now_ms: u64) -> Result<(), SetError>;

    /// Notes the version that a process runs, in place of its last report; it is forgotten when the process is silent
    /// for long.
    ///
    /// # Errors
    /// [`ReadError`] where it cannot be written.
    fn report(&self, status: &ProcessStatus) -> Result<(), ReadError>;

    /// The reports of the processes, by their names.
    ///
    /// # Errors
    /// [`ReadError`]. A report that cannot be read is left out.
    fn reports(&self) -> Result<Vec<ProcessStatus>, ReadError>;

    /// Removes the report of a process that ends.
    ///
    /// # Errors
    /// [`ReadError`] where it cannot be removed.
    fn withdraw(&self, process: &str) -> Result<(), ReadError>;
}

/// Who makes a change, and whether a key has proved that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actor<'a> {
    /// The name that the history shows.
    pub who: &'a str,
    /// The caller whose key was shown for it. `None`: the name was said, and nothing proves it.
    pub caller: Option<&'a str>,
}

impl<'a> Actor<'a> {
    /// One whose name nothing proves.
    pub const fn said(who: &'a str) -> Self {
        Self { who, caller: None }
    }

    /// One whom this caller's key has proved.
    pub const fn proved(who: &'a str, caller: &'a str) -> Self {
        Self { who, caller: Some(caller) }
    }
}

/// One change that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The version that the change made.
    pub version: u64,
    /// When it was made, in ms since 1970.
    pub at_ms: u64,
    /// The person or program that made it.
    pub who: String,
    /// The reason that was given for it.
    pub why: String,
    /// The whole document before it; `None` for the first.
    pub before: Option<String>,
    /// The whole document after it.
    pub after: String,
    /// The caller whose key has proved who made it; `None` where the name was said. Left out then, so that programs of before
    /// read the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// The second person, who has approved it; `None` where nobody had to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
}

impl Change {
    /// Whether a key has proved who made it: `proved` or `said`.
    pub const fn identity(&self) -> &'static str {
        identity(self.caller.is_some())
    }

    /// Whether it began where `earlier` ended. Where it did not, the file was changed outside in between, or
    /// the machine died before `earlier` took effect; `before` has what was there.
    pub fn follows(&self, earlier: &Self) -> bool {
        self.before.as_deref() == Some(&earlier.after)
    }
}

/// The word for a name that a key has proved, or for one that was said.
pub(crate) const fn identity(is_proved: bool) -> &'static str {
    if is_proved { "proved" } else { "said" }
}

/// Every change that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The changes by version, the oldest first.
    pub changes: Vec<Change>,
    /// Files or keys that could not be read, with the reason.
    pub unreadable: Vec<(String, String)>,
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The document was written, and has a new version.
    Changed {
        /// The new version.
        version: u64,
    },
    /// The document was the same to the byte already, so nothing was written.
    Unchanged {
        /// The version that the document has.
        version: u64,
    },
}

/// The rules could not be read, or their history.
#[derive(Debug, thiserror::Error)]
#[error("{place} cannot be read: {source}")]
pub struct ReadError {
    /// The file, directory or key that cannot be read.
    pub place: String,
    /// The error of the operating system or of etcd.
    pub source: io::Error,
}

/// A change was not made.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The document does not validate; correct it. Nothing was written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The document was made from another version than is there now, so that it would undo a change that it
    /// has not seen. Merge the two and set the result. Nothing was written.
    #[error(
        "the document carries version {based_on}, but version {current} is there now: take over what has \
         changed, leave `version = {current}` in it (set raises it), and set it again"
    )]
    Conflict {
        /// The version in the document.
        based_on: u64,
        /// The version that is there now.
        current: u64,
    },
    /// Another process is changing the rules; try again. Nothing was written.
    #[error("{0} is locked by another change; try again")]
    Locked(String),
    /// `who` or `why` is empty or longer than 4096 bytes. Nothing was written.
    #[error("say {0}: 1 to 4096 bytes; every change is kept with who made it and why")]
    Remark(&'static str),
    /// The history has no such version. Nothing was written.
    #[error("the history has no version {0}")]
    UnknownVersion(u64),
    /// The rules ask for a second person, so the change was kept as a proposal. The rules are as they were.
    #[error(
        "the rules are as they were: the change waits for approval as proposal {number}. Within a day another person, with a \
         key of the role `approve`, approves it with `windfall rules approve {number} --server URL`"
    )]
    Waits {
        /// The proposal's number.
        number: u64,
    },
    /// The rules have changed since the proposal was made. Nothing was written.
    #[error(
        "proposal {number} was made from version {based_on} of the rules, but version {current} is there now: propose the change \
         again, from the rules as they are now"
    )]
    Moved {
        /// The proposal's number.
        number: u64,
        /// The version that it was made from.
        based_on: u64,
        /// The version that is there now.
        current: u64,
    },
    /// The proposal promotes a trial that is not proven any more, and not by force. Nothing was written.
    #[error(
        "proposal {number} promotes a trial that does not count as proven: {why}; take the trial back (`windfall rules abort`), \
         or propose to promote it in spite of that (`windfall rules promote --force`)"
    )]
    NotProven {
        /// The proposal's number.
        number: u64,
        /// Why it does not count as proven.
        why: String,
    },
    /// A process would refuse the trial that the proposal begins, and run behind the others. Nothing was written.
    #[error(transparent)]
    Trial(StageError),
    /// So many proposals wait that no other one is kept. Nothing was written.
    #[error(
        "{} proposals wait for approval already, and no more are kept: approve or refuse one first \
         (`windfall rules proposals`)",
        PROPOSALS_MAX
    )]
    TooManyProposals,
    /// No such proposal waits. Nothing was written.
    #[error(
        "no proposal {0} waits: it was approved, was refused, or has expired; see `windfall rules history` and `windfall rules \
         proposals`"
    )]
    UnknownProposal(u64),
    /// The proposal cannot be read. Nothing was written.
    #[error("proposal {number} cannot be approved: {why}; `windfall rules refuse {number}` removes it")]
    DamagedProposal {
        /// The proposal's number.
        number: u64,
        /// Where it lies, and why it cannot be read.
        why: String,
    },
    /// Who approves has proposed it. Nothing was written.
    #[error("you have proposed change {0} yourself: another person has to approve it")]
    OwnProposal(u64),
    /// Nothing proves who approves. Nothing was written.
    #[error("nothing proves who approves the proposal: give --server with the console's URL, and --key-file")]
    Unproved,
    /// A program that does not know the key `changes_need_approval` would refuse the document, and run behind the others.
    /// Nothing was written.
    #[error(
        "{0} runs an older version of Windfall, which refuses a document with `changes_need_approval`: bring all processes up \
         to date first"
    )]
    OldProcess(String),
    /// The console that was asked has refused it, in its own words. Nothing was written.
    #[error("{0}")]
    Elsewhere(String),
    /// Reading or writing failed. Where writing had begun the change may have been made: look at the version that is
    /// there before trying again.
    #[error("{what} {place}: {source}; look at the version that is there before trying again")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The file, directory or key at which it failed.
        place: String,
        /// The error of the operating system or of etcd.
        source: io::Error,
    },
}

impl From<ReadError> for SetError {
    fn from(error: ReadError) -> Self {
        Self::Io { what: "cannot read", place: error.place, source: error.source }
    }
}

impl History {
    /// The document of a version, without what was staged then: what a change left, or what the next one found after a change outside.
    pub(crate) fn text_of(&self, version: u64) -> Option<String> {
        let made = self.changes.iter().find(|change| change.version == version).map(|change| &change.after);
        let found = || {
            let before = self.changes.iter().filter_map(|change| change.before.as_ref());
            before.into_iter().find(|before| version_of(before) == Some(version))
        };
        let text = made.or_else(found)?;
        // A trial of then is over, and must not begin again.
        match crate::parse_rules(text, None) {
            Ok(rules) if rules.staged.is_some() => without_staged(text).ok(),
            _ => Some(text.clone()),
        }
    }
}

/// Checks what a change is kept with: who made it, and why.
///
/// # Errors
/// [`SetError::Remark`]: a change with one that is empty, or longer than [`REMARK_MAX_BYTES`], is not made.
pub fn check_remarks(who: &str, why: &str) -> Result<(), SetError> {
    for (what, remark) in [("who", who), ("why", why)] {
        if remark.trim().is_empty() || remark.len() > REMARK_MAX_BYTES {
            return Err(SetError::Remark(what));
        }
    }
    Ok(())
}

/// The reason of a rollback as the history shows it.
pub(crate) fn rollback_reason(version: u64, why: &str) -> String {
    if why.is_empty() { String::new() } else { format!("rollback to version {version}: {why}") }
}

/// Refuses a document that was made from another version than is there now.
pub(crate) fn check_base(based_on: u64, current: Option<u64>) -> Result<(), SetError> {
    match current {
        Some(current) if current != based_on => Err(SetError::Conflict { based_on, current }),
        _ => Ok(()),
    }
}

/// The remarks with which a change is kept.
#[derive(Clone, Copy)]
pub(crate) struct Remarks<'a> {
    pub(crate) by: Actor<'a>,
    pub(crate) why: &'a str,
    pub(crate) now_ms: u64,
    /// The second person, where it was approved.
    pub(crate) approved_by: Option<&'a str>,
    /// Whether a trial is promoted though it has not proven itself.
    pub(crate) by_force: bool,
}

impl<'a> Remarks<'a> {
    /// Those of a change that nobody has approved.
    pub(crate) const fn of(by: Actor<'a>, why: &'a str, now_ms: u64) -> Self {
        Self { by, why, now_ms, approved_by: None, by_force: false }
    }
}

/// What has to be written; `Err` of the inner result where it is there already, with its version. `newest` is the
/// history's newest version.
pub(crate) fn plan(
    before: Option<String>,
    newest: Option<u64>,
    text: String,
    remarks: Remarks<'_>,
    known_brokers: Option<&[String]>,
) -> Result<Result<Change, u64>, SetError> {
    let text = keep_read(before.as_deref(), text);
    let text = drop_overtaken(before.as_deref(), text);
    let current = before.as_deref().and_then(version_of);
    // Above everything that ever was, so that processes take it whatever they run.
    let version = match current.max(newest) {
        Some(newest) => newest.saturating_add(1),
        None => version_of(&text).unwrap_or(1),
    };
    // A document older than the history's newest was put there past it: processes do not take it, so write it anew.
    if let (Some(before), Some(current)) = (&before, current)
        && newest.is_none_or(|newest| newest <= current)
        && with_version(&text, current).as_ref() == Some(before)
    {
        return Ok(Err(current));
    }
    let after = with_version(&text, version).unwrap_or(text);
    validate(&after, known_brokers)?;
    let Remarks { by, why, now_ms, approved_by, by_force: _ } = remarks;
    Ok(Ok(Change {
        version,
        at_ms: now_ms,
        who: by.who.to_owned(),
        why: why.to_owned(),
        before,
        after,
        caller: by.caller.map(str::to_owned),
        approved_by: approved_by.map(str::to_owned),
    }))
}

/// The new document, with the topics that it no longer names among those that are read until they are empty: rewards
/// that were answered with Ok may wait there.
fn keep_read(before: Option<&str>, text: String) -> String {
    let rules = |text: &str| crate::parse_rules(text, None).ok();
    let (Some(old), Some(new)) = (before.and_then(rules), rules(&text)) else { return text };
    let forgotten = new.forgotten(&old);
    if forgotten.is_empty() {
        return text;
    }
    with_draining(&text, &forgotten).unwrap_or(text)
}

/// The new document without a trial of what it changes for all: an operator who sets a limit means every process, and a
/// promotion would take that back.
fn drop_overtaken(before: Option<&str>, text: String) -> String {
    let rules = |text: &str| crate::parse_rules(text, None).ok();
    let (Some(old), Some(new)) = (before.and_then(rules), rules(&text)) else { return text };
    let (Some(tried), Some(still)) = (&old.staged, &new.staged) else { return text };
    let changed = |name: &String| old.limits.types.get(name) != new.limits.types.get(name);
    let tries = |name: &String| old.limits.types.get(name) != tried.limits.types.get(name);
    let is_overtaken = tried.since_ms == still.since_ms
        && (old.limits.types.keys().any(|name| changed(name) && tries(name))
            || (old.limits.global != new.limits.global && old.limits.global != tried.limits.global)
            || (old.pacing != new.pacing && old.pacing != tried.pacing));
    if !is_overtaken {
        return text;
    }
    without_staged(&text).unwrap_or(text)
}

pub(crate) fn validate(text: &str, known_brokers: Option<&[String]>) -> Result<Rules, Refusal> {
    let known: Option<Vec<&str>> = known_brokers.map(|known| known.iter().map(String::as_str).collect());
    crate::parse_rules(text, known.as_deref())
}
