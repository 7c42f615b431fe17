//! The access file, which says who may call, read and checked as a whole.

mod source;

pub use source::AccessSource;

use crate::identity::{Caller, Role, Roles};
use crate::key::{self, KeyHash};
use crate::users::JwtOptions;
use serde::Deserialize;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use toml::Spanned;
use windfall_proto::order::check_name;

/// The number of callers in one access file at most.
pub const CALLERS_MAX: usize = 1_000;
/// The number of keys or certificate names of one caller at most: two while one replaces the other, and some room.
const PROOFS_MAX: usize = 8;

/// A checked access file.
///
/// ```
/// let key = windfall_edge::mint_key()?;
/// let access = windfall_edge::Access::parse(&format!(r#"
///     [[caller]]
///     name = "wallet-front"
///     tenant = "windfall"
///     roles = ["verify", "withdraw"]
///     key_sha256 = "{}"
///     may_name_users = true
/// "#, key.sha256))?;
/// assert_eq!(access.callers().next().map(|caller| &*caller.name), Some("wallet-front"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Access {
    entries: Vec<Entry>,
    jwt: Option<JwtOptions>,
    version: String,
}

/// What the roles of a file mean: its key `version`, which older releases do not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// `verify` includes `withdraw`, as before there was this role.
    One,
    /// Each role is what its name says.
    Two,
}

/// Why an access file was refused. It changes nothing then: the last good one stays (I6).
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// The file is not TOML of the documented form, or contradicts itself. Its content is not repeated.
    #[error("line {line}: {what}")]
    Invalid {
        /// Line of the file, from 1.
        line: usize,
        /// The key, what is wrong with it, and the remedy.
        what: String,
    },
    /// The file of the users' keys is no JSON Web Key Set with keys that can be used.
    #[error("{}: {what}", path.display())]
    Jwks {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// TLS towards the address of the users' keys cannot be set up.
    #[error("users.jwt: {0}")]
    Tls(String),
}

