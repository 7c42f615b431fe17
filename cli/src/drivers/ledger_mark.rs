//! Where the ledger's mark is kept: a file, and etcd where the rules are in etcd.

use super::rules::RulesAt;
use super::{LedgerAt, PostgresAt};
use crate::place;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use windfall_ledger::{Guard, MarkFile, MarkStore};

/// How the ledger's mark is kept, by which a ledger that went back in time is noticed.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerMarkAt {
    /// The file that keeps it, in a folder that is there; several processes on one machine may share it. Default for a
    /// ledger in PostgreSQL: `ledger-mark.json` in `data`. A ledger in a file has a mark only where this names a file,
    /// which must not be in the data directory: a copy of the directory would hold both.
    pub file: Option<PathBuf>,
    /// The pause between two marks, ms. 50 to 60,000; default 500. What was committed since the last mark is lost
    /// unnoticed where a server is lost that had no synchronous standby.
    pub every_ms: u64,
}

impl Default for LedgerMarkAt {
    fn default() -> Self {
        Self { file: None, every_ms: 500 }
    }
}

/// The places of the mark, and what they had at the start.
pub struct LedgerMark {
    /// The guard of the ledger.
    pub guard: Arc<Guard>,
    /// Where the mark is kept.
    pub stores: Vec<Arc<dyn MarkStore>>,
    /// The pause between two marks, ms.
    pub every_ms: u64,
}

impl LedgerMarkAt {
    /// Refuses what cannot be used.
    pub fn check(&self) -> Result<()> {
        if !(50..=60_000).contains(&self.every_ms) {
            bail!("ledger_mark.every_ms is {}, but only 50 to 60000 is allowed", self.every_ms);
        }
        Ok(())
    }

    /// Reads the mark of this ledger; `None` where it has none. A file that cannot be read is an error, and an etcd that
    /// is away is not: until it was read, nothing is paid out, since what the file has may be old. Blocks.
    pub fn open(
        &self,
        data: &Path,
        tenant: &str,
        ledger: &LedgerAt,
        rules: &RulesAt,
    ) -> Result<Option<LedgerMark>> {
        let file = match (ledger, &self.file) {
            (LedgerAt::File, None) => return Ok(None),
            (LedgerAt::File, Some(file)) => {
                if is_below(file, data) {
                    bail!(
                        "ledger_mark.file {} is in the data directory, where a copy of the ledger would bring its own mark \
                         along; keep it elsewhere",
                        file.display()
                    );
                }
                file.clone()
            }
            (LedgerAt::Postgres(PostgresAt { .. }), file) => {
                file.clone().unwrap_or_else(|| place::ledger_mark(data))
            }
        };
        let file = MarkFile::new(file);
        let mut places = vec![Some(file.load().context("the ledger's mark cannot be read")?)];
        let mut stores: Vec<Arc<dyn MarkStore>> = vec![Arc::new(file)];
        if let LedgerAt::Postgres(at) = ledger
            && let Some(etcd) = rules.mark_store(tenant, at)?
        {
            places.push(
                etcd.load()
                    .inspect_err(
                        |error| tracing::warn!(%error, "is read later; until then nothing is paid out"),
                    )
                    .ok(),
            );
            stores.push(etcd);
        }
        for mark in places.iter().flatten().flatten() {
            tracing::info!(%mark, "the ledger must hold this");
        }
        if places.iter().all(|place| matches!(place, Some(None))) {
            tracing::warn!(
                "there is no mark of the ledger yet, or it was lost: the ledger is taken as it is found"
            );
        }
        let guard = Arc::new(Guard::new(places));
        Ok(Some(LedgerMark { guard, stores, every_ms: self.every_ms }))
    }
}

/// Whether a file lies in a folder, also by another name of it.
fn is_below(file: &Path, folder: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let parent = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    real(parent).starts_with(real(folder))
}

/// The mark beside the rules in etcd.
#[cfg(feature = "etcd")]
mod etcd {
    use parking_lot::Mutex;
    use windfall_config::etcd::EtcdValue;
    use windfall_ledger::{Mark, MarkStore, MarkStoreError};

    /// A mark as a value in etcd.
    #[derive(Debug)]
    pub struct EtcdMark {
        value: EtcdValue,
        /// The mark that was read last, and its text, which a person may have written.
        read: Mutex<Option<(Mark, Vec<u8>)>>,
    }

    impl EtcdMark {
        pub fn new(value: EtcdValue) -> Self {
            Self { value, read: Mutex::default() }
        }

        fn failed(&self, what: impl ToString) -> MarkStoreError {
            MarkStoreError { place: self.place(), what: what.to_string() }
        }

        fn text(&self, mark: &Mark) -> Result<Vec<u8>, MarkStoreError> {
            serde_json::to_vec(mark).map_err(|error| self.failed(error))
        }

        /// The text of a mark as it stands in etcd.
        fn text_of(&self, mark: &Mark) -> Result<Vec<u8>, MarkStoreError> {
            let read = self.read.lock().clone();
            match read.filter(|(read, _)| read == mark) {
                Some((_, text)) => Ok(text),
                None => self.text(mark),
            }
        }
    }

