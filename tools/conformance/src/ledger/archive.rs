//! The failure archive.

use super::{Outcome, Place, open};
use windfall_ledger::{ArchiveEntry, ArchiveFilter, Replay};

pub(super) fn once_a_reason(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let entry = |reason: &'static str, payload| ArchiveEntry {
        trade_no: Some("a"),
        payload,
        reason: reason.into(),
        // A downstream may say anything.
        detail: "be\0cause".into(),
        time_ms: 7,
    };
    let entries =
        [entry("conflict", b"one".as_slice()), entry("max_failures", b"one"), entry("conflict", b"two")];
    let mut tx = ledger.begin()?;
    assert_eq!(tx.archive(&entries)?, 3);
    assert_eq!(tx.archive(&entries)?, 0, "repeating it archives nothing twice");
    let twice = [entry("conflict", b"six".as_slice()), entry("conflict", b"six")];
    assert_eq!(tx.archive(&twice)?, 1, "nor within one call");
    tx.commit()?;
    let all = place.reader()?.archive_list(&ArchiveFilter::default())?;
    let payloads: Vec<_> = all.iter().map(|one| one.payload.as_slice()).collect();
    assert_eq!(payloads, [b"one", b"one", b"two", b"six"]);
    let filter = ArchiveFilter { reason: Some("conflict".into()), limit: 1, ..ArchiveFilter::default() };
    let page = ledger.archive_list(&filter)?;
    let next = ledger.archive_list(&ArchiveFilter { after: page[0].id, ..filter })?;
    assert_eq!((page[0].id, next[0].id), (all[0].id, all[2].id));
    for outcome in ["conflict", "credited"] {
        let replay = Replay { time_ms: 8, actor: "ann".into(), outcome: outcome.into() };
        let mut tx = ledger.begin()?;
        assert!(tx.mark_replayed(all[0].id, &replay)?);
        assert!(!tx.mark_replayed(99_999, &replay)?);
        tx.commit()?;
    }
    assert_eq!(ledger.replays(all[0].id)?.len(), 2);
    let replay = ledger.archived(all[0].id)?.and_then(|entry| entry.replay);
    assert_eq!(replay.map(|replay| replay.outcome), Some("credited".into()));
    assert_eq!(ledger.archived(99_999)?, None);
    let open = ledger.archive_list(&ArchiveFilter { open: true, ..ArchiveFilter::default() })?;
    assert_eq!(open.iter().map(|one| one.id).collect::<Vec<_>>(), [all[1].id, all[2].id, all[3].id]);
    Ok(())
}
