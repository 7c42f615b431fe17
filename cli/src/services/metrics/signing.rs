//! The metrics of the keys that a process signs and verifies records with.

use crate::wiring::SigningKeys;
use windfall_contract::metrics::{Metric, MetricKind};
use windfall_signing::KeyState;

/// The ring in force, and the key of it that the process signs with.
pub const RING: &[Metric<SigningKeys>] = &[
    Metric {
        name: "windfall_signing_ring_newest_key",
        help: "The highest number of a key in the ring that the process has taken over",
        kind: MetricKind::Gauge,
        labels: &[],
        read: |keys, each| each(&[], keys.ring().highest().into()),
    },
    Metric {
        name: "windfall_signing_ring_keys",
        help: "Keys in the ring that the process has taken over, by state",
        kind: MetricKind::Gauge,
        labels: &["state"],
        read: |keys, each| {
            let ring = keys.ring();
            for (state, name) in STATES {
                let many = ring.keys().filter(|key| key.state == state).count();
                each(&[name], many as u64);
            }
        },
    },
    Metric {
        name: "windfall_signing_process_key",
        help: "The number of the key that the process itself signs with, also where it has no SDK",
        kind: MetricKind::Gauge,
        labels: &[],
        read: |keys, each| each(&[], keys.signer.key().unwrap_or(0).into()),
    },
];

const STATES: [(KeyState, &str); 3] = [
    (KeyState::Primary, "primary"),
    (KeyState::VerifyOnly, "verify_only"),
    (KeyState::Destroyed, "destroyed"),
];
