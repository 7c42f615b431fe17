//! Whether an object store writes only where nothing is, when it is asked to: the manifest rests on that.

use crate::OpenFarError;
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

const FOLDER: &str = "probe";

/// Writes an object of its own twice, and refuses a store that takes the second one. `run` names the process.
pub(crate) async fn keeps_what_is_there(store: &dyn ObjectStore, run: u64) -> Result<(), OpenFarError> {
    let path = Path::from(format!("{FOLDER}/{run:016x}"));
    let put = || async {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        store.put_opts(&path, PutPayload::from_static(b"probe"), options).await
    };
    let overwrites = |what: &str| OpenFarError::Overwrites { place: store.to_string(), what: what.into() };
    let no_condition = "it does not know writes with `If-None-Match: *`";
    match put().await {
        // A repeated request may find what the first one has written.
        Ok(_) | Err(ObjectError::AlreadyExists { .. }) => {}
        Err(error) if is_unknown(&error) => return Err(overwrites(no_condition)),
        Err(error) => return Err(error.into()),
    }
    let second = put().await;
    match store.delete(&path).await {
        Ok(()) | Err(ObjectError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    match second {
        Err(ObjectError::AlreadyExists { .. }) => Ok(()),
        Ok(_) => Err(overwrites("it replaced an object in spite of `If-None-Match: *`")),
        Err(error) if is_unknown(&error) => Err(overwrites(no_condition)),
        Err(error) => Err(error.into()),
    }
}

/// Whether the server has said that it does not know such a write.
fn is_unknown(error: &ObjectError) -> bool {
    match error {
        ObjectError::NotImplemented { .. } | ObjectError::NotSupported { .. } => true,
        // The client keeps the status in its text alone.
        ObjectError::Generic { source, .. } => source.to_string().contains("501 Not Implemented"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::list;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn a_store_that_keeps_what_is_there_passes_and_nothing_stays_behind() {
        let store = InMemory::new();
        keeps_what_is_there(&store, 7).await.unwrap();
        keeps_what_is_there(&store, 7).await.unwrap();
        assert_eq!(list(&store, FOLDER).await.unwrap(), []);
    }
}
