//! Changes the document in etcd with an actor and a reason, keeps every change, and rolls back.

use super::connection::Connection;
use super::{EtcdOptions, OpenEtcdError};
use crate::change::{
    Actor, Change, ChangeRules, History, ReadError, Remarks, SetError, Written, check_base, check_remarks,
    plan, rollback_reason, validate,
};
use crate::document::version_of;
use crate::proposal::{
    Gate, Last, Proposals, check_processes, check_reports, check_second, check_unmoved, gate, needs_last,
    note_refused,
};
use crate::status::ProcessStatus;
use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
};
use serde::{Deserialize, Serialize};
use std::io;
use std::thread;

/// How long etcd keeps the report of a process that is silent.
const REPORT_LEASE_S: i64 = 60;
/// The number of processes whose reports are read at most.
const REPORTS_MAX: i64 = 10_000;
/// The number of history entries in one answer.
const PAGE: i64 = 16;

/// The rules in etcd with their history. Connects for each call, which blocks; async code may call it where blocking
/// for some milliseconds is fine.
#[derive(Debug, Clone)]
pub struct EtcdRulesStore {
    options: EtcdOptions,
    known_brokers: Option<Vec<String>>,
}

/// A change as etcd stores it. etcd takes 1.5 MiB per transaction, so what is the same as in the last entry is left
/// out.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    version: u64,
    at_ms: u64,
    who: String,
    why: String,
    /// Whether it was made from what the last entry has as `after`.
    follows: bool,
    before: Option<String>,
    after: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approved_by: Option<String>,
}

/// The state that a change begins with, of one revision.
pub(super) struct Base {
    document: Option<String>,
    /// The revision of the document; 0 where there is none.
    pub(super) changed: i64,
    newest: Option<Entry>,
    newest_version: Option<u64>,
}

impl EtcdRulesStore {
    /// `known_brokers` are those of the static options, as in [`parse_rules`](crate::parse_rules). Does not connect
    /// yet.
    ///
    /// # Errors
    /// [`OpenEtcdError::Option`] alone.
    pub fn new(options: EtcdOptions, known_brokers: Option<Vec<String>>) -> Result<Self, OpenEtcdError> {
        options.check()?;
        Ok(Self { options, known_brokers })
    }

