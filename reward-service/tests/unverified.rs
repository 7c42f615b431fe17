//! Replays of records that came unverified: they are verified anew, and nothing is granted of what is not. // I12
#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use std::path::{Path, PathBuf};
use support::{assert_clean, cash, start};
use windfall_contract::rewards::{Failed, GrantReply, Rejection, Rewards};
use windfall_ledger::ArchiveFilter;
use windfall_proto::record::{self, Head};
use windfall_reward_service::{ReplayError, RewardHandle};
use windfall_signing::{KeyFile, LiveRing, QueueTag, Ring, Signer, Verifier};

const REFUSED: GrantReply = GrantReply::Rejected(Rejection::Unverified);
const TENANT: &str = "acme";

fn record_of(events: &[Bytes]) -> Vec<u8> {
    let count = u32::try_from(events.len()).unwrap();
    let head = Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 0, count };
    record::build(head, events.iter().map(|event| &event[..]))
}

async fn archive(rewards: &RewardHandle, payloads: impl IntoIterator<Item = Vec<u8>>) {
    let failed = |payload: Vec<u8>| Failed {
        payload: payload.into(),
        rejection: Rejection::Unverified,
        detail: "record rain-a@a/0/7".into(),
    };
    rewards.archive(&payloads.into_iter().map(failed).collect::<Vec<_>>()).await.unwrap();
}

async fn replies(rewards: &RewardHandle) -> Vec<GrantReply> {
    let replayed = rewards.replay_all(ArchiveFilter::default(), "ann").await.unwrap();
    replayed.into_iter().map(|one| one.reply).collect()
}

/// A file of keys with key 1 of `mall`, and the ring of a reward service that has read it.
struct Keys {
    path: PathBuf,
    ring: LiveRing,
}

impl Keys {
    fn new(folder: &Path) -> Self {
        let path = folder.join("signing.toml");
        drop(KeyFile::create(&path, "mall", false, 1).unwrap());
        let ring = LiveRing::new(Ring::load(&path).unwrap());
        Self { path, ring }
    }

    /// Adds a key that signs from now on, which the ring of the reward service does not have.
    fn rotate(&self) {
        let mut file = KeyFile::open(&self.path).unwrap();
        let id = file.add("mall", false, 1).unwrap();
        file.promote(id).unwrap();
    }

    fn follow(&self) {
        self.ring.replace(Ring::load(&self.path).unwrap(), None).unwrap();
    }

    /// As `mall` signs with the file as it is now.
    fn sign(&self, tenant: &str, queue: &str, record: &[u8]) -> Vec<u8> {
        let ring = LiveRing::new(Ring::load(&self.path).unwrap());
        Signer::new(&ring, "mall", tenant).unwrap().sign_record(record, QueueTag::of(queue)).unwrap()
    }
}

/// An operator who replays all that is in the archive must not grant what nobody has signed, as a record or as a bare
/// event that names an order of somebody else.
#[tokio::test]
async fn a_replay_grants_nothing_of_what_was_not_verified() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::new(folder.path());
    let rewards = start(folder.path());
    let verifying = rewards.clone().with_verifier(Verifier::new(&keys.ring, TENANT));
    let events = [cash("a", 1, 100_000_000), cash("b", 2, 100_000_000)];
    assert_eq!(rewards.grant_batch("cash", &events[..1]).await, [GrantReply::Credited]);
    let record = record_of(&events);
    let mut changed = keys.sign(TENANT, "rain", &record);
    *changed.last_mut().unwrap() ^= 1;
    let other_tenant = keys.sign("other", "rain", &record);
    let bad = [record, events[0].to_vec(), events[1].to_vec(), changed, other_tenant];
    let many = bad.len();
    archive(&rewards, bad).await;
    let list = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    assert_eq!(list.len(), many, "{list:?}");
    assert!(list.iter().all(|entry| entry.reason == "unverified" && entry.trade_no.is_none()), "{list:?}");
    for handle in [&rewards, &verifying] {
        assert_eq!(replies(handle).await, vec![REFUSED; many]);
    }
    assert_eq!(rewards.grant_batch("cash", &events[1..]).await, [GrantReply::Credited], "it was not granted");
    rewards.close();
    assert_clean(folder.path());
}

