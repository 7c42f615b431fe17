//! Changes in etcd that wait for approval: each is a key, and a counter gives their numbers.

use super::connection::Connection;
use super::store::{Base, EtcdRulesStore, number_in};
use crate::change::{Change, ReadError, SetError};
use crate::document::version_of;
use crate::proposal::{PROPOSALS_MAX, Proposal, Proposals, find_repeat, next_number, read_proposal};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use std::io;

/// How often a proposal is made anew where another one has taken its number.
const ATTEMPTS: u32 = 10;

impl EtcdRulesStore {
    /// Keeps a change until it is approved, if the document is still the one that it was made from. Of two at once, one takes
    /// the counter, and the other one counts again: so there are never more than may be.
    pub(super) async fn propose(
        &self,
        connection: &mut Connection,
        base: &Base,
        change: Change,
        by_force: bool,
    ) -> Result<u64, SetError> {
        let document = self.options().current_key();
        let now_ms = change.at_ms;
        let mut proposal = Proposal::of(change, 0, by_force);
        for _ in 0..ATTEMPTS {
            if self.try_propose(connection, base, &mut proposal, now_ms).await? {
                return Ok(proposal.number);
            }
            let now = connection.find(&document, false).await.map_err(|what| self.not_read(what))?;
            if now.changed != base.changed {
                let text = now.document.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                let current = text.as_deref().and_then(version_of).unwrap_or(0);
                return Err(SetError::Conflict { based_on: proposal.based_on.unwrap_or(0), current });
            }
        }
        Err(SetError::Locked(self.key_place(&self.options().next_proposal_key())))
    }

    /// Whether it is kept now, under the number that it has got.
    async fn try_propose(
        &self,
        connection: &mut Connection,
        base: &Base,
        proposal: &mut Proposal,
        now_ms: u64,
    ) -> Result<bool, SetError> {
        let counter = self.options().next_proposal_key();
        let found = connection.find(&counter, false).await.map_err(|what| self.not_read(what))?;
        let kept = self.kept_proposals(connection, now_ms).await?;
        if let Some(number) = find_repeat(&kept, proposal)? {
            proposal.number = number;
            return Ok(true);
        }
        let noted = found.document.and_then(|bytes| String::from_utf8(bytes).ok());
        let noted = noted.and_then(|text| text.trim().parse().ok());
        proposal.number = next_number(&kept, noted.unwrap_or(1));
        let key = self.options().proposal_key(proposal.number);
        let failed = |what: String| SetError::Io {
            what: "cannot write",
            place: self.key_place(&key),
            source: io::Error::other(what),
        };
        let text = toml::to_string(proposal).map_err(|error| failed(error.to_string()))?;
        let next = proposal.number.saturating_add(1).to_string();
        let mut then = vec![TxnOp::put(counter.clone(), next, None), TxnOp::put(key.clone(), text, None)];
        then.extend(kept.over.iter().map(|number| TxnOp::delete(self.options().proposal_key(*number), None)));
        let transaction = Txn::new()
            .when(vec![
                Compare::mod_revision(counter, CompareOp::Equal, found.changed),
                Compare::mod_revision(self.options().current_key(), CompareOp::Equal, base.changed),
            ])
            .and_then(then);
        Ok(connection.transact(transaction).await.map_err(failed)?.succeeded())
    }

    /// Every proposal that is kept.
    pub(super) async fn read_proposals(
        &self,
        connection: &mut Connection,
        now_ms: u64,
    ) -> Result<Proposals, String> {
        // Their keys end with digits, and after the last digit comes `:`; the counter's key is beyond it.
        let prefix = self.options().proposals_prefix();
        let (from, to) = (format!("{prefix}0"), format!("{prefix}:"));
        // Expired ones go with the next proposal, so there are never more than these.
        let limit = i64::try_from(PROPOSALS_MAX).unwrap_or(i64::MAX);
        let found = connection.range(from.as_bytes(), to.as_bytes(), limit).await?;
        let mut kept = Proposals::default();
        for (key, value) in found {
            // A key with another name is none of the store's.
            let Some(number) = number_in(&key) else { continue };
            let own_key = self.options().proposal_key(number);
            if own_key.as_bytes() != key {
                continue;
            }
            let read = read_proposal(number, &String::from_utf8_lossy(&value));
            let failed = |source| ReadError { place: self.key_place(&own_key), source };
            kept.add(number, read.map_err(failed), now_ms);
        }
        Ok(kept)
    }

    /// Every proposal that is kept, for a change of them.
    pub(super) async fn kept_proposals(
        &self,
        connection: &mut Connection,
        now_ms: u64,
    ) -> Result<Proposals, SetError> {
        self.read_proposals(connection, now_ms).await.map_err(|what| self.not_read(what))
    }

    /// Takes a proposal away, if nobody has done that in between.
    pub(super) async fn remove_proposal(
        &self,
        connection: &mut Connection,
        number: u64,
    ) -> Result<(), SetError> {
        let key = self.options().proposal_key(number);
        let transaction = Txn::new()
            .when(vec![Compare::version(key.clone(), CompareOp::Greater, 0)])
            .and_then(vec![TxnOp::delete(key.clone(), None)]);
        let answer = connection.transact(transaction).await.map_err(|what| SetError::Io {
            what: "cannot remove",
            place: self.key_place(&key),
            source: io::Error::other(what),
        })?;
        if answer.succeeded() { Ok(()) } else { Err(SetError::UnknownProposal(number)) }
    }

    fn not_read(&self, what: String) -> SetError {
        SetError::Io {
            what: "cannot read",
            place: self.key_place(&self.options().proposals_prefix()),
            source: io::Error::other(what),
        }
    }
}
