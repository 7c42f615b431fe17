//! The options of cron and one-off jobs: where they lie, and where their executors are.

use super::options::ServiceOptions;
use crate::drivers::{DurabilityAt, EntriesAt};
use crate::wiring::JobsPart;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use windfall_edge::{ListenerLimits, TlsOptions};
use windfall_jobs::xxl::{AccessToken, AddressRules, ServerOptions};
use windfall_jobs::{JobsOptions, STORE_TIMEOUT_MAX_MS};

/// Bytes of a file with an access token at most.
const TOKEN_FILE_MAX_BYTES: u64 = 4 << 10;

/// Options of jobs. Where they are there, the scheduler of the process runs jobs.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobsServiceAt {
    /// Where jobs, runs and executors are kept: `embedded`, or `redis` with its options. Default `embedded`.
    pub store: EntriesAt,
    /// The parts that the store is divided into, 1 to 1,024; fixed when it is made. Default 64.
    pub shards: u16,
    /// What the Ok of a call survives: `process` or `machine`. Default `process`.
    pub durability: DurabilityAt,
    /// How runs are started, and how long they are kept.
    pub runs: JobsOptions,
    /// The networks in which executors may be, as `10.0.0.0/8`. Default: all but this machine, link-local networks and clouds'
    /// metadata.
    pub allow: Vec<String>,
    /// The certificate authorities of executors at `https://` addresses, PEM. Default: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// Files with the access tokens that executors and the scheduler show each other, by tenant. Default: none, and executors
    /// of XXL-JOB may register on this machine alone, for the app that `tenant` names.
    pub tokens: BTreeMap<String, PathBuf>,
    /// Where executors that speak the protocol of XXL-JOB register and report. Default: nowhere.
    pub xxl: Option<XxlAt>,
}

/// Where executors that speak the protocol of XXL-JOB register and report.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct XxlAt {
    /// The address to listen on. Beyond this machine it needs `[jobs.tokens]`, and `tls` or `plaintext = true`. Default
    /// 127.0.0.1:7780.
    pub listen: SocketAddr,
    /// The server's certificate and its key, as for `[serve.tls]`. Default: none.
    pub tls: Option<TlsOptions>,
    /// Lets it listen beyond this machine without TLS: access tokens and parameters of runs cross the network in the clear.
    /// Default false.
    pub plaintext: bool,
    /// The age of connections, and the bounds of those on which nobody has shown an access token.
    pub connections: ListenerLimits,
    /// Lets it listen beyond this machine without `[jobs.tokens]`. Whoever reaches it can then register executors, which get
    /// the parameters of runs, and report results. Default false.
    pub allow_without_token: bool,
    /// Connections; those beyond are closed at once. 1 to 1,000,000, default 20,000.
    pub connections_max: usize,
}

impl Default for JobsServiceAt {
    fn default() -> Self {
        Self {
            store: EntriesAt::default(),
            shards: 64,
            durability: DurabilityAt::default(),
            runs: JobsOptions::default(),
            allow: Vec::new(),
            ca_file: None,
            tokens: BTreeMap::new(),
            xxl: None,
        }
    }
}

impl Default for XxlAt {
    fn default() -> Self {
        let ServerOptions { tls, plaintext, connections, allow_without_token, connections_max, .. } =
            ServerOptions::default();
        let listen = ([127, 0, 0, 1], 7780).into();
        Self { listen, tls, plaintext, connections, allow_without_token, connections_max }
    }
}

impl JobsServiceAt {
    /// Refuses what cannot be, and names the option.
    pub fn check(&self, scheduler_is_shared: bool) -> Result<()> {
        if !(1..=1_024).contains(&self.shards) {
            bail!("jobs.shards is {}, but only 1 to 1024 is allowed", self.shards);
        }
        self.runs.check().context("the options [jobs.runs] cannot be used")?;
        if let Some(call_timeout_ms) = self.store.call_timeout_ms().filter(|ms| *ms > STORE_TIMEOUT_MAX_MS) {
            bail!(
                "jobs.store.redis.call_timeout_ms is {call_timeout_ms}, but at most {STORE_TIMEOUT_MAX_MS} is allowed: a lease of \
                 a run would end while one call is open"
            );
        }
        AddressRules::parse(&self.allow).context("the option jobs.allow cannot be used")?;
        if self.store.is_shared() != scheduler_is_shared {
            bail!(
                "jobs.store and scheduler.store must be of one kind: both files of one process, or both in Redis for several"
            );
        }
        if let Some(xxl) = &self.xxl {
            if xxl.options().check_token(!self.tokens.is_empty()).is_err() {
                bail!(
                    "jobs.xxl.listen is {}, which others can reach; name a file with an access token in [jobs.tokens], listen \
                     on a loopback address, or set jobs.xxl.allow_without_token: whoever reaches it can register executors \
                     and report results",
                    xxl.listen
                );
            }
            xxl.options().check().context("the options [jobs.xxl] cannot be used")?;
        }
        Ok(())
    }

