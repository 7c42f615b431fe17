//! etcd, one member.

use super::{Entry, Place, loopback, table};
use crate::process::{Launch, find_program};
use crate::ready::Ready;
use crate::{Error, Spec, ports};

pub(super) fn plan(place: &Place<'_>) -> Result<Entry, Error> {
    let program = find_program("etcd", "etcd-server", &[])?;
    let chosen = ports::free(2)?;
    let (client, peer) = (loopback(chosen[0]), loopback(chosen[1]));
    let data = place.make("data")?;
    let args = [
        ("--name", "windfall".to_owned()),
        ("--data-dir", data.display().to_string()),
        ("--listen-client-urls", format!("http://{client}")),
        ("--advertise-client-urls", format!("http://{client}")),
        ("--listen-peer-urls", format!("http://{peer}")),
        ("--initial-advertise-peer-urls", format!("http://{peer}")),
        ("--initial-cluster", format!("windfall=http://{peer}")),
    ];
    let launch = Launch {
        program,
        args: args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect(),
        // etcd 3.4 wants to be asked twice on arm64; elsewhere it does not look at this.
        env: vec![("ETCD_UNSUPPORTED_ARCH".to_owned(), "arm64".to_owned())],
        user: None,
        folder: place.dir.clone(),
    };
    Ok(Entry {
        spec: Spec::Etcd,
        dir: place.dir.clone(),
        elsewhere: Vec::new(),
        url: format!("http://{client}"),
        addresses: table([("main", client.to_string()), ("peer", peer.to_string())]),
        settings: table([]),
        ports: chosen,
        parts: vec![place.part("etcd", launch, vec![Ready::Etcd(client)])],
    })
}
