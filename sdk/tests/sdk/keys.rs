//! A key ring that changes while an SDK runs.

use crate::building::builder;
use crate::stage::{Mood, Scripted, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use windfall_contract::Clock;
use windfall_sdk::SdkOptions;
use windfall_token::{Algorithm, KeyFile, KeyId};

/// Nobody calls anything: the SDK sees the file change, and lets the new key mint when its time has come.
#[test]
fn a_key_that_is_promoted_in_the_file_mints_when_others_have_had_time_to_learn_it() {
    const HOUR_MS: u64 = 3_600_000;
    let root = tempfile::tempdir().unwrap();
    let (a, b) = (Scripted::new(Mood::Store), Scripted::new(Mood::Store));
    let passed_ms = Arc::new(AtomicU64::new(0));
    let (own, ahead) = (Clock::system(), Arc::clone(&passed_ms));
    let wall = own.clone();
    let clock = Clock::from_sources(
        move || own.monotonic_ns() + ahead.load(SeqCst) * 1_000_000,
        move || wall.unix_ms(),
    );
    let options = SdkOptions { mint_after_ms: 10 * HOUR_MS, ..SdkOptions::default() };
    let sdk = builder(root.path(), &a, &b).options(options).clock(clock).build().unwrap();
    let mut ring = KeyFile::open(&root.path().join("keys.toml")).unwrap();
    ring.add(Algorithm::HmacSha256, 1).unwrap();
    ring.promote(KeyId(2)).unwrap();
    ring.promote(KeyId(2)).unwrap();
    assert_eq!(sdk.stats().minting_key, 1);
    wait_until("the new key mints", || {
        let minting = sdk.stats().minting_key;
        let passed = passed_ms.fetch_add(HOUR_MS / 10, SeqCst);
        assert!(minting == 1 || passed >= 10 * HOUR_MS, "it minted after {passed} ms");
        std::thread::sleep(Duration::from_millis(20));
        minting == 2
    });
    sdk.close_blocking(Duration::from_secs(60));
}
