//! How each kind of server is laid out: its files, its ports, the commands that start its parts.

mod etcd;
mod kafka;
mod postgres;
mod redis;
mod rocketmq;
mod s3;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::process::{Identity, Launch};
use crate::ready::Ready;
use crate::{Error, Spec, Tls};

pub(crate) use postgres::promote;
pub(crate) use redis::form_cluster;

/// The user and password of servers that ask for them. They listen on loopback and hold nothing of worth.
const USER: &str = "windfall";
const PASSWORD: &str = "rain";

/// One server: what it is, where it is, and its processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) spec: Spec,
    /// Configuration and data; gone after `down`.
    pub(crate) dir: PathBuf,
    /// More folders of its data, elsewhere.
    #[serde(default)]
    pub(crate) elsewhere: Vec<PathBuf>,
    /// The address that clients are given.
    pub(crate) url: String,
    /// host:port by use; `main` is the one that clients want.
    pub(crate) addresses: BTreeMap<String, String>,
    /// User, password, certificate files.
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) ports: Vec<u16>,
    /// In the order of their start.
    pub(crate) parts: Vec<Part>,
}

/// One process of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) launch: Launch,
    /// Asked in this order after a start.
    pub(crate) ready: Vec<Ready>,
    pub(crate) stop: Stop,
    /// Deleted before a start, when its process is known to be gone.
    #[serde(default)]
    pub(crate) stale: Vec<PathBuf>,
    pub(crate) log: PathBuf,
    /// The offset at which the log of the present start begins.
    pub(crate) log_start: u64,
    pub(crate) process: Option<Identity>,
}

/// How a process is asked to end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stop {
    /// SIGTERM.
    Term,
    /// SIGINT: PostgreSQL's "fast", which does not wait for its clients to leave.
    Int,
}

/// The folders of a server.
pub(crate) struct Place<'a> {
    /// Its own folder.
    pub(crate) dir: PathBuf,
    /// The folder of all logs, kept after `down`.
    pub(crate) logs: &'a Path,
    /// The folder of the jars.
    pub(crate) home: &'a Path,
    pub(crate) name: &'a str,
    /// TLS, for clients.
    pub(crate) tls: Option<&'a Tls>,
}

impl Place<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.file(name);
        fs::write(&path, text).map_err(Error::io(format!("write {}", path.display())))?;
        Ok(path)
    }

    fn make(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.file(name);
        fs::create_dir_all(&path).map_err(Error::io(format!("make {}", path.display())))?;
        Ok(path)
    }

    fn part(&self, name: &str, launch: Launch, ready: Vec<Ready>) -> Part {
        let log = if name == self.name || self.name.starts_with(name) {
            format!("{}.log", self.name)
        } else {
            format!("{}-{name}.log", self.name)
        };
        Part {
            name: name.to_owned(),
            launch,
            ready,
            stop: Stop::Term,
            stale: Vec::new(),
            log: self.logs.join(log),
            log_start: 0,
            process: None,
        }
    }
}

/// Writes a server's files, makes its data and says how it is started.
pub(crate) fn plan(spec: &Spec, place: &Place<'_>) -> Result<Entry, Error> {
    fs::create_dir_all(&place.dir).map_err(Error::io(format!("make {}", place.dir.display())))?;
    fs::create_dir_all(place.logs).map_err(Error::io(format!("make {}", place.logs.display())))?;
    let mut entry = match spec {
        Spec::Kafka(options) => kafka::plan(options, place),
        Spec::RocketMq(options) => rocketmq::plan(options, place),
        Spec::Redis(options) => redis::plan(options, place),
        Spec::RedisCluster => redis::plan_cluster(place),
        Spec::Postgres(options) => postgres::plan(options, place),
        Spec::Etcd => etcd::plan(place),
        Spec::S3 => s3::plan(place),
    }?;
    entry.settings.extend(place.tls.into_iter().flat_map(Tls::settings));
    Ok(entry)
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// `key<equals>value` lines, ours first so that the caller's win.
fn lines(equals: &str, ours: &[(&str, String)], more: &[(String, String)]) -> String {
    let ours = ours.iter().map(|(key, value)| (*key, value.as_str()));
    let more = more.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    ours.chain(more).map(|(key, value)| format!("{key}{equals}{value}\n")).collect()
}

fn table<const N: usize>(entries: [(&str, String); N]) -> BTreeMap<String, String> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
