//! What an activity service links.
//!
//! Three layers: the typed helpers of a scene ([`RedPacketRain`], [`CardDraw`], [`Fireworks`]), which build the
//! order number and fix what does not change; the general [`Sdk::send_bonus`], which takes the very request that
//! an RPC would carry; and [`Sdk::init`] and [`Sdk::close`].
//!
//! A call checks its arguments, mints the token, copies the event into the spool and returns: microseconds, no
//! network, no disk. From then on the event survives the death of the process (I2). The pump gathers events of one
//! queue, side and type into packs and sends them by the virtual queue; a pack leaves the spool when a broker has
//! acknowledged it. Where no queue takes a pack it waits there until the rules have one that does. Tokens go to the
//! token store on the side, which may be down (I8).
//!
//! Not here: granting, verifying tokens, reading queues.
//!
//! ```no_run
//! use std::sync::Arc;
//! use windfall_contract::Clock;
//! use windfall_queue_virtual::Fanout;
//! use windfall_sdk::{Prize, RedPacketRain, Sdk, SdkOptions, SdkParts, SpoolMode, User};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (rules, brokers, store): (windfall_config::LiveRules, std::collections::BTreeMap<String, Arc<dyn windfall_contract::broker::Broker>>, Arc<dyn windfall_contract::tokens::TokenStore>) = todo();
//! # fn todo<T>() -> T { unreachable!("this example is compiled, not run") }
//! let clock = Clock::system();
//! let fanout = Arc::new(Fanout::open(&rules.current(), brokers, Default::default(), clock.clone())?);
//! let keys = windfall_token::KeyRing::load("keys.toml".as_ref())?;
//! let spool = SpoolMode::Process("spool".into());
//! let parts = SdkParts { spool, keys, rules, fanout, tokens: Some(store), clock };
//! let (sdk, _inherited) = Sdk::init(SdkOptions::default(), parts)?;
//!
//! let rain = RedPacketRain::new(&sdk, "spring-2027", "cash")?;
//! let reply = rain.send(1, User::id(42), 0, Prize { amount: 888, description: "red packet" })?;
//! println!("the user's proof: {}", reply.token);
//! sdk.close(std::time::Duration::from_secs(10));
//! # Ok(())
//! # }
//! ```

mod error;
mod lane;
mod options;
mod plan;
mod pump;
mod reward;
mod scenes;
mod sdk;
mod strays;
mod tokens;

pub use error::InitError;
pub use options::{
    DESCRIPTION_MAX_BYTES, DEVICE_ID_MAX_BYTES, EXTENSION_ENTRIES_MAX, EXTENSION_KEY_MAX_BYTES,
    EXTENSION_VALUE_MAX_BYTES, SdkOptions, SpoolMode,
};
pub use reward::User;
pub use scenes::{CardDraw, Fireworks, Prize, RedPacketRain};
pub use sdk::{Inherited, Sdk, SdkCloseReport, SdkParts, SdkStats};
pub use windfall_proto::send::{SendBonus, SendError};
