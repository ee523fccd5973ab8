//! `atta man`: the manual pages.

use std::path::PathBuf;

use clap::{Args as ClapArgs, CommandFactory};

use crate::args::Args;
use crate::output::{Failure, print};

/// Print the manual page, or write one for each command
///
/// To read it: atta man | man -l -
#[derive(Debug, ClapArgs)]
pub(crate) struct Man {
    /// Write the pages of all commands into this folder instead
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Man) -> Result<(), Failure> {
    let Some(folder) = &args.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Args::command())
            .render(&mut page)
            .map_err(|error| Failure::new(format!("can't create the manual page: {error}")))?;
        print(&String::from_utf8_lossy(&page));
        return Ok(());
    };
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Args::command(), folder))
        .map_err(|error| Failure::new(format!("can't write to {}: {error}", folder.display())))
}
