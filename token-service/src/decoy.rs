//! A decoy token that is opened for texts which fail early, so that they take as long as those that fail late.

use windfall_token::{Algorithm, KeyRing, State, TokenFields};

const TENANT: &str = "windfall";
/// The fields of the decoy, which are as long as those of most tokens.
const FIELDS: TokenFields<'_> = TokenFields {
    trade_no: "spring-2027:rain:000001:42",
    user_id: 42,
    app_id: TENANT,
    activity: "spring-2027",
    scene: "red-packet-rain",
    bonus_type: "cash",
    amount: 888,
    award_time_ms: 1_800_000_000_000,
    description: "red packet",
};

/// A token of a key of its own, which never leaves this process.
pub(crate) struct Decoy {
    ring: KeyRing,
    text: String,
}

impl Decoy {
    /// A decoy whose opening costs what a token of this ring's primary key costs.
    pub(crate) fn like(ring: &KeyRing) -> Result<Self, String> {
        let primary = ring.keys().find(|key| key.state == State::Primary);
        let algorithm = primary.map_or(Algorithm::HmacSha256, |key| key.algorithm);
        let ring = KeyRing::ephemeral_of(algorithm).map_err(|error| error.to_string())?;
        let minter = ring.minter(TENANT).map_err(|error| error.to_string())?;
        let text = minter.mint(&FIELDS, 0).map_err(|error| error.to_string())?;
        Ok(Self { ring, text })
    }

    /// Opens the decoy, with every step.
    pub(crate) fn open(&self) {
        let opened = self.ring.open(self.text.as_bytes(), TENANT, FIELDS.user_id);
        debug_assert!(opened.is_ok());
        std::hint::black_box(&opened);
    }
}
