//! The token service: lists the tokens that users hold as proof of rewards, and verifies presented ones.
//!
//! - [`KeyRingVerifier`] is the core, a cheap handle: [`list`](KeyRingVerifier::list) and
//!   [`verify`](KeyRingVerifier::verify). The wallet uses it in process, as a
//!   [`TokenVerifier`](windfall_contract::verifier::TokenVerifier).
//! - [`TokenService`] offers it over gRPC, as `windfall.v1.Tokens`.
//! - [`TokenStats`] counts verdicts, and for operators alone, why texts were illegal.
//!
//! Only [`Verdict::Valid`](windfall_contract::verifier::Verdict::Valid) may force a credit (I7): it opens with a key of
//! the ring, is not revoked, belongs to the user who calls, and equals what the store holds in every field but the
//! award time. A store that cannot answer makes `Unavailable`, never a guess. All illegal texts look the same to the
//! caller, in words and, as far as [described below](self#time), in time.
//!
//! # Time
//! An illegal text takes the path of a legal one: the store is asked about it as well, in the same read, and one that
//! fails before its signature is checked costs the opening of a decoy. So the steps that matter to a forger are hidden:
//! base64, version, key and its state, seal, owner, revocation. Not hidden are a text's length, which the caller knows;
//! that a text is `Valid`, `Unknown` or `Unavailable`, which the reply says; about a microsecond by which a broken seal
//! costs more than a text that is no token at all, and a token that differs from the stored one more than either.
//!
//! Not here: who the caller and the user are (`windfall-edge`), minting (`windfall-sdk`), crediting (the wallet and
//! the reward service), dropping tokens of credited rewards.
//!
//! ```
//! use std::sync::Arc;
//! use windfall_config::LiveRules;
//! use windfall_contract::tokens::{NEVER, TokenPut, TokenStore, name};
//! use windfall_contract::verifier::{Page, Verdict};
//! use windfall_store::embedded::EmbeddedStore;
//! use windfall_token::{KeyRing, TokenFields};
//! use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let rules = LiveRules::fixed(windfall_config::parse_rules(include_str!("../../config/samples/rules.toml"),
//! None)?); let keys = KeyRing::ephemeral()?;
//! let store = EmbeddedStore::open(folder.path(), &Default::default())?;
//! let fields = TokenFields { trade_no: "rain-1", user_id: 42, bonus_type: "cash", amount: 888, ..Default::default() };
//! let token = keys.minter("windfall")?.mint(&fields, 0)?;
//! let kept = TokenPut {
//!     user_id: 42, name: name("", "rain-1"), token: token.as_str().into(), expires_at_ms: NEVER,
//! };
//! store.put(&[kept]).await?;
//!
//! let verifier = KeyRingVerifier::open(TokenOptions::default(), TokenParts { keys, store, rules })?;
//! let verdicts = verifier.verify("windfall", 42, &[token.as_str(), "no token"]).await?;
//! assert!(matches!(verdicts[..], [Verdict::Valid(_), Verdict::Illegal]));
//! assert_eq!(verifier.verify("windfall", 43, &[token.as_str()]).await?, [Verdict::Illegal]);
//! assert_eq!(verifier.list("windfall", 42, None, Page::default()).await?.tokens[0].content.amount, 888);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decoy;
mod list;
mod options;
mod page_token;
mod rpc;
mod stats;
mod verifier;
mod verify;

pub use options::TokenOptions;
pub use rpc::TokenService;
pub use stats::{Cause, TokenStats};
pub use verifier::{KeyRingVerifier, OpenError, TokenParts};
