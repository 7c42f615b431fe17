//! The task that moves waiting tokens to disk, and the ways back.

use super::chunks::{Full, Text};
use super::spill::{Slot, SpillFile};
use super::{Shared, count};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::watch;
use windfall_contract::tokens::Unavailable;

/// The chunks that go to disk in one turn: about 2 MiB.
const SPILL_CHUNKS: usize = 32;
/// The pause after a failed write to the disk.
const SPILL_BACKOFF: Duration = Duration::from_secs(1);

impl Shared {
    /// Moves tokens to disk while there are many of them. Ends when it is told to, or when the owner is gone.
    pub(super) async fn spill(self: Arc<Self>, file: Arc<SpillFile>, mut closed: watch::Receiver<bool>) {
        while !*closed.borrow_and_update() {
            let full = {
                let table = self.table.lock();
                if table.is_to_spill() { table.full(SPILL_CHUNKS) } else { Vec::new() }
            };
            let pause = if full.is_empty() {
                None
            } else {
                match self.spill_these(&file, full).await {
                    Ok(()) => continue,
                    Err(error) => {
                        tracing::warn!(%error, "waiting tokens cannot be written to disk and stay in memory");
                        Some(SPILL_BACKOFF)
                    }
                }
            };
            let waited = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => self.full.notified().await,
                }
            };
            tokio::select! {
                () = waited => {}
                changed = closed.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn spill_these(&self, file: &Arc<SpillFile>, full: Vec<Full>) -> Result<(), Unavailable> {
        let file = Arc::clone(file);
        let write = move || {
            let mut written: Vec<(Full, Arc<Slot>)> = Vec::with_capacity(full.len());
            for full in full {
                match file.write(&full.tokens) {
                    Ok(slot) => written.push((full, slot)),
                    Err(error) => return (written, Err(Unavailable(error.to_string()))),
                }
            }
            (written, Ok(()))
        };
        let (written, result) = blocking(write).await?;
        self.spilled_chunks.fetch_add(count(written.len()), Relaxed);
        {
            let mut table = self.table.lock();
            written.iter().for_each(|(full, slot)| table.spilled(full, slot));
        }
        self.room.notify_waiters();
        result
    }

    /// Gives the disk back that no token needs any more.
    pub(super) async fn shrink(&self) {
        let Some(file) = self.spill.as_ref().filter(|file| file.is_unused()) else { return };
        let file = Arc::clone(file);
        if let Err(error) = blocking(move || file.shrink()).await {
            tracing::error!(%error, "the file of waiting tokens was not given back");
        }
    }
}

/// Reads those of these that are on disk.
pub(super) async fn read_texts(texts: Vec<Option<Text>>) -> Result<Vec<Option<Box<str>>>, Unavailable> {
    let read = |text: Option<Text>| match text {
        Some(Text::OnDisk(slot, range)) => slot.read_text(range).map(Some),
        Some(Text::Here(text)) => Ok(Some(text)),
        None => Ok(None),
    };
    if !texts.iter().flatten().any(|text| matches!(text, Text::OnDisk(..))) {
        let here = |text: Option<Text>| match text {
            Some(Text::Here(text)) => Some(text),
            Some(Text::OnDisk(..)) | None => None,
        };
        return Ok(texts.into_iter().map(here).collect());
    }
    let read_all = move || texts.into_iter().map(read).collect::<std::io::Result<Vec<_>>>();
    blocking(read_all).await?.map_err(|error| Unavailable(format!("a waiting token on disk: {error}")))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unavailable> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Unavailable(error.to_string()))
}
