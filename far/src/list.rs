//! The tasks of a tenant that wait here, a page at a time.

use crate::compactor::read_failed;
use crate::look::{LOOKS_MAX, found};
use crate::row::{Row, RowKey};
use crate::segment::ReadError;
use crate::tier::FarTier;
use windfall_contract::due::{StoreError, TaskId, WaitingPage};

/// The rows that a page looks at, and the bytes of the payloads from which on it is full: about what one request reads.
const PAGE_ROWS: usize = 8_192;
const PAGE_BYTES: usize = 1 << 20;

/// How far a page has come.
struct Listing {
    page: WaitingPage,
    /// The last row that was looked at.
    last: Option<RowKey>,
    rows: usize,
    bytes: usize,
}

impl FarTier {
    /// A tenant's tasks that wait here, behind `after`, at most `limit`: by hour, shard and minute. A page may be empty and
    /// not the last one. What is loaded near between two pages is in neither, and so is what is being loaded.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        self.check_readable()?;
        let last = after.and_then(RowKey::of);
        let mut listing = Listing { page: WaitingPage::default(), last, rows: 0, bytes: 0 };
        let mut from = last.map_or(0, |last| last.hour);
        while let Some(hour) = self.next_hour(tenant, from) {
            if self.list_hour(tenant, hour, limit, &mut listing).await? {
                listing.page.next = listing.last.map(RowKey::id);
                break;
            }
            from = hour.saturating_add(1);
        }
        Ok(listing.page)
    }

    /// The first hour, from this one on, in which tasks of the tenant wait.
    fn next_hour(&self, tenant: u16, from: u32) -> Option<u32> {
        let state = self.0.state.lock();
        let mut hours = state.figures.hours.range(from..);
        hours
            .find(|(_, hour)| hour.waiting.get(&tenant).is_some_and(|waiting| *waiting > 0))
            .map(|(hour, _)| *hour)
    }

    /// Lists an hour, and says whether the page is full.
    async fn list_hour(
        &self,
        tenant: u16,
        hour: u32,
        limit: usize,
        listing: &mut Listing,
    ) -> Result<bool, StoreError> {
        for _ in 0..LOOKS_MAX {
            let after = listing.last.filter(|last| last.hour == hour);
            let mut rows = self.rows_upto(hour, after, PAGE_ROWS - listing.rows)?;
            loop {
                let (key, row) = match rows.next().await {
                    Ok(Some(row)) => row,
                    Ok(None) => return Ok(false),
                    // Merged meanwhile: it goes on in the segments that are there now.
                    Err(ReadError::Gone(_)) => break,
                    Err(error) => return Err(read_failed(error)),
                };
                listing.last = Some(key);
                listing.rows += 1;
                if let Row::Task(task) = row
                    && task.route.tenant == tenant
                    && !self.0.state.lock().may_be_near(key)
                {
                    listing.bytes += task.payload.len();
                    listing.page.tasks.push(found(key.id(), task));
                }
                let is_full = listing.page.tasks.len() >= limit || listing.bytes >= PAGE_BYTES;
                if is_full || listing.rows >= PAGE_ROWS {
                    return Ok(true);
                }
            }
        }
        Err(StoreError::Unavailable("the far tier was rewritten again and again during a look".into()))
    }
}
