//! The README's example, so that it goes on compiling.

use std::{collections::BTreeMap, sync::Arc, time::Duration};
use windfall_contract::Clock;
use windfall_queue_embedded::EmbeddedBroker;
use windfall_queue_virtual::Fanout;
use windfall_sdk::{Prize, RedPacketRain, Sdk, SdkOptions, SdkParts, SpoolMode, User};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Clock::system();
    let now = clock.clone();
    let (rules, _watcher) =
        windfall_config::FileSource::open("rules.toml".as_ref(), None, move || now.unix_ms())?;
    let mut brokers: BTreeMap<String, Arc<dyn windfall_contract::broker::Broker>> = BTreeMap::new();
    for name in ["a", "b"] {
        brokers.insert(name.into(), EmbeddedBroker::open(name.as_ref(), &Default::default())?);
    }
    let fanout = Arc::new(Fanout::open(&rules.current(), brokers, Default::default(), clock.clone())?);
    let keys = windfall_token::KeyRing::load("keys.toml".as_ref())?; // made by: windfall keys new
    let spool = SpoolMode::Process("spool".into());
    let parts = SdkParts { spool, keys, rules, fanout, tokens: None, clock };
    let (sdk, _left_by_the_last_run) = Sdk::init(SdkOptions::default(), parts)?;

    let rain = RedPacketRain::new(&sdk, "spring-2027", "cash")?;
    let reply = rain.send(1, User::id(42), 0, Prize { amount: 888, description: "red packet" })?;
    println!("{}", reply.token); // the user's proof; the event survives this process from here on
    sdk.close(Duration::from_secs(10));
    Ok(())
}
