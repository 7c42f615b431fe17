//! Which far tasks wait in a shard: they fire by themselves.

use super::WAITING_MAX;
use std::collections::HashSet;
use windfall_contract::due::{Shard, SlotMinute, SlotStore, StoreError, TaskId};

const PAGE_TASKS: usize = 1_000;

/// The ids under which callers know the waiting tasks of a shard that lie in slots from `from` to `to`. A task that was
/// loaded late, or that an earlier run stored, lies behind the minute of its id.
pub(super) async fn waiting(
    store: &dyn SlotStore,
    shard: Shard,
    tenants: &[u16],
    from: SlotMinute,
    to: SlotMinute,
) -> Result<HashSet<TaskId>, StoreError> {
    let mut waiting = HashSet::new();
    let is_behind = |id: &TaskId| id.shard != shard || id.slot > to;
    for tenant in tenants {
        let before = SlotMinute(from.0.saturating_sub(1));
        let mut after = Some(TaskId { shard, slot: before, index: u32::MAX });
        while let Some(from) = after {
            let page = store.list(*tenant, Some(from), PAGE_TASKS).await?;
            let here = page.tasks.iter().take_while(|found| !is_behind(&found.id));
            waiting.extend(here.filter_map(|found| found.record.first_id).filter(TaskId::is_far));
            if waiting.len() > WAITING_MAX {
                return Err(StoreError::Unusable(format!(
                    "more than {WAITING_MAX} timers of shard {} still wait; begin again when they have fired",
                    shard.0
                )));
            }
            let is_over = page.tasks.iter().any(|found| is_behind(&found.id));
            after = page.next.filter(|next| !is_over && !is_behind(next));
        }
    }
    Ok(waiting)
}
