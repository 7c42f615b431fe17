//! Processes that outlive us and are never mistaken for others.
//!
//! A process is known by its id, its start time and the machine's boot: an id that the system gave away
//! again is somebody else's and gets no signal from us.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};

use crate::Error;

/// How often a condition is looked at.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// How long a killed process may take to be gone.
const GONE_TIMEOUT: Duration = Duration::from_secs(20);

/// One process, also across our own restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// Start time in clock ticks since boot, field 22 of `/proc/<pid>/stat`.
    start_ticks: u64,
    boot: String,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    Running,
    Frozen,
    Gone,
}

impl Identity {
    /// The process that has this id now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let stat = Stat::read(pid)?;
        Some(Self { pid, start_ticks: stat.start_ticks, boot: boot_id() })
    }

    pub(crate) fn own() -> Option<Self> {
        Self::of(i32::try_from(std::process::id()).ok()?)
    }

    pub(crate) fn activity(&self) -> Activity {
        match Stat::read(self.pid) {
            Some(stat) if stat.start_ticks == self.start_ticks && self.boot == boot_id() => {
                match stat.state {
                    'Z' | 'X' => Activity::Gone,
                    'T' => Activity::Frozen,
                    _ => Activity::Running,
                }
            }
            _ => Activity::Gone,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.activity() != Activity::Gone
    }

    /// Stops the process and all that it started where they are.
    pub(crate) fn freeze(&self) {
        self.signal_tree(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal_tree(Signal::CONT);
    }

    /// Ends the process at once, and what it started.
    pub(crate) fn kill(&self, name: &str) -> Result<(), Error> {
        let children = self.descendants();
        self.signal(Signal::KILL);
        for child in &children {
            child.signal(Signal::KILL);
        }
        for process in std::iter::once(self).chain(&children) {
            if !process.wait_gone(GONE_TIMEOUT) {
                return Err(Error::WillNotEnd { name: name.to_owned(), pid: process.pid });
            }
        }
        Ok(())
    }

    /// Asks the process to end in order; kills it when it has not within `patience`.
    pub(crate) fn stop(&self, name: &str, signal: Signal, patience: Duration) -> Result<(), Error> {
        // A frozen process does not see the signal before it is thawed.
        self.thaw();
        self.signal(signal);
        if self.wait_gone(patience) { Ok(()) } else { self.kill(name) }
    }

    fn signal_tree(&self, signal: Signal) {
        self.signal(signal);
        for child in self.descendants() {
            child.signal(signal);
        }
    }

    /// Signals this very process; one that is gone needs no signal.
    fn signal(&self, signal: Signal) {
        if !self.is_alive() {
            return;
        }
        if let Some(pid) = Pid::from_raw(self.pid)
            && let Err(error) = kill_process(pid, signal)
            && error != rustix::io::Errno::SRCH
        {
            eprintln!("windfall-servers: cannot signal process {}: {error}", self.pid);
        }
    }

    fn wait_gone(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        // Threads that outlive the first one of a killed process hold its ports a moment longer.
        while self.is_alive() || self.has_threads() {
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(POLL);
        }
        self.reap();
        true
    }

    /// Whether threads of it remain beside the first one, which shows as dead before they are.
    fn has_threads(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid));
        tasks.is_ok_and(|tasks| tasks.count() > 1) && Self::of(self.pid).is_none_or(|now| now == *self)
    }

    /// Takes our own dead child out of the process table; for others' it does nothing.
    fn reap(&self) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            match waitpid(Some(pid), WaitOptions::NOHANG) {
                // Not our child: its parent reaps it.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// PostgreSQL's workers lead sessions of their own, so a process group does not reach them.
    fn descendants(&self) -> Vec<Self> {
        if !self.is_alive() {
            return Vec::new();
        }
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let all: Vec<(i32, Stat)> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(|pid| Some((pid, Stat::read(pid)?)))
            .collect();
        let mut found = vec![self.pid];
        let mut next = 0;
        while let Some(parent) = found.get(next).copied() {
            found.extend(all.iter().filter(|(_, stat)| stat.parent == parent).map(|(pid, _)| *pid));
            next += 1;
        }
        found.iter().skip(1).filter_map(|pid| Self::of(*pid)).collect()
    }
}

/// The user a server runs as when it is not our own.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// Looks a user up in `/etc/passwd`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let text = fs::read_to_string("/etc/passwd").ok()?;
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            Some(Self { uid: fields.nth(1)?.parse().ok()?, gid: fields.next()?.parse().ok()? })
        })
    }
}

