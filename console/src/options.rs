//! The options of the console. Every limit of this crate is here.

use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// The bytes of a request with rules at most: they have up to 1 MiB, which JSON may write longer.
pub(crate) const RULES_BYTES_MAX: usize = 3 << 20;
/// The bytes of a request to roll the rules back, or to end a trial, at most.
pub(crate) const ROLLBACK_BYTES_MAX: usize = 16 << 10;
/// The bytes of a call of a service at most.
pub(crate) const CALL_BYTES_MAX: usize = 256 << 10;
/// The bytes of a service's answer at most: a full page of the archive.
pub(crate) const ANSWER_BYTES_MAX: usize = 4 << 20;
/// The bytes of one instance's metrics at most; all instances are asked at once.
pub(crate) const METRICS_BYTES_MAX: usize = 1 << 20;
/// The time-out of a scrape of one instance. A sample waits for the slowest one.
pub(crate) const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);
/// The series that the console follows at most, over all instances; what is beyond them is left out, and the page says so.
pub(crate) const SERIES_MAX: usize = 1_024;
/// The budgets among these series at most: an activity with many scenes must not take the places of topics and types. The page
/// says that some are left out.
pub(crate) const BUDGETS_MAX: usize = 256;
/// How long samples are kept.
pub(crate) const HISTORY_MS: u64 = 3_600_000;
/// The samples that are kept: one a second.
pub(crate) const SAMPLES_MAX: usize = 3_600;
/// The step of the charts.
pub(crate) const HISTORY_STEP_MS: u64 = 10_000;
/// The sessions that one caller has at once at most: no key throws those of others out.
pub(crate) const SESSIONS_OF_CALLER_MAX: usize = 16;
/// The addresses whose failed attempts to sign in are counted at once at most.
pub(crate) const ADDRESSES_MAX: usize = 1_024;
/// The services that a console may have at most.
const SERVICES_MAX: usize = 64;

/// The options of the console.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsoleOptions {
    /// Whether `windfall serve` has the console. Default: with `--dev` alone.
    pub enabled: Option<bool>,
    /// What the console does with the live rules, for callers with the role `operate`. Default: `read`.
    pub rules: Option<RulesRight>,
    /// The callers of the access file that may change the rules by the console; they need the role `operate` too. Default:
    /// none; with `rules = "change"` there must be one.
    pub rules_changed_by: Vec<String>,
    /// The number of sessions. A sign-in beyond them ends the one that was used longest ago. 1 to 10,000, default 256.
    pub sessions_max: usize,
    /// The time without a request after which a session ends, s. 60 to 86,400, default 1,800.
    pub idle_s: u64,
    /// The time after its sign-in at which a session ends, s. 60 to 604,800, default 43,200.
    pub session_s: u64,
    /// Failed attempts to sign in that one address has in a minute. 1 to 1,000, default 10.
    pub attempts_per_min: u32,
    /// Whether the cookie is marked `Secure` although the console's own port has no TLS, because a proxy in front of it has.
    /// Default: false.
    pub behind_tls: bool,
    /// Whether keys are taken from other machines without TLS. Default: false.
    pub plaintext: bool,
    /// The time-out of one call of a service, ms. 100 to 60,000, default 10,000.
    pub call_timeout_ms: u64,
    /// The file of the console's own access key, with which it reads the metrics of `services`; its caller needs the role
    /// `observe`. Default: none; then `services` must be empty.
    pub key_file: Option<PathBuf>,
    /// The services of the fleet. Default: none, which is right for `windfall serve`: the console shows its own process.
    pub services: Vec<ServiceAt>,
}

/// What the console does with the live rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RulesRight {
    /// It has nothing to do with them.
    None,
    /// It shows them, with their history.
    #[default]
    Read,
    /// It changes them as well, for the callers that are named.
    Change,
}

