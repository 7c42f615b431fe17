//! The counters: verdicts, and for operators alone, why texts were illegal.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use windfall_contract::declare_metrics;
use windfall_contract::metrics::Each;
use windfall_token::Reason;

/// Why a text was illegal, or a stored token left out of a list. It is never told to whoever presents it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The text is too long.
    Length,
    /// The text is not canonical base64url.
    Base64,
    /// The text is too short to have a header.
    Header,
    /// The token has another version.
    Version,
    /// The token's key is not in the ring.
    UnknownKey,
    /// The token's key opens nothing: it is pending or destroyed.
    KeyState,
    /// The token is altered, of another ring, or of another tenant.
    Seal,
    /// The signature does not verify.
    Signature,
    /// The content is not that of a token.
    Content,
    /// The token belongs to another user.
    Owner,
    /// An operator has revoked it.
    Revoked,
    /// The token opens, and the store holds another one under its order number.
    Differs,
}

impl Cause {
    /// All of them, in the order of the steps.
    pub const ALL: [Self; 12] = [
        Self::Length,
        Self::Base64,
        Self::Header,
        Self::Version,
        Self::UnknownKey,
        Self::KeyState,
        Self::Seal,
        Self::Signature,
        Self::Content,
        Self::Owner,
        Self::Revoked,
        Self::Differs,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Base64 => "base64",
            Self::Header => "header",
            Self::Version => "version",
            Self::UnknownKey => "unknown_key",
            Self::KeyState => "key_state",
            Self::Seal => "seal",
            Self::Signature => "signature",
            Self::Content => "content",
            Self::Owner => "owner",
            Self::Revoked => "revoked",
            Self::Differs => "differs",
        }
    }
}

impl From<&Reason> for Cause {
    fn from(reason: &Reason) -> Self {
        match reason {
            Reason::Length { .. } => Self::Length,
            Reason::Base64 => Self::Base64,
            Reason::Header => Self::Header,
            Reason::Version(_) => Self::Version,
            Reason::UnknownKey(_) => Self::UnknownKey,
            Reason::KeyState { .. } => Self::KeyState,
            Reason::Seal => Self::Seal,
            Reason::Signature => Self::Signature,
            Reason::Content => Self::Content,
            Reason::Owner(_) => Self::Owner,
        }
    }
}

declare_metrics! {
    /// Counters since the start.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct TokenStats counted by Counters {
        counter "windfall_verified_tokens_total" ["verdict"] "Tokens judged, by verdict" {
            /// Texts found valid.
            pub valid: u64 as "valid",
            /// Texts found unknown.
            pub unknown: u64 as "unknown",
            /// Texts of which the store could not say.
            pub unavailable: u64 as "unavailable",
            /// Texts found illegal, for whatever cause.
            pub illegal_all: u64 as "illegal",
        }
        counter "windfall_illegal_tokens_total" ["cause"] "Illegal tokens, by cause" {
            /// Illegal texts, in the order of [`Cause::ALL`].
            pub illegal: [u64; Cause::ALL.len()] = by_cause,
        }
        counter "windfall_listed_tokens_total" "Tokens that lists showed" {
            /// Tokens that lists showed.
            pub listed: u64,
        }
        counter "windfall_unlisted_tokens_total" ["cause"] "Stored tokens that lists left out, by cause" {
            /// Stored tokens that lists left out, in the order of [`Cause::ALL`].
            pub left_out: [u64; Cause::ALL.len()] = by_cause,
        }
        counter "windfall_token_reads_failed_total"
        "Reads that the token store did not answer, or not in time" {
            /// Reads that the store did not answer, or not in time.
            pub store_failures: u64,
        }
        gauge "windfall_token_ring_newest_key"
        "The highest number of a key that opens tokens, in the ring that the process has taken over" {
            /// The highest number of a key that opens tokens in the ring that is in force; 0 for none.
            pub newest_key: u64,
        }
    }
}

fn by_cause(counts: &[u64; Cause::ALL.len()], each: &mut Each<'_>) {
    Cause::ALL.into_iter().zip(counts).for_each(|(cause, count)| each(&[cause.name()], *count));
}

impl TokenStats {
    /// Illegal texts of one cause.
    pub const fn illegal_by(&self, cause: Cause) -> u64 {
        self.illegal[cause as usize]
    }

    /// Stored tokens left out of lists for one cause.
    pub const fn left_out_by(&self, cause: Cause) -> u64 {
        self.left_out[cause as usize]
    }
}

impl Counters {
    pub(crate) fn verified(&self, call: &Verified) {
        // A call of one kind is the rule: what did not occur need not touch a line that others write.
        let add = |counter: &AtomicU64, count: u64| {
            if count > 0 {
                counter.fetch_add(count, Relaxed);
            }
        };
        add(&self.valid, call.valid);
        add(&self.unknown, call.unknown);
        add(&self.unavailable, call.unavailable);
        add(&self.illegal_all, call.illegal.iter().sum());
        for (counter, count) in self.illegal.iter().zip(call.illegal) {
            add(counter, count);
        }
    }

    pub(crate) fn listed(&self, count: usize) {
        self.listed.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn left_out(&self, cause: Cause) {
        self.left_out[cause as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn store_failed(&self) {
        self.store_failures.fetch_add(1, Relaxed);
    }
}

/// The counts of one call.
#[derive(Default)]
pub(crate) struct Verified {
    pub(crate) valid: u64,
    pub(crate) unknown: u64,
    pub(crate) unavailable: u64,
    pub(crate) illegal: [u64; Cause::ALL.len()],
}
