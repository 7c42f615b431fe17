//! Executors of XXL-JOB as they are released: `tools/interop/xxl/InteropExecutor.java`, with the jars of one generation.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::timeout;

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(120);

/// Not ASCII, and what JSON and HTML escape.
pub const PARAMS: &str = "höflich <b>\"&'=\\\n祝";

/// A Java process that is killed with the test, whatever happens.
pub struct Java {
    child: Child,
    log: PathBuf,
    address: String,
}

impl Drop for Java {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Java {
    /// Starts an executor of an app that registers at this URL. Its files go into the folder.
    pub fn start(jars: &Path, admin_url: &str, app: &str, token: &str, folder: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/interop/xxl/InteropExecutor.java");
        let log = folder.join("log");
        let out = std::fs::File::create(&log).unwrap();
        let port = free_port();
        let child = Command::new("java")
            .args(["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg(jars.join("*"))
            .arg(source)
            .args([admin_url, app, token, &port.to_string()])
            .arg(folder.join("runs"))
            .stdin(Stdio::piped())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .expect(
                "java is missing: ./dev test installs it, or: sudo apt-get install -y default-jdk-headless",
            );
        Self { child, log, address: format!("http://127.0.0.1:{port}") }
    }

    /// The address that it registers, as it is kept.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What it has written to its output.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends the test where the process ended before it should.
    pub fn assert_runs(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let log = self.log();
            let needs = "it needs a JDK of 17 or newer (sudo apt-get install -y default-jdk-headless)";
            panic!("the executor ended ({status}); {needs}. Its log:\n{log}");
        }
    }

    /// Ends it at once, by SIGKILL: it says nothing to anybody any more.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Asks it to end in order, and waits.
    pub async fn stop(&mut self) {
        drop(self.child.stdin.take());
        let ended = async {
            loop {
                match self.child.try_wait().unwrap() {
                    Some(status) => return status,
                    None => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        assert!(timeout(PATIENCE, ended).await.expect("the executor ends").success());
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}
