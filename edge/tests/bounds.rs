//! Attacks by those who have no key, on a server in a process of its own: its memory stays within a bound, and who
//! has a key is served all the while.

#![allow(clippy::unwrap_used)] // a test that cannot go on says so

mod fixture;

use fixture::{options, start};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_edge::{ServeOptions, TlsOptions};
use windfall_tests::Memory;
use windfall_tests::keyless::{ATTACKS, Attack, SLOW_HANDSHAKES, Siege, connect_from};

/// Says to this program that it is the server.
const SERVER: &str = "WINDFALL_EDGE_TEST_SERVER";
/// What no attack may add to the server's memory, at its peak.
const MEMORY_MAX_BYTES: u64 = 96 << 20;
/// How long each attack goes on.
const SIEGE: Duration = Duration::from_secs(3);
const QUIET: Duration = Duration::from_secs(2);
/// The address of who has a key; attacks come from others.
const GOOD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Where attacks come from, too, when all stand behind one proxy.
const SHARED: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);
const PATIENCE: Duration = Duration::from_secs(60);

/// A server in another process, which ends with this.
struct Target {
    process: Child,
    address: SocketAddr,
    key: String,
    memory: Memory,
}

/// The times that good calls took, of those on a connection that stays and of those on one of their own.
#[derive(Default)]
struct Taken {
    kept: Vec<Duration>,
    fresh: Vec<Duration>,
    repeats: usize,
}

/// Not a test by itself: the server that the others attack.
#[test]
#[ignore = "is started by the tests of this file"]
fn server() {
    let Ok(tls) = std::env::var(SERVER) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let tls = (tls == "tls").then(|| {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            let (cert_file, key_file) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
            std::fs::write(&cert_file, made.cert.pem()).unwrap();
            std::fs::write(&key_file, made.signing_key.serialize_pem()).unwrap();
            TlsOptions {
                cert_file,
                key_file,
                client_ca_file: None,
                client_crl_file: None,
                client_cert_required: false,
            }
        });
        let running = start(ServeOptions { tls, ..options() }, "", Clock::system()).await;
        println!("serves {} {}", running.server.address(), running.keys.send.text);
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
        ended.await.unwrap().unwrap();
        fixture::until("connections of attackers are gone", async || {
            running.metric("windfall_edge_unauthenticated_connections") == 0.0
        })
        .await;
        println!("{}", running.metrics.text().unwrap());
        running.server.stop().await;
    });
}

#[test]
fn who_has_no_key_takes_little_memory_and_nobodys_time() {
    let target = Target::start("plain");
    let quiet = target.calls_for(QUIET, GOOD);
    quiet.print("quiet");
    for attack in ATTACKS {
        target.siege(&attack, 1, GOOD);
    }
    // From many addresses the limit of each does not help.
    for attack in &ATTACKS[..1] {
        target.siege(attack, 16, GOOD);
    }
    let dense = ATTACKS.iter().find(|attack| attack.name.starts_with("dense"));
    target.siege(dense.unwrap(), 16, GOOD);
    // Behind a proxy all have its address, the good ones, too.
    target.siege(&ATTACKS[0], 1, SHARED);
    let after = target.calls_for(QUIET, GOOD);
    after.print("after all of it");
    let said = target.stop();
    for reason in ["peer_too_many", "made_room", "refusal_unread"] {
        let is_it = |line: &&str| line.contains(&format!("cut_connections_total{{reason=\"{reason}\"}}"));
        assert!(said.lines().any(|line| is_it(&line)), "no connection was cut as {reason}: {said}");
    }
}

#[test]
fn handshakes_that_never_end_take_little_memory() {
    let target = Target::start("tls");
    target.siege_without_calls(&SLOW_HANDSHAKES, 1);
    target.siege_without_calls(&SLOW_HANDSHAKES, 16);
    let said = target.stop();
    assert!(said.contains("reason=\"peer_too_many\""), "{said}");
}

