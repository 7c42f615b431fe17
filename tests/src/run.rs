//! One run of the binary: with a time-out, its output in files, and ways to end it.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// How long a run may take unless it says otherwise.
const TIME_OUT: Duration = Duration::from_secs(90);
/// How often a run is asked whether it has ended.
const POLL: Duration = Duration::from_millis(5);

/// A run to be.
#[derive(Debug, Clone)]
pub struct Run {
    binary: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    dir: Option<PathBuf>,
    stdin: Option<Vec<u8>>,
    user: Option<u32>,
    time_out: Duration,
}

impl Run {
    /// A run of this binary.
    pub fn new(binary: &Path) -> Self {
        Self {
            binary: binary.to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
            stdin: None,
            user: None,
            time_out: TIME_OUT,
        }
    }

    /// With one more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// With more arguments.
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// With an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// In this directory.
    pub fn within(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    /// With these bytes on standard input. Without: nothing there.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Runs it as this user; only root may do so.
    pub const fn user(mut self, id: u32) -> Self {
        self.user = Some(id);
        self
    }

    /// Killed, and the test failed, if it takes longer. Default: 90 s.
    pub const fn time_out(mut self, time_out: Duration) -> Self {
        self.time_out = time_out;
        self
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(&self) -> Running {
        let file = || NamedTempFile::with_prefix("windfall-out-").expect("a file for output");
        let (stdout, stderr) = (file(), file());
        let to = |file: &NamedTempFile| Stdio::from(file.reopen().expect("a file for output"));
        let mut command = Command::new(&self.binary);
        command.args(&self.args).stdout(to(&stdout)).stderr(to(&stderr));
        // A test must not hang on the sabotage of its caller's shell.
        command.env_remove("WINDFALL_SABOTAGE").envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        let stdin = self.stdin.as_ref().map(|bytes| {
            let input = file();
            std::fs::write(input.path(), bytes).expect("a file for input");
            input
        });
        command.stdin(stdin.as_ref().map_or_else(Stdio::null, to));
        if let Some(id) = self.user {
            command.uid(id).gid(id);
        }
        let child = spawn(&mut command);
        Running {
            what: format!("{command:?}"),
            child,
            stdout,
            stderr,
            started: Instant::now(),
            time_out: self.time_out,
        }
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it cannot be started or does not end in time.
    pub fn end(&self) -> Ended {
        self.start().end()
    }
}

/// A run that goes on. Killed when it is dropped.
#[derive(Debug)]
pub struct Running {
    what: String,
    child: Child,
    stdout: NamedTempFile,
    stderr: NamedTempFile,
    started: Instant,
    time_out: Duration,
}

impl Running {
    /// How long it has gone on.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output on standard error so far.
    ///
    /// # Panics
    /// If that cannot be read.
    pub fn said(&self) -> String {
        text(&self.stderr)
    }

    /// Its output on standard output so far.
    ///
    /// # Panics
    /// If that cannot be read.
    pub fn output(&self) -> String {
        text(&self.stdout)
    }

    /// Waits until standard error says this. False if it ends without.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn wait_for(&mut self, words: &str) -> bool {
        loop {
            let ended = self.has_ended();
            if self.said().contains(words) {
                return true;
            }
            if ended {
                return false;
            }
            self.check_time(&format!("no word of {words:?}"));
            std::thread::sleep(POLL);
        }
    }

    /// Waits until standard output says this, and returns all of it.
    ///
    /// # Panics
    /// If it ends without, or takes longer than `time_out`.
    pub fn wait_for_output(&mut self, words: &str, time_out: Duration) -> String {
        let until = Instant::now() + time_out;
        loop {
            let ended = self.has_ended();
            let output = text(&self.stdout);
            if output.contains(words) {
                return output;
            }
            let why = if ended { "it ended" } else { "it takes too long" };
            assert!(
                !ended && Instant::now() < until,
                "{}: no word of {words:?}: {why}; it said:\n{output}\n{}",
                self.what,
                self.said()
            );
            std::thread::sleep(POLL);
        }
    }

    /// Kills it with SIGKILL once it is so old. `None` if it was; else how it had ended before.
    pub fn kill_at(mut self, age: Duration) -> Option<Ended> {
        while self.age() < age {
            if self.has_ended() {
                return Some(self.end());
            }
            std::thread::sleep(POLL.min(age.saturating_sub(self.age())));
        }
        let ended = self.kill();
        (ended.signal != Some(Signal::KILL.as_raw())).then_some(ended)
    }

    /// Kills it with SIGKILL.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(mut self) -> Ended {
        self.child.kill().expect("SIGKILL");
        self.end()
    }

    /// Sends it SIGINT, as Ctrl-C does.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("SIGINT");
    }

    /// Sends it SIGTERM, as an orchestrator does.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("SIGTERM");
    }

    /// Freezes it: it lives, and does nothing.
    ///
    /// # Panics
    /// If it cannot be frozen.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("SIGSTOP");
    }

    /// Lets it go on.
    ///
    /// # Panics
    /// If it cannot be thawed.
    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("SIGCONT");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn end(mut self) -> Ended {
        let status = loop {
            if let Some(status) = self.status() {
                break status;
            }
            self.check_time("no end");
            std::thread::sleep(POLL);
        };
        Ended {
            what: std::mem::take(&mut self.what),
            code: status.code(),
            signal: status.signal(),
            stdout: text(&self.stdout),
            stderr: text(&self.stderr),
            took: self.age(),
        }
    }

    fn has_ended(&mut self) -> bool {
        self.status().is_some()
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the state of a child")
    }

    fn check_time(&self, why: &str) {
        assert!(
            self.age() < self.time_out,
            "{}: {why} after {:?}; it said:\n{}",
            self.what,
            self.time_out,
            self.said()
        );
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // No test leaves a process behind. One that has ended cannot be killed, which is as well.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A run that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    what: String,
    /// Its exit code, if it ended by itself.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// From its start to its end.
    pub took: Duration,
}

impl Ended {
    /// The one JSON value on standard output.
    ///
    /// # Panics
    /// If there is none, or something else besides.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON alone: {error}: {self}"))
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The demo and `reconcile` have looked, and found damage.
        if self.code == Some(1) && self.stdout.contains("\"findings\"") {
            write!(f, "{} ", crate::MONEY)?;
        }
        write!(
            f,
            "{} ended after {:?} with code {:?}, signal {:?}\n--- standard output\n{}\n--- standard error\n{}",
            self.what, self.took, self.code, self.signal, self.stdout, self.stderr
        )
    }
}

/// A binary that was copied a moment ago may be open for writing still, in a child that another thread forks off.
fn spawn(command: &mut Command) -> Child {
    for _ in 0..200 {
        match command.spawn() {
            Ok(child) => return child,
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::sleep(POLL),
            Err(error) => panic!("{command:?}: {error}"),
        }
    }
    panic!("{command:?}: stays busy");
}

fn text(file: &NamedTempFile) -> String {
    String::from_utf8_lossy(&std::fs::read(file.path()).expect("the output of a run")).into_owned()
}
