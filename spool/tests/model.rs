//! Random lives against a naive model: a list of packs.

#![allow(clippy::unwrap_used, reason = "a test, its helpers included")]

mod files;

use files::{left, packs, small, snapshot};
use proptest::prelude::*;
use std::path::Path;
use windfall_spool::{OpenPack, RecoveredPack, SealedPack, Spool, SpoolOptions};

#[derive(Debug, Clone)]
enum Step {
    Claim {
        label: Vec<u8>,
    },
    Append {
        pack: usize,
        event: Vec<u8>,
    },
    Seal {
        pack: usize,
        head: Vec<u8>,
    },
    Free {
        pack: usize,
    },
    Drop {
        pack: usize,
    },
    /// Looks at what a crash at this moment would leave.
    Crash,
    /// Dies and starts again, with the same geometry or another one.
    Restart {
        other_geometry: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
    prop_oneof![
        4 => bytes(160).prop_map(|label| Step::Claim { label }),
        12 => (any::<usize>(), bytes(500)).prop_map(|(pack, event)| Step::Append { pack, event }),
        4 => (any::<usize>(), bytes(120)).prop_map(|(pack, head)| Step::Seal { pack, head }),
        4 => any::<usize>().prop_map(|pack| Step::Free { pack }),
        1 => any::<usize>().prop_map(|pack| Step::Drop { pack }),
        1 => Just(Step::Crash),
        1 => any::<bool>().prop_map(|other_geometry| Step::Restart { other_geometry }),
    ]
}

enum Handle {
    Open(OpenPack),
    Sealed(SealedPack),
    Recovered(RecoveredPack),
    Dropped,
}

/// A pack as the model knows it.
struct Known {
    handle: Handle,
    label: Vec<u8>,
    events: Vec<Vec<u8>>,
}

impl Known {
    fn on_disk(&self) -> (Vec<u8>, Vec<u8>) {
        (self.label.clone(), self.events.concat())
    }
}

struct World {
    spool: Option<Spool>,
    options: SpoolOptions,
    packs: Vec<Known>,
}

impl World {
    fn expected(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut expected: Vec<_> =
            self.packs.iter().filter(|pack| !pack.events.is_empty()).map(Known::on_disk).collect();
        expected.sort();
        expected
    }

    fn take(&mut self, pack: usize) -> Option<Known> {
        (!self.packs.is_empty()).then(|| self.packs.swap_remove(pack % self.packs.len()))
    }

    fn step(&mut self, root: &Path, step: Step) {
        match step {
            Step::Claim { label } => {
                if let Ok(pack) = self.spool.as_ref().unwrap().claim(&label) {
                    self.packs.push(Known { handle: Handle::Open(pack), label, events: vec![] });
                }
            }
            Step::Append { pack, event } => {
                let Some(mut known) = self.take(pack) else { return };
                if let Handle::Open(open) = &mut known.handle {
                    let bytes = known.events.iter().map(Vec::len).sum::<usize>();
                    let fits = known.events.len() < 4 && bytes + event.len() <= self.slot_bytes();
                    assert_eq!(open.append(&event).is_ok(), fits);
                    if fits {
                        known.events.push(event);
                    }
                }
                self.packs.push(known);
            }
            Step::Seal { pack, head } => {
                let Some(mut known) = self.take(pack) else { return };
                known.handle = match known.handle {
                    Handle::Open(open) => Handle::Sealed(open.seal(&head)),
                    Handle::Recovered(recovered) => Handle::Sealed(recovered.seal(&head)),
                    other => other,
                };
                if let Handle::Sealed(sealed) = &known.handle {
                    assert!(sealed.payload().ends_with(&known.events.concat()));
                    assert_eq!(sealed.events(), known.events.concat());
                    assert_eq!(sealed.label(), known.label);
                }
                self.packs.push(known);
            }
            Step::Free { pack } => {
                let Some(known) = self.take(pack) else { return };
                match known.handle {
                    Handle::Sealed(sealed) => sealed.free(),
                    handle => self.packs.push(Known { handle, ..known }),
                }
            }
            Step::Drop { pack } => {
                let Some(mut known) = self.take(pack) else { return };
                known.handle = Handle::Dropped;
                if !known.events.is_empty() {
                    self.packs.push(known);
                }
            }
            Step::Crash => {
                let crash = snapshot(root);
                let mut found = left(crash.path(), &self.options);
                found.sort();
                assert_eq!(found, self.expected());
            }
            Step::Restart { other_geometry } => self.restart(root, other_geometry),
        }
    }

    fn slot_bytes(&self) -> usize {
        usize::try_from(self.options.slot_bytes).unwrap()
    }

    fn restart(&mut self, root: &Path, other_geometry: bool) {
        let expected = self.expected();
        let events: Vec<_> = self.packs.drain(..).map(|known| (known.on_disk(), known.events)).collect();
        self.spool = None;
        if other_geometry {
            self.options.slot_bytes ^= 3 << 10;
        }
        let (spool, recovered) = Spool::open(root, &self.options).unwrap();
        let mut found = packs(&recovered);
        found.sort();
        assert_eq!(found, expected);
        assert_eq!((recovered.torn_entries, recovered.unrecovered.len()), (0, 0));
        for pack in recovered.packs {
            let on_disk = (pack.label().to_vec(), pack.events().to_vec());
            let (_, events) = events.iter().find(|(known, _)| *known == on_disk).unwrap();
            let label = pack.label().to_vec();
            self.packs.push(Known { label, handle: Handle::Recovered(pack), events: events.clone() });
        }
        self.spool = Some(spool);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_spool_is_a_list_of_packs_that_a_crash_does_not_change(
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let root = tempfile::tempdir().unwrap();
        let (spool, _) = Spool::open(root.path(), &small()).unwrap();
        let mut world = World { spool: Some(spool), options: small(), packs: vec![] };
        for step in steps {
            world.step(root.path(), step);
        }
        world.restart(root.path(), false);
        for known in world.packs.drain(..) {
            if let Handle::Recovered(pack) = known.handle {
                pack.seal(&[]).free();
            }
        }
        prop_assert_eq!(world.spool.as_ref().unwrap().usage().slots_in_use, 0);
        world.restart(root.path(), false);
        prop_assert!(world.packs.is_empty());
    }
}