/// A caller with its proofs.
pub(crate) struct Entry {
    pub(crate) caller: Caller,
    pub(crate) may_name_users: bool,
    /// Whether its file gives it `withdraw` by `verify` alone.
    withdraws_by_verify: bool,
    keys: Vec<KeyHash>,
    cert_names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    version: Option<Spanned<u64>>,
    #[serde(default)]
    caller: Vec<Spanned<CallerTable>>,
    users: Option<UsersTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallerTable {
    name: String,
    tenant: String,
    roles: Vec<String>,
    key_sha256: Option<OneOrMany>,
    cert_name: Option<OneOrMany>,
    #[serde(default)]
    may_name_users: bool,
    #[serde(default)]
    timers_of: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsersTable {
    jwt: Option<Spanned<JwtOptions>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Access {
    /// Reads and checks an access file's text.
    ///
    /// # Errors
    /// [`AccessError::Invalid`] with the line, the key and the remedy.
    pub fn parse(text: &str) -> Result<Self, AccessError> {
        let document: Document = toml::from_str(text).map_err(|error| AccessError::Invalid {
            line: error.span().map_or(1, |span| line_at(text, span.start)),
            // The message alone: the whole error quotes the line, which may hold a key put there by mistake.
            what: error.message().to_owned(),
        })?;
        let meaning = match document.version {
            None => Meaning::One,
            Some(given) => {
                let line = line_at(text, given.span().start);
                Meaning::of(given.into_inner()).map_err(|what| AccessError::Invalid { line, what })?
            }
        };
        let mut entries = Vec::new();
        let mut seen = Seen::default();
        for table in document.caller {
            let line = line_at(text, table.span().start);
            let entry = Entry::check(table.into_inner(), meaning, &mut seen)
                .map_err(|what| AccessError::Invalid { line, what })?;
            entries.push(entry);
            if entries.len() > CALLERS_MAX {
                let what = format!("more than {CALLERS_MAX} callers; split the service or share keys");
                return Err(AccessError::Invalid { line, what });
            }
        }
        let jwt = match document.users.and_then(|users| users.jwt) {
            Some(table) => {
                let line = line_at(text, table.span().start);
                let options = table.into_inner();
                options.check().map_err(|what| AccessError::Invalid { line, what })?;
                Some(options)
            }
            None => None,
        };
        let mut version = KeyHash::of(text).hex();
        version.truncate(12);
        Ok(Self { entries, jwt, version })
    }

    /// The callers that may withdraw only because the file has no `version = 2`: there `verify` includes `withdraw`.
    pub fn withdraw_by_verify(&self) -> impl Iterator<Item = &str> {
        let callers = self.entries.iter().filter(|entry| entry.withdraws_by_verify);
        callers.map(|entry| &*entry.caller.name)
    }

    /// The callers in the file's order.
    pub fn callers(&self) -> impl Iterator<Item = &Caller> {
        self.entries.iter().map(|entry| &entry.caller)
    }

    /// The name of the text that this was read from: the start of its SHA-256.
    pub fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn jwt(&self) -> Option<&JwtOptions> {
        self.jwt.as_ref()
    }

    /// The caller of a bearer key. It compares every key, even after one matches.
    pub(crate) fn by_key(&self, text: &str) -> Option<&Entry> {
        if !key::has_form(text) {
            return None;
        }
        let hash = KeyHash::of(text);
        let mut found = None;
        for entry in &self.entries {
            for key in &entry.keys {
                if key.equals(&hash) {
                    found = Some(entry);
                }
            }
        }
        found
    }

    /// The caller of a client certificate, by the first of its names that the file knows.
    pub(crate) fn by_certificate(&self, names: &[String]) -> Option<&Entry> {
        names.iter().find_map(|name| {
            self.entries.iter().find(|entry| entry.cert_names.iter().any(|known| known == name))
        })
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let callers: Vec<&str> = self.callers().map(|caller| &*caller.name).collect();
        f.debug_struct("Access").field("version", &self.version).field("callers", &callers).finish()
    }
}

/// Names that may stand in a file only once.
#[derive(Default)]
struct Seen {
    names: HashSet<String>,
    proofs: HashSet<String>,
}

impl Meaning {
    fn of(version: u64) -> Result<Self, String> {
        match version {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            other => Err(format!("version = {other} is not known here; give 1 or 2, or use a newer release")),
        }
    }
}

impl Entry {
    fn check(table: CallerTable, meaning: Meaning, seen: &mut Seen) -> Result<Self, String> {
        let CallerTable { name, tenant, roles, key_sha256, cert_name, may_name_users, timers_of } = table;
        check_name(&name).map_err(|why| format!("name {why}"))?;
        if !seen.names.insert(name.clone()) {
            return Err(format!("name `{name}` is given twice; list the keys of one caller in `key_sha256`"));
        }
        let wrong = |what: String| format!("caller `{name}`: {what}");
        check_name(&tenant).map_err(|why| wrong(format!("tenant {why}")))?;
        let roles: Roles =
            roles.iter().map(|role| parse_role(role)).collect::<Result<_, _>>().map_err(wrong)?;
        if roles == Roles::default() {
            return Err(wrong("roles is empty; name what it may do, or delete the caller".to_owned()));
        }
        let withdraws_by_verify =
            meaning == Meaning::One && roles.has(Role::Verify) && !roles.has(Role::Withdraw);
        let roles = if withdraws_by_verify { roles.and(Role::Withdraw) } else { roles };
        if !timers_of.is_empty() && !roles.has(Role::Schedule) {
            let what = "has timers_of without the role `schedule`; add the role, or delete the list";
            return Err(wrong(what.to_owned()));
        }
        for of in &timers_of {
            check_name(of).map_err(|why| wrong(format!("timers_of: `{of}` {why}")))?;
        }
        let (keys, cert_names) = match (key_sha256, cert_name) {
            (Some(keys), None) => (check_keys(keys, seen).map_err(wrong)?, Vec::new()),
            (None, Some(names)) => (Vec::new(), check_cert_names(names, seen).map_err(wrong)?),
            (None, None) => {
                return Err(wrong("has neither key_sha256 nor cert_name; give one of them".to_owned()));
            }
            (Some(_), Some(_)) => {
                return Err(wrong("has both key_sha256 and cert_name; make it two callers".to_owned()));
            }
        };
        let caller = Caller {
            name: name.as_str().into(),
            tenant: tenant.as_str().into(),
            roles,
            timers_of: Arc::new(timers_of.into_iter().collect()),
        };
        Ok(Self { caller, may_name_users, withdraws_by_verify, keys, cert_names })
    }
}

impl OneOrMany {
    fn into_proofs(self, key: &str) -> Result<Vec<String>, String> {
        let all = match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        };
        match all.len() {
            1..=PROOFS_MAX => Ok(all),
            count => Err(format!("{key} has {count} entries; give 1 to {PROOFS_MAX}")),
        }
    }
}

fn check_keys(given: OneOrMany, seen: &mut Seen) -> Result<Vec<KeyHash>, String> {
    let given = given.into_proofs("key_sha256")?;
    let mut keys = Vec::with_capacity(given.len());
    for hex in given {
        let key = KeyHash::parse(&hex).ok_or(
            "key_sha256 is not 64 hex digits; it is the SHA-256 of the key's text, never the key itself",
        )?;
        if !seen.proofs.insert(key.hex()) {
            return Err("key_sha256 is that of another entry too; a key belongs to one caller".to_owned());
        }
        keys.push(key);
    }
    Ok(keys)
}

fn check_cert_names(given: OneOrMany, seen: &mut Seen) -> Result<Vec<String>, String> {
    let given = given.into_proofs("cert_name")?;
    for name in &given {
        if name.is_empty() || name.len() > 255 || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("cert_name is not a DNS name or URI; copy it from the certificate's subject \
                        alternative names"
                .to_owned());
        }
        if name.contains('*') {
            return Err("cert_name has a wildcard; a certificate's name must be one caller's own".to_owned());
        }
        if !seen.proofs.insert(name.clone()) {
            return Err(format!("cert_name `{name}` is that of another entry too; it belongs to one caller"));
        }
    }
    Ok(given)
}

fn parse_role(text: &str) -> Result<Role, String> {
    Role::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| {
        let known: Vec<&str> = Role::ALL.iter().map(|role| role.name()).collect();
        format!("roles has `{text}`; it may have {}", known.join(", "))
    })
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Access::parse(text).unwrap_err().to_string()
    }

    fn caller(extra: &str) -> String {
        format!("[[caller]]\nname = \"a\"\ntenant = \"t\"\nroles = [\"send\"]\n{extra}\n")
    }

    #[test]
    fn errors_name_the_line_the_key_and_the_remedy() {
        let hash = "ab".repeat(32);
        for (text, line, words) in [
            (caller("key_sha256 = \"wfk_secret\""), 1, "key_sha256 is not 64 hex digits"),
            (caller(""), 1, "neither key_sha256 nor cert_name"),
            (caller(&format!("key_sha256 = \"{hash}\"\ncert_name = \"a.b\"")), 1, "both"),
            (caller("cert_name = \"*.b\""), 1, "wildcard"),
            (caller("cert_name = []"), 1, "cert_name has 0 entries"),
            (caller("key = \"x\""), 5, "unknown field `key`"),
            (
                caller(&format!("key_sha256 = \"{hash}\"\ntimers_of = [\"b\"]")),
                1,
                "timers_of without the role",
            ),
            (
                caller(&format!("key_sha256 = \"{hash}\"\ntimers_of = [\"\"]")).replace("send", "schedule"),
                1,
                "timers_of: ``",
            ),
            ("[[caller]]\nname = \"a\"".to_owned(), 1, "missing field `tenant`"),
            ("[users.jwt]\nissuer = \"i\"\naudience = \"a\"".to_owned(), 1, "jwks_file"),
            (caller(&format!("key_sha256 = \"{hash}\"")).replace("send", "admin"), 1, "roles has `admin`"),
            (caller(&format!("key_sha256 = \"{hash}\"")).replace("\"send\"", ""), 1, "roles is empty"),
        ] {
            let why = refusal(&text);
            assert!(why.starts_with(&format!("line {line}: ")), "{why}\n{text}");
            assert!(why.contains(words), "{why}");
            assert!(!why.contains("wfk_secret"), "{why}");
        }
    }

    fn roles_of(text: &str) -> Vec<&'static str> {
        let access = Access::parse(text).unwrap();
        let roles = access.callers().next().unwrap().roles;
        Role::ALL.into_iter().filter(|role| roles.has(*role)).map(Role::name).collect()
    }

    /// What a file of the release before gives its callers, it gives them still.
    #[test]
    fn a_file_without_a_version_means_what_it_meant() {
        let of =
            |roles: &str| caller(&format!("key_sha256 = \"{}\"", "ab".repeat(32))).replace("\"send\"", roles);
        for (roles, meant) in [
            ("\"send\"", &["send"][..]),
            ("\"verify\"", &["verify", "withdraw"]),
            ("\"grant\"", &["grant"]),
            ("\"operate\"", &["observe", "operate"]),
            ("\"schedule\"", &["schedule"]),
            ("\"observe\"", &["observe"]),
        ] {
            assert_eq!(roles_of(&of(roles)), meant, "{roles}");
            assert_eq!(roles_of(&format!("version = 1\n{}", of(roles))), meant, "{roles}");
        }
        let access = Access::parse(&of("\"verify\"")).unwrap();
        assert_eq!(access.withdraw_by_verify().collect::<Vec<_>>(), ["a"], "the log names it");
        let access = Access::parse(&of("\"verify\", \"withdraw\"")).unwrap();
        assert_eq!(access.withdraw_by_verify().count(), 0);
    }

    #[test]
    fn in_version_2_who_verifies_pays_nothing_out() {
        let of = |roles: &str| {
            let caller = caller(&format!("key_sha256 = \"{}\"", "ab".repeat(32)));
            format!("version = 2\n{}", caller.replace("\"send\"", roles))
        };
        assert_eq!(roles_of(&of("\"verify\"")), ["verify"]);
        assert_eq!(roles_of(&of("\"withdraw\"")), ["withdraw"]);
        assert_eq!(roles_of(&of("\"pay_out\"")), ["pay_out"], "nor does it see what others pay out");
        assert_eq!(roles_of(&of("\"operate\"")), ["observe", "operate"]);
        assert_eq!(
            roles_of(&of("\"approve\"")),
            ["approve"],
            "no other role has it, and it has no other one"
        );
        assert!(refusal("\nversion = 3").starts_with("line 2: version = 3 is not known here"));
        assert!(refusal("version = \"2\"").starts_with("line 1: "));
    }

    #[test]
    fn a_key_and_a_name_belong_to_one_caller() {
        let one = caller(&format!("key_sha256 = \"{}\"", "ab".repeat(32)));
        assert!(refusal(&format!("{one}{one}")).contains("given twice"));
        let other = one.replace("\"a\"", "\"b\"").replace("abab", "ABAB");
        assert!(refusal(&format!("{one}{other}")).contains("another entry"));
    }

    #[test]
    fn several_keys_are_one_caller_and_the_version_names_the_text() {
        let (old, new) = (key::mint_key().unwrap(), key::mint_key().unwrap());
        let text = caller(&format!("key_sha256 = [\"{}\", \"{}\"]", old.sha256, new.sha256));
        let access = Access::parse(&text).unwrap();
        for key in [&old, &new] {
            assert_eq!(&*access.by_key(&key.text).unwrap().caller.name, "a");
        }
        assert!(access.by_key(&key::mint_key().unwrap().text).is_none());
        assert!(access.by_key(&old.sha256).is_none());
        assert_ne!(access.version(), Access::parse(&format!("{text}#")).unwrap().version());
    }
}
