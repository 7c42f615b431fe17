//! Who may bring an add in: what the process signs and verifies adds with. // I12
//!
//! The keys are not here. The process that has them gives an [`AddSignatures`].

use super::set_aside::Reason;
use std::sync::Arc;

/// The bytes of an add's signature: the number of the key (4), and the code (16).
pub const ADD_SIGNATURE_BYTES: usize = 20;

/// Signs the adds that a process writes to its queue, and verifies those that it reads from it.
pub trait AddSignatures: Send + Sync {
    /// The signature of these bytes, which name the store and the tenant of the add.
    ///
    /// # Errors
    /// Why there is none. Nothing is written then.
    fn sign(&self, add: &[u8]) -> Result<[u8; ADD_SIGNATURE_BYTES], String>;

    /// Verifies that a known key has signed these bytes.
    ///
    /// # Errors
    /// [`NotVerified`]. Nothing of the add may be stored.
    fn verify(&self, add: &[u8], signature: &[u8; ADD_SIGNATURE_BYTES]) -> Result<(), NotVerified>;

    /// How often the known keys have changed. What was verified before is verified anew after a change.
    fn changes(&self) -> u64;

    /// Whether adds of this topic are taken that nobody has signed.
    fn accepts_unsigned(&self, topic: &str) -> bool;
}

/// No known key has signed an add as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct NotVerified {
    /// What is wrong with its signature.
    pub what: String,
    /// Whether the key may become known within moments, because its signer may have newer keys than this process.
    pub may_become_known: bool,
}

/// Why an add may not come in. `signed` is what its signature covers, and the signature, where it has one. Without keys every
/// add may.
pub(super) fn check(
    signatures: Option<&Arc<dyn AddSignatures>>,
    topic: &str,
    signed: Option<(&[u8], &[u8; ADD_SIGNATURE_BYTES])>,
) -> Result<(), Reason> {
    let Some(own) = signatures else { return Ok(()) };
    match signed {
        Some((add, signature)) => own
            .verify(add, signature)
            .map_err(|NotVerified { what, may_become_known }| Reason::Unverified { what, may_become_known }),
        None if own.accepts_unsigned(topic) => Ok(()),
        None => Err(Reason::Unsigned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::add_queue::record::{QueuedAdd, signed_parts};
    use bytes::Bytes;
    use windfall_contract::due::TaskKey;

    /// Keys that are one byte each: the code of an add is its sum, and the key.
    struct OneKey(u8);

    impl AddSignatures for OneKey {
        fn sign(&self, add: &[u8]) -> Result<[u8; ADD_SIGNATURE_BYTES], String> {
            let mut signature = [self.0; ADD_SIGNATURE_BYTES];
            let sum = add.iter().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
            signature[4..8].copy_from_slice(&sum.to_be_bytes());
            Ok(signature)
        }

        fn verify(&self, add: &[u8], signature: &[u8; ADD_SIGNATURE_BYTES]) -> Result<(), NotVerified> {
            match self.sign(add) {
                Ok(own) if own == *signature => Ok(()),
                _ => Err(NotVerified { what: "another key".into(), may_become_known: signature[0] > self.0 }),
            }
        }

        fn changes(&self) -> u64 {
            0
        }

        fn accepts_unsigned(&self, topic: &str) -> bool {
            topic == "open"
        }
    }

    fn add(store: u64) -> QueuedAdd {
        QueuedAdd {
            store,
            written_ms: 1_800_000_000_000,
            due_ms: 1_800_000_060_000,
            tenant: "calls".into(),
            target: "hook".into(),
            key: TaskKey::new(b"call-7").unwrap(),
            payload: "hang up".into(),
        }
    }

    fn signed(add: &QueuedAdd, key: u8) -> Bytes {
        add.encode_signed(|covered| OneKey(key).sign(covered)).unwrap()
    }

    fn checked(record: &[u8], topic: &str) -> Result<(), Reason> {
        let own: Arc<dyn AddSignatures> = Arc::new(OneKey(5));
        check(Some(&own), topic, signed_parts(record))
    }

    fn unverified(may_become_known: bool) -> Result<(), Reason> {
        Err(Reason::Unverified { what: "another key".into(), may_become_known })
    }

    #[test]
    fn an_add_comes_in_by_its_key_alone() {
        let record = signed(&add(1), 5);
        assert_eq!(QueuedAdd::decode(&record), Ok(add(1)));
        assert_eq!(checked(&record, "closed"), Ok(()));
        assert_eq!(
            checked(&signed(&add(1), 4), "open"),
            unverified(false),
            "also where unsigned ones are taken"
        );
        assert_eq!(checked(&signed(&add(1), 6), "closed"), unverified(true));
    }

    #[test]
    fn what_nobody_has_signed_comes_in_only_where_that_is_said_by_name() {
        let unsigned = add(1).encode();
        assert_eq!(checked(&unsigned, "closed"), Err(Reason::Unsigned));
        assert_eq!(checked(&unsigned, "open"), Ok(()));
        assert_eq!(check(None, "closed", signed_parts(&unsigned)), Ok(()), "without keys");
        assert_eq!(check(None, "closed", signed_parts(&signed(&add(1), 6))), Ok(()), "without keys");
    }

    /// A signature is good for the store that the add names: with another id in the same record it is wrong.
    #[test]
    fn the_add_of_another_queue_is_refused() {
        let (own, other) = (signed(&add(1), 5), add(2).encode_signed(|_| OneKey(5).sign(&[])).unwrap());
        let Some((_, signature)) = signed_parts(&own) else { panic!("it is signed") };
        let moved = add(2).encode_signed(|_| Ok::<_, String>(*signature)).unwrap();
        assert_eq!(checked(&moved, "closed"), unverified(false));
        assert_eq!(checked(&other, "closed"), unverified(false));
    }

    /// An add cannot lose its signature and be taken for one of before.
    #[test]
    fn no_byte_that_is_changed_comes_in() {
        let record = signed(&add(1), 5);
        let body = record.len() - 4;
        for at in 0..body {
            let mut changed = record[..body].to_vec();
            changed[at] ^= 1;
            changed.extend_from_slice(&crc32c::crc32c(&changed).to_be_bytes());
            let changed = Bytes::from(changed);
            if QueuedAdd::decode(&changed).is_ok() {
                assert!(checked(&changed, "closed").is_err(), "{at}");
            }
        }
    }
}
