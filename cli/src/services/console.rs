//! The console of a process: its start and its end, and the life of a process that has nothing else.

use super::metrics::{self, Sources};
use super::options::ServiceOptions;
use super::role::Role;
use super::run::{Stops, tell_readiness};
use crate::outcome::Outcome;
use crate::wiring::{Background, Hopeless, Tasks};
use anyhow::{Context, Result, anyhow};
use std::sync::Arc;
use windfall_config::ChangeRules;
use windfall_console::{Console, Parts, RulesRight};
use windfall_contract::Clock;
use windfall_edge::{AccessSource, Health, Metrics, Pages, Router, Server};

/// A console that is not served yet.
pub struct Showing(Console);

impl Showing {
    /// Opens it. `own` are the metrics of a process that it shows itself.
    pub fn open(
        options: &ServiceOptions,
        role: Role,
        access: &AccessSource,
        own: Option<&Metrics>,
        clock: &Clock,
    ) -> Result<Self> {
        // Only who runs the rules knows which brokers they may name.
        let brokers = (role == Role::Serve).then(|| options.brokers.keys().cloned().collect());
        let rules: Option<Arc<dyn ChangeRules>> = match options.console.rules_right() {
            RulesRight::None => None,
            _ => Some(Arc::from(options.rules.store(&options.data, brokers.clone())?)),
        };
        let console = Console::open(
            &options.console,
            Parts {
                access: access.clone(),
                tenant: options.tenant.clone(),
                rules,
                brokers,
                own: own.cloned(),
                clock: clock.clone(),
            },
        );
        Ok(Self(console.context("the options [console] cannot be used")?))
    }

    /// What a server answers with it.
    pub fn pages(&self) -> Arc<dyn Pages> {
        Arc::new(self.0.clone())
    }

    /// Follows the fleet from now on, and says where the page is.
    pub fn start(self, server: &Server, tasks: &Tasks, is_tls: bool) -> Background {
        self.0.attach(&server.local_calls());
        let scheme = if is_tls { "https" } else { "http" };
        println!("windfall console is at {scheme}://{}/console/", server.address());
        let console = self.0;
        tasks.spawn_aside("console", move || {
            let console = console.clone();
            async move { console.follow().await }
        })
    }
}

impl ServiceOptions {
    /// Whether a process of this role has the console beside its services.
    pub fn has_console(&self, role: Role) -> bool {
        role == Role::Serve && self.console.enabled.unwrap_or(false)
    }
}

/// The life of a process of the role `console`: it runs no live rules, and keeps nothing.
pub async fn live(options: &ServiceOptions, stops: &mut Stops, clock: &Clock) -> Result<Outcome> {
    let role = Role::Console;
    let path = options.access_path();
    let access = AccessSource::follow(&path, clock.clone())
        .with_context(|| format!("callers cannot be read from {}", path.display()))?;
    let health = Health::new();
    let tasks = Tasks::new(health.clone());
    let measured = Metrics::new();
    metrics::export(&measured, &Sources::of_process(&health, &tasks));
    let showing = Showing::open(options, role, &access, None, clock)?;
    let router = Router::of_tenants([options.tenant.clone()]).pages(showing.pages());
    let served = windfall_edge::Parts { router, access, metrics: measured, health: health.clone() };
    let mut serve = options.serve.clone();
    serve.stop_timeout_ms = serve.stop_timeout_ms.min(options.drain_ms);
    let server = windfall_edge::serve(&serve, served).await.context("the console cannot be served")?;
    let address = server.address();
    let watching = showing.start(&server, &tasks, serve.tls.is_some());
    let outcome = tokio::select! {
        why = stops.first() => {
            tracing::info!(%role, why, "stops");
            Ok(Outcome::Clean)
        }
        why = tasks.hopeless() => {
            tracing::error!(%role, %why, "the process cannot go on");
            match why {
                Hopeless::Failed(_) => Ok(Outcome::Failed),
                Hopeless::Refused(why) => Err(anyhow!(why)),
            }
        }
        never = tell_readiness(role, address, &health) => never,
    };
    let ending = async {
        watching.end().await;
        server.stop().await;
        outcome
    };
    tokio::select! {
        outcome = ending => outcome,
        _ = stops.first() => Ok(Outcome::Interrupted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<ServiceOptions> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options.toml");
        std::fs::write(&file, text).unwrap();
        ServiceOptions::load(Some(&file), Some(folder.path().join("data")))
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn the_documented_options_are_options() {
        let text = include_str!("../../../docs/console.md");
        let blocks: Vec<_> =
            text.split("```toml\n").skip(1).filter_map(|block| block.split("```").next()).collect();
        let [fleet, all] = blocks.as_slice() else { panic!("{} blocks", blocks.len()) };
        assert_eq!(load(fleet).unwrap().console.services.len(), 2);
        let (documented, default) = (load(all).unwrap().console, windfall_console::ConsoleOptions::default());
        assert_eq!(format!("{documented:?}"), format!("{default:?}"));
    }

    #[test]
    fn serve_alone_has_the_console_beside_its_services_where_it_is_asked_for() {
        let has = |text: &str| {
            let options = load(text).unwrap();
            [Role::Serve, Role::RewardService, Role::Console].map(|role| options.has_console(role))
        };
        assert_eq!(has(""), [false; 3]);
        assert_eq!(has("[console]\nenabled = false\n"), [false; 3]);
        assert_eq!(has("[console]\nenabled = true\n"), [true, false, false]);
    }

    #[test]
    fn a_wrong_option_is_refused_by_its_name() {
        for (wrong, named) in [
            ("[console]\nsessions_max = 0\n", "console.sessions_max is 0"),
            ("[console]\nrules = \"write\"\n", "line 2"),
            ("[console]\nrules = \"change\"\n", "console.rules_changed_by"),
            ("[[console.services]]\nname = \"a\"\nurl = \"http://127.0.0.1:1\"\n", "console.key_file"),
        ] {
            let refused = format!("{:#}", load(wrong).unwrap_err());
            assert!(refused.contains(named), "{wrong}: {refused}");
        }
    }
}
