//! docs/capacity.md shows what its commands print, and the picture that they draw.
//!
//! With `WINDFALL_WRITE_PAGE=1` in the environment the page and the picture are written anew instead.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

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

const BEGIN: &str = "```\n$ windfall plan ";
const END: &str = "```\n";

#[test]
fn the_page_shows_what_its_commands_print() {
    let path = docs("capacity.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (mut out, mut rest, mut commands) = (String::new(), page.as_str(), 0);
    while let Some(at) = rest.find(BEGIN) {
        let (before, block) = rest.split_at(at + BEGIN.len());
        let end = block.find(END).unwrap();
        // The command ends with the first line that does not go on.
        let lines: Vec<&str> = block[..end].split_inclusive('\n').collect();
        let last = lines.iter().position(|line| !line.ends_with("\\\n")).unwrap();
        let command: String = lines[..=last].concat();
        out.extend([before, &command, &printed(&command)]);
        rest = &block[end..];
        commands += 1;
    }
    assert_eq!(commands, 2, "commands of the page");
    out.push_str(rest);
    hold(&path, &out);
}

/// What a command prints; its picture is compared as well.
fn printed(command: &str) -> String {
    let words = command.split_whitespace().filter(|word| *word != "\\");
    let args = Command::try_parse_from(["plan"].into_iter().chain(words)).unwrap().args;
    let plan = Plan::new(&args.inputs(), &Costs::default()).unwrap();
    if let Some(picture) = &args.svg {
        hold(&docs(picture.strip_prefix("docs").unwrap().to_str().unwrap()), &svg::picture(&plan));
    }
    plan.to_string()
}
