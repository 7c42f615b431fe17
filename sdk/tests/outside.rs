//! The README's example, and what a cluster with credentials takes, in a crate outside the workspace whose only dependency is
//! the SDK.
#![allow(clippy::unwrap_used)] // a test may panic

use std::fs;
use std::path::Path;
use std::process::Command;

const LINES_MAX: usize = 15;

/// A sender to a cluster that asks for a password, and what callers of a broker and of a token store have to name.
const CREDENTIALS: &str = r#"
use std::sync::Arc;
use windfall_sdk::brokers::kafka::{Compression, Mechanism, Sasl, Secret};
use windfall_sdk::brokers::{Broker, KafkaOptions, TlsOptions};
use windfall_sdk::contract::broker::{DeliverySink, OpenError, Producer};
use windfall_sdk::contract::tokens::{TokenPut, TokenStore, Unavailable};
use windfall_sdk::{Sdk, SdkBuilder};

fn builder(password: String) -> SdkBuilder {
    let password = Secret(password);
    let sasl = Sasl { mechanism: Mechanism::ScramSha512, username: "sender".into(), password };
    let options = KafkaOptions {
        bootstrap_servers: "kafka-0:9093".into(),
        tls: Some(TlsOptions::default()),
        sasl: Some(sasl),
        compression: Compression::Zstd,
        ..KafkaOptions::default()
    };
    Sdk::builder("windfall").kafka_with("a", options)
}

fn open(broker: Arc<dyn Broker>, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
    broker.producer("topic", sink)
}

async fn put(store: Arc<dyn TokenStore>, tokens: Vec<TokenPut>) -> Result<(), Unavailable> {
    store.put(&tokens).await
}

fn main() {
    drop((builder(String::new()), open, put));
}
"#;

/// The first block of Rust after this heading.
fn example(page: &str, heading: &str) -> String {
    let (_, section) = page.split_once(heading).unwrap();
    let (_, block) = section.split_once("```rust\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_readme_and_credentials_compile_with_the_sdk_as_the_one_dependency() {
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = sdk.parent().unwrap();
    let code = example(&fs::read_to_string(root.join("README.md")).unwrap(), "## The SDK in 15 lines");
    assert!(code.lines().count() <= LINES_MAX, "{} lines:\n{code}", code.lines().count());
    assert!(code.contains(".kafka("), "{code}");

    let outside = tempfile::tempdir().unwrap();
    // The workspace's profiles and lock file, so that what it has built is used again.
    let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let profiles = &workspace[workspace.find("[profile.dev]").unwrap()..];
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nwindfall-sdk = {{ path = {sdk:?}, features = [\"kafka\"] }}\n\n{profiles}"
    );
    fs::write(outside.path().join("Cargo.toml"), manifest).unwrap();
    fs::copy(root.join("Cargo.lock"), outside.path().join("Cargo.lock")).unwrap();
    fs::create_dir_all(outside.path().join("src/bin")).unwrap();
    fs::write(outside.path().join("src/main.rs"), code).unwrap();
    fs::write(outside.path().join("src/bin/credentials.rs"), CREDENTIALS).unwrap();

    // target/debug/deps/outside-…
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let check = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--quiet"])
        .current_dir(outside.path())
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

/// Who links the SDK pays for the drivers that it asks for, and for no others.
#[test]
fn without_features_no_driver_is_built() {
    let tree = |features: &str| {
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--features", features])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        String::from_utf8(tree.stdout).unwrap()
    };
    let has = |tree: &str, name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    let drivers = ["fjall", "rdkafka", "redis", "tonic", "windfall-edge"];
    let bare = tree("");
    assert!(has(&bare, "windfall-spool"), "{bare}");
    assert_eq!(drivers.map(|name| has(&bare, name)), [false; 5]);
    let kafka = tree("kafka");
    assert_eq!(drivers.map(|name| has(&kafka, name)), [false, true, false, false, false]);
}
