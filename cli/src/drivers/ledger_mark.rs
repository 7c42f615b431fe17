//! Where the ledger's mark is kept: a file, and etcd where the rules are in etcd.

use super::rules::RulesAt;
use super::{LedgerAt, PostgresAt};
use crate::place;
use anyhow::{Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use windfall_ledger::{Guard, Mark, MarkFile, MarkStore, MarkStoreError};

/// How long a file is waited for at the start.
const WAIT: Duration = Duration::from_secs(2);
const NAME_MAX_BYTES: usize = 200;

/// How the ledger's mark is kept, by which a ledger that went back in time is noticed.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerMarkAt {
    /// The file that keeps it, in a folder that is there; several processes on one machine may share it. Default for a
    /// ledger in PostgreSQL: `ledger-mark.json` in `data`. A ledger in a file has a mark only where this names a file,
    /// which must not be in the data directory: a copy of the directory would hold both.
    pub file: Option<PathBuf>,
    /// The name of the ledger among all whose rules are in one etcd, by which the mark in etcd is kept. Default: the names
    /// of its database and its schema. Two ledgers with the same names on different servers each need one of their own.
    pub name: Option<String>,
    /// The pause between two marks, ms. 50 to 60,000; default 500, and at least 5,000 in etcd. Where a server without a
    /// synchronous standby is lost, nobody notices the loss of what it committed after the last mark.
    pub every_ms: u64,
}

