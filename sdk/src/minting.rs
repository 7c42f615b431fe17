//! Which key mints: a new primary key does once whoever judges tokens has had time to take over the ring.
//!
//! A ring does not reach all processes at the same moment, and to a process that lacks a key its tokens are illegal. So the
//! key so far goes on minting for [`SdkOptions::mint_after_ms`], unless it cannot: it is no longer in the ring, is destroyed,
//! or the rules revoke it. A new key that the rules revoke takes the place of none that can mint.

use crate::options::SdkOptions;
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use std::sync::Arc;
use windfall_contract::Clock;
use windfall_contract::rules::Revocations;
use windfall_token::{KeyId, KeyInfo, KeyRing, Minter, NoPrimary, State};

pub(crate) struct Minting {
    app_id: String,
    mint_after_ms: u64,
    clock: Clock,
    minter: ArcSwap<Minter>,
    next: Mutex<Option<Next>>,
}

/// The primary key while it does not mint yet.
struct Next {
    minter: Minter,
    /// The monotonic moment from which on it mints.
    from_ns: u64,
}

impl Minting {
    /// Mints with the primary key of the ring that a process starts with. A ring says when a key was made, and not when it
    /// was promoted: a primary key that was made less than `mint_after_ms` ago waits for the rest of that time if there is
    /// a key that was primary before it. So does a revoked one, for as long as it is revoked.
    pub(crate) fn open(
        ring: &KeyRing,
        options: &SdkOptions,
        clock: Clock,
        revocations: &Revocations,
    ) -> Result<Self, NoPrimary> {
        let primary = ring.minter(&options.app_id)?;
        let created_ms = ring.keys().find(|key| key.id == primary.key()).map_or(0, |key| key.created_ms);
        let age_ms = clock.unix_ms().saturating_sub(created_ms);
        let wait_ms = options.mint_after_ms.saturating_sub(age_ms);
        let own = Self {
            app_id: options.app_id.clone(),
            mint_after_ms: options.mint_after_ms,
            minter: ArcSwap::from_pointee(primary.clone()),
            next: Mutex::default(),
            clock,
        };
        let was_primary = |key: &KeyInfo| key.state == State::VerifyOnly && key.has_minted;
        let before = ring.keys().filter(was_primary).filter_map(|key| own.usable(ring, key.id, revocations));
        let waits = wait_ms > 0 || revocations.of_key(primary.key().0).is_some();
        if let (Some(before), true) = (before.last(), waits) {
            *own.next.lock() = Some(own.wait(primary, &before, wait_ms));
            own.minter.store(Arc::new(before));
        }
        Ok(own)
    }

    /// The minter of now.
    #[inline]
    pub(crate) fn minter(&self) -> Guard<Arc<Minter>> {
        self.minter.load()
    }

    /// Takes over a changed ring. On an error the key that mints stays, and none waits any more.
    pub(crate) fn take_over(&self, ring: &KeyRing, revocations: &Revocations) -> Result<(), NoPrimary> {
        // The key that waits is not primary any more: it may be retired or destroyed, and judges would refuse its tokens.
        let primary = ring.minter(&self.app_id).inspect_err(|_| *self.next.lock() = None)?;
        let mut next = self.next.lock();
        let so_far = self.minter.load().key();
        let (now, then) = if primary.key() == so_far {
            (primary, None)
        } else if let Some(kept) = self.usable(ring, so_far, revocations) {
            // Another change of the ring does not make the key that waits any newer.
            let waits = next.take().filter(|next| next.minter.key() == primary.key());
            let then = match waits {
                Some(Next { from_ns, .. }) => Next { minter: primary, from_ns },
                None => self.wait(primary, &kept, self.mint_after_ms),
            };
            (kept, Some(then))
        } else {
            let (key, so_far) = (primary.key().0, so_far.0);
            tracing::warn!(key, so_far, "the new key mints at once: the key so far can no longer be used");
            (primary, None)
        };
        self.minter.store(Arc::new(now));
        *next = then;
        drop(next);
        self.look(revocations);
        Ok(())
    }

    /// Lets the key that waits mint, if its time has come or the key so far was revoked, and it is not revoked itself.
    pub(crate) fn look(&self, revocations: &Revocations) {
        let mut next = self.next.lock();
        let now_ns = self.clock.monotonic_ns();
        let so_far = self.minter.load().key().0;
        let is_revoked = revocations.of_key(so_far).is_some();
        let takes_over = |next: &mut Next| {
            // Its tokens would be illegal. It goes on waiting, as the revocation may be taken back.
            let is_legal = revocations.of_key(next.minter.key().0).is_none();
            is_legal && (is_revoked || now_ns >= next.from_ns)
        };
        let Some(Next { minter, .. }) = next.take_if(takes_over) else { return };
        let key = minter.key().0;
        if is_revoked {
            tracing::warn!(key, so_far, "the new key mints at once: the key so far is revoked");
        } else {
            tracing::info!(key, so_far, "the new key mints");
        }
        self.minter.store(Arc::new(minter));
    }

