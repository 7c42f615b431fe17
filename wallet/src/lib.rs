//! The wallet: a user's balances and movements, pending rewards, and withdrawals.
//!
//! - [`Wallet::look`]: balances and movements from the ledger, with the rewards on their way that tokens prove.
//! - [`Wallet::withdraw`]: withdraws once per withdrawal id, and before that credits pending rewards, as far as
//!   necessary.
//! - [`WalletService`] offers both over gRPC, as `windfall.v1.Wallet`.
//!
//! A reward counts as on its way if its token is proved: it opens, belongs to the user who calls, is not revoked, and
//! the token store holds it with the same fields (I7). Tokens that a front end brings and those of the store are
//! merged by order number. A token that is Unknown or Illegal counts for nothing; with the store away none counts, and
//! the answer says that it may be incomplete (I8). What the ledger has credited meanwhile is money, not on its way;
//! what it has rejected, or knows with another user, activity, scene, type or amount, is neither.
//!
//! # Never twice
//! A token goes from the store after its reward was credited, so tokens are read first: one that is missing then is
//! in the balance that is read later. Read the other way round, a reward that arrives in between would be in neither.
//! After balances and movements the orders of the tokens are read. As long as none of them has been credited, none
//! was in the balance that was read before; where one has, it is dropped, and the balance read again, three times at
//! most. So a reward that arrives meanwhile is never shown twice; while they keep arriving it may be missing from one
//! answer.
//!
//! # Page by page
//! The ledger's cursors lead from page to page, each of which names the user and the lines that come next, so what arrives
//! meanwhile shifts nothing, and a cursor that is made up leads to lines of this user at most. Rewards on their way have no
//! place among these lines: they are on the first page alone, ahead of the movements, and leave them less room there. Balances
//! are on each page as they stand when it is read.
//!
//! # Withdrawals
//! The ledger is asked first, and tokens only if the balance is short: a forced credit passes the limits that the
//! consumer keeps, so there are as few as necessary, the largest first. Every step may be repeated: a credit counts
//! once for each order (I1), a withdrawal once for each id. So a call that dies anywhere, or runs beside another with
//! the same id, or beside the consumer that brings the same rewards, ends with the same money, and is settled by asking
//! again.
//!
//! Not here: who the user is (`windfall-edge`), what tokens are worth (the token service), accounts and payouts
//! (the reward service), removing the tokens of credited rewards (the code that wires the reward service's
//! observer).
//!
//! ```no_run
//! use windfall_proto::v1::wallet_server::WalletServer;
//! use windfall_wallet::{Wallet, WalletOptions, WalletParts, WalletService};
//! # fn parts() -> WalletParts { unreachable!("this example is compiled, not run") }
//!
//! let wallet = Wallet::open(WalletOptions::default(), parts())?;
//! let service = WalletServer::new(WalletService::new(wallet));
//! # drop(service);
//! # Ok::<(), windfall_wallet::OpenError>(())
//! ```

mod incoming;
mod look;
mod options;
mod rpc;
mod stats;
mod wallet;
mod withdraw;

pub use look::{Balance, Line, LineKind, LookError, View};
pub use options::{FLOW_MAX, HELD_MAX, WalletOptions};
pub use rpc::WalletService;
pub use stats::WalletStats;
pub use wallet::{OpenError, User, Wallet, WalletParts};
pub use withdraw::{Receipt, WithdrawError};
