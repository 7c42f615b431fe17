//! `windfall completions` and `windfall man`: what a shell and `man` read of the commands.

use anyhow::{Context, Result};
use clap::Command;
use std::io::Write;
use std::path::PathBuf;

/// `windfall completions`
#[derive(Debug, Clone, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// `windfall man`
#[derive(Debug, Clone, clap::Args)]
pub struct ManArgs {
    /// The directory that gets one page for each command, such as /usr/local/share/man/man1; it is made if it is not there
    directory: PathBuf,
}

/// Prints the script of a shell.
pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "windfall", &mut script);
    std::io::stdout().lock().write_all(&script).context("the script cannot be printed")
}

/// Writes the pages.
pub fn man(args: &ManArgs, command: Command) -> Result<()> {
    let directory = args.directory.display();
    std::fs::create_dir_all(&args.directory).with_context(|| format!("{directory} cannot be made"))?;
    clap_mangen::generate_to(command, &args.directory)
        .with_context(|| format!("the pages cannot be written to {directory}"))?;
    println!("the manual pages are in {directory}; read the first one by: man {directory}/windfall.1");
    Ok(())
}
