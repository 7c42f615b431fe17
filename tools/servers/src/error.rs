//! What can go wrong, and what to do about it.

use std::path::PathBuf;

/// Why a server could not be started, found or steered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is none that this crate knows.
    #[error("there is no server '{name}'. Known: {}, each with a number behind it for one more (kafka2)", crate::Spec::NAMES.join(", "))]
    UnknownName {
        /// What was asked for.
        name: String,
    },
    /// The server has not been started in this state folder.
    #[error("{name} is not up in {}: run `./dev up {name}`", .dir.display())]
    NotUp {
        /// The server's name.
        name: String,
        /// The state folder.
        dir: PathBuf,
    },
    /// The server is there and takes plain text.
    #[error("{name} is there and takes plain text: run `./dev down {name}` first")]
    IsPlain {
        /// The server's name.
        name: String,
    },
    /// The server cannot be started with TLS.
    #[error("{name} cannot be started with TLS")]
    NoTls {
        /// The server's name.
        name: String,
    },
    /// A server has no such part, address or setting.
    #[error("{name} has no '{what}'")]
    Absent {
        /// The server's name.
        name: String,
        /// What it lacks.
        what: String,
    },
    /// A program is not installed.
    #[error("{program} is missing. Run `./dev up`, which installs it, or: sudo apt-get install -y {package}")]
    Missing {
        /// The program looked for.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program of this repository is not there.
    #[error("{program} is missing. Run `./dev up s3`, which builds it, or: cargo build -p {program}")]
    NotBuilt {
        /// The program looked for.
        program: &'static str,
    },
    /// The machine's user for PostgreSQL is absent while we run as root.
    #[error(
        "PostgreSQL does not run as root, and there is no user 'postgres' to run it as: sudo apt-get install -y postgresql, or run this as another user"
    )]
    NoPostgresUser,
    /// The jars of a server or a peer could not be fetched.
    #[error(
        "cannot fetch the jars of {what} with Maven (is repo.maven.apache.org or a mirror in ~/.m2/settings.xml reachable?):\n{output}"
    )]
    Fetch {
        /// The server or the peer.
        what: String,
        /// The last lines that Maven wrote.
        output: String,
    },
    /// A program that prepares a server's data failed.
    #[error("{what} failed:\n{output}")]
    Tool {
        /// What was tried.
        what: String,
        /// The last lines it wrote.
        output: String,
    },
    /// The server's process ended while it was waited for.
    #[error("{name} ended while it started. Its log {}:\n{tail}", .log.display())]
    Ended {
        /// Server and part.
        name: String,
        /// Where its whole log is.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// The server did not answer in time. It is left as it is when it was running before.
    #[error("{name} did not answer within {waited_s} s ({last}); WINDFALL_SERVERS_READY_S sets another time. Its log {}:\n{tail}", .log.display())]
    NotReady {
        /// Server and part.
        name: String,
        /// How long it was waited for.
        waited_s: u64,
        /// What the last question to it gave.
        last: String,
        /// Where its whole log is.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// The state file is not one of ours.
    #[error("{} is not a state file of windfall-servers ({reason}). End the servers it may have named, then delete it", .path.display())]
    BadState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody else has held the lock for too long.
    #[error("{} is locked by another start for more than {waited_s} s: wait for it or end it", .path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// How long it was waited for.
        waited_s: u64,
    },
    /// A process did not end though it was killed.
    #[error("{name} (process {pid}) does not end")]
    WillNotEnd {
        /// Server and part.
        name: String,
        /// Its process.
        pid: i32,
    },
    /// A server refused what it was asked to do.
    #[error("{address} refused {what}: {reason}")]
    Refused {
        /// The server's address.
        address: String,
        /// The request.
        what: String,
        /// Its answer.
        reason: String,
    },
    /// RocketMQ would start and refuse every message.
    #[error("the disk of {} is more than {used_percent} % full; RocketMQ takes no messages above 90 %: free some space, or set another state folder", .dir.display())]
    DiskFull {
        /// A folder on that disk.
        dir: PathBuf,
        /// How full it may be.
        used_percent: u64,
    },
    /// A file or a connection failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl Error {
    /// For `map_err`: says what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
