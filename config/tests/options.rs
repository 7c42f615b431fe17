//! Static options: defaults, the file, the environment over it, and errors that say where.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tempfile::TempDir;
use windfall_config::{OptionsError, Place, load};

#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    name: String,
    sdk: Sdk,
    brokers: BTreeMap<String, Broker>,
    topics: Vec<String>,
    threads: Option<u8>,
    ratio: f64,
    verbose: bool,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(default)]
struct Sdk {
    linger_ms: u64,
    offset: i32,
    spool: Spool,
}

impl Default for Sdk {
    fn default() -> Self {
        Self { linger_ms: 5, offset: 0, spool: Spool::Mapped }
    }
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Spool {
    Mapped,
    Memory,
    Sized { bytes: u64 },
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Broker {
    Embedded { directory: PathBuf, fsync: bool },
    Kafka { address: String, port: u16 },
}

const FILE: &str = r#"name = "festival"
topics = ["one", "two"]

[sdk]
linger_ms = 9

[brokers.a]
kind = "embedded"
directory = "/data"
fsync = true
"#;

fn file(text: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("windfall.toml");
    std::fs::write(&path, text).unwrap();
    (directory, path)
}

fn with(text: &str, env: &[(&str, &str)]) -> Result<Options, OptionsError> {
    let (_directory, path) = file(text);
    load(Some(&path), env.iter().copied(), "WINDFALL")
}

#[track_caller]
fn refused(text: &str, env: &[(&str, &str)]) -> (Place, String, String) {
    match with(text, env) {
        Err(OptionsError::Key { place, key, message }) => (place, key, message),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn at_line(text: &str, line: usize, key: &str, word: &str) {
    let (place, found, message) = refused(text, &[]);
    assert!(matches!(place, Place::File { line: found, .. } if found == line), "{place:?} {message}");
    assert_eq!(found, key);
    assert!(message.contains(word), "{message}");
}

#[track_caller]
fn in_variable(name: &str, value: &str, key: &str, word: &str) {
    let (place, found, message) = refused(FILE, &[(name, value)]);
    assert_eq!(place, Place::Environment { name: name.to_owned() });
    assert_eq!(found, key);
    assert!(message.contains(word), "{message}");
}

#[test]
fn defaults_hold_where_nothing_is_said() {
    let none: [(&str, &str); 0] = [];
    assert_eq!(load::<Options, _, _>(None, none, "WINDFALL").unwrap(), Options::default());
    let options = with(FILE, &[]).unwrap();
    assert_eq!(options.sdk, Sdk { linger_ms: 9, ..Sdk::default() });
    assert_eq!(options.topics, ["one", "two"]);
    assert_eq!(options.brokers["a"], Broker::Embedded { directory: "/data".into(), fsync: true });
}

#[test]
fn a_variable_has_the_type_of_its_field() {
    let env = [
        ("WINDFALL_NAME", "2027"),
        ("WINDFALL_SDK__LINGER_MS", "7"),
        ("WINDFALL_SDK__OFFSET", "-3"),
        ("WINDFALL_SDK__SPOOL", "memory"),
        ("WINDFALL_TOPICS", "[\"three\"]"),
        ("WINDFALL_THREADS", "2"),
        ("WINDFALL_RATIO", "0.5"),
        ("WINDFALL_VERBOSE", "true"),
        ("WINDFALL_BROKERS__A__FSYNC", "false"),
        ("WINDFALL_BROKERS__B", "{ kind = \"kafka\", address = \"k\", port = 9092 }"),
        ("WINDFALLS", "another's"),
        ("PATH", "/bin"),
    ];
    let options = with(FILE, &env).unwrap();
    assert_eq!(options.name, "2027");
    assert_eq!(options.sdk, Sdk { linger_ms: 7, offset: -3, spool: Spool::Memory });
    assert_eq!(options.topics, ["three"]);
    assert_eq!((options.threads, options.ratio, options.verbose), (Some(2), 0.5, true));
    assert_eq!(options.brokers["a"], Broker::Embedded { directory: "/data".into(), fsync: false });
    assert_eq!(options.brokers["b"], Broker::Kafka { address: "k".to_owned(), port: 9092 });
    let sized = with(FILE, &[("WINDFALL_SDK__SPOOL__SIZED__BYTES", "64")]).unwrap();
    assert_eq!(sized.sdk.spool, Spool::Sized { bytes: 64 });
}

#[test]
fn an_unknown_key_in_the_file() {
    at_line("[sdk]\nlingr_ms = 5\n", 2, "sdk.lingr_ms", "did you mean `linger_ms`?");
    at_line("\n[skd]\nlinger_ms = 5\n", 2, "skd", "did you mean `sdk`?");
    at_line("zebra = 5\n", 1, "zebra", "there are `name`, `sdk`");
    at_line("[sdk.spool.sized]\nbites = 5\n", 2, "sdk.spool.sized.bites", "`bytes`");
}

#[test]
fn a_value_that_does_not_fit_in_the_file() {
    at_line("name = \"x\"\n[sdk]\nlinger_ms = \"5\"\n", 3, "sdk.linger_ms", "u64");
    at_line("threads = 256\n", 1, "threads", "u8");
    at_line("[sdk]\nlinger_ms = -1\n", 2, "sdk.linger_ms", "u64");
    at_line("[sdk]\nlinger_ms = 99999999999999999999\n", 2, "sdk.linger_ms", "64 bits");
    at_line("topics = [\"one\",\n2]\n", 2, "topics[1]", "string");
    at_line("[sdk]\nspool = \"memroy\"\n", 2, "sdk.spool", "did you mean `memory`?");
    at_line("[sdk]\nspool = 5\n", 2, "sdk.spool", "a name, or a table");
    at_line("[sdk.spool]\nsized = {}\n", 2, "sdk.spool.sized.bytes", "is missing");
    at_line("\n[brokers.a]\nkind = \"kafka\"\nport = 1\n", 2, "brokers.a.address", "is missing");
    at_line("[brokers.a]\nkind = \"kafca\"\n", 2, "brokers.a.kind", "did you mean `kafka`?");
}

#[test]
fn an_unknown_or_unfit_variable() {
    in_variable("WINDFALL_SDK__LINGR_MS", "5", "sdk.lingr_ms", "did you mean `linger_ms`?");
    in_variable("WINDFALL_SDK_LINGER_MS", "5", "sdk_linger_ms", "unknown key");
    in_variable("WINDFALL_", "5", "\"\"", "unknown key");
    in_variable("WINDFALL_SDK__LINGER_MS", "5s", "sdk.linger_ms", "5s");
    in_variable("WINDFALL_SDK__LINGER_MS", "", "sdk.linger_ms", "whole number");
    in_variable("WINDFALL_VERBOSE", "yes", "verbose", "`true` or `false`");
    in_variable("WINDFALL_RATIO", "half", "ratio", "a number");
    in_variable("WINDFALL_TOPICS", "one,two", "topics", "a list as in TOML");
    in_variable("WINDFALL_BROKERS", "a", "brokers", "a table as in TOML");
    in_variable("WINDFALL_SDK", "{ lingr_ms = 5 }", "sdk.lingr_ms", "did you mean `linger_ms`?");
    in_variable("WINDFALL_NAME__FIRST", "x", "name.first", "a value of its own");
}

/// What stands inside of a variable's value stands in that variable, and nowhere in the file.
#[test]
fn a_fault_inside_of_a_variables_value_names_the_variable() {
    for file in ["", FILE] {
        for (value, key) in [
            ("{ linger_ms = 1, offset = [1] }", "sdk.offset"),
            ("{ linger_ms = 1, spool = \"memroy\" }", "sdk.spool"),
            ("{ linger_ms = \"5\" }", "sdk.linger_ms"),
            ("{ linger_ms = 1, spool = { sized = { bites = 5 } } }", "sdk.spool.sized.bites"),
        ] {
            let (place, found, message) = refused(file, &[("WINDFALL_SDK", value)]);
            assert_eq!(place, Place::Environment { name: "WINDFALL_SDK".to_owned() }, "{message}");
            assert_eq!(found, key, "{message}");
        }
    }
}

#[test]
fn words_keep_the_type_of_their_field_where_toml_would_guess_another() {
    let env = [("WINDFALL_NAME", "[1]"), ("WINDFALL_THREADS", "007"), ("WINDFALL_RATIO", " .5 ")];
    let options = with("", &env).unwrap();
    assert_eq!((options.name.as_str(), options.threads, options.ratio), ("[1]", Some(7), 0.5));
    let (_, key, message) = refused("", &[("WINDFALL_THREADS", "300")]);
    assert!(key == "threads" && message == "is 300; it must be a whole number (u8)", "{key}: {message}");
}

#[test]
fn a_key_set_by_two_variables_is_refused() {
    for env in [
        [("WINDFALL_SDK__OFFSET", "1"), ("WINDFALL_sdk__offset", "2")],
        [("WINDFALL_BROKERS__B__KIND", "kafka"), ("WINDFALL_BROKERS__B", "{}")],
    ] {
        let (_, _, message) = refused(FILE, &env);
        assert!(message.contains("another variable"), "{message}");
    }
}

#[test]
fn a_missing_key_says_where_to_set_it() {
    #[derive(Debug, Deserialize)]
    struct Needs {
        #[expect(dead_code)]
        address: String,
    }
    let none: [(&str, &str); 0] = [];
    let error = load::<Needs, _, _>(None, none, "WINDFALL").unwrap_err();
    assert_eq!(error.to_string(), "address: is missing; set it in the options file or as WINDFALL_ADDRESS");
}

#[test]
fn what_is_no_options_file() {
    let load = |path: &std::path::Path| load::<Options, &str, &str>(Some(path), [], "WINDFALL").unwrap_err();
    let (directory, path) = file("name = \"x\"\nsdk = [\n");
    let error = load(&path);
    assert!(matches!(&error, OptionsError::Document { line: Some(_), .. }), "{error}");
    assert!(error.to_string().contains("windfall.toml, line "), "{error}");
    let (_kept, path) = file(b"name = \"x\"\n\xff");
    assert!(load(&path).to_string().contains("windfall.toml, line 2: byte 11 is not UTF-8"));
    assert!(matches!(load(&directory.path().join("gone")), OptionsError::Read { .. }));
    let (_kept, path) = file("#".repeat((1 << 20) + 1));
    assert!(load(&path).to_string().contains("longer than 1048576 bytes"));
}

#[cfg(unix)]
#[test]
fn a_value_that_is_not_text() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;
    let value = OsString::from_vec(vec![0xff]);
    let others = (OsString::from_vec(vec![0xff]), value.clone());
    let env = [others, (OsString::from("WINDFALL_NAME"), value)];
    let error = load::<Options, _, _>(None, env, "WINDFALL").unwrap_err();
    assert_eq!(error.to_string(), "environment variable WINDFALL_NAME: name: its value is not UTF-8");
}

/// Errors of options go to logs, where more people read them than the file.
#[test]
fn an_error_never_quotes_what_may_be_a_secret() {
    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only read, to be refused")]
    struct Server {
        password: Option<String>,
        bearer_key: Option<Mode>,
        mode: Option<Mode>,
        address: Option<std::net::SocketAddr>,
    }
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Fast,
    }
    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only read, to be refused")]
    struct Options {
        server: Server,
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("options.toml");
    let said = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let none: [(&str, &str); 0] = [];
        windfall_config::load::<Options, _, _>(Some(&path), none, "WINDFALL").unwrap_err().to_string()
    };
    for text in [
        "server = \"redis://:hush@10.0.0.5\"",
        "[server]\nbearer_key = \"hush\"",
        "[server]\nmode = \"redis://:hush@10.0.0.5\"",
        "[server]\naddress = \"redis://:hush@10.0.0.5\"",
        "[server]\npassword = [\"hush\"]",
        "[server]\npassword = \"hush",
    ] {
        let told = said(text);
        assert!(!told.contains("hush"), "{text}: {told}");
        assert!(told.contains("options.toml, line "), "{text}: {told}");
    }
    // What helps and is no secret is still told.
    assert!(said("[server]\nmode = \"fats\"").contains("`fats`"));
    let variable = [("WINDFALL_SERVER", "{ bearer_key = \"hush\" }")];
    let told = windfall_config::load::<Options, _, _>(None, variable, "WINDFALL").unwrap_err().to_string();
    assert!(told.contains("WINDFALL_SERVER") && !told.contains("hush"), "{told}");
}
