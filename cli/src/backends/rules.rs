//! Where the live rules are: a file in the data directory, or etcd.

use super::Backends;
use crate::data::place;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use windfall_config::etcd::{EtcdOptions, EtcdRulesStore, EtcdSource};
use windfall_config::{ChangeRules, FileSource, LiveRules, RulesStore};

/// Follows the live rules until it is closed.
#[derive(Debug)]
pub enum RulesFollower {
    /// In a file.
    File(FileSource),
    /// In etcd.
    Etcd(EtcdSource),
}

impl RulesFollower {
    /// Ends the following.
    pub fn close(self) {
        match self {
            Self::File(source) => source.close(),
            Self::Etcd(source) => source.close(),
        }
    }
}

impl Backends {
    /// Follows the rules. `copy` keeps the last good document of etcd, for a start without it; a file a process.
    /// Blocks.
    pub fn follow_rules(
        &self,
        data: &Path,
        copy: PathBuf,
        known_brokers: Vec<String>,
        clock: impl Fn() -> u64 + Send + 'static,
    ) -> Result<(LiveRules, RulesFollower)> {
        let known = Some(known_brokers);
        match &self.etcd {
            Some(urls) => {
                let options = EtcdOptions { copy: Some(copy), ..self.etcd_options(urls) };
                EtcdSource::open(options, known, clock)
                    .map(|(live, source)| (live, RulesFollower::Etcd(source)))
                    .context("the live rules in etcd cannot be opened")
            }
            None => FileSource::open(&place::rules(data), known, clock)
                .map(|(live, source)| (live, RulesFollower::File(source)))
                .context("the live rules cannot be opened"),
        }
    }

    /// The rules, as an operator changes them. Its calls block.
    pub fn rules_store(&self, data: &Path) -> Result<Box<dyn ChangeRules>> {
        Ok(match &self.etcd {
            Some(urls) => Box::new(
                EtcdRulesStore::new(self.etcd_options(urls), None)
                    .context("the live rules in etcd cannot be opened")?,
            ),
            None => Box::new(RulesStore::new(place::rules(data), None)),
        })
    }

    fn etcd_options(&self, urls: &str) -> EtcdOptions {
        EtcdOptions {
            endpoints: urls.split(',').map(str::to_owned).collect(),
            prefix: format!("/windfall-{}/rules/", self.run),
            ..EtcdOptions::default()
        }
    }
}