/// The consumer's ring was behind its sender's for longer than a record waits. Nothing that is owed is lost: when the key
/// is there, a replay grants it, once.
#[tokio::test]
async fn a_replay_grants_a_record_whose_key_came_late() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::new(folder.path());
    let rewards = start(folder.path()).with_verifier(Verifier::new(&keys.ring, TENANT));
    keys.rotate();
    let events = [cash("a", 1, 5), cash("b", 2, 5)];
    archive(&rewards, [keys.sign(TENANT, "rain", &record_of(&events))]).await;
    assert_eq!(replies(&rewards).await, [REFUSED], "the key is not there");
    keys.follow();
    assert_eq!(replies(&rewards).await, [GrantReply::Credited]);
    assert_eq!(replies(&rewards).await, [GrantReply::AlreadyCredited]);
    let again = rewards.grant_batch("cash", &events).await;
    assert_eq!(again, [GrantReply::AlreadyCredited, GrantReply::AlreadyCredited]);
    // The key leaked, and is destroyed: what it signed and was not granted stays where it is.
    archive(&rewards, [keys.sign(TENANT, "rain", &record_of(&[cash("c", 3, 5)]))]).await;
    keys.rotate();
    KeyFile::open(&keys.path).unwrap().destroy(2).unwrap();
    keys.follow();
    assert_eq!(replies(&rewards).await, [REFUSED, REFUSED]);
    rewards.close();
    assert_clean(folder.path());
}

/// Rules that gave a topic to another queue too early had records of the old one archived. Their sender is known.
#[tokio::test]
async fn a_replay_grants_a_record_that_lay_in_a_topic_of_another_queue() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::new(folder.path());
    let rewards = start(folder.path()).with_verifier(Verifier::new(&keys.ring, TENANT));
    archive(&rewards, [keys.sign(TENANT, "old-queue", &record_of(&[cash("a", 1, 5)]))]).await;
    assert_eq!(replies(&rewards).await, [GrantReply::Credited]);
    rewards.close();
    assert_clean(folder.path());
}

/// Good records that nobody can verify any more are not lost for good: an operator vouches for them, one by one, and the
/// audit has the reason. That word does not help what somebody has changed.
#[tokio::test]
async fn an_operator_may_vouch_for_what_nothing_proves_and_for_nothing_that_is_forged() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::new(folder.path());
    let rewards = start(folder.path()).with_verifier(Verifier::new(&keys.ring, TENANT));
    let of = |order: &str| record_of(&[cash(order, 1, 5)]);
    let by_destroyed = keys.sign(TENANT, "rain", &of("b"));
    keys.rotate();
    KeyFile::open(&keys.path).unwrap().destroy(1).unwrap();
    keys.follow();
    let mut changed = keys.sign(TENANT, "rain", &of("c"));
    *changed.last_mut().unwrap() ^= 1;
    let bad =
        [of("a"), by_destroyed, changed, keys.sign("other", "rain", &of("d")), cash("e", 1, 5).to_vec()];
    archive(&rewards, bad).await;
    assert_eq!(replies(&rewards).await, vec![REFUSED; 5]);
    let list = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let mut replies = Vec::new();
    for entry in &list {
        assert!(matches!(
            rewards.replay_despite_signature(entry.id, "ann", " ").await,
            Err(ReplayError::NoReason)
        ));
        let vouched = rewards.replay_despite_signature(entry.id, "ann", "an old gateway").await.unwrap();
        replies.push(vouched.reply);
    }
    assert_eq!(replies, [GrantReply::Credited, GrantReply::Credited, REFUSED, REFUSED, REFUSED]);
    let again = rewards.replay_despite_signature(list[0].id, "ann", "an old gateway").await.unwrap();
    assert_eq!(again.reply, GrantReply::AlreadyCredited);
    let first = list[0].id;
    let audit = rewards.call(move |ledger| ledger.replays(first)).await.unwrap();
    let said = "asked, despite the signature: an old gateway";
    assert!(audit.iter().any(|replay| replay.outcome == said && replay.actor == "ann"), "{audit:?}");
    rewards.close();
    assert_clean(folder.path());
}