/// A process that the console shows and calls.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceAt {
    /// Its name on the page.
    pub name: String,
    /// `https://host:port`, or `http://host:port`.
    pub url: String,
    /// The authorities (PEM) that its certificate is checked against. Default: those of the system.
    pub ca_file: Option<PathBuf>,
    /// The name in its certificate, where that is not the host of `url`.
    pub server_name: Option<String>,
    /// Sends keys over `http` to other machines too, where something else encrypts. Default: false.
    #[serde(default)]
    pub key_in_plain_text: bool,
}

/// An option cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// It is out of its range.
    #[error("console.{key} is {value}, but only {least} to {most} is allowed")]
    OutOfRange {
        /// The option.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The least value.
        least: u64,
        /// The largest value.
        most: u64,
    },
    /// It is wrong in another way.
    #[error("console.{0}")]
    Wrong(String),
}

impl Default for ConsoleOptions {
    fn default() -> Self {
        Self {
            enabled: None,
            rules: None,
            rules_changed_by: Vec::new(),
            sessions_max: 256,
            idle_s: 1_800,
            session_s: 43_200,
            attempts_per_min: 10,
            behind_tls: false,
            plaintext: false,
            call_timeout_ms: 10_000,
            key_file: None,
            services: Vec::new(),
        }
    }
}

impl RulesRight {
    /// Its name, as in the options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read => "read",
            Self::Change => "change",
        }
    }
}

impl ConsoleOptions {
    /// What the console does with the live rules.
    pub fn rules_right(&self) -> RulesRight {
        self.rules.unwrap_or_default()
    }

    /// Checks what can be checked without a file.
    ///
    /// # Errors
    /// [`OptionError`] names the first option that is wrong.
    pub fn check(&self) -> Result<(), OptionError> {
        let ranges = [
            ("sessions_max", self.sessions_max as u64, 1, 10_000),
            ("idle_s", self.idle_s, 60, 86_400),
            ("session_s", self.session_s, 60, 604_800),
            ("attempts_per_min", self.attempts_per_min.into(), 1, 1_000),
            ("call_timeout_ms", self.call_timeout_ms, 100, 60_000),
        ];
        for (key, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(OptionError::OutOfRange { key, value, least, most });
            }
        }
        let wrong = |what: String| Err(OptionError::Wrong(what));
        if self.services.len() > SERVICES_MAX {
            return wrong(format!("services has more than {SERVICES_MAX} entries"));
        }
        if self.key_file.is_none() && !self.services.is_empty() {
            return wrong(
                "key_file is missing: without a key the metrics of `services` cannot be read".into(),
            );
        }
        if self.rules_right() == RulesRight::Change && self.rules_changed_by.is_empty() {
            return wrong(
                "rules_changed_by is missing: with rules = \"change\" it names the callers that may change them".into(),
            );
        }
        let mut names: Vec<&str> = self.services.iter().map(|at| at.name.as_str()).collect();
        names.sort_unstable();
        if names.first().is_some_and(|name| name.is_empty()) {
            return wrong("services has an entry without a name".into());
        }
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => wrong(format!("services has the name {} twice", pair[0])),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_option_is_refused_by_its_name() {
        let check = |text: &str| toml::from_str::<ConsoleOptions>(text).unwrap().check();
        check("").unwrap();
        let service = "[[services]]\nname = \"a\"\nurl = \"http://127.0.0.1:1\"\n";
        check(&format!("key_file = \"k\"\n{service}")).unwrap();
        check("rules = \"change\"\nrules_changed_by = [\"ann\"]").unwrap();
        for (wrong, named) in [
            ("sessions_max = 0".to_owned(), "sessions_max is 0"),
            ("idle_s = 1".to_owned(), "idle_s is 1"),
            ("rules = \"change\"".to_owned(), "rules_changed_by is missing"),
            (service.to_owned(), "key_file is missing"),
            (format!("key_file = \"k\"\n{service}{service}"), "name a twice"),
        ] {
            let refused = check(&wrong).unwrap_err().to_string();
            assert!(refused.contains(named), "{wrong}: {refused}");
        }
    }
}
