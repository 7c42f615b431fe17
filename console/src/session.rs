//! Sessions: an access key stays in this process, and the browser holds an opaque name for it.
//!
//! A session ends when it is idle, when it is old, when its user signs out, when its key leaves the access file, and when
//! this process ends. Nothing of it is written anywhere.

use crate::options::{ADDRESSES_MAX, ConsoleOptions, SESSIONS_OF_CALLER_MAX};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use subtle::ConstantTimeEq;
use windfall_contract::Clock;
use zeroize::Zeroizing;

/// Bytes of a session's name, and of its proof against forged requests.
const RANDOM_BYTES: usize = 32;
const MINUTE_MS: u64 = 60_000;

/// The sessions of a console.
pub(crate) struct Sessions {
    clock: Clock,
    max: usize,
    idle_ms: u64,
    session_ms: u64,
    attempts_per_min: u32,
    /// By the hash of the name: a look-up tells nothing about names by its time.
    all: Mutex<HashMap<[u8; 32], Session>>,
    failed: Mutex<HashMap<IpAddr, Failed>>,
}

/// What uses a session: an open page that nobody looks at must not keep it alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The page asks for what it shows, again and again.
    ByItself,
    /// A person asks for something.
    ByPerson,
}

/// A session.
#[derive(Clone)]
pub(crate) struct Session {
    caller: Arc<str>,
    /// The access key of its user.
    pub(crate) key: Arc<Zeroizing<String>>,
    /// What a changing request has to carry beside the cookie: another site cannot read it.
    pub(crate) csrf: Arc<str>,
    begun_ms: u64,
    used_ms: u64,
}

/// Failed attempts of one address within a minute.
struct Failed {
    since_ms: u64,
    count: u32,
}

/// The system gives no random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random numbers")]
pub(crate) struct NoRandom;

