//! Kafka, broker and controller in one process.

use std::path::{Path, PathBuf};

use super::{Entry, PASSWORD, Place, USER, lines, loopback, table};
use crate::jars::{KAFKA, java};
use crate::process::{Launch, find_program};
use crate::ready::Ready;
use crate::spec::KafkaOptions;
use crate::{Error, Spec, ports};

/// Any 16 bytes in base64.
const CLUSTER_ID: &str = "d2luZGZhbGwtcmFpbi0tLQ";

const LOG4J: &str = "\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
";

pub(super) fn plan(options: &KafkaOptions, place: &Place<'_>) -> Result<Entry, Error> {
    let java = java()?;
    let class_path = KAFKA.class_path(place.home)?;
    let chosen = ports::free(5)?;
    let data = place.make("data")?;
    let mut settings = table([]);
    let mut addresses = table([("main", loopback(chosen[0]).to_string())]);
    let mut listeners = vec![("PLAINTEXT", chosen[0])];
    if let Some(tls) = place.tls {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(Error::io(format!("read {}", path.display())))
        };
        place.write("keystore.pem", &[read(&tls.server.key_file)?, read(&tls.server.cert_file)?].concat())?;
        place.write("ca.pem", &read(&tls.ca_file)?)?;
    } else if options.tls {
        settings.insert("ca".to_owned(), certificates(place)?.display().to_string());
    }
    let by_tls = options.tls || place.tls.is_some();
    if by_tls {
        addresses.insert("tls".to_owned(), loopback(chosen[2]).to_string());
        listeners.push(("SSL", chosen[2]));
    }
    if options.sasl {
        settings.insert("user".to_owned(), USER.to_owned());
        settings.insert("password".to_owned(), PASSWORD.to_owned());
        addresses.insert("sasl".to_owned(), loopback(chosen[3]).to_string());
        listeners.push(("SASL_PLAINTEXT", chosen[3]));
    }
    if by_tls && options.sasl {
        addresses.insert("sasl_tls".to_owned(), loopback(chosen[4]).to_string());
        listeners.push(("SASL_SSL", chosen[4]));
    }
    let mut ours = base(&listeners, chosen[1], &data);
    if by_tls {
        ours.extend(tls(place));
    }
    if options.sasl {
        ours.extend(sasl(&listeners));
    }
    let config = place.write("server.properties", &lines("=", &ours, &options.properties))?;
    let log4j = place.write("log4j2.properties", LOG4J)?;

    let launch = |main: &str, heap: &str, args: &[&str]| Launch {
        program: java.clone(),
        args: [
            &["-Xms64m", heap, "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=128m"].map(str::to_owned)[..],
            &[format!("-Dlog4j2.configurationFile={}", log4j.display())],
            &["-cp".to_owned(), class_path.clone(), main.to_owned()],
            &args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>(),
        ]
        .concat(),
        env: Vec::new(),
        user: None,
        folder: place.dir.clone(),
    };
    let config = config.display().to_string();
    let scram =
        ["SCRAM-SHA-256", "SCRAM-SHA-512"].map(|kind| format!("{kind}=[name={USER},password={PASSWORD}]"));
    let mut format = vec!["format", "-t", CLUSTER_ID, "-c", &config, "--standalone"];
    if options.sasl {
        format.extend(scram.iter().flat_map(|user| ["--add-scram", user]));
    }
    launch("kafka.tools.StorageTool", "-Xmx128m", &format).run("making Kafka's data with StorageTool")?;

    let url = loopback(if place.tls.is_some() { chosen[2] } else { chosen[0] }).to_string();
    let ready = vec![Ready::Line("Kafka Server started".to_owned()), Ready::Kafka(loopback(chosen[0]))];
    Ok(Entry {
        spec: Spec::Kafka(options.clone()),
        dir: place.dir.clone(),
        elsewhere: Vec::new(),
        url,
        addresses,
        settings,
        parts: vec![place.part("kafka", launch("kafka.Kafka", "-Xmx256m", &[&config]), ready)],
        ports: chosen,
    })
}