    /// Works on a connection, on a thread of its own: the caller's may have a runtime that must not be blocked on.
    fn connected<T: Send>(
        &self,
        work: impl AsyncFnOnce(&mut Connection) -> T + Send,
    ) -> Result<T, io::Error> {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut connection = Connection::open(&self.options).await.map_err(io::Error::other)?;
                Ok(work(&mut connection).await)
            })
        };
        thread::scope(|scope| scope.spawn(run).join())
            .unwrap_or_else(|_| Err(io::Error::other("the call had panicked")))
    }

    pub(super) const fn options(&self) -> &EtcdOptions {
        &self.options
    }

    pub(super) fn key_place(&self, key: &str) -> String {
        format!("{key} in etcd at {}", self.options.place())
    }

    fn unread(&self, source: io::Error) -> ReadError {
        ReadError { place: self.key_place(&self.options.prefix), source }
    }

    fn change(
        &self,
        check: impl FnOnce(Option<u64>) -> Result<(), SetError> + Send,
        text: impl AsyncFnOnce(&Self, &mut Connection) -> Result<String, SetError> + Send,
        remarks: Remarks<'_>,
    ) -> Result<Written, SetError> {
        check_remarks(remarks.by.who, remarks.why)?;
        let work = async |connection: &mut Connection| {
            let base = self.base(connection).await?;
            let current = base.document.as_deref().and_then(version_of);
            check(current)?;
            let text = text(self, connection).await?;
            self.make(connection, base, text, remarks, None).await
        };
        self.connected(work).map_err(|source| SetError::from(self.unread(source)))?
    }

    /// Writes a change, or proposes it where it has to wait. `ends` is the proposal that it was.
    async fn make(
        &self,
        connection: &mut Connection,
        base: Base,
        text: String,
        remarks: Remarks<'_>,
        ends: Option<u64>,
    ) -> Result<Written, SetError> {
        let before = base.document.clone();
        let change = match plan(before, base.newest_version, text, remarks, self.known_brokers.as_deref())? {
            Ok(change) => change,
            Err(version) => return Ok(Written::Unchanged { version }),
        };
        let last = if needs_last(&change) {
            let history = self.read_history(connection).await;
            Last::of(history.map_err(|what| self.unread(io::Error::other(what)))?)
        } else {
            Last::Nothing
        };
        match gate(&change, &last) {
            Gate::Waits if remarks.approved_by.is_none() => {
                let number = self.propose(connection, &base, change, remarks.by_force).await?;
                return Err(SetError::Waits { number });
            }
            Gate::Begins => {
                let reports = self.read_reports(connection).await;
                let reports = reports.map_err(|what| self.unread(io::Error::other(what)))?;
                check_processes(&reports, remarks.now_ms)?;
            }
            Gate::Waits | Gate::Open => {}
        }
        self.write(connection, change, base, ends).await
    }

    fn replace(
        &self,
        new_text: &str,
        by: Actor<'_>,
        why: &str,
        now_ms: u64,
        by_force: bool,
    ) -> Result<Written, SetError> {
        let based_on = validate(new_text, self.known_brokers.as_deref())?.version;
        let text = async |_: &Self, _: &mut Connection| Ok(new_text.to_owned());
        let remarks = Remarks { by_force, ..Remarks::of(by, why, now_ms) };
        self.change(move |current| check_base(based_on, current), text, remarks)
    }

    async fn base(&self, connection: &mut Connection) -> Result<Base, SetError> {
        let newest =
            GetOptions::new().with_prefix().with_sort(SortTarget::Key, SortOrder::Descend).with_limit(1);
        let reads = vec![
            TxnOp::get(self.options.current_key(), None),
            TxnOp::get(self.options.changes_prefix(), Some(newest)),
        ];
        let failed = |what: String| SetError::from(self.unread(io::Error::other(what)));
        let answer = connection.transact(Txn::new().and_then(reads)).await.map_err(failed)?;
        let mut found = answer.op_responses().into_iter().map(|response| match response {
            TxnOpResponse::Get(mut found) => found.take_kvs().into_iter().next(),
            _ => None,
        });
        let document = found.next().flatten();
        let newest = found.next().flatten();
        let newest_version = newest.as_ref().and_then(|pair| number_in(pair.key()));
        Ok(Base {
            changed: document.as_ref().map_or(0, etcd_client::KeyValue::mod_revision),
            document: document.map(|pair| String::from_utf8_lossy(pair.value()).into_owned()),
            newest: newest.and_then(|pair| read_entry(pair.value()).ok()),
            newest_version,
        })
    }

    /// Document and entry together or neither, and only where nobody was there in between. The proposal that it was goes with
    /// it, and must be there.
    async fn write(
        &self,
        connection: &mut Connection,
        change: Change,
        base: Base,
        ends: Option<u64>,
    ) -> Result<Written, SetError> {
        let current = base.document.as_deref().and_then(version_of);
        let (key, entry_key) = (self.options.current_key(), self.options.change_key(change.version));
        let failed = |what: String| SetError::Io {
            what: "cannot write",
            place: self.key_place(&key),
            source: io::Error::other(what),
        };
        let Change { version, at_ms, who, why, before, after, caller, approved_by } = change;
        let follows = before.is_some() && before == base.newest.map(|newest| newest.after);
        let before = before.filter(|_| !follows);
        let left = after.clone();
        let entry = Entry { version, at_ms, who, why, follows, before, after: left, caller, approved_by };
        let entry = toml::to_string(&entry).map_err(|error| failed(error.to_string()))?;
        let mut when = vec![
            Compare::mod_revision(key.clone(), CompareOp::Equal, base.changed),
            Compare::version(entry_key.clone(), CompareOp::Equal, 0),
        ];
        let mut then = vec![TxnOp::put(entry_key, entry, None), TxnOp::put(key.clone(), after, None)];
        if let Some(number) = ends {
            let proposal = self.options.proposal_key(number);
            when.push(Compare::version(proposal.clone(), CompareOp::Greater, 0));
            then.push(TxnOp::delete(proposal, None));
        }
        let transaction = Txn::new().when(when).and_then(then).or_else(vec![TxnOp::get(key.clone(), None)]);
        let answer = connection.transact(transaction).await.map_err(failed)?;
        if answer.succeeded() {
            return Ok(Written::Changed { version });
        }
        let there = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(found) => version_there(&found),
            _ => None,
        });
        if let Some(number) = ends.filter(|_| there == current) {
            return Err(SetError::UnknownProposal(number));
        }
        let based_on = current.unwrap_or(0);
        Err(SetError::Conflict { based_on, current: there.unwrap_or(version) })
    }

    async fn read_reports(&self, connection: &mut Connection) -> Result<Vec<ProcessStatus>, String> {
        let prefix = self.options.status_key("").into_bytes();
        let mut end = prefix.clone();
        // The prefix ends with a slash, and after it comes `0`.
        end.pop();
        end.push(b'0');
        let found = connection.range(&prefix, &end, REPORTS_MAX).await?;
        Ok(found.iter().filter_map(|(_, text)| serde_json::from_slice(text).ok()).collect())
    }

    async fn read_history(&self, connection: &mut Connection) -> Result<History, String> {
        let mut history = History { changes: Vec::new(), unreadable: Vec::new() };
        let prefix = self.options.changes_prefix().into_bytes();
        let mut end = prefix.clone();
        // The prefix ends with a slash, and after it comes `0`.
        end.pop();
        end.push(b'0');
        let mut from = prefix;
        loop {
            let page = connection.range(&from, &end, PAGE).await?;
            let Some((last, _)) = page.last() else { return Ok(history) };
            from = last.clone();
            from.push(0);
            for (key, value) in page {
                match read_entry(&value) {
                    Ok(entry) => {
                        let last = history.changes.last().map(|change: &Change| change.after.clone());
                        history.changes.push(entry.change(last));
                    }
                    Err(why) => {
                        let key = String::from_utf8_lossy(&key).into_owned();
                        history.unreadable.push((self.key_place(&key), why));
                    }
                }
            }
        }
    }
}

