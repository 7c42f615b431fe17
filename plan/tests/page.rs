//! docs/capacity.md shows what its commands print, and the picture that they draw.
//!
//! With `WINDFALL_WRITE_PAGE=1` in the environment the page and the picture are written anew instead.

use clap::Parser;
use std::path::{Path, PathBuf};
use windfall_plan::{Costs, Plan, PlanArgs, svg};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: PlanArgs,
}

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

/// Compares a file with what it should hold, or writes it.
fn hold(path: &Path, expected: &str) {
    if std::env::var_os("WINDFALL_WRITE_PAGE").is_some() {
        return std::fs::write(path, expected).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    for (nth, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{}, line {}", path.display(), nth + 1);
    }
    assert_eq!(found.len(), expected.len(), "{}", path.display());
}

#[test]
fn the_page_shows_what_its_commands_print() {
    let path = docs("capacity.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (mut out, mut commands) = (String::new(), 0);
    let mut blocks = page.split("```\n");
    // Outside and inside of blocks by turns.
    while let Some(text) = blocks.next() {
        out.push_str(text);
        let Some(block) = blocks.next() else { break };
        out.push_str("```\n");
        match block.strip_prefix("$ windfall plan ") {
            None => out.push_str(block),
            Some(rest) => {
                commands += 1;
                // The command ends with the first line that does not go on.
                let lines: Vec<&str> = rest.split_inclusive('\n').collect();
                let last = lines.iter().position(|line| !line.ends_with("\\\n")).unwrap();
                let command: String = lines[..=last].concat();
                let words = command.split_whitespace().filter(|word| *word != "\\");
                let args = Command::try_parse_from(["plan"].into_iter().chain(words)).unwrap().args;
                let plan = Plan::new(&args.inputs(), &Costs::default()).unwrap();
                if let Some(picture) = &args.svg {
                    hold(
                        &docs(picture.strip_prefix("docs").unwrap().to_str().unwrap()),
                        &svg::picture(&plan),
                    );
                }
                out.push_str(&format!("$ windfall plan {command}{plan}"));
            }
        }
        out.push_str("```\n");
    }
    assert!(commands >= 2, "the page has {commands} commands");
    hold(&path, &out);
}
