//! Records are signed for their queue, whatever way a pack takes to the broker. // I12

use crate::building::builder;
use crate::stage::{Mood, Scripted, Stage, on_file, one_queue, request, rules, wait_until};
use std::path::Path;
use windfall_contract::Clock;
use windfall_proto::record;
use windfall_sdk::{BuildError, LiveRing, OpenRingError, SdkOptions, Signer};
use windfall_signing::{KeyFile, QueueTag, Refused, Ring, Verified, Verifier};

fn signer(ring: &LiveRing) -> Signer {
    // The SDK's app is the tenant, whatever its signer was made for.
    Signer::new(ring, "mall", "another-app").unwrap()
}

fn verify(ring: &LiveRing, queue: &str, record: &[u8]) -> Result<Verified, Refused> {
    Verifier::new(ring, &SdkOptions::default().app_id).verify(record, |own| own == QueueTag::of(queue))
}

/// All that the brokers have, as it came.
fn stored(stage: &Stage) -> Vec<Vec<u8>> {
    let all = [&stage.a, &stage.b].map(|broker| broker.records.lock().clone());
    all.into_iter().flatten().map(|(_, bytes)| bytes).collect()
}

#[test]
fn every_pack_is_signed_for_its_queue_on_either_topic() {
    let ring = LiveRing::new(Ring::ephemeral("mall").unwrap());
    let half = rules(1, &[("q", 50)], &[("*", "q")]);
    let options = SdkOptions::default();
    let stage = Stage::with_signer(options, &half, Mood::Store, Clock::system(), Some(signer(&ring)));
    for user in 1..=600 {
        stage.sdk.send_bonus(&request(&format!("o-{user}"), user)).unwrap();
    }
    stage.wait_for_events(600);
    let records = stored(&stage);
    for record in &records {
        assert_eq!(verify(&ring, "q", record), Ok(Verified { key: 1, origin: 1 }));
        assert_eq!(verify(&ring, "other", record), Err(Refused::WrongQueue { key: 1 }));
    }
    assert!(
        !stage.a.records.lock().is_empty() && !stage.b.records.lock().is_empty(),
        "both topics have some"
    );
    assert_eq!(stage.sdk.stats().signing_key, 1);
    stage.end();
}

#[test]
fn without_a_key_records_are_as_before() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    stage.wait_for_events(1);
    let records = stored(&stage);
    assert_eq!(record::signed_parts(&records[0]).unwrap().signature, None);
    assert_eq!(stage.sdk.stats().signing_key, 0);
    stage.end();
}

fn rotate(path: &Path, destroy: u32) {
    let mut file = KeyFile::open(path).unwrap();
    let id = file.add("mall", false, 1).unwrap();
    file.promote(id).unwrap();
    file.destroy(destroy).unwrap();
}

/// A process died with packs that it had signed, and started again when its key was gone.
#[test]
fn an_adopted_pack_is_signed_anew() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("signing.toml");
    drop(KeyFile::create(&path, "mall", false, 1).unwrap());
    let spool = root.path().join("spool");
    let open = |mood| {
        let ring = LiveRing::new(Ring::load(&path).unwrap());
        let stage =
            Stage::with_signer(on_file(&spool), &one_queue(), mood, Clock::system(), Some(signer(&ring)));
        (stage, ring)
    };
    let (first, _) = open(Mood::Hang);
    for number in 0..300 {
        first.sdk.send_bonus(&request(&format!("o-{number}"), 1)).unwrap();
    }
    wait_until("the packs are signed and in flight", || first.sdk.stats().packs_in_flight > 1);
    first.break_off();
    rotate(&path, 1);
    let (second, ring) = open(Mood::Store);
    assert_eq!(second.inherited.events, 300, "{:?}", second.inherited);
    second.wait_for_events(300);
    for record in stored(&second) {
        assert_eq!(verify(&ring, "q", &record), Ok(Verified { key: 2, origin: 2 }));
    }
    second.end();
}

/// A pack whose queue the rules dropped goes to another one, and is signed for that.
#[test]
fn a_pack_that_changes_its_queue_is_signed_for_the_new_one() {
    let ring = LiveRing::new(Ring::ephemeral("mall").unwrap());
    let old = rules(1, &[("old", 100)], &[("*", "old")]);
    let options = SdkOptions::default();
    let stage = Stage::with_signer(options, &old, Mood::Refuse, Clock::system(), Some(signer(&ring)));
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    wait_until("it is in flight", || stage.sdk.stats().packs_in_flight == 1);
    stage.change_rules(&rules(2, &[("new", 100)], &[("*", "new")]));
    *stage.a.mood.lock() = Mood::Store;
    *stage.b.mood.lock() = Mood::Store;
    stage.wait_for_events(1);
    let records = stored(&stage);
    assert_eq!(verify(&ring, "new", &records[0]), Ok(Verified { key: 1, origin: 1 }));
    stage.end();
}

/// Between two tries a ring without a key to sign with came into force: the pack waits, and is never sent unsigned.
#[test]
fn a_pack_waits_for_a_key_rather_than_go_unsigned() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("signing.toml");
    let mut file = KeyFile::create(&path, "mall", false, 1).unwrap();
    let ring = LiveRing::new(Ring::load(&path).unwrap());
    let stage = Stage::with_signer(
        SdkOptions::default(),
        &one_queue(),
        Mood::Store,
        Clock::system(),
        Some(signer(&ring)),
    );
    file.add("mall", false, 1).unwrap();
    file.retire(1).unwrap();
    ring.replace(Ring::load(&path).unwrap(), None).unwrap();
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    wait_until("it is given back a few times", || stage.sdk.stats().packs_returned > 2);
    assert_eq!((stored(&stage).len(), stage.sdk.stats().packs_in_flight), (0, 1));
    file.promote(2).unwrap();
    ring.replace(Ring::load(&path).unwrap(), Some("mall")).unwrap();
    stage.wait_for_events(1);
    assert_eq!(verify(&ring, "q", &stored(&stage)[0]), Ok(Verified { key: 2, origin: 2 }));
    stage.end();
}

#[test]
fn a_builder_says_what_is_wrong_with_its_signing_keys() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("signing.toml");
    let build = || {
        let (a, b) = (Scripted::new(Mood::Store), Scripted::new(Mood::Store));
        builder(root.path(), &a, &b).signing_file(&path, "mall").build()
    };
    let missing = build().err().unwrap();
    assert!(matches!(missing, BuildError::Signing { source: OpenRingError::File(_), .. }), "{missing}");
    let mut file = KeyFile::create(&path, "gateway", false, 1).unwrap();
    let nobody = build().err().unwrap();
    assert!(matches!(nobody, BuildError::Signing { source: OpenRingError::NoPrimary(_), .. }), "{nobody}");
    let id = file.add("mall", false, 1).unwrap();
    file.promote(id).unwrap();
    let sdk = build().unwrap();
    assert_eq!(sdk.stats().signing_key, u64::from(id));
    sdk.close_blocking(std::time::Duration::from_secs(60));
}