impl ChangeRules for EtcdRulesStore {
    fn show(&self) -> Result<String, ReadError> {
        let key = self.options.current_key();
        let failed = |source| ReadError { place: self.key_place(&key), source };
        let found = self.connected(async |connection| connection.find(&key, false).await).map_err(failed)?;
        let found = found.map_err(|what| failed(io::Error::other(what)))?;
        let missing = || failed(io::Error::new(io::ErrorKind::NotFound, "there is no such key"));
        found.document.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).ok_or_else(missing)
    }

    fn set_by(&self, new_text: &str, by: Actor<'_>, why: &str, now_ms: u64) -> Result<Written, SetError> {
        self.replace(new_text, by, why, now_ms, false)
    }

    fn force_by(&self, new_text: &str, by: Actor<'_>, why: &str, now_ms: u64) -> Result<Written, SetError> {
        self.replace(new_text, by, why, now_ms, true)
    }

    fn rollback_by(&self, version: u64, by: Actor<'_>, why: &str, now_ms: u64) -> Result<Written, SetError> {
        let why = rollback_reason(version, why);
        let text = async |store: &Self, connection: &mut Connection| {
            let history = store.read_history(connection).await;
            let history = history.map_err(|what| store.unread(io::Error::other(what)))?;
            history.text_of(version).ok_or(SetError::UnknownVersion(version))
        };
        self.change(|_| Ok(()), text, Remarks::of(by, &why, now_ms))
    }

    fn history(&self) -> Result<History, ReadError> {
        let failed = |source| self.unread(source);
        let history =
            self.connected(async |connection| self.read_history(connection).await).map_err(failed)?;
        history.map_err(|what| failed(io::Error::other(what)))
    }

    fn proposals(&self, now_ms: u64) -> Result<Proposals, ReadError> {
        let failed = |source| self.unread(source);
        let read = async |connection: &mut Connection| self.read_proposals(connection, now_ms).await;
        self.connected(read).map_err(failed)?.map_err(|what| failed(io::Error::other(what)))
    }

    fn approve(&self, number: u64, by: Actor<'_>, now_ms: u64) -> Result<Written, SetError> {
        check_remarks(by.who, "approved")?;
        let work = async |connection: &mut Connection| {
            let proposal = self.kept_proposals(connection, now_ms).await?.find(number)?;
            check_second(&proposal, by.caller)?;
            let base = self.base(connection).await?;
            check_unmoved(&proposal, base.document.as_deref().and_then(version_of))?;
            let reports = self.read_reports(connection).await;
            let reports = reports.map_err(|what| self.unread(io::Error::other(what)))?;
            check_reports(&proposal, base.document.as_deref(), &reports, now_ms)?;
            let text = proposal.text_at(base.document.as_deref(), now_ms);
            let proposer = Actor { who: &proposal.who, caller: proposal.caller.as_deref() };
            let approved_by = Some(by.who);
            let remarks = Remarks { approved_by, ..Remarks::of(proposer, &proposal.why, now_ms) };
            self.make(connection, base, text, remarks, Some(number)).await
        };
        self.connected(work).map_err(|source| SetError::from(self.unread(source)))?
    }

    fn refuse(&self, number: u64, by: Actor<'_>, now_ms: u64) -> Result<(), SetError> {
        check_remarks(by.who, "refused")?;
        let work = async |connection: &mut Connection| {
            let proposal = self.kept_proposals(connection, now_ms).await?.find_refused(number)?;
            self.remove_proposal(connection, number).await?;
            note_refused(number, proposal.as_ref(), by);
            Ok::<(), SetError>(())
        };
        self.connected(work).map_err(|source| SetError::from(self.unread(source)))?
    }

    fn report(&self, status: &ProcessStatus) -> Result<(), ReadError> {
        let key = self.options.status_key(&status.process);
        let failed = |source| ReadError { place: self.key_place(&key), source };
        let text = serde_json::to_string(status).map_err(|error| failed(io::Error::other(error)))?;
        let put =
            async |connection: &mut Connection| connection.put_for_a_while(&key, &text, REPORT_LEASE_S).await;
        self.connected(put).map_err(failed)?.map_err(|what| failed(io::Error::other(what)))
    }

    fn reports(&self) -> Result<Vec<ProcessStatus>, ReadError> {
        let failed = |source| self.unread(source);
        let read = async |connection: &mut Connection| self.read_reports(connection).await;
        self.connected(read).map_err(failed)?.map_err(|what| failed(io::Error::other(what)))
    }

    fn withdraw(&self, process: &str) -> Result<(), ReadError> {
        let key = self.options.status_key(process);
        let failed = |source| ReadError { place: self.key_place(&key), source };
        let delete = async |connection: &mut Connection| {
            let delete = Txn::new().and_then(vec![TxnOp::delete(key.as_str(), None)]);
            connection.transact(delete).await.map(drop)
        };
        self.connected(delete).map_err(failed)?.map_err(|what| failed(io::Error::other(what)))
    }
}

impl Entry {
    /// `last` is what the entry before it left.
    fn change(self, last: Option<String>) -> Change {
        let Self { version, at_ms, who, why, follows, before, after, caller, approved_by } = self;
        let before = if follows { last } else { before };
        Change { version, at_ms, who, why, before, after, caller, approved_by }
    }
}

fn read_entry(bytes: &[u8]) -> Result<Entry, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

/// The number at the end of a key.
pub(super) fn number_in(key: &[u8]) -> Option<u64> {
    std::str::from_utf8(key).ok()?.rsplit('/').next()?.parse().ok()
}

fn version_there(found: &GetResponse) -> Option<u64> {
    version_of(&String::from_utf8_lossy(found.kvs().first()?.value()))
}
