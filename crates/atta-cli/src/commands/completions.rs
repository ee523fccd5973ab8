//! `atta completions`: completion scripts for shells.

use clap::{Args as ClapArgs, CommandFactory};
use clap_complete::Shell;

use crate::args::Args;
use crate::output::{Failure, print};

/// Print the completions of a shell
///
/// For bash: atta completions bash > ~/.local/share/bash-completion/completions/atta
#[derive(Debug, ClapArgs)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(args: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "atta", &mut text);
    print(&String::from_utf8_lossy(&text));
    Ok(())
}
