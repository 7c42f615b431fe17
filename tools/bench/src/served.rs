//! A service behind the edge, as a process would serve it: keys, limits, metrics; in clear text on loopback.

use crate::mint::FIELDS;
use anyhow::Result;
use windfall_client::ClientOptions;
use windfall_contract::Clock;
use windfall_edge::{
    Access, AccessSource, Health, Metrics, Parts, Role, Router, ServeOptions, Server, mint_key, serve,
};

/// A server and the key that may call it.
pub struct Served {
    server: Server,
    key: String,
}

impl Served {
    /// Serves on a free port.
    pub async fn start(router: Router, role: Role) -> Result<Self> {
        let key = mint_key()?;
        let access = Access::parse(&format!(
            "[[caller]]\nname = \"bench\"\ntenant = {:?}\nroles = [{:?}]\nkey_sha256 = {:?}\n\
             may_name_users = true\n",
            FIELDS.app_id,
            role.name(),
            key.sha256,
        ))?;
        let access = AccessSource::fixed(access, Clock::system())?;
        let options = ServeOptions { listen: ([127, 0, 0, 1], 0).into(), ..ServeOptions::default() };
        let parts = Parts { router, access, metrics: Metrics::new(), health: Health::new() };
        let server = serve(&options, parts).await?;
        Ok(Self { server, key: key.text })
    }

    /// How to call it.
    pub fn client(&self) -> ClientOptions {
        ClientOptions {
            endpoints: vec![format!("http://{}", self.server.address())],
            bearer_key: Some(self.key.clone()),
            attempt_timeout_ms: 30_000,
            ..ClientOptions::default()
        }
    }

    /// Ends it.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}
