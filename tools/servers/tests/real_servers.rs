//! Servers as others use them: shared, private, frozen, killed, started again.

// A test that cannot go on says so by a panic, in its helpers too.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use windfall_servers::{
    Activity, Error, KafkaOptions, Private, RedisOptions, RocketMqOptions, Server, Servers, Spec, TopicKind,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Sends bytes and reads what comes within a second, or less when the server closes.
fn ask(address: &str, request: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(request).ok()?;
    let mut answer = vec![0; 4096];
    let size = stream.read(&mut answer).ok()?;
    answer.truncate(size);
    Some(answer)
}

fn redis(server: &Server, command: &str) -> Option<String> {
    let address = server.address("main").unwrap().split(',').next().unwrap().to_owned();
    ask(&address, format!("{command}\r\n").as_bytes())
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn redis_keeps_its_data_over_a_kill_and_ends_with_its_value() {
    let redis_server = Private::start(RedisOptions::default()).unwrap();
    assert_eq!(redis(&redis_server, "SET rain drops").as_deref(), Some("+OK\r\n"));
    let (pids, url) = (redis_server.pids().unwrap(), redis_server.url().to_owned());

    redis_server.freeze().unwrap();
    let start = Instant::now();
    while redis_server.activity().unwrap() != Activity::Frozen {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(redis(&redis_server, "GET rain"), None, "a frozen server answers nobody");
    redis_server.thaw().unwrap();
    redis_server.wait_ready().unwrap();

    redis_server.kill().unwrap();
    assert_eq!(redis_server.activity().unwrap(), Activity::Stopped);
    assert!(redis_server.pids().unwrap().is_empty());
    redis_server.start().unwrap();
    assert_ne!(redis_server.pids().unwrap(), pids);
    assert_eq!(redis_server.url(), url);
    assert_eq!(redis(&redis_server, "GET rain").as_deref(), Some("$5\r\ndrops\r\n"));

    let (server, dir) = (Server::clone(&redis_server), redis_server.dir().to_owned());
    let address = server.address("main").unwrap().to_owned();
    drop(redis_server);
    assert!(!dir.exists());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_password_is_asked_for() {
    let options = RedisOptions { password: Some("umbrella".to_owned()), appendonly: false };
    let server = Private::start(options).unwrap();
    assert!(redis(&server, "PING").unwrap().starts_with("-NOAUTH"));
    assert!(server.url().contains(":umbrella@"));
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_cluster_is_whole_again_after_one_of_its_nodes_was_killed() {
    let cluster = Private::start(Spec::RedisCluster).unwrap();
    assert_eq!(cluster.url().split(',').count(), 3);
    let node = cluster.part("node2").unwrap();
    node.kill().unwrap();
    assert_eq!(cluster.pids().unwrap().len(), 2);
    node.start().unwrap();
    cluster.wait_ready().unwrap();
    let info = redis(&cluster, "CLUSTER INFO").unwrap();
    assert!(info.contains("cluster_state:ok") && info.contains("cluster_size:3"), "{info}");
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn postgres_etcd_and_s3_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::at(dir.path());
    servers.up(&["postgres", "etcd", "s3"]).unwrap();
    for name in ["postgres", "etcd", "s3"] {
        let server = servers.server(name).unwrap();
        server.freeze().unwrap();
        server.thaw().unwrap();
        server.wait_ready().unwrap();
        server.kill().unwrap();
        server.start().unwrap();
        server.stop().unwrap();
        // What was stopped is started again by whoever wants it up.
        servers.up(&[name]).unwrap();
        assert_eq!(server.activity().unwrap(), Activity::Running);
        assert_eq!(servers.server(name).unwrap().url(), server.url());
    }
    servers.down(&["etcd"]).unwrap();
    assert!(matches!(servers.server("etcd"), Err(Error::NotUp { .. })));
    assert_eq!(servers.list().unwrap().len(), 2);
    servers.down(&[]).unwrap();
    assert!(servers.list().unwrap().is_empty());
}

/// Kafka's framing: length, api key, version, correlation id 7, no client id, body.
fn kafka_request(key: u8, version: u8, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(10 + body.len()).unwrap();
    [&size.to_be_bytes()[..], &[0, key, 0, version, 0, 0, 0, 7, 0xff, 0xff], body].concat()
}

fn kafka_login(address: &str, password: &str) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut send = |request: Vec<u8>| {
        stream.write_all(&request).unwrap();
        let mut size = [0; 4];
        stream.read_exact(&mut size).unwrap();
        let mut answer = vec![0; usize::try_from(u32::from_be_bytes(size)).unwrap()];
        stream.read_exact(&mut answer).unwrap();
        answer[4..6] == [0, 0]
    };
    assert!(send(kafka_request(17, 1, b"\0\x05PLAIN")), "SaslHandshake");
    let word = format!("\0windfall\0{password}");
    let body = [&u32::try_from(word.len()).unwrap().to_be_bytes()[..], word.as_bytes()].concat();
    send(kafka_request(36, 0, &body))
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn kafka_listens_for_tls_and_logins_and_comes_back_on_its_ports() {
    let options = KafkaOptions { tls: true, sasl: true, ..KafkaOptions::default() };
    let broker = Private::start(options).unwrap();
    let handshake = Command::new("openssl")
        .args(["s_client", "-verify_return_error", "-verify_ip", "127.0.0.1"])
        .args(["-CAfile", broker.setting("ca").unwrap(), "-connect", broker.address("tls").unwrap()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(handshake.status.success(), "{}", String::from_utf8_lossy(&handshake.stderr));
    assert!(kafka_login(broker.address("sasl").unwrap(), "rain"));
    assert!(!kafka_login(broker.address("sasl").unwrap(), "snow"));

    let main = broker.address("main").unwrap();
    let versions = kafka_request(18, 0, &[]);
    broker.freeze().unwrap();
    assert_eq!(ask(main, &versions), None);
    broker.kill().unwrap();
    broker.start_without_waiting().unwrap();
    broker.wait_ready().unwrap();
    assert!(ask(main, &versions).is_some());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn rocketmq_keeps_its_topics_over_a_kill_of_the_broker_alone() {
    let options = RocketMqOptions { separate_broker: true, ..RocketMqOptions::default() };
    let server = Private::start(options).unwrap();
    for (name, kind) in [("rain", TopicKind::Normal), ("queue", TopicKind::Fifo), ("later", TopicKind::Delay)]
    {
        let start = Instant::now();
        server.create_topic(name, kind, 4).unwrap();
        server.create_group(name, kind).unwrap();
        assert!(start.elapsed() < PATIENCE);
        assert!(server.has_topic(name).unwrap());
    }
    assert!(!server.has_topic("absent").unwrap());
    let refused = server.create_topic("no spaces", TopicKind::Normal, 4).unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");

    let broker = server.part("broker").unwrap();
    broker.kill().unwrap();
    assert_eq!(server.pids().unwrap().len(), 2);
    assert!(matches!(server.create_topic("other", TopicKind::Normal, 4), Err(Error::Io { .. })));
    broker.start().unwrap();
    server.wait_ready().unwrap();
    assert!(server.has_topic("queue").unwrap());
    assert!(matches!(server.part("engine"), Err(Error::Absent { .. })));
}
