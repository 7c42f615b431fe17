//! RocketMQ: name server, broker and proxy.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{Entry, Place, lines, loopback, table};
use crate::jars::{ROCKETMQ, java};
use crate::process::Launch;
use crate::ready::Ready;
use crate::spec::RocketMqOptions;
use crate::{Error, Spec, Tls, ports, say};

/// The cluster's name; each broker makes a topic of this name, whose route says "I am here".
const CLUSTER: &str = "DefaultCluster";

const NAMESRV: &str = "org.apache.rocketmq.namesrv.NamesrvStartup";
const BROKER: &str = "org.apache.rocketmq.broker.BrokerStartup";
const PROXY: &str = "org.apache.rocketmq.proxy.ProxyStartup";

const NAMESRV_MEMORY: [&str; 3] = ["-Xms16m", "-Xmx48m", "-XX:MaxDirectMemorySize=32m"];
const STORE_MEMORY: [&str; 3] = ["-Xms96m", "-Xmx256m", "-XX:MaxDirectMemorySize=192m"];
const PROXY_MEMORY: [&str; 3] = ["-Xms48m", "-Xmx128m", "-XX:MaxDirectMemorySize=128m"];

const MEMORY: &str = "/dev/shm";
/// Below RocketMQ's 90 with some room to fill.
const MAX_USED_PERCENT: u64 = 88;
const MIN_MEMORY_BYTES: u64 = 2 << 30;

pub(super) fn plan(options: &RocketMqOptions, place: &Place<'_>) -> Result<Entry, Error> {
    let jvm = Jvm { java: java()?, class_path: ROCKETMQ.class_path(place.home)?, place };
    let chosen = Ports::choose()?;
    let namesrv = loopback(chosen.namesrv);
    let store = roomy(place)?;
    let names = place.write("namesrv.conf", &format!("listenPort={}\n", chosen.namesrv))?;
    let broker =
        place.write("broker.conf", &lines("=", &broker(&chosen, &store), &options.broker_properties))?;
    let proxy = place.write("rmq-proxy.json", &proxy(&chosen, options, place.tls).to_string())?;

    let namesrv_text = namesrv.to_string();
    let (names, broker, proxy) =
        (names.display().to_string(), broker.display().to_string(), proxy.display().to_string());
    let route = Ready::Route { namesrv, topic: CLUSTER.to_owned() };
    let http2 = Ready::Http2(loopback(chosen.grpc));
    let mut parts = vec![place.part(
        "namesrv",
        jvm.launch(NAMESRV, &NAMESRV_MEMORY, &["-c", &names]),
        vec![Ready::Namesrv(namesrv)],
    )];
    let proxy_args = ["-n", &namesrv_text, "-pc", &proxy, "-pm"];
    if options.separate_broker {
        let launch = jvm.launch(BROKER, &STORE_MEMORY, &["-n", &namesrv_text, "-c", &broker]);
        parts.push(place.part("broker", launch, vec![route.clone()]));
        let args = [&proxy_args[..], &["cluster"]].concat();
        parts.push(place.part("proxy", jvm.launch(PROXY, &PROXY_MEMORY, &args), vec![http2, route]));
    } else {
        let args = [&proxy_args[..], &["local", "-bc", &broker]].concat();
        parts.push(place.part("proxy", jvm.launch(PROXY, &STORE_MEMORY, &args), vec![http2, route]));
    }
    Ok(Entry {
        spec: Spec::RocketMq(options.clone()),
        dir: place.dir.clone(),
        elsewhere: vec![store],
        url: loopback(chosen.grpc).to_string(),
        addresses: table([
            ("main", loopback(chosen.grpc).to_string()),
            ("namesrv", namesrv_text),
            ("broker", loopback(chosen.broker).to_string()),
            ("remoting", loopback(chosen.remoting).to_string()),
        ]),
        settings: table([("cluster", CLUSTER.to_owned())]),
        ports: chosen.all(),
        parts,
    })
}

struct Ports {
    grpc: u16,
    remoting: u16,
    namesrv: u16,
    broker: u16,
    ha: u16,
}

impl Ports {
    /// The broker takes a second port by itself, two below its own.
    fn choose() -> Result<Self, Error> {
        loop {
            let free = ports::free(10)?;
            let Some(broker) = free.iter().copied().find(|port| free.contains(&(port - 2))) else { continue };
            let others: Vec<u16> =
                free.into_iter().filter(|port| *port != broker && *port != broker - 2).collect();
            if let [grpc, remoting, namesrv, ha, ..] = others[..] {
                return Ok(Self { grpc, remoting, namesrv, broker, ha });
            }
        }
    }

    fn all(&self) -> Vec<u16> {
        vec![self.grpc, self.remoting, self.namesrv, self.broker, self.broker - 2, self.ha]
    }
}

