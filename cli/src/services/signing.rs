//! The options of signed records.

use super::options::ServiceOptions;
use crate::wiring::{Signing, SigningOptions, Work};
use anyhow::{Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use windfall_consumer::Unsigned;
use windfall_signing::RingUse;

/// How records are signed and verified. Where this is left out, they are not signed, and every record is taken.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SigningAt {
    /// The file of the signing keys.
    pub keys: PathBuf,
    /// The sender whose primary key signs what this process writes; a process that writes records needs one.
    #[serde(default)]
    pub sender: Option<String>,
    /// What becomes of a record without a signature: `refuse` (an event is archived as `unverified`, and an add by the
    /// scheduler's queue is set aside) or `accept`. Default `refuse`.
    #[serde(default)]
    pub unsigned: Unsigned,
    /// The same, by topic: for topics that foreign writers write to.
    #[serde(default)]
    pub topics: BTreeMap<String, Unsigned>,
}

impl ServiceOptions {
    /// Reads the signing keys, if there are any and a process of this work needs them.
    pub fn open_signing(&self, work: Work) -> Result<Option<Signing>> {
        let adds = self.scheduler.add_topics();
        let takes_adds = work.schedules && !adds.is_empty();
        if !work.queues() && !takes_adds {
            return Ok(None);
        }
        let Some(at) = &self.signing else {
            warn_of_unsigned(work, takes_adds);
            return Ok(None);
        };
        let Some(sender) = at.sender.clone() else {
            bail!(
                "the option signing.sender is missing, but this process writes records: name whose key signs them"
            );
        };
        let accepting: Vec<&String> =
            at.topics.iter().filter(|(_, own)| **own == Unsigned::Accept).map(|(name, _)| name).collect();
        if work.consumes && (at.unsigned == Unsigned::Accept || !accepting.is_empty()) {
            tracing::warn!(
                everywhere = at.unsigned == Unsigned::Accept,
                topics = ?accepting,
                "records without a signature are taken: whoever can write to these topics can have a reward granted"
            );
        }
        let is_open =
            |topic: &&String| at.topics.get(*topic).copied().unwrap_or(at.unsigned) == Unsigned::Accept;
        let open: Vec<&String> = adds.iter().filter(is_open).collect();
        if takes_adds && !open.is_empty() {
            tracing::warn!(
                topics = ?open,
                "adds of timers without a signature are taken: whoever can write to these topics can add timers, also such \
                 as send rewards"
            );
        }
        let options = SigningOptions {
            sender,
            tenant: self.tenant.clone(),
            others: self.rewards.apps.clone(),
            unsigned: at.unsigned,
            topics: at.topics.clone(),
            adds,
            used: match (work.consumes, work.serves_grants) {
                (true, _) => RingUse::Consumes,
                (false, true) => RingUse::Replays,
                (false, false) => RingUse::Sends,
            },
        };
        let signing = Signing::open(&at.keys, &options)?;
        if let (true, Some(only)) = (takes_adds, signing.keys().ring().copy_for()) {
            tracing::warn!(
                sender = only,
                "the signing keys are an export: adds of timers by the queue are taken only if this sender's present key has \
                 signed them; give this process the whole file before another key is promoted"
            );
        }
        Ok(Some(signing))
    }
}

/// Says that a process takes or writes records that anybody could have written.
fn warn_of_unsigned(work: Work, has_adds: bool) {
    if has_adds {
        tracing::warn!(
            "adds of timers by the queue are not verified, since the options have no [signing]: whoever can write to the \
             topics of [scheduler.queue] can add timers, also such as send rewards"
        );
    }
    if work.consumes {
        tracing::warn!(
            "records are not verified, since the options have no [signing]: whoever can write to a topic can have a \
             reward granted"
        );
    } else if work.queues() {
        tracing::warn!(
            "records are not signed, since the options have no [signing]: a consumer that verifies records refuses them"
        );
    }
}
