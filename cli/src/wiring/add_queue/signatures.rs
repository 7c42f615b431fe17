//! The process's signing keys, as its queue of adds uses them. // I12

use crate::wiring::signing::SigningKeys;
use windfall_consumer::Unsigned;
use windfall_scheduler::{ADD_SIGNATURE_BYTES, AddSignatures, NotVerified};
use windfall_signing::Verifier;

/// How far above the ring's highest number a key may be to be waited for, as in consumers: an operator adds one key for each
/// sender, and a number below is that of no key that is still to come.
const AHEAD_MAX: u32 = 32;

/// Signs adds with the process's own key, and verifies them with the ring in force.
pub(super) struct SignedAdds {
    keys: SigningKeys,
    verifier: Verifier,
}

impl SignedAdds {
    pub fn new(keys: SigningKeys) -> Self {
        let verifier = keys.verifier();
        Self { keys, verifier }
    }
}

impl AddSignatures for SignedAdds {
    fn sign(&self, add: &[u8]) -> Result<[u8; ADD_SIGNATURE_BYTES], String> {
        self.keys.signer.sign_add(add).map_err(|error| error.to_string())
    }

    fn verify(&self, add: &[u8], signature: &[u8; ADD_SIGNATURE_BYTES]) -> Result<(), NotVerified> {
        let highest = self.verifier.highest_key();
        match self.verifier.verify_add(add, signature) {
            Ok(_) => Ok(()),
            Err(refused) => Err(NotVerified {
                what: refused.to_string(),
                may_become_known: refused
                    .lacks()
                    .is_some_and(|key| key > highest && key - highest <= AHEAD_MAX),
            }),
        }
    }

    fn changes(&self) -> u64 {
        self.verifier.ring_changes()
    }

    fn accepts_unsigned(&self, topic: &str) -> bool {
        self.keys.unsigned_of(topic) == Unsigned::Accept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wiring::signing::{Signing, SigningOptions};
    use windfall_signing::{KeyFile, RingUse};

    const ADD: &[u8] = b"an add";

    #[tokio::test(flavor = "multi_thread")]
    async fn adds_are_signed_by_the_processs_key_and_verified_by_the_ring() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing.toml");
        KeyFile::create(&path, "scheduler", false, 1).unwrap();
        let options = SigningOptions {
            sender: "scheduler".into(),
            tenant: "acme".into(),
            others: Vec::new(),
            unsigned: Unsigned::Refuse,
            topics: [("timers-a".to_owned(), Unsigned::Accept)].into(),
            adds: ["timers-a".to_owned(), "timers-b".to_owned()].into(),
            used: RingUse::Sends,
        };
        let signing = Signing::open(&path, &options).unwrap();
        let adds = SignedAdds::new(signing.keys().clone());
        let signature = adds.sign(ADD).unwrap();
        assert_eq!(adds.verify(ADD, &signature), Ok(()));
        let forged = adds.verify(b"an odd", &signature).unwrap_err();
        assert!(!forged.may_become_known && forged.what.contains("key 1"), "{forged:?}");
        let late = |key: u8| {
            let mut named = signature;
            named[3] = key;
            adds.verify(ADD, &named).unwrap_err().may_become_known
        };
        assert_eq!([0, 2, 33, 34].map(late), [false, true, true, false]);
        assert!(adds.accepts_unsigned("timers-a") && !adds.accepts_unsigned("timers-b"));
        assert_eq!(signing.keys().topics().count(), 0, "consumers know nothing of that topic");
    }
}
