//! Who may bring a record in: its signature is verified before anything of it is granted or waits in a lane. // I12

use crate::stats::ConsumerStats;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use windfall_contract::rules::Rules;
use windfall_proto::record;
use windfall_signing::{QueueTag, Refused, UNSIGNED_ORIGIN, Verifier};

/// What becomes of a record without a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsigned {
    /// It is archived as unverified, and nothing of it is granted.
    #[default]
    Refuse,
    /// It is granted, and counted. Whoever can write to the topic can then have a reward granted.
    Accept,
}

/// How the records of a topic are verified.
#[derive(Debug, Clone)]
pub struct Signatures {
    /// Knows the keys of the senders. Where another topic of the process accepts unsigned records, it
    /// [takes](Verifier::with_unsigned_origins) copies of them, which may come by every topic.
    pub verifier: Verifier,
    /// What becomes of records without a signature.
    pub unsigned: Unsigned,
}

/// A record that may come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// The number of the key that its original was signed with; [`UNSIGNED_ORIGIN`] where nobody had signed that; 0 where
    /// nothing is verified.
    pub origin: u32,
    /// Whether it was taken though nobody had signed it, or its original.
    pub is_unsigned: bool,
}

/// What there is to judge records by since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// Another ring, and maybe other rules.
    Ring,
    /// Other rules.
    Rules,
}

/// The check at the entrance of one topic's consumer.
#[derive(Debug)]
pub(crate) struct Entrance {
    topic: Arc<str>,
    signatures: Option<Signatures>,
    /// The queues that the rules have, and that this topic does not belong to.
    foreign: BTreeSet<QueueTag>,
    /// The version of those rules.
    rules_version: u64,
    /// The changes of the ring, and the version of the rules, at the last look for news.
    seen: (u64, u64),
}

impl Entrance {
    pub fn new(topic: Arc<str>, signatures: Option<Signatures>) -> Self {
        let signatures = signatures.map(|own| match own.unsigned {
            Unsigned::Accept => Signatures { verifier: own.verifier.with_unsigned_origins(), ..own },
            Unsigned::Refuse => own,
        });
        let seen = (signatures.as_ref().map_or(0, |own| own.verifier.ring_changes()), 0);
        Self { topic, signatures, foreign: BTreeSet::new(), rules_version: 0, seen }
    }

    /// Takes over the queues of the rules. A topic that no queue names is being drained: it may carry what was written
    /// for any queue that it once belonged to. A queue that the rules do not have is one that they had, or one that its
    /// sender has heard of first.
    pub fn apply(&mut self, rules: &Rules) {
        self.rules_version = rules.version;
        if self.signatures.is_none() {
            return;
        }
        let is_own = |name: &str| {
            let broker = rules.topics.get(name).map(|topic| &topic.broker);
            *self.topic == *name || broker.is_some_and(|broker| *self.topic == *format!("{name}@{broker}"))
        };
        let tags_where = |own: bool| -> BTreeSet<QueueTag> {
            let of = rules
                .queues
                .iter()
                .filter(|(_, queue)| (is_own(&queue.master) || is_own(&queue.backup)) == own);
            of.map(|(name, _)| QueueTag::of(name)).collect()
        };
        self.foreign = if tags_where(true).is_empty() { BTreeSet::new() } else { tags_where(false) };
    }

    /// The highest number of a key in the ring.
    pub fn highest_key(&self) -> u32 {
        self.signatures.as_ref().map_or(0, |own| own.verifier.highest_key())
    }

    /// What there is since this was asked last. What is checked from here on is checked by it.
    pub fn news(&mut self) -> Option<News> {
        let ring = self.signatures.as_ref().map_or(0, |own| own.verifier.ring_changes());
        let now = (ring, self.rules_version);
        let before = std::mem::replace(&mut self.seen, now);
        match (before.0 != now.0, before.1 != now.1) {
            (true, _) => Some(News::Ring),
            (false, true) => Some(News::Rules),
            (false, false) => None,
        }
    }

