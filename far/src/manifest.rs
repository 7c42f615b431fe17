//! The manifest: which segments count, and from where on the log does. It is an object, written anew as a whole, and
//! twice in itself, so that one flipped bit does not cost everything.
//!
//! Each manifest has a number of its own, and is written only where no object of that number is there: two writers, or one
//! whose answer got lost, never overwrite one another. A process that opens the far tier takes the next number first. So a
//! manifest that a dead process had sent, and that arrives late, finds its number taken.

use crate::OpenFarError;
use crate::segment::SegmentMeta;
use crate::tier::SEGMENTS;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use serde::{Deserialize, Serialize};

const FORMAT: u32 = 1;
const FOLDER: &str = "manifest";
/// How often a number is found to be taken before the object store is said to have no answer.
const TAKE_OVERS_MAX: u32 = 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: u32,
    /// The log that the segments were written from.
    pub log: u64,
    /// The process that wrote it.
    pub run: u64,
    /// Grows with each manifest.
    pub number: u64,
    /// All before this position of the log is in segments, or is over.
    pub flushed: u64,
    /// The oldest first.
    pub segments: Vec<SegmentMeta>,
    /// Objects that count no more, but have a damaged block, and are kept for people.
    pub kept: Vec<String>,
    /// The rows of hours up to this one are not kept any more; `None` in one that was written before rows were kept.
    #[serde(default)]
    pub gone_upto: Option<u32>,
}

/// A manifest cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PutError {
    /// Try again later: it may be written or not.
    #[error(transparent)]
    Store(#[from] ObjectError),
    /// Another process writes to the same place.
    #[error("another process writes to the same object store: {0} is not of this one")]
    Foreign(String),
}

impl Manifest {
    pub fn new(log: u64) -> Self {
        let (segments, kept) = (Vec::new(), Vec::new());
        Self { format: FORMAT, log, run: 0, number: 0, flushed: 0, segments, kept, gone_upto: Some(0) }
    }

