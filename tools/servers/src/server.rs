//! One server: where it is, and what one does to it.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::kinds::{self, Entry, Part, Stop};
use crate::process::{self, Identity, POLL};
use crate::rocketmq_admin::{self, TopicKind};
use crate::servers::remove;
use crate::state::State;
use crate::{Error, PostgresOrigin, Servers, Spec, Tls, say};

/// How long a server may take to become ready, in seconds. Default [`READY_TIMEOUT_S`].
const READY_VARIABLE: &str = "WINDFALL_SERVERS_READY_S";
/// Shared machines are slow: Kafka's 3 s have been 24.
const READY_TIMEOUT_S: u64 = 120;
/// RocketMQ takes 16 s to end in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long PostgreSQL may take to end in order when its data are thrown away anyhow.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const LOG_LINES: usize = 30;

/// The state of a server's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// All run.
    Running,
    /// None has ended, and one is frozen.
    Frozen,
    /// One has ended.
    Stopped,
}

/// One server of a set, as it was when this value was made; its processes are looked up at each call.
#[derive(Clone, Debug)]
pub struct Server {
    servers: Servers,
    name: String,
    entry: Entry,
    /// The parts that a call acts on; all parts when none is named.
    part: Option<String>,
}

impl Server {
    pub(crate) fn load(servers: Servers, name: &str) -> Result<Self, Error> {
        let entry = entry_of(&State::load(servers.dir())?, &servers, name)?;
        Ok(Self { servers, name: name.to_owned(), entry, part: None })
    }

