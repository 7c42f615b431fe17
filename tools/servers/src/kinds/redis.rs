//! Redis: one node, or three masters in a cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::{Entry, Part, Place, lines, loopback, table};
use crate::process::{Launch, POLL, find_program};
use crate::ready::{Ready, connect, redis_command};
use crate::spec::RedisOptions;
use crate::{Error, Spec, Tls, ports};

/// Slots of a Redis Cluster, by its specification.
const SLOTS: usize = 16_384;
const NODES: usize = 3;
const TLS_SCHEME: &str = "rediss://";
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn plan(options: &RedisOptions, place: &Place<'_>) -> Result<Entry, Error> {
    let chosen = ports::free(2)?;
    let (plain, protected) = (loopback(chosen[0]), loopback(chosen[1]));
    let (scheme, address) = if place.tls.is_some() { ("rediss", protected) } else { ("redis", plain) };
    let mut settings = table([]);
    let mut url = format!("{scheme}://{address}");
    if let Some(password) = &options.password {
        settings.insert("password".to_owned(), password.clone());
        url = format!("{scheme}://:{password}@{address}");
    }
    let tls = place.tls.map(|tls| tls_lines(tls, chosen[1])).unwrap_or_default();
    Ok(Entry {
        spec: Spec::Redis(options.clone()),
        dir: place.dir.clone(),
        elsewhere: Vec::new(),
        url,
        addresses: table([("main", address.to_string()), ("plain", plain.to_string())]),
        settings,
        parts: vec![node(place, "redis", chosen[0], options, &tls)?],
        ports: chosen,
    })
}

pub(super) fn plan_cluster(place: &Place<'_>) -> Result<Entry, Error> {
    let chosen = ports::free(3 * NODES)?;
    let (plain, buses, protected) = (&chosen[..NODES], &chosen[NODES..2 * NODES], &chosen[2 * NODES..]);
    let (scheme, clients) = if place.tls.is_some() { (TLS_SCHEME, protected) } else { ("redis://", plain) };
    let mut addresses = BTreeMap::new();
    let mut parts = Vec::new();
    for (index, (client, bus)) in clients.iter().zip(buses).enumerate() {
        let name = format!("node{}", index + 1);
        let mut cluster = vec![
            ("cluster-enabled", "yes".to_owned()),
            ("cluster-port", bus.to_string()),
            // A node that a busy machine does not let answer for a while is not gone. One that is gone is noticed after
            // this; its slots then answer with an error.
            ("cluster-node-timeout", "10000".to_owned()),
        ];
        if let Some(tls) = place.tls {
            cluster.extend(tls_lines(tls, *client));
            cluster.push(("tls-cluster", "yes".to_owned()));
        }
        parts.push(node(place, &name, plain[index], &RedisOptions::default(), &cluster)?);
        addresses.insert(name, loopback(*client).to_string());
    }
    let all: Vec<String> = clients.iter().map(|port| loopback(*port).to_string()).collect();
    addresses.insert("main".to_owned(), all.join(","));
    Ok(Entry {
        spec: Spec::RedisCluster,
        dir: place.dir.clone(),
        elsewhere: Vec::new(),
        url: all.iter().map(|address| format!("{scheme}{address}")).collect::<Vec<_>>().join(","),
        addresses,
        settings: table([]),
        parts,
        ports: chosen,
    })
}

/// A second port, which takes TLS. Whoever asks whether it is ready, or makes the cluster, speaks none.
fn tls_lines(tls: &Tls, port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("tls-port", port.to_string()),
        ("tls-cert-file", tls.server.cert_file.display().to_string()),
        ("tls-key-file", tls.server.key_file.display().to_string()),
        ("tls-ca-cert-file", tls.ca_file.display().to_string()),
        ("tls-auth-clients", if tls.requires_client { "yes" } else { "no" }.to_owned()),
    ]
}

fn node(
    place: &Place<'_>,
    name: &str,
    port: u16,
    options: &RedisOptions,
    more: &[(&str, String)],
) -> Result<Part, Error> {
    let data = place.make(name)?;
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let mut ours = vec![
        ("bind", "127.0.0.1".to_owned()),
        ("port", port.to_string()),
        ("dir", data.display().to_string()),
        ("appendonly", yes_no(options.appendonly)),
        ("appendfsync", "everysec".to_owned()),
        ("save", "\"\"".to_owned()),
        ("daemonize", "no".to_owned()),
    ];
    ours.extend(options.password.iter().map(|password| ("requirepass", password.clone())));
    ours.extend(more.iter().cloned());
    let config = place.write(&format!("{name}.conf"), &lines(" ", &ours, &[]))?;
    let launch = Launch {
        program: find_program("redis-server", "redis-server", &[])?,
        args: vec![config.display().to_string()],
        env: Vec::new(),
        user: None,
        folder: data,
    };
    let ready = Ready::Redis { address: loopback(port), password: options.password.clone() };
    Ok(place.part(name, launch, vec![ready]))
}

/// Makes three fresh nodes one cluster and waits until each says so; a cluster that is one stays as it is.
pub(crate) fn form_cluster(entry: &Entry) -> Result<(), Error> {
    let nodes: Vec<SocketAddr> = entry.ports.iter().take(NODES).map(|port| loopback(*port)).collect();
    if nodes.iter().try_for_each(|node| is_whole(*node)).is_ok() {
        return Ok(());
    }
    let buses = entry.ports.iter().skip(NODES).take(NODES);
    // Nodes that speak TLS with each other meet at the ports that take it.
    let meeting = if entry.url.starts_with(TLS_SCHEME) { 2 * NODES } else { 0 };
    let meeting: Vec<u16> = entry.ports.iter().skip(meeting).take(NODES).copied().collect();
    if command(nodes[0], &["CLUSTER", "INFO"])?.contains("cluster_known_nodes:1\r") {
        let share = SLOTS.div_ceil(NODES);
        for (index, node) in nodes.iter().enumerate() {
            let first = (index * share).to_string();
            let last = ((index + 1) * share).min(SLOTS).saturating_sub(1).to_string();
            command(*node, &["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
            command(*node, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
        }
        for ((node, port), bus) in nodes.iter().zip(meeting).zip(buses).skip(1) {
            let (host, port) = (node.ip().to_string(), port.to_string());
            command(nodes[0], &["CLUSTER", "MEET", &host, &port, &bus.to_string()])?;
        }
    }
    let end = Instant::now() + CLUSTER_TIMEOUT;
    for node in nodes {
        while let Err(error) = is_whole(node) {
            if Instant::now() >= end {
                return Err(error);
            }
            thread::sleep(POLL);
        }
    }
    Ok(())
}

fn is_whole(node: SocketAddr) -> Result<(), Error> {
    let info = command(node, &["CLUSTER", "INFO"])?;
    if info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{NODES}\r")) {
        return Ok(());
    }
    Err(Error::Refused { address: node.to_string(), what: "a whole cluster".to_owned(), reason: info })
}

fn command(node: SocketAddr, words: &[&str]) -> Result<String, Error> {
    let mut stream = connect(node).map_err(Error::io(format!("ask Redis at {node}")))?;
    redis_command(&mut stream, words).map_err(|reason| Error::Refused {
        address: node.to_string(),
        what: words.join(" "),
        reason,
    })
}
