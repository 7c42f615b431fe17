//! Opens a spool, with what earlier processes left, and claims packs.

use crate::directory::{self, Found, InstanceDir};
use crate::error::{OpenError, SpoolFull};
use crate::format::LABEL_MAX_BYTES;
use crate::instance::{Instance, Slot};
use crate::options::{Durability, Geometry, SpoolOptions};
use crate::pack::{OpenPack, RecoveredPack};
use crate::recovery::{self, Contents};
use crate::region::Region;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A sender's in-flight buffer. A cheap handle; all methods may be called from many threads. Its directory is its
/// own as long as a handle or a pack lives.
#[derive(Clone)]
pub struct Spool {
    home: Arc<Instance>,
}

/// What earlier processes left in a root.
#[derive(Debug, Default)]
#[must_use = "these events were answered Ok and wait to be sent"]
pub struct Recovered {
    /// The packs, to be sealed, sent again and freed.
    pub packs: Vec<RecoveredPack>,
    /// Entries that did not check and were skipped. After `kill -9` this is 0; anything else is a crash of the
    /// machine or a disk that lies.
    pub torn_entries: u64,
    /// Directories, of processes that are gone, whose packs are among `packs` or that were empty.
    pub adopted_instances: usize,
    /// Paths that could not be read, and that an operator must look at. Empty unless something is damaged, or a newer
    /// release has left something.
    pub unrecovered: Vec<Unrecovered>,
}

/// A path that may hold events and could not be read.
#[derive(Debug)]
pub struct Unrecovered {
    /// Where it is now. A directory with a damaged header was renamed to `….damaged`.
    pub path: PathBuf,
    /// Why it could not be read.
    pub reason: String,
}

/// How full a spool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The number of packs that it can hold.
    pub slots: u32,
    /// The number of packs that it holds: open, in flight, or recovered into this very file and not yet freed.
    pub slots_in_use: u32,
    /// Size of the file, or of the memory.
    pub bytes: u64,
    /// The part of these bytes that is in slots in use.
    pub bytes_in_use: u64,
    /// Whether the disk failed to sync ([`Durability::Machine`]); if so, no event is taken until a restart.
    pub sync_failed: bool,
}

impl Spool {
    /// Opens a spool under `root`, which many processes may share: each has a directory of its own. What processes
    /// that are gone left there is handed out as [`Recovered`], to be sent again.
    ///
    /// What a newer release has left is not touched, and is reported in [`Recovered::unrecovered`] at each start until
    /// a process of that release has taken it over.
    ///
    /// A directory of the same geometry is taken over, so a restart needs no further disk space and a crash loop
    /// leaves no trail. Other directories are deleted once the last of their packs is freed.
    ///
    /// # Errors
    /// [`OpenError`]. Every event that lay there still does.
    pub fn open(root: &Path, options: &SpoolOptions) -> Result<(Self, Recovered), OpenError> {
        let geometry = options.geometry()?;
        #[cfg(feature = "sabotage")]
        if crate::sabotage::skips_spool() {
            return Ok((Self::memory(options), Recovered::default()));
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(root);
        made.map_err(|error| OpenError::io("create", root, error))?;
        let scan = directory::scan(root)?;

        let mut recovered = Recovered::default();
        let mut leavings = Vec::new();
        for found in scan.whole {
            let path = found.directory.path().to_owned();
            match found.map() {
                Ok(region) => leavings.push(Leavings::read(found, region)),
                Err(error) => recovered.unrecovered.push(Unrecovered { path, reason: error.to_string() }),
            }
        }
        recovered.adopted_instances = leavings.len();
        // The emptiest of our geometry becomes our own.
        let candidates = leavings.iter().enumerate().filter(|(_, left)| left.found.geometry == geometry);
        let home = candidates.min_by_key(|(_, left)| left.in_use.len()).map(|(at, _)| at);
        let home = home.map(|at| leavings.swap_remove(at));
        // Before a new file is made, which may need their space.
        scan.husks.iter().for_each(InstanceDir::delete_or_warn);
        leavings
            .iter()
            .filter(|left| left.in_use.is_empty())
            .for_each(|left| left.found.directory.delete_or_warn());
        let home = match home {
            Some(left) => left.into_home(options.durability, &mut recovered),
            None => {
                let (directory, region) = InstanceDir::make(root, geometry)?;
                Arc::new(Instance::home(region, geometry, options.durability, Some(directory), &[]))
            }
        };
        // Nothing can fail any more.
        for left in leavings {
            left.into_adopted(&mut recovered);
        }
        for (directory, reason) in scan.damaged {
            recovered.unrecovered.push(match directory.set_aside() {
                Ok(path) => Unrecovered { path, reason },
                Err(error) => Unrecovered {
                    path: directory.path().to_owned(),
                    reason: format!("{reason}; cannot rename it: {error}"),
                },
            });
        }
        let refused = scan.refused.into_iter().map(|(path, reason)| Unrecovered { path, reason });
        recovered.unrecovered.extend(refused);
        recovered.report();
        Ok((Self { home }, recovered))
    }

    /// A spool in plain memory: nothing survives the process. Options out of range are brought to the nearest
    /// that is in range; durability has no meaning.
    pub fn memory(options: &SpoolOptions) -> Self {
        let geometry = options.clamped_geometry();
        let bytes = usize::try_from(geometry.file_bytes()).unwrap_or(usize::MAX);
        let region = Region::heap(bytes);
        Self { home: Arc::new(Instance::home(region, geometry, Durability::Process, None, &[])) }
    }

    /// Claims an empty pack. Never blocks. The label comes back with the pack after a crash.
    ///
    /// # Errors
    /// [`SpoolFull`].
    ///
    /// # Panics
    /// If the label is longer than [`LABEL_MAX_BYTES`]: check it where it is configured.
    pub fn claim(&self, label: &[u8]) -> Result<OpenPack, SpoolFull> {
        assert!(label.len() <= LABEL_MAX_BYTES, "a label of at most {LABEL_MAX_BYTES} bytes");
        self.home.claim(label).map(OpenPack::new)
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        let Geometry { slots, .. } = self.home.geometry;
        let slots_in_use = self.home.slots_in_use();
        Usage {
            slots,
            slots_in_use,
            bytes: self.home.geometry.file_bytes(),
            bytes_in_use: u64::from(slots_in_use) * self.home.geometry.stride_bytes() as u64,
            sync_failed: self.home.sync_failed(),
        }
    }
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Spool").field(&self.usage()).finish()
    }
}