    /// A minter with this key, if it can mint and its tokens count.
    fn usable(&self, ring: &KeyRing, key: KeyId, revocations: &Revocations) -> Option<Minter> {
        ring.minter_with(key, &self.app_id).filter(|_| revocations.of_key(key.0).is_none())
    }

    fn wait(&self, minter: Minter, so_far: &Minter, wait_ms: u64) -> Next {
        if wait_ms > 0 {
            let (key, so_far) = (minter.key().0, so_far.key().0);
            tracing::info!(key, so_far, wait_ms, "the new key waits until others have had time to learn it");
        }
        let from_ns = self.clock.monotonic_ns().saturating_add(wait_ms.saturating_mul(1_000_000));
        Next { minter, from_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use windfall_contract::rules::{Revocation, Revoked};
    use windfall_token::{Algorithm, KeyFile};

    const WAIT_MS: u64 = 150_000;
    const START_MS: u64 = 1_800_000_000_000;

    /// A ring's file, and the clock of a sender that follows it.
    struct Fixture {
        _dir: tempfile::TempDir,
        path: PathBuf,
        file: KeyFile,
        passed_ms: Arc<AtomicU64>,
    }

    impl Fixture {
        /// With key 1, which is old.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("keys.toml");
            let file = KeyFile::create(&path, Algorithm::HmacSha256, 1).unwrap();
            Self { _dir: dir, path, file, passed_ms: Arc::default() }
        }

        fn ring(&self) -> KeyRing {
            KeyRing::load(&self.path).unwrap()
        }

        /// Adds a key and makes it primary.
        fn add_primary(&mut self, created_ms: u64) -> KeyId {
            let id = self.file.add(Algorithm::HmacSha256, created_ms).unwrap();
            self.file.promote(id).unwrap();
            self.file.promote(id).unwrap();
            id
        }

        fn pass(&self, ms: u64) {
            self.passed_ms.fetch_add(ms, SeqCst);
        }

        fn open(&self, mint_after_ms: u64, revocations: &Revocations) -> Minting {
            let (monotonic, wall) = (Arc::clone(&self.passed_ms), Arc::clone(&self.passed_ms));
            let clock = Clock::from_sources(
                move || monotonic.load(SeqCst) * 1_000_000,
                move || START_MS + wall.load(SeqCst),
            );
            let options = SdkOptions { mint_after_ms, ..SdkOptions::default() };
            Minting::open(&self.ring(), &options, clock, revocations).unwrap()
        }

        fn start(&self) -> Minting {
            self.open(WAIT_MS, &Revocations::default())
        }

        fn take_over(&self, minting: &Minting) {
            minting.take_over(&self.ring(), &Revocations::default()).unwrap();
        }
    }

    /// The number of the key that mints after a look.
    fn key(minting: &Minting) -> u32 {
        minting.look(&Revocations::default());
        minting.minter().key().0
    }

    fn revoked(key: u32) -> Revocations {
        [Revocation { what: Revoked::Key(key), why: "leaked".into() }].into_iter().collect()
    }

    #[test]
    fn a_new_primary_key_mints_when_its_ring_has_been_known_long_enough() {
        let mut fixture = Fixture::new();
        let minting = fixture.start();
        fixture.add_primary(1);
        fixture.take_over(&minting);
        assert_eq!(key(&minting), 1);
        fixture.pass(WAIT_MS / 2);
        // A pending key beside it changes nothing.
        fixture.file.add(Algorithm::HmacSha256, 1).unwrap();
        fixture.take_over(&minting);
        fixture.pass(WAIT_MS / 2 - 1);
        assert_eq!(key(&minting), 1, "a millisecond too early");
        fixture.pass(1);
        assert_eq!(key(&minting), 2);
    }

    /// What is minted meanwhile opens by the new ring, which is all that judges have.
    #[test]
    fn the_key_so_far_mints_for_the_new_ring() {
        let mut fixture = Fixture::new();
        let minting = fixture.start();
        fixture.add_primary(1);
        fixture.take_over(&minting);
        let fields = windfall_token::TokenFields {
            trade_no: "o-1",
            user_id: 7,
            app_id: "windfall",
            ..Default::default()
        };
        let token = minting.minter().mint(&fields, START_MS).unwrap();
        assert!(fixture.ring().open(token.as_bytes(), "windfall", 7).is_ok());
    }

    #[test]
    fn a_newer_primary_key_waits_anew_and_the_one_that_never_minted_is_passed_over() {
        let mut fixture = Fixture::new();
        let minting = fixture.start();
        fixture.add_primary(1);
        fixture.take_over(&minting);
        fixture.pass(WAIT_MS - 1);
        fixture.add_primary(1);
        fixture.take_over(&minting);
        fixture.pass(1);
        assert_eq!(key(&minting), 1);
        fixture.pass(WAIT_MS - 1);
        assert_eq!(key(&minting), 3);
    }

    #[test]
    fn a_ring_of_before_ends_the_wait() {
        let mut fixture = Fixture::new();
        let (minting, before) = (fixture.start(), fixture.ring());
        fixture.add_primary(1);
        fixture.take_over(&minting);
        minting.take_over(&before, &Revocations::default()).unwrap();
        fixture.pass(WAIT_MS);
        assert_eq!(key(&minting), 1);
    }

    #[test]
    fn the_new_key_mints_at_once_when_the_key_so_far_cannot() {
        let mut fixture = Fixture::new();
        let minting = fixture.start();
        fixture.add_primary(1);
        fixture.take_over(&minting);
        fixture.file.destroy(KeyId(1)).unwrap();
        fixture.take_over(&minting);
        assert_eq!(key(&minting), 2, "destroyed");

        fixture.add_primary(1);
        fixture.take_over(&minting);
        minting.look(&revoked(2));
        assert_eq!(key(&minting), 3, "revoked while the next one waits");

        fixture.add_primary(1);
        minting.take_over(&fixture.ring(), &revoked(3)).unwrap();
        assert_eq!(key(&minting), 4, "revoked before");

        // A ring without it.
        let mut other = Fixture::new();
        other.file.add(Algorithm::HmacSha256, 1).unwrap();
        let other_ids = [other.add_primary(1), other.add_primary(1), other.add_primary(1)];
        let minting = other.start();
        assert_eq!(key(&minting), other_ids[2].0);
        let mut shorter = Fixture::new();
        shorter.add_primary(1);
        shorter.take_over(&minting);
        assert_eq!(key(&minting), 2);
    }

    #[test]
    fn without_a_wait_it_mints_at_once() {
        let mut fixture = Fixture::new();
        let minting = fixture.open(0, &Revocations::default());
        fixture.add_primary(START_MS);
        fixture.take_over(&minting);
        assert_eq!(minting.minter().key().0, 2);
    }

    #[test]
    fn a_ring_without_a_primary_key_changes_nothing() {
        let mut fixture = Fixture::new();
        let minting = fixture.start();
        fixture.add_primary(1);
        fixture.take_over(&minting);
        fixture.file.retire(KeyId(2)).unwrap();
        let refused = minting.take_over(&fixture.ring(), &Revocations::default());
        assert_eq!((refused, key(&minting)), (Err(NoPrimary::None), 1));
        fixture.file.destroy(KeyId(2)).unwrap();
        assert!(minting.take_over(&fixture.ring(), &Revocations::default()).is_err());
        fixture.pass(WAIT_MS);
        assert_eq!(key(&minting), 1, "the key that waited is destroyed");
    }

    #[test]
    fn a_revoked_key_takes_the_place_of_none_that_can_mint() {
        let mut fixture = Fixture::new();
        let running = fixture.start();
        fixture.add_primary(START_MS - WAIT_MS);
        running.take_over(&fixture.ring(), &revoked(2)).unwrap();
        let started = fixture.open(WAIT_MS, &revoked(2));
        let without_wait = fixture.open(0, &revoked(2));
        fixture.pass(WAIT_MS);
        for minting in [&running, &started, &without_wait] {
            minting.look(&revoked(2));
            assert_eq!(minting.minter().key().0, 1);
            // Of two revoked keys neither is better.
            minting.look(&[revoked(1), revoked(2)].iter().flat_map(Revocations::iter).cloned().collect());
            assert_eq!(minting.minter().key().0, 1);
            assert_eq!(key(minting), 2, "the revocation was taken back");
        }
        fixture.file.destroy(KeyId(1)).unwrap();
        let minting = fixture.open(WAIT_MS, &revoked(2));
        assert_eq!(minting.minter().key().0, 2, "there is no other one");
    }

    #[test]
    fn a_start_waits_only_for_a_key_that_was_made_a_moment_ago() {
        let mut fixture = Fixture::new();
        assert_eq!(key(&fixture.start()), 1, "the only key");
        fixture.add_primary(START_MS - WAIT_MS);
        assert_eq!(key(&fixture.start()), 2, "made long enough ago");
        fixture.add_primary(START_MS - WAIT_MS + 1_000);
        assert_eq!(
            key(&fixture.open(WAIT_MS, &revoked(2))),
            1,
            "of those before, the newest that is not revoked"
        );
        let minting = fixture.start();
        fixture.take_over(&minting);
        assert_eq!(key(&minting), 2);
        fixture.pass(999);
        assert_eq!(key(&minting), 2);
        fixture.pass(1);
        assert_eq!(key(&minting), 3);
        // By a clock that is ahead: it waits as long as any other, and no longer.
        fixture.add_primary(START_MS * 2);
        let minting = fixture.start();
        assert_eq!(key(&minting), 3);
        fixture.pass(WAIT_MS);
        assert_eq!(key(&minting), 4);
    }
}
