//! The signing keys of a process: who it signs records as, whose it verifies, and the task that follows the key file.

use super::background::{Background, Tasks};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::block_in_place;
use windfall_consumer::{Signatures, Unsigned};
use windfall_signing::{LiveRing, Ring, RingFile, RingUse, Signer, Verifier};

/// The pause between two looks at the file, as at that of the token keys.
const EVERY: Duration = Duration::from_secs(5);

/// The pause after which a record with a key that the ring lacks makes it look: the sender may have a newer file.
const SOON: Duration = Duration::from_millis(250);

/// Who a process is among the senders, and what it takes from others.
#[derive(Debug, Clone)]
pub struct SigningOptions {
    /// Whose primary key signs.
    pub sender: String,
    /// The tenant that records are signed for.
    pub tenant: String,
    /// Other tenants whose records are granted.
    pub others: Vec<String>,
    /// What becomes of a record without a signature.
    pub unsigned: Unsigned,
    /// The same, for topics that have a rule of their own.
    pub topics: BTreeMap<String, Unsigned>,
    /// The topics of the queue of adds of timers, which the live rules do not know.
    pub adds: BTreeSet<String>,
    /// What the process does with the keys.
    pub used: RingUse,
}

/// What a process without keys may take and write unverified: everything on brokers that no other process can write to, and of the
/// others the topics whose unsigned records the options accept by name. // I12
#[derive(Debug, Clone, Default)]
pub struct AcceptedByName {
    /// Brokers that other processes can write to.
    pub shared_brokers: BTreeSet<String>,
    /// What the options say of every topic that has no rule of its own.
    pub unsigned: Unsigned,
    /// What they say of topics that have one.
    pub topics: BTreeMap<String, Unsigned>,
}

impl AcceptedByName {
    /// Whether this topic may be read and written without keys.
    pub fn has(&self, broker: &str, topic: &str) -> bool {
        let said = self.topics.get(topic).copied().unwrap_or(self.unsigned);
        said == Unsigned::Accept || !self.shared_brokers.contains(broker)
    }

    /// Whether the options accept unsigned records of any topic.
    pub fn names_any(&self) -> bool {
        self.topics.values().chain([&self.unsigned]).any(|said| *said == Unsigned::Accept)
    }
}

/// The signing keys of a process.
pub struct Signing {
    file: RingFile,
    keys: SigningKeys,
}

/// What the parts of a process sign and verify with. Cheap to clone.
#[derive(Clone)]
pub struct SigningKeys {
    /// Signs what the process writes.
    pub signer: Signer,
    ring: LiveRing,
    verifier: Verifier,
    unsigned: Unsigned,
    topics: BTreeMap<String, Unsigned>,
    adds: BTreeSet<String>,
}

impl Signing {
    /// Reads the keys. Blocks for the disk.
    pub fn open(path: &Path, options: &SigningOptions) -> Result<Self> {
        let SigningOptions { sender, tenant, others, unsigned, topics, adds, used } = options;
        let context = || format!("the signing keys {} cannot be used", path.display());
        let file = block_in_place(|| RingFile::open(path, sender, *used)).with_context(context)?;
        let ring: &LiveRing = file.ring();
        let signer = Signer::new(ring, sender, tenant).with_context(context)?;
        let tenants = std::iter::once(tenant).chain(others.iter().filter(|other| *other != tenant));
        let verifier = Verifier::of_tenants(ring, tenants.map(String::as_str));
        let ring = ring.clone();
        let (unsigned, topics, adds) = (*unsigned, topics.clone(), adds.clone());
        let keys = SigningKeys { signer, ring, verifier, unsigned, topics, adds };
        Ok(Self { file, keys })
    }

    /// What the parts of the process sign and verify with.
    pub const fn keys(&self) -> &SigningKeys {
        &self.keys
    }

    /// Takes over the file when it changes.
    pub fn follow(self, tasks: &Tasks) -> Background {
        let ring = self.file.ring().clone();
        let file = Arc::new(parking_lot::Mutex::new(self.file));
        tasks.spawn("signing keys", move || {
            let (file, ring) = (Arc::clone(&file), ring.clone());
            async move {
                loop {
                    pause(&ring).await;
                    let own = Arc::clone(&file);
                    match tokio::task::spawn_blocking(move || own.lock().look()).await {
                        Ok(None) => {}
                        Ok(Some(Ok(()))) => tracing::info!("the signing keys are taken over"),
                        Ok(Some(Err(why))) => {
                            tracing::warn!(why, "the signing keys cannot be read; those so far stay");
                        }
                        Err(died) if died.is_panic() => std::panic::resume_unwind(died.into_panic()),
                        // The runtime ends.
                        Err(_) => return,
                    }
                }
            }
        })
    }
}

/// Waits until it is time for a look.
async fn pause(ring: &LiveRing) {
    let mut waited = Duration::ZERO;
    while waited < EVERY {
        tokio::time::sleep(SOON).await;
        waited += SOON;
        if ring.take_lack() {
            return;
        }
    }
}

impl SigningKeys {
    /// The ring in force.
    pub fn ring(&self) -> Arc<Ring> {
        self.ring.current()
    }

    /// The topics that have a rule of their own, without those of the queue of adds.
    pub fn topics(&self) -> impl Iterator<Item = &String> {
        self.topics.keys().filter(move |topic| !self.adds.contains(*topic))
    }

    /// What becomes of a record of this topic without a signature.
    pub fn unsigned_of(&self, topic: &str) -> Unsigned {
        self.topics.get(topic).copied().unwrap_or(self.unsigned)
    }

    /// Says who signed a record, whatever topic it comes from.
    pub fn verifier(&self) -> Verifier {
        self.verifier.clone()
    }

    /// How the records of this topic are verified. Copies of unsigned records may come by every topic, as long as any topic
    /// accepts unsigned ones.
    pub fn of_topic(&self, topic: &str) -> Signatures {
        let unsigned = self.unsigned_of(topic);
        let accepts = self.topics.values().chain([&self.unsigned]).any(|own| *own == Unsigned::Accept);
        let verifier = self.verifier.clone();
        let verifier = if accepts { verifier.with_unsigned_origins() } else { verifier };
        Signatures { verifier, unsigned }
    }
}