impl Recovered {
    fn report(&self) {
        for Unrecovered { path, reason } in &self.unrecovered {
            tracing::error!(path = %path.display(), reason, "a spool could not be recovered");
        }
        if self.torn_entries > 0 {
            tracing::error!(torn_entries = self.torn_entries, "spool entries did not check and were skipped");
        }
        if !self.packs.is_empty() {
            let events: u64 = self.packs.iter().map(|pack| u64::from(pack.count())).sum();
            tracing::info!(packs = self.packs.len(), events, "recovered from the spool");
        }
    }
}

/// The contents of a file whose owner is gone.
struct Leavings {
    found: Found,
    region: Region,
    slots: Vec<(u32, Contents)>,
    /// The slots that must not be written, in order.
    in_use: Vec<u32>,
    torn_entries: u64,
}

impl Leavings {
    fn read(found: Found, region: Region) -> Self {
        let mut left = Self { found, region, slots: Vec::new(), in_use: Vec::new(), torn_entries: 0 };
        for slot in 0..left.found.geometry.slots {
            let contents = recovery::read_slot(&left.region, left.found.geometry, slot);
            match contents {
                Contents::Nothing { torn_entries } => {
                    left.torn_entries += torn_entries;
                    continue;
                }
                Contents::Pack { torn_entries, .. } => left.torn_entries += torn_entries,
                Contents::Unreadable => {}
            }
            left.in_use.push(slot);
            left.slots.push((slot, contents));
        }
        left
    }

    fn into_home(self, durability: Durability, recovered: &mut Recovered) -> Arc<Instance> {
        let Self { found: Found { directory, geometry, .. }, region, slots, in_use, torn_entries } = self;
        let path = directory.path().to_owned();
        let instance = Arc::new(Instance::home(region, geometry, durability, Some(directory), &in_use));
        recovered.torn_entries += torn_entries;
        recovered.take(&instance, &path, slots);
        instance
    }

    fn into_adopted(self, recovered: &mut Recovered) {
        let Self { found: Found { directory, geometry, .. }, region, slots, in_use, torn_entries } = self;
        let path = directory.path().to_owned();
        let instance = Arc::new(Instance::adopted(region, geometry, directory, &in_use));
        recovered.torn_entries += torn_entries;
        recovered.take(&instance, &path, slots);
    }
}

impl Recovered {
    fn take(&mut self, instance: &Arc<Instance>, path: &Path, slots: Vec<(u32, Contents)>) {
        for (index, contents) in slots {
            match contents {
                Contents::Nothing { .. } => {}
                Contents::Pack { generation, label, count, events, .. } => {
                    let instance = Arc::clone(instance);
                    let slot = Slot { instance, index, generation, label, holds_events: true };
                    self.packs.push(RecoveredPack::new(slot, count, events));
                }
                Contents::Unreadable => self.unrecovered.push(Unrecovered {
                    path: path.to_owned(),
                    reason: format!("slot {index}: its state and both claim records are damaged"),
                }),
            }
        }
    }
}
