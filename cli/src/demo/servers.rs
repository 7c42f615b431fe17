//! The servers that `./dev up` runs, steered by the program `windfall-servers`: a tool for tests and demos, which this
//! binary calls and does not contain.

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program, and the starts of it that go on.
#[derive(Debug)]
pub struct ServersProgram {
    path: PathBuf,
    starting: Mutex<Vec<(String, Child)>>,
}

/// One server, as the program describes it.
#[derive(Debug, Clone, Deserialize)]
pub struct Described {
    /// The state of its processes.
    pub activity: Activity,
    /// The addresses that its client is given.
    pub url: String,
    /// host:port by use.
    pub addresses: BTreeMap<String, String>,
    /// Users, passwords, files of certificates.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// The state of a server's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// All run.
    Running,
    /// None has ended, and one is frozen.
    Frozen,
    /// One has ended.
    Stopped,
}

#[derive(Deserialize)]
struct Status {
    servers: BTreeMap<String, Described>,
}

impl ServersProgram {
    /// The program at this path. Nothing is run yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), starting: Mutex::default() }
    }

    /// Every server that `./dev up` has made, by name. Blocks.
    pub fn status(&self) -> Result<BTreeMap<String, Described>> {
        let said = self.run(&["status", "--json"])?;
        let status: Status = serde_json::from_slice(&said)
            .with_context(|| format!("{} gave a status that this demo cannot read", self.path.display()))?;
        Ok(status.servers)
    }

    /// Stops a server's processes where they are. Blocks.
    pub fn freeze(&self, name: &str) -> Result<()> {
        self.run(&["freeze", name]).map(drop)
    }

    /// Lets a frozen server go on. Blocks.
    pub fn thaw(&self, name: &str) -> Result<()> {
        self.run(&["thaw", name]).map(drop)
    }

    /// Ends a server at once; its data stay. Blocks.
    pub fn kill(&self, name: &str) -> Result<()> {
        self.run(&["kill", name]).map(drop)
    }

    /// Starts a server again and waits until it is ready; one that runs already is waited for alone. Blocks.
    pub fn start(&self, name: &str) -> Result<()> {
        self.run(&["start", name]).map(drop)
    }

    /// Starts a server again and goes on at once. The start outlives this process.
    pub fn start_without_waiting(&self, name: &str) -> Result<()> {
        // What it has to say belongs to nobody's report; whoever waits for the server hears it from `start`.
        let child =
            self.command(&["start", name]).stderr(Stdio::null()).spawn().with_context(|| self.absent())?;
        let mut starting = self.starting.lock();
        starting.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
        starting.push((name.to_owned(), child));
        Ok(())
    }

    /// Waits for the starts that go on. Blocks.
    pub fn wait_for_starts(&self) -> Result<()> {
        let starting = std::mem::take(&mut *self.starting.lock());
        for (name, mut child) in starting {
            child.wait().with_context(|| format!("the start of {name} cannot be waited for"))?;
        }
        Ok(())
    }

    fn run(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        let output = self.command(arguments).output().with_context(|| self.absent())?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{} {}` failed ({}): {}",
            self.path.display(),
            arguments.join(" "),
            output.status,
            said.trim().trim_start_matches("windfall-servers: ")
        )
    }

    /// In a process group of its own: a Ctrl-C that ends the demo must not end the start of a server half-way.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        if arguments.contains(&"--json") {
            command.stdout(Stdio::piped());
        }
        command
    }

    fn absent(&self) -> String {
        format!(
            "the program {} cannot be run; `./dev demo` builds it, and `cargo build -p windfall-servers` does",
            self.path.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A program that notes its arguments in `told`, and then does as `body` says.
    fn program(folder: &Path, body: &str) -> ServersProgram {
        let path = folder.join("servers");
        let told = folder.join("told");
        std::fs::write(&path, format!("#!/bin/sh\necho \"$@\" >>{}\n{body}\n", told.display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        ServersProgram::new(&path)
    }

    #[test]
    fn the_program_is_told_what_to_do_and_its_status_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let status = r#"{"state_file":"s","servers":{"rocketmq":{"activity":"frozen","url":"127.0.0.1:1",
            "addresses":{"main":"127.0.0.1:1","broker":"127.0.0.1:2"},"settings":{},"pids":[7],"logs":[]}}}"#;
        let servers = program(folder.path(), &format!("[ \"$1\" != status ] || echo '{status}'"));
        let rocketmq = servers.status().unwrap().remove("rocketmq").unwrap();
        assert_eq!((rocketmq.activity, rocketmq.url.as_str()), (Activity::Frozen, "127.0.0.1:1"));
        assert_eq!(rocketmq.addresses["broker"], "127.0.0.1:2");
        servers.thaw("rocketmq").unwrap();
        servers.freeze("rocketmq").unwrap();
        servers.kill("rocketmq").unwrap();
        servers.start("rocketmq").unwrap();
        servers.start_without_waiting("kafka").unwrap();
        servers.wait_for_starts().unwrap();
        let told = std::fs::read_to_string(folder.path().join("told")).unwrap();
        let expected =
            "status --json\nthaw rocketmq\nfreeze rocketmq\nkill rocketmq\nstart rocketmq\nstart kafka\n";
        assert_eq!(told, expected);
    }

    #[test]
    fn an_absent_program_and_one_that_fails_are_told_with_their_reason() {
        let folder = tempfile::tempdir().unwrap();
        let absent = ServersProgram::new(&folder.path().join("nowhere")).kill("kafka").unwrap_err();
        let said = format!("{absent:#}");
        assert!(said.contains("nowhere cannot be run") && said.contains("./dev demo"), "{said}");
        let failing = program(folder.path(), "echo 'windfall-servers: kafka is not up' >&2; exit 1");
        let said = failing.kill("kafka").unwrap_err().to_string();
        assert!(said.contains("kill kafka` failed") && said.ends_with(": kafka is not up"), "{said}");
        let odd = program(folder.path(), "echo nonsense").status().unwrap_err().to_string();
        assert!(odd.contains("status that this demo cannot read"), "{odd}");
    }
}
