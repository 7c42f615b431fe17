//! PostgreSQL, run as a user of its own where this process is root.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use super::{Entry, PASSWORD, Place, Stop, USER, lines, loopback, table};
use crate::process::{Launch, User, find_program};
use crate::ready::Ready;
use crate::spec::{PostgresOptions, PostgresOrigin};
use crate::{Error, Spec, Tls, ports};

/// The name of a standby at the server that it follows.
const STANDBY: &str = "standby";
/// Where Debian keeps the programs that it does not put into PATH.
const DEBIAN: &str = "/usr/lib/postgresql";

pub(super) fn plan(options: &PostgresOptions, place: &Place<'_>) -> Result<Entry, Error> {
    let initdb = find_program("initdb", "postgresql", &debian_folders())?;
    // A link in PATH leads to the folder where its fellows are.
    let initdb = initdb.canonicalize().map_err(Error::io(format!("follow {}", initdb.display())))?;
    let user = own_user()?;
    let dir = reachable(place, user)?;
    let data = dir.join("data");
    make_for(&data, user)?;
    let launch = |program: PathBuf, args: &[&str]| Launch {
        program,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: vec![("LC_ALL".to_owned(), "C".to_owned())],
        user,
        folder: data.clone(),
    };
    let data_arg = data.display().to_string();
    match &options.origin {
        PostgresOrigin::Empty => {
            let password = dir.join("password");
            fs::write(&password, PASSWORD).map_err(Error::io(format!("write {}", password.display())))?;
            let password_arg = password.display().to_string();
            let args = ["-D", &data_arg, "-U", USER, "--pwfile", &password_arg, "-A", "scram-sha-256"];
            let args =
                [&args[..], &["-E", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"]].concat();
            launch(initdb.clone(), &args).run("making PostgreSQL's data with initdb")?;
        }
        PostgresOrigin::BackupOf(url) | PostgresOrigin::StandbyOf(url) => {
            let backup = initdb.with_file_name("pg_basebackup");
            let args = ["-D", &data_arg, "-d", url, "-X", "stream", "-c", "fast", "--no-sync", "-w"];
            launch(backup, &args).run("copying PostgreSQL's data with pg_basebackup")?;
        }
    }

    let chosen = ports::free(1)?;
    let address = loopback(chosen[0]);
    let ours = [
        ("port", chosen[0].to_string()),
        ("listen_addresses", "'127.0.0.1'".to_owned()),
        ("unix_socket_directories", "''".to_owned()),
        ("shared_buffers", "'128MB'".to_owned()),
        // In the data folder, so that nothing of a killed server stays in /dev/shm.
        ("dynamic_shared_memory_type", "'mmap'".to_owned()),
        ("max_wal_size", "'1GB'".to_owned()),
        // What production needs and a throw-away server must not fake: a commit is on the disk.
        ("fsync", "on".to_owned()),
        ("synchronous_commit", "on".to_owned()),
    ];
    let mut ours = Vec::from(ours);
    if place.tls.is_some() {
        let file = |name: &str| format!("'{name}'");
        ours.push(("ssl", "on".to_owned()));
        ours.extend([
            ("ssl_cert_file", file("tls.pem")),
            ("ssl_key_file", file("tls.key")),
            ("ssl_ca_file", file("tls-ca.pem")),
        ]);
    }
    if let PostgresOrigin::StandbyOf(url) = &options.origin {
        ours.push(("primary_conninfo", format!("'{url}?application_name={STANDBY}'")));
        let signal = data.join("standby.signal");
        let make = || {
            fs::write(&signal, "")?;
            user.map_or(Ok(()), |user| chown(&signal, Some(user.uid), Some(user.gid)))
        };
        make().map_err(Error::io(format!("write {}", signal.display())))?;
    }
    // Ours alone count, not those of the server that was copied.
    let config = data.join("postgresql.auto.conf");
    fs::write(&config, lines(" = ", &ours, &options.settings))
        .map_err(Error::io(format!("write {}", config.display())))?;
    if let Some(tls) = place.tls {
        protect(tls, &data, user)?;
    }
    let ready = Ready::Postgres { address, user: USER.to_owned() };
    let mut part =
        place.part("postgres", launch(initdb.with_file_name("postgres"), &["-D", &data_arg]), vec![ready]);
    part.stop = Stop::Int;
    // PostgreSQL takes a dead process that nobody has reaped (a container's first process may not) for
    // one that still runs.
    part.stale = vec![data.join("postmaster.pid")];
    Ok(Entry {
        spec: Spec::Postgres(options.clone()),
        dir,
        elsewhere: Vec::new(),
        url: format!(
            "postgres://{USER}:{PASSWORD}@{address}/postgres{}",
            if place.tls.is_some() { "?sslmode=verify-full" } else { "" }
        ),
        addresses: table([("main", address.to_string())]),
        settings: table([
            ("user", USER.to_owned()),
            ("password", PASSWORD.to_owned()),
            ("database", "postgres".to_owned()),
        ]),
        ports: chosen,
        parts: vec![part],
    })
}

/// Copies certificates to where the server's user may read them, and lets clients connect by TLS alone.
fn protect(tls: &Tls, data: &Path, user: Option<User>) -> Result<(), Error> {
    let copy = |from: &Path, name: &str| {
        let to = data.join(name);
        fs::copy(from, &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600))?;
        user.map_or(Ok(()), |user| chown(&to, Some(user.uid), Some(user.gid)))
    };
    let write = || {
        copy(&tls.server.cert_file, "tls.pem")?;
        copy(&tls.server.key_file, "tls.key")?;
        copy(&tls.ca_file, "tls-ca.pem")?;
        let client = if tls.requires_client { " clientcert=verify-ca" } else { "" };
        let lines = ["all", "replication"]
            .map(|what| format!("hostssl {what} all 127.0.0.1/32 scram-sha-256{client}\n"));
        fs::write(data.join("pg_hba.conf"), lines.concat())
    };
    write().map_err(Error::io(format!("write certificates to {}", data.display())))
}

/// Promotes the standby that this starts.
pub(crate) fn promote(server: &Launch) -> Result<(), Error> {
    let args = [&["promote".to_owned(), "-w".to_owned()][..], &server.args[..]].concat();
    let pg_ctl = Launch { program: server.program.with_file_name("pg_ctl"), args, ..server.clone() };
    pg_ctl.run("promoting PostgreSQL with pg_ctl").map(drop)
}

/// The newest version first.
fn debian_folders() -> Vec<PathBuf> {
    let mut versions: Vec<u32> = fs::read_dir(DEBIAN)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable();
    versions.iter().rev().map(|version| Path::new(DEBIAN).join(version.to_string()).join("bin")).collect()
}

fn own_user() -> Result<Option<User>, Error> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    User::named("postgres").map(Some).ok_or(Error::NoPostgresUser)
}

/// The server's folder, or one in the temporary folder where its user may not enter the first (a home).
fn reachable(place: &Place<'_>, user: Option<User>) -> Result<PathBuf, Error> {
    let enterable =
        |folder: &Path| fs::metadata(folder).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0);
    if user.is_none() || place.dir.ancestors().all(enterable) {
        return Ok(place.dir.clone());
    }
    tempfile::Builder::new()
        .prefix("windfall-postgres-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .map(tempfile::TempDir::keep)
        .map_err(Error::io("make a temporary folder that the user postgres can enter"))
}

fn make_for(folder: &Path, user: Option<User>) -> Result<(), Error> {
    let make = || {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        user.map_or(Ok(()), |user| chown(folder, Some(user.uid), Some(user.gid)))
    };
    make().map_err(Error::io(format!("make {}", folder.display())))
}
