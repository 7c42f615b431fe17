//! The operators' documentation, dashboard and alerts, checked against what is exported.

use super::{Sources, export};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use windfall_contract::Clock;
use windfall_edge::{Access, AccessSource, Described, Health, Metrics, Parts, ServeOptions};

const BEGIN: &str = "<!-- metrics: made from the code; `WINDFALL_WRITE_DOCS=1` writes it anew -->\n";
const END: &str = "<!-- end of metrics -->\n";

/// Everything that a process of any role can show.
async fn described() -> Vec<Described> {
    let metrics = Metrics::new();
    export(&metrics, &Sources::default());
    let key = windfall_edge::mint_key().unwrap();
    let access = format!(
        "[[caller]]\nname = \"test\"\ntenant = \"windfall\"\nroles = [\"operate\"]\nkey_sha256 = \"{}\"",
        key.sha256
    );
    let access = AccessSource::fixed(Access::parse(&access).unwrap(), Clock::system()).unwrap();
    let options = ServeOptions { listen: "127.0.0.1:0".parse().unwrap(), ..ServeOptions::default() };
    let parts = Parts { router: Default::default(), access, metrics: metrics.clone(), health: Health::new() };
    windfall_edge::serve(&options, parts).await.unwrap().stop().await;
    metrics.described()
}

fn at(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", path].iter().collect()
}

fn table(described: &[Described]) -> String {
    let row = |Described { name, kind, labels, help }: &Described| {
        format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "))
    };
    let rows: String = described.iter().map(row).collect();
    format!("| name | kind | labels | what it says |\n|---|---|---|---|\n{rows}")
}

#[tokio::test]
async fn the_documentation_lists_every_metric_as_it_is_exported() {
    let expected = table(&described().await);
    let path = at("docs/services.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("docs/services.md has no list of metrics");
    let (found, after) = rest.split_once(END).expect("the list of metrics has no end");
    if std::env::var_os("WINDFALL_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    let lines = |table: &str| table.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (found_lines, expected_lines) = (lines(found), lines(&expected));
    let missing: Vec<_> = expected_lines.difference(&found_lines).collect();
    let extra: Vec<_> = found_lines.difference(&expected_lines).collect();
    assert!(
        found == expected,
        "docs/services.md lacks {missing:#?} and has {extra:#?}, which is not exported so"
    );
}

#[tokio::test]
async fn names_are_unique_and_end_as_their_kind_says() {
    let described = described().await;
    let names: BTreeSet<_> = described.iter().map(|metric| &metric.name).collect();
    assert_eq!(names.len(), described.len(), "a name is there twice");
    for Described { name, kind, help, .. } in &described {
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{name} is a {kind}");
        assert!(name.starts_with("windfall_") && !help.is_empty() && !help.contains('|'), "{name}: {help}");
    }
}

#[tokio::test]
async fn dashboard_and_alerts_ask_for_metrics_that_exist() {
    let names: BTreeSet<String> = described().await.into_iter().map(|metric| metric.name).collect();
    for path in [
        "deploy/prometheus/alerts.yml",
        "deploy/grafana/windfall.json",
        "deploy/helm/windfall/templates/scaling.yaml",
    ] {
        let text = fs::read_to_string(at(path)).unwrap();
        let words = text.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
        let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("windfall_")).collect();
        assert!(!asked.is_empty(), "{path} asks for no metric");
        for name in asked {
            let plain = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| name.strip_suffix(end));
            assert!(names.contains(plain.unwrap_or(name)), "{path} asks for {name}, which is not exported");
        }
    }
}