fn broker(ports: &Ports, store: &Path) -> Vec<(&'static str, String)> {
    vec![
        ("brokerClusterName", CLUSTER.to_owned()),
        ("brokerName", "windfall".to_owned()),
        ("brokerIP1", "127.0.0.1".to_owned()),
        ("listenPort", ports.broker.to_string()),
        ("haListenPort", ports.ha.to_string()),
        ("namesrvAddr", loopback(ports.namesrv).to_string()),
        ("storePathRootDir", store.display().to_string()),
        ("storePathCommitLog", store.join("commitlog").display().to_string()),
        // Small files: each is mapped whole when it is made.
        ("mappedFileSizeCommitLog", "67108864".to_owned()),
        ("mappedFileSizeConsumeQueue", "600000".to_owned()),
        ("maxHashSlotNum", "10000".to_owned()),
        ("maxIndexNum", "40000".to_owned()),
        ("mappedFileSizeTimerLog", "1048576".to_owned()),
        ("timerWheelEnable", "true".to_owned()),
        // Each flush counts the 1.2 million places of the wheel: once a second, that is a seventh of a processor.
        ("timerFlushIntervalMs", "30000".to_owned()),
        ("flushDiskType", "ASYNC_FLUSH".to_owned()),
        ("diskMaxUsedSpaceRatio", "95".to_owned()),
        // From 85 % disk use on it would delete messages that have not been received yet.
        ("cleanFileForciblyEnable", "false".to_owned()),
        ("waitTimeMillsInSendQueue", "3000".to_owned()),
        // Each writer thread keeps a direct buffer of four times this.
        ("maxMessageSize", "1048576".to_owned()),
        // Topics and groups are made on purpose: a wrong name is an error.
        ("autoCreateTopicEnable", "false".to_owned()),
        ("autoCreateSubscriptionGroup", "false".to_owned()),
    ]
}

fn proxy(ports: &Ports, options: &RocketMqOptions, tls: Option<&Tls>) -> Value {
    let ours = json!({
        "rocketMQClusterName": CLUSTER,
        "namesrvAddr": loopback(ports.namesrv).to_string(),
        "grpcServerPort": ports.grpc,
        "remotingListenPort": ports.remoting,
        // A topic that was asked for before it existed stays absent that long; the default is 20 s.
        "topicRouteServiceCacheRefreshSeconds": 1,
        "topicConfigCacheRefreshSeconds": 1,
        "subscriptionGroupConfigCacheRefreshSeconds": 1,
        "grpcClientConsumerMinLongPollingTimeoutMillis": 500,
        "minInvisibleTimeMillsForRecv": 1000,
        "enableBatchAck": true,
        // A client behind a relay is told the relay's port.
        "useEndpointPortFromRequest": true,
        "grpcShutdownTimeSeconds": 1,
    });
    let mut all: Map<String, Value> = ours.as_object().cloned().unwrap_or_default();
    if let Some(tls) = tls {
        let path = |path: &Path| Value::from(path.display().to_string());
        all.insert("tlsTestModeEnable".to_owned(), false.into());
        all.insert("tlsKeyPath".to_owned(), path(&tls.server.key_file));
        all.insert("tlsCertPath".to_owned(), path(&tls.server.cert_file));
    }
    all.extend(options.proxy_properties.iter().cloned());
    Value::Object(all)
}

/// A folder for the store where RocketMQ will take messages: it refuses them on a disk that is more than
/// 90 % full, and no setting raises that. Memory will do then, where there is enough.
fn roomy(place: &Place<'_>) -> Result<PathBuf, Error> {
    let store = place.make("store")?;
    if room(&store)?.used_percent < MAX_USED_PERCENT {
        return Ok(store);
    }
    let memory = Path::new(MEMORY);
    if memory.is_dir() {
        let room = room(memory)?;
        if room.used_percent < MAX_USED_PERCENT && room.free_bytes >= MIN_MEMORY_BYTES {
            say(&format!(
                "the disk of {} is nearly full; RocketMQ's store goes to {MEMORY}",
                store.display()
            ));
            return tempfile::Builder::new()
                .prefix("windfall-rocketmq-")
                .tempdir_in(memory)
                .map(tempfile::TempDir::keep)
                .map_err(Error::io(format!("make a folder in {MEMORY}")));
        }
    }
    Err(Error::DiskFull { dir: store, used_percent: MAX_USED_PERCENT })
}

struct Room {
    used_percent: u64,
    free_bytes: u64,
}

/// The disk use as RocketMQ computes it: the used part of what is used or usable.
fn room(dir: &Path) -> Result<Room, Error> {
    let disk = rustix::fs::statvfs(dir)
        .map_err(|error| Error::io(format!("ask how full {} is", dir.display()))(error.into()))?;
    let used = disk.f_blocks.saturating_sub(disk.f_bfree);
    let used_percent = (used * 100).div_ceil((used + disk.f_bavail).max(1));
    Ok(Room { used_percent, free_bytes: disk.f_bavail.saturating_mul(disk.f_frsize) })
}

struct Jvm<'a> {
    java: PathBuf,
    class_path: String,
    place: &'a Place<'a>,
}

impl Jvm<'_> {
    fn launch(&self, main: &str, memory: &[&str], args: &[&str]) -> Launch {
        let home = self.place.dir.display();
        // The store unmaps its files through the JDK's inside.
        let fixed = [
            "-XX:+UseSerialGC",
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
            "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            // Logs and small files go under the user's home otherwise.
            &format!("-Duser.home={home}"),
        ];
        // Brokers and proxies take TLS and plain text at one port. Without certificates each of their listeners would make an
        // RSA key at its start: where the processors are busy, that was half of a start of 80 s.
        let tls = self.place.tls.map_or_else(
            || vec!["-Dtls.server.mode=disabled".to_owned()],
            |tls| {
                vec![
                    "-Dtls.test.mode.enable=false".to_owned(),
                    format!("-Dtls.server.certPath={}", tls.server.cert_file.display()),
                    format!("-Dtls.server.keyPath={}", tls.server.key_file.display()),
                ]
            },
        );
        let words = [memory, &fixed[..]].concat().into_iter().map(str::to_owned).chain(tls);
        let program = ["-cp", &self.class_path, main];
        Launch {
            program: self.java.clone(),
            args: words.chain(program.iter().chain(args).map(|word| (*word).to_owned())).collect(),
            env: vec![("ROCKETMQ_HOME".to_owned(), home.to_string())],
            user: None,
            folder: self.place.dir.clone(),
        }
    }
}