fn base(listeners: &[(&'static str, u16)], controller: u16, data: &Path) -> Vec<(&'static str, String)> {
    let join = |listeners: &[(&str, u16)]| {
        let all: Vec<String> =
            listeners.iter().map(|(name, port)| format!("{name}://{}", loopback(*port))).collect();
        all.join(",")
    };
    let all = [listeners, &[("CONTROLLER", controller)]].concat();
    let protocols =
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL";
    let one = || "1".to_owned();
    let four = || "4".to_owned();
    vec![
        ("process.roles", "broker,controller".to_owned()),
        ("node.id", one()),
        ("controller.quorum.bootstrap.servers", loopback(controller).to_string()),
        ("controller.listener.names", "CONTROLLER".to_owned()),
        ("listeners", join(&all)),
        ("advertised.listeners", join(listeners)),
        ("listener.security.protocol.map", protocols.to_owned()),
        ("inter.broker.listener.name", "PLAINTEXT".to_owned()),
        ("log.dirs", data.display().to_string()),
        ("auto.create.topics.enable", "false".to_owned()),
        ("group.initial.rebalance.delay.ms", "0".to_owned()),
        ("offsets.topic.num.partitions", four()),
        ("offsets.topic.replication.factor", one()),
        ("transaction.state.log.num.partitions", four()),
        ("transaction.state.log.replication.factor", one()),
        ("transaction.state.log.min.isr", one()),
        ("share.coordinator.state.topic.num.partitions", one()),
        ("share.coordinator.state.topic.replication.factor", one()),
        ("share.coordinator.state.topic.min.isr", one()),
        // Its default is half of our heap.
        ("log.cleaner.dedupe.buffer.size", "8388608".to_owned()),
    ]
}

fn tls(place: &Place<'_>) -> Vec<(&'static str, String)> {
    let client = if place.tls.is_some_and(|tls| tls.requires_client) { "required" } else { "none" };
    vec![
        ("ssl.client.auth", client.to_owned()),
        ("ssl.keystore.type", "PEM".to_owned()),
        ("ssl.keystore.location", place.file("keystore.pem").display().to_string()),
        ("ssl.truststore.type", "PEM".to_owned()),
        ("ssl.truststore.location", place.file("ca.pem").display().to_string()),
    ]
}

fn sasl(listeners: &[(&'static str, u16)]) -> Vec<(&'static str, String)> {
    let plain = format!(
        "org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\";"
    );
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;".to_owned();
    let mut ours = vec![("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512".to_owned())];
    for (name, _) in listeners {
        let keys = match *name {
            "SASL_PLAINTEXT" => [
                "listener.name.sasl_plaintext.plain.sasl.jaas.config",
                "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config",
                "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config",
            ],
            "SASL_SSL" => [
                "listener.name.sasl_ssl.plain.sasl.jaas.config",
                "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config",
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config",
            ],
            _ => continue,
        };
        ours.extend(keys.into_iter().zip([plain.clone(), scram.clone(), scram.clone()]));
    }
    ours
}

/// A CA of this server's own and a certificate by it for 127.0.0.1 and localhost; the CA's file.
fn certificates(place: &Place<'_>) -> Result<PathBuf, Error> {
    let openssl = find_program("openssl", "openssl", &[])?;
    let run = |args: &[&str]| {
        Launch {
            program: openssl.clone(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: Vec::new(),
            user: None,
            folder: place.dir.clone(),
        }
        .run("making certificates with openssl")
    };
    place.write("san.conf", "subjectAltName=IP:127.0.0.1,DNS:localhost\n")?;
    let key = ["-newkey", "rsa:2048", "-nodes"];
    let ca = ["-x509", "-days", "30", "-subj", "/CN=windfall", "-keyout", "ca.key", "-out", "ca.pem"];
    run(&[&["req"], &key[..], &ca[..]].concat())?;
    let server = ["-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"];
    run(&[&["req"], &key[..], &server[..]].concat())?;
    let sign = ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"];
    run(&[&sign[..], &["-days", "30", "-extfile", "san.conf", "-out", "server.pem"]].concat())?;
    let read = |name: &str| {
        std::fs::read_to_string(place.file(name)).map_err(Error::io(format!("read {name} of openssl")))
    };
    place.write("keystore.pem", &[read("server.key")?, read("server.pem")?].concat())?;
    Ok(place.file("ca.pem"))
}