    /// Why a record that has come in would be refused by now, if that is for a key that is destroyed. Newer rules do not
    /// make a good record bad.
    pub fn destroyed(&self, payload: &[u8]) -> Option<Refused> {
        let is_destroyed =
            |own: &Refused| matches!(own, Refused::DestroyedKey { .. } | Refused::OriginGone { .. });
        self.check(payload).err().filter(is_destroyed)
    }

    /// Shows how records are verified.
    pub fn show(&self, stats: &ConsumerStats) {
        let unsigned = self.signatures.as_ref().map(|own| own.unsigned);
        stats.refuses_unsigned.set((unsigned == Some(Unsigned::Refuse)).into());
        stats.accepts_unsigned.set((unsigned == Some(Unsigned::Accept)).into());
        stats.verifies_nothing.set(unsigned.is_none().into());
    }

    /// Whether a record may come in. Without keys every record may.
    pub fn check(&self, payload: &[u8]) -> Result<Admitted, Refused> {
        let Some(Signatures { verifier, unsigned }) = &self.signatures else {
            return Ok(Admitted { origin: 0, is_unsigned: false });
        };
        match verifier.verify(payload, |queue| !self.foreign.contains(&queue)) {
            Ok(verified) => {
                let origin = verified.origin;
                Ok(Admitted { origin, is_unsigned: origin == UNSIGNED_ORIGIN })
            }
            Err(Refused::Unsigned) if *unsigned == Unsigned::Accept => {
                Ok(Admitted { origin: UNSIGNED_ORIGIN, is_unsigned: true })
            }
            Err(Refused::Malformed(_)) if *unsigned == Unsigned::Accept && is_no_record(payload) => {
                Ok(Admitted { origin: 0, is_unsigned: false })
            }
            Err(refused) => Err(refused),
        }
    }
}

