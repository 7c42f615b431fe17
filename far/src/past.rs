//! Hours that are over: their rows are kept for a while, so that an operator can fire their tasks again.

use crate::add::no_room;
use crate::change::CHANGES_BYTES;
use crate::compactor::read_failed;
use crate::entry::Entry;
use crate::manifest::Manifest;
use crate::replay::log_failed;
use crate::row::{Row, RowKey, hour_of};
use crate::tier::{FarTier, due_ms, not_open};
use async_trait::async_trait;
use windfall_contract::due::{
    Change, Changed, FarRecord, PastPage, PastSpan, PastTasks, Route, Shard, SlotMinute, StoreError, TaskAt,
    TaskId,
};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// The rows of a page at most, and the bytes of their payloads from which on it is full: about what one request reads.
const PAGE_ROWS: usize = 8_192;
const PAGE_BYTES: usize = 1 << 20;

#[async_trait]
impl PastTasks for FarTier {
    fn span(&self) -> Result<PastSpan, StoreError> {
        self.check_readable()?;
        let state = self.0.state.lock();
        let forgotten = state.gone_upto.max(self.0.hours_to_forget(state.figures.over_upto));
        let start_ms = |hour: u32| u64::from(hour) * HOUR_MS;
        let (from_ms, to_ms) = (start_ms(forgotten.saturating_add(1)), start_ms(state.first_not_over()));
        Ok(PastSpan { from_ms, to_ms })
    }

    fn names(&self, route: Route) -> Option<(String, String)> {
        self.0.state.lock().names.get(&(route.tenant, route.target)).cloned()
    }

    async fn page(
        &self,
        hour: SlotMinute,
        shard: Shard,
        after: Option<TaskId>,
    ) -> Result<PastPage, StoreError> {
        let hour = hour_of(hour);
        self.check_kept(hour)?;
        let before_shard =
            shard.0.checked_sub(1).map(|shard| RowKey { hour, shard, minute: u8::MAX, number: u32::MAX });
        let mut rows = self.rows(hour, after.and_then(RowKey::of).or(before_shard))?;
        let (mut page, mut count, mut bytes) = (PastPage::default(), 0, 0);
        while let Some((key, row)) = rows.next().await.map_err(read_failed)? {
            if key.shard != shard.0 {
                break;
            }
            count += 1;
            match row {
                Row::Task(task) => {
                    bytes += task.payload.len();
                    let due_ms = due_ms(key.slot(), &task);
                    let (route, payload) = (task.route, task.payload);
                    page.tasks.push(FarRecord { id: key.id(), due_ms, route, payload });
                }
                Row::Cancelled(_) => page.cancelled += 1,
                Row::Moved(_) => page.moved += 1,
            }
            if count >= PAGE_ROWS || bytes >= PAGE_BYTES {
                page.next = Some(key.id());
                break;
            }
        }
        // Cancels may have gone before their tasks, or be known to another process alone.
        self.check_kept(hour)?;
        self.check_is_last().await?;
        Ok(page)
    }
}

impl FarTier {
    /// Notes which of these tasks were cancelled or changed near. What is noted is not fired again as it was here.
    ///
    /// # Errors
    /// [`StoreError`]: any of it may be noted or not, and it may be repeated.
    pub(crate) async fn note_changes(
        &self,
        shard: Shard,
        changes: &[Change],
        changed: &[Changed],
    ) -> Result<(), StoreError> {
        let noted = changes.iter().zip(changed).filter_map(|(change, changed)| {
            let TaskAt::Id(id) = change.at else { return None };
            let key = RowKey::of(id).filter(|_| id.shard == shard)?;
            match changed {
                Changed::Cancelled => Some((key, Row::Cancelled(change.tenant))),
                Changed::Done(_) if change.to.is_none() => Some((key, Row::Cancelled(change.tenant))),
                Changed::Done(_) => Some((key, Row::Moved(change.tenant))),
                Changed::Firing | Changed::Unknown => None,
            }
        });
        let noted: Vec<_> = noted.collect();
        if noted.is_empty() {
            return Ok(());
        }
        let is_synced = self.0.options.is_synced;
        let done = self.blocking(move |inner| {
            let mut state = inner.state.lock();
            let has_room = inner.make_room(&mut state, CHANGES_BYTES);
            // Not what is merely to be let go of by now: the next start may have other options, or another clock.
            let not_kept_upto = state.gone_for_good_upto;
            let (mut entries, mut is_known) = (Vec::new(), false);
            for (key, row) in noted {
                if key.hour <= not_kept_upto || !state.is_near_for_good(key) {
                    continue;
                }
                // What was moved near on its own has its row already.
                match state.in_memory(key) == Some(&row) {
                    true => is_known = true,
                    false => entries.push(Entry::Change(key, row)),
                }
            }
            let end = match (entries.is_empty(), is_known) {
                (true, false) => return Ok(()),
                // It may have been noted a moment ago, and not be synced yet.
                (true, true) => inner.log.end(),
                (false, _) if !has_room => return Err(no_room()),
                (false, _) => inner.append(&mut state, entries)?,
            };
            drop(state);
            if is_synced { inner.log.sync(end).map_err(log_failed) } else { Ok(()) }
        });
        done.await?
    }

    /// An error where the segments are not open, or may be another process's by now.
    pub(crate) fn check_readable(&self) -> Result<(), StoreError> {
        // It does not come back: nobody should wait for it.
        self.0.check_refused().map_err(|error| StoreError::Unusable(error.to_string()))?;
        if self.is_open() { Ok(()) } else { Err(not_open()) }
    }

    /// An error where another process has taken the segments over: what is cancelled there is not known here.
    pub(crate) async fn check_is_last(&self) -> Result<(), StoreError> {
        let objects = self.objects()?;
        let unknown = |what: String| StoreError::Unavailable(what);
        match Manifest::read_last(&**objects).await.map_err(|error| unknown(error.to_string()))? {
            Some(last) if last.run == self.0.run => Ok(()),
            Some(_) => {
                let what = "another process has taken over the segments of the far tier";
                self.0.refuse(what.into());
                Err(StoreError::Unusable(what.into()))
            }
            None => Err(unknown("the segments of the far tier have no manifest".into())),
        }
    }

    fn check_kept(&self, hour: u32) -> Result<(), StoreError> {
        self.check_readable()?;
        let state = self.0.state.lock();
        match hour > state.gone_upto && hour < state.first_not_over() {
            true => Ok(()),
            false => Err(StoreError::Unusable("the timers of this hour are not kept".into())),
        }
    }
}