impl Session {
    /// Whether a request carries the session's proof.
    pub(crate) fn is_proved_by(&self, given: &str) -> bool {
        self.csrf.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

impl Sessions {
    pub(crate) fn new(options: &ConsoleOptions, clock: Clock) -> Self {
        Self {
            clock,
            max: options.sessions_max,
            idle_ms: options.idle_s * 1_000,
            session_ms: options.session_s * 1_000,
            attempts_per_min: options.attempts_per_min,
            all: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// Begins a session, and gives its name. Where its caller, or all, have as many as there may be, the one of them that was
    /// used longest ago ends.
    pub(crate) fn begin(&self, caller: &Arc<str>, key: String) -> Result<(String, Session), NoRandom> {
        let key = Arc::new(Zeroizing::new(key));
        let (name, csrf) = (random()?, random()?);
        let now_ms = self.clock.unix_ms();
        let session =
            Session { caller: Arc::clone(caller), key, csrf: csrf.into(), begun_ms: now_ms, used_ms: now_ms };
        let mut all = self.all.lock();
        all.retain(|_, one| !self.is_over(one, now_ms));
        make_room(&mut all, SESSIONS_OF_CALLER_MAX, |one| one.caller == *caller);
        make_room(&mut all, self.max, |_| true);
        all.insert(hash(&name), session.clone());
        Ok((name, session))
    }

    /// The session of this name, which counts as used now where a person uses it.
    pub(crate) fn find(&self, name: &str, used: Use) -> Option<Session> {
        let now_ms = self.clock.unix_ms();
        let mut all = self.all.lock();
        let name = hash(name);
        if all.get(&name).is_some_and(|one| self.is_over(one, now_ms)) {
            all.remove(&name);
        }
        let session = all.get_mut(&name)?;
        if used == Use::ByPerson {
            session.used_ms = now_ms;
        }
        Some(session.clone())
    }

    /// Ends a session.
    pub(crate) fn end(&self, name: &str) {
        self.all.lock().remove(&hash(name));
    }

    /// The number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// Counts an attempt that failed. Where an address has had too many, tells after how many seconds it may try again. A key
    /// that is known passes all the same: what strangers do must not keep operators out.
    pub(crate) fn failed(&self, address: IpAddr) -> Result<(), u64> {
        let now_ms = self.clock.unix_ms();
        let address = network(address);
        let mut failed = self.failed.lock();
        if failed.len() >= ADDRESSES_MAX {
            failed.retain(|_, one| one.is_recent(now_ms));
        }
        if failed.len() >= ADDRESSES_MAX && !failed.contains_key(&address) {
            // More addresses at once than can be told apart: somebody tries many.
            return Err(MINUTE_MS / 1_000);
        }
        let one = failed.entry(address).or_insert(Failed { since_ms: now_ms, count: 0 });
        if !one.is_recent(now_ms) {
            *one = Failed { since_ms: now_ms, count: 0 };
        }
        one.count = one.count.saturating_add(1);
        if one.count <= self.attempts_per_min {
            return Ok(());
        }
        Err((one.since_ms + MINUTE_MS).saturating_sub(now_ms).div_ceil(1_000).max(1))
    }

    const fn is_over(&self, session: &Session, now_ms: u64) -> bool {
        now_ms.saturating_sub(session.used_ms) >= self.idle_ms
            || now_ms.saturating_sub(session.begun_ms) >= self.session_ms
    }
}

impl Failed {
    /// A clock that was set back must not lock anybody out.
    const fn is_recent(&self, now_ms: u64) -> bool {
        now_ms >= self.since_ms && now_ms - self.since_ms < MINUTE_MS
    }
}

/// Ends the sessions that were used longest ago, until there is room for one more of these.
fn make_room(all: &mut HashMap<[u8; 32], Session>, max: usize, is_one: impl Fn(&Session) -> bool) {
    while all.values().filter(|one| is_one(one)).count() >= max {
        let oldest = all.iter().filter(|(_, one)| is_one(one)).min_by_key(|(_, one)| one.used_ms);
        let Some(oldest) = oldest.map(|(name, _)| *name) else { return };
        all.remove(&oldest);
    }
}

/// Who can be told from others by the address: an IPv4 address, or the /64 of an IPv6 address, of which one host commonly
/// has all.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

fn random() -> Result<String, NoRandom> {
    let mut bytes = [0u8; RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(|_| NoRandom)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn hash(name: &str) -> [u8; 32] {
    Sha256::digest(name.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    fn sessions(options: &ConsoleOptions) -> (Sessions, Arc<AtomicU64>) {
        let now_ms = Arc::new(AtomicU64::new(1_000_000));
        let own = Arc::clone(&now_ms);
        (Sessions::new(options, Clock::from_unix_ms(move || own.load(SeqCst))), now_ms)
    }

    fn begin(sessions: &Sessions, caller: &str) -> (String, Session) {
        sessions.begin(&caller.into(), "key".into()).unwrap()
    }

    fn is_there(sessions: &Sessions, name: &str) -> bool {
        sessions.find(name, Use::ByPerson).is_some()
    }

    #[test]
    fn a_session_ends_when_it_is_idle_and_when_it_is_old() {
        let options = ConsoleOptions { idle_s: 60, session_s: 150, ..Default::default() };
        let (sessions, now_ms) = sessions(&options);
        let (name, _) = begin(&sessions, "ann");
        for _ in 0..2 {
            now_ms.fetch_add(59_000, SeqCst);
            assert!(is_there(&sessions, &name));
        }
        now_ms.fetch_add(32_000, SeqCst);
        assert!(!is_there(&sessions, &name), "150 s after its begin");
        let (name, _) = begin(&sessions, "ann");
        now_ms.fetch_add(60_000, SeqCst);
        assert!(!is_there(&sessions, &name), "60 s after its last use");
        assert_eq!(sessions.count(), 0);
    }

    #[test]
    fn a_page_that_asks_by_itself_does_not_keep_a_session() {
        let (sessions, now_ms) = sessions(&ConsoleOptions { idle_s: 60, ..Default::default() });
        let (name, _) = begin(&sessions, "ann");
        for _ in 0..59 {
            now_ms.fetch_add(1_000, SeqCst);
            assert!(sessions.find(&name, Use::ByItself).is_some());
        }
        now_ms.fetch_add(1_000, SeqCst);
        assert!(sessions.find(&name, Use::ByItself).is_none());
    }

    #[test]
    fn the_session_that_was_used_longest_ago_makes_room() {
        let (sessions, now_ms) = sessions(&ConsoleOptions { sessions_max: 2, ..Default::default() });
        let next = || {
            now_ms.fetch_add(1, SeqCst);
            begin(&sessions, "ann").0
        };
        let (first, second) = (next(), next());
        now_ms.fetch_add(1, SeqCst);
        assert!(is_there(&sessions, &first));
        let third = next();
        let found = [&first, &second, &third].map(|name| is_there(&sessions, name));
        assert_eq!((found, sessions.count()), ([true, false, true], 2));
        sessions.end(&first);
        assert!(!is_there(&sessions, &first));
    }

    #[test]
    fn no_caller_throws_another_one_out() {
        let (sessions, now_ms) = sessions(&ConsoleOptions::default());
        let (ann, _) = begin(&sessions, "ann");
        let all: Vec<_> = (0..300)
            .map(|_| {
                now_ms.fetch_add(1, SeqCst);
                begin(&sessions, "bob").0
            })
            .collect();
        assert!(is_there(&sessions, &ann));
        assert_eq!(sessions.count(), 1 + SESSIONS_OF_CALLER_MAX);
        assert!(is_there(&sessions, &all[299]) && !is_there(&sessions, &all[299 - SESSIONS_OF_CALLER_MAX]));
    }

    #[test]
    fn names_and_proofs_are_all_different_and_a_proof_is_of_its_session() {
        let (sessions, _) = sessions(&ConsoleOptions::default());
        let (one, first) = begin(&sessions, "ann");
        let (two, second) = begin(&sessions, "ann");
        assert_ne!(one, two);
        assert!(
            first.is_proved_by(&first.csrf) && !first.is_proved_by(&second.csrf) && !first.is_proved_by("")
        );
    }

    #[test]
    fn an_address_that_fails_too_often_waits_for_a_minute() {
        let (sessions, now_ms) = sessions(&ConsoleOptions { attempts_per_min: 2, ..Default::default() });
        let [own, other, six, beside] =
            ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
        assert_eq!((sessions.failed(own), sessions.failed(own)), (Ok(()), Ok(())));
        now_ms.fetch_add(20_000, SeqCst);
        assert_eq!((sessions.failed(own), sessions.failed(other)), (Err(40), Ok(())));
        now_ms.fetch_add(40_000, SeqCst);
        assert_eq!(sessions.failed(own), Ok(()), "its count began anew");
        now_ms.store(0, SeqCst);
        assert_eq!(sessions.failed(own), Ok(()), "a clock that was set back locks nobody out");
        assert_eq!((sessions.failed(six), sessions.failed(six)), (Ok(()), Ok(())));
        assert_eq!(sessions.failed(beside), Err(60), "one host has a whole /64");
    }

    #[test]
    fn addresses_are_bounded() {
        let (sessions, now_ms) = sessions(&ConsoleOptions { attempts_per_min: 1, ..Default::default() });
        for at in 0..ADDRESSES_MAX {
            let at = u32::try_from(at).unwrap();
            assert_eq!(sessions.failed(IpAddr::from(at.to_be_bytes())), Ok(()));
        }
        let fresh: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(sessions.failed(fresh), Err(60));
        assert_eq!(sessions.failed.lock().len(), ADDRESSES_MAX);
        now_ms.fetch_add(MINUTE_MS, SeqCst);
        assert_eq!(sessions.failed(fresh), Ok(()));
    }
}
