//! S3: the server of `tools/s3-server`, whose one bucket is a folder.

use super::{Entry, PASSWORD, Place, USER, loopback, table};
use crate::process::{Launch, find_program};
use crate::ready::Ready;
use crate::{Error, Spec, ports};

const PROGRAM: &str = "windfall-s3-server";
const BUCKET: &str = "windfall";
/// It does not look at it.
const REGION: &str = "us-east-1";

pub(super) fn plan(place: &Place<'_>) -> Result<Entry, Error> {
    // Beside this program, or beside the folder of a test program.
    let own = std::env::current_exe().ok();
    let folders: Vec<_> =
        own.iter().flat_map(|own| own.ancestors().skip(1).take(2)).map(Into::into).collect();
    let program =
        find_program(PROGRAM, PROGRAM, &folders).map_err(|_| Error::NotBuilt { program: PROGRAM })?;
    let chosen = ports::free(1)?;
    let address = loopback(chosen[0]);
    place.make(&format!("data/{BUCKET}"))?;
    let launch = Launch {
        program,
        args: [&address.to_string(), &place.file("data").display().to_string(), USER, PASSWORD]
            .map(str::to_owned)
            .to_vec(),
        env: Vec::new(),
        user: None,
        folder: place.dir.clone(),
    };
    Ok(Entry {
        spec: Spec::S3,
        dir: place.dir.clone(),
        elsewhere: Vec::new(),
        url: format!("http://{address}"),
        addresses: table([("main", address.to_string())]),
        settings: table([
            ("bucket", BUCKET.to_owned()),
            ("region", REGION.to_owned()),
            ("access_key_id", USER.to_owned()),
            ("secret_access_key", PASSWORD.to_owned()),
        ]),
        ports: chosen,
        parts: vec![place.part("s3", launch, vec![Ready::Http(address)])],
    })
}
