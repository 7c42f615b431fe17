//! The live rules: a file or etcd.

#[cfg(not(feature = "etcd"))]
use super::Absent;
use super::{Driver, Reach};
use crate::place;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};
#[cfg(feature = "etcd")]
use windfall_config::etcd::{EtcdOptions, EtcdRulesStore, EtcdSource};
use windfall_config::{ChangeRules, FileSource, LiveRules, RulesStore};
use windfall_contract::Clock;

#[cfg(not(feature = "etcd"))]
type EtcdOptions = Absent;

/// The place of the live rules.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RulesAt {
    /// `rules/rules.toml` in the data directory.
    #[default]
    Data,
    /// This file.
    File(PathBuf),
    /// Keys in etcd; `copy` is set by the process.
    Etcd(Box<EtcdOptions>),
}

/// Follows the live rules until it is closed.
#[derive(Debug)]
pub enum RulesFollower {
    /// A source that follows a file.
    File(FileSource),
    /// A source that follows etcd.
    #[cfg(feature = "etcd")]
    Etcd(EtcdSource),
}

impl RulesFollower {
    /// Stops following.
    pub fn close(self) {
        match self {
            Self::File(source) => source.close(),
            #[cfg(feature = "etcd")]
            Self::Etcd(source) => source.close(),
        }
    }
}

impl RulesAt {
    /// The rules in the etcd at these URLs, below `prefix`; `user` has a name and a password.
    pub fn etcd(urls: Vec<String>, prefix: String, user: Option<(String, String)>, reach: &Reach) -> Self {
        #[cfg(feature = "etcd")]
        let options = EtcdOptions {
            endpoints: urls,
            prefix,
            user,
            tls: reach.tls.clone(),
            plaintext: reach.plaintext,
            ..EtcdOptions::default()
        };
        #[cfg(not(feature = "etcd"))]
        let options = {
            let (_, _, _, _) = (urls, prefix, user, reach);
            Absent
        };
        Self::Etcd(Box::new(options))
    }

    /// Refuses what cannot be opened as it is asked for. Connects to nothing.
    pub fn check(&self) -> Result<()> {
        self.driver().map_or(Ok(()), Driver::check)?;
        #[cfg(feature = "etcd")]
        if let Self::Etcd(options) = self {
            options.check_address()?;
        }
        Ok(())
    }

    /// The driver that they need.
    pub const fn driver(&self) -> Option<Driver> {
        match self {
            Self::Data | Self::File(_) => None,
            Self::Etcd(_) => Some(Driver::Etcd),
        }
    }

    /// The file that holds them, where one does.
    pub fn path(&self, data: &Path) -> Option<PathBuf> {
        match self {
            Self::Data => Some(place::rules(data)),
            Self::File(path) => Some(path.clone()),
            Self::Etcd(_) => None,
        }
    }

    /// Follows them; waits until there are some. `copy` keeps the last good document of etcd for a start without it,
    /// and belongs to one process alone. Blocks.
    pub fn follow(
        &self,
        data: &Path,
        copy: PathBuf,
        known_brokers: Vec<String>,
        clock: &Clock,
    ) -> Result<(LiveRules, RulesFollower)> {
        let clock = clock.clone();
        let now_ms = move || clock.unix_ms();
        let file = |path: &Path| {
            FileSource::open(path, Some(known_brokers.clone()), now_ms.clone())
                .map(|(live, source)| (live, RulesFollower::File(source)))
                .context("the live rules cannot be opened")
        };
        match self {
            Self::Data => file(&place::rules(data)),
            Self::File(path) => file(path),
            Self::Etcd(options) => follow_etcd(options, copy, known_brokers, now_ms)
                .context("the live rules in etcd cannot be opened"),
        }
    }

    /// The rules, as an operator changes them. Its calls block.
    pub fn store(&self, data: &Path, known_brokers: Option<Vec<String>>) -> Result<Box<dyn ChangeRules>> {
        Ok(match self {
            Self::Data => Box::new(RulesStore::new(place::rules(data), known_brokers)),
            Self::File(path) => Box::new(RulesStore::new(path, known_brokers)),
            Self::Etcd(options) => {
                change_etcd(options, known_brokers).context("the live rules in etcd cannot be opened")?
            }
        })
    }
}

#[cfg(feature = "etcd")]
fn follow_etcd(
    options: &EtcdOptions,
    copy: PathBuf,
    known_brokers: Vec<String>,
    now_ms: impl Fn() -> u64 + Send + 'static,
) -> Result<(LiveRules, RulesFollower)> {
    let options = EtcdOptions { copy: Some(copy), ..options.clone() };
    let (live, source) = EtcdSource::open(options, Some(known_brokers), now_ms)?;
    Ok((live, RulesFollower::Etcd(source)))
}

#[cfg(not(feature = "etcd"))]
fn follow_etcd(
    _: &EtcdOptions,
    _: PathBuf,
    _: Vec<String>,
    _: impl Fn() -> u64 + Send + 'static,
) -> Result<(LiveRules, RulesFollower)> {
    Driver::Etcd.absent()
}

#[cfg(feature = "etcd")]
fn change_etcd(options: &EtcdOptions, known_brokers: Option<Vec<String>>) -> Result<Box<dyn ChangeRules>> {
    Ok(Box::new(EtcdRulesStore::new(options.clone(), known_brokers)?))
}

#[cfg(not(feature = "etcd"))]
fn change_etcd(_: &EtcdOptions, _: Option<Vec<String>>) -> Result<Box<dyn ChangeRules>> {
    Driver::Etcd.absent()
}
