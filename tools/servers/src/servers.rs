//! A set of named servers in a state folder.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::kinds::{self, Entry, Place};
use crate::process::Identity;
use crate::server::{self, Activity, Server};
use crate::state::{self, State};
use crate::{Error, Spec, Tls, lock, ports, say};

/// The environment's variable that names the state file to use.
pub const STATE_VARIABLE: &str = "WINDFALL_SERVERS";

/// Names the folder of jars and of the default state; default `.servers` beside this crate.
const HOME_VARIABLE: &str = "WINDFALL_SERVERS_HOME";

/// A set of named servers whose state is in one folder.
///
/// Several processes may use one folder at once: a lock file makes starts and stops take turns.
#[derive(Clone, Debug)]
pub struct Servers {
    dir: PathBuf,
}

impl Servers {
    /// The set of a state folder, which need not exist yet.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The set that the variable `WINDFALL_SERVERS` names by its state file, else the default one,
    /// `.servers/run` at the project's root.
    #[must_use]
    pub fn from_env() -> Self {
        let named = env::var_os(STATE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        match named.as_deref().map(Path::parent) {
            Some(Some(dir)) => Self::at(dir),
            _ => Self::at(home().join("run")),
        }
    }

    /// [`Servers::from_env`], with these servers running: starts what is missing and waits for it.
    ///
    /// # Errors
    /// See [`Servers::up`].
    pub fn from_env_or_start(names: &[&str]) -> Result<Self, Error> {
        let servers = Self::from_env();
        servers.up(names)?;
        Ok(servers)
    }

    /// The state folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The state file, for the variable `WINDFALL_SERVERS`.
    #[must_use]
    pub fn state_file(&self) -> PathBuf {
        state::file(&self.dir)
    }

    /// Starts what does not run of these servers, side by side, and waits until all are ready. A stopped
    /// or killed server starts again on its data; a frozen one is thawed.
    ///
    /// # Errors
    /// An unknown name, a missing program, a server that did not become ready; the others are started
    /// nevertheless.
    pub fn up(&self, names: &[&str]) -> Result<(), Error> {
        let specs = names
            .iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|name| Ok(((*name).to_owned(), Spec::named(name)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        self.up_specs(specs, None, None)
    }

    /// [`Servers::up`] with TLS: servers that are made take it, by certificates of an authority that this set has. One that
    /// is there already must have been made like this.
    ///
    /// # Errors
    /// [`Error::IsPlain`], [`Error::NoTls`], and see [`Servers::up`].
    pub fn up_by_tls(&self, names: &[&str]) -> Result<(), Error> {
        for name in names {
            if Spec::named(name)? == Spec::S3 {
                return Err(Error::NoTls { name: (*name).to_owned() });
            }
        }
        for server in self.list()? {
            if names.contains(&server.name()) && !server.settings().contains_key("ca") {
                return Err(Error::IsPlain { name: server.name().to_owned() });
            }
        }
        let specs = names.iter().collect::<BTreeSet<_>>().into_iter();
        let specs =
            specs.map(|name| Ok(((*name).to_owned(), Spec::named(name)?))).collect::<Result<_, Error>>()?;
        let tls = Tls::in_folder(&self.dir.join("tls"))?;
        self.up_specs(specs, None, Some(&tls))
    }

    /// Starts one server with its own options under a name of yours, unless it is there already.
    ///
    /// # Errors
    /// See [`Servers::up`].
    pub fn up_as(&self, name: &str, spec: impl Into<Spec>) -> Result<Server, Error> {
        self.up_specs(vec![(name.to_owned(), spec.into())], None, None)?;
        self.server(name)
    }

    pub(crate) fn up_specs(
        &self,
        specs: Vec<(String, Spec)>,
        owner: Option<Identity>,
        tls: Option<&Tls>,
    ) -> Result<(), Error> {
        let _held = self.lock()?;
        let mut state = State::load(&self.dir)?;
        if owner.is_some() {
            state.owner = owner;
        }
        state.save(&self.dir)?;
        let shared = Mutex::new(state);
        let results: Vec<Result<(), Error>> = thread::scope(|scope| {
            let starts: Vec<_> = specs
                .iter()
                .map(|(name, spec)| scope.spawn(|| self.bring_up(name, spec, tls, &shared)))
                .collect();
            let joined = starts.into_iter().map(thread::ScopedJoinHandle::join);
            joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        results.into_iter().collect()
    }

    /// Ends these servers at once, or all when no name is given, and deletes their data. Logs stay.
    ///
    /// # Errors
    /// A process that does not end, a state file that cannot be read or written.
    pub fn down(&self, names: &[&str]) -> Result<(), Error> {
        if !self.dir.exists() {
            return Ok(());
        }
        let _held = self.lock()?;
        let mut state = State::load(&self.dir)?;
        let all: Vec<String> = state.servers.keys().cloned().collect();
        for name in all.iter().filter(|name| names.is_empty() || names.contains(&name.as_str())) {
            let Some(entry) = state.servers.get(name) else { continue };
            server::end_parts(name, &entry.parts)?;
            remove_all(entry)?;
            state.servers.remove(name);
            state.save(&self.dir)?;
        }
        Ok(())
    }

    /// One server of the set, running or not.
    ///
    /// # Errors
    /// [`Error::NotUp`] when it has never been started here.
    pub fn server(&self, name: &str) -> Result<Server, Error> {
        Server::load(self.clone(), name)
    }

    /// Every server of the set, by name.
    ///
    /// # Errors
    /// A state file that cannot be read.
    pub fn list(&self) -> Result<Vec<Server>, Error> {
        State::load(&self.dir)?.servers.keys().map(|name| self.server(name)).collect()
    }

    pub(crate) fn lock(&self) -> Result<fs::File, Error> {
        fs::create_dir_all(&self.dir).map_err(Error::io(format!("make {}", self.dir.display())))?;
        lock::acquire(&self.dir.join("lock"))
    }

    /// Makes the server unless it is there, and starts what of it does not run.
    fn bring_up(
        &self,
        name: &str,
        spec: &Spec,
        tls: Option<&Tls>,
        shared: &Mutex<State>,
    ) -> Result<(), Error> {
        let state = || shared.lock().unwrap_or_else(PoisonError::into_inner);
        let known = state().servers.get(name).cloned();
        let mut entry = match known {
            Some(entry) if entry.dir.is_dir() && may_start(&entry) => entry,
            Some(useless) => {
                server::kill_parts(name, &useless.parts)?;
                remove_all(&useless)?;
                self.make(name, spec, tls)?
            }
            None => self.make(name, spec, tls)?,
        };
        if server::activity_of(&entry.parts) != Activity::Running {
            say(&format!("starting {name}"));
        }
        // Written after each process, so that the next caller knows it even if this one dies here.
        let save = |entry: &Entry| {
            let mut state = state();
            state.servers.insert(name.to_owned(), entry.clone());
            state.save(&self.dir)
        };
        save(&entry)?;
        let started = server::start_parts(name, &mut entry, &save);
        if started.is_err() {
            server::kill_parts(name, &entry.parts)?;
        }
        started
    }

    fn make(&self, name: &str, spec: &Spec, tls: Option<&Tls>) -> Result<Entry, Error> {
        let dir = self.dir.join(name);
        // What a start that was cut short left behind.
        remove(&dir)?;
        let logs = self.dir.join("logs");
        kinds::plan(spec, &Place { dir, logs: &logs, home: &home(), name, tls })
    }
}

/// Whether the ports of a server are its own, or free to take again. After a reboot somebody else may have one.
fn may_start(entry: &Entry) -> bool {
    entry.parts.iter().any(|part| part.process.as_ref().is_some_and(Identity::is_alive))
        || entry.ports.iter().all(|port| ports::is_free(*port))
}

fn remove_all(entry: &Entry) -> Result<(), Error> {
    std::iter::once(&entry.dir).chain(&entry.elsewhere).try_for_each(|dir| remove(dir))
}

/// Deletes a folder; one that is gone is fine.
pub(crate) fn remove(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io { what: format!("delete {}", dir.display()), source: error })
        }
        _ => Ok(()),
    }
}

pub(crate) fn home() -> PathBuf {
    let home = match (env::var_os(HOME_VARIABLE), Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)) {
        (Some(home), _) => PathBuf::from(home),
        (None, Some(root)) if root.is_dir() => root.join(".servers"),
        // The source is elsewhere now; the binary was moved.
        _ => PathBuf::from(".servers"),
    };
    // Servers start in folders of their own.
    std::path::absolute(&home).unwrap_or(home)
}
