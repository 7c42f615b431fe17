//! Bad input to real parts: wrong addresses and credentials, a ledger of a newer version, records on our topics that
//! are not ours. Each gets a clear error, or is archived with its bytes; nothing sticks.
#![allow(clippy::unwrap_used)] // a test ends where its premise fails

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::types::RDKafkaErrorCode;
use std::path::Path;
use std::time::{Duration, Instant};
use windfall_servers::{KafkaOptions, Private, RedisOptions, Servers};
use windfall_tests::{Ended, Run, assert_clean, plain, scratch};

/// Nobody listens there.
const NOBODY: &str = "127.0.0.1:9";

/// What the demo says to these parts.
fn demo(parts: &[&str]) -> Ended {
    let dir = scratch();
    let args = ["demo", "--calm", "--rewards", "100", "--data"];
    Run::new(plain()).args(args).arg(dir.path().join("data")).args(parts).end()
}

/// Demands a refusal: exit 2, nothing on standard output, and these words on standard error.
#[track_caller]
fn assert_refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code, Some(2), "{ended}");
    assert_eq!(ended.stdout, "", "{ended}");
    for word in words {
        assert!(ended.stderr.contains(word), "no word of {word:?}: {ended}");
    }
    assert!(!ended.stderr.contains("panicked"), "{ended}");
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn addresses_where_nobody_is_are_named() {
    assert_refused(&demo(&["--kafka", NOBODY]), &["broker a", NOBODY]);
    assert_refused(&demo(&["--rocketmq", &format!("{NOBODY},{NOBODY}")]), &["queues", NOBODY]);
    assert_refused(&demo(&["--rocketmq", NOBODY]), &["host:port,host:port"]);
    assert_refused(&demo(&["--redis", &format!("redis://{NOBODY}")]), &["token store", NOBODY]);
    assert_refused(&demo(&["--postgres", &format!("postgres://u:secret@{NOBODY}/db")]), &["ledger", NOBODY]);
    assert_refused(&demo(&["--etcd", &format!("http://{NOBODY}")]), &["rules", NOBODY]);
    assert_refused(&demo(&["--postgres", "nonsense"]), &["postgres://user:password@host:port/database"]);
    assert_refused(&demo(&["--kafka", NOBODY, "--kafka2", NOBODY, "--rocketmq", NOBODY]), &["--kafka2"]);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn who_may_not_enter_is_told_so_without_the_password() {
    let locked = RedisOptions { password: Some("sesame".into()), ..RedisOptions::default() };
    let redis = Private::start(locked).unwrap();
    let address = redis.url().rsplit(['/', '@']).next().unwrap().to_owned();
    assert_refused(&demo(&["--redis", &format!("redis://{address}")]), &["password"]);
    let wrong = demo(&["--redis", &format!("redis://:open-up@{address}")]);
    assert_refused(&wrong, &["password"]);
    assert!(!wrong.stderr.contains("open-up"), "{wrong}");

    let servers = Servers::from_env_or_start(&["postgres"]).unwrap();
    let url = servers.server("postgres").unwrap().url().to_owned();
    let wrong = demo(&["--postgres", &url.replace(":rain@", ":open-up@")]);
    assert_refused(&wrong, &["ledger", "password"]);
    assert!(!wrong.stderr.contains("open-up"), "{wrong}");
    // A user who may look and make nothing.
    let user = format!("guest{}", std::process::id());
    sql(&url, &format!("CREATE ROLE {user} LOGIN PASSWORD 'guest'"));
    let guest = demo(&["--postgres", &url.replace("windfall:rain@", &format!("{user}:guest@"))]);
    sql(&url, &format!("DROP ROLE {user}"));
    assert_refused(&guest, &["ledger", "grant"]);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_ledger_of_a_newer_version_is_left_alone() {
    let servers = Servers::from_env_or_start(&["postgres"]).unwrap();
    let url = servers.server("postgres").unwrap().url().to_owned();
    let dir = scratch();
    let data = dir.path().join("data");
    let ended = Run::new(plain())
        .args(["demo", "--calm", "--rewards", "1000", "--postgres", &url, "--data"])
        .arg(&data)
        .end();
    assert_eq!(ended.code, Some(0), "{ended}");
    let schema = format!("windfall_{}", run_of(&data));
    sql(&url, &format!("INSERT INTO {schema}.schema_version (version) VALUES (99)"));
    let reconcile = || Run::new(plain()).args(["reconcile", "--json", "--data"]).arg(&data).end();
    assert_refused(&reconcile(), &["99", "this build reads up to"]);
    let resume = Run::new(plain()).args(["demo", "--resume", "--data"]).arg(&data).end();
    assert_refused(&resume, &["99", "this build reads up to"]);
    sql(&url, &format!("DELETE FROM {schema}.schema_version WHERE version = 99"));
    assert_eq!(reconcile().code, Some(0));
}

/// Garbage, nothing at all and ten megabytes come on a topic of ours while it rains.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn records_that_are_not_ours_are_archived_with_their_bytes() {
    let kafka = Private::start(KafkaOptions::default()).unwrap();
    let dir = scratch();
    let data = dir.path().join("data");
    let running = Run::new(plain())
        .args(["demo", "--calm", "--json", "--rewards", "8000", "--seconds-of-rain", "15", "--kafka"])
        .args([kafka.url(), "--data"])
        .arg(&data)
        .start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let raw: FutureProducer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", kafka.url())
        .set("message.max.bytes", "12000000")
        // A broker that does not answer ends the test soon.
        .set("message.timeout.ms", "30000")
        .create()
        .unwrap();
    let topic = topic_of(&data, &raw);
    take_huge_records(&kafka, &topic);
    let huge = vec![7_u8; 10 << 20];
    for payload in [Some(&b"\xff\xfe garbage"[..]), None, Some(&huge)] {
        write_strange(&runtime, &raw, &topic, payload);
    }

    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert_clean(&ended.json(), "strange records");
    let list = Run::new(plain()).args(["archive", "list", "--json", "--data"]).arg(&data).end();
    let rows = list.json();
    let sizes: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| row["payload_bytes"].as_u64().unwrap()).collect();
    for size in [10, 0, 10 << 20] {
        assert!(sizes.contains(&size), "no entry of {size} bytes: {sizes:?}");
    }
}