impl Default for LedgerMarkAt {
    fn default() -> Self {
        Self { file: None, name: None, every_ms: 500 }
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

impl LedgerMark {
    /// Reads each place anew, for a command that keeps no mark itself. What a place that fails had last counts on. Blocks.
    pub fn learn(&self) {
        for (place, store) in self.stores.iter().enumerate() {
            match store.load() {
                Ok(found) => self.guard.learn(place, found),
                Err(error) => tracing::warn!(%error, "what it had when it was read last counts on"),
            }
        }
    }
}

impl LedgerMarkAt {
    /// Refuses what cannot be used.
    pub fn check(&self) -> Result<()> {
        if !(50..=60_000).contains(&self.every_ms) {
            bail!("ledger_mark.every_ms is {}, but only 50 to 60000 is allowed", self.every_ms);
        }
        let is_fit = |name: &str| {
            let all = name.chars().all(|one| one.is_ascii_alphanumeric() || "-_./".contains(one));
            all && (1..=NAME_MAX_BYTES).contains(&name.len())
        };
        if let Some(name) = self.name.as_deref().filter(|name| !is_fit(name)) {
            bail!(
                "ledger_mark.name is {name:?}, but it needs 1 to {NAME_MAX_BYTES} letters, digits and '-', '_', '.', '/'"
            );
        }
        Ok(())
    }

    /// Reads the mark of this ledger; `None` where it has none. A file that is not understood is an error. A file that cannot
    /// be read, as in a folder that is not mounted yet, and an etcd that is away, are not: until each was read, nothing is
    /// paid out, since what the other one has may be old. Blocks.
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
        let file: Arc<dyn MarkStore> = Arc::new(MarkFile::new(file));
        let mut places = vec![match load_soon(&file) {
            Err(error) if !error.may_pass => return Err(error.into()),
            read => later(read),
        }];
        let mut stores = vec![file];
        if let LedgerAt::Postgres(at) = ledger
            && let Some(etcd) = rules.mark_store(tenant, at, self.name.as_deref())?
        {
            places.push(later(etcd.load()));
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

/// What was read of a place; `None` where it is to be read later.
fn later(read: Result<Option<Mark>, MarkStoreError>) -> Option<Option<Mark>> {
    read.inspect_err(|error| tracing::warn!(%error, "is read later; until then nothing is paid out")).ok()
}

/// Reads a place on a thread of its own, which is not waited for longer than [`WAIT`]: a network folder whose server is away
/// answers when that is back. The thread ends with its one call.
fn load_soon(store: &Arc<dyn MarkStore>) -> Result<Option<Mark>, MarkStoreError> {
    let failed = |what: String| MarkStoreError { place: store.place(), what, may_pass: true };
    let (answer, answered) = sync_channel(1);
    let own = Arc::clone(store);
    let read = move || {
        if answer.send(own.load()).is_err() {
            tracing::debug!("the ledger's mark was read too late for the start");
        }
    };
    std::thread::Builder::new()
        .name("ledger-mark".into())
        .spawn(read)
        .map_err(|error| failed(error.to_string()))?;
    answered
        .recv_timeout(WAIT)
        .unwrap_or_else(|_| Err(failed(format!("no answer within {} ms", WAIT.as_millis()))))
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

    /// The pause between two marks: each one is a revision that etcd keeps until it is compacted.
    const PAUSE_MS: u64 = 5_000;

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
            MarkStoreError { place: self.place(), what: what.to_string(), may_pass: true }
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

        fn pause_ms(&self) -> u64 {
            PAUSE_MS
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
    fn mark_store(
        &self,
        tenant: &str,
        ledger: &PostgresAt,
        name: Option<&str>,
    ) -> Result<Option<Arc<dyn MarkStore>>> {
        match self {
            Self::Data | Self::File(_) => Ok(None),
            #[cfg(feature = "etcd")]
            Self::Etcd(options) => {
                let name = match name {
                    Some(name) => format!("ledger-mark/{tenant}/{name}"),
                    None => format!("ledger-mark/{tenant}/{}", ledger.ledger_name()?),
                };
                let value = windfall_config::etcd::EtcdValue::new((**options).clone(), &name)?;
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
    fn a_file_that_cannot_be_read_yet_stops_payouts_and_not_the_start() {
        let (data, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = elsewhere.path().join("not mounted yet");
        let at = LedgerMarkAt { file: Some(folder.join("mark")), ..LedgerMarkAt::default() };
        let mark = at.open(data.path(), "windfall", &LedgerAt::File, &RulesAt::Data).unwrap().unwrap();
        assert!(mark.guard.stops_payouts() && !mark.guard.is_back());
    }

    /// A place whose call does not end before the test does.
    #[derive(Debug)]
    struct Hung(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

    impl MarkStore for Hung {
        fn place(&self) -> String {
            "hung".into()
        }

        fn load(&self) -> Result<Option<Mark>, MarkStoreError> {
            self.0.lock().unwrap().recv().ok();
            Ok(None)
        }

        fn replace(&self, _old: Option<&Mark>, _new: &Mark) -> Result<bool, MarkStoreError> {
            Ok(true)
        }
    }

    #[test]
    fn a_place_that_hangs_does_not_hold_up_the_start() {
        let (go, gone) = sync_channel(1);
        let hung: Arc<dyn MarkStore> = Arc::new(Hung(std::sync::Mutex::new(gone)));
        let failed = load_soon(&hung).unwrap_err();
        assert!(failed.may_pass && failed.what.contains("no answer"), "{failed}");
        drop(go);
    }

    #[test]
    fn the_pause_between_two_marks_and_the_name_of_the_ledger_have_a_range() {
        assert!(LedgerMarkAt::default().check().is_ok());
        assert!(LedgerMarkAt { every_ms: 49, ..LedgerMarkAt::default() }.check().is_err());
        for (name, is_fit) in [("money-2/eu", true), ("", false), ("a b", false), (&*"n".repeat(201), false)]
        {
            let at = LedgerMarkAt { name: Some(name.into()), ..LedgerMarkAt::default() };
            assert_eq!(at.check().is_ok(), is_fit, "{name}");
        }
    }

    #[cfg(all(feature = "etcd", feature = "postgres"))]
    #[test]
    fn each_app_and_each_ledger_has_a_mark_of_its_own_in_etcd_and_a_fail_over_keeps_it() {
        let options = windfall_config::etcd::EtcdOptions {
            endpoints: vec!["http://127.0.0.1:1".into()],
            ..windfall_config::etcd::EtcdOptions::default()
        };
        let rules = RulesAt::Etcd(Box::new(options));
        let place = |tenant: &str, host: &str, database: &str, schema: &str| {
            let url = format!("postgres://windfall:secret@{host}/{database}");
            let at = PostgresAt {
                url,
                schema: schema.into(),
                tls: None,
                plaintext: true,
                failover_without_synchronous_standby: false,
            };
            rules.mark_store(tenant, &at, None).unwrap().unwrap().place()
        };
        let named = PostgresAt {
            url: "postgres://windfall@c/money".into(),
            schema: "windfall".into(),
            tls: None,
            plaintext: true,
            failover_without_synchronous_standby: false,
        };
        let named = rules.mark_store("rain", &named, Some("money-of-c")).unwrap().unwrap().place();
        assert!(named.contains("ledger-mark/rain/money-of-c"), "{named}");
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
