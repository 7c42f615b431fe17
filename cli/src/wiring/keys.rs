//! Follows the key ring's file where tokens are minted and judged: a key that operators add is known wherever tokens are
//! judged before any gateway mints with it, and a promoted one mints without a restart.

use super::background::{Background, Tasks};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use windfall_token::{KeyRing, KeyRingFile};

/// The pause between two looks at the file.
const EVERY: Duration = Duration::from_secs(5);

/// Follows the file that a ring was just read from. `take` takes over a changed ring, and is called from a thread that may
/// block; what it refuses it is offered again at each look.
pub fn follow(
    tasks: &Tasks,
    path: &Path,
    take: impl Fn(KeyRing) -> Result<(), String> + Send + Sync + 'static,
) -> Background {
    let (path, take) = (path.to_owned(), Arc::new(take));
    tasks.spawn("keys", move || {
        let mut seen = KeyRingFile::new(&path);
        let take = Arc::clone(&take);
        async move {
            loop {
                let taker = Arc::clone(&take);
                let looked = tokio::task::spawn_blocking(move || (seen.look(|ring| taker(ring)), seen)).await;
                let (told, back) = match looked {
                    Ok(looked) => looked,
                    Err(died) if died.is_panic() => std::panic::resume_unwind(died.into_panic()),
                    // The runtime ends.
                    Err(_) => return,
                };
                seen = back;
                match told {
                    None => {}
                    Some(Ok(())) => tracing::info!("the key ring is taken over"),
                    Some(Err(error)) => {
                        tracing::warn!(error, "the key ring cannot be taken over; the keys so far stay");
                    }
                }
                tokio::time::sleep(EVERY).await;
            }
        }
    })
}