/// The run's name in its topics, keys and tables.
fn run_of(data: &Path) -> String {
    let manifest = std::fs::read_to_string(data.join("demo.toml")).unwrap();
    let line = manifest.lines().find(|line| line.starts_with("run = ")).unwrap();
    line.split('"').nth(1).unwrap().to_owned()
}

/// Waits until the demo has made its topic.
fn topic_of(data: &Path, client: &FutureProducer) -> String {
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < Duration::from_secs(60), "the demo makes no topic");
        std::thread::sleep(Duration::from_millis(100));
        if !data.join("demo.toml").exists() {
            continue;
        }
        let topic = format!("windfall-{}-cash-a", run_of(data));
        let all = client.client().fetch_metadata(None, Duration::from_secs(5)).unwrap();
        if all.topics().iter().any(|one| one.name() == topic && one.partitions().len() == 4) {
            return topic;
        }
    }
}

/// Writes a record to partition 0. A broker learns of a topic's new limit a while after the change was answered: until
/// then it refuses what is large.
fn write_strange(
    runtime: &tokio::runtime::Runtime,
    producer: &FutureProducer,
    topic: &str,
    payload: Option<&[u8]>,
) {
    let started = Instant::now();
    loop {
        let mut record = FutureRecord::<(), [u8]>::to(topic).partition(0);
        record.payload = payload;
        match runtime.block_on(producer.send(record, Duration::from_secs(30))) {
            Ok(_) => return,
            Err((error, _)) => {
                let is_new = error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge);
                assert!(is_new && started.elapsed() < Duration::from_secs(10), "{error}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn take_huge_records(kafka: &Private, topic: &str) {
    let admin: AdminClient<DefaultClientContext> =
        rdkafka::ClientConfig::new().set("bootstrap.servers", kafka.url()).create().unwrap();
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set("max.message.bytes", "12000000");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for outcome in runtime.block_on(admin.alter_configs([&change], &AdminOptions::new())).unwrap() {
        outcome.unwrap();
    }
}

fn sql(url: &str, text: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let talking = tokio::spawn(connection);
        client.batch_execute(text).await.unwrap();
        drop(client);
        talking.await.unwrap().unwrap();
    });
}
