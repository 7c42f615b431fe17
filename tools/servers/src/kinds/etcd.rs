//! etcd, one member.

use super::{Entry, Place, loopback, table};
use crate::process::{Launch, find_program};
use crate::ready::Ready;
use crate::{Error, Spec, ports};

pub(super) fn plan(place: &Place<'_>) -> Result<Entry, Error> {
    let program = find_program("etcd", "etcd-server", &[])?;
    let chosen = ports::free(3)?;
    let (client, peer, health) = (loopback(chosen[0]), loopback(chosen[1]), loopback(chosen[2]));
    let scheme = if place.tls.is_some() { "https" } else { "http" };
    let data = place.make("data")?;
    let mut args = vec![
        ("--name", "windfall".to_owned()),
        ("--data-dir", data.display().to_string()),
        ("--listen-client-urls", format!("{scheme}://{client}")),
        ("--advertise-client-urls", format!("{scheme}://{client}")),
        ("--listen-peer-urls", format!("http://{peer}")),
        ("--initial-advertise-peer-urls", format!("http://{peer}")),
        ("--initial-cluster", format!("windfall=http://{peer}")),
        // Whoever asks whether it is ready speaks no TLS.
        ("--listen-metrics-urls", format!("http://{health}")),
    ];
    if let Some(tls) = place.tls {
        args.push(("--cert-file", tls.server.cert_file.display().to_string()));
        args.push(("--key-file", tls.server.key_file.display().to_string()));
        if tls.requires_client {
            args.push(("--trusted-ca-file", tls.ca_file.display().to_string()));
            args.push(("--client-cert-auth", "true".to_owned()));
        }
    }
    let launch = Launch {
        program,
        args: args.into_iter().map(|(flag, value)| format!("{flag}={value}")).collect(),
        // etcd 3.4 wants to be asked twice on arm64; elsewhere it does not look at this.
        env: vec![("ETCD_UNSUPPORTED_ARCH".to_owned(), "arm64".to_owned())],
        user: None,
        folder: place.dir.clone(),
    };
    Ok(Entry {
        spec: Spec::Etcd,
        dir: place.dir.clone(),
        elsewhere: Vec::new(),
        url: format!("{scheme}://{client}"),
        addresses: table([("main", client.to_string()), ("peer", peer.to_string())]),
        settings: table([]),
        ports: chosen,
        parts: vec![place.part("etcd", launch, vec![Ready::Etcd(health)])],
    })
}