    /// Its name in the set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is and how it was started.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.entry.spec
    }

    /// What its client is given: bootstrap servers (Kafka), `host:port` of the gRPC proxy (RocketMQ), a
    /// URL with user and password (Redis, PostgreSQL, etcd), several with commas between (Redis Cluster).
    #[must_use]
    pub fn url(&self) -> &str {
        &self.entry.url
    }

    /// host:port by use. `main` is there always; Kafka has `tls`, `sasl` and `sasl_tls` where asked for,
    /// RocketMQ `namesrv` and `broker`, a Redis Cluster `node1` to `node3`.
    #[must_use]
    pub fn addresses(&self) -> &BTreeMap<String, String> {
        &self.entry.addresses
    }

    /// One of [`Server::addresses`].
    ///
    /// # Errors
    /// [`Error::Absent`].
    pub fn address(&self, of: &str) -> Result<&str, Error> {
        self.entry.addresses.get(of).map(String::as_str).ok_or_else(|| self.absent(of))
    }

    /// `user`, `password`, `database` (PostgreSQL), and with TLS `ca` (the file of its authority, PEM), `client_cert` and
    /// `client_key`, where it has them.
    ///
    /// # Errors
    /// [`Error::Absent`].
    pub fn setting(&self, key: &str) -> Result<&str, Error> {
        self.entry.settings.get(key).map(String::as_str).ok_or_else(|| self.absent(key))
    }

    /// All its settings.
    #[must_use]
    pub fn settings(&self) -> &BTreeMap<String, String> {
        &self.entry.settings
    }

    /// Its log files, one a process.
    #[must_use]
    pub fn logs(&self) -> Vec<PathBuf> {
        self.entry.parts.iter().map(|part| part.log.clone()).collect()
    }

    /// The same server, where the calls that steer mean one process of it: `namesrv`, `broker` or `proxy`
    /// of RocketMQ, `node1` to `node3` of a Redis Cluster.
    ///
    /// # Errors
    /// [`Error::Absent`].
    pub fn part(&self, name: &str) -> Result<Self, Error> {
        if !self.entry.parts.iter().any(|part| part.name == name) {
            return Err(self.absent(name));
        }
        Ok(Self { part: Some(name.to_owned()), ..self.clone() })
    }

    /// The state of its processes.
    ///
    /// # Errors
    /// A state file that cannot be read, or that no longer has it.
    pub fn activity(&self) -> Result<Activity, Error> {
        Ok(activity_of(&self.parts_now()?))
    }

    /// The process ids that run now.
    ///
    /// # Errors
    /// See [`Server::activity`].
    pub fn pids(&self) -> Result<Vec<i32>, Error> {
        let parts = self.parts_now()?;
        Ok(parts.iter().filter_map(alive).map(|process| process.pid).collect())
    }

    /// Stops its processes where they are (SIGSTOP): connections stay open, nothing answers.
    ///
    /// # Errors
    /// See [`Server::activity`].
    pub fn freeze(&self) -> Result<(), Error> {
        self.parts_now()?.iter().filter_map(alive).for_each(Identity::freeze);
        Ok(())
    }

    /// Lets frozen processes go on (SIGCONT).
    ///
    /// # Errors
    /// See [`Server::activity`].
    pub fn thaw(&self) -> Result<(), Error> {
        self.parts_now()?.iter().filter_map(alive).for_each(Identity::thaw);
        Ok(())
    }

    /// Ends its processes at once (SIGKILL), frozen or not, and waits until they are gone.
    ///
    /// # Errors
    /// [`Error::WillNotEnd`], and see [`Server::activity`].
    pub fn kill(&self) -> Result<(), Error> {
        kill_parts(&self.name, &self.parts_now()?)
    }

    /// Ends its processes in order, the last started first; kills one that has not ended after 60 s.
    ///
    /// # Errors
    /// [`Error::WillNotEnd`], and see [`Server::activity`].
    pub fn stop(&self) -> Result<(), Error> {
        for part in self.parts_now()?.iter().rev() {
            let signal = match part.stop {
                Stop::Term => Signal::TERM,
                Stop::Int => Signal::INT,
            };
            if let Some(process) = alive(part) {
                process.stop(&title(&self.name, part), signal, STOP_TIMEOUT)?;
            }
        }
        Ok(())
    }

    /// Starts what does not run of it, on the same ports and data, and waits until it is ready.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::NotReady`], and see [`Server::activity`].
    pub fn start(&self) -> Result<(), Error> {
        self.start_without_waiting()?;
        self.wait_ready()
    }

    /// [`Server::start`] without the wait: clients find their own way back meanwhile. Parts that need
    /// another part of the server first still wait for that one.
    ///
    /// # Errors
    /// See [`Server::start`].
    pub fn start_without_waiting(&self) -> Result<(), Error> {
        let _held = self.servers.lock()?;
        let mut state = State::load(self.servers.dir())?;
        let mut entry = entry_of(&state, &self.servers, &self.name)?;
        let mut save = |entry: &Entry| {
            state.servers.insert(self.name.clone(), entry.clone());
            state.save(self.servers.dir())
        };
        let last = entry.parts.iter().rposition(|part| self.means(part)).unwrap_or(0);
        for index in 0..entry.parts.len() {
            if self.means(&entry.parts[index]) && start_part(&mut entry.parts[index])? {
                save(&entry)?;
                if index < last {
                    wait_part(&self.name, &entry.parts[index])?;
                }
            }
        }
        Ok(())
    }

    /// Kills it and starts it again.
    ///
    /// # Errors
    /// See [`Server::start`].
    pub fn restart(&self) -> Result<(), Error> {
        self.kill()?;
        self.start()
    }

    /// Waits until it answers in its own protocol.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::NotReady`].
    pub fn wait_ready(&self) -> Result<(), Error> {
        for part in self.parts_now()? {
            wait_part(&self.name, &part)?;
        }
        if self.entry.spec == Spec::RedisCluster && self.part.is_none() {
            kinds::form_cluster(&self.entry)?;
        }
        Ok(())
    }

    /// Promotes a standby of PostgreSQL that runs, whatever it has, and waits until it takes writes.
    ///
    /// # Errors
    /// [`Error::Absent`] for other kinds, and [`Error::Tool`] with what `pg_ctl` says.
    pub fn promote(&self) -> Result<(), Error> {
        let is_standby = matches!(
            &self.entry.spec,
            Spec::Postgres(options) if matches!(options.origin, PostgresOrigin::StandbyOf(_))
        );
        let part = self.entry.parts.first().filter(|_| is_standby);
        part.map_or_else(|| Err(self.absent("promote")), |part| kinds::promote(&part.launch))
    }

    /// Makes a topic of RocketMQ, or changes it, with `queues` queues (1 to 65,535); takes milliseconds.
    /// A proxy that was asked for the topic before may say for one second more that there is none.
    ///
    /// # Errors
    /// [`Error::Refused`] with the broker's reason, [`Error::Io`] when it does not answer.
    pub fn create_topic(&self, name: &str, kind: TopicKind, queues: u16) -> Result<(), Error> {
        rocketmq_admin::create_topic(self.socket("broker")?, self.socket("namesrv")?, name, kind, queues)
    }

    /// Whether RocketMQ's name server knows who has this topic.
    ///
    /// # Errors
    /// [`Error::Io`] when it does not answer.
    pub fn has_topic(&self, name: &str) -> Result<bool, Error> {
        match rocketmq_admin::broker_of(self.socket("namesrv")?, name) {
            Ok(_) => Ok(true),
            Err(Error::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a consumer group of RocketMQ for topics of one kind: FIFO groups receive in order.
    ///
    /// # Errors
    /// See [`Server::create_topic`].
    pub fn create_group(&self, name: &str, kind: TopicKind) -> Result<(), Error> {
        rocketmq_admin::create_group(self.socket("broker")?, name, kind == TopicKind::Fifo)
    }

    fn socket(&self, of: &str) -> Result<SocketAddr, Error> {
        self.address(of)?.parse().map_err(|_| self.absent(of))
    }

    fn means(&self, part: &Part) -> bool {
        self.part.as_ref().is_none_or(|name| *name == part.name)
    }

    fn parts_now(&self) -> Result<Vec<Part>, Error> {
        let entry = entry_of(&State::load(self.servers.dir())?, &self.servers, &self.name)?;
        Ok(entry.parts.into_iter().filter(|part| self.means(part)).collect())
    }

    fn absent(&self, what: &str) -> Error {
        Error::Absent { name: self.name.clone(), what: what.to_owned() }
    }
}

/// A server of its own, which ends, with its data, when this value is dropped.
///
/// One whose process died without dropping it is ended by the next [`Private::start`] or `down` of anybody
/// on the machine who runs as the same user.
#[derive(Debug)]
pub struct Private {
    server: Server,
    // Dropped after the server is killed.
    dir: TempDir,
}

impl Private {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    /// See [`Servers::up`].
    pub fn start(spec: impl Into<Spec>) -> Result<Self, Error> {
        Self::start_as(spec.into(), None)
    }

    /// [`Private::start`] with TLS. An S3 server cannot.
    ///
    /// # Errors
    /// [`Error::NoTls`], and see [`Servers::up`].
    pub fn start_by_tls(spec: impl Into<Spec>, tls: &Tls) -> Result<Self, Error> {
        let spec = spec.into();
        if spec == Spec::S3 {
            return Err(Error::NoTls { name: spec.name().to_owned() });
        }
        Self::start_as(spec, Some(tls))
    }

    fn start_as(spec: Spec, tls: Option<&Tls>) -> Result<Self, Error> {
        Self::sweep()?;
        let base = base();
        let failed = || Error::io(format!("make a folder in {}", base.display()));
        // PostgreSQL's user must be able to enter.
        let open = fs::Permissions::from_mode(0o755);
        fs::create_dir_all(&base).map_err(failed())?;
        let dir = tempfile::Builder::new().permissions(open).tempdir_in(&base).map_err(failed())?;
        let servers = Servers::at(dir.path());
        let name = spec.name().to_owned();
        match servers.up_specs(vec![(name.clone(), spec)], Identity::own(), tls) {
            Ok(()) => Ok(Self { server: servers.server(&name)?, dir }),
            Err(error) => {
                // The error says what of the log matters; the processes must not stay.
                servers.down(&[])?;
                Err(error)
            }
        }
    }

    /// The server's folder, gone with this value.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Ends the private servers whose owners are gone.
    ///
    /// # Errors
    /// A process that does not end, a folder that cannot be deleted.
    pub fn sweep() -> Result<(), Error> {
        for entry in fs::read_dir(base()).into_iter().flatten().flatten() {
            let dir = entry.path();
            // Without a readable state there is nothing to end, or its owner is making it now.
            let Ok(state) = State::load(&dir) else { continue };
            if state.owner.as_ref().is_some_and(|owner| !owner.is_alive()) {
                say(&format!("ending what a dead process left in {}", dir.display()));
                Servers::at(&dir).down(&[])?;
                remove(&dir)?;
            }
        }
        Ok(())
    }
}

impl Deref for Private {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if let Err(error) = Servers::at(self.dir.path()).down(&[]) {
            say(&format!("cannot end {}: {error}", self.server.name));
        }
    }
}

fn base() -> PathBuf {
    env::temp_dir().join(format!("windfall-servers-{}", rustix::process::geteuid().as_raw()))
}

fn entry_of(state: &State, servers: &Servers, name: &str) -> Result<Entry, Error> {
    state
        .servers
        .get(name)
        .cloned()
        .ok_or_else(|| Error::NotUp { name: name.to_owned(), dir: servers.dir().to_owned() })
}

/// Starts the parts that do not run, each after those before it are ready, and waits for all.
pub(crate) fn start_parts(
    name: &str,
    entry: &mut Entry,
    save: &dyn Fn(&Entry) -> Result<(), Error>,
) -> Result<(), Error> {
    for index in 0..entry.parts.len() {
        if start_part(&mut entry.parts[index])? {
            save(entry)?;
        }
        wait_part(name, &entry.parts[index])?;
    }
    if entry.spec == Spec::RedisCluster {
        kinds::form_cluster(entry)?;
    }
    Ok(())
}

/// True when it was started; one that runs is left, one that is frozen thawed.
fn start_part(part: &mut Part) -> Result<bool, Error> {
    if let Some(process) = alive(part) {
        process.thaw();
        return Ok(false);
    }
    for file in part.stale.iter().filter(|file| file.exists()) {
        fs::remove_file(file).map_err(Error::io(format!("delete {}", file.display())))?;
    }
    part.log_start = fs::metadata(&part.log).map_or(0, |metadata| metadata.len());
    part.process = Some(part.launch.spawn(&part.log)?);
    Ok(true)
}

fn wait_part(name: &str, part: &Part) -> Result<(), Error> {
    let waited_s =
        env::var(READY_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(READY_TIMEOUT_S);
    let end = Instant::now() + Duration::from_secs(waited_s);
    for ready in &part.ready {
        while let Err(last) = ready.check(&part.log, part.log_start) {
            let (name, log) = (title(name, part), part.log.clone());
            if alive(part).is_none() {
                return Err(Error::Ended { name, tail: tail(&log), log });
            }
            if Instant::now() >= end {
                return Err(Error::NotReady { name, waited_s, last, tail: tail(&log), log });
            }
            thread::sleep(POLL);
        }
    }
    Ok(())
}

pub(crate) fn kill_parts(name: &str, parts: &[Part]) -> Result<(), Error> {
    for part in parts {
        if let Some(process) = alive(part) {
            process.kill(&title(name, part))?;
        }
    }
    Ok(())
}

/// Ends a server that is not needed any more: at once, except PostgreSQL, which would otherwise leave shared memory
/// behind.
pub(crate) fn end_parts(name: &str, parts: &[Part]) -> Result<(), Error> {
    for part in parts {
        if let (Stop::Int, Some(process)) = (part.stop, alive(part)) {
            process.stop(&title(name, part), Signal::INT, END_TIMEOUT)?;
        }
    }
    kill_parts(name, parts)
}

pub(crate) fn activity_of(parts: &[Part]) -> Activity {
    let all: Vec<_> = parts
        .iter()
        .map(|part| part.process.as_ref().map_or(process::Activity::Gone, Identity::activity))
        .collect();
    if all.contains(&process::Activity::Gone) {
        Activity::Stopped
    } else if all.contains(&process::Activity::Frozen) {
        Activity::Frozen
    } else {
        Activity::Running
    }
}

fn alive(part: &Part) -> Option<&Identity> {
    part.process.as_ref().filter(|process| process.is_alive())
}

fn title(name: &str, part: &Part) -> String {
    if name == part.name { name.to_owned() } else { format!("{name} ({})", part.name) }
}

fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    process::last_lines(&text, LOG_LINES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Launch;

    fn sleeper(dir: &Path) -> Part {
        let launch = Launch {
            program: PathBuf::from("/bin/sleep"),
            args: vec!["600".to_owned()],
            env: Vec::new(),
            user: None,
            folder: PathBuf::from("/"),
        };
        let mut part = Part {
            name: "etcd".to_owned(),
            launch,
            ready: Vec::new(),
            stop: Stop::Term,
            stale: vec![dir.join("stale")],
            log: dir.join("log"),
            log_start: 0,
            process: None,
        };
        assert!(start_part(&mut part).unwrap());
        part
    }

    fn entry(dir: &Path, part: Part) -> Entry {
        Entry {
            spec: Spec::Etcd,
            dir: dir.join("etcd"),
            elsewhere: Vec::new(),
            url: String::new(),
            addresses: BTreeMap::new(),
            settings: BTreeMap::new(),
            ports: Vec::new(),
            parts: vec![part],
        }
    }

    #[test]
    fn what_a_dead_process_left_is_ended_and_what_a_living_one_has_is_not() {
        fs::create_dir_all(base()).unwrap();
        let owned = |owner: Option<Identity>| {
            let dir = tempfile::tempdir_in(base()).unwrap().keep();
            let part = sleeper(&dir);
            let process = part.process.clone().unwrap();
            let mut state = State::new(owner);
            state.servers.insert("etcd".to_owned(), entry(&dir, part));
            state.save(&dir).unwrap();
            (dir, process)
        };
        let gone = sleeper(tempfile::tempdir().unwrap().path()).process.unwrap();
        gone.kill("owner").unwrap();
        let (left, orphan) = owned(Some(gone));
        let (kept, ours) = owned(Identity::own());
        Private::sweep().unwrap();
        assert!(!orphan.is_alive() && !left.exists());
        assert!(ours.is_alive() && kept.exists());
        Servers::at(&kept).down(&[]).unwrap();
        assert!(!ours.is_alive());
        remove(&kept).unwrap();
    }

    #[test]
    fn a_server_is_steered_by_its_state_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let part = sleeper(dir.path());
        let first = part.process.clone().unwrap();
        let mut state = State::new(None);
        state.servers.insert("etcd".to_owned(), entry(dir.path(), part));
        state.save(dir.path()).unwrap();
        let server = Servers::at(dir.path()).server("etcd").unwrap();
        assert_eq!(server.activity().unwrap(), Activity::Running);
        server.stop().unwrap();
        assert_eq!(server.activity().unwrap(), Activity::Stopped);
        fs::write(dir.path().join("stale"), "left").unwrap();
        server.start().unwrap();
        assert!(!dir.path().join("stale").exists());
        assert_ne!(server.pids().unwrap(), [first.pid]);
        // A second start of what runs changes nothing.
        let pids = server.pids().unwrap();
        server.start().unwrap();
        assert_eq!(server.pids().unwrap(), pids);
        server.kill().unwrap();
    }
}