    /// Takes the last one over, or begins with the first one: from now on no earlier process writes another. The first
    /// one is an error where the log is not new, or segments are there. An earlier version did not note what was changed
    /// near in the hours that it had closed: where it wrote the last one, the rows of these are not kept.
    pub async fn take_over(
        store: &dyn ObjectStore,
        log: u64,
        is_new: bool,
        run: u64,
        closed_upto: u32,
    ) -> Result<Self, OpenFarError> {
        let mut tries = 0;
        loop {
            let last = Self::read_last(store).await?;
            if last.is_none() && (!is_new || !list(store, SEGMENTS).await?.is_empty()) {
                return Err(OpenFarError::NoManifest { place: store.to_string() });
            }
            let mut manifest = last.unwrap_or_else(|| Self::new(log));
            if manifest.log != log {
                return Err(OpenFarError::OtherLog { ours: log, theirs: manifest.log });
            }
            (manifest.number, manifest.run) = (manifest.number + 1, run);
            manifest.gone_upto.get_or_insert(closed_upto);
            match manifest.create(store).await {
                Ok(()) => {
                    Self::forget_before(store, manifest.number).await?;
                    return Ok(manifest);
                }
                // An earlier process has written it at last, or this one did, and the answer got lost.
                Err(ObjectError::AlreadyExists { .. }) if tries < TAKE_OVERS_MAX => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The last one that was written.
    pub async fn read_last(store: &dyn ObjectStore) -> Result<Option<Self>, OpenFarError> {
        let all = list(store, FOLDER).await?;
        let Some(last) = all.into_iter().rfind(|path| number_of(path).is_some()) else { return Ok(None) };
        let bytes = store.get(&last).await?.bytes().await?;
        let damaged = |what: &str| OpenFarError::Damaged { place: last.to_string(), what: what.into() };
        let manifest = decode(&bytes).ok_or_else(|| damaged("neither of its copies has its checksum"))?;
        match manifest.format {
            FORMAT => Ok(Some(manifest)),
            other => Err(damaged(&format!("it has the format {other}, and this build reads {FORMAT}"))),
        }
    }

    /// Writes it as the next one, and returns its number.
    pub async fn put(&self, store: &dyn ObjectStore) -> Result<u64, PutError> {
        let mut next = Self { number: self.number + 1, ..self.clone() };
        loop {
            match next.create(store).await {
                Ok(()) => return Ok(next.number),
                // An earlier attempt whose answer got lost. What it says is no longer so.
                Err(ObjectError::AlreadyExists { .. }) => {
                    let path = path(next.number);
                    let there = store.get(&path).await?.bytes().await?;
                    if decode(&there).is_none_or(|there| (there.log, there.run) != (self.log, self.run)) {
                        return Err(PutError::Foreign(path.to_string()));
                    }
                    next.number += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn create(&self, store: &dyn ObjectStore) -> Result<(), ObjectError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        store.put_opts(&path(self.number), PutPayload::from(self.encode()), options).await.map(drop)
    }

    /// Deletes the manifests before the one before this number.
    pub async fn forget_before(store: &dyn ObjectStore, number: u64) -> Result<(), ObjectError> {
        let keep_from = path(number.saturating_sub(1));
        let all = list(store, FOLDER).await?.into_iter();
        for old in all.filter(|old| number_of(old).is_some() && *old < keep_from) {
            store.delete(&old).await?;
        }
        Ok(())
    }

    fn encode(&self) -> Bytes {
        let mut half = BytesMut::from(&serde_json::to_vec(self).unwrap_or_default()[..]);
        let checksum = crc32c::crc32c(&half);
        half.put_u32(checksum);
        let mut bytes = half.clone();
        bytes.put_slice(&half);
        bytes.freeze()
    }
}

fn decode(bytes: &[u8]) -> Option<Manifest> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    [first, second].into_iter().find_map(|half| {
        let (json, checksum) = half.split_last_chunk::<4>()?;
        let is_whole = crc32c::crc32c(json) == u32::from_be_bytes(*checksum);
        is_whole.then(|| serde_json::from_slice(json).ok()).flatten()
    })
}

/// Reads a manifest and writes it again; `None` where it is refused.
#[cfg(feature = "fuzzing")]
pub(crate) fn again(bytes: &[u8]) -> Option<Bytes> {
    decode(bytes).map(|manifest| manifest.encode())
}

fn path(number: u64) -> Path {
    Path::from(format!("{FOLDER}/{number:020}.json"))
}

fn number_of(path: &Path) -> Option<u64> {
    path.filename()?.strip_suffix(".json")?.parse().ok()
}

/// The objects of a folder, in order.
pub(crate) async fn list(store: &dyn ObjectStore, folder: &str) -> Result<Vec<Path>, ObjectError> {
    let folder = Path::from(folder);
    let metas: Vec<_> = store.list(Some(&folder)).try_collect().await?;
    let mut all: Vec<_> = metas.into_iter().map(|meta| meta.location).collect();
    all.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn a_manifest_survives_a_flipped_bit_and_a_lost_answer() {
        let store = InMemory::new();
        let manifest = Manifest { flushed: 7, kept: vec!["x".into()], ..Manifest::new(5) };
        assert_eq!(manifest.put(&store).await.unwrap(), 1);
        // The first attempt was written, and its answer got lost.
        assert_eq!(manifest.put(&store).await.unwrap(), 2);
        let foreign = Manifest::new(6).put(&store).await;
        assert!(matches!(foreign, Err(PutError::Foreign(_))));
        let other_process = Manifest { run: 1, ..manifest.clone() }.put(&store).await;
        assert!(matches!(other_process, Err(PutError::Foreign(_))));
        let expected = Manifest { number: 2, ..manifest };
        let bytes = expected.encode();
        for at in 0..bytes.len() {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 4;
            assert_eq!(decode(&flipped).as_ref(), Some(&expected), "byte {at}");
        }
        assert_eq!(Manifest::read_last(&store).await.unwrap(), Some(expected));
        Manifest::forget_before(&store, 3).await.unwrap();
        assert_eq!(list(&store, FOLDER).await.unwrap(), [path(2)]);
    }
}
