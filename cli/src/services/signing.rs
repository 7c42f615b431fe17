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
    /// What becomes of a record without a signature: `refuse` (it is archived as `unverified`) or `accept`. Default
    /// `refuse`.
    #[serde(default)]
    pub unsigned: Unsigned,
    /// The same, by topic: for topics that foreign writers write to.
    #[serde(default)]
    pub topics: BTreeMap<String, Unsigned>,
}

impl ServiceOptions {
    /// Reads the signing keys, if there are any and a process of this work needs them.
    pub fn open_signing(&self, work: Work) -> Result<Option<Signing>> {
        if !work.queues() {
            return Ok(None);
        }
        let Some(at) = &self.signing else {
            warn_of_unsigned(work);
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
        let options = SigningOptions {
            sender,
            tenant: self.tenant.clone(),
            others: self.rewards.apps.clone(),
            unsigned: at.unsigned,
            topics: at.topics.clone(),
            used: match (work.consumes, work.serves_grants) {
                (true, _) => RingUse::Consumes,
                (false, true) => RingUse::Replays,
                (false, false) => RingUse::Sends,
            },
        };
        Signing::open(&at.keys, &options).map(Some)
    }
}

/// Says that a process takes or writes records that anybody could have written.
fn warn_of_unsigned(work: Work) {
    if work.consumes {
        tracing::warn!(
            "records are not verified, since the options have no [signing]: whoever can write to a topic can have a \
             reward granted"
        );
    } else {
        tracing::warn!(
            "records are not signed, since the options have no [signing]: a consumer that verifies records refuses them"
        );
    }
}
