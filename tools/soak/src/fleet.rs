//! The processes: started from the real binary, killed, frozen, stopped, and started again when they end by
//! themselves, as systemd would.

use crate::ground::Ground;
use crate::plan::{How, VOLUMES};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A role of `windfall`, by its command.
    Windfall(&'static str),
    /// This program, with the SDK in it.
    Sdk,
}

/// The fleet by the names of its processes, see [`crate::plan::PROCESSES`].
const MEMBERS: [(&str, Role); 12] = [
    ("gateway-0", Role::Windfall("sdk-gateway")),
    ("gateway-1", Role::Windfall("sdk-gateway")),
    ("sdk", Role::Sdk),
    ("scheduler-0", Role::Windfall(SCHEDULER)),
    ("scheduler-1", Role::Windfall(SCHEDULER)),
    (QUEUES[0], Role::Windfall(QUEUE)),
    (QUEUES[1], Role::Windfall(QUEUE)),
    ("consumer-0", Role::Windfall("consumer")),
    ("consumer-1", Role::Windfall("consumer")),
    ("consumer-2", Role::Windfall("consumer")),
    ("rewards", Role::Windfall("reward-service")),
    ("wallet", Role::Windfall("wallet")),
];

/// The processes of the task queue.
pub const QUEUES: [&str; 2] = ["queue-0", "queue-1"];
/// The role that keeps timers and jobs.
const SCHEDULER: &str = "scheduler";
/// The role of the task queue.
const QUEUE: &str = "task-queue";
/// Longer than `drain_ms` of the options.
const STOP_TIMEOUT: Duration = Duration::from_secs(25);
const RESPAWN_AFTER: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// The folder with what was synced of each salvage file.
const SYNCED: &str = "synced";

/// How the fleet is run.
#[derive(Debug, Clone, Default)]
pub struct FleetOptions {
    /// Processes may start while a server is away; otherwise they wait for it.
    pub starts_without_servers: bool,
    /// The switch of `WINDFALL_SABOTAGE` for all processes.
    pub sabotage: Option<&'static str>,
    /// The program of an earlier version, which all begin with; each restart in turn takes the other one.
    pub earlier: Option<PathBuf>,
}

struct Process {
    child: Option<Child>,
    data: PathBuf,
    generation: u32,
    ahead_ms: i64,
    ended: Option<Instant>,
    is_earlier: bool,
}

/// All processes. They are killed when it is dropped.
pub struct Fleet {
    ground: Arc<Ground>,
    options: FleetOptions,
    /// The roles that the earlier version does not know.
    new_roles: Vec<&'static str>,
    processes: BTreeMap<&'static str, Mutex<Process>>,
    addresses: BTreeMap<&'static str, SocketAddr>,
    /// The addresses of the queue API and the admin API of each of [`QUEUES`].
    queue_addresses: BTreeMap<&'static str, [SocketAddr; 2]>,
    /// The [`VOLUMES`] that are mounted.
    volumes: Mutex<Vec<PathBuf>>,
    skew: Option<PathBuf>,
    /// The library that remembers what was synced.
    forget: Option<PathBuf>,
    servers_away: AtomicU32,
    remarks: Mutex<Vec<String>>,
    ends: AtomicBool,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// Starts all and waits until they are ready.
    pub fn start(ground: Arc<Ground>, options: FleetOptions) -> Result<Self> {
        let (mut processes, mut addresses) = (BTreeMap::new(), BTreeMap::new());
        let ports = free_ports(MEMBERS.len() + 2 * QUEUES.len())?;
        let at = |port: &u16| SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
        let own_ports = ports[MEMBERS.len()..].chunks_exact(2);
        let queue_addresses: BTreeMap<_, _> =
            QUEUES.into_iter().zip(own_ports).map(|(name, two)| (name, [at(&two[0]), at(&two[1])])).collect();
        for (name, [api, admin]) in &queue_addresses {
            ground.write_queue_options(name, *api, *admin)?;
        }
        let mut volumes = Vec::new();
        for ((name, _), port) in MEMBERS.iter().zip(&ports) {
            let volume = ground.dir.join("data").join(name);
            std::fs::create_dir_all(&volume)?;
            if VOLUMES.contains(name) && mount(&volume) {
                volumes.push(volume.clone());
            }
            let data = volume.join("0");
            let is_earlier = options.earlier.is_some();
            let process = Process { child: None, data, generation: 0, ahead_ms: 0, ended: None, is_earlier };
            processes.insert(*name, Mutex::new(process));
            addresses.insert(*name, at(port));
        }
        let skew = build_library(&ground.dir, "skew", include_str!("skew.c"));
        let forget = build_library(&ground.dir, "forget", include_str!("forget.c"));
        std::fs::create_dir_all(ground.dir.join(SYNCED))?;
        let is_new = |role: &&str| {
            let earlier = options.earlier.as_ref().map(|earlier| earlier.display().to_string());
            earlier.is_some_and(|earlier| !run(&earlier, &[role.as_ref(), "--help".as_ref()]))
        };
        let new_roles = [SCHEDULER, QUEUE].into_iter().filter(is_new).collect();
        let own = Self {
            ground,
            options,
            new_roles,
            processes,
            addresses,
            queue_addresses,
            volumes: Mutex::new(volumes),
            skew,
            forget,
            servers_away: AtomicU32::new(0),
            remarks: Mutex::default(),
            ends: AtomicBool::new(false),
        };
        for (name, _) in MEMBERS {
            own.launch(name)?;
        }
        let until = Instant::now() + Duration::from_secs(180);
        for (name, role) in MEMBERS {
            while role != Role::Sdk && !is_ready(own.addresses[name]) {
                own.check_alive(name)?;
                if Instant::now() > until {
                    bail!("{name} is not ready; its log is {}", own.log(name).display());
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(own)
    }

    /// The address of a process throughout the run.
    pub fn address(&self, name: &str) -> SocketAddr {
        self.addresses.get(name).copied().unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 9)))
    }