    impl MarkStore for EtcdMark {
        fn place(&self) -> String {
            self.value.place()
        }

        fn load(&self) -> Result<Option<Mark>, MarkStoreError> {
            let Some(text) = self.value.get().map_err(|error| self.failed(error))? else { return Ok(None) };
            let mark: Mark = serde_json::from_slice(&text).map_err(|error| {
                self.failed(format!(
                    "it is not understood ({error}); reconcile the ledger, then delete the key"
                ))
            })?;
            *self.read.lock() = Some((mark.clone(), text));
            Ok(Some(mark))
        }

        fn replace(&self, old: Option<&Mark>, new: &Mark) -> Result<bool, MarkStoreError> {
            let (old, text) = (old.map(|old| self.text_of(old)).transpose()?, self.text(new)?);
            self.value.replace(old.as_deref(), text).map_err(|error| self.failed(error))
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use windfall_ledger::ServerPosition;

        #[test]
        fn a_mark_that_a_person_has_written_is_replaced_as_it_stands() {
            let value =
                EtcdValue::new(windfall_config::etcd::EtcdOptions::default(), "ledger-mark/test").unwrap();
            let place = EtcdMark::new(value);
            let mark =
                |beat| Mark { generation: 1, lineage: "a".into(), beat, server: ServerPosition::default() };
            assert_eq!(place.text_of(&mark(7)), place.text(&mark(7)));
            let by_hand = serde_json::to_vec_pretty(&mark(7)).unwrap();
            *place.read.lock() = Some((mark(7), by_hand.clone()));
            assert_eq!(place.text_of(&mark(7)), Ok(by_hand));
            assert_eq!(place.text_of(&mark(8)), place.text(&mark(8)), "another one");
        }
    }
}

impl RulesAt {
    /// The mark of this app's ledger beside the rules, where they are in etcd. Several apps and ledgers may have their rules
    /// under one prefix, so the key names them.
    #[cfg_attr(not(feature = "etcd"), expect(unused_variables, reason = "the driver alone needs them"))]
    fn mark_store(&self, tenant: &str, ledger: &PostgresAt) -> Result<Option<Arc<dyn MarkStore>>> {
        match self {
            Self::Data | Self::File(_) => Ok(None),
            #[cfg(feature = "etcd")]
            Self::Etcd(options) => {
                let name = format!("ledger-mark/{tenant}/{}", ledger.ledger_name()?);
                let value = windfall_config::etcd::EtcdValue::new(options.clone(), &name)?;
                Ok(Some(Arc::new(etcd::EtcdMark::new(value))))
            }
            #[cfg(not(feature = "etcd"))]
            Self::Etcd(_) => super::Driver::Etcd.absent(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_in_a_file_has_a_mark_only_elsewhere() {
        let (data, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let open = |file: Option<PathBuf>| {
            let at = LedgerMarkAt { file, ..LedgerMarkAt::default() };
            at.open(data.path(), "windfall", &LedgerAt::File, &RulesAt::Data)
        };
        assert!(open(None).unwrap().is_none());
        assert!(open(Some(data.path().join("mark"))).is_err());
        let mark = open(Some(elsewhere.path().join("mark"))).unwrap().unwrap();
        assert_eq!(mark.stores.len(), 1);
        std::fs::write(elsewhere.path().join("mark"), "nonsense").unwrap();
        let refused = format!("{:#}", open(Some(elsewhere.path().join("mark"))).err().unwrap());
        assert!(refused.contains("not understood"), "{refused}");
    }

    #[test]
    fn the_pause_between_two_marks_has_a_range() {
        assert!(LedgerMarkAt::default().check().is_ok());
        assert!(LedgerMarkAt { every_ms: 49, ..LedgerMarkAt::default() }.check().is_err());
    }

    #[cfg(all(feature = "etcd", feature = "postgres"))]
    #[test]
    fn each_app_and_each_ledger_has_a_mark_of_its_own_in_etcd_and_a_fail_over_keeps_it() {
        let options = windfall_config::etcd::EtcdOptions {
            endpoints: vec!["http://127.0.0.1:1".into()],
            ..windfall_config::etcd::EtcdOptions::default()
        };
        let rules = RulesAt::Etcd(options);
        let place = |tenant: &str, host: &str, database: &str, schema: &str| {
            let url = format!("postgres://windfall:secret@{host}/{database}");
            let at = PostgresAt { url, schema: schema.into(), failover_without_synchronous_standby: false };
            rules.mark_store(tenant, &at).unwrap().unwrap().place()
        };
        let own = place("rain", "a:5432,b:5432", "money", "windfall");
        assert!(own.contains("ledger-mark/rain/money/windfall") && !own.contains("secret"), "{own}");
        assert_eq!(place("rain", "b:5432", "money", "windfall"), own);
        for other in [
            place("snow", "a", "money", "windfall"),
            place("rain", "a", "coins", "windfall"),
            place("rain", "a", "money", "other"),
        ] {
            assert_ne!(other, own);
        }
    }
}
