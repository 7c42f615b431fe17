//! Tells the token store of credited rewards, so that their tokens go. Weak (I8): what cannot be removed is counted,
//! and a wallet leaves it out anyway because its order is credited.

use std::path::PathBuf;
use std::sync::Arc;
use windfall_contract::tokens::TokenStore;
use windfall_reward_service::GrantObserver;
use windfall_store::write_behind::{WriteBehind, WriteBehindCounts, WriteBehindOptions};

/// How long a token waits for the credit of its reward before it is written to a store that only this process uses:
/// longer than a reward takes that is not held up, and shorter than a person would notice.
const OWN_STORE_DELAY_MS: u64 = 200;

/// The table in front of the token store, and the reward service's way to it.
pub struct TokenDrop {
    tokens: Arc<WriteBehind>,
}

impl TokenDrop {
    /// Puts the table in front of `store`. `is_shared` says whether other processes remove tokens there, too; `data` is the
    /// directory for tokens that memory has no room for.
    pub fn start(store: Arc<dyn TokenStore>, is_shared: bool, data: PathBuf) -> Self {
        let delay_ms = if is_shared { 0 } else { OWN_STORE_DELAY_MS };
        let options = WriteBehindOptions { delay_ms, spill_dir: Some(data), ..WriteBehindOptions::default() };
        Self { tokens: WriteBehind::start(store, &options) }
    }

    /// The store with the table in front of it: for the SDK, and for those who read tokens in this process.
    pub fn store(&self) -> Arc<dyn TokenStore> {
        Arc::clone(&self.tokens) as _
    }

    /// Notes credits. It never waits for the store.
    pub fn observer(&self) -> GrantObserver {
        let tokens = Arc::clone(&self.tokens);
        Arc::new(move |credited| {
            tokens.credited(credited.iter().map(|(user_id, id)| (*user_id, id.activity, id.trade_no)));
        })
    }

    /// The number of tokens removed, and of those given up.
    pub fn counts(&self) -> (u64, u64) {
        let counts = self.tokens.counts();
        (counts.removed, counts.given_up)
    }

    /// Reads what the table has counted, for the metrics.
    pub fn read_counts(&self) -> impl Fn() -> WriteBehindCounts + Send + Sync + use<> {
        let tokens = Arc::clone(&self.tokens);
        move || tokens.counts()
    }

    /// Writes and removes what waits if the store takes it, and ends.
    pub async fn close(self) {
        self.tokens.close().await;
    }
}