/// A command that can be run now and again later.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) user: Option<User>,
    pub(crate) folder: PathBuf,
}

impl Launch {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    /// Starts it in a process group of its own, so that Ctrl-C in a terminal does not reach it.
    // Nobody here waits for the child: it is meant to outlive us, and `reap` collects it when we end it.
    pub(crate) fn spawn(&self, log: &Path) -> Result<Identity, Error> {
        let out = append(log)?;
        let err = out.try_clone().map_err(Error::io(format!("write {}", log.display())))?;
        let child = self
            .command()
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(Error::io(format!("start {}", self.program.display())))?;
        let pid = child.id();
        i32::try_from(pid).ok().and_then(Identity::of).ok_or_else(|| Error::Tool {
            what: format!("reading process {pid} of {}", self.program.display()),
            output: "it is not in /proc".to_owned(),
        })
    }

    /// Runs it to its end; what it wrote is in the error when it failed.
    pub(crate) fn run(&self, what: &str) -> Result<String, Error> {
        let output = self.command().output().map_err(Error::io(format!("run {}", self.program.display())))?;
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() {
            Ok(text)
        } else {
            Err(Error::Tool { what: format!("{what} ({})", output.status), output: last_lines(&text, 20) })
        }
    }
}

/// The last `count` lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Finds a program in PATH, then in the given folders.
pub(crate) fn find_program(name: &str, package: &'static str, folders: &[PathBuf]) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(folders.iter().cloned())
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::Missing { program: name.to_owned(), package })
}

fn append(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(Error::io(format!("write {}", path.display())))
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The fields of `/proc/<pid>/stat` that we need; man 5 proc numbers them from 1.
struct Stat {
    state: char,
    parent: i32,
    start_ticks: u64,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in field 2 is in brackets and may hold spaces and brackets itself.
        let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            start_ticks: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(folder: &Path) -> Identity {
        let launch = Launch {
            program: PathBuf::from("/bin/sleep"),
            args: vec!["600".to_owned()],
            env: Vec::new(),
            user: None,
            folder: folder.to_owned(),
        };
        launch.spawn(&folder.join("log")).unwrap()
    }

    #[test]
    fn a_process_is_frozen_thawed_and_killed() {
        let folder = tempfile::tempdir().unwrap();
        let process = sleeper(folder.path());
        process.freeze();
        while process.activity() != Activity::Frozen {
            thread::sleep(POLL);
        }
        process.thaw();
        while process.activity() != Activity::Running {
            thread::sleep(POLL);
        }
        process.kill("sleep").unwrap();
        assert_eq!(process.activity(), Activity::Gone);
        process.kill("sleep").unwrap();
    }

    #[test]
    fn an_id_given_away_again_gets_no_signal() {
        let folder = tempfile::tempdir().unwrap();
        let process = sleeper(folder.path());
        let stale = Identity { start_ticks: process.start_ticks - 1, ..process.clone() };
        assert_eq!(stale.activity(), Activity::Gone);
        stale.kill("stale").unwrap();
        stale.freeze();
        assert_eq!(process.activity(), Activity::Running);
        let other_boot = Identity { boot: "another".to_owned(), ..process.clone() };
        other_boot.kill("other boot").unwrap();
        assert!(process.is_alive());
        process.kill("sleep").unwrap();
    }

    #[test]
    fn children_are_frozen_and_killed_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let launch = Launch {
            program: PathBuf::from("/bin/sh"),
            args: vec!["-c".to_owned(), "setsid sleep 600 & wait".to_owned()],
            env: Vec::new(),
            user: None,
            folder: folder.path().to_owned(),
        };
        let process = launch.spawn(&folder.path().join("log")).unwrap();
        let child = loop {
            let child = process.descendants().into_iter().next();
            if let Some(child) = child {
                break child;
            }
            thread::sleep(POLL);
        };
        process.freeze();
        while child.activity() != Activity::Frozen {
            thread::sleep(POLL);
        }
        process.kill("sh").unwrap();
        assert!(!child.is_alive());
    }

    #[test]
    fn a_program_that_fails_says_what_it_wrote() {
        let launch = Launch {
            program: PathBuf::from("/bin/sh"),
            args: vec!["-c".to_owned(), "echo no space >&2; exit 3".to_owned()],
            env: Vec::new(),
            user: None,
            folder: PathBuf::from("/"),
        };
        let error = launch.run("formatting").unwrap_err().to_string();
        assert!(error.contains("formatting") && error.contains("no space"), "{error}");
    }
}