impl Target {
    fn start(how: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server", "--ignored", "--nocapture"])
            .env(SERVER, how)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        let (address, key) = loop {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "the server does not come up");
            let Some((_, rest)) = line.split_once("serves ") else { continue };
            let (address, key) = rest.trim().split_once(' ').unwrap();
            break (address.parse().unwrap(), key.to_owned());
        };
        process.stdout = Some(said.into_inner());
        let memory = Memory::of(process.id());
        Self { process, address, key, memory }
    }

    /// Attacks for a while, beside a good caller.
    fn siege(&self, attack: &Attack, sources: u8, good: Ipv4Addr) {
        self.memory.forget_peak();
        let stop = AtomicBool::new(false);
        let siege = Siege { address: self.address, sources, stop: &stop };
        let (taken, waged) = thread::scope(|scope| {
            let waged = scope.spawn(|| attack.wage(&siege));
            let taken = self.calls_for(SIEGE, good);
            stop.store(true, Ordering::Relaxed);
            (taken, waged.join().unwrap())
        });
        println!(
            "{} from {sources}: {} connections, {} KiB",
            attack.name,
            waged.connections,
            waged.bytes >> 10
        );
        taken.print("  beside it");
        self.within_memory(attack.name);
    }

    fn siege_without_calls(&self, attack: &Attack, sources: u8) {
        self.memory.forget_peak();
        let stop = AtomicBool::new(false);
        let siege = Siege { address: self.address, sources, stop: &stop };
        let waged = thread::scope(|scope| {
            let waged = scope.spawn(|| attack.wage(&siege));
            thread::sleep(SIEGE);
            stop.store(true, Ordering::Relaxed);
            waged.join().unwrap()
        });
        println!(
            "{} from {sources}: {} connections, {} KiB",
            attack.name,
            waged.connections,
            waged.bytes >> 10
        );
        self.within_memory(attack.name);
    }

    fn within_memory(&self, what: &str) {
        let peak = self.memory.peak_bytes();
        println!(
            "  memory rose by {} KiB at its peak; {} are left",
            peak >> 10,
            self.memory.grown_bytes() >> 10
        );
        assert!(peak <= MEMORY_MAX_BYTES, "{what}: memory rose by {} MiB", peak >> 20);
    }

    /// Calls one after another, every fourth one on a connection of its own.
    fn calls_for(&self, time: Duration, from: Ipv4Addr) -> Taken {
        let until = Instant::now() + time;
        let mut taken = Taken::default();
        let mut kept = connect_from(from, self.address).ok();
        let mut nth = 0;
        while Instant::now() < until {
            nth += 1;
            let began = Instant::now();
            if nth % 4 == 0 {
                taken.repeats += self.call_until_answered(&mut None, from);
                taken.fresh.push(began.elapsed());
            } else {
                taken.repeats += self.call_until_answered(&mut kept, from);
                taken.kept.push(began.elapsed());
            }
            thread::sleep(Duration::from_millis(2));
        }
        taken
    }

    /// Calls until there is an answer, as clients do, and tells how often it had to call again.
    fn call_until_answered(&self, connection: &mut Option<TcpStream>, from: Ipv4Addr) -> usize {
        for nth in 0..100 {
            if connection.is_none() {
                *connection = connect_from(from, self.address).ok();
            }
            if connection.as_mut().is_some_and(|stream| self.call(stream)) {
                return nth;
            }
            *connection = None;
        }
        panic!("who has a key is not served");
    }

    fn call(&self, stream: &mut TcpStream) -> bool {
        let said = format!(
            "POST /v1/bonuses/send HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}",
            self.key
        );
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        if stream.write_all(said.as_bytes()).is_err() {
            return false;
        }
        let mut answer = Vec::new();
        let mut bytes = [0; 1024];
        while !answer.ends_with(b"}") {
            match stream.read(&mut bytes) {
                Ok(count) if count > 0 => answer.extend_from_slice(&bytes[..count]),
                _ => return false,
            }
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        true
    }

    /// Ends it, and gives its metrics.
    fn stop(mut self) -> String {
        drop(self.process.stdin.take());
        let mut said = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.process.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended; then there is nothing to end.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Taken {
    fn print(&self, when: &str) {
        println!(
            "{when}: {} calls, {} times again; p99 {:?}, on new connections {:?}",
            self.kept.len() + self.fresh.len(),
            self.repeats,
            p99(&self.kept),
            p99(&self.fresh),
        );
    }
}

fn p99(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) * 99 / 100).copied().unwrap_or_default()
}