    /// The addresses of the queue API and the admin API of one of [`QUEUES`].
    pub fn queue_addresses(&self, name: &str) -> [SocketAddr; 2] {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        self.queue_addresses.get(name).copied().unwrap_or([nowhere; 2])
    }

    /// Writes the metrics of each process that answers to `logs/NAME.SUFFIX.prom`, for whoever wants to know what it
    /// waits for.
    pub fn write_metrics(&self, suffix: &str) {
        let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(2))).build();
        let agent = ureq::Agent::from(config);
        let key = self.ground.keys.get("operator").map_or("", String::as_str);
        for (name, role) in MEMBERS.iter().filter(|(_, role)| *role != Role::Sdk) {
            let url = format!("http://{}/metrics", self.address(name));
            let asked = agent.get(url).header("authorization", format!("Bearer {key}")).call();
            let text = asked.and_then(|mut answer| answer.body_mut().read_to_string());
            let text = text.unwrap_or_else(|error| format!("# {role:?} does not say: {error}\n"));
            let path = self.ground.dir.join("logs").join(format!("{name}.{suffix}.prom"));
            if let Err(error) = std::fs::write(&path, text) {
                eprintln!("soak: {} cannot be written: {error}", path.display());
            }
        }
    }

    /// What was wrong with processes: ends of their own accord, and stops that were not in order.
    pub fn remarks(&self) -> Vec<String> {
        held(&self.remarks).clone()
    }

    /// Whether disks can be filled and clocks be moved here.
    pub fn abilities(&self) -> (bool, bool) {
        (held(&self.volumes).len() == VOLUMES.len(), self.skew.is_some())
    }

    /// Whether a killed process loses what it had not synced.
    pub const fn forgets(&self) -> bool {
        self.forget.is_some()
    }

    /// A server is away, or back: processes may have to wait for it.
    pub fn server_is_away(&self, is_away: bool) {
        if is_away {
            self.servers_away.fetch_add(1, SeqCst);
        } else {
            self.servers_away.fetch_sub(1, SeqCst);
        }
    }

    /// Does this to a process.
    pub fn hit(&self, name: &str, how: How) -> Result<()> {
        let mut process = self.process(name)?;
        match how {
            How::Kill => self.kill(&mut process),
            How::Freeze => signal(&process, Signal::STOP),
            How::Stop => self.stop(name, &mut process),
        }
        Ok(())
    }

    /// Undoes it.
    pub fn mend(&self, name: &'static str, how: How) -> Result<()> {
        match how {
            How::Freeze => signal(&*self.process(name)?, Signal::CONT),
            How::Kill | How::Stop => self.launch(name)?,
        }
        Ok(())
    }

    /// Sets the clock of a process that is not running: so far ahead from its next start on.
    pub fn set_clock(&self, name: &str, ahead_ms: i64) -> Result<()> {
        self.process(name)?.ahead_ms = ahead_ms;
        Ok(())
    }

    /// A killed process gets another data directory; answers the old one.
    pub fn replace_data(&self, name: &str) -> Result<PathBuf> {
        let mut process = self.process(name)?;
        process.generation += 1;
        let new = process.data.with_file_name(process.generation.to_string());
        Ok(std::mem::replace(&mut process.data, new))
    }

    /// Runs a process of the role of `name` on these data for a while, then stops it in order.
    pub fn adopt(&self, name: &'static str, data: &Path, long: Duration, stop: &AtomicBool) -> Result<()> {
        let port = free_ports(1)?.remove(0);
        self.wait_for_servers();
        let is_earlier = self.process(name)?.is_earlier;
        let child = self.spawn(name, data, SocketAddr::from((Ipv4Addr::LOCALHOST, port)), 0, is_earlier)?;
        let data = data.to_owned();
        let mut process =
            Process { child: Some(child), data, generation: 0, ahead_ms: 0, ended: None, is_earlier };
        let until = Instant::now() + long;
        while Instant::now() < until && !stop.load(SeqCst) {
            std::thread::sleep(POLL);
        }
        self.stop(&format!("the adopter of {name}"), &mut process);
        Ok(())
    }

    /// Starts a process that does not run.
    pub fn launch(&self, name: &'static str) -> Result<()> {
        self.wait_for_servers();
        let mut process = self.process(name)?;
        if process.child.is_none() && !self.ends.load(SeqCst) {
            let (address, is_earlier) = (self.address(name), process.is_earlier);
            process.child = Some(self.spawn(name, &process.data, address, process.ahead_ms, is_earlier)?);
            process.ended = None;
        }
        Ok(())
    }

    /// Lets a process take the other version when it starts the next time, where there are two.
    pub fn change_version(&self, name: &str) -> Result<()> {
        let mut process = self.process(name)?;
        process.is_earlier = self.options.earlier.is_some() && !process.is_earlier;
        Ok(())
    }

    /// Starts processes again that have ended by themselves, until the fleet ends. For a thread of its own.
    pub fn supervise(&self) {
        while !self.ends.load(SeqCst) {
            std::thread::sleep(POLL);
            for (name, process) in &self.processes {
                let Ok(mut process) = process.try_lock() else { continue };
                let status = process.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
                if let Some(status) = status {
                    process.child = None;
                    process.ended = Some(Instant::now());
                    self.remark(format!("{name} ended by itself with {}", words(status)));
                }
                let is_due = process.ended.is_some_and(|at| at.elapsed() > RESPAWN_AFTER);
                drop(process);
                if is_due && let Err(error) = self.launch(name) {
                    self.remark(format!("{name} cannot be started: {error:#}"));
                }
            }
        }
    }

    /// Stops all in the order of a reward's way.
    pub fn close(&self) {
        self.ends.store(true, SeqCst);
        for (name, _) in MEMBERS {
            if let Some(process) = self.processes.get(name) {
                self.stop(name, &mut held(process));
            }
        }
    }

    /// Kills what still runs, and unmounts the disks.
    pub fn end(&self) {
        self.ends.store(true, SeqCst);
        for process in self.processes.values() {
            self.kill(&mut held(process));
        }
        for volume in held(&self.volumes).drain(..) {
            if !run("umount", &["-l".as_ref(), volume.as_ref()]) {
                eprintln!("soak: {} stays mounted", volume.display());
            }
        }
    }

    /// Fills the disk of a process, or frees it again.
    pub fn fill(&self, name: &str, full: bool) -> Result<()> {
        let filler = self.ground.dir.join("data").join(name).join("filler");
        if !full {
            std::fs::remove_file(&filler)?;
            return Ok(());
        }
        let mut file = std::fs::File::create(&filler)?;
        for size in [1 << 20, 4 << 10] {
            let block = vec![1; size];
            while std::io::Write::write_all(&mut file, &block).is_ok() {}
        }
        Ok(())
    }

    fn process(&self, name: &str) -> Result<MutexGuard<'_, Process>> {
        Ok(held(self.processes.get(name).with_context(|| format!("there is no process {name}"))?))
    }

    fn wait_for_servers(&self) {
        while !self.options.starts_without_servers
            && self.servers_away.load(SeqCst) > 0
            && !self.ends.load(SeqCst)
        {
            std::thread::sleep(POLL);
        }
    }

    fn check_alive(&self, name: &str) -> Result<()> {
        let mut process = self.process(name)?;
        if let Some(status) = process.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
            bail!("{name} has ended with {}; its log is {}", words(status), self.log(name).display());
        }
        Ok(())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.ground.dir.join("logs").join(format!("{name}.log"))
    }

    fn spawn(
        &self,
        name: &'static str,
        data: &Path,
        listen: SocketAddr,
        ahead_ms: i64,
        is_earlier: bool,
    ) -> Result<Child> {
        let role = MEMBERS.iter().find(|one| one.0 == name).map_or(Role::Sdk, |one| one.1);
        std::fs::create_dir_all(self.ground.dir.join("logs"))?;
        let log = OpenOptions::new().create(true).append(true).open(self.log(name))?;
        let mut command = match role {
            Role::Windfall(word) => {
                let is_known = !self.new_roles.contains(&word);
                let earlier = self.options.earlier.as_ref().filter(|_| is_earlier && is_known);
                let mut command = Command::new(earlier.unwrap_or(&self.ground.program));
                let options = match word {
                    SCHEDULER => self.ground.timer_options(),
                    QUEUE => self.ground.queue_options(name),
                    _ => self.ground.options(),
                };
                // An earlier version may not know these options.
                if earlier.is_none() {
                    command.envs(self.ground.signing_environment(word));
                }
                command.arg(word).arg("--config").arg(options);
                command.arg("--listen").arg(listen.to_string()).arg("--data").arg(data);
                command
            }
            Role::Sdk => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("sdk-process").arg("--run").arg(&self.ground.dir).arg("--data").arg(data);
                command
            }
        };
        // A group of its own, so that Ctrl-C reaches the soak alone, which then ends its processes.
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        command.env("WINDFALL_SABOTAGE", self.options.sabotage.unwrap_or("")).env("WINDFALL_LOG", "warn");
        let skew = self.skew.as_ref().filter(|_| ahead_ms != 0);
        let libraries: Vec<String> =
            skew.into_iter().chain(&self.forget).map(|library| library.display().to_string()).collect();
        command.env("LD_PRELOAD", libraries.join(":")).env("SOAK_CLOCK_MS", ahead_ms.to_string());
        command.env("SOAK_SYNCED", self.ground.dir.join(SYNCED));
        command.spawn().with_context(|| format!("{name} cannot be started"))
    }

    fn kill(&self, process: &mut Process) {
        if let Some(mut child) = process.child.take() {
            // One that has ended cannot be killed, which is as well.
            child.kill().ok();
            child.wait().ok();
            if let Err(error) = self.forget_unsynced(&process.data) {
                self.remark(format!("what was not synced cannot be forgotten: {error:#}"));
            }
        }
        process.ended = None;
    }

    /// Puts the salvage files below this directory back to what was synced last: see `forget.c`.
    fn forget_unsynced(&self, data: &Path) -> Result<()> {
        for entry in std::fs::read_dir(self.ground.dir.join(SYNCED))? {
            let entry = entry?;
            let file = PathBuf::from(entry.file_name().to_string_lossy().replace('%', "/"));
            if file.starts_with(data) && file.ends_with("salvage.log") && file.exists() {
                std::fs::copy(entry.path(), file)?;
            }
        }
        Ok(())
    }

    fn stop(&self, name: &str, process: &mut Process) {
        signal(process, Signal::CONT);
        signal(process, Signal::TERM);
        let until = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < until {
            match process.child.as_mut().map(Child::try_wait) {
                Some(Ok(None)) => std::thread::sleep(POLL),
                Some(Ok(Some(status))) => {
                    process.child = None;
                    if !status.success() {
                        self.remark(format!("{name} ended a stop with {}", words(status)));
                    }
                    return;
                }
                Some(Err(_)) | None => return,
            }
        }
        self.remark(format!("{name} had not ended {STOP_TIMEOUT:?} after SIGTERM"));
        self.kill(process);
    }

    fn remark(&self, text: String) {
        eprintln!("soak: {text}");
        held(&self.remarks).push(text);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.end();
    }
}

