//! `serve --dev`: all that a try-out needs, made where it is missing: a key ring, rules, callers and their keys, targets for
//! timers, and signing keys where its brokers are real ones.

use super::options::{ServiceOptions, UnbudgetedAt};
use super::role::Role;
use super::scheduler::{TargetAt, TargetTo, TenantAt};
use super::signing::SigningAt;
use crate::drivers::BrokerAt;
use crate::place;
use anyhow::{Context, Result, bail};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use windfall_config::RulesStore;
use windfall_connectors::{HttpOptions, WireOptions};
use windfall_console::{ConsoleOptions, RulesRight};
use windfall_contract::Clock;
use windfall_edge::{MintedKey, mint_key};
use windfall_signing::KeyFile as SigningKeyFile;
use windfall_token::{Algorithm, KeyFile};

/// The caller that may change the rules by the console.
const OPERATOR: &str = "operator";

/// Callers of a try-out: name, roles, whether it may name users, and what it is for.
const CALLERS: [(&str, &str, bool, &str); 7] = [
    ("activity", r#"["send"]"#, false, "sends rewards"),
    (
        "wallet-front",
        r#"["verify", "withdraw"]"#,
        true,
        "sees and empties wallets, names users by x-windfall-user",
    ),
    ("payouts", r#"["pay_out"]"#, false, "pays out elsewhere what users withdrew, and acknowledges it"),
    ("grants", r#"["grant"]"#, false, "grants without a queue"),
    (OPERATOR, r#"["operate"]"#, false, "archive, budgets, /metrics; signs in to the console"),
    (
        "approver",
        r#"["observe", "approve"]"#,
        false,
        "the second person, who approves what the operator proposes",
    ),
    ("scheduler", r#"["schedule"]"#, false, "adds timers, to the targets `hook` and `rewards`, and jobs"),
];

/// The address that the timers of a try-out call.
const HOOK: &str = "http://127.0.0.1:8099/fired";

/// The beginning of its access file.
const MARK: &str = "# Written by `windfall serve --dev`";

/// Queues and limits for a laptop. They have no budgets, since it is not known what will be tried out, so [`prepare`]
/// allows what no budget covers.
pub const RULES: &str = r#"version = 1
types = ["cash", "coupon", "coin", "badge", "gift"]

[topics]
cash-a = { broker = "a", partitions = 4 }
cash-b = { broker = "b", partitions = 4 }
gifts-a = { broker = "a", partitions = 4 }
gifts-b = { broker = "b", partitions = 4 }

[queues.cash]
master = "cash-a"
backup = "cash-b"
ratio = 90

[queues.gifts]
master = "gifts-b"
backup = "gifts-a"
ratio = 90

[[routes]]
type = "cash"
queue = "cash"
requeue = ["cash", "gifts"]

[[routes]]
type = "*"
queue = "gifts"
requeue = ["gifts", "cash"]

[limits.global]
rate_per_s = 100000
burst = 10000

[limits.default]
rate_per_s = 50000
burst = 5000

[end]
"#;

/// Makes what is missing, and keys for this start; prints them. What no budget covers is granted, unless the options
/// say otherwise.
pub fn prepare(options: &mut ServiceOptions, clock: &Clock) -> Result<()> {
    options.rewards.unbudgeted.get_or_insert(UnbudgetedAt::Allow);
    let keys = options.keys_path();
    if !keys.exists() {
        KeyFile::create(&keys, Algorithm::HmacSha256, clock.unix_ms())
            .context("the key ring cannot be made")?;
    }
    sign_on_real_brokers(options, clock)?;
    if let Some(rules) = options.rules.path(&options.data)
        && !rules.exists()
    {
        if let Some(dir) = rules.parent() {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("the directory {} cannot be created", dir.display()))?;
        }
        RulesStore::new(rules, None)
            .set(RULES, "windfall serve --dev", "first version", clock.unix_ms())
            .context("the first rules cannot be written")?;
    }
    if options.scheduler.tenants.is_empty() {
        let tenant = timers_tenant(&options.data)?;
        options.scheduler.tenants.insert(options.tenant.clone(), tenant);
        println!("Timers of the target `hook` are posted to {HOOK}, those of `rewards` send rewards.");
    }
    options.console.enabled.get_or_insert(true);
    let_operator_change_rules(&mut options.console);
    if let Some(jobs) = &mut options.jobs
        && jobs.allow.is_empty()
    {
        // Executors are tried out on this machine.
        jobs.allow = vec!["127.0.0.0/8".into(), "::1".into()];
    }
    let access = options.access_path();
    println!("Keys of this start ({} holds their hashes):", access.display());
    write_access(&access, &options.tenant)
}

/// A try-out signs and verifies what it writes to brokers that others can write to, unless the options say otherwise. // I12
fn sign_on_real_brokers(options: &mut ServiceOptions, clock: &Clock) -> Result<()> {
    if options.signing.is_some() || !options.brokers.values().any(BrokerAt::is_shared) {
        return Ok(());
    }
    let (keys, sender) = (place::signing(&options.data), Role::Serve.name());
    if !keys.exists() {
        SigningKeyFile::create(&keys, sender, true, clock.unix_ms())
            .context("the signing keys cannot be made")?;
    }
    let sender = Some(sender.to_owned());
    options.signing = Some(SigningAt { keys: Some(keys), sender, ..SigningAt::default() });
    Ok(())
}

/// A try-out may be changed by who tries it, unless the options say otherwise.
fn let_operator_change_rules(console: &mut ConsoleOptions) {
    if console.rules.is_none() {
        console.rules = Some(RulesRight::Change);
        if console.rules_changed_by.is_empty() {
            console.rules_changed_by = vec![OPERATOR.into()];
        }
    }
}

/// A tenant that can be tried with `curl`: one target calls a port of this machine, the other one sends rewards.
fn timers_tenant(data: &Path) -> Result<TenantAt> {
    let secret_file = data.join("callback.secret");
    if !secret_file.exists() {
        let secret = mint_key().context("the system gives no random numbers, so no secret can be made")?;
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&secret_file)
            .and_then(|mut file| file.write_all(secret.text.as_bytes()))
            .with_context(|| format!("the file {} cannot be written", secret_file.display()))?;
    }
    let hook = HttpOptions {
        url: HOOK.into(),
        allow: vec!["127.0.0.1".into()],
        key_id: "dev".into(),
        secret_file,
        signature_v1: true,
        wire: WireOptions { plaintext: true, ..WireOptions::default() },
    };
    let target = |to| TargetAt { to, retry: None, concurrency: None, rate_per_s: None, catch_up: None };
    let targets = [("hook", TargetTo::Http(hook)), ("rewards", TargetTo::SendBonus)]
        .map(|(name, to)| (name.to_owned(), target(to)));
    Ok(TenantAt { targets: targets.into(), ..TenantAt::default() })
}

fn write_access(path: &Path, tenant: &str) -> Result<()> {
    let is_ours = match std::fs::read_to_string(path) {
        Ok(there) => there.starts_with(MARK),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if !is_ours {
        bail!(
            "{} was not written by --dev, and --dev would overwrite it: name another directory by --data",
            path.display()
        );
    }
    let mut text = format!("{MARK} at each start.\nversion = 2\n");
    for (name, roles, may_name_users, purpose) in CALLERS {
        let MintedKey { text: key, sha256 } =
            mint_key().context("the system gives no random numbers, so no key can be made")?;
        text.push_str(&format!(
            "\n[[caller]]\nname = {name:?}\ntenant = {tenant:?}\nroles = {roles}\nkey_sha256 = [{sha256:?}]\n\
             may_name_users = {may_name_users}\n"
        ));
        println!("  {name:<13} {key}  {purpose}");
    }
    std::fs::write(path, text)
        .with_context(|| format!("the access file {} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_file_of_somebody_else_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.toml");
        write_access(&path, "windfall").unwrap();
        write_access(&path, "windfall").unwrap();
        std::fs::write(&path, "# ours\n").unwrap();
        assert!(write_access(&path, "windfall").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "# ours\n");
    }

    #[test]
    fn what_the_options_say_about_the_rules_stays() {
        let of = |rules| {
            let mut console = ConsoleOptions { rules, ..ConsoleOptions::default() };
            let_operator_change_rules(&mut console);
            (console.rules, console.rules_changed_by)
        };
        assert_eq!(of(None), (Some(RulesRight::Change), vec![OPERATOR.to_owned()]));
        assert_eq!(of(Some(RulesRight::Read)), (Some(RulesRight::Read), Vec::new()));
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn on_real_brokers_it_has_signing_keys_of_its_own_and_in_files_none() {
        let folder = tempfile::tempdir().unwrap();
        let prepared = |text: &str| {
            let mut options: ServiceOptions = toml::from_str(text).unwrap();
            options.data = folder.path().to_owned();
            sign_on_real_brokers(&mut options, &Clock::system()).unwrap();
            options.signing
        };
        let file = place::signing(folder.path());
        assert!(prepared("[brokers]\na = \"embedded\"\n").is_none() && !file.exists());
        let real = "[brokers.a.kafka]\nbootstrap_servers = \"127.0.0.1:1\"\n";
        assert_eq!(prepared(real).and_then(|at| at.keys), Some(file.clone()));
        let made = std::fs::read(&file).unwrap();
        // A second start keeps them; options that say something stay as they are.
        assert_eq!(prepared(real).and_then(|at| at.sender).as_deref(), Some("serve"));
        assert_eq!(std::fs::read(&file).unwrap(), made);
        let word = format!("{real}[signing]\nunsigned = \"accept\"\n");
        assert_eq!(prepared(&word).and_then(|at| at.keys), None);
    }

    #[test]
    fn its_rules_validate() {
        windfall_config::parse_rules(RULES, Some(&["a", "b"])).unwrap();
    }
}