    /// Reads the tokens.
    fn tokens(&self) -> Result<BTreeMap<String, AccessToken>> {
        let mut seen = BTreeSet::new();
        let mut tokens = BTreeMap::new();
        for (tenant, path) in &self.tokens {
            let text = read_token(path).with_context(|| format!("the token of jobs.tokens.{tenant}"))?;
            let token = AccessToken::new(text.trim());
            let token = token.with_context(|| format!("jobs.tokens.{tenant}: {}", path.display()))?;
            if !seen.insert(text.trim().to_owned()) {
                bail!("jobs.tokens.{tenant} is the token of another tenant, too: give each one of its own");
            }
            tokens.insert(tenant.clone(), token);
        }
        Ok(tokens)
    }
}

impl XxlAt {
    fn options(&self) -> ServerOptions {
        let Self { listen, tls, plaintext, connections, allow_without_token, connections_max } = self.clone();
        ServerOptions {
            listen,
            tls,
            plaintext,
            connections,
            allow_without_token,
            connections_max,
            ..ServerOptions::default()
        }
    }
}

fn read_token(path: &Path) -> Result<String> {
    let found = std::fs::metadata(path).with_context(|| format!("{} cannot be read", path.display()))?;
    if found.len() > TOKEN_FILE_MAX_BYTES {
        bail!("{} has {} bytes, which is no token", path.display(), found.len());
    }
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

impl ServiceOptions {
    /// How jobs are run, if they are. Connects to nothing yet.
    pub fn jobs_part(&self) -> Result<Option<JobsPart>> {
        let Some(at) = &self.jobs else { return Ok(None) };
        Ok(Some(JobsPart {
            options: at.runs,
            tokens: at.tokens()?,
            rules: AddressRules::parse(&at.allow).context("the option jobs.allow cannot be used")?,
            ca_file: at.ca_file.clone(),
            xxl: at.xxl.as_ref().map(XxlAt::options),
            tenant: self.tenant.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Role;

    fn load(text: &str) -> Result<ServiceOptions> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options.toml");
        std::fs::write(&file, text).unwrap();
        ServiceOptions::load(Some(&file), Some(folder.path().join("data")))
    }

    #[test]
    fn the_documented_options_are_options() {
        let text = include_str!("../../../docs/jobs.md");
        let blocks: Vec<_> = text.split("```toml\n").skip(1).collect();
        assert!(!blocks.is_empty());
        for block in blocks {
            assert!(load(block.split("```").next().unwrap()).unwrap().jobs.is_some());
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_store_of_jobs_that_may_be_silent_for_as_long_as_a_lease_is_refused() {
        let text = |ms: u64| {
            format!(
                "[scheduler.store.redis]\nurls = [\"127.0.0.1:1\"]\n\
                 [jobs.store.redis]\nurls = [\"127.0.0.1:1\"]\ncall_timeout_ms = {ms}\n"
            )
        };
        assert!(load(&text(STORE_TIMEOUT_MAX_MS)).is_ok());
        let refused = load(&text(STORE_TIMEOUT_MAX_MS + 1)).err().map(|error| format!("{error:#}"));
        assert!(refused.is_some_and(|why| why.contains("jobs.store.redis.call_timeout_ms")));
    }

    #[test]
    fn the_documented_numbers_are_those_of_the_code() {
        use windfall_jobs::definition::{NAME_MAX_BYTES, PARAMS_MAX_BYTES};
        use windfall_jobs::runs::{LEASE_MS, MISFIRE_MS};
        use windfall_jobs::schedule::{FIRE_ALL_MAX, TIMES_MAX};
        let text = include_str!("../../../docs/jobs.md").replace(',', "");
        let JobsOptions {
            calls_max,
            executor_ttl_ms,
            keep_succeeded_ms,
            keep_failed_ms,
            jobs_max,
            succeeded_max,
            ..
        } = JobsOptions::default();
        for words in [
            format!("Up to {} seconds late it is simply started", MISFIRE_MS / 1_000),
            format!("is taken over {} s after it was made", LEASE_MS / 1_000),
            format!("at most N; N is up to {FIRE_ALL_MAX}"),
            format!("times of a list | {TIMES_MAX} |"),
            format!("name of a job | {NAME_MAX_BYTES} letters"),
            format!("parameters | {} KiB |", PARAMS_MAX_BYTES / 1_024),
            format!("calls_max = {calls_max} "),
            format!("keep_succeeded_ms = {keep_succeeded_ms} "),
            format!("keep_failed_ms = {keep_failed_ms} "),
            format!("executor_ttl_ms = {executor_ttl_ms} "),
            format!("jobs_max = {jobs_max} "),
            format!("succeeded_max = {succeeded_max} "),
            format!("(`jobs_max` of `[jobs.runs]`) | {jobs_max};"),
        ] {
            assert!(text.contains(&words), "docs/jobs.md does not say {words:?}");
        }
    }

    #[test]
    fn jobs_run_where_they_are_among_the_options_and_with_them_the_scheduler() {
        let (none, some) = (load("").unwrap(), load("[jobs]\n").unwrap());
        assert!(none.jobs.is_none() && !none.work_of(Role::Serve).schedules);
        assert!(some.work_of(Role::Serve).schedules && some.work_of(Role::Scheduler).schedules);
        let part = some.jobs_part().unwrap().unwrap();
        assert!(part.xxl.is_none() && part.tokens.is_empty() && part.tenant == "windfall");
        let xxl = load("[jobs.xxl]\n").unwrap().jobs_part().unwrap().unwrap().xxl.unwrap();
        assert_eq!(xxl.listen, ([127, 0, 0, 1], 7780).into());
    }

    #[test]
    fn each_tenant_has_a_token_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (one, two) = (file("one", "first\n"), file("two", "second"));
        let part = |one: &Path, two: &Path| {
            load(&format!("[jobs.tokens]\nshop = {one:?}\nmail = {two:?}\n")).unwrap().jobs_part()
        };
        assert_eq!(part(&one, &two).unwrap().unwrap().tokens.len(), 2);
        for (one, two, words) in [
            (one.clone(), one.clone(), "the token of another tenant"),
            (one.clone(), folder.path().join("none"), "cannot be read"),
            (one, file("bad", "a b"), "access token has"),
        ] {
            let refused = format!("{:#}", part(&one, &two).err().unwrap());
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn executors_of_others_need_a_token_unless_the_options_allow_it_by_name() {
        let open = "[jobs.xxl]\nlisten = \"0.0.0.0:7780\"\n";
        let refused = format!("{:#}", load(open).err().unwrap());
        for words in ["jobs.xxl.listen is 0.0.0.0:7780", "[jobs.tokens]", "jobs.xxl.allow_without_token"] {
            assert!(refused.contains(words), "{refused}");
        }
        assert!(load(&format!("{open}plaintext = true\nallow_without_token = true\n")).is_ok());
        let tokens = "[jobs.tokens]\nshop = \"/etc/windfall/shop.token\"\n";
        assert!(load(&format!("{open}plaintext = true\n{tokens}")).is_ok());
        let refused = format!("{:#}", load(&format!("{open}{tokens}")).err().unwrap());
        for words in ["[jobs.xxl]", "listen 0.0.0.0:7780 is not on this machine", "plaintext = true"] {
            assert!(refused.contains(words), "{refused}");
        }
        let tls = "tls = { cert_file = \"/run/windfall/tls.crt\", key_file = \"/run/windfall/tls.key\" }\n";
        assert!(load(&format!("{open}{tls}{tokens}")).is_ok());
        let both = format!("{:#}", load(&format!("{open}{tls}plaintext = true\n{tokens}")).err().unwrap());
        assert!(both.contains("contradict each other"), "{both}");
    }

    #[test]
    fn a_wrong_option_is_refused_by_its_name() {
        for (wrong, named) in [
            ("[jobs]\nshards = 0\n", "jobs.shards is 0"),
            ("[jobs]\nstore = \"mysql\"\n", "line 2"),
            ("[jobs.runs]\ncalls_max = 0\n", "`calls_max` is 1 to 10000, not 0"),
            ("[jobs]\nallow = [\"ten\"]\n", "jobs.allow"),
            ("[jobs.xxl]\nconnections_max = 0\n", "connections_max is 0"),
            ("[jobs.xxl.connections]\nconnection_age_max_ms = 1\n", "connections.connection_age_max_ms is 1"),
            ("[jobs]\nrun = 1\n", "run"),
            ("[scheduler.tenants._jobs]\n", "scheduler.tenants._jobs"),
        ] {
            let refused = format!("{:#}", load(wrong).err().unwrap());
            assert!(refused.contains(named), "{wrong}: {refused}");
        }
    }
}