/// Whether it is no record at all, which is archived as malformed where unsigned records are taken.
fn is_no_record(payload: &[u8]) -> bool {
    record::split(payload).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use windfall_contract::rules::{Queue, Ratio, Topic};
    use windfall_proto::record::Head;
    use windfall_signing::{LiveRing, Ring, Signer};

    fn rules(queues: &[(&str, &str, &str)]) -> Rules {
        let topics = queues.iter().flat_map(|(_, master, backup)| [(*master, "a"), (*backup, "b")]);
        let topic = |(name, broker): (&str, &str)| {
            (name.to_owned(), Topic { broker: broker.to_owned(), partitions: 1 })
        };
        let queue = |(name, master, backup): &(&str, &str, &str)| {
            let (master, backup) = ((*master).to_owned(), (*backup).to_owned());
            ((*name).to_owned(), Queue { master, backup, ratio: Ratio::ALL })
        };
        Rules {
            topics: topics.map(topic).collect::<BTreeMap<_, _>>(),
            queues: queues.iter().map(queue).collect(),
            ..no_rules()
        }
    }

    fn no_rules() -> Rules {
        use windfall_contract::rules::{Limit, Limits, Pacing, Revocations};
        let global = Limit { rate_per_s: 1, burst: 1 };
        Rules {
            version: 1,
            bonus_types: Vec::new(),
            topics: BTreeMap::new(),
            draining: Vec::new(),
            queues: BTreeMap::new(),
            routes: Vec::new(),
            limits: Limits { global, types: BTreeMap::new() },
            budgets: Vec::new(),
            caps: BTreeMap::new(),
            pacing: Pacing::default(),
            revocations: Revocations::default(),
            changes_need_approval: false,
            staged: None,
            tries_staged: false,
        }
    }

    fn unsigned() -> Vec<u8> {
        let head = Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 0, count: 1 };
        record::build(head, [b"event".as_slice()])
    }

    struct Setup {
        signer: Signer,
        verifier: Verifier,
    }

    fn setup() -> Setup {
        let ring = LiveRing::new(Ring::ephemeral("mall").unwrap());
        let signer = Signer::new(&ring, "mall", "acme").unwrap();
        Setup { signer, verifier: Verifier::new(&ring, "acme") }
    }

    impl Setup {
        fn entrance(&self, topic: &str, unsigned: Unsigned) -> Entrance {
            let signatures = Signatures { verifier: self.verifier.clone(), unsigned };
            let mut entrance = Entrance::new(topic.into(), Some(signatures));
            entrance.apply(&rules(&[("cash", "cash-a", "cash-b"), ("gifts", "gifts-a", "gifts-b")]));
            entrance
        }

        fn signed_for(&self, queue: &str) -> Vec<u8> {
            self.signer.sign_record(&unsigned(), QueueTag::of(queue)).unwrap()
        }
    }

    #[test]
    fn a_record_comes_in_by_either_topic_of_its_queue_and_by_no_other() {
        let setup = setup();
        for topic in ["cash-a@a", "cash-b@b", "cash-a"] {
            let entrance = setup.entrance(topic, Unsigned::Refuse);
            let admitted = entrance.check(&setup.signed_for("cash"));
            assert_eq!(admitted, Ok(Admitted { origin: 1, is_unsigned: false }), "{topic}");
            let foreign = entrance.check(&setup.signed_for("gifts"));
            assert_eq!(foreign, Err(Refused::WrongQueue { key: 1 }), "{topic}");
            // Its sender has heard of newer rules, or its queue is gone.
            assert!(entrance.check(&setup.signed_for("new")).is_ok(), "{topic}");
        }
        // A topic that drains, and one of the same name on another broker.
        for topic in ["old-a@a", "cash-a@b"] {
            let entrance = setup.entrance(topic, Unsigned::Refuse);
            assert!(entrance.check(&setup.signed_for("cash")).is_ok(), "{topic}");
        }
    }

    #[test]
    fn what_is_not_signed_comes_in_only_where_that_is_said_by_name() {
        let setup = setup();
        let strict = setup.entrance("cash-a@a", Unsigned::Refuse);
        assert_eq!(strict.check(&unsigned()), Err(Refused::Unsigned));
        assert!(matches!(strict.check(b"\xff\xff"), Err(Refused::Malformed(_))));
        let open = setup.entrance("cash-a@a", Unsigned::Accept);
        assert_eq!(open.check(&unsigned()), Ok(Admitted { origin: UNSIGNED_ORIGIN, is_unsigned: true }));
        assert!(open.check(b"\xff\xff").is_ok(), "it is archived as malformed");
        // A signature that is there has to be good.
        let mut forged = setup.signed_for("cash");
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(open.check(&forged), Err(Refused::Forged { key: 1 }));
        assert_eq!(open.check(&setup.signed_for("gifts")), Err(Refused::WrongQueue { key: 1 }));
        let mut moved = Vec::new();
        record::put_signature(&mut moved, &[1; 29]);
        moved.extend_from_slice(&unsigned());
        assert!(record::split(&moved).is_ok());
        assert!(matches!(open.check(&moved), Err(Refused::Malformed(_))));
    }

    /// The consumer's own signature must not make a record good that nobody had signed.
    #[test]
    fn a_copy_of_what_nobody_signed_comes_in_only_while_a_topic_accepts_such() {
        let mut setup = setup();
        let head = Head { bonus_type: "cash", attempt: 1, failures: 0, not_before_ms: 0, count: 1 };
        let copy = record::build_copy(head, UNSIGNED_ORIGIN, [b"event".as_slice()]);
        let copy = setup.signer.sign_record(&copy, QueueTag::of("cash")).unwrap();
        let strict = setup.entrance("cash-a@a", Unsigned::Refuse);
        assert_eq!(strict.check(&copy), Err(Refused::UnsignedOrigin { key: 1 }));
        setup.verifier = setup.verifier.with_unsigned_origins();
        // Another topic of the process accepts unsigned records, and this one takes their copies alone.
        let strict = setup.entrance("cash-a@a", Unsigned::Refuse);
        assert_eq!(strict.check(&copy), Ok(Admitted { origin: UNSIGNED_ORIGIN, is_unsigned: true }));
        assert_eq!(strict.check(&unsigned()), Err(Refused::Unsigned));
    }

    #[test]
    fn without_keys_every_record_comes_in() {
        let mut entrance = Entrance::new("cash-a@a".into(), None);
        entrance.apply(&no_rules());
        for payload in [unsigned(), setup().signed_for("gifts"), vec![0xff]] {
            assert_eq!(entrance.check(&payload), Ok(Admitted { origin: 0, is_unsigned: false }));
        }
    }
}
