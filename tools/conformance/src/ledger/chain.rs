//! The chain of sealed ranges: each transfer is sealed once, whoever writes and seals at the same time.

use super::concurrent::all_at_once;
use super::{Outcome, Place, clean, names, open, order};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use windfall_contract::accounts::Reason;
use windfall_ledger::{Anchor, AnchorError, Attempt, Head};

/// An anchor in memory; its clones share it.
#[derive(Debug, Default, Clone)]
pub(super) struct Memory(Arc<Mutex<Vec<Head>>>);

impl Memory {
    fn own(&self) -> MutexGuard<'_, Vec<Head>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Anchor for Memory {
    fn heads(&self) -> Result<Vec<Head>, AnchorError> {
        Ok(self.own().clone())
    }

    fn losses(&self) -> Result<u64, AnchorError> {
        Ok(0)
    }

    fn give_up(&mut self, last: Head) -> Result<(), AnchorError> {
        self.own().retain(|head| head.seal <= last.seal);
        Ok(())
    }

    fn keep(&mut self, head: Head) -> Result<(), AnchorError> {
        let mut own = self.own();
        match own.last() {
            Some(last) if *last == head || last.seal > head.seal => {}
            _ => own.push(head),
        }
        Ok(())
    }
}

/// How long other transactions of the server may keep the newest transfers from being final.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Every transfer is sealed once. How many there are, the reader's orders say: one for each credit, and one for each
/// that is held.
fn sealed(place: &dyn Place, anchor: &Memory, transfers: u64) -> Outcome {
    let (mut sealer, mut anchor) = (place.sealer()?.with_rows_max(50), anchor.clone());
    let began = Instant::now();
    loop {
        while sealer.seal(&mut anchor, 5_000)?.is_some() {}
        let found = place.reader()?.verify(Some(&anchor))?;
        assert!(found.is_clean(), "{found:?}");
        assert!(found.transfers <= transfers, "{found:?}");
        if found.transfers == transfers {
            return Ok(());
        }
        assert!(began.elapsed() < PATIENCE, "{transfers} transfers, sealed are {found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn seals_once(place: &dyn Place) -> Outcome {
    let mut ledger = open(place)?;
    let anchor = Memory::default();
    sealed(place, &anchor, 0)?;
    let names = names(180);
    let batch: Vec<_> = names.iter().map(|name| order(name, 1, 2)).collect();
    // More than a seal takes, in one transaction.
    ledger.apply(&batch[..120])?;
    sealed(place, &anchor, 120)?;
    // Held, and given up: not credited, and in the journal.
    ledger.transact(|tx| super::reserve(tx, &batch[120..], Attempt::Normal))?;
    let refused: Vec<_> = names[120..].iter().map(|name| (super::id(name), Reason::Released)).collect();
    ledger.transact(|tx| tx.release(&refused, 2_000))?;
    sealed(place, &anchor, 240)?;
    // What is not committed never was.
    let mut tx = ledger.begin()?;
    tx.apply(&batch[120..], Attempt::Replay)?;
    drop(tx);
    sealed(place, &anchor, 240)?;
    clean(place)
}

/// Writers whose transactions overlap, and sealers beside them.
pub(super) fn at_once(place: &dyn Place) -> Outcome {
    let names = names(1_200);
    drop(open(place)?);
    let (done, seals, anchor) = (AtomicBool::new(false), AtomicU64::new(0), Memory::default());
    std::thread::scope(|scope| -> Outcome {
        let sealers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| -> Result<(), String> {
                    let mut sealer = place.sealer().map_err(|error| error.to_string())?.with_rows_max(30);
                    let mut anchor = anchor.clone();
                    while !done.load(Ordering::Relaxed) {
                        // One that another one, or a writer, was faster than, tries again.
                        let sealed = sealer.seal(&mut anchor, 5_000).map_err(|error| error.to_string())?;
                        seals.fetch_add(u64::from(sealed.is_some()), Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                    Ok(())
                })
            })
            .collect();
        let written = all_at_once(place, |nth, ledger| {
            let own = names.iter().skip(nth % 4).step_by(4);
            let batch: Vec<_> = own.map(|name| order(name, 1, 1)).collect();
            for (at, part) in batch.chunks(7).enumerate() {
                ledger.transact(|tx| tx.apply(part, Attempt::Normal))?;
                // The writers are not done before something was sealed beside them.
                let began = Instant::now();
                while at == 20 && seals.load(Ordering::Relaxed) == 0 {
                    assert!(began.elapsed() < PATIENCE, "nothing is sealed while writers run");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            Ok(())
        });
        done.store(true, Ordering::Relaxed);
        for sealer in sealers {
            match sealer.join() {
                Ok(sealed) => sealed?,
                Err(_) => return Err("a sealer panicked".into()),
            }
        }
        written.map(drop)
    })?;
    let credited = place.reader()?.reconcile()?.transfers;
    sealed(place, &anchor, credited)?;
    clean(place)
}