fn words(status: ExitStatus) -> String {
    status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}"))
}

fn signal(process: &Process, signal: Signal) {
    if let Some(child) = &process.child
        && let Err(error) = kill_process(Pid::from_child(child), signal)
    {
        eprintln!("soak: a process cannot be signalled: {error}");
    }
}

fn run(program: &str, args: &[&std::ffi::OsStr]) -> bool {
    let status = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A small disk of its own for a process: `false` where this user may not mount one.
fn mount(folder: &Path) -> bool {
    run(
        "mount",
        &[
            "-t".as_ref(),
            "tmpfs".as_ref(),
            "-o".as_ref(),
            "size=64m".as_ref(),
            "soak".as_ref(),
            folder.as_ref(),
        ],
    )
}

/// Compiles a library that is preloaded into processes; `None` without a C compiler.
fn build_library(dir: &Path, name: &str, text: &str) -> Option<PathBuf> {
    let (source, library) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.so")));
    std::fs::write(&source, text).ok()?;
    let args = [
        "-shared".as_ref(),
        "-fPIC".as_ref(),
        "-O1".as_ref(),
        "-o".as_ref(),
        library.as_ref(),
        source.as_ref(),
    ];
    run("cc", &args).then_some(library)
}

fn is_ready(address: SocketAddr) -> bool {
    let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(2))).build();
    ureq::Agent::from(config).get(format!("http://{address}/health/ready")).call().is_ok()
}

/// Ports below the range of outgoing connections, so that no other socket gets the port of a process that is away.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let mut draw = crate::draw::Draw::new(crate::journal::now_ms(), u64::from(std::process::id()));
    let mut free = Vec::new();
    for _ in 0..10_000 {
        let port = u16::try_from(10_000 + draw.below(5_000))?;
        if !free.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            free.push(port);
        }
        if free.len() == count {
            return Ok(free);
        }
    }
    bail!("there are no {count} free ports between 10000 and 15000")
}
