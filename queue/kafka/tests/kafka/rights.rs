//! The rights that `deploy/kafka/acls.sh` gives, on a broker with an authorizer: each role can do its work, and nothing else.

use super::{PATIENCE, options};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_conformance::broker::{Ledger, Reader};
use windfall_contract::broker::{Broker, Fetch, OpenError, OutRecord, PollError, Tag};
use windfall_queue_kafka::{KafkaBroker, KafkaOptions, Mechanism, Sasl, Secret};
use windfall_servers::{KafkaOptions as ServerOptions, Private, kafka_tools_jars};

const ROLES: [&str; 4] = ["sdk-gateway", "consumer", "reward-service", "scheduler"];
const PASSWORD: &str = "rain";
/// How long a client that is turned away is watched.
const WATCHED: Duration = Duration::from_secs(3);

/// A broker that asks everybody for rights but who comes by the plain listener, as its own administrator does.
fn with_authorizer() -> Private {
    let users: String =
        ROLES.iter().chain(&["nobody"]).map(|role| format!(" user_windfall-{role}=\"{PASSWORD}\"")).collect();
    let login = format!("org.apache.kafka.common.security.plain.PlainLoginModule required{users};");
    let properties = [
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("super.users", "User:ANONYMOUS"),
        ("allow.everyone.if.no.acl.found", "false"),
        ("listener.name.sasl_plaintext.plain.sasl.jaas.config", &login),
    ];
    let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    Private::start(ServerOptions { tls: false, sasl: true, properties }).unwrap()
}

/// Runs the script with Kafka's own tool.
fn add_rights(server: &Private) {
    let folder = tempfile::tempdir().unwrap();
    let (tool, admin) = (folder.path().join("kafka-acls.sh"), folder.path().join("admin.properties"));
    fs::write(&admin, "").unwrap();
    let jars = kafka_tools_jars().unwrap();
    let text = format!(
        "#!/bin/sh\nexec java -Xmx64m -XX:TieredStopAtLevel=1 -cp '{}/*' org.apache.kafka.tools.AclCommand \"$@\"\n",
        jars.display()
    );
    fs::write(&tool, text).unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kafka/acls.sh");
    let output = Command::new("bash")
        .args([script, server.url()])
        .arg(&admin)
        .env("KAFKA_ACLS", &tool)
        .output()
        .unwrap();
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{printed}");
    assert!(output.status.success(), "{printed}{errors}");
}

/// A role's connection.
struct Role {
    name: &'static str,
    broker: Arc<KafkaBroker>,
}

impl Role {
    fn of(server: &Private, name: &'static str) -> Self {
        let sasl = Sasl {
            mechanism: Mechanism::Plain,
            username: format!("windfall-{name}"),
            password: Secret(PASSWORD.into()),
        };
        let options =
            KafkaOptions { sasl: Some(sasl), ..options(server.address("sasl").unwrap(), String::new()) };
        Self { name, broker: KafkaBroker::open(&options).unwrap() }
    }

    /// Opens a topic and writes a record: whether it is stored, or why not.
    fn write(&self, topic: &str) -> Result<(), String> {
        self.broker.ensure_topic(topic, 1).map_err(|error| refused(&error))?;
        let ledger = Arc::new(Ledger::default());
        let producer = self.broker.producer(topic, ledger.clone()).map_err(|error| refused(&error))?;
        producer.send(Tag(1), OutRecord { key: b"k", payload: self.name.as_bytes() }).unwrap();
        let began = Instant::now();
        let reports = loop {
            let reports = ledger.reports();
            if !reports.is_empty() {
                break reports;
            }
            assert!(began.elapsed() < PATIENCE, "{}: no report of {topic}", self.name);
            std::thread::sleep(Duration::from_millis(10));
        };
        let report = format!("{reports:?}");
        if report.contains("Stored") { Ok(()) } else { Err(report) }
    }

    /// Reads this many records and commits them.
    async fn read(&self, topic: &str, group: &str, records: usize) {
        let mut reader = Reader::new(self.broker.consumer(topic, group).await.unwrap());
        let seen = reader.read(records, PATIENCE).await.unwrap();
        assert_eq!(seen.len(), records, "{} reads {topic}", self.name);
        reader.commit().await.unwrap();
        reader.close().await;
    }

    /// Asks that it is turned away where it reads.
    async fn reads_nothing(&self, topic: &str, group: &str) {
        let mut consumer = match self.broker.consumer(topic, group).await {
            Ok(consumer) => consumer,
            Err(error) => return drop(refused(&error)),
        };
        let fetch = Fetch { max_records: 10, max_bytes: 1 << 20, wait: Duration::from_millis(50) };
        let (began, mut said) = (Instant::now(), Vec::new());
        while began.elapsed() < WATCHED {
            match consumer.poll(fetch).await {
                Ok(polled) => assert!(polled.records.is_empty(), "{} reads {topic} as {group}", self.name),
                Err(PollError::Unavailable(what)) => said.push(what),
                Err(other) => panic!("{other}"),
            }
        }
        assert!(
            said.iter().any(|what| what.contains("uthoriz")),
            "{}, {topic}, {group}: {said:?}",
            self.name
        );
    }
}

/// Asks that it was for want of a right.
fn refused(error: &OpenError) -> String {
    let said = error.to_string();
    assert!(matches!(error, OpenError::Invalid(_)) && said.contains("uthoriz"), "{error:?}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn each_role_can_do_its_work_and_nothing_else() {
    let (server, roles) = tokio::task::spawn_blocking(|| {
        let server = with_authorizer();
        let before = Role::of(&server, "consumer");
        before.write("cash-1").unwrap_err();
        add_rights(&server);
        let roles = [ROLES[0], ROLES[1], ROLES[2], ROLES[3], "nobody"].map(|name| Role::of(&server, name));
        (server, roles)
    })
    .await
    .unwrap();
    let [gateway, consumer, rewards, scheduler, nobody] = &roles;
    // Whoever opens a topic first makes it.
    tokio::task::block_in_place(|| {
        for role in [gateway, consumer, rewards, scheduler] {
            assert_eq!(role.write("cash-1"), Ok(()), "{}", role.name);
        }
        assert_eq!(scheduler.write("timers-1"), Ok(()));
        for role in [gateway, consumer, rewards, nobody] {
            role.write("timers-1").unwrap_err();
            role.write("other-1").unwrap_err();
        }
        scheduler.write("other-1").unwrap_err();
        nobody.write("cash-1").unwrap_err();
    });
    consumer.read("cash-1", "reward", 4).await;
    scheduler.read("timers-1", "windfall-timers-00", 1).await;
    assert_eq!(rewards.broker.lag("cash-1", "reward").await.unwrap().records(), 0, "all was committed");
    for role in [gateway, rewards, scheduler, nobody] {
        role.reads_nothing("cash-1", "reward").await;
    }
    // A group of its own would show rewards to who may read them, and leave the role's own offsets alone.
    consumer.reads_nothing("cash-1", "other").await;
    // librdkafka looks for the group's coordinator until its time is over.
    gateway.broker.lag("cash-1", "reward").await.unwrap_err();
    drop(server);
}
